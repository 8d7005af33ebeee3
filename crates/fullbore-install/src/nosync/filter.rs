//! The seccomp filter, as a BPF program.
//!
//! It has one block per architecture of programs that this machine runs (a 64-bit kernel runs 32-bit programs too, with
//! their own call numbers), and one block per call in it. Each block ends with a verdict, so that jumps only skip whole
//! blocks.
//!
//! Calls with an invalid descriptor or invalid flags pass to the kernel, because they must fail as usual. So do opens
//! with `O_SYNC`: a filter that refuses or changes opens breaks programs (tar uses `openat2` to stay below its
//! directory, and a filter cannot see its flags).

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF, sock_filter,
};

/// Action of the filter on a sync call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The kernel returns 0 at once.
    AtOnce,
    /// A supervisor counts calls, including those that stay synchronous.
    Counted,
}

/// A system call that waits for a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// `fsync`.
    Fsync,
    /// `fdatasync`.
    Fdatasync,
    /// `sync`.
    Sync,
    /// `syncfs`.
    Syncfs,
    /// `msync` with `MS_SYNC`.
    Msync,
    /// `sync_file_range`, `sync_file_range2`.
    SyncFileRange,
    /// `open`, `openat`, `open_by_handle_at` with `O_DSYNC` or `O_SYNC`: not answered, only counted.
    Open,
    /// `openat2`; its flags are in the program's memory. Not answered, only counted.
    Openat2,
    /// `pwritev2` with `RWF_DSYNC` or `RWF_SYNC`: not answered, only counted.
    Write,
    /// `io_uring_setup`: what goes through the ring is out of sight. Not answered, only counted.
    Ring,
    /// `io_setup`: `io_submit` takes syncs among many others, in the program's memory. Not answered, only counted.
    Submissions,
}

impl Call {
    /// Whether the filter answers the call instead of the kernel.
    pub fn is_answered(self) -> bool {
        !matches!(self, Call::Open | Call::Openat2 | Call::Write | Call::Ring | Call::Submissions)
    }

    /// Name of the system call, as in its manual page.
    pub fn name(self) -> &'static str {
        match self {
            Call::Fsync => "fsync",
            Call::Fdatasync => "fdatasync",
            Call::Sync => "sync",
            Call::Syncfs => "syncfs",
            Call::Msync => "msync",
            Call::SyncFileRange => "sync_file_range",
            Call::Open => "open with O_SYNC or O_DSYNC",
            Call::Openat2 => "openat2 with O_SYNC or O_DSYNC",
            Call::Write => "pwritev2 with RWF_SYNC or RWF_DSYNC",
            Call::Ring => "io_uring",
            Call::Submissions => "io_setup",
        }
    }
}

/// An architecture, with its call numbers from `arch/*/entry/syscalls/*.tbl`.
struct Architecture {
    audit: u32,
    /// Bit to clear in a number before comparison: x32 differs from amd64 by it.
    ignored_bit: u32,
    /// Offset of the low half of a 64-bit argument: 4 on a big-endian machine.
    low_half: u32,
    /// Number, call, and index of the argument to check: flags, or the descriptor of calls without flags.
    calls: &'static [(u32, Call, u8)],
}

/// Index for calls without an argument to check.
const NO_ARGUMENT: u8 = 0;

const X86_64: Architecture = Architecture {
    audit: 0xc000_003e,
    ignored_bit: 0x4000_0000,
    low_half: 0,
    calls: &[
        (74, Call::Fsync, 0),
        (75, Call::Fdatasync, 0),
        (277, Call::SyncFileRange, 3),
        (26, Call::Msync, 2),
        (162, Call::Sync, NO_ARGUMENT),
        (306, Call::Syncfs, 0),
        (257, Call::Open, 2),
        (2, Call::Open, 1),
        (304, Call::Open, 2),
        (437, Call::Openat2, 2),
        (328, Call::Write, 5),
        // The same under x32.
        (547, Call::Write, 5),
        (425, Call::Ring, NO_ARGUMENT),
        (206, Call::Submissions, NO_ARGUMENT),
        (543, Call::Submissions, NO_ARGUMENT),
    ],
};

/// Call numbers in which architectures older than x86-64 differ. Their other numbers are those of i386.
struct Numbers {
    /// Number of `sync_file_range` or `sync_file_range2`, and the index of its flags argument.
    sync_file_range: (u32, u8),
    syncfs: u32,
    openat: u32,
    open_by_handle_at: u32,
    pwritev2: u32,
    io_setup: u32,
}

