//! Suites that are incomplete, damaged or of other tools, beside suites of the same run: nothing is published under a
//! name that another index gives other content, and nothing that anybody names is deleted.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use fullbore_engine::digest::Sha256;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use harness::Ran;
use tempfile::TempDir;

/// When the first Release was made.
const BEGAN: u64 = 1_700_000_000;

/// Files that no suite names any more go at once.
const KEEP_NOTHING: [&str; 4] = ["--keep-generations", "0", "--keep-hours", "0"];

/// Where installer images lie in a suite.
const IMAGES: &str = "main/installer-amd64/current/images";

/// An archive without signatures, written by hand.
struct UnsignedArchive {
    root: TempDir,
}

/// One suite of it.
struct Suite<'a> {
    name: &'a str,
    /// Seconds after the first Release.
    age: u64,
    packages: &'a [(&'a str, &'a str)],
    images: &'a [(&'a str, &'a str)],
    fields: String,
}

fn suite<'a>(name: &'a str, age: u64, packages: &'a [(&'a str, &'a str)]) -> Suite<'a> {
    Suite { name, age, packages, images: &[], fields: format!("Suite: {name}\nCodename: {name}\n") }
}

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn stanza(path: &str, content: &str) -> String {
    let name = path.rsplit('/').next().unwrap().split('_').next().unwrap();
    let (size, sha256) = (content.len(), Sha256::of(content.as_bytes()));
    format!("Package: {name}\nVersion: 1\nArchitecture: amd64\nFilename: {path}\nSize: {size}\nSHA256: {sha256}\n\n")
}

impl UnsignedArchive {
    fn new() -> UnsignedArchive {
        UnsignedArchive { root: tempfile::tempdir().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn serve(&self) -> Server {
        Server::start(self.root.path()).unwrap()
    }

    /// Publishes a suite, with all its files.
    fn publish(&self, suite: &Suite<'_>) {
        let directory = format!("dists/{}", suite.name);
        let mut indexes = BTreeMap::new();
        let text: String = suite.packages.iter().map(|(path, content)| stanza(path, content)).collect();
        indexes.insert("main/binary-amd64/Packages".to_owned(), text);
        if !suite.images.is_empty() {
            let line = |(path, content): &(&str, &str)| format!("{}  ./{path}\n", Sha256::of(content.as_bytes()));
            indexes.insert(format!("{IMAGES}/SHA256SUMS"), suite.images.iter().map(line).collect());
        }
        for (path, content) in suite.packages {
            write(&self.path(path), content);
        }
        for (path, content) in suite.images {
            write(&self.path(&format!("{directory}/{IMAGES}/{path}")), content);
        }
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(BEGAN + suite.age));
        let date = date.replace("GMT", "UTC");
        let mut release =
            format!("Origin: Test\n{}Date: {date}\nArchitectures: amd64\nComponents: main\nSHA256:\n", suite.fields);
        for (path, content) in &indexes {
            write(&self.path(&format!("{directory}/{path}")), content);
            release.push_str(&format!(" {} {} {path}\n", Sha256::of(content.as_bytes()), content.len()));
        }
        write(&self.path(&format!("{directory}/Release")), &release);
    }
}

/// A directory to mirror into.
struct Target {
    directory: TempDir,
}

impl Target {
    fn new() -> Target {
        Target { directory: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("mirror")
    }

    fn content(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root().join(path)).ok()
    }

    fn is_there(&self, path: &str) -> bool {
        self.root().join(path).symlink_metadata().is_ok()
    }

    fn mirror(&self, from: &[&Server], suites: &[&str], flags: &[&str]) -> Ran {
        let addresses: Vec<String> = from.iter().map(|server| server.url()).collect();
        let text = format!(
            "[mirror.t]\nfrom = {addresses:?}\nsuite = {suites:?}\narch = [\"amd64\"]\nto = {:?}\ntrusted = true\n",
            self.root()
        );
        let file = self.directory.path().join("mirror.toml");
        fs::write(&file, text).unwrap();
        self.run(&[&["mirror", "--config", file.to_str().unwrap()], flags].concat())
    }

    fn check(&self) -> Ran {
        self.run(&["check", self.root().to_str().unwrap()])
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let output = clean_command(env!("CARGO_BIN_EXE_fullbore")).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
            report: serde_json::Value::Null,
        }
    }

