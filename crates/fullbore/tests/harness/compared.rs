//! Roots made by us and by mmdebstrap, and what is asked of them.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use tempfile::TempDir;

use super::packages::{Packages, packages, well};
use super::roots::{Allowed, What, differences, packaged, read};

/// In what a root of ours may differ from one that mmdebstrap has made of the same packages.
pub const ALLOWED: &[Allowed] = &[
    Allowed { path: "etc/ssh/", in_what: &[What::Content, What::Mtime], reason: "host keys are made at random" },
    Allowed {
        path: "etc/shadow",
        in_what: &[What::Content],
        reason: "holds the day, which may change between the runs",
    },
    Allowed { path: "etc/shadow-", in_what: &[What::Content], reason: "holds the day" },
    Allowed { path: "var/lock", in_what: &[What::Mtime], reason: "the postinst of base-files makes this link" },
    Allowed { path: "var/run", in_what: &[What::Mtime], reason: "likewise" },
];

/// The same where no package comes after the first ones: apt has installed nothing then.
pub const ALLOWED_WITHOUT_APT: &[Allowed] = &[
    Allowed {
        path: "var/cache/apt/archives/lock",
        in_what: &[What::Presence],
        reason: "made where apt fetches; we have fetched",
    },
    Allowed { path: "var/cache/apt/archives/partial", in_what: &[What::Presence], reason: "likewise" },
    Allowed {
        path: "var/lib/dpkg/status-old",
        in_what: &[What::Content],
        reason: "the state before dpkg's last step; mmdebstrap has dpkg unpack as well",
    },
];

pub fn fullbore() -> Command {
    assert!(rustix::process::geteuid().is_root(), "roots and mounts: run as root (script/test does)");
    clean_command(env!("CARGO_BIN_EXE_fullbore"))
}

/// A place for everybody, as apt's own user has to get at it.
pub fn place() -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

pub fn bootstrap(server: &Server, variant: &str, include: &[&str], target: &Path, more: &[&str]) -> Command {
    bootstrap_of(packages(), server, variant, include, target, more)
}

/// Of any archive.
pub fn bootstrap_of(
    archive: &Packages,
    server: &Server,
    variant: &str,
    include: &[&str],
    target: &Path,
    more: &[&str],
) -> Command {
    let mut command = fullbore();
    command.arg("bootstrap").args(["--variant", variant]).arg("--keyring").arg(&archive.key);
    if !include.is_empty() {
        command.arg("--include").arg(include.join(","));
    }
    command.args(more).arg(&archive.codename).arg(target).arg(server.url());
    command
}

/// What mmdebstrap makes of the same.
pub fn reference(server: &Server, variant: &str, include: &[&str], target: &Path) {
    reference_of(packages(), server, variant, include, target, &[]);
}

/// Of any archive, with options that mmdebstrap and we have in common.
pub fn reference_of(
    archive: &Packages,
    server: &Server,
    variant: &str,
    include: &[&str],
    target: &Path,
    more: &[&str],
) {
    let mut command = clean_command("mmdebstrap");
    command.arg(format!("--variant={variant}")).arg(format!("--keyring={}", archive.key.display()));
    if !include.is_empty() {
        command.arg(format!("--include={}", include.join(",")));
    }
    // Not to wait for its disk; the result is the same.
    command.args(["--mode=root", "--quiet", "--skip=check/signed-by", "--dpkgopt=force-unsafe-io"]).args(more);
    command.arg(&archive.codename).arg(target).arg(server.url());
    well(&mut command);
    let options = target.join("etc/dpkg/dpkg.cfg.d/99mmdebstrap");
    let text = fs::read_to_string(&options).unwrap().replace("force-unsafe-io\n", "");
    fs::remove_file(&options).unwrap();
    // Its own name for what the user wants.
    if !text.is_empty() {
        fs::write(options.with_file_name("99fullbore"), text).unwrap();
    }
    let options = target.join("etc/apt/apt.conf.d/99mmdebstrap");
    if options.exists() {
        fs::rename(&options, options.with_file_name("99fullbore")).unwrap();
    }
}

fn inside(root: &Path, words: &[&str]) -> String {
    let mut command = clean_command("chroot");
    command.arg(root).args(words);
    String::from_utf8_lossy(&well(&mut command).stdout).into_owned()
}

/// What `dpkg --verify` has to say: also files that `path-exclude` left out.
pub fn verify(root: &Path) -> BTreeSet<String> {
    inside(root, &["dpkg", "--verify"]).lines().map(str::to_owned).collect()
}

pub fn is_sound(root: &Path) {
    assert_eq!(verify(root), BTreeSet::new());
    is_consistent(root);
}

pub fn is_consistent(root: &Path) {
    assert_eq!(inside(root, &["dpkg", "--audit"]), "");
    if root.join("usr/bin/apt-get").exists() {
        inside(root, &["apt-get", "check"]);
    }
    assert!(!root.join(".fullbore-unfinished").exists());
}

pub fn same(ours: &Path, theirs: &Path, allowed: &[Allowed]) {
    let owned = packaged(theirs);
    let lines = differences(&read(ours), &read(theirs), &|path| owned.contains(path), allowed);
    assert!(lines.is_empty(), "{} differences:\n{}", lines.len(), lines.join("\n"));
}
