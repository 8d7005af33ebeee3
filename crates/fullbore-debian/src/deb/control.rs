//! The control archive: `control`, maintainer scripts, conffiles, md5sums, triggers and other files for dpkg's `info`
//! directory.

use std::io::{BufReader, Read as _};

use super::{CONTROL_BYTES_MAX, Compression, DataMember, DebError, Proof, data};
use crate::tar::{Entry, Kind, Reader};

/// Maximum number of members of a control archive. dpkg knows ten; packages add a few of their own.
const FILES_MAX: usize = 256;

/// A member of the control archive, which dpkg stores in `var/lib/dpkg/info`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlFile {
    /// Name, such as `postinst` or `conffiles`.
    pub name: String,
    /// Permission bits of the member, from its tar header.
    pub mode: u32,
    /// Id and name of the owner.
    pub user: (u32, Vec<u8>),
    /// Id and name of the group.
    pub group: (u32, Vec<u8>),
    /// Whole content of the member, uncompressed.
    pub content: Vec<u8>,
}

/// Members of `control.tar`, in the order of the archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Control {
    /// All regular members of `control.tar`, `control` included.
    pub files: Vec<ControlFile>,
}

impl Control {
    /// Decompresses and reads a whole `control.tar`.
    ///
    /// # Errors
    /// [`DebError::Control`] if the archive is malformed; [`DebError::ControlFile`] for a member that is not a regular
    /// file, or has an invalid or repeated name; [`DebError::Members`] without a `control`; [`DebError::Read`] if it
    /// cannot be decompressed.
    pub fn read(packed: &[u8], compression: Compression) -> Result<Control, DebError> {
        let place = DataMember { offset: 0, bytes: packed.len() as u64, compression };
        let reader = data(packed, place, 1, Proof::Checksums)
            .map_err(|source| DebError::Read { member: "control.tar", source })?;
        // The limit is on the decompressed size, so a decompression bomb costs no more.
        let mut archive = Reader::new(BufReader::with_capacity(64 << 10, reader.take(CONTROL_BYTES_MAX)));
        let mut entry = Entry::default();
        let mut control = Control::default();
        while archive.next_entry(&mut entry).map_err(DebError::Control)? {
            let wrong =
                |what| Err(DebError::ControlFile { name: String::from_utf8_lossy(&entry.path).into_owned(), what });
            let path = entry.path.strip_prefix(b"./").unwrap_or(&entry.path);
            match entry.kind {
                Kind::Directory if matches!(path, b"." | b"") => continue,
                Kind::File if !entry.sparse => {}
                _ => return wrong("only regular files belong here"),
            }
            let Ok(name) = std::str::from_utf8(path) else { return wrong("not a name for dpkg's info directory") };
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
            if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
                return wrong("not a name for dpkg's info directory");
            }
            if control.file(name).is_some() {
                return wrong("twice");
            }
            if control.files.len() == FILES_MAX {
                return wrong("more members than any package has");
            }
            let name = name.to_owned();
            let mut content = Vec::new();
            while let Some(chunk) = archive.chunk().map_err(DebError::Control)? {
                content.extend_from_slice(chunk.bytes);
                let count = chunk.bytes.len();
                archive.consume(count);
            }
            control.files.push(ControlFile {
                name,
                mode: entry.mode,
                user: (entry.uid, entry.user.clone()),
                group: (entry.gid, entry.group.clone()),
                content,
            });
        }
        match control.file("control") {
            Some(_) => Ok(control),
            None => Err(DebError::Members("control.tar has no `control`")),
        }
    }

    /// Finds a member by its name.
    pub fn file(&self, name: &str) -> Option<&ControlFile> {
        self.files.iter().find(|file| file.name == name)
    }

    /// Content of a member; empty if there is no such member.
    pub fn content(&self, name: &str) -> &[u8] {
        self.file(name).map_or(&[], |file| &file.content)
    }

    /// Content of the member `control` (deb-control(5)).
    pub fn stanza(&self) -> &[u8] {
        self.content("control")
    }
}
