//! Files into a grid: many at once, each share of each file on its way to its own server.
//!
//! [`Grid`] has the servers and their connections, [`Uploader`] what files share: threads, memory,
//! secrets. [`Uploader::put`] is one file: its key, whether an equal one is on its way (`equal`), its servers, its shares
//! (`file`), and at the end the proof that enough of them are where they should be. Only then there is a cap.

mod duplicates;
mod file;
pub mod journal;
pub mod produce;
pub mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use fullbore_engine::random::random;
use fullbore_engine::run::stopped;
use tokio::sync::watch;

use super::cap::{Cap, Key, LITERAL_BYTES_MAX, StorageIndex, storage_index};
use super::code::Code;
use super::encode::Original;
use super::gbs::flow::FlowReading;
use super::gbs::link::{Link, LinkOptions};
use super::geometry::{Encoding, Geometry, GeometryError};
use super::secrets::LeaseSecrets;
use super::servers::{Server, Servers, Unusable, permuted};
use journal::{Journal, Notes};
use produce::{ProducerContext, SourceError};
use source::Source;

/// The servers of a grid, and the way to each of them that was needed.
#[derive(Debug)]
pub struct Grid {
    servers: Vec<Server>,
    /// Announced, and of no use here.
    pub unusable: Vec<Unusable>,
    links: Vec<OnceLock<Link>>,
    /// Servers that gave no answer in time when they were last waited for.
    late: Vec<AtomicBool>,
    options: LinkOptions,
    preferred: Vec<String>,
}

impl Grid {
    /// A grid, to none of whose servers there is a connection yet.
    pub fn new(servers: Servers, preferred: Vec<String>, options: LinkOptions) -> Grid {
        let links = servers.usable.iter().map(|_| OnceLock::new()).collect();
        let late = servers.usable.iter().map(|_| AtomicBool::new(false)).collect();
        Grid { servers: servers.usable, unusable: servers.unusable, links, late, options, preferred }
    }

    /// All servers that can be spoken to.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The servers in the order of this file.
    pub fn order(&self, index: &StorageIndex) -> Vec<usize> {
        permuted(&self.servers, index, &self.preferred)
    }

    /// The connection to a server, opened now if there is none. Within a runtime.
    pub fn link(&self, server: usize) -> &Link {
        self.links[server].get_or_init(|| Link::open(&self.servers[server], &self.options))
    }

    /// A server is given up after this time in which nothing moves.
    pub(crate) fn patience(&self) -> Duration {
        self.options.patience
    }

    /// Notes whether a server answered in time.
    pub(crate) fn note_late(&self, server: usize, is_late: bool) {
        self.late[server].store(is_late, Ordering::Relaxed);
    }

    /// Whether a server gave no answer in time when it was last waited for.
    pub(crate) fn is_late(&self, server: usize) -> bool {
        self.late[server].load(Ordering::Relaxed)
    }

    /// A server is near below this round trip.
    pub fn near(&self) -> Duration {
        self.options.near
    }

    /// Opens the connections to so many servers, before it is known which ones a file needs: with few
    /// servers it needs them all, and the handshakes pass while the file is read.
    pub fn warm(&self, most: usize) {
        if self.servers.len() <= most {
            (0..self.servers.len()).for_each(|server| {
                self.link(server);
            });
        }
    }

    /// What was measured of each server that was spoken to.
    pub fn readings(&self) -> Vec<(String, FlowReading)> {
        self.links.iter().filter_map(OnceLock::get).map(|link| (link.name().to_owned(), link.reading())).collect()
    }

    /// Servers that were given up, and why.
    pub fn given_up(&self) -> Vec<(String, String)> {
        let links = self.links.iter().filter_map(OnceLock::get);
        links.filter_map(Link::given_up).map(|error| (error.server, error.reason)).collect()
    }
}

/// Where a file's key comes from.
#[derive(Clone)]
pub enum KeyChoice {
    /// From the content and this secret: equal files are stored once.
    Convergent(Vec<u8>),
    /// From chance.
    Random,
}

