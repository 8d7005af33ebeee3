//! One pass over an index, timed: `rewrite OLD NEW [PATCH...]`, patches as ed scripts, oldest first.
//! `LEVEL=apt`, `THREADS=n` and `CLOCKS=1` in the environment.

use std::path::Path;
use std::time::Instant;

use fullbore_apt::frames::Level;
use fullbore_apt::rewrite::{Rewrite, rewrite};
use fullbore_debian::pdiff::Edits;
use fullbore_engine::stage::Ledger;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(old), Some(new)) = (arguments.next(), arguments.next()) else {
        return Err("rewrite OLD NEW [PATCH...]".into());
    };
    let steps: Result<Vec<Edits>, Box<dyn std::error::Error>> =
        arguments.map(|patch| Ok(Edits::parse(std::fs::read(patch)?)?)).collect();
    let began = Instant::now();
    let edits = Edits::chain(steps?)?;
    let chained = began.elapsed();
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let ledger = if variable("CLOCKS").is_empty() { Ledger::off() } else { Ledger::new() };
    let job = Rewrite {
        old: Path::new(&old),
        old_form: None,
        edits: &edits,
        new: Path::new(&new),
        new_form: None,
        level: if variable("LEVEL") == "best" { Level::Best } else { Level::Fast },
        expected: None,
        ledger: Some(&ledger),
        threads: variable("THREADS").parse().unwrap_or(0),
    };
    let made = rewrite(&job)?;
    println!("{:.3} s ({:.3} s to join patches) {made:?}", began.elapsed().as_secs_f64(), chained.as_secs_f64());
    for stage in ledger.reading().stages.iter().filter(|stage| stage.items > 0) {
        let ms = |ns: u64| ns / 1_000_000;
        println!(
            "{:12} items {:6} compute {:5} ms, starved {:5}, blocked {:5}, device {:5} in {} calls",
            stage.name,
            stage.items,
            ms(stage.compute_ns),
            ms(stage.starved_ns),
            ms(stage.blocked_ns),
            ms(stage.device_ns),
            stage.device_calls
        );
    }
    Ok(())
}
