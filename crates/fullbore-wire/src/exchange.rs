//! A client of one server: many requests at once over warm, pipelined HTTP/1.1 connections.
//!
//! [`Client::send`] puts a request into the queue of the server. A connection takes it, writes it and returns the
//! answer. Connections are opened as requests need them, reopened when they break, and given up when the server cannot
//! be reached. [`Sockets`] bounds the bytes in all sockets of a run.
//!
//! All connections live on one runtime, whichever runtime requests come from. Otherwise, the end of a runtime would close
//! connections that requests of others wait for.
//!
//! A [`Service`] is the part that differs between servers: it builds request heads, and receives measurements.
//! [`Options`] has the rest.

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
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime::Handle as Runtime;
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

/// The part of a client that differs between services.
pub trait Service: Send + Sync + 'static {
    /// Data from which the head of a request is built.
    type Job: Send + Sync + 'static;
    /// A server: its endpoint, and other data for request heads.
    type Server: Send + Sync + 'static;

    /// The present server for new requests. Connections to an earlier server take no more requests.
    fn server(&self) -> Arc<Self::Server>;

    /// The endpoint to connect to.
    fn endpoint(server: &Self::Server) -> &Endpoint;

    /// Name of the server in the log.
    fn name(&self, server: &Self::Server) -> String;

    /// Builds the head of a request at the moment when it is written. `absolute_form` is true for requests to a proxy.
    fn head(&self, job: &Self::Job, server: &Self::Server, absolute_form: bool) -> RequestHead;

    /// Maximum number of bytes of started requests that may wait in a connection. A started request must be sent to its
    /// end.
    fn ahead_bytes(&self) -> u64 {
        connection::OUTGOING_BYTES as u64
    }

    /// Receives a measurement.
    fn record(&self, measurement: Measurement<'_>);
}

/// A client of one server. Clones share it. When the last clone is dropped, connections end as soon as all sent
/// requests are answered.
pub struct Client<S: Service>(Arc<Handle<S>>);

struct Handle<S: Service>(Arc<Shared<S>>);

struct Shared<S: Service> {
    service: S,
    queue: Queue<S>,
    options: Options,
    /// The runtime of the connections.
    runtime: OnceLock<Runtime>,
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

/// Gives access to the service.
impl<S: Service> Deref for Client<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0.0.service
    }
}

impl<S: Service> Client<S> {
    /// Creates a client; no connection is opened yet. Its connections will live on the current runtime; outside of any,
    /// on that of the first request. This runtime must outlive all requests.
    pub fn new(service: S, options: Options) -> Client<S> {
        Client::on(Runtime::try_current().ok(), service, options)
    }

    /// Creates a client with the same options, whose connections live on the same runtime.
    #[must_use]
    pub fn beside(&self, service: S) -> Client<S> {
        Client::on(self.shared().runtime.get().cloned(), service, self.options().clone())
    }

    fn on(runtime: Option<Runtime>, service: S, options: Options) -> Client<S> {
        let queue = Queue::new(&options);
        let runtime = runtime.map_or_else(OnceLock::new, OnceLock::from);
        Client(Arc::new(Handle(Arc::new(Shared { service, queue, options, runtime }))))
    }

    fn shared(&self) -> &Arc<Shared<S>> {
        &self.0.0
    }

    /// Opens a connection before the first request: the handshakes take a round trip or two.
    pub fn open(&self) {
        self.shared().queue.open_first();
        open(self.shared(), 1);
    }

    /// Puts a request into the queue. Call it in a runtime.
    ///
    /// # Errors
    /// [`Unreachable`] with the reason, if the server was given up.
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

    /// Sets whether small requests may be pipelined ([`Pipelining::Small`]).
    pub fn pipeline(&self, allowed: bool) {
        self.shared().queue.pipeline(allowed);
    }

    /// Records a good answer: the server can keep up with the present pace.
    pub fn record_success(&self) {
        self.shared().queue.record_success();
    }

    /// Time of the last good answer.
    pub fn last_success(&self) -> Option<Instant> {
        self.shared().queue.last_success()
    }

    /// Records that the server asked for fewer requests ([`pace::Pace::slow_down`]).
    pub fn slow_down(&self, asked: Option<Duration>, chance: f64, now: Instant) {
        self.shared().queue.slow_down(asked, chance, now);
    }

    /// Number of times that the server asked for fewer requests.
    pub fn slowed(&self) -> u64 {
        self.shared().queue.slowed()
    }

    /// Why the server was given up, if it was.
    pub fn given_up(&self) -> Option<Unreachable> {
        self.shared().queue.given_up()
    }

    /// Waits until the server is given up.
    pub async fn until_given_up(&self) {
        self.shared().queue.until_given_up().await;
    }

    /// The options given to [`Client::new`].
    pub fn options(&self) -> &Options {
        &self.shared().options
    }
}

fn open<S: Service>(shared: &Arc<Shared<S>>, count: usize) {
    for _ in 0..count {
        shared.runtime.get_or_init(Runtime::current).spawn(serve(Arc::clone(shared)));
    }
}

/// Keeps connections to the server until no request waits any more.
async fn serve<S: Service>(shared: Arc<Shared<S>>) {
    let Shared { service, queue, options, .. } = &*shared;
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
            // This task serves the first connection.
            Reconnect::Open(count) => open(&shared, count - 1),
            Reconnect::Wait(wait) => tokio::time::sleep(wait).await,
            Reconnect::GivenUp(Unreachable { reason, .. }) => {
                tracing::info!(server = service.name(&service.server()), reason, "server given up");
                return service.record(Measurement::GivenUp);
            }
        }
    }
}
