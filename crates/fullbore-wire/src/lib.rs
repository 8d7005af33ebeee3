//! fullbore-wire.
pub mod dispatcher;
pub mod hosts;
pub mod queue;
pub mod rate;
pub mod connect;
pub mod resolve;
pub mod socket;
pub mod stream;
pub mod tcp_info;
pub mod tls;
pub mod auth;
pub mod conditional;
pub mod http1;
pub mod proxy;
pub mod range;
pub mod redirect;
pub mod retry_after;
pub mod url;
pub mod http2;
#[cfg(test)]
mod loopback;
