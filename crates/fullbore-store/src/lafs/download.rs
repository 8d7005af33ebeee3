//! A file out of a grid: any k good shares, from servers that are asked at once, every hash checked.
//!
//! The first flight asks every server which shares it has, and those that should have one for its beginning
//! and its hashes. Blocks follow in large ranges, ahead of what is decoded. A share that is missing, damaged
//! or whose server fails is replaced by another; which ones that were is told at the end.

mod share;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ctr::cipher::{StreamCipher, StreamCipherSeek};
use tokio::sync::{mpsc, oneshot, watch};

use super::cap::{Chk, Key, StorageIndex};
use super::code::Code;
use super::encode::{block_leaves, cipher, crypttext_leaf};
use super::extension::Extension;
use super::gbs::link::{Link, LinkError, Reply};
use super::gbs::{held_shares, range_bytes};
use super::geometry::{DEFAULT_SEGMENT_BYTES, Encoding, Geometry};
use super::hash::Hash;
use super::layout::{HEADER_BYTES_MAX, Layout};
use super::placement::{Candidate, place};
use super::upload::produce::Pool;
use super::upload::{Grid, stopped};
use share::{Fetched, Proven, hashes_range, prove};

/// Where blocks begin in shares of version 1, which nearly all are. Until the header is here it is taken for
/// granted, so that blocks are asked for in the first flight.
const USUAL_DATA: u64 = 0x24;

/// Plaintext that is asked for ahead of what is decoded.
const AHEAD_BYTES: u64 = 24 << 20;

/// Bytes of one request at most: all of a small share, hashes included. The server sends them piece by piece.
const RANGE_BYTES: u64 = 1 << 20;

/// Servers that are asked, in the order of the file. The stock client goes on to the last one; so many hold
/// all shares of any file that was placed by the rules, even if half of the grid came later.
const SERVERS_ASKED_MAX: usize = 1000;

/// How often a full window is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A file that was read.
#[derive(Debug, Default)]
pub struct Got {
    /// Shares that it was made of, and their servers.
    pub used: Vec<(u16, String)>,
    /// What was wrong with others, one line each.
    pub troubles: Vec<String>,
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// Too few good shares.
    #[error("{found} good shares were found, {needed} are needed; {asked} servers were asked")]
    TooFewShares {
        /// Good ones, from which bytes could be had to the end.
        found: usize,
        /// k.
        needed: u16,
        /// Servers asked.
        asked: usize,
        /// What was wrong with the others.
        troubles: Vec<String>,
    },
    /// All shares are good and do not fit together: whoever wrote them erred.
    #[error("segment {segment} does not have its hash, though all its blocks do")]
    Segment {
        /// Which one.
        segment: u64,
    },
    /// Nobody takes the bytes.
    #[error("the reader of the content is gone")]
    Unwanted,
    /// The run is to end.
    #[error("interrupted")]
    Interrupted,
}

/// A share that is being read.
#[derive(Debug)]
struct Reader {
    share: u16,
    server: usize,
    failed: bool,
    start_asked: bool,
    /// The first request was for the beginning of the data as well.
    start_whole: bool,
    start: Option<Bytes>,
    /// Asked for: from, length.
    hashes_asked: Option<(u64, u64)>,
    hashes: Option<(u64, Bytes)>,
    proven: Option<Arc<Proven>>,
    /// The next byte of the share to ask for.
    next: u64,
    fetched: Fetched,
}

enum Happened {
    Listed { server: usize, result: Result<Reply, LinkError> },
    Read { reader: usize, what: What, result: Result<Reply, LinkError> },
}

#[derive(Debug, Clone, Copy)]
enum What {
    /// The header, and perhaps more.
    Start(u64),
    Hashes(u64),
    /// From, length.
    Data(u64, u64),
}

type Decoded = Result<Vec<u8>, Wrong>;

/// What a segment turned out not to be.
enum Wrong {
    /// Blocks of these readers.
    Blocks(Vec<usize>),
    Segment,
}

/// Reads files of a grid.
#[derive(Debug)]
pub struct Downloader {
    grid: Arc<Grid>,
    pool: Pool,
    stop: watch::Receiver<bool>,
}

impl Downloader {
    /// Joins what is needed.
    pub fn new(grid: Arc<Grid>, pool: Pool, stop: watch::Receiver<bool>) -> Downloader {
        Downloader { grid, pool, stop }
    }

