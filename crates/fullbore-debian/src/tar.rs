//! `tar` archives as a stream: ustar, GNU (long names, base-256 numbers, sparse files) and pax
//! (POSIX.1-2001, with `SCHILY.xattr` and the GNU sparse formats 0.0, 0.1 and 1.0).
//!
//! Content is handed out where it lies in the input's buffer, so that it is not copied on its way
//! to the file. Two readers of one archive must never disagree on where an entry ends
//! (CVE-2025-62518): only regular files may have content, a size is one number in one place, and
//! whatever is doubtful is an error, not a guess.

mod header;
mod pax;
mod sparse;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, BufRead};

use thiserror::Error;

pub use header::Format;

/// tar counts in blocks of this length.
pub const BLOCK_BYTES: usize = 512;

/// Longest name or link target. Linux takes 4096 for a whole path; 64 KiB leaves the refusal to it.
const NAME_BYTES_MAX: u64 = 64 << 10;

/// Longest pax header. Attributes of a file are below 64 KiB each; tar itself writes a few hundred bytes.
const PAX_BYTES_MAX: u64 = 1 << 20;

/// Global pax records of one archive; each is looked at for every entry. git writes one.
const GLOBAL_RECORDS_MAX: usize = 256;

/// What is wrong with an archive, and where.
#[derive(Debug, Error)]
pub enum TarError {
    /// Something that no archiver writes, or that readers would take in different ways.
    #[error("tar entry at byte {offset}: {what}")]
    Malformed {
        /// Where the entry's header begins.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A kind of entry that is not known.
    #[error("tar entry at byte {offset}: unknown type `{}`", kind.escape_ascii())]
    Kind {
        /// Where the entry's header begins.
        offset: u64,
        /// The type flag.
        kind: u8,
    },
    /// The archive ends within an entry.
    #[error("tar archive ends early, at byte {offset}")]
    Truncated {
        /// Where the bytes ended.
        offset: u64,
    },
    /// The reader failed; also how a decompressor reports damage.
    #[error("cannot read the archive at byte {offset}")]
    Read {
        /// Where.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// What an entry makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A regular file.
    #[default]
    File,
    /// A further name of a file that came before.
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

/// One entry. The same one is filled again and again, so that its memory is reused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// As it stands in the archive, without the slash at a directory's end. Not checked: it may be
    /// absolute or contain `..`.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Permission bits with set-user-id, set-group-id and sticky bit.
    pub mode: u32,
    /// Owner's number.
    pub uid: u32,
    /// Group's number.
    pub gid: u32,
    /// Owner's name; may be empty.
    pub user: Vec<u8>,
    /// Group's name; may be empty.
    pub group: Vec<u8>,
    /// Seconds since 1970.
    pub mtime_s: i64,
    /// Nanoseconds, from pax headers; else 0.
    pub mtime_ns: u32,
    /// Length of the file, in bytes; with holes, if it has some. 0 for all that is no file.
    pub size: u64,
    /// Target of a link.
    pub link: Vec<u8>,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Extended attributes: names with their namespace, and values.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether the file has holes: what [`Reader::chunk`] does not give is zeros.
    pub sparse: bool,
    /// The type flag in its header; a directory may come as a file whose name ends with a slash.
    pub flag: u8,
    /// Whether a pax header is about it, be it empty.
    pub pax: bool,
    /// The header's format.
    pub format: Format,
    /// Where its header begins, in bytes from the archive's start.
    pub offset: u64,
}

/// A piece of a file's content.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Where it belongs in the file.
    pub offset: u64,
    /// The bytes; to be given back with [`Reader::consume`].
    pub bytes: &'a [u8],
}

/// Reads entries one after the other.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    offset: u64,
    /// Bytes of the present content that were not handed out, as they lie in the archive.
    left: u64,
    padding: u64,
    /// Where the next byte of content belongs in the file.
    position: u64,
    /// Data segments of a sparse file that are not finished: offset and length.
    segments: VecDeque<(u64, u64)>,
    sparse: bool,
    global: pax::Records,
    /// A global pax header came.
    extended: bool,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// A reader at the start of an archive. The input's buffer should be some hundred KiB.
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

    /// Passes over what is left of the present content and fills `entry` with the next entry.
    /// `false` at the end of the archive, which is a block of zeros or the end of the input.
    ///
    /// # Errors
    /// See [`TarError`]. After one, nothing more can be read.
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
                    // Any number of them would be read before anything comes of it.
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

    /// The next piece of the present file's content, `None` at its end. Call [`Reader::consume`]
    /// with as much of it as was used.
    ///
    /// # Errors
    /// [`TarError::Truncated`] and [`TarError::Read`].
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

    /// Notes that so many bytes of the last chunk were used.
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

    /// Bytes of the archive that were read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Gives the input back, wherever it stands: behind the end of the archive there may be padding.
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

    /// A long name: what lies before the first NUL byte.
    fn text(&mut self, size: u64, offset: u64) -> Result<Vec<u8>, TarError> {
        let mut text = self.small(size, NAME_BYTES_MAX, offset)?;
        text.truncate(memchr::memchr(0, &text).unwrap_or(text.len()));
        Ok(text)
    }

    /// The whole content of a header that is about the next entry.
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

    /// One block; `None` at the end of the input.
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

    /// A header's block; `None` at the end of the archive. Without the blocks of zeros that should
    /// be there it ends as well, for dpkg and for tar.
    fn block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>, TarError> {
        if self.ended {
            return Ok(None);
        }
        let block = self.raw_block()?.filter(|block| block.iter().any(|byte| *byte != 0));
        self.ended = block.is_none();
        Ok(block)
    }

    /// A block that has to be there.
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

/// What lies in the buffer, at least one byte.
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
