//! Fetches a file of unknown size or hash as a whole from one host, or from the next if that fails.

use std::io;
use std::path::Path;
use std::time::Duration;

use fullbore_engine::digest::Sha256Hasher;
use fullbore_engine::files::{PartFile, Root};
use fullbore_wire::fetch::{Get, Piece, Streamed, Watch};
use fullbore_wire::hosts::HostId;
use fullbore_wire::redirect::is_redirect;
use sha2::{Digest as _, Sha512};

use super::answers::{Finished, HostError, WRONG_HASH};

/// Requests per host for a file that does not begin, as in APT's own method: the server may just have closed the
/// connection.
const TRIES_PER_HOST: usize = 2;

/// An error page is read to its end up to this size and time; beyond, a new connection is cheaper. Guesses.
const ERROR_PAGE_BYTES: usize = 64 << 10;
const ERROR_PAGE_TIME: Duration = Duration::from_secs(1);

/// Requirements on the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requirements {
    /// Largest size in bytes.
    pub limit_bytes: u64,
    /// Exact size in bytes, if known.
    pub size: Option<u64>,
    /// Its SHA-256, if known.
    pub sha256: Option<fullbore_engine::digest::Sha256>,
    /// Its SHA-512, if known.
    pub sha512: Option<[u8; 64]>,
}

/// The result.
#[derive(Debug)]
pub(super) enum Plain {
    /// The file is complete.
    Done(Finished),
    /// Not modified since the given time.
    Unchanged,
    /// No host sent it right.
    Failed(Vec<(HostId, HostError)>),
    /// It cannot be written.
    Local(String),
}

/// Fetches into `path`; `on_start` gets the size, if it is known. `patience` is the timeout for the head and for each
/// piece.
pub(super) async fn fetch(
    watch: &Watch,
    hosts: &[HostId],
    get: &Get,
    path: &Path,
    must: Requirements,
    patience: Duration,
    on_start: &mut (dyn FnMut(Option<u64>) + Send),
) -> Plain {
    let mut host_errors = Vec::new();
    for host in hosts {
        let mut tries = 0;
        let host_error = loop {
            tries += 1;
            match from_host(watch, *host, get, path, must, patience, on_start).await {
                Ok(plain) => return plain,
                Err(Failed { host_error: HostError::Network(_), is_begun: false }) if tries < TRIES_PER_HOST => {}
                Err(failed) => break failed.host_error,
            }
        };
        host_errors.push((*host, host_error));
    }
    Plain::Failed(host_errors)
}

/// A host did not bring the file.
struct Failed {
    host_error: HostError,
    /// Whether the body had begun; APT then decides on a retry.
    is_begun: bool,
}

impl From<HostError> for Failed {
    fn from(host_error: HostError) -> Failed {
        Failed { host_error, is_begun: false }
    }
}

async fn from_host(
    watch: &Watch,
    host: HostId,
    get: &Get,
    path: &Path,
    must: Requirements,
    patience: Duration,
    on_start: &mut (dyn FnMut(Option<u64>) + Send),
) -> Result<Plain, Failed> {
    let get = Get { limit_bytes: must.limit_bytes, ..get.clone() };
    let mut streamed = watch.stream(host, get, patience).await.map_err(|error| HostError::of_get(&error))?;
    let head = streamed.head.clone();
    if head.status != 200 {
        skip(&mut streamed, patience).await;
    }
    match head.status {
        200 => {}
        304 => return Ok(Plain::Unchanged),
        status if is_redirect(status) => {
            return Err(head.location.map_or(HostError::Status(status), HostError::Redirected).into());
        }
        status => return Err(HostError::Status(status).into()),
    }
    let length = head.content_length;
    if let (Some(length), Some(size)) = (length, must.size)
        && length != size
    {
        return Err(HostError::WrongBytes(format!("file has {length} B there, {size} are expected")).into());
    }
    if length.is_some_and(|length| length > must.limit_bytes) {
        return Err(HostError::TooLarge(format!("file is larger than the allowed {} bytes", must.limit_bytes)).into());
    }
    let sink = match Sink::open(path, length.unwrap_or(0)) {
        Ok(sink) => sink,
        Err(error) => return Ok(Plain::Local(error)),
    };
    on_start(length);
    receive(streamed, sink, must, patience).await.map_err(|host_error| Failed { host_error, is_begun: true })
}

