//! A file system in an image, mounted while it lives.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The mount.
pub struct Disk(PathBuf);

fn run(program: &str, arguments: &[&str], paths: &[&Path]) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).env("PATH", path).args(arguments).args(paths).output();
    let needs = "needs root, e2fsprogs, xfsprogs, mount, loop devices";
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}: {needs}"));
    assert!(output.status.success(), "{program}: {}: {needs}", String::from_utf8_lossy(&output.stderr));
}

impl Disk {
    /// Makes a file system of this kind, and mounts it at a directory with this name.
    pub fn new(directory: &Path, name: &str, kind: &str) -> Disk {
        let (image, path) = (directory.join(format!("{name}.image")), directory.join(name));
        std::fs::create_dir(&path).unwrap();
        // The smallest that mkfs.xfs makes; nothing of it is on the disk.
        std::fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
        run(&format!("mkfs.{kind}"), &["-q"], &[&image]);
        run("mount", &["-o", "loop"], &[&image, &path]);
        Disk(path)
    }

    /// A directory on it.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A thread of a copy that has ended may still have a file open.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
