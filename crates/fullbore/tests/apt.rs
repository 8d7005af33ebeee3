//! A real apt reads the mirror while it is updated a hundred times, and never meets an error.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use fullbore_testkit::archive::{Archive, ArchiveBuilder};
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use harness::{Mirror, need, need_verifier, signer};

/// As the issue has it.
const PUBLISHES: usize = 100;
/// Seconds between the dates of two states.
const STEP_S: i64 = 60;

/// An apt of its own: nothing of this machine's lists, caches and sources.
struct Apt {
    directory: PathBuf,
}

impl Apt {
    fn new(directory: PathBuf, source: &str, key: &Path) -> Apt {
        for part in ["lists/partial", "archives/partial", "etc/preferences.d", "etc/apt.conf.d"] {
            std::fs::create_dir_all(directory.join(part)).unwrap();
        }
        std::fs::write(directory.join("status"), "").unwrap();
        let entry = format!(
            "Types: deb\nURIs: {source}\nSuites: trixie\nComponents: main\nArchitectures: amd64\nSigned-By: {}\n",
            key.display()
        );
        std::fs::write(directory.join("etc/test.sources"), entry).unwrap();
        Apt { directory }
    }

    fn get(&self, arguments: &[&str]) -> Output {
        let mut command: Command = clean_command("apt-get");
        let at = |part: &str| self.directory.join(part).display().to_string();
        let options = [
            ("Dir::Etc::sourcelist", at("etc/test.sources")),
            ("Dir::Etc::sourceparts", "-".to_owned()),
            ("Dir::Etc::preferencesparts", at("etc/preferences.d")),
            ("Dir::State::lists", at("lists")),
            ("Dir::State::status", at("status")),
            ("Dir::State::extended_states", at("extended")),
            ("Dir::Cache::archives", at("archives")),
            ("Dir::Cache::pkgcache", String::new()),
            ("Dir::Cache::srcpkgcache", String::new()),
            ("APT::Architecture", "amd64".to_owned()),
            ("APT::Architectures", "amd64".to_owned()),
            ("APT::Sandbox::User", "root".to_owned()),
            ("Acquire::http::Proxy", "false".to_owned()),
            ("Acquire::Languages", "none".to_owned()),
            ("APT::Update::Error-Mode", "any".to_owned()),
            // Errors are what is looked for: nothing is tried twice.
            ("Acquire::Retries", "0".to_owned()),
            ("Debug::NoLocking", "true".to_owned()),
        ];
        for (name, value) in options {
            command.arg("-o").arg(format!("{name}={value}"));
        }
        command.env("LC_ALL", "C.UTF-8").arg("-y").args(arguments).output().unwrap()
    }

    /// One look of a client: update, then fetch these packages anew.
    fn look(&self, packages: &[String]) -> Result<(), String> {
        let check = |output: Output| {
            let text =
                [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
            let quiet =
                !text.lines().any(|line| line.starts_with("E:") || line.starts_with("W:") || line.starts_with("Err:"));
            if output.status.success() && quiet { Ok(()) } else { Err(text) }
        };
        check(self.get(&["update"]))?;
        for entry in std::fs::read_dir(self.directory.join("archives")).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                std::fs::remove_file(path).unwrap();
            }
        }
        let mut arguments = vec!["install", "--download-only"];
        arguments.extend(packages.iter().map(String::as_str));
        check(self.get(&arguments))
    }
}

/// Two states of an archive, a mirror of the first one, and an apt that has the mirror for its source.
struct World {
    archive: Archive,
    origin: Server,
    mirror: Mirror,
    served: Server,
    apt: Apt,
}

impl World {
    fn new(directory: &Path) -> World {
        let archive = ArchiveBuilder::tiny(directory.join("archive"))
            .signer(signer())
            .installable(true)
            .odd_names(false)
            .states(2)
            .churn(0.9)
            .build()
            .unwrap();
        let origin = Server::start(&archive.state(0).root).unwrap();
        let mirror = Mirror::new(&archive);
        mirror.run(&[&origin]).exits(0);
        let served = Server::start(&mirror.to).unwrap();
        let apt = Apt::new(directory.join("apt"), &served.url(), &archive.key());
        World { archive, origin, mirror, served, apt }
    }
}

/// What apt has of an older state names packages that the new one does not.
#[test]
fn a_client_with_the_previous_inrelease_still_installs_removed_packages() {
    need("apt-get", "apt");
    let directory = tempfile::tempdir().unwrap();
    let World { archive, origin, mirror, served: _served, apt } = World::new(directory.path());
    let ended_well = |output: Output| assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ended_well(apt.get(&["update"]));
    origin.switch_root(&archive.state(1).root);
    mirror.run(&[&origin]).exits(0);
    let index = archive.forge(0, "trixie").index("main/binary-amd64/Packages").unwrap();
    let gone: Vec<String> = index
        .split("\n\n")
        .filter_map(|stanza| {
            let field = |name: &str| stanza.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            let (name, path) = (field("Package: ")?, field("Filename: ")?);
            archive.state(1).files.iter().all(|file| file.path != path).then_some(name)
        })
        .take(3)
        .collect();
    assert!(!gone.is_empty(), "the test needs a package that only the old state names");
    let mut arguments = vec!["install", "--download-only"];
    arguments.extend(gone.iter().map(String::as_str));
    ended_well(apt.get(&arguments));
    let debs = std::fs::read_dir(apt.directory.join("archives")).unwrap();
    let debs = debs.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|ending| ending == "deb"));
    assert!(debs.count() >= gone.len());
}

#[test]
fn apt_meets_no_error_during_a_hundred_publishes() {
    need("apt-get", "apt");
    need_verifier();
    let directory = tempfile::tempdir().unwrap();
    let World { archive, origin, mirror, served: _served, apt } = World::new(directory.path());
    let packages: Vec<String> = archive
        .forge(0, "trixie")
        .index("main/binary-amd64/Packages")
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("Package: ").map(str::to_owned))
        .take(3)
        .collect();
    assert!(!packages.is_empty());
    let over = AtomicBool::new(false);
    let (looks, errors) = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (mut looks, mut errors) = (0, Vec::new());
            while !over.load(Ordering::Relaxed) {
                errors.extend(apt.look(&packages).err());
                looks += 1;
            }
            (looks, errors)
        });
        // Back and forth between two contents, the date always later.
        for number in 1..=PUBLISHES {
            let state = number % 2;
            let forge = archive.forge(state, "trixie");
            let days =
                archive.state(state).date_unix_s - (archive.state(0).date_unix_s + (1 << 20) + number as i64 * STEP_S);
            forge.older_by_s(days).unwrap();
            origin.change(|behaviour| behaviour.validators = false);
            origin.switch_root(&archive.state(state).root);
            let ran = mirror.run(&[&origin]);
            if ran.code != Some(0) {
                over.store(true, Ordering::Relaxed);
                panic!("publish {number}: {ran:?}");
            }
        }
        over.store(true, Ordering::Relaxed);
        client.join().unwrap()
    });
    assert!(errors.is_empty(), "{} of {looks} looks failed, the first:\n{}", errors.len(), errors[0]);
    assert!(looks >= 5, "only {looks} looks in {PUBLISHES} publishes");
    apt.look(&packages).unwrap();
}
