//! Whether other ends are heard of: bytes that went over any socket of this process.
//!
//! One counter for the process, as progress is of the run as a whole: what one connection of many does not bring others
//! bring. Sockets count what they read, and what the kernel took from them: it takes no more while the other end
//! acknowledges nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Silence that is told. A guess: shorter ones are usual while a server looks for a file; copy's ends say something
/// every ten seconds.
pub(crate) const SILENT: Duration = Duration::from_secs(20);

static MOVED: AtomicU64 = AtomicU64::new(0);

/// Bytes were read from a socket, or taken by it.
pub fn moved(bytes: usize) {
    MOVED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Seconds of a silence that is long enough to be told.
pub fn silent_s(silence: Duration) -> Option<u64> {
    (silence >= SILENT).then_some(silence.as_secs())
}

/// For how long nothing has moved.
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

    /// Returns the time since the last sign of life.
    pub fn lasts(&mut self, now: Instant) -> Duration {
        self.compared(MOVED.load(Ordering::Relaxed), now)
    }

    fn compared(&mut self, moved: u64, now: Instant) -> Duration {
        if moved != self.moved {
            (self.moved, self.since) = (moved, now);
        }
        now.saturating_duration_since(self.since)
    }

    /// It is broken for another reason: nobody was asked for anything.
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
