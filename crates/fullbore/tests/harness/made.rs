//! Packages made up for a test, in an archive of their own, and pairs of roots with a real apt and dpkg into which
//! they are installed: by fullbore into one, by apt into the other.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use tempfile::TempDir;

use super::packages::{locked, packages, well};
use super::roots::{ALLOWED_RECORDS, Allowed, What, differences, packaged, read};

/// Times in packages made here: long ago, so that what is set and what is made now can be told apart.
const MADE_AT: u64 = 1_600_000_000;

/// The settings of Debian's image for containers, `debian:VERSION-slim`.
pub const SLIM: &str = "\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/info/*
";

/// In what a root of ours may differ from one of apt's.
const ALLOWED_DAYS: &[Allowed] = &[
    Allowed { path: "etc/shadow", in_what: &[What::Content], reason: "holds the day, which may change" },
    Allowed { path: "etc/shadow-", in_what: &[What::Content], reason: "holds the day" },
];

/// Where an archive of packages is made.
pub struct Archive {
    directory: TempDir,
}

impl Archive {
    pub fn new() -> Archive {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("pool")).unwrap();
        Archive { directory }
    }

    /// Makes a package. `fields` are lines of its control file, `script` fills the tree that it runs in.
    pub fn add(&self, name: &str, version: &str, fields: &str, script: &str) -> PathBuf {
        let tree = tempfile::tempdir().unwrap();
        let architecture = if fields.contains("Architecture:") { "" } else { "Architecture: amd64\n" };
        let control = format!(
            "Package: {name}\nVersion: {version}\n{architecture}Maintainer: M <m@example.org>\n{fields}\
             Description: {name}\n"
        );
        fs::create_dir(tree.path().join("DEBIAN")).unwrap();
        fs::write(tree.path().join("DEBIAN/control"), control).unwrap();
        let script = format!(
            "umask 022; chmod 755 .; {script}\n\
             for script in DEBIAN/p*inst DEBIAN/p*rm; do [ ! -e $script ] || chmod 755 $script; done\n\
             find . -exec touch -h -d @{MADE_AT} {{}} +"
        );
        well(clean_command("sh").args(["-ec", &script]).current_dir(tree.path()));
        let architecture = control_field(tree.path(), "Architecture");
        let file = self.directory.path().join("pool").join(format!("{name}_{version}_{architecture}.deb"));
        let mut build = clean_command("dpkg-deb");
        build.args(["-Zgzip", "-z1", "--root-owner-group", "--build"]).arg(tree.path()).arg(&file);
        well(build.env("SOURCE_DATE_EPOCH", MADE_AT.to_string()));
        file
    }

    /// Serves what there is now.
    pub fn serve(&self) -> Server {
        let index = well(clean_command("apt-ftparchive").args(["packages", "pool"]).current_dir(self.directory.path()));
        fs::create_dir_all(self.directory.path().join("flat")).unwrap();
        fs::write(self.directory.path().join("flat/Packages"), index.stdout).unwrap();
        Server::start(self.directory.path()).unwrap()
    }
}

fn control_field(tree: &Path, name: &str) -> String {
    let text = fs::read_to_string(tree.join("DEBIAN/control")).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap().to_owned()
}

/// A small root with apt in it and the settings of a slim image, made once per build of the tests.
fn base() -> &'static Path {
    static BASE: OnceLock<PathBuf> = OnceLock::new();
    BASE.get_or_init(|| {
        let archive = packages();
        let work = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let _lock = locked(&work.join("install-base.lock"));
        let root = work.join(format!("install-base-{}", archive.codename));
        if root.join("var/lib/apt/extended_states").exists() && !root.join(".fullbore-unfinished").exists() {
            return root;
        }
        let server = archive.serve();
        let mut command = fullbore();
        command.args(["bootstrap", "--quiet", "--variant", "apt", "--keyring"]).arg(&archive.key);
        for line in SLIM.lines() {
            command.args(["--dpkgopt", line]);
        }
        command.arg(&archive.codename).arg(&root).arg(server.url());
        well(&mut command);
        fs::write(root.join("var/lib/apt/extended_states"), "").unwrap();
        root
    })
}

pub fn fullbore() -> Command {
    assert!(rustix::process::geteuid().is_root(), "roots and mounts: run as root (script/test does)");
    clean_command(env!("CARGO_BIN_EXE_fullbore"))
}

/// A copy of the base that knows one archive, in memory: dpkg's own syncs cost nothing there.
pub fn root_for(server: &Server, prepare: &str) -> TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir_in("/var/tmp") };
    let place = place.unwrap();
    root_in(place.path(), server, prepare);
    place
}

