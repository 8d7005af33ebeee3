//! Connects to the server: addresses, TLS, credentials.

use std::error::Error as _;
use std::io;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr};
use fullbore_wire::tls::{Offer, TlsError};

use super::REQUEST_TIMEOUT;
use super::refusals::Refusals;
use crate::settings::{ConnectError, Credentials, NatsSettings};

/// A server that does not answer two of these is gone. The client library's default of a minute is too long for leases.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Time limit of a connection with its handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest pause between two attempts to reconnect; workers continue with their tasks meanwhile.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// Parses the server's address, which has been checked.
fn server(settings: &NatsSettings) -> Result<ServerAddr, ConnectError> {
    settings.check()?;
    let parsed = ServerAddr::from_str(&settings.url).ok().filter(|server| !server.host().is_empty());
    parsed.ok_or_else(|| ConnectError::Url { url: settings.url.clone() })
}

pub(super) async fn connect(settings: &NatsSettings) -> Result<(Client, Arc<Refusals>), ConnectError> {
    let server = server(settings)?;
    let is_tls = server.tls_required();
    let host = server.host().to_owned();
    let refusals = Arc::new(Refusals::default());
    let heard = refusals.clone();
    let mut options = ConnectOptions::new()
        .name(&settings.name)
        .ping_interval(PING_INTERVAL)
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(REQUEST_TIMEOUT))
        .reconnect_delay_callback(|attempts| {
            let delay = Duration::from_millis(50).saturating_mul(u32::try_from(attempts).unwrap_or(u32::MAX));
            delay.min(RECONNECT_DELAY_MAX)
        })
        .custom_inbox_prefix(settings.role.inbox_prefix())
        .event_callback(move |event| {
            heard.hear(Instant::now(), &event);
            std::future::ready(())
        })
        .require_tls(is_tls);
    match settings.tls()?.config(Offer::Nothing) {
        Ok(config) => options = options.tls_client_config((*config).clone()),
        // A server may require TLS although its address does not; most do not.
        Err(error) if is_tls => return Err(error.into()),
        Err(_) => {}
    }
    if !is_tls {
        // A server on loopback may announce others, which are not on loopback.
        options = options.ignore_discovered_servers();
    }
    options = match &settings.credentials {
        Credentials::None => options,
        Credentials::NKey(seed) => options.nkey(seed.clone()),
        Credentials::Password { user, password } => options.user_and_password(user.clone(), password.clone()),
        Credentials::File(path) => {
            let read = options.credentials_file(path).await;
            read.map_err(|source| ConnectError::File { path: path.clone(), source })?
        }
    };
    match options.connect(server).await {
        Ok(client) => Ok((client, refusals)),
        Err(error) => Err(explain(settings, &host, &error)),
    }
}

/// Explains a failed connection to the user.
fn explain(settings: &NatsSettings, host: &str, error: &async_nats::ConnectError) -> ConnectError {
    let (url, has_identity) = (settings.url.clone(), settings.certificate.is_some());
    match error.kind() {
        // The client library signs nothing with a seed that it cannot read.
        ConnectErrorKind::Authentication => return ConnectError::Seed,
        ConnectErrorKind::AuthorizationViolation => {
            return ConnectError::Refused { url, reason: error.kind().to_string() };
        }
        _ => {}
    }
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match source.and_then(|source| TlsError::of_io(host, source, has_identity)) {
        Some(refused @ TlsError::ClientCertificate { .. }) => {
            ConnectError::Refused { url, reason: refused.to_string() }
        }
        Some(source) if source.is_untrusted() || matches!(source, TlsError::NotTls { .. }) => {
            ConnectError::Untrusted { url, source }
        }
        _ => ConnectError::Failed { url, reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Role;

    fn check(url: &str, credentials: Credentials, is_insecure: bool) -> Result<(), ConnectError> {
        server(&NatsSettings { credentials, is_insecure, ..NatsSettings::new(url, Role::Worker) }).map(drop)
    }

    #[test]
    fn credentials_do_not_go_in_clear_text_to_another_machine() {
        let password = || Credentials::Password { user: "w".to_owned(), password: "secret".to_owned() };
        for credentials in [password(), Credentials::NKey("S".to_owned()), Credentials::File("w.creds".into())] {
            for url in [
                "nats://nats.example:4222",
                "nats://192.0.2.1",
                "nats://[2001:db8::1]:4222",
                "nats://127.0.0.1.example",
            ] {
                let refused = check(url, credentials.clone(), false);
                assert!(matches!(refused, Err(ConnectError::ClearText { .. })), "{url} {refused:?}");
                assert!(check(url, credentials.clone(), true).is_ok(), "{url}");
                assert!(check(url, Credentials::None, false).is_ok(), "{url}");
            }
            for url in ["nats://127.0.0.1:4222", "nats://localhost", "nats://[::1]:4222", "tls://nats.example:4222"] {
                assert!(check(url, credentials.clone(), false).is_ok(), "{url}");
            }
        }
        let certificate = Some(("c.pem".into(), "k.pem".into()));
        let settings = NatsSettings { certificate, ..NatsSettings::new("nats://nats.example", Role::Worker) };
        assert!(server(&settings).is_err());
    }

    #[test]
    fn addresses_of_other_kinds_are_refused_and_passwords_not_shown() {
        for url in
            ["", "nats.example", "http://nats.example", "ws://nats.example", "nats://", "nats:///x", "file:///etc"]
        {
            let refused = check(url, Credentials::None, false);
            assert!(matches!(refused, Err(ConnectError::Url { .. })), "{url} {refused:?}");
        }
        let refused = check("tls://user:secret@nats.example", Credentials::None, false).expect_err("a password");
        assert!(!refused.to_string().contains("secret"), "{refused}");
        let shown = format!("{:?}", Credentials::Password { user: "w".to_owned(), password: "secret".to_owned() });
        assert!(!shown.contains("secret"), "{shown}");
    }
}
