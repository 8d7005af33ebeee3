//! Files that the archive replaced while a suite of another run names their old content.
//!
//! New content for one suite would break the published index of the other. If the other suite was mirrored with the
//! same settings, this run includes it. Otherwise the error suggests mirroring both in one run.

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_wire::url::without_credentials;

use super::fingerprint::trust;
use super::offer::{NOTHING_PUBLISHED, OfferedSuite};
use super::state::Conflict;
use crate::settings::{MirrorSettings, SourceSpec};

/// Why a round of a run failed.
pub(super) enum Failure {
    /// The archive replaced a file that a suite of another run names.
    Replaced(Box<Replaced>),
    /// Anything else.
    Other(CommandError),
}

/// A file that a suite of another run names with its old content.
pub(super) struct Replaced {
    /// Path of the file, relative to the mirror.
    pub path: String,
    /// Requested name of the suite.
    pub suite: String,
    /// Number of this run's source with the same settings, if there is one.
    pub source: Option<usize>,
    /// Error of the run if the suite is not included.
    pub error: CommandError,
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Failure {
        Failure::Other(error)
    }
}

impl Failure {
    /// Makes the failure for a path that a suite of another run names with other content.
    pub(super) fn of(conflict: &Conflict, settings: &MirrorSettings, offers: &[OfferedSuite]) -> Failure {
        let asked: Vec<&str> = settings.sources.iter().flat_map(|source| &source.suites).map(String::as_str).collect();
        Failure::Replaced(Box::new(Replaced {
            path: conflict.path.clone(),
            suite: conflict.requested.clone(),
            source: mirrored_like(conflict, settings, offers),
            error: in_conflict(conflict, &asked),
        }))
    }

    /// Error of the command.
    pub(super) fn into_command(self) -> CommandError {
        match self {
            Failure::Replaced(replaced) => replaced.error,
            Failure::Other(error) => error,
        }
    }
}

/// Number of the source with the addresses and settings of the other suite. A suite with several sources has other
/// settings.
fn mirrored_like(conflict: &Conflict, settings: &MirrorSettings, offers: &[OfferedSuite]) -> Option<usize> {
    let names = |source: &SourceSpec, suite: &String| source.suites.contains(suite);
    if settings.sources.iter().any(|source| names(source, &conflict.requested))
        || !settings.origins.iter().map(|origin| without_credentials(origin)).eq(conflict.origins.iter().cloned())
    {
        return None;
    }
    offers.iter().filter(|offer| offer.fingerprint == conflict.fingerprint).find_map(|offer| {
        let mut sources = (0..).zip(&settings.sources).filter(|(_, source)| names(source, &offer.requested));
        let (number, source) = sources.next().filter(|_| sources.next().is_none())?;
        // A key that may sign this suite need not be accepted for the other.
        (conflict.trust == Some(trust(source, settings.ignore_valid_until))).then_some(number)
    })
}

/// Settings of this run, with one more suite of a source.
pub(super) fn with_suite(settings: &MirrorSettings, source: usize, suite: &str) -> MirrorSettings {
    let mut more = settings.clone();
    if let Some(source) = more.sources.get_mut(source) {
        source.suites.push(suite.to_owned());
    }
    more
}

fn in_conflict(conflict: &Conflict, asked: &[&str]) -> CommandError {
    let error = CommandError::new(ErrorKind::Verification, conflict).context(NOTHING_PUBLISHED);
    if asked.contains(&conflict.requested.as_str()) {
        return error.hint(format_args!(
            "{} still names the old content in the archive: run again later; if that does not help, mirror the two into \
             different directories",
            conflict.requested
        ));
    }
    let suites: Vec<String> =
        asked.iter().chain([&conflict.requested.as_str()]).map(|suite| format!("--suite {suite}")).collect();
    error
        .hint(format_args!(
            "if the archive has replaced the file, one run with both suites publishes both: {} (with what both runs ask \
             for; {} was mirrored with {})",
            suites.join(" "),
            conflict.requested,
            conflict.selection
        ))
        .hint("if they are suites of different archives, mirror them into different directories")
}
