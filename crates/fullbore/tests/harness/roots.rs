//! Package roots, compared entry by entry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use fullbore_testkit::digest::Digest;

/// What an entry is, apart from its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `file`, `directory`, `link`, …
    pub kind: &'static str,
    pub mode: u32,
    pub owner: (u32, u32),
    /// SHA-256 of a file, target of a link, numbers of a device.
    pub content: String,
    /// Names of the same inode, the first of them.
    pub linked: Option<String>,
    /// Extended attributes, as getfattr prints them.
    pub attributes: String,
    /// Seconds, of a regular file or a link.
    pub mtime: i64,
}

/// A root, by path.
pub type Root = BTreeMap<String, Entry>;

/// Reads a root.
pub fn read(root: &Path) -> Root {
    let mut entries = Root::new();
    let mut links: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    walk(root, root, &mut entries, &mut links);
    for names in links.values().filter(|names| names.len() > 1) {
        for name in names {
            entries.get_mut(name).unwrap().linked = Some(names[0].clone());
        }
    }
    for (path, attributes) in attributes(root) {
        if let Some(entry) = entries.get_mut(&path) {
            entry.attributes = attributes;
        }
    }
    entries
}

fn walk(root: &Path, directory: &Path, entries: &mut Root, links: &mut BTreeMap<u64, Vec<String>>) {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let status = path.symlink_metadata().unwrap();
        let kind = status.file_type();
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let (kind, content) = if kind.is_dir() {
            ("directory", String::new())
        } else if kind.is_symlink() {
            ("link", fs::read_link(&path).unwrap().to_string_lossy().into_owned())
        } else if kind.is_file() {
            ("file", format!("{:?}", Digest::of(&fs::read(&path).unwrap())))
        } else if kind.is_char_device() {
            ("character device", status.rdev().to_string())
        } else if kind.is_block_device() {
            ("block device", status.rdev().to_string())
        } else if kind.is_fifo() {
            ("pipe", String::new())
        } else {
            ("socket", String::new())
        };
        if kind == "file" && status.nlink() > 1 {
            links.entry(status.ino()).or_default().push(name.clone());
        }
        let entry = Entry {
            kind,
            mode: status.mode() & 0o7777,
            owner: (status.uid(), status.gid()),
            content,
            linked: None,
            attributes: String::new(),
            mtime: if matches!(kind, "file" | "link") { status.mtime() } else { 0 },
        };
        entries.insert(name, entry);
        if kind == "directory" {
            walk(root, &path, entries, links);
        }
    }
}

/// Of all entries that have any: file capabilities above all.
fn attributes(root: &Path) -> BTreeMap<String, String> {
    let mut command = fullbore_testkit::process::clean_command("getfattr");
    command.args(["--recursive", "--physical", "--dump", "--match=-", "--encoding=hex", "."]).current_dir(root);
    let output = command.output().expect("needs the package attr");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut found = BTreeMap::new();
    for block in text.split("\n\n") {
        if let Some((path, rest)) = block.trim().strip_prefix("# file: ").and_then(|block| block.split_once('\n')) {
            found.insert(path.to_owned(), rest.to_owned());
        }
    }
    found
}

/// A path, or all below one that ends with `/`, in which two roots may differ.
#[derive(Debug, Clone, Copy)]
pub struct Allowed {
    pub path: &'static str,
    /// What may differ.
    pub in_what: &'static [What],
    /// Why.
    pub reason: &'static str,
}

/// Records that every installation leaves: times, and numbers of the file system.
pub const ALLOWED_RECORDS: &[Allowed] = &[
    Allowed { path: "var/log/", in_what: &[What::Content], reason: "times of day; compared without them" },
    Allowed { path: "var/cache/ldconfig/aux-cache", in_what: &[What::Content], reason: "holds numbers of inodes" },
    Allowed { path: "var/lib/dpkg/status-old", in_what: &[What::Content], reason: "the state before dpkg's last step" },
    Allowed {
        path: "var/cache/apt/archives/",
        in_what: &[What::Owner, What::Mode],
        reason: "apt fetches as its own user, we as root",
    },
];

