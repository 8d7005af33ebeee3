//! The systemd units of the package: systemd understands every line, and services have few rights.

use std::path::{Path, PathBuf};

use fullbore_testkit::process::clean_command;

use super::{assets, need};

/// Highest exposure that a service may have, in tenths of the points that `systemd-analyze security` counts from 0 to 10.
/// Both services need the network, which is most of it.
const EXPOSURE_TENTHS_MAX: u32 = 17;

/// The package's units as instances, in `directory`, with a program that exists on this machine.
fn units(directory: &Path) -> Vec<PathBuf> {
    let of_units = |path: &Path| path.starts_with("usr/lib/systemd/system");
    let mut units = Vec::new();
    for asset in assets().into_iter().filter(|asset| of_units(&asset.target)) {
        let text = std::fs::read_to_string(&asset.source).unwrap();
        let text =
            text.replace("ExecStart=/usr/bin/fullbore ", concat!("ExecStart=", env!("CARGO_BIN_EXE_fullbore"), " "));
        let name = asset.target.file_name().unwrap().to_str().unwrap();
        std::fs::write(directory.join(name), text).unwrap();
        units.push(directory.join(name.replace('@', "@debian")));
    }
    assert!(units.len() >= 3, "{units:?}");
    units
}

/// What `systemd-analyze verify` complains about.
fn complaints(unit: &Path) -> String {
    let mut command = clean_command("systemd-analyze");
    let ran = command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(unit).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success() || !said.is_empty(), "{ran:?}");
    said
}

#[test]
fn systemd_understands_the_units() {
    need("systemd-analyze", "systemd");
    let directory = tempfile::tempdir().unwrap();
    for unit in units(directory.path()) {
        assert_eq!(complaints(&unit), "", "{}", unit.display());
    }
    // A misspelt line is noticed.
    let template = directory.path().join("fullbore-work@.service");
    let text = std::fs::read_to_string(&template).unwrap();
    std::fs::write(&template, text.replace("PrivateMounts=", "PrivateMount=")).unwrap();
    let said = complaints(&directory.path().join("fullbore-work@debian.service"));
    assert!(said.contains("PrivateMount'"), "{said}");
}

#[test]
fn services_have_few_rights() {
    need("systemd-analyze", "systemd");
    let directory = tempfile::tempdir().unwrap();
    let exposure = |unit: &Path, limit: u32| {
        let mut command = clean_command("systemd-analyze");
        // The threshold is in tenths.
        command.args(["security", "--offline=true", "--no-pager", &format!("--threshold={limit}")]).arg(unit);
        command.output().unwrap()
    };
    let services: Vec<_> =
        units(directory.path()).into_iter().filter(|unit| unit.extension().unwrap() == "service").collect();
    assert!(services.len() >= 2, "{services:?}");
    for unit in services {
        let ran = exposure(&unit, EXPOSURE_TENTHS_MAX);
        assert!(ran.status.success(), "{}: {}", unit.display(), String::from_utf8_lossy(&ran.stdout));
        assert!(!exposure(&unit, 0).status.success(), "no service has no rights at all");
    }
}
