//! The fastest strategy for a new index: a merged patch, a chain of patches, or the whole file.
//!
//! The estimated time is bytes over the network's rate, one round trip, and the plain size over the rate of the pass. It
//! need not be exact: usually the strategies differ tenfold.

use std::collections::HashSet;
use std::fmt;

use fullbore_debian::compression::Form;
use fullbore_debian::diff_index::{DiffFile, DiffIndex, PatchSet};
use fullbore_debian::release::IndexEntry;
use fullbore_engine::digest::Sha256;
use fullbore_engine::units::several;

use crate::acquire::Configuration;

/// Plain bytes per second through the pass that patches. Measured with plain files on two cores of 2.5 GHz;
/// frames that are copied are not much faster, since all of it is hashed.
const PATCH_BYTES_PER_S: f64 = 700e6;

/// Plain bytes per second where a compressed file is converted whole.
const CONVERT_BYTES_PER_S: f64 = 250e6;

/// Plain bytes per second out of a form, one core.
fn decode_bytes_per_s(form: Form) -> f64 {
    match form {
        Form::Plain => 4e9,
        Form::Lz4 => 3e9,
        Form::Zst => 1.5e9,
        Form::Gz => 500e6,
        Form::Xz => 130e6,
        Form::Bz2 => 40e6,
    }
}

/// Measured rate and round-trip time of the network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Network {
    /// Bytes per second of all connections.
    pub bytes_per_s: f64,
    /// Round-trip time of a request in seconds.
    pub rtt_s: f64,
}

impl Network {
    /// The assumption before the first large file. A guess.
    pub(super) const UNKNOWN: Network = Network { bytes_per_s: 12.5e6, rtt_s: 0.03 };
}

/// apt's limits for the use of patches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// `Acquire::PDiffs::FileLimit`: number of patches of one index; 0 for no limit.
    pub files: u64,
    /// `Acquire::PDiffs::SizeLimit`: bytes of patches in percent of the whole file; 0 for no limit.
    pub size_percent: u64,
}

impl Limits {
    /// Reads the limits from apt's configuration.
    pub(super) fn of(configuration: &Configuration) -> Limits {
        let number = |key: &str, default: i64| u64::try_from(configuration.number(key, default)).unwrap_or(0);
        Limits {
            files: number("Acquire::PDiffs::FileLimit", 0),
            size_percent: number("Acquire::PDiffs::SizeLimit", 100),
        }
    }
}

/// A patch to fetch, as a compressed file and as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Patch {
    /// Name, size and hash of the compressed file.
    pub download: DiffFile,
    /// Name, size and hash of the plain text.
    pub plain: DiffFile,
}

/// A strategy for a new index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Strategy {
    /// Patches of the local index, oldest first.
    Patches(Vec<Patch>),
    /// The whole file in this form.
    Whole(Form, IndexEntry),
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Strategy::Patches(patches) => f.write_str(&several(patches.len() as u64, "patch", "patches")),
            Strategy::Whole(form, _) => write!(f, "whole, as {form}"),
        }
    }
}

impl Strategy {
    /// Bytes that this strategy fetches.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Strategy::Patches(patches) => patches.iter().fold(0, |sum, patch| sum.saturating_add(patch.download.size)),
            Strategy::Whole(_, entry) => entry.size,
        }
    }

    /// Plain bytes that this strategy holds in memory at once.
    fn held_bytes(&self) -> u64 {
        match self {
            Strategy::Patches(patches) => patches.iter().fold(0, |sum, patch| sum.saturating_add(patch.plain.size)),
            Strategy::Whole(..) => 0,
        }
    }

    fn seconds(&self, network: Network, plain_size: u64) -> f64 {
        let plain = plain_size as f64;
        let fetch = network.rtt_s + self.bytes() as f64 / network.bytes_per_s;
        match self {
            // The pass begins when all patches are there.
            Strategy::Patches(_) => fetch + plain / PATCH_BYTES_PER_S,
            // The conversion, too, begins after the download.
            Strategy::Whole(form, _) => fetch + plain / decode_bytes_per_s(*form).min(CONVERT_BYTES_PER_S),
        }
    }
}

