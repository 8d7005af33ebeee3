//! What caps lead to: contents of files, entries of directories, and paths through directories.

use std::sync::Arc;

use bytes::Bytes;
use fullbore_engine::run::{CommandError, ErrorKind};
use fullbore_engine::units;
use tokio::sync::mpsc;

use crate::cap::{Cap, CapError};
use crate::directory::{DIRECTORY_BYTES_MAX, DirectoryError, Entry, entries};
use crate::download::{Downloaded, Downloader, GetError};
use crate::mutable::{self, MutableError};
use crate::upload::Grid;

/// Pieces of a directory's content buffered between the servers and the parser.
const PIECES: usize = 4;

/// Bytes of memory charged per byte of a directory's content. Minimal entries take ten, usual ones less than two.
const LISTED_TIMES: u64 = 5;

/// Size assumed for the content of a mutable directory, whose cap does not say it, in bytes. A guess.
const MUTABLE_BYTES: u64 = 1 << 20;

/// Why a cap's content cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ReadError {
    /// An immutable file cannot be read.
    #[error(transparent)]
    Get(#[from] GetError),
    /// A mutable file cannot be read.
    #[error(transparent)]
    Mutable(#[from] MutableError),
    /// The content of a directory is malformed.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A directory of more than [`DIRECTORY_BYTES_MAX`] bytes.
    #[error("the directory has more than {}", units::bytes(DIRECTORY_BYTES_MAX))]
    TooLarge,
    /// The cap can only verify, not read.
    #[error("this cap can verify the file, not read it")]
    Verifier,
    /// A file where a directory is expected.
    #[error("{name} is a file, not a directory")]
    NotADirectory {
        /// Name of the file.
        name: String,
    },
    /// A directory where a file is expected.
    #[error("the cap is that of a directory")]
    IsADirectory,
    /// A directory has no child of this name.
    #[error("there is no {name} in the directory")]
    Missing {
        /// The name looked for.
        name: String,
    },
    /// A child whose cap is not supported.
    #[error("{name}: {error}")]
    Child {
        /// Name of the child.
        name: String,
        /// What is wrong with its cap.
        error: CapError,
    },
}

/// The entries of a directory, and faults of its shares.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The entries in the order of the directory's content.
    pub entries: Vec<Entry>,
    /// Faults of shares, one line each.
    pub troubles: Vec<String>,
}

/// The end of a path, and faults of shares on the way.
#[derive(Debug)]
pub(crate) struct Found {
    /// The cap of the file or directory.
    pub cap: Cap,
    /// Faults of shares, one line each.
    pub troubles: Vec<String>,
}

/// Reads files and directories of a grid.
#[derive(Debug, Clone)]
pub(crate) struct Contents {
    grid: Arc<Grid>,
    downloader: Arc<Downloader>,
}

impl Contents {
    /// Reads from this grid with this downloader.
    pub(crate) fn new(grid: Arc<Grid>, downloader: Arc<Downloader>) -> Contents {
        Contents { grid, downloader }
    }

    /// Reads a file, or the content of a directory, into `out`, in order.
    ///
    /// # Errors
    /// [`ReadError::Verifier`] if the cap can only verify; [`ReadError::Get`] or [`ReadError::Mutable`] if too few good
    /// shares are found or the receiver is gone. Bytes sent before an error are verified.
    pub(crate) async fn read(&self, cap: &Cap, out: &mpsc::Sender<Bytes>) -> Result<Downloaded, ReadError> {
        match cap {
            Cap::Literal(content) | Cap::LiteralDirectory(content) => {
                out.send(content.clone().into()).await.map_err(|_| GetError::Unwanted)?;
                Ok(Downloaded::default())
            }
            Cap::Chk(chk) | Cap::Directory(chk) => Ok(self.downloader.get(chk, out).await?),
            Cap::Mutable(mutable) | Cap::MutableDirectory(mutable) => {
                let troubles = mutable::read(&self.grid, mutable, out).await?;
                Ok(Downloaded { used: Vec::new(), troubles })
            }
            Cap::Verifier(_) | Cap::DirectoryVerifier(_) => Err(ReadError::Verifier),
        }
    }

