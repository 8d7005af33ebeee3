//! The secrets that renew leases, derived from the node's own, so that later runs have them too.

use std::fmt;

use super::base32;
use super::cap::StorageIndex;
use super::hash::{Hash, tagged, tagged_pair};

/// A node's secrets for leases, from its `private/secret`.
#[derive(Clone)]
pub struct LeaseSecrets {
    renew: Hash,
    cancel: Hash,
}

impl fmt::Debug for LeaseSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseSecrets(…)")
    }
}

/// The two secrets of one file's lease on one server.
#[derive(Clone, Copy)]
pub struct Lease {
    /// Secret that renews the lease.
    pub renew: Hash,
    /// Secret that cancels the lease.
    pub cancel: Hash,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease(…)")
    }
}

impl LeaseSecrets {
    /// Secrets from the bytes of a node's secret.
    pub fn new(node_secret: &[u8]) -> LeaseSecrets {
        LeaseSecrets {
            // The secret is the tag here, and the name the value: Tahoe-LAFS defines it so.
            renew: tagged(node_secret, b"allmydata_client_renewal_secret_v1"),
            cancel: tagged(node_secret, b"allmydata_client_cancel_secret_v1"),
        }
    }

    /// Parses the text of a node's `private/secret`.
    ///
    /// # Errors
    /// [`base32::Base32Error`] if the text, without surrounding white space, is not base32.
    pub fn parse(text: &str) -> Result<LeaseSecrets, base32::Base32Error> {
        Ok(LeaseSecrets::new(&base32::decode(text.trim())?))
    }

    /// The lease of a file on the server with this lease seed.
    pub fn lease(&self, index: &StorageIndex, lease_seed: &[u8]) -> Lease {
        let renew = tagged_pair(b"allmydata_file_renewal_secret_v1", &self.renew, index);
        let cancel = tagged_pair(b"allmydata_file_cancel_secret_v1", &self.cancel, index);
        Lease {
            renew: tagged_pair(b"allmydata_bucket_renewal_secret_v1", &renew, lease_seed),
            cancel: tagged_pair(b"allmydata_bucket_cancel_secret_v1", &cancel, lease_seed),
        }
    }
}
