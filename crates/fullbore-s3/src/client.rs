//! Requests to one bucket: many at once over warm connections, repeated where that is safe.
//!
//! [`Client::call`] passes a request to the exchange client of fullbore-wire ([`exchange`]). A connection takes it, has
//! it signed, and returns the answer. All requests made here may be repeated, because they state the result and not a
//! change.
//!
//! They are repeated after broken connections, 5xx, requests to slow down (with fewer requests at once, see
//! [`exchange::pace`]), expired credentials, a wrong clock, a bucket of another region, redirects (`redirect`), parts
//! of the protocol that the store does not support (`refusal`), and damaged content. All other errors are returned to
//! the caller.

mod call;
pub(crate) mod measure;
mod moves;
mod redirect;
mod refusal;
mod store;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use fullbore_engine::stage::Ledger;
use fullbore_wire::connect::{ConnectOptions, Endpoint};
use fullbore_wire::exchange::{self, Expected, Pipelining, Sockets, Tolerance};
use fullbore_wire::http1::Method;
use fullbore_wire::range::ByteRange;
use fullbore_wire::rate_limit::RateLimit;
use fullbore_wire::retry_after::RetryAfter;
use tokio::sync::watch;

use super::address::Bucket;
use super::credentials::{CredentialCache, unix_now};
use super::dialect::{Dialect, Feature, Support};
use super::lock::Fence;
pub(crate) use super::sign::Identity;
use super::sign::Signer;
use super::xml;
pub use call::{Answer, Call, CallError};
pub(crate) use call::{Optional, SMALL_ANSWER, any_etag, etag, is_same_etag};
use fullbore_engine::random::random;
use fullbore_engine::run::stopped;
pub use fullbore_wire::exchange::Body;
pub(crate) use fullbore_wire::exchange::{Cause, Unreachable};
use measure::{Meter, Reading};
use store::{Common, Job, Store};

/// Maximum number of times that a request is sent when connections break or the server has an error.
const TRIES: u32 = 6;

/// Maximum number of times that a request is sent when the server asks to slow down: each answer shows that the server
/// works.
const SLOW_TRIES: u32 = 30;

/// Time without a good answer to any request after which failed requests are not sent again.
pub(crate) const TRY_FOR: Duration = Duration::from_secs(300);

/// Wait before the second try, which doubles each time; and the longest wait.
const WAIT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Maximum number of unanswered requests on one connection. Four small objects fill a packet or two; more would only
/// wait for one another at the server, which works on one at a time.
const PIPELINE_DEPTH: usize = 4;

/// Time for which connecting is tried before anything was ever answered.
const FIRST_CONTACT: Duration = Duration::from_secs(4);

/// Time for which connecting is tried later: servers may be restarted.
const LATER_CONTACT: Duration = Duration::from_secs(60);

/// Wait between attempts to connect; it doubles each time.
const CONNECT_WAIT: Duration = Duration::from_millis(250);

/// Idle time after which a connection is closed before the server closes it. Amazon closes after about 20 s without a
/// request (measured by others, not documented), and a request that crosses the close must be repeated.
const IDLE: Duration = Duration::from_secs(10);

/// Bodies from this size on have their TCP acknowledgements observed; for smaller ones a round trip is assumed.
const OBSERVED_BYTES: u64 = 64 << 10;

/// Name of the header field for the SHA-256 of an object or part.
pub(crate) const CHECKSUM_FIELD: &str = "x-amz-checksum-sha256";

/// Options of a [`Client`]: its connections, limits and clocks.
#[derive(Debug, Clone)]
pub struct Options {
    /// Certificates, proxy and address family of connections.
    pub connect: ConnectOptions,
    /// Maximum number of connections to the store.
    pub connections: usize,
    /// Time without progress after which a connection is given up.
    pub stall_timeout: Duration,
    /// Time without a good answer after which failed requests are not sent again; see `TRY_FOR`.
    pub try_for: Duration,
    /// Limit on the upload rate over all connections; `None`: unlimited.
    pub limit: Option<Arc<RateLimit>>,
    /// Limit on the download rate over all connections; `None`: unlimited.
    pub receive_limit: Option<Arc<RateLimit>>,
    /// Ledger of the run, for the client's clocks; [`Ledger::off`] records nothing.
    pub ledger: Ledger,
}

