//! One file on its way: its shares, the servers they go to, and what becomes of each request.
//!
//! A share is asked for at its server together with its first bytes, and the rest follows when the server
//! has said yes. Until then its bytes stay here, so that a share that is refused goes to another server at
//! once. A share that is lost later, when its beginning is no longer in memory, waits for another pass over
//! the file. The end: every share acknowledged as complete, or given up; then happiness is counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::journal::Journal;
use super::produce::Piece;
use super::source::Source;
use super::{PutError, Stored, Uploader, stopped};
use crate::lafs::cap::{Cap, Key, StorageIndex, storage_index};
use crate::lafs::code::Code;
use crate::lafs::encode::Finished;
use crate::lafs::extension::Extension;
use crate::lafs::gbs::link::{Link, LinkError, Reply};
use crate::lafs::gbs::{Allocated, Room, UploadSecret, Written, held_shares};
use crate::lafs::geometry::{Encoding, Geometry};
use crate::lafs::layout::Layout;
use crate::lafs::placement::{Candidate, Placement, happiness, place};
use crate::lafs::secrets::random;

/// Bytes of a share that are sent before its server has said that it takes it. Wasted when it does not;
/// a share of this size or less costs one round trip.
const SPECULATIVE_BYTES: u64 = 64 << 10;

/// Passes over a file: each loses at least one server, so that this ends earlier than patience does.
const PASSES: usize = 6;

/// How often a share looks for room in its server's window, when no answer came that would say so.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Segments that wait to be taken over by their shares.
const PIECES: usize = 2;

/// Time for servers to give up what was begun, when a file fails.
const ABORT_TIME: Duration = Duration::from_secs(5);

/// How often, and for how long, a share is looked for that another client seems to be uploading.
const OTHER_EVERY: Duration = Duration::from_millis(500);
const OTHER_TIME: Duration = Duration::from_secs(60);

/// Where a share stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    /// Nowhere yet.
    Unplaced,
    /// Asked for; the first bytes may be on their way.
    Asked,
    /// The server takes it.
    Allocated,
    /// It is there, complete.
    Done,
    /// Lost after its beginning had left memory.
    Lost,
    /// No server takes it.
    Homeless,
}

#[derive(Debug)]
struct Share {
    standing: Standing,
    server: usize,
    secret: UploadSecret,
    /// Counts how often it was placed: answers to earlier requests say nothing about later ones.
    attempt: u32,
    /// What is in memory, and where in the share that begins.
    pieces: VecDeque<Bytes>,
    base: u64,
    gathered: u64,
    /// The first bytes went out with the question.
    speculated: u64,
    /// Writes that are not answered, and bytes that are acknowledged.
    open_writes: u32,
    acknowledged: u64,
    /// Taken from the journal: these bytes are there and are not sent again.
    skip: u64,
}

impl Share {
    fn new() -> Share {
        Share {
            standing: Standing::Unplaced,
            server: 0,
            secret: [0; 20],
            attempt: 0,
            pieces: VecDeque::new(),
            base: 0,
            gathered: 0,
            speculated: 0,
            open_writes: 0,
            acknowledged: 0,
            skip: 0,
        }
    }

    fn wants_bytes(&self) -> bool {
        matches!(self.standing, Standing::Unplaced | Standing::Asked | Standing::Allocated)
    }

    fn is_open(&self) -> bool {
        matches!(self.standing, Standing::Asked | Standing::Allocated)
    }

    fn push(&mut self, bytes: Bytes) {
        self.gathered += bytes.len() as u64;
        self.pieces.push_back(bytes);
        self.drop_skipped();
    }

    /// Lets go of what the server has already.
    fn drop_skipped(&mut self) {
        if self.standing == Standing::Allocated && self.skip > self.base {
            let count = (self.skip - self.base).min(self.gathered);
            self.take(count);
        }
    }

    /// The first `count` bytes, which leave memory once they are acknowledged.
    fn take(&mut self, count: u64) -> Vec<Bytes> {
        let mut taken = Vec::new();
        let mut left = count;
        while left > 0 {
            let Some(mut piece) = self.pieces.pop_front() else { break };
            if piece.len() as u64 > left {
                let rest = piece.split_off(left as usize);
                self.pieces.push_front(rest);
            }
            left -= piece.len() as u64;
            taken.push(piece);
        }
        self.base += count - left;
        self.gathered -= count - left;
        taken
    }

