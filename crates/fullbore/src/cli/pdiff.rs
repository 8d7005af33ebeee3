//! The flags of `fullbore pdiff` and its commands.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Durability;
use fullbore_mirror::Filter;

use super::choices;
use super::update::IndexLevel;

pub(super) const LONG: &str = "\
Apply, join, make and publish patches for APT's indexes (pdiffs).

A patch is an ed script, as `diff --ed` writes it and an archive's `X.diff/Index` lists it. Files \
may be compressed; the extension tells the format.";

const EXAMPLES: &str = "\
Examples:
  Apply a patch to an index:
    fullbore pdiff apply Packages 2026-10-30-0800.52.gz -o Packages.new
  Publish patches beside the indexes of an archive that you run:
    fullbore pdiff publish dists/trixie";

/// `fullbore pdiff`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct PdiffArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PdiffCommand,
}

/// What `fullbore pdiff` can do.
#[derive(Debug, Subcommand)]
pub enum PdiffCommand {
    /// Apply patches to an index, oldest first, in one pass
    #[command(long_about = APPLY_LONG)]
    Apply(PdiffApplyArgs),
    /// Join patches, oldest first, into one with the same effect
    #[command(long_about = MERGE_LONG)]
    Merge(PdiffMergeArgs),
    /// Make a patch from one state of an index to another
    #[command(long_about = GENERATE_LONG)]
    Generate(PdiffGenerateArgs),
    /// Publish patches beside the indexes of an archive that you run
    #[command(long_about = PUBLISH_LONG)]
    Publish(PdiffPublishArgs),
}

const APPLY_LONG: &str = "\
Apply patches to an index, oldest first, in one pass.

fullbore joins the patches first, so twenty take hardly longer than one. Memory does not depend on \
the size of the index. NEW appears when it is complete and, with --sha256, correct. NEW may be the \
same file as OLD.";

const APPLY_EXAMPLES: &str = "\
Examples:
  Apply two patches at once, and verify the result:
    fullbore pdiff apply Packages 2026-10-29-2000.12.gz 2026-10-30-0800.52.gz -o Packages.new \\
        --sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
  Read one format and write another:
    fullbore pdiff apply Contents-amd64.xz 2026-10-30-0800.52.gz -o Contents-amd64.zst";

/// `fullbore pdiff apply`.
#[derive(Debug, Args)]
#[command(after_long_help = APPLY_EXAMPLES)]
pub struct PdiffApplyArgs {
    /// The index: plain, .gz, .xz, .zst, .lz4 or .bz2
    #[arg(value_name = "OLD")]
    pub old: PathBuf,

    /// The patches, oldest first
    #[arg(value_name = "PATCH", required = true)]
    pub patches: Vec<PathBuf>,

    /// Write the patched index to this file: plain, .gz, .xz, .zst or .lz4
    #[arg(long, short, value_name = "NEW")]
    pub output: PathBuf,

    /// Accept the result only if its uncompressed content has this SHA-256
    #[arg(long, value_name = "HASH")]
    pub sha256: Option<Sha256>,

    /// Compress the result fast, or into the smallest file, as apt does
    #[arg(long, value_name = "LEVEL", default_value = "fast")]
    pub level: IndexLevel,
}

const MERGE_LONG: &str = "\
Join patches, oldest first, into one with the same effect.

The index itself is not needed.";

const MERGE_EXAMPLES: &str = "\
Examples:
  Join two patches:
    fullbore pdiff merge 2026-10-29-2000.12.gz 2026-10-30-0800.52.gz -o both.gz";

/// `fullbore pdiff merge`.
#[derive(Debug, Args)]
#[command(after_long_help = MERGE_EXAMPLES)]
pub struct PdiffMergeArgs {
    /// The patches, oldest first
    #[arg(value_name = "PATCH", required = true)]
    pub patches: Vec<PathBuf>,

    /// Write the patch to this file, plain or .gz (default: to stdout)
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
}

