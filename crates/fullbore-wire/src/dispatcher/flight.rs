//! The requests in flight on a connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::hosts::HostId;
use crate::queue::{ItemId, Segment};
use crate::rate::Rate;

/// A requested part.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) tag: u64,
    pub(super) segment: Segment,
    pub(super) received: u64,
    /// Bytes from this offset on were taken over by another connection.
    pub(super) until: u64,
    /// Its file belongs to a previous batch: another file may have the same number now.
    pub(super) is_of_before: bool,
}

impl InFlight {
    pub(super) fn at(&self) -> u64 {
        self.segment.start + self.received
    }

    pub(super) fn wanted(&self) -> u64 {
        self.until.saturating_sub(self.at())
    }

    pub(super) fn unwanted(&self) -> u64 {
        self.segment.end - self.at().max(self.until)
    }

    /// Number of the file, if it is of the present batch.
    pub(super) fn item_now(&self) -> Option<ItemId> {
        (!self.is_of_before).then_some(self.segment.item)
    }

    /// The missing bytes that this connection must still deliver.
    pub(super) fn rest(&self) -> Option<Segment> {
        let empty_file = self.segment.size == 0 && self.until == 0;
        (self.wanted() > 0 || empty_file).then(|| Segment { start: self.at(), end: self.until, ..self.segment.clone() })
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) host: HostId,
    /// Small files that are due for the large parts that the connection was given.
    pub(super) small_due: f64,
    pub(super) asked: VecDeque<InFlight>,
    pub(super) next_tag: u64,
    pub(super) answered: u64,
    /// Number of requests answered as requested; refused ones count in `answered` only.
    pub(super) completed: u64,
    /// Limit of requests on this connection, if it tests whether the host's known limit still holds.
    pub(super) explores: Option<u64>,
    /// Time before which the connection does not look for work to take over again.
    pub(super) hedge_again: Instant,
    pub(super) rate: Rate,
    pub(super) opened: Instant,
    pub(super) last_byte: Instant,
    pub(super) current: Option<ItemId>,
    /// Whether it leads to another address, to which the host redirects.
    pub(super) is_detour: bool,
}

impl Connection {
    /// Creates the state of a newly opened connection.
    pub(super) fn to(host: HostId, now: Instant) -> Connection {
        Connection {
            host,
            small_due: 0.0,
            asked: VecDeque::new(),
            next_tag: 0,
            answered: 0,
            completed: 0,
            explores: None,
            hedge_again: now,
            rate: Rate::new(now),
            opened: now,
            last_byte: now,
            current: None,
            is_detour: false,
        }
    }

    /// Number of wanted bytes that were requested and have not arrived.
    pub(super) fn owed(&self) -> u64 {
        self.asked.iter().map(InFlight::wanted).sum()
    }

    /// Number of bytes that will arrive although other connections deliver them.
    pub(super) fn unwanted(&self) -> u64 {
        self.asked.iter().map(InFlight::unwanted).sum()
    }

    /// Number of bytes that will arrive, wanted or not.
    pub(super) fn outstanding(&self) -> u64 {
        self.owed() + self.unwanted()
    }

    /// Number of bytes until the last wanted one, including unwanted bytes that were requested before it.
    pub(super) fn until_last_wanted(&self) -> u64 {
        let Some(last) = self.asked.iter().rposition(|asked| asked.rest().is_some()) else { return 0 };
        let before = self.asked.iter().take(last).map(|asked| asked.wanted() + asked.unwanted()).sum::<u64>();
        before + self.asked[last].wanted()
    }

    pub(super) fn owes(&self) -> bool {
        !self.asked.is_empty()
    }

    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_byte)
    }
}
