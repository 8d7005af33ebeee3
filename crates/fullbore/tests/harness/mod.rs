//! What the tests of the whole program stand on: an archive, a server, the real binary, and a look
//! at what is published.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod apt;
pub mod servers;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use fullbore_testkit::archive::{Archive, ArchiveBuilder, ArchiveFile};
use fullbore_testkit::digest::Digest;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use fullbore_testkit::signer::Signer;
use fullbore_testkit::verify;
use serde_json::Value;
use tempfile::TempDir;

/// The key of all archives of a test binary; making one costs more than an archive.
pub fn signer() -> Arc<Signer> {
    static SIGNER: OnceLock<Arc<Signer>> = OnceLock::new();
    SIGNER.get_or_init(|| Arc::new(Signer::new("Archive key").unwrap())).clone()
}

/// Somebody else's key.
pub fn stranger() -> Arc<Signer> {
    static SIGNER: OnceLock<Arc<Signer>> = OnceLock::new();
    SIGNER.get_or_init(|| Arc::new(Signer::new("Somebody else").unwrap())).clone()
}

/// The small archive of this test binary, two states, that nobody changes.
pub fn common() -> &'static Archive {
    static COMMON: OnceLock<Archive> = OnceLock::new();
    COMMON.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap().keep();
        remove_at_exit(directory.clone());
        ArchiveBuilder::tiny(directory).signer(signer()).states(2).churn(0.3).build().unwrap()
    })
}

/// A static value is never dropped, so a process that outlives us removes its directory.
pub fn remove_at_exit(directory: PathBuf) {
    let script = "while kill -0 \"$1\" 2>/dev/null; do sleep 1; done; rm -rf \"$2\"";
    let _ = Command::new("setsid")
        .args(["sh", "-c", script, "sh", &std::process::id().to_string()])
        .arg(directory)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
}

/// An archive of a test's own, to be forged.
pub fn own_archive(change: impl FnOnce(ArchiveBuilder) -> ArchiveBuilder) -> (TempDir, Archive) {
    let directory = tempfile::tempdir().unwrap();
    let builder = ArchiveBuilder::tiny(directory.path().join("archive")).signer(signer()).states(2).churn(0.3);
    let archive = change(builder).build().unwrap();
    (directory, archive)
}

/// How a run ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// The whole report; `Null` where none was written.
    pub report: Value,
}

impl Ran {
    /// A number of the summary, such as `totals.requests`.
    pub fn number(&self, path: &str) -> u64 {
        let pointer = format!("/summary/{}", path.replace('.', "/"));
        self.report.pointer(&pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} in {self:?}"))
    }

    /// Panics unless the exit code is this one.
    #[track_caller]
    pub fn exits(self, code: i32) -> Ran {
        let Ran { stdout, stderr, .. } = &self;
        assert_eq!(self.code, Some(code), "exit code\n--- stdout\n{stdout}\n--- stderr\n{stderr}");
        self
    }

    /// Panics unless stderr holds this text.
    #[track_caller]
    pub fn says(self, text: &str) -> Ran {
        assert!(self.stderr.contains(text), "{text:?} is not in stderr:\n{}", self.stderr);
        self
    }
}

impl Ran {
    /// Panics unless stdout holds this text.
    #[track_caller]
    pub fn prints(self, text: &str) -> Ran {
        assert!(self.stdout.contains(text), "{text:?} is not in stdout:\n{}\n{}", self.stdout, self.stderr);
        self
    }
}

/// A directory to mirror into, and how.
pub struct Mirror {
    _directory: TempDir,
    /// The mirror.
    pub to: PathBuf,
    report: PathBuf,
    keyring: Option<PathBuf>,
    suite: String,
}

impl Mirror {
    pub fn new(archive: &Archive) -> Mirror {
        let directory = tempfile::tempdir().unwrap();
        Mirror {
            to: directory.path().join("mirror"),
            report: directory.path().join("report.json"),
            keyring: Some(archive.key()),
            suite: "trixie".to_owned(),
            _directory: directory,
        }
    }

    pub fn suite(self, suite: &str) -> Mirror {
        Mirror { suite: suite.to_owned(), ..self }
    }

    pub fn keyring(self, keyring: PathBuf) -> Mirror {
        Mirror { keyring: Some(keyring), ..self }
    }

    /// Leaves it to the sources what is trusted.
    pub fn no_keyring(self) -> Mirror {
        Mirror { keyring: None, ..self }
    }

    /// The whole command but for its environment's namespace.
    pub fn arguments(&self, from: &[&Server], more: &[&str]) -> Vec<String> {
        let mut arguments = vec!["mirror".to_owned()];
        for server in from {
            arguments.extend(["--from".to_owned(), server.url()]);
        }
        for (flag, value) in [("--to", &self.to), ("--report", &self.report)] {
            arguments.extend([flag.to_owned(), value.display().to_string()]);
        }
        if let Some(keyring) = &self.keyring {
            arguments.extend(["--keyring".to_owned(), keyring.display().to_string()]);
        }
        if !self.suite.is_empty() {
            arguments.extend(["--suite".to_owned(), self.suite.clone()]);
        }
        arguments.extend(more.iter().map(|text| (*text).to_owned()));
        arguments
    }

