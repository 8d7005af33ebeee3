//! Dependency closure of a package set.
//!
//! apt's resolver considers a package only if it is requested or Essential, or if another package depends on it or on a
//! name that it provides. Indexes reduced to these packages take apt a tenth of the time. The closure follows names
//! only and ignores versions, architectures and alternatives, so that it contains too many packages rather than too
//! few. apt then probably takes the same steps as with the whole indexes. This is not proved: apt breaks some ties by
//! the order of names. A caller that needs certainty runs apt once more with all packages, in parallel with other work.

use std::collections::HashMap;

use memchr::{memchr, memmem};

/// Start of a dependency closure, and the relations that it follows. Essential and protected packages always belong
/// to it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seeds<'a> {
    /// Names of packages, or names that packages provide.
    pub names: &'a [&'a str],
    /// Priorities of which all packages belong to the closure.
    pub priorities: &'a [&'a str],
    /// Whether the closure follows `Recommends`, as apt does by default.
    pub recommends: bool,
    /// Whether the closure follows `Suggests`, which apt does not by default.
    pub suggests: bool,
}

/// Stanza of a package.
struct Entry<'a> {
    stanza: &'a [u8],
    index: usize,
    is_reached: bool,
}

/// Returns the stanzas of the dependency closure for each index (an uncompressed `Packages` file), in the order of the
/// index. `None` if no index has one of the names: apt may interpret the name otherwise.
///
/// ```
/// use fullbore_install::{Seeds, dependency_closure};
///
/// let index = b"Package: a\nDepends: b\n\nPackage: b\n\nPackage: c\n".to_vec();
/// let seeds = Seeds { names: &["a"], ..Seeds::default() };
/// let closure = dependency_closure(std::slice::from_ref(&index), &seeds).expect("a is known");
/// assert_eq!(closure, [[&b"Package: a\nDepends: b"[..], b"Package: b"]]);
/// ```
pub fn dependency_closure<'a>(indexes: &'a [Vec<u8>], from: &Seeds<'_>) -> Option<Vec<Vec<&'a [u8]>>> {
    let mut entries: Vec<Entry<'a>> = Vec::new();
    let mut by_name: HashMap<&'a [u8], Vec<usize>> = HashMap::new();
    let mut open: Vec<usize> = Vec::new();
    for (index, text) in indexes.iter().enumerate() {
        for stanza in stanzas(text) {
            let number = entries.len();
            let mut is_wanted = false;
            for (field, value) in fields(stanza) {
                match field {
                    b"Package" => by_name.entry(value).or_default().push(number),
                    b"Provides" => {
                        names(value).for_each(|name| by_name.entry(name).or_default().push(number));
                    }
                    b"Essential" | b"Important" | b"Protected" => is_wanted |= value == b"yes",
                    b"Priority" => is_wanted |= from.priorities.iter().any(|wanted| wanted.as_bytes() == value),
                    _ => {}
                }
            }
            entries.push(Entry { stanza, index, is_reached: is_wanted });
            if is_wanted {
                open.push(number);
            }
        }
    }
    let mut follow = |name: &[u8], entries: &mut [Entry<'a>], open: &mut Vec<usize>| {
        // Each name adds its packages once.
        let Some(numbers) = by_name.get_mut(name) else { return false };
        for number in std::mem::take(numbers) {
            if !entries[number].is_reached {
                entries[number].is_reached = true;
                open.push(number);
            }
        }
        true
    };
    for name in from.names {
        if !follow(name.as_bytes(), &mut entries, &mut open) {
            return None;
        }
    }
    while let Some(number) = open.pop() {
        for (field, value) in fields(entries[number].stanza) {
            let is_followed = match field {
                b"Depends" | b"Pre-Depends" => true,
                b"Recommends" => from.recommends,
                b"Suggests" => from.suggests,
                _ => false,
            };
            if is_followed {
                for name in names(value) {
                    follow(name, &mut entries, &mut open);
                }
            }
        }
    }
    let mut reached = vec![Vec::new(); indexes.len()];
    for entry in entries.iter().filter(|entry| entry.is_reached) {
        reached[entry.index].push(entry.stanza);
    }
    Some(reached)
}

/// Stanzas of an index, without the empty lines between them.
fn stanzas(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    let between = memmem::Finder::new(b"\n\n");
    std::iter::from_fn(move || {
        loop {
            while let [b'\n', after @ ..] = rest {
                rest = after;
            }
            if rest.is_empty() {
                return None;
            }
            let end = between.find(rest).unwrap_or(rest.len());
            let stanza;
            (stanza, rest) = rest.split_at(end);
            if stanza.starts_with(b"Package:") {
                return Some(stanza);
            }
        }
    })
}

/// Names and values of the fields of a stanza; lines that start with a space continue a value.
fn fields(stanza: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = stanza;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let mut end = memchr(b'\n', rest).unwrap_or(rest.len());
            while matches!(rest.get(end + 1), Some(b' ' | b'\t')) {
                end += 1;
                end += memchr(b'\n', &rest[end..]).unwrap_or(rest.len() - end);
            }
            let line = &rest[..end];
            rest = rest.get(end + 1..).unwrap_or_default();
            if let Some(colon) = memchr(b':', line) {
                return Some((&line[..colon], line[colon + 1..].trim_ascii()));
            }
        }
        None
    })
}

