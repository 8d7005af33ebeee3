//! The commands of a shell file, read as far as needed to know which assignments surely happen.

/// One assignment. `value` is `None` if the shell would have to work it out.
pub struct Assignment {
    /// Line within the command, from 0.
    pub line: usize,
    pub name: String,
    pub value: Option<String>,
}

/// One command, up to its newline or semicolon; a compound one, such as `if … fi`, with all in it.
pub struct Command<'a> {
    words: Vec<Word<'a>>,
    /// Bytes that it takes.
    pub length: usize,
    is_compound: bool,
}

struct Word<'a> {
    raw: &'a str,
    /// Without quotes; `None` if only a shell can tell.
    value: Option<String>,
    /// Lines before it within the command.
    lines: usize,
}

impl<'a> Command<'a> {
    /// The command at the beginning of a text, which begins with a word.
    pub fn read(text: &'a str) -> Command<'a> {
        let mut command = Command { words: Vec::new(), length: 0, is_compound: false };
        // The words that end the compound commands around this place.
        let mut ends: Vec<&str> = Vec::new();
        let (mut lines, mut is_first, mut has_body_ahead) = (0, true, false);
        while let Some(c) = text[command.length..].chars().next() {
            let rest = &text[command.length..];
            if c == '#' {
                command.length += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            if c.is_whitespace() || c == ';' {
                let ends_a_command = matches!(c, '\n' | ';');
                if ends_a_command && ends.is_empty() && !has_body_ahead {
                    break;
                }
                lines += usize::from(c == '\n');
                is_first |= ends_a_command;
                command.length += c.len_utf8();
                continue;
            }
            let (value, length) = word(rest);
            let raw = &rest[..length];
            let parentheses = |which| raw.matches(which).count();
            if ends.last() == Some(&")") || is_first && raw.starts_with('(') {
                ends.extend(std::iter::repeat_n(")", parentheses('(')));
                for _ in 0..parentheses(')') {
                    ends.pop_if(|end| *end == ")");
                }
                command.is_compound = true;
            } else if is_first && ends.last() == Some(&raw) {
                ends.pop();
            } else if let Some(end) = end_of(raw).filter(|_| is_first || raw == "{") {
                ends.push(end);
                command.is_compound = true;
                has_body_ahead = false;
            } else if is_first && (raw.ends_with("()") || raw == "function") {
                has_body_ahead = true;
            }
            is_first = is_first && is_before_a_command(raw) || is_operator(raw);
            command.words.push(Word { raw, value, lines });
            command.length += length;
            lines += raw.matches('\n').count();
        }
        command.length += command.document(&text[command.length..]);
        command
    }

    /// The bytes of a here-document that the command reads, from the end of its line.
    fn document(&self, rest: &str) -> usize {
        let mut words = self.words.iter();
        let Some(delimiter) = words.find_map(|word| {
            let (_, name) = word.raw.split_once("<<").filter(|(_, name)| !name.starts_with('<'))?;
            let name = name.trim_start_matches('-').trim_matches(['"', '\'', '\\']);
            Some(if name.is_empty() { None } else { Some(name) })
        }) else {
            return 0;
        };
        let Some(delimiter) = delimiter.or_else(|| words.next().map(|word| word.raw.trim_matches(['"', '\'', '\\'])))
        else {
            return 0;
        };
        let mut length = 0;
        for (number, line) in rest.split_inclusive('\n').enumerate() {
            length += line.len();
            if number > 0 && line.trim() == delimiter {
                break;
            }
        }
        length
    }

    /// What it assigns, if it does nothing else.
    pub fn assignments(&self) -> Option<Vec<Assignment>> {
        let words = match &self.words[..] {
            [export, words @ ..] if export.raw == "export" => words,
            words => words,
        };
        let assigned = words.iter().map(|word| {
            let (name, _) = word.raw.split_once('=').filter(|(name, _)| is_name(name))?;
            let value = word.value.as_ref().and_then(|word| word.split_once('=')).map(|(_, value)| value.to_owned());
            Some(Assignment { line: word.lines, name: name.to_owned(), value })
        });
        if self.is_compound { None } else { assigned.collect() }
    }
}

/// The word that ends the compound command which this word begins.
fn end_of(word: &str) -> Option<&'static str> {
    Some(match word {
        "if" => "fi",
        "for" | "while" | "until" | "select" => "done",
        "case" => "esac",
        "{" => "}",
        _ => return None,
    })
}

/// Whether a command follows this word, if the word itself stands where a command begins.
fn is_before_a_command(word: &str) -> bool {
    matches!(word, "if" | "then" | "elif" | "else" | "while" | "until" | "do" | "{" | "!") || word.ends_with(['(', ')'])
}

/// Whether a command follows this word anywhere.
fn is_operator(word: &str) -> bool {
    matches!(word, "&&" | "||" | "|" | "&")
}

fn is_name(text: &str) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The word at the beginning, quotes removed, and how many bytes it takes. The word is
/// `None` when it has substitutions, which only a shell can do.
fn word(text: &str) -> (Option<String>, usize) {
    let mut value = String::new();
    let mut plain = true;
    let mut quote = None;
    let mut letters = text.char_indices().peekable();
    while let Some((at, c)) = letters.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some('\''), c) => value.push(c),
            (_, '\\') => value.extend(letters.next().map(|(_, escaped)| escaped)),
            (_, '`') => {
                plain = false;
                letters.find(|(_, c)| *c == '`');
            }
            (_, '$') => {
                plain = false;
                skip_substitution(&mut letters);
            }
            // Operators, and lists.
            (None, '&' | '|' | '<' | '>' | '(' | ')') => plain = false,
            (Some(_), c) => value.push(c),
            (None, '"' | '\'') => quote = Some(c),
            (None, c) if c.is_whitespace() || c == ';' => return (plain.then_some(value), at),
            (None, '#') if at == 0 => return (Some(String::new()), 0),
            (None, c) => value.push(c),
        }
    }
    ((plain && quote.is_none()).then_some(value), text.len())
}

/// Passes `(…)` or `{…}` behind a dollar, others within them counted.
fn skip_substitution(letters: &mut std::iter::Peekable<std::str::CharIndices<'_>>) {
    let Some((open, close)) =
        [('(', ')'), ('{', '}')].into_iter().find(|(open, _)| letters.peek().is_some_and(|(_, next)| next == open))
    else {
        return;
    };
    let mut depth = 0;
    for (_, c) in letters.by_ref() {
        depth += i32::from(c == open) - i32::from(c == close);
        if depth == 0 {
            break;
        }
    }
}
