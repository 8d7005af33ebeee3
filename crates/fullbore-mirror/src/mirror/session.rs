//! What a run stands on: directory and lock, journal and landing, fetcher and sampler.

use std::io::ErrorKind as Refused;
use std::ops::Range;
use std::sync::Arc;

use fullbore_debian::signature;
use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Durability;
use fullbore_engine::files::{FileError, Root};
use fullbore_engine::journal::Journal;
use fullbore_engine::landing::Landing;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events;
use fullbore_engine::stage::{Kind, Ledger, StageClock};
use fullbore_engine::target::LocalTarget;
use fullbore_wire::fetch::{Fetcher, Parts};
use fullbore_wire::queue::Item;

use super::directories::Directories;
use super::state::{LOG_PATH, OWN_DIRECTORY};
use super::subtract::LoggedFile;
pub use fullbore_wire::run::{Batch, Fetched};
use fullbore_wire::run::{Faults, Job, Network, NetworkSettings, Progression, addresses, fetch_options, window};

/// A run's means.
pub struct Session {
    /// The mirror's directory.
    pub root: Arc<Root>,
    /// That, and where the run may write.
    pub directories: Directories,
    /// What is written to.
    pub target: Arc<LocalTarget>,
    /// What a killed run goes on from.
    pub journal: Arc<Journal>,
    /// Files that a killed run had finished, and whether they are on the disk for certain.
    pub logged: Vec<(LoggedFile, bool)>,
    /// The clocks of the stages.
    pub ledger: Ledger,
    /// Where bytes become files.
    pub landing: Landing,
    /// Where they come from.
    pub fetcher: Fetcher,
    /// Where connections live.
    pub runtime: Network,
    /// The clock of the stage "local scan".
    pub scan: Arc<StageClock>,
    /// The clock of the stage "sync".
    pub sync: Arc<StageClock>,
    progress: Progression,
    faults: Faults,
}

impl Session {
    /// Opens everything but connections. The directory is locked already.
    pub fn open(
        directories: Directories,
        origins: &[String],
        origin_only: bool,
        network: &NetworkSettings,
        durability: Durability,
    ) -> Result<Session, CommandError> {
        let ledger = Ledger::new();
        let internal = |error: std::io::Error| CommandError::new(ErrorKind::Internal, error);
        // The sampler first: the verdict covers set-up too.
        let progress = Progression::start(&ledger, directories.volume.path(), network.record.as_deref())?;
        directories.work.create_directory(OWN_DIRECTORY, 0o700).map_err(|error| disk(&error))?;
        signature::sweep(&directories.work.path().join(OWN_DIRECTORY));
        let mut logged = Vec::new();
        let journal = Journal::open(&directories.work, LOG_PATH, &mut |file, trusted| {
            logged.push((LoggedFile { path: file.path, size: file.size, sha256: file.sha256 }, trusted));
        })
        .map_err(|error| disk(&error))?;
        let journal = Arc::new(journal);
        let target = Arc::new(LocalTarget::new(directories.work.clone(), durability));
        let used = if origin_only { 1 } else { origins.len() };
        let urls = addresses(origins.iter().take(used))?;
        let window = window(urls.0.len(), network);
        ledger.watch_window(&window);
        let (sender, outcomes) = tokio::sync::mpsc::unbounded_channel();
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get()).min(8);
        let landing = Landing::start(target.clone(), journal.clone(), threads, &ledger, sender).map_err(internal)?;
        let runtime = Network::start(&ledger)?;
        let options = fetch_options(network, urls.1)?;
        let fetcher = {
            let _inside = runtime.enter();
            Fetcher::start(
                urls.0,
                options,
                Parts { landing: landing.clone(), outcomes, window, ledger: ledger.clone() },
            )
        };
        Ok(Session {
            faults: Faults::of(&fetcher),
            scan: ledger.stage("local scan", Kind::Thread),
            sync: ledger.stage("sync", Kind::Thread),
            root: directories.root.clone(),
            directories,
            target,
            journal,
            logged,
            ledger,
            landing,
            fetcher,
            runtime,
            progress,
        })
    }

    /// Fetches a batch. Failures of our own side end it; what was fetched by then stays for the
    /// next run.
    pub fn fetch<B: Batch + 'static>(
        &mut self,
        batch: Arc<B>,
        items: Vec<Item>,
        stop: &Stop,
        events: &mut dyn Events,
    ) -> Result<Fetched, CommandError> {
        let job = Job { batch, items, fetcher: &mut self.fetcher, landing: &self.landing, faults: &mut self.faults };
        let mut all = self.progress.fetch(&self.runtime, vec![job], stop, events, &mut |_, _| {})?;
        Ok(all.remove(0))
    }

    /// Which bytes of a file an earlier run left.
    pub fn present(&self, path: &str, size: u64, sha256: Sha256) -> Result<Vec<Range<u64>>, FileError> {
        if !self.directories.is_untouched() {
            return Ok(self.landing.present(path, size, sha256));
        }
        // The landing would look beside the copy of the log; the unfinished file is in the mirror.
        let mut present = self.journal.present(path, size, sha256);
        if !present.is_empty() {
            present.clamp(self.root.part_size(path)?.unwrap_or(0));
        }
        Ok(present.as_slice().to_vec())
    }

    /// Files and bytes verified so far.
    pub fn done(&self) -> (u64, u64) {
        self.progress.done()
    }

    /// Bytes that had to come.
    pub fn needed_bytes(&self) -> u64 {
        self.progress.needed_bytes()
    }

    /// Ends the sampler; the verdict is on everything until now. `None` the second time.
    pub fn verdict(&mut self) -> Option<fullbore_engine::verdict::Verdict> {
        self.progress.verdict()
    }
}

/// A failure to do with the destination.
pub fn disk(error: &dyn std::error::Error) -> CommandError {
    let mut cause = error.source();
    while let Some(outer) = cause.filter(|cause| !cause.is::<std::io::Error>()) {
        cause = outer.source();
    }
    let hint = match cause.and_then(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind) {
        Some(Refused::PermissionDenied) => "run as the user that owns the mirror, or let this one write there",
        Some(Refused::ReadOnlyFilesystem) => "mount it for writing, or choose another directory",
        Some(Refused::AlreadyExists | Refused::NotADirectory) => {
            "something else is where a directory should be: move it away, or choose another"
        }
        Some(Refused::StorageFull | Refused::QuotaExceeded) => "make room and run again: what was fetched is kept",
        _ => "run again when this is mended",
    };
    CommandError::new(ErrorKind::Disk, error).context("the mirror as it was published before is intact").hint(hint)
}
