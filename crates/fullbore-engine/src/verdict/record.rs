//! A recorded run: its samples as lines of JSON, and its final counters. The judge can be tuned on recorded runs.

use std::io::{self, BufRead, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::judge::Judge;
use super::sample::Sample;
use super::{Verdict, opinion};
use crate::stage::LedgerReading;

/// Where samples are recorded; any writer that a thread may use.
pub trait RecordSamples: Write + Send + std::fmt::Debug {}

impl<T: Write + Send + std::fmt::Debug> RecordSamples for T {}

/// Last line of a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub counters: LedgerReading,
    pub bytes: u64,
    pub wall: Duration,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    End(Box<End>),
    Sample(Box<Sample>),
}

/// Writes one line.
pub(super) fn write(record: &mut dyn RecordSamples, line: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    record.write_all(text.as_bytes())
}

/// The verdict on a recorded run. A record without its last line gives a verdict without hosts and trials.
///
/// # Errors
/// The reader's error, or [`io::ErrorKind::InvalidData`] for a line that is neither a sample nor the end of a record.
pub fn judge_record(record: impl BufRead) -> io::Result<Verdict> {
    let mut judge = Judge::default();
    let mut end = End { counters: LedgerReading::default(), bytes: 0, wall: Duration::ZERO };
    for line in record.lines() {
        match serde_json::from_str(&line?)? {
            Line::Sample(sample) => {
                end.wall = sample.at;
                judge.push(*sample);
            }
            Line::End(last) => end = *last,
        }
    }
    Ok(opinion::verdict(judge.finish(), end.counters, end.bytes, end.wall))
}
