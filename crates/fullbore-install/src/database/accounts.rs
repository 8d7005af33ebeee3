//! Ids of users and groups, from the root's own `passwd` and `group`.
//!
//! Archives have names and ids; dpkg uses the id of the name if the root knows it, otherwise the id in the archive.

use std::collections::HashMap;

use super::{DatabaseError, Permissions};
use crate::root::Root;

/// Ids of users and groups by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accounts {
    users: HashMap<Vec<u8>, u32>,
    groups: HashMap<Vec<u8>, u32>,
}

impl Accounts {
    /// Reads `etc/passwd` and `etc/group`; a root without them has no names.
    ///
    /// # Errors
    /// [`DatabaseError::Root`] if a file exists and cannot be read.
    pub(crate) fn read(root: &Root) -> Result<Accounts, DatabaseError> {
        let users = parse(&root.read("etc/passwd")?.unwrap_or_default());
        let groups = parse(&root.read("etc/group")?.unwrap_or_default());
        Ok(Accounts { users, groups })
    }

    /// User id by name; `None` if `etc/passwd` does not have the name.
    pub(crate) fn user(&self, name: &[u8]) -> Option<u32> {
        self.users.get(name).copied()
    }

    /// Group id by name; `None` if `etc/group` does not have the name.
    pub(crate) fn group(&self, name: &[u8]) -> Option<u32> {
        self.groups.get(name).copied()
    }

    /// Owner and mode of a file of an archive: the id of a known name, otherwise the id in the archive.
    pub(crate) fn permissions(&self, mode: u32, user: (&[u8], u32), group: (&[u8], u32)) -> Permissions {
        let (uid, gid) = (self.user(user.0).unwrap_or(user.1), self.group(group.0).unwrap_or(group.1));
        Permissions { uid, gid, mode }
    }
}

/// Parses lines `NAME:PASSWORD:ID:…`; the first line of a name counts, as in the C library.
fn parse(text: &[u8]) -> HashMap<Vec<u8>, u32> {
    let mut numbers = HashMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b':');
        let (Some(name), _, Some(number)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
        if let Some(number) = number.filter(|_| !name.is_empty()) {
            numbers.entry(name.to_vec()).or_insert(number);
        }
    }
    numbers
}