impl Options {
    /// Creates options with system certificates, at most 64 connections, no rate limits and no clocks. `stall_timeout`
    /// is the time without progress after which a connection is given up.
    pub fn new(stall_timeout: Duration) -> Options {
        Options {
            connect: ConnectOptions { limit: stall_timeout, ..ConnectOptions::default() },
            connections: crate::bucket::CONNECTIONS,
            stall_timeout,
            try_for: TRY_FOR,
            limit: None,
            receive_limit: None,
            ledger: Ledger::off(),
        }
    }
}

/// A client of one bucket. Clones share everything.
#[derive(Debug, Clone)]
pub struct Client {
    exchange: exchange::Client<Store>,
    /// Clients of other servers of the store, to which single requests were redirected.
    redirected: Arc<Mutex<HashMap<Endpoint, exchange::Client<Store>>>>,
    credentials: Arc<CredentialCache>,
    try_for: Duration,
    stop: watch::Receiver<bool>,
    /// Keeps this clone from changing objects while its lock is not held.
    fence: Option<Arc<Fence>>,
}

/// State of the tries of a request.
#[derive(Default)]
struct Tries {
    sent: u32,
    /// Number of tries that the store refused or redirected, so that they had no effect.
    refused: u32,
    failed: u32,
    slowed: u32,
    renewed: u32,
    /// The next try uses other credentials.
    renew: bool,
    moved: u32,
    clock: u32,
    damaged: u32,
    explained: bool,
    /// The store has requested an MD5 of the content.
    md5: bool,
    /// Features that the next try omits.
    without: Vec<Feature>,
    redirects: u32,
    /// Target of a redirect: another server of the store, or another URL.
    server: Option<exchange::Client<Store>>,
    target: Option<Arc<redirect::Target>>,
    /// Time of the signature, if it is not the present.
    signed_at: Option<i64>,
}

/// What to do after an outcome.
enum Next {
    /// Try again after this wait, or return this error if no time is left.
    Again(Duration, CallError),
    Fail(CallError),
}

impl Client {
    /// Creates a client of a bucket. It ends with its last clone; `stop` becomes true when no more requests may be
    /// made.
    pub fn new(bucket: Bucket, credentials: CredentialCache, options: Options, stop: watch::Receiver<bool>) -> Client {
        let common = Common {
            signer: Signer::new("s3"),
            meter: Meter::new(&options.ledger, &bucket.endpoint.host),
            clock_offset_s: AtomicI64::new(0),
            checks: AtomicBool::new(false),
            dialect: Dialect::of(bucket.is_default),
            signpost: Mutex::default(),
        };
        let store = Store { bucket: RwLock::new(Arc::new(bucket)), common: Arc::new(common) };
        let exchange = exchange::Options {
            connect: options.connect,
            connections: options.connections,
            depth: PIPELINE_DEPTH,
            pipelining: Pipelining::Small,
            stall_timeout: options.stall_timeout,
            idle_timeout: IDLE,
            connect_backoff: CONNECT_WAIT,
            tolerance: Tolerance::Time { first: FIRST_CONTACT, later: LATER_CONTACT },
            observed_bytes: OBSERVED_BYTES,
            limit: options.limit,
            receive_limit: options.receive_limit,
            // The receive buffers that are worth keeping: as many bytes as downloads have in flight at most.
            sockets: Arc::new(Sockets::new(crate::download::WINDOW_BYTES as usize)),
        };
        let exchange = exchange::Client::new(store, exchange);
        let (redirected, credentials) = (Arc::default(), Arc::new(credentials));
        Client { exchange, redirected, credentials, try_for: options.try_for, stop, fence: None }
    }

    /// A clone that changes objects only while the fence allows it.
    #[must_use]
    pub fn behind(&self, fence: Arc<Fence>) -> Client {
        Client { fence: Some(fence), ..self.clone() }
    }

    /// What is known of the store's support of the protocol.
    pub fn dialect(&self) -> &Dialect {
        &self.exchange.common.dialect
    }

    /// The bucket, in its actual region if a redirect has revealed it.
    pub fn bucket(&self) -> Arc<Bucket> {
        self.exchange.bucket()
    }

    /// Counters and times of all requests so far, for the verdict.
    pub fn reading(&self) -> Reading {
        self.exchange.meter.reading()
    }

    /// Number of answers that asked for fewer requests (503 and the like).
    pub fn slowed(&self) -> u64 {
        self.exchange.slowed()
    }

    /// Maximum number of connections of this client.
    pub fn connections(&self) -> usize {
        self.exchange.options().connections
    }

