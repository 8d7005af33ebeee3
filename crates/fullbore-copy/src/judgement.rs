//! The limit that one end measured, as it reports it to the other end, and the joint verdict of both.

use std::collections::BTreeMap;

use fullbore_engine::run::report::VerdictReport;
use fullbore_engine::stage::{SendReading, StageReading};
use fullbore_engine::verdict::remote::{MIXED, MIXED_ADVICE, OtherShare, alone, percent};
use fullbore_engine::verdict::thresholds::{AS_BUSY, FED_IN_TURN, NAMED, SLIGHT, TAKES_TURNS};
use fullbore_engine::verdict::{Limit, Verdict};
use serde::{Deserialize, Serialize};

use crate::probe::{DiskFacts, Part};
use crate::transport::Path;

/// The verdict of one end, without its history over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Part of the system that limited this end.
    pub limit: Limit,
    /// Name of the limiting part, as reports show it.
    pub part: String,
    /// The strongest evidence for the limit.
    pub reason: String,
    /// Whether two signals agreed on the limit.
    pub confident: bool,
    /// Share of the wall time of the named part.
    #[serde(default)]
    pub share: f64,
    /// All parts with their shares of the wall time.
    pub shares: BTreeMap<String, f64>,
    /// Measured facts for the limit, one per line.
    pub evidence: Vec<String>,
    /// Readings of the stages of this end.
    pub stages: Vec<StageReading>,
    /// Wall time of the run, in microseconds.
    #[serde(default)]
    pub wall_us: u64,
    /// What held connections up, if this end sent.
    #[serde(default)]
    pub sending: SendReading,
    /// Cores that this end's process may use.
    #[serde(default)]
    pub cores: usize,
    /// What the disks of this end did during the run.
    #[serde(default)]
    pub disks: DiskFacts,
    /// What this end knows of the connections.
    #[serde(default)]
    pub path: Path,
}

impl Default for Judgement {
    fn default() -> Judgement {
        Judgement {
            limit: Limit::Mixed,
            part: Limit::Mixed.to_string(),
            reason: String::new(),
            confident: false,
            share: 0.0,
            shares: BTreeMap::new(),
            evidence: Vec::new(),
            stages: Vec::new(),
            wall_us: 0,
            sending: SendReading::default(),
            cores: 0,
            disks: DiskFacts::default(),
            path: Path::default(),
        }
    }
}

impl Judgement {
    /// Takes the parts of an engine's verdict that the other end needs.
    pub fn of(verdict: &Verdict) -> Judgement {
        Judgement {
            limit: verdict.limit.clone(),
            part: verdict.part.clone(),
            reason: verdict.reason.clone(),
            confident: verdict.confident,
            share: verdict.share,
            shares: verdict.shares.iter().map(|share| (share.part.clone(), share.share)).collect(),
            evidence: verdict.evidence.clone(),
            stages: verdict.counters.stages.clone(),
            wall_us: verdict.wall.as_micros() as u64,
            sending: verdict.counters.sending,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            ..Judgement::default()
        }
    }

    /// Adds disk activity and connection facts.
    pub fn with(self, disks: DiskFacts, path: Path) -> Judgement {
        Judgement { disks, path, ..self }
    }

    /// Encodes the judgement for a message to the other end.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Parses a judgement from the wire; `None` if it is malformed.
    pub fn decode(json: &[u8]) -> Option<Judgement> {
        serde_json::from_slice(json).ok()
    }

    /// Returns the reading of the stage with this role.
    pub fn stage(&self, role: &str) -> Option<&StageReading> {
        self.stages.iter().find(|stage| stage.name == role)
    }

    /// The part of its own machine that this end blames. Only if two signals agree on it.
    fn blames_itself(&self, disk: Part, cpu: Part) -> Option<Part> {
        match self.limit {
            Limit::Cpu { .. } | Limit::OneCore { .. } if self.confident => Some(cpu),
            Limit::Disk if self.confident => Some(disk),
            _ => None,
        }
    }

    /// The disk that a sender waits for. In a local copy one process has the clocks of readers and writers; the device
    /// times of both tell which disk it was.
    fn disk(&self) -> Part {
        let device_ns = |role: &str| self.stage(role).map_or(0, |stage| u128::from(stage.device_ns));
        let writing_ns = device_ns("disk write");
        if writing_ns > 0 && writing_ns + device_ns("sync") >= device_ns("read") { Part::Write } else { Part::Read }
    }

