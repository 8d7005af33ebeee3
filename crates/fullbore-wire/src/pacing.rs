//! Pacing: spreads the bytes that a congestion window allows over the round trip, instead of sending them in one burst.
//!
//! Linux paces BBR by itself, and other congestion controls only on request. The call is the only `unsafe` code here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A rate without limit, in bytes per second. The largest value of the option means that pacing was not requested.
static NO_LIMIT: libc::c_uint = libc::c_uint::MAX - 1;

/// Requests pacing of a TCP socket for as long as it is open: at twice the congestion window per round trip during slow
/// start, at 1.2 times afterwards (`SO_MAX_PACING_RATE`, socket(7); `net.ipv4.tcp_pacing_ss_ratio` and
/// `tcp_pacing_ca_ratio`).
///
/// # Errors
/// The error of `setsockopt`: `ENOTSOCK`, or `ENOPROTOOPT` before Linux 3.13. Until 4.13 the option has an effect only
/// with the queueing discipline `fq`.
pub(crate) fn pace(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the option's value is a `c_uint` that lives for the whole call; its size is passed, and the kernel only
    // reads it. `socket` is open for the borrow's life.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const NO_LIMIT).cast(),
            size_of_val(&NO_LIMIT) as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The rate that a socket is paced at.
#[cfg(test)]
pub(crate) fn rate(socket: BorrowedFd<'_>) -> libc::c_uint {
    let mut rate: libc::c_uint = 0;
    let mut length = size_of_val(&rate) as libc::socklen_t;
    // SAFETY: `rate` is valid for writes of `length` bytes for the whole call.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw mut rate).cast(),
            &mut length,
        )
    };
    assert_eq!(status, 0);
    rate
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_kernel_is_asked_and_refusals_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(rate(socket.as_fd()), libc::c_uint::MAX, "none is asked for");
        pace(socket.as_fd()).unwrap();
        assert_eq!(rate(socket.as_fd()), NO_LIMIT);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(pace(file.as_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }
}
