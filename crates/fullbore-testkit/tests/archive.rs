//! The archives the other tests stand on: signed, complete, repeatable, quickly made.

// A test that cannot set up its world has failed; a panic says so best.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use fullbore_testkit::{
    archive::{Archive, ArchiveBuilder, FileKind, SuiteSpec},
    compression::Form,
    digest::Digest,
    verify,
};

fn gpgv(archive: &Archive, signed: &Path) -> bool {
    let output = Command::new("gpgv").arg("--keyring").arg(archive.key()).arg(signed).output().unwrap();
    output.status.success()
}

/// Every file under a directory with its digest, but for what the key decides.
fn snapshot(root: &Path) -> BTreeMap<String, Digest> {
    let mut files = BTreeMap::new();
    verify::walk(root, &mut |path| {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        if !name.ends_with("Release.gpg") && !name.ends_with("InRelease") && name != "key.gpg" {
            files.insert(name, Digest::of_file(path).unwrap().0);
        }
    })
    .unwrap();
    files
}

#[test]
fn a_usual_archive_is_complete_and_is_quickly_made() {
    let directory = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let archive = ArchiveBuilder::new(directory.path()).build().unwrap();
    let took = start.elapsed();
    let state = archive.state(0);
    let files = state.select(|_| true);
    assert!(files.len() > 250, "{}", files.len());
    // Alone it takes less than two seconds; other tests and builds run beside this one.
    println!("{took:?} for {} files in two states", files.len());
    assert!(took < Duration::from_secs(120), "{took:?}");

    for state in &archive.states {
        assert_eq!(verify::files(&state.root, &state.select(|_| true)), []);
        for spec in &archive.settings().suites {
            let suite = state.root.join("dists").join(&spec.codename);
            assert!(gpgv(&archive, &suite.join("InRelease")));
            assert_eq!(
                fs::read(state.root.join("dists").join(&spec.suite).join("Release")).unwrap(),
                fs::read(suite.join("Release")).unwrap()
            );
        }
        for index in &state.indexes {
            let path = state.root.join("dists").join(&index.suite).join(&index.path);
            assert_eq!(path.exists(), index.present, "{}", path.display());
            if index.present {
                assert_eq!(Digest::of_file(&path).unwrap(), (index.sha256, index.size));
                let by_hash = path.with_file_name("by-hash").join("SHA256").join(index.sha256.to_string());
                assert!(by_hash.exists(), "{}", by_hash.display());
            }
        }
    }
    for kind in [FileKind::Source, FileKind::Deb, FileKind::Udeb, FileKind::Image] {
        assert!(files.values().any(|file| file.kind == kind), "{kind:?}");
    }
    assert!(files.keys().any(|path| path.contains(':') && path.contains('~') && path.contains('+')));
    assert!(files.values().any(|file| file.component == "contrib"));
}

