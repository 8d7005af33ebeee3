//! TLS: whom to believe, which protocol to agree on, and errors a person can act on.
//!
//! [`Tls`] holds one client configuration per protocol offer, all sharing one session
//! cache. The system's authorities are read on first need, once, because parsing them
//! costs milliseconds that a plain http run should not pay. [`Trust`] says who may
//! vouch for a server: authorities, or the server's key itself (`copy`'s throw-away
//! keys, Tahoe-LAFS storage servers).

mod overlook;
mod spki;

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fullbore_engine::digest::Sha256;
use overlook::Lenient;
pub use overlook::{Identity, Overlook};
use rustls::SignatureScheme;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore};

/// Largest PEM file of authorities read. Debian's whole bundle is 0.2 MB; the rest is a guess.
const MAX_PEM_BYTES: u64 = 16 << 20;

/// Where distributions keep all authorities in one file, most likely first: Debian, Fedora,
/// openSUSE, Alpine. One file is read because the directory form is hundreds of them.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The cryptography used, chosen here and nowhere else.
fn provider() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

/// Who may vouch for a server.
#[derive(Debug, Clone, Default)]
pub enum Trust {
    /// The authorities of the operating system.
    #[default]
    System,
    /// Those, and these as well (`--cacert`).
    SystemAnd(Authorities),
    /// These and no others.
    Only(Authorities),
    /// Nobody: the server's key has one of these SHA-256 sums of its SubjectPublicKeyInfo
    /// (RFC 7469, section 2.4, gives the form). Names, dates and issuers are not looked at.
    SpkiPins(Vec<[u8; 32]>),
    /// As `SpkiPins`, with the whole SubjectPublicKeyInfo (DER) instead of its sum.
    PinnedKeys(Vec<Vec<u8>>),
}

/// Certificates of authorities, read from PEM.
#[derive(Debug, Clone)]
pub struct Authorities(Vec<CertificateDer<'static>>);

impl Authorities {
    /// Reads a PEM file with at least one certificate.
    ///
    /// # Errors
    /// [`TlsError::Pem`] naming the file: unreadable, over 16 MiB, malformed or without a certificate.
    pub fn read(path: &Path) -> Result<Authorities, TlsError> {
        Authorities::parse(&read_pem(path)?, path)
    }

    /// Parses PEM; `name` is the file for errors.
    ///
    /// # Errors
    /// [`TlsError::Pem`]: malformed, no certificate, or one that cannot be an authority.
    pub fn parse(pem: &[u8], name: &Path) -> Result<Authorities, TlsError> {
        let bad = |reason: String| TlsError::Pem { file: name.to_owned(), reason };
        let certificates: Vec<_> =
            CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| bad(error.to_string()))?;
        if certificates.is_empty() {
            return Err(bad("no certificate in it".to_owned()));
        }
        let mut check = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            check.add(certificate.clone()).map_err(|error| bad(format!("certificate {}: {error}", index + 1)))?;
        }
        Ok(Authorities(certificates))
    }
}

fn read_pem(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |reason: String| TlsError::Pem { file: path.to_owned(), reason };
    let file = std::fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let mut pem = Vec::new();
    file.take(MAX_PEM_BYTES + 1).read_to_end(&mut pem).map_err(|error| unreadable(error.to_string()))?;
    if pem.len() as u64 > MAX_PEM_BYTES {
        return Err(unreadable(format!("larger than {MAX_PEM_BYTES} bytes")));
    }
    Ok(pem)
}

/// Which protocols to offer the server (ALPN, RFC 7301).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Offer {
    /// HTTP/1.1 only: pipelining over several connections is the faster road to most mirrors.
    Http1,
    /// HTTP/2 only. On a plain connection: without asking (RFC 9113, section 3.3).
    Http2,
    /// Both; the server chooses.
    #[default]
    Either,
    /// No ALPN at all, for what is not HTTP.
    Nothing,
}

