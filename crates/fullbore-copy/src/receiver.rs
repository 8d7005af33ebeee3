//! The receiving end: compares, requests missing content, verifies, writes, and gives files their names.
//!
//! Threads: the calling thread takes lists and answers them. Writers verify and write incoming content. The committer
//! gives final names in groups. At the end the calling thread makes hard links, deletes, sets attributes of
//! directories, and flushes everything once more.

mod arrived;
mod attributes;
mod backup;
mod base;
mod bulk;
mod changed;
mod commit;
mod compare;
mod extras;
mod finish;
mod free_space;
mod hashes;
mod held;
mod in_the_way;
mod itemize;
pub mod journal;
mod listing;
mod marker;
mod opened;
mod partial;
mod requested;
mod runs;
mod shared;
mod tree;
mod verify;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fullbore_engine::durability::Durability;
use fullbore_engine::stage::Kind;
use fullbore_engine::units;

use crate::entry::{Kind as EntryKind, is_path};
use crate::error::CopyError;
use crate::queue::Taken;
use crate::session::{Context, Event, add};
use crate::wire::{Account, Answer, LIST_ENTRIES, Message, Problem, ProblemKind};
use arrived::Arrived;
use attributes::Attributes;
use backup::Backup;
use base::Bases;
use bulk::Bulk;
use commit::{Commit, Naming};
use compare::Comparing;
use free_space::{FreeSpace, Shortage};
use hashes::HashedPaths;
use held::Held;
use listing::Listing;
use marker::Marker;
use opened::Opened;
pub use requested::Requested;
use shared::Shared;
use tree::Tree;
pub(crate) use tree::reserve_descriptors;
use verify::Verify;
use write::{Failed, PendingFiles, Writers};

/// Time after which content is requested even if the listing goes on. Before that the receiver waits for the whole
/// list, so that it can check the free space.
pub(crate) const LISTING_TIME: Duration = Duration::from_secs(3);
/// Interval of progress messages to the sender.
const TELL_TIME: Duration = Duration::from_millis(200);
/// Most writer threads. A guess: more only make a disk's queue longer.
const WRITERS: usize = 8;

/// The directory that a copy writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Path of the directory, which must exist.
    pub directory: PathBuf,
    /// New name of the only source, if that is not a directory.
    pub rename_to: Option<Vec<u8>>,
    /// Whether the source is on this machine, so that the destination may overlap it.
    pub beside_source: bool,
    /// Whether the directory was made for this copy.
    pub is_new: bool,
    /// Directories that were made for the copy, innermost first. They are removed if nothing is copied.
    pub made: Vec<PathBuf>,
    /// The sources that the user requested from another machine. `None` if the same user started the sender on this
    /// machine.
    pub requested: Option<Requested>,
}

impl Destination {
    /// A copy from another machine into an existing directory.
    pub fn at(directory: &Path) -> Destination {
        Destination {
            directory: directory.to_owned(),
            rename_to: None,
            beside_source: false,
            is_new: false,
            made: Vec::new(),
            requested: None,
        }
    }

