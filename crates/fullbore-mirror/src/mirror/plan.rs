//! The plan: each file that the signed indexes name, with each path once.
//!
//! Indexes are streamed in. The plan keeps only paths, sizes and hashes, 48 bytes and the path per file, so that
//! Debian's 1.2 million files stay below 300 MB. If a path has several contents, the caller chooses one
//! ([`PlanBuilder::alternatives`]), because the archive can serve only one of them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

use fullbore_debian::index::OddEntry;
use fullbore_debian::path::{self, PathFault};
use fullbore_debian::version;
use fullbore_engine::digest::Sha256;
use fullbore_s3::objects;

use super::filter::{self, Candidate, PackageFacts};
use super::membership::SuiteId;
use crate::settings::Filters;

/// Maximum number of files in a plan. Debian with all its ports and history in one tree has about four million; file
/// numbers are `u32`.
pub(crate) const FILES_MAX: usize = 50_000_000;

/// Maximum number of indexes of a plan. Their numbers share 64 bits with the size.
pub(crate) const INDEXES_MAX: usize = 1 << 16;

/// Maximum size of a file in bytes: sizes have 48 bits. Far above any disk.
pub(crate) const SIZE_MAX: u64 = (1 << 48) - 2;

/// Value for an unknown size: `SHA256SUMS` of installer images has no sizes.
pub(crate) const SIZE_UNKNOWN: u64 = (1 << 48) - 1;

/// Maximum bytes of all paths together; their offsets are `u32`.
const ARENA_MAX: usize = u32::MAX as usize;

/// Why a plan cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// A path that no archive may contain.
    #[error("{index}: path {path:?} {fault}")]
    Path {
        /// Path of the index that names it.
        index: String,
        /// The path, shortened.
        path: String,
        /// Rule that the path breaks.
        fault: PathFault,
    },
    /// A reserved path of fullbore or of the archive.
    #[error("{index}: names {path:?}, a reserved path")]
    Reserved {
        /// Path of the index that names it.
        index: String,
        /// The path, shortened.
        path: String,
    },
    /// A limit is exceeded.
    #[error("{index}: {what} exceeds the limit of {limit}")]
    TooLarge {
        /// Path of the index that exceeds the limit.
        index: String,
        /// Quantity that exceeds the limit.
        what: &'static str,
        /// Value of the limit.
        limit: u64,
    },
}

impl PlanError {
    /// Whether the fault concerns one entry only, so that reading can go on.
    pub(crate) fn is_of_entry(&self) -> bool {
        match self {
            PlanError::Path { .. } | PlanError::Reserved { .. } => true,
            PlanError::TooLarge { limit, .. } => *limit == SIZE_MAX,
        }
    }
}

/// Maximum number of additional contents of all paths. Archives with some hundred are known; each content is requested
/// from the mirrors.
const ALTERNATIVES_MAX: usize = 10_000;

/// One of several contents that the indexes name for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alternative {
    /// Size of the content in bytes.
    pub size: u64,
    /// SHA-256 of the content.
    pub sha256: Sha256,
    /// Path of the index that names it.
    pub index: String,
    /// Suite that the index belongs to.
    pub suite: SuiteId,
    number: u16,
}

/// Number of an index in the plan being built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexId(u16);

/// Number of a file in a finished plan. Files are numbered in order of path.
pub(crate) type FileId = u32;

/// One file, 48 bytes.
#[derive(Debug, Clone, Copy)]
struct Slot {
    sha256: Sha256,
    path_at: u32,
    path_len: u16,
    /// Number of the set of suites that name the file.
    suites: u16,
    /// Low 48 bits: size. High 16 bits: number of the index that named it first.
    size_and_index: u64,
}

impl Slot {
    fn size(&self) -> u64 {
        self.size_and_index & SIZE_UNKNOWN
    }

    fn index(&self) -> u16 {
        (self.size_and_index >> 48) as u16
    }
}

/// Sets of suites by number. Files share a few dozen of them.
#[derive(Debug, Clone, Default)]
struct SuiteSets {
    sets: Vec<Vec<SuiteId>>,
    numbers: HashMap<Vec<SuiteId>, u16>,
    unions: HashMap<(u16, SuiteId), u16>,
}

impl SuiteSets {
    fn number(&mut self, set: Vec<SuiteId>) -> Option<u16> {
        if let Some(&number) = self.numbers.get(&set) {
            return Some(number);
        }
        let number = u16::try_from(self.sets.len()).ok()?;
        self.sets.push(set.clone());
        self.numbers.insert(set, number);
        Some(number)
    }

