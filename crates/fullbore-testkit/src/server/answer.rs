//! From a request to what is to be sent: the file, the range, and the fault.
//!
//! Nothing here writes to a socket; HTTP/1.1 and HTTP/2 send the same [`Answer`].

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::behaviour::{Behaviour, Fault};
use crate::random::Random;

/// A request as both protocols deliver it.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub method: String,
    /// Decoded.
    pub path: String,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub http10: bool,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// `Content-Length` with this value, true or not.
    Length(u64),
    Chunked,
    UntilClose,
    /// No body by definition: 304.
    None,
}

/// Where a body comes from.
#[derive(Debug)]
pub(super) enum Source {
    Bytes(Arc<[u8]>),
    File(File, u64),
    Endless,
}

/// What happens in the middle of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    Reset,
    Close,
    Stall,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub framing: Framing,
    pub source: Source,
    /// Bytes of the source to send.
    pub length: u64,
    /// Offsets whose bytes are flipped, ascending.
    pub flips: Vec<u64>,
    /// After so many bytes of the body.
    pub broken: Option<(u64, Break)>,
    pub rate_bytes_per_s: Option<u64>,
    pub delay: Duration,
    pub hang: bool,
    pub close: bool,
    pub http10: bool,
    pub fault: &'static str,
}

const PORTAL: &[u8] =
    b"<html><head><title>Welcome</title></head><body>Please log in to use this network.</body></html>\n";

/// Bytes flipped in a corrupted body.
const FLIPS: u64 = 3;

/// What is sent for a request. `random` decides places in the body.
pub(super) fn answer(behaviour: &Behaviour, request: &Request, fault: Option<&Fault>, mut random: Random) -> Answer {
    let mut answer = whole(behaviour, request, fault, &mut random);
    if let Some(fault) = fault {
        answer.fault = fault.name();
    }
    let n = answer.length;
    match fault {
        Some(Fault::Reset) => answer.broken = Some((random.below(n.max(1)), Break::Reset)),
        Some(Fault::Truncate) => answer.broken = Some((random.below(n.max(1)), Break::Close)),
        Some(Fault::Stall) => answer.broken = Some((n / 2, Break::Stall)),
        Some(Fault::Corrupt) => answer.flips = flips(n, &mut random),
        Some(Fault::CorruptRanges) if answer.status == 206 => answer.flips = flips(n, &mut random),
        Some(Fault::ShortLength) => answer.framing = Framing::Length(n.saturating_sub(1 + random.below(100))),
        Some(Fault::LongLength) => answer.framing = Framing::Length(n + 1 + random.below(100)),
        Some(Fault::Drip(rate)) => answer.rate_bytes_per_s = Some(*rate),
        Some(Fault::Delay(delay)) => answer.delay = *delay,
        Some(Fault::Hang) => answer.hang = true,
        Some(Fault::Close) => answer.close = true,
        Some(Fault::Chunked) if answer.framing != Framing::None => answer.framing = Framing::Chunked,
        Some(Fault::UntilClose) if answer.framing != Framing::None => answer.framing = Framing::UntilClose,
        Some(Fault::Http10) => answer.http10 = true,
        Some(Fault::GzipEncoding) => answer.headers.push(("Content-Encoding".into(), "x-gzip".into())),
        Some(Fault::BigHeader(bytes)) => answer.headers.push(("X-Big".into(), "x".repeat(*bytes))),
        _ => {}
    }
    // Faults of the body mean nothing to a head alone, and a head has no body to wait for.
    if request.method == "HEAD" {
        answer.broken = None;
        answer.length = 0;
        // RFC 9112, 6.3: what would end a body is not sent either.
        if matches!(answer.framing, Framing::Chunked | Framing::UntilClose) {
            answer.framing = Framing::None;
        }
    }
    answer
}

fn flips(length: u64, random: &mut Random) -> Vec<u64> {
    let mut places: Vec<u64> = (0..FLIPS.min(length)).map(|_| random.below(length)).collect();
    places.sort_unstable();
    places.dedup();
    places
}

fn short(status: u16, headers: Vec<(String, String)>, body: &[u8]) -> Answer {
    let length = body.len() as u64;
    Answer {
        status,
        headers,
        framing: if status == 304 { Framing::None } else { Framing::Length(length) },
        source: Source::Bytes(body.into()),
        length,
        flips: Vec::new(),
        broken: None,
        rate_bytes_per_s: None,
        delay: Duration::ZERO,
        hang: false,
        close: false,
        http10: false,
        fault: "-",
    }
}

