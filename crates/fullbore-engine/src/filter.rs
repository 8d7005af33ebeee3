//! Which names are copied: rsync's patterns (rsync(1), "FILTER RULES", "INCLUDE/EXCLUDE PATTERN RULES").
//!
//! The first rule that matches decides; a name that no rule matches is copied. An excluded directory is not entered,
//! and `--delete` leaves it alone at the destination. A pattern with a `/` at its start is anchored at the root of the
//! transfer. A pattern with a `/` or `**` in its middle is matched against the whole path, any other against the last
//! name. `*` stops at slashes, `**` does not, and `dir/***` is the directory and everything in it.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// Maximum number of rules of one copy. A guess: programs generate lists of excluded paths.
pub const RULES: usize = 100_000;

/// One rule of `--include` or `--exclude`, compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// `true` to copy matching names, `false` to leave them out.
    pub include: bool,
    /// The pattern as the user wrote it.
    pub pattern: Vec<u8>,
}

/// The rules of a copy, in order of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Filters {
    rules: Vec<Rule>,
}

impl Filters {
    /// Appends a rule. A prefix `+ ` or `- ` overrides `include`; `!` alone clears all rules. An empty pattern matches
    /// nothing and is dropped.
    pub fn push(&mut self, include: bool, text: &[u8]) {
        let (include, pattern) = match text {
            b"!" => return self.rules.clear(),
            [b'+', b' ', pattern @ ..] => (true, pattern),
            [b'-', b' ', pattern @ ..] => (false, pattern),
            pattern => (include, pattern),
        };
        if !pattern.is_empty() {
            self.rules.push(Rule { include, pattern: pattern.to_vec() });
        }
    }

    /// Appends one rule per line, as `--exclude-from` does; `end` is the byte that ends a line. Empty lines and lines
    /// that begin with `#` or `;` are comments.
    pub fn push_lines(&mut self, include: bool, text: &[u8], end: u8) {
        for line in text.split(|byte| *byte == end) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match line {
                [b'#' | b';', ..] => {}
                rule => self.push(include, rule),
            }
        }
    }

    /// Whether there are no rules, so that every path is copied.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Number of rules, in the order of the command line.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether the rules exclude a path, given relative to the root of the transfer.
    ///
    /// ```
    /// use fullbore_engine::filter::Filters;
    ///
    /// let mut filters = Filters::default();
    /// filters.push(true, b"keep.o");
    /// filters.push(false, b"*.o");
    /// filters.push(false, b"/target/");
    /// assert!(filters.excludes(b"src/main.o", false));
    /// assert!(!filters.excludes(b"src/keep.o", false));
    /// assert!(filters.excludes(b"target", true) && !filters.excludes(b"src/target", true));
    /// ```
    pub fn excludes(&self, path: &[u8], is_directory: bool) -> bool {
        let rule = self.rules.iter().find(|rule| matches(&rule.pattern, path, is_directory));
        rule.is_some_and(|rule| !rule.include)
    }
}

/// The set of paths to transfer (`--files-from`); all others are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    paths: HashSet<Vec<u8>>,
    /// Directories that are transferred with everything in them.
    contents: HashSet<Vec<u8>>,
    /// Directories above a listed path.
    above: HashSet<Vec<u8>>,
}

impl Only {
    /// Builds the set from paths relative to the root. A path with a final slash includes everything in that directory;
    /// with `recursive`, so does every directory.
    pub fn new(paths: impl IntoIterator<Item = Vec<u8>>, recursive: bool) -> Only {
        let mut only = Only::default();
        for path in paths {
            let is_directory = path.is_empty() || path.ends_with(b"/");
            let path = path.strip_suffix(b"/").unwrap_or(&path).to_vec();
            for directory in above(&path) {
                only.above.insert(directory.to_vec());
            }
            if recursive || is_directory {
                only.contents.insert(path.clone());
            }
            only.paths.insert(path);
        }
        only
    }

    /// Whether everything in a directory is transferred.
    fn has_contents(&self, path: &[u8]) -> bool {
        self.contents.contains(&b""[..])
            || self.contents.contains(path)
            || above(path).any(|one| self.contents.contains(one))
    }

    /// The listed paths, if none of them includes a whole directory; `None` otherwise.
    pub fn files(&self) -> Option<impl Iterator<Item = &[u8]>> {
        self.contents.is_empty().then(|| self.paths())
    }