impl Offer {
    const ALL: [Offer; 4] = [Offer::Http1, Offer::Http2, Offer::Either, Offer::Nothing];

    fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Offer::Http1 => vec![b"http/1.1".to_vec()],
            Offer::Http2 => vec![b"h2".to_vec()],
            Offer::Either => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Offer::Nothing => vec![],
        }
    }
}

/// What both ends agreed to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1, also where the server knows no ALPN.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A client's TLS settings, ready to connect with. Clones share everything, the session
/// cache included: a second connection to a host resumes the first one's session.
#[derive(Debug, Clone)]
pub struct Tls {
    trust: Arc<Trust>,
    identity: Option<Arc<Identity>>,
    overlook: Overlook,
    configs: Arc<OnceLock<[Arc<ClientConfig>; 4]>>,
}

impl Default for Tls {
    fn default() -> Self {
        Tls::new(Trust::System)
    }
}

impl Tls {
    /// Settings that trust as told. Reads nothing yet.
    #[must_use]
    pub fn new(trust: Trust) -> Tls {
        Tls { trust: Arc::new(trust), identity: None, overlook: Overlook::Nothing, configs: Arc::default() }
    }

    /// The same, with a certificate of our own to show.
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> Tls {
        Tls { identity: Some(Arc::new(identity)), configs: Arc::default(), ..self }
    }

    /// The same, with less to be looked at. Of no effect where keys are pinned.
    #[must_use]
    pub fn overlooking(self, overlook: Overlook) -> Tls {
        Tls { overlook, configs: Arc::default(), ..self }
    }

    /// Whether [`Tls::config`] would return without reading the system's authorities.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.configs.get().is_some()
    }

    /// The configuration for an offer. The first call may read files and take milliseconds.
    ///
    /// # Errors
    /// [`TlsError::NoAuthorities`] when the system has none.
    pub fn config(&self, offer: Offer) -> Result<Arc<ClientConfig>, TlsError> {
        let configs = match self.configs.get() {
            Some(configs) => configs,
            // Two first callers may both build; one result is kept.
            None => {
                let built = self.build()?;
                self.configs.get_or_init(|| {
                    Offer::ALL.map(|offer| {
                        let mut config = built.clone();
                        config.alpn_protocols = offer.alpn();
                        Arc::new(config)
                    })
                })
            }
        };
        Ok(Arc::clone(&configs[offer as usize]))
    }
}

impl Tls {
    /// One configuration without ALPN. Session resumption is rustls' default: 256 servers in memory.
    fn build(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(provider());
        let algorithms = provider.signature_verification_algorithms;
        let unfit = |error: rustls::Error| TlsError::Configuration { reason: error.to_string() };
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(unfit)?;
        let pins = |accepted| -> Arc<dyn ServerCertVerifier> { Arc::new(PinVerifier { accepted, algorithms }) };
        let lenient = |roots| Lenient { roots, algorithms }.verifier();
        let verifier = match (&*self.trust, self.overlook) {
            (Trust::SpkiPins(sums), _) => Some(pins(Pins::Sums(sums.clone()))),
            (Trust::PinnedKeys(keys), _) => Some(pins(Pins::Keys(keys.clone()))),
            (_, Overlook::Nothing) => None,
            (trust, Overlook::Name) => Some(lenient(Some(roots(trust)?))),
            (_, Overlook::Everything) => Some(lenient(None)),
        };
        let builder = match verifier {
            Some(verifier) => builder.dangerous().with_custom_certificate_verifier(verifier),
            None => builder.with_root_certificates(roots(&self.trust)?),
        };
        match &self.identity {
            Some(identity) => {
                builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key()).map_err(unfit)
            }
            None => Ok(builder.with_no_client_auth()),
        }
    }
}

