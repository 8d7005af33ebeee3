//! Lists of mirrors: sets of addresses that hold the same files.
//!
//! A list is plain text like apt's own mirror lists, with one address per line. An empty line ends a set: the addresses
//! of a set are mirrors of each other. Any of them may answer a request below one of them, and the address that apt
//! named counts as the origin. So mirrors of debian are never asked for debian-security, which most of them lack.
//!
//! ```text
//! # Debian
//! http://deb.example.org/debian
//! http://ftp.example.org/debian
//! https://mirror.example.org/debian
//!
//! http://deb.example.org/debian-security
//! https://mirror.example.org/debian-security
//! ```

use std::collections::HashSet;
use std::path::Path;

use fullbore_wire::auth::AuthConf;
use fullbore_wire::hosts::MAX_HOSTS;
use fullbore_wire::url::Url;

use super::settings::MIRRORS_SETTING;
use crate::acquire::Configuration;

/// Bytes of one list that are read. A guess far above real ones.
pub const LIST_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of sets in all lists. A guess: sources of more archives are rare.
const SETS_MAX: usize = 1000;

/// An invalid line of a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct MirrorListError {
    /// Number of the line in the list, counted from 1.
    pub line: usize,
    /// Why the line is left out, as a clause.
    pub reason: String,
}

/// Sets of addresses that hold the same files.
#[derive(Debug, Clone, Default)]
pub struct MirrorSets {
    sets: Vec<Vec<Url>>,
    /// Credentials that were written into addresses.
    auth: AuthConf,
}

/// A file below an address of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorPath {
    /// Number of the mirror set in [`MirrorSets`], counted from 0.
    pub set: usize,
    /// Number of the address within its set, counted from 0.
    pub member: usize,
    /// %-encoded, with a query if there is one, without a slash in front.
    pub path: String,
}

impl MirrorSets {
    /// Reads the sets of all lists that apt's configuration names (`Acquire::fullbore::Mirrors`). Lists that cannot be
    /// read and wrong lines are left out; each gets a warning. `read` reads a list.
    pub fn configured<E: std::fmt::Display>(
        configuration: &Configuration,
        read: impl Fn(&Path) -> Result<String, E>,
    ) -> (MirrorSets, Vec<String>) {
        let (mut sets, mut warnings) = (MirrorSets::default(), Vec::new());
        // unattended-upgrades reads apt's settings twice, so its lists have all values twice.
        let mut seen = HashSet::new();
        for list in configuration.list(MIRRORS_SETTING).into_iter().filter(|list| seen.insert(*list)) {
            match read(Path::new(list)) {
                Ok(text) => warnings.extend(sets.add(&text).iter().map(|error| format!("{list}: {error}"))),
                Err(error) => warnings.push(format!("cannot read {list} ({MIRRORS_SETTING}): {error}")),
            }
        }
        (sets, warnings)
    }

