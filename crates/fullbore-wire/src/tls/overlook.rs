//! What a client may be told to overlook of a server's certificate, and a certificate of its own.
//!
//! For apt's `Acquire::https::Verify-Peer`, `Verify-Host`, `SslCert` and `SslKey` alone: what apt does
//! where its administrator says so. The handshake's signature is verified in any case.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::{TlsError, read_pem};

/// What is not looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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

/// Looks at less than all.
#[derive(Debug)]
pub(super) struct Lenient {
    /// Whose signature is needed; `None`: nobody's.
    pub(super) roots: Option<RootCertStore>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl Lenient {
    pub(super) fn verifier(self) -> Arc<dyn ServerCertVerifier> {
        Arc::new(self)
    }
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
