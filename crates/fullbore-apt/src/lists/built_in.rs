//! APT's default configuration for an update, for machines without APT.

use crate::acquire::Configuration;

/// In the form of `apt-config dump`, from apt 2.6.
const DEFAULTS: &str = r#"Dir "/";
Dir::State "var/lib/apt";
Dir::State::lists "lists/";
Dir::Etc "etc/apt";
Dir::Etc::sourcelist "sources.list";
Dir::Etc::sourceparts "sources.list.d";
Dir::Etc::trusted "trusted.gpg";
Dir::Etc::trustedparts "trusted.gpg.d";
Dir::Etc::netrc "auth.conf";
Dir::Etc::netrcparts "auth.conf.d";
Acquire::IndexTargets::deb::Packages::MetaKey "$(COMPONENT)/binary-$(ARCHITECTURE)/Packages";
Acquire::IndexTargets::deb::Packages::flatMetaKey "Packages";
Acquire::IndexTargets::deb::Packages::Optional "0";
Acquire::IndexTargets::deb::Translations::MetaKey "$(COMPONENT)/i18n/Translation-$(LANGUAGE)";
Acquire::IndexTargets::deb::Translations::flatMetaKey "$(LANGUAGE)";
Acquire::IndexTargets::deb-src::Sources::MetaKey "$(COMPONENT)/source/Sources";
Acquire::IndexTargets::deb-src::Sources::flatMetaKey "Sources";
Acquire::IndexTargets::deb-src::Sources::Optional "0";
"#;

/// APT's defaults for a machine of this architecture.
pub(crate) fn configuration(native: &str) -> Configuration {
    let mut configuration = Configuration::from_dump(DEFAULTS).unwrap_or_default();
    configuration.set("APT::Architecture", native);
    configuration
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_a_configuration() {
        let configuration = configuration("amd64");
        let kinds: Vec<_> = configuration.children("Acquire::IndexTargets::deb").map(|(name, _)| name).collect();
        assert_eq!(kinds, ["Packages", "Translations"]);
        assert_eq!(configuration.path("Dir::State::lists").unwrap().to_str(), Some("/var/lib/apt/lists/"));
    }
}
