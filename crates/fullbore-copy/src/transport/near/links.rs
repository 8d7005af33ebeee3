//! Opens further connections for content, and more of them while they make the copy faster.

use std::io::Write as _;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::Route;
use super::opener::Opener;
use crate::transport::grow::{self, Growth, Step};
use crate::transport::setup::{Decision, Way};
use crate::transport::stream::Stream;
use crate::transport::{Transport, join};

/// Opens connections for content.
pub(super) struct Links {
    pub(super) opener: Arc<Opener>,
    pub(super) transport: Arc<Transport>,
    pub(super) children: Arc<Mutex<Vec<Child>>>,
}

impl Links {
    pub(super) fn open(&self, route: &Route, from: u8, to: u8) {
        for number in from..=to {
            let transport = self.transport.clone();
            if route.way == Way::Pipe {
                let Some((command, joint)) = route.joining.clone() else { break };
                let children = self.children.clone();
                std::thread::spawn(move || match join::dial(&command, &joint, &children) {
                    Ok(stream) => transport.add(stream),
                    // The copy works with one less: the first one carries everything.
                    Err(error) => tracing::info!(%error, "a further connection by ssh failed"),
                });
                continue;
            }
            let (opener, way) = (self.opener.clone(), route.way);
            std::thread::spawn(move || {
                // The copy works with one less, unless it is the only one.
                match opener.open(way).and_then(|mut stream| stream.mark(number).map(|()| stream)) {
                    Ok(stream) if !transport.is_over() => transport.add(stream),
                    Ok(_) => {}
                    Err(error) if number == 1 => transport.fail(&error),
                    Err(error) => tracing::info!(%error, number, "a connection failed"),
                }
            });
        }
    }

    /// Opens more connections while they make the copy faster.
    pub(super) fn grow(&self, route: &Route, mut growth: Growth) {
        let transport = &self.transport;
        let rate = || {
            std::thread::sleep(grow::SETTLE);
            let (before, since) = (transport.moved_bytes(), Instant::now());
            std::thread::sleep(grow::TRIAL);
            transport.moved_bytes().saturating_sub(before) as f64 / since.elapsed().as_secs_f64()
        };
        loop {
            let rate = rate();
            // Nothing can be learned while no data moves.
            if transport.is_over() || rate > 0.0 && self.more(route, &mut growth, rate).is_err() {
                return;
            }
        }
    }

    /// Opens more connections if this rate calls for them. Returns whether it did.
    pub(super) fn more(&self, route: &Route, growth: &mut Growth, bytes_per_s: f64) -> std::io::Result<bool> {
        let (transport, way, now) = (&self.transport, route.way, growth.streams());
        let Step::More(more) = growth.step(bytes_per_s, transport.is_queued()) else { return Ok(false) };
        // Where the far end makes the connections, it has to be asked.
        if way == Way::FarDials {
            transport.say_way(&Decision { way, streams: more })?;
        }
        // All at once: on a long path consecutive handshakes would take seconds.
        self.open(route, now + 1, now + more);
        Ok(true)
    }
}

impl Stream {
    /// Tells the far end the number of this connection.
    pub(super) fn mark(&mut self, number: u8) -> std::io::Result<()> {
        self.writer.write_all(&[number])?;
        self.writer.flush()
    }
}
