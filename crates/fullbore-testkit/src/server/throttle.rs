//! Bytes per second: a bucket that all users of a rate share.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

/// What may be sent at once after a pause; about what a switch or a kernel would buffer.
const BURST: Duration = Duration::from_millis(20);

/// Largest piece of a body that is sent at once.
const PIECE_BYTES: u64 = 128 << 10;

/// When the next byte may leave.
#[derive(Debug)]
pub(super) struct Throttle(Mutex<Option<Instant>>);

impl Throttle {
    pub fn new() -> Throttle {
        Throttle(Mutex::new(None))
    }

    /// Waits until so many bytes may be sent at this rate.
    pub async fn take(&self, bytes: u64, rate_bytes_per_s: u64) {
        let cost = Duration::from_secs_f64(bytes as f64 / rate_bytes_per_s.max(1) as f64);
        let start = {
            // A poisoned lock only means that another task of a test died.
            let mut next = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let now = Instant::now();
            let start = next.map_or(now, |next| next.max(now.checked_sub(BURST).unwrap_or(now)));
            *next = Some(start + cost);
            start + cost
        };
        tokio::time::sleep_until(start).await;
    }
}

/// Bytes to send at once so that the rates are smooth: some fifty pieces a second.
pub(super) fn piece_bytes(rates: &[Option<u64>]) -> u64 {
    match rates.iter().flatten().min() {
        Some(rate) => (rate / 50).clamp(1, PIECE_BYTES),
        None => PIECE_BYTES,
    }
}
