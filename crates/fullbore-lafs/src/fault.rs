//! Why a share was not read: it is damaged, or its server did not give it.

use std::fmt::Display;

use crate::gbs::link::LinkError;
use crate::gbs::{Answer, range_bytes};
use bytes::Bytes;

/// A share that was not read to its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShareFault {
    /// It is there, and has wrong bytes. Otherwise its server is to blame, and nothing is known of the share.
    pub is_damaged: bool,
    /// The reason, in words.
    pub why: String,
}

impl ShareFault {
    /// Wrong bytes.
    pub(crate) fn damaged(why: impl Display) -> ShareFault {
        ShareFault { is_damaged: true, why: why.to_string() }
    }

    /// No bytes.
    pub(crate) fn silent(why: impl Display) -> ShareFault {
        ShareFault { is_damaged: false, why: why.to_string() }
    }
}

impl From<LinkError> for ShareFault {
    fn from(error: LinkError) -> ShareFault {
        ShareFault::silent(error.reason)
    }
}

/// A file, immutable or mutable, of which not enough shares can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found} of the {needed} shares that are needed were found; {asked} servers were asked")]
pub struct TooFewShares {
    /// Different shares that are not known to be bad; of a mutable file, those of the version that has most.
    pub found: usize,
    /// k.
    pub needed: u16,
    /// Servers asked.
    pub asked: usize,
    /// Different shares beside these that are there and have wrong bytes.
    pub damaged: usize,
    /// What was wrong with others, one line each.
    pub troubles: Vec<String>,
}

impl TooFewShares {
    /// Whether damage is what is in the way: with the damaged shares there would be enough. Otherwise servers, or shares,
    /// are missing.
    pub fn is_damage(&self) -> bool {
        self.found + self.damaged >= usize::from(self.needed)
    }
}

/// The bytes of a range of a share that was asked for.
pub(crate) fn read_bytes(answer: &Answer) -> Result<Bytes, ShareFault> {
    range_bytes(answer).map_err(ShareFault::silent)
}