/// Names in a relation between packages (Debian policy 7.1): all alternatives, without versions and architectures.
fn names(relation: &[u8]) -> impl Iterator<Item = &[u8]> {
    let names = relation.split(|byte| matches!(byte, b',' | b'|')).map(|one| {
        let one = one.trim_ascii();
        let end = one.iter().position(|byte| byte.is_ascii_whitespace() || b"(:[<".contains(byte));
        &one[..end.unwrap_or(one.len())]
    });
    names.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reached(indexes: &[&str], from: &Seeds<'_>) -> Option<Vec<Vec<String>>> {
        let indexes: Vec<Vec<u8>> = indexes.iter().map(|text| text.as_bytes().to_vec()).collect();
        let name = |stanza: &&[u8]| {
            let (_, name) = fields(stanza).next().unwrap();
            String::from_utf8_lossy(name).into_owned()
        };
        Some(dependency_closure(&indexes, from)?.iter().map(|stanzas| stanzas.iter().map(name).collect()).collect())
    }

    const ARCHIVE: &str = "\
        Package: base\nEssential: yes\nPre-Depends: awk, lib (>= 2)\n\n\
        Package: gawk\nProvides: awk\nDepends: lib:any | other [amd64]\n\n\
        Package: lib\nVersion: 2\nSuggests: docs\n\n\
        Package: mawk\nPriority: required\nProvides: awk (= 1.3),\n nawk\nRecommends: docs\n\n\
        Package: docs\n\n\
        Package: alone\nDepends: base\n";

    #[test]
    fn alternatives_and_providers_are_reached_and_nothing_else() {
        let from = Seeds::default();
        assert_eq!(reached(&[ARCHIVE], &from).unwrap(), [["base", "gawk", "lib", "mawk"]]);
        let more = "Package: other\n\nPackage: lib\nVersion: 1\n\nPackage: more\n";
        let both = reached(&[ARCHIVE, more], &Seeds { names: &["alone"], ..from }).unwrap();
        assert_eq!(both, [vec!["base", "gawk", "lib", "mawk", "alone"], vec!["other", "lib"]]);
    }

    #[test]
    fn priorities_and_weak_relations_count_if_they_are_said_to() {
        let without = "Package: a\nPriority: important\nRecommends: b\nSuggests: c\n\nPackage: b\n\nPackage: c\n";
        let from = Seeds { priorities: &["important"], ..Seeds::default() };
        assert_eq!(reached(&[without], &from).unwrap(), [["a"]]);
        let from = Seeds { recommends: true, ..from };
        assert_eq!(reached(&[without], &from).unwrap(), [["a", "b"]]);
        let from = Seeds { suggests: true, ..from };
        assert_eq!(reached(&[without], &from).unwrap(), [["a", "b", "c"]]);
    }

    #[test]
    fn a_name_that_is_nowhere_may_mean_something_else() {
        let is_known = |name| reached(&[ARCHIVE], &Seeds { names: &[name], ..Seeds::default() }).is_some();
        assert!(is_known("nawk"));
        assert!(!is_known("lib-"));
        assert!(!is_known("a.*"));
    }

    proptest! {
        /// What is reached is closed: nothing in it leads out of it.
        #[test]
        fn nothing_leads_out(edges in prop::collection::vec((0..12u8, 0..12u8, 0..3u8), 0..40)) {
            let mut text = String::new();
            for package in 0..12u8 {
                text.push_str(&format!("Package: p{package}\n"));
                let of = |kind| edges.iter().filter(move |edge| edge.0 == package && edge.2 == kind);
                let list = |kind, word: &str| of(kind).map(|edge| format!("{word}{}", edge.1)).collect::<Vec<_>>();
                text.push_str(&format!("Depends: {}\n", list(0, "p").join(" | ")));
                text.push_str(&format!("Pre-Depends: {}\n", list(1, "v").join(", ")));
                text.push_str(&format!("Provides: {}\n\n", list(2, "v").join(", ")));
            }
            let indexes = [text.into_bytes()];
            let stanzas = &dependency_closure(&indexes, &Seeds { names: &["p0"], ..Seeds::default() }).unwrap()[0];
            let named: Vec<u8> = stanzas.iter().map(|stanza| {
                let (_, name) = fields(stanza).next().unwrap();
                String::from_utf8_lossy(&name[1..]).parse().unwrap()
            }).collect();
            prop_assert!(named.is_sorted());
            for (from, to, kind) in &edges {
                let has = |package: &u8| named.contains(package);
                let provides = |edge: &&(u8, u8, u8)| edge.2 == 2 && edge.1 == *to;
                match kind {
                    0 => prop_assert!(!has(from) || has(to)),
                    1 => prop_assert!(!has(from) || edges.iter().filter(provides).all(|edge| has(&edge.0))),
                    _ => {}
                }
            }
        }

        #[test]
        fn anything_is_read(text in prop::collection::vec(prop::sample::select(b"Package: \n\t,|xDepends".to_vec()), 0..200)) {
            let _ = dependency_closure(&[text], &Seeds::default());
        }
    }
}
