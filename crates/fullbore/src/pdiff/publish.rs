//! `fullbore pdiff publish`: what is said of it.

use std::time::Instant;

use fullbore_apt::pdiff::publish::{self, Outcome, PublishSettings, Published, What};
use fullbore_engine::run::{CommandError, Events as _, units};

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
            screen.print_json(outcome);
        } else if !arguments.quiet {
            screen.print_line(&sentence(outcome));
        }
    }
    let added: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.added.is_some()).collect();
    if !arguments.json && !arguments.quiet {
        let bytes = units::bytes(added.iter().map(|outcome| outcome.download_bytes).sum());
        let time = units::duration(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
        let next = if published.changes_release {
            " Now make the Release, which lists each X.diff/Index, and sign it."
        } else {
            ""
        };
        let indexes = units::several(outcomes.len() as u64, "index", "indexes");
        screen.print_line(&format!("{indexes} in {time}, {} with a new patch, {bytes} in all.{next}", added.len()));
    }
}

fn sentence(outcome: &Outcome) -> String {
    let Outcome { index, patches, merged, .. } = outcome;
    let from = units::several(*patches as u64, "state", "states");
    let states = match (patches, merged) {
        (0, _) => "no patches yet".to_owned(),
        (_, 0) => format!("patches from {from}"),
        _ => format!("patches from {from}, merged ones from {merged}"),
    };
    match (outcome.what, &outcome.added) {
        (What::First, _) => format!("{index}: first state, kept for the next run"),
        (What::Whole, _) => format!("{index}: no patch to this state; clients fetch it whole"),
        (What::Unchanged, _) => format!("{index}: unchanged; {states}"),
        (_, Some(name)) => format!("{index}: {name}, {}; {states}", units::bytes(outcome.download_bytes)),
        (_, None) => format!("{index}: {states}"),
    }
}
