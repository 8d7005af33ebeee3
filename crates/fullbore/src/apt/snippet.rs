//! Our configuration snippet: its text, and whether a file is one.
//!
//! The last line is a hash of the lines before, by which changes by hand are noticed. apt takes
//! it for a comment.

use fullbore_engine::digest::Sha256;

use crate::cli::IndexLevel;

/// Requests that apt hands to a method at once. Its default of 10 keeps several mirrors idle;
/// a thousand is more than a method has in flight, and costs nothing.
const MAX_PIPELINE_DEPTH: u32 = 1000;

const HEAD: &str = "// Written by `fullbore apt enable`, removed by `fullbore apt disable`.\n";
const SEAL: &str = "// fullbore-sha256: ";

/// What the snippet says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The program that apt starts in place of its methods.
    pub program: String,
    /// Lists of mirrors; without any, http and https stay apt's own.
    pub mirrors: Vec<String>,
    /// How hard fullbore compresses stored indexes.
    pub level: IndexLevel,
}

impl Settings {
    /// The methods that are replaced.
    pub fn methods(&self) -> Vec<&'static str> {
        if self.mirrors.is_empty() { vec!["rred"] } else { vec!["rred", "http", "https"] }
    }
}

/// What stands where our snippet belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnippetState {
    /// Nothing.
    Absent,
    /// What we wrote.
    Ours(Settings),
    /// What we wrote, and somebody changed.
    Edited,
    /// Something else.
    Other,
}

/// Makes and recognises snippets.
pub struct Snippet;

impl Snippet {
    /// The file's text.
    pub fn render(settings: &Settings) -> String {
        let mut text = format!("{HEAD}// apt runs this program in place of its own methods.\n");
        for method in settings.methods() {
            text.push_str(&format!("Dir::Bin::Methods::{method} \"{}\";\n", settings.program));
        }
        if settings.level == IndexLevel::Best {
            text.push_str(
                "// Stored indexes are compressed as hard as apt does it.\nAcquire::fullbore::Level \"best\";\n",
            );
        }
        if !settings.mirrors.is_empty() {
            text.push_str("// Mirrors in addition to those of the sources.\n");
            for mirrors in &settings.mirrors {
                text.push_str(&format!("Acquire::fullbore::Mirrors:: \"{mirrors}\";\n"));
            }
            text.push_str("// Enough requests at once for all of them.\n");
            text.push_str(&format!("Acquire::Max-Pipeline-Depth \"{MAX_PIPELINE_DEPTH}\";\n"));
        }
        let seal = Sha256::of(text.as_bytes());
        format!("{text}{SEAL}{seal}\n")
    }

    /// What a file is.
    pub fn read(content: &[u8]) -> SnippetState {
        let Some(text) = std::str::from_utf8(content).ok().filter(|text| text.starts_with(HEAD)) else {
            return SnippetState::Other;
        };
        let Some((body, seal)) = text.rsplit_once(SEAL) else { return SnippetState::Edited };
        if seal.strip_suffix('\n').and_then(|seal| seal.parse().ok()) != Some(Sha256::of(body.as_bytes())) {
            return SnippetState::Edited;
        }
        let value = |line: &str| line.split('"').nth(1).unwrap_or_default().to_owned();
        let values = |name: &str| body.lines().filter(|line| line.starts_with(name)).map(value).collect::<Vec<_>>();
        let level = if values("Acquire::fullbore::Level ").is_empty() { IndexLevel::Fast } else { IndexLevel::Best };
        let program = values("Dir::Bin::Methods::rred ").into_iter().next().unwrap_or_default();
        SnippetState::Ours(Settings { program, mirrors: values("Acquire::fullbore::Mirrors:: "), level })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snippet_is_known_again() {
        let mut settings =
            Settings { program: "/usr/bin/fullbore".into(), mirrors: Vec::new(), level: IndexLevel::Fast };
        let text = Snippet::render(&settings);
        insta::assert_snapshot!(text, @r#"
        // Written by `fullbore apt enable`, removed by `fullbore apt disable`.
        // apt runs this program in place of its own methods.
        Dir::Bin::Methods::rred "/usr/bin/fullbore";
        // fullbore-sha256: 06088e5cb4f1917868f3d6a14087b22dfd3e3adb5fe4c9911d191be36dbdfe83
        "#);
        assert_eq!(Snippet::read(text.as_bytes()), SnippetState::Ours(settings.clone()));
        settings.mirrors = vec!["/etc/a".into(), "/etc/b c".into()];
        settings.level = IndexLevel::Best;
        let text = Snippet::render(&settings);
        assert!(text.contains("Dir::Bin::Methods::https \"/usr/bin/fullbore\";\n"), "{text}");
        assert_eq!(Snippet::read(text.as_bytes()), SnippetState::Ours(settings));
        assert_eq!(Snippet::read(text.replace("1000", "10").as_bytes()), SnippetState::Edited);
        assert_eq!(Snippet::read(format!("{text}Dir \"/x\";\n").as_bytes()), SnippetState::Edited);
        assert_eq!(Snippet::read(HEAD.as_bytes()), SnippetState::Edited);
        assert_eq!(Snippet::read(b"Dir \"/\";\n"), SnippetState::Other);
        assert_eq!(Snippet::read(b"\xff"), SnippetState::Other);
    }
}
