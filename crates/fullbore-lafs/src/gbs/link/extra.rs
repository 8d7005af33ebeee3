//! Further connections to a far server.
//!
//! Each begins with a window of its own, so that TCP's slow start is over sooner: what one connection carries in eight
//! round trips three carry in seven. They are worth their handshakes only if round trips are long, which the first
//! connection shows before anything can be sent. For large transfers there is another reason. Of several connections on
//! one link, those that left slow start early stay behind for seconds, and a file is complete only with its slowest
//! share.
//!
//! The server processes the requests of one connection in order, and those of several in any order. A request that
//! depends on another goes over the first connection ([`Link::try_send`]), others over any (`Link::try_send_any`). A
//! further connection that fails is not opened again; its requests are repeated over the first.

use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fullbore_wire::connect::Handshake;
use fullbore_wire::tls::Tls;

use super::{HEAD_BYTES, Link, LinkError, LinkOptions, Pending};
use crate::gbs::Call;
use crate::servers::Server;

/// Least round trip of a far server. Further connections save one or two of these. A handshake costs some milliseconds
/// of processor time, which many servers of a grid may share.
pub const FAR: Duration = Duration::from_millis(50);

/// A server is away from this fraction of [`FAR`] on: further connections save too few round trips, but help large
/// shares.
const AWAY_PART: u32 = 5;

/// Round trip below which a server is near, as within a site. There a connection costs both ends more than the wait on
/// the path. Nobody waits longer than this to find out whether a server is near.
pub const NEAR: Duration = Duration::from_millis(3);

/// Bytes that two connections do not carry sooner than one: slow start sends them in two round trips (RFC 6928: 10
/// segments, then 20).
const BYTES_EACH: u64 = 30 * 1448;

/// Most connections to one server: for 1 MB three save as many round trips as four. The next constant bounds those to
/// all servers of a file.
const CONNECTIONS_MAX: u64 = 3;
const CONNECTIONS_OF_A_FILE_MAX: usize = 64;

/// From this many bytes per connection on, more connections pay. A server's receive window begins small (64 KiB with
/// Linux), and holds up slow start for longer than the handshakes take. Measurement: 10 MB, ten servers, 100 ms: six
/// take 0.1 s less.
const LARGE_BYTES_EACH: u64 = 512 << 10;
const CONNECTIONS_OF_LARGE_MAX: u64 = 6;

/// The same for servers that are away. Measurement: 100 MB, ten servers, 20 ms: 4.07 s with four connections, 4.19 s
/// with two, 4.86 s with one.
const AWAY_BYTES_EACH: u64 = 4 << 20;
const CONNECTIONS_AWAY_MAX: u64 = 4;

/// Least bytes for further connections to read from servers that are away: more than slow start carries in three round
/// trips. The next constant bounds their number over all servers. Their handshakes are over before the content begins
/// to come. Measurement: 1 MB from five servers, 20 ms: 0.145 s with four each, 0.164 s with one; from ten, 100 kB
/// each, no difference.
const AWAY_READ_BYTES: u64 = 70 * 1448;
const CONNECTIONS_AWAY_READ_MAX: u64 = 20;

/// How far a server is, if it is not near.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// A round trip of [`NEAR`] or more.
    Apart,
    /// A round trip of a fifth of [`FAR`] or more.
    Away,
    /// A round trip of [`FAR`] or more.
    Far,
}

/// Connections worth opening to a server at this distance for sending `bytes`, with as many to each of `servers`.
pub(crate) fn worthwhile(distance: Distance, bytes: u64, servers: usize) -> usize {
    let most = (CONNECTIONS_OF_A_FILE_MAX / servers.max(1)).max(1);
    let connections = match distance {
        Distance::Apart => 1,
        Distance::Away => (bytes / AWAY_BYTES_EACH).clamp(1, CONNECTIONS_AWAY_MAX),
        Distance::Far => {
            let large = (bytes / LARGE_BYTES_EACH).min(CONNECTIONS_OF_LARGE_MAX);
            bytes.div_ceil(BYTES_EACH).clamp(1, CONNECTIONS_MAX).max(large)
        }
    };
    usize::try_from(connections).unwrap_or(1).min(most)
}

/// The same for reading `bytes` from each server.
pub(crate) fn worthwhile_to_read(distance: Distance, bytes: u64, servers: usize) -> usize {
    if distance != Distance::Away {
        return worthwhile(distance, bytes, servers);
    }
    let most = CONNECTIONS_AWAY_READ_MAX / (servers as u64).max(1);
    let is_worth_it = (AWAY_READ_BYTES..AWAY_BYTES_EACH).contains(&bytes);
    let connections = if is_worth_it { bytes.div_ceil(BYTES_EACH).min(most) } else { 1 };
    usize::try_from(connections).unwrap_or(1).max(1)
}

/// Time limit to open a further connection: a server that accepts the first at once, but not the others, will not
/// accept them later.
pub(super) const FURTHER_LIMIT: Duration = Duration::from_secs(2);

/// The further connections of a link.
#[derive(Debug)]
pub(super) struct ExtraConnections {
    links: Mutex<Vec<Link>>,
    /// What is needed to open more; `None` in a further connection.
    opening: Option<Box<(Server, LinkOptions, Tls)>>,
}

impl ExtraConnections {
    pub(super) fn new(server: Server, options: LinkOptions, tls: Tls) -> ExtraConnections {
        ExtraConnections { links: Mutex::default(), opening: Some(Box::new((server, options, tls))) }
    }

    /// Whether this belongs to a further connection itself.
    pub(super) fn is_further(&self) -> bool {
        self.opening.is_none()
    }

