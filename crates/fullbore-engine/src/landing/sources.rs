//! Which source sent which bytes of a file.

use std::ops::Range;

/// Ranges with their source: sorted, disjoint; neighbours of one source are merged.
#[derive(Debug, Default)]
pub(super) struct Sources(Vec<(Range<u64>, u16)>);

impl Sources {
    /// Sets the source of the bytes in a range that have none yet.
    pub(super) fn insert(&mut self, range: Range<u64>, source: u16) {
        if range.is_empty() {
            return;
        }
        let at = self.0.partition_point(|(old, _)| old.end <= range.start);
        let touches = |(old, from): &(Range<u64>, u16), edge: u64, inner: u64| {
            *from == source && edge == inner && !old.is_empty()
        };
        let left = at > 0 && touches(&self.0[at - 1], self.0[at - 1].0.end, range.start);
        let right = at < self.0.len() && touches(&self.0[at], self.0[at].0.start, range.end);
        match (left, right) {
            (true, true) => {
                self.0[at - 1].0.end = self.0[at].0.end;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].0.end = range.end,
            (false, true) => self.0[at].0.start = range.start,
            (false, false) => self.0.insert(at, (range, source)),
        }
    }

    /// Forgets the sources of a range.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut rest = Vec::with_capacity(self.0.len() + 1);
        for (old, source) in self.0.drain(..) {
            let left = old.start..old.end.min(range.start);
            let right = old.start.max(range.end)..old.end;
            rest.extend([left, right].into_iter().filter(|r| r.start < r.end).map(|r| (r, source)));
        }
        self.0 = rest;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Range<u64>, u16)> {
        self.0.iter().cloned()
    }

    /// Each source once, in ascending order.
    pub(super) fn names(&self) -> Vec<u16> {
        let mut names: Vec<u16> = self.0.iter().map(|(_, source)| *source).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn taking_nothing_away_splits_nothing() {
        let mut sources = Sources::default();
        sources.insert(9..19, 1);
        sources.remove(&(10..10));
        assert_eq!(sources.iter().count(), 1);
    }

    proptest! {
        /// The same as a row of owners, each byte set only where it has none.
        #[test]
        fn sources_are_those_of_a_row_of_owners(
            steps in proptest::collection::vec((0_u16..4, 0_u64..40, 0_u64..12), 0..40),
        ) {
            let mut sources = Sources::default();
            let mut row = [None; 64];
            for (source, start, len) in steps {
                let range = start..start + len;
                if source == 0 {
                    sources.remove(&range);
                    row[start as usize..(start + len) as usize].fill(None);
                } else if row[start as usize..(start + len) as usize].iter().all(Option::is_none) {
                    sources.insert(range, source);
                    row[start as usize..(start + len) as usize].fill(Some(source));
                }
            }
            let mut seen = [None; 64];
            let mut last: Option<(Range<u64>, u16)> = None;
            for (range, source) in sources.iter() {
                if let Some((before, from)) = last {
                    prop_assert!(before.end < range.start || (before.end == range.start && from != source));
                }
                seen[range.start as usize..range.end as usize].fill(Some(source));
                last = Some((range, source));
            }
            prop_assert_eq!(seen, row);
        }
    }
}
