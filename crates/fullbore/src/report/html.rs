//! The report as one HTML page that needs nothing else: no script, no font, no network.
//!
//! The verdict first, then what it rests on: rates over time, a lane for each host
//! and each stage on the same time axis, then the tables.

mod charts;
mod tables;
mod workers;

use std::fmt::Write;

use fullbore_engine::escape as text;
use fullbore_engine::run::report::{Report, Summary};
use fullbore_engine::units;

use super::time;

const STYLE: &str = include_str!("style.css");
/// Faults listed below a host's lane; all are marked in it and are in the JSON.
const FAULTS_LISTED: usize = 4;
/// Shares of the verdict told apart by colour.
const SHARE_COLOURS: usize = 5;

/// The page.
pub fn render(report: &Report) -> String {
    let mut page = String::with_capacity(128 << 10);
    let summary = &report.summary;
    let _ = writeln!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>fullbore {}: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>",
        escape(&summary.command),
        escape(title(summary))
    );
    top(&mut page, summary);
    hero(&mut page, summary);
    section(&mut page, " class=\"problems\"", "What is wrong", &summary.problems);
    tiles(&mut page, summary);
    if !report.timeline.is_empty() {
        charts::throughput(&mut page, report);
        charts::hosts(&mut page, report);
        charts::stages(&mut page, report);
    }
    if let Some(fleet) = &summary.fleet {
        workers::workers(&mut page, fleet);
    }
    tables::tables(&mut page, summary);
    section(&mut page, "", "Warnings", &summary.warnings);
    let _ = writeln!(
        page,
        "<footer><span>fullbore {}</span><span>rates count verified and written bytes; received bytes are shown \
         beside them</span></footer>\n</main>\n</body>\n</html>",
        escape(&summary.version)
    );
    page
}

/// Foreign text in a page: no markup, no hidden characters.
fn escape(foreign: &str) -> String {
    let mut out = String::with_capacity(foreign.len());
    for c in text::line(foreign).chars() {
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
        (0, false, true) if summary.command == "check" => ("good", "repaired".to_owned()),
        (0, false, true) => ("good", "published".to_owned()),
        (0, false, false) if summary.command == "check" => ("good", "all as signed".to_owned()),
        (0, false, false) => ("good", "nothing had changed".to_owned()),
        (code, ..) => ("bad", format!("exit code {code}: {}", exit_name(code))),
    };
    let _ = writeln!(
        page,
        "<header class=\"top\"><b>fullbore {}</b><span>{}</span><span class=\"chip {class}\">{state}</span>\
         <span class=\"right\">{}</span></header>",
        escape(&summary.command),
        escape(title(summary)),
        time::text(summary.started_unix_s)
    );
}

