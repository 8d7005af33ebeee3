//! HTTP/2 as a client: many requests on one connection, each with its own flow control.
//!
//! The h2 crate speaks the protocol; this file gives it windows for long fat links, says
//! requests and answers in the words of [`crate::http1`], and sorts errors by what they mean
//! for a file: not answered (ask again, no fault of the host), or failed. Received bytes are
//! given back to the windows by the caller, when they have landed, so that a slow disk
//! slows the server down and memory stays bounded by the windows.

mod frames;

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{FlowControl, Reason, RecvStream, SendStream};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncWrite};

use self::frames::{Metered, Requests};
use crate::conditional::http_date;
use crate::http1::{
    BodyLength, HEAD_BYTES_MAX, Http1Error, INFORMATIONAL_MAX, Method, RequestHead, ResponseHead, USER_AGENT,
};
use crate::url::Scheme;

/// Bytes a server may send on one stream before we give them back. The protocol's default of
/// 64 KiB caps a stream at 0.65 MB/s over 100 ms; 16 MiB allow 1 Gbit/s over 134 ms.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 16 << 20;

/// The same for all streams of the connection together. Equal to the stream's, so that one large
/// file can fill the path and a connection never holds more than this in memory.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Largest frame we take. h2 holds a frame back until it is complete, so this is latency
/// and memory as well; 256 KiB is the size of the chunks that travel on. Common servers
/// send 8 to 16 KiB whatever is allowed.
pub(crate) const FRAME_BYTES: u32 = 256 << 10;

/// Streams to open before the server's settings are known, one round trip at most. The
/// smallest limit seen is lighttpd's 8 (nginx 128, Apache 100).
const STREAMS_BEFORE_SETTINGS: usize = 8;

/// Streams we reset whose late frames are ignored instead of being an error. As many as
/// one server lets run at once, doubled: a whole connection's files may be hedged away.
const RESET_STREAMS: usize = 256;

/// One connection. Clones share it; each of them opens streams.
///
/// When all clones, answers and bodies are gone the driver says goodbye (GOAWAY) and ends.
#[derive(Clone)]
pub(crate) struct Http2 {
    sender: SendRequest<Bytes>,
    scheme: Scheme,
    requests: Requests,
}

/// Moves the connection's frames. Nothing happens unless it is polled: spawn it. It ends with `Ok`
/// when either side closed in good order.
#[must_use = "the connection stands still unless this is spawned"]
pub(crate) struct Driver<S: AsyncRead + AsyncWrite + Unpin> {
    connection: Connection<Metered<S>, Bytes>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Driver<S> {
    type Output = Result<(), Http2Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.connection).poll(cx));
        Poll::Ready(ended.map_err(Http2Error::of).or_else(|error| match error {
            // The server said goodbye in good order; what it left unanswered has been told.
            Http2Error::GoneAway { reason: Reason::NO_ERROR } => Ok(()),
            other => Err(other),
        }))
    }
}

impl Http2 {
    /// Says hello on a connection that speaks HTTP/2, without waiting for the answer.
    ///
    /// # Errors
    /// [`Http2Error::Io`].
    pub(crate) async fn start<S>(stream: S, scheme: Scheme) -> Result<(Http2, Driver<S>), Http2Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let requests = Requests::default();
        let (sender, connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .max_header_list_size(HEAD_BYTES_MAX as u32)
            .initial_max_send_streams(STREAMS_BEFORE_SETTINGS)
            .max_concurrent_reset_streams(RESET_STREAMS)
            .handshake(Metered::new(stream, requests.clone()))
            .await
            .map_err(Http2Error::of)?;
        Ok((Http2 { sender, scheme, requests }, Driver { connection }))
    }

    /// Waits until the request last sent by this handle has a stream: the server's limit on
    /// streams is what makes it wait.
    ///
    /// # Errors
    /// [`Http2Error::GoneAway`] when the server takes no more; the connection's end otherwise.
    pub(crate) async fn ready(&mut self) -> Result<(), Http2Error> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// [`Http2::ready`] for those who poll.
    ///
    /// # Errors
    /// As `ready`.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        self.sender.poll_ready(cx).map_err(Http2Error::of)
    }

    /// How many streams the server lets run at once, as far as is known.
    #[must_use]
    pub(crate) fn streams_allowed(&self) -> usize {
        self.sender.current_max_send_streams()
    }

    /// Sends a request without a body. Call [`Http2::ready`] first.
    ///
    /// # Errors
    /// [`Http2Error::Request`] for what cannot be said in HTTP; otherwise as `ready`.
    pub(crate) fn send(&mut self, request: &RequestHead) -> Result<Http2Response, Http2Error> {
        let (response, _) = self.open(request, BodyLength::None)?;
        Ok(response)
    }

    fn open(
        &mut self,
        request: &RequestHead,
        body: BodyLength,
    ) -> Result<(Http2Response, SendStream<Bytes>), Http2Error> {
        let head = to_http(request, self.scheme, body)?;
        let ends = body == BodyLength::None;
        // First, so that no answer overtakes it.
        self.requests.one_more();
        let (response, stream) = self.sender.send_request(head, ends).map_err(Http2Error::of)?;
        Ok((Http2Response { response, informational: 0 }, stream))
    }
}

