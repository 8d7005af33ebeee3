//! The caps to check: from the command line, a list, or stdin.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use fullbore_engine::run::CommandError;
use fullbore_engine::units;
use serde::Deserialize;
use tokio::sync::mpsc;

use crate::cap::Cap;

/// Longest line that is read, in bytes; as in `get`.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Caps read ahead of the checks.
const AHEAD: usize = 1000;

/// A cap, and the name of its file in reports. The name never contains the cap, which is a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub name: String,
    pub cap: Cap,
    /// Path below the cap: `sub/file` of `CAP/sub/file`.
    pub path: String,
    /// Report it even if all is well.
    pub is_argument: bool,
}

/// A line that is not a cap: its name, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub name: String,
    pub reason: String,
}

/// Caps in their order; an error of the input is the last item.
pub(super) type Caps = mpsc::Receiver<Result<Result<Named, Unreadable>, CommandError>>;

/// A line of the list written by `put --caps`.
#[derive(Deserialize)]
struct Line {
    cap: String,
    path: String,
}

/// Reads caps in a thread: those of stdin in the place of `-`, those of the list last.
///
/// # Errors
/// `ErrorKind::Usage` if an argument is not a cap; `ErrorKind::Disk` if the list cannot be opened.
pub(super) fn read(arguments: &[OsString], list: Option<&Path>) -> Result<Caps, CommandError> {
    let mut given = Vec::new();
    for (number, argument) in arguments.iter().enumerate() {
        given.push(match argument.to_str() {
            Some("-") => None,
            _ => {
                let name = if arguments.len() == 1 { "the cap".to_owned() } else { format!("cap {}", number + 1) };
                let mut named = parse(&argument.to_string_lossy(), name)
                    .map_err(|bad| CommandError::usage(format_args!("{} cannot be read: {}", bad.name, bad.reason)))?;
                named.is_argument = true;
                Some(named)
            }
        });
    }
    let open = |path: &Path| match File::open(path) {
        Ok(file) => Ok((path.to_owned(), file)),
        Err(error) => Err(CommandError::cannot("read", path, &error).context("--caps")),
    };
    let list = list.filter(|path| path.as_os_str() != "-").map(open).transpose()?;
    let has_stdin = list.is_none() && arguments.is_empty();
    let (out, caps) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        for cap in given {
            let taken = match cap {
                Some(cap) => out.blocking_send(Ok(Ok(cap))).is_ok(),
                None => lines(io::stdin().lock(), &PathBuf::from("stdin"), &out),
            };
            if !taken {
                return;
            }
        }
        match list {
            Some((path, file)) => _ = lines(BufReader::new(file), &path, &out),
            None if has_stdin => _ = lines(io::stdin().lock(), &PathBuf::from("stdin"), &out),
            None => {}
        }
    });
    Ok(caps)
}

type Out = mpsc::Sender<Result<Result<Named, Unreadable>, CommandError>>;

/// Sends a cap for each line; returns false when the receiver is gone or the input has failed.
fn lines(mut from: impl BufRead, path: &Path, out: &Out) -> bool {
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let name = || format!("line {number} of {}", path.display());
        let cap = match (&mut from).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line) {
            Ok(0) => return true,
            Ok(_) if line.trim_ascii().is_empty() => continue,
            // The rest of an overlong line could be mistaken for another cap.
            Ok(count) if count as u64 > LINE_BYTES_MAX => {
                Err(CommandError::usage(format_args!("{}: more than {}", name(), units::bytes(LINE_BYTES_MAX))))
            }
            Ok(_) => Ok(parse(&String::from_utf8_lossy(&line), name())),
            Err(error) => Err(CommandError::cannot("read", path, &error)),
        };
        let last = cap.is_err();
        if out.blocking_send(cap).is_err() || last {
            return false;
        }
    }
    true
}

/// Parses a cap alone, a cap followed by a name, or a JSON line of `put --caps`.
fn parse(line: &str, name: String) -> Result<Named, Unreadable> {
    let line = line.trim();
    let (text, name) = if line.starts_with('{') {
        match serde_json::from_str::<Line>(line) {
            Ok(Line { cap, path }) => (cap, path),
            // The parser's error quotes its input, which may contain the cap.
            Err(_) => return Err(Unreadable { name, reason: "not a line of `put --caps`".into() }),
        }
    } else {
        match line.split_once(char::is_whitespace) {
            Some((cap, own)) if !own.trim().is_empty() => (cap.to_owned(), own.trim().to_owned()),
            _ => (line.to_owned(), name),
        }
    };
    let (cap, path) = text.split_once('/').unwrap_or((&text, ""));
    match Cap::parse(cap) {
        Ok(cap) => Ok(Named {
            name: if path.is_empty() { name } else { format!("{name}/{path}") },
            cap,
            path: path.to_owned(),
            is_argument: false,
        }),
        Err(error) => Err(Unreadable { name, reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The caps read from a text.
    fn given(text: &str) -> Vec<Result<Result<Named, Unreadable>, CommandError>> {
        let (out, mut caps) = mpsc::channel(AHEAD);
        lines(text.as_bytes(), Path::new("list"), &out);
        drop(out);
        std::iter::from_fn(|| caps.blocking_recv()).collect()
    }

    #[test]
    fn lists_of_several_kinds_are_read() {
        let text = "URI:LIT:mfrgg\n\n{\"cap\":\"URI:LIT:\",\"path\":\"a\\nb\",\"size\":0}\r\nURI:LIT: a name\nURI:LIT:x/y\n\
                    URI:SECRET:secret\n{\"cap\":5}\nURI:DIR2-LIT:/sub/file\n";
        let read = given(text);
        let name = |number: usize| match read[number].as_ref().unwrap() {
            Ok(named) => named.name.clone(),
            Err(bad) => {
                assert!(!bad.reason.contains("secret"), "{bad:?}");
                format!("no cap: {}", bad.name)
            }
        };
        let names: Vec<String> = (0..read.len()).map(name).collect();
        let expected = [
            "line 1 of list",
            "a\nb",
            "a name",
            "no cap: line 5 of list",
            "no cap: line 6 of list",
            "no cap: line 7 of list",
            "line 8 of list/sub/file",
        ];
        assert_eq!(names, expected);
        let Ok(Ok(Named { path, cap, .. })) = &read[6] else { panic!("{:?}", read[6]) };
        assert_eq!((path.as_str(), cap), ("sub/file", &Cap::LiteralDirectory(Vec::new())));
    }

    #[test]
    fn a_line_that_is_too_long_is_the_last() {
        let long = format!("URI:LIT:{}\nURI:LIT:\n", "mfrgg".repeat(LINE_BYTES_MAX as usize / 5));
        let read = given(&long);
        assert!(read.len() == 1 && read[0].is_err());
    }
}
