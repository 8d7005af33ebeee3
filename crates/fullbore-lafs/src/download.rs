//! Reads an immutable file from a grid: any k good shares, requested from many servers at once, with every hash
//! checked.
//!
//! The first requests ask every server which shares it has. Servers that should have a share are asked at once for its
//! hashes and for their part of its blocks (`requests`, `ranges`). Small files, and larger ones on near servers, are
//! read from k servers only, a whole share from each, unless shares are missing or servers are far. What a server does
//! not send in time is requested from another. Missing or damaged shares are replaced, and reported at the end.
//!
//! A segment is right if it has its hash, for which the cap vouches. If it has not, the hashes of its blocks show which
//! server is at fault. A block that came in parts has no hash: if such a segment is wrong, everything from there on is
//! read again, block by block.

mod ranges;
mod reader;
mod requests;
mod segment;
pub(crate) mod share;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_engine::run::stopped;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::cap::{Chk, Key, StorageIndex, Verifier};
use super::code::Code;
use super::extension::Extension;
use super::fault::TooFewShares;
use super::gbs::link::extra::{Distance, worthwhile_to_read};
use super::gbs::link::{Link, LinkError, Reply};
use super::gbs::{held_shares, range_bytes};
use super::geometry::{DEFAULT_SEGMENT_BYTES, Encoding, Geometry, GeometryError};
use super::layout::Layout;
use super::upload::Grid;
use super::upload::produce::Pool;
use ranges::{Cut, Patience};
use reader::{Reader, ShareSection};
use requests::{READERS, ShareLists};
use segment::{Block, Segment, SegmentError, Strip};

/// A file with shares up to this size is read from k servers: a whole share comes with the first answer.
const SMALL_SHARE_BYTES: u64 = 12 << 10;

/// The limit if the servers are near: a server sends this much in the time of a handshake.
const NEAR_SHARE_BYTES: u64 = 512 << 10;

/// Servers asked per file, in the file's order. The stock client asks all servers. This many hold all shares of any
/// file placed by the rules, even if half of the grid came later.
const SERVERS_ASKED_MAX: usize = 1000;

/// How often a full window, and late servers, are checked.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const LATE_EVERY: Duration = Duration::from_millis(100);

