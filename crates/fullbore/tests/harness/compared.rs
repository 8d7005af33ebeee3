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
use super::roots::{ALLOWED_RECORDS, Allowed, What, differences, packaged, read};

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
pub const ALLOWED_WITHOUT_APT: &[Allowed] = &[Allowed {
    path: "var/lib/dpkg/status-old",
    in_what: &[What::Content],
    reason: "the state before dpkg's last step; mmdebstrap has dpkg unpack as well",
}];

/// What else two installations by apt and by us may differ in.
pub const ALLOWED_OF_INSTALL: &[Allowed] = &[
    Allowed { path: "etc/ssh/", in_what: &[What::Content, What::Mtime], reason: "host keys are made at random" },
    Allowed {
        path: "var/cache/apt/pkgcache.bin",
        in_what: &[What::Content, What::Presence],
        reason: "holds times of files",
    },
    Allowed { path: "var/cache/apt/srcpkgcache.bin", in_what: &[What::Content, What::Presence], reason: "likewise" },
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
    command.env("DEBIAN_FRONTEND", "noninteractive").arg(root).args(words);
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

/// Installs packages into a root of ours, and by its apt into a copy that is made beside it, and compares the two.
pub fn installed_as_by_apt(archive: &Packages, ours: &Path, names: &[&str], allowed: &[Allowed]) {
    fs::copy(&archive.key, ours.join("etc/apt/trusted.gpg.d/test.gpg")).unwrap();
    fs::write(ours.join("etc/apt/apt.conf.d/test"), "APT::Install-Recommends false;\n").unwrap();
    fs::write(ours.join("usr/sbin/policy-rc.d"), "#!/bin/sh\nexit 101\n").unwrap();
    well(clean_command("chmod").arg("755").arg(ours.join("usr/sbin/policy-rc.d")));
    inside(ours, &["apt-get", "update"]);
    let copied = ours.with_file_name("copied");
    well(clean_command("cp").arg("--archive").arg(ours).arg(&copied));
    let mut command = fullbore();
    command.env("DEBIAN_FRONTEND", "noninteractive");
    well(command.args(["install", "--yes", "--root"]).arg(ours).args(names));
    inside(&copied, &[&["apt-get", "--yes", "install"], names].concat());
    same(ours, &copied, &[ALLOWED_RECORDS, ALLOWED_OF_INSTALL, allowed].concat());
    is_sound(ours);
    assert_eq!(inside(ours, &["apt-mark", "showauto"]), inside(&copied, &["apt-mark", "showauto"]));
    let history = |root: &Path| {
        let text = fs::read_to_string(root.join("var/log/apt/history.log")).unwrap();
        text.lines().filter(|line| !line.contains("-Date:")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(history(ours), history(&copied));
    // Without triggers, which dpkg may process at other moments: what it has unpacked by then may be more. Sorted and without
    // its starts: what is left to dpkg comes after the others of its batch.
    let log = |root: &Path| {
        let text = fs::read_to_string(root.join("var/log/dpkg.log")).unwrap();
        let lines = text.lines().map(|line| line.splitn(3, ' ').last().unwrap().to_owned());
        let mut lines: Vec<_> = lines.filter(|line| !line.contains("trig") && !line.starts_with("startup")).collect();
        lines.sort();
        lines
    };
    assert_eq!(log(ours), log(&copied));
}
