//! Fetches a file of unknown size or hash as a whole from one host, or from the next if that fails.
//!
//! Without a hash only APT can judge the file; with one APT judges it all the same. So the answer has the hashes of the
//! received bytes, whatever they are. A partial file of an earlier run is continued if the server still has the same
//! file, by its time (`If-Range`), as APT's own method does.

use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use fullbore_engine::files::{PartFile, Root};
use fullbore_wire::conditional::http_date;
use fullbore_wire::fetch::{Get, Piece, Streamed, Watch};
use fullbore_wire::hosts::HostId;
use fullbore_wire::http1::{AcceptRanges, ResponseHead};
use fullbore_wire::range::ContentRange;
use fullbore_wire::redirect::is_redirect;

use super::answers::{Finished, HostError};
use super::words;
use crate::acquire::{ExpectedHashes, Hasher};

/// Requests per host for a file that does not start, as in APT's own method: the server may just have closed the
/// connection.
const TRIES_PER_HOST: usize = 2;

/// Largest size and longest time of an error page that is read to its end; beyond them a new connection is cheaper.
/// Guesses.
const ERROR_PAGE_BYTES: usize = 64 << 10;
const ERROR_PAGE_TIME: Duration = Duration::from_secs(1);

/// Bytes per read of an existing file: as much as a network read brings.
const READ_BYTES: usize = 256 << 10;

/// Before this version Varnish answers ranges of a file that has changed (Debian bug 870604).
const VARNISH_WITH_RANGES: (u32, u32) = (6, 4);

/// Requirements on the file.
#[derive(Debug, Clone)]
pub(super) struct Requirements {
    /// Largest size that is accepted, in bytes.
    pub limit_bytes: u64,
    /// Exact size in bytes, if known.
    pub size: Option<u64>,
    /// The known hashes of the file.
    pub expected: ExpectedHashes,
    /// Whether an existing file may be its beginning.
    pub is_resumable: bool,
}

/// The source and the destination of a file.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub watch: &'a Watch,
    /// The request, without range conditions.
    pub get: &'a Get,
    /// The absolute path to write to.
    pub path: &'a Path,
    /// The timeout for the head and for each piece.
    pub patience: Duration,
    /// Whether the host of a single site is believed to support ranges.
    pub ranges: &'a AtomicBool,
}

/// The result of fetching a file.
#[derive(Debug)]
pub(super) enum Plain {
    /// The file is complete, as far as its length is known.
    Done(Finished),
    /// Not modified since the given time.
    Unchanged,
    /// No host sent the right file; the error of each.
    Failed(Vec<(HostId, HostError)>),
    /// The file cannot be written, with the reason.
    Local(String),
}

/// Called when a file starts, with its size, if known, and the offset of its first new byte.
pub(super) type OnStart<'a> = &'a mut (dyn FnMut(Option<u64>, u64) + Send);

/// Fetches a file from the first of these hosts that has it.
pub(super) async fn fetch(way: Way<'_>, hosts: &[HostId], must: &Requirements, on_start: OnStart<'_>) -> Plain {
    let mut host_errors = Vec::new();
    let mut wrong = None;
    for host in hosts {
        let mut tries = 0;
        let host_error = loop {
            tries += 1;
            match from_host(way, *host, must, on_start).await {
                // Another host may have the right file. If none has, APT gets this one and reports its hashes.
                Ok(Plain::Done(finished)) if must.expected.contradict(&finished.hashes) => {
                    wrong = Some(finished);
                    break HostError::WrongBytes;
                }
                Ok(plain) => return plain,
                Err(Failed { host_error: HostError::Network(_), is_begun: false }) if tries < TRIES_PER_HOST => {}
                Err(failed) => {
                    wrong = if failed.is_begun { None } else { wrong };
                    break failed.host_error;
                }
            }
        };
        host_errors.push((*host, host_error));
    }
    match wrong {
        Some(finished) => Plain::Done(finished),
        None => Plain::Failed(host_errors),
    }
}

/// A host did not send the file.
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

/// The partial file of an earlier run.
struct Kept {
    size: u64,
    modified: i64,
}