/// The result of a completed download.
#[derive(Debug, Default)]
pub struct Downloaded {
    /// Shares that the file was made of, with the names of their servers.
    pub used: Vec<(u16, String)>,
    /// Faults of other shares, one line each.
    pub troubles: Vec<String>,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// Too few good shares were found.
    #[error(transparent)]
    TooFewShares(#[from] TooFewShares),
    /// The numbers in the cap do not describe a possible file.
    #[error("invalid numbers in the cap: {0}")]
    Geometry(#[from] GeometryError),
    /// All blocks have their hashes, but the segment has not: whoever made the shares erred.
    #[error("segment {segment} does not have its hash, though all its blocks do")]
    Segment {
        /// Number of the segment.
        segment: u64,
    },
    /// The receiver of the content is gone.
    #[error("the receiver of the content has stopped")]
    Unwanted,
    /// The run was stopped.
    #[error("interrupted")]
    Interrupted,
}

enum DownloadEvent {
    /// The first TCP handshake is done: `far` tells whether its server is far.
    Reached {
        far: bool,
    },
    Listed {
        server: usize,
        result: Result<Reply, LinkError>,
    },
    /// `turn`: the value of [`Download::turn`] when the request was sent.
    Read {
        reader: usize,
        what: ShareSection,
        asked: Instant,
        turn: u32,
        result: Result<Reply, LinkError>,
    },
}

type Decoded = Result<Vec<u8>, SegmentError>;

/// Downloads and verifies immutable files of a grid.
#[derive(Debug)]
pub struct Downloader {
    grid: Arc<Grid>,
    pool: Pool,
    stop: watch::Receiver<bool>,
    /// Whether a file has been requested.
    is_used: AtomicBool,
    /// Whether a share was not where a fresh upload puts it: the grid has changed, or another client chose the servers.
    is_moved: AtomicBool,
    /// Whether servers are far.
    is_far: AtomicBool,
    /// Time spent decoding, in nanoseconds over all threads of the pool.
    decode_ns: Arc<AtomicU64>,
}

impl Downloader {
    /// A downloader for this grid: `pool` decodes, and `stop` ends all downloads.
    pub fn new(grid: Arc<Grid>, pool: Pool, stop: watch::Receiver<bool>) -> Downloader {
        let [is_used, is_moved, is_far] = [const { AtomicBool::new(false) }; 3];
        Downloader { grid, pool, stop, is_used, is_moved, is_far, decode_ns: Arc::default() }
    }

    /// Time spent decoding, checking and decrypting segments, over all threads.
    pub(crate) fn decode_time(&self) -> Duration {
        Duration::from_nanos(self.decode_ns.load(Ordering::Relaxed))
    }

    /// Reads a file into `out`, in order.
    ///
    /// # Errors
    /// [`GetError::TooFewShares`] if fewer than k good shares are found; [`GetError::Geometry`] for a cap with
    /// impossible numbers; [`GetError::Segment`] if good blocks give a wrong segment; [`GetError::Unwanted`] if the
    /// receiver is gone; [`GetError::Interrupted`] if the run was stopped. Bytes sent before an error are verified.
    pub async fn get(&self, cap: &Chk, out: &mpsc::Sender<Bytes>) -> Result<Downloaded, GetError> {
        Download::new(self, cap.verifier(), Some(cap.key))?.run(out).await
    }

    /// Reads a file's ciphertext into `out`, in order, without the right to read the file.
    ///
    /// # Errors
    /// The errors of [`Downloader::get`].
    pub async fn ciphertext(&self, cap: &Verifier, out: &mpsc::Sender<Bytes>) -> Result<Downloaded, GetError> {
        Download::new(self, cap.clone(), None)?.run(out).await
    }
}

struct Download<'a> {
    with: &'a Downloader,
    cap: Verifier,
    /// Decrypts the content; `None`: the ciphertext is wanted.
    key: Option<Key>,
    index: StorageIndex,
    order: Vec<usize>,
    lists: ShareLists,
    /// Shares, each with the servers that listed it.
    holders: BTreeMap<u16, BTreeSet<usize>>,
    /// Shares of which some server has wrong bytes.
    damaged: BTreeSet<u16>,
    /// Pairs of share and server that are not tried again.
    spoiled: BTreeSet<(u16, usize)>,
    readers: Vec<Reader>,
    /// At first from the cap, with segments of the usual size; later from a proven share.
    geometry: Geometry,
    layout: Layout,
    /// Length of a share in bytes, as expected from the cap.
    share_len: u64,
    is_proven: bool,
    code: Arc<Code>,
    cut: Cut,
    /// Readers that were asked for each part.
    asked: BTreeMap<u64, Vec<usize>>,
    /// Connections to each server.
    connections: usize,
    /// Whether each share is requested as a whole.
    is_whole: bool,
    /// Whether lists of shares are requested only once a share is not where it should be.
    may_wait: bool,
    /// Whether a segment was wrong and no block could be blamed: whole blocks of the same shares are read from then on.
    is_careful: bool,
    /// Incremented when all blocks are requested again.
    turn: u32,
    patience: Patience,
    decoding: VecDeque<(u64, oneshot::Receiver<Decoded>)>,
    /// The next segment to decode.
    next: u64,
    events: (mpsc::UnboundedSender<DownloadEvent>, mpsc::UnboundedReceiver<DownloadEvent>),
    blocked: bool,
    troubles: Vec<String>,
}

impl<'a> Download<'a> {
    fn new(with: &'a Downloader, cap: Verifier, key: Option<Key>) -> Result<Download<'a>, GetError> {
        let index = cap.storage_index;
        let mut order = with.grid.order(&index);
        order.truncate(SERVERS_ASKED_MAX);
        let geometry = Geometry::new(Encoding::new(cap.needed, 1, cap.total)?, cap.size, DEFAULT_SEGMENT_BYTES)?;
        let layout = Layout::new(&geometry);
        let share_len = layout.share_len(Extension::length(geometry));
        let is_whole = share_len <= SMALL_SHARE_BYTES;
        let mut download = Download {
            with,
            index,
            order,
            lists: ShareLists::default(),
            holders: BTreeMap::new(),
            damaged: BTreeSet::new(),
            spoiled: BTreeSet::new(),
            readers: Vec::new(),
            code: Arc::new(Code::new(cap.needed, cap.total)),
            cut: Cut::new(&geometry, 1, 1),
            geometry,
            layout,
            share_len,
            is_proven: false,
            asked: BTreeMap::new(),
            connections: 1,
            is_whole,
            may_wait: is_whole && !with.is_moved.load(Ordering::Relaxed),
            is_careful: false,
            turn: 0,
            patience: Patience::default(),
            decoding: VecDeque::new(),
            next: 0,
            events: mpsc::unbounded_channel(),
            blocked: false,
            troubles: Vec::new(),
            cap,
            key,
        };
        download.guess(if share_len <= NEAR_SHARE_BYTES { download.needed() } else { READERS });
        Ok(download)
    }

    async fn run(mut self, out: &mpsc::Sender<Bytes>) -> Result<Downloaded, GetError> {
        let mut stop = self.with.stop.clone();
        tokio::select! {
            () = stopped(&mut stop) => return Err(GetError::Interrupted),
            () = self.settle() => {}
        }
        self.begin();
        loop {
            self.ask_on()?;
            self.decode();
            if self.is_proven && self.next >= self.geometry.segments && self.decoding.is_empty() {
                return Ok(self.got());
            }
            let front = self.decoding.front_mut();
            let look = if self.blocked { LOOK_EVERY } else { LATE_EVERY };
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return Err(GetError::Interrupted),
                decoded = async { match front { Some((_, decoded)) => decoded.await, None => std::future::pending().await } } => {
                    let Some((segment, _)) = self.decoding.pop_front() else { continue };
                    let decoded = decoded.unwrap_or_else(|_| Err(SegmentError::Blocks(Vec::new())));
                    self.decoded(segment, decoded, out).await?;
                }
                Some(event) = self.events.1.recv() => {
                    self.happened(event);
                    while let Ok(event) = self.events.1.try_recv() {
                        self.happened(event);
                    }
                }
                () = tokio::time::sleep(look) => {}
            }
        }
    }

