//! The settings file, `/etc/fullbore/mirror.toml`.
//!
//! Keys are the flags without their dashes. A list may be a single value. Each
//! `[mirror.NAME]` is one mirror; `[defaults]` holds for all of them. A key that
//! is not known is an error that names the nearest one: a misspelt `max-delete`
//! must not be found out by its absence.
//!
//! ```toml
//! [defaults]
//! limit-rate = "20M"
//!
//! [mirror.debian]
//! from = ["https://deb.example.org/debian", "https://ftp.example.org/debian"]
//! suite = ["trixie", "trixie-updates"]
//! component = "main"
//! arch = ["amd64", "all", "source"]
//! to = "/srv/mirror/debian"
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fullbore_engine::durability::Durability;
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::read_text;
use fullbore_mirror::{Filter, IndexFormat, Kind};
use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::values::{Percent, Rate};
use crate::cli::{Aliases, StoreLock, for_key};

/// Largest settings file read. A guess: a thousand mirrors.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The file as written.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SettingsFile {
    /// Holds for every mirror that does not say otherwise.
    pub defaults: Section,
    /// The mirrors by name.
    pub mirror: BTreeMap<String, Section>,
}

/// One `[mirror.NAME]` section; nothing is resolved yet.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each field is the flag of the same name, documented in cli.rs")]
pub struct Section {
    pub from: List<String>,
    pub suite: List<String>,
    pub component: List<String>,
    pub arch: List<String>,
    pub sources: Option<PathBuf>,
    pub to: Option<PathBuf>,
    pub snapshot: Option<String>,
    pub snapshot_full: Option<bool>,
    pub include: List<Filter>,
    pub exclude: List<Filter>,
    pub section: List<String>,
    pub priority: List<String>,
    pub source_package: List<String>,
    pub newest: Option<u32>,
    pub index_formats: List<IndexFormat>,
    pub without: List<Kind>,
    pub languages: List<String>,
    pub keyring: List<PathBuf>,
    pub trusted: Option<bool>,
    pub cacert: Option<PathBuf>,
    pub ignore_valid_until: Option<bool>,
    pub ignore_missing: Option<bool>,
    pub max_delete: Option<Percent>,
    pub force_delete: Option<bool>,
    pub clean_foreign: Option<bool>,
    pub no_clean: Option<bool>,
    pub keep_generations: Option<u32>,
    pub keep_hours: Option<u32>,
    pub durability: Option<Durability>,
    pub trace_host: Option<String>,
    pub trace_info: List<String>,
    pub limit_rate: Option<Rate>,
    pub connections: Option<u16>,
    pub http1: Option<bool>,
    pub no_hedge: Option<bool>,
    pub auth: Option<PathBuf>,
    pub origin: Option<String>,
    pub origin_only: Option<bool>,
    pub endpoint: Option<String>,
    pub region: Option<String>,
    pub profile: Option<String>,
    pub no_sign_request: Option<bool>,
    pub aliases: Option<Aliases>,
    pub cache_control: Option<String>,
    pub lock: Option<StoreLock>,
    pub state: Option<PathBuf>,
    pub scratch: Option<PathBuf>,
    pub cache: Option<PathBuf>,
    pub queue: Option<String>,
    pub queue_creds: Option<PathBuf>,
    pub queue_nkey: Option<PathBuf>,
    pub queue_cert: Option<PathBuf>,
    pub queue_key: Option<PathBuf>,
    pub queue_insecure: Option<bool>,
    pub no_local: Option<bool>,
    pub require_workers: Option<bool>,
    /// Suites that differ from the section in components, architectures or keys.
    pub source: Vec<SourceSection>,
}

/// One `[[mirror.NAME.source]]`: what is not given is taken from the section.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each field is the flag of the same name, documented in cli.rs")]
pub struct SourceSection {
    pub suite: List<String>,
    pub component: List<String>,
    pub arch: List<String>,
    pub keyring: List<PathBuf>,
    pub trusted: Option<bool>,
}

/// Keys of a `[mirror.NAME]` section and of `[defaults]`.
pub const SECTION_KEYS: &[&str] = &[
    "from",
    "suite",
    "component",
    "arch",
    "sources",
    "to",
    "snapshot",
    "snapshot-full",
    "include",
    "exclude",
    "section",
    "priority",
    "source-package",
    "newest",
    "index-formats",
    "without",
    "languages",
    "keyring",
    "trusted",
    "cacert",
    "ignore-valid-until",
    "ignore-missing",
    "max-delete",
    "force-delete",
    "clean-foreign",
    "no-clean",
    "keep-generations",
    "keep-hours",
    "durability",
    "trace-host",
    "trace-info",
    "limit-rate",
    "connections",
    "http1",
    "no-hedge",
    "auth",
    "origin",
    "origin-only",
    "endpoint",
    "region",
    "profile",
    "no-sign-request",
    "aliases",
    "cache-control",
    "lock",
    "state",
    "scratch",
    "cache",
    "queue",
    "queue-creds",
    "queue-nkey",
    "queue-cert",
    "queue-key",
    "queue-insecure",
    "no-local",
    "require-workers",
    "source",
];
/// Keys of a `[[mirror.NAME.source]]`.
pub const SOURCE_KEYS: &[&str] = &["suite", "component", "arch", "keyring", "trusted"];
const FILE_KEYS: &[&str] = &["defaults", "mirror"];

