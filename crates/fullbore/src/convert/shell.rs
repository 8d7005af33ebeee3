//! The assignments of a shell file, which is read and not executed.
//!
//! Only commands that do nothing but assign are understood. Whether a later one holds depends on the first command of another
//! kind, such as an `if` or a function: a later assignment never replaces a value, and a note names it.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::str::CharIndices;

use super::Draft;

/// One assignment. `value` is `None` if the shell would have to work it out.
pub struct Assignment {
    /// Line in the file, from 1.
    pub line: usize,
    pub name: String,
    pub value: Option<String>,
}

/// The assignments of a file; all else becomes notes.
pub fn assignments(text: &str, draft: &mut Draft) -> Vec<Assignment> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    // The line of the first command that does something else.
    let mut code: Option<usize> = None;
    let (mut line, mut rest) = (1, text);
    while let Some(c) = rest.chars().next() {
        if c == '#' {
            rest = &rest[line_end(rest)..];
            continue;
        }
        if c.is_ascii_whitespace() || c == ';' {
            line += usize::from(c == '\n');
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let command = Command::read(rest);
        let raw;
        (raw, rest) = rest.split_at(command.length);
        match command.assignments(line) {
            Some(assigned) => {
                for one in assigned {
                    let is_new = names.insert(one.name.clone());
                    if let Some(code) = code {
                        let shown = format!("{}={}", one.name, one.value.as_deref().unwrap_or("…"));
                        draft.note_doubtful(one.line, shown, code, is_new);
                    }
                    if code.is_none() || is_new {
                        found.push(one);
                    }
                }
            }
            None => {
                let reason = match command.is_open {
                    true => "a quote or substitution begins here and does not end; nothing after it was read",
                    false => "not an assignment; the file is not executed",
                };
                draft.note(line, raw, reason);
                code.get_or_insert(line);
            }
        }
        line += raw.matches('\n').count();
    }
    found
}

/// One command, up to its newline or semicolon.
struct Command<'a> {
    words: Vec<Word<'a>>,
    /// Bytes that it takes.
    length: usize,
    /// Whether the file ends within a quote or a substitution.
    is_open: bool,
}

struct Word<'a> {
    raw: &'a str,
    read: Read,
    /// Lines before it within the command.
    lines: usize,
}

impl<'a> Command<'a> {
    /// The command at the beginning of a text, which begins with a word.
    fn read(text: &'a str) -> Command<'a> {
        let mut command = Command { words: Vec::new(), length: 0, is_open: false };
        let mut lines = 0;
        while let Some(c) = text[command.length..].chars().next() {
            let rest = &text[command.length..];
            match c {
                '\n' | ';' => break,
                '#' => command.length += line_end(rest),
                c if c.is_ascii_whitespace() => command.length += c.len_utf8(),
                _ => {
                    let read = word(rest);
                    let raw = &rest[..read.length];
                    command.length += read.length;
                    command.is_open |= read.is_open;
                    // A line that goes on is no word.
                    if !raw.replace("\\\n", "").is_empty() {
                        command.words.push(Word { raw, read, lines });
                    }
                    lines += raw.matches('\n').count();
                }
            }
        }
        command
    }

    /// What it assigns, if it does nothing else.
    fn assignments(&self, line: usize) -> Option<Vec<Assignment>> {
        let is_export = self.words.first().is_some_and(|word| word.raw == "export");
        let words = self.words.iter().skip(usize::from(is_export));
        let words = words.filter(|word| !(is_export && is_name(word.raw)));
        let assigned = words.map(|word| {
            let (name, assigned) =
                word.raw.split_once('=').filter(|(name, _)| is_name(name) && !word.read.has_operator)?;
            let has_home = assigned.starts_with('~') || assigned.contains(":~");
            let value = word.read.value.as_ref().filter(|_| !has_home).and_then(|word| word.split_once('='));
            let value = value.map(|(_, value)| value.to_owned());
            // Where such a value really ends, only a shell can tell.
            if value.is_none() && word.raw.contains('\n') {
                return None;
            }
            Some(Assignment { line: line + word.lines, name: name.to_owned(), value })
        });
        if self.is_open { None } else { assigned.collect() }
    }
}

/// Where the line ends that begins here.
fn line_end(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

fn is_name(text: &str) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A word that was read.
struct Read {
    /// Without quotes; `None` if it has substitutions, which only a shell can do.
    value: Option<String>,
    /// Bytes that it takes.
    length: usize,
    /// Whether it has unquoted operators or parentheses: then it is more than a word.
    has_operator: bool,
    is_open: bool,
}

/// The word at the beginning (POSIX, Shell Command Language, sections 2.2 and 2.3).
fn word(text: &str) -> Read {
    let (mut value, mut is_plain, mut has_operator) = (String::new(), true, false);
    let (mut quote, mut is_closed) = (None, true);
    let mut letters = text.char_indices().peekable();
    let mut length = text.len();
    while let Some((at, c)) = letters.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some('\''), c) => value.push(c),
            (_, '\\') => match letters.next() {
                Some((_, '\n')) | None => {}
                Some((_, escaped)) => {
                    if quote.is_some() && !matches!(escaped, '$' | '`' | '"' | '\\') {
                        value.push('\\');
                    }
                    value.push(escaped);
                }
            },
            (_, '`') => {
                is_plain = false;
                is_closed &= letters.any(|(_, c)| c == '`');
            }
            (_, '$') => {
                is_plain = false;
                is_closed &= passes_substitution(&mut letters);
            }
            (Some(_), c) => value.push(c),
            (None, '"' | '\'') => quote = Some(c),
            (None, c) if c.is_ascii_whitespace() || c == ';' => {
                length = at;
                break;
            }
            (None, c) => {
                has_operator |= matches!(c, '&' | '|' | '<' | '>' | '(' | ')');
                value.push(c);
            }
        }
    }
    let is_open = quote.is_some() || !is_closed;
    Read { value: is_plain.then_some(value), length, has_operator, is_open }
}