    /// Reads a file into `out`, in order.
    ///
    /// # Errors
    /// [`GetError`]; what was sent until then is right.
    pub async fn get(&self, cap: &Chk, out: &mpsc::Sender<Bytes>) -> Result<Got, GetError> {
        Download::new(self, cap.clone()).run(out).await
    }
}

struct Download<'a> {
    with: &'a Downloader,
    cap: Chk,
    index: StorageIndex,
    order: Vec<usize>,
    listed: usize,
    /// Shares, and who says that he has them.
    holders: BTreeMap<u16, BTreeSet<usize>>,
    /// Pairs that turned out to be of no use.
    spoiled: BTreeSet<(u16, usize)>,
    readers: Vec<Reader>,
    geometry: Option<Geometry>,
    code: Option<Arc<Code>>,
    decoding: VecDeque<(u64, oneshot::Receiver<Decoded>)>,
    /// The next segment to decode, and the next to hand out.
    next: u64,
    events: (mpsc::UnboundedSender<Happened>, mpsc::UnboundedReceiver<Happened>),
    blocked: bool,
    troubles: Vec<String>,
}

impl<'a> Download<'a> {
    fn new(with: &'a Downloader, cap: Chk) -> Download<'a> {
        let index = cap.storage_index();
        let mut order = with.grid.order(&index);
        order.truncate(SERVERS_ASKED_MAX);
        Download {
            with,
            cap,
            index,
            order,
            listed: 0,
            holders: BTreeMap::new(),
            spoiled: BTreeSet::new(),
            readers: Vec::new(),
            geometry: None,
            code: None,
            decoding: VecDeque::new(),
            next: 0,
            events: mpsc::unbounded_channel(),
            blocked: false,
            troubles: Vec::new(),
        }
    }

    async fn run(mut self, out: &mpsc::Sender<Bytes>) -> Result<Got, GetError> {
        self.guess();
        self.list().await;
        let mut stop = self.with.stop.clone();
        loop {
            self.blocked = false;
            self.choose()?;
            self.ask();
            self.decode();
            if self.geometry.is_some_and(|geometry| self.next >= geometry.segments) && self.decoding.is_empty() {
                return Ok(self.got());
            }
            let front = self.decoding.front_mut();
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return Err(GetError::Interrupted),
                decoded = async { match front { Some((_, decoded)) => decoded.await, None => std::future::pending().await } } => {
                    let Some((segment, _)) = self.decoding.pop_front() else { continue };
                    let decoded = decoded.unwrap_or_else(|_| Err(Wrong::Blocks(Vec::new())));
                    self.decoded(segment, decoded, out).await?;
                }
                Some(event) = self.events.1.recv() => {
                    self.happened(event);
                    while let Ok(event) = self.events.1.try_recv() {
                        self.happened(event);
                    }
                }
                () = tokio::time::sleep(LOOK_EVERY), if self.blocked => {}
            }
        }
    }

    /// Takes for granted that shares are where a fresh upload puts them; the first k of those are asked.
    fn guess(&mut self) {
        let fresh = vec![Candidate { writable: true, ..Candidate::default() }; self.order.len()];
        let placement = place(&fresh, self.cap.total);
        for (&share, &server) in placement.send.iter().take(usize::from(self.cap.needed)) {
            self.open(share, server);
        }
    }

    /// Asks every server what it has.
    async fn list(&mut self) {
        for server in 0..self.order.len() {
            let link = self.link(server);
            let call = link.requests().shares(&self.index);
            let events = self.events.0.clone();
            let link = link.clone();
            tokio::spawn(async move {
                let result = link.call(call).await;
                let _ = events.send(Happened::Listed { server, result });
            });
        }
    }

