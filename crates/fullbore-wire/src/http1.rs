//! A pipelined HTTP/1.1 client as a state machine without I/O (RFC 9112).
//!
//! Requests go in with a tag of the caller's choice, and come out as bytes of [`Outgoing`]. Received bytes go in, and
//! come out as [`Event`]s one by one, in the order of the requests. Body data is split off the caller's read buffer,
//! never copied. There is no clock here: the caller times progress.
//!
//! An answer belongs to the oldest unanswered request *by position only*. Only its hash shows whether it is the right
//! file, because servers have answered pipelined requests out of order. After any error the connection is of no further
//! use.

mod body;
mod outgoing;
mod request;
mod response;

pub use outgoing::Outgoing;
pub use request::{BodyLength, Method, RequestError, RequestHead, USER_AGENT};
pub use response::{AcceptRanges, ResponseHead, Version};

use body::ChunkedBody;
use bytes::{Bytes, BytesMut};
use fullbore_engine::units;
use response::{Framing, ParsedHead};
use std::collections::VecDeque;

/// Default maximum number of requests on one connection before the first answer. 99 because Apache, by default, closes
/// a connection after 100 requests.
pub const PIPELINE_DEPTH: usize = 99;

/// Maximum size of a response head in bytes, status line included. Apache and nginx limit request lines to 8 KiB; 32
/// KiB leaves room for chatty CDNs.
pub(crate) const HEAD_BYTES_MAX: usize = 32 * 1024;

/// Maximum number of header fields in a response head. CDNs in front of Debian mirrors send about 25; 100 is what
/// Apache accepts (`LimitRequestFields`).
pub(crate) const HEADERS_MAX: usize = 100;

/// Maximum number of interim (1xx) answers before the final one. We never ask for any. A guess that tolerates early
/// hints, and proxies that send 100 or 102 unasked.
pub(crate) const INFORMATIONAL_MAX: usize = 8;

/// Limits of one connection; `default()` uses the constants of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of requests in flight.
    pub requests_in_flight: usize,
    /// Maximum size of a response head, in bytes. At most `HEAD_BYTES_MAX` is sensible.
    pub head_bytes: usize,
    /// Maximum number of interim answers before a final one.
    pub informational: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { requests_in_flight: PIPELINE_DEPTH, head_bytes: HEAD_BYTES_MAX, informational: INFORMATIONAL_MAX }
    }
}

impl Limits {
    /// The default limits with another pipeline depth; 1 means no pipelining.
    pub fn with_depth(requests_in_flight: usize) -> Self {
        Self { requests_in_flight: requests_in_flight.max(1), ..Self::default() }
    }
}

/// An event of the protocol, decoded from received bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The final status line and header fields of the answer to `tag`.
    Head {
        /// Tag of the answered request.
        tag: u64,
        /// The parsed head.
        head: Box<ResponseHead>,
    },
    /// A piece of the body, never empty, in order, transfer coding removed.
    Body {
        /// Tag of the answered request.
        tag: u64,
        /// The bytes, shared with the caller's read buffer.
        data: Bytes,
    },
    /// The answer is complete.
    End {
        /// Tag of the answered request.
        tag: u64,
        /// Whether further answers can follow. If false, close the connection and request [`Http1::unanswered`] again
        /// elsewhere: that is no fault of the host.
        keep_alive: bool,
    },
}

