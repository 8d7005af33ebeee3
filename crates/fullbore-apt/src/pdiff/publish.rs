//! Publishes patches beside the indexes of an archive.
//!
//! The steps: find the indexes (`find`); for each, read the saved state (`states`) and the published patches; generate the
//! new patch and, if configured, a merged patch from each state (`series`); sync the patches; write each `Index`, then the
//! states for the next run. A killed run leaves every `Index` with its patches; the next one continues from its state.

mod find;
mod names;
mod series;
mod states;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fullbore_debian::diff_index::{Listed, Sha1};
use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::{Barrier, Durability};
use fullbore_engine::files::Root;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::report::IndexPatches;
use regex::Regex;

use super::{file_error, no_directory};
use series::{Before, Series};
use states::States;

/// Largest Release that is read, as in apt.
const RELEASE_BYTES_MAX: u64 = 10_000_000;

/// Settings of one `fullbore pdiff publish`.
#[derive(Debug, Clone)]
pub struct PublishSettings {
    /// The directory of a suite, or a directory of indexes below it.
    pub dir: PathBuf,
    /// A copy of `dir` with the previous indexes; no states are saved then.
    pub old: Option<PathBuf>,
    /// Directory of saved states; `None`: `dir/.fullbore`.
    pub state: Option<PathBuf>,
    /// Also publish a merged patch from each state to the current one.
    pub merged: bool,
    /// Largest number of states with patches.
    pub patches_max: u16,
    /// Hours for which unlisted files stay.
    pub keep_hours: u16,
    /// Indexes whose path below `dir` matches are skipped.
    pub exclude: Vec<Regex>,
    /// When files are synced to disk.
    pub durability: Durability,
    /// The time in the names of patches, Unix seconds.
    pub now_unix_s: i64,
}

/// Totals of one `fullbore pdiff publish`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The result for each index, in order of path.
    pub outcomes: Vec<IndexPatches>,
    /// Whether an `Index` changed, so that the archive needs a new Release.
    pub changes_release: bool,
}

/// Publishes patches of all changed indexes. `warn` receives warnings.
///
/// # Errors
/// `Usage` if there is no index or no directory, `Locked` if another run works in the directory, `Disk` for an error of
/// the disk. A damaged file of an earlier run is an error, too.
pub fn run(arguments: &PublishSettings, warn: &mut dyn FnMut(String)) -> Result<Published, CommandError> {
    let root = Arc::new(Root::open(&arguments.dir).map_err(|error| no_directory(error).hint(WHAT_DIR_IS))?);
    let _held = hold(&arguments.dir)?;
    let durability = arguments.durability;
    let barrier = Barrier::new(root.clone(), durability);
    let before = match &arguments.old {
        Some(old) => Before::Tree(Root::open(old).map_err(no_directory)?),
        None => Before::Saved(States::open(&root, arguments.state.as_deref(), durability)?),
    };
    let indexes = find::indexes(&root, &arguments.exclude)?;
    if indexes.is_empty() {
        let dir = arguments.dir.display();
        return Err(CommandError::usage(format_args!("{dir}: no Packages, Sources, Contents or Translation below it"))
            .hint(WHAT_DIR_IS));
    }
    let settings = Series {
        root: &root,
        barrier: &barrier,
        before: &before,
        merged: arguments.merged,
        patches_max: usize::from(arguments.patches_max),
        keep_s: i64::from(arguments.keep_hours) * 3600,
        now_unix_s: arguments.now_unix_s,
    };
    let mut ready = Vec::new();
    for index in indexes {
        let next = settings.advance(&index, warn)?;
        let IndexPatches { index: path, what, added, patches, .. } = &next.outcome;
        tracing::debug!(path, ?what, added, patches, "index compared with its last state");
        ready.push((index, next));
    }
    // Patches first, then each `Index`, then the states for the next run.
    barrier.sync().map_err(file_error)?;
    for (index, next) in &ready {
        settings.publish(index, next)?;
    }
    barrier.sync().map_err(file_error)?;
    if let Before::Saved(states) = &before {
        states.sync()?;
    }
    for (_, next) in &ready {
        settings.settle(next)?;
    }
    let changes_release = ready.iter().any(|(_, next)| next.changes_index());
    let outcomes: Vec<IndexPatches> = ready.into_iter().map(|(_, next)| next.outcome).collect();
    warn_of_release(&outcomes, &root, warn);
    Ok(Published { outcomes, changes_release })
}

const WHAT_DIR_IS: &str = "DIR is dists/SUITE, or a directory below it that has indexes";

/// apt uses patches only for indexes that the Release lists uncompressed. The Release on disk is the previous one, but its
/// names rarely change. One that lists no file is apt's stub beside an index.
fn warn_of_release(outcomes: &[IndexPatches], root: &Root, warn: &mut dyn FnMut(String)) {
    let read = |name: &&str| root.read(name, RELEASE_BYTES_MAX).ok().flatten();
    let Some(release) = ["Release", "InRelease"].iter().find_map(read) else { return };
    let release = String::from_utf8_lossy(&release);
    if !release.lines().any(|line| line.starts_with(' ')) {
        return;
    }
    let lists = |path: &str| release.lines().any(|line| line.starts_with(' ') && line.ends_with(&format!(" {path}")));
    for outcome in outcomes.iter().filter(|outcome| outcome.patches > 0 && !lists(&outcome.index)) {
        let index = &outcome.index;
        warn(format!("apt will not use patches to {index}: the Release does not list it uncompressed"));
    }
}

/// Size and hashes for an `Index`.
fn listed(content: &[u8]) -> Listed {
    use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
    let sha1 = digest(&SHA1_FOR_LEGACY_USE_ONLY, content).as_ref().try_into().ok().map(Sha1);
    Listed { size: content.len() as u64, sha256: Sha256::of(content), sha1 }
}

/// Locks a directory for as long as the file is open, wherever states are saved. A file system that cannot lock
/// directories, such as NFS, leaves it to the lock of the saved states.
fn hold(path: &Path) -> Result<Option<File>, CommandError> {
    let Ok(directory) = File::open(path) else { return Ok(None) };
    match directory.try_lock() {
        Ok(()) => Ok(Some(directory)),
        Err(TryLockError::WouldBlock) => Err(locked(path)),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// The error of a locked directory.
fn locked(path: &Path) -> CommandError {
    CommandError::new(ErrorKind::Locked, format_args!("{} is in use by another run", path.display()))
}
