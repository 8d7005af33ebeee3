//! From an endpoint to a connection that requests can be written to.
//!
//! [`connect`] looks the name up, races its addresses, passes a proxy where there is one,
//! does the TLS handshake and says which protocol was agreed on, how long each step took and
//! where to read the connection's counters. One time limit covers all of it.

mod tunnel;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::resolve::{ATTEMPT_DELAY, Resolver, race};
use crate::socket::{SocketOptions, TcpProbe};
use crate::stream::{Stream, TlsSocket};
use crate::tls::{Offer, Protocol, Tls, TlsError};
pub use crate::url::Scheme;

/// Time for a whole connection, name lookup and handshake included. apt waits 30 s and curl
/// 300 s; with other mirrors at hand a host that needs 10 s is not worth the wait (a guess).
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A server, and the way to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Whether the connection uses plain TCP or TLS.
    pub scheme: Scheme,
    /// Name or address; an IPv6 address with or without brackets.
    pub host: String,
    /// TCP port of the server, 1 to 65535.
    pub port: u16,
    /// Proxy to connect through; `None` for a direct connection.
    pub proxy: Option<ProxyServer>,
}

/// A proxy. Its credentials never appear in errors or `Debug`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProxyServer {
    /// How the proxy itself is spoken to; with `Https` everything to it is encrypted.
    pub scheme: Scheme,
    /// Name or address of the proxy.
    pub host: String,
    /// TCP port of the proxy, 1 to 65535.
    pub port: u16,
    /// Value of `Proxy-Authorization`, e.g. `Basic …`; sent here for a tunnel only. With plain http
    /// the request itself carries it.
    pub authorization: Option<String>,
}

impl fmt::Debug for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let credentials = if self.authorization.is_some() { "…@" } else { "" };
        let scheme = self.scheme.as_str();
        write!(f, "{scheme}://{credentials}{}", authority(&self.host, self.port))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), authority(&self.host, self.port))
    }
}

/// How far the TCP handshake of a connection is. It takes about a round trip, known before TLS has begun; and one that
/// is not over tells as early that the path is longer than so much.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Handshake {
    /// The name is looked up, or nobody connects.
    #[default]
    NotBegun,
    /// The first packet was sent then.
    Begun(Instant),
    /// It took so long.
    Took(Duration),
}

/// How to connect. Clones share the TLS session cache.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Which certificates the client accepts.
    pub tls: Tls,
    /// The same of an https proxy; `None` for `tls`.
    pub proxy_tls: Option<Tls>,
    /// Which protocols the client offers by ALPN (RFC 7301).
    pub offer: Offer,
    /// Resolver for names of servers and proxies.
    pub resolver: Arc<Resolver>,
    /// What to ask of the kernel.
    pub socket: SocketOptions,
    /// Limit for the whole of [`connect`].
    pub limit: Duration,
    /// Head start of one address over the next.
    pub attempt_delay: Duration,
    /// Told how far the TCP handshake is.
    pub handshake: Option<watch::Sender<Handshake>>,
    /// The first request is written, or an answer waited for, as soon as there is a connection: the end of the TLS
    /// handshake goes with it ([`TlsSocket::connect_to_write`]).
    pub writes_at_once: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            tls: Tls::default(),
            proxy_tls: None,
            offer: Offer::default(),
            resolver: Arc::default(),
            socket: SocketOptions::default(),
            limit: CONNECT_LIMIT,
            attempt_delay: ATTEMPT_DELAY,
            handshake: None,
            writes_at_once: false,
        }
    }
}

/// A connection ready for its first request.
#[derive(Debug)]
pub struct Connected {
    /// The open stream, through TLS if the scheme asks for it.
    pub stream: Stream,
    /// Protocol that client and server agreed on.
    pub protocol: Protocol,
    /// The counters of the TCP connection (to the proxy, if there is one).
    pub tcp: TcpProbe,
    /// Address of the server or proxy that accepted the connection.
    pub peer: SocketAddr,
    /// Requests must name the whole URL (RFC 9112, section 3.2.2): plain http over a proxy.
    pub absolute_form: bool,
    /// Duration of each step of the connection.
    pub timings: Timings,
}

/// Where the time to connect went, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Time of the name lookup, in microseconds.
    pub resolve_us: u64,
    /// TCP handshake, lost attempts included: about one round trip, to the proxy if there is one.
    pub tcp_us: u64,
    /// The way through a proxy: its own TLS, and its answer to CONNECT.
    pub proxy_us: u64,
    /// Time of the TLS handshake, in microseconds.
    pub tls_us: u64,
}

impl Timings {
    /// Time of all steps of the connection together.
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.resolve_us + self.tcp_us + self.proxy_us + self.tls_us)
    }
}

