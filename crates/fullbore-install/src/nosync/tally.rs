//! `--report`: the supervisor that answers and counts sync calls.
//!
//! It has no filter itself and must live until the last program under the filter has ended: otherwise the kernel would
//! answer their sync calls with ENOSYS.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::filter::{self, Call};
use super::kernel::{self, PendingCall};
use super::probe::FlushCost;

/// Number of calls per file system.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Counts by device number and call. There is no device for `sync` and `msync`, and for files that are gone.
    counts: BTreeMap<(Option<u64>, Call), u64>,
}

impl Tally {
    /// Counts and answers one waiting call.
    pub(super) fn serve(&mut self, listener: BorrowedFd<'_>) -> io::Result<()> {
        let Some(pending) = kernel::next_call(listener)? else { return Ok(()) };
        let call = filter::call(pending.audit, pending.number);
        kernel_answer(listener, &pending, call, &mut self.counts)
    }

    /// Number of sync calls answered without a sync.
    pub fn answered(&self) -> u64 {
        self.by_call().filter(|(call, _)| call.is_answered()).map(|(_, count)| count).sum()
    }

    /// Number of suppressed calls of each kind.
    pub fn by_call(&self) -> impl Iterator<Item = (Call, u64)> {
        let mut sums: BTreeMap<Call, u64> = BTreeMap::new();
        for ((_, call), count) in &self.counts {
            *sums.entry(*call).or_default() += count;
        }
        sums.into_iter()
    }

    /// Estimated time that the answered calls would have taken: one flush each, on file systems with a measured cost.
    /// `sync_file_range` flushes nothing and does not count.
    pub fn estimate(&self, costs: &[FlushCost]) -> Duration {
        let cost_of = |device: Option<u64>| match device {
            Some(device) => costs.iter().find(|cost| cost.device == device),
            None => costs.iter().max_by_key(|cost| cost.flush),
        };
        let mut sum = Duration::ZERO;
        for ((device, call), count) in &self.counts {
            let Some(cost) = cost_of(*device) else { continue };
            if call.is_answered() && *call != Call::SyncFileRange {
                sum = sum.saturating_add(cost.flush.saturating_mul(u32::try_from(*count).unwrap_or(u32::MAX)));
            }
        }
        sum
    }
}

fn kernel_answer(
    listener: BorrowedFd<'_>,
    pending: &PendingCall,
    call: Option<Call>,
    counts: &mut BTreeMap<(Option<u64>, Call), u64>,
) -> io::Result<()> {
    // Read /proc first: after the answer the program may close the file.
    let is_counted = call.filter(|call| *call != Call::Openat2 || opens_synchronously(pending));
    if let Some(call) = is_counted {
        *counts.entry((device(pending, call), call)).or_default() += 1;
    }
    kernel::answer(listener, pending, call.is_some_and(Call::is_answered))
}

fn device(pending: &PendingCall, call: Call) -> Option<u64> {
    let takes_file = matches!(call, Call::Fsync | Call::Fdatasync | Call::Syncfs | Call::SyncFileRange);
    let path = || format!("/proc/{}/fd/{}", pending.thread, pending.arguments[0] & u64::from(u32::MAX));
    if takes_file { device_of(&path()) } else { None }
}

/// Device of a file. Does not ask the server of the file system: that may be the program that waits for the answer.
fn device_of(path: &str) -> Option<u64> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let about = rustix::fs::statx(CWD, path, flags, StatxFlags::empty()).ok()?;
    Some(rustix::fs::makedev(about.stx_dev_major, about.stx_dev_minor))
}

/// Reads the flags of an `openat2` from the memory of the program. Another thread may change them later, which is
/// acceptable for counting.
fn opens_synchronously(pending: &PendingCall) -> bool {
    let mut flags = [0; 8];
    File::open(format!("/proc/{}/mem", pending.thread))
        .and_then(|memory| memory.read_exact_at(&mut flags, pending.arguments[2]))
        .is_ok_and(|()| u64::from_le_bytes(flags) & u64::from(filter::O_DSYNC) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_device_that_stat_tells() {
        use std::os::unix::fs::MetadataExt as _;
        for path in ["/proc/self/exe", "/dev/null"] {
            assert_eq!(device_of(path), Some(std::fs::metadata(path).unwrap().dev()));
        }
        assert_eq!(device_of("/no/such/file"), None);
    }

    #[test]
    fn the_estimate_is_calls_times_cost() {
        let millis = Duration::from_millis;
        let cost = |device, flush| FlushCost { path: "/".into(), device, flush: millis(flush) };
        let costs = [cost(1, 10), cost(2, 1)];
        let mut tally = Tally::default();
        tally.counts.insert((Some(1), Call::Fsync), 100);
        tally.counts.insert((Some(2), Call::Fdatasync), 3);
        tally.counts.insert((Some(3), Call::Fsync), 1_000_000);
        tally.counts.insert((None, Call::Sync), 2);
        tally.counts.insert((Some(1), Call::SyncFileRange), 5000);
        tally.counts.insert((None, Call::Open), 5000);
        assert_eq!(tally.estimate(&costs), millis(1000 + 3 + 20));
        assert_eq!(tally.answered(), 1_005_105);
    }
}
