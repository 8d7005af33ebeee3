//! Changed owners and groups: `--usermap`, `--groupmap` and `--chown`, in rsync's syntax.
//!
//! The left side of a rule has names and numbers of the source, the right side those of the destination.

use serde::{Deserialize, Serialize};

use crate::filter::Filters;

/// Rules that map owners and groups. The first rule that matches a user or group decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdMap {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Rule {
    /// Whether the rule is for groups; else it is for users.
    group: bool,
    from: From,
    /// The name or number at the destination.
    to: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum From {
    /// A name, or a pattern of names; empty matches numbers without a name.
    Name(Vec<u8>),
    /// A range of numbers, both ends included.
    Ids(u32, u32),
}

impl IdMap {
    /// Whether there are no rules, so that owners and groups are kept.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether there is a rule for groups (`group`), or for users (not `group`).
    pub fn is_of(&self, group: bool) -> bool {
        self.rules.iter().any(|rule| rule.group == group)
    }

    /// Adds rules in the syntax of `--usermap` and `--groupmap`: `FROM:TO`, separated by commas.
    ///
    /// # Errors
    /// A sentence that quotes the first rule without a colon, or with nothing after the colon. The rules before it have
    /// been added.
    pub fn add(&mut self, group: bool, text: &str) -> Result<(), String> {
        for part in text.split(',') {
            let (from, to) = part.split_once(':').ok_or_else(|| format!("`{part}`: expected FROM:TO"))?;
            if to.is_empty() {
                return Err(format!("`{part}`: no name follows the colon"));
            }
            let from =
                ids(from).map_or_else(|| From::Name(from.as_bytes().to_vec()), |(low, high)| From::Ids(low, high));
            self.rules.push(Rule { group, from, to: to.as_bytes().to_vec() });
        }
        Ok(())
    }

    /// Adds the rules of `--chown`: `USER:GROUP`, `USER`, `USER:` or `:GROUP`.
    pub fn own(&mut self, text: &str) {
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        for (is_group, to) in [(false, user), (true, group)] {
            if !to.is_empty() {
                let to = to.as_bytes().to_vec();
                self.rules.push(Rule { group: is_group, from: From::Name(b"*".to_vec()), to });
            }
        }
    }

    /// Replaces names on the right by their numbers at the destination. `id` looks up a group (true) or user by name.
    ///
    /// # Errors
    /// A message that quotes the first name on the right that is neither known to `id` nor a number.
    pub(crate) fn resolve(&self, id: impl Fn(bool, &[u8]) -> Option<u32>) -> Result<ResolvedIdMap, String> {
        let resolve = |rule: &Rule| {
            let number = || std::str::from_utf8(&rule.to).ok().and_then(|number| number.parse().ok());
            let what = if rule.group { "group" } else { "user" };
            let to = id(rule.group, &rule.to).or_else(number);
            let to =
                to.ok_or_else(|| format!("{}: no such {what} at the destination", crate::entry::shown(&rule.to)))?;
            let names = match &rule.from {
                From::Name(pattern) => {
                    let mut names = Filters::default();
                    names.push(false, pattern);
                    Some(names)
                }
                From::Ids(..) => None,
            };
            Ok(ResolvedRule { rule: rule.clone(), names, to })
        };
        self.rules.iter().map(resolve).collect::<Result<_, _>>().map(|rules| ResolvedIdMap { rules })
    }
}

/// Parses a number, or a range such as `1000-1999`.
fn ids(text: &str) -> Option<(u32, u32)> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(low) || !is_number(high) {
        return None;
    }
    Some((low.parse().ok()?, high.parse().ok()?))
}

/// Rules whose right sides are numbers of the destination.
#[derive(Debug, Default)]
pub(crate) struct ResolvedIdMap {
    rules: Vec<ResolvedRule>,
}

#[derive(Debug)]
struct ResolvedRule {
    rule: Rule,
    /// Pattern for the names on the left; `None` if the left side has numbers.
    names: Option<Filters>,
    to: u32,
}

impl ResolvedIdMap {
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The number at the destination for a number of the source that has this name there; `None` if no rule matches.
    pub(crate) fn of(&self, group: bool, id: u32, name: &[u8]) -> Option<u32> {
        let matches = |resolved: &&ResolvedRule| {
            resolved.rule.group == group
                && match (&resolved.rule.from, &resolved.names) {
                    (From::Ids(low, high), _) => (*low..=*high).contains(&id),
                    (From::Name(pattern), _) if pattern.is_empty() || name.is_empty() => {
                        pattern == name || pattern == b"*"
                    }
                    (From::Name(_), names) => names.as_ref().is_some_and(|names| names.excludes(name, false)),
                }
        };
        self.rules.iter().find(matches).map(|resolved| resolved.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(group: bool, name: &[u8]) -> Option<u32> {
        match (group, name) {
            (false, b"www") => Some(33),
            (true, b"staff") => Some(50),
            _ => None,
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let mut map = IdMap::default();
        map.add(false, "0-99:www,alice:1,b*:2,:3,*:4").unwrap();
        map.add(true, "users:staff").unwrap();
        let map = map.resolve(here).unwrap();
        for (group, id, name, to) in [
            (false, 7, "alice", Some(33)),
            (false, 1000, "alice", Some(1)),
            (false, 1001, "bob", Some(2)),
            (false, 1002, "", Some(3)),
            (false, 1003, "carol", Some(4)),
            (true, 100, "users", Some(50)),
            (true, 101, "other", None),
        ] {
            assert_eq!(map.of(group, id, name.as_bytes()), to, "{id} {name}");
        }
    }

    #[test]
    fn an_owner_for_everything_is_one_for_numbers_without_names_too() {
        for (text, user, group) in [
            ("www:staff", Some(33), Some(50)),
            ("www", Some(33), None),
            (":staff", None, Some(50)),
            ("12:", Some(12), None),
        ] {
            let mut map = IdMap::default();
            map.own(text);
            let map = map.resolve(here).unwrap();
            assert_eq!((map.of(false, 0, b"root"), map.of(true, 7, b"")), (user, group), "{text}");
        }
    }

    #[test]
    fn names_that_the_destination_does_not_know_are_an_error() {
        let mut map = IdMap::default();
        map.own("nobody-of-this-name");
        assert!(map.resolve(here).unwrap_err().contains("no such user"));
        assert!(IdMap::default().add(false, "alice").is_err() && IdMap::default().add(false, "alice:").is_err());
    }
}
