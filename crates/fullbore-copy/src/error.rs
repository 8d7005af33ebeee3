//! Errors that end a copy before it is complete. Problems with single files do not end it: see
//! [`crate::wire::Problem`].

use std::io;

use crate::wire::WireError;

/// Code of a lost connection in the last message to the other end. Its exit code would not tell it from protocol
/// errors, and only after a lost connection may the other end connect again.
const LOST_CONNECTION: u8 = 255;

/// Why a copy was ended before it was complete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The settings or paths are unusable. Exit code 1.
    #[error("{0}")]
    Usage(String),
    /// The source has names that the destination's file system cannot store, or not side by side. Exit code 1.
    #[error("{count} names cannot be at the destination (see above); nothing was copied; leave them out by --exclude")]
    Names {
        /// How many names conflict.
        count: u64,
    },
    /// Another copy writes to the same destination. Exit code 6.
    #[error("{0}: another copy is writing here")]
    Locked(String),
    /// The destination is full, or its disk returned an error. Exit code 7.
    #[error("{0}")]
    Disk(String),
    /// The connection was lost, or could not be made. Exit code 3.
    #[error("{0}")]
    Network(String),
    /// The other end sent a malformed message. Exit code 3.
    #[error("the other end violated the protocol: {0}")]
    Protocol(#[from] WireError),
    /// The other end sent a well-formed message that is not allowed at this point. Exit code 3.
    #[error("the other end violated the protocol: {0}")]
    Meaning(&'static str),
    /// Received content does not match the hash that the sender computed. Exit code 4.
    #[error("{path}: received data is not what was sent; memory or processor of one machine may be faulty")]
    Verification {
        /// Path of the file below the destination.
        path: String,
    },
    /// `--verify` read other data from the device than was written. Exit code 4.
    #[error("{path}: data on the device is not what was written; the disk, its cable or memory may be faulty")]
    Damaged {
        /// Path of the first damaged file below the destination.
        path: String,
    },
    /// A signal ended the copy. Exit code 130.
    #[error("interrupted")]
    Interrupted,
    /// The other end gave up, and sent the reason.
    #[error("{text}")]
    Remote {
        /// The exit code that the other end reported.
        exit_code: u8,
        /// The other end's error message.
        text: String,
    },
    /// The operating system refused a resource that every copy needs: threads, clocks, its own files. Exit code 1.
    #[error("{what}: {error}")]
    System {
        /// The resource or operation.
        what: &'static str,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

impl CopyError {
    /// The documented exit code of the program for this error.
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

    /// The code for this end's last message: the exit code, except for a lost connection. After a lost connection the
    /// other end may connect again.
    pub(crate) fn code(&self) -> u8 {
        if self.is_lost_connection() { LOST_CONNECTION } else { self.exit_code() }
    }

    /// The error that the other end's last message stands for; the inverse of [`CopyError::code`].
    pub(crate) fn told(code: u8, text: String) -> CopyError {
        match code {
            LOST_CONNECTION => CopyError::Network(text),
            exit_code => CopyError::Remote { exit_code, text },
        }
    }

    /// The error for a connection that ended without a last message.
    pub(crate) fn gone() -> CopyError {
        CopyError::Network("the connection to the other end broke".to_owned())
    }

    /// The error for a pipe or connection that cannot be read or written.
    pub(crate) fn from_pipe(error: io::Error) -> CopyError {
        CopyError::Network(format!("the connection broke: {error}"))
    }

    /// Whether the connection was lost, so that another attempt may help.
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