    fn with(&mut self, number: u16, suite: SuiteId) -> Option<u16> {
        if let Some(&union) = self.unions.get(&(number, suite)) {
            return Some(union);
        }
        let mut set = self.sets.get(usize::from(number))?.clone();
        if let Err(at) = set.binary_search(&suite) {
            set.insert(at, suite);
        }
        let union = self.number(set)?;
        self.unions.insert((number, suite), union);
        Some(union)
    }
}

#[derive(Debug)]
struct IndexInfo {
    name: String,
    suite: SuiteId,
    single: u16,
    /// See [`PlanBuilder::only`].
    architectures: Vec<String>,
}

impl IndexInfo {
    fn takes(&self, architecture: &str) -> bool {
        let wanted = &self.architectures;
        wanted.is_empty() || matches!(architecture, "all" | "source") || wanted.iter().any(|one| one == architecture)
    }
}

/// Versions of packages that are held back until their index ends, for `newest`.
#[derive(Debug, Default)]
struct Versions {
    packages: HashMap<PackageKey, Vec<VersionFiles>>,
}

/// Name and architecture.
type PackageKey = (String, String);

/// A version, and its files: one file, or several for a source package.
type VersionFiles = (String, Vec<HeldFile>);

#[derive(Debug)]
struct HeldFile {
    path: String,
    size: u64,
    sha256: Sha256,
}

/// A plan under construction; files may be added in any order.
#[derive(Debug)]
pub(crate) struct PlanBuilder {
    filters: Filters,
    arena: Vec<u8>,
    slots: Vec<Slot>,
    /// Hash table with open addressing: slot number + 1, or 0. At most three quarters full.
    table: Vec<u32>,
    hasher: RandomState,
    sets: SuiteSets,
    indexes: Vec<IndexInfo>,
    held: HashMap<u16, Versions>,
    /// Hashes of paths that the indexes name but the filters leave out. Cleaning must not delete these files.
    left_out: Vec<u64>,
    /// Paths with several contents; the first content is the one in the slot.
    alternatives: BTreeMap<String, Vec<Alternative>>,
}

/// Initial size of the table of paths.
const TABLE_SLOTS_MIN: usize = 1024;

impl PlanBuilder {
    /// Makes an empty plan that keeps the files which pass `filters`.
    pub(crate) fn new(filters: Filters) -> Self {
        PlanBuilder {
            filters,
            arena: Vec::new(),
            slots: Vec::new(),
            table: vec![0; TABLE_SLOTS_MIN],
            hasher: RandomState::new(),
            sets: SuiteSets::default(),
            indexes: Vec::new(),
            held: HashMap::new(),
            left_out: Vec::new(),
            alternatives: BTreeMap::new(),
        }
    }

    /// Adds an index. Errors show `name`, its path relative to the archive's root.
    ///
    /// # Errors
    ///
    /// [`PlanError::TooLarge`] for more than [`INDEXES_MAX`] indexes.
    pub(crate) fn index(&mut self, name: &str, suite: SuiteId) -> Result<IndexId, PlanError> {
        let too_many =
            || PlanError::TooLarge { index: name.to_owned(), what: "number of indexes", limit: INDEXES_MAX as u64 };
        let id = u16::try_from(self.indexes.len()).map_err(|_| too_many())?;
        let single = self.sets.number(vec![suite]).ok_or_else(too_many)?;
        self.indexes.push(IndexInfo { name: name.to_owned(), suite, single, architectures: Vec::new() });
        Ok(IndexId(id))
    }

    /// Restricts an index to packages of these architectures (all if empty), to `all`, and to sources.
    pub(crate) fn only(&mut self, index: IndexId, architectures: &[String]) {
        self.indexes[usize::from(index.0)].architectures = architectures.to_vec();
    }

    /// Adds a file that an index names, if it passes the filters.
    ///
    /// # Errors
    ///
    /// [`PlanError::Path`] or [`PlanError::Reserved`] for a forbidden path, [`PlanError::TooLarge`] if the file or the
    /// plan exceeds a limit. A file that the filters leave out is not checked.
    pub(crate) fn add(&mut self, index: IndexId, candidate: &Candidate<'_>) -> Result<(), PlanError> {
        // Files that are not wanted are not checked.
        if !self.is_wanted(index, candidate) {
            return Ok(());
        }
        self.check(index, candidate.path, candidate.size)?;
        if let (Some(_), Some(package)) = (self.filters.newest, candidate.package) {
            let key = (package.name.to_owned(), package.architecture.to_owned());
            let versions = self.held.entry(index.0).or_default().packages.entry(key).or_default();
            let file = HeldFile { path: candidate.path.to_owned(), size: candidate.size, sha256: candidate.sha256 };
            match versions.iter_mut().find(|(version, _)| version == package.version) {
                Some((_, files)) => files.push(file),
                None => versions.push((package.version.to_owned(), vec![file])),
            }
            return Ok(());
        }
        self.insert(index, candidate.path, candidate.size, candidate.sha256)
    }