const GENERATE_LONG: &str = "\
Make a patch from one state of an index to another.

fullbore reads both states into memory, and tests the patch before it writes it.";

const GENERATE_EXAMPLES: &str = "\
Examples:
  Make a patch from yesterday's index to today's:
    fullbore pdiff generate yesterday/Packages.xz today/Packages.xz -o Packages.ed.gz";

/// `fullbore pdiff generate`.
#[derive(Debug, Args)]
#[command(after_long_help = GENERATE_EXAMPLES)]
pub struct PdiffGenerateArgs {
    /// The older state of the index, in any format
    #[arg(value_name = "OLD")]
    pub old: PathBuf,

    /// The newer state of the index, in any format
    #[arg(value_name = "NEW")]
    pub new: PathBuf,

    /// Write the patch to this file, plain or .gz (default: to stdout)
    #[arg(long, short, value_name = "PATCH")]
    pub output: Option<PathBuf>,
}

const PUBLISH_LONG: &str = "\
Publish patches beside an archive's indexes, so that clients fetch only changes.

DIR is the directory of a suite (dists/SUITE), or a directory below it that has indexes. For each \
Packages, Sources, Contents and Translation that changed since the last run, fullbore adds a patch \
to X.diff/. It updates X.diff/Index, which lists all patches. It keeps the previous states in \
DIR/.fullbore; with --old, it takes them from another copy of DIR. The first run only records the \
states.

Run it each time between making the indexes and making the Release. The Release must list each \
X.diff/Index, and the uncompressed X even if only X.xz exists. Then sign the Release. Until you sign \
it, clients fetch changed indexes whole.";

const PUBLISH_EXAMPLES: &str = "\
Examples:
  An archive made by apt-ftparchive:
    apt-ftparchive generate archive.conf
    fullbore pdiff publish dists/trixie
    apt-ftparchive -c release.conf release dists/trixie > Release.new
    mv Release.new dists/trixie/Release
    gpg --clearsign -o InRelease.new dists/trixie/Release
    mv InRelease.new dists/trixie/InRelease
  Let clients fetch one patch instead of a chain:
    fullbore pdiff publish dists/trixie --merged
  Take the previous states from another tree:
    fullbore pdiff publish /srv/new/dists/trixie --old /srv/public/dists/trixie";

/// `fullbore pdiff publish`.
#[derive(Debug, Args)]
#[command(after_long_help = PUBLISH_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct PdiffPublishArgs {
    /// The directory of a suite, dists/SUITE, or a directory below it that has indexes
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// Take the previous states from this copy of DIR, and keep none
    #[arg(long, value_name = "OLD")]
    pub old: Option<PathBuf>,

    /// Keep the states of the indexes in this directory (default: DIR/.fullbore)
    #[arg(long, value_name = "STATE", conflicts_with = "old")]
    pub state: Option<PathBuf>,

    /// Also publish a patch from each state directly to the current one, and offer these first
    ///
    /// Clients then fetch one patch instead of several. apt takes longer to apply it: apt does not know the hash of the
    /// result, and computes all kinds of hashes.
    #[arg(long)]
    pub merged: bool,

    /// Keep patches for at most N states
    #[arg(long, value_name = "N", default_value_t = 56, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_patches: u16,

    /// Keep unlisted patches for HOURS, for clients that still use the previous Index
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    pub keep_hours: u16,

    /// Skip indexes whose path below DIR matches this regular expression; repeat for more
    #[arg(long, value_name = "REGEX")]
    pub exclude: Vec<Filter>,

    /// When to wait for the disk: never, once before publishing, or for each file [default: at-end]
    #[arg(long, value_name = "WHEN", value_parser = choices::durability())]
    pub durability: Option<Durability>,

    /// Print a line of JSON for each index, and a summary
    #[arg(long)]
    pub json: bool,

    /// Print only errors
    #[arg(long, short)]
    pub quiet: bool,
}
