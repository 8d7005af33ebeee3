//! Shards: many machines without a queue.
//!
//! The planner pins a plan in the store. Machine `i` of `N` stores the files of its shard, largest first. Then it lists
//! the store, and takes missing files of other shards in random order ([`help_order`]); it asks the store before each.
//! Largest first, because a file that two machines fetch at the end should be small. There is no lease and no clock: a
//! machine that starts twice, late or never only costs time.

use std::str::FromStr;

use fullbore_digest::Sha256;

use crate::random::Random;

/// Most shards of a run; arrays of batch systems have some thousands of jobs.
pub const SHARDS_MAX: u32 = 10_000;

/// One of the shards of a run: `3/16` is the fourth of sixteen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

/// A text that is not a shard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{shown:?}: a shard is INDEX/COUNT, with an index from 0 to COUNT - 1 and at most {SHARDS_MAX} shards")]
pub struct ShardError {
    shown: String,
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Shard, ShardError> {
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        text.split_once('/')
            .and_then(|(index, count)| Some(Shard { index: number(index)?, count: number(count)? }))
            .filter(|shard| shard.index < shard.count && shard.count <= SHARDS_MAX)
            .ok_or_else(|| ShardError { shown: text.chars().take(40).collect() })
    }
}

impl Shard {
    /// Index of the shard, from 0.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Number of shards.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Connections of this machine to a mirror whose budget is for the whole fleet. All machines together use exactly
    /// the budget, without asking each other. If the budget is smaller than the number of machines, the mirror's name
    /// decides which ones connect, so that each machine has some of several mirrors.
    ///
    /// ```
    /// use fullbore_fleet::shards::Shard;
    ///
    /// let of = |shard: &str, budget| shard.parse::<Shard>().unwrap().connections("a.example", budget);
    /// assert_eq!((0..3).map(|i| of(&format!("{i}/3"), 8)).sum::<u32>(), 8);
    /// assert_eq!((0..16).map(|i| of(&format!("{i}/16"), 4)).sum::<u32>(), 4);
    /// ```
    pub fn connections(self, host: &str, budget: u32) -> u32 {
        // All versions must compute the same number, as it is part of the interface between machines.
        let hash = Sha256::of(host.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        let place = (u64::from_be_bytes(first) % u64::from(self.count) + u64::from(self.index)) % u64::from(self.count);
        budget / self.count + u32::from(place < u64::from(budget % self.count))
    }
}

/// The shards of this number that have a connection to one of the mirrors, in order.
pub fn connected(count: u32, hosts: &[&str], budget: u32) -> Vec<u32> {
    let is_connected = |index: &u32| {
        let shard = Shard { index: *index, count };
        hosts.iter().any(|host| shard.connections(host, budget) > 0)
    };
    (0..count).filter(is_connected).collect()
}

/// The files of a shard, by their index in `sizes`. They are divided between the machines with a connection to one of
/// the mirrors; the others cannot fetch and get none. `sizes` must be in the same order on all machines.
///
/// ```
/// use fullbore_fleet::shards::{Shard, files_of};
///
/// let of = |shard: &str| files_of(shard.parse().unwrap(), &["a.example"], 2, &[1, 5, 3, 3]);
/// let mut files: Vec<_> = (0..16).flat_map(|index| of(&format!("{index}/16"))).collect();
/// assert_eq!((0..16).filter(|index| !of(&format!("{index}/16")).is_empty()).count(), 2);
/// files.sort_unstable();
/// assert_eq!(files, [0, 1, 2, 3]);
/// ```
pub fn files_of(shard: Shard, hosts: &[&str], budget: u32, sizes: &[u64]) -> Vec<usize> {
    let connected = connected(shard.count, hosts, budget);
    let Ok(place) = connected.binary_search(&shard.index) else { return Vec::new() };
    let shards = assign(sizes, connected.len() as u32);
    shards.iter().enumerate().filter(|(_, of)| **of as usize == place).map(|(at, _)| at).collect()
}

/// Assigns files to shards: largest first, each to the shard with the fewest bytes. `sizes` must be in the same order
/// on all machines, such as that of the pinned plan.
///
/// ```
/// assert_eq!(fullbore_fleet::shards::assign(&[1, 5, 3, 3], 2), [0, 0, 1, 1]);
/// ```
pub fn assign(sizes: &[u64], count: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(sizes[*at]), *at));
    // Least loaded first; of equal ones, the lowest number.
    let mut loads: std::collections::BinaryHeap<_> =
        (0..count).map(|shard| std::cmp::Reverse((0_u64, shard))).collect();
    let mut shards = vec![0; sizes.len()];
    for at in order {
        let Some(mut least) = loads.peek_mut() else { break };
        shards[at] = least.0.1;
        // An empty file counts as one byte, so that a million of them are distributed, too.
        least.0.0 = least.0.0.saturating_add(sizes[at].max(1));
    }
    shards
}

/// Order in which a machine helps the others: random, so that two helpers seldom fetch the same file. `seed` differs
/// between machines.
pub fn help_order<T>(missing: &mut [T], seed: u64) {
    Random::new(seed).shuffle(missing);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_that_name_no_shard_are_refused() {
        for text in ["", "3", "3/3", "-1/3", "+1/3", "1/0", "a/b", "1/10001", "1/ 3", "1/3/4", "4294967296/1"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
        assert_eq!("0/1".parse(), Ok(Shard { index: 0, count: 1 }));
        assert_eq!("15/16".parse(), Ok(Shard { index: 15, count: 16 }));
    }

    proptest! {
        #[test]
        fn all_shards_together_use_exactly_the_budget(
            host in "[a-z.]{1,20}",
            count in 1..200_u32,
            budget in 0..300_u32,
        ) {
            let of = |index| Shard { index, count }.connections(&host, budget);
            prop_assert_eq!((0..count).map(of).sum::<u32>(), budget);
            let (least, most) = ((0..count).map(of).min(), (0..count).map(of).max());
            prop_assert!(most.unwrap() - least.unwrap() <= 1);
        }

        #[test]
        fn shards_have_equal_bytes_up_to_one_file(
            sizes in proptest::collection::vec(0..1_000_000_u64, 1..500),
            count in 1..40_u32,
        ) {
            let shards = assign(&sizes, count);
            let mut loads = vec![0_u64; count as usize];
            for (size, shard) in sizes.iter().zip(&shards) {
                loads[*shard as usize] += size.max(&1);
            }
            let spread = loads.iter().max().unwrap() - loads.iter().min().unwrap();
            prop_assert!(spread <= *sizes.iter().max().unwrap().max(&1));
        }
    }

    #[test]
    fn a_mirror_with_a_small_budget_serves_other_shards_than_the_next_mirror() {
        let served = |host: &str| -> Vec<u32> {
            (0..16).filter(|index| Shard { index: *index, count: 16 }.connections(host, 4) > 0).collect()
        };
        let hosts = ["a.example", "b.example", "c.example", "d.example"];
        let distinct: std::collections::BTreeSet<_> = hosts.iter().map(|host| served(host)).collect();
        assert!(distinct.len() > 1, "{distinct:?}");
    }
}
