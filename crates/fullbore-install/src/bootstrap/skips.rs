//! The steps that `--skip` leaves out, with mmdebstrap's names.

use std::collections::BTreeSet;

/// All names. `cleanup/mmdebstrap/qemu` has no effect, because fullbore copies no qemu into the root.
const STEPS: [&str; 27] = [
    "check/empty",
    "check/qemu",
    "check/signed-by",
    "setup",
    "update",
    "chroot/mount",
    "chroot/mount/dev",
    "chroot/mount/proc",
    "chroot/mount/sys",
    "chroot/policy-rc.d",
    "chroot/start-stop-daemon",
    "essential/unlink",
    "cleanup",
    "cleanup/apt",
    "cleanup/apt/cache",
    "cleanup/apt/lists",
    "cleanup/dev",
    "cleanup/mmdebstrap",
    "cleanup/mmdebstrap/qemu",
    "cleanup/reproducible",
    "cleanup/run",
    "cleanup/tmp",
    "copy-in/mknod",
    "output/dev",
    "output/mknod",
    "sync-in/mknod",
    "tar-in/mknod",
];

/// Error for a name that is not a step of a bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownStep;

/// Set of steps that a bootstrap leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skips(BTreeSet<&'static str>);

impl Skips {
    /// Adds a step, or a group of steps.
    ///
    /// # Errors
    /// [`UnknownStep`] if no step has this name.
    pub fn add(&mut self, name: &str) -> Result<(), UnknownStep> {
        let step = STEPS.iter().find(|step| **step == name).ok_or(UnknownStep)?;
        self.0.insert(step);
        Ok(())
    }

    /// Whether a step, or a group that it belongs to, is left out.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|step| name.strip_prefix(step).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }

    /// The names, comma-separated, as a helper of a hook takes them.
    pub fn joined(&self) -> String {
        self.0.iter().copied().collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_covers_its_steps() {
        let mut skips = Skips::default();
        for name in ["cleanup/apt", "output/mknod"] {
            skips.add(name).unwrap();
        }
        assert!(skips.has("cleanup/apt/lists") && skips.has("cleanup/apt") && skips.has("output/mknod"));
        assert!(!skips.has("cleanup") && !skips.has("cleanup/tmp") && !skips.has("output/dev"));
        assert_eq!(skips.add("clean"), Err(UnknownStep));
        assert_eq!(skips.joined(), "cleanup/apt,output/mknod");
    }
}