    /// Sends the first requests.
    fn begin(&mut self) {
        // A server without the share answers a question for its list sooner than requests for each part.
        if !self.may_wait {
            self.list();
        }
        self.blocked = !self.ask();
        // For small files, asking every server, and connecting to each for it, would cost more than the file. With the
        // first file the connected servers are asked after the reads, since nobody knows yet whether shares are where
        // they are looked for. If servers are far, all are asked: a later question would cost some round trips.
        if !self.with.is_used.swap(true, Ordering::Relaxed) && self.may_wait {
            self.list();
            let (reached, events) = (self.reached(Distance::Far), self.events.0.clone());
            tokio::spawn(async move {
                let far = reached.await;
                let _ = events.send(DownloadEvent::Reached { far });
            });
        }
    }

    /// Sends further requests after events.
    fn ask_on(&mut self) -> Result<(), GetError> {
        self.find_late();
        self.may_wait &= !self.readers.iter().any(|reader| reader.failed || reader.slow);
        if !self.may_wait {
            self.list();
        }
        self.open_more()?;
        self.blocked = !self.ask();
        Ok(())
    }

    /// Decides how many servers to read from, and over how many connections. The first TCP handshake tells how far they
    /// are, before any request can be sent.
    async fn settle(&mut self) {
        if self.is_whole {
            return;
        }
        if self.share_len <= NEAR_SHARE_BYTES {
            if self.are_near().await {
                self.is_whole = true;
                self.may_wait = !self.with.is_moved.load(Ordering::Relaxed);
                return;
            }
            self.guess(READERS);
        }
        self.cut = Cut::new(&self.geometry, self.readers.len(), 1);
        let servers = self.readers.len().max(1) as u64;
        let each = self.geometry.share_data() * u64::from(self.cap.needed) / servers;
        for distance in [Distance::Away, Distance::Far] {
            let connections = worthwhile_to_read(distance, each, self.readers.len());
            if connections > self.connections && self.reached(distance).await {
                self.connections = connections;
                self.readers.iter().for_each(|reader| self.link(reader.server).widen(connections));
                self.cut = Cut::new(&self.geometry, self.readers.len(), connections);
            }
        }
    }

