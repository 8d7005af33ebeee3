//! Large files that workers upload in parts together: the planner begins one upload for each, and completes it.
//!
//! Parts have the same sizes as in an upload by one machine, so the objects are the same. The object appears when all
//! parts are stored and the file is still as the planner listed it; otherwise the upload is aborted.

use std::fs::File;
use std::io;
use std::sync::Arc;

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::identity::Identity;
use fullbore_fleet::message::{Item, Kind, Part, Task};
use fullbore_fleet::names::RunId;

use super::super::plan::Planned;
use super::{condition, item, planner::is_final};
use crate::client::CallError;
use crate::journal::Open;
use crate::parts::PART_BYTES_MAX;
use crate::upload::shared::{SharedUpload, part_bytes};
use crate::upload::{Stored, UploadError, Uploader};

/// Minimum size of a file that several machines upload in parts, in bytes. One machine at 100 Mbit/s takes 21 s for it.
/// In the simulation, undivided files below that size kept 100 workers within 5 % of the ideal time.
pub const SPLIT_BYTES_MIN: u64 = 256 << 20;

/// Maximum number of files of a turn that are uploaded in parts at once, the largest ones. Each is an open upload of up
/// to 10,000 tasks. The other files go to one worker each, while these parts fill the gaps.
pub(super) const UPLOADS_MAX: usize = 16;

/// Number of times that the planner sends missing parts of a file and completes it. Others may still send parts, whose
/// ETags change then.
const TRIES: usize = 3;

/// A file to be uploaded in parts.
pub(super) struct Large {
    /// Index of the file in its turn.
    pub at: usize,
    /// The file in the plan.
    pub object: Planned,
    /// The file in messages.
    pub item: Item,
    /// Identity of the file before any part was read. Size and time alone could match another content.
    pub identity: Identity,
    /// ETag that its object may replace: see [`fullbore_fleet::message::Task::replaces`].
    pub replaces: Option<String>,
    /// Header fields of its object.
    pub fields: Vec<(String, String)>,
    /// The user's fields as text: an upload has them from its beginning.
    pub given: String,
    /// The upload of a killed run, if there is one.
    pub left: Option<Open>,
}

/// Identifies an upload in the journal. A later run continues it only for the same file, part size and fields.
pub(super) fn identify(identity: &Identity, part_bytes: u64, given: &str) -> String {
    let mut text = identity.to_bytes().to_vec();
    text.extend_from_slice(format!("{part_bytes} {given}").as_bytes());
    Sha256::of(&text).to_string()
}

/// A file that is being uploaded in parts.
pub(super) struct Split {
    large: Large,
    upload: SharedUpload,
    /// Numbers, from 0, of the parts that the store lacked at the last look.
    missing: Vec<u64>,
}

/// End of a file's upload.
pub(super) enum End {
    /// The object is stored.
    Stored(Stored),
    /// The file cannot be uploaded.
    Failed(UploadError),
    /// The upload is gone, another object exists, or the store does not accept the upload. The planner's machine
    /// uploads the whole file, because a listed object may be somebody else's.
    Whole,
}

impl Split {
    /// Begins the upload of a file, or continues an old one. `None` if the file must be uploaded whole.
    pub(super) async fn begin(mut large: Large, uploader: &Uploader) -> Option<Split> {
        let size = large.item.size;
        let part_bytes = part_bytes(uploader, size);
        if part_bytes >= size || part_bytes > PART_BYTES_MAX {
            return None;
        }
        let on = condition(large.replaces.as_deref());
        let of = identify(&large.identity, part_bytes, &large.given);
        if let Some(open) = large.left.take() {
            // The file may have changed since the journal was read.
            let is_of_this = open.of.as_ref() == Some(&of);
            let upload = uploader.go_on_with(open, (size, part_bytes)).on(on.clone());
            match upload.list().await {
                Ok(listed) if is_of_this => {
                    let missing = listed.missing();
                    tracing::info!(key = large.object.key, missing = missing.len(), "going on with an upload in parts");
                    return Some(Split { large, upload, missing });
                }
                _ => upload.give_up().await,
            }
        }
        let begun = uploader.share(&large.object.key, large.fields.clone(), (size, part_bytes), of).await;
        let upload = match begun {
            Ok(upload) => upload.on(on),
            Err(error) => {
                tracing::info!(key = large.object.key, %error, "cannot begin an upload for several machines");
                return None;
            }
        };
        // Some stores cannot list parts, or do not allow every user to.
        match upload.list().await {
            Ok(listed) => Some(Split { large, upload, missing: listed.missing() }),
            Err(error) => {
                tracing::info!(key = large.object.key, %error, "cannot list the parts of an upload");
                upload.give_up().await;
                None
            }
        }
    }

