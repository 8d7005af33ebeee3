//! The `ar` format of `.deb` files: a magic line, then members, each with a 60-byte header (ar(5), "common" format;
//! deb(5)).
//!
//! The reader is a state machine over [`Read`]. It returns the headers in order, and the content of the current member.

use std::io::{self, Read};

use thiserror::Error;

/// Magic number at the start of every archive.
pub const MAGIC: &[u8; 8] = b"!<arch>\n";

/// Size of a member's header, in bytes.
pub const HEADER_BYTES: usize = 60;

/// Why an ar archive could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ArError {
    /// The file does not start with [`MAGIC`].
    #[error("not an ar archive: no `!<arch>` at the start")]
    Magic,
    /// A malformed header.
    #[error("ar member at byte {offset}: {what}")]
    Header {
        /// Offset of the header, in bytes.
        offset: u64,
        /// The fault.
        what: &'static str,
    },
    /// The archive ends within a header or within a member.
    #[error("ar archive ends early, at byte {offset}")]
    Truncated {
        /// Offset of the end, in bytes.
        offset: u64,
    },
    /// The input cannot be read.
    #[error("cannot read the archive at byte {offset}")]
    Read {
        /// Offset in bytes.
        offset: u64,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
}

/// Header of an archive member: name, size and offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name of the member, without padding and without the slash that some archivers append.
    pub name: Vec<u8>,
    /// Size of the content, in bytes.
    pub size: u64,
    /// Offset of the content, in bytes from the start of the archive.
    pub offset: u64,
}

/// Reads the members of an archive in order.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    offset: u64,
    /// Bytes of the current member that are not read yet, without padding.
    left: u64,
    padding: u64,
    begun: bool,
}

impl<R: Read> Reader<R> {
    /// Makes a reader at the start of an archive.
    pub fn new(input: R) -> Reader<R> {
        Reader { input, offset: 0, left: 0, padding: 0, begun: false }
    }

    /// Skips the rest of the current member and reads the next header; `None` at the end of the archive.
    ///
    /// # Errors
    /// [`ArError::Magic`] at the first call, if the input is not an ar archive; [`ArError::Header`] for a malformed
    /// header; [`ArError::Truncated`] if the archive ends within a member; [`ArError::Read`] if the input fails.
    pub fn next_member(&mut self) -> Result<Option<Member>, ArError> {
        if !self.begun {
            let mut magic = [0; MAGIC.len()];
            if self.fill(&mut magic)? < magic.len() || &magic != MAGIC {
                return Err(ArError::Magic);
            }
            self.begun = true;
        }
        self.skip()?;
        let offset = self.offset;
        let mut header = [0; HEADER_BYTES];
        match self.fill(&mut header)? {
            0 => return Ok(None),
            HEADER_BYTES => {}
            _ => return Err(ArError::Truncated { offset: self.offset }),
        }
        let member = parse_header(&header, offset)?;
        self.left = member.size;
        self.padding = member.size % 2;
        Ok(Some(member))
    }

    /// Unread content of the current member.
    pub fn content(&mut self) -> Content<'_, R> {
        Content { archive: self }
    }

    /// Number of bytes read from the start of the archive.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the input at its current position.
    pub fn into_inner(self) -> R {
        self.input
    }

    fn skip(&mut self) -> Result<(), ArError> {
        let mut waste = [0; 4096];
        while self.left > 0 {
            let room = waste.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let count = self.fill(&mut waste[..room])?;
            self.left -= count as u64;
            if count < room {
                return Err(ArError::Truncated { offset: self.offset });
            }
        }
        if self.padding > 0 {
            self.padding = 0;
            // Some archivers omit the last newline, and dpkg-deb accepts that too.
            self.fill(&mut waste[..1])?;
        }
        Ok(())
    }

    /// Reads until `buffer` is full or the input ends; returns the number of bytes.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, ArError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.input.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ArError::Read { offset: self.offset + filled as u64, source }),
            }
        }
        self.offset += filled as u64;
        Ok(filled)
    }
}

/// Content of one member. An archive that ends within the member is an error of kind `UnexpectedEof`.
#[derive(Debug)]
pub struct Content<'a, R> {
    archive: &'a mut Reader<R>,
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let archive = &mut *self.archive;
        let room = buffer.len().min(usize::try_from(archive.left).unwrap_or(usize::MAX));
        if room == 0 {
            return Ok(0);
        }
        let count = archive.input.read(&mut buffer[..room])?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, ArError::Truncated { offset: archive.offset }));
        }
        archive.left -= count as u64;
        archive.offset += count as u64;
        Ok(count)
    }
}

