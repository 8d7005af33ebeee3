//! The signed Release of each repository, compared with the local one.

use std::path::Path;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use fullbore_debian::release::{Release, if_modified_since};
use fullbore_debian::release_date::{HINT_FUTURE, Succession};
use fullbore_debian::signature::{RELEASE_BYTES_MAX, SignedText, Verifier};
use fullbore_debian::sources_list::SignedBy;
use fullbore_engine::files::Root;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_wire::fetch::{GetError, Got, HeadSeen};
use fullbore_wire::hosts::HostId;

use super::repositories::Repository;
use super::session::Session;
use super::settings::UpdateSettings;
use crate::accepted_keys::successor_keys;
use crate::acquire::Configuration;
use crate::dates::DateRules;
use crate::lists::file_name;
use crate::signed_release::check_suite;
use crate::signed_release::{
    Answer, CachedRelease, HINT_ABSENT, HINT_KEYRING, HINT_REACH, NO_RELEASE, NamedAnswers, ReceivedRelease, Refusal,
    ReleaseRequest, accept, all, no_verifier, receive,
};

/// Longest wait for a mirror after another one has answered.
const GRACE: Duration = Duration::from_millis(500);

/// The key of one source is not in its keyrings.
const HINT_KEY_OF_SOURCE: &str = "add the archive's key to the keyring that `Signed-By` of its source names, or name the \
     keyrings of all sources with --keyring";

/// Context of an error about a signature, if not the source but the local Release names the accepted keys.
const SUCCESSOR: &str = "the local Release names the keys that may sign the next one, with Signed-By";

/// The Release that a repository offers.
pub(super) struct OfferedRelease {
    /// The Release, whose signature was verified.
    pub release: Release,
    /// The signed files: name and content.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// Value of `Last-Modified`, Unix seconds.
    pub modified: Option<i64>,
    /// Whether it equals the local Release.
    pub unchanged: bool,
    /// The local Release, which describes the local indexes.
    pub before: Option<Release>,
}

/// The Release of a repository, or why there is none.
pub(super) type Outcome = Result<OfferedRelease, CommandError>;

