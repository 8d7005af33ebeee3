//! Answers to APT: finished files, and failures with reasons.

use std::borrow::Cow;
use std::collections::BTreeMap;

use fullbore_wire::answer::is_transient;
use fullbore_wire::fetch::GetError;
use fullbore_wire::hosts::{Fault, HostId};

use super::words;
use crate::acquire::{Failure, Message, ReceivedHashes, Request, date};

/// Most hosts named in one failure. A list of mirrors may be long, and APT prints one line.
const HOSTS_NAMED: usize = 8;

/// Why a host did not send a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostError {
    /// An HTTP status.
    Status(u16),
    /// Unreachable, broken off, or silent.
    Network(String),
    /// Wrong content.
    WrongBytes,
    /// Another size than the expected one, or larger than allowed.
    WrongSize(String),
    /// A redirect to this address.
    Redirected(String),
    /// Any other error.
    Other(String),
}

impl HostError {
    /// Converts a fault of the fetcher with a file of this size.
    pub(super) fn of_fault(fault: &Fault, expected: u64) -> HostError {
        match fault {
            Fault::Missing(status) | Fault::Refused(status) => HostError::Status(*status),
            Fault::Busy { status, .. } => HostError::Status(*status),
            Fault::Elsewhere(to) => HostError::Redirected(to.clone()),
            Fault::WrongBytes => HostError::WrongBytes,
            Fault::WrongSize(why) => HostError::WrongSize(match size_in(why) {
                Some(size) => words::unexpected_size(size, expected),
                None => format!("File has unexpected size: {why}"),
            }),
            Fault::Broken(_) | Fault::Slow | Fault::Blocked(_) => HostError::Network(fault.to_string()),
            fault => HostError::Other(fault.to_string()),
        }
    }

    /// Converts an error of a whole-file request.
    pub(super) fn of_get(error: &GetError) -> HostError {
        match error {
            GetError::Unreachable { reason, .. } | GetError::Final { reason, .. } => HostError::Network(reason.clone()),
            GetError::Untrusted { reason, .. } => HostError::Other(reason.clone()),
            GetError::Denied { denial, .. } => HostError::Other(denial.why.clone()),
            GetError::TooLarge { limit_bytes, .. } => {
                // It was cut at the limit, so its size is not known.
                HostError::WrongSize(words::unexpected_size(limit_bytes.saturating_add(1), *limit_bytes))
            }
        }
    }

    /// Converts an error before the head of an answer. A connection that was closed by then counts as failed.
    pub(super) fn of_head(error: &GetError) -> HostError {
        match HostError::of_get(error) {
            HostError::Network(why) if words::is_cut(&why) => HostError::Network(words::CONNECTION_FAILED.into()),
            host_error => host_error,
        }
    }

    /// The error in APT's words, for the host of this name. `phrases` are the host's own texts for statuses.
    fn text(&self, host: &str, phrases: Option<&Phrases>) -> String {
        match self {
            HostError::Status(status) => {
                words::status(*status, phrases.and_then(|phrases| phrases.get(status)).map(String::as_str))
            }
            HostError::Redirected(to) => format!("redirects to {to}"),
            HostError::WrongBytes => words::WRONG_HASH.into(),
            HostError::Network(why) => words::network(why, host).0,
            HostError::WrongSize(why) | HostError::Other(why) => why.clone(),
        }
    }

    /// APT's `FailReason`, if one matters. None for wrong content: at `HashSumMismatch` APT would print its own hashes,
    /// of nothing, instead of this message.
    fn reason(&self) -> Option<Cow<'static, str>> {
        match self {
            HostError::Status(status) => Some(format!("HttpError{status}").into()),
            HostError::WrongSize(_) => Some("MaximumSizeExceeded".into()),
            HostError::Network(why) => words::network(why, "").1.map(Cow::from),
            _ => None,
        }
    }

    /// Whether the error may pass: APT then keeps its file and may try again.
    fn is_transient(&self) -> bool {
        match self {
            HostError::Network(why) => !words::is_final(why),
            HostError::Status(status) => is_transient(*status),
            _ => false,
        }
    }

    /// The rank among several errors: wrong content first, then errors that may pass, then final ones.
    fn weight(&self) -> u8 {
        match self {
            HostError::WrongBytes => 0,
            HostError::WrongSize(_) => 1,
            host_error if host_error.is_transient() => 2,
            HostError::Other(_) | HostError::Redirected(_) => 3,
            HostError::Status(_) => 4,
            HostError::Network(_) => 2,
        }
    }
}

/// The size that a server said a file has, in a fault of the fetcher.
fn size_in(why: &str) -> Option<u64> {
    why.strip_prefix("file has ")?.split(' ').next()?.parse().ok()
}

/// A host's own texts for HTTP statuses.
pub(super) type Phrases = BTreeMap<u16, String>;

