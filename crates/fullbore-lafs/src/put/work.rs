//! Uploads all files at once, and directories when their children have caps.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fullbore_engine::digest::Sha256;
use fullbore_engine::random::random;
use fullbore_engine::run::costs::process_costs;
use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::run::{CommandError, ErrorKind, Events, Stop, stopped};
use fullbore_engine::stage::Ledger;
use fullbore_engine::tree::Item;
use fullbore_engine::tree::found::Found;
use fullbore_engine::verdict::{Sampler, SamplerConfig};
use fullbore_engine::window::Window;
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::run::{FILES_AT_ONCE, sending_runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::settings::{PutSettings, Resolved};
use super::spool::spool;
use crate::cap::{Cap, LITERAL_BYTES_MAX};
use crate::code::Code;
use crate::directory::{Directory, Time, in_grid};
use crate::geometry::{Encoding, Geometry};
use crate::grid::{GridSettings, connect};
use crate::hash::netstring;
use crate::upload::journal::Journal;
use crate::upload::produce::{Meter, Pool, ProducerContext, SourceError};
use crate::upload::source::Source;
use crate::upload::{Grid, KeyChoice, PutError, PutOptions, Stored, Uploader};
use crate::verdict::Facts;
use fullbore_engine::memory_pool::MemoryPool;

/// Events while files are put.
pub(super) enum PutEvent {
    /// An item is finished.
    Done(PutResult),
    /// Time has passed.
    Nothing,
}

/// Handles an event; an error ends the run.
pub(super) type EventHandler<'a> = &'a mut dyn FnMut(PutEvent) -> Result<(), CommandError>;

/// The result of one item.
pub(super) struct PutResult {
    pub path: PathBuf,
    pub size: u64,
    pub is_directory: bool,
    pub is_argument: bool,
    pub sent_bytes: u64,
    pub happiness: usize,
    pub troubles: Vec<String>,
    pub result: Result<Cap, CommandError>,
}

/// Paths that cannot be read, and why.
pub(super) type Unreadable<'a> = HashMap<&'a Path, String>;

/// The means of a run.
pub(super) struct PutContext<'a> {
    settings: &'a PutSettings,
    options: PutOptions,
    runtime: tokio::runtime::Runtime,
    /// Set to true when the run is to end: by a signal, or because results cannot be reported.
    stop: watch::Sender<bool>,
    context: ProducerContext,
    threads: usize,
    grid: Option<Arc<Grid>>,
    uploader: Option<Arc<Uploader>>,
    journal: Option<Arc<Journal>>,
    sampler: Cell<Option<Sampler>>,
}

