//! What caps lead to: contents of files of all kinds, entries of directories, and paths through these.

use std::sync::Arc;

use bytes::Bytes;
use fullbore_engine::run::{CommandError, ErrorKind};
use tokio::sync::mpsc;

use crate::cap::{Cap, CapError};
use crate::directory::{DIRECTORY_BYTES_MAX, DirectoryError, Entry, entries};
use crate::download::{Downloaded, Downloader, GetError};
use crate::mutable::{self, MutableError};
use crate::upload::Grid;

/// Pieces of a directory's content on their way from the servers.
const PIECES: usize = 4;

/// Bytes in memory for each byte of a directory's content: of minimal entries it is ten, of usual ones less than two.
const LISTED_TIMES: u64 = 5;

/// Bytes that the content of a mutable directory is taken to have, whose size no cap tells. A guess.
const MUTABLE_BYTES: u64 = 1 << 20;

/// A cap that leads to nothing that can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// An immutable file.
    #[error(transparent)]
    Get(#[from] GetError),
    /// A mutable one.
    #[error(transparent)]
    Mutable(#[from] MutableError),
    /// The content of a directory is none.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// More than is read of a directory.
    #[error("the directory has more than {DIRECTORY_BYTES_MAX} bytes")]
    TooLarge,
    /// The cap can only verify.
    #[error("this cap can verify the file, not read it")]
    Verifier,
    /// A file where a directory should be.
    #[error("{name} is a file, not a directory")]
    NotADirectory {
        /// Its name.
        name: String,
    },
    /// A directory where a file should be.
    #[error("the cap is one of a directory")]
    IsADirectory,
    /// A directory that has no such child.
    #[error("there is no {name} in the directory")]
    Missing {
        /// The name.
        name: String,
    },
    /// A child whose cap is not understood.
    #[error("{name}: {error}")]
    Child {
        /// Its name.
        name: String,
        /// What is wrong with its cap.
        error: CapError,
    },
}

/// The entries of a directory, and what was wrong with shares of it.
#[derive(Debug, Default)]
pub struct Listing {
    /// In the order in which the directory has them.
    pub entries: Vec<Entry>,
    /// One line each.
    pub troubles: Vec<String>,
}

/// Where a path leads, and what was wrong with shares on the way.
#[derive(Debug)]
pub struct Found {
    /// The cap of the file or directory.
    pub cap: Cap,
    /// One line each.
    pub troubles: Vec<String>,
}

/// Reads what is in a grid.
#[derive(Debug, Clone)]
pub struct Contents {
    grid: Arc<Grid>,
    downloader: Arc<Downloader>,
}

impl Contents {
    /// Of this grid, by this downloader of it.
    pub fn new(grid: Arc<Grid>, downloader: Arc<Downloader>) -> Contents {
        Contents { grid, downloader }
    }

    /// Reads a file, or the content of a directory, into `out`, in order.
    ///
    /// # Errors
    /// [`ReadError`]; what was sent until then is right.
    pub async fn read(&self, cap: &Cap, out: &mpsc::Sender<Bytes>) -> Result<Downloaded, ReadError> {
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
    /// [`ReadError`] if the cap is none of a directory, or the directory cannot be read.
    pub async fn directory(&self, cap: &Cap) -> Result<Listing, ReadError> {
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

    /// Goes down a path from a directory, as `tahoe` does: `CAP/sub/file`. An empty path is the cap itself.
    ///
    /// # Errors
    /// [`ReadError`] if some directory on the way cannot be read, or has no such child.
    pub async fn walk(&self, mut cap: Cap, path: &str) -> Result<Found, ReadError> {
        let mut troubles = Vec::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let listing = self.directory(&cap).await?;
            troubles.extend(listing.troubles);
            // Of a name that is there twice the last one counts, as it does when all of the directory is got.
            let Some(entry) = listing.entries.into_iter().rfind(|entry| entry.name == name) else {
                return Err(ReadError::Missing { name: name.to_owned() });
            };
            cap = entry.cap.map_err(|error| ReadError::Child { name: name.to_owned(), error })?;
        }
        Ok(Found { cap, troubles })
    }
}

/// Bytes of memory that count for the listing of a directory. What its cap claims may be any number.
pub(crate) fn listing_bytes(cap: &Cap) -> u64 {
    cap.size().unwrap_or(MUTABLE_BYTES).saturating_mul(LISTED_TIMES)
}

/// The library's error as the person sees it.
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
