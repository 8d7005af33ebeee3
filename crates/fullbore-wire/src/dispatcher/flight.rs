//! What a connection was asked for and still owes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::hosts::HostId;
use crate::queue::{ItemId, Segment};
use crate::rate::Rate;

/// A part in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) tag: u64,
    pub(super) segment: Segment,
    pub(super) received: u64,
    /// Bytes from here on are somebody else's now.
    pub(super) until: u64,
    /// Its item is one of files that are done with: another may have the same number now.
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

    /// Which of the present files it is of.
    pub(super) fn item_now(&self) -> Option<ItemId> {
        (!self.is_of_before).then_some(self.segment.item)
    }

    /// What of it did not arrive and is still ours to bring.
    pub(super) fn rest(&self) -> Option<Segment> {
        let empty_file = self.segment.size == 0 && self.until == 0;
        (self.wanted() > 0 || empty_file).then(|| Segment { start: self.at(), end: self.until, ..self.segment.clone() })
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) host: HostId,
    /// Small files that it owes for the large ones it was given.
    pub(super) small_due: f64,
    pub(super) asked: VecDeque<InFlight>,
    pub(super) next_tag: u64,
    pub(super) answered: u64,
    /// Requests whose answer was what was asked for; refused ones are only answered.
    pub(super) completed: u64,
    /// Requests it may be given in all, when it is to find out whether the host's known number
    /// still holds.
    pub(super) explores: Option<u64>,
    /// Not before this it looks for work to take over again.
    pub(super) hedge_again: Instant,
    pub(super) rate: Rate,
    pub(super) opened: Instant,
    pub(super) last_byte: Instant,
    pub(super) current: Option<ItemId>,
    /// It is one to another address than the host's own, to which the host redirects.
    pub(super) is_detour: bool,
}

impl Connection {
    /// One that was opened just now.
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

    /// Wanted bytes that were asked for and did not arrive yet.
    pub(super) fn owed(&self) -> u64 {
        self.asked.iter().map(InFlight::wanted).sum()
    }

    /// Bytes that will arrive although others bring them by now.
    pub(super) fn unwanted(&self) -> u64 {
        self.asked.iter().map(InFlight::unwanted).sum()
    }

    /// Bytes that will arrive, whether they are wanted or not.
    pub(super) fn outstanding(&self) -> u64 {
        self.owed() + self.unwanted()
    }

    /// Bytes that arrive until the last wanted one is there. What is not wanted any more but was asked
    /// for before it comes first all the same.
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
