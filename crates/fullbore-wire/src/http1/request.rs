//! Request heads (RFC 9112, section 3; RFC 9110 for the fields).
//!
//! Whatever the caller passes, one request stays one request: targets, hosts and field values with line breaks, NUL or
//! other controls are refused.

use std::fmt::Write;
use std::sync::Arc;

use bytes::BytesMut;
use fullbore_engine::units;

use crate::auth::Authorization;
use crate::conditional::{EntityTag, http_date};
use crate::range::ByteRange;

/// Default value of the field `User-Agent`.
pub const USER_AGENT: &str = concat!("fullbore/", env!("CARGO_PKG_VERSION"));

/// Maximum size of a request head in bytes. nginx accepts 8 KiB per line and 32 KiB in all, Apache 8190 bytes per line;
/// a longer head would be refused anyway.
const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// Fields that this module writes itself, or that would change framing or connection.
const RESERVED_FIELDS: [&str; 14] = [
    "host",
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "transfer-encoding",
    "content-length",
    "expect",
    "accept-encoding",
    "user-agent",
    "authorization",
    "proxy-authorization",
];

/// Request methods that fullbore uses (RFC 9110, section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Fetches a resource.
    Get,
    /// Fetches only the head.
    Head,
    /// Stores a resource.
    Put,
    /// Submits data to be processed.
    Post,
    /// Changes a part of a resource (RFC 5789).
    Patch,
    /// Deletes a resource.
    Delete,
    /// Opens a tunnel through a proxy; the target is `host:port`.
    Connect,
}

impl Method {
    /// The method's name in the request line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// How the end of a request body is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// No body.
    None,
    /// Content-Length with this number of bytes.
    Known(u64),
    /// The chunked coding, up to `body_end`.
    Chunked,
}

/// Head of a request. The field values are checked when it is queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Method of the request (RFC 9110, section 9).
    pub method: Method,
    /// Origin form (`/path?query`), absolute form towards a proxy, or `host:port` for CONNECT.
    pub target: String,
    /// The Host field: host, and port if it is not the scheme's default.
    pub host: String,
    /// Field `Range`: the requested bytes (RFC 9110, section 14.2).
    pub range: Option<ByteRange>,
    /// Field `If-None-Match` (RFC 9110, section 13.1.2).
    pub if_none_match: Option<EntityTag>,
    /// Field `If-Modified-Since` (RFC 9110, section 13.1.3), as Unix time in seconds.
    pub if_modified_since: Option<i64>,
    /// Field `Authorization` (RFC 9110, section 11.6.2); never printed.
    pub authorization: Option<Authorization>,
    /// Field `Proxy-Authorization` (RFC 9110, section 11.7.2); sent to proxies only.
    pub proxy_authorization: Option<Authorization>,
    /// Sends `Connection: close`: no request will follow on this connection.
    pub close: bool,
    /// Value of `User-Agent` instead of [`USER_AGENT`].
    pub user_agent: Option<Arc<str>>,
    /// Omits User-Agent and Accept-Encoding, for a service that ignores both, where each byte of the first flight
    /// counts.
    pub is_terse: bool,
    /// Further fields, e.g. Cache-Control. The fields that this module writes itself are refused.
    pub fields: Vec<(String, String)>,
}

/// Why a request or its body cannot be queued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// A value contains a line break, NUL or another forbidden byte.
    #[error("{what} holds a byte that is not allowed there: {text:?}")]
    ForbiddenByte {
        /// Name of the value: target, host, or the field's name.
        what: String,
        /// The value; empty if it is secret.
        text: String,
    },
    /// The field must not be set by the caller.
    #[error("field {name:?} is written by the protocol itself")]
    ReservedField {
        /// Name of the field.
        name: String,
    },
    /// The head is too long for common servers.
    #[error("request head is longer than {}", units::bytes(*limit as u64))]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The method does not allow a body.
    #[error("{method} request with a body")]
    BodyNotAllowed {
        /// Name of the method.
        method: &'static str,
    },
    /// The pipeline is full.
    #[error("{limit} requests are already in flight")]
    TooManyInFlight {
        /// The maximum number of requests in flight.
        limit: usize,
    },
    /// The server closes the connection, or it has failed.
    #[error("connection takes no further request")]
    Closing,
    /// The body of an earlier request has not ended.
    #[error("request {tag} is still sending its body")]
    BodyOpen {
        /// Tag of that request.
        tag: u64,
    },
    /// No body is open for this tag; the server may have answered already.
    #[error("request {tag} has no open body")]
    NoBodyOpen {
        /// The tag given.
        tag: u64,
    },
    /// The body is longer than its Content-Length.
    #[error("body of request {tag} is {excess} bytes longer than announced")]
    BodyTooLong {
        /// Tag of the request.
        tag: u64,
        /// Number of excess bytes.
        excess: u64,
    },
    /// The body is shorter than its Content-Length.
    #[error("body of request {tag} ends {missing} bytes early")]
    BodyTooShort {
        /// Tag of the request.
        tag: u64,
        /// Number of missing bytes.
        missing: u64,
    },
}

