//! Finds the common lines of two texts, compared as numbers.
//!
//! Indexes are sorted lists of mostly unique lines. Lines that occur exactly once in both texts, and in the same order,
//! divide the texts; the longest ascending sequence of them is used, as in Bram Cohen's patience diff. Between two of
//! these lines there are only a few others, which imara-diff's Myers algorithm compares.
//!
//! Texts without such lines, which are not indexes, are compared as a whole if that is fast, and replaced otherwise. So
//! the time is limited, whereas either algorithm of imara-diff alone takes minutes for some inputs of 60 MB. Measured:
//! histogram took 8.8 s for every 300th line of 700,000 changed; Myers took over 100 s for five lines in random order.

use std::ops::Range;

use imara_diff::{Algorithm, Diff, Token};

/// Maximum number of lines on both sides that Myers compares as a whole: at most about ten milliseconds.
const GAP_LINES: usize = 4_000;

/// Maximum depth of searching a gap for lines that are unique within it. Each level costs one pass over the gap; a text
/// that needs more is not an index.
const LEVELS: usize = 8;

/// Lines of the old text and the lines that replace them, both counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hunk {
    pub before: Range<usize>,
    pub after: Range<usize>,
}

/// Returns the differences in ascending order; all lines outside of them are equal. `different` is larger than the
/// number of every line.
pub(super) fn compare(before: &[Token], after: &[Token], different: u32) -> Vec<Hunk> {
    let seen = vec![Occurrences::default(); different as usize];
    let mut comparison = Comparison { before, after, seen, diff: Diff::default(), hunks: Vec::new() };
    comparison.gap(0..before.len(), 0..after.len(), 0);
    let hunks = comparison.hunks;
    if !fits(before, after, &hunks) {
        // Never seen; but otherwise only clients that apply a wrong patch would detect it.
        return vec![Hunk { before: 0..before.len(), after: 0..after.len() }];
    }
    hunks
}

/// Whether lines outside of the hunks are equal.
fn fits(before: &[Token], after: &[Token], hunks: &[Hunk]) -> bool {
    let end = Hunk { before: before.len()..before.len(), after: after.len()..after.len() };
    let (mut x, mut y) = (0, 0);
    hunks.iter().chain([&end]).all(|hunk| {
        let same = before.get(x..hunk.before.start).zip(after.get(y..hunk.after.start)).is_some_and(|(a, b)| a == b);
        (x, y) = (hunk.before.end, hunk.after.end);
        same
    })
}

/// Number of occurrences of a line within a gap, and its position.
#[derive(Debug, Clone, Copy, Default)]
struct Occurrences {
    before: u32,
    after: u32,
    /// Position of the last occurrence in `before`; in a small gap, the line's number there.
    position: u32,
}

struct Comparison<'t> {
    before: &'t [Token],
    after: &'t [Token],
    /// Indexed by line; all zero between two uses.
    seen: Vec<Occurrences>,
    diff: Diff,
    hunks: Vec<Hunk>,
}

impl Comparison<'_> {
    fn gap(&mut self, before: Range<usize>, after: Range<usize>, level: usize) {
        let (a, b) = (&self.before[before.clone()], &self.after[after.clone()]);
        let head = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let (a, b) = (&a[head..], &b[head..]);
        let tail = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
        let before = before.start + head..before.end - tail;
        let after = after.start + head..after.end - tail;
        if before.is_empty() && after.is_empty() {
            return;
        }
        if before.is_empty() || after.is_empty() {
            self.hunks.push(Hunk { before, after });
            return;
        }
        if before.len() + after.len() <= GAP_LINES {
            self.small_gap(before, after);
            return;
        }
        let anchors = if level < LEVELS { self.anchors(before.clone(), after.clone()) } else { Vec::new() };
        if anchors.is_empty() {
            self.hunks.push(Hunk { before, after });
            return;
        }
        let (mut x, mut y) = (before.start, after.start);
        for (anchor_x, anchor_y) in anchors.into_iter().chain([(before.end, after.end)]) {
            self.gap(x..anchor_x, y..anchor_y, level + 1);
            (x, y) = (anchor_x + 1, anchor_y + 1);
        }
    }

    /// Positions of lines that occur exactly once in both ranges, in the same order.
    fn anchors(&mut self, before: Range<usize>, after: Range<usize>) -> Vec<(usize, usize)> {
        for (position, token) in self.before[before.clone()].iter().enumerate() {
            let seen = &mut self.seen[token.0 as usize];
            seen.before += 1;
            seen.position = position as u32;
        }
        for token in &self.after[after.clone()] {
            self.seen[token.0 as usize].after += 1;
        }
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for (position, token) in self.after[after.clone()].iter().enumerate() {
            let seen = self.seen[token.0 as usize];
            if (seen.before, seen.after) == (1, 1) {
                pairs.push((seen.position, position as u32));
            }
        }
        for token in self.before[before.clone()].iter().chain(&self.after[after.clone()]) {
            self.seen[token.0 as usize] = Occurrences::default();
        }
        let kept = longest_ascending(&pairs);
        kept.into_iter().map(|(x, y)| (before.start + x as usize, after.start + y as usize)).collect()
    }

    /// Compares with imara-diff, which needs small numbers: its tables are as large as the largest one.
    fn small_gap(&mut self, before: Range<usize>, after: Range<usize>) {
        let mut different = 0;
        let mut number = |token: &Token| {
            let seen = &mut self.seen[token.0 as usize];
            if seen.before == 0 {
                (seen.before, seen.position) = (1, different);
                different += 1;
            }
            Token(seen.position)
        };
        let a: Vec<Token> = self.before[before.clone()].iter().map(&mut number).collect();
        let b: Vec<Token> = self.after[after.clone()].iter().map(&mut number).collect();
        for token in self.before[before.clone()].iter().chain(&self.after[after.clone()]) {
            self.seen[token.0 as usize] = Occurrences::default();
        }
        self.diff.compute_with(Algorithm::Myers, &a, &b, different);
        self.hunks.extend(self.diff.hunks().map(|hunk| Hunk {
            before: before.start + hunk.before.start as usize..before.start + hunk.before.end as usize,
            after: after.start + hunk.after.start as usize..after.start + hunk.after.end as usize,
        }));
    }
}

