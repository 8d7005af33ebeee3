//! A client of one server: many requests at once over warm, pipelined HTTP/1.1 connections.
//!
//! [`Client::send`] puts a request into the queue of the server. A connection takes the request, writes it and returns
//! the answer. Connections are opened as requests need them, opened again when they break, and given up when the
//! server cannot be reached. [`Sockets`] bounds the bytes in all sockets of a run.
//!
//! What differs between services is a [`Service`]: how the head of a request is made, and who hears of measurements.
//! The rest are [`Options`].

mod budget;
mod connection;
mod measurement;
mod memory;
mod options;
pub mod pace;
mod queue;
mod request;
#[cfg(test)]
mod tests;
mod unreachable;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::connect::{Endpoint, connect};
use crate::http1::RequestHead;
use connection::Connection;
use queue::{Queue, Reconnect};
use request::Request;

pub use budget::Sockets;
pub use measurement::{Activity, Measurement, RequestTiming};
pub use options::{Options, Pipelining, Tolerance};
pub use request::{Answer, Body, Expected, Outcome, ReadAt, SMALL_BYTES, Streamed};
pub use unreachable::{Cause, Unreachable};

/// What is special about a service.
pub trait Service: Send + Sync + 'static {
    /// What the head of a request is made from.
    type Job: Send + Sync + 'static;
    /// Where requests are sent: an endpoint, and what else the heads need.
    type Server: Send + Sync + 'static;

    /// Where requests are sent now. Connections to an earlier server take no more requests.
    fn server(&self) -> Arc<Self::Server>;

    /// What a connection is made to.
    fn endpoint(server: &Self::Server) -> &Endpoint;

    /// The name of the server in the log.
    fn name(&self, server: &Self::Server) -> String;

    /// The head of a request that is about to be written. In absolute form when it goes to a proxy.
    fn head(&self, job: &Self::Job, server: &Self::Server, absolute_form: bool) -> RequestHead;

    /// Bytes of started requests that may wait in a connection: a started request must be sent to its end.
    fn ahead_bytes(&self) -> u64 {
        connection::OUTGOING_BYTES as u64
    }

    /// Hears of a measurement.
    fn record(&self, measurement: Measurement<'_>);
}

/// The way to a server. Clones share it. With the last of them the connections end, as soon as all requests that were
/// sent are answered.
pub struct Client<S: Service>(Arc<Handle<S>>);

struct Handle<S: Service>(Arc<Shared<S>>);

struct Shared<S: Service> {
    service: S,
    queue: Queue<S>,
    options: Options,
}

impl<S: Service> Drop for Handle<S> {
    fn drop(&mut self) {
        self.0.queue.close();
    }
}

impl<S: Service> Clone for Client<S> {
    fn clone(&self) -> Self {
        Client(Arc::clone(&self.0))
    }
}

impl<S: Service> fmt::Debug for Client<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// The service itself.
impl<S: Service> Deref for Client<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0.0.service
    }
}

impl<S: Service> Client<S> {
    /// The way to a server; nothing is opened yet.
    pub fn new(service: S, options: Options) -> Client<S> {
        let queue = Queue::new(&options);
        Client(Arc::new(Handle(Arc::new(Shared { service, queue, options }))))
    }

    fn shared(&self) -> &Arc<Shared<S>> {
        &self.0.0
    }

    /// Opens a connection on the present runtime before the first request: the handshakes take a round trip or two.
    pub fn open(&self) {
        self.shared().queue.open_first();
        open(self.shared(), 1);
    }

    /// Puts a request into the queue. Connections are opened on the present runtime.
    ///
    /// # Errors
    /// When the server is given up.
    pub fn send(
        &self,
        job: S::Job,
        body: Body,
        expected: Expected,
    ) -> Result<oneshot::Receiver<Outcome<S>>, Unreachable> {
        let (reply, receiver) = oneshot::channel();
        let length = body.len();
        let request = Request { job, body, length, expected, reply, times_sent: 0 };
        let count = self.shared().queue.push(request)?;
        open(self.shared(), count);
        Ok(receiver)
    }

    /// Allows small requests to follow one another on a connection, or ends that ([`Pipelining::Small`]).
    pub fn pipeline(&self, allowed: bool) {
        self.shared().queue.pipeline(allowed);
    }

    /// A good answer came: the server takes the present pace.
    pub fn record_success(&self) {
        self.shared().queue.record_success();
    }

    /// When the last good answer came.
    pub fn last_success(&self) -> Option<Instant> {
        self.shared().queue.last_success()
    }

    /// The server asks for fewer requests ([`pace::Pace::slow_down`]).
    pub fn slow_down(&self, asked: Option<Duration>, chance: f64, now: Instant) {
        self.shared().queue.slow_down(asked, chance, now);
    }

    /// Times that the server asked for fewer requests.
    pub fn slowed(&self) -> u64 {
        self.shared().queue.slowed()
    }

    /// Why the server was given up, if it was.
    pub fn given_up(&self) -> Option<Unreachable> {
        self.shared().queue.given_up()
    }

    /// Returns when the server is given up.
    pub async fn until_given_up(&self) {
        self.shared().queue.until_given_up().await;
    }

    /// The options that the client was made with.
    pub fn options(&self) -> &Options {
        &self.shared().options
    }
}

fn open<S: Service>(shared: &Arc<Shared<S>>, count: usize) {
    for _ in 0..count {
        tokio::spawn(serve(Arc::clone(shared)));
    }
}

/// Has connections to the server until nothing waits any more.
async fn serve<S: Service>(shared: Arc<Shared<S>>) {
    let Shared { service, queue, options } = &*shared;
    loop {
        let server = service.server();
        let endpoint = S::endpoint(&server);
        service.record(Measurement::Activity(if queue.is_waiting() { Activity::Network } else { Activity::Idle }));
        let next = match connect(endpoint, &options.connect).await {
            Err(error) => {
                let unreachable = Unreachable::new(endpoint, &error);
                tracing::info!(server = service.name(&server), reason = unreachable.reason, "no connection");
                queue.not_connected(unreachable, error.is_timeout(), Instant::now())
            }
            Ok(connected) => {
                queue.connected();
                tracing::info!(server = service.name(&server), "connected");
                let begun = Instant::now();
                service.record(Measurement::ConnectionOpened(begun));
                let (ended, was_idle) = Connection::new(&shared, connected, server).run().await;
                service.record(Measurement::ConnectionClosed(begun));
                service.record(Measurement::Activity(Activity::Idle));
                queue.closed(ended, was_idle, Instant::now())
            }
        };
        match next {
            Reconnect::Open(0) => return,
            // This task serves the first.
            Reconnect::Open(count) => open(&shared, count - 1),
            Reconnect::Wait(wait) => tokio::time::sleep(wait).await,
            Reconnect::GivenUp(Unreachable { reason, .. }) => {
                tracing::info!(server = service.name(&service.server()), reason, "server given up");
                return service.record(Measurement::GivenUp);
            }
        }
    }
}
