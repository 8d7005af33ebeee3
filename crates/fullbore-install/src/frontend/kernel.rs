//! Code that the forked process runs before it becomes the program.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::FlockOperation;
use rustix::io::{Errno, FdFlags};
use rustix::process::Signal;
use rustix::time::Timespec;

use super::LockTimeout;

/// First byte of a message, before the number of a lock: the process waits for the lock.
pub(super) const WAITS: u8 = b'w';
/// First byte of a message: the timeout passed.
pub(super) const GIVES_UP: u8 = b'h';
/// First byte of a message: the process has all locks.
pub(super) const HAS: u8 = b'l';

/// Message to the process to become the program. It ends at any other message, and at the end of the pipe.
pub(super) const GO: u8 = b'g';

/// Interval between attempts to take a lock. apt tries once per second.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// Makes the process of `command` take these locks, report that on `telling`, and become the program when [`GO`]
/// arrives on `going`. It closes the other ends of the pipes. It is killed if the thread that started it ends before:
/// another process forked at the same moment may keep an end of the pipe open.
pub(super) fn wait_under_locks(
    command: &mut Command,
    locks: [OwnedFd; 2],
    (going, go): (OwnedFd, BorrowedFd<'_>),
    (heard, telling): (BorrowedFd<'_>, OwnedFd),
    timeout: LockTimeout,
) {
    let others = [go.as_raw_fd(), heard.as_raw_fd()];
    let parent = rustix::process::getpid();
    let before_exec = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != Some(parent) {
            return Err(Errno::CANCELED.into());
        }
        for other in others {
            // SAFETY: these are copies of the parent's descriptors, which this process does not use. With them open,
            // the pipes would never end.
            unsafe { libc::close(other) };
        }
        for (number, lock) in (0..).zip(&locks) {
            // The descriptor must stay open while the program runs.
            rustix::io::fcntl_setfd(lock, FdFlags::empty())?;
            take(lock, number, telling.as_fd(), going.as_fd(), timeout)?;
        }
        rustix::io::write(&telling, &[HAS, 0])?;
        let mut word = [0];
        rustix::io::retry_on_intr(|| rustix::io::read(&going, &mut word))?;
        if word != [GO] {
            return Err(Errno::CANCELED.into());
        }
        rustix::process::set_parent_process_death_signal(None)?;
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec; it only makes system calls, allocates nothing and takes no mutex.
    unsafe {
        command.pre_exec(before_exec);
    }
}

fn take(
    lock: &OwnedFd,
    number: u8,
    telling: BorrowedFd<'_>,
    going: BorrowedFd<'_>,
    timeout: LockTimeout,
) -> io::Result<()> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        match rustix::fs::fcntl_lock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN | Errno::ACCESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        if matches!(timeout, LockTimeout::For(limit) if begun.elapsed() >= limit) {
            rustix::io::write(telling, &[GIVES_UP, number])?;
            return Err(Errno::AGAIN.into());
        }
        if !told {
            rustix::io::write(telling, &[WAITS, number])?;
            told = true;
        }
        let nap = Timespec { tv_sec: 0, tv_nsec: i64::from(TRY_EVERY.subsec_nanos()) };
        // Before the process has all locks, the only message is that it must end.
        if matches!(rustix::event::poll(&mut [PollFd::new(&going, PollFlags::IN)], Some(&nap)), Ok(1)) {
            return Err(Errno::CANCELED.into());
        }
    }
}
