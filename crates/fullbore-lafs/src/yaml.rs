//! The part of YAML that the files of a Tahoe-LAFS node use: maps, lists and texts.
//!
//! The stock client writes them with a YAML library and no tags. Scalars stay texts: the caller knows what they should
//! be. Nesting and size are bounded, and repeated parts (aliases) refused, since announcements come from the network.

use saphyr_parser::{Event, Parser};

/// Most values in one document. A grid of 10,000 servers has some 300,000.
const VALUES_MAX: usize = 2_000_000;

/// Most levels of maps and lists. A list of announcements has 5.
const DEPTH_MAX: usize = 32;

/// A value of a YAML document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Yaml {
    /// A scalar of any type.
    Text(String),
    /// A list of values.
    List(Vec<Yaml>),
    /// A map, in the order of the file.
    Map(Vec<(Yaml, Yaml)>),
}

/// Why a text cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum YamlError {
    /// Not YAML.
    #[error("not YAML: {reason}")]
    Syntax {
        /// The parser's error.
        reason: String,
    },
    /// Too many values or levels.
    #[error("more than {VALUES_MAX} values, or {DEPTH_MAX} levels of them")]
    TooLarge,
    /// An alias, which refers to another part.
    #[error("aliases (*name) are not supported: repeat the part")]
    Alias,
}

impl Yaml {
    /// Parses the first document; an empty text gives an empty [`Yaml::Text`].
    ///
    /// # Errors
    /// [`YamlError::Syntax`] if the text is not YAML; [`YamlError::Alias`] for an alias; [`YamlError::TooLarge`] for
    /// too many values or levels.
    pub(crate) fn parse(text: &str) -> Result<Yaml, YamlError> {
        // Open maps and lists, with the key that waits for its value.
        let mut open: Vec<(Yaml, Option<Yaml>)> = Vec::new();
        let mut values = 0;
        for event in Parser::new_from_str(text) {
            let (event, _) = event.map_err(|error| YamlError::Syntax { reason: error.to_string() })?;
            let done = match event {
                Event::Scalar(text, ..) => Yaml::Text(text.into_owned()),
                Event::SequenceStart(..) | Event::MappingStart(..) if open.len() >= DEPTH_MAX => {
                    return Err(YamlError::TooLarge);
                }
                Event::SequenceStart(..) => {
                    open.push((Yaml::List(Vec::new()), None));
                    continue;
                }
                Event::MappingStart(..) => {
                    open.push((Yaml::Map(Vec::new()), None));
                    continue;
                }
                Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                    Some((value, _)) => value,
                    None => continue,
                },
                Event::Alias(_) => return Err(YamlError::Alias),
                Event::DocumentEnd | Event::StreamEnd => break,
                _ => continue,
            };
            values += 1;
            if values > VALUES_MAX {
                return Err(YamlError::TooLarge);
            }
            match open.last_mut() {
                None => return Ok(done),
                Some((Yaml::List(list), _)) => list.push(done),
                Some((Yaml::Map(map), key)) => match key.take() {
                    None => *key = Some(done),
                    Some(key) => map.push((key, done)),
                },
                Some((Yaml::Text(_), _)) => {}
            }
        }
        Ok(Yaml::Text(String::new()))
    }

    /// The value of a key, if this is a map that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Yaml> {
        self.entries().iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
    }

    /// The text, if this is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Yaml::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The list; empty if this is not one.
    pub(crate) fn list(&self) -> &[Yaml] {
        match self {
            Yaml::List(list) => list,
            _ => &[],
        }
    }

    /// Keys and values; empty if this is not a map.
    pub(crate) fn entries(&self) -> &[(Yaml, Yaml)] {
        match self {
            Yaml::Map(map) => map,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn files_that_a_node_writes_are_read() {
        let text = "- ann:\n    anonymous-storage-NURLs:\n    - pb://x@h:1/s#v=1\n    nickname: ''\n    n: 5\n  key_s: v0-abc\n- {}\n";
        let yaml = Yaml::parse(text).unwrap();
        let first = &yaml.list()[0];
        assert_eq!(first.get("key_s").and_then(Yaml::text), Some("v0-abc"));
        let ann = first.get("ann").unwrap();
        assert_eq!(ann.get("anonymous-storage-NURLs").unwrap().list()[0].text(), Some("pb://x@h:1/s#v=1"));
        assert_eq!((ann.get("nickname").and_then(Yaml::text), ann.get("other")), (Some(""), None));
        assert_eq!(Yaml::parse("").unwrap(), Yaml::Text(String::new()));
    }

    #[test]
    fn what_could_grow_without_bound_is_refused() {
        assert_eq!(Yaml::parse("a: &x [1, 2]\nb: *x\n"), Err(YamlError::Alias));
        assert!(Yaml::parse(&"[".repeat(100)).is_err());
        assert_eq!(Yaml::parse(&format!("{}1{}", "[".repeat(100), "]".repeat(100))), Err(YamlError::TooLarge));
        assert!(Yaml::parse("a: [1").is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(text in "[-:a-z{}\\[\\], \n\"'&*|>#!?]{0,60}") {
            let _ = Yaml::parse(&text);
        }
    }
}
