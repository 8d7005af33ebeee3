//! How to connect to the queue of a fleet, and why that fails. The client itself is behind the feature `nats`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use fullbore_wire::tls::{Authorities, Identity, Tls, TlsError, Trust};
use fullbore_wire::url::Url;
use thiserror::Error;

/// How a client shows who it is.
#[derive(Clone, Default, PartialEq, Eq)]
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
    #[cfg(feature = "nats")]
    pub(crate) fn inbox_prefix(self) -> &'static str {
        match self {
            Role::Planner => "_INBOX_p",
            Role::Worker => "_INBOX_w",
        }
    }
}

/// How to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsSettings {
    /// `tls://HOST[:PORT]` or `nats://HOST[:PORT]`, without a name and a password.
    pub url: String,
    /// Planner or worker.
    pub role: Role,
    /// Name of the connection in the server's lists.
    pub name: String,
    /// Who the client is.
    pub credentials: Credentials,
    /// Certificates that are trusted beside those of the system, in PEM.
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
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn check(&self) -> Result<(), ConnectError> {
        // Nothing of the text is shown if it may hold a password. Without a scheme, the client library takes any text for
        // a host.
        if self.url.contains('@') {
            return Err(ConnectError::PasswordInUrl);
        }
        let refused = || ConnectError::Url { url: self.url.clone() };
        let (scheme, authority) = self.url.split_once("://").ok_or_else(refused)?;
        // The rest of a NATS address is like that of an HTTP one.
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
    /// [`ConnectError::Certificates`]: a file of certificates that cannot be used.
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
    /// A file of certificates or a key that cannot be used.
    #[error(transparent)]
    Certificates(#[from] TlsError),
    /// The seed of an NKey is mistyped.
    #[error("cannot use the seed of the NKey: it is damaged, or none of an NKey")]
    Seed,
    /// The server cannot show that it is the one that was asked for, or has no TLS.
    #[error("cannot trust the queue {url}: {source}")]
    Untrusted {
        /// The server.
        url: String,
        /// Why not.
        source: TlsError,
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