    /// Whether all servers read from are near; decided after the time in which a near server connects.
    async fn are_near(&self) -> bool {
        let links: Vec<Link> = self.readers.iter().map(|reader| self.link(reader.server).clone()).collect();
        let told = async {
            for link in &links {
                if link.is_at(Distance::Apart).await != Some(false) {
                    return false;
                }
            }
            true
        };
        // The lookup of a server's address may still be running.
        tokio::time::timeout(self.with.grid.near(), told).await.unwrap_or(false)
    }

    /// Waits until one of the servers tells whether it is at least this far.
    fn reached(&self, distance: Distance) -> impl Future<Output = bool> + use<> {
        let mut told = JoinSet::new();
        for reader in &self.readers {
            let link = self.link(reader.server).clone();
            told.spawn(async move { link.is_at(distance).await });
        }
        async move {
            loop {
                match told.join_next().await {
                    Some(Ok(None)) => {}
                    Some(Ok(Some(is_at))) => return is_at,
                    Some(Err(_)) | None => return false,
                }
            }
        }
    }

    fn needed(&self) -> usize {
        usize::from(self.cap.needed)
    }

    fn link(&self, server: usize) -> &'a Link {
        self.with.grid.link(self.order[server])
    }

    fn happened(&mut self, event: DownloadEvent) {
        match event {
            DownloadEvent::Reached { far } => {
                self.may_wait &= !far;
                self.with.is_far.fetch_or(far, Ordering::Relaxed);
            }
            DownloadEvent::Listed { server, result } => {
                self.lists.answered += 1;
                let name = self.link(server).name();
                let held = result.map_err(|error| error.to_string());
                match held.and_then(|reply| held_shares(&reply.answer).map_err(|error| format!("{name}: {error}"))) {
                    Ok(shares) => {
                        self.forget_guesses(|reader| reader.server == server && !shares.contains(&reader.share));
                        for share in shares.into_iter().filter(|share| *share < self.cap.total) {
                            self.holders.entry(share).or_default().insert(server);
                        }
                    }
                    Err(trouble) => {
                        self.troubles.push(trouble);
                        self.recall_guesses(server);
                    }
                }
            }
            DownloadEvent::Read { reader, what, asked, turn, result } => {
                if self.readers[reader].failed || (turn != self.turn && matches!(what, ShareSection::Data(_))) {
                    return;
                }
                self.read(reader, &what, asked, result);
            }
        }
    }

