//! Control files: stanzas of `Field: value` lines, read as a stream (policy 5.1).
//!
//! This is the hot loop for indexes of hundreds of megabytes. The text is read into one buffer, SIMD finds the empty
//! lines, and a stanza is returned as a view into that buffer, with the offsets of its fields in a reused vector.
//! Nothing is allocated per stanza, and the buffer has a maximum size.

use std::borrow::Cow;
use std::io::{self, Read};
use std::ops::Range;

use memchr::{memchr, memchr_iter, memmem};
use thiserror::Error;

/// Number of bytes read at once. Large enough that system calls take no measurable time, small enough to stay in the L2
/// cache while it is parsed (guess, confirmed by the speed test).
const READ_BYTES: usize = 256 << 10;

/// Limits for the parser of a control file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a stanza, in bytes.
    pub stanza_bytes: usize,
    /// Maximum length of a line, in bytes.
    pub line_bytes: usize,
    /// Maximum number of fields in a stanza.
    pub fields: usize,
    /// Whether lines that start with `#` are skipped (sources files) or refused (indexes).
    pub comments: bool,
    /// Whether every carriage return within a line is refused. Those at the end of a line belong to the line end, as in
    /// apt.
    pub refuse_carriage_return: bool,
    /// Whether a line without a colon is an error. Otherwise, as in apt, the next field becomes part of it, and its
    /// name is lost.
    pub strict_lines: bool,
}

impl Limits {
    /// For `Packages` and `Sources`. The largest stanza of Debian is below 1 MB (the file list
    /// of a large source package), the longest line below 200 KB (`Provides` of Rust crates).
    pub const INDEX: Limits = Limits {
        stanza_bytes: 16 << 20,
        line_bytes: 4 << 20,
        // Some vendors write a field for each of their settings. A guess: each costs 16 bytes.
        fields: 8192,
        comments: false,
        refuse_carriage_return: false,
        strict_lines: false,
    };

    /// For `Release` and `diff/Index`, which are one stanza of many short lines. The size is
    /// what apt allows (`Acquire::MaxReleaseFileSize`, 10 MB).
    pub const RELEASE: Limits = Limits {
        stanza_bytes: 10_000_000,
        line_bytes: 64 << 10,
        fields: 128,
        comments: false,
        refuse_carriage_return: true,
        strict_lines: false,
    };

    /// For sources files: written by hand, a key block within one field.
    pub const SOURCES_LIST: Limits = Limits {
        stanza_bytes: 1 << 20,
        line_bytes: 64 << 10,
        fields: 128,
        comments: true,
        refuse_carriage_return: false,
        strict_lines: true,
    };
}

/// Error in a control file. Line numbers start at 1.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Deb822Error {
    /// The input cannot be read, or exceeds the limit of the decompressor.
    #[error("line {line}: cannot read: {source}")]
    Read {
        /// Number of the line that was being read.
        line: u64,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// The file has a NUL byte.
    #[error("line {line}: NUL byte")]
    Nul {
        /// Line number, counted from 1.
        line: u64,
    },
    /// A carriage return that makes the end of the line ambiguous.
    #[error("line {line}: carriage return")]
    CarriageReturn {
        /// Line number, counted from 1.
        line: u64,
    },
    /// A line that is neither `Field: value` nor a continuation.
    #[error("line {line}: {what}")]
    Line {
        /// Line number, counted from 1.
        line: u64,
        /// The fault.
        what: &'static str,
    },
    /// The file exceeds one of [`Limits`].
    #[error("line {line}: {what} beyond the limit of {limit}")]
    TooLarge {
        /// Line number, counted from 1.
        line: u64,
        /// Name of the limit.
        what: &'static str,
        /// Value of the limit.
        limit: usize,
    },
    /// A text field is not UTF-8.
    #[error("line {line}: field {field} is not UTF-8")]
    NotUtf8 {
        /// Number of the first line of the stanza.
        line: u64,
        /// Name of the field.
        field: &'static str,
    },
    /// A field occurs twice in one stanza; programs would disagree on the one that counts.
    #[error("line {line}: repeated field {field}")]
    Duplicate {
        /// Number of the first line of the stanza.
        line: u64,
        /// Name of the field.
        field: &'static str,
    },
}

