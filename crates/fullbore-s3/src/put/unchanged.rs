//! Files that have not changed since an earlier run sent or compared them, and need not be read again.
//!
//! A file is skipped if three things agree with an earlier run's record: the file's [`Identity`], and the size and ETag
//! of the object in the store. All other files are compared by checksum. The records are in a file of the state
//! directory, one per destination ([`Table`]). If it is lost, files are read once more.

mod table;

use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, BufWriter, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::identity::Identity;
use fullbore_engine::output::{Output, PRIVATE};

use super::plan::Plan;
use crate::address::Location;
use table::DAYS_MAX;
pub use table::Table;
use table::{Entry, TABLE_BYTES_MAX};

/// Suffix of the files with the records.
const SUFFIX: &str = ".s3-unchanged";

/// Age in days after which the use of an entry is recorded again, so that a run without changes rarely writes.
const USED_DAYS: u16 = 7;

/// Maximum number of files in a state directory, and of their bytes; the oldest ones are removed. A guess: a
/// destination with a date in its name has a file of its own, which is useless on the next day.
const FILES_MAX: usize = 1000;
const FILES_BYTES_MAX: u64 = 1 << 30;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A file that was examined before its content was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    identity: Identity,
    at: SystemTime,
}

impl Seen {
    /// Takes the present state of the file from its metadata.
    pub(crate) fn now(about: &Metadata) -> Seen {
        Seen { identity: Identity::of(about), at: SystemTime::now() }
    }

    /// The identity for the content that was read since. `None` if the file was changed meanwhile, or a change might
    /// not show.
    pub(crate) fn confirmed(&self, file: &File) -> Option<Identity> {
        let now = Identity::of(&file.metadata().ok()?);
        (now == self.identity && self.identity.shows_changes_after(self.at, file)).then_some(now)
    }
}

/// Records of earlier runs, and new ones of this run.
#[derive(Debug)]
pub(crate) struct Unchanged {
    /// `None`: nothing is recorded.
    place: Option<Place>,
    known: Table,
    today: u16,
    fresh: Mutex<Vec<Entry>>,
}

/// The file with the records of a destination.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    destination: Sha256,
}

impl Unchanged {
    /// Reads the records of a destination from its file in this directory. Without `believes`, they are ignored and
    /// written anew.
    pub(crate) fn find(
        directory: Option<&Path>,
        store: &str,
        location: &Location,
        plan: &Plan,
        believes: bool,
    ) -> Unchanged {
        let today = days(SystemTime::now());
        let place = directory.map(|directory| Place::of(directory, store, &location.bucket, prefix(location, plan)));
        let known = place.as_ref().filter(|_| believes).map(|place| match place.read() {
            Ok(table) => table,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::info!(path = %place.path.display(), %error, "this run reads all files");
                }
                Table::default()
            }
        });
        let known = known.unwrap_or_default();
        Unchanged { place, known, today, fresh: Mutex::default() }
    }

    /// Creates an instance that records nothing.
    pub(crate) fn none() -> Unchanged {
        Unchanged { place: None, known: Table::default(), today: 0, fresh: Mutex::default() }
    }

    /// Whether an earlier run has a record of this key.
    pub(crate) fn knows(&self, key: &str) -> bool {
        self.known.of(key).is_some()
    }

    /// Whether the object of this key has the content of the file, if it has this ETag and the file's size in the
    /// store.
    pub(crate) fn has(&self, key: &str, seen: &Seen, etag: &str) -> bool {
        let now = Entry::new(key, &seen.identity, etag, self.today);
        let Some(known) = self.known.of(key).filter(|known| known.is_same(&now)) else { return false };
        if self.today.saturating_sub(known.day()) >= USED_DAYS {
            self.add(now);
        }
        true
    }

    /// Records that the object of this key has this ETag, and the content of the file in its confirmed state.
    pub(crate) fn note(&self, key: &str, confirmed: Option<Identity>, etag: Option<&str>) {
        if let (Some(identity), Some(etag), Some(_)) = (confirmed, etag.filter(|etag| !etag.is_empty()), &self.place) {
            self.add(Entry::new(key, &identity, etag, self.today));
        }
    }

    fn add(&self, entry: Entry) {
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        if fresh.len() < table::ENTRIES_MAX {
            fresh.push(entry);
        }
    }

    /// Writes the records. Without them, later runs read more files than necessary.
    pub(crate) fn save(&self) {
        let fresh = std::mem::take(&mut *self.fresh.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(place) = self.place.as_ref().filter(|_| !fresh.is_empty()) else { return };
        // Another run for the same destination may have written since. From now on, one of two concurrent writes is
        // lost.
        let mut table = place.read().unwrap_or_default();
        table.merge(fresh, self.today);
        match place.write(&table) {
            Ok(()) => tracing::debug!(files = table.count(), "noted which files are unchanged"),
            Err(error) => tracing::info!(path = %place.path.display(), %error, "the next run reads all files again"),
        }
    }
}

impl Place {
    fn of(directory: &Path, store: &str, bucket: &str, prefix: &str) -> Place {
        // Store and bucket cannot contain a line break.
        let destination = Sha256::of(format!("{store}\n{bucket}\n{prefix}").as_bytes());
        let name = &destination.to_hex().as_str()[..32].to_owned();
        Place { path: directory.join(format!("{name}{SUFFIX}")), destination }
    }

    /// Reads the file.
    fn read(&self) -> io::Result<Table> {
        // A pipe with this name would block the open.
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        File::open(&self.path)?.take(TABLE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Table::parse(&bytes, &self.destination).map_err(io::Error::other)
    }

    /// Replaces the file. It is not synced: after a power cut, a damaged file has a wrong checksum.
    fn write(&self, table: &Table) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let output = Output::begin(&self.path, PRIVATE)?;
        table.write(BufWriter::new(output.file()), &self.destination)?;
        output.publish()?;
        remove_old(directory, SystemTime::now());
        Ok(())
    }
}

/// Prefix of all keys of this plan: the directory of the address. So files that are uploaded one by one, under keys
/// with a date, share one table.
fn prefix<'a>(location: &'a Location, plan: &'a Plan) -> &'a str {
    let of_address = || &location.key[..location.key.rfind('/').map_or(0, |slash| slash + 1)];
    plan.prefix.as_deref().unwrap_or_else(of_address)
}

/// Days since 1970, until 2149.
fn days(time: SystemTime) -> u16 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u16::try_from(since.as_secs() / DAY.as_secs()).unwrap_or(u16::MAX)
}

/// Removes old files of destinations that no run has used for long, and the oldest ones if there are too many.
fn remove_old(directory: &Path, now: SystemTime) {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(SUFFIX)
            && let Ok(about) = entry.metadata()
            && about.is_file()
        {
            files.push((about.modified().unwrap_or(UNIX_EPOCH), about.len(), entry.path()));
        }
    }
    files.sort_by(|one, other| other.cmp(one));
    let mut bytes = 0_u64;
    for (number, (modified, length, path)) in files.into_iter().enumerate() {
        bytes = bytes.saturating_add(length);
        let is_old = now.duration_since(modified).is_ok_and(|age| age > u32::from(DAYS_MAX) * DAY);
        if is_old || number >= FILES_MAX || bytes > FILES_BYTES_MAX {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests;
