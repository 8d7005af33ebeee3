//! What ends a copy before its end. Problems of single files do not: see [`crate::wire::Problem`].

use std::io;

use crate::wire::WireError;

/// Stands for a lost connection where other errors have their exit code, which many things share.
const LOST_CONNECTION: u8 = 255;

/// Why a copy could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// What was asked for cannot be.
    #[error("{0}")]
    Usage(String),
    /// Names that the destination's file system cannot hold beside each other, or at all.
    #[error("{count} names cannot be at the destination (see above); nothing was copied; leave them out by --exclude")]
    Names {
        /// How many.
        count: u64,
    },
    /// Another copy writes to the same destination.
    #[error("{0}: another copy is writing here")]
    Locked(String),
    /// The destination has no room, or fails.
    #[error("{0}")]
    Disk(String),
    /// The connection broke, or never was.
    #[error("{0}")]
    Network(String),
    /// The other end said something that it should not.
    #[error("the other end does not keep to the protocol: {0}")]
    Protocol(#[from] WireError),
    /// The other end kept to the form, but not to the meaning.
    #[error("the other end does not keep to the protocol: {0}")]
    Meaning(&'static str),
    /// Content arrived with another hash than it was sent with.
    #[error("{path}: what arrived is not what was sent; memory or processor of one machine may be faulty")]
    Verification {
        /// Which file.
        path: String,
    },
    /// What was written is not what the device holds.
    #[error("{path}: the device does not hold what was written; the disk, its cable or memory may be faulty")]
    Damaged {
        /// The first such file.
        path: String,
    },
    /// A signal.
    #[error("interrupted")]
    Interrupted,
    /// The other end gave up, and said why.
    #[error("{text}")]
    Remote {
        /// As the other end's own exit code would be.
        exit_code: u8,
        /// Its words.
        text: String,
    },
    /// The system refuses what every copy needs: threads, clocks, its own files.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        error: io::Error,
    },
}

impl CopyError {
    /// The documented exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self {
            CopyError::Usage(_) | CopyError::Names { .. } | CopyError::System { .. } => 1,
            CopyError::Network(_) | CopyError::Protocol(_) | CopyError::Meaning(_) => 3,
            CopyError::Verification { .. } | CopyError::Damaged { .. } => 4,
            CopyError::Locked(_) => 6,
            CopyError::Disk(_) => 7,
            CopyError::Interrupted => 130,
            CopyError::Remote { exit_code, .. } => *exit_code,
        }
    }

    /// What the last message of this end says it to be: the exit code, but for a lost connection, which the
    /// other end may dial again for.
    pub(crate) fn code(&self) -> u8 {
        if self.is_lost_connection() { LOST_CONNECTION } else { self.exit_code() }
    }

    /// What the other end's last message says.
    pub(crate) fn told(code: u8, text: String) -> CopyError {
        match code {
            LOST_CONNECTION => CopyError::Network(text),
            exit_code => CopyError::Remote { exit_code, text },
        }
    }

    /// The other end has said nothing more.
    pub(crate) fn gone() -> CopyError {
        CopyError::Network("the connection to the other end broke".to_owned())
    }

    /// What a pipe or connection that cannot be used means.
    pub(crate) fn from_pipe(error: io::Error) -> CopyError {
        CopyError::Network(format!("the connection broke: {error}"))
    }

    /// Whether the connection was lost, so that dialling again may help.
    pub fn is_lost_connection(&self) -> bool {
        matches!(self, CopyError::Network(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_the_other_end_says_only_a_lost_connection_is_one_here() {
        let heard = |error: CopyError| CopyError::told(error.code(), error.to_string());
        assert!(heard(CopyError::Network("broke".to_owned())).is_lost_connection());
        for error in [CopyError::Meaning("lies"), CopyError::Disk("full".to_owned()), CopyError::Interrupted] {
            let (exit_code, heard) = (error.exit_code(), heard(error));
            assert!(!heard.is_lost_connection() && heard.exit_code() == exit_code, "{heard:?}");
        }
    }
}
