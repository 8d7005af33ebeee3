//! Tests of the files module, most of them on both ways of opening directories.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;

fn both_ways(test: impl Fn(&Path, &Root)) {
    for resolve in [Resolve::Kernel, Resolve::Stepwise] {
        let outside = tempfile::tempdir().unwrap();
        let top = outside.path().join("root");
        fs::create_dir(&top).unwrap();
        let root = Root::open_resolving(&top, Some(resolve), Modes::Fixed).unwrap();
        test(&top, &root);
    }
}

#[test]
fn part_becomes_file() {
    both_ways(|top, root| {
        let part = root.create_part("pool/main/a/a.deb", 5).unwrap();
        part.write_at(0, b"hello").unwrap();
        assert!(top.join("pool/main/a/.a.deb.part").exists());
        assert!(!top.join("pool/main/a/a.deb").exists());
        part.set_mtime(1_700_000_000).unwrap();
        part.finish().unwrap();
        let data = fs::metadata(top.join("pool/main/a/a.deb")).unwrap();
        assert_eq!((data.mtime(), data.mode() & 0o7777), (1_700_000_000, 0o644));
        assert_eq!(fs::metadata(top.join("pool/main")).unwrap().mode() & 0o7777, 0o755);
        assert_eq!(root.read("pool/main/a/a.deb", 5).unwrap().unwrap(), b"hello");
        assert!(matches!(root.read("pool/main/a/a.deb", 4), Err(FileError::TooLarge { .. })));
        assert_eq!(root.read("pool/none/a.deb", 4).unwrap(), None);
        let status = root.stat("pool/main/a/a.deb").unwrap().unwrap();
        assert_eq!((status.kind, status.size, status.links), (Kind::File, 5, 1));
    });
}

#[test]
fn old_part_is_replaced_and_resumed_only_when_ours() {
    both_ways(|top, root| {
        root.create_part("x", 3).unwrap().write_at(0, b"old").unwrap();
        assert_eq!(root.part_size("x").unwrap(), Some(3));
        let resumed = root.resume_part("x").unwrap().unwrap();
        let mut buffer = [0; 8];
        assert_eq!(resumed.read_at(0, &mut buffer).unwrap(), 3);
        let fresh = root.create_part("x", 3).unwrap();
        assert_eq!(fresh.size().unwrap(), 0);
        // A hard link to a precious file in place of the part: neither resumed nor cut.
        fs::write(top.join("precious"), "keep").unwrap();
        fs::remove_file(top.join(".x.part")).unwrap();
        fs::hard_link(top.join("precious"), top.join(".x.part")).unwrap();
        assert!(root.resume_part("x").unwrap().is_none());
        root.create_part("x", 3).unwrap().write_at(0, b"new").unwrap();
        assert_eq!(fs::read(top.join("precious")).unwrap(), b"keep");
    });
}

#[test]
fn an_unfinished_file_takes_the_room_that_is_reserved() {
    both_ways(|_, root| {
        let part = root.create_part("x", 3 * PREALLOCATE_BYTES).unwrap();
        // The file system under the tests may have no reservation.
        let room = rustix::fs::fstat(&part).unwrap().st_blocks as u64 * 512;
        assert_eq!((part.size().unwrap(), root.part_room("x").unwrap(), root.part_room("y").unwrap()), (0, room, 0));
    });
}

