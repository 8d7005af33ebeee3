//! Uploads in parts that several machines fill.
//!
//! One machine begins an upload, and joins the parts in the end. Others know the upload by its id, and send parts into it.
//! Which parts are there, only the store says (ListParts). So it does not matter which machine has sent a part, or how
//! often: a part that is sent again takes the place of the same content.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fullbore_engine::digest::Sha256;
use fullbore_wire::http1::Method;
use tokio::task::{JoinSet, spawn_blocking};

use super::{
    Condition, IN_MEMORY_BYTES_MAX, Multipart, Part, Ready, Stored, UploadError, Uploader, await_rest, joined, place,
    read_answer,
};
use crate::client::{Call, CallError};
use crate::journal::Open;
use crate::parts::{Cut, PARTS_MAX};
use crate::xml::{self, XmlError};

/// Parts that one machine sends at once when it sends all that are missing. The window bounds their memory.
const SENT_AT_ONCE: usize = 8;

/// Parts on a page of their listing: what Amazon gives at most. MinIO gives 10,000 to those that do not say, which is more
/// than is read of one answer.
const LISTED_AT_ONCE: &str = "1000";

/// An upload that this machine begins and completes.
#[derive(Clone)]
pub struct SharedUpload {
    multipart: Multipart,
    size: u64,
    part_bytes: u64,
}

/// Parts that a store has of an upload, as it has listed them.
pub struct Listed {
    parts: BTreeMap<u64, Part>,
    count: u64,
}

impl Listed {
    /// Numbers from 0 of the parts that the store lacks.
    pub fn missing(&self) -> Vec<u64> {
        (0..self.count).filter(|number| !self.parts.contains_key(number)).collect()
    }
}

/// Bytes of each part but the last, for a file of this size at this store: as for files that one machine sends.
pub fn part_bytes(uploader: &Uploader, size: u64) -> u64 {
    let most = uploader.client.dialect().parts_max().min(PARTS_MAX);
    Cut::at_most(size, most).part_bytes(0)
}

impl Uploader {
    /// Begins an upload of a file of this size. The journal notes `of`, so that a later run may go on with the upload.
    ///
    /// # Errors
    /// The store refuses, or cannot be reached.
    pub(crate) async fn share(
        &self,
        key: &str,
        fields: Vec<(String, String)>,
        (size, part_bytes): (u64, u64),
        of: String,
    ) -> Result<SharedUpload, UploadError> {
        let multipart = self.begin(key, fields, Some(of)).await?;
        Ok(SharedUpload { multipart, size, part_bytes })
    }

    /// Notes an upload of a run that is gone in this run's journal; false: it has none, or cannot write it.
    pub(crate) fn takes_over(&self, open: &Open) -> bool {
        self.noted(|journal| journal.begun(open)).is_some()
    }

    /// Goes on with an upload that was [taken over](Uploader::takes_over).
    pub(crate) fn go_on_with(&self, open: Open, (size, part_bytes): (u64, u64)) -> SharedUpload {
        let multipart = Multipart { uploader: self.clone(), open, condition: Condition::None, sent: Arc::default() };
        SharedUpload { multipart, size, part_bytes }
    }

    /// Sends a part of a file into the upload of another machine. `number` counts from 0.
    ///
    /// # Errors
    /// The file cannot be read there; the store refuses, has no such upload any more (404), or cannot be reached.
    pub(crate) async fn put_part(
        &self,
        (key, upload_id): (&str, &str),
        file: &Arc<File>,
        number: u64,
        range: Range<u64>,
    ) -> Result<(), UploadError> {
        let bucket = self.client.bucket();
        let (store, name) = (bucket.store().to_owned(), bucket.name.clone());
        let open = Open { store, bucket: name, key: key.to_owned(), upload_id: upload_id.to_owned(), of: None };
        let multipart = Multipart { uploader: self.clone(), open, condition: Condition::None, sent: Arc::default() };
        multipart.send_part(file, number, range).await
    }

    /// A part of a file: in memory, or in its place if it is too large for that. It blocks.
    fn read_part(&self, file: &Arc<File>, number: u64, range: Range<u64>) -> std::io::Result<Ready> {
        let length = range.end - range.start;
        if length > IN_MEMORY_BYTES_MAX {
            return place(&self.work, &self.window, file, number, range);
        }
        let permit = self.work.wait(|| self.window.acquire_blocking(length));
        let mut content = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        self.work.read(|| fullbore_wire::exchange::ReadAt::read_exact_at(&**file, &mut content, range.start))?;
        Ok(Ready { number, body: Bytes::from(content).into(), hash: None, held: Arc::new(vec![permit]) })
    }
}

