//! For tests: a target that fails, or dies, at the n-th operation, in the manner of SQLite's tests.
//!
//! Run once with [`Fault::Never`] and read [`FaultyTarget::operations`]; then once for each n with an error, and once
//! for each n with a stop.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Committed, Content, Name, Target, TargetError};
use crate::digest::{Sha256, Verified};

/// The fault to inject. Operations count from 1; all that change the target count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// None: for counting.
    Never,
    /// The n-th operation fails with this system error (`libc::ENOSPC`, …); a failed write leaves half of its bytes.
    /// Later ones succeed.
    ErrorAt {
        /// Number of the operation that fails.
        n: u64,
        /// The errno.
        errno: i32,
    },
    /// From the n-th operation on all fail with this error, as on a full disk.
    ErrorFrom {
        /// Number of the first operation that fails.
        n: u64,
        /// The errno.
        errno: i32,
    },
    /// As SIGKILL: the n-th operation is half done (a write) or not done, and nothing changes the target afterwards.
    StopAt {
        /// Number of the operation at which the target stops.
        n: u64,
    },
}

/// Called before each write.
struct Before(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Before {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Before")
    }
}

/// A target with an injected fault.
#[derive(Debug)]
pub struct FaultyTarget<T> {
    inner: T,
    fault: Fault,
    before_write: Before,
    operations: AtomicU64,
    stopped: AtomicBool,
}

impl<T: Target> FaultyTarget<T> {
    /// Wraps a target with a fault.
    pub fn new(inner: T, fault: Fault) -> FaultyTarget<T> {
        let before_write = Before(Box::new(|| ()));
        FaultyTarget { inner, fault, before_write, operations: AtomicU64::new(0), stopped: AtomicBool::new(false) }
    }

    /// Calls `before` before each write: a wait simulates a slow disk, a panic a bug of this program.
    #[must_use]
    pub fn before_write(self, before: impl Fn() + Send + Sync + 'static) -> FaultyTarget<T> {
        FaultyTarget { before_write: Before(Box::new(before)), ..self }
    }

    /// Number of operations until now, failed ones included.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::SeqCst)
    }

    /// Whether [`Fault::StopAt`] has taken effect.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// The wrapped target.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    fn count(&self, operation: &'static str, path: &str) -> Result<(), TargetError> {
        let number = self.operations.fetch_add(1, Ordering::SeqCst) + 1;
        let errno = match self.fault {
            Fault::ErrorAt { n, errno } if number == n => errno,
            Fault::ErrorFrom { n, errno } if number >= n => errno,
            Fault::StopAt { n } if number >= n => {
                self.stopped.store(true, Ordering::SeqCst);
                libc::EINTR
            }
            _ => return Ok(()),
        };
        let source = io::Error::from_raw_os_error(errno);
        Err(TargetError::Io { operation, path: path.to_owned(), source })
    }
}

impl<T: Target> Target for FaultyTarget<T> {
    type Part = T::Part;

    fn begin(&self, path: &str, size: u64, sha256: Sha256) -> Result<T::Part, TargetError> {
        self.count("begin", path)?;
        self.inner.begin(path, size, sha256)
    }

    fn resume(&self, path: &str, size: u64) -> Result<Option<T::Part>, TargetError> {
        self.count("resume", path)?;
        self.inner.resume(path, size)
    }

    fn kept(&self, path: &str) -> Result<Option<u64>, TargetError> {
        self.inner.kept(path)
    }

    fn write_at(&self, part: &mut T::Part, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        (self.before_write.0)();
        let was_stopped = self.is_stopped();
        if let Err(error) = self.count("write", "a part") {
            if !was_stopped {
                self.inner.write_at(part, offset, &data[..data.len() / 2])?;
            }
            return Err(error);
        }
        self.inner.write_at(part, offset, data)
    }

    fn read_at(&self, part: &mut T::Part, offset: u64, buffer: &mut [u8]) -> Result<usize, TargetError> {
        self.count("read back", "a part")?;
        self.inner.read_at(part, offset, buffer)
    }

    fn commit(&self, part: T::Part, proof: &Verified, mtime: Option<i64>) -> Result<Committed, TargetError> {
        self.count("commit", "a part")?;
        self.inner.commit(part, proof, mtime)
    }

    fn abandon(&self, part: T::Part) -> Result<(), TargetError> {
        self.count("abandon", "a part")?;
        self.inner.abandon(part)
    }

    fn open(&self, path: &str) -> Result<Option<(Content, u64)>, TargetError> {
        self.inner.open(path)
    }

    fn barrier(&self) -> Result<bool, TargetError> {
        self.count("sync", "everything")?;
        self.inner.barrier()
    }

    /// Each name is an operation of its own, so that faults strike between them.
    fn publish(&self, names: &[Name]) -> Result<(), TargetError> {
        for name in names {
            let path = match name {
                Name::Link { to, .. } => to,
                Name::Symlink { link, .. } => link,
                Name::Remove { path } => path,
            };
            self.count("publish", path)?;
            self.inner.publish(std::slice::from_ref(name))?;
        }
        Ok(())
    }
}
