//! The disks under a path: their structure, how busy each one is, and which one delays the others.
//!
//! The kernel reports them in `/sys`. `slaves/` names the members of md, dm and LVM. `stat` counts each disk's requests
//! (Documentation/block/stat.rst). `md/` reports checks and rebuilds (Documentation/admin-guide/md.rst). One slow
//! member slows a whole array, but no figure of the array shows it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fullbore_engine::verdict::Device;
use fullbore_engine::verdict::thresholds::{SLOW_MEMBER, SLOW_MEMBER_MS, STUCK};
use serde::{Deserialize, Serialize};

/// Bytes per sector in the kernel's counters, whatever the disk's own size.
const SECTOR_BYTES: u64 = 512;
/// Least requests of a member before it is compared with the others. Guess.
const ENOUGH_REQUESTS: u64 = 16;

/// A disk, or a device made of disks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    name: String,
    directory: PathBuf,
    /// Names of the devices that it is made of.
    slaves: Vec<String>,
}

/// All disks under a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disks {
    /// Type of the file system, from mountinfo.
    pub file_system: String,
    members: Vec<Member>,
}

/// Counters of one disk since the kernel found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// Total time of all requests, in milliseconds.
    waited_ms: u64,
    busy_ms: u64,
    queue_ms: u64,
}

/// Counters of all disks at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    at: Instant,
    counters: HashMap<String, Counters>,
}

/// Activity of one disk during a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Its name in `/sys`, or its LVM name.
    pub name: String,
    /// Whether it is a disk itself, without members.
    pub is_disk: bool,
    /// Share of the time with a request in flight, from 0 to 1.
    pub busy: f64,
    /// Bytes read per second.
    pub read_bytes_per_s: f64,
    /// Bytes written per second.
    pub written_bytes_per_s: f64,
    /// Mean time of a request, in milliseconds.
    pub wait_ms: f64,
    /// Mean number of requests in flight.
    pub queue: f64,
}

/// A problem of a disk array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Trouble {
    /// One member is much slower than the others.
    SlowMember {
        /// Name of the array.
        array: String,
        /// Name of the slow member.
        member: String,
        /// Mean time of the slow member's requests, in milliseconds.
        wait_ms: f64,
        /// Mean time of the other members' requests, in milliseconds.
        others_wait_ms: f64,
        /// Share of the time that the slow member was busy, from 0 to 1.
        busy: f64,
    },
    /// The array is being rebuilt or checked.
    Resync {
        /// Name of the array.
        array: String,
        /// The kernel's name of the action: `resync`, `recover`, `check`, `repair` or `reshape`.
        action: String,
        /// Progress from 0 to 1, if the kernel tells.
        done: Option<f64>,
        /// Rate of the action in bytes per second, if the kernel tells.
        bytes_per_s: Option<u64>,
    },
    /// The array has missing members.
    Degraded {
        /// Name of the array.
        array: String,
        /// Number of missing members.
        missing: u64,
    },
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::SlowMember { array, member, wait_ms, others_wait_ms, busy } => write!(
                formatter,
                "{member}, a member of {array}, is slow: {wait_ms:.1} ms a request, its neighbours {others_wait_ms:.1} ms (busy {:.0} %)",
                busy * 100.0
            ),
            Trouble::Resync { array, action, done, bytes_per_s } => {
                write!(formatter, "{array}: {action} is running")?;
                if let Some(done) = done {
                    write!(formatter, ", {:.1} % done", done * 100.0)?;
                }
                match bytes_per_s {
                    Some(rate) => write!(formatter, ", at {} MB/s", rate / 1_000_000),
                    None => Ok(()),
                }
            }
            Trouble::Degraded { array, missing } => write!(formatter, "{array} is degraded: {missing} missing"),
        }
    }
}

/// Activity of the disks during a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskFacts {
    /// Type of the file system, from mountinfo.
    pub file_system: String,
    /// All disks, arrays before their members.
    pub used: Vec<Used>,
    /// Problems of the arrays.
    pub troubles: Vec<Trouble>,
    /// Whether big files were written with O_DIRECT, because a trial showed it to be faster.
    #[serde(default)]
    pub direct: bool,
}

impl DiskFacts {
    /// Records whether big files were written with O_DIRECT.
    #[must_use]
    pub fn written(self, direct: bool) -> DiskFacts {
        DiskFacts { direct, ..self }
    }

    /// The disk that was busy for the largest share of the time.
    pub fn busiest(&self) -> Option<&Used> {
        self.used.iter().max_by(|one, other| one.busy.total_cmp(&other.busy))
    }
}

