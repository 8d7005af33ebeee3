//! A far end that talks without an end does not fill the memory of this one.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod copy_harness;
#[path = "copy/far_end.rs"]
mod far_end;

use std::cell::Cell;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use copy_harness::said;
use far_end::{against, relayed};
use fullbore_copy::wire::{Message, Problem, ProblemKind};

/// Problems that the far end tells of.
const FLOOD: u64 = 1_000_000;
/// What they may cost, in bytes.
const MOST_BYTES: u64 = 100 << 20;

/// What the program with this argument had in memory at most, in bytes (proc(5), `VmHWM`).
fn peak_bytes(argument: &str) -> u64 {
    let program = fs::canonicalize(env!("CARGO_BIN_EXE_fullbore")).unwrap();
    let is_wanted = |process: &Path| {
        let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
        let has = arguments.split(|byte| *byte == 0).any(|own| own == argument.as_bytes());
        has && fs::read_link(process.join("exe"))
            .is_ok_and(|exe| exe.as_os_str().as_bytes() == program.as_os_str().as_bytes())
    };
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let process = processes.into_iter().find(|process| is_wanted(process)).expect("the program runs");
    let status = fs::read_to_string(process.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn problem(number: u64) -> Message {
    let (path, text) = (format!("{number:0100}").into_bytes(), "no such file".to_owned());
    Message::Problem(Problem { kind: ProblemKind::Unwritable, path, text })
}

#[test]
fn endless_problems_of_a_far_end_fill_no_memory() {
    // The far end sends, and receives.
    for pull in [true, false] {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), "x").unwrap();
        let there = format!("host:{}/", place.path().display());
        let paths = if pull { [there.as_str(), "dst"] } else { ["src/", there.as_str()] };
        let (known, figures) = (there.clone(), Arc::new(Mutex::new(None)));
        let told = figures.clone();
        let far = move |near| {
            let is_first = Cell::new(true);
            relayed(near, |message| {
                let begins = matches!(message, Message::List(_) | Message::Answer(_)) && is_first.replace(false);
                let before = if begins { peak_bytes(&known) } else { 0 };
                let (known, told) = (known.clone(), told.clone());
                let measure = move |number| {
                    if number == FLOOD - 1 {
                        *told.lock().unwrap() = Some((before, peak_bytes(&known)));
                    }
                    problem(number)
                };
                (0..if begins { FLOOD } else { 0 }).map(measure).chain([message])
            });
        };
        let (_place, output) = against(&["copy", "--durability", "none", paths[0], paths[1]], far);
        let text = said(&output);
        // The copy goes on; what is wrong is counted, and the first of it named.
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(&FLOOD.to_string()), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("no such file")).count(), 20, "{text}");
        let (before, after) = figures.lock().unwrap().expect("the flood came to its end");
        assert!(after - before < MOST_BYTES, "from {before} to {after} bytes, pull: {pull}");
    }
}
