//! `InRelease` from several mirrors: the newest of two is taken, and never an older one than apt has.
//!
//! Its hash is unknown, but it has a date. So two mirrors are asked, including the origin; a silent mirror, or one without
//! an acceptable file (`mirror_releases`), is replaced by the next. Indexes without by-hash names are then requested only from mirrors with the newest
//! Release.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fullbore_debian::date;
use fullbore_debian::release::if_modified_since;
use fullbore_debian::signature::{SIGNATURE_BYTES_MAX, text_of_inrelease};
use fullbore_wire::fetch::{Get, GetError, Got, HeadSeen, Watch};
use fullbore_wire::hosts::{HostId, HostSet};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::answers::HostError;
use super::mirror_releases::{Archive, ReleaseCheck};

/// The host that apt named: the first of its mirror set.
const ORIGIN: HostId = 0;

/// Answers to compare: with two, a single stale mirror cannot hide a newer Release.
const ANSWERS: usize = 2;

/// Time after which another mirror is asked for a missing answer: before the first answer, and again after it.
const PATIENCE: Duration = Duration::from_millis(1000);

/// Mirrors asked in place of silent ones; one answer waits at most this times the patience for a second.
const REPLACEMENTS: usize = 2;

/// Bytes in which the date is searched: it precedes the lists of files.
const HEAD_BYTES: usize = 64 << 10;

/// The Release that apt has in its lists directory.
#[derive(Debug, Clone, Default)]
pub(super) struct LocalRelease {
    /// The content of the file.
    pub content: Vec<u8>,
    /// The `Date` of the Release, Unix seconds.
    pub date: Option<i64>,
}

impl LocalRelease {
    /// Parses the date of the file's content.
    pub(super) fn new(content: Vec<u8>) -> LocalRelease {
        LocalRelease { date: date_of(&content), content }
    }

    /// The time for `If-Modified-Since`, by the date and the file's time `modified`.
    pub(super) fn if_modified_since(&self, modified: i64) -> i64 {
        if_modified_since(self.date, modified)
    }
}

/// Which answers are compared. The origin's is not verified yet; this excludes pages of captive portals, and texts with a
/// date in the future that apt would refuse.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acceptance {
    /// Whether it is an `InRelease`: a signed message and nothing else.
    pub is_inline: bool,
    /// The latest date that apt accepts, Unix seconds.
    pub latest: Option<i64>,
}

impl Acceptance {
    /// The date of an answer; `None` if it has none, or is excluded.
    fn date_of(self, content: &[u8]) -> Option<i64> {
        let date = match self.is_inline {
            true => date_of(text_of_inrelease(content).ok()?.as_bytes()),
            false => date_of(content),
        };
        date.filter(|date| self.latest.is_none_or(|latest| *date <= latest))
    }
}

/// The newest answer.
#[derive(Debug)]
pub(super) enum Newest {
    /// A newer Release than apt's.
    Content {
        /// Its host.
        host: HostId,
        /// The file.
        body: Vec<u8>,
        /// `Last-Modified`, Unix seconds.
        modified: Option<i64>,
    },
    /// No mirror has a newer one.
    Unchanged,
    /// No mirror has a usable one; the error of each.
    None(Vec<(HostId, HostError)>),
}

/// The used parts of an answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    body: Vec<u8>,
    modified: Option<i64>,
    location: Option<String>,
}

impl From<Got> for Answer {
    fn from(got: Got) -> Answer {
        let Got { head, body, .. } = got;
        Answer { status: head.status, body, modified: head.last_modified, location: head.location }
    }
}

/// The answers of the mirrors.
#[derive(Debug, Default)]
struct Answers {
    /// Date and content of each answer; no content after "not modified".
    offers: BTreeMap<HostId, ReleaseAnswer>,
    host_errors: BTreeMap<HostId, HostError>,
}

#[derive(Debug)]
struct ReleaseAnswer {
    date: Option<i64>,
    /// `Last-Modified`, Unix seconds.
    modified: Option<i64>,
    content: Option<(Vec<u8>, Option<i64>)>,
}

impl ReleaseAnswer {
    fn is_compared(&self) -> bool {
        self.date.is_some() || self.content.is_none()
    }
}