/// The steps of connecting, for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Looking the name up.
    Resolve,
    /// TCP.
    Tcp,
    /// Asking the proxy for a tunnel.
    Proxy,
    /// TLS.
    Tls,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Resolve => "name lookup",
            Phase::Tcp => "TCP connection",
            Phase::Proxy => "answer of the proxy",
            Phase::Tls => "TLS handshake",
        })
    }
}

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name could not be looked up.
    #[error("{host}: name lookup: {source}")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// The name is one that DNS must not see (`.onion`).
    #[error("{host}: {source}")]
    Blocked {
        /// The name.
        host: String,
        /// Why, and what to do.
        source: io::Error,
    },
    /// No address accepted a connection.
    #[error("{host}: cannot connect: {}", Attempts(attempts))]
    Tcp {
        /// Host and port.
        host: String,
        /// Each address and its error.
        attempts: Vec<(SocketAddr, io::Error)>,
    },
    /// The limit passed.
    #[error("{host}: no {phase} within {} s{}", limit.as_secs_f64(), after(attempts))]
    Timeout {
        /// Host and port.
        host: String,
        /// What was being waited for.
        phase: Phase,
        /// The limit.
        limit: Duration,
        /// Addresses that had failed before.
        attempts: Vec<(SocketAddr, io::Error)>,
    },
    /// The proxy wants to know who asks.
    #[error("proxy {proxy}: authentication required for {host} (407{})", offered(schemes))]
    ProxyAuthentication {
        /// The proxy's host and port.
        proxy: String,
        /// Host and port asked for.
        host: String,
        /// Its `Proxy-Authenticate`, if any.
        schemes: Option<String>,
    },
    /// The proxy said no.
    #[error("proxy {proxy}: no tunnel to {host}: {status} {reason}")]
    ProxyRefused {
        /// The proxy's host and port.
        proxy: String,
        /// Host and port asked for.
        host: String,
        /// Its status code.
        status: u16,
        /// Its words.
        reason: String,
    },
    /// The proxy does not speak as a proxy does.
    #[error("proxy {proxy}: {reason}")]
    ProxyAnswer {
        /// The proxy's host and port.
        proxy: String,
        /// What was wrong.
        reason: String,
    },
    /// Only HTTP/2 was offered and the server did not take it.
    #[error("{host}: server does not speak HTTP/2")]
    NoHttp2 {
        /// Host and port.
        host: String,
    },
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl ConnectError {
    /// Whether the server could not show that it is the one asked for: not worth another try.
    #[must_use]
    pub(crate) fn is_untrusted(&self) -> bool {
        matches!(self, ConnectError::Tls(error) if error.is_untrusted())
    }

    /// Whether the name may not be looked up: no other try has another end.
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        matches!(self, ConnectError::Blocked { .. })
    }

    /// Whether nobody who is trusted vouches for the server's certificate.
    #[must_use]
    pub(crate) fn is_of_unknown_issuer(&self) -> bool {
        matches!(self, ConnectError::Tls(error) if error.is_of_unknown_issuer())
    }

    /// Whether the limit passed without an end: another try would wait as long.
    #[must_use]
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, ConnectError::Timeout { .. })
    }

    /// The same in words for who knows which host was asked: it is not named again. A proxy is.
    #[must_use]
    pub(crate) fn without_host(&self, asked: &Endpoint) -> String {
        let named = |host: &str, port| [authority(host, port), host.to_owned()];
        let mut names: Vec<(String, String)> =
            named(&asked.host, asked.port).into_iter().map(|name| (name, String::new())).collect();
        if let Some(proxy) = &asked.proxy {
            let name = authority(&proxy.host, proxy.port);
            let told = format!("proxy {name}: ");
            names.extend(named(&proxy.host, proxy.port).into_iter().map(|name| (name, told.clone())));
        }
        let text = match self {
            // An address that was asked for as such is no news.
            ConnectError::Tcp { host, attempts } if matches!(&attempts[..], [(one, _)] if one.to_string() == *host) => {
                format!("{host}: cannot connect: {}", attempts[0].1)
            }
            other => other.to_string(),
        };
        for (name, told) in names {
            if let Some(rest) = text.strip_prefix(&name).and_then(|rest| rest.strip_prefix(": ")) {
                return format!("{told}{rest}");
            }
        }
        text
    }
}

struct Attempts<'a>(&'a [(SocketAddr, io::Error)]);

impl fmt::Display for Attempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (address, error)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{address}: {error}")?;
        }
        Ok(())
    }
}

fn after(attempts: &[(SocketAddr, io::Error)]) -> String {
    match attempts {
        [] => String::new(),
        _ => format!(" (also: {})", Attempts(attempts)),
    }
}

fn offered(schemes: &Option<String>) -> String {
    schemes.as_ref().map_or_else(String::new, |schemes| format!("; it offers {schemes}"))
}

