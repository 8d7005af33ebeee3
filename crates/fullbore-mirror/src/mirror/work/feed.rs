//! The files that a worker is fetching and storing: they are handed in one by one, and each has an outcome.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullbore_engine::digest::Sha256;
use fullbore_engine::landing::{Cause, FileSpec};
use fullbore_fleet::message::Item;
use fullbore_s3::CallError;
use fullbore_s3::objects::Objects;
use fullbore_wire::dispatcher::GivenUp;
use fullbore_wire::fetch::{Catalogue, Watch};
use fullbore_wire::queue::{Item as Queued, ItemId};
use fullbore_wire::run::Totals;
use fullbore_wire::run::refusals::{Hosts, Why, is_lost};
use tokio::sync::mpsc;

use super::landing::Landing;
use super::session::{Seen, look};

/// Outcome of a file that was handed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The file was fetched and verified, and the store has acknowledged it.
    Stored,
    /// The file was fetched, but another worker had stored it meanwhile.
    Present,
    /// The file is not in the store.
    GivenUp(Refusal),
}

/// Why a file was given up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, in one line.
    pub reason: String,
    /// Fault of each mirror: its name, and the fault.
    pub faults: Vec<(String, String)>,
    /// Whether every mirror answered and none has the right file, so that another try would not help.
    pub is_lost: bool,
    /// Kind of the faults.
    pub why: Why,
}

/// Outcome of one file, with the caller's tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Number that the caller gave the file.
    pub tag: u64,
    /// Outcome of the file.
    pub outcome: Outcome,
}

/// Outcomes of files, in the order in which they ended.
pub type Outcomes = mpsc::UnboundedReceiver<Ended>;

/// The session has ended; [`Session::work`](super::session::Session::work) returns its error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session has ended")]
pub struct SessionEnded;

/// Hands files to a session. When the last clone is dropped, the session gets no more files.
#[derive(Clone)]
pub struct Feed {
    files: Arc<Files>,
    items: mpsc::Sender<Vec<Queued>>,
    totals: Totals,
    objects: Objects,
    watch: Watch,
    landing: Arc<Landing>,
}

impl Feed {
    pub(super) fn new(
        files: Arc<Files>,
        items: mpsc::Sender<Vec<Queued>>,
        totals: Totals,
        objects: Objects,
        watch: Watch,
        landing: Arc<Landing>,
    ) -> Feed {
        Feed { files, items, totals, objects, watch, landing }
    }

    /// Tags of files that received bytes since the last call; empty at the first call.
    pub fn take_moved(&self) -> Vec<u64> {
        self.files.tags_of(&self.watch.take_moved())
    }

    /// Tags of files that were verified since the last call, or earlier if their upload still continues, each with the
    /// number of bytes that the store has. Empty at the first call.
    pub fn verified_files(&self) -> Vec<(u64, u64)> {
        self.files.tags_of_paths(self.landing.verified_files())
    }

    /// Has files fetched and stored. Each ends with its tag among the outcomes; tags need not differ between files. A
    /// file that is already in progress ends together with the earlier one. Another file for the same path is given up.
    ///
    /// The files must have passed [`Item::check`].
    ///
    /// # Errors
    /// [`SessionEnded`] if the session has ended and takes no more files.
    pub async fn add(&self, files: impl IntoIterator<Item = (u64, Item)>) -> Result<(), SessionEnded> {
        let items: Vec<Queued> = files.into_iter().filter_map(|(tag, file)| self.files.begin(tag, file)).collect();
        if items.is_empty() {
            return Ok(());
        }
        self.totals.expect(items.len() as u64, items.iter().map(|item| item.size).sum());
        self.items.send(items).await.map_err(|_| SessionEnded)
    }

    /// Looks what the store has at the path of a file.
    ///
    /// # Errors
    /// [`CallError`] if the store does not answer, or refuses the request.
    pub async fn look(&self, file: &Item) -> Result<Seen, CallError> {
        look(&self.objects, file).await
    }
}

/// A file in progress, and the tags under which it was handed in.
struct Open {
    file: Item,
    tags: Vec<u64>,
}

#[derive(Default)]
struct State {
    open: HashMap<ItemId, Open>,
    by_path: HashMap<String, ItemId>,
    next: ItemId,
}

/// Files in progress, by item and by path.
pub(super) struct Files {
    state: Mutex<State>,
    tell: mpsc::UnboundedSender<Ended>,
}

