//! Dates in `Release` files: RFC 5322 in fixed English and UTC, as
//! `Sat, 10 Feb 2024 11:07:25 UTC`. Like apt, no other zone is taken.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use thiserror::Error;

/// A date that is none, or not in UTC.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a date such as \"Sat, 10 Feb 2024 11:07:25 UTC\"")]
pub struct DateError(pub String);

/// Months as RFC 5322 section 3.3 names them.
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Seconds since 1970 UTC.
pub fn parse(text: &str) -> Result<i64, DateError> {
    parse_parts(text.trim()).ok_or_else(|| DateError(text.chars().take(60).collect()))
}

fn parse_parts(text: &str) -> Option<i64> {
    // The day of the week adds nothing and is sometimes wrong.
    let text = text.split_once(',').map_or(text, |(_weekday, rest)| rest);
    let mut words = text.split_ascii_whitespace();
    let day = number(words.next()?, 2)?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(month))? + 1;
    let year = words.next().filter(|year| year.len() == 4).and_then(|year| number(year, 4))?;
    let mut time = words.next()?.split(':');
    let (hour, minute, second) = (number(time.next()?, 2)?, number(time.next()?, 2)?, number(time.next()?, 2)?);
    let zone = words.next()?;
    if time.next().is_some() || words.next().is_some() || !matches!(zone, "UTC" | "GMT" | "Z" | "+0000" | "-0000") {
        return None;
    }
    // A leap second counts as the second before it.
    let second = if second == 60 { 59 } else { second };
    let small = |value: u16| i8::try_from(value).ok();
    let (year, month) = (i16::try_from(year).ok()?, i8::try_from(month).ok()?);
    let civil = DateTime::new(year, month, small(day)?, small(hour)?, small(minute)?, small(second)?, 0).ok()?;
    // "Never" is written as the end of the year 9999, whose last day is beyond the calendar's instants.
    Some(civil.to_zoned(TimeZone::UTC).map_or(jiff::Timestamp::MAX, |time| time.timestamp()).as_second())
}

fn number(text: &str, digits_max: usize) -> Option<u16> {
    if text.is_empty() || text.len() > digits_max || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// As it is in `Release` files: `Sat, 10 Feb 2024 11:07:25 UTC`. Times that no calendar of four
/// digits has become the nearest it has.
pub fn format(unix_s: i64) -> String {
    const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    const LAST: i64 = 253_370_764_799;
    const FIRST: i64 = -62_135_596_800;
    let time = jiff::Timestamp::from_second(unix_s.clamp(FIRST, LAST)).unwrap_or_default().to_zoned(TimeZone::UTC);
    let weekday = WEEKDAYS[usize::from(time.weekday().to_monday_zero_offset().unsigned_abs()) % 7];
    let month = MONTHS[usize::from(time.month().unsigned_abs()).saturating_sub(1) % 12];
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    format!("{weekday}, {:02} {month} {:04} {hour:02}:{minute:02}:{second:02} UTC", time.day(), time.year())
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