impl fmt::Debug for KeyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyChoice::Convergent(_) => "Convergent(…)",
            KeyChoice::Random => "Random",
        })
    }
}

/// How files are encoded and encrypted.
#[derive(Debug, Clone)]
pub struct PutOptions {
    /// The numbers k, happy and n of the encoding.
    pub encoding: Encoding,
    /// Bytes of a segment at most.
    pub segment_max: u64,
    /// How the key of each file is made.
    pub key: KeyChoice,
}

/// What all files of a run share.
#[derive(Debug)]
pub struct Uploader {
    grid: Arc<Grid>,
    context: ProducerContext,
    lease: LeaseSecrets,
    /// Becomes true when the run is to end.
    stop: watch::Receiver<bool>,
    journal: Option<Arc<Journal>>,
    codes: Mutex<BTreeMap<(u16, u16), Arc<Code>>>,
    equals: duplicates::Duplicates,
}

/// What is known of the shares of a file that is in the grid.
#[derive(Debug, Default)]
pub struct KnownShares {
    /// What servers know the file by.
    pub index: StorageIndex,
    /// Good shares, by the server's position in the grid.
    pub holds: BTreeMap<usize, BTreeSet<u16>>,
    /// Servers that get no share: they have damaged ones, which they would not replace, or do not answer.
    pub unfit: BTreeSet<usize>,
}

/// A file that is in the grid.
#[derive(Debug)]
pub struct Stored {
    /// The right to read it: a secret.
    pub cap: Cap,
    /// Number of servers that hold different shares, as Tahoe-LAFS counts it.
    pub happiness: usize,
    /// Shares that were sent, and shares that were there.
    pub shares: (usize, usize),
    /// Bytes of shares that servers acknowledged.
    pub sent_bytes: u64,
    /// What went wrong and was got over, one line each.
    pub troubles: Vec<String>,
}

/// A file that is not in the grid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// It cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// It cannot be cut so.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Too few servers took shares.
    #[error(
        "shares are on {reached} servers, but {happy} are needed (happy); {failed} of {asked} servers failed or refused"
    )]
    Unhappy {
        /// Different servers with different shares.
        reached: usize,
        /// As configured.
        happy: u16,
        /// Servers asked.
        asked: usize,
        /// Those that failed or refused.
        failed: usize,
        /// Each server's failure, one line each.
        troubles: Vec<String>,
    },
    /// Servers have fewer different shares than it takes to read the file, which happiness below k does not show.
    #[error(
        "servers have {found} different shares, but reading the file takes {needed}; \
         {failed} of {asked} servers failed or refused"
    )]
    Unreadable {
        /// Different shares.
        found: usize,
        /// k.
        needed: u16,
        /// Servers asked.
        asked: usize,
        /// Those that failed or refused.
        failed: usize,
        /// Each server's failure, one line each.
        troubles: Vec<String>,
    },
    /// The grid has fewer servers than happiness needs.
    #[error("{usable} servers can be used, {happy} are needed (happy)")]
    TooFewServers {
        /// Servers that can be spoken to.
        usable: usize,
        /// As configured.
        happy: u16,
    },
    /// The run is to end; what was begun is given up on the servers.
    #[error("interrupted")]
    Interrupted,
}

impl Uploader {
    /// Joins what is needed. `stop` becomes true when the run is to end; with a journal an interrupted run can be
    /// taken up.
    pub fn new(
        grid: Arc<Grid>,
        context: ProducerContext,
        lease: LeaseSecrets,
        stop: watch::Receiver<bool>,
        journal: Option<Arc<Journal>>,
    ) -> Uploader {
        let (codes, equals) = (Mutex::default(), duplicates::Duplicates::default());
        Uploader { grid, context, lease, stop, journal, codes, equals }
    }

    /// The grid.
    pub fn grid(&self) -> &Arc<Grid> {
        &self.grid
    }