    fn link(&self, server: usize) -> &'a Link {
        self.with.grid.link(self.order[server])
    }

    fn open(&mut self, share: u16, server: usize) {
        self.readers.push(Reader {
            share,
            server,
            failed: false,
            start_asked: false,
            start_whole: false,
            start: None,
            hashes_asked: None,
            hashes: None,
            proven: None,
            next: 0,
            fetched: Fetched::default(),
        });
    }

    /// Sees that k different shares are being read.
    fn choose(&mut self) -> Result<(), GetError> {
        let needed = usize::from(self.cap.needed);
        loop {
            let reading: BTreeSet<u16> =
                self.readers.iter().filter(|reader| !reader.failed).map(|reader| reader.share).collect();
            if reading.len() >= needed {
                return Ok(());
            }
            // Servers that are read from least come first; primary shares need no decoding.
            let load =
                |server: usize| self.readers.iter().filter(|reader| !reader.failed && reader.server == server).count();
            let best = self
                .holders
                .iter()
                .filter(|(share, _)| !reading.contains(share))
                .flat_map(|(&share, servers)| servers.iter().map(move |&server| (share, server)))
                .filter(|pair| !self.spoiled.contains(pair))
                .min_by_key(|&(share, server)| (load(server), share));
            match best {
                Some((share, server)) => self.open(share, server),
                None if self.listed < self.order.len() => return Ok(()),
                None => {
                    let asked = self.order.len();
                    let troubles = std::mem::take(&mut self.troubles);
                    return Err(GetError::TooFewShares {
                        found: reading.len(),
                        needed: self.cap.needed,
                        asked,
                        troubles,
                    });
                }
            }
        }
    }

    /// Asks for what may be asked for now.
    fn ask(&mut self) {
        for number in 0..self.readers.len() {
            while !self.readers[number].failed && self.ask_one(number) {}
        }
    }

    /// One request; false when there is nothing to ask for, or no room for it.
    fn ask_one(&mut self, number: usize) -> bool {
        let reader = &self.readers[number];
        let link = self.link(reader.server);
        let (what, offset, length) = match self.wanted(reader) {
            Ok(Some(wanted)) => wanted,
            Ok(None) => return false,
            Err(damage) => {
                self.fail(number, &damage);
                return false;
            }
        };
        let call = link.requests().read(&self.index, reader.share, offset, length);
        let pending = match link.try_send(call, length) {
            Ok(Ok(pending)) => pending,
            Ok(Err(_)) => {
                self.blocked = true;
                return false;
            }
            Err(error) => {
                self.fail(number, &error.reason);
                return false;
            }
        };
        let reader = &mut self.readers[number];
        match what {
            What::Start(next) => {
                reader.start_asked = true;
                reader.start_whole = length == RANGE_BYTES;
                reader.next = next;
            }
            What::Hashes(_) => reader.hashes_asked = Some((offset, length)),
            What::Data(..) => reader.next = offset + length,
        }
        let events = self.events.0.clone();
        tokio::spawn(async move {
            let result = pending.reply().await;
            let _ = events.send(Happened::Read { reader: number, what, result });
        });
        true
    }

    /// What a reader wants next: what, from where, how much.
    fn wanted(&self, reader: &Reader) -> Result<Option<(What, u64, u64)>, String> {
        if !reader.start_asked {
            return Ok(Some(match self.geometry {
                // In the place of another: it goes on where that one failed.
                Some(geometry) if self.next > 0 => {
                    (What::Start(USUAL_DATA + self.next * geometry.block_size()), 0, HEADER_BYTES_MAX)
                }
                _ => (What::Start(RANGE_BYTES), 0, RANGE_BYTES),
            }));
        }
        if reader.proven.is_none()
            && let Some(wanted) = self.wanted_hashes(reader)?
        {
            return Ok(Some(wanted));
        }
        let needed = u64::from(self.cap.needed);
        let (end, ahead) = match &reader.proven {
            Some(proven) => {
                let block = proven.extension.geometry.block_size();
                let ahead = (AHEAD_BYTES / needed).max(2 * block);
                (proven.layout.plaintext_tree, proven.layout.data + self.next * block + ahead)
            }
            None => (USUAL_DATA + self.cap.size.div_ceil(needed), AHEAD_BYTES / needed),
        };
        let limit = end.min(ahead);
        // Not crumb by crumb, as one segment after the other is decoded.
        if reader.next >= limit || (limit < end && limit - reader.next < RANGE_BYTES.min(AHEAD_BYTES / needed / 4)) {
            return Ok(None);
        }
        let length = (limit - reader.next).min(RANGE_BYTES);
        Ok(Some((What::Data(reader.next, length), reader.next, length)))
    }

    fn wanted_hashes(&self, reader: &Reader) -> Result<Option<(What, u64, u64)>, String> {
        if let Some(start) = &reader.start {
            let layout = Layout::parse(start).map_err(|error| error.to_string())?;
            let (offset, length) = hashes_range(&layout, &self.cap)?;
            return match reader.hashes_asked {
                Some(asked) if asked.0 == offset => Ok(None),
                _ => Ok(Some((What::Hashes(offset), offset, length))),
            };
        }
        // Before the header is here: where the hashes are if the segments are of the usual size.
        let usual = Encoding::new(self.cap.needed, 1, self.cap.total)
            .and_then(|encoding| Geometry::new(encoding, self.cap.size, DEFAULT_SEGMENT_BYTES));
        match usual {
            Ok(geometry) if reader.hashes_asked.is_none() => {
                let layout = Layout::new(&geometry);
                let (offset, length) = hashes_range(&layout, &self.cap)?;
                // They come with the first request of a small share.
                let small = layout.share_len(Extension::length(geometry)) < RANGE_BYTES && self.next == 0;
                Ok((!small).then_some((What::Hashes(offset), offset, length)))
            }
            _ => Ok(None),
        }
    }

    fn happened(&mut self, event: Happened) {
        match event {
            Happened::Listed { server, result } => {
                self.listed += 1;
                let name = self.link(server).name();
                match result.map(|reply| held_shares(&reply.answer)) {
                    Ok(Ok(shares)) => {
                        for share in shares.into_iter().filter(|share| *share < self.cap.total) {
                            self.holders.entry(share).or_default().insert(server);
                        }
                    }
                    Ok(Err(error)) => self.troubles.push(format!("{name}: {error}")),
                    Err(error) => self.troubles.push(error.to_string()),
                }
            }
            Happened::Read { reader, what, result } => self.read(reader, what, result),
        }
    }

    fn read(&mut self, number: usize, what: What, result: Result<Reply, LinkError>) {
        if self.readers[number].failed {
            return;
        }
        let bytes = match result.map(|reply| (range_bytes(&reply.answer), reply.answer.status)) {
            Ok((Ok(bytes), _)) => bytes,
            // A guess that was wrong is no trouble.
            Ok((Err(_), 404)) if self.readers[number].start.is_none() => return self.spoil(number),
            Ok((Err(error), _)) => return self.fail(number, &error.to_string()),
            Err(error) => return self.fail(number, &error.reason),
        };
        let reader = &mut self.readers[number];
        match what {
            What::Start(_) => {
                if bytes.len() < HEADER_BYTES_MAX as usize {
                    return self.fail(number, "it is cut short");
                }
                if (bytes.len() as u64) < RANGE_BYTES
                    && let Ok(layout) = Layout::parse(&bytes)
                    && (layout.crypttext_tree as usize) < bytes.len()
                {
                    // All of a small share.
                    let hashes = bytes.slice(layout.crypttext_tree as usize..);
                    reader.hashes_asked = Some((layout.crypttext_tree, hashes.len() as u64));
                    reader.hashes = Some((layout.crypttext_tree, hashes));
                }
                reader.fetched.insert(0, bytes.clone());
                reader.start = Some(bytes);
                self.prove(number);
            }
            What::Hashes(offset) => {
                if reader.hashes_asked.is_some_and(|asked| asked.0 == offset) {
                    reader.hashes = Some((offset, bytes));
                    self.prove(number);
                }
            }
            What::Data(offset, length) => {
                if (bytes.len() as u64) < length {
                    return self.fail(number, "it is cut short");
                }
                reader.fetched.insert(offset, bytes);
            }
        }
    }

    /// Proves a share once its header and its hashes are here.
    fn prove(&mut self, number: usize) {
        let reader = &mut self.readers[number];
        let (Some(start), Some((offset, hashes))) = (&reader.start, &reader.hashes) else { return };
        let layout = match Layout::parse(start) {
            Ok(layout) => layout,
            Err(error) => return self.fail(number, &error.to_string()),
        };
        if layout.crypttext_tree != *offset {
            // They were asked for where they are not: segments of another size.
            reader.hashes = None;
            return;
        }
        let asked = if reader.start_whole { RANGE_BYTES } else { HEADER_BYTES_MAX };
        if (start.len() as u64) < asked.min(layout.plaintext_tree) {
            return self.fail(number, "it is cut short");
        }
        match prove(&self.cap, reader.share, layout, hashes) {
            Ok(proven) => {
                self.geometry.get_or_insert(proven.extension.geometry);
                let (needed, total) = (self.cap.needed, self.cap.total);
                self.code.get_or_insert_with(|| Arc::new(Code::new(needed, total)));
                reader.proven = Some(Arc::new(proven));
                reader.hashes = Some((*offset, Bytes::new()));
            }
            Err(damage) => self.fail(number, &damage),
        }
    }

    /// Gives segments whose blocks are here to the pool.
    fn decode(&mut self) {
        let (Some(geometry), Some(code)) = (self.geometry, self.code.clone()) else { return };
        while self.next < geometry.segments && self.decoding.len() <= self.with.pool.threads() {
            let segment = self.next;
            let length = geometry.block_len(segment);
            let mut blocks = Vec::new();
            for (number, reader) in self.readers.iter().enumerate().filter(|(_, reader)| !reader.failed) {
                let Some(proven) = &reader.proven else { continue };
                let offset = proven.layout.data + segment * geometry.block_size();
                if let Some(block) = reader.fetched.get(offset, length)
                    && let Some(&leaf) = proven.blocks.leaf(segment as usize)
                {
                    blocks.push(Block { reader: number, share: reader.share, bytes: block, leaf });
                }
                if blocks.len() == usize::from(self.cap.needed) {
                    break;
                }
            }
            let tree = self.readers.iter().find_map(|reader| reader.proven.clone());
            let Some(leaf) = tree.and_then(|proven| proven.crypttext.leaf(segment as usize).copied()) else { return };
            if blocks.len() < usize::from(self.cap.needed) {
                return;
            }
            let (code, key) = (Arc::clone(&code), self.cap.key);
            let work = move || decode(&code, &key, &geometry, segment, &blocks, &leaf);
            self.decoding.push_back((segment, self.with.pool.run_async(work)));
            self.next += 1;
        }
    }

    async fn decoded(&mut self, segment: u64, decoded: Decoded, out: &mpsc::Sender<Bytes>) -> Result<(), GetError> {
        match decoded {
            Ok(plaintext) => {
                out.send(plaintext.into()).await.map_err(|_| GetError::Unwanted)?;
                let done = segment + 1;
                for reader in &mut self.readers {
                    if let Some(proven) = &reader.proven {
                        reader.fetched.forget(proven.layout.data + done * proven.extension.geometry.block_size());
                    }
                }
                Ok(())
            }
            Err(Wrong::Segment) => Err(GetError::Segment { segment }),
            Err(Wrong::Blocks(readers)) => {
                // Again from here, with other shares in the place of these.
                self.decoding.clear();
                self.next = segment;
                for number in readers {
                    self.fail(number, &format!("block {segment} is damaged"));
                }
                Ok(())
            }
        }
    }

    /// A share is of no use, and that is worth telling.
    fn fail(&mut self, number: usize, reason: &str) {
        let reader = &self.readers[number];
        let name = self.link(reader.server).name();
        self.troubles.push(format!("share {} on {name}: {reason}", reader.share));
        self.spoil(number);
    }

    fn spoil(&mut self, number: usize) {
        let reader = &mut self.readers[number];
        reader.failed = true;
        reader.fetched.clear();
        self.spoiled.insert((reader.share, reader.server));
    }

    fn got(&mut self) -> Got {
        let used = self
            .readers
            .iter()
            .filter(|reader| !reader.failed && reader.proven.is_some())
            .map(|reader| (reader.share, self.link(reader.server).name().to_owned()))
            .collect();
        Got { used, troubles: std::mem::take(&mut self.troubles) }
    }
}

