//! APT's configuration as a tree: from `601 Configuration`, or from `apt-config dump`.
//!
//! Names are paths with `::` between their parts and are compared without regard to case. A name that ends in `::` adds
//! an unnamed element to a list. APT omits empty values, so an empty value and a missing one are the same here.

use std::path::PathBuf;

use super::message::{Message, percent_decode};

/// Most values of a configuration; a plain system has 400. A bound, not a measurement.
const ITEMS_MAX: usize = 200_000;

/// Most parts of one name. APT's own have 6.
const DEPTH_MAX: usize = 32;

/// Why a text is not a valid configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigurationError {
    /// A line without `=`, or not of the form `Name "value";`.
    #[error("line {line} of APT's configuration is not a value: {text:?}")]
    Line {
        /// Number of the line, counted from 1.
        line: usize,
        /// The beginning of the line.
        text: String,
    },
    /// More than 200,000 values, or a name of more than 32 parts.
    #[error("APT's configuration is too large at line {line}")]
    TooLarge {
        /// Number of the line, counted from 1.
        line: usize,
    },
}

/// A value with the values below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Node {
    /// The last part of the name; empty for elements of a list.
    name: String,
    /// The value; may be empty.
    value: String,
    children: Vec<Node>,
}

/// APT's configuration: a tree of names and values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    root: Node,
    items: usize,
}

impl Configuration {
    /// Makes a configuration without any setting.
    pub fn new() -> Configuration {
        Configuration::default()
    }

    /// Arguments for `apt-config`, whose output [`Configuration::from_dump`] reads unambiguously. In its default format
    /// a quotation mark or a line end in a value is ambiguous.
    pub const DUMP: [&str; 3] = ["dump", "--format", "%F=%V%n"];

    /// Reads a `601 Configuration` message. Values below `Binary::NAME`, where NAME is the name of the method, then
    /// replace those without that prefix.
    ///
    /// # Errors
    /// [`ConfigurationError::Line`] if a `Config-Item` is not `name=value`, [`ConfigurationError::TooLarge`] if there
    /// are too many.
    pub fn from_message(message: &Message, method: &str) -> Result<Configuration, ConfigurationError> {
        let mut configuration = Configuration::new();
        for (number, item) in message.all("Config-Item").enumerate() {
            configuration.item(number + 1, item)?;
        }
        configuration.raise(&format!("Binary::{method}"));
        Ok(configuration)
    }

    /// Reads the output of `apt-config` [`Configuration::DUMP`], or of a plain `apt-config dump`.
    ///
    /// # Errors
    /// [`ConfigurationError`] with the number of the first line that has neither format, or if there are too many
    /// items.
    pub fn from_dump(text: &str) -> Result<Configuration, ConfigurationError> {
        let mut configuration = Configuration::new();
        for (number, line) in text.lines().enumerate() {
            let line_number = number + 1;
            match line.strip_suffix("\";").and_then(|line| line.split_once(" \"")) {
                // In the other format spaces in names and values are encoded.
                Some((name, value)) => configuration.checked_set(line_number, name, value)?,
                None if line.is_empty() => {}
                None => configuration.item(line_number, line)?,
            }
        }
        Ok(configuration)
    }

    /// `name=value`, both %-encoded.
    fn item(&mut self, line: usize, item: &str) -> Result<(), ConfigurationError> {
        let (name, value) = item
            .split_once('=')
            .ok_or_else(|| ConfigurationError::Line { line, text: item.chars().take(80).collect() })?;
        self.checked_set(line, &percent_decode(name), &percent_decode(value))
    }

    fn checked_set(&mut self, line: usize, name: &str, value: &str) -> Result<(), ConfigurationError> {
        if self.items >= ITEMS_MAX || name.matches("::").count() >= DEPTH_MAX {
            return Err(ConfigurationError::TooLarge { line });
        }
        self.set(name, value);
        Ok(())
    }

    /// Sets a value; with a name that ends in `::` adds one to a list.
    pub fn set(&mut self, name: &str, value: &str) {
        self.items += 1;
        let mut node = &mut self.root;
        for part in name.split("::") {
            let known = node.children.iter().position(|child| !part.is_empty() && child.is(part));
            let at = known.unwrap_or_else(|| {
                node.children.push(Node { name: part.to_owned(), ..Node::default() });
                node.children.len() - 1
            });
            node = &mut node.children[at];
        }
        node.value = value.to_owned();
    }

    /// Moves everything below this name to the top, where it replaces existing values.
    fn raise(&mut self, name: &str) {
        let Some(branch) = self.node(name).cloned() else { return };
        self.root.take_over(branch.children);
    }

