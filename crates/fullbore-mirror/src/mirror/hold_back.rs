//! Holds back suites that must wait for others.
//!
//! An archive may replace a file under its name. If several suites name the file, all of them must change at once: the
//! indexes of a suite that stays would still name the old content.

use fullbore_engine::run::error::CommandError;

use super::Run;
use super::fetch_files::FetchResult;
use super::membership::SuiteId;
use super::other_suites;
use super::plan::{FileId, Plan};
use super::session::disk;
use super::state::State;
use super::subtract::Subtraction;
use super::tree::Tree;

impl Run<'_> {
    /// Holds back suites that would replace a file that a remaining suite still names. Returns a line for each file.
    pub(super) fn hold_back(
        &self,
        tree: &dyn Tree,
        state: &State,
        subtraction: &Subtraction,
        result: &mut FetchResult,
    ) -> Result<Vec<String>, CommandError> {
        let complete = (0..self.ids.len()).filter(|place| self.is_complete(*place, result));
        let mut complete: Vec<SuiteId> = complete.map(|place| self.ids[place]).collect();
        let before = complete.clone();
        let mut lines = Vec::new();
        let path = |file: FileId| self.plan.file(file).path;
        for (file, directory) in self.named_by_unknown(tree, state, subtraction)? {
            let suites = self.plan.file(file).suites;
            if complete.iter().any(|suite| suites.contains(suite)) {
                complete.retain(|suite| !suites.contains(suite));
                let path = path(file);
                lines.push(format!("{path}: not replaced yet, because {directory} names it: mirror both in one run"));
            }
        }
        for (file, behind) in held_back(self.plan, subtraction, &mut complete) {
            let place = self.ids.iter().position(|id| *id == behind);
            let name = place.map_or("another suite", |place| self.offers[place].requested.as_str());
            let path = path(file);
            lines.push(format!("{path}: not replaced yet, because {name} stays as it was and has the old one"));
        }
        result.incomplete.extend(before.into_iter().filter(|id| !complete.contains(id)));
        Ok(lines)
    }

    /// Files to be replaced that suites of other runs may name, because the list does not have all files of those
    /// suites. With the suites' directories.
    fn named_by_unknown(
        &self,
        tree: &dyn Tree,
        state: &State,
        subtraction: &Subtraction,
    ) -> Result<Vec<(FileId, String)>, CommandError> {
        let of_run = |directory: &String| self.offers.iter().any(|offer| offer.layout.directory == *directory);
        let suites =
            state.header.suites.iter().filter(|suite| !suite.retired && (suite.files_unknown || self.is_damaged));
        let unknown: Vec<String> =
            suites.map(|suite| suite.directory.clone()).filter(|directory| !of_run(directory)).collect();
        let mut named = Vec::new();
        if unknown.is_empty() || subtraction.replacements(self.plan).next().is_none() {
            return Ok(named);
        }
        for directory in unknown {
            let names = other_suites::read_all(tree, std::slice::from_ref(&directory)).map_err(|error| disk(&error))?;
            let files = subtraction.replacements(self.plan);
            let files =
                files.filter(|id| names.as_ref().is_some_and(|plan| plan.find(self.plan.file(*id).path).is_some()));
            named.extend(files.map(|id| (id, directory.clone())));
        }
        Ok(named)
    }
}

/// Removes suites from `complete`, the suites to be published, until none of them replaces a file of a remaining suite.
/// Returns the files, each with a suite that still names its old content.
fn held_back(plan: &Plan, subtraction: &Subtraction, complete: &mut Vec<SuiteId>) -> Vec<(FileId, SuiteId)> {
    let replacements: Vec<FileId> = subtraction.replacements(plan).collect();
    let mut held = Vec::new();
    loop {
        let number = held.len();
        for id in &replacements {
            let old = subtraction.displaced.get(id).map_or(&[][..], Vec::as_slice);
            let Some(behind) = old.iter().find(|suite| !complete.contains(suite)) else { continue };
            let suites = plan.file(*id).suites;
            if complete.iter().any(|suite| suites.contains(suite)) {
                complete.retain(|suite| !suites.contains(suite));
                held.push((*id, *behind));
            }
        }
        // A suite that waits may force others to wait.
        if held.len() == number {
            return held;
        }
    }
}
