//! The caps of files to read: from the command line, and from stdin as they come.

use std::ffi::OsString;
use std::io::{self, BufRead, Read};
use std::path::Path;

use fullbore_engine::run::CommandError;
use fullbore_engine::units;
use tokio::sync::mpsc;

use crate::cap::{Cap, Chk};

/// Longest line of stdin in bytes. Most caps have some hundred, but literals hold their content.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Caps read ahead of the downloads.
const AHEAD: usize = 100;

/// A file to be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Literal(Vec<u8>),
    Chk(Chk),
    /// A cap of unknown size, with a path: a mutable file, a directory, or what the path leads to.
    Other(Cap, String),
}

/// Caps in their order; an error is the last item.
pub(super) type Caps = mpsc::Receiver<Result<Wanted, CommandError>>;

/// Reads caps in a thread; those of stdin come in the place of `-`, each as soon as its line is read.
///
/// # Errors
/// `ErrorKind::Usage` if an argument is not a cap, or its cap can only verify.
pub(super) fn read(arguments: &[OsString]) -> Result<Caps, CommandError> {
    let given = |argument: &OsString| match argument.to_str() {
        Some("-") => Ok(None),
        _ => parse(&argument.to_string_lossy()).map(Some),
    };
    let given = arguments.iter().map(given).collect::<Result<Vec<_>, _>>()?;
    let (out, caps) = mpsc::channel(AHEAD);
    let give = move || {
        for cap in given {
            let taken = match cap {
                Some(cap) => out.blocking_send(Ok(cap)).is_ok(),
                None => lines(io::stdin().lock(), &out),
            };
            if !taken {
                return;
            }
        }
    };
    std::thread::spawn(give);
    Ok(caps)
}

/// Sends a cap for each line; returns false when the receiver is gone or the input has failed.
fn lines(mut from: impl BufRead, out: &mpsc::Sender<Result<Wanted, CommandError>>) -> bool {
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let cap = match (&mut from).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line) {
            Ok(0) => return true,
            Ok(_) if line.trim_ascii().is_empty() => continue,
            // The rest of an overlong line could be mistaken for a cap.
            Ok(count) if count as u64 > LINE_BYTES_MAX => {
                Err(CommandError::usage(format_args!("a cap of more than {}", units::bytes(LINE_BYTES_MAX))))
            }
            Ok(_) => parse(&String::from_utf8_lossy(&line)),
            Err(error) => Err(CommandError::disk(Path::new("stdin"), &error)),
        };
        let cap = cap.map_err(|error| error.context(format_args!("line {number} of stdin")));
        let last = cap.is_err();
        if out.blocking_send(cap).is_err() || last {
            return false;
        }
    }
    true
}

/// Parses a cap; no error repeats it.
fn parse(text: &str) -> Result<Wanted, CommandError> {
    let (cap, path) = text.trim().split_once('/').unwrap_or((text, ""));
    let cap = Cap::parse(cap).map_err(|error| CommandError::usage(format_args!("the cap cannot be read: {error}")))?;
    match cap {
        Cap::Literal(content) if path.is_empty() => Ok(Wanted::Literal(content)),
        Cap::Chk(chk) if path.is_empty() => Ok(Wanted::Chk(chk)),
        Cap::Verifier(_) | Cap::DirectoryVerifier(_) => {
            Err(CommandError::usage("this cap can verify the file, not read it"))
        }
        Cap::Mutable(mutable) | Cap::MutableDirectory(mutable) if mutable.read_key().is_none() => {
            Err(CommandError::usage("this cap can verify the file, not read it"))
        }
        cap => Ok(Wanted::Other(cap, path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The caps read from a text, and whether more would be accepted.
    fn given(text: &[u8]) -> (Vec<Option<Wanted>>, bool) {
        let (out, mut caps) = mpsc::channel(AHEAD);
        let more = lines(text, &out);
        drop(out);
        (std::iter::from_fn(|| caps.blocking_recv()).map(Result::ok).collect(), more)
    }

    fn literal(content: &str) -> Option<Wanted> {
        Some(Wanted::Literal(content.into()))
    }

    #[test]
    fn each_line_is_a_cap() {
        let both = vec![literal(""), literal("abc")];
        assert_eq!(given(b"URI:LIT:\n\n \r\nURI:LIT:mfrgg\r\n"), (both, true));
        assert_eq!(given(b"URI:LIT:mfrgg"), (vec![literal("abc")], true));
        assert_eq!(given(b"\n"), (vec![], true));
    }

    #[test]
    fn what_is_no_cap_is_the_last() {
        assert_eq!(given(b"URI:LIT:\nURI:nothing\nURI:LIT:\n"), (vec![literal(""), None], false));
        // A literal cut short would be a different literal.
        let long = format!("URI:LIT:{}\n", "mfrgg".repeat(LINE_BYTES_MAX as usize / 5));
        assert_eq!(given(long.as_bytes()), (vec![None], false));
        let (_, more) = given(b"\xff\n");
        assert!(!more);
    }
}
