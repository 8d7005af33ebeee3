//! The sending end: lists the source, and reads the files that the receiver requests.
//!
//! Threads: scanners list directories, the calling thread handles the receiver's messages, readers read and hash wanted
//! files. They share `wants::Wants`.

mod big;
pub(crate) mod compress;
mod read;
mod remove;
mod scan;
mod source;
mod wants;

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use fullbore_engine::stage::Kind;
use fullbore_engine::window::Window;

pub(crate) use source::KeptPath;
pub(crate) use source::entry as entry_of;
pub use source::{MissingSource, OpenedSources, Source};

use crate::error::CopyError;
use crate::session::{Context, Event};
use crate::wire::{Account, Message};
use compress::{Compressor, Pays};
use read::Reader;
use remove::{Removables, Visible};
use scan::Scan;
use wants::Wants;

/// Most bytes read and not yet acknowledged in a local copy: enough to keep a disk and a processor busy at the same
/// time.
pub(crate) const LOCAL_WINDOW_BYTES: u64 = 64 << 20;
/// Most bytes in flight to another machine: ten gigabits per second for a fifth of a second.
pub(crate) const REMOTE_WINDOW_BYTES: u64 = 256 << 20;
/// Most records in flight. In practice the limit on bytes comes first, as the smallest record counts 4 KiB.
pub(crate) const WINDOW_RECORDS: u32 = 65_536;
/// Number of threads that list, and that read. A guess: more do not help on two to eight cores.
const SCANNERS: usize = 4;
const READERS: usize = 8;

/// The files and directories to send.
#[derive(Debug)]
pub struct Sources {
    /// The sources, in the order of the command line.
    pub sources: Vec<Source>,
    /// Sources that cannot be opened.
    pub missing: Vec<MissingSource>,
    /// Send only these paths below the first source.
    pub only: Option<Vec<Vec<u8>>>,
    /// The destination, if it is on this machine.
    pub skip: Option<Skip>,
    /// Whether the source's disk is rotational: then one reader reads in the order of inodes.
    pub rotational: bool,
}

/// The destination, as a directory that is not copied into itself.
#[derive(Clone, Copy, Debug)]
pub struct Skip {
    /// Its device number.
    pub device: u64,
    /// Its inode number.
    pub inode: u64,
    /// Whether it was made for this copy, so that leaving it out is not reported.
    pub is_new: bool,
}

/// Sends until the receiver reports that everything is done. Returns the totals.
///
/// # Errors
/// The [`CopyError`] that ended the copy early, at either end. Problems with single files are events, not errors.
pub fn run(context: &Context<'_>, sources: &Sources, window: &Window) -> Result<Account, Arc<CopyError>> {
    let wants = Wants::of(context.options);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = |limit: usize| match (sources.rotational, context.options.threads) {
        (true, _) => 1,
        (false, 0) => cores.clamp(2, limit),
        (false, wished) => wished.min(limit),
    };
    let removables = Removables::default();
    let removes = context.options.remove_source_files && !context.options.dry_run;
    let scan = Scan::new(context, &wants, sources.rotational, sources.skip, removes.then_some(&removables));
    let pays = Pays::new(context.options.compress);
    context.ledger.watch_window(window);
    let clock = context.ledger.stage("read", Kind::Thread);
    std::thread::scope(|scope| {
        scope.spawn(|| scan.run(sources, most(SCANNERS)));
        if !context.options.dry_run || context.options.checksum {
            for number in 0..most(READERS) {
                let mut reader = Reader {
                    context,
                    wants: &wants,
                    window,
                    clock: clock.clone(),
                    directory: None,
                    pays: &pays,
                    compressor: Compressor::default(),
                };
                scope.spawn(move || reader.run(number % 2 == 0));
            }
        }
        let visible = removes.then(|| {
            let (visible, removing) = mpsc::channel();
            let removables = &removables;
            scope.spawn(move || removables.run(context, &removing));
            visible
        });
        // Scanners that still have lists to send would wait for ever.
        let result = listen(context, &wants, &removables, visible).map_err(|error| context.cancel.cancel(error));
        scan.break_off();
        wants.break_off();
        result.map_err(|()| context.cancel.verdict())
    })
}

/// Handles the receiver's messages until its last one.
fn listen(
    context: &Context<'_>,
    wants: &Wants,
    removables: &Removables,
    mut visible: Option<mpsc::Sender<Visible>>,
) -> Result<Account, CopyError> {
    let _guard = context.cancel.guard();
    let clock = context.ledger.stage("control", Kind::Thread);
    clock.adopt_thread();
    let options = context.options;
    let mut hashed = 0;
    while let Some(message) = context.link.control_in.pop(&clock) {
        match message {
            Message::Answer(answer) => {
                for path in wants.answer(&answer, options.tell_names, options.dry_run)? {
                    context.tell.tell(Event::Wanted(path));
                }
            }
            Message::Begin => wants.begin(),
            Message::Acknowledge { sequence } => wants.acknowledge(sequence)?,
            Message::Account { account, last } => {
                context.progress.set(&account);
                if wants.is_listed(account.entries) {
                    // Everything has been compared: the totals are final.
                    context.progress.complete.store(true, Ordering::Relaxed);
                }
                if last && !wants.is_acknowledged() {
                    return Err(CopyError::Meaning("the end before all was acknowledged"));
                }
                if last {
                    return Ok(account);
                }
            }
            Message::Limit { bytes_per_s } => context.limit.set(bytes_per_s),
            Message::Basis(basis) => wants.learn(&basis)?,
            Message::Visible { ids, last } => {
                let names = removables.take(&ids);
                // The queue is only needed while there are files to remove. Numbers without a name are not queued. The
                // queue has no limit of its own, as each name comes once.
                let to = if last { visible.take() } else { visible.clone().filter(|_| !names.is_empty()) };
                if let Some(to) = to {
                    let _ = to.send(Visible { names, last });
                }
            }
            Message::Made { path } => context.tell.tell(Event::Wanted(path)),
            Message::Item { letters, path } => context.tell.tell(Event::Item { letters, path }),
            Message::Hashed { path, hash } => {
                hashed += 1;
                if !wants.has_listed(hashed) {
                    return Err(CopyError::Meaning("hashes of more files than were listed"));
                }
                context.tell.tell(Event::Hashed { path, hash });
            }
            Message::Deleted { path } => context.tell.tell(Event::Deleted(path)),
            Message::Problem(problem) => context.tell.tell(Event::Problem(problem)),
            Message::Abort { exit_code, text } => return Err(CopyError::told(exit_code, text)),
            Message::Counters(json) => context.exchange.hear(json),
            _ => return Err(CopyError::Meaning("a sender's message from the receiver")),
        }
        if let Some(records) = wants.settle()
            && context.say_last(Message::Finish { records }, &clock).is_err()
        {
            break;
        }
    }
    Err(CopyError::gone())
}
