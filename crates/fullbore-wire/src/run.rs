//! The network's part of a run, shared by the commands: settings, the fetch loop, and hosts in the report.
//!
//! Commands are plain blocking code. Connections run on the single worker of a tokio runtime, so that parsing an index
//! never delays a socket.

pub(crate) mod batch;
mod buckets;
pub mod hints;
mod network;
pub mod refusals;
mod report;
mod settings;
mod site;

pub use batch::{Fed, FedEvent, Fetched, Job, Progression, Totals};
pub use buckets::{Buckets, OpenBucket, is_bucket};
pub use network::{FILES_AT_ONCE, Network, network_runtime, sending_runtime};
pub use report::{RunReport, add_transfers};
pub use settings::{NetworkSettings, ProxyAddresses, address, addresses, fetch_options, mirror_address, proxies, site};
pub use site::{FileList, RemoteFile, Site, SiteParts};
