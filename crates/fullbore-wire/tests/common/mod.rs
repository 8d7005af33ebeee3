//! A tree of files, servers of it on loopback, and a run that fetches it into a temporary directory.

#![allow(dead_code, missing_docs)] // each file of tests uses a part of this

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Durability;
use fullbore_engine::files::Root;
use fullbore_engine::journal::Journal;
use fullbore_engine::landing::Landing;
use fullbore_engine::stage::{Ledger, LedgerReading};
use fullbore_engine::target::LocalTarget;
use fullbore_engine::target::faults::{self, FaultyTarget};
use fullbore_engine::window::Window;
use fullbore_testkit::random::noise;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server, ServerBuilder};
use fullbore_wire::dispatcher::GivenUp;
use fullbore_wire::fetch::{FetchEvent, FetchOptions, Fetcher, HostSeen, Parts, Piece};
use fullbore_wire::queue::{Item, ItemId};
use fullbore_wire::run::{FileList, RemoteFile};
use fullbore_wire::url::Url;
use tempfile::TempDir;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// No test may hang; the longest bounded wait of a run is about 15 s.
const RUN_LIMIT: Duration = Duration::from_secs(40);

/// Files on the servers' side.
pub struct Tree {
    pub directory: TempDir,
    pub files: Vec<RemoteFile>,
}

impl Tree {
    /// Files `pool/f0`, `pool/f1` … of these sizes.
    pub fn of(sizes: &[u64]) -> Tree {
        let mut tree = Tree { directory: TempDir::new().unwrap(), files: Vec::new() };
        for (number, size) in sizes.iter().enumerate() {
            tree.add(&format!("pool/f{number}"), *size);
        }
        tree
    }

    pub fn add(&mut self, path: &str, size: u64) -> ItemId {
        let data = noise(size as usize, self.files.len() as u64 + 1);
        put(self.directory.path(), path, &data);
        let sha256 = Sha256::of(&data);
        self.files.push(RemoteFile { path: path.into(), other_path: None, target: path.into(), size, sha256 });
        self.files.len() as ItemId - 1
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    pub fn server(&self) -> ServerBuilder {
        Server::builder(self.directory.path())
    }

    /// A server that does this to every file.
    pub fn faulty(&self, fault: Fault) -> Server {
        self.server().fault(FaultRule::always(PathMatch::Any, fault)).start().unwrap()
    }

    /// A server of so many bytes per second.
    pub fn slow(&self, bytes_per_s: u64) -> Server {
        self.server().behaviour(|own| own.rate_bytes_per_s = Some(bytes_per_s)).start().unwrap()
    }

    pub fn good(&self) -> Server {
        self.server().start().unwrap()
    }
}

pub fn put(root: &Path, path: &str, data: &[u8]) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, data).unwrap();
}

/// A disk that takes nothing while it is closed.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn close(&self) {
        *self.0.0.lock().unwrap() = true;
    }

    pub fn open(&self) {
        *self.0.0.lock().unwrap() = false;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let closed = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(closed, |closed| *closed).unwrap());
    }
}

/// Waits until it is so; no test may hang.
pub fn until(what: &str, so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < RUN_LIMIT, "not within {RUN_LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One client: a landing in a directory and a fetcher over some servers.
pub struct Client {
    pub directory: TempDir,
    pub ledger: Ledger,
    pub fetcher: Fetcher,
    pub window: Window,
    pub disk: Gate,
    landing: Landing,
    pub runtime: tokio::runtime::Runtime,
}

/// What became of a run.
#[derive(Debug)]
pub struct Ran {
    pub verified: Vec<ItemId>,
    pub given_up: Vec<GivenUp>,
    pub local_failures: Vec<ItemId>,
    pub took: Duration,
    pub hosts: Vec<HostSeen>,
}

/// How a client is made.
pub struct Setup {
    pub options: FetchOptions,
    pub window_bytes: u64,
    /// Keeps a journal in the directory, so that a later client goes on.
    pub journal: bool,
    pub directory: Option<TempDir>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { options: FetchOptions::default(), window_bytes: 32 * MIB, journal: false, directory: None }
    }
}

