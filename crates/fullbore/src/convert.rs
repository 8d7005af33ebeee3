//! `fullbore convert`: settings of apt-mirror, debmirror and ftpsync in our form.
//!
//! The foreign files are read, never executed: what is not a plain assignment is
//! named and left to the reader. Each setting without a counterpart becomes a
//! comment in the result and a warning.

mod apt_mirror;
mod debmirror;
mod ftpsync;
mod shell;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use fullbore_engine::escape;
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::Events;
use fullbore_engine::run::named_files::read_text;

use crate::cli::{ConvertArgs, ForeignFormat};
use crate::progress::Screen;
use crate::settings::file;

/// Largest file converted. A guess: a thousand lines of sources and long patterns.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Settings without counterpart that are named; a real file has some dozens.
const NOTES_MAX: usize = 500;

/// Converts the file and shows or writes the result.
pub fn run(arguments: &ConvertArgs, screen: &mut Screen) -> Result<(), CommandError> {
    let text = read_text(&arguments.file, FILE_BYTES_MAX)?;
    let format = match arguments.format.or_else(|| detect(&arguments.file, &text)) {
        Some(format) => format,
        None => {
            return Err(CommandError::usage(format_args!("cannot tell which tool wrote {}", arguments.file.display()))
                .hint("pass `--format apt-mirror`, `--format debmirror` or `--format ftpsync`"));
        }
    };
    let draft = convert(format, &text).map_err(|error| error.context(arguments.file.display()))?;
    let result = draft.render(&arguments.file.display().to_string(), format);
    for note in &draft.notes {
        screen.warn(note.to_string());
    }
    match &arguments.output {
        None => screen.print(result.as_bytes()),
        Some(output) => {
            // As for `/etc/fullbore`, which no package makes.
            if let Some(directory) = output.parent() {
                std::fs::create_dir_all(directory)
                    .map_err(|error| CommandError::cannot("create", directory, &error))?;
            }
            let mut file = std::fs::File::create_new(output).map_err(|error| {
                let failure = CommandError::cannot("write", output, &error);
                if error.kind() == std::io::ErrorKind::AlreadyExists {
                    CommandError { kind: fullbore_engine::run::error::ErrorKind::Usage, ..failure }
                        .hint("move the existing file away, or write to another one")
                } else {
                    failure
                }
            })?;
            file.write_all(result.as_bytes()).map_err(|error| CommandError::cannot("write", output, &error))?;
        }
    }
    Ok(())
}

/// Converts text of a known format.
pub fn convert(format: ForeignFormat, text: &str) -> Result<Draft, CommandError> {
    let mut draft = match format {
        ForeignFormat::AptMirror => apt_mirror::convert(text),
        ForeignFormat::Debmirror => debmirror::convert(text),
        ForeignFormat::Ftpsync => ftpsync::convert(text),
    };
    draft.notes.sort_by_key(|note| note.line);
    if draft.mirrors.is_empty() {
        return Err(CommandError::usage("the settings name no archive to mirror"));
    }
    Ok(draft)
}

/// Whose settings these are, by the file's name, else by what is in it.
pub fn detect(path: &Path, text: &str) -> Option<ForeignFormat> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if name.contains("debmirror") {
        return Some(ForeignFormat::Debmirror);
    }
    if name.contains("ftpsync") {
        return Some(ForeignFormat::Ftpsync);
    }
    if name.contains("mirror.list") || name.ends_with(".list") {
        return Some(ForeignFormat::AptMirror);
    }
    let lines = || text.lines().map(|line| line.trim_start().trim_start_matches('#').trim_start());
    let any = |starts: &[&str]| lines().any(|line| starts.iter().any(|start| line.starts_with(start)));
    if any(&["deb http", "deb-src http", "set base_path", "set nthreads", "clean http"]) {
        Some(ForeignFormat::AptMirror)
    } else if any(&["$remoteroot", "$mirrordir", "@dists", "$download_method"]) {
        Some(ForeignFormat::Debmirror)
    } else if any(&["RSYNC_HOST=", "RSYNC_PATH=", "MIRRORNAME=", "ARCH_INCLUDE=", "TO="]) {
        Some(ForeignFormat::Ftpsync)
    } else {
        None
    }
}

/// A setting that has no counterpart, or one that needs a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Line in the foreign file, from 1.
    pub line: usize,
    /// The setting as written, shortened.
    pub setting: String,
    /// Why it is not taken over, or what came of it.
    pub reason: String,
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}: {}", self.line, self.setting, self.reason)
    }
}

/// Letters of a setting shown in a note.
const SETTING_SHOWN: usize = 60;

/// The result before it is written down.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draft {
    /// The sections.
    pub mirrors: Vec<ConvertedMirror>,
    /// What has no counterpart.
    pub notes: Vec<Note>,
}

