//! Times as people read them.

/// A Unix time as `2026-11-20 23:38:05 UTC`; out-of-range times as the bare number.
pub fn text(unix_s: i64) -> String {
    match jiff::Timestamp::from_second(unix_s) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => unix_s.to_string(),
    }
}