/// A violation of HTTP/1.1 or a limit in the received bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Http1Error {
    /// The head is longer than [`Limits::head_bytes`].
    #[error("response head is longer than {}", units::bytes(*limit as u64))]
    HeadTooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// There are more than `HEADERS_MAX` header fields.
    #[error("response head has more than {limit} header fields")]
    TooManyHeaders {
        /// The maximum number of fields.
        limit: usize,
    },
    /// The bytes are not a response head.
    #[error("malformed response head: {reason}")]
    BadHead {
        /// The parser's objection.
        reason: String,
    },
    /// There are more interim answers than [`Limits::informational`].
    #[error("more than {limit} interim (1xx) answers")]
    TooManyInformational {
        /// The maximum number of interim answers.
        limit: usize,
    },
    /// The answer is `101 Switching Protocols`, for which we never ask.
    #[error("server switched protocols unasked (101)")]
    UnexpectedUpgrade,
    /// Content-Length is not a number, or several differ (RFC 9112, 6.3 rule 5).
    #[error("invalid or contradictory Content-Length: {value:?}")]
    BadContentLength {
        /// Value of the field as received.
        value: String,
    },
    /// The transfer coding is not a single `chunked`, or HTTP/1.0 has one.
    #[error("transfer coding not acceptable: {value:?}")]
    BadTransferEncoding {
        /// Value of the field as received.
        value: String,
    },
    /// A chunk's size line, end or trailer violates RFC 9112, 7.1.
    #[error("malformed chunked body: {reason}")]
    BadChunk {
        /// The violated rule, as a clause.
        reason: &'static str,
    },
    /// Bytes arrived although no request waits for an answer.
    #[error("{bytes} B received that answer no request")]
    UnexpectedBytes {
        /// Number of these bytes.
        bytes: usize,
    },
    /// The connection ended inside a body.
    #[error("connection closed inside a body{}", missing.map_or(String::new(), |n| format!(", {n} B missing")))]
    TruncatedBody {
        /// Tag of the request.
        tag: u64,
        /// Number of missing bytes, if the length was known.
        missing: Option<u64>,
    },
    /// The connection ended inside a response head.
    #[error("connection closed inside a response head, after {bytes} B of it")]
    TruncatedHead {
        /// Tag of the request.
        tag: u64,
        /// Number of bytes of the head that arrived.
        bytes: usize,
    },
    /// The connection failed before; nothing more can be received.
    #[error("connection already failed")]
    Failed,
}

/// The client's end of one connection.
///
/// ```
/// use bytes::BytesMut;
/// use fullbore_wire::http1::{BodyLength, Event, Http1, Limits, RequestHead};
///
/// let mut client = Http1::new(Limits::default());
/// client.request(&RequestHead::get("mirror.example", "/a"), 1, BodyLength::None).unwrap();
/// client.request(&RequestHead::get("mirror.example", "/b"), 2, BodyLength::None).unwrap();
/// let mut received = BytesMut::from("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 404");
/// assert!(matches!(client.receive(&mut received).unwrap(), Some(Event::Head { tag: 1, .. })));
/// assert_eq!(client.receive(&mut received).unwrap(), Some(Event::Body { tag: 1, data: "hi".into() }));
/// assert_eq!(client.receive(&mut received).unwrap(), Some(Event::End { tag: 1, keep_alive: true }));
/// assert_eq!(client.receive(&mut received).unwrap(), None); // the 404's head is not complete yet
/// ```
#[derive(Debug)]
pub struct Http1 {
    limits: Limits,
    outgoing: Outgoing,
    /// Requests in flight, oldest first. The first is being answered while `receiving` is a body.
    in_flight: VecDeque<PendingRequest>,
    sending: Option<Sending>,
    receiving: Receiving,
    /// Whether the connection may be used after the present answer, by its head.
    persistent: bool,
    informational: usize,
    /// Bytes of an incomplete head in the caller's buffer that were searched already.
    head_seen: usize,
    answered: u64,
    /// The last final head as received, if heads are kept.
    kept_head: Option<Bytes>,
    keeps_heads: bool,
}

#[derive(Debug, Clone, Copy)]
struct PendingRequest {
    tag: u64,
    method: Method,
}

/// A request body that is being sent.
#[derive(Debug)]
struct Sending {
    tag: u64,
    /// Bytes still due by Content-Length; `None`: chunked.
    remaining: Option<u64>,
}

#[derive(Debug)]
enum Receiving {
    Head,
    /// Number of bytes to the end of the answer; 0 for answers without a body.
    Length(u64),
    Chunked(ChunkedBody),
    UntilClose,
    /// After a successful CONNECT: further bytes are not HTTP.
    Tunnel,
    Closed,
    Failed,
}

