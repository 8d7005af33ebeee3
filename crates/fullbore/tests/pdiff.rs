//! `fullbore pdiff`: files in, files out; and a whole archive whose patches the real apt takes.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use fullbore_debian::diff_index::Publication;
use fullbore_debian::pdiff::{Edits, Piece, Splice};
use fullbore_testkit::compression::Form;
use fullbore_testkit::digest::Digest;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use harness::{need, signer};
use tempfile::TempDir;

fn fullbore(arguments: &[&str]) -> Output {
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.arg("pdiff").args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

/// Runs and expects that it worked.
#[track_caller]
fn works(arguments: &[&str]) -> String {
    let output = fullbore(arguments);
    assert!(output.status.success(), "{arguments:?}\n{}", said(&output));
    said(&output)
}

/// A directory for files of one test.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.at(name), content).unwrap();
        self.at(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.at(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// As `Packages`, with some entries renewed in each state.
fn index(kind: &str, state: u64) -> String {
    let mut text = String::new();
    for number in 0..300_u64 {
        let version = (1..=state).filter(|state| (number * 7 + state * 13) % 29 == 0).max().unwrap_or(0);
        if (number + version) % 97 == 5 {
            continue;
        }
        let hash = (number << 8 | version).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = format!("{hash:016x}{:016x}", hash.rotate_left(17) ^ 0x5555);
        let _ = match kind {
            "Packages" => writeln!(
                text,
                "Package: package-{number}\nVersion: 1.{version}\nArchitecture: amd64\nMaintainer: Nobody <nobody@example.org>\n\
                 Filename: pool/package-{number}_1.{version}.deb\nSize: {}\nSHA256: {hash}{hash}\nSection: misc\n\
                 Description: number {number}\nDescription-md5: {hash}\n",
                1000 + number
            ),
            "Sources" => writeln!(
                text,
                "Package: source-{number}\nBinary: package-{number}\nVersion: 1.{version}\nArchitecture: any\nFormat: 1.0\n\
                 Directory: pool\nChecksums-Sha256:\n {hash}{hash} {number} source-{number}_1.{version}.dsc\n"
            ),
            _ => writeln!(
                text,
                "Package: package-{number}\nDescription-md5: {hash}\nDescription-en: number {number}\n It is one of many, {hash}.\n"
            ),
        };
    }
    text
}

#[test]
fn a_patch_is_made_joined_and_applied_in_all_forms() {
    let files = Files::new();
    let states: Vec<String> = (0..4).map(|state| index("Packages", state)).collect();
    let forms = [(Form::Plain, ""), (Form::Gz, ".gz"), (Form::Xz, ".xz"), (Form::Zst, ".zst")];
    let mut paths = Vec::new();
    for (state, (form, extension)) in states.iter().zip(forms) {
        paths.push(files.write(&format!("state{}{extension}", paths.len()), form.compress(state.as_bytes()).unwrap()));
    }
    for step in 0..3 {
        // Whatever the form of a patch; the last one to stdout.
        let output = files.at(&format!("step{step}{}", ["", ".gz", ".ed"][step]));
        if step < 2 {
            works(&["generate", &paths[step], &paths[step + 1], "-o", &output]);
        } else {
            let made = fullbore(&["generate", &paths[step], &paths[step + 1]]);
            // As apt names what it fetched.
            files.write("step2.ed", Form::Gz.compress(&made.stdout).unwrap());
        }
    }
    let steps = [files.at("step0"), files.at("step1.gz"), files.at("step2.ed")];
    works(&["merge", &steps[0], &steps[1], &steps[2], "-o", &files.at("all.gz")]);
    let hash = Digest::of(states[3].as_bytes()).to_string();
    for (_, extension) in forms {
        let new = files.at(&format!("new{extension}"));
        let said = works(&["apply", &paths[0], &steps[0], &steps[1], &steps[2], "-o", &new, "--sha256", &hash]);
        assert!(said.contains(&hash), "{said}");
        let merged = files.at(&format!("merged{extension}"));
        works(&["apply", &paths[0], &files.at("all.gz"), "-o", &merged]);
        assert_eq!(files.read(&format!("new{extension}")), files.read(&format!("merged{extension}")));
    }
    assert_eq!(String::from_utf8(files.read("new")).unwrap(), states[3]);
    // In place, and from one form to another.
    works(&["apply", &files.at("new.xz"), &files.write("nothing", ""), "-o", &files.at("again"), "--sha256", &hash]);
    works(&["apply", &paths[0], &files.at("all.gz"), "-o", &paths[0]]);
    assert_eq!(files.read("state0"), files.read("again"));
}

#[test]
fn what_is_wrong_leaves_the_new_file_as_it_was() {
    let files = Files::new();
    let old = files.write("old", "1\n2\n3\n");
    let new = files.write("new", "here before\n");
    let hash = "0".repeat(64);
    let good = files.write("good", "2c\nx\n.\n");
    let cases: [(&str, &[&str], i32, &str); 7] = [
        ("1d\n2d\n", &[], 4, "line 2 (byte 3): line 2 is changed after line 1 was"),
        ("2c\nx\n", &[], 4, "line 3 (byte 5): the script is incomplete"),
        ("9d\n", &[], 4, "changes line 9, the old file has 3 lines"),
        ("1d\n", &["--sha256", &hash], 4, "expected is 000000"),
        ("!reboot\n", &[], 4, "line 1 (byte 0): \"!reboot\" is not a patch command"),
        ("1d\n", &["--sha256", "xyz"], 1, "64 hexadecimal digits"),
        ("99999999999999999999d\n", &[], 4, "a line number beyond"),
    ];
    for (script, more, code, message) in cases {
        let patch = files.write("patch", script);
        let mut arguments = vec!["apply", &old, &good, &patch, "-o", &new];
        arguments.extend(more);
        let output = fullbore(&arguments);
        assert_eq!(output.status.code(), Some(code), "{script:?}: {}", said(&output));
        assert!(said(&output).contains(message), "{script:?}: {}", said(&output));
        assert_eq!(files.read("new"), b"here before\n");
        assert_eq!(files.names(), ["good", "new", "old", "patch"]);
    }
    let output = fullbore(&["generate", &old, &files.write("dot", ".\n")]);
    assert!(said(&output).contains("line 1 of the new file is a lone dot"), "{}", said(&output));
    let output = fullbore(&["merge", &good, "-o", &files.at("merged.xz")]);
    assert_eq!(output.status.code(), Some(1));
    let output = fullbore(&["apply", &old, &files.at("missing"), "-o", &new]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
}

/// An archive of one suite that is published again and again.
struct PublishedArchive {
    directory: TempDir,
    /// Seconds added to the clock, so that names and ages differ.
    clock: u64,
}

const INDEXES: [(&str, &str); 3] = [
    ("main/binary-amd64/Packages", "Packages"),
    ("main/i18n/Translation-en", "Translation"),
    ("main/source/Sources", "Sources"),
];
const PACKAGES: &str = "main/binary-amd64/Packages";
/// 2026-10-30 08:00:00 UTC.
const START: u64 = 1_793_347_200;

impl PublishedArchive {
    fn new() -> PublishedArchive {
        let archive = PublishedArchive { directory: tempfile::tempdir().unwrap(), clock: 0 };
        std::fs::write(archive.directory.path().join("key.gpg"), signer().public_key().unwrap()).unwrap();
        archive
    }

    fn suite(&self) -> PathBuf {
        self.directory.path().join("archive/dists/trixie")
    }

    fn write(&self, state: u64) {
        for (path, kind) in INDEXES {
            let path = self.suite().join(path);
            let text = index(kind, state);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
            std::fs::write(path.with_extension("gz"), Form::Gz.compress(text.as_bytes()).unwrap()).unwrap();
        }
    }

    /// An hour later.
    fn publish(&mut self, more: &[&str]) -> Output {
        self.clock += 3600;
        self.command(more).output().unwrap()
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.env("SOURCE_DATE_EPOCH", (START + self.clock).to_string());
        command.args(["pdiff", "publish", "--durability", "none"]).arg(self.suite()).args(more);
        command
    }

    #[track_caller]
    fn publishes(&mut self, more: &[&str]) -> String {
        let output = self.publish(more);
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    }

    /// As the guide has it: `apt-ftparchive release`, and a signature.
    fn sign(&self) {
        let mut command = clean_command("apt-ftparchive");
        command.args([
            "-o",
            "APT::FTPArchive::Release::Suite=trixie",
            "-o",
            "APT::FTPArchive::Release::Codename=trixie",
        ]);
        command.args(["-o", "APT::FTPArchive::Release::Components=main"]);
        command.args(["-o", "APT::FTPArchive::Release::Architectures=amd64", "release", "."]);
        let _ = std::fs::remove_file(self.suite().join("Release"));
        let release = command.current_dir(self.suite()).output().unwrap();
        assert!(release.status.success(), "{}", said(&release));
        assert!(!said(&release).contains(".fullbore"), "{}", said(&release));
        std::fs::write(self.suite().join("Release"), &release.stdout).unwrap();
        std::fs::write(self.suite().join("InRelease"), signer().clearsign(&release.stdout).unwrap()).unwrap();
    }

    fn index(&self, path: &str) -> Publication {
        let index = std::fs::read(self.suite().join(format!("{path}.diff/Index"))).unwrap();
        Publication::parse(&index[..]).unwrap()
    }

    /// Names of patches, and whatever else lies beside the Index.
    fn beside(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.suite().join(format!("{path}.diff"))).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Every listed patch, applied to the state that it is for, makes what the Index says.
    #[track_caller]
    fn all_patches_are_right(&self, path: &str, kind: &str, states: u64) -> Publication {
        let index_of = |hash: [u8; 32]| {
            let texts = (0..=states).map(|state| index(kind, state));
            texts.into_iter().find(|text| Digest::of(text.as_bytes()).0 == hash)
        };
        let published = self.index(path);
        let mut nexts: Vec<[u8; 32]> = published.steps.iter().skip(1).map(|step| step.history.sha256.0).collect();
        nexts.push(published.current.sha256.0);
        nexts.extend(published.merged.iter().flatten().map(|_| published.current.sha256.0));
        for (patch, next) in published.patches().zip(nexts) {
            let gz = std::fs::read(self.suite().join(format!("{path}.diff/{}", patch.file()))).unwrap();
            assert_eq!(Digest::of(&gz).0, patch.download.sha256.0);
            let mut script = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&gz[..]), &mut script).unwrap();
            assert_eq!((Digest::of(&script).0, script.len() as u64), (patch.patch.sha256.0, patch.patch.size));
            let old = index_of(patch.history.sha256.0).expect("a state that was");
            assert_eq!(Digest::of(&apply(&script, old.as_bytes())).0, next, "{}", patch.name);
            let sha1 =
                clean_command("sha1sum").arg(self.suite().join(format!("{path}.diff/{}", patch.file()))).output();
            let expected = format!("{} ", patch.download.sha1.unwrap());
            assert!(String::from_utf8(sha1.unwrap().stdout).unwrap().starts_with(&expected));
        }
        published
    }
}

fn apply(script: &[u8], old: &[u8]) -> Vec<u8> {
    let edits = Edits::parse(script.to_vec()).unwrap();
    let mut new = Vec::new();
    let mut take = |piece: Piece<'_>| match piece {
        Piece::Old(range) => new.extend_from_slice(&old[range]),
        Piece::New(text) => new.extend_from_slice(text),
    };
    let mut splice = Splice::new(&edits);
    splice.feed(old, &mut take);
    splice.finish(&mut take).unwrap();
    new
}

/// An apt of its own: nothing of this machine's lists, sources and settings.
struct IsolatedApt {
    directory: TempDir,
}

impl IsolatedApt {
    fn new(archive: &PublishedArchive, server: &Server, settings: &str) -> IsolatedApt {
        let directory = tempfile::tempdir().unwrap();
        let at = |part: &str| directory.path().join(part).display().to_string();
        for part in ["lists/partial", "archives/partial", "nothing"] {
            std::fs::create_dir_all(at(part)).unwrap();
        }
        std::fs::write(at("status"), "").unwrap();
        let key = archive.directory.path().join("key.gpg");
        let source = format!(
            "Types: deb deb-src\nURIs: {}\nSuites: trixie\nComponents: main\nSigned-By: {}\n",
            server.url(),
            key.display()
        );
        std::fs::write(at("test.sources"), source).unwrap();
        let text = format!(
            "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"{}\";\nDir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"-\";\n\
             Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"{}\";\nDir::State::lists \"{}\";\n\
             Dir::State::status \"{}\";\nDir::State::extended_states \"{}\";\nDir::Cache::archives \"{}\";\n\
             Dir::Cache::pkgcache \"\";\nDir::Cache::srcpkgcache \"\";\nAPT::Architecture \"amd64\";\nAPT::Architectures \"amd64\";\n\
             APT::Sandbox::User \"root\";\nAcquire::http::Proxy \"false\";\nAcquire::Retries \"0\";\nAcquire::Languages \"en\";\n\
             APT::Update::Error-Mode \"any\";\n{settings}\n",
            at("nothing"),
            at("test.sources"),
            at("nothing"),
            at("lists"),
            at("status"),
            at("extended"),
            at("archives"),
        );
        std::fs::write(at("apt.conf"), text).unwrap();
        IsolatedApt { directory }
    }

    /// Updates, and compares what apt has with the state that was published.
    #[track_caller]
    fn updates_to(&self, state: u64) {
        let mut command = clean_command("apt-get");
        command.env("APT_CONFIG", self.directory.path().join("apt.conf")).env("LC_ALL", "C.UTF-8");
        let output = command.arg("update").output().unwrap();
        let text = said(&output);
        assert!(output.status.success() && !text.contains("W:") && !text.contains("Err:"), "{text}");
        for (path, kind) in INDEXES {
            let ending = format!("_dists_trixie_{}", path.replace('/', "_"));
            let mut entries =
                std::fs::read_dir(self.directory.path().join("lists")).unwrap().map(|entry| entry.unwrap());
            let entry = entries.find(|entry| entry.file_name().to_string_lossy().ends_with(&ending)).expect("fetched");
            assert!(std::fs::read_to_string(entry.path()).unwrap() == index(kind, state), "{path} at {state}\n{text}");
        }
    }
}

/// Paths of indexes and patches that were fetched, without their beginning.
fn fetched(server: &Server) -> Vec<String> {
    let log = server.take_log();
    let paths = log.iter().filter(|entry| entry.status == 200).map(|entry| &entry.path);
    let mut paths: Vec<String> = paths.filter_map(|path| Some(path.split_once("/main/")?.1.to_owned())).collect();
    paths.sort();
    paths
}

fn apt_follows(merged: bool, settings: &str) {
    for (program, package) in [("apt-get", "apt"), ("apt-ftparchive", "apt-utils"), ("gpg", "gpg")] {
        need(program, package);
    }
    let more: &[&str] = if merged { &["--merged"] } else { &[] };
    let mut archive = PublishedArchive::new();
    archive.write(0);
    assert!(archive.publishes(more).contains("first state"));
    archive.sign();
    let server = Server::start(archive.directory.path().join("archive")).unwrap();
    server.change(|behaviour| behaviour.validators = false);
    let apt = IsolatedApt::new(&archive, &server, settings);
    apt.updates_to(0);
    server.take_log();
    // One state passes unseen.
    for state in 1..=3 {
        archive.write(state);
        archive.publishes(more);
        archive.sign();
        if state == 2 {
            continue;
        }
        apt.updates_to(state);
        let fetched = fetched(&server);
        let whole: Vec<&String> = fetched.iter().filter(|path| !path.contains(".diff/")).collect();
        assert!(whole.is_empty(), "{whole:?}");
        let patches = fetched.iter().filter(|path| path.contains("Packages.diff/") && path.ends_with(".gz")).count();
        let expected = if merged || state == 1 { 1 } else { 2 };
        assert_eq!(patches, expected, "{fetched:?}");
    }
    for (path, kind) in INDEXES {
        let published = archive.all_patches_are_right(path, kind, 3);
        assert_eq!(published.steps.len(), 3);
        assert_eq!(published.merged.map(|merged| merged.len()), merged.then_some(3));
    }
}

#[test]
fn apt_follows_a_chain_of_patches() {
    apt_follows(false, "");
}

#[test]
fn apt_follows_a_chain_one_patch_after_the_other() {
    apt_follows(false, "Acquire::PDiffs::Merge \"false\";");
}

#[test]
fn apt_follows_merged_patches() {
    apt_follows(true, "");
}

#[test]
fn old_patches_go_after_a_while() {
    let mut archive = PublishedArchive::new();
    for state in 0..6 {
        archive.write(state);
        archive.publishes(&["--merged", "--max-patches", "3", "--keep-hours", "2"]);
    }
    let published = archive.all_patches_are_right(PACKAGES, "Packages", 5);
    assert_eq!((published.steps.len(), published.merged.as_ref().unwrap().len()), (3, 3));
    assert_eq!(published.steps[2].name, "2026-10-30-1400.00");
    assert_eq!(published.merged.as_ref().unwrap()[0].name, "T-2026-10-30-1400.00-F-2026-10-30-1200.00");
    // Those of the last two hours, merged and not: of 13:00 what 14:00 replaced, of 12:00 what 13:00 did.
    let older: Vec<&str> = published.older.iter().map(|older| older.file.as_str()).collect();
    assert!(older.contains(&"T-2026-10-30-1300.00-F-2026-10-30-1100.00.gz"), "{older:?}");
    assert!(!older.iter().any(|file| file.starts_with("T-2026-10-30-1000")), "{older:?}");
    let mut expected: Vec<String> = published.patches().map(|patch| patch.file()).collect();
    expected.extend(older.iter().map(|file| (*file).to_owned()));
    expected.push("Index".to_owned());
    expected.sort();
    assert_eq!(archive.beside(PACKAGES), expected);
    // Nothing new: the Index stays as the Release has it, and files go all the same.
    let index = std::fs::read(archive.suite().join(format!("{PACKAGES}.diff/Index"))).unwrap();
    archive.clock += 10 * 3600;
    assert!(archive.publishes(&["--merged", "--keep-hours", "2"]).contains("unchanged"));
    assert_eq!(archive.beside(PACKAGES).len(), 7);
    assert_eq!(std::fs::read(archive.suite().join(format!("{PACKAGES}.diff/Index"))).unwrap(), index);
    // The other way of offering them.
    assert!(archive.publishes(&["--json"]).contains("\"relisted\""));
    assert_eq!(archive.index(PACKAGES).merged, None);
}

#[test]
fn a_run_that_was_killed_is_taken_up() {
    let mut archive = PublishedArchive::new();
    let states = archive.suite().join(".fullbore/states").join(PACKAGES);
    let saved = archive.directory.path().join("saved");
    for state in 0..3 {
        archive.write(state);
        archive.publishes(&[]);
        if state == 1 {
            std::fs::rename(&states, &saved).unwrap();
            std::fs::create_dir_all(&states).unwrap();
            for entry in std::fs::read_dir(&saved).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), states.join(entry.file_name())).unwrap();
            }
        }
    }
    // Killed when the Index of state 2 was there, and its state was not kept.
    std::fs::remove_dir_all(&states).unwrap();
    std::fs::rename(&saved, &states).unwrap();
    archive.write(3);
    archive.publishes(&[]);
    assert_eq!(archive.all_patches_are_right(PACKAGES, "Packages", 3).steps.len(), 3);
    assert_eq!(std::fs::read_dir(&states).unwrap().count(), 1);
    // The kept state is lost: patches begin anew, and none is wrong.
    std::fs::remove_dir_all(&states).unwrap();
    archive.write(4);
    assert!(archive.publishes(&[]).contains("no patch to this state"));
    assert!(!archive.suite().join(format!("{PACKAGES}.diff/Index")).exists());
    archive.write(5);
    archive.publishes(&["--merged"]);
    let published = archive.all_patches_are_right(PACKAGES, "Packages", 5);
    assert_eq!((published.steps.len(), published.older.len()), (1, 3));
}

