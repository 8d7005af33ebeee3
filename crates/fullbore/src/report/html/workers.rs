//! The workers of a queue: a lane for each, on a time axis of their own, because they report once a second.

use std::fmt::Write;

use fullbore_engine::run::report::{FleetReport, WorkerReport};
use fullbore_engine::units;

use super::escape;
use crate::report::svg;

/// Workers that have a lane; of more the page would be slow.
const LANES_MAX: usize = 200;

/// A lane for each worker, the one that stored most first.
pub(super) fn workers(page: &mut String, fleet: &FleetReport) {
    let mut order: Vec<&WorkerReport> = fleet.workers.iter().collect();
    order.sort_by_key(|worker| std::cmp::Reverse(worker.bytes));
    let rates: Vec<Vec<f32>> = order.iter().take(LANES_MAX).map(|worker| rates(worker)).collect();
    let maximum = svg::maximum(rates.iter().map(Vec::as_slice));
    let _ = write!(
        page,
        "<section><div class=\"head\"><h2>Workers</h2><p class=\"note\">run {}: {}, {}, {} of {} connections at most; each \
         lane is {}/s high</p></div>\n<div class=\"lanes\">",
        escape(&fleet.run),
        units::several(fleet.tasks, "task", "tasks"),
        units::several(fleet.rounds.into(), "round", "rounds"),
        fleet.slots_most,
        fleet.slots,
        units::bytes(maximum as u64),
    );
    for (worker, rates) in order.iter().zip(&rates) {
        lane(page, worker, rates, maximum);
    }
    if order.len() > LANES_MAX {
        let _ = write!(page, "<p class=\"note\">and {} more</p>", order.len() - LANES_MAX);
    }
    page.push_str("</div></section>\n");
}

/// Bytes per second between two points.
fn rates(worker: &WorkerReport) -> Vec<f32> {
    let seconds = worker.interval_ms.max(1) as f32 / 1000.0;
    let before = std::iter::once(&0).chain(&worker.stored_bytes);
    let steps = worker.stored_bytes.iter().zip(before);
    steps.map(|(bytes, before)| bytes.saturating_sub(*before) as f32 / seconds).collect()
}

fn lane(page: &mut String, worker: &WorkerReport, rates: &[f32], maximum: f64) {
    let _ = write!(page, "<div><div class=\"lane-head\"><b>{}</b>", escape(&worker.worker));
    if worker.is_gone {
        page.push_str("<span class=\"chip warn\">gone</span>");
    }
    let mut figures =
        vec![format!("<em>{}</em>", units::bytes(worker.bytes)), units::several(worker.files, "file", "files")];
    for (what, ms) in [
        ("without a connection", worker.waited_for_slots_ms),
        ("waiting for the store", worker.waited_for_store_ms),
        ("without a task", worker.idle_ms),
    ] {
        if ms >= 1000 {
            figures.push(format!("{} {what}", units::duration(ms)));
        }
    }
    if worker.faults > 0 {
        figures.push(units::several(worker.faults, "fault", "faults"));
    }
    let _ = write!(page, "<span class=\"figures\">{}</span></div>", figures.join(", "));
    let values = svg::thinned(rates);
    let _ = writeln!(
        page,
        "<div class=\"lane\">{}{}{}</svg></div></div>",
        svg::open("bytes per second that this worker stored over time"),
        svg::area("area", &values, maximum),
        svg::line("edge", &values, maximum)
    );
}
