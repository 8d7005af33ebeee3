//! What the person at the terminal can do about a host that cannot be spoken to.

/// Hint for a mirror that does not answer.
pub const REACH: &str =
    "check the address and the network; a proxy is named by http_proxy and https_proxy in the environment";
/// Nobody who is trusted vouches for the host.
pub const TRUST: &str =
    "a certificate authority of your own, or the server's own certificate, is named with --cacert FILE";
/// The certificate is not one for this host and this day, whoever signed it.
pub const CERTIFICATE: &str = "the server needs another certificate, or the address another name; check the clock";