impl Http1 {
    /// Creates the state of a fresh connection.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            outgoing: Outgoing::default(),
            in_flight: VecDeque::new(),
            sending: None,
            receiving: Receiving::Head,
            persistent: true,
            informational: 0,
            head_seen: 0,
            answered: 0,
            kept_head: None,
            keeps_heads: false,
        }
    }

    /// Keeps the bytes of each final head for [`Http1::take_head`], for a log of heads.
    pub(crate) fn keep_heads(&mut self) {
        self.keeps_heads = true;
    }

    /// Returns the bytes of the head of the last [`Event::Head`].
    pub(crate) fn take_head(&mut self) -> Option<Bytes> {
        self.kept_head.take()
    }

    /// Queues a request. With a body, the caller continues with [`body`](Self::body) and [`body_end`](Self::body_end)
    /// before the next request.
    ///
    /// # Errors
    /// [`RequestError::Closing`] if the connection takes no more requests; [`RequestError::BodyOpen`] before
    /// [`body_end`](Self::body_end); [`RequestError::TooManyInFlight`] at the limit of requests in flight; other
    /// variants if `head` cannot be written as HTTP/1.1.
    pub fn request(&mut self, head: &RequestHead, tag: u64, body: BodyLength) -> Result<(), RequestError> {
        if self.is_closing() {
            return Err(RequestError::Closing);
        }
        if let Some(sending) = &self.sending {
            return Err(RequestError::BodyOpen { tag: sending.tag });
        }
        if self.in_flight.len() >= self.limits.requests_in_flight {
            return Err(RequestError::TooManyInFlight { limit: self.limits.requests_in_flight });
        }
        head.write(body, self.outgoing.buffer())?;
        self.in_flight.push_back(PendingRequest { tag, method: head.method });
        self.sending = match body {
            BodyLength::None => None,
            BodyLength::Known(length) => Some(Sending { tag, remaining: Some(length) }),
            BodyLength::Chunked => Some(Sending { tag, remaining: None }),
        };
        Ok(())
    }

    /// Queues a piece of the open request body. The caller must bound the queue by means of [`Outgoing::len`].
    ///
    /// # Errors
    /// [`RequestError::NoBodyOpen`] if the open body belongs to another request; [`RequestError::BodyTooLong`] beyond
    /// the declared length.
    pub fn body(&mut self, tag: u64, data: Bytes) -> Result<(), RequestError> {
        let sending =
            self.sending.as_mut().filter(|sending| sending.tag == tag).ok_or(RequestError::NoBodyOpen { tag })?;
        if data.is_empty() {
            return Ok(()); // an empty chunk would end a chunked body
        }
        match &mut sending.remaining {
            Some(remaining) => {
                let length = data.len() as u64;
                if length > *remaining {
                    let excess = length - *remaining;
                    return Err(RequestError::BodyTooLong { tag, excess });
                }
                *remaining -= length;
                self.outgoing.push(data);
            }
            None => {
                let size = format!("{:x}\r\n", data.len());
                self.outgoing.buffer().extend_from_slice(size.as_bytes());
                self.outgoing.push(data);
                self.outgoing.buffer().extend_from_slice(b"\r\n");
            }
        }
        Ok(())
    }

    /// Ends the open body of the request `tag`.
    ///
    /// # Errors
    /// [`RequestError::NoBodyOpen`] if the open body belongs to another request; [`RequestError::BodyTooShort`] before
    /// the declared length.
    pub fn body_end(&mut self, tag: u64) -> Result<(), RequestError> {
        match &self.sending {
            Some(sending) if sending.tag == tag => match sending.remaining {
                Some(0) => {}
                Some(missing) => return Err(RequestError::BodyTooShort { tag, missing }),
                None => self.outgoing.buffer().extend_from_slice(b"0\r\n\r\n"),
            },
            _ => return Err(RequestError::NoBodyOpen { tag }),
        }
        self.sending = None;
        Ok(())
    }

    /// Bytes to be written to the socket, as a [`bytes::Buf`] for vectored writes.
    pub fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }

    /// Parses the start of `input` and returns the next event; `None` if more bytes are needed. Unconsumed bytes stay
    /// in `input`, at most [`Limits::head_bytes`] of them.
    ///
    /// # Errors
    /// An [`Http1Error`] if the bytes break HTTP/1.1 (RFC 9112) or a limit of [`Limits`]. Each later call fails, too.
    pub fn receive(&mut self, input: &mut BytesMut) -> Result<Option<Event>, Http1Error> {
        let event = self.next_event(input);
        if event.is_err() {
            self.receiving = Receiving::Failed;
        }
        event
    }

    /// Reports that the peer closed its direction, once `receive` has returned `None`. A close between answers is clean
    /// (`Ok(None)`; see [`unanswered`](Self::unanswered)). It also ends a body without a declared length, which may
    /// have been cut: only size and hash tell.
    ///
    /// # Errors
    /// [`Http1Error::TruncatedHead`] or [`Http1Error::TruncatedBody`] if an answer is incomplete;
    /// [`Http1Error::Failed`] after an earlier error.
    pub fn end_of_stream(&mut self) -> Result<Option<Event>, Http1Error> {
        let tag = self.in_flight.front().map_or(0, |asked| asked.tag);
        let event = match &self.receiving {
            Receiving::Head if self.head_seen > 0 => Err(Http1Error::TruncatedHead { tag, bytes: self.head_seen }),
            Receiving::Head | Receiving::Closed | Receiving::Tunnel => Ok(None),
            Receiving::Length(0) | Receiving::UntilClose => {
                self.persistent = false;
                Ok(Some(self.end_answer()))
            }
            Receiving::Length(remaining) => Err(Http1Error::TruncatedBody { tag, missing: Some(*remaining) }),
            Receiving::Chunked(_) => Err(Http1Error::TruncatedBody { tag, missing: None }),
            Receiving::Failed => Err(Http1Error::Failed),
        };
        self.receiving = match event {
            Ok(_) => Receiving::Closed,
            Err(_) => Receiving::Failed,
        };
        event
    }

    /// Number of requests without a complete answer, including the one being answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Tags of the requests whose answer has not begun, oldest first. After a clean close they are requested again
    /// elsewhere, without a strike against the host.
    pub fn unanswered(&self) -> impl Iterator<Item = u64> + '_ {
        let begun = usize::from(self.answering().is_some());
        self.in_flight.iter().skip(begun).map(|asked| asked.tag)
    }

    /// Tag of the request whose answer has begun and not ended.
    pub fn answering(&self) -> Option<u64> {
        match self.receiving {
            Receiving::Length(_) | Receiving::Chunked(_) | Receiving::UntilClose => {
                self.in_flight.front().map(|asked| asked.tag)
            }
            _ => None,
        }
    }

    /// Number of requests that may be queued now; 0 while a request body is open.
    pub fn free_slots(&self) -> usize {
        if self.is_closing() || self.sending.is_some() {
            return 0;
        }
        self.limits.requests_in_flight.saturating_sub(self.in_flight.len())
    }

    /// Changes the maximum number of requests in flight (1 after permuted answers or HTTP/1.0).
    pub(crate) fn set_depth(&mut self, requests_in_flight: usize) {
        self.limits.requests_in_flight = requests_in_flight.max(1);
    }

    /// Whether the server closes after the present answer, or has closed.
    pub(crate) fn is_closing(&self) -> bool {
        !self.persistent || matches!(self.receiving, Receiving::Closed | Receiving::Failed | Receiving::Tunnel)
    }

    /// Number of complete answers: what to learn when the server closes.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    fn next_event(&mut self, input: &mut BytesMut) -> Result<Option<Event>, Http1Error> {
        match &mut self.receiving {
            Receiving::Head => self.receive_head(input),
            Receiving::Length(0) => Ok(Some(self.end_answer())),
            Receiving::Length(remaining) => {
                let Some(data) = take_body(input, *remaining) else {
                    return Ok(None);
                };
                *remaining -= data.len() as u64;
                Ok(self.body_event(data))
            }
            Receiving::Chunked(chunked) => match chunked.receive(input)? {
                body::Chunked::Data(data) => Ok(self.body_event(data)),
                body::Chunked::NeedMore => Ok(None),
                body::Chunked::End => Ok(Some(self.end_answer())),
            },
            Receiving::UntilClose => match take_body(input, u64::MAX) {
                Some(data) => Ok(self.body_event(data)),
                None => Ok(None),
            },
            Receiving::Tunnel => Ok(None),
            Receiving::Closed if input.is_empty() => Ok(None),
            Receiving::Closed => Err(Http1Error::UnexpectedBytes { bytes: input.len() }),
            Receiving::Failed => Err(Http1Error::Failed),
        }
    }

    fn receive_head(&mut self, input: &mut BytesMut) -> Result<Option<Event>, Http1Error> {
        loop {
            if input.is_empty() {
                return Ok(None);
            }
            let Some(&asked) = self.in_flight.front() else {
                return Err(Http1Error::UnexpectedBytes { bytes: input.len() });
            };
            // A head that drips in is parsed again only when another line is complete, so that the work is proportional
            // to lines, not to reads.
            if self.head_seen <= input.len() && !input[self.head_seen..].contains(&b'\n') {
                self.head_seen = input.len();
                if input.len() >= self.limits.head_bytes {
                    return Err(Http1Error::HeadTooLong { limit: self.limits.head_bytes });
                }
                return Ok(None);
            }
            let Some(parsed) = response::parse(input, self.limits.head_bytes, asked.method)? else {
                self.head_seen = input.len();
                return Ok(None);
            };
            self.head_seen = 0;
            let ParsedHead { head, framing, head_bytes } = parsed;
            let bytes = input.split_to(head_bytes);
            if (100..200).contains(&head.status) {
                if head.status == 101 {
                    return Err(Http1Error::UnexpectedUpgrade);
                }
                self.informational += 1;
                if self.informational > self.limits.informational {
                    return Err(Http1Error::TooManyInformational { limit: self.limits.informational });
                }
                continue;
            }
            self.informational = 0;
            self.kept_head = self.keeps_heads.then(|| bytes.freeze());
            self.persistent = !head.close;
            self.receiving = match framing {
                Framing::Length(length) => Receiving::Length(length),
                Framing::Chunked => Receiving::Chunked(ChunkedBody::default()),
                Framing::UntilClose => {
                    self.persistent = false;
                    Receiving::UntilClose
                }
                Framing::Tunnel => {
                    self.in_flight.pop_front();
                    Receiving::Tunnel
                }
            };
            return Ok(Some(Event::Head { tag: asked.tag, head: Box::new(head) }));
        }
    }

    fn body_event(&self, data: Bytes) -> Option<Event> {
        let asked = self.in_flight.front()?;
        Some(Event::Body { tag: asked.tag, data })
    }

    fn end_answer(&mut self) -> Event {
        let asked = self.in_flight.pop_front().expect("an answer is received only while its request is in flight");
        // Answered before the request's body was sent (a refusal). The server may or may not read the rest, so the
        // connection's framing is uncertain.
        if self.sending.take_if(|sending| sending.tag == asked.tag).is_some() {
            self.persistent = false;
        }
        self.answered += 1;
        self.receiving = if self.persistent { Receiving::Head } else { Receiving::Closed };
        Event::End { tag: asked.tag, keep_alive: self.persistent }
    }
}

/// Splits off at most `limit` bytes without copying; `None` if there are none.
fn take_body(input: &mut BytesMut, limit: u64) -> Option<Bytes> {
    if input.is_empty() {
        return None;
    }
    let length = usize::try_from(limit).map_or(input.len(), |limit| limit.min(input.len()));
    Some(input.split_to(length).freeze())
}

#[cfg(test)]
mod tests;
