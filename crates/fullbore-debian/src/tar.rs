//! `tar` archives as a stream: ustar, GNU (long names, base-256 numbers, sparse files) and pax (POSIX.1-2001, with
//! `SCHILY.xattr` and the GNU sparse formats 0.0, 0.1 and 1.0).
//!
//! Content is returned as slices of the input's buffer, so it is not copied on its way to the file. Two readers of one
//! archive must never disagree on where an entry ends (CVE-2025-62518): only regular files may have content, a size has
//! one source, and ambiguous input is an error.

mod header;
mod pax;
mod sparse;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, BufRead};

use thiserror::Error;

pub use header::Format;

/// Size of a tar block, in bytes.
pub const BLOCK_BYTES: usize = 512;

/// Longest name or link target, in bytes. Linux accepts 4096 for a whole path; within 64 KiB, Linux itself refuses
/// longer ones.
const NAME_BYTES_MAX: u64 = 64 << 10;

/// Longest pax header, in bytes. Attributes of a file are below 64 KiB each; tar itself writes a few hundred bytes.
const PAX_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of global pax records of an archive; each is examined for every entry. git writes one.
const GLOBAL_RECORDS_MAX: usize = 256;

/// Why a tar archive could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TarError {
    /// An entry is malformed, or programs would read it in different ways.
    #[error("tar entry at byte {offset}: {what}")]
    Malformed {
        /// Offset of the entry's header, in bytes.
        offset: u64,
        /// The fault.
        what: &'static str,
    },
    /// An entry has an unknown type.
    #[error("tar entry at byte {offset}: unknown type `{}`", kind.escape_ascii())]
    Kind {
        /// Offset of the entry's header, in bytes.
        offset: u64,
        /// The type flag.
        kind: u8,
    },
    /// The archive ends within an entry.
    #[error("tar archive ends early, at byte {offset}")]
    Truncated {
        /// Offset of the end, in bytes.
        offset: u64,
    },
    /// The input cannot be read or decompressed.
    #[error("cannot read the archive at byte {offset}")]
    Read {
        /// Offset in bytes.
        offset: u64,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
}

/// Type of an entry, from the type flag of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A regular file.
    #[default]
    File,
    /// A further name of an earlier file.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
}

/// An entry. [`Reader::next_entry`] refills the same one, so that its memory is reused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// Path as in the archive, without a slash at the end of a directory. Unchecked: it may be absolute or contain
    /// `..`.
    pub path: Vec<u8>,
    /// Type of the entry: file, link, directory or device.
    pub kind: Kind,
    /// Permission bits with set-user-id, set-group-id and sticky bit.
    pub mode: u32,
    /// User id of the owner, from the header.
    pub uid: u32,
    /// Group id of the owner, from the header.
    pub gid: u32,
    /// Name of the owner; may be empty.
    pub user: Vec<u8>,
    /// Name of the group; may be empty.
    pub group: Vec<u8>,
    /// Modification time, Unix time in seconds.
    pub mtime_s: i64,
    /// Nanoseconds of the modification time, from pax headers; otherwise 0.
    pub mtime_ns: u32,
    /// Size of the file in bytes, holes included; 0 for other types.
    pub size: u64,
    /// Target of a symbolic or hard link; otherwise empty.
    pub link: Vec<u8>,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Extended attributes: names with their namespace, and values.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether the file has holes: [`Reader::chunk`] skips ranges of zeros.
    pub sparse: bool,
    /// Type flag of the header. A directory may have the flag of a file and a slash at the end of its name.
    pub flag: u8,
    /// Whether the entry has a pax header, even an empty one.
    pub pax: bool,
    /// Format of the header: ustar, GNU or pax.
    pub format: Format,
    /// Offset of the header, in bytes from the start of the archive.
    pub offset: u64,
}

/// A piece of the content of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Bytes of the piece; [`Reader::consume`] releases them.
    pub bytes: &'a [u8],
}