impl Multipart {
    async fn send_part(&self, file: &Arc<File>, number: u64, range: Range<u64>) -> Result<(), UploadError> {
        let (uploader, file) = (self.uploader.clone(), Arc::clone(file));
        let read = spawn_blocking(move || uploader.read_part(&file, number, range)).await;
        self.part(joined(read)?.map_err(UploadError::Source)?).await.map(drop)
    }
}

impl SharedUpload {
    /// Id of the upload.
    pub fn id(&self) -> &str {
        &self.multipart.open.upload_id
    }

    /// Bytes of each part but the last.
    pub fn part_bytes(&self) -> u64 {
        self.part_bytes
    }

    /// How many parts the object has.
    pub fn count(&self) -> u64 {
        Cut::Even(self.part_bytes).count(self.size)
    }

    /// The same upload, for an object that replaces only what the condition says.
    #[must_use]
    pub fn on(mut self, condition: Condition) -> SharedUpload {
        self.multipart.condition = condition;
        self
    }

    fn range(&self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(self.part_bytes);
        start..start.saturating_add(self.part_bytes).min(self.size)
    }

    /// The parts that the store has. Parts of another size than the plan's are none.
    ///
    /// # Errors
    /// [`CallError`]; the upload is gone (404).
    pub async fn list(&self) -> Result<Listed, CallError> {
        let open = &self.multipart.open;
        let what = || format!("GET {}?uploadId", open.key);
        let mut found = BTreeMap::new();
        let mut marker = 0;
        loop {
            let mut call = Call::new(Method::Get, Some(&open.key)).query("uploadId", &open.upload_id);
            call = call.query("max-parts", LISTED_AT_ONCE);
            if marker > 0 {
                call = call.query("part-number-marker", marker.to_string());
            }
            call.answer_bytes_max = xml::ANSWER_BYTES_MAX;
            let answer = self.multipart.uploader.client.call(call).await?;
            if answer.head.status != 200 {
                return Err(CallError::refused(what(), &answer));
            }
            let page = read_answer(&what(), xml::parts(&answer.body))?;
            for part in page.parts {
                let Some(number) = part.number.checked_sub(1).filter(|number| *number < self.count()) else { continue };
                let range = self.range(number);
                if part.size == range.end - range.start {
                    found.insert(number, listed(number, part));
                }
            }
            match page.next {
                None => return Ok(Listed { parts: found, count: self.count() }),
                // Each page goes further, and numbers end.
                Some(next) if next > marker && next <= PARTS_MAX => marker = next,
                Some(_) => {
                    let source = XmlError::Form("a listing of parts that does not end");
                    return Err(CallError::Answer { what: what(), source });
                }
            }
        }
    }

    /// Sends the parts that the store lacks.
    ///
    /// # Errors
    /// As for [`Uploader::put_file`]. The upload stays.
    pub async fn put_missing(&self, file: &Arc<File>) -> Result<(), UploadError> {
        let mut sending = JoinSet::new();
        let mut sent = self.send_missing(file, &mut sending).await;
        if let Err(error) = &mut sent {
            await_rest(&mut sending, error).await;
        }
        sent
    }

    async fn send_missing(
        &self,
        file: &Arc<File>,
        sending: &mut JoinSet<Result<(), UploadError>>,
    ) -> Result<(), UploadError> {
        for number in self.list().await?.missing() {
            if sending.len() >= SENT_AT_ONCE
                && let Some(sent) = sending.join_next().await
            {
                joined(sent)??;
            }
            let (multipart, file, range) = (self.multipart.clone(), Arc::clone(file), self.range(number));
            sending.spawn(async move { multipart.send_part(&file, number, range).await });
        }
        while let Some(sent) = sending.join_next().await {
            joined(sent)??;
        }
        Ok(())
    }

    /// Makes the object of exactly these parts; `None` if some are missing, or the store has others now.
    ///
    /// # Errors
    /// As for [`Uploader::put_file_on`]. The upload stays.
    pub async fn complete(&self, listed: Listed) -> Result<Option<Stored>, UploadError> {
        let parts: Vec<Part> = listed.parts.into_values().collect();
        if parts.len() as u64 != self.count() {
            return Ok(None);
        }
        match self.multipart.complete(&parts).await {
            // A part was sent again since it was listed, and has another ETag now.
            Err(UploadError::Call(error)) if error.code() == "InvalidPart" => Ok(None),
            stored => stored.map(Some),
        }
    }

    /// Gives the upload up.
    pub async fn give_up(&self) {
        self.multipart.give_up().await;
    }
}

fn listed(number: u64, part: xml::ListedPart) -> Part {
    let xml::ListedPart { size, etag, has_bare_etag, checksum_sha256, .. } = part;
    let hash = checksum_sha256.and_then(|text| STANDARD.decode(text).ok()?.try_into().ok()).map(Sha256);
    Part { number, etag, has_bare_etag, confirmed: hash.is_some(), hash, size }
}
