//! Passes messages from all threads of a copy to one listener.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::{Event, Events};

use super::hash_list::HashList;
use crate::entry::shown;
use crate::session::{self, Tell};
use crate::wire::{Problem, ProblemKind};

/// Passes on the events of a copy, and counts its problems.
pub(crate) struct Teller<'a> {
    events: Mutex<&'a mut dyn Events>,
    problems: Mutex<BTreeMap<ProblemKind, Counted>>,
    hashes: Mutex<Option<HashList>>,
}

/// Problems of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) count: u64,
    /// The first problems, one line each.
    pub(crate) lines: Vec<String>,
}

/// Problems of each kind that a report lists. They fit a screen; the others are only counted.
const NAMED: usize = 20;

impl<'a> Teller<'a> {
    pub(crate) fn new(events: &'a mut dyn Events) -> Teller<'a> {
        Teller { events: Mutex::new(events), problems: Mutex::default(), hashes: Mutex::default() }
    }

    /// Writes the reported hashes to a list at this path.
    ///
    /// # Errors
    /// `ErrorKind::Disk` with the path if no file can be created there.
    pub(super) fn keep_hashes(&self, path: &Path) -> Result<(), CommandError> {
        *self.hashes.lock().unwrap_or_else(PoisonError::into_inner) = Some(HashList::at(path)?);
        Ok(())
    }

    /// All hashes will be reported again: starts the list over.
    pub(super) fn restart_hashes(&self) {
        if let Some(list) = &mut *self.hashes.lock().unwrap_or_else(PoisonError::into_inner) {
            list.restart();
        }
    }

    /// All hashes have been reported: gives the list its name.
    ///
    /// # Errors
    /// `ErrorKind::Disk` if any of the list could not be written.
    pub(super) fn publish_hashes(&self) -> Result<(), CommandError> {
        let list = self.hashes.lock().unwrap_or_else(PoisonError::into_inner).take();
        list.map_or(Ok(()), HashList::publish)
    }

    /// Passes on one event.
    pub(crate) fn emit(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).emit(event);
    }

    /// Emits a line of information.
    pub(crate) fn note(&self, message: impl Into<String>) {
        self.emit(Event::Note { message: message.into() });
    }

    /// Emits a warning.
    pub(crate) fn warn(&self, message: impl Into<String>) {
        self.emit(Event::Warning { message: message.into() });
    }

    /// Passes on a line that the other machine, or ssh, wrote to stderr.
    pub(crate) fn said(&self, host: &str, message: &str) {
        self.emit(Event::Said { host: host.to_owned(), message: message.to_owned() });
    }

    /// Problems so far, by kind.
    pub(crate) fn problems(&self) -> BTreeMap<ProblemKind, Counted> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn problem(&self, problem: &Problem) {
        let path = shown(&problem.path);
        let path = if path.is_empty() { ".".to_owned() } else { path };
        let message = format!("{}: {}", problem.kind.words(), problem.text);
        {
            let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
            let counted = problems.entry(problem.kind).or_default();
            counted.count += 1;
            if counted.lines.len() < NAMED {
                counted.lines.push(format!("{path}: {message}"));
            }
        }
        self.emit(Event::Problem { problem: name(problem.kind), path, message, harmless: problem.kind.is_wished() });
    }
}

/// The name of a kind of problem in JSON.
pub(crate) fn name(kind: ProblemKind) -> String {
    format!("{kind:?}").to_lowercase()
}

impl Tell for Teller<'_> {
    fn tell(&self, event: session::Event) {
        match event {
            session::Event::Problem(problem) => self.problem(&problem),
            session::Event::Deleted(path) => self.emit(Event::Deleted { path: shown(&path) }),
            session::Event::Wanted(path) => self.emit(Event::Copy { path: shown(&path), change: None }),
            session::Event::Item { letters, path } => {
                self.emit(Event::Copy { path: shown(&path), change: Some(shown(&letters)) });
            }
            session::Event::Hashed { path, hash } => {
                if let Some(list) = &mut *self.hashes.lock().unwrap_or_else(PoisonError::into_inner) {
                    list.add(&path, &hash);
                }
            }
            session::Event::Removed(path) => self.emit(Event::Removed { path: shown(&path) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_told_and_counted_and_some_are_kept() {
        let mut told = 0;
        let mut events = |event: Event| {
            let Event::Problem { problem, path, message, harmless } = event else { panic!("{event:?}") };
            assert_eq!((&*problem, &*path, &*message, harmless), ("unreadable", ".", "could not be read: why", false));
            told += 1;
        };
        let teller = Teller::new(&mut events);
        for _ in 0..50 {
            let (path, text) = (Vec::new(), "why".to_owned());
            teller.tell(session::Event::Problem(Problem { kind: ProblemKind::Unreadable, path, text }));
        }
        let problems = teller.problems();
        let counted = &problems[&ProblemKind::Unreadable];
        assert_eq!((counted.count, counted.lines.len()), (50, NAMED));
        drop(teller);
        assert_eq!(told, 50);
    }
}
