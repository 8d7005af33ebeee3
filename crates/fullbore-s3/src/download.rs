//! Downloads an object by concurrent ranges, which are passed on in order and verified.
//!
//! The first range and the request for checksums are sent together, so that a small object takes one round trip. Later
//! ranges are requested once the object's length is known, with `If-Match`: if the object is replaced meanwhile, that
//! is an error, not a mixture. If a store sends the whole object for a range, all of it is read from one answer.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fullbore_engine::digest::READ_BYTES;
use fullbore_engine::files::tree::Mtime;
use fullbore_engine::window::{Permit, Window};
use fullbore_wire::exchange::Streamed;
use fullbore_wire::http1::Method;
use fullbore_wire::range::{ByteRange, ContentRange};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::client::{Answer, Call, CallError, Client, is_same_etag};
use super::compare::{self, Checker, Doubt, Finding, Present, Proof};
use super::dialect::{Feature, Support};

/// Maximum number of bytes in flight: enough for 1 Gbit/s over 0.4 s.
pub(crate) const WINDOW_BYTES: u64 = 48 << 20;

/// Maximum number of ranges in flight.
pub(crate) const RANGES_AT_ONCE: u32 = (WINDOW_BYTES / RANGE_BYTES) as u32;

/// Size of a range, in bytes: half a part. Twelve of them keep a long path full while the first is being received.
pub(crate) const RANGE_BYTES: u64 = 4 << 20;

/// Maximum number of pieces of a whole object that wait for hashing, and number of bytes hashed at once.
const STREAMED_PIECES: usize = 16;
const GATHERED_BYTES: usize = 1 << 20;

/// Within this round trip to the store, ranges are larger: more requests would cost the store more than the path gains.
const NEAR: Duration = Duration::from_millis(1);
const NEAR_RANGE_BYTES: u64 = 16 << 20;

/// Why an object was not downloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// A request failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// There is no such object.
    #[error("{key:?}: no such object in this bucket")]
    Missing {
        /// Key of the object.
        key: String,
    },
    /// The object was replaced during the download.
    #[error("{key:?}: the object was replaced while it was read")]
    Changed {
        /// Key of the object.
        key: String,
    },
    /// The content does not match its checksum.
    #[error("{key:?}: the content does not match the checksum of the store")]
    Wrong {
        /// Key of the object.
        key: String,
    },
    /// No checksum verifies the content, and one is required.
    #[error("{key:?}: {}", unverified(*doubt))]
    Unverified {
        /// Key of the object.
        key: String,
        /// Why it cannot be verified.
        doubt: Doubt,
    },
    /// The store sent another range than requested.
    #[error("{key:?}: the store sent another range than requested")]
    Range {
        /// Key of the object.
        key: String,
    },
    /// The store sent fewer or more bytes than the object has.
    #[error("{key:?}: the store sent {bytes} bytes of an object of {size} bytes")]
    Truncated {
        /// Key of the object.
        key: String,
        /// Number of received bytes.
        bytes: u64,
        /// Size of the object in bytes, from another answer.
        size: u64,
    },
    /// The unfinished file of an earlier run cannot be read or cut.
    #[error("{key:?}: cannot use the unfinished file: {source}")]
    Beginning {
        /// Key of the object.
        key: String,
        /// The system's error.
        source: io::Error,
    },
    /// The receiver of the content is gone.
    #[error("the receiver of the content has stopped")]
    Unwanted,
}

/// Result of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Downloaded {
    /// Size of the object, in bytes.
    pub size: u64,
    /// Modification time of its source file, otherwise the time of its upload.
    pub modified: Option<Mtime>,
    /// Why no checksum verifies the content; `None` if one does.
    pub doubt: Option<Doubt>,
}

/// Whether the reused beginning may belong to another object than the downloaded one. Without a noted ETag
/// ([`Beginning::etag`]), only a passed test excludes that.
pub(crate) fn is_of_another(got: &Result<Downloaded, DownloadError>, used_bytes: u64, was_noted: bool) -> bool {
    let may_be = match got {
        Ok(got) => got.doubt.is_some() && !was_noted,
        Err(error) => matches!(
            error,
            DownloadError::Wrong { .. } | DownloadError::Unverified { .. } | DownloadError::Beginning { .. }
        ),
    };
    may_be && used_bytes > 0
}

/// Describes unverified content.
pub(crate) fn unverified(doubt: Doubt) -> &'static str {
    match doubt {
        Doubt::NoChecksum => "the store has no checksum of this object; only its length is verified",
        Doubt::UnknownParts => {
            "the content is unverified: the store has a checksum of the object's parts, but not their sizes"
        }
        Doubt::EtagOnly => {
            "the content is unverified: the store has no checksum of this object, and its ETag is not the content's MD5"
        }
    }
}

