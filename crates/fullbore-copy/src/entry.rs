//! The entries of a tree as the sender listed them: one [`Entry`] per name, without its content.

/// Longest name of one file, in bytes: Linux' `NAME_MAX`, which no file system there exceeds.
pub const NAME_BYTES: usize = 255;
/// Longest path, and longest text of a symbolic link, in bytes: Linux' `PATH_MAX`.
pub const PATH_BYTES: usize = 4096;
/// Longest value of an extended attribute, in bytes: Linux' `XATTR_SIZE_MAX`.
pub(crate) const XATTR_BYTES: usize = 64 << 10;
/// Most extended attributes of one file. Linux limits the list of their names to 64 KiB (`XATTR_LIST_MAX`). This bound
/// assumes names of 16 bytes on average; files with thousands of shorter names do not occur in practice.
pub(crate) const XATTRS: usize = 4096;
/// Most bytes in all extended attributes of one file. A guess: common file systems hold 64 KiB to 128 KiB.
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
    /// Whether mknod(2) makes it: a named pipe, a socket or a device.
    pub fn is_special(self) -> bool {
        matches!(self, Kind::Fifo | Kind::Socket | Kind::Character | Kind::Block)
    }

    /// Whether it is a character or block device.
    pub(crate) fn is_device(self) -> bool {
        matches!(self, Kind::Character | Kind::Block)
    }

    /// Returns the type in the mode of a stat(2), or `None` if the mode has an unknown type.
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

/// A time of a file: seconds and nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Whole seconds since 1970-01-01 UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, from 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// Identifies a file of the source and its state. If any field differs, the receiver discards the part of the file that
/// an earlier run kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device number of its file system.
    pub device: u64,
    /// Inode number of the file at the source.
    pub inode: u64,
    /// Time of the last change of content or attributes (`st_ctime`).
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
    /// Permission, set-id and sticky bits: the low twelve bits of `st_mode`.
    pub mode: u32,
    /// Number of the owner at the source.
    pub user: u32,
    /// Number of the group at the source.
    pub group: u32,
    /// Time of the last change of content.
    pub modified: Time,
    /// Length of the content in bytes; 0 for entries that are not regular files.
    pub size: u64,
    /// Bytes of content that a sparse file has on its disk; `None` for files without holes.
    pub stored: Option<u64>,
    /// Device, inode and change time; all zero for directories.
    pub identity: Identity,
    /// Number of a group of hard links. All names of one file share it; the first one that is listed carries the
    /// content.
    pub link_group: Option<u64>,
    /// Target of a symbolic link; empty for other entries.
    pub target: Vec<u8>,
    /// Major and minor number of a device; zeros for other entries.
    pub device: (u32, u32),
    /// Extended attributes, ACLs among them, sorted by name.
    pub xattrs: Xattrs,
}

impl Entry {
    /// Most bytes of content that have to be transferred: `stored` for sparse files, else `size`.
    pub fn content_bytes(&self) -> u64 {
        self.stored.map_or(self.size, |stored| stored.min(self.size))
    }

    /// Bytes of memory that the entry takes, for bounds on lists.
    pub(crate) fn memory_bytes(&self) -> usize {
        let xattr = |(name, value): &(Vec<u8>, Vec<u8>)| size_of::<(Vec<u8>, Vec<u8>)>() + name.len() + value.len();
        let xattrs: usize = self.xattrs.iter().map(xattr).sum();
        size_of::<Entry>() + self.name.len() + self.target.len() + xattrs
    }

    /// An entry with zeros and empty fields, for callers that set the rest.
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

/// Whether this can be the name of one directory entry: 1 to [`NAME_BYTES`] bytes, no `/`, no NUL, not `.` or `..`.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Whether this is a path below a root: names separated by single slashes. The empty path is the root itself.
pub fn is_path(path: &[u8]) -> bool {
    path.is_empty() || path.len() < PATH_BYTES && path.split(|byte| *byte == b'/').all(is_name)
}

/// Joins a directory and a name with a slash. At the root (`directory` is empty) the name stands alone.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !directory.is_empty() && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Formats a path for messages. Bytes that are not UTF-8 appear as octal escapes such as `\377`.
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
