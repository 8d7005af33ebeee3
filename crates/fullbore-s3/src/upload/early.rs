//! Uploads a file while it is being written: each part when it is complete, and the last one when the whole is
//! verified.
//!
//! The object is created after that. So its key never has unverified content, and the path to the store is used while a
//! large file is being received.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::{mpsc, watch};

use super::{
    Cut, IN_MEMORY_BYTES_MAX, Multipart, OBJECT_BYTES_MAX, PART_BYTES_MAX, PARTS_MAX, Ready, Stored, UploadError,
    Uploader, Whole, place,
};
use crate::objects::Condition;

/// How far a file has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// This number of bytes from its start is written, and will not change.
    Bytes(u64),
    /// The whole file is written and verified.
    Verified,
}

/// A file that is being written.
pub(crate) struct Unfinished {
    /// The open file.
    pub file: Arc<File>,
    /// Final size of the file, in bytes.
    pub size: u64,
    /// Progress of the writer. If the sender is dropped before the file is verified, the file is abandoned.
    pub extent: watch::Receiver<Extent>,
    /// Counts the bytes that the store has acknowledged.
    pub sent: Arc<AtomicU64>,
}

impl Uploader {
    /// Uploads a file in parts while it is being written, on a condition as in [`Uploader::put_file_on`]. No request is
    /// made before the first part is written. The upload of an abandoned file is aborted.
    ///
    /// # Errors
    /// As [`Uploader::put_file_on`], and [`UploadError::Source`] if the file is never verified.
    pub(crate) async fn put_early(
        &self,
        key: &str,
        fields: Vec<(String, String)>,
        mut of: Unfinished,
        condition: &Condition,
    ) -> Result<Stored, UploadError> {
        let cut = Cut::at_most(of.size, self.client.dialect().parts_max().min(PARTS_MAX));
        if of.size > OBJECT_BYTES_MAX || cut.part_bytes(0) > PART_BYTES_MAX {
            return Err(UploadError::TooLarge { what: "an object of this store", most_bytes: OBJECT_BYTES_MAX });
        }
        of.reach(cut.part_bytes(0)).await.map_err(UploadError::Source)?;
        let (parts, ready) = mpsc::channel(1);
        let sent = Arc::clone(&of.sent);
        let reader = tokio::spawn(self.clone().read_early(cut, of, parts));
        let upload = self.begin(key, fields, None).await;
        let upload = upload.map(|upload| Multipart { condition: condition.clone(), sent, ..upload });
        self.in_parts(upload, ready, reader, Whole::Verified).await
    }

    /// Passes on each part when it is written.
    async fn read_early(self, cut: Cut, mut of: Unfinished, parts: mpsc::Sender<Ready>) -> io::Result<()> {
        for number in 0..cut.count(of.size) {
            let start = number * cut.part_bytes(0);
            let end = (start + cut.part_bytes(0)).min(of.size);
            of.reach(end).await?;
            let bytes = end - start;
            // A part that waits for its bytes holds no permit, so it never blocks parts that are written.
            let permit = match bytes > IN_MEMORY_BYTES_MAX {
                true => None,
                false => Some(self.window.acquire(bytes).await),
            };
            of.is_wanted()?;
            let (work, window, file) = (Arc::clone(&self.work), self.window.clone(), Arc::clone(&of.file));
            let reading = tokio::task::spawn_blocking(move || {
                let Some(permit) = permit else { return place(&work, &window, &file, number, start..end) };
                let mut content = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
                work.read(|| file.read_exact_at(&mut content, start))?;
                Ok(Ready { number, body: content.into(), hash: None, held: Arc::new(vec![permit]) })
            });
            if parts.send(reading.await.map_err(io::Error::other)??).await.is_err() {
                // The upload has failed, and reports the reason.
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Unfinished {
    /// Waits until the file is written up to `end`; at its end, until it is verified.
    async fn reach(&mut self, end: u64) -> io::Result<()> {
        let is_last = end >= self.size;
        let is_there = |extent: &Extent| match *extent {
            Extent::Verified => true,
            Extent::Bytes(bytes) => !is_last && bytes >= end,
        };
        // An error means the same as a failed check after it.
        let _ = self.extent.wait_for(is_there).await;
        self.is_wanted()
    }

    /// Fails if the file was abandoned, so that its parts are not sent in vain.
    fn is_wanted(&self) -> io::Result<()> {
        // In this order: the last value precedes the close.
        let is_closed = self.extent.has_changed().is_err();
        match is_closed && *self.extent.borrow() != Extent::Verified {
            true => Err(io::Error::other("the file was given up before it was complete")),
            false => Ok(()),
        }
    }
}
