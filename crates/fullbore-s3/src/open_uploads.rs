//! Uploads in parts that a store has as open, of one key (ListMultipartUploads).

use fullbore_wire::http1::Method;

use super::client::{Call, CallError, Client};
use super::credentials::unix_now;
use super::xml::{self, Begun};

/// Pages that are read, of a thousand uploads each: those of a key come before those of longer ones.
const PAGES_MAX: usize = 10;

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

/// Lists the open uploads of a key.
///
/// # Errors
/// [`CallError`]; not every store can, or lets everybody.
pub async fn list(client: &Client, key: &str) -> Result<OpenUploads, CallError> {
    let mut open = OpenUploads::default();
    let mut marker: Option<(String, String)> = None;
    for _ in 0..PAGES_MAX {
        let mut call =
            Call::new(Method::Get, None).query("uploads", "").query("encoding-type", "url").query("prefix", key);
        if let Some((key, upload_id)) = marker.take() {
            call = call.query("key-marker", key);
            if !upload_id.is_empty() {
                call = call.query("upload-id-marker", upload_id);
            }
        }
        call.answer_bytes_max = xml::ANSWER_BYTES_MAX;
        let answer = client.call(call).await?;
        let what = || format!("list of uploads of {key:?}");
        if answer.head.status != 200 {
            return Err(CallError::refused(what(), &answer));
        }
        let page = xml::uploads(&answer.body).map_err(|source| CallError::Answer { what: what(), source })?;
        open.clock_offset_s = answer.head.date.map(|date| date.saturating_sub(unix_now()));
        open.uploads.extend(page.uploads.into_iter().filter(|upload| upload.key == key));
        marker = page.next;
        if marker.is_none() {
            open.is_complete = true;
            break;
        }
    }
    Ok(open)
}