    /// A copy of the first `count` bytes, which stay.
    fn copy(&self, count: u64) -> Vec<Bytes> {
        let mut copied = Vec::new();
        let mut left = count;
        for piece in &self.pieces {
            if left == 0 {
                break;
            }
            let length = left.min(piece.len() as u64);
            copied.push(piece.slice(..length as usize));
            left -= length;
        }
        copied
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.gathered = 0;
    }
}

/// What came back.
enum Happened {
    Allocated { server: usize, asked: BTreeMap<u16, u32>, result: Result<Reply, LinkError> },
    Wrote { share: u16, attempt: u32, range: (u64, u64), last: bool, result: Result<Reply, LinkError> },
}

/// A server of this file.
#[derive(Debug, Default)]
struct Peer {
    candidate: Candidate,
    /// It was asked for something.
    asked: bool,
    /// Asked for shares, and it took none, without saying why.
    refused: bool,
    trouble: Option<String>,
}

pub(super) struct Upload<'a> {
    uploader: &'a Uploader,
    source: Source,
    geometry: Geometry,
    key: Key,
    code: Arc<Code>,
    index: StorageIndex,
    layout: Layout,
    share_len: u64,
    /// Positions in the grid, in the order of this file.
    order: Vec<usize>,
    peers: Vec<Peer>,
    shares: Vec<Share>,
    events: (mpsc::UnboundedSender<Happened>, mpsc::UnboundedReceiver<Happened>),
    finished: Option<Box<Finished>>,
    sent_bytes: u64,
    /// A request found no room in its server's window: worth another look soon.
    blocked: bool,
    /// Some server has shares of the file: what is sent waits until it is known which ones are there.
    found: bool,
    journal: Option<Journal>,
    /// On their way.
    aborts: JoinSet<Result<(), LinkError>>,
}

