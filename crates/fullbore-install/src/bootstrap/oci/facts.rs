//! Facts about a root that the documents of its image contain.

use fullbore_engine::run::error::CommandError;
use rustix::fs::FileType;

use super::platform::Platform;
use crate::root::Root;
use crate::settings::{BootstrapSettings, OciSettings};

/// Files with the name of the system and its version, within the root (os-release(5)).
const OS_RELEASE: [&str; 2] = ["etc/os-release", "usr/lib/os-release"];

/// Shells for the default command: path within the root, and the command.
const SHELLS: [(&str, &str); 2] = [("bin/bash", "bash"), ("bin/sh", "/bin/sh")];

/// Facts about a root that its image contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// Time of the image (RFC 3339).
    pub created: String,
    /// Command that made the image, without paths and addresses, for the history.
    pub created_by: String,
    /// Operating system's architecture and variant, as the image-spec names them.
    pub platform: Platform,
    /// Name of the image in its layout (`org.opencontainers.image.ref.name`).
    pub tag: String,
    /// Default command; empty if the root has no shell.
    pub command: Vec<String>,
    /// Name of the system, from os-release.
    pub title: Option<String>,
    /// Version of the system, from os-release.
    pub version: Option<String>,
}

impl Facts {
    /// Collects the facts from the settings and from the files of the root.
    ///
    /// # Errors
    /// `Usage` if `created_unix_s` is beyond the calendar.
    pub(super) fn of_root(
        settings: &BootstrapSettings,
        image: &OciSettings,
        root: &Root,
        created_unix_s: i64,
    ) -> Result<Facts, CommandError> {
        // A root need not have the file.
        let os_release = OS_RELEASE.iter().find_map(|path| root.read(path).ok().flatten()).unwrap_or_default();
        let os_release = String::from_utf8_lossy(&os_release);
        let shell = SHELLS.iter().find(|(path, _)| root.leads_to(path) == Some(FileType::RegularFile));
        Ok(Facts {
            created: time(created_unix_s)?,
            created_by: created_by(settings),
            platform: image.platform.clone(),
            tag: image.tag.clone(),
            command: shell.map(|(_, command)| (*command).to_owned()).into_iter().collect(),
            title: value(&os_release, "PRETTY_NAME"),
            version: value(&os_release, "VERSION_ID"),
        })
    }
}

/// Formats Unix seconds as an RFC 3339 time.
///
/// # Errors
/// `Usage`, with `SOURCE_DATE_EPOCH` in the message, if the time is beyond the calendar.
pub(super) fn time(unix_s: i64) -> Result<String, CommandError> {
    let time = jiff::Timestamp::from_second(unix_s);
    time.map(|time| time.to_string()).map_err(|error| CommandError::usage(format_args!("SOURCE_DATE_EPOCH: {error}")))
}

/// The command for the history. It has no addresses and paths: an address may contain a password, and both may differ
/// from machine to machine.
fn created_by(settings: &BootstrapSettings) -> String {
    let mut words = vec!["fullbore bootstrap --variant", settings.variant.name(), "--arch"];
    let (architectures, include) = (settings.architectures.join(","), settings.include.join(","));
    words.push(&architectures);
    if !include.is_empty() {
        words.extend(["--include", &include]);
    }
    words.push(&settings.suite);
    words.join(" ")
}

/// A value of os-release(5); `None` if it is missing or empty.
fn value(os_release: &str, key: &str) -> Option<String> {
    let mut values = os_release.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
    let quoted = values.next_back()?;
    let bare = ['"', '\''].into_iter().find_map(|quote| quoted.strip_prefix(quote)?.strip_suffix(quote));
    let mut text = String::new();
    let mut characters = bare.unwrap_or(quoted).chars();
    while let Some(character) = characters.next() {
        // Characters that are special in a shell follow a backslash.
        text.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_os_release_are_unquoted() {
        let text = concat!(
            "# VERSION_ID=0\nPRETTY_NAME=\"A \\\"B\\\" \\$5\"\n",
            "VERSION_ID='12'\nNAME=Debian\nVERSION_ID=13\nEMPTY=\"\"\n",
        );
        assert_eq!(value(text, "PRETTY_NAME").as_deref(), Some("A \"B\" $5"));
        assert_eq!(value(text, "NAME").as_deref(), Some("Debian"));
        assert_eq!(value(text, "VERSION_ID").as_deref(), Some("13"), "the last one counts");
        assert_eq!(value(text, "EMPTY"), None);
        assert_eq!(value(text, "VERSION"), None);
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(time(1_700_000_000).unwrap(), "2023-11-14T22:13:20Z");
        assert!(time(i64::MAX).unwrap_err().message.starts_with("SOURCE_DATE_EPOCH: "));
    }
}
