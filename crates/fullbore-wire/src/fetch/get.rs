//! Small files of one host, outside the queue: complete in memory, or as a stream.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};

use super::{HostSeen, Shared, lock};
use crate::conditional::EntityTag;
use crate::dispatcher::RATE_FLOOR_BYTES_PER_S;
use crate::hosts::{HostId, SeenFault};
use crate::http1::ResponseHead;
use crate::queue::ItemId;
use crate::signer::{Denial, Signed};

/// Bounds of the time after the head from which on a body counts as lingering, so that the file is requested elsewhere
/// as well. Within them, it is the time that the head took. A host that is not slow sends both at once, or within a
/// round trip or two. Guesses.
const LINGERS_LEAST: Duration = Duration::from_millis(5);
const LINGERS_MOST: Duration = Duration::from_millis(500);

/// Maximum time without delivery from the host of a small file, connecting included.
const GET_LIMIT: Duration = Duration::from_secs(30);

/// How long a small file may take from a host that delivers: 2.5 MB by a modem. The signed files of a dozen suites have
/// less.
const DELIVERING_MAX: Duration = Duration::from_secs(600);

/// How long the head of a stream may wait for the answers before it, from a host that delivers.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(3600);

/// Maximum number of pieces of a stream that wait for their taker; each is at most a read buffer.
const STREAM_PIECES: usize = 8;

/// Why a small file could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// The host cannot be reached.
    #[error("{host}: {reason}")]
    Unreachable {
        /// Name of the host.
        host: String,
        /// Description of the failure.
        reason: String,
    },
    /// The run does not ask the host again, or may not look up its name: another try gives the same error.
    #[error("{host}: {reason}")]
    Final {
        /// Name of the host.
        host: String,
        /// Description of the failure.
        reason: String,
    },
    /// The host's identity could not be verified.
    #[error("{host}: {reason}")]
    Untrusted {
        /// Name of the host.
        host: String,
        /// What is wrong with its certificate.
        reason: String,
        /// Whether no trusted authority issued it: naming an authority may help.
        unknown_issuer: bool,
    },
    /// The host refuses every request, such as those without the right credentials.
    #[error("{host}: {}", denial.why)]
    Denied {
        /// Name of the host.
        host: String,
        /// Reason of the refusal.
        denial: Denial,
    },
    /// The body is larger than allowed.
    #[error("{host}: {path} is larger than {limit_bytes} bytes")]
    TooLarge {
        /// Name of the host.
        host: String,
        /// Requested path.
        path: String,
        /// Allowed size, in bytes.
        limit_bytes: u64,
    },
}

/// A file that comes from one host in one piece, such as the first of a chain of trust, whose size is unknown.
#[derive(Clone, Debug, Default)]
pub struct Get {
    /// Path of the file below the mirror's address.
    pub path: String,
    /// Maximum size of the body, in bytes; a larger one is refused.
    pub limit_bytes: u64,
    /// Send `If-None-Match` with this ETag …
    pub if_none_match: Option<EntityTag>,
    /// … or `If-Modified-Since` with this Unix time in seconds.
    pub if_modified_since: Option<i64>,
    /// Request only the head (HEAD).
    pub head_only: bool,
    /// Further header fields of the request, name and value.
    pub fields: Vec<(String, String)>,
    /// Receives the head as soon as it arrives, before the body.
    pub head_seen: Option<HeadSeen>,
}

/// Head of an answer whose body may take long. Create it when the file is requested; clones are of the same answer.
#[derive(Clone, Debug)]
pub struct HeadSeen {
    asked: Instant,
    noted: watch::Sender<Option<Noted>>,
}

#[derive(Clone, Debug)]
struct Noted {
    head: ResponseHead,
    /// Time from which on the body lingers.
    until: Instant,
}

impl Default for HeadSeen {
    fn default() -> HeadSeen {
        HeadSeen { asked: Instant::now(), noted: watch::Sender::default() }
    }
}

impl HeadSeen {
    /// How often to check the heads of several answers: an answer begins to linger by the passage of time alone.
    pub const LOOK_EVERY: Duration = LINGERS_LEAST;

    pub(crate) fn note(&self, head: &ResponseHead) {
        let now = Instant::now();
        // The time that the head took includes the round trip.
        let timeout = now.saturating_duration_since(self.asked).clamp(LINGERS_LEAST, LINGERS_MOST);
        self.noted.send_replace(Some(Noted { head: head.clone(), until: now + timeout }));
    }

    /// The head, once it has arrived.
    pub fn head(&self) -> Option<ResponseHead> {
        self.noted.borrow().as_ref().map(|noted| noted.head.clone())
    }

