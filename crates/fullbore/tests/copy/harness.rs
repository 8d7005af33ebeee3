//! Trees, and tools that know nothing of ours to compare them.
#![allow(dead_code)] // each test takes what it needs

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A directory for one test.
pub struct Place {
    directory: TempDir,
}

impl Place {
    /// Empty; where tests have room and extended attributes.
    pub fn new() -> Place {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A tree with one of everything, made by a script.
    pub fn tree(&self, name: &str) -> PathBuf {
        assert!(rustix::process::geteuid().is_root(), "devices and owners: run as root (script/test does)");
        let path = self.path(name);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/copy/tree.sh");
        let made = Command::new("bash").arg(script).arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "tree.sh needs the packages acl, attr, perl: {text}");
        path
    }

    /// The program, to be run in this directory.
    pub fn fullbore(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command.arg("copy").args(arguments).current_dir(self.directory.path()).output().unwrap()
    }

    /// As [`Place::fullbore`]; the copy ends well. Gives what it prints.
    pub fn copy(&self, arguments: &[&str]) -> String {
        let output = self.fullbore(arguments);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(0), "fullbore copy {arguments:?}: {text}");
        text
    }
}

/// A small file system of its own, mounted while it lives.
pub struct SmallDisk(pub PathBuf);

impl SmallDisk {
    /// Mounts it.
    pub fn new(path: PathBuf, size: &str) -> SmallDisk {
        assert!(rustix::process::geteuid().is_root(), "mounts a small disk: run as root (script/test does)");
        std::fs::create_dir(&path).unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(&path).status();
        assert!(mounted.unwrap().success(), "needs the package mount");
        SmallDisk(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// All that a program printed.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn shell(directory: &Path, script: &str) -> String {
    let output = Command::new("bash").args(["-c", script]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a tree is, as tools of others tell: kinds, permissions, owners, times, link counts and targets;
/// extended attributes; ACLs.
fn described(tree: &Path) -> Vec<String> {
    [
        "find . -printf '%p %y %m %U %G %T@ %n %l\\n' | LC_ALL=C sort",
        "find . -print0 | LC_ALL=C sort -z | xargs -0 getfattr -h -d -m -",
        "find . ! -type l -print0 | LC_ALL=C sort -z | xargs -0 getfacl -n -p",
    ]
    .map(|script| shell(tree, script))
    .into()
}

/// Fails unless two trees are the same to rsync, find, getfattr and getfacl, and as large on the disk.
pub fn assert_same(one: &Path, other: &Path) {
    let differences = Command::new("rsync")
        .args(["-naHAX", "--numeric-ids", "--delete", "--checksum", "--itemize-changes"])
        .args([one.join("."), other.join(".")])
        .output()
        .expect("the package rsync is needed");
    assert_eq!(said(&differences), "", "rsync finds differences");
    for (ours, theirs) in described(one).into_iter().zip(described(other)) {
        let differing: Vec<_> = ours.lines().zip(theirs.lines()).filter(|(one, other)| one != other).take(5).collect();
        assert!(ours == theirs, "{differing:#?}");
    }
    let blocks = |tree: &Path| -> u64 {
        let text = shell(tree, "find . -type f -exec stat -c %b {} +");
        text.lines().map(|line| line.parse::<u64>().unwrap()).sum()
    };
    let (there, here) = (blocks(one), blocks(other));
    assert!(here.abs_diff(there) * 20 <= there, "{there} blocks at the source, {here} at the destination");
}