impl Files {
    pub(super) fn new(tell: mpsc::UnboundedSender<Ended>) -> Files {
        Files { state: Mutex::default(), tell }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the item of a file that was not in progress; `None` for one that was.
    fn begin(&self, tag: u64, file: Item) -> Option<Queued> {
        let mut state = self.state();
        let known = state.by_path.get(&file.path).copied();
        if let Some(open) = known.and_then(|id| state.open.get_mut(&id)) {
            if open.file == file {
                open.tags.push(tag);
                return None;
            }
            drop(state);
            let reason = "another file of the same path is being stored".to_owned();
            self.end(&[tag], &Outcome::GivenUp(Refusal { reason, ..Refusal::default() }));
            return None;
        }
        // After four billion files, a number is free again.
        let mut id = state.next;
        while state.open.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        state.next = id.wrapping_add(1);
        let size = file.size;
        state.by_path.insert(file.path.clone(), id);
        state.open.insert(id, Open { file, tags: vec![tag] });
        Some(Queued { id, size, ..Queued::default() })
    }

    fn take(&self, id: ItemId) -> Option<Open> {
        let mut state = self.state();
        let open = state.open.remove(&id)?;
        state.by_path.remove(&open.file.path);
        Some(open)
    }

    fn tags_of(&self, items: &[ItemId]) -> Vec<u64> {
        let state = self.state();
        items.iter().filter_map(|item| state.open.get(item)).flat_map(|open| open.tags.iter().copied()).collect()
    }

    /// Tags of these paths, each with the value of its path.
    fn tags_of_paths(&self, paths: Vec<(String, u64)>) -> Vec<(u64, u64)> {
        let state = self.state();
        let open = |path: &String| state.by_path.get(path).and_then(|item| state.open.get(item));
        let tags = |(path, bytes): (String, u64)| {
            open(&path).into_iter().flat_map(move |open| open.tags.iter().map(move |tag| (*tag, bytes)))
        };
        paths.into_iter().flat_map(tags).collect()
    }

    fn end(&self, tags: &[u64], outcome: &Outcome) {
        for tag in tags {
            // The receiver of the outcomes may have ended.
            let _ = self.tell.send(Ended { tag: *tag, outcome: outcome.clone() });
        }
    }

    pub(super) fn stored(&self, id: ItemId, was_there: impl FnOnce(&str) -> bool) {
        let Some(open) = self.take(id) else { return };
        let outcome = if was_there(&open.file.path) { Outcome::Present } else { Outcome::Stored };
        self.end(&open.tags, &outcome);
    }

    pub(super) fn given_up(&self, given_up: &GivenUp, hosts: &Hosts) {
        let Some(open) = self.take(given_up.item) else { return };
        let refusal = Refusal {
            reason: hosts.why(given_up),
            faults: hosts.of_each(given_up),
            is_lost: is_lost(given_up),
            why: Why::of(given_up.faults.iter().map(|(_, fault)| fault)),
        };
        self.end(&open.tags, &Outcome::GivenUp(refusal));
    }

    pub(super) fn refused(&self, id: ItemId, cause: &Cause) {
        let Some(open) = self.take(id) else { return };
        self.end(&open.tags, &Outcome::GivenUp(Refusal { reason: cause.to_string(), ..Refusal::default() }));
    }
}

impl Catalogue for Files {
    fn path(&self, item: ItemId) -> String {
        self.state().open.get(&item).map(|open| open.file.path.clone()).unwrap_or_default()
    }

    fn sha256(&self, item: ItemId) -> Sha256 {
        self.state().open.get(&item).map_or(Sha256::EMPTY, |open| open.file.sha256)
    }

    fn spec(&self, item: ItemId) -> FileSpec {
        match self.state().open.get(&item).map(|open| &open.file) {
            Some(file) => FileSpec { item, path: file.path.clone(), size: file.size, sha256: file.sha256, mtime: None },
            // The file has ended, and further data of it is not wanted.
            None => FileSpec { item, path: String::new(), size: 0, sha256: Sha256::EMPTY, mtime: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, size: u64) -> Item {
        Item { path: path.to_owned(), size, sha256: Sha256::of(path.as_bytes()) }
    }

    #[test]
    fn a_file_that_two_tasks_want_is_fetched_once_and_ends_for_both() {
        let (tell, mut outcomes) = mpsc::unbounded_channel();
        let files = Files::new(tell);
        let item = files.begin(1, file("pool/a", 5)).unwrap();
        assert_eq!(files.begin(2, file("pool/a", 5)), None);
        let paths = vec![("pool/a".to_owned(), 3), ("pool/b".to_owned(), 4)];
        assert_eq!(files.tags_of_paths(paths), [(1, 3), (2, 3)]);
        files.stored(item.id, |path| path == "pool/b");
        for tag in [1, 2] {
            assert_eq!(outcomes.try_recv(), Ok(Ended { tag, outcome: Outcome::Stored }));
        }
        // Now it is not on its way, so it is begun again, under another number.
        let again = files.begin(3, file("pool/a", 5)).unwrap();
        assert_ne!(again.id, item.id);
        assert_eq!(files.path(again.id), "pool/a");
        assert_eq!(files.path(item.id), "");
    }

    #[test]
    fn another_file_of_the_same_path_is_given_up() {
        let (tell, mut outcomes) = mpsc::unbounded_channel();
        let files = Files::new(tell);
        let item = files.begin(1, file("pool/a", 5)).unwrap();
        assert_eq!(files.begin(2, file("pool/a", 6)), None);
        let Ok(Ended { tag: 2, outcome: Outcome::GivenUp(refusal) }) = outcomes.try_recv() else { panic!("stored") };
        assert!(refusal.reason.contains("same path"), "{refusal:?}");
        files.stored(item.id, |_| true);
        assert_eq!(outcomes.try_recv(), Ok(Ended { tag: 1, outcome: Outcome::Present }));
    }
}