impl<'a> Upload<'a> {
    pub(super) fn new(
        uploader: &'a Uploader,
        source: Source,
        geometry: Geometry,
        key: Key,
        code: Arc<Code>,
        journal: Option<Journal>,
    ) -> Upload<'a> {
        let index = storage_index(&key);
        let layout = Layout::new(&geometry);
        let total = usize::from(geometry.encoding.total);
        // The stock client asks twice as many servers as there are shares, and no more.
        let order: Vec<usize> = uploader.grid.order(&index).into_iter().take(2 * total).collect();
        let peers = order
            .iter()
            .map(|_| Peer { candidate: Candidate { writable: true, ..Candidate::default() }, ..Peer::default() })
            .collect();
        Upload {
            uploader,
            source,
            share_len: layout.share_len(Extension::length(geometry)),
            layout,
            geometry,
            key,
            code,
            index,
            order,
            peers,
            shares: (0..total).map(|_| Share::new()).collect(),
            events: mpsc::unbounded_channel(),
            finished: None,
            sent_bytes: 0,
            blocked: false,
            found: false,
            journal,
            aborts: JoinSet::new(),
        }
    }

    pub(super) async fn run(mut self) -> Result<Stored, PutError> {
        let result = self.passes().await;
        self.abort().await;
        if let Some(journal) = self.journal.take() {
            match &result {
                // An interrupted upload was given up on the servers: there is nothing to take up.
                Ok(_) | Err(PutError::Interrupted | PutError::Source(_)) => journal.remove(),
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
        if self.reached() < usize::from(self.geometry.encoding.happy) {
            self.wait_for_others().await?;
        }
        self.outcome()
    }

    /// Shares that the journal knows: they go on where they stood.
    fn take_up(&mut self) {
        let Some(journal) = &self.journal else { return };
        for known in journal.shares() {
            let server = self.order.iter().position(|&server| self.uploader.grid.servers()[server].id == known.server);
            let (Some(server), Some(share)) = (server, self.shares.get_mut(usize::from(known.share))) else { continue };
            share.standing = Standing::Allocated;
            share.server = server;
            share.secret = known.secret;
            share.skip = known.acknowledged.min(self.share_len.saturating_sub(1));
            share.acknowledged = share.skip;
            self.peers[server].asked = true;
        }
    }

    /// Lost shares are to be placed again; false when nothing was lost, or nobody would take them.
    fn begin_again(&mut self) -> bool {
        for share in &mut self.shares {
            if share.standing == Standing::Lost {
                let attempt = share.attempt + 1;
                *share = Share { attempt, ..Share::new() };
            }
        }
        let placement = self.placement();
        if self.reached() < usize::from(self.geometry.encoding.happy) {
            // All shares are somewhere, and too many of them in the same places: copies to other servers.
            for &number in placement.send.keys() {
                let share = &mut self.shares[usize::from(number)];
                if share.standing == Standing::Done {
                    *share = Share { attempt: share.attempt + 1, ..Share::new() };
                }
            }
        }
        let wanted = |number: usize| placement.send.contains_key(&(number as u16));
        let mut any = false;
        for (number, share) in self.shares.iter_mut().enumerate() {
            if share.standing == Standing::Unplaced {
                match wanted(number) {
                    true => any = true,
                    false => share.standing = Standing::Homeless,
                }
            }
        }
        any
    }

    /// One pass over the file, until every share is done or given up.
    async fn pass(&mut self) -> Result<(), PutError> {
        let header = Bytes::from(self.layout.header());
        for share in self.shares.iter_mut().filter(|share| share.wants_bytes()) {
            share.push(header.clone());
        }
        let (out, mut pieces) = mpsc::channel(PIECES);
        let (workshop, source, code) = (self.uploader.workshop.clone(), self.source.clone(), Arc::clone(&self.code));
        let (geometry, key) = (self.geometry, self.key);
        let producer = tokio::task::spawn_blocking(move || workshop.produce(&source, geometry, key, code, &out));
        let mut stop = self.uploader.stop.clone();
        let mut all_out = false;
        let mut flush = false;
        let result = loop {
            self.blocked = false;
            self.assign();
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
                }
                piece = pieces.recv(), if !all_out => match piece {
                    Some(Piece::Blocks(encoded)) => {
                        flush = false;
                        self.blocks(encoded.blocks, encoded.hashes.index, encoded.hashes.crypttext());
                    }
                    Some(Piece::Flush) => flush = true,
                    Some(Piece::Finished(finished)) => {
                        all_out = true;
                        self.trailers(&finished);
                        self.finished = Some(finished);
                    }
                    Some(Piece::Failed(error)) => break Err(error.into()),
                    None => all_out = true,
                },
                () = tokio::time::sleep(LOOK_EVERY), if self.blocked => {}
            }
        };
        // The producer ends when nobody listens.
        drop(pieces);
        let _ = producer.await;
        result
    }

    fn blocks(&mut self, blocks: Vec<Bytes>, segment: u64, leaf: &[u8; 32]) {
        for (share, block) in self.shares.iter_mut().zip(blocks) {
            if share.wants_bytes() {
                share.push(block);
            }
        }
        let known = self.journal.as_mut().is_none_or(|journal| journal.segment(segment, leaf));
        if !known {
            // The file is another one than the interrupted run read: nothing of that run counts.
            for number in 0..self.geometry.encoding.total {
                let share = &self.shares[usize::from(number)];
                if share.skip > 0 && share.is_open() {
                    let (server, secret) = (share.server, share.secret);
                    self.give_up_share(server, number, &secret);
                    self.unplace(number);
                }
            }
        }
    }

    fn trailers(&mut self, finished: &Finished) {
        for (number, share) in (0..).zip(&mut self.shares) {
            if share.wants_bytes()
                && let Some(trailer) = finished.trailer(number)
            {
                share.push(trailer.into());
            }
        }
    }

    /// What would be the best place for everything, taking for granted what is under way.
    fn placement(&self) -> Placement {
        let mut candidates: Vec<Candidate> = self.peers.iter().map(|peer| peer.candidate.clone()).collect();
        for (number, share) in (0..).zip(&self.shares) {
            if share.is_open() {
                candidates[share.server].holds.insert(number);
            }
        }
        place(&candidates, self.geometry.encoding.total)
    }

    /// Too many servers are gone for the file to become happy, whatever else goes well.
    fn is_hopeless(&self) -> bool {
        let mut candidates: Vec<Candidate> = self.peers.iter().map(|peer| peer.candidate.clone()).collect();
        for (candidate, peer) in candidates.iter_mut().zip(&self.peers) {
            // Where another client puts the same file its shares will be.
            candidate.writable |= peer.trouble.is_none();
        }
        candidates.iter().filter(|one| !one.writable).count() > 0
            && place(&candidates, self.geometry.encoding.total).happiness < usize::from(self.geometry.encoding.happy)
    }

    /// Gives each share without a server one, and asks the servers.
    fn assign(&mut self) {
        if !self.shares.iter().any(|share| share.standing == Standing::Unplaced) {
            return;
        }
        let placement = self.placement();
        let mut questions: BTreeMap<usize, BTreeSet<u16>> = BTreeMap::new();
        for (number, share) in (0_u16..).zip(&mut self.shares) {
            if share.standing != Standing::Unplaced {
                continue;
            }
            match placement.send.get(&number) {
                Some(&server) => {
                    questions.entry(server).or_default().insert(number);
                }
                None if placement.held.contains(&number) => {
                    share.standing = Standing::Done;
                    share.clear();
                }
                None => {
                    share.standing = Standing::Homeless;
                    share.clear();
                }
            }
        }
        for (server, shares) in questions {
            self.ask(server, &shares);
        }
    }

    fn link(&self, peer: usize) -> &'a Link {
        self.uploader.grid.link(self.order[peer])
    }

    /// Asks a server for room.
    fn ask(&mut self, server: usize, shares: &BTreeSet<u16>) {
        let link = self.link(server);
        let secret: UploadSecret = random();
        let seed = &self.uploader.grid.servers()[self.order[server]].lease_seed;
        let lease = self.uploader.lease.lease(&self.index, seed);
        let call = link.requests().allocate(&self.index, shares, self.share_len, &secret, &lease);
        self.peers[server].asked = true;
        let pending = match link.try_send(call, 0) {
            Ok(Err(_)) => {
                self.blocked = true;
                return;
            }
            Ok(Ok(pending)) => pending,
            Err(error) => return self.lose_server(server, &error.reason),
        };
        let mut asked = BTreeMap::new();
        for &number in shares {
            let share = &mut self.shares[usize::from(number)];
            share.attempt += 1;
            share.standing = Standing::Asked;
            share.server = server;
            share.secret = secret;
            share.speculated = 0;
            share.open_writes = 0;
            share.acknowledged = 0;
            asked.insert(number, share.attempt);
            if let Some(journal) = &mut self.journal {
                journal.asked(&self.uploader.grid.servers()[self.order[server]].id, number, &secret);
            }
        }
        let events = self.events.0.clone();
        tokio::spawn(async move {
            let result = pending.reply().await;
            let _ = events.send(Happened::Allocated { server, asked, result });
        });
    }

    /// Sends what may be sent now.
    fn send(&mut self, all_out: bool, flush: bool) {
        for number in 0..self.shares.len() {
            while self.write(number as u16, all_out, flush) {}
        }
    }

    /// One write of a share; false when there is nothing to write, or no room for it.
    fn write(&mut self, number: u16, all_out: bool, flush: bool) -> bool {
        let share = &self.shares[usize::from(number)];
        let peer = share.server;
        let link = match share.standing {
            Standing::Allocated if self.found && self.is_asking() => return false,
            Standing::Asked | Standing::Allocated => self.link(peer),
            _ => return false,
        };
        let share = &mut self.shares[usize::from(number)];
        let first = share.standing == Standing::Asked;
        let (from, body) = if first {
            // With the question, and once.
            let wanted = SPECULATIVE_BYTES.min(self.share_len);
            let enough = share.gathered >= wanted || all_out || flush;
            if share.speculated > 0 || share.gathered == 0 || !enough {
                return false;
            }
            (0, share.copy(wanted))
        } else {
            if share.speculated > 0 && share.base == 0 {
                // On its way since the question was asked. It leaves memory only here.
                if share.speculated >= self.share_len {
                    return false;
                }
                share.take(share.speculated);
            }
            let whole = share.base + share.gathered >= self.share_len;
            let wanted = link.write_bytes();
            if share.gathered == 0 || (share.gathered < wanted && !whole && !flush) {
                return false;
            }
            (share.base, share.copy(wanted.min(share.gathered)))
        };
        let length: u64 = body.iter().map(|piece| piece.len() as u64).sum();
        let call = link.requests().write(&self.index, number, from, body, &share.secret);
        let pending = match link.try_send(call, 0) {
            Ok(Err(_)) => {
                self.blocked = true;
                return false;
            }
            Ok(Ok(pending)) => pending,
            Err(error) => {
                self.lose_server(peer, &error.reason);
                return false;
            }
        };
        if first {
            share.speculated = length;
        } else {
            // What fits into one speculative write stays until it is there: it can go elsewhere at once.
            share.take(length);
        }
        share.open_writes += 1;
        let (attempt, last) = (share.attempt, from + length == self.share_len);
        let events = self.events.0.clone();
        tokio::spawn(async move {
            let result = pending.reply().await;
            let _ = events.send(Happened::Wrote { share: number, attempt, range: (from, from + length), last, result });
        });
        true
    }

    fn happened(&mut self, event: Happened) {
        match event {
            Happened::Allocated { server, asked, result } => self.allocated(server, &asked, result),
            Happened::Wrote { share, attempt, range, last, result } => {
                if self.shares[usize::from(share)].attempt == attempt {
                    self.wrote(share, range, last, result);
                }
            }
        }
    }

    fn allocated(&mut self, server: usize, asked: &BTreeMap<u16, u32>, result: Result<Reply, LinkError>) {
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return self.lose_server(server, &error.reason),
        };
        let answer = match Allocated::read(&reply.answer) {
            Ok(answer) => answer,
            Err(error) => return self.lose_server(server, &format!("asked for room: {error}")),
        };
        self.peers[server].candidate.holds.extend(&answer.already_have);
        let mut refused = 0;
        for (&number, &attempt) in asked {
            let share = &mut self.shares[usize::from(number)];
            if share.attempt != attempt || share.standing != Standing::Asked {
                continue;
            }
            if answer.allocated.contains(&number) || (reply.repeated && !answer.already_have.contains(&number)) {
                // Of a repeated question the first copy may have been heard: its writes will tell.
                share.standing = Standing::Allocated;
            } else if answer.already_have.contains(&number) {
                self.done(number);
            } else {
                refused += 1;
                share.standing = Standing::Unplaced;
            }
        }
        if refused > 0 {
            self.peers[server].candidate.writable = false;
            self.peers[server].refused = true;
        }
        self.found |= !answer.already_have.is_empty();
        if self.found && !self.is_asking() {
            self.spare();
        }
    }

    /// Some server has not said yet whether it takes a share.
    fn is_asking(&self) -> bool {
        self.shares.iter().any(|share| share.standing == Standing::Asked)
    }

    /// Shares that turned out to be elsewhere already are not sent, as far as happiness allows.
    fn spare(&mut self) {
        let candidates: Vec<Candidate> = self.peers.iter().map(|peer| peer.candidate.clone()).collect();
        let best = place(&candidates, self.geometry.encoding.total);
        for number in 0..self.geometry.encoding.total {
            let share = &self.shares[usize::from(number)];
            // A small one was there before anybody could stop it.
            let is_small = self.share_len <= SPECULATIVE_BYTES;
            if !share.is_open() || is_small {
                continue;
            }
            let (server, secret) = (share.server, share.secret);
            match best.send.get(&number) {
                None if best.held.contains(&number) => {
                    self.give_up_share(server, number, &secret);
                    self.done(number);
                }
                // It makes happier elsewhere: this server has another one already.
                Some(&other) if other != server && share.base == 0 && share.skip == 0 => {
                    self.give_up_share(server, number, &secret);
                    self.unplace(number);
                }
                _ => {}
            }
        }
    }

    fn wrote(&mut self, number: u16, range: (u64, u64), last: bool, result: Result<Reply, LinkError>) {
        let share = &mut self.shares[usize::from(number)];
        let server = share.server;
        share.open_writes = share.open_writes.saturating_sub(1);
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return self.lose_server(server, &error.reason),
        };
        let written = Written::read(&reply.answer);
        if let Ok(written) = &written {
            // Complete: the answers that are not heard of yet are good as well.
            let missing = self.share_len - share.acknowledged;
            let counted = if written.complete { missing } else { missing.min(range.1 - range.0) };
            self.sent_bytes += counted;
            share.acknowledged += counted;
        }
        // Answers are heard of in any order: the last one may have been heard of before.
        if !share.is_open() {
            return;
        }
        match written {
            Ok(written) => {
                if written.complete {
                    self.peers[server].candidate.holds.insert(number);
                    return self.done(number);
                }
                if let Some(journal) = &mut self.journal {
                    let from = written.required.iter().map(|gap| gap.0).min().unwrap_or(self.share_len);
                    journal.acknowledged(number, from, self.layout.data, self.layout.block_size);
                }
                if last && share.open_writes == 0 {
                    let gaps = written.required.len();
                    self.lose_share(number, &format!("share {number}: all bytes were sent, {gaps} ranges are missing"));
                }
            }
            // An answer to the question for room says more than that the first bytes found none.
            Err(_) if share.standing == Standing::Asked => {}
            // The first copy of a repeated write completed the share.
            Err(crate::lafs::gbs::AnswerError::Status { status: 404 }) if reply.repeated && last => {
                self.peers[server].candidate.holds.insert(number);
                self.done(number);
            }
            // The server forgot what an interrupted run began, or has it complete: ask anew.
            Err(_) if share.skip > 0 => self.unplace(number),
            Err(error) => self.lose_share(number, &format!("share {number}: {error}")),
        }
    }

    fn done(&mut self, number: u16) {
        let share = &mut self.shares[usize::from(number)];
        share.standing = Standing::Done;
        share.clear();
        if let Some(journal) = &mut self.journal {
            journal.done(number);
        }
    }

    /// A share did not get to its server, which is not asked for more of this file.
    fn lose_share(&mut self, number: u16, trouble: &str) {
        let server = self.shares[usize::from(number)].server;
        let secret = self.shares[usize::from(number)].secret;
        self.peers[server].candidate.writable = false;
        self.peers[server].trouble.get_or_insert_with(|| trouble.to_owned());
        self.give_up_share(server, number, &secret);
        self.unplace(number);
    }

    fn unplace(&mut self, number: u16) {
        let share = &mut self.shares[usize::from(number)];
        share.attempt += 1;
        if share.base == 0 && share.skip == 0 {
            share.standing = Standing::Unplaced;
        } else {
            share.standing = Standing::Lost;
            share.clear();
        }
        share.skip = 0;
    }

    /// A server is gone, and with it what is not complete there.
    fn lose_server(&mut self, server: usize, reason: &str) {
        self.peers[server].candidate.writable = false;
        self.peers[server].trouble.get_or_insert_with(|| reason.to_owned());
        for number in 0..self.geometry.encoding.total {
            let share = &self.shares[usize::from(number)];
            if share.is_open() && share.server == server {
                self.unplace(number);
            }
        }
    }

    /// Tells a server that a share will not be completed.
    fn give_up_share(&mut self, server: usize, number: u16, secret: &UploadSecret) {
        let link = self.link(server).clone();
        if link.given_up().is_none() {
            let call = link.requests().abort(&self.index, number, secret);
            self.aborts.spawn(async move { link.call(call).await.map(|_| ()) });
        }
    }

    /// Gives up all that is not complete, and waits a little for servers to confirm.
    async fn abort(&mut self) {
        for number in 0..self.geometry.encoding.total {
            let share = &self.shares[usize::from(number)];
            if share.is_open() {
                let (server, secret) = (share.server, share.secret);
                self.give_up_share(server, number, &secret);
            }
        }
        let aborts = &mut self.aborts;
        let all = async { while aborts.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(ABORT_TIME, all).await;
    }

    /// Servers with different shares.
    fn reached(&self) -> usize {
        let holds: Vec<BTreeSet<u16>> = self.peers.iter().map(|peer| peer.candidate.holds.clone()).collect();
        happiness(&holds)
    }

    /// Servers that have room and take nothing may be receiving the same file from another client: wait
    /// until its shares are there.
    async fn wait_for_others(&mut self) -> Result<(), PutError> {
        let mut busy = Vec::new();
        for (server, peer) in self.peers.iter().enumerate() {
            if peer.refused && peer.trouble.is_none() {
                let link = self.link(server);
                let room =
                    link.call(link.requests().version()).await.ok().and_then(|reply| Room::read(&reply.answer).ok());
                // A server that tells no space, or too little, is full or read-only.
                if room.is_some_and(|room| {
                    room.available.is_none_or(|space| space > self.share_len) && room.share_max >= self.share_len
                }) {
                    busy.push(server);
                }
            }
        }
        let mut stop = self.uploader.stop.clone();
        let until = tokio::time::Instant::now() + OTHER_TIME;
        while !busy.is_empty() && tokio::time::Instant::now() < until {
            for &server in &busy {
                let link = self.link(server);
                let Ok(reply) = link.call(link.requests().shares(&self.index)).await else { continue };
                if let Ok(shares) = held_shares(&reply.answer) {
                    self.peers[server].candidate.holds.extend(shares);
                }
            }
            if self.reached() >= usize::from(self.geometry.encoding.happy) {
                return Ok(());
            }
            tokio::select! {
                () = stopped(&mut stop) => return Err(PutError::Interrupted),
                () = tokio::time::sleep(OTHER_EVERY) => {}
            }
        }
        Ok(())
    }

    /// Whether the file is in the grid.
    fn outcome(&mut self) -> Result<Stored, PutError> {
        let Encoding { happy, .. } = self.geometry.encoding;
        let reached = self.reached();
        let troubles: Vec<String> = self
            .peers
            .iter()
            .enumerate()
            .filter_map(|(server, peer)| {
                let name = self.link_name(server);
                match (&peer.trouble, peer.refused) {
                    (Some(trouble), _) => Some(format!("{name}: {trouble}")),
                    (None, true) => Some(format!("{name}: takes no share (full, read-only, or another upload of it)")),
                    (None, false) => None,
                }
            })
            .collect();
        let Some(finished) = self.finished.take().filter(|_| reached >= usize::from(happy)) else {
            let asked = self.peers.iter().filter(|peer| peer.asked).count();
            return Err(PutError::Unhappy { reached, happy, asked, failed: troubles.len(), troubles });
        };
        let sent = self.shares.iter().filter(|share| share.acknowledged > 0).count();
        let held = self.shares.iter().filter(|share| share.standing == Standing::Done).count();
        Ok(Stored {
            cap: Cap::Chk(finished.cap),
            happiness: reached,
            shares: (sent, held.saturating_sub(sent)),
            sent_bytes: self.sent_bytes,
            troubles,
        })
    }

    fn link_name(&self, peer: usize) -> String {
        self.uploader.grid.servers()[self.order[peer]].name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_the_length_that_is_asked_for() {
        let geometry = Geometry::new(Encoding::new(3, 1, 10).unwrap(), 5_000_000, 1 << 20).unwrap();
        let length = Layout::new(&geometry).share_len(Extension::length(geometry));
        let code = Arc::new(Code::new(3, 10));
        assert_eq!(length, crate::lafs::encode::Encoder::new(geometry, [0; 16], code).share_len());
    }

    #[test]
    fn bytes_leave_a_share_in_order() {
        let mut share = Share::new();
        share.push(Bytes::from_static(b"abcdef"));
        share.push(Bytes::from_static(b"ghi"));
        assert_eq!(share.copy(7).concat(), b"abcdefg");
        assert_eq!(share.take(4).concat(), b"abcd");
        assert_eq!((share.base, share.gathered), (4, 5));
        assert_eq!(share.take(99).concat(), b"efghi");
        assert_eq!((share.base, share.gathered), (9, 0));
    }

    #[test]
    fn what_a_server_has_already_is_not_kept() {
        let mut share = Share { standing: Standing::Allocated, skip: 4, ..Share::new() };
        share.push(Bytes::from_static(b"abc"));
        share.push(Bytes::from_static(b"def"));
        assert_eq!((share.base, share.gathered), (4, 2));
        assert_eq!(share.copy(9).concat(), b"ef");
    }
}
