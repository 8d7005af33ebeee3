//! Packages that are damaged or hostile, and runs that are killed.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Durability;
use fullbore_install::unpack::{Archive, Examined, Filters, Options, Root, UnpackError, examine, put_files, unpack};
use harness::*;

/// What tar makes of the files `a` and `link -> /etc` with its arguments.
fn tar(arguments: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a"), "evil").unwrap();
    fs::write(directory.path().join("b"), "b").unwrap();
    std::os::unix::fs::symlink("/etc", directory.path().join("link")).unwrap();
    std::os::unix::fs::symlink("../../../../../../../../..", directory.path().join("up")).unwrap();
    let output = Command::new("tar").arg("-C").arg(directory.path()).args(["-P", "-cf", "-"]).args(arguments).output();
    output.expect("tar does not run: apt-get install tar").stdout
}

fn result(root: &Path, deb: &Path) -> Result<Vec<String>, UnpackError> {
    let root = Root::open(root).unwrap();
    let Examined { batch, refused } = examine(&root, open(&[deb.to_owned()])).unwrap();
    assert!(refused.is_empty());
    unpack(&root, &batch, options()).map(|unpacked| unpacked.refused.iter().map(ToString::to_string).collect())
}

#[test]
fn no_name_leads_out_of_the_root() {
    let directory = tempfile::tempdir().unwrap();
    // What lies beside the root is looked at: nothing may come there.
    let first = empty_root();
    let outside = tempfile::tempdir_in(first.path().parent().unwrap()).unwrap();
    let root = outside.path().join("root");
    fs::rename(first.keep(), &root).unwrap();
    let beside =
        || -> Vec<_> { fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
    let before = nodes(&root);
    for name in ["../evil", "./../evil", "x/../../evil", "/../evil", "./x/./evil", ".//x//evil", "./.."] {
        let deb = deb_of(directory.path(), "evil", &tar(&["--transform", &format!("s,^a,{name},"), "a"]));
        let reasons = result(&root, &deb).unwrap();
        assert!(reasons.len() == 1 && reasons[0].contains("a name in its archive"), "{name}: {reasons:?}");
        assert!(before == nodes(&root) && beside().len() == 1, "{name}");
    }
    // The files that are written before there is a dpkg stay in the root.
    let deb = deb_of(directory.path(), "evil", &tar(&["--transform", "s,^a,./../../evil,", "a"]));
    let opened = open(&[deb]);
    put_files(&Root::open(&root).unwrap(), &opened[0], &Filters::new()).unwrap();
    assert!(root.join("evil").exists() && beside().len() == 1);
    fs::remove_file(root.join("evil")).unwrap();
    // Through a link of its own, and through a link that another package has brought.
    for link in ["link", "up"] {
        let deb = deb_of(directory.path(), "evil", &tar(&["--transform", &format!("s,^a,./{link}/evil,"), link, "a"]));
        let reasons = result(&root, &deb).unwrap();
        assert!(reasons.len() == 1 && reasons[0].contains("is missing"), "{reasons:?}");
        assert!(before == nodes(&root), "{link}");
    }
    let first = deb_of(directory.path(), "first", &tar(&["link", "up"]));
    assert!(result(&root, &first).unwrap().is_empty());
    fs::create_dir(root.join("etc")).unwrap();
    for (name, link) in [("one", "link"), ("two", "up")] {
        let deb = deb_of(directory.path(), name, &tar(&["--transform", &format!("s,^a,./{link}/{name},"), "a"]));
        assert!(result(&root, &deb).unwrap().is_empty());
    }
    assert!(root.join("etc/one").exists() && root.join("two").exists(), "links lead to where they lead in the root");
    assert!(!Path::new("/etc/one").exists() && beside().len() == 1);
    // A hard link to what the package does not bring.
    let bytes = tar(&["--transform", "s,^a,/etc/passwd,Rh", "--hard-dereference", "a"]);
    assert!(!bytes.is_empty());
    let hard = tempfile::tempdir().unwrap();
    fs::write(hard.path().join("a"), "a").unwrap();
    fs::hard_link(hard.path().join("a"), hard.path().join("b")).unwrap();
    let output = Command::new("tar")
        .arg("-C")
        .arg(hard.path())
        .args(["-P", "-cf", "-", "--transform", "s,^a$,/etc/passwd,RSh", "a", "b"])
        .output()
        .unwrap();
    let deb = deb_of(directory.path(), "hard", &output.stdout);
    let reasons = result(&root, &deb).unwrap();
    assert!(reasons.len() == 1 && reasons[0].contains("hard link"), "{reasons:?}");
}

#[test]
fn what_dpkg_does_not_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = empty_root();
    let deb = deb_of(directory.path(), "pax", &tar(&["--format=pax", "a"]));
    let reasons = result(root.path(), &deb).unwrap();
    assert!(reasons.len() == 1 && reasons[0].contains("dpkg does not read"), "{reasons:?}");
    let other = empty_root();
    dpkg_unpack(other.path(), &[deb], &[]).expect_err("dpkg knows no pax headers");
}

