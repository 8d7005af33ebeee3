//! What goes wrong with TLS, told so that a person can act on it.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustls::{AlertDescription, CertificateError, OtherError};

use super::pins::WrongKey;
use super::trusted::CommonNameOnly;

/// What went wrong with TLS, for the person reading it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// It is an authority's, most often one that signed itself for its server, and nobody trusts it.
    #[error("{host}: certificate signed by itself, and not trusted")]
    SelfSigned {
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
    /// It names its server by its common name alone, which nobody may go by (RFC 9525, section 2).
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
    /// The server does not speak TLS at this port.
    #[error("{host}: TLS handshake: the answer is not TLS (is it an http:// address?)")]
    NotTls {
        /// The host connected to.
        host: String,
    },
    /// The server wants another certificate from this client, or any certificate.
    #[error("{host}: the server refuses this client's certificate ({alert})")]
    ClientCertificate {
        /// The host connected to.
        host: String,
        /// The alert's name, as in RFC 8446, section 6.
        alert: String,
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

    /// Whether nobody who is trusted vouches for the certificate; another authority may help then, and only then.
    #[must_use]
    pub fn is_of_unknown_issuer(&self) -> bool {
        matches!(self, TlsError::UnknownIssuer { .. } | TlsError::SelfSigned { .. })
    }

    /// Explains an error of tokio-rustls' handshake.
    pub(crate) fn of_handshake(host: &str, error: io::Error) -> TlsError {
        // Whether this client has shown a certificate is not known here, so most alerts are told in rustls' words.
        TlsError::of_io(host, &error, false).unwrap_or_else(|| TlsError::Io { host: host.to_owned(), source: error })
    }

    /// Explains an error of a connection if it is one of TLS. A server refuses a client's certificate after the handshake.
    /// `has_identity` says whether this client has a certificate to show: without one, most alerts mean something else.
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
            // A forged issuer of the right name shows as a bad signature.
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
            // The name of an error of rustls' verifier, which is no dependency of ours.
            CertificateError::Other(OtherError(inner)) if inner.to_string() == "CaUsedAsEndEntity" => {
                TlsError::SelfSigned { host }
            }
            other => TlsError::Untrusted { host, reason: other.to_string() },
        }
    }
}

/// The first names of a certificate; those of a content network hold hundreds.
pub(super) fn some_names(presented: &[String]) -> String {
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

pub(super) fn when(seconds: Option<u64>) -> String {
    let time = seconds.and_then(|s| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(s)));
    // httpdate panics on years past 9999; a certificate may claim them.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    time.filter(|time| *time <= last).map_or_else(String::new, |time| format!(" ({})", httpdate::fmt_http_date(time)))
}
