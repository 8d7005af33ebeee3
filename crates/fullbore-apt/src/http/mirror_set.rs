//! A set of mirrors: its fetcher, and what is known of its members in this run.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use fullbore_engine::digest::Sha256;
use fullbore_engine::landing::{FileSpec, Landing, Outcome};
use fullbore_engine::stage::Ledger;
use fullbore_engine::window::Window;
use fullbore_wire::dispatcher::GivenUp;
use fullbore_wire::fetch::{Catalogue, FetchEvent, FetchOptions, Fetcher, Parts, Watch};
use fullbore_wire::hosts::{HostId, HostSet};
use fullbore_wire::queue::{Item, ItemId};
use fullbore_wire::url::Url;
use tokio::sync::mpsc;

use super::answers::HostError;
use super::releases::Freshness;
use super::wanted::WantedFile;

/// Most batches of requests that wait for a fetcher. APT sends `Acquire::Max-Pipeline-Depth` requests at most, and a
/// batch waits for microseconds.
const BATCHES: usize = 64;

/// Most bytes read and not yet written, for all fetchers together.
const WINDOW_BYTES: u64 = 16 << 20;
const WINDOW_ITEMS: u32 = 8192;

/// A file in flight with known size and hash.
#[derive(Debug)]
pub(super) struct File {
    /// The request of APT for this file.
    pub wanted: WantedFile,
    /// Its path below each mirror's address.
    pub path: String,
    /// The absolute path to write to.
    pub target: String,
    /// The SHA-256 that the file must have.
    pub sha256: Sha256,
    /// The size that the file must have, in bytes.
    pub size: u64,
    /// Further fields of requests for it.
    pub fields: Vec<(String, String)>,
}

/// All files in flight, for the fetchers.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(Mutex<HashMap<ItemId, Arc<File>>>);

impl OpenFiles {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ItemId, Arc<File>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, item: ItemId, file: Arc<File>) {
        self.lock().insert(item, file);
    }

    pub(super) fn remove(&self, item: ItemId) {
        self.lock().remove(&item);
    }

    fn get(&self, item: ItemId) -> Option<Arc<File>> {
        self.lock().get(&item).cloned()
    }
}

impl Catalogue for OpenFiles {
    fn path(&self, item: ItemId) -> String {
        self.get(item).map(|file| file.path.clone()).unwrap_or_default()
    }

    fn fields(&self, item: ItemId) -> Vec<(String, String)> {
        self.get(item).map(|file| file.fields.clone()).unwrap_or_default()
    }

    fn sha256(&self, item: ItemId) -> Sha256 {
        self.get(item).map_or(Sha256::EMPTY, |file| file.sha256)
    }

    fn spec(&self, item: ItemId) -> FileSpec {
        let file = self.get(item);
        FileSpec {
            item,
            path: file.as_ref().map(|file| file.target.clone()).unwrap_or_default(),
            size: file.as_ref().map_or(0, |file| file.size),
            sha256: file.as_ref().map_or(Sha256::EMPTY, |file| file.sha256),
            mtime: None,
        }
    }
}

/// What all mirror sets share.
pub(super) struct Shared {
    pub landing: Landing,
    pub window: Window,
    pub ledger: Ledger,
    pub files: Arc<OpenFiles>,
}

impl Shared {
    pub(super) fn new(landing: Landing, ledger: Ledger) -> Shared {
        Shared { landing, window: Window::new(WINDOW_BYTES, WINDOW_ITEMS), ledger, files: Arc::default() }
    }
}

/// A set of mirrors. The first is the one that APT named.
pub(super) struct MirrorSet {
    /// Names of the hosts, for messages.
    pub names: Vec<String>,
    /// Sends requests for whole files.
    pub watch: Watch,
    /// Whether its host is believed to support ranges, as far as is known.
    pub ranges: Arc<AtomicBool>,
    feed: mpsc::Sender<Vec<Item>>,
    outcomes: mpsc::UnboundedSender<Outcome>,
    /// Freshness of the mirrors for each suite.
    suites: HashMap<String, Freshness>,
    /// Hosts that were slow to answer.
    slow: HostSet,
}

impl MirrorSet {
    /// Starts a fetcher, which connects at the first request. `on_lost` is called if it panics.
    pub(super) fn start(
        mirrors: Vec<Url>,
        options: FetchOptions,
        shared: &Shared,
        mut on_event: impl FnMut(FetchEvent) + Send + 'static,
        on_lost: impl FnOnce() + Send + 'static,
    ) -> MirrorSet {
        let (outcomes, landed) = mpsc::unbounded_channel();
        let parts = Parts {
            landing: shared.landing.clone(),
            outcomes: landed,
            window: shared.window.clone(),
            ledger: shared.ledger.clone(),
        };
        let mut fetcher = Fetcher::start(mirrors, options, parts);
        let watch = fetcher.watch();
        let (feed, fed) = mpsc::channel(BATCHES);
        let files: Arc<OpenFiles> = shared.files.clone();
        let fetching = tokio::spawn(async move { fetcher.fetch_fed(files, fed, &mut on_event).await });
        tokio::spawn(async move {
            if fetching.await.is_err() {
                on_lost();
            }
        });
        MirrorSet {
            names: watch.names(),
            watch,
            ranges: Arc::new(AtomicBool::new(true)),
            feed,
            outcomes,
            suites: HashMap::new(),
            slow: HostSet::default(),
        }
    }