impl Kept {
    fn of(path: &Path) -> Option<Kept> {
        let data = std::fs::symlink_metadata(path).ok().filter(|data| data.is_file() && data.len() > 0)?;
        let modified = i64::try_from(data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()?;
        Some(Kept { size: data.len(), modified })
    }

    /// The request for the rest, if the file has not changed. The time of APT's own copy does not matter then.
    fn rest(&self, get: &Get) -> Option<Get> {
        let mut get = Get { if_modified_since: None, ..get.clone() };
        get.fields.push(("Range".into(), format!("bytes={}-", self.size)));
        get.fields.push(("If-Range".into(), http_date(self.modified)?));
        Some(get)
    }

    /// Whether the existing file is complete, although the server sent nothing.
    fn is_whole(&self, hashed: &Finished, must: &Requirements, head: &ResponseHead) -> bool {
        if must.expected.is_usable() {
            return !must.expected.contradict(&hashed.hashes);
        }
        matches!(head.content_range, Some(ContentRange::Unsatisfied { complete }) if complete == self.size)
    }
}

async fn from_host(way: Way<'_>, host: HostId, must: &Requirements, on_start: OnStart<'_>) -> Result<Plain, Failed> {
    let whole = Get { limit_bytes: must.limit_bytes, ..way.get.clone() };
    let kept = Kept::of(way.path).filter(|_| must.is_resumable && way.ranges.load(Ordering::Relaxed));
    if let Some((kept, rest)) = kept.as_ref().and_then(|kept| Some((kept, kept.rest(&whole)?))) {
        let mut streamed = stream(way, host, rest).await?;
        note_ranges(&streamed.head, way.ranges);
        let head = streamed.head.clone();
        let is_range = matches!(head.status, 206 | 416);
        if !is_range {
            return answered(way, streamed, must, on_start).await;
        }
        if way.ranges.load(Ordering::Relaxed) {
            let goes_on = matches!(head.content_range, Some(ContentRange::Bytes { first, .. }) if first == kept.size);
            if head.status == 206 && goes_on {
                return resumed(way, streamed, kept, must, on_start).await;
            }
            if head.status == 416
                && let Ok(finished) = hash_kept(way.path, must, kept)
                && kept.is_whole(&finished, must, &head)
            {
                skip(&mut streamed, way.patience).await;
                on_start(Some(kept.size), kept.size);
                return Ok(Plain::Done(finished));
            }
        }
        // It is another file, or the server cannot tell: fetch all of it again.
        skip(&mut streamed, way.patience).await;
    }
    let streamed = stream(way, host, whole).await?;
    note_ranges(&streamed.head, way.ranges);
    answered(way, streamed, must, on_start).await
}

async fn stream(way: Way<'_>, host: HostId, get: Get) -> Result<Streamed, Failed> {
    way.watch.stream(host, get, way.patience).await.map_err(|error| HostError::of_head(&error).into())
}

/// Records what the answer says about ranges. Some servers say that they support none, and some should.
fn note_ranges(head: &ResponseHead, ranges: &AtomicBool) {
    let is_old = head.via.as_deref().and_then(varnish).is_some_and(|version| version < VARNISH_WITH_RANGES);
    if head.accept_ranges == Some(AcceptRanges::None) || is_old {
        ranges.store(false, Ordering::Relaxed);
    }
}

/// The version in `1.1 varnish (Varnish/6.1)`.
fn varnish(via: &str) -> Option<(u32, u32)> {
    let mut parts = via.split(' ').skip(1);
    let (name, version) = (parts.next()?, parts.next()?);
    let version = version.strip_prefix("(Varnish/").filter(|_| name == "varnish")?.strip_suffix(')')?;
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

/// The answer to a request for all of the file.
async fn answered(
    way: Way<'_>,
    mut streamed: Streamed,
    must: &Requirements,
    on_start: OnStart<'_>,
) -> Result<Plain, Failed> {
    let head = streamed.head.clone();
    if head.status != 200 {
        skip(&mut streamed, way.patience).await;
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
    let sink = match Sink::open(way.path, length.filter(|length| *length <= must.limit_bytes).unwrap_or(0)) {
        Ok(sink) => sink,
        Err(error) => return Ok(Plain::Local(error)),
    };
    on_start(length, 0);
    if let Some(length) = length
        && (must.size.is_some_and(|size| size != length) || length > must.limit_bytes)
    {
        let text = words::unexpected_size(length, must.size.unwrap_or(must.limit_bytes));
        return Err(Failed { host_error: HostError::WrongSize(text), is_begun: true });
    }
    let received = receive(streamed, sink, 0, must.expected.hasher(), must, way.patience).await;
    received.map_err(|host_error| Failed { host_error, is_begun: true })
}

/// The answer to a request for the rest of the file.
async fn resumed(
    way: Way<'_>,
    streamed: Streamed,
    kept: &Kept,
    must: &Requirements,
    on_start: OnStart<'_>,
) -> Result<Plain, Failed> {
    let begun = || -> Result<(Sink, Hasher), String> {
        let mut hasher = must.expected.hasher();
        read_kept(way.path, &mut hasher, kept.size).map_err(|error| error.to_string())?;
        Ok((Sink::resume(way.path)?, hasher))
    };
    let (sink, hasher) = match begun() {
        Ok(begun) => begun,
        Err(error) => return Ok(Plain::Local(error)),
    };
    let rest = streamed.head.content_length;
    on_start(rest.map(|rest| rest.saturating_add(kept.size)), kept.size);
    let received = receive(streamed, sink, kept.size, hasher, must, way.patience).await;
    received.map_err(|host_error| Failed { host_error, is_begun: true })
}

/// Hashes the existing file, which may be complete.
fn hash_kept(path: &Path, must: &Requirements, kept: &Kept) -> io::Result<Finished> {
    let mut hasher = must.expected.hasher();
    read_kept(path, &mut hasher, kept.size)?;
    Ok(Finished { modified: Some(kept.modified), hashes: hasher.finish(), resumed: kept.size })
}

fn read_kept(path: &Path, hasher: &mut Hasher, size: u64) -> io::Result<()> {
    let mut file = std::fs::File::open(path)?.take(size);
    let mut buffer = vec![0; READ_BYTES];
    let mut read_bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 if read_bytes == size => return Ok(()),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                hasher.update(&buffer[..count]);
                read_bytes += count as u64;
            }
        }
    }
}

