//! Messages of the acquire protocol: a code, a text, fields, and an empty line.
//!
//! ```text
//! 600 URI Acquire
//! URI: http://deb.example.org/debian/dists/sid/InRelease
//! Filename: /var/lib/apt/lists/partial/deb.example.org_debian_dists_sid_InRelease
//!
//! ```
//!
//! Field names are compared without regard to case, as APT does. Values are as they were sent; which of them are
//! %-encoded depends on the field (see [`percent_decode`]).

use std::collections::VecDeque;
use std::fmt::Write as _;

use fullbore_engine::escape;

/// Most bytes of one message. The largest is `601 Configuration`, with 30 kB on a plain system; APT has no limit. 16
/// MiB is a guess that no configuration reaches.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Why data from APT is not a valid message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message does not end within 16 MiB.
    #[error("a message of APT exceeds {MESSAGE_BYTES_MAX} bytes")]
    TooLarge,
    /// The first line does not begin with a number of three digits.
    #[error("a message begins with {0:?}, not with a code of three digits")]
    Code(String),
    /// A line that is neither a field nor the continuation of one.
    #[error("message {code}: line {line:?} is not a field")]
    Field {
        /// The code of the message.
        code: u16,
        /// The beginning of the line.
        line: String,
    },
}

/// One message, from APT or to it.
///
/// ```
/// use fullbore_apt::acquire::{Message, Messages};
///
/// let mut messages = Messages::new();
/// messages.feed(&Message::new(100, "Capabilities").with("Version", "2.0").to_bytes())?;
/// assert_eq!(messages.take().unwrap().get("version"), Some("2.0"));
/// # Ok::<(), fullbore_apt::acquire::MessageError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// 100 to 199 are informative, 200 to 299 success, 400 to 499 failure; 600 to 699 come from APT.
    pub code: u16,
    /// Text for people, such as `URI Acquire`.
    pub text: String,
    /// Names and values in order; a name may come more than once.
    pub fields: Vec<(String, String)>,
}

impl Message {
    /// Makes a message with this status line and without fields.
    pub fn new(code: u16, text: &str) -> Message {
        Message { code, text: text.to_owned(), fields: Vec::new() }
    }

    /// Adds a field; several fields may have the same name.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Message {
        self.fields.push((name.to_owned(), value.to_string()));
        self
    }

    /// The first field of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// All fields of this name, in order.
    pub fn all<'m>(&'m self, name: &'m str) -> impl Iterator<Item = &'m str> {
        self.fields.iter().filter(move |(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Formats the message for the pipe. Control characters in texts and values become spaces, so that no value can end
    /// a field or a message; line ends in values become continuation lines. APT shows the value of `Message` on the
    /// terminal, and a server may influence it. So line ends and invisible characters in it become spaces as well.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = String::with_capacity(256);
        // Writing to a String cannot fail.
        let _ = write!(text, "{:03} ", self.code);
        push_clean(&mut text, &self.text);
        text.push('\n');
        for (name, value) in &self.fields {
            // A leading blank would make it a continuation of the previous field.
            push_clean(&mut text, name.trim_matches(|c: char| c.is_control() || c.is_whitespace()));
            text.push(':');
            if name.eq_ignore_ascii_case("Message") {
                let _ = writeln!(text, " {}", escape::blanked(value));
                continue;
            }
            let mut lines = value.lines();
            if let Some(first) = lines.next() {
                text.push(' ');
                push_clean(&mut text, first);
            }
            text.push('\n');
            for line in lines {
                text.push(' ');
                // An empty line would end the message.
                push_clean(&mut text, if line.trim().is_empty() { "." } else { line });
                text.push('\n');
            }
        }
        text.push('\n');
        text.into_bytes()
    }

    /// Parses the lines of one message, without the empty line at its end.
    fn parse(text: &str) -> Result<Message, MessageError> {
        let mut lines = text.lines().map(|line| line.strip_suffix('\r').unwrap_or(line));
        let head = lines.next().unwrap_or_default();
        let (code, text) = head.split_at_checked(3).ok_or_else(|| MessageError::Code(excerpt(head)))?;
        if !code.bytes().all(|byte| byte.is_ascii_digit()) || !matches!(text.bytes().next(), None | Some(b' ' | b'\t'))
        {
            return Err(MessageError::Code(excerpt(head)));
        }
        let code = code.parse().map_err(|_| MessageError::Code(excerpt(head)))?;
        let mut message = Message::new(code, text.trim());
        for line in lines {
            if line.starts_with([' ', '\t']) {
                let (_, value) =
                    message.fields.last_mut().ok_or_else(|| MessageError::Field { code, line: excerpt(line) })?;
                value.push('\n');
                value.push_str(line.trim());
                continue;
            }
            let (name, value) =
                line.split_once(':').ok_or_else(|| MessageError::Field { code, line: excerpt(line) })?;
            message.fields.push((name.trim_end().to_owned(), value.trim().to_owned()));
        }
        Ok(message)
    }
}

fn push_clean(out: &mut String, text: &str) {
    out.extend(text.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }));
}

