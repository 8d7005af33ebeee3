use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use super::error::{some_names, when};
use super::*;
use crate::loopback::{Authority, Certified, pair};
use crate::stream::{Stream, TlsSocket};

const NOW: (i32, i32) = (2020, 2080);

/// One handshake; the server then says "ok" so that session tickets have been read.
async fn handshake(
    tls: &Tls,
    offer: Offer,
    host: &str,
    acceptor: TlsAcceptor,
) -> Result<(TlsSocket, Protocol), TlsError> {
    let (near, far) = pair().await;
    tokio::spawn(async move {
        if let Ok(mut far) = acceptor.accept(far).await {
            let _ = far.write_all(b"ok").await;
            let _ = far.read(&mut [0; 1]).await;
        }
    });
    let (socket, protocol) = TlsSocket::connect(tls.config(offer)?, host, Stream::Plain(near)).await?;
    let mut stream = Stream::Tls(Box::new(socket));
    stream.read_exact(&mut [0; 2]).await.unwrap();
    let Stream::Tls(socket) = stream else { unreachable!() };
    Ok((*socket, protocol))
}

async fn refused(tls: &Tls, host: &str, certified: &Certified) -> TlsError {
    let error = handshake(tls, Offer::Either, host, certified.acceptor(&[])).await.unwrap_err();
    assert!(error.to_string().contains(host), "{error}");
    error
}

#[tokio::test]
async fn the_server_chooses_among_what_is_offered() {
    let authority = Authority::new();
    let certified = authority.certify("mirror.example.org", NOW);
    let tls = Tls::new(Trust::Only(authority.authorities()));
    let both: &[&str] = &["h2", "http/1.1"];
    for (offer, server, expected) in [
        (Offer::Either, both, Protocol::Http2),
        (Offer::Either, &["http/1.1"], Protocol::Http1),
        (Offer::Either, &[], Protocol::Http1),
        (Offer::Http1, both, Protocol::Http1),
        (Offer::Http2, both, Protocol::Http2),
        (Offer::Nothing, both, Protocol::Http1),
    ] {
        let acceptor = certified.acceptor(server);
        let (_, protocol) = handshake(&tls, offer, "mirror.example.org", acceptor).await.unwrap();
        assert_eq!(protocol, expected, "{offer:?} to {server:?}");
    }
    let acceptor = certified.acceptor(&["http/1.1"]);
    let error = handshake(&tls, Offer::Http2, "mirror.example.org", acceptor).await.unwrap_err();
    assert!(matches!(error, TlsError::Handshake { .. }), "{error}");
    assert!(!error.is_untrusted());
}