    /// Whether the receiver took incoming data without delay: its connections never waited for later stages.
    fn takes_at_once(&self) -> bool {
        let receiving = self.stages.iter().filter(|stage| stage.name == "receive");
        let (starved, blocked) = receiving.fold((0, 0), |(starved, blocked), stage| {
            (starved + u128::from(stage.starved_ns), blocked + u128::from(stage.blocked_ns))
        });
        blocked as f64 <= SLIGHT * (starved + blocked) as f64
    }

    /// Share of the time in which this end's own disk or cores delayed it, whether it blames them or not.
    fn own_share(&self) -> f64 {
        ["disk", "CPU"].iter().filter_map(|part| self.shares.get(*part)).sum()
    }

    /// Why this end blames the path to the receiver, if it does. A full window points to the path if it is full of data
    /// in flight, and to the receiver if it is full of data that nobody reads.
    fn blames_path(&self, receiver: &Judgement) -> Option<&'static str> {
        let is_buffer = self.sending.buffer_limited_us > self.sending.receiver_limited_us;
        match self.limit {
            Limit::RemoteOrPath | Limit::AccessLink | Limit::Host { .. } | Limit::Hosts => Some(""),
            Limit::Receiver if receiver.takes_at_once() => Some("the receiver's window was full of what was under way"),
            Limit::Window if is_buffer => Some("the send buffer was full of what was under way"),
            _ => None,
        }
    }

    /// How busy the busiest disk at this end was.
    fn disk_beside(&self) -> OtherShare<Part> {
        let disks = self.disks.used.iter().filter(|disk| disk.is_disk);
        OtherShare { part: Part::Write, share: disks.map(|disk| disk.busy).fold(0.0, f64::max), as_full: AS_BUSY }
    }

    /// Share of wall time that the threads of this role spent in the state that `time_ns` selects.
    fn spent(&self, role: &str, time_ns: impl Fn(&StageReading) -> u64) -> Option<f64> {
        let stage = self.stage(role).filter(|stage| stage.threads > 0)?;
        let whole_ns = stage.threads as f64 * self.wall_us as f64 * 1e3;
        Some((time_ns(stage) as f64 / whole_ns.max(1.0)).min(1.0))
    }

    /// Share of the time in which the connections had data to carry.
    fn path_beside(&self) -> OtherShare<Part> {
        let streams = self.sending.watched_us as f64 / self.wall_us.max(1) as f64;
        let share = self.sending.busy().unwrap_or_default();
        OtherShare { part: Part::Network, share, as_full: FED_IN_TURN + NAMED / streams }
    }

    /// Formats the limit as `part (reason)`.
    pub fn words(&self) -> String {
        if self.reason.is_empty() { self.part.clone() } else { format!("{} ({})", self.part, self.reason) }
    }
}

/// The part of a copy that both ends' verdicts blame together. Each end knows its own machine; only the sender knows
/// the path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attribution {
    /// The sender is confident about this part of its own machine.
    Sender(Part),
    /// The receiver is confident about this part of its own machine.
    Receiver(Part),
    /// Both ends blame their processors: one shared machine, or two that are both full.
    Processors,
    /// Each end is confident about a different part of its own: two limits.
    Both,
    /// The first part would be the limit, but the second was nearly as busy: two limits.
    Beside(Part, OtherShare<Part>),
    /// The path between the ends, and the reason.
    Path(&'static str),
    /// Neither end is confident.
    Nobody,
}

