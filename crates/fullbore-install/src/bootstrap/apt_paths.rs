//! Checks of the paths in the root that programs outside of it write to.
//!
//! This machine's apt works on the new root and follows absolute links out of it. A hook or a script of a package can
//! create such a link at one of apt's paths. So each path is checked before apt runs, and a link that leads apt
//! elsewhere than programs of the root ends the run. A program that runs in the root at that moment can still change a
//! path.

use std::path::Path;

use fullbore_engine::run::error::CommandError;

use super::apt::DIRECTORY;
use super::indexes::LISTS;
use super::{ARCHIVES, BootstrapRun};
use crate::root::is_same_outside;

/// Paths that apt reads or writes in the root, except those with constants of their own.
const PLACES: [&str; 9] = [
    "etc/apt/apt.conf.d",
    "etc/apt/sources.list.d",
    "tmp",
    "var/cache/apt",
    "var/lib/apt/extended_states",
    "var/lib/dpkg/status",
    "var/log/apt/eipp.log.xz",
    "var/log/apt/history.log",
    "var/log/apt/term.log",
];

impl BootstrapRun<'_> {
    /// Checks that no link leads apt out of the root.
    pub(super) fn check_apt_paths(&self) -> Result<(), CommandError> {
        let root = self.inside.root();
        let partial = [LISTS, ARCHIVES].map(|below| format!("{below}/partial"));
        for place in PLACES.into_iter().chain([DIRECTORY]).chain(partial.iter().map(String::as_str)) {
            let path = Path::new("/").join(place);
            if !is_same_outside(root, &path).map_err(|error| CommandError::cannot("find", &root.join(place), &error))? {
                return Err(CommandError::usage(format_args!("{}: a link leads out of the root", path.display()))
                    .context("apt, which works on the root from outside, would follow it")
                    .hint("make relative links in hooks and packages, or mount the directory"));
            }
        }
        Ok(())
    }
}
