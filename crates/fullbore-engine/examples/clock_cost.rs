//! What do the engine's clocks cost? A pipeline of six stages at 100,000 items
//! a second, with and without clocks, in alternating pairs; CPU time of the
//! whole process, the sampler included. Saturated: the last stage sets the
//! pace and everyone before it is blocked. Starved: the source sets the pace
//! and everyone behind it waits. The claim is a median ratio of at most 1.01.
//!
//! cargo run --release -p fullbore-engine --example clock_cost [PAIRS [ITEMS]]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::pipeline::channel;
use fullbore_engine::stage::{Kind, Ledger, StageClock};
use fullbore_engine::verdict::{Sampler, SamplerConfig};

const STAGES: usize = 6;
const ITEMS_PER_S: u64 = 100_000;
const CAPACITY: usize = 64;
/// A timer cannot fire every 10 microseconds, so items come in small bursts.
const BURST: u64 = 10;
/// Work per item and stage: a sum over this many bytes, about 1 microsecond.
const ITEM_BYTES: usize = 1024;

#[derive(Clone, Copy, PartialEq)]
enum Pace {
    Starved,
    Saturated,
}

type Item = Arc<[u8; ITEM_BYTES]>;

struct Pacer {
    began: Instant,
    items: u64,
}

impl Pacer {
    fn step(&mut self) {
        self.items += 1;
        if self.items.is_multiple_of(BURST) {
            let due = Duration::from_nanos(self.items * 1_000_000_000 / ITEMS_PER_S);
            std::thread::sleep(due.saturating_sub(self.began.elapsed()));
        }
    }
}

fn work(clock: &StageClock, item: &Item) {
    let sum = item.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    std::hint::black_box(sum);
    clock.add_items(1, ITEM_BYTES as u64);
}

fn process_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CPU time of one run.
fn run(ledger: &Ledger, pace: Pace, items: u64) -> Result<Duration, Box<dyn std::error::Error>> {
    let before = process_cpu();
    let clocks: Vec<_> = (0..STAGES).map(|number| ledger.stage(&format!("stage {number}"), Kind::Thread)).collect();
    let mut threads = Vec::new();
    let mut upstream = None;
    for number in 0..STAGES {
        let clock = clocks[number].clone();
        let (sender, receiver) = match clocks.get(number + 1) {
            Some(next) => {
                let (sender, receiver) = channel::<Item>(CAPACITY, &clock, next);
                (Some(sender), Some(receiver))
            }
            None => (None, None),
        };
        let input = std::mem::replace(&mut upstream, receiver);
        let mut pacer = Pacer { began: Instant::now(), items: 0 };
        let first = number == 0;
        let paced = if pace == Pace::Starved { first } else { number + 1 == STAGES };
        threads.push(std::thread::spawn(move || {
            clock.adopt_thread();
            let item: Item = Arc::new([7; ITEM_BYTES]);
            let mut input = input;
            let mut left = items;
            let mut next = || match &mut input {
                Some(input) => input.recv_blocking(),
                None if left > 0 => {
                    left -= 1;
                    Some(item.clone())
                }
                None => None,
            };
            while let Some(item) = next() {
                work(&clock, &item);
                if paced {
                    pacer.step();
                }
                if let Some(sender) = &sender {
                    sender.send_blocking(item).map_err(|error| error.to_string())?;
                }
            }
            Ok::<(), String>(())
        }));
    }
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    Ok(process_cpu() - before)
}

/// CPU seconds with and without clocks.
fn pair(pace: Pace, items: u64, clocks_first: bool) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let with = || -> Result<f64, Box<dyn std::error::Error>> {
        let ledger = Ledger::new();
        let before = process_cpu();
        let sampler = Sampler::start(&ledger, SamplerConfig::default())?;
        run(&ledger, pace, items)?;
        std::hint::black_box(sampler.finish());
        Ok((process_cpu() - before).as_secs_f64())
    };
    let without = || run(&Ledger::off(), pace, items).map(|time| time.as_secs_f64());
    if clocks_first {
        let with = with()?;
        Ok((with, without()?))
    } else {
        let without = without()?;
        Ok((with()?, without))
    }
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let mut numbers = numbers.fuse();
    let pairs = numbers.next().unwrap_or(20);
    let items = numbers.next().unwrap_or(ITEMS_PER_S);
    let mut within = true;
    for (name, pace) in [("saturated", Pace::Saturated), ("starved", Pace::Starved)] {
        pair(pace, items / 10, true)?; // warm up
        let mut ratios = Vec::new();
        let (mut least_with, mut least_without) = (f64::INFINITY, f64::INFINITY);
        for number in 0..pairs {
            let (with, without) = pair(pace, items, number % 2 == 0)?;
            ratios.push(with / without);
            least_with = least_with.min(with);
            least_without = least_without.min(without);
        }
        ratios.sort_by(f64::total_cmp);
        let at = |share: f64| ratios[((ratios.len() - 1) as f64 * share).round() as usize];
        let median = at(0.5);
        println!(
            "{name}: CPU with clocks / without, median of {pairs} pairs {median:.4} \
             (quartiles {:.4} to {:.4}); least of all runs {least_with:.4} s / {least_without:.4} s = {:.4}",
            at(0.25),
            at(0.75),
            least_with / least_without,
        );
        within &= median <= 1.01;
    }
    Ok(if within { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