#[test]
fn states_differ_a_little_and_keep_old_files_for_one_state() {
    let directory = tempfile::tempdir().unwrap();
    let archive = ArchiveBuilder::tiny(directory.path()).states(3).churn(0.3).build().unwrap();
    let names = |number: usize| archive.state(number).select(|_| true).into_keys().collect::<Vec<_>>();
    assert_ne!(names(0), names(1));
    assert!(names(1).iter().filter(|path| names(0).contains(path)).count() > 10);
    for path in names(0) {
        assert!(archive.state(1).root.join(path).exists(), "{path}");
    }
    for index in archive.state(0).indexes.iter().filter(|index| index.present) {
        let path = archive.state(2).root.join("dists").join(&index.suite).join(&index.path);
        assert!(path.with_file_name("by-hash").join("SHA256").join(index.sha256.to_string()).exists());
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let (a, b, c) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = ArchiveBuilder::tiny(a.path()).pdiffs(true).flat(true).build().unwrap();
    let signer = first.signer().clone();
    ArchiveBuilder::tiny(b.path()).pdiffs(true).flat(true).signer(signer.clone()).build().unwrap();
    ArchiveBuilder::tiny(c.path()).pdiffs(true).flat(true).signer(signer).seed(2).build().unwrap();
    assert_eq!(snapshot(a.path()), snapshot(b.path()));
    assert_ne!(snapshot(a.path()), snapshot(c.path()));
}

#[test]
fn switches_do_what_they_say() {
    let directory = tempfile::tempdir().unwrap();
    let archive = ArchiveBuilder::tiny(directory.path())
        .by_hash(false)
        .no_support_for_architecture_all(false)
        .forms(&[Form::Zst, Form::Bz2])
        .plain_present(true)
        .merged_pdiffs(true)
        .suites(vec![
            SuiteSpec::main("trixie", "stable"),
            SuiteSpec::security("trixie-security", "stable-security", 60),
        ])
        .states(3)
        .build()
        .unwrap();
    let state = archive.state(2);
    let suite = state.root.join("dists/trixie");
    assert!(!suite.join("main/binary-amd64/by-hash").exists());
    assert!(suite.join("main/binary-amd64/Packages").exists() && suite.join("main/binary-amd64/Packages.zst").exists());
    let packages = fs::read_to_string(suite.join("main/binary-amd64/Packages")).unwrap();
    assert!(!packages.contains("Architecture: all\n"));
    let index = fs::read_to_string(suite.join("main/binary-amd64/Packages.diff/Index")).unwrap();
    assert!(index.contains("X-Patch-Precedence: merged") && index.contains("T-2025-06-"), "{index}");
    let security = fs::read_to_string(state.root.join("dists/trixie-security/Release")).unwrap();
    assert!(security.contains("Valid-Until: Mon, 16 Jun 2025 03:07:40 UTC\n"), "{security}");
}

#[test]
fn forged_indexes_are_signed_or_not_as_meant() {
    let directory = tempfile::tempdir().unwrap();
    let archive = ArchiveBuilder::tiny(directory.path()).states(1).build().unwrap();
    let forge = archive.forge(0, "trixie");
    let signed = archive.state(0).root.join("dists/trixie/InRelease");
    let packages = forge.index("main/binary-amd64/Packages").unwrap();
    forge.set_index("main/binary-amd64/Packages", &packages.replace("Filename: pool/", "Filename: ../pool/")).unwrap();
    assert!(forge.index("main/binary-amd64/Packages").unwrap().contains("Filename: ../pool/"));
    assert!(gpgv(&archive, &signed));
    forge.valid_until(1_000_000_000).unwrap();
    assert!(forge.release().unwrap().contains("Valid-Until: Sun, 09 Sep 2001 01:46:40 UTC\n"));
    assert!(gpgv(&archive, &signed));
    forge.flip_signed_byte().unwrap();
    assert!(!gpgv(&archive, &signed));
}

#[test]
fn apt_installs_from_it() {
    assert!(Path::new("/usr/bin/apt-get").exists(), "apt-get is missing: this test needs Debian's package apt");
    let directory = tempfile::tempdir().unwrap();
    let archive = ArchiveBuilder::new(directory.path().join("archive"))
        .installable(true)
        .pdiffs(true)
        .flat(true)
        .build()
        .unwrap();
    let root = directory.path().join("apt");
    for sub in ["lists/partial", "cache/archives/partial", "etc", "trusted"] {
        fs::create_dir_all(root.join(sub)).unwrap();
    }
    fs::write(root.join("status"), "").unwrap();
    let served = directory.path().join("served");
    let apt = |arguments: &[&str]| {
        let output = Command::new("apt-get")
            .args(["-o", "APT::Architecture=amd64", "-o", "APT::Architectures=amd64", "-o", "Debug::NoLocking=1"])
            .args([
                "-o",
                "APT::Sandbox::User=root",
                "-o",
                "Acquire::Languages=en",
                "-o",
                "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=true",
            ])
            .arg("-o")
            .arg(format!("Dir::State={}", root.display()))
            .arg("-o")
            .arg(format!("Dir::State::status={}", root.join("status").display()))
            .arg("-o")
            .arg(format!("Dir::Cache={}", root.join("cache").display()))
            .arg("-o")
            .arg(format!("Dir::Etc={}", root.join("etc").display()))
            .args(arguments)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
        String::from_utf8_lossy(&said).into_owned()
    };
    let key = archive.key();
    let line = |suite: &str| format!("[signed-by={}] file:{} {suite}\n", key.display(), served.display());
    let list = format!(
        "deb {}deb {}deb-src {}deb [signed-by={}] file:{}/flat ./\n",
        line("trixie main contrib"),
        line("trixie-updates main"),
        line("stable main"),
        key.display(),
        served.display(),
    );
    fs::write(root.join("etc/sources.list"), list).unwrap();
    for number in [0, 1] {
        let _ = fs::remove_file(&served);
        std::os::unix::fs::symlink(&archive.state(number).root, &served).unwrap();
        let said = apt(&["update"]);
        assert!(!said.contains("W:") && !said.contains("E:"), "{said}");
        let packages = fs::read_to_string(archive.state(number).root.join("dists/trixie/main/i18n/Translation-en"));
        assert!(packages.is_err(), "the plain form is listed, not present");
        let file = archive.state(number).select(|file| {
            file.kind == FileKind::Deb
                && file.suite == "trixie"
                && file.component == "main"
                && file.architecture == "amd64"
        });
        let names: Vec<&str> =
            file.keys().filter_map(|path| path.rsplit('/').next()?.split('_').next()).take(5).collect();
        apt(&[&["install", "-y", "--download-only"], &names[..]].concat());
    }
}
