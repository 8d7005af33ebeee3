//! Lost shares and servers, shares that another client is sending, and the end of an upload.

use std::collections::BTreeSet;
use std::time::Duration;

use fullbore_engine::run::stopped;

use super::super::{PutError, Stored};
use super::share::ShareState;
use super::{Peer, Upload};
use crate::cap::Cap;
use crate::gbs::{AvailableSpace, UploadSecret, held_shares};
use crate::geometry::Encoding;
use crate::placement::happiness;

/// Time to wait for servers to confirm that they gave up shares, when a file fails.
const ABORT_TIME: Duration = Duration::from_secs(5);

/// How often to look for shares that another client seems to be uploading; the next constant is for how long.
const OTHER_EVERY: Duration = Duration::from_millis(500);
const OTHER_TIME: Duration = Duration::from_secs(60);

impl<'a> Upload<'a> {
    /// Handles a share that failed to reach its server. That server gets no more of this file.
    pub(super) fn lose_share(&mut self, number: u16, trouble: &str) {
        let server = self.shares[usize::from(number)].server;
        let secret = self.shares[usize::from(number)].secret;
        self.peers[server].candidate.writable = false;
        self.peers[server].trouble.get_or_insert_with(|| trouble.to_owned());
        self.give_up_share(server, number, &secret);
        self.unplace(number);
    }

    pub(super) fn unplace(&mut self, number: u16) {
        let share = &mut self.shares[usize::from(number)];
        share.attempt += 1;
        if share.base == 0 && share.skip == 0 {
            share.state = ShareState::Unplaced;
        } else {
            share.state = ShareState::Lost;
            share.clear();
        }
        share.skip = 0;
        share.taken_up = false;
        share.early_error = None;
    }

    /// Handles a lost server: its incomplete shares are lost.
    pub(super) fn lose_server(&mut self, server: usize, reason: &str) {
        self.peers[server].candidate.writable = false;
        self.peers[server].trouble.get_or_insert_with(|| reason.to_owned());
        // The shares are to be placed again, and no answer may come that would trigger it.
        self.blocked = true;
        for number in 0..self.geometry.encoding.total {
            let share = &self.shares[usize::from(number)];
            if share.is_open() && share.server == server {
                self.unplace(number);
            }
        }
    }

    /// Tells a server that a share will not be completed. Queued writes of the share are dropped.
    pub(super) fn give_up_share(&mut self, server: usize, number: u16, secret: &UploadSecret) {
        self.shares[usize::from(number)].waiting.drain(..).for_each(|waiting| waiting.abort());
        let link = self.link(server).clone();
        if link.given_up().is_none() {
            let call = link.requests().abort(&self.index, number, secret);
            self.aborts.spawn(async move { link.call(call).await.is_ok() });
        }
    }

    /// Gives up all incomplete shares, and waits a little for the servers; returns whether all confirmed.
    pub(super) async fn abort(&mut self) -> bool {
        // Requests that nobody awaits are not sent: giving up must not wait behind megabytes on a slow path.
        self.answers.abort_all();
        for number in 0..self.geometry.encoding.total {
            let share = &self.shares[usize::from(number)];
            if share.is_open() {
                let (server, secret) = (share.server, share.secret);
                self.give_up_share(server, number, &secret);
            }
        }
        let aborts = &mut self.aborts;
        let all = async {
            let mut all = true;
            while let Some(heard) = aborts.join_next().await {
                all &= heard.unwrap_or(false);
            }
            all
        };
        let heard = tokio::time::timeout(ABORT_TIME, all).await.unwrap_or(false);
        // Requests in flight may still arrive.
        self.aborts.detach_all();
        // A server that was given up did not hear of it, and may keep the places.
        let asked = || (0..self.peers.len()).filter(|&peer| self.peers[peer].asked);
        heard && asked().all(|peer| self.link(peer).given_up().is_none())
    }

    /// The file's shares on each server. Other numbers that a server lists are ignored.
    fn holds(&self) -> Vec<BTreeSet<u16>> {
        let total = self.geometry.encoding.total;
        let of = |peer: &Peer| peer.candidate.holds.range(..total).copied().collect();
        self.peers.iter().map(of).collect()
    }

