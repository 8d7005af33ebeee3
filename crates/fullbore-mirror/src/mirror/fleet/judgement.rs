//! What limits a run of many machines: the clocks of all workers together, and what the planner sees of the queue, of the
//! leases and of the store. A limit is named only if both sides agree.

use std::time::Duration;

use fullbore_engine::run::report::VerdictReport;
use fullbore_fleet::message::ClockMs;

/// Share of the workers' time, and of the planner's looks, from which a limit is named.
const NAMED_FROM: f64 = 0.6;

/// Time of the workers below which nothing is named.
const WALL_MIN: Duration = Duration::from_secs(2);

/// What the time of a worker, or of all workers together, went into. Each moment counts once beside `wall`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Clocks {
    /// All of it.
    pub wall: Duration,
    /// It had no connection to any mirror, because others had all slots.
    pub slots: Duration,
    /// It fetched, and its own verdict named a mirror.
    pub mirrors: Duration,
    /// The store did not take more, or did not answer.
    pub store: Duration,
    /// It fetched, and its own verdict named a part of its machine or its access link.
    pub own: Duration,
    /// The queue had no task for it.
    pub idle: Duration,
}

const NAMES: [&str; 6] = ["wall", "slots", "mirrors", "store", "own", "idle"];

impl Clocks {
    fn parts(&self) -> [Duration; 6] {
        [self.wall, self.slots, self.mirrors, self.store, self.own, self.idle]
    }

    /// For a report.
    pub(super) fn in_ms(&self) -> ClockMs {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        NAMES.iter().zip(self.parts()).map(|(name, time)| ((*name).to_owned(), ms(time))).collect()
    }

    /// Of a report. Whatever is not in it is zero.
    pub(super) fn of_ms(clocks: &ClockMs) -> Clocks {
        let time = |name: &str| Duration::from_millis(clocks.get(name).copied().unwrap_or_default());
        let [wall, slots, mirrors, store, own, idle] = NAMES.map(time);
        Clocks { wall, slots, mirrors, store, own, idle }
    }

    /// Both together.
    pub(super) fn and(&self, other: &Clocks) -> Clocks {
        let (ours, theirs) = (self.parts(), other.parts());
        let [wall, slots, mirrors, store, own, idle] = std::array::from_fn(|at| ours[at].saturating_add(theirs[at]));
        Clocks { wall, slots, mirrors, store, own, idle }
    }
}

/// What the planner saw, at each of its looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Looks {
    /// Looks at the leases.
    pub leases: u32,
    /// Of these, those that found all slots of all mirrors taken.
    pub taken: u32,
    /// Looks at the queue while the run went on.
    pub queue: u32,
    /// Of these, those that found tasks that nobody had.
    pub waiting: u32,
    /// Questions to the store.
    pub store: u32,
    /// Of these, those that it answered late or not at all.
    pub late: u32,
}

fn share(part: u32, of: u32) -> f64 {
    if of == 0 { 0.0 } else { f64::from(part) / f64::from(of) }
}

/// The verdict of a run.
pub(super) fn judge(clocks: &Clocks, looks: &Looks, workers: usize) -> VerdictReport {
    let wall = clocks.wall.as_secs_f64().max(f64::MIN_POSITIVE);
    let of_wall = |time: Duration| time.as_secs_f64() / wall;
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let (budgets, store, own) =
        (of_wall(clocks.slots.saturating_add(clocks.mirrors)), of_wall(clocks.store), of_wall(clocks.own));
    let (taken, late, waiting) =
        (share(looks.taken, looks.leases), share(looks.late, looks.store), share(looks.waiting, looks.queue));
    let candidates = [
        (
            "the mirrors' budgets",
            budgets,
            taken,
            format!("workers waited for mirrors {}; all connections taken {}", percent(budgets), percent(taken)),
            "allow more connections to each mirror (--connections), or add mirrors with --from",
        ),
        (
            "the store",
            store,
            late,
            format!("workers waited for the store {}; it answered the planner late {}", percent(store), percent(late)),
            "a store with more nodes, or one that is nearer to the workers, would make the run faster",
        ),
        (
            "too few workers",
            own,
            waiting,
            format!("workers were busy {}; tasks waited {}", percent(own), percent(waiting)),
            "start more workers: `fullbore work` on other machines",
        ),
    ];
    let mut shares: Vec<(String, f64)> =
        candidates.iter().map(|(name, a, b, ..)| ((*name).to_owned(), a.min(*b))).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let evidence = vec![
        format!("{workers} workers, {:.0} s of their time together", clocks.wall.as_secs_f64()),
        format!(
            "of it, {} without a connection, {} limited by mirrors, {} by the store, {} by their own machines, {} without \
             a task",
            percent(of_wall(clocks.slots)),
            percent(of_wall(clocks.mirrors)),
            percent(store),
            percent(own),
            percent(of_wall(clocks.idle)),
        ),
        format!(
            "the planner found all connections taken {}, tasks waiting {}, and the store late {}",
            percent(taken),
            percent(waiting),
            percent(late)
        ),
    ];
    let named = candidates.into_iter().find(|(_, a, b, ..)| a.min(*b) >= NAMED_FROM);
    match named.filter(|_| clocks.wall >= WALL_MIN) {
        Some((name, a, b, reason, advice)) => VerdictReport {
            limit: name.to_owned(),
            reason,
            confident: true,
            share: a.min(b),
            shares,
            next: None,
            advice: advice.to_owned(),
            evidence,
        },
        None => VerdictReport {
            limit: "mixed".to_owned(),
            reason: "no part was named by workers and planner alike".to_owned(),
            confident: false,
            share: shares.first().map_or(0.0, |(_, share)| *share),
            shares,
            evidence,
            ..VerdictReport::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_limit_is_named_only_if_workers_and_planner_agree() {
        let all = |looks: u32| Looks { leases: 10, taken: looks, queue: 10, waiting: looks, store: 10, late: looks };
        let clocks = Clocks { wall: 100 * SECOND, ..Clocks::default() };
        for (clocks, name) in [
            (Clocks { slots: 40 * SECOND, mirrors: 30 * SECOND, ..clocks }, "the mirrors' budgets"),
            (Clocks { store: 70 * SECOND, ..clocks }, "the store"),
            (Clocks { own: 70 * SECOND, ..clocks }, "too few workers"),
        ] {
            let verdict = judge(&clocks, &all(9), 3);
            assert!(verdict.confident && verdict.limit == name, "{verdict:?}");
            // One signal is not enough, whichever it is.
            assert_eq!(judge(&clocks, &all(1), 3).limit, "mixed");
        }
        assert_eq!(judge(&clocks, &all(10), 3).limit, "mixed");
        // A run of a moment says nothing.
        let moment = Clocks { wall: SECOND, own: SECOND, ..Clocks::default() };
        assert_eq!(judge(&moment, &all(10), 3).limit, "mixed");
    }

    #[test]
    fn clocks_survive_the_way_through_a_report() {
        let clocks = Clocks { wall: 9 * SECOND, slots: SECOND, store: 2 * SECOND, ..Clocks::default() };
        assert_eq!(Clocks::of_ms(&clocks.in_ms()), clocks);
        assert_eq!(Clocks::of_ms(&ClockMs::new()), Clocks::default());
        let hostile = ClockMs::from([("wall".to_owned(), u64::MAX)]);
        assert!(Clocks::of_ms(&hostile).and(&Clocks::of_ms(&hostile)).wall > clocks.wall);
    }
}
