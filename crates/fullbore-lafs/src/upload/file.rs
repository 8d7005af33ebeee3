//! Uploads one file: its shares, their servers, and the result of each request.
//!
//! A share is allocated at its server and its first bytes are sent at the same time; the rest follows when the server
//! has accepted the share. Until then the first bytes stay in memory, so that a refused share can go to another server
//! at once. A share that is lost later, when its beginning is no longer in memory, waits for another pass over the
//! file. At the end every share is acknowledged as complete, or given up; then happiness is counted.

mod assignment;
mod finish;
mod share;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fullbore_engine::run::stopped;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::journal::Notes;
use super::produce::{Piece, SourceError};
use super::source::Source;
use super::{KnownShares, PutError, Stored, Uploader};
use crate::cap::{Chk, Key, StorageIndex, storage_index};
use crate::code::Code;
use crate::encode::{Finished, Input, Original};
use crate::gbs::link::{LinkError, Reply};
use crate::geometry::Geometry;
use crate::layout::Layout;
use crate::placement::Candidate;
use share::{Share, ShareState};

/// Bytes of a share sent before its server has accepted it. They are wasted if it refuses; a share of at most this size
/// costs one round trip.
const SPECULATIVE_BYTES: u64 = 64 << 10;

/// Most passes over a file: each loses at least one server, so that this ends sooner than patience does.
const PASSES: usize = 6;

/// How often a share checks its server's window if no answer came that would free it.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Segments buffered before their shares take them.
const PIECES: usize = 2;

/// An answer to a request.
enum UploadEvent {
    Allocated { server: usize, asked: BTreeMap<u16, u32>, result: Result<Reply, LinkError> },
    Wrote { share: u16, attempt: u32, range: (u64, u64), result: Result<Reply, LinkError> },
    Listed { share: u16, attempt: u32, result: Result<Reply, LinkError> },
    Held { server: usize, result: Result<Reply, LinkError> },
}

/// A server of this file.
#[derive(Debug, Default)]
struct Peer {
    candidate: Candidate,
    /// Whether a request was sent to it.
    asked: bool,
    /// Whether it was asked for room and took no share, without saying why.
    refused: bool,
    trouble: Option<String>,
}

pub(super) struct Upload<'a> {
    uploader: &'a Uploader,
    source: Source,
    geometry: Geometry,
    input: Input,
    code: Arc<Code>,
    index: StorageIndex,
    layout: Layout,
    share_len: u64,
    /// Positions in the grid, in the order of this file.
    order: Vec<usize>,
    peers: Vec<Peer>,
    shares: Vec<Share>,
    events: (mpsc::UnboundedSender<UploadEvent>, mpsc::UnboundedReceiver<UploadEvent>),
    /// The cap, once all of the content was read.
    cap: Option<Chk>,
    sent_bytes: u64,
    /// Whether a request found its server's window full: worth another try soon.
    blocked: bool,
    /// Whether some server has shares of the file: sending waits until all lists are known.
    found: bool,
    /// Whether the servers that get no share were asked for their lists.
    asked_others: bool,
    /// Notes for a run that resumes this one.
    notes: Option<Notes>,
    /// Tasks that await answers. A request not yet sent is dropped when its task ends.
    answers: JoinSet<()>,
    /// Requests to give up shares; each gives whether the server confirmed.
    aborts: JoinSet<bool>,
}

