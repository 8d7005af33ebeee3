//! Writes the shares, and handles the servers' answers.

use std::collections::BTreeMap;

use super::share::ShareState;
use super::{SPECULATIVE_BYTES, Upload, UploadEvent};
use crate::gbs::link::{Link, LinkError, Reply};
use crate::gbs::{AllocateAnswer, AnswerError, WriteAnswer, held_shares};

/// Bytes of concurrent writes to one server, one per connection: less than the blocks of a share that fit in memory, so
/// that no write waits for blocks.
const WRITES_BESIDE_BYTES: u64 = 4 << 20;

impl<'a> Upload<'a> {
    /// Sends all writes that may be sent now.
    pub(super) fn send(&mut self, all_out: bool, flush: bool) {
        for number in 0..self.shares.len() {
            while self.write(number as u16, all_out, flush) {}
        }
    }

    /// Sends one write of a share; returns false if there is nothing to write, or no room for it.
    pub(super) fn write(&mut self, number: u16, all_out: bool, flush: bool) -> bool {
        let share = &self.shares[usize::from(number)];
        let peer = share.server;
        let link = match share.state {
            ShareState::Allocated if self.found && self.is_asking() => return false,
            ShareState::Asked | ShareState::Allocated => self.link(peer),
            _ => return false,
        };
        let most = self.write_bytes_max(link);
        let share = &mut self.shares[usize::from(number)];
        let first = share.state == ShareState::Asked;
        let (from, body) = if first {
            // Once, together with the request for room.
            let wanted = SPECULATIVE_BYTES.min(self.share_len);
            let enough = share.gathered >= wanted || all_out || flush;
            if share.speculated > 0 || share.gathered == 0 || !enough {
                return false;
            }
            (0, share.copy(wanted))
        } else {
            if share.speculated > 0 && share.base == 0 {
                // Sent with the request for room; the bytes leave memory only here.
                if share.speculated >= self.share_len {
                    return false;
                }
                share.take(share.speculated);
            }
            let whole = share.base + share.gathered >= self.share_len;
            let wanted = link.write_bytes().min(most);
            if share.gathered == 0 || (share.gathered < wanted && !whole && !flush) {
                return false;
            }
            (share.base, share.copy(wanted.min(share.gathered)))
        };
        let length: u64 = body.iter().map(|piece| piece.len() as u64).sum();
        let call = link.requests().write(&self.index, number, from, body, &share.secret);
        // The first bytes follow the request for room on its connection; the rest may go over any.
        let sent = if first { link.try_send(call, 0) } else { link.try_send_any(call, 0) };
        let pending = match sent {
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
            // The first bytes stay in memory until they are acknowledged: the share can go elsewhere at once.
            share.take(length);
        }
        share.open_writes += 1;
        let attempt = share.attempt;
        let events = self.events.0.clone();
        share.waiting.retain(|waiting| !waiting.is_finished());
        share.waiting.push(self.answers.spawn(async move {
            let result = pending.reply().await;
            let _ = events.send(UploadEvent::Wrote { share: number, attempt, range: (from, from + length), result });
        }));
        true
    }

    /// Most bytes of a write: with several connections each gets its part of the share.
    fn write_bytes_max(&self, link: &Link) -> u64 {
        match link.connections() as u64 {
            1 => u64::MAX,
            some => {
                let part = self.share_len.saturating_sub(SPECULATIVE_BYTES).div_ceil(some);
                part.min(WRITES_BESIDE_BYTES / some).max(SPECULATIVE_BYTES)
            }
        }
    }

    pub(super) fn happened(&mut self, event: UploadEvent) {
        match event {
            UploadEvent::Allocated { server, asked, result } => self.allocated(server, &asked, result),
            UploadEvent::Wrote { share, attempt, range, result } => {
                if self.shares[usize::from(share)].attempt == attempt {
                    self.wrote(share, range, result);
                }
            }
            UploadEvent::Listed { share, attempt, result } => {
                let asked = &self.shares[usize::from(share)];
                if asked.attempt == attempt && asked.is_open() {
                    self.listed(share, result);
                }
            }
            UploadEvent::Held { server, result } => self.held(server, result),
        }
    }