impl RequestHead {
    /// Creates a request without conditions and further fields.
    pub fn new(method: Method, host: impl Into<String>, target: impl Into<String>) -> Self {
        Self {
            method,
            target: target.into(),
            host: host.into(),
            range: None,
            if_none_match: None,
            if_modified_since: None,
            authorization: None,
            proxy_authorization: None,
            close: false,
            user_agent: None,
            is_terse: false,
            fields: Vec::new(),
        }
    }

    /// Creates a GET request for `target` on `host` (the Host field).
    pub fn get(host: impl Into<String>, target: impl Into<String>) -> Self {
        Self::new(Method::Get, host, target)
    }

    /// The head of a request without a body as text, for a log. Credentials are omitted. Empty if the head is invalid.
    pub(crate) fn shown(&self) -> String {
        let hidden = |secret: &Option<Authorization>| secret.as_ref().map(|_| Authorization::new("(hidden)"));
        let mut bytes = BytesMut::new();
        let (authorization, proxy_authorization) = (hidden(&self.authorization), hidden(&self.proxy_authorization));
        let mut head = RequestHead { authorization, proxy_authorization, ..self.clone() };
        for (_, value) in head.fields.iter_mut().filter(|(name, _)| is_secret(name)) {
            "(hidden)".clone_into(value);
        }
        // An invalid head is not sent either, and the caller gets the error.
        let _ = head.write(BodyLength::None, &mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Checks all values, then appends the head; on an error nothing is appended.
    pub(super) fn write(&self, body: BodyLength, out: &mut BytesMut) -> Result<(), RequestError> {
        let start = out.len();
        let result = self.write_unbounded(body, out);
        if result.is_ok() && out.len() - start > REQUEST_BYTES_MAX {
            out.truncate(start);
            return Err(RequestError::TooLong { limit: REQUEST_BYTES_MAX });
        }
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn write_unbounded(&self, body: BodyLength, out: &mut BytesMut) -> Result<(), RequestError> {
        let bodiless = matches!(self.method, Method::Get | Method::Head | Method::Connect);
        if bodiless && body != BodyLength::None {
            return Err(RequestError::BodyNotAllowed { method: self.method.as_str() });
        }
        check("request target", &self.target, is_visible)?;
        check("Host", &self.host, is_visible)?;

        let user_agent = self.user_agent.as_deref().unwrap_or(USER_AGENT);
        check("User-Agent", user_agent, is_field_byte)?;

        out.reserve(160 + self.target.len() + self.host.len());
        for part in [self.method.as_str(), " ", &self.target, " HTTP/1.1\r\nHost: ", &self.host, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        if !self.is_terse {
            // Stored files are compressed already; a content coding would break size and hash.
            for part in ["User-Agent: ", user_agent, "\r\nAccept-Encoding: identity\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        if let Some(range) = &self.range {
            field(out, "Range", &range.to_string())?;
        }
        if let Some(tag) = &self.if_none_match {
            field(out, "If-None-Match", &tag.to_string())?;
        }
        if let Some(date) = self.if_modified_since.and_then(http_date) {
            field(out, "If-Modified-Since", &date)?;
        }
        for (name, secret) in
            [("Authorization", &self.authorization), ("Proxy-Authorization", &self.proxy_authorization)]
        {
            if let Some(secret) = secret {
                field(out, name, secret.header_value()).map_err(hide_text)?;
            }
        }
        for (name, value) in &self.fields {
            check("field name", name, is_token)?;
            if RESERVED_FIELDS.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
                return Err(RequestError::ReservedField { name: name.clone() });
            }
            field(out, name, value).map_err(|error| if is_secret(name) { hide_text(error) } else { error })?;
        }
        match body {
            BodyLength::Known(length) => field(out, "Content-Length", &length.to_string())?,
            BodyLength::Chunked => field(out, "Transfer-Encoding", "chunked")?,
            // RFC 9110, 8.6: a method with a meaning for content must say that there is none.
            BodyLength::None if matches!(self.method, Method::Put | Method::Post | Method::Patch) => {
                field(out, "Content-Length", "0")?;
            }
            BodyLength::None => {}
        }
        if self.close {
            field(out, "Connection", "close")?;
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }
}

/// Whether the value of a further field grants access to a reader of the log.
fn is_secret(name: &str) -> bool {
    name.eq_ignore_ascii_case("x-amz-security-token")
}

fn field(out: &mut BytesMut, name: &str, value: &str) -> Result<(), RequestError> {
    if !value.bytes().all(is_field_byte) {
        return Err(RequestError::ForbiddenByte { what: name.to_owned(), text: value.to_owned() });
    }
    // Writing to a BytesMut cannot fail; it grows.
    let _ = write!(out, "{name}: {value}\r\n");
    Ok(())
}

fn check(what: &str, text: &str, allowed: fn(u8) -> bool) -> Result<(), RequestError> {
    if text.is_empty() || !text.bytes().all(allowed) {
        return Err(RequestError::ForbiddenByte { what: what.to_owned(), text: text.to_owned() });
    }
    Ok(())
}

fn hide_text(error: RequestError) -> RequestError {
    match error {
        RequestError::ForbiddenByte { what, .. } => RequestError::ForbiddenByte { what, text: String::new() },
        other => other,
    }
}

fn is_visible(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

/// `field-content` of RFC 9110, 5.5.
fn is_field_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// `tchar` of RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Credentials;

    fn written(head: &RequestHead, body: BodyLength) -> Result<String, RequestError> {
        let mut out = BytesMut::from("before ");
        let result = head.write(body, &mut out);
        let text = String::from_utf8(out.to_vec()).unwrap();
        match result {
            Ok(()) => Ok(text["before ".len()..].to_owned()),
            Err(error) => {
                assert_eq!(text, "before ", "an error leaves no half request");
                Err(error)
            }
        }
    }

    #[test]
    fn every_field_is_written() {
        let mut head = RequestHead::get("mirror.example:8080", "/debian/a");
        head.range = ByteRange::new(5, Some(9));
        head.if_none_match = EntityTag::parse("W/\"x\"");
        head.if_modified_since = Some(784_111_777);
        head.authorization = Some(Credentials::new("apt", "debian").basic());
        head.proxy_authorization = Some(Credentials::new("p", "q").basic());
        head.fields.push(("Cache-Control".into(), "no-cache".into()));
        head.close = true;
        assert_eq!(
            written(&head, BodyLength::None).unwrap(),
            format!(
                "GET /debian/a HTTP/1.1\r\nHost: mirror.example:8080\r\nUser-Agent: {USER_AGENT}\r\n\
                 Accept-Encoding: identity\r\nRange: bytes=5-9\r\n\
                 If-None-Match: W/\"x\"\r\n\
                 If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                 Authorization: Basic YXB0OmRlYmlhbg==\r\nProxy-Authorization: Basic cDpx\r\n\
                 Cache-Control: no-cache\r\nConnection: close\r\n\r\n"
            )
        );
    }

    #[test]
    fn a_log_shows_no_secret() {
        let mut head = RequestHead::get("h", "/");
        head.authorization = Some(Authorization::new("AWS4 secret"));
        head.fields.push(("x-amz-security-token".into(), "secret".into()));
        assert!(head.shown().contains("x-amz-security-token: (hidden)") && !head.shown().contains("secret"));
        head.fields[0].1.push('\n');
        let error = written(&head, BodyLength::None).unwrap_err();
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }

    #[test]
    fn bodies_are_announced() {
        let put = RequestHead::new(Method::Put, "h", "/x");
        let text = |body| written(&put, body).unwrap();
        assert!(text(BodyLength::Known(7)).contains("\r\nContent-Length: 7\r\n"));
        assert!(text(BodyLength::Chunked).contains("\r\nTransfer-Encoding: chunked\r\n"));
        assert!(text(BodyLength::None).contains("\r\nContent-Length: 0\r\n"));
        assert!(written(&RequestHead::get("h", "/"), BodyLength::Known(1)).is_err());
    }

    #[test]
    fn nothing_can_be_injected() {
        let good = RequestHead::get("h", "/");
        let evil = ["a\r\nX: y", "a\nb", "a\rb", "a\0b", "\u{7f}", "a\u{b}"];
        for text in evil {
            let mut requests = vec![good.clone(); 4];
            requests[0].target = format!("/{text}");
            requests[1].host = text.into();
            requests[2].fields.push(("X-Name".into(), text.into()));
            requests[3].fields.push((text.into(), "value".into()));
            for request in &requests {
                assert!(written(request, BodyLength::None).is_err(), "{request:?}");
            }
        }
        for text in ["", " ", "/a b", "/a\tb", "/ü"] {
            let request = RequestHead::get("h", text);
            assert!(written(&request, BodyLength::None).is_err(), "{text:?}");
        }
        for name in ["Content-Length", "transfer-encoding", "HOST", "", "a b", "a:b"] {
            let mut request = good.clone();
            request.fields.push((name.into(), "1".into()));
            assert!(written(&request, BodyLength::None).is_err(), "{name:?}");
        }
        let long = RequestHead::get("h", "/".repeat(REQUEST_BYTES_MAX));
        assert!(matches!(written(&long, BodyLength::None), Err(RequestError::TooLong { .. })));
    }
}