    /// Happiness: servers with different shares.
    pub(super) fn reached(&self) -> usize {
        happiness(&self.holds())
    }

    /// Number of different shares on all servers.
    fn found(&self) -> usize {
        self.holds().into_iter().flatten().collect::<BTreeSet<u16>>().len()
    }

    /// Whether the file may get its cap: it is happy, and can be read. Happiness does not imply the latter if `happy`
    /// is below k.
    pub(super) fn is_kept(&self) -> bool {
        let Encoding { needed, happy, .. } = self.geometry.encoding;
        self.reached() >= usize::from(happy) && self.found() >= usize::from(needed)
    }

    /// Servers that have room but refuse shares may be receiving the same file from another client: waits for its
    /// shares.
    pub(super) async fn wait_for_others(&mut self) -> Result<(), PutError> {
        let mut stop = self.uploader.stop.clone();
        tokio::select! {
            () = stopped(&mut stop) => Err(PutError::Interrupted),
            () = self.look_for_others() => Ok(()),
        }
    }

    async fn look_for_others(&mut self) {
        let mut busy = Vec::new();
        for (server, peer) in self.peers.iter().enumerate() {
            if peer.refused && peer.trouble.is_none() {
                let link = self.link(server);
                let space = link
                    .call(link.requests().version())
                    .await
                    .ok()
                    .and_then(|reply| AvailableSpace::read(&reply.answer).ok());
                // A server that reports no or too little space is full or read-only.
                if space.is_some_and(|space| {
                    space.available.is_none_or(|space| space > self.share_len) && space.share_max >= self.share_len
                }) {
                    busy.push(server);
                }
            }
        }
        let until = tokio::time::Instant::now() + OTHER_TIME;
        while !busy.is_empty() && tokio::time::Instant::now() < until {
            for &server in &busy {
                let link = self.link(server);
                let Ok(reply) = link.call(link.requests().shares(&self.index)).await else { continue };
                if let Ok(shares) = held_shares(&reply.answer) {
                    self.peers[server].candidate.holds.extend(shares);
                }
            }
            if self.is_kept() {
                return;
            }
            tokio::time::sleep(OTHER_EVERY).await;
        }
    }

    /// The result: whether the file is in the grid.
    pub(super) fn outcome(&mut self) -> Result<Stored, PutError> {
        let Encoding { needed, happy, .. } = self.geometry.encoding;
        let (reached, found) = (self.reached(), self.found());
        let troubles: Vec<String> = self
            .peers
            .iter()
            .enumerate()
            .filter_map(|(server, peer)| {
                let name = self.link_name(server);
                match (&peer.trouble, peer.refused) {
                    (Some(trouble), _) => Some(format!("{name}: {trouble}")),
                    (None, true) => Some(format!(
                        "{name}: accepts no share (full, read-only, or busy with another upload of the file)"
                    )),
                    (None, false) => None,
                }
            })
            .collect();
        let is_kept = self.is_kept();
        let Some(cap) = self.cap.take().filter(|_| is_kept) else {
            let asked = self.peers.iter().filter(|peer| peer.asked).count();
            let failed = troubles.len();
            return Err(match reached >= usize::from(happy) && found < usize::from(needed) {
                true => PutError::Unreadable { found, needed, asked, failed, troubles },
                false => PutError::Unhappy { reached, happy, asked, failed, troubles },
            });
        };
        let sent = self.shares.iter().filter(|share| share.acknowledged > 0).count();
        let held = self.shares.iter().filter(|share| share.state == ShareState::Done).count();
        Ok(Stored {
            cap: Cap::Chk(cap),
            happiness: reached,
            shares: (sent, held.saturating_sub(sent)),
            sent_bytes: self.sent_bytes,
            troubles,
        })
    }

    pub(super) fn link_name(&self, peer: usize) -> String {
        self.uploader.grid.servers()[self.order[peer]].name()
    }
}