impl Setup {
    pub fn client(self, urls: &[String]) -> Client {
        let directory = self.directory.unwrap_or_else(|| TempDir::new().unwrap());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let ledger = Ledger::new();
        let root = Arc::new(Root::open(directory.path()).unwrap());
        let journal =
            if self.journal { Journal::open(&root, ".log", &mut |_, _| {}).unwrap() } else { Journal::none() };
        let disk = Gate::default();
        let gate = disk.clone();
        let target = FaultyTarget::new(LocalTarget::new(root, Durability::None), faults::Fault::Never);
        let target = Arc::new(target.before_write(move || gate.pass()));
        let window = Window::new(self.window_bytes, 8192);
        let (sender, outcomes) = tokio::sync::mpsc::unbounded_channel();
        let landing = Landing::start(target, Arc::new(journal), 2, &ledger, sender).unwrap();
        let parts = Parts { landing: landing.clone(), outcomes, window: window.clone(), ledger: ledger.clone() };
        let urls = urls.iter().map(|url| Url::parse(url).unwrap()).collect();
        let fetcher = runtime.block_on(async { Fetcher::start(urls, self.options, parts) });
        Client { directory, ledger, fetcher, window, disk, landing, runtime }
    }
}

impl Client {
    pub fn new(servers: &[&Server]) -> Client {
        Setup::default().client(&servers.iter().map(|server| server.url()).collect::<Vec<_>>())
    }

    /// What is to be fetched of this file.
    pub fn item(&self, tree: &Tree, id: ItemId) -> Item {
        let file = &tree.files[id as usize];
        let present = self.landing.present(&file.path, file.size, file.sha256);
        Item { id, size: file.size, present, ..Item::default() }
    }

    /// Fetches these files of the tree, all that are not right yet.
    pub fn fetch_files(&mut self, tree: &Tree, wanted: &[ItemId]) -> Ran {
        let items = wanted.iter().map(|id| self.item(tree, *id)).collect();
        self.fetch_batches(tree, vec![items])
    }

    /// Fetches batches of files, each known only when the first file of the one before is here.
    pub fn fetch_batches(&mut self, tree: &Tree, batches: Vec<Vec<Item>>) -> Ran {
        let mut batches = batches.into_iter();
        let (sender, feed) = tokio::sync::mpsc::channel(batches.len().max(1));
        let mut sender = Some(sender);
        let mut feed_next = move || {
            if let (Some(batch), Some(sender)) = (batches.next(), &sender) {
                sender.try_send(batch).unwrap();
            }
            if batches.len() == 0 {
                sender = None;
            }
        };
        feed_next();
        let mut ran = Ran {
            verified: Vec::new(),
            given_up: Vec::new(),
            local_failures: Vec::new(),
            took: Duration::ZERO,
            hosts: Vec::new(),
        };
        let began = Instant::now();
        let plan = Arc::new(FileList(tree.files.clone()));
        let fetcher = &mut self.fetcher;
        let mut on_event = |event: FetchEvent| match event {
            FetchEvent::Verified(item) => {
                ran.verified.push(item);
                feed_next();
            }
            FetchEvent::GivenUp(given_up) => ran.given_up.push(given_up),
            FetchEvent::LocalFailure(item, _) => ran.local_failures.push(item),
        };
        let finished = self.runtime.block_on(async {
            tokio::time::timeout(RUN_LIMIT, fetcher.fetch_fed(plan, feed, &mut on_event)).await.is_ok()
        });
        ran.took = began.elapsed();
        ran.hosts = self.fetcher.hosts();
        assert!(finished, "no end within {RUN_LIMIT:?}: {ran:#?}");
        ran.verified.sort_unstable();
        ran
    }

    pub fn fetch(&mut self, tree: &Tree) -> Ran {
        let all: Vec<ItemId> = (0..tree.files.len() as ItemId).collect();
        self.fetch_files(tree, &all)
    }

    /// Lets the run go until so many bytes are written and cuts it short, as a kill would.
    pub fn fetch_until(mut self, tree: &Tree, written_bytes: u64) -> TempDir {
        self.fetch_while(tree, |landing| landing.counts().written_bytes < written_bytes);
        self.runtime.shutdown_timeout(Duration::from_secs(1));
        drop(self.fetcher);
        self.landing.finish().unwrap();
        self.directory
    }

