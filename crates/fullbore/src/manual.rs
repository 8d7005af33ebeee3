//! Manual pages, one for each command and one for the settings file, and completions for shells.
//!
//! Flags, descriptions and examples come from the definition of the command line, the other sections from `sections`.
//!
//! ```
//! let pages = fullbore::manual::pages();
//! let mirror = pages.iter().find(|page| page.name == "fullbore-mirror.1").unwrap();
//! assert!(mirror.text.contains(".SH EXAMPLES"));
//! ```

mod sections;
mod settings_file;

use clap::builder::StyledStr;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli;

/// A page in the language of roff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Name of its file, such as `fullbore-mirror.1`.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// All pages, those of the commands first.
pub fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    let mut command = cli::command();
    command.build();
    add_pages(&command, &mut pages);
    pages.push(settings_file::page(&command));
    pages
}

/// What a package has besides the program: pages and completions, by their names below a directory of generated files.
pub fn packaged_files() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> =
        pages().into_iter().map(|page| (format!("man/{}", page.name), page.text.into_bytes())).collect();
    for (shell, name) in [(Shell::Bash, "fullbore.bash"), (Shell::Zsh, "_fullbore"), (Shell::Fish, "fullbore.fish")] {
        files.push((format!("completions/{name}"), completions(shell)));
    }
    files
}

/// The completions of all commands for this shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "fullbore", &mut text);
    text
}

/// A page for the command and one for each command below it; `help` needs none.
fn add_pages(command: &clap::Command, pages: &mut Vec<Page>) {
    pages.push(Page { name: format!("{}.1", name_of(command)), text: page_of(command) });
    for below in command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set()) {
        add_pages(below, pages);
    }
}

