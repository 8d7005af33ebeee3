//! Runs apt under dpkg's locks from the start.
//!
//! dpkg's locks belong to a process and survive `exec` (fcntl(2), record locks). The resolution and the download before
//! apt starts must happen under the locks that apt will hold. So the process that becomes apt is forked first, takes
//! both locks, and waits. When it becomes apt, it already holds the locks that apt takes, and no other apt can start in
//! between.

mod kernel;

use std::fmt;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Flock, FlockType};

use crate::database::LOCKS;
use crate::database::open_lock;
use crate::root::{Root, RootError};

/// Interval between calls of `told` while a lock is held.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Time to wait for a held lock: apt's `DPkg::Lock::Timeout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockTimeout {
    /// At most this time.
    For(Duration),
    /// No limit.
    Never,
}

impl LockTimeout {
    /// From seconds as in apt.conf(5), where a negative number means no limit.
    pub(crate) fn of_seconds(seconds: i64) -> LockTimeout {
        u64::try_from(seconds).map_or(LockTimeout::Never, |seconds| LockTimeout::For(Duration::from_secs(seconds)))
    }
}

/// Process that holds one of dpkg's locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockHolder {
    /// Name of the lock file in dpkg's directory.
    pub lock: &'static str,
    /// Id and name of the process; `None` if it has ended or is in another PID namespace.
    pub process: Option<(i32, String)>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "/var/lib/dpkg/{} is held by ", self.lock)?;
        match &self.process {
            Some((number, name)) => write!(formatter, "process {number} ({name})"),
            None => formatter.write_str("another process"),
        }
    }
}

/// Error in starting a program with dpkg's locks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrontendError {
    /// Another process held a lock for the whole timeout.
    #[error("{0}")]
    Held(LockHolder),
    /// The caller stopped the wait.
    #[error("stopped waiting for dpkg's locks")]
    GivenUp,
    /// A lock file cannot be opened.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The program cannot be started, or a lock cannot be taken.
    #[error("{program}: {source}")]
    Start {
        /// Name of the program.
        program: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A forked process that holds dpkg's locks and waits to become a program. On drop it ends.
#[derive(Debug)]
pub(crate) struct WaitingFrontend {
    program: String,
    go: Option<OwnedFd>,
    child: Option<JoinHandle<io::Result<Child>>>,
}

impl WaitingFrontend {
    /// Forks the process of `command`, a frontend of dpkg, and waits until it has the locks of `root`. Calls `told`
    /// once with the holder of a lock, and without one at every interval; `told` may stop the wait. The command must
    /// not die with the thread that started it.
    ///
    /// # Errors
    /// [`FrontendError::Held`] if another process held a lock for the whole timeout. [`FrontendError::GivenUp`] if
    /// `told` stopped the wait. [`FrontendError::Root`] if a lock file cannot be opened. [`FrontendError::Start`] if
    /// the process cannot be started, or ends before it has the locks.
    pub(crate) fn start(
        mut command: Command,
        root: &Root,
        timeout: LockTimeout,
        told: &mut dyn FnMut(Option<&LockHolder>) -> ControlFlow<()>,
    ) -> Result<WaitingFrontend, FrontendError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |source: io::Error| FrontendError::Start { program: program.clone(), source };
        // One descriptor per lock: closing any descriptor of a file releases its lock, also in exec.
        let locks = [open_lock(root, LOCKS[0])?, open_lock(root, LOCKS[1])?];
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed(errno.into()));
        let ((going, go), (heard, telling)) = (pipe()?, pipe()?);
        kernel::wait_under_locks(&mut command, locks, (going, go.as_fd()), (heard.as_fd(), telling), timeout);
        // spawn returns when the program runs. Until then the process has the name of this thread, which other programs
        // show.
        let child =
            std::thread::Builder::new().name("fullbore".to_owned()).spawn(move || command.spawn()).map_err(failed)?;
        let mut waiting = WaitingFrontend { program: program.clone(), go: Some(go), child: Some(child) };
        loop {
            // A signal interrupts the wait, too.
            let polled = rustix::event::poll(&mut [PollFd::new(&heard, PollFlags::IN)], Some(&POLL_INTERVAL));
            if matches!(polled, Ok(0) | Err(Errno::INTR)) {
                if told(None).is_break() {
                    return Err(FrontendError::GivenUp);
                }
                continue;
            }
            let mut word = [0; 2];
            match rustix::io::retry_on_intr(|| rustix::io::read(&heard, &mut word)) {
                Ok(2) if word[0] == kernel::HAS => return Ok(waiting),
                Ok(2) => {
                    let at = usize::from(word[1]).min(LOCKS.len() - 1);
                    let holder = LockHolder { lock: LOCKS[at], process: holder(root, LOCKS[at]) };
                    if word[0] == kernel::GIVES_UP {
                        return Err(FrontendError::Held(holder));
                    }
                    if told(Some(&holder)).is_break() {
                        return Err(FrontendError::GivenUp);
                    }
                }
                // The process ended before it had the locks.
                _ => {
                    let error = waiting.join().err().unwrap_or_else(|| io::ErrorKind::Interrupted.into());
                    return Err(failed(error));
                }
            }
        }
    }

    /// Makes the waiting process become the program, with dpkg's locks.
    ///
    /// # Errors
    /// [`FrontendError::Start`] if the program cannot be started, or the waiting process was killed.
    pub(crate) fn go(mut self) -> Result<Child, FrontendError> {
        let told = self.go.take().map(|go| rustix::io::write(&go, &[kernel::GO]));
        let gone = matches!(told, Some(Err(_)));
        match self.join() {
            Ok(_) if gone => Err(io::Error::from(rustix::io::Errno::PIPE)),
            joined => joined,
        }
        .map_err(|source| FrontendError::Start { program: self.program.clone(), source })
    }

    fn join(&mut self) -> io::Result<Child> {
        if let Some(go) = self.go.take() {
            // The process may have ended.
            let _ = rustix::io::write(&go, b"n");
        }
        let joined = self.child.take().and_then(|child| child.join().ok());
        joined.unwrap_or_else(|| Err(io::ErrorKind::Interrupted.into()))
    }
}

