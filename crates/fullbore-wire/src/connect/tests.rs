use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::loopback::{Authority, DeadAddress, listen};
use crate::tls::Trust;

const HOST: &str = "mirror.example.org";

fn options(authority: &Authority) -> ConnectOptions {
    let mut resolver = Resolver::default();
    resolver.fix(HOST, vec![Ipv4Addr::LOCALHOST.into()]);
    ConnectOptions {
        tls: Tls::new(Trust::Only(authority.authorities())),
        resolver: Arc::new(resolver),
        limit: Duration::from_secs(5),
        ..ConnectOptions::default()
    }
}

fn endpoint(scheme: Scheme, port: u16, proxy: Option<ProxyServer>) -> Endpoint {
    Endpoint { scheme, host: HOST.to_owned(), port, proxy }
}

fn proxy(scheme: Scheme, port: u16) -> Option<ProxyServer> {
    let authorization = Some("Basic c2VjcmV0".to_owned());
    Some(ProxyServer { scheme, host: "127.0.0.1".to_owned(), port, authorization })
}

/// Says "ok" to whoever connects, after TLS.
fn serve_tls(listener: TcpListener, authority: &Authority, name: &str, alpn: &[&str]) {
    let acceptor = authority.certify(name, (2020, 2080)).acceptor(alpn);
    tokio::spawn(async move {
        while let Ok((far, _)) = listener.accept().await {
            if let Ok(mut far) = acceptor.accept(far).await {
                far.write_all(b"ok").await.unwrap();
                let _ = far.shutdown().await;
            }
        }
    });
}

async fn says_ok(mut connected: Connected) {
    let mut said = Vec::new();
    connected.stream.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, b"ok");
}

/// Reads a request's head, answers `answer`, and joins the stream to `target` if it is a 200.
async fn act_as_proxy(
    mut near: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    answer: &str,
    target: SocketAddr,
) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(near.read_u8().await.unwrap());
    }
    near.write_all(answer.as_bytes()).await.unwrap();
    near.flush().await.unwrap();
    if answer.contains(" 200 ") {
        let mut far = TcpStream::connect(target).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn a_connection_by_https_has_timings_and_counters() {
    let authority = Authority::new();
    let (listener, address) = listen().await;
    serve_tls(listener, &authority, HOST, &["h2", "http/1.1"]);
    let options = options(&authority);
    let connected = connect(&endpoint(Scheme::Https, address.port(), None), &options).await.unwrap();
    assert_eq!((connected.protocol, connected.peer), (Protocol::Http2, address));
    assert!(!connected.absolute_form && connected.stream.is_tls());
    let timings = connected.timings;
    assert!(timings.tls_us > 0 && timings.proxy_us == 0, "{timings:?}");
    assert!(timings.tls_us < 5_000_000 && timings.tcp_us < 5_000_000, "{timings:?}");
    let tcp = connected.tcp.clone();
    assert!(tcp.read().unwrap().path_rtt() > Duration::ZERO);
    says_ok(connected).await;
    assert!(tcp.read().unwrap().bytes_received > 500);
    let only_one = ConnectOptions { offer: Offer::Http1, ..options };
    let connected = connect(&endpoint(Scheme::Https, address.port(), None), &only_one).await;
    assert_eq!(connected.unwrap().protocol, Protocol::Http1);
}

#[tokio::test]
async fn a_server_without_http2_is_named_when_nothing_else_was_offered() {
    let authority = Authority::new();
    let (listener, address) = listen().await;
    serve_tls(listener, &authority, HOST, &[]);
    let options = ConnectOptions { offer: Offer::Http2, ..options(&authority) };
    let error = connect(&endpoint(Scheme::Https, address.port(), None), &options).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoHttp2 { .. }), "{error}");
    assert!(error.to_string().contains(HOST), "{error}");
}

#[tokio::test]
async fn plain_http_connects_directly_and_by_proxy() {
    let (_listener, address) = listen().await;
    let options = options(&Authority::new());
    let direct = connect(&endpoint(Scheme::Http, address.port(), None), &options).await.unwrap();
    assert_eq!((direct.protocol, direct.absolute_form), (Protocol::Http1, false));
    let forced = ConnectOptions { offer: Offer::Http2, ..options.clone() };
    let direct = connect(&endpoint(Scheme::Http, address.port(), None), &forced).await.unwrap();
    assert_eq!(direct.protocol, Protocol::Http2);
    // The server's own name is the proxy's business, so it is never looked up.
    let mut elsewhere = endpoint(Scheme::Http, 80, proxy(Scheme::Http, address.port()));
    elsewhere.host = "unknown.invalid".to_owned();
    for options in [&options, &forced] {
        let by_proxy = connect(&elsewhere, options).await.unwrap();
        assert_eq!((by_proxy.protocol, by_proxy.absolute_form), (Protocol::Http1, true));
        assert_eq!(by_proxy.peer, address);
    }
}

