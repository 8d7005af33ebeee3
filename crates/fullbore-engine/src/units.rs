//! Formats numbers with their units for people: decimal prefixes, as for networks and disks, and significant digits
//! only.
//!
//! ```
//! use std::time::Duration;
//! use fullbore_engine::units;
//!
//! assert_eq!(units::bytes(1_240_000_000), "1.24 GB");
//! assert_eq!(units::rate(62_300_000.0), "62.3 MB/s");
//! assert_eq!(units::time(Duration::from_secs(692)), "11 m 32 s");
//! assert_eq!(units::several(1, "file", "files"), "1 file");
//! ```

use std::time::Duration;

const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

/// Formats bytes with three significant digits: `62.3 MB`, `1.24 GB`.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    let mut unit = 0;
    // 999.5 would be rounded to 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let unit = UNITS[unit];
    match value {
        _ if n < 1000 => format!("{n} {unit}"),
        v if v < 9.995 => format!("{v:.2} {unit}"),
        v if v < 99.95 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

/// Formats a round number of bytes without insignificant digits: `20 MB`, `2.5 GB`.
pub fn round_bytes(n: u64) -> String {
    let text = bytes(n);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// Formats bytes per second: `62.3 MB/s`. Negative and non-finite values count as 0.
pub fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", bytes(bytes_per_s as u64))
}

/// Formats a time: `0.24 ms`, `0.34 s`, `12 s`, `11 m 32 s`, `2 h 05 m`, `3 d 04 h`. Two digits below a minute.
pub fn time(duration: Duration) -> String {
    let s = duration.as_secs_f64();
    let ms = s * 1000.0;
    if duration.is_zero() {
        return "0 s".to_owned();
    }
    let whole = s.round() as u64;
    match s {
        _ if ms < 0.995 => format!("{ms:.2} ms"),
        _ if ms < 9.95 => format!("{ms:.1} ms"),
        s if s < 0.995 => format!("{s:.2} s"),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 59.5 => format!("{s:.0} s"),
        s if s < 3599.5 => format!("{} m {:02} s", whole / 60, whole % 60),
        s if s < 86_399.5 => format!("{} h {:02} m", whole / 3600, whole / 60 % 60),
        _ => format!("{} d {:02} h", whole / 86_400, whole / 3600 % 24),
    }
}

/// As [`time`], for milliseconds.
pub fn duration(ms: u64) -> String {
    time(Duration::from_millis(ms))
}

/// Formats a share between 0 and 1: `91 %`.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share.clamp(0.0, 1.0) * 100.0)
}

/// Formats a count with its noun: `1 file`, `12 files`.
pub fn several(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", noun(n, one, many))
}

/// Chooses the singular or the plural of a noun for a number.
pub fn noun<'a>(n: u64, one: &'a str, many: &'a str) -> &'a str {
    if n == 1 { one } else { many }
}

/// Bytes per second; 0 when no time has passed.
pub fn per_second(bytes: u64, ms: u64) -> u64 {
    if ms == 0 { 0 } else { (u128::from(bytes) * 1000 / u128::from(ms)).try_into().unwrap_or(u64::MAX) }
}

/// Formats a count with grouped digits: `1 234 567`. The separators are thin spaces that do not break.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 2);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_carry_units() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9_994, "9.99 kB"),
            (9_996, "10.0 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (43_100_000_000, "43.1 GB"),
            (u64::MAX, "18.4 EB"),
        ];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(round_bytes(20_000_000), "20 MB");
        assert_eq!([62.3e6, -1.0, f64::NAN].map(rate), ["62.3 MB/s", "0 B/s", "0 B/s"]);
        assert_eq!([0.914, 7.0].map(percent), ["91 %", "100 %"]);
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(per_second(1, 0), 0);
        assert_eq!([0, 1, 2].map(|n| several(n, "index", "indexes")), ["0 indexes", "1 index", "2 indexes"]);
    }

    #[test]
    fn times_read_as_people_say_them() {
        let cases = [
            (0, "0 s"),
            (240, "0.24 ms"),
            (3_100, "3.1 ms"),
            (9_960, "0.01 s"),
            (340_000, "0.34 s"),
            (8_546_000, "8.5 s"),
            (9_949_000, "9.9 s"),
            (12_300_000, "12 s"),
            (59_600_000, "1 m 00 s"),
            (692_000_000, "11 m 32 s"),
            (7_500_000_000, "2 h 05 m"),
            (86_400_000_000 * 3 + 14_400_000_000, "3 d 04 h"),
        ];
        for (us, text) in cases {
            assert_eq!(time(Duration::from_micros(us)), text);
        }
    }
}