/// Reads a settings file.
pub fn read(path: &Path) -> Result<SettingsFile, CommandError> {
    parse(&read_text(path, FILE_BYTES_MAX)?).map_err(|error| {
        let place = error.line.map(|line| format!(":{line}")).unwrap_or_default();
        let failure = CommandError::usage(format_args!("{}{place}: {}", path.display(), error.message));
        match error.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })
}

/// What is wrong in a settings file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    /// Line, from 1.
    pub line: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What was probably meant.
    pub hint: Option<String>,
}

/// Parses the text of a settings file.
pub fn parse(text: &str) -> Result<SettingsFile, FileError> {
    let line_of = |offset: usize| text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1;
    let failed = |error: toml::de::Error| FileError {
        line: error.span().map(|span| line_of(span.start)),
        message: error.message().lines().collect::<Vec<_>>().join("; "),
        hint: None,
    };
    let table = toml::de::DeTable::parse(text).map_err(failed)?;
    check_file(table.get_ref()).map_err(|unknown| FileError {
        line: Some(line_of(unknown.offset)),
        message: format!("unknown key {:?} in {}", unknown.key, unknown.place),
        hint: for_key(&unknown.key)
            .filter(|_| unknown.keys == SECTION_KEYS)
            .or_else(|| nearest(&unknown.key, unknown.keys).map(|near| format!("write {near} for {}", unknown.key)))
            .or_else(|| Some(format!("use one of {}", unknown.keys.join(", ")))),
    })?;
    toml::from_str(text).map_err(failed)
}

struct UnknownKey {
    key: String,
    place: String,
    offset: usize,
    keys: &'static [&'static str],
}

type Table<'a> = toml::de::DeTable<'a>;

fn check_file(file: &Table<'_>) -> Result<(), UnknownKey> {
    check_keys(file, FILE_KEYS, "the file")?;
    if let Some(defaults) = file.get("defaults").and_then(|value| value.get_ref().as_table()) {
        check_section(defaults, "[defaults]")?;
    }
    let mirrors = file.get("mirror").and_then(|value| value.get_ref().as_table());
    for (name, section) in mirrors.into_iter().flatten() {
        if let Some(section) = section.get_ref().as_table() {
            check_section(section, &format!("[mirror.{}]", name.get_ref()))?;
        }
    }
    Ok(())
}

fn check_section(section: &Table<'_>, place: &str) -> Result<(), UnknownKey> {
    check_keys(section, SECTION_KEYS, place)?;
    let sources = section.get("source").and_then(|value| value.get_ref().as_array());
    for source in sources.into_iter().flat_map(|array| array.iter()) {
        if let Some(source) = source.get_ref().as_table() {
            check_keys(source, SOURCE_KEYS, &format!("a source of {place}"))?;
        }
    }
    Ok(())
}

fn check_keys(table: &Table<'_>, keys: &'static [&'static str], place: &str) -> Result<(), UnknownKey> {
    match table.keys().find(|key| !keys.contains(&key.get_ref().as_ref())) {
        None => Ok(()),
        Some(key) => {
            Err(UnknownKey { key: key.get_ref().to_string(), place: place.to_owned(), offset: key.span().start, keys })
        }
    }
}

/// The known word that is nearest to the one written, if one is near enough to be meant.
pub fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let written = written.to_ascii_lowercase().replace('_', "-");
    known
        .iter()
        .map(|word| (distance(&written, word), *word))
        .min()
        .filter(|(distance, word)| *distance <= 1 + word.len() / 4)
        .map(|(_, word)| word)
}

/// Longest word compared; the cost grows with the square.
const WORD_MAX: usize = 64;

/// Letters to insert, delete or replace to get from one word to the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(WORD_MAX).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(WORD_MAX).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

/// A list that may be written as a single value; empty when not given.
#[derive(Debug, Clone, PartialEq)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        List(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMany<T> {
            type Value = Vec<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a list of values")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
                T::deserialize(de::value::StrDeserializer::new(text)).map(|value| vec![value])
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(list)
            }
        }
        deserializer.deserialize_any(OneOrMany(PhantomData)).map(List)
    }
}

