//! How long servers are waited for that send, but too slowly to come to an end.
//!
//! A link gives up a server from which nothing comes. One that sends a byte now and then is no such server, and would be
//! waited for as long as it likes. A slow path, over which many files are read at once, looks alike to each of these files;
//! but its servers do complete answers, be they for others.

use std::time::Duration;

use tokio::time::Instant;

use crate::upload::Grid;

/// A server has so many times the patience for all that it is asked at once. Twice: one that sends nothing at all is given
/// up by its link before, which knows the reason.
const PATIENCES: u32 = 2;

/// Bytes per second that the slowest path is expected to carry, beside that time. A guess.
const LOWEST_BYTES_PER_S: u64 = 4 << 10;

/// How often the time begins anew because servers have completed answers: 20 minutes with the usual patience.
const RENEWALS: u32 = 20;

/// A time limit for answers of some servers.
pub(super) struct Limit<'a> {
    grid: &'a Grid,
    /// When it is over.
    pub until: Instant,
    time: Duration,
    renewals: u32,
    /// Positions in the grid, and how many answers each had completed.
    answers: Vec<(usize, u64)>,
}

impl<'a> Limit<'a> {
    /// Begins now, for this many bytes from servers at these positions in the grid.
    pub(super) fn new(grid: &'a Grid, servers: impl Iterator<Item = usize>, bytes: u64) -> Limit<'a> {
        let time = grid.patience() * PATIENCES + Duration::from_secs(bytes / LOWEST_BYTES_PER_S);
        let answers = servers.map(|server| (server, grid.link(server).reading().answers)).collect();
        Limit { grid, until: Instant::now() + time, time, renewals: RENEWALS, answers }
    }

    /// Begins anew if a server that is still awaited has completed an answer since: whether it does.
    pub(super) fn renew(&mut self, is_awaited: impl Fn(usize) -> bool) -> bool {
        let mut goes_on = false;
        for (server, before) in self.answers.iter_mut().filter(|(server, _)| is_awaited(*server)) {
            let now = self.grid.link(*server).reading().answers;
            goes_on |= now > *before;
            *before = now;
        }
        if !goes_on || self.renewals == 0 {
            return false;
        }
        self.renewals -= 1;
        self.until = Instant::now() + self.time;
        true
    }
}
