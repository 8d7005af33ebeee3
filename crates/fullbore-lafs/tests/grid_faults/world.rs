//! A grid of servers in this process, and both ways to it.

use fullbore_lafs::{
    Cap, Chk, Downloaded, Downloader, Encoding, Geometry, GetError, LeaseSecrets, convergent_key, storage_index,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fullbore_engine::memory_pool::MemoryPool;
use fullbore_engine::window::Window;
use fullbore_lafs::gbs::link::LinkOptions;
use fullbore_lafs::servers::Announcements;
use fullbore_lafs::upload::journal::{Journal, KnownShare};
use fullbore_lafs::upload::produce::{Meter, Pool, ProducerContext};
use fullbore_lafs::upload::source::Source;
use fullbore_lafs::upload::{Grid, KeyChoice, PutError, PutOptions, Stored, Uploader};
use fullbore_wire::rate_limit::RateLimits;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use crate::server::{Fault, GbsServer};

/// Time without progress until a server is given up, where a test waits for that.
pub const SHORT: Duration = Duration::from_secs(10);
/// Where it must not come to that.
pub const LONG: Duration = Duration::from_secs(60);
/// Whatever takes longer does not end.
pub const LIMIT: Duration = Duration::from_secs(240);

/// From which keys are made, unless a test says otherwise.
pub const SECRET: &[u8] = b"secret";
pub const SEGMENT_BYTES: u64 = 128 << 10;

/// Servers, and the way to them.
pub struct World {
    pub servers: Vec<GbsServer>,
    /// Bytes of a segment of what is put. Readers expect 1 MiB.
    pub segment_max: u64,
    pub key: KeyChoice,
    pub grid: Arc<Grid>,
    /// Becomes true when a run is to end.
    pub stop: watch::Sender<bool>,
}

impl World {
    pub async fn new(faults: &[Fault], patience: Duration) -> World {
        let mut servers = Vec::new();
        for fault in faults {
            servers.push(GbsServer::start(*fault).await);
        }
        World::of(servers, patience)
    }

    /// The same servers, and no connection to them yet.
    pub fn of(servers: Vec<GbsServer>, patience: Duration) -> World {
        World::limited(servers, patience, None)
    }

    /// As `of`, with so many bytes per second to all of them.
    pub fn limited(servers: Vec<GbsServer>, patience: Duration, bytes_per_s: Option<u64>) -> World {
        World::named(servers.into_iter().enumerate(), patience, bytes_per_s)
    }

    /// As `limited`, with numbers that stand for names.
    pub fn named(
        servers: impl Iterator<Item = (usize, GbsServer)>,
        patience: Duration,
        bytes_per_s: Option<u64>,
    ) -> World {
        let limits = RateLimits::sending(bytes_per_s);
        World::with(servers, LinkOptions { limits, near: Duration::ZERO, ..LinkOptions::new(patience) })
    }

    /// As `of`, and the servers are near.
    pub fn near(servers: Vec<GbsServer>, patience: Duration) -> World {
        let options = LinkOptions { near: Duration::MAX, ..LinkOptions::new(patience) };
        World::with(servers.into_iter().enumerate(), options)
    }

    fn with(servers: impl Iterator<Item = (usize, GbsServer)>, options: LinkOptions) -> World {
        let (mut yaml, mut all) = ("storage:\n".to_owned(), Vec::new());
        for (number, server) in servers {
            let tub = "abcdefghijklmnopqrstuvwxyz234567".chars().nth(number).unwrap().to_string().repeat(32);
            yaml += &format!(
                "  server-{number}:\n    ann:\n      nickname: s{number}\n      \
                 anonymous-storage-FURL: pb://{tub}@tcp:127.0.0.1:1/x\n      \
                 permutation-seed-base32: {tub}\n      anonymous-storage-NURLs:\n      - {}\n",
                server.nurl
            );
            all.push(server);
        }
        let mut announcements = Announcements::default();
        announcements.add_servers_yaml(&yaml).unwrap();
        // On a busy machine a handshake may take as long as to a server that is far.
        let options = LinkOptions { far: Duration::MAX, ..options };
        let grid = Arc::new(Grid::new(announcements.servers(), Vec::new(), options));
        assert_eq!(grid.servers().len(), all.len(), "{:?}", grid.not_used().collect::<Vec<_>>());
        let key = KeyChoice::Convergent(SECRET.to_vec());
        World { servers: all, segment_max: SEGMENT_BYTES, key, grid, stop: watch::Sender::new(false) }
    }

    /// What files of one run share.
    pub fn uploader(&self, journal: Option<Arc<Journal>>) -> Uploader {
        let context = ProducerContext {
            pool: Pool::new(2),
            memory: Window::new(16 << 20, u32::MAX),
            spare: MemoryPool::default(),
            meter: Arc::new(Meter::default()),
        };
        Uploader::new(Arc::clone(&self.grid), context, LeaseSecrets::new(b"lease"), self.stop.subscribe(), journal)
    }

    pub async fn put(
        &self,
        data: &[u8],
        encoding: [u16; 3],
        journal: Option<Arc<Journal>>,
    ) -> Result<Stored, PutError> {
        self.put_by(&self.uploader(journal), data, encoding).await
    }

    pub async fn put_by(&self, uploader: &Uploader, data: &[u8], encoding: [u16; 3]) -> Result<Stored, PutError> {
        let options = PutOptions {
            encoding: Encoding::new(encoding[0], encoding[1], encoding[2]).unwrap(),
            segment_max: self.segment_max,
            key: self.key.clone(),
        };
        let source = Source::Memory(data.to_vec().into());
        let put = uploader.put(source, data.len() as u64, &options, Some("one"));
        tokio::time::timeout(LIMIT, put).await.expect("the upload ends")
    }

    /// What downloads of one run share.
    pub fn downloader(&self) -> Downloader {
        Downloader::new(Arc::clone(&self.grid), Pool::new(2), self.stop.subscribe())
    }

    pub async fn get(&self, cap: &Chk) -> (Vec<u8>, Result<Downloaded, GetError>) {
        self.get_by(&self.downloader(), cap).await
    }

    pub async fn get_by(&self, downloader: &Downloader, cap: &Chk) -> (Vec<u8>, Result<Downloaded, GetError>) {
        let (out, mut pieces) = mpsc::channel::<Bytes>(2);
        let collect = async {
            let mut data = Vec::new();
            while let Some(piece) = pieces.recv().await {
                data.extend_from_slice(&piece);
            }
            data
        };
        let get = async move { downloader.get(cap, &out).await };
        tokio::time::timeout(LIMIT, async { tokio::join!(collect, get) }).await.expect("the download ends")
    }

    /// Shares that were begun and are not complete, on all servers.
    pub fn incomplete(&self) -> usize {
        self.servers.iter().map(|server| server.state().incomplete()).sum()
    }

    pub fn complete(&self) -> usize {
        self.servers.iter().map(|server| server.state().shares.len()).sum::<usize>() - self.incomplete()
    }
}

/// A runtime for a run of its own: what is left of it ends with it, as with a process.
pub fn process() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub fn content(size: usize) -> Vec<u8> {
    (0..size as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub fn chk(stored: &Stored) -> Chk {
    match &stored.cap {
        Cap::Chk(chk) => chk.clone(),
        other => panic!("{other:?}"),
    }
}

/// Shares of a file that an interrupted run put 3-of-5.
pub fn known_shares(journals: &Path, data: &[u8]) -> Vec<KnownShare> {
    let geometry = Geometry::new(Encoding::new(3, 5, 5).unwrap(), data.len() as u64, SEGMENT_BYTES).unwrap();
    let index = storage_index(&convergent_key(&geometry, SECRET, data));
    Journal::open(journals).unwrap().begin(&index, None).shares()
}
