//! Which server is asked for what, and when another one is asked as well.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::ranges::{Choice, Patience, choose};
use super::reader::{Reader, ShareSection, WHOLE_MORE_BYTES};
use super::{Download, DownloadEvent, GetError, SMALL_SHARE_BYTES};
use crate::fault::TooFewShares;
use crate::placement::{Candidate, place};

/// Plaintext requested ahead of decoding, in bytes.
const AHEAD_BYTES: u64 = 24 << 20;

/// Shares read at once, unless k is more.
pub(super) const READERS: usize = 10;

/// Shares proven of a file that is not read by whole blocks. One would do, if it is good.
const PROOFS: usize = 2;

/// The requests for servers' lists of shares.
#[derive(Debug, Default)]
pub(super) struct ShareLists {
    asked: BTreeSet<usize>,
    /// When the first request was sent.
    begun: Option<Instant>,
    pub answered: usize,
}

impl ShareLists {
    fn are_awaited(&self) -> bool {
        self.answered < self.asked.len()
    }

    /// Whether answers take longer than those of a healthy server.
    fn are_late(&self) -> bool {
        self.are_awaited() && self.begun.is_some_and(|begun| begun.elapsed() >= Patience::SILENCE)
    }
}

impl Download<'_> {
    /// Assumes that shares are where a fresh upload puts them, and reads `most` of them, or k if that is more.
    pub(super) fn guess(&mut self, most: usize) {
        let fresh = vec![Candidate { writable: true, ..Candidate::default() }; self.order.len()];
        let placement = place(&fresh, self.cap.total);
        let mut servers = BTreeSet::new();
        let (first, again): (Vec<_>, Vec<_>) = placement
            .send
            .iter()
            .map(|(&share, &server)| (share, server))
            .partition(|&(_, server)| servers.insert(server));
        // A second share of a server only if there are too few servers.
        let again = again.into_iter().take(self.needed().saturating_sub(first.len()));
        let first = first.into_iter().take(most.max(self.needed()));
        let readers = (0..).zip(first.chain(again));
        self.readers = readers.map(|(position, (share, server))| Reader::new(share, server, position)).collect();
    }

    /// Asks servers for their lists of shares. With small files the servers already read from are asked first: they are
    /// connected, and another client may have put other shares there. If servers are far, or something is wrong, all
    /// are asked.
    pub(super) fn list(&mut self) {
        let is_wrong = !self.troubles.is_empty() || self.readers.iter().any(|reader| reader.slow);
        if self.is_whole && !is_wrong && !self.lists.are_late() && !self.with.is_far.load(Ordering::Relaxed) {
            let connected: Vec<usize> = self.readers.iter().map(|reader| reader.server).collect();
            connected.into_iter().for_each(|server| self.ask_list(server));
        } else {
            self.list_all();
        }
    }

    fn list_all(&mut self) {
        if self.lists.asked.len() < self.order.len() {
            (0..self.order.len()).for_each(|server| self.ask_list(server));
        }
    }

    fn ask_list(&mut self, server: usize) {
        if !self.lists.asked.insert(server) {
            return;
        }
        self.lists.begun.get_or_insert_with(Instant::now);
        let link = self.link(server).clone();
        // Enqueued before spawning, so that later requests stay behind it.
        let queued = link.try_send(link.requests().shares(&self.index), 0);
        let events = self.events.0.clone();
        tokio::spawn(async move {
            let result = match queued {
                Ok(Ok(pending)) => pending.reply().await,
                Ok(Err(call)) => link.call(*call).await,
                Err(error) => Err(error),
            };
            let _ = events.send(DownloadEvent::Listed { server, result });
        });
    }

    /// Opens readers until k different shares are read from servers that answer; more, if shares are not read as a
    /// whole.
    pub(super) fn open_more(&mut self) -> Result<(), GetError> {
        loop {
            let reading: BTreeSet<u16> = self.live().filter(|reader| !reader.slow).map(|reader| reader.share).collect();
            let is_enough = reading.len() >= self.needed();
            if is_enough && (self.is_whole || self.is_careful || reading.len() >= READERS) {
                return Ok(());
            }
            // Servers read from least come first; of their shares the lowest, as the first k need no decoding.
            let load = |server: usize| self.live().filter(|reader| reader.server == server).count();
            let is_open = |pair: (u16, usize)| self.live().any(|reader| (reader.share, reader.server) == pair);
            let is_guess = |reader: &&Reader| reader.is_untried() && !self.is_listed(reader);
            let guesses: BTreeSet<u16> = self.live().filter(is_guess).map(|reader| reader.share).collect();
            let best = self
                .holders
                .iter()
                .filter(|(share, _)| !reading.contains(share) || guesses.contains(share))
                .flat_map(|(&share, servers)| servers.iter().map(move |&server| (share, server)))
                .filter(|&pair| !self.spoiled.contains(&pair) && !is_open(pair))
                .min_by_key(|&(share, server)| (load(server), share))
                // More than k shares only if another server sends them.
                .filter(|&(_, server)| !is_enough || load(server) == 0);
            let found: BTreeSet<u16> = self.live().map(|reader| reader.share).collect();
            match best {
                Some((share, server)) => {
                    self.forget_guesses(|reader| reader.share == share);
                    self.link(server).widen(self.connections);
                    let taken: BTreeSet<u64> = self.live().map(|reader| reader.position).collect();
                    let position = (0..).find(|position| !taken.contains(position)).unwrap_or_default();
                    self.readers.push(Reader::new(share, server, position));
                }
                None if is_enough || self.lists.are_awaited() => return Ok(()),
                None if self.lists.asked.len() < self.order.len() => {
                    self.list_all();
                    return Ok(());
                }
                // Slow servers may still answer.
                None if found.len() >= self.needed() => return Ok(()),
                None => {
                    let (needed, asked) = (self.cap.needed, self.order.len());
                    let mut troubles = std::mem::take(&mut self.troubles);
                    troubles.extend(self.with.grid.not_used());
                    let damaged = self.damaged.difference(&found).count();
                    return Err(TooFewShares { found: found.len(), needed, asked, damaged, troubles }.into());
                }
            }
        }
    }

    /// Whether the server has listed the reader's share.
    pub(super) fn is_listed(&self, reader: &Reader) -> bool {
        self.holders.get(&reader.share).is_some_and(|servers| servers.contains(&reader.server))
    }

    pub(super) fn live(&self) -> impl Iterator<Item = &Reader> {
        self.readers.iter().filter(|reader| !reader.failed)
    }

    /// Sends all requests that may be sent now; returns false if a window was full.
    pub(super) fn ask(&mut self) -> bool {
        if self.is_whole {
            let mut sent_all = true;
            for number in 0..self.readers.len() {
                if !self.readers[number].failed && !self.readers[number].whole_asked {
                    sent_all &= self.request(number, ShareSection::Whole, 0, self.share_len + WHOLE_MORE_BYTES);
                }
            }
            return sent_all;
        }
        let proofs = self.ask_proofs();
        let turns = self.is_wary() || self.ask_turns();
        self.ask_parts() && proofs && turns
    }

    /// Whether shares differ from what was expected, or some server lies. Then only proven shares are read: they alone
    /// tell where their blocks are.
    fn is_wary(&self) -> bool {
        self.is_careful || self.turn > 0
    }

    /// Requests headers and hashes: of every share if blocks are read whole, otherwise of some.
    fn ask_proofs(&mut self) -> bool {
        let most = if self.cut.whole_blocks || self.is_wary() { usize::MAX } else { PROOFS };
        let mut count = 0;
        for number in 0..self.readers.len() {
            if self.readers[number].failed || self.readers[number].slow {
                continue;
            }
            if count == most {
                break;
            }
            count += 1;
            loop {
                match self.readers[number].proof_wanted(&self.cap, &self.layout) {
                    Ok(None) => break,
                    Ok(Some((what, offset, length))) => {
                        if !self.request(number, what, offset, length) {
                            return self.readers[number].failed;
                        }
                    }
                    Err(damage) => {
                        self.damage(number, &damage);
                        break;
                    }
                }
            }
        }
        true
    }

    /// Requests the parts of each reader's turn, in as many requests as it has connections.
    fn ask_turns(&mut self) -> bool {
        let done = self.next * self.geometry.block_size();
        let mut sent_all = true;
        for number in 0..self.readers.len() {
            let reader = &self.readers[number];
            if reader.failed || reader.slow || reader.had_turn {
                continue;
            }
            let (share, position) = (reader.share, reader.position);
            self.readers[number].had_turn = true;
            for parts in self.cut.turn(position) {
                // Another reader may have got the part in place of an earlier reader at this position.
                let is_needed = |part: u64| {
                    let taken = self.taken(part);
                    self.cut.range(part).end > done && taken.len() < self.needed() && !taken.contains(&share)
                };
                if !parts.clone().all(is_needed) {
                    continue;
                }
                let (begin, end) = (self.cut.range(parts.start).start, self.cut.range(parts.end - 1).end);
                if !self.request_data(number, begin..end) {
                    sent_all = false;
                    break;
                }
                parts.for_each(|part| self.asked.entry(part).or_default().push(number));
            }
        }
        sent_all
    }

    /// Requests each part from k shares.
    fn ask_parts(&mut self) -> bool {
        let from = self.next * self.geometry.block_size();
        let ahead = (AHEAD_BYTES / u64::from(self.cap.needed)).max(2 * self.geometry.block_size());
        let mut full = BTreeSet::new();
        for part in self.cut.parts(&(from.min(self.cut.data)..from.saturating_add(ahead))) {
            let range = self.cut.range(part);
            loop {
                let taken = self.taken(part);
                if taken.len() >= self.needed() {
                    break;
                }
                let able = self.able();
                let asked = self.asked.get(&part).map_or(&[][..], Vec::as_slice);
                let free = able.iter().filter(|number| !full.contains(*number) && !asked.contains(number));
                let choices = free.map(|&reader| Choice {
                    reader,
                    share: self.readers[reader].share,
                    load: if self.is_careful { 0 } else { self.load(self.readers[reader].server) },
                });
                let Some(number) = choose(choices, &taken) else { break };
                if self.request_data(number, range.clone()) {
                    self.asked.entry(part).or_default().push(number);
                } else {
                    full.insert(number);
                }
            }
        }
        full.is_empty()
    }

    /// Shares of which this part is here, or is expected.
    fn taken(&self, part: u64) -> BTreeSet<u16> {
        let range = self.cut.range(part);
        let able = self.able();
        let has = |number: &usize| {
            let reader = &self.readers[*number];
            let here = !self.is_careful && reader.fetched.get(range.start, range.end - range.start).is_some();
            !reader.failed && (here || able.contains(number))
        };
        let asked = self.asked.get(&part).map_or(&[][..], Vec::as_slice);
        asked.iter().filter(|n| has(n)).map(|&n| self.readers[n].share).collect()
    }

    /// Readers that may be asked for blocks: all that answer; in careful mode the first of each of k shares.
    fn able(&self) -> Vec<usize> {
        let is_able = |reader: &Reader| !reader.failed && !reader.slow && (reader.proven.is_some() || !self.is_wary());
        let able = (0..self.readers.len()).filter(|&number| is_able(&self.readers[number]));
        if !self.is_careful {
            return able.collect();
        }
        let mut shares = BTreeSet::new();
        able.filter(|&number| shares.insert(self.readers[number].share)).take(self.needed()).collect()
    }

    /// Bytes requested from a server and not yet received.
    fn load(&self, server: usize) -> u64 {
        self.live()
            .filter(|reader| reader.server == server)
            .flat_map(|reader| reader.pending.values())
            .map(|p| p.0)
            .sum()
    }

    /// Requests blocks, by the share's own layout if that is known.
    fn request_data(&mut self, number: usize, range: Range<u64>) -> bool {
        let layout = self.readers[number].proven.as_ref().map_or(self.layout, |proven| proven.layout);
        let length = range.end - range.start;
        self.request(number, ShareSection::Data(range.clone()), layout.data + range.start, length)
    }

    /// Sends a request; returns false if the window is full, or the server was given up.
    fn request(&mut self, number: usize, what: ShareSection, offset: u64, length: u64) -> bool {
        let reader = &self.readers[number];
        let link = self.link(reader.server);
        let call = link.requests().read(&self.index, reader.share, offset, length);
        // A small share is charged with more than its length: the requests for many files go out at once.
        let expected = if matches!(what, ShareSection::Whole) { self.share_len.max(SMALL_SHARE_BYTES) } else { length };
        let pending = match link.try_send_any(call, expected) {
            Ok(Ok(pending)) => pending,
            Ok(Err(_)) => return false,
            Err(error) => {
                self.fail(number, &error.reason);
                return false;
            }
        };
        let asked = Instant::now();
        self.readers[number].asked(&what, asked);
        let (events, turn) = (self.events.0.clone(), self.turn);
        tokio::spawn(async move {
            let result = pending.reply().await;
            let _ = events.send(DownloadEvent::Read { reader: number, what, asked, turn, result });
        });
        true
    }

    /// Marks servers that let requests wait too long: other servers are then asked for the same.
    pub(super) fn find_late(&mut self) {
        let now = Instant::now();
        for number in 0..self.readers.len() {
            let reader = &self.readers[number];
            if reader.failed || reader.slow {
                continue;
            }
            let Some(asked) = reader.waiting_since() else { continue };
            let silent = self.link(reader.server).silence(now);
            if self.patience.is_over(now.saturating_duration_since(asked), silent) {
                tracing::info!(server = self.link(reader.server).name(), ?silent, "late; others are asked as well");
                self.readers[number].slow = true;
            }
        }
    }
}
