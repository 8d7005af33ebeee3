//! The report as one HTML page that needs nothing else: no script, no font, no network.
//!
//! The verdict first, then what it rests on: rates over time, a lane for each host
//! and each stage on the same time axis, then the tables.

use std::fmt::Write;

use super::timeline::{HostLane, StageLane};
use super::{HostReport, Report, SuiteState, Summary, svg, units};
use crate::error::printable;

const STYLE: &str = include_str!("style.css");
/// Faults listed below a host's lane; all are marked in it and are in the JSON.
const FAULTS_LISTED: usize = 4;
/// Shares of the verdict told apart by colour.
const SHARE_COLOURS: usize = 5;

/// The page.
pub fn render(report: &Report) -> String {
    let mut page = String::with_capacity(128 << 10);
    let summary = &report.summary;
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>fullbore {}: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        escape(&summary.command),
        escape(title(summary))
    );
    top(&mut page, summary);
    hero(&mut page, summary);
    problems(&mut page, summary);
    tiles(&mut page, summary);
    if !report.timeline.is_empty() {
        throughput(&mut page, report);
        hosts(&mut page, report);
        stages(&mut page, report);
    }
    tables(&mut page, summary);
    warnings(&mut page, summary);
    let _ = write!(
        page,
        "<footer><span>fullbore {}</span><span>rates count verified and written bytes; received bytes are shown \
         beside them</span></footer>\n</main>\n</body>\n</html>\n",
        escape(&summary.version)
    );
    page
}

/// Text in a page: no markup, no control characters.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn title(summary: &Summary) -> &str {
    summary.name.as_deref().unwrap_or(&summary.dir)
}

fn top(page: &mut String, summary: &Summary) {
    let (class, state) = match (summary.exit_code, summary.dry_run, summary.changed) {
        (0, true, _) => ("good", "dry run".to_owned()),
        (0, false, true) => ("good", "published".to_owned()),
        (0, false, false) if summary.command == "check" => ("good", "all as signed".to_owned()),
        (0, false, false) => ("good", "nothing had changed".to_owned()),
        (code, ..) => ("bad", format!("exit code {code}: {}", exit_name(code))),
    };
    let _ = write!(
        page,
        "<header class=\"top\"><b>fullbore {}</b><span>{}</span><span class=\"chip {class}\">{state}</span>\
         <span class=\"right\">{}</span></header>\n",
        escape(&summary.command),
        escape(title(summary)),
        units::time(summary.started_unix_s)
    );
}

fn exit_name(code: u8) -> &'static str {
    match code {
        1 => "wrong usage or settings",
        2 => "some files are missing",
        3 => "network, or all mirrors dead",
        4 => "signature or hash wrong",
        5 => "stale",
        6 => "locked by another run",
        7 => "disk",
        130 => "interrupted",
        _ => "failed",
    }
}

/// The verdict, prominently.
fn hero(page: &mut String, summary: &Summary) {
    let totals = &summary.totals;
    let (bytes, rate_of) = if summary.command == "check" {
        (totals.checked_bytes, "read")
    } else {
        (totals.written_bytes, "verified and written")
    };
    let _ = write!(page, "<section class=\"hero\">\n<div>");
    match &summary.verdict {
        Some(verdict)
            if summary.changed || summary.totals.files > 0 || summary.command == "check" =>
        {
            let share = if !verdict.confident {
                "No single part limited this run".to_owned()
            } else if verdict.share > 0.0 {
                format!(
                    "For {:.0} % of the time, this run was limited by",
                    verdict.share * 100.0
                )
            } else {
                "This run was limited by".to_owned()
            };
            let _ = write!(
                page,
                "<p class=\"kicker\">{share}</p><h1>{}</h1>",
                escape(&capital(&verdict.limit))
            );
            if !verdict.reason.is_empty() {
                page.push_str("<ul class=\"evidence\">");
                for part in verdict.reason.split("; ") {
                    let _ = write!(page, "<li>{}</li>", escape(part));
                }
                page.push_str("</ul>");
            }
        }
        _ => {
            let _ = write!(page, "<h1>{}</h1>", escape(&capital(&headline(summary))));
        }
    }
    let _ = write!(
        page,
        "</div>\n<div class=\"rate\"><p class=\"kicker\">{} in {}</p><strong>{}/s</strong><p class=\"note\">{rate_of}</p></div>\n",
        units::bytes(bytes),
        units::duration(summary.duration_ms),
        units::bytes(units::per_second(bytes, summary.duration_ms))
    );
    if let Some(verdict) = &summary.verdict {
        shares(page, &verdict.shares);
        let next = verdict
            .next
            .as_ref()
            .map(|next| format!("<b>Next limit:</b> {}. ", escape(next)));
        if !verdict.advice.is_empty() || next.is_some() {
            let _ = write!(
                page,
                "<p class=\"advice wide\">{}{}</p>\n",
                next.unwrap_or_default(),
                escape(&verdict.advice)
            );
        }
        if !verdict.evidence.is_empty() {
            page.push_str(
                "<details class=\"wide\" open><summary>Measured</summary><ul class=\"lines\">",
            );
            for line in &verdict.evidence {
                let _ = write!(page, "<li>{}</li>", escape(line));
            }
            page.push_str("</ul></details>\n");
        }
    }
    page.push_str("</section>\n");
}

