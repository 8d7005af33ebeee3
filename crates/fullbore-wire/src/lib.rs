//! Bytes over networks, whatever they are.
//!
//! [`fetch`] is the run over many mirrors: it asks [`dispatcher`] who is to bring what, and its
//! connections speak [`http1`] or [`http2`] over the streams that [`connect`] opens. `dispatcher`, `queue`,
//! `hosts` and the protocols do no I/O: bytes and time in, bytes and events out.

#![deny(unsafe_code)]

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
pub mod http2;
#[cfg(test)]
mod loopback;
pub mod pacing;
pub mod proxy;
pub mod queue;
pub mod range;
pub mod rate;
pub mod rate_limit;
pub mod redirect;
pub mod resolve;
pub mod retry_after;
pub mod run;
pub mod socket;
pub mod stream;
pub mod tcp_info;
pub mod tls;
pub mod trial;
pub mod url;