/// Requests all Releases at once, and verifies the answers in parallel. Returns one outcome per repository.
///
/// # Errors
///
/// `Interrupted` if a signal ends the run. Errors of single repositories are in their outcomes.
pub(super) fn fetch(
    settings: &UpdateSettings,
    session: &Session,
    repositories: &[Repository],
    now: i64,
    stop: &Stop,
    warn: &mut dyn FnMut(String),
) -> Result<Vec<Outcome>, CommandError> {
    let cached: Vec<Option<CachedRelease>> = repositories.iter().map(|own| local_copy(&session.root, own)).collect();
    let configuration = &settings.configuration;
    let rules: Vec<DateRules> =
        repositories.iter().map(|own| DateRules { configuration, options: &own.dates, now }).collect();
    let keys: Vec<Option<SignedBy>> = repositories
        .iter()
        .zip(&cached)
        .map(|(own, cached)| accepted_keys(own, cached.as_ref(), configuration, now))
        .collect();
    // A local Release dated in the future may be replaced by an older one: no condition then.
    let conditions: Vec<Option<&CachedRelease>> =
        cached.iter().zip(&rules).map(|(cached, rules)| condition(cached.as_ref(), *rules)).collect();
    let patience = Duration::from_secs(settings.timeout_s());
    let requests = repositories.iter().zip(&conditions);
    let requests = requests.map(|(own, cached)| ask(session, own, *cached, hosts(session, own), patience)).collect();
    let answers = session.runtime.block_on(stop.or(all(requests)))?;
    // Not `partial/`: apt's own user may write there, and must not decide what the verifier reads.
    let scratch = session.root.path();
    let verified: Vec<(Result<ReceivedRelease, Refusal>, Vec<HostId>)> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let asked_of = keys.iter().zip(&conditions).zip(&rules);
        for (((keys, cached), rules), answers) in asked_of.zip(answers) {
            let verifier = verifier(keys.as_ref(), scratch);
            let (answered, answers) = answers.into_iter().unzip();
            threads.push((scope.spawn(move || newest(answers, *cached, verifier.as_ref(), *rules)), answered));
        }
        let lost = || Refusal::Unavailable("the verifying thread failed".to_owned(), "");
        threads
            .into_iter()
            .map(|(thread, answered)| (thread.join().unwrap_or_else(|_| Err(lost())), answered))
            .collect()
    });
    let mut outcomes = Vec::new();
    drop(conditions);
    let all = repositories.iter().zip(cached).zip(rules).zip(keys);
    for ((((own, cached), rules), keys), (mut received, mut answered)) in all.zip(verified) {
        let have = cached.as_ref().and_then(CachedRelease::release).and_then(|release| release.date);
        let goodness = |received: &Result<_, _>| goodness(settings, received, rules, have);
        // The local copy or the answer was altered: request again without a condition.
        if cached.is_some() && matches!(received, Err(Refusal::Verification(..))) {
            answered.clear();
        }
        // One answer ends the waiting. If it turns out to be unusable, such as a login page, it must not have prevented
        // better ones: each mirror is asked until it has answered.
        while goodness(&received) != Goodness::Usable {
            let mut others = hosts(session, own);
            others.retain(|host| !answered.contains(host));
            if others.is_empty() {
                break;
            }
            let is_again = answered.is_empty();
            let answers = session.runtime.block_on(stop.or(ask(session, own, None, others, patience)))?;
            let (more, answers): (Vec<HostId>, Vec<Answer>) = answers.into_iter().unzip();
            let other = newest(answers, None, verifier(keys.as_ref(), scratch).as_ref(), rules);
            if is_again || goodness(&other) > goodness(&received) {
                received = other;
            }
            answered.extend(more);
        }
        outcomes.push(judge(settings, session, own, cached, received, keys.as_ref(), rules, warn));
    }
    Ok(outcomes)
}

fn hosts(session: &Session, own: &Repository) -> Vec<HostId> {
    (0..).take(session.sites[own.site].fetcher.hosts().len()).collect()
}

/// What a repository's answers so far are good for, the best last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Goodness {
    /// None can be used.
    Nothing,
    /// The best is verified, but will be refused: it has expired, or is older than the local Release.
    Refused,
    /// The best can be used; or no further answer would help.
    Usable,
}

/// `have` is the date of the local Release.
fn goodness(
    settings: &UpdateSettings,
    received: &Result<ReceivedRelease, Refusal>,
    rules: DateRules<'_>,
    have: Option<i64>,
) -> Goodness {
    let release = match received {
        Ok(received) => &received.release,
        Err(Refusal::Verification(..) | Refusal::Unavailable(..)) => return Goodness::Nothing,
        Err(Refusal::Local(_) | Refusal::NoVerifier(_)) => return Goodness::Usable,
    };
    let check = rules.check_of(Some(release));
    let is_expired = rules.valid_until(release).is_some_and(|until| until < rules.now) && !settings.ignore_valid_until;
    let is_older = check.succession(release.date, have, true) == Succession::Older;
    let is_refused = check.future(release.date).is_some() || is_expired || is_older;
    if is_refused { Goodness::Refused } else { Goodness::Usable }
}