#[tokio::test]
async fn https_goes_through_a_tunnel_of_a_plain_or_encrypted_proxy() {
    let authority = Authority::new();
    let (listener, server) = listen().await;
    serve_tls(listener, &authority, HOST, &["http/1.1"]);
    let acceptor = authority.certify("127.0.0.1", (2020, 2080)).acceptor(&["http/1.1"]);
    for scheme in [Scheme::Http, Scheme::Https] {
        let (listener, address) = listen().await;
        let acceptor = acceptor.clone();
        let acting = tokio::spawn(async move {
            let (near, _) = listener.accept().await.unwrap();
            let answer = "HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n";
            match scheme {
                Scheme::Http => act_as_proxy(near, answer, server).await,
                Scheme::Https => act_as_proxy(acceptor.accept(near).await.unwrap(), answer, server).await,
            }
        });
        let endpoint = endpoint(Scheme::Https, 443, proxy(scheme, address.port()));
        let connected = connect(&endpoint, &options(&authority)).await.unwrap();
        assert_eq!((connected.peer, connected.absolute_form), (address, false));
        assert!(connected.timings.proxy_us > 0);
        says_ok(connected).await;
        assert_eq!(
            acting.await.unwrap(),
            format!(
                "CONNECT mirror.example.org:443 HTTP/1.1\r\nHost: mirror.example.org:443\r\n\
                 User-Agent: {}\r\nProxy-Authorization: Basic c2VjcmV0\r\n\r\n",
                crate::http1::USER_AGENT
            )
        );
    }
}

#[tokio::test]
async fn an_https_proxy_is_trusted_by_an_authority_of_its_own() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (proxy_listener, proxy_address) = listen().await;
    serve_tls(proxy_listener, &theirs, "127.0.0.1", &[]);
    let endpoint = endpoint(Scheme::Http, 80, proxy(Scheme::Https, proxy_address.port()));
    let options = options(&ours);
    assert!(connect(&endpoint, &options).await.is_err_and(|error| error.is_untrusted()));
    let tls = Tls::new(Trust::Only(theirs.authorities()));
    let options = ConnectOptions { proxy_tls: Some(tls), ..options };
    let connected = connect(&endpoint, &options).await.unwrap();
    assert!(connected.absolute_form);
    says_ok(connected).await;
}

#[tokio::test]
async fn a_proxy_that_gives_no_tunnel_is_named_with_its_reason() {
    let authority = Authority::new();
    let options = options(&authority);
    let long = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(40 << 10));
    for (answer, expected) in [
        (
            "HTTP/1.1 407 No\r\nProxy-Authenticate: Negotiate\r\nContent-Length: 3\r\n\r\nwho",
            "authentication required for mirror.example.org:443 (407; it offers Negotiate)",
        ),
        ("HTTP/1.1 403 Forbidden\r\n\r\n", "no tunnel to mirror.example.org:443: 403 Forbidden"),
        ("HTTP/1.1 200 OK\r\n\r\nhello", "sent data before the tunnel was used"),
        ("SSH-2.0-server\r\n\r\n", "answer is not HTTP"),
        ("HTTP/1.1 200", "closed the connection instead of answering"),
        (long.as_str(), "head is longer than 32.8 kB"),
    ] {
        let (listener, address) = listen().await;
        let answer = answer.replace(" 200 OK\r\n\r\nhello", " 200\r\n\r\nhello");
        tokio::spawn(async move {
            let (near, _) = listener.accept().await.unwrap();
            act_as_proxy(near, &answer, address).await
        });
        let endpoint = endpoint(Scheme::Https, 443, proxy(Scheme::Http, address.port()));
        let error = connect(&endpoint, &options).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.starts_with(&format!("proxy {address}: ")), "{error}");
        assert!(!error.contains("c2VjcmV0"), "{error}");
    }
    let mut crooked = endpoint(Scheme::Https, 443, proxy(Scheme::Http, listen().await.1.port()));
    crooked.host = "a\r\nX: y".to_owned();
    assert!(connect(&crooked, &options).await.is_err());
    assert_eq!(format!("{:?}", proxy(Scheme::Http, 3128).unwrap()), "http://…@127.0.0.1:3128");
}

#[tokio::test]
async fn one_limit_covers_every_step_and_errors_name_it() {
    let authority = Authority::new();
    let limit = Duration::from_secs(1);
    let options = ConnectOptions { limit, ..options(&authority) };
    let began = std::time::Instant::now();

    let dead = DeadAddress::new(Ipv4Addr::LOCALHOST, 0);
    let error = connect(&endpoint(Scheme::Http, dead.address.port(), None), &options).await;
    let error = error.unwrap_err().to_string();
    assert!(error.ends_with(": no TCP connection within 1 s"), "{error}");

    // Accepted by the kernel, then silence.
    let (_silent, silent) = listen().await;
    let error = connect(&endpoint(Scheme::Https, silent.port(), None), &options).await;
    let error = error.unwrap_err().to_string();
    assert_eq!(error, format!("{HOST}:{}: no TLS handshake within 1 s", silent.port()));

    let tunnel = endpoint(Scheme::Https, 443, proxy(Scheme::Http, silent.port()));
    let error = connect(&tunnel, &options).await.unwrap_err().to_string();
    assert!(error.contains("no answer of the proxy within"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn refusals_name_each_address() {
    let mut resolver = Resolver::default();
    resolver.fix(HOST, vec![Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 2).into()]);
    let options = ConnectOptions { resolver: Arc::new(resolver), ..options(&Authority::new()) };
    let port = listen().await.1.port();
    let error = connect(&endpoint(Scheme::Http, port, None), &options).await.unwrap_err();
    let ConnectError::Tcp { attempts, .. } = &error else { panic!("{error}") };
    assert_eq!(attempts.len(), 2);
    for part in [HOST, "127.0.0.1:", "127.0.0.2:", "refused"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(!error.is_untrusted());
    let stranger = Authority::new();
    let (listener, address) = listen().await;
    serve_tls(listener, &stranger, HOST, &[]);
    let error = connect(&endpoint(Scheme::Https, address.port(), None), &options).await;
    assert!(error.unwrap_err().is_untrusted());
}
