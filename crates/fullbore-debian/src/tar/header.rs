//! The header block: fields of fixed width, numbers in octal or base 256.

use super::{BLOCK_BYTES, Entry, Kind, TarError};

/// Largest accepted owner, mode or device number, as in dpkg.
const NUMBER_MAX: u64 = i32::MAX as u64;

/// Format of a header, which determines its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Before POSIX: no prefix, no owner names.
    #[default]
    Old,
    /// POSIX.1-1988; pax archives have it as well.
    Ustar,
    /// Format of GNU tar.
    Gnu,
}

/// Names from preceding entries (GNU types `L` and `K`).
#[derive(Debug, Default)]
pub(super) struct LongNames {
    pub name: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
}

impl LongNames {
    pub(super) fn is_empty(&self) -> bool {
        self.name.is_none() && self.link.is_none()
    }
}

/// Fields that determine what follows the header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw {
    pub kind: u8,
    pub size: u64,
    format: Format,
}

impl Raw {
    pub(super) fn parse(block: &[u8; BLOCK_BYTES], offset: u64) -> Result<Raw, TarError> {
        let wrong = |what| TarError::Malformed { offset, what };
        // The sum of unsigned bytes, with the checksum field as spaces.
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        let field: u32 = block[148..156].iter().map(|byte| u32::from(*byte)).sum();
        let expected = octal(&block[148..156]).ok_or_else(|| wrong("the checksum is not a number"))?;
        if u64::from(sum - field + 8 * u32::from(b' ')) != expected {
            return Err(wrong("the checksum of the header is wrong"));
        }
        let format = match &block[257..263] {
            b"ustar\0" => Format::Ustar,
            b"ustar " => Format::Gnu,
            _ => Format::Old,
        };
        let size = unsigned(&block[124..136]).filter(|size| i64::try_from(*size).is_ok());
        let size = size.ok_or_else(|| wrong("the size is not a number"))?;
        // Headers that describe the next entry have these fields as well, and dpkg checks them.
        for (range, what) in [(108..116, "the owner is not a number"), (116..124, "the group is not a number")] {
            unsigned(&block[range]).filter(|value| *value <= NUMBER_MAX).ok_or_else(|| wrong(what))?;
        }
        signed(&block[136..148]).ok_or_else(|| wrong("the time is not a number"))?;
        if matches!(block[156], b'L' | b'K') && block[0] == 0 {
            return Err(wrong("no name"));
        }
        Ok(Raw { kind: block[156], size, format })
    }

    pub(super) fn fill(
        &self,
        entry: &mut Entry,
        block: &[u8; BLOCK_BYTES],
        long: LongNames,
        offset: u64,
    ) -> Result<(), TarError> {
        let wrong = |what| TarError::Malformed { offset, what };
        entry.kind = match self.kind {
            0 | b'0' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::CharacterDevice,
            b'4' => Kind::BlockDevice,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            kind => return Err(TarError::Kind { offset, kind }),
        };
        entry.flag = self.kind;
        entry.path.clear();
        entry.link.clear();
        match long.name {
            Some(name) => entry.path = name,
            None => {
                let prefix = text(&block[345..500]);
                if self.format == Format::Ustar && !prefix.is_empty() {
                    entry.path.extend_from_slice(prefix);
                    entry.path.push(b'/');
                }
                entry.path.extend_from_slice(text(&block[..100]));
            }
        }
        match long.link {
            Some(link) => entry.link = link,
            None => entry.link.extend_from_slice(text(&block[157..257])),
        }
        let number = |range: std::ops::Range<usize>, what| {
            unsigned(&block[range])
                .filter(|value| *value <= NUMBER_MAX)
                .map(|value| value as u32)
                .ok_or_else(|| wrong(what))
        };
        entry.mode = number(100..108, "the mode is not a number")? & 0o7777;
        entry.uid = number(108..116, "the owner is not a number")?;
        entry.gid = number(116..124, "the group is not a number")?;
        entry.mtime_s = signed(&block[136..148]).ok_or_else(|| wrong("the time is not a number"))?;
        entry.mtime_ns = 0;
        entry.device = match entry.kind {
            Kind::CharacterDevice | Kind::BlockDevice => (
                number(329..337, "the device's major is not a number")?,
                number(337..345, "the device's minor is not a number")?,
            ),
            _ => (0, 0),
        };
        entry.user.clear();
        entry.group.clear();
        if self.format != Format::Old {
            entry.user.extend_from_slice(text(&block[265..297]));
            entry.group.extend_from_slice(text(&block[297..329]));
        }
        entry.attributes.clear();
        (entry.sparse, entry.pax, entry.format, entry.offset) = (false, false, self.format, offset);
        Ok(())
    }
}

/// Checks the final path, and removes the slash of a directory.
pub(super) fn finish_path(entry: &mut Entry) -> Result<(), &'static str> {
    if entry.path.is_empty() {
        return Err("no name");
    }
    if entry.path.contains(&0) || entry.link.contains(&0) {
        return Err("a name with a NUL byte");
    }
    if entry.path.last() != Some(&b'/') {
        return Ok(());
    }
    // Before ustar, a directory was a file whose name ends with a slash.
    if entry.kind == Kind::File {
        if entry.size > 0 || entry.sparse {
            return Err("a directory with content");
        }
        entry.kind = Kind::Directory;
    }
    if entry.kind == Kind::Directory && entry.path.len() > 1 {
        entry.path.pop();
    }
    Ok(())
}

/// The field up to the first NUL byte.
fn text(field: &[u8]) -> &[u8] {
    &field[..memchr::memchr(0, field).unwrap_or(field.len())]
}

/// Parses spaces, octal digits, then only spaces and NUL bytes.
pub(super) fn octal(field: &[u8]) -> Option<u64> {
    let start = field.iter().position(|byte| *byte != b' ')?;
    let field = &field[start..];
    let end = field.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(field.len());
    if !field[end..].iter().all(|byte| matches!(byte, 0 | b' ')) {
        return None;
    }
    field[..end].iter().try_fold(0_u64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Parses octal, or two's complement in base 256 if the first byte is 0x80 or 0xff (GNU).
pub(super) fn signed(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    let negative = match first {
        0x80 => false,
        0xff => true,
        _ => return octal(field).and_then(|value| i64::try_from(value).ok()),
    };
    let value = rest.iter().fold(if negative { -1_i128 } else { 0 }, |value, byte| {
        // Values of more than 64 bits are detected; twelve bytes fit in 128.
        (value << 8) | i128::from(*byte)
    });
    i64::try_from(value).ok()
}

pub(super) fn unsigned(field: &[u8]) -> Option<u64> {
    signed(field).and_then(|value| u64::try_from(value).ok())
}