impl<'a> PutContext<'a> {
    /// Starts the means of a run: threads, runtime, journal, and connections to the grid.
    ///
    /// # Errors
    /// `ErrorKind::Internal` if a thread or the runtime cannot be started.
    pub(super) fn new(
        settings: &'a PutSettings,
        resolved: &Resolved,
        events: &mut dyn Events,
        signal: &Stop,
    ) -> Result<PutContext<'a>, CommandError> {
        let ledger = Ledger::new();
        // Only bytes that servers acknowledged count as delivered.
        let config = SamplerConfig { delivery_stage: "send".to_owned(), ..SamplerConfig::default() };
        let sampler = Sampler::start(&ledger, config).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let context = ProducerContext {
            pool: Pool::new(threads),
            memory: Window::new(resolved.memory_bytes, u32::MAX),
            spare: MemoryPool::default(),
            meter: Arc::new(Meter::new(&ledger)),
        };
        ledger.watch_window(&context.memory);
        ledger.set_rate_limit(settings.limit_rate_bytes_per_s.unwrap_or(0));
        let runtime = sending_runtime(&ledger)?;
        let stop = watch::Sender::new(false);
        let (signal, stopping) = (signal.clone(), stop.clone());
        runtime.spawn(async move {
            signal.requested().await;
            stopping.send_replace(true);
        });
        let limits = RateLimits::sending(settings.limit_rate_bytes_per_s);
        let access = resolved.access.as_ref().filter(|_| !settings.dry_run);
        let grid = access.map(|access| Arc::new(connect(settings.grid.patience, access, limits, &ledger)));
        let journals = settings.journals.as_deref().filter(|_| grid.is_some());
        let journal = journals.and_then(open_journal);
        let uploader = access.zip(grid.as_ref()).map(|(access, grid)| {
            let (grid, context, lease) = (Arc::clone(grid), context.clone(), access.lease.clone());
            Arc::new(Uploader::new(grid, context, lease, stop.subscribe(), journal.clone()))
        });
        if let Some(grid) = &grid {
            grid.not_used().for_each(|warning| events.warn(warning));
            let _inside = runtime.enter();
            grid.warm(2 * usize::from(resolved.options.encoding.total));
        }
        let options = resolved.options.clone();
        let sampler = Cell::new(Some(sampler));
        Ok(PutContext { settings, options, runtime, stop, context, threads, grid, uploader, journal, sampler })
    }

    /// Puts all items; `each` gets the result of every item, in the order of the arguments.
    ///
    /// # Errors
    /// The first error of `each`; `ErrorKind::Interrupted` if the run was stopped; `ErrorKind::Internal` if a task
    /// fails. Failures of single items are in their results.
    pub(super) fn put_all(
        &self,
        items: &[Item],
        unreadable: &Unreadable<'_>,
        each: EventHandler<'_>,
    ) -> Result<(), CommandError> {
        let (tasks, open, done) = (JoinSet::new(), BTreeMap::new(), BTreeMap::new());
        let twins = twins(items);
        let mut run = Run { context: self, items, unreadable, twins, tasks, open, done };
        let _inside = self.runtime.enter();
        let mut children = vec![0; items.len()];
        for parent in items.iter().filter_map(Item::parent) {
            children[parent] += 1;
        }
        let mut waiting: Vec<usize> = Vec::new();
        for (number, item) in items.iter().enumerate() {
            if let Item::Directory { .. } = item {
                let missing = children[number];
                run.open.insert(number, Open { missing, directory: Directory::default(), failed: None });
                if missing == 0 {
                    waiting.push(number);
                }
            }
        }
        let mut next = 0;
        let mut told = 0;
        loop {
            while run.tasks.len() < FILES_AT_ONCE {
                if let Some(number) = waiting.pop() {
                    run.begin_directory(number);
                } else if next < items.len() {
                    run.begin(next);
                    next += 1;
                } else {
                    break;
                }
            }
            // Reports the results whose turn has come.
            while let Some(done) = run.done.remove(&told) {
                if let Err(error) = each(PutEvent::Done(done)) {
                    return self.wind_up(run, each, error);
                }
                told += 1;
            }
            if told == items.len() {
                return Ok(());
            }
            let Ok(finished) = self.runtime.block_on(async { timeout(PROGRESS_EVERY, run.tasks.join_next()).await })
            else {
                each(PutEvent::Nothing)?;
                continue;
            };
            let Some(finished) = finished else {
                return Err(CommandError::new(ErrorKind::Internal, "files are left, and nothing is under way"));
            };
            let (number, done) = finished
                .map_err(|error| CommandError::new(ErrorKind::Internal, format_args!("a task failed: {error}")))?;
            waiting.extend(run.finished(number, done));
            if *self.stop.borrow() {
                let error = "interrupted; shares that were not complete are given up";
                return self.wind_up(run, each, CommandError::new(ErrorKind::Interrupted, error));
            }
        }
    }

    /// Stops the run: nothing new begins, and tasks give up their shares on the servers. Complete items are still
    /// reported.
    fn wind_up(&self, mut run: Run<'_>, each: EventHandler<'_>, error: CommandError) -> Result<(), CommandError> {
        self.stop.send_replace(true);
        while let Some(finished) = self.runtime.block_on(run.tasks.join_next()) {
            if let Ok((number, outcome)) = finished {
                run.finished(number, outcome);
            }
        }
        for (_, done) in std::mem::take(&mut run.done) {
            if done.result.is_ok() {
                // Stdout may be closed, but the list may still take it.
                let _ = each(PutEvent::Done(done));
            }
        }
        Err(error)
    }

    /// Ends the run without waiting for threads, which may hang on a silent pipe. `all_told`: everything is in the
    /// grid, and the caps were reported.
    pub(super) fn end(self, all_told: bool) {
        if let Some(journal) = &self.journal {
            if all_told {
                journal.all_told();
            }
            journal.close();
        }
        self.runtime.shutdown_background();
    }

    /// The state of the run now, with `sent_bytes` of shares acknowledged.
    pub(super) fn facts(&self, wall: Duration, sent_bytes: u64) -> Facts {
        Facts {
            wall,
            processor: Duration::from_millis(process_costs().0),
            cores: self.threads,
            threads: self.threads,
            costs: self.context.meter.reading(),
            download: None,
            servers: self.grid.as_ref().map(|grid| grid.readings()).unwrap_or_default(),
            rate_limit: self.settings.limit_rate_bytes_per_s,
            moved_bytes: sent_bytes,
            engine: None,
        }
    }

    /// The state at the end, with the result of the engine's sampler.
    pub(super) fn last_facts(&self, wall: Duration, sent_bytes: u64) -> Facts {
        Facts { engine: self.sampler.take().map(Sampler::finish), ..self.facts(wall, sent_bytes) }
    }

    /// Converts bytes of a file's shares to bytes of its content.
    pub(super) fn content_bytes(&self, share_bytes: u64) -> u64 {
        let Encoding { needed, total, .. } = self.options.encoding;
        share_bytes.saturating_mul(u64::from(needed)) / u64::from(total.max(1))
    }

    /// Servers that were given up, and why.
    pub(super) fn given_up(&self) -> Vec<(String, String)> {
        self.grid.as_ref().map(|grid| grid.given_up()).unwrap_or_default()
    }

    /// The means to put one file in a task of its own.
    fn putter(&self) -> Putter {
        Putter {
            options: self.options.clone(),
            uploader: self.uploader.clone(),
            context: self.context.clone(),
            names: self.journal.as_ref().and_then(|_| JournalNames::of(&self.settings.grid, &self.options)),
            spool: self.settings.spool.clone(),
            stop: self.stop.subscribe(),
        }
    }
}