    /// Cuts the end of the state's list of files off.
    fn damage_list(&self) {
        let own = self.root().join(".fullbore");
        let is_list = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("files-");
        let mut paths = fs::read_dir(own).unwrap().map(|entry| entry.unwrap().path());
        let list = paths.find(is_list).unwrap();
        let content = fs::read(&list).unwrap();
        fs::write(&list, &content[..content.len() / 2]).unwrap();
    }
}

#[test]
fn what_waits_for_its_suite_is_not_recorded_as_published() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    archive.publish(&suite("x", 0, &[("pool/a_1.deb", "old"), ("pool/b_1.deb", "b")]));
    let server = archive.serve();
    target.mirror(&[&server], &["x"], &[]).exits(0);
    archive.publish(&suite("x", 100, &[("pool/a_1.deb", "new"), ("pool/b_1.deb", "b"), ("pool/c_1.deb", "c")]));
    fs::remove_file(archive.path("pool/c_1.deb")).unwrap();
    target.mirror(&[&server], &["x"], &[]).exits(2);
    assert_eq!(target.content("pool/a_1.deb").unwrap(), "old");
    target.check().exits(0);
    write(&archive.path("pool/c_1.deb"), "c");
    target.mirror(&[&server], &["x"], &[]).exits(0);
    assert_eq!(target.content("pool/a_1.deb").unwrap(), "new");
    target.check().exits(0);
}

#[test]
fn replaced_files_of_one_content_come_in_one_run() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    let all = |content: &'static str| ["a", "b", "c", "d/e", "f"].map(|path| (path, content));
    let empty = ("pool/e_1.deb", "");
    let (before, after) = (all("image one"), all("image two, longer"));
    let packages = [("pool/p_1.deb", "p"), ("pool/q_1.deb", "q"), empty];
    archive.publish(&Suite { images: &before, ..suite("x", 0, &packages) });
    let server = archive.serve();
    target.mirror(&[&server], &["x"], &[]).exits(0);
    let packages = [("pool/p_1.deb", "same"), ("pool/q_1.deb", "same"), empty];
    archive.publish(&Suite { images: &after, ..suite("x", 100, &packages) });
    // One of them is gone, and its content is that of the others.
    fs::remove_file(archive.path(&format!("dists/x/{IMAGES}/a"))).unwrap();
    target.mirror(&[&server], &["x"], &[]).exits(2);
    write(&archive.path(&format!("dists/x/{IMAGES}/a")), "image two, longer");
    target.mirror(&[&server], &["x"], &[]).exits(0);
    for (path, content) in after {
        assert_eq!(target.content(&format!("dists/x/{IMAGES}/{path}")).unwrap(), content, "{path}");
    }
    assert_eq!(
        (target.content("pool/p_1.deb"), target.content("pool/q_1.deb")),
        (Some("same".into()), Some("same".into()))
    );
    target.check().exits(0);
}

#[test]
fn a_suite_that_could_not_be_adopted_is_not_cleaned_away() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    archive.publish(&suite("x", 0, &[("pool/old_1.deb", "old")]));
    let theirs = [archive.path("dists"), archive.path("pool")];
    fs::create_dir_all(target.root()).unwrap();
    let copied = clean_command("cp").arg("-r").args(&theirs).arg(target.root()).status().unwrap();
    assert!(copied.success());
    archive.publish(&suite("x", 100, &[("pool/new_1.deb", "new")]));
    archive.publish(&suite("y", 100, &[("pool/y_1.deb", "y")]));
    fs::remove_file(archive.path("pool/new_1.deb")).unwrap();
    let server = archive.serve();
    let dry = target.mirror(&[&server], &["x", "y"], &["--clean-foreign", "--dry-run"]);
    assert!(!dry.stdout.contains("pool/old_1.deb"), "{dry:?}");
    target.mirror(&[&server], &["x", "y"], &["--clean-foreign"]).exits(2);
    assert!(target.is_there("dists/y/Release"));
    for path in ["dists/x/Release", "dists/x/main/binary-amd64/Packages", "pool/old_1.deb"] {
        assert!(target.is_there(path), "{path}");
    }
}

