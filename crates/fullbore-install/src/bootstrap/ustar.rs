//! Headers of tar archives that fullbore writes itself: for the devices of a root, and for the files of an OCI archive.

/// Size of headers, and of the blocks that content is padded to.
pub(super) const BLOCK_BYTES: usize = 512;

/// Two blocks of zeros end an archive.
pub(super) const END: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];

/// First size that does not fit into the 11 octal digits of the field.
const OCTAL_BYTES_END: u64 = 1 << 33;

/// Type of an archive entry, with the data that the type needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file with this many bytes of content.
    File(u64),
    /// A link to this path.
    Link(&'static str),
    /// A character device: major and minor number.
    Device(u32, u32),
    /// A directory; its name ends in a slash.
    Directory,
}

/// A header in GNU's form of ustar, owned by root. Names have at most 100 bytes.
pub(super) fn header(name: &str, mode: u32, kind: Kind, mtime: i64) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(136, &format!("{:011o}", mtime.max(0)));
    put(148, "        ");
    // GNU's magic: mmdebstrap's archives begin with it, and only GNU's format has sizes that exceed the octal field.
    put(257, "ustar  \0");
    let (type_flag, link, size, (major, minor)) = match kind {
        Kind::File(size) => (b'0', "", size, (0, 0)),
        Kind::Link(link) => (b'2', link, 0, (0, 0)),
        Kind::Device(major, minor) => (b'3', "", 0, (major, minor)),
        Kind::Directory => (b'5', "", 0, (0, 0)),
    };
    put(157, link);
    put(329, &format!("{major:07o}"));
    put(337, &format!("{minor:07o}"));
    if size < OCTAL_BYTES_END {
        put(124, &format!("{size:011o}"));
    } else {
        // GNU's binary form, marked by the first bit, which all current readers know.
        block[124] = 0x80;
        block[128..136].copy_from_slice(&size.to_be_bytes());
    }
    block[156] = type_flag;
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Zeros that pad content of this size to whole blocks.
pub(super) fn padding(size: u64) -> &'static [u8] {
    let beyond = (size % BLOCK_BYTES as u64) as usize;
    if beyond == 0 { &[] } else { &END[beyond..BLOCK_BYTES] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_beyond_eight_gigabytes_are_read_by_tar() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large.tar");
        for size in [0, 1, OCTAL_BYTES_END - 1, OCTAL_BYTES_END, 1 << 40] {
            let file = std::fs::File::create(&path).unwrap();
            std::io::Write::write_all(&mut &file, &header("blob", 0o644, Kind::File(size), 1_700_000_000)).unwrap();
            // A hole for the content.
            file.set_len(BLOCK_BYTES as u64 + size + padding(size).len() as u64 + END.len() as u64).unwrap();
            let output = std::process::Command::new("tar").arg("-tvf").arg(&path).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{size}: {}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(text.split_whitespace().nth(2), Some(size.to_string().as_str()), "{text}");
        }
    }

    #[test]
    fn content_is_padded_to_whole_blocks() {
        for (size, padded) in [(0, 0), (1, 511), (511, 1), (512, 0), (513, 511)] {
            assert_eq!(padding(size).len(), padded, "{size}");
        }
    }
}