    /// The listed paths, in no order.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.paths.iter().map(Vec::as_slice)
    }
}

/// The listed paths that a walk has not found yet.
#[derive(Clone, Debug, Default)]
pub struct Missing {
    paths: HashSet<Vec<u8>>,
}

impl Missing {
    /// Starts with all listed paths missing.
    pub fn of(selection: &Selection) -> Missing {
        let paths = selection.only.iter().flat_map(|only| only.paths.iter().cloned());
        // The root always exists.
        Missing { paths: paths.filter(|path| !path.is_empty()).collect() }
    }

    /// Records that a walk found a path, and so the directories above it.
    pub fn found(&mut self, path: &[u8]) {
        if !self.paths.is_empty() {
            for path in above(path).chain([path]) {
                self.paths.remove(path);
            }
        }
    }

    /// The paths that were not found, in order.
    pub fn paths(self) -> Vec<Vec<u8>> {
        let mut paths: Vec<_> = self.paths.into_iter().collect();
        paths.sort();
        paths
    }
}

/// The directories above a path, without the root.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at])
}

/// Which paths beneath a root are transferred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Rules of `--include` and `--exclude`.
    pub filters: Filters,
    /// Paths of `--files-from`; `None` for all paths.
    pub only: Option<Only>,
}

impl Selection {
    /// Whether every path is transferred.
    pub fn is_all(&self) -> bool {
        self.filters.is_empty() && self.only.is_none()
    }

    /// Whether a walk enters a directory, once it has entered all directories above it.
    pub fn enters(&self, path: &[u8]) -> bool {
        let is_wanted = self.only.as_ref().is_none_or(|only| only.above.contains(path) || only.has_contents(path));
        // No rule is asked about a directory that only leads to a listed path, as in `copy`.
        let is_on_the_way = self.only.as_ref().is_some_and(|only| only.above.contains(path));
        is_wanted && (is_on_the_way || !self.filters.excludes(path, true))
    }

    /// Whether a file is transferred, once a walk has entered all directories above it.
    pub fn takes(&self, path: &[u8]) -> bool {
        let is_wanted = self.only.as_ref().is_none_or(|only| only.paths.contains(path) || only.has_contents(path));
        is_wanted && !self.filters.excludes(path, false)
    }

    /// Whether a file is transferred, with the rules applied to all directories above it as well.
    ///
    /// ```
    /// use fullbore_engine::filter::{Filters, Selection};
    ///
    /// let mut filters = Filters::default();
    /// filters.push(false, b"cache/");
    /// let selection = Selection { filters, only: None };
    /// assert!(selection.takes_beneath(b"a/b") && !selection.takes_beneath(b"a/cache/b"));
    /// ```
    pub fn takes_beneath(&self, path: &[u8]) -> bool {
        self.is_all() || above(path).all(|directory| self.enters(directory)) && self.takes(path)
    }
}

/// Compares a pattern without a leading slash with a path or a name.
type Compare = fn(&[u8], &[u8]) -> bool;

fn matches(pattern: &[u8], path: &[u8], is_directory: bool) -> bool {
    // A backslash escapes only in a pattern with a wildcard.
    let is_wild = pattern.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['));
    let compare: Compare = if is_wild { wild } else { |pattern, text| pattern == text };
    if pattern == b"/***" {
        return true;
    }
    let (pattern, whole) = match pattern.strip_suffix(b"/***") {
        Some(directory) => (directory, true),
        None => (pattern, false),
    };
    if whole {
        // The directory itself, or a path below a directory that matches.
        let mut ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        return ends.any(|end| matches_one(pattern, &path[..end], compare))
            || is_directory && matches_one(pattern, path, compare);
    }
    match pattern.strip_suffix(b"/") {
        Some(pattern) => is_directory && matches_one(pattern, path, compare),
        None => matches_one(pattern, path, compare),
    }
}

/// Matches a pattern without a final slash.
fn matches_one(pattern: &[u8], path: &[u8], compare: Compare) -> bool {
    if let Some(anchored) = pattern.strip_prefix(b"/") {
        return compare(anchored, path);
    }
    if pattern.starts_with(b"**") {
        // `**` may match nothing, and then the slash behind it is the root's.
        return compare(pattern, &[b"/", path].concat());
    }
    let has_slash = pattern.contains(&b'/') || pattern.windows(2).any(|pair| pair == b"**");
    if !has_slash {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        return compare(pattern, name);
    }
    // Not anchored: compare with every suffix of the path that begins behind a slash.
    let starts =
        std::iter::once(0).chain(path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1));
    starts.into_iter().any(|start| compare(pattern, &path[start..]))
}

