//! Response heads: parses the fields that fullbore uses, and finds how the body is delimited (RFC 9112, section 6.3).

use std::mem::MaybeUninit;

use super::{HEADERS_MAX, Http1Error, Method};
use crate::conditional::{EntityTag, parse_http_date};
use crate::range::ContentRange;
use crate::retry_after::RetryAfter;

/// Prefix of the names of object stores' own fields.
const STORE_PREFIX: &str = "x-amz-";

/// Protocol version of an answer: HTTP/1.0 or HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0: requests to this host must not be pipelined.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// Value of the field `Accept-Ranges` (RFC 9110, section 14.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptRanges {
    /// `bytes`.
    Bytes,
    /// The value `none`, or an unknown unit.
    None,
}

/// Status line and the used header fields. Times are Unix seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Protocol version in the status line.
    pub version: Version,
    /// Status code (RFC 9110, section 15), 100 to 999.
    pub status: u16,
    /// Reason phrase of the status line, for errors only. HTTP/2 has none.
    pub reason: Option<String>,
    /// Content-Length, also of answers without a body (HEAD, 304).
    pub content_length: Option<u64>,
    /// Content-Range; `Malformed` if it is present and unusable.
    pub content_range: Option<ContentRange>,
    /// Field `ETag` (RFC 9110, section 8.8.3), if well-formed.
    pub etag: Option<EntityTag>,
    /// Field `Last-Modified`, as Unix time in seconds, if valid.
    pub last_modified: Option<i64>,
    /// Field `Retry-After` (RFC 9110, section 10.2.3), if valid.
    pub retry_after: Option<RetryAfter>,
    /// Location as received; [`crate::redirect`] judges it.
    pub location: Option<String>,
    /// Field `Accept-Ranges` (RFC 9110, section 14.3), if known.
    pub accept_ranges: Option<AcceptRanges>,
    /// Whether the server closes the connection after this answer.
    pub close: bool,
    /// Number of requests that the server still accepts on this connection (`Keep-Alive: max=`), a hint.
    pub keep_alive_max: Option<u32>,
    /// Content-Encoding in lower case; `None` for identity. Some servers label a stored `.gz` as `gzip` or `x-gzip`
    /// although the bytes are the file's own.
    pub content_encoding: Option<String>,
    /// Content-Type, for example to detect a login page.
    pub content_type: Option<String>,
    /// Field `Via` (RFC 9110, section 7.6.3), as received.
    pub via: Option<String>,
    /// Field `Server`, as the server sent it.
    pub server: Option<String>,
    /// Field `Date`, as Unix time in seconds, if valid.
    pub date: Option<i64>,
    /// Fields of object stores (`x-amz-…`) with names in lower case: checksums, regions, versions. Also `etag`, if it
    /// is not in the form of HTTP.
    pub store_fields: Vec<(String, String)>,
}

impl ResponseHead {
    /// Creates a head without fields.
    pub(crate) fn without_fields(version: Version, status: u16) -> ResponseHead {
        ResponseHead {
            version,
            status,
            reason: None,
            content_length: None,
            content_range: None,
            etag: None,
            last_modified: None,
            retry_after: None,
            location: None,
            accept_ranges: None,
            close: false,
            keep_alive_max: None,
            content_encoding: None,
            content_type: None,
            via: None,
            server: None,
            date: None,
            store_fields: Vec::new(),
        }
    }
}

