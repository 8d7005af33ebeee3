//! The end of a copy: what was done, how fast, and what limited it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use fullbore_copy::judgement::Judgement;
use fullbore_copy::wire::ProblemKind;
use fullbore_engine::units;
use serde_json::{Value, json};

use super::Done;
use super::table::Run;

/// A copy that took less has no table: its figures would be noise.
const TABLE_TIME: Duration = Duration::from_secs(2);

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The last lines on the screen: what was done, how content went, the table.
pub fn lines(done: &Done, dry_run: bool) -> Vec<String> {
    let mut lines = vec![sentence(done, dry_run)];
    if dry_run || done.account.written_bytes == 0 {
        return lines;
    }
    if !done.way.is_empty() {
        lines.push(format!("{}.", done.way));
    }
    if done.wall >= TABLE_TIME {
        lines.extend(with_run(done, |run| [vec![String::new()], run.lines()].concat()).into_iter().flatten());
    }
    lines
}

fn sentence(done: &Done, dry_run: bool) -> String {
    let (account, wall) = (&done.account, done.wall);
    let mut text = String::new();
    if dry_run {
        let _ = write!(text, "would copy {} in {} files", units::bytes(account.wanted_bytes), account.wanted_files);
    } else if account.files + account.made == 0 && account.written_bytes == 0 {
        let _ = write!(text, "nothing to copy, {} entries compared in {}", account.entries, units::duration(ms(wall)));
    } else {
        let rate = units::per_second(account.written_bytes, ms(wall));
        let _ = write!(
            text,
            "copied {}, {} files in {}, {}/s",
            units::bytes(account.written_bytes),
            account.files,
            units::duration(ms(wall)),
            units::bytes(rate),
        );
    }
    for (count, what) in [
        (account.made, "links, directories and devices made"),
        (account.retouched, "with new attributes"),
        (account.deleted, "deleted"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    if account.resumed_bytes > 0 {
        let _ = write!(text, "; {} were there from an earlier run", units::bytes(account.resumed_bytes));
    }
    if account.reused_bytes > 0 {
        let _ = write!(text, "; {} of it taken from the old files", units::bytes(account.reused_bytes));
    }
    text.push('.');
    if account.verify_us > 0 {
        let (bytes, time) = (units::bytes(account.verified_bytes), units::duration(account.verify_us / 1000));
        let _ = write!(text, " Read back from the device: {bytes} in {time}.");
    }
    if dry_run || account.written_bytes == 0 {
        return text;
    }
    if let Some(limit) = &done.limit {
        let _ = write!(text, " Limited by: {limit}.");
    }
    if account.sync_us > 0 {
        let _ = write!(text, " Final sync: {}.", units::duration(account.sync_us / 1000));
    }
    text
}

/// The run as its table wants it; nothing if no verdict was made.
fn with_run<R>(done: &Done, use_run: impl FnOnce(&Run<'_>) -> R) -> Option<R> {
    let verdict = done.verdict.as_ref()?;
    let (near, nobody) = (Judgement::of(verdict), Judgement::default());
    let far = done.far.as_ref().unwrap_or(&nobody);
    let ends = &done.ends;
    let (sender, receiver, source_disks, target_disks) = match ends.here {
        (true, true) => (&near, None, &ends.disks, &ends.target_disks),
        (true, false) => (&near, Some(far), &ends.disks, &far.disks),
        _ => (far, Some(&near), &far.disks, &ends.disks),
    };
    Some(use_run(&Run {
        sender,
        receiver,
        path: ends.path.as_ref(),
        disks: (source_disks, target_disks),
        places: (&ends.places.0, &ends.places.1),
        verdict: Some(verdict),
        bytes: done.account.written_bytes,
        wall: done.wall,
        sync: Duration::from_micros(done.account.sync_us),
    }))
}

/// The last event of `--json`.
pub fn json(done: &Done, problems: &BTreeMap<ProblemKind, u64>, exit_code: u8) -> Value {
    let (account, wall, verdict) = (&done.account, done.wall, done.verdict.as_ref());
    let problems = problems.iter().filter(|(kind, _)| !kind.is_wished());
    let problems: BTreeMap<String, u64> =
        problems.map(|(kind, count)| (format!("{kind:?}").to_lowercase(), *count)).collect();
    json!({
        "event": "summary", "exit_code": exit_code, "duration_ms": ms(wall),
        "entries": account.entries, "files": account.files, "written_bytes": account.written_bytes,
        "kept": account.kept, "retouched": account.retouched, "made": account.made, "deleted": account.deleted,
        "resumed_bytes": account.resumed_bytes, "wanted_files": account.wanted_files,
        "wanted_bytes": account.wanted_bytes, "sync_us": account.sync_us, "reused_bytes": account.reused_bytes,
        "verified_bytes": account.verified_bytes, "verify_us": account.verify_us, "problems": problems,
        "parts": with_run(done, |run| run.rows()), "advice": with_run(done, |run| run.advice()),
        "limited_by": done.limit, "way": done.way, "far": done.far,
        "limit": verdict.map(|verdict| json!({
            "part": verdict.part, "reason": verdict.reason, "confident": verdict.confident, "advice": verdict.advice,
            "shares": verdict.shares.iter().map(|share| (share.part.clone(), share.share)).collect::<BTreeMap<_, _>>(),
            "evidence": verdict.evidence,
        })),
    })
}
