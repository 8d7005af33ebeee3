//! Table of claimed names, which keeps packages that are unpacked in parallel apart.
//!
//! A package claims a name in a directory before it creates the file. The directory is identified by device and inode,
//! so that two paths to it count as one. Several packages can claim a directory, but only one any other file: the next
//! one is told of the conflict and unpacked later, alone.

use std::collections::HashMap;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::database::Permissions;

/// A directory on disk: device and inode.
pub(super) type Identity = (u64, u64);

/// Number of parts of the table, each with a lock. More than threads, so that they seldom contend.
const PARTS: usize = 64;

/// Owner, mode and time of a directory in an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attributes {
    pub permissions: Permissions,
    pub mtime_s: i64,
}

/// A claimed name.
#[derive(Debug)]
pub(super) enum Claim {
    /// Claimed by this package for a file other than a directory.
    Other(u32),
    /// Claimed by these packages for a directory, in the order of their claims.
    Directory {
        /// Whether it was created for this round, with the attributes of the first claimant.
        made: bool,
        /// Path of the directory.
        path: Box<[u8]>,
        claimants: Vec<(u32, Attributes)>,
        /// Packages that claimed the name for another file and were deferred.
        rivals: Vec<u32>,
    },
}

impl Claim {
    /// Records the conflict with a package; returns the other packages.
    fn taken_from(&mut self, package: u32) -> Taken {
        match self {
            Claim::Other(by) => Taken { by: vec![*by] },
            Claim::Directory { claimants, rivals, .. } => {
                rivals.push(package);
                Taken { by: claimants.iter().map(|(by, _)| *by).collect() }
            }
        }
    }
}

type Names = HashMap<(Identity, Box<[u8]>), Claim>;

/// Table of claimed names.
#[derive(Debug)]
pub(super) struct Claims {
    parts: Vec<Mutex<Names>>,
    hasher: RandomState,
    /// Directories created in this round, which contain only claimed names.
    fresh: Mutex<HashSet<Identity>>,
}

/// Conflict: other packages claimed the name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub by: Vec<u32>,
}

impl Claims {
    pub(super) fn new() -> Claims {
        Claims {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            fresh: Mutex::default(),
        }
    }

    fn part(&self, directory: Identity) -> MutexGuard<'_, Names> {
        // By directory: the kernel serialises the creation of files in a directory anyway.
        let part = self.hasher.hash_one(directory) as usize % PARTS;
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a name for a file other than a directory.
    ///
    /// # Errors
    ///
    /// [`Taken`] if another package claimed the name in this round.
    pub(super) fn other(&self, directory: Identity, name: &[u8], package: u32) -> Result<(), Taken> {
        let mut names = self.part(directory);
        match names.entry((directory, name.into())) {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Claim::Other(package));
                Ok(())
            }
            std::collections::hash_map::Entry::Occupied(mut occupied) => Err(occupied.get_mut().taken_from(package)),
        }
    }

    /// Claims a name for a directory. Calls `make` for the first claimant, under the lock of the name; `make` returns
    /// whether it created the directory.
    ///
    /// # Errors
    ///
    /// The error of `make`. The inner result is [`Taken`] if another package claimed the name for a file, or an earlier
    /// package must come first.
    pub(super) fn directory<E>(
        &self,
        parent: Identity,
        name: &[u8],
        path: &[u8],
        package: u32,
        attributes: Attributes,
        make: impl FnOnce() -> Result<bool, E>,
    ) -> Result<Result<(), Taken>, E> {
        let mut names = self.part(parent);
        match names.entry((parent, name.into())) {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                let made = make()?;
                let claimants = vec![(package, attributes)];
                vacant.insert(Claim::Directory { made, path: path.into(), claimants, rivals: Vec::new() });
                Ok(Ok(()))
            }
            std::collections::hash_map::Entry::Occupied(mut occupied) => match occupied.get_mut() {
                Claim::Other(by) => Ok(Err(Taken { by: vec![*by] })),
                // An earlier package in the order that conflicts with this directory must come first.
                Claim::Directory { rivals, .. } if rivals.iter().any(|rival| *rival < package) => {
                    Ok(Err(Taken { by: rivals.clone() }))
                }
                Claim::Directory { claimants, .. } => {
                    claimants.push((package, attributes));
                    Ok(Ok(()))
                }
            },
        }
    }

    /// For a package that finds a directory where it wants to create another file. A directory that existed before this
    /// round stays, as in dpkg.
    ///
    /// # Errors
    ///
    /// [`Taken`] if another package created the directory in this round.
    pub(super) fn found_directory(&self, parent: Identity, name: &[u8], package: u32) -> Result<(), Taken> {
        match self.part(parent).get_mut(&(parent, name.into())) {
            Some(claim @ (Claim::Directory { made: true, .. } | Claim::Other(_))) => Err(claim.taken_from(package)),
            _ => Ok(()),
        }
    }

    /// Notes that a directory was created in this round.
    pub(super) fn note_fresh(&self, directory: Identity) {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner).insert(directory);
    }

    /// Whether a directory was created in this round.
    pub(super) fn is_fresh(&self, directory: Identity) -> bool {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner).contains(&directory)
    }

    /// All claims of the round, after its workers have ended.
    pub(super) fn into_claims(self) -> impl Iterator<Item = Claim> {
        let parts = self.parts.into_iter().map(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner));
        parts.flat_map(|names| names.into_values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTRIBUTES: Attributes = Attributes { permissions: Permissions { uid: 0, gid: 0, mode: 0o755 }, mtime_s: 0 };

    #[test]
    fn a_file_has_one_owner_and_a_directory_many() {
        let claims = Claims::new();
        assert_eq!(claims.other((1, 1), b"a", 0), Ok(()));
        assert_eq!(claims.other((1, 1), b"a", 1), Err(Taken { by: vec![0] }));
        assert_eq!(claims.other((1, 2), b"a", 1), Ok(()));
        let mut made = 0;
        for package in 0..3 {
            let make = || -> Result<bool, ()> {
                made += 1;
                Ok(true)
            };
            assert_eq!(claims.directory((1, 1), b"d", b"d", package, ATTRIBUTES, make), Ok(Ok(())));
        }
        assert_eq!(made, 1);
        assert_eq!(claims.other((1, 1), b"d", 7), Err(Taken { by: vec![0, 1, 2] }));
        let make = || -> Result<bool, ()> { Ok(true) };
        assert_eq!(claims.directory((1, 1), b"d", b"d", 8, ATTRIBUTES, make), Ok(Err(Taken { by: vec![7] })));
        assert_eq!(claims.directory((1, 1), b"d", b"d", 6, ATTRIBUTES, make), Ok(Ok(())));
        assert_eq!(claims.found_directory((1, 1), b"x", 3), Ok(()));
        assert_eq!(claims.found_directory((1, 1), b"a", 3), Err(Taken { by: vec![0] }));
        let failed = claims.directory((1, 1), b"a", b"a", 7, ATTRIBUTES, || Err("not called"));
        assert_eq!(failed, Ok(Err(Taken { by: vec![0] })));
        assert_eq!(claims.into_claims().count(), 3);
    }
}