/// Asks these mirrors in pairs until one answers; number 0 is the origin. While all answers are slow, the next pair is
/// asked. After the first answer, mirrors that may have a newer one get [`GRACE`]: a silent mirror must not delay the run, an
/// outdated one must not decide alone. Returns the answers, each with its mirror.
async fn ask(
    session: &Session,
    own: &Repository,
    cached: Option<&CachedRelease>,
    hosts: Vec<HostId>,
    patience: Duration,
) -> Vec<(HostId, Answer)> {
    let fetcher = &session.sites[own.site].fetcher;
    let watch = &fetcher.watch();
    let request = |host: HostId| {
        // The rest of the time is for the answer after a pause.
        let patience_when_busy = patience / 2;
        let directory = own.directory.clone();
        let head_seen = HeadSeen::default();
        let seen = head_seen.clone();
        let request =
            ReleaseRequest { fetcher, host, directory, cached, patience: patience_when_busy, others: 0..0, head_seen };
        let answer = async move {
            let silent = || GetError::Unreachable {
                host: own.shown(),
                reason: format!("no answer within {} s", patience.as_secs()),
            };
            let answer = watch.while_delivering(host, patience, receive(request)).await;
            (host, answer.unwrap_or_else(|| Err(silent())))
        };
        (seen, Box::pin(answer))
    };
    let mut asked_hosts = 0;
    let mut asked = Vec::new();
    let mut answers: Vec<(HostId, Answer)> = Vec::new();
    let mut grace: Option<(Instant, Option<i64>)> = None;
    loop {
        let first = answers.iter().find_map(|(_, answer)| answer.as_ref().ok().and_then(release_file));
        match first {
            Some(first) => {
                let (grace, modified) =
                    *grace.get_or_insert_with(|| (Instant::now() + GRACE, modified_of(first, cached)));
                let is_awaited = |seen: &HeadSeen| modified.is_none_or(|modified| !seen.is_no_newer_than(modified));
                if Instant::now() >= grace || !asked.iter().any(|(seen, _)| is_awaited(seen)) {
                    return answers;
                }
            }
            None if asked.is_empty() && asked_hosts >= hosts.len() => return answers,
            None => {}
        }
        let lingers = asked.iter().all(|(seen, _): &(HeadSeen, _)| seen.lingers_now());
        if first.is_none() && lingers {
            let pair = hosts[asked_hosts..].iter().take(2);
            asked_hosts += pair.len();
            asked.extend(pair.map(|host| request(*host)));
        }
        if let Ok(answer) = tokio::time::timeout(HeadSeen::LOOK_EVERY, next_answer(&mut asked)).await {
            answers.push(answer);
        }
    }
}

/// The signed file, or the answer "not modified".
fn release_file(answers: &NamedAnswers) -> Option<&Got> {
    answers.iter().map(|(_, got)| got).find(|got| matches!(got.head.status, 200 | 304))
}

/// The time of a received file, for comparing with times that other mirrors send. A mirror's time is its own claim, so
/// it may not be much later than the date in the file. `None` if the file has no date: it is not compared then.
fn modified_of(got: &Got, cached: Option<&CachedRelease>) -> Option<i64> {
    let told = got.head.last_modified;
    if got.head.status == 304 {
        return told.or(cached.map(|cached| cached.modified));
    }
    let release = Release::parse(&SignedText::trusted(&got.body).ok()?).ok()?;
    Some(if_modified_since(Some(release.date?), told?))
}

/// The first completed answer, removed from `asked`.
async fn next_answer<F: Future>(asked: &mut Vec<(HeadSeen, Pin<Box<F>>)>) -> F::Output {
    let (position, answer) = std::future::poll_fn(|context| {
        for (position, (_, answer)) in asked.iter_mut().enumerate() {
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready((position, answer));
            }
        }
        Poll::Pending
    })
    .await;
    drop(asked.remove(position));
    answer
}

/// The newest verified Release, one dated in the future last; otherwise the error of the first mirror.
fn newest(
    answers: Vec<Answer>,
    cached: Option<&CachedRelease>,
    verifier: Option<&Verifier>,
    rules: DateRules<'_>,
) -> Result<ReceivedRelease, Refusal> {
    let rank = |received: &ReceivedRelease| rules.check_of(Some(&received.release)).rank(received.release.date);
    let mut best: Option<Result<ReceivedRelease, Refusal>> = None;
    for answer in answers {
        let received = accept(answer, cached, verifier);
        let better = match (&best, &received) {
            (None, _) | (Some(Err(_)), Ok(_)) => true,
            (Some(Ok(best)), Ok(received)) => rank(received) > rank(best),
            (Some(_), Err(_)) => false,
        };
        if better {
            best = Some(received);
        }
    }
    best.unwrap_or_else(|| Err(Refusal::Unavailable("it has no address".to_owned(), HINT_REACH)))
}

