//! System calls without a safe wrapper: the filter, messages of its supervisor, and signals.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, sigset_t, sock_filter, sock_fprog};
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};

/// Parameters for starting a command.
pub(super) struct Start<'a> {
    /// Filter of the command and its descendants.
    pub filter: Vec<sock_filter>,
    /// Whether a supervisor answers calls, through the descriptor that [`start`] returns.
    pub supervised: bool,
    /// Whether to give up setuid rights; without that only a privileged process may set a filter.
    pub no_new_privileges: bool,
    /// Signals as they were before this process blocked some.
    pub signals: &'a Signals,
}

/// Error in starting a command.
#[derive(Debug)]
pub(super) enum StartFailure {
    /// The kernel refused the filter.
    Filter(io::Error),
    /// The program cannot be executed.
    Program(io::Error),
}

/// Starts the command under the filter; with `supervised` also returns the descriptor of the listener.
pub(super) fn start(command: &mut Command, start: Start<'_>) -> Result<(Child, Option<OwnedFd>), StartFailure> {
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| StartFailure::Filter(error.into()))?;
    let Start { filter, supervised, no_new_privileges, signals } = start;
    let (mask, child_action) = (signals.mask, signals.child_action);
    let told = theirs.try_clone().map_err(StartFailure::Filter)?;
    let before_exec = move || {
        // SAFETY: plain numbers, pointers to values that live here, and nulls where the kernel allows them.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &child_action, ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut());
            // The standard library has just restored the default.
            if IGNORED_PIPES.load(Ordering::Relaxed) {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
        }
        let set = set_filter(&filter, supervised, no_new_privileges);
        match set {
            Ok(None) => Ok(()),
            Ok(Some(listener)) => send_descriptor(told.as_fd(), listener.as_fd()),
            Err(error) => {
                // The parent could not distinguish this from a program that cannot be executed.
                let number = error.raw_os_error().unwrap_or(libc::EINVAL);
                let _ = rustix::net::send(&told, &number.to_ne_bytes(), SendFlags::empty());
                Err(error)
            }
        }
    };
    // SAFETY: the closure runs between fork and exec; it makes system calls only, allocates
    // nothing and takes no lock.
    unsafe {
        command.pre_exec(before_exec);
    }
    let child = command.spawn();
    drop(theirs);
    match child {
        Ok(child) if supervised => match receive_descriptor(ours.as_fd()) {
            Ok(listener) => Ok((child, Some(listener))),
            Err(error) => Err(StartFailure::Filter(error)),
        },
        Ok(child) => Ok((child, None)),
        Err(error) => {
            let mut number = [0; 4];
            match rustix::net::recv(&ours, &mut number[..], RecvFlags::DONTWAIT) {
                Ok((4, _)) => Err(StartFailure::Filter(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))),
                _ => Err(StartFailure::Program(error)),
            }
        }
    }
}

/// Makes the command run under the filter. With `dies` it is killed when the thread that started it ends.
pub(super) fn apply_filter(command: &mut Command, filter: Vec<sock_filter>, no_new_privileges: bool, dies: bool) {
    let parent = rustix::process::getpid();
    let before_exec = move || {
        if dies {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have ended earlier.
            if rustix::process::getppid() != Some(parent) {
                return Err(rustix::io::Errno::CANCELED.into());
            }
        }
        set_filter(&filter, false, no_new_privileges).map(|_| ())
    };
    // SAFETY: the closure runs between fork and exec; it makes system calls only, allocates
    // nothing and takes no lock.
    unsafe {
        command.pre_exec(before_exec);
    }
}

