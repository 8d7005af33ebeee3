//! A request of APT (`600 URI Acquire`) and the answers to it.
//!
//! APT finds the item of an answer by its URI, byte for byte. So answers are made here, from the request.

use std::borrow::Cow;
use std::path::PathBuf;

use fullbore_engine::digest::Sha256;
use fullbore_wire::conditional::http_date;

use super::message::{Message, percent_decode};

/// A file that APT asks for. Fields that only one method uses are read from `message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The URI as APT sent it, %-encoded if the method's capabilities say so. May be empty.
    pub uri: String,
    /// The path to write the file to.
    pub filename: PathBuf,
    /// The whole message, with the fields that only one method uses.
    pub message: Message,
}

impl Request {
    /// Takes the fields of a message with code 600. Missing fields become empty.
    pub fn new(message: Message) -> Request {
        Request {
            uri: message.get("URI").unwrap_or_default().to_owned(),
            filename: PathBuf::from(message.get("Filename").unwrap_or_default()),
            message,
        }
    }

    /// The path in the URI, decoded: for `rred:/var/a%20b` it is `/var/a b`.
    pub fn path(&self) -> PathBuf {
        let rest = self.uri.split_once(':').map_or(self.uri.as_str(), |(_, rest)| rest);
        PathBuf::from(percent_decode(rest))
    }

    /// The SHA-256 that the file must have; `None` if APT expects none or it is malformed.
    pub fn expected_sha256(&self) -> Option<Sha256> {
        self.message.get("Expected-SHA256").and_then(|text| text.parse().ok())
    }

    /// The size that the file must have in bytes; `None` if APT does not know it.
    pub fn expected_size(&self) -> Option<u64> {
        self.message.get("Expected-Checksum-FileSize").and_then(|text| text.parse().ok())
    }

    /// `200 URI Start`, to which size and time may be added.
    pub fn started(&self) -> Message {
        Message::new(200, "URI Start").with("URI", &self.uri)
    }

    /// `201 URI Done` with the file that APT asked for, to which size, time and hashes are added.
    pub fn done(&self) -> Message {
        Message::new(201, "URI Done").with("URI", &self.uri).with("Filename", self.filename.display())
    }

    /// `103 Redirect`: tells APT to request that address instead, perhaps from another method.
    pub fn redirected(&self, to: &str) -> Message {
        Message::new(103, "Redirect").with("URI", &self.uri).with("New-URI", to)
    }

    /// `400 URI Failure`. APT tries another way to get the item, or gives it up.
    pub fn failed(&self, failure: &Failure) -> Message {
        let message = Message::new(400, "URI Failure");
        // In the order of apt's own methods, as programs that read apt's log search for one field and then for the
        // other.
        let message = match &failure.reason {
            Some(reason) => message.with("FailReason", reason),
            None => message,
        };
        let message = message.with("URI", &self.uri).with("Message", failure.one_line());
        if failure.transient { message.with("Transient-Failure", "true") } else { message }
    }
}

/// Why a request was not fulfilled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    /// The message for the user of APT.
    pub message: String,
    /// APT's word for the reason (`HttpError404`, `Timeout`, `ConnectionRefused`, `MaximumSizeExceeded`,
    /// `HashSumMismatch` …). Some of them decide what APT does next.
    pub reason: Option<Cow<'static, str>>,
    /// Whether a retry may succeed; APT then keeps the old index without an error.
    pub transient: bool,
}

impl Failure {
    /// A failure that a retry would not change.
    pub fn new(message: impl ToString) -> Failure {
        Failure { message: message.to_string(), reason: None, transient: false }
    }

    /// Keeps repeated blanks, as APT's own texts have them.
    fn one_line(&self) -> String {
        self.message.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// `Mon, 16 Jun 2025 09:06:40 +0000`, as APT's methods write times; `None` for times that HTTP has no form for.
pub(crate) fn date(unix_s: i64) -> Option<String> {
    http_date(unix_s).map(|date| date.replace("GMT", "+0000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_name_the_uri_as_it_was_sent() {
        let message = Message::new(600, "URI Acquire")
            .with("URI", "rred:/l/a%20b")
            .with("Filename", "/l/c")
            .with("Expected-SHA256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
            .with("Expected-Checksum-FileSize", 12);
        let request = Request::new(message);
        assert_eq!(request.path(), PathBuf::from("/l/a b"));
        assert_eq!((request.expected_sha256(), request.expected_size()), (Some(Sha256::EMPTY), Some(12)));
        assert_eq!(request.started().get("URI"), Some("rred:/l/a%20b"));
        assert_eq!(request.done().get("Filename"), Some("/l/c"));
        let failed =
            request.failed(&Failure { transient: true, reason: Some("Timeout".into()), ..Failure::new("a\nb") });
        assert_eq!(failed.get("Message"), Some("a b"));
        assert_eq!(request.failed(&Failure::new("404  x")).get("Message"), Some("404  x"));
        assert_eq!(date(1_750_064_800).as_deref(), Some("Mon, 16 Jun 2025 09:06:40 +0000"));
        assert_eq!((failed.get("FailReason"), failed.get("Transient-Failure")), (Some("Timeout"), Some("true")));
        let empty = Request::new(Message::new(600, "URI Acquire"));
        assert_eq!((empty.path(), empty.expected_sha256()), (PathBuf::new(), None));
    }
}