impl Answers {
    fn add(
        &mut self,
        host: HostId,
        answer: Result<Answer, GetError>,
        known: Option<&LocalRelease>,
        acceptance: Acceptance,
    ) {
        let host_error = match answer {
            Ok(answer) if answer.status == 200 => {
                let date = acceptance.date_of(&answer.body);
                let Answer { body, modified, .. } = answer;
                self.offers.insert(host, ReleaseAnswer { date, modified, content: Some((body, modified)) });
                return;
            }
            Ok(answer) if answer.status == 304 && known.is_some() => {
                let date = known.and_then(|known| known.date);
                self.offers.insert(host, ReleaseAnswer { date, modified: answer.modified, content: None });
                return;
            }
            Ok(Answer { location: Some(to), .. }) => HostError::Redirected(to),
            Ok(answer) => HostError::Status(answer.status),
            Err(error) => HostError::of_get(&error),
        };
        self.host_errors.insert(host, host_error);
    }

    /// Records that apt would not accept the answer of a mirror.
    fn refuse(&mut self, host: HostId, why: String) {
        tracing::debug!(host, why, "a mirror's Release is not used");
        self.host_errors.insert(host, HostError::Other(why));
    }

    /// Leaves out mirrors with another archive's Release than the origin's, although its signature is valid.
    fn leave_out_other_archives(&mut self) {
        let content = |offer: &ReleaseAnswer| offer.content.as_ref().map(|(body, _)| body.clone());
        let Some(origin) = self.offers.get(&ORIGIN).and_then(content) else { return };
        let Some(archive) = Archive::named_in(&origin) else { return };
        let is_other = |offer: &ReleaseAnswer| {
            let body = offer.content.as_ref().map(|(body, _)| body).filter(|body| **body != origin);
            body.and_then(|body| Archive::named_in(body)).is_some_and(|own| own != archive)
        };
        let others: Vec<HostId> =
            self.offers.iter().filter(|(_, offer)| is_other(offer)).map(|(host, _)| *host).collect();
        for host in others {
            self.offers.remove(&host);
            self.refuse(host, "the Release is of another archive than the origin's".to_owned());
        }
    }

    /// Whether this host has answered or failed.
    fn has(&self, host: HostId) -> bool {
        self.offers.contains_key(&host) || self.host_errors.contains_key(&host)
    }

    /// Whether an answer in flight is no newer than a compared one, by `Last-Modified`.
    fn is_no_newer(&self, seen: &HeadSeen) -> bool {
        let compared = self.offers.values().filter(|offer| offer.is_compared());
        // A mirror's time is its own claim; the date is not.
        let newest = compared.filter_map(|offer| Some(if_modified_since(offer.date, offer.modified?))).max();
        newest.is_some_and(|newest| seen.is_no_newer_than(newest))
    }

    /// Number of comparable answers. Without any, apt judges the others.
    fn compared(&self) -> usize {
        self.offers.values().filter(|offer| offer.is_compared()).count()
    }

    /// The newest answer, and the mirrors that are as new. Among equal ones the lowest host number wins: the origin, if it is
    /// among them.
    fn decide(mut self, known: Option<&LocalRelease>) -> (Newest, Freshness) {
        self.leave_out_other_archives();
        let newest = self.offers.values().map(|offer| offer.date).max().flatten();
        let mut freshness = Freshness::default();
        for (host, offer) in &self.offers {
            let set = if offer.date == newest { &mut freshness.fresh } else { &mut freshness.stale };
            set.insert(*host);
        }
        let Some(best) = self.offers.iter().find(|(_, offer)| offer.date == newest).map(|(host, _)| *host) else {
            return (Newest::None(self.host_errors.into_iter().collect()), freshness);
        };
        if let Some(date) = known.and_then(|known| known.date)
            && newest < Some(date)
        {
            // All are older than apt's.
            freshness.stale = freshness.stale.union(freshness.fresh);
            freshness.fresh = HostSet::default();
            return (Newest::Unchanged, freshness);
        }
        let content = self.offers.remove(&best).and_then(|offer| offer.content);
        let newest = match content {
            Some((body, _)) if known.is_some_and(|known| known.content == body) => Newest::Unchanged,
            Some((body, modified)) => Newest::Content { host: best, body, modified },
            None => Newest::Unchanged,
        };
        freshness.chosen = Some(best);
        (newest, freshness)
    }
}

/// The freshness of mirrors for one suite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Freshness {
    /// Hosts with the newest Release.
    pub fresh: HostSet,
    /// Hosts with an older Release.
    pub stale: HostSet,
    /// Hosts that did not answer in time.
    pub slow: HostSet,
    /// The host of the chosen Release, to which its detached signature belongs.
    pub chosen: Option<HostId>,
}