/// Sets the umask of the command.
pub(crate) fn set_mask(command: &mut Command, mask: Mode) {
    let before_exec = move || {
        rustix::process::umask(mask);
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec, and makes one system call.
    unsafe {
        command.pre_exec(before_exec);
    }
}

/// Leaves a descriptor of this process open in the command, under the same number. It must be open until the command is
/// started.
pub(crate) fn pass_on(command: &mut Command, descriptor: BorrowedFd<'_>) {
    let number = descriptor.as_raw_fd();
    let before_exec = move || {
        // SAFETY: the number is that of a descriptor that the caller keeps open.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec, and makes one system call.
    unsafe {
        command.pre_exec(before_exec);
    }
}

fn set_filter(filter: &[sock_filter], supervised: bool, no_new_privileges: bool) -> io::Result<Option<OwnedFd>> {
    if no_new_privileges {
        rustix::thread::set_no_new_privs(true)?;
    }
    let length = u16::try_from(filter.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // The kernel reads the instructions and does not write them.
    let program = sock_fprog { len: length, filter: filter.as_ptr().cast_mut() };
    // The filter is not a sandbox: without this flag, kernels before 5.16 disable speculation for all processes with a
    // filter.
    const PLAIN: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    const LISTENING: libc::c_ulong = PLAIN | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    if !supervised {
        // Linux before 4.17 does not have the flag.
        return first_known(&[PLAIN, 0], &program).map(|_| None);
    }
    // Without the last flag (Linux before 5.19) a signal only repeats the notification.
    let descriptor = first_known(&[LISTENING | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, LISTENING], &program)?;
    // SAFETY: the kernel has just created this descriptor, and no other code has it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

/// Sets the filter with the first set of flags that the kernel knows.
fn first_known(flags: &[libc::c_ulong], program: &sock_fprog) -> io::Result<RawFd> {
    let mut tried = flags.iter().map(|flags| seccomp(*flags, program));
    let is_known = |set: &io::Result<RawFd>| !matches!(set, Err(error) if error.raw_os_error() == Some(libc::EINVAL));
    tried.find(is_known).unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EINVAL)))
}

fn seccomp(flags: libc::c_ulong, program: &sock_fprog) -> io::Result<RawFd> {
    // SAFETY: `program` points to the number of instructions that it says, during the call.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, ptr::from_ref(program)) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    RawFd::try_from(result).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn send_descriptor(to: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    message.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(to, &[io::IoSlice::new(b"fd")], &mut message, SendFlags::empty())?;
    Ok(())
}

fn receive_descriptor(from: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut space = [mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 4];
    rustix::net::recvmsg(from, &mut [io::IoSliceMut::new(&mut text)], &mut message, RecvFlags::CMSG_CLOEXEC)?;
    for part in message.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = part
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(io::Error::other("the filter's listener did not arrive"))
}

/// Clones the mount at `path` without a mount point (privileged, since Linux 5.2). The descriptor is a path and must
/// be opened.
pub(super) fn copy_of_mount(path: &Path) -> io::Result<OwnedFd> {
    const OPEN_TREE_CLONE: libc::c_uint = 1;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC.cast_unsigned();
    // SAFETY: the path ends with a zero byte and outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    match RawFd::try_from(result) {
        // SAFETY: the kernel has just created this descriptor, and no other code has it.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Moves only this thread into another mount namespace.
pub(super) fn enter_mounts(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain numbers. The first call gives this thread its own root and working directory, which the second
    // requires.
    let result = unsafe {
        match libc::unshare(libc::CLONE_FS) {
            0 => libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS),
            failed => failed,
        }
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A system call that waits for an answer.
pub(super) struct PendingCall {
    id: u64,
    /// Thread id in the PID namespace of this process.
    pub thread: u32,
    pub audit: u32,
    pub number: u32,
    pub arguments: [u64; 6],
}

/// Receives the next call from the listener; `None` if the program was killed.
pub(super) fn next_call(listener: BorrowedFd<'_>) -> io::Result<Option<PendingCall>> {
    // SAFETY: all zeros is a value of this type, and the one that the kernel demands.
    let mut notification: libc::seccomp_notif = unsafe { mem::zeroed() };
    // SAFETY: the request writes a `seccomp_notif`, whose size is part of its number.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => Ok(None),
            _ => Err(error),
        };
    }
    Ok(Some(PendingCall {
        id: notification.id,
        thread: notification.pid,
        audit: notification.data.arch,
        number: u32::from_ne_bytes(notification.data.nr.to_ne_bytes()),
        arguments: notification.data.args,
    }))
}

/// Answers a call: with success if `is_answered`, otherwise the kernel executes it.
pub(super) fn answer(listener: BorrowedFd<'_>, pending: &PendingCall, is_answered: bool) -> io::Result<()> {
    // SAFETY: all zeros is a value of this type.
    let mut response: libc::seccomp_notif_resp = unsafe { mem::zeroed() };
    response.id = pending.id;
    if !is_answered {
        response.flags = 1; // SECCOMP_USER_NOTIF_FLAG_CONTINUE
    }
    // SAFETY: the request reads a `seccomp_notif_resp`, whose size is part of its number.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
    if result < 0 {
        let error = io::Error::last_os_error();
        // The program was killed.
        if error.raw_os_error() != Some(libc::ENOENT) {
            return Err(error);
        }
    }
    Ok(())
}

/// Whether this process was started with SIGPIPE ignored, as services are by default (systemd.exec(5), IgnoreSIGPIPE).
static IGNORED_PIPES: AtomicBool = AtomicBool::new(false);

/// The C library calls the functions of this section before Rust's runtime ignores the signal.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_THE_RUNTIME: extern "C" fn() = note_pipe_signal;

extern "C" fn note_pipe_signal() {
    // SAFETY: all zeros is a value of this type, and the call fills it; it changes nothing.
    let action = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(libc::SIGPIPE, ptr::null(), &raw mut action);
        action
    };
    IGNORED_PIPES.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Blocked signals, read from a descriptor while this process waits for a command.
pub(super) struct Signals {
    pub descriptor: OwnedFd,
    mask: sigset_t,
    child_action: libc::sigaction,
}

/// Signals that are passed on. Stop signals keep their effect on both processes.
const PASSED_ON: [c_int; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];

impl Signals {
    pub(super) fn block() -> io::Result<Signals> {
        // SAFETY: all zeros is a value of these types, and the calls fill them; pointers are to
        // locals. Ignoring SIGCHLD, as a parent may have left it, would lose exit statuses.
        unsafe {
            let mut set: sigset_t = mem::zeroed();
            let mut mask: sigset_t = mem::zeroed();
            let mut child_action: libc::sigaction = mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in PASSED_ON.iter().chain(&[libc::SIGCHLD]) {
                libc::sigaddset(&raw mut set, *signal);
            }
            let mut by_default: libc::sigaction = mem::zeroed();
            by_default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGCHLD, &raw const by_default, &raw mut child_action);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut mask);
            let descriptor = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals { descriptor: OwnedFd::from_raw_fd(descriptor), mask, child_action })
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: both are values that the kernel gave.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &raw const self.child_action, ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, ptr::null_mut());
        }
    }
}

/// Ends this process by a signal, without a core dump: the command may have made one. Returns if the signal ends no
/// process.
pub(super) fn die_of(signal: c_int) {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    // SAFETY: plain calls with numbers and pointers to a local.
    unsafe {
        let mut set: sigset_t = mem::zeroed();
        libc::signal(signal, libc::SIG_DFL);
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
        libc::raise(signal);
    }
}