#[test]
fn a_run_killed_at_any_time_leaves_patches_that_are_right() {
    let mut archive = PublishedArchive::new();
    archive.write(0);
    archive.publishes(&["--merged"]);
    let mut taken = std::time::Duration::ZERO;
    for state in 1..=12 {
        archive.write(state);
        archive.clock += 3600;
        let mut command = archive.command(&["--merged"]);
        let started = std::time::Instant::now();
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if state > 1 {
            // As long as the first run took, in twelve steps.
            std::thread::sleep(taken * u32::try_from(state).unwrap() / 12);
            let _ = child.kill();
        }
        child.wait().unwrap();
        taken = if state > 1 { taken } else { started.elapsed() };
        // The Index of before or the new one; either with all its patches.
        if archive.suite().join(format!("{PACKAGES}.diff/Index")).exists() {
            archive.all_patches_are_right(PACKAGES, "Packages", state);
        }
    }
    archive.write(13);
    archive.publishes(&["--merged"]);
    let published = archive.all_patches_are_right(PACKAGES, "Packages", 13);
    assert!(published.steps.len() >= 2, "the history was lost");
    // Nothing is left of those runs.
    let states = archive.suite().join(".fullbore/states").join(PACKAGES);
    assert_eq!(std::fs::read_dir(states).unwrap().count(), 1);
    let parts: Vec<String> = archive.beside(PACKAGES).into_iter().filter(|name| name.ends_with(".part")).collect();
    assert!(parts.is_empty(), "{parts:?}");
}

