//! Settings files: one that a user wrote with every key there is, the package's example, and what `convert` wrote.

use std::fs;
use std::path::{Path, PathBuf};

use fullbore::cli::{self, Command};
use fullbore::settings::{Clean, Environment, IndexFormat, Kind, MirrorSettings, SignedBy, file, mirrors};
use fullbore_debian::keys::KeySource;
use tempfile::TempDir;

use crate::fixture_text;

/// A directory with the files that the settings name, and the settings file.
fn written(text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().to_str().unwrap();
    // A keyring is recognised by its first byte; whether the others are what they are named is found out in use.
    for (name, start) in [("key.gpg", &b"\x99"[..]), ("auth.conf", b""), ("ca.pem", b"")] {
        fs::write(directory.path().join(name), start).unwrap();
    }
    let sources = format!(
        "Types: deb\nURIs: http://packages.example.org/apt\nSuites: stable\nComponents: main\nSigned-By: {here}/key.gpg\n"
    );
    fs::write(directory.path().join("a.sources"), sources).unwrap();
    let path = directory.path().join("mirror.toml");
    fs::write(&path, text.replace("@/", &format!("{here}/"))).unwrap();
    (directory, path)
}

/// What the command makes of a settings file.
fn resolved(config: &Path, more: &[&str]) -> Vec<MirrorSettings> {
    let arguments =
        ["fullbore", "mirror", "--config", config.to_str().unwrap()].into_iter().chain(more.iter().copied());
    let Command::Mirror(arguments) = cli::parse(arguments).unwrap().command else { panic!("not mirror") };
    mirrors(*arguments, &Environment::default()).map_err(|error| error.message).unwrap().0
}

#[test]
fn every_key_means_what_it_meant() {
    let (directory, config) = written(&fixture_text("mirror.toml"));
    let key =
        SignedBy::Keys { keys: vec![KeySource::File(directory.path().join("key.gpg"))], fingerprints: Vec::new() };
    let mirrors = resolved(&config, &[]);
    let [debian, here, plain] = mirrors.as_slice() else { panic!("{mirrors:#?}") };

    assert_eq!((debian.name.as_deref(), debian.dir.as_path()), (Some("debian"), Path::new("/srv/mirror/debian")));
    assert_eq!(debian.origins, ["https://ftp.example.org/debian", "https://deb.example.org/debian"]);
    assert!(debian.origin_only && debian.ignore_valid_until && !debian.dry_run);
    let [first, sid, tools] = debian.sources.as_slice() else { panic!("{:#?}", debian.sources) };
    assert_eq!(
        (&*first.suites, &*first.components),
        (&["trixie", "trixie-updates"].map(String::from)[..], &["main", "contrib"].map(String::from)[..])
    );
    assert_eq!(first.architectures, ["amd64", "all"]);
    assert!(first.binaries && first.sources && first.signed_by == key);
    assert_eq!(
        (&*sid.suites, &*sid.components, &*sid.architectures),
        (&["sid".into()][..], &["main".into()][..], &["arm64".into()][..])
    );
    assert!(sid.binaries && !sid.sources && sid.signed_by == key);
    // The section's keyring is stronger than the word of its part.
    assert_eq!((&*tools.suites, &tools.signed_by), (&["tools/".into()][..], &key));
    let patterns =
        |filters: &[fullbore_mirror::Filter]| filters.iter().map(|one| one.0.to_string()).collect::<Vec<_>>();
    assert_eq!(patterns(&debian.filters.include), ["/hello_"]);
    assert_eq!(patterns(&debian.filters.exclude), ["-dbg_", "\\.udeb$"]);
    assert_eq!(debian.filters.sections, ["devel"]);
    assert_eq!(debian.filters.priorities, ["required", "important"]);
    assert_eq!(debian.filters.source_packages, ["hello", "glibc"]);
    assert_eq!(debian.filters.newest, Some(2));
    assert_eq!(debian.index_formats, [IndexFormat::Xz, IndexFormat::Gz]);
    assert_eq!(debian.without, [Kind::Contents, Kind::Installer]);
    assert_eq!(debian.languages, ["en", "de"]);
    assert_eq!(debian.snapshot.as_deref(), Some("weekly"));
    assert_eq!((debian.keep.clean, debian.keep.guard.forced), (Clean::Untracked, true));
    assert!((debian.keep.guard.share_max - 0.125).abs() < 1e-9, "{}", debian.keep.guard.share_max);
    assert_eq!((debian.keep.retention.generations, debian.keep.retention.hours), (7, 48));
    let network = &debian.network;
    assert_eq!((network.connections_per_host, network.limit_rate_bytes_per_s), (16, Some(512 << 10)));
    assert!(network.http1_only && !network.hedge);
    assert_eq!(network.auth_files, [directory.path().join("auth.conf")]);

    // What [defaults] says, each mirror that says nothing else has.
    for mirror in &mirrors {
        assert_eq!(mirror.durability, fullbore_engine::durability::Durability::Each);
        assert_eq!(mirror.trace_host.as_deref(), Some("mirror.example.org"));
        assert_eq!(mirror.trace_info, ["Maintainer: A B <a@example.org>", "Country: DE"]);
        assert_eq!(mirror.network.ca_file, Some(directory.path().join("ca.pem")));
    }
    for mirror in [here, plain] {
        assert_eq!((mirror.network.connections_per_host, mirror.network.limit_rate_bytes_per_s), (3, Some(20_000_000)));
        assert_eq!((mirror.keep.retention.generations, mirror.keep.retention.hours), (3, 24));
        assert!(!mirror.origin_only && !mirror.network.http1_only && mirror.network.hedge && mirror.snapshot.is_none());
        assert_eq!(mirror.origins, ["http://packages.example.org/apt"]);
        assert_eq!(mirror.sources[0].suites, ["stable"]);
    }
    assert_eq!(plain.dir, Path::new("/srv/mirror/plain"));
    assert_eq!((plain.keep.clean, &plain.sources[0].signed_by), (Clean::Nothing, &SignedBy::Trusted));
    assert!((plain.keep.guard.share_max - 0.05).abs() < 1e-9, "{}", plain.keep.guard.share_max);
    assert_eq!((here.keep.clean, &here.sources[0].signed_by), (Clean::Own, &key));
    assert_eq!(
        (here.dir.as_path(), &*here.sources[0].components),
        (Path::new("/srv/mirror/here"), &["main".into()][..])
    );
}

