//! Extended attributes and ACLs, on the file systems that they belong to.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod pair;

use std::fs;
use std::path::Path;
use std::process::Command;

use fullbore_copy::entry::{Entry, Kind as EntryKind};
use fullbore_copy::options::Options;
use fullbore_copy::session::Event;
use fullbore_copy::wire::{Account, Message, Owner};
use pair::disk::Disk;
use pair::scene::{Scene, file, list};
use pair::{Pair, Step, options};
use rustix::fs::XattrFlags;
use tempfile::TempDir;

const ACL: &str = "system.posix_acl_access";
const RAW_ACL: &str = "trusted.SGI_ACL_FILE";

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap_or_else(|error| panic!("{name}: {error}"));
}

fn value(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    Some(value[..length].to_vec())
}

fn setfacl(arguments: &[&str], path: &Path) {
    let status = Command::new("setfacl").args(arguments).arg(path).status().expect("needs the package acl");
    assert!(status.success());
}

fn acl(path: &Path) -> String {
    let output = Command::new("getfacl").args(["-n", "-c", "-p"]).arg(path).output().expect("needs the package acl");
    String::from_utf8(output.stdout).unwrap()
}

/// Copies, with nothing to complain of.
fn copy(source: &Path, target: &Path, options: &Options) -> Account {
    let tell = |event: Event| assert!(!matches!(event, Event::Problem(_)), "{event:?}");
    Pair::new(source, target, options).run_and_tell(|_| Step::Pass, &tell).unwrap()
}

fn is_at_rest(account: &Account) -> bool {
    account.files + account.made + account.retouched + account.deleted == 0
}

/// A file and a directory with ACLs for a user whom nobody knows.
fn with_acls(directory: &Path) {
    fs::create_dir_all(directory.join("dir")).unwrap();
    fs::write(directory.join("file"), "secret").unwrap();
    setfacl(&["-m", "u:4711:r"], &directory.join("file"));
    setfacl(&["-m", "u:4711:rx,d:u:4711:rwx"], &directory.join("dir"));
}

#[test]
fn a_right_revoked_between_two_copies_does_not_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let (xfs, ext4) = (Disk::new(directory.path(), "xfs", "xfs"), Disk::new(directory.path(), "ext4", "ext4"));
    let (source, middle, back) = (xfs.directory("source"), ext4.directory("middle"), xfs.directory("back"));
    with_acls(&source);
    assert!(value(&source.join("file"), RAW_ACL).is_some(), "XFS shows how it keeps ACLs");
    copy(&source, &middle, &options());
    assert_eq!(value(&middle.join("file"), RAW_ACL), None);
    assert!(acl(&middle.join("file")).contains("user:4711:r"));
    for name in ["file", "dir"] {
        setfacl(&["-b"], &middle.join(name));
    }
    copy(&middle, &back, &options());
    for name in ["file", "dir"] {
        assert!(!acl(&back.join(name)).contains("4711"), "{name}: {}", acl(&back.join(name)));
    }
    // Nor where another program has carried the bytes along.
    set(&middle.join("file"), RAW_ACL, &value(&source.join("file"), RAW_ACL).unwrap());
    assert!(is_at_rest(&copy(&middle, &back, &options())));
    assert!(!acl(&back.join("file")).contains("4711"));
    assert!(value(&middle.join("file"), RAW_ACL).is_some(), "it is left alone");
}

#[test]
fn copies_between_unlike_file_systems_come_to_rest() {
    let directory = tempfile::tempdir().unwrap();
    let disks = [Disk::new(directory.path(), "xfs", "xfs"), Disk::new(directory.path(), "ext4", "ext4")];
    for (number, (from, to)) in [(0, 1), (1, 0), (0, 0)].into_iter().enumerate() {
        let [source, target] = [(from, "source"), (to, "target")]
            .map(|(disk, name): (usize, &str)| disks[disk].directory(&format!("{name}-{number}")));
        with_acls(&source);
        set(&source.join("file"), "user.comment", b"kept");
        set(&source.join("file"), "trusted.note", b"kept");
        copy(&source, &target, &options());
        for name in ["file", "dir"] {
            assert_eq!(acl(&source.join(name)), acl(&target.join(name)), "{number}: {name}");
        }
        for name in ["user.comment", "trusted.note"] {
            assert_eq!(value(&target.join("file"), name), Some(b"kept".to_vec()), "{number}: {name}");
        }
        let again = copy(&source, &target, &options());
        assert!(is_at_rest(&again), "{number}: {again:?}");
    }
}

