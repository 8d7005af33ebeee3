//! Settings for the connection to a fleet's queue, and its errors. The client itself is behind the feature `nats`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use fullbore_wire::tls::{Authorities, Identity, Tls, TlsError, Trust};
use fullbore_wire::url::Url;
use thiserror::Error;

/// How a client proves who it is.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Credentials {
    /// No credentials.
    #[default]
    None,
    /// A file with a JWT and the seed of its key.
    File(PathBuf),
    /// The seed of an NKey.
    NKey(String),
    /// A name and a password.
    Password {
        /// Name of the user.
        user: String,
        /// Password of the user.
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

/// The role of a client. It determines the prefix of its inboxes, so that permissions keep workers from reading the
/// answers to planners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The client publishes tasks.
    Planner,
    /// The client pulls tasks.
    Worker,
}

impl Role {
    #[cfg(feature = "nats")]
    pub(crate) fn inbox_prefix(self) -> &'static str {
        match self {
            Role::Planner => "_INBOX_p",
            Role::Worker => "_INBOX_w",
        }
    }
}

/// Settings for a connection to a NATS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsSettings {
    /// `tls://HOST[:PORT]` or `nats://HOST[:PORT]`, without a name and a password.
    pub url: String,
    /// Whether the client is a planner or a worker.
    pub role: Role,
    /// Name of the connection in the server's lists.
    pub name: String,
    /// Credentials of the client.
    pub credentials: Credentials,
    /// Certificates that are trusted beside those of the system, in PEM.
    pub authorities: Option<PathBuf>,
    /// Certificate and key of the client, in PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether credentials may be sent to another machine without TLS.
    pub is_insecure: bool,
}

impl NatsSettings {
    /// Makes settings without credentials.
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

    /// Checks the address, and that no credentials would be sent in clear text to another machine.
    ///
    /// # Errors
    /// [`ConnectError::PasswordInUrl`] if the address contains a user or password, [`ConnectError::Url`] if it is not a
    /// NATS address, [`ConnectError::ClearText`] if credentials would be sent without TLS to another machine.
    pub fn check(&self) -> Result<(), ConnectError> {
        // The text is not shown if it may contain a password. Without a scheme, the client library takes any text for a
        // host.
        if self.url.contains('@') {
            return Err(ConnectError::PasswordInUrl);
        }
        let refused = || ConnectError::Url { url: self.url.clone() };
        let (scheme, authority) = self.url.split_once("://").ok_or_else(refused)?;
        // The rest of a NATS address has the form of an HTTP one.
        let parsed = Url::parse(&format!("http://{authority}")).map_err(|_| refused())?;
        let has_more = authority.trim_end_matches('/').contains(['/', '?', '#']);
        if !matches!(scheme, "nats" | "tls") || has_more {
            return Err(refused());
        }
        let host = parsed.host().to_string();
        let has_credentials = self.credentials != Credentials::None || self.certificate.is_some();
        if has_credentials && scheme != "tls" && !is_loopback(&host) && !self.is_insecure {
            return Err(ConnectError::ClearText { host });
        }
        Ok(())
    }
}

impl NatsSettings {
    /// The TLS of the connection: the same checks, files and variables as for mirrors and stores.
    ///
    /// # Errors
    /// [`ConnectError::Certificates`] for a file of certificates, or a key, that cannot be used.
    pub fn tls(&self) -> Result<Tls, ConnectError> {
        let trust = match &self.authorities {
            Some(path) => Trust::SystemAnd(Authorities::read(path)?),
            None => Trust::System,
        };
        let tls = Tls::new(trust);
        Ok(match &self.certificate {
            Some((certificate, key)) => tls.with_identity(Identity::read(certificate, key)?),
            None => tls,
        })
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Why a connection to the queue failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is not the address of a NATS server.
    #[error("queue {url:?}: not of the form tls://HOST:PORT or nats://HOST:PORT")]
    Url {
        /// The text as the user wrote it.
        url: String,
    },
    /// The address contains a user or password. Command lines are visible to all users of a machine.
    #[error("the queue's URL has a name or a password in it")]
    PasswordInUrl,
    /// The credentials would be sent in clear text.
    #[error("queue {host}: the connection has no TLS, so anybody on the way could read the credentials")]
    ClearText {
        /// Host name of the server.
        host: String,
    },
    /// A file cannot be read or used.
    #[error("cannot read {path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of reading or parsing it.
        source: std::io::Error,
    },
    /// A file of certificates, or a key, cannot be used.
    #[error(transparent)]
    Certificates(#[from] TlsError),
    /// The seed of the NKey has a typing error.
    #[error("cannot use the seed of the NKey: it is damaged, or not of an NKey")]
    Seed,
    /// The server cannot prove its identity, or has no TLS.
    #[error("cannot trust the queue {url}: {source}")]
    Untrusted {
        /// Address of the server.
        url: String,
        /// Why the server cannot be trusted.
        source: TlsError,
    },
    /// The server does not know the user, or refuses the credentials.
    #[error("queue {url}: the server refuses the credentials: {reason}")]
    Refused {
        /// Address of the server.
        url: String,
        /// Message of the client library.
        reason: String,
    },
    /// There is no server, or it does not speak the protocol.
    #[error("cannot connect to the queue {url}: {reason}")]
    Failed {
        /// Address of the server.
        url: String,
        /// Message of the client library.
        reason: String,
    },
}