    pub(super) fn links(&self) -> Vec<Link> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Link {
    /// Whether the server is at this distance or farther; `None` if it cannot be reached. Waits for the first TCP
    /// handshake, but only as long as that of a nearer server would take.
    pub(crate) async fn is_at(&self, distance: Distance) -> Option<bool> {
        let least = match distance {
            Distance::Apart => self.exchange.near,
            Distance::Away => self.exchange.far / AWAY_PART,
            Distance::Far => self.exchange.far,
        };
        let mut handshake = self.exchange.handshake.subscribe();
        loop {
            let until = match *handshake.borrow_and_update() {
                Handshake::Took(time) => return Some(time >= least),
                Handshake::Begun(at) => at.checked_add(least),
                Handshake::NotBegun => None,
            };
            let passed = async {
                match until {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = handshake.changed() => changed.ok()?,
                () = self.exchange.until_given_up() => return None,
                () = passed => return Some(true),
            }
        }
    }

    /// Opens further connections, on the current runtime, up to `connections` in all.
    pub fn widen(&self, connections: usize) {
        let Some(opening) = &self.extra.opening else { return };
        let (server, options, tls) = &**opening;
        let mut links = self.extra.links.lock().unwrap_or_else(PoisonError::into_inner);
        while links.len() + 1 < connections {
            let nothing = ExtraConnections { links: Mutex::default(), opening: None };
            links.push(Link::begin(server, options, nothing, tls.clone()));
        }
    }

    /// Connections open or being opened.
    pub fn connections(&self) -> usize {
        1 + self.extra.links().iter().filter(|link| link.given_up().is_none()).count()
    }

    /// As [`Link::try_send`], over the connection with the least load: for requests that may be answered before earlier
    /// ones.
    ///
    /// # Errors
    /// [`LinkError`] if the server is given up.
    pub(crate) fn try_send_any(&self, call: Call, answer: u64) -> Result<Result<Pending, Box<Call>>, LinkError> {
        let mut further = self.extra.links();
        further.retain(|link| link.given_up().is_none());
        let Some(least) = further.into_iter().min_by_key(|link| link.exchange.flow.in_flight()) else {
            return self.try_send(call, answer);
        };
        // Of equals a further connection: its bytes in flight may include requests whose answers nobody waits for.
        let in_flight = self.exchange.flow.in_flight();
        if in_flight == 0 || in_flight < least.exchange.flow.in_flight() {
            return self.try_send(call, answer);
        }
        let weight = call.body_len().max(answer) + HEAD_BYTES;
        if !least.exchange.flow.try_admit(weight) {
            return self.try_send(call, answer);
        }
        let again = call.clone();
        let Ok(pending) = least.queue(call, weight) else { return self.try_send(again, answer) };
        Ok(Ok(Pending { instead: Some(Box::new((self.clone(), again, answer))), ..pending }))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::servers::Announcements;

    #[test]
    fn more_bytes_are_worth_more_connections() {
        let of = |bytes| worthwhile(Distance::Far, bytes, 10);
        assert_eq!([0, 700, 40 << 10, 80 << 10, 100_000, 334_000].map(of), [1, 1, 1, 2, 3, 3]);
        assert_eq!([1 << 20, 2 << 20, 3_334_000, 33_000_000].map(of), [3, 4, 6, 6]);
        let far = |servers| worthwhile(Distance::Far, 33_000_000, servers);
        assert_eq!((far(20), far(200)), (3, 1), "all servers together");
        let away = |bytes| worthwhile(Distance::Away, bytes, 10);
        assert_eq!([334_000, 3_334_000, 16 << 20, 33_000_000].map(away), [1, 1, 4, 4]);
        let read = |bytes, servers| worthwhile_to_read(Distance::Away, bytes, servers);
        assert_eq!([read(100_000, 10), read(102_000, 3), read(200_000, 5), read(1_000_000, 30)], [1, 3, 4, 1]);
        assert_eq!(read(10_000_000, 10), 1, "slow start is the least of it");
    }

    /// A server without a connection.
    fn link() -> Link {
        let mut announcements = Announcements::default();
        let yaml = "storage:\n  s:\n    ann:\n      anonymous-storage-NURLs:\n      - \
                    pb://AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8@127.0.0.1:1/swissnum#v=1\n      \
                    anonymous-storage-FURL: pb://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa@tcp:127.0.0.1:1/x\n";
        announcements.add_servers_yaml(yaml).unwrap();
        let server = announcements.servers().usable.remove(0);
        let options = LinkOptions::new(Duration::from_secs(60));
        let tls = Tls::default();
        let exchange = Link::exchange(&server, &options, true, tls.clone());
        Link { exchange, extra: ExtraConnections::new(server, options, tls).into() }
    }

    #[tokio::test]
    async fn a_handshake_that_is_not_over_tells_how_far_a_server_is_at_least() {
        let link = link();
        let tell = |handshake| _ = link.exchange.handshake.send_replace(handshake);
        tell(Handshake::Begun(Instant::now() - FAR));
        assert_eq!(link.is_at(Distance::Far).await, Some(true));
        tell(Handshake::Took(FAR / 2));
        assert_eq!(link.is_at(Distance::Far).await, Some(false), "what it took says more");
        assert_eq!(link.is_at(Distance::Away).await, Some(true));
        tell(Handshake::Took(NEAR / 2));
        assert_eq!(link.is_at(Distance::Apart).await, Some(false));
        tell(Handshake::NotBegun);
        // The connection is refused.
        link.exchange.open();
        assert_eq!(link.is_at(Distance::Away).await, None);
    }
}
