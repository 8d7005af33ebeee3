//! Diversions (dpkg-divert(1)), and owners and modes that the administrator set (dpkg-statoverride(1)).

use std::collections::HashMap;

use super::{Accounts, DatabaseError, content};

/// All diversions of a root, by old and by new path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Diversions {
    /// Diverted path: new path, and the package that keeps the old one (`:` for none).
    from: HashMap<Vec<u8>, (Vec<u8>, String)>,
    /// New path: diverted path.
    to: HashMap<Vec<u8>, Vec<u8>>,
}

impl Diversions {
    /// Parses three lines per diversion: old path, new path, package or `:`.
    pub(super) fn parse(text: &str) -> Result<Diversions, DatabaseError> {
        let mut diversions = Diversions::default();
        let lines: Vec<&str> = text.lines().collect();
        for lines in lines.chunks(3) {
            let [from, to, package] = lines else {
                return Err(content("diversions", "a diversion of less than three lines".to_owned()));
            };
            diversions.from.insert(from.as_bytes().to_vec(), (to.as_bytes().to_vec(), (*package).to_owned()));
            diversions.to.insert(to.as_bytes().to_vec(), from.as_bytes().to_vec());
        }
        Ok(diversions)
    }

    /// Path of a file of a package after diversion. The package that the diversion names keeps the path.
    pub(crate) fn place<'p>(&'p self, path: &'p [u8], package: &str) -> &'p [u8] {
        match self.from.get(path) {
            Some((to, owner)) if owner != package => to,
            _ => path,
        }
    }

    /// Package that the diversion of a path names; `:` for none.
    pub(crate) fn owner(&self, path: &[u8]) -> Option<&str> {
        self.from.get(path).map(|(_, owner)| &owner[..])
    }

    /// Whether a file is diverted to this path, which no package may contain.
    pub(crate) fn is_target(&self, path: &[u8]) -> bool {
        self.to.contains_key(path)
    }
}

/// Owner, group and mode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permissions {
    /// Numeric user id.
    pub uid: u32,
    /// Numeric group id.
    pub gid: u32,
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub mode: u32,
}

/// Overrides (dpkg-statoverride(1)) of a root, by path.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides(HashMap<Vec<u8>, Permissions>);

impl Overrides {
    /// Parses lines of `USER GROUP MODE PATH`; ids are written as `#ID`.
    pub(super) fn parse(text: &str, accounts: &Accounts) -> Result<Overrides, DatabaseError> {
        let mut overrides = HashMap::new();
        for line in text.lines() {
            let wrong = || content("statoverride", format!("`{line}`"));
            let mut words = line.splitn(4, ' ');
            let (Some(user), Some(group), Some(mode), Some(path)) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                return Err(wrong());
            };
            let number = |word: &str, known: Option<u32>| match word.strip_prefix('#') {
                Some(number) => number.parse().ok(),
                None => known,
            };
            let uid = number(user, accounts.user(user.as_bytes())).ok_or_else(wrong)?;
            let gid = number(group, accounts.group(group.as_bytes())).ok_or_else(wrong)?;
            let mode = u32::from_str_radix(mode, 8).map_err(|_| wrong())? & 0o7777;
            overrides.insert(path.as_bytes().to_vec(), Permissions { uid, gid, mode });
        }
        Ok(Overrides(overrides))
    }

    /// Owner and mode that the administrator set for a path; `None` if none are set.
    pub(crate) fn get(&self, path: &[u8]) -> Option<Permissions> {
        self.0.get(path).copied()
    }
}
