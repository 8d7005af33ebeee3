//! Connecting: addresses, TLS, credentials.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr};
use thiserror::Error;

use super::REQUEST_TIMEOUT;

/// A server that does not answer two of these is gone. The client library's default of a minute is too long for leases.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Limit for a connection with its handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest pause between two attempts to reconnect: work that is held goes on meanwhile.
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// How a client shows who it is.
#[derive(Clone, Default)]
pub enum Credentials {
    /// Not at all.
    #[default]
    None,
    /// A file with a JWT and the seed of its key.
    File(PathBuf),
    /// The seed of an NKey.
    NKey(String),
    /// A name and a password.
    Password {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Credentials::None => "None",
            Credentials::File(path) => return formatter.debug_tuple("File").field(path).finish(),
            Credentials::NKey(_) => "NKey(…)",
            Credentials::Password { .. } => "Password(…)",
        };
        formatter.write_str(kind)
    }
}

/// What a client does. It decides the prefix of its inboxes, so that permissions keep workers from reading the answers
/// to planners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Publishes tasks.
    Planner,
    /// Pulls them.
    Worker,
}

impl Role {
    fn inbox_prefix(self) -> &'static str {
        match self {
            Role::Planner => "_INBOX_p",
            Role::Worker => "_INBOX_w",
        }
    }
}

/// How to connect.
#[derive(Debug, Clone)]
pub struct NatsSettings {
    /// `tls://HOST[:PORT]` or `nats://HOST[:PORT]`, without a name and a password.
    pub url: String,
    /// Planner or worker.
    pub role: Role,
    /// Name of the connection in the server's lists.
    pub name: String,
    /// Who the client is.
    pub credentials: Credentials,
    /// Certificates of authorities, in PEM; without it, those of the system.
    pub authorities: Option<PathBuf>,
    /// Certificate and key of the client, in PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Credentials may go over a connection without TLS to another machine.
    pub is_insecure: bool,
}

impl NatsSettings {
    /// Settings without credentials.
    pub fn new(url: &str, role: Role) -> NatsSettings {
        NatsSettings {
            url: url.to_owned(),
            role,
            name: String::new(),
            credentials: Credentials::None,
            authorities: None,
            certificate: None,
            is_insecure: false,
        }
    }

    /// Checks the address, and that credentials are not sent in clear text to another machine.
    fn server(&self) -> Result<ServerAddr, ConnectError> {
        // Without a scheme, the client library takes any text for a host. Nothing of the text is shown if it may hold a
        // password.
        let is_known = self.url.starts_with("nats://") || self.url.starts_with("tls://");
        if self.url.contains('@') {
            return Err(ConnectError::PasswordInUrl);
        }
        let parsed = ServerAddr::from_str(&self.url).ok().filter(|server| is_known && !server.host().is_empty());
        let server = parsed.ok_or_else(|| ConnectError::Url { url: self.url.clone() })?;
        let has_credentials = !matches!(self.credentials, Credentials::None) || self.certificate.is_some();
        if has_credentials && !server.tls_required() && !is_loopback(server.host()) && !self.is_insecure {
            return Err(ConnectError::ClearText { host: server.host().to_owned() });
        }
        Ok(server)
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Why there is no connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No address of a NATS server.
    #[error("queue {url:?}: not of the form tls://HOST:PORT or nats://HOST:PORT")]
    Url {
        /// The text.
        url: String,
    },
    /// Command lines are visible to all users of a machine.
    #[error("the queue's URL has a name or a password in it")]
    PasswordInUrl,
    /// Credentials would be readable on the way.
    #[error("queue {host}: the connection has no TLS, so anybody on the way could read the credentials")]
    ClearText {
        /// The server.
        host: String,
    },
    /// A file that cannot be read or used.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The server knows no such user.
    #[error("queue {url}: the server refuses the credentials: {reason}")]
    Refused {
        /// The server.
        url: String,
        /// What the client library says.
        reason: String,
    },
    /// No server, or one that cannot be talked to.
    #[error("cannot connect to the queue {url}: {reason}")]
    Failed {
        /// The server.
        url: String,
        /// What the client library says.
        reason: String,
    },
}

pub(super) async fn connect(settings: &NatsSettings) -> Result<Client, ConnectError> {
    let server = settings.server()?;
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

    fn check(url: &str, credentials: Credentials, is_insecure: bool) -> Result<(), ConnectError> {
        NatsSettings { credentials, is_insecure, ..NatsSettings::new(url, Role::Worker) }.server().map(drop)
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
        assert!(settings.server().is_err());
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
