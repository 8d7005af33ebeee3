//! The end of the protocol outside: reads and writes files of the user at the request of a hook.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::super::PLAIN_TAR;
use super::{Peer, Word, with_path, wrong};

/// Serves requests until the other end says goodbye or is gone.
///
/// # Errors
/// The system's error if a file cannot be read or written, or [`io::ErrorKind::InvalidData`] if the other end fails or
/// sends a malformed message.
pub fn run<R: Read, W: Write>(peer: &mut Peer<R, W>) -> io::Result<()> {
    loop {
        match served(peer) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                peer.fail();
                return Err(error);
            }
        }
    }
}

/// Serves one request; returns whether another may follow.
fn served<R: Read, W: Write>(peer: &mut Peer<R, W>) -> io::Result<bool> {
    let Some((word, content)) = peer.receive()? else { return Ok(false) };
    let path = String::from_utf8(content).map_err(|_| wrong("a path is not UTF-8"))?;
    match word {
        Word::Goodbye => return Ok(false),
        Word::OpenRead => {
            let mut file = File::open(&path).map_err(with_path(&path))?;
            peer.send(Word::Thanks, &[])?;
            peer.send_content(&mut file)?;
        }
        Word::OpenWrite => {
            fs::create_dir_all(parent(Path::new(&path))).map_err(with_path(&path))?;
            let mut file = File::create(&path).map_err(with_path(&path))?;
            peer.send(Word::Thanks, &[])?;
            peer.receive_content(&mut file)?;
        }
        Word::MakeTar | Word::MakeTarOfContent => make_tar(word, &path, peer)?,
        Word::Untar => untar(&path, peer)?,
        Word::Error => return Err(wrong("the hook failed")),
        Word::Write | Word::Close | Word::Thanks => return Err(wrong(&format!("{word:?} instead of a request"))),
    }
    Ok(true)
}

fn make_tar<R: Read, W: Write>(word: Word, path: &str, peer: &mut Peer<R, W>) -> io::Result<()> {
    let from = Path::new(path);
    from.metadata().map_err(with_path(path))?;
    let mut tar = Command::new("tar");
    tar.args(PLAIN_TAR).arg("--directory");
    match from.file_name() {
        Some(name) if word == Word::MakeTar => {
            tar.arg(parent(from)).args(["--create", "--file", "-", "--"]).arg(name);
        }
        _ => {
            tar.arg(from).args(["--create", "--file", "-", "."]);
        }
    }
    peer.send(Word::Thanks, &[])?;
    let mut tar = tar.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut from_tar = tar.stdout.take().ok_or_else(|| wrong("no pipe"))?;
    let sent = peer.send_content(&mut from_tar);
    drop(from_tar);
    let status = tar.wait()?;
    sent?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("tar: {path}: {status}"))) }
}

fn untar<R: Read, W: Write>(path: &str, peer: &mut Peer<R, W>) -> io::Result<()> {
    fs::create_dir_all(path).map_err(with_path(path))?;
    peer.send(Word::Thanks, &[])?;
    let mut tar = Command::new("tar");
    tar.args(["--numeric-owner", "--xattrs", "--xattrs-include=*", "--directory", path, "--extract", "--file", "-"]);
    let mut tar = tar.stdin(Stdio::piped()).spawn()?;
    let mut to_tar = tar.stdin.take().ok_or_else(|| wrong("no pipe"))?;
    let received = peer.receive_content(&mut to_tar);
    drop(to_tar);
    let status = tar.wait()?;
    received?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("tar: {path}: {status}"))) }
}

/// The directory of a path; for a plain name the working directory.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
