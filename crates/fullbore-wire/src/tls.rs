//! TLS: which certificates to trust, which protocol to negotiate, and errors that people can act on.
//!
//! [`Tls`] holds one client configuration per protocol offer; all share one session cache. The system's authorities are
//! read once, on first need, because parsing them takes milliseconds that a plain http run does not need. [`Trust`]
//! says who may vouch for a server: authorities, or the server's key itself (`copy`'s throw-away keys, Tahoe-LAFS
//! storage servers).

mod certificate;
mod error;
mod overlook;
mod pins;
mod trusted;

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};

pub use error::TlsError;
pub use overlook::{Identity, Overlook};
pub use pins::spki_pin;
use pins::{PinVerifier, Pins};
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
pub use trusted::SystemAuthorities;
use trusted::{Trusted, Verifier};

/// Maximum size of a PEM file of authorities. Debian's whole bundle is 0.2 MB; the rest is a guess.
const MAX_PEM_BYTES: u64 = 16 << 20;

/// The cryptography provider, chosen here and nowhere else.
///
/// The ML-KEM hybrid comes first, and includes a key share of X25519. So servers that prefer either (OpenSSL has
/// preferred the hybrid since 3.5) answer at once. With X25519 alone in the first flight, those servers send a
/// HelloRetryRequest (RFC 8446, section 4.1.4), which costs every connection a further round trip.
fn provider(small_key_shares: bool) -> CryptoProvider {
    use rustls::crypto::aws_lc_rs::kx_group::{SECP256R1, SECP384R1, X25519, X25519MLKEM768};
    let kx_groups = match small_key_shares {
        false => vec![X25519MLKEM768, X25519, SECP256R1, SECP384R1],
        true => vec![X25519, SECP256R1, SECP384R1],
    };
    CryptoProvider { kx_groups, ..rustls::crypto::aws_lc_rs::default_provider() }
}

/// Who may vouch for a server.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum Trust {
    /// The authorities of the operating system. Here and in the next two, a trusted certificate is also accepted as a
    /// server's own, for its names and validity.
    #[default]
    System,
    /// The system's authorities, and these as well (`--cacert`).
    SystemAnd(Authorities),
    /// Only these authorities.
    Only(Authorities),
    /// No authority: the server's key must have one of these SHA-256 sums of its SubjectPublicKeyInfo (RFC 7469,
    /// section 2.4, gives the form). Names, dates and issuers are ignored.
    SpkiPins(Vec<[u8; 32]>),
    /// As `SpkiPins`, with the whole SubjectPublicKeyInfo (DER) instead of its sum.
    PinnedKeys(Vec<Vec<u8>>),
}

/// Certificates of authorities, or of servers that signed their own, read from PEM.
#[derive(Debug, Clone)]
pub struct Authorities(Vec<CertificateDer<'static>>);

impl Authorities {
    /// Reads a PEM file with at least one certificate.
    ///
    /// # Errors
    /// [`TlsError::Pem`] with the file's name if it is unreadable, larger than 16 MiB, malformed, or without a
    /// certificate.
    pub fn read(path: &Path) -> Result<Authorities, TlsError> {
        Authorities::parse(&read_pem(path)?, path)
    }

    /// Parses PEM; `name` is the file's name for errors.
    ///
    /// # Errors
    /// [`TlsError::Pem`] if `pem` is malformed, has no certificate, or one that cannot be parsed.
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

/// Protocols offered to the server (ALPN, RFC 7301).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Offer {
    /// HTTP/1.1 only: pipelining over several connections is the faster way to most mirrors.
    Http1,
    /// HTTP/2 only. On a plain connection, with prior knowledge (RFC 9113, section 3.3).
    Http2,
    /// Both; the server chooses.
    #[default]
    Either,
    /// No ALPN, for protocols other than HTTP.
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

/// The negotiated protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1, also if the server does not support ALPN.
    Http1,
    /// HTTP/2.
    Http2,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Http1 => "HTTP/1.1",
            Protocol::Http2 => "HTTP/2",
        })
    }
}