fn verifier(keys: Option<&SignedBy>, scratch: &Path) -> Option<Verifier> {
    let keys = keys?;
    Some(Verifier::new(scratch, keys.keys.clone()).with_fingerprints(keys.fingerprints.clone()))
}

/// The accepted keys: those of the source, or else those that the local Release names for its successor.
fn accepted_keys(
    own: &Repository,
    cached: Option<&CachedRelease>,
    configuration: &Configuration,
    now: i64,
) -> Option<SignedBy> {
    let mut keys = own.keys.clone()?;
    if own.obeys_release
        && let Some(release) = cached.and_then(CachedRelease::release)
    {
        keys.fingerprints = successor_keys(&release, configuration, now);
    }
    Some(keys)
}

/// The local signed file.
fn local_copy(root: &Root, own: &Repository) -> Option<CachedRelease> {
    ["InRelease", "Release"].into_iter().find_map(|name| {
        let path = name_of(own, name);
        let status = root.stat(&path).ok().flatten()?;
        let content = root.read(&path, RELEASE_BYTES_MAX as u64).ok().flatten()?;
        Some(CachedRelease { name, content, modified: status.mtime, tag: None })
    })
}

/// The local copy as a condition for `InRelease`; none if it is dated in the future.
fn condition<'a>(cached: Option<&'a CachedRelease>, rules: DateRules<'_>) -> Option<&'a CachedRelease> {
    let is_future = |cached: &CachedRelease| {
        let release = cached.release();
        rules.check_of(release.as_ref()).future(release.and_then(|release| release.date)).is_some()
    };
    cached.filter(|cached| cached.name == "InRelease" && !is_future(cached))
}

/// The local name of a file in the Release's directory.
pub(super) fn name_of(own: &Repository, name: &str) -> String {
    format!("{}{}", own.prefix, file_name(&format!("x:{name}")))
}

#[allow(clippy::too_many_arguments)]
fn judge(
    settings: &UpdateSettings,
    session: &Session,
    own: &Repository,
    cached: Option<CachedRelease>,
    received: Result<ReceivedRelease, Refusal>,
    keys: Option<&SignedBy>,
    rules: DateRules<'_>,
    warn: &mut dyn FnMut(String),
) -> Outcome {
    let refused = |kind, why: String| CommandError::new(kind, format_args!("{}: {why}", own.shown()));
    let received = received.map_err(|refusal| match refusal {
        Refusal::Unavailable(why, hint) => {
            let error = refused(ErrorKind::Network, why);
            let is_absent = hint == HINT_ABSENT && own.keys.is_none();
            if is_absent { error.context(NO_RELEASE).hint(hint) } else { error.hint(hint) }
        }
        Refusal::Local(why) => refused(ErrorKind::Disk, why).context("its indexes stay as they were"),
        Refusal::NoVerifier(why) => no_verifier(own.shown(), why).context("its indexes stay as they were"),
        Refusal::Verification(why, hint) => {
            let error = refused(ErrorKind::Verification, why).context("its indexes stay as they were");
            let is_pinned = own.obeys_release && keys.is_some_and(|keys| !keys.fingerprints.is_empty());
            let error = if is_pinned { error.context(SUCCESSOR) } else { error };
            // --keyring would replace the keys of all sources.
            let hint = hint.map(|hint| if hint == HINT_KEYRING { HINT_KEY_OF_SOURCE } else { hint });
            hint.into_iter().fold(error, CommandError::hint)
        }
    })?;
    let ReceivedRelease { files, modified, release, text, .. } = received;
    let check = rules.check_of(Some(&release));
    if let Some(future) = check.future(release.date) {
        return Err(refused(ErrorKind::Stale, future.to_string())
            .context("its indexes stay as they were")
            .hint(HINT_FUTURE));
    }
    // The local Release was verified on receipt; whoever may write here needs no forged one.
    let before = cached.as_ref().and_then(CachedRelease::release);
    let has_signature = |cached: &CachedRelease| {
        cached.name == "InRelease"
            || session.root.stat(&name_of(own, "Release.gpg")).map_or(true, |there| there.is_some())
    };
    let may_correct = text.is_verified() || !cached.as_ref().is_some_and(has_signature);
    let unchanged = cached.is_some_and(|cached| files.first().is_some_and(|(_, content)| *content == cached.content));
    if let Err(error) = check_suite(&own.suite, &release) {
        warn(format!("{}: {error}", own.shown()));
    }
    release.notes.iter().for_each(|note| warn(format!("{}: {note}", own.shown())));
    if let Some(before) = &before {
        match check.succession(release.date, before.date, may_correct) {
            Succession::Follows => {}
            Succession::Corrects(future) => {
                warn(format!("{}: the new Release replaces the local one: {future}", own.shown()))
            }
            Succession::Older => {
                return Err(refused(ErrorKind::Stale, "its Release is older than the local one".to_owned())
                    .context("its indexes stay as they were")
                    .hint("try again later: this mirror is behind"));
            }
        }
        check_identity(settings, own, before, &release)?;
    }
    check_time(settings, own, &release, rules, warn)?;
    Ok(OfferedRelease { release, files, modified, unchanged, before })
}

