//! HTTP for bulk data: pipelined HTTP/1.1, HTTP/2, TLS, and two clients on top of them.
//!
//! - [`fetch`] downloads files from several mirrors at once. It asks [`dispatcher`] which connection requests which
//!   file; [`hosts`] has the measurements of each host.
//! - [`exchange`] sends many requests to one server: objects to a store, shares to a storage server.
//!
//! Both open connections by [`connect`] and read the kernel's counters by [`tcp_info`]. The protocol machine [`http1`],
//! `dispatcher`, `queue` and `hosts` do no I/O: bytes and time in, bytes and events out.
//!
//! The crate is not a general HTTP library: it has no cookies, no caches, no compression, and no servers.
//!
//! ```
//! use bytes::BytesMut;
//! use fullbore_wire::http1::{BodyLength, Event, Http1, Limits, Method, RequestHead};
//!
//! let mut client = Http1::new(Limits::with_depth(99));
//! client.request(&RequestHead::new(Method::Get, "mirror.example.org", "/a"), 1, BodyLength::None)?;
//! client.request(&RequestHead::new(Method::Get, "mirror.example.org", "/b"), 2, BodyLength::None)?;
//! let mut received = BytesMut::from("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 404");
//! assert!(matches!(client.receive(&mut received)?, Some(Event::Head { tag: 1, .. })));
//! assert!(matches!(client.receive(&mut received)?, Some(Event::Body { tag: 1, data }) if data == "hi"));
//! assert!(matches!(client.receive(&mut received)?, Some(Event::End { tag: 1, keep_alive: true })));
//! assert!(client.receive(&mut received)?.is_none(), "the second head is not complete yet");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod answer;
pub mod auth;
pub mod conditional;
pub mod connect;
mod connection;
mod counted;
pub mod dispatcher;
pub mod exchange;
pub mod fetch;
mod forward;
pub mod hosts;
pub mod http1;
mod http2;
#[cfg(test)]
mod loopback;
mod pacing;
pub mod proxy;
pub mod queue;
pub mod range;
pub mod rate;
pub mod rate_limit;
pub mod redirect;
pub mod resolve;
pub mod retry_after;
pub mod run;
pub mod signer;
pub mod socket;
mod stream;
pub mod tcp_info;
pub mod tls;
mod trial;
pub mod url;