fn parse_header(header: &[u8; HEADER_BYTES], offset: u64) -> Result<Member, ArError> {
    let wrong = |what| ArError::Header { offset, what };
    if &header[58..] != b"`\n" {
        return Err(wrong("the header does not end as it has to"));
    }
    let name = trim_end(&header[..16]);
    let name = name.strip_suffix(b"/").unwrap_or(name);
    if name.is_empty() || name.contains(&0) {
        return Err(wrong("no name"));
    }
    let digits = trim_end(&header[48..58]);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(wrong("the size is not a decimal number"));
    }
    // At most ten digits, so it fits.
    let size = digits.iter().fold(0, |size: u64, digit| size * 10 + u64::from(digit - b'0'));
    Ok(Member { name: name.to_vec(), size, offset: offset + HEADER_BYTES as u64 })
}

fn trim_end(field: &[u8]) -> &[u8] {
    let end = field.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    &field[..end]
}

/// Makes the header of a member. Time, owner and group are 0; the mode is 100644.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for a name of more than 16 bytes or a size of more than ten digits.
pub fn header(name: &str, size: u64) -> io::Result<[u8; HEADER_BYTES]> {
    let text = format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, 0, 100_644);
    text.into_bytes().try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn archive(members: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (name, content) in members {
            bytes.extend_from_slice(&header(name, content.len() as u64).expect("fits"));
            bytes.extend_from_slice(content);
            if content.len() % 2 == 1 {
                bytes.push(b'\n');
            }
        }
        bytes
    }

    fn read_all(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, ArError> {
        let mut reader = Reader::new(bytes);
        let mut members = Vec::new();
        while let Some(member) = reader.next_member()? {
            let mut content = Vec::new();
            let end = reader.content().read_to_end(&mut content);
            end.map_err(|source| ArError::Read { offset: reader.offset(), source })?;
            assert_eq!(content.len() as u64, member.size);
            members.push((String::from_utf8_lossy(&member.name).into_owned(), content));
        }
        Ok(members)
    }

    #[test]
    fn members_are_found_with_their_offsets() {
        let bytes = archive(&[("debian-binary".into(), b"2.0\n".to_vec()), ("odd".into(), b"123".to_vec())]);
        let mut reader = Reader::new(&bytes[..]);
        let first = reader.next_member().expect("sound").expect("there");
        assert_eq!((first.offset, first.size), (68, 4));
        let second = reader.next_member().expect("sound").expect("there");
        assert_eq!((&second.name[..], second.offset), (&b"odd"[..], 132));
        assert_eq!(&bytes[132..135], b"123");
        assert!(reader.next_member().expect("sound").is_none());
    }

    #[test]
    fn headers_that_lie_are_errors() {
        let good = archive(&[("a".into(), b"12".to_vec())]);
        assert!(matches!(read_all(b""), Err(ArError::Magic)));
        assert!(matches!(read_all(b"!<arch>\r"), Err(ArError::Magic)));
        for (at, byte) in [(8 + 58, b'x'), (8 + 48, b'-'), (8 + 49, b'x'), (8, b' ')] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(matches!(read_all(&bad), Err(ArError::Header { offset: 8, .. })), "{at}");
        }
        let mut huge = good.clone();
        huge[8 + 48..8 + 58].copy_from_slice(b"9999999999");
        let mut reader = Reader::new(&huge[..]);
        assert_eq!(reader.next_member().expect("a header").expect("there").size, 9_999_999_999);
        assert!(matches!(reader.next_member(), Err(ArError::Truncated { .. })));
        assert!(matches!(read_all(&good[..30]), Err(ArError::Truncated { offset: 30 })));
        assert!(read_all(&good[..69]).is_err());
    }

    proptest! {
        #[test]
        fn members_that_are_written_are_read_again(
            members in prop::collection::vec(("[a-z.-]{1,16}", prop::collection::vec(any::<u8>(), 0..50)), 0..6)
        ) {
            prop_assert_eq!(read_all(&archive(&members)).expect("sound"), members);
        }

        #[test]
        fn arbitrary_input_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), sound in any::<bool>()) {
            let bytes = if sound { [MAGIC, &bytes[..]].concat() } else { bytes };
            let _ = read_all(&bytes);
        }
    }
}