    /// The value of this name; `None` if it does not exist or is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.node(name).map(|node| node.value.as_str()).filter(|value| !value.is_empty())
    }

    /// The value of this name, or `default` if it does not exist or is empty.
    pub(crate) fn get_or<'c>(&'c self, name: &str, default: &'c str) -> &'c str {
        self.get(name).unwrap_or(default)
    }

    /// Whether the name exists, with or without a value.
    pub fn exists(&self, name: &str) -> bool {
        self.node(name).is_some()
    }

    /// A boolean as APT reads it: `no`, `false`, `without`, `off`, `disable` and 0 are false; `yes`, `true`, `with`,
    /// `on`, `enable` and 1 are true. Anything else is `default`.
    pub fn bool(&self, name: &str, default: bool) -> bool {
        self.get(name).and_then(truth).unwrap_or(default)
    }

    /// A number: decimal, hexadecimal after `0x`, or octal after `0`. Text after the number is ignored. `default` if
    /// there is no number.
    pub fn number(&self, name: &str, default: i64) -> i64 {
        self.get(name).and_then(number).unwrap_or(default)
    }

    /// The values of a list in order: the elements below the name, or the name's own value cut
    /// at its commas.
    pub fn list(&self, name: &str) -> Vec<&str> {
        let Some(node) = self.node(name) else { return Vec::new() };
        if !node.value.is_empty() {
            return node.value.split(',').map(str::trim).filter(|value| !value.is_empty()).collect();
        }
        node.children.iter().map(|child| child.value.as_str()).filter(|value| !value.is_empty()).collect()
    }

    /// The entries directly below this name, in order: names (empty in lists) and values (which may be empty). The top
    /// is the name `""`.
    pub fn children(&self, name: &str) -> impl Iterator<Item = (&str, &str)> {
        let node = if name.is_empty() { Some(&self.root) } else { self.node(name) };
        node.into_iter().flat_map(|node| &node.children).map(|child| (child.name.as_str(), child.value.as_str()))
    }

    /// The path of a file or directory. A relative value is below its parents' paths (`Dir::State::lists` below
    /// `Dir::State` below `Dir`), and all of them below `RootDir`.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        let mut values = Vec::new();
        let mut node = &self.root;
        for part in name.split("::") {
            node = node.children.iter().find(|child| child.is(part))?;
            values.push(node.value.as_str());
        }
        let mut path = values.pop().filter(|value| !value.is_empty())?.to_owned();
        for parent in values.into_iter().rev().filter(|value| !value.is_empty()) {
            if ["/", "~/", "./", "../"].iter().any(|start| path.starts_with(start)) {
                break;
            }
            path = format!("{}/{path}", parent.strip_suffix('/').unwrap_or(parent));
        }
        if path == "/dev/null" || path.starts_with("/dev/null/") {
            return Some(PathBuf::from("/dev/null"));
        }
        match self.get("RootDir") {
            Some(root) => {
                let (root, path) = (root.trim_end_matches('/'), path.trim_start_matches('/'));
                Some(PathBuf::from(format!("{root}/{path}")))
            }
            None => Some(PathBuf::from(path)),
        }
    }

    fn node(&self, name: &str) -> Option<&Node> {
        let mut node = &self.root;
        for part in name.split("::") {
            node = node.children.iter().find(|child| !part.is_empty() && child.is(part))?;
        }
        Some(node)
    }
}

impl Node {
    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// Merges these nodes: values replace, lists grow.
    fn take_over(&mut self, nodes: Vec<Node>) {
        for node in nodes {
            match self.children.iter_mut().find(|child| !node.name.is_empty() && child.is(&node.name)) {
                Some(own) => {
                    if !node.value.is_empty() {
                        own.value = node.value;
                    }
                    own.take_over(node.children);
                }
                None => self.children.push(node),
            }
        }
    }
}

/// Parses APT's words for true and false.
fn truth(value: &str) -> Option<bool> {
    let one_of = |words: &[&str]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    match value.parse::<i64>() {
        Ok(0) => Some(false),
        Ok(1) => Some(true),
        _ if one_of(&["no", "false", "without", "off", "disable"]) => Some(false),
        _ if one_of(&["yes", "true", "with", "on", "enable"]) => Some(true),
        _ => None,
    }
}