    pub fn command(&self, from: &[&Server], more: &[&str]) -> Command {
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.args(self.arguments(from, more)).env("APT_CONFIG", self.apt_config(""));
        command
    }

    /// A configuration of apt that has these lines and nothing of this machine's.
    pub fn apt_config(&self, lines: &str) -> PathBuf {
        let file = self.report.with_extension("apt.conf");
        let nothing = "Dir::Etc::main \"/nonexistent\";\nDir::Etc::parts \"/nonexistent\";\n";
        std::fs::write(&file, format!("{nothing}{lines}")).unwrap();
        file
    }

    pub fn run(&self, from: &[&Server]) -> Ran {
        self.run_with(from, &[])
    }

    pub fn run_with(&self, from: &[&Server], more: &[&str]) -> Ran {
        self.finish(self.command(from, more))
    }

    /// `fullbore check` of it.
    pub fn check(&self, more: &[&str]) -> Ran {
        self.finish(self.check_command(more))
    }

    pub fn check_command(&self, more: &[&str]) -> Command {
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.arg("check").arg(&self.to).arg("--report").arg(&self.report).args(more);
        if let Some(keyring) = &self.keyring {
            command.arg("--keyring").arg(keyring);
        }
        command
    }

    /// Runs a command made elsewhere and reads the report.
    pub fn finish(&self, mut command: Command) -> Ran {
        let _ = std::fs::remove_file(&self.report);
        let output = command.output().unwrap();
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            report: std::fs::read(&self.report)
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                .unwrap_or_default(),
        }
    }

    /// What a client can see: every name under `dists/` and `pool/`, its inode and its content.
    pub fn tree(&self) -> Tree {
        tree(&self.to)
    }
}

/// Path → inode and hash of a file, or the target of a link.
pub type Tree = BTreeMap<String, String>;

/// See [`Mirror::tree`]. Unfinished files are not part of it.
pub fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    for top in ["dists", "pool", "flat"] {
        if root.join(top).exists() {
            visit(root, &root.join(top), &mut tree);
        }
    }
    tree
}

fn visit(root: &Path, directory: &Path, tree: &mut Tree) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_dir() {
            visit(root, &path, tree);
        } else if metadata.is_symlink() {
            tree.insert(name, format!("-> {}", std::fs::read_link(&path).unwrap().display()));
        } else if !name.ends_with(".part") {
            let (digest, _) = Digest::of_file(&path).unwrap();
            tree.insert(name, format!("{} {digest}", metadata.ino()));
        }
    }
}

/// The paths of a tree that exist in both and differ, or only in the first: what a client may miss.
pub fn lost(before: &Tree, after: &Tree) -> Vec<String> {
    before.iter().filter(|(path, what)| after.get(*path) != Some(what)).map(|(path, _)| path.clone()).collect()
}

/// Panics unless everything of the suite's state is in the mirror, right, and no temporary is left.
#[track_caller]
pub fn verified(mirror: &Path, archive: &Archive, state: usize) {
    let state = archive.state(state);
    let mut problems = verify::suite(mirror, state, "trixie");
    problems.extend(verify::files(mirror, &state.select(|file| file.suite == "trixie")));
    problems.extend(verify::leftovers(mirror));
    assert!(problems.is_empty(), "{problems:#?}");
}

/// The same for the files only, which may be those of an older state.
#[track_caller]
pub fn holds(mirror: &Path, expected: &BTreeMap<&str, &ArchiveFile>) {
    let problems = verify::files(mirror, expected);
    assert!(problems.is_empty(), "{problems:#?}");
}

/// The state whose InRelease is published, if any; panics when it is of no state.
pub fn published(mirror: &Path, archive: &Archive) -> Option<usize> {
    let inrelease = std::fs::read(mirror.join("dists/trixie/InRelease")).ok()?;
    let of = |state: &fullbore_testkit::archive::State| {
        std::fs::read(state.root.join("dists/trixie/InRelease")).unwrap() == inrelease
    };
    Some(archive.states.iter().position(of).expect("the published InRelease is of no state of the archive"))
}

/// The program as a user to whom modes apply: nobody in root's place, and everybody else as themselves.
pub fn as_another() -> Command {
    if !rustix::process::getuid().is_root() {
        return clean_command(env!("CARGO_BIN_EXE_fullbore"));
    }
    need("setpriv", "util-linux");
    let mut command = clean_command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_fullbore")]);
    command
}

/// A program that the test cannot do without.
#[track_caller]
pub fn need(program: &str, package: &str) {
    assert!(is_installed(program), "{program} is missing: apt-get install {package}");
}

/// A program that verifies signatures, as apt needs one.
#[track_caller]
pub fn need_verifier() {
    assert!(is_installed("gpgv") || is_installed("sqv"), "gpgv and sqv are missing: apt-get install gpgv");
}

fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).exists()))
        || ["/usr/sbin", "/sbin"].iter().any(|directory| Path::new(directory).join(program).exists())
}