#[test]
fn after_damage_the_files_of_other_suites_stay() {
    for flags in [&[][..], &["--clean-foreign"][..]] {
        let (archive, target) = (UnsignedArchive::new(), Target::new());
        let packages = |of: &'static str| [("pool/s_1.deb", "shared"), (of, "own")];
        archive.publish(&suite("a", 0, &packages("pool/a_1.deb")));
        archive.publish(&suite("b", 0, &packages("pool/b_1.deb")));
        let server = archive.serve();
        target.mirror(&[&server], &["a"], &[]).exits(0);
        target.mirror(&[&server], &["b"], &[]).exits(0);
        target.damage_list();
        let checked = target.check().exits(4);
        assert!(checked.stderr.contains("it is not known which files were mirrored"), "{checked:?}");
        for (age, packages) in [(100, [("pool/n_1.deb", "n")]), (200, [("pool/m_1.deb", "m")])] {
            archive.publish(&suite("a", age, &packages));
            target.mirror(&[&server], &["a"], &[&KEEP_NOTHING, flags].concat()).exits(0);
            for path in ["pool/s_1.deb", "pool/b_1.deb", "dists/b/Release", "dists/b/main/binary-amd64/Packages"] {
                assert!(target.is_there(path), "{path} {flags:?}");
            }
        }
        fs::remove_file(target.root().join("pool/b_1.deb")).unwrap();
        target.mirror(&[&server], &["b"], &[]).exits(0);
        assert!(target.is_there("pool/b_1.deb"));
        target.check().exits(0);
    }
}

#[test]
fn after_damage_a_suite_that_is_not_complete_keeps_what_it_has() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    archive.publish(&suite("x", 0, &[("pool/a_1.deb", "a"), ("pool/b_1.deb", "b")]));
    let server = archive.serve();
    target.mirror(&[&server], &["x"], &[]).exits(0);
    target.damage_list();
    archive.publish(&suite("x", 100, &[("pool/a_1.deb", "a"), ("pool/c_1.deb", "c")]));
    fs::remove_file(archive.path("pool/c_1.deb")).unwrap();
    for _ in 0..2 {
        target.mirror(&[&server], &["x"], &[&KEEP_NOTHING[..], &["--clean-foreign"]].concat()).exits(2);
        target.check().exits(0);
        assert!(target.is_there("pool/b_1.deb") && target.is_there("dists/x/main/binary-amd64/Packages"));
    }
}

#[test]
fn after_damage_no_file_is_replaced_under_another_suite() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    archive.publish(&suite("a", 0, &[("pool/s_1.deb", "old")]));
    archive.publish(&suite("x", 0, &[("pool/s_1.deb", "old"), ("pool/x_1.deb", "x")]));
    let server = archive.serve();
    target.mirror(&[&server], &["a"], &[]).exits(0);
    target.mirror(&[&server], &["x"], &[]).exits(0);
    target.damage_list();
    archive.publish(&suite("x", 100, &[("pool/s_1.deb", "old"), ("pool/y_1.deb", "y")]));
    let unmade = target.mirror(&[&server], &["x"], &["--snapshot", "s"]).exits(0);
    assert!(unmade.stderr.contains("snapshot s was not made: the list of files was damaged"), "{unmade:?}");
    for name in ["a", "x"] {
        archive.publish(&suite(name, 200, &[("pool/s_1.deb", "new")]));
    }
    let waits = target.mirror(&[&server], &["x"], &[]).exits(2);
    assert!(waits.stderr.contains("because dists/a names it: mirror both in one run"), "{waits:?}");
    assert_eq!(target.content("pool/s_1.deb").unwrap(), "old");
    target.check().exits(0);
    target.mirror(&[&server], &["a", "x"], &["--snapshot", "s"]).exits(0);
    assert_eq!(target.content("pool/s_1.deb").unwrap(), "new");
    target.check().exits(0);
}

#[test]
fn after_damage_a_flat_repository_stays() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    archive.publish(&suite("x", 0, &[("pool/x_1.deb", "x")]));
    let list = stanza("apt/f_1.deb", "f");
    write(&archive.path("apt/f_1.deb"), "f");
    write(&archive.path("apt/Packages"), &list);
    let (size, sha256) = (list.len(), Sha256::of(list.as_bytes()));
    let release = format!("Origin: Test\nDate: Tue, 14 Nov 2023 22:13:20 UTC\nSHA256:\n {sha256} {size} Packages\n");
    write(&archive.path("apt/Release"), &release);
    let server = archive.serve();
    target.mirror(&[&server], &["apt/"], &[]).exits(0);
    target.mirror(&[&server], &["x"], &[]).exits(0);
    target.damage_list();
    for age in [100, 200, 300] {
        archive.publish(&suite("x", age, &[("pool/x_1.deb", "x")]));
        target.mirror(&[&server], &["x"], &KEEP_NOTHING).exits(0);
        for path in ["apt/Release", "apt/Packages", "apt/f_1.deb"] {
            assert!(target.is_there(path), "{path}");
        }
    }
}

