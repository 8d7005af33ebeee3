//! What a run would delete, found out without writing (`--dry-run`).
//!
//! The new state is merged as for a real run, on the supposition that everything planned comes.

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::Events;

use super::account::Account;
use super::pool::Wanted;
use super::session::Session;
use super::state::State;
use super::subtract::Tally;
use super::{Run, clean, commit, state_error};
use crate::settings::Clean;

impl Run<'_> {
    /// The files that would be deleted, with their sizes. What the guard would refuse is none of them;
    /// a warning tells of it.
    pub(super) fn foretell(
        &self,
        session: &Session,
        state: &State,
        wanted: &mut Wanted,
        account: &mut Account,
        events: &mut dyn Events,
    ) -> Result<Vec<(String, u64)>, CommandError> {
        let root = &session.root;
        let mut doomed = clean::begun(root, state).map_err(|error| state_error(&error))?;
        let (foreign, clean) = self.others(root, state, account, events);
        if !clean {
            return Ok(doomed);
        }
        for file in wanted.subtraction.fetch.clone() {
            wanted.subtraction.done.insert(file);
        }
        let places = 0..self.offers.len();
        let publications =
            places.map(|place| self.publication(session, place)).collect::<Result<Vec<_>, CommandError>>()?;
        let named_elsewhere = |path: &str| foreign.as_ref().is_none_or(|foreign| foreign.names(path));
        let orphans = wanted.subtraction.orphans.clone();
        let done = &wanted.subtraction.done;
        let commit = self.commit(root, state, done, orphans, &publications, &|_| true, &named_elsewhere);
        let foretold = commit::foretell(&commit).map_err(|error| state_error(&error))?;
        let strangers = match self.settings.keep.clean {
            Clean::Foreign => self.strangers(root, &foretold.paths, &foretold.suites, &named_elsewhere)?,
            _ => Vec::new(),
        };
        match foretold.counts.guarded(&self.guard(), Tally::of(&strangers)) {
            Ok(()) => doomed.extend(foretold.expired.into_iter().chain(strangers)),
            Err(error) => account.warn(events, format!("the run would end with exit code 2: {error}")),
        }
        doomed.sort_unstable();
        doomed.dedup();
        Ok(doomed)
    }
}
