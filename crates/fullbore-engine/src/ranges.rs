//! A set of byte ranges: which parts of a file are present.
//!
//! Ranges are sorted and disjoint; touching neighbours are merged. A file that arrives in order has one range. A file
//! from several hosts has about as many as requests in flight.

use std::ops::Range;

/// Which bytes of a file are present.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Creates an empty set.
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// The ranges in ascending order; no two touch.
    pub fn as_slice(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Number of bytes in all ranges together.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether the set contains no byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set contains all bytes of `range`.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.end_of_run(range.start) >= range.end
    }

    /// End of the range that contains `offset`; `offset` itself if none does.
    pub fn end_of_run(&self, offset: u64) -> u64 {
        let after = self.0.partition_point(|range| range.end <= offset);
        match self.0.get(after) {
            Some(range) if range.start <= offset => range.end,
            _ => offset,
        }
    }

    /// Whether the set contains any byte of `range`.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        let first = self.0.partition_point(|old| old.end <= range.start);
        !range.is_empty() && self.0.get(first).is_some_and(|old| old.start < range.end)
    }

    /// Adds the bytes of a range; ranges that touch are merged.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Every range that touches the new one is merged with it.
        let first = self.0.partition_point(|old| old.end < range.start);
        let after = self.0.partition_point(|old| old.start <= range.end);
        if first == after {
            self.0.insert(first, range);
        } else {
            let start = range.start.min(self.0[first].start);
            let end = range.end.max(self.0[after - 1].end);
            self.0[first] = start..end;
            self.0.drain(first + 1..after);
        }
    }

    /// Removes the bytes of a range from the set.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|old| old.end <= range.start);
        let after = self.0.partition_point(|old| old.start < range.end);
        if first >= after {
            return;
        }
        let left = self.0[first].start..range.start;
        let right = range.end..self.0[after - 1].end;
        let rest = [left, right].into_iter().filter(|range| range.start < range.end);
        self.0.splice(first..after, rest);
    }

    /// The parts of `range` that the set lacks, in ascending order.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        let first = self.0.partition_point(|old| old.end <= range.start);
        for present in &self.0[first..] {
            if present.start >= range.end {
                break;
            }
            if at < present.start {
                gaps.push(at..present.start);
            }
            at = present.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Removes all bytes from offset `end` on.
    pub fn clamp(&mut self, end: u64) {
        self.remove(end..u64::MAX);
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Ranges {
        let mut set = Ranges::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The same as a row of flags, whatever is put in and taken out.
        #[test]
        fn ranges_are_those_of_a_row_of_flags(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..64, 0_u64..20), 0..40),
        ) {
            let mut ranges = Ranges::new();
            let mut flags = [false; 96];
            for (add, start, len) in steps {
                let range = start..start + len;
                if add { ranges.insert(range.clone()) } else { ranges.remove(range.clone()) }
                flags[range.start as usize..range.end as usize].fill(add);
            }
            for pair in ranges.as_slice().windows(2) {
                prop_assert!(pair[0].end < pair[1].start);
            }
            prop_assert_eq!(ranges.bytes(), flags.iter().filter(|flag| **flag).count() as u64);
            for (at, flag) in flags.iter().enumerate() {
                let at = at as u64;
                prop_assert_eq!(ranges.contains(&(at..at + 1)), *flag);
                prop_assert_eq!(ranges.end_of_run(at) > at, *flag);
            }
            let missing: Ranges = ranges.missing(0..96).into_iter().collect();
            prop_assert_eq!(missing.bytes() + ranges.bytes(), 96);
            prop_assert_eq!(ranges.overlaps(&(10..50)), flags[10..50].contains(&true));
            for gap in ranges.missing(10..50) {
                prop_assert!(gap.start >= 10 && gap.end <= 50 && gap.start < gap.end);
                prop_assert!(!flags[gap.start as usize..gap.end as usize].contains(&true));
            }
            ranges.clamp(40);
            prop_assert_eq!(ranges.bytes(), flags[..40].iter().filter(|flag| **flag).count() as u64);
        }
    }
}
