//! A mount of the root on itself, for runs whose namespaces are not as usual.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use fullbore_engine::run::error::CommandError;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::CapabilitySet;

use crate::settings::Namespaces;

/// A mount of the root on itself, if mounts in the root would otherwise be seen outside.
///
/// In a chroot whose `/` is not a mount point, a mount namespace of its own shares new mounts with the caller's.
#[derive(Debug)]
pub(super) struct OwnMount {
    root: PathBuf,
    is_mounted: Cell<bool>,
}

impl OwnMount {
    /// Mounts the root on itself if needed.
    ///
    /// # Errors
    /// `Disk` with the context `mount --bind` if the kernel refuses the mount or its propagation.
    pub(super) fn of(root: &Path, namespaces: Namespaces) -> Result<OwnMount, CommandError> {
        let own = OwnMount { root: root.to_owned(), is_mounted: Cell::new(false) };
        if namespaces == Namespaces::Shared {
            let failed =
                |error: rustix::io::Errno| CommandError::cannot("mount", root, &error.into()).context("mount --bind");
            rustix::mount::mount_bind(root, root).map_err(failed)?;
            own.is_mounted.set(true);
            rustix::mount::mount_change(root, MountPropagationFlags::PRIVATE).map_err(failed)?;
        }
        Ok(own)
    }

    /// Unmounts the root from itself, if it was mounted.
    pub(super) fn end(&self) {
        if self.is_mounted.replace(false) {
            // Nothing depends on it any more; it ends with the last process at the latest.
            let _ = rustix::mount::unmount(&self.root, UnmountFlags::DETACH);
        }
    }
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the user should know of a run in the namespaces of its caller.
pub(super) fn without_namespaces() -> String {
    let may_mount =
        rustix::thread::capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_ADMIN));
    let missing = if may_mount {
        "unshare(2) is denied, by a filter or a limit of the kernel"
    } else {
        "CAP_SYS_ADMIN is missing, so that unshare(2) is denied"
    };
    format!(
        "{missing}: without namespaces of its own, a killed run may leave processes and mounts, and maintainer scripts \
         see this machine's processes"
    )
}
