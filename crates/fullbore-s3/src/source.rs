//! Archives in buckets, from which the commands for Debian archives fetch as from any mirror.
//!
//! fullbore-wire fetches. [`BucketSigner`] supplies the address of the files and a signature for each request, and
//! judges refusals. Credentials, region and clock follow the rules of [`Client`](crate::Client), which is not used here
//! because it sends requests one by one and knows no other mirrors.

mod address;
mod signer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fullbore_engine::run::CommandError;
use fullbore_wire::connect::ConnectOptions;
use fullbore_wire::run::{Buckets, NetworkSettings, OpenBucket};
use fullbore_wire::signer::SignedMirror;
use fullbore_wire::tls::{Authorities, Offer, Tls, Trust};

use crate::address::{Addressing, Bucket};
use crate::bucket::{REGION, explain_credentials};
use crate::credentials::{Aws, CredentialCache};
pub use address::{SourceAddress, SourceAddressError};
pub use signer::BucketSigner;

/// Time without progress after which a connection to a credential service is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Shared by all buckets that a run reads: the variables of the AWS tools, which may contain secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct BucketSources {
    variables: BTreeMap<String, String>,
}

impl std::fmt::Debug for BucketSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BucketSources({:?}, values hidden)", self.variables.keys())
    }
}

impl BucketSources {
    /// Takes environment variables, and keeps only those of the AWS tools.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> BucketSources {
        let is_used = |name: &str| name.starts_with("AWS_") || name == "HOME";
        BucketSources { variables: variables.into_iter().filter(|(name, _)| is_used(name)).collect() }
    }

    /// Converts it for network settings.
    pub fn shared(self) -> Buckets {
        Buckets::new(self)
    }

    /// Resolves the address of a bucket, with the settings of the AWS tools for it.
    ///
    /// # Errors
    /// A [`CommandError`] of kind usage if the address is invalid, or its profile cannot be used.
    pub fn find(&self, text: &str) -> Result<(SourceAddress, Bucket, Aws), CommandError> {
        let address = SourceAddress::parse(text).map_err(CommandError::usage)?;
        let lookup = |name: &str| self.variables.get(name).cloned();
        let aws = Aws::find(&lookup, address.profile.as_deref()).map_err(|error| explain_credentials(&error))?;
        let addressing = match address.addressing {
            Addressing::Auto => aws.addressing,
            chosen => chosen,
        };
        let region = address.region.as_deref().or(aws.region.as_deref()).unwrap_or(REGION);
        let endpoint = address.endpoint.as_deref().or(aws.endpoint.as_deref());
        let bucket =
            Bucket::new(&address.location.bucket, endpoint, region, addressing).map_err(CommandError::usage)?;
        Ok((address, bucket, aws))
    }
}

impl OpenBucket for BucketSources {
    fn open(&self, text: &str, network: &NetworkSettings) -> Result<SignedMirror, CommandError> {
        let (address, bucket, aws) = self.find(text)?;
        // For the store, and for credential services.
        let tls = match network.ca_file.as_ref().or(aws.authorities.as_ref()) {
            Some(path) => Some(Tls::new(Trust::SystemAnd(Authorities::read(path).map_err(CommandError::usage)?))),
            None => None,
        };
        let mut connect = ConnectOptions { offer: Offer::Http1, limit: PATIENCE, ..ConnectOptions::default() };
        if let Some(tls) = &tls {
            connect.tls = tls.clone();
        }
        let credentials = match address.signs {
            true => CredentialCache::new(aws.providers, connect),
            false => CredentialCache::anonymous(),
        };
        let signer = BucketSigner::new(bucket, &address.location.key, credentials).map_err(CommandError::usage)?;
        Ok(SignedMirror { signer: Arc::new(signer), tls })
    }
}
