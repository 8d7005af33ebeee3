//! The pictures of the page: rates, hosts and stages on one time axis.

use std::fmt::Write;

use fullbore_engine::run::report::{HostLane, StageLane};
use fullbore_engine::run::report::{HostReport, Report};
use fullbore_engine::units;

use super::{FAULTS_LISTED, SHARE_COLOURS, escape};
use crate::report::svg;

/// Received as an area, written as a line, phases above.
pub(super) fn throughput(page: &mut String, report: &Report) {
    let timeline = &report.timeline;
    let (received, written) = (&timeline.received_bytes_per_s, &timeline.written_bytes_per_s);
    let received = svg::thinned(received);
    // Files become right at one blow: without smoothing the line is all spikes.
    let written = svg::smoothed(&svg::thinned(written));
    let maximum = received.iter().chain(&written).copied().fold(1.0, f64::max) * 1.04;
    let mean = units::per_second(report.summary.totals.written_bytes, report.summary.duration_ms);
    let _ = writeln!(
        page,
        "<section><div class=\"head\"><h2>Throughput</h2><p class=\"legend\">\
         <span style=\"--c:var(--received)\">received</span><span style=\"--c:var(--written)\">written</span>\
         <span style=\"--c:var(--soft)\">mean of the run, {}/s</span></p></div>",
        units::bytes(mean)
    );
    phases(page, report);
    limits(page, report);
    let _ = write!(page, "<div class=\"plot tall\">{}", svg::open("received and written bytes per second over time"));
    let ticks = svg::ticks(maximum);
    for tick in &ticks {
        page.push_str(&svg::level(if *tick == 0.0 { "zero" } else { "grid" }, *tick, maximum));
    }
    page.push_str(&svg::area("area", &received, maximum));
    page.push_str(&svg::line("edge", &received, maximum));
    page.push_str(&svg::line("wrote", &written, maximum));
    page.push_str(&svg::level("mean", mean as f64, maximum));
    page.push_str("</svg>");
    for tick in ticks.iter().filter(|tick| **tick > 0.0) {
        let _ = write!(
            page,
            "<span class=\"y\" style=\"bottom:{:.1}%\">{}/s</span>",
            tick / maximum * 100.0,
            units::round_bytes(*tick as u64)
        );
    }
    page.push_str("</div>");
    axis(page, timeline.duration_ms());
    page.push_str("</section>\n");
}

fn phases(page: &mut String, report: &Report) {
    let timeline = &report.timeline;
    let end = timeline.duration_ms().max(1);
    if timeline.phases.is_empty() {
        return;
    }
    page.push_str("<div class=\"phases\">");
    for (i, (from, phase)) in timeline.phases.iter().enumerate() {
        let from = (*from).min(end);
        let to = timeline.phases.get(i + 1).map_or(end, |(next, _)| *next).clamp(from, end);
        let (left, width) = (percent(from, end), percent(to - from, end));
        // A name that does not fit its stretch is found by pointing at it.
        let name = if width > 5.0 { phase.name() } else { "" };
        let _ = write!(
            page,
            "<i style=\"left:{left:.2}%;width:{width:.2}%\" title=\"{}: {}\">{name}</i>",
            phase.name(),
            units::duration(to - from)
        );
    }
    page.push_str("</div>");
}

/// What limited the run when, in the colours of the verdict's shares.
fn limits(page: &mut String, report: &Report) {
    let timeline = &report.timeline;
    let end = timeline.duration_ms().max(1);
    let Some(verdict) = report.summary.verdict.as_ref().filter(|_| !timeline.limits.is_empty()) else {
        return;
    };
    page.push_str("<div class=\"limits\">");
    for (i, (from, limit)) in timeline.limits.iter().enumerate() {
        if limit.is_empty() {
            continue;
        }
        // The picture says "disk" for what the verdict calls "disk writes".
        let colour = verdict
            .shares
            .iter()
            .position(|(part, _)| part.starts_with(limit.as_str()) || limit.starts_with(part.as_str()))
            .unwrap_or(SHARE_COLOURS - 1);
        let from = (*from).min(end);
        let to = timeline.limits.get(i + 1).map_or(end, |(next, _)| *next).clamp(from, end);
        let _ = write!(
            page,
            "<i style=\"left:{:.2}%;width:{:.2}%;background:var(--share{})\" title=\"{}\"></i>",
            percent(from, end),
            percent(to - from, end),
            colour.min(SHARE_COLOURS - 1),
            escape(limit)
        );
    }
    page.push_str("</div>");
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64 * 100.0
}

