//! Processor time and memory of this process, from the kernel.

/// Processor time in milliseconds and largest resident memory in bytes of this process so far.
pub fn process_costs() -> (u64, u64) {
    let own = "/proc/self";
    let peak_rss_bytes = std::fs::read_to_string(format!("{own}/status"))
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
        })
        .unwrap_or(0)
        .saturating_mul(1024);
    let ticks_per_s = rustix::param::clock_ticks_per_second().max(1);
    let cpu_ms = std::fs::read_to_string(format!("{own}/stat"))
        .ok()
        .and_then(|stat| {
            // Fields 14 and 15. The second field may contain anything, but ends with the last parenthesis.
            let (_, rest) = stat.rsplit_once(')')?;
            let mut fields = rest.split_whitespace().skip(11);
            let user: u64 = fields.next()?.parse().ok()?;
            let system: u64 = fields.next()?.parse().ok()?;
            Some((user + system).saturating_mul(1000) / ticks_per_s)
        })
        .unwrap_or(0);
    (cpu_ms, peak_rss_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_costs() {
        let (_, peak_rss_bytes) = process_costs();
        assert!(peak_rss_bytes > 100_000);
    }
}
