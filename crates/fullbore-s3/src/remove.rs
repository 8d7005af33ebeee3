//! Deletes objects, a thousand per request, or one by one if the store does not support that.

use fullbore_engine::digest::Sha256;
use fullbore_wire::http1::Method;
use tokio::task::JoinSet;

use super::bucket::is_fatal;
use super::client::{Call, CallError, Client};
use super::compare::{self, md5_base64};
use super::dialect::{Feature, Support};
use super::xml::{self, ServiceError};

/// Maximum number of keys per request, by the API reference of DeleteObjects.
pub(crate) const KEYS_AT_ONCE: usize = 1000;

/// Maximum number of requests for single objects in flight per call: half of the usual connections, since four calls
/// run concurrently.
const SINGLES_AT_ONCE: usize = 32;

/// Keys that were not deleted, with the reasons.
type Left = Vec<(String, ServiceError)>;

/// Deletes at most [`KEYS_AT_ONCE`] objects. Returns those that still exist, with the reasons.
///
/// # Errors
/// A [`CallError`] if a request fails, so that nothing is known of the objects.
pub(crate) async fn remove(client: &Client, keys: &[String]) -> Result<Left, CallError> {
    // XML cannot express some keys; a request for a single key can.
    let (named, unnamed): (Vec<&String>, Vec<&String>) = keys.iter().partition(|key| xml::escape(key).is_some());
    let mut left = one_by_one(client, unnamed.into_iter()).await?;
    if named.is_empty() {
        return Ok(left);
    }
    let dialect = client.dialect();
    if dialect.lacks(Feature::BulkDelete) {
        left.extend(one_by_one(client, named.into_iter()).await?);
        return Ok(left);
    }
    match together(client, &named).await {
        Ok(failed) => left.extend(failed),
        Err(error) if is_fatal(&error) || !may_be_unknown(&error) => return Err(error),
        Err(error) => {
            // The first shows whether single objects can be deleted at all.
            let Ok(first) = one_by_one(client, named.iter().take(1).copied()).await else { return Err(error) };
            if !first.is_empty() {
                return Err(error);
            }
            tracing::info!(%error, "objects are deleted one by one");
            dialect.learn(Feature::BulkDelete, Support::Lacking);
            left.extend(one_by_one(client, named.into_iter().skip(1)).await?);
        }
    }
    Ok(left)
}

/// Whether a failure may mean that the store cannot delete many objects at once. GCS answers `InvalidArgument`; others
/// answer `NotImplemented`, `MethodNotAllowed` or `MissingContentMD5`, or with an unexpected document.
fn may_be_unknown(error: &CallError) -> bool {
    matches!(error, CallError::Refused { status: 400..=499 | 501, .. } | CallError::Answer { .. })
}

/// Deletes each object with a request of its own.
async fn one_by_one(client: &Client, keys: impl Iterator<Item = &String>) -> Result<Left, CallError> {
    let (mut left, mut under_way) = (Left::new(), JoinSet::new());
    let mut keys = keys.cloned();
    loop {
        while under_way.len() < SINGLES_AT_ONCE
            && let Some(key) = keys.next()
        {
            let client = client.clone();
            under_way.spawn(async move { (client.call(Call::new(Method::Delete, Some(&key))).await, key) });
        }
        let Some(removed) = under_way.join_next().await else { return Ok(left) };
        match removed.map_err(|error| CallError::GivenUp(format!("a task failed: {error}")))? {
            // 404: it did not exist any more.
            (Ok(answer), _) if matches!(answer.head.status, 200..300 | 404) => {}
            (Ok(answer), key) => match CallError::refused(format!("DELETE {key}"), &answer) {
                CallError::Refused { error, .. } => left.push((key, error)),
                other => return Err(other),
            },
            (Err(CallError::Refused { error, .. }), key) => left.push((key, error)),
            (Err(error), _) => return Err(error),
        }
    }
}

/// Deletes objects with one request.
async fn together(client: &Client, keys: &[&String]) -> Result<Left, CallError> {
    let mut body = String::from("<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>");
    for key in keys.iter().filter_map(|key| xml::escape(key)) {
        for part in ["<Object><Key>", &key, "</Key></Object>"] {
            body.push_str(part);
        }
    }
    body.push_str("</Delete>");
    let hash = Sha256::of(body.as_bytes());
    let mut call = Call::new(Method::Post, None)
        .query("delete", "")
        .field("Content-Type", "application/xml")
        // All stores accept this; some do not support other checksums here.
        .field("Content-MD5", md5_base64(body.as_bytes()))
        .body(body, hash);
    call.answer_bytes_max = xml::ANSWER_BYTES_MAX;
    let what = || "POST ?delete".to_owned();
    let answer = client.call(call).await?;
    if !(200..300).contains(&answer.head.status) {
        return Err(CallError::refused(what(), &answer));
    }
    let failed = match answer.body.is_empty() {
        true => Left::new(),
        false => xml::not_deleted(&answer.body).map_err(|source| CallError::Answer { what: what(), source })?,
    };
    if !client.dialect().honours(Feature::BulkDelete) {
        is_honoured(client, keys, &failed).await?;
    }
    Ok(failed)
}

/// Checks, once per run, that the first object is gone: some stores report success and delete nothing.
async fn is_honoured(client: &Client, keys: &[&String], failed: &Left) -> Result<(), CallError> {
    let Some(first) = keys.iter().find(|key| failed.iter().all(|(left, _)| left != **key)) else { return Ok(()) };
    match compare::head(client, first).await {
        Ok(Some(_)) => {
            let error = ServiceError {
                message: format!("the store says that {first:?} is deleted, and it is still there"),
                ..ServiceError::default()
            };
            Err(CallError::Refused { what: "POST ?delete".into(), status: 501, error })
        }
        Ok(None) => {
            client.dialect().learn(Feature::BulkDelete, Support::Honoured);
            Ok(())
        }
        // A user who may delete need not be allowed to read.
        Err(CallError::Refused { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
