//! Resources of a run: directories, journal, connections, clocks.

use std::io::ErrorKind as Refused;
use std::ops::Range;
use std::sync::Arc;

use fullbore_debian::signature;
use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Durability;
use fullbore_engine::files::{FileError, Root};
use fullbore_engine::journal::Journal;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events;
use fullbore_engine::run::{Stop, StoreFailure};
use fullbore_engine::stage::{Kind, Ledger, StageClock};
use fullbore_engine::target::{LocalTarget, Name, Target, TargetError};
use fullbore_wire::fetch::Catalogue;
use fullbore_wire::queue::Item;

use super::bucket::{BEGUN_BYTES_MAX, BucketMirror};
use super::directories::Directories;
use super::state::{LOG_PATH, OWN_DIRECTORY};
use super::subtract::LoggedFile;
use super::tree::Tree;
use fullbore_wire::run::{Fetched, Network, NetworkSettings, Progression, Site, SiteParts, site};

/// Maximum number of writing threads. A guess: eight write and hash more than a 10 Gbit/s network delivers.
pub(super) const THREADS_MAX: usize = 8;

/// Directories, connections and clocks of a run.
pub(crate) struct Session {
    /// Directory with fullbore's own files, and with unfinished files.
    pub own: Arc<Root>,
    /// The published files of the mirror.
    pub tree: Arc<dyn Tree>,
    /// All directories of the run, including the mirror's.
    pub directories: Directories,
    /// Destination of fetched files and names.
    pub destination: Destination,
    /// Journal of finished and unfinished files, for the next run if this one is killed.
    pub journal: Arc<Journal>,
    /// Files that a killed run finished, and whether each was synced.
    pub logged: Vec<(LoggedFile, bool)>,
    /// Clocks of all stages, for the verdict.
    pub ledger: Ledger,
    /// Mirrors that serve the archive.
    pub site: Site,
    /// Runtime of the connections.
    pub runtime: Network,
    /// Clock of the stage "local scan".
    pub scan: Arc<StageClock>,
    /// Clock of the stage "sync".
    pub sync: Arc<StageClock>,
    /// Counters of files and bytes, and the sampler.
    pub progression: Progression,
}

/// Destination of fetched files.
#[derive(Clone)]
pub(crate) enum Destination {
    /// A directory.
    Directory(Arc<LocalTarget>),
    /// A bucket.
    Bucket(Arc<BucketMirror>),
}

impl Destination {
    /// Gives names to stored content, as [`Target::publish`] does.
    ///
    /// # Errors
    /// The errors of [`Target::publish`].
    pub(crate) fn publish(&self, names: &[Name]) -> Result<(), TargetError> {
        match self {
            Destination::Directory(target) => target.publish(names),
            Destination::Bucket(bucket) => bucket.target.publish(names),
        }
    }

    /// Makes all writes so far as durable as the destination promises, including fullbore's own files.
    ///
    /// # Errors
    /// [`TargetError`] if files cannot be written or synced, or another run has changed the state of a mirror in a
    /// bucket.
    pub(crate) fn barrier(&self) -> Result<(), TargetError> {
        match self {
            Destination::Directory(target) => target.barrier().map(drop),
            Destination::Bucket(bucket) => {
                bucket.target.barrier()?;
                bucket.save()
            }
        }
    }

    /// Writes fullbore's own files back, if the local ones are only copies.
    ///
    /// # Errors
    /// [`TargetError`] if they cannot be written, or another run has changed the state of a mirror in a bucket. A
    /// directory needs no write.
    pub(crate) fn save(&self) -> Result<(), TargetError> {
        match self {
            Destination::Directory(_) => Ok(()),
            Destination::Bucket(bucket) => bucket.save(),
        }
    }
}

