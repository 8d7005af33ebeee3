//! What makes two builds of one commit alike: time, locale, umask, and paths that do not reach the programs.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::target::Target;
use crate::command::output;

/// Names that programs show in place of the clone's and cargo's directories, in panic messages for example.
const CLONE: &str = "/build/fullbore";
const CARGO_HOME: &str = "/build/cargo";

/// Separates flags in `CARGO_ENCODED_RUSTFLAGS`, so that paths may contain spaces.
const FLAG_SEPARATOR: &str = "\x1f";

/// The facts about a clone that all artefacts depend on.
pub struct Environment {
    /// The clone.
    pub root: PathBuf,
    /// Where cargo builds.
    pub target_directory: PathBuf,
    /// When the last commit was made. Every timestamp in an artefact is this one.
    pub epoch_s: u64,
    rustflags: String,
    cflags: String,
}

impl Environment {
    pub fn new(root: &Path) -> io::Result<Environment> {
        let root = root.canonicalize()?;
        let target_directory = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(directory) => std::path::absolute(root.join(directory))?,
            None => root.join("target"),
        };
        let compiler = output(Command::new(rustc()).arg("-vV"))?;
        let commit = compiler.lines().find_map(|line| line.strip_prefix("commit-hash: ")).unwrap_or("unknown");
        let sysroot = output(Command::new(rustc()).args(["--print", "sysroot"]))?;
        // rustc applies the last of several mappings that fit. The clone may be in the home directory, and cargo's
        // directory may be in the clone.
        let mut mappings = vec![(root.clone(), CLONE)];
        if !target_directory.starts_with(&root) {
            mappings.push((target_directory.clone(), CLONE));
        }
        mappings.push((cargo_home()?, CARGO_HOME));
        let standard_library = format!("/rustc/{commit}");
        mappings.push((Path::new(sysroot.trim()).join("lib/rustlib/src/rust"), &standard_library));
        let mut rustflags = vec!["-Ctarget-feature=+crt-static".to_owned()];
        let mut cflags = Vec::new();
        for (path, shown) in &mappings {
            rustflags.push(format!("--remap-path-prefix={}={shown}", path.display()));
            cflags.push(format!("-ffile-prefix-map={}={shown}", path.display()));
        }
        if mappings.iter().any(|(path, _)| path.to_string_lossy().contains(char::is_whitespace)) {
            return Err(io::Error::other(format!(
                "{}: C compilers get no paths with spaces from cargo; clone to another directory",
                root.display()
            )));
        }
        Ok(Environment {
            epoch_s: epoch_s(&root)?,
            rustflags: rustflags.join(FLAG_SEPARATOR),
            cflags: cflags.join(" "),
            root,
            target_directory,
        })
    }

    /// A command in the clone, with this time and locale.
    pub fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        command.current_dir(&self.root);
        command.env("SOURCE_DATE_EPOCH", self.epoch_s.to_string()).env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        command
    }

    /// A cargo command that compiles for `target`.
    pub fn compile(&self, target: Target) -> Command {
        let mut command = self.command(cargo());
        let suffix = target.triple().replace('-', "_");
        command.env("CARGO_ENCODED_RUSTFLAGS", &self.rustflags).env_remove("RUSTFLAGS");
        command.env(format!("CFLAGS_{suffix}"), &self.cflags);
        command.env("CARGO_TARGET_DIR", &self.target_directory);
        // Incremental builds split programs differently.
        command.env("CARGO_INCREMENTAL", "0");
        command
    }
}

/// When the last commit was made. A source tarball has no commits: its builds name the time themselves.
fn epoch_s(root: &Path) -> io::Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => output(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]))?,
    };
    text.trim().parse().map_err(|_| io::Error::other(format!("SOURCE_DATE_EPOCH: {:?} is no number of seconds", text)))
}

pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn rustc() -> OsString {
    std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())
}

fn cargo_home() -> io::Result<PathBuf> {
    let home = |name| std::env::var_os(name).map(PathBuf::from);
    let found = home("CARGO_HOME").or_else(|| home("HOME").map(|home| home.join(".cargo")));
    found.ok_or_else(|| io::Error::other("cannot find cargo's directory: set CARGO_HOME or HOME"))
}
