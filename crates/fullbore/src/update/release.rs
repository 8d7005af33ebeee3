//! The signed Release of each repository, compared with the one that is here.

use std::path::Path;

use fullbore_apt::lists::names::file_name;
use fullbore_debian::release::Release;
use fullbore_debian::signature::{RELEASE_BYTES_MAX, SignedText, Verifier};
use fullbore_engine::files::Root;

use super::repositories::Repository;
use super::session::{PARTIAL, Session};
use crate::error::{CommandError, ErrorKind};
use crate::mirror::select::check_suite;
use crate::settings::update::UpdateSettings;
use crate::signed_release::{Kept, Question, Received, Refusal, accept, receive, receive_all, valid_until};

/// How far a clock may be behind before a Release of the future is refused: apt's
/// `Acquire::Max-FutureTime`, in seconds.
const FUTURE_S: i64 = 10;

/// What a repository offers.
pub struct Offered {
    /// The verified Release.
    pub release: Release,
    /// The signed files: name and content.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// When it was last changed, Unix seconds.
    pub modified: Option<i64>,
    /// It is the one that is here.
    pub unchanged: bool,
    /// The Release that is here. It says what the indexes here are.
    pub before: Option<Release>,
}

/// What came of one repository.
pub type Outcome = Result<Offered, CommandError>;

/// Asks all repositories at once, and verifies the answers side by side.
pub fn fetch(
    settings: &UpdateSettings,
    session: &Session,
    repositories: &[Repository],
    now: i64,
    warn: &mut dyn FnMut(String),
) -> Vec<Outcome> {
    let kept: Vec<Option<Kept>> = repositories.iter().map(|own| kept(&session.root, own)).collect();
    let questions = repositories.iter().zip(&kept);
    let questions = questions.map(|(own, kept)| question(session, own, condition(kept.as_ref()))).collect();
    let answers = session.runtime.block_on(receive_all(questions));
    let scratch = session.root.path().join(PARTIAL);
    let verified: Vec<Result<Received, Refusal>> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for ((own, kept), answer) in repositories.iter().zip(&kept).zip(answers) {
            let verifier = verifier(own, &scratch);
            threads.push(scope.spawn(move || accept(answer, condition(kept.as_ref()), verifier.as_ref())));
        }
        let lost = || Refusal::Unavailable("the verifying thread failed".to_owned(), "");
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(lost()))).collect()
    });
    let mut outcomes = Vec::new();
    for ((own, kept), received) in repositories.iter().zip(kept).zip(verified) {
        let received = match received {
            // Our own copy was altered, or the answer was: asked again without a condition.
            Err(Refusal::Verification(..)) if kept.is_some() => {
                let again = session.runtime.block_on(receive(question(session, own, None)));
                accept(again, None, verifier(own, &scratch).as_ref())
            }
            other => other,
        };
        outcomes.push(judge(settings, own, kept, received, now, warn));
    }
    outcomes
}

fn question<'a>(session: &'a Session, own: &Repository, kept: Option<&'a Kept>) -> Question<'a> {
    Question { fetcher: &session.sites[own.site].fetcher, host: 0, directory: own.directory.clone(), kept }
}

fn verifier(own: &Repository, scratch: &Path) -> Option<Verifier> {
    let keys = own.keys.as_ref()?;
    Some(Verifier::new(scratch, keys.keys.clone()).with_fingerprints(keys.fingerprints.clone()))
}

/// The signed file that is here.
fn kept(root: &Root, own: &Repository) -> Option<Kept> {
    ["InRelease", "Release"].into_iter().find_map(|name| {
        let path = name_of(own, name);
        let status = root.stat(&path).ok().flatten()?;
        let content = root.read(&path, RELEASE_BYTES_MAX as u64).ok().flatten()?;
        Some(Kept { name, content, modified: status.mtime, tag: None })
    })
}

