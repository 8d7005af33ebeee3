//! The trusted certificates: as authorities, and each of them as a server's own.
//!
//! webpki treats a trusted certificate only as an authority. curl and apt also accept a server that presents a trusted
//! certificate itself, such as a self-signed one; so do we. It must be that very certificate, byte for byte; its dates
//! and names still count.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};

use super::{TlsError, Trust, certificate};

/// Files in which distributions keep all authorities, most likely first: Debian, Fedora, openSUSE, Alpine. One file is
/// read instead of the directory form with hundreds of them.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The user's choice of the system's authorities. As with OpenSSL, it applies to every connection of a process, so it
/// is not a setting of a single run.
static CHOSEN: OnceLock<SystemAuthorities> = OnceLock::new();

/// Another location of the system's authorities, as OpenSSL takes it from `SSL_CERT_FILE` and `SSL_CERT_DIR`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemAuthorities {
    /// File of certificates (PEM); `None` to use only the directories.
    pub file: Option<PathBuf>,
    /// Directories with a certificate (PEM) in each file.
    pub directories: Vec<PathBuf>,
}

impl SystemAuthorities {
    /// Makes these the system's authorities for the rest of the process. Call it before the first connection. Without a
    /// file or directory, the system's own locations stay.
    pub fn choose(self) {
        if self.file.is_some() || !self.directories.is_empty() {
            // A second choice would conflict with connections made under the first.
            let _ = CHOSEN.set(self);
        }
    }

    fn load(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let places = self.file.iter().map(|file| (Some(file.as_path()), None));
        let places = places.chain(self.directories.iter().map(|directory| match bundle_of(directory) {
            Some(bundle) => (Some(bundle), None),
            None => (None, Some(directory.as_path())),
        }));
        let (mut certificates, mut reason) = (Vec::new(), None);
        // Both variables often name the same file.
        let mut read: Option<&Path> = None;
        for (file, directory) in places {
            if file.is_some() && file == read {
                continue;
            }
            read = file.or(read);
            let found = rustls_native_certs::load_certs_from_paths(file, directory);
            certificates.extend(found.certs);
            reason = reason.or(found.errors.first().map(ToString::to_string));
        }
        if certificates.is_empty() {
            let place = self.file.as_ref().or(self.directories.first()).map(|path| path.display().to_string());
            let place = place.unwrap_or_default();
            let reason = reason.map_or_else(|| format!("no certificate in {place}"), |why| format!("{place}: {why}"));
            return Err(TlsError::NoAuthorities { reason });
        }
        Ok(certificates)
    }
}

/// The distribution's bundle file of a directory, so that hundreds of files need not be read.
fn bundle_of(directory: &Path) -> Option<&'static Path> {
    let mut bundles = SYSTEM_BUNDLES.iter().map(Path::new);
    bundles.find(|bundle| bundle.parent() == Some(directory) && bundle.exists())
}

/// Certificates in webpki's form, and as they are.
#[derive(Debug)]
pub(super) struct Trusted {
    roots: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

impl Trusted {
    /// Reads the certificates that `trust` needs; none for pinned keys.
    ///
    /// # Errors
    /// [`TlsError::NoAuthorities`] if the system has no authorities.
    pub(super) fn of(trust: &Trust) -> Result<Trusted, TlsError> {
        Ok(match trust {
            Trust::System => Trusted::system()?,
            Trust::SystemAnd(more) => {
                // A machine without a bundle is fine if the given file has the authority.
                let mut trusted = Trusted::system().unwrap_or_else(|_| Trusted::nobody());
                trusted.add(more.0.clone());
                trusted
            }
            Trust::Only(authorities) => {
                let mut trusted = Trusted::nobody();
                trusted.add(authorities.0.clone());
                trusted
            }
            Trust::SpkiPins(_) | Trust::PinnedKeys(_) => Trusted::nobody(),
        })
    }

    fn nobody() -> Trusted {
        Trusted { roots: RootCertStore::empty(), certificates: Vec::new() }
    }

    /// The system's authorities: the user's choice, otherwise the bundle file, otherwise what `rustls-native-certs`
    /// finds.
    fn system() -> Result<Trusted, TlsError> {
        let mut trusted = Trusted::nobody();
        if let Some(chosen) = CHOSEN.get() {
            trusted.add(chosen.load()?);
            return Ok(trusted);
        }
        for bundle in SYSTEM_BUNDLES {
            let bundle = Path::new(bundle);
            if bundle.exists() {
                trusted.add(rustls_native_certs::load_certs_from_paths(Some(bundle), None).certs);
            }
            if !trusted.roots.is_empty() {
                return Ok(trusted);
            }
        }
        let found = rustls_native_certs::load_native_certs();
        trusted.add(found.certs);
        if trusted.roots.is_empty() {
            let reason = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
            return Err(TlsError::NoAuthorities { reason });
        }
        Ok(trusted)
    }

    /// Certificates that do not parse are skipped, as everywhere.
    fn add(&mut self, certificates: Vec<CertificateDer<'static>>) {
        self.roots.add_parsable_certificates(certificates.iter().cloned());
        self.certificates.extend(certificates);
    }

    /// Whether the server's certificate is trusted now, whatever its names.
    fn vouches(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), rustls::Error> {
        if self.certificates.iter().any(|own| own == shown) {
            return in_time(shown, now);
        }
        let parsed = ParsedCertificate::try_from(shown)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms.all)
    }
}

/// Whether `now` is within the validity of a certificate, both ends included (RFC 5280, section 4.1.2.5).
fn in_time(shown: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let (not_before, not_after) = certificate::validity(shown).ok_or(CertificateError::BadEncoding)?;
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let time = |seconds: i64| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds.max(0) as u64));
    if seconds < not_before {
        return Err(CertificateError::NotValidYetContext { time: now, not_before: time(not_before) }.into());
    }
    if seconds > not_after {
        return Err(CertificateError::ExpiredContext { time: now, not_after: time(not_after) }.into());
    }
    Ok(())
}

/// A certificate without a subjectAltName. Common names have not been used since RFC 6125 and CA/Browser Forum ballots
/// of 2011; apt's own methods still use them. Carried inside rustls's error, so that the message can name it.
#[derive(Debug)]
pub(super) struct CommonNameOnly {
    pub(super) common_name: String,
}

impl CommonNameOnly {
    fn explain(error: rustls::Error, shown: &CertificateDer<'_>) -> rustls::Error {
        use rustls::Error::InvalidCertificate;
        let is_nameless = match &error {
            InvalidCertificate(CertificateError::NotValidForName) => true,
            InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }) => presented.is_empty(),
            _ => false,
        };
        match certificate::common_name(shown).filter(|_| is_nameless) {
            Some(common_name) => CertificateError::Other(OtherError(Arc::new(CommonNameOnly { common_name }))).into(),
            None => error,
        }
    }
}

impl fmt::Display for CommonNameOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "only a common name ({})", self.common_name)
    }
}

impl std::error::Error for CommonNameOnly {}

/// Verifies servers against the trusted certificates.
#[derive(Debug)]
pub(super) struct Verifier {
    /// The trusted certificates; `None` accepts any.
    pub(super) trusted: Option<Trusted>,
    /// Whether the certificate must contain the server's name.
    pub(super) names: bool,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn shared(self) -> Arc<dyn ServerCertVerifier> {
        Arc::new(self)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(trusted) = &self.trusted {
            trusted.vouches(end_entity, intermediates, now, &self.algorithms)?;
        }
        if self.names {
            let named = verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name);
            named.map_err(|error| CommonNameOnly::explain(error, end_entity))?;
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