/// Maximum number of steps of one match. Patterns with several `**` are matched by backtracking, and a hostile one must
/// not take for ever. A guess, far above the need of real patterns.
const STEPS: u32 = 100_000;

fn wild(pattern: &[u8], text: &[u8]) -> bool {
    let mut steps = STEPS;
    wild_within(pattern, text, &mut steps)
}

fn wild_within(mut pattern: &[u8], mut text: &[u8], steps: &mut u32) -> bool {
    loop {
        if *steps == 0 {
            return false;
        }
        *steps -= 1;
        match pattern {
            [] => return text.is_empty(),
            [b'*', b'*', rest @ ..] => {
                let rest = &rest[rest.iter().take_while(|byte| **byte == b'*').count()..];
                return (0..=text.len()).any(|skipped| wild_within(rest, &text[skipped..], steps));
            }
            [b'*', rest @ ..] => {
                let within = text.iter().take_while(|byte| **byte != b'/').count();
                return (0..=within).any(|skipped| wild_within(rest, &text[skipped..], steps));
            }
            [b'?', rest @ ..] => match text {
                [byte, behind @ ..] if *byte != b'/' => (pattern, text) = (rest, behind),
                _ => return false,
            },
            [b'[', rest @ ..] => match (text, class(rest)) {
                ([byte, behind @ ..], Some((class, rest))) if *byte != b'/' && class.has(*byte) => {
                    (pattern, text) = (rest, behind);
                }
                _ => return false,
            },
            [b'\\', literal, rest @ ..] if text.first() == Some(literal) => (pattern, text) = (rest, &text[1..]),
            [b'\\', _, ..] => return false,
            [literal, rest @ ..] if text.first() == Some(literal) => (pattern, text) = (rest, &text[1..]),
            _ => return false,
        }
    }
}

/// A character class in brackets.
struct Class<'a> {
    inverted: bool,
    members: &'a [u8],
}

