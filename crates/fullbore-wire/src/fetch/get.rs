//! Small files of one host, outside the queue: whole in memory, or as a stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};

use super::{HostSeen, Shared, lock};
use crate::conditional::EntityTag;
use crate::hosts::{HostId, SeenFault};
use crate::http1::ResponseHead;
use crate::queue::ItemId;
use crate::signer::{Denial, Signed};

/// Time after the head from which on a body is said to linger, and the file is asked for elsewhere as well: as long as
/// the head took, within these bounds. A host that is not slow sends both at once, or within a round trip or two. Guesses.
const LINGERS_LEAST: Duration = Duration::from_millis(5);
const LINGERS_MOST: Duration = Duration::from_millis(500);

/// How long a small file may take, connecting included.
const GET_LIMIT: Duration = Duration::from_secs(30);

/// Pieces of a stream that may wait for their taker; each is at most a read buffer.
const STREAM_PIECES: usize = 8;

/// Why a small file could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// The host is not to be reached.
    #[error("{host}: {reason}")]
    Unreachable {
        /// Name of the host.
        host: String,
        /// What went wrong.
        reason: String,
    },
    /// The run does not ask the host again, or may not look up its name: another try gives the same error.
    #[error("{host}: {reason}")]
    Final {
        /// Name of the host.
        host: String,
        /// What went wrong.
        reason: String,
    },
    /// The host could not show that it is the one asked for.
    #[error("{host}: {reason}")]
    Untrusted {
        /// Name of the host.
        host: String,
        /// What is wrong with its certificate.
        reason: String,
        /// Whether it is that nobody who is trusted vouches for it: naming an authority may help.
        unknown_issuer: bool,
    },
    /// The host refuses every request, as those without the right credentials.
    #[error("{host}: {}", denial.why)]
    Denied {
        /// Name of the host.
        host: String,
        /// Its reason.
        denial: Denial,
    },
    /// The body is larger than it may be.
    #[error("{host}: {path} is larger than {limit_bytes} bytes")]
    TooLarge {
        /// Name of the host.
        host: String,
        /// What was asked for.
        path: String,
        /// The bound.
        limit_bytes: u64,
    },
}

/// A file that comes from one host in one piece: the first of a chain of trust, whose size nobody
/// knows yet.
#[derive(Clone, Debug, Default)]
pub struct Get {
    /// Path of the file below the mirror's address.
    pub path: String,
    /// Size at which it is refused.
    pub limit_bytes: u64,
    /// Not needed if it still has this ETag …
    pub if_none_match: Option<EntityTag>,
    /// … or has not changed since, in seconds since 1970.
    pub if_modified_since: Option<i64>,
    /// Only the head is wanted (HEAD).
    pub head_only: bool,
    /// Further header fields of the request, name and value.
    pub fields: Vec<(String, String)>,
    /// Where the head is noted when it comes, before the body does.
    pub head_seen: Option<HeadSeen>,
}

/// The head of an answer whose body may take long. To be made when the file is asked for; clones are of the same answer.
#[derive(Clone, Debug)]
pub struct HeadSeen {
    asked: Instant,
    noted: watch::Sender<Option<Noted>>,
}

#[derive(Clone, Debug)]
struct Noted {
    head: ResponseHead,
    /// From then on the body lingers.
    until: Instant,
}

impl Default for HeadSeen {
    fn default() -> HeadSeen {
        HeadSeen { asked: Instant::now(), noted: watch::Sender::default() }
    }
}

impl HeadSeen {
    /// How often to look at the heads of several answers: an answer that lingers does so by time alone.
    pub const LOOK_EVERY: Duration = LINGERS_LEAST;

    pub(crate) fn note(&self, head: &ResponseHead) {
        let now = Instant::now();
        // The way there and back is in the time that the head took.
        let timeout = now.saturating_duration_since(self.asked).clamp(LINGERS_LEAST, LINGERS_MOST);
        self.noted.send_replace(Some(Noted { head: head.clone(), until: now + timeout }));
    }

    /// The head, once it has come.
    pub fn head(&self) -> Option<ResponseHead> {
        self.noted.borrow().as_ref().map(|noted| noted.head.clone())
    }