/// The beginning of a line, for an error.
fn excerpt(line: &str) -> String {
    const SHOWN: usize = 80;
    line.chars().take(SHOWN).collect()
}

/// Splits a stream of bytes into messages.
#[derive(Debug, Default)]
pub struct Messages {
    /// Bytes of an incomplete message, without the empty lines before it.
    unfinished: Vec<u8>,
    /// Number of these bytes that were searched for the end.
    searched: usize,
    ready: VecDeque<Message>,
}

impl Messages {
    /// Makes a parser that has received no bytes.
    pub fn new() -> Messages {
        Messages::default()
    }

    /// Adds the next bytes. Bytes that are not UTF-8 become replacement characters. File names that APT makes are
    /// ASCII, and any other file is then not found.
    ///
    /// # Errors
    /// [`MessageError`] if the bytes are not a valid message. Earlier messages can still be taken with
    /// [`Messages::take`].
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        self.unfinished.extend_from_slice(bytes);
        loop {
            let blank = self.unfinished.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
            if blank > 0 {
                self.unfinished.drain(..blank);
                self.searched = 0;
            }
            let Some(end) = find_end(&self.unfinished, self.searched) else {
                // The last bytes may be the beginning of the end mark.
                self.searched = self.unfinished.len().saturating_sub(3);
                return if self.unfinished.len() > MESSAGE_BYTES_MAX { Err(MessageError::TooLarge) } else { Ok(()) };
            };
            let text: Vec<u8> = self.unfinished.drain(..end).collect();
            self.searched = 0;
            self.ready.push_back(Message::parse(&String::from_utf8_lossy(&text))?);
        }
    }

    /// Removes and returns the next complete message, if any.
    pub fn take(&mut self) -> Option<Message> {
        self.ready.pop_front()
    }

    /// Whether an incomplete message is left: the sender died while it wrote.
    pub fn is_unfinished(&self) -> bool {
        !self.unfinished.is_empty()
    }
}

/// Offset of the empty line that ends the message.
fn find_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(newline) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        at += newline + 1;
        match bytes.get(at..at + 2) {
            Some([b'\n', _] | [b'\r', b'\n']) => return Some(at),
            _ if bytes.get(at) == Some(&b'\n') => return Some(at),
            _ => {}
        }
    }
    None
}