#[test]
fn check_tells_of_a_suite_that_has_lost_its_lists() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    archive.publish(&suite("x", 0, &[("pool/a_1.deb", "a")]));
    let server = archive.serve();
    target.mirror(&[&server], &["x"], &[]).exits(0);
    fs::remove_dir_all(target.root().join("dists/x/main")).unwrap();
    target.check().exits(4);
    target.damage_list();
    let checked = target.check().exits(4);
    assert!(checked.stderr.contains("Packages: missing"), "{checked:?}");
}

#[test]
fn suites_of_other_tools_are_found_wherever_they_are() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    archive.publish(&suite("x", 0, &[("pool/x_1.deb", "x")]));
    let server = archive.serve();
    target.mirror(&[&server], &["x"], &[]).exits(0);
    let root = target.root();
    let deep = "dists/jammy/vendor/7.0";
    write(&root.join(deep).join("Release"), "Suite: vendor\n");
    write(&root.join(deep).join("main/binary-amd64/Packages"), &stanza("pool/deep_1.deb", "d"));
    write(&root.join("other/z/Release"), "Suite: z\n");
    write(&root.join("other/z/main/binary-amd64/Packages"), &stanza("pool/linked_1.deb", "l"));
    std::os::unix::fs::symlink("../other/z", root.join("dists/z")).unwrap();
    let by_hash = "dists/h/main/binary-amd64/by-hash/SHA256/0";
    write(&root.join("dists/h/Release"), "Suite: h\n");
    write(&root.join(by_hash), &stanza("pool/hash_1.deb", "h"));
    std::os::unix::fs::symlink("by-hash/SHA256/0", root.join("dists/h/main/binary-amd64/Packages")).unwrap();
    write(&root.join("sec/updates/Release"), "Suite: updates\n");
    write(&root.join("sec/updates/main/binary-amd64/Packages"), &stanza("pool/below_1.deb", "b"));
    fs::create_dir_all(root.join("dists/old")).unwrap();
    std::os::unix::fs::symlink("../../sec/updates", root.join("dists/old/updates")).unwrap();
    write(&root.join("dists/t/Release"), "Suite: t\n");
    write(&root.join("common/binary-amd64/Packages"), &stanza("pool/common_1.deb", "c"));
    std::os::unix::fs::symlink("../../common", root.join("dists/t/main")).unwrap();
    // Links that are no suites.
    write(&root.join("README"), "text");
    let own = root.join("dists/x");
    for (link, to) in [("README", Path::new("../README")), ("up", Path::new("..")), ("loop", Path::new("loop"))] {
        std::os::unix::fs::symlink(to, root.join("dists").join(link)).unwrap();
    }
    std::os::unix::fs::symlink("/etc/hostname", root.join("dists/key.asc")).unwrap();
    std::os::unix::fs::symlink(own, root.join("dists/absolute")).unwrap();
    write(&root.join("Release"), "Suite: flat\n");
    write(&root.join("Packages"), &stanza("./pool/flat_1.deb", "f"));
    let named = ["deep", "linked", "hash", "flat", "below", "common"].map(|name| format!("pool/{name}_1.deb"));
    for path in named.iter().map(String::as_str).chain(["pool/nobodys_1.deb"]) {
        write(&root.join(path), &path[5..6]);
    }
    target.mirror(&[&server], &["x"], &["--clean-foreign", "--force-delete"]).exits(0);
    for path in named.iter().map(String::as_str).chain([deep, "dists/z", "dists/old/updates", "dists/t/main", by_hash])
    {
        assert!(target.is_there(path), "{path}");
    }
    assert!(!target.is_there("pool/nobodys_1.deb"));
    // A list that cannot be read may name anything.
    write(&root.join("dists/lzma/Release"), "Suite: lzma\n");
    write(&root.join("dists/lzma/main/binary-amd64/Packages.lzma"), "?");
    write(&root.join("pool/nobodys_1.deb"), "n");
    let kept = target.mirror(&[&server], &["x"], &["--clean-foreign", "--force-delete"]).exits(0);
    assert!(kept.stderr.contains("Packages.lzma") && kept.stderr.contains("nothing is deleted"), "{kept:?}");
    assert!(target.is_there("pool/nobodys_1.deb"));
}

