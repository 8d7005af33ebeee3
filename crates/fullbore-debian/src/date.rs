//! Dates of `Release` files, such as `Sat, 10 Feb 2024 11:07:25 UTC`.
//!
//! apt reads RFC 5322 in English and UTC, and the forms of RFC 850 and asctime(3). Archives also write other time
//! zones, which apt ignores. [`parse`] refuses these; [`parse_any`] reads them, so that nothing older replaces such a
//! Release.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use thiserror::Error;

/// The text is not a date; it is in the error.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a date such as \"Sat, 10 Feb 2024 11:07:25 UTC\"")]
pub struct DateError(pub String);

/// A date that [`parse_any`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnyDate {
    /// Unix time in seconds.
    pub unix_s: i64,
    /// Whether apt reads it, too.
    pub is_for_apt: bool,
}

/// Parses a date that apt reads; returns Unix time in seconds.
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
/// [`DateError`] with the text, if it has none of these forms or a time zone other than UTC.
pub fn parse(text: &str) -> Result<i64, DateError> {
    match parse_any(text)? {
        AnyDate { unix_s, is_for_apt: true } => Ok(unix_s),
        AnyDate { .. } => Err(fault(text)),
    }
}

/// Parses a date in any of the forms that archives write, with any time zone of RFC 5322.
///
/// ```
/// use fullbore_debian::date;
///
/// let date = date::parse_any("Sat, 10 Feb 2024 12:07:25 +0100")?;
/// assert_eq!((date.unix_s, date.is_for_apt), (1_707_563_245, false));
/// # Ok::<(), date::DateError>(())
/// ```
///
/// # Errors
/// [`DateError`] with the text, if it has none of these forms, or an unknown time zone.
pub fn parse_any(text: &str) -> Result<AnyDate, DateError> {
    parse_parts(text.trim()).ok_or_else(|| fault(text))
}

fn fault(text: &str) -> DateError {
    DateError(text.chars().take(60).collect())
}

fn parse_parts(text: &str) -> Option<AnyDate> {
    // The day of the week is redundant and sometimes wrong.
    let (weekday, rest) = match text.split_once(',') {
        Some((weekday, rest)) => (weekday, rest),
        None => ("", text),
    };
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let (civil, zone) = match words[..] {
        // Sun Nov  6 08:49:37 1994: asctime(3), in UTC.
        [_, month, day, time, year] if weekday.is_empty() && year.len() == 4 && time.contains(':') => {
            (civil(day, month, year, time)?, "UTC")
        }
        // Sun, 06 Nov 1994 08:49:37 GMT: RFC 5322.
        [day, month, year, time, zone] if year.len() == 4 => (civil(day, month, year, time)?, zone),
        // Sunday, 06-Nov-94 08:49:37 GMT: RFC 850.
        [date, time, zone] => {
            let mut parts = date.split('-');
            let (Some(day), Some(month), Some(year), None) = (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return None;
            };
            (civil(day, month, &century(year)?, time)?, zone)
        }
        _ => return None,
    };
    let is_for_apt = matches!(zone, "UTC" | "GMT" | "Z" | "+0000" | "-0000");
    let ahead_s = if is_for_apt { 0 } else { ahead_of_utc_s(zone)? };
    // "Never" is the end of the year 9999, whose last day is out of range for jiff's timestamps.
    let time = civil.to_zoned(TimeZone::UTC).map_or(jiff::Timestamp::MAX, |time| time.timestamp());
    Some(AnyDate { unix_s: time.as_second().saturating_sub(ahead_s), is_for_apt })
}

fn civil(day: &str, month: &str, year: &str, time: &str) -> Option<DateTime> {
    // A leap second counts as the second before it.
    DateTime::strptime("%d %b %Y %H:%M:%S", format!("{day} {month} {year} {time}")).ok()
}

/// A year of two digits, as POSIX reads it: 69 to 99 are of the last century.
fn century(year: &str) -> Option<String> {
    let digits = year.parse::<u8>().ok().filter(|_| year.len() == 2)?;
    Some(if digits < 69 { format!("20{year}") } else { format!("19{year}") })
}

/// Seconds that a zone is ahead of UTC: `+0200`, and the names of RFC 5322, section 4.3.
fn ahead_of_utc_s(zone: &str) -> Option<i64> {
    let hours = |hours: i64| Some(hours * 3600);
    match zone {
        "EDT" => return hours(-4),
        "EST" | "CDT" => return hours(-5),
        "CST" | "MDT" => return hours(-6),
        "MST" | "PDT" => return hours(-7),
        "PST" => return hours(-8),
        "UT" => return hours(0),
        _ => {}
    }
    let (sign, digits) = match zone.as_bytes() {
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let [a, b, c, d] = digits.iter().map(|&byte| char::from(byte).to_digit(10)).collect::<Option<Vec<_>>>()?[..] else {
        return None;
    };
    let minutes = i64::from((a * 10 + b) * 60 + c * 10 + d);
    // A day has no more hours; real zones end at 14.
    (c < 6 && minutes < 24 * 60).then_some(sign * minutes * 60)
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
    fn dates_of_real_releases_are_read() {
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
    fn older_forms_are_read_as_apt_reads_them() {
        for text in ["Sun Nov  6 08:49:37 1994", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 GMT"] {
            assert_eq!(parse(text), Ok(784_111_777), "{text}");
        }
        assert_eq!(parse("Sunday, 15-Jun-25 15:06:40 GMT"), Ok(1_750_000_000));
    }

    #[test]
    fn other_zones_are_read_and_are_not_for_apt() {
        for (text, seconds) in [
            ("Sun, 15 Jun 2025 17:06:40 +0200", 1_750_000_000),
            ("Sun, 15 Jun 2025 07:06:40 -0800", 1_750_000_000),
            ("Sun, 15 Jun 2025 20:36:40 +0530", 1_750_000_000),
            ("Sun, 15 Jun 2025 11:06:40 EDT", 1_750_000_000),
            ("Sun, 15 Jun 2025 07:06:40 PST", 1_750_000_000),
        ] {
            assert_eq!(parse_any(text), Ok(AnyDate { unix_s: seconds, is_for_apt: false }), "{text}");
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["+02", "+2400", "+0160", "+02:00", "CEST", "2", "++200", "+2x00"] {
            assert!(parse_any(&format!("Sun, 15 Jun 2025 17:06:40 {text}")).is_err(), "{text}");
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
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "today",
            "2024-02-10T11:07:25Z",
            "Sat, 10 Feb 2024 11:07:25",
            "Sat, 10 Feb 2024 11:07:25 +0100",
            "Sat, 10 Feb 2024 11:07:25 CET",
            "2025-06-15 15:06:40 UTC",
            "Sun, Jun 15 2025 15:06:40 +0000",
            "日, 15 6月 2025 15:06:40 UTC",
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
        fn arbitrary_input_never_panics(text in "\\PC{0,40}") {
            let _ = parse_any(&text);
        }

        #[test]
        fn a_date_that_is_written_is_read_again(seconds in 0i64..253_402_300_000) {
            prop_assert_eq!(parse(&format(seconds)), Ok(seconds.min(253_370_764_799)));
        }
    }
}
