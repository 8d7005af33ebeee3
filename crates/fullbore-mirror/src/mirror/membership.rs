//! Membership of a file: the suites that name it, and the suites that stopped naming it.
//!
//! Thousands of files share one membership ("named by bookworm and bookworm-updates", "left bookworm with its
//! generation 12"). So the state has a small table of memberships, and each file has a number in it. Retention depends
//! on memberships only.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::retention::Retention;

/// Number of a suite: its index in the state's header.
pub(crate) type SuiteId = u16;

/// Maximum number of distinct memberships in one state. A year of hourly updates of ten suites with the default
/// retention stays below 2,000. The limit keeps a damaged header from allocating more memory.
pub(crate) const MEMBERSHIPS_MAX: usize = 1 << 20;

/// A suite that stopped naming a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Departure {
    /// Number of the suite.
    pub suite: SuiteId,
    /// First generation of that suite without the file.
    pub generation: u32,
    /// Time at which that generation was published, in Unix seconds.
    pub at: i64,
}

/// The suites of a group of files.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Membership {
    /// Suites whose current generation names the file; sorted, without duplicates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<SuiteId>,
    /// Suites that named the file before; one entry per suite, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<Departure>,
    /// Whether only an unsigned index named the file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsigned: bool,
    /// Whether no suite names the file and its retention is over. The header's `removal` tells whether it is deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
}

impl Membership {
    /// Makes the membership of a file that one suite names.
    #[cfg(test)]
    pub(crate) fn member(suite: SuiteId, unsigned: bool) -> Self {
        Membership { members: vec![suite], unsigned, ..Membership::default() }
    }

    /// Adds a suite that names the file.
    pub(crate) fn join(&mut self, suite: SuiteId) {
        if let Err(at) = self.members.binary_search(&suite) {
            self.members.insert(at, suite);
        }
        self.left.retain(|left| left.suite != suite);
        self.expired = false;
    }

    /// Records that a member stopped naming the file. No effect for other suites.
    pub(crate) fn leave(&mut self, left: Departure) {
        let Ok(at) = self.members.binary_search(&left.suite) else { return };
        self.members.remove(at);
        self.left.retain(|other| other.suite != left.suite);
        let at = self.left.partition_point(|other| other < &left);
        self.left.insert(at, left);
    }

    /// Removes departures whose retention is over, and sets `expired` if no suite is left.
    pub(crate) fn age(&mut self, retention: &Retention, generation_of: impl Fn(SuiteId) -> Option<u32>, now: i64) {
        self.left.retain(|left| !retention.is_over(left, generation_of(left.suite), now));
        self.expired = self.members.is_empty() && self.left.is_empty();
    }
}

/// Table of memberships by number, without duplicates.
#[derive(Debug, Clone, Default)]
pub(crate) struct MembershipTable {
    memberships: Vec<Membership>,
    numbers: HashMap<Membership, u32>,
}

impl MembershipTable {
    /// Number of a membership; adds it if it is new.
    pub(crate) fn intern(&mut self, membership: Membership) -> u32 {
        if let Some(&number) = self.numbers.get(&membership) {
            return number;
        }
        let number = u32::try_from(self.memberships.len()).unwrap_or(u32::MAX);
        self.memberships.push(membership.clone());
        self.numbers.insert(membership, number);
        number
    }

    /// All memberships; the index is the number.
    pub(crate) fn as_slice(&self) -> &[Membership] {
        &self.memberships
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: i64 = 86_400;

    #[test]
    fn a_file_of_two_suites_stays_until_both_let_it_go() {
        let retention = Retention { generations: 1, hours: 24 };
        let mut membership = Membership::member(0, false);
        membership.join(1);
        membership.leave(Departure { suite: 0, generation: 5, at: 0 });
        membership.age(&retention, |_| Some(99), 10 * DAY_S);
        assert_eq!(membership, Membership::member(1, false));
        membership.leave(Departure { suite: 1, generation: 7, at: 10 * DAY_S });
        membership.age(&retention, |_| Some(99), 10 * DAY_S + 1);
        assert!(!membership.expired);
        membership.age(&retention, |_| Some(99), 11 * DAY_S);
        assert!(membership.expired);
    }

    #[test]
    fn coming_back_ends_the_departure() {
        let mut membership = Membership::member(3, false);
        membership.leave(Departure { suite: 3, generation: 2, at: 0 });
        membership.join(3);
        assert_eq!(membership, Membership::member(3, false));
        membership.leave(Departure { suite: 9, generation: 2, at: 0 });
        assert_eq!(membership, Membership::member(3, false), "never was a member");
    }

    #[test]
    fn equal_standings_share_a_number() {
        let mut table = MembershipTable::default();
        let first = table.intern(Membership::member(0, false));
        assert_eq!(table.intern(Membership::member(0, false)), first);
        assert_ne!(table.intern(Membership::member(0, true)), first);
        assert_eq!(table.as_slice()[first as usize], Membership::member(0, false));
    }
}