/// Opens the journal of this run. Without one everything is put all the same.
fn open_journal(directory: &Path) -> Option<Arc<Journal>> {
    match Journal::open(directory) {
        Ok(journal) => Some(journal),
        Err((path, error)) => {
            tracing::warn!(path = %path.display(), %error, "no journal: this run cannot be taken up");
            None
        }
    }
}

/// A directory whose children are in progress.
struct Open {
    missing: usize,
    directory: Directory,
    /// Why it will have no cap.
    failed: Option<String>,
}

/// The result of one file or directory.
struct Outcome {
    size: u64,
    /// Time of the last modification, for items on a disk.
    modified: Option<Time>,
    result: Result<Stored, CommandError>,
}

impl Outcome {
    fn of(size: u64, result: Result<Stored, CommandError>) -> Outcome {
        Outcome { size, modified: None, result }
    }
}

/// The time of a file's last modification.
fn modified(metadata: &Metadata) -> Time {
    Time { seconds: metadata.mtime(), nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or(0) }
}

struct Run<'a> {
    context: &'a PutContext<'a>,
    items: &'a [Item],
    /// Directories that cannot be listed.
    unreadable: &'a Unreadable<'a>,
    /// Items with the same name in a grid as an earlier item in the same directory.
    twins: HashSet<usize>,
    tasks: JoinSet<(usize, Outcome)>,
    open: BTreeMap<usize, Open>,
    /// Results that were not yet reported.
    done: BTreeMap<usize, PutResult>,
}

