//! Answers to APT: finished files, and failures with reasons.

use std::borrow::Cow;

use fullbore_engine::digest::Sha256;
use fullbore_wire::answer::is_transient;
use fullbore_wire::conditional::http_date;
use fullbore_wire::fetch::GetError;
use fullbore_wire::hosts::{Fault, HostId};

use crate::acquire::{Failure, Message, Request};

/// Hosts named in one failure; a list of mirrors may be long, and APT prints one line.
const HOSTS_NAMED: usize = 8;

/// APT's wording, for programs that look for it.
pub(super) const WRONG_HASH: &str = "Hash Sum mismatch";
/// APT's wording for another length.
const WRONG_SIZE: &str = "File has unexpected size";

/// Why a host did not send a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostError {
    /// An HTTP status.
    Status(u16),
    /// Unreachable, broken off, or silent.
    Network(String),
    /// Wrong content.
    WrongBytes(String),
    /// Larger than allowed.
    TooLarge(String),
    /// A redirect to this address.
    Redirected(String),
    /// Anything else.
    Other(String),
}

impl HostError {
    /// From a fault of the fetcher.
    pub fn of_fault(fault: &Fault) -> HostError {
        match fault {
            Fault::Missing(status) | Fault::Refused(status) => HostError::Status(*status),
            Fault::Busy { status, .. } => HostError::Status(*status),
            Fault::Elsewhere(to) => HostError::Redirected(to.clone()),
            Fault::WrongBytes => HostError::WrongBytes(WRONG_HASH.into()),
            Fault::WrongSize(why) => HostError::WrongBytes(format!("{WRONG_SIZE}: {why}")),
            Fault::Broken(_) | Fault::Slow => HostError::Network(fault.to_string()),
            fault => HostError::Other(fault.to_string()),
        }
    }

    /// From an error of a whole-file request.
    pub fn of_get(error: &GetError) -> HostError {
        match error {
            GetError::Unreachable { reason, .. } | GetError::Final { reason, .. } => HostError::Network(reason.clone()),
            GetError::Untrusted { reason, .. } => HostError::Other(reason.clone()),
            GetError::TooLarge { limit_bytes, .. } => {
                HostError::TooLarge(format!("sent more than the allowed {limit_bytes} bytes"))
            }
        }
    }

    fn text(&self) -> String {
        match self {
            HostError::Status(404) => "404 Not Found".into(),
            HostError::Status(401 | 407) => "asks for credentials (see auth.conf)".into(),
            HostError::Status(511) => "511, the login page of a captive portal: log in to the network".into(),
            HostError::Status(status) => format!("answered {status}"),
            HostError::Redirected(to) => format!("redirects to {to}"),
            HostError::Network(why) | HostError::WrongBytes(why) | HostError::TooLarge(why) | HostError::Other(why) => {
                why.clone()
            }
        }
    }

    /// APT's `FailReason`, if one matters. None for wrong content: at `HashSumMismatch` APT would print its own hashes, of
    /// nothing, instead of this message.
    fn reason(&self) -> Option<Cow<'static, str>> {
        match self {
            HostError::Status(status) => Some(format!("HttpError{status}").into()),
            HostError::TooLarge(_) => Some("MaximumSizeExceeded".into()),
            HostError::Network(why) => network_reason(why).map(Cow::from),
            _ => None,
        }
    }

    /// Whether the error may pass: APT then keeps its file and may try again.
    fn is_transient(&self) -> bool {
        match self {
            HostError::Network(_) => true,
            HostError::Status(status) => is_transient(*status),
            _ => false,
        }
    }

    /// The rank among several errors: wrong content first, then errors that may pass, then final ones.
    fn weight(&self) -> u8 {
        match self {
            HostError::WrongBytes(_) => 0,
            HostError::TooLarge(_) => 1,
            host_error if host_error.is_transient() => 2,
            HostError::Other(_) | HostError::Redirected(_) => 3,
            HostError::Status(_) => 4,
            HostError::Network(_) => 2,
        }
    }
}

/// APT's `FailReason` for a connection error; there is none for a broken connection.
fn network_reason(why: &str) -> Option<&'static str> {
    let any = |words: &[&str]| words.iter().any(|word| why.contains(word));
    // Messages of glibc and musl.
    if any(&["lookup"]) {
        let is_unknown = any(&["Name or service not known", "Name does not resolve", "No address associated"]);
        Some(if is_unknown { "ResolveFailure" } else { "TmpResolveFailure" })
    } else if any(&["refused"]) {
        Some("ConnectionRefused")
    } else if any(&["Connection timed out"]) {
        Some("ConnectionTimedOut")
    } else {
        any(&["within", "nothing for", "too slow"]).then_some("Timeout")
    }
}