#[test]
fn a_label_that_the_destination_has_by_itself_is_no_difference() {
    let (_directory, source, target) = places();
    fs::write(source.join("file"), "x").unwrap();
    copy(&source, &target, &options());
    let own = [("security.ima", &b"\x01hash"[..]), ("trusted.overlay.origin", b"handle"), ("trusted.gfid", &[7; 16])];
    for (name, value) in own {
        set(&target.join("file"), name, value);
    }
    set(&target.join("file"), "trusted.note", b"goes");
    assert_eq!(copy(&source, &target, &options()).retouched, 1);
    assert_eq!(value(&target.join("file"), "trusted.note"), None);
    assert!(is_at_rest(&copy(&source, &target, &options())));
    assert!(own.into_iter().all(|(name, bytes)| value(&target.join("file"), name).as_deref() == Some(bytes)));
}

fn places() -> (TempDir, std::path::PathBuf, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let [source, target] = ["src", "dst"].map(|name| directory.path().join(name));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&target).unwrap();
    (directory, source, target)
}

#[test]
fn bookkeeping_of_file_systems_is_neither_sent_nor_taken() {
    // As ordinary attributes, which is what they are on another file system.
    let own =
        ["trusted.SGI_ACL_FILE", "trusted.SGI_ACL_DEFAULT", "trusted.overlay.origin", "trusted.gfid", "trusted.lov"];
    let (_directory, source, target) = places();
    fs::write(source.join("file"), "x").unwrap();
    for name in own.into_iter().chain(["trusted.overlay.opaque", "user.any"]) {
        set(&source.join("file"), name, b"y");
    }
    let mut sent = Vec::new();
    let look = |message: &Message| {
        if let Message::List(list) = message {
            sent.extend(list.entries.iter().flat_map(|entry| entry.xattrs.iter().map(|(name, _)| name.clone())));
        }
        Step::Pass
    };
    assert!(Pair::new(&source, &target, &options()).run(look));
    assert_eq!(sent, [&b"trusted.overlay.opaque"[..], b"user.any"]);
    // A sender that sends them all the same; directories take the way of those that are there.
    let mut entries =
        vec![Entry::plain(b"dir", EntryKind::Directory), Entry::plain(b"pipe", EntryKind::Fifo), file("empty", 0)];
    for entry in &mut entries {
        let more = ["security.evm", "system.nfs4_acl", "btrfs.compression"];
        entry.xattrs = own.iter().chain(&more).map(|name| (name.as_bytes().to_vec(), b"y".to_vec())).collect();
        entry.xattrs.sort();
    }
    let target = target.join("of-a-liar");
    fs::create_dir(&target).unwrap();
    let scene = Scene::new();
    let control = vec![list(0, "", entries), Message::Listed { entries: 3, errors: 0 }];
    let content = pair::scene::pack(2, b"");
    scene.receive(&target, control, vec![content]).unwrap();
    assert_eq!(*scene.problems.lock().unwrap(), []);
    for name in ["dir", "pipe", "empty"] {
        assert!(target.join(name).exists(), "{name}");
        assert!(own.iter().all(|attribute| value(&target.join(name), attribute).is_none()), "{name}");
    }
}