/// One `[mirror.NAME]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConvertedMirror {
    /// Its name.
    pub name: String,
    /// Lines of comment above it.
    pub comments: Vec<String>,
    /// Keys and values in order.
    pub values: Vec<(&'static str, toml::Value)>,
    /// Tables of `[[mirror.NAME.source]]`.
    pub sources: Vec<Vec<(&'static str, toml::Value)>>,
}

impl ConvertedMirror {
    /// Adds a text.
    fn text(&mut self, key: &'static str, value: impl Into<String>) {
        self.values.push((key, toml::Value::String(value.into())));
    }

    /// Adds a list, as a single value when it has one; none when empty.
    fn list(&mut self, key: &'static str, values: &[String]) {
        if let Some(value) = list_value(values) {
            self.values.push((key, value));
        }
    }

    /// Adds a switch that is on.
    fn on(&mut self, key: &'static str) {
        self.values.push((key, toml::Value::Boolean(true)));
    }

    fn comment(&mut self, text: impl Into<String>) {
        self.comments.push(text.into());
    }
}

/// A list as our file has it; `None` when empty.
fn list_value(values: &[String]) -> Option<toml::Value> {
    match values {
        [] => None,
        [one] => Some(toml::Value::String(one.clone())),
        many => Some(toml::Value::Array(many.iter().cloned().map(toml::Value::String).collect())),
    }
}

impl Draft {
    fn note(&mut self, line: usize, setting: impl AsRef<str>, reason: impl Into<String>) {
        if self.notes.len() < NOTES_MAX {
            let mut shown: String = without_secrets(setting.as_ref().trim()).chars().take(SETTING_SHOWN + 1).collect();
            if shown.chars().count() > SETTING_SHOWN {
                shown.pop();
                shown.push('…');
            }
            self.notes.push(Note { line, setting: shown, reason: reason.into() });
        } else if self.notes.len() == NOTES_MAX {
            let reason = format!("more than {NOTES_MAX} lines to look at; the others are not listed");
            self.notes.push(Note { line, setting: "…".to_owned(), reason });
        }
    }

    /// An assignment behind other code, which may decide whether it holds: it is taken over only if its name is new.
    fn note_doubtful(&mut self, line: usize, setting: impl AsRef<str>, code: usize, is_new: bool) {
        let what = if is_new { "taken over, but" } else { "left out:" };
        self.note(line, setting, format!("{what} the code from line {code} on decides whether it holds"));
    }

    /// A name for a section that is not taken yet, made of this text.
    fn free_name(&self, wish: &str) -> String {
        let wish: String =
            wish.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' }).collect();
        let wish = if wish.is_empty() { "mirror".to_owned() } else { wish };
        let taken = |name: &str| self.mirrors.iter().any(|mirror| mirror.name == name);
        if !taken(&wish) {
            return wish;
        }
        // There are fewer sections than numbers.
        (2..).map(|i| format!("{wish}-{i}")).find(|name| !taken(name)).unwrap_or(wish)
    }

    /// The settings file.
    pub fn render(&self, from: &str, format: ForeignFormat) -> String {
        let program = match format {
            ForeignFormat::AptMirror => "apt-mirror",
            ForeignFormat::Debmirror => "debmirror",
            ForeignFormat::Ftpsync => "ftpsync",
        };
        let mut text = format!("# Made by `fullbore convert` from {program}'s {}.\n", escape::line(from));
        text.push_str("# Show the plan: fullbore mirror --config THIS-FILE --dry-run\n");
        if !self.notes.is_empty() {
            text.push_str("#\n# Without counterpart, or to be looked at:\n");
            for note in &self.notes {
                let _ = writeln!(text, "#   {}", escape::line(&note.to_string()));
            }
        }
        for mirror in &self.mirrors {
            text.push('\n');
            for comment in &mirror.comments {
                let _ = writeln!(text, "# {}", escape::line(comment));
            }
            let _ = writeln!(text, "[mirror.{}]", mirror.name);
            for (key, value) in &mirror.values {
                let _ = writeln!(text, "{key} = {value}");
            }
            for source in &mirror.sources {
                let _ = writeln!(text, "\n[[mirror.{}.source]]", mirror.name);
                for (key, value) in source {
                    let _ = writeln!(text, "{key} = {value}");
                }
            }
        }
        debug_assert!(file::parse(&text).is_ok(), "{:?}\n{text}", file::parse(&text));
        text
    }
}

/// A setting as it may be shown: a password is not to be copied into files that everybody may read.
fn without_secrets(setting: &str) -> String {
    let name_ends = |byte: u8| byte == b'=' || byte.is_ascii_whitespace();
    let mut words = setting.split_inclusive(|c: char| c.is_ascii() && name_ends(c as u8));
    let mut shown = String::new();
    for word in words.by_ref() {
        shown.push_str(word);
        let word = word.to_ascii_lowercase();
        // ftp's passive mode is no secret.
        if word.contains("pass") && !word.contains("passive") && word.ends_with(|c: char| name_ends(c as u8)) {
            shown.push('…');
            return shown;
        }
    }
    let (mut hidden, mut rest) = (String::new(), shown.as_str());
    while let Some((before, after)) = rest.split_once("://") {
        let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '"');
        let (authority, behind) = after.split_at(after.find(ends).unwrap_or(after.len()));
        hidden.push_str(before);
        hidden.push_str("://");
        match authority.rfind('@') {
            Some(at) => hidden.extend(["…", &authority[at..]]),
            None => hidden.push_str(authority),
        }
        rest = behind;
    }
    hidden.push_str(rest);
    hidden
}

