//! Why a server was given up.

use crate::connect::{ConnectError, Endpoint};

/// A server that was given up, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    /// Description of the failure, without the name of the host.
    pub reason: String,
    /// Kind of the failure.
    pub cause: Cause,
}

/// Kinds of failures to reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It does not answer, or connections break.
    Silence,
    /// No trusted authority issued its certificate.
    UnknownIssuer,
    /// Its certificate is not valid for this host or this day.
    WrongCertificate,
    /// Its name must not be looked up.
    Name,
}

impl Cause {
    /// Whether another attempt would have the same result.
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
