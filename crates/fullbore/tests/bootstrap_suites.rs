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
use harness::compared::{
    ALLOWED, ALLOWED_WITHOUT_APT, bootstrap_of, installed_as_by_apt, is_sound, place, reference_of, same,
};
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
    Allowed {
        path: STATUS_BEFORE,
        in_what: &[What::Content],
        reason: "names of pending triggers are in the order of unpacking; compared sorted",
    },
    Allowed { path: "etc/ssl/certs/", in_what: &[What::Content], reason: "ssl-cert makes a key at random" },
    Allowed { path: "etc/ssl/private/", in_what: &[What::Content], reason: "likewise" },
    Allowed {
        path: "etc/fonts/conf.d/",
        in_what: &[What::Mtime],
        reason: "the postinst of fontconfig-config makes these links",
    },
    Allowed {
        path: "usr/share/dict/words",
        in_what: &[What::Mtime],
        reason: "that of dictionaries-common sets it anew",
    },
    Allowed { path: "var/cache/fontconfig/", in_what: &[What::Content], reason: "holds times of directories" },
];

/// After an installation; a new root has none.
const MACHINE_IDS: &[Allowed] = &[
    Allowed { path: "etc/machine-id", in_what: &[What::Content], reason: "the postinst of dbus makes it at random" },
    Allowed { path: "var/lib/dbus/machine-id", in_what: &[What::Content], reason: "likewise" },
];

const TRIGGERS: &str = "var/lib/dpkg/triggers/File";
const STATUS_BEFORE: &str = "var/lib/dpkg/status-old";

fn wanted() -> Vec<&'static str> {
    [&["?essential", "?priority(required)", "?priority(important)", "?priority(standard)", "apt"], MORE, DESKTOP]
        .concat()
}

fn compare(archive: &Packages, variant: &str, include: &[&str], allowed: &[Allowed]) -> usize {
    let (dir, server) = (place(), archive.serve());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let of = ["--arch", archive.architecture];
    well(&mut bootstrap_of(archive, &server, variant, include, &ours, &of));
    reference_of(archive, &server, variant, include, &theirs, &of);
    same(&ours, &theirs, &[ALLOWED, ALLOWED_OF_SUITES, allowed].concat());
    assert_eq!(triggers(&ours), triggers(&theirs));
    if !allowed.iter().any(|allowed| allowed.path == STATUS_BEFORE) {
        assert!(status_before(&ours) == status_before(&theirs), "{STATUS_BEFORE} differs");
    }
    is_sound(&ours);
    sums_hold(&ours);
    let list =
        well(clean_command("dpkg-query").arg(format!("--admindir={}/var/lib/dpkg", ours.display())).arg("--show"));
    list.stdout.split(|byte| *byte == b'\n').count() - 1
}

/// Into the smallest root of ours that has an apt, by us and by apt.
fn installs(archive: &Packages, names: &[&str]) {
    let (dir, server) = (place(), archive.serve());
    let root = dir.path().join("ours");
    // Not of every release has minbase an apt.
    well(&mut bootstrap_of(archive, &server, "apt", &[], &root, &[]));
    installed_as_by_apt(archive, &root, names, &[ALLOWED_OF_SUITES, MACHINE_IDS].concat());
}

fn triggers(root: &Path) -> BTreeSet<String> {
    fs::read_to_string(root.join(TRIGGERS)).unwrap().lines().map(str::to_owned).collect()
}

/// Lines, with triggers that are pending sorted.
fn status_before(root: &Path) -> Vec<String> {
    let sorted = |line: &str| match line.strip_prefix("Triggers-Pending: ") {
        Some(names) => format!("Triggers-Pending: {:?}", names.split(' ').collect::<BTreeSet<_>>()),
        None => line.to_owned(),
    };
    fs::read_to_string(root.join(STATUS_BEFORE)).unwrap().lines().map(sorted).collect()
}

fn sums_hold(root: &Path) {
    let output = well(clean_command("debsums").args(["--silent", "--root"]).arg(root));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b""[..], &b""[..]));
}

/// The sets of packages, of one release: `script/test-long sid::` runs those of one, `::desktop` those of all.
macro_rules! sets {
    ($release:ident) => {
        mod $release {
            use super::*;

            const RELEASE: &str = stringify!($release);

            #[test]
            #[ignore = "long"]
            fn minbase_roots_equal_those_of_mmdebstrap() {
                compare(&archive(Some(RELEASE), "amd64", &wanted()), "minbase", &[], &[]);
            }

            #[test]
            #[ignore = "long"]
            fn server_roots_equal_those_of_mmdebstrap() {
                compare(&archive(Some(RELEASE), "amd64", &wanted()), "apt", MORE, &[]);
            }

            #[test]
            #[ignore = "long"]
            fn desktop_roots_equal_those_of_mmdebstrap() {
                let count = compare(&archive(Some(RELEASE), "amd64", &wanted()), "minbase", DESKTOP, &[]);
                assert!(count >= DESKTOP_PACKAGES_MIN, "{count} packages");
            }

            #[test]
            #[ignore = "long"]
            fn installed_packages_equal_those_of_apt() {
                installs(&archive(Some(RELEASE), "amd64", &wanted()), DESKTOP);
            }
        }
    };
}

sets!(bookworm);
sets!(trixie);
sets!(sid);

/// Of 32 bits, on a machine of 64.
mod i386 {
    use super::*;

    #[test]
    #[ignore = "long"]
    fn minbase_roots_equal_those_of_mmdebstrap() {
        let wanted = ["?essential", "?priority(required)", "apt"];
        compare(&archive(Some("bookworm"), "i386", &wanted), "minbase", &[], &[]);
    }
}

/// minbase is above.
mod variant {
    use super::*;

    fn of(variant: &str, include: &[&str], allowed: &[Allowed]) {
        compare(&archive(Some("bookworm"), "amd64", &wanted()), variant, include, allowed);
    }

    #[test]
    #[ignore = "long"]
    fn essential_roots_equal_those_of_mmdebstrap() {
        of("essential", &[], ALLOWED_WITHOUT_APT);
    }

    #[test]
    #[ignore = "long"]
    fn apt_roots_equal_those_of_mmdebstrap() {
        of("apt", &[], ALLOWED_WITHOUT_APT);
    }

    #[test]
    #[ignore = "long"]
    fn required_roots_equal_those_of_mmdebstrap() {
        of("required", &[], &[]);
    }

    #[test]
    #[ignore = "long"]
    fn important_roots_equal_those_of_mmdebstrap() {
        of("important", &[], &[]);
    }

    #[test]
    #[ignore = "long"]
    fn buildd_roots_equal_those_of_mmdebstrap() {
        of("buildd", &[], &[]);
    }

    #[test]
    #[ignore = "long"]
    fn standard_roots_equal_those_of_mmdebstrap() {
        of("standard", &[], &[]);
    }

    #[test]
    #[ignore = "long"]
    fn custom_roots_equal_those_of_mmdebstrap() {
        of("custom", &["?essential"], ALLOWED_WITHOUT_APT);
    }
}
