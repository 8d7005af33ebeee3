//! Measures the silence of other ends: the time since bytes last moved over any socket of this process.
//!
//! There is one counter for the process, because progress is that of the whole run: while one connection stalls, others
//! may deliver. Sockets count the bytes that they read, and the bytes that the kernel accepted for sending. The kernel
//! accepts no more while the other end acknowledges nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shortest silence that is reported. A guess: servers often take shorter while they look for a file, and both ends of
/// a copy send something every ten seconds.
pub(crate) const SILENT: Duration = Duration::from_secs(20);

static MOVED: AtomicU64 = AtomicU64::new(0);

/// Records that a socket read these bytes, or accepted them for sending.
pub fn moved(bytes: usize) {
    MOVED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// The silence in seconds if it is long enough to be reported.
pub fn silent_s(silence: Duration) -> Option<u64> {
    (silence >= SILENT).then_some(silence.as_secs())
}

/// Time since bytes last moved.
#[derive(Debug)]
pub struct Silence {
    moved: u64,
    since: Instant,
}

impl Silence {
    /// Starts to measure silence at `now`.
    pub fn new(now: Instant) -> Silence {
        Silence { moved: MOVED.load(Ordering::Relaxed), since: now }
    }

    /// Returns the time since bytes last moved, or since the last [`Silence::is_broken`].
    pub fn lasts(&mut self, now: Instant) -> Duration {
        self.compared(MOVED.load(Ordering::Relaxed), now)
    }

    fn compared(&mut self, moved: u64, now: Instant) -> Duration {
        if moved != self.moved {
            (self.moved, self.since) = (moved, now);
        }
        now.saturating_duration_since(self.since)
    }

    /// Starts the silence anew at `now`, because nothing was requested from another end.
    pub fn is_broken(&mut self, now: Instant) {
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_ends_with_the_next_byte() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut silence = Silence { moved: 5, since: now };
        assert_eq!(silent_s(silence.compared(5, at(19))), None);
        assert_eq!(silent_s(silence.compared(5, at(25))), Some(25));
        assert_eq!(silent_s(silence.compared(6, at(26))), None);
        assert_eq!(silent_s(silence.compared(6, at(47))), Some(21));
        silence.is_broken(at(47));
        assert_eq!(silent_s(silence.compared(6, at(48))), None);
    }

    #[test]
    fn what_moves_is_heard() {
        let mut silence = Silence::new(Instant::now());
        let later = Instant::now() + Duration::from_secs(60);
        moved(1);
        assert_eq!(silence.lasts(later), Duration::ZERO);
    }
}
