//! A tunnel to a server through an http proxy: the CONNECT method (RFC 9110, section 9.3.6).

use fullbore_engine::units;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{ConnectError, ProxyServer, authority};
use crate::http1::{HEAD_BYTES_MAX, HEADERS_MAX, USER_AGENT};
use crate::stream::Stream;

/// Requests a tunnel to `target` (`host:port`) from the proxy. Afterwards the stream leads to the server.
pub(super) async fn open(stream: &mut Stream, proxy: &ProxyServer, target: &str) -> Result<(), ConnectError> {
    let name = authority(&proxy.host, proxy.port);
    let bad = |reason: String| ConnectError::ProxyAnswer { proxy: name.clone(), reason };
    let authorization = proxy.authorization.as_deref().unwrap_or("");
    // These values come from settings and URLs; a line break in one would start a second header field.
    let is_text = |text: &str| text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if !is_text(authorization) || !is_text(target) || target.contains(' ') {
        return Err(bad("host or credentials contain a byte that HTTP does not allow".to_owned()));
    }
    // Some proxies refuse clients without a User-Agent.
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: {USER_AGENT}\r\n");
    if !authorization.is_empty() {
        request.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
    }
    request.push_str("\r\n");
    let written = stream.write_all(request.as_bytes()).await;
    written.map_err(|error| bad(error.to_string()))?;
    stream.flush().await.map_err(|error| bad(error.to_string()))?;

    let mut received = Vec::with_capacity(1024);
    loop {
        let room = HEAD_BYTES_MAX - received.len();
        if room == 0 {
            return Err(bad(format!("answer's head is longer than {}", units::bytes(HEAD_BYTES_MAX as u64))));
        }
        let mut limited = (&mut *stream).take(room as u64);
        let read = limited.read_buf(&mut received).await.map_err(|error| bad(error.to_string()))?;
        if read == 0 {
            return Err(bad("closed the connection instead of answering".to_owned()));
        }
        let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut answer = httparse::Response::new(&mut fields);
        let head = answer.parse(&received).map_err(|error| bad(format!("answer is not HTTP: {error}")))?;
        let httparse::Status::Complete(head_bytes) = head else {
            continue;
        };
        let status = answer.code.unwrap_or(0);
        return match status {
            // The server speaks only after our first message, so nothing may follow the head.
            200..=299 if head_bytes == received.len() => Ok(()),
            200..=299 => Err(bad("sent data before the tunnel was used".to_owned())),
            407 => Err(ConnectError::ProxyAuthentication {
                proxy: name,
                host: target.to_owned(),
                schemes: answer
                    .headers
                    .iter()
                    .find(|field| field.name.eq_ignore_ascii_case("Proxy-Authenticate"))
                    .map(|field| String::from_utf8_lossy(field.value).into_owned()),
            }),
            _ => Err(ConnectError::ProxyRefused {
                proxy: name,
                host: target.to_owned(),
                status,
                reason: answer.reason.unwrap_or("").to_owned(),
            }),
        };
    }
}