impl Deb822Error {
    /// Whether the error concerns a single stanza, so that further stanzas can be read.
    pub fn is_of_stanza(&self) -> bool {
        !matches!(self, Deb822Error::Read { .. } | Deb822Error::TooLarge { what: STANZA, .. })
    }
}

/// Name of [`Limits::stanza_bytes`] in errors.
const STANZA: &str = "stanza";

/// Offsets of one field within its stanza.
#[derive(Debug, Clone, Copy)]
struct Span {
    name: (u32, u32),
    value: (u32, u32),
}

/// One stanza, borrowed from the buffer of [`Stanzas`] until the next one is read.
#[derive(Debug, Clone, Copy)]
pub struct Stanza<'a> {
    text: &'a [u8],
    spans: &'a [Span],
    line: u64,
}

impl<'a> Stanza<'a> {
    /// Number of the first line of the stanza, counted from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Text of the stanza with line ends and comments.
    pub fn text(&self) -> &'a [u8] {
        self.text
    }

    /// Names and values of the fields, in order. Values are trimmed at both ends; continuation lines keep their line
    /// ends and leading white space.
    pub fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let text = self.text;
        self.spans.iter().map(move |span| (slice(text, span.name), trim(slice(text, span.value))))
    }

    /// Like [`Stanza::fields`] with untrimmed values, for loops that use few of them.
    pub(crate) fn raw_fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let text = self.text;
        self.spans.iter().map(move |span| (slice(text, span.name), slice(text, span.value)))
    }

    /// Value of the first field of this name; case does not count.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        let span = self.spans.iter().find(|span| slice(self.text, span.name).eq_ignore_ascii_case(name.as_bytes()))?;
        Some(trim(slice(self.text, span.value)))
    }

    /// Value of a field as text; `None` if the stanza has no such field.
    ///
    /// # Errors
    /// [`Deb822Error::Duplicate`] if the stanza has the field twice; [`Deb822Error::NotUtf8`] if its value is not
    /// UTF-8.
    pub fn get_text(&self, name: &'static str) -> Result<Option<&'a str>, Deb822Error> {
        let mut found =
            self.spans.iter().filter(|span| slice(self.text, span.name).eq_ignore_ascii_case(name.as_bytes()));
        let Some(span) = found.next() else {
            return Ok(None);
        };
        if found.next().is_some() {
            return Err(Deb822Error::Duplicate { line: self.line, field: name });
        }
        self.decode(name, trim(slice(self.text, span.value))).map(Some)
    }

    /// Value of the last field of this name, which apt uses; `None` if the stanza has no such field. Bytes that are not
    /// UTF-8 become U+FFFD.
    pub fn last_text(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut spans = self.spans.iter().rev();
        let span = spans.find(|span| slice(self.text, span.name).eq_ignore_ascii_case(name.as_bytes()))?;
        Some(String::from_utf8_lossy(trim(slice(self.text, span.value))))
    }

    /// Decodes `value`, the value of `field`.
    pub(crate) fn decode(&self, field: &'static str, value: &'a [u8]) -> Result<&'a str, Deb822Error> {
        std::str::from_utf8(value).map_err(|_| Deb822Error::NotUtf8 { line: self.line, field })
    }
}

fn slice(text: &[u8], (start, end): (u32, u32)) -> &[u8] {
    &text[start as usize..end as usize]
}

/// Removes white space at both ends.
fn trim(value: &[u8]) -> &[u8] {
    value.trim_ascii()
}

/// Reads the stanzas of a control file in order.
///
/// ```
/// use fullbore_debian::deb822::{Limits, Stanzas};
///
/// let text = "Package: hello\nDescription: greets\n and says goodbye\n\nPackage: world\n";
/// let mut stanzas = Stanzas::new(text.as_bytes(), Limits::INDEX);
/// let first = stanzas.next()?.expect("a stanza");
/// assert_eq!(first.get_text("description")?, Some("greets\n and says goodbye"));
/// let second = stanzas.next()?.expect("a stanza");
/// assert_eq!((second.line(), second.get("Package")), (5, Some(&b"world"[..])));
/// # Ok::<(), fullbore_debian::deb822::Deb822Error>(())
/// ```
pub struct Stanzas<R> {
    reader: R,
    limits: Limits,
    separator: memmem::Finder<'static>,
    buffer: Vec<u8>,
    /// Range of the buffer that is read and not returned yet.
    pending: Range<usize>,
    spans: Vec<Span>,
    /// Number of lines returned or skipped.
    lines: u64,
    at_end: bool,
}