    /// Lists a directory.
    ///
    /// # Errors
    /// [`ReadError::NotADirectory`] if the cap is that of a file; [`ReadError::TooLarge`] for a content above
    /// [`DIRECTORY_BYTES_MAX`]; [`ReadError::Directory`] if it is malformed; the errors of [`Contents::read`].
    pub(crate) async fn directory(&self, cap: &Cap) -> Result<Listing, ReadError> {
        if !cap.is_directory() {
            return Err(ReadError::NotADirectory { name: "it".into() });
        }
        if cap.size().is_some_and(|size| size > DIRECTORY_BYTES_MAX) {
            return Err(ReadError::TooLarge);
        }
        let (out, mut pieces) = mpsc::channel::<Bytes>(PIECES);
        let gathering = async {
            let mut content = Vec::new();
            while let Some(piece) = pieces.recv().await {
                if (content.len() + piece.len()) as u64 > DIRECTORY_BYTES_MAX {
                    return Err(ReadError::TooLarge);
                }
                content.extend_from_slice(&piece);
            }
            Ok(content)
        };
        let reading = async {
            let read = self.read(cap, &out).await;
            drop(out);
            read
        };
        let (read, content) = tokio::join!(reading, gathering);
        let content = content?;
        let Downloaded { troubles, .. } = read?;
        let mut entries = entries(&content)?;
        if matches!(cap, Cap::Directory(_) | Cap::LiteralDirectory(_)) {
            // The cap of an immutable directory promises that nothing below it ever changes.
            for entry in &mut entries {
                if let Ok(Cap::Mutable(_) | Cap::MutableDirectory(_)) = entry.cap {
                    entry.cap = Err(CapError::Mutable);
                }
            }
        }
        Ok(Listing { entries, troubles })
    }

    /// Follows a path from a directory, as `tahoe` does: `CAP/sub/file`. An empty path returns the cap itself.
    ///
    /// # Errors
    /// [`ReadError::Missing`] if a directory on the way has no such child; [`ReadError::Child`] if that child's cap is
    /// not supported; the errors of [`Contents::directory`].
    pub(crate) async fn walk(&self, mut cap: Cap, path: &str) -> Result<Found, ReadError> {
        let mut troubles = Vec::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let listing = self.directory(&cap).await?;
            troubles.extend(listing.troubles);
            // If a name is there twice the last entry counts, as when the whole directory is got.
            let Some(entry) = listing.entries.into_iter().rfind(|entry| entry.name == name) else {
                return Err(ReadError::Missing { name: name.to_owned() });
            };
            cap = entry.cap.map_err(|error| ReadError::Child { name: name.to_owned(), error })?;
        }
        Ok(Found { cap, troubles })
    }
}

/// Bytes of memory charged for listing a directory. The size in its cap may be any number.
pub(crate) fn listing_bytes(cap: &Cap) -> u64 {
    cap.size().unwrap_or(MUTABLE_BYTES).saturating_mul(LISTED_TIMES)
}