    /// Resolves a destination path by rsync's rules. An existing directory takes the sources in. For a single source
    /// that is not a directory, another path is its new name. Else the directory is made.
    ///
    /// # Errors
    /// [`CopyError::Usage`] with the path and the reason if it is not a directory, or cannot be examined or created.
    pub fn resolve(path: &Path, single_file: bool, many: bool, dry_run: bool) -> Result<Destination, CopyError> {
        use std::os::unix::ffi::OsStrExt as _;
        let wrong = |error: std::io::Error| CopyError::Usage(format!("{}: {error}", path.display()));
        let bytes = path.as_os_str().as_bytes();
        match std::fs::metadata(path) {
            Ok(there) if there.is_dir() => return Ok(Destination::at(path)),
            Ok(_) if many || !single_file => {
                return Err(CopyError::Usage(format!("{}: not a directory", path.display())));
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(wrong(error)),
            _ => {}
        }
        if single_file && !many && !bytes.ends_with(b"/") && !bytes.ends_with(b"/.") {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let name = path.file_name().map(|name| name.as_bytes().to_vec());
            let made = if dry_run { Vec::new() } else { make_directories(parent).map_err(wrong)? };
            return Ok(Destination { rename_to: name, made, ..Destination::at(parent) });
        }
        let made = if dry_run { Vec::new() } else { make_directories(path).map_err(wrong)? };
        Ok(Destination { is_new: true, made, ..Destination::at(path) })
    }

    /// Removes directories that were made for a copy without content.
    pub(crate) fn take_back(&self) {
        // A directory that is not empty stays, and so do its parents.
        self.made.iter().take_while(|directory| std::fs::remove_dir(directory).is_ok()).for_each(drop);
    }
}

/// Makes a directory and its parents. Returns those that were missing, innermost first.
fn make_directories(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    // Remove a dot at the end: the system would look for a directory within one that does not exist.
    let path: PathBuf = path.components().collect();
    let is_missing = |directory: &&Path| !directory.as_os_str().is_empty() && !directory.exists();
    let missing = path.ancestors().take_while(is_missing).map(Path::to_owned).collect();
    std::fs::create_dir_all(&path).map(|()| missing)
}

/// Receives until all content has arrived and is flushed. Returns the totals.
///
/// # Errors
/// The [`CopyError`] that ended the copy early, at either end. Content that arrived by then is kept for another run.
/// Problems with single files are events, not errors.
pub fn run(context: &Context<'_>, destination: &Destination) -> Result<Account, Arc<CopyError>> {
    let received = receive(context, destination).unwrap_or_else(|error| {
        context.cancel.cancel(error);
        None
    });
    received.ok_or_else(|| {
        destination.take_back();
        context.cancel.verdict()
    })
}

fn receive(context: &Context<'_>, destination: &Destination) -> Result<Option<Account>, CopyError> {
    let options = context.options;
    let path = &destination.directory;
    // If the directory cannot be examined, the next call reports it.
    let closed = if options.dry_run { None } else { opened::open_root(path).unwrap_or_default() };
    let tree = match Tree::open(path) {
        Ok(tree) => tree,
        // A dry run does not make the directory: all of its content is missing.
        Err(_) if options.dry_run && !path.exists() => Tree::nowhere().map_err(|error| system("open /", error))?,
        Err(error) => return Err(CopyError::Usage(format!("{}: {}", path.display(), std::io::Error::from(error)))),
    };
    // Wrong settings are reported before anything is done.
    let attributes = Attributes::new(options)?;
    let backup = if options.dry_run { None } else { Backup::new(options, path, &tree)? };
    let (bases, no_bases) = Bases::open(options, path);
    let opened = Opened::of(&tree);
    closed.into_iter().for_each(|mode| opened.was(b"", mode));
    let boot = journal::boot();
    let marker = if options.dry_run { None } else { Some(Marker::set(tree.root(), path, closed)?) };
    // An earlier run that was killed has left the directory's permissions changed.
    marker.iter().filter_map(|marker| marker.closed).for_each(|mode| opened.was(b"", mode));
    let errors = AtomicU64::new(0);
    let failed = Failed::default();
    let problem = |kind: ProblemKind, path: &[u8], text: String| {
        note_error(&errors, kind);
        failed.note(kind, path);
        let problem = Problem { kind, path: path.to_vec(), text };
        context.tell.tell(Event::Problem(problem.clone()));
        let clock = context.ledger.stage("control", Kind::Thread);
        let _ = context.link.control_out.push(Message::Problem(problem), &clock);
    };
    let (attributes, pending, commit) = (attributes, PendingFiles::default(), Commit::new());
    let attributes = match &marker {
        Some(marker) => attributes.with_grain(tree.root().device, marker.grain),
        None => attributes,
    };
    let (comparing, verify) = (Comparing::new(), Verify::default());
    let (shared, held) = (Shared::default(), Held::of_this_machine());
    let (bulk, arrived) = (Bulk::new(context.link.pool.clone()), Arrived::default());
    let writers = Writers {
        context,
        tree: &tree,
        attributes: &attributes,
        opened: &opened,
        pending: &pending,
        failed: &failed,
        commit: &commit,
        comparing: &comparing,
        verify: &verify,
        bulk: &bulk,
        arrived: &arrived,
        shared: &shared,
        held: &held,
        bases: &bases,
        backup: backup.as_ref(),
        boot,
        beside_source: destination.beside_source,
        problem: &problem,
        clock: context.ledger.stage("disk write", Kind::Thread),
    };
    for (directory, error) in no_bases {
        problem(ProblemKind::NoBase, &directory, std::io::Error::from(error).to_string());
    }
    let hashed = HashedPaths::new(options.hashes.is_some() && !options.dry_run, path)?;
    let listing = Listing::new(&writers, FreeSpace::of(tree.root()), marker.as_ref());
    let mut listing = listing.telling(hashed, destination.is_new);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if options.threads > 0 { options.threads.min(WRITERS) } else { cores.clamp(2, WRITERS) };
    let naming = Naming { context, tree: &tree, problem: &problem, backup: backup.as_ref() };
    let finished = std::thread::scope(|scope| {
        let committing = scope.spawn(|| commit.run(&naming));
        // With a checksum of everything all cores compare; a delta may use no more than one.
        let comparers = match (options.checksum || listing.compares(), options.delta) {
            (true, _) => threads,
            (false, delta) => usize::from(delta),
        };
        for _ in 0..comparers {
            scope.spawn(|| comparing.run(context, (&tree, &opened), &bases));
        }
        let writing: Vec<_> = (0..threads).map(|_| scope.spawn(|| writers.run())).collect();
        let mut control = Control {
            writers: &writers,
            listing: &mut listing,
            errors: &errors,
            answers: None,
            began: None,
            begun: false,
        };
        let heard = control.listen(destination);
        let finished = heard.map_err(|error| context.cancel.cancel(error)).is_ok();
        comparing.queue.break_off();
        // Writers end with their queue; only then has the committer received all files.
        context.link.data.close();
        let clock = context.ledger.stage("control", Kind::Thread);
        clock.starved_in(|| {
            writing.into_iter().for_each(|thread| drop(thread.join()));
            commit.close();
            drop(committing.join());
        });
        finished
    });
    if let Some(marker) = marker.as_ref().filter(|_| listing.made.is_none()) {
        // A full or failing disk may have lost data that it accepted into memory.
        let is_disk = context.cancel.reason().is_some_and(|reason| matches!(*reason, CopyError::Disk(_)));
        let flushes = is_disk && options.durability != Durability::None;
        let clock = context.ledger.stage("sync", Kind::Thread);
        if commit.has_failed() || flushes && commit::flush(&tree, &clock).is_err() {
            marker.lose(tree.root())?;
        }
    }
    if !finished || context.cancel.is_cancelled() {
        writers.mark_changed();
        if let Some(marker) = marker.filter(|_| listing.made.is_some()) {
            // No content arrived: remove all traces of the copy.
            listing.take_back();
            if marker.torn.is_none() {
                let _ = marker.remove(tree.root());
            }
        }
        return Ok(None);
    }
    writers.finish(&mut listing, &errors, marker.as_ref(), threads)?;
    let account = context.progress.account();
    context.progress.direct.store(bulk.is_direct(), Ordering::Relaxed);
    let clock = context.ledger.stage("control", Kind::Thread);
    let _ = context.say_last(Message::Account { account, last: true }, &clock);
    Ok(Some(account))
}

fn system(what: &'static str, error: rustix::io::Errno) -> CopyError {
    CopyError::System { what, error: error.into() }
}

/// Counts problems that make the copy incomplete, so that nothing is deleted.
fn note_error(errors: &AtomicU64, kind: ProblemKind) {
    add(errors, u64::from(kind.prevents_deletion()));
}

/// The thread that handles the sender's messages.
struct Control<'a, 'b> {
    writers: &'a Writers<'a>,
    listing: &'b mut Listing<'a>,
    errors: &'a AtomicU64,
    /// Answers that are collected: small directories are answered together.
    answers: Option<Answer>,
    /// Time of the first list.
    began: Option<Instant>,
    /// Whether content has been requested.
    begun: bool,
}

impl Control<'_, '_> {
    /// Handles messages until the sender has sent everything.
    fn listen(&mut self, destination: &Destination) -> Result<(), CopyError> {
        let context = self.writers.context;
        let _guard = context.cancel.guard();
        let clock = context.ledger.stage("control", Kind::Thread);
        clock.adopt_thread();
        let mut told = Instant::now();
        while !self.writers.arrived.is_all() {
            let next = match context.link.control_in.try_pop() {
                Some(message) => Taken::Item(message),
                None => {
                    self.tell_answers();
                    context.link.control_in.pop_within(TELL_TIME, &clock)
                }
            };
            match next {
                Taken::End => return Err(CopyError::gone()),
                Taken::TimedOut => {}
                Taken::Item(Message::Finish { records }) => self.writers.arrived.expect(records),
                Taken::Item(message) => self.take(message, destination)?,
            }
            if told.elapsed() >= TELL_TIME {
                told = Instant::now();
                if self.begun && !context.progress.is_complete() {
                    self.check_room()?;
                }
                self.send(Message::Account { account: context.progress.account(), last: false });
            }
            let waits = self.writers.context.options.delete_before;
            if !self.begun && !waits && self.began.is_some_and(|began| began.elapsed() >= LISTING_TIME) {
                self.begin()?;
            }
        }
        self.is_whole()
    }