    /// Index of the file in its turn.
    pub(super) fn at(&self) -> usize {
        self.large.at
    }

    /// Tasks for the parts that the store lacked at the last look.
    pub(super) fn tasks(&self, run: &RunId, round: u32) -> impl Iterator<Item = Task> {
        self.missing.iter().map(move |number| {
            let (upload, part_bytes) = (self.upload.id().to_owned(), self.upload.part_bytes());
            let number = u32::try_from(number + 1).unwrap_or(u32::MAX);
            let (run, items) = (run.clone(), vec![self.large.item.clone()]);
            Task { kind: Kind::Part(Part { upload, number, part_bytes }), run, round, items, replaces: Vec::new() }
        })
    }

    /// Opens the file if it is as it was listed.
    fn open(&self) -> Result<File, UploadError> {
        let found = self.large.object.found.as_ref();
        let found = found.ok_or_else(|| UploadError::Source(io::ErrorKind::NotFound.into()))?;
        let file = found.open(&self.large.object.path).map_err(UploadError::Source)?;
        let about = file.metadata().map_err(UploadError::Source)?;
        // Workers compare with the item, which was made a moment earlier.
        let is_as_listed = Identity::of(&about) == self.large.identity
            && item(self.large.item.path.clone(), &about) == self.large.item;
        match is_as_listed {
            true => Ok(file),
            false => Err(UploadError::Changed),
        }
    }

    /// Looks up the stored parts, and completes the object if all are there. `None` if parts are missing, or the store
    /// cannot complete it now.
    ///
    /// # Errors
    /// A [`CallError`] for a request that may succeed later; a final refusal is the [`End`].
    pub(super) async fn look(&mut self) -> Result<Option<End>, CallError> {
        for _ in 0..TRIES {
            let listed = match self.upload.list().await {
                Ok(listed) => listed,
                Err(error) if is_final(&error) => return Ok(Some(self.failed(None).await)),
                Err(error) => return Err(error),
            };
            self.missing = listed.missing();
            // Check after the listing: its parts were read before, so they are of the file as it was listed.
            if let Err(error) = self.open() {
                return Ok(Some(self.failed(Some(error)).await));
            }
            if !self.missing.is_empty() {
                return Ok(None);
            }
            match self.upload.complete(listed).await {
                Ok(Some(stored)) => return Ok(Some(End::Stored(stored))),
                // A part was sent again since it was listed.
                Ok(None) => {}
                // The next listing shows whether the store has ended the upload.
                Err(UploadError::Conflict) => return Ok(None),
                Err(UploadError::Call(error)) if !is_final(&error) => return Err(error),
                Err(error) => return Ok(Some(self.failed(Some(error)).await)),
            }
        }
        Ok(None)
    }

    /// Aborts the upload after a failure.
    async fn failed(&self, error: Option<UploadError>) -> End {
        self.upload.give_up().await;
        match error {
            Some(error @ (UploadError::Changed | UploadError::Source(_) | UploadError::Damaged { .. })) => {
                End::Failed(error)
            }
            // Another object exists now, or the store accepts fewer parts: uploading the whole file will show it.
            _ => End::Whole,
        }
    }

    /// Sends the missing parts from this machine, and completes the object.
    pub(super) async fn put_rest(mut self, uploader: &Uploader) -> End {
        for _ in 0..TRIES {
            let sent = match self.open() {
                Ok(file) => self.upload.put_missing(&Arc::new(file)).await,
                Err(error) => Err(error),
            };
            match sent {
                Ok(()) => {}
                Err(UploadError::TooManyParts { most, .. }) => {
                    uploader.client.dialect().learn_parts_max(most);
                    return self.failed(None).await;
                }
                // A transient failure is tried again.
                Err(UploadError::Call(error)) if !is_final(&error) && !matches!(error, CallError::Interrupted) => {
                    tracing::info!(key = self.large.object.key, %error, "parts of a file were not sent");
                    continue;
                }
                Err(error) => return self.failed(Some(error)).await,
            }
            if let Ok(Some(end)) = self.look().await {
                return end;
            }
        }
        self.failed(None).await
    }

    /// Aborts the upload.
    pub(super) async fn give_up(self) {
        self.upload.give_up().await;
    }
}
