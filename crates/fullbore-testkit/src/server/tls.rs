//! Certificates for test servers, by an authority that lives as long as the test.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// It could not be made.
    #[error("certificate: {0}")]
    Made(#[from] rcgen::Error),
    /// TLS does not take it.
    #[error("TLS: {0}")]
    Taken(#[from] rustls::Error),
}

/// A certificate authority.
pub struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// What a server's certificate is like, and what the server speaks.
#[derive(Clone, Debug)]
pub struct TlsSpec {
    /// Names and addresses in the certificate.
    pub names: Vec<String>,
    /// Whether it is out of date.
    pub expired: bool,
    /// Whether HTTP/2 is offered.
    pub http2: bool,
}

impl Default for TlsSpec {
    fn default() -> Self {
        TlsSpec { names: vec!["localhost".into(), "127.0.0.1".into(), "::1".into()], expired: false, http2: true }
    }
}

impl TestCa {
    /// A new authority.
    pub fn new() -> Result<TestCa, CertificateError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "fullbore test authority");
        let pem = params.self_signed(&key)?.pem();
        Ok(TestCa { issuer: Issuer::new(params, key), pem })
    }

    /// The authority's certificate, for `--cacert`.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Settings of a server with a new certificate.
    pub(super) fn server(&self, spec: &TlsSpec) -> Result<Arc<rustls::ServerConfig>, CertificateError> {
        let key = KeyPair::generate()?;
        let certificate = spec.params()?.signed_by(&key, &self.issuer)?;
        spec.server(&certificate, &key)
    }
}

/// A certificate that its own key signed.
pub struct OwnCertificate {
    pub(super) config: Arc<rustls::ServerConfig>,
    pem: String,
}

impl OwnCertificate {
    /// A new one; with `authority` it says of itself that it is one, as `openssl req -x509` makes them.
    pub fn new(spec: &TlsSpec, authority: bool) -> Result<OwnCertificate, CertificateError> {
        let key = KeyPair::generate()?;
        let mut params = spec.params()?;
        if authority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let certificate = params.self_signed(&key)?;
        Ok(OwnCertificate { config: spec.server(&certificate, &key)?, pem: certificate.pem() })
    }

    /// The certificate, for `--cacert`.
    pub fn pem(&self) -> &str {
        &self.pem
    }
}

impl TlsSpec {
    fn params(&self) -> Result<CertificateParams, CertificateError> {
        let mut params = CertificateParams::new(self.names.clone())?;
        if self.expired {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        }
        Ok(params)
    }

    fn server(&self, certificate: &Certificate, key: &KeyPair) -> Result<Arc<rustls::ServerConfig>, CertificateError> {
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        // The provider is named, so that no test depends on a process-wide default.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        if self.http2 {
            config.alpn_protocols.push(b"h2".to_vec());
        }
        config.alpn_protocols.push(b"http/1.1".to_vec());
        Ok(Arc::new(config))
    }
}
