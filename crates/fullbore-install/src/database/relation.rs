//! Relations between packages (Debian policy 7.1), parsed and formatted as in dpkg.

use std::cmp::Ordering;
use std::fmt;

use fullbore_debian::version;

/// Maximum number of groups in a field that is parsed. The largest fields of Debian have a few thousand.
const RELATIONS_MAX: usize = 1 << 16;

/// Comparison of a version with the version of a relation.
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
    /// Name of the package, or of a virtual package.
    pub name: String,
    /// Qualifier after the colon: `any`, `native` or an architecture.
    pub architecture: Option<String>,
    /// Required comparison and version, in parentheses in the field.
    pub version: Option<(Operator, String)>,
}

/// Relations of one field: all groups must be met, and each group by any of its alternatives.
pub(crate) type Relations = Vec<Vec<Relation>>;

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
    /// Whether a package of this name and version fulfils the relation.
    pub fn names(&self, name: &str, version: &str) -> bool {
        self.name == name
            && self.version.as_ref().is_none_or(|(operator, wanted)| operator.admits(version::compare(version, wanted)))
    }

    /// Whether a name that a package provides fulfils this relation. A name provided without a version fulfils only
    /// relations without a version (policy 7.5).
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

/// Parses a relation field; `None` if dpkg would reject it, or accept it only with a warning.
pub(crate) fn parse(field: &str) -> Option<Relations> {
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

/// Formats the relations as dpkg writes the field.
pub(crate) fn display(relations: &Relations) -> String {
    let groups = relations.iter().map(|group| group.iter().map(Relation::to_string).collect::<Vec<_>>().join(" | "));
    groups.collect::<Vec<_>>().join(", ")
}

/// Whether a name has only lower-case letters, digits, `+`, `-` and `.`, and begins with a letter or a digit. Unlike
/// policy 5.6.1, dpkg accepts names of one character.
pub(crate) fn is_package_name(name: &str) -> bool {
    let first = name.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte))
}

/// A version as dpkg writes it, without an epoch of 0. `None` if the text is not a version.
pub(crate) fn normal_version(text: &str) -> Option<String> {
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
    fn relations_are_written_as_dpkg_writes_them() {
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
    fn relations_name_the_versions_that_fulfil_them() {
        let relation = |text: &str| parse(text).expect("sound").remove(0).remove(0);
        assert!(relation("a (<< 2)").names("a", "1.9"));
        assert!(!relation("a (<< 2)").names("a", "2"));
        assert!(!relation("a").names("b", "2"));
        assert!(relation("a (>= 1)").provided_by(&relation("a (= 1)")));
        assert!(!relation("a (>= 1)").provided_by(&relation("a")));
        assert!(relation("a").provided_by(&relation("a")));
    }
}
