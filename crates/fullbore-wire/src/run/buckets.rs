//! Archives in buckets: the wire fetches from them as from a mirror, and the crate of the store signs.

use std::fmt;
use std::sync::Arc;

use fullbore_engine::run::CommandError;

use super::NetworkSettings;
use crate::signer::SignedMirror;

/// Beginning of the address of a bucket.
const SCHEME: &str = "s3://";

/// Opens archives in buckets.
pub trait OpenBucket: Send + Sync + fmt::Debug {
    /// The archive at this address; nothing is asked yet.
    ///
    /// # Errors
    /// A usage error if it is no address, or nobody knows how to reach it.
    fn open(&self, address: &str, network: &NetworkSettings) -> Result<SignedMirror, CommandError>;
}

/// Opens archives in buckets, for all parts of a run.
#[derive(Debug, Clone)]
pub struct Buckets(Arc<dyn OpenBucket>);

impl Buckets {
    /// Opens them by this.
    pub fn new(open: impl OpenBucket + 'static) -> Buckets {
        Buckets(Arc::new(open))
    }
}

impl PartialEq for Buckets {
    fn eq(&self, other: &Buckets) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Whether an address is that of a bucket.
pub fn is_bucket(address: &str) -> bool {
    address.starts_with(SCHEME)
}

pub(super) fn open_bucket(address: &str, network: &NetworkSettings) -> Result<SignedMirror, CommandError> {
    match &network.buckets {
        Some(Buckets(buckets)) => buckets.open(address, network),
        None => Err(CommandError::usage(format_args!("{address}: archives in buckets cannot be read here"))),
    }
}
