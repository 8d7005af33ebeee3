//! The table at the end of a copy: each part, what it could do alone, how much of it was used.

use std::fmt::Write as _;
use std::time::Duration;

use fullbore_engine::stage::StageReading;

use crate::report::units;

/// Roles that are shown, as the ledger names them, and as a person says it.
const ROLES: [(&str, &str); 6] = [
    ("scan", "list source"),
    ("read", "read + hash"),
    ("send", "encrypt + send"),
    ("receive", "receive + decrypt"),
    ("disk write", "verify + write"),
    ("sync", "sync + names"),
];

/// One line per part. `bytes` are those of the whole copy.
pub fn text(ends: &[&[StageReading]], bytes: u64, wall: Duration) -> String {
    let mut text = format!("{:<18} {:>12} {:>6} {:>9} {:>9}  evidence", "part", "alone", "used", "no input", "held up");
    let wall_ns = wall.as_nanos() as f64;
    for (role, words) in ROLES {
        for stage in ends.iter().flat_map(|end| end.iter()).filter(|stage| stage.name == role && stage.threads > 0) {
            let whole_ns = stage.threads as f64 * wall_ns.max(1.0);
            let (starved, blocked) = (stage.starved_ns as f64 / whole_ns, stage.blocked_ns as f64 / whole_ns);
            // Threads that ended before the run did were not at work then.
            let busy_ns = (whole_ns - stage.starved_ns as f64 - stage.blocked_ns as f64)
                .min((stage.compute_ns + stage.run_delay_ns + stage.device_ns) as f64)
                .max(0.0);
            let used = busy_ns / whole_ns;
            let alone = if used > 0.0 && matches!(role, "read" | "send" | "receive" | "disk write") {
                let rate = bytes as f64 / wall.as_secs_f64().max(1e-9) / used;
                format!("{}/s", units::bytes(rate as u64))
            } else {
                "-".to_owned()
            };
            let cpu_s = stage.compute_ns as f64 / 1e9;
            let device_s = stage.device_ns as f64 / 1e9;
            let _ = write!(
                text,
                "\n{words:<18} {alone:>12} {:>4.0} % {:>7.0} % {:>7.0} %  {} threads, {cpu_s:.1} s of processor, {device_s:.1} s in calls",
                used * 100.0,
                starved.min(1.0) * 100.0,
                blocked.min(1.0) * 100.0,
                stage.threads,
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use fullbore_engine::stage::Kind;

    use super::*;

    #[test]
    fn a_part_that_was_busy_all_the_time_can_do_no_more_alone() {
        let stage = |name: &str, device_ns, starved_ns| StageReading {
            threads: 2,
            device_ns,
            starved_ns,
            ..StageReading::new(name, Kind::Thread)
        };
        let stages =
            [stage("disk write", 4_000_000_000, 0), stage("read", 1_000_000_000, 3_000_000_000), stage("odd", 5, 5)];
        let text = text(&[&stages], 200_000_000, Duration::from_secs(2));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1][3..7], ["400", "MB/s", "25", "%"]);
        assert_eq!(lines[2][3..7], ["100", "MB/s", "100", "%"]);
    }
}
