//! Objects taken away, a thousand by one request.

use fullbore_engine::digest::Sha256;
use fullbore_wire::http1::Method;

use super::client::{Call, CallError, Client};
use super::compare::md5_base64;
use super::xml::{self, ServiceError};

/// Keys of one request, by the API reference of DeleteObjects.
pub const KEYS_AT_ONCE: usize = 1000;

/// Removes at most [`KEYS_AT_ONCE`] objects; gives those that are still there, and why.
///
/// # Errors
/// [`CallError`], when nothing is known of any of them.
pub async fn remove(client: &Client, keys: &[String]) -> Result<Vec<(String, ServiceError)>, CallError> {
    let mut body = String::from("<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>");
    let mut left = Vec::new();
    let mut named = false;
    for key in keys {
        match xml::escape(key) {
            Some(key) => {
                for part in ["<Object><Key>", &key, "</Key></Object>"] {
                    body.push_str(part);
                }
                named = true;
            }
            // XML cannot say this key; its own request can.
            None => match client.call(Call::new(Method::Delete, Some(key))).await {
                Ok(_) => {}
                Err(CallError::Refused { error, .. }) => left.push((key.clone(), error)),
                Err(error) => return Err(error),
            },
        }
    }
    if !named {
        return Ok(left);
    }
    body.push_str("</Delete>");
    let hash = Sha256::of(body.as_bytes());
    let mut call = Call::new(Method::Post, None)
        .query("delete", "")
        .field("Content-Type", "application/xml")
        // What all stores take; some of them do not know other checksums here.
        .field("Content-MD5", md5_base64(body.as_bytes()))
        .body(body, hash);
    call.answer_bytes_max = xml::ANSWER_BYTES_MAX;
    call.errors_in_body = false;
    let what = || "POST ?delete".to_owned();
    let answer = client.call(call).await?;
    if !(200..300).contains(&answer.head.status) {
        return Err(CallError::refused(what(), &answer));
    }
    if answer.body.is_empty() {
        return Ok(left);
    }
    let failed = xml::not_deleted(&answer.body);
    left.extend(failed.map_err(|source| CallError::Answer { what: what(), source })?);
    Ok(left)
}