/// Downloads an object. Its bytes are sent to `out` in order, range by range, before all of them are verified. If
/// `required`, content that no checksum verifies is an error, and an object without any checksum is not sent.
/// `known_bytes` is set to the object's length as soon as it is known.
///
/// # Errors
/// A [`DownloadError`]; the bytes sent so far must not be used then.
pub async fn get(
    client: &Client,
    key: &str,
    window: &Window,
    out: &mpsc::Sender<Vec<Bytes>>,
    required: bool,
    known_bytes: &AtomicU64,
) -> Result<Downloaded, DownloadError> {
    get_rest(client, key, window, out, required, known_bytes, Beginning::none()).await
}

/// The beginning of an object that an earlier run has downloaded.
pub(crate) struct Beginning {
    /// Length of the beginning, in bytes.
    pub bytes: u64,
    /// ETag of the object at that time, if it was noted.
    pub etag: Option<String>,
    /// Reads the beginning at an offset.
    pub read: ReadAt,
    /// Called before any content is sent, with the number of bytes that are reused and the object's ETag.
    pub settle: Settle,
}

type ReadAt = Box<dyn Fn(u64, &mut [u8]) -> io::Result<usize> + Send>;
type Settle = Box<dyn FnOnce(u64, Option<&str>) -> io::Result<()> + Send>;

impl Beginning {
    /// An empty beginning.
    pub(crate) fn none() -> Beginning {
        Beginning { bytes: 0, etag: None, read: Box::new(|_, _| Ok(0)), settle: Box::new(|_, _| Ok(())) }
    }

    /// Number of bytes that may belong to this object: its ETag equals the noted one, or a checksum will verify it.
    fn usable(&self, present: &Present, is_verifiable: bool) -> u64 {
        let may_be = match &self.etag {
            Some(etag) => present.etag.as_ref() == Some(etag),
            None => is_verifiable,
        };
        if may_be && self.bytes <= present.size { self.bytes } else { 0 }
    }
}

/// As [`get`], but only the bytes behind an existing beginning are sent to `out`. Beginning and rest are verified
/// together.
///
/// # Errors
/// As [`get`], and [`DownloadError::Beginning`] if the beginning cannot be read or cut. After a failed verification,
/// the beginning may belong to another object.
pub(crate) async fn get_rest(
    client: &Client,
    key: &str,
    window: &Window,
    out: &mpsc::Sender<Vec<Bytes>>,
    required: bool,
    known_bytes: &AtomicU64,
    beginning: Beginning,
) -> Result<Downloaded, DownloadError> {
    let asks_first = beginning.bytes == 0 && !client.dialect().lacks(Feature::Ranges);
    let mut first = match asks_first {
        true => Some(PendingRange::ask(client, key, 0..RANGE_BYTES, None, window.acquire(RANGE_BYTES).await)),
        false => None,
    };
    let mut present = match (compare::head(client, key).await?, &mut first) {
        (Some(present), _) => present,
        (None, Some(first)) => return Err(first.missing(key).await),
        (None, None) => return Err(DownloadError::Missing { key: key.to_owned() }),
    };
    if let Some(first) = first.as_mut().filter(|_| present.size == 0) {
        // Some proxies omit the length from an answer without a body.
        present.size = first.complete_length().await?;
    }
    known_bytes.store(present.size, Ordering::Relaxed);
    // The sizes of parts are requested in parallel, because the first ranges do not need them.
    let mut proving = JoinSet::new();
    proving.spawn({
        let (client, key, present) = (client.clone(), key.to_owned(), present.clone());
        async move { compare::proof(&client, &key, &present).await }
    });
    let mut run = Run { client, key, present: &present, required, proving, checker: None };
    let from = run.begin(beginning).await?;
    run.ranges(from, first, window, out).await?;
    run.end().await
}

struct Run<'a> {
    client: &'a Client,
    key: &'a str,
    present: &'a Present,
    required: bool,
    /// Determines the tests of the content; ends with the run.
    proving: JoinSet<Result<Proof, CallError>>,
    /// `None` while it is in use, and before the first content has arrived.
    checker: Option<Checker>,
}