/// The authorities that are trusted; none where keys are pinned.
fn roots(trust: &Trust) -> Result<RootCertStore, TlsError> {
    Ok(match trust {
        Trust::System => system_authorities()?,
        Trust::SystemAnd(more) => {
            // A machine without a bundle is fine as long as the file given has what is needed.
            let mut roots = system_authorities().unwrap_or_else(|_| RootCertStore::empty());
            roots.add_parsable_certificates(more.0.iter().cloned());
            roots
        }
        Trust::Only(authorities) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(authorities.0.iter().cloned());
            roots
        }
        Trust::SpkiPins(_) | Trust::PinnedKeys(_) => RootCertStore::empty(),
    })
}

/// The system's authorities: the bundle file where there is one, else whatever
/// `rustls-native-certs` finds. Certificates that do not parse are left out, as everywhere.
fn system_authorities() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for bundle in SYSTEM_BUNDLES {
        let bundle = Path::new(bundle);
        if bundle.exists() {
            let found = rustls_native_certs::load_certs_from_paths(Some(bundle), None);
            roots.add_parsable_certificates(found.certs);
        }
        if !roots.is_empty() {
            return Ok(roots);
        }
    }
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let reason = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
        return Err(TlsError::NoAuthorities { reason });
    }
    Ok(roots)
}

/// Keys that are accepted without an authority.
#[derive(Debug)]
enum Pins {
    Sums(Vec<[u8; 32]>),
    Keys(Vec<Vec<u8>>),
}

/// Accepts a server by its key. The handshake's signature is still verified, so that holding
/// the key, not merely showing the certificate, is what counts.
#[derive(Debug)]
struct PinVerifier {
    accepted: Pins,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Travels inside rustls' error so that the person can compare pins.
#[derive(Debug)]
struct WrongKey {
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
    spki::subject_public_key_info(certificate).ok_or_else(|| CertificateError::BadEncoding.into())
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
        // By the key alone, which any version of certificate has. (TLS 1.2 wants version 3.)
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

/// What went wrong with TLS, for the person reading it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of authorities cannot be used.
    #[error("{}: {reason}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system has no authorities (on Debian: package ca-certificates).
    #[error("no certificate authorities on this system ({reason}); install ca-certificates or name a file")]
    NoAuthorities {
        /// What the search said.
        reason: String,
    },
    /// The cryptography provider does not fit. Not seen with the one built in.
    #[error("TLS configuration: {reason}")]
    Configuration {
        /// What rustls said.
        reason: String,
    },
    /// The host is neither a DNS name nor an address.
    #[error("{host}: not a name that TLS could verify")]
    BadName {
        /// The host asked for.
        host: String,
    },
    /// The certificate's time is over.
    #[error("{host}: certificate expired{}", when(*not_after))]
    Expired {
        /// The host connected to.
        host: String,
        /// Its end, seconds since 1970, where known.
        not_after: Option<u64>,
    },
    /// The certificate's time is yet to come; often the local clock is wrong.
    #[error("{host}: certificate not valid yet (local clock wrong?){}", when(*not_before))]
    NotYetValid {
        /// The host connected to.
        host: String,
        /// Its start, seconds since 1970, where known.
        not_before: Option<u64>,
    },
    /// No trusted authority signed it.
    #[error("{host}: certificate issued by an unknown authority")]
    UnknownIssuer {
        /// The host connected to.
        host: String,
    },
    /// It belongs to another name.
    #[error("{host}: certificate is for {presented}, not for this name")]
    WrongName {
        /// The host connected to.
        host: String,
        /// The names it holds.
        presented: String,
    },
    /// The server's key is none of the pinned ones.
    #[error("{host}: {reason}")]
    WrongKey {
        /// The host connected to.
        host: String,
        /// With the pin of the key that was shown.
        reason: String,
    },
    /// Anything else about the certificate: revoked, not for servers, malformed.
    #[error("{host}: certificate refused: {reason}")]
    Untrusted {
        /// The host connected to.
        host: String,
        /// What rustls said.
        reason: String,
    },
    /// Anything else rustls refused, alerts of the server included.
    #[error("{host}: TLS handshake: {reason}")]
    Handshake {
        /// The host connected to.
        host: String,
        /// What rustls said.
        reason: String,
    },
    /// The connection broke during the handshake.
    #[error("{host}: connection broke during the TLS handshake: {source}")]
    Io {
        /// The host connected to.
        host: String,
        /// The socket's error.
        source: io::Error,
    },
}

impl TlsError {
    /// Whether the server could not show that it is the one asked for. Trying again at once is
    /// of no use then, and going on with another certificate never happens.
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        use TlsError::{Expired, NotYetValid, UnknownIssuer, Untrusted, WrongKey, WrongName};
        matches!(
            self,
            Expired { .. }
                | NotYetValid { .. }
                | UnknownIssuer { .. }
                | WrongName { .. }
                | WrongKey { .. }
                | Untrusted { .. }
        )
    }

