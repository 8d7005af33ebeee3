//! Shares and servers that are lost, what another client is sending, and how it ends.

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

/// Time for servers to give up what was begun, when a file fails.
const ABORT_TIME: Duration = Duration::from_secs(5);

/// How often, and for how long, a share is looked for that another client seems to be uploading.
const OTHER_EVERY: Duration = Duration::from_millis(500);
const OTHER_TIME: Duration = Duration::from_secs(60);

impl<'a> Upload<'a> {
    /// A share did not get to its server, which is not asked for more of this file.
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

    /// A server is gone, and with it what is not complete there.
    pub(super) fn lose_server(&mut self, server: usize, reason: &str) {
        self.peers[server].candidate.writable = false;
        self.peers[server].trouble.get_or_insert_with(|| reason.to_owned());
        // Its shares are to be placed again, and there may be no answer to come that would wake anybody.
        self.blocked = true;
        for number in 0..self.geometry.encoding.total {
            let share = &self.shares[usize::from(number)];
            if share.is_open() && share.server == server {
                self.unplace(number);
            }
        }
    }

    /// Tells a server that a share will not be completed. What is queued of it is not sent first.
    pub(super) fn give_up_share(&mut self, server: usize, number: u16, secret: &UploadSecret) {
        self.shares[usize::from(number)].waiting.drain(..).for_each(|waiting| waiting.abort());
        let link = self.link(server).clone();
        if link.given_up().is_none() {
            let call = link.requests().abort(&self.index, number, secret);
            self.aborts.spawn(async move { link.call(call).await.is_ok() });
        }
    }

    /// Gives up all that is not complete, and waits a little for servers to confirm: whether all of them did.
    pub(super) async fn abort(&mut self) -> bool {
        // Orders whose answers nobody awaits are not sent, so that these are not behind megabytes on a slow path.
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
        // Those that are on their way still may arrive.
        self.aborts.detach_all();
        // A server that was given up heard nothing, and may have places all the same.
        let asked = || (0..self.peers.len()).filter(|&peer| self.peers[peer].asked);
        heard && asked().all(|peer| self.link(peer).given_up().is_none())
    }

    /// The shares of the file that each server has. What else a server names is no share of it.
    fn holds(&self) -> Vec<BTreeSet<u16>> {
        let total = self.geometry.encoding.total;
        let of = |peer: &Peer| peer.candidate.holds.range(..total).copied().collect();
        self.peers.iter().map(of).collect()
    }

    /// Servers with different shares.
    pub(super) fn reached(&self) -> usize {
        happiness(&self.holds())
    }

    /// Different shares on whatever servers.
    fn found(&self) -> usize {
        self.holds().into_iter().flatten().collect::<BTreeSet<u16>>().len()
    }

    /// Whether the file may get its cap: it is happy, and it can be read. Happiness says nothing of the latter where
    /// fewer servers are asked for than shares are needed.
    pub(super) fn is_kept(&self) -> bool {
        let Encoding { needed, happy, .. } = self.geometry.encoding;
        self.reached() >= usize::from(happy) && self.found() >= usize::from(needed)
    }

    /// Servers that have room and take nothing may be receiving the same file from another client: wait
    /// until its shares are there.
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
                // A server that tells no space, or too little, is full or read-only.
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

    /// Whether the file is in the grid.
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
