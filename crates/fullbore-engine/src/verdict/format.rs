//! Figures as people read them: three digits, a unit, decimal prefixes.

use std::time::Duration;

const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];

/// `43.1 GB`: powers of 1000, as networks and disks are sold.
pub fn bytes_text(bytes: u64) -> String {
    scaled(bytes as f64)
}

/// `62 MB/s`.
pub fn rate_text(bytes_per_s: f64) -> String {
    format!("{}/s", scaled(bytes_per_s.max(0.0)))
}

fn scaled(value: f64) -> String {
    let mut value = value;
    let mut unit = 0;
    // 999.5 would print as "1000".
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 || value >= 99.95 {
        format!("{value:.0} {}", UNITS[unit])
    } else if value >= 9.995 {
        let text = format!("{value:.1}");
        format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
    } else {
        format!("{value:.2} {}", UNITS[unit])
    }
}

/// `0.34 s`, `12.3 s`, `11 m 32 s`, `4 h 58 m`.
pub fn duration_text(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 9.995 {
        return format!("{seconds:.2} s");
    }
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, minutes, seconds) => format!("{minutes} m {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} m"),
    }
}

/// `91 %`.
pub fn percent_text(share: f64) -> String {
    format!("{:.0} %", share.clamp(0.0, 1.0) * 100.0)
}

/// `1 file`, `12 files`.
pub fn several(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", noun(n, one, many))
}

/// The word that goes with so many.
pub fn noun<'a>(n: u64, one: &'a str, many: &'a str) -> &'a str {
    if n == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        let texts = [0, 999, 1000, 62_000_000, 43_100_000_000, 999_999].map(bytes_text);
        assert_eq!(texts, ["0 B", "999 B", "1.00 kB", "62 MB", "43.1 GB", "1.00 MB"]);
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!([0, 1, 2].map(|n| several(n, "index", "indexes")), ["0 indexes", "1 index", "2 indexes"]);
    }

    #[test]
    fn durations_read_as_people_say_them() {
        let text = |seconds| duration_text(Duration::from_secs_f64(seconds));
        assert_eq!(text(0.34), "0.34 s");
        assert_eq!(text(12.3), "12.3 s");
        assert_eq!(text(692.0), "11 m 32 s");
        assert_eq!(text(59.99), "1 m 00 s");
        assert_eq!(text(17_880.0), "4 h 58 m");
    }
}
