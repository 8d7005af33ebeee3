//! CPU counters of the kernel: per thread, per machine, and per cgroup.
//!
//! Parsers take text, so that they are tested on captured files; the functions
//! that read `/proc` and `/sys` are at the end.

use std::fs;

/// Fields 1 and 2 of `/proc/PID/task/TID/schedstat`: time on a core and time
/// runnable without one (Documentation/scheduler/sched-stats.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedStat {
    /// Time on a core.
    pub compute_ns: u64,
    /// Time in a run queue.
    pub run_delay_ns: u64,
}

impl SchedStat {
    /// Parses the text of a schedstat file.
    pub fn parse(text: &str) -> Option<SchedStat> {
        let mut fields = text.split_ascii_whitespace().map(str::parse);
        let compute_ns = fields.next()?.ok()?;
        let run_delay_ns = fields.next()?.ok()?;
        Some(SchedStat { compute_ns, run_delay_ns })
    }
}

/// The kernel's number of the calling thread.
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The counters of a thread of this process; none once it has ended.
pub fn schedstat(thread_id: u32) -> Option<SchedStat> {
    SchedStat::parse(&fs::read_to_string(format!("/proc/self/task/{thread_id}/schedstat")).ok()?)
}

/// The counters of the calling thread; zero where the kernel keeps none.
pub fn own_schedstat() -> SchedStat {
    fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| SchedStat::parse(&text))
        .unwrap_or_default()
}
