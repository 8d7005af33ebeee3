//! Ephemeral keys: each end makes one for each run, and accepts connections only from the other end's.
//!
//! They are raw public keys (RFC 7250), compared byte for byte with the key that came by ssh: no certificates, names or
//! authorities. TLS 1.3 only, with one cipher, chosen by the measured speed of the slower end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs as provider, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};
use serde::{Deserialize, Serialize};

use crate::error::CopyError;

/// Duration of each cipher's trial. Enough for tens of kilobytes on the slowest machine, and for a megabyte on others.
const TRIAL: Duration = Duration::from_micros(500);
const TRIALS: u32 = 4;
/// Bytes encrypted at once in a trial: one TLS record.
const RECORD_BYTES: usize = 16 << 10;

/// The cipher that protects the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    /// AES-128-GCM: fast on processors with instructions for it.
    Aes,
    /// ChaCha20-Poly1305: fast on any processor.
    Chacha,
}

impl Cipher {
    /// The cipher's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Cipher::Aes => "AES-128-GCM",
            Cipher::Chacha => "ChaCha20-Poly1305",
        }
    }
}

/// Encryption speeds of one core, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    /// AES-128-GCM, in bytes per second.
    pub aes: f64,
    /// ChaCha20-Poly1305, in bytes per second.
    pub chacha: f64,
}

impl Speeds {
    /// Measures both ciphers for a moment.
    pub fn measure() -> Speeds {
        Speeds { aes: speed(&AES_128_GCM), chacha: speed(&CHACHA20_POLY1305) }
    }

    /// The cipher with which the slower of two ends is faster.
    pub fn choose(&self, other: &Speeds) -> Cipher {
        if self.chacha.min(other.chacha) > self.aes.min(other.aes) { Cipher::Chacha } else { Cipher::Aes }
    }
}

fn speed(algorithm: &'static Algorithm) -> f64 {
    let Ok(key) = UnboundKey::new(algorithm, &vec![7; algorithm.key_len()]) else { return 0.0 };
    let key = LessSafeKey::new(key);
    let mut record = vec![0_u8; RECORD_BYTES];
    let trial = |_| {
        let began = Instant::now();
        let mut bytes = 0;
        while began.elapsed() < TRIAL {
            // A trial may reuse the nonce, as nobody receives the bytes.
            let nonce = Nonce::assume_unique_for_key([0; 12]);
            if key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut record).is_err() {
                return 0.0;
            }
            bytes += RECORD_BYTES;
        }
        bytes as f64 / began.elapsed().as_secs_f64()
    };
    // The best of a few: the first one pays for frequency scaling, any may lose its core.
    (0..TRIALS).map(trial).fold(0.0, f64::max)
}

/// This end's key for one run.
#[derive(Clone, Debug)]
pub(crate) struct OwnKey {
    key: Arc<CertifiedKey>,
    public: Vec<u8>,
}

fn internal(what: &'static str) -> CopyError {
    CopyError::System { what, error: std::io::Error::other("the cryptography library refuses") }
}

impl OwnKey {
    /// Makes a new key.
    ///
    /// # Errors
    /// [`CopyError::System`] if the cryptography library cannot generate or load a key.
    pub(crate) fn generate() -> Result<OwnKey, CopyError> {
        let failed = |_| internal("make a key");
        let pair =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).map_err(failed)?;
        let private = PrivatePkcs8KeyDer::from(pair.as_ref().to_vec());
        let loaded = provider::default_provider().key_provider.load_private_key(private.into());
        let signing = loaded.map_err(|_| internal("load a key"))?;
        let public = signing.public_key().ok_or_else(|| internal("read a public key"))?.to_vec();
        let certified = CertifiedKey::new(vec![CertificateDer::from(public.clone())], signing);
        Ok(OwnKey { key: Arc::new(certified), public })
    }

    /// The public key, which the other end must know.
    pub(crate) fn public(&self) -> &[u8] {
        &self.public
    }

    /// TLS settings for connections from this end to the owner of `peer`.
    ///
    /// # Errors
    /// [`CopyError::System`] if the TLS library rejects the settings.
    pub(crate) fn client(&self, peer: &[u8], cipher: Cipher) -> Result<Arc<ClientConfig>, CopyError> {
        let provider = Arc::new(provider_with(cipher));
        let verifier = Arc::new(Pinned { peer: peer.to_vec(), algorithms: provider.signature_verification_algorithms });
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|_| internal("set TLS up"))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(self.key.clone())));
        Ok(Arc::new(config))
    }

    /// TLS settings for connections from the owner of `peer` to this end.
    ///
    /// # Errors
    /// [`CopyError::System`] if the TLS library rejects the settings.
    pub(crate) fn server(&self, peer: &[u8], cipher: Cipher) -> Result<Arc<ServerConfig>, CopyError> {
        let provider = Arc::new(provider_with(cipher));
        let verifier = Arc::new(Pinned { peer: peer.to_vec(), algorithms: provider.signature_verification_algorithms });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|_| internal("set TLS up"))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(self.key.clone())));
        // Nobody resumes a session: each connection proves its key.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

