//! Errors of the command line: one sentence on what is wrong, and one hint on what to type.
//!
//! clap adds tips, usage lines and a pointer to `--help` to each of its errors. Here its error becomes one of the form
//! that all other errors have. Options and commands of other tools have their own table, in `other_tools`.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::other_tools;

/// What is wrong with a command line, and what to type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    /// One sentence without a full stop.
    pub message: String,
    /// An imperative, if the message does not say everything.
    pub hint: Option<String>,
}

/// An argument that is missing: the command, the beginning of the argument as clap writes it, the error and the hint.
/// An option comes before the positional arguments of its command: it is the one that another option needs.
const MISSING: &[(&str, &str, &str, &str)] = &[
    (
        "put",
        "--dry-run",
        "--convergence is only for --dry-run: every user of the machine can see a command line",
        "pass the secret with --convergence-file FILE, or add --dry-run",
    ),
    (
        "put",
        "--random-key",
        "--size is only for --random-key: other keys depend on the whole content",
        "add --random-key, or leave --size out",
    ),
    ("put", "--delete", "--max-delete and --force-delete are only for --delete", "add --delete"),
    ("mirror", "--snapshot", "--snapshot-full is only for --snapshot", "add --snapshot NAME"),
    ("mirror", "--finish", "--verify-objects is only for --finish", "add --finish RUN"),
    ("", "--queue-key", "--queue-cert and --queue-key belong together", "pass both"),
    ("", "--queue-cert", "--queue-cert and --queue-key belong together", "pass both"),
    ("divert", "--root", "no root to change", "add --root DIR"),
    ("nosync", "<", "no command to run", "name it, as in `fullbore nosync -- apt-get install --yes build-essential`"),
    ("copy", "<", "no SRC and DST given", "name both, as in `fullbore copy /srv/data host:/srv`"),
    ("probe", "<", "no SRC and DST given", "name both, as in `fullbore probe /srv/data host:/srv`"),
    ("put", "<", "no FILE or DIR to put", "name it before the address, as in `fullbore put DIR s3://BUCKET/PREFIX`"),
    ("get", "<", "no object or cap to get", "name it, as in `fullbore get -o FILE s3://BUCKET/KEY`"),
    ("ls", "<", "no bucket or cap to list", "name it, as in `fullbore ls s3://BUCKET/PREFIX/`"),
    ("check", "<", "nothing to check", "name it, as in `fullbore check /srv/mirror/debian`"),
    ("work", "<", "no queue or mirror to work for", "name it, as in `fullbore work tls://HOST:4222`"),
    ("install", "<", "no package to install", "name it, as in `fullbore install hello`"),
    ("convert", "<", "no file to convert", "name it, as in `fullbore convert /etc/apt/mirror.list`"),
    ("completions", "<", "no shell given", "name it, as in `fullbore completions bash`"),
];

/// What is wrong, by an error of clap. `command` is the first word of the command line, `definition` the whole program.
pub(super) fn explain(error: &clap::Error, command: &str, definition: &clap::Command) -> Mistake {
    let see_help = || match definition.find_subcommand(command) {
        Some(_) => format!("see `fullbore {command} --help`"),
        None => "see `fullbore --help`".to_owned(),
    };
    let (message, hint) = match error.kind() {
        ErrorKind::UnknownArgument => {
            let hint = for_argument(error, command, definition);
            (sentence(error), Some(hint.unwrap_or_else(see_help)))
        }
        ErrorKind::InvalidSubcommand => (sentence(error), Some(for_command(error, command).unwrap_or_else(see_help))),
        ErrorKind::MissingRequiredArgument => {
            let missing = texts(error, ContextKind::InvalidArg);
            let known = MISSING.iter().find(|(of, argument, ..)| {
                (of.is_empty() || *of == command) && missing.iter().any(|missing| missing.starts_with(argument))
            });
            match known {
                Some((_, _, message, hint)) => ((*message).to_owned(), Some((*hint).to_owned())),
                None => (format!("missing: {}", missing.join(" ")), Some(see_help())),
            }
        }
        ErrorKind::InvalidValue => {
            let words = texts(error, ContextKind::ValidValue);
            let (argument, value) = (text(error, ContextKind::InvalidArg), text(error, ContextKind::InvalidValue));
            let message = match (argument, value) {
                (Some(argument), Some("")) => format!("no value for '{argument}'"),
                _ => sentence(error),
            };
            (message, Some(if words.is_empty() { see_help() } else { format!("use one of {}", words.join(", ")) }))
        }
        // Our own parsers of values say what they expect.
        ErrorKind::ValueValidation => (sentence(error), None),
        ErrorKind::ArgumentConflict => {
            let message = sentence(error);
            let hint = if message.ends_with("multiple times") { "pass it once" } else { "leave one of them out" };
            (message, Some(hint.to_owned()))
        }
        _ => (sentence(error), Some(see_help())),
    };
    Mistake { message, hint }
}

/// The first sentence of clap's text, on one line. Possible values, tips and usage lines follow it.
fn sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let lines = paragraph.lines().map(str::trim).filter(|line| !line.starts_with("[possible values: "));
    // "100 is not in 1..=16"
    lines.collect::<Vec<_>>().join(" ").replace("..=", " to ")
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    }
}

