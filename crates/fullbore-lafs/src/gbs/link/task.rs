//! The task of one connection: it opens it, opens it again when it breaks, and in the end gives the server up.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::stage::{HostClock, Ledger, SendReading, StageClock};
use fullbore_wire::connect::{ConnectOptions, Endpoint, connect};
use fullbore_wire::rate_limit::RateLimit;
use fullbore_wire::tcp_info::TcpInfo;
use tokio::sync::mpsc;

use super::connection::Connection;
use super::sockets::Sockets;
use super::{Order, Shared};
use crate::gbs::flow::Doing;

/// Wait before the second attempt to connect; twice as long before the third.
const ATTEMPT_WAIT: Duration = Duration::from_millis(500);

pub(super) struct Task {
    pub shared: Arc<Shared>,
    pub orders: mpsc::UnboundedReceiver<Order>,
    /// To be sent: again, or for the first time.
    pub waiting: VecDeque<Order>,
    pub endpoint: Endpoint,
    pub connecting: ConnectOptions,
    /// Connections opened in a row without one answer, until the server is given up.
    pub attempts: u32,
    pub patience: Duration,
    pub limit: Option<Arc<RateLimit>>,
    pub sockets: Arc<Sockets>,
    pub clocks: Clocks,
}

/// What the run's verdict hears of this server.
pub(super) struct Clocks {
    pub ledger: Ledger,
    pub send: Arc<StageClock>,
    pub server: Arc<HostClock>,
}

impl Clocks {
    /// What the kernel counted since the last look.
    pub fn looked(&self, before: &TcpInfo, now: &TcpInfo) {
        let us = |before: Duration, now: Duration| now.saturating_sub(before).as_micros() as u64;
        self.ledger.add_sending(SendReading {
            busy_us: us(before.busy, now.busy),
            receiver_limited_us: us(before.receive_window_limited, now.receive_window_limited),
            buffer_limited_us: us(before.send_buffer_limited, now.send_buffer_limited),
            ..SendReading::default()
        });
    }

    pub fn answered(&self, bytes: u64, round_trip: Duration) {
        self.send.add_items(1, bytes);
        self.server.received(bytes);
        if !round_trip.is_zero() {
            self.server.round_trip(round_trip);
        }
    }
}

/// How a connection ended.
pub(super) enum Ended {
    /// Nothing was under way: idle, or closed by the server between answers.
    Quietly,
    /// It broke.
    Broken(String),
    /// The server took or sent nothing for too long.
    Stalled,
    /// Nobody is left to ask for anything.
    Done,
}

impl Task {
    pub async fn run(mut self) {
        let mut failures = 0;
        let mut first = true;
        loop {
            // The first connection is opened before anybody asks: that is a round trip or two won.
            if self.waiting.is_empty() && !std::mem::take(&mut first) {
                match self.orders.recv().await {
                    Some(order) => self.waiting.push_back(order),
                    None => return,
                }
            }
            self.shared.flow.doing(if self.waiting.is_empty() { Doing::Idle } else { Doing::Path }, Instant::now());
            let reason = match connect(&self.endpoint, &self.connecting).await {
                Err(error) if error.is_untrusted() => {
                    let reason = format!("not the server of this NURL: {}", error.without_host(&self.endpoint));
                    return self.give_up(&reason);
                }
                // As one that stalls later: it had all the time that a server has.
                Err(error) if error.is_timeout() => {
                    let reason = error.without_host(&self.endpoint);
                    return self.give_up(&reason);
                }
                Err(error) => error.without_host(&self.endpoint),
                Ok(connected) => {
                    self.shared.flow.connected(Instant::now());
                    tracing::info!(server = self.shared.name, "connected");
                    let (ended, answers) = Connection::new(&mut self, connected).run().await;
                    self.shared.flow.doing(Doing::Idle, Instant::now());
                    if answers > 0 {
                        failures = 0;
                    }
                    match ended {
                        Ended::Done => return,
                        Ended::Quietly => continue,
                        Ended::Stalled => {
                            let limit = self.patience.as_secs();
                            return self.give_up(&format!("stalled: nothing moved for {limit} s"));
                        }
                        Ended::Broken(reason) => reason,
                    }
                }
            };
            failures += 1;
            tracing::info!(server = self.shared.name, failures, reason, "connection failed");
            if failures >= self.attempts {
                return self.give_up(&reason);
            }
            tokio::time::sleep(ATTEMPT_WAIT * failures).await;
        }
    }

    /// Tells everybody. Dropping an order's reply is the message.
    fn give_up(mut self, reason: &str) {
        *self.shared.given_up.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
        self.shared.flow.close();
        self.shared.flow.doing(Doing::Idle, Instant::now());
        self.orders.close();
        while let Ok(order) = self.orders.try_recv() {
            self.waiting.push_back(order);
        }
        let weight = self.waiting.drain(..).map(|order| order.weight).sum();
        self.shared.flow.release(weight);
    }
}