    fn take(&mut self, message: Message, destination: &Destination) -> Result<(), CopyError> {
        let context = self.writers.context;
        match message {
            Message::List(mut list) => {
                self.began.get_or_insert_with(Instant::now);
                if let Some(requested) = &destination.requested {
                    requested.check(&list, context.options)?;
                }
                if let Some(name) = &destination.rename_to {
                    match &mut list.entries[..] {
                        // The source itself is left out.
                        [] if list.directory.is_empty() => {}
                        [entry] if list.directory.is_empty() && entry.kind != EntryKind::Directory => {
                            entry.name = name.clone();
                        }
                        _ => return Err(CopyError::Meaning("more than the one file that was announced")),
                    }
                }
                let answer = self.listing.take(list)?;
                self.gather(answer);
            }
            Message::Owners(owners) => self.writers.attributes.learn(&owners)?,
            Message::Listed { entries, errors } => {
                if entries != self.listing.entries() {
                    return Err(CopyError::Meaning("another number of entries than were listed"));
                }
                add(self.errors, errors);
                self.listing.settle();
                context.progress.complete.store(true, Ordering::Relaxed);
                if self.begun { self.check_room()? } else { self.begin()? }
            }
            Message::Unlisted { directory, beneath } => self.listing.unlisted(&directory, beneath)?,
            Message::Lost { id } => self.lost(id),
            Message::Problem(problem) => {
                note_error(self.errors, problem.kind);
                self.writers.failed.note(problem.kind, &problem.path);
                if problem.kind == ProblemKind::Changed && !context.options.dry_run {
                    self.note_changed(&problem.path, destination);
                }
                context.tell.tell(Event::Problem(problem));
            }
            Message::Abort { exit_code, text } => return Err(CopyError::told(exit_code, text)),
            Message::Counters(json) => context.exchange.hear(json),
            _ => return Err(CopyError::Meaning("a receiver's message from the sender")),
        }
        Ok(())
    }