impl fmt::Debug for Http2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2").field("streams_allowed", &self.streams_allowed()).finish()
    }
}

/// The answer to a request, to be awaited. Dropping it cancels the stream.
#[derive(Debug)]
pub(crate) struct Http2Response {
    response: ResponseFuture,
    /// Interim heads so far.
    informational: usize,
}

impl Future for Http2Response {
    type Output = Result<(ResponseHead, Http2Body), Http2Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // h2 keeps interim heads until they are taken.
        while let Poll::Ready(Some(Ok(_))) = self.response.poll_informational(cx) {
            self.informational += 1;
            if self.informational > INFORMATIONAL_MAX {
                let limit = INFORMATIONAL_MAX;
                return Poll::Ready(Err(Http1Error::TooManyInformational { limit }.into()));
            }
        }
        let response = ready!(Pin::new(&mut self.response).poll(cx)).map_err(Http2Error::of)?;
        let (parts, stream) = response.into_parts();
        let head = to_head(parts.status.as_u16(), &parts.headers)?;
        Poll::Ready(Ok((head, Http2Body { stream })))
    }
}

/// The body of an answer. Dropping it before its end cancels the stream, which costs the
/// connection nothing.
#[derive(Debug)]
pub(crate) struct Http2Body {
    stream: RecvStream,
}

impl Http2Body {
    /// The next bytes; `None` is the end, and the length is then what Content-Length said. Every
    /// byte must go back to the windows through [`Release`], or the server stops sending.
    ///
    /// # Errors
    /// The stream's: cut off, reset, or not as long as was announced.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Http2Error> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// [`Http2Body::chunk`] for those who poll.
    ///
    /// # Errors
    /// As `chunk`.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Http2Error>> {
        self.stream.poll_data(cx).map(|data| data.transpose().map_err(Http2Error::of))
    }

    /// A handle to give bytes back, which may travel with them to where they land.
    #[must_use]
    pub(crate) fn release(&mut self) -> Release {
        Release { flow: self.stream.flow_control().clone() }
    }
}

/// Gives received bytes back to the stream's and the connection's window. Dropping the body and all of
/// these gives back to the connection whatever is still owed.
#[derive(Debug, Clone)]
pub(crate) struct Release {
    flow: FlowControl,
}

impl Release {
    /// Gives `bytes` back. More than was received is a mistake of the caller; nothing is given then.
    pub(crate) fn release(&mut self, bytes: usize) {
        // Refused also when the stream has ended and h2 has given its share back already.
        let _ = self.flow.release_capacity(bytes);
    }
}

/// What can go wrong, by what it means.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Http2Error {
    /// The server says goodbye and has not looked at this request (RFC 9113, section 6.8). With
    /// `NO_ERROR` the normal end after so many requests; ask again on another connection.
    #[error("server closes the connection ({reason})")]
    GoneAway {
        /// The reason given.
        reason: Reason,
    },
    /// The server has not looked at this request (RFC 9113, section 8.7), often one stream too many.
    #[error("server refused the stream unseen")]
    Refused,
    /// The server cut this stream off.
    #[error("server reset the stream ({reason})")]
    Reset {
        /// The reason given.
        reason: Reason,
    },
    /// The server broke the protocol's rules, e.g. a body shorter than announced.
    #[error("HTTP/2: {reason}")]
    Protocol {
        /// What h2 says.
        reason: String,
    },
    /// The answer's head contradicts itself.
    #[error("answer's head: {0}")]
    Head(#[from] Http1Error),
    /// The request cannot be said in HTTP/2.
    #[error("request: {reason}")]
    Request {
        /// Why not; without secrets.
        reason: String,
    },
    /// The connection broke.
    #[error("connection: {0}")]
    Io(io::Error),
}