/// M7: neither names nor links lead outside, for reading or for writing.
#[test]
fn sentinel_outside_stays() {
    both_ways(|top, root| {
        let sentinel = top.parent().unwrap().join("sentinel");
        fs::write(&sentinel, "untouched").unwrap();
        symlink("..", top.join("up")).unwrap();
        symlink(top.parent().unwrap(), top.join("absolute")).unwrap();
        fs::create_dir(top.join("pool")).unwrap();
        symlink("../..", top.join("pool/deep")).unwrap();
        symlink("../sentinel", top.join("direct")).unwrap();
        symlink("../sentinel", top.join(".y.part")).unwrap();
        for path in [
            "../sentinel",
            "/etc/passwd",
            "up/sentinel",
            "absolute/sentinel",
            "pool/deep/sentinel",
            "pool/../../sentinel",
            "up/root/../sentinel",
        ] {
            assert!(root.create_part(path, 1).is_err(), "{path}");
            assert!(root.read(path, 100).is_err(), "{path}");
            assert!(root.unlink(path).is_err(), "{path}");
            assert!(root.hard_link("pool", path).is_err(), "{path}");
            assert!(root.rename("pool", path).is_err(), "{path}");
        }
        assert!(matches!(root.create_part("up/new", 1), Err(FileError::Symlink { .. })));
        assert!(matches!(root.read("direct", 100), Err(FileError::Symlink { .. })));
        assert!(root.open_append("direct").is_err());
        assert!(root.resume_part("y").unwrap().is_none());
        root.write_part("y", b"1").unwrap().finish().unwrap();
        root.write_part("direct", b"1").unwrap().finish().unwrap();
        assert!(root.symlink("../sentinel", "z").is_err());
        assert_eq!(fs::read(&sentinel).unwrap(), b"untouched");
        assert_eq!(fs::read_dir(top.parent().unwrap()).unwrap().count(), 2);
    });
}

#[test]
fn links_replace_in_one_step() {
    both_ways(|top, root| {
        root.write_part("store/1", b"one").unwrap().finish().unwrap();
        root.write_part("store/2", b"two").unwrap().finish().unwrap();
        assert!(root.hard_link("store/1", "dists/t/Packages").unwrap());
        assert!(root.hard_link("store/2", "dists/t/Packages").unwrap());
        // Once more the same: rename(2) leaves the temporary name, we must not.
        assert!(root.hard_link("store/2", "dists/t/Packages").unwrap());
        assert_eq!(fs::read(top.join("dists/t/Packages")).unwrap(), b"two");
        assert_eq!(fs::read_dir(top.join("dists/t")).unwrap().count(), 1);

        root.symlink("t", "dists/stable").unwrap();
        root.symlink("t", "dists/stable").unwrap();
        root.symlink("u", "dists/stable").unwrap();
        assert_eq!(root.read_link("dists/stable").unwrap().as_deref(), Some("u"));
        assert!(root.symlink("u", "dists/t").is_err(), "a directory is not replaced");
        assert_eq!(fs::read_dir(top.join("dists")).unwrap().count(), 2);
        assert_eq!(root.read_link("dists/t/Packages").unwrap(), None);
    });
}