impl Numbers {
    const fn calls(&self) -> [(u32, Call, u8); 13] {
        let (sync_file_range, flags) = self.sync_file_range;
        [
            (118, Call::Fsync, 0),
            (148, Call::Fdatasync, 0),
            (sync_file_range, Call::SyncFileRange, flags),
            (144, Call::Msync, 2),
            (36, Call::Sync, NO_ARGUMENT),
            (self.syncfs, Call::Syncfs, 0),
            (self.openat, Call::Open, 2),
            (5, Call::Open, 1),
            (self.open_by_handle_at, Call::Open, 2),
            (437, Call::Openat2, 2),
            (self.pwritev2, Call::Write, 5),
            (425, Call::Ring, NO_ARGUMENT),
            (self.io_setup, Call::Submissions, NO_ARGUMENT),
        ]
    }
}

const I386: Architecture = Architecture {
    audit: 0x4000_0003,
    ignored_bit: 0,
    low_half: 0,
    calls: &Numbers {
        sync_file_range: (314, 5),
        syncfs: 344,
        openat: 295,
        open_by_handle_at: 342,
        pwritev2: 379,
        io_setup: 245,
    }
    .calls(),
};

/// Call numbers of newer architectures.
const GENERIC: &[(u32, Call, u8)] = &[
    (82, Call::Fsync, 0),
    (83, Call::Fdatasync, 0),
    (84, Call::SyncFileRange, 3),
    (227, Call::Msync, 2),
    (81, Call::Sync, NO_ARGUMENT),
    (267, Call::Syncfs, 0),
    (56, Call::Open, 2),
    (265, Call::Open, 2),
    (437, Call::Openat2, 2),
    (287, Call::Write, 5),
    (425, Call::Ring, NO_ARGUMENT),
    (0, Call::Submissions, NO_ARGUMENT),
];

const AARCH64: Architecture = Architecture { audit: 0xc000_00b7, ignored_bit: 0, low_half: 0, calls: GENERIC };
const RISCV64: Architecture = Architecture { audit: 0xc000_00f3, ignored_bit: 0, low_half: 0, calls: GENERIC };
const LOONGARCH64: Architecture = Architecture { audit: 0xc000_0102, ignored_bit: 0, low_half: 0, calls: GENERIC };

/// Little-endian, Debian's ppc64el.
const POWERPC64: Architecture = Architecture {
    audit: 0xc000_0015,
    ignored_bit: 0,
    low_half: 0,
    calls: &Numbers {
        sync_file_range: (308, 1),
        syncfs: 348,
        openat: 286,
        open_by_handle_at: 346,
        pwritev2: 381,
        io_setup: 227,
    }
    .calls(),
};

const S390X: Architecture = Architecture {
    audit: 0x8000_0016,
    ignored_bit: 0,
    low_half: 4,
    calls: &Numbers {
        sync_file_range: (307, 3),
        syncfs: 338,
        openat: 288,
        open_by_handle_at: 336,
        pwritev2: 377,
        io_setup: 243,
    }
    .calls(),
};

const ARM: Architecture = Architecture {
    audit: 0x4000_0028,
    ignored_bit: 0,
    low_half: 0,
    calls: &Numbers {
        sync_file_range: (341, 1),
        syncfs: 373,
        openat: 322,
        open_by_handle_at: 371,
        pwritev2: 393,
        io_setup: 243,
    }
    .calls(),
};

/// All architectures at once: a block is never entered on a machine without the architecture, and emulation can change
/// the set.
const ARCHITECTURES: [&Architecture; 8] = [&X86_64, &I386, &AARCH64, &ARM, &RISCV64, &LOONGARCH64, &POWERPC64, &S390X];

/// Whether the filter knows the system calls of this architecture.
pub(super) const KNOWS_THIS_MACHINE: bool = cfg!(any(
    target_arch = "x86_64",
    target_arch = "x86",
    target_arch = "aarch64",
    target_arch = "arm",
    target_arch = "riscv64",
    target_arch = "loongarch64",
    all(target_arch = "powerpc64", target_endian = "little"),
    target_arch = "s390x",
));

/// Where `struct seccomp_data` has the call's number, the architecture, and the arguments.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// `O_DSYNC`, of which `O_SYNC` is a superset, on all these architectures.
pub(super) const O_DSYNC: u32 = 0x1000;
const RWF_SYNC_OR_DSYNC: u32 = 0x6;
const MS_SYNC: u32 = 4;
const MS_INVALIDATE: u32 = 2;
/// `SYNC_FILE_RANGE_WAIT_BEFORE`, `_WRITE` and `_WAIT_AFTER`, which are all flags of the call.
const SYNC_FILE_RANGE_FLAGS: u32 = 0x7;

/// Program of the filter.
pub fn program(answer: Answer) -> Vec<sock_filter> {
    let mut program = vec![load(ARCHITECTURE)];
    for architecture in ARCHITECTURES {
        let block = architecture_block(architecture, answer);
        program.push(unless_equal_skip(architecture.audit, &block));
        program.extend(block);
    }
    program.push(verdict(SECCOMP_RET_ALLOW));
    program
}

