//! Nothing that is written into a root gets out of it: packages and roots with links of each kind, and files outside whose
//! content, mode, owner, times, attributes and names must stay as they are.

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use fullbore_install::unpack::{Filters, Root, put_files};
use harness::{Tree, copy_accounts, empty_root, open, our_unpack};

/// Files and directories outside of a root that links in it lead to.
struct Outside {
    directory: tempfile::TempDir,
}

/// What is known of a path: mode, owner, group, size, times of content and of the rest, names, and content.
type State = (u32, u32, u32, u64, i64, i64, i64, u64, Vec<u8>);

impl Outside {
    fn new() -> Outside {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("directory")).expect("a directory");
        for name in ["file", "directory/file", "directory/fresh.REAL"] {
            let path = directory.path().join(name);
            fs::write(&path, "outside\n").expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mode");
            std::os::unix::fs::chown(&path, Some(1234), Some(1234)).expect("owner");
            let mut setfattr = std::process::Command::new("setfattr");
            // Without the program, changes of attributes show in the time of the last change all the same.
            let _ = setfattr.args(["-n", "user.sentinel", "-v", "1"]).arg(&path).status();
        }
        Outside { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn state(&self) -> BTreeMap<PathBuf, State> {
        let mut found = BTreeMap::new();
        let mut ahead = vec![self.directory.path().to_owned()];
        while let Some(path) = ahead.pop() {
            let about = fs::symlink_metadata(&path).expect("what was listed");
            let content = if about.is_file() { fs::read(&path).expect("a file") } else { Vec::new() };
            if about.is_dir() {
                ahead.extend(fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()));
            }
            // The time of the last change of anything: also of attributes and names.
            let times = (about.mtime(), about.ctime(), about.ctime_nsec());
            let state = (about.mode(), about.uid(), about.gid(), about.size(), times.0, times.1, times.2);
            let state = (state.0, state.1, state.2, state.3, state.4, state.5, state.6, about.nlink(), content);
            found.insert(path, state);
        }
        found
    }
}

/// How a link in a root may lead out of it.
fn targets(outside: &Outside, name: &str) -> Vec<String> {
    let absolute = outside.path(name).display().to_string();
    vec![absolute.clone(), format!("../../../../../../../../../..{absolute}"), format!("/proc/self/root{absolute}")]
}

#[test]
fn a_hard_link_to_anothers_symlink_changes_nothing_outside() {
    let outside = Outside::new();
    for target in targets(&outside, "file") {
        let root = empty_root();
        copy_accounts(root.path());
        fs::create_dir_all(root.path().join("usr/lib/x")).expect("directories");
        // Another package's, and unpacked before.
        symlink(&target, root.path().join("usr/lib/x/aim")).expect("a link");
        let debs = tempfile::tempdir().expect("a directory");
        // tar archives the second name of a symbolic link as a hard link to the first.
        let script = format!("mkdir -p usr/lib/x; ln -s {target} usr/lib/x/aim; ln -P usr/lib/x/aim usr/lib/x/name");
        let deb = Tree::new("linked", "1", "").run(&script).build(debs.path(), "gzip");
        let before = outside.state();
        let opened = open(&[deb]);
        let root_handle = Root::open(root.path()).expect("a root");
        put_files(&root_handle, &opened[0], &Filters::new()).expect("its files");
        assert_eq!(outside.state(), before, "{target}");
        let link = fs::read_link(root.path().join("usr/lib/x/name")).expect("a link");
        assert_eq!(link, Path::new(&target));
    }
}