/// Passes `(…)` or `{…}` behind a dollar, others within them counted. Whether it ends.
fn passes_substitution(letters: &mut Peekable<CharIndices<'_>>) -> bool {
    let Some((open, close)) =
        [('(', ')'), ('{', '}')].into_iter().find(|(open, _)| letters.peek().is_some_and(|(_, next)| next == open))
    else {
        return true;
    };
    let (mut depth, mut quote) = (0, None);
    while let Some((_, c)) = letters.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some('\''), _) => {}
            (_, '\\') => drop(letters.next()),
            (Some(_), _) => {}
            // Within braces an apostrophe may be one.
            (None, '"' | '\'') if open == '(' => quote = Some(c),
            (None, c) => {
                depth += i32::from(c == open) - i32::from(c == close);
                if depth == 0 {
                    return true;
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and values of those taken, `?` for unknown ones, and the lines of the notes.
    fn read(text: &str) -> (Vec<String>, Vec<usize>) {
        let mut draft = Draft::default();
        let found = assignments(text, &mut draft);
        let shown = found.into_iter().map(|one| format!("{}={}", one.name, one.value.unwrap_or("?".to_owned())));
        (shown.collect(), draft.notes.iter().map(|note| note.line).collect())
    }

    #[test]
    fn values_are_what_the_shell_makes_of_them() {
        for (text, expected) in [
            ("A=1 B='x y'; export C=\"z\" D\n", &["A=1", "B=x y", "C=z"][..]),
            ("A=/srv/\\\nmirror\nB=\"a \\\nb\"\n", &["A=/srv/mirror", "B=a b"]),
            (r#"A="a\b\$" B=a\b"#, &["A=a\\b$", "B=ab"]),
            ("A=~/m B=x:~/y C='~'\n", &["A=?", "B=?", "C=~"]),
            (
                "A=$(hostname | sed 's/(.*//') B=`x` C=${Y:-it's} D=$((1<<3))\nE=5\n",
                &["A=?", "B=?", "C=?", "D=?", "E=5"],
            ),
            ("A='Example <<https://e>>' # it's\nB=a#b\n", &["A=Example <<https://e>>", "B=a#b"]),
            ("export A=/srv \\\n  B=h\n", &["A=/srv", "B=h"]),
        ] {
            assert_eq!(read(text), (expected.iter().map(|&one| one.to_owned()).collect(), vec![]), "{text}");
        }
    }

    #[test]
    fn what_other_code_may_decide_is_noted_and_replaces_nothing() {
        for code in [
            "if [ -f x ]; then\n",
            "f(){\n",
            "f () (\n",
            "function f {\n",
            "[ -d /big ] &&\n",
            "x &&{\n",
            "cat <<EOF\n",
            "cat f|while read l; do\n",
            "if((1)); then\n",
            "case $x in a)\n",
            "X=(\n",
            "A=/x rsync\n",
            ". /etc/x\n",
            "unset A\n",
            "A+=/x\n",
        ] {
            let (found, notes) = read(&format!("A=/a\n{code}A=/x B=/b\n"));
            assert_eq!(found, ["A=/a", "B=/b"], "{code}");
            assert!(notes.starts_with(&[2]) && notes.ends_with(&[3, 3]), "{code}: {notes:?}");
        }
        let (found, notes) = read("A=/a\nC=$(cat <<EOF\nx\nEOF\n)\nA=/x B=/b\n");
        assert_eq!((found, notes), (vec!["A=/a".to_owned(), "B=/b".to_owned()], vec![2, 6, 6]));
        assert_eq!(read("A=1\nB='x\nC=2\n"), (vec!["A=1".to_owned()], vec![2]), "no end of the quote");
        assert_eq!(read("A=1\nB=$(x\nC=2\n"), (vec!["A=1".to_owned()], vec![2]));
    }
}
