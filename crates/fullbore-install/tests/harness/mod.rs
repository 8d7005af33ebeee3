//! Roots, packages made by dpkg-deb, dpkg itself, and the comparison of two roots.

// Each test file uses its part.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fullbore_engine::durability::Durability;
use fullbore_install::Lock;
use fullbore_install::unpack::{Archive, Examined, Options, Root, Unpacked, examine, unpack};

/// Times in packages made here.
pub const LONG_AGO_S: u64 = 1_600_000_000;

/// An empty root as an installer leaves it before the first package.
pub fn empty_root() -> tempfile::TempDir {
    assert!(rustix::process::geteuid().is_root(), "unpacking sets owners and makes devices: this test needs root");
    // dpkg syncs each file of its database: in memory that costs nothing.
    let memory = Path::new("/dev/shm");
    let root = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let root = root.expect("a directory");
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    for directory in ["info", "updates", "triggers"] {
        fs::create_dir_all(root.path().join("var/lib/dpkg").join(directory)).expect("directories");
    }
    write(root.path(), "var/lib/dpkg/status", "");
    root
}

/// Lets a root know the names that dpkg, outside of it, takes from this machine.
pub fn copy_accounts(root: &Path) {
    fs::create_dir_all(root.join("etc")).expect("a directory");
    for file in ["passwd", "group"] {
        fs::copy(Path::new("/etc").join(file), root.join("etc").join(file)).expect("a file");
    }
}

pub fn write(directory: &Path, path: &str, content: &str) {
    let path = directory.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    fs::write(path, content).expect("a file");
}

/// A tree that becomes a package.
pub struct Tree {
    pub name: String,
    directory: tempfile::TempDir,
}

