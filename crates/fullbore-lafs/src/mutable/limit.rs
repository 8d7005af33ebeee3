//! Time limits for servers that send, but too slowly to finish.
//!
//! A link gives up a silent server. One that sends a byte now and then is not silent, and could stall a client for as
//! long as it likes. A slow path that is shared by many files looks the same to each of them. But its servers complete
//! answers to some of the files.

use std::time::Duration;

use tokio::time::Instant;

use crate::upload::Grid;

/// The limit for all requests to a server, as a multiple of the patience. Twice: a silent server is given up by its
/// link earlier, and with the reason.
const PATIENCES: u32 = 2;

/// Bytes per second expected of the slowest path, beside that time. A guess.
const LOWEST_BYTES_PER_S: u64 = 4 << 10;

/// Most renewals of the limit because servers completed answers: 20 minutes with the default patience.
const RENEWALS: u32 = 20;

/// A time limit for the answers of some servers.
pub(super) struct Limit<'a> {
    grid: &'a Grid,
    /// When it expires.
    pub until: Instant,
    time: Duration,
    renewals: u32,
    /// Positions in the grid, with the number of answers that each had completed.
    answers: Vec<(usize, u64)>,
}

impl<'a> Limit<'a> {
    /// Starts now, for this many bytes from servers at these positions in the grid.
    pub(super) fn new(grid: &'a Grid, servers: impl Iterator<Item = usize>, bytes: u64) -> Limit<'a> {
        let time = grid.patience() * PATIENCES + Duration::from_secs(bytes / LOWEST_BYTES_PER_S);
        let answers = servers.map(|server| (server, grid.link(server).reading().answers)).collect();
        Limit { grid, until: Instant::now() + time, time, renewals: RENEWALS, answers }
    }

    /// Restarts the limit if an awaited server has completed an answer since; returns whether it did.
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
