//! The table of a copy's parts: what each could do alone, how much of it is used, how long the others
//! wait for it. `probe` fills it from its trials, `copy` from its own run.

use std::fmt::Write as _;

use fullbore_engine::units;
use serde::Serialize;

/// Width of the evidence before it goes on in the next line.
const EVIDENCE_WIDTH: usize = 62;
/// Width of the first column.
const PART_WIDTH: usize = 22;

/// One part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Its name, with the path where there is one.
    pub part: String,
    /// Bytes per second that it could do alone.
    pub alone_bytes_per_s: Option<f64>,
    /// Files per second, where files are what counts.
    pub alone_files_per_s: Option<f64>,
    /// What stands there instead, for what has no rate: `off`, `11 s`.
    pub instead: Option<String>,
    /// Share of it that is used, from 0 to 1.
    pub used: Option<f64>,
    /// Share of the time that others wait for it.
    pub waited_for: Option<f64>,
    /// It is what holds the copy up.
    pub limits: bool,
    /// Measured facts.
    pub evidence: Vec<String>,
}

impl Row {
    /// A part without figures yet.
    pub fn new(part: impl Into<String>) -> Row {
        Row { part: part.into(), ..Row::default() }
    }

    fn alone(&self) -> String {
        if let Some(instead) = &self.instead {
            return instead.clone();
        }
        match (self.alone_files_per_s, self.alone_bytes_per_s) {
            (Some(files), _) => format!("{files:.0} files/s"),
            (None, Some(bytes)) => format!("{}/s", units::bytes(bytes as u64)),
            (None, None) => "–".to_owned(),
        }
    }
}

/// The table, line by line.
pub fn lines(rows: &[Row]) -> Vec<String> {
    let percent = |share: Option<f64>| share.map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0));
    let head = format!("{:<PART_WIDTH$} {:>12} {:>7} {:>12}       evidence", "part", "alone", "used", "waited for");
    let mut lines = vec![head];
    for row in rows {
        let mut evidence = wrapped(&row.evidence).into_iter();
        let first = evidence.next().unwrap_or_default();
        let line = format!(
            "{:<PART_WIDTH$} {:>12} {:>7} {:>12}  {:<3}  {first}",
            shortened(&row.part),
            row.alone(),
            percent(row.used),
            percent(row.waited_for),
            if row.limits { "<==" } else { "" },
        );
        lines.push(line.trim_end().to_owned());
        lines.extend(evidence.map(|line| format!("{:width$}{line}", "", width = PART_WIDTH + 41)));
    }
    lines
}

/// A long path loses its middle.
fn shortened(part: &str) -> String {
    let count = part.chars().count();
    if count <= PART_WIDTH {
        return part.to_owned();
    }
    let (head, tail) = (PART_WIDTH / 2, PART_WIDTH - PART_WIDTH / 2 - 1);
    let begin: String = part.chars().take(head).collect();
    let end: String = part.chars().skip(count - tail).collect();
    format!("{begin}…{end}")
}

/// Facts, as many in a line as fit.
fn wrapped(facts: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for fact in facts.iter().filter(|fact| !fact.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + fact.chars().count() + 2 <= EVIDENCE_WIDTH => {
                let _ = write!(line, ", {fact}");
            }
            _ => lines.push(fact.clone()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_and_facts_are_wrapped() {
        let network = Row {
            alone_bytes_per_s: Some(119e6),
            used: Some(0.94),
            waited_for: Some(0.91),
            limits: true,
            evidence: ["1 connection 57 MB/s", "4 connections 107 MB/s", "round trip 50 ms", "loss 0.00 %"]
                .map(str::to_owned)
                .to_vec(),
            ..Row::new("network")
        };
        let sync = Row { instead: Some("11 s".to_owned()), ..Row::new("final sync") };
        let small = Row { alone_files_per_s: Some(5200.4), ..Row::new("read /srv/a/very/long/path/to/data") };
        let lines = lines(&[network, sync, small]);
        assert_eq!(
            lines.join("\n"),
            "\
part                          alone    used   waited for       evidence
network                    119 MB/s    94 %         91 %  <==  1 connection 57 MB/s, 4 connections 107 MB/s, round trip 50 ms
                                                               loss 0.00 %
final sync                     11 s       –            –
read /srv/a…th/to/data 5200 files/s       –            –"
        );
    }
}