/// As a condition of the request for an `InRelease`.
fn condition(kept: Option<&Kept>) -> Option<&Kept> {
    kept.filter(|kept| kept.name == "InRelease")
}

/// The name of a file of the Release's directory.
pub fn name_of(own: &Repository, name: &str) -> String {
    format!("{}{}", own.prefix, file_name(&format!("x:{name}")))
}

fn judge(
    settings: &UpdateSettings,
    own: &Repository,
    kept: Option<Kept>,
    received: Result<Received, Refusal>,
    now: i64,
    warn: &mut dyn FnMut(String),
) -> Outcome {
    let refused = |kind, why: String| CommandError::new(kind, format_args!("{}: {why}", own.shown()));
    let received = received.map_err(|refusal| match refusal {
        Refusal::Unavailable(why, hint) => refused(ErrorKind::Network, why).hint(hint),
        Refusal::Verification(why, hint) => {
            let error = refused(ErrorKind::Verification, why).context("its indexes stay as they were");
            hint.into_iter().fold(error, CommandError::hint)
        }
    })?;
    let Received { files, modified, release, .. } = received;
    // What is here was verified when it came, and whoever may write here needs no forged Release.
    let before = kept.as_ref().and_then(|kept| Release::parse(&SignedText::trusted(&kept.content).ok()?).ok());
    let unchanged = kept.is_some_and(|kept| files.first().is_some_and(|(_, content)| *content == kept.content));
    if let Err(error) = check_suite(&own.suite, &release) {
        warn(format!("{}: {error}", own.shown()));
    }
    if let Some(before) = &before {
        if before.date > release.date {
            return Err(refused(ErrorKind::Stale, "its Release is older than the one here".to_owned())
                .context("its indexes stay as they were")
                .hint("this mirror is behind; try again later"));
        }
        check_identity(settings, own, before, &release)?;
    }
    check_time(settings, own, &release, now, warn)?;
    Ok(Offered { release, files, modified, unchanged, before })
}

/// What apt demands a person's word for: a repository that calls itself something else than before
/// (apt-secure(8), `Acquire::AllowReleaseInfoChange`).
fn check_identity(
    settings: &UpdateSettings,
    own: &Repository,
    before: &Release,
    now: &Release,
) -> Result<(), CommandError> {
    let fields = [
        ("Origin", &before.origin, &now.origin),
        ("Label", &before.label, &now.label),
        ("Suite", &before.suite, &now.suite),
        ("Codename", &before.codename, &now.codename),
    ];
    let allowed = settings.configuration.bool("Acquire::AllowReleaseInfoChange", false);
    for (field, then, now) in fields {
        let key = format!("Acquire::AllowReleaseInfoChange::{field}");
        if then == now || then.is_none() || settings.configuration.bool(&key, allowed) {
            continue;
        }
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        return Err(CommandError::new(
            ErrorKind::Verification,
            format_args!("{}: {field} was {:?} and is {:?} now", own.shown(), text(then), text(now)),
        )
        .context("its indexes stay as they were")
        .hint(format_args!(
            "if that is right, accept it with `apt-get update --allow-releaseinfo-change`, or set {key}"
        )));
    }
    Ok(())
}

fn check_time(
    settings: &UpdateSettings,
    own: &Repository,
    release: &Release,
    now: i64,
    warn: &mut dyn FnMut(String),
) -> Result<(), CommandError> {
    let configuration = &settings.configuration;
    let number = |key: &str| u64::try_from(configuration.number(key, 0)).ok().filter(|seconds| *seconds > 0);
    let future = configuration.number("Acquire::Max-FutureTime", FUTURE_S);
    let check_date = configuration.bool("Acquire::Check-Date", true);
    if check_date && release.date.is_some_and(|date| date > now.saturating_add(future)) {
        return Err(CommandError::new(ErrorKind::Stale, format_args!("{}: its Release is of the future", own.shown()))
            .hint("look whether this machine's clock is right"));
    }
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
