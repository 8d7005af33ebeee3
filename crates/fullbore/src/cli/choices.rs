//! Values of flags that are one of a few words: the libraries' own types, with a line of help for each word.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use fullbore_engine::durability::Durability;
use fullbore_mirror::{IndexFormat, Kind};

/// A word, its help, and its value.
type Choice<T> = (&'static str, &'static str, T);

/// A parser for one of these words.
fn one_of<T: Clone + Send + Sync + 'static>(choices: &'static [Choice<T>]) -> impl TypedValueParser<Value = T> {
    let words = choices.iter().map(|(word, help, _)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(words).try_map(|word| {
        let found = choices.iter().find(|(known, ..)| *known == word);
        found.map(|(.., value)| value.clone()).ok_or("not one of the words")
    })
}

/// `--durability`
pub fn durability() -> impl TypedValueParser<Value = Durability> {
    one_of(&[
        ("none", "Never: a power cut may lose files that the state names", Durability::None),
        ("at-end", "Once before the indexes are published", Durability::AtEnd),
        ("each", "For each file before its rename", Durability::Each),
    ])
}

/// `--index-formats`
pub fn index_format() -> impl TypedValueParser<Value = IndexFormat> {
    one_of(&[
        ("plain", "Not compressed", IndexFormat::Plain),
        ("xz", "xz, Debian's usual format", IndexFormat::Xz),
        ("gz", "gzip", IndexFormat::Gz),
        ("zst", "Zstandard", IndexFormat::Zst),
        ("bz2", "bzip2", IndexFormat::Bz2),
    ])
}

/// `--without`
pub fn kind() -> impl TypedValueParser<Value = Kind> {
    one_of(&[
        ("contents", "Contents indexes: which package has which file", Kind::Contents),
        ("translations", "Translated descriptions", Kind::Translations),
        ("dep11", "AppStream metadata and icons", Kind::Dep11),
        ("cnf", "Indexes for command-not-found", Kind::Cnf),
        ("udeb", "Packages of the installer (udeb)", Kind::Udeb),
        ("installer", "Installer images", Kind::Installer),
        ("pdiff", "Index differences (*.diff/Index and the patches it names)", Kind::Pdiff),
    ])
}
