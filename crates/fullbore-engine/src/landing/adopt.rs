//! Taking up files that are there already: those of a tree that another tool made, and
//! those whose record was lost. They count when size and SHA-256 are right.

use std::io::{self, Read as _};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::locked;
use crate::digest::{Sha256, Sha256Hasher};
use crate::pipeline::{self, Sender};
use crate::stage::{Kind, Ledger, StageClock};
use crate::target::{Target, TargetError};

/// Files that may wait to be read.
const QUEUE_FILES: usize = 256;
/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// Threads that hash files which are there. Clones are handles to the same ones; the
/// threads end when the last is dropped.
#[derive(Clone, Debug)]
pub struct Adopter {
    requests: Sender<Request>,
}

#[derive(Debug)]
struct Request {
    path: String,
    size: u64,
    sha256: Sha256,
    reply: oneshot::Sender<Result<bool, TargetError>>,
}

impl Adopter {
    /// Starts `threads` threads that read from `target`, as stage "local scan".
    ///
    /// # Errors
    /// When the system starts no more threads.
    pub fn start<T: Target>(target: &Arc<T>, threads: usize, ledger: &Ledger) -> io::Result<Adopter> {
        let clock = ledger.stage("local scan", Kind::Thread);
        let plan = ledger.stage("plan", Kind::Task);
        let (requests, receiver) = pipeline::channel::<Request>(QUEUE_FILES, &plan, &clock);
        // Each file takes long compared with the hand-over: one queue for all.
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads.max(1) {
            let (receiver, clock, target) = (receiver.clone(), clock.clone(), target.clone());
            std::thread::Builder::new().name("local scan".into()).spawn(move || {
                clock.adopt_thread();
                let mut buffer = vec![0; READ_BYTES];
                loop {
                    let request = locked(&receiver).recv_blocking();
                    let Some(Request { path, size, sha256, reply }) = request else {
                        return;
                    };
                    let result = matches(&*target, &clock, &path, size, sha256, &mut buffer);
                    // Whoever asked may have gone.
                    let _ = reply.send(result);
                }
            })?;
        }
        Ok(Adopter { requests })
    }

    /// Whether the file under this path has this size and SHA-256.
    ///
    /// # Errors
    /// When it cannot be read, or a link or directory has its name.
    pub async fn adopt(&self, path: String, size: u64, sha256: Sha256) -> Result<bool, TargetError> {
        let (reply, answer) = oneshot::channel();
        let stopped = || TargetError::Io {
            operation: "read",
            path: path.clone(),
            source: io::Error::other("the threads that read have ended"),
        };
        let request = Request { path: path.clone(), size, sha256, reply };
        self.requests.send(request).await.map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

fn matches(
    target: &impl Target,
    clock: &StageClock,
    path: &str,
    size: u64,
    sha256: Sha256,
    buffer: &mut [u8],
) -> Result<bool, TargetError> {
    let Some((content, length)) = clock.device(|| target.open(path))? else {
        return Ok(false);
    };
    if length != size {
        return Ok(false);
    }
    // It may grow while it is read; one byte too many is enough to know.
    let mut content = content.take(size.saturating_add(1));
    let mut hasher = Sha256Hasher::new();
    loop {
        match clock.device(|| content.read(buffer)) {
            Ok(0) => break,
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                return Err(TargetError::Io { operation: "read", path: path.to_owned(), source });
            }
        }
    }
    clock.add_items(1, hasher.bytes());
    Ok(hasher.verify(size, sha256).is_ok())
}
