//! The page of the settings file. Keys are flags of `fullbore mirror`, so their texts are those of the flags.

use clap::builder::StyledStr;
use clap_mangen::roff::{Roff, bold, roman};

use super::Page;
use crate::settings::file::{SECTION_KEYS, SOURCE_KEYS};

/// Keys that are no flags.
const WITHOUT_FLAG: [(&str, &str); 2] = [
    ("trusted", "true: accept the suite without a signature. Only for archives that you reach over a trusted path."),
    ("source", "Suites that differ in components, architectures or keys: see below."),
];

const ABOUT: &str = "\
The file is TOML. Each table [mirror.NAME] is one mirror. The table [defaults] has values for keys that a mirror's table
lacks. fullbore mirror NAME runs that mirror; fullbore mirror without a name runs all mirrors.

Keys are the options of fullbore-mirror(1) without their dashes. A list may be written as a single value. Options
override the environment, and the environment overrides this file. An unknown key is an error.";

const SOURCES: &str = "\
A table [[mirror.NAME.source]] describes suites that differ from the rest of the mirror. [mirror.NAME] has the values of
keys that this table lacks.";

const EXAMPLE: &str = "\
[defaults]
limit-rate = \"20M\"
keep-hours = 24

[mirror.debian]
from = [\"https://deb.example.org/debian\", \"https://ftp.example.org/debian\"]
suite = [\"trixie\", \"trixie-updates\"]
component = \"main\"
arch = [\"amd64\", \"all\"]
to = \"/srv/mirror/debian\"

[mirror.example]
from = \"https://packages.example.org/apt\"
to = \"/srv/mirror/example\"

[[mirror.example.source]]
suite = \"stable\"
component = \"main\"
keyring = \"/usr/share/keyrings/example.gpg\"";

/// The page, with the texts of the flags of this command line.
pub(super) fn page(command: &clap::Command) -> Page {
    let mut page = Roff::new();
    super::title(&mut page, "fullbore-mirror.toml", "5");
    page.control("SH", ["NAME"]).text([roman("fullbore-mirror.toml - settings of mirrors for fullbore mirror")]);
    page.control("SH", ["SYNOPSIS"]).text([bold("/etc/fullbore/mirror.toml")]);
    page.control("SH", ["DESCRIPTION"]);
    super::paragraphs(&mut page, ABOUT);
    page.control("SH", ["KEYS"]);
    for key in SECTION_KEYS {
        page.control("TP", []).text([bold(*key)]).text([roman(meaning(command, key))]);
    }
    page.control("SH", ["SOURCES"]);
    super::paragraphs(&mut page, SOURCES);
    page.control("PP", []).text([roman("Keys: "), bold(SOURCE_KEYS.join(", "))]);
    page.control("SH", ["EXAMPLES"]).control("EX", []);
    for line in EXAMPLE.lines() {
        page.text([roman(line)]);
    }
    page.control("EE", []);
    page.control("SH", ["SEE ALSO"]).text([roman("fullbore-mirror(1), fullbore-convert(1)")]);
    Page { name: "fullbore-mirror.toml.5".into(), text: page.render() }
}

fn meaning(command: &clap::Command, key: &str) -> String {
    if let Some((_, meaning)) = WITHOUT_FLAG.iter().find(|(name, _)| *name == key) {
        return (*meaning).to_owned();
    }
    let mirror = command.find_subcommand("mirror");
    let flag = mirror.and_then(|mirror| mirror.get_arguments().find(|argument| argument.get_long() == Some(key)));
    flag.and_then(|flag| flag.get_help()).map(StyledStr::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_explained() {
        let mut command = crate::cli::command();
        command.build();
        for key in SECTION_KEYS.iter().chain(SOURCE_KEYS) {
            assert!(!meaning(&command, key).is_empty(), "{key}");
        }
    }

    #[test]
    fn the_example_is_a_settings_file() {
        assert_eq!(crate::settings::file::parse(EXAMPLE).unwrap().mirror.len(), 2);
    }
}