fn texts(error: &clap::Error, kind: ContextKind) -> Vec<&str> {
    match error.get(kind) {
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// What to type instead of an argument that the command does not take.
fn for_argument(error: &clap::Error, command: &str, definition: &clap::Command) -> Option<String> {
    let word = text(error, ContextKind::InvalidArg)?;
    if command == "update" && !word.starts_with('-') && word.contains("://") {
        return Some("put the archive's address into apt's sources, or into a file for --sources".to_owned());
    }
    if let Some(hint) = other_tools::for_option(command, word) {
        return Some(hint.to_owned());
    }
    let similar = text(error, ContextKind::SuggestedArg)?;
    let name = shown_name(definition.find_subcommand(command)?, similar.trim_start_matches('-'))?;
    Some(format!("use --{name}"))
}

/// The name in help texts of an option, which may have older names; `None` if it is not for people.
fn shown_name<'a>(command: &'a clap::Command, name: &str) -> Option<&'a str> {
    let is = |argument: &&clap::Arg| {
        argument.get_long() == Some(name) || argument.get_all_aliases().unwrap_or_default().contains(&name)
    };
    match command.get_arguments().find(is) {
        Some(argument) => argument.get_long().filter(|_| !argument.is_hide_set()),
        None => command.get_subcommands().find_map(|command| shown_name(command, name)),
    }
}

/// What to type instead of a command that fullbore does not have.
fn for_command(error: &clap::Error, command: &str) -> Option<String> {
    let word = text(error, ContextKind::InvalidSubcommand)?;
    if let Some(hint) = other_tools::for_command(word) {
        return Some(hint.to_owned());
    }
    // The most similar one is the last.
    let similar = texts(error, ContextKind::SuggestedSubcommand).pop()?;
    let before = if word == command { String::new() } else { format!("{command} ") };
    Some(format!("use `fullbore {before}{similar}`"))
}

#[cfg(test)]
mod tests {
    use super::super::{command, parse};
    use super::*;

    fn mistake(line: &str) -> Mistake {
        let words: Vec<&str> = line.split(' ').collect();
        let error = parse(["fullbore"].iter().chain(&words)).unwrap_err();
        explain(&error, words[0], &command())
    }

    #[track_caller]
    fn is(line: &str, message: &str, hint: &str) {
        let expected = Mistake { message: message.to_owned(), hint: Some(hint.to_owned()) };
        assert_eq!(mistake(line), expected, "{line}");
    }

    #[test]
    fn a_misspelt_word_is_spelt_right_in_the_hint() {
        is("mirror --form https://x/", "unexpected argument '--form' found", "use --from");
        is("miror", "unrecognized subcommand 'miror'", "use `fullbore mirror`");
        is("pdiff mrge", "unrecognized subcommand 'mrge'", "use `fullbore pdiff merge`");
        is("pdiff merge --ouput x y", "unexpected argument '--ouput' found", "use --output");
        // An older name of an option is not suggested, and neither is one for tests.
        is("put --overwrit a s3://b/", "unexpected argument '--overwrit' found", "use --overwrite");
        is("put --resen a s3://b/", "unexpected argument '--resen' found", "use --overwrite");
        assert_ne!(mistake("copy --servr a b").hint.as_deref(), Some("use --server"));
        is("ls --frobnicate x", "unexpected argument '--frobnicate' found", "see `fullbore ls --help`");
        is("--frobnicate", "unexpected argument '--frobnicate' found", "see `fullbore --help`");
    }

    #[test]
    fn what_is_missing_is_named_with_an_example() {
        is(
            "put --convergence mzxw6 photo.jpg",
            "--convergence is only for --dry-run: every user of the machine can see a command line",
            "pass the secret with --convergence-file FILE, or add --dry-run",
        );
        is("nosync", "no command to run", "name it, as in `fullbore nosync -- apt-get install --yes build-essential`");
        is("put --max-delete 5% a s3://b/", "--max-delete and --force-delete are only for --delete", "add --delete");
        is("work tls://h:1 --queue-cert x", "--queue-cert and --queue-key belong together", "pass both");
        is("divert off", "no root to change", "add --root DIR");
        is("pdiff generate a", "missing: <NEW>", "see `fullbore pdiff --help`");
    }

    #[test]
    fn every_command_that_needs_an_argument_has_an_example() {
        for (name, _, message, _) in MISSING.iter().filter(|(_, argument, ..)| *argument == "<") {
            assert_eq!(mistake(name).message, *message, "{name}");
        }
        for (name, argument, _, hint) in MISSING.iter().filter(|(name, ..)| !name.is_empty()) {
            let definition = command();
            let command = definition.find_subcommand(name).unwrap();
            let has = |name: &str| shown_name(command, name).is_some();
            assert!(*argument == "<" || has(&argument[2..]), "{name} {argument}");
            for word in hint.split_whitespace().filter(|word| word.starts_with("--") && *name != "nosync") {
                assert!(has(word.trim_matches(['-', ','])), "{name}: {word}");
            }
        }
    }

    #[test]
    fn wrong_values_are_explained_once() {
        is(
            "bootstrap --format docker trixie",
            "invalid value 'docker' for '--format <FORMAT>'",
            "use one of auto, dir, tar, squashfs, ext2, ext4, null, oci",
        );
        let connections = mistake("mirror --connections 100");
        assert_eq!(connections.message, "invalid value '100' for '--connections <N>': 100 is not in 1 to 16");
        assert_eq!(connections.hint, None);
        is("mirror --suite", "no value for '--suite <SUITE>'", "see `fullbore mirror --help`");
        let both = mistake("mirror --pin --dry-run");
        assert!(both.message.contains("cannot be used with"), "{both:?}");
        assert_eq!(both.hint.as_deref(), Some("leave one of them out"));
        assert!(!both.message.contains("Usage") && !both.message.contains('\n'), "{both:?}");
    }
}
