//! `fullbore pdiff publish`: patches beside the indexes of an archive.
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

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fullbore_debian::diff_index::{Listed, Sha1};
use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Barrier;
use fullbore_engine::files::Root;
use serde::Serialize;

use super::{file_error, no_directory};
use crate::cli::PdiffPublishArgs;
use crate::progress::Screen;
use crate::settings::Environment;
use find::Index;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events as _;
use fullbore_engine::run::units;
use series::{Before, Series};
use states::States;

/// Largest Release that is looked at, as apt has it.
const RELEASE_BYTES_MAX: u64 = 10_000_000;

pub(super) fn run(
    arguments: &PdiffPublishArgs,
    environment: &Environment,
    screen: &mut Screen,
) -> Result<(), CommandError> {
    let started = Instant::now();
    let root = Arc::new(Root::open(&arguments.dir).map_err(|error| no_directory(error).hint(WHAT_DIR_IS))?);
    let durability = arguments.durability.unwrap_or_default();
    let barrier = Barrier::new(root.clone(), durability);
    let before = match &arguments.old {
        Some(old) => Before::Tree(Root::open(old).map_err(no_directory)?),
        None => Before::Kept(States::open(&root, arguments.state.as_deref(), durability)?),
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
        patches_max: usize::from(arguments.max_patches),
        keep_s: i64::from(arguments.keep_hours) * 3600,
        now_unix_s: environment.source_date_epoch.unwrap_or_else(|| jiff::Timestamp::now().as_second()),
    };
    let mut ready = Vec::new();
    for index in indexes {
        let next = settings.advance(&index, &mut |warning| screen.warn(warning))?;
        ready.push((index, next));
    }
    // Patches first, then what refers to them, then what the next run begins with.
    barrier.sync().map_err(file_error)?;
    for (index, next) in &ready {
        settings.publish(index, next)?;
    }
    barrier.sync().map_err(file_error)?;
    if let Before::Kept(states) = &before {
        states.sync()?;
    }
    for (_, next) in &ready {
        settings.settle(next)?;
    }
    report(&ready, &root, arguments, started, screen);
    Ok(())
}

const WHAT_DIR_IS: &str = "DIR is dists/SUITE, or a directory below it that has indexes";

/// What became of an index; in JSON, a line of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Outcome {
    index: String,
    #[serde(rename = "outcome")]
    what: What,
    /// States from which a chain of patches leads to the present one.
    patches: usize,
    /// States from which one patch does.
    merged: usize,
    /// The patch that was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    added: Option<String>,
    /// Its size, as plain text and as it is served.
    patch_bytes: u64,
    download_bytes: u64,
}

impl Outcome {
    fn new(index: &str) -> Outcome {
        let what = What::Unchanged;
        Outcome { index: index.to_owned(), what, patches: 0, merged: 0, added: None, patch_bytes: 0, download_bytes: 0 }
    }
}

/// What became of an index, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    /// Seen for the first time.
    First,
    /// As it was.
    Unchanged,
    /// As it was, but its patches are offered in another way.
    Relisted,
    /// One more patch.
    Extended,
    /// One patch; those before do not lead to it.
    Restarted,
    /// No patch leads to it.
    Whole,
}

fn report(
    ready: &[(Index, series::Next)],
    root: &Root,
    arguments: &PdiffPublishArgs,
    started: Instant,
    screen: &mut Screen,
) {
    let outcomes: Vec<&Outcome> = ready.iter().map(|(_, next)| &next.outcome).collect();
    for outcome in &outcomes {
        if arguments.json {
            screen.print_json(outcome);
        } else if !arguments.quiet {
            screen.print_line(&sentence(outcome));
        }
    }
    let added: Vec<&&Outcome> = outcomes.iter().filter(|outcome| outcome.added.is_some()).collect();
    if !arguments.json && !arguments.quiet {
        let bytes = units::bytes(added.iter().map(|outcome| outcome.download_bytes).sum());
        let time = units::duration(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
        let next = if ready.iter().any(|(_, next)| next.changes_index()) {
            " Now make the Release, which lists each X.diff/Index, and sign it."
        } else {
            ""
        };
        let indexes = units::several(outcomes.len() as u64, "index", "indexes");
        screen.print_line(&format!("{indexes} in {time}, {} with a new patch, {bytes} in all.{next}", added.len()));
    }
    warn_of_release(&outcomes, root, screen);
}

fn sentence(outcome: &Outcome) -> String {
    let Outcome { index, patches, merged, .. } = outcome;
    let from = units::several(*patches as u64, "state", "states");
    let states = match (patches, merged) {
        (0, _) => "no patches yet".to_owned(),
        (_, 0) => format!("patches from {from}"),
        _ => format!("patches from {from}, merged ones from {merged}"),
    };
    match (outcome.what, &outcome.added) {
        (What::First, _) => format!("{index}: first state, kept for the next run"),
        (What::Whole, _) => format!("{index}: no patch to this state; clients fetch it whole"),
        (What::Unchanged, _) => format!("{index}: unchanged; {states}"),
        (_, Some(name)) => format!("{index}: {name}, {}; {states}", units::bytes(outcome.download_bytes)),
        (_, None) => format!("{index}: {states}"),
    }
}

/// apt takes patches only to what the Release lists uncompressed. The Release that is there is of
/// before, but which names it lists rarely changes.
fn warn_of_release(outcomes: &[&Outcome], root: &Root, screen: &mut Screen) {
    let Ok(Some(release)) = root.read("Release", RELEASE_BYTES_MAX) else {
        return;
    };
    let release = String::from_utf8_lossy(&release);
    let lists = |path: &str| release.lines().any(|line| line.starts_with(' ') && line.ends_with(&format!(" {path}")));
    for outcome in outcomes.iter().filter(|outcome| outcome.patches > 0 && !lists(&outcome.index)) {
        let index = &outcome.index;
        screen.warn(format!(
            "Release does not list {index} uncompressed: without that apt makes no use of patches to it"
        ));
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