impl Attribution {
    /// Combines the judgements of the sender and the receiver.
    pub(crate) fn of(sender: &Judgement, receiver: &Judgement) -> Attribution {
        let sends = sender.blames_itself(sender.disk(), Part::SourceCpu);
        let (part, blame, beside) = match (sends, receiver.blames_itself(Part::Write, Part::TargetCpu)) {
            (Some(one), Some(other)) if one.is_cpu() && other.is_cpu() => return Attribution::Processors,
            (Some(_), Some(_)) => return Attribution::Both,
            (Some(Part::Read), None) => {
                (Part::Read, Attribution::Sender(Part::Read), vec![sender.path_beside(), receiver.disk_beside()])
            }
            (None, Some(Part::Write)) => {
                let share = waited_for_path(sender, receiver).unwrap_or_default();
                let path = OtherShare { part: Part::Network, share, as_full: TAKES_TURNS };
                (Part::Write, Attribution::Receiver(Part::Write), vec![path])
            }
            (Some(part), None) => (part, Attribution::Sender(part), Vec::new()),
            (None, Some(part)) => (part, Attribution::Receiver(part), Vec::new()),
            (None, None) => {
                let own = OtherShare { part: Part::Write, share: receiver.own_share(), as_full: SLIGHT };
                (Part::Network, sender.blames_path(receiver).map_or(Attribution::Nobody, Attribution::Path), vec![own])
            }
        };
        alone(&beside).map_or_else(|other| Attribution::Beside(part, other), |()| blame)
    }

    /// The limiting parts; empty if two signals do not agree on one.
    pub(crate) fn parts(&self) -> &[Part] {
        match self {
            Attribution::Sender(part) | Attribution::Receiver(part) => std::slice::from_ref(part),
            Attribution::Processors => &[Part::SourceCpu, Part::TargetCpu],
            Attribution::Path(_) => &[Part::Network],
            Attribution::Both | Attribution::Beside(..) | Attribution::Nobody => &[],
        }
    }
}

/// Share of the time in which readers waited for the connections while writers waited for data.
pub(crate) fn waited_for_path(sender: &Judgement, receiver: &Judgement) -> Option<f64> {
    let blocked = sender.spent("read", |read| read.blocked_ns)?;
    let starved = receiver.spent("disk write", |write| write.starved_ns)?;
    Some(blocked.min(starved))
}

/// Advice for a copy that is limited by one part.
fn advice(part: Part) -> &'static str {
    match part {
        Part::Read => "A faster disk at the source would help. A faster network or destination would not pay.",
        Part::Write => "A faster disk at the destination would help. A faster network or source would not pay.",
        Part::SourceCpu => "More or faster cores at the source would help. A faster network or disk would not pay.",
        Part::TargetCpu => {
            "More or faster cores at the destination would help. A faster network or disk would not pay."
        }
        Part::Network => "A faster network would help. Faster disks would not pay.",
    }
}

/// Advice where source and destination are on one machine.
fn advice_here(part: Part) -> &'static str {
    match part {
        Part::Read => "A faster disk at the source would help. A faster destination would not pay.",
        Part::Write => "A faster disk at the destination would help. A faster source would not pay.",
        _ => "More or faster cores would help. A faster disk would not pay.",
    }
}

const BOTH_CORES: &str = "More or faster cores at both ends would help. A faster network or disk would not pay.";

fn own<'a>(end: &'a Judgement, place: &str) -> (&'a Judgement, String, String) {
    (end, format!("{}{place}", end.part), end.reason.clone())
}

fn mixed(end: &Judgement, reason: String) -> (&Judgement, String, String) {
    (end, MIXED.to_owned(), reason)
}

