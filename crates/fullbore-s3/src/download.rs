//! An object out of a store, by ranges that are on their way at once, given out in order and verified.
//!
//! The first range and the question for checksums go together, so that a small object costs one round trip. All later
//! ranges, which are asked for once the object's length is known, are of the same object (`If-Match`): one that is
//! replaced meanwhile is an error, not a mixture.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fullbore_engine::window::{Permit, Window};
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
const RANGE_BYTES: u64 = 4 << 20;

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
    /// Whoever wanted it has gone.
    #[error("the receiver of the content has stopped")]
    Unwanted,
}

/// Result of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Downloaded {
    /// Length of the object in bytes.
    pub size: u64,
    /// Why no checksum of the store proves them; `None`: one does.
    pub doubt: Option<Doubt>,
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
    let mut first = PendingRange::ask(client, key, 0..RANGE_BYTES, None, window);
    let Some(mut present) = compare::head(client, key).await? else { return Err(first.missing(key).await) };
    if present.size == 0 {
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
    run.ranges(first, window, out).await?;
    let key = || key.to_owned();
    match run.checker().await?.finish() {
        Finding::Right => Ok(Downloaded { size: present.size, doubt: None }),
        Finding::Wrong => Err(DownloadError::Wrong { key: key() }),
        Finding::Unverified(doubt) if required => Err(DownloadError::Unverified { key: key(), doubt }),
        Finding::Unverified(doubt) => Ok(Downloaded { size: present.size, doubt: Some(doubt) }),
    }
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

    /// Gives out the first range, which is under way, and all that follow.
    async fn ranges(
        &mut self,
        first: PendingRange,
        window: &Window,
        out: &mpsc::Sender<Vec<Bytes>>,
    ) -> Result<(), DownloadError> {
        let size = self.present.size;
        let mut under_way = VecDeque::from([(0..RANGE_BYTES.min(size), first)]);
        let mut next = RANGE_BYTES;
        let length = range_bytes(self.client.reading().round_trip);
        while next < size || !under_way.is_empty() {
            while next < size && (under_way.len() as u64) < WINDOW_BYTES / length {
                let bytes = next..(next + length).min(size);
                next = bytes.end;
                let etag = self.present.etag.as_deref();
                under_way.push_back((bytes.clone(), PendingRange::ask(self.client, self.key, bytes, etag, window)));
            }
            let Some((bytes, mut asked)) = under_way.pop_front() else { break };
            let (mut answer, mut permit) = asked.answer().await?;
            if answer.as_ref().is_ok_and(|answer| answer.head.status == 412) && self.ignores_etags().await? {
                drop(permit);
                asked = PendingRange::ask(self.client, self.key, bytes.clone(), None, window);
                (answer, permit) = asked.answer().await?;
            }
            let pieces = self.check(answer, bytes)?;
            self.give(pieces, out).await?;
            drop(permit);
        }
        Ok(())
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

type RangeResult = (Result<Answer, CallError>, Permit);

/// A range on its way; dropped, it is not wanted any more.
struct PendingRange {
    task: JoinHandle<RangeResult>,
    /// What the task gave, when it was looked at before it was wanted.
    arrived: Option<RangeResult>,
}

impl PendingRange {
    /// Asks for a range as soon as it may be under way.
    fn ask(client: &Client, key: &str, bytes: Range<u64>, etag: Option<&str>, window: &Window) -> PendingRange {
        let (client, window) = (client.clone(), window.clone());
        let mut call = Call::new(Method::Get, Some(key));
        if let Some(etag) = etag {
            call = call.optional_field(Feature::GetIfMatch, "If-Match", format!("\"{etag}\""));
        }
        call.range = ByteRange::of(&bytes);
        let length = bytes.end - bytes.start;
        call.answer_bytes_max = usize::try_from(length).unwrap_or(usize::MAX);
        let task = tokio::spawn(async move {
            let permit = window.acquire(length).await;
            (client.call(call).await, permit)
        });
        PendingRange { task, arrived: None }
    }

    /// Bytes of the whole object, if the answer tells; otherwise 0.
    async fn complete_length(&mut self) -> Result<u64, CallError> {
        let arrived = self.answer().await?;
        let range = arrived.0.as_ref().ok().and_then(|answer| answer.head.content_range);
        self.arrived = Some(arrived);
        match range {
            Some(ContentRange::Bytes { complete, .. }) => Ok(complete.unwrap_or(0)),
            _ => Ok(0),
        }
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
