//! The queue on NATS JetStream.
//!
//! | in the server | for |
//! |---|---|
//! | stream `FULLBORE` | tasks, at `fb.RUN.q.CLASS`: a work queue on disk that refuses new messages when it is full |
//! | consumers `RUN-xl`, `RUN-l` | one of each class and run; a work queue allows no second one |
//! | bucket `fullbore` | keys with a time to live of their own |
//! | `fb.RUN.stat.WORKER`, `fb.RUN.fault` | reports, by plain NATS, which may lose them |
//!
//! Workers pull, acknowledge and read keys by single requests, not through the client library's consumers. So they need
//! few permissions (`packaging/nats/permissions.conf`): a worker cannot add tasks, remove them, or change a consumer.

mod connect;
mod keys;
mod pull;
mod refusals;

use std::collections::{HashMap, VecDeque};
use std::error::Error as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::client::{Client, RequestErrorKind};
use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, pull as pull_consumer};
use async_nats::jetstream::context::{self, PublishAckFuture, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context, ErrorCode, kv};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::sync::mpsc;

use crate::message::{Report, Task};
use crate::names::{Class, RunId, WorkerId};
use crate::queue::{
    ACK_WAIT, Counts, DUPLICATE_WINDOW, Delivery, Entry, Held, Published, QUEUE_BYTES_MAX, Queue, QueueError,
    REPORTS_WAITING_MAX,
};

use refusals::Refusals;

pub use crate::settings::{ConnectError, Credentials, NatsSettings, Role};

const STREAM: &str = "FULLBORE";
const BUCKET: &str = "fullbore";

/// Prefix of the subjects of JetStream's API.
const API: &str = "$JS.API.";

/// Time limit of each request. A killed server loses those in flight, and a restart takes less than a second.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Age at which the server drops a task. Nobody asks any more for tasks of a planner that was killed and never
/// restarted. A planner publishes again what its run still lacks.
const TASK_AGE_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Lifetime of the marker that an expired key leaves; without markers the server refuses times to live. A new lease
/// replaces a marker.
const MARKER_TTL: Duration = Duration::from_secs(60);

/// Most tasks held by all workers together. The server's default of 1000 would stop a fleet of 125 workers.
const HELD_MAX: i64 = 100_000;

/// Most publications without an answer. With it, the client wrote 15,800 per second.
const UNANSWERED_MAX: usize = 256;

/// A connection to a NATS server. A clone is another handle of the same connection.
#[derive(Clone)]
pub struct NatsQueue {
    client: Client,
    context: Context,
    refusals: Arc<Refusals>,
    /// When each run was opened, by the server's clock in Unix nanoseconds: see [`NatsQueue::message_id`].
    opened: Arc<Mutex<HashMap<RunId, i128>>>,
}

impl NatsQueue {
    /// Connects to the server.
    ///
    /// # Errors
    /// The errors of [`NatsSettings::check`] and [`NatsSettings::tls`]. [`ConnectError`] for unreadable credentials,
    /// and for a server that refuses them, cannot be trusted or does not answer.
    pub async fn connect(settings: &NatsSettings) -> Result<NatsQueue, ConnectError> {
        let (client, refusals) = connect::connect(settings).await?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(REQUEST_TIMEOUT);
        Ok(NatsQueue { client, context, refusals, opened: Arc::default() })
    }

    fn opened(&self) -> MutexGuard<'_, HashMap<RunId, i128>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id by which the server recognises a task that is published again: after a lost answer, or by a second
    /// planner. The server remembers ids for an hour, even those of a closed run. So a reopened run has different ids.
    fn message_id(&self, task: &Task) -> String {
        let opened = self.opened().get(&task.run).copied().unwrap_or_default();
        format!("{opened}-{}", task.id())
    }

    /// Fails at once if there is no connection. The client library would keep the message. After the reconnection, the
    /// server would then get a stale answer to a delivery that another worker may have.
    fn check_connection(&self) -> Result<(), QueueError> {
        match self.client.connection_state() {
            State::Connected => Ok(()),
            state => Err(match self.refusals.login(Instant::now()) {
                Some(why) => QueueError::Denied(why),
                None => QueueError::Unreachable(format!("the connection is {state}")),
            }),
        }
    }

