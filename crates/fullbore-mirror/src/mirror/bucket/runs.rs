//! Pinned plans of a mirror, stored as objects among fullbore's own.

use bytes::Bytes;
use fullbore_engine::run::error::CommandError;
use fullbore_fleet::names::RunId;
use fullbore_s3::objects::{Condition, Written};

use super::{BucketMirror, OWN_BYTES_MAX};
use crate::mirror::work::pinned::{RUNS_DIRECTORY, plan_path, run_of};

/// Maximum number of plans of a mirror, because each run of the planner reads all of them. A guess: one is usual.
const PLANS_MAX: usize = 64;

/// Plan of a run, as stored.
pub(crate) struct StoredPlan {
    /// Bytes of the object, to be parsed by `Pinned::read`.
    pub content: Bytes,
    /// Age of the object in seconds, by the store's clock.
    pub age_s: Option<i64>,
}

impl BucketMirror {
    /// Stores the plan of a run.
    ///
    /// # Errors
    /// `Usage` if the mirror has too many plans or the store refuses the request, `Network` if the store does not
    /// answer.
    pub(crate) fn pin(&self, run: &RunId, content: Vec<u8>) -> Result<(), CommandError> {
        if self.runs()?.len() >= PLANS_MAX {
            return Err(CommandError::usage(format_args!("the mirror has {PLANS_MAX} pinned plans already"))
                .hint("finish one of them with --finish; plans of two weeks ago end with the next run"));
        }
        let fields = vec![("Content-Type".to_owned(), "application/zstd".to_owned())];
        let condition = if self.tree.has_lock() { Condition::Absent } else { Condition::None };
        let put = self.runtime.block_on(self.state.put(&plan_path(run), fields, Bytes::from(content), &condition));
        match put.map_err(|error| self.failed(&error))? {
            // Equal content has an equal name, so the plan is there already.
            Written::Stored(_) | Written::Refused => Ok(()),
        }
    }

    /// Runs with a plan in the store.
    ///
    /// # Errors
    /// `Network` if the store does not answer, `Usage` if it refuses the request.
    pub(crate) fn runs(&self) -> Result<Vec<RunId>, CommandError> {
        let below = format!("{RUNS_DIRECTORY}/");
        let listed = self.runtime.block_on(self.state.list(&below)).map_err(|error| self.failed(&error))?;
        Ok(listed.iter().filter_map(|(path, ..)| run_of(path)).collect())
    }

    /// Reads the plan of a run; `None` if it was removed.
    ///
    /// # Errors
    /// `Network` if the store does not answer, `Usage` if it refuses the request.
    pub(crate) fn plan(&self, run: &RunId) -> Result<Option<StoredPlan>, CommandError> {
        let found = self.runtime.block_on(self.state.get(&plan_path(run), OWN_BYTES_MAX));
        Ok(found.map_err(|error| self.failed(&error))?.map(|found| {
            let facts = found.facts;
            let age_s = facts.answered.zip(facts.modified).map(|(answered, modified)| answered - modified);
            StoredPlan { content: found.content, age_s }
        }))
    }

    /// Removes the plans of these runs.
    ///
    /// # Errors
    /// `Network` if the store does not answer, `Usage` if it refuses the request.
    pub(crate) fn unpin(&self, runs: &[RunId]) -> Result<(), CommandError> {
        let paths: Vec<String> = runs.iter().map(plan_path).collect();
        self.runtime.block_on(self.state.remove(&paths)).map_err(|error| self.failed(&error))
    }
}
