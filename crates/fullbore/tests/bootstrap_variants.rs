//! `fullbore bootstrap` called as mmdebstrap is called: variants, options, formats. The large variants and other releases are
//! in `bootstrap_suites`.

#![allow(clippy::unwrap_used)]

mod harness {
    pub mod compared;
    pub mod packages;
    pub mod roots;
}

use std::fs;
use std::path::Path;

use fullbore_testkit::process::clean_command;
use harness::compared::{
    ALLOWED, ALLOWED_WITHOUT_APT, bootstrap, fullbore, is_consistent, is_sound, place, reference, reference_of, same,
    verify,
};
use harness::packages::{UNDECIDED, UNDECIDED_NEEDS, packages, well};

/// Nothing of the documentation, but what the law wants: as in Debian's own images for containers.
const SLIM: &[&str] = &[
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--aptopt=APT::Install-Suggests \"false\"",
    "--components=main",
];

#[test]
fn packages_of_priority_important_with_options_for_apt_and_dpkg_are_mmdebstraps() {
    let (dir, server) = (place(), packages().serve());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    well(&mut bootstrap(&server, "important", &[], &ours, SLIM));
    reference_of(packages(), &server, "important", &[], &theirs, SLIM);
    same(&ours, &theirs, ALLOWED);
    is_consistent(&ours);
    assert!(verify(&ours) == verify(&theirs), "dpkg misses other files than with mmdebstrap");
    let option = fs::read_to_string(ours.join("etc/dpkg/dpkg.cfg.d/99fullbore")).unwrap();
    assert!(option.starts_with("path-exclude="), "{option}");
}

#[test]
fn a_root_of_a_pattern_is_mmdebstraps() {
    let (dir, server) = (place(), packages().serve());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    // A pattern of apt's, which may mean any package: apt is shown everything.
    let include = ["?essential"];
    well(&mut bootstrap(&server, "custom", &include, &ours, &[]));
    reference(&server, "custom", &include, &theirs);
    same(&ours, &theirs, &[ALLOWED, ALLOWED_WITHOUT_APT].concat());
    is_sound(&ours);
}

#[test]
fn a_squashfs_image_is_the_same_each_time() {
    let (dir, server) = (place(), packages().serve());
    let image = |name: &str| {
        let path = dir.path().join(name);
        let mut command = bootstrap(&server, "essential", &[], &path, &[]);
        well(command.env("SOURCE_DATE_EPOCH", "1700000000"));
        path
    };
    let (first, second) = (image("first.squashfs"), image("second.squashfs"));
    assert!(fs::read(&first).unwrap() == fs::read(second).unwrap(), "two images of the same packages differ");
    let root = dir.path().join("root");
    well(clean_command("unsquashfs").args(["-quiet", "-no-progress", "-dest"]).arg(&root).arg(first));
    is_sound(&root);
}

#[test]
fn a_signature_by_another_key_is_refused() {
    let (dir, server) = (place(), packages().serve());
    let root = dir.path().join("root");
    let mut command = fullbore();
    command.args([
        "bootstrap",
        "--variant",
        "essential",
        "--keyring",
        "/usr/share/keyrings/debian-archive-keyring.gpg",
    ]);
    let output = command.arg(&packages().codename).arg(&root).arg(server.url()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(root.join(".fullbore-unfinished").exists());
}

/// A source that only apt's own methods reach, and an index that is kept compressed: all is left to apt.
#[test]
fn sources_that_are_apts_alone_make_the_same_root() {
    let (dir, server) = (place(), packages().serve());
    let (ours, other) = (dir.path().join("ours"), dir.path().join("other"));
    well(&mut bootstrap(&server, "essential", &[], &ours, &[]));
    let archive = packages();
    let mut command = fullbore();
    command.args(["bootstrap", "--variant", "essential", "--aptopt", "Acquire::GzipIndexes true", "--keyring"]);
    command.arg(&archive.key).arg(&archive.codename).arg(&other);
    well(command.arg(format!("copy://{}", archive.served().display())));
    for root in [&ours, &other] {
        without_sources(root);
    }
    same(&ours, &other, ALLOWED);
}

/// apt breaks ties by the order of names, which is another one in a part of the archive: the whole decides.
#[test]
fn where_apt_decides_differently_with_all_packages_the_root_is_made_anew() {
    let (dir, server) = (place(), packages().serve());
    let root = dir.path().join("root");
    let output = well(&mut bootstrap(&server, "essential", &[UNDECIDED], &root, &[]));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("apt decides differently: starting over"), "{told}");
    is_sound(&root);
    let has = |name: &str| root.join(format!("var/lib/dpkg/info/{name}.list")).exists();
    assert!(has(UNDECIDED) && has(UNDECIDED_NEEDS) && !has("fullbore-test-c"));
}

fn without_sources(root: &Path) {
    fs::write(root.join("etc/apt/sources.list"), "").unwrap();
    let _ = fs::remove_file(root.join("etc/apt/apt.conf.d/99fullbore"));
}