impl Run<'_> {
    /// Takes the checker, which the caller puts back.
    async fn checker(&mut self) -> Result<Checker, DownloadError> {
        if let Some(checker) = self.checker.take() {
            return Ok(checker);
        }
        let failed = |error: String| CallError::GivenUp(format!("a task failed: {error}"));
        let proof = self.proving.join_next().await.ok_or_else(|| failed("no proof".into()))?;
        let proof = proof.map_err(|error| failed(error.to_string()))??;
        match proof.doubt {
            Some(doubt) if self.required && proof.tests.is_empty() => {
                Err(DownloadError::Unverified { key: self.key.to_owned(), doubt })
            }
            _ => Ok(Checker::new(proof)),
        }
    }

    /// Hashes the reusable part of the beginning, and returns its length.
    async fn begin(&mut self, beginning: Beginning) -> Result<u64, DownloadError> {
        let failed = |source| DownloadError::Beginning { key: self.key.to_owned(), source };
        let etag = self.present.etag.as_deref();
        if beginning.bytes == 0 {
            (beginning.settle)(0, etag).map_err(failed)?;
            return Ok(0);
        }
        let mut checker = self.checker().await?;
        let from = beginning.usable(self.present, checker.has_tests());
        let etag = etag.map(str::to_owned);
        let hashing = tokio::task::spawn_blocking(move || {
            (beginning.settle)(from, etag.as_deref())?;
            let mut buffer = vec![0; READ_BYTES];
            let mut offset = 0;
            while offset < from {
                let most = usize::try_from(from - offset).unwrap_or(usize::MAX).min(buffer.len());
                let count = (beginning.read)(offset, &mut buffer[..most])?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                checker.update(&[&buffer[..count]]);
                offset += count as u64;
            }
            Ok(checker)
        });
        let hashed = hashing.await.map_err(|error| CallError::GivenUp(format!("a task failed: {error}")))?;
        let failed = |source| DownloadError::Beginning { key: self.key.to_owned(), source };
        self.checker = Some(hashed.map_err(failed)?);
        Ok(from)
    }

    /// The bytes of an answer, if it is for the expected range.
    fn check(&self, answer: Result<Answer, CallError>, expected: Range<u64>) -> Result<Vec<Bytes>, DownloadError> {
        let answer = match answer {
            // No range of an empty object can be satisfied.
            Err(CallError::Refused { status: 416, .. }) if self.present.size == 0 => return Ok(Vec::new()),
            answer => answer?,
        };
        let key = || self.key.to_owned();
        let length = expected.end - expected.start;
        let right = match (answer.head.status, answer.head.content_range) {
            (404, _) => return Err(DownloadError::Missing { key: key() }),
            (412, _) => return Err(DownloadError::Changed { key: key() }),
            (206, Some(ContentRange::Bytes { first, last, complete })) => {
                if complete.is_some_and(|complete| complete != self.present.size) {
                    return Err(DownloadError::Changed { key: key() });
                }
                first == expected.start && last.checked_add(1) == Some(expected.end)
            }
            // The whole object, if the whole object was requested.
            (200, None) => expected.start == 0 && length == self.present.size,
            _ => return Err(CallError::refused(format!("GET {}", self.key), &answer).into()),
        };
        if !is_same_etag(&answer.head, self.present.etag.as_deref()) {
            return Err(DownloadError::Changed { key: key() });
        }
        if right && answer.pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() == length {
            Ok(answer.pieces)
        } else {
            Err(DownloadError::Range { key: key() })
        }
    }

    /// Returns the result of the verification.
    async fn end(&mut self) -> Result<Downloaded, DownloadError> {
        let key = || self.key.to_owned();
        let Present { size, modified, .. } = *self.present;
        match self.checker().await?.finish() {
            Finding::Right => Ok(Downloaded { size, modified, doubt: None }),
            Finding::Wrong => Err(DownloadError::Wrong { key: key() }),
            Finding::Unverified(doubt) if self.required => Err(DownloadError::Unverified { key: key(), doubt }),
            Finding::Unverified(doubt) => Ok(Downloaded { size, modified, doubt: Some(doubt) }),
        }
    }

    /// Downloads everything from an offset on; the first range may be in flight already.
    ///
    /// Objects share the window, so an object that holds a place must never wait for another object. Its ranges get
    /// their places in order. Only the range that is sent next, while the object holds no place, may wait. Otherwise
    /// ranges that wait for their turn could hold all places that the first ones need.
    async fn ranges(
        &mut self,
        from: u64,
        first: Option<PendingRange>,
        window: &Window,
        out: &mpsc::Sender<Vec<Bytes>>,
    ) -> Result<(), DownloadError> {
        let size = self.present.size;
        if first.is_none() && from < size && self.client.dialect().lacks(Feature::Ranges) {
            return self.whole(from, window, out).await;
        }
        let mut next = if first.is_some() { RANGE_BYTES } else { from };
        let mut under_way: VecDeque<_> = first.into_iter().map(|first| (0..RANGE_BYTES.min(size), first)).collect();
        let length = range_bytes(self.client.reading().round_trip);
        while next < size || !under_way.is_empty() {
            while next < size && (under_way.len() as u64) < WINDOW_BYTES / length {
                let bytes = next..(next + length).min(size);
                let permit = match (window.try_acquire(bytes.end - bytes.start), under_way.is_empty()) {
                    (Some(permit), _) => permit,
                    (None, true) => window.acquire(bytes.end - bytes.start).await,
                    (None, false) => break,
                };
                next = bytes.end;
                let etag = self.present.etag.as_deref();
                under_way.push_back((bytes.clone(), PendingRange::ask(self.client, self.key, bytes, etag, permit)));
            }
            let Some((bytes, mut asked)) = under_way.pop_front() else { break };
            let (mut answer, mut permit) = asked.answer().await?;
            if answer.as_ref().is_ok_and(|answer| answer.is_cut) {
                self.client.dialect().learn(Feature::Ranges, Support::Lacking);
            }
            if self.client.dialect().lacks(Feature::Ranges) {
                under_way.clear();
                drop((asked, permit));
                return self.whole(bytes.start, window, out).await;
            }
            if answer.as_ref().is_ok_and(|answer| answer.head.status == 412) && self.ignores_etags().await? {
                asked = PendingRange::ask(self.client, self.key, bytes.clone(), None, permit);
                (answer, permit) = asked.answer().await?;
            }
            let pieces = self.check(answer, bytes)?;
            self.give(pieces, out).await?;
            drop(permit);
        }
        Ok(())
    }

    /// Downloads everything from an offset on, from one answer with the whole object.
    async fn whole(&mut self, from: u64, window: &Window, out: &mpsc::Sender<Vec<Bytes>>) -> Result<(), DownloadError> {
        let _permit = window.acquire(RANGE_BYTES).await;
        let mut given = from;
        let answer = match self.stream(&mut given, out).await? {
            answer if answer.head.status == 412 && self.ignores_etags().await? => self.stream(&mut given, out).await?,
            answer => answer,
        };
        let key = || self.key.to_owned();
        match answer.head.status {
            200 if given == self.present.size => Ok(()),
            200 => Err(DownloadError::Range { key: key() }),
            404 => Err(DownloadError::Missing { key: key() }),
            412 => Err(DownloadError::Changed { key: key() }),
            _ => Err(CallError::refused(format!("GET {}", self.key), &answer).into()),
        }
    }

    /// Requests the object, and sends the bytes behind those that were sent already.
    async fn stream(&mut self, given: &mut u64, out: &mpsc::Sender<Vec<Bytes>>) -> Result<Answer, DownloadError> {
        let changed = || DownloadError::Changed { key: self.key.to_owned() };
        let (size, etag) = (self.present.size, self.present.etag.as_deref());
        let mut call = get_call(self.key, etag);
        let (sender, mut arriving) = mpsc::channel(STREAMED_PIECES);
        call.stream = Some(sender);
        let client = self.client.clone();
        // Ends with this function, as the receiver does.
        let mut calling = JoinSet::new();
        calling.spawn(async move { client.call(call).await });
        let (mut offset, mut gathered, mut gathered_bytes) = (0, Vec::new(), 0);
        loop {
            // After its head, a call ends at a stop only if its pieces are taken, or the receiver is dropped.
            let arrived = tokio::select! {
                arrived = arriving.recv() => arrived,
                () = self.client.stopped() => return Err(CallError::Interrupted.into()),
            };
            let Some(arrived) = arrived else { break };
            let data = match arrived {
                // The request may have been sent again: bytes that were sent already arrive once more.
                Streamed::Head(head) => {
                    if !is_same_etag(&head, etag) || head.content_length.is_some_and(|length| length != size) {
                        return Err(changed());
                    }
                    self.give(std::mem::take(&mut gathered), out).await?;
                    (offset, gathered_bytes) = (0, 0);
                    continue;
                }
                Streamed::Data(data) => data,
            };
            let from = offset;
            offset += data.len() as u64;
            if offset > size {
                return Err(changed());
            }
            let known = usize::try_from(given.saturating_sub(from)).unwrap_or(usize::MAX).min(data.len());
            let new = data.slice(known..);
            *given += new.len() as u64;
            gathered_bytes += new.len();
            gathered.push(new);
            if gathered_bytes >= GATHERED_BYTES {
                self.give(std::mem::take(&mut gathered), out).await?;
                gathered_bytes = 0;
            }
        }
        self.give(gathered, out).await?;
        let answered = calling.join_next().await;
        let failed = |error: &dyn std::fmt::Display| CallError::GivenUp(format!("a task failed: {error}"));
        Ok(answered.ok_or_else(|| failed(&"no answer"))?.map_err(|error| failed(&error))??)
    }

    /// Whether the store refuses `If-Match` although the object is unchanged. ETags are compared all the same.
    async fn ignores_etags(&self) -> Result<bool, DownloadError> {
        let dialect = self.client.dialect();
        if dialect.lacks(Feature::GetIfMatch) {
            return Ok(true);
        }
        let now = compare::head(self.client, self.key).await?;
        let is_same = now.is_some_and(|now| now.etag == self.present.etag && now.size == self.present.size);
        if is_same {
            dialect.learn(Feature::GetIfMatch, Support::Lacking);
        }
        Ok(is_same)
    }

    /// Hashes a range and sends it on.
    async fn give(&mut self, pieces: Vec<Bytes>, out: &mpsc::Sender<Vec<Bytes>>) -> Result<(), DownloadError> {
        let mut checker = self.checker().await?;
        let hashed = pieces.clone();
        let hashing = tokio::task::spawn_blocking(move || {
            checker.update(&hashed);
            checker
        });
        let sent = out.send(pieces).await;
        let checker = hashing.await.map_err(|error| CallError::GivenUp(format!("a task failed: {error}")))?;
        self.checker = Some(checker);
        sent.map_err(|_| DownloadError::Unwanted)
    }
}

