//! Values of flags that are one of a few words: the libraries' own types, with a line of help for each word.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use fullbore_engine::durability::Durability;

/// A word, its help, and what it stands for.
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
        ("each", "For each file before it gets its name", Durability::Each),
    ])
}
