//! The protocol between APT and its acquire methods: messages, configuration, conversation.
//!
//! A method is a program that APT starts with pipes as stdin and stdout. It says what it can
//! (`100 Capabilities`), is told APT's configuration (`601`), and then turns requests (`600`)
//! into files, each answered by `201 URI Done` or `400 URI Failure`. [`Messages`] and
//! [`Configuration`] take bytes and do no I/O; [`Incoming`] and [`Outgoing`] put them on a pair
//! of pipes; [`serve`] is the loop of a method that does one thing after the other. What APT
//! writes is described in `method.html` of its documentation, and by captures in the tests.

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
