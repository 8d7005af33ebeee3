//! Servers on loopback for the tests of this crate: a throw-away authority, TLS endpoints, and an address that never
//! answers.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::socket::{Socket, SocketOptions, open};
use crate::tls::Authorities;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PublicKeyData, date_time_ymd};

/// An authority nobody else trusts.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, and what a pin is made of.
pub(crate) struct Certified {
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    pem: String,
    pub(crate) spki: Vec<u8>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn authorities(&self) -> Authorities {
        Authorities::parse(self.pem().as_bytes(), Path::new("test.pem")).unwrap()
    }

    /// A certificate for `name`, valid from the start of one year to the start of another.
    pub(crate) fn certify(&self, name: &str, years: (i32, i32)) -> Certified {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Certified::of(&certificate, &key)
    }
}

impl Certified {
    fn of(certificate: &rcgen::Certificate, key: &KeyPair) -> Certified {
        Certified {
            chain: vec![certificate.der().clone()],
            pem: certificate.pem(),
            spki: key.subject_public_key_info(),
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }

    /// A certificate that its own key signed, as one of an authority or not.
    pub(crate) fn by_itself(name: &str, years: (i32, i32), authority: bool) -> Certified {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        if authority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let certificate = params.self_signed(&key).unwrap();
        Certified::of(&certificate, &key)
    }

    /// One that names its server by its common name alone, as `openssl req -x509` made them for many years.
    pub(crate) fn by_common_name(name: &str) -> Certified {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Certified::of(&certificate, &key)
    }

    /// Trust in this certificate itself.
    pub(crate) fn authorities(&self) -> Authorities {
        Authorities::parse(self.pem.as_bytes(), Path::new("test.pem")).unwrap()
    }

    pub(crate) fn acceptor(&self, alpn: &[&str]) -> TlsAcceptor {
        self.acceptor_with(rustls::crypto::aws_lc_rs::default_provider(), alpn)
    }

    /// One that knows a single group for the exchange of keys.
    pub(crate) fn acceptor_of_groups(&self, kx_groups: Vec<&'static dyn SupportedKxGroup>) -> TlsAcceptor {
        self.acceptor_with(CryptoProvider { kx_groups, ..rustls::crypto::aws_lc_rs::default_provider() }, &[])
    }

    fn acceptor_with(&self, provider: CryptoProvider, alpn: &[&str]) -> TlsAcceptor {
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A listener on a free port of 127.0.0.1.
pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Both ends of a TCP connection.
pub(crate) async fn pair() -> (Socket, TcpStream) {
    let (listener, address) = listen().await;
    let options = SocketOptions::default();
    let (near, far) = tokio::join!(open(address, &options), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// An address whose packets go unanswered: a listener that never accepts and whose queue
/// is full, so that the kernel drops what comes.
pub(crate) struct DeadAddress {
    pub(crate) address: SocketAddr,
    _listener: socket2::Socket,
    _queue: Vec<std::net::TcpStream>,
}

impl DeadAddress {
    pub(crate) fn new(ip: Ipv4Addr, port: u16) -> DeadAddress {
        use socket2::{Domain, Socket, Type};
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from((ip, port)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let wait = std::time::Duration::from_millis(100);
        let queue = std::iter::from_fn(|| std::net::TcpStream::connect_timeout(&address, wait).ok());
        DeadAddress { address, _queue: queue.take(8).collect(), _listener: listener }
    }
}