impl Freshness {
    /// Hosts to exclude for an index without a by-hash name: all except those with the newest Release, and except the origin
    /// unless it is older.
    pub(super) fn excluded(self, hosts: usize) -> HostSet {
        let mut excluded = HostSet::default();
        for host in 0..hosts as HostId {
            let is_origin = host == 0 && !self.stale.contains(host);
            if !is_origin && !self.fresh.contains(host) {
                excluded.insert(host);
            }
        }
        // If none is left: any host, the hash decides.
        let nobody = (0..hosts as HostId).all(|host| excluded.contains(host));
        if nobody { HostSet::default() } else { excluded }
    }
}

/// One host's answer, and why apt would not accept it.
type JudgedAnswer = (HostId, Result<Got, GetError>, Option<String>);

/// A request in flight.
#[derive(Clone, Default)]
struct Asked {
    seen: HeadSeen,
    /// Whether the answer is complete, and its signature perhaps still checked.
    is_received: Arc<AtomicBool>,
}

impl Asked {
    /// Whether the body is slow to follow the head.
    fn lingers_now(&self) -> bool {
        !self.is_received.load(Ordering::Relaxed) && self.seen.lingers_now()
    }
}

/// The reference for judging the answers of mirrors.
struct Judge {
    /// `None` if only the origin is asked.
    check: Option<ReleaseCheck>,
    is_inline: bool,
    /// apt's own copy, which was verified when it was received.
    known: Option<Vec<u8>>,
    /// The origin's content, once it is received.
    origin: OnceLock<Vec<u8>>,
}

impl Judge {
    /// Asks a host, and checks its answer unless it is the origin's.
    async fn ask(self: Arc<Judge>, watch: Watch, host: HostId, get: Get, asked: Asked) -> JudgedAnswer {
        let signature_path = format!("{}.gpg", get.path);
        let answer = watch.get(host, get).await;
        asked.is_received.store(true, Ordering::Relaxed);
        let Some(content) = answer.as_ref().ok().filter(|got| got.head.status == 200).map(|got| &got.body) else {
            return (host, answer, None);
        };
        if host == ORIGIN {
            let _ = self.origin.set(content.clone());
            return (host, answer, None);
        }
        if [self.origin.get(), self.known.as_ref()].contains(&Some(content)) {
            return (host, answer, None);
        }
        let mut signature = None;
        if !self.is_inline {
            let limit_bytes = SIGNATURE_BYTES_MAX as u64;
            match watch.get(host, Get { path: signature_path, limit_bytes, ..Get::default() }).await {
                Ok(got) if got.head.status == 200 => signature = Some(got.body),
                _ => return (host, answer, Some("the Release has no signature there".to_owned())),
            }
        }
        let content = content.clone();
        let checking = tokio::task::spawn_blocking(move || {
            let check = self.check.as_ref();
            check.map(|check| check.refusal(&content, signature.as_deref()))
        });
        let lost = || Some("the verifying thread failed".to_owned());
        let refusal = checking.await.ok().flatten().unwrap_or_else(lost);
        (host, answer, refusal)
    }
}