impl Run<'_> {
    fn begin(&mut self, number: usize) {
        let putter = self.context.putter();
        let size = self.context.settings.stdin_bytes;
        match &self.items[number] {
            // A directory begins when the last of its children is done.
            Item::Directory { .. } => {}
            Item::File { path, found, .. } => match self.left_out(number) {
                // Its content would be sent, but could have no place in its directory.
                Some(error) => {
                    self.tasks.spawn(async move { (number, Outcome::of(0, Err(error))) });
                }
                None => {
                    let (path, found) = (path.clone(), found.clone());
                    self.tasks.spawn(async move { (number, putter.file(&path, found).await) });
                }
            },
            Item::Stdin => {
                self.tasks.spawn(async move { (number, putter.stdin(size).await) });
            }
        }
    }

    fn begin_directory(&mut self, number: usize) {
        let Some(open) = self.open.remove(&number) else { return };
        let putter = self.context.putter();
        let left_out = self.left_out(number);
        let path = self.items[number].path().to_owned();
        self.tasks.spawn(async move {
            let no_cap = |why| CommandError::new(ErrorKind::Partial, format_args!("no cap, because {why}"));
            let outcome = match (left_out, open.failed) {
                (Some(error), _) => Outcome::of(0, Err(error)),
                (None, Some(why)) => Outcome::of(0, Err(no_cap(why))),
                (None, None) => putter.directory(&open.directory, &path).await,
            };
            (number, outcome)
        });
    }

    /// Why an item is left out: it cannot be read, or its name is not possible in a grid.
    fn left_out(&self, number: usize) -> Option<CommandError> {
        let item = &self.items[number];
        let path = item.path();
        let is_nameless = item.parent().is_some() && path.file_name().is_some_and(|name| name.to_str().is_none());
        let nameless = "the name is not UTF-8, and names in a grid are";
        let twin = "another file has this name after Unicode normalisation (NFC)";
        let why = self.unreadable.get(path).map(String::as_str).or(is_nameless.then_some(nameless));
        let why = why.or(self.twins.contains(&number).then_some(twin));
        why.map(|why| CommandError::new(ErrorKind::Disk, why))
    }

    /// Records the result of an item; returns its directory if that is ready now.
    fn finished(&mut self, number: usize, outcome: Outcome) -> Option<usize> {
        let Outcome { size, modified, result } = outcome;
        let item = &self.items[number];
        let path = item.path().to_owned();
        let is_directory = matches!(item, Item::Directory { .. });
        let (sent_bytes, happiness, troubles, result) = match result {
            Ok(stored) => {
                let cap = if is_directory { Directory::cap(stored.cap) } else { stored.cap };
                (stored.sent_bytes, stored.happiness, stored.troubles, Ok(cap))
            }
            Err(error) => (0, 0, Vec::new(), Err(error)),
        };
        let ready = item.parent().and_then(|parent| self.child(parent, &path, &result, modified));
        let is_argument = item.parent().is_none();
        let done = PutResult { path, size, is_directory, is_argument, sent_bytes, happiness, troubles, result };
        self.done.insert(number, done);
        ready
    }

    fn child(
        &mut self,
        parent: usize,
        path: &Path,
        result: &Result<Cap, CommandError>,
        modified: Option<Time>,
    ) -> Option<usize> {
        let open = self.open.get_mut(&parent)?;
        let name = path.file_name().unwrap_or_default();
        let added = match result {
            Ok(cap) => open.directory.add(name.as_bytes(), cap.clone(), modified).map_err(|error| error.to_string()),
            // A file that cannot be read here is left out and reported, as by `tahoe backup`.
            Err(error) if error.kind == ErrorKind::Disk => Ok(()),
            Err(_) => Err(format!("{} has no cap", path.display())),
        };
        if let Err(why) = added {
            open.failed.get_or_insert(why);
        }
        open.missing -= 1;
        (open.missing == 0).then_some(parent)
    }
}