impl<R: Read> Stanzas<R> {
    /// Reads from the current position of `reader`, which needs no buffer of its own.
    pub fn new(reader: R, limits: Limits) -> Self {
        Stanzas {
            reader,
            limits,
            separator: memmem::Finder::new(b"\n\n"),
            buffer: Vec::new(),
            pending: 0..0,
            spans: Vec::new(),
            lines: 0,
            at_end: false,
        }
    }

    /// Reads the next stanza; `None` at the end.
    ///
    /// # Errors
    /// Every variant of [`Deb822Error`] except `Duplicate` and `NotUtf8`. After an error [of a single
    /// stanza](Deb822Error::is_of_stanza), the next stanza can be read; after any other error nothing can.
    #[expect(clippy::should_implement_trait, reason = "a stanza borrows from the reader, which Iterator cannot say")]
    pub fn next(&mut self) -> Result<Option<Stanza<'_>>, Deb822Error> {
        loop {
            let Some(range) = self.next_text()? else {
                return Ok(None);
            };
            let line = self.lines + 1;
            let text = &self.buffer[range.clone()];
            self.lines += count_lines(text);
            find_fields(text, line, &self.limits, &mut self.spans)?;
            if !self.spans.is_empty() {
                return Ok(Some(Stanza { text: &self.buffer[range], spans: &self.spans, line }));
            }
        }
    }

    /// Range of the next stanza in the buffer, including the end of its last line.
    fn next_text(&mut self) -> Result<Option<Range<usize>>, Deb822Error> {
        self.skip_empty_lines()?;
        let mut searched = 0;
        loop {
            let pending = &self.buffer[self.pending.clone()];
            if let Some(found) = self.separator.find(&pending[searched..]) {
                let start = self.pending.start;
                let end = start + searched + found + 1;
                self.pending.start = end;
                return self.bounded(start..end).map(Some);
            }
            if self.at_end {
                let rest = self.pending.clone();
                self.pending.start = self.pending.end;
                return if rest.is_empty() { Ok(None) } else { self.bounded(rest).map(Some) };
            }
            if pending.len() > self.limits.stanza_bytes {
                return Err(self.stanza_too_large());
            }
            // The separator may be split between two reads; carriage returns at the end may be removed later.
            let returns = pending.iter().rev().take_while(|&&byte| byte == b'\r').count();
            searched = (pending.len() - returns).saturating_sub(1);
            self.fill()?;
        }
    }

    fn bounded(&self, range: Range<usize>) -> Result<Range<usize>, Deb822Error> {
        if range.len() > self.limits.stanza_bytes { Err(self.stanza_too_large()) } else { Ok(range) }
    }

    fn stanza_too_large(&self) -> Deb822Error {
        Deb822Error::TooLarge { line: self.lines + 1, what: STANZA, limit: self.limits.stanza_bytes }
    }

    fn skip_empty_lines(&mut self) -> Result<(), Deb822Error> {
        loop {
            let pending = &self.buffer[self.pending.clone()];
            let empty = pending.iter().take_while(|&&byte| byte == b'\n').count();
            self.pending.start += empty;
            self.lines += empty as u64;
            if !self.pending.is_empty() || self.at_end {
                return Ok(());
            }
            self.fill()?;
        }
    }

    /// Reads once. The pending bytes move to the front first, so that the buffer holds at most one unfinished stanza
    /// and one read.
    fn fill(&mut self) -> Result<(), Deb822Error> {
        self.buffer.copy_within(self.pending.clone(), 0);
        let kept = self.pending.len();
        self.pending = 0..kept;
        if self.buffer.len() < kept + READ_BYTES {
            // Doubling keeps the copying of a large stanza linear; the check above limits it.
            self.buffer.resize((kept * 2).max(kept + READ_BYTES), 0);
        }
        loop {
            match self.reader.read(&mut self.buffer[kept..]) {
                Ok(0) => {
                    self.at_end = true;
                    return Ok(());
                }
                Ok(count) => {
                    self.pending.end = unify_line_ends(&mut self.buffer[..kept + count], kept);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Deb822Error::Read { line: self.lines + 1, source });
                }
            }
        }
    }
}

