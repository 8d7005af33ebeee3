//! What is in a bucket, page by page.

use fullbore_wire::http1::Method;

use super::client::{Call, CallError, Client};
use super::xml::{self, Listed};

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// The next page.
    Yes,
    /// That was enough.
    No,
}

/// Lists objects whose keys begin with `prefix`, in the order of their keys; `each` hears of every page.
///
/// # Errors
/// [`CallError`]
pub async fn list(
    client: &Client,
    prefix: &str,
    mut each: impl FnMut(Vec<Listed>) -> More + Send,
) -> Result<(), CallError> {
    let mut token: Option<String> = None;
    loop {
        let mut call = Call::new(Method::Get, None).query("list-type", "2").query("encoding-type", "url");
        if !prefix.is_empty() {
            call = call.query("prefix", prefix);
        }
        if let Some(token) = &token {
            call = call.query("continuation-token", token);
        }
        call.answer_bytes_max = xml::ANSWER_BYTES_MAX;
        let answer = client.call(call).await?;
        let what = || format!("list of {prefix:?}");
        if answer.head.status != 200 {
            let error = xml::service_error(&answer.body).unwrap_or_default();
            return Err(CallError::Refused { what: what(), status: answer.head.status, error });
        }
        let page = xml::page(&answer.body).map_err(|source| CallError::Answer { what: what(), source })?;
        let more = each(page.objects);
        match page.next {
            // The same page again would never end.
            Some(next) if more == More::Yes && token.as_ref() != Some(&next) => token = Some(next),
            _ => return Ok(()),
        }
    }
}
