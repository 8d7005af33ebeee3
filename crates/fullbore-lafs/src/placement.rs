//! Chooses the servers of a file's shares, and computes its happiness.
//!
//! Happiness is the size of the largest matching between servers and the different shares they hold: the number of
//! shares that survive if each server may fail by itself. As in the stock client, existing shares are first matched
//! with servers that hold them, servers without room before the others. Then the remaining shares go to the remaining
//! servers, in the order of the file. Shares that find no server of their own are spread over those that take some.

use std::collections::{BTreeMap, BTreeSet};

/// The state of a server. Servers are given in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Whether it accepts shares.
    pub writable: bool,
    /// Shares of the file that it holds.
    pub holds: BTreeSet<u16>,
}

/// The servers of a file's shares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Shares to send, with the index of the candidate.
    pub send: BTreeMap<u16, usize>,
    /// Shares that some server holds already.
    pub held: BTreeSet<u16>,
    /// Shares for which there is no server.
    pub homeless: BTreeSet<u16>,
    /// Happiness once all shares are sent.
    pub happiness: usize,
}

/// Places `total` shares on the candidates.
pub(crate) fn place(candidates: &[Candidate], total: u16) -> Placement {
    let mut placement = Placement::default();
    // Servers without room first: a matched server stays matched when the others follow.
    let edges: Vec<(usize, Vec<u16>)> = [false, true]
        .into_iter()
        .flat_map(|writable| {
            let some = candidates.iter().enumerate().filter(move |(_, candidate)| candidate.writable == writable);
            some.map(|(server, one)| (server, one.holds.iter().copied().filter(|share| *share < total).collect()))
        })
        .collect();
    let matched = matching(&edges);
    let taken_servers: BTreeSet<usize> = matched.keys().copied().collect();
    let taken_shares: BTreeSet<u16> = matched.values().copied().collect();
    let held: BTreeSet<u16> = candidates
        .iter()
        .flat_map(|candidate| candidate.holds.iter().copied())
        .filter(|share| *share < total)
        .collect();
    // First to servers outside the matching; then shares that nobody holds to any server.
    let mut free =
        (0..candidates.len()).filter(|server| candidates[*server].writable && !taken_servers.contains(server));
    let mut load: BTreeMap<usize, usize> = BTreeMap::new();
    let unmatched = (0..total).filter(|share| !taken_shares.contains(share));
    // A share that nobody holds is worth more than a second copy.
    let (new, copies): (Vec<u16>, Vec<u16>) = unmatched.partition(|share| !held.contains(share));
    let mut rest = Vec::new();
    for share in new.into_iter().chain(copies) {
        match free.next() {
            Some(server) => {
                placement.send.insert(share, server);
                *load.entry(server).or_default() += 1;
            }
            None => rest.push(share),
        }
    }
    for share in rest.into_iter().filter(|share| !held.contains(share)) {
        let writable = (0..candidates.len()).filter(|server| candidates[*server].writable);
        match writable.min_by_key(|server| load.get(server).copied().unwrap_or(0) + candidates[*server].holds.len()) {
            Some(server) => {
                placement.send.insert(share, server);
                *load.entry(server).or_default() += 1;
            }
            None => {
                placement.homeless.insert(share);
            }
        }
    }
    let mut after: Vec<BTreeSet<u16>> = candidates.iter().map(|candidate| candidate.holds.clone()).collect();
    for (share, server) in &placement.send {
        after[*server].insert(*share);
    }
    placement.happiness = happiness(&after);
    placement.held = held;
    placement
}

/// The happiness of servers that hold these shares.
pub(crate) fn happiness(holds: &[BTreeSet<u16>]) -> usize {
    let edges: Vec<(usize, Vec<u16>)> =
        holds.iter().enumerate().map(|(server, shares)| (server, shares.iter().copied().collect())).collect();
    matching(&edges).len()
}