/// With its examples that are commented out, which users take the marks off.
#[test]
fn the_example_of_the_older_package_is_read() {
    let text = fixture_text("packaged-mirror.toml");
    let uncommented = |line: &str| {
        let setting = line.strip_prefix("# ").filter(|rest| {
            let key = rest.split(" = ").next().unwrap_or_default();
            rest.starts_with('[')
                || rest.contains(" = ") && key.chars().all(|letter| letter == '-' || letter.is_ascii_lowercase())
        });
        format!("{}\n", setting.unwrap_or(line))
    };
    // They stand behind the key that they belong to, but for this one of the defaults.
    let text: String = text.lines().map(uncommented).collect();
    let read = file::parse(&text).map_err(|error| format!("{error:?}\n{text}")).unwrap();
    assert_eq!(read.mirror.keys().collect::<Vec<_>>(), ["debian", "debian-security", "example", "here"]);
    assert_eq!(read.defaults.limit_rate.map(|rate| rate.0), Some(20_000_000));
    assert_eq!(read.mirror["example"].source.len(), 2);
}

#[test]
fn what_was_converted_from_other_programs_is_read() {
    let of = |name: &str| {
        let (directory, config) = written(&fixture_text(&format!("converted-{name}.toml")));
        let key = directory.path().join("key.gpg");
        let mut mirrors = resolved(&config, &["--keyring", key.to_str().unwrap()]);
        assert_eq!(mirrors.len(), 1, "{mirrors:#?}");
        mirrors.remove(0)
    };
    let apt_mirror = of("mirror.list");
    assert_eq!(apt_mirror.origins, ["http://deb.example.org/debian"]);
    assert_eq!(apt_mirror.dir, Path::new("/var/spool/apt-mirror/mirror/deb.example.org/debian"));
    assert_eq!(apt_mirror.network.limit_rate_bytes_per_s, Some(10_000 << 10));
    let sources: Vec<_> = apt_mirror.sources.iter().map(|source| (source.binaries, source.sources)).collect();
    assert_eq!(sources, [(true, false), (false, true)]);
    let debmirror = of("debmirror.conf");
    assert_eq!(
        (debmirror.origins[0].as_str(), debmirror.dir.as_path()),
        ("http://deb.example.org/debian", Path::new("/srv/mirror/debian"))
    );
    assert_eq!(debmirror.sources[0].suites, ["trixie", "trixie-updates"]);
    assert_eq!(debmirror.sources[0].architectures, ["amd64", "arm64", "all"]);
    assert!(
        debmirror.sources[0].sources
            && debmirror.without.contains(&Kind::Contents)
            && debmirror.without.contains(&Kind::Pdiff)
    );
    let ftpsync = of("ftpsync.conf");
    assert_eq!(
        (ftpsync.origins[0].as_str(), ftpsync.dir.as_path()),
        ("http://syncproxy.example.org/debian", Path::new("/srv/mirrors/debian"))
    );
    assert_eq!(ftpsync.trace_host.as_deref(), Some("ftp.example.org"));
    assert_eq!(ftpsync.network.limit_rate_bytes_per_s, Some(5000 << 10));
    assert!(ftpsync.sources[0].suites.iter().any(|suite| suite == "unstable"));
}