impl<'a> Upload<'a> {
    pub(super) fn new(
        uploader: &'a Uploader,
        source: Source,
        geometry: Geometry,
        key: Key,
        code: Arc<Code>,
        notes: Option<Notes>,
    ) -> Upload<'a> {
        let index = storage_index(&key);
        // Twice as many servers as shares, as the stock client does.
        let most = 2 * usize::from(geometry.encoding.total);
        let order = uploader.grid.order(&index).into_iter().take(most).collect();
        Upload::of(uploader, source, geometry, (Input::Plaintext(key), index), code, notes, order)
    }

    /// The upload of missing shares of a stored file: shares that nobody holds go to fit servers.
    pub(super) fn again(
        uploader: &'a Uploader,
        source: Source,
        original: Arc<Original>,
        code: Arc<Code>,
        known: &KnownShares,
    ) -> Upload<'a> {
        let (geometry, index) = (original.extension.geometry, known.index);
        let most = 2 * usize::from(geometry.encoding.total);
        let order = uploader.grid.order(&index).into_iter().enumerate();
        let is_asked = |position: usize, server: &usize| position < most || known.holds.contains_key(server);
        let order = order.filter(|(position, server)| is_asked(*position, server) && !known.unfit.contains(server));
        let order: Vec<usize> = order.map(|(_, server)| server).collect();
        let mut upload =
            Upload::of(uploader, source, geometry, (Input::Ciphertext(original), index), code, None, order);
        for (peer, server) in upload.peers.iter_mut().zip(&upload.order) {
            peer.candidate.holds = known.holds.get(server).cloned().unwrap_or_default();
        }
        // All servers have been asked already.
        upload.asked_others = true;
        upload
    }

    fn of(
        uploader: &'a Uploader,
        source: Source,
        geometry: Geometry,
        (input, index): (Input, StorageIndex),
        code: Arc<Code>,
        notes: Option<Notes>,
        order: Vec<usize>,
    ) -> Upload<'a> {
        let layout = Layout::new(&geometry);
        let total = usize::from(geometry.encoding.total);
        let peers = order
            .iter()
            .map(|_| Peer { candidate: Candidate { writable: true, ..Candidate::default() }, ..Peer::default() })
            .collect();
        Upload {
            uploader,
            source,
            share_len: layout.share_len(input.extension_len(geometry)),
            layout,
            geometry,
            input,
            code,
            index,
            order,
            peers,
            shares: (0..total).map(|_| Share::default()).collect(),
            events: mpsc::unbounded_channel(),
            cap: None,
            sent_bytes: 0,
            blocked: false,
            found: false,
            asked_others: false,
            notes,
            answers: JoinSet::new(),
            aborts: JoinSet::new(),
        }
    }

    pub(super) async fn run(mut self) -> Result<Stored, PutError> {
        let result = self.passes().await;
        let is_given_up = self.abort().await;
        if let Some(notes) = self.notes.take() {
            match &result {
                // Another content has another key.
                Ok(_) | Err(PutError::Source(SourceError::Changed)) => notes.ended(),
                // If all servers have confirmed that they gave up the shares, nothing is left to resume. Otherwise they
                // keep the places for the holder of the secrets; and without its random key nobody would find the
                // complete shares.
                Err(PutError::Interrupted | PutError::Source(_)) if is_given_up => notes.ended(),
                Err(_) if is_given_up && !notes.is_random() => notes.ended(),
                Err(_) => {}
            }
        }
        result
    }

    async fn passes(&mut self) -> Result<Stored, PutError> {
        self.take_up();
        for number in 0..PASSES {
            if number > 0 {
                if self.is_hopeless() || !self.source.is_repeatable() || !self.begin_again() {
                    break;
                }
                tracing::info!(pass = number + 1, "shares were lost; another pass over the file");
            }
            self.pass().await?;
        }
        if !self.is_kept() {
            self.wait_for_others().await?;
        }
        self.outcome()
    }

    /// Resumes the shares that the journal knows.
    fn take_up(&mut self) {
        let Some(notes) = &self.notes else { return };
        for known in notes.shares() {
            let server = self.order.iter().position(|&server| self.uploader.grid.servers()[server].id == known.server);
            let (Some(server), Some(share)) = (server, self.shares.get_mut(usize::from(known.share))) else { continue };
            share.state = ShareState::Allocated;
            share.server = server;
            share.secret = known.secret;
            share.skip = known.acknowledged.min(self.share_len.saturating_sub(1));
            share.acknowledged = share.skip;
            share.taken_up = true;
            self.peers[server].asked = true;
        }
    }

    /// One pass over the file, until every share is done or given up.
    async fn pass(&mut self) -> Result<(), PutError> {
        let header = Bytes::from(self.layout.header());
        for share in self.shares.iter_mut().filter(|share| share.wants_bytes()) {
            share.push(header.clone());
        }
        let (out, mut pieces) = mpsc::channel(PIECES);
        let (context, source, code) = (self.uploader.context.clone(), self.source.clone(), Arc::clone(&self.code));
        let (geometry, input) = (self.geometry, self.input.clone());
        tokio::task::spawn_blocking(move || context.produce(&source, geometry, input, code, &out));
        let mut stop = self.uploader.stop.clone();
        let mut all_out = false;
        let mut flush = false;
        let result = loop {
            self.blocked = false;
            self.assign();
            self.ask_others();
            self.send(all_out, flush);
            if self.is_hopeless() {
                break Ok(());
            }
            if all_out && !self.shares.iter().any(|share| share.wants_bytes()) {
                break Ok(());
            }
            tokio::select! {
                biased;
                () = stopped(&mut stop) => break Err(PutError::Interrupted),
                Some(event) = self.events.1.recv() => {
                    self.happened(event);
                    while let Ok(event) = self.events.1.try_recv() {
                        self.happened(event);
                    }
                    while self.answers.try_join_next().is_some() {}
                }
                piece = pieces.recv(), if !all_out => match piece {
                    Some(Piece::Blocks(encoded)) => {
                        flush = false;
                        let (index, leaf) = (encoded.hashes.index, *encoded.hashes.crypttext());
                        if let Err(error) = self.blocks(encoded.blocks, index, &leaf) {
                            break Err(error);
                        }
                    }
                    Some(Piece::Flush) => flush = true,
                    Some(Piece::Finished(finished)) => {
                        all_out = true;
                        if let Err(error) = self.read_to_its_end(finished) {
                            break Err(error);
                        }
                    }
                    Some(Piece::Failed(error)) => break Err(error.into()),
                    None => all_out = true,
                },
                () = tokio::time::sleep(LOOK_EVERY), if self.blocked => {}
            }
        };
        // Shares that nobody takes hold memory that the producer may wait for.
        self.shares.iter_mut().for_each(Share::clear);
        // The producer ends when nobody listens. It is not waited for: it may itself wait for a pipe, or for memory
        // held by requests that a server does not take.
        drop(pieces);
        result
    }

    fn blocks(&mut self, blocks: Vec<Bytes>, segment: u64, leaf: &[u8; 32]) -> Result<(), PutError> {
        for (share, block) in self.shares.iter_mut().zip(blocks) {
            if share.wants_bytes() {
                share.push(block);
            }
        }
        let known = self.notes.as_mut().is_none_or(|notes| notes.segment(segment, leaf));
        if !known {
            // A key is for one content: two contents under one key would reveal each other.
            if self.notes.as_ref().is_some_and(Notes::is_random) {
                return Err(SourceError::Changed.into());
            }
            // The file differs from the one that the interrupted run read: nothing of that run counts.
            for number in 0..self.geometry.encoding.total {
                let share = &self.shares[usize::from(number)];
                if (share.skip > 0 || share.taken_up) && share.is_open() {
                    let (server, secret) = (share.server, share.secret);
                    self.give_up_share(server, number, &secret);
                    self.unplace(number);
                }
            }
        }
        Ok(())
    }

    fn read_to_its_end(&mut self, finished: Box<Finished>) -> Result<(), PutError> {
        // Shares of an earlier pass would not match those of this one.
        if self.cap.as_ref().is_some_and(|before| *before != finished.cap) {
            return Err(SourceError::Changed.into());
        }
        for (number, share) in (0..).zip(&mut self.shares) {
            if share.wants_bytes()
                && let Some(trailer) = finished.trailer(number)
            {
                trailer.into_iter().for_each(|piece| share.push(piece));
            }
        }
        // Only the cap is kept: the hashes of a large file are megabytes, and the shares have what they need.
        self.cap = Some(finished.cap);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extension::Extension;
    use crate::gbs::Answer;
    use crate::gbs::link::LinkOptions;
    use crate::geometry::Encoding;
    use crate::secrets::LeaseSecrets;
    use crate::servers::Announcements;
    use crate::upload::Grid;
    use crate::upload::produce::{Meter, Pool, ProducerContext};
    use fullbore_engine::memory_pool::MemoryPool;
    use fullbore_engine::window::Window;
    use minicbor::Encoder;
    use minicbor::data::Tag;
    use tokio::sync::watch;

    /// An uploader whose server is never contacted.
    fn uploader() -> Uploader {
        let mut announcements = Announcements::default();
        let (pin, tub) = ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8", "a".repeat(32));
        let yaml = format!(
            "storage:\n  server:\n    ann:\n      anonymous-storage-FURL: pb://{tub}@tcp:127.0.0.1:1/x\n      \
             anonymous-storage-NURLs:\n      - pb://{pin}@127.0.0.1:1/swissnum#v=1\n"
        );
        announcements.add_servers_yaml(&yaml).unwrap();
        let options = LinkOptions::new(Duration::from_secs(1));
        let grid = Arc::new(Grid::new(announcements.servers(), Vec::new(), options));
        let memory = Window::new(1 << 20, u32::MAX);
        let context = ProducerContext {
            pool: Pool::new(1),
            memory,
            spare: MemoryPool::default(),
            meter: Arc::new(Meter::default()),
        };
        Uploader::new(grid, context, LeaseSecrets::new(b"lease"), watch::channel(false).1, None)
    }

    #[test]
    fn shares_of_two_contents_are_not_one_file() {
        let uploader = uploader();
        let geometry = Geometry::new(Encoding::new(1, 1, 1).unwrap(), 100, 1 << 20).unwrap();
        let code = Arc::new(Code::new(1, 1));
        let source = |byte| Source::Memory(Bytes::from(vec![byte; 100]));
        let mut upload = Upload::new(&uploader, source(7), geometry, [0; 16], Arc::clone(&code), None);
        let mut pass = |byte| {
            let finished = uploader.context.finish_only(&source(byte), geometry, [0; 16], Arc::clone(&code)).unwrap();
            upload.read_to_its_end(Box::new(finished))
        };
        pass(7).unwrap();
        pass(7).unwrap();
        assert!(matches!(pass(8), Err(PutError::Source(SourceError::Changed))));
    }

    #[tokio::test]
    async fn a_refused_write_is_not_forgotten_when_its_place_is_heard_of_later() {
        let uploader = uploader();
        let geometry = Geometry::new(Encoding::new(1, 1, 1).unwrap(), 300_000, 1 << 20).unwrap();
        let source = Source::Memory(Bytes::from(vec![7; 300_000]));
        let mut upload = Upload::new(&uploader, source, geometry, [0; 16], Arc::new(Code::new(1, 1)), None);
        let share = &mut upload.shares[0];
        (share.state, share.attempt, share.open_writes) = (ShareState::Asked, 1, 1);
        share.push(Bytes::from(vec![7; SPECULATIVE_BYTES as usize]));
        share.speculated = SPECULATIVE_BYTES;
        let reply = |status, body: Vec<u8>| Ok(Reply { answer: Answer { status, body: body.into() }, repeated: false });
        let mut body = Vec::new();
        let mut encoder = Encoder::new(&mut body);
        encoder.map(2).unwrap().str("already-have").unwrap().tag(Tag::new(258)).unwrap().array(0).unwrap();
        encoder.str("allocated").unwrap().tag(Tag::new(258)).unwrap().array(1).unwrap().u8(0).unwrap();
        let range = (0, SPECULATIVE_BYTES);
        upload.happened(UploadEvent::Wrote { share: 0, attempt: 1, range, result: reply(500, Vec::new()) });
        assert_eq!(upload.shares[0].state, ShareState::Asked, "the answer about its place says more");
        upload.happened(UploadEvent::Allocated { server: 0, asked: [(0, 1)].into(), result: reply(200, body) });
        assert_eq!(upload.shares[0].state, ShareState::Unplaced, "to be sent elsewhere");
        assert!(!upload.peers[0].candidate.writable);
    }

    #[test]
    fn shares_have_the_length_that_is_asked_for() {
        let geometry = Geometry::new(Encoding::new(3, 1, 10).unwrap(), 5_000_000, 1 << 20).unwrap();
        let length = Layout::new(&geometry).share_len(Extension::length(geometry));
        let code = Arc::new(Code::new(3, 10));
        assert_eq!(length, crate::encode::Encoder::new(geometry, [0; 16], code).share_len());
    }
}