/// `host:port`, with brackets around an IPv6 address.
fn authority(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Connects to `endpoint`. See the module's head.
///
/// # Errors
/// [`ConnectError`], naming the host and what it failed at.
pub async fn connect(endpoint: &Endpoint, options: &ConnectOptions) -> Result<Connected, ConnectError> {
    let deadline = Deadline {
        host: authority(&endpoint.host, endpoint.port),
        limit: options.limit,
        at: Instant::now() + options.limit,
    };
    let encrypted =
        endpoint.scheme == Scheme::Https || endpoint.proxy.as_ref().is_some_and(|proxy| proxy.scheme == Scheme::Https);
    if encrypted && !options.tls.is_loaded() {
        // Parsing the system's authorities takes milliseconds of one core: meanwhile the
        // name lookup and the TCP handshake go on. An error shows when it is asked for below.
        let tls = options.tls.clone();
        tokio::task::spawn_blocking(move || tls.config(Offer::Nothing).map(drop));
    }
    let mut timings = Timings::default();
    let mut clock = StepClock(Instant::now());

    let (host, port) = match &endpoint.proxy {
        Some(proxy) => (proxy.host.as_str(), proxy.port),
        None => (endpoint.host.as_str(), endpoint.port),
    };
    let addresses = deadline.keep(Phase::Resolve, options.resolver.lookup(host, port)).await?.map_err(|source| {
        match source.kind() {
            io::ErrorKind::Unsupported => ConnectError::Blocked { host: host.to_owned(), source },
            _ => ConnectError::Resolve { host: host.to_owned(), source },
        }
    })?;
    timings.resolve_us = clock.step_us();

    let mut attempts = Vec::new();
    let tell = |handshake| options.handshake.as_ref().map(|told| told.send_replace(handshake));
    tell(Handshake::Begun(Instant::now()));
    let racing = race(&addresses, &options.socket, options.attempt_delay, &mut attempts);
    let raced = deadline.keep(Phase::Tcp, racing).await;
    let (peer, socket) = match raced {
        Ok(Some(connected)) => connected,
        Ok(None) => {
            return Err(ConnectError::Tcp { host: authority(host, port), attempts });
        }
        Err(_) => return Err(deadline.passed(Phase::Tcp, attempts)),
    };
    timings.tcp_us = clock.step_us();
    tell(Handshake::Took(Duration::from_micros(timings.tcp_us)));
    let tcp = socket.probe();

    let mut stream = Stream::Plain(socket);
    if let Some(proxy) = &endpoint.proxy {
        if proxy.scheme == Scheme::Https {
            let tls = options.proxy_tls.as_ref().unwrap_or(&options.tls);
            let config = load_config(tls, Offer::Http1).await?;
            let handshake = TlsSocket::connect(config, &proxy.host, stream);
            let (tls, _) = deadline.keep(Phase::Proxy, handshake).await??;
            stream = Stream::Tls(Box::new(tls));
        }
        if endpoint.scheme == Scheme::Https {
            let tunnel = tunnel::open(&mut stream, proxy, &deadline.host);
            deadline.keep(Phase::Proxy, tunnel).await??;
        }
        timings.proxy_us = clock.step_us();
    }

    let absolute_form = endpoint.scheme == Scheme::Http && endpoint.proxy.is_some();
    let protocol = match (endpoint.scheme, options.offer) {
        (Scheme::Http, Offer::Http2) if !absolute_form => Protocol::Http2,
        (Scheme::Http, _) => Protocol::Http1,
        (Scheme::Https, offer) => {
            let config = load_config(&options.tls, offer).await?;
            let handshake = async {
                match options.writes_at_once {
                    true => TlsSocket::connect_to_write(config, &endpoint.host, stream).await,
                    false => TlsSocket::connect(config, &endpoint.host, stream).await,
                }
            };
            let (tls, protocol) = deadline.keep(Phase::Tls, handshake).await??;
            timings.tls_us = clock.step_us();
            if offer == Offer::Http2 && protocol != Protocol::Http2 {
                return Err(ConnectError::NoHttp2 { host: deadline.host });
            }
            stream = Stream::Tls(Box::new(tls));
            protocol
        }
    };
    Ok(Connected { stream, protocol, tcp, peer, absolute_form, timings })
}

/// The TLS configuration; where it is not there yet, waits for it without holding up other tasks.
async fn load_config(tls: &Tls, offer: Offer) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    if tls.is_loaded() {
        return tls.config(offer);
    }
    let loading = tls.clone();
    match tokio::task::spawn_blocking(move || loading.config(offer)).await {
        Ok(config) => config,
        // Only when the runtime is shutting down.
        Err(error) => Err(TlsError::Configuration { reason: error.to_string() }),
    }
}

/// The limit for all steps together.
struct Deadline {
    host: String,
    limit: Duration,
    at: Instant,
}

impl Deadline {
    async fn keep<T>(&self, phase: Phase, step: impl Future<Output = T>) -> Result<T, ConnectError> {
        timeout_at(self.at, step).await.map_err(|_| self.passed(phase, Vec::new()))
    }

    fn passed(&self, phase: Phase, attempts: Vec<(SocketAddr, io::Error)>) -> ConnectError {
        ConnectError::Timeout { host: self.host.clone(), phase, limit: self.limit, attempts }
    }
}

/// Gives the time since the step before.
struct StepClock(Instant);

impl StepClock {
    fn step_us(&mut self) -> u64 {
        let now = Instant::now();
        let step = now - std::mem::replace(&mut self.0, now);
        u64::try_from(step.as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