/// Items with the same name in a grid as an earlier item in the same directory.
fn twins(items: &[Item]) -> HashSet<usize> {
    let mut seen = HashSet::new();
    let mut is_twin = |item: &Item| {
        let name = item.path().file_name().and_then(|name| name.to_str());
        item.parent().zip(name).is_some_and(|(parent, name)| !seen.insert((parent, in_grid(name))))
    };
    items.iter().enumerate().filter(|(_, item)| is_twin(item)).map(|(number, _)| number).collect()
}

/// Puts one file.
struct Putter {
    options: PutOptions,
    uploader: Option<Arc<Uploader>>,
    context: ProducerContext,
    names: Option<JournalNames>,
    spool: PathBuf,
    stop: watch::Receiver<bool>,
}

/// Names of files with random keys in the journal: no other content of a file has the same name, nor the same file in
/// another grid.
struct JournalNames {
    /// The file or directory that names the grid.
    grid: PathBuf,
    encoding: Encoding,
    segment_max: u64,
}

impl JournalNames {
    /// `None` unless keys are random.
    fn of(grid: &GridSettings, options: &PutOptions) -> Option<JournalNames> {
        let KeyChoice::Random = options.key else { return None };
        let grid = std::fs::canonicalize(grid.node.as_ref().or(grid.servers.as_ref())?).ok()?;
        Some(JournalNames { grid, encoding: options.encoding, segment_max: options.segment_max })
    }

    fn name(&self, path: &Path, metadata: &Metadata) -> Option<String> {
        let path = std::fs::canonicalize(path).ok()?;
        let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        let JournalNames { grid, encoding, segment_max } = self;
        let how = format!("{} {times:?} {encoding:?} {segment_max}", metadata.len());
        let mut name = Vec::new();
        for part in [path.as_os_str().as_bytes(), grid.as_os_str().as_bytes(), how.as_bytes()] {
            netstring(&mut name, part);
        }
        Some(Sha256::of(&name).to_hex().as_str().to_owned())
    }
}

impl Putter {
    async fn file(self, path: &Path, found: Option<Found>) -> Outcome {
        let own = path.to_owned();
        let opening = move || {
            let file = found.map_or_else(|| File::open(&own), |found| found.open(&own));
            file.and_then(|file| Ok((file.metadata()?, file)))
        };
        let (metadata, file) = match self.unless_stopped(opening).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return Outcome::of(0, Err(CommandError::new(ErrorKind::Disk, error))),
            Err(error) => return Outcome::of(0, Err(error)),
        };
        let size = metadata.len();
        if !metadata.is_file() {
            // A pipe or device given by name is read as stdin is.
            return self.reader(file, None).await;
        }
        let name = self.names.as_ref().and_then(|names| names.name(path, &metadata));
        let result = self.put(Source::file(file), size, name.as_deref()).await;
        Outcome { size, modified: Some(modified(&metadata)), result }
    }

    async fn stdin(self, size: Option<u64>) -> Outcome {
        self.reader(std::io::stdin(), size).await
    }

    /// Reads a pipe. It is streamed if its size is known and its key is random, otherwise spooled.
    async fn reader(self, reader: impl std::io::Read + Send + 'static, size: Option<u64>) -> Outcome {
        if let (Some(size), KeyChoice::Random) = (size, &self.options.key) {
            return Outcome::of(size, self.put(Source::stream(reader), size, None).await);
        }
        let (meter, directory) = (Arc::clone(&self.context.meter), self.spool.clone());
        match self.unless_stopped(move || spool(reader, &directory, &meter)).await.and_then(|spooled| spooled) {
            Ok((file, size)) => Outcome::of(size, self.put(Source::file(file), size, None).await),
            Err(error) => Outcome::of(0, Err(error)),
        }
    }

    /// Runs work that may block for ever on its own thread: a pipe without a writer gives nothing, and a named one
    /// cannot even be opened.
    async fn unless_stopped<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, CommandError> {
        let mut stop = self.stop.clone();
        tokio::select! {
            done = tokio::task::spawn_blocking(work) => {
                done.map_err(|error| CommandError::new(ErrorKind::Internal, error))
            }
            () = stopped(&mut stop) => Err(explain(&PutError::Interrupted)),
        }
    }

    async fn directory(self, directory: &Directory, path: &Path) -> Outcome {
        let packed = directory.pack();
        let size = packed.len() as u64;
        // A directory without a time is as good.
        let modified = std::fs::metadata(path).ok().map(|metadata| modified(&metadata));
        let result = self.put(Source::Memory(packed.into()), size, None).await;
        Outcome { size, modified, result }
    }

    async fn put(&self, source: Source, size: u64, name: Option<&str>) -> Result<Stored, CommandError> {
        let stored = match &self.uploader {
            Some(uploader) => uploader.put(source, size, &self.options, name).await,
            None => {
                let (context, options, stop) = (self.context.clone(), self.options.clone(), self.stop.clone());
                let mut end = stop.clone();
                let dry = tokio::task::spawn_blocking(move || dry(&context, &source, size, &options, &stop));
                tokio::select! {
                    stored = dry => stored.map_err(|error| CommandError::new(ErrorKind::Internal, error))?,
                    () = stopped(&mut end) => Err(PutError::Interrupted),
                }
            }
        };
        stored.map_err(|error| explain(&error))
    }
}