#[test]
fn stable_never_leads_back_to_an_earlier_suite() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    let release = |codename: &'static str, age, packages| Suite {
        fields: format!("Suite: stable\nCodename: {codename}\n"),
        ..suite("stable", age, packages)
    };
    let server = archive.serve();
    archive.publish(&release("bookworm", 0, &[("pool/b_1.deb", "b")]));
    target.mirror(&[&server], &["stable"], &[]).exits(0);
    archive.publish(&release("trixie", 200, &[("pool/t_1.deb", "t")]));
    target.mirror(&[&server], &["stable"], &[]).exits(0);
    let leads_to = || fs::read_link(target.root().join("dists/stable")).unwrap();
    assert_eq!(leads_to(), Path::new("trixie"));
    for age in [100, 0] {
        archive.publish(&release("bookworm", age, &[("pool/b_1.deb", "b")]));
        target.mirror(&[&server], &["stable"], &[]).exits(5);
        assert_eq!(leads_to(), Path::new("trixie"), "{age}");
    }
    archive.publish(&release("forky", 300, &[("pool/f_1.deb", "f")]));
    target.mirror(&[&server], &["stable"], &[]).exits(0);
    assert_eq!(leads_to(), Path::new("forky"));
}

#[test]
fn a_suite_waits_for_one_that_stays_behind_with_an_old_file() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    archive.publish(&suite("a", 0, &[("pool/s_1.deb", "old")]));
    archive.publish(&suite("b", 0, &[("pool/s_1.deb", "old")]));
    let server = archive.serve();
    target.mirror(&[&server], &["a", "b"], &[]).exits(0);
    archive.publish(&suite("a", 100, &[("pool/s_1.deb", "new")]));
    archive.publish(&suite("b", 100, &[("pool/s_1.deb", "new"), ("pool/c_1.deb", "c")]));
    fs::remove_file(archive.path("pool/c_1.deb")).unwrap();
    let waits = target.mirror(&[&server], &["a", "b"], &[]).exits(2);
    assert!(waits.stderr.contains("pool/s_1.deb: not replaced yet, because b stays as it was"), "{waits:?}");
    assert_eq!(target.content("pool/s_1.deb").unwrap(), "old");
    target.check().exits(0);
    write(&archive.path("pool/c_1.deb"), "c");
    target.mirror(&[&server], &["a", "b"], &[]).exits(0);
    assert_eq!(target.content("pool/s_1.deb").unwrap(), "new");
    target.check().exits(0);
}

#[test]
fn a_suite_that_waits_for_a_refused_one_is_named() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    let server = archive.serve();
    for (age, content) in [(0, "old"), (100, "new")] {
        archive.publish(&suite("a", age, &[("pool/s_1.deb", content)]));
        archive.publish(&suite("b", age, &[("pool/s_1.deb", content), ("pool/b_1.deb", "b")]));
        if age == 0 {
            target.mirror(&[&server], &["a", "b"], &[]).exits(0);
        }
    }
    fs::remove_file(archive.path("dists/b/main/binary-amd64/Packages")).unwrap();
    let waits = target.mirror(&[&server], &["a", "b"], &[]);
    assert!(waits.code != Some(0) && waits.stderr.contains("pool/s_1.deb: not replaced yet"), "{waits:?}");
    assert_eq!(target.content("pool/s_1.deb").unwrap(), "old");
    target.check().exits(0);
}

#[test]
fn an_image_of_which_a_busy_mirror_tells_nothing_is_asked_for_again() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    let (old, new) = ([("netboot/linux", "one")], [("netboot/linux", "another one")]);
    archive.publish(&Suite { images: &old, ..suite("x", 0, &[("pool/a_1.deb", "a")]) });
    let server = archive.serve();
    target.mirror(&[&server], &["x"], &[]).exits(0);
    archive.publish(&Suite { images: &new, ..suite("x", 100, &[("pool/a_1.deb", "a")]) });
    server.add_fault(FaultRule::always(PathMatch::Contains("netboot".to_owned()), Fault::Status(503)));
    target.mirror(&[&server], &["x"], &[]).exits(2);
    target.check().exits(0);
    let server = archive.serve();
    target.mirror(&[&server], &["x"], &[]).exits(0);
    assert_eq!(target.content(&format!("dists/x/{IMAGES}/netboot/linux")).unwrap(), "another one");
}