fn header(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_string(), value.into())
}

/// The answer as far as a fault replaces the file, or the file.
fn whole(behaviour: &Behaviour, request: &Request, fault: Option<&Fault>, random: &mut Random) -> Answer {
    if behaviour.authorization.is_some() && request.header("authorization") != behaviour.authorization.as_deref() {
        return short(401, vec![header("WWW-Authenticate", "Basic realm=\"test\"")], b"no\n");
    }
    if request.method != "GET" && request.method != "HEAD" {
        return short(405, vec![header("Allow", "GET, HEAD")], b"no\n");
    }
    let html = header("Content-Type", "text/html");
    let mut root = &behaviour.root;
    match fault {
        Some(Fault::Status(status)) => return short(*status, vec![html], b"fault\n"),
        Some(Fault::RetryAfter { status, seconds }) => {
            return short(*status, vec![header("Retry-After", seconds.to_string())], b"later\n");
        }
        Some(Fault::Portal) => return short(200, vec![html], PORTAL),
        Some(Fault::Redirect(base)) => {
            let to = format!("{}{}", base.trim_end_matches('/'), encode(&request.path));
            return short(302, vec![header("Location", to)], b"moved\n");
        }
        Some(Fault::RedirectSigned(base)) => {
            let to = format!("{}{}?X-Signature=abc%2F1", base.trim_end_matches('/'), encode(&request.path));
            return short(302, vec![header("Location", to)], b"moved\n");
        }
        Some(Fault::RedirectLoop) => {
            return short(302, vec![header("Location", encode(&request.path))], b"moved\n");
        }
        Some(Fault::RedirectInjection) => {
            let forged = "%0A%0A201%20URI%20Done%0ASHA256-Hash:%20".to_string() + &"0".repeat(64);
            return short(302, vec![header("Location", encode(&request.path) + &forged)], b"moved\n");
        }
        Some(Fault::NotModified) => return short(304, Vec::new(), b""),
        Some(Fault::Body(body)) => return short(200, Vec::new(), body),
        Some(Fault::Endless) => {
            let mut endless = short(200, Vec::new(), b"");
            endless.source = Source::Endless;
            endless.length = u64::MAX;
            endless.framing = Framing::UntilClose;
            return endless;
        }
        Some(Fault::From(other)) => root = other,
        _ => {}
    }
    match open(root, &request.path) {
        Some((file, size, modified)) => from_file(behaviour, request, fault, random, file, size, modified),
        None => short(404, vec![html], b"not found\n"),
    }
}

fn open(root: &Path, path: &str) -> Option<(File, u64, SystemTime)> {
    let relative = PathBuf::from(path.trim_start_matches('/'));
    // As servers do: `./` and repeated slashes go away, `..` does not.
    if !relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return None;
    }
    let file = File::open(root.join(relative)).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file()).then_some(())?;
    Some((file, metadata.len(), metadata.modified().ok()?))
}

fn from_file(
    behaviour: &Behaviour,
    request: &Request,
    fault: Option<&Fault>,
    random: &mut Random,
    file: File,
    size: u64,
    modified: SystemTime,
) -> Answer {
    let seconds = modified.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // As nginx makes it: the same on all mirrors that keep times.
    let tag = format!("\"{seconds:x}-{size:x}\"");
    let date = httpdate::fmt_http_date(modified);
    let mut headers = Vec::new();
    if behaviour.validators {
        headers.push(header("Last-Modified", date.clone()));
        if behaviour.tags {
            headers.push(header("ETag", tag.clone()));
        }
        let same = match request.header("if-none-match").filter(|_| behaviour.tags) {
            Some(tags) => tags == "*" || tags.split(',').any(|other| other.trim() == tag),
            None => request
                .header("if-modified-since")
                .and_then(|text| httpdate::parse_http_date(text).ok())
                .is_some_and(|since| since + Duration::from_secs(1) > modified),
        };
        if same {
            return short(304, headers, b"");
        }
    }
    let asked = request.header("range").filter(|_| behaviour.ranges && fault != Some(&Fault::IgnoreRange));
    let unchanged =
        request.header("if-range").is_none_or(|value| behaviour.validators && (value == tag || value == date));
    if behaviour.ranges {
        headers.push(header("Accept-Ranges", "bytes"));
    }
    headers.push(header("Content-Type", "application/octet-stream"));
    let (mut status, mut from, mut length) = (200, 0, size);
    match asked.filter(|_| unchanged).and_then(|text| parse_range(text, size)) {
        Some(Ok((first, last))) => {
            (status, from, length) = (206, first, last - first + 1);
            let mut told = first;
            match fault {
                Some(Fault::WrongRange) => {
                    from = elsewhere(first, length, size, random);
                    told = from;
                }
                Some(Fault::LyingRange) => from = elsewhere(first, length, size, random),
                _ => {}
            }
            headers.push(header("Content-Range", format!("bytes {told}-{}/{size}", told + length - 1)));
        }
        Some(Err(())) => {
            return short(416, vec![header("Content-Range", format!("bytes */{size}"))], b"");
        }
        None => {}
    }
    let mut answer = short(status, headers, b"");
    answer.framing = Framing::Length(length);
    answer.source = Source::File(file, from);
    answer.length = length;
    answer
}