/// Computes the cap of a file without putting it.
fn dry(
    context: &ProducerContext,
    source: &Source,
    size: u64,
    options: &PutOptions,
    stop: &watch::Receiver<bool>,
) -> Result<Stored, PutError> {
    let cap = if size <= LITERAL_BYTES_MAX {
        let mut content = vec![0; size as usize + 1];
        let length = source.read(0, &mut content).map_err(SourceError::from)?;
        if length as u64 != size {
            return Err(SourceError::Size { size }.into());
        }
        content.truncate(length);
        Cap::Literal(content)
    } else {
        let geometry = Geometry::new(options.encoding, size, options.segment_max)?;
        let key = match &options.key {
            KeyChoice::Random => random::<16>(),
            KeyChoice::Convergent(secret) => {
                context.key(source, &geometry, secret, stop)?.ok_or(PutError::Interrupted)?
            }
        };
        let code = Arc::new(Code::new(options.encoding.needed, options.encoding.total));
        Cap::Chk(context.finish_only(source, geometry, key, code)?.cap)
    };
    Ok(Stored { cap, happiness: 0, shares: (0, 0), sent_bytes: 0, troubles: Vec::new() })
}

/// Converts the library's error into one for the user.
fn explain(error: &PutError) -> CommandError {
    let kind = match error {
        PutError::Source(_) => ErrorKind::Disk,
        PutError::Geometry(_) => ErrorKind::Usage,
        PutError::Interrupted => ErrorKind::Interrupted,
        _ => ErrorKind::Network,
    };
    let mut command = CommandError::from_error(kind, error);
    if let PutError::Unhappy { troubles, .. } | PutError::Unreadable { troubles, .. } = error {
        for trouble in troubles {
            command = command.context(trouble);
        }
    }
    if let PutError::TooFewServers { usable: 0, .. } = error {
        command = command.hint("start the node once, so that it learns of its servers, or write private/servers.yaml");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_knows_no_servers_is_to_be_started() {
        let hints = |usable| explain(&PutError::TooFewServers { usable, happy: 7 }).hints;
        assert!(hints(0)[0].contains("start the node once") && hints(6).is_empty());
    }

    #[test]
    fn a_cap_of_one_grid_is_no_cap_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"content").unwrap();
        let metadata = path.metadata().unwrap();
        let name = |grid: &str| {
            let encoding = Encoding::new(3, 7, 10).unwrap();
            JournalNames { grid: grid.into(), encoding, segment_max: 1 << 20 }.name(&path, &metadata).unwrap()
        };
        assert_eq!(name("/one"), name("/one"));
        assert_ne!(name("/one"), name("/other"));
    }
}