fn axis(page: &mut String, duration_ms: u64) {
    page.push_str("<div class=\"axis\">");
    for tick in svg::time_ticks(duration_ms) {
        let left = percent(tick, duration_ms);
        let class = match left {
            l if l < 3.0 => " class=\"first\"",
            l if l > 97.0 => " class=\"last\"",
            _ => "",
        };
        let _ = write!(page, "<span{class} style=\"left:{left:.2}%\">{}</span>", clock(tick));
    }
    page.push_str("</div>");
}

/// A time on the axis: `0`, `15 s`, `1:30`, `2:05:00`.
fn clock(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0 if ms == 0 => "0".to_owned(),
        _ if !ms.is_multiple_of(1000) => format!("{:.1} s", ms as f64 / 1000.0),
        0..60 => format!("{s} s"),
        60..3600 => format!("{}:{:02}", s / 60, s % 60),
        _ => format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60),
    }
}

pub(super) fn hosts(page: &mut String, report: &Report) {
    let summary = &report.summary;
    if summary.hosts.is_empty() {
        return;
    }
    let lanes = &report.timeline.hosts;
    let maximum = svg::maximum(lanes.iter().map(|lane| lane.bytes_per_s.as_slice()));
    let connections = lanes.iter().any(|lane| lane.connections.iter().any(|count| *count > 0));
    let _ = write!(
        page,
        "<section><div class=\"head\"><h2>Hosts</h2><p class=\"note\">each lane is {}/s high{}</p></div>\n<div class=\"lanes\">",
        units::bytes(maximum as u64),
        if connections { "; the strip below it shows connections" } else { "" }
    );
    for host in &summary.hosts {
        let lane = lanes.iter().find(|lane| lane.host == host.host);
        host_lane(page, report, host, lane, maximum);
    }
    page.push_str("</div>");
    axis(page, report.timeline.duration_ms());
    page.push_str("</section>\n");
}

