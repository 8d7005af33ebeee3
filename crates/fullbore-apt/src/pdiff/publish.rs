//! Patches beside the indexes of an archive.
//!
//! The walk: indexes below the directory (`find`) → for each, the state before (`states`) and what
//! was published for it → the new step and, if wanted, a patch from each state to the present one,
//! in one sweep (`series`) → patches on disk → every `Index`, which refers to them → the present
//! states, for the next run. A run that is killed leaves every `Index` with its patches; the next
//! one finds the way from the state it has.

mod find;
mod names;
mod series;
mod states;

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

/// Largest Release that is looked at, as apt has it.
const RELEASE_BYTES_MAX: u64 = 10_000_000;

/// What is to be published, and how.
#[derive(Debug, Clone)]
pub struct PublishSettings {
    /// The directory of a suite, or of some indexes.
    pub dir: PathBuf,
    /// The states before are in this copy of `dir`, and none are kept.
    pub old: Option<PathBuf>,
    /// Where states are kept; `None`: in `dir/.fullbore`.
    pub state: Option<PathBuf>,
    /// Publish also a patch from each state directly to the present one.
    pub merged: bool,
    /// States for which patches are kept, at most.
    pub patches_max: u16,
    /// Hours for which files stay that are listed no more.
    pub keep_hours: u16,
    /// Indexes whose path below `dir` matches are left out.
    pub exclude: Vec<Regex>,
    /// When to wait for the disk.
    pub durability: Durability,
    /// The time that patches are named by, seconds.
    pub now_unix_s: i64,
}

/// What was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Each index, in the order of their paths.
    pub outcomes: Vec<IndexPatches>,
    /// Some `Index` is another one now, so that the Release has to be made anew.
    pub changes_release: bool,
}

/// Publishes the patches of all indexes that have changed; `warn` hears of what else must be done for clients to use them.
///
/// # Errors
/// No index is there, another run works there, a file of an earlier run is damaged, or the disk refuses.
pub fn run(arguments: &PublishSettings, warn: &mut dyn FnMut(String)) -> Result<Published, CommandError> {
    let root = Arc::new(Root::open(&arguments.dir).map_err(|error| no_directory(error).hint(WHAT_DIR_IS))?);
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
        ready.push((index, next));
    }
    // Patches first, then what refers to them, then what the next run begins with.
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

/// apt takes patches only to what the Release lists uncompressed. The Release that is there is of
/// before, but which names it lists rarely changes.
fn warn_of_release(outcomes: &[IndexPatches], root: &Root, warn: &mut dyn FnMut(String)) {
    let Ok(Some(release)) = root.read("Release", RELEASE_BYTES_MAX) else {
        return;
    };
    let release = String::from_utf8_lossy(&release);
    let lists = |path: &str| release.lines().any(|line| line.starts_with(' ') && line.ends_with(&format!(" {path}")));
    for outcome in outcomes.iter().filter(|outcome| outcome.patches > 0 && !lists(&outcome.index)) {
        let index = &outcome.index;
        warn(format!("Release does not list {index} uncompressed: without that apt makes no use of patches to it"));
    }
}

/// Size and hashes, as an Index lists them.
fn listed(content: &[u8]) -> Listed {
    use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
    let sha1 = digest(&SHA1_FOR_LEGACY_USE_ONLY, content).as_ref().try_into().ok().map(Sha1);
    Listed { size: content.len() as u64, sha256: Sha256::of(content), sha1 }
}

/// A directory that another run works in.
fn locked(path: &Path) -> CommandError {
    CommandError::new(ErrorKind::Locked, format_args!("{} is in use by another run", path.display()))
}