/// A failure with the error of each host, in the words of these hosts. With `origin_decides`, a final status of the
/// host that APT named decides. APT then takes `Release` instead of a missing `InRelease`, and does not wait for a
/// mirror that is down.
pub(super) fn failure(
    names: &[String],
    phrases: &[Phrases],
    host_errors: &[(HostId, HostError)],
    origin_decides: bool,
) -> Failure {
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
            let text = host_error.text(name, phrases.get(usize::from(*host)));
            // APT names a single host by itself.
            if names.len() > 1 { format!("{name}: {text}") } else { text }
        })
        .collect();
    if host_errors.len() > HOSTS_NAMED {
        told.push(format!("and {} more", host_errors.len() - HOSTS_NAMED));
    }
    Failure { message: told.join("; "), reason: main.reason(), transient: main.is_transient() }
}

/// A finished file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finished {
    /// Time of last change at the mirror, Unix seconds.
    pub modified: Option<i64>,
    /// Its hashes, for APT to compare.
    pub hashes: ReceivedHashes,
    /// Bytes that an earlier run had received.
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
    let size = file.hashes.size;
    let message = with_some(request.done(), "Size", (size > 0).then_some(size));
    let message = with_some(message, "Last-Modified", file.modified.and_then(date));
    let message = file.hashes.add_to(message);
    with_some(message, "Resume-Point", (file.resumed > 0).then_some(file.resumed))
}

/// `201 URI Done` for an unchanged file.
pub(super) fn unchanged(request: &Request, modified: Option<i64>) -> Message {
    with_some(request.done(), "Last-Modified", modified.and_then(date)).with("IMS-Hit", "true")
}

fn with_some(message: Message, name: &str, value: Option<impl ToString>) -> Message {
    match value {
        Some(value) => message.with(name, value),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use fullbore_wire::answer::{Answer, judge};
    use fullbore_wire::http1::{BodyLength, Event, Http1, Limits, RequestHead};
    use fullbore_wire::queue::Segment;

    use super::*;

    fn names() -> Vec<String> {
        vec!["a.example".into(), "b.example".into()]
    }

    #[test]
    fn every_host_is_named_with_its_reason() {
        let missing = (0, HostError::Status(404));
        let broken = (1, HostError::Network("connection refused".into()));
        let failure = |names: &[String], host_errors: &[(HostId, HostError)]| failure(names, &[], host_errors, false);
        let both = failure(&names(), &[missing.clone(), broken]);
        let refused = "b.example: Could not connect to b.example: connection refused";
        assert_eq!(both.message, format!("a.example: 404  Not Found; {refused}"));
        let alone = failure(&names()[..1], std::slice::from_ref(&missing));
        assert_eq!(alone.message, "404  Not Found", "APT names its only host itself");
        assert_eq!(
            (both.reason.as_deref(), both.transient),
            (Some("ConnectionRefused"), true),
            "it may come from there later"
        );
        let one = failure(&names(), std::slice::from_ref(&missing));
        assert_eq!((one.reason.as_deref(), one.transient), (Some("HttpError404"), false));
        let wrong = failure(&names(), &[missing, (1, HostError::of_fault(&Fault::WrongBytes, 7))]);
        assert_eq!((wrong.reason.as_deref(), wrong.transient), (None, false));
        let many: Vec<_> = (0..20).map(|host| (host, HostError::Status(404))).collect();
        assert!(failure(&names(), &many).message.ends_with("; and 12 more"));
        assert_eq!(failure(&names(), &[]).message, "no mirror could be asked");
    }

    #[test]
    fn the_size_that_a_server_says_is_in_apts_words() {
        for (start, text) in [
            (0, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"),
            (3, "HTTP/1.1 416 No\r\nContent-Range: bytes */9\r\n\r\n"),
        ] {
            let segment = Segment { item: 0, start, end: 7, size: 7 };
            let mut client = Http1::new(Limits::default());
            client.request(&RequestHead::get("h", "/a"), 1, BodyLength::None).unwrap();
            let Some(Event::Head { head, .. }) = client.receive(&mut text.into()).unwrap() else { panic!("a head") };
            let Answer::Fault(fault) = judge(&head, "a", &segment, 0) else { panic!("it is another file") };
            let told = failure(&names()[..1], &[], &[(0, HostError::of_fault(&fault, 7))], false);
            assert_eq!(told.message, "File has unexpected size (9 != 7). Mirror sync in progress?");
            assert_eq!(told.reason.as_deref(), Some("MaximumSizeExceeded"));
        }
    }

    #[test]
    fn a_dead_mirror_does_not_hide_a_missing_inrelease_at_the_origin() {
        let missing = HostError::Status(404);
        let broken = HostError::Network("connection refused".into());
        let told = failure(&names(), &[], &[(0, missing.clone()), (1, broken.clone())], true);
        assert_eq!((told.reason.as_deref(), told.transient), (Some("HttpError404"), false));
        let told = failure(&names(), &[], &[(0, broken), (1, missing.clone())], true);
        assert!(told.transient, "the origin may have it");
        let told = failure(&names(), &[], &[(0, HostError::Status(503)), (1, missing)], true);
        assert!(told.transient, "so it may here");
    }
}