/// A largest matching of servers and shares, by augmenting paths (Kuhn). With at most 256 shares that is fast enough.
fn matching(edges: &[(usize, Vec<u16>)]) -> BTreeMap<usize, u16> {
    // The entry of `edges` matched with each share.
    let mut owner: BTreeMap<u16, usize> = BTreeMap::new();
    for start in 0..edges.len() {
        let mut seen = BTreeSet::new();
        augment(start, edges, &mut owner, &mut seen);
    }
    owner.into_iter().map(|(share, entry)| (edges[entry].0, share)).collect()
}

fn augment(
    entry: usize,
    edges: &[(usize, Vec<u16>)],
    owner: &mut BTreeMap<u16, usize>,
    seen: &mut BTreeSet<u16>,
) -> bool {
    for &share in &edges[entry].1 {
        if !seen.insert(share) {
            continue;
        }
        let free = match owner.get(&share).copied() {
            None => true,
            Some(other) => augment(other, edges, owner, seen),
        };
        if free {
            owner.insert(share, entry);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(writable: bool, holds: &[u16]) -> Candidate {
        Candidate { writable, holds: holds.iter().copied().collect() }
    }

    #[test]
    fn a_new_file_goes_share_by_share_to_server_by_server() {
        let placement = place(&vec![candidate(true, &[]); 12], 10);
        assert_eq!(placement.send, (0..10).map(|number| (number, usize::from(number))).collect());
        assert_eq!(placement.happiness, 10);
    }

    #[test]
    fn fewer_servers_than_shares_take_several_evenly() {
        let placement = place(&vec![candidate(true, &[]); 3], 10);
        for server in 0..3 {
            let count = placement.send.values().filter(|&&to| to == server).count();
            assert!((3..=4).contains(&count), "{placement:?}");
        }
        assert_eq!(placement.happiness, 3);
    }

    #[test]
    fn what_is_there_is_not_sent_again() {
        let all: Vec<Candidate> = (0..10).map(|share| candidate(true, &[share])).collect();
        let placement = place(&all, 10);
        assert!(placement.send.is_empty());
        assert_eq!((placement.happiness, placement.held.len()), (10, 10));
    }

    #[test]
    fn what_a_full_server_holds_counts_first() {
        let servers = [candidate(false, &[0, 1]), candidate(true, &[0]), candidate(true, &[])];
        let placement = place(&servers, 3);
        assert_eq!(placement.happiness, 3);
        assert_eq!(placement.send.len(), 1, "share 2, to the server that has none: {placement:?}");
        assert_eq!(placement.send.get(&2), Some(&2));
    }

    #[test]
    fn without_room_shares_are_homeless() {
        let placement = place(&[candidate(false, &[1])], 3);
        assert_eq!((placement.happiness, placement.homeless.len()), (1, 2));
        assert_eq!(place(&[], 2).homeless.len(), 2);
    }

    proptest! {
        #[test]
        fn every_share_is_somewhere_and_the_happiness_is_that_of_the_result(
            servers in proptest::collection::vec(
                (any::<bool>(), proptest::collection::btree_set(0_u16..8, 0..4)), 0..8),
            total in 1_u16..9,
        ) {
            let candidates: Vec<Candidate> =
                servers.into_iter().map(|(writable, holds)| Candidate { writable, holds }).collect();
            let placement = place(&candidates, total);
            for share in 0..total {
                let known = placement.held.contains(&share) || placement.send.contains_key(&share);
                prop_assert!(known != placement.homeless.contains(&share));
            }
            prop_assert!(placement.send.values().all(|&server| candidates[server].writable));
            // Not worse than before, and as good as the servers with room allow.
            let before: Vec<BTreeSet<u16>> = candidates.iter().map(|one| one.holds.clone()).collect();
            prop_assert!(placement.happiness >= happiness(&before));
            let writable = candidates.iter().filter(|one| one.writable).count();
            prop_assert!(placement.happiness >= writable.min(usize::from(total)), "{:?}", placement);
        }
    }
}
