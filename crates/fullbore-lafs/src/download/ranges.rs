//! How the data of a file's shares is divided into requests.
//!
//! The code works byte by byte: byte j of any k shares gives byte j of the k pieces of a segment. So a reader may use
//! different shares for different parts of a segment. A long file is requested in groups of whole blocks, each from k
//! shares: all servers send at once, each in its own slow start. A file of few segments is cut across its blocks. With
//! ten servers and k = 3 it has ten parts, each read from three servers, so that each server sends three tenths of a
//! share.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use crate::geometry::Geometry;

/// Most bytes of one request. The server sends them piece by piece.
pub(super) const RANGE_BYTES: u64 = 1 << 20;

/// Least bytes of a part: what a server's first flight carries (RFC 6928: ten segments).
const PART_BYTES_MIN: u64 = 14 << 10;

/// Least requests to each server per file, so that fast servers can send more.
const TURNS: u64 = 4;

/// The parts of a file's shares; offsets count from the first block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Bytes of all blocks of a share.
    pub data: u64,
    /// Bytes of a part; the last part may be shorter.
    pub part: u64,
    /// Whether parts end where blocks end.
    pub whole_blocks: bool,
    /// Parts per reader, and the number of requests for them. 0: the reader of each part is chosen when it is
    /// requested.
    turn: u64,
    requests: u64,
}

impl Cut {
    /// The cut for a file of this geometry, with `shares` readable at once, each over `connections` connections.
    pub(super) fn new(geometry: &Geometry, shares: usize, connections: usize) -> Cut {
        let data = geometry.share_data().max(1);
        let block = geometry.block_size().max(1);
        let needed = u64::from(geometry.encoding.needed).max(1);
        let shares = (shares as u64).max(needed);
        // This many parts can be in flight at once, each from k shares, with no share in two of them.
        let abreast = shares / needed;
        if shares > needed && geometry.segments <= 2 * abreast {
            let (parts, turn) = even_parts(shares, needed, connections as u64);
            let part = data.div_ceil(parts).max(PART_BYTES_MIN).min(data);
            let turn = if data.div_ceil(part) == parts { turn } else { 0 };
            // A part of all data consists of whole blocks, too.
            return Cut { data, part, whole_blocks: part == data, turn, requests: connections.max(1) as u64 };
        }
        let blocks = (geometry.segments / (abreast * TURNS)).clamp(1, (RANGE_BYTES / block).max(1));
        Cut { data, part: (blocks * block).min(RANGE_BYTES), whole_blocks: true, turn: 0, requests: 0 }
    }

    /// The parts for the reader at this position, one range per request. Over all readers each part occurs k times.
    pub(super) fn turn(&self, position: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let parts = self.data.div_ceil(self.part);
        let (turn, each) = (self.turn, self.turn.div_ceil(self.requests.max(1)).max(1));
        (0..turn).step_by(each as usize).flat_map(move |first| {
            let begin = (position * turn + first) % parts;
            let end = begin + each.min(turn - first);
            let behind = 0..end.saturating_sub(parts);
            [begin..end.min(parts), behind].into_iter().filter(|range| !range.is_empty())
        })
    }

    /// The bytes of a part.
    pub(super) fn range(&self, part: u64) -> Range<u64> {
        let begin = (part * self.part).min(self.data);
        begin..(begin + self.part).min(self.data)
    }

    /// The parts that overlap with a range.
    pub(super) fn parts(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.part..range.end.min(self.data).div_ceil(self.part)
    }
}

/// The number of parts, each from k shares, for which every share and every connection gets equally many; and how many
/// parts each share gets. If that would be too many, each connection gets one of the parts that can be in flight at
/// once.
fn even_parts(shares: u64, needed: u64, connections: u64) -> (u64, u64) {
    let common = greatest_common_divisor(shares, needed);
    let (parts, turn, connections) = (shares / common, needed / common, connections.max(1));
    if turn > TURNS {
        return (shares / needed * connections, 0);
    }
    let times = connections / greatest_common_divisor(connections, turn);
    (parts * times, turn * times)
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// A share that could be asked for a part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    /// Number of its reader.
    pub reader: usize,
    /// Number of the share.
    pub share: u16,
    /// Bytes requested from its server and not yet received.
    pub load: u64,
}

/// Chooses the next reader: the one with the least load, among shares not yet `taken`. The first of equals, since the
/// first k shares need no decoding.
pub(super) fn choose(choices: impl Iterator<Item = Choice>, taken: &BTreeSet<u16>) -> Option<usize> {
    let free = choices.filter(|choice| !taken.contains(&choice.share));
    free.min_by_key(|choice| (choice.load, choice.reader)).map(|choice| choice.reader)
}

/// How long to wait for an answer before the same bytes are requested from another server.
#[derive(Debug, Default)]
pub(super) struct Patience {
    mean: Duration,
    answers: u32,
}

impl Patience {
    /// Silence of a connection after which its server counts as slow: longer than the pause of a retransmission, and
    /// ten round trips of a far server.
    pub(super) const SILENCE: Duration = Duration::from_secs(1);
    /// A request is late if it takes this many times the mean of others.
    const TIMES: u32 = 4;
    /// Least answers for a meaningful mean.
    const ANSWERS: u32 = 4;

    /// Records the time that a request took.
    pub(super) fn answered(&mut self, after: Duration) {
        self.answers = self.answers.saturating_add(1);
        // A mean over the last answers: the limit grows while a path fills up.
        let weight = self.answers.min(8);
        self.mean = (self.mean * (weight - 1) + after) / weight;
    }

