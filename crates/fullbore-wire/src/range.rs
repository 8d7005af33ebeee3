//! Byte ranges: the request (Range), the answer (Content-Range), and the check whether they agree (RFC 9110, section
//! 14).

use std::fmt;

/// One range of bytes; `last` is inclusive, `None` means to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    first: u64,
    last: Option<u64>,
}

impl ByteRange {
    /// Creates a range; `None` when `last` is before `first`.
    pub fn new(first: u64, last: Option<u64>) -> Option<Self> {
        match last {
            Some(last) if last < first => None,
            _ => Some(Self { first, last }),
        }
    }

    /// Converts a half-open range; `None` when it is empty.
    ///
    /// ```
    /// use fullbore_wire::range::ByteRange;
    ///
    /// let range = ByteRange::of(&(100..200)).unwrap();
    /// assert_eq!((range.first(), range.last()), (100, Some(199)));
    /// assert_eq!(ByteRange::of(&(100..100)), None);
    /// ```
    pub fn of(range: &std::ops::Range<u64>) -> Option<Self> {
        Self::new(range.start, Some(range.end.checked_sub(1)?))
    }

    /// Offset of the first byte of the range.
    pub fn first(self) -> u64 {
        self.first
    }

    /// Offset of the last byte, inclusive; `None` if the range is open.
    pub fn last(self) -> Option<u64> {
        self.last
    }
}

/// Formats the value of a Range field.
impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes={}-", self.first)?;
        self.last.map_or(Ok(()), |last| write!(f, "{last}"))
    }
}

/// Value of the field `Content-Range` (RFC 9110, section 14.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentRange {
    /// `bytes first-last/complete`, or `/*`.
    Bytes {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte, inclusive.
        last: u64,
        /// Size of the whole file, if given.
        complete: Option<u64>,
    },
    /// `bytes */complete`, with status 416.
    Unsatisfied {
        /// Size of the whole file, in bytes.
        complete: u64,
    },
    /// The field is present and unusable.
    Malformed,
}

impl ContentRange {
    /// Parses the field. Never fails: a value that violates the grammar is `Malformed`.
    pub fn parse(text: &str) -> Self {
        Self::parse_strict(text.trim_ascii()).unwrap_or(Self::Malformed)
    }

    fn parse_strict(text: &str) -> Option<Self> {
        let (unit, rest) = text.split_once(' ')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (range, complete) = rest.split_once('/')?;
        if range == "*" {
            return Some(Self::Unsatisfied { complete: digits(complete)? });
        }
        let (first, last) = range.split_once('-')?;
        let (first, last) = (digits(first)?, digits(last)?);
        let complete = match complete {
            "*" => None,
            number => Some(digits(number)?),
        };
        if last < first || complete.is_some_and(|complete| last >= complete) {
            return None;
        }
        Some(Self::Bytes { first, last, complete })
    }
}

/// Meaning of an answer for the requested range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeAnswer {
    /// 206: exactly these bytes of the file.
    Partial {
        /// Offset of the first byte.
        start: u64,
        /// Offset behind the last byte.
        end: u64,
    },
    /// 200: the whole file from its first byte.
    Whole,
    /// 416: the file does not have these bytes; compare sizes.
    Unsatisfiable {
        /// Size of the file on this host, if given.
        complete: Option<u64>,
    },
}

/// Why an answer does not fit the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The answer is 206 or 416, although no range was requested.
    #[error("status {status} to a request without a range")]
    NotAsked {
        /// Status of the answer.
        status: u16,
    },
    /// The answer is 206 without a usable Content-Range; a multipart answer has none either.
    #[error("partial answer without a usable Content-Range")]
    NoContentRange,
    /// The answer has other bytes than requested.
    #[error("requested {asked}, got bytes {first}-{last}")]
    OtherRange {
        /// The requested range.
        asked: ByteRange,
        /// Offset of the first received byte.
        first: u64,
        /// Offset of the last received byte.
        last: u64,
    },
    /// The host's file has another size than the index says.
    #[error("file has {complete} B on this host, index says {expected}")]
    OtherSize {
        /// Size on the host, in bytes.
        complete: u64,
        /// Size in the index, in bytes.
        expected: u64,
    },
    /// Content-Length and Content-Range contradict each other.
    #[error("Content-Length {length} does not fit bytes {first}-{last}")]
    LengthMismatch {
        /// Value of Content-Length.
        length: u64,
        /// Offset of the first byte by Content-Range.
        first: u64,
        /// Offset of the last byte by Content-Range.
        last: u64,
    },
    /// The status is not 200, 206 or 416.
    #[error("status {status} is not an answer to a range request")]
    OtherStatus {
        /// Status of the answer.
        status: u16,
    },
}

