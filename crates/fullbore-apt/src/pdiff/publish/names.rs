//! Names of patches: their time, as in dak. apt applies patches in the order of their names.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const FORMAT: &str = "%Y-%m-%d-%H%M.%S";

/// A free name for a new patch that sorts after the last one, even if the clock went back.
pub(super) fn step(now_unix_s: i64, last: Option<&str>, is_taken: impl Fn(&str) -> bool) -> String {
    let mut time_s = now_unix_s;
    if let Some(last) = last.filter(|last| **last >= *format(time_s)) {
        match parse(last) {
            Some(last_s) => time_s = last_s + 1,
            // A name of another kind: append to it.
            None => return format!("{last}+"),
        }
    }
    // There are fewer files than seconds.
    (time_s..).map(format).find(|name| !is_taken(name)).unwrap_or_default()
}

/// The name of a merged patch from before step `from` to after step `last`.
pub(super) fn merged(last: &str, from: &str) -> String {
    format!("T-{last}-F-{from}")
}

fn format(unix_s: i64) -> String {
    Timestamp::from_second(unix_s).unwrap_or_default().to_zoned(TimeZone::UTC).strftime(FORMAT).to_string()
}

fn parse(name: &str) -> Option<i64> {
    let time = DateTime::strptime(FORMAT, name).ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
    (format(time) == name).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-10-30 08:00:52 UTC.
    const NOW: i64 = 1_793_347_252;

    #[test]
    fn names_ascend() {
        let free = |_: &str| false;
        assert_eq!(step(NOW, None, free), "2026-10-30-0800.52");
        assert_eq!(step(NOW, Some("2026-10-29-2000.12"), free), "2026-10-30-0800.52");
        // The same second, and a clock that went back.
        assert_eq!(step(NOW, Some("2026-10-30-0800.52"), free), "2026-10-30-0800.53");
        assert_eq!(step(NOW, Some("2026-12-31-2359.59"), free), "2027-01-01-0000.00");
        assert_eq!(step(NOW, None, |name| name.ends_with('2')), "2026-10-30-0800.53");
        assert_eq!(step(NOW, Some("patch"), free), "patch+");
        assert_eq!(merged("B", "A"), "T-B-F-A");
    }
}