/// The longest subsequence of these pairs in which the first numbers ascend, as the second ones do already. For each
/// length, the sequence with the lowest end is kept.
fn longest_ascending(pairs: &[(u32, u32)]) -> Vec<(u32, u32)> {
    const NONE: u32 = u32::MAX;
    let mut ends: Vec<u32> = Vec::new();
    let mut previous: Vec<u32> = Vec::with_capacity(pairs.len());
    for (number, pair) in pairs.iter().enumerate() {
        let low = |end: &u32| pairs[*end as usize].0 < pair.0;
        // Nearly always the line extends the longest sequence.
        let length = if ends.last().is_none_or(low) { ends.len() } else { ends.partition_point(low) };
        previous.push(length.checked_sub(1).map_or(NONE, |before| ends[before]));
        if length == ends.len() {
            ends.push(number as u32);
        } else {
            ends[length] = number as u32;
        }
    }
    let mut kept = Vec::with_capacity(ends.len());
    let mut next = ends.last().copied().unwrap_or(NONE);
    while next != NONE {
        kept.push(pairs[next as usize]);
        next = previous[next as usize];
    }
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(numbers: &[u32]) -> Vec<Token> {
        numbers.iter().copied().map(Token).collect()
    }

    #[test]
    fn a_moved_line_does_not_tear_the_rest_apart() {
        let before: Vec<u32> = (0..10_000).collect();
        let mut after = before.clone();
        let moved = after.remove(17);
        after.insert(9_000, moved);
        let hunks = compare(&tokens(&before), &tokens(&after), 10_000);
        let expected = [Hunk { before: 17..18, after: 17..17 }, Hunk { before: 9_001..9_001, after: 9_000..9_001 }];
        assert_eq!(hunks, expected);
    }

    #[test]
    fn unrelated_texts_are_replaced_in_one_edit() {
        let (before, after): (Vec<u32>, Vec<u32>) = ((0..10_000).collect(), (10_000..30_000).collect());
        assert_eq!(compare(&tokens(&before), &tokens(&after), 30_000), [Hunk { before: 0..10_000, after: 0..20_000 }]);
        let before: Vec<u32> = (0..100_000).map(|number| number % 5).collect();
        let after: Vec<u32> = (0..100_000).map(|number: u32| number.wrapping_mul(0x9E37_79B9) >> 5 & 3).collect();
        let hunks = compare(&tokens(&before), &tokens(&after), 5);
        assert!(fits(&tokens(&before), &tokens(&after), &hunks));
    }

    proptest! {
        #[test]
        fn the_longest_ascending_sequence_is_kept(firsts in prop::collection::vec(0_u32..30, 0..12)) {
            let firsts: Vec<u32> = firsts.into_iter().collect();
            let pairs: Vec<(u32, u32)> = firsts.iter().enumerate().map(|(at, first)| (*first, at as u32)).collect();
            let kept = longest_ascending(&pairs);
            prop_assert!(kept.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 < two[1].1));
            let all = (0_u32..1 << pairs.len()).filter_map(|chosen| {
                let part: Vec<u32> = (0..pairs.len()).filter(|at| chosen >> at & 1 == 1).map(|at| firsts[at]).collect();
                part.windows(2).all(|two| two[0] < two[1]).then_some(part.len())
            });
            prop_assert_eq!(Some(kept.len()), all.max());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn hunks_of_large_texts_fit(
            lines in prop::collection::vec(0_u32..3_000, 2_000..3_000),
            changes in prop::collection::vec((0_usize..2_000, 0_usize..40, 0_u32..3_000), 0..20),
        ) {
            // Above and below the limit of what is compared at once.
            for times in [1, 2] {
                let before = lines.repeat(times);
                let mut after = before.clone();
                for (at, length, line) in &changes {
                    let at = *at % after.len();
                    after.splice(at..after.len().min(at + length), [*line, line / 2]);
                }
                let (before, after) = (tokens(&before), tokens(&after));
                prop_assert!(fits(&before, &after, &compare(&before, &after, 3_000)));
            }
        }
    }
}
