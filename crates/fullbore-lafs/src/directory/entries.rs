//! Parses the entries of a directory from its content, which whoever may write to the directory has chosen.
//!
//! Each child is a netstring of four netstrings: name, read cap, write cap (encrypted, not read here) and metadata. A
//! name is only known to be Unicode: code that makes a file of it has to check it.

use serde::Deserialize;
use serde_json::value::RawValue;
use unicode_normalization::UnicodeNormalization;

use crate::cap::{Cap, CapError};

/// Largest content of a directory that is read, in bytes: about two million entries, all in memory.
pub const DIRECTORY_BYTES_MAX: u64 = 512 << 20;

/// Most entries of a directory that are read. Minimal ones take 16 bytes of content, and ten times as much in memory.
pub const ENTRIES_MAX: usize = 2_000_000;

/// Seconds before or after 1970 that are accepted as a time: covers the years 0 to 9999.
const SECONDS_MAX: i64 = 1 << 38;

/// The time of a child's last modification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970-01-01 UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds after that second.
    pub nanoseconds: u32,
}

/// One child of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, in Unicode's composed form. Nothing else is checked: it may contain slashes, or be `..`.
    pub name: String,
    /// The read cap, or why it is not supported.
    pub cap: Result<Cap, CapError>,
    /// Its last modification; if that was not stored, the time when it was put into the directory.
    pub modified: Option<Time>,
}

/// A directory content that is malformed, or too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Not a sequence of children.
    #[error("the directory is malformed at byte {position}")]
    Malformed {
        /// Offset in bytes of the first child that cannot be parsed.
        position: usize,
    },
    /// More than [`ENTRIES_MAX`] children.
    #[error("the directory has more than {ENTRIES_MAX} entries")]
    TooMany,
}

/// Parses the content of a directory.
///
/// # Errors
/// [`DirectoryError::Malformed`] if it is not a sequence of children; [`DirectoryError::TooMany`] for more than
/// [`ENTRIES_MAX`]. A child with an unsupported cap does not fail the others.
pub fn entries(content: &[u8]) -> Result<Vec<Entry>, DirectoryError> {
    let mut entries = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        if entries.len() == ENTRIES_MAX {
            return Err(DirectoryError::TooMany);
        }
        let malformed = DirectoryError::Malformed { position: content.len() - rest.len() };
        let (child, behind) = take_netstring(rest).ok_or(malformed)?;
        let (name, child) = take_netstring(child).ok_or(malformed)?;
        let (cap, child) = take_netstring(child).ok_or(malformed)?;
        let (_, child) = take_netstring(child).ok_or(malformed)?;
        let (metadata, _) = take_netstring(child).ok_or(malformed)?;
        entries.push(Entry {
            name: String::from_utf8_lossy(name).nfc().collect(),
            cap: Cap::parse(&String::from_utf8_lossy(cap)),
            modified: modified(metadata),
        });
        rest = behind;
    }
    Ok(entries)
}

/// Splits off a netstring; returns its content and the rest.
fn take_netstring(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = text.iter().take(20).position(|&byte| byte == b':')?;
    let (length, rest) = (&text[..colon], &text[colon + 1..]);
    if length.is_empty() || !length.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    let (value, rest) = rest.split_at_checked(length)?;
    Some((value, rest.strip_prefix(b",")?))
}

/// The used part of a child's metadata. Times stay as they are written: as floating-point numbers they would lose
/// digits below a microsecond.
#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    mtime: Option<&'a RawValue>,
    #[serde(borrow)]
    tahoe: Option<Links<'a>>,
}

/// Times that the stock client records by itself.
#[derive(Deserialize)]
struct Links<'a> {
    #[serde(borrow)]
    linkmotime: Option<&'a RawValue>,
}

fn modified(metadata: &[u8]) -> Option<Time> {
    let metadata: Metadata<'_> = serde_json::from_slice(metadata).ok()?;
    let linked = || metadata.tahoe.as_ref().and_then(|tahoe| tahoe.linkmotime);
    metadata.mtime.and_then(Time::parse).or_else(|| linked().and_then(Time::parse))
}

impl Time {
    /// Parses seconds with an optional fraction.
    fn parse(number: &RawValue) -> Option<Time> {
        let text = number.get();
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let seconds = whole.parse::<i64>();
        let (Ok(seconds), true) = (seconds, fraction.bytes().all(|byte| byte.is_ascii_digit())) else {
            return Time::of_float(text.parse().ok()?);
        };
        let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
        Time::new(seconds, digits.parse().ok()?, whole.starts_with('-'))
    }

    fn of_float(seconds: f64) -> Option<Time> {
        if !seconds.is_finite() || seconds.abs() > SECONDS_MAX as f64 {
            return None;
        }
        let whole = seconds.floor();
        Time::new(whole as i64, ((seconds - whole) * 1e9) as u32, false)
    }