/// Reads the entries of an archive in order.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    offset: u64,
    /// Bytes of the current content that are not returned yet, as stored in the archive.
    left: u64,
    padding: u64,
    /// Offset in the file of the next byte of content.
    position: u64,
    /// Unfinished data segments of a sparse file: offset and length.
    segments: VecDeque<(u64, u64)>,
    sparse: bool,
    global: pax::Records,
    /// Whether there was a global pax header.
    extended: bool,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Makes a reader at the start of an archive. The buffer of `input` should have some hundred KiB.
    pub fn new(input: R) -> Reader<R> {
        Reader {
            input,
            offset: 0,
            left: 0,
            padding: 0,
            position: 0,
            segments: VecDeque::new(),
            sparse: false,
            global: pax::Records::default(),
            extended: false,
            ended: false,
        }
    }

    /// Skips the rest of the current content and fills `entry` with the next entry. Returns `false` at the end of the
    /// archive, which is a block of zeros or the end of the input.
    ///
    /// # Errors
    /// Every variant of [`TarError`]. Nothing can be read after an error.
    pub fn next_entry(&mut self, entry: &mut Entry) -> Result<bool, TarError> {
        self.pass(self.left + self.padding)?;
        (self.left, self.padding, self.position, self.sparse) = (0, 0, 0, false);
        self.segments.clear();
        let mut long = header::LongNames::default();
        let mut records = pax::Records::default();
        let mut extended = self.extended;
        loop {
            let offset = self.offset;
            let Some(block) = self.block()? else {
                return if long.is_empty() && records.is_empty() {
                    Ok(false)
                } else {
                    Err(TarError::Truncated { offset: self.offset })
                };
            };
            let raw = header::Raw::parse(&block, offset)?;
            match raw.kind {
                b'L' => long.name = Some(self.text(raw.size, offset)?),
                b'K' => long.link = Some(self.text(raw.size, offset)?),
                b'x' => {
                    // Otherwise any number of headers could be read before the first entry.
                    if !records.is_empty() {
                        return Err(TarError::Malformed { offset, what: "two pax headers for one entry" });
                    }
                    extended = true;
                    records.read(&self.small(raw.size, PAX_BYTES_MAX, offset)?, offset)?;
                }
                b'g' => {
                    (extended, self.extended) = (true, true);
                    let content = self.small(raw.size, PAX_BYTES_MAX, offset)?;
                    self.global.read(&content, offset)?;
                    if self.global.bytes() > PAX_BYTES_MAX || self.global.count() > GLOBAL_RECORDS_MAX {
                        return Err(TarError::Malformed { offset, what: "more global headers than any archive needs" });
                    }
                }
                _ => {
                    self.finish_entry(entry, raw, &block, long, &records, offset)?;
                    entry.pax = extended;
                    return Ok(true);
                }
            }
        }
    }

    /// Returns the next piece of the current file, `None` at its end. [`Reader::consume`] then takes the number of
    /// bytes that were used.
    ///
    /// # Errors
    /// [`TarError::Truncated`] if the archive ends within the file; [`TarError::Read`] if the input cannot be read or
    /// decompressed.
    pub fn chunk(&mut self) -> Result<Option<Chunk<'_>>, TarError> {
        let mut room = self.left;
        if self.sparse {
            while let Some((_, 0)) = self.segments.front() {
                self.segments.pop_front();
            }
            if let Some((offset, bytes)) = self.segments.front() {
                self.position = *offset;
                room = *bytes;
            }
        }
        if room == 0 {
            return Ok(None);
        }
        let (archive_offset, position) = (self.offset, self.position);
        let bytes = fill(&mut self.input, archive_offset)?;
        let length = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        Ok(Some(Chunk { offset: position, bytes: &bytes[..length] }))
    }

    /// Marks `count` bytes of the last chunk as used.
    pub fn consume(&mut self, count: usize) {
        self.input.consume(count);
        let count = count as u64;
        self.offset += count;
        self.left = self.left.saturating_sub(count);
        self.position += count;
        if let Some((offset, bytes)) = self.segments.front_mut().filter(|_| self.sparse) {
            *offset += count;
            *bytes = bytes.saturating_sub(count);
        }
    }

    /// Number of bytes read from the archive.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the input at its current position; padding may follow the end of the archive.
    pub fn into_inner(self) -> R {
        self.input
    }

    fn finish_entry(
        &mut self,
        entry: &mut Entry,
        raw: header::Raw,
        block: &[u8; BLOCK_BYTES],
        long: header::LongNames,
        records: &pax::Records,
        offset: u64,
    ) -> Result<(), TarError> {
        raw.fill(entry, block, long, offset)?;
        let mut stored = raw.size;
        for records in [&self.global, records] {
            records.apply(entry, &mut stored, offset)?;
        }
        let wrong = |what| TarError::Malformed { offset, what };
        if entry.kind != Kind::File && stored > 0 {
            return Err(wrong("content where only a regular file has some"));
        }
        entry.size = stored;
        let map = match (raw.kind, records.sparse(offset)?) {
            (b'S', None) => {
                let (segments, size) = sparse::old_gnu(block, offset, || self.block_or_end())?;
                entry.size = size;
                Some(segments)
            }
            (b'S', Some(_)) => return Err(wrong("sparse in two ways")),
            (_, None) => None,
            (_, Some(_)) if entry.kind != Kind::File => return Err(wrong("holes where only a regular file has some")),
            (_, Some(found)) => {
                entry.size = found.size;
                if let Some(name) = found.name {
                    entry.path = name;
                }
                Some(match found.segments {
                    Some(segments) => segments,
                    None => {
                        let (segments, blocks) = sparse::leading_map(offset, || self.block_or_end())?;
                        let bytes = blocks * BLOCK_BYTES as u64;
                        stored = stored.checked_sub(bytes).ok_or_else(|| wrong("a sparse map longer than its file"))?;
                        segments
                    }
                })
            }
        };
        if let Some(segments) = map {
            sparse::check(&segments, entry.size, stored).map_err(wrong)?;
            entry.sparse = true;
            self.sparse = true;
            self.segments = segments.into();
        }
        self.left = stored;
        self.padding = stored.wrapping_neg() % BLOCK_BYTES as u64;
        header::finish_path(entry).map_err(wrong)
    }

    /// Reads a long name: the bytes before the first NUL.
    fn text(&mut self, size: u64, offset: u64) -> Result<Vec<u8>, TarError> {
        let mut text = self.small(size, NAME_BYTES_MAX, offset)?;
        text.truncate(memchr::memchr(0, &text).unwrap_or(text.len()));
        Ok(text)
    }

    /// Reads the whole content of a header that describes the next entry.
    fn small(&mut self, size: u64, limit: u64, offset: u64) -> Result<Vec<u8>, TarError> {
        if size > limit {
            return Err(TarError::Malformed { offset, what: "a header longer than any file needs" });
        }
        let mut content = Vec::new();
        let mut left = size as usize;
        while left > 0 {
            let block = self.block_or_end()?;
            let length = left.min(BLOCK_BYTES);
            content.extend_from_slice(&block[..length]);
            left -= length;
        }
        Ok(content)
    }

    /// Reads one block; `None` at the end of the input.
    fn raw_block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>, TarError> {
        let mut block = [0; BLOCK_BYTES];
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            let bytes = match fill(&mut self.input, self.offset) {
                Err(TarError::Truncated { .. }) if filled == 0 => return Ok(None),
                bytes => bytes?,
            };
            let count = bytes.len().min(BLOCK_BYTES - filled);
            block[filled..filled + count].copy_from_slice(&bytes[..count]);
            self.input.consume(count);
            self.offset += count as u64;
            filled += count;
        }
        Ok(Some(block))
    }

    /// Reads a header block; `None` at the end of the archive. As in dpkg and tar, that is the end of the input or a
    /// block of zeros.
    fn block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>, TarError> {
        if self.ended {
            return Ok(None);
        }
        let block = self.raw_block()?.filter(|block| block.iter().any(|byte| *byte != 0));
        self.ended = block.is_none();
        Ok(block)
    }

    /// Reads a required block.
    fn block_or_end(&mut self) -> Result<[u8; BLOCK_BYTES], TarError> {
        self.raw_block()?.ok_or(TarError::Truncated { offset: self.offset })
    }

    fn pass(&mut self, mut count: u64) -> Result<(), TarError> {
        while count > 0 {
            let bytes = fill(&mut self.input, self.offset)?.len();
            let bytes = bytes.min(usize::try_from(count).unwrap_or(usize::MAX));
            self.input.consume(bytes);
            self.offset += bytes as u64;
            count -= bytes as u64;
        }
        Ok(())
    }
}

/// Returns the buffered bytes, at least one.
fn fill<R: BufRead>(input: &mut R, offset: u64) -> Result<&[u8], TarError> {
    loop {
        match input.fill_buf() {
            Ok([]) => return Err(TarError::Truncated { offset }),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(TarError::Read { offset, source }),
        }
    }
    // A second call, because the borrow of the first would last for the whole loop.
    input.fill_buf().map_err(|source| TarError::Read { offset, source })
}
