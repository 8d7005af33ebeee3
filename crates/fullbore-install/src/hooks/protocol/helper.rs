//! The end of the protocol in a hook: moves files between the root and the other end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::super::PLAIN_TAR;
use super::super::tar_filter::without_devices;
use super::{Peer, Word, with_path, wrong};
use crate::root::within;

/// A command of a hook that moves files, with its arguments.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Path of the root, outside of it.
    pub root: &'a str,
    /// Steps that the bootstrap leaves out, comma-separated.
    pub skips: &'a str,
    /// Name of the command, such as `upload`.
    pub command: &'a str,
    /// Arguments of the command; the last one is the destination.
    pub arguments: &'a [&'a str],
}

/// Runs a command with the help of the other end.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for an unknown command, a missing argument or a failure at the other end, or the
/// system's error if a file cannot be read or written.
pub fn run<R: Read, W: Write>(call: &Call<'_>, peer: &mut Peer<R, W>) -> io::Result<()> {
    let done = moved(call, peer);
    if done.is_err() {
        peer.fail();
    }
    done
}

fn moved<R: Read, W: Write>(call: &Call<'_>, peer: &mut Peer<R, W>) -> io::Result<()> {
    let Some((last, files)) = call.arguments.split_last().filter(|(_, files)| !files.is_empty()) else {
        return Err(wrong(&format!("{}: needs a source and a destination", call.command)));
    };
    let in_root = |path: &str| within(Path::new(call.root), Path::new(path));
    for file in files {
        match call.command {
            "upload" => upload(file, &in_root(last)?, peer)?,
            "copy-in" => unpack(Word::MakeTar, file, &in_root(last)?, call, peer)?,
            "sync-in" => unpack(Word::MakeTarOfContent, file, &in_root(last)?, call, peer)?,
            "tar-in" => unpack(Word::OpenRead, file, &in_root(last)?, call, peer)?,
            "download" => {
                let from = in_root(file)?;
                let mut from = regular(&from)?;
                request(Word::OpenWrite, last, peer)?;
                peer.send_content(&mut from)?;
            }
            "tar-out" => pack(Word::OpenWrite, Packed::Itself(itself(call.root, file)?), last, peer)?,
            "copy-out" => pack(Word::Untar, Packed::Itself(itself(call.root, file)?), last, peer)?,
            "sync-out" => pack(Word::Untar, Packed::Content(in_root(file)?), last, peer)?,
            other => return Err(wrong(&format!("{other}: unknown command"))),
        }
    }
    Ok(())
}

fn request<R: Read, W: Write>(word: Word, path: &str, peer: &mut Peer<R, W>) -> io::Result<()> {
    peer.send(word, path.as_bytes())?;
    peer.receive_thanks().map_err(with_path(path))
}

fn upload<R: Read, W: Write>(file: &str, to: &Path, peer: &mut Peer<R, W>) -> io::Result<()> {
    is_directory(to.parent().unwrap_or(Path::new("/")))?;
    request(Word::OpenRead, file, peer)?;
    let mut to_file = File::create(to).map_err(with_path(&to.to_string_lossy()))?;
    peer.receive_content(&mut to_file)
}

/// Unpacks an archive that the other end reads or makes.
fn unpack<R: Read, W: Write>(
    word: Word,
    file: &str,
    directory: &Path,
    call: &Call<'_>,
    peer: &mut Peer<R, W>,
) -> io::Result<()> {
    is_directory(directory)?;
    let mut tar = Command::new("tar");
    tar.args(["--numeric-owner", "--xattrs", "--xattrs-include=*", "--directory"]).arg(directory);
    let mut tar = tar.args(["--extract", "--file", "-"]).stdin(Stdio::piped()).spawn()?;
    let to_tar = tar.stdin.take().ok_or_else(|| wrong("no pipe"))?;
    let skip = format!("{}/mknod", call.command);
    let filters = call.skips.split([',', ' ']).any(|step| step == skip);
    let received = received(word, file, to_tar, filters, peer);
    ended(&mut tar, received)
}

fn received<R: Read, W: Write>(
    word: Word,
    file: &str,
    mut to_tar: ChildStdin,
    filters: bool,
    peer: &mut Peer<R, W>,
) -> io::Result<()> {
    request(word, file, peer)?;
    if !filters {
        return peer.receive_content(&mut to_tar);
    }
    let (from_peer, mut to_filter) = io::pipe()?;
    std::thread::scope(|scope| {
        let filtering = scope.spawn(move || without_devices(from_peer, to_tar));
        let received = peer.receive_content(&mut to_filter);
        drop(to_filter);
        let filtered = filtering.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // If the filter fails, tar ends because of it: the error of the filter is the cause.
        filtered.and(received)
    })
}

/// Content of an archive.
enum Packed {
    /// A file, or a directory with its name.
    Itself(PathBuf),
    /// The content of a directory.
    Content(PathBuf),
}

/// Sends an archive.
fn pack<R: Read, W: Write>(word: Word, from: Packed, to: &str, peer: &mut Peer<R, W>) -> io::Result<()> {
    let (Packed::Itself(path) | Packed::Content(path)) = &from;
    path.symlink_metadata().map_err(with_path(&path.to_string_lossy()))?;
    let mut tar = Command::new("tar");
    tar.args(PLAIN_TAR).arg("--directory");
    match (&from, path.parent(), path.file_name()) {
        (Packed::Content(_), ..) => tar.arg(path).args(["--create", "--file", "-", "."]),
        (Packed::Itself(_), Some(directory), Some(name)) => {
            tar.arg(directory).args(["--create", "--file", "-", "--"]).arg(name)
        }
        (Packed::Itself(_), ..) => return Err(wrong("needs a path inside the root")),
    };
    let mut tar = tar.stdout(Stdio::piped()).spawn()?;
    let mut from_tar = tar.stdout.take().ok_or_else(|| wrong("no pipe"))?;
    let sent = request(word, to, peer).and_then(|()| peer.send_content(&mut from_tar));
    // With the pipe open, tar would wait for ever once nobody reads.
    drop(from_tar);
    ended(&mut tar, sent)
}

/// Waits for tar. An error of the transfer counts before that of tar, which follows from it.
fn ended(tar: &mut Child, transfer: io::Result<()>) -> io::Result<()> {
    let status = tar.wait()?;
    transfer?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("tar: {status}"))) }
}

/// The path of a name in the root; a link is taken as a link.
fn itself(root: &str, path: &str) -> io::Result<PathBuf> {
    let (root, path) = (Path::new(root), Path::new(path));
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(within(root, parent)?.join(name)),
        _ => within(root, path),
    }
}

fn is_directory(path: &Path) -> io::Result<()> {
    let shown = path.to_string_lossy().into_owned();
    if path.metadata().map_err(with_path(&shown))?.is_dir() {
        return Ok(());
    }
    Err(with_path(&shown)(io::ErrorKind::NotADirectory.into()))
}

fn regular(path: &Path) -> io::Result<File> {
    let shown = path.to_string_lossy().into_owned();
    let file = File::open(path).map_err(with_path(&shown))?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(wrong(&format!("{shown}: is not a file"))) }
}