/// Size of all ranges but the first, for a path with this round trip.
fn range_bytes(round_trip: Option<Duration>) -> u64 {
    if round_trip.is_some_and(|time| time <= NEAR) { NEAR_RANGE_BYTES } else { RANGE_BYTES }
}

/// The request for an object, with `If-Match` if `etag` is given.
fn get_call(key: &str, etag: Option<&str>) -> Call {
    let call = Call::new(Method::Get, Some(key));
    match etag {
        Some(etag) => call.optional_field(Feature::GetIfMatch, "If-Match", format!("\"{etag}\"")),
        None => call,
    }
}

type RangeResult = (Result<Answer, CallError>, Permit);

/// A range in flight; dropping it cancels it.
struct PendingRange {
    task: JoinHandle<RangeResult>,
    /// The task's result, if it was read early.
    arrived: Option<RangeResult>,
}

impl PendingRange {
    /// Requests a range, which has its place in the window.
    fn ask(client: &Client, key: &str, bytes: Range<u64>, etag: Option<&str>, permit: Permit) -> PendingRange {
        let client = client.clone();
        let mut call = get_call(key, etag);
        call.range = ByteRange::of(&bytes);
        let length = bytes.end - bytes.start;
        call.answer_bytes_max = usize::try_from(length).unwrap_or(usize::MAX);
        let task = tokio::spawn(async move { (client.call(call).await, permit) });
        PendingRange { task, arrived: None }
    }