    /// Waits until the head has arrived.
    pub async fn comes(&self) {
        if self.noted.subscribe().wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether the body is lingering: the head announced the file, and since then as much time has passed again.
    pub fn lingers_now(&self) -> bool {
        let noted = self.noted.borrow();
        noted.as_ref().is_some_and(|noted| noted.head.status == 200 && Instant::now() >= noted.until)
    }

    /// Waits until the body lingers. Never ends if the answer is not the file: then there is nothing to request
    /// elsewhere.
    pub async fn lingers(&self) {
        let mut noted = self.noted.subscribe();
        let is_file = |noted: &Option<Noted>| noted.as_ref().is_some_and(|noted| noted.head.status == 200);
        let until = noted.wait_for(is_file).await.ok().and_then(|noted| noted.as_ref().map(|noted| noted.until));
        match until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Whether, by its head, the file being received was last modified at or before `modified`, in Unix seconds.
    pub fn is_no_newer_than(&self, modified: i64) -> bool {
        let is_file = |head: &ResponseHead| head.status == 200;
        self.head().is_some_and(|head| is_file(&head) && head.last_modified.is_some_and(|own| own <= modified))
    }

    /// Whether, by time and length in its head, the file being received seems to be the same as `got`.
    pub fn is_same_as(&self, got: &Got) -> bool {
        self.head().is_some_and(|head| {
            (head.status, got.head.status) == (200, 200)
                && head.last_modified.is_some()
                && head.last_modified == got.head.last_modified
                && head.content_length == Some(got.body.len() as u64)
        })
    }
}

/// The answer to a [`Get`], whatever its status.
#[derive(Clone, Debug)]
pub struct Got {
    /// Status and header fields of the answer.
    pub head: ResponseHead,
    /// The body, also of an error page.
    pub body: Vec<u8>,
    /// Reason of a refusal by a host that wants signatures.
    pub denial: Option<Denial>,
}

/// Part of a streamed body.
#[derive(Debug)]
pub enum Piece {
    /// The next bytes.
    Data(Bytes),
    /// The body is complete.
    End,
}

/// The answer to a [`Get`] whose body is delivered as it arrives.
#[derive(Debug)]
pub struct Streamed {
    /// Status and header fields of the answer.
    pub head: ResponseHead,
    /// The body in order, up to [`Piece::End`]. A slow taker slows the sender down.
    pub body: mpsc::Receiver<Result<Piece, GetError>>,
}

/// Where the answer to a [`Get`] goes.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The complete answer.
    Whole(oneshot::Sender<Result<Got, GetError>>),
    /// The head, and then the pieces of the body.
    Stream(Option<oneshot::Sender<Result<ResponseHead, GetError>>>, mpsc::Sender<Result<Piece, GetError>>),
}

/// A [`Get`] that waits for a connection or an answer.
#[derive(Debug)]
pub(crate) struct PendingGet {
    pub get: Get,
    pub reply: Reply,
    pub signed: Signed,
}

/// Watches a run from another task: for progress, samples and reports.
#[derive(Clone)]
pub struct Watch {
    pub(super) shared: Arc<Shared>,
}

impl Watch {
    /// Requests a small file, as [`Fetcher::get`](super::Fetcher::get) does.
    ///
    /// # Errors
    /// The errors of [`Fetcher::get`](super::Fetcher::get): [`GetError`] says whether the host refused, or was
    /// unreachable.
    pub async fn get(&self, host: HostId, get: Get) -> Result<Got, GetError> {
        let unreachable = |reason: &str| GetError::Unreachable {
            host: self.shared.dispatcher().host_mut(host).name.clone(),
            reason: reason.to_owned(),
        };
        self.is_asked(host)?;
        let (reply, answer) = oneshot::channel();
        lock(&self.shared.gets)[host as usize].push_back(PendingGet {
            get,
            reply: Reply::Whole(reply),
            signed: Signed::default(),
        });
        self.shared.wake.notify_waiters();
        match self.while_delivering(host, GET_LIMIT, answer).await {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(unreachable("connection lost")),
            None => Err(unreachable(&format!("no answer within {} s", GET_LIMIT.as_secs()))),
        }
    }

    /// Waits for `awaited` as long as the host delivers: in each `limit`, at least the rate of a modem, of any
    /// requested data. So a file may take as long as its link needs, and may wait for others. `None` if the host does
    /// not deliver, or after ten minutes: a hostile host must not deliver for ever.
    pub async fn while_delivering<T>(
        &self,
        host: HostId,
        limit: Duration,
        awaited: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::time::timeout(DELIVERING_MAX, self.delivering(host, limit, awaited)).await.ok().flatten()
    }

    async fn delivering<T>(&self, host: HostId, limit: Duration, awaited: impl Future<Output = T>) -> Option<T> {
        let received_bytes = || self.shared.host_clocks[host as usize].reading().bytes;
        let least = ((RATE_FLOOR_BYTES_PER_S * limit.as_secs_f64()) as u64).max(1);
        let mut awaited = pin!(awaited);
        loop {
            let before = received_bytes();
            if let Ok(done) = tokio::time::timeout(limit, &mut awaited).await {
                return Some(done);
            }
            if received_bytes() - before < least {
                return None;
            }
        }
    }