    /// Explains an error of tokio-rustls' handshake.
    pub(crate) fn of_handshake(host: &str, error: io::Error) -> TlsError {
        let host = host.to_owned();
        let rustls_error = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let Some(rustls_error) = rustls_error else {
            return TlsError::Io { host, source: error };
        };
        let reason = match rustls_error {
            rustls::Error::InvalidCertificate(reason) => reason,
            rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
                let reason = "the answer is not TLS (is it an http:// address?)".to_owned();
                return TlsError::Handshake { host, reason };
            }
            other => return TlsError::Handshake { host, reason: other.to_string() },
        };
        match reason {
            CertificateError::Expired => TlsError::Expired { host, not_after: None },
            CertificateError::ExpiredContext { not_after, .. } => {
                TlsError::Expired { host, not_after: Some(not_after.as_secs()) }
            }
            CertificateError::NotValidYet => TlsError::NotYetValid { host, not_before: None },
            CertificateError::NotValidYetContext { not_before, .. } => {
                TlsError::NotYetValid { host, not_before: Some(not_before.as_secs()) }
            }
            // A forged issuer of the right name shows as a bad signature.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsError::UnknownIssuer { host },
            CertificateError::NotValidForName => TlsError::WrongName { host, presented: "another name".to_owned() },
            CertificateError::NotValidForNameContext { presented, .. } => {
                TlsError::WrongName { host, presented: some_names(presented) }
            }
            CertificateError::Other(OtherError(inner)) if inner.is::<WrongKey>() => {
                TlsError::WrongKey { host, reason: inner.to_string() }
            }
            // The name of an error of rustls' verifier, which is no dependency of ours.
            CertificateError::Other(OtherError(inner)) if inner.to_string() == "CaUsedAsEndEntity" => {
                TlsError::Untrusted { host, reason: "self-signed, or an authority's own".to_owned() }
            }
            other => TlsError::Untrusted { host, reason: other.to_string() },
        }
    }
}

/// The first names of a certificate; those of a content network hold hundreds.
fn some_names(presented: &[String]) -> String {
    const SHOWN: usize = 3;
    // rustls gives them as `DnsName("example.org")`; the name itself is what a person compares.
    let name = |shown: &String| shown.split('"').nth(1).unwrap_or(shown).to_owned();
    let mut names = presented.iter().take(SHOWN).map(name).collect::<Vec<_>>().join(", ");
    match presented.len() {
        0 => names.push_str("no name"),
        n if n > SHOWN => names.push_str(&format!(" and {} more", n - SHOWN)),
        _ => {}
    }
    names
}

fn when(seconds: Option<u64>) -> String {
    let time = seconds.and_then(|s| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(s)));
    // httpdate panics on years past 9999; a certificate may claim them.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    time.filter(|time| *time <= last).map_or_else(String::new, |time| format!(" ({})", httpdate::fmt_http_date(time)))
}

/// The name to verify and to send as SNI: brackets of IPv6 and a final dot removed.
///
/// # Errors
/// [`TlsError::BadName`].
pub fn server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    ServerName::try_from(bare.to_owned()).map_err(|_| TlsError::BadName { host: host.to_owned() })
}

#[cfg(test)]
mod tests;
