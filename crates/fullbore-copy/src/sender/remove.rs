//! `--remove-source-files`: names of the source go when the destination has them on its disk.
//!
//! Only what is still as it was listed: a file that was written to meanwhile stays, and is reported.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use fullbore_engine::stage::Kind as RoleKind;
use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;

use super::source::{Directory, modified};
use crate::entry::{Identity, Kind, Time, join};
use crate::session::{Context, Event};
use crate::wire::{Message, Problem, ProblemKind};

/// A name that is no directory's, as it was listed.
#[derive(Debug)]
pub(super) struct Removable {
    directory: Arc<Directory>,
    name: Box<[u8]>,
    kind: Option<Kind>,
    size: i64,
    modified: Time,
    identity: Identity,
    /// Has other names: removing one of them changes the time of the others.
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

/// What the receiver says to be on its disk. They wait in a queue without a limit of its own: each name comes
/// once.
pub(super) struct Visible {
    pub(super) ids: Vec<u64>,
    /// No more come.
    pub(super) last: bool,
}

/// Names listed and not yet known to be on the destination's disk, by number. The receiver tells of them at
/// least with each group of files, so that they are as many as wait for content.
#[derive(Debug, Default)]
pub(super) struct Removables {
    names: Mutex<HashMap<u64, Removable>>,
}

impl Removables {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Removable>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes names as they are listed.
    pub(super) fn add(&self, first: u64, names: impl Iterator<Item = Option<Removable>>) {
        self.lock().extend((first..).zip(names).filter_map(|(id, name)| Some((id, name?))));
    }

    /// Removes what it is told of, until nothing more comes or the run is broken off. A thread of its own:
    /// who hears of these must not wait until the receiver hears of others.
    pub(super) fn run(&self, context: &Context<'_>, visible: &mpsc::Receiver<Visible>) {
        let _guard = context.brake.guard();
        let clock = context.ledger.stage("control", RoleKind::Thread);
        let mut gone = 0;
        // A closed queue belongs to a run that ends; its reason is known to the brake.
        let say = |message| drop(context.link.control_out.push(message, &clock));
        while let Ok(Visible { ids, last }) = visible.recv() {
            for id in ids {
                if context.brake.is_pulled() {
                    return;
                }
                // A number that is not known is of no name that could be removed.
                let Some(name) = self.lock().remove(&id) else { continue };
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

/// False if it is not what was copied.
fn remove_one(name: &Removable) -> Result<bool, Errno> {
    let directory = name.directory.open()?;
    let now = rustix::fs::statat(&directory, &name.name[..], AtFlags::SYMLINK_NOFOLLOW)?;
    if !name.is_unchanged(&now) {
        return Ok(false);
    }
    rustix::fs::unlinkat(&directory, &name.name[..], AtFlags::empty()).map(|()| true)
}