/// In what two entries differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Presence,
    Kind,
    Mode,
    Owner,
    Content,
    Links,
    Attributes,
    Mtime,
}

/// All differences that are not allowed, one line each.
pub fn differences(ours: &Root, theirs: &Root, packaged: &dyn Fn(&str) -> bool, allowed: &[Allowed]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut note = |path: &str, what: What, line: String| {
        let is_allowed = |allowed: &Allowed| {
            let fits = if allowed.path.ends_with('/') {
                path.starts_with(allowed.path) || path == allowed.path.trim_end_matches('/')
            } else {
                path == allowed.path
            };
            fits && allowed.in_what.contains(&what)
        };
        assert!(allowed.iter().all(|allowed| !allowed.reason.is_empty()));
        if !allowed.iter().any(is_allowed) {
            lines.push(format!("{path}: {what:?}: {line}"));
        }
    };
    for (path, entry) in ours {
        let Some(other) = theirs.get(path) else {
            note(path, What::Presence, "only ours".to_owned());
            continue;
        };
        let mut same = |what: What, is: bool, line: String| {
            if !is {
                note(path, what, line);
            }
        };
        same(What::Kind, entry.kind == other.kind, format!("{} and {}", entry.kind, other.kind));
        same(What::Mode, entry.mode == other.mode, format!("{:o} and {:o}", entry.mode, other.mode));
        same(What::Owner, entry.owner == other.owner, format!("{:?} and {:?}", entry.owner, other.owner));
        same(What::Content, entry.content == other.content, format!("{} and {}", entry.content, other.content));
        same(What::Links, entry.linked == other.linked, format!("{:?} and {:?}", entry.linked, other.linked));
        same(
            What::Attributes,
            entry.attributes == other.attributes,
            format!("{} and {}", entry.attributes, other.attributes),
        );
        let times = entry.mtime == other.mtime || !packaged(path);
        same(What::Mtime, times, format!("{} and {}", entry.mtime, other.mtime));
    }
    for path in theirs.keys().filter(|path| !ours.contains_key(*path)) {
        note(path, What::Presence, "only theirs".to_owned());
    }
    lines
}

/// Files and links that packages own and that no script has a reason to change, through the links of a merged /usr:
/// those of the md5sums, the conffiles (from the status file), and what is a link and in a list of files, where nothing is listed below it: that would be
/// a directory in the package, as /bin is before the merge.
pub fn packaged(root: &Path) -> BTreeSet<String> {
    let (mut paths, mut listed) = (BTreeSet::new(), BTreeSet::new());
    for entry in fs::read_dir(root.join("var/lib/dpkg/info")).unwrap() {
        let path = entry.unwrap().path();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("md5sums") => {
                let text = fs::read_to_string(&path).unwrap();
                paths.extend(text.lines().filter_map(|line| Some(merged(line.split_once("  ")?.1))));
            }
            Some("list") => {
                let text = fs::read_to_string(&path).unwrap();
                listed.extend(text.lines().map(|line| line.trim_start_matches('/').to_owned()));
            }
            _ => {}
        }
    }
    let status = fs::read_to_string(root.join("var/lib/dpkg/status")).unwrap();
    // ` PATH MD5`; those that a package has given up are marked.
    let conffiles = status.lines().filter(|line| line.starts_with(" /") && !line.ends_with("obsolete"));
    paths.extend(
        conffiles.map(|line| merged(line.trim_start_matches([' ', '/']).split(' ').next().unwrap_or_default())),
    );
    let is_directory = |name: &str| {
        let below = format!("{name}/");
        listed.range(below.clone()..).next().is_some_and(|next| next.starts_with(&below))
    };
    paths.extend(
        listed
            .iter()
            .filter(|name| !is_directory(name))
            .map(|name| merged(name))
            .filter(|name| root.join(name).is_symlink()),
    );
    paths
}

/// Where it is to be found.
fn merged(name: &str) -> String {
    match ["bin/", "sbin/", "lib/", "lib64/"].iter().find(|top| name.starts_with(**top)) {
        Some(_) => format!("usr/{name}"),
        None => name.to_owned(),
    }
}
