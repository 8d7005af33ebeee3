//! Further connections by ssh, if there is no direct connection.
//!
//! Each starts the program on the far machine once more. That process joins the existing one through a socket in the
//! abstract namespace (unix(7)), so nothing is left when the processes end. The socket's name is not secret. A token
//! is; it travels only in ssh's pipes, and has to come first on the socket.

use std::ffi::OsString;
use std::io::{self, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};

use super::Transport;
use super::setup::{self, Joined, Joint};
use super::stream::Stream;
use crate::error::CopyError;

/// Time limit for sending the token.
const TOKEN_TIME: Duration = Duration::from_secs(10);
/// Most connections that may join in total, so that strangers cannot occupy more.
const JOINED: usize = 16;
/// Interval of checks for a joining process.
const LOOK: Duration = Duration::from_millis(10);
const SECRET_BYTES: usize = 16;
/// Bytes copied at once: the capacity of a pipe.
const COPY_BYTES: usize = 64 << 10;

fn secret() -> io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("fullbore-copy-{name}"))
}

/// At the far end: accepts connections until the copy is over, and adds them to the transport.
///
/// # Errors
/// The error of making the token, or of binding and configuring the socket.
pub(super) fn listen(transport: &Arc<Transport>) -> io::Result<Joint> {
    let joint = Joint { name: secret()?, token: secret()? };
    let listener = UnixListener::bind_addr(&address(&joint.name)?)?;
    listener.set_nonblocking(true)?;
    let (transport, token) = (transport.clone(), joint.token.clone());
    std::thread::spawn(move || {
        let mut left = JOINED;
        while left > 0 && !transport.is_over() {
            match listener.accept() {
                Ok((socket, _)) => {
                    left -= 1;
                    let (transport, token) = (transport.clone(), token.clone());
                    std::thread::spawn(move || {
                        if let Ok(stream) = admit(socket, &token) {
                            transport.add(stream);
                        }
                    });
                }
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    });
    Ok(joint)
}

/// Checks the token of a connection.
fn admit(socket: UnixStream, token: &str) -> io::Result<Stream> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(TOKEN_TIME))?;
    let mut said = vec![0; token.len() + 1];
    (&socket).read_exact(&mut said)?;
    if said != format!("{token}\n").as_bytes() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    socket.set_read_timeout(None)?;
    setup::write(&mut &socket, &Joined { joined: true })?;
    Ok(Stream::pipe(socket.try_clone()?, socket))
}

/// The far end's second process: carries bytes between ssh and the process that it joins.
///
/// # Errors
/// [`CopyError::Network`] if that process has gone, or the pipe to ssh breaks.
pub(crate) fn carry(name: &str, input: impl Read + Send + 'static, mut output: impl Write) -> Result<(), CopyError> {
    let gone = |error: io::Error| CopyError::Network(format!("cannot reach the running fullbore: {error}"));
    let socket = address(name).and_then(|address| UnixStream::connect_addr(&address)).map_err(gone)?;
    let mut out = socket.try_clone().map_err(gone)?;
    std::thread::spawn(move || {
        let _ = copy(input, &mut out);
        let _ = out.shutdown(std::net::Shutdown::Write);
    });
    copy(&socket, &mut output).map_err(gone)
}

/// Like `io::copy`, but without splice(2): spliced bytes stayed in a full pipe until more came (observed).
fn copy(mut from: impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// At the near end: makes one more connection by ssh.
pub(super) fn dial(command: &[OsString], joint: &Joint, children: &Mutex<Vec<Child>>) -> io::Result<Stream> {
    let (last, before) = command.split_last().ok_or(io::ErrorKind::InvalidInput)?;
    let mut last = last.clone();
    last.push(&joint.name);
    let (program, arguments) = before.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(program)
        .args(arguments)
        .arg(last)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    children.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    let (mut input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
    input.write_all(format!("{}\n", joint.token).as_bytes())?;
    let mut output = BufReader::with_capacity(64 << 10, output);
    let joined = setup::read::<Joined>(&mut output, setup::ANSWER_BYTES).map_err(io::Error::other)?;
    joined.map(|_| Stream::pipe(output, input)).ok_or(io::ErrorKind::UnexpectedEof.into())
}