/// Reads an error page to its end, as APT's own method does. Aborting it would close the connection, and the next request
/// on it would be sent twice.
async fn skip(streamed: &mut Streamed, patience: Duration) {
    let mut left = ERROR_PAGE_BYTES;
    let until = tokio::time::Instant::now() + patience.min(ERROR_PAGE_TIME);
    while let Ok(Some(Ok(Piece::Data(data)))) = tokio::time::timeout_at(until, streamed.body.recv()).await {
        left = left.saturating_sub(data.len());
        if left == 0 {
            return;
        }
    }
}

async fn receive(
    mut streamed: Streamed,
    sink: Sink,
    must: Requirements,
    patience: Duration,
) -> Result<Plain, HostError> {
    let (mut sha256, mut sha512) = (Sha256Hasher::new(), must.sha512.map(|expected| (Sha512::new(), expected)));
    let mut size = 0;
    loop {
        match tokio::time::timeout(patience, streamed.body.recv()).await {
            Err(_) => return Err(HostError::Network(format!("nothing for {} s", patience.as_secs_f64()))),
            Ok(None) => return Err(HostError::Network("connection lost".into())),
            Ok(Some(Err(error))) => return Err(HostError::of_get(&error)),
            Ok(Some(Ok(Piece::End))) => break,
            Ok(Some(Ok(Piece::Data(data)))) => {
                if let Err(error) = sink.write_at(size, &data) {
                    return Ok(Plain::Local(error));
                }
                sha256.update(&data);
                if let Some((hasher, _)) = &mut sha512 {
                    hasher.update(&data);
                }
                size += data.len() as u64;
            }
        }
    }
    let sha256 = sha256.finish();
    let is_wrong = must.size.is_some_and(|expected| expected != size)
        || must.sha256.is_some_and(|expected| expected != sha256)
        || sha512.is_some_and(|(hasher, expected)| hasher.finalize()[..] != expected[..]);
    if is_wrong {
        return Err(HostError::WrongBytes(WRONG_HASH.into()));
    }
    let modified = streamed.head.last_modified;
    match sink.finish(modified) {
        Ok(()) => Ok(Plain::Done(Finished { size, modified, sha256, resumed: 0 })),
        Err(error) => Ok(Plain::Local(error)),
    }
}

/// Writes a file from memory.
///
/// # Errors
/// The error of the disk, as text.
pub(super) fn write(path: &Path, content: &[u8], modified: Option<i64>) -> Result<(), String> {
    let sink = Sink::open(path, content.len() as u64)?;
    sink.write_at(0, content)?;
    sink.finish(modified)
}

/// The destination of a file.
enum Sink {
    /// A regular file, written in place.
    File(PartFile),
    /// A device, such as `/dev/null`.
    Special(std::fs::File),
}

impl Sink {
    fn open(path: &Path, size: u64) -> Result<Sink, String> {
        if is_special(path) {
            let opened = std::fs::OpenOptions::new().write(true).open(path);
            return opened.map(Sink::Special).map_err(|error| format!("cannot open {}: {error}", path.display()));
        }
        let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Err(format!("{} cannot be written", path.display()));
        };
        let created = Root::open(directory).and_then(|root| root.create_in_place(name, size));
        created.map(Sink::File).map_err(|error| format!("{}: {error}", directory.display()))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), String> {
        match self {
            Sink::File(file) => file.write_at(offset, data).map_err(|error| error.to_string()),
            // Through the reference: writing to a file needs no exclusive one.
            Sink::Special(file) => io::Write::write_all(&mut &*file, data).map_err(|error| error.to_string()),
        }
    }

    fn finish(&self, modified: Option<i64>) -> Result<(), String> {
        match (self, modified) {
            (Sink::File(file), Some(unix_s)) => file.set_mtime(unix_s).map_err(|error| error.to_string()),
            _ => Ok(()),
        }
    }
}

/// Whether this is a device or another special file.
pub(super) fn is_special(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|data| !data.is_file() && !data.is_symlink())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_written_to_and_stays() {
        let null = Path::new("/dev/null");
        write(null, b"text", Some(1)).unwrap();
        assert!(is_special(null));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("InRelease");
        std::fs::write(&path, "an older and longer one").unwrap();
        write(&path, b"new", Some(1_700_000_000)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert!(!is_special(&path));
        assert!(write(&directory.path().join("none/x"), b"", None).unwrap_err().contains("none"));
    }
}