impl Disks {
    /// The disks under a path, or under its nearest existing parent.
    pub(crate) fn under(path: &Path) -> Disks {
        let exists = |path: &&Path| path.exists();
        let device = Device::under(path.ancestors().find(exists).unwrap_or(Path::new(".")));
        let directories: Vec<PathBuf> = device.directories().map(Path::to_owned).collect();
        Disks { file_system: device.file_system, members: directories.iter().map(|path| member(path)).collect() }
    }

    /// Whether the file system is in memory, so that reads never reach a disk.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self.file_system.as_str(), "tmpfs" | "ramfs" | "devtmpfs" | "hugetlbfs")
    }

    /// Reads the current counters of all disks.
    pub(crate) fn read(&self) -> Reading {
        let counters = |member: &Member| {
            let text = std::fs::read_to_string(member.directory.join("stat")).ok()?;
            Some((member.name.clone(), parse(&text)?))
        };
        Reading { at: Instant::now(), counters: self.members.iter().filter_map(counters).collect() }
    }

    /// Activity of all disks since `before`.
    pub(crate) fn since(&self, before: &Reading) -> DiskFacts {
        let now = self.read();
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
        self.between(before, &now, seconds)
    }

    fn between(&self, before: &Reading, now: &Reading, seconds: f64) -> DiskFacts {
        let deltas: HashMap<&str, Counters> = self
            .members
            .iter()
            .filter_map(|member| {
                let (then, now) = (before.counters.get(&member.name)?, now.counters.get(&member.name)?);
                Some((member.name.as_str(), now.since(then)))
            })
            .collect();
        let used = self.members.iter().filter_map(|member| {
            let delta = deltas.get(member.name.as_str())?;
            Some(Used {
                name: shown(member),
                is_disk: member.slaves.is_empty(),
                busy: (delta.busy_ms as f64 / 1e3 / seconds).min(1.0),
                read_bytes_per_s: delta.read_bytes as f64 / seconds,
                written_bytes_per_s: delta.written_bytes as f64 / seconds,
                wait_ms: delta.wait_ms(),
                queue: delta.queue_ms as f64 / 1e3 / seconds,
            })
        });
        let mut troubles: Vec<Trouble> = Vec::new();
        for array in self.members.iter().filter(|member| !member.slaves.is_empty()) {
            troubles.extend(rebuilding(array));
            troubles.extend(self.slow_member(array, &deltas, seconds));
        }
        DiskFacts { file_system: self.file_system.clone(), used: used.collect(), troubles, direct: false }
    }

    /// The member whose requests take much longer than those of the others.
    fn slow_member(&self, array: &Member, deltas: &HashMap<&str, Counters>, seconds: f64) -> Option<Trouble> {
        let busy = |delta: &Counters| (delta.busy_ms as f64 / 1e3 / seconds).min(1.0);
        // A dying disk may be busy all the time without completing one request, while the others complete thousands.
        let is_stuck = |delta: &Counters| delta.requests < ENOUGH_REQUESTS && busy(delta) >= STUCK;
        let members: Vec<(&str, &Counters)> =
            array.slaves.iter().filter_map(|name| Some((name.as_str(), deltas.get(name.as_str())?))).collect();
        let enough = members.iter().filter(|(_, delta)| delta.requests >= ENOUGH_REQUESTS || is_stuck(delta));
        let (member, slowest) = enough.max_by(|one, other| one.1.request_ms().total_cmp(&other.1.request_ms()))?;
        let neighbours = members.iter().filter(|(name, delta)| name != member && delta.requests >= ENOUGH_REQUESTS);
        let mut others: Vec<f64> = neighbours.map(|(_, delta)| delta.wait_ms()).collect();
        others.sort_by(f64::total_cmp);
        let (wait_ms, others_wait_ms) = (slowest.request_ms(), *others.get(others.len() / 2)?);
        let is_slow = wait_ms >= SLOW_MEMBER * others_wait_ms && wait_ms - others_wait_ms >= SLOW_MEMBER_MS;
        let shown_member =
            self.members.iter().find(|known| known.name == *member).map_or_else(|| (*member).to_owned(), shown);
        is_slow.then(|| Trouble::SlowMember {
            array: shown(array),
            member: shown_member,
            wait_ms,
            others_wait_ms,
            busy: busy(slowest),
        })
    }
}

impl Counters {
    fn since(&self, before: &Counters) -> Counters {
        Counters {
            requests: self.requests.saturating_sub(before.requests),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            waited_ms: self.waited_ms.saturating_sub(before.waited_ms),
            busy_ms: self.busy_ms.saturating_sub(before.busy_ms),
            queue_ms: self.queue_ms.saturating_sub(before.queue_ms),
        }
    }

