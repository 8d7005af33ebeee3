//! What a client may be told to overlook of a server's certificate, and a certificate of its own.
//!
//! For apt's `Acquire::https::Verify-Peer`, `Verify-Host`, `SslCert` and `SslKey` alone: what apt does
//! where its administrator says so. The handshake's signature is verified in any case.

use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{TlsError, read_pem};

/// Checks of a server's certificate that the user has switched off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlook {
    /// All is looked at.
    #[default]
    Nothing,
    /// The certificate may be for another name.
    Name,
    /// Anybody may have signed it, for any name and time.
    Everything,
}

/// A certificate with its key, to show to servers that ask.
#[derive(Debug)]
pub struct Identity {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads PEM files; both may be the same.
    ///
    /// # Errors
    /// [`TlsError::Pem`] naming the file: unreadable, too large, malformed or empty.
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