/// Asks the hosts in this order and takes the newest of two answers. A slow answer counts as one if its head says that
/// it is not newer. Without a check only the origin is asked.
pub(super) async fn newest(
    watch: &Watch,
    hosts: &[HostId],
    get: &Get,
    known: Option<&LocalRelease>,
    acceptance: Acceptance,
    check: Option<ReleaseCheck>,
) -> (Newest, Freshness) {
    let hosts = if check.is_some() { hosts } else { &[ORIGIN] };
    let known_content = known.map(|known| known.content.clone());
    let judge = Judge { check, is_inline: acceptance.is_inline, known: known_content, origin: OnceLock::new() };
    let judge = Arc::new(judge);
    let mut waiting = hosts.iter().copied();
    let mut asked: BTreeMap<HostId, Asked> = BTreeMap::new();
    let mut asking = JoinSet::new();
    let mut ask = |asking: &mut JoinSet<_>, asked: &mut BTreeMap<HostId, Asked>| {
        if let Some(host) = waiting.next() {
            let own = asked.entry(host).or_default();
            let get = Get { head_seen: Some(own.seen.clone()), ..get.clone() };
            asking.spawn(judge.clone().ask(watch.clone(), host, get, own.clone()));
        }
    };
    for _ in 0..ANSWERS {
        ask(&mut asking, &mut asked);
    }
    let mut answers = Answers::default();
    let mut until = Instant::now() + PATIENCE;
    let mut replacements = 0;
    loop {
        let lingering = asked.iter().filter(|(host, own)| !answers.has(**host) && own.lingers_now());
        let lingering: Vec<HostId> = lingering.map(|(host, _)| *host).collect();
        let no_newer = lingering.iter().filter(|host| answers.is_no_newer(&asked[host].seen)).count();
        if answers.compared() + no_newer >= ANSWERS {
            break;
        }
        if lingering.len() == asking.len() && replacements < REPLACEMENTS && !lingering.is_empty() {
            // All are slow: ask the next one.
            replacements += 1;
            ask(&mut asking, &mut asked);
        }
        tokio::select! {
            ended = asking.join_next() => match ended {
                Some(Ok((host, answer, refusal))) => {
                    let before = answers.compared();
                    match refusal {
                        Some(why) => answers.refuse(host, why),
                        None => answers.add(host, answer.map(Answer::from), known, acceptance),
                    }
                    if answers.compared() == before {
                        ask(&mut asking, &mut asked);
                    } else if before == 0 {
                        until = Instant::now() + PATIENCE;
                    }
                }
                // A failed task counts as an unreachable host.
                Some(Err(_)) => ask(&mut asking, &mut asked),
                None => break,
            },
            () = sleep(HeadSeen::LOOK_EVERY) => {}
            () = sleep_until(until) => {
                // One answer is enough after enough replacements, or without further hosts.
                let has_one = answers.compared() > 0;
                if has_one && replacements >= REPLACEMENTS {
                    break;
                }
                let before = asked.len();
                ask(&mut asking, &mut asked);
                if has_one && asked.len() == before {
                    break;
                }
                replacements += 1;
                until = Instant::now() + PATIENCE;
            }
        }
    }
    let mut slow = HostSet::default();
    for host in asked.keys().filter(|host| !answers.has(**host)) {
        slow.insert(*host);
    }
    let (newest, freshness) = answers.decide(known);
    (newest, Freshness { slow, ..freshness })
}