impl ResponseHead {
    /// Value of an object store's field; `name` is in lower case.
    pub fn store_field(&self, name: &str) -> Option<&str> {
        self.store_fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Whether the body has the bytes of the file `path` as stored. There is no Content-Encoding, or it only repeats
    /// the file's suffix.
    pub(crate) fn is_stored_form(&self, path: &str) -> bool {
        match self.content_encoding.as_deref() {
            None => true,
            Some("gzip" | "x-gzip") => path.ends_with(".gz") || path.ends_with(".tgz"),
            Some("bzip2" | "x-bzip2") => path.ends_with(".bz2"),
            Some("xz" | "x-xz") => path.ends_with(".xz"),
            Some("zstd") => path.ends_with(".zst"),
            Some(_) => false,
        }
    }
}

impl ResponseHead {
    /// Creates the head of an answer in frames (HTTP/2), where the fields say nothing about the connection. `version`
    /// is set to HTTP/1.1, which means nothing then.
    pub(crate) fn from_fields(status: u16, fields: &[httparse::Header<'_>]) -> Result<ResponseHead, Http1Error> {
        read_fields(Version::Http11, status, fields).map(|(head, _)| head)
    }
}

/// How the end of the body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// This number of bytes; 0 also for answers without a body.
    Length(u64),
    Chunked,
    UntilClose,
    /// The answer to a successful CONNECT.
    Tunnel,
}

pub(super) struct ParsedHead {
    pub(super) head: ResponseHead,
    pub(super) framing: Framing,
    /// Number of input bytes of the head.
    pub(super) head_bytes: usize,
}

/// Fields that determine the framing, collected first.
#[derive(Default)]
struct FramingFields {
    content_length: Option<u64>,
    transfer_encoding: Option<String>,
    close: bool,
    keep_alive: bool,
}

/// Parses the head at the start of `input`; `None` if it is incomplete.
pub(super) fn parse(input: &[u8], limit: usize, method: Method) -> Result<Option<ParsedHead>, Http1Error> {
    // Only the first `limit` bytes are examined, so that the result does not depend on how much was read beyond.
    let window = &input[..input.len().min(limit)];
    let mut fields = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, window, &mut fields);
    let head_bytes = match parsed {
        Ok(httparse::Status::Complete(head_bytes)) => head_bytes,
        Ok(httparse::Status::Partial) => return incomplete(window, limit),
        Err(error) => return refuse(error, window, limit),
    };
    let status = response.code.unwrap_or(0);
    if status < 100 {
        return Err(bad_head("status code below 100"));
    }
    let version = match response.version {
        Some(0) => Version::Http10,
        _ => Version::Http11, // httparse knows no other
    };
    let (mut head, framing_fields) = read_fields(version, status, response.headers)?;
    head.reason = response.reason.filter(|_| status >= 400).map(str::to_owned);
    head.close = framing_fields.close || (version == Version::Http10 && !framing_fields.keep_alive);
    let framing = decide_framing(&head, method, &framing_fields)?;
    if framing_fields.transfer_encoding.is_some() && framing_fields.content_length.is_some() {
        // Two lengths: chunked overrides the other (RFC 9112, 6.3 rule 3). Like curl and apt we accept the answer. An
        // intermediary may have used the other length, so nothing behind the answer on this connection is accepted.
        head.content_length = None;
        head.close = true;
    }
    Ok(Some(ParsedHead { head, framing, head_bytes }))
}

fn incomplete(window: &[u8], limit: usize) -> Result<Option<ParsedHead>, Http1Error> {
    if window.len() == limit {
        return Err(Http1Error::HeadTooLong { limit });
    }
    Ok(None)
}

/// Reports an error only once its line is complete. Otherwise the result would depend on how the bytes are cut.
fn refuse(error: httparse::Error, window: &[u8], limit: usize) -> Result<Option<ParsedHead>, Http1Error> {
    let lines_end = window.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let mut fields = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let in_complete_lines = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut httparse::Response::new(&mut []),
        &window[..lines_end],
        &mut fields,
    );
    match (in_complete_lines, error) {
        (Ok(_), _) => incomplete(window, limit),
        (Err(_), httparse::Error::TooManyHeaders) => Err(Http1Error::TooManyHeaders { limit: HEADERS_MAX }),
        (Err(_), error) => Err(bad_head(&error.to_string())),
    }
}