    /// Makes a request that uses subjects with these prefixes. If a permission is missing, the server never answers,
    /// but reports it separately.
    async fn permitted<T>(
        &self,
        subjects: &[&str],
        request: impl Future<Output = Result<T, QueueError>>,
    ) -> Result<T, QueueError> {
        let began = Instant::now();
        let result = request.await;
        match self.refusals.permission(began, subjects) {
            Some(why) => result.map_err(|_| QueueError::Denied(why)),
            None => result,
        }
    }

    /// Makes a request to the API of JetStream. The client library's own functions hide the server's answer in errors
    /// of many types.
    async fn ask<T: DeserializeOwned>(&self, subject: String, request: serde_json::Value) -> Result<T, QueueError> {
        self.check_connection()?;
        let full = format!("{API}{subject}");
        let answered = async {
            match self.context.request(subject, &request).await {
                Ok(Response::Ok(answer)) => Ok(answer),
                Ok(Response::Err { error }) => Err(of_answer(&error)),
                Err(error) => Err(match error.kind() {
                    // Without JetStream, or while it starts.
                    context::RequestErrorKind::NoResponders => QueueError::Missing(error.to_string()),
                    context::RequestErrorKind::TimedOut => QueueError::Unreachable(error.to_string()),
                    _ => QueueError::Other(described(&error)),
                }),
            }
        };
        self.permitted(&[&full], answered).await
    }

    /// Makes the stream, the consumers of a run, and the bucket.
    async fn make(&self, run: &RunId) -> Result<(), QueueError> {
        let failed = |error: &dyn std::error::Error| QueueError::Other(described(error));
        let stream = self.context.get_or_create_stream(stream_config()).await.map_err(|error| failed(&error))?;
        for class in Class::ALL {
            let consumer = stream.create_consumer(consumer_config(run, class)).await.map_err(|error| failed(&error))?;
            // For an existing consumer, the server tells when it was created. In the end both classes have the same
            // time.
            self.opened().insert(run.clone(), consumer.cached_info().created.unix_timestamp_nanos());
        }
        let bucket = kv::Config {
            bucket: BUCKET.to_owned(),
            history: 1,
            limit_markers: Some(MARKER_TTL),
            storage: StorageType::File,
            ..kv::Config::default()
        };
        self.context.create_or_update_key_value(bucket).await.map_err(|error| failed(&error))?;
        Ok(())
    }

    /// Sends tasks, with a window of unanswered ones.
    async fn send_tasks(&self, tasks: &[Task]) -> Result<Published, QueueError> {
        let mut published = Published { accepted: 0, is_full: false };
        let mut unanswered: VecDeque<PublishAckFuture> = VecDeque::with_capacity(UNANSWERED_MAX);
        let mut tasks = tasks.iter();
        loop {
            let task = if unanswered.len() < UNANSWERED_MAX { tasks.next() } else { None };
            if let Some(task) = task {
                let message = PublishMessage::build().message_id(self.message_id(task)).payload(task.to_bytes().into());
                let sent = self.context.send_publish(subject(&task.run, task.class()), message).await;
                unanswered.push_back(sent.map_err(|error| of_publication(&error))?);
                continue;
            }
            let Some(answer) = unanswered.pop_front() else { break };
            match answer.await {
                Ok(_) => published.accepted += 1,
                Err(error) if is_full(&error) => {
                    published.is_full = true;
                    break;
                }
                Err(error) => return Err(of_publication(&error)),
            }
        }
        Ok(published)
    }

    /// Sends an answer to a delivery.
    async fn answer(&self, delivery: &Delivery, answer: String) -> Result<(), QueueError> {
        self.check_connection()?;
        let sent = self.client.publish(delivery.0.clone(), Bytes::from(answer)).await;
        sent.map_err(|error| QueueError::Unreachable(error.to_string()))
    }
}

fn subject(run: &RunId, class: Class) -> String {
    format!("fb.{run}.q.{}", class.as_str())
}

