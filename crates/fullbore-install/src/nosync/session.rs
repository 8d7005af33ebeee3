//! Runs several commands without syncs, and syncs once at the end.
//!
//! [`super::run`] is for one command of the user; a session is for a program that starts several commands and works
//! between them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libc::sock_filter;

use super::descendants::{Descendants, Process};
use super::disks::{Disks, SyncReport, is_beyond_dpkg};
use super::filter::{self, Answer};
use super::probe::{self, FlushCost};
use super::{host, kernel};

pub(crate) use super::kernel::{pass_on, set_mask};

/// Time limit for killed programs to end. A guess: one that waits for a disk ends after the disk answers.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs commands under the filter and syncs their file systems at the end.
#[derive(Debug)]
pub struct Session {
    below: PathBuf,
    disks: Mutex<Disks>,
    filter: Vec<sock_filter>,
    no_new_privileges: bool,
    descendants: Descendants,
}

/// What happens to a command when the thread that started it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnParentExit {
    /// The command is killed.
    Kill,
    /// The command runs to its end.
    Continue,
}

impl Session {
    /// Opens the file system that holds the directory `below`, and those mounted beneath it. Orphans of commands
    /// become children of this process, so that they can be found.
    ///
    /// # Errors
    /// The system's error if the mount table cannot be read, or the directory does not exist.
    pub fn open(below: &Path) -> io::Result<Session> {
        let below = below.canonicalize()?;
        let disks = Disks::open_below(&below)?;
        Ok(Session {
            below,
            disks: Mutex::new(disks),
            filter: filter::program(Answer::AtOnce),
            no_new_privileges: !host::may_filter_with_privileges(),
            descendants: Descendants::watch()?,
        })
    }

    /// Whether setuid programs run without the rights of their owners, which the kernel requires of unprivileged
    /// users.
    pub(crate) fn gives_up_privileges(&self) -> bool {
        self.no_new_privileges
    }

    /// Makes a command and its descendants run with sync calls answered at once.
    pub(crate) fn apply_filter(&self, command: &mut Command, orphaned: OnParentExit) {
        kernel::apply_filter(command, self.filter.clone(), self.no_new_privileges, orphaned == OnParentExit::Kill);
    }

    /// Programs that outlived their commands. They stay under the filter.
    pub fn survivors(&self) -> Vec<Process> {
        self.descendants.living()
    }

    /// Like [`Session::survivors`], after a grace period for programs that are ending.
    pub(crate) fn settled_survivors(&self) -> Vec<Process> {
        let begin = Instant::now();
        loop {
            let living = self.survivors();
            if living.is_empty() || begin.elapsed() >= super::EXIT_TIMEOUT {
                return living;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Kills all survivors.
    pub fn kill(&self) {
        for process in self.survivors() {
            process.signal(rustix::process::Signal::KILL);
        }
    }

    /// Kills all survivors until none is left. Returns the survivors, and those left after [`KILL_TIMEOUT`].
    pub(crate) fn end_survivors(&self) -> (Vec<Process>, Vec<Process>) {
        let first = self.survivors();
        let begin = Instant::now();
        let mut left = first.clone();
        // A killed program may have just started another one.
        while !left.is_empty() && begin.elapsed() < KILL_TIMEOUT {
            self.kill();
            std::thread::sleep(POLL_INTERVAL);
            left = self.survivors();
        }
        (first, left)
    }

    /// Syncs the file systems; may be called more than once. Calls `told` at every interval with each one that it
    /// waits for.
    pub fn sync(&self, told: &mut dyn FnMut(&Path)) -> SyncReport {
        let mut report = self.disks.lock().unwrap_or_else(PoisonError::into_inner).sync_held(told);
        let (beyond, missed) =
            report.missed.into_iter().partition(|(path, error)| is_beyond_dpkg(&self.below, path, error));
        (report.beyond, report.missed) = (beyond, missed);
        report
    }
}

/// Measures the cost of a flush in a directory, with a few small synced writes to a nameless file. `None` if the file
/// system has no nameless files, as NFS, or if a filter around this process answers its sync calls.
pub(crate) fn flush_cost(directory: &Path) -> Option<FlushCost> {
    probe::flush_cost(directory, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shielded_command_runs_under_a_filter_and_others_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let session = Session::open(dir.path()).unwrap();
        let mut command = Command::new("grep");
        command.args(["Seccomp_filters:", "/proc/self/status"]);
        let count = |command: &mut Command| {
            let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
            text.split_whitespace().last().unwrap().parse::<u32>().unwrap()
        };
        let before = count(&mut command);
        session.apply_filter(&mut command, OnParentExit::Kill);
        assert_eq!(count(&mut command), before + 1);
        // By name: other tests of this process have children at the same time.
        assert!(session.survivors().iter().all(|process| process.name != "grep"));
        let flushed = session.sync(&mut |_| ());
        assert!(flushed.failed.is_empty());
    }

    #[test]
    fn an_orphan_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let session = Session::open(dir.path()).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 >/dev/null 2>&1 & echo $!"]);
        session.apply_filter(&mut command, OnParentExit::Kill);
        let pid: i32 = String::from_utf8(command.output().unwrap().stdout).unwrap().trim().parse().unwrap();
        assert!(session.survivors().iter().any(|process| process.pid == pid));
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}