/// Names split at commas and spaces, each once, in order.
fn names(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut known = std::collections::BTreeSet::new();
    for name in text.split([',', ' ', '\t', '\n']).filter(|name| !name.is_empty()) {
        if known.insert(name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Separates `main/debian-installer` from the components proper: for us udebs are a kind.
fn without_installer(components: Vec<String>) -> (Vec<String>, bool) {
    let (installer, components): (Vec<_>, Vec<_>) =
        components.into_iter().partition(|component| component.ends_with("/debian-installer"));
    (components, !installer.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_program_is_known_by_name_or_content() {
        let by = |name: &str, text: &str| detect(Path::new(name), text);
        assert_eq!(by("/etc/apt/mirror.list", ""), Some(ForeignFormat::AptMirror));
        assert_eq!(by("/etc/debmirror.conf", ""), Some(ForeignFormat::Debmirror));
        assert_eq!(by("ftpsync-security.conf", ""), Some(ForeignFormat::Ftpsync));
        assert_eq!(by("a", "set nthreads 20\n"), Some(ForeignFormat::AptMirror));
        assert_eq!(by("a", "# $remoteroot='debian';\n"), Some(ForeignFormat::Debmirror));
        assert_eq!(by("a", "RSYNC_HOST=x\n"), Some(ForeignFormat::Ftpsync));
        assert_eq!(by("a", "hello\n"), None);
    }

    #[test]
    fn no_password_is_shown() {
        for (setting, shown) in [
            ("RSYNC_PASSWORD=hunter2", "RSYNC_PASSWORD=…"),
            ("$passwd = hunter2", "$passwd …"),
            ("our $passwd=$ENV{'hunter2'}", "our $passwd=…"),
            ("export rsync_pass=hunter2", "export rsync_pass=…"),
            ("set proxy_password hunter2", "set proxy_password …"),
            ("$proxy = http://joe:hunter2@proxy:3128/", "$proxy = http://…@proxy:3128/"),
            ("if (1) { $a='http://h/'; $b='http://joe:pw@p'; }", "if (1) { $a='http://h/'; $b='http://…@p'; }"),
            ("$proxy='http://joe:it's@proxy:3128/'", "$proxy='http://…@proxy:3128/'"),
            ("$passive = 1", "$passive = 1"),
            ("EXCLUDE=a@b", "EXCLUDE=a@b"),
        ] {
            assert_eq!(without_secrets(setting), shown);
        }
        let text = "TO=/srv\nRSYNC_HOST=h\nRSYNC_PASSWORD=hunter2\nRSYNC_PASSWORD=$(cat hunter2)\n";
        let draft = convert(ForeignFormat::Ftpsync, text).unwrap();
        let settings = draft.render("x", ForeignFormat::Ftpsync);
        assert!(settings.contains("RSYNC_PASSWORD=…") && !settings.contains("hunter2"), "{settings}");
    }

    proptest! {
        #[test]
        fn any_text_is_survived_and_gives_settings_that_can_be_read(
            text in "((set|deb|deb-src|deb-amd64|clean|skip-clean|if |fi|cat <<|f\\(\\) ?|\\$host|@dists|@excludes|\\$mirrordir|TO|RSYNC_HOST|ARCH_INCLUDE|export )\
                     ?[ =]?([\"'(){}\\[\\];,$#\\\\`a-z0-9:/._~*+ ]|http://[a-z./]{0,8}|qw\\(|\n){0,20}\n?){0,12}"
        ) {
            for format in [ForeignFormat::AptMirror, ForeignFormat::Debmirror, ForeignFormat::Ftpsync] {
                if let Ok(draft) = convert(format, &text) {
                    let settings = draft.render("x", format);
                    prop_assert!(file::parse(&settings).is_ok(), "{settings}");
                }
            }
        }

        #[test]
        fn any_characters_are_survived(text in any::<String>()) {
            for format in [ForeignFormat::AptMirror, ForeignFormat::Debmirror, ForeignFormat::Ftpsync] {
                if let Ok(draft) = convert(format, &text) {
                    prop_assert!(file::parse(&draft.render("x", format)).is_ok());
                }
            }
        }
    }
}
