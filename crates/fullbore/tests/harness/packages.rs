//! Archives of real packages: of the Debian release that the tests run on, and for the long tests of others.
//!
//! They come through apt once and stay in cargo's directory for tests. The archive is signed with a
//! key of its own; a mirror of it, made by `fullbore mirror`, is served over loopback.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use fullbore_testkit::signer::Signer;

/// Beside the required packages: scripts, triggers, alternatives, conffiles, users, capabilities, hard links.
pub const MORE: &[&str] = &[
    "adduser",
    "bsdextrautils",
    "ca-certificates",
    "cron",
    "file",
    "iputils-ping",
    "less",
    "logrotate",
    "man-db",
    "openssh-server",
    "perl",
    "python3",
    "shared-mime-info",
    "sudo",
    "vim-tiny",
];

/// Below the archive's directory.
const MIRROR: &str = "mirror";

/// What `?priority` and `?essential` stand for.
const REQUIRED: &[&str] = &["?essential", "?priority(required)", "?priority(important)", "apt"];

/// What the releases of Debian are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The archive, on disk.
pub struct Packages {
    /// Suite and codename.
    pub codename: String,
    /// `dists` and `pool`.
    pub directory: PathBuf,
    /// The key that it is signed with.
    pub key: PathBuf,
    /// Of its packages.
    pub architecture: &'static str,
}

impl Packages {
    /// Serves it.
    pub fn serve(&self) -> Server {
        Server::start(self.served()).unwrap()
    }

    /// What is served.
    pub fn served(&self) -> PathBuf {
        self.directory.join(MIRROR)
    }
}

/// The archive, made by the first test that asks for it.
pub fn packages() -> &'static Packages {
    static PACKAGES: OnceLock<Packages> = OnceLock::new();
    PACKAGES.get_or_init(|| archive(None, "amd64", &[REQUIRED, MORE].concat()))
}

/// An archive with these packages and what they need, of a release of Debian; `None` is the machine's own.
pub fn archive(release: Option<&str>, architecture: &'static str, wanted: &[&str]) -> Packages {
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    fs::create_dir_all(&work).unwrap();
    // Other test programs make it, too.
    let _lock = locked(&work.join("lock"));
    make(&work, release, architecture, wanted)
}

/// Has a lock once nobody else has it.
pub fn locked(path: &Path) -> fs::File {
    /// A whole archive may be made meanwhile, from a slow mirror.
    const LONGEST: Duration = Duration::from_secs(15 * 60);
    let (lock, begun) = (fs::File::create(path).unwrap(), Instant::now());
    while lock.try_lock().is_err() {
        assert!(begun.elapsed() < LONGEST, "somebody keeps {}", path.display());
        std::thread::sleep(Duration::from_millis(200));
    }
    lock
}

fn make(work: &Path, release: Option<&str>, architecture: &'static str, wanted: &[&str]) -> Packages {
    let codename = release.map_or_else(codename, str::to_owned);
    let mut name = release.map_or_else(|| codename.clone(), |release| format!("{release}-long"));
    if architecture != "amd64" {
        name.push_str(&format!("-{architecture}"));
    }
    let directory = work.join(name);
    let made = directory.join("complete");
    let recipe = format!("{wanted:?} mirrored, {UNDECIDED}");
    if fs::read_to_string(&made).is_ok_and(|text| text == recipe) {
        return Packages { key: directory.join("key.gpg"), codename, directory, architecture };
    }
    let pool = directory.join("pool");
    fs::create_dir_all(&pool).unwrap();
    download(&work.join("apt"), &pool, release, architecture, wanted);
    let index = directory.join("dists").join(&codename).join(format!("main/binary-{architecture}"));
    fs::create_dir_all(&index).unwrap();
    made_up(&pool);
    let scanned = well(in_directory("apt-ftparchive", &directory).args(["packages", "pool"]));
    let text = String::from_utf8(scanned.stdout).unwrap();
    let mut stanzas: Vec<&str> = text.trim_end().split("\n\n").collect();
    stanzas.sort_unstable();
    fs::write(index.join("Packages"), stanzas.join("\n\n") + "\n\n").unwrap();
    let release = in_directory("apt-ftparchive", &directory.join("dists").join(&codename))
        .args(["Suite", "Codename"].map(|field| format!("--option=APT::FTPArchive::Release::{field}={codename}")))
        .arg("--option=APT::FTPArchive::Release::Components=main")
        .arg(format!("--option=APT::FTPArchive::Release::Architectures={architecture}"))
        .args(["release", "."])
        .output()
        .unwrap();
    let signer = Signer::new("packages").unwrap();
    fs::write(directory.join("dists").join(&codename).join("InRelease"), signer.clearsign(&release.stdout).unwrap())
        .unwrap();
    fs::write(directory.join("key.gpg"), signer.public_key().unwrap()).unwrap();
    mirrored(&directory, &codename, architecture);
    // The mirror has them.
    fs::remove_dir_all(pool).unwrap();
    fs::write(made, recipe).unwrap();
    Packages { key: directory.join("key.gpg"), codename, directory, architecture }
}

