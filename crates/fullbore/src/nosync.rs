//! `fullbore nosync`: what is said about a run without syncs, and its exit code.
//!
//! Says nothing when all went well and `--report` is not asked for: it stands before other
//! commands in scripts whose output somebody reads.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::units;
use fullbore_install::nosync::{self, Call, Ended, FlushCost, Job, Notice, Outcome, Process, StartError, Tally};
use fullbore_install::{NO_NEW_PRIVILEGES, still_syncing};

use crate::cli::NosyncArgs;
use crate::stdio::{self, say, say_error};

/// As env, nice, timeout and chroot end when it is them that fail, not the command.
pub const EXIT_NOT_RUN: u8 = 125;
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;

/// Runs the command; the result is the exit code. Ends by the same signal if the command did.
pub fn run(arguments: &NosyncArgs) -> u8 {
    if !arguments.force
        && let Some(manager) = nosync::service_manager()
    {
        let error = CommandError::usage(format_args!("process 1 ({manager}) could start services here"))
            .context("a service started by the command would run without syncs until it ends")
            .hint("forbid starts with a policy-rc.d, use a chroot or container, or pass --force");
        say_error(&error);
        return EXIT_NOT_RUN;
    }
    let mut words = arguments.command.iter().cloned();
    let job = Job {
        program: words.next().unwrap_or_else(OsString::new),
        arguments: words.collect(),
        counted: arguments.report,
        sync_later: arguments.no_final_sync,
    };
    stdio::pass_on_closed_stdout();
    let (program, sync_later) = (job.program.display().to_string(), job.sync_later);
    tracing::debug!(program, counted = job.counted, sync_later, "running with sync calls answered at once");
    match nosync::run(&job, &mut |notice| tell(&notice)) {
        Ok(outcome) => {
            let (synced, sync_ms) = (outcome.sync.count, outcome.sync_time.as_millis());
            let survivors = outcome.survivors.len();
            tracing::debug!(synced, sync_ms, survivors, answered = outcome.answered, "the command has ended");
            end(&outcome, arguments)
        }
        Err(error) => {
            say_error(&CommandError::from_error(ErrorKind::Usage, &error));
            match error {
                StartError::Program { error, .. } if error.kind() == io::ErrorKind::NotFound => EXIT_NOT_FOUND,
                StartError::Program { .. } => EXIT_NOT_EXECUTABLE,
                _ => EXIT_NOT_RUN,
            }
        }
    }
}

fn tell(notice: &Notice<'_>) {
    match notice {
        Notice::Probed(costs) => {
            for cost in *costs {
                // A thousand is about what five packages make.
                let thousand = units::time(cost.flush.saturating_mul(1000));
                note(&format!("{}: 1,000 flushes cost about {thousand}, {}", path(cost), gain(cost.flush)));
            }
        }
        Notice::Answered => {
            note(
                "an outer nosync already answers the sync calls: this one can neither count nor save any, and the outer one syncs",
            );
        }
        Notice::NoNewPrivileges => {
            note(NO_NEW_PRIVILEGES);
        }
        Notice::Waiting(survivors) => {
            note(&format!("still running, and waited for, because its sync calls are counted: {}", names(survivors)));
        }
        Notice::Syncing(path) => note(&still_syncing(path)),
    }
}

/// What may be expected, in words.
fn gain(flush: Duration) -> &'static str {
    /// Measured with apt-get: flushes of 0.24 ms made it 1.2 times as slow, those of 5 ms 5.7 times.
    /// The bounds between are guesses.
    const CHEAP: Duration = Duration::from_micros(500);
    const EXPENSIVE: Duration = Duration::from_millis(3);
    match flush {
        cost if cost < CHEAP => "a cheap disk to sync: expect little",
        cost if cost < EXPENSIVE => "expect package installation to gain noticeably",
        _ => "expect package installation to be several times as fast",
    }
}

