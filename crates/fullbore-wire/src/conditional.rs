//! Entity tags and HTTP dates (RFC 9110, sections 5.6.7 and 8.8).
//!
//! A tag is only valid for the host that sent it: each mirror makes its own. `If-Range` is never sent;
//! `docs/design/0004-pull-scheduling.md` gives the reason.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

/// Longest entity tag that is kept, in bytes. A guess; real ones have < 80.
const ENTITY_TAG_BYTES_MAX: usize = 512;

/// Last second that an HTTP date can express: 9999-12-31T23:59:59.
const DATE_MAX: i64 = 253_402_300_799;

/// A well-formed entity tag (RFC 9110, section 8.8.3).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntityTag {
    /// Whether the tag is weak. Weak tags mean equivalent content, not equal bytes, and never serve ranges.
    pub weak: bool,
    /// The tag without quotes.
    opaque: String,
}

impl EntityTag {
    /// Parses `"…"` or `W/"…"`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_ascii();
        let (weak, quoted) = match text.strip_prefix("W/") {
            Some(quoted) => (true, quoted),
            None => (false, text),
        };
        let opaque = quoted.strip_prefix('"')?.strip_suffix('"')?;
        let valid = |byte: u8| byte == 0x21 || (0x23..=0x7e).contains(&byte);
        if opaque.len() > ENTITY_TAG_BYTES_MAX || !opaque.bytes().all(valid) {
            return None;
        }
        Some(Self { weak, opaque: opaque.to_owned() })
    }
}

impl fmt::Display for EntityTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weak = if self.weak { "W/" } else { "" };
        write!(f, "{weak}\"{}\"", self.opaque)
    }
}

/// Parses any of the three HTTP date forms into Unix seconds.
pub fn parse_http_date(text: &str) -> Option<i64> {
    let time = httpdate::parse_http_date(text.trim_ascii()).ok()?;
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()
}

/// Formats Unix seconds as IMF-fixdate; `None` before 1970 and after 9999.
pub fn http_date(unix_s: i64) -> Option<String> {
    let seconds = u64::try_from(unix_s).ok().filter(|_| unix_s <= DATE_MAX)?;
    Some(httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_are_read_as_they_are_written() {
        for text in ["\"\"", "\"abc\"", "W/\"abc\"", "\"a:b-c!\""] {
            assert_eq!(EntityTag::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "abc", "\"abc", "\"", "w/\"abc\"", "\"a\"b\"", "\"a b\"", "\"a\nb\"", "W/"] {
            assert_eq!(EntityTag::parse(text), None, "{text:?}");
        }
        assert_eq!(EntityTag::parse(&format!("\"{}\"", "x".repeat(600))), None);
    }

    #[test]
    fn dates_are_read_in_all_three_forms() {
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parse_http_date(text), Some(784_111_777), "{text}");
        }
        for time in [i64::MIN, -1, DATE_MAX + 1, i64::MAX] {
            assert_eq!(http_date(time), None);
        }
        assert!(http_date(0).is_some() && http_date(DATE_MAX).is_some());
    }
}
