//! A round: packages that are unpacked in parallel to temporary names and then renamed.
//!
//! Usually there is one round. Conflicting packages are deferred and unpacked one by one afterwards, in order, so that
//! the result does not depend on timing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::claims::{Attributes, Claim, Claims};
use super::clocks::Clocks;
use super::directories::{Directories, new_name, split};
use super::extract::{ExtractedFiles, PathState, extract};
use super::files;
use super::filters::Filters;
use super::{PlannedPackage, UnpackError, kernel};
use crate::database::{Database, FileOwners};
use crate::root::{Root, RootError};

/// State that all rounds of a batch share.
pub(super) struct BatchContext<'a> {
    pub root: &'a Root,
    pub packages: &'a [PlannedPackage],
    pub filters: Filters,
    pub clocks: &'a Clocks,
    pub threads: usize,
    /// Tells all workers to stop.
    pub stop: AtomicBool,
    /// The caller's request to stop.
    pub caller_stops: Option<&'a AtomicBool>,
    /// Plain bytes of finished packages.
    pub done_bytes: &'a AtomicU64,
}

/// State that the workers of a round share.
pub(super) struct Round<'a> {
    pub context: &'a BatchContext<'a>,
    pub database: &'a Database,
    pub owners: &'a FileOwners,
    pub claims: Claims,
    /// Total size of the package files of the round, in bytes.
    pub packed_bytes: u64,
    /// Set for a package that conflicts with an earlier one.
    pub deferred: Vec<AtomicBool>,
    /// Whether the round is a dry run, which only finds refusals and writes nothing.
    pub is_dry_run: bool,
}

/// Directories created for a batch, by path: the package whose attributes they have, and the attributes.
pub(super) type CreatedDirectories = HashMap<Box<[u8]>, (u32, Attributes)>;

/// Reason why a package is not unpacked.
#[derive(Debug)]
pub(super) enum UnpackFailure {
    /// It conflicts with these packages.
    Deferred(Vec<u32>),
    /// This directory is missing; another package may contain it.
    MissingDirectory(Vec<u8>),
    /// It is left to dpkg for this reason.
    Refused(String),
    /// The batch cannot continue.
    Fatal(Box<UnpackError>),
}

impl UnpackFailure {
    pub(super) fn refused(reason: impl Into<String>) -> UnpackFailure {
        UnpackFailure::Refused(reason.into())
    }
}

impl From<UnpackError> for UnpackFailure {
    fn from(error: UnpackError) -> UnpackFailure {
        UnpackFailure::Fatal(Box::new(error))
    }
}

/// Result for one package.
#[derive(Debug)]
pub(super) struct Outcome {
    pub package: u32,
    pub work: ExtractedFiles,
    pub failure: Option<UnpackFailure>,
}

