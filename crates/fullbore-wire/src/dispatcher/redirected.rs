//! Files that a host sends from another address: redirected one by one.
//!
//! The request leaves the connection on which it was answered with the redirect, and waits until a connection to
//! that address takes it over. It stays the host's: bytes, faults and silence there count as its own. But while it
//! waits it is no more than promised: another host that has nothing else to do takes it, and it is forgotten when
//! its host is to be left alone, for the address may not be good any more afterwards.

use std::time::Instant;

use super::flight::Connection;
use super::{ConnectionId, Dispatcher};
use crate::hosts::{Fault, HostId};
use crate::queue::{Segment, WantedFile};

/// Names a request that waits for a connection to its new address; never used twice.
pub type Ticket = u64;

/// Requests of one host that may wait so, and their bytes. Enough that no connection there is ever idle, and few
/// enough that an address which is good for a minute is still good when its turn comes. A guess.
const DETOURS_MAX: usize = 32;
const DETOUR_BYTES_MAX: u64 = 32 << 20;

impl Dispatcher {
    /// The answer is that the part is at another address. `None` if nobody wants it any more, or not from this host.
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

    /// A connection to an address to which this host redirects is open.
    pub(crate) fn opened_detour(&mut self, host: HostId, now: Instant) -> ConnectionId {
        self.add_connection(Connection { is_detour: true, ..Connection::to(host, now) })
    }

    /// The part is asked for on this connection now; the tag names it from here on. `None` if nobody wants it
    /// any more.
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

    /// Whether the part is still to be asked for at its address.
    pub(crate) fn awaits_detour(&self, ticket: Ticket) -> bool {
        self.detours.get(&ticket).is_some_and(|(_, asked)| asked.rest().is_some())
    }

    /// What waits of this host goes back to the queue.
    pub(super) fn take_back_detours(&mut self, host: HostId, now: Instant) {
        let own = self.detours.iter().filter(|(_, (of, _))| *of == host).map(|(ticket, _)| *ticket);
        for ticket in own.collect::<Vec<Ticket>>() {
            if let Some((_, asked)) = self.detours.remove(&ticket) {
                self.give_back(&asked, now);
            }
        }
    }

    /// A part that waits for an address to which another host redirects, the last that would be asked for there, and
    /// that this host may be asked for instead.
    pub(super) fn waiting_elsewhere(&self, host: HostId) -> Option<Ticket> {
        let ranges = self.hosts[host as usize].answers_ranges();
        let is_for_us = |part: Segment| (ranges || part.is_whole()) && !self.queue.excluded(part.item).contains(host);
        let of_others = self.detours.iter().rev().filter(|(_, (of, _))| *of != host);
        of_others.filter(|(_, (_, asked))| asked.rest().is_some_and(is_for_us)).map(|(ticket, _)| *ticket).next()
    }

    /// Such a part.
    pub(super) fn take_from_detours(&mut self, wanted: &WantedFile, now: Instant) -> Option<Segment> {
        let ticket = self.waiting_elsewhere(wanted.host)?;
        let (_, asked) = self.detours.remove(&ticket)?;
        self.give_back(&asked, now);
        self.queue.take(wanted)
    }

    /// The address cannot be reached.
    pub(crate) fn lost_detour(&mut self, ticket: Ticket, fault: &Fault, now: Instant) {
        if let Some((host, asked)) = self.detours.remove(&ticket) {
            self.settle(host, &asked, fault, now);
        }
    }

    /// Whether so much waits already that the host is asked for nothing more.
    pub(super) fn has_enough_detours(&self, host: HostId) -> bool {
        let own = || self.detours.values().filter(move |(of, _)| *of == host);
        own().count() >= DETOURS_MAX || own().map(|(_, asked)| asked.wanted()).sum::<u64>() >= DETOUR_BYTES_MAX
    }
}