#[tokio::test]
async fn sessions_are_resumed_whatever_is_offered() {
    let authority = Authority::new();
    let acceptor = authority.certify("mirror.example.org", NOW).acceptor(&["h2", "http/1.1"]);
    let tls = Tls::new(Trust::Only(authority.authorities()));
    let host = "mirror.example.org";
    let (first, _) = handshake(&tls, Offer::Http1, host, acceptor.clone()).await.unwrap();
    assert_ne!(first.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
    let (second, _) = handshake(&tls.clone(), Offer::Either, host, acceptor).await.unwrap();
    assert_eq!(second.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
}

#[tokio::test]
async fn no_server_asks_for_another_key_share() {
    use rustls::crypto::aws_lc_rs::kx_group::{X25519, X25519MLKEM768};
    let certified = Authority::new().certify("other", NOW);
    let tls = Tls::new(Trust::SpkiPins(vec![spki_pin(&certified.spki)]));
    // One that insists on the hybrid, and one that does not know it.
    for group in [X25519MLKEM768, X25519] {
        let acceptor = certified.acceptor_of_groups(vec![group]);
        let (socket, _) = handshake(&tls, Offer::Http1, "127.0.0.1", acceptor).await.unwrap();
        assert_eq!(socket.handshake_kind(), Some(rustls::HandshakeKind::Full), "{:?}", group.name());
    }
}

#[tokio::test]
async fn a_first_flight_in_brief_is_short_and_enough() {
    use rustls::crypto::aws_lc_rs::kx_group::{X25519, X25519MLKEM768};
    let certified = Authority::new().certify("other", NOW);
    let tls = Tls::new(Trust::SpkiPins(vec![spki_pin(&certified.spki)]));
    let brief = tls.clone().with_small_key_shares();
    let hello = |tls: &Tls| {
        let name = server_name("127.0.0.1").unwrap();
        let mut bytes = Vec::new();
        let mut client = rustls::ClientConnection::new(tls.config(Offer::Http1).unwrap(), name).unwrap();
        client.write_tls(&mut bytes).unwrap();
        bytes.len()
    };
    assert!(hello(&tls) > 1216 && hello(&brief) < 300, "{} and {}", hello(&tls), hello(&brief));
    // One that would prefer the hybrid does not ask for it.
    let acceptor = certified.acceptor_of_groups(vec![X25519MLKEM768, X25519]);
    let (socket, _) = handshake(&brief, Offer::Http1, "127.0.0.1", acceptor).await.unwrap();
    assert_eq!(socket.handshake_kind(), Some(rustls::HandshakeKind::Full));
}

#[tokio::test]
async fn refusals_name_host_and_reason() {
    let authority = Authority::new();
    let tls = Tls::new(Trust::Only(authority.authorities()));
    let host = "mirror.example.org";

    let error = refused(&tls, host, &authority.certify(host, (2001, 2002))).await;
    assert!(matches!(error, TlsError::Expired { .. }) && error.is_untrusted(), "{error}");
    assert!(error.to_string().contains("01 Jan 2002"), "{error}");

    let error = refused(&tls, host, &authority.certify(host, (2090, 2091))).await;
    assert!(matches!(error, TlsError::NotYetValid { .. }), "{error}");

    let error = refused(&tls, host, &authority.certify("other.example.net", NOW)).await;
    assert!(matches!(error, TlsError::WrongName { .. }), "{error}");
    assert!(error.to_string().contains("is for other.example.net,"), "{error}");

    let stranger = Authority::new().certify(host, NOW);
    for tls in [&tls, &Tls::new(Trust::SystemAnd(authority.authorities()))] {
        let error = refused(tls, host, &stranger).await;
        assert!(matches!(error, TlsError::UnknownIssuer { .. }), "{error}");
    }
    assert!(matches!(server_name("a b"), Err(TlsError::BadName { .. })));
}

#[tokio::test]
async fn added_authorities_certify_addresses_and_names_with_a_dot() {
    let authority = Authority::new();
    let tls = Tls::new(Trust::SystemAnd(authority.authorities()));
    for (host, name) in [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"), ("mirror.example.org.", "mirror.example.org")] {
        let acceptor = authority.certify(name, NOW).acceptor(&[]);
        handshake(&tls, Offer::Either, host, acceptor).await.unwrap();
    }
}

#[tokio::test]
async fn a_trusted_certificate_may_be_the_servers_own() {
    let host = "mirror.example.org";
    for authority in [false, true] {
        let own = Certified::by_itself(host, NOW, authority);
        for tls in [Tls::new(Trust::Only(own.authorities())), Tls::new(Trust::SystemAnd(own.authorities()))] {
            handshake(&tls, Offer::Either, host, own.acceptor(&[])).await.unwrap();
            // Its names, its dates and it alone.
            let error = refused(&tls, "other.example.org", &own).await;
            assert!(matches!(error, TlsError::WrongName { .. }), "{error}");
            let error = refused(&tls, host, &Certified::by_itself(host, NOW, authority)).await;
            assert!(matches!(error, TlsError::UnknownIssuer { .. } | TlsError::SelfSigned { .. }), "{error}");
            let overlooking = tls.overlooking(Overlook::Name);
            handshake(&overlooking, Offer::Either, "other.example.org", own.acceptor(&[])).await.unwrap();
        }
        for (years, said) in [((2001, 2002), "expired (Tue, 01 Jan 2002"), ((2090, 2091), "not valid yet")] {
            let own = Certified::by_itself(host, years, authority);
            for overlook in [Overlook::Nothing, Overlook::Name] {
                let tls = Tls::new(Trust::Only(own.authorities())).overlooking(overlook);
                let error = refused(&tls, host, &own).await;
                assert!(error.to_string().contains(said), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_common_name_alone_is_refused_with_what_is_missing() {
    let host = "mirror.example.org";
    let own = Certified::by_common_name(host);
    let tls = Tls::new(Trust::Only(own.authorities()));
    let error = refused(&tls, host, &own).await;
    assert!(error.is_untrusted() && !error.is_of_unknown_issuer());
    let told = error.to_string();
    assert!(told.contains("common name alone (mirror.example.org)") && told.contains("subjectAltName"), "{told}");
    let overlooking = tls.overlooking(Overlook::Name);
    handshake(&overlooking, Offer::Either, host, own.acceptor(&[])).await.unwrap();
}

#[tokio::test]
async fn pins_count_and_nothing_else() {
    // Unknown authority, expired, for another name: the key alone decides.
    let certified = Authority::new().certify("other", (2001, 2002));
    let pin = spki_pin(&certified.spki);
    for trust in [Trust::SpkiPins(vec![[0; 32], pin]), Trust::PinnedKeys(vec![vec![1, 2, 3], certified.spki.clone()])] {
        let tls = Tls::new(trust);
        handshake(&tls, Offer::Nothing, "127.0.0.1", certified.acceptor(&[])).await.unwrap();
    }
    for trust in
        [Trust::SpkiPins(vec![[0; 32]]), Trust::SpkiPins(vec![]), Trust::PinnedKeys(vec![certified.spki[1..].to_vec()])]
    {
        let error = refused(&Tls::new(trust), "127.0.0.1", &certified).await;
        assert!(matches!(error, TlsError::WrongKey { .. }) && error.is_untrusted(), "{error}");
        let shown: String = pin.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(error.to_string().contains(&shown), "{error}");
    }
}

#[test]
fn authorities_are_read_from_pem_and_errors_name_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    let check = |content: &[u8]| {
        std::fs::write(&file, content).unwrap();
        Authorities::read(&file).map(|read| read.0.len()).map_err(|error| error.to_string())
    };
    let pem = Authority::new().pem();
    assert_eq!(check(pem.as_bytes()), Ok(1));
    assert_eq!(check(format!("text\n{pem}\n{}", Authority::new().pem()).as_bytes()), Ok(2));
    for content in [
        "",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n",
    ] {
        let error = check(content.as_bytes()).unwrap_err();
        assert!(error.contains("ca.pem"), "{error}");
    }
    assert!(Authorities::read(&directory.path().join("none")).unwrap_err().to_string().contains("none"));
}

#[test]
fn the_systems_authorities_are_read_once_and_on_need() {
    let tls = Tls::default();
    assert!(!tls.is_loaded());
    match tls.config(Offer::Either) {
        Ok(first) => {
            assert!(tls.clone().is_loaded());
            assert!(Arc::ptr_eq(&first, &tls.config(Offer::Either).unwrap()));
        }
        // A machine without ca-certificates.
        Err(error) => assert!(matches!(error, TlsError::NoAuthorities { .. }), "{error}"),
    }
}

#[test]
fn odd_times_and_many_names_are_shown() {
    assert_eq!(when(Some(0)), " (Thu, 01 Jan 1970 00:00:00 GMT)");
    assert_eq!(when(Some(u64::MAX)), "");
    assert_eq!(when(Some(253_402_300_800)), "");
    let names = ["DnsName(\"a\")", "b", "c", "d", "e"].map(str::to_owned);
    assert_eq!(some_names(&names), "a, b, c and 2 more");
    assert_eq!(some_names(&[]), "no name");
}

#[tokio::test]
async fn what_is_overlooked_is_no_more_than_was_said() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let host = "mirror.example.org";
    let own = || Tls::new(Trust::Only(authority.authorities()));
    let other_name = authority.certify("other.example.org", NOW);
    assert!(handshake(&own().overlooking(Overlook::Name), Offer::Either, host, other_name.acceptor(&[])).await.is_ok());
    let error = refused(&own().overlooking(Overlook::Name), host, &stranger.certify(host, NOW)).await;
    assert!(matches!(error, TlsError::UnknownIssuer { .. }), "{error}");
    let expired = stranger.certify("other.example.org", (2001, 2002));
    let anybody = own().overlooking(Overlook::Everything);
    assert!(handshake(&anybody, Offer::Either, host, expired.acceptor(&[])).await.is_ok());
}

#[test]
fn only_a_client_that_showed_a_certificate_is_told_of_its_refusal() {
    use rustls::AlertDescription::{CertificateRequired, UnknownCA};
    for (alert, has_identity, is_refused) in [
        (UnknownCA, true, true),
        (UnknownCA, false, false),
        (CertificateRequired, true, true),
        (CertificateRequired, false, true),
    ] {
        let error = std::io::Error::other(rustls::Error::AlertReceived(alert));
        let error = TlsError::of_io("h", &error, has_identity).unwrap();
        assert_eq!(matches!(error, TlsError::ClientCertificate { .. }), is_refused, "{error}");
    }
}
