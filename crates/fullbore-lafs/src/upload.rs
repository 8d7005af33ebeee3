//! Uploads files to a grid: many at once, each share of each file to its own server.
//!
//! [`Grid`] has the servers and their connections; [`Uploader`] has what files share: threads, memory, secrets.
//! [`Uploader::put`] uploads one file: its key, whether an equal file is in progress (`duplicates`), its servers and
//! shares (`file`). At the end it checks that enough shares are where they should be. Only then the file gets a cap.

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

/// The servers of a grid, with the connections opened so far.
#[derive(Debug)]
pub struct Grid {
    servers: Vec<Server>,
    unusable: Vec<Unusable>,
    links: Vec<OnceLock<Link>>,
    /// Per server: whether its last answer was late.
    late: Vec<AtomicBool>,
    options: LinkOptions,
    preferred: Vec<String>,
}

impl Grid {
    /// A grid without connections.
    pub fn new(servers: Servers, preferred: Vec<String>, options: LinkOptions) -> Grid {
        let links = servers.usable.iter().map(|_| OnceLock::new()).collect();
        let late = servers.usable.iter().map(|_| AtomicBool::new(false)).collect();
        Grid { servers: servers.usable, unusable: servers.unusable, links, late, options, preferred }
    }

    /// Announced servers that cannot be used, with the reason; one line each.
    pub fn not_used(&self) -> impl Iterator<Item = String> {
        self.unusable.iter().map(|server| format!("server {} is not used: {}", server.name, server.reason))
    }

    /// All usable servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Positions of the servers in the order of this file.
    pub fn order(&self, index: &StorageIndex) -> Vec<usize> {
        permuted(&self.servers, index, &self.preferred)
    }

    /// The link to a server, opened if there is none. Needs a runtime.
    pub fn link(&self, server: usize) -> &Link {
        self.links[server].get_or_init(|| Link::open(&self.servers[server], &self.options))
    }

    /// A server is given up after this time without progress.
    pub(crate) fn patience(&self) -> Duration {
        self.options.patience
    }

    /// Records whether a server answered in time.
    pub(crate) fn note_late(&self, server: usize, is_late: bool) {
        self.late[server].store(is_late, Ordering::Relaxed);
    }

    /// Whether a server's last answer was late.
    pub(crate) fn is_late(&self, server: usize) -> bool {
        self.late[server].load(Ordering::Relaxed)
    }

    /// Round trip below which a server is near.
    pub fn near(&self) -> Duration {
        self.options.near
    }

    /// Connects to all servers if there are at most `most`. A file needs all of a few servers, and the handshakes pass
    /// while it is read.
    pub fn warm(&self, most: usize) {
        if self.servers.len() <= most {
            (0..self.servers.len()).for_each(|server| {
                self.link(server);
            });
        }
    }

    /// Name and measurements of each server that was connected to.
    pub fn readings(&self) -> Vec<(String, FlowReading)> {
        self.links.iter().filter_map(OnceLock::get).map(|link| (link.name().to_owned(), link.reading())).collect()
    }

    /// Names of servers that were given up, and why.
    pub fn given_up(&self) -> Vec<(String, String)> {
        let links = self.links.iter().filter_map(OnceLock::get);
        links.filter_map(Link::given_up).map(|error| (error.server, error.reason)).collect()
    }
}

