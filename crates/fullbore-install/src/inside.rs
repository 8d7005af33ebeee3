//! Commands that run in a package root.
//!
//! Each command runs in a chroot and, if requested, in a PID namespace of its own: processes that a maintainer script
//! leaves running end with the command, and a kill of fullbore ends all commands at once. `unshare` and `chroot` are
//! programs of Essential packages.

use std::ffi::OsStr;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::Mode;

use crate::divert;
use crate::nosync::session::{OnParentExit, Session, set_mask};

/// Search path for dpkg and maintainer scripts; dpkg requires the sbin directories.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Environment variable of this program in the namespaces of a bootstrap. Other programs must not have it: a hook may call
/// this program for another root.
pub const IN_NAMESPACE: &str = "FULLBORE_IN_NAMESPACE";

/// Environment variables that maintainer scripts must not have, because they name files outside of the root.
const OUTSIDE_ONLY: [&str; 2] = ["APT_CONFIG", "TMPDIR"];

/// Mounts `/proc` of the new PID namespace in the root and runs the command. It is read-only, because scripts must
/// not change this machine. The shell stays as process 1 outside of the root: ischroot(1) detects a chroot by that,
/// and the script of libc6 would otherwise restart process 1 as an init, and wait for a second.
const WITH_PROC: &str =
    r#"if [ -d "$0" ]; then mount -t proc -o ro,nosuid,nodev,noexec proc "$0" || exit; fi; "$@"; exit $?"#;

/// Options of unshare. The program itself is in a private mount namespace, if it has one; in a chroot whose `/` is no
/// mount point, unshare cannot make it private again.
const UNSHARE: [&str; 5] = ["--mount", "--propagation", "unchanged", "--pid", "--fork"];

/// Creates commands that run in a root or work on it.
#[derive(Debug)]
pub(crate) struct RootCommands<'a> {
    root: PathBuf,
    session: &'a Session,
    own_processes: OwnProcesses,
    on_exit: OnParentExit,
    environment: Vec<(String, String)>,
}

/// Whether each command gets a PID namespace of its own, with its own `/proc` in the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnProcesses {
    /// No; only privileged processes may have one.
    No,
    /// A PID namespace, but no `/proc`.
    WithoutProc,
    /// A PID namespace and its `/proc`.
    WithProc,
}

impl<'a> RootCommands<'a> {
    /// For a new root at the canonical path `root`. Commands are killed when this process ends.
    pub(crate) fn alone(
        root: &Path,
        session: &'a Session,
        own_processes: OwnProcesses,
        environment: Vec<(String, String)>,
    ) -> RootCommands<'a> {
        RootCommands { root: root.to_owned(), session, own_processes, on_exit: OnParentExit::Kill, environment }
    }

    /// For an existing root: commands run to their end when this process is killed. Wrappers of diverted programs
    /// execute the program in the same process, because another one would not have its locks.
    pub(crate) fn living(root: &Path, session: &'a Session) -> RootCommands<'a> {
        let known = divert::is_in_use(root).then_some(divert::IS_WITHOUT_SYNCS);
        let environment = known.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        RootCommands {
            root: root.to_owned(),
            session,
            own_processes: OwnProcesses::No,
            on_exit: OnParentExit::Continue,
            environment,
        }
    }

    /// Path of the root, as seen from outside.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Command for a program in the root, without syncs.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut words: Vec<&OsStr> = Vec::new();
        if self.root != Path::new("/") {
            words.extend(["chroot".as_ref(), self.root.as_os_str()]);
        }
        words.push(program.as_ref());
        let mut command = self.started(&words);
        for name in OUTSIDE_ONLY {
            command.env_remove(name);
        }
        command.env("PATH", SEARCH_PATH);
        // In the own root, the working directory stays: a package may be named by a relative path.
        if self.root != Path::new("/") {
            command.current_dir(&self.root);
        }
        command
    }

    /// Like [`RootCommands::command`], with the working directory and umask of dpkg's scripts.
    pub(crate) fn script(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(program);
        set_mask(&mut command, Mode::from_raw_mode(0o022));
        command.current_dir(&self.root);
        command
    }

    /// Gives a maintainer script of an existing root the stdin of the caller, as dpkg does. A terminal stays with apt,
    /// which reads it meanwhile, and the script has no stdin: nobody would see its question.
    pub(crate) fn pass_stdin(&self, script: &mut Command) {
        if self.on_exit == OnParentExit::Continue && !io::stdin().is_terminal() {
            script.stdin(Stdio::inherit());
        }
    }

    /// Command for a program outside of the root that starts nothing in it.
    pub(crate) fn plain(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.prepare(&mut command);
        command
    }

    /// Command for a program outside of the root that works on it, without syncs.
    pub(crate) fn outside(&self, program: impl AsRef<OsStr>) -> Command {
        self.started(&[program.as_ref()])
    }

    fn started(&self, words: &[&OsStr]) -> Command {
        let mut command = if self.own_processes == OwnProcesses::No {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            command
        } else {
            // Without a directory nothing is mounted.
            let proc =
                if self.own_processes == OwnProcesses::WithProc { self.root.join("proc") } else { PathBuf::new() };
            let mut command = Command::new("unshare");
            command.args(UNSHARE).args(["--kill-child", "--", "sh", "-c", WITH_PROC]).arg(proc).args(words);
            command
        };
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).env_remove(IN_NAMESPACE);
        command.stdin(Stdio::null());
        self.session.apply_filter(command, self.on_exit);
    }
}

/// Whether this process may create PID namespaces with a `/proc` for each.
///
/// # Errors
/// The system's error if `unshare` cannot be started.
pub(crate) fn may_have_own_processes(scratch: &Path) -> io::Result<bool> {
    let mut command = Command::new("unshare");
    command.args(UNSHARE).args(["--", "sh", "-c", WITH_PROC]).arg(scratch).arg("true");
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
}
