//! The work of a run: files not requested yet, and parts of files that were returned.
//!
//! Files wait sorted by size. Every connection takes large parts from the big end, and with each its share of small
//! files from the small end. So it always has a long body to fill the pipe, and the small files are fetched along with
//! it. A big file is handed out piece by piece. Any host can take the pieces that nobody has requested yet, so the end
//! of a run does not wait for a single host.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::hosts::{HostId, HostSet};

/// Number of an item in the caller's catalogue.
pub type ItemId = u32;

/// A file to fetch, with the parts already present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Number of the file, chosen by the caller.
    pub id: ItemId,
    /// Size in bytes, from the signed index.
    pub size: u64,
    /// Ranges that are present already (from an earlier run), sorted and disjoint.
    pub present: Vec<Range<u64>>,
    /// Hosts that must not be asked for the file, whatever becomes of the others.
    pub excluded: HostSet,
}

/// A part of a file that is requested from one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of the file that the segment is of.
    pub item: ItemId,
    /// Offset of the first byte of the segment.
    pub start: u64,
    /// Offset behind the last byte; equal to `start` only for an empty file.
    pub end: u64,
    /// Size of the whole file, in bytes.
    pub size: u64,
}

impl Segment {
    /// Length of the segment, in bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether this part has no bytes.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether the segment is the whole file, so that no `Range` is needed.
    pub fn is_whole(&self) -> bool {
        self.start == 0 && self.end == self.size
    }
}

/// Files up to this size are fetched along with big ones. In Debian 12's sources these are 82 % of the files and 0.75 %
/// of the bytes.
const SMALL_BYTES: u64 = 64 << 10;

/// Which end of the queue a connection takes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The biggest files first.
    Bulk,
    /// The smallest files first.
    Small,
}

/// Preferences of a connection for its next request.
#[derive(Clone, Copy, Debug)]
pub struct WantedFile {
    /// Host of the connection.
    pub host: HostId,
    /// Whether to take small files or large ones first.
    pub priority: Priority,
    /// Maximum number of bytes in one request; a file up to half as much again is taken whole.
    pub segment_bytes: u64,
    /// Whether the host answers requests for byte ranges.
    pub ranges: bool,
    /// The file of the connection's last request, if it is incomplete.
    pub current: Option<ItemId>,
}

/// State of a file that was begun: its missing ranges, and the hosts that cannot serve it.
#[derive(Debug)]
struct Begun {
    size: u64,
    /// A host was asked for a part of it, so it counts against [`Queue::limit_begun`].
    is_held: bool,
    unasked: Vec<Range<u64>>,
    /// An empty file must still be requested; it has no range to show that.
    ask_empty: bool,
    excluded: HostSet,
    /// A part of it was returned: it is requested again before new files.
    returned: bool,
}

impl Begun {
    fn of(size: u64) -> Begun {
        Begun {
            size,
            is_held: false,
            unasked: Vec::new(),
            ask_empty: false,
            excluded: HostSet::default(),
            returned: false,
        }
    }

    fn has_work(&self) -> bool {
        self.ask_empty || !self.unasked.is_empty()
    }

    fn unasked_bytes(&self) -> u64 {
        self.unasked.iter().map(|range| range.end - range.start).sum()
    }
}

/// Files and parts of files that are not being requested at the moment.
#[derive(Debug)]
pub struct Queue {
    /// Files not begun, by size, smallest first.
    waiting: VecDeque<(u64, ItemId)>,
    begun: BTreeMap<ItemId, Begun>,
    /// Files of `begun` with parts to request, so that a search does not visit everything in flight.
    ready: BTreeSet<ItemId>,
    unasked_bytes: u64,
    /// Number of files in `waiting` up to [`SMALL_BYTES`].
    small_files: usize,
    /// Maximum total size of files in progress, in bytes.
    begun_bytes_max: u64,
    /// Total size of the files in progress, in bytes.
    held_bytes: u64,
    /// Bytes of smaller files that were begun while the largest one found no room.
    overtaking_bytes: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            waiting: VecDeque::new(),
            begun: BTreeMap::new(),
            ready: BTreeSet::new(),
            unasked_bytes: 0,
            small_files: 0,
            begun_bytes_max: u64::MAX,
            held_bytes: 0,
            overtaking_bytes: 0,
        }
    }
}

