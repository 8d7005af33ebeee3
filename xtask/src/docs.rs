//! Man pages and completions, made from the flags of the program; the schema of `--json`, made from its types.

use std::fs;
use std::io;
use std::path::Path;

use clap_complete::Shell;

const NOTE: &str = "; run `cargo run -p xtask -- docs`";

/// The schema of a line of `--json`, by its name below packaging/.
const SCHEMA: &str = "../docs/reference/events.schema.json";

/// What a line of `--json` may be (JSON Schema, draft 2020-12).
fn schema() -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_string_pretty(&schemars::schema_for!(fullbore_engine::run::Event))?;
    text.push('\n');
    Ok(text.into_bytes())
}

/// Every generated file, by its name below packaging/.
fn files() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    let mut command = fullbore::cli::command();
    command.build();
    man_pages(&command, &mut files)?;
    for (shell, name) in [(Shell::Bash, "fullbore.bash"), (Shell::Zsh, "_fullbore"), (Shell::Fish, "fullbore.fish")] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut fullbore::cli::command(), "fullbore", &mut text);
        files.push((format!("completions/{name}"), text));
    }
    files.push((SCHEMA.to_owned(), schema()?));
    Ok(files)
}

/// A page for the command and one for each command below it; `help` needs none.
fn man_pages(command: &clap::Command, files: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let page = clap_mangen::Man::new(command.clone())
        .title(name.to_uppercase())
        .manual("fullbore")
        .source(format!("fullbore {}", fullbore::VERSION))
        .date("");
    let mut text = Vec::new();
    page.render(&mut text)?;
    files.push((format!("man/{name}.1"), text));
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        man_pages(below, files)?;
    }
    Ok(())
}

/// Writes them all.
pub fn write(packaging: &Path) -> io::Result<()> {
    for (name, text) in files()? {
        let path = packaging.join(&name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text)?;
        println!("packaging/{name}");
    }
    Ok(())
}

/// Fails if one of them is not what the flags say now.
pub fn check(packaging: &Path) -> io::Result<()> {
    for (name, text) in files()? {
        if fs::read(packaging.join(&name)).ok().as_ref() != Some(&text) {
            return Err(io::Error::other(format!("packaging/{name} is out of date{NOTE}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_pages_and_completions_are_up_to_date() {
        check(&crate::packaging()).unwrap();
    }

    #[test]
    fn every_command_has_a_page() {
        let names: Vec<String> = files().unwrap().into_iter().map(|(name, _)| name).collect();
        for page in ["fullbore", "fullbore-mirror", "fullbore-check", "fullbore-convert", "fullbore-pdiff-publish"] {
            assert!(names.contains(&format!("man/{page}.1")), "{names:?}");
        }
    }
}