    fn read(&mut self, number: usize, what: &ShareSection, asked: Instant, result: Result<Reply, LinkError>) {
        let bytes = match result.map(|reply| (range_bytes(&reply.answer), reply.answer.status)) {
            Ok((Ok(bytes), _)) => bytes,
            // A wrong guess is not a fault of the server.
            Ok((Err(_), 404)) if self.readers[number].is_untried() => {
                self.with.is_moved.store(true, Ordering::Relaxed);
                return self.spoil(number);
            }
            Ok((Err(error), _)) => return self.fail(number, &error.to_string()),
            Err(error) => return self.fail(number, &error.reason),
        };
        if let ShareSection::Data(_) = what {
            self.patience.answered(asked.elapsed());
        }
        if let Err(damage) = self.readers[number].received(what, bytes, &self.cap) {
            return self.damage(number, &damage);
        }
        if !self.is_proven
            && let Some(proven) = self.readers[number].proven.clone()
        {
            self.is_proven = true;
            self.geometry = proven.extension.geometry;
            if proven.layout.data != self.layout.data && !self.is_whole {
                self.ask_again();
            }
            self.layout = proven.layout;
        }
    }

    /// Drops readers whose guess was wrong, or whose share is known to be elsewhere: their answers are not waited for.
    fn forget_guesses(&mut self, is_wrong: impl Fn(&Reader) -> bool) {
        for number in 0..self.readers.len() {
            let reader = &self.readers[number];
            if !reader.failed && reader.is_untried() && !self.is_listed(reader) && is_wrong(reader) {
                self.with.is_moved.store(true, Ordering::Relaxed);
                self.readers[number].fail();
            }
        }
    }

    /// A server cannot say what it has: shares that were dropped for it may still be there.
    fn recall_guesses(&mut self, server: usize) {
        for reader in
            self.readers.iter().filter(|reader| reader.server == server && reader.failed && reader.is_untried())
        {
            self.holders.entry(reader.share).or_default().insert(server);
        }
    }

    /// Discards all blocks received, and requests them again.
    fn ask_again(&mut self) {
        self.turn += 1;
        self.asked.clear();
        for reader in &mut self.readers {
            reader.fetched.clear();
            reader.pending.clear();
            reader.had_turn = false;
            reader.slow = false;
        }
    }

    /// Hands segments whose blocks have arrived to the pool.
    fn decode(&mut self) {
        if !self.is_proven {
            return;
        }
        let Some(proven) = self.readers.iter().find_map(|reader| reader.proven.clone()) else { return };
        while self.next < self.geometry.segments && self.decoding.len() <= self.with.pool.threads() {
            let number = self.next;
            let Some(&leaf) = proven.crypttext.leaf(number as usize) else { return };
            let Some(strips) = self.strips(number) else { return };
            let segment = Segment { number, geometry: self.geometry, leaf, strips };
            let (code, key) = (Arc::clone(&self.code), self.key);
            let worked = Arc::clone(&self.with.decode_ns);
            let decode = move || {
                let begun = Instant::now();
                let decoded = segment.decode(&code, key.as_ref());
                worked.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                decoded
            };
            self.decoding.push_back((number, self.with.pool.run_async(decode)));
            self.next += 1;
        }
    }

    /// The blocks of a segment if all are here: whole blocks of k shares, or strips of different shares.
    fn strips(&self, segment: u64) -> Option<Vec<Strip>> {
        let begin = segment * self.geometry.block_size();
        let block = begin..begin + self.geometry.block_len(segment);
        let found = |range: &Range<u64>, with_proof: bool| {
            let mut shares = BTreeSet::new();
            let mut blocks = Vec::new();
            for (number, reader) in self.readers.iter().enumerate().filter(|(_, reader)| !reader.failed) {
                let leaf = reader.proven.as_ref().and_then(|proven| proven.blocks.leaf(segment as usize)).copied();
                if blocks.len() == self.needed() || (with_proof && leaf.is_none()) || !shares.insert(reader.share) {
                    continue;
                }
                if let Some(bytes) = reader.fetched.get(range.start, range.end - range.start) {
                    let leaf = leaf.filter(|_| *range == block);
                    blocks.push(Block { reader: number, share: reader.share, bytes, leaf });
                } else {
                    shares.remove(&reader.share);
                }
            }
            let within = range.start - begin..range.end - begin;
            (blocks.len() == self.needed()).then_some(Strip { range: within, blocks })
        };
        if let Some(strip) = found(&block, self.is_careful) {
            return Some(vec![strip]);
        }
        if self.is_careful {
            return None;
        }
        let parts = self.cut.parts(&block).map(|part| {
            let range = self.cut.range(part);
            found(&(range.start.max(block.start)..range.end.min(block.end)), false)
        });
        parts.collect()
    }