/// A package of which apt, shown all, chooses another provider than if it is shown only what can be reached: of equal ones
/// it takes the one whose name came up last, and only `fullbore-test-a` speaks of `-c` before `-b`.
pub const UNDECIDED: &str = "fullbore-test-d";

/// The one that it chooses.
pub const UNDECIDED_NEEDS: &str = "fullbore-test-b";

fn made_up(pool: &Path) {
    let packages = [("a", "Depends: fullbore-test-c"), ("b", "Provides: v"), ("c", "Provides: v"), ("d", "Depends: v")];
    for (letter, relation) in packages {
        let tree = pool.join("tree");
        fs::create_dir_all(tree.join("DEBIAN")).unwrap();
        let relation = relation.replace(": v", ": fullbore-test-v");
        let control = format!(
            "Package: fullbore-test-{letter}\nVersion: 1\nArchitecture: all\nPriority: optional\n{relation}\n\
             Maintainer: fullbore <fullbore@example.org>\nDescription: made up\n"
        );
        fs::write(tree.join("DEBIAN/control"), control).unwrap();
        let file = pool.join(format!("fullbore-test-{letter}_1_all.deb"));
        well(clean_command("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&tree).arg(file));
        fs::remove_dir_all(tree).unwrap();
    }
}

/// What the tests take their packages from is a mirror that we have made of the archive.
fn mirrored(directory: &Path, codename: &str, architecture: &str) {
    let server = Server::start(directory).unwrap();
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    let architectures = format!("{architecture},all");
    command.args(["mirror", "--quiet", "--suite", codename, "--arch", &architectures, "--from", &server.url()]);
    command.arg("--keyring").arg(directory.join("key.gpg")).arg("--to").arg(directory.join(MIRROR));
    well(&mut command);
}

fn codename() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    line.expect("tests with real packages need a Debian release").to_owned()
}

fn in_directory(program: &str, directory: &Path) -> Command {
    let mut command = clean_command(program);
    command.current_dir(directory);
    command
}

/// Through the sources of this machine's apt, in a state of its own.
fn download(state: &Path, pool: &Path, release: Option<&str>, architecture: &str, wanted: &[&str]) {
    let archives = state.join("cache/archives");
    for path in [&archives.join("partial"), &state.join("lists/partial")] {
        fs::create_dir_all(path).unwrap();
    }
    fs::write(state.join("status"), "").unwrap();
    let sources = state.join("sources.list");
    if let Some(release) = release {
        let line = format!("deb [signed-by={KEYRING}] {} {release} main\n", mirror());
        fs::write(&sources, line).unwrap();
    }
    let option = |name: &str, path: &Path| format!("--option={name}={}", path.display());
    let apt = |words: &[&str]| {
        let mut command = clean_command("apt-get");
        command.args(["--yes", "--quiet", "--no-install-recommends"]);
        command.arg(option("Dir::State", state)).arg(option("Dir::Cache", &state.join("cache")));
        command.arg(option("Dir::State::status", &state.join("status")));
        if release.is_some() {
            command.arg(option("Dir::Etc::sourcelist", &sources)).arg("--option=Dir::Etc::sourceparts=-");
        }
        command.args(["--option=APT::Sandbox::User=root", "--option=Acquire::Languages=none"]);
        command.args(["--option=Acquire::http::Timeout=30", "--option=Acquire::Retries=2"]);
        for name in ["APT::Architecture", "APT::Architectures"] {
            command.arg(format!("--option={name}={architecture}"));
        }
        command.arg("--option=APT::Keep-Downloaded-Packages=true");
        command.args(words);
        well(&mut command)
    };
    apt(&["update"]);
    apt(&[&["--download-only", "install"], wanted].concat());
    for entry in fs::read_dir(&archives).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".deb") {
            // An archive's pool has names without the epoch.
            let plain = name.split_once("%3a").map_or_else(
                || name.to_owned(),
                |(before, after)| format!("{}_{after}", before.rsplit_once('_').unwrap().0),
            );
            fs::rename(&path, pool.join(plain)).unwrap();
        }
    }
    fs::remove_dir_all(state).unwrap();
}

/// Where apt on this machine has Debian's packages from.
fn mirror() -> String {
    let mut command = clean_command("apt-get");
    command.args(["indextargets", "--format", "$(SITE)", "Created-By: Packages"]);
    command.arg(format!("Codename: {}", codename()));
    let output = String::from_utf8(well(&mut command).stdout).unwrap();
    output.lines().next().expect("apt on this machine has sources of Debian, and their indexes").to_owned()
}

/// Runs it; it has to end well.
pub fn well(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
    assert!(
        output.status.success(),
        "{:?}: {}\n{}{}",
        command,
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}