/// Reads a value by its text form; a bare number is taken as its text.
fn by_text<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(deserializer: D) -> Result<T, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = String;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text or a number")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
            Ok(number.to_string())
        }
        fn visit_u64<E: de::Error>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }
        fn visit_f64<E: de::Error>(self, number: f64) -> Result<String, E> {
            Ok(number.to_string())
        }
    }
    deserializer.deserialize_any(Text)?.parse().map_err(de::Error::custom)
}

macro_rules! deserialize_by_text {
    ($($type:ty),*) => { $(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                by_text(deserializer)
            }
        }
    )* };
}
deserialize_by_text!(Rate, Percent);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_flags_and_lists_may_be_single_values() {
        let file = parse(
            r#"
            [defaults]
            limit-rate = "20M"
            max-delete = 10
            [mirror.debian]
            from = ["https://a/debian", "https://b/debian"]
            suite = "trixie"
            without = ["contents", "installer"]
            index-formats = "xz"
            exclude = '-dbg_'
            durability = "at-end"
            [[mirror.debian.source]]
            suite = "sid"
            trusted = true
            "#,
        )
        .unwrap();
        assert_eq!(file.defaults.limit_rate, Some(Rate(20_000_000)));
        assert_eq!(file.defaults.max_delete.map(Percent::fraction), Some(0.1));
        let debian = &file.mirror["debian"];
        assert_eq!(debian.suite.0, ["trixie"]);
        assert_eq!(debian.without.0, [Kind::Contents, Kind::Installer]);
        assert_eq!(debian.index_formats.0, [IndexFormat::Xz]);
        assert_eq!(debian.source[0].trusted, Some(true));
    }

    #[test]
    fn a_misspelt_key_is_named_with_the_one_meant() {
        let error = parse("[mirror.a]\nto = '/x'\nmax_delet = 5\n").unwrap_err();
        assert_eq!(error.line, Some(3));
        assert_eq!(error.message, "unknown key \"max_delet\" in [mirror.a]");
        assert_eq!(error.hint.as_deref(), Some("write max-delete for max_delet"));
        let error = parse("[[mirror.a.source]]\nsuit = 'x'\n").unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("write suite for suit"));
        let error = parse("[mirrors.a]\n").unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("write mirror for mirrors"));
        // A setting of another tool, whose name here is not a similar one.
        let error = parse("[mirror.a]\nnthreads = 20\n").unwrap_err();
        assert!(error.hint.unwrap().starts_with("use connections"));
        let error = parse("[mirror.a]\nfrobnicate = 1\n").unwrap_err();
        assert!(error.hint.unwrap().starts_with("use one of from, suite"));
    }

    #[test]
    fn a_wrong_value_is_named_with_its_line() {
        let error = parse("[mirror.a]\n\nlimit-rate = 'fast'\n").unwrap_err();
        assert_eq!(error.line, Some(3));
        assert!(error.message.contains("expected bytes per second"), "{}", error.message);
        let error = parse("[mirror.a]\nwithout = ['content']\n").unwrap_err();
        assert!(error.message.contains("`contents`"), "{}", error.message);
        assert!(parse("[mirror.a]\nto = [").is_err());
    }

    #[test]
    fn the_example_of_the_package_can_be_read() {
        let file = parse(include_str!("../../../../packaging/mirror.toml")).unwrap();
        assert_eq!(file.mirror.len(), 2);
        assert_eq!(file.mirror["debian"].from.0.len(), 2);
    }

    /// serde's own list of fields, as its error for an unknown one names them.
    fn fields_by_serde<'de, T: Deserialize<'de> + fmt::Debug>() -> Vec<String> {
        let message = toml::from_str::<toml::Value>("").map(|_| ()).err();
        assert!(message.is_none());
        let error = T::deserialize(toml::Deserializer::parse("no-such-key = 1").unwrap()).unwrap_err();
        error.message().split('`').skip(3).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_lists_of_keys_are_complete() {
        assert_eq!(fields_by_serde::<Section>(), SECTION_KEYS);
        assert_eq!(fields_by_serde::<SourceSection>(), SOURCE_KEYS);
        assert_eq!(fields_by_serde::<SettingsFile>(), FILE_KEYS);
    }

    #[test]
    fn every_key_of_a_section_is_a_flag() {
        let command = crate::cli::command();
        let mirror = command.find_subcommand("mirror").unwrap();
        for key in SECTION_KEYS {
            if !matches!(*key, "trusted" | "source") {
                assert!(mirror.get_arguments().any(|flag| flag.get_long() == Some(key)), "{key}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(text in "(\\[|\\]|mirror|source|\\.|=|\"|'|\n|[a-z0-9 ]){0,40}") {
            let _ = parse(&text);
        }
    }
}