/// Decodes `%xx`. A `%` without two hexadecimal digits after it stays as it is, as in APT.
pub fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).filter(|_| byte == b'%');
        let value = digits.and_then(|digits| {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()
        });
        out.push(value.unwrap_or(byte));
        at += if value.is_some() { 3 } else { 1 };
    }
    String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Vec<Message> {
        let mut messages = Messages::new();
        messages.feed(bytes).unwrap();
        assert!(!messages.is_unfinished());
        std::iter::from_fn(|| messages.take()).collect()
    }

    #[test]
    fn fields_are_found_whatever_their_case() {
        let message = &read(b"600 URI Acquire\nURI: rred:/a%20b\nFilename:/c\nfilename: /d\n\n")[0];
        assert_eq!((message.code, message.text.as_str()), (600, "URI Acquire"));
        assert_eq!(message.get("uri"), Some("rred:/a%20b"));
        assert_eq!(message.all("FILENAME").collect::<Vec<_>>(), ["/c", "/d"]);
        assert_eq!(message.get("Last-Modified"), None);
        assert_eq!(percent_decode("/a%20b%2g%"), "/a b%2g%");
    }

    #[test]
    fn values_cannot_end_a_message() {
        let message = Message::new(400, "URI Failure").with("Message", "a\r\n\n201 URI Done\nFilename: /x\n");
        let bytes = message.to_bytes();
        assert_eq!(read(&bytes).len(), 1, "{}", String::from_utf8_lossy(&bytes));
        assert_eq!(read(&bytes)[0].get("Filename"), None);
        for code in [101, 102, 104, 400, 401] {
            let message = Message::new(code, "X").with("Message", "a\nE: forged\u{1b}[2K\u{9b}1m\u{202e}\r\u{7f}b");
            let bytes = message.to_bytes();
            let text = String::from_utf8(bytes).unwrap();
            assert_eq!(text, format!("{code} X\nMessage: a E: forged [2K 1m   b\n\n"));
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        let error = |bytes: &[u8]| Messages::new().feed(bytes).unwrap_err();
        assert!(matches!(error(b"hello\n\n"), MessageError::Code(_)));
        assert!(matches!(error(b"6000 x\n\n"), MessageError::Code(_)));
        assert!(matches!(error("6\u{fc}0 x\n\n".as_bytes()), MessageError::Code(_)));
        assert!(matches!(error(b"600 x\nfield\n\n"), MessageError::Field { code: 600, .. }));
        assert!(matches!(error(b"600 x\n continued\n\n"), MessageError::Field { .. }));
        assert_eq!(error(&vec![b'6'; MESSAGE_BYTES_MAX + 1]), MessageError::TooLarge);
    }

    fn messages() -> impl Strategy<Value = Vec<Message>> {
        let field = ("[A-Z][A-Za-z0-9-]{0,9}", "[ -~äß]{0,12}(\n[!-~]{1,5})?");
        let message =
            (0_u16..1000, "[ -~]{0,9}", proptest::collection::vec(field, 0..4)).prop_map(|(code, text, fields)| {
                let trim = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
                let fields = fields.into_iter().map(|(name, value)| (name, trim(&value))).collect();
                Message { code, text: text.trim().to_owned(), fields }
            });
        proptest::collection::vec(message, 0..4)
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_messages(sent in messages(), cuts in proptest::collection::vec(1_usize..30, 0..20)) {
            let bytes: Vec<u8> = sent.iter().flat_map(Message::to_bytes).collect();
            let mut reader = Messages::new();
            let mut rest = bytes.as_slice();
            let mut cuts = cuts.into_iter();
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(cuts.next().unwrap_or(rest.len()).min(rest.len()));
                reader.feed(piece).unwrap();
                rest = behind;
            }
            let read: Vec<Message> = std::iter::from_fn(|| reader.take()).collect();
            prop_assert_eq!(read, sent);
        }

        #[test]
        fn what_is_read_can_be_written(
            bytes in "([0-9]{3} )?([0-9]{1,4}|[a-zA-Z]{1,3}|:|: |\n|\n\n|\r| |[\u{0}-\u{1f}]|\\PC|%[0-9a-f]{0,2}){0,40}",
        ) {
            let mut messages = Messages::new();
            let _ = messages.feed(bytes.as_bytes());
            let _ = percent_decode(&bytes);
            while let Some(message) = messages.take() {
                let mut again = Messages::new();
                again.feed(&message.to_bytes()).unwrap();
                prop_assert!(again.take().is_some_and(|again| again.code == message.code) && again.take().is_none());
            }
        }
    }
}
