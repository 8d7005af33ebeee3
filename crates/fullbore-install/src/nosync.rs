//! A command whose sync calls are answered at once, and one real sync when it has ended.
//!
//! ```text
//! run      hold a descriptor per file system · start the command under the filter
//!          wait, pass signals on            · look for programs that outlive it
//!          sync what is held                · tell how it all ended
//! ```
//!
//! The filter ([`filter`]) is inherited by everything that the command starts, static or
//! dynamic, in a chroot or not, and cannot be taken off again. That is why [`service_manager`]
//! has to be pending first, and why programs that outlive the command make the run fail.

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

/// How long programs that the command has left behind may take to end. A guess: agents and
/// helpers that notice its end are gone in a fraction of it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often is looked for such programs.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How often is looked what descendants have mounted in namespaces of their own. A look costs
/// some milliseconds where there are hundreds of processes.
const MOUNT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What is to be run.
#[derive(Debug)]
pub struct Job {
    /// The program, looked up as a shell does.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Whether sync calls are counted; slower, and the run then lasts until the last program ends.
    pub counted: bool,
    /// Leave the final sync to somebody else.
    pub sync_later: bool,
}

/// What is told while the command runs.
#[derive(Debug)]
pub enum Notice<'a> {
    /// What a flush costs here, probed before the start; empty if that could not be found out.
    Probed(&'a [FlushCost]),
    /// Sync calls are answered already, by somebody around this process; nothing can be probed, counted or saved.
    Answered,
    /// Setuid programs will not have their owner's rights under the filter.
    NoNewPrivileges,
    /// The command has ended, these programs have not, and the run waits for them.
    Waiting(&'a [Process]),
    /// The final sync still waits for this file system.
    Syncing(&'a Path),
}

/// Why the command was not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program is not there, or may not be run.
    #[error("{}: {error}", program.to_string_lossy())]
    Program {
        /// What was to be run.
        program: OsString,
        /// What the kernel says.
        #[source]
        error: io::Error,
    },
    /// The kernel has no such filters, or not this one.
    #[error("the kernel does not take the filter: {0}")]
    Filter(#[source] io::Error),
    /// Nothing would be answered.
    #[error("the numbers of this architecture's system calls are not known here; run the command without nosync")]
    Architecture,
    /// Counting inside of counting.
    #[error("sync calls are being counted already, and the kernel takes only one who counts")]
    AlreadyCounted,
    /// Something that is needed to watch over the command.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel says.
        #[source]
        error: io::Error,
    },
}

/// How the command itself ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With this status.
    Status(u8),
    /// By this signal.
    Signal(i32),
}

/// How the run ended.
#[derive(Debug)]
pub struct Outcome {
    /// How the command ended.
    pub ended: Ended,
    /// Programs that outlived it, by more than a moment.
    pub survivors: Vec<Process>,
    /// What the final sync reported; nothing if it was left to somebody else.
    pub sync: SyncReport,
    /// How long the final sync took.
    pub sync_time: Duration,
    /// Not synced: only survivors see it, in a mount namespace of their own that cannot be entered.
    pub out_of_sight: Vec<PathBuf>,
    /// Seen mounted during the run, and gone before its end: written by the kernel, which tells
    /// nobody of errors.
    pub unmounted: Vec<PathBuf>,
    /// What was counted, if anything was.
    pub tally: Option<Tally>,
    /// Somebody around this process answers sync calls, so that none was there to be counted.
    pub answered: bool,
    /// What a flush costs, for the same.
    pub costs: Vec<FlushCost>,
}

/// Runs the command to its end, syncs, and tells how it went.
pub fn run(job: &Job, notify: &mut dyn FnMut(Notice<'_>)) -> Result<Outcome, StartError> {
    let system = |what| move |error| StartError::System { what, error };
    if !filter::KNOWS_THIS_MACHINE {
        return Err(StartError::Architecture);
    }
    // Before there is any other thread, which a signal could end the process by.
    let signals = Signals::block().map_err(system("cannot watch over signals"))?;
    let mut disks = Disks::open().map_err(system("cannot read which file systems there are"))?;
    let devices = Devices::read();
    let is_answered = job.counted && probe::is_answered();
    let costs = if job.counted && !is_answered { probe_all(&disks) } else { Vec::new() };
    if job.counted {
        notify(if is_answered { Notice::Answered } else { Notice::Probed(&costs) });
    }
    let descendants = Descendants::watch().map_err(system("cannot become the parent of orphans"))?;
    // Without /proc nobody has a name, but the kernel still tells whether there is anybody.
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

/// Ends this process by a signal, as the command did. Comes back if that signal ends no process.
pub fn die_of(signal: i32) {
    kernel::die_of(signal);
}

fn probe_all(disks: &Disks) -> Vec<FlushCost> {
    let directories = [Path::new("."), Path::new("/var/tmp"), Path::new("/tmp")];
    disks.held.iter().filter_map(|disk| probe::flush_cost(&disk.path, &directories)).collect()
}

/// Whether this process has children, ended ones that are still to be waited for among them; as the reaper of orphans it
/// is the parent of all that have outlived theirs.
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

/// The wait for a command and for all that it has started.
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
    /// Gives the programs that outlived the command. Where calls are counted they have ended too.
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

    /// Until a signal comes, a call is to be answered, something was mounted, or it is time to look
    /// for survivors.
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
            // Nobody has the filter any more; the end of the command is about to be told.
            Some(_) if has_hung_up => {
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn pass_signals_on(&mut self) -> io::Result<()> {
        /// Size of a `signalfd_siginfo`, and where it has the signal and its origin.
        const RECORD: usize = 128;
        /// From the terminal, which has sent it to the command as well.
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
                // It may have just ended.
                let _ = rustix::process::kill_process(self.main, signal);
            } else {
                self.living().iter().for_each(|process| process.signal(signal));
            }
        }
    }

    /// Waits for those that have ended: the command, and orphans.
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
