//! Messages between planner and workers: JSON of at most 64 KiB, in which unknown fields are ignored.
//!
//! Every message has the version of its format in `v`. A reader that is older than a message refuses it as
//! [skew](MessageError::is_skew); a worker then leaves the task to others. Everything in a message is untrusted,
//! because whoever has a worker's or a planner's credentials can write it. A parsed message has passed all checks of
//! this module.

mod report;
mod run;
mod task;

use fullbore_debian::path::PathError;
use fullbore_wire::url::UrlError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

pub use report::{ClockMs, Fault, HostCount, Report, Stat};
pub use run::{Budgets, PutSource, Run, Scope, StorePlace};
pub use task::{Item, Kind, Part, TAG_BYTES_MAX, Task};

/// Version of the format that this crate writes, and the latest that it reads.
pub const VERSION: u32 = 1;

/// Largest message, in bytes. A pack of 64 long paths fits; NATS's own default limit is 1 MiB.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Characters that are kept of a text for people, such as the reason of a fault.
const TEXT_CHARS_MAX: usize = 500;

/// Why a message is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message is larger than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {bytes} bytes; the limit is {MESSAGE_BYTES_MAX}")]
    TooLarge {
        /// Size of the message in bytes.
        bytes: usize,
    },
    /// A later version of fullbore wrote the message.
    #[error("version {version} of the format; this fullbore reads up to {VERSION}")]
    Newer {
        /// Version in the message.
        version: u32,
    },
    /// The message asks for a kind of work that this version does not know.
    #[error("unknown kind of work {kind:?}")]
    Kind {
        /// The unknown kind, shortened.
        kind: String,
    },
    /// The region of the store is not a valid name.
    #[error("region {region:?}: letters, digits and hyphens only")]
    Region {
        /// The region, shortened.
        region: String,
    },
    /// The message is not JSON, lacks a field, or has a field of another type.
    #[error("not a message: {0}")]
    Json(#[from] serde_json::Error),
    /// A task has no items, or more than a pack may have.
    #[error("a task of {count} files")]
    Count {
        /// Number of items in the task.
        count: usize,
    },
    /// A path leads out of the mirror, or is hidden.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A path is one that only the planner writes.
    #[error("{path:?} is published by the planner only")]
    Published {
        /// The path, shortened.
        path: String,
    },
    /// A file is larger than any store accepts, or a pack is larger than a planner makes.
    #[error("a task of {bytes} bytes in {count} files")]
    Size {
        /// Total size of the files in bytes.
        bytes: u64,
        /// Number of files in the task.
        count: usize,
    },
    /// A hash is not a SHA-256.
    #[error("{path:?}: its hash is not 64 hexadecimal digits")]
    Hash {
        /// Path of the file, shortened.
        path: String,
    },
    /// The id of an upload is not one that a store gives.
    #[error("{upload:?}: not the id of an upload")]
    Upload {
        /// The id, shortened.
        upload: String,
    },
    /// The ETags do not match the objects of the task, or are not ETags.
    #[error("the ETags of the objects to replace cannot be used")]
    Tags,
    /// The destination is not `s3://BUCKET/PREFIX`.
    #[error("{to:?}: not a destination for workers")]
    Destination {
        /// The destination, shortened.
        to: String,
    },
    /// A mirror or endpoint is not an http or https URL.
    #[error("{url:?}: {source}")]
    Url {
        /// The text, shortened.
        url: String,
        /// Why it is not a URL.
        source: UrlError,
    },
    /// The root of files to put, or a field of their objects, cannot be used.
    #[error("cannot put these files: {reason}")]
    Source {
        /// Why it cannot be used.
        reason: &'static str,
    },
    /// A number is outside its bounds.
    #[error("{field} is {value}")]
    Bound {
        /// Name of the message's field.
        field: &'static str,
        /// The number.
        value: u64,
    },
}

impl MessageError {
    /// Whether a later version may understand the message: no fault of the sender.
    pub fn is_skew(&self) -> bool {
        matches!(self, MessageError::Newer { .. } | MessageError::Kind { .. })
    }
}

/// Check size and version first, because a later version may change the meaning of every other field.
fn parse<T: DeserializeOwned + Versioned>(bytes: &[u8]) -> Result<T, MessageError> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(MessageError::TooLarge { bytes: bytes.len() });
    }
    let parsed = serde_json::from_slice::<T>(bytes);
    // Nearly all messages are of this version, and are parsed once.
    if let Ok(message) = &parsed
        && message.version() <= VERSION
    {
        return Ok(parsed?);
    }
    let Version { v: version } = serde_json::from_slice(bytes)?;
    if version > VERSION {
        return Err(MessageError::Newer { version });
    }
    Ok(parsed?)
}

/// A message that carries the version of its format.
trait Versioned {
    fn version(&self) -> u32;
}

/// A text of bounded length.
fn bounded(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// The part of a refused text that an error shows.
fn shown(text: &str) -> String {
    text.chars().take(120).collect()
}
