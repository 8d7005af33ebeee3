//! Resolves a host name to its addresses, and connects to the one that answers first.
//!
//! Addresses of both families are tried alternately, IPv6 first, each a little after the one before, and the first
//! connection wins ("happy eyeballs", RFC 8305). So a host with a dead address costs a quarter of a second instead of a
//! time-out.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::socket::{self, Socket, SocketOptions};

/// Time between two attempts: the recommended "Connection Attempt Delay" of RFC 8305, section 5.
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Maximum number of addresses tried per host. Large mirrors have up to 8 of each family (a guess, doubled); a
/// resolver's answer may have hundreds.
pub(crate) const MAX_ADDRESSES: usize = 16;

/// Which address families are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    #[default]
    Either,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// Looks up names with the system's resolver, except names that were given fixed addresses.
#[derive(Debug, Clone, Default)]
pub struct Resolver {
    fixed: HashMap<String, Vec<IpAddr>>,
    family: Family,
}

impl Resolver {
    /// Gives `host` fixed addresses; the system's resolver is not asked for it.
    pub fn fix(&mut self, host: &str, addresses: Vec<IpAddr>) {
        self.fixed.insert(host.to_ascii_lowercase(), addresses);
    }

    /// Restricts lookups to one address family.
    pub fn only(&mut self, family: Family) {
        self.family = family;
    }

    /// The addresses of `host` in the order in which to try them; at most `MAX_ADDRESSES`.
    ///
    /// # Errors
    /// The error of the system's resolver; [`io::ErrorKind::NotFound`] if the name has no address;
    /// [`io::ErrorKind::Unsupported`] for a name in `.onion`, which is not looked up.
    pub async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let addresses = match self.fixed.get(&host.to_ascii_lowercase()) {
            Some(fixed) => fixed.iter().map(|&ip| SocketAddr::new(ip, port)).collect(),
            None if is_onion(bare) => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, ONION_REFUSED));
            }
            // The resolver's own order (RFC 6724) is kept within each family.
            None => tokio::net::lookup_host((bare, port)).await?.collect(),
        };
        let mut ordered = alternate(addresses);
        ordered.retain(|address| match self.family {
            Family::Either => true,
            Family::V4 => address.is_ipv4(),
            Family::V6 => address.is_ipv6(),
        });
        if ordered.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(ordered)
    }
}

/// Why a name in `.onion` is refused, with advice.
const ONION_REFUSED: &str = "direct connection to .onion domains is blocked: DNS must not see such a name (RFC 7686); \
     set a Tor proxy that looks the name up itself";

/// Whether DNS must not be asked for `host` (RFC 7686, section 2), in either letter case, and also with a final dot.
#[must_use]
pub fn is_onion(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    host.rsplit('.').next().is_some_and(|label| label.eq_ignore_ascii_case("onion"))
}

/// RFC 8305, section 4: alternates families, IPv6 first; no address twice.
fn alternate(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (mut six, mut four) = (Vec::new(), Vec::new());
    for address in addresses {
        let family = if address.is_ipv6() { &mut six } else { &mut four };
        if family.len() < MAX_ADDRESSES && !family.contains(&address) {
            family.push(address);
        }
    }
    let mut ordered = Vec::with_capacity(six.len() + four.len());
    let (mut six, mut four) = (six.into_iter(), four.into_iter());
    loop {
        let before = ordered.len();
        ordered.extend(six.next());
        ordered.extend(four.next());
        if ordered.len() == before {
            ordered.truncate(MAX_ADDRESSES);
            return ordered;
        }
    }
}

