//! Tasks of a run: large files alone, small ones in packs.
//!
//! Largest first, and packs become smaller towards the end (guided self-scheduling, Polychronopoulos and Kuck 1987), so
//! that all workers end at nearly the same time. The same files always give the same tasks with the same ids, so a task
//! that two planners of one run publish exists once.

use crate::message::{Item, Kind, MESSAGE_BYTES_MAX, TAG_BYTES_MAX, Task};
use crate::names::RunId;

/// Largest pack in bytes. With 8 MB, a queue of 9000 tasks per second (measured with one publisher) feeds a fleet of 72
/// GB/s.
pub const PACK_BYTES_MAX: u64 = 8_000_000;

/// Size of packs at the end of a run, in bytes: a worker with 100 Mbit/s needs a tenth of a second for one.
pub const PACK_BYTES_MIN: u64 = 1_000_000;

/// A pack has at most one 64th of the bytes that are left. Of 600 MB in equal packs of 8 MB by four workers with 100 Mbit/s,
/// the last worker ended one second of 19 after the mean.
const PACKS_LEFT_MIN: u64 = 64;

/// Most files in a pack. A lost worker causes a pack to be repeated, and 64 requests take about a second.
pub const PACK_FILES_MAX: usize = 64;

/// Size from which a task is of the class `xl`, in bytes. A worker holds one such task at a time: 64 MB take 5 s of 100
/// Mbit/s.
pub const XL_BYTES_MIN: u64 = 64_000_000;

/// Largest file in bytes: S3 objects have at most 5 TiB.
pub const FILE_BYTES_MAX: u64 = 5 << 40;

/// Bytes of a task's message around its items: the other fields have at most 32 + 10 digits and their names.
const FRAME_BYTES: usize = 200;

/// Bytes of an item's message without its path: digits of the hash and the size, the ETag to replace, brackets and
/// quotes.
const ITEM_BYTES: usize = 64 + 20 + TAG_BYTES_MAX + 11;

/// Packs files into tasks. The items must have passed [`Item::check`].
///
/// ```
/// use fullbore_digest::Sha256;
/// use fullbore_fleet::message::Item;
/// use fullbore_fleet::names::RunId;
/// use fullbore_fleet::tasks;
///
/// let item = |path: &str, size| Item { path: path.to_owned(), size, sha256: Sha256::of(b"") };
/// let items = vec![item("pool/small", 1_000), item("pool/large", 9_000_000), item("pool/less", 2_000)];
/// let tasks = tasks::pack(&RunId::parse("9c1f")?, 1, items);
/// assert_eq!(tasks.iter().map(|task| task.bytes()).collect::<Vec<_>>(), [9_000_000, 3_000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn pack(run: &RunId, round: u32, items: Vec<Item>) -> Vec<Task> {
    pack_of(Kind::Fetch, run, round, items)
}

/// Packs files of a kind of work into tasks, as [`pack`] does.
pub fn pack_of(kind: Kind, run: &RunId, round: u32, mut items: Vec<Item>) -> Vec<Task> {
    items.sort_unstable_by(|a, b| b.size.cmp(&a.size).then_with(|| a.path.cmp(&b.path)));
    let mut tasks: Vec<Task> = Vec::new();
    let mut rest_bytes = items.iter().fold(0_u64, |sum, item| sum.saturating_add(item.size));
    let (mut pack, mut pack_bytes, mut message_bytes) = (Vec::new(), 0, FRAME_BYTES);
    let mut push = |items: Vec<Item>| {
        let (kind, run) = (kind.clone(), run.clone());
        tasks.push(Task { kind, run, round, items, replaces: Vec::new() });
    };
    for item in items {
        let size = item.size;
        // A quote or backslash takes two bytes.
        let written = 2 * item.path.len() + ITEM_BYTES;
        let most_bytes = (rest_bytes / PACKS_LEFT_MIN).clamp(PACK_BYTES_MIN, PACK_BYTES_MAX);
        let is_full = pack.len() == PACK_FILES_MAX
            || pack_bytes + size > most_bytes
            || message_bytes + written > MESSAGE_BYTES_MAX;
        if is_full && !pack.is_empty() {
            push(std::mem::take(&mut pack));
            rest_bytes = rest_bytes.saturating_sub(pack_bytes);
            (pack_bytes, message_bytes) = (0, FRAME_BYTES);
        }
        pack.push(item);
        (pack_bytes, message_bytes) = (pack_bytes + size, message_bytes + written);
    }
    if !pack.is_empty() {
        push(pack);
    }
    tasks
}

