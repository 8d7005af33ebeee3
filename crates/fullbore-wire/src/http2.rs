//! An HTTP/2 client: many requests on one connection, each with its own flow control.
//!
//! The h2 crate implements the protocol. This module sets windows for long fat links, converts requests and answers to
//! the types of [`crate::http1`], and classifies errors by their meaning for a file: not answered (ask again, no fault
//! of the host), or failed. The caller returns received bytes to the windows when they have landed. So a slow disk
//! slows the server down, and the windows bound the memory.

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

/// Maximum number of bytes that a server may send on one stream before we return them. The protocol's default of 64 KiB
/// caps a stream at 0.65 MB/s over 100 ms; 16 MiB allow 1 Gbit/s over 134 ms.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 16 << 20;

/// The same for all streams of the connection together. Equal to a stream's window, so that one large file can fill the
/// path, and a connection never holds more than this in memory.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Largest accepted frame, in bytes. h2 holds a frame back until it is complete, so this is latency and memory as well;
/// 256 KiB is the size of the chunks that are passed on. Common servers send 8 to 16 KiB whatever is allowed.
pub(crate) const FRAME_BYTES: u32 = 256 << 10;

/// Maximum number of streams before the server's settings are known, one round trip at most. The smallest limit seen is
/// lighttpd's 8 (nginx 128, Apache 100).
const STREAMS_BEFORE_SETTINGS: usize = 8;

/// Number of reset streams whose late frames are ignored instead of being an error. Twice the number of streams that
/// one server allows: hedging may take away all files of a connection.
const RESET_STREAMS: usize = 256;

/// One connection. Clones share it, and each can open streams.
///
/// When all clones, answers and bodies are gone, the driver sends GOAWAY and ends.
#[derive(Clone)]
pub(crate) struct Http2 {
    sender: SendRequest<Bytes>,
    scheme: Scheme,
    requests: Requests,
}

/// Moves the connection's frames. It must be polled, so spawn it. It ends with `Ok` when either side closed in good
/// order.
#[must_use = "the connection stands still unless this is spawned"]
pub(crate) struct Driver<S: AsyncRead + AsyncWrite + Unpin> {
    connection: Connection<Metered<S>, Bytes>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Driver<S> {
    type Output = Result<(), Http2Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.connection).poll(cx));
        Poll::Ready(ended.map_err(Http2Error::of).or_else(|error| match error {
            // The server said goodbye in good order; its unanswered requests were reported already.
            Http2Error::GoneAway { reason: Reason::NO_ERROR } => Ok(()),
            other => Err(other),
        }))
    }
}

impl Http2 {
    /// Sends the preface on a connection that speaks HTTP/2, without waiting for the answer.
    ///
    /// # Errors
    /// [`Http2Error::Io`] if the preface cannot be written; other variants as h2 reports them.
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

    /// Waits until the last request of this handle has a stream. The server's limit on streams delays it.
    ///
    /// # Errors
    /// [`Http2Error::GoneAway`] if the server accepts no more requests; [`Http2Error::Io`] or [`Http2Error::Protocol`]
    /// if the connection has failed.
    pub(crate) async fn ready(&mut self) -> Result<(), Http2Error> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// [`Http2::ready`] for pollers.
    ///
    /// # Errors
    /// As [`Http2::ready`].
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        self.sender.poll_ready(cx).map_err(Http2Error::of)
    }

    /// Number of streams that the server allows at once, as far as is known.
    #[must_use]
    pub(crate) fn streams_allowed(&self) -> usize {
        self.sender.current_max_send_streams()
    }

    /// Sends a request without a body. Call [`Http2::ready`] first.
    ///
    /// # Errors
    /// [`Http2Error::Request`] if the head cannot be expressed in HTTP/2; otherwise as [`Http2::ready`].
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
        // Count first, so that no answer overtakes it.
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

/// A future answer. Dropping it cancels the stream.
#[derive(Debug)]
pub(crate) struct Http2Response {
    response: ResponseFuture,
    /// Number of interim heads so far.
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

/// The body of an answer. Dropping it before its end cancels the stream, at no cost for the connection.
#[derive(Debug)]
pub(crate) struct Http2Body {
    stream: RecvStream,
}

impl Http2Body {
    /// Returns the next bytes; `None` at the end, where the length equals Content-Length. The caller must return every
    /// byte through [`Release`], or the server stops sending.
    ///
    /// # Errors
    /// [`Http2Error::Reset`] if the server cut the stream off; [`Http2Error::Protocol`] if the length differs from the
    /// announced one; otherwise the error of the connection.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Http2Error> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// [`Http2Body::chunk`] for pollers.
    ///
    /// # Errors
    /// As [`Http2Body::chunk`].
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Http2Error>> {
        self.stream.poll_data(cx).map(|data| data.transpose().map_err(Http2Error::of))
    }

    /// A handle for returning bytes, which may travel with them to the landing.
    #[must_use]
    pub(crate) fn release(&mut self) -> Release {
        Release { flow: self.stream.flow_control().clone() }
    }
}

/// Returns received bytes to the windows of the stream and the connection. Dropping the body and all its handles
/// returns the rest to the connection.
#[derive(Debug, Clone)]
pub(crate) struct Release {
    flow: FlowControl,
}

impl Release {
    /// Returns `bytes`. More than were received is a bug of the caller; nothing is returned then.
    pub(crate) fn release(&mut self, bytes: usize) {
        // It also fails when the stream has ended and h2 has returned its share already.
        let _ = self.flow.release_capacity(bytes);
    }
}

/// Errors, by their meaning for a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Http2Error {
    /// The server sent GOAWAY and has not processed this request (RFC 9113, section 6.8). `NO_ERROR` is the normal end
    /// after a number of requests; ask again on another connection.
    #[error("server closes the connection ({reason})")]
    GoneAway {
        /// The server's error code.
        reason: Reason,
    },
    /// The server has not processed this request (RFC 9113, section 8.7), often one stream too many.
    #[error("server refused the stream unseen")]
    Refused,
    /// The server reset this stream.
    #[error("server reset the stream ({reason})")]
    Reset {
        /// The server's error code.
        reason: Reason,
    },
    /// The server violated the protocol, e.g. by a body shorter than announced.
    #[error("HTTP/2: {reason}")]
    Protocol {
        /// Description by h2.
        reason: String,
    },
    /// The head of the answer contradicts itself.
    #[error("answer's head: {0}")]
    Head(#[from] Http1Error),
    /// The request cannot be expressed in HTTP/2.
    #[error("request: {reason}")]
    Request {
        /// The reason, without secrets.
        reason: String,
    },
    /// The connection failed.
    #[error("connection: {0}")]
    Io(io::Error),
}

impl Http2Error {
    /// Whether the server floods us with interim heads, which is a fault of the whole connection.
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

/// Converts a request to HTTP/2: the Host field becomes `:authority`, and fields of the connection (RFC 9113, section
/// 8.2.2) are omitted.
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
    // Stored files are compressed already; a content coding would break size and hash.
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
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad(format!("{name:?} is not a field name")))?;
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
        // Keeps it out of the compression table and of debug output.
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

/// Converts an answer's fields to the form of HTTP/1.
fn to_head(status: u16, fields: &HeaderMap) -> Result<ResponseHead, Http2Error> {
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| httparse::Header { name: name.as_str(), value: value.as_bytes() }).collect();
    Ok(ResponseHead::from_fields(status, &fields)?)
}

#[cfg(test)]
mod tests;
