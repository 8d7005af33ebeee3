//! Lists directories, as `fullbore update` left them and as a killed one did.

use std::fs;
use std::path::PathBuf;

use fullbore_testkit::server::Server;
use tempfile::TempDir;

use crate::harness::Ran;
use crate::{SITE, fullbore, plain, ran, unpack};

/// A lists directory of an older version with a configuration of apt for it, and its archive.
struct OldLists {
    directory: TempDir,
    server: Server,
}

impl OldLists {
    fn new(lists: &str, state: usize) -> OldLists {
        let directory = tempfile::tempdir().unwrap();
        unpack("archive", &directory.path().join("archive"));
        unpack(lists, &directory.path().join("lists"));
        let server = Server::start(directory.path().join(format!("archive/T{state}"))).unwrap();
        let here = directory.path().display();
        let sources = format!(
            "Types: deb deb-src\nURIs: {SITE}\nSuites: sid\nComponents: main\nSigned-By: {here}/archive/key.gpg\n"
        );
        let configuration = format!(
            "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/nonexistent\";\nDir::Etc::sourcelist \"{here}/a.sources\";\n\
             Dir::Etc::sourceparts \"-\";\nDir::State::lists \"{here}/lists\";\nDir::State::status \"{here}/status\";\n\
             Dir::Cache::archives \"{here}\";\nDir::Cache::pkgcache \"\";\nDir::Cache::srcpkgcache \"\";\n\
             APT::Architecture \"amd64\";\nAPT::Architectures \"amd64\";\nAPT::Sandbox::User \"root\";\n\
             Acquire::http::Proxy \"{}\";\nAcquire::Retries \"0\";\n",
            server.url()
        );
        for (name, text) in [("a.sources", &sources), ("apt.conf", &configuration), ("status", &String::new())] {
            fs::write(directory.path().join(name), text).unwrap();
        }
        OldLists { directory, server }
    }

    fn at(&self, part: &str) -> PathBuf {
        self.directory.path().join(part)
    }

    fn update(&self, more: &[&str]) -> Ran {
        let mut command = fullbore();
        command.arg("update").args(more).env("APT_CONFIG", self.at("apt.conf"));
        ran(&mut command, &self.at("report.json"))
    }

    /// Panics unless the lists are those of a state, and nothing is left in `partial/`.
    #[track_caller]
    fn is(&self, state: usize) {
        let archive = self.at(&format!("archive/T{state}/dists/sid"));
        let list = |name: &str| fs::read(self.at(&format!("lists/archive.example_dists_sid_{name}"))).unwrap();
        assert!(list("InRelease") == fs::read(archive.join("InRelease")).unwrap());
        for (name, path) in [("binary-amd64_Packages", "binary-amd64/Packages"), ("source_Sources", "source/Sources")] {
            assert!(list(&format!("main_{name}")) == plain(&archive.join(format!("main/{path}.xz"))), "{name}");
        }
        assert_eq!(fs::read_dir(self.at("lists/partial")).unwrap().count(), 0);
    }
}

#[test]
fn lists_that_are_current_cost_one_request() {
    let place = OldLists::new("lists", 0);
    place.update(&["--changed-exit"]).exits(10);
    let log = place.server.take_log();
    assert_eq!((log.len(), log[0].status), (1, 304), "{log:?}");
    place.is(0);
}

#[test]
fn lists_are_brought_to_the_next_state_by_patches() {
    for lists in ["lists", "lists-unfinished"] {
        let place = OldLists::new(lists, 1);
        let unfinished = fs::read_dir(place.at("lists/partial")).unwrap().count() > 0;
        assert_eq!(unfinished, lists == "lists-unfinished", "the fixture is in order");
        place.update(&[]).exits(0);
        let log = place.server.take_log();
        let (patches, others): (Vec<_>, Vec<_>) = log.iter().partition(|entry| entry.path.contains(".diff/"));
        assert_eq!(
            others.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(),
            ["/dists/sid/InRelease"],
            "{lists}"
        );
        assert!(patches.len() >= 2, "{lists}: {patches:?}");
        place.is(1);
        place.update(&["--changed-exit"]).exits(10);
    }
}
