//! Further connections to a far server. Each begins with a window of its own, so that TCP's slow start is over
//! sooner: what one connection carries in eight round trips three of them carry in seven. They are worth their
//! handshakes only where round trips are long, which the first connection's tells before anything can be sent.
//! For what takes many round trips there is another reason: of some connections that share a link, those that left slow start
//! early stay behind for seconds, and a file is there when its slowest share is.
//!
//! The server takes the requests of one connection in their order, and those of several in any: what depends on
//! another request goes over the first connection ([`Link::try_send`]), the rest over any ([`Link::try_send_any`]).
//! A further connection that fails is not opened again, and what was asked over it is asked over the first.

use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fullbore_wire::connect::Handshake;
use fullbore_wire::tls::Tls;

use super::{HEAD_BYTES, Link, LinkError, LinkOptions, Pending};
use crate::gbs::Call;
use crate::servers::Server;

/// A server is far from this round trip on: one or two of them are won, and a handshake costs a server some
/// milliseconds, which many servers of a grid may have to share.
pub const FAR: Duration = Duration::from_millis(50);

/// A server is away from a fifth of that on: further connections save no round trip that counts, and help large shares.
const AWAY_PART: u32 = 5;

/// A server is near below this round trip: within a site, where what a connection costs both ends is more than what is
/// waited for on the path. Who asks whether it is near waits no longer for the answer.
pub const NEAR: Duration = Duration::from_millis(3);

/// Bytes that one connection does as well as two: what slow start carries in two round trips (RFC 6928: 10 segments, then 20).
const BYTES_EACH: u64 = 30 * 1448;

/// Connections to one server at most: for 1 MB three save as many round trips as four do. And to all servers of a file.
const CONNECTIONS_MAX: u64 = 3;
const CONNECTIONS_OF_A_FILE_MAX: usize = 64;

/// With so much for each it is worth more of them: a server's receive window, too, begins small for each (64 KiB, with
/// Linux), and holds slow start up for longer than the handshakes cost. Measurement: 10 MB, ten servers, 100 ms: six take 0.1 s less.
const LARGE_BYTES_EACH: u64 = 512 << 10;
const CONNECTIONS_OF_LARGE_MAX: u64 = 6;

/// The same where servers are away. Measurement: 100 MB, ten servers, 20 ms: 4.07 s beside 4.86 with one, and 4.19 with two.
const AWAY_BYTES_EACH: u64 = 4 << 20;
const CONNECTIONS_AWAY_MAX: u64 = 4;

/// Servers that are away and send more than slow start carries in three round trips, and less than large shares, have more,
/// so many together: their handshakes are over before what is asked for begins to come. Measurement: 1 MB from five servers, 20 ms:
/// 0.145 s with four each, 0.164 with one; from ten, 100 kB each, no difference.
const AWAY_READ_BYTES: u64 = 70 * 1448;
const CONNECTIONS_AWAY_READ_MAX: u64 = 20;

/// How far a server is that is not near.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// [`NEAR`], or more.
    Apart,
    /// A fifth of [`Distance::Far`], or more.
    Away,
    /// [`FAR`], or more.
    Far,
}

/// Connections to a server at this distance that so many bytes are worth, if as many go to each of `servers`.
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

/// The same for bytes that each of them is to send.
pub(crate) fn worthwhile_to_read(distance: Distance, bytes: u64, servers: usize) -> usize {
    if distance != Distance::Away {
        return worthwhile(distance, bytes, servers);
    }
    let most = CONNECTIONS_AWAY_READ_MAX / (servers as u64).max(1);
    let is_worth_it = (AWAY_READ_BYTES..AWAY_BYTES_EACH).contains(&bytes);
    let connections = if is_worth_it { bytes.div_ceil(BYTES_EACH).min(most) } else { 1 };
    usize::try_from(connections).unwrap_or(1).max(1)
}

/// Time to open a further connection: a server that takes the first one at once and not the others will not.
pub(super) const FURTHER_LIMIT: Duration = Duration::from_secs(2);

/// What is beside a first connection.
#[derive(Debug)]
pub(super) struct ExtraConnections {
    links: Mutex<Vec<Link>>,
    /// How more are opened; nothing is beside those that are.
    opening: Option<Box<(Server, LinkOptions, Tls)>>,
}

impl ExtraConnections {
    pub(super) fn new(server: Server, options: LinkOptions, tls: Tls) -> ExtraConnections {
        ExtraConnections { links: Mutex::default(), opening: Some(Box::new((server, options, tls))) }
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
    /// Whether the server is as far as this, or farther; waits for the first TCP handshake, or until it takes longer than
    /// one would with a server that is nearer. `None`: it cannot be reached.
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

    /// Sees that there are so many connections, on the present runtime.
    pub fn widen(&self, connections: usize) {
        let Some(opening) = &self.extra.opening else { return };
        let (server, options, tls) = &**opening;
        let mut links = self.extra.links.lock().unwrap_or_else(PoisonError::into_inner);
        while links.len() + 1 < connections {
            let nothing = ExtraConnections { links: Mutex::default(), opening: None };
            links.push(Link::begin(server, options, nothing, tls.clone()));
        }
    }

    /// Connections that there are, or that are being opened.
    pub fn connections(&self) -> usize {
        1 + self.extra.links().iter().filter(|link| link.given_up().is_none()).count()
    }

    /// As [`Link::try_send`], over the connection that has the least to do: for requests that may be answered
    /// before those sent earlier.
    ///
    /// # Errors
    /// When the server is given up.
    pub(crate) fn try_send_any(&self, call: Call, answer: u64) -> Result<Result<Pending, Box<Call>>, LinkError> {
        let mut further = self.extra.links();
        further.retain(|link| link.given_up().is_none());
        let Some(least) = further.into_iter().min_by_key(|link| link.exchange.flow.in_flight()) else {
            return self.try_send(call, answer);
        };
        // Of equals one that is further: what a reader asked it for in vain is still counted there, where answers come later.
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

    /// A server to which there is no connection.
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