fn read_fields(
    version: Version,
    status: u16,
    fields: &[httparse::Header<'_>],
) -> Result<(ResponseHead, FramingFields), Http1Error> {
    let mut framing = FramingFields::default();
    let mut head = ResponseHead::without_fields(version, status);
    for field in fields {
        let value = field.value;
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if field.name.get(..STORE_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(STORE_PREFIX)) {
            head.store_fields.push((field.name.to_ascii_lowercase(), text(value)));
            continue;
        }
        match field.name.len() {
            3 if is("Via") => head.via = Some(text(value)),
            4 if is("Date") => head.date = date(value),
            4 if is("ETag") => {
                head.etag = ascii(value).and_then(EntityTag::parse);
                // Some object stores omit the quotes.
                if head.etag.is_none() {
                    head.store_fields.push(("etag".into(), text(value)));
                }
            }
            6 if is("Server") => head.server = Some(text(value)),
            8 if is("Location") => head.location = head.location.or_else(|| Some(text(value))),
            10 if is("Connection") => read_connection(value, &mut framing),
            16 if is("Proxy-Connection") => read_connection(value, &mut framing),
            10 if is("Keep-Alive") => head.keep_alive_max = keep_alive_max(value),
            11 if is("Retry-After") => head.retry_after = ascii(value).and_then(RetryAfter::parse),
            12 if is("Content-Type") => head.content_type = Some(text(value)),
            13 if is("Accept-Ranges") => {
                head.accept_ranges = Some(match has_token(value, "bytes") {
                    true => AcceptRanges::Bytes,
                    false => AcceptRanges::None,
                });
            }
            13 if is("Content-Range") => {
                // Two Content-Range fields, even equal ones, make no sense in a single-range answer.
                head.content_range = Some(match head.content_range {
                    None => ascii(value).map_or(ContentRange::Malformed, ContentRange::parse),
                    Some(_) => ContentRange::Malformed,
                });
            }
            13 if is("Last-Modified") => head.last_modified = date(value),
            14 if is("Content-Length") => read_content_length(value, &mut framing)?,
            16 if is("Content-Encoding") => {
                let coding = text(value).to_ascii_lowercase();
                let added = coding != "identity" && !coding.is_empty();
                head.content_encoding = match head.content_encoding {
                    Some(before) if added => Some(format!("{before}, {coding}")),
                    None if added => Some(coding),
                    before => before,
                };
            }
            17 if is("Transfer-Encoding") => {
                let coding = text(value);
                framing.transfer_encoding = Some(match framing.transfer_encoding {
                    Some(before) => format!("{before}, {coding}"),
                    None => coding,
                });
            }
            _ => {}
        }
    }
    head.content_length = framing.content_length;
    Ok((head, framing))
}

/// RFC 9112, 6.3, in its order; where it leaves a choice, the answer is refused.
fn decide_framing(head: &ResponseHead, method: Method, fields: &FramingFields) -> Result<Framing, Http1Error> {
    let status = head.status;
    if method == Method::Connect && (200..300).contains(&status) {
        return Ok(Framing::Tunnel);
    }
    if method == Method::Head || status == 204 || status == 304 || status < 200 {
        return Ok(Framing::Length(0));
    }
    match (&fields.transfer_encoding, fields.content_length) {
        (Some(coding), _) => {
            let chunked = coding.eq_ignore_ascii_case("chunked");
            // RFC 9112, 6.1: a transfer coding in an HTTP/1.0 answer means faulty framing.
            if !chunked || head.version == Version::Http10 {
                return Err(Http1Error::BadTransferEncoding { value: coding.clone() });
            }
            Ok(Framing::Chunked)
        }
        (None, Some(length)) => Ok(Framing::Length(length)),
        (None, None) => Ok(Framing::UntilClose),
    }
}

/// Parses digits, or a list of equal numbers (RFC 9112, 6.3 rule 5 allows the list).
fn read_content_length(value: &[u8], framing: &mut FramingFields) -> Result<(), Http1Error> {
    let bad = || Http1Error::BadContentLength { value: text(value) };
    for item in value.split(|&byte| byte == b',') {
        let item = ascii(item.trim_ascii()).ok_or_else(bad)?;
        if item.is_empty() || !item.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let length: u64 = item.parse().map_err(|_| bad())?;
        if framing.content_length.is_some_and(|other| other != length) {
            return Err(bad());
        }
        framing.content_length = Some(length);
    }
    Ok(())
}

fn read_connection(value: &[u8], framing: &mut FramingFields) {
    framing.close |= has_token(value, "close");
    framing.keep_alive |= has_token(value, "keep-alive");
}

fn has_token(value: &[u8], token: &str) -> bool {
    value.split(|&byte| byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

fn keep_alive_max(value: &[u8]) -> Option<u32> {
    value.split(|&byte| byte == b',').find_map(|item| {
        let (name, number) = ascii(item)?.split_once('=')?;
        (name.trim().eq_ignore_ascii_case("max")).then(|| number.trim().parse().ok())?
    })
}

fn date(value: &[u8]) -> Option<i64> {
    ascii(value).and_then(parse_http_date)
}

fn ascii(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().filter(|text| text.is_ascii())
}

/// Field values may contain any byte above 0x7f; invalid UTF-8 becomes U+FFFD.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.trim_ascii()).into_owned()
}

fn bad_head(reason: &str) -> Http1Error {
    Http1Error::BadHead { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_get(text: &str) -> Result<(ResponseHead, Framing), Http1Error> {
        parse_as(Method::Get, text)
    }

    fn parse_as(method: Method, text: &str) -> Result<(ResponseHead, Framing), Http1Error> {
        let bytes = format!("{text}\r\n\r\n");
        let parsed = parse(bytes.as_bytes(), 32 * 1024, method)?.expect("complete");
        assert_eq!(parsed.head_bytes, bytes.len());
        Ok((parsed.head, parsed.framing))
    }

    #[test]
    fn fields_of_a_head_are_read() {
        let (head, framing) = parse_get(
            "HTTP/1.1 206 Partial Content\r\nVia: 1.1 varnish (Varnish/6.1)\r\nSERVER: nginx\r\ndate: Sun, 06 Nov 1994 08:49:38 GMT\r\n\
             content-type: application/x-gzip\r\nContent-Length: 5\r\nContent-Range: bytes 5-9/100\r\n\
             ETag: W/\"abc\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: 120\r\n\
             Accept-Ranges: bytes\r\nContent-Encoding: X-GZIP\r\nKeep-Alive: timeout=5, max=98\r\n\
             Location:  /there \r\nX-Amz-Checksum-SHA256: x=\r\nConnection: Keep-Alive",
        )
        .unwrap();
        assert_eq!(framing, Framing::Length(5));
        assert_eq!(
            head,
            ResponseHead {
                version: Version::Http11,
                status: 206,
                reason: None,
                content_length: Some(5),
                content_range: Some(ContentRange::Bytes { first: 5, last: 9, complete: Some(100) }),
                etag: EntityTag::parse("W/\"abc\""),
                last_modified: Some(784_111_777),
                retry_after: Some(RetryAfter::Seconds(120)),
                location: Some("/there".into()),
                accept_ranges: Some(AcceptRanges::Bytes),
                close: false,
                keep_alive_max: Some(98),
                content_encoding: Some("x-gzip".into()),
                content_type: Some("application/x-gzip".into()),
                via: Some("1.1 varnish (Varnish/6.1)".into()),
                server: Some("nginx".into()),
                date: Some(784_111_778),
                store_fields: vec![("x-amz-checksum-sha256".into(), "x=".into())],
            }
        );
        assert!(head.is_stored_form("dists/x/Packages.gz"));
        assert!(!head.is_stored_form("dists/x/Packages"));
    }

    #[test]
    fn framing_follows_rfc_9112_6_3() {
        use Framing::{Chunked, Length, Tunnel, UntilClose};
        let chunked = "\r\nTransfer-Encoding: Chunked";
        let length = "\r\nContent-Length: 7";
        for (method, status, fields, framing) in [
            (Method::Get, "1.1 200", length, Length(7)),
            (Method::Get, "1.1 404", length, Length(7)),
            (Method::Get, "1.1 200", chunked, Chunked),
            (Method::Get, "1.1 200", "", UntilClose),
            (Method::Get, "1.0 200", "", UntilClose),
            (Method::Head, "1.1 200", length, Length(0)),
            (Method::Head, "1.1 200", chunked, Length(0)),
            (Method::Get, "1.1 204", length, Length(0)),
            (Method::Get, "1.1 304", length, Length(0)),
            (Method::Get, "1.1 304", "", Length(0)),
            (Method::Connect, "1.1 200", length, Tunnel),
            (Method::Connect, "1.1 407", length, Length(7)),
            (Method::Get, "1.1 200", "\r\nContent-Length: 7\r\ncontent-length: 7", Length(7)),
            (Method::Get, "1.1 200", "\r\nContent-Length: 7, 7", Length(7)),
            (Method::Get, "1.1 200", "\r\nContent-Length: 007", Length(7)),
        ] {
            let (_, got) = parse_as(method, &format!("HTTP/{status} x{fields}")).unwrap();
            assert_eq!(got, framing, "{method:?} {status} {fields:?}");
        }
    }

    #[test]
    fn smuggling_is_refused() {
        for fields in [
            "Content-Length: 7\r\nContent-Length: 8",
            "Content-Length: 7, 8",
            "Content-Length: +7",
            "Content-Length: -7",
            "Content-Length: 0x7",
            "Content-Length: 7 7",
            "Content-Length: ",
            "Content-Length: 7,",
            "Content-Length: 18446744073709551616",
            "Content-Length: \u{661}",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: chunked, identity",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding: ",
            "Content-Length : 7",
            " Content-Length: 7",
            "X: y\r\n folded: 7",
            "X: a\rb",
            "X: a\0b",
            "X\0: a",
            "no colon",
        ] {
            let answer = parse_get(&format!("HTTP/1.1 200 OK\r\n{fields}"));
            assert!(answer.is_err(), "{fields:?}: {answer:?}");
        }
        for head in [
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
            "HTTP/2.0 200 OK",
            "HTTP/1.1 20 OK",
            "HTTP/1.1 099 OK",
            "HTTP/1.1200 OK",
            "ICY 200 OK",
            "<html>",
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: gzip, chunked",
            "HTTP/1.0 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked",
        ] {
            assert!(parse_get(head).is_err(), "{head:?}");
        }
    }

    #[test]
    fn of_two_lengths_the_chunks_count_and_the_connection_ends() {
        for fields in [
            "Content-Length: 7\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding:\tchunked\r\nX: y\r\nContent-Length: 7\r\nConnection: keep-alive",
        ] {
            let (head, framing) = parse_get(&format!("HTTP/1.1 200 OK\r\n{fields}")).unwrap();
            assert_eq!((head.content_length, head.close, framing), (None, true, Framing::Chunked), "{fields}");
        }
    }

    #[test]
    fn each_version_closes_by_its_own_rules() {
        for (head, close) in [
            ("HTTP/1.1 200 OK", false),
            ("HTTP/1.1 200 OK\r\nConnection: close", true),
            ("HTTP/1.1 200 OK\r\nConnection: foo, Close", true),
            ("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: close", true),
            ("HTTP/1.1 200 OK\r\nProxy-Connection: close", true),
            ("HTTP/1.0 200 OK", true),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive", false),
            ("HTTP/1.0 200 OK\r\nProxy-Connection: Keep-Alive", false),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive, close", true),
        ] {
            assert_eq!(parse_get(head).unwrap().0.close, close, "{head:?}");
        }
    }

    #[test]
    fn odd_values_are_dropped_or_marked() {
        let (head, _) = parse_get(
            "HTTP/1.1 200 OK\r\nETag: abc\r\nLast-Modified: yesterday\r\nRetry-After: soon\r\n\
             Content-Range: bytes 1-2/3\r\nContent-Range: bytes 1-2/3\r\nContent-Encoding: identity\r\n\
             Accept-Ranges: none\r\nKeep-Alive: max=x",
        )
        .unwrap();
        assert_eq!(head.content_range, Some(ContentRange::Malformed));
        assert_eq!(head.accept_ranges, Some(AcceptRanges::None));
        assert_eq!((head.etag, head.last_modified, head.retry_after), (None, None, None));
        assert_eq!((head.content_encoding, head.keep_alive_max), (None, None));
    }
}
