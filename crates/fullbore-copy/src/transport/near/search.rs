//! Searches for a better way than ssh's pipe: both directions of TCP at once, then more pipes.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use fullbore_wire::resolve::is_onion;

use super::opener::{Opener, streams};
use super::{ConnectSettings, RACE_TIME, Route};
use crate::transport::Transport;
use crate::transport::setup::{Decision, Hello, Way};
use crate::transport::stream::Stream;

/// Time limit for the far end to accept further connections by ssh.
const JOINT_TIME: Duration = Duration::from_secs(30);
/// Time after the race for the losers to report their reasons, as the listener names its port.
const REASON_TIME: Duration = Duration::from_millis(300);
/// Connections by ssh besides the first, if nothing else works. Four are faster than one, and sshd accepts ten
/// unauthenticated ones (sshd_config(5), `MaxStartups`).
const MORE_PIPES: u8 = 3;

/// The search that runs while messages go through the pipe.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) race: Option<Race>,
    /// Number of connections for content that the user wants; 0 for as many as the path needs.
    pub(super) streams: u8,
    pub(super) more_pipes: Option<Vec<OsString>>,
}

impl Search {
    /// Finds the best way, and starts to use it.
    pub(super) fn decide(self, transport: &Transport) -> std::io::Result<Route> {
        let began = Instant::now();
        let mut route = Route::PIPE;
        let mut first = None;
        match self.race.map(Race::winner) {
            Some(Ok((way, stream))) => (route.way, first) = (way, Some(stream)),
            Some(Err(reason)) => {
                tracing::info!(reason, "cannot connect by TCP in either direction");
                route.fallback = Some(reason);
            }
            None => {}
        }
        route.searched = began.elapsed();
        let searched_ms = route.searched.as_millis();
        let Some(mut stream) = first else {
            tracing::info!(searched_ms, "content goes by ssh");
            transport.stay_with_pipe();
            if self.more_pipes.is_some() {
                route.streams = self.streams.checked_sub(1).unwrap_or(MORE_PIPES).min(MORE_PIPES);
            }
            let ways = transport.ways();
            transport.say_way(&Decision { way: Way::Pipe, streams: route.streams })?;
            if let Some(command) = self.more_pipes.filter(|_| route.streams > 0) {
                // Without them the pipe carries everything.
                let joint = ways.recv_timeout(JOINT_TIME).ok().and_then(|json| serde_json::from_slice(&json).ok());
                route.joining = joint.map(|joint| (command, joint));
            }
            return Ok(route);
        };
        route.streams = streams(self.streams, stream.round_trip().unwrap_or_default());
        let peer = stream.socket.as_ref().and_then(|socket| socket.peer_addr().ok());
        let (round_trip, streams) = (stream.round_trip(), route.streams);
        tracing::info!(way = ?route.way, ?peer, ?round_trip, streams, searched_ms, "content goes by connections");
        if route.way == Way::FarDials {
            transport.say_way(&Decision { way: route.way, streams: route.streams })?;
        }
        stream.mark(0)?;
        transport.hand_over(stream, true);
        Ok(route)
    }
}

/// The addresses of a host. None for a name in `.onion`, which must not be sent to DNS: ssh reaches it through a proxy.
fn named(host: &str, port: u16) -> impl Iterator<Item = SocketAddr> {
    let host = host.rsplit('@').next().unwrap_or(host);
    let host = Some(host).filter(|host| !is_onion(host));
    host.and_then(|host| (host, port).to_socket_addrs().ok()).into_iter().flatten()
}

/// A race between connections in both directions.
#[derive(Debug)]
pub(super) struct Race {
    results: mpsc::Receiver<Result<(Way, Stream), String>>,
    until: Instant,
}

pub(super) fn race(opener: &Arc<Opener>, hello: &Hello, settings: &ConnectSettings) -> Race {
    let (host, ports) = (&*settings.host, settings.ports);
    let (sender, results) = mpsc::channel();
    let until = Instant::now() + RACE_TIME;
    if let Some(port) = hello.port {
        let (dialling, own) = (sender.clone(), opener.clone());
        let dial = move |address: SocketAddr| {
            let (sender, own) = (dialling.clone(), own.clone());
            std::thread::spawn(move || {
                tracing::info!(%address, "dialling");
                let stream = own.dial_first(&address).map(|stream| (Way::NearDials, stream));
                match &stream {
                    Ok(_) => tracing::info!(%address, "connected; the far end has proved its key"),
                    Err(error) => tracing::info!(%address, %error, "cannot connect"),
                }
                let _ = sender.send(stream.map_err(|error| format!("{address}: {}", said_of(&error))));
            });
        };
        // Resolving the name may take long.
        let known = hello.address.map(|address| SocketAddr::new(address, port));
        known.into_iter().for_each(&dial);
        let host = host.to_owned();
        std::thread::spawn(move || named(&host, port).filter(|named| Some(*named) != known).for_each(dial));
    } else if let Some(ports) = ports {
        let _ = sender.send(Err(format!("{host} listens on no TCP port of {ports}: none is free there")));
    }
    let own = opener.clone();
    std::thread::spawn(move || {
        let _ = sender.send(own.accept(until).map(|stream| (Way::FarDials, stream)).map_err(|error| error.to_string()));
    });
    Race { results, until }
}

/// The message for silence. The race and the system's own limit for a connection are equally long, so either may end
/// first.
fn nothing() -> String {
    format!("nothing within {} s", RACE_TIME.as_secs())
}

fn said_of(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::TimedOut { nothing() } else { error.to_string() }
}

impl Race {
    /// The first connection that proved the right key; otherwise the reasons of all failures.
    fn winner(self) -> Result<(Way, Stream), String> {
        let mut reasons = Vec::new();
        loop {
            let until = self.until + REASON_TIME;
            match self.results.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Ok(winner)) => return Ok(winner),
                Ok(Err(reason)) => reasons.push(reason),
                Err(RecvTimeoutError::Timeout) => {
                    reasons.push(nothing());
                    break;
                }
                // All attempts have failed.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Err(reasons.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        Stream::pipe(std::io::empty(), std::io::sink())
    }

    #[test]
    fn onion_names_of_far_ends_are_not_looked_up() {
        for host in ["x.onion", "user@x.ONION", "a.x.onion."] {
            assert_eq!(named(host, 22).count(), 0, "{host}");
        }
        assert_eq!(named("user@127.0.0.1", 22).count(), 1);
    }

    #[test]
    fn a_connection_that_comes_right_behind_one_that_failed_is_taken() {
        let (sender, results) = mpsc::channel();
        sender.send(Err("no".to_owned())).unwrap();
        sender.send(Ok((Way::NearDials, stream()))).unwrap();
        let won = Race { results, until: Instant::now() + RACE_TIME }.winner();
        assert!(matches!(won, Ok((Way::NearDials, _))), "{:?}", won.err());
        let (sender, results) = mpsc::channel();
        for reason in ["no", "never"] {
            sender.send(Err(reason.to_owned())).unwrap();
        }
        drop(sender);
        let lost = Race { results, until: Instant::now() + RACE_TIME }.winner();
        assert_eq!(lost.err().as_deref(), Some("no; never"));
    }
}