#[test]
fn a_patch_that_is_damaged_or_missing_is_left_out_with_those_before_it() {
    let mut archive = PublishedArchive::new();
    for state in 0..4 {
        archive.write(state);
        archive.publishes(&["--merged"]);
    }
    let second = archive.index(PACKAGES).steps[1].file();
    std::fs::write(archive.suite().join(format!("{PACKAGES}.diff/{second}")), "no patch").unwrap();
    archive.write(4);
    assert!(archive.publishes(&["--merged"]).contains(&second));
    let published = archive.all_patches_are_right(PACKAGES, "Packages", 4);
    assert_eq!((published.steps.len(), published.merged.unwrap().len()), (2, 2));
    let last = published.steps[1].file();
    std::fs::remove_file(archive.suite().join(format!("{PACKAGES}.diff/{last}"))).unwrap();
    archive.write(5);
    archive.publishes(&[]);
    assert_eq!(archive.all_patches_are_right(PACKAGES, "Packages", 5).steps.len(), 1);
}

#[test]
fn the_state_before_may_be_in_another_tree() {
    let mut old = PublishedArchive::new();
    old.write(0);
    for state in 1..4 {
        let mut new = PublishedArchive::new();
        new.clock = old.clock;
        new.write(state);
        std::fs::create_dir_all(new.suite().join("main/binary-amd64/by-hash/SHA256")).unwrap();
        new.publishes(&["--merged", "--old", &old.suite().display().to_string()]);
        let published = new.all_patches_are_right(PACKAGES, "Packages", state);
        assert_eq!(published.steps.len(), usize::try_from(state).unwrap());
        assert!(!new.suite().join(".fullbore").exists());
        let index = std::fs::read(new.suite().join(format!("{PACKAGES}.diff/Index"))).unwrap();
        let by_hash = new.suite().join(format!("{PACKAGES}.diff/by-hash/SHA256/{}", Digest::of(&index)));
        assert_eq!(std::fs::read(by_hash).unwrap(), index);
        old = new;
    }
}

