//! Pax headers: `LENGTH KEY=VALUE` records for the next entry, or for all following entries.

use super::{Entry, TarError, sparse};
use crate::release::parse_size as decimal;

/// Maximum number of attributes of one file. File systems have room for a few dozen.
const ATTRIBUTES_MAX: usize = 256;

/// Approximate memory of a record beside its content: two vectors and their allocations.
const RECORD_BYTES: usize = 64;

const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// The records of one or several headers, in order.
#[derive(Debug, Default)]
pub(super) struct Records {
    records: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Description of a sparse file in its records.
#[derive(Debug)]
pub(super) struct Sparse {
    /// Length of the whole file, in bytes.
    pub size: u64,
    pub name: Option<Vec<u8>>,
    /// `None` if the map precedes the content (format 1.0).
    pub segments: Option<Vec<(u64, u64)>>,
}

impl Records {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Approximate memory in use, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.records.iter().map(|(key, value)| (RECORD_BYTES + key.len() + value.len()) as u64).sum()
    }

    /// Number of records.
    pub(super) fn count(&self) -> usize {
        self.records.len()
    }

    /// Adds the records of a header.
    pub(super) fn read(&mut self, mut text: &[u8], offset: u64) -> Result<(), TarError> {
        let wrong = |what| TarError::Malformed { offset, what };
        while !text.is_empty() {
            // A header can be padded with NUL bytes.
            if text[0] == 0 && text.iter().all(|byte| *byte == 0) {
                break;
            }
            let space = memchr::memchr(b' ', text).ok_or_else(|| wrong("a pax record without length"))?;
            let length = decimal(&text[..space]).ok_or_else(|| wrong("a pax record without length"))?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length <= space + 1 || length > text.len() || text[length - 1] != b'\n' {
                return Err(wrong("a pax record whose length is not its own"));
            }
            let record = &text[space + 1..length - 1];
            let equals = memchr::memchr(b'=', record).ok_or_else(|| wrong("a pax record without `=`"))?;
            if equals == 0 {
                return Err(wrong("a pax record without a keyword"));
            }
            self.records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
            text = &text[length..];
        }
        Ok(())
    }

    /// Applies the records to the entry; `stored` is its size in the archive.
    pub(super) fn apply(&self, entry: &mut Entry, stored: &mut u64, offset: u64) -> Result<(), TarError> {
        let wrong = |what| TarError::Malformed { offset, what };
        let number = |value: &[u8], what| decimal(value).ok_or_else(|| wrong(what));
        let id =
            |value: &[u8], what| decimal(value).and_then(|value| u32::try_from(value).ok()).ok_or_else(|| wrong(what));
        for (key, value) in &self.records {
            // An empty value removes a global record, so the header's own field is used.
            if value.is_empty() && !key.starts_with(ATTRIBUTE) {
                continue;
            }
            match &key[..] {
                b"path" => entry.path.clone_from(value),
                b"linkpath" => entry.link.clone_from(value),
                b"size" => {
                    *stored = number(value, "a pax size that is not a number")?;
                    if i64::try_from(*stored).is_err() {
                        return Err(wrong("a pax size beyond any file"));
                    }
                }
                b"uid" => entry.uid = id(value, "a pax owner that is not a number")?,
                b"gid" => entry.gid = id(value, "a pax group that is not a number")?,
                b"uname" => entry.user.clone_from(value),
                b"gname" => entry.group.clone_from(value),
                b"mtime" => {
                    let time = time(value).ok_or_else(|| wrong("a pax time that is not a number"))?;
                    (entry.mtime_s, entry.mtime_ns) = time;
                }
                _ => {
                    let Some(name) = key.strip_prefix(ATTRIBUTE).filter(|name| !name.is_empty()) else {
                        continue;
                    };
                    entry.attributes.retain(|(known, _)| known != name);
                    if entry.attributes.len() == ATTRIBUTES_MAX {
                        return Err(wrong("more extended attributes than a file can have"));
                    }
                    entry.attributes.push((name.to_vec(), value.clone()));
                }
            }
        }
        Ok(())
    }

    /// Reads the GNU sparse formats 0.0, 0.1 and 1.0.
    pub(super) fn sparse(&self, offset: u64) -> Result<Option<Sparse>, TarError> {
        let wrong = |what| TarError::Malformed { offset, what };
        let (mut size, mut name, mut map, mut major) = (None, None, None, None);
        let mut single = Vec::new();
        for (key, value) in &self.records {
            let Some(key) = key.strip_prefix(b"GNU.sparse.") else { continue };
            let number = || decimal(value).ok_or_else(|| wrong("a sparse record that is not a number"));
            match key {
                b"size" | b"realsize" => size = Some(number()?),
                b"name" => name = Some(value.clone()),
                b"major" => major = Some(number()?),
                b"offset" => single.push((number()?, None)),
                b"numbytes" => match single.last_mut() {
                    Some((_, length @ None)) => *length = Some(number()?),
                    _ => return Err(wrong("a sparse segment without offset")),
                },
                b"map" => {
                    let numbers = value.split(|byte| *byte == b',').map(decimal).collect::<Option<Vec<_>>>();
                    let numbers = numbers.filter(|numbers| numbers.len() % 2 == 0);
                    let numbers = numbers.ok_or_else(|| wrong("a sparse map that is not a list of pairs"))?;
                    map = Some(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>());
                }
                _ => {}
            }
            if single.len() > sparse::SEGMENTS_MAX {
                return Err(wrong("a sparse map longer than any file needs"));
            }
        }
        if !single.is_empty() {
            let pairs = single.into_iter().map(|(start, length)| Some((start, length?))).collect::<Option<Vec<_>>>();
            map = Some(pairs.ok_or_else(|| wrong("a sparse segment without length"))?);
        }
        if major.is_none() && map.is_none() && size.is_none() {
            return Ok(None);
        }
        let size = size.ok_or_else(|| wrong("a sparse file without its size"))?;
        let segments = match major {
            Some(1) => None,
            Some(0) | None => Some(map.unwrap_or_default()),
            Some(_) => return Err(wrong("an unknown sparse format")),
        };
        Ok(Some(Sparse { size, name, segments }))
    }
}

/// Parses seconds since 1970 with a fraction; digits beyond nanoseconds are cut off, towards the past.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let dot = memchr::memchr(b'.', text).unwrap_or(text.len());
    let seconds = i64::try_from(decimal(&text[..dot])?).ok()?;
    let fraction = text.get(dot + 1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = digits.fold(0_u32, |value, digit| value * 10 + u32::from(digit - b'0'));
    let more = fraction.iter().skip(9).any(|digit| *digit != b'0');
    match (negative, nanoseconds) {
        (false, _) => Some((seconds, nanoseconds)),
        (true, 0) if !more => Some((-seconds, 0)),
        (true, _) => Some((-seconds - 1, 999_999_999 - nanoseconds + u32::from(!more))),
    }
    .map(|(seconds, ns)| if ns == 1_000_000_000 { (seconds + 1, 0) } else { (seconds, ns) })
}
