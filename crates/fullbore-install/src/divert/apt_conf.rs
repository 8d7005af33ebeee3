//! The alternative to diversions: APT's configuration names a wrapper for dpkg.
//!
//! APT itself syncs seldom (twice in an installation of 386 packages); dpkg and the programs that it starts make all
//! other sync calls. A dpkg started by another program syncs as usual.

use std::fs;
use std::path::Path;

use super::{BeforeStep, DivertError, NEW, Root, file, is_wrapper, remove, with_end, wrapper_text, write_new};
use crate::root::within;

/// Path of the wrapper for APT, relative to the root.
const WRAPPER: &str = "usr/lib/fullbore-nosync/dpkg";

/// Path of APT's configuration, relative to the root. APT reads it before other files, so that a `Dir::Bin::dpkg` of
/// the administrator takes precedence.
const CONFIGURATION: &str = "etc/apt/apt.conf.d/00fullbore-nosync";

const DPKG: &str = "/usr/bin/dpkg";

impl Root {
    /// Makes APT start dpkg through a wrapper. `helper` and `try_helper` are those of [`Root::on`].
    ///
    /// # Errors
    /// Every variant of [`DivertError`] but `Refused`.
    pub fn on_by_apt(&self, helper: &Path, try_helper: bool, before: BeforeStep<'_>) -> Result<(), DivertError> {
        let configuration = self.at(CONFIGURATION)?;
        let directory = configuration.parent().unwrap_or(&self.path);
        fs::metadata(directory).map_err(file(directory))?;
        let disks = self.disks()?;
        self.step(before, "helper")?;
        self.place_helper(helper, try_helper)?;
        self.step(before, "write the wrapper")?;
        self.place(WRAPPER, &wrapper_text(Path::new(DPKG)), 0o755)?;
        self.step(before, "write the configuration")?;
        let text = format!(
            "// Placed by `fullbore divert on --via apt-conf`; `fullbore divert off` removes it.\n\
             Dir::Bin::dpkg \"/{WRAPPER}\";\n"
        );
        self.place(CONFIGURATION, &text, 0o644)?;
        self.sync(disks)
    }

    /// Whether APT starts dpkg through the wrapper.
    ///
    /// # Errors
    /// [`DivertError::File`] if the wrapper exists and cannot be read.
    pub fn is_on_by_apt(&self) -> Result<bool, DivertError> {
        Ok(self.at(CONFIGURATION)?.symlink_metadata().is_ok() && is_wrapper(&self.at(WRAPPER)?)?)
    }

    /// Removes first the configuration, then the wrapper.
    pub(super) fn off_by_apt(&self, before: BeforeStep<'_>) -> Result<(), DivertError> {
        self.step(before, "remove the configuration")?;
        remove(&self.at(CONFIGURATION)?)?;
        // A killed run may have left these.
        for name in [CONFIGURATION, WRAPPER] {
            remove(&with_end(&self.at(name)?, NEW))?;
        }
        self.step(before, "remove APT's wrapper")?;
        remove(&self.at(WRAPPER)?)
    }

    fn place(&self, name: &str, text: &str, mode: u32) -> Result<(), DivertError> {
        let path = self.at(name)?;
        // APT does not read the temporary file: only names without a dot or with the suffix `.conf`.
        let new = write_new(&path, mode, text.as_bytes())?;
        fs::rename(&new, &path).map_err(file(&path))
    }
}

/// Whether the helper is still needed.
pub(super) fn is_in_use(root: &Path) -> bool {
    within(root, Path::new(CONFIGURATION)).is_ok_and(|path| path.symlink_metadata().is_ok())
}
