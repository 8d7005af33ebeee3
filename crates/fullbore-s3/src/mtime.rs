//! Modification times in the metadata of objects, as in rclone: `x-amz-meta-mtime`, seconds since 1970 with up to nine
//! decimals.

use std::time::{SystemTime, UNIX_EPOCH};

use fullbore_engine::files::tree::Mtime;
use fullbore_wire::http1::ResponseHead;

/// Name of the metadata field.
pub(crate) const FIELD: &str = "x-amz-meta-mtime";

const NANOSECONDS: i128 = 1_000_000_000;

/// Formats a time as in rclone, without trailing zeros.
pub(crate) fn text(mtime: Mtime) -> String {
    let all = i128::from(mtime.unix_s) * NANOSECONDS + i128::from(mtime.nanoseconds);
    let (sign, all) = if all < 0 { ("-", -all) } else { ("", all) };
    let text = format!("{sign}{}.{:09}", all / NANOSECONDS, all % NANOSECONDS);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Parses the result of [`text`], and the form of rclone's own metadata (RFC 3339). `None` for anything else.
pub(crate) fn parse(text: &str) -> Option<Mtime> {
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return of_nanoseconds(time.as_nanosecond());
    }
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (seconds, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || !is_number(seconds) || !is_number(decimals) {
        return None;
    }
    let decimals = decimals.get(..9).unwrap_or(decimals);
    let nanoseconds: i128 = format!("{decimals:0<9}").parse().ok()?;
    of_nanoseconds(sign * (i128::from(seconds.parse::<i64>().ok()?) * NANOSECONDS + nanoseconds))
}

fn of_nanoseconds(all: i128) -> Option<Mtime> {
    let unix_s = i64::try_from(all.div_euclid(NANOSECONDS)).ok()?;
    Some(Mtime { unix_s, nanoseconds: u32::try_from(all.rem_euclid(NANOSECONDS)).ok()? })
}

/// The modification time of a file.
pub(crate) fn of_file(about: &std::fs::Metadata) -> Option<Mtime> {
    let time: SystemTime = about.modified().ok()?;
    let all = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i128::try_from(after.as_nanos()).ok()?,
        Err(before) => -i128::try_from(before.duration().as_nanos()).ok()?,
    };
    of_nanoseconds(all)
}

/// The modification time of an object's source file if it is stored, otherwise the time of its upload.
pub(crate) fn of_object(head: &ResponseHead) -> Option<Mtime> {
    let stored = head.store_field(FIELD).and_then(parse);
    stored.or_else(|| head.last_modified.map(|unix_s| Mtime { unix_s, nanoseconds: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_written_as_rclone_writes_them() {
        let of = |unix_s, nanoseconds| Mtime { unix_s, nanoseconds };
        for (mtime, expected) in [
            (of(1_354_040_105, 123_456_789), "1354040105.123456789"),
            (of(1_354_040_105, 120_000_000), "1354040105.12"),
            (of(1_354_040_100, 0), "1354040100"),
            (of(0, 0), "0"),
            (of(0, 1), "0.000000001"),
            (of(-1, 500_000_000), "-0.5"),
            (of(-10, 0), "-10"),
        ] {
            assert_eq!(text(mtime), expected);
            assert_eq!(parse(expected), Some(mtime));
        }
        assert_eq!(parse("2006-01-02T15:04:05.5Z"), Some(of(1_136_214_245, 500_000_000)));
        assert_eq!(parse("1.1234567891234"), Some(of(1, 123_456_789)));
        for no_time in ["", "-", ".", "abc", "1e9", "1.x", "99999999999999999999", "-99999999999999999999", "1 "] {
            assert_eq!(parse(no_time), None, "{no_time:?}");
        }
    }

    proptest! {
        #[test]
        fn every_time_comes_back(unix_s in -(1_i64 << 40)..1 << 40, nanoseconds in 0..1_000_000_000_u32) {
            let mtime = Mtime { unix_s, nanoseconds };
            prop_assert_eq!(parse(&text(mtime)), Some(mtime));
        }

        #[test]
        fn any_text_is_taken(text in "\\PC{0,30}") {
            let _ = parse(&text);
        }
    }
}
