//! A round: packages that are unpacked side by side, all of them to temporary names, and then get
//! their names.
//!
//! Usually there is one round. Packages that meet in a name step back and are unpacked one by one
//! afterwards, in order, when what they met is in its place: so the result does not depend on who
//! was faster.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::claims::{Attributes, Claim, Claims};
use super::clocks::Clocks;
use super::directories::{Directories, new_name, split};
use super::extract::{Role, Work, extract};
use super::files::{self, Wanted};
use super::filters::Filters;
use super::{Planned, UnpackError, kernel};
use crate::database::{Database, Owners};
use crate::root::{Root, RootError};

/// What the workers of a round share.
pub(super) struct Round<'a> {
    pub root: &'a Root,
    pub packages: &'a [Planned],
    pub database: &'a Database,
    pub owners: &'a Owners,
    pub filters: &'a Filters,
    pub clocks: &'a Clocks,
    pub claims: Claims,
    pub threads: usize,
    /// Packed bytes of the round's packages together.
    pub packed_bytes: u64,
    /// Set for all to stop.
    pub stop: &'a AtomicBool,
    /// The caller's.
    pub caller_stops: Option<&'a AtomicBool>,
    /// Set for a package that met one before it.
    pub put_off: Vec<AtomicBool>,
    /// Plain bytes of the packages that are done.
    pub done_bytes: &'a AtomicU64,
    /// Nothing is made: what dpkg would refuse is found out.
    pub only_asks: bool,
}

/// Directories that were made for a batch, by path: by whose wish they are as they are.
pub(super) type Made = HashMap<Box<[u8]>, (u32, Attributes)>;

/// Why a package is not done.
#[derive(Debug)]
pub(super) enum Halt {
    /// It met these packages.
    Deferred(Vec<u32>),
    /// A directory is missing that another package may bring.
    Missing(Vec<u8>),
    /// It is dpkg's work, and why.
    Refused(String),
    /// The run cannot go on.
    Failed(Box<UnpackError>),
}

impl Halt {
    pub fn refused(reason: impl Into<String>) -> Halt {
        Halt::Refused(reason.into())
    }
}

impl From<UnpackError> for Halt {
    fn from(error: UnpackError) -> Halt {
        Halt::Failed(Box::new(error))
    }
}

/// How a package ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub package: u32,
    pub work: Work,
    pub halt: Option<Halt>,
}

