//! A failure of the store that files go to, as the source of an error of files.
//!
//! Trees and targets report [`io::Error`]s, and most of them come from a disk. Of a store, the error has a
//! [`StoreFailure`] inside, which keeps the kind, and so the exit code, and the hints.

use std::error::Error;
use std::io;

use super::error::{CommandError, ErrorKind};

/// What the store did, in the words of the library that speaks to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreFailure {
    /// Kind of the error, which decides the exit code.
    pub kind: ErrorKind,
    /// The message.
    pub message: String,
    /// What the user could do about it.
    pub hints: Vec<String>,
}

impl StoreFailure {
    /// An error of files with this failure inside.
    pub fn io(of: CommandError) -> io::Error {
        io::Error::other(StoreFailure { kind: of.kind, message: of.message, hints: of.hints })
    }

    /// The failure of a store behind this error, if there is one.
    pub fn behind<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a StoreFailure> {
        let mut next = Some(error);
        while let Some(error) = next {
            // The source of such an error is that of its content; the content itself is only here.
            let content = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            let content = content.and_then(|content| content.downcast_ref::<StoreFailure>());
            if let Some(failure) = content.or_else(|| error.downcast_ref()) {
                return Some(failure);
            }
            next = error.source();
        }
        None
    }

    /// A command's error with this kind, this message and these hints.
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