    /// Leaves out an entry that cannot be verified, and notes its files, which must not be deleted. Returns whether the
    /// filters would have taken it.
    pub(crate) fn leave_out_odd(&mut self, index: IndexId, odd: &OddEntry) -> bool {
        let package = PackageFacts {
            name: &odd.package,
            architecture: &odd.architecture,
            version: &odd.version,
            source: &odd.source,
            section: &odd.section,
            priority: &odd.priority,
        };
        odd.paths.iter().for_each(|path| self.leave_out(path));
        let path = odd.paths.first().unwrap_or(&odd.written);
        self.is_wanted(index, &Candidate { path, size: 0, sha256: Sha256::EMPTY, package: Some(package) })
    }

    /// Whether architecture and filters accept this file. The path of a rejected file is noted.
    fn is_wanted(&mut self, index: IndexId, candidate: &Candidate<'_>) -> bool {
        if let Some(package) = candidate.package
            && !self.indexes[usize::from(index.0)].takes(package.architecture)
        {
            return false;
        }
        let is_wanted = filter::wants(&self.filters, candidate);
        if !is_wanted {
            self.leave_out(candidate.path);
        }
        is_wanted
    }

    /// Paths with several contents, in order. The contents are in the order of the indexes.
    pub(crate) fn alternatives(&self) -> &BTreeMap<String, Vec<Alternative>> {
        &self.alternatives
    }

    /// Chooses one of the contents of a path.
    pub(crate) fn choose(&mut self, path: &str, chosen: &Alternative) {
        let place = find(&self.table, &self.hasher, path, |slot| path_of(&self.arena, &self.slots[slot as usize]));
        if let Some(slot) = self.table[place].checked_sub(1) {
            let slot = &mut self.slots[slot as usize];
            slot.sha256 = chosen.sha256;
            slot.size_and_index = chosen.size | u64::from(chosen.number) << 48;
        }
    }

    /// Adds a path without content, for a file that only must not be deleted.
    ///
    /// # Errors
    ///
    /// [`PlanError::Path`] or [`PlanError::Reserved`] for a forbidden path, [`PlanError::TooLarge`] if the plan exceeds
    /// a limit.
    pub(crate) fn add_name(&mut self, index: IndexId, path: &str) -> Result<(), PlanError> {
        self.insert(index, path, SIZE_UNKNOWN, Sha256::EMPTY)
    }

    /// Ends an index, so that its newest versions are known.
    ///
    /// # Errors
    ///
    /// [`PlanError::TooLarge`] if the held back files exceed a limit of the plan.
    pub(crate) fn end_index(&mut self, index: IndexId) -> Result<(), PlanError> {
        let Some(held) = self.held.remove(&index.0) else { return Ok(()) };
        let keep = self.filters.newest.map_or(usize::MAX, |newest| newest as usize);
        for mut versions in held.packages.into_values() {
            versions.sort_by(|(a, _), (b, _)| version::compare(b, a));
            for (age, (_, files)) in versions.into_iter().enumerate() {
                for file in files {
                    if age < keep {
                        self.insert(index, &file.path, file.size, file.sha256)?;
                    } else {
                        self.leave_out(&file.path);
                    }
                }
            }
        }
        Ok(())
    }

    /// Sorts the files by path and completes the plan.
    ///
    /// # Errors
    ///
    /// [`PlanError::TooLarge`] if files that are still held back exceed a limit of the plan.
    pub(crate) fn finish(mut self) -> Result<Plan, PlanError> {
        let open: Vec<u16> = self.held.keys().copied().collect();
        for index in open {
            self.end_index(IndexId(index))?;
        }
        let mut order: Vec<u32> = (0..self.slots.len() as u32).collect();
        let (arena, slots) = (&self.arena, &self.slots);
        // Indexes are sorted by package, so paths come in long sorted runs, which a stable sort exploits.
        order.sort_by(|&a, &b| path_of(arena, &slots[a as usize]).cmp(path_of(arena, &slots[b as usize])));
        // The table has slot numbers in order of arrival; they become file numbers.
        let mut file_of = vec![0_u32; order.len()];
        for (file, &slot) in order.iter().enumerate() {
            file_of[slot as usize] = file as u32;
        }
        for entry in &mut self.table {
            if *entry != 0 {
                *entry = file_of[*entry as usize - 1] + 1;
            }
        }
        let slots = order.iter().map(|&slot| self.slots[slot as usize]).collect();
        self.left_out.sort_unstable();
        self.left_out.dedup();
        Ok(Plan {
            arena: self.arena,
            slots,
            table: self.table,
            hasher: self.hasher,
            sets: self.sets.sets,
            indexes: self.indexes.into_iter().map(|index| index.name).collect(),
            left_out: self.left_out,
        })
    }