/// What limited a copy, and why. An end that blames its own machine is believed. If neither does, the sender's opinion
/// of the path counts. If both do, there are two limits. A local copy has no far end.
pub(crate) fn joined(near: &Judgement, far: Option<&Judgement>, host: &str, near_sends: bool) -> VerdictReport {
    let nobody = Judgement::default();
    let (sender, receiver) = match far {
        None => (near, &nobody),
        Some(far) if near_sends => (near, far),
        Some(far) => (far, near),
    };
    let blame = Attribution::of(sender, receiver);
    let on_host = format!(" on {host}");
    let place_of = |end: &Judgement| if std::ptr::eq(end, near) { "" } else { &*on_host };
    let (end, limit, reason) = match &blame {
        // A local copy runs in one process, which has one verdict.
        _ if far.is_none() => own(near, ""),
        Attribution::Sender(_) => own(sender, place_of(sender)),
        Attribution::Receiver(_) => own(receiver, place_of(receiver)),
        Attribution::Processors if sender.part == receiver.part => {
            (near, format!("{}, here and on {host}", near.part), near.reason.clone())
        }
        Attribution::Processors => {
            let far = if near_sends { receiver } else { sender };
            (near, format!("{} here, {} on {host}", near.part, far.part), String::new())
        }
        Attribution::Both => {
            let far = if near_sends { receiver } else { sender };
            mixed(near, format!("{} here; {} on {host}", near.part, far.part))
        }
        Attribution::Beside(part, other) => {
            let share = percent(other.share);
            let (here, there) = ("here".to_owned(), format!("on {host}"));
            let (source, target) = if near_sends { (here, there) } else { (there, here) };
            let is_mixed = sender.limit == Limit::Mixed && !sender.reason.is_empty();
            match (part, other.part) {
                (Part::Read, Part::Network) => {
                    mixed(sender, format!("{}; the network had something to carry {share} % of the time", sender.part))
                }
                (Part::Read, _) => {
                    let words = format!("disk reads {source}; the disk {target} was busy for {share} % of the time");
                    mixed(sender, words)
                }
                (Part::Write, _) => {
                    mixed(receiver, format!("the network for {share} % of the time; {} afterwards", receiver.part))
                }
                _ => {
                    let what = if is_mixed { &sender.reason } else { &sender.part };
                    mixed(sender, format!("{what}; {share} % of the time the receiver"))
                }
            }
        }
        Attribution::Path("") => {
            let busy = sender.sending.busy().map(percent);
            let reason = busy.map(|busy| format!("connections had something to carry {busy} % of the time"));
            (sender, "the network".to_owned(), reason.unwrap_or_default())
        }
        Attribution::Path(why) => (sender, "the network".to_owned(), (*why).to_owned()),
        Attribution::Nobody => (sender, sender.part.clone(), sender.reason.clone()),
    };
    let mut shares: Vec<(String, f64)> = end.shares.iter().map(|(part, share)| (part.clone(), *share)).collect();
    shares.sort_by(|one, other| other.1.total_cmp(&one.1));
    let advice = match blame.parts() {
        [part] if far.is_none() => advice_here(*part),
        [part] => advice(*part),
        [_, ..] => BOTH_CORES,
        [] if limit == MIXED => MIXED_ADVICE,
        [] => end.limit.advice(),
    };
    let confident = !blame.parts().is_empty() || end.confident && limit != MIXED;
    let advice = advice.to_owned();
    VerdictReport { limit, reason, confident, share: end.share, shares, advice, ..VerdictReport::default() }
}

#[cfg(test)]
mod tests {
    use fullbore_engine::stage::Kind;

    use super::*;
    use crate::probe::disks::Used;

    fn sentence(found: VerdictReport) -> String {
        if found.reason.is_empty() { found.limit } else { format!("{} ({})", found.limit, found.reason) }
    }

    fn judgement(limit: Limit, part: &str) -> Judgement {
        Judgement { limit, part: part.to_owned(), confident: true, ..Judgement::default() }
    }

    #[test]
    fn the_end_that_blames_itself_is_believed() {
        let path = judgement(Limit::RemoteOrPath, "the network");
        let receiver = judgement(Limit::Receiver, "the receiver");
        let disk = judgement(Limit::Disk, "disk writes");
        let mixed = Judgement { confident: false, ..judgement(Limit::Mixed, "mixed") };
        assert_eq!(sentence(joined(&receiver, Some(&disk), "host", true)), "disk writes on host");
        assert_eq!(sentence(joined(&path, Some(&mixed), "host", true)), "the network");
        assert_eq!(sentence(joined(&mixed, Some(&path), "host", false)), "the network");
        let cpu = judgement(Limit::Cpu { consumer: "read".to_owned() }, "CPU (read)");
        assert_eq!(sentence(joined(&cpu, Some(&disk), "host", true)), "mixed (CPU (read) here; disk writes on host)");
        assert_eq!(Attribution::of(&cpu, &disk).parts(), []);
        let path = Path { streams: 4, loss: 0.01, control: Some("bbr".to_owned()), ..Path::default() };
        let cpu = cpu.with(DiskFacts::default(), path);
        assert_eq!(Judgement::decode(&cpu.encode()), Some(cpu));
    }

