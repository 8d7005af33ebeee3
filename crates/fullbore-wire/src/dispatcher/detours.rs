//! Files that a host sends from another address: redirected one by one.
//!
//! The request leaves the connection on which it was answered with the redirect, and waits until a connection to
//! that address takes it over. It stays the host's: bytes, faults and silence there count as its own.

use std::time::Instant;

use super::flight::Connection;
use super::{ConnectionId, Dispatcher};
use crate::hosts::{Fault, HostId};

/// Names a request that waits for a connection to its new address; never used twice.
pub type Ticket = u64;

/// Requests of one host that may wait so, and their bytes. Enough that no connection there is ever idle, and few
/// enough that an address which is good for a minute is still good when its turn comes. A guess.
const DETOURS_MAX: usize = 32;
const DETOUR_BYTES_MAX: u64 = 32 << 20;

impl Dispatcher {
    /// The answer is that the part is at another address. `None` if nobody wants it any more.
    pub fn detour(&mut self, id: ConnectionId, tag: u64, now: Instant) -> Option<Ticket> {
        let connection = self.connections.get_mut(&id)?;
        connection.answered += 1;
        connection.last_byte = now;
        let place = connection.asked.iter().position(|asked| asked.tag == tag)?;
        let asked = connection.asked.remove(place).expect("position was just found");
        let host = connection.host;
        asked.rest()?;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.detours.insert(ticket, (host, asked));
        Some(ticket)
    }

    /// A connection to an address to which this host redirects is open.
    pub fn opened_detour(&mut self, host: HostId, now: Instant) -> ConnectionId {
        self.add_connection(Connection { is_detour: true, ..Connection::to(host, now) })
    }

    /// The part is asked for on this connection now; the tag names it from here on. `None` if nobody wants it
    /// any more.
    pub fn take_detour(&mut self, ticket: Ticket, id: ConnectionId, now: Instant) -> Option<u64> {
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

    /// The address cannot be reached.
    pub fn lost_detour(&mut self, ticket: Ticket, fault: &Fault, now: Instant) {
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
