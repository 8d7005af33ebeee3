//! The real APT, `fullbore mirror` and `fullbore update` over archives with the oddities of real ones.
//!
//! The table (`odd_archives/table.rs`) has one line for each archive: how far APT gets, how far ours get, and the reason
//! of a difference. A mirror counts by the packages that APT gets from it. Nothing may be taken by ours that APT refuses
//! for its signature or hashes.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

#[path = "odd_archives/client.rs"]
mod client;
#[path = "odd_archives/runs.rs"]
mod runs;
#[path = "odd_archives/table.rs"]
mod table;

use std::collections::BTreeSet;
use std::path::Path;

use client::{Served, apt_for, assert_no_differences, download, entry, serve};
use fullbore_testkit::odd_archives::{self, OddArchive};
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use harness::apt::{Apt, FULLBORE};
use table::{Is, Line, TABLE};

/// What APT says where signatures, hashes or sizes are the reason. Nothing that it refuses so may be taken by ours.
const UNTRUSTED: &[&str] = &[
    "Hash Sum mismatch",
    "unexpected size",
    "Writing more data than expected",
    "is not signed",
    "no longer signed",
    "NO_PUBKEY",
    "BADSIG",
    "NOSPLIT",
    "NODATA",
    "Clearsigned file",
    "No Hash entry",
    "does not have a Release file",
    "Insufficient information",
    "The following signatures",
];

/// How a command ended, and the packages that a client gets by it.
struct Tried {
    code: i32,
    text: String,
    packages: BTreeSet<String>,
}

impl Tried {
    fn outcome(&self, names: &BTreeSet<String>) -> Is {
        match self.packages.len() {
            0 if names.is_empty() && self.code == 0 => Is::Whole,
            0 => Is::Refused,
            count if count == names.len() && self.code == 0 => Is::Whole,
            _ => Is::Part,
        }
    }
}

struct Observed {
    apt: Tried,
    mirror: Tried,
    update: Tried,
    names: BTreeSet<String>,
}

/// Whether a Release was published below this directory.
fn has_release(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    entries.map(|entry| entry.unwrap()).any(|entry| match entry.file_type().unwrap().is_dir() {
        true => has_release(&entry.path()),
        false => ["InRelease", "Release"].contains(&entry.file_name().to_str().unwrap()),
    })
}

fn by_apt(apt: &Apt, names: &BTreeSet<String>) -> Tried {
    let updated = apt.update(&[]);
    let mut text = updated.text;
    let packages = download(apt, names, &mut text);
    Tried { code: updated.code.unwrap(), text, packages }
}

fn ours(apt: &Apt, arguments: &[&str]) -> (i32, String) {
    let mut command = clean_command(FULLBORE);
    command.args(arguments).env("APT_CONFIG", apt.directory.join("etc/apt.conf")).env("LC_ALL", "C.UTF-8");
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.code().unwrap(), text)
}

fn observe(archive: &OddArchive, options: &[&str]) -> Observed {
    let Served { directory, server, key } = serve(archive);
    let at = |name: &str| directory.path().join(name);
    let names = archive.names();

    let apt = by_apt(&apt_for(&at("apt"), archive, &server.url(), &key), &names);

    let client = apt_for(&at("update"), archive, &server.url(), &key);
    let (code, mut text) = ours(&client, &["update"]);
    let has_index = client.lists().keys().any(|name| name.contains("_Packages"));
    let packages = if has_index { download(&client, &names, &mut text) } else { BTreeSet::new() };
    let update = Tried { code, text, packages };

    let sources = at("mirror.sources");
    std::fs::write(&sources, entry(archive, &server.url(), &key)).unwrap();
    let to = at("mirror");
    let mut arguments = vec!["mirror", "--sources", sources.to_str().unwrap(), "--to", to.to_str().unwrap()];
    arguments.extend(options);
    let (code, mut text) = ours(&client, &arguments);
    let mut packages = BTreeSet::new();
    // APT takes seconds to find out that there is nothing.
    if has_release(&to) {
        let mirror = Server::start(&to).unwrap();
        let published = by_apt(&apt_for(&at("of-the-mirror"), archive, &mirror.url(), &key), &names);
        text.push_str(&published.text);
        packages = published.packages;
    }
    let mirror = Tried { code, text, packages };
    Observed { apt, mirror, update, names }
}

/// Everything that differs from the table.
fn differences(line: &Line, observed: &Observed) -> Vec<String> {
    let Observed { apt, mirror, update, names } = observed;
    let mut found = Vec::new();
    for (who, tried, expected) in
        [("apt", apt, line.apt), ("mirror", mirror, line.mirror), ("update", update, line.update)]
    {
        let outcome = tried.outcome(names);
        if outcome != expected {
            found.push(format!("{}: {who} {outcome:?}, the table says {expected:?}\n{}", line.name, tried.text));
        }
        let more: Vec<&String> = tried.packages.difference(&apt.packages).collect();
        if !more.is_empty() && UNTRUSTED.iter().any(|text| apt.text.contains(text)) {
            found.push(format!("{}: {who} takes what APT refuses: {more:?}\n{}", line.name, apt.text));
        }
    }
    // Ours end well if a client gets from them what it gets from the archive, with 2 if something is left out of that.
    for (who, tried) in [("mirror", mirror), ("update", update)] {
        let is_all = apt.packages.is_subset(&tried.packages);
        let fits = match tried.outcome(names) {
            Is::Whole => tried.code == 0,
            Is::Part => tried.code == 2 || (tried.code == 0 && is_all),
            Is::Refused => tried.code != 0 || is_all,
        };
        if !fits {
            found.push(format!("{}: {who} exits {}\n{}", line.name, tried.code, tried.text));
        }
    }
    if (line.mirror != line.apt || line.update != line.apt) == line.why.is_empty() {
        found.push(format!("{}: a difference needs a reason, and a reason a difference", line.name));
    }
    found
}

#[test]
fn apt_and_ours_agree_but_for_the_differences_of_the_table() {
    let archives = odd_archives::all();
    let known: BTreeSet<&str> = archives.iter().map(|archive| archive.name).collect();
    assert_eq!(known.len(), archives.len(), "a name twice");
    assert_eq!(known, TABLE.iter().map(|line| line.name).collect(), "the table has a line for each archive");
    assert_no_differences(TABLE, |line| {
        let archive = archives.iter().find(|archive| archive.name == line.name).unwrap();
        differences(line, &observe(archive, line.options))
    });
}