    async fn decoded(&mut self, segment: u64, decoded: Decoded, out: &mpsc::Sender<Bytes>) -> Result<(), GetError> {
        match decoded {
            Ok(plaintext) => {
                out.send(plaintext.into()).await.map_err(|_| GetError::Unwanted)?;
                let done = (segment + 1) * self.geometry.block_size();
                for reader in &mut self.readers {
                    reader.fetched.forget(done);
                }
                let first = self.cut.parts(&(done.min(self.cut.data)..self.cut.data)).start;
                self.asked = self.asked.split_off(&first);
            }
            Err(SegmentError::Segment) => return Err(GetError::Segment { segment }),
            Err(SegmentError::Somewhere) => {
                tracing::info!(
                    segment,
                    "wrong content, but no damaged share found; reading whole blocks of the same shares"
                );
                self.again(segment);
                self.is_careful = true;
            }
            Err(SegmentError::Blocks(readers)) => {
                self.again(segment);
                for number in readers {
                    self.damage(number, &format!("block {segment} is damaged"));
                }
            }
        }
        Ok(())
    }

    /// Decodes again from this segment on, with the blocks that will have come by then.
    fn again(&mut self, segment: u64) {
        self.decoding.clear();
        self.next = segment;
    }

    /// Drops a share of a server, and reports why.
    fn fail(&mut self, number: usize, reason: &str) {
        let reader = &self.readers[number];
        let name = self.link(reader.server).name();
        self.troubles.push(format!("share {} on {name}: {reason}", reader.share));
        self.spoil(number);
    }

    /// Drops a share that has wrong bytes.
    fn damage(&mut self, number: usize, reason: &str) {
        self.damaged.insert(self.readers[number].share);
        self.fail(number, reason);
    }

    fn spoil(&mut self, number: usize) {
        let reader = &mut self.readers[number];
        reader.fail();
        self.spoiled.insert((reader.share, reader.server));
    }

    fn got(&mut self) -> Downloaded {
        let used = self.live().filter(|reader| reader.bytes > 0);
        let used = used.map(|reader| (reader.share, self.link(reader.server).name().to_owned())).collect();
        Downloaded { used, troubles: std::mem::take(&mut self.troubles) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::encode_whole;
    use crate::gbs::Answer;
    use crate::gbs::link::LinkOptions;
    use crate::servers::Announcements;
    use minicbor::Encoder;
    use minicbor::data::Tag;
    use tokio::net::TcpListener;

    /// Ten servers that accept connections and never answer, with these limits for "far" and "near".
    async fn downloader(far: Duration, near: Duration) -> (Downloader, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (pin, port) = ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8", listener.local_addr().unwrap().port());
        let mut yaml = "storage:\n".to_owned();
        for tub in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"].map(|letter| letter.repeat(32)) {
            yaml += &format!(
                "  server-{tub}:\n    ann:\n      anonymous-storage-FURL: pb://{tub}@tcp:127.0.0.1:1/x\n      \
                 anonymous-storage-NURLs:\n      - pb://{pin}@127.0.0.1:{port}/swissnum#v=1\n"
            );
        }
        let mut announcements = Announcements::default();
        announcements.add_servers_yaml(&yaml).unwrap();
        let options = LinkOptions { far, near, ..LinkOptions::new(Duration::from_secs(60)) };
        let grid = Arc::new(Grid::new(announcements.servers(), Vec::new(), options));
        (Downloader::new(grid, Pool::new(1), watch::channel(false).1), listener)
    }

    #[tokio::test]
    async fn a_small_file_is_read_from_all_far_servers_or_k_near_ones() {
        for (far, is_far) in [(Duration::ZERO, true), (Duration::MAX, false)] {
            let (downloader, _listener) = downloader(far, Duration::ZERO).await;
            let cap = Chk { key: [1; 16], extension_hash: [2; 32], needed: 3, total: 10, size: 200 };
            let mut download = Download::new(&downloader, cap.verifier(), Some(cap.key)).unwrap();
            download.begin();
            assert_eq!(downloader.grid.readings().len(), 3, "nobody else before it is known how far they are");
            let event = download.events.1.recv().await.unwrap();
            assert!(matches!(event, DownloadEvent::Reached { .. }));
            download.happened(event);
            assert_eq!(download.may_wait, !is_far);
            if is_far {
                download.ask_on().unwrap();
                assert_eq!(downloader.grid.readings().len(), 10);
            }
        }
    }

    /// A 3-of-10 file of `size` bytes, with the requests that are sent before any answer.
    async fn first_flight(downloader: &Downloader, size: u64) -> Download<'_> {
        let cap = Chk { key: [1; 16], extension_hash: [2; 32], needed: 3, total: 10, size };
        let mut download = Download::new(downloader, cap.verifier(), Some(cap.key)).unwrap();
        download.settle().await;
        download.begin();
        download.ask_on().unwrap();
        download
    }