    /// Whether the run must end.
    pub fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits until the run must end.
    pub async fn stopped(&self) {
        stopped(&mut self.stop.clone()).await;
    }

    /// Makes a request, and repeats it if that may help. Answers with a status below 400, and 404 and 412, are returned
    /// for the caller to judge.
    ///
    /// # Errors
    /// [`CallError::Refused`] for a status of 400 or more, except 404 and 412. Otherwise the variant of [`CallError`]
    /// that names why no usable answer arrived, after all retries; [`CallError::Interrupted`] after a stop.
    pub async fn call(&self, call: Call) -> Result<Answer, CallError> {
        let at_the_end = call.at_the_end;
        let made = self.make(Arc::new(call));
        if at_the_end {
            return made.await;
        }
        tokio::select! {
            biased;
            made = made => made,
            () = self.stopped() => Err(CallError::Interrupted),
        }
    }

    async fn make(&self, call: Arc<Call>) -> Result<Answer, CallError> {
        let mut failing_since = None;
        let mut tries = Tries::default();
        let mut refused: Option<Arc<Identity>> = None;
        loop {
            let identity = self.credentials.identity(refused.take().as_deref()).await?;
            // Before each try: the process may have been frozen for hours between two tries.
            tries.signed_at = match &self.fence {
                Some(fence) if !call.is_unfenced => fence.pass(self.try_for).await.map_err(|_| CallError::LockLost)?,
                _ => None,
            };
            tries.sent += 1;
            if tries.sent > 1 {
                self.exchange.meter.repeated();
            }
            let outcome = self.once(&call, identity.clone(), &tries).await;
            let mut outcome = match outcome {
                // The store's own address may lead to another server.
                Err(CallError::Unreachable(gone)) if self.leave_server(&mut tries) => Err(gone.reason),
                outcome => outcome?,
            };
            if let Ok(answer) = &mut outcome
                && call.method == Method::Head
                && matches!(answer.head.status, 400 | 403)
                && !std::mem::replace(&mut tries.explained, true)
                && let Some(reason) = self.explain(&call, identity.clone(), &tries).await?
            {
                if !matches!(reason.head.status, 400 | 403) {
                    // Another request has fixed the cause of the refusal meanwhile.
                    continue;
                }
                *answer = reason;
            }
            let next = match outcome {
                Ok(answer) => match self.judge(&call, answer, &mut tries) {
                    Ok(mut answer) => {
                        answer.times_sent += tries.sent - 1 - tries.refused;
                        self.learn(&call, &answer, &tries);
                        return Ok(answer);
                    }
                    Err(next) => next,
                },
                Err(reason) => {
                    tries.failed += 1;
                    let error = CallError::Network { what: call.what(), reason, tries: tries.sent };
                    again(tries.failed < TRIES, tries.failed, error)
                }
            };
            // Time in the queue and on a slow path is not time of failures.
            let first = *failing_since.get_or_insert_with(Instant::now);
            let since = self.exchange.last_success().map_or(first, |well| well.max(first));
            let try_for = self.try_for;
            match next {
                Next::Again(wait, _) if since.elapsed() + wait < try_for => {
                    if std::mem::take(&mut tries.renew) {
                        refused = identity;
                    }
                    tokio::time::sleep(wait).await;
                }
                Next::Again(_, error) => {
                    let reason = format!("{}; not done within {} s", error.reason(), try_for.as_secs());
                    return Err(CallError::Network { what: call.what(), reason, tries: tries.sent });
                }
                Next::Fail(error) => return Err(error),
            }
        }
    }

    /// The reason of a refused HEAD. Only an answer with a body has it, so a GET of nearly nothing is sent.
    async fn explain(
        &self,
        head: &Call,
        identity: Option<Arc<Identity>>,
        tries: &Tries,
    ) -> Result<Option<Answer>, CallError> {
        let mut get = Call { method: Method::Get, range: ByteRange::of(&(0..1)), ..head.clone() };
        get.answer_bytes_max = SMALL_ANSWER;
        Ok(self.once(&Arc::new(get), identity, tries).await?.ok())
    }

