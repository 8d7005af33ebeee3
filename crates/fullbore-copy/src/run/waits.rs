//! Times in which a copy waited for a known reason; the report shows them after the limit.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fullbore_engine::machine::since_boot as now;
use fullbore_engine::units;

/// A wait that exceeds its expected time by this much was a suspension of the process or of the machine. A guess: even
/// a busy machine schedules a thread sooner.
const SUSPENDED: Duration = Duration::from_secs(2);
/// Shortest wait that is reported. Guess.
const WORTH_A_WORD: Duration = Duration::from_secs(1);
/// Times above this are reported in minutes.
const SECONDS: Duration = Duration::from_secs(120);

/// Known waits of one run.
#[derive(Debug, Default)]
pub(super) struct Waits {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    suspended: Duration,
    /// Time without a connection after one was lost.
    away: Duration,
    /// Time until it was known that there is no direct connection.
    searched: Duration,
}

impl Waits {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Runs `wait`, which takes no longer than `expected` unless the process or the machine is suspended. Counts the
    /// rest as suspension.
    pub(super) fn timed<R>(&self, expected: Duration, wait: impl FnOnce() -> R) -> R {
        let began = now();
        let result = wait();
        self.took(expected, now().saturating_sub(began));
        result
    }

    fn took(&self, expected: Duration, time: Duration) {
        let longer = time.saturating_sub(expected);
        if longer >= SUSPENDED {
            self.change(|state| state.suspended += longer);
        }
    }

    /// Adds time without a connection.
    pub(super) fn away(&self, time: Duration) {
        self.change(|state| state.away += time);
    }

    /// Sets how long content waited until it was known that there is no direct connection.
    pub(super) fn searched(&self, time: Duration) {
        self.change(|state| state.searched += time);
    }

    /// A clause for each wait.
    pub(super) fn words(&self) -> Vec<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut words = Vec::new();
        if state.searched >= WORTH_A_WORD {
            let spent = were(state.searched);
            words.push(format!("{spent} spent looking for a direct connection; --ssh-only avoids that"));
        }
        if state.away >= WORTH_A_WORD {
            words.push(format!("{} spent without a connection", were(state.away)));
        }
        if state.suspended >= SUSPENDED {
            words.push(format!("suspended for {}", text(state.suspended)));
        }
        words
    }
}

fn text(time: Duration) -> String {
    if time < SECONDS { format!("{:.0} s", time.as_secs_f64()) } else { units::duration(time.as_millis() as u64) }
}

/// `6 s were`.
fn were(time: Duration) -> String {
    let text = text(time);
    let verb = if text == "1 s" { "was" } else { "were" };
    format!("{text} {verb}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_waits_are_named_and_short_ones_are_not() {
        let (waits, looks) = (Waits::default(), Duration::from_millis(250));
        waits.took(looks, Duration::from_millis(1900));
        waits.searched(Duration::from_millis(900));
        waits.away(Duration::from_millis(900));
        assert_eq!(waits.words(), [""; 0]);
        waits.took(looks, Duration::from_millis(75_250));
        waits.searched(Duration::from_millis(5100));
        waits.away(Duration::from_millis(200));
        assert_eq!(
            waits.words(),
            [
                "6 s were spent looking for a direct connection; --ssh-only avoids that",
                "1 s was spent without a connection",
                "suspended for 75 s"
            ]
        );
        waits.took(looks, Duration::from_secs(3600));
        assert_eq!(waits.words()[2], "suspended for 1 h 01 m");
    }

    #[test]
    fn a_wait_is_timed_by_a_clock_that_goes_on_while_the_machine_sleeps() {
        let waits = Waits::default();
        waits.timed(Duration::ZERO, || std::thread::sleep(SUSPENDED + Duration::from_millis(10)));
        assert_eq!(waits.words(), ["suspended for 2 s"]);
        waits.timed(Duration::from_millis(20), || std::thread::sleep(Duration::from_millis(20)));
        assert_eq!(waits.words(), ["suspended for 2 s"]);
    }
}
