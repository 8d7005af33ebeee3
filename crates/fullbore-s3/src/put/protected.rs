//! Rules for `--delete`: the objects that it must keep, and those that it may always delete.

use std::collections::HashSet;
use std::path::Path;

use fullbore_engine::filter::Selection;
use fullbore_engine::tree::is_unfinished;

/// Protected names: each protects the key of that name and all keys below it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Protected(HashSet<String>);

impl Protected {
    /// Protects a path below the source directory. A name that is not UTF-8 may have any name in the bucket, so its
    /// directory is protected.
    pub(crate) fn add(&mut self, beneath: &str, relative: &Path) {
        let bytes = relative.as_os_str().as_encoded_bytes();
        let known = match std::str::from_utf8(bytes) {
            Ok(name) => name,
            Err(error) => {
                let valid = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
                valid.rsplit_once('/').map_or("", |(directory, _)| directory)
            }
        };
        let key = format!("{beneath}{known}");
        self.0.insert(key.trim_end_matches('/').to_owned());
    }

    /// Protects a path if it has a certain key; other paths are ignored.
    pub(crate) fn add_known(&mut self, beneath: &str, relative: &Path) {
        if relative.to_str().is_some() {
            self.add(beneath, relative);
        }
    }

    /// Whether this key is protected.
    pub(crate) fn covers(&self, key: &str) -> bool {
        self.0.contains("") || self.0.contains(key) || key.match_indices('/').any(|(at, _)| self.0.contains(&key[..at]))
    }
}

/// Rules for keys below the prefix that are not files of the source.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// Names that were left out or could not be read.
    pub left_out: Protected,
    /// Snapshots of mirrors.
    pub snapshots: Protected,
    /// Roots of mirrors.
    pub mirrors: Protected,
    /// Name of the directory in which a mirror keeps its private state; empty if there is none.
    pub state: String,
    /// Names selected by the user; all others are kept.
    pub selection: Selection,
}

/// Classes of an object that is not a file of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Classification {
    /// Keep it: the source may have it.
    Kept,
    /// Private state of a mirror.
    Private,
    /// The source does not have it.
    Absent,
}

impl Rules {
    /// Classifies a key; `relative` is the key below the prefix.
    pub(crate) fn classify(&self, key: &str, relative: &str) -> Classification {
        let (directories, name) = relative.rsplit_once('/').unwrap_or(("", relative));
        let is_state = !self.state.is_empty() && directories.split('/').any(|part| part == self.state);
        // Unselected names stay, including private state: it may be that of another run's mirror.
        let is_selected = self.selection.takes_beneath(relative.as_bytes());
        if self.snapshots.covers(key) || !is_selected {
            Classification::Kept
        } else if is_state || is_unfinished(name) && self.mirrors.covers(key) && !self.left_out.0.contains(key) {
            Classification::Private
        } else if self.left_out.covers(key) {
            Classification::Kept
        } else {
            Classification::Absent
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_name_protects_itself_and_all_beneath() {
        let mut rules = Rules { state: ".fullbore".into(), ..Rules::default() };
        rules.left_out.add("p/", Path::new("dists/stable"));
        rules.left_out.add("p/", Path::new("films/a.part"));
        rules.left_out.add("p/", Path::new(OsStr::from_bytes(b"x/y\xff/z")));
        rules.snapshots.add("p/", Path::new("snapshots"));
        rules.mirrors.add("p/", Path::new(""));
        let table = [
            ("dists/stable", Classification::Kept),
            ("dists/stable/main/Packages", Classification::Kept),
            ("dists/stable-updates/Release", Classification::Absent),
            ("dists/stabl", Classification::Absent),
            ("x/other", Classification::Kept),
            ("xx", Classification::Absent),
            ("snapshots/s/.a.part", Classification::Kept),
            (".fullbore/log", Classification::Private),
            ("dists/stable/.fullbore/log", Classification::Private),
            (".fullbore", Classification::Absent),
            ("pool/.a.part", Classification::Private),
            ("pool/a.part", Classification::Private),
            ("pool/.part", Classification::Absent),
            ("films/a.part", Classification::Kept),
            ("dists/stable/", Classification::Kept),
        ];
        for (name, class) in table {
            assert_eq!(rules.classify(&format!("p/{name}"), name), class, "{name}");
        }
        let mut all = Protected::default();
        all.add("", Path::new(OsStr::from_bytes(b"\xff")));
        assert!(all.covers("anything"));
        let mut none = Protected::default();
        none.add_known("", Path::new(OsStr::from_bytes(b"a\xff")));
        assert!(!none.covers("anything"), "a mirror's name that is no key opens no other");
    }

    #[test]
    fn private_state_that_the_patterns_leave_out_stays() {
        let mut rules = Rules { state: ".fullbore".into(), ..Rules::default() };
        rules.mirrors.add("p/", Path::new(""));
        rules.mirrors.add("p/", Path::new("debian"));
        rules.left_out.add("p/", Path::new("debian"));
        rules.selection.filters.push(false, b"/debian/");
        rules.selection.filters.push(false, b"*.log");
        let table = [
            ("debian/.fullbore/files", Classification::Kept),
            ("debian/pool/.a.deb.part", Classification::Kept),
            ("debian/pool/a.deb", Classification::Kept),
            (".fullbore/x.log", Classification::Kept),
            (".fullbore/files", Classification::Private),
            ("ubuntu/.fullbore/files", Classification::Private),
            ("ubuntu/a.deb", Classification::Absent),
        ];
        for (name, class) in table {
            assert_eq!(rules.classify(&format!("p/{name}"), name), class, "{name}");
        }
    }

    proptest! {
        #[test]
        fn nothing_beneath_a_name_left_out_is_absent(
            left_out in prop::collection::vec("[ab]{1,2}(/[ab]{1,2}){0,2}", 0..4),
            keys in prop::collection::vec("[ab]{1,2}(/[ab]{1,2}){0,4}", 0..20),
        ) {
            let mut rules = Rules::default();
            left_out.iter().for_each(|name| rules.left_out.add("q/", Path::new(name)));
            for key in keys {
                let is_beneath = left_out.iter().any(|name| Path::new(&key).starts_with(name));
                let expected = if is_beneath { Classification::Kept } else { Classification::Absent };
                prop_assert_eq!(rules.classify(&format!("q/{}", key), &key), expected);
            }
        }
    }
}
