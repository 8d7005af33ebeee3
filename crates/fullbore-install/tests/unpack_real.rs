//! Packages of Debian itself: the root that dpkg makes of them and ours, byte by byte.
//!
//! They come through apt once, from whichever suite this machine has, and stay below `target`.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fullbore_install::unpack::Archive;
use harness::*;

/// Small, and each with something of its own: links of directories and conffiles, `setuid`, triggers and who is
/// interested in them, `Multi-Arch: same`, diversions' programs, hundreds of links, terminals with odd names.
const PACKAGES: [&str; 10] = [
    "base-files",
    "debianutils",
    "dpkg",
    "libc-bin",
    "libcrypt1",
    "mount",
    "ncurses-base",
    "ncurses-term",
    "sed",
    "zlib1g",
];

/// The packages whose preinst does not have to run in a root that has no shell.
fn packages() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debs");
    fs::create_dir_all(&directory).unwrap();
    let here = || -> Vec<PathBuf> {
        let entries = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let mut debs: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "deb")).collect();
        debs.sort();
        debs
    };
    if here().len() < PACKAGES.len() {
        let output = Command::new("apt-get")
            .args(["-q", "-o", "APT::Sandbox::User=root", "download"])
            .args(PACKAGES)
            .current_dir(&directory)
            .output()
            .expect("apt-get does not run: this test needs Debian");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "apt-get download has to reach a Debian mirror once: {log}");
    }
    here().into_iter().filter(|deb| !Archive::open(deb).unwrap().has_preinst()).collect()
}

#[test]
fn packages_of_debian_unpack_as_by_dpkg() {
    let debs = packages();
    assert!(debs.len() > 6, "{debs:?}");
    for reversed in [false, true] {
        let mut debs = debs.clone();
        if reversed {
            debs.reverse();
        }
        let (dpkgs, ours) = (empty_root(), empty_root());
        dpkg_unpack(dpkgs.path(), &debs, &[]).expect("dpkg unpacks");
        our_unpack(ours.path(), &debs);
        assert_same(dpkgs.path(), ours.path(), &[]);
    }
}

/// One after the other into a root where all before are configured, as far as the status file goes:
/// then triggers are set off.
#[test]
fn packages_of_debian_unpack_one_by_one_as_by_dpkg() {
    let (dpkgs, ours) = (empty_root(), empty_root());
    for deb in packages() {
        dpkg_unpack(dpkgs.path(), std::slice::from_ref(&deb), &[]).expect("dpkg unpacks");
        our_unpack(ours.path(), std::slice::from_ref(&deb));
        let mut both = Vec::new();
        for root in [&dpkgs, &ours] {
            let status = root.path().join("var/lib/dpkg/status");
            let text = fs::read_to_string(&status).unwrap();
            fs::write(status, text.replace("ok unpacked", "ok installed")).unwrap();
            both.push(text);
        }
        assert_eq!(both[0], both[1], "{}", deb.display());
    }
    assert_same(dpkgs.path(), ours.path(), &[]);
}