    /// Sends the request once. Returns the answer, or the reason of the failure.
    async fn once(
        &self,
        call: &Arc<Call>,
        identity: Option<Arc<Identity>>,
        tries: &Tries,
    ) -> Result<Result<Answer, String>, CallError> {
        let exchange = tries.server.as_ref().unwrap_or(&self.exchange);
        let expected = Expected {
            bytes_max: call.answer_bytes_max,
            is_range: call.range.is_some(),
            stream: call.stream.clone(),
            in_pieces: call.range.is_some(),
            // A small answer arrives in one piece: a server that sends it byte by byte would hold us for ever. Only
            // while a store joins parts, it sends spaces to show that it is alive.
            is_progress: call.answer_bytes_max > SMALL_ANSWER || call.errors_in_body || call.stream.is_some(),
        };
        let unreachable = |Unreachable { reason, cause }| {
            let reason = format!("{}: {reason}", exchange.bucket().host);
            CallError::Unreachable(Unreachable { reason, cause })
        };
        let (without, target) = (tries.without.clone(), tries.target.clone());
        let job = Job { call: Arc::clone(call), identity, without, target, signed_at: tries.signed_at };
        match exchange.send(job, call.body.clone(), expected).map_err(unreachable)?.await {
            Ok(outcome) => Ok(outcome),
            Err(_) => match exchange.given_up() {
                Some(reason) => Err(unreachable(reason)),
                None => Ok(Err("the connection was ended".into())),
            },
        }
    }

    /// Whether an answer is final; otherwise what to do next.
    fn judge(&self, call: &Call, answer: Answer, tries: &mut Tries) -> Result<Answer, Next> {
        let status = answer.head.status;
        let error = match status {
            200..300 if call.errors_in_body => xml::service_error(&answer.body),
            200..300 | 304 | 404 | 412 => None,
            _ => Some(xml::service_error(&answer.body).unwrap_or_default()),
        };
        let Some(mut error) = error else {
            // 404 and 412 are meaningful by themselves.
            return self.compare(call, answer, tries);
        };
        if error.message.is_empty()
            && let Some(location) = answer.head.location.as_ref().filter(|_| (300..400).contains(&status))
        {
            // The query may grant access to the object to anyone who reads it.
            let location = location.split('?').next().unwrap_or_default();
            error.message = format!("the store redirects to {location}");
        }
        error.message = error.message.chars().take(300).collect();
        let location = answer.head.location.clone();
        let region = answer.head.store_field("x-amz-bucket-region").map(str::to_owned).or(error.region.clone());
        let what = call.what();
        let refused = CallError::Refused { what, status, error: error.clone() };
        if is_plea_for_less(status, &error.code) {
            tries.slowed += 1;
            let asked = answer
                .head
                .retry_after
                .map(|after: RetryAfter| Duration::from_secs(after.delay_s(answer.head.date, unix_now())));
            let chance = f64::from(random::<1>()[0]) / 255.0;
            self.exchange.slow_down(asked, chance, Instant::now());
            // The pause belongs to the queue: all requests observe it.
            return Err(again(tries.slowed < SLOW_TRIES, 0, refused));
        }
        let next = match error.code.as_str() {
            "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException" | "InvalidToken" if tries.renewed < 2 => {
                tries.renewed += 1;
                tries.renew = true;
                Next::Again(Duration::ZERO, refused)
            }
            "RequestTimeTooSkewed" | "RequestExpired" if tries.clock < 2 && answer.head.date.is_some() => {
                tries.clock += 1;
                let theirs = answer.head.date.unwrap_or_else(unix_now);
                self.exchange.clock_offset_s.store(theirs - unix_now(), Ordering::Relaxed);
                Next::Again(Duration::ZERO, refused)
            }
            // A store that takes these words for a hash reports a mismatch as well.
            "XAmzContentSHA256Mismatch" | "InvalidDigest"
                if self.exchange.checks.load(Ordering::Relaxed)
                    && call.checksum.is_some()
                    && !tries.without.contains(&Feature::UnsignedPayload) =>
            {
                tries.without.push(Feature::UnsignedPayload);
                Next::Again(Duration::ZERO, refused)
            }
            "BadDigest" | "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch" | "InvalidDigest"
                if tries.damaged < 2 =>
            {
                tries.damaged += 1;
                Next::Again(WAIT.0, refused)
            }
            "RequestTimeout" | "IncompleteBody" | "InternalError" | "OperationAborted" | "RequestTimedOut" => {
                tries.failed += 1;
                again(tries.failed < TRIES, tries.failed, refused)
            }
            _ if matches!(status, 301 | 307 | 308 | 400 | 403)
                && tries.moved < 2
                && self.move_to(region.as_deref(), &answer.server) =>
            {
                tries.moved += 1;
                Next::Again(Duration::ZERO, refused)
            }
            _ if redirect::redirects(status, call.method)
                && tries.redirects < redirect::REDIRECTS_MAX
                && location.is_some_and(|location| self.redirect(call, status, &location, &answer.server, tries)) =>
            {
                tries.redirects += 1;
                tries.refused += 1;
                Next::Again(Duration::ZERO, refused)
            }
            code if tries.moved < 2 && is_plea_for_virtual_host(code) && self.move_to_virtual_host(&answer.server) => {
                tries.moved += 1;
                Next::Again(Duration::ZERO, refused)
            }
            _ if is_plea_for_md5(&error) && call.checksum.is_some() && !std::mem::replace(&mut tries.md5, true) => {
                self.dialect().learn_to_send_md5();
                Next::Again(Duration::ZERO, refused)
            }
            _ if status >= 500 && status != 501 => {
                tries.failed += 1;
                again(tries.failed < TRIES, tries.failed, refused)
            }
            code => match refusal::suspect(&self.exchange, call, (status, code), &tries.without) {
                Some(feature) => {
                    tries.refused += 1;
                    tries.without.push(feature);
                    Next::Again(Duration::ZERO, refused)
                }
                None => Next::Fail(refused),
            },
        };
        Err(next)
    }