    /// Returns the error of a host that is out of the run.
    ///
    /// # Errors
    /// [`GetError::Denied`] if the host refuses every request; [`GetError::Final`] if it is out for another reason.
    fn is_asked(&self, host: HostId) -> Result<(), GetError> {
        let mut dispatcher = self.shared.dispatcher();
        let seen = dispatcher.host_mut(host);
        let host = seen.name.clone();
        match (seen.denial(), seen.out_reason()) {
            (Some(denial), _) => Err(GetError::Denied { host, denial: denial.clone() }),
            (None, Some(reason)) => Err(GetError::Final { host, reason: reason.to_owned() }),
            (None, None) => Ok(()),
        }
    }

    /// As [`Watch::get`], but delivers the body as it arrives. It waits for the head as long as the host delivers (see
    /// [`Watch::while_delivering`]). The caller must require each piece within `limit`.
    ///
    /// # Errors
    /// [`GetError::Unreachable`] if the connection is lost, or the host delivers nothing within `limit`;
    /// [`GetError::Denied`] or [`GetError::Final`] if the host is out of the run.
    pub async fn stream(&self, host: HostId, get: Get, limit: Duration) -> Result<Streamed, GetError> {
        let name = self.shared.dispatcher().host_mut(host).name.clone();
        let unreachable = |reason: String| GetError::Unreachable { host: name.clone(), reason };
        self.is_asked(host)?;
        let (head, answer) = oneshot::channel();
        let (pieces, body) = mpsc::channel(STREAM_PIECES);
        let reply = Reply::Stream(Some(head), pieces);
        lock(&self.shared.gets)[host as usize].push_back(PendingGet { get, reply, signed: Signed::default() });
        self.shared.wake.notify_waiters();
        let awaited = self.delivering(host, limit, answer);
        match tokio::time::timeout(HEAD_WAIT_MAX, awaited).await.ok().flatten() {
            Some(Ok(head)) => head.map(|head| Streamed { head, body }),
            Some(Err(_)) => Err(unreachable("connection lost".into())),
            None => Err(unreachable(format!("no answer within {} s", limit.as_secs_f64()))),
        }
    }

    /// Sets the number of connections to a host, capped by the limit of the run. Surplus connections close after the
    /// answers to their requests. With 0, files that only this host has must wait.
    pub fn allow(&self, host: HostId, connections: usize) {
        self.shared.dispatcher().allow(host, connections);
        self.shared.wake.notify_waiters();
    }

    /// Sets whether more files will follow soon. Until then, idle connections take over only requests that are stuck.
    pub fn expect_more(&self, expects: bool) {
        self.shared.dispatcher().expect_more(expects);
        if !expects {
            self.shared.wake.notify_waiters();
        }
    }

    /// Returns the files that received bytes since the last call; none at the first call.
    pub fn take_moved(&self) -> Vec<ItemId> {
        self.shared.dispatcher().take_moved().into_iter().collect()
    }

    /// For each host, how long all machines of a fleet should avoid it.
    pub fn to_avoid(&self) -> Vec<Option<Duration>> {
        let (now, mut dispatcher) = (Instant::now(), self.shared.dispatcher());
        let count = dispatcher.hosts().len() as HostId;
        (0..count).map(|host| dispatcher.host_mut(host).is_to_be_avoided_for(now)).collect()
    }

    /// Number of faults of every host so far, with the last of them.
    pub fn faults(&self) -> Vec<(u64, Option<SeenFault>)> {
        let dispatcher = self.shared.dispatcher();
        let totals = dispatcher.hosts().iter().map(|host| &host.totals);
        totals.map(|totals| (totals.faults + totals.missing, totals.seen_faults.last().cloned())).collect()
    }

    /// State and totals of every host.
    pub fn hosts(&self) -> Vec<HostSeen> {
        let dispatcher = self.shared.dispatcher();
        dispatcher
            .hosts()
            .iter()
            .enumerate()
            .map(|(id, host)| HostSeen {
                name: host.name.clone(),
                phrases: host.phrases().clone(),
                totals: host.totals.clone(),
                out: host.out_reason().map(str::to_owned),
                connections: dispatcher.connections_to(id as HostId),
                rtt: host.measured_rtt(),
                protocol: host.protocol(),
                depth: host.depth(),
            })
            .collect()
    }

    /// Names of the hosts, in the order of their numbers.
    pub fn names(&self) -> Vec<String> {
        self.shared.host_clocks.iter().map(|clock| clock.name().to_owned()).collect()
    }
}
