//! An apt of its own: real programs, and nothing of this machine's lists, caches and settings.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fullbore_testkit::process::clean_command;

/// The program under test.
pub const FULLBORE: &str = env!("CARGO_BIN_EXE_fullbore");

/// A private apt. As root its methods run as `_apt`, as they do on a real system.
pub struct Apt {
    /// Lists, caches and settings are below it.
    pub directory: PathBuf,
    options: Vec<String>,
}

impl Apt {
    /// For one source, a suite `trixie` with component main for amd64. The directory is made, and
    /// must be below one that everybody may enter (see [`passable`]).
    pub fn new(directory: PathBuf, source: &str, key: &Path) -> Apt {
        for part in ["lists/partial", "archives/partial", "etc/apt/apt.conf.d", "etc/preferences.d"] {
            std::fs::create_dir_all(directory.join(part)).unwrap();
        }
        std::fs::write(directory.join("status"), "").unwrap();
        // The key may be in a directory that `_apt` cannot enter.
        std::fs::copy(key, directory.join("etc/key.gpg")).unwrap();
        let at = |part: &str| directory.join(part).display().to_string();
        let entry = format!(
            "Types: deb\nURIs: {source}\nSuites: trixie\nComponents: main\nArchitectures: amd64\nSigned-By: {}\n",
            at("etc/key.gpg")
        );
        std::fs::write(directory.join("etc/test.sources"), entry).unwrap();
        let configuration = format!(
            "Dir::Etc::main \"/nonexistent\";\nDir::Etc::parts \"{}\";\nDir::Etc::sourcelist \"{}\";\n\
             Dir::Etc::sourceparts \"/nonexistent\";\nDir::Etc::preferencesparts \"{}\";\nDir::State::lists \"{}\";\n\
             Dir::State::status \"{}\";\nDir::State::extended_states \"{}\";\nDir::Cache::archives \"{}\";\n\
             Dir::Cache::pkgcache \"\";\nDir::Cache::srcpkgcache \"\";\nAPT::Architecture \"amd64\";\n\
             APT::Architectures {{ \"amd64\"; }};\nAcquire::http::Proxy \"false\";\nAcquire::Languages \"none\";\n\
             APT::Update::Error-Mode \"any\";\nAcquire::Retries \"0\";\nDebug::NoLocking \"true\";\n",
            at("etc/apt/apt.conf.d"),
            at("etc/test.sources"),
            at("etc/preferences.d"),
            at("lists"),
            at("status"),
            at("extended"),
            at("archives"),
        );
        std::fs::write(directory.join("etc/apt.conf"), configuration).unwrap();
        // As apt makes them.
        for part in ["lists/partial", "archives/partial"] {
            give_to_apt(&directory.join(part));
        }
        Apt { directory, options: Vec::new() }
    }

    /// Sets an option for all runs.
    pub fn option(mut self, name: &str, value: impl std::fmt::Display) -> Apt {
        self.options.push(format!("{name}={value}"));
        self
    }

    /// Keeps Packages in this form.
    pub fn keeping(self, form: &str) -> Apt {
        match form {
            "plain" => self,
            _ => self
                .option("Acquire::GzipIndexes", true)
                .option("Acquire::IndexTargets::deb::Packages::KeepCompressedAs", form),
        }
    }

    /// A program of apt's with these settings.
    pub fn command(&self, program: &str) -> Command {
        let mut command = clean_command(program);
        command.env("APT_CONFIG", self.directory.join("etc/apt.conf")).env("LC_ALL", "C.UTF-8");
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }

    /// Runs `apt-get`.
    pub fn get(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command("apt-get").args(arguments).output().unwrap())
    }

    /// `apt-get update`, with further options.
    pub fn update(&self, options: &[&str]) -> Ran {
        let mut arguments = vec!["update"];
        arguments.extend(options.iter().flat_map(|option| ["-o", option]));
        self.get(&arguments)
    }

    /// Names and content of the files in the lists directory, without `partial/`.
    pub fn lists(&self) -> BTreeMap<String, Vec<u8>> {
        files(&self.directory.join("lists"))
    }

    /// The names in `partial/`.
    pub fn partial(&self) -> Vec<String> {
        files(&self.directory.join("lists/partial")).into_keys().collect()
    }

    /// The plain text of the one index of packages, as apt reads it.
    pub fn packages(&self) -> Vec<u8> {
        let index = self
            .lists()
            .into_keys()
            .find(|name| name.rsplit_once("_Packages").is_some_and(|(_, ending)| !ending.starts_with(".diff")));
        let path = self.directory.join("lists").join(index.expect("an index of packages"));
        let output = self.command("/usr/lib/apt/apt-helper").arg("cat-file").arg(path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }
}

/// How a program of apt's ended.
#[derive(Debug)]
pub struct Ran {
    /// Exit code.
    pub code: Option<i32>,
    /// All that it said.
    pub text: String,
}

impl Ran {
    /// What a program said.
    pub fn of(output: Output) -> Ran {
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        Ran { code: output.status.code(), text }
    }

    /// Panics unless it ended well and without a warning or an item that was given up.
    #[track_caller]
    pub fn well(self) -> Ran {
        // Our main file and parts are in another place than apt would like.
        let odd = |line: &&str| {
            ["E:", "W:", "Err:", "Ign:"].iter().any(|start| line.trim_start().starts_with(start))
                && !line.contains("/nonexistent")
        };
        let odd: Vec<&str> = self.text.lines().filter(odd).collect();
        assert!(self.code == Some(0) && odd.is_empty(), "{odd:?}\n{}", self.text);
        self
    }

    /// Whether the whole index of packages was fetched.
    pub fn fetched_the_full_index(&self) -> bool {
        self.text.lines().any(|line| line.contains(" Packages [") && !line.contains("pdiff"))
    }
}

/// Regular files and links of a directory, by name.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.path().symlink_metadata().unwrap().is_dir() || entry.file_name() == "lock" {
            continue;
        }
        let name = entry.file_name().into_string().unwrap();
        files.insert(name, std::fs::read(entry.path()).unwrap_or_default());
    }
    files
}

/// A directory for the test that `_apt` may enter, too.
pub fn passable() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    directory
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a directory or file `_apt`'s, if it can be.
pub fn give_to_apt(path: &Path) {
    if is_root() {
        let user = fullbore_apt::acquire::User::by_name("_apt").expect("user _apt: apt-get install apt");
        std::os::unix::fs::chown(path, Some(user.uid), Some(0)).unwrap();
    }
}

/// The program under test under another name. A link does: who starts methods may go anywhere.
pub fn program(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    std::os::unix::fs::symlink(FULLBORE, &path).unwrap();
    path
}

/// A program in the shell.
pub fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fullbore_testkit::process::write_program(&path, &format!("#!/bin/sh\n{text}\n"));
    path
}
