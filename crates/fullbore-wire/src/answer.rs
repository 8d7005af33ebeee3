//! Compares the head of an answer with its request: is the body the requested file?
//!
//! Sizes come from the signed index. So a portal's login page or a half-updated mirror is detected before its body is
//! read.

use std::time::Duration;

use crate::hosts::Fault;
use crate::http1::ResponseHead;
use crate::queue::Segment;
use crate::range::{ByteRange, RangeAnswer, RangeError, check_answer};
use crate::retry_after::RetryAfter;

/// Pause after 429, 503 and other transient faults without `Retry-After`: the host's own doubling pause.
const NO_PAUSE_TOLD: Option<Duration> = None;

/// Statuses of transient errors; all others are final. The list equals `TransientCodes` of apt's http method
/// (`basehttp.cc`), so that both ends of a run agree on what is worth a retry.
pub(crate) const TRANSIENT_STATUSES: [u16; 7] = [
    408, // Request Timeout
    429, // Too Many Requests
    500, // Internal Server Error
    502, // Bad Gateway
    503, // Service Unavailable
    504, // Gateway Timeout
    599, // Network Connect Timeout, of some proxies
];

/// Whether the same request may succeed a moment later.
pub fn is_transient(status: u16) -> bool {
    TRANSIENT_STATUSES.contains(&status)
}

/// Meaning of an answer to a request for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The requested bytes follow.
    Body,
    /// The file is at another address, given in `Location`.
    Redirect(String),
    /// The body is something else, or missing.
    Fault(Fault),
}

/// The `Range` for a part of a file; `None` for the whole file.
pub(crate) fn range_of(segment: &Segment) -> Option<ByteRange> {
    if segment.is_whole() { None } else { ByteRange::of(&(segment.start..segment.end)) }
}

/// Judges an answer to the request for `segment` of `path`. `now_unix_s` is needed for a `Retry-After` with a date.
pub fn judge(head: &ResponseHead, path: &str, segment: &Segment, now_unix_s: i64) -> Answer {
    match head.status {
        200 | 206 | 416 => body(head, path, segment),
        301 | 302 | 303 | 307 | 308 => match &head.location {
            Some(location) => Answer::Redirect(location.clone()),
            None => wrong(format!("redirect ({}) without a Location", head.status)),
        },
        403 | 404 | 410 => Answer::Fault(Fault::Missing(head.status)),
        status if is_transient(status) => {
            let told =
                head.retry_after.map(|told: RetryAfter| Duration::from_secs(told.delay_s(head.date, now_unix_s)));
            Answer::Fault(Fault::Busy { status: head.status, retry_after: told.or(NO_PAUSE_TOLD) })
        }
        status @ 300.. => Answer::Fault(Fault::Refused(status)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::Version;

    fn answered(status: u16) -> Answer {
        let mut head = ResponseHead::without_fields(Version::Http11, status);
        head.content_length = Some(5);
        judge(&head, "pool/a.deb", &Segment { item: 0, start: 0, end: 5, size: 5 }, 0)
    }

    #[test]
    fn every_status_is_a_file_or_transient_or_final() {
        for status in 100..=999 {
            let expected = match status {
                200 => Answer::Body,
                408 | 429 | 500 | 502 | 503 | 504 | 599 => Answer::Fault(Fault::Busy { status, retry_after: None }),
                403 | 404 | 410 => Answer::Fault(Fault::Missing(status)),
                // Their meaning depends on other fields.
                206 | 301 | 302 | 303 | 307 | 308 | 416 => continue,
                100..=299 => Answer::Fault(Fault::WrongAnswer(format!("status {status}"))),
                _ => Answer::Fault(Fault::Refused(status)),
            };
            assert_eq!(answered(status), expected, "{status}");
            assert_eq!(is_transient(status), matches!(expected, Answer::Fault(Fault::Busy { .. })), "{status}");
        }
    }

    #[test]
    fn a_captive_portal_is_named() {
        let Answer::Fault(fault) = answered(511) else { panic!("a login page is no file") };
        assert!(fault.to_string().contains("login page"), "{fault}");
    }
}