fn exit_name(code: u8) -> &'static str {
    match code {
        1 => "wrong usage or settings",
        2 => "some files are missing",
        3 => "network error, or no mirror answers",
        4 => "wrong signature or checksum",
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
    page.push_str("<section class=\"hero\">\n<div>");
    match &summary.verdict {
        Some(verdict) if summary.changed || summary.totals.files > 0 || summary.command == "check" => {
            let share = if !verdict.confident && verdict.limit == "mixed" {
                "No single part limited this run".to_owned()
            } else if !verdict.confident {
                "This run was probably limited by".to_owned()
            } else if verdict.share > 0.0 {
                format!("For {:.0} % of the time, this run was limited by", verdict.share * 100.0)
            } else {
                "This run was limited by".to_owned()
            };
            let _ = write!(page, "<p class=\"kicker\">{share}</p><h1>{}</h1>", escape(&capital(&verdict.limit)));
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
    let _ = writeln!(
        page,
        "</div>\n<div class=\"rate\"><p class=\"kicker\">{} in {}</p><strong>{}/s</strong><p class=\"note\">{rate_of}</p></div>",
        units::bytes(bytes),
        units::duration(summary.duration_ms),
        units::bytes(units::per_second(bytes, summary.duration_ms))
    );
    if let Some(verdict) = &summary.verdict {
        shares(page, &verdict.shares);
        let next = verdict.next.as_ref().map(|next| format!("<b>Next limit:</b> {}. ", escape(next)));
        if !verdict.advice.is_empty() || next.is_some() {
            let _ =
                writeln!(page, "<p class=\"advice wide\">{}{}</p>", next.unwrap_or_default(), escape(&verdict.advice));
        }
        if !verdict.evidence.is_empty() {
            page.push_str("<details class=\"wide\" open><summary>Measured</summary><ul class=\"lines\">");
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
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
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

/// A section of lines, if there are any.
fn section(page: &mut String, class: &str, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = write!(page, "<section{class}><div class=\"head\"><h2>{title}</h2></div><ul class=\"lines\">");
    for line in lines {
        let _ = write!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul></section>\n");
}

fn tiles(page: &mut String, summary: &Summary) {
    let totals = &summary.totals;
    let mut all: Vec<(&str, String, String)> = Vec::new();
    if summary.command == "check" {
        all.push(("Files read", units::count(totals.checked_files), units::bytes(totals.checked_bytes)));
        all.push(("Missing or wrong", units::count(totals.missing_files), "after this run".to_owned()));
    }
    if totals.files > 0 || summary.command != "check" {
        all.push(("Files fetched", units::count(totals.files), format!("{} kept", units::count(totals.kept_files))));
        all.push((
            "Received ÷ needed",
            format!("{:.3}", totals.received_ratio()),
            format!("{} thrown away", units::bytes(totals.wasted_bytes)),
        ));
        let per_connection = totals.requests.checked_div(totals.connections).unwrap_or(0);
        let connections = units::noun(totals.connections, "connection", "connections");
        all.push((
            "Requests",
            units::count(totals.requests),
            format!("{} {connections}, {} each", units::count(totals.connections), units::count(per_connection)),
        ));
    }
    let cores = if summary.duration_ms == 0 { 0.0 } else { summary.cpu_ms as f64 / summary.duration_ms as f64 };
    all.push(("Processor", units::duration(summary.cpu_ms), format!("{cores:.2} cores on average")));
    all.push(("Memory", units::bytes(summary.peak_rss_bytes), "at its peak".to_owned()));
    page.push_str("<dl class=\"tiles\">");
    for (name, value, note) in all {
        let _ = write!(page, "<div class=\"tile\"><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>");
    }
    page.push_str("</dl>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use fullbore_engine::run::report::VerdictReport;

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
        let evil = "<img src=x onerror='alert(1)'>\"&\u{1b}\u{9b}\u{7f}\r\u{202e}\u{2066}\u{2028}\u{feff}";
        let mut report = sample::report();
        for text in [&mut report.summary.hosts[0].host, &mut report.summary.suites[0].suite, &mut report.summary.dir] {
            *text = evil.into();
        }
        report.summary.name = None;
        report.timeline.hosts[0].host = evil.into();
        report.timeline.stages[0].stage = evil.into();
        report.summary.hosts[1].faults.push(fullbore_engine::run::report::FaultReport {
            at_ms: 1,
            path: Some(evil.into()),
            fault: evil.into(),
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
        assert!(!page.chars().any(|c| text::is_hidden(c) && c != '\n'));
        assert!(page.contains("\\u{1b}\\u{9b}\\u{7f}\\r\\u{202e}"));
    }

    #[test]
    fn tags_are_closed() {
        let page = render(&sample::report());
        for tag in ["section", "div", "table", "ul", "li", "svg", "p", "span", "header", "main", "tr", "td", "th", "i"]
        {
            let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn an_empty_report_is_a_page_too() {
        let page = render(&Report::default());
        assert!(page.ends_with("</html>\n"));
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    /// For looking at: `cargo test -p fullbore a_sample_page -- --ignored` writes it where it says.
    #[test]
    #[ignore = "writes a file for looking at"]
    fn a_sample_page_is_written_to_look_at() {
        let path = std::env::temp_dir().join("fullbore-sample.html");
        std::fs::write(&path, render(&sample::report())).unwrap();
        let mut failed = sample::report();
        failed.summary.exit_code = 3;
        failed.summary.verdict = None;
        failed.summary.changed = false;
        failed.summary.problem("all mirrors are dead: deb.example.org refused the connection, 3 others timed out");
        std::fs::write(path.with_file_name("fullbore-sample-failed.html"), render(&failed)).unwrap();
        println!("{}", path.display());
    }
}
