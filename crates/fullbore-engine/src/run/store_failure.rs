//! A failure of a store, as the source of an [`io::Error`].
//!
//! Trees and targets report [`io::Error`]s, and most of them come from a disk. If a store failed, the error contains a
//! [`StoreFailure`], which keeps the kind, and so the exit code, and the hints.

use std::error::Error;
use std::io;

use super::error::{CommandError, ErrorKind};

/// A failure of a store, in the words of the library that speaks to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreFailure {
    /// Kind of the error, which decides the exit code.
    pub kind: ErrorKind,
    /// The message.
    pub message: String,
    /// Suggestions for the user, as imperatives.
    pub hints: Vec<String>,
}

impl StoreFailure {
    /// Wraps the failure of a store in an [`io::Error`].
    pub fn io(of: CommandError) -> io::Error {
        io::Error::other(StoreFailure { kind: of.kind, message: of.message, hints: of.hints })
    }

    /// Finds the store failure in the chain of sources of `error`, if there is one.
    pub fn behind<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a StoreFailure> {
        let mut next = Some(error);
        while let Some(error) = next {
            // An `io::Error` with content skips that content in its chain of sources, so look into it here.
            let content = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            let content = content.and_then(|content| content.downcast_ref::<StoreFailure>());
            if let Some(failure) = content.or_else(|| error.downcast_ref()) {
                return Some(failure);
            }
            next = error.source();
        }
        None
    }

    /// Converts the failure into a [`CommandError`] with another message, and the same kind and hints.
    pub fn command(&self, message: impl std::fmt::Display) -> CommandError {
        let command = CommandError::new(self.kind, message);
        self.hints.iter().fold(command, CommandError::hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FileError;
    use crate::target::TargetError;

    #[test]
    fn a_store_is_told_from_a_disk_however_deep_the_error_is() {
        let failure = || StoreFailure::io(CommandError::new(ErrorKind::Network, "no answer").hint("wait"));
        let file = |source| FileError::Io { operation: "list", path: "pool".to_owned(), source };
        let of_store = TargetError::File(file(failure()));
        let found = StoreFailure::behind(&of_store).unwrap();
        assert_eq!((found.kind, found.message.as_str()), (ErrorKind::Network, "no answer"));
        assert_eq!(found.command("pool: no answer").to_string(), "error: pool: no answer\nhint: wait");
        assert!(StoreFailure::behind(&io::Error::other(file(failure()))).is_some());
        assert_eq!(StoreFailure::behind(&file(io::ErrorKind::StorageFull.into())), None);
    }
}