impl<'a> Round<'a> {
    pub fn planned(&self, number: u32) -> &'a Planned {
        &self.packages[number as usize]
    }

    /// Unpacks these packages to temporary names, each by one thread, the largest first.
    pub fn extract(&self, numbers: &[u32]) -> Vec<Outcome> {
        let mut queue = numbers.to_vec();
        queue.sort_by_key(|number| std::cmp::Reverse(self.planned(*number).archive.data().bytes));
        let next = AtomicUsize::new(0);
        let outcomes = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.threads.min(queue.len()) {
                scope.spawn(|| {
                    kernel::clear_own_mask();
                    self.clocks.write.adopt_thread();
                    let mut directories = Directories::new(self.root, &self.claims, self.threads);
                    while let Some(number) = queue.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = self.extract_one(&mut directories, *number);
                        outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                    }
                });
            }
        });
        let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcomes.sort_by_key(|outcome| outcome.package);
        outcomes
    }

    fn extract_one(&self, directories: &mut Directories<'_>, number: u32) -> Outcome {
        let mut work = Work::default();
        let mut halt = if self.stop.load(Ordering::Relaxed) {
            Some(Halt::Deferred(Vec::new()))
        } else {
            let halt = extract(self, directories, number, &mut work).err();
            halt.map(|halt| self.beyond_doubt(number, halt))
        };
        match &halt {
            // Whoever comes later in the order steps back as well: it was unpacked too early.
            Some(Halt::Deferred(met)) => {
                for other in met.iter().filter(|other| **other > number) {
                    self.put_off[*other as usize].store(true, Ordering::Relaxed);
                }
            }
            Some(Halt::Failed(_)) => self.stop.store(true, Ordering::Relaxed),
            Some(_) => {}
            None if self.only_asks => {}
            None if self.put_off[number as usize].load(Ordering::Relaxed) => halt = Some(Halt::Deferred(Vec::new())),
            None => {
                let data = self.planned(number).archive.data();
                self.done_bytes.fetch_add(data.offset + data.bytes, Ordering::Relaxed);
                self.clocks.write.add_items(1, work.plain_bytes);
            }
        }
        Outcome { package: number, work, halt }
    }

    /// A package is refused before its last byte was hashed. Only what the index vouches for may be
    /// given to dpkg; what is damaged or forged fails here.
    fn beyond_doubt(&self, number: u32, halt: Halt) -> Halt {
        match halt {
            Halt::Refused(_) | Halt::Missing(_) => match self.planned(number).archive.verify() {
                Ok(()) => halt,
                Err(error) => UnpackError::from(error).into(),
            },
            halt => halt,
        }
    }

    /// Takes away what a package has written.
    pub fn take_back(&self, work: &Work) -> Result<(), RootError> {
        let mut directories = Directories::new(self.root, &self.claims, 1);
        for placed in work.placed.iter().filter(|placed| placed.role != Role::Listed) {
            let (parent, base) = split(placed.place());
            let removed = directories.open(parent).and_then(|parent| files::remove(&parent, &new_name(base)));
            removed.map_err(|errno| RootError::new(placed.place(), "take back", errno))?;
        }
        Ok(())
    }

    /// Gives files their names.
    pub fn place(&self, outcomes: &[Outcome]) -> Result<(), RootError> {
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..self.threads.min(outcomes.len()) {
                scope.spawn(|| {
                    self.clocks.write.adopt_thread();
                    let mut directories = Directories::new(self.root, &self.claims, self.threads);
                    while let Some(outcome) = outcomes.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = place_one(&mut directories, &outcome.work) {
                            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                            return;
                        }
                    }
                });
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Gives directories that several packages have what the first of them in the order wants, and
    /// removes those that only packages wanted which did not stay. `made` has the directories of
    /// all rounds, with whose wishes they have: a package that comes late may be the first in order.
    pub fn settle_directories(self, gone: &BTreeSet<u32>, made: &mut Made) -> Result<(), RootError> {
        let fresh = Claims::new();
        let mut directories = Directories::new(self.root, &fresh, 1);
        let mut unwanted = Vec::new();
        for claim in self.claims.into_claims() {
            let Claim::Directory { made: is_new, path, claimants, .. } = claim else { continue };
            let has = if is_new { Some(claimants[0]) } else { made.get(&path).copied() };
            let Some(has) = has else { continue };
            let staying = claimants.iter().filter(|(package, _)| !gone.contains(package));
            let Some(first) = staying.min_by_key(|(package, _)| *package).copied() else {
                if is_new {
                    unwanted.push(path);
                }
                continue;
            };
            let owner = if is_new || first.0 < has.0 { first } else { has };
            if owner.1 != has.1 {
                settle(&mut directories, &path, has.1, owner.1)
                    .map_err(|errno| RootError::new(&path, "set owner and mode of", errno))?;
            }
            made.insert(path, owner);
        }
        // What lies deeper goes first; what is not empty is somebody else's after all.
        unwanted.sort_by_key(|path| std::cmp::Reverse(path.len()));
        for path in unwanted {
            let (parent, base) = split(&path);
            match directories.open(parent).and_then(|parent| rustix::fs::unlinkat(&*parent, base, AtFlags::REMOVEDIR)) {
                Ok(()) | Err(Errno::NOTEMPTY | Errno::NOENT | Errno::EXIST) => {}
                Err(errno) => return Err(RootError::new(&path, "take back", errno)),
            }
        }
        Ok(())
    }
}

fn place_one(directories: &mut Directories<'_>, work: &Work) -> Result<(), RootError> {
    for placed in work.placed.iter().filter(|placed| placed.role == Role::New) {
        let (parent, base) = split(placed.place());
        let renamed = directories
            .open(parent)
            .and_then(|parent| rustix::fs::renameat(&*parent, &new_name(base)[..], &*parent, base));
        renamed.map_err(|errno| RootError::new(placed.place(), "give its name to", errno))?;
    }
    Ok(())
}

fn settle(directories: &mut Directories<'_>, path: &[u8], has: Attributes, wanted: Attributes) -> Result<(), Errno> {
    let (parent, base) = split(path);
    let parent = directories.open(parent)?;
    let mtime_s = rustix::fs::statat(&*parent, base, AtFlags::SYMLINK_NOFOLLOW)?.st_mtime;
    // A directory in which something was made has the time of that.
    let mtime_s = if mtime_s == has.mtime_s { wanted.mtime_s } else { mtime_s };
    let owner = Wanted { mode: wanted.mode, uid: wanted.uid, gid: wanted.gid };
    files::set_directory(&parent, base, owner, mtime_s)
}