#[test]
fn a_copy_has_content_and_time_of_its_source() {
    both_ways(|top, root| {
        let part = root.write_part("a", &[7; 100_000]).unwrap();
        part.set_mtime(1000).unwrap();
        part.finish().unwrap();
        root.copy("a", "b/c").unwrap();
        assert_eq!(fs::read(top.join("b/c")).unwrap(), [7; 100_000]);
        assert_eq!(fs::metadata(top.join("b/c")).unwrap().mtime(), 1000);
    });
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    // The umask belongs to the whole process: a child of our own tests it.
    if std::env::var_os("FULLBORE_TEST_UMASK").is_none() {
        let status = std::process::Command::new("sh")
            .arg("-c")
            .arg("umask 0077; exec \"$0\" --exact files::tests::modes_do_not_depend_on_the_umask")
            .arg(std::env::current_exe().unwrap())
            .env("FULLBORE_TEST_UMASK", "1")
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    both_ways(|top, root| {
        for name in ["d/e/1", "d/e/2"] {
            root.write_part(name, b"x").unwrap().finish().unwrap();
            assert_eq!(fs::metadata(top.join(name)).unwrap().mode() & 0o7777, 0o644);
        }
        assert_eq!(fs::metadata(top.join("d/e")).unwrap().mode() & 0o7777, 0o755);
        root.create_directory(".fullbore", 0o700).unwrap();
        assert_eq!(fs::metadata(top.join(".fullbore")).unwrap().mode() & 0o7777, 0o700);
        // Inherited set-group-id stays.
        fs::create_dir(top.join("group")).unwrap();
        fs::set_permissions(top.join("group"), fs::Permissions::from_mode(0o2775)).unwrap();
        root.create_directory("group/below", 0o755).unwrap();
        assert_eq!(fs::metadata(top.join("group/below")).unwrap().mode() & 0o7777, 0o2755);
    });
}

#[test]
fn directories_come_go_and_are_listed() {
    both_ways(|top, root| {
        for number in 0..300 {
            root.write_part(&format!("d{number}/f"), b"").unwrap().finish().unwrap();
        }
        // A directory that someone else removes behind a cached handle is made again.
        fs::remove_dir_all(top.join("d299")).unwrap();
        root.write_part("d299/g", b"").unwrap().finish().unwrap();
        assert!(top.join("d299/g").exists());
        assert_eq!(root.list("").unwrap().len(), 300);
        assert_eq!(root.list("d299").unwrap(), [("g".into(), Kind::File)]);
        assert_eq!(root.list("nowhere").unwrap(), []);
        assert!(!root.remove_directory("d299").unwrap());
        assert!(root.unlink("d299/g").unwrap());
        assert!(!root.unlink("d299/g").unwrap());
        assert!(root.remove_directory("d299").unwrap());
        assert!(!root.remove_directory("d299").unwrap());
        assert!(root.stat("d299").unwrap().is_none());
        root.rename("d1", "e/1").unwrap();
        assert!(root.stat("d1/f").unwrap().is_none());
        assert!(root.stat("e/1/f").unwrap().is_some());
    });
}

#[test]
fn directories_and_pipes_are_not_opened_as_files() {
    both_ways(|top, root| {
        fs::create_dir(top.join("dir")).unwrap();
        assert!(matches!(root.open_file("dir"), Err(FileError::NotRegular { .. })));
        assert!(root.write_part("dir", b"x").unwrap().finish().is_err());
        rustix::fs::mkfifoat(rustix::fs::CWD, top.join("pipe"), FILE_MODE).unwrap();
        assert!(matches!(root.open_file("pipe"), Err(FileError::NotRegular { .. })));
        rustix::fs::mkfifoat(rustix::fs::CWD, top.join(".p.part"), FILE_MODE).unwrap();
        assert!(root.resume_part("p").unwrap().is_none());
    });
}

#[test]
fn a_lock_has_one_holder_at_a_time() {
    both_ways(|_, root| {
        let first = root.lock(".fullbore/lock").unwrap();
        assert!(first.is_some());
        assert!(root.lock(".fullbore/lock").unwrap().is_none());
        drop(first);
        assert!(root.lock(".fullbore/lock").unwrap().is_some());
    });
}

#[test]
fn room_is_measured_and_large_files_reserved() {
    both_ways(|top, root| {
        assert!(root.space().unwrap().bytes > 0);
        let part = root.create_part("big", 4 << 20).unwrap();
        assert_eq!(part.size().unwrap(), 0);
        drop(part);
        assert!(fs::metadata(top.join(".big.part")).unwrap().blocks() >= 8192);
        let huge = root.create_part("huge", 1 << 60).unwrap_err();
        assert!(matches!(huge, FileError::Io { .. }), "{huge}");
        assert_eq!(root.file_systems().len(), 1);
    });
}

#[test]
fn room_that_is_not_there_is_not_taken_from_others_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let file = File::create(directory.path().join("huge")).unwrap();
    let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks;
    let disk = rustix::fs::fstatvfs(&file).unwrap();
    let beyond = disk.f_blocks * disk.f_frsize + 1;
    let refused = reserve_room(&file, rustix::fs::FallocateFlags::KEEP_SIZE, beyond);
    assert_eq!((refused, blocks()), (Err(Errno::NOSPC), 0));
    reserve_room(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 1 << 20).unwrap();
}