    #[tokio::test]
    async fn a_larger_file_is_read_as_whole_shares_from_k_near_servers() {
        for (near, asked) in [(Duration::MAX, 3), (Duration::ZERO, 10)] {
            let (downloader, _listener) = downloader(Duration::MAX, near).await;
            let download = first_flight(&downloader, 1_000_000).await;
            assert_eq!((downloader.grid.readings().len(), download.is_whole), (asked, asked == 3));
        }
    }

    /// The answer of a server that lists these shares; `None`: the answer to a read of a share that is not there.
    fn answered(
        download: &mut Download<'_>,
        event: impl FnOnce(Result<Reply, LinkError>) -> DownloadEvent,
        held: Option<&[u16]>,
    ) {
        let mut body = Vec::new();
        if let Some(held) = held {
            let mut encoder = Encoder::new(&mut body);
            encoder.tag(Tag::new(258)).unwrap().array(held.len() as u64).unwrap();
            held.iter().for_each(|&share| _ = encoder.u16(share).unwrap());
        }
        let answer = Answer { status: if held.is_some() { 200 } else { 404 }, body: body.into() };
        download.happened(event(Ok(Reply { answer, repeated: false })));
        download.ask_on().unwrap();
    }

    fn not_there(download: &mut Download<'_>, reader: usize) {
        let event =
            |result| DownloadEvent::Read { reader, what: ShareSection::Header, asked: Instant::now(), turn: 0, result };
        answered(download, event, None);
    }

    #[tokio::test]
    async fn all_servers_send_of_a_file_that_was_not_where_it_was_looked_for() {
        for is_known_first in [true, false] {
            let (downloader, _listener) = downloader(Duration::MAX, Duration::ZERO).await;
            let mut download = first_flight(&downloader, 1_000_000).await;
            if is_known_first {
                (0..10).for_each(|reader| not_there(&mut download, reader));
            }
            // Server 0 has share 9, server 1 has share 8, and so on.
            for server in 0..10 {
                let list = |result| DownloadEvent::Listed { server, result };
                answered(&mut download, list, Some(&[9 - server as u16]));
                let opened = download.readers.last().unwrap();
                assert_eq!((opened.server, download.live().count() > server), (server, true));
            }
            assert_eq!(download.live().count(), 10);
            let asked: Vec<u64> = download.live().map(Reader::asked_bytes).collect();
            assert_eq!(asked.iter().sum::<u64>(), 3 * download.cut.data, "{asked:?}");
        }
    }