    /// A requested file changed while the sender read it.
    fn note_changed(&self, path: &[u8], destination: &Destination) {
        let is_asked = |requested: &Requested| requested.has_file(path, self.writers.context.options);
        if is_path(path) && destination.requested.as_ref().is_none_or(is_asked) {
            let path = destination.rename_to.as_deref().unwrap_or(path);
            self.writers.commit.changed.note(path, self.listing.entries());
        }
    }

    /// Collects an answer until all lists at hand are answered, or the answers would exceed the length limit.
    fn gather(&mut self, answer: Answer) {
        // The records of an interrupted file alone can make a long answer.
        let is_long = answer.wanted.iter().any(|wanted| !wanted.have.is_empty());
        let wanted = self.answers.as_ref().map_or(0, |answers| answers.wanted.len());
        if wanted + answer.wanted.len() > LIST_ENTRIES {
            self.tell_answers();
        }
        match &mut self.answers {
            None => self.answers = Some(answer),
            Some(answers) => {
                answers.through = answer.through;
                answers.wanted.extend(answer.wanted);
            }
        }
        if is_long {
            self.tell_answers();
        }
    }

    fn tell_answers(&mut self) {
        if let Some(answers) = self.answers.take() {
            self.send(Message::Answer(answers));
            self.listing.compare();
        }
    }