impl Queue {
    /// Sets the maximum total size of files in progress, from the first request for a file to [`Queue::forget`]. A
    /// larger file is begun when no other is in progress.
    pub fn limit_begun(&mut self, bytes: u64) {
        self.begun_bytes_max = bytes;
    }

    /// Whether a file of this size may be begun now.
    fn has_room(&self, size: u64) -> bool {
        self.held_bytes == 0 || self.held_bytes.saturating_add(size) <= self.begun_bytes_max
    }

    /// Whether the end of a file would let another one begin.
    pub(crate) fn waits_for_room(&self) -> bool {
        let unbegun = || self.ready.iter().filter_map(|item| self.begun.get(item)).filter(|begun| !begun.is_held);
        self.begun_bytes_max < u64::MAX
            && (self.waiting.back().is_some_and(|(size, _)| !self.has_room(*size))
                || unbegun().any(|begun| !self.has_room(begun.size)))
    }

    /// Adds files to the queue.
    pub fn add(&mut self, items: impl IntoIterator<Item = Item>) {
        for item in items {
            if item.present.is_empty() && item.excluded == HostSet::default() {
                self.unasked_bytes += item.size;
                self.waiting.push_back((item.size, item.id));
            } else {
                let unasked = subtract(0..item.size, &item.present);
                self.unasked_bytes += unasked.iter().map(|r| r.end - r.start).sum::<u64>();
                self.ready.insert(item.id);
                self.begun.insert(
                    item.id,
                    Begun { unasked, excluded: item.excluded, returned: true, ..Begun::of(item.size) },
                );
            }
        }
        let waiting = self.waiting.make_contiguous();
        waiting.sort_unstable();
        self.small_files = waiting.partition_point(|(size, _)| *size <= SMALL_BYTES);
    }

    /// Number of waiting small files per byte that is not requested yet.
    pub(crate) fn small_per_byte(&self) -> f64 {
        self.small_files as f64 / self.unasked_bytes.max(1) as f64
    }

    /// Number of bytes that are not requested yet.
    pub(crate) fn unasked_bytes(&self) -> u64 {
        self.unasked_bytes
    }

    /// Whether every byte has been requested.
    pub(crate) fn is_drained(&self) -> bool {
        self.waiting.is_empty() && self.ready.is_empty()
    }

    /// Whether the queue has enough for at least `requests` requests of this size.
    pub(crate) fn requests_at_least(&self, requests: usize, segment_bytes: u64) -> bool {
        let files = self.waiting.len() + self.ready.len();
        files >= requests || (files > 0 && self.unasked_bytes / segment_bytes >= requests as u64)
    }

    /// Restarts partly fetched files that only hosts without range support can still serve: they are fetched again as a
    /// whole from one of `whole_only`.
    pub(crate) fn take_whole_again(&mut self, with_ranges: HostSet, whole_only: HostSet) {
        for item in &self.ready {
            let Some(begun) = self.begun.get_mut(item) else { continue };
            if begun.excluded.covers(with_ranges)
                && !begun.excluded.covers(whole_only)
                && !matches!(begun.unasked.as_slice(), [only] if *only == (0..begun.size))
            {
                self.unasked_bytes += begun.size - begun.unasked_bytes();
                begun.unasked = vec![Range { start: 0, end: begun.size }];
            }
        }
    }

    /// Takes the next part for a connection; `None` if there is nothing for its host. If begun files are limited, they
    /// go to a store once complete. Connections then help to complete them before they begin others.
    pub fn take(&mut self, wanted: &WantedFile) -> Option<Segment> {
        let finishes_begun = self.begun_bytes_max < u64::MAX;
        self.take_current(wanted)
            .or_else(|| self.take_begun(wanted, !finishes_begun))
            .or_else(|| self.take_waiting(wanted))
            .or_else(|| self.take_begun(wanted, false))
    }

    /// Returns a part that did not arrive.
    pub fn give_back(&mut self, segment: &Segment) {
        let begun = self.begin(segment.item, segment.size);
        begun.returned = true;
        if segment.is_empty() {
            begun.ask_empty = segment.size == 0;
            self.note_ready(segment.item);
            return;
        }
        let mut fresh = subtract(segment.start..segment.end, &begun.unasked);
        let bytes: u64 = fresh.iter().map(|r| r.end - r.start).sum();
        begun.unasked.append(&mut fresh);
        begun.unasked.sort_unstable_by_key(|range| range.start);
        merge(&mut begun.unasked);
        self.unasked_bytes += bytes;
        self.note_ready(segment.item);
    }

