//! Multipart uploads that several machines fill.
//!
//! One machine begins an upload, and finally joins the parts. Others know the upload by its id, and send parts into it.
//! Only the store knows which parts are stored (ListParts). So it does not matter which machine sent a part, or how
//! often: a part that is sent again replaces the same content.

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

/// Maximum number of parts that one machine sends at once when it sends all missing parts. The window bounds their
/// memory.
const SENT_AT_ONCE: usize = 8;

/// Number of parts per page of a listing: Amazon's maximum. MinIO would send 10,000 by default, more than is read of
/// one answer.
const LISTED_AT_ONCE: &str = "1000";

/// An upload that this machine begins and completes.
#[derive(Clone)]
pub(crate) struct SharedUpload {
    multipart: Multipart,
    size: u64,
    part_bytes: u64,
}

/// The stored parts of an upload, as listed by the store.
pub(crate) struct Listed {
    parts: BTreeMap<u64, Part>,
    count: u64,
}

impl Listed {
    /// Numbers, from 0, of the parts that the store lacks.
    pub(crate) fn missing(&self) -> Vec<u64> {
        (0..self.count).filter(|number| !self.parts.contains_key(number)).collect()
    }
}

/// Size of each part except the last, for a file of this size at this store: the same as for an upload by one machine.
pub(crate) fn part_bytes(uploader: &Uploader, size: u64) -> u64 {
    let most = uploader.client.dialect().parts_max().min(PARTS_MAX);
    Cut::at_most(size, most).part_bytes(0)
}

impl Uploader {
    /// Begins an upload of a file of this size. The journal records `of`, so that a later run may continue the upload.
    ///
    /// # Errors
    /// [`UploadError::Call`] if the store refuses or cannot be reached.
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

    /// Records an upload of a dead run in this run's journal; false if there is no journal, or it cannot be written.
    pub(crate) fn takes_over(&self, open: &Open) -> bool {
        self.noted(|journal| journal.begun(open)).is_some()
    }

    /// Continues an upload that was [taken over](Uploader::takes_over).
    pub(crate) fn go_on_with(&self, open: Open, (size, part_bytes): (u64, u64)) -> SharedUpload {
        let multipart = Multipart { uploader: self.clone(), open, condition: Condition::None, sent: Arc::default() };
        SharedUpload { multipart, size, part_bytes }
    }

    /// Sends a part of a file into another machine's upload. `number` counts from 0.
    ///
    /// # Errors
    /// [`UploadError::Source`] if the file cannot be read there; [`UploadError::Call`] if the store refuses, has no
    /// such upload any more (404), or cannot be reached.
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

    /// Reads a part of a file into memory, or hashes it in place if it is too large for that. Blocks.
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
    /// Id of the upload, given by the store.
    pub(crate) fn id(&self) -> &str {
        &self.multipart.open.upload_id
    }

    /// Size of each part except the last, in bytes.
    pub(crate) fn part_bytes(&self) -> u64 {
        self.part_bytes
    }

    /// Number of parts of the object.
    pub(crate) fn count(&self) -> u64 {
        Cut::Even(self.part_bytes).count(self.size)
    }

    /// The same upload, with a condition for replacing the object.
    #[must_use]
    pub(crate) fn on(mut self, condition: Condition) -> SharedUpload {
        self.multipart.condition = condition;
        self
    }

    fn range(&self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(self.part_bytes);
        start..start.saturating_add(self.part_bytes).min(self.size)
    }

    /// Lists the stored parts. Parts of an unexpected size are ignored.
    ///
    /// # Errors
    /// A [`CallError`] if a request fails; with status 404 if the upload does not exist any more.
    pub(crate) async fn list(&self) -> Result<Listed, CallError> {
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
                // Each page must advance, and part numbers are bounded.
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
    /// As [`Uploader::put_file`]. The upload stays open.
    pub(crate) async fn put_missing(&self, file: &Arc<File>) -> Result<(), UploadError> {
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

    /// Creates the object from exactly these parts; `None` if some are missing, or have changed since they were listed.
    ///
    /// # Errors
    /// As [`Uploader::put_file_on`]. The upload stays open.
    pub(crate) async fn complete(&self, listed: Listed) -> Result<Option<Stored>, UploadError> {
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

    /// Aborts the upload.
    pub(crate) async fn give_up(&self) {
        self.multipart.give_up().await;
    }
}

fn listed(number: u64, part: xml::ListedPart) -> Part {
    let xml::ListedPart { size, etag, has_bare_etag, checksum_sha256, .. } = part;
    let hash = checksum_sha256.and_then(|text| STANDARD.decode(text).ok()?.try_into().ok()).map(Sha256);
    Part { number, etag, has_bare_etag, confirmed: hash.is_some(), hash, size }
}
