//! Foreign text made harmless for a terminal, a log and a page.
//!
//! A server, the far end of a copy or a file name may contain terminal escapes, line breaks and invisible characters.
//! Code that writes lines passes each line through [`line()`] once, at the end, so that no caller has to remember it. The
//! result has no character that [`is_hidden`] names, so a second pass changes nothing. A backslash stays as it is: this
//! text is for people. Programs read JSON, which [`json`] escapes. What goes to stderr or a log passes [`message`], which
//! leaves out credentials as well.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character acts on a terminal or is invisible: control characters (C0, DEL and C1), line and paragraph
/// separators, and Unicode format characters (category Cf) without a shape. Format characters can reverse the direction
/// of text, or make two names look the same.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Text on one line: each hidden character becomes `\n`, `\r`, `\t` or a form such as `\u{1b}`.
///
/// ```
/// use fullbore_engine::escape;
///
/// assert_eq!(escape::line("404\u{1b}[2J\nnot found"), r"404\u{1b}[2J\nnot found");
/// ```
pub fn line(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden, |out, c| out.extend(c.escape_default()))
}

/// A [`line()`] of messages, in which no address has credentials: others can read logs.
///
/// In `scheme://user:password@host`, what stands before the `@` (RFC 3986, 3.2.1) is left out. The name of a user stays
/// with `ssh` and `pb`, where it is no secret. A word is left out from its password on if that has a slash.
///
/// ```
/// use fullbore_engine::escape;
///
/// assert_eq!(escape::message("https://me:secret@example.org/x: no answer"), "https://example.org/x: no answer");
/// ```
pub fn message(text: &str) -> Cow<'_, str> {
    if !text.contains("://") || !text.contains('@') {
        return line(text);
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        out.push_str(before);
        let ends_word = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`');
        let word = &after[..after.find(ends_word).unwrap_or(after.len())];
        let (authority, path) = word.split_at(word.find(['/', '?', '#']).unwrap_or(word.len()));
        let has_open_name = ["ssh", "pb"].iter().any(|scheme| before[..at].ends_with(scheme));
        match authority.rsplit_once('@') {
            Some((user, _)) if has_open_name && !user.contains(':') => out.push_str(authority),
            Some((_, host)) => out.push_str(host),
            None if path.contains('@') && !is_host(authority) => {
                out.push('…');
                rest = &after[word.trim_end_matches([':', ',', ';', '.', ')']).len()..];
                continue;
            }
            None => out.push_str(authority),
        }
        rest = &after[authority.len()..];
    }
    out.push_str(rest);
    Cow::Owned(line(&out).into_owned())
}

/// Whether this is a host with or without a port, rather than a name and the beginning of a password.
fn is_host(authority: &str) -> bool {
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    authority.starts_with('[') || port.is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// JSON with the same meaning: hidden characters beyond ASCII, and DEL, are written as `\u009b`. JSON has them only
/// within strings, and serializers escape the others.
pub fn json(text: &str) -> Cow<'_, str> {
    let is_raw = |c| c >= '\u{7f}' && is_hidden(c);
    replaced(text, is_raw, |out, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

/// Serializes a value as one line of JSON, escaped for a terminal by [`json`] and ended by a line feed.
pub fn json_line(value: &impl serde::Serialize) -> Vec<u8> {
    // The values contain only strings, numbers and lists: serde_json cannot fail on them.
    let text = serde_json::to_string(value).unwrap_or_else(|_| "{}".to_owned());
    format!("{}\n", json(&text)).into_bytes()
}

/// Text in which each hidden character is replaced by a blank.
pub fn blanked(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden, |out, _| out.push(' '))
}

fn replaced<'t>(text: &'t str, wanted: impl Fn(char) -> bool, replace: impl Fn(&mut String, char)) -> Cow<'t, str> {
    if !text.chars().any(&wanted) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if wanted(c) { replace(&mut out, c) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn characters_that_act_or_hide_are_escaped() {
        for (raw, shown) in [
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("one\nerror: forged", "one\\nerror: forged"),
            ("one\r\ntwo\rthree\ttabs", "one\\r\\ntwo\\rthree\\ttabs"),
            ("\0\u{8}\u{b}\u{c}\u{7f}", "\\u{0}\\u{8}\\u{b}\\u{c}\\u{7f}"),
            ("\u{85}\u{9b}31m\u{9d}", "\\u{85}\\u{9b}31m\\u{9d}"),
            ("\u{202e}gpj.exe\u{202c}", "\\u{202e}gpj.exe\\u{202c}"),
            (
                "\u{61c}\u{200e}\u{200f}\u{202a}\u{2066}\u{2069}",
                "\\u{61c}\\u{200e}\\u{200f}\\u{202a}\\u{2066}\\u{2069}",
            ),
            ("\u{2028}\u{2029}", "\\u{2028}\\u{2029}"),
            ("\u{feff}a\u{200b}b\u{2060}c\u{ad}", "\\u{feff}a\\u{200b}b\\u{2060}c\\u{ad}"),
            ("\u{e0041}\u{fff9}", "\\u{e0041}\\u{fff9}"),
        ] {
            assert_eq!(line(raw), shown);
        }
        for same in ["C:\\n\\u{1b}", "größe 漢字 ελ", "עברית", "❤\u{fe0f}", "a b"] {
            assert_eq!(line(same), same);
        }
    }

    #[test]
    fn messages_have_no_credentials() {
        for (text, told) in [
            ("https://me:pw@h/x", "https://h/x"),
            ("https://token@h:80/x?y#z", "https://h:80/x?y#z"),
            ("'tls://a:b@c' and \"s3://k:s@b/k\"", "'tls://c' and \"s3://b/k\""),
            ("https://me:p@w@h", "https://h"),
            ("https://me:pa/ss@h/x: no answer", "https://…: no answer"),
            ("https://h:80/a@b http://u:p@h", "https://h:80/a@b http://h"),
            ("http://[::1]:80/a@b, https://h/a@b", "http://[::1]:80/a@b, https://h/a@b"),
            ("ssh://me@h/x ssh://me:pw@h/x pb://id@h:1/swiss", "ssh://me@h/x ssh://h/x pb://id@h:1/swiss"),
            ("a@b ://@ ://x", "a@b :// ://x"),
            ("git+https://a:b@h\u{1b}", "git+https://h\\u{1b}"),
            ("https://größe:ü@hé/é@", "https://hé/é@"),
        ] {
            assert_eq!(message(text), told, "{text}");
        }
    }

    #[test]
    fn json_keeps_its_meaning() {
        let text = "\u{9b}\u{7f}\u{202e}\u{e0041}\u{1b}\"\\ü";
        let written = serde_json::to_string(text).unwrap();
        let escaped = json(&written);
        assert!(!escaped.chars().any(is_hidden), "{escaped}");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left_and_a_second_pass_changes_nothing(text in any::<String>()) {
            let once = line(&text);
            prop_assert!(!once.chars().any(is_hidden));
            prop_assert_eq!(line(&once), once.as_ref());
            let told = message(&text);
            prop_assert_eq!(line(&told), told.as_ref());
            prop_assert_eq!(blanked(&text).chars().count(), text.chars().count());
            let written = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&json(&written)).unwrap(), text);
        }
    }
}
