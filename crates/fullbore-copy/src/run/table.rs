//! The table at the end of a copy, from the run's own measurements. For each part it shows what the part could do
//! alone, how much of that was used, and how long others waited for it. It also names the next limit, and what removing
//! this one would save.

use std::time::Duration;

use fullbore_engine::run::report::PartRow as Row;
use fullbore_engine::units;
use fullbore_engine::verdict::Verdict;
use fullbore_engine::verdict::thresholds::ROUNDS_TO_NOTHING;

use super::remote::connections;
use crate::judgement::{self, Attribution, Judgement};
use crate::probe::{DiskFacts, Part, Trouble};
use crate::transport::Path as NetworkPath;

/// Shortest pause that counts as a stall, in seconds.
const STALL_S: f64 = 0.3;
/// A rate below this share of the usual one is a stall.
const STALLED: f64 = 0.02;

/// What both ends of a copy know at its end.
#[derive(Clone, Copy)]
pub(super) struct Outcome<'a> {
    /// Clocks and verdict of the sender; of both ends on one machine.
    pub(super) sender: &'a Judgement,
    /// Clocks and verdict of the receiver, if it is another process.
    pub(super) receiver: Option<&'a Judgement>,
    /// Facts about the connections.
    pub(super) path: Option<&'a NetworkPath>,
    /// Activity of the disks of the source and of the destination.
    pub(super) disks: (&'a DiskFacts, &'a DiskFacts),
    /// Names of source and destination.
    pub(super) places: (&'a str, &'a str),
    /// This end's verdict, for its history over time.
    pub(super) verdict: Option<&'a Verdict>,
    /// Bytes written to the destination.
    pub(super) bytes: u64,
    /// Wall time of the run.
    pub(super) wall: Duration,
    /// Time of the final sync.
    pub(super) sync: Duration,
}

/// How the threads of a role spent their time.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    threads: f64,
    used: f64,
    starved: f64,
    blocked: f64,
    compute_s: f64,
    bytes: u64,
}

