//! A simulated network: hosts with a rate and a round trip, an access link that all share, and
//! time that passes in steps. No slow start, so the ideal time is exact.

use std::collections::HashMap;

use super::*;

const STEP: Duration = Duration::from_millis(2);

pub(super) struct SimHost {
    pub(super) bytes_per_s: f64,
    /// Of one connection at most.
    pub(super) connection_bytes_per_s: f64,
    pub(super) rtt: Duration,
    /// From then on nothing comes any more.
    pub(super) silent_from: Duration,
    /// Files it says it does not have.
    pub(super) misses: fn(ItemId) -> bool,
    /// How long it is silent before it begins a file.
    pub(super) thinks: fn(ItemId) -> Duration,
}

impl SimHost {
    pub(super) fn new(megabits_per_s: f64, rtt_ms: u64) -> Self {
        SimHost {
            bytes_per_s: megabits_per_s * 1e6 / 8.0,
            connection_bytes_per_s: f64::INFINITY,
            rtt: Duration::from_millis(rtt_ms),
            silent_from: Duration::MAX,
            misses: |_| false,
            thinks: |_| Duration::ZERO,
        }
    }
}

/// A request as the server sees it.
struct Request {
    tag: u64,
    segment: Segment,
    sent: u64,
    visible_at: Duration,
}

pub(super) struct Outcome {
    pub(super) seconds: f64,
    pub(super) received_bytes: u64,
    pub(super) given_up: Vec<GivenUp>,
    pub(super) hosts: Vec<Host>,
}

/// Runs until every file is complete; panics after ten simulated minutes.
pub(super) fn simulate(hosts: &[SimHost], access_megabits: f64, sizes: &[u64]) -> Outcome {
    let outcome = simulate_within(hosts, access_megabits, sizes, Duration::from_secs(600));
    outcome.expect("every file complete within ten minutes")
}

/// The same, but `None` if it takes longer than this.
pub(super) fn simulate_within(
    hosts: &[SimHost],
    access_megabits: f64,
    sizes: &[u64],
    limit: Duration,
) -> Option<Outcome> {
    let start = Instant::now();
    let mut dispatcher =
        Dispatcher::new((0..hosts.len()).map(|n| Host::new(format!("h{n}"))).collect(), Limits::default());
    dispatcher.add(
        sizes.iter().enumerate().map(|(id, size)| Item { id: id as u32, size: *size, ..Item::default() }).collect(),
    );
    let mut pipes: BTreeMap<ConnectionId, (HostId, VecDeque<Request>)> = BTreeMap::new();
    let mut connecting: Vec<(Duration, HostId)> = Vec::new();
    let mut have: HashMap<ItemId, u64> = HashMap::new();
    let mut given_up = Vec::new();
    let mut elapsed = Duration::ZERO;
    while dispatcher.unfinished_files() > 0 {
        elapsed += STEP;
        if elapsed > limit {
            return None;
        }
        let now = start + elapsed;
        for (id, host) in hosts.iter().enumerate() {
            while dispatcher.wants_connection(id as u16, now) {
                dispatcher.opening(id as u16);
                connecting.push((elapsed + host.rtt, id as u16));
            }
        }
        for (_, id) in connecting.extract_if(.., |(at, _)| *at <= elapsed) {
            let connection = dispatcher.opened(id, hosts[id as usize].rtt, now);
            pipes.insert(connection, (id, VecDeque::new()));
        }
        let mut gone = Vec::new();
        for (id, (host, pipe)) in &mut pipes {
            loop {
                match dispatcher.next(*id, now) {
                    Next::Ask { tag, segment } => {
                        let host = &hosts[*host as usize];
                        let visible_at = elapsed + host.rtt + (host.thinks)(segment.item);
                        pipe.push_back(Request { tag, segment, sent: 0, visible_at });
                    }
                    Next::Wait => break,
                    Next::Close => {
                        gone.push((*id, Ended::Ours));
                        break;
                    }
                }
            }
            if let Some(fault) = dispatcher.overdue(*id, now) {
                gone.push((*id, Ended::Fault(fault)));
            }
        }
        let busy = |host: u16, pipes: &BTreeMap<ConnectionId, (HostId, VecDeque<Request>)>| {
            pipes.values().filter(|(h, p)| *h == host && p.front().is_some_and(|r| r.visible_at <= elapsed)).count()
        };
        let shares: Vec<f64> = hosts
            .iter()
            .enumerate()
            .map(|(id, host)| {
                let share = host.bytes_per_s / busy(id as u16, &pipes).max(1) as f64;
                if elapsed > host.silent_from { 0.0 } else { share.min(host.connection_bytes_per_s) }
            })
            .collect();
        let demand: f64 = (0..hosts.len()).map(|id| shares[id] * busy(id as u16, &pipes) as f64).sum();
        let scale = (access_megabits * 1e6 / 8.0 / demand.max(1.0)).min(1.0);
        for (id, (host, pipe)) in &mut pipes {
            let mut budget = (shares[*host as usize] * scale * STEP.as_secs_f64()) as u64;
            while let Some(request) = pipe.front_mut().filter(|r| r.visible_at <= elapsed) {
                if shares[*host as usize] == 0.0 {
                    break;
                }
                if (hosts[*host as usize].misses)(request.segment.item) {
                    let request = pipe.pop_front().expect("front was just seen");
                    dispatcher.refused(*id, request.tag, Fault::Missing(404), now);
                    continue;
                }
                let bytes = budget.min(request.segment.len() - request.sent);
                budget -= bytes;
                request.sent += bytes;
                match dispatcher.received(*id, request.tag, bytes, now) {
                    Keep::First { wanted } => *have.entry(request.segment.item).or_default() += wanted,
                    Keep::Close => {
                        gone.push((*id, Ended::Ours));
                        break;
                    }
                }
                let item = request.segment.item;
                if request.sent == request.segment.len() {
                    dispatcher.answered(*id, request.tag);
                    pipe.pop_front();
                }
                if have[&item] >= sizes[item as usize] {
                    assert_eq!(have[&item], sizes[item as usize], "a byte was wanted twice");
                    dispatcher.verified(item, &[*host], &[], now);
                    have.insert(item, 0);
                }
                if budget == 0 {
                    break;
                }
            }
        }
        for (id, how) in gone {
            pipes.remove(&id);
            dispatcher.ended(id, &how, now);
        }
        for lost in dispatcher.hopeless() {
            dispatcher.abandon(lost.item, now);
            given_up.push(lost);
        }
    }
    let received_bytes = dispatcher.hosts().iter().map(|h| h.totals.received_bytes).sum();
    Some(Outcome { seconds: elapsed.as_secs_f64(), received_bytes, given_up, hosts: dispatcher.hosts().to_vec() })
}
