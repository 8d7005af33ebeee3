//! The deletions of a dry run, found without writing.
//!
//! The new state is merged as in a real run, assuming that every planned file is fetched.

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::Events;

use super::pool::FetchPlan;
use super::report::ReportBuilder;
use super::session::Session;
use super::state::State;
use super::subtract::Tally;
use super::{Run, clean, commit};
use crate::settings::Clean;

impl Run<'_> {
    /// Files that would be deleted, with their sizes. If the guard would refuse, a warning says so instead.
    pub(super) fn preview(
        &self,
        session: &Session,
        state: &State,
        wanted: &mut FetchPlan,
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) -> Result<Vec<(String, u64)>, CommandError> {
        let tree = &*session.tree;
        let mut deletions = match self.settings.keep.clean {
            Clean::Nothing => Vec::new(),
            _ => clean::begun(&session.own, tree, state)?,
        };
        let (foreign, clean) = self.others(tree, state, &|place| !self.is_refused(place), report, events);
        if !clean {
            return Ok(deletions);
        }
        for file in wanted.subtraction.fetch.clone() {
            wanted.subtraction.done.insert(file);
        }
        let positions = (0..self.offers.len()).filter(|position| !self.is_refused(*position));
        let publications =
            positions.map(|position| self.publication(session, position)).collect::<Result<Vec<_>, CommandError>>()?;
        let named_elsewhere =
            |path: &str| self.pins.names(path) || foreign.as_ref().is_none_or(|foreign| foreign.names(path));
        let orphans = wanted.subtraction.orphans.clone();
        let done = &wanted.subtraction.done;
        let commit = self.commit(
            session,
            state,
            done,
            orphans,
            &publications,
            &|place| !self.is_refused(place),
            &named_elsewhere,
        );
        let preview = commit::preview(&commit)?;
        let untracked = match self.settings.keep.clean {
            Clean::Untracked => self.untracked(tree, &preview.paths, &preview.suites, &named_elsewhere)?,
            _ => Vec::new(),
        };
        match preview.counts.guarded(&self.settings.keep.guard, Tally::of(&untracked)) {
            Ok(()) => deletions.extend(preview.expired.into_iter().chain(untracked)),
            Err(error) => report.warn(events, format!("the run would end with exit code 2: {error}")),
        }
        deletions.sort_unstable();
        deletions.dedup();
        Ok(deletions)
    }
}
