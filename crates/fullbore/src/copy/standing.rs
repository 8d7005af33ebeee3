//! Where a copy stands: one set of figures for the bar, the lines, `--json`, and whoever asks by the control socket.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fullbore_copy::session::Progress;
use fullbore_engine::units;
use serde::{Deserialize, Serialize};

/// Weight of the newest look in the rate that is shown; looks come four times a second.
const RATE_WEIGHT: f64 = 0.15;
/// What limits a copy whose connection is lost.
const AWAY: &str = "the connection, which is dialled again";

/// The figures at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Bytes written, and those of the whole copy as far as is known.
    pub bytes: u64,
    /// Of these.
    pub total_bytes: u64,
    /// Files written.
    pub files: u64,
    /// Of these.
    pub total_files: u64,
    /// Entries listed.
    pub entries: u64,
    /// All is listed, so that the totals are final.
    pub complete: bool,
    /// Bytes per second of late.
    pub rate_bytes_per_s: u64,
    /// Seconds left, where that can be told.
    pub eta_s: Option<u64>,
    /// What limits it at present.
    pub limit: Option<String>,
}

impl Look {
    /// As a line.
    pub fn words(&self) -> String {
        let more = if self.complete { "" } else { " so far" };
        let mut text = format!(
            "{} of {}{more}, {} of {} files, {}/s",
            units::bytes(self.bytes),
            units::bytes(self.total_bytes),
            self.files,
            self.total_files,
            units::bytes(self.rate_bytes_per_s),
        );
        if let Some(eta_s) = self.eta_s {
            text.push_str(&format!(", {} left", units::duration(eta_s.saturating_mul(1000))));
        }
        if let Some(limit) = &self.limit {
            text.push_str(&format!(", limited by {limit}"));
        }
        text
    }
}

/// A copy's figures, and its rate over the last looks.
#[derive(Debug)]
pub struct Standing {
    progress: Arc<Progress>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    began: Instant,
    last: Option<(Instant, u64)>,
    rate_bytes_per_s: f64,
    limit: Option<String>,
}

impl Standing {
    /// Of a copy that counts here.
    pub fn of(progress: &Arc<Progress>) -> Standing {
        let state = State { began: Instant::now(), last: None, rate_bytes_per_s: 0.0, limit: None };
        Standing { progress: progress.clone(), state: Mutex::new(state) }
    }

    /// Takes a look: `limit` is what limits it now.
    pub fn look(&self, limit: Option<String>) -> Look {
        let bytes = self.progress.account().written_bytes;
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let (then, before) = state.last.unwrap_or((state.began, 0));
            let seconds = now.duration_since(then).as_secs_f64().max(0.01);
            let newest = bytes.saturating_sub(before) as f64 / seconds;
            let weight = if state.last.is_none() { 1.0 } else { RATE_WEIGHT };
            state.rate_bytes_per_s += weight * (newest - state.rate_bytes_per_s);
            state.last = Some((now, bytes));
            state.limit = limit;
        }
        self.last()
    }

    /// Nothing moves: the connection is lost.
    pub fn away(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.rate_bytes_per_s = 0.0;
        state.limit = Some(AWAY.to_owned());
    }

    /// The figures now, with the rate and the limit of the last look.
    pub fn last(&self) -> Look {
        let (rate, limit) = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.rate_bytes_per_s, state.limit.clone())
        };
        let (account, complete) = (self.progress.account(), self.progress.is_complete());
        let left = account.wanted_bytes.saturating_sub(account.written_bytes);
        Look {
            bytes: account.written_bytes,
            total_bytes: account.wanted_bytes,
            files: account.files,
            total_files: account.wanted_files,
            entries: account.entries,
            complete,
            rate_bytes_per_s: rate as u64,
            eta_s: (complete && rate > 1.0).then(|| (left as f64 / rate) as u64),
            limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_done_and_what_limits_it() {
        let mut look = Look { bytes: 1_500_000, total_bytes: 3_000_000, total_files: 2, files: 1, ..Look::default() };
        assert_eq!(look.words(), "1.50 MB of 3.00 MB so far, 1 of 2 files, 0 B/s");
        (look.complete, look.eta_s, look.rate_bytes_per_s) = (true, Some(90), 16_000);
        look.limit = Some("the network".to_owned());
        assert_eq!(look.words(), "1.50 MB of 3.00 MB, 1 of 2 files, 16.0 kB/s, 1 m 30 s left, limited by the network");
    }

    #[test]
    fn a_copy_whose_connection_is_lost_says_so() {
        let standing = Standing::of(&Arc::default());
        standing.look(Some("the network".to_owned()));
        standing.away();
        assert_eq!((standing.last().limit.as_deref(), standing.last().rate_bytes_per_s), (Some(AWAY), 0));
    }
}