/// Checks for changes that apt wants confirmed: another `Origin`, `Label` and so on (apt-secure(8),
/// `Acquire::AllowReleaseInfoChange`).
fn check_identity(
    settings: &UpdateSettings,
    own: &Repository,
    before: &Release,
    now: &Release,
) -> Result<(), CommandError> {
    let allowed = settings.configuration.bool("Acquire::AllowReleaseInfoChange", false);
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    // A new version, or a suite that became the next one, is normal.
    let fields = [
        ("Origin", text(&before.origin), text(&now.origin), allowed),
        ("Label", text(&before.label), text(&now.label), allowed),
        ("Version", text(&before.version), text(&now.version), true),
        ("Suite", text(&before.suite), text(&now.suite), true),
        ("Codename", text(&before.codename), text(&now.codename), allowed),
        ("DefaultPin", before.default_priority.to_string(), now.default_priority.to_string(), allowed),
    ];
    for (field, then, now, allowed) in fields {
        let key = format!("Acquire::AllowReleaseInfoChange::{field}");
        if then == now || settings.configuration.bool(&key, allowed) {
            continue;
        }
        return Err(CommandError::new(
            ErrorKind::Verification,
            format_args!("{}: {field} was {then:?} and is {now:?} now", own.shown()),
        )
        .context("its indexes stay as they were")
        .hint(format_args!(
            "if that is right, accept it with `apt-get update --allow-releaseinfo-change`, or set {key}"
        )));
    }
    Ok(())
}

/// Checks that it has not expired.
fn check_time(
    settings: &UpdateSettings,
    own: &Repository,
    release: &Release,
    rules: DateRules<'_>,
    warn: &mut dyn FnMut(String),
) -> Result<(), CommandError> {
    let until = rules.valid_until(release).filter(|until| *until < rules.now);
    let Some(until) = until else { return Ok(()) };
    let day = jiff::Timestamp::from_second(until).map_or_else(|_| until.to_string(), |time| time.to_string());
    if settings.ignore_valid_until {
        warn(format!("{}: accepted although valid only until {day}", own.shown()));
        return Ok(());
    }
    Err(CommandError::new(ErrorKind::Stale, format_args!("{}: its Release was valid until {day}", own.shown()))
        .context("its indexes stay as they were")
        .hint("the mirror may be stuck; for an archive that is no longer updated use --ignore-valid-until"))
}
