//! An object out of a store, by ranges that are on their way at once, given out in order and verified.
//!
//! The first range and the question for checksums go together, so that a small object costs one round trip. All later
//! ranges, which are asked for once the object's length is known, are of the same object (`If-Match`): one that is
//! replaced meanwhile is an error, not a mixture. Where a store sends the whole object for a range, all of it is read
//! from one answer.

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

/// Bytes on their way at once: they carry 1 Gbit/s over 0.4 s.
pub const WINDOW_BYTES: u64 = 48 << 20;

/// Ranges on their way at once, at most.
pub const RANGES_AT_ONCE: u32 = (WINDOW_BYTES / RANGE_BYTES) as u32;

/// Bytes of a range: half a part. Twelve of them keep a long path full while one is waited for.
pub const RANGE_BYTES: u64 = 4 << 20;

/// Pieces of a whole object between its connection and the hashing, and bytes that are hashed at once.
const STREAMED_PIECES: usize = 16;
const GATHERED_BYTES: usize = 1 << 20;

/// From a store within this round trip, where more of them cost it more than the way does, they are larger.
const NEAR: Duration = Duration::from_millis(1);
const NEAR_RANGE_BYTES: u64 = 16 << 20;

/// Why an object is not here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// The store's part.
    #[error(transparent)]
    Call(#[from] CallError),
    /// There is no such object.
    #[error("{key:?}: no such object in this bucket")]
    Missing {
        /// Its key.
        key: String,
    },
    /// It was replaced meanwhile.
    #[error("{key:?}: the object was replaced while it was read")]
    Changed {
        /// Its key.
        key: String,
    },
    /// It is not what its checksum says.
    #[error("{key:?}: the content does not match the checksum of the store")]
    Wrong {
        /// Its key.
        key: String,
    },
    /// No checksum shows that it is right, and one is required.
    #[error("{key:?}: {}", unverified(*doubt))]
    Unverified {
        /// Its key.
        key: String,
        /// Why not.
        doubt: Doubt,
    },
    /// Another range than was asked for.
    #[error("{key:?}: the store sent another range than requested")]
    Range {
        /// Its key.
        key: String,
    },
    /// Less, or more, than the object has.
    #[error("{key:?}: the store sent {bytes} bytes of an object of {size} bytes")]
    Truncated {
        /// Its key.
        key: String,
        /// What came.
        bytes: u64,
        /// What the object has, as the store says elsewhere.
        size: u64,
    },
    /// What an earlier run left of it cannot be read or cut.
    #[error("{key:?}: cannot use the unfinished file: {source}")]
    Beginning {
        /// Its key.
        key: String,
        /// What the system said.
        source: io::Error,
    },
    /// Whoever wanted it has gone.
    #[error("the receiver of the content has stopped")]
    Unwanted,
}

/// Result of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Downloaded {
    /// Length of the object in bytes.
    pub size: u64,
    /// The time of the file that it was made of, or when it was made.
    pub modified: Option<Mtime>,
    /// Why no checksum of the store proves them; `None`: one does.
    pub doubt: Option<Doubt>,
}

/// Whether a beginning, of which so much was used, may be that of another object than the one that was got. Without a
/// noted ETag ([`Beginning::etag`]) only a passed test shows that it is not.
pub fn is_of_another(got: &Result<Downloaded, DownloadError>, used_bytes: u64, was_noted: bool) -> bool {
    let may_be = match got {
        Ok(got) => got.doubt.is_some() && !was_noted,
        Err(error) => matches!(
            error,
            DownloadError::Wrong { .. } | DownloadError::Unverified { .. } | DownloadError::Beginning { .. }
        ),
    };
    may_be && used_bytes > 0
}

/// What is known of content that is unverified.
pub fn unverified(doubt: Doubt) -> &'static str {
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

/// Gets an object; its bytes go to `out` in order, range by range, before all of them are verified. Where a checksum is
/// `required`, content that none shows to be right is an error, and of an object without any nothing is given out.
/// `known_bytes` is set to the object's length as soon as that is known.
///
/// # Errors
/// [`DownloadError`]; what was given out is not to be used then.
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

/// What is here of an object already, from an earlier run.
pub struct Beginning {
    /// Bytes of it.
    pub bytes: u64,
    /// The object's ETag then, if it was noted.
    pub etag: Option<String>,
    /// Reads it at an offset.
    pub read: ReadAt,
    /// Hears, before any content is given out, how much of it is used, and which ETag the object has.
    pub settle: Settle,
}

