//! Files that a host redirects one by one to another address.
//!
//! A redirected request leaves the connection that answered it, and waits until a connection to the new address takes
//! it over. It still counts for the host: bytes, faults and silence there are the host's. While it waits, it is only
//! reserved: another host that is idle may take it. If its host must be left alone, the request goes back to the queue,
//! because the address may expire meanwhile.

use std::time::Instant;

use super::flight::Connection;
use super::{ConnectionId, Dispatcher};
use crate::hosts::{Fault, HostId};
use crate::queue::{Segment, WantedFile};

/// Names a request that waits for a connection to its new address; unique within a run.
pub type Ticket = u64;

/// Maximum number of waiting requests per host, and of their bytes. Enough to keep every connection busy; few enough
/// that an address that is valid for a minute has not expired when its turn comes. A guess.
const DETOURS_MAX: usize = 32;
const DETOUR_BYTES_MAX: u64 = 32 << 20;

impl Dispatcher {
    /// Records that a part is at another address. `None` if it is not wanted any more, or not from this host.
    pub(crate) fn detour(&mut self, id: ConnectionId, tag: u64, now: Instant) -> Option<Ticket> {
        let connection = self.connections.get_mut(&id)?;
        connection.answered += 1;
        connection.last_byte = now;
        let place = connection.asked.iter().position(|asked| asked.tag == tag)?;
        let asked = connection.asked.remove(place).expect("position was just found");
        let host = connection.host;
        asked.rest()?;
        if !self.may_be_asked(host, now) {
            self.give_back(&asked, now);
            return None;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.detours.insert(ticket, (host, asked));
        Some(ticket)
    }

    /// Registers a connection to an address to which this host redirects.
    pub(crate) fn opened_detour(&mut self, host: HostId, now: Instant) -> ConnectionId {
        self.add_connection(Connection { is_detour: true, ..Connection::to(host, now) })
    }

    /// Moves a waiting request to this connection and returns its new tag. `None` if the part is not wanted any more.
    pub(crate) fn take_detour(&mut self, ticket: Ticket, id: ConnectionId, now: Instant) -> Option<u64> {
        let (host, mut asked) = self.detours.remove(&ticket)?;
        asked.rest()?;
        let Some(connection) = self.connections.get_mut(&id) else {
            self.give_back(&asked, now);
            return None;
        };
        if !connection.owes() {
            connection.last_byte = now;
            connection.rate.restart(now);
        }
        asked.tag = connection.next_tag;
        connection.next_tag += 1;
        let tag = asked.tag;
        connection.asked.push_back(asked);
        self.hosts[host as usize].totals.requests += 1;
        Some(tag)
    }

    /// Whether the request still waits for its new address.
    pub(crate) fn awaits_detour(&self, ticket: Ticket) -> bool {
        self.detours.get(&ticket).is_some_and(|(_, asked)| asked.rest().is_some())
    }

    /// Returns the waiting requests of this host to the queue.
    pub(super) fn take_back_detours(&mut self, host: HostId, now: Instant) {
        let own = self.detours.iter().filter(|(_, (of, _))| *of == host).map(|(ticket, _)| *ticket);
        for ticket in own.collect::<Vec<Ticket>>() {
            if let Some((_, asked)) = self.detours.remove(&ticket) {
                self.give_back(&asked, now);
            }
        }
    }

    /// A waiting request of another host that this host may serve instead: the one whose turn would come last.
    pub(super) fn waiting_elsewhere(&self, host: HostId) -> Option<Ticket> {
        let ranges = self.hosts[host as usize].answers_ranges();
        let is_for_us = |part: Segment| (ranges || part.is_whole()) && !self.queue.excluded(part.item).contains(host);
        let of_others = self.detours.iter().rev().filter(|(_, (of, _))| *of != host);
        of_others.filter(|(_, (_, asked))| asked.rest().is_some_and(is_for_us)).map(|(ticket, _)| *ticket).next()
    }

    /// Takes such a part over.
    pub(super) fn take_from_detours(&mut self, wanted: &WantedFile, now: Instant) -> Option<Segment> {
        let ticket = self.waiting_elsewhere(wanted.host)?;
        let (_, asked) = self.detours.remove(&ticket)?;
        self.give_back(&asked, now);
        self.queue.take(wanted)
    }

    /// Records that the new address cannot be reached.
    pub(crate) fn lost_detour(&mut self, ticket: Ticket, fault: &Fault, now: Instant) {
        if let Some((host, asked)) = self.detours.remove(&ticket) {
            self.settle(host, &asked, fault, now);
        }
    }

    /// Whether enough requests wait already, so that the host gets no more.
    pub(super) fn has_enough_detours(&self, host: HostId) -> bool {
        let own = || self.detours.values().filter(move |(of, _)| *of == host);
        own().count() >= DETOURS_MAX || own().map(|(_, asked)| asked.wanted()).sum::<u64>() >= DETOUR_BYTES_MAX
    }
}