/// The page's name: `fullbore-apt-enable`.
fn name_of(command: &clap::Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

/// `.TH`, the first line of a page.
fn title(page: &mut Roff, name: &str, section: &str) {
    let source = format!("fullbore {}", crate::VERSION);
    // No date, so that a page is the same whenever it is made; an empty argument would not count.
    page.control("TH", [name.to_uppercase().as_str(), section, r"\&", &source, "fullbore"]);
}

fn page_of(command: &clap::Command) -> String {
    let name = name_of(command);
    let mut page = Roff::new();
    title(&mut page, &name, "1");
    let about = command.get_about().map(StyledStr::to_string).unwrap_or_default();
    page.control("SH", ["NAME"]).text([roman(format!("{name} - {about}"))]);
    synopsis(&mut page, command);
    page.control("SH", ["DESCRIPTION"]);
    let long = command.get_long_about().or(command.get_about()).map(StyledStr::to_string).unwrap_or_default();
    paragraphs(&mut page, &long);
    let mut text = page.render();

    text.push_str(&options(command));
    let mut page = Roff::new();
    commands(&mut page, command);
    let (examples, notes) = after_help(command);
    for section in sections::of(&name) {
        page.control("SH", [section.heading]);
        paragraphs(&mut page, section.about);
        for (term, meaning) in section.entries {
            page.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
        }
    }
    if !notes.is_empty() {
        page.control("SH", ["NOTES"]);
        paragraphs(&mut page, &notes);
    }
    let examples = if examples.is_empty() { sections::examples(&name).to_owned() } else { examples };
    show_examples(&mut page, &examples);
    see_also(&mut page, command, &name);
    text.push_str(&page.to_roff_with_apostrophes());
    text
}

/// The usage line, which names the arguments and says `[OPTIONS]` for the rest.
fn synopsis(page: &mut Roff, command: &clap::Command) {
    page.control("SH", ["SYNOPSIS"]);
    let usage = command.clone().render_usage().to_string();
    for (number, line) in usage.trim_start_matches("Usage:").lines().enumerate() {
        if number > 0 {
            page.control("br", []);
        }
        page.text([bold(line.trim())]);
    }
}

/// Paragraphs are separated by empty lines.
fn paragraphs(page: &mut Roff, text: &str) {
    for line in text.lines().map(str::trim) {
        if line.is_empty() {
            page.control("PP", []);
        } else {
            page.text([roman(line)]);
        }
    }
}

/// The options as clap_mangen writes them, with the headings of `--help` as headings within one section.
fn options(command: &clap::Command) -> String {
    let mut rendered = Vec::new();
    let written = Man::new(command.clone()).render_options_section(&mut rendered);
    written.expect("a vector takes everything");
    let rendered = String::from_utf8_lossy(&rendered);
    let mut text = String::from(".SH OPTIONS\n");
    let headings: Vec<&str> = command.get_arguments().filter_map(|argument| argument.get_help_heading()).collect();
    // The first two lines define an apostrophe, which the page has done.
    for line in rendered.lines().skip(2).filter(|line| *line != ".SH OPTIONS") {
        match line.strip_prefix(".SH ") {
            Some(heading) => {
                let upper = heading.trim_matches('"');
                let heading = headings.iter().find(|known| known.to_uppercase() == upper).copied().unwrap_or(upper);
                text.push_str(&format!(".SS \"{heading}\"\n"));
            }
            None if line.is_empty() => text.push_str(".sp\n"),
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

fn commands(page: &mut Roff, command: &clap::Command) {
    let mut below =
        command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set()).peekable();
    if below.peek().is_none() {
        return;
    }
    page.control("SH", ["COMMANDS"]);
    for below in below {
        let about = below.get_about().map(StyledStr::to_string).unwrap_or_default();
        page.control("TP", []).text([bold(format!("{}(1)", name_of(below)))]).text([roman(about)]);
    }
}

/// What `--help` shows below the options: the examples, and what is said besides. Exit codes have a section of their own.
fn after_help(command: &clap::Command) -> (String, String) {
    let text = command.get_after_long_help().map(StyledStr::to_string).unwrap_or_default();
    let Some(examples) = text.strip_prefix("Examples:\n") else { return (String::new(), text) };
    let (examples, notes) = examples.split_once("\n\n").unwrap_or((examples, ""));
    let notes = match notes.starts_with("Exit status") {
        true => "",
        false => notes,
    };
    (examples.to_owned(), notes.to_owned())
}

/// A caption is indented by two, a command by four or more.
fn show_examples(page: &mut Roff, examples: &str) {
    if examples.is_empty() {
        return;
    }
    page.control("SH", ["EXAMPLES"]);
    let mut in_command = false;
    for line in examples.lines() {
        let command = line.strip_prefix("    ");
        if in_command && command.is_none() {
            page.control("EE", []).control("RE", []);
        }
        match command {
            Some(command) => {
                if !in_command {
                    page.control("RS", ["4"]).control("EX", []);
                }
                page.text([roman(command)]);
            }
            None => {
                page.control("PP", []).text([roman(line.trim())]);
            }
        }
        in_command = command.is_some();
    }
    if in_command {
        page.control("EE", []).control("RE", []);
    }
}

/// The command above, its other commands, and what [`sections`] names.
fn see_also(page: &mut Roff, command: &clap::Command, name: &str) {
    let mut others: Vec<String> = Vec::new();
    if let Some((above, _)) = name.rsplit_once('-') {
        others.push(format!("{above}(1)"));
    }
    others.extend(
        command
            .get_subcommands()
            .filter(|below| below.get_name() != "help" && !below.is_hide_set())
            .map(|below| format!("{}(1)", name_of(below))),
    );
    others.extend(sections::see_also(name).iter().map(|other| (*other).to_owned()));
    page.control("SH", ["SEE ALSO"]);
    let text = others.join(", ");
    page.text([roman(text)]);
    page.control("PP", []).text([roman("Guides: /usr/share/doc/fullbore/guide/")]);
}

/// The rest of a page whose beginning has defined the apostrophe.
trait Continued {
    fn to_roff_with_apostrophes(&self) -> String;
}

impl Continued for Roff {
    fn to_roff_with_apostrophes(&self) -> String {
        let text = self.render();
        text.splitn(3, '\n').nth(2).unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> String {
        pages().into_iter().find(|page| page.name == name).unwrap_or_else(|| panic!("no page {name}")).text
    }

    #[test]
    fn every_command_has_a_page_with_all_sections() {
        for page in pages().iter().filter(|page| page.name.ends_with(".1")) {
            for heading in
                ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"EXIT STATUS\"", "ENVIRONMENT", "\"SEE ALSO\""]
            {
                let lines = page.text.lines().filter(|line| *line == format!(".SH {heading}")).count();
                assert_eq!(lines, 1, "{heading} of {}", page.name);
            }
        }
        for name in [
            "mirror",
            "work",
            "check",
            "update",
            "copy",
            "probe",
            "bootstrap",
            "install",
            "put",
            "get",
            "pdiff-publish",
        ] {
            let text = page(&format!("fullbore-{name}.1"));
            assert!(text.contains(".SH EXAMPLES\n"), "{name}");
        }
        assert!(page("fullbore.1").contains(".SH EXAMPLES\n"));
    }

    #[test]
    fn examples_can_be_copied() {
        let text = page("fullbore-check.1");
        let example = "fullbore check /srv/mirror/debian \\-\\-repair \\-\\-from https://deb.example.org/debian";
        assert!(text.contains(&format!(".EX\n{example}\n.EE\n")), "{text}");
    }

    #[test]
    fn nosync_says_whose_exit_status_it_has() {
        let text = page("fullbore-nosync.1");
        assert!(text.contains("125") && !text.contains(".SH NOTES"), "{text}");
    }

    #[test]
    fn files_and_variables_named_are_those_that_exist() {
        assert!(page("fullbore-put.1").contains("AWS_ACCESS_KEY_ID"));
        assert!(page("fullbore-mirror.1").contains("/etc/fullbore/mirror.toml"));
    }

    #[test]
    fn pages_are_ordered_and_named_once() {
        let names: Vec<String> = pages().into_iter().map(|page| page.name).collect();
        let unique: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert!(names.contains(&"fullbore-mirror.toml.5".to_owned()));
    }
}