    fn wait_ms(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.waited_ms as f64 / self.requests as f64 }
    }

    /// Like [`Counters::wait_ms`], but at least the time per request that the busy time implies. Requests in flight
    /// have not been counted as completed.
    fn request_ms(&self) -> f64 {
        let fewest = self.requests < ENOUGH_REQUESTS;
        let held = if fewest { self.busy_ms as f64 / (self.requests + 1) as f64 } else { 0.0 };
        self.wait_ms().max(held)
    }
}

/// Parses a line of `stat`: requests, merges, sectors and ms of reads; the same for writes; then requests in flight,
/// busy ms, queue ms.
fn parse(text: &str) -> Option<Counters> {
    let fields: Vec<u64> = text.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let field = |at: usize| fields.get(at).copied();
    Some(Counters {
        requests: field(0)?.saturating_add(field(4)?),
        read_bytes: field(2)?.saturating_mul(SECTOR_BYTES),
        waited_ms: field(3)?.saturating_add(field(7)?),
        written_bytes: field(6)?.saturating_mul(SECTOR_BYTES),
        busy_ms: field(9)?,
        queue_ms: field(10)?,
    })
}

/// Reads a block device from `/sys`. A partition as a member is counted by its disk.
fn member(directory: &Path) -> Member {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let slaves = std::fs::read_dir(directory.join("slaves")).into_iter().flatten().flatten();
    let disk = |slave: PathBuf| {
        let real = slave.canonicalize().ok()?;
        let of_disk = if real.join("partition").exists() { real.parent()?.to_owned() } else { real };
        Some(name(&of_disk))
    };
    let mut slaves: Vec<String> = slaves.filter_map(|slave| disk(slave.path())).collect();
    slaves.sort();
    Member { name: name(directory), directory: directory.to_owned(), slaves }
}

/// `vg-root (dm-0)` for a device that LVM named, else the kernel's name.
fn shown(member: &Member) -> String {
    let mapped = std::fs::read_to_string(member.directory.join("dm/name")).ok();
    let mapped = mapped.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    mapped.map_or_else(|| member.name.clone(), |name| format!("{name} ({})", member.name))
}

