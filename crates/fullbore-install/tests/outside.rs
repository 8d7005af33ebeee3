//! Nothing that is written into a root gets out of it: packages and roots with links of each kind, and files outside whose
//! content, mode, owner, times, attributes and names must stay as they are.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use fullbore_install::root::is_same_outside;
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
    let changes: [(&str, Change); 15] = [
        ("own the directory", |root, path| drop(root.own_directory(path, Some(0), 0o777))),
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

#[test]
fn links_that_lead_programs_of_the_outside_elsewhere_are_known() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().canonicalize().expect("a root");
    let outside = tempfile::tempdir().expect("a directory");
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("srv/cache")).expect("directories");
    fs::create_dir_all(at("etc")).expect("a directory");
    let absolute = outside.path().display().to_string();
    let up = format!("../../../../../../../../..{absolute}");
    for (name, target) in [
        ("within", "srv/cache"),
        ("etc/within", "../srv/cache"),
        ("etc/self", "/etc"),
        ("etc/absolute", absolute.as_str()),
        ("etc/up", up.as_str()),
        ("etc/magic", "/proc/self/root"),
        ("etc/dangling", "/srv/none"),
        ("etc/near", "none"),
    ] {
        symlink(target, at(name)).expect("a link");
    }
    let expected = [
        ("/srv/cache", true),
        ("/srv/cache/not/there", true),
        ("/within", true),
        ("/within/partial", true),
        ("/etc/within/partial", true),
        ("/etc/self", false),
        ("/etc/absolute", false),
        ("/etc/absolute/partial", false),
        ("/etc/up", false),
        ("/etc/magic/etc", false),
        ("/etc/dangling", false),
        // Nothing is there: the kernel does not say where a program would write.
        ("/etc/near", false),
    ];
    for (path, is_same) in expected {
        assert_eq!(is_same_outside(&root, Path::new(path)).expect("no loop"), is_same, "{path}");
    }
    symlink("loop", at("loop")).expect("a link");
    assert!(is_same_outside(&root, Path::new("/loop/x")).is_err());
}

/// Calls that change what a path leads to: in a root they follow links out of it.
const CALLS: [&str; 19] = [
    "fs::write(",
    "fs::create_dir",
    "DirBuilder::new",
    "fs::hard_link(",
    "fs::rename(",
    "fs::remove_",
    "fs::set_permissions(",
    "fs::copy(",
    "File::create",
    "File::options",
    "OpenOptions::new",
    "fs::chown(",
    "fs::lchown(",
    "unix::fs::symlink(",
    "rustix::fs::chmod(",
    "mknodat(CWD",
    "setxattr(",
    "fs::truncate(",
    "set_times(",
];

/// Where there are such calls all the same, how many, and why.
const ALLOWED: [(&str, usize, &str); 11] = [
    (
        "fullbore-install/src/divert.rs",
        8,
        "by `within`; its end is made anew or renamed; the root lives, and is trusted",
    ),
    ("fullbore-install/src/divert/apt_conf.rs", 1, "likewise"),
    ("fullbore-install/src/relay.rs", 2, "its directory, made and removed as such; what is in it goes by a handle"),
    ("fullbore-install/src/root/edit.rs", 1, "a descriptor's path in /proc"),
    (
        "fullbore-install/src/bootstrap/target.rs",
        5,
        "the root itself and its marker, before and after anything runs in it",
    ),
    (
        "fullbore-install/src/bootstrap/oci.rs",
        6,
        "names made anew at the top of the root, when nothing runs in it any more",
    ),
    (
        "fullbore-install/src/bootstrap/pack.rs",
        2,
        "likewise: that directory moves to the target; and a FIFO of the user is opened",
    ),
    (
        "fullbore-install/src/hooks/protocol/helper.rs",
        1,
        "by `within`, as the programs of other hooks: a file of a hook",
    ),
    ("fullbore-install/src/hooks/protocol/listener.rs", 3, "outside of the root: files of the user that a hook names"),
    ("fullbore-install/src/installing/download.rs", 3, "names in the archives directory, none of which is followed"),
    ("fullbore-install/src/installing/log.rs", 1, "removes a name"),
];

#[test]
fn nothing_in_a_root_is_changed_by_a_path_of_the_outside() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates");
    let mut ahead: Vec<PathBuf> = vec![crates.join("fullbore-install/src")];
    let mut found = BTreeMap::new();
    while let Some(path) = ahead.pop() {
        if path.is_dir() {
            ahead.extend(fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let text = fs::read_to_string(&path).expect("source text");
        let program = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = program.lines().filter(|line| !line.trim_start().starts_with("//"));
        let count: usize = lines.map(|line| CALLS.iter().filter(|call| line.contains(**call)).count()).sum();
        let is_test = path.file_name().is_some_and(|name| name == "tests.rs");
        if count > 0 && !is_test {
            found.insert(path.strip_prefix(crates).expect("below").display().to_string(), count);
        }
    }
    let allowed: BTreeMap<String, usize> =
        ALLOWED.iter().map(|(file, count, _)| ((*file).to_owned(), *count)).collect();
    assert_eq!(found, allowed, "use `fullbore_install::root::Root`, or say in ALLOWED why a path does no harm");
}
