//! Requests to a store, their answers, and the reasons why a request failed.

use fullbore_engine::digest::Sha256;
use fullbore_wire::exchange::{self, Body, Streamed, Unreachable};
use fullbore_wire::http1::{Method, ResponseHead};
use fullbore_wire::range::ByteRange;
use tokio::sync::mpsc;

use crate::address::Bucket;
use crate::credentials::CredentialsError;
use crate::dialect::Feature;
use crate::xml::{self, ServiceError, XmlError};

/// Maximum size of the body of an error or an unimportant answer, in bytes.
pub(crate) const SMALL_ANSWER: usize = 64 << 10;

/// A part of a request that may be omitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Optional {
    /// A header field.
    Field(&'static str, String),
    /// A parameter of the query.
    Query(&'static str, String),
}

/// A request to the store.
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
    /// Names and values of the query, unencoded.
    pub query: Vec<(&'static str, String)>,
    /// Names and values of header fields; all of them are signed.
    pub fields: Vec<(String, String)>,
    /// Parts of the request that are omitted if the store does not support their feature.
    pub optional: Vec<(Feature, Optional)>,
    /// Range of the object to download; `None` for the whole object.
    pub range: Option<ByteRange>,
    /// Taker of the content of a good answer as it arrives; `None` if it is returned in the answer.
    pub stream: Option<mpsc::Sender<Streamed>>,
    /// Body of the request; empty by default.
    pub body: Body,
    /// SHA-256 of `body`, which the signature covers.
    pub hash: Sha256,
    /// The feature under which `hash` is sent as the checksum of an object or a part, and compared with the store's
    /// answer: [`Feature::ObjectChecksums`] or [`Feature::PartChecksums`].
    pub checksum: Option<Feature>,
    /// Maximum size of the answer's body in bytes; a larger one is an error.
    pub answer_bytes_max: usize,
    /// Whether the body of a successful answer may contain an error, as after completing an upload.
    pub errors_in_body: bool,
    /// Whether to send the request even after a stop, for cleaning up.
    pub at_the_end: bool,
    /// Whether to send the request even while the fence is closed, because it changes no object.
    pub is_unfenced: bool,
}

impl Call {
    /// Creates a request without a query, fields or a body.
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

    /// Adds a query parameter.
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

    /// Adds a header field that is omitted if the store does not support `feature`.
    #[must_use]
    pub fn optional_field(mut self, feature: Feature, name: &'static str, value: impl Into<String>) -> Call {
        self.optional.push((feature, Optional::Field(name, value.into())));
        self
    }

    /// Adds a query parameter that is omitted if the store does not support `feature`.
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

/// An answer, with the bucket as it was known when the request was sent.
pub type Answer = exchange::Answer<Bucket>;

/// The ETag without quotes (some stores omit them); `None` if there is none, or only a weak one.
pub(crate) fn etag(head: &ResponseHead) -> Option<String> {
    match &head.etag {
        Some(tag) => (!tag.weak).then(|| tag.to_string().trim_matches('"').to_owned()),
        None => {
            let is_part = |byte: u8| byte.is_ascii_graphic() && byte != b'"';
            let bare = head.store_field("etag")?;
            (!bare.is_empty() && bare.bytes().all(is_part)).then(|| bare.to_owned())
        }
    }
}

/// Whether, as far as ETags show, an answer is about the same content. A proxy that compresses weakens an ETag, and
/// some omit it from ranges of an object.
pub(crate) fn is_same_etag(head: &ResponseHead, expected: Option<&str>) -> bool {
    match (any_etag(head), expected) {
        (Some(theirs), Some(expected)) => theirs == expected,
        _ => true,
    }
}

/// The ETag without quotes, even a weak one.
pub(crate) fn any_etag(head: &ResponseHead) -> Option<String> {
    let weak = || head.etag.as_ref().map(|tag| tag.to_string().trim_start_matches("W/").trim_matches('"').to_owned());
    etag(head).or_else(weak)
}

/// Why a request failed, after all retries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The store refused the request.
    #[error("{what}: {status}{}", described(error))]
    Refused {
        /// Method and key of the request.
        what: String,
        /// Status of the answer.
        status: u16,
        /// The store's error.
        error: ServiceError,
    },
    /// The request could not be sent, or was not answered.
    #[error("{what}: {reason}{}", after(*tries))]
    Network {
        /// Method and key of the request.
        what: String,
        /// Reason of the last failure.
        reason: String,
        /// Number of times that the request was sent.
        tries: u32,
    },
    /// No connection to the store could be opened.
    #[error("{}", .0.reason)]
    Unreachable(Unreachable),
    /// An internal error of this program.
    #[error("{0}")]
    GivenUp(String),
    /// Content was damaged in transit each time.
    #[error("{what}: checksum mismatch: the server has {theirs}, fullbore sent {ours}")]
    Damaged {
        /// Method and key of the request.
        what: String,
        /// Checksum computed by the store.
        theirs: String,
        /// Checksum computed here.
        ours: String,
    },
    /// The answer could not be parsed.
    #[error("{what}: {source}")]
    Answer {
        /// Method and key of the request.
        what: String,
        /// Why it could not be parsed.
        source: XmlError,
    },
    /// The listing would never end.
    #[error("{what}: store {store} {did}; such a listing would never end")]
    Endless {
        /// Description of the listing.
        what: String,
        /// Name of the store.
        store: String,
        /// What the store did that shows it.
        did: String,
    },
    /// No credentials were found.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A signal ended the run.
    #[error("interrupted")]
    Interrupted,
    /// A local file that stands for an object could not be used.
    #[error("{0}")]
    Disk(String),
    /// The lock under which objects are changed may belong to another run by now.
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
    /// Makes the error for an answer with an error status.
    pub fn refused(what: impl Into<String>, answer: &Answer) -> CallError {
        let error = xml::service_error(&answer.body).unwrap_or_default();
        CallError::Refused { what: what.into(), status: answer.head.status, error }
    }

    /// The reason, without the request.
    pub(crate) fn reason(&self) -> String {
        match self {
            CallError::Refused { status, error, .. } => format!("{status}{}", described(error)),
            CallError::Network { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }

    /// The store's code of the error; empty if the error did not come from the store.
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