    /// Excludes a host for this file. Returns all excluded hosts of the file.
    pub fn exclude(&mut self, item: ItemId, size: u64, host: HostId) -> HostSet {
        let begun = self.begin(item, size);
        begun.excluded.insert(host);
        begun.excluded
    }

    /// Size of a file that was begun, in bytes; 0 for others.
    pub fn size(&self, item: ItemId) -> u64 {
        self.begun.get(&item).map_or(0, |begun| begun.size)
    }

    /// Whether this file was begun and is not complete.
    pub(crate) fn is_begun(&self, item: ItemId) -> bool {
        self.begun.contains_key(&item)
    }

    /// Hosts that must not be asked for this file.
    pub fn excluded(&self, item: ItemId) -> HostSet {
        self.begun.get(&item).map_or(HostSet::default(), |begun| begun.excluded)
    }

    /// Allows every host for this file again, because it is requested under another name now.
    pub(crate) fn include_all(&mut self, item: ItemId) {
        if let Some(begun) = self.begun.get_mut(&item) {
            begun.excluded.clear();
        }
    }

    /// Drops the file: nothing more of it is wanted.
    pub fn forget(&mut self, item: ItemId) {
        if let Some(begun) = self.begun.remove(&item) {
            if begun.is_held {
                self.held_bytes -= begun.size;
            }
            self.unasked_bytes -= begun.unasked_bytes();
            self.ready.remove(&item);
        }
    }

    /// Files with parts to request that no host of `usable` may serve.
    pub(crate) fn unservable(&self, usable: HostSet) -> Vec<ItemId> {
        let mut items: Vec<ItemId> =
            self.ready.iter().filter(|item| self.begun[item].excluded.covers(usable)).copied().collect();
        if usable == HostSet::default() {
            items.extend(self.waiting.iter().map(|(_, item)| *item));
        }
        items
    }

    /// Drops all files that were not begun: the run is given up.
    pub(crate) fn abandon_waiting(&mut self) {
        self.unasked_bytes -= self.waiting.iter().map(|(size, _)| size).sum::<u64>();
        self.waiting.clear();
        self.small_files = 0;
    }

    fn begin(&mut self, item: ItemId, size: u64) -> &mut Begun {
        self.begun.entry(item).or_insert_with(|| Begun::of(size))
    }

    fn note_ready(&mut self, item: ItemId) {
        if self.begun.get(&item).is_some_and(Begun::has_work) {
            self.ready.insert(item);
        }
    }

    fn take_current(&mut self, wanted: &WantedFile) -> Option<Segment> {
        self.take_from(wanted.current?, wanted)
    }

    fn take_begun(&mut self, wanted: &WantedFile, only_returned: bool) -> Option<Segment> {
        let item = *self.ready.iter().find(|item| {
            let begun = &self.begun[item];
            (begun.returned || !only_returned)
                && (begun.is_held || self.has_room(begun.size))
                && !begun.excluded.contains(wanted.host)
                && (wanted.ranges || begun.unasked_bytes() == begun.size)
        })?;
        self.take_from(item, wanted)
    }

    fn take_waiting(&mut self, wanted: &WantedFile) -> Option<Segment> {
        let at = self.next_waiting(wanted.priority)?;
        let has_larger =
            at + 1 < self.waiting.len() && self.waiting.back().is_some_and(|(size, _)| !self.has_room(*size));
        let (size, item) = self.waiting.remove(at)?;
        self.overtaking_bytes = if has_larger { self.overtaking_bytes.saturating_add(size) } else { 0 };
        self.small_files -= usize::from(size <= SMALL_BYTES);
        let begun = self.begin(item, size);
        if size == 0 {
            begun.ask_empty = true;
        } else {
            begun.unasked = vec![Range { start: 0, end: size }];
        }
        self.ready.insert(item);
        self.take_from(item, wanted)
    }

    /// Position of the file to begin now. While the largest has no room, smaller ones may pass it, up to the limit of
    /// bytes in progress. Otherwise the largest files would come last, one after the other.
    fn next_waiting(&self, priority: Priority) -> Option<usize> {
        let (largest, last) = (self.waiting.back()?.0, self.waiting.len() - 1);
        if self.has_room(largest) {
            return Some(if priority == Priority::Bulk { last } else { 0 });
        }
        if self.overtaking_bytes > self.begun_bytes_max {
            return None;
        }
        let room = self.begun_bytes_max.saturating_sub(self.held_bytes);
        let smaller = self.waiting.partition_point(|(size, _)| *size <= room);
        let fitting = smaller.checked_sub(1)?;
        Some(if priority == Priority::Bulk { fitting } else { 0 })
    }