/// Rebuilds and checks in progress, and missing members.
fn rebuilding(array: &Member) -> Vec<Trouble> {
    let read = |name: &str| std::fs::read_to_string(array.directory.join("md").join(name)).ok();
    let mut troubles = Vec::new();
    let action = read("sync_action").map(|action| action.trim().to_owned());
    if let Some(action) = action.filter(|action| !matches!(action.as_str(), "" | "idle" | "frozen")) {
        // The file has `123456 / 7890123`, in sectors, or `none`.
        let done = read("sync_completed").and_then(|text| {
            let (done, all) = text.split_once('/')?;
            let (done, all): (f64, f64) = (done.trim().parse().ok()?, all.trim().parse().ok()?);
            (all > 0.0).then_some(done / all)
        });
        // The file has KiB per second.
        let bytes_per_s =
            read("sync_speed").and_then(|text| text.trim().parse::<u64>().ok()).map(|rate| rate.saturating_mul(1024));
        troubles.push(Trouble::Resync { array: shown(array), action, done, bytes_per_s });
    }
    if let Some(missing) = read("degraded").and_then(|text| text.trim().parse().ok()).filter(|missing| *missing > 0) {
        troubles.push(Trouble::Degraded { array: shown(array), missing });
    }
    troubles
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    /// requests, bytes read, ms waited, ms busy
    fn stat(requests: u64, waited: u64, busy: u64) -> String {
        format!("{requests} 0 {} {waited} 0 0 0 0 0 {busy} {waited}\n", requests * 16)
    }

    /// LVM on a mirror of two partitions, as `/sys/block` has it.
    fn tree() -> (tempfile::TempDir, Disks) {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().canonicalize().unwrap().join(path);
        for path in ["dm-0/slaves", "dm-0/dm", "md0/slaves", "md0/md", "sda/sda1", "sdb/sdb1", "sdc/sdc1"] {
            fs::create_dir_all(at(path)).unwrap();
        }
        fs::write(at("dm-0/dm/name"), "vg-srv\n").unwrap();
        symlink(at("md0"), at("dm-0/slaves/md0")).unwrap();
        for disk in ["sda", "sdb", "sdc"] {
            let partition = at(&format!("{disk}/{disk}1"));
            fs::write(partition.join("partition"), "1").unwrap();
            symlink(&partition, at(&format!("md0/slaves/{disk}1"))).unwrap();
            fs::write(at(&format!("{disk}/stat")), stat(0, 0, 0)).unwrap();
        }
        for name in ["dm-0", "md0"] {
            fs::write(at(name).join("stat"), stat(0, 0, 0)).unwrap();
        }
        let members = ["dm-0", "md0", "sda", "sdb", "sdc"].map(|name| member(&at(name)));
        (root, Disks { file_system: "xfs".to_owned(), members: members.to_vec() })
    }

    fn facts(root: &Path, disks: &Disks, stats: &[(&str, String)]) -> DiskFacts {
        let before = disks.read();
        for (name, text) in stats {
            fs::write(root.join(name).join("stat"), text).unwrap();
        }
        disks.between(&before, &disks.read(), 2.0)
    }

    #[test]
    fn one_slow_member_of_an_array_is_named() {
        let (root, disks) = tree();
        let stats = [("sda", stat(100, 200, 500)), ("sdb", stat(100, 6000, 1960)), ("sdc", stat(100, 220, 510))];
        let facts = facts(root.path(), &disks, &stats);
        let [Trouble::SlowMember { array, member, wait_ms, others_wait_ms, busy }] = &facts.troubles[..] else {
            panic!("{:?}", facts.troubles)
        };
        assert_eq!((array.as_str(), member.as_str()), ("md0", "sdb"));
        assert!((wait_ms - 60.0).abs() < 0.1 && (others_wait_ms - 2.2).abs() < 0.1 && (busy - 0.98).abs() < 0.01);
        assert_eq!(facts.busiest().unwrap().name, "sdb");
        assert_eq!(facts.used[0].name, "vg-srv (dm-0)");
        assert!(facts.troubles[0].to_string().starts_with("sdb, a member of md0, is slow: 60.0 ms"));
    }

    #[test]
    fn a_dying_member_that_hardly_ends_a_request_is_named() {
        for (requests, waited, least_ms) in [(2, 1960, 900.0), (1, 1000, 900.0), (0, 0, 1900.0)] {
            let (root, disks) = tree();
            let dying = stat(requests, waited, 1960);
            let stats = [("sda", stat(100, 200, 500)), ("sdb", dying), ("sdc", stat(100, 220, 510))];
            let facts = facts(root.path(), &disks, &stats);
            let [Trouble::SlowMember { member, wait_ms, others_wait_ms, busy, .. }] = &facts.troubles[..] else {
                panic!("{requests}: {:?}", facts.troubles)
            };
            assert!(member == "sdb" && *wait_ms > least_ms && *busy > 0.9, "{:?}", facts.troubles);
            assert!((others_wait_ms - 2.2).abs() < 0.3, "{:?}", facts.troubles);
        }
        // Nobody else has anything to do: there is nothing to compare it with.
        let (root, disks) = tree();
        assert_eq!(facts(root.path(), &disks, &[("sdb", stat(2, 1960, 1960))]).troubles, []);
    }

    #[test]
    fn members_that_are_alike_are_left_alone_and_so_are_idle_ones() {
        let (root, disks) = tree();
        let alike = [("sda", stat(100, 200, 500)), ("sdb", stat(100, 260, 600)), ("sdc", stat(100, 220, 510))];
        assert_eq!(facts(root.path(), &disks, &alike).troubles, []);
        let (root, disks) = tree();
        let idle = [("sda", stat(3, 300, 300)), ("sdb", stat(2, 2, 2))];
        assert_eq!(facts(root.path(), &disks, &idle).troubles, []);
    }

    #[test]
    fn a_running_resync_is_told_with_how_far_it_is() {
        let (root, disks) = tree();
        let md = root.path().join("md0/md");
        for (name, text) in [
            ("sync_action", "check\n"),
            ("sync_completed", "25 / 100\n"),
            ("sync_speed", "100000\n"),
            ("degraded", "1\n"),
        ] {
            fs::write(md.join(name), text).unwrap();
        }
        let facts = facts(root.path(), &disks, &[]);
        let resync = Trouble::Resync {
            array: "md0".to_owned(),
            action: "check".to_owned(),
            done: Some(0.25),
            bytes_per_s: Some(102_400_000),
        };
        assert_eq!(facts.troubles, [resync, Trouble::Degraded { array: "md0".to_owned(), missing: 1 }]);
        assert_eq!(facts.troubles[0].to_string(), "md0: check is running, 25.0 % done, at 102 MB/s");
        fs::write(md.join("sync_action"), "idle\n").unwrap();
        fs::write(md.join("degraded"), "0\n").unwrap();
        assert_eq!(disks.since(&disks.read()).troubles, []);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[0-9 a-z-]{0,200}") {
            parse(&text);
        }
    }
}