/// The whole file in its fastest form, except the tried ones. The plain form comes last: most archives list it for its
/// hash and do not serve it.
pub(super) fn whole(
    forms: &[(Form, IndexEntry)],
    tried: &[Form],
    plain_size: Option<u64>,
    network: Network,
) -> Option<Strategy> {
    let left = || forms.iter().filter(|(form, _)| !tried.contains(form));
    let only_plain = left().all(|(form, _)| *form == Form::Plain);
    let usual = left().filter(|(form, _)| only_plain || *form != Form::Plain);
    let ways = usual.map(|(form, entry)| Strategy::Whole(*form, entry.clone()));
    // Without a known plain size: ten times the compressed size, as usual for indexes.
    let size = |way: &Strategy| plain_size.unwrap_or(way.bytes().saturating_mul(10));
    ways.min_by(|a, b| a.seconds(network, size(a)).total_cmp(&b.seconds(network, size(b))))
}

/// The strategies by patches from the old state to the current one.
pub(super) fn patched(index: &DiffIndex, old: (u64, Sha256)) -> Vec<Strategy> {
    let mut ways = Vec::new();
    // A single merged patch leads to the current state.
    ways.extend(steps(&index.main, old).map(|steps| if index.merged { steps[..1].to_vec() } else { steps }));
    ways.extend(steps(&index.unmerged, old));
    ways.into_iter().map(Strategy::Patches).collect()
}

/// The patches from the last occurrence of the old state. A duplicate name makes them unusable: two downloads of one run
/// cannot have one name.
fn steps(set: &PatchSet, (size, sha256): (u64, Sha256)) -> Option<Vec<Patch>> {
    let start = set.history.iter().rposition(|state| state.sha256 == sha256 && state.size == size)?;
    let mut seen = HashSet::new();
    set.history[start..]
        .iter()
        .map(|state| {
            if !seen.insert(&state.name) {
                return None;
            }
            let plain = set.patches.iter().find(|patch| patch.name == state.name)?;
            let download = set.downloads.iter().find(|file| file.name.strip_suffix(".gz") == Some(&state.name))?;
            Some(Patch { download: download.clone(), plain: plain.clone() })
        })
        .collect()
}

/// Limits for the plain bytes of patches in memory: always allowed, and never exceeded. Guesses; Debian's largest patches
/// have 10 MB.
const PATCHES_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=512 << 20;

/// The fastest strategy within the limits.
pub(super) fn best(
    patched: Vec<Strategy>,
    whole: Option<Strategy>,
    plain_size: u64,
    network: Network,
    limits: Limits,
) -> Option<Strategy> {
    let most = whole.as_ref().map_or(u64::MAX, Strategy::bytes);
    let within = |way: &Strategy| {
        let count = if let Strategy::Patches(patches) = way { patches.len() as u64 } else { 0 };
        let small = limits.size_percent == 0 || way.bytes() <= most.saturating_mul(limits.size_percent) / 100;
        // Patches larger than what they make are no gain.
        let held = plain_size.clamp(*PATCHES_BYTES.start(), *PATCHES_BYTES.end());
        (limits.files == 0 || count <= limits.files) && small && way.held_bytes() <= held
    };
    let ways = patched.into_iter().filter(within).chain(whole);
    ways.min_by(|a, b| a.seconds(network, plain_size).total_cmp(&b.seconds(network, plain_size)))
}

#[cfg(test)]
mod tests {
    use fullbore_debian::path::ArchivePath;

    use super::*;

    fn file(name: &str, size: u64) -> DiffFile {
        DiffFile { name: name.to_owned(), size, sha256: Sha256::of(name.as_bytes()) }
    }

    fn set(names: &[&str], size: u64) -> PatchSet {
        PatchSet {
            history: names.iter().map(|name| file(name, 1000)).collect(),
            patches: names.iter().map(|name| file(name, size * 4)).collect(),
            downloads: names.iter().map(|name| file(&format!("{name}.gz"), size)).collect(),
        }
    }

    fn index(merged: bool) -> DiffIndex {
        DiffIndex {
            current: (Sha256::of(b"new"), 1010),
            merged,
            main: set(&["T-3-F-1", "T-3-F-2", "T-3-F-3"], 100),
            unmerged: PatchSet::default(),
        }
    }

    fn whole_file(size: u64) -> Option<Strategy> {
        let entry =
            IndexEntry { path: ArchivePath::parse("Packages.gz").unwrap(), size, sha256: Sha256::EMPTY, sha512: None };
        whole(&[(Form::Gz, entry)], &[], Some(size * 5), Network::UNKNOWN)
    }

