//! Detects whether services could be started: then the filter must not be set.
//!
//! A filter cannot be removed and survives exec. A daemon that a maintainer script starts would never sync again.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::thread::CapabilitySet;

/// Names of process 1 that manage services. `init` is that of System V and of busybox.
const SERVICE_MANAGERS: &[&str] =
    &["systemd", "init", "openrc-init", "runit", "runit-init", "s6-svscan", "s6-linux-init", "dinit", "shepherd"];

/// Exit status of a policy-rc.d that forbids the start.
const FORBIDDEN: i32 = 101;

/// Name of the service manager of this root, if services can be started.
///
/// `None` in a chroot, in a container without a service manager, if `policy-rc.d` denies starts, and for an
/// unprivileged user, who cannot start services of the system.
pub fn service_manager() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let name = fs::read_to_string("/proc/1/comm").ok()?.trim_end().to_owned();
    if !SERVICE_MANAGERS.contains(&name.as_str()) && !Path::new("/run/systemd/system").is_dir() {
        return None;
    }
    // If these are inaccessible, process 1 and its services are in another user namespace.
    let (theirs, ours) = (fs::metadata("/proc/1/root/").ok()?, fs::metadata("/").ok()?);
    let is_same_root = (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino());
    (is_same_root && !starts_are_denied(Path::new("/usr/sbin/policy-rc.d"))).then_some(name)
}

/// Asks like invoke-rc.d, for a service without an exception.
fn starts_are_denied(policy: &Path) -> bool {
    let mut command = Command::new(policy);
    command.args(["fullbore-nosync", "start"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.code() == Some(FORBIDDEN))
}

/// Whether this process may set a filter without giving up setuid rights.
pub(super) fn may_filter_with_privileges() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_ADMIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_denies_by_its_status() {
        let dir = tempfile::tempdir().unwrap();
        let policy = dir.path().join("policy-rc.d");
        assert!(!starts_are_denied(&policy));
        for (status, denied) in [(101, true), (0, false), (104, false)] {
            fullbore_testkit::process::write_program(&policy, &format!("#!/bin/sh\nexit {status}\n"));
            assert_eq!(starts_are_denied(&policy), denied);
        }
    }
}