/// Reads an error page to its end, as APT's own method does. Aborting it would close the connection, and the next
/// request on it would be sent twice.
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
    from: u64,
    mut hasher: Hasher,
    must: &Requirements,
    patience: Duration,
) -> Result<Plain, HostError> {
    let mut size = from;
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
                hasher.update(&data);
                size += data.len() as u64;
                if size > must.limit_bytes {
                    return Err(HostError::WrongSize(words::unexpected_size(size, must.limit_bytes)));
                }
            }
        }
    }
    let modified = streamed.head.last_modified;
    match sink.finish(modified) {
        Ok(()) => Ok(Plain::Done(Finished { modified, hashes: hasher.finish(), resumed: from })),
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

    /// Opens an existing regular file to continue it.
    fn resume(path: &Path) -> Result<Sink, String> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Err(format!("{} cannot be written", path.display()));
        };
        let opened = Root::open(directory).and_then(|root| root.resume_in_place(name));
        match opened.map_err(|error| format!("{}: {error}", directory.display()))? {
            Some(file) => Ok(Sink::File(file)),
            None => Err(format!("{} is not a file that fullbore made", path.display())),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), String> {
        match self {
            Sink::File(file) => file.write_at(offset, data).map_err(|error| error.to_string()),
            // Through a shared reference: writing to a file needs no exclusive one.
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
    fn the_version_of_varnish_is_read_from_via() {
        for (via, version) in [
            ("1.1 varnish (Varnish/6.1)", Some((6, 1))),
            ("1.1 varnish (Varnish/7)", Some((7, 0))),
            ("1.1 varnish (Varnish/6.4.1)", Some((6, 4))),
            ("1.1 varnish", None),
            ("1.1 nginx (Varnish/6.1)", None),
            ("1.1 varnish (Varnish/x)", None),
        ] {
            assert_eq!(varnish(via), version, "{via}");
        }
    }

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
