//! Mounts a disk of a given speed until standard input ends; see `fullbore_testkit::slowdisk`.
//!
//!     fullbore-slowdisk MOUNT BACKING --rate BYTES_PER_S [--size BYTES] [--read-rate BYTES_PER_S] [--flush-ms MS]
//!
//! Prints the block device when it is mounted. Lines on standard input: `rate N`, `read-rate N`,
//! `flush-ms N`, `broken 0|1`, `written` (prints the bytes written so far).

use std::{
    io::{self, BufRead, Write},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use fullbore_testkit::slowdisk::SlowDisk;

const USAGE: &str = "usage: fullbore-slowdisk MOUNT BACKING --rate BYTES_PER_S [--size BYTES] [--read-rate BYTES_PER_S] [--flush-ms MS]";

/// Default size; the backing file is sparse.
const SIZE_BYTES: u64 = 16 << 30;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fullbore-slowdisk: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mount, backing, options @ ..] = &arguments[..] else {
        return Err(USAGE.into());
    };
    let (mut size, mut rate, mut settings) = (SIZE_BYTES, 0, Vec::new());
    for option in options.chunks(2) {
        let [name, value] = option else {
            return Err(USAGE.into());
        };
        match name.as_str() {
            "--size" => size = value.parse()?,
            "--rate" => rate = value.parse()?,
            "--read-rate" | "--flush-ms" => settings.push(format!("{} {value}", name.trim_start_matches('-'))),
            _ => return Err(USAGE.into()),
        }
    }
    let disk = SlowDisk::mount(Path::new(mount), Path::new(backing), size, rate)?;
    for setting in &settings {
        apply(&disk, setting)?;
    }
    println!("{}", disk.device());
    io::stdout().flush()?;
    for line in io::stdin().lock().lines() {
        apply(&disk, line?.trim())?;
    }
    Ok(())
}

fn apply(disk: &SlowDisk, setting: &str) -> Result<(), Box<dyn std::error::Error>> {
    if setting == "written" {
        println!("{}", disk.written_bytes());
        return Ok(io::stdout().flush()?);
    }
    let (name, value) = setting.split_once(' ').ok_or("not NAME NUMBER")?;
    let value: u64 = value.parse()?;
    match name {
        "rate" => disk.set_rate(value),
        "read-rate" => disk.set_read_rate(value),
        "flush-ms" => disk.set_flush(Duration::from_millis(value)),
        "broken" => disk.set_broken(value > 0),
        _ => return Err(format!("{name}: no such setting").into()),
    }
    Ok(())
}