type ReadAt = Box<dyn Fn(u64, &mut [u8]) -> io::Result<usize> + Send>;
type Settle = Box<dyn FnOnce(u64, Option<&str>) -> io::Result<()> + Send>;

impl Beginning {
    /// Of nothing.
    pub fn none() -> Beginning {
        Beginning { bytes: 0, etag: None, read: Box::new(|_, _| Ok(0)), settle: Box::new(|_, _| Ok(())) }
    }

    /// Bytes of it that may be those of this object: of one with the ETag that was noted, or of one that a checksum
    /// will verify.
    fn usable(&self, present: &Present, is_verifiable: bool) -> u64 {
        let may_be = match &self.etag {
            Some(etag) => present.etag.as_ref() == Some(etag),
            None => is_verifiable,
        };
        if may_be && self.bytes <= present.size { self.bytes } else { 0 }
    }
}

/// As [`get`], of what is behind the beginning that is here: `out` gets the rest, and all of it is verified together.
///
/// # Errors
/// As there. After a failed verification the beginning may be that of another object.
pub async fn get_rest(
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
        // Some proxies leave the length out of an answer without a body.
        present.size = first.complete_length().await?;
    }
    known_bytes.store(present.size, Ordering::Relaxed);
    // Sizes of parts are asked for beside the first ranges, which they need not wait for.
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
    /// Finds out what shows the content; ends with the run.
    proving: JoinSet<Result<Proof, CallError>>,
    /// Away while it works, and until the first content is there.
    checker: Option<Checker>,
}

impl Run<'_> {
    /// The checker, which is away from then on.
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

    /// Hashes the beginning that is here, as far as it may be used; gives its length.
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

    /// The bytes of an answer, if it is the answer to that question.
    fn check(&self, answer: Result<Answer, CallError>, expected: Range<u64>) -> Result<Vec<Bytes>, DownloadError> {
        let answer = match answer {
            // Nothing satisfies a range of an empty object.
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
            // The whole of it, where that was what was asked for.
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

    /// What verification has found.
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

    /// Gives out all from an offset on; the first range may be under way.
    ///
    /// Objects share the window, so that nothing of an object that holds a place waits for another one: its ranges get
    /// their places in order, and only the one that is given out next, while nothing of the object is held, waits. Else
    /// ranges that wait for their turn could hold all places for which the first ones wait.
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

    /// Gives out all from an offset on, out of one answer with the whole object.
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

    /// Asks for the object, and gives out its bytes behind those that were given out already.
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
            // A call that has its head ends a stop only when its pieces are taken, or nobody takes them.
            let arrived = tokio::select! {
                arrived = arriving.recv() => arrived,
                () = self.client.stopped() => return Err(CallError::Interrupted.into()),
            };
            let Some(arrived) = arrived else { break };
            let data = match arrived {
                // The request was sent again, perhaps: what was given out comes once more.
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

    /// Whether the store refuses `If-Match` although the object is the same. Its ETag is compared all the same.
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

    /// Hashes a range and gives it out.
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

/// Bytes of all ranges but the first, over a path of this round trip.
fn range_bytes(round_trip: Option<Duration>) -> u64 {
    if round_trip.is_some_and(|time| time <= NEAR) { NEAR_RANGE_BYTES } else { RANGE_BYTES }
}

/// The request for an object, which is to be the one of this ETag.
fn get_call(key: &str, etag: Option<&str>) -> Call {
    let call = Call::new(Method::Get, Some(key));
    match etag {
        Some(etag) => call.optional_field(Feature::GetIfMatch, "If-Match", format!("\"{etag}\"")),
        None => call,
    }
}

type RangeResult = (Result<Answer, CallError>, Permit);

/// A range on its way; dropped, it is not wanted any more.
struct PendingRange {
    task: JoinHandle<RangeResult>,
    /// What the task gave, when it was looked at before it was wanted.
    arrived: Option<RangeResult>,
}

impl PendingRange {
    /// Asks for a range, which has its place in the window.
    fn ask(client: &Client, key: &str, bytes: Range<u64>, etag: Option<&str>, permit: Permit) -> PendingRange {
        let client = client.clone();
        let mut call = get_call(key, etag);
        call.range = ByteRange::of(&bytes);
        let length = bytes.end - bytes.start;
        call.answer_bytes_max = usize::try_from(length).unwrap_or(usize::MAX);
        let task = tokio::spawn(async move { (client.call(call).await, permit) });
        PendingRange { task, arrived: None }
    }

    /// Bytes of the whole object, if the answer tells; otherwise 0.
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

    /// What is not there: an answer to HEAD has no body to tell a bucket from an object.
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
