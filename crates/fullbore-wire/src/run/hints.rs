//! Hints for a user whose host cannot be reached or trusted.

/// Hint for a mirror that does not answer.
pub const REACH: &str =
    "check the address and the network; a proxy is named by http_proxy and https_proxy in the environment";
/// Hint for a certificate that no trusted authority issued.
pub const TRUST: &str =
    "a certificate authority of your own, or the server's own certificate, is named with --cacert FILE";
/// Hint for a certificate that is not valid for this host or this day, whoever issued it.
pub const CERTIFICATE: &str = "the server needs another certificate, or the address another name; check the clock";
