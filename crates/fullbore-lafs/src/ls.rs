//! `ls` of a directory of a grid: its entries, without their caps.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use fullbore_engine::run::listed::{ListedEntry, ListedKind};
use fullbore_engine::run::report::{Report, StoreReport};
use fullbore_engine::run::{CommandError, ErrorKind, Event, Events, Stop};
use fullbore_engine::stage::Ledger;
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::run::sending_runtime;

use crate::cap::Cap;
use crate::contents::{Contents, explain};
use crate::directory::Entry;
use crate::download::Downloader;
use crate::grid::{self, GridSettings, access, connect};
use crate::upload::produce::Pool;
use crate::verdict::{Facts, judge};

/// Settings of one `fullbore ls` of a directory in a grid.
#[derive(Clone)]
pub struct ListSettings {
    /// The grid.
    pub grid: GridSettings,
    /// The cap of a directory, with a path behind it if one below it is meant: `CAP/sub`. `-` reads it from stdin.
    pub cap: OsString,
}

impl fmt::Debug for ListSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListSettings").field("grid", &self.grid).finish_non_exhaustive()
    }
}

/// Lists a directory: each entry is an event, in the order of their names. A file is listed as itself.
///
/// # Errors
/// A usage error for an invalid cap, node directory or servers file; a network error if too few servers answer;
/// [`ErrorKind::Partial`] if some entries are not understood.
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
    let listing = async {
        let found = contents.walk(cap, path).await?;
        if !found.is_directory() {
            let name = path.rsplit('/').find(|name| !name.is_empty()).unwrap_or("the cap").to_owned();
            return Ok((vec![Entry { name, cap: Ok(found), modified: None }], Vec::new()));
        }
        let listing = contents.directory(&found).await?;
        Ok((listing.entries, listing.troubles))
    };
    let listed = runtime.block_on(stop.or(listing))?;
    let (mut entries, troubles) = listed.map_err(|error| explain(&error))?;
    troubles.into_iter().for_each(|trouble| events.warn(trouble));
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut store = StoreReport::default();
    for Entry { name, cap, modified } in entries {
        let modified_unix_s = modified.map(|time| time.seconds);
        let (kind, size) = match &cap {
            Ok(cap) if cap.is_directory() => (ListedKind::Directory, None),
            Ok(cap) => (ListedKind::File, cap.size()),
            Err(_) => (ListedKind::Unknown, None),
        };
        match kind {
            ListedKind::File => store.files += 1,
            ListedKind::Directory => store.directories += 1,
            ListedKind::Unknown => store.failed += 1,
        }
        let mutable = matches!(cap, Ok(Cap::Mutable(_) | Cap::MutableDirectory(_)));
        events.tell(Event::Listed(ListedEntry { name, kind, size, modified_unix_s, mutable }))?;
    }
    let failed = store.failed;
    let facts = Facts { wall: begun.elapsed(), servers: grid.readings(), ..Facts::default() };
    let summary = grid::summary(&settings.grid, facts.wall, &facts.servers, grid.given_up(), judge(&facts), store);
    let report = Report { summary, ..Report::default() };
    runtime.shutdown_background();
    match failed {
        0 => Ok(report),
        count => {
            let text = format!("{count} of the entries have caps that are not understood");
            Err(CommandError::new(ErrorKind::Partial, text).with_report(report))
        }
    }
}

/// The cap on stdin.
fn first_line() -> Result<String, CommandError> {
    use std::io::{BufRead, Read};

    /// Bytes of a line that are read, as in `get`.
    const LINE_BYTES_MAX: u64 = 1 << 20;

    let mut line = String::new();
    let read = std::io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| CommandError::disk(std::path::Path::new("stdin"), &error))?;
    Ok(line)
}
