//! Judges recorded runs again: `cargo run --example judge -- RECORD...`, a line of JSON for each.
//! `bench/verdict --rejudge` uses it to try out other thresholds on runs that were made once.

use std::fs::File;
use std::io::BufReader;

use fullbore_engine::verdict::judge_record;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args_os().skip(1) {
        let verdict = judge_record(BufReader::new(File::open(&path)?))?;
        let line = serde_json::json!({
            "record": path.to_string_lossy(),
            "limit": verdict.limit,
            "part": verdict.part,
            "reason": verdict.reason,
            "confident": verdict.confident,
            "shares": verdict.shares,
            "evidence": verdict.evidence,
            "advice": verdict.advice,
            "timeline": verdict.timeline.points.iter().map(|point| &point.limit).collect::<Vec<_>>(),
        });
        println!("{line}");
    }
    Ok(())
}
