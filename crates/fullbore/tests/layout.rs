//! Which crates stand on which: arrows point down only, and whoever takes a library takes no more than it needs.
//!
//! What cargo would build is asked of cargo itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::process::Command;

/// For each library, the crates of this workspace that it may stand on, through others too.
const STANDS_ON: [(&str, &[&str]); 8] = [
    ("fullbore-digest", &[]),
    ("fullbore-engine", &["fullbore-digest"]),
    ("fullbore-debian", &["fullbore-digest"]),
    ("fullbore-wire", &["fullbore-digest", "fullbore-engine"]),
    ("fullbore-fleet", &["fullbore-debian", "fullbore-digest", "fullbore-engine", "fullbore-wire"]),
    ("fullbore-s3", &["fullbore-debian", "fullbore-digest", "fullbore-engine", "fullbore-fleet", "fullbore-wire"]),
    ("fullbore-lafs", &["fullbore-digest", "fullbore-engine", "fullbore-wire"]),
    ("fullbore-copy", &["fullbore-digest", "fullbore-engine", "fullbore-wire"]),
];

/// What belongs to the program alone: flags, and what is drawn on a terminal.
const OF_THE_PROGRAM: [&str; 5] = ["fullbore", "clap", "console", "indicatif", "tracing-subscriber"];

/// All packages that cargo builds for one, itself left out.
fn packages(of: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").expect("cargo runs the tests");
    let mut command = Command::new(cargo);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args(["tree", "--offline", "--package", of, "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{of}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != of).map(str::to_owned).collect()
}

#[test]
fn libraries_stand_only_on_what_is_below_them() {
    for (library, allowed) in STANDS_ON {
        let packages = packages(library);
        assert!(!packages.is_empty(), "{library}");
        for own in packages.iter().filter(|name| name.starts_with("fullbore-")) {
            assert!(allowed.contains(&own.as_str()), "{library} stands on {own}");
        }
    }
}

#[test]
fn no_library_has_flags_or_draws() {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut libraries = 0;
    for entry in std::fs::read_dir(crates).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if !name.starts_with("fullbore-") || name == "fullbore-testkit" || !entry.path().join("Cargo.toml").exists() {
            continue;
        }
        libraries += 1;
        let packages = packages(&name);
        for package in OF_THE_PROGRAM {
            assert!(!packages.contains(package), "{name} stands on {package}");
        }
    }
    assert!(libraries >= STANDS_ON.len(), "{libraries} libraries");
}

#[test]
fn formats_need_no_runtime_and_the_client_of_stores_no_grids() {
    let formats = packages("fullbore-debian");
    assert!(formats.contains("fullbore-digest"), "{formats:?}");
    for package in ["tokio", "rustls", "tracing"] {
        assert!(!formats.contains(package), "fullbore-debian stands on {package}");
    }
    let client = packages("fullbore-s3");
    assert!(client.contains("fullbore-wire"), "{client:?}");
    for package in ["fullbore-lafs", "fullbore-apt", "fullbore-mirror"] {
        assert!(!client.contains(package), "fullbore-s3 stands on {package}");
    }
}
