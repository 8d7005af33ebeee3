//! `ls` of a directory of a grid: its entries without their caps, or everything below it.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use fullbore_engine::run::listed::{ListedEntry, ListedKind};
use fullbore_engine::run::report::{Report, StoreReport};
use fullbore_engine::run::{CommandError, ErrorKind, Event, Events, Stop};
use fullbore_engine::stage::Ledger;
use fullbore_engine::units::several;
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::run::sending_runtime;

use tokio::task::JoinHandle;

use crate::cap::{Cap, CapError, StorageIndex};
use crate::contents::{Contents, Found, Listing, ReadError, explain, listing_bytes};
use crate::directory::{Entry, Time};
use crate::download::Downloader;
use crate::grid::{self, GridSettings, access, connect};
use crate::upload::produce::Pool;
use crate::verdict::{Facts, judge};

/// Directories read at once. A guess: each takes a few round trips, and 32 at once hide most of them.
const READ_AT_ONCE: usize = 32;

/// Bytes of memory for directories read ahead. One more directory is always read, whatever its size.
const LISTINGS_BYTES: u64 = 64 << 20;

/// Number of entries searched for directories to read ahead.
const LOOK_AHEAD: usize = 256;

/// Settings of one `fullbore ls` of a directory in a grid.
#[derive(Clone)]
pub struct ListSettings {
    /// The grid and how to reach it.
    pub grid: GridSettings,
    /// The cap of a directory; `CAP/sub` for one below it; `-` reads the cap from stdin.
    pub cap: OsString,
    /// List everything below the directory, not one level.
    pub recursive: bool,
}

impl fmt::Debug for ListSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListSettings").field("grid", &self.grid).finish_non_exhaustive()
    }
}

/// Lists a directory: each entry is an event, in the order of names; the entries of a directory follow it. A file is
/// listed as itself.
///
/// # Errors
/// - [`ErrorKind::Usage`] for an invalid cap, node directory or servers file.
/// - [`ErrorKind::Network`] if too few servers answer.
/// - [`ErrorKind::Partial`] if some caps are not supported, or some directories below cannot be read.
/// - [`ErrorKind::Interrupted`] if the run was stopped.
pub fn run(settings: &ListSettings, events: &mut dyn Events, stop: &Stop) -> Result<Report, CommandError> {
    let text = match settings.cap.to_str() {
        Some("-") => first_line()?,
        _ => settings.cap.to_string_lossy().into_owned(),
    };
    let (cap, path) = text.trim().split_once('/').unwrap_or((text.trim(), ""));
    let cap = Cap::parse(cap).map_err(|error| CommandError::usage(format_args!("the cap cannot be read: {error}")))?;
    let Some(access) = access(&settings.grid)? else {
        return Err(CommandError::usage("no Tahoe-LAFS grid is named")
            .hint("give --node ~/.tahoe for the grid of a Tahoe-LAFS node, or --servers FILE"));
    };
    let begun = Instant::now();
    let runtime = sending_runtime(&Ledger::off())?;
    let grid = Arc::new(connect(settings.grid.patience, &access, RateLimits::default(), &Ledger::off()));
    let downloader = Arc::new(Downloader::new(Arc::clone(&grid), Pool::new(1), stop.watch()));
    let contents = Contents::new(Arc::clone(&grid), downloader);
    let mut listing = Lister {
        contents,
        recursive: settings.recursive,
        events,
        store: StoreReport::default(),
        waiting: Vec::new(),
        reading: 0,
        reading_bytes: 0,
        unread: 0,
    };
    runtime.block_on(stop.or(listing.run(cap, path)))??;
    let Lister { store, unread, .. } = listing;
    let unknown = store.failed - unread;
    let facts = Facts { wall: begun.elapsed(), servers: grid.readings(), ..Facts::default() };
    let summary = grid::summary(&settings.grid, facts.wall, &facts.servers, grid.given_up(), judge(&facts), store);
    let report = Report { summary, ..Report::default() };
    runtime.shutdown_background();
    let text = match (unread, unknown) {
        (0, 0) => return Ok(report),
        (0, count) => format!("{count} of the entries have caps that are not understood"),
        (count, 0) => format!("{} could not be read", several(count, "directory", "directories")),
        (count, unknown) => format!(
            "{} could not be read, and {unknown} of the entries have caps that are not understood",
            several(count, "directory", "directories")
        ),
    };
    Err(CommandError::new(ErrorKind::Partial, text).with_report(report))
}

/// An entry that is still to be reported.
struct Waiting {
    /// Path below the listed directory.
    path: String,
    cap: Result<Cap, CapError>,
    modified: Option<Time>,
    /// The directories above it, to find a directory that contains itself.
    above: Arc<Vec<StorageIndex>>,
    /// The listing of a directory that is being read.
    reading: Option<JoinHandle<Result<Listing, ReadError>>>,
}

impl Waiting {
    /// The cap, if it is that of a directory to be read.
    fn directory(&self) -> Option<&Cap> {
        let cap = self.cap.as_ref().ok().filter(|cap| cap.is_directory())?;
        cap.storage_index().is_none_or(|index| !self.above.contains(&index)).then_some(cap)
    }
}