#[test]
fn damaged_packages_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let tree = || {
        let content: String = (0..40_000).map(|number| format!("{number}\n")).collect();
        Tree::new("a", "1", "").file("usr/share/a", &content).file("usr/bin/b", "b")
    };
    for compressor in ["xz", "gzip", "zstd", "none"] {
        let deb = tree().build(directory.path(), compressor);
        let bytes = fs::read(&deb).unwrap();
        let sha256 = Sha256::of(&bytes);
        let data = Archive::open(&deb).unwrap().data();
        let root = empty_root();
        let before = nodes(root.path());
        for (what, at) in [("cut", 0), ("flipped", data.bytes / 2), ("appended", 0)] {
            let mut bad = bytes.clone();
            match what {
                "cut" => bad.truncate(bytes.len() - (data.bytes / 3) as usize),
                "flipped" => bad[(data.offset + at) as usize] ^= 1,
                _ => bad.extend_from_slice(b"more"),
            }
            fs::write(&deb, &bad).unwrap();
            let handle = Root::open(root.path()).unwrap();
            let archive = Archive::open(&deb).unwrap().expecting(bytes.len() as u64, sha256);
            let batch = examine(&handle, vec![archive]).unwrap().batch;
            let error = unpack(&handle, &batch, options()).expect_err(what);
            let shown = error.to_string();
            assert!(shown.contains("a: data.tar") || shown.contains("the index says"), "{compressor} {what}: {shown}");
            assert!(before == nodes(root.path()), "{compressor} {what}");
        }
    }
}

/// What only dpkg can do is given to dpkg, but not what somebody has forged so that it is.
#[test]
fn forged_packages_are_not_left_to_dpkg() {
    let directory = tempfile::tempdir().unwrap();
    let root = empty_root();
    let honest = Tree::new("a", "1", "").file("usr/bin/a", "a").build(directory.path(), "none");
    let bytes = fs::read(&honest).unwrap();
    let (size, sha256) = (bytes.len() as u64, Sha256::of(&bytes));
    let forged = [
        deb_of(directory.path(), "a", &tar(&["--format=pax", "a"])),
        Tree::new("a", "1", "")
            .file("DEBIAN/preinst", "#!/bin/sh\nevil\n")
            .mode("DEBIAN/preinst", 0o755)
            .build(&tempfile::tempdir_in(directory.path()).unwrap().keep(), "none"),
    ];
    for deb in forged {
        let handle = Root::open(root.path()).unwrap();
        let archive = Archive::open(&deb).unwrap().expecting(size, sha256);
        let batch = examine(&handle, vec![archive]).unwrap().batch;
        let error = unpack(&handle, &batch, options()).expect_err("forged").to_string();
        assert!(error.contains("the index says"), "{error}");
    }
}

/// A disk that has less room than it says: what is written is refused when it is written back.
struct LyingDisk {
    directory: tempfile::TempDir,
}

impl LyingDisk {
    fn new(room_mb: u32) -> LyingDisk {
        let disk = LyingDisk { directory: tempfile::tempdir().unwrap() };
        let script = format!(
            "mkdir below above
             mount -t tmpfs -o size={room_mb}M none below
             truncate -s 400M below/image
             mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=1,nodiscard below/image
             mount -o loop below/image above"
        );
        let output = Command::new("sh").args(["-ec", &script]).current_dir(disk.directory.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "mounting needs root, mount and e2fsprogs: {said}");
        disk
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("above")
    }
}

impl Drop for LyingDisk {
    fn drop(&mut self) {
        for directory in ["above", "below"] {
            let _ = Command::new("umount").arg("-l").arg(self.directory.path().join(directory)).status();
        }
    }
}

/// The disk refuses what is written back: the run fails, and the status file does not say that the
/// package is there.
#[test]
fn a_failed_sync_fails_the_run_and_keeps_the_old_status() {
    let directory = tempfile::tempdir().unwrap();
    let large = Tree::new("large", "1", "").file("usr/share/large", &"content\n".repeat(10 << 20));
    let deb = large.build(directory.path(), "gzip");
    let disk = LyingDisk::new(24);
    let root = disk.path();
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let handle = Root::open(&root).unwrap();
    let batch = examine(&handle, open(&[deb])).unwrap().batch;
    let options = Options { durability: Durability::AtEnd, ..options() };
    let error = unpack(&handle, &batch, options).expect_err("the disk is full").to_string();
    assert!(error.contains("cannot sync") || error.contains("cannot write"), "{error}");
    assert_eq!(fs::read_to_string(root.join("var/lib/dpkg/status")).unwrap(), "");
}