/// A start other than `first` from which `length` bytes exist, where there is one.
fn elsewhere(first: u64, length: u64, size: u64, random: &mut Random) -> u64 {
    let starts = size - length + 1;
    if starts < 2 { first } else { (first + 1 + random.below(starts - 1)) % starts }
}

/// A single range (RFC 9110, section 14.1.2) as first and last byte; `None`: to be ignored;
/// `Err`: cannot be satisfied.
fn parse_range(text: &str, size: u64) -> Option<Result<(u64, u64), ()>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    if last.contains(',') {
        return None;
    }
    if first.is_empty() {
        let count: u64 = last.parse().ok()?;
        return Some(if count == 0 || size == 0 { Err(()) } else { Ok((size.saturating_sub(count), size - 1)) });
    }
    let first: u64 = first.parse().ok()?;
    let last = if last.is_empty() { u64::MAX } else { last.parse().ok()? };
    if last < first {
        return None;
    }
    Some(if first >= size { Err(()) } else { Ok((first, last.min(size - 1))) })
}

impl Answer {
    /// The next bytes of the body, at most `limit`, from `position` on.
    pub fn read(&self, position: u64, limit: u64) -> std::io::Result<Vec<u8>> {
        let n = (self.length - position).min(limit) as usize;
        let mut bytes = match &self.source {
            Source::Bytes(all) => all[position as usize..position as usize + n].to_vec(),
            Source::Endless => vec![b'x'; n],
            Source::File(file, from) => {
                let mut bytes = vec![0; n];
                file.read_exact_at(&mut bytes, from + position)?;
                bytes
            }
        };
        for place in &self.flips {
            if (position..position + n as u64).contains(place) {
                bytes[(place - position) as usize] ^= 0x5a;
            }
        }
        Ok(bytes)
    }
}

/// Percent-encodes a path as Debian's mirrors and browsers do.
pub(super) fn encode(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' | b'+' | b':' => {
                text.push(byte as char)
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Decodes the path of a request target: origin form or absolute form (RFC 9112, section 3.2).
pub(super) fn decode(target: &str) -> String {
    let path = match target.split_once("://") {
        Some((_, rest)) if !target.starts_with('/') => rest.find('/').map_or("/", |start| &rest[start..]),
        _ => target,
    };
    let path = path.split(['?', '#']).next().unwrap_or("/").as_bytes();
    let mut bytes = Vec::with_capacity(path.len());
    let mut at = 0;
    while at < path.len() {
        let hex = path.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) if path[at] == b'%' => {
                bytes.push(byte);
                at += 3;
            }
            _ => {
                bytes.push(path[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_has_them() {
        assert_eq!(parse_range("bytes=0-0", 10), Some(Ok((0, 0))));
        assert_eq!(parse_range("bytes=5-", 10), Some(Ok((5, 9))));
        assert_eq!(parse_range("bytes=-3", 10), Some(Ok((7, 9))));
        assert_eq!(parse_range("bytes=2-99", 10), Some(Ok((2, 9))));
        assert_eq!(parse_range("bytes=10-", 10), Some(Err(())));
        assert_eq!(parse_range("bytes=3-2", 10), None);
        assert_eq!(parse_range("lines=1-2", 10), None);
    }

    #[test]
    fn targets_are_decoded_and_paths_encoded() {
        assert_eq!(decode("/pool/a%2b%2B_1%3a2~b.deb?x"), "/pool/a++_1:2~b.deb");
        assert_eq!(decode("http://host:80/a/b"), "/a/b");
        assert_eq!(decode("/a%zz%"), "/a%zz%");
        assert_eq!(encode("/a b+~:%"), "/a%20b+~:%25");
    }
}