#[cfg(test)]
mod tests {
    use fullbore_digest::Sha256;
    use proptest::prelude::*;

    use super::*;
    use crate::names::Class;

    fn item(path: String, size: u64) -> Item {
        Item { path, size, sha256: Sha256::of(b"") }
    }

    fn run() -> RunId {
        RunId::parse("9c1f").unwrap()
    }

    #[test]
    fn a_large_file_is_alone_and_of_its_class() {
        let sizes = [8_000_000, 8_000_001, 63_999_999, 64_000_000, 1_540_000_000];
        let items = sizes.iter().enumerate().map(|(number, size)| item(format!("pool/{number}"), *size)).collect();
        let tasks = pack(&run(), 1, items);
        assert_eq!(
            tasks.iter().map(|task| (task.bytes(), task.class())).collect::<Vec<_>>(),
            [
                (1_540_000_000, Class::Xl),
                (64_000_000, Class::Xl),
                (63_999_999, Class::Large),
                (8_000_001, Class::Large),
                (8_000_000, Class::Large)
            ]
        );
    }

    #[test]
    fn packs_become_smaller_towards_the_end() {
        let items = (0..6000).map(|number| item(format!("pool/{number}"), 100_000)).collect();
        let sizes: Vec<u64> = pack(&run(), 1, items).iter().map(Task::bytes).collect();
        assert_eq!((sizes[0], sizes[sizes.len() - 2]), (64 * 100_000, PACK_BYTES_MIN));
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
        let mut rest: u64 = sizes.iter().sum();
        for size in sizes {
            assert!(size <= (rest / PACKS_LEFT_MIN).max(PACK_BYTES_MIN), "{size} of {rest}");
            rest -= size;
        }
    }

    #[test]
    fn long_paths_make_smaller_packs_whose_messages_are_readable() {
        let part = "\"".repeat(250);
        let items = (0..200).map(|number| item(format!("pool/{part}/{part}/{part}/{number}"), 1)).collect();
        let tasks = pack(&run(), u32::MAX, items);
        assert!(tasks.len() > 4);
        for task in &tasks {
            assert_eq!(&Task::parse(&task.to_bytes()).unwrap(), task);
        }
    }

    proptest! {
        #[test]
        fn every_file_is_in_one_task_and_every_task_within_its_bounds(
            sizes in proptest::collection::vec(prop_oneof![0..10_000_u64, 0..20_000_000_u64], 0..400),
            seed in any::<u64>(),
        ) {
            let mut items: Vec<Item> =
                sizes.iter().enumerate().map(|(number, size)| item(format!("pool/{number}"), *size)).collect();
            let tasks = pack(&run(), 1, items.clone());
            // Another order of the same files gives the same tasks.
            crate::random::Random::new(seed).shuffle(&mut items);
            prop_assert_eq!(&tasks, &pack(&run(), 1, items.clone()));
            let mut packed: Vec<Item> = tasks.iter().flat_map(|task| task.items.clone()).collect();
            packed.sort();
            items.sort();
            prop_assert_eq!(packed, items);
            for task in tasks {
                prop_assert!(task.items.len() == 1 || task.bytes() <= PACK_BYTES_MAX);
                prop_assert_eq!(&Task::parse(&task.to_bytes()).unwrap(), &task);
            }
        }
    }
}
