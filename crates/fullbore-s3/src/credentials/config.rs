//! Parses `~/.aws/config` and `~/.aws/credentials` ("Configuration and credential file settings", AWS CLI user guide):
//! sections of `name = value` lines. An indented line belongs to the name above it.

use std::collections::BTreeMap;

/// Maximum size of a file, in bytes. Large organisations have some hundred profiles of a few lines.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of settings in all sections together.
const SETTINGS_MAX: usize = 50_000;

/// Why a file could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is longer than [`FILE_BYTES_MAX`].
    #[error("longer than {FILE_BYTES_MAX} bytes")]
    TooLong,
    /// The file has too many settings.
    #[error("more than {SETTINGS_MAX} settings")]
    TooMany,
    /// A line is malformed. The error gives its number, never its text, which may be a secret.
    #[error("line {line}: {what}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// What is wrong with the line.
        what: &'static str,
    },
}

/// Settings of one profile. Nested settings (`s3 =` with indented lines) have names with a dot: `s3.addressing_style`.
pub type Settings = BTreeMap<String, String>;

/// The sections of a file.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Sections {
    profiles: BTreeMap<String, Settings>,
    services: BTreeMap<String, Settings>,
}

impl std::fmt::Debug for Sections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.profiles.keys()).finish()
    }
}

/// Which of the two files it is: they write the names of profiles differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `config`, with sections `[default]` and `[profile name]`.
    Config,
    /// `credentials`, with sections `[name]`.
    Credentials,
}

impl Sections {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// [`ConfigError`] if the text is too long, has too many sections or settings, or has a malformed line.
    pub fn parse(text: &str, kind: Kind) -> Result<Sections, ConfigError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(ConfigError::TooLong);
        }
        let mut sections = Sections::default();
        let mut section: Option<Section> = None;
        // The setting that indented lines belong to, if its own value is empty.
        let mut above: Option<String> = None;
        let mut count = 0;
        for (number, line) in text.lines().enumerate() {
            let wrong = |what| ConfigError::Line { line: number + 1, what };
            let indented = line.starts_with([' ', '\t']);
            let bare = line.trim();
            if bare.is_empty() || bare.starts_with(['#', ';']) {
                continue;
            }
            if !indented && let Some(header) = bare.strip_prefix('[') {
                let (header, rest) = header.split_once(']').ok_or_else(|| wrong("`[` without `]`"))?;
                if !rest.trim().is_empty() && !rest.trim_start().starts_with(['#', ';']) {
                    return Err(wrong("something after `]`"));
                }
                section = Some(Section::parse(header.trim(), kind));
                above = None;
                continue;
            }
            let Some(section) = &section else { return Err(wrong("a setting before the first [section]")) };
            let Some((name, value)) = bare.split_once('=') else {
                // No setting used here has a continued value.
                if indented {
                    continue;
                }
                return Err(wrong("neither `[section]` nor `name = value`"));
            };
            let (name, value) = (name.trim().to_ascii_lowercase(), without_comment(value).trim());
            if name.is_empty() {
                return Err(wrong("a value without a name"));
            }
            let name = match (indented, &above) {
                (true, Some(above)) => format!("{above}.{name}"),
                // An indented line after a name with a value continues that value.
                (true, None) => continue,
                (false, _) => {
                    above = value.is_empty().then(|| name.clone());
                    name
                }
            };
            count += 1;
            if count > SETTINGS_MAX {
                return Err(ConfigError::TooMany);
            }
            if let Some(settings) = sections.of(section) {
                settings.insert(name, value.to_owned());
            }
        }
        Ok(sections)
    }

    fn of(&mut self, section: &Section) -> Option<&mut Settings> {
        match section {
            Section::Profile(name) => Some(self.profiles.entry(name.clone()).or_default()),
            Section::Services(name) => Some(self.services.entry(name.clone()).or_default()),
            Section::Other => None,
        }
    }

    /// The settings of a profile.
    pub fn profile(&self, name: &str) -> Option<&Settings> {
        self.profiles.get(name)
    }

    /// The settings of a section `[services NAME]`.
    pub fn services(&self, name: &str) -> Option<&Settings> {
        self.services.get(name)
    }
}

enum Section {
    Profile(String),
    Services(String),
    Other,
}

impl Section {
    fn parse(header: &str, kind: Kind) -> Section {
        let mut words = header.splitn(2, [' ', '\t']);
        let (first, second) = (words.next().unwrap_or_default(), words.next().map(str::trim).map(unquoted));
        match (kind, first, second) {
            (Kind::Credentials, ..) => Section::Profile(unquoted(header).to_owned()),
            (Kind::Config, "default", None) => Section::Profile("default".to_owned()),
            (Kind::Config, "profile", Some(name)) => Section::Profile(name.to_owned()),
            (Kind::Config, "services", Some(name)) => Section::Services(name.to_owned()),
            (Kind::Config, ..) => Section::Other,
        }
    }
}

fn unquoted(text: &str) -> &str {
    let inner = |mark| text.strip_prefix(mark).and_then(|text| text.strip_suffix(mark));
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

/// A comment after a value begins with a space and `#` or `;`.
fn without_comment(value: &str) -> &str {
    let end = [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| value.find(mark)).min();
    end.map_or(value, |end| &value[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_files_of_the_aws_tools_are_read() {
        let config = "# mine\n[default]\nregion = eu-west-1 ; comment\n\n[profile \"big one\"]\nRole_ARN=arn:aws:iam::1:role/x#y\n\
                      s3 =\n  addressing_style = path\n  max_queue=9\nsource_profile = base\n[sso-session x]\na=b\n\
                      [services mine]\ns3 =\n  endpoint_url = http://store.example\n";
        let sections = Sections::parse(config, Kind::Config).unwrap();
        assert_eq!(sections.profile("default").unwrap()["region"], "eu-west-1");
        let big = sections.profile("big one").unwrap();
        assert_eq!(big["role_arn"], "arn:aws:iam::1:role/x#y");
        assert_eq!((big["s3.addressing_style"].as_str(), big["source_profile"].as_str()), ("path", "base"));
        assert_eq!(sections.services("mine").unwrap()["s3.endpoint_url"], "http://store.example");
        assert!(sections.profile("x").is_none());
        let credentials = "[big one]\naws_access_key_id = A\naws_secret_access_key = a=b/c+d\n";
        let sections = Sections::parse(credentials, Kind::Credentials).unwrap();
        assert_eq!(sections.profile("big one").unwrap()["aws_secret_access_key"], "a=b/c+d");
        assert!(!format!("{sections:?}").contains("a=b"));
    }

    #[test]
    fn errors_name_the_line_and_not_its_text() {
        for (text, line) in [("secret = x", 1), ("[a]\n\nsecret", 3), ("[a\n", 1), ("[a] b\n", 1), ("[a]\n= secret", 2)]
        {
            let error = Sections::parse(text, Kind::Credentials).unwrap_err();
            assert!(matches!(error, ConfigError::Line { line: number, .. } if number == line), "{text:?}: {error}");
            assert!(!error.to_string().contains("secret"));
        }
        assert_eq!(Sections::parse(&" ".repeat(FILE_BYTES_MAX + 1), Kind::Config), Err(ConfigError::TooLong));
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in "([\\[\\]a= \\t\\n#;\"]|\\PC){0,80}") {
            let _ = Sections::parse(&text, Kind::Config);
            let _ = Sections::parse(&text, Kind::Credentials);
        }
    }
}