fn headline(summary: &Summary) -> String {
    match summary.exit_code {
        0 => summary.to_string().trim_end_matches('.').to_owned(),
        code => exit_name(code).to_owned(),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

fn shares(page: &mut String, shares: &[(String, f64)]) {
    if shares.is_empty() {
        return;
    }
    page.push_str("<div class=\"wide\"><div class=\"shares\">");
    for (i, (limit, share)) in shares.iter().enumerate() {
        let _ = write!(
            page,
            "<i style=\"flex:{:.3};background:var(--share{})\" title=\"{}: {:.0} %\"></i>",
            share.clamp(0.0, 1.0),
            i.min(SHARE_COLOURS - 1),
            escape(limit),
            share * 100.0
        );
    }
    page.push_str("</div><p class=\"legend\">");
    for (i, (limit, share)) in shares.iter().enumerate() {
        let _ = write!(
            page,
            "<span style=\"--c:var(--share{})\"><b>{}</b> {:.0} %</span>",
            i.min(SHARE_COLOURS - 1),
            escape(limit),
            share * 100.0
        );
    }
    page.push_str("</p></div>\n");
}

fn problems(page: &mut String, summary: &Summary) {
    if summary.problems.is_empty() {
        return;
    }
    page.push_str("<section class=\"problems\"><div class=\"head\"><h2>What is wrong</h2></div><ul class=\"lines\">");
    for line in &summary.problems {
        let _ = write!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul></section>\n");
}

fn warnings(page: &mut String, summary: &Summary) {
    if summary.warnings.is_empty() {
        return;
    }
    page.push_str("<section><div class=\"head\"><h2>Warnings</h2></div><ul class=\"lines\">");
    for line in &summary.warnings {
        let _ = write!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul></section>\n");
}

fn tiles(page: &mut String, summary: &Summary) {
    let totals = &summary.totals;
    let mut all: Vec<(&str, String, String)> = Vec::new();
    if summary.command == "check" {
        all.push((
            "Files read",
            units::count(totals.checked_files),
            units::bytes(totals.checked_bytes),
        ));
        all.push((
            "Missing or wrong",
            units::count(totals.missing_files),
            "after this run".to_owned(),
        ));
    }
    if totals.files > 0 || summary.command != "check" {
        all.push((
            "Files fetched",
            units::count(totals.files),
            format!("{} kept", units::count(totals.kept_files)),
        ));
        all.push((
            "Received ÷ needed",
            format!("{:.3}", totals.received_ratio()),
            format!("{} thrown away", units::bytes(totals.wasted_bytes)),
        ));
        let per_connection = totals.requests.checked_div(totals.connections).unwrap_or(0);
        all.push((
            "Requests",
            units::count(totals.requests),
            format!(
                "{} connections, {} each",
                units::count(totals.connections),
                units::count(per_connection)
            ),
        ));
    }
    let cores = if summary.duration_ms == 0 {
        0.0
    } else {
        summary.cpu_ms as f64 / summary.duration_ms as f64
    };
    all.push((
        "Processor",
        units::duration(summary.cpu_ms),
        format!("{cores:.2} cores on average"),
    ));
    all.push((
        "Memory",
        units::bytes(summary.peak_rss_bytes),
        "at its peak".to_owned(),
    ));
    page.push_str("<dl class=\"tiles\">");
    for (name, value, note) in all {
        let _ = write!(
            page,
            "<div class=\"tile\"><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>"
        );
    }
    page.push_str("</dl>\n");
}

/// Received as an area, written as a line, phases above.
fn throughput(page: &mut String, report: &Report) {
    let timeline = &report.timeline;
    let (received, written) = (
        &timeline.received_bytes_per_s,
        &timeline.written_bytes_per_s,
    );
    let received = svg::thinned(received);
    // Files become right at one blow: without smoothing the line is all spikes.
    let written = svg::smoothed(&svg::thinned(written));
    let maximum = received.iter().chain(&written).copied().fold(1.0, f64::max) * 1.04;
    let mean = units::per_second(
        report.summary.totals.written_bytes,
        report.summary.duration_ms,
    );
    let _ = write!(
        page,
        "<section><div class=\"head\"><h2>Throughput</h2><p class=\"legend\">\
         <span style=\"--c:var(--received)\">received</span><span style=\"--c:var(--written)\">written</span>\
         <span style=\"--c:var(--soft)\">mean of the run, {}/s</span></p></div>\n",
        units::bytes(mean)
    );
    phases(page, report);
    limits(page, report);
    let _ = write!(
        page,
        "<div class=\"plot tall\">{}",
        svg::open("received and written bytes per second over time")
    );
    let ticks = svg::ticks(maximum);
    for tick in &ticks {
        page.push_str(&svg::level(
            if *tick == 0.0 { "zero" } else { "grid" },
            *tick,
            maximum,
        ));
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
        let to = timeline
            .phases
            .get(i + 1)
            .map_or(end, |(next, _)| *next)
            .clamp(from, end);
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
    let Some(verdict) = report
        .summary
        .verdict
        .as_ref()
        .filter(|_| !timeline.limits.is_empty())
    else {
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
            .position(|(part, _)| {
                part.starts_with(limit.as_str()) || limit.starts_with(part.as_str())
            })
            .unwrap_or(SHARE_COLOURS - 1);
        let from = (*from).min(end);
        let to = timeline
            .limits
            .get(i + 1)
            .map_or(end, |(next, _)| *next)
            .clamp(from, end);
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
        let _ = write!(
            page,
            "<span{class} style=\"left:{left:.2}%\">{}</span>",
            clock(tick)
        );
    }
    page.push_str("</div>");
}

/// A time on the axis: `0`, `15 s`, `1:30`, `2:05:00`.
fn clock(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0 if ms == 0 => "0".to_owned(),
        _ if ms % 1000 != 0 => format!("{:.1} s", ms as f64 / 1000.0),
        0..60 => format!("{s} s"),
        60..3600 => format!("{}:{:02}", s / 60, s % 60),
        _ => format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60),
    }
}

fn hosts(page: &mut String, report: &Report) {
    let summary = &report.summary;
    if summary.hosts.is_empty() {
        return;
    }
    let lanes = &report.timeline.hosts;
    let maximum = svg::maximum(lanes.iter().map(|lane| lane.bytes_per_s.as_slice()));
    let connections = lanes
        .iter()
        .any(|lane| lane.connections.iter().any(|count| *count > 0));
    let _ = write!(
        page,
        "<section><div class=\"head\"><h2>Hosts</h2><p class=\"note\">each lane is {}/s high{}</p></div>\n<div class=\"lanes\">",
        units::bytes(maximum as u64),
        if connections {
            "; the strip below it shows connections"
        } else {
            ""
        }
    );
    for host in &summary.hosts {
        let lane = lanes.iter().find(|lane| lane.host == host.host);
        host_lane(page, report, host, lane, maximum);
    }
    page.push_str("</div>");
    axis(page, report.timeline.duration_ms());
    page.push_str("</section>\n");
}

fn host_lane(
    page: &mut String,
    report: &Report,
    host: &HostReport,
    lane: Option<&HostLane>,
    maximum: f64,
) {
    let total: u64 = report
        .summary
        .hosts
        .iter()
        .map(|host| host.received_bytes)
        .sum();
    let end = report.timeline.duration_ms();
    let _ = write!(
        page,
        "<div><div class=\"lane-head\"><b>{}</b>",
        escape(&host.host)
    );
    if host.origin {
        page.push_str("<span class=\"tag\">origin</span>");
    }
    if !host.protocol.is_empty() {
        let _ = write!(
            page,
            "<span class=\"tag\">{}</span>",
            escape(&host.protocol)
        );
    }
    if !host.state.is_empty() && host.state != "good" {
        let _ = write!(
            page,
            "<span class=\"chip warn\">{}</span>",
            escape(&host.state)
        );
    }
    let best_rate = lane.map_or(0.0, |lane| svg::maximum([lane.bytes_per_s.as_slice()]));
    let best_rate = (best_rate as u64).max(host.best_rate_bytes_per_s);
    let mut figures = vec![
        format!(
            "<em>{}</em> ({:.0} %)",
            units::bytes(host.received_bytes),
            percent(host.received_bytes, total)
        ),
        format!("best {}/s", units::bytes(best_rate)),
    ];
    if host.files > 0 {
        figures.insert(1, format!("{} files", units::count(host.files)));
    }
    if let Some(rtt_ms) = host.rtt_ms.filter(|rtt| *rtt > 0.0) {
        figures.push(if rtt_ms < 1.0 {
            "under 1 ms away".to_owned()
        } else {
            format!("{rtt_ms:.0} ms away")
        });
    }
    figures.push(match host.connections {
        1 => "1 connection".to_owned(),
        n => format!("{n} connections"),
    });
    if host.wasted_bytes > 0 {
        figures.push(format!("{} thrown away", units::bytes(host.wasted_bytes)));
    }
    let _ = write!(
        page,
        "<span class=\"figures\">{}</span></div>",
        figures.join(", ")
    );
    let _ = write!(
        page,
        "<div class=\"lane\">{}",
        svg::open("bytes per second of this host over time")
    );
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
            escape(&fault.fault)
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
            let path = fault
                .path
                .as_ref()
                .map(|path| format!(", {}", escape(path)))
                .unwrap_or_default();
            let _ = write!(
                page,
                "<li><b>{}</b> {}{path}</li>",
                if fault.at_ms > 0 {
                    clock(fault.at_ms)
                } else {
                    "at last".to_owned()
                },
                escape(&fault.fault)
            );
        }
        let more = (host.strikes as usize)
            .max(host.faults.len())
            .saturating_sub(FAULTS_LISTED);
        if more > 0 {
            let _ = write!(page, "<li>and {more} more</li>");
        }
        page.push_str("</ul>");
    }
    page.push_str("</div>\n");
}

fn stages(page: &mut String, report: &Report) {
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
            values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len().max(1) as f64
                * 100.0
        };
        let _ = write!(
            page,
            "<div><div class=\"lane-head\"><b>{}</b><span class=\"figures\">working <em>{:.0} %</em>, device \
             <em>{:.0} %</em>, held up <em>{:.0} %</em>, waiting <em>{:.0} %</em></span></div>\
             <div class=\"lane stage\">{}{}</svg></div></div>\n",
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

fn tables(page: &mut String, summary: &Summary) {
    suites(page, summary);
    page.push_str("<div class=\"columns\">\n");
    let (plan, totals) = (&summary.plan, &summary.totals);
    counted(
        page,
        "Plan",
        &[
            (
                "named by the signed indexes",
                Some(plan.wanted_files),
                Some(plan.wanted_bytes),
            ),
            ("to fetch", Some(plan.fetch_files), Some(plan.fetch_bytes)),
            (
                "to delete",
                Some(plan.delete_files),
                Some(plan.delete_bytes),
            ),
            (
                "free on the file system (inodes)",
                Some(plan.free_inodes),
                Some(plan.free_bytes),
            ),
        ],
    );
    counted(
        page,
        "Totals",
        &[
            (
                "verified and written",
                Some(totals.files),
                Some(totals.written_bytes),
            ),
            ("needed", None, Some(totals.needed_bytes)),
            ("received", None, Some(totals.received_bytes)),
            ("thrown away", None, Some(totals.wasted_bytes)),
            (
                "used from an interrupted run",
                None,
                Some(totals.resumed_bytes),
            ),
            (
                "present before",
                Some(totals.kept_files),
                Some(totals.kept_bytes),
            ),
            (
                "read again",
                Some(totals.checked_files),
                Some(totals.checked_bytes),
            ),
            (
                "deleted",
                Some(totals.deleted_files),
                Some(totals.deleted_bytes),
            ),
            ("missing or wrong", Some(totals.missing_files), None),
            ("fetched a second time", Some(totals.retried_files), None),
            (
                "requests asked of a second host",
                Some(totals.hedged_requests),
                None,
            ),
        ],
    );
    page.push_str("</div>\n");
}

/// A table of files and bytes; lines of zeros are left out.
fn counted(page: &mut String, name: &str, lines: &[(&str, Option<u64>, Option<u64>)]) {
    let _ = write!(
        page,
        "<section><div class=\"head\"><h2>{name}</h2></div><div class=\"scroll\"><table><thead><tr><th></th>\
         <th class=\"n\">number</th><th class=\"n\">bytes</th></tr></thead><tbody>"
    );
    for (what, number, bytes) in lines {
        if number.unwrap_or(0) == 0 && bytes.unwrap_or(0) == 0 {
            continue;
        }
        let _ = write!(
            page,
            "<tr><th>{what}</th><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            number.map(units::count).unwrap_or_default(),
            bytes.map(units::bytes).unwrap_or_default()
        );
    }
    page.push_str("</tbody></table></div></section>\n");
}

fn suites(page: &mut String, summary: &Summary) {
    if summary.suites.is_empty() {
        return;
    }
    page.push_str(
        "<section><div class=\"head\"><h2>Suites</h2></div><div class=\"scroll\"><table><thead><tr><th>suite</th>\
         <th>codename</th><th>version</th><th>of</th><th>valid until</th><th></th></tr></thead><tbody>",
    );
    for suite in &summary.suites {
        let (class, state) = match suite.state {
            SuiteState::Published => ("good", "published"),
            SuiteState::Unchanged => ("good", "unchanged"),
            SuiteState::NotPublished => ("bad", "not published"),
        };
        let _ = write!(
            page,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\"><span class=\"chip {class}\">\
             {state}</span></td></tr>",
            escape(&suite.suite),
            escape(&suite.codename),
            escape(suite.version.as_deref().unwrap_or("–")),
            units::time(suite.date_unix_s),
            suite
                .valid_until_unix_s
                .map_or_else(|| "–".to_owned(), units::time)
        );
    }
    page.push_str("</tbody></table></div></section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{VerdictReport, sample};

    #[test]
    fn the_page_needs_nothing_else() {
        let page = render(&sample::report());
        for outside in ["<script", "http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.len() < 512 << 10, "{}", page.len());
        assert!(page.contains("<h1>The access link</h1>"));
        assert!(page.contains("1.015"));
    }

    #[test]
    fn names_from_outside_are_no_markup() {
        let evil = "<img src=x onerror='alert(1)'>\"&\u{1b}";
        let mut report = sample::report();
        for text in [
            &mut report.summary.hosts[0].host,
            &mut report.summary.suites[0].suite,
            &mut report.summary.dir,
        ] {
            *text = evil.into();
        }
        report.summary.name = None;
        report.timeline.hosts[0].host = evil.into();
        report.timeline.stages[0].stage = evil.into();
        report.summary.hosts[1]
            .faults
            .push(crate::report::FaultReport {
                at_ms: 1,
                fault: evil.into(),
                path: Some(evil.into()),
            });
        report.summary.warn(evil);
        report.summary.problem(evil);
        report.summary.verdict = Some(VerdictReport {
            limit: evil.into(),
            shares: vec![(evil.into(), 0.5)],
            next: Some(evil.into()),
            advice: evil.into(),
            evidence: vec![evil.into()],
            ..VerdictReport::default()
        });
        let page = render(&report);
        assert!(!page.contains("<img"));
        assert!(!page.contains("onerror='"));
        assert!(!page.contains('\u{1b}'));
    }

    #[test]
    fn tags_are_closed() {
        let page = render(&sample::report());
        for tag in [
            "section", "div", "table", "ul", "li", "svg", "p", "span", "header", "main", "tr",
            "td", "th", "i",
        ] {
            let opened = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn an_empty_report_is_a_page_too() {
        let page = render(&Report::default());
        assert!(page.ends_with("</html>\n"));
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    /// For looking at: `cargo test -p fullbore sample_page -- --ignored` writes it where it says.
    #[test]
    #[ignore = "writes a file for looking at"]
    fn sample_page() {
        let path = std::env::temp_dir().join("fullbore-sample.html");
        std::fs::write(&path, render(&sample::report())).unwrap();
        let mut failed = sample::report();
        failed.summary.exit_code = 3;
        failed.summary.verdict = None;
        failed.summary.changed = false;
        failed.summary.problem(
            "all mirrors are dead: deb.debian.org refused the connection, 3 others timed out",
        );
        std::fs::write(
            path.with_file_name("fullbore-sample-failed.html"),
            render(&failed),
        )
        .unwrap();
        println!("{}", path.display());
    }
}
