//! Opens connections to endpoints, ready for requests.
//!
//! [`connect`] looks the name up, races its addresses, passes a proxy if there is one, and does the TLS handshake. It
//! returns the negotiated protocol, the duration of each step, and a probe for the connection's counters. One time
//! limit covers all steps.

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

/// Time limit for a whole connection, with name lookup and handshake. apt waits 30 s and curl 300 s. With other mirrors
/// at hand, a host that needs 10 s is not worth the wait (a guess).
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A server, and the proxy on the way to it.
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
    /// Protocol to the proxy itself; with `Https`, everything sent to it is encrypted.
    pub scheme: Scheme,
    /// Name or address of the proxy.
    pub host: String,
    /// TCP port of the proxy, 1 to 65535.
    pub port: u16,
    /// Value of `Proxy-Authorization`, e.g. `Basic …`. It is sent here for a tunnel only; with plain http the request
    /// itself carries it.
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

/// State of the TCP handshake of a connection. It takes about one round trip, and ends before TLS begins. While it
/// lasts, its age is a lower bound of the path's round trip.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Handshake {
    /// The name is being looked up, or no connection is being opened.
    #[default]
    NotBegun,
    /// The first packet was sent at this time.
    Begun(Instant),
    /// The handshake took this time.
    Took(Duration),
}

/// How to connect. Clones share the TLS session cache.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Which certificates the client accepts.
    pub tls: Tls,
    /// TLS settings for an https proxy; `None` for those of `tls`.
    pub proxy_tls: Option<Tls>,
    /// Which protocols the client offers by ALPN (RFC 7301).
    pub offer: Offer,
    /// Resolver for names of servers and proxies.
    pub resolver: Arc<Resolver>,
    /// Socket options, such as congestion control and buffer sizes.
    pub socket: SocketOptions,
    /// Time limit for the whole of [`connect`].
    pub limit: Duration,
    /// Time between the first attempts to connect to two addresses of a host.
    pub attempt_delay: Duration,
    /// Receives the state of the TCP handshake.
    pub handshake: Option<watch::Sender<Handshake>>,
    /// The caller writes a request, or waits for an answer, as soon as the connection is open. The end of the TLS
    /// handshake then goes out together with it (`TlsSocket::connect_to_write`).
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
    /// Probe for the counters of the TCP connection (to the proxy, if there is one).
    pub tcp: TcpProbe,
    /// Address of the server or proxy that accepted the connection.
    pub peer: SocketAddr,
    /// Whether requests must use the absolute form (RFC 9112, section 3.2.2): plain http through a proxy.
    pub absolute_form: bool,
    /// Duration of each step of the connection.
    pub timings: Timings,
}

/// Durations of the steps of a connection, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Time of the name lookup, in microseconds.
    pub resolve_us: u64,
    /// Time of the TCP handshake, lost attempts included: about one round trip, to the proxy if there is one.
    pub tcp_us: u64,
    /// Time at the proxy: its own TLS handshake, and its answer to CONNECT.
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

/// Steps of opening a connection, for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Looking up the name.
    Resolve,
    /// The TCP handshake.
    Tcp,
    /// Requesting a tunnel from the proxy.
    Proxy,
    /// The TLS handshake.
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
        /// Name of the host.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// DNS must not be asked for the name (`.onion`).
    #[error("{host}: {source}")]
    Blocked {
        /// Name of the host.
        host: String,
        /// The reason, and advice.
        source: io::Error,
    },
    /// No address accepted a connection.
    #[error("{host}: cannot connect: {}", Attempts(attempts))]
    Tcp {
        /// Host and port of the server.
        host: String,
        /// Each address tried, with its error.
        attempts: Vec<(SocketAddr, io::Error)>,
    },
    /// The time limit passed.
    #[error("{host}: no {phase} within {} s{}", limit.as_secs_f64(), after(attempts))]
    Timeout {
        /// Host and port of the server.
        host: String,
        /// The step that was not finished.
        phase: Phase,
        /// The time limit.
        limit: Duration,
        /// Addresses that had failed before, with their errors.
        attempts: Vec<(SocketAddr, io::Error)>,
    },
    /// The proxy requires authentication (407).
    #[error("proxy {proxy}: authentication required for {host} (407{})", offered(schemes))]
    ProxyAuthentication {
        /// Host and port of the proxy.
        proxy: String,
        /// Host and port of the server.
        host: String,
        /// The proxy's `Proxy-Authenticate` field, if any.
        schemes: Option<String>,
    },
    /// The proxy refused the tunnel.
    #[error("proxy {proxy}: no tunnel to {host}: {status} {reason}")]
    ProxyRefused {
        /// Host and port of the proxy.
        proxy: String,
        /// Host and port of the server.
        host: String,
        /// Status of the proxy's answer.
        status: u16,
        /// Reason phrase of the proxy's answer.
        reason: String,
    },
    /// The proxy's answer is not valid for a proxy.
    #[error("proxy {proxy}: {reason}")]
    ProxyAnswer {
        /// Host and port of the proxy.
        proxy: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// Only HTTP/2 was offered, and the server did not accept it.
    #[error("{host}: server does not speak HTTP/2")]
    NoHttp2 {
        /// Host and port of the server.
        host: String,
    },
    /// The TLS handshake failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl ConnectError {
    /// Whether the server's identity could not be verified: another try is of no use.
    #[must_use]
    pub(crate) fn is_untrusted(&self) -> bool {
        matches!(self, ConnectError::Tls(error) if error.is_untrusted())
    }

    /// Whether the name must not be looked up: another try has the same result.
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        matches!(self, ConnectError::Blocked { .. })
    }

    /// Whether no trusted authority issued the server's certificate.
    #[must_use]
    pub(crate) fn is_of_unknown_issuer(&self) -> bool {
        matches!(self, ConnectError::Tls(error) if error.is_of_unknown_issuer())
    }

    /// Whether the time limit passed: another try would wait as long.
    #[must_use]
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, ConnectError::Timeout { .. })
    }

    /// Formats the error without the host name, for a caller that has named it already. A proxy is named.
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
            // An address that the user gave as such need not be repeated.
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

/// Formats `host:port`, with brackets around an IPv6 address.
fn authority(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Opens a connection to `endpoint`; see the module's documentation.
///
/// # Errors
/// A [`ConnectError`] that names the host and the failed step.
pub async fn connect(endpoint: &Endpoint, options: &ConnectOptions) -> Result<Connected, ConnectError> {
    let deadline = Deadline {
        host: authority(&endpoint.host, endpoint.port),
        limit: options.limit,
        at: Instant::now() + options.limit,
    };
    let encrypted =
        endpoint.scheme == Scheme::Https || endpoint.proxy.as_ref().is_some_and(|proxy| proxy.scheme == Scheme::Https);
    if encrypted && !options.tls.is_loaded() {
        // Parsing the system's authorities takes milliseconds of one core. Meanwhile the name lookup and the TCP
        // handshake go on. An error shows when the result is awaited below.
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

/// Returns the TLS configuration. If it is not ready yet, waits for it without blocking other tasks.
async fn load_config(tls: &Tls, offer: Offer) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    if tls.is_loaded() {
        return tls.config(offer);
    }
    let loading = tls.clone();
    match tokio::task::spawn_blocking(move || loading.config(offer)).await {
        Ok(config) => config,
        // Only while the runtime is shutting down.
        Err(error) => Err(TlsError::Configuration { reason: error.to_string() }),
    }
}

/// Time limit for all steps together.
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

/// Returns the time since the previous step.
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