#[test]
fn links_in_a_root_lead_no_package_out_of_it() {
    let outside = Outside::new();
    for target in targets(&outside, "directory") {
        let root = empty_root();
        copy_accounts(root.path());
        // A directory on the way, a file, a configuration file, and dpkg's temporary names.
        symlink(&target, root.path().join("srv")).expect("a link");
        fs::create_dir_all(root.path().join("opt")).expect("a directory");
        for name in ["opt/file", "opt/file.dpkg-new", "opt/conf.dpkg-new", "opt/pipe.dpkg-new", "opt/hard.dpkg-new"] {
            symlink(format!("{target}/file"), root.path().join(name)).expect("a link");
        }
        for name in ["status", "status-new", "status-old", "lock", "available", "diversions", "triggers/File"] {
            let _ = fs::remove_file(root.path().join("var/lib/dpkg").join(name));
        }
        symlink(format!("{target}/file"), root.path().join("var/lib/dpkg/status-new")).expect("a link");
        symlink(format!("{target}/file"), root.path().join("var/lib/dpkg/status-old")).expect("a link");
        fs::write(root.path().join("var/lib/dpkg/status"), "").expect("a file");
        // What the first two kinds of links lead to once the root is `/`.
        let inside = root.path().join(outside.path("directory").strip_prefix("/").expect("an absolute path"));
        fs::create_dir_all(&inside).expect("directories");
        let debs = tempfile::tempdir().expect("a directory");
        let deb = Tree::new("leading", "1", "")
            .file("opt/file", "new\n")
            .file("opt/conf", "new\n")
            .file("srv/fresh", "new\n")
            .run("echo /opt/conf > DEBIAN/conffiles; mkfifo opt/pipe; ln opt/file opt/hard; chmod 4755 srv/fresh")
            .build(debs.path(), "gzip");
        let before = outside.state();
        if target.starts_with("/proc") {
            // Where there is no such directory in the root, there is no way to unpack.
            let opened = open(&[deb]);
            let root_handle = Root::open(root.path()).expect("a root");
            assert!(put_files(&root_handle, &opened[0], &Filters::new()).is_err(), "{target}");
        } else {
            our_unpack(root.path(), &[deb]);
            assert_eq!(fs::read(inside.join("fresh")).expect("in the root"), b"new\n", "{target}");
            assert_eq!(fs::read(root.path().join("opt/file")).expect("a file of its own"), b"new\n");
        }
        assert_eq!(outside.state(), before, "{target}");
    }
}

/// Each change by path, on names that are links out of the root, and beneath such.
#[test]
fn no_change_of_a_root_follows_a_link_at_its_end() {
    type Change = fn(&Root, &str);
    let changes: [(&str, Change); 14] = [
        ("create", |root, path| drop(root.create_new(path, 0o644))),
        ("write", |root, path| drop(root.write(path, 0o4755, b"new"))),
        ("append", |root, path| drop(root.append(path, 0o644, b"new"))),
        ("create directories", |root, path| drop(root.create_directories(path, 0o777))),
        ("create beneath", |root, path| drop(root.create_directories(&format!("{path}/a/b"), 0o777))),
        ("write beneath", |root, path| drop(root.write(&format!("{path}/file"), 0o777, b"new"))),
        ("chmod", |root, path| drop(root.set_mode(path, 0o7777))),
        ("chmod beneath", |root, path| drop(root.set_mode(&format!("{path}/file"), 0o7777))),
        ("symlink", |root, path| drop(root.symlink("x", path))),
        ("rename", |root, path| drop(root.rename(path, "renamed"))),
        ("link", |root, path| drop(root.hard_link(path, "linked"))),
        ("remove", |root, path| drop(root.remove(path))),
        ("empty", |root, path| drop(root.empty(path, &[]))),
        ("remove beneath", |root, path| drop(root.remove(&format!("{path}/file")))),
    ];
    let outside = Outside::new();
    let before = outside.state();
    for name in ["file", "directory"] {
        for target in targets(&outside, name) {
            for (what, change) in changes {
                let directory = tempfile::tempdir().expect("a directory");
                fs::create_dir(directory.path().join("etc")).expect("a directory");
                symlink(&target, directory.path().join("etc/link")).expect("a link");
                let root = Root::open(directory.path()).expect("a root");
                change(&root, "etc/link");
                change(&root, "/etc/../etc/link");
                // linkat(2) gives a link a further name: that is the link's, not the file's.
                assert_eq!(outside.state(), before, "{what} by {target}");
            }
            let directory = tempfile::tempdir().expect("a directory");
            symlink(&target, directory.path().join("link")).expect("a link");
            let root = Root::open(directory.path()).expect("a root");
            assert_eq!(root.read("link/file").ok().flatten(), None, "{target}");
            assert_eq!(root.read("link").ok().flatten(), None, "{target}");
            assert_eq!(root.leads_to("link"), None, "{target}");
        }
    }
}

#[test]
fn a_tree_is_removed_without_what_its_links_lead_to() {
    let outside = Outside::new();
    let before = outside.state();
    let directory = tempfile::tempdir().expect("a directory");
    let deep = directory.path().join("tree/a/b/c");
    fs::create_dir_all(&deep).expect("directories");
    fs::write(deep.join("file"), "").expect("a file");
    symlink(outside.path("directory"), deep.join("link")).expect("a link");
    symlink(outside.path("directory"), directory.path().join("tree/link")).expect("a link");
    let root = Root::open(directory.path()).expect("a root");
    assert!(root.remove("tree").expect("to be removed"));
    assert!(!root.remove("tree").expect("not to be there"));
    assert!(!directory.path().join("tree").exists());
    assert_eq!(outside.state(), before);
}