fn provider_with(cipher: Cipher) -> CryptoProvider {
    let suite = match cipher {
        Cipher::Aes => provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
        Cipher::Chacha => provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    };
    CryptoProvider { cipher_suites: vec![suite], ..provider::default_provider() }
}

/// Accepts one public key only.
#[derive(Debug)]
struct Pinned {
    peer: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        // Both are public, so the time of the comparison reveals nothing.
        if presented.as_ref() == self.peer {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(presented).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 alone is spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(presented).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 alone is spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::super::tls;
    use super::*;

    /// What two ends come to a connection with.
    pub(in super::super) type Ends = (Arc<ClientConfig>, Arc<ServerConfig>);

    /// Two ends that know each other's keys.
    pub(in super::super) fn friends() -> Ends {
        let (near, far) = (OwnKey::generate().unwrap(), OwnKey::generate().unwrap());
        (near.client(far.public(), Cipher::Aes).unwrap(), far.server(near.public(), Cipher::Aes).unwrap())
    }

    /// Has the public key of another one, but not the private one.
    fn pretender(other: &OwnKey) -> OwnKey {
        let own = OwnKey::generate().unwrap();
        let certificate = CertificateDer::from(other.public.clone());
        let key = CertifiedKey::new(vec![certificate], own.key.key.clone());
        OwnKey { key: Arc::new(key), public: other.public.clone() }
    }

    /// Two ends of which one is not who it should be.
    pub(in super::super) fn impostors() -> Vec<(&'static str, Ends)> {
        let [near, far, stranger] = [(); 3].map(|()| OwnKey::generate().unwrap());
        let client = |own: &OwnKey| own.client(far.public(), Cipher::Aes).unwrap();
        let server = |own: &OwnKey| own.server(near.public(), Cipher::Aes).unwrap();
        let provider = Arc::new(provider_with(Cipher::Aes));
        let algorithms = provider.signature_verification_algorithms;
        let keyless = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { peer: far.public.clone(), algorithms }))
            .with_no_client_auth();
        vec![
            ("a client with another key", (client(&stranger), server(&far))),
            ("a client with its public key alone", (client(&pretender(&near)), server(&far))),
            ("a client without a key", (Arc::new(keyless), server(&far))),
            ("a server with another key", (client(&near), server(&stranger))),
            ("a server with its public key alone", (client(&near), server(&pretender(&far)))),
        ]
    }

    /// Whether both take each other, over TCP.
    fn meet((client, server): Ends) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = std::thread::spawn(move || tls::accept(listener.accept().unwrap().0, server).is_ok());
        // Held until the other end has decided: it speaks last.
        let stream = tls::connect(TcpStream::connect(address).unwrap(), client);
        let is_taken = accepting.join().unwrap();
        stream.is_ok() && is_taken
    }

    #[test]
    fn connections_are_made_with_the_expected_key_alone() {
        assert!(meet(friends()));
        for (who, ends) in impostors() {
            assert!(!meet(ends), "{who}");
        }
    }

    #[test]
    fn who_speaks_no_tls_is_refused_in_both_roles() {
        let (client, server) = friends();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| tls::accept(listener.accept().unwrap().0, server));
            TcpStream::connect(address).unwrap().write_all(b"let me in, please; I have no key").unwrap();
            assert!(accepting.join().unwrap().is_err());
            let serving = scope.spawn(|| {
                let (mut socket, _) = listener.accept().unwrap();
                socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                // Until it has gone.
                let _ = socket.read_to_end(&mut Vec::new());
            });
            assert!(tls::connect(TcpStream::connect(address).unwrap(), client).is_err());
            serving.join().unwrap();
        });
    }

    #[test]
    fn the_cipher_is_the_faster_one_of_the_slower_end() {
        let old = Speeds { aes: 0.1e9, chacha: 0.4e9 };
        let new = Speeds { aes: 6e9, chacha: 2e9 };
        assert_eq!((new.choose(&new), old.choose(&old)), (Cipher::Aes, Cipher::Chacha));
        assert_eq!((new.choose(&old), old.choose(&new)), (Cipher::Chacha, Cipher::Chacha), "both ends agree");
        let measured = Speeds::measure();
        assert!(measured.aes > 0.0 && measured.chacha > 0.0, "{measured:?}");
    }
}