impl Tree {
    /// `fields` are further lines of the control file.
    pub fn new(name: &str, version: &str, fields: &str) -> Tree {
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        let architecture = if fields.contains("Architecture:") { "" } else { "Architecture: all\n" };
        let control = format!(
            "Package: {name}\nVersion: {version}\n{architecture}Maintainer: M <m@example.org>\n{fields}Description: {name}\n"
        );
        write(directory.path(), "DEBIAN/control", &control);
        Tree { name: name.to_owned(), directory }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn file(self, path: &str, content: &str) -> Tree {
        write(self.path(), path, content);
        self
    }

    pub fn mode(self, path: &str, mode: u32) -> Tree {
        fs::set_permissions(self.path().join(path), fs::Permissions::from_mode(mode)).expect("mode");
        self
    }

    pub fn link(self, path: &str, target: &str) -> Tree {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        std::os::unix::fs::symlink(target, path).expect("a link");
        self
    }

    pub fn run(self, script: &str) -> Tree {
        let output = Command::new("sh").args(["-ec", script]).current_dir(self.path()).output().expect("sh");
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        self
    }

    /// Builds `NAME.deb` in a directory.
    pub fn build(self, directory: &Path, compressor: &str) -> PathBuf {
        // All times are of long ago, so that what is set and what is made now can be told apart.
        let script = format!("find . -exec touch -h -d @{LONG_AGO_S} {{}} +");
        let tree = self.run(&script);
        let deb = directory.join(format!("{}.deb", tree.name));
        let output = Command::new("dpkg-deb")
            .args([&format!("-Z{compressor}"), "-z1", "--nocheck", "--build"])
            .args([tree.path(), &deb])
            .env("SOURCE_DATE_EPOCH", (LONG_AGO_S + 1).to_string())
            .output()
            .expect("dpkg-deb does not run: apt-get install dpkg");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        deb
    }
}

/// `dpkg --unpack` as apt calls it; gives what it prints if it fails.
pub fn dpkg_unpack(root: &Path, debs: &[PathBuf], options: &[&str]) -> Result<(), String> {
    let output = Command::new("dpkg")
        .arg("--root")
        .arg(root)
        .args(["--log=/dev/null", "--no-triggers", "--force-depends", "--force-unsafe-io"])
        .args(options)
        .arg("--unpack")
        .args(debs)
        .output()
        .expect("dpkg does not run: apt-get install dpkg");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

pub fn open(debs: &[PathBuf]) -> Vec<Archive> {
    debs.iter().map(|deb| Archive::open(deb).expect("a package")).collect()
}

/// Options for tests: nothing is synced.
pub fn options<'a>() -> Options<'a> {
    Options { durability: Durability::None, ..Options::default() }
}

/// Ours, with every package taken.
pub fn our_unpack(root: &Path, debs: &[PathBuf]) -> Unpacked {
    let unpacked = our_unpack_with(root, debs, options());
    assert_eq!(unpacked.refused, []);
    unpacked
}

pub fn our_unpack_with(root: &Path, debs: &[PathBuf], options: Options<'_>) -> Unpacked {
    let root = Root::open(root).expect("the root");
    let _locks = (Lock::frontend(&root).expect("a lock"), Lock::database(&root).expect("a lock"));
    let Examined { batch, refused } = examine(&root, open(debs)).expect("a database");
    assert!(refused.is_empty(), "{:?}", refused.iter().map(|refused| &refused.refusal).collect::<Vec<_>>());
    unpack(&root, &batch, options).expect("unpacked")
}

/// What a tree has under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    kind: String,
    mode: u32,
    owner: (u32, u32),
    /// Seconds; `None` for a time after the test began.
    mtime_s: Option<i64>,
    content: Vec<u8>,
    /// The first name of this inode.
    same_as: String,
}

/// All of a tree. Contents of `status-old` and times in dpkg's database are left out.
pub fn nodes(root: &Path) -> BTreeMap<String, Node> {
    let mut nodes = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    walk(root, root, &mut inodes, &mut nodes);
    nodes
}

fn walk(root: &Path, at: &Path, inodes: &mut BTreeMap<(u64, u64), String>, nodes: &mut BTreeMap<String, Node>) {
    let mut names: Vec<PathBuf> =
        fs::read_dir(at).expect("a directory").map(|entry| entry.expect("entry").path()).collect();
    names.sort();
    let recently = SystemTime::now() - Duration::from_secs(3600);
    let recently_s = recently.duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    for path in names {
        let status = path.symlink_metadata().expect("there");
        let name = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
        let kind = status.file_type();
        let (kind, content) = if kind.is_symlink() {
            ("link", fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes())
        } else if kind.is_dir() {
            ("directory", Vec::new())
        } else if kind.is_file() {
            ("file", fs::read(&path).expect("a file"))
        } else if kind.is_fifo() {
            ("fifo", Vec::new())
        } else {
            ("device", status.rdev().to_string().into_bytes())
        };
        let same_as = inodes.entry((status.dev(), status.ino())).or_insert_with(|| name.clone()).clone();
        let database = name.starts_with("var/lib/dpkg");
        let node = Node {
            kind: kind.to_owned(),
            mode: status.mode() & 0o7777,
            owner: (status.uid(), status.gid()),
            mtime_s: (!database && status.mtime() < recently_s).then(|| status.mtime()),
            content: if name == "var/lib/dpkg/status-old" { Vec::new() } else { content },
            same_as: if database { name.clone() } else { same_as },
        };
        if status.is_dir() {
            walk(root, &path, inodes, nodes);
        }
        nodes.insert(name, node);
    }
}

/// Fails with the differences between two roots; `known` names paths that may differ.
pub fn assert_same(dpkgs: &Path, ours: &Path, known: &[&str]) {
    let (dpkgs, ours) = (nodes(dpkgs), nodes(ours));
    let mut differences = Vec::new();
    for name in dpkgs.keys().chain(ours.keys().filter(|name| !dpkgs.contains_key(*name))) {
        if known.contains(&&name[..]) {
            continue;
        }
        match (dpkgs.get(name), ours.get(name)) {
            (Some(dpkg), Some(our)) if dpkg == our => {}
            (Some(dpkg), Some(our)) if dpkg.content != our.content => differences.push(format!(
                "{name}: content\n--- dpkg\n{}\n--- fullbore\n{}",
                short(&dpkg.content),
                short(&our.content)
            )),
            (dpkg, our) => differences.push(format!("{name}:\n dpkg     {dpkg:?}\n fullbore {our:?}")),
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn short(content: &[u8]) -> String {
    String::from_utf8_lossy(&content[..content.len().min(1500)]).into_owned()
}

/// A package whose `data.tar` is given, not compressed.
pub fn deb_of(directory: &Path, name: &str, data: &[u8]) -> PathBuf {
    let whole = Tree::new(name, "1", "").build(directory, "none");
    let bytes = fs::read(&whole).unwrap();
    let place = Archive::open(&whole).unwrap().data();
    let mut new = bytes[..place.offset as usize - 60].to_vec();
    let header = format!("{:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", "data.tar", 0, 0, 0, 100644, data.len());
    new.extend_from_slice(header.as_bytes());
    new.extend_from_slice(data);
    if data.len() % 2 == 1 {
        new.push(b'\n');
    }
    fs::write(&whole, new).unwrap();
    whole
}

/// Numbers at random, the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}
