//! Uploads the parts of a large file while it is being written.

use std::fs::File;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use fullbore_engine::digest::Sha256;
use fullbore_engine::ranges::Ranges;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Flying, InFlight, Layout, StoreTarget, WriteMode, with_hash};
use crate::client::CallError;
use crate::upload::early::{Extent, Unfinished};
use crate::upload::{Stored, UploadError};

/// The upload of a file that is being written. Dropping it aborts the upload; the target's barrier waits for that.
#[derive(Debug)]
pub struct Early {
    written: Ranges,
    /// Offset up to which the file is written without a gap: parts of it may be in flight.
    front: u64,
    extent: watch::Sender<Extent>,
    /// Number of bytes that the store has acknowledged.
    sent: Arc<AtomicU64>,
    sending: Option<JoinHandle<Result<Stored, UploadError>>>,
    runtime: Handle,
    in_flight: Arc<InFlight>,
}

impl Early {
    /// Begins the upload of a file of this size and hash; nothing of it is written yet.
    pub(super) fn begin<L: Layout>(
        target: &StoreTarget<L>,
        path: &str,
        file: &Arc<File>,
        size: u64,
        sha256: Sha256,
    ) -> Early {
        let (extent, reached) = watch::channel(Extent::Bytes(0));
        let sent = Arc::<AtomicU64>::default();
        let of = Unfinished { file: Arc::clone(file), size, extent: reached, sent: Arc::clone(&sent) };
        let (target, path) = (target.clone(), path.to_owned());
        let (runtime, in_flight) = (target.runtime.clone(), Arc::clone(&target.in_flight));
        let sending = runtime.spawn(async move {
            let (key, fields) = (target.objects.key(&path), with_hash(target.layout.fields(&path), sha256));
            let mode = target.layout.write_mode();
            // If another machine has stored the file, do not send it in vain.
            if mode == WriteMode::CreateShared && target.objects.head(&path).await?.is_some() {
                return Err(UploadError::Condition);
            }
            target.uploader.put_early(&key, fields, of, &mode.condition()).await
        });
        Early { written: Ranges::new(), front: 0, extent, sent, sending: Some(sending), runtime, in_flight }
    }

    /// Records written bytes. False if they may differ from bytes that were sent.
    pub(super) fn note(&mut self, offset: u64, bytes: u64) -> bool {
        if offset < self.front {
            return false;
        }
        self.written.insert(offset..offset + bytes);
        let front = self.written.end_of_run(self.front);
        if front > self.front {
            self.front = front;
            self.extent.send_replace(Extent::Bytes(front));
        }
        true
    }

    /// Counter of acknowledged bytes.
    pub(super) fn sent(&self) -> Weak<AtomicU64> {
        Arc::downgrade(&self.sent)
    }

    /// Completes the upload of a verified file: the last part is sent, and the object is created. `None` if the file
    /// must be sent anew.
    pub(super) fn complete(mut self, size: u64) -> Option<JoinHandle<Result<Stored, UploadError>>> {
        if self.front < size {
            return None;
        }
        self.extent.send_replace(Extent::Verified);
        self.sending.take()
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if let Some(sending) = self.sending.take() {
            let flying = Flying::begin(&self.in_flight);
            self.runtime.spawn(async move {
                let _ = sending.await;
                drop(flying);
            });
        }
    }
}

/// Result of an early upload; `None` if the whole file must be uploaded separately.
pub(super) async fn end(
    sending: JoinHandle<Result<Stored, UploadError>>,
    learn_parts_max: impl FnOnce(u64),
) -> Option<Result<Stored, UploadError>> {
    match sending.await {
        Ok(Ok(stored)) => Some(Ok(stored)),
        Ok(Err(UploadError::TooManyParts { most, .. })) => {
            learn_parts_max(most);
            None
        }
        // These errors are final. If the store has damaged the object, it would be found and trusted.
        Ok(Err(
            error @ (UploadError::Condition
            | UploadError::Conflict
            | UploadError::Damaged { .. }
            | UploadError::Call(CallError::Interrupted | CallError::LockLost)),
        )) => Some(Err(error)),
        // It may be outdated: the store was away for a while, or somebody has aborted uploads that were open for long.
        Ok(Err(error)) => {
            tracing::info!(%error, "an upload has failed and is begun anew");
            None
        }
        Err(_) => None,
    }
}