#[test]
fn a_state_that_no_patch_can_express_is_fetched_whole() {
    let mut archive = PublishedArchive::new();
    for state in 0..2 {
        archive.write(state);
        archive.publishes(&[]);
    }
    std::fs::write(archive.suite().join(PACKAGES), "Package: x\n.\n").unwrap();
    let said = archive.publishes(&[]);
    assert!(said.contains("a lone dot") && said.contains("clients fetch it whole"), "{said}");
    assert!(!archive.suite().join(format!("{PACKAGES}.diff/Index")).exists());
    let output = archive.publish(&["--exclude", "."]);
    assert_eq!(output.status.code(), Some(1), "{}", crate::said(&output));
}

/// apt puts a `Release` without hashes beside indexes of flat archives.
#[test]
fn a_release_that_does_not_list_an_index_is_told_of() {
    let mut archive = PublishedArchive::new();
    archive.write(0);
    archive.publishes(&[]);
    let release = "Codename: trixie\n";
    for (state, (name, text, is_told)) in [
        ("Release", format!("{release}SHA256:\n 00 1 main/other\n"), true),
        ("Release", release.to_owned(), false),
        ("InRelease", format!("{release}SHA256:\n 00 1 main/other\n"), true),
        ("InRelease", format!("{release}SHA256:\n 00 1 {PACKAGES}\n"), false),
    ]
    .into_iter()
    .enumerate()
    {
        archive.write(state as u64 + 1);
        let path = archive.suite().join(name);
        std::fs::write(&path, text).unwrap();
        let said = archive.publishes(&[]);
        std::fs::remove_file(path).unwrap();
        let told = said.lines().any(|line| line.contains("not use patches") && line.contains(PACKAGES));
        assert_eq!(told, is_told, "{state}: {said}");
    }
}

