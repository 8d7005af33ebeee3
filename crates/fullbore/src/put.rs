//! `fullbore put`: files and directories into a Tahoe-LAFS grid, or (`s3`) a bucket.
//!
//! [`run`] is the walk: settings and secrets (`settings`) → what is to be put (`tree`) → all files at once,
//! directories when their children have caps (`work`) → the list of caps, caps to stdout, and what limited
//! the run. Caps go nowhere else.

mod found;
mod list;
mod report;
mod s3;
mod settings;
mod spool;
mod tree;
mod work;

use std::time::{Duration, Instant};

use fullbore_engine::verdict::remote::Verdict;
use fullbore_lafs::verdict::{Facts, judge};
use serde_json::json;

use crate::bucket;
use crate::cli::PutArgs;
use crate::grid::{amount, say, say_evidence, server_table, start_log, tell, verdict_table};
use crate::program::process_costs;
use crate::stdio;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use list::List;
use settings::PutSettings;
use tree::{Choice, Item, Listing};
use work::{Done, Workplace};

/// Puts everything; the result is the exit code.
///
/// # Errors
/// See [`ErrorKind`]. Files that could be put have their caps printed all the same.
pub fn run(arguments: &PutArgs) -> Result<u8, CommandError> {
    start_log(&arguments.grid);
    if let Some(address) = arguments.paths.last().filter(|path| bucket::is_address(path.as_os_str())) {
        return s3::run(arguments, address.as_os_str());
    }
    if arguments.s3.any() || arguments.s3_put.any() {
        return Err(CommandError::usage("a flag of S3 stores, and no address of one: s3://BUCKET/PREFIX comes last"));
    }
    let settings = PutSettings::resolve(arguments)?;
    let begun = Instant::now();
    let choice = Choice { copy_links: arguments.copy_links, with_snapshots: arguments.with_snapshots };
    let listing = tree::list(&arguments.paths, choice)?;
    tell_left_out(arguments, &listing);
    // A directory's cap would say that nothing is missing.
    if let Some((path, error)) = listing.unreadable.first() {
        return Err(CommandError::disk(path, error));
    }
    let items = listing.items;
    // Behind the items, of which it is none: it may be in a directory that is put.
    let mut list = List::open(arguments.caps.as_deref())?;
    let workplace = Workplace::new(arguments, &settings)?;
    let result = put(arguments, &workplace, &items, &mut list, begun);
    workplace.end(matches!(result, Ok(0)));
    result
}

/// Tells what is no part of anything.
fn tell_left_out(arguments: &PutArgs, listing: &Listing) {
    for (path, what) in &listing.left_out {
        say(&arguments.grid, &format!("warning: {}: {what}, left out", path.display()));
    }
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let mut left_out = Vec::new();
    if let count @ 1.. = listing.private.len() {
        left_out.push(format!("{count} private or unfinished name{} of mirrors", plural(count)));
    }
    if listing.snapshots_left_out > 0 {
        left_out.push("snapshots, which --with-snapshots puts".to_owned());
    }
    if !left_out.is_empty() {
        say(&arguments.grid, &format!("left out: {}", left_out.join("; ")));
    }
}