    #[tokio::test]
    async fn two_readers_of_one_share_count_once() {
        let (downloader, _listener) = downloader(Duration::MAX, Duration::ZERO).await;
        let geometry = Geometry::new(Encoding::new(2, 1, 3).unwrap(), 100_000, DEFAULT_SEGMENT_BYTES).unwrap();
        let (cap, shares) = encode_whole(geometry, [3; 16], Arc::new(Code::new(2, 3)), &[7; 100_000]).unwrap();
        let mut download = Download::new(&downloader, cap.verifier(), Some(cap.key)).unwrap();
        download.settle().await;
        download.readers =
            [(0, 0), (0, 1), (2, 2)].map(|(share, server)| Reader::new(share, server, server as u64)).into();
        // The second reader was opened when the first was late; the first has answered since.
        download.holders = [(0, [0, 1].into()), (2, [2].into())].into();
        download.readers[2].fail();
        download.asked.insert(0, vec![0, 1, 2]);
        download.readers.push(Reader::new(1, 3, 3));
        download.ask_on().unwrap();
        assert!(download.asked[&0].contains(&3), "{:?}", download.asked);
        download.again(0);
        (download.is_careful, download.asked) = (true, BTreeMap::new());
        for reader in download.readers.iter_mut().filter(|reader| !reader.failed) {
            let share = Bytes::copy_from_slice(&shares[usize::from(reader.share)]);
            reader.received(&ShareSection::Whole, share, &cap.verifier()).unwrap();
        }
        download.ask_on().unwrap();
        assert_eq!(download.asked[&0], [0, 3]);
    }

    #[tokio::test]
    async fn what_all_have_room_for_is_asked_at_once() {
        let (downloader, _listener) = downloader(Duration::MAX, Duration::ZERO).await;
        for size in [135_000, 270_000, 6_500_000] {
            let download = first_flight(&downloader, size).await;
            let asked: u64 = download.live().map(Reader::asked_bytes).sum();
            assert_eq!(asked, 3 * download.cut.data, "{size}");
        }
    }

    #[tokio::test]
    async fn a_share_that_was_found_twice_can_be_read_from_either_server() {
        for says in [true, false] {
            let (downloader, _listener) = downloader(Duration::MAX, Duration::ZERO).await;
            let mut download = first_flight(&downloader, 1_000_000).await;
            let (share, guessed, other) =
                (download.readers[5].share, download.readers[5].server, download.readers[0].server);
            answered(&mut download, |result| DownloadEvent::Listed { server: other, result }, Some(&[share]));
            let reader = download.readers.len() - 1;
            assert_eq!((download.readers[reader].share, download.readers[reader].server), (share, other));
            assert!(download.readers[5].failed, "one at a time");
            // The other case: the server does not list its shares.
            let held: Option<&[u16]> = if says { Some(&[share]) } else { None };
            answered(&mut download, |result| DownloadEvent::Listed { server: guessed, result }, held);
            not_there(&mut download, reader);
            assert!(download.live().any(|reader| (reader.share, reader.server) == (share, guessed)));
        }
    }

    #[tokio::test]
    async fn of_a_small_file_that_was_moved_connected_servers_are_asked_first() {
        for (held, asked) in [([4, 5, 6], 3), ([4, 4, 4], 10)] {
            let (downloader, _listener) = downloader(Duration::MAX, Duration::ZERO).await;
            let cap = Chk { key: [1; 16], extension_hash: [2; 32], needed: 3, total: 10, size: 200 };
            let mut download = Download::new(&downloader, cap.verifier(), Some(cap.key)).unwrap();
            download.begin();
            (0..3).for_each(|reader| not_there(&mut download, reader));
            assert_eq!(downloader.grid.readings().len(), 3);
            for server in 0..3 {
                answered(
                    &mut download,
                    |result| DownloadEvent::Listed { server, result },
                    Some(&held[server..=server]),
                );
            }
            assert_eq!(downloader.grid.readings().len(), asked);
        }
    }
}
