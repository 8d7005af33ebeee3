//! What is asked of a store, what it answers, and why there may be no answer.

use fullbore_engine::digest::Sha256;
use fullbore_wire::exchange::{self, Body, Streamed, Unreachable};
use fullbore_wire::http1::{Method, ResponseHead};
use fullbore_wire::range::ByteRange;
use tokio::sync::mpsc;

use crate::address::Bucket;
use crate::credentials::CredentialsError;
use crate::dialect::Feature;
use crate::xml::{self, ServiceError, XmlError};

/// Bytes of an answer's body that is an error, or of no interest.
pub const SMALL_ANSWER: usize = 64 << 10;

/// A part of a request that a store may do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Optional {
    /// A header field.
    Field(&'static str, String),
    /// A parameter of the query.
    Query(&'static str, String),
}

/// A request.
///
/// ```
/// use fullbore_s3::Call;
/// use fullbore_wire::http1::Method;
///
/// let call = Call::new(Method::Get, None).query("list-type", "2").query("prefix", "1927/");
/// assert_eq!(call.query.len(), 2);
/// ```
#[derive(Debug, Clone)]
pub struct Call {
    /// HTTP method of the request.
    pub method: Method,
    /// Key of the object; `None` for a request about the bucket.
    pub key: Option<String>,
    /// Names and values of the query, not encoded.
    pub query: Vec<(&'static str, String)>,
    /// Names and values of header fields, all of which are signed.
    pub fields: Vec<(String, String)>,
    /// Parts of the request that are left out if the store does not honour them.
    pub optional: Vec<(Feature, Optional)>,
    /// Range of the object to download; `None`: all of it.
    pub range: Option<ByteRange>,
    /// Where the content of a good answer goes as it arrives; `None`: it is in the answer.
    pub stream: Option<mpsc::Sender<Streamed>>,
    /// Body of the request; empty by default.
    pub body: Body,
    /// SHA-256 of `body`, which the signature covers.
    pub hash: Sha256,
    /// Whether to send `hash` as the checksum of an object or of a part, and to compare it with the store's answer:
    /// [`Feature::ObjectChecksums`] or [`Feature::PartChecksums`].
    pub checksum: Option<Feature>,
    /// Largest body of an answer in bytes; a larger one is an error.
    pub answer_bytes_max: usize,
    /// Whether the body of a successful answer may hold an error, as after completing an upload.
    pub errors_in_body: bool,
    /// Whether to send the request even after a stop, because it cleans up.
    pub at_the_end: bool,
    /// Whether to send it by a client behind a fence even when the fence is closed, because no object is changed by it.
    pub is_unfenced: bool,
}

impl Call {
    /// Makes a request without a query, fields or a body.
    pub fn new(method: Method, key: Option<&str>) -> Call {
        Call {
            method,
            key: key.map(str::to_owned),
            query: Vec::new(),
            fields: Vec::new(),
            optional: Vec::new(),
            range: None,
            stream: None,
            body: Body::default(),
            hash: Sha256::of(b""),
            checksum: None,
            answer_bytes_max: SMALL_ANSWER,
            errors_in_body: false,
            at_the_end: false,
            is_unfenced: matches!(method, Method::Get | Method::Head),
        }
    }

    /// Adds a parameter of the query.
    #[must_use]
    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Call {
        self.query.push((name, value.into()));
        self
    }

    /// Adds a header field, which will be signed.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl Into<String>) -> Call {
        self.fields.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a header field that is left out if the store does not honour `feature`.
    #[must_use]
    pub fn optional_field(mut self, feature: Feature, name: &'static str, value: impl Into<String>) -> Call {
        self.optional.push((feature, Optional::Field(name, value.into())));
        self
    }

    /// Adds a parameter of the query that is left out if the store does not honour `feature`.
    #[must_use]
    pub fn optional_query(mut self, feature: Feature, name: &'static str, value: impl Into<String>) -> Call {
        self.optional.push((feature, Optional::Query(name, value.into())));
        self
    }

    /// Sets the body and its SHA-256.
    #[must_use]
    pub fn body(mut self, body: impl Into<Body>, hash: Sha256) -> Call {
        (self.body, self.hash) = (body.into(), hash);
        self
    }

    pub(super) fn what(&self) -> String {
        let key = self.key.as_deref().unwrap_or("the bucket");
        format!("{} {key}", self.method.as_str())
    }
}

/// An answer, and the bucket as it was known when the request was sent.
pub type Answer = exchange::Answer<Bucket>;

/// The ETag without quotes, which it need not have; `None` if there is none, or only a weak one.
pub fn etag(head: &ResponseHead) -> Option<String> {
    match &head.etag {
        Some(tag) => (!tag.weak).then(|| tag.to_string().trim_matches('"').to_owned()),
        None => {
            let is_part = |byte: u8| byte.is_ascii_graphic() && byte != b'"';
            let bare = head.store_field("etag")?;
            (!bare.is_empty() && bare.bytes().all(is_part)).then(|| bare.to_owned())
        }
    }
}

/// Whether two answers are about the same content as far as their ETags tell. A proxy that compresses weakens an ETag, and
/// some leave it out of parts of an object.
pub fn is_same_etag(head: &ResponseHead, expected: Option<&str>) -> bool {
    match (any_etag(head), expected) {
        (Some(theirs), Some(expected)) => theirs == expected,
        _ => true,
    }
}

/// The ETag without quotes, a weak one, too.
pub fn any_etag(head: &ResponseHead) -> Option<String> {
    let weak = || head.etag.as_ref().map(|tag| tag.to_string().trim_start_matches("W/").trim_matches('"').to_owned());
    etag(head).or_else(weak)
}

/// Why a request failed, after all retries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server said no.
    #[error("{what}: {status}{}", described(error))]
    Refused {
        /// Method and key.
        what: String,
        /// The status.
        status: u16,
        /// What the server says.
        error: ServiceError,
    },
    /// Nothing could be asked, or nothing came back.
    #[error("{what}: {reason}{}", after(*tries))]
    Network {
        /// Method and key.
        what: String,
        /// The last reason.
        reason: String,
        /// Times that it was sent.
        tries: u32,
    },
    /// No connection can be made at all.
    #[error("{}", .0.reason)]
    Unreachable(Unreachable),
    /// Something of ours broke.
    #[error("{0}")]
    GivenUp(String),
    /// Content arrived damaged, again and again.
    #[error("{what}: checksum mismatch: the server has {theirs}, fullbore sent {ours}")]
    Damaged {
        /// Method and key.
        what: String,
        /// By the server.
        theirs: String,
        /// By us.
        ours: String,
    },
    /// An answer that cannot be read.
    #[error("{what}: {source}")]
    Answer {
        /// Method and key.
        what: String,
        /// Why not.
        source: XmlError,
    },
    /// A listing that would never end.
    #[error("{what}: store {store} {did}; such a listing would never end")]
    Endless {
        /// Which.
        what: String,
        /// Whose.
        store: String,
        /// What shows it.
        did: String,
    },
    /// No credentials.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A signal came.
    #[error("interrupted")]
    Interrupted,
    /// A local file, in the place of an object.
    #[error("{0}")]
    Disk(String),
    /// The lock under which objects are changed may be another run's by now.
    #[error("another run has taken over, as this one was not seen for too long")]
    LockLost,
}

fn described(error: &ServiceError) -> String {
    match (error.code.as_str(), error.message.as_str()) {
        ("", "") => String::new(),
        ("", message) => format!(": {message}"),
        (code, "") => format!(" {code}"),
        (code, message) => format!(" {code}: {message}"),
    }
}

fn after(tries: u32) -> String {
    if tries > 1 { format!(" (after {tries} tries)") } else { String::new() }
}

impl CallError {
    /// What an answer of another status than a good one says.
    pub fn refused(what: impl Into<String>, answer: &Answer) -> CallError {
        let error = xml::service_error(&answer.body).unwrap_or_default();
        CallError::Refused { what: what.into(), status: answer.head.status, error }
    }

    /// What is wrong, without the request that it is about.
    pub(crate) fn reason(&self) -> String {
        match self {
            CallError::Refused { status, error, .. } => format!("{status}{}", described(error)),
            CallError::Network { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }

    /// The server's name of the error; empty if it was none of the server's.
    pub fn code(&self) -> &str {
        match self {
            CallError::Refused { error, .. } => &error.code,
            _ => "",
        }
    }

    /// Status code of the answer, if the store refused the request.
    pub fn status(&self) -> Option<u16> {
        match self {
            CallError::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}