impl<'a> Round<'a> {
    /// Makes a round of these packages of the batch.
    pub(super) fn new(
        context: &'a BatchContext<'a>,
        numbers: &[u32],
        database: &'a Database,
        owners: &'a FileOwners,
    ) -> Round<'a> {
        let bytes = |number: &u32| context.packages[*number as usize].archive.data().bytes;
        Round {
            context,
            database,
            owners,
            claims: Claims::new(),
            packed_bytes: numbers.iter().map(bytes).sum(),
            deferred: context.packages.iter().map(|_| AtomicBool::new(false)).collect(),
            is_dry_run: false,
        }
    }

    pub(super) fn planned(&self, number: u32) -> &'a PlannedPackage {
        &self.context.packages[number as usize]
    }

    /// Unpacks these packages to temporary names, one thread per package, the largest first.
    pub(super) fn extract(&self, numbers: &[u32]) -> Vec<Outcome> {
        let mut queue = numbers.to_vec();
        queue.sort_by_key(|number| std::cmp::Reverse(self.planned(*number).archive.data().bytes));
        let next = AtomicUsize::new(0);
        let outcomes = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.context.threads.min(queue.len()) {
                scope.spawn(|| {
                    kernel::clear_own_mask();
                    self.context.clocks.write.adopt_thread();
                    let mut directories = Directories::new(self.context.root, &self.claims, self.context.threads);
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
        let mut work = ExtractedFiles::default();
        let mut failure = if self.context.stop.load(Ordering::Relaxed) {
            Some(UnpackFailure::Deferred(Vec::new()))
        } else {
            let failure = extract(self, directories, number, &mut work).err();
            failure.map(|failure| self.verify_refusal(number, failure))
        };
        match &failure {
            // Later packages in the order are deferred as well: they were unpacked too early.
            Some(UnpackFailure::Deferred(met)) => {
                for other in met.iter().filter(|other| **other > number) {
                    self.deferred[*other as usize].store(true, Ordering::Relaxed);
                }
            }
            Some(UnpackFailure::Fatal(_)) => self.context.stop.store(true, Ordering::Relaxed),
            Some(_) => {}
            None if self.is_dry_run => {}
            None if self.deferred[number as usize].load(Ordering::Relaxed) => {
                failure = Some(UnpackFailure::Deferred(Vec::new()))
            }
            None => {
                let data = self.planned(number).archive.data();
                self.context.done_bytes.fetch_add(data.offset + data.bytes, Ordering::Relaxed);
                self.context.clocks.write.add_items(1, work.plain_bytes);
            }
        }
        Outcome { package: number, work, failure }
    }

    /// Verifies a package that was refused before its last byte was hashed: only verified packages may be given to
    /// dpkg.
    fn verify_refusal(&self, number: u32, failure: UnpackFailure) -> UnpackFailure {
        match failure {
            UnpackFailure::Refused(_) | UnpackFailure::MissingDirectory(_) => {
                match self.planned(number).archive.verify() {
                    Ok(()) => failure,
                    Err(error) => UnpackError::from(error).into(),
                }
            }
            failure => failure,
        }
    }

    /// Removes the files that a package wrote.
    ///
    /// # Errors
    ///
    /// [`RootError`] if a directory cannot be opened or a file cannot be removed.
    pub(super) fn roll_back(&self, work: &ExtractedFiles) -> Result<(), RootError> {
        let mut directories = Directories::new(self.context.root, &self.claims, 1);
        for placed in work.placed.iter().filter(|placed| placed.role != PathState::Listed) {
            let (parent, base) = split(placed.place());
            let removed = directories.open(parent).and_then(|parent| files::remove(&parent, &new_name(base)));
            removed.map_err(|errno| RootError::new(placed.place(), "take back", errno))?;
        }
        Ok(())
    }

    /// Renames files to their final names.
    ///
    /// # Errors
    ///
    /// [`RootError`] of the first file that cannot be renamed.
    pub(super) fn place(&self, outcomes: &[Outcome]) -> Result<(), RootError> {
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..self.context.threads.min(outcomes.len()) {
                scope.spawn(|| {
                    self.context.clocks.write.adopt_thread();
                    let mut directories = Directories::new(self.context.root, &self.claims, self.context.threads);
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

    /// Gives shared directories the attributes of the first package in order, and removes directories of packages
    /// that were not unpacked. `made` has the directories of all rounds: a deferred package may be the first in
    /// order.
    ///
    /// # Errors
    ///
    /// [`RootError`] if owner and mode of a directory cannot be set, or an empty directory cannot be removed.
    pub(super) fn settle_directories(
        self,
        gone: &BTreeSet<u32>,
        made: &mut CreatedDirectories,
    ) -> Result<(), RootError> {
        let fresh = Claims::new();
        let mut directories = Directories::new(self.context.root, &fresh, 1);
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
        // Deeper directories first. A directory with files of others stays.
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

fn place_one(directories: &mut Directories<'_>, work: &ExtractedFiles) -> Result<(), RootError> {
    for placed in work.placed.iter().filter(|placed| placed.role == PathState::New) {
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
    // Creating a file in a directory changes its time.
    let mtime_s = if mtime_s == has.mtime_s { wanted.mtime_s } else { mtime_s };
    files::set_directory(&parent, base, wanted.permissions, mtime_s)
}
