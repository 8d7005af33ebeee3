//! CPU limits of the control group: `cpu.max` and `cpu.stat` of version 2 (Documentation/admin-guide/cgroup-v2.rst),
//! and their equivalents of version 1, which containers on older machines still have.

use std::fs;
use std::path::{Path, PathBuf};

use crate::machine::{Mount, mounts};

/// Maximum number of group levels walked up; real trees have fewer than ten.
const LEVELS: usize = 32;

/// Control-group directories of this process, the innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cgroup {
    levels: Vec<PathBuf>,
}

/// Figures of the groups at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CgroupReading {
    /// CPU time allowed by the tightest level, in cores; `None` if unlimited.
    pub quota_cores: Option<f64>,
    /// Time during which the quota held back runnable threads, in nanoseconds.
    pub throttled_ns: u64,
}

impl Cgroup {
    /// The groups of this process; empty where `/proc` or `/sys` do not show them.
    pub(crate) fn of_this_process() -> Cgroup {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounted = mounts(&fs::read("/proc/self/mountinfo").unwrap_or_default());
        Cgroup::parse(&own, &mounted)
    }

    fn parse(own: &str, mounted: &[Mount]) -> Cgroup {
        let mut levels = Vec::new();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            let mount = if controllers.is_empty() {
                mounted.iter().find(|mount| mount.kind == "cgroup2")
            } else if controllers.split(',').any(|name| name == "cpu") {
                mounted.iter().find(|mount| mount.kind == "cgroup" && mount.has_option("cpu"))
            } else {
                None
            };
            let Some(mount) = mount else { continue };
            let point = mount.path.as_path();
            let inner = path.strip_prefix(mount.root.as_str()).unwrap_or(path).trim_start_matches('/');
            let inner = Path::new(inner);
            if inner.components().any(|part| part == std::path::Component::ParentDir) {
                // A group outside our namespace; only its root is visible.
                levels.push(point.to_owned());
                continue;
            }
            let up = inner.ancestors().take(LEVELS).map(|level| point.join(level));
            levels.extend(up);
        }
        Cgroup { levels }
    }

    /// Reads quota and throttled time of all levels.
    pub(super) fn reading(&self) -> CgroupReading {
        let mut reading = CgroupReading::default();
        for level in &self.levels {
            let read = |name: &str| fs::read_to_string(level.join(name)).ok();
            let quota = match read("cpu.max") {
                Some(text) => parse_max(&text),
                None => read("cpu.cfs_quota_us")
                    .zip(read("cpu.cfs_period_us"))
                    .and_then(|(quota, period)| parse_max(&format!("{} {}", quota.trim(), period.trim()))),
            };
            reading.quota_cores = match (reading.quota_cores, quota) {
                (Some(tightest), Some(quota)) => Some(tightest.min(quota)),
                (known, other) => known.or(other),
            };
            let throttled_ns = read("cpu.stat").map_or(0, |text| parse_throttled(&text));
            reading.throttled_ns = reading.throttled_ns.max(throttled_ns);
        }
        reading
    }
}

/// Parses `QUOTA PERIOD` in microseconds into cores; `None` for `max` or -1.
fn parse_max(text: &str) -> Option<f64> {
    let mut fields = text.split_ascii_whitespace();
    let quota: u64 = fields.next()?.parse().ok()?;
    let period: u64 = fields.next()?.parse().ok()?;
    (period > 0).then(|| quota as f64 / period as f64)
}

/// Parses `throttled_usec` (version 2) or `throttled_time` in nanoseconds (version 1).
fn parse_throttled(text: &str) -> u64 {
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(name), Some(value)) = (fields.next(), fields.next()) else {
            continue;
        };
        let value: u64 = value.parse().unwrap_or(0);
        match name {
            "throttled_usec" => return value.saturating_mul(1000),
            "throttled_time" => return value,
            _ => (),
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn both_versions_are_walked_up_to_their_roots() {
        let cgroup = Cgroup::parse("4:memory:/m\n1:cpu:/jobs/7\n0::/user.slice\n", &mounts(MOUNTS.as_bytes()));
        let expected = [
            "/sys/fs/cgroup/cpu/jobs/7",
            "/sys/fs/cgroup/cpu/jobs",
            "/sys/fs/cgroup/cpu/",
            "/sys/fs/cgroup/unified/user.slice",
            "/sys/fs/cgroup/unified/",
        ];
        assert_eq!(cgroup.levels, expected.map(PathBuf::from));
    }

    #[test]
    fn a_group_outside_the_name_space_falls_back_to_the_mount() {
        let cgroup = Cgroup::parse("0::/../../other\n", &mounts(MOUNTS.as_bytes()));
        assert_eq!(cgroup.levels, [PathBuf::from("/sys/fs/cgroup/unified")]);
    }

    #[test]
    fn the_tightest_quota_and_the_throttled_time_are_read() {
        let outer = tempfile::tempdir().expect("a directory");
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).expect("a directory within");
        fs::write(outer.path().join("cpu.max"), "150000 100000\n").expect("written");
        fs::write(inner.join("cpu.max"), "max 100000\n").expect("written");
        let stat = "usage_usec 5\nnr_throttled 3\nthrottled_usec 1500\n";
        fs::write(inner.join("cpu.stat"), stat).expect("written");
        let cgroup = Cgroup { levels: vec![inner, outer.path().to_owned()] };
        let reading = cgroup.reading();
        assert_eq!(reading, CgroupReading { quota_cores: Some(1.5), throttled_ns: 1_500_000 });
    }

    #[test]
    fn version_one_counts_in_nanoseconds_and_says_minus_one_for_unlimited() {
        assert_eq!(parse_throttled("nr_periods 0\nthrottled_time 77\n"), 77);
        assert_eq!(parse_max("-1 100000"), None);
        assert_eq!(parse_max("50000 0"), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(one in ".{0,200}", two in ".{0,200}") {
            Cgroup::parse(&one, &mounts(two.as_bytes()));
            Cgroup::parse(&format!("0::{one}"), &mounts(format!("1 1 0:1 {two} / x - cgroup2 c o").as_bytes()));
            parse_max(&one);
            parse_throttled(&two);
        }
    }
}
