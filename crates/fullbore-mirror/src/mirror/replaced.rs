//! Files that the archive replaced while a suite of another run names their old content.
//!
//! New content for one suite would break the published index of the other. If the other suite was mirrored with the same
//! settings, this run includes it. Otherwise the error suggests a run with both.

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_wire::url::without_credentials;

use super::fingerprint::trust;
use super::offer::{NOTHING_PUBLISHED, OfferedSuite};
use super::state::Conflict;
use crate::settings::{MirrorSettings, SourceSpec};

/// Why a round failed.
pub enum Failure {
    /// A suite of another run names a file that was replaced.
    Replaced(Box<Replaced>),
    /// Anything else.
    Other(CommandError),
}

/// A file that a suite of another run names with its old content.
pub struct Replaced {
    /// The file.
    pub path: String,
    /// The suite, by its requested name.
    pub suite: String,
    /// The source of this run with the same settings, if there is one.
    pub source: Option<usize>,
    /// The error of a run without the suite.
    pub error: CommandError,
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Failure {
        Failure::Other(error)
    }
}

impl Failure {
    /// The failure for a path that a suite of another run names with other content.
    pub fn of(conflict: &Conflict, settings: &MirrorSettings, offers: &[OfferedSuite]) -> Failure {
        let asked: Vec<&str> = settings.sources.iter().flat_map(|source| &source.suites).map(String::as_str).collect();
        Failure::Replaced(Box::new(Replaced {
            path: conflict.path.clone(),
            suite: conflict.requested.clone(),
            source: mirrored_like(conflict, settings, offers),
            error: in_conflict(conflict, &asked),
        }))
    }

    /// The error of the run.
    pub fn into_command(self) -> CommandError {
        match self {
            Failure::Replaced(replaced) => replaced.error,
            Failure::Other(error) => error,
        }
    }
}

/// The source with the addresses and settings of the other suite. A suite with several sources has other settings.
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
        // A key that may sign this suite need not be one that may sign the other.
        (conflict.trust == Some(trust(source, settings.ignore_valid_until))).then_some(number)
    })
}

/// The settings of this run with a further suite.
pub fn with_suite(settings: &MirrorSettings, source: usize, suite: &str) -> MirrorSettings {
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