/// Call with this number on an architecture.
pub fn call(audit: u32, number: u32) -> Option<Call> {
    let architecture = ARCHITECTURES.iter().find(|known| known.audit == audit)?;
    let number = number & !architecture.ignored_bit;
    architecture.calls.iter().find(|(known, ..)| *known == number).map(|(_, call, _)| *call)
}

fn architecture_block(architecture: &Architecture, answer: Answer) -> Vec<sock_filter> {
    let mut block = vec![load(NUMBER)];
    if architecture.ignored_bit != 0 {
        block.push(statement(BPF_ALU | BPF_AND | BPF_K, !architecture.ignored_bit));
    }
    for (number, call, argument) in architecture.calls {
        if let Some(body) = call_block(*call, u32::from(*argument), architecture.low_half, answer) {
            block.push(unless_equal_skip(*number, &body));
            block.extend(body);
        }
    }
    block.push(verdict(SECCOMP_RET_ALLOW));
    block
}

/// Instructions for one call, which check this argument; `None` if the filter ignores the call.
fn call_block(call: Call, argument: u32, low_half: u32, answer: Answer) -> Option<Vec<sock_filter>> {
    let taken = match answer {
        // Error number 0 means success.
        Answer::AtOnce => verdict(SECCOMP_RET_ERRNO),
        Answer::Counted => verdict(SECCOMP_RET_USER_NOTIF),
    };
    if !call.is_answered() && answer == Answer::AtOnce {
        return None;
    }
    let allow = verdict(SECCOMP_RET_ALLOW);
    // Low halves: descriptors and flags are 32 bits wide.
    let load_argument = load(ARGUMENTS + low_half + 8 * argument);
    Some(match call {
        Call::Sync | Call::Ring | Call::Submissions | Call::Openat2 => vec![taken],
        // fsync(-1) must fail.
        Call::Fsync | Call::Fdatasync | Call::Syncfs => {
            vec![load_argument, if_any_bit(1 << 31, 0, 1), allow, taken]
        }
        Call::SyncFileRange => vec![
            load(ARGUMENTS + low_half),
            if_any_bit(1 << 31, 0, 1),
            allow,
            load_argument,
            if_any_bit(!SYNC_FILE_RANGE_FLAGS, 0, 1),
            allow,
            taken,
        ],
        // Some programs use MS_ASYNC, or invalid flags, to test whether an address is mapped.
        Call::Msync => {
            vec![load_argument, if_any_bit(!(MS_SYNC | MS_INVALIDATE), 1, 0), if_any_bit(MS_SYNC, 1, 0), allow, taken]
        }
        Call::Open => vec![load_argument, if_any_bit(O_DSYNC, 1, 0), allow, taken],
        Call::Write => vec![load_argument, if_any_bit(RWF_SYNC_OR_DSYNC, 1, 0), allow, taken],
    })
}

fn load(offset: u32) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset)
}

fn verdict(verdict: u32) -> sock_filter {
    statement(BPF_RET | BPF_K, verdict)
}

fn statement(code: u32, k: u32) -> sock_filter {
    instruction(code, 0, 0, k)
}

/// Jumps over `block` unless the loaded value is `k`.
fn unless_equal_skip(k: u32, block: &[sock_filter]) -> sock_filter {
    let length = u8::try_from(block.len()).expect("blocks are shorter than a jump reaches: tested");
    instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, length, k)
}