    /// `down`: the fraction counts backwards, as it does after a negative number of seconds.
    fn new(seconds: i64, nanoseconds: u32, down: bool) -> Option<Time> {
        let nanoseconds = nanoseconds.min(999_999_999);
        if seconds.checked_abs()? > SECONDS_MAX {
            return None;
        }
        Some(match down && nanoseconds > 0 {
            true => Time { seconds: seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
            false => Time { seconds, nanoseconds },
        })
    }

    /// Writes the time as in metadata: seconds, with as many decimals as needed.
    pub fn to_json(self) -> String {
        let down = self.seconds < 0 && self.nanoseconds > 0;
        let (whole, fraction) = match down {
            true => (self.seconds + 1, 1_000_000_000 - self.nanoseconds),
            false => (self.seconds, self.nanoseconds),
        };
        let sign = if down && whole == 0 { "-" } else { "" };
        let fraction = format!("{fraction:09}");
        // Python would read a number without a fraction as an integer, not as the float that it writes.
        let fraction = match fraction.trim_end_matches('0') {
            "" => "0",
            digits => digits,
        };
        format!("{sign}{whole}.{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;
    use proptest::prelude::*;

    fn raw(text: &str) -> Option<Time> {
        modified(format!("{{\"mtime\": {text}}}").as_bytes())
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        let time = |seconds, nanoseconds| Some(Time { seconds, nanoseconds });
        assert_eq!(raw("1700000000.123456789"), time(1_700_000_000, 123_456_789));
        assert_eq!(raw("1700000000"), time(1_700_000_000, 0));
        assert_eq!(raw("1700000000.5"), time(1_700_000_000, 500_000_000));
        assert_eq!(raw("-0.25"), time(-1, 750_000_000));
        assert_eq!(raw("1.5e3"), time(1500, 0));
        for no_time in
            ["\"now\"", "null", "1e300", "-1e300", "99999999999999999999", "9223372036854775807", "[1]", "{}"]
        {
            assert_eq!(raw(no_time), None, "{no_time}");
        }
        // The time of the link counts if no other is stored.
        let both = br#"{"ctime": 1.0, "tahoe": {"linkmotime": 7.5, "linkcrtime": 6}, "mtime": 5}"#;
        assert_eq!(modified(both), time(5, 0));
        assert_eq!(modified(br#"{"tahoe": {"linkmotime": 7.5}, "x": [{"mtime": 1}]}"#), time(7, 500_000_000));
        for no_metadata in ["", "{", "[]", "5", "{\"tahoe\": 5}"] {
            assert_eq!(modified(no_metadata.as_bytes()), None, "{no_metadata}");
        }
    }

    #[test]
    fn a_child_that_is_not_understood_fails_no_other() {
        let mut directory = Directory::default();
        directory.add("ä".as_bytes(), Cap::Literal(b"x".to_vec()), None).unwrap();
        let mut packed = directory.pack();
        packed.extend_from_slice(b"28:2:..,9:URI:NEW:x,3:abc,2:{},,");
        packed.extend_from_slice("20:3:a\u{308},0:,0:,5:junk!,,".as_bytes());
        let entries = entries(&packed).unwrap();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["ä", "..", "ä"], "composed, and nothing else is done to them");
        assert!(entries[0].cap.is_ok() && entries[1].cap.is_err() && entries[2].cap.is_err());
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        for bad in ["x", "5:", "3:abc", "3:abc,", "99999999999999999999:a,", ":,", "-1:a,", "7:1:a,1:b,"] {
            assert!(entries(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(entries(b""), Ok(Vec::new()));
    }

    #[test]
    fn a_directory_of_too_many_entries_is_refused() {
        let minimal = b"12:0:,0:,0:,0:,,";
        assert_eq!(entries(&minimal.repeat(3)).unwrap().len(), 3);
        assert_eq!(entries(&minimal.repeat(ENTRIES_MAX + 1)), Err(DirectoryError::TooMany));
    }

    proptest! {
        #[test]
        fn what_is_packed_is_read(
            names in proptest::collection::btree_set("[a-z./ ä]{0,9}", 0..9), seconds in -9_000_000_000_i64..9_000_000_000,
            nanoseconds in 0_u32..1_000_000_000,
        ) {
            let time = Time { seconds, nanoseconds };
            prop_assert_eq!(raw(&time.to_json()), Some(time));
            let mut directory = Directory::default();
            for name in &names {
                directory.add(name.as_bytes(), Cap::Literal(name.as_bytes().to_vec()), Some(time)).unwrap();
            }
            let read = entries(&directory.pack()).unwrap();
            prop_assert_eq!(read.len(), names.len());
            for (entry, name) in read.iter().zip(&names) {
                let cap = Cap::Literal(name.as_bytes().to_vec());
                prop_assert_eq!(entry, &Entry { name: name.clone(), cap: Ok(cap), modified: Some(time) });
            }
        }

        #[test]
        fn nothing_makes_the_parser_panic(content in proptest::collection::vec(any::<u8>(), 0..200), json in "\\PC{0,40}") {
            let _ = entries(&content);
            let _ = modified(json.as_bytes());
            let _ = raw(&json);
        }
    }
}