    /// Whether a request is late, by its age and the silence of its connection.
    pub(super) fn is_over(&self, asked: Duration, silent: Duration) -> bool {
        let usual = if self.answers >= Self::ANSWERS { self.mean * Self::TIMES } else { Duration::MAX };
        asked >= Self::SILENCE && (silent >= Self::SILENCE || asked >= usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Encoding;
    use proptest::prelude::*;

    fn geometry(needed: u16, total: u16, size: u64) -> Geometry {
        Geometry::new(Encoding::new(needed, 1, total).unwrap(), size, 1 << 20).unwrap()
    }

    #[test]
    fn a_file_of_one_segment_comes_from_all_servers() {
        let cut = Cut::new(&geometry(3, 10, 1_000_000), 10, 1);
        assert_eq!((cut.parts(&(0..cut.data)), cut.whole_blocks), (0..10, false));
        assert_eq!(
            Cut::new(&geometry(3, 10, 1_000_000), 10, 3).parts(&(0..cut.data)),
            0..10,
            "each of 30 connections one"
        );
        assert_eq!(Cut::new(&geometry(3, 10, 1_000_000), 10, 2).parts(&(0..cut.data)), 0..20, "each of 20 three");
        assert_eq!(
            Cut::new(&geometry(3, 5, 1_000_000), 5, 1).parts(&(0..cut.data)),
            0..5,
            "each of five servers three"
        );
        assert_eq!(Cut::new(&geometry(3, 3, 1_000_000), 3, 1).parts(&(0..cut.data)), 0..1, "all of three shares");
        assert_eq!(
            Cut::new(&geometry(7, 10, 1_000_000), 10, 1).parts(&(0..142_858)),
            0..1,
            "70 requests were too many"
        );
        // Cutting what one flight carries gains nothing.
        assert_eq!(Cut::new(&geometry(3, 10, 40_000), 10, 4).parts(&(0..13_334)), 0..1);
    }

    #[test]
    fn turns_are_in_one_piece_for_each_connection() {
        let turn = |connections, position| {
            let cut = Cut::new(&geometry(3, 10, 1_000_000), 10, connections);
            cut.turn(position).collect::<Vec<_>>()
        };
        assert_eq!((turn(1, 0), turn(1, 3)), (vec![0..3], vec![9..10, 0..2]));
        assert_eq!((turn(2, 1), turn(3, 1)), (vec![6..9, 9..12], vec![3..4, 4..5, 5..6]));
        let none = Cut::new(&geometry(7, 10, 1_000_000), 10, 1);
        assert_eq!(none.turn(0).count(), 0);
    }

    #[test]
    fn a_long_file_comes_in_whole_blocks() {
        let file = geometry(3, 10, 100_000_000);
        let cut = Cut::new(&file, 10, 4);
        assert!(cut.whole_blocks && cut.part.is_multiple_of(file.block_size()) && cut.part <= RANGE_BYTES, "{cut:?}");
    }

    #[test]
    fn the_least_busy_is_asked_and_no_share_twice() {
        let choice = |reader, share, load| Choice { reader, share, load };
        let choices = [choice(0, 0, 5), choice(1, 1, 2), choice(2, 2, 2), choice(3, 1, 0)];
        assert_eq!(choose(choices.into_iter(), &[].into()), Some(3));
        assert_eq!(choose(choices.into_iter(), &[1].into()), Some(2));
        assert_eq!(choose(choices.into_iter(), &[0, 1, 2].into()), None);
    }

    #[test]
    fn a_silent_server_is_slow_and_a_busy_link_is_not() {
        let seconds = Duration::from_secs;
        let mut patience = Patience::default();
        assert!(patience.is_over(seconds(2), seconds(1)) && !patience.is_over(seconds(9), seconds(0)));
        (0..9).for_each(|_| patience.answered(seconds(3)));
        assert!(!patience.is_over(seconds(9), seconds(0)) && patience.is_over(seconds(13), seconds(0)));
    }

    proptest! {
        #[test]
        fn the_parts_are_the_whole(
            needed in 1_u16..=100, more in 0_u16..=100, size in 1_u64..2_000_000_000, shares in 1_usize..=200,
            connections in 1_usize..=4,
        ) {
            let cut = Cut::new(&geometry(needed, needed + more, size), shares, connections);
            let parts = cut.parts(&(0..cut.data));
            prop_assert!(parts.end < 10_000);
            let mut at = 0;
            for part in parts {
                let range = cut.range(part);
                prop_assert!(range.start == at && range.end > at && range.end - at <= RANGE_BYTES.max(cut.part));
                at = range.end;
            }
            prop_assert_eq!(at, cut.data);
        }

        #[test]
        fn turns_are_all_parts_k_times(needed in 1_u16..=12, more in 1_u16..=20, size in 1_u64..9_000_000, connections in 1_usize..=6) {
            let shares = needed + more;
            let cut = Cut::new(&geometry(needed, shares, size), shares.into(), connections);
            let mut times = vec![0; cut.parts(&(0..cut.data)).count()];
            let turns: Vec<_> = (0..u64::from(shares)).map(|position| cut.turn(position).flatten().collect::<Vec<_>>()).collect();
            for turn in &turns {
                prop_assert_eq!(turn.len(), turns[0].len());
                turn.iter().for_each(|&part| times[part as usize] += 1);
            }
            prop_assert!(turns[0].is_empty() || times.iter().all(|&times| times == needed));
        }
    }
}