/// Tells how the run ended; the command's own failure decides the exit code before anything else.
fn end(outcome: &Outcome, arguments: &NosyncArgs) -> u8 {
    if let Some(tally) = &outcome.tally {
        report(outcome, tally, arguments.no_final_sync || outcome.answered);
    }
    for path in &outcome.sync.opened_late {
        note(&format!(
            "{}: mounted during the run; synced now, but earlier write errors may have gone unseen",
            path.display()
        ));
    }
    let (denied, missed): (Vec<_>, Vec<_>) =
        outcome.sync.missed.iter().partition(|(_, error)| error.kind() == io::ErrorKind::PermissionDenied);
    if !denied.is_empty() {
        let paths: Vec<String> = denied.iter().map(|(path, _)| path.display().to_string()).collect();
        let paths = paths.join(", ");
        note(&format!(
            "not synced, as this user may not open it: {paths}; if the command has written there, run `sync`"
        ));
    }
    for (path, error) in &outcome.sync.dead_before {
        note(&format!("{}: not synced: {error}, as at the start", path.display()));
    }
    for path in &outcome.out_of_sight {
        note(&format!("{}: not synced: only a program that is still running sees it", path.display()));
    }
    if outcome.sync.unseen {
        note("there is no /proc here: all file systems were synced, but write errors of some may have gone unseen");
    }
    for path in &outcome.unmounted {
        note(&format!(
            "{}: mounted and unmounted during the run; the kernel has written it, but errors may have gone unseen",
            path.display()
        ));
    }
    let mut exit_code = 0;
    if !outcome.survivors.is_empty() {
        let mut error = CommandError::new(
            ErrorKind::Partial,
            format_args!(
                "programs have outlived the command, and still run without syncs: {}",
                names(&outcome.survivors)
            ),
        );
        error = if outcome.tally.is_some() {
            error.context("they have ended by now")
        } else {
            error.hint("restart them outside of nosync: they run without syncs until they end")
        };
        say_error(&error);
        exit_code = error.exit_code();
    }
    // A file system that failed may not even open: then nobody knows what is on its disk.
    let missed = missed.iter().map(|(path, error)| format!("{}: not synced: {error}", path.display()));
    let failed = outcome.sync.failed.iter().map(|(path, error)| format!("{}: final sync: {error}", path.display()));
    for message in missed.chain(failed) {
        let error = CommandError::new(ErrorKind::Disk, message)
            .context("data written there since the start may not be on disk");
        say_error(&error);
        exit_code = error.exit_code();
    }
    match outcome.ended {
        Ended::Status(0) => exit_code,
        Ended::Status(status) => status,
        Ended::Signal(signal) => {
            nosync::die_of(signal);
            u8::try_from(signal).unwrap_or(0).saturating_add(128)
        }
    }
}

fn report(outcome: &Outcome, tally: &Tally, sync_later: bool) {
    let counts: Vec<(Call, u64)> = tally.by_call().collect();
    let list = |is_answered: bool| {
        let chosen = counts.iter().filter(|(call, _)| call.is_answered() == is_answered);
        chosen.map(|(call, count)| format!("{} {}", units::count(*count), call.name())).collect::<Vec<_>>().join(", ")
    };
    match tally.answered() {
        _ if outcome.answered => {}
        0 => note("0 sync calls: nothing to save"),
        answered => {
            let calls = units::noun(answered, "call", "calls");
            note(&format!("{} sync {calls} answered at once: {}", units::count(answered), list(true)));
            if !outcome.costs.is_empty() {
                note(&format!("they would have cost at least about {}", units::time(tally.estimate(&outcome.costs))));
            }
        }
    }
    let synchronous = list(false);
    if !synchronous.is_empty() {
        note(&format!("unchanged, and still synchronous: {synchronous}"));
    }
    if !sync_later {
        let count = outcome.sync.count;
        let systems = units::several(count as u64, "file system", "file systems");
        note(&format!("final sync of {systems}: {}", units::time(outcome.sync_time)));
    }
}

fn names(processes: &[Process]) -> String {
    /// What fits a line.
    const SHOWN: usize = 8;
    let shown = processes.iter().take(SHOWN).map(|process| format!("{} ({})", process.name, process.pid));
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if let Some(more) = processes.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn path(cost: &FlushCost) -> String {
    cost.path.display().to_string()
}

fn note(line: &str) {
    say(&format!("nosync: {line}"));
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use nosync::SyncReport;

    fn exit_code_after(ended: Ended, missed: io::ErrorKind) -> u8 {
        let command = vec!["true".into()];
        let arguments = NosyncArgs { report: false, force: false, no_final_sync: false, command };
        let outcome = Outcome {
            ended,
            survivors: Vec::new(),
            sync: SyncReport { missed: vec![(PathBuf::from("/mnt"), missed.into())], ..SyncReport::default() },
            sync_time: Duration::ZERO,
            out_of_sight: Vec::new(),
            unmounted: Vec::new(),
            tally: None,
            answered: false,
            costs: Vec::new(),
        };
        end(&outcome, &arguments)
    }

    #[test]
    fn a_file_system_that_cannot_be_opened_at_the_end_fails_the_run() {
        for kind in [io::ErrorKind::Other, io::ErrorKind::TimedOut, io::ErrorKind::NotConnected] {
            assert_eq!(exit_code_after(Ended::Status(0), kind), ErrorKind::Disk.exit_code(), "{kind}");
            assert_eq!(exit_code_after(Ended::Status(3), kind), 3, "{kind}");
        }
        // Then the user cannot have written much there either.
        assert_eq!(exit_code_after(Ended::Status(0), io::ErrorKind::PermissionDenied), 0);
    }
}