/// Compares an answer with the requested range. `expected` is the file's size in the index.
///
/// A 206 is accepted only with exactly the requested bytes. A requested end beyond the file is cut to it, as servers
/// must do.
pub(crate) fn check_answer(
    asked: Option<ByteRange>,
    expected: Option<u64>,
    head: &crate::http1::ResponseHead,
) -> Result<RangeAnswer, RangeError> {
    let status = head.status;
    let size_fits = |complete: Option<u64>| match (complete, expected) {
        (Some(complete), Some(expected)) if complete != expected => Err(RangeError::OtherSize { complete, expected }),
        _ => Ok(()),
    };
    match (status, asked) {
        (200, _) => {
            size_fits(head.content_length)?;
            Ok(RangeAnswer::Whole)
        }
        (206 | 416, None) => Err(RangeError::NotAsked { status }),
        (416, Some(_)) => Ok(RangeAnswer::Unsatisfiable {
            complete: match head.content_range {
                Some(ContentRange::Unsatisfied { complete }) => Some(complete),
                _ => None,
            },
        }),
        (206, Some(asked)) => {
            let Some(ContentRange::Bytes { first, last, complete }) = head.content_range else {
                return Err(RangeError::NoContentRange);
            };
            size_fits(complete)?;
            let end_of_file = complete.or(expected).map(|size| size.saturating_sub(1));
            let wanted_last = match (asked.last, end_of_file) {
                (Some(last), Some(end)) => Some(last.min(end)),
                (last, end) => last.or(end),
            };
            // Only an open range of a file of unknown size has no end to compare.
            if first != asked.first || wanted_last.is_some_and(|wanted| wanted != last) {
                return Err(RangeError::OtherRange { asked, first, last });
            }
            // `last - first + 1` overflows only for the range of all u64.
            let length = (last - first).saturating_add(1);
            match head.content_length {
                Some(told) if told != length => Err(RangeError::LengthMismatch { length: told, first, last }),
                _ => Ok(RangeAnswer::Partial { start: first, end: last.saturating_add(1) }),
            }
        }
        _ => Err(RangeError::OtherStatus { status }),
    }
}

/// Parses digits only: `u64::from_str` would accept a sign.
fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{ResponseHead, Version};

    fn head(status: u16, length: Option<u64>, range: Option<&str>) -> ResponseHead {
        ResponseHead {
            content_length: length,
            content_range: range.map(ContentRange::parse),
            ..ResponseHead::without_fields(Version::Http11, status)
        }
    }

    #[test]
    fn content_range_is_read_by_its_grammar() {
        let bytes = |first, last, complete| ContentRange::Bytes { first, last, complete };
        for (text, parsed) in [
            ("bytes 0-0/1", bytes(0, 0, Some(1))),
            ("Bytes 5-9/100", bytes(5, 9, Some(100))),
            ("bytes 5-9/*", bytes(5, 9, None)),
            ("bytes */47", ContentRange::Unsatisfied { complete: 47 }),
        ] {
            assert_eq!(ContentRange::parse(text), parsed, "{text:?}");
        }
        for text in [
            "",
            "bytes",
            "bytes 5-9",
            "bytes=5-9/10",
            "bytes 9-5/10",
            "bytes 5-10/10",
            "bytes */*",
            "bytes -5/10",
            "bytes +5-9/10",
            "bytes 5-9/+10",
            "lines 5-9/10",
            "bytes  5-9/10",
            "bytes 0-18446744073709551616/*",
            "bytes 5-9/10/11",
        ] {
            assert_eq!(ContentRange::parse(text), ContentRange::Malformed, "{text:?}");
        }
    }

    #[test]
    fn ranges_to_ask_for_are_written_with_their_last_byte() {
        assert_eq!(ByteRange::of(&(5..10)).unwrap().to_string(), "bytes=5-9");
        assert_eq!(ByteRange::new(5, None).unwrap().to_string(), "bytes=5-");
        assert_eq!(ByteRange::of(&(5..5)), None);
        assert_eq!(ByteRange::of(&(0..0)), None);
        assert_eq!(ByteRange::new(9, Some(5)), None);
    }

    #[test]
    fn answers_are_held_against_the_question() {
        let asked = ByteRange::new(5, Some(9));
        let open = ByteRange::new(5, None);
        let partial = Ok(RangeAnswer::Partial { start: 5, end: 10 });
        let ok = |asked, expected, head: ResponseHead| check_answer(asked, expected, &head);
        assert_eq!(ok(asked, Some(100), head(206, Some(5), Some("bytes 5-9/100"))), partial);
        assert_eq!(ok(asked, Some(100), head(206, None, Some("bytes 5-9/*"))), partial);
        assert_eq!(
            ok(asked, Some(8), head(206, Some(3), Some("bytes 5-7/8"))),
            Ok(RangeAnswer::Partial { start: 5, end: 8 })
        );
        assert_eq!(ok(open, Some(10), head(206, Some(5), Some("bytes 5-9/10"))), partial);
        assert_eq!(ok(open, None, head(206, Some(5), Some("bytes 5-9/*"))), partial);
        assert_eq!(ok(asked, Some(100), head(200, Some(100), None)), Ok(RangeAnswer::Whole));
        assert_eq!(ok(None, None, head(200, None, None)), Ok(RangeAnswer::Whole));
        assert_eq!(
            ok(asked, Some(100), head(416, None, Some("bytes */5"))),
            Ok(RangeAnswer::Unsatisfiable { complete: Some(5) })
        );

        for (asked, expected, answer) in [
            (asked, Some(100), head(206, Some(5), None)),
            (asked, Some(100), head(206, Some(5), Some("bytes 4-8/100"))),
            (asked, Some(100), head(206, Some(4), Some("bytes 5-8/100"))),
            (asked, Some(100), head(206, Some(95), Some("bytes 5-99/100"))),
            (asked, Some(100), head(206, Some(5), Some("bytes 5-9/101"))),
            (asked, Some(100), head(206, Some(6), Some("bytes 5-9/100"))),
            (asked, Some(100), head(206, Some(5), Some("bytes */100"))),
            (open, Some(100), head(206, Some(5), Some("bytes 5-9/*"))),
            (None, Some(100), head(206, Some(5), Some("bytes 5-9/100"))),
            (None, None, head(416, None, None)),
            (None, Some(100), head(200, Some(99), None)),
            (asked, Some(100), head(304, None, None)),
            (asked, Some(100), head(404, Some(9), None)),
        ] {
            assert!(check_answer(asked, expected, &answer).is_err(), "{asked:?} {answer:?}");
        }
    }
}