/// A failure that names each host with its error. With `origin_decides`, a final status of the host that APT named
/// decides: APT then takes `Release` instead of a missing `InRelease`, and does not wait for a mirror that is down.
pub(super) fn failure(names: &[String], host_errors: &[(HostId, HostError)], origin_decides: bool) -> Failure {
    let is_final = |host_error: &HostError| matches!(host_error, HostError::Status(_)) && !host_error.is_transient();
    let origin = host_errors.iter().find(|(host, host_error)| origin_decides && *host == 0 && is_final(host_error));
    let Some((_, main)) = origin.or_else(|| host_errors.iter().min_by_key(|(_, host_error)| host_error.weight()))
    else {
        return Failure::new("no mirror could be asked");
    };
    let mut told: Vec<String> = host_errors
        .iter()
        .take(HOSTS_NAMED)
        .map(|(host, host_error)| {
            let name = names.get(usize::from(*host)).map_or("?", String::as_str);
            format!("{name}: {}", host_error.text())
        })
        .collect();
    if host_errors.len() > HOSTS_NAMED {
        told.push(format!("and {} more", host_errors.len() - HOSTS_NAMED));
    }
    Failure { message: told.join("; "), reason: main.reason(), transient: main.is_transient() }
}

/// A finished file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Finished {
    /// Size in bytes.
    pub size: u64,
    /// Time of last change at the mirror, Unix seconds.
    pub modified: Option<i64>,
    /// SHA-256.
    pub sha256: Sha256,
    /// Bytes from an earlier run.
    pub resumed: u64,
}

/// `200 URI Start`.
pub(super) fn started(request: &Request, size: Option<u64>, resumed: u64) -> Message {
    let message = request.started();
    let message = with_some(message, "Size", size);
    with_some(message, "Resume-Point", (resumed > 0).then_some(resumed))
}

/// `201 URI Done`.
pub(super) fn done(request: &Request, file: &Finished) -> Message {
    let message = with_some(request.done(), "Size", (file.size > 0).then_some(file.size));
    let message = with_some(message, "Last-Modified", file.modified.and_then(http_date));
    let message = message.with("SHA256-Hash", file.sha256).with("Checksum-FileSize-Hash", file.size);
    with_some(message, "Resume-Point", (file.resumed > 0).then_some(file.resumed))
}

/// `201 URI Done` for an unchanged file.
pub(super) fn unchanged(request: &Request, modified: Option<i64>) -> Message {
    with_some(request.done(), "Last-Modified", modified.and_then(http_date)).with("IMS-Hit", "true")
}

fn with_some(message: Message, name: &str, value: Option<impl ToString>) -> Message {
    match value {
        Some(value) => message.with(name, value),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["a.example".into(), "b.example".into()]
    }

    #[test]
    fn every_host_is_named_with_its_reason() {
        let missing = (0, HostError::Status(404));
        let broken = (1, HostError::Network("connection refused".into()));
        let failure = |names: &[String], host_errors: &[(HostId, HostError)]| failure(names, host_errors, false);
        let both = failure(&names(), &[missing.clone(), broken]);
        assert_eq!(both.message, "a.example: 404 Not Found; b.example: connection refused");
        assert_eq!(
            (both.reason.as_deref(), both.transient),
            (Some("ConnectionRefused"), true),
            "it may come from there later"
        );
        let one = failure(&names(), std::slice::from_ref(&missing));
        assert_eq!((one.reason.as_deref(), one.transient), (Some("HttpError404"), false));
        let wrong = failure(&names(), &[missing, (1, HostError::of_fault(&Fault::WrongBytes))]);
        assert_eq!((wrong.reason.as_deref(), wrong.transient), (None, false));
        let many: Vec<_> = (0..20).map(|host| (host, HostError::Status(404))).collect();
        assert!(failure(&names(), &many).message.ends_with("; and 12 more"));
        assert_eq!(failure(&names(), &[]).message, "no mirror could be asked");
    }

    #[test]
    fn that_the_origin_has_no_inrelease_is_not_hidden_by_a_mirror_that_is_down() {
        let missing = HostError::Status(404);
        let broken = HostError::Network("connection refused".into());
        let told = failure(&names(), &[(0, missing.clone()), (1, broken.clone())], true);
        assert_eq!((told.reason.as_deref(), told.transient), (Some("HttpError404"), false));
        let told = failure(&names(), &[(0, broken), (1, missing.clone())], true);
        assert!(told.transient, "the origin may have it");
        let told = failure(&names(), &[(0, HostError::Status(503)), (1, missing)], true);
        assert!(told.transient, "so it may here");
    }
}