/// How a file's key is made.
#[derive(Clone)]
pub enum KeyChoice {
    /// From the content and this secret: equal files are stored once.
    Convergent(Vec<u8>),
    /// At random.
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
    /// Largest segment in bytes.
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

/// The known shares of a stored file.
#[derive(Debug, Default)]
pub struct KnownShares {
    /// The storage index of the file.
    pub index: StorageIndex,
    /// Good shares, by the server's position in the grid.
    pub holds: BTreeMap<usize, BTreeSet<u16>>,
    /// Servers that get no share: they do not answer, or have damaged shares, which they would not replace.
    pub unfit: BTreeSet<usize>,
}

/// A file that is in the grid.
#[derive(Debug)]
pub struct Stored {
    /// The right to read it: a secret.
    pub cap: Cap,
    /// Number of servers that hold different shares, as Tahoe-LAFS counts it.
    pub happiness: usize,
    /// Number of shares sent, and number of shares that were there already.
    pub shares: (usize, usize),
    /// Bytes of shares that servers acknowledged.
    pub sent_bytes: u64,
    /// Faults that were overcome, one line each.
    pub troubles: Vec<String>,
}

/// Why a file is not in the grid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The file cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The file cannot be divided as asked.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Too few servers accepted shares.
    #[error(
        "shares are on {reached} servers, but {happy} are needed (happy); {failed} of {asked} servers failed or refused"
    )]
    Unhappy {
        /// Servers that hold different shares.
        reached: usize,
        /// Servers required, as configured.
        happy: u16,
        /// Number of servers asked.
        asked: usize,
        /// Number of servers that failed or refused.
        failed: usize,
        /// Faults of servers, one line each.
        troubles: Vec<String>,
    },
    /// Servers have fewer different shares than a reader needs. Happiness alone does not show that if `happy` is below
    /// k.
    #[error(
        "servers have {found} different shares, but reading the file takes {needed}; \
         {failed} of {asked} servers failed or refused"
    )]
    Unreadable {
        /// Number of different shares.
        found: usize,
        /// Shares that a reader needs, k.
        needed: u16,
        /// Number of servers asked.
        asked: usize,
        /// Number of servers that failed or refused.
        failed: usize,
        /// Faults of servers, one line each.
        troubles: Vec<String>,
    },
    /// The grid has fewer usable servers than `happy`.
    #[error("{usable} servers can be used, {happy} are needed (happy)")]
    TooFewServers {
        /// Number of usable servers.
        usable: usize,
        /// Servers required, as configured.
        happy: u16,
    },
    /// The run was stopped; the servers were told to give up its shares.
    #[error("interrupted")]
    Interrupted,
}

impl Uploader {
    /// An uploader for this grid. `stop` becomes true when the run is to end. With a journal a later run can resume an
    /// interrupted one.
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

    /// The grid uploaded to.
    pub fn grid(&self) -> &Arc<Grid> {
        &self.grid
    }

    /// The code of an encoding, made once.
    fn code(&self, encoding: Encoding) -> Arc<Code> {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let Encoding { needed, total, .. } = encoding;
        Arc::clone(codes.entry((needed, total)).or_insert_with(|| Arc::new(Code::new(needed, total))))
    }

    /// Puts one file of `size` bytes. `name` identifies the content of a file with a random key in the journal: a later
    /// run gives the same name to the same content only. A file with a convergent key needs none.
    ///
    /// # Errors
    /// [`PutError::Source`] if the file cannot be read, has another size or changes; [`PutError::Geometry`] for an
    /// impossible encoding or segment size; [`PutError::TooFewServers`], [`PutError::Unhappy`] or
    /// [`PutError::Unreadable`] if too few servers hold shares; [`PutError::Interrupted`] if the run was stopped. The
    /// servers are told to give up incomplete shares.
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
                // A pipe may block for ever.
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
                // Without a name no later run could find the notes.
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
        // The run may have been stopped while this file waited for others.
        if *self.stop.borrow() {
            return Err(PutError::Interrupted);
        }
        let code = self.code(geometry.encoding);
        file::Upload::new(self, source, geometry, key, code, notes).run().await
    }

    /// Makes the missing shares of a stored file again. `source` is its ciphertext.
    ///
    /// # Errors
    /// [`PutError::Source`] if the source cannot be read, or does not have the hashes that the cap vouches for;
    /// [`PutError::Unhappy`] or [`PutError::Unreadable`] if too few servers hold shares afterwards;
    /// [`PutError::Interrupted`] if the run was stopped.
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