#[test]
fn options_without_acls_or_attributes_hold_against_the_sender() {
    let (_directory, source, target) = places();
    fs::write(source.join("file"), "x").unwrap();
    setfacl(&["-m", "u:4711:r"], &source.join("file"));
    let bytes = value(&source.join("file"), ACL).unwrap();
    let entry = || Entry {
        xattrs: vec![(ACL.into(), bytes.clone()), (b"user.any".to_vec(), b"y".to_vec())],
        ..file("file", 3)
    };
    for (acls, xattrs) in [(true, false), (false, true), (false, false)] {
        let target = target.join(format!("{acls}-{xattrs}"));
        fs::create_dir(&target).unwrap();
        let scene = Scene { options: Options { acls, xattrs, ..options() }, ..Scene::new() };
        let control = vec![list(0, "", vec![entry()]), Message::Listed { entries: 1, errors: 0 }];
        scene.receive(&target, control, vec![pair::scene::pack(0, b"abc")]).unwrap();
        let there = [ACL, "user.any"].map(|name| value(&target.join("file"), name).is_some());
        assert_eq!(there, [acls, xattrs]);
    }
}

#[test]
fn rights_on_xfs_go_to_whoever_has_the_name_here() {
    let directory = tempfile::tempdir().unwrap();
    let xfs = Disk::new(directory.path(), "xfs", "xfs");
    let (sample, target) = (xfs.directory("sample"), xfs.directory("target"));
    with_acls(&sample);
    // The source calls 4711 what is number 1 here.
    let names = fs::read_to_string("/etc/passwd").unwrap();
    let daemon = names.lines().find(|line| line.split(':').nth(2) == Some("1")).expect("a user with the number 1");
    let name = daemon.split(':').next().unwrap().as_bytes().to_vec();
    let attributes = |path: &Path| {
        let all = [ACL, "system.posix_acl_default", RAW_ACL, "trusted.SGI_ACL_DEFAULT"];
        all.iter().filter_map(|name| Some((name.as_bytes().to_vec(), value(path, name)?))).collect::<Vec<_>>()
    };
    let mut dir = Entry { mode: 0o755, ..Entry::plain(b"dir", EntryKind::Directory) };
    dir.xattrs = attributes(&sample.join("dir"));
    let entries = vec![dir, Entry { xattrs: attributes(&sample.join("file")), ..file("file", 3) }];
    assert!(entries.iter().all(|entry| entry.xattrs.len() >= 2));
    let control = vec![
        Message::Owners(vec![Owner { group: false, id: 4711, name }]),
        list(0, "", entries),
        Message::Listed { entries: 2, errors: 0 },
    ];
    Scene::new().receive(&target, control, vec![pair::scene::pack(1, b"abc")]).unwrap();
    for name in ["dir", "file"] {
        let acl = acl(&target.join(name));
        assert!(acl.contains("user:1:r") && !acl.contains("4711"), "{name}: {acl}");
    }
}

#[test]
fn an_unfinished_file_is_closed_to_the_group_that_it_has_meanwhile() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    assert!(rustix::process::geteuid().is_root(), "groups: run as root (script/test does)");
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("src"), directory.path().join("dst"));
    fs::create_dir(&source).unwrap();
    let names = [("secret", 0o640), ("for-all", 0o644)];
    for (name, mode) in names {
        fs::write(source.join(name), vec![1; 3 << 20]).unwrap();
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for has_acl in [false, true] {
        let _ = fs::remove_dir_all(&target);
        fs::create_dir(&target).unwrap();
        chown(&target, None, Some(50)).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o2775)).unwrap();
        if has_acl {
            setfacl(&["-d", "-m", "u:65534:rwx"], &target);
        }
        let (mut seen, mut open) = (0, Vec::new());
        let look = |message: &Message| {
            if matches!(message, Message::Acknowledge { .. } | Message::Block(_)) {
                for (name, _) in names {
                    let Ok(part) = fs::metadata(target.join(format!(".{name}.fullbore-part"))) else { continue };
                    seen += 1;
                    if name == "secret" && part.gid() == 50 && part.mode() & 0o077 != 0 {
                        open.push((name, part.mode()));
                    }
                }
            }
            Step::Pass
        };
        assert!(Pair::new(&source, &target, &Options { threads: 1, ..options() }).run(look));
        assert!(seen > 0 && open.is_empty(), "{seen} {open:x?}");
        for (name, mode) in names {
            let status = fs::metadata(target.join(name)).unwrap();
            assert_eq!((status.mode() & 0o7777, status.gid()), (mode, fs::metadata(&source).unwrap().gid()), "{name}");
        }
    }
}