    #[test]
    fn a_plain_file_is_asked_for_where_no_other_form_is_left() {
        let entry = |name: &str, size| {
            let path = ArchivePath::parse(name).unwrap();
            IndexEntry { path, size, sha256: Sha256::EMPTY, sha512: None }
        };
        let forms = [
            (Form::Xz, entry("Packages.xz", 224)),
            (Form::Gz, entry("Packages.gz", 230)),
            (Form::Plain, entry("Packages", 234)),
        ];
        let near = Network { bytes_per_s: 125e6, rtt_s: 0.0001 };
        let mut tried = Vec::new();
        while let Some(Strategy::Whole(form, _)) = whole(&forms, &tried, Some(234), near) {
            tried.push(form);
        }
        assert_eq!(tried.len(), 3);
        assert_eq!(tried[2], Form::Plain);
    }

    const FREE: Limits = Limits { files: 0, size_percent: 0 };

    #[test]
    fn merged_patches_stand_alone_and_steps_follow_each_other() {
        let old = (1000, Sha256::of(b"T-3-F-2"));
        for (merged, count) in [(true, 1), (false, 2)] {
            let ways = patched(&index(merged), old);
            let [Strategy::Patches(patches)] = &ways[..] else { panic!("{ways:?}") };
            assert_eq!((patches.len(), patches[0].download.name.as_str()), (count, "T-3-F-2.gz"));
        }
        assert!(patched(&index(true), (1001, old.1)).is_empty(), "another size is another state");
        assert!(patched(&index(true), (1000, Sha256::of(b"unknown"))).is_empty());
    }

    #[test]
    fn a_patch_that_is_listed_nowhere_is_no_way() {
        let mut index = index(false);
        index.main.downloads.remove(1);
        assert!(patched(&index, (1000, Sha256::of(b"T-3-F-1"))).is_empty());
    }

    #[test]
    fn a_patch_that_is_listed_twice_is_no_way() {
        let twice = DiffIndex { main: set(&["T-1", "T-2", "T-1"], 100), ..index(false) };
        assert!(patched(&twice, (1000, Sha256::of(b"T-2"))).len() == 1, "behind the first it is listed once");
        let twice = DiffIndex { main: set(&["T-1", "T-2", "T-2"], 100), ..index(false) };
        assert!(patched(&twice, (1000, Sha256::of(b"T-1"))).is_empty());
    }

    #[test]
    fn patches_that_memory_cannot_hold_are_no_way() {
        let way = |size: u64| {
            let mut index = index(false);
            index.main.patches.iter_mut().for_each(|patch| patch.size = size);
            let patches = patched(&index, (1000, Sha256::of(b"T-3-F-1")));
            best(patches, whole_file(1_000_000), 300 << 20, Network::UNKNOWN, FREE).unwrap()
        };
        assert!(matches!(way(100 << 20), Strategy::Patches(_)), "as large as what they make");
        assert!(matches!(way(101 << 20), Strategy::Whole(..)), "larger");
        assert!(matches!(way(u64::MAX / 2), Strategy::Whole(..)), "no sum is that large");
    }

    #[test]
    fn the_fastest_way_is_taken() {
        let patches = patched(&index(false), (1000, Sha256::of(b"T-3-F-1")));
        let by_patches = |whole: u64, limits| {
            matches!(
                best(patches.clone(), whole_file(whole), 1000, Network::UNKNOWN, limits),
                Some(Strategy::Patches(_))
            )
        };
        assert!(by_patches(1_000_000, FREE));
        assert!(!by_patches(100, FREE), "300 bytes of patches are more than the file");
        assert!(!by_patches(1_000_000, Limits { files: 2, size_percent: 0 }));
        assert!(!by_patches(600, Limits { files: 0, size_percent: 40 }));
        let slow = Network { bytes_per_s: 1e5, rtt_s: 0.3 };
        let fast = Network { bytes_per_s: 1e9, rtt_s: 0.0001 };
        let huge: Vec<Strategy> =
            patched(&DiffIndex { main: set(&["a"], 10_000_000), ..index(true) }, (1000, Sha256::of(b"a")));
        let choice = |network| best(huge.clone(), whole_file(40_000_000), 200_000_000, network, FREE);
        assert!(matches!(choice(slow), Some(Strategy::Patches(_))));
        assert!(matches!(choice(fast), Some(Strategy::Patches(_))));
        let fast_form = whole_file(11_000_000);
        assert!(matches!(best(huge, fast_form, 1_000_000_000, fast, FREE), Some(Strategy::Patches(_))));
    }
}
