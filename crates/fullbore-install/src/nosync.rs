//! Runs a command whose sync calls return at once, and syncs once when it has ended.
//!
//! ```text
//! run      open a descriptor per file system · start the command under the filter
//!          wait, pass signals on            · find programs that outlive it
//!          sync the open file systems       · report the results
//! ```
//!
//! All descendants of the command inherit the filter ([`filter`]), static or dynamic, in a chroot or not, and cannot
//! remove it. So callers must check [`service_manager`] first, and programs that outlive the command make the run fail.

pub(crate) mod disks;
pub mod filter;

mod descendants;
mod devices;
mod host;
mod kernel;
mod mounted;
mod probe;
pub mod session;
mod tally;

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};

pub use self::descendants::Process;
pub use self::disks::SyncReport;
pub use self::filter::{Answer, Call};
pub use self::host::service_manager;
pub use self::probe::FlushCost;
pub use self::tally::Tally;

use self::descendants::Descendants;
use self::devices::Devices;
use self::disks::Disks;
use self::kernel::{Signals, Start, StartFailure};
use self::mounted::Mounted;

/// Time for programs to end after the command has ended. A guess: agents and helpers that notice the end of the
/// command need a fraction of it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between checks for such programs.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Interval between checks for mounts in namespaces of descendants. With hundreds of processes a check takes some
/// milliseconds.
const MOUNT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A command that is run without syncs.
#[derive(Debug)]
pub struct Job {
    /// The program, found in `PATH` if it has no slash.
    pub program: OsString,
    /// Arguments of the program, without its name.
    pub arguments: Vec<OsString>,
    /// Whether sync calls are counted. Counting is slower, and the run lasts until the last program ends.
    pub counted: bool,
    /// Whether to skip the final sync.
    pub sync_later: bool,
}

