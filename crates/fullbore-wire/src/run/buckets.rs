//! Archives in buckets. This crate fetches from them as from a mirror; the store's crate signs the requests.

use std::fmt;
use std::sync::Arc;

use fullbore_engine::run::CommandError;

use super::NetworkSettings;
use crate::signer::SignedMirror;

/// Scheme of the address of a bucket.
const SCHEME: &str = "s3://";

/// Opens archives in buckets.
pub trait OpenBucket: Send + Sync + fmt::Debug {
    /// Opens the archive at this address; no request is sent yet.
    ///
    /// # Errors
    /// A [`CommandError`] of kind usage if the address or the settings for it are invalid.
    fn open(&self, address: &str, network: &NetworkSettings) -> Result<SignedMirror, CommandError>;
}

/// Opens archives in buckets; shared by all parts of a run.
#[derive(Debug, Clone)]
pub struct Buckets(Arc<dyn OpenBucket>);

impl Buckets {
    /// Creates it from an implementation.
    pub fn new(open: impl OpenBucket + 'static) -> Buckets {
        Buckets(Arc::new(open))
    }
}

impl PartialEq for Buckets {
    fn eq(&self, other: &Buckets) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Whether this is the address of a bucket (`s3://`).
pub fn is_bucket(address: &str) -> bool {
    address.starts_with(SCHEME)
}

pub(super) fn open_bucket(address: &str, network: &NetworkSettings) -> Result<SignedMirror, CommandError> {
    match &network.buckets {
        Some(Buckets(buckets)) => buckets.open(address, network),
        None => Err(CommandError::usage(format_args!("{address}: archives in buckets cannot be read here"))),
    }
}