/// Converts the library's error into one for the user.
pub(crate) fn explain(error: &ReadError) -> CommandError {
    let (kind, troubles): (ErrorKind, &[String]) = match error {
        ReadError::Get(GetError::Interrupted) => (ErrorKind::Interrupted, &[]),
        ReadError::Directory(DirectoryError::TooMany) => (ErrorKind::Usage, &[]),
        ReadError::Get(GetError::Segment { .. }) | ReadError::Directory(_) => (ErrorKind::Verification, &[]),
        ReadError::Get(GetError::TooFewShares(few)) | ReadError::Mutable(MutableError::TooFewShares(few)) => {
            let kind = if few.is_damage() { ErrorKind::Verification } else { ErrorKind::Network };
            (kind, &few.troubles)
        }
        ReadError::Get(GetError::Geometry(_)) => (ErrorKind::Usage, &[]),
        ReadError::Get(_) | ReadError::Mutable(MutableError::Unwanted) => (ErrorKind::Network, &[]),
        ReadError::TooLarge | ReadError::Verifier | ReadError::Mutable(MutableError::NoKey) => (ErrorKind::Usage, &[]),
        ReadError::IsADirectory
        | ReadError::NotADirectory { .. }
        | ReadError::Missing { .. }
        | ReadError::Child { .. } => (ErrorKind::Usage, &[]),
    };
    let command = troubles.iter().fold(CommandError::from_error(kind, error), CommandError::context);
    match error {
        ReadError::IsADirectory => {
            command.hint("`fullbore get -o DIR CAP` gets a directory, `fullbore ls CAP` lists it")
        }
        _ => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::TooFewShares;
    use crate::gbs::link::LinkOptions;
    use crate::servers::Announcements;
    use crate::upload::produce::Pool;
    use std::time::Duration;
    use tokio::sync::watch;

    #[tokio::test]
    async fn of_a_name_that_is_there_twice_the_last_entry_is_meant() {
        let options = LinkOptions::new(Duration::from_secs(1));
        let grid = Arc::new(Grid::new(Announcements::default().servers(), Vec::new(), options));
        let downloader = Arc::new(Downloader::new(Arc::clone(&grid), Pool::new(1), watch::channel(false).1));
        let packed = b"32:4:same,13:URI:LIT:mfrgg,0:,2:{},,26:4:same,8:URI:LIT:,0:,2:{},,".to_vec();
        let contents = Contents::new(grid, downloader);
        let found = contents.walk(Cap::LiteralDirectory(packed), "same").await.unwrap();
        assert_eq!(found.cap, Cap::Literal(Vec::new()), "as `get -o DIR` takes it");
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_used_is_named_when_shares_are_lacking() {
        let tub = "a".repeat(32);
        let mut announcements = Announcements::default();
        let yaml =
            format!("storage:\n  server-a:\n    ann:\n      anonymous-storage-FURL: pb://{tub}@tcp:127.0.0.1:1/x\n");
        announcements.add_servers_yaml(&yaml).unwrap();
        let grid = Arc::new(Grid::new(announcements.servers(), Vec::new(), LinkOptions::new(Duration::from_secs(1))));
        let downloader = Arc::new(Downloader::new(Arc::clone(&grid), Pool::new(1), watch::channel(false).1));
        let contents = Contents::new(grid, downloader);
        let (key, hash) = ("a".repeat(26), "a".repeat(52));
        for cap in [format!("URI:DIR2-CHK:{key}:{hash}:3:10:200"), format!("URI:DIR2-RO:{key}:{hash}")] {
            let error = contents.walk(Cap::parse(&cap).unwrap(), "x").await.unwrap_err();
            let context = explain(&error).context;
            assert!(context.last().is_some_and(|line| line.contains(" is not used: ")), "{cap}: {error}: {context:?}");
        }
    }

    #[test]
    fn too_few_good_shares_are_told_from_too_few_servers() {
        for (found, damaged, kind) in [
            (0, 0, ErrorKind::Network),
            (2, 0, ErrorKind::Network),
            (0, 2, ErrorKind::Network),
            (0, 3, ErrorKind::Verification),
            (2, 1, ErrorKind::Verification),
        ] {
            let few = TooFewShares { found, needed: 3, asked: 5, damaged, troubles: vec!["why".into()] };
            for error in [ReadError::Get(few.clone().into()), ReadError::Mutable(few.into())] {
                let explained = explain(&error);
                assert_eq!(
                    (explained.kind, &*explained.context),
                    (kind, &["why".to_owned()][..]),
                    "{found}, {damaged}"
                );
            }
        }
    }
}
