//! `fullbore apt enable`, `status` and `disable`, and a real apt that reads the snippet.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fullbore_testkit::archive::ArchiveBuilder;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use harness::apt::{Apt, FULLBORE, is_root, passable, script};
use harness::{need, need_verifier, signer};
use tempfile::TempDir;

/// Where the snippet is, below the root.
const SNIPPET: &str = "etc/apt/apt.conf.d/90fullbore";

/// A root with apt's directories, and a program at a path that is the same within and without.
struct System {
    directory: TempDir,
}

impl System {
    fn new() -> System {
        need("apt-config", "apt");
        let system = System { directory: passable() };
        fs::create_dir_all(system.root().join("etc/apt/apt.conf.d")).unwrap();
        fs::copy("/etc/passwd", system.root().join("etc/passwd")).unwrap();
        // `_apt` must get at it, which the directory of the build need not allow.
        if fs::hard_link(FULLBORE, system.program()).is_err() {
            fs::copy(FULLBORE, system.program()).unwrap();
        }
        system.install(&system.program());
        system
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn program(&self) -> PathBuf {
        self.directory.path().join("fullbore")
    }

    /// Where a path is within the root.
    fn within(&self, path: &Path) -> PathBuf {
        self.root().join(path.strip_prefix("/").unwrap())
    }

    /// Makes a program that is there appear at its own path within the root. No link would do: it leads nowhere there.
    fn install(&self, program: &Path) {
        let within = self.within(program);
        let (from, to) = (program.parent().unwrap(), within.parent().unwrap());
        fs::create_dir_all(to).unwrap();
        if program.exists() {
            fs::hard_link(program, &within).unwrap();
            fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
        }
    }

    fn snippet(&self) -> PathBuf {
        self.root().join(SNIPPET)
    }

    /// `fullbore apt …`: exit code, and what it said.
    fn apt(&self, arguments: &[&str]) -> (i32, String) {
        let output = clean_command(FULLBORE)
            .arg("apt")
            .arg(arguments[0])
            .arg("--root")
            .arg(self.root())
            .args(&arguments[1..])
            .output()
            .unwrap();
        let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
        (output.status.code().unwrap(), text)
    }

    fn enable(&self, more: &[&str]) -> (i32, String) {
        let program = self.program().display().to_string();
        self.apt(&[&["enable", "--program", &program], more].concat())
    }

    /// Every file below the root's /etc, with its content.
    fn etc(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut open = vec![self.root().join("etc")];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { open.push(path) } else { drop(files.insert(path.clone(), fs::read(&path).unwrap())) }
            }
        }
        files
    }
}