    /// Adds the sets of a list. Wrong lines are left out, and returned as errors.
    pub fn add(&mut self, text: &str) -> Vec<MirrorListError> {
        let mut errors = Vec::new();
        let mut set = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                self.close(&mut set);
                continue;
            }
            // apt's hints after an address are ignored: fullbore measures.
            let before_comment = line.split('#').next().unwrap_or_default();
            let Some(address) = before_comment.split_whitespace().next() else { continue };
            if let Err(reason) = self.member(&mut set, address) {
                errors.push(MirrorListError { line: number + 1, reason });
            }
        }
        self.close(&mut set);
        errors
    }

    fn member(&mut self, set: &mut Vec<Url>, address: &str) -> Result<(), String> {
        let (url, credentials) = Url::parse_with_userinfo(address).map_err(|error| error.to_string())?;
        if url.target().contains('?') {
            return Err(format!("{url}: the address of a mirror cannot have a query"));
        }
        if set.len() >= MAX_HOSTS {
            return Err(format!("{url}: more than {MAX_HOSTS} mirrors in one set"));
        }
        if self.sets.len() >= SETS_MAX {
            return Err(format!("{url}: more than {SETS_MAX} sets"));
        }
        if set.contains(&url) {
            return Ok(());
        }
        if self.sets.iter().flatten().any(|known| *known == url) {
            return Err(format!("{url}: is in another set already"));
        }
        if let Some(credentials) = credentials {
            self.auth.add_for_url(&url, &credentials).map_err(|error| error.to_string())?;
        }
        set.push(url);
        Ok(())
    }

    fn close(&mut self, set: &mut Vec<Url>) {
        if !set.is_empty() {
            self.sets.push(std::mem::take(set));
        }
    }

    /// The address with the longest path below which a file is; `None` if it is below none.
    pub fn find(&self, url: &Url) -> Option<MirrorPath> {
        let mut best: Option<(usize, MirrorPath)> = None;
        for (number, set) in self.sets.iter().enumerate() {
            for (member, address) in set.iter().enumerate().filter(|(_, address)| address.same_origin(url)) {
                let prefix = address.path().trim_end_matches('/');
                let path = url.target().strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/'));
                let Some(path) = path.filter(|path| !path.is_empty()) else { continue };
                if best.as_ref().is_none_or(|(length, _)| prefix.len() > *length) {
                    best = Some((prefix.len(), MirrorPath { set: number, member, path: path.to_owned() }));
                }
            }
        }
        best.map(|(_, place)| place)
    }

    /// The addresses of a set, this member first.
    pub fn origin_first(&self, set: usize, member: usize) -> Vec<Url> {
        let Some(urls) = self.sets.get(set) else { return Vec::new() };
        let others = urls.iter().enumerate().filter(|(number, _)| *number != member).map(|(_, url)| url);
        urls.get(member).into_iter().chain(others).cloned().collect()
    }

    /// Credentials that addresses of the lists contain.
    pub fn auth(&self) -> &AuthConf {
        &self.auth
    }

    /// Whether no list names a mirror.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIST: &str = "# Debian\n\
        http://a.example/debian\tpriority:1 type:index\n\
        # between\n\
        https://user:word@b.example/mirror/debian/\n\
        http://a.example/debian\n\
        \n\n\
        http://a.example/debian-security\n\
        \x20 http://c.example\n";

    fn sets() -> MirrorSets {
        let mut sets = MirrorSets::default();
        assert_eq!(sets.add(LIST), []);
        sets
    }

    fn found(sets: &MirrorSets, url: &str) -> Option<(usize, usize, String)> {
        sets.find(&Url::parse(url).unwrap()).map(|place| (place.set, place.member, place.path))
    }

    #[test]
    fn a_file_is_below_the_address_that_apt_named_or_any_other_of_its_set() {
        let sets = sets();
        for (url, expected) in [
            ("http://a.example/debian/dists/sid/InRelease", Some((0, 0, "dists/sid/InRelease"))),
            ("https://b.example/mirror/debian/pool/x%2by.deb?q", Some((0, 1, "pool/x%2by.deb?q"))),
            ("http://a.example/debian-security/pool/x", Some((1, 0, "pool/x"))),
            ("http://c.example/pool/x", Some((1, 1, "pool/x"))),
            ("http://a.example/debian", None),
            ("http://a.example/debian/", None),
            ("https://a.example/debian/x", None),
            ("http://a.example:81/debian/x", None),
            ("http://other.example/debian/x", None),
        ] {
            let expected = expected.map(|(set, member, path)| (set, member, path.to_owned()));
            assert_eq!(found(&sets, url), expected, "{url}");
        }
        let urls = sets.origin_first(0, 1);
        assert_eq!(urls.iter().map(Url::host_field).collect::<Vec<_>>(), ["b.example", "a.example"]);
        assert!(sets.auth().lookup(&urls[0]).is_some() && sets.auth().lookup(&urls[1]).is_none());
    }

    #[test]
    fn wrong_lines_are_told_and_the_others_used() {
        let mut sets = sets();
        let errors = sets.add("ftp://a.example/x\nhttp://d.example/\nhttp://c.example\nhttp://e.example/?a\n");
        assert_eq!(errors.iter().map(|error| error.line).collect::<Vec<_>>(), [1, 3, 4], "{errors:?}");
        assert_eq!(found(&sets, "http://d.example/x"), Some((2, 0, "x".into())));
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(text in "(http://[a-c]|/|x|:|@|#|\n| ){0,40}") {
            let mut sets = MirrorSets::default();
            sets.add(&text);
            let _ = sets.find(&Url::parse("http://a/x").unwrap());
        }
    }
}
