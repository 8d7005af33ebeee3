//! An APT that is the client of an odd archive.

use std::collections::BTreeSet;
use std::path::Path;

use fullbore_testkit::odd_archives::{OddArchive, Trust};

use super::harness::apt::Apt;

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
