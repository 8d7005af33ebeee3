//! The connection to the queue, and its errors as the person sees them.

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_fleet::settings::{ConnectError, NatsSettings};
use fullbore_wire::run::hints;
use fullbore_wire::tls::TlsError;

#[cfg(feature = "fleet")]
mod client {
    use fullbore_engine::run::error::{CommandError, ErrorKind};
    use fullbore_fleet::nats::NatsQueue;
    use fullbore_fleet::settings::NatsSettings;
    use tokio::runtime::Runtime;

    /// The queue of this build.
    pub type Client = NatsQueue;

    pub(crate) fn connect(settings: &NatsSettings) -> Result<super::Connection, CommandError> {
        let runtime = runtime()?;
        let queue = runtime.block_on(NatsQueue::connect(settings)).map_err(|error| super::explain(&error))?;
        Ok(super::Connection { queue, runtime })
    }

    fn runtime() -> Result<Runtime, CommandError> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let built = builder.worker_threads(1).thread_name("queue").enable_all().build();
        built.map_err(|error| CommandError::new(ErrorKind::Internal, error))
    }
}

#[cfg(not(feature = "fleet"))]
mod client {
    use fullbore_engine::run::error::CommandError;
    use fullbore_fleet::settings::NatsSettings;

    /// No connection is ever made; the type only fills its place.
    pub type Client = fullbore_fleet::memory::MemoryQueue;

    pub(super) fn connect(_: &NatsSettings) -> Result<super::Connection, CommandError> {
        Err(super::is_built_in().expect_err("the feature is off"))
    }
}

pub use client::Client;

/// A connection to the queue, and the thread that serves it.
pub struct Connection {
    /// The queue.
    pub queue: Client,
    /// Runs the client.
    pub runtime: tokio::runtime::Runtime,
}

/// Connects. The error is of the kind `Network` if the queue cannot be reached, so that a planner may go alone.
///
/// # Errors
/// Settings that cannot be used; a queue that refuses or does not answer.
pub fn connect(settings: &NatsSettings) -> Result<Connection, CommandError> {
    client::connect(settings)
}

/// Whether this build can use a queue.
///
/// # Errors
/// A usage error if it was built without the feature.
pub fn is_built_in() -> Result<(), CommandError> {
    match cfg!(feature = "fleet") {
        true => Ok(()),
        false => Err(CommandError::usage("this fullbore was built without the feature `fleet`, which queues need")
            .hint("install a released package, or build it with `cargo install fullbore --features fleet`")),
    }
}

/// Why there is no connection, as the person sees it.
pub fn explain(error: &ConnectError) -> CommandError {
    match error {
        ConnectError::Url { .. } => {
            CommandError::usage(error).hint("write it as tls://HOST:4222, or nats://127.0.0.1:4222 on this machine")
        }
        ConnectError::PasswordInUrl => CommandError::usage(error)
            .hint("set FULLBORE_QUEUE_USER and FULLBORE_QUEUE_PASSWORD in the environment, or pass --queue-creds FILE"),
        ConnectError::ClearText { .. } => {
            CommandError::usage(error).hint("use tls://; on a network that you trust as a whole, pass --queue-insecure")
        }
        ConnectError::File { .. } | ConnectError::Certificates(_) => CommandError::usage(error),
        ConnectError::Seed => {
            CommandError::usage(error).hint("pass the seed as `nk -gen user` printed it: SU and 56 more letters")
        }
        ConnectError::Untrusted { source, .. } => CommandError::usage(error).hint(match source {
            TlsError::NotTls { .. } => "set `tls` in the settings of nats-server, or write nats:// on this machine",
            source if source.is_of_unknown_issuer() => hints::TRUST,
            _ => hints::CERTIFICATE,
        }),
        ConnectError::Refused { .. } => CommandError::usage(error).hint(
            "pass the credentials that the server knows: --queue-creds or --queue-nkey FILE, --queue-cert and \
             --queue-key, or FULLBORE_QUEUE_USER and FULLBORE_QUEUE_PASSWORD in the environment",
        ),
        _ => CommandError::new(ErrorKind::Network, error).hint("check the address, and that nats-server runs there"),
    }
}

/// How an error of the queue ends a command.
pub fn failed(error: &fullbore_fleet::queue::QueueError) -> CommandError {
    use fullbore_fleet::queue::QueueError::{Denied, Missing, Unreachable};
    match error {
        Unreachable(_) => CommandError::new(ErrorKind::Network, error),
        Missing(_) => CommandError::new(ErrorKind::Network, error)
            .hint("nats-server needs JetStream: start it with `-js`, or with a section `jetstream` in its settings"),
        Denied(_) => CommandError::usage(error).hint("compare the permissions with packaging/nats/permissions.conf"),
        _ => CommandError::new(ErrorKind::Network, error),
    }
}
