//! The signed Release of each repository, compared with the local one.

use std::path::Path;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use fullbore_debian::release::Release;
use fullbore_debian::release_date::{DateCheck, HINT_FUTURE, MAX_FUTURE_S, Succession};
use fullbore_debian::signature::{RELEASE_BYTES_MAX, Verifier};
use fullbore_engine::files::Root;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_wire::fetch::{GetError, HeadSeen};
use fullbore_wire::hosts::HostId;
use fullbore_wire::http1::ResponseHead;

use super::repositories::Repository;
use super::session::Session;
use super::settings::UpdateSettings;
use crate::lists::file_name;
use crate::signed_release::check_suite;
use crate::signed_release::{
    Answer, CachedRelease, HINT_ABSENT, HINT_REACH, NO_RELEASE, NamedAnswers, ReceivedRelease, Refusal, ReleaseRequest,
    accept, all, no_verifier, receive, valid_until,
};

/// Longest wait for a mirror after another one has answered.
const GRACE: Duration = Duration::from_millis(500);

/// The Release that a repository offers.
pub struct OfferedRelease {
    /// The verified Release.
    pub release: Release,
    /// The signed files: name and content.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// `Last-Modified`, Unix seconds.
    pub modified: Option<i64>,
    /// It is the local one.
    pub unchanged: bool,
    /// The local Release, which describes the local indexes.
    pub before: Option<Release>,
}

/// The result for one repository.
pub type Outcome = Result<OfferedRelease, CommandError>;

/// Requests all Releases at once, and verifies the answers in parallel.
pub fn fetch(
    settings: &UpdateSettings,
    session: &Session,
    repositories: &[Repository],
    now: i64,
    stop: &Stop,
    warn: &mut dyn FnMut(String),
) -> Result<Vec<Outcome>, CommandError> {
    let cached: Vec<Option<CachedRelease>> = repositories.iter().map(|own| local_copy(&session.root, own)).collect();
    let checks: Vec<DateCheck> = repositories.iter().map(|own| date_check(settings, own, now)).collect();
    // A local Release dated in the future may be replaced by an older one: no condition then.
    let conditions: Vec<Option<&CachedRelease>> =
        cached.iter().zip(&checks).map(|(cached, check)| condition(cached.as_ref(), *check)).collect();
    let patience = Duration::from_secs(settings.timeout_s());
    let requests = repositories.iter().zip(&conditions);
    let requests = requests.map(|(own, cached)| ask(session, own, *cached, 0, patience)).collect();
    let answers = session.runtime.block_on(stop.or(all(requests)))?;
    // Not `partial/`: apt's own user may write there, and must not decide what the verifier reads.
    let scratch = session.root.path();
    let verified: Vec<(Result<ReceivedRelease, Refusal>, usize)> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let asked_of = repositories.iter().zip(&conditions).zip(&checks);
        for (((own, cached), check), (answers, asked)) in asked_of.zip(answers) {
            let verifier = verifier(own, scratch);
            threads.push((scope.spawn(move || newest(answers, *cached, verifier.as_ref(), *check)), asked));
        }
        let lost = || Refusal::Unavailable("the verifying thread failed".to_owned(), "");
        threads.into_iter().map(|(thread, asked)| (thread.join().unwrap_or_else(|_| Err(lost())), asked)).collect()
    });
    let mut outcomes = Vec::new();
    drop(conditions);
    for (((own, cached), check), (mut received, mut asked)) in repositories.iter().zip(cached).zip(checks).zip(verified)
    {
        // The local copy or the answer was altered: request again without a condition.
        let mut again = cached.is_some();
        // An unverifiable answer, such as a login page, does not count either.
        while matches!(received, Err(Refusal::Verification(..))) && (again || asked < hosts(session, own).len()) {
            let from = if again { 0 } else { asked };
            let (answers, until) = session.runtime.block_on(stop.or(ask(session, own, None, from, patience)))?;
            let other = newest(answers, None, verifier(own, scratch).as_ref(), check);
            if again || other.is_ok() {
                received = other;
            }
            (again, asked) = (false, until);
        }
        outcomes.push(judge(settings, session, own, cached, received, check, now, warn));
    }
    Ok(outcomes)
}

fn hosts(session: &Session, own: &Repository) -> Vec<HostId> {
    (0..).take(session.sites[own.site].fetcher.hosts().len()).collect()
}