fn host_lane(page: &mut String, report: &Report, host: &HostReport, lane: Option<&HostLane>, maximum: f64) {
    let total: u64 = report.summary.hosts.iter().map(|host| host.received_bytes).sum();
    let end = report.timeline.duration_ms();
    let _ = write!(page, "<div><div class=\"lane-head\"><b>{}</b>", escape(&host.host));
    if host.origin {
        page.push_str("<span class=\"tag\">origin</span>");
    }
    if !host.protocol.is_empty() {
        let _ = write!(page, "<span class=\"tag\">{}</span>", escape(&host.protocol));
    }
    if !host.state.is_empty() && host.state != "good" {
        let _ = write!(page, "<span class=\"chip warn\">{}</span>", escape(&host.state));
    }
    let best_rate = lane.map_or(0.0, |lane| svg::maximum([lane.bytes_per_s.as_slice()]));
    let best_rate = (best_rate as u64).max(host.best_rate_bytes_per_s);
    let mut figures = vec![
        format!("<em>{}</em> ({:.0} %)", units::bytes(host.received_bytes), percent(host.received_bytes, total)),
        format!("best {}/s", units::bytes(best_rate)),
    ];
    if host.files > 0 {
        figures.insert(1, format!("{} {}", units::count(host.files), units::noun(host.files, "file", "files")));
    }
    if let Some(rtt_ms) = host.rtt_ms.filter(|rtt| *rtt > 0.0) {
        figures.push(if rtt_ms < 1.0 { "under 1 ms away".to_owned() } else { format!("{rtt_ms:.0} ms away") });
    }
    figures.push(units::several(host.connections, "connection", "connections"));
    if host.wasted_bytes > 0 {
        figures.push(format!("{} thrown away", units::bytes(host.wasted_bytes)));
    }
    let _ = write!(page, "<span class=\"figures\">{}</span></div>", figures.join(", "));
    let _ = write!(page, "<div class=\"lane\">{}", svg::open("bytes per second of this host over time"));
    if let Some(lane) = lane {
        let values = svg::thinned(&lane.bytes_per_s);
        page.push_str(&svg::area("area", &values, maximum));
        page.push_str(&svg::line("edge", &values, maximum));
    }
    page.push_str("</svg>");
    for fault in host.faults.iter().filter(|fault| fault.at_ms > 0) {
        let _ = write!(
            page,
            "<i class=\"fault\" style=\"left:{:.2}%\" title=\"{}: {}\"></i>",
            percent(fault.at_ms.min(end), end),
            clock(fault.at_ms),
            escape(&fault.line())
        );
    }
    page.push_str("</div>");
    if let Some(lane) = lane.filter(|lane| lane.connections.iter().any(|count| *count > 0)) {
        let _ = write!(
            page,
            "<div class=\"strip\">{}{}</svg></div>",
            svg::open("connections"),
            svg::heat(&lane.connections)
        );
    }
    if !host.faults.is_empty() {
        page.push_str("<ul class=\"faults\">");
        for fault in host.faults.iter().take(FAULTS_LISTED) {
            let _ = write!(
                page,
                "<li><b>{}</b> {}</li>",
                if fault.at_ms > 0 { clock(fault.at_ms) } else { "at last".to_owned() },
                escape(&fault.line())
            );
        }
        let more = (host.strikes as usize).max(host.faults.len()).saturating_sub(FAULTS_LISTED);
        if more > 0 {
            let _ = write!(page, "<li>and {more} more</li>");
        }
        page.push_str("</ul>");
    }
    page.push_str("</div>\n");
}

pub(super) fn stages(page: &mut String, report: &Report) {
    let lanes = &report.timeline.stages;
    if lanes.is_empty() {
        return;
    }
    page.push_str(
        "<section><div class=\"head\"><h2>Stages</h2><p class=\"legend\">\
         <span style=\"--c:var(--busy)\">working</span><span style=\"--c:var(--device)\">waiting for its device</span>\
         <span style=\"--c:var(--blocked)\">held up by what is behind it</span>\
         <span style=\"--c:var(--starved)\">waiting for input</span></p></div>\n<div class=\"lanes\">",
    );
    for lane in lanes {
        let mean = |values: &[f32]| {
            values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len().max(1) as f64 * 100.0
        };
        let _ = writeln!(
            page,
            "<div><div class=\"lane-head\"><b>{}</b><span class=\"figures\">working <em>{:.0} %</em>, device \
             <em>{:.0} %</em>, held up <em>{:.0} %</em>, waiting <em>{:.0} %</em></span></div>\
             <div class=\"lane stage\">{}{}</svg></div></div>",
            escape(&lane.stage),
            mean(&lane.busy),
            mean(&lane.device),
            mean(&lane.blocked),
            mean(&lane.starved),
            svg::open("shares of time of this stage"),
            stage_stack(lane)
        );
    }
    page.push_str("</div>");
    axis(page, report.timeline.duration_ms());
    page.push_str("</section>\n");
}

fn stage_stack(lane: &StageLane) -> String {
    svg::stack(&[
        ("busy", svg::thinned(&lane.busy)),
        ("device", svg::thinned(&lane.device)),
        ("blocked", svg::thinned(&lane.blocked)),
        ("starved", svg::thinned(&lane.starved)),
    ])
}