fn consumer_name(run: &RunId, class: Class) -> String {
    format!("{run}-{}", class.as_str())
}

fn stream_config() -> stream::Config {
    stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["fb.*.q.*".to_owned()],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        max_bytes: i64::try_from(QUEUE_BYTES_MAX).expect("a small number"),
        duplicate_window: DUPLICATE_WINDOW,
        max_age: TASK_AGE_MAX,
        ..stream::Config::default()
    }
}

fn consumer_config(run: &RunId, class: Class) -> pull_consumer::Config {
    pull_consumer::Config {
        durable_name: Some(consumer_name(run, class)),
        filter_subject: subject(run, class),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        // The server must never give a task up: it would keep the message and deliver it to nobody.
        max_deliver: -1,
        max_ack_pending: HELD_MAX,
        ..pull_consumer::Config::default()
    }
}

impl Queue for NatsQueue {
    fn connections(&self) -> u64 {
        self.client.statistics().connects.load(std::sync::atomic::Ordering::Relaxed)
    }

    async fn open(&self, run: &RunId) -> Result<(), QueueError> {
        self.check_connection()?;
        self.permitted(&[API], self.make(run)).await
    }

    async fn close(&self, run: &RunId) -> Result<(), QueueError> {
        for class in Class::ALL {
            let subject = format!("CONSUMER.DELETE.{STREAM}.{}", consumer_name(run, class));
            match self.ask::<IgnoredAny>(subject, serde_json::json!({})).await {
                Ok(_) | Err(QueueError::Missing(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.purge(run).await
    }

    async fn publish(&self, tasks: &[Task]) -> Result<Published, QueueError> {
        self.check_connection()?;
        let Some(first) = tasks.first() else { return Ok(Published { accepted: 0, is_full: false }) };
        let subjects = format!("fb.{}.q.", first.run);
        self.permitted(&[&subjects], self.send_tasks(tasks)).await
    }

    async fn counts(&self, run: &RunId) -> Result<Counts, QueueError> {
        #[derive(Deserialize)]
        struct Info {
            num_pending: u64,
            num_ack_pending: u64,
        }
        let mut counts = Counts::default();
        for class in Class::ALL {
            let subject = format!("CONSUMER.INFO.{STREAM}.{}", consumer_name(run, class));
            let info: Info = self.ask(subject, serde_json::json!({})).await?;
            counts.waiting += info.num_pending;
            counts.held += info.num_ack_pending;
        }
        Ok(counts)
    }

    async fn purge(&self, run: &RunId) -> Result<(), QueueError> {
        let filter = serde_json::json!({ "filter": format!("fb.{run}.q.*") });
        self.ask::<IgnoredAny>(format!("STREAM.PURGE.{STREAM}"), filter).await.map(drop)
    }

    async fn reports(&self, run: &RunId) -> Result<mpsc::Receiver<Report>, QueueError> {
        let lost = |error: async_nats::SubscribeError| QueueError::Unreachable(error.to_string());
        let mut stats = self.client.subscribe(format!("fb.{run}.stat.*")).await.map_err(lost)?;
        let mut faults = self.client.subscribe(format!("fb.{run}.fault")).await.map_err(lost)?;
        let (sender, receiver) = mpsc::channel(REPORTS_WAITING_MAX);
        tokio::spawn(async move {
            loop {
                let report = tokio::select! {
                    message = stats.next() => message.map(|message| {
                        let worker = message.subject.rsplit('.').next().and_then(|name| WorkerId::parse(name).ok());
                        Report::parse_stat(&message.payload, &worker?).ok()
                    }),
                    message = faults.next() => message.map(|message| Report::parse_fault(&message.payload).ok()),
                    () = sender.closed() => None,
                };
                match report {
                    // If the queue is full, the planner is busy, and the next report has the same sums.
                    Some(Some(report)) => drop(sender.try_send(report)),
                    Some(None) => {}
                    None => break,
                }
            }
        });
        Ok(receiver)
    }

    async fn pull(&self, run: &RunId, class: Class, max: usize, wait: Duration) -> Result<Vec<Held>, QueueError> {
        let subject = format!("{API}CONSUMER.MSG.NEXT.{STREAM}.{}", consumer_name(run, class));
        let now = self.permitted(&[&subject], self.pull_once(subject.clone(), max, None)).await?;
        if !now.is_empty() || wait.is_zero() || max == 0 {
            return Ok(now);
        }
        self.permitted(&[&subject], self.pull_once(subject.clone(), 1, Some(wait))).await
    }

    async fn extend(&self, delivery: &Delivery) -> Result<(), QueueError> {
        self.answer(delivery, "+WPI".to_owned()).await
    }

    async fn acknowledge(&self, delivery: &Delivery) -> Result<(), QueueError> {
        self.check_connection()?;
        let answer = self.client.request(delivery.0.clone(), Bytes::from_static(b"+ACK"));
        let answered = async { answer.await.map(drop).map_err(|error| of_request(&error)) };
        self.permitted(&[&delivery.0], answered).await
    }

    async fn give_back(&self, delivery: &Delivery, delay: Duration) -> Result<(), QueueError> {
        let answer = match delay.as_nanos() {
            0 => "-NAK".to_owned(),
            delay_ns => format!("-NAK {{\"delay\":{delay_ns}}}"),
        };
        self.answer(delivery, answer).await
    }

    async fn discard(&self, delivery: &Delivery) -> Result<(), QueueError> {
        self.answer(delivery, "+TERM".to_owned()).await
    }

    async fn report(&self, run: &RunId, worker: &WorkerId, report: &Report) -> Result<(), QueueError> {
        self.check_connection()?;
        let subject = match report {
            Report::Stat(_) => format!("fb.{run}.stat.{worker}"),
            Report::Fault(_) => format!("fb.{run}.fault"),
        };
        let sent = self.client.publish(subject, report.to_bytes().into()).await;
        sent.map_err(|error| QueueError::Unreachable(error.to_string()))
    }

    async fn create(&self, key: &str, value: Bytes, ttl: Duration) -> Result<Option<u64>, QueueError> {
        self.permitted(&[&keys::subject(key), keys::READ], self.create_key(key, value, ttl)).await
    }

    async fn renew(&self, key: &str, value: Bytes, revision: u64, ttl: Duration) -> Result<Option<u64>, QueueError> {
        self.permitted(&[&keys::subject(key)], self.write_key(key, value, revision, ttl)).await
    }

    async fn remove(&self, key: &str, revision: u64) -> Result<(), QueueError> {
        self.permitted(&[&keys::subject(key)], self.remove_key(key, revision)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, QueueError> {
        self.permitted(&[keys::READ], self.list_keys(prefix)).await
    }
}

/// An error of the client library, with its causes.
fn described(error: &dyn std::error::Error) -> String {
    let (mut text, mut source) = (error.to_string(), error.source());
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// An error that JetStream reports.
fn of_answer(error: &jetstream::Error) -> QueueError {
    match error.error_code() {
        ErrorCode::STREAM_NOT_FOUND | ErrorCode::CONSUMER_NOT_FOUND => QueueError::Missing(error.to_string()),
        _ => QueueError::Other(error.to_string()),
    }
}

fn of_request(error: &async_nats::RequestError) -> QueueError {
    match error.kind() {
        RequestErrorKind::NoResponders => QueueError::Missing(error.to_string()),
        RequestErrorKind::TimedOut | RequestErrorKind::Other => QueueError::Unreachable(error.to_string()),
        _ => QueueError::Other(error.to_string()),
    }
}

fn of_publication(error: &PublishError) -> QueueError {
    match error.kind() {
        PublishErrorKind::StreamNotFound => QueueError::Missing(error.to_string()),
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => QueueError::Unreachable(error.to_string()),
        _ => QueueError::Other(described(error)),
    }
}

/// Whether the stream is full (10077, "maximum bytes exceeded").
fn is_full(error: &PublishError) -> bool {
    let answer = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    answer.is_some_and(|answer| answer.error_code() == ErrorCode::STREAM_STORE_FAILED)
}