impl Outcome<'_> {
    fn spent(&self, end: &Judgement, role: &str) -> Option<Spent> {
        let stage = end.stage(role).filter(|stage| stage.threads > 0)?;
        let whole_ns = stage.threads as f64 * (self.wall.as_nanos() as f64).max(1.0);
        let (starved, blocked) = (stage.starved_ns as f64 / whole_ns, stage.blocked_ns as f64 / whole_ns);
        // Threads that ended before the run did were not at work afterwards.
        let busy_ns = (whole_ns - stage.starved_ns as f64 - stage.blocked_ns as f64)
            .min((stage.compute_ns + stage.run_delay_ns + stage.device_ns) as f64)
            .max(0.0);
        Some(Spent {
            threads: stage.threads as f64,
            used: busy_ns / whole_ns,
            starved: starved.min(1.0),
            blocked: blocked.min(1.0),
            compute_s: stage.compute_ns as f64 / 1e9,
            bytes: stage.bytes,
        })
    }

    fn alone(&self, used: f64) -> Option<f64> {
        // A part that was hardly used has no reliable rate of its own.
        (used > ROUNDS_TO_NOTHING).then(|| self.bytes as f64 / self.wall.as_secs_f64().max(1e-9) / used.min(1.0))
    }

    /// All parts of the run.
    pub(super) fn rows(&self) -> Vec<Row> {
        let receiver = self.receiver.unwrap_or(self.sender);
        let (read, write) = (self.spent(self.sender, "read"), self.spent(receiver, "disk write"));
        let (send, receive) = (self.spent(self.sender, "send"), self.spent(receiver, "receive"));
        let blame = Attribution::of(self.sender, self.receiver.unwrap_or(&Judgement::default()));
        let limits = |part| blame.parts().contains(&part);
        let cpu_per_gb =
            |spent: Spent| format!("{:.2} cpu-s/GB", spent.compute_s / (self.bytes as f64 / 1e9).max(1e-9));
        let mut rows = Vec::new();
        if let Some(scan) = self.spent(self.sender, "scan") {
            let instead = Some(units::duration((scan.used * scan.threads * self.wall.as_secs_f64() * 1e3) as u64));
            let evidence = vec![units::several(scan.threads as u64, "thread", "threads"), "beside the rest".to_owned()];
            rows.push(Row { instead, evidence, ..Row::new("list source") });
        }
        if let Some(read) = read {
            let mut evidence = disk_words(self.disks.0);
            evidence.extend([units::several(read.threads as u64, "reader", "readers"), cpu_per_gb(read)]);
            rows.push(Row {
                alone_bytes_per_s: self.alone(read.used),
                used: Some(read.used),
                waited_for: send.or(write).map(|next| next.starved),
                limits: limits(Part::Read),
                evidence,
                ..Row::new(format!("read + hash {}", self.places.0))
            });
        }
        if let Some(send) = send {
            rows.push(self.processor("encrypt + send", send, self.sender.cores, limits(Part::SourceCpu)));
            rows.push(self.network(limits(Part::Network)));
        }
        if let Some(receive) = receive {
            rows.push(self.processor("receive + decrypt", receive, receiver.cores, limits(Part::TargetCpu)));
        }
        if let Some(write) = write {
            let mut evidence = disk_words(self.disks.1);
            evidence.extend([units::several(write.threads as u64, "writer", "writers"), cpu_per_gb(write)]);
            rows.push(Row {
                alone_bytes_per_s: self.alone(write.used),
                used: Some(write.used),
                waited_for: receive.or(read).map(|before| before.blocked),
                limits: limits(Part::Write),
                evidence,
                ..Row::new(format!("verify + write {}", self.places.1))
            });
        }
        if send.is_none() && (limits(Part::SourceCpu) || limits(Part::TargetCpu)) {
            // One machine has one processor.
            let evidence = vec![self.sender.words(), units::several(self.sender.cores as u64, "core", "cores")];
            rows.push(Row { limits: true, evidence, ..Row::new("processor") });
        }
        rows.push(Row { instead: Some(units::duration(self.sync.as_millis() as u64)), ..Row::new("final sync") });
        rows.extend(self.protocol(send));
        rows
    }

    fn processor(&self, name: &str, spent: Spent, cores: usize, limits: bool) -> Row {
        let cores = (cores.max(1) as f64).min(spent.threads);
        let used = spent.compute_s / self.wall.as_secs_f64().max(1e-9) / cores;
        let per_gb = spent.compute_s / (self.bytes as f64 / 1e9).max(1e-9);
        Row {
            alone_bytes_per_s: self.alone(used),
            used: Some(used.min(1.0)),
            limits,
            evidence: vec![format!("{per_gb:.2} cpu-s/GB")],
            ..Row::new(name)
        }
    }

    /// The connections. They count as used while data is in flight that neither buffer nor receiver delays.
    fn network(&self, limits: bool) -> Row {
        let sending = self.sender.sending;
        let held_up = sending.receiver_limited_us as f64 / sending.busy_us.max(1) as f64;
        let used = sending.busy().map(|busy| busy * (1.0 - held_up).max(0.0));
        let mut evidence = Vec::new();
        if let Some(path) = self.path.filter(|path| path.streams > 0) {
            evidence.push(connections(path.streams));
            // The kernel reports figures only for this process's own TCP connections.
            if let Some(trip) = path.round_trip {
                evidence.push(format!("round trip {:.1} ms", trip.as_secs_f64() * 1e3));
                evidence.push(format!("{:.2} % sent twice", path.loss * 100.0));
            }
            evidence.extend(path.control.as_ref().map(|control| format!("{control} congestion control")));
        }
        let share = |us: u64| us as f64 / sending.busy_us.max(1) as f64 * 100.0;
        if sending.busy_us > 0 {
            evidence.push(format!("receiver's window {:.0} %", share(sending.receiver_limited_us)));
            evidence.push(format!("send buffer {:.0} %", share(sending.buffer_limited_us)));
        }
        Row {
            // The capacity of a path shows only when it is full.
            alone_bytes_per_s: used.filter(|_| limits).and_then(|used| self.alone(used)),
            used,
            waited_for: judgement::waited_for_path(self.sender, self.receiver.unwrap_or(self.sender)),
            limits,
            evidence,
            ..Row::new("network")
        }
    }

    /// Overhead of the wire beyond the content, and the longest time in which nothing was sent.
    fn protocol(&self, send: Option<Spent>) -> Option<Row> {
        let send = send.filter(|send| send.bytes > 0 && self.bytes > 0)?;
        let overhead = send.bytes as f64 / self.bytes as f64 - 1.0;
        // The sender may count less than was written, even without compression: at the other end it reports its figures
        // while the last records are in flight.
        let mut evidence = vec![if overhead >= -ROUNDS_TO_NOTHING {
            format!("{:.1} % overhead", overhead.max(0.0) * 100.0)
        } else {
            format!("content made {:.0} % smaller", -overhead * 100.0)
        }];
        evidence.extend(self.stall());
        Some(Row { evidence, ..Row::new("protocol") })
    }

    fn stall(&self) -> Option<String> {
        let points = &self.verdict?.timeline.points;
        let usual = points.iter().map(|point| point.delivered_bytes_per_s).sum::<f64>() / points.len().max(1) as f64;
        let (mut longest, mut at, mut since) = (0.0_f64, 0.0, None::<f64>);
        for point in points {
            if point.delivered_bytes_per_s >= STALLED * usual {
                since = None;
                continue;
            }
            let began = *since.get_or_insert(point.at_s);
            let length = point.at_s + point.length_s - began;
            if length > longest {
                (longest, at) = (length, began);
            }
        }
        (longest >= STALL_S).then(|| format!("longest stall {longest:.1} s, {at:.0} s after the start"))
    }

    /// The part that would limit next, if one limits now.
    fn next(&self) -> Option<(Row, f64)> {
        let rows = self.rows();
        let others = rows.iter().filter(|row| !row.limits && row.used.is_some());
        let next = others.max_by(|one, other| one.used.unwrap_or(0.0).total_cmp(&other.used.unwrap_or(0.0)))?;
        let used = next.used.unwrap_or(0.0).clamp(ROUNDS_TO_NOTHING, 1.0);
        rows.iter().any(|row| row.limits).then(|| (next.clone(), used))
    }

    /// The next limit in words.
    pub(super) fn next_limit(&self) -> Option<String> {
        self.next().map(|(next, used)| format!("{}, used to {:.0} %", next.part, used * 100.0))
    }

    /// The next limit, and the time saved by removing the current one; empty if no limit is named.
    pub(super) fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        if let Some((next, used)) = self.next() {
            let saves = self.wall.mul_f64(1.0 - used).saturating_sub(self.sync);
            let rate =
                next.alone_bytes_per_s.map_or(String::new(), |rate| format!(" at {}/s", units::bytes(rate as u64)));
            advice.push(format!(
                "next limit: {}{rate} ({:.1}x); removing the bottleneck saves up to {} of {}",
                next.part,
                1.0 / used,
                units::duration(saves.as_millis() as u64),
                units::duration(self.wall.as_millis() as u64)
            ));
        }
        let troubles = self.disks.0.troubles.iter().chain(&self.disks.1.troubles);
        advice.extend(troubles.map(|trouble| format!("look at the array: {trouble}")));
        advice
    }
}