/// The same in a directory.
pub fn root_in(place: &Path, server: &Server, prepare: &str) -> PathBuf {
    let root = place.join("root");
    well(clean_command("cp").args(["--archive"]).arg(base()).arg(&root));
    fs::remove_dir_all(root.join("etc/apt/sources.list.d")).ok();
    fs::write(root.join("etc/apt/sources.list"), format!("deb [trusted=yes] {}/ flat/\n", server.url())).unwrap();
    fs::write(
        root.join("etc/apt/apt.conf.d/test"),
        "APT::Install-Recommends false;\nDir::Cache::pkgcache \"\";\nDir::Cache::srcpkgcache \"\";\n",
    )
    .unwrap();
    inside(&root, prepare);
    inside(&root, "apt-get update");
    root
}

/// Runs a script in a root; it has to end well.
pub fn inside(root: &Path, script: &str) -> String {
    String::from_utf8_lossy(&well(&mut chroot(root, script)).stdout).into_owned()
}

/// A script in a root.
pub fn chroot(root: &Path, script: &str) -> Command {
    let mut command = clean_command("chroot");
    command.arg(root).args(["sh", "-ec", script]).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// `fullbore install --yes` of these words, which may be options.
pub fn install(root: &Path, words: &[&str]) -> Command {
    let mut command = fullbore();
    command.args(["install", "--yes", "--root"]).arg(root).args(words);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8").stdin(std::process::Stdio::null());
    command
}

/// What ours said last in JSON.
pub fn summary(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_else(|| panic!("{output:?}"))).unwrap()
}

/// Two roots that were the same in the beginning.
pub struct Pair {
    ours: TempDir,
    theirs: TempDir,
}

impl Pair {
    /// `prepare` is run in the first, of which the other is a copy.
    pub fn new(server: &Server, prepare: &str) -> Pair {
        let ours = root_for(server, prepare);
        let theirs = tempfile::tempdir_in(ours.path().parent().unwrap()).unwrap();
        well(clean_command("cp").args(["--archive"]).arg(ours.path().join("root")).arg(theirs.path()));
        Pair { ours, theirs }
    }

    pub fn ours(&self) -> PathBuf {
        self.ours.path().join("root")
    }

    pub fn theirs(&self) -> PathBuf {
        self.theirs.path().join("root")
    }

    /// Has ours start again from a copy of what it was in the beginning.
    pub fn renew(&mut self, clean: &Path) -> PathBuf {
        fs::remove_dir_all(self.ours()).unwrap();
        well(clean_command("cp").arg("--archive").arg(clean.join("root")).arg(self.ours.path()));
        self.ours()
    }

    /// Runs a script in both.
    pub fn both(&self, script: &str) {
        assert_eq!(inside(&self.ours(), script), inside(&self.theirs(), script));
    }

    /// Installs the same in both, and has both succeed or both fail. What ours said in JSON.
    pub fn install(&self, options: &[&str], words: &[&str]) -> Output {
        let mut ours = install(&self.ours(), &["--json"]);
        let mut apt = String::from("apt-get");
        for option in options {
            ours.args(["--aptopt", option]);
            apt.push_str(&format!(" --option {option}"));
        }
        let ours = ours.args(words).output().unwrap();
        apt.push_str(" --yes install ");
        apt.push_str(&words.join(" "));
        let theirs = chroot(&self.theirs(), &apt).output().unwrap();
        let said = |output: &Output| {
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            format!("{}\n{out}{err}", output.status)
        };
        assert_eq!(ours.status.success(), theirs.status.success(), "{words:?}: {}\n{}", said(&ours), said(&theirs));
        ours
    }

    /// The roots are the same, and so are apt's and dpkg's records without their times.
    pub fn assert_same(&self) {
        self.assert_same_state();
        let history = |root: &Path| {
            let text = fs::read_to_string(root.join("var/log/apt/history.log")).unwrap_or_default();
            text.lines().filter(|line| !line.contains("-Date:")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(history(&self.ours()), history(&self.theirs()));
        // Without starts and triggers: what is left to dpkg comes after the others of its batch.
        let log = |root: &Path| {
            let text = fs::read_to_string(root.join("var/log/dpkg.log")).unwrap();
            let lines = text.lines().map(|line| line.splitn(3, ' ').last().unwrap().to_owned());
            let mut lines: Vec<_> =
                lines.filter(|line| !line.contains("trig") && !line.starts_with("startup")).collect();
            lines.sort();
            lines
        };
        assert_eq!(log(&self.ours()), log(&self.theirs()));
    }

    /// All that the roots have is the same.
    pub fn assert_same_entries(&self) {
        let owned = packaged(&self.theirs());
        let allowed = [ALLOWED_RECORDS, ALLOWED_DAYS].concat();
        let lines = differences(&read(&self.ours()), &read(&self.theirs()), &|path| owned.contains(path), &allowed);
        assert!(lines.is_empty(), "{} differences:\n{}", lines.len(), lines.join("\n"));
    }

    /// The roots are the same, whatever the way to there was, and sound.
    pub fn assert_same_state(&self) {
        self.assert_same_entries();
        for script in [
            "dpkg --audit",
            "dpkg --verify || :",
            "dpkg-divert --list",
            "apt-mark showauto",
            "apt-mark showhold",
            "apt-get check",
        ] {
            self.both(script);
        }
    }
}