/// Jumps over `then` instructions if one of the bits is set, otherwise over `otherwise`.
fn if_any_bit(bits: u32, then: u8, otherwise: u8) -> sock_filter {
    instruction(BPF_JMP | BPF_JSET | BPF_K, then, otherwise, bits)
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    let code = u16::try_from(code).expect("codes of the packet filter are below 256");
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does.
    fn verdict_on(answer: Answer, audit: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let program = program(answer);
        let mut data = Vec::new();
        data.extend(number.to_le_bytes());
        data.extend(audit.to_le_bytes());
        data.extend(0_u64.to_le_bytes());
        let halves = if audit == S390X.audit { 32 } else { 0 };
        data.extend(arguments.iter().flat_map(|argument| argument.rotate_left(halves).to_le_bytes()));
        let (mut at, mut value) = (0, 0_u32);
        loop {
            let step = program[at];
            let code = u32::from(step.code);
            at += 1;
            if code == BPF_LD | BPF_W | BPF_ABS {
                let offset = step.k as usize;
                value = u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap());
            } else if code == BPF_ALU | BPF_AND | BPF_K {
                value &= step.k;
            } else if code == BPF_RET | BPF_K {
                return step.k;
            } else {
                let yes = match code & 0xf0 {
                    BPF_JEQ => value == step.k,
                    BPF_JSET => value & step.k != 0,
                    other => panic!("no such jump: {other}"),
                };
                at += usize::from(if yes { step.jt } else { step.jf });
            }
        }
    }

    const I386_AUDIT: u32 = 0x4000_0003;
    const X86_64_AUDIT: u32 = 0xc000_003e;

    #[test]
    fn sync_calls_of_each_architecture_are_answered() {
        for architecture in ARCHITECTURES {
            for (number, call, _) in architecture.calls {
                let arguments = [3, 0, u64::from(MS_SYNC), 0, 0, 0];
                let expected = if call.is_answered() { SECCOMP_RET_ERRNO } else { SECCOMP_RET_ALLOW };
                assert_eq!(verdict_on(Answer::AtOnce, architecture.audit, *number, arguments), expected, "{call:?}");
                if call.is_answered() {
                    let counted = verdict_on(Answer::Counted, architecture.audit, *number, arguments);
                    assert_eq!(counted, SECCOMP_RET_USER_NOTIF, "{call:?}");
                }
            }
        }
    }

    #[test]
    fn calls_of_x32_are_those_of_amd64() {
        assert_eq!(verdict_on(Answer::AtOnce, X86_64_AUDIT, 74 | 0x4000_0000, [3; 6]), SECCOMP_RET_ERRNO);
        assert_eq!(call(X86_64_AUDIT, 74 | 0x4000_0000), Some(Call::Fsync));
    }

    #[test]
    fn a_number_counts_in_its_own_architecture_only() {
        // 74 is sethostname for i386, 118 is getresgid for amd64.
        assert_eq!(verdict_on(Answer::AtOnce, I386_AUDIT, 74, [3; 6]), SECCOMP_RET_ALLOW);
        assert_eq!(verdict_on(Answer::AtOnce, X86_64_AUDIT, 118, [3; 6]), SECCOMP_RET_ALLOW);
        assert_eq!(verdict_on(Answer::AtOnce, 0x8000_0016, 74, [3; 6]), SECCOMP_RET_ALLOW);
    }

    #[test]
    fn what_has_to_fail_reaches_the_kernel() {
        let minus_one = u64::from(u32::MAX);
        assert_eq!(verdict_on(Answer::AtOnce, X86_64_AUDIT, 74, [minus_one; 6]), SECCOMP_RET_ALLOW);
        // MS_ASYNC; MS_ASYNC and MS_SYNC together; an unknown flag.
        for flags in [1, 5, 4 | 0x100] {
            assert_eq!(verdict_on(Answer::AtOnce, X86_64_AUDIT, 26, [0, 0, flags, 0, 0, 0]), SECCOMP_RET_ALLOW);
        }
        assert_eq!(verdict_on(Answer::AtOnce, X86_64_AUDIT, 26, [0, 0, 6, 0, 0, 0]), SECCOMP_RET_ERRNO);
        // sync_file_range with flags that there are not, and with all that there are, wherever they are given.
        for architecture in ARCHITECTURES {
            let (number, _, flags_at) = architecture.calls.iter().find(|call| call.1 == Call::SyncFileRange).unwrap();
            let with = |descriptor, flags| {
                let mut arguments = [0, 99, 99, 99, 99, 99];
                arguments[usize::from(*flags_at)] = flags;
                arguments[0] = descriptor;
                verdict_on(Answer::AtOnce, architecture.audit, *number, arguments)
            };
            assert_eq!(with(3, 99), SECCOMP_RET_ALLOW, "{:x}", architecture.audit);
            assert_eq!(with(3, 7), SECCOMP_RET_ERRNO, "{:x}", architecture.audit);
            assert_eq!(with(minus_one, 7), SECCOMP_RET_ALLOW, "{:x}", architecture.audit);
        }
    }

    #[test]
    fn what_stays_synchronous_is_counted_and_nothing_else() {
        assert_eq!(verdict_on(Answer::Counted, X86_64_AUDIT, 206, [0; 6]), SECCOMP_RET_USER_NOTIF);
        assert_eq!(call(X86_64_AUDIT, 543 | 0x4000_0000), Some(Call::Submissions));
        let open = |flags| verdict_on(Answer::Counted, X86_64_AUDIT, 257, [0, 0, flags, 0, 0, 0]);
        assert_eq!(open(0o4_010_000 | 1), SECCOMP_RET_USER_NOTIF);
        assert_eq!(open(0o10_000 | 1), SECCOMP_RET_USER_NOTIF);
        assert_eq!(open(0o102), SECCOMP_RET_ALLOW);
        assert_eq!(verdict_on(Answer::Counted, X86_64_AUDIT, 328, [0, 0, 0, 0, 0, 4]), SECCOMP_RET_USER_NOTIF);
        assert_eq!(verdict_on(Answer::Counted, X86_64_AUDIT, 328, [0, 0, 0, 0, 0, 1]), SECCOMP_RET_ALLOW);
    }
}
