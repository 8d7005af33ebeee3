//! Assigns shares to servers, and asks the servers for room.

use std::collections::{BTreeMap, BTreeSet};

use fullbore_engine::random::random;

use super::share::{Share, ShareState};
use super::{SPECULATIVE_BYTES, Upload, UploadEvent};
use crate::gbs::UploadSecret;
use crate::gbs::link::Link;
use crate::gbs::link::extra::{Distance, worthwhile};
use crate::geometry::Encoding;
use crate::placement::{Candidate, Placement, place};

impl<'a> Upload<'a> {
    /// Prepares another pass for lost shares; returns false if nothing was lost, or no server would take them.
    pub(super) fn begin_again(&mut self) -> bool {
        for share in &mut self.shares {
            if share.state == ShareState::Lost {
                let attempt = share.attempt + 1;
                *share = Share { attempt, ..Share::default() };
            }
        }
        let placement = self.placement();
        if self.reached() < usize::from(self.geometry.encoding.happy) {
            // All shares are placed, but too many on the same servers: send copies to other servers.
            for &number in placement.send.keys() {
                let share = &mut self.shares[usize::from(number)];
                if share.state == ShareState::Done {
                    *share = Share { attempt: share.attempt + 1, ..Share::default() };
                }
            }
        }
        let wanted = |number: usize| placement.send.contains_key(&(number as u16));
        let mut any = false;
        for (number, share) in self.shares.iter_mut().enumerate() {
            if share.state == ShareState::Unplaced {
                match wanted(number) {
                    true => any = true,
                    false => share.state = ShareState::Homeless,
                }
            }
        }
        any
    }

    /// The best placement, assuming that everything in flight arrives.
    pub(super) fn placement(&self) -> Placement {
        place(&self.candidates(), self.geometry.encoding.total)
    }