#[test]
fn an_image_that_the_origin_lacks_is_skipped_beside_a_dead_mirror() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    let images = [("netboot/linux", "one"), ("netboot/gone", "two")];
    archive.publish(&Suite { images: &images, ..suite("x", 0, &[("pool/a_1.deb", "a")]) });
    fs::remove_file(archive.path(&format!("dists/x/{IMAGES}/netboot/gone"))).unwrap();
    let (server, dead) = (archive.serve(), archive.serve());
    dead.live(fullbore_testkit::server::Life::Refusing);
    // As rsync has copied it.
    let installer = target.root().join("dists/x/main/installer-amd64");
    fs::create_dir_all(installer.join("2025/images")).unwrap();
    std::os::unix::fs::symlink("2025", installer.join("current")).unwrap();
    let skipped = target.mirror(&[&server, &dead], &["x"], &["--ignore-missing"]).exits(0);
    assert!(skipped.stderr.contains("netboot/gone: skipped: no mirror has this installer image"), "{skipped:?}");
    assert_eq!(target.content(&format!("dists/x/{IMAGES}/netboot/linux")).unwrap(), "one");
    target.mirror(&[&server], &["x"], &["--ignore-missing", "--changed-exit"]).exits(10);
}

#[test]
fn one_mirror_with_an_old_image_keeps_no_suite_back() {
    let (stale, fresh, target) = (UnsignedArchive::new(), UnsignedArchive::new(), Target::new());
    let (old, new) = ([("netboot/linux", "one")], [("netboot/linux", "another one")]);
    for archive in [&stale, &fresh] {
        archive.publish(&Suite { images: &new, ..suite("x", 0, &[("pool/a_1.deb", "a")]) });
    }
    let path = format!("dists/x/{IMAGES}/netboot/linux");
    write(&stale.path(&path), old[0].1);
    target.mirror(&[&stale.serve(), &fresh.serve()], &["x"], &[]).exits(0);
    assert_eq!(target.content(&path).unwrap(), "another one");
}

#[test]
fn a_file_that_was_ignored_as_missing_is_asked_for_in_each_run() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    archive.publish(&suite("x", 0, &[("pool/a_1.deb", "a"), ("pool/b_1.deb", "b")]));
    fs::remove_file(archive.path("pool/b_1.deb")).unwrap();
    let server = archive.serve();
    for _ in 0..2 {
        target.mirror(&[&server], &["x"], &["--ignore-missing"]).exits(2);
    }
    write(&archive.path("pool/b_1.deb"), "b");
    target.mirror(&[&server], &["x"], &["--ignore-missing"]).exits(0);
    assert_eq!(target.content("pool/b_1.deb").unwrap(), "b");
}

#[test]
fn a_run_that_may_delete_nothing_completes_no_deletion() {
    let (archive, target) = (UnsignedArchive::new(), Target::new());
    archive.publish(&suite("x", 0, &[("pool/a_1.deb", "a"), ("pool/b_1.deb", "b")]));
    let server = archive.serve();
    target.mirror(&[&server], &["x"], &[]).exits(0);
    archive.publish(&suite("x", 100, &[("pool/a_1.deb", "a")]));
    let no_clean = [&KEEP_NOTHING[..], &["--no-clean"]].concat();
    target.mirror(&[&server], &["x"], &no_clean).exits(0);
    assert!(target.is_there("pool/b_1.deb"));
    // As a run that was killed before its deletions leaves it.
    let path = target.root().join(".fullbore/state");
    let text = fs::read_to_string(&path).unwrap();
    let (line, json) = text.split_once('\n').unwrap();
    let json = json.replace(r#""removal":"none""#, r#""removal":"begun""#);
    let words: Vec<&str> = line.split(' ').take(2).collect();
    fs::write(&path, format!("{} {}\n{json}", words.join(" "), Sha256::of(json.as_bytes()))).unwrap();
    for _ in 0..2 {
        target.mirror(&[&server], &["x"], &no_clean).exits(0);
        assert!(target.is_there("pool/b_1.deb"));
    }
    target.mirror(&[&server], &["x"], &KEEP_NOTHING).exits(0);
    assert!(!target.is_there("pool/b_1.deb"));
}
