//! Finds the sizes of an object's parts, which are needed to verify a composite checksum.
//!
//! `HEAD ?partNumber=n` returns the length of one part. The first part is requested alone: a store without parts of
//! finished objects describes the whole object, and is not asked again. All others are requested at once. The last part
//! is the rest. GetObjectAttributes would list a thousand parts per request. But it needs a permission of its own, and
//! a store without it sends the whole object.

use std::sync::Arc;

use fullbore_wire::http1::Method;
use fullbore_wire::range::ContentRange;
use tokio::task::JoinSet;

use super::client::{Answer, Call, CallError, Client, etag};
use super::parts::{Cut, PARTS_MAX};

/// Maximum number of requests for sizes in flight: the default number of connections.
const ASKED_AT_ONCE: u64 = 64;

/// What is known of an object's parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The sizes of the parts.
    Known(Cut),
    /// The store does not give the sizes, or not all of them; the size of the first part may be known.
    Unknown(Option<u64>),
}

/// The object whose parts are requested.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object<'a> {
    /// Size of the object, in bytes.
    pub size: u64,
    /// ETag without quotes.
    pub etag: Option<&'a str>,
    /// Number of its parts.
    pub count: u64,
}

/// Determines the sizes of the parts of an object.
///
/// # Errors
/// A [`CallError`] if the store cannot be reached. A refusal is not an error.
pub(crate) async fn learn(client: &Client, key: &str, whole: Object<'_>) -> Result<Layout, CallError> {
    if whole.count == 1 {
        return Ok(Layout::Known(Cut::Even(whole.size.max(1))));
    }
    if whole.count == 0 || whole.count > PARTS_MAX || whole.count > whole.size {
        return Ok(Layout::Unknown(None));
    }
    let Some(first) = ask(client, key, 1).await?.and_then(|answer| part_bytes(&answer, whole)) else {
        return Ok(Layout::Unknown(None));
    };
    let unknown = Layout::Unknown(Some(first));
    let mut sizes = vec![first];
    let mut numbers = 2..whole.count;
    let mut under_way = JoinSet::new();
    let mut told: Vec<(u64, u64)> = Vec::new();
    loop {
        while (under_way.len() as u64) < ASKED_AT_ONCE
            && let Some(number) = numbers.next()
        {
            let (client, key) = (client.clone(), key.to_owned());
            under_way.spawn(async move { (number, ask(&client, &key, number).await) });
        }
        let Some(asked) = under_way.join_next().await else { break };
        let (number, answer) = asked.map_err(|error| CallError::GivenUp(format!("a task failed: {error}")))?;
        let Some(bytes) = answer?.and_then(|answer| part_bytes(&answer, whole)) else { return Ok(unknown) };
        told.push((number, bytes));
    }
    told.sort_unstable();
    sizes.extend(told.into_iter().map(|(_, bytes)| bytes));
    Ok(complete(sizes, whole.size).map_or(unknown, |sizes| Layout::Known(Cut::Sizes(sizes))))
}

/// Requests the head of a part; `None` if it is refused.
async fn ask(client: &Client, key: &str, number: u64) -> Result<Option<Answer>, CallError> {
    match client.call(Call::new(Method::Head, Some(key)).query("partNumber", number.to_string())).await {
        Ok(answer) => Ok((200..300).contains(&answer.head.status).then_some(answer)),
        Err(CallError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Length of the part that an answer describes; `None` if it describes something else.
fn part_bytes(answer: &Answer, whole: Object<'_>) -> Option<u64> {
    let head = &answer.head;
    let count = head.store_field("x-amz-mp-parts-count").map(str::parse::<u64>);
    if count.as_ref().is_some_and(|count| *count != Ok(whole.count)) {
        return None;
    }
    let bytes = match (head.status, head.content_range) {
        (206, Some(ContentRange::Bytes { first, last, complete })) => {
            // The object may have been replaced since.
            if complete.is_some_and(|complete| complete != whole.size) || etag(&answer.head).as_deref() != whole.etag {
                return None;
            }
            last.checked_sub(first)?.checked_add(1)?
        }
        // Some stores describe the part like an object, with an ETag of its own.
        _ => head.content_length?,
    };
    // The whole object has further parts.
    (bytes > 0 && bytes < whole.size).then_some(bytes)
}

/// Completes the sizes by the last part; `None` if they do not fit an object of this size.
fn complete(mut sizes: Vec<u64>, size: u64) -> Option<Arc<[u64]>> {
    let sum = sizes.iter().try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes))?;
    sizes.push(size.checked_sub(sum).filter(|rest| *rest > 0)?);
    Some(sizes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_make_up_the_object_are_not_believed() {
        assert_eq!(complete(vec![6, 7], 18).as_deref(), Some(&[6, 7, 5][..]));
        assert_eq!(complete(vec![6, 7], 13), None, "an empty part");
        assert_eq!(complete(vec![6, 8], 13), None);
        assert_eq!(complete(vec![u64::MAX, 8], 13), None);
    }
}
