//! What a tree consists of, as the sender saw it: one [`Entry`] per name, without its content.

/// Longest name of one file, in bytes: Linux' `NAME_MAX`, which no file system there exceeds.
pub const NAME_BYTES: usize = 255;
/// Longest path, and longest text of a symbolic link, in bytes: Linux' `PATH_MAX`.
pub const PATH_BYTES: usize = 4096;
/// Longest value of an extended attribute, in bytes: Linux' `XATTR_SIZE_MAX`.
pub(crate) const XATTR_BYTES: usize = 64 << 10;
/// Extended attributes of one file. Linux bounds the list of their names to 64 KiB
/// (`XATTR_LIST_MAX`); names of less than sixteen bytes in such numbers are not met.
pub(crate) const XATTRS: usize = 4096;
/// All extended attributes of one file, in bytes. A guess: file systems in use hold 64 KiB to 128 KiB.
pub(crate) const XATTRS_BYTES: usize = 1 << 20;

/// Type of a directory entry (inode(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    Character,
    /// A block device.
    Block,
}

impl Kind {
    /// Whether it is made by `mknod`.
    pub fn is_special(self) -> bool {
        matches!(self, Kind::Fifo | Kind::Socket | Kind::Character | Kind::Block)
    }

    /// Whether it is a device.
    pub(crate) fn is_device(self) -> bool {
        matches!(self, Kind::Character | Kind::Block)
    }

    /// From the mode of a `stat`.
    pub(crate) fn of_mode(mode: u32) -> Option<Kind> {
        use rustix::fs::FileType;
        Some(match FileType::from_raw_mode(mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::Character,
            FileType::BlockDevice => Kind::Block,
            FileType::Unknown => return None,
        })
    }

    /// Name of the type in messages, such as `symbolic link`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Symlink => "symbolic link",
            Kind::Fifo => "named pipe",
            Kind::Socket => "socket",
            Kind::Character => "character device",
            Kind::Block => "block device",
        }
    }
}

/// A moment, seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Whole seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Which file of the source this is, and in which state: a difference in any field
/// voids what an earlier run kept of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device number of its file system.
    pub device: u64,
    /// Inode number of the file at the source.
    pub inode: u64,
    /// Time of the last change of content or attributes.
    pub changed: Time,
}

/// Extended attributes: names and values, sorted by name.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A directory entry of the source, with its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last part of its path; any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// Type of the entry: file, directory, link or device.
    pub kind: Kind,
    /// Permission bits, set-id and sticky bits: the low twelve bits.
    pub mode: u32,
    /// Number of the owner at the source.
    pub user: u32,
    /// Number of the group at the source.
    pub group: u32,
    /// Time of the last change of content.
    pub modified: Time,
    /// Length in bytes; 0 but for files.
    pub size: u64,
    /// Bytes of content that a file with holes has on its disk; none for files without.
    pub stored: Option<u64>,
    /// Device, inode and change time; none of directories.
    pub identity: Identity,
    /// Names of one file share a number; the first of them listed brings the content.
    pub link_group: Option<u64>,
    /// Target of a symbolic link, else empty.
    pub target: Vec<u8>,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Extended attributes, ACLs among them, sorted by name.
    pub xattrs: Xattrs,
}

impl Entry {
    /// Bytes that have to be transferred at most.
    pub fn content_bytes(&self) -> u64 {
        self.stored.map_or(self.size, |stored| stored.min(self.size))
    }

    /// Bytes that it takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let xattr = |(name, value): &(Vec<u8>, Vec<u8>)| size_of::<(Vec<u8>, Vec<u8>)>() + name.len() + value.len();
        let xattrs: usize = self.xattrs.iter().map(xattr).sum();
        size_of::<Entry>() + self.name.len() + self.target.len() + xattrs
    }

    /// An entry without anything special, for the others to be filled in.
    pub fn plain(name: &[u8], kind: Kind) -> Entry {
        Entry {
            name: name.to_vec(),
            kind,
            mode: 0o644,
            user: 0,
            group: 0,
            modified: Time::default(),
            size: 0,
            stored: None,
            identity: Identity::default(),
            link_group: None,
            target: Vec::new(),
            device: (0, 0),
            xattrs: Vec::new(),
        }
    }
}

/// Whether this can be the name of one file beneath a directory.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Whether this is a path beneath a root: names with single slashes between; empty is the root.
pub fn is_path(path: &[u8]) -> bool {
    path.is_empty() || path.len() < PATH_BYTES && path.split(|byte| *byte == b'/').all(is_name)
}

/// `directory/name`, or the name alone at the root.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !directory.is_empty() && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// For messages: bytes that are no text are shown as `\377`.
pub fn shown(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\{byte:03o}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_that_lead_outside_are_none() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
            assert!(!is_name(bad), "{bad:?}");
        }
        for bad in [&b"/a"[..], b"a/", b"a//b", b"a/../b", b"./a", &[b'x'; 300]] {
            assert!(!is_path(bad), "{bad:?}");
        }
        assert!(is_name(b"\xff...") && is_path(b"") && is_path(b"a/b.c/..d"));
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_in_octal() {
        assert_eq!(shown(b"caf\xe9/x"), "caf\\351/x");
        assert_eq!(
            (join(b"", b"a"), join(b"a/b", b"c"), join(b"a", b"")),
            (b"a".to_vec(), b"a/b/c".to_vec(), b"a".to_vec())
        );
    }
}