/// The `Date` of an unverified `Release` or `InRelease`, for comparison only.
fn date_of(content: &[u8]) -> Option<i64> {
    let head = &content[..content.len().min(HEAD_BYTES)];
    let line = head.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Date:"))?;
    date::parse(std::str::from_utf8(line).ok()?.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTANCE: Acceptance = Acceptance { is_inline: true, latest: Some(1_707_609_600) };

    fn text(date: &str, more: &str) -> String {
        format!("Origin: T\nDate: {date} UTC\n{more}\n")
    }

    fn signed(text: &str) -> Vec<u8> {
        let signature = "-----BEGIN PGP SIGNATURE-----\n\nAAAA\n-----END PGP SIGNATURE-----\n";
        format!("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\n{text}{signature}").into_bytes()
    }

    fn release(hour: u32, more: &str) -> Vec<u8> {
        signed(&text(&format!("Sat, 10 Feb 2024 {hour:02}:00:00"), more))
    }

    fn got(status: u16, body: Vec<u8>) -> Result<Answer, GetError> {
        Ok(Answer { status, body, modified: None, location: None })
    }

    fn decide(answers: Vec<Result<Answer, GetError>>, known: Option<Vec<u8>>) -> (Newest, Freshness) {
        let known = known.map(LocalRelease::new);
        let mut all = Answers::default();
        for (host, answer) in answers.into_iter().enumerate() {
            all.add(host as HostId, answer, known.as_ref(), ACCEPTANCE);
        }
        all.decide(known.as_ref())
    }

    fn hosts(hosts: &[HostId]) -> HostSet {
        hosts.iter().fold(HostSet::default(), |mut set, host| {
            set.insert(*host);
            set
        })
    }

    #[test]
    fn the_newest_wins_whoever_has_it() {
        let (newest, freshness) = decide(vec![got(200, release(1, "")), got(200, release(2, ""))], None);
        assert!(matches!(newest, Newest::Content { host: 1, .. }), "{newest:?}");
        assert_eq!((freshness.fresh, freshness.stale), (hosts(&[1]), hosts(&[0])));
        assert_eq!(freshness.excluded(4), hosts(&[0, 2, 3]), "only who has the newest");
        let (newest, freshness) = decide(vec![got(200, release(2, "")), got(200, release(1, ""))], None);
        assert!(matches!(newest, Newest::Content { host: 0, .. }), "{newest:?}");
        assert_eq!(freshness.excluded(3), hosts(&[1, 2]));
        let (newest, freshness) = decide(vec![got(404, vec![]), got(200, release(1, ""))], None);
        assert!(matches!(newest, Newest::Content { host: 1, .. }), "{newest:?}");
        assert_eq!(freshness.excluded(3), hosts(&[2]), "of the origin nothing bad is known");
    }

    #[test]
    fn what_apt_would_not_believe_does_not_win() {
        let late = "Sat, 10 Feb 2024 23:00:00";
        let forged = [
            text(late, "").into_bytes(),
            [b"x\n".to_vec(), signed(&text(late, ""))].concat(),
            [signed(&text(late, "")), b"x\n".to_vec()].concat(),
            [text(late, "").into_bytes(), release(1, "")].concat(),
            signed(&text("Sun, 11 Feb 2024 00:00:01", "")),
            signed("Origin: T\n"),
        ];
        for forged in forged {
            let (newest, freshness) = decide(vec![got(200, release(1, "")), got(200, forged)], None);
            assert!(matches!(newest, Newest::Content { host: 0, .. }), "{newest:?}");
            assert_eq!(freshness.excluded(2), hosts(&[1]));
        }
        let (newest, _) = decide(vec![got(200, release(1, "")), got(200, signed(&text(late, "")))], None);
        assert!(matches!(newest, Newest::Content { host: 1, .. }), "{newest:?}");
    }

    #[test]
    fn nothing_older_replaces_what_apt_has() {
        let have = || Some(release(5, ""));
        for answers in [
            vec![got(304, vec![]), got(304, vec![])],
            vec![got(200, release(4, "")), got(200, release(3, ""))],
            vec![got(200, release(4, "")), got(304, vec![])],
            vec![got(200, release(5, "")), got(404, vec![])],
            vec![got(200, vec![]), got(304, vec![])],
        ] {
            let (newest, _) = decide(answers, have());
            assert!(matches!(newest, Newest::Unchanged), "{newest:?}");
        }
        let (newest, freshness) = decide(vec![got(200, release(4, "")), got(304, vec![])], have());
        assert!(matches!(newest, Newest::Unchanged));
        assert_eq!(freshness.excluded(2), hosts(&[0]), "the origin is stale");
        let (newest, _) = decide(vec![got(304, vec![]), got(200, release(6, ""))], have());
        assert!(matches!(newest, Newest::Content { host: 1, .. }), "{newest:?}");
        let (newest, _) = decide(vec![got(200, release(5, "signed again"))], have());
        assert!(matches!(newest, Newest::Content { host: 0, .. }), "{newest:?}");
        let (_, freshness) = decide(vec![got(200, release(4, "")), got(200, release(3, ""))], have());
        assert_eq!(freshness.excluded(2), HostSet::default(), "where all are stale the hash decides");
    }

    #[test]
    fn mirrors_that_keep_no_times_hide_nothing() {
        let known = LocalRelease::new(release(5, ""));
        let date = known.date.unwrap();
        assert_eq!(known.if_modified_since(date + 60), date + 60);
        assert_eq!(known.if_modified_since(date + 90_000), date + 3600);
        assert_eq!(LocalRelease::default().if_modified_since(7), 7);
    }

    #[test]
    fn what_is_no_release_is_left_to_apt_only_if_there_is_nothing_else() {
        let portal = || got(200, b"<html>login</html>".to_vec());
        let (newest, _) = decide(vec![portal(), got(200, release(1, ""))], None);
        assert!(matches!(newest, Newest::Content { host: 1, .. }), "{newest:?}");
        let (newest, _) = decide(vec![portal()], None);
        assert!(matches!(newest, Newest::Content { host: 0, .. }), "{newest:?}");
        let (newest, _) = decide(vec![portal()], Some(release(1, "")));
        assert!(matches!(newest, Newest::Unchanged), "{newest:?}");
        let (newest, _) = decide(vec![got(404, vec![]), got(304, vec![])], None);
        let Newest::None(host_errors) = newest else { panic!("{newest:?}") };
        assert_eq!(host_errors, [(0, HostError::Status(404)), (1, HostError::Status(304))]);
    }

    proptest::proptest! {
        #[test]
        fn a_date_is_read_from_whatever_comes(content in "(Date|:| |\n|Sat, 10 Feb 2024|[0-9]{2}:|UTC|\\PC){0,30}") {
            let _ = date_of(content.as_bytes());
        }
    }
}
