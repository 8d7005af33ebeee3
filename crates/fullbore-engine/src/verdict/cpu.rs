//! CPU counters of the kernel: per thread, per machine, per process.
//!
//! Parsers take text, so that tests can use captured files. The functions that read `/proc` are below them.

use std::collections::HashMap;
use std::fs;

/// Fields 1 and 2 of `/proc/PID/task/TID/schedstat`: time on a core and time
/// runnable without one (Documentation/scheduler/sched-stats.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchedStat {
    /// Time on a core.
    pub compute_ns: u64,
    /// Time in a run queue.
    pub run_delay_ns: u64,
}

impl SchedStat {
    /// Parses the text of a schedstat file.
    pub(crate) fn parse(text: &str) -> Option<SchedStat> {
        let mut fields = text.split_ascii_whitespace().map(str::parse);
        let compute_ns = fields.next()?.ok()?;
        let run_delay_ns = fields.next()?.ok()?;
        Some(SchedStat { compute_ns, run_delay_ns })
    }
}

/// The kernel's number of the calling thread.
pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Counters of a thread of this process; `None` once it has ended.
pub(crate) fn schedstat(thread_id: u32) -> Option<SchedStat> {
    SchedStat::parse(&fs::read_to_string(format!("/proc/self/task/{thread_id}/schedstat")).ok()?)
}

thread_local! {
    /// Kept open: a role that changes for each piece of data reads it each time.
    static OWN_SCHEDSTAT: Option<fs::File> = fs::File::open("/proc/thread-self/schedstat").ok();
}

/// Counters of the calling thread; zero where the kernel keeps none.
pub(crate) fn own_schedstat() -> SchedStat {
    use std::os::unix::fs::FileExt as _;
    /// Longest line of schedstat: three numbers of 64 bits.
    const LINE_BYTES: usize = 64;
    let read = |file: &Option<fs::File>| {
        let mut line = [0; LINE_BYTES];
        let count = file.as_ref()?.read_at(&mut line, 0).ok()?;
        SchedStat::parse(std::str::from_utf8(&line[..count]).ok()?)
    };
    // A thread that is being torn down has closed its file already.
    let last = || read(&fs::File::open("/proc/thread-self/schedstat").ok());
    OWN_SCHEDSTAT.try_with(read).unwrap_or_else(|_| last()).unwrap_or_default()
}

/// CPU time of all threads of this process, including ended ones (clock_gettime(2)).
pub(crate) fn used_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Jiffies of the allowed cores from `/proc/stat` (proc_stat(5)), in USER_HZ,
/// which is 100 per second on every Linux port we run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cores {
    /// Number of cores that were counted.
    pub count: u32,
    /// Ticks spent working for anybody, including the hypervisor.
    pub busy_ticks: u64,
    /// Ticks taken by the hypervisor for other machines; part of `busy_ticks`.
    pub steal_ticks: u64,
}

/// Nanoseconds per tick of `/proc/stat`.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// Sums the cores for which `allowed` is true.
pub(crate) fn parse_cores(text: &str, allowed: impl Fn(u32) -> bool) -> Cores {
    let mut cores = Cores::default();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let number = fields.next().and_then(|name| name.strip_prefix("cpu"));
        let Some(number) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        if !allowed(number) {
            continue;
        }
        let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        // user nice system idle iowait irq softirq steal; guest time is within user.
        let steal_ticks = at(7);
        cores.count += 1;
        cores.steal_ticks = cores.steal_ticks.saturating_add(steal_ticks);
        cores.busy_ticks =
            [at(0), at(1), at(2), at(5), at(6), steal_ticks].into_iter().fold(cores.busy_ticks, u64::saturating_add);
    }
    cores
}

/// Reads the counters of the cores that this process may use.
pub(crate) fn cores() -> Cores {
    let Ok(text) = fs::read_to_string("/proc/stat") else {
        return Cores::default();
    };
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => parse_cores(&text, |core| {
            let core = core as usize;
            core < rustix::thread::CpuSet::MAX_CPU && set.is_set(core)
        }),
        Err(_) => parse_cores(&text, |_| true),
    }
}