    /// Size of the whole object, if the answer gives it; otherwise 0.
    async fn complete_length(&mut self) -> Result<u64, CallError> {
        let arrived = self.answer().await?;
        let length = arrived.0.as_ref().ok().and_then(|answer| match answer.head.content_range {
            Some(ContentRange::Bytes { complete, .. }) => complete,
            _ if answer.head.status == 200 => answer.head.content_length,
            _ => None,
        });
        self.arrived = Some(arrived);
        Ok(length.unwrap_or(0))
    }

    /// What is missing: an answer to HEAD has no body that would distinguish a missing bucket from a missing object.
    async fn missing(&mut self, key: &str) -> DownloadError {
        if let Ok((Ok(answer), _)) = self.answer().await {
            let refused = CallError::refused(format!("GET {key}"), &answer);
            if refused.code() == "NoSuchBucket" {
                return refused.into();
            }
        }
        DownloadError::Missing { key: key.to_owned() }
    }

    async fn answer(&mut self) -> Result<RangeResult, CallError> {
        match self.arrived.take() {
            Some(arrived) => Ok(arrived),
            None => (&mut self.task).await.map_err(|error| CallError::GivenUp(format!("a task failed: {error}"))),
        }
    }
}

impl Drop for PendingRange {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_large_only_where_it_is_known_that_the_store_is_near() {
        let of = |micros| range_bytes(Some(Duration::from_micros(micros)));
        assert_eq!((of(100), of(20_000), range_bytes(None)), (NEAR_RANGE_BYTES, RANGE_BYTES, RANGE_BYTES));
        assert_eq!(WINDOW_BYTES % NEAR_RANGE_BYTES, 0);
    }
}