    pub(super) fn allocated(&mut self, server: usize, asked: &BTreeMap<u16, u32>, result: Result<Reply, LinkError>) {
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return self.lose_server(server, &error.reason),
        };
        let answer = match AllocateAnswer::read(&reply.answer) {
            Ok(answer) => answer,
            Err(error) => return self.lose_server(server, &format!("cannot allocate a share: {error}")),
        };
        self.peers[server].candidate.holds.extend(&answer.already_have);
        let mut refused = 0;
        let mut written_in_vain = Vec::new();
        for (&number, &attempt) in asked {
            let share = &mut self.shares[usize::from(number)];
            if share.attempt != attempt || share.state != ShareState::Asked {
                continue;
            }
            if answer.allocated.contains(&number) || (reply.repeated && !answer.already_have.contains(&number)) {
                // The first copy of a repeated request may have been processed; the writes will show it.
                share.state = ShareState::Allocated;
                written_in_vain.extend(share.early_error.take().map(|error| (number, error)));
            } else if answer.already_have.contains(&number) {
                self.done(number);
            } else {
                refused += 1;
                share.state = ShareState::Unplaced;
            }
        }
        for (number, error) in written_in_vain {
            self.lose_share(number, &error);
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

    pub(super) fn wrote(&mut self, number: u16, range: (u64, u64), result: Result<Reply, LinkError>) {
        let share = &mut self.shares[usize::from(number)];
        let server = share.server;
        share.open_writes = share.open_writes.saturating_sub(1);
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return self.lose_server(server, &error.reason),
        };
        let all_sent = share.is_all_sent(self.share_len);
        let written = WriteAnswer::read(&reply.answer);
        if let Ok(written) = &written {
            // Complete: all unanswered writes count as acknowledged.
            let missing = self.share_len - share.acknowledged;
            let counted = if written.complete { missing } else { missing.min(range.1 - range.0) };
            self.sent_bytes += counted;
            share.acknowledged += counted;
            share.taken_up = false;
        }
        // Answers come in any order: the last write may have been answered earlier.
        if !share.is_open() {
            return;
        }
        match written {
            Ok(written) => {
                if written.complete {
                    self.peers[server].candidate.holds.insert(number);
                    return self.done(number);
                }
                if let Some(notes) = &self.notes {
                    let from = written.required.iter().map(|gap| gap.0).min().unwrap_or(self.share_len);
                    notes.acknowledged(number, from, self.layout.data, self.layout.block_size);
                }
                if all_sent && share.open_writes == 0 {
                    let gaps = written.required.len();
                    self.lose_share(number, &format!("share {number}: all bytes were sent, {gaps} ranges are missing"));
                }
            }
            // The answer to the request for room says more than this error, and may still be on its way from its task.
            Err(error) if share.state == ShareState::Asked => {
                share.early_error = Some(format!("share {number}: {error}"));
            }
            // Either the first copy of a repeated write completed the share, or the server has forgotten it.
            Err(AnswerError::Status { status: 404 }) if reply.repeated && all_sent => self.look_for(number),
            // The server has forgotten what an interrupted run began, has it complete, or has other bytes of a file
            // that changed: place the share anew.
            Err(_) if share.skip > 0 || share.taken_up => {
                let secret = share.secret;
                self.give_up_share(server, number, &secret);
                self.unplace(number);
            }
            Err(error) => self.lose_share(number, &format!("share {number}: {error}")),
        }
    }

    /// Asks a server whether it has a share complete.
    fn look_for(&mut self, number: u16) {
        let share = &self.shares[usize::from(number)];
        let (link, attempt) = (self.link(share.server).clone(), share.attempt);
        let call = link.requests().shares(&self.index);
        let events = self.events.0.clone();
        self.answers.spawn(async move {
            let result = link.call(call).await;
            let _ = events.send(UploadEvent::Listed { share: number, attempt, result });
        });
    }

    fn listed(&mut self, number: u16, result: Result<Reply, LinkError>) {
        let server = self.shares[usize::from(number)].server;
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return self.lose_server(server, &error.reason),
        };
        match held_shares(&reply.answer) {
            Ok(held) if held.contains(&number) => {
                self.peers[server].candidate.holds.insert(number);
                self.done(number);
            }
            Ok(_) => self.lose_share(number, &format!("share {number}: the server has forgotten it")),
            Err(error) => self.lose_share(number, &format!("share {number}: {error}")),
        }
    }

    /// Handles the list of a server that was not asked for room. An error is ignored: the file does not need this
    /// server.
    fn held(&mut self, server: usize, result: Result<Reply, LinkError>) {
        let held = result.ok().and_then(|reply| held_shares(&reply.answer).ok()).unwrap_or_default();
        if !held.is_empty() {
            self.peers[server].candidate.holds.extend(held);
            self.found = true;
            // Shares on servers that have not answered yet are given up if they are here.
            self.spare();
        }
    }

    pub(super) fn done(&mut self, number: u16) {
        let share = &mut self.shares[usize::from(number)];
        share.state = ShareState::Done;
        share.clear();
        if let Some(notes) = &self.notes {
            notes.done(number);
        }
    }
}