impl Drop for WaitingFrontend {
    fn drop(&mut self) {
        if self.child.is_some() {
            // A process that was killed before must be reaped.
            if let Ok(mut child) = self.join() {
                let _ = child.wait();
            }
        }
    }
}

fn holder(root: &Root, lock: &str) -> Option<(i32, String)> {
    let file = open_lock(root, lock).ok()?;
    let held = rustix::process::fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok()??;
    let number = held.pid?.as_raw_nonzero().get();
    let name = fs::read_to_string(format!("/proc/{number}/comm")).ok()?;
    Some((number, name.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Lock, LockError};

    const AT_ONCE: LockTimeout = LockTimeout::For(Duration::ZERO);

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("var/lib/dpkg")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        (dir, root)
    }

    fn start(root: &Root, script: &str, timeout: LockTimeout) -> Result<WaitingFrontend, FrontendError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        WaitingFrontend::start(command, root, timeout, &mut |_| ControlFlow::Continue(()))
    }

    #[test]
    fn the_locks_are_held_from_the_start_until_the_program_ends() {
        let (dir, root) = root();
        let ended = dir.path().join("ended");
        let waiting = start(&root, &format!("sleep 0.2; touch {}", ended.display()), AT_ONCE).unwrap();
        assert!(matches!(Lock::frontend(&root), Err(LockError::Held(_))));
        assert!(matches!(Lock::database(&root), Err(LockError::Held(_))));
        assert!(!ended.exists());
        let mut child = waiting.go().unwrap();
        // The program runs, and has them still.
        let held = Lock::frontend(&root).is_err();
        assert!(held || ended.exists());
        assert!(child.wait().unwrap().success());
        drop(Lock::frontend(&root).unwrap());
    }

    #[test]
    fn a_program_that_is_not_wanted_ends_and_gives_them_back() {
        let (_dir, root) = root();
        drop(start(&root, "exit 3", AT_ONCE).unwrap());
        drop(Lock::frontend(&root).unwrap());
    }

    #[test]
    fn who_has_a_lock_is_told_and_waited_for() {
        let (_dir, root) = root();
        let first = start(&root, "true", AT_ONCE).unwrap();
        let error = start(&root, "true", AT_ONCE).unwrap_err();
        let FrontendError::Held(holder) = error else { panic!("{error}") };
        assert_eq!(holder.lock, "lock-frontend");
        assert!(holder.process.is_some());
        let mut seen = 0;
        let mut first = Some(first);
        let mut command = Command::new("true");
        command.arg("second");
        let second = WaitingFrontend::start(command, &root, LockTimeout::Never, &mut |holder| {
            seen += u32::from(holder.is_some());
            drop(first.take());
            ControlFlow::Continue(())
        });
        assert!(second.unwrap().go().unwrap().wait().unwrap().success());
        assert_eq!(seen, 1);
    }

    #[test]
    fn waiting_may_be_given_up() {
        let (_dir, root) = root();
        let _first = start(&root, "true", AT_ONCE).unwrap();
        let wait = |told: &mut dyn FnMut(Option<&LockHolder>) -> ControlFlow<()>| {
            let second = WaitingFrontend::start(Command::new("true"), &root, LockTimeout::Never, told);
            assert!(matches!(second, Err(FrontendError::GivenUp)), "{second:?}");
        };
        wait(&mut |holder| if holder.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) });
        // It waits already, and nothing more is told of whom.
        let mut is_told = false;
        wait(&mut |holder| {
            is_told |= holder.is_some();
            if is_told && holder.is_none() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let (_dir, root) = root();
        let waiting =
            WaitingFrontend::start(Command::new("/no/such/program"), &root, AT_ONCE, &mut |_| panic!("told")).unwrap();
        assert!(matches!(waiting.go(), Err(FrontendError::Start { .. })));
        drop(Lock::frontend(&root).unwrap());
    }
}
