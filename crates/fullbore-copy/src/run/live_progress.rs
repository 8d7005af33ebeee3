//! The progress of a copy: one set of figures for the screen, for events, and for the control socket.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::run::Progress as Figures;
use fullbore_engine::run::heard::silent_s;

use crate::session::Progress;

/// Weight of the newest reading in the displayed rate, with four readings per second.
const RATE_WEIGHT: f64 = 0.15;
/// The limit that is shown while the connection is lost.
const AWAY: &str = "the connection, which is dialled again";

/// A copy's figures, and its smoothed rate.
#[derive(Debug)]
pub struct LiveProgress {
    progress: Arc<Progress>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    began: Instant,
    last: Option<(Instant, u64)>,
    rate_bytes_per_s: f64,
    limit: Option<String>,
    silent: Duration,
}

impl LiveProgress {
    /// For a copy that counts in `progress`.
    pub fn of(progress: &Arc<Progress>) -> LiveProgress {
        let (last, silent) = (None, Duration::ZERO);
        let state = State { began: Instant::now(), last, rate_bytes_per_s: 0.0, limit: None, silent };
        LiveProgress { progress: progress.clone(), state: Mutex::new(state) }
    }

    /// Reads the figures. `limit` is the current limit, `silent` the time since the other machine was last heard.
    pub fn figures(&self, limit: Option<String>, silent: Duration) -> Figures {
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
            (state.limit, state.silent) = (limit, silent);
        }
        self.last()
    }

    /// Shows that the connection is lost.
    pub fn away(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.rate_bytes_per_s = 0.0;
        state.limit = Some(AWAY.to_owned());
    }

    /// The current figures, with rate and limit of the last reading.
    pub fn last(&self) -> Figures {
        let (rate, limit, silent) = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.rate_bytes_per_s, state.limit.clone(), state.silent)
        };
        let (account, complete) = (self.progress.account(), self.progress.is_complete());
        let left = account.wanted_bytes.saturating_sub(account.written_bytes);
        Figures {
            bytes: account.written_bytes,
            total_bytes: account.wanted_bytes,
            files: account.files,
            total_files: account.wanted_files,
            rate_bytes_per_s: rate as u64,
            eta_s: (complete && rate > 1.0).then(|| (left as f64 / rate) as u64),
            limit,
            silent_s: silent_s(silent),
            entries: Some(account.entries),
            complete: Some(complete),
            ..Figures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_whose_connection_is_lost_says_so() {
        let live = LiveProgress::of(&Arc::default());
        live.figures(Some("the network".to_owned()), Duration::ZERO);
        live.away();
        assert_eq!((live.last().limit.as_deref(), live.last().rate_bytes_per_s), (Some(AWAY), 0));
    }

    #[test]
    fn a_silence_is_told_once_it_is_long() {
        let live = LiveProgress::of(&Arc::default());
        assert_eq!(live.figures(None, Duration::from_secs(19)).silent_s, None);
        assert_eq!(live.figures(None, Duration::from_millis(21_900)).silent_s, Some(21));
    }
}