/// Removes carriage returns before line feeds in the bytes from `start` on, including those at the end of the bytes
/// before. Returns the new length. Windows writes such line ends, and apt accepts them.
fn unify_line_ends(bytes: &mut [u8], start: usize) -> usize {
    let before = bytes[..start].iter().rev().take_while(|&&byte| byte == b'\r').count();
    if before == 0 && memchr(b'\r', &bytes[start..]).is_none() {
        return bytes.len();
    }
    let mut end = start - before;
    for at in start - before..bytes.len() {
        let byte = bytes[at];
        if byte == b'\n' {
            while end > 0 && bytes[end - 1] == b'\r' {
                end -= 1;
            }
        }
        bytes[end] = byte;
        end += 1;
    }
    end
}

fn count_lines(text: &[u8]) -> u64 {
    memchr_iter(b'\n', text).count() as u64 + u64::from(text.last().is_some_and(|&last| last != b'\n'))
}

/// Splits a stanza into fields.
fn find_fields(text: &[u8], first_line: u64, limits: &Limits, spans: &mut Vec<Span>) -> Result<(), Deb822Error> {
    spans.clear();
    let line_of = |at: usize| first_line + memchr_iter(b'\n', &text[..at]).count() as u64;
    if let Some(at) = memchr(0, text) {
        return Err(Deb822Error::Nul { line: line_of(at) });
    }
    if limits.refuse_carriage_return
        && let Some(at) = memchr(b'\r', text)
    {
        return Err(Deb822Error::CarriageReturn { line: line_of(at) });
    }
    // A stanza is at most `stanza_bytes` long, which is far below 4 GiB: offsets fit in 32 bits.
    let mut start = 0;
    let ends = memchr_iter(b'\n', text).chain((text.last() != Some(&b'\n')).then_some(text.len()));
    for (line, end) in (first_line..).zip(ends) {
        find_field(text, start..end, line, limits, spans)?;
        start = end + 1;
    }
    if let Some(open) = spans.last_mut().filter(|span| span.value.1 == OPEN) {
        open.value.1 = text.len() as u32;
    }
    Ok(())
}

/// Bytes that field names consist of.
static IN_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = b'!';
    while byte <= b'~' {
        table[byte as usize] = byte != b':';
        byte += 1;
    }
    table
};

#[inline]
fn find_field(
    text: &[u8],
    range: Range<usize>,
    line: u64,
    limits: &Limits,
    spans: &mut Vec<Span>,
) -> Result<(), Deb822Error> {
    let content = &text[range.clone()];
    if content.len() > limits.line_bytes {
        return Err(Deb822Error::TooLarge { line, what: "line", limit: limits.line_bytes });
    }
    match content.first() {
        Some(b' ' | b'\t') => {
            let Some(last) = spans.last_mut() else {
                return Err(Deb822Error::Line { line, what: "continuation line before any field" });
            };
            if last.value.1 != OPEN || memchr(b':', content).is_some() {
                last.value.1 = range.end as u32;
            }
            return Ok(());
        }
        Some(b'#') if limits.comments => return Ok(()),
        _ => {}
    }
    // The previous line has no colon, so this field becomes part of it.
    if let Some(open) = spans.last_mut().filter(|span| span.value.1 == OPEN) {
        if memchr(b':', content).is_some() {
            open.value.1 = range.end as u32;
        }
        return Ok(());
    }
    // Policy 5.1: field names are printable ASCII without space and colon, not starting with `#` or `-`.
    let colon = content.iter().position(|&byte| !IN_NAME[usize::from(byte)]);
    let colon = colon.filter(|&at| content[at] == b':' && at > 0 && !matches!(content[0], b'#' | b'-'));
    if colon.is_none() && limits.strict_lines {
        return Err(Deb822Error::Line { line, what: "neither `Field: value` nor a continuation" });
    }
    if spans.len() == limits.fields {
        return Err(Deb822Error::TooLarge { line, what: "number of fields", limit: limits.fields });
    }
    let start = range.start as u32;
    spans.push(match colon {
        Some(colon) => {
            Span { name: (start, start + colon as u32), value: (start + colon as u32 + 1, range.end as u32) }
        }
        // A field without a name is never requested.
        None if memchr(b':', content).is_some() => Span { name: (start, start), value: (start, range.end as u32) },
        None => Span { name: (start, start), value: (start, OPEN) },
    });
    Ok(())
}