    /// Checks that everything that the sender announced has arrived.
    fn is_whole(&self) -> Result<(), CopyError> {
        if !self.writers.context.progress.is_complete() {
            return Err(CopyError::Meaning("the end before all was listed"));
        }
        if !self.writers.context.options.dry_run && self.writers.pending.is_anything_missing() {
            return Err(CopyError::Meaning("the end before all was sent"));
        }
        Ok(())
    }

    /// Requests content, if it fits.
    fn begin(&mut self) -> Result<(), CopyError> {
        self.tell_answers();
        if !self.writers.context.options.dry_run {
            self.check_names()?;
            if self.writers.context.options.delete_before {
                self.writers.delete_first(self.listing, self.errors)?;
            }
            self.check_room()?;
            self.listing.keep_made();
        }
        self.begun = true;
        self.send(Message::Begin);
        Ok(())
    }

    /// Names that the destination cannot store are an error before anything is copied. Those that are found later are
    /// left out.
    fn check_names(&self) -> Result<(), CopyError> {
        match self.listing.impossible {
            0 => Ok(()),
            count => Err(CopyError::Names { count }),
        }
    }

    fn check_room(&self) -> Result<(), CopyError> {
        if self.writers.context.options.dry_run {
            return Ok(());
        }
        let text = match self.listing.room.shortage() {
            None => return Ok(()),
            Some(Shortage::Bytes { needed, free }) => {
                let missing = needed.saturating_sub(free);
                let [needed, free, missing] = [needed, free, missing].map(units::bytes);
                format!("{needed} more is needed, {free} is free: {missing} missing")
            }
            Some(Shortage::Inodes { needed, free }) => format!("{needed} more files are needed, room is for {free}"),
        };
        let options = self.writers.context.options;
        let freed = match options.delete && !options.delete_before {
            true => self.writers.deletable_bytes(self.listing),
            false => 0,
        };
        let freed = match freed {
            0 => String::new(),
            bytes => format!("; deletions would free {} at the end; use --delete-before", units::bytes(bytes)),
        };
        Err(CopyError::Disk(format!("the destination is too small: {text}{freed}")))
    }

    fn lost(&self, id: u64) {
        if let Some(partial) = self.writers.pending.lose(id)
            && let Ok(folder) = self.writers.tree.folder(&partial.directory)
        {
            partial.give_up(&folder, false);
        }
    }

    fn send(&self, message: Message) {
        // A closed queue belongs to a run that ends; the cancel token has the reason.
        let clock = self.writers.context.ledger.stage("control", Kind::Thread);
        let _ = self.writers.context.link.control_out.push(message, &clock);
    }
}