/// TLS settings of a client, ready to connect with. Clones share everything, including the session cache: a second
/// connection to a host resumes the first one's session.
#[derive(Debug, Clone)]
pub struct Tls {
    trust: Arc<Trust>,
    identity: Option<Arc<Identity>>,
    overlook: Overlook,
    small_key_shares: bool,
    configs: Arc<OnceLock<[Arc<ClientConfig>; 4]>>,
}

impl Default for Tls {
    fn default() -> Self {
        Tls::new(Trust::System)
    }
}

impl Tls {
    /// Creates settings with this trust. Reads no file yet.
    #[must_use]
    pub fn new(trust: Trust) -> Tls {
        let (trust, overlook) = (Arc::new(trust), Overlook::Nothing);
        Tls { trust, identity: None, overlook, small_key_shares: false, configs: Arc::default() }
    }

    /// Adds a client certificate.
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> Tls {
        Tls { identity: Some(Arc::new(identity)), configs: Arc::default(), ..self }
    }

    /// Sets checks to omit. Has no effect with pinned keys.
    #[must_use]
    pub fn overlooking(self, overlook: Overlook) -> Tls {
        Tls { overlook, configs: Arc::default(), ..self }
    }

    /// Omits the ML-KEM hybrid, whose key share adds 1.2 kB to each first flight. For many connections over a slow
    /// uplink, and only for data that stays secret if X25519 is broken one day. The hybrid is not offered at all, so no
    /// server asks for it.
    #[must_use]
    pub fn with_small_key_shares(self) -> Tls {
        Tls { small_key_shares: true, configs: Arc::default(), ..self }
    }

    /// Whether [`Tls::config`] would return without reading the system's authorities.
    #[must_use]
    pub(crate) fn is_loaded(&self) -> bool {
        self.configs.get().is_some()
    }

    /// Returns the configuration for an offer. The first call may read files and take milliseconds.
    ///
    /// # Errors
    /// [`TlsError::NoAuthorities`] if the system has no authorities; [`TlsError::Configuration`] if rustls refuses the
    /// client certificate or the versions.
    pub fn config(&self, offer: Offer) -> Result<Arc<ClientConfig>, TlsError> {
        let configs = match self.configs.get() {
            Some(configs) => configs,
            // Two concurrent first callers may both build; one result is kept.
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
    /// Builds a configuration without ALPN. Session resumption is rustls's default: 256 servers in memory.
    fn build(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(provider(self.small_key_shares));
        let algorithms = provider.signature_verification_algorithms;
        let unfit = |error: rustls::Error| TlsError::Configuration { reason: error.to_string() };
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(unfit)?;
        let pins = |accepted| -> Arc<dyn ServerCertVerifier> { Arc::new(PinVerifier { accepted, algorithms }) };
        let trusting = |trusted, names| Verifier { trusted, names, algorithms }.shared();
        let verifier = match (&*self.trust, self.overlook) {
            (Trust::SpkiPins(sums), _) => pins(Pins::Sums(sums.clone())),
            (Trust::PinnedKeys(keys), _) => pins(Pins::Keys(keys.clone())),
            (trust, Overlook::Nothing) => trusting(Some(Trusted::of(trust)?), true),
            (trust, Overlook::Name) => trusting(Some(Trusted::of(trust)?), false),
            (_, Overlook::Everything) => trusting(None, false),
        };
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        match &self.identity {
            Some(identity) => {
                builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key()).map_err(unfit)
            }
            None => Ok(builder.with_no_client_auth()),
        }
    }
}

/// Converts a host to the name to verify and to send as SNI: without brackets of IPv6 and a final dot.
///
/// # Errors
/// [`TlsError::BadName`] if `host` is neither a DNS name nor an IP address.
pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    ServerName::try_from(bare.to_owned()).map_err(|_| TlsError::BadName { host: host.to_owned() })
}

#[cfg(test)]
mod tests;
