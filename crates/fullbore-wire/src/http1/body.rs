//! The chunked transfer coding of responses (RFC 9112, section 7.1).
//!
//! It is strict where laxness has been used for request smuggling: sizes are bare hexadecimal digits, and every line
//! ends in CRLF. Extensions and trailers are skipped within limits.

use bytes::{Buf, Bytes, BytesMut};

use super::Http1Error;

/// Maximum length of a chunk-size line with its extensions, in bytes. A guess; real ones have < 20.
const SIZE_LINE_BYTES_MAX: usize = 1024;

/// Maximum size of the chunk extensions in one body, so that a server cannot feed us noise without data for ever. The
/// figure is that of hyper.
const EXTENSION_BYTES_MAX: usize = 16 * 1024;

/// Maximum size of the trailer section, in bytes. A guess; no trailer is used.
const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// Position within the coding.
#[derive(Debug, Default)]
pub(super) struct ChunkedBody {
    state: State,
    extension_bytes: usize,
    trailer_bytes: usize,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    Trailer,
}

/// Result of a decoding step.
#[derive(Debug)]
pub(super) enum Chunked {
    Data(Bytes),
    NeedMore,
    End,
}

impl ChunkedBody {
    pub(super) fn receive(&mut self, input: &mut BytesMut) -> Result<Chunked, Http1Error> {
        loop {
            match &mut self.state {
                State::Size => {
                    let Some(end) = line_end(input, SIZE_LINE_BYTES_MAX, "size line is too long")? else {
                        return Ok(Chunked::NeedMore);
                    };
                    let (size, extension_bytes) = parse_size(&input[..end])?;
                    input.advance(end + 2);
                    self.extension_bytes += extension_bytes;
                    if self.extension_bytes > EXTENSION_BYTES_MAX {
                        return Err(bad("too many extensions"));
                    }
                    self.state = if size == 0 { State::Trailer } else { State::Data(size) };
                }
                State::Data(remaining) => {
                    let Some(data) = super::take_body(input, *remaining) else {
                        return Ok(Chunked::NeedMore);
                    };
                    *remaining -= data.len() as u64;
                    if *remaining == 0 {
                        self.state = State::DataEnd;
                    }
                    return Ok(Chunked::Data(data));
                }
                State::DataEnd => {
                    if input.len() < 2 {
                        return Ok(Chunked::NeedMore);
                    }
                    if &input[..2] != b"\r\n" {
                        return Err(bad("chunk is longer than its size"));
                    }
                    input.advance(2);
                    self.state = State::Size;
                }
                State::Trailer => {
                    let room = TRAILER_BYTES_MAX - self.trailer_bytes;
                    let Some(end) = line_end(input, room, "trailer is too long")? else {
                        return Ok(Chunked::NeedMore);
                    };
                    self.trailer_bytes += end + 2;
                    input.advance(end + 2);
                    if end == 0 {
                        return Ok(Chunked::End);
                    }
                }
            }
        }
    }
}

/// Position of the CRLF that ends the first line, which must fit in `limit` bytes.
fn line_end(input: &[u8], limit: usize, too_long: &'static str) -> Result<Option<usize>, Http1Error> {
    let window = &input[..input.len().min(limit)];
    match window.iter().position(|&byte| byte == b'\n') {
        Some(newline) => match window[..newline].split_last() {
            Some((b'\r', line)) if !line.contains(&b'\r') => Ok(Some(line.len())),
            _ => Err(bad("line does not end in CRLF")),
        },
        None if input.len() >= limit => Err(bad(too_long)),
        None => Ok(None),
    }
}

/// Parses `chunk-size [BWS] [";" …]` into the size and the length of the extensions.
fn parse_size(line: &[u8]) -> Result<(u64, usize), Http1Error> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (size, rest) = line.split_at(digits);
    if digits == 0 || digits > 16 {
        return Err(bad("size is not 1 to 16 hexadecimal digits"));
    }
    let size = size.iter().fold(0u64, |sum, &digit| {
        let value = (digit as char).to_digit(16).unwrap_or(0);
        sum << 4 | u64::from(value)
    });
    match rest.iter().find(|&&byte| byte != b' ' && byte != b'\t') {
        None | Some(b';') => Ok((size, rest.len())),
        Some(_) => Err(bad("something other than an extension after the size")),
    }
}

fn bad(reason: &'static str) -> Http1Error {
    Http1Error::BadChunk { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body, whether it ended, and what is left of the input.
    fn decode(input: &[u8]) -> Result<(Vec<u8>, bool, usize), Http1Error> {
        let mut input = BytesMut::from(input);
        let mut chunked = ChunkedBody::default();
        let mut body = Vec::new();
        loop {
            match chunked.receive(&mut input)? {
                Chunked::Data(data) => body.extend_from_slice(&data),
                Chunked::NeedMore => return Ok((body, false, input.len())),
                Chunked::End => return Ok((body, true, input.len())),
            }
        }
    }

    #[test]
    fn a_body_is_decoded_up_to_its_end() {
        for (input, body, ended, left) in [
            (&b"5\r\nhello\r\n0\r\n\r\nHTTP"[..], &b"hello"[..], true, 4),
            (b"5;a=b;c=\"d\"\r\nhello\r\n00\r\n\r\n", b"hello", true, 0),
            (b"1 \t;x\r\na\r\nA\r\n0123456789\r\n0\r\nX: y\r\nZ: w\r\n\r\n", b"a0123456789", true, 0),
            (b"5\r\nhel", b"hel", false, 0),
            (b"5\r\nhello\r", b"hello", false, 1),
            (b"5\r\nhello\r\n0\r\nX: y\r\n", b"hello", false, 0),
            (b"0\r\n\r\n", b"", true, 0),
        ] {
            assert_eq!(decode(input), Ok((body.to_vec(), ended, left)), "{input:?}");
        }
    }

    #[test]
    fn bodies_that_smugglers_use_are_refused() {
        for input in [
            &b"5\nhello\r\n0\r\n\r\n"[..],
            b"0x5\r\nhello\r\n",
            b"+5\r\nhello\r\n",
            b" 5\r\nhello\r\n",
            b"\r\nhello\r\n",
            b"5 5\r\nhello\r\n",
            b"5\rX\r\nhello\r\n",
            b"5;x\ny\r\nhello\r\n",
            b"5\r\nhello!\r\n0\r\n\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"10000000000000000\r\nx",
            b"0\r\nX: y\n\r\n",
        ] {
            assert!(decode(input).is_err(), "{input:?}");
        }
    }

    #[test]
    fn lines_extensions_and_trailers_are_bounded() {
        let long_line = [b"5;".to_vec(), vec![b'x'; SIZE_LINE_BYTES_MAX]].concat();
        assert!(decode(&long_line).is_err());
        let noisy = [b"1;".to_vec(), vec![b'x'; 1000], b"\r\na\r\n".to_vec()].concat();
        assert!(decode(&noisy.repeat(16)).is_ok());
        assert!(decode(&noisy.repeat(17)).is_err());
        let trailer = [b"0\r\n".to_vec(), b"X: y\r\n".repeat(2000)].concat();
        assert!(decode(&trailer).is_err());
    }
}
