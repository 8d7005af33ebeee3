//! An APT that is the client of an odd archive.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fullbore_testkit::odd_archives::{OddArchive, Trust};
use fullbore_testkit::server::Server;

use super::harness::apt::{Apt, passable};
use super::harness::signer;

/// Archives that are tried at the same time: two processors, and every step waits for processes and sockets.
const WORKERS: usize = 4;

/// An archive that is served, with a directory for its clients.
pub struct Served {
    pub directory: tempfile::TempDir,
    pub server: Server,
    pub key: PathBuf,
}

/// Writes and serves an archive.
pub fn serve(archive: &OddArchive) -> Served {
    let directory = passable();
    let place = directory.path().join("archive");
    archive.write(&place, &signer()).unwrap();
    let key = directory.path().join("key.gpg");
    std::fs::write(&key, signer().public_key().unwrap()).unwrap();
    let server = Server::start(place).unwrap();
    Served { directory, server, key }
}

/// Fails with what `differences` finds in any of them.
pub fn assert_no_differences<T: Sync>(cases: &[T], differences: impl Fn(&T) -> Vec<String> + Sync) {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let differences = differences(case);
                    found.lock().unwrap().extend(differences);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{} differences\n{}", found.len(), found.join("\n"));
}

/// An APT for one archive at this address.
pub fn apt_for(directory: &Path, archive: &OddArchive, url: &str, key: &Path) -> Apt {
    let apt = Apt::new(directory.to_owned(), url, key).option("APT::Sandbox::User", "root");
    std::fs::write(directory.join("etc/test.sources"), entry(archive, url, key)).unwrap();
    apt
}

/// The source of an archive at this address.
pub fn entry(archive: &OddArchive, url: &str, key: &Path) -> String {
    let trust = match archive.trust {
        Trust::Key => format!("Signed-By: {}", key.display()),
        Trust::Everything => "Trusted: yes".to_owned(),
    };
    let components = match archive.components {
        "" => String::new(),
        components => format!("Components: {components}\n"),
    };
    let OddArchive { suite, architectures, .. } = archive;
    format!("Types: deb\nURIs: {url}\nSuites: {suite}\n{components}Architectures: {architectures}\n{trust}\n")
}

/// The packages of these names that APT can fetch by its lists. The text of refusals is added.
pub fn download(apt: &Apt, names: &BTreeSet<String>, text: &mut String) -> BTreeSet<String> {
    let into = apt.directory.join("downloads");
    std::fs::create_dir_all(&into).unwrap();
    // APT fetches none of several packages if it does not know one of them.
    let mut known = names.clone();
    while !known.is_empty() {
        let output = apt.command("apt-get").arg("download").args(&known).current_dir(&into).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        text.push_str(&said);
        let is_unknown = |name: &String| {
            let after =
                |start: &str| said.lines().any(|line| line.strip_prefix(start).is_some_and(|rest| rest == name));
            after("E: Unable to locate package ")
                || said.contains(&format!("E: Can't find a source to download version '1.0' of '{name}:"))
        };
        let before = known.len();
        known.retain(|name| !is_unknown(name));
        if known.len() == before {
            break;
        }
    }
    let come = std::fs::read_dir(&into).unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    come.filter_map(|file| file.strip_suffix(".deb")?.split_once('_').map(|(name, _)| name.to_owned())).collect()
}
