//! Relations between packages (Debian policy 7.1), parsed and formatted as in dpkg.

use std::cmp::Ordering;
use std::fmt;

use fullbore_debian::version;

/// Longest chain of relations in one field that is taken; the largest of Debian have a few thousand.
const RELATIONS_MAX: usize = 1 << 16;

/// How a version has to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `<<`
    Earlier,
    /// `<=`
    EarlierOrEqual,
    /// `=`
    Equal,
    /// `>=`
    LaterOrEqual,
    /// `>>`
    Later,
}

/// One package named in a relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// The package.
    pub name: String,
    /// After a colon: `any`, `native` or an architecture.
    pub architecture: Option<String>,
    /// In parentheses.
    pub version: Option<(Operator, String)>,
}

/// A field: all of these, of each any.
pub type Relations = Vec<Vec<Relation>>;

impl Operator {
    fn text(self) -> &'static str {
        match self {
            Operator::Earlier => "<<",
            Operator::EarlierOrEqual => "<=",
            Operator::Equal => "=",
            Operator::LaterOrEqual => ">=",
            Operator::Later => ">>",
        }
    }

    fn admits(self, order: Ordering) -> bool {
        match self {
            Operator::Earlier => order.is_lt(),
            Operator::EarlierOrEqual => order.is_le(),
            Operator::Equal => order.is_eq(),
            Operator::LaterOrEqual => order.is_ge(),
            Operator::Later => order.is_gt(),
        }
    }
}

impl Relation {
    /// Whether a package of this name, in this version, is meant.
    pub fn names(&self, name: &str, version: &str) -> bool {
        self.name == name
            && self.version.as_ref().is_none_or(|(operator, wanted)| operator.admits(version::compare(version, wanted)))
    }

    /// Whether this relation is met by a name that a package provides: one without version meets
    /// only relations without (policy 7.5).
    pub(crate) fn provided_by(&self, provided: &Relation) -> bool {
        self.name == provided.name
            && match (&self.version, &provided.version) {
                (None, _) => true,
                (Some((operator, wanted)), Some((_, has))) => operator.admits(version::compare(has, wanted)),
                (Some(_), None) => false,
            }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)?;
        if let Some(architecture) = &self.architecture {
            write!(formatter, ":{architecture}")?;
        }
        if let Some((operator, version)) = &self.version {
            write!(formatter, " ({} {version})", operator.text())?;
        }
        Ok(())
    }
}

/// Reads a field; `None` when dpkg would not take it, or only with a warning.
pub fn parse(field: &str) -> Option<Relations> {
    let mut relations = Vec::new();
    if field.trim().is_empty() {
        return Some(relations);
    }
    for group in field.split(',') {
        let alternatives = group.split('|').map(parse_one).collect::<Option<Vec<_>>>()?;
        relations.push(alternatives);
        if relations.len() > RELATIONS_MAX {
            return None;
        }
    }
    Some(relations)
}

fn parse_one(text: &str) -> Option<Relation> {
    let text = text.trim();
    let name_end = text.find(|c: char| c.is_whitespace() || matches!(c, '(' | ':')).unwrap_or(text.len());
    let (name, mut rest) = text.split_at(name_end);
    if !is_package_name(name) {
        return None;
    }
    let mut architecture = None;
    if let Some(after) = rest.strip_prefix(':') {
        let end = after.find(|c: char| c.is_whitespace() || c == '(').unwrap_or(after.len());
        let (qualifier, left) = after.split_at(end);
        if qualifier.is_empty() || !qualifier.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return None;
        }
        architecture = Some(qualifier.to_owned());
        rest = left;
    }
    let rest = rest.trim_start();
    if rest.is_empty() {
        return Some(Relation { name: name.to_owned(), architecture, version: None });
    }
    let inner = rest.strip_prefix('(')?.strip_suffix(')')?.trim();
    let operator_end = inner.find(|c: char| !matches!(c, '<' | '=' | '>')).unwrap_or(inner.len());
    let operator = match &inner[..operator_end] {
        "<<" => Operator::Earlier,
        "<=" => Operator::EarlierOrEqual,
        "=" => Operator::Equal,
        ">=" => Operator::LaterOrEqual,
        ">>" => Operator::Later,
        // `<` and `>` are obsolete, and dpkg warns of them.
        _ => return None,
    };
    let version = normal_version(inner[operator_end..].trim())?;
    Some(Relation { name: name.to_owned(), architecture, version: Some((operator, version)) })
}

/// As dpkg writes the field.
pub fn display(relations: &Relations) -> String {
    let groups = relations.iter().map(|group| group.iter().map(Relation::to_string).collect::<Vec<_>>().join(" | "));
    groups.collect::<Vec<_>>().join(", ")
}

/// Lower-case letters, digits, `+`, `-`, `.`, and not `-` or `.` in front (dpkg takes one character names).
pub fn is_package_name(name: &str) -> bool {
    let first = name.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte))
}

/// A version as dpkg writes it: without an epoch of 0. `None` when it is no version.
pub fn normal_version(text: &str) -> Option<String> {
    let (epoch, rest) = match text.split_once(':') {
        Some((epoch, rest)) => (epoch.parse::<u32>().ok().filter(|epoch| i32::try_from(*epoch).is_ok())?, rest),
        None => (0, text),
    };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-+:~_".contains(&byte);
    if !rest.starts_with(|c: char| c.is_ascii_digit()) || !rest.bytes().all(allowed) || rest.ends_with('-') {
        return None;
    }
    // With a colon in the rest, epoch 0 must be written.
    Some(if epoch == 0 && !rest.contains(':') { rest.to_owned() } else { format!("{epoch}:{rest}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_dpkg_writes_them() {
        let field = "libc6 (>= 2.34),\n  perl:any|python3(<<3.12~) , foo( =  0:1-1 )";
        let relations = parse(field).expect("sound");
        assert_eq!(display(&relations), "libc6 (>= 2.34), perl:any | python3 (<< 3.12~), foo (= 1-1)");
        assert_eq!(parse(&display(&relations)), Some(relations));
    }

    #[test]
    fn what_dpkg_warns_of_is_left_to_dpkg() {
        for field in ["a (> 1)", "a, , b", "A", "a (>= )", "a (1)", "a (>= 1", "a b", "a:", "a (= x1)"] {
            assert_eq!(parse(field), None, "{field}");
        }
        assert_eq!(parse("  "), Some(Vec::new()));
    }

    #[test]
    fn versions_in_relations() {
        let relation = |text: &str| parse(text).expect("sound").remove(0).remove(0);
        assert!(relation("a (<< 2)").names("a", "1.9"));
        assert!(!relation("a (<< 2)").names("a", "2"));
        assert!(!relation("a").names("b", "2"));
        assert!(relation("a (>= 1)").provided_by(&relation("a (= 1)")));
        assert!(!relation("a (>= 1)").provided_by(&relation("a")));
        assert!(relation("a").provided_by(&relation("a")));
    }
}