    /// Waits until the head has come.
    pub async fn comes(&self) {
        if self.noted.subscribe().wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether the head of a file has come and its body has not, as long after it again.
    pub fn lingers_now(&self) -> bool {
        let noted = self.noted.borrow();
        noted.as_ref().is_some_and(|noted| noted.head.status == 200 && Instant::now() >= noted.until)
    }

    /// Waits until it is so. Never ends if the answer is no file: then there is nothing to ask for elsewhere.
    pub async fn lingers(&self) {
        let mut noted = self.noted.subscribe();
        let is_file = |noted: &Option<Noted>| noted.as_ref().is_some_and(|noted| noted.head.status == 200);
        let until = noted.wait_for(is_file).await.ok().and_then(|noted| noted.as_ref().map(|noted| noted.until));
        match until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Whether the file that is on its way last changed then or before, in Unix seconds, as far as its head tells.
    pub fn is_no_newer_than(&self, modified: i64) -> bool {
        let is_file = |head: &ResponseHead| head.status == 200;
        self.head().is_some_and(|head| is_file(&head) && head.last_modified.is_some_and(|own| own <= modified))
    }

    /// Whether the file that is on its way seems to be this very one: of the same time and length.
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
    /// The body; of an error page too.
    pub body: Vec<u8>,
    /// Reason of a refusal by a host that wants signatures.
    pub denial: Option<Denial>,
}

/// A piece of a body that comes as a stream.
#[derive(Debug)]
pub enum Piece {
    /// Bytes.
    Data(Bytes),
    /// The body is whole.
    End,
}

/// The answer to a [`Get`] whose body comes as it arrives.
#[derive(Debug)]
pub struct Streamed {
    /// Status and header fields of the answer.
    pub head: ResponseHead,
    /// The body in order, up to [`Piece::End`]. Slow takers slow the sender.
    pub body: mpsc::Receiver<Result<Piece, GetError>>,
}

/// Who waits for a [`Get`].
#[derive(Debug)]
pub(crate) enum Reply {
    /// For the whole.
    Whole(oneshot::Sender<Result<Got, GetError>>),
    /// For the head, and then for pieces.
    Stream(Option<oneshot::Sender<Result<ResponseHead, GetError>>>, mpsc::Sender<Result<Piece, GetError>>),
}

/// A [`Get`] on its way to a connection.
#[derive(Debug)]
pub(crate) struct PendingGet {
    pub get: Get,
    pub reply: Reply,
    pub signed: Signed,
}

/// Looks at a run from outside of its task: for progress, samples and reports.
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
        match tokio::time::timeout(GET_LIMIT, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(unreachable("connection lost")),
            Err(_) => Err(unreachable(&format!("no answer within {} s", GET_LIMIT.as_secs()))),
        }
    }

    /// The error of a host that the run asks for nothing more.
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

    /// As [`Watch::get`], but the body is handed out as it arrives. Both the head and each piece
    /// must come within `timeout`; it is for the caller to say so of the pieces.
    ///
    /// # Errors
    /// The host is not to be reached, or says nothing.
    pub async fn stream(&self, host: HostId, get: Get, timeout: Duration) -> Result<Streamed, GetError> {
        let name = self.shared.dispatcher().host_mut(host).name.clone();
        let unreachable = |reason: String| GetError::Unreachable { host: name.clone(), reason };
        self.is_asked(host)?;
        let (head, answer) = oneshot::channel();
        let (pieces, body) = mpsc::channel(STREAM_PIECES);
        let reply = Reply::Stream(Some(head), pieces);
        lock(&self.shared.gets)[host as usize].push_back(PendingGet { get, reply, signed: Signed::default() });
        self.shared.wake.notify_waiters();
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(head)) => head.map(|head| Streamed { head, body }),
            Ok(Err(_)) => Err(unreachable("connection lost".into())),
            Err(_) => Err(unreachable(format!("no answer within {} s", timeout.as_secs_f64()))),
        }
    }

    /// From now on, the host may have this number of connections, and never more than the limit of the run. Surplus
    /// connections close after the answers that they wait for. Files that only this host has wait while it may have none.
    pub fn allow(&self, host: HostId, connections: usize) {
        self.shared.dispatcher().allow(host, connections);
        self.shared.wake.notify_waiters();
    }

    /// Says whether more files are to come soon. As long as they are, connections that have nothing to do take over from
    /// others only what is stuck.
    pub fn expect_more(&self, expects: bool) {
        self.shared.dispatcher().expect_more(expects);
        if !expects {
            self.shared.wake.notify_waiters();
        }
    }

    /// The files of which bytes have come since the last call; none at the first one.
    pub fn take_moved(&self) -> Vec<ItemId> {
        self.shared.dispatcher().take_moved().into_iter().collect()
    }

    /// How long every machine of a fleet is to leave each host alone.
    pub fn to_avoid(&self) -> Vec<Option<Duration>> {
        let (now, mut dispatcher) = (Instant::now(), self.shared.dispatcher());
        let count = dispatcher.hosts().len() as HostId;
        (0..count).map(|host| dispatcher.host_mut(host).is_to_be_avoided_for(now)).collect()
    }

    /// The number of faults of every host so far, and the last of them.
    pub fn faults(&self) -> Vec<(u64, Option<SeenFault>)> {
        let dispatcher = self.shared.dispatcher();
        let totals = dispatcher.hosts().iter().map(|host| &host.totals);
        totals.map(|totals| (totals.faults + totals.missing, totals.seen_faults.last().cloned())).collect()
    }

    /// Every host as seen so far.
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

    /// Names of the hosts, in order.
    pub fn names(&self) -> Vec<String> {
        self.shared.host_clocks.iter().map(|clock| clock.name().to_owned()).collect()
    }
}
