//! `--remove-source-files`: removes names of the source once the destination has them on its disk.
//!
//! Only files that are still as they were listed are removed. A file that was changed meanwhile stays and is reported.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use fullbore_engine::stage::Kind as RoleKind;
use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;

use super::source::{Directory, look, modified};
use crate::entry::{Identity, Kind, Time, join};
use crate::session::{Context, Event};
use crate::wire::{Message, Problem, ProblemKind};

/// A name that is not of a directory, as it was listed.
#[derive(Debug)]
pub(super) struct Removable {
    directory: Arc<Directory>,
    name: Box<[u8]>,
    kind: Option<Kind>,
    size: i64,
    modified: Time,
    identity: Identity,
    /// Whether the file has other names. Removing one of them changes the change time seen through the others.
    linked: bool,
}

impl Removable {
    pub(super) fn new(directory: &Arc<Directory>, name: &[u8], status: &Stat) -> Removable {
        Removable {
            directory: directory.clone(),
            name: name.into(),
            kind: Kind::of_mode(status.st_mode),
            size: status.st_size,
            modified: modified(status),
            identity: super::source::identity(status),
            linked: status.st_nlink > 1,
        }
    }

    fn is_unchanged(&self, now: &Stat) -> bool {
        let there = super::source::identity(now);
        let same_change = self.linked || there.changed == self.identity.changed;
        (there.device, there.inode) == (self.identity.device, self.identity.inode)
            && same_change
            && Kind::of_mode(now.st_mode) == self.kind
            && now.st_size == self.size
            && modified(now) == self.modified
    }
}

/// Names that the receiver has on its disk. Their queue has no limit of its own, as each name comes only once.
#[derive(Debug)]
pub(super) struct Visible {
    pub(super) names: Vec<Removable>,
    /// Whether these are the last ones.
    pub(super) last: bool,
}

/// Names that were listed and are not yet on the destination's disk, by number. The receiver reports them with each
/// group of files at the latest, so there are no more than wait for content.
#[derive(Debug, Default)]
pub(super) struct Removables {
    names: Mutex<HashMap<u64, Removable>>,
}

impl Removables {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Removable>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds names as they are listed.
    pub(super) fn add(&self, first: u64, names: impl Iterator<Item = Option<Removable>>) {
        self.lock().extend((first..).zip(names).filter_map(|(id, name)| Some((id, name?))));
    }

    /// Removes and returns the names with these numbers. Unknown numbers are of entries that are not removed.
    pub(super) fn take(&self, ids: &[u64]) -> Vec<Removable> {
        let mut names = self.lock();
        ids.iter().filter_map(|id| names.remove(id)).collect()
    }

    /// Removes reported names until the last one, or until the run is cancelled. It has its own thread, so that the
    /// receiver's other messages do not wait.
    pub(super) fn run(&self, context: &Context<'_>, visible: &mpsc::Receiver<Visible>) {
        let _guard = context.cancel.guard();
        let clock = context.ledger.stage("control", RoleKind::Thread);
        let mut gone = 0;
        // A closed queue belongs to a run that ends; the cancel token has the reason.
        let say = |message| drop(context.link.control_out.push(message, &clock));
        while let Ok(Visible { names, last }) = visible.recv() {
            for name in names {
                if context.cancel.is_cancelled() {
                    return;
                }
                let path = join(&name.directory.path, &name.name);
                let (kind, text) = match remove_one(&name) {
                    Ok(true) => {
                        gone += 1;
                        context.tell.tell(Event::Removed(path));
                        continue;
                    }
                    Ok(false) => (ProblemKind::Changed, "after it was copied; it is not removed".to_owned()),
                    Err(error) => (ProblemKind::Undeleted, format!("at the source: {}", std::io::Error::from(error))),
                };
                let problem = Problem { kind, path, text };
                context.tell.tell(Event::Problem(problem.clone()));
                say(Message::Problem(problem));
            }
            if last {
                say(Message::Removed { count: gone });
            }
        }
    }
}

/// Removes one name. Returns false if it has changed since it was listed.
fn remove_one(name: &Removable) -> Result<bool, Errno> {
    let directory = name.directory.open()?;
    let now = rustix::fs::statat(&directory, &name.name[..], look(name.directory.root.follows))?;
    if !name.is_unchanged(&now) {
        return Ok(false);
    }
    rustix::fs::unlinkat(&directory, &name.name[..], AtFlags::empty()).map(|()| true)
}

#[cfg(test)]
mod tests {
    use rustix::fs::CWD;

    use super::super::Source;
    use super::*;

    #[test]
    fn each_name_is_taken_once_however_often_it_is_told_of() {
        let place = tempfile::tempdir().unwrap();
        let root = Source::open(&place.path().join("")).unwrap().root;
        let directory = Arc::new(Directory::new(root, Vec::new()));
        let status = rustix::fs::statat(CWD, place.path(), AtFlags::empty()).unwrap();
        let removables = Removables::default();
        let name = |name: &[u8]| Some(Removable::new(&directory, name, &status));
        removables.add(3, [name(b"three"), None, name(b"five")].into_iter());
        let taken = |ids: &[u64]| removables.take(ids).iter().map(|name| name.name.to_vec()).collect::<Vec<_>>();
        assert_eq!(taken(&[5, 5, 4, 9]), [b"five"]);
        assert_eq!(taken(&[5, 3]), [b"three"]);
        assert!(taken(&[3, 4, 5]).is_empty());
    }
}