    /// The code of an encoding; made once.
    fn code(&self, encoding: Encoding) -> Arc<Code> {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let Encoding { needed, total, .. } = encoding;
        Arc::clone(codes.entry((needed, total)).or_insert_with(|| Arc::new(Code::new(needed, total))))
    }

    /// Puts one file of `size` bytes. By `name`, which another run would give to the same content and to no other, a
    /// file with a random key is known to the journal; one whose key comes from the content needs none.
    ///
    /// # Errors
    /// [`PutError`]; what was begun on servers is given up.
    pub async fn put(
        &self,
        source: Source,
        size: u64,
        options: &PutOptions,
        name: Option<&str>,
    ) -> Result<Stored, PutError> {
        if *self.stop.borrow() {
            return Err(PutError::Interrupted);
        }
        if size <= LITERAL_BYTES_MAX {
            let mut stop = self.stop.clone();
            return tokio::select! {
                stored = self.literal(&source, size) => stored,
                // A pipe may give nothing for ever.
                () = stopped(&mut stop) => Err(PutError::Interrupted),
            };
        }
        let encoding = options.encoding;
        let usable = self.grid.servers().len();
        if usable < usize::from(encoding.happy) {
            return Err(PutError::TooFewServers { usable, happy: encoding.happy });
        }
        let geometry = Geometry::new(encoding, size, options.segment_max)?;
        match &options.key {
            KeyChoice::Random => {
                // Without a name nobody could find what would be noted.
                let Some((journal, name)) = self.journal.as_ref().zip(name) else {
                    return self.send(source, geometry, random(), None).await;
                };
                if let Some(stored) = journal.untold(name) {
                    return Ok(stored);
                }
                let key = journal.random_key(name).unwrap_or_else(random);
                let notes = journal.begin(&storage_index(&key), Some((name, &key)));
                let stored = self.send(source, geometry, key, Some(notes)).await?;
                journal.stored(name, &stored);
                Ok(stored)
            }
            KeyChoice::Convergent(secret) => {
                let (context, read, secret) = (self.context.clone(), source.clone(), secret.clone());
                let stop = self.stop.clone();
                let key = blocking(move || context.key(&read, &geometry, &secret, &stop)).await?;
                let key = key.ok_or(PutError::Interrupted)?;
                let index = storage_index(&key);
                let put = || {
                    let notes = self.journal.as_ref().map(|journal| journal.begin(&index, None));
                    self.send(source, geometry, key, notes)
                };
                self.equals.once((index, encoding.happy), put).await
            }
        }
    }

    async fn send(
        &self,
        source: Source,
        geometry: Geometry,
        key: Key,
        notes: Option<Notes>,
    ) -> Result<Stored, PutError> {
        // Others may have been waited for.
        if *self.stop.borrow() {
            return Err(PutError::Interrupted);
        }
        let code = self.code(geometry.encoding);
        file::Upload::new(self, source, geometry, key, code, notes).run().await
    }

    /// Makes the shares of a file again that nobody has, or too few: `source` is its ciphertext.
    ///
    /// # Errors
    /// [`PutError`] if the source cannot be read, or is not what the cap vouches for.
    pub async fn repair(
        &self,
        source: Source,
        original: Arc<Original>,
        known: &KnownShares,
    ) -> Result<Stored, PutError> {
        let code = self.code(original.extension.geometry.encoding);
        file::Upload::again(self, source, original, code, known).run().await
    }

    async fn literal(&self, source: &Source, size: u64) -> Result<Stored, PutError> {
        let source = source.clone();
        let content = blocking(move || {
            let mut content = vec![0; size as usize];
            let complete = source.read(0, &mut content)? == content.len() && source.ends_at(size)?;
            if complete { Ok(content) } else { Err(SourceError::Size { size }) }
        })
        .await?;
        Ok(Stored { cap: Cap::Literal(content), happiness: 0, shares: (0, 0), sent_bytes: 0, troubles: Vec::new() })
    }
}

/// Runs blocking work on a thread of its own.
async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    tokio::task::spawn_blocking(work).await.expect("work does not panic, and the runtime outlives it")
}