struct Block {
    reader: usize,
    share: u16,
    bytes: Bytes,
    leaf: Hash,
}

/// Checks the blocks, joins them, checks the segment, and decrypts it.
fn decode(code: &Code, key: &Key, geometry: &Geometry, segment: u64, blocks: &[Block], leaf: &Hash) -> Decoded {
    let bytes: Vec<&Bytes> = blocks.iter().map(|block| &block.bytes).collect();
    let wrong: Vec<usize> = block_leaves(&bytes)
        .iter()
        .zip(blocks)
        .filter(|(hash, block)| **hash != block.leaf)
        .map(|(_, block)| block.reader)
        .collect();
    if !wrong.is_empty() {
        return Err(Wrong::Blocks(wrong));
    }
    let numbered: Vec<(usize, &[u8])> =
        blocks.iter().map(|block| (usize::from(block.share), &block.bytes[..])).collect();
    let mut data = code.decode(&numbered).map_err(|_| Wrong::Segment)?;
    data.truncate(geometry.segment_len(segment) as usize);
    if crypttext_leaf(&data) != *leaf {
        return Err(Wrong::Segment);
    }
    let mut cipher = cipher(key);
    cipher.seek(segment * geometry.segment_size);
    cipher.apply_keystream(&mut data);
    Ok(data)
}