/// Describes disk activity in a few words.
pub(crate) fn disk_words(facts: &DiskFacts) -> Vec<String> {
    let mut words = Vec::new();
    match facts.busiest() {
        Some(disk) => {
            words.push(format!("{} on {}", facts.file_system, disk.name));
            words.push(format!("busy {:.0} %, queue {:.1}", disk.busy * 100.0, disk.queue));
        }
        None if !facts.file_system.is_empty() => words.push(facts.file_system.clone()),
        None => {}
    }
    if facts.direct {
        words.push("around the page cache".to_owned());
    }
    words.extend(facts.troubles.iter().map(Trouble::to_string));
    words
}

#[cfg(test)]
mod tests {
    use fullbore_engine::stage::{Kind, SendReading, StageReading};
    use fullbore_engine::verdict::Limit;

    use super::*;

    fn stage(name: &str, device_ns: u64, starved_ns: u64, blocked_ns: u64) -> StageReading {
        StageReading {
            threads: 2,
            device_ns,
            starved_ns,
            blocked_ns,
            compute_ns: 200_000_000,
            bytes: 204_000_000,
            ..StageReading::new(name, Kind::Thread)
        }
    }

    #[test]
    fn a_link_at_its_limit_is_marked_and_the_next_limit_is_behind_it() {
        let sender = Judgement {
            limit: Limit::RemoteOrPath,
            confident: true,
            stages: vec![stage("read", 200_000_000, 0, 3_500_000_000), stage("send", 0, 0, 3_600_000_000)],
            sending: SendReading { watched_us: 8_000_000, busy_us: 7_600_000, ..SendReading::default() },
            wall_us: 2_000_000,
            cores: 2,
            ..Judgement::default()
        };
        let receiver = Judgement {
            stages: vec![stage("receive", 0, 3_600_000_000, 0), stage("disk write", 1_600_000_000, 2_200_000_000, 0)],
            wall_us: 2_000_000,
            cores: 2,
            ..Judgement::default()
        };
        let path = NetworkPath { streams: 4, loss: 0.001, ..NetworkPath::default() };
        let disks = DiskFacts::default();
        let run = Outcome {
            sender: &sender,
            receiver: Some(&receiver),
            path: Some(&path),
            disks: (&disks, &disks),
            places: ("/srv", "/backup"),
            verdict: None,
            bytes: 200_000_000,
            wall: Duration::from_secs(2),
            sync: Duration::from_millis(100),
        };
        let rows = run.rows();
        let row = |name: &str| rows.iter().find(|row| row.part.starts_with(name)).unwrap();
        let network = row("network");
        assert!(network.limits && (network.used.unwrap() - 0.95).abs() < 0.01);
        assert!((network.alone_bytes_per_s.unwrap() - 105e6).abs() < 1e6);
        assert!((network.waited_for.unwrap() - 0.55).abs() < 0.01);
        let write = row("verify + write /backup");
        assert!(!write.limits && (write.used.unwrap() - 0.45).abs() < 0.01);
        assert_eq!(row("protocol").evidence, ["2.0 % overhead"]);
        let protocol = |bytes| Outcome { bytes, ..run }.rows().pop().unwrap().evidence;
        assert_eq!(protocol(204_500_000), ["0.0 % overhead"], "nothing was compressed");
        assert_eq!(protocol(408_000_000), ["content made 50 % smaller"]);
        assert_eq!(
            run.advice(),
            [
                "next limit: verify + write /backup at 222 MB/s (2.2x); removing the bottleneck saves up to 1.0 s of 2.0 s"
            ]
        );
        assert_eq!(run.next_limit().as_deref(), Some("verify + write /backup, used to 45 %"));
    }

    #[test]
    fn where_none_is_named_none_is_marked_and_nothing_is_promised() {
        let both = Judgement { stages: vec![stage("disk write", 4_000_000_000, 0, 0)], ..Judgement::default() };
        let disks = DiskFacts::default();
        let run = Outcome {
            sender: &both,
            receiver: None,
            path: None,
            disks: (&disks, &disks),
            places: ("a", "b"),
            verdict: None,
            bytes: 200_000_000,
            wall: Duration::from_secs(2),
            sync: Duration::ZERO,
        };
        assert!(run.rows().iter().all(|row| !row.limits) && run.advice().is_empty());
        assert_eq!(run.rows()[0].alone_bytes_per_s, Some(100e6));
    }
}
