//! Numbers with their units, as people read them.

pub use crate::verdict::{noun, several};

/// `62 MB`, `1.24 GB`: three significant digits, decimal units.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64;
    let mut unit = "B";
    for next in UNITS {
        // 999.5 would be printed as 1000.
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    match value {
        v if v < 9.995 => format!("{v:.2} {unit}"),
        v if v < 99.95 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

/// Round figures without digits that say nothing: `20 MB`, `2.5 GB`.
pub fn round_bytes(n: u64) -> String {
    let text = bytes(n);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// `0.4 s`, `11 m 32 s`, `2 h 05 m`, `3 d 04 h`.
pub fn duration(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..10 => format!("{:.1} s", ms as f64 / 1000.0),
        10..60 => format!("{s} s"),
        60..3600 => format!("{} m {:02} s", s / 60, s % 60),
        3600..86400 => format!("{} h {:02} m", s / 3600, s / 60 % 60),
        _ => format!("{} d {:02} h", s / 86400, s / 3600 % 24),
    }
}

/// Bytes per second; 0 when no time has passed.
pub fn per_second(bytes: u64, ms: u64) -> u64 {
    if ms == 0 { 0 } else { (u128::from(bytes) * 1000 / u128::from(ms)).try_into().unwrap_or(u64::MAX) }
}

/// `1 234 567`: digits in groups, with thin spaces that do not break.
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
        assert_eq!(duration(692_000), "11 m 32 s");
        assert_eq!(duration(9_949), "9.9 s");
        assert_eq!(duration(7_500_000), "2 h 05 m");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(per_second(1, 0), 0);
    }
}