/// Parses a number as `strtol` with base 0 does.
fn number(value: &str) -> Option<i64> {
    let value = value.trim_start();
    let (negative, digits) = match value.strip_prefix(['-', '+']) {
        Some(digits) => (value.starts_with('-'), digits),
        None => (false, value),
    };
    let (base, digits) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    let magnitude = i64::from_str_radix(&digits[..end], base).ok()?;
    Some(if negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(items: &[(&str, &str)]) -> Configuration {
        let mut configuration = Configuration::new();
        for (name, value) in items {
            configuration.set(name, value);
        }
        configuration
    }

    #[test]
    fn the_message_of_apt_becomes_a_configuration() {
        let message = Message::new(601, "Configuration")
            .with("Config-Item", "APT::Sandbox::User=_apt")
            .with("Config-Item", "Acquire::Languages::=en")
            .with("Config-Item", "Acquire::Languages::=de")
            .with("Config-Item", "DPkg::Pre-Invoke::=echo%20%22a=b%22")
            .with("Config-Item", "Binary::rred::Debug::NoDropPrivs=1")
            .with("Config-Item", "Binary::http::Debug::NoDropPrivs=0");
        let configuration = Configuration::from_message(&message, "rred").unwrap();
        assert_eq!(configuration.get("apt::sandbox::user"), Some("_apt"));
        assert_eq!(configuration.list("Acquire::Languages"), ["en", "de"]);
        assert_eq!(configuration.list("DPkg::Pre-Invoke"), ["echo \"a=b\""]);
        assert!(configuration.bool("Debug::NoDropPrivs", false));
        let error = Configuration::from_message(&Message::new(601, "").with("Config-Item", "x"), "rred");
        assert!(matches!(error, Err(ConfigurationError::Line { line: 1, .. })));
    }

    #[test]
    fn both_dumps_say_the_same() {
        let plain = "APT \"\";\nAPT::Architecture \"amd64\";\nAPT::Architectures \"\";\nAPT::Architectures:: \"amd64\";\n\
                     APT::Architectures:: \"i386\";\nDPkg::Post-Invoke:: \"if [ \"$x\" = y ]; then true; fi\";\n";
        let encoded = "APT=\nAPT::Architecture=amd64\nAPT::Architectures=\nAPT::Architectures::=amd64\n\
                       APT::Architectures::=i386\n\
                       DPkg::Post-Invoke::=if%20[%20%22$x%22%20%3d%20y%20];%20then%20true;%20fi\n";
        let configuration = Configuration::from_dump(plain).unwrap();
        assert_eq!(configuration, Configuration::from_dump(encoded).unwrap());
        assert_eq!(configuration.list("APT::Architectures"), ["amd64", "i386"]);
        assert_eq!(configuration.get("APT"), None);
        assert!(configuration.exists("APT") && !configuration.exists("Acquire"));
        let below: Vec<_> = configuration.children("apt").collect();
        assert_eq!(below, [("Architecture", "amd64"), ("Architectures", "")]);
        assert!(Configuration::from_dump("nonsense\n").is_err());
    }

    #[test]
    fn lists_are_elements_or_commas() {
        let configuration = of(&[("a", "x, y,"), ("b::named", "p"), ("b::", "q"), ("c", "")]);
        assert_eq!(configuration.list("a"), ["x", "y"]);
        assert_eq!(configuration.list("b"), ["p", "q"]);
        assert_eq!(configuration.list("c"), [""; 0]);
        assert_eq!(configuration.list("d"), [""; 0]);
    }

    #[test]
    fn switches_and_numbers_mean_what_they_mean_to_apt() {
        let configuration = of(&[("a", "Off"), ("b", "enable"), ("c", "2"), ("d", "0x10"), ("e", "10s"), ("f", "-1")]);
        assert!(!configuration.bool("a", true) && configuration.bool("b", false));
        assert!(configuration.bool("c", true) && !configuration.bool("c", false));
        let numbers = ["d", "e", "f", "a"].map(|name| configuration.number(name, 7));
        assert_eq!(numbers, [16, 10, -1, 7]);
    }

    #[test]
    fn paths_lie_below_their_parents() {
        let mut configuration = of(&[
            ("Dir", "/"),
            ("Dir::State", "var/lib/apt"),
            ("Dir::State::lists", "lists/"),
            ("Dir::State::status", "/var/lib/dpkg/status"),
            ("Dir::Bin::methods", "/usr/lib/apt/methods"),
            ("Dir::Bin::methods::rred", "/usr/bin/fullbore"),
            ("Dir::Log", "/dev/null"),
            ("Dir::Log::Terminal", "term.log"),
        ]);
        let path = |configuration: &Configuration, name: &str| configuration.path(name).unwrap().display().to_string();
        assert_eq!(path(&configuration, "Dir::State::lists"), "/var/lib/apt/lists/");
        assert_eq!(path(&configuration, "Dir::State::status"), "/var/lib/dpkg/status");
        assert_eq!(path(&configuration, "Dir::Bin::Methods::RRED"), "/usr/bin/fullbore");
        assert_eq!(path(&configuration, "Dir::Log::Terminal"), "/dev/null");
        configuration.set("RootDir", "/srv/root/");
        assert_eq!(path(&configuration, "Dir::State::lists"), "/srv/root/var/lib/apt/lists/");
        assert_eq!(configuration.path("Dir::Cache"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(text in "([A-Za-z]{1,3}|::|=| \"|\";|%[0-9a-f]{0,2}|[0-9x-]{1,3}|\n){0,60}") {
            if let Ok(configuration) = Configuration::from_dump(&text) {
                for (name, _) in configuration.children("") {
                    let _ = (configuration.list(name), configuration.path(name), configuration.number(name, 0));
                }
            }
        }
    }
}
