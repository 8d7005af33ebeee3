//! Why a file is in the mirror: which suites name it, and which did until when.
//!
//! Thousands of files share one standing ("named by bookworm and bookworm-updates",
//! "left bookworm with its generation 12"), so the state keeps a small table of them
//! and each file holds a number. Retention is decided on standings alone.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::retention::Retention;

/// Number of a suite in the state's header.
pub type SuiteId = u16;

/// Distinct standings in one state. A year of hourly updates of ten suites with the
/// default retention stays below 2,000; a damaged header must not ask for more memory.
pub const STANDINGS_MAX: usize = 1 << 20;

/// A suite that named a file and does not any more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Left {
    /// The suite.
    pub suite: SuiteId,
    /// The first generation of that suite without the file.
    pub generation: u32,
    /// When that generation was published, Unix seconds.
    pub at: i64,
}

/// What is known about a group of files.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Standing {
    /// Suites whose present generation names the file; sorted, no duplicates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<SuiteId>,
    /// Suites that named it before; one entry per suite, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<Left>,
    /// Accepted on the word of an index without a signature.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsigned: bool,
    /// No suite names it and its time is over: to be deleted, or deleted, as the header's
    /// `removal` tells.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
}

impl Standing {
    /// A file named by one suite.
    pub fn member(suite: SuiteId, unsigned: bool) -> Self {
        Standing { members: vec![suite], unsigned, ..Standing::default() }
    }

    /// Adds a suite that names the file.
    pub fn join(&mut self, suite: SuiteId) {
        if let Err(at) = self.members.binary_search(&suite) {
            self.members.insert(at, suite);
        }
        self.left.retain(|left| left.suite != suite);
        self.expired = false;
    }

    /// Notes that a suite stopped naming the file with this generation. Not a member: no change.
    pub fn leave(&mut self, left: Left) {
        let Ok(at) = self.members.binary_search(&left.suite) else { return };
        self.members.remove(at);
        self.left.retain(|other| other.suite != left.suite);
        let at = self.left.partition_point(|other| other < &left);
        self.left.insert(at, left);
    }

    /// Forgets departures whose time is over and says so in `expired` when nothing is left.
    pub fn age(&mut self, retention: &Retention, generation_of: impl Fn(SuiteId) -> Option<u32>, now: i64) {
        self.left.retain(|left| !retention.is_over(left, generation_of(left.suite), now));
        self.expired = self.members.is_empty() && self.left.is_empty();
    }
}

/// Standings by number, each once.
#[derive(Debug, Clone, Default)]
pub struct StandingTable {
    standings: Vec<Standing>,
    numbers: HashMap<Standing, u32>,
}

impl StandingTable {
    /// The number of this standing, new or not.
    pub fn intern(&mut self, standing: Standing) -> u32 {
        if let Some(&number) = self.numbers.get(&standing) {
            return number;
        }
        let number = u32::try_from(self.standings.len()).unwrap_or(u32::MAX);
        self.standings.push(standing.clone());
        self.numbers.insert(standing, number);
        number
    }

    /// The standing of this number.
    pub fn get(&self, number: u32) -> Option<&Standing> {
        self.standings.get(number as usize)
    }

    /// All of them; the place is the number.
    pub fn as_slice(&self) -> &[Standing] {
        &self.standings
    }
}

impl From<Vec<Standing>> for StandingTable {
    fn from(standings: Vec<Standing>) -> Self {
        let mut table = StandingTable { standings: Vec::with_capacity(standings.len()), numbers: HashMap::new() };
        for standing in standings {
            // A table read from disk may hold a standing twice; numbers must stay as they are.
            let number = u32::try_from(table.standings.len()).unwrap_or(u32::MAX);
            table.numbers.entry(standing.clone()).or_insert(number);
            table.standings.push(standing);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: i64 = 86_400;

    #[test]
    fn a_file_of_two_suites_stays_until_both_let_it_go() {
        let retention = Retention { generations: 1, hours: 24 };
        let mut standing = Standing::member(0, false);
        standing.join(1);
        standing.leave(Left { suite: 0, generation: 5, at: 0 });
        standing.age(&retention, |_| Some(99), 10 * DAY_S);
        assert_eq!(standing, Standing::member(1, false));
        standing.leave(Left { suite: 1, generation: 7, at: 10 * DAY_S });
        standing.age(&retention, |_| Some(99), 10 * DAY_S + 1);
        assert!(!standing.expired);
        standing.age(&retention, |_| Some(99), 11 * DAY_S);
        assert!(standing.expired);
    }

    #[test]
    fn coming_back_ends_the_departure() {
        let mut standing = Standing::member(3, false);
        standing.leave(Left { suite: 3, generation: 2, at: 0 });
        standing.join(3);
        assert_eq!(standing, Standing::member(3, false));
        standing.leave(Left { suite: 9, generation: 2, at: 0 });
        assert_eq!(standing, Standing::member(3, false), "never was a member");
    }

    #[test]
    fn equal_standings_share_a_number() {
        let mut table = StandingTable::default();
        let first = table.intern(Standing::member(0, false));
        assert_eq!(table.intern(Standing::member(0, false)), first);
        assert_ne!(table.intern(Standing::member(0, true)), first);
        let again = StandingTable::from(table.as_slice().to_vec());
        assert_eq!(again.get(first), Some(&Standing::member(0, false)));
    }
}
