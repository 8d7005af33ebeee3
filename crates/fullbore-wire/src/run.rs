//! The network's part of a run, as the commands share it: settings, the loop that fetches, hosts in the report.
//!
//! Commands are plain blocking code; connections live on the one worker of a tokio runtime, so that parsing an index
//! never holds up a socket.

pub mod batch;
pub mod hints;
pub mod host_reports;
mod network;
pub mod refusals;
mod settings;

pub use batch::{Batch, Faults, Fetched, Job, Progression};
pub use network::{FILES_AT_ONCE, Network, network_runtime, sending_runtime};
pub use settings::{NetworkSettings, ProxyAddresses, address, addresses, fetch_options, proxies, window};
