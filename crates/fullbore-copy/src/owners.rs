//! Maps owners and groups: a number at the source to its name, and the name to a number at the destination.
//!
//! Names come from `/etc/passwd` and `/etc/group`. Users that only a directory service knows keep their numbers. Asking
//! a service needs the C library's plug-ins, which a static program cannot load.

use std::collections::{HashMap, HashSet};

use crate::id_map::{IdMap, ResolvedIdMap};

/// Most bytes read of `/etc/passwd` or `/etc/group`. A guess: a hundred thousand users.
const FILE_BYTES: u64 = 16 << 20;
/// The only version of the binary form of ACLs (`POSIX_ACL_XATTR_VERSION`). These bytes come before the entries.
const ACL_VERSION: [u8; 4] = [2, 0, 0, 0];
/// Tags of entries for named users and groups (`ACL_USER`, `ACL_GROUP`). A number follows them.
const ACL_USER: u16 = 2;
const ACL_GROUP: u16 = 8;
/// The third form of file capabilities (`VFS_CAP_REVISION_3` in `linux/capability.h`). Its last four bytes name the
/// root user of a user namespace. Then its length.
const CAPABILITY_REVISION: u8 = 3;
const CAPABILITY_BYTES: usize = 24;
/// Most distinct numbers that a peer may name. A line of either file has at least 16 bytes if the user has a home, so a
/// file of [`FILE_BYTES`] has no more users.
const OWNERS: usize = FILE_BYTES as usize / 16;

/// Names of users and groups on this machine.
#[derive(Debug)]
pub(crate) struct Names {
    by_id: HashMap<(bool, u32), Vec<u8>>,
    by_name: HashMap<(bool, Vec<u8>), u32>,
}

impl Default for Names {
    fn default() -> Names {
        let mut names = Names { by_id: HashMap::new(), by_name: HashMap::new() };
        names.read(false, &file("/etc/passwd"));
        names.read(true, &file("/etc/group"));
        names
    }
}

fn file(path: &str) -> Vec<u8> {
    use std::io::Read as _;
    let mut text = Vec::new();
    // A machine without these files has no names; numbers are then kept.
    let _ = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES).read_to_end(&mut text));
    text
}

impl Names {
    fn read(&mut self, group: bool, text: &[u8]) {
        for line in text.split(|byte| *byte == b'\n') {
            let mut fields = line.split(|byte| *byte == b':');
            let (Some(name), Some(id)) = (fields.next(), fields.nth(1)) else { continue };
            let id = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
            let Some(id) = id.filter(|_| !name.is_empty() && name.len() <= crate::entry::NAME_BYTES) else { continue };
            self.by_id.entry((group, id)).or_insert_with(|| name.to_vec());
            self.by_name.entry((group, name.to_vec())).or_insert(id);
        }
    }

    /// The name of a user or group number.
    pub(crate) fn of(&self, group: bool, id: u32) -> Option<Vec<u8>> {
        self.by_id.get(&(group, id)).cloned()
    }

    /// The number of a user or group name.
    pub(crate) fn id(&self, group: bool, name: &[u8]) -> Option<u32> {
        self.by_name.get(&(group, name.to_vec())).copied()
    }
}

/// Maps numbers of the source to numbers of this machine, where they differ.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    ids: HashMap<(bool, u32), u32>,
    /// The user's own mapping of owners and groups. It does not apply within ACLs: two users mapped to one could not
    /// both be in an ACL.
    wished: ResolvedIdMap,
    /// Results of `wished` for the numbers that have a name at the source, and for numbers without one.
    wished_ids: HashMap<(bool, u32), u32>,
    named: HashSet<(bool, u32)>,
}

impl Mapping {
    /// Adds the user's own mapping.
    ///
    /// # Errors
    /// A message that quotes the first name on a right side that this machine does not know.
    pub(crate) fn with(wished: &IdMap, names: &Names) -> Result<Mapping, String> {
        let wished = wished.resolve(|group, name| names.id(group, name))?;
        Ok(Mapping { wished, ..Mapping::default() })
    }

    /// Records the source's name for a number. Root maps to root. Returns false if the peer has named more than
    /// [`OWNERS`] numbers.
    #[must_use]
    pub(crate) fn learn(&mut self, names: &Names, group: bool, id: u32, name: &[u8]) -> bool {
        if id != 0
            && let Some(ours) = names.id(group, name)
            && ours != id
        {
            self.ids.insert((group, id), ours);
        }
        if !self.wished.is_empty() {
            self.named.insert((group, id));
            self.wished.of(group, id, name).and_then(|wished| self.wished_ids.insert((group, id), wished));
        }
        self.ids.len().max(self.named.len()) <= OWNERS
    }

    /// The number here for the owner or group of a file of the source.
    pub(crate) fn owner(&self, group: bool, id: u32) -> u32 {
        if self.wished.is_empty() {
            return self.of(group, id);
        }
        let wished = match self.named.contains(&(group, id)) {
            true => self.wished_ids.get(&(group, id)).copied(),
            false => self.wished.of(group, id, b""),
        };
        wished.unwrap_or_else(|| self.of(group, id))
    }

