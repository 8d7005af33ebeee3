//! The blocks of a file that have arrived, as runs. Memory depends on the blocks that arrived, not on the claimed size.

use std::collections::BTreeMap;

use crate::wire::Run;

/// A set of blocks.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Maps the first block of each run to the one after its last. Runs never touch.
    runs: BTreeMap<u64, u64>,
}

impl Runs {
    /// Adds blocks. Returns how many of them are new.
    pub(super) fn add(&mut self, run: Run) -> u64 {
        let (first, end) = (run.first, run.first + run.count);
        let (mut whole, mut new) = (first..end, run.count);
        while let Some((from, to)) = self.runs.range(..=end).next_back().map(|(from, to)| (*from, *to))
            && to >= first
        {
            self.runs.remove(&from);
            new -= to.min(end).saturating_sub(from.max(first));
            whole = whole.start.min(from)..whole.end.max(to);
        }
        self.runs.insert(whole.start, whole.end);
        new
    }

    /// Whether the set has this block.
    pub(super) fn has(&self, index: u64) -> bool {
        self.runs.range(..=index).next_back().is_some_and(|(_, end)| index < *end)
    }

    /// The first missing block from this one on.
    pub(super) fn missing_from(&self, index: u64) -> u64 {
        self.runs.range(..=index).next_back().map_or(index, |(_, end)| index.max(*end))
    }

    /// All runs in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.iter().map(|(first, end)| Run { first: *first, count: end - first })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_what_a_set_of_blocks_is(adds in prop::collection::vec((0..60_u64, 1..20_u64), 0..30)) {
            let (mut runs, mut set) = (Runs::default(), BTreeSet::new());
            for (first, count) in adds {
                let new = (first..first + count).filter(|index| set.insert(*index)).count() as u64;
                prop_assert_eq!(runs.add(Run { first, count }), new);
            }
            prop_assert!((0..90).all(|index| runs.has(index) == set.contains(&index)));
            let missing = |index| (index..).find(|index| !set.contains(index)).unwrap();
            prop_assert!((0..90).all(|index| runs.missing_from(index) == missing(index)));
            let all: Vec<Run> = runs.iter().collect();
            prop_assert!(all.iter().flat_map(|run| run.first..run.first + run.count).eq(set));
            prop_assert!(all.windows(2).all(|pair| pair[0].first + pair[0].count < pair[1].first), "{:?}", all);
        }
    }
}
