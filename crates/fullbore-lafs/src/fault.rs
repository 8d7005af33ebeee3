//! Why a share could not be read: it is damaged, or its server did not send it.

use std::fmt::Display;

use crate::gbs::link::LinkError;
use crate::gbs::{Answer, range_bytes};
use bytes::Bytes;

/// A share that was not read to its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShareFault {
    /// Whether the share has wrong bytes. Otherwise the server is at fault, and nothing is known of the share.
    pub is_damaged: bool,
    /// The reason, in words.
    pub why: String,
}

impl ShareFault {
    /// The share has wrong bytes.
    pub(crate) fn damaged(why: impl Display) -> ShareFault {
        ShareFault { is_damaged: true, why: why.to_string() }
    }

    /// The server did not send the share.
    pub(crate) fn silent(why: impl Display) -> ShareFault {
        ShareFault { is_damaged: false, why: why.to_string() }
    }
}

impl From<LinkError> for ShareFault {
    fn from(error: LinkError) -> ShareFault {
        ShareFault::silent(error.reason)
    }
}

/// Too few shares of an immutable or mutable file can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found} of the {needed} shares that are needed were found; {asked} servers were asked")]
pub struct TooFewShares {
    /// Different shares not known to be bad; for a mutable file, those of the version that has most.
    pub found: usize,
    /// Shares that a reader needs, k.
    pub needed: u16,
    /// Number of servers asked.
    pub asked: usize,
    /// Different further shares that are damaged.
    pub damaged: usize,
    /// Faults of shares and servers, one line each.
    pub troubles: Vec<String>,
}

impl TooFewShares {
    /// Whether damage is the cause: with the damaged shares there would be enough. Otherwise servers or shares are
    /// missing.
    pub fn is_damage(&self) -> bool {
        self.found + self.damaged >= usize::from(self.needed)
    }
}

/// The bytes of a range that was requested from a share.
pub(crate) fn read_bytes(answer: &Answer) -> Result<Bytes, ShareFault> {
    range_bytes(answer).map_err(ShareFault::silent)
}