    /// The number here for a number of the source, without the user's own mapping.
    pub(crate) fn of(&self, group: bool, id: u32) -> u32 {
        self.ids.get(&(group, id)).copied().unwrap_or(id)
    }

    /// Rewrites an ACL with the numbers of this machine.
    pub(crate) fn acl(&self, value: &[u8]) -> Vec<u8> {
        let mut value = value.to_vec();
        if !self.ids.is_empty() && value.starts_with(&ACL_VERSION) {
            for entry in value[4..].chunks_exact_mut(8) {
                if let Some((group, id)) = named(entry) {
                    entry[4..].copy_from_slice(&self.of(group, id).to_le_bytes());
                }
            }
        }
        value
    }

    /// Rewrites file capabilities with this machine's number of their user, if they name one.
    pub(crate) fn capability(&self, value: &[u8]) -> Vec<u8> {
        let mut value = value.to_vec();
        if let Some(id) = id_in_capability(&value) {
            value[CAPABILITY_BYTES - 4..].copy_from_slice(&self.of(false, id).to_le_bytes());
        }
        value
    }
}

/// The user that file capabilities name: root of the user namespace in which they apply.
pub(crate) fn id_in_capability(value: &[u8]) -> Option<u32> {
    let is_third = value.len() == CAPABILITY_BYTES && value[3] == CAPABILITY_REVISION;
    let id = value.get(CAPABILITY_BYTES - 4..)?.try_into().ok().map(u32::from_le_bytes);
    id.filter(|_| is_third)
}

/// Users and groups that an ACL names; true for groups.
pub(crate) fn ids_in_acl(value: &[u8]) -> Vec<(bool, u32)> {
    let entries = value.strip_prefix(&ACL_VERSION).unwrap_or_default();
    entries.chunks_exact(8).filter_map(named).collect()
}

/// Parses an entry's tag, permissions and number, little-endian (`linux/posix_acl_xattr.h`). Returns the number if the
/// tag names a user or group.
fn named(entry: &[u8]) -> Option<(bool, u32)> {
    let id = u32::from_le_bytes(entry.get(4..8)?.try_into().ok()?);
    match u16::from_le_bytes(entry.get(..2)?.try_into().ok()?) {
        ACL_USER => Some((false, id)),
        ACL_GROUP => Some((true, id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_names_also_within_acls() {
        let mut names = Names { by_id: HashMap::new(), by_name: HashMap::new() };
        names.read(false, b"root:x:0:0::/root:/bin/sh\nalice:x:1001:100::/:\nbroken\n:x:5:\n");
        assert_eq!((names.of(false, 1001), names.of(true, 1001)), (Some(b"alice".to_vec()), None));
        let mut mapping = Mapping::default();
        for (id, name) in [(2000, &b"alice"[..]), (2001, b"bob"), (0, b"alice")] {
            assert!(mapping.learn(&names, false, id, name));
        }
        assert_eq!([2000, 2001, 0].map(|id| mapping.of(false, id)), [1001, 2001, 0]);
        let acl = |id: u32| {
            let mut value = ACL_VERSION.to_vec();
            value.extend_from_slice(&[1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, 2, 0, 5, 0]);
            value.extend_from_slice(&id.to_le_bytes());
            value
        };
        assert_eq!((mapping.acl(&acl(2000)), ids_in_acl(&acl(2000))), (acl(1001), vec![(false, 2000)]));
    }

    #[test]
    fn the_user_of_a_namespaced_capability_follows_its_name() {
        let mut names = Names { by_id: HashMap::new(), by_name: HashMap::new() };
        names.read(false, b"guest:x:100000:100000::/:\n");
        let mut mapping = Mapping::default();
        assert!(mapping.learn(&names, false, 200_000, b"guest"));
        let capability = |id: u32| [&[1, 0, 0, 3][..], &[0; 16], &id.to_le_bytes()].concat();
        assert_eq!(mapping.capability(&capability(200_000)), capability(100_000));
        assert_eq!(mapping.capability(&capability(300_000)), capability(300_000));
        // The second form names nobody.
        let plain = [&[1, 0, 0, 2][..], &[0x40, 0x0d, 3, 0], &[0; 12]].concat();
        assert_eq!((id_in_capability(&plain), mapping.capability(&plain)), (None, plain));
        assert_eq!(id_in_capability(b""), None);
    }

    #[test]
    fn a_source_names_no_more_numbers_than_a_passwd_file_has() {
        let mut names = Names { by_id: HashMap::new(), by_name: HashMap::new() };
        names.read(false, b"alice:x:1001:100::/:\n");
        let mut mapping = Mapping::default();
        let mut ids = 2000..u32::MAX;
        assert!((&mut ids).take(OWNERS).all(|id| mapping.learn(&names, false, id, b"alice")));
        assert!(ids.next().is_some_and(|id| !mapping.learn(&names, false, id, b"alice")));
    }
}
