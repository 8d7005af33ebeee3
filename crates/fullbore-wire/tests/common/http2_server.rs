//! A server of HTTP/2 over TLS for tests that speak the protocol themselves.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use fullbore_wire::connect::ConnectOptions;
use fullbore_wire::tls::{Authorities, Tls, Trust};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::common::Setup;

/// A server that does this with each connection, on a thread until the test is over; its address, and how
/// to make a client that trusts it.
pub fn server<F>(serve: fn(TlsStream<TcpStream>) -> F) -> (String, Setup)
where
    F: Future<Output = ()> + Send + 'static,
{
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = vec![certificate.der().clone()];
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols.push(b"h2".to_vec());
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let acceptor = TlsAcceptor::from(Arc::new(config));
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream).await;
                    }
                });
            }
        });
    });
    let authorities = Authorities::parse(certificate.pem().as_bytes(), Path::new("test.pem")).unwrap();
    let mut setup = Setup::default();
    setup.options.connect = ConnectOptions { tls: Tls::new(Trust::Only(authorities)), ..ConnectOptions::default() };
    setup.options.limits.failures_until_dead = 3;
    (url, setup)
}
