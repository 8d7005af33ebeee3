//! Uploads in parts that a store has as open (ListMultipartUploads), and their end (AbortMultipartUpload).

use std::time::Duration;

use fullbore_wire::http1::Method;
use tokio::time::timeout;

use super::client::{Call, CallError, Client};
use super::credentials::unix_now;
use super::xml::{self, Begun};

/// Pages that are read, of a thousand uploads each: those of a key come before those of longer ones.
const PAGES_MAX: usize = 10;

/// Time for the abort of an upload.
pub(crate) const ABORT_LIMIT: Duration = Duration::from_secs(15);

/// What a store has.
#[derive(Debug, Clone, Default)]
pub struct OpenUploads {
    /// The uploads that were begun and not completed.
    pub uploads: Vec<Begun>,
    /// False if the store has more than are listed here.
    pub is_complete: bool,
    /// The store's clock less ours, where it told its time.
    pub clock_offset_s: Option<i64>,
}

/// When an upload in parts was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aborted {
    /// By this request, unless the store says so of every one.
    Now,
    /// It was not there any more.
    Before,
}

/// Lists the open uploads of a key.
///
/// # Errors
/// [`CallError`]; not every store can, or lets everybody.
pub async fn list(client: &Client, key: &str) -> Result<OpenUploads, CallError> {
    let mut open = list_below(client, key).await?;
    open.uploads.retain(|upload| upload.key == key);
    Ok(open)
}

/// Lists the open uploads of all keys with this prefix, and of no others, whatever the store lists.
///
/// # Errors
/// As of [`list`].
pub async fn list_below(client: &Client, prefix: &str) -> Result<OpenUploads, CallError> {
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
        // Callers abort them: those of a store that ignores the prefix may be others'.
        open.uploads.extend(page.uploads.into_iter().filter(|upload| upload.key.starts_with(prefix)));
        marker = page.next;
        if marker.is_none() {
            open.is_complete = true;
            break;
        }
    }
    Ok(open)
}

/// Aborts an upload in parts, also after a stop.
///
/// # Errors
/// When it may still be there.
pub async fn abort(client: &Client, key: &str, upload_id: &str) -> Result<Aborted, CallError> {
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