    #[test]
    fn the_advice_is_on_what_is_named() {
        let mixed = Judgement { confident: false, ..judgement(Limit::Mixed, "mixed") };
        let disk = judgement(Limit::Disk, "disk writes");
        let found = joined(&mixed, Some(&disk), "host", true);
        assert!(
            found.confident && found.advice.starts_with("A faster disk at the destination would help"),
            "{found:?}"
        );
        let found = joined(&mixed, Some(&mixed), "host", true);
        assert!(!found.confident && found.advice == "No single part would help much by itself.", "{found:?}");
        let receiver = judgement(Limit::Receiver, "the receiver");
        let threads = StageReading { blocked_ns: 400, ..StageReading::new("receive", Kind::Thread) };
        let found = joined(&receiver, Some(&Judgement { stages: vec![threads], ..mixed }), "host", true);
        assert!(found.confident && found.advice.starts_with("A faster receiver would help"), "{found:?}");
        let cpu = judgement(Limit::Cpu { consumer: "read".to_owned() }, "CPU (read)");
        let found = joined(&cpu, None, "", true);
        assert!(found.confident && found.advice.starts_with("More or faster cores would help"), "{found:?}");
    }

    #[test]
    fn a_source_and_a_link_that_are_alike_are_mixed() {
        // As measured: 16 connections, 24 and 2, with links of the source's rate and of twice or thrice it.
        for (streams, busy, alike) in
            [(16, 0.36, true), (24, 0.16, false), (2, 0.88, true), (2, 0.64, true), (2, 0.24, false), (16, 0.54, true)]
        {
            let watched_us = streams * 10_000_000;
            let sending =
                SendReading { watched_us, busy_us: (watched_us as f64 * busy) as u64, ..SendReading::default() };
            let reads = judgement(Limit::Disk, "disk reads");
            let sender = Judgement { wall_us: 10_000_000, sending, ..reads };
            let receiver = Judgement { confident: false, ..judgement(Limit::Mixed, "mixed") };
            let expected: &[Part] = if alike { &[] } else { &[Part::Read] };
            assert_eq!(Attribution::of(&sender, &receiver).parts(), expected, "{streams} connections, {busy}");
            let words = sentence(joined(&sender, Some(&receiver), "host", true));
            assert_eq!(words.starts_with("mixed (disk reads; the network had something to carry "), alike, "{words}");
        }
    }

    #[test]
    fn reads_and_a_destination_that_is_as_busy_are_mixed() {
        let sender = judgement(Limit::Disk, "disk reads");
        let receiver = |busy, is_disk| {
            let used = vec![Used { busy, is_disk, ..Used::default() }];
            let disks = DiskFacts { used, ..DiskFacts::default() };
            Judgement { confident: false, ..judgement(Limit::Mixed, "mixed") }.with(disks, Path::default())
        };
        let alike = receiver(0.88, true);
        assert_eq!(Attribution::of(&sender, &alike).parts(), []);
        let words = "mixed (disk reads here; the disk on host was busy for 88 % of the time)";
        assert_eq!(sentence(joined(&sender, Some(&alike), "host", true)), words);
        let words = "mixed (disk reads on host; the disk here was busy for 88 % of the time)";
        assert_eq!(sentence(joined(&alike, Some(&sender), "host", false)), words);
        // A quarter more than the source, and an array, whose members count.
        assert_eq!(Attribution::of(&sender, &receiver(0.7, true)).parts(), [Part::Read]);
        assert_eq!(Attribution::of(&sender, &receiver(0.88, false)).parts(), [Part::Read]);
    }

    #[test]
    fn writes_that_come_after_a_full_path_are_mixed() {
        let of = |judgement: Judgement, role: &str, starved_ns, blocked_ns| {
            let stage = StageReading { threads: 2, starved_ns, blocked_ns, ..StageReading::new(role, Kind::Thread) };
            Judgement { wall_us: 10_000_000, stages: vec![stage], ..judgement }
        };
        let ends = |share: f64| {
            let waited_ns = (share * 20e9) as u64;
            let sender = of(judgement(Limit::RemoteOrPath, "the network"), "read", 0, waited_ns);
            (sender, of(judgement(Limit::Disk, "disk writes"), "disk write", waited_ns + 1_000_000_000, 0))
        };
        // As measured: with a link of the disk's rate, and of twice it.
        let (sender, receiver) = ends(0.42);
        assert_eq!(waited_for_path(&sender, &receiver), Some(0.42));
        let words = "mixed (the network for 42 % of the time; disk writes afterwards)";
        assert_eq!(sentence(joined(&sender, Some(&receiver), "host", true)), words);
        assert_eq!(Attribution::of(&sender, &receiver).parts(), []);
        let (sender, receiver) = ends(0.32);
        assert_eq!(Attribution::of(&sender, &receiver).parts(), [Part::Write]);
    }