/// Notice to the caller during a run.
#[derive(Debug)]
pub enum Notice<'a> {
    /// Measured cost of a flush; empty if it cannot be measured.
    Probed(&'a [FlushCost]),
    /// A filter around this process answers sync calls already: nothing can be measured, counted or saved.
    Answered,
    /// Under the filter, setuid programs run without the rights of their owners.
    NoNewPrivileges,
    /// The command has ended, and the run waits for these programs.
    Waiting(&'a [Process]),
    /// The final sync waits for this file system.
    Syncing(&'a Path),
}

/// Why a command did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The program does not exist, or cannot be executed.
    #[error("{}: {error}", program.to_string_lossy())]
    Program {
        /// Name of the program.
        program: OsString,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The kernel refuses the filter.
    #[error("cannot set the filter: {0}")]
    Filter(#[source] io::Error),
    /// The system calls of this architecture are unknown.
    #[error("the system calls of this architecture are unknown; run the command without nosync")]
    Architecture,
    /// Sync calls are already counted; the kernel allows one supervisor.
    #[error("sync calls are already counted, and the kernel allows one supervisor only")]
    AlreadyCounted,
    /// A system call for supervising the command failed.
    #[error("{what}: {error}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

/// How the command ended: by exit status or by signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Exit status.
    Status(u8),
    /// Signal number.
    Signal(i32),
}

/// Result of a run, with its final sync.
#[derive(Debug)]
pub struct Outcome {
    /// How the command ended.
    pub ended: Ended,
    /// Programs still running two seconds after the end of the command.
    pub survivors: Vec<Process>,
    /// Result of the final sync; empty if it was skipped.
    pub sync: SyncReport,
    /// Time that the final sync took.
    pub sync_time: Duration,
    /// File systems not synced, because they are in mount namespaces of survivors that cannot be entered.
    pub out_of_sight: Vec<PathBuf>,
    /// File systems mounted and unmounted during the run. The kernel wrote them out and reports no errors.
    pub unmounted: Vec<PathBuf>,
    /// Counted calls, if counting was requested.
    pub tally: Option<Tally>,
    /// Whether a filter around this process answers sync calls, so that none could be counted.
    pub answered: bool,
    /// Measured cost of a flush per file system, for [`Tally::estimate`].
    pub costs: Vec<FlushCost>,
}

/// Runs a command without syncs, then syncs once.
///
/// ```no_run
/// use fullbore_install::nosync::{self, Job};
///
/// # fn main() -> Result<(), nosync::StartError> {
/// let job = Job {
///     program: "apt-get".into(),
///     arguments: vec!["dist-upgrade".into()],
///     counted: false,
///     sync_later: false,
/// };
/// let outcome = nosync::run(&job, &mut |_| ())?;
/// assert!(outcome.sync.failed.is_empty() && outcome.survivors.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Every variant of [`StartError`]. Failures of the final sync are in the [`Outcome`].
pub fn run(job: &Job, notify: &mut dyn FnMut(Notice<'_>)) -> Result<Outcome, StartError> {
    let system = |what| move |error| StartError::System { what, error };
    if !filter::KNOWS_THIS_MACHINE {
        return Err(StartError::Architecture);
    }
    // Signals are blocked before there are other threads, in which a signal could end the process.
    let signals = Signals::block().map_err(system("cannot watch over signals"))?;
    let mut disks = Disks::open().map_err(system("cannot read which file systems there are"))?;
    let devices = Devices::read();
    let is_answered = job.counted && probe::is_answered();
    let costs = if job.counted && !is_answered { probe_all(&disks) } else { Vec::new() };
    if job.counted {
        notify(if is_answered { Notice::Answered } else { Notice::Probed(&costs) });
    }
    let descendants = Descendants::watch().map_err(system("cannot become the parent of orphans"))?;
    // Without /proc processes cannot be listed, but the kernel still tells whether there are any.
    let sees_only_whether = !Path::new("/proc/self/stat").exists() && !has_children();
    let before = disks.held.iter().map(|disk| disk.device.clone());
    let mounted = Mounted::watch(before).map_err(system("cannot read which file systems there are"))?;

    let (child, listener) = start(job, &signals, notify)?;
    let main = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("numbers of processes are positive");
    let mut watch = Watch {
        main,
        signals,
        listener,
        descendants,
        sees_only_whether,
        mounted,
        mounts_read: Instant::now(),
        tally: Tally::default(),
        ended: None,
    };
    let survivors = watch.wait(notify).map_err(system("cannot wait for the command"))?;

    let begin = Instant::now();
    let mut sync = SyncReport::default();
    if !job.sync_later {
        sync = disks.sync(&mut |path| notify(Notice::Syncing(path)));
        sync.failed.extend(devices.sync(&mut |path| notify(Notice::Syncing(path))));
    }
    let mut present: HashSet<String> = disks.held.iter().map(|disk| disk.device.clone()).collect();
    let mut out_of_sight = Vec::new();
    for process in mounted::other_namespaces(&survivors) {
        let unseen = disks.unseen_by(process.pid);
        present.extend(unseen.iter().map(|(device, _)| device.clone()));
        if !job.sync_later {
            out_of_sight.extend(sync.add(mounted::sync_within(process.pid, &unseen)));
        }
    }
    let sync_time = begin.elapsed();
    out_of_sight.sort();
    out_of_sight.dedup();
    Ok(Outcome {
        ended: watch.ended.unwrap_or(Ended::Status(0)),
        survivors,
        sync,
        sync_time,
        out_of_sight,
        unmounted: watch.mounted.all_but(&present),
        answered: is_answered,
        tally: watch.listener.is_some().then_some(watch.tally),
        costs,
    })
}

/// Ends this process by a signal, like the command. Returns if the signal ends no process.
pub fn die_of(signal: i32) {
    kernel::die_of(signal);
}

fn probe_all(disks: &Disks) -> Vec<FlushCost> {
    let directories = [Path::new("."), Path::new("/var/tmp"), Path::new("/tmp")];
    disks.held.iter().filter_map(|disk| probe::flush_cost(&disk.path, &directories)).collect()
}

/// Whether this process has children, zombies included. As the subreaper it is the parent of all orphans.
fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(rustix::process::waitid(WaitId::All, options), Err(rustix::io::Errno::CHILD))
}

fn start(
    job: &Job,
    signals: &Signals,
    notify: &mut dyn FnMut(Notice<'_>),
) -> Result<(Child, Option<OwnedFd>), StartError> {
    let no_new_privileges = !host::may_filter_with_privileges();
    if no_new_privileges {
        notify(Notice::NoNewPrivileges);
    }
    let answer = if job.counted { Answer::Counted } else { Answer::AtOnce };
    let start = Start { filter: filter::program(answer), supervised: job.counted, no_new_privileges, signals };
    let mut command = Command::new(&job.program);
    command.args(&job.arguments);
    kernel::start(&mut command, start).map_err(|failure| match failure {
        StartFailure::Program(error) => StartError::Program { program: job.program.clone(), error },
        StartFailure::Filter(error) if error.raw_os_error() == Some(libc::EBUSY) => StartError::AlreadyCounted,
        StartFailure::Filter(error) => StartError::Filter(error),
    })
}

/// Waits for a command and its descendants.
struct Watch {
    main: Pid,
    signals: Signals,
    listener: Option<OwnedFd>,
    descendants: Descendants,
    /// Descendants cannot be listed; see [`has_children`].
    sees_only_whether: bool,
    mounted: Mounted,
    mounts_read: Instant,
    tally: Tally,
    ended: Option<Ended>,
}

impl Watch {
    /// Waits for the end of the command; returns the programs that outlived it. If calls are counted, waits for those
    /// too.
    fn wait(&mut self, notify: &mut dyn FnMut(Notice<'_>)) -> io::Result<Vec<Process>> {
        let mut ended_at = None;
        let mut survivors: Vec<Process> = Vec::new();
        loop {
            self.wait_for_event(ended_at.is_some())?;
            self.pass_signals_on()?;
            self.reap()?;
            if self.ended.is_none() {
                continue;
            }
            let living = self.living();
            if living.is_empty() {
                return Ok(survivors);
            }
            let ended_at = *ended_at.get_or_insert_with(Instant::now);
            if ended_at.elapsed() < EXIT_TIMEOUT {
                continue;
            }
            if self.listener.is_none() {
                return Ok(living);
            }
            if survivors.is_empty() {
                notify(Notice::Waiting(&living));
                survivors = living;
            }
        }
    }

    /// Waits for a signal, a call to answer, a mount, or the next check for survivors.
    fn wait_for_event(&mut self, soon: bool) -> io::Result<()> {
        let every = if soon { POLL_INTERVAL } else { MOUNT_POLL_INTERVAL };
        let every = Timespec { tv_sec: every.as_secs() as _, tv_nsec: every.subsec_nanos().into() };
        let mut polled = vec![PollFd::new(&self.signals.descriptor, PollFlags::IN)];
        let table = self.mounted.table().map(|table| {
            polled.push(PollFd::from_borrowed_fd(table, PollFlags::PRI));
            polled.len() - 1
        });
        let listener = self.listener.as_ref().map(|listener| {
            polled.push(PollFd::new(listener, PollFlags::IN));
            polled.len() - 1
        });
        match rustix::event::poll(&mut polled, Some(&every)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has = |at: Option<usize>, what| at.is_some_and(|at| polled[at].revents().contains(what));
        let (has_mounted, is_asked, has_hung_up) =
            (has(table, PollFlags::PRI), has(listener, PollFlags::IN), has(listener, PollFlags::HUP));
        drop(polled);
        if has_mounted {
            self.mounted.refresh()?;
        }
        if self.mounts_read.elapsed() >= MOUNT_POLL_INTERVAL {
            self.mounted.refresh_from(&self.living());
            self.mounts_read = Instant::now();
        }
        match &self.listener {
            Some(listener) if is_asked => self.tally.serve(listener.as_fd()),
            // No process has the filter any longer; the end of the command will be reported soon.
            Some(_) if has_hung_up => {
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn pass_signals_on(&mut self) -> io::Result<()> {
        /// Size of a `signalfd_siginfo`, in bytes.
        const RECORD: usize = 128;
        /// Origin of signals from the terminal, which the command receives as well.
        const FROM_KERNEL: i32 = 0x80;
        let mut record = [0; RECORD];
        loop {
            match rustix::io::read(&self.signals.descriptor, &mut record) {
                Ok(RECORD) => {}
                Ok(_) | Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let field = |at: usize| i32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
            let (number, origin) = (field(0), field(8));
            let Some(signal) = Signal::from_named_raw(number).filter(|signal| *signal != Signal::CHILD) else {
                continue;
            };
            if origin == FROM_KERNEL {
                continue;
            }
            if self.ended.is_none() {
                // The process may have ended.
                let _ = rustix::process::kill_process(self.main, signal);
            } else {
                self.living().iter().for_each(|process| process.signal(signal));
            }
        }
    }

    /// Reaps the command and orphans that have ended.
    fn reap(&mut self) -> io::Result<()> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => {
                    let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
                    self.ended = code.map(Ended::Status).or(status.terminating_signal().map(Ended::Signal));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn living(&self) -> Vec<Process> {
        if self.sees_only_whether {
            let unknown = Process { pid: 0, name: "unknown, as there is no /proc".to_owned(), started: 0 };
            return if has_children() { vec![unknown] } else { Vec::new() };
        }
        self.descendants.living()
    }
}