/// End of the value of a line whose colon is in a later line. No real offset, because stanzas are shorter.
const OPEN: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Fields = Vec<(String, String)>;

    fn read_all(reader: impl Read, limits: Limits) -> Result<Vec<(u64, Fields)>, Deb822Error> {
        let mut stanzas = Stanzas::new(reader, limits);
        let mut all = Vec::new();
        while let Some(stanza) = stanzas.next()? {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            all.push((stanza.line(), stanza.fields().map(|(name, value)| (text(name), text(value))).collect()));
        }
        Ok(all)
    }

    fn parse(text: &str) -> Result<Vec<(u64, Fields)>, Deb822Error> {
        read_all(text.as_bytes(), Limits::INDEX)
    }

    fn field(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    /// Gives its bytes in pieces of the lengths wanted.
    struct Pieces<'a> {
        rest: &'a [u8],
        lengths: std::iter::Cycle<std::vec::IntoIter<usize>>,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.lengths.next().unwrap_or(1).min(self.rest.len()).min(buffer.len());
            buffer[..length].copy_from_slice(&self.rest[..length]);
            self.rest = &self.rest[length..];
            Ok(length)
        }
    }

    #[test]
    fn stanzas_have_fields_and_line_numbers() {
        let text = "\n\nPackage: a\nDescription: one\n two\n .\n\tthree\n\n\nPackage:b\nEmpty:\nLast: x";
        let expected = vec![
            (3, vec![field("Package", "a"), field("Description", "one\n two\n .\n\tthree")]),
            (10, vec![field("Package", "b"), field("Empty", ""), field("Last", "x")]),
        ];
        assert_eq!(parse(text).expect("well formed"), expected);
        assert_eq!(parse("").expect("empty"), vec![]);
        assert_eq!(parse("\n\n\n").expect("empty"), vec![]);
    }

    #[test]
    fn get_ignores_case_and_refuses_doubt() {
        let mut stanzas = Stanzas::new(&b"SHA256: x\nsize: 1\nSIZE: 2\nName: \xff\n"[..], Limits::INDEX);
        let stanza = stanzas.next().expect("well formed").expect("one stanza");
        assert_eq!(stanza.get("sha256"), Some(&b"x"[..]));
        assert_eq!(stanza.get("Missing"), None);
        assert!(matches!(stanza.get_text("Size"), Err(Deb822Error::Duplicate { line: 1, .. })));
        assert!(matches!(stanza.get_text("Name"), Err(Deb822Error::NotUtf8 { .. })));
    }

    #[test]
    fn faults_name_their_line() {
        for (text, line) in [
            ("A: 1\nB: 2\nno colon\n", 3),
            ("A: 1\n\n continuation first\n", 3),
            ("A: 1\nB\0: 2\n", 2),
            ("A: 1\n: 2\n", 2),
            ("A: 1\n-A: 2\n", 2),
            ("A: 1\nA b: 2\n", 2),
        ] {
            let error = read_all(text.as_bytes(), Limits::SOURCES_LIST).expect_err(text);
            assert!(error.to_string().starts_with(&format!("line {line}:")), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_line_without_colon_takes_the_next_field_as_in_apt() {
        for (text, left) in [
            ("A: 1\nmore of it\nB: 2\nC: 3\n", "A C"),
            ("A: 1\nmore of it\n and more\nB: 2\n 3\nC: 3\n", "A C"),
            ("A: 1\n# comment\nB: 2\nC: 3\n", "A C"),
            ("A: 1\n# a: comment\nB: 2\nC: 3\n", "A B C"),
            ("A: 1\nB: 2\nSHA256\n x\n", "A B"),
            ("A: 1\n: 2\nC: 3\n", "A C"),
        ] {
            let found = parse(text).expect(text);
            let names: Vec<_> =
                found[0].1.iter().map(|(name, _)| name.as_str()).filter(|name| !name.is_empty()).collect();
            assert_eq!(names.join(" "), left, "{text:?}");
        }
    }

    #[test]
    fn behind_a_faulty_stanza_others_are_read() {
        let text = b"A: 1\n\n first\nB: 2\n\nC: 3\n";
        let mut stanzas = Stanzas::new(&text[..], Limits::INDEX);
        assert_eq!(stanzas.next().expect("first").expect("there").get("A"), Some(&b"1"[..]));
        assert!(stanzas.next().expect_err("second").is_of_stanza());
        let third = stanzas.next().expect("third").expect("there");
        assert_eq!((third.line(), third.get("C")), (6, Some(&b"3"[..])));
        let error = read_all(io::repeat(b'x').take(1 << 30), Limits::RELEASE).expect_err("no end");
        assert!(!error.is_of_stanza());
    }

    #[test]
    fn carriage_returns_count_only_at_line_ends() {
        let expected = vec![(1, vec![field("A", "1"), field("B", "2")]), (4, vec![field("C", "3\n 4")])];
        for limits in [Limits::INDEX, Limits::RELEASE] {
            let text = b"A: 1\r\nB: 2\r\r\n\r\nC: 3\r\n 4\r\n";
            assert_eq!(read_all(&text[..], limits).expect("as apt"), expected);
            let pieces = Pieces { rest: text, lengths: vec![1].into_iter().cycle() };
            assert_eq!(read_all(pieces, limits).expect("any split"), expected);
        }
        let error = read_all(&b"A: 1\nB: 2\rC: 3\n"[..], Limits::RELEASE).expect_err("within a line");
        assert!(matches!(error, Deb822Error::CarriageReturn { line: 2 }));
    }

    #[test]
    fn the_last_field_of_a_name_counts_for_apt() {
        let mut stanzas = Stanzas::new(&b"Suite: a\nsuite: b\nLabel: \xff\n"[..], Limits::RELEASE);
        let stanza = stanzas.next().expect("well formed").expect("one stanza");
        assert_eq!(stanza.last_text("Suite").as_deref(), Some("b"));
        assert_eq!(stanza.last_text("Label").as_deref(), Some("\u{fffd}"));
        assert_eq!(stanza.last_text("Origin"), None);
    }

    #[test]
    fn comments_are_skipped_in_lists_of_sources() {
        let text = "# one\n\n# two\nA: 1\n# within\n 2\n";
        let found = read_all(text.as_bytes(), Limits::SOURCES_LIST).expect("comments");
        assert_eq!(found, vec![(3, vec![field("A", "1\n# within\n 2")])]);
    }

    #[test]
    fn endless_stanzas_lines_and_fields_are_stopped_by_limits() {
        // A reader that would go on for 1 GB: the limit stops it, in bounded memory.
        let endless = io::repeat(b'x').take(1 << 30);
        let error = read_all(endless, Limits::RELEASE).expect_err("no end");
        assert!(matches!(error, Deb822Error::TooLarge { what: "stanza", .. }));
        let line = format!("A: {}\n", "x".repeat(100 << 10));
        let error = read_all(line.as_bytes(), Limits::RELEASE).expect_err("long line");
        assert!(matches!(error, Deb822Error::TooLarge { what: "line", .. }));
        let fields: String = (0..10_000).map(|n| format!("F{n}: x\n")).collect();
        let error = parse(&fields).expect_err("many fields");
        assert!(matches!(error, Deb822Error::TooLarge { what: "number of fields", .. }));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same(text in "([A-c]{1,3}: ?[a-z ]{0,9}\n( x\n)?|\n|# c\n){0,30}",
                                    lengths in prop::collection::vec(1usize..9, 1..8)) {
            let whole = format!("{:?}", read_all(text.as_bytes(), Limits::INDEX));
            let pieces = Pieces { rest: text.as_bytes(), lengths: lengths.into_iter().cycle() };
            // `Cycle` needs Clone, so the vector's iterator it is.
            prop_assert_eq!(format!("{:?}", read_all(pieces, Limits::INDEX)), whole);
        }

        #[test]
        fn arbitrary_input_never_panics(bytes in prop::collection::vec(prop::sample::select(b"A: \n\t\r\0#-.\xff".to_vec()), 0..60)) {
            for limits in [Limits::INDEX, Limits::RELEASE, Limits::SOURCES_LIST] {
                let _ = read_all(&bytes[..], limits);
            }
        }

        #[test]
        fn what_is_written_is_read(stanzas in prop::collection::vec(
            prop::collection::vec(("[A-Za-z][A-Za-z0-9-]{0,8}", "[!-~]([ -~]{0,20}[!-~])?(\n [!-~]{1,9}){0,3}"), 1..6), 0..6)) {
            let text: String = stanzas.iter()
                .map(|fields| fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect::<String>() + "\n")
                .collect();
            let found: Vec<Fields> = parse(&text).expect("well formed").into_iter().map(|(_, fields)| fields).collect();
            prop_assert_eq!(found, stanzas);
        }
    }
}
