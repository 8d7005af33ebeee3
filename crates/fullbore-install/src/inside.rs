//! Commands inside a package root.
//!
//! Each runs below `chroot` and, where a session of its own is wanted, in a PID namespace of its own: what a
//! maintainer script leaves behind ends with the command, and a kill of this program ends everything at once.
//! `unshare` and `chroot` are programs of Essential packages.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::Mode;

use crate::divert;
use crate::nosync::session::{OnParentExit, Session, with_mask};

/// Where dpkg and maintainer scripts find programs; dpkg insists on the sbin directories.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What maintainer scripts must not find in their environment: it speaks of files outside.
const OUTSIDE_ONLY: [&str; 2] = ["APT_CONFIG", "TMPDIR"];

/// Mounts `/proc` of the new PID namespace in the root, read-only as scripts must not change this machine, and runs
/// the command. The shell stays as process 1, outside of the root: that is how ischroot(1) knows a chroot, and libc6's
/// script, which else takes process 1 for an init that is to be started again, and gives it a second.
const WITH_PROC: &str =
    r#"if [ -d "$0" ]; then mount -t proc -o ro,nosuid,nodev,noexec proc "$0" || exit; fi; "$@"; exit $?"#;

/// A root in which commands are run.
#[derive(Debug)]
pub struct Inside<'a> {
    root: PathBuf,
    session: &'a Session,
    own_processes: bool,
    on_exit: OnParentExit,
    environment: Vec<(String, String)>,
}

impl<'a> Inside<'a> {
    /// Commands in `root`, which is canonical. With `own_processes` each gets a PID namespace and `/proc` of
    /// its own, which a privileged process may have, if only in its own user namespace; they die with us.
    pub fn alone(
        root: &Path,
        session: &'a Session,
        own_processes: bool,
        environment: Vec<(String, String)>,
    ) -> Inside<'a> {
        Inside { root: root.to_owned(), session, own_processes, on_exit: OnParentExit::Kill, environment }
    }

    /// Commands in a root that lives on: they end by themselves if we are killed. Programs that are diverted there are not
    /// run by another process, which would not have the locks that are held for them.
    pub fn living(root: &Path, session: &'a Session) -> Inside<'a> {
        let known = divert::is_in_use(root).then_some(divert::IS_WITHOUT_SYNCS);
        let environment = known.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        Inside { root: root.to_owned(), session, own_processes: false, on_exit: OnParentExit::Continue, environment }
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A program inside of the root, started without syncs.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
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
        // In the root that we run in, the user's own directory: a package may be named by a path from there.
        if self.root != Path::new("/") {
            command.current_dir(&self.root);
        }
        command
    }

    /// The same with working directory and file mode mask as dpkg has its scripts started, whatever the user's are.
    pub fn script(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(program);
        with_mask(&mut command, Mode::from_raw_mode(0o022));
        command.current_dir(&self.root);
        command
    }

    /// A program of the outside that starts nothing in the root.
    pub fn plain(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.prepare(&mut command);
        command
    }

    /// A program of the outside that works on the root, started without syncs.
    pub fn outside(&self, program: impl AsRef<OsStr>) -> Command {
        self.started(&[program.as_ref()])
    }

    fn started(&self, words: &[&OsStr]) -> Command {
        let mut command = if self.own_processes {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--pid", "--fork", "--kill-child", "--", "sh", "-c", WITH_PROC]);
            command.arg(self.root.join("proc")).args(words);
            command
        } else {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            command
        };
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        self.session.apply_filter(command, self.on_exit);
    }
}

/// Whether a process may have PID namespaces, with a `/proc` for each.
///
/// # Errors
/// There is no `unshare`.
pub fn may_have_own_processes(scratch: &Path) -> io::Result<bool> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--", "sh", "-c", WITH_PROC]).arg(scratch).arg("true");
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
}
