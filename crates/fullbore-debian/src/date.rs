//! Dates of `Release` files: RFC 5322 in English and UTC, as `Sat, 10 Feb 2024 11:07:25 UTC`.
//!
//! Other time zones are refused, as in apt.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use thiserror::Error;

/// The text is no date, or a date in another zone than UTC.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a date such as \"Sat, 10 Feb 2024 11:07:25 UTC\"")]
pub struct DateError(pub String);

/// Parses a date; returns Unix time in seconds.
///
/// ```
/// use fullbore_debian::date;
///
/// let time = date::parse("Sat, 10 Feb 2024 11:07:25 UTC")?;
/// assert_eq!(time, 1_707_563_245);
/// assert_eq!(date::format(time), "Sat, 10 Feb 2024 11:07:25 UTC");
/// # Ok::<(), date::DateError>(())
/// ```
///
/// # Errors
/// A text of another form, and a zone other than UTC.
pub fn parse(text: &str) -> Result<i64, DateError> {
    parse_parts(text.trim()).ok_or_else(|| DateError(text.chars().take(60).collect()))
}

fn parse_parts(text: &str) -> Option<i64> {
    // The day of the week is redundant and sometimes wrong.
    let text = text.split_once(',').map_or(text, |(_weekday, rest)| rest);
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [day, month, year, time, zone] = words[..] else { return None };
    if year.len() != 4 || !matches!(zone, "UTC" | "GMT" | "Z" | "+0000" | "-0000") {
        return None;
    }
    // A leap second counts as the second before it.
    let civil = DateTime::strptime("%d %b %Y %H:%M:%S", format!("{day} {month} {year} {time}")).ok()?;
    // "Never" is the end of the year 9999, whose last day is out of range for jiff's timestamps.
    Some(civil.to_zoned(TimeZone::UTC).map_or(jiff::Timestamp::MAX, |time| time.timestamp()).as_second())
}

/// Formats Unix time in seconds as in `Release` files. Times outside the years 1 to 9999 become the nearest date
/// within them.
pub fn format(unix_s: i64) -> String {
    const LAST: i64 = 253_370_764_799;
    const FIRST: i64 = -62_135_596_800;
    let time = jiff::Timestamp::from_second(unix_s.clamp(FIRST, LAST)).unwrap_or_default();
    time.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dates_of_real_releases() {
        for (text, seconds) in [
            ("Sat, 10 Feb 2024 11:07:25 UTC", 1_707_563_245),
            ("Thu, 01 Jan 1970 00:00:00 UTC", 0),
            ("Thu, 1 Jan 1970 0:00:01 GMT", 1),
            ("29 Feb 2024 23:59:60 +0000", 1_709_251_199),
            ("Fri, 31 Dec 9998 23:59:59 Z", 253_370_764_799),
            // Valid-Until of archives that never expire.
            ("Fri, 31 Dec 9999 23:59:59 UTC", jiff::Timestamp::MAX.as_second()),
        ] {
            assert_eq!(parse(text), Ok(seconds), "{text}");
        }
    }

    #[test]
    fn a_time_is_written_as_in_a_release() {
        assert_eq!(format(1_707_563_245), "Sat, 10 Feb 2024 11:07:25 UTC");
        assert_eq!(format(0), "Thu, 01 Jan 1970 00:00:00 UTC");
        assert_eq!(format(i64::MAX), "Thu, 31 Dec 9998 23:59:59 UTC");
        assert_eq!(format(i64::MIN), "Mon, 01 Jan 0001 00:00:00 UTC");
    }

    #[test]
    fn what_is_no_date() {
        for text in [
            "",
            "today",
            "2024-02-10T11:07:25Z",
            "Sat, 10 Feb 2024 11:07:25",
            "Sat, 10 Feb 2024 11:07:25 +0100",
            "Sat, 10 Feb 2024 11:07:25 CET",
            "Sat, 10 Févr 2024 11:07:25 UTC",
            "Sat, 30 Feb 2024 11:07:25 UTC",
            "Sat, 10 Feb 24 11:07:25 UTC",
            "Sat, 10 Feb 2024 25:07:25 UTC",
            "Sat, 10 Feb 2024 11:07:61 UTC",
            "Sat, 31 Nov 9999 11:07:25 UTC",
            "Sat, 10 Feb 2024 11:07:25 UTC more",
            "Sat, -1 Feb 2024 11:07:25 UTC",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn round_trip(seconds in 0i64..253_402_300_000) {
            prop_assert_eq!(parse(&format(seconds)), Ok(seconds.min(253_370_764_799)));
        }
    }
}
