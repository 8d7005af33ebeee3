//! The method's messages to APT, in APT's words.
//!
//! These texts are part of the protocol: programs that run apt search for them, and apt's own integration tests compare
//! them. So they are those of apt's own method (`basehttp.cc`, `http.cc`, `connect.cc`, `netrc.cc`), and all of them
//! are here. For situations that apt's method does not know, such as several mirrors, other modules have plain words.

use std::path::Path;

/// The bytes differ from those that APT expects, if APT does not report that itself.
pub(super) const WRONG_HASH: &str = "Hash Sum mismatch";

/// The server closed the connection instead of answering.
pub(super) const CONNECTION_FAILED: &str = "Connection failed";

/// Nothing arrived within `Timeout`.
pub(super) const TIMED_OUT: &str = "Connection timed out";

/// The same during the TLS handshake. The number is EAGAIN on Linux.
const TLS_TIMED_OUT: &str = "Could not wait for server fd - select (11: Resource temporarily unavailable)";

/// The connection ended within a file.
const BROKEN_OFF: &str = "Error reading from server. Remote end closed connection";

/// A name that DNS must not see.
const ONION: &str = "Direct connection to .onion domains is blocked by default. If you meant to use Tor remember to use \
                     tor+http instead of http.";

/// A redirect to the address that was requested.
pub(super) const REDIRECTION_LOOP: &str = "Redirection loop encountered";

/// A redirect with line ends, with which a server could inject messages to APT (CVE-2019-3462).
pub(super) const CONTROL_CHARACTERS: &str = "SECURITY: URL redirect target contains control characters, rejecting.";

/// The file has another size than expected.
pub(super) fn unexpected_size(size: u64, expected: u64) -> String {
    format!("File has unexpected size ({size} != {expected}). Mirror sync in progress?")
}

/// An HTTP status with the server's own text or, if it has none, that of HTTP. APT separates number and text by a
/// blank, and keeps the server's blank before the text.
pub(super) fn status(status: u16, own: Option<&str>) -> String {
    format!("{status}  {}", own.unwrap_or_else(|| reason_phrase(status)))
}

/// A redirect that APT may not follow.
pub(super) fn forbidden_redirect(method: &str, to: &str) -> String {
    format!("Redirection from {method} to '{to}' is forbidden")
}

/// A redirect to an address such as `tor+http://…`, which only the user may choose.
pub(super) fn chosen_method(access: &str) -> String {
    format!("Server tried to trick us into using a specific implementation: {access}")
}

/// The proxy is of an unknown kind.
pub(super) fn unsupported_proxy(proxy: &str) -> String {
    format!("Unsupported proxy configured: {proxy}")
}

/// Credentials are not sent, because no setting allows to send them unencrypted.
pub(super) fn unencrypted(file: &Path, machine: &str, method: &str) -> String {
    let file = file.display();
    format!(
        "{file}: Credentials for {machine} match, but the protocol is not encrypted. Annotate with {method}:// to use."
    )
}

/// The line of `Debug::Acquire::http` about an answer whose status line has only a number.
pub(super) fn no_reason_phrase(status: &str) -> String {
    format!("HTTP server doesn't give Reason-Phrase for {status}")
}

/// The line of `Debug::Acquire::http` before the head of an answer.
pub(super) fn answer_for(uri: &str) -> String {
    format!("Answer for: {uri}")
}

/// Errors of connections: parts of this program's own text; APT's words; whether the own text, which has the address,
/// is appended; APT's `FailReason`.
type NetworkError = (&'static [&'static str], &'static str, bool, Option<&'static str>);

/// The first match counts. Lookup errors are those of glibc and musl.
const NETWORK: [NetworkError; 13] = [
    (&[".onion"], ONION, false, None),
    (&["Name or service not known"], "Could not resolve '{host}'", false, Some("ResolveFailure")),
    (&["Name does not resolve"], "Could not resolve '{host}'", false, Some("ResolveFailure")),
    (&["No address associated"], "Could not resolve '{host}'", false, Some("ResolveFailure")),
    (&["lookup"], "Temporary failure resolving '{host}'", false, Some("TmpResolveFailure")),
    (&["refused", "proxy"], "Could not connect to the proxy", true, Some("ConnectionRefused")),
    (&["refused"], "Could not connect to {host}", true, Some("ConnectionRefused")),
    (&["Connection timed out"], "Could not connect to {host}", true, Some("ConnectionTimedOut")),
    (&["no TLS handshake within"], TLS_TIMED_OUT, false, Some("Timeout")),
    (&["within"], TIMED_OUT, false, Some("Timeout")),
    (&["nothing for"], TIMED_OUT, false, Some("Timeout")),
    (&["too slow"], TIMED_OUT, false, Some("Timeout")),
    (&["closed without an answer"], CONNECTION_FAILED, false, None),
];

/// An error of a connection to `host`: APT's words, and its `FailReason`.
pub(super) fn network(why: &str, host: &str) -> (String, Option<&'static str>) {
    let fits = |(parts, ..): &&NetworkError| parts.iter().all(|part| why.contains(part));
    if let Some((_, words, adds_own, reason)) = NETWORK.iter().find(fits) {
        let words = words.replace("{host}", host);
        let text = if *adds_own { format!("{words}: {why}") } else { words };
        return (text, *reason);
    }
    (if is_cut(why) { BROKEN_OFF.to_owned() } else { why.to_owned() }, None)
}

/// Whether the server closed a connection during a request.
pub(super) fn is_cut(why: &str) -> bool {
    ["connection lost", "connection closed inside", "reset by peer"].iter().any(|part| why.contains(part))
}

/// Whether a retry would fail the same way.
pub(super) fn is_final(why: &str) -> bool {
    why.contains(".onion")
}

/// The reason phrases of HTTP (RFC 9110, section 15; RFC 6585), for HTTP/2, which has none.
fn reason_phrase(status: u16) -> &'static str {
    match status {
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        511 => "Network Authentication Required",
        _ => "Unknown HTTP code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_connections_have_apts_words_and_reasons() {
        for (own, words, reason) in [
            ("name lookup: Name or service not known", "Could not resolve 'h:80'", Some("ResolveFailure")),
            ("name lookup: Try again", "Temporary failure resolving 'h:80'", Some("TmpResolveFailure")),
            (
                "cannot connect: Connection refused (os error 111)",
                "Could not connect to h:80: cannot connect: Connection refused (os error 111)",
                Some("ConnectionRefused"),
            ),
            ("no TLS handshake within 1 s", TLS_TIMED_OUT, Some("Timeout")),
            ("no answer within 30 s", "Connection timed out", Some("Timeout")),
            ("too slow", "Connection timed out", Some("Timeout")),
            ("closed without an answer", "Connection failed", None),
            ("connection closed inside a body, 7 B missing", BROKEN_OFF, None),
            ("TLS handshake: unexpected message", "TLS handshake: unexpected message", None),
        ] {
            assert_eq!(network(own, "h:80"), (words.to_owned(), reason), "{own}");
        }
    }

    #[test]
    fn statuses_have_two_blanks() {
        assert_eq!(status(404, None), "404  Not Found");
        assert_eq!(status(404, Some("Never heard of it")), "404  Never heard of it");
        assert_eq!(status(404, Some("")), "404  ", "as apt writes what a server without words says");
        assert_eq!(status(599, None), "599  Unknown HTTP code");
    }
}
