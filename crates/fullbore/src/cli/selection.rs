//! Which files `put` and `get` take: the rules of `copy`.

use std::path::PathBuf;

use clap::Args;

use super::copy::FilterArgs;

/// As the rules of `copy` have it, so that all stand together.
const SELECTION: &str = "Which files";

/// Which files below a directory or prefix.
#[derive(Debug, Default, Args)]
pub struct SelectionArgs {
    /// Which names.
    #[command(flatten)]
    pub filters: FilterArgs,

    /// Take only the paths in this file, one per line, relative to DIR or the prefix (- for stdin)
    #[arg(long, value_name = "FILE", help_heading = SELECTION)]
    pub files_from: Option<PathBuf>,

    /// Paths and patterns in files end in NULs, as find -print0 writes them
    #[arg(long, short = '0', help_heading = SELECTION)]
    pub from0: bool,

    /// Take everything below directories in --files-from, and treat an s3:// address as a prefix
    #[arg(long, short = 'r', help_heading = SELECTION)]
    pub recursive: bool,
}

impl SelectionArgs {
    /// Whether any of them was given.
    pub fn any(&self) -> bool {
        !self.filters.rules.is_empty() || self.files_from.is_some()
    }
}
