//! Lists the open multipart uploads of a store (ListMultipartUploads), and aborts them (AbortMultipartUpload).

use std::time::Duration;

use fullbore_wire::http1::Method;
use tokio::time::timeout;

use super::client::{Call, CallError, Client};
use super::credentials::unix_now;
use super::xml::{self, Begun};

/// Maximum number of pages read, with a thousand uploads each. Uploads of a key precede those of longer keys.
const PAGES_MAX: usize = 10;

/// Time limit for aborting an upload.
pub(crate) const ABORT_LIMIT: Duration = Duration::from_secs(15);

/// Open uploads of a store.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenUploads {
    /// Uploads that were begun and not completed.
    pub uploads: Vec<Begun>,
    /// False if the store has more uploads than are listed here.
    pub is_complete: bool,
    /// The store's clock minus ours, in seconds, if it gave its time.
    pub clock_offset_s: Option<i64>,
}

/// When a multipart upload was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aborted {
    /// By this request; some stores say so every time.
    Now,
    /// Before: it did not exist any more.
    Before,
}

/// Lists the open uploads of a key.
///
/// # Errors
/// A [`CallError`] if a request fails. Some stores cannot list uploads, or do not allow every user to.
pub(crate) async fn list(client: &Client, key: &str) -> Result<OpenUploads, CallError> {
    let mut open = list_below(client, key).await?;
    open.uploads.retain(|upload| upload.key == key);
    Ok(open)
}

/// Lists the open uploads of all keys with this prefix. Others are dropped, whatever the store lists.
///
/// # Errors
/// As [`list`].
pub(crate) async fn list_below(client: &Client, prefix: &str) -> Result<OpenUploads, CallError> {
    let mut open = OpenUploads::default();
    let mut marker: Option<(String, String)> = None;
    for _ in 0..PAGES_MAX {
        let mut call =
            Call::new(Method::Get, None).query("uploads", "").query("encoding-type", "url").query("prefix", prefix);
        if let Some((key, upload_id)) = marker.take() {
            call = call.query("key-marker", key);
            if !upload_id.is_empty() {
                call = call.query("upload-id-marker", upload_id);
            }
        }
        call.answer_bytes_max = xml::ANSWER_BYTES_MAX;
        let answer = client.call(call).await?;
        let what = || format!("list of uploads of {prefix:?}");
        if answer.head.status != 200 {
            return Err(CallError::refused(what(), &answer));
        }
        let page = xml::uploads(&answer.body).map_err(|source| CallError::Answer { what: what(), source })?;
        open.clock_offset_s = answer.head.date.map(|date| date.saturating_sub(unix_now()));
        // Callers abort them: in a store that ignores the prefix, they may be those of others.
        open.uploads.extend(page.uploads.into_iter().filter(|upload| upload.key.starts_with(prefix)));
        marker = page.next;
        if marker.is_none() {
            open.is_complete = true;
            break;
        }
    }
    Ok(open)
}

/// Aborts a multipart upload, even after a stop.
///
/// # Errors
/// A [`CallError`] if the store refuses, or does not answer within 15 s. The upload may still exist then.
pub(crate) async fn abort(client: &Client, key: &str, upload_id: &str) -> Result<Aborted, CallError> {
    let mut call = Call::new(Method::Delete, Some(key)).query("uploadId", upload_id);
    (call.at_the_end, call.is_unfenced) = (true, true);
    let what = format!("DELETE {key}?uploadId");
    let made = timeout(ABORT_LIMIT, client.call(call)).await;
    let made = made.unwrap_or_else(|_| {
        Err(CallError::Network { what: what.clone(), reason: "no answer in time".into(), tries: 1 })
    });
    match made {
        Ok(answer) if (200..300).contains(&answer.head.status) => Ok(Aborted::Now),
        Ok(answer) if answer.head.status == 404 => Ok(Aborted::Before),
        Ok(answer) => Err(CallError::refused(&what, &answer)),
        Err(error) if error.code() == "NoSuchUpload" => Ok(Aborted::Before),
        Err(error) => Err(error),
    }
}
