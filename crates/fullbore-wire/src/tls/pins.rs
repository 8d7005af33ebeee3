//! Trust in a server's key itself, without authorities, names and dates.

use std::fmt;
use std::sync::Arc;

use fullbore_engine::digest::Sha256;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, SignatureScheme};

use super::certificate;

/// Keys that are accepted without an authority.
#[derive(Debug)]
pub(super) enum Pins {
    Sums(Vec<[u8; 32]>),
    Keys(Vec<Vec<u8>>),
}

/// Accepts a server by its key. The handshake's signature is still verified, so that the server must hold the key, not
/// merely present the certificate.
#[derive(Debug)]
pub(super) struct PinVerifier {
    pub(super) accepted: Pins,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

/// Carried inside rustls's error, so that people can compare pins.
#[derive(Debug)]
pub(super) struct WrongKey {
    presented: [u8; 32],
}

impl fmt::Display for WrongKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("key is not a pinned one; its SHA-256 is ")?;
        self.presented.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::error::Error for WrongKey {}

/// The key of a certificate.
fn public_key<'a>(certificate: &'a CertificateDer<'_>) -> Result<&'a [u8], rustls::Error> {
    certificate::subject_public_key_info(certificate).ok_or_else(|| CertificateError::BadEncoding.into())
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let key = public_key(end_entity)?;
        let presented = spki_pin(key);
        let accepted = match &self.accepted {
            Pins::Sums(sums) => sums.contains(&presented),
            Pins::Keys(keys) => keys.iter().any(|accepted| accepted.as_slice() == key),
        };
        if accepted {
            return Ok(ServerCertVerified::assertion());
        }
        let reason = OtherError(Arc::new(WrongKey { presented }));
        Err(CertificateError::Other(reason).into())
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
        // By the key alone, which certificates of any version have. (TLS 1.2 wants version 3.)
        let key = SubjectPublicKeyInfoDer::from(public_key(cert)?);
        rustls::crypto::verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The pin of a key: SHA-256 of its SubjectPublicKeyInfo in DER.
#[must_use]
pub fn spki_pin(subject_public_key_info: &[u8]) -> [u8; 32] {
    Sha256::of(subject_public_key_info).0
}