/// Walks through directories, in the order of names.
struct Lister<'a> {
    contents: Contents,
    recursive: bool,
    events: &'a mut dyn Events,
    store: StoreReport,
    /// Entries to report, in reverse order.
    waiting: Vec<Waiting>,
    /// Directories being read; the next field has the bytes of memory charged for them.
    reading: usize,
    reading_bytes: u64,
    /// Directories that could not be read.
    unread: u64,
}

impl Lister<'_> {
    async fn run(&mut self, cap: Cap, path: &str) -> Result<(), CommandError> {
        let Found { cap: found, troubles } = self.contents.walk(cap, path).await.map_err(|error| explain(&error))?;
        troubles.into_iter().for_each(|trouble| self.events.warn(trouble));
        if !found.is_directory() {
            let name = path.rsplit('/').find(|name| !name.is_empty()).unwrap_or("the cap");
            return self.tell(name.to_owned(), &Ok(found), None);
        }
        let listing = self.contents.directory(&found).await.map_err(|error| explain(&error))?;
        self.children("", listing, Arc::new(found.storage_index().into_iter().collect()));
        loop {
            self.read_ahead();
            let Some(Waiting { path, cap, modified, above, reading }) = self.waiting.pop() else { return Ok(()) };
            self.tell(path.clone(), &cap, modified)?;
            let Some(cap) = cap.ok().filter(|cap| self.recursive && cap.is_directory()) else { continue };
            let Some(reading) = reading else {
                self.fail(path, "the directory contains itself".to_owned());
                continue;
            };
            self.reading -= 1;
            self.reading_bytes = self.reading_bytes.saturating_sub(listing_bytes(&cap).min(LISTINGS_BYTES));
            match reading.await.map_err(|error| CommandError::new(ErrorKind::Internal, error))? {
                Ok(listing) => {
                    let mut above = Vec::clone(&above);
                    above.extend(cap.storage_index());
                    self.children(&path, listing, Arc::new(above));
                }
                Err(error) => self.fail(path, explain(&error).message),
            }
        }
    }

    /// Starts to read the next directories. The very next one is always read.
    fn read_ahead(&mut self) {
        if !self.recursive {
            return;
        }
        for (ahead, waiting) in self.waiting.iter_mut().rev().take(LOOK_AHEAD).enumerate() {
            if ahead > 0 && (self.reading >= READ_AT_ONCE || self.reading_bytes >= LISTINGS_BYTES) {
                break;
            }
            if waiting.reading.is_none()
                && let Some(cap) = waiting.directory().cloned()
            {
                let contents = self.contents.clone();
                self.reading_bytes += listing_bytes(&cap).min(LISTINGS_BYTES);
                waiting.reading = Some(tokio::spawn(async move { contents.directory(&cap).await }));
                self.reading += 1;
            }
        }
    }

    fn children(&mut self, directory: &str, listing: Listing, above: Arc<Vec<StorageIndex>>) {
        for trouble in listing.troubles {
            let text = if directory.is_empty() { trouble } else { format!("{directory}: {trouble}") };
            self.events.warn(text);
        }
        let mut entries = listing.entries;
        entries.sort_by(|one, other| other.name.cmp(&one.name));
        self.waiting.extend(entries.into_iter().map(|Entry { name, cap, modified }| Waiting {
            path: if directory.is_empty() { name } else { format!("{directory}/{name}") },
            cap,
            modified,
            above: Arc::clone(&above),
            reading: None,
        }));
    }

    fn tell(&mut self, name: String, cap: &Result<Cap, CapError>, modified: Option<Time>) -> Result<(), CommandError> {
        let modified_unix_s = modified.map(|time| time.seconds);
        let (kind, size) = match cap {
            Ok(cap) if cap.is_directory() => (ListedKind::Directory, None),
            Ok(cap) => (ListedKind::File, cap.size()),
            Err(_) => (ListedKind::Unknown, None),
        };
        match kind {
            ListedKind::File => self.store.files += 1,
            ListedKind::Directory => self.store.directories += 1,
            ListedKind::Unknown => self.store.failed += 1,
        }
        self.store.bytes = self.store.bytes.saturating_add(size.unwrap_or_default());
        let mutable = matches!(cap, Ok(Cap::Mutable(_) | Cap::MutableDirectory(_)));
        self.events.tell(Event::Listed(ListedEntry { name, kind, size, modified_unix_s, mutable }))
    }

    fn fail(&mut self, path: String, message: String) {
        self.store.failed += 1;
        self.unread += 1;
        let problem = ErrorKind::Partial.name().to_owned();
        self.events.emit(Event::Problem { problem, path, message, harmless: false });
    }
}

/// Reads the cap on stdin.
fn first_line() -> Result<String, CommandError> {
    use std::io::{BufRead, Read};

    /// Longest line that is read, in bytes; as in `get`.
    const LINE_BYTES_MAX: u64 = 1 << 20;

    let mut line = String::new();
    let read = std::io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| CommandError::disk(std::path::Path::new("stdin"), &error))?;
    Ok(line)
}
