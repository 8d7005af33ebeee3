//! The signed `Release` of a suite: asked for, received, verified.
//!
//! An answer "not modified" is believed no further than the copy on disk verifies again
//! (CVE-2014-0487). What it means for what is here is decided by whoever asked.

use std::ops::Range;
use std::pin::pin;
use std::time::{Duration, Instant};

use fullbore_debian::release::{Release, asked_since};
use fullbore_debian::signature::{RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX, SignatureError, SignedText, Verifier};
use fullbore_wire::answer::is_transient;
use fullbore_wire::conditional::EntityTag;
use fullbore_wire::fetch::{Fetcher, Get, GetError, Got, HeadSeen, Watch};
use fullbore_wire::hosts::HostId;
use tokio::task::JoinSet;

/// Times that a host is asked for one file when it is busy or the connection breaks. A guess: a restart
/// or a busy moment passes within the pauses between them, and nobody waits long for a host that is down.
const TRIES: u32 = 4;

/// Time after which others are asked for a file without a word of the first. A guess.
const AT_ONCE: Duration = Duration::from_millis(10);

/// Hosts that are asked for a file that one is slow to send. A guess: one of them is fast.
const OTHERS_ASKED: usize = 3;

/// Pause before the second try, where the host names none; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(250);

/// For so long a connection that breaks is tried again. Who kept us waiting for longer was silent, and has
/// been waited for already.
const BROKEN_WITHIN: Duration = Duration::from_secs(5);

/// A pause of this length is told to the user.
const PAUSE_TOLD: Duration = Duration::from_secs(5);

/// What is here of a suite already: the copy of its signed file, and what makes a request conditional.
pub struct CachedRelease {
    /// `InRelease`.
    pub name: &'static str,
    /// Its content.
    pub content: Vec<u8>,
    /// Its time, Unix seconds.
    pub modified: i64,
    /// The tag that the host gave it.
    pub tag: Option<EntityTag>,
}

impl CachedRelease {
    /// What was verified when it came, once more without that.
    pub fn release(&self) -> Option<Release> {
        Release::parse(&SignedText::trusted(&self.content).ok()?).ok()
    }

    /// The time to ask for changes since.
    fn asked_since(&self) -> i64 {
        asked_since(self.release().and_then(|release| release.date), self.modified)
    }
}

/// Which of the files beside an `InRelease`, for clients that do not know it, contradicts it, and how. What is
/// missing is for the caller to judge.
pub fn contradiction(
    release: &[u8],
    signature: Option<&[u8]>,
    inrelease: &SignedText,
    verifier: Option<&Verifier>,
) -> Option<(&'static str, String)> {
    let is_same = std::str::from_utf8(release).is_ok_and(|text| text.trim_end() == inrelease.as_str().trim_end());
    if !is_same {
        return Some(("Release", "says something else than the signed InRelease".to_owned()));
    }
    let error = verifier?.verify_detached(release, signature?).err()?;
    Some(("Release.gpg", error.to_string()))
}

/// The signed files of a suite, as received.
pub struct ReceivedRelease {
    /// Name and content of each; the one that identifies the suite's state first.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// When the host says it last changed, Unix seconds.
    pub modified: Option<i64>,
    /// The host's tag of it.
    pub tag: Option<EntityTag>,
    /// What was verified.
    pub text: SignedText,
    /// The same, parsed.
    pub release: Release,
}

