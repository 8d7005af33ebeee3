//! `fullbore bootstrap` of three releases of Debian, with hundreds of packages: equal to mmdebstrap's, and sound.
//!
//! Long, and a gigabyte is downloaded: these tests run when they are asked for, by `script/test-long`.

#![allow(clippy::unwrap_used)]

mod harness {
    pub mod compared;
    pub mod packages;
    pub mod roots;
}

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fullbore_testkit::process::clean_command;
use harness::compared::{ALLOWED, ALLOWED_WITHOUT_APT, bootstrap_of, is_sound, place, reference_of, same};
use harness::packages::{MORE, Packages, archive, well};
use harness::roots::{Allowed, What};

/// What a desktop has, without what is only recommended: more than 500 packages with the minimal ones.
const DESKTOP: &[&str] = &[
    "build-essential",
    "cups",
    "evince",
    "firefox-esr",
    "gimp",
    "lightdm",
    "network-manager",
    "python3-pandas",
    "python3-scipy",
    "xfce4",
    "xfce4-goodies",
];

const DESKTOP_PACKAGES_MIN: usize = 500;

/// In what these roots may differ besides.
const ALLOWED_OF_SUITES: &[Allowed] = &[
    Allowed {
        path: TRIGGERS,
        in_what: &[What::Content],
        reason: "lines are in the order of unpacking, which is apt's for us; compared sorted",
    },
    Allowed { path: "etc/ssl/certs/", in_what: &[What::Content], reason: "ssl-cert makes a key at random" },
    Allowed { path: "etc/ssl/private/", in_what: &[What::Content], reason: "likewise" },
];

const TRIGGERS: &str = "var/lib/dpkg/triggers/File";

fn wanted() -> Vec<&'static str> {
    [&["?essential", "?priority(required)", "?priority(important)", "?priority(standard)", "apt"], MORE, DESKTOP]
        .concat()
}

fn compare(archive: &Packages, variant: &str, include: &[&str], allowed: &[Allowed]) -> usize {
    let (dir, server) = (place(), archive.serve());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    well(&mut bootstrap_of(archive, &server, variant, include, &ours, &[]));
    reference_of(archive, &server, variant, include, &theirs, &[]);
    same(&ours, &theirs, &[ALLOWED, ALLOWED_OF_SUITES, allowed].concat());
    let triggers = |root: &Path| {
        let text = fs::read_to_string(root.join(TRIGGERS)).unwrap();
        text.lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    assert_eq!(triggers(&ours), triggers(&theirs));
    is_sound(&ours);
    sums_hold(&ours);
    let list =
        well(clean_command("dpkg-query").arg(format!("--admindir={}/var/lib/dpkg", ours.display())).arg("--show"));
    list.stdout.split(|byte| *byte == b'\n').count() - 1
}

fn sums_hold(root: &Path) {
    let output = well(clean_command("debsums").args(["--silent", "--root"]).arg(root));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b""[..], &b""[..]));
}

fn suite(release: &str) {
    let archive = archive(Some(release), &wanted());
    compare(&archive, "minbase", &[], &[]);
    compare(&archive, "apt", MORE, &[]);
    let count = compare(&archive, "minbase", DESKTOP, &[]);
    assert!(count >= DESKTOP_PACKAGES_MIN, "{count} packages");
}

#[test]
#[ignore = "long"]
fn bookworm() {
    suite("bookworm");
}

#[test]
#[ignore = "long"]
fn trixie() {
    suite("trixie");
}

#[test]
#[ignore = "long"]
fn sid() {
    suite("sid");
}

#[test]
#[ignore = "long"]
fn every_variant() {
    let archive = archive(Some("bookworm"), &wanted());
    for variant in ["essential", "apt", "required", "important", "buildd", "standard"] {
        compare(&archive, variant, &[], if variant == "essential" { ALLOWED_WITHOUT_APT } else { &[] });
    }
    compare(&archive, "custom", &["?essential"], ALLOWED_WITHOUT_APT);
}
