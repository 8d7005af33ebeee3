//! Errors of TLS, worded so that people can act on them.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustls::{AlertDescription, CertificateError, OtherError};

use super::pins::WrongKey;
use super::trusted::CommonNameOnly;

/// An error of TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file of authorities cannot be used.
    #[error("{}: {reason}", file.display())]
    Pem {
        /// Path of the file.
        file: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
    /// The system has no authorities (on Debian: package ca-certificates).
    #[error("no certificate authorities on this system ({reason}); install ca-certificates or name a file")]
    NoAuthorities {
        /// Errors of the search.
        reason: String,
    },
    /// rustls refuses the configuration. Not seen with the built-in provider.
    #[error("TLS configuration: {reason}")]
    Configuration {
        /// The error of rustls.
        reason: String,
    },
    /// The host is neither a DNS name nor an address.
    #[error("{host}: not a name that TLS could verify")]
    BadName {
        /// The requested host.
        host: String,
    },
    /// The certificate has expired.
    #[error("{host}: certificate expired{}", when(*not_after))]
    Expired {
        /// The host connected to.
        host: String,
        /// Its last valid second since 1970, if known.
        not_after: Option<u64>,
    },
    /// The certificate is not valid yet; often the local clock is wrong.
    #[error("{host}: certificate not valid yet (local clock wrong?){}", when(*not_before))]
    NotYetValid {
        /// The host connected to.
        host: String,
        /// Its first valid second since 1970, if known.
        not_before: Option<u64>,
    },
    /// No trusted authority issued the certificate.
    #[error("{host}: certificate issued by an unknown authority")]
    UnknownIssuer {
        /// The host connected to.
        host: String,
    },
    /// The certificate is that of an authority which nobody trusts; often a server signed its own.
    #[error("{host}: certificate signed by itself, and not trusted")]
    SelfSigned {
        /// The host connected to.
        host: String,
    },
    /// The certificate is for another name.
    #[error("{host}: certificate is for {presented}, not for this name")]
    WrongName {
        /// The host connected to.
        host: String,
        /// The names in the certificate.
        presented: String,
    },
    /// The certificate has only a common name, which must not be used (RFC 9525, section 2).
    #[error(
        "{host}: certificate names its server by a common name alone ({common_name}): \
         it needs a subjectAltName; make a new one"
    )]
    CommonNameOnly {
        /// The host connected to.
        host: String,
        /// The common name.
        common_name: String,
    },
    /// The server's key is not one of the pinned keys.
    #[error("{host}: {reason}")]
    WrongKey {
        /// The host connected to.
        host: String,
        /// Description with the pin of the presented key.
        reason: String,
    },
    /// Another fault of the certificate: revoked, not for servers, malformed.
    #[error("{host}: certificate refused: {reason}")]
    Untrusted {
        /// The host connected to.
        host: String,
        /// The error of rustls.
        reason: String,
    },
    /// The server does not speak TLS at this port.
    #[error("{host}: TLS handshake: the answer is not TLS (is it an http:// address?)")]
    NotTls {
        /// The host connected to.
        host: String,
    },
    /// The server wants a client certificate, or another one.
    #[error("{host}: the server refuses this client's certificate ({alert})")]
    ClientCertificate {
        /// The host connected to.
        host: String,
        /// Name of the alert, as in RFC 8446, section 6.
        alert: String,
    },
    /// Another error of the handshake, including alerts of the server.
    #[error("{host}: TLS handshake: {reason}")]
    Handshake {
        /// The host connected to.
        host: String,
        /// The error of rustls.
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
    /// Whether the server's identity could not be verified. Trying again at once is of no use then, and another
    /// certificate is never accepted instead.
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        use TlsError::{
            CommonNameOnly, Expired, NotYetValid, SelfSigned, UnknownIssuer, Untrusted, WrongKey, WrongName,
        };
        matches!(
            self,
            Expired { .. }
                | NotYetValid { .. }
                | UnknownIssuer { .. }
                | SelfSigned { .. }
                | WrongName { .. }
                | CommonNameOnly { .. }
                | WrongKey { .. }
                | Untrusted { .. }
        )
    }

    /// Whether no trusted authority issued the certificate; only then may another authority help.
    #[must_use]
    pub fn is_of_unknown_issuer(&self) -> bool {
        matches!(self, TlsError::UnknownIssuer { .. } | TlsError::SelfSigned { .. })
    }

    /// Classifies an error of tokio-rustls's handshake.
    pub(crate) fn of_handshake(host: &str, error: io::Error) -> TlsError {
        // Whether this client has shown a certificate is unknown here, so most alerts keep rustls's words.
        TlsError::of_io(host, &error, false).unwrap_or_else(|| TlsError::Io { host: host.to_owned(), source: error })
    }

    /// Classifies an error of a connection if it is one of TLS. A server refuses a client's certificate after the
    /// handshake. `has_identity` says whether this client has a certificate: without one, most alerts mean something
    /// else.
    #[must_use]
    pub fn of_io(host: &str, error: &io::Error, has_identity: bool) -> Option<TlsError> {
        use AlertDescription::{
            AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
            CertificateUnknown, UnknownCA, UnsupportedCertificate,
        };
        let rustls_error = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())?;
        let host = host.to_owned();
        Some(match rustls_error {
            rustls::Error::InvalidCertificate(reason) => TlsError::of_certificate(host, reason),
            rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => TlsError::NotTls { host },
            rustls::Error::AlertReceived(
                alert @ (AccessDenied
                | BadCertificate
                | CertificateExpired
                | CertificateRevoked
                | CertificateUnknown
                | UnknownCA
                | UnsupportedCertificate),
            ) if has_identity => TlsError::ClientCertificate { host, alert: format!("{alert:?}") },
            rustls::Error::AlertReceived(alert @ CertificateRequired) => {
                TlsError::ClientCertificate { host, alert: format!("{alert:?}") }
            }
            other => TlsError::Handshake { host, reason: other.to_string() },
        })
    }

    fn of_certificate(host: String, reason: &CertificateError) -> TlsError {
        match reason {
            CertificateError::Expired => TlsError::Expired { host, not_after: None },
            CertificateError::ExpiredContext { not_after, .. } => {
                TlsError::Expired { host, not_after: Some(not_after.as_secs()) }
            }
            CertificateError::NotValidYet => TlsError::NotYetValid { host, not_before: None },
            CertificateError::NotValidYetContext { not_before, .. } => {
                TlsError::NotYetValid { host, not_before: Some(not_before.as_secs()) }
            }
            // A forged issuer with the right name shows as a bad signature.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsError::UnknownIssuer { host },
            CertificateError::NotValidForName => TlsError::WrongName { host, presented: "another name".to_owned() },
            CertificateError::NotValidForNameContext { presented, .. } => {
                TlsError::WrongName { host, presented: some_names(presented) }
            }
            CertificateError::Other(OtherError(inner)) if inner.is::<CommonNameOnly>() => {
                let common_name =
                    inner.downcast_ref().map_or_else(String::new, |only: &CommonNameOnly| only.common_name.clone());
                TlsError::CommonNameOnly { host, common_name }
            }
            CertificateError::Other(OtherError(inner)) if inner.is::<WrongKey>() => {
                TlsError::WrongKey { host, reason: inner.to_string() }
            }
            // Name of an error in rustls's verifier, which is not a direct dependency.
            CertificateError::Other(OtherError(inner)) if inner.to_string() == "CaUsedAsEndEntity" => {
                TlsError::SelfSigned { host }
            }
            other => TlsError::Untrusted { host, reason: other.to_string() },
        }
    }
}

/// The first names of a certificate; that of a content network may have hundreds.
pub(super) fn some_names(presented: &[String]) -> String {
    const SHOWN: usize = 3;
    // rustls formats them as `DnsName("example.org")`; people compare the name itself.
    let name = |shown: &String| shown.split('"').nth(1).unwrap_or(shown).to_owned();
    let mut names = presented.iter().take(SHOWN).map(name).collect::<Vec<_>>().join(", ");
    match presented.len() {
        0 => names.push_str("no name"),
        n if n > SHOWN => names.push_str(&format!(" and {} more", n - SHOWN)),
        _ => {}
    }
    names
}

pub(super) fn when(seconds: Option<u64>) -> String {
    let time = seconds.and_then(|s| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(s)));
    // httpdate panics on years past 9999; a certificate may claim them.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    time.filter(|time| *time <= last).map_or_else(String::new, |time| format!(" ({})", httpdate::fmt_http_date(time)))
}
