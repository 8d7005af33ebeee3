//! Checks of a server's certificate that may be switched off, and a certificate of the client.
//!
//! Only for apt's `Acquire::https::Verify-Peer`, `Verify-Host`, `SslCert` and `SslKey`, as apt behaves if its
//! administrator says so. The handshake's signature is always verified.

use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{TlsError, read_pem};

/// Checks of a server's certificate that the user has switched off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlook {
    /// Check everything.
    #[default]
    Nothing,
    /// Accept a certificate for another name.
    Name,
    /// Accept a certificate of any issuer, for any name and time.
    Everything,
}

/// A client certificate with its key, to present to servers that ask for one.
#[derive(Debug)]
pub struct Identity {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads PEM files; both may be the same.
    ///
    /// # Errors
    /// [`TlsError::Pem`] with the file's name if it is unreadable, too large, malformed or empty.
    pub fn read(chain: &Path, key: &Path) -> Result<Identity, TlsError> {
        let bad = |file: &Path, reason: String| TlsError::Pem { file: file.to_owned(), reason };
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(&read_pem(chain)?)
            .collect::<Result<_, _>>()
            .map_err(|error| bad(chain, error.to_string()))?;
        if certificates.is_empty() {
            return Err(bad(chain, "no certificate in it".to_owned()));
        }
        let own = PrivateKeyDer::from_pem_slice(&read_pem(key)?).map_err(|error| bad(key, error.to_string()))?;
        Ok(Identity { chain: certificates, key: own })
    }
}