impl Session {
    /// Opens everything except connections. The directory must be locked already.
    ///
    /// # Errors
    ///
    /// `Disk` if a directory or the journal cannot be opened, `Usage` for an unusable address or network setting, and
    /// `Internal` if a thread cannot be started.
    pub(crate) fn open(
        directories: Directories,
        origins: &[String],
        origin_only: bool,
        network: &NetworkSettings,
        durability: Durability,
    ) -> Result<Session, CommandError> {
        let ledger = Ledger::new();
        // The sampler starts first, so that the verdict covers the set-up too.
        let progression = Progression::start(&ledger, directories.volume.path(), network.record.as_deref())?;
        directories.work.create_directory(OWN_DIRECTORY, 0o700).map_err(|error| disk(&error))?;
        signature::sweep(&directories.work.path().join(OWN_DIRECTORY));
        let mut logged = Vec::new();
        let journal = Journal::open(&directories.work, LOG_PATH, &mut |file, trusted| {
            logged.push((LoggedFile { path: file.path, size: file.size, sha256: file.sha256 }, trusted));
        })
        .map_err(|error| disk(&error))?;
        let journal = Arc::new(journal);
        let destination = match &directories.bucket {
            Some(bucket) => Destination::Bucket(bucket.clone()),
            None => Destination::Directory(Arc::new(LocalTarget::new(directories.work.clone(), durability))),
        };
        let used = if origin_only { 1 } else { origins.len() };
        let (urls, mut options) = site(origins.iter().take(used), network)?;
        let runtime = Network::start(&ledger)?;
        let parts = SiteParts { runtime: &runtime, ledger: &ledger, network, threads_max: THREADS_MAX };
        let site = match &destination {
            Destination::Directory(target) => Site::open(urls, options, target.clone(), journal.clone(), &parts)?,
            Destination::Bucket(bucket) => {
                options.limits.memory_bytes = BEGUN_BYTES_MAX;
                Site::open(urls, options, bucket.target.clone(), journal.clone(), &parts)?
            }
        };
        Ok(Session {
            scan: ledger.stage("local scan", Kind::Thread),
            sync: ledger.stage("sync", Kind::Thread),
            own: directories.own.clone(),
            tree: directories.tree.clone(),
            directories,
            destination,
            journal,
            logged,
            ledger,
            site,
            runtime,
            progression,
        })
    }

    /// Fetches a batch. A local failure, such as a full disk, ends the batch; fetched files stay for the next run.
    /// Failures of mirrors are in the result.
    ///
    /// # Errors
    ///
    /// `Disk` or the errors of the store if a file cannot be written, `Interrupted` if a signal arrived.
    pub(crate) fn fetch(
        &mut self,
        batch: Arc<dyn Catalogue>,
        items: Vec<Item>,
        stop: &Stop,
        events: &mut dyn Events,
    ) -> Result<Fetched, CommandError> {
        let job = self.site.job(batch, items);
        let mut all = self.progression.fetch(&self.runtime, vec![job], stop, events, &mut |_, _| {})?;
        Ok(all.remove(0))
    }

    /// Ranges of a file that an earlier run fetched.
    ///
    /// # Errors
    ///
    /// [`FileError`] if the unfinished file cannot be looked at, in a dry run.
    pub(crate) fn present(&self, path: &str, size: u64, sha256: Sha256) -> Result<Vec<Range<u64>>, FileError> {
        if !self.directories.is_untouched() {
            return Ok(self.site.landing.present(path, size, sha256));
        }
        // A dry run lands in its working directory, but the unfinished file is in the mirror.
        let mut present = self.journal.present(path, size, sha256);
        if !present.is_empty() {
            present.clamp(self.own.part_size(path)?.unwrap_or(0));
        }
        Ok(present.as_slice().to_vec())
    }
}

/// Context of a failure of the destination.
const INTACT: &str = "the mirror as it was published before is intact";

/// Error of a command for a failure in the mirror's directory or store.
pub(crate) fn disk(error: &dyn std::error::Error) -> CommandError {
    if let Some(failure) = error.source().and_then(StoreFailure::behind) {
        return failure.command(error).context(INTACT);
    }
    let mut cause = error.source();
    while let Some(outer) = cause.filter(|cause| !cause.is::<std::io::Error>()) {
        cause = outer.source();
    }
    let hint = match cause.and_then(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind) {
        // Every command adds a hint of its own.
        Some(Refused::PermissionDenied) => None,
        Some(Refused::ReadOnlyFilesystem) => Some(
            "mount the file system for writing, or choose another directory; a systemd service needs ReadWritePaths= for it",
        ),
        Some(Refused::AlreadyExists | Refused::NotADirectory) => {
            Some("a file is in the way of a directory: move it away, or choose another directory")
        }
        Some(Refused::StorageFull | Refused::QuotaExceeded) => {
            Some("free some space and run again: fetched files are kept")
        }
        _ => Some("repair this and run again"),
    };
    let failure = CommandError::new(ErrorKind::Disk, error).context(INTACT);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