#[test]
fn real_apt_uses_what_was_enabled_and_nothing_is_left_of_it() {
    need("apt-get", "apt");
    need_verifier();
    let system = System::new();
    let archive = ArchiveBuilder::tiny(system.directory.path().join("archive"))
        .signer(signer())
        .sources(30)
        .states(3)
        .churn(0.1)
        .merged_pdiffs(true)
        .build()
        .unwrap();
    let server = Server::start(&archive.state(0).root).unwrap();
    let apt = Apt::new(system.root(), &server.url(), &archive.key());
    apt.update(&[]).well();
    let before = system.etc();

    let (code, text) = system.enable(&[]);
    assert_eq!((code, text.lines().count()), (0, 1), "{text}");
    assert_eq!(fs::metadata(system.snippet()).unwrap().permissions().mode() & 0o777, 0o644);
    let (code, text) = system.apt(&["status"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("rred     {}", system.program().display())), "{text}");
    server.switch_root(&archive.state(1).root);
    let ran = apt.update(&["Debug::pkgAcquire::Worker=1"]).well();
    assert!(ran.text.contains(&format!("( via {} )", system.program().display())), "{}", ran.text);
    assert!(!ran.fetched_the_full_index(), "{}", ran.text);
    // Once more is the same.
    assert_eq!(system.enable(&[]).0, 0);
    assert_eq!(system.etc().len(), before.len() + 1);

    let (code, text) = system.apt(&["disable"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(system.etc(), before);
    server.switch_root(&archive.state(2).root);
    let ran = apt.update(&["Debug::pkgAcquire::Worker=1"]).well();
    assert!(!ran.text.contains("( via") && !ran.fetched_the_full_index(), "{}", ran.text);
    assert_eq!(apt.packages(), archive.forge(2, "trixie").index("main/binary-amd64/Packages").unwrap().as_bytes());
    let (code, text) = system.apt(&["disable"]);
    assert!(code == 0 && text.contains("was not there"), "{text}");
    assert!(system.apt(&["status"]).1.contains("rred     apt's own"));
}

#[test]
fn a_snippet_that_is_not_ours_any_more_is_left_alone() {
    let system = System::new();
    for (content, what) in [(None, "changed after"), (Some("Dir \"/\";\n"), "not written by")] {
        assert_eq!(system.enable(&["--force"]).0, 0);
        let ours = fs::read_to_string(system.snippet()).unwrap();
        let content = content.map_or(format!("{ours}Acquire::Retries \"9\";\n"), str::to_owned);
        fs::write(system.snippet(), &content).unwrap();
        for (code, text) in [system.enable(&[]), system.apt(&["disable"])] {
            assert!(code == 1 && text.contains(what) && text.contains("--force"), "{code} {text}");
        }
        assert_eq!(fs::read_to_string(system.snippet()).unwrap(), content);
        let (code, text) = system.apt(&["status"]);
        assert!(code == 2 && text.contains(what), "{code} {text}");
        assert_eq!(system.enable(&["--force"]).0, 0);
        assert_eq!(fs::read_to_string(system.snippet()).unwrap(), ours);
    }
    fs::write(system.snippet(), "").unwrap();
    assert_eq!(system.apt(&["disable", "--force"]).0, 0);
    assert!(!system.snippet().exists());
}

#[test]
fn another_file_that_has_the_last_word_is_named() {
    let system = System::new();
    let other = system.root().join("etc/apt/apt.conf.d/99other");
    fs::write(&other, "Dir::Bin { methods { RRED \"/opt/rred\"; }; };\n").unwrap();
    let (code, text) = system.enable(&[]);
    assert!(code == 0 && text.contains("warning") && text.contains("99other"), "{code} {text}");
    let (code, text) = system.apt(&["status"]);
    assert!(code == 2 && text.contains("99other") && text.contains("rred     /opt/rred"), "{code} {text}");
    let (code, text) = system.apt(&["status", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, report["standing"].as_str()), (2, Some("ours")), "{report}");
    assert_eq!(report["problems"].as_array().unwrap().len(), 1, "{report}");
    fs::remove_file(other).unwrap();
    assert_eq!(system.apt(&["status"]).0, 0);
    // The program goes away.
    fs::remove_file(system.within(&system.program())).unwrap();
    let (code, text) = system.apt(&["status"]);
    assert!(code == 2 && text.contains("cannot run"), "{code} {text}");
}

#[test]
fn a_program_that_would_not_do_is_not_enabled() {
    let system = System::new();
    let place = system.directory.path();
    let mut programs: Vec<(PathBuf, &str)> = Vec::new();
    let mut add = |name: &str, text: &str, mode: u32, why| {
        let path = script(place, name, text);
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        programs.push((path, why));
    };
    add("silent", "exit 0", 0o755, "ended without a message");
    add("talks", "echo 'Hello, world'", 0o755, "does not answer");
    add("hello", "printf '101 Log\\nMessage: hello\\n\\n'", 0o755, "its first message is 101");
    add("mine", "exit 0", 0o750, "every user may run");
    add("open", "exit 0", 0o757, "can change this program");
    fs::create_dir(place.join("closed")).unwrap();
    fs::copy(FULLBORE, place.join("closed/fullbore")).unwrap();
    fs::set_permissions(place.join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    programs.push((place.join("closed/fullbore"), "not every user may enter"));
    programs.push((place.join("missing"), "cannot run"));
    for (program, why) in programs {
        system.install(&program);
        let (code, text) = system.apt(&["enable", "--program", program.to_str().unwrap()]);
        assert!(code == 1 && text.contains(why), "{}: {code} {text}", program.display());
        assert!(!system.snippet().exists(), "{}", program.display());
    }
    let (code, text) = system.apt(&["enable", "--program", "fullbore"]);
    assert!(code == 1 && text.contains("absolute path"), "{code} {text}");
    // Nothing is installed in this root.
    let (code, text) = system.apt(&["enable"]);
    assert!(code == 1 && text.contains("usr/bin/fullbore: no such file"), "{code} {text}");
    assert!(fs::read_dir(system.root().join("etc/apt/apt.conf.d")).unwrap().next().is_none());
}

#[test]
fn lists_of_mirrors_come_with_the_other_methods() {
    let system = System::new();
    let list = system.directory.path().join("mirrors.txt");
    fs::write(&list, "http://mirror.example.org/debian http://mirror.example.net/debian\n").unwrap();
    system.install(&list);
    let mirrors = list.to_str().unwrap();
    let good = std::fs::read(&list).unwrap();
    for wrong in ["", "# nobody\n", "not a url\n", "ftp://deb.example.org/debian\n"] {
        std::fs::write(&list, wrong).unwrap();
        let (code, text) = system.enable(&["--mirrors", mirrors]);
        assert!(code == 1 && text.contains("mirrors.txt"), "{wrong:?}: {text}");
    }
    std::fs::write(&list, good).unwrap();
    let (code, text) = system.enable(&["--mirrors", mirrors, "--level", "best"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = system.apt(&["status"]);
    assert_eq!(code, 0, "{text}");
    for method in ["rred ", "http ", "https "] {
        let line = text.lines().find(|line| line.starts_with(method)).unwrap();
        assert!(line.ends_with(system.program().to_str().unwrap()), "{text}");
    }
    assert!(text.contains(&format!("mirrors  {mirrors}")), "{text}");
    if is_root() {
        fs::set_permissions(&list, PermissionsExt::from_mode(0o600)).unwrap();
        let (code, text) = system.apt(&["status"]);
        assert!(code == 2 && text.contains("everybody may read"), "{code} {text}");
    }
}

/// The directory that apt's snippets are in, and links in the root by which it is reached: absolute ones, and those that
/// go up further than there is.
const WAYS: [(&str, &str, &str); 6] = [
    ("etc/apt", "/elsewhere", "elsewhere/apt.conf.d"),
    ("etc/apt", "../../../../../../../../elsewhere", "elsewhere/apt.conf.d"),
    ("etc", "/elsewhere", "elsewhere/apt/apt.conf.d"),
    ("etc/apt/apt.conf.d", "/elsewhere", "elsewhere"),
    ("etc/apt/apt.conf.d", "/by", "elsewhere"),
    ("etc", "/etc.d/../elsewhere", "elsewhere/apt/apt.conf.d"),
];

/// A root whose `/etc` is reached by a link, and a directory outside that the same link would lead to.
#[test]
fn apt_with_a_root_follows_absolute_links_within_it() {
    for (link, target, parts) in WAYS {
        let system = System::new();
        let outside = tempfile::tempdir().unwrap();
        let root = system.root();
        // The path is the same within and without.
        let there = outside.path().to_str().unwrap();
        let target = target.replace("/elsewhere", there).replace("/by", &format!("{there}.by"));
        let parts = parts.replace("elsewhere", there.trim_start_matches('/'));
        fs::remove_dir_all(root.join("etc/apt")).unwrap();
        let link = root.join(link);
        if link.is_dir() {
            fs::remove_dir_all(&link).unwrap();
        }
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        fs::create_dir_all(root.join("etc.d")).unwrap();
        fs::create_dir_all(root.join(&parts)).unwrap();
        std::os::unix::fs::symlink(there, root.join(format!("{}.by", there.trim_start_matches('/')))).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        // What must stay as it is, at the same places outside.
        let beyond = Path::new("/").join(&parts);
        fs::create_dir_all(&beyond).unwrap();
        fs::write(beyond.join("90fullbore"), "Dir::Bin::Methods::rred \"/outside\";\n").unwrap();
        fs::write(beyond.join("91outside"), "Dir::Bin::Methods::rred \"/outside\";\n").unwrap();
        let kept = |what: &str| {
            let mut names: Vec<_> = fs::read_dir(&beyond).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, ["90fullbore", "91outside"], "{what} by {target}");
            let text = fs::read_to_string(beyond.join("90fullbore")).unwrap();
            assert!(text.contains("/outside"), "{what} by {target}");
        };
        let (code, said) = system.enable(&[]);
        assert_eq!(code, 0, "{target}: {said}");
        kept("enable");
        assert!(root.join(&parts).join("90fullbore").exists(), "{target}: {said}");
        let (code, said) = system.apt(&["status"]);
        assert!(code == 0 && said.contains("as fullbore wrote it") && !said.contains("/outside"), "{target}: {said}");
        let (code, said) = system.apt(&["disable"]);
        assert_eq!(code, 0, "{target}: {said}");
        kept("disable");
        assert!(!root.join(&parts).join("90fullbore").exists(), "{target}: {said}");
    }
}

/// A snippet that is itself a link out of the root is not read from there, and a snippet is not written through one.
#[test]
fn snippets_that_lead_out_of_a_root_are_not_read() {
    let system = System::new();
    let outside = tempfile::tempdir().unwrap();
    let file = outside.path().join("file");
    fs::write(&file, "Dir::Bin::Methods::rred \"/outside\";\n").unwrap();
    std::os::unix::fs::symlink(&file, system.root().join("etc/apt/apt.conf.d/95link")).unwrap();
    std::os::unix::fs::symlink(&file, system.root().join("etc/apt/apt.conf")).unwrap();
    let (code, said) = system.enable(&[]);
    assert!(code == 0 && !said.contains("/outside"), "{said}");
    let (code, said) = system.apt(&["status"]);
    assert!(code == 0 && !said.contains("/outside"), "{said}");
    system.apt(&["disable"]);
    std::os::unix::fs::symlink(&file, system.snippet()).unwrap();
    let (code, said) = system.enable(&["--force"]);
    assert!(code == 0 || said.contains("link"), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "Dir::Bin::Methods::rred \"/outside\";\n");
}
