//! The mirrors of one archive during a run: their connections, and the threads that write received data.

use std::sync::Arc;

use fullbore_engine::digest::Sha256;
use fullbore_engine::journal::Journal;
use fullbore_engine::landing::{FileSpec, Landing};
use fullbore_engine::run::{CommandError, ErrorKind};
use fullbore_engine::stage::Ledger;
use fullbore_engine::target::Target;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::batch::{Faults, Fed, Job};
use super::settings::{NetworkSettings, window};
use crate::fetch::{Catalogue, FetchOptions, Fetcher, Parts};
use crate::queue::{Item, ItemId};
use crate::url::Url;

/// Connections to the mirrors of one archive, and the landing of their files.
pub struct Site {
    /// The fetcher that requests files from the mirrors.
    pub fetcher: Fetcher,
    /// Writes and hashes the received data.
    pub landing: Landing,
    faults: Faults,
}

/// Parts that the sites of a run share.
pub struct SiteParts<'a> {
    /// The runtime of the connections' tasks.
    pub runtime: &'a Runtime,
    /// Holds the clocks of the stages.
    pub ledger: &'a Ledger,
    /// Network settings of the run.
    pub network: &'a NetworkSettings,
    /// Maximum number of writing threads; fewer on machines with fewer cores.
    pub threads_max: usize,
}

impl Site {
    /// Starts the writing threads and prepares connections to `urls`; the first is the origin.
    ///
    /// # Errors
    /// A [`CommandError`] of kind internal if the system cannot start a thread.
    pub fn open<T: Target + 'static>(
        urls: Vec<Url>,
        options: FetchOptions,
        target: Arc<T>,
        journal: Arc<Journal>,
        parts: &SiteParts<'_>,
    ) -> Result<Site, CommandError> {
        let window = window(urls.len(), parts.network);
        parts.ledger.watch_window(&window);
        let (sender, outcomes) = mpsc::unbounded_channel();
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get()).min(parts.threads_max);
        let landing = Landing::start(target, journal, threads, parts.ledger, sender)
            .map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        let _inside = parts.runtime.enter();
        let parts = Parts { landing: landing.clone(), outcomes, window, ledger: parts.ledger.clone() };
        let fetcher = Fetcher::start(urls, options, parts);
        Ok(Site { faults: Faults::of(&fetcher), fetcher, landing })
    }

    /// Makes a job for [`Progression::fetch`](super::Progression::fetch).
    pub fn job(&mut self, batch: Arc<dyn Catalogue>, items: Vec<Item>) -> Job<'_> {
        Job { batch, items, fetcher: &mut self.fetcher, landing: &self.landing, faults: &mut self.faults }
    }

    /// The files of a feed, for [`Progression::fetch_fed`](super::Progression::fetch_fed).
    pub fn fed(&mut self, catalogue: Arc<dyn Catalogue>, items: mpsc::Receiver<Vec<Item>>) -> Fed<'_> {
        Fed { catalogue, items, fetcher: &mut self.fetcher, landing: &self.landing, faults: &mut self.faults }
    }

    /// Makes a job that fetches all `files`, without the parts that an earlier run left.
    pub fn job_of(&mut self, files: &Arc<FileList>) -> Job<'_> {
        let item = |(id, file): (usize, &RemoteFile)| Item {
            id: id as ItemId,
            size: file.size,
            present: self.landing.present(&file.target, file.size, file.sha256),
            ..Item::default()
        };
        let items = files.0.iter().enumerate().map(item).collect();
        self.job(files.clone(), items)
    }
}

/// A file to fetch from a site.
#[derive(Debug, Clone)]
pub struct RemoteFile {
    /// Path below the site's addresses; by hash where the archive has such paths.
    pub path: String,
    /// Another path of the same content.
    pub other_path: Option<String>,
    /// Path of the file below the target's directory.
    pub target: String,
    /// Size in bytes, from a signed index.
    pub size: u64,
    /// Hash of the content, from a signed index.
    pub sha256: Sha256,
}

/// Files of one site, numbered from 0.
#[derive(Debug, Clone, Default)]
pub struct FileList(pub Vec<RemoteFile>);

impl Catalogue for FileList {
    fn path(&self, item: ItemId) -> String {
        self.0[item as usize].path.clone()
    }

    fn other_path(&self, item: ItemId) -> Option<String> {
        self.0[item as usize].other_path.clone()
    }

    fn sha256(&self, item: ItemId) -> Sha256 {
        self.0[item as usize].sha256
    }

    fn spec(&self, item: ItemId) -> FileSpec {
        let file = &self.0[item as usize];
        FileSpec { item, path: file.target.clone(), size: file.size, sha256: file.sha256, mtime: None }
    }
}
