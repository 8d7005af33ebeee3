//! The protocol between APT and its acquire methods: messages, configuration, conversation.
//!
//! A method is a program that APT starts with pipes as stdin and stdout. It sends its capabilities (`100 Capabilities`)
//! and receives APT's configuration (`601`). Then it turns requests (`600`) into files, and answers each with `201 URI
//! Done` or `400 URI Failure`. [`Messages`] and [`Configuration`] take bytes and do no I/O; [`Incoming`] and
//! [`Outgoing`] put them on a pair of pipes. [`serve`] is the loop of a method that handles one request at a time.
//! `method.html` of APT's documentation, and captures in the tests, describe what APT writes.

mod configuration;
mod conversation;
mod hashes;
mod message;
mod method_name;
mod request;
mod sandbox;

pub use configuration::{Configuration, ConfigurationError};
pub(crate) use conversation::panic_text;
pub use conversation::{Capabilities, Incoming, IncomingError, Method, Outgoing, serve};
pub use hashes::{ExpectedHashes, HashType, Hasher, ReceivedHashes};
pub use message::{Message, MessageError, Messages, percent_decode};
pub use method_name::MethodName;
pub(crate) use request::date;
pub use request::{Failure, Request};
pub(crate) use sandbox::drop_privileges;
pub use sandbox::{SandboxError, User};
