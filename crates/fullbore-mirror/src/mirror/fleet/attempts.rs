//! Runs that fail on this worker: pauses between two attempts, and one line for each fault.
//!
//! A run stays in the queue although a worker cannot serve it, because other workers can. So the worker tries again,
//! after pauses that grow, and tells its user of a fault once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fullbore_fleet::names::RunId;

/// Pause after the first failure, and the longest one: doubled each time. A run lasts for minutes or hours, so a minute
/// costs a worker that can serve it again little.
const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Attempts at one run that fail one after the other.
#[derive(Debug)]
pub(super) struct Attempts {
    pause: Duration,
    told: Option<String>,
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts { pause: PAUSE.0, told: None }
    }
}

impl Attempts {
    /// An attempt has failed. Gives the pause until the next one, and a line if the user does not know the fault yet.
    pub(super) fn failed(&mut self, fault: &str) -> (Duration, Option<String>) {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE.1);
        let is_new = self.told.as_deref() != Some(fault);
        let line = is_new.then(|| format!("{fault}; the next try is in {} s", pause.as_secs()));
        self.told = Some(fault.to_owned());
        (pause, line)
    }

    /// The attempt that ends has stored something, so the next pause is a short one.
    pub(super) fn progressed(&mut self) {
        self.pause = PAUSE.0;
    }
}

#[derive(Debug)]
struct Failed {
    attempts: Attempts,
    not_before: Instant,
    seen: Instant,
}

/// The runs that have failed on a worker.
#[derive(Debug, Default)]
pub(super) struct FailedRuns(BTreeMap<RunId, Failed>);

impl FailedRuns {
    /// An attempt at a run has ended by itself. Gives a line if the user does not know the fault yet.
    pub(super) fn ended(&mut self, now: Instant, run: RunId, has_stored: bool, fault: Option<&str>) -> Option<String> {
        let fresh = || Failed { attempts: Attempts::default(), not_before: now, seen: now };
        let failed = self.0.entry(run.clone()).or_insert_with(fresh);
        if has_stored {
            failed.attempts.progressed();
        }
        let (pause, line) = failed.attempts.failed(fault.unwrap_or_default());
        (failed.not_before, failed.seen) = (now + pause, now);
        fault.and(line).map(|line| format!("run {run}: {line}"))
    }

    /// Whether a run that is still announced has failed before.
    pub(super) fn has(&self, run: &RunId) -> bool {
        self.0.contains_key(run)
    }

    /// Whether an announced run may be begun now.
    pub(super) fn may_begin(&mut self, now: Instant, run: &RunId) -> bool {
        let Some(failed) = self.0.get_mut(run) else { return true };
        failed.seen = now;
        now >= failed.not_before
    }

    /// Forgets the runs that have not been announced for so long.
    pub(super) fn forget_gone(&mut self, now: Instant, gone_after: Duration) {
        self.0.retain(|_, failed| now < failed.not_before || now.saturating_duration_since(failed.seen) < gone_after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The seconds at which a run that fails at once is begun within five minutes, and the lines that are told.
    fn begun(has_stored: bool, fault: Option<&str>) -> (Vec<u64>, Vec<String>) {
        let (mut runs, run, start) = (FailedRuns::default(), RunId::parse("9c1f").unwrap(), Instant::now());
        let (mut begun, mut told) = (Vec::new(), Vec::new());
        for second in 0..300 {
            let now = start + second * SECOND;
            if runs.may_begin(now, &run) {
                begun.push(u64::from(second));
                told.extend(runs.ended(now, run.clone(), has_stored, fault));
            }
            runs.forget_gone(now, 15 * SECOND);
        }
        (begun, told)
    }

    #[test]
    fn a_run_that_fails_is_begun_after_pauses_that_double_and_told_once() {
        let (begun, told) = begun(false, Some("cannot open it"));
        assert_eq!(begun, [0, 5, 15, 35, 75, 135, 195, 255]);
        assert_eq!(told, ["run 9c1f: cannot open it; the next try is in 5 s"]);
    }

    #[test]
    fn a_run_that_ends_without_a_fault_is_begun_again_and_nothing_is_told() {
        assert_eq!(begun(false, None).1, [""; 0]);
        assert_eq!(begun(true, None).0[..4], [0, 5, 10, 15]);
    }

    #[test]
    fn another_fault_is_told_and_runs_that_are_gone_are_forgotten() {
        let (mut runs, run, now) = (FailedRuns::default(), RunId::parse("9c1f").unwrap(), Instant::now());
        let told: Vec<bool> =
            ["a", "a", "b"].map(|fault| runs.ended(now, run.clone(), false, Some(fault)).is_some()).into();
        assert_eq!(told, [true, false, true]);
        // Its key is not seen during the pause of 20 s.
        runs.forget_gone(now + 19 * SECOND, 15 * SECOND);
        assert!(runs.has(&run) && !runs.may_begin(now + 19 * SECOND, &run));
        runs.forget_gone(now + 40 * SECOND, 15 * SECOND);
        assert!(!runs.has(&run));
    }
}
