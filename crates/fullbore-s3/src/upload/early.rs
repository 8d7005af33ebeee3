//! A file that goes up while it is written: its parts as they are complete, and the last one when the whole is verified.
//!
//! The object is made of the parts after that. So nothing unverified is ever under its key, and the way to the store is
//! not idle while a large file comes in.

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
    /// So many bytes from its start are there, and stay as they are.
    Bytes(u64),
    /// All of it is there, and verified.
    Verified,
}

/// A file that is being written.
pub(crate) struct Unfinished {
    /// The file.
    pub file: Arc<File>,
    /// Bytes that it is to have.
    pub size: u64,
    /// How far it is. When the other end is dropped before it is verified, it is given up.
    pub extent: watch::Receiver<Extent>,
    /// Counts the bytes that the store has acknowledged.
    pub sent: Arc<AtomicU64>,
}

impl Uploader {
    /// Uploads a file in parts while it is written, on a condition as in [`Uploader::put_file_on`]. No request is made before the
    /// first part is there. The upload of a file that is given up is given up, too.
    ///
    /// # Errors
    /// As of [`Uploader::put_file_on`], and [`UploadError::Source`] if the file is never verified.
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

    /// Hands over each part when it is there.
    async fn read_early(self, cut: Cut, mut of: Unfinished, parts: mpsc::Sender<Ready>) -> io::Result<()> {
        for number in 0..cut.count(of.size) {
            let start = number * cut.part_bytes(0);
            let end = (start + cut.part_bytes(0)).min(of.size);
            of.reach(end).await?;
            let bytes = end - start;
            // What waits for its bytes has no permit, so parts that are there are never behind it.
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
                // The upload has failed, and tells why.
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Unfinished {
    /// Waits until the file is written up to `end`, or, at its end, until it is verified.
    async fn reach(&mut self, end: u64) -> io::Result<()> {
        let is_last = end >= self.size;
        let is_there = |extent: &Extent| match *extent {
            Extent::Verified => true,
            Extent::Bytes(bytes) => !is_last && bytes >= end,
        };
        // An error says the same as the question after it.
        let _ = self.extent.wait_for(is_there).await;
        self.is_wanted()
    }

    /// Fails if the file is given up: what is there of it is not sent in vain.
    fn is_wanted(&self) -> io::Result<()> {
        // In this order: the last word comes before the end.
        let is_closed = self.extent.has_changed().is_err();
        match is_closed && *self.extent.borrow() != Extent::Verified {
            true => Err(io::Error::other("the file was given up before it was complete")),
            false => Ok(()),
        }
    }
}
