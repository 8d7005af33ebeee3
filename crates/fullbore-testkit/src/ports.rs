//! Ports for servers that want to be told theirs.
//!
//! A port that was free a moment ago may be somebody else's when the server binds it: the kernel gives the same ports to
//! other tests and to outgoing connections. So these ports are none that the kernel gives, and are reserved among all
//! tests of this machine.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Below 32768, the first port that Linux gives (`net.ipv4.ip_local_port_range`), and above those of usual servers.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A free port of 127.0.0.1 that is nobody else's as long as this process lives.
///
/// # Panics
/// If none is free.
pub fn free() -> u16 {
    let count = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(97) % count;
    for step in 0..count {
        let port = PORTS.start + u16::try_from((first + step) % count).unwrap_or_default();
        // An abstract name is gone with its process, whatever becomes of that.
        let name = SocketAddr::from_abstract_name(format!("fullbore-test-port-{port}")).expect("a short name");
        let Ok(reserved) = UnixListener::bind_addr(&name) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            std::mem::forget(reserved);
            return port;
        }
    }
    panic!("no port of {PORTS:?} is free");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_can_be_bound() {
        let ports: Vec<u16> = (0..20).map(|_| free()).collect();
        let mut once = ports.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), ports.len(), "{ports:?}");
        let servers: Vec<_> = ports.iter().map(|port| TcpListener::bind(("127.0.0.1", *port))).collect();
        assert!(servers.iter().all(Result::is_ok));
    }
}
