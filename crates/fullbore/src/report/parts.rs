//! The table of a copy's parts: what each could do alone, how much of it is used, how long the others
//! wait for it. `probe` fills it from its trials, `copy` from its own run.
//!
//! On a wide screen the evidence stands beside the figures, on a narrower one below them.

use std::fmt::Write as _;
use std::iter::once;

use fullbore_engine::run::report::{PartRow, Summary};
use fullbore_engine::units;

/// A copy that took less has no table: its figures would be noise.
const TABLE_MS: u64 = 2000;
/// Widest evidence before it goes on in the next line, and the narrowest that stands beside the figures.
const EVIDENCE_WIDTH: usize = 62;
const EVIDENCE_LEAST: usize = 30;
/// Width of the first column, and the least that tells parts apart.
const PART_WIDTH: usize = 22;
const PART_LEAST: usize = 10;
/// What the columns of figures take: `alone`, `used`, `waited for`, and the mark.
const FIGURES_WIDTH: usize = 41;
/// Of it, `waited for`, which is the first to go.
const WAITED_WIDTH: usize = 13;
/// Evidence below figures stands this far in.
const INDENT: usize = 4;

/// The lines below the one that ends a run; `width`: columns of the screen, if it is one.
pub fn below(summary: &Summary, width: Option<usize>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(copy) = summary.copy.as_ref().filter(|copy| copy.finished) {
        if summary.dry_run || summary.totals.written_bytes == 0 {
            return lines;
        }
        if !copy.way.is_empty() {
            lines.push(format!("{}.", copy.way));
        }
        if summary.duration_ms >= TABLE_MS {
            lines.push(String::new());
            lines.extend(table(&copy.parts, width));
            lines.extend(copy.advice.first().map(|_| String::new()));
            lines.extend(copy.advice.iter().cloned());
        }
    }
    if let Some(probe) = &summary.probe {
        lines.extend(Some(probe.way.clone()).filter(|way| !way.is_empty()));
        lines.push(String::new());
        lines.extend(table(&probe.parts, width));
        lines.extend([String::new(), probe.found.clone(), probe.takes.clone()]);
        lines.extend(probe.advice.iter().cloned());
    }
    lines
}

/// Where things stand in a table of this width.
#[derive(Clone, Copy)]
struct Layout {
    part: usize,
    waited_for: bool,
    /// Beside the figures; else below them.
    beside: bool,
    evidence: usize,
}

impl Layout {
    fn of(width: Option<usize>) -> Layout {
        let width = width.unwrap_or(usize::MAX);
        let before = PART_WIDTH + FIGURES_WIDTH;
        if width >= before + EVIDENCE_LEAST {
            let evidence = (width - before).min(EVIDENCE_WIDTH);
            return Layout { part: PART_WIDTH, waited_for: true, beside: true, evidence };
        }
        // Behind the mark there is nothing.
        let figures = FIGURES_WIDTH - 2;
        let waited_for = width >= PART_LEAST + figures;
        let figures = figures - if waited_for { 0 } else { WAITED_WIDTH };
        let part = width.saturating_sub(figures).clamp(PART_LEAST, PART_WIDTH);
        let evidence = width.saturating_sub(INDENT).clamp(1, EVIDENCE_WIDTH);
        Layout { part, waited_for, beside: false, evidence }
    }

    fn line(self, part: &str, alone: &str, used: &str, waited_for: &str, mark: &str, evidence: &str) -> String {
        let width = self.part;
        let mut line = format!("{:<width$} {alone:>12} {used:>7}", shortened(part, width));
        if self.waited_for {
            let _ = write!(line, " {waited_for:>12}");
        }
        let _ = write!(line, "  {mark:<3}  {evidence}");
        line.trim_end().to_owned()
    }
}

fn table(rows: &[PartRow], width: Option<usize>) -> Vec<String> {
    let layout = Layout::of(width);
    let percent = |share: Option<f64>| share.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0));
    let head = if layout.beside { "evidence" } else { "" };
    let mut lines = vec![layout.line("part", "alone", "used", "waited for", "", head)];
    for row in rows {
        let mut evidence = wrapped(&row.evidence, layout.evidence).into_iter();
        let first = if layout.beside { evidence.next().unwrap_or_default() } else { String::new() };
        let mark = if row.limits { "<==" } else { "" };
        let (used, waited_for) = (percent(row.used), percent(row.waited_for));
        lines.push(layout.line(&row.part, &alone(row), &used, &waited_for, mark, &first));
        let indent = if layout.beside { PART_WIDTH + FIGURES_WIDTH } else { INDENT };
        lines.extend(evidence.map(|line| format!("{:indent$}{line}", "")));
    }
    let least = width.unwrap_or(usize::MAX);
    lines.into_iter().map(|line| shortened(&line, least)).collect()
}

fn alone(row: &PartRow) -> String {
    if let Some(instead) = &row.instead {
        return instead.clone();
    }
    match (row.alone_files_per_s, row.alone_bytes_per_s) {
        (Some(files), _) => format!("{files:.0} files/s"),
        (None, Some(bytes)) => format!("{}/s", units::bytes(bytes as u64)),
        (None, None) => "–".to_owned(),
    }
}

/// What is too long loses its middle.
fn shortened(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let (head, tail) = (width / 2, (width - width / 2).saturating_sub(1));
    let begin: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!("{begin}…{end}")
}

/// Facts, as many in a line as fit. One that is longer than a line is broken between its words.
fn wrapped(facts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for fact in facts.iter().filter(|fact| !fact.is_empty()) {
        let whole = fact.chars().count() <= width;
        let pieces: Vec<&str> = if whole { once(fact.as_str()).collect() } else { fact.split(' ').collect() };
        for (number, piece) in pieces.into_iter().enumerate() {
            let between = if number == 0 { ", " } else { " " };
            match lines.last_mut() {
                Some(line) if line.chars().count() + between.len() + piece.chars().count() <= width => {
                    let _ = write!(line, "{between}{piece}");
                }
                _ => lines.push(shortened(piece, width)),
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<PartRow> {
        let network = PartRow {
            alone_bytes_per_s: Some(119e6),
            used: Some(0.94),
            waited_for: Some(0.91),
            limits: true,
            evidence: ["1 connection 57 MB/s", "4 connections 107 MB/s", "round trip 50 ms", "loss 0.00 %"]
                .map(str::to_owned)
                .to_vec(),
            ..PartRow::new("network")
        };
        let sync = PartRow { instead: Some("11 s".to_owned()), ..PartRow::new("final sync") };
        let path = "read /srv/a/very/long/path/to/data";
        let evidence = vec!["sdc, a member of md0, is slow: 31.0 ms a request, its neighbours 2.0 ms".to_owned()];
        let small = PartRow { alone_files_per_s: Some(5200.4), evidence, ..PartRow::new(path) };
        vec![network, sync, small]
    }

    #[test]
    fn columns_stand_below_each_other_and_facts_are_wrapped() {
        insta::assert_snapshot!(table(&rows(), None).join("\n"));
    }

    #[test]
    fn on_80_columns_facts_stand_below_the_figures() {
        insta::assert_snapshot!(table(&rows(), Some(80)).join("\n"));
    }

    #[test]
    fn no_line_is_longer_than_the_screen() {
        for width in 1..140 {
            for line in table(&rows(), Some(width)) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
        let text = table(&rows(), Some(40)).join("\n");
        assert!(text.contains("119 MB/s") && text.contains("<==") && !text.contains("waited"), "{text}");
    }
}