    fn take_from(&mut self, item: ItemId, wanted: &WantedFile) -> Option<Segment> {
        let has_room = self.has_room(self.size(item));
        let begun = self.begun.get_mut(&item)?;
        let size = begun.size;
        if begun.excluded.contains(wanted.host) || !(begun.is_held || has_room) {
            return None;
        }
        if std::mem::take(&mut begun.ask_empty) {
            begun.is_held = true;
            self.ready.remove(&item);
            return Some(Segment { item, start: 0, end: 0, size });
        }
        let first = begun.unasked.first()?.clone();
        let mut end = first.end;
        if wanted.ranges {
            // A file up to half as much again is not worth a second request.
            if first.end - first.start > wanted.segment_bytes + wanted.segment_bytes / 2 {
                end = first.start + wanted.segment_bytes;
            }
        } else if first != (0..size) {
            return None;
        }
        if end == first.end {
            begun.unasked.remove(0);
        } else {
            begun.unasked[0].start = end;
        }
        if !std::mem::replace(&mut begun.is_held, true) {
            self.held_bytes += size;
        }
        if begun.unasked.is_empty() {
            begun.returned = false;
            self.ready.remove(&item);
        }
        self.unasked_bytes -= end - first.start;
        Some(Segment { item, start: first.start, end, size })
    }
}

/// The parts of `whole` outside the sorted, disjoint `parts`.
pub(crate) fn subtract(whole: Range<u64>, parts: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut at = whole.start;
    for part in parts {
        if part.start > at && at < whole.end {
            left.push(at..part.start.min(whole.end));
        }
        at = at.max(part.end);
    }
    if at < whole.end {
        left.push(at..whole.end);
    }
    left
}

