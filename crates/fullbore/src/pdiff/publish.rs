//! `fullbore pdiff publish`: what is said of it.

use std::time::Instant;

use fullbore_apt::pdiff::publish::{self, PublishSettings, Published};
use fullbore_engine::run::report::{IndexPatches, PatchesChange, Summary, Totals};
use fullbore_engine::run::{CommandError, Event, Events as _};
use fullbore_engine::units;

use crate::cli::PdiffPublishArgs;
use crate::progress::Screen;
use crate::settings::Environment;

pub(super) fn run(
    arguments: &PdiffPublishArgs,
    environment: &Environment,
    screen: &mut Screen,
) -> Result<(), CommandError> {
    let started = Instant::now();
    let settings = PublishSettings {
        dir: arguments.dir.clone(),
        old: arguments.old.clone(),
        state: arguments.state.clone(),
        merged: arguments.merged,
        patches_max: arguments.max_patches,
        keep_hours: arguments.keep_hours,
        exclude: arguments.exclude.iter().map(|filter| filter.0.clone()).collect(),
        durability: arguments.durability.unwrap_or_default(),
        now_unix_s: environment.source_date_epoch.unwrap_or_else(|| jiff::Timestamp::now().as_second()),
    };
    let published = publish::run(&settings, &mut |warning| screen.warn(warning))?;
    report(&published, arguments, started, screen);
    Ok(())
}

fn report(published: &Published, arguments: &PdiffPublishArgs, started: Instant, screen: &mut Screen) {
    let outcomes = &published.outcomes;
    for outcome in outcomes {
        if arguments.json {
            screen.emit(Event::Index(outcome.clone()));
        } else if !arguments.quiet {
            screen.print_line(&sentence(outcome));
        }
    }
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    if arguments.json {
        screen.finish(&summary(published, arguments, duration_ms));
    }
    let added: Vec<&IndexPatches> = outcomes.iter().filter(|outcome| outcome.added.is_some()).collect();
    if !arguments.json && !arguments.quiet {
        let bytes = units::bytes(added.iter().map(|outcome| outcome.download_bytes).sum());
        let time = units::duration(duration_ms);
        let next = if published.changes_release {
            " Now make the Release, which lists each X.diff/Index, and sign it."
        } else {
            ""
        };
        let indexes = units::several(outcomes.len() as u64, "index", "indexes");
        screen.print_line(&format!("{indexes} in {time}, {} with a new patch, {bytes} in all.{next}", added.len()));
    }
}

fn summary(published: &Published, arguments: &PdiffPublishArgs, duration_ms: u64) -> Summary {
    let added = published.outcomes.iter().filter(|outcome| outcome.added.is_some());
    let (files, written_bytes) = added.fold((0, 0), |(files, bytes), one| (files + 1, bytes + one.download_bytes));
    Summary {
        command: "pdiff publish".to_owned(),
        version: crate::VERSION.to_owned(),
        dir: arguments.dir.display().to_string(),
        started_unix_s: jiff::Timestamp::now().as_second() - (duration_ms / 1000) as i64,
        duration_ms,
        changed: files > 0,
        totals: Totals { files, written_bytes, ..Totals::default() },
        ..Summary::default()
    }
}

fn sentence(outcome: &IndexPatches) -> String {
    let IndexPatches { index, patches, merged, .. } = outcome;
    let from = units::several(*patches, "state", "states");
    let states = match (patches, merged) {
        (0, _) => "no patches yet".to_owned(),
        (_, 0) => format!("patches from {from}"),
        _ => format!("patches from {from}, merged ones from {merged}"),
    };
    match (outcome.what, &outcome.added) {
        (PatchesChange::First, _) => format!("{index}: first state, recorded for the next run"),
        (PatchesChange::Whole, _) => format!("{index}: no patch to this state; clients fetch it whole"),
        (PatchesChange::Unchanged, _) => format!("{index}: unchanged; {states}"),
        (_, Some(name)) => format!("{index}: {name}, {}; {states}", units::bytes(outcome.download_bytes)),
        (_, None) => format!("{index}: {states}"),
    }
}