    #[test]
    fn two_full_processors_are_both_named_and_two_disks_are_mixed() {
        let cpu = |part: &str| judgement(Limit::Cpu { consumer: part.to_owned() }, part);
        assert_eq!(sentence(joined(&cpu("CPU"), Some(&cpu("CPU")), "host", true)), "CPU, here and on host");
        let two = (cpu("CPU (read)"), cpu("CPU (receive)"));
        assert_eq!(sentence(joined(&two.0, Some(&two.1), "host", true)), "CPU (read) here, CPU (receive) on host");
        assert_eq!(Attribution::of(&two.0, &two.1).parts(), [Part::SourceCpu, Part::TargetCpu]);
        let disks = (judgement(Limit::Disk, "disk reads"), judgement(Limit::Disk, "disk writes"));
        assert_eq!(
            sentence(joined(&disks.1, Some(&disks.0), "host", false)),
            "mixed (disk writes here; disk reads on host)"
        );
        assert_eq!(Attribution::of(&disks.0, &disks.1).parts(), []);
    }

    #[test]
    fn the_network_is_named_with_how_busy_its_connections_were() {
        let sending = SendReading { watched_us: 1000, busy_us: 970, ..SendReading::default() };
        let sender = Judgement { sending, ..judgement(Limit::RemoteOrPath, "the network") };
        let receiver = Judgement { confident: false, ..judgement(Limit::Mixed, "mixed") };
        let found = sentence(joined(&sender, Some(&receiver), "host", true));
        assert_eq!(found, "the network (connections had something to carry 97 % of the time)");
    }

    #[test]
    fn a_receiver_that_needs_time_for_itself_is_a_limit_beside_the_path() {
        let path = judgement(Limit::RemoteOrPath, "the network");
        let receiver = |share| {
            let shares = [("disk".to_owned(), share)].into();
            Judgement { confident: false, shares, ..judgement(Limit::Mixed, "mixed") }
        };
        assert_eq!(sentence(joined(&path, Some(&receiver(0.1)), "host", true)), "the network");
        let both = sentence(joined(&path, Some(&receiver(0.3)), "host", true));
        assert_eq!(both, "mixed (the network; 30 % of the time the receiver)");
        let mixed = Judgement { reason: "read 40 %, send 30 %".to_owned(), ..judgement(Limit::Mixed, "mixed") };
        let both = sentence(joined(&mixed, Some(&receiver(0.3)), "host", true));
        assert_eq!(both, "mixed (read 40 %, send 30 %; 30 % of the time the receiver)");
        assert_eq!(Attribution::of(&path, &receiver(0.3)).parts(), []);
    }

    #[test]
    fn a_full_window_is_the_paths_where_the_receiver_takes_everything_at_once() {
        let sender = judgement(Limit::Receiver, "the receiver");
        let receiver = |starved_ns, blocked_ns| {
            let threads = StageReading { starved_ns, blocked_ns, ..StageReading::new("receive", Kind::Thread) };
            Judgement { stages: vec![threads], ..judgement(Limit::Mixed, "mixed") }
        };
        let path = "the network (the receiver's window was full of what was under way)";
        assert_eq!(sentence(joined(&sender, Some(&receiver(900, 10)), "host", true)), path);
        assert_eq!(sentence(joined(&receiver(900, 10), Some(&sender), "host", false)), path);
        assert_eq!(sentence(joined(&sender, Some(&receiver(500, 400)), "host", true)), "the receiver");
        assert_eq!(Attribution::of(&sender, &receiver(900, 10)).parts(), [Part::Network]);
        assert_eq!(Attribution::of(&sender, &receiver(500, 400)).parts(), []);
    }
}
