//! Large files that workers put in parts together: the planner begins one upload for each of them, and completes it.
//!
//! Parts are cut as those of a file that one machine puts, so that the objects are the same. The object appears when all
//! parts are there and the file is still as the planner listed it; otherwise the upload is given up.

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

/// Size from which a file is put in parts by several machines. One machine at 100 Mbit/s takes 21 s for it. In the
/// simulation, files that were not split below that size kept 100 workers within 5 % of the ideal time.
pub const SPLIT_BYTES_MIN: u64 = 256 << 20;

/// Files of a turn that are put in parts at once, the largest ones: each is an open upload of up to 10,000 tasks. The
/// others go to one worker each, and are under way while the parts of these fill the gaps.
pub const UPLOADS_MAX: usize = 16;

/// How often the planner sends what is missing of a file, and asks for its object: others may still send parts, whose
/// ETags then change.
const TRIES: usize = 3;

/// A file to be put in parts.
pub struct Large {
    /// The place of the file in its turn.
    pub at: usize,
    /// The file.
    pub object: Planned,
    /// The file in messages.
    pub item: Item,
    /// The file as it was before any part was read. Size and time alone may be those of another content.
    pub identity: Identity,
    /// What its object may replace: see [`fullbore_fleet::message::Task::replaces`].
    pub replaces: Option<String>,
    /// Fields of its object.
    pub fields: Vec<(String, String)>,
    /// The fields that the user gave, as text: an upload has them from its beginning.
    pub given: String,
    /// An upload of a run that was killed.
    pub left: Option<Open>,
}

/// What the journal notes of an upload: a later run goes on with it only for the same file, cut in the same way, and with
/// the same fields.
pub fn identify(identity: &Identity, part_bytes: u64, given: &str) -> String {
    let mut text = identity.to_bytes().to_vec();
    text.extend_from_slice(format!("{part_bytes} {given}").as_bytes());
    Sha256::of(&text).to_string()
}

/// A file that is being put in parts.
pub struct Split {
    large: Large,
    upload: SharedUpload,
    /// Numbers from 0 of the parts that the store lacked at the last look.
    missing: Vec<u64>,
}

/// The end of a file's upload.
pub enum End {
    /// The object is there.
    Stored(Stored),
    /// The file cannot be put.
    Failed(UploadError),
    /// The upload is gone, another object is there, or the store does not take the upload. The planner's machine puts the
    /// whole file, because what a listing has then may be somebody else's.
    Whole,
}

impl Split {
    /// Begins the upload of a file, or goes on with one. `None`: the file is to be put as a whole.
    pub async fn begin(mut large: Large, uploader: &Uploader) -> Option<Split> {
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
        // Not every store can list parts, or lets everybody.
        match upload.list().await {
            Ok(listed) => Some(Split { large, upload, missing: listed.missing() }),
            Err(error) => {
                tracing::info!(key = large.object.key, %error, "cannot list the parts of an upload");
                upload.give_up().await;
                None
            }
        }
    }

    /// The place of the file in its turn.
    pub fn at(&self) -> usize {
        self.large.at
    }

    /// Tasks for the parts that the store lacked at the last look.
    pub fn tasks(&self, run: &RunId, round: u32) -> impl Iterator<Item = Task> {
        self.missing.iter().map(move |number| {
            let (upload, part_bytes) = (self.upload.id().to_owned(), self.upload.part_bytes());
            let number = u32::try_from(number + 1).unwrap_or(u32::MAX);
            let (run, items) = (run.clone(), vec![self.large.item.clone()]);
            Task { kind: Kind::Part(Part { upload, number, part_bytes }), run, round, items, replaces: Vec::new() }
        })
    }

    /// The file, if it is as it was listed.
    fn open(&self) -> Result<File, UploadError> {
        let found = self.large.object.found.as_ref();
        let found = found.ok_or_else(|| UploadError::Source(io::ErrorKind::NotFound.into()))?;
        let file = found.open(&self.large.object.path).map_err(UploadError::Source)?;
        let about = file.metadata().map_err(UploadError::Source)?;
        // Workers go by the item, which was made a moment earlier.
        let is_as_listed = Identity::of(&about) == self.large.identity
            && item(self.large.item.path.clone(), &about) == self.large.item;
        match is_as_listed {
            true => Ok(file),
            false => Err(UploadError::Changed),
        }
    }

    /// Looks which parts the store has, and makes the object of them if it has all. `None`: parts are missing, or the store
    /// does not join them now.
    pub async fn look(&mut self) -> Result<Option<End>, CallError> {
        for _ in 0..TRIES {
            let listed = match self.upload.list().await {
                Ok(listed) => listed,
                Err(error) if is_final(&error) => return Ok(Some(self.failed(None).await)),
                Err(error) => return Err(error),
            };
            self.missing = listed.missing();
            // After the listing: the parts in it were read before, so they are of the file as it was listed.
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

    /// Gives the upload up after a failure.
    async fn failed(&self, error: Option<UploadError>) -> End {
        self.upload.give_up().await;
        match error {
            Some(error @ (UploadError::Changed | UploadError::Source(_) | UploadError::Damaged { .. })) => {
                End::Failed(error)
            }
            // Another object is there now, or the store takes fewer parts: whoever puts the whole file finds out.
            _ => End::Whole,
        }
    }

    /// Sends the parts that the store lacks from this machine, and makes the object of all.
    pub async fn put_rest(mut self, uploader: &Uploader) -> End {
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
                // What passes is tried again.
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

    /// Gives the upload up.
    pub async fn give_up(self) {
        self.upload.give_up().await;
    }
}
