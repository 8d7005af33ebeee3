//! Languages of translations: `Acquire::Languages`, the locale, and present files.

use std::ffi::OsString;

use crate::acquire::Configuration;

/// Languages taken from `LANGUAGE`, as in libapt.
const LANGUAGE_MAX: usize = 3;

/// Variables of the user's locale, from which APT derives its languages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Locale {
    /// `LC_ALL`, else `LC_MESSAGES`, else `LANG`; such as `de_DE.UTF-8`. Empty is `C`.
    pub messages: String,
    /// Value of `LANGUAGE`: language codes separated by colons.
    pub language: String,
}

impl Locale {
    /// The codes in order of preference.
    fn codes(&self) -> Vec<String> {
        let long = self.messages.split(['.', '@']).next().unwrap_or_default();
        let short = long.split('_').next().unwrap_or_default();
        if matches!(short, "" | "C" | "POSIX") {
            return vec!["en".to_owned()];
        }
        let mut codes = vec![long.to_owned()];
        add(&mut codes, short);
        let others = self.language.split(':').filter(|code| !code.is_empty() && *code != "en");
        let others: Vec<&str> = others.filter(|code| !codes.iter().any(|own| own == code)).take(LANGUAGE_MAX).collect();
        others.into_iter().for_each(|code| add(&mut codes, code));
        codes
    }
}

/// The languages of translations to download; empty for none. `present` are the file names in the lists directory:
/// present translations are updated, as in apt.
///
/// ```
/// use fullbore_apt::acquire::Configuration;
/// use fullbore_apt::lists::{Locale, languages};
///
/// let locale = Locale { messages: "de_AT.UTF-8".to_owned(), language: String::new() };
/// assert_eq!(languages(&Configuration::new(), &locale, &[]), ["de_AT", "de", "en"]);
/// ```
pub fn languages(configuration: &Configuration, locale: &Locale, present: &[OsString]) -> Vec<String> {
    let mut wanted = configuration.list("Acquire::Languages");
    if wanted.is_empty() {
        wanted = vec!["environment", "en"];
    }
    let mut codes = Vec::new();
    for word in wanted {
        match word {
            "environment" => locale.codes().iter().for_each(|code| add(&mut codes, code)),
            // Languages after it are for reading only.
            "none" => break,
            code => add(&mut codes, code),
        }
    }
    if codes.is_empty() {
        // Only "none".
        return codes;
    }
    present.iter().filter_map(|name| translation(name.to_str()?)).for_each(|code| add(&mut codes, code));
    codes
}

/// The language of a file `…_Translation-de`; as in apt, of plain files only.
fn translation(name: &str) -> Option<&str> {
    let (_, last) = name.rsplit_once('_').filter(|_| !name.contains("%5f"))?;
    let code = last.strip_prefix("Translation-")?;
    (!code.is_empty() && !code.contains('.')).then_some(code)
}

fn add(codes: &mut Vec<String>, code: &str) {
    if !codes.iter().any(|own| own == code) {
        codes.push(code.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locale(messages: &str, language: &str) -> Locale {
        Locale { messages: messages.into(), language: language.into() }
    }

    #[test]
    fn the_locale_names_the_languages_before_english() {
        let configuration = Configuration::new();
        let of = |locale: &Locale| languages(&configuration, locale, &[]);
        assert_eq!(of(&locale("", "")), ["en"]);
        assert_eq!(of(&locale("C.UTF-8", "de:fr")), ["en"]);
        assert_eq!(of(&locale("de_AT.UTF-8", "")), ["de_AT", "de", "en"]);
        assert_eq!(of(&locale("pt_BR", "pt_BR:pt:en:es:fr:it")), ["pt_BR", "pt", "es", "fr", "it", "en"]);
    }

    #[test]
    fn configured_languages_and_those_of_present_files_are_used() {
        let mut configuration = Configuration::new();
        configuration.set("Acquire::Languages::", "de");
        configuration.set("Acquire::Languages::", "none");
        configuration.set("Acquire::Languages::", "fr");
        assert_eq!(languages(&configuration, &Locale::default(), &[]), ["de"]);
        let present = ["h_dists_s_main_i18n_Translation-it", "h_i18n_Translation-ja.xz", "lock"].map(OsString::from);
        assert_eq!(languages(&configuration, &Locale::default(), &present), ["de", "it"]);
    }
}