/// Why a suite could not be had from a host.
pub enum Refusal {
    /// The host cannot be reached, or does not have it: why, and what may help.
    Unavailable(String, &'static str),
    /// What it sent is not to be believed.
    Verification(String, Option<&'static str>),
    /// This machine refused, such as a full disk: nothing is known of what was sent.
    Local(String),
}

/// Answers with the names of the files asked for.
pub type NamedAnswers = Vec<(&'static str, Got)>;

/// The directory of a suite below the mirror's address: a name ending in a slash is a flat repository.
pub fn remote_directory(suite: &str) -> String {
    match suite {
        "./" | "/" => String::new(),
        flat if flat.ends_with('/') => flat.trim_start_matches("./").to_owned(),
        suite => format!("dists/{suite}/"),
    }
}

/// When a Release ends, by itself and by what the source says (sources.list(5)): `Valid-Until-Min` and
/// `Valid-Until-Max`, seconds after its Date.
pub fn valid_until(release: &Release, min_s: Option<u64>, max_s: Option<u64>) -> Option<i64> {
    let after = |limit_s: Option<u64>| {
        limit_s.zip(release.date).map(|(limit_s, date)| date.saturating_add(i64::try_from(limit_s).unwrap_or(i64::MAX)))
    };
    let until = match (release.valid_until, after(max_s)) {
        (Some(told), Some(most)) => Some(told.min(most)),
        (told, most) => told.or(most),
    };
    until.map(|until| after(min_s).map_or(until, |least| until.max(least)))
}

/// What a host answered.
pub type Answer = Result<NamedAnswers, GetError>;

/// One suite to ask for: of whom, where, and on which condition.
pub struct ReleaseRequest<'a> {
    /// Whose hosts.
    pub fetcher: &'a Fetcher,
    /// Which of them.
    pub host: HostId,
    /// The directory of the `Release` below the mirror's address, with `/` at its end or empty.
    pub directory: String,
    /// What is here already.
    pub kept: Option<&'a CachedRelease>,
    /// How long a host that is busy is waited for.
    pub patience: Duration,
    /// Hosts that may bring the very file that this host is slow to send.
    pub others: Range<HostId>,
    /// Where the head of the answer for the `InRelease` is noted.
    pub head_seen: HeadSeen,
}

/// Asks for the signed files of all these suites at once.
pub async fn receive_all(requests: Vec<ReleaseRequest<'_>>) -> Vec<Answer> {
    all(requests.into_iter().map(receive).collect()).await
}

/// Waits for all of these, side by side.
pub async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    // Every request is queued by its first poll, so that all go out together.
    let mut asked: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    std::future::poll_fn(|context| {
        for (slot, result) in asked.iter_mut().zip(&mut done) {
            if let Some(future) = slot
                && let std::task::Poll::Ready(answer) = future.as_mut().poll(context)
            {
                *result = Some(answer);
                *slot = None;
            }
        }
        if asked.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Asks for `InRelease`; where there is none, for `Release` and `Release.gpg`. A host that is only busy may
/// well have one: it is not taken for one that has none.
pub async fn receive(request: ReleaseRequest<'_>) -> Answer {
    let ReleaseRequest { fetcher, host, directory, kept, patience, others, head_seen } = request;
    let watch = fetcher.watch();
    let kept_before = kept;
    let get = |name: &str, limit: usize, kept: Option<&CachedRelease>| {
        let get = Get {
            path: format!("{directory}{name}"),
            limit_bytes: limit as u64,
            if_none_match: kept.and_then(|kept| kept.tag.clone()),
            // A tag is exact, and alone: nginx answers "not modified" only if the time says so as well.
            if_modified_since: kept.filter(|kept| kept.tag.is_none()).map(CachedRelease::asked_since),
            head_seen: (name == "InRelease").then(|| head_seen.clone()),
            ..Get::default()
        };
        // With nothing here the others will be asked for files anyway.
        let others =
            AlternateHosts { hosts: others.clone(), alike: Equivalence::SameHead, at_once: kept_before.is_none() };
        get_hedged(&watch, host, others, get, patience)
    };
    let inrelease = get("InRelease", RELEASE_BYTES_MAX, kept).await?;
    if !matches!(inrelease.head.status, 403 | 404 | 410) {
        return Ok(vec![("InRelease", inrelease)]);
    }
    let release = get("Release", RELEASE_BYTES_MAX, None).await?;
    let signature = get("Release.gpg", SIGNATURE_BYTES_MAX, None).await?;
    Ok(vec![("InRelease", inrelease), ("Release", release), ("Release.gpg", signature)])
}

/// Other hosts that may bring a file in the place of the one that is asked.
pub struct AlternateHosts {
    /// Which.
    pub hosts: Range<HostId>,
    /// What their answers must be.
    pub alike: Equivalence,
    /// They are asked after a moment, even if no head has come yet.
    pub at_once: bool,
}

/// What another host's answer must be to count as the one that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Equivalence {
    /// Of the same time and length by the head that has come: what is newest is for the host to say.
    SameHead,
    /// Any file: what it must say is known already.
    Any,
}

/// Asks one host for a file, and some of the others as well if its body lingers behind its head. Whoever has a file
/// alike may bring it. What it is worth is for the signature to tell.
pub async fn get_hedged(
    watch: &Watch,
    host: HostId,
    others: AlternateHosts,
    get: Get,
    patience: Duration,
) -> Result<Got, GetError> {
    let AlternateHosts { hosts, alike, at_once } = others;
    let seen = get.head_seen.clone().unwrap_or_default();
    let for_others = Get { if_none_match: None, if_modified_since: None, head_seen: None, ..get.clone() };
    let get = Get { head_seen: Some(seen.clone()), ..get };
    let mut own = pin!(get_with_retries(watch, host, get, patience));
    let others: Vec<HostId> = hosts.filter(|other| *other != host).take(OTHERS_ASKED).collect();
    if others.is_empty() {
        return own.await;
    }
    tokio::select! {
        biased;
        got = &mut own => return got,
        () = seen.lingers() => {}
        () = tokio::time::sleep(AT_ONCE), if at_once => {}
    }
    let mut asking = JoinSet::new();
    for other in others {
        let (watch, get) = (watch.clone(), for_others.clone());
        asking.spawn(async move { watch.get(other, get).await });
    }
    let mut came: Vec<Got> = Vec::new();
    loop {
        let is_alike = |got: &Got| match alike {
            Equivalence::SameHead => seen.is_same_as(got),
            Equivalence::Any => got.head.status == 200,
        };
        if let Some(place) = came.iter().position(is_alike) {
            let got = came.swap_remove(place);
            return Ok(match alike {
                // The next run asks the host itself again, which knows nothing of another's tag.
                Equivalence::SameHead => Got { head: seen.head().unwrap_or_else(|| got.head.clone()), ..got },
                Equivalence::Any => got,
            });
        }
        tokio::select! {
            biased;
            got = &mut own => return got,
            Some(ended) = asking.join_next() => came.extend(ended.ok().and_then(Result::ok)),
            () = seen.comes(), if seen.head().is_none() => {}
        }
    }
}

/// Asks one host for a file, some times if it is busy or the connection breaks. No pause is begun that would
/// end later than `patience` after the first request.
pub async fn get_with_retries(watch: &Watch, host: HostId, get: Get, patience: Duration) -> Result<Got, GetError> {
    let began = Instant::now();
    let mut pause = PAUSE_FIRST;
    for _ in 1..TRIES {
        let got = watch.get(host, get.clone()).await;
        let wait = match &got {
            Ok(got) if is_transient(got.head.status) => told_pause(got).map_or(pause, |told| told.max(pause)),
            Err(GetError::Unreachable { .. }) if began.elapsed() < BROKEN_WITHIN => pause,
            _ => return got,
        };
        if began.elapsed() + wait > patience {
            return got;
        }
        let names = watch.names();
        let name = names.get(usize::from(host)).map_or("", String::as_str);
        if wait >= PAUSE_TOLD {
            tracing::warn!("{name} is busy and asks for a pause of {} s", wait.as_secs());
        }
        let why = got.as_ref().map_or_else(ToString::to_string, |got| format!("status {}", got.head.status));
        tracing::info!("{name}: {}: {why}; asked again after {} ms", get.path, wait.as_millis());
        tokio::time::sleep(wait).await;
        pause *= 2;
    }
    watch.get(host, get).await
}

/// What `Retry-After` asks for.
fn told_pause(got: &Got) -> Option<Duration> {
    let told = got.head.retry_after?;
    let now = jiff::Timestamp::now().as_second();
    Some(Duration::from_secs(told.delay_s(got.head.date, now)))
}

/// Verifies what came. Without a verifier the source is trusted as it is.
pub fn accept(
    answer: Answer,
    kept: Option<&CachedRelease>,
    verifier: Option<&Verifier>,
) -> Result<ReceivedRelease, Refusal> {
    let answer = answer.map_err(|error| match error {
        // The line in front of it names the host.
        GetError::Unreachable { reason, .. } | GetError::Final { reason, .. } => {
            Refusal::Unavailable(reason, HINT_REACH)
        }
        GetError::Untrusted { reason, unknown_issuer: true, .. } => Refusal::Unavailable(reason, HINT_TRUST),
        GetError::Untrusted { reason, .. } => Refusal::Unavailable(reason, HINT_CERTIFICATE),
        other @ GetError::TooLarge { .. } => Refusal::Unavailable(other.to_string(), HINT_ABSENT),
    })?;
    let mut files: Vec<(&'static str, Vec<u8>)> = Vec::new();
    let mut statuses = Vec::new();
    let mut busy = false;
    let mut absent = HINT_ABSENT;
    let mut modified = None;
    let mut tag = None;
    for (name, got) in answer {
        match (got.head.status, kept) {
            (200, _) => {
                modified = modified.or(got.head.last_modified);
                if name == "InRelease" {
                    tag = got.head.etag;
                }
                files.push((name, got.body));
            }
            // Nothing newer than ours, but what it has is not ours: it may be an older one (M10).
            (304, Some(kept)) if got.head.last_modified.is_some_and(|modified| modified < kept.modified) => {
                return Err(Refusal::Verification(format!("{name}: not modified, and older than the one here"), None));
            }
            (304, Some(kept)) => {
                modified = Some(kept.modified);
                tag = kept.tag.clone();
                files.push((kept.name, kept.content.clone()));
            }
            (status, _) if is_transient(status) => {
                busy = true;
                let pause = told_pause(&got).map(|told| format!(", asks for a pause of {} s", told.as_secs()));
                statuses.push(format!("{name}: {status}{}", pause.unwrap_or_default()));
            }
            (status, _) => {
                if status == 401 {
                    absent = HINT_CREDENTIALS;
                }
                let to = got.head.location.filter(|_| (300..400).contains(&status));
                statuses.push(match to {
                    Some(to) => {
                        absent = HINT_ELSEWHERE;
                        // Behind a `?` may stand what opens the place to whoever reads it.
                        format!("{name}: {status} to {}, not followed", to.split('?').next().unwrap_or_default())
                    }
                    None => format!("{name}: {status}"),
                });
            }
        }
    }
    if busy {
        return Err(Refusal::Unavailable(statuses.join(", "), HINT_BUSY));
    }
    let find = |wanted: &str| files.iter().find(|(name, _)| *name == wanted).map(|(_, content)| content.as_slice());
    let bad = |error: SignatureError| match &error {
        SignatureError::Scratch { .. } => Refusal::Local(error.to_string()),
        other => Refusal::Verification(other.to_string(), hint_of(other)),
    };
    let text = match (find("InRelease"), find("Release"), find("Release.gpg"), verifier) {
        (Some(inrelease), _, _, Some(verifier)) => verifier.verify_inrelease(inrelease).map_err(bad)?,
        (Some(inrelease), _, _, None) => SignedText::trusted(inrelease).map_err(bad)?,
        (None, Some(release), Some(signature), Some(verifier)) => {
            verifier.verify_detached(release, signature).map_err(bad)?
        }
        (None, Some(release), _, None) => SignedText::trusted(release).map_err(bad)?,
        (None, Some(_), None, Some(_)) => {
            let why = "Release has no signature (no InRelease, no Release.gpg)".to_owned();
            return Err(Refusal::Verification(why, Some("a source without signatures needs `Trusted: yes`")));
        }
        (None, None, _, _) => return Err(Refusal::Unavailable(statuses.join(", "), absent)),
    };
    let release = Release::parse(&text).map_err(|error| Refusal::Verification(error.to_string(), None))?;
    Ok(ReceivedRelease { files, modified, tag, text, release })
}

fn hint_of(error: &SignatureError) -> Option<&'static str> {
    match error {
        SignatureError::NoPublicKey { .. } | SignatureError::NoKeyring => {
            Some("give the archive's keyring with --keyring (Debian's is in the package debian-archive-keyring)")
        }
        SignatureError::NotClearsigned { .. } => {
            Some("this looks like a login page or an error page: check the address")
        }
        SignatureError::GpgvMissing { .. } => Some("install gpgv: apt-get install gpgv"),
        SignatureError::Expired { .. } => Some("update the keyring, or the archive is no longer maintained"),
        _ => None,
    }
}

/// The Release of another suite than the one asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("asked for suite {requested:?}, but its Release is of suite {suite:?}, codename {codename:?}")]
pub struct WrongSuite {
    /// As asked for.
    pub requested: String,
    /// `Suite` of the Release.
    pub suite: String,
    /// `Codename` of the Release.
    pub codename: String,
}

/// Whether a Release is of the suite asked for: a mirror (or someone between) must not
/// serve another suite in its place. As in apt, a part behind the last slash of the
/// request does not count (`buster/updates`), nor does a Release that names neither.
///
/// # Errors
/// It is of another one.
pub fn check_suite(requested: &str, release: &Release) -> Result<(), WrongSuite> {
    let names = [release.suite.as_deref(), release.codename.as_deref()];
    let trimmed = requested.trim_end_matches('/');
    let short = trimmed.rsplit_once('/').map_or(trimmed, |(short, _)| short);
    let known = |name: &str| names.contains(&Some(name));
    if requested.ends_with('/') || known(trimmed) || known(short) || names == [None, None] {
        return Ok(());
    }
    let text = |name: Option<&str>| name.unwrap_or_default().to_owned();
    Err(WrongSuite { requested: requested.to_owned(), suite: text(names[0]), codename: text(names[1]) })
}

/// Something answers, but has no such suite.
pub const HINT_ABSENT: &str = "check the address and the name of the suite: FROM/dists/SUITE/InRelease must exist";
/// The same of a flat repository.
pub const HINT_ABSENT_FLAT: &str =
    "check the address and the name of the suite: a flat repository must have FROM/SUITE/InRelease";
/// Something answers, and leads to where we do not go.
pub const HINT_ELSEWHERE: &str = "a redirect is not followed from https to http, in a circle or more than five times: \
     name the address that it leads to, if that has all of the archive";
/// Something answers, but has no time for us, or trouble of its own.
pub const HINT_BUSY: &str = "the mirror is overloaded or out of order for the moment: run again later, or name another \
     mirror in its place";
/// Something answers, but not to us.
pub const HINT_CREDENTIALS: &str = "the mirror asks for credentials: put them into apt's auth.conf (or another file, \
     named with --auth); for a plain http address its entry must begin with `machine http://HOST`";
/// Nobody who is trusted vouches for the host, although an authority was named.
pub const HINT_OTHER_AUTHORITY: &str =
    "--cacert must name the authority that issued the server's certificate, or that certificate itself";
pub use fullbore_wire::run::hints::{CERTIFICATE as HINT_CERTIFICATE, REACH as HINT_REACH, TRUST as HINT_TRUST};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_of_another_suite_is_refused() {
        let text = b"Origin: Debian\nSuite: stable\nCodename: trixie\nDate: Sat, 09 Aug 2025 09:12:00 UTC\nSHA256:\n \
            e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 0 main/binary-all/Packages\n";
        let release = Release::parse(&SignedText::trusted(text).unwrap()).unwrap();
        for right in ["stable", "trixie", "stable/updates"] {
            assert_eq!(check_suite(right, &release), Ok(()), "{right}");
        }
        assert_eq!(
            check_suite("bookworm", &release).unwrap_err().to_string(),
            "asked for suite \"bookworm\", but its Release is of suite \"stable\", codename \"trixie\""
        );
    }
}
