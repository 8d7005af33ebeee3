//! How fast the landing is without a network: chunks from memory to verified files.
//!
//! ```text
//! cargo run --release -p fullbore-engine --example landing_rate -- DIR [THREADS [STREAMS]]
//! ```
//!
//! Writes about 2 GB of large files (STREAMS at a time) and 20,000 small ones beneath DIR,
//! which it leaves there, with durability `none`; prints rates and CPU time per GB.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Durability;
use fullbore_engine::files::Root;
use fullbore_engine::journal::Journal;
use fullbore_engine::landing::{Chunk, FileSpec, Landing, Outcome};
use fullbore_engine::stage::Ledger;
use fullbore_engine::target::LocalTarget;
use fullbore_engine::window::Window;

const CHUNK: usize = 256 << 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: landing_rate DIR [THREADS [STREAMS]]")?;
    let threads = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let streams = arguments.next().map_or(Ok(8), |text| text.parse())?;
    run("large", &directory, threads, streams, 64, 32 << 20).await?;
    run("small", &directory, threads, streams, 20_000, 7000).await
}

async fn run(
    name: &str,
    directory: &str,
    threads: usize,
    streams: usize,
    files: usize,
    size: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = Arc::new(Root::create(Path::new(directory))?);
    let journal = Arc::new(Journal::open(&root, ".fullbore/log", &mut |_, _| {})?);
    let target = Arc::new(LocalTarget::new(root, Durability::None));
    let (sender, mut outcomes) = tokio::sync::mpsc::unbounded_channel();
    let landing = Landing::start(target, journal, threads, &Ledger::new(), sender)?;
    let window = Window::new(32 << 20, 4096);
    let data: Bytes = (0..size).map(|i| (i * 31 % 251) as u8).collect::<Vec<u8>>().into();
    let sha256 = Sha256::of(&data);
    let (began, cpu) = (Instant::now(), cpu_s());
    for group in (0..files).collect::<Vec<_>>().chunks(streams) {
        for item in group {
            let path = format!("{name}/{}/{item}", item / 50);
            let item = *item as u32;
            landing.begin(FileSpec { item, path, size: size as u64, sha256, mtime: Some(1) });
        }
        for start in (0..size).step_by(CHUNK) {
            for item in group {
                let data = data.slice(start..(start + CHUNK).min(size));
                let permit = window.acquire(data.len() as u64).await;
                let (item, offset) = (*item as u32, start as u64);
                landing.chunk(Chunk { item, offset, data, permit, source: 0 }).await;
            }
        }
    }
    for _ in 0..files {
        match outcomes.recv().await {
            Some(Outcome::Verified { .. }) => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_s() - cpu);
    let megabytes = (files * size) as f64 / 1e6;
    println!(
        "{name}: {files} files in {seconds:.2} s, {:.0} MB/s, {:.0} files/s, CPU {cpu:.2} s, {:.2} s per GB",
        megabytes / seconds,
        files as f64 / seconds,
        cpu / megabytes * 1e3,
    );
    landing.finish()?;
    Ok(())
}

/// CPU time of this process so far, in seconds.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