/// Parses a class and returns it with the rest of the pattern; `None` if the bracket is never closed.
fn class(text: &[u8]) -> Option<(Class<'_>, &[u8])> {
    let inverted = matches!(text.first(), Some(b'!' | b'^'));
    let text = if inverted { &text[1..] } else { text };
    // A closing bracket in the first place is a member of the class.
    let mut at = usize::from(text.first() == Some(&b']'));
    loop {
        match text.get(at)? {
            b']' => return Some((Class { inverted, members: &text[..at] }, &text[at + 1..])),
            b'[' if text.get(at + 1) == Some(&b':') => {
                let end = text[at + 2..].windows(2).position(|pair| pair == b":]");
                at += end.map_or(1, |end| end + 4);
            }
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

impl Class<'_> {
    fn has(&self, byte: u8) -> bool {
        let mut members = self.members;
        let mut found = false;
        loop {
            found |= match members {
                [] => return found != self.inverted,
                [b'[', b':', rest @ ..] if rest.windows(2).any(|pair| pair == b":]") => {
                    let end = rest.windows(2).position(|pair| pair == b":]").unwrap_or(0);
                    members = &rest[end + 2..];
                    named(&rest[..end], byte)
                }
                [b'\\', literal, rest @ ..] => {
                    members = rest;
                    *literal == byte
                }
                [low, b'-', high, rest @ ..] => {
                    members = rest;
                    (*low..=*high).contains(&byte)
                }
                [member, rest @ ..] => {
                    members = rest;
                    *member == byte
                }
            };
        }
    }
}

fn named(name: &[u8], byte: u8) -> bool {
    match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"graph" => byte.is_ascii_graphic(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"digit" => byte.is_ascii_digit(),
        b"lower" => byte.is_ascii_lowercase(),
        b"upper" => byte.is_ascii_uppercase(),
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excluded(pattern: &str, path: &str, is_directory: bool) -> bool {
        let mut filters = Filters::default();
        filters.push(false, pattern.as_bytes());
        filters.excludes(path.as_bytes(), is_directory)
    }

    #[test]
    fn patterns_match_as_rsyncs_manual_says() {
        for (pattern, path, is_directory, expected) in [
            ("*.o", "a/b.o", false, true),
            ("*.o", "a/b.c", false, false),
            ("/foo", "foo", false, true),
            ("/foo", "a/foo", false, false),
            ("foo/", "a/foo", true, true),
            ("foo/", "a/foo", false, false),
            ("foo/*/bar", "x/foo/a/bar", false, true),
            ("foo/*/bar", "foo/a/b/bar", false, false),
            ("/foo/**/bar", "foo/a/b/bar", false, true),
            ("**/bar", "a/bar", false, true),
            ("**/bar", "bar", true, true),
            ("**/bar", "rebar", false, false),
            ("**bar", "a/rebar", false, true),
            ("a**b", "x/a/y/b", false, true),
            ("a*b", "a/b", false, false),
            ("dir/***", "dir", true, true),
            ("dir/***", "x/dir/a/b", false, true),
            ("dir/***", "dir", false, false),
            ("[a-c]x", "bx", false, true),
            ("[!a-c]x", "bx", false, false),
            ("[[:digit:]_]", "_", false, true),
            ("[]x]", "]", false, true),
            ("[[:print:]]", " ", false, true),
            ("[[:graph:]]", " ", false, false),
            ("[[:graph:]]", "a", false, true),
            ("[[:blank:]]", "\t", false, true),
            ("[[:blank:]]", "x", false, false),
            ("[[:cntrl:]]", "\u{7f}", false, true),
            ("\\*", "*", false, true),
            ("\\*", "a", false, false),
            ("?", "é", false, false),
            ("a[", "a[", false, false),
            ("a\\b", "a\\b", false, true),
            ("a\\b", "ab", false, false),
            ("?\\b", "ab", false, true),
            ("/***", "a", false, true),
            ("/***", "a/b", true, true),
        ] {
            assert_eq!(excluded(pattern, path, is_directory), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let mut filters = Filters::default();
        filters.push_lines(false, b"# comment\n+ keep.log\n\n*.log\n", b'\n');
        assert!(!filters.excludes(b"a/keep.log", false) && filters.excludes(b"a/b.log", false));
        assert_eq!(filters.len(), 2);
        filters.push(false, b"!");
        assert!(filters.is_empty());
        filters.push(false, b"+ keep.log");
        filters.push(true, b"- *.log");
        assert!(!filters.excludes(b"keep.log", false) && filters.excludes(b"b.log", false));
    }

    #[test]
    fn only_listed_paths_and_contents_take_part() {
        let paths = |recursive| {
            let paths = ["a/b", "c/", "d"].map(|path| path.as_bytes().to_vec());
            let mut filters = Filters::default();
            filters.push(false, b"*.o");
            filters.push(false, b"a/");
            let only = Only::new(paths, recursive);
            assert_eq!(only.paths().count(), 3);
            Selection { filters, only: Some(only) }
        };
        let taken = |selection: &Selection| {
            let all = ["a/b", "a/x", "b", "c/e", "c/e.o", "c/f/g", "d", "d/h", "e"];
            all.into_iter().filter(|path| selection.takes_beneath(path.as_bytes())).collect::<Vec<_>>()
        };
        assert_eq!(taken(&paths(false)), ["a/b", "c/e", "c/f/g", "d"], "a is on the way");
        assert_eq!(taken(&paths(true)), ["a/b", "c/e", "c/f/g", "d", "d/h"]);
        let mut missing = Missing::of(&paths(false));
        missing.found(b"c/e");
        missing.found(b"a/b");
        assert_eq!(missing.paths(), [b"d"]);
        let all = Selection { only: Some(Only::new([b"".to_vec()], false)), ..Selection::default() };
        assert!(Missing::of(&all).paths().is_empty());
        assert_eq!(taken(&all).len(), 9);
        assert!(Selection::default().is_all() && Selection::default().takes_beneath(b"any/thing"));
    }

    #[test]
    fn a_hostile_pattern_ends() {
        let pattern = "a**".repeat(60) + "z";
        let text = "a".repeat(4000);
        assert!(!excluded(&pattern, &text, false));
    }
}