    /// Compares the checksum of the server with that of the sent content.
    fn compare(&self, call: &Call, answer: Answer, tries: &mut Tries) -> Result<Answer, Next> {
        let exchange = tries.server.as_ref().unwrap_or(&self.exchange);
        exchange.record_success();
        if call.checksum.is_none() || !(200..300).contains(&answer.head.status) {
            return Ok(answer);
        }
        let Some(theirs) = answer.head.store_field(CHECKSUM_FIELD) else { return Ok(answer) };
        let ours = super::parts::base64(&call.hash);
        if theirs == ours {
            if !self.exchange.checks.swap(true, Ordering::Relaxed) {
                tracing::debug!("the store checks SHA-256 sums and says so");
            }
            exchange.pipeline(true);
            return Ok(answer);
        }
        // This may be another request's answer: no pipelining from now on.
        exchange.pipeline(false);
        tries.damaged += 1;
        let error = CallError::Damaged { what: call.what(), theirs: theirs.to_owned(), ours };
        Err(again(tries.damaged < 3, 1, error))
    }

    /// Records what a good answer shows about the store.
    fn learn(&self, call: &Call, answer: &Answer, tries: &Tries) {
        let dialect = self.dialect();
        if let Some(feature) = tries.without.last() {
            dialect.learn(*feature, Support::Lacking);
            return;
        }
        if !(200..300).contains(&answer.head.status) {
            return;
        }
        if let Some(feature) = call.checksum.filter(|_| answer.head.store_field(CHECKSUM_FIELD).is_some()) {
            dialect.learn(feature, Support::Honoured);
        }
    }
}

/// Whether the store asks for fewer requests. Its codes differ between services.
fn is_plea_for_less(status: u16, code: &str) -> bool {
    const CODES: [&str; 6] = [
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "ServiceUnavailable",
    ];
    matches!(status, 429 | 503) || CODES.contains(&code)
}

/// Whether the store requires virtual-hosted style: codes of Alibaba, Tencent, Volcano Engine, Baidu and Huawei.
pub(crate) fn is_plea_for_virtual_host(code: &str) -> bool {
    const CODES: [&str; 5] = [
        "SecondLevelDomainForbidden",
        "PathStyleDomainForbidden",
        "InvalidPathAccess",
        "VirtualHostDomainRequired",
        "VirtualHostDomainRequire",
    ];
    CODES.contains(&code)
}

/// Whether the store requires an MD5 of the content, as buckets with object locks do.
fn is_plea_for_md5(error: &xml::ServiceError) -> bool {
    error.code == "MissingContentMD5" || error.message.to_ascii_lowercase().contains("content-md5")
}

/// Tries again after a growing wait if `more`; otherwise returns the error.
fn again(more: bool, failed: u32, error: CallError) -> Next {
    if !more {
        return Next::Fail(error);
    }
    tracing::info!(%error, "asked again");
    if failed == 0 {
        return Next::Again(Duration::ZERO, error);
    }
    let wait = (WAIT.0 * 2_u32.pow(failed.min(10) - 1)).min(WAIT.1);
    Next::Again(wait.mul_f64(0.75 + f64::from(random::<1>()[0]) / 512.0), error)
}
