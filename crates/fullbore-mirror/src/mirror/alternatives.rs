//! Chooses between several contents that the indexes name for one path.
//!
//! Archives sometimes replace a package under its old name and keep the old entry. apt accepts the served file if its
//! chosen entry describes it. A mirror takes the content that the archive serves, and reports the other entries. If the
//! contents differ in size, no fetch is needed. Contents of one size are fetched into the store, where only one of them
//! can have the right hash.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fullbore_engine::digest::Sha256;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events;

use super::batch::{Files, IndexDownload};
use super::hash_files::{self, Job, Outcome};
use super::offer::NOTHING_PUBLISHED;
use super::plan::{Alternative, PlanBuilder};
use super::session::{Session, disk};
use super::sizes::{self, Asked};

/// Chooses a content for each such path. Returns a line about each content that is left out.
///
/// # Errors
///
/// `Verification` if a suite that stays needs other content than the archive serves. `Disk` if a file cannot be read or
/// written, `Interrupted` if a signal arrived.
pub(super) fn choose(
    builder: &mut PlanBuilder,
    session: &mut Session,
    stop: &Stop,
    events: &mut dyn Events,
) -> Result<Vec<String>, CommandError> {
    let all: BTreeMap<String, Vec<Alternative>> = builder.alternatives().clone();
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let paths = all.keys().cloned().map(|path| Asked { path, ..Asked::default() });
    let told = sizes::learn(paths.collect(), session, stop)?;
    let served: Vec<Vec<&Alternative>> = all
        .values()
        .zip(told)
        .map(|(contents, told)| {
            contents.iter().filter(|content| told.size().is_none_or(|size| size == content.size)).collect()
        })
        .collect();
    let doubtful = all.keys().zip(&served).filter(|(_, contents)| contents.len() > 1);
    let downloads: Vec<IndexDownload> =
        doubtful.flat_map(|(path, contents)| contents.iter().map(move |content| download(path, content))).collect();
    let right = if downloads.is_empty() { Vec::new() } else { fetched(downloads, session, stop, events)? };
    let mut lines = Vec::new();
    for ((path, contents), served) in all.iter().zip(&served) {
        let by_hash = || served.iter().find(|content| right.contains(&content.sha256)).copied();
        // The archive may serve none of the contents; then fetching the file fails.
        let chosen = by_hash().or_else(|| served.first().copied()).unwrap_or(&contents[0]);
        if let Some(other) = needed_here(session, path, contents, chosen, stop)? {
            return Err(conflict(path, other, chosen));
        }
        builder.choose(path, chosen);
        for other in contents.iter().filter(|content| *content != chosen) {
            lines.push(format!(
                "{path}: {} names {} bytes, SHA-256 {}, which is left out: {} names {} bytes, SHA-256 {}",
                other.index, other.size, other.sha256, chosen.index, chosen.size, chosen.sha256
            ));
        }
    }
    Ok(lines)
}

/// The present content, if a suite other than that of the chosen content names it. Clients of that suite need it.
fn needed_here<'a>(
    session: &Session,
    path: &str,
    contents: &'a [Alternative],
    chosen: &Alternative,
    stop: &Stop,
) -> Result<Option<&'a Alternative>, CommandError> {
    let others: Vec<&Alternative> = contents.iter().filter(|other| other.suite != chosen.suite).collect();
    let job = |at: usize| {
        let other = others.get(at)?;
        Some(Job { id: at as u32, path, size: Some(other.size), sha256: other.sha256, known_is_enough: true })
    };
    let here = Mutex::new(Ok(None));
    hash_files::read_all(&*session.tree, job, 1, &session.scan, stop.flag(), &|id, outcome| match outcome {
        Outcome::Right(_) => *here.lock().unwrap_or_else(PoisonError::into_inner) = Ok(Some(others[id as usize])),
        Outcome::Unreadable(error) => *here.lock().unwrap_or_else(PoisonError::into_inner) = Err(error),
        Outcome::Missing | Outcome::Size(_) | Outcome::Hash(_) => {}
    });
    here.into_inner().unwrap_or_else(PoisonError::into_inner).map_err(|error| disk(&error))
}

fn conflict(path: &str, here: &Alternative, served: &Alternative) -> CommandError {
    CommandError::new(
        ErrorKind::Verification,
        format_args!(
            "{path}: {} names SHA-256 {}, which is here, but the archive serves what {} names: SHA-256 {}",
            here.index, here.sha256, served.index, served.sha256
        ),
    )
    .context(NOTHING_PUBLISHED)
    .hint("run again later; if that does not help, mirror the suites into different directories")
}

fn download(path: &str, content: &Alternative) -> IndexDownload {
    IndexDownload { path: path.to_owned(), other_path: None, size: content.size, sha256: content.sha256 }
}

/// Hashes of the contents that could be fetched.
fn fetched(
    downloads: Vec<IndexDownload>,
    session: &mut Session,
    stop: &Stop,
    events: &mut dyn Events,
) -> Result<Vec<Sha256>, CommandError> {
    let files = Arc::new(Files::of_indexes(downloads));
    let items = files.items(&[], session);
    let fetched = session.fetch(files.clone(), items, stop, events)?;
    Ok(fetched.verified.into_iter().filter_map(|item| Some(files.index(item)?.sha256)).collect())
}