    fn check(&self, index: IndexId, path: &str, size: u64) -> Result<(), PlanError> {
        let name = || self.indexes[usize::from(index.0)].name.clone();
        path::check(path).map_err(|fault| PlanError::Path { index: name(), path: shortened(path), fault })?;
        if is_reserved(path) {
            return Err(PlanError::Reserved { index: name(), path: shortened(path) });
        }
        if size > SIZE_MAX && size != SIZE_UNKNOWN {
            return Err(PlanError::TooLarge { index: name(), what: "size of a file", limit: SIZE_MAX });
        }
        Ok(())
    }

    fn insert(&mut self, index: IndexId, path: &str, size: u64, sha256: Sha256) -> Result<(), PlanError> {
        let info = &self.indexes[usize::from(index.0)];
        let bucket = find(&self.table, &self.hasher, path, |slot| path_of(&self.arena, &self.slots[slot as usize]));
        if let Some(slot) = self.table[bucket].checked_sub(1) {
            let slot = &mut self.slots[slot as usize];
            if slot.size() == SIZE_UNKNOWN {
                slot.size_and_index = size | u64::from(slot.index()) << 48;
            }
            let same_size = slot.size() == size || size == SIZE_UNKNOWN;
            if !same_size || slot.sha256 != sha256 {
                let info_of = |number: u16| &self.indexes[usize::from(number)];
                let first = || Alternative {
                    size: slot.size(),
                    sha256: slot.sha256,
                    index: info_of(slot.index()).name.clone(),
                    suite: info_of(slot.index()).suite,
                    number: slot.index(),
                };
                let count: usize = self.alternatives.len();
                let contents = self.alternatives.entry(path.to_owned()).or_insert_with(|| vec![first()]);
                if count.max(contents.len()) > ALTERNATIVES_MAX {
                    let (index, what) = (info.name.clone(), "number of paths with several contents");
                    return Err(PlanError::TooLarge { index, what, limit: ALTERNATIVES_MAX as u64 });
                }
                if !contents.iter().any(|other| (other.size, other.sha256) == (size, sha256)) {
                    let (name, suite) = (info.name.clone(), info.suite);
                    contents.push(Alternative { size, sha256, index: name, suite, number: index.0 });
                }
            }
            slot.suites = self.sets.with(slot.suites, info.suite).ok_or_else(|| PlanError::TooLarge {
                index: info.name.clone(),
                what: "number of sets of suites",
                limit: INDEXES_MAX as u64,
            })?;
            return Ok(());
        }
        let too_large =
            |what, limit: usize| PlanError::TooLarge { index: info.name.clone(), what, limit: limit as u64 };
        if self.slots.len() >= FILES_MAX {
            return Err(too_large("number of files", FILES_MAX));
        }
        if self.arena.len() + path.len() > ARENA_MAX {
            return Err(too_large("length of all paths", ARENA_MAX));
        }
        let slot = Slot {
            sha256,
            path_at: self.arena.len() as u32,
            path_len: u16::try_from(path.len()).map_err(|_| too_large("length of a path", path::PATH_BYTES_MAX))?,
            suites: info.single,
            size_and_index: size | u64::from(index.0) << 48,
        };
        self.arena.extend_from_slice(path.as_bytes());
        self.slots.push(slot);
        self.table[bucket] = self.slots.len() as u32;
        if self.slots.len() * 4 > self.table.len() * 3 {
            self.grow();
        }
        Ok(())
    }

    fn grow(&mut self) {
        let mut table = vec![0_u32; self.table.len() * 2];
        for (number, slot) in self.slots.iter().enumerate() {
            let mut bucket = self.hasher.hash_one(path_of(&self.arena, slot)) as usize & (table.len() - 1);
            while table[bucket] != 0 {
                bucket = (bucket + 1) & (table.len() - 1);
            }
            table[bucket] = number as u32 + 1;
        }
        self.table = table;
    }