/// The walk, from the connections on.
fn put(
    arguments: &PutArgs,
    workplace: &Workplace<'_>,
    items: &[Item],
    list: &mut List,
    begun: Instant,
) -> Result<u8, CommandError> {
    // Without a list a cap is on stdout alone: somebody has to read it, so even a closed pipe ends the run.
    let must_be_read = |printed: std::io::Result<()>| match printed {
        Err(error) if arguments.caps.is_none() => Err(stdio::stdout_error(&error)),
        _ => Ok(()),
    };
    let mut failed = Vec::new();
    let mut totals = Totals::default();
    let result = workplace.put_all(items, &mut |done: Done| {
        for trouble in &done.troubles {
            say(&arguments.grid, &format!("warning: {}: {trouble}", done.path.display()));
        }
        match done.result {
            Ok(cap) => {
                totals.add(done.size, done.sent_bytes, done.is_directory);
                let cap = cap.to_text();
                list.add(&done.path, done.size, &cap);
                if arguments.grid.json {
                    must_be_read(stdio::print_json(&list::entry(&done.path, done.size, &cap, Some(done.happiness))))?;
                } else if done.is_argument {
                    must_be_read(stdio::print_line(&cap))?;
                }
            }
            Err(error) => failed.push((done.path, error)),
        }
        Ok(())
    });
    list.publish(result.is_ok() && failed.is_empty())?;
    let facts = workplace.facts(begun.elapsed(), totals.sent_bytes);
    let reported = if arguments.dry_run { 0 } else { conclude(arguments, &totals, &facts, workplace, failed.len()) };
    result?;
    fail(failed, totals.files + totals.directories).map(|code| code.max(reported))
}

/// What was done.
#[derive(Debug, Default)]
struct Totals {
    files: u64,
    directories: u64,
    bytes: u64,
    sent_bytes: u64,
}

impl Totals {
    fn add(&mut self, bytes: u64, sent_bytes: u64, is_directory: bool) {
        if is_directory {
            self.directories += 1;
        } else {
            self.files += 1;
            self.bytes += bytes;
        }
        self.sent_bytes += sent_bytes;
    }
}

/// The report, and the last line or the last line of JSON. Gives the exit code of the report.
fn conclude(arguments: &PutArgs, totals: &Totals, facts: &Facts, workplace: &Workplace<'_>, failed: usize) -> u8 {
    let verdict = judge(facts);
    let reported = report::write(arguments, || report::of_grid(totals, facts, &verdict, &workplace.given_up(), failed));
    let Verdict { limit, reason, .. } = &verdict;
    if arguments.grid.json {
        let (cpu_ms, peak_rss_bytes) = process_costs();
        let ms = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
        let given_up: Vec<_> =
            workplace.given_up().into_iter().map(|(name, reason)| json!({"name": name, "reason": reason})).collect();
        tell(&json!({
            "event": "summary",
            "files": totals.files, "directories": totals.directories, "failed": failed,
            "bytes": totals.bytes, "sent_bytes": totals.sent_bytes,
            "duration_ms": ms(facts.wall), "cpu_ms": cpu_ms, "peak_rss_bytes": peak_rss_bytes,
            "stages": {
                "source_ms": ms(facts.costs.source), "hash_ms": ms(facts.costs.hash),
                "encode_ms": ms(facts.costs.encode), "memory_wait_ms": ms(facts.costs.memory),
            },
            "servers": server_table(&facts.servers), "given_up": given_up,
            "verdict": verdict_table(&verdict),
        }));
        return reported;
    }
    let plural = if totals.files == 1 { "" } else { "s" };
    let shares = fullbore_engine::run::units::bytes(totals.sent_bytes);
    say(
        &arguments.grid,
        &format!(
            "{} file{plural}, {}, {shares} of shares. Limited by: {limit} ({reason}).",
            totals.files,
            amount(totals.bytes, facts.wall)
        ),
    );
    say_evidence(&arguments.grid, &verdict);
    reported
}

/// The exit code, or the error that says what is missing.
fn fail(mut failed: Vec<(std::path::PathBuf, CommandError)>, done: u64) -> Result<u8, CommandError> {
    if failed.is_empty() {
        return Ok(0);
    }
    let (path, mut first) = failed.remove(0);
    first.message = format!("{}: {}", path.display(), first.message);
    if failed.is_empty() && done == 0 {
        return Err(first);
    }
    let mut error = first;
    if done > 0 && error.kind != ErrorKind::Interrupted {
        error.kind = ErrorKind::Partial;
    }
    for (path, other) in failed {
        error = error.context(format_args!("{}: {}", path.display(), other.message));
    }
    Err(error)
}