/// Merges touching ranges of a sorted list.
fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.dedup_by(|next, previous| {
        let joins = next.start <= previous.end;
        if joins {
            previous.end = previous.end.max(next.end);
        }
        joins
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(id: ItemId, size: u64) -> Item {
        Item { id, size, ..Item::default() }
    }

    fn wanted(priority: Priority, segment_bytes: u64) -> WantedFile {
        WantedFile { host: 0, priority, segment_bytes, ranges: true, current: None }
    }

    #[test]
    fn bulk_takes_the_biggest_small_takes_the_smallest() {
        let mut queue = Queue::default();
        queue.add([item(1, 10), item(2, 1000), item(3, 5)]);
        assert_eq!(queue.take(&wanted(Priority::Bulk, 4000)).map(|s| s.item), Some(2));
        assert_eq!(queue.take(&wanted(Priority::Small, 4000)).map(|s| s.item), Some(3));
    }

    #[test]
    fn a_connection_keeps_its_file_and_idle_ones_start_new_files_first() {
        let mut queue = Queue::default();
        queue.add([item(1, 1000), item(2, 900)]);
        let first = queue.take(&wanted(Priority::Bulk, 100)).expect("work");
        assert_eq!((first.item, first.start, first.end), (1, 0, 100));
        let other = queue.take(&wanted(Priority::Bulk, 100)).expect("work");
        assert_eq!(other.item, 2);
        let next = queue.take(&WantedFile { current: Some(1), ..wanted(Priority::Bulk, 100) }).expect("work");
        assert_eq!((next.item, next.start), (1, 100));
        let help = queue.take(&wanted(Priority::Bulk, 10_000)).expect("work");
        assert_eq!((help.item, help.start, help.end), (1, 200, 1000));
    }

    #[test]
    fn where_begun_files_are_limited_they_are_finished_before_new_ones_begin() {
        let mut queue = Queue::default();
        queue.limit_begun(10_000);
        queue.add([item(1, 2000), item(2, 1900)]);
        let mut take = || queue.take(&wanted(Priority::Bulk, 700)).map(|part| (part.item, part.start, part.end));
        assert_eq!([take(), take(), take()], [Some((1, 0, 700)), Some((1, 700, 1400)), Some((1, 1400, 2000))]);
        assert_eq!(take(), Some((2, 0, 700)));
    }

    #[test]
    fn what_came_back_goes_out_before_new_files_but_not_to_an_excluded_host() {
        let mut queue = Queue::default();
        queue.add([item(1, 50), item(2, 60)]);
        let segment = queue.take(&wanted(Priority::Bulk, 100)).expect("work");
        queue.exclude(segment.item, segment.size, 0);
        queue.give_back(&segment);
        assert_eq!(queue.take(&wanted(Priority::Bulk, 100)).map(|s| s.item), Some(1));
        assert_eq!(queue.take(&wanted(Priority::Bulk, 100)), None);
        assert_eq!(queue.take(&WantedFile { host: 1, ..wanted(Priority::Bulk, 100) }).map(|s| s.item), Some(2));
        assert!(queue.is_drained());
    }

    #[test]
    fn a_host_without_ranges_gets_whole_files_only() {
        let mut queue = Queue::default();
        queue.add([item(1, 1000)]);
        let part = queue.take(&wanted(Priority::Bulk, 100)).expect("work");
        let whole = WantedFile { host: 1, ranges: false, ..wanted(Priority::Bulk, 100) };
        assert_eq!(queue.take(&whole), None);
        queue.give_back(&part);
        assert_eq!(queue.take(&whole).map(|s| s.len()), Some(1000));
    }

    #[test]
    fn an_empty_file_is_asked_for_once_and_again_when_it_came_back() {
        let mut queue = Queue::default();
        queue.add([item(1, 0)]);
        let segment = queue.take(&wanted(Priority::Small, 100)).expect("work");
        assert!(segment.is_whole() && queue.is_drained());
        queue.give_back(&segment);
        assert!(!queue.is_drained());
        assert!(queue.take(&wanted(Priority::Small, 100)).is_some());
        assert!(queue.take(&wanted(Priority::Small, 100)).is_none());
    }

    #[test]
    fn present_parts_are_not_asked_for() {
        let mut queue = Queue::default();
        queue.add([Item { present: vec![10..20, 90..100], ..item(1, 100) }]);
        assert_eq!(queue.unasked_bytes(), 80);
        let mut taken = Vec::new();
        while let Some(segment) = queue.take(&wanted(Priority::Bulk, 1000)) {
            taken.push(segment.start..segment.end);
        }
        assert_eq!(taken, [0..10, 20..90]);
    }

    #[test]
    fn a_file_can_be_kept_from_a_host_from_the_beginning() {
        let mut queue = Queue::default();
        let mut excluded = HostSet::default();
        excluded.insert(0);
        queue.add([Item { excluded, ..item(1, 100) }, item(2, 10)]);
        assert_eq!(queue.take(&wanted(Priority::Bulk, 1000)).map(|s| s.item), Some(2));
        assert_eq!(queue.take(&wanted(Priority::Bulk, 1000)), None);
        assert_eq!(queue.take(&WantedFile { host: 1, ..wanted(Priority::Bulk, 1000) }).map(|s| s.item), Some(1));
    }

    #[test]
    fn files_are_begun_while_there_is_room_and_a_larger_one_alone() {
        let mut queue = Queue::default();
        queue.limit_begun(100);
        queue.add([item(1, 300), item(2, 60), item(3, 50), item(4, 30)]);
        let bulk = wanted(Priority::Bulk, 200);
        let first = queue.take(&bulk).expect("work");
        assert_eq!((first.item, first.len()), (1, 300), "alone");
        assert_eq!(queue.take(&bulk), None);
        assert!(queue.waits_for_room());
        queue.give_back(&first);
        assert_eq!(queue.take(&bulk), Some(first), "what is begun goes on");
        queue.forget(1);
        assert_eq!(queue.take(&bulk).map(|s| s.item), Some(2));
        assert_eq!(queue.take(&bulk).map(|s| s.item), Some(4), "the largest that has room");
        assert_eq!(queue.take(&bulk), None);
        queue.forget(2);
        assert_eq!(queue.take(&bulk).map(|s| s.item), Some(3));
        assert!(queue.is_drained() && !queue.waits_for_room());
    }

    #[test]
    fn the_largest_file_is_not_passed_for_ever() {
        let mut queue = Queue::default();
        queue.limit_begun(10);
        queue.add((1..100).map(|id| item(id, 1)).chain([item(0, 11)]));
        let small = wanted(Priority::Small, 100);
        let first = queue.take(&small).expect("work").item;
        let mut passed = 0;
        let mut begun = first;
        // There is always one that is begun, until the largest is due.
        while let Some(next) = queue.take(&small) {
            passed += 1;
            queue.forget(begun);
            begun = next.item;
        }
        assert_eq!(passed, 11);
        queue.forget(begun);
        assert_eq!(queue.take(&wanted(Priority::Bulk, 100)).map(|s| s.item), Some(0));
    }

    proptest! {
        /// However parts come back and files end, the limit holds, and every file is handed out: nothing is stuck.
        #[test]
        fn room_is_kept_and_never_runs_out_for_good(
            sizes in prop::collection::vec(0_u64..300, 1..40),
            begun in prop::collection::vec(any::<bool>(), 40),
            limit in 1_u64..400,
            steps in prop::collection::vec((any::<bool>(), 1_u64..200, 0_u8..4, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut queue = Queue::default();
            queue.limit_begun(limit);
            queue.add(sizes.iter().zip(begun).enumerate().map(|(id, (size, begun))| {
                // An earlier run has left some of it.
                let present = if begun && *size > 1 { vec![0..size / 2] } else { Vec::new() };
                Item { present, ..item(id as u32, *size) }
            }));
            let mut out: Vec<Segment> = Vec::new();
            let mut held = BTreeSet::new();
            let mut ended = BTreeSet::new();
            let end = |queue: &mut Queue, item: ItemId, out: &mut Vec<Segment>, held: &mut BTreeSet<ItemId>| {
                out.retain(|segment| segment.item != item);
                held.remove(&item);
                queue.forget(item);
            };
            for (bulk, length, action, which) in steps {
                if action == 0 && !out.is_empty() {
                    let at = which.index(out.len());
                    let segment = out.swap_remove(at);
                    queue.give_back(&segment);
                } else if action == 1 && !held.is_empty() {
                    let item = *held.iter().nth(which.index(held.len())).expect("it is in the set");
                    end(&mut queue, item, &mut out, &mut held);
                    ended.insert(item);
                } else if let Some(segment) =
                    queue.take(&wanted(if bulk { Priority::Bulk } else { Priority::Small }, length))
                {
                    held.insert(segment.item);
                    out.push(segment);
                }
                let bytes: u64 = held.iter().map(|item| sizes[*item as usize]).sum();
                let occupying = held.iter().filter(|item| sizes[**item as usize] > 0).count();
                prop_assert!(bytes <= limit || occupying == 1, "{bytes} of {limit} by {occupying}");
            }
            // Each end of a file lets the next begin.
            while ended.len() < sizes.len() {
                while let Some(segment) = queue.take(&wanted(Priority::Bulk, 70)) {
                    held.insert(segment.item);
                }
                let Some(item) = held.pop_first() else {
                    prop_assert!(false, "stuck with {} of {}", ended.len(), sizes.len());
                    break;
                };
                queue.forget(item);
                ended.insert(item);
            }
            prop_assert!(queue.is_drained());
        }

        /// Whatever is taken and given back, every byte is handed out and none twice at a time.
        #[test]
        fn every_byte_is_handed_out_once(
            sizes in prop::collection::vec(0u64..5000, 1..20),
            steps in prop::collection::vec((any::<bool>(), 1u64..2000, 0u8..4), 1..200),
        ) {
            let mut queue = Queue::default();
            queue.add(sizes.iter().enumerate().map(|(id, size)| item(id as u32, *size)));
            let mut out: Vec<Segment> = Vec::new();
            for (bulk, length, action) in steps {
                if action == 0 && !out.is_empty() {
                    let segment = out.swap_remove(length as usize % out.len());
                    queue.give_back(&segment);
                } else if let Some(segment) = queue.take(&wanted(if bulk { Priority::Bulk } else { Priority::Small }, length)) {
                    out.push(segment);
                }
                let held: u64 = out.iter().map(Segment::len).sum();
                prop_assert_eq!(held + queue.unasked_bytes(), sizes.iter().sum::<u64>());
            }
            while let Some(segment) = queue.take(&wanted(Priority::Bulk, 700)) {
                out.push(segment);
            }
            prop_assert!(queue.is_drained());
            out.sort_by_key(|s| (s.item, s.start));
            for (id, size) in sizes.iter().enumerate() {
                let mut at = 0;
                for segment in out.iter().filter(|s| s.item == id as u32) {
                    prop_assert_eq!(segment.start, at);
                    at = segment.end;
                }
                prop_assert_eq!(at, *size);
            }
        }
    }
}