    fn leave_out(&mut self, path: &str) {
        self.left_out.push(self.hasher.hash_one(path.as_bytes()));
    }
}

/// Position of `path` in the table, or the free position at which it belongs.
fn find<'a>(table: &[u32], hasher: &RandomState, path: &str, path_at: impl Fn(u32) -> &'a [u8]) -> usize {
    let mask = table.len() - 1;
    let mut bucket = hasher.hash_one(path.as_bytes()) as usize & mask;
    while table[bucket] != 0 && path_at(table[bucket] - 1) != path.as_bytes() {
        bucket = (bucket + 1) & mask;
    }
    bucket
}

fn path_of<'a>(arena: &'a [u8], slot: &Slot) -> &'a [u8] {
    &arena[slot.path_at as usize..][..usize::from(slot.path_len)]
}

fn shortened(path: &str) -> String {
    path.chars().take(120).collect()
}

/// Whether an index must not name this path: signed files, trace files, snapshots. Names with a leading dot are already
/// refused as paths.
fn is_reserved(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    matches!(name, "InRelease" | "Release" | "Release.gpg")
        || path.starts_with("project/trace/")
        || path.starts_with("snapshots/")
        || path.starts_with("Archive-Update-")
}

/// A file of a plan, with its path borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlanFile<'a> {
    /// Number of the file in the plan.
    pub id: FileId,
    /// Path relative to the mirror's directory.
    pub path: &'a str,
    /// Size in bytes; [`SIZE_UNKNOWN`] if the index has none.
    pub size: u64,
    /// SHA-256 of the content.
    pub sha256: Sha256,
    /// Numbers of the suites that name the file, sorted.
    pub suites: &'a [SuiteId],
}

impl PlanFile<'_> {
    /// Size in bytes, if the index has one.
    pub(crate) fn known_size(&self) -> Option<u64> {
        (self.size != SIZE_UNKNOWN).then_some(self.size)
    }

    /// Whether content with this size and hash is the file's.
    pub(crate) fn is(&self, size: u64, sha256: Sha256) -> bool {
        self.sha256 == sha256 && self.known_size().is_none_or(|known| known == size)
    }
}

/// All files of the mirror, numbered in order of path.
#[derive(Debug)]
pub(crate) struct Plan {
    arena: Vec<u8>,
    slots: Vec<Slot>,
    table: Vec<u32>,
    hasher: RandomState,
    sets: Vec<Vec<SuiteId>>,
    indexes: Vec<String>,
    left_out: Vec<u64>,
}

impl Plan {
    /// Number of files in the plan.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Paths that divide the files into ranges of similar number, in order; see [`objects::parted`].
    pub(crate) fn parted(&self) -> Vec<String> {
        objects::parted(self.len(), |place| self.file(place as FileId).path)
    }

    /// Whether the plan has no files.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The file with this number.
    ///
    /// # Panics
    /// Panics if the plan has no file with this number.
    pub(crate) fn file(&self, id: FileId) -> PlanFile<'_> {
        let slot = &self.slots[id as usize];
        let path = std::str::from_utf8(path_of(&self.arena, slot)).expect("paths came in as str");
        PlanFile {
            id,
            path,
            size: slot.size(),
            sha256: slot.sha256,
            suites: self.sets.get(usize::from(slot.suites)).map_or(&[], Vec::as_slice),
        }
    }

    /// Path of the index that named the file first.
    pub(crate) fn index_of(&self, id: FileId) -> &str {
        &self.indexes[usize::from(self.slots[id as usize].index())]
    }

    /// All files, in order of path.
    pub(crate) fn files(&self) -> impl ExactSizeIterator<Item = PlanFile<'_>> {
        (0..self.slots.len() as u32).map(|id| self.file(id))
    }

    /// The file with this path, if the plan has it.
    pub(crate) fn find(&self, path: &str) -> Option<PlanFile<'_>> {
        let bucket = find(&self.table, &self.hasher, path, |file| path_of(&self.arena, &self.slots[file as usize]));
        self.table[bucket].checked_sub(1).map(|file| self.file(file))
    }

    /// Whether an index names the path but the filters leave it out. Compares 64-bit hashes; a collision only keeps a
    /// file too long.
    pub(crate) fn leaves_out(&self, path: &str) -> bool {
        !self.left_out.is_empty() && self.left_out.binary_search(&self.hasher.hash_one(path.as_bytes())).is_ok()
    }
}

#[cfg(test)]
mod tests;
