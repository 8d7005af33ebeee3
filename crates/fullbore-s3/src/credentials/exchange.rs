//! One request and its answer on a connection of its own, for services that supply credentials.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fullbore_wire::connect::{ConnectOptions, Endpoint, connect};
use fullbore_wire::http1::{BodyLength, Event, Http1, Limits, RequestHead};
use fullbore_wire::url::Url;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// Maximum size of an answer, in bytes. Credentials with a session token have about 2 KiB.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Sends a request; returns the status and the body of the answer.
///
/// # Errors
/// The reason as text, without any part of the request.
pub async fn exchange(
    url: &Url,
    head: &RequestHead,
    body: Bytes,
    options: &ConnectOptions,
    limit: Duration,
) -> Result<(u16, Bytes), String> {
    let endpoint = Endpoint { scheme: url.scheme(), host: url.host().to_string(), port: url.port(), proxy: None };
    let options = ConnectOptions { limit, ..options.clone() };
    let asked = timeout(limit, ask(&endpoint, head, body, &options));
    asked.await.unwrap_or_else(|_| Err(format!("{endpoint}: no answer within {} s", limit.as_secs_f64())))
}

async fn ask(
    endpoint: &Endpoint,
    head: &RequestHead,
    body: Bytes,
    options: &ConnectOptions,
) -> Result<(u16, Bytes), String> {
    let mut connected = connect(endpoint, options).await.map_err(|error| error.to_string())?;
    let failed = |error: &dyn std::fmt::Display| format!("{endpoint}: {error}");
    let mut http = Http1::new(Limits::with_depth(1));
    let length = if body.is_empty() { BodyLength::None } else { BodyLength::Known(body.len() as u64) };
    http.request(head, 0, length).map_err(|error| failed(&error))?;
    if !body.is_empty() {
        http.body(0, body).and_then(|()| http.body_end(0)).map_err(|error| failed(&error))?;
    }
    while !http.outgoing().is_empty() {
        connected.stream.write_buf(http.outgoing()).await.map_err(|error| failed(&error))?;
    }
    connected.stream.flush().await.map_err(|error| failed(&error))?;
    let (mut inbox, mut status, mut content) = (BytesMut::new(), 0, BytesMut::new());
    loop {
        let filled = connected.stream.read_into(&mut inbox, 16 << 10).await.map_err(|error| failed(&error))?;
        loop {
            let mut event = http.receive(&mut inbox).map_err(|error| failed(&error))?;
            if event.is_none() && filled.end {
                event = http.end_of_stream().map_err(|error| failed(&error))?;
                if event.is_none() {
                    return Err(failed(&"closed without an answer"));
                }
            }
            match event {
                None => break,
                Some(Event::Head { head, .. }) => status = head.status,
                Some(Event::Body { data, .. }) if content.len() + data.len() <= ANSWER_BYTES_MAX => {
                    content.extend_from_slice(&data);
                }
                Some(Event::Body { .. }) => return Err(failed(&"the answer is longer than requested")),
                Some(Event::End { .. }) => return Ok((status, content.freeze())),
            }
        }
    }
}