/// Asks mirrors in pairs, from number `from` on, until one answers; number 0 is the origin. While all answers are slow, the
/// next pair is asked. After the first answer, mirrors that may have a newer one get [`GRACE`]: a silent mirror must not
/// delay the run, an outdated one must not decide alone. Also returns the number of the first mirror that was not asked.
async fn ask(
    session: &Session,
    own: &Repository,
    cached: Option<&CachedRelease>,
    from: usize,
    patience: Duration,
) -> (Vec<Answer>, usize) {
    let fetcher = &session.sites[own.site].fetcher;
    let hosts = hosts(session, own);
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
            tokio::time::timeout(patience, receive(request)).await.unwrap_or_else(|_| Err(silent()))
        };
        (seen, Box::pin(answer))
    };
    let mut asked_hosts = from;
    let mut asked = Vec::new();
    let mut answers: Vec<Answer> = Vec::new();
    let mut grace: Option<Instant> = None;
    loop {
        let first = answers.iter().find_map(|answer| answer.as_ref().ok().and_then(release_head));
        match first {
            Some(first) => {
                let grace = *grace.get_or_insert_with(|| Instant::now() + GRACE);
                let modified = first.last_modified.or(cached.map(|cached| cached.modified));
                let is_awaited = |seen: &HeadSeen| modified.is_none_or(|modified| !seen.is_no_newer_than(modified));
                if Instant::now() >= grace || !asked.iter().any(|(seen, _)| is_awaited(seen)) {
                    return (answers, asked_hosts);
                }
            }
            None if asked.is_empty() && asked_hosts >= hosts.len() => return (answers, asked_hosts),
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

/// The head of the signed file, or of the answer "not modified".
fn release_head(answers: &NamedAnswers) -> Option<&ResponseHead> {
    answers.iter().map(|(_, got)| &got.head).find(|head| matches!(head.status, 200 | 304))
}

/// The first completed answer, removed from `asked`.
async fn next_answer<F: Future<Output = Answer>>(asked: &mut Vec<(HeadSeen, Pin<Box<F>>)>) -> Answer {
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
    check: DateCheck,
) -> Result<ReceivedRelease, Refusal> {
    let mut best: Option<Result<ReceivedRelease, Refusal>> = None;
    for answer in answers {
        let received = accept(answer, cached, verifier);
        let better = match (&best, &received) {
            (None, _) | (Some(Err(_)), Ok(_)) => true,
            (Some(Ok(best)), Ok(received)) => check.rank(received.release.date) > check.rank(best.release.date),
            (Some(_), Err(_)) => false,
        };
        if better {
            best = Some(received);
        }
    }
    best.unwrap_or_else(|| Err(Refusal::Unavailable("it has no address".to_owned(), HINT_REACH)))
}

fn verifier(own: &Repository, scratch: &Path) -> Option<Verifier> {
    let keys = own.keys.as_ref()?;
    Some(Verifier::new(scratch, keys.keys.clone()).with_fingerprints(keys.fingerprints.clone()))
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
fn condition(cached: Option<&CachedRelease>, check: DateCheck) -> Option<&CachedRelease> {
    let is_future = |cached: &CachedRelease| check.future(cached.release().and_then(|release| release.date)).is_some();
    cached.filter(|cached| cached.name == "InRelease" && !is_future(cached))
}

/// The date check of a repository: by its source, else by apt's configuration.
fn date_check(settings: &UpdateSettings, own: &Repository, now: i64) -> DateCheck {
    let configuration = &settings.configuration;
    let checked = own.check_date.unwrap_or_else(|| configuration.bool("Acquire::Check-Date", true));
    let ahead = own.date_max_future_s.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX));
    let ahead = ahead.unwrap_or_else(|| configuration.number("Acquire::Max-FutureTime", MAX_FUTURE_S));
    DateCheck::new(now, checked, ahead)
}

/// The local name of a file in the Release's directory.
pub fn name_of(own: &Repository, name: &str) -> String {
    format!("{}{}", own.prefix, file_name(&format!("x:{name}")))
}

#[allow(clippy::too_many_arguments)]
fn judge(
    settings: &UpdateSettings,
    session: &Session,
    own: &Repository,
    cached: Option<CachedRelease>,
    received: Result<ReceivedRelease, Refusal>,
    check: DateCheck,
    now: i64,
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
            hint.into_iter().fold(error, CommandError::hint)
        }
    })?;
    let ReceivedRelease { files, modified, release, text, .. } = received;
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
    check_time(settings, own, &release, now, warn)?;
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
    now: i64,
    warn: &mut dyn FnMut(String),
) -> Result<(), CommandError> {
    let configuration = &settings.configuration;
    let number = |key: &str| u64::try_from(configuration.number(key, 0)).ok().filter(|seconds| *seconds > 0);
    let check_date = own.check_date.unwrap_or_else(|| configuration.bool("Acquire::Check-Date", true));
    let (least, most) = own.valid_until_s;
    let least = least.or_else(|| number("Acquire::Min-ValidTime"));
    let most = most.or_else(|| number("Acquire::Max-ValidTime"));
    let checked = check_date && own.check_valid_until && configuration.bool("Acquire::Check-Valid-Until", true);
    let until = valid_until(release, least, most).filter(|until| checked && *until < now);
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
