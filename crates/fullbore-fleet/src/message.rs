//! Messages between planner and workers: JSON of at most 64 KiB, in which unknown fields are ignored.
//!
//! Every message says the version of its format in `v`. A reader that is older than a message refuses it as
//! [skew](MessageError::is_skew): a worker then leaves the task to others. Everything in a message is untrusted,
//! because whoever has a worker's or a planner's credentials can write it; a parsed message has passed all checks of
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

/// Largest message. A pack of 64 long paths fits; NATS's own default limit is 1 MiB.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Characters of a text for people, such as the reason of a fault, that are kept.
const TEXT_CHARS_MAX: usize = 500;

/// Why a message is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Larger than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {bytes} bytes; the limit is {MESSAGE_BYTES_MAX}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Written by a later version.
    #[error("version {version} of the format; this fullbore reads up to {VERSION}")]
    Newer {
        /// The version it names.
        version: u32,
    },
    /// A kind of work that this version does not know.
    #[error("unknown kind of work {kind:?}")]
    Kind {
        /// The kind.
        kind: String,
    },
    /// A region that is no name.
    #[error("region {region:?}: letters, digits and hyphens only")]
    Region {
        /// The region, shortened.
        region: String,
    },
    /// No JSON, a missing field, or a field of another type.
    #[error("not a message: {0}")]
    Json(#[from] serde_json::Error),
    /// A task without items, or with more than a pack has.
    #[error("a task of {count} files")]
    Count {
        /// Number of items.
        count: usize,
    },
    /// A path that leaves the mirror or is hidden.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A path that only the planner writes.
    #[error("{path:?} is published by the planner only")]
    Published {
        /// The path.
        path: String,
    },
    /// A file that is larger than any store takes, or a pack that is larger than a planner makes.
    #[error("a task of {bytes} bytes in {count} files")]
    Size {
        /// Sum of the sizes.
        bytes: u64,
        /// Number of items.
        count: usize,
    },
    /// No SHA-256.
    #[error("{path:?}: its hash is not 64 hexadecimal digits")]
    Hash {
        /// The path.
        path: String,
    },
    /// An id of an upload that no store gives.
    #[error("{upload:?}: not the id of an upload")]
    Upload {
        /// The id, shortened.
        upload: String,
    },
    /// ETags of other objects than those of the task, or no ETags.
    #[error("the ETags of the objects to replace cannot be used")]
    Tags,
    /// A destination that is no `s3://BUCKET/PREFIX`.
    #[error("{to:?}: not a destination for workers")]
    Destination {
        /// The destination.
        to: String,
    },
    /// A mirror or endpoint that is no http or https URL.
    #[error("{url:?}: {source}")]
    Url {
        /// The text.
        url: String,
        /// Why not.
        source: UrlError,
    },
    /// A root of files to put, or a field of their objects, that cannot be used.
    #[error("cannot put these files: {reason}")]
    Source {
        /// What is wrong.
        reason: &'static str,
    },
    /// A number outside its bounds.
    #[error("{field} is {value}")]
    Bound {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl MessageError {
    /// Whether a later version may understand the message: no fault of the sender.
    pub fn is_skew(&self) -> bool {
        matches!(self, MessageError::Newer { .. } | MessageError::Kind { .. })
    }
}

/// Size and version come first, because a later version may change the meaning of every other field.
fn parse<T: DeserializeOwned + Versioned>(bytes: &[u8]) -> Result<T, MessageError> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(MessageError::TooLarge { bytes: bytes.len() });
    }
    let parsed = serde_json::from_slice::<T>(bytes);
    // Nearly all messages are of this version, and are read once.
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

/// A message that says the version of its format.
trait Versioned {
    fn version(&self) -> u32;
}

/// A text of bounded length.
fn bounded(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// How much of a refused text an error shows.
fn shown(text: &str) -> String {
    text.chars().take(120).collect()
}