/// Connects to the first of `addresses` that answers. Each attempt starts `delay` after the one before, or at once if
/// that one failed. Losing attempts are aborted.
///
/// Returns `None` if all have failed. Failures are added to `failures` as they happen, so that a caller that hits its
/// time limit can still report them.
pub async fn race(
    addresses: &[SocketAddr],
    options: &SocketOptions,
    delay: Duration,
    failures: &mut Vec<(SocketAddr, io::Error)>,
) -> Option<(SocketAddr, Socket)> {
    let mut waiting = addresses.iter().copied();
    // Dropping the set, at the end or when cancelled, aborts the attempts in progress.
    let mut attempts = JoinSet::new();
    let begin = |attempts: &mut JoinSet<_>, address: SocketAddr| {
        let options = options.clone();
        attempts.spawn(async move { (address, socket::open(address, &options).await) });
    };
    loop {
        let another = waiting.next();
        if let Some(address) = another {
            begin(&mut attempts, address);
        }
        // Until the next attempt is due; after the last one there is nothing but to wait.
        let due = tokio::time::sleep(delay);
        tokio::pin!(due);
        loop {
            tokio::select! {
                () = &mut due, if waiting.len() > 0 => break,
                ended = attempts.join_next() => match ended {
                    Some(Ok((address, Ok(socket)))) => return Some((address, socket)),
                    Some(Ok((address, Err(error)))) => {
                        failures.push((address, error));
                        if waiting.len() > 0 {
                            break;
                        }
                    }
                    // An attempt's task neither panics nor is aborted while the set exists.
                    Some(Err(_)) => {}
                    None => return None,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::{DeadAddress, listen};
    use std::net::Ipv4Addr;
    use std::time::Instant;

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns_and_no_address_comes_twice() {
        let mixed = addresses(&["1.1.1.1:80", "2.2.2.2:80", "1.1.1.1:80", "3.3.3.3:80", "[::1]:80", "[::2]:80"]);
        let expected = addresses(&["[::1]:80", "1.1.1.1:80", "[::2]:80", "2.2.2.2:80", "3.3.3.3:80"]);
        assert_eq!(alternate(mixed), expected);
        assert_eq!(alternate(vec![]), vec![]);
        let many = (0..200).map(|n| SocketAddr::from(([10, 0, 0, n], 80))).collect();
        assert_eq!(alternate(many).len(), MAX_ADDRESSES);
    }

    #[tokio::test]
    async fn one_family_alone_is_looked_up() {
        let mut resolver = Resolver::default();
        resolver.fix("both.example", vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]);
        assert_eq!(resolver.lookup("both.example", 80).await.unwrap().len(), 2);
        resolver.only(Family::V4);
        assert_eq!(resolver.lookup("both.example", 80).await.unwrap(), ["192.0.2.1:80".parse().unwrap()]);
        resolver.fix("six.example", vec!["2001:db8::1".parse().unwrap()]);
        assert!(resolver.lookup("six.example", 80).await.is_err());
    }

    #[tokio::test]
    async fn onion_names_are_not_asked_of_dns() {
        let resolver = Resolver::default();
        for host in ["x.onion", "X.ONION", "x.onion.", "a.b.Onion", "onion"] {
            let error = resolver.lookup(host, 80).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{host}");
            assert!(error.to_string().contains("RFC 7686"), "{error}");
        }
        for host in ["onion.example", "xonion", "x.onions", "", "."] {
            assert!(!is_onion(host), "{host}");
        }
    }

    #[tokio::test]
    async fn literals_and_fixed_names_are_resolved_without_a_lookup() {
        let mut resolver = Resolver::default();
        resolver.fix("Mirror.Example.org", vec![Ipv4Addr::LOCALHOST.into()]);
        resolver.fix("empty.example.org", vec![]);
        for (host, address) in [
            ("127.0.0.9", "127.0.0.9:8080"),
            ("[::1]", "[::1]:8080"),
            ("::1", "[::1]:8080"),
            ("mirror.example.ORG", "127.0.0.1:8080"),
        ] {
            assert_eq!(resolver.lookup(host, 8080).await.unwrap(), addresses(&[address]), "{host}");
        }
        let error = resolver.lookup("empty.example.org", 80).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!resolver.lookup("localhost", 80).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_dead_first_address_costs_one_delay() {
        let (_listener, alive) = listen().await;
        let dead = DeadAddress::new(Ipv4Addr::new(127, 0, 0, 2), 0);
        let delay = Duration::from_millis(80);
        let mut failures = Vec::new();
        let began = Instant::now();
        let both = [dead.address, alive];
        let (peer, socket) = race(&both, &SocketOptions::default(), delay, &mut failures).await.unwrap();
        assert_eq!(peer, alive);
        assert_eq!(socket.tcp().peer_addr().unwrap(), alive);
        let took = began.elapsed();
        assert!(took >= delay && took < Duration::from_secs(5), "{took:?}");
        assert!(failures.is_empty());
    }

    #[tokio::test]
    async fn a_refusal_moves_on_at_once_and_all_failures_are_told() {
        let (_listener, alive) = listen().await;
        let refusing = listen().await.1; // its listener is gone already
        let options = SocketOptions::default();
        let delay = Duration::from_secs(5);
        let mut failures = Vec::new();
        let began = Instant::now();
        let won = race(&[refusing, alive], &options, delay, &mut failures).await;
        assert_eq!(won.unwrap().0, alive);
        assert!(began.elapsed() < Duration::from_secs(4));
        assert_eq!(failures[0].0, refusing);
        assert!(race(&[refusing, refusing], &options, delay, &mut failures).await.is_none());
        assert_eq!(failures.len(), 3);
        assert!(race(&[], &options, delay, &mut failures).await.is_none());
    }
}
