//! Further connections to a far server. Each begins with a window of its own, so that TCP's slow start is over
//! sooner: what one connection carries in eight round trips three of them carry in seven. They are worth their
//! handshakes only where round trips are long, which the first connection's tells before anything can be sent.
//!
//! The server takes the requests of one connection in their order, and those of several in any: what depends on
//! another request goes over the first connection ([`Link::try_send`]), the rest over any ([`Link::try_send_beside`]).
//! A further connection that fails is not opened again, and what was asked over it is asked over the first.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fullbore_wire::tls::Tls;

use super::{HEAD_BYTES, Link, LinkError, LinkOptions, Pending};
use crate::lafs::gbs::Call;
use crate::lafs::servers::Server;

/// A server is far from this round trip on: one or two of them are won, and a handshake costs a server some
/// milliseconds, which many servers of a grid may have to share.
pub const FAR: Duration = Duration::from_millis(50);

/// Bytes that are worth a connection: what slow start carries in less than two round trips.
const BYTES_EACH: u64 = 36 << 10;

/// Connections to one server at most: for 1 MB three save as many round trips as four do. And to all servers of a file.
const CONNECTIONS_MAX: u64 = 3;
const CONNECTIONS_OF_A_FILE_MAX: usize = 64;

/// With so much for each it is worth more of them: a server's receive window, too, begins small for each (64 KiB, with
/// Linux), and holds slow start up for longer than the handshakes cost. Measured: 10 MB, ten servers, 100 ms: six take 0.1 s less.
const LARGE_BYTES_EACH: u64 = 512 << 10;
const CONNECTIONS_OF_LARGE_MAX: u64 = 6;

/// Connections to a far server that so many bytes are worth, if as many go to each of `servers`.
pub fn worthwhile(bytes: u64, servers: usize) -> usize {
    let most = (CONNECTIONS_OF_A_FILE_MAX / servers.max(1)).max(1);
    let large = (bytes / LARGE_BYTES_EACH).min(CONNECTIONS_OF_LARGE_MAX);
    let connections = (bytes / BYTES_EACH).clamp(1, CONNECTIONS_MAX).max(large);
    usize::try_from(connections).unwrap_or(1).min(most)
}

/// Time to open a further connection: a server that takes the first one at once and not the others will not.
pub(super) const FURTHER_LIMIT: Duration = Duration::from_secs(2);

/// What is beside a first connection.
#[derive(Debug)]
pub(super) struct Beside {
    links: Mutex<Vec<Link>>,
    /// How more are opened; nothing is beside those that are.
    opening: Option<Box<(Server, LinkOptions, Tls)>>,
}

impl Beside {
    pub(super) fn new(server: Server, options: LinkOptions, tls: Tls) -> Beside {
        Beside { links: Mutex::default(), opening: Some(Box::new((server, options, tls))) }
    }

    /// Whether this is beside a connection that is itself a further one.
    pub(super) fn is_further(&self) -> bool {
        self.opening.is_none()
    }

    pub(super) fn links(&self) -> Vec<Link> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Link {
    /// Whether the server is far; waits for the first TCP handshake. `None`: it cannot be reached.
    pub async fn is_far(&self) -> Option<bool> {
        let mut round_trip = self.shared.round_trip.subscribe();
        tokio::select! {
            told = round_trip.wait_for(Option::is_some) => told.ok()?.map(|time| time >= self.shared.far),
            () = self.queue.closed() => None,
        }
    }

    /// Sees that there are so many connections, on the present runtime.
    pub fn widen(&self, connections: usize) {
        let Some(opening) = &self.beside.opening else { return };
        let (server, options, tls) = &**opening;
        let mut links = self.beside.links.lock().unwrap_or_else(PoisonError::into_inner);
        while links.len() + 1 < connections {
            let nothing = Beside { links: Mutex::default(), opening: None };
            links.push(Link::begin(server, options, nothing, tls.clone()));
        }
    }

    /// Connections that there are, or that are being opened.
    pub fn connections(&self) -> usize {
        1 + self.beside.links().iter().filter(|link| link.given_up().is_none()).count()
    }

    /// As [`Link::try_send`], over the connection that has the least to do: for requests that may be answered
    /// before those sent earlier.
    ///
    /// # Errors
    /// When the server is given up.
    pub fn try_send_beside(&self, call: Call, answer: u64) -> Result<Result<Pending, Box<Call>>, LinkError> {
        let mut further = self.beside.links();
        further.retain(|link| link.given_up().is_none());
        let Some(least) = further.into_iter().min_by_key(|link| link.shared.flow.in_flight()) else {
            return self.try_send(call, answer);
        };
        if self.shared.flow.in_flight() <= least.shared.flow.in_flight() {
            return self.try_send(call, answer);
        }
        let weight = call.body_len().max(answer) + HEAD_BYTES;
        if !least.shared.flow.try_admit(weight) {
            return self.try_send(call, answer);
        }
        let again = call.clone();
        let pending = least.queue(call, weight);
        Ok(Ok(Pending { instead: Some(Box::new((self.clone(), again, answer))), ..pending }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bytes_are_worth_more_connections() {
        let of = |bytes| worthwhile(bytes, 10);
        assert_eq!([700, 40 << 10, 80 << 10, 334_000].map(of), [1, 1, 2, 3]);
        assert_eq!([1 << 20, 2 << 20, 3_334_000, 33_000_000].map(of), [3, 4, 6, 6]);
        assert_eq!(worthwhile(33_000_000, 20), 3, "all servers together");
        assert_eq!(worthwhile(33_000_000, 200), 1);
    }
}
