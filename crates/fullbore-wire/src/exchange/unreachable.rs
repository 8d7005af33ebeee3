//! Why a server is given up.

use crate::connect::{ConnectError, Endpoint};

/// A server to which there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    /// What happened. The host is not named.
    pub reason: String,
    /// Kind of the failure: which step of reaching the server failed.
    pub cause: Cause,
}

/// Why a server cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// There is no answer, or connections break.
    Silence,
    /// No trusted authority vouches for its certificate.
    UnknownIssuer,
    /// Its certificate is not valid for this host and this day.
    WrongCertificate,
    /// Its name must not be looked up.
    Name,
}

impl Cause {
    /// Whether another attempt would have the same end.
    pub(super) fn is_final(self) -> bool {
        self != Cause::Silence
    }
}

impl Unreachable {
    pub(super) fn new(endpoint: &Endpoint, error: &ConnectError) -> Unreachable {
        let cause = match error {
            error if error.is_blocked() => Cause::Name,
            error if error.is_of_unknown_issuer() => Cause::UnknownIssuer,
            error if error.is_untrusted() => Cause::WrongCertificate,
            _ => Cause::Silence,
        };
        Unreachable { reason: error.without_host(endpoint), cause }
    }
}