    /// Whether it has only the host that APT named.
    pub(super) fn is_alone(&self) -> bool {
        self.names.len() == 1
    }

    /// Whether all its hosts are dropped. A later request of APT then starts anew.
    pub(super) fn is_lost(&self) -> bool {
        self.watch.hosts().iter().all(|host| host.out.is_some())
    }

    /// Sends files to the fetcher; `false` if it has ended.
    pub(super) async fn feed(&self, items: Vec<Item>) -> bool {
        // The fetcher ends when this feed is closed, or by a panic.
        self.feed.send(items).await.is_ok()
    }

    /// Passes on the landing's outcome of a file.
    pub(super) fn landed(&self, outcome: Outcome) {
        let _ = self.outcomes.send(outcome);
    }

    /// The hosts in the order of requests for a whole file: those with the suite's newest Release, the others as listed,
    /// slow ones last.
    pub(super) fn order(&self, suite: Option<&str>) -> Vec<HostId> {
        let known = self.suite(suite).unwrap_or_default();
        let seen = self.watch.hosts();
        let up = (0..self.names.len()).filter(|host| seen.get(*host).is_none_or(|seen| seen.out.is_none()));
        let mut hosts: Vec<HostId> = up.map(|host| host as HostId).collect();
        hosts.sort_by_key(|host| (self.slow.contains(*host), !known.fresh.contains(*host), *host));
        if hosts.is_empty() { (0..self.names.len() as HostId).collect() } else { hosts }
    }

    /// The host from which the Release of a suite was taken: a detached signature must come from there.
    pub(super) fn signer_of(&self, suite: Option<&str>) -> Option<HostId> {
        self.suite(suite)?.chosen
    }

    /// Hosts that may have another file of this name.
    pub(super) fn excluded(&self, wanted: &WantedFile) -> HostSet {
        let known = self.suite(wanted.suite.as_deref());
        match known {
            Some(known) if wanted.is_index && !wanted.is_by_hash() => known.excluded(self.names.len()),
            _ => HostSet::default(),
        }
    }

    fn suite(&self, suite: Option<&str>) -> Option<Freshness> {
        self.suites.get(suite?).copied()
    }

    /// Records the freshness of a suite.
    pub(super) fn learn(&mut self, suite: String, freshness: Freshness) {
        self.slow = self.slow.union(freshness.slow);
        self.suites.insert(suite, freshness);
    }

    /// Why no mirror sent a file of this size: the error of each host.
    pub(super) fn host_errors(&self, given_up: &GivenUp, size: u64) -> Vec<(HostId, HostError)> {
        let mut host_errors = Vec::new();
        for (number, seen) in self.watch.hosts().into_iter().enumerate() {
            let host = number as HostId;
            let own = given_up
                .faults
                .iter()
                .find(|(faulty, _)| *faulty == host)
                .map(|(_, fault)| HostError::of_fault(fault, size));
            let host_error = match (own, seen.out, seen.totals.seen_faults.last()) {
                (Some(own), ..) => own,
                (None, Some(out), _) => HostError::Network(out),
                (None, None, _) if given_up.tried.contains(host) => HostError::Other("has an older archive".into()),
                (None, None, Some(last)) => HostError::Network(last.fault.clone()),
                (None, None, None) => continue,
            };
            host_errors.push((host, host_error));
        }
        host_errors
    }
}

#[cfg(test)]
mod tests {
    use fullbore_engine::journal::Journal;
    use fullbore_engine::target::in_place::InPlaceTarget;

    use super::*;

    #[test]
    fn a_fetcher_that_panics_is_told_of() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let (outcomes, _landed) = mpsc::unbounded_channel();
        let target = Arc::new(InPlaceTarget::new(Box::new(|_| ())));
        let landing = Landing::start(target, Arc::new(Journal::none()), 1, &Ledger::off(), outcomes).unwrap();
        let shared = Shared::new(landing, Ledger::off());
        let (sender, lost) = std::sync::mpsc::channel();
        // Nobody is at port 9 of this machine: the file is given up, and whoever hears of it panics.
        let nobody = vec![Url::parse("http://127.0.0.1:9/").unwrap()];
        let options = FetchOptions::default();
        let mirror_set =
            MirrorSet::start(nobody, options, &shared, |_| panic!("on purpose"), move || sender.send(()).unwrap());
        let items = || vec![Item { id: 0, size: 1, present: Vec::new(), excluded: HostSet::default() }];
        assert!(runtime.block_on(mirror_set.feed(items())));
        lost.recv().expect("word of it");
        assert!(!runtime.block_on(mirror_set.feed(items())), "there is nobody to take them");
    }
}
