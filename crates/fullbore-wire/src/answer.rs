//! Holds the head of an answer against what was asked: is this the file, or what is it?
//!
//! Sizes come from the signed index, so a portal's login page or a half-updated mirror is found
//! before its body is read.

use std::time::Duration;

use crate::hosts::Fault;
use crate::http1::ResponseHead;
use crate::queue::Segment;
use crate::range::{ByteRange, RangeAnswer, RangeError, check_answer};
use crate::retry_after::RetryAfter;

/// Pause after 429, 503 and other trouble without `Retry-After`: the host's own doubling one.
const NO_PAUSE_TOLD: Option<Duration> = None;

/// What an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The bytes that were asked for follow.
    Body,
    /// It is elsewhere.
    Redirect(String),
    /// Something else follows, or nothing.
    Fault(Fault),
}

/// The `Range` for a part; `None` when it is the whole file.
pub fn range_of(segment: &Segment) -> Option<ByteRange> {
    if segment.is_whole() { None } else { ByteRange::of(&(segment.start..segment.end)) }
}

/// Judges an answer. `now_unix_s` is for a `Retry-After` that is a date.
pub fn judge(head: &ResponseHead, path: &str, segment: &Segment, now_unix_s: i64) -> Answer {
    match head.status {
        200 | 206 | 416 => body(head, path, segment),
        301 | 302 | 303 | 307 | 308 => match &head.location {
            Some(location) => Answer::Redirect(location.clone()),
            None => wrong(format!("redirect ({}) to nowhere", head.status)),
        },
        403 | 404 | 410 => Answer::Fault(Fault::Missing(head.status)),
        401 | 407 => wrong(format!("asks for credentials ({}); see auth.conf", head.status)),
        429 | 500..=599 => {
            let told =
                head.retry_after.map(|told: RetryAfter| Duration::from_secs(told.delay_s(head.date, now_unix_s)));
            Answer::Fault(Fault::Busy { status: head.status, retry_after: told.or(NO_PAUSE_TOLD) })
        }
        status => wrong(format!("status {status}")),
    }
}

fn body(head: &ResponseHead, path: &str, segment: &Segment) -> Answer {
    if !head.is_stored_form(path) {
        let coding = head.content_encoding.as_deref().unwrap_or_default();
        return wrong(format!("Content-Encoding {coding}, not asked for"));
    }
    match check_answer(range_of(segment), Some(segment.size), head) {
        Ok(RangeAnswer::Partial { .. }) => Answer::Body,
        Ok(RangeAnswer::Whole) if segment.is_whole() => Answer::Body,
        Ok(RangeAnswer::Whole) => Answer::Fault(Fault::NoRanges),
        Ok(RangeAnswer::Unsatisfiable { complete: Some(complete) }) => {
            Answer::Fault(Fault::WrongSize(format!("file has {complete} B there, index says {}", segment.size)))
        }
        Ok(RangeAnswer::Unsatisfiable { complete: None }) => {
            wrong(format!("416 for bytes {}-{}", segment.start, segment.end.saturating_sub(1)))
        }
        Err(error @ RangeError::OtherSize { .. }) => Answer::Fault(Fault::WrongSize(error.to_string())),
        Err(error) => wrong(error.to_string()),
    }
}

fn wrong(why: String) -> Answer {
    Answer::Fault(Fault::WrongAnswer(why))
}