    /// Lets the run go as long as it is so; its connections go on.
    pub fn fetch_while(&mut self, tree: &Tree, so: impl Fn(&Landing) -> bool) {
        let items =
            tree.files.iter().zip(0..).map(|(file, id)| Item { id, size: file.size, ..Item::default() }).collect();
        let plan = Arc::new(FileList(tree.files.clone()));
        let (fetcher, landing) = (&mut self.fetcher, &self.landing);
        let mut on_event = |_| {};
        self.runtime.block_on(async {
            let enough = async {
                while so(landing) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                () = fetcher.fetch(plan, items, &mut on_event) => {}
                () = enough => {}
                () = tokio::time::sleep(RUN_LIMIT) => panic!("no end within {RUN_LIMIT:?}"),
            }
        });
    }

    /// A file as a stream: its head, and the body or why it is not whole.
    pub fn stream(
        &self,
        host: u16,
        get: fullbore_wire::fetch::Get,
    ) -> Result<(fullbore_wire::http1::ResponseHead, Result<Vec<u8>, String>), fullbore_wire::fetch::GetError> {
        self.runtime.block_on(async {
            let mut streamed = self.fetcher.watch().stream(host, get, Duration::from_secs(5)).await?;
            let mut body = Vec::new();
            let whole = loop {
                match streamed.body.recv().await {
                    Some(Ok(Piece::Data(data))) => body.extend_from_slice(&data),
                    Some(Ok(Piece::End)) => break Ok(body),
                    Some(Err(error)) => break Err(error.to_string()),
                    None => break Err("no end".to_owned()),
                }
            };
            Ok((streamed.head, whole))
        })
    }

    pub fn get(
        &self,
        host: u16,
        get: fullbore_wire::fetch::Get,
    ) -> Result<fullbore_wire::fetch::Got, fullbore_wire::fetch::GetError> {
        self.runtime.block_on(self.fetcher.get(host, get))
    }

    /// Two at a time.
    pub fn get_two(
        &self,
        host: u16,
        one: fullbore_wire::fetch::Get,
        other: fullbore_wire::fetch::Get,
    ) -> [Result<fullbore_wire::fetch::Got, fullbore_wire::fetch::GetError>; 2] {
        self.runtime.block_on(async { tokio::join!(self.fetcher.get(host, one), self.fetcher.get(host, other)).into() })
    }

    /// What the verdict would read.
    pub fn reading(&self) -> LedgerReading {
        self.ledger.reading()
    }

    /// Every file of the tree is here, with the right bytes, and nothing unfinished lies about.
    pub fn check(&self, tree: &Tree) {
        for file in &tree.files {
            let data = std::fs::read(self.directory.path().join(&file.path))
                .unwrap_or_else(|error| panic!("{}: {error}", file.path));
            assert!(Sha256::of(&data) == file.sha256, "{} is wrong", file.path);
        }
    }

    pub fn has(&self, file: &RemoteFile) -> bool {
        self.directory.path().join(&file.path).exists()
    }
}

impl Ran {
    /// Bytes received on all hosts together.
    pub fn received(&self) -> u64 {
        self.hosts.iter().map(|host| host.totals.received_bytes).sum()
    }

    /// Received over needed.
    pub fn excess(&self, tree: &Tree) -> f64 {
        self.received() as f64 / tree.bytes() as f64
    }

    pub fn all_verified(&self, tree: &Tree) {
        assert_eq!(self.verified.len(), tree.files.len(), "{self:#?}");
        assert!(self.given_up.is_empty() && self.local_failures.is_empty(), "{self:#?}");
    }
}

/// Runs everything over these servers and expects all of it to arrive.
pub fn all_arrives(tree: &Tree, servers: &[&Server]) -> Ran {
    let mut client = Client::new(servers);
    let ran = client.fetch(tree);
    ran.all_verified(tree);
    client.check(tree);
    for (server, host) in servers.iter().zip(&ran.hosts) {
        // A server sees a closed connection a little later than we do: where connections followed
        // each other, old and new are counted together.
        let most = server.counters().max_open_connections;
        let followed = host.totals.connections > 4;
        assert!(most <= if followed { 16 } else { 4 }, "{most} connections at a time to {}: {ran:#?}", host.name);
    }
    ran
}

/// Sizes as in an archive: many small files, few large ones.
pub fn archive() -> Vec<u64> {
    let mut sizes = vec![6 * MIB, 3 * MIB, MIB, 700 * KIB];
    sizes.extend((0..60).map(|n| 1000 + n * 977));
    sizes.extend([1, 2, 3]);
    sizes
}
