//! Connecting: addresses, TLS, credentials.

use std::str::FromStr as _;
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr};

use super::REQUEST_TIMEOUT;
use crate::settings::{ConnectError, Credentials, NatsSettings};

/// A server that does not answer two of these is gone. The client library's default of a minute is too long for leases.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Limit for a connection with its handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest pause between two attempts to reconnect: work that is held goes on meanwhile.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// The server's address, once it is checked.
fn server(settings: &NatsSettings) -> Result<ServerAddr, ConnectError> {
    settings.check()?;
    let parsed = ServerAddr::from_str(&settings.url).ok().filter(|server| !server.host().is_empty());
    parsed.ok_or_else(|| ConnectError::Url { url: settings.url.clone() })
}

pub(super) async fn connect(settings: &NatsSettings) -> Result<Client, ConnectError> {
    let server = server(settings)?;
    let is_tls = server.tls_required();
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
        .require_tls(is_tls);
    if !is_tls {
        // A server on loopback may name others, which are not.
        options = options.ignore_discovered_servers();
    }
    if let Some(path) = &settings.authorities {
        options = options.add_root_certificates(path.clone());
    }
    if let Some((certificate, key)) = &settings.certificate {
        options = options.add_client_certificate(certificate.clone(), key.clone());
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
    let connected = options.connect(server).await;
    connected.map_err(|error| {
        let (url, reason) = (settings.url.clone(), error.to_string());
        match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                ConnectError::Refused { url, reason }
            }
            _ => ConnectError::Failed { url, reason },
        }
    })
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