/// Parses `/proc/PID/stat` into the name of a process and its CPU ticks (user and system).
pub(crate) fn parse_process(text: &str) -> Option<(&str, u64)> {
    // The name may contain blanks and parentheses, so the last parenthesis counts.
    let open = text.find('(')?;
    let close = text.rfind(')')?;
    let name = text.get(open + 1..close)?;
    let mut fields = text.get(close + 1..)?.split_ascii_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((name, user.saturating_add(system)))
}

/// Maximum number of processes per scan. Beyond it the name of a hog may be missed; the verdict does not depend on it.
const PROCESSES: usize = 5000;

/// Finds the process, other than this one, that used most CPU between two scans.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    ticks: HashMap<u32, u64>,
}

impl Processes {
    /// Scans all processes. Returns the largest consumer since the last scan, with its ticks.
    pub(crate) fn scan(&mut self) -> Option<(String, u64)> {
        let own = std::process::id();
        let mut ticks = HashMap::new();
        let mut largest: Option<(String, u64)> = None;
        let entries = fs::read_dir("/proc").ok()?;
        let numbers = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|number| *number != own)
            .take(PROCESSES);
        for number in numbers {
            let Ok(text) = fs::read_to_string(format!("/proc/{number}/stat")) else {
                continue;
            };
            let Some((name, total)) = parse_process(&text) else {
                continue;
            };
            ticks.insert(number, total);
            let Some(before) = self.ticks.get(&number) else {
                continue;
            };
            let used = total.saturating_sub(*before);
            if used > largest.as_ref().map_or(0, |(_, most)| *most) {
                largest = Some((name.to_owned(), used));
            }
        }
        self.ticks = ticks;
        largest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAT: &str = "cpu  142286 0 12114 140792 2298 0 229 3872 0 0\n\
        cpu0 69884 1 5848 72430 579 2 71 2078 0 0\n\
        cpu1 72402 0 6265 68361 1718 0 158 1794 0 0\n\
        intr 12345 0 0\nctxt 99\n";

    #[test]
    fn schedstat_has_compute_and_wait_for_a_core() {
        let expected = SchedStat { compute_ns: 1_077_786_632, run_delay_ns: 419_179 };
        assert_eq!(SchedStat::parse("1077786632 419179 85\n"), Some(expected));
        assert_eq!(SchedStat::parse(""), None);
        assert_eq!(SchedStat::parse("x y z"), None);
    }

    #[test]
    fn only_allowed_cores_count_and_idle_does_not() {
        let both = parse_cores(STAT, |_| true);
        assert_eq!((both.count, both.steal_ticks), (2, 3872));
        let second = parse_cores(STAT, |core| core == 1);
        assert_eq!((second.count, second.busy_ticks), (1, 72402 + 6265 + 158 + 1794));
    }

    #[test]
    fn a_process_name_may_hold_anything() {
        let tail = "R 1 2 3 0 -1 4194304 2831 6535 10 0 105 7 4 2 20 0 1";
        let text = format!("19528 (a) (b c) {tail}");
        assert_eq!(parse_process(&text), Some(("a) (b c", 112)));
        assert_eq!(parse_process("1 (x"), None);
        assert_eq!(parse_process(")("), None);
    }

    #[test]
    fn this_machine_has_cores_and_this_thread_computes() {
        assert!(cores().count >= 1);
        assert!(schedstat(thread_id()).is_some(), "a kernel without CONFIG_SCHED_INFO?");
        let mut processes = Processes::default();
        processes.scan();
        processes.scan();
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in ".{0,300}") {
            SchedStat::parse(&text);
            parse_process(&text);
            parse_cores(&text, |_| true);
            parse_cores(&format!("cpu0 {text}\ncpu{text}"), |_| true);
        }
    }
}
