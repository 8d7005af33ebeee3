//! Suites that wait for others of the same run.
//!
//! An archive may replace a file under its name. If several suites name it, all of them must change at once: the indexes of
//! one that stays as it was still name the old content.

use super::Run;
use super::fetch_files::FetchResult;
use super::membership::SuiteId;
use super::plan::{FileId, Plan};
use super::subtract::Subtraction;

/// A file that may not be replaced yet, and the suite that still names its old content.
type Held = (FileId, SuiteId);

impl Run<'_> {
    /// Holds back suites that would replace a file which a suite of this run that stays behind still names.
    pub(super) fn hold_back(&self, subtraction: &Subtraction, result: &mut FetchResult) {
        let mut complete: Vec<SuiteId> = Vec::new();
        for (place, id) in self.ids.iter().enumerate() {
            if self.is_complete(place, result) {
                complete.push(*id);
            }
        }
        let before = complete.clone();
        for (file, behind) in held_back(self.plan, subtraction, &mut complete) {
            let place = self.ids.iter().position(|id| *id == behind);
            let name = place.map_or("another suite", |place| self.offers[place].requested.as_str());
            let path = self.plan.file(file).path;
            result
                .missing
                .push(format!("{path}: not replaced yet, because {name} stays as it was and has the old one"));
        }
        result.incomplete.extend(before.into_iter().filter(|id| !complete.contains(id)));
    }
}

/// Takes suites out of `complete`, the suites to be published, until none of them replaces a file of one that is not.
fn held_back(plan: &Plan, subtraction: &Subtraction, complete: &mut Vec<SuiteId>) -> Vec<Held> {
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
        // One that waits may keep others waiting.
        if held.len() == number {
            return held;
        }
    }
}
