//! A mirror in a bucket that many machines fill, coordinated by a queue: `mirror --queue`, `work tls://HOST:4222`.
//!
//! The planner is an ordinary run of `mirror`: it has the lock, reads indexes and publishes. In between, it publishes
//! the missing files as tasks (`planner`), and workers store them (`worker`). Only the store says which files are done:
//! the planner looks there before it publishes, and fetches the missing files itself. So a queue that is unreachable,
//! full or wiped, and workers that die, cost time but no file.

mod attempts;
mod budgets;
pub mod connection;
mod judgement;
mod keys;
mod lanes;
mod planner;
mod put;
pub(crate) mod share;
pub mod status;
pub mod work;
mod worker;

pub use fullbore_fleet::message::{MessageError, Scope, StorePlace};
pub use fullbore_fleet::names::WorkerId;
pub use fullbore_fleet::settings::{ConnectError, Credentials, NatsSettings, Role};

pub use put::PutQueue;
pub use share::endpoint_of;

/// Settings of a planner's queue.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetSettings {
    /// Connection to the queue, and the planner's identity there.
    pub queue: NatsSettings,
    /// Whether this machine also stores files; true by default.
    pub is_worker: bool,
    /// Whether the run ends with an error if the queue cannot be reached at its start.
    pub needs_queue: bool,
}

/// Makes a unique name for a worker of this machine.
pub fn worker_name() -> WorkerId {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_allowed = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    // The first label is the usual name of a machine.
    let host: String = host.split('.').next().unwrap_or_default().chars().filter(is_allowed).take(40).collect();
    let host = if host.is_empty() { "worker" } else { &host };
    let [a, b, c] = fullbore_engine::random::random::<3>();
    WorkerId::parse(&format!("{host}-{a:02x}{b:02x}{c:02x}")).expect("allowed letters, and not too many")
}
