//! SHA-256 of several streams side by side: bytes per second of CPU time, by number of streams.
//!
//! ```text
//! cargo run --release -p fullbore-engine --example hash_rate
//! ```

use fullbore_engine::digest::{STREAMS_MAX, Sha256Hasher, update_many};

const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 4000;

fn main() {
    for count in 1..=2 * STREAMS_MAX {
        let data: Vec<Vec<u8>> = (0..count).map(|stream| vec![stream as u8; PIECE_BYTES]).collect();
        let mut hashers = vec![Sha256Hasher::new(); count];
        let began = cpu_s();
        let rounds = PIECES / count;
        for _ in 0..rounds {
            update_many(hashers.iter_mut().zip(data.iter().map(std::slice::from_ref)));
        }
        let rate = (rounds * count * PIECE_BYTES) as f64 / (cpu_s() - began);
        println!("{count:2} streams: {:5.0} MB/s", rate / 1e6);
    }
}

/// CPU time of this process so far, in seconds.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