impl Http2Error {
    /// Whether the server floods us with interim heads: a fault of the whole connection.
    #[must_use]
    pub(crate) fn is_flood(&self) -> bool {
        matches!(self, Http2Error::Head(Http1Error::TooManyInformational { .. }))
    }

    fn of(error: h2::Error) -> Http2Error {
        match error.reason() {
            Some(reason) if error.is_go_away() && error.is_remote() => Http2Error::GoneAway { reason },
            Some(reason) if error.is_reset() && error.is_remote() => Http2Error::of_reset(reason),
            _ if error.is_io() => Http2Error::Io(error.into_io().unwrap_or_else(broken)),
            _ => Http2Error::Protocol { reason: error.to_string() },
        }
    }

    fn of_reset(reason: Reason) -> Http2Error {
        match reason {
            Reason::REFUSED_STREAM => Http2Error::Refused,
            reason => Http2Error::Reset { reason },
        }
    }
}

fn broken() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

/// A request in HTTP/2's terms: the Host field becomes `:authority`, and what belongs to a
/// connection (RFC 9113, section 8.2.2) is left out.
fn to_http(request: &RequestHead, scheme: Scheme, body: BodyLength) -> Result<http::Request<()>, Http2Error> {
    let bad = |reason: String| Http2Error::Request { reason };
    let uri = http::Uri::builder()
        .scheme(scheme.as_str())
        .authority(request.host.as_str())
        .path_and_query(request.target.as_str())
        .build()
        .map_err(|error| bad(format!("{}{}: {error}", request.host, request.target)))?;
    let mut fields = HeaderMap::with_capacity(8 + request.fields.len());
    let mut add = |name: HeaderName, value: &str| {
        let value = HeaderValue::from_str(value)
            .map_err(|_| bad(format!("value of {name} holds a byte that is not allowed")))?;
        fields.append(name, value);
        Ok::<(), Http2Error>(())
    };
    add(header::USER_AGENT, request.user_agent.as_deref().unwrap_or(USER_AGENT))?;
    // Stored files are compressed already; a coding on top would break size and hash.
    add(header::ACCEPT_ENCODING, "identity")?;
    if let Some(range) = &request.range {
        add(header::RANGE, &range.to_string())?;
    }
    if let Some(tag) = &request.if_none_match {
        add(header::IF_NONE_MATCH, &tag.to_string())?;
    }
    if let Some(date) = request.if_modified_since.and_then(http_date) {
        add(header::IF_MODIFIED_SINCE, &date)?;
    }
    for (name, value) in &request.fields {
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad(format!("field name {name:?} is not one")))?;
        if !is_of_connection(&name) {
            add(name, value)?;
        }
    }
    match body {
        BodyLength::Known(length) => add(header::CONTENT_LENGTH, &length.to_string())?,
        BodyLength::None if matches!(request.method, Method::Put | Method::Post) => {
            add(header::CONTENT_LENGTH, "0")?;
        }
        BodyLength::None | BodyLength::Chunked => {}
    }
    if let Some(secret) = &request.authorization {
        let mut secret = HeaderValue::from_str(secret.header_value())
            .map_err(|_| bad("authorization holds a byte that is not allowed".to_owned()))?;
        // Keeps it out of the compression table and out of debug output.
        secret.set_sensitive(true);
        fields.insert(header::AUTHORIZATION, secret);
    }
    let mut head = http::Request::new(());
    *head.method_mut() = match request.method {
        Method::Get => http::Method::GET,
        Method::Head => http::Method::HEAD,
        Method::Put => http::Method::PUT,
        Method::Post => http::Method::POST,
        Method::Patch => http::Method::PATCH,
        Method::Delete => http::Method::DELETE,
        Method::Connect => return Err(bad("CONNECT is not offered over HTTP/2".to_owned())),
    };
    *head.version_mut() = http::Version::HTTP_2;
    *head.uri_mut() = uri;
    *head.headers_mut() = fields;
    Ok(head)
}

fn is_of_connection(name: &HeaderName) -> bool {
    [header::CONNECTION, header::HOST, header::TE, header::TRANSFER_ENCODING, header::UPGRADE].contains(name)
        || name == "keep-alive"
        || name == "proxy-connection"
}

/// An answer's fields in the same form as HTTP/1's.
fn to_head(status: u16, fields: &HeaderMap) -> Result<ResponseHead, Http2Error> {
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| httparse::Header { name: name.as_str(), value: value.as_bytes() }).collect();
    Ok(ResponseHead::from_fields(status, &fields)?)
}

#[cfg(test)]
mod tests;