#[test]
fn json_has_a_line_for_each_index() {
    let mut archive = PublishedArchive::new();
    archive.write(0);
    archive.publishes(&[]);
    archive.write(1);
    let lines: Vec<serde_json::Value> =
        archive.publishes(&["--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!(events, ["index", "index", "index", "summary"]);
    assert_eq!((&lines[0]["index"], &lines[0]["outcome"]), (&PACKAGES.into(), &"extended".into()));
    assert_eq!(lines[0]["added"], "2026-10-30-1000.00");
    let logged = archive.command(&[]).env("FULLBORE_LOG", "debug").output().unwrap();
    let logged = String::from_utf8_lossy(&logged.stderr).into_owned();
    assert!(logged.contains("DEBUG fullbore_apt::pdiff::publish") && logged.contains(PACKAGES), "{logged}");
    let lock = archive.suite().join(".fullbore/lock");
    let held = std::fs::File::open(lock).unwrap();
    held.lock().unwrap();
    assert_eq!(archive.publish(&[]).status.code(), Some(6));
}

#[test]
fn two_runs_do_not_publish_in_one_directory_wherever_states_are() {
    let (mut archive, old) = (PublishedArchive::new(), PublishedArchive::new());
    archive.write(1);
    old.write(0);
    let state = tempfile::tempdir().unwrap();
    let (state, old) = (state.path().display().to_string(), old.suite().display().to_string());
    let held = std::fs::File::open(archive.suite()).unwrap();
    held.lock().unwrap();
    for more in [&[][..], &["--state", &state], &["--old", &old]] {
        let output = archive.publish(more);
        assert_eq!(output.status.code(), Some(6), "{more:?}: {}", said(&output));
        assert!(said(&output).contains("in use by another run"), "{}", said(&output));
    }
    drop(held);
    archive.publishes(&["--old", &old]);
}

#[test]
fn a_device_is_not_replaced_by_a_file() {
    use std::os::unix::fs::FileTypeExt as _;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("old"), "a\n").unwrap();
    std::fs::write(at("new"), "b\n").unwrap();
    // A pipe stands for it: a mistake must not cost this machine its /dev/null.
    assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let run = |words: &[&str]| {
        let mut command = fullbore_testkit::process::clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.arg("pdiff").args(words).args([at("old"), at("new")]).arg("-o").arg(at("pipe")).output().unwrap()
    };
    for action in ["generate", "apply"] {
        let output = run(&[action]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("is not a file, and is not replaced by one"), "{error}");
        assert!(at("pipe").metadata().unwrap().file_type().is_fifo());
    }
}