    /// The servers, as if everything in flight had arrived.
    fn candidates(&self) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> = self.peers.iter().map(|peer| peer.candidate.clone()).collect();
        for (number, share) in (0..).zip(&self.shares) {
            if share.is_open() {
                candidates[share.server].holds.insert(number);
            }
        }
        candidates
    }

    /// Whether too many servers have failed for the file to become happy or readable, whatever else succeeds.
    pub(super) fn is_hopeless(&self) -> bool {
        let mut candidates = self.candidates();
        for (candidate, peer) in candidates.iter_mut().zip(&self.peers) {
            // If another client puts the same file, its shares will be there.
            candidate.writable |= peer.trouble.is_none();
        }
        if candidates.iter().all(|one| one.writable) {
            return false;
        }
        let Encoding { needed, happy, total } = self.geometry.encoding;
        let best = place(&candidates, total);
        best.happiness < usize::from(happy) || usize::from(total) - best.homeless.len() < usize::from(needed)
    }

    /// Assigns a server to each unplaced share, and asks the servers for room.
    pub(super) fn assign(&mut self) {
        if !self.shares.iter().any(|share| share.state == ShareState::Unplaced) {
            return;
        }
        let placement = self.placement();
        let mut questions: BTreeMap<usize, BTreeSet<u16>> = BTreeMap::new();
        for (number, share) in (0_u16..).zip(&mut self.shares) {
            if share.state != ShareState::Unplaced {
                continue;
            }
            match placement.send.get(&number) {
                Some(&server) => {
                    questions.entry(server).or_default().insert(number);
                }
                None if placement.held.contains(&number) => {
                    share.state = ShareState::Done;
                    share.clear();
                }
                None => {
                    share.state = ShareState::Homeless;
                    share.clear();
                }
            }
        }
        for (server, shares) in questions {
            self.ask(server, &shares);
        }
    }

    pub(super) fn link(&self, peer: usize) -> &'a Link {
        self.uploader.grid.link(self.order[peer])
    }

    /// Asks a server for room for these shares.
    pub(super) fn ask(&mut self, server: usize, shares: &BTreeSet<u16>) {
        let link = self.link(server);
        let secret: UploadSecret = random();
        let seed = &self.uploader.grid.servers()[self.order[server]].lease_seed;
        let lease = self.uploader.lease.lease(&self.index, seed);
        let call = link.requests().allocate(&self.index, shares, self.share_len, &secret, &lease);
        self.peers[server].asked = true;
        self.widen(link);
        let pending = match link.try_send(call, 0) {
            Ok(Err(_)) => {
                self.blocked = true;
                return;
            }
            Ok(Ok(pending)) => pending,
            Err(error) => return self.lose_server(server, &error.reason),
        };
        if let Some(notes) = &self.notes {
            notes.asked(&self.uploader.grid.servers()[self.order[server]].id, shares, &secret);
        }
        let mut asked = BTreeMap::new();
        for &number in shares {
            let share = &mut self.shares[usize::from(number)];
            share.attempt += 1;
            share.state = ShareState::Asked;
            share.server = server;
            share.secret = secret;
            share.speculated = 0;
            share.open_writes = 0;
            share.acknowledged = 0;
            share.early_error = None;
            asked.insert(number, share.attempt);
        }
        let events = self.events.0.clone();
        self.answers.spawn(async move {
            let result = pending.reply().await;
            let _ = events.send(UploadEvent::Allocated { server, asked, result });
        });
    }

    /// Opens more connections to a server that is not near, if its share is large enough, while the first connection's
    /// handshakes and the request for room are in progress.
    fn widen(&self, link: &Link) {
        let servers = self.order.len().min(self.shares.len());
        let share_len = self.share_len;
        if share_len <= SPECULATIVE_BYTES || worthwhile(Distance::Far, share_len, servers) == 1 {
            return;
        }
        let link = link.clone();
        tokio::spawn(async move {
            for distance in [Distance::Away, Distance::Far] {
                if link.is_at(distance).await != Some(true) {
                    break;
                }
                link.widen(worthwhile(distance, share_len, servers));
            }
        });
    }

    /// Asks the servers that get no share for their lists, as the stock client does: the file may have been put when
    /// other servers came first in its order. Nothing waits for the answers, but shares that turn out to be there are
    /// given up. Small shares are complete before the answers come, so nobody is asked about them.
    pub(super) fn ask_others(&mut self) {
        if self.asked_others || self.share_len <= SPECULATIVE_BYTES {
            return;
        }
        self.asked_others = true;
        for server in (0..self.peers.len()).filter(|&server| !self.peers[server].asked) {
            let link = self.link(server).clone();
            let call = link.requests().shares(&self.index);
            let events = self.events.0.clone();
            self.answers.spawn(async move {
                let result = link.call(call).await;
                let _ = events.send(UploadEvent::Held { server, result });
            });
        }
    }

    /// Whether some server has not yet answered a request for room.
    pub(super) fn is_asking(&self) -> bool {
        self.shares.iter().any(|share| share.state == ShareState::Asked)
    }

    /// Gives up shares that turned out to be elsewhere, as far as happiness allows.
    pub(super) fn spare(&mut self) {
        let candidates: Vec<Candidate> = self.peers.iter().map(|peer| peer.candidate.clone()).collect();
        let best = place(&candidates, self.geometry.encoding.total);
        for number in 0..self.geometry.encoding.total {
            let share = &self.shares[usize::from(number)];
            // A small share is complete before it could be stopped.
            let is_small = self.share_len <= SPECULATIVE_BYTES;
            if !share.is_open() || is_small {
                continue;
            }
            let (server, secret) = (share.server, share.secret);
            let has_another = !candidates[server].holds.is_empty();
            match best.send.get(&number) {
                None if best.held.contains(&number) => {
                    self.give_up_share(server, number, &secret);
                    self.done(number);
                }
                // The share adds to happiness elsewhere: this server has another share already. It moves only once: its
                // new place is as good as any other.
                Some(&other)
                    if other != server && has_another && !share.moved && share.base == 0 && share.skip == 0 =>
                {
                    self.shares[usize::from(number)].moved = true;
                    self.give_up_share(server, number, &secret);
                    self.unplace(number);
                }
                _ => {}
            }
        }
    }
}
