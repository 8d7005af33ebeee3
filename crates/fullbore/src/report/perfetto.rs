//! The course of a run as a trace that Perfetto and Chrome open: phases as spans, rates and the
//! stages' shares as counters.

use fullbore_engine::escape;
use fullbore_engine::run::report::Report;
use serde_json::{Value, json};

/// Renders the trace (Trace Event Format, JSON object form). Times are in microseconds.
pub fn render(report: &Report) -> String {
    let timeline = &report.timeline;
    let mut events: Vec<Value> = Vec::new();
    let end_ms = report.summary.duration_ms.max(timeline.duration_ms());
    for (place, (at_ms, phase)) in timeline.phases.iter().enumerate() {
        let until_ms = timeline.phases.get(place + 1).map_or(end_ms, |(next_ms, _)| *next_ms);
        let lasted_us = until_ms.saturating_sub(*at_ms) * 1000;
        events.push(json!({"ph": "X", "name": phase.name(), "pid": 1, "tid": 1, "ts": at_ms * 1000, "dur": lasted_us}));
    }
    let mut counter = |name: &str, values: &[f32]| {
        for (place, value) in values.iter().enumerate() {
            let at_us = place as u64 * timeline.interval_ms * 1000;
            events.push(json!({"ph": "C", "name": name, "pid": 1, "ts": at_us, "args": {"value": value}}));
        }
    };
    counter("received bytes/s", &timeline.received_bytes_per_s);
    counter("written bytes/s", &timeline.written_bytes_per_s);
    for host in &timeline.hosts {
        counter(&format!("{} bytes/s", host.host), &host.bytes_per_s);
    }
    for stage in &timeline.stages {
        counter(&format!("{}: busy", stage.stage), &stage.busy);
        counter(&format!("{}: device", stage.stage), &stage.device);
        counter(&format!("{}: starved", stage.stage), &stage.starved);
        counter(&format!("{}: blocked", stage.stage), &stage.blocked);
    }
    escape::json(&json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_engine::run::events::Phase;

    #[test]
    fn phases_become_spans_that_follow_each_other() {
        let mut report = Report::default();
        report.summary.duration_ms = 300;
        report.timeline.phase(0, Phase::Release);
        report.timeline.phase(100, Phase::Fetch);
        let trace: Value = serde_json::from_str(&render(&report)).expect("JSON");
        let spans = trace["traceEvents"].as_array().expect("a list");
        assert_eq!(spans[0]["dur"], 100_000);
        assert_eq!(
            (&spans[1]["name"], &spans[1]["ts"], &spans[1]["dur"]),
            (&json!("fetch"), &json!(100_000), &json!(200_000))
        );
    }
}