/// When `unpack` is back, a power cut takes nothing: the disk's image, copied behind the file
/// system's back, has every file.
#[test]
fn a_power_cut_after_the_barrier_loses_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let debs: Vec<PathBuf> = (0..4)
        .map(|number| {
            let mut tree = Tree::new(&format!("p{number}"), "1", "");
            for file in 0..100 {
                tree = tree.file(&format!("usr/share/p{number}/{file}"), &"content ".repeat(file * 30));
            }
            tree.build(directory.path(), "gzip")
        })
        .collect();
    let disk = LyingDisk::new(200);
    let root = disk.path().join("root");
    for name in ["info", "updates", "triggers"] {
        fs::create_dir_all(root.join("var/lib/dpkg").join(name)).unwrap();
    }
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    our_unpack_with(&root, &debs, Options { durability: Durability::AtEnd, ..options() });
    let expected = nodes(&root);
    let script = "cp --sparse=always below/image copy && mkdir after && mount -o loop copy after";
    let mounted = Command::new("sh").args(["-ec", script]).current_dir(disk.directory.path()).status().unwrap();
    assert!(mounted.success());
    let found = nodes(&disk.directory.path().join("after/root"));
    // Lazily: a process that another test has just begun has our directories open, too, until it runs its program.
    let umounted = Command::new("umount").arg("-l").arg(disk.directory.path().join("after")).status().unwrap();
    assert!(umounted.success());
    let missing: Vec<_> = expected.iter().filter(|(name, node)| found.get(*name) != Some(*node)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

const KILLED_ROOT: &str = "FULLBORE_TEST_ROOT";
const KILLED_DEBS: &str = "FULLBORE_TEST_DEBS";

/// [`a_kill_at_any_time_leaves_the_old_or_the_new_status`] starts this in a process of its own.
#[test]
#[ignore = "a_kill_at_any_time_leaves_the_old_or_the_new_status starts it"]
fn this_process_unpacks_until_it_is_killed() {
    let (Ok(root), Ok(debs)) = (std::env::var(KILLED_ROOT), std::env::var(KILLED_DEBS)) else { return };
    let debs: Vec<PathBuf> = debs.split(':').map(PathBuf::from).collect();
    our_unpack(Path::new(&root), &debs);
}

/// Killed at random moments: the status file is the old one or the new one, and a second run ends
/// where an undisturbed one does.
#[test]
fn a_kill_at_any_time_leaves_the_old_or_the_new_status() {
    let directory = tempfile::tempdir().unwrap();
    let debs: Vec<PathBuf> = (0..12)
        .map(|number| {
            let mut tree = Tree::new(&format!("p{number}"), "1", "")
                .file(&format!("etc/p{number}"), "conf")
                .file("DEBIAN/conffiles", &format!("/etc/p{number}\n"));
            for file in 0..60 {
                tree = tree.file(&format!("usr/share/p{number}/{file}"), &"content ".repeat(file * 10));
            }
            tree.build(directory.path(), "xz")
        })
        .collect();
    let expected = empty_root();
    dpkg_unpack(expected.path(), &debs, &[]).unwrap();
    let names = debs.iter().map(|deb| deb.to_str().unwrap()).collect::<Vec<_>>().join(":");
    let mut random = Random(u64::from(std::process::id()) | 1);
    let (mut old, mut new) = (0, 0);
    for _ in 0..12 {
        let root = empty_root();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "this_process_unpacks_until_it_is_killed", "--ignored", "--test-threads=1"])
            .env(KILLED_ROOT, root.path())
            .env(KILLED_DEBS, &names)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // From the first file on, for as long as such a run lasts, more or less.
        while !root.path().join("usr").exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.below(60_000) as u64));
        let _ = child.kill();
        child.wait().unwrap();
        let status = fs::read_to_string(root.path().join("var/lib/dpkg/status")).unwrap();
        match status.matches("Status: install ok unpacked").count() {
            0 => {
                old += 1;
                assert_eq!(status, "");
                our_unpack(root.path(), &debs);
            }
            12 => new += 1,
            count => panic!("{count} packages in the status file"),
        }
        assert_same(expected.path(), root.path(), &["var/lib/dpkg/status-old", "var/lib/dpkg/status-new"]);
    }
    println!("{old} with the old state, {new} with the new one");
}
