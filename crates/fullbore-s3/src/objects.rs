//! The objects below one prefix of a bucket, for a mirror: read, written on conditions, copied, listed, removed.
//!
//! Paths are relative to the prefix. Every object written here has the SHA-256 of its content in its metadata. So a
//! later run knows it even if the store keeps no checksums.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fullbore_engine::digest::Sha256;
use fullbore_engine::run::CommandError;
use fullbore_engine::stage::Ledger;
use fullbore_wire::http1::{Method, ResponseHead};
use fullbore_wire::rate_limit::RateLimits;
use tokio::sync::watch;

use crate::bucket::{self, BucketSettings};
use crate::client::{CHECKSUM_FIELD, Call, CallError, Client, etag};
use crate::credentials::unix_now;
use crate::dialect::Feature;
use crate::key::encode_path;
use crate::listing;
pub use crate::listing::parted;
use crate::lock::Fence;
use crate::open_uploads::{self, Aborted};
use crate::remove::{self, KEYS_AT_ONCE};
use crate::sign::hex;
use crate::upload::{CONFLICT_PAUSE, CONFLICTS_MAX};
use crate::xml::Begun;

/// Metadata field with the SHA-256 of the content, in hex.
pub const HASH_FIELD: &str = "x-amz-meta-fullbore-sha256";

/// Metadata field with the modification time of the content at its origin, in Unix seconds.
pub const TIME_FIELD: &str = "x-amz-meta-fullbore-mtime";

/// Condition for writing or removing an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// No condition.
    None,
    /// No object with this key exists.
    Absent,
    /// The object has this ETag.
    Tag(String),
}

/// Field with the form of an object's checksum, and its value for the whole content.
const CHECKSUM_TYPE_FIELD: &str = "x-amz-checksum-type";
const FULL_OBJECT: &str = "FULL_OBJECT";

/// Facts about an object without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFacts {
    /// Size of the object, in bytes.
    pub size: u64,
    /// ETag without quotes.
    pub etag: Option<String>,
    /// SHA-256 of the content, from the store or from the metadata.
    pub sha256: Option<Sha256>,
    /// Whether the store itself has computed that SHA-256 of the whole content; metadata is only a claim of the writer.
    /// For objects uploaded in parts, most stores compute only a composite checksum.
    pub is_stores_own: bool,
    /// Modification time of the content from the metadata, in Unix seconds.
    pub mtime: Option<i64>,
    /// Time at which the object was written, by the store's clock, in Unix seconds.
    pub modified: Option<i64>,
    /// The store's time at the answer, in Unix seconds.
    pub answered: Option<i64>,
}

impl ObjectFacts {
    /// Whether the object has this size, and this hash as far as its hash is known.
    pub fn is(&self, size: u64, sha256: Sha256) -> bool {
        self.size == size && self.sha256.is_none_or(|known| known == sha256)
    }
}

/// A small object with its content.
#[derive(Debug, Clone)]
pub struct SmallObject {
    /// Content of the object.
    pub content: Bytes,
    /// Facts about the object.
    pub facts: ObjectFacts,
}

/// Result of a conditional operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It was done; with the ETag of the object, if there is one.
    Stored(Option<String>),
    /// The condition did not hold.
    Refused,
}

/// The objects below a prefix. Clones share the connections.
#[derive(Debug, Clone)]
pub struct Objects {
    client: Client,
    /// Prefix of all keys: empty, or with a slash at its end.
    prefix: Arc<str>,
}

impl Objects {
    /// Opens the objects below the settings' key; no request is sent yet. `stop` becomes true when no more requests may
    /// be made.
    ///
    /// # Errors
    /// A [`CommandError`] of kind usage for an invalid name, address, certificate file or proxy.
    pub fn open(
        settings: &BucketSettings,
        stop: watch::Receiver<bool>,
        ledger: &Ledger,
    ) -> Result<Objects, CommandError> {
        let client = bucket::open(settings, RateLimits::default(), stop, ledger)?;
        let prefix = settings.location.key.trim_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        Ok(Objects { client, prefix: format!("{prefix}{slash}").into() })
    }

    /// The same objects, changed only while the fence allows it.
    #[must_use]
    pub fn behind(&self, fence: Arc<Fence>) -> Objects {
        Objects { client: self.client.behind(fence), prefix: self.prefix.clone() }
    }

    /// The client of the bucket.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Key of the object with this path.
    pub fn key(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// Fetches an object of at most `bytes_max`; `None` if it does not exist.
    ///
    /// # Errors
    /// A [`CallError`] if the request fails, the object is larger, or its content does not match its checksum.
    pub async fn get(&self, path: &str, bytes_max: usize) -> Result<Option<SmallObject>, CallError> {
        let mut call = Call::new(Method::Get, Some(&self.key(path))).field("x-amz-checksum-mode", "ENABLED");
        call.answer_bytes_max = bytes_max;
        let answer = self.client.call(call).await?;
        match answer.head.status {
            404 => Ok(None),
            200 => {
                let content = answer.body;
                let facts = ObjectFacts { size: content.len() as u64, ..facts(&answer.head) };
                Ok(Some(SmallObject { content, facts }))
            }
            _ => Err(CallError::refused(format!("GET {}", self.key(path)), &answer)),
        }
    }

    /// Requests the facts about an object; `None` if it does not exist.
    ///
    /// # Errors
    /// A [`CallError`] if the request fails after all retries, or the store refuses it. A missing object is not an
    /// error.
    pub async fn head(&self, path: &str) -> Result<Option<ObjectFacts>, CallError> {
        let call = Call::new(Method::Head, Some(&self.key(path))).field("x-amz-checksum-mode", "ENABLED");
        let answer = self.client.call(call).await?;
        match answer.head.status {
            404 => Ok(None),
            200 => Ok(Some(facts(&answer.head))),
            _ => Err(CallError::refused(format!("HEAD {}", self.key(path)), &answer)),
        }
    }

    /// Writes a small object on a condition.
    ///
    /// # Errors
    /// A [`CallError`] if the request fails after all retries, or the store refuses it. A condition that does not hold
    /// is not an error.
    pub async fn put(
        &self,
        path: &str,
        mut fields: Vec<(String, String)>,
        content: Bytes,
        condition: &Condition,
    ) -> Result<Written, CallError> {
        let hash = Sha256::of(&content);
        fields.push((HASH_FIELD.to_owned(), hash.to_hex().as_str().to_owned()));
        fields.extend(condition_field(condition));
        let mut call = Call::new(Method::Put, Some(&self.key(path))).body(content.clone(), hash);
        (call.fields, call.checksum) = (fields, Some(Feature::ObjectChecksums));
        let mut conflicts = 0;
        let answer = loop {
            match self.client.call(call.clone()).await {
                // Two writers at the same time: another run, or an earlier copy of this request.
                Err(CallError::Refused { status: 409, .. })
                    if *condition != Condition::None && conflicts < CONFLICTS_MAX =>
                {
                    conflicts += 1;
                    tokio::time::sleep(CONFLICT_PAUSE).await;
                }
                // The other writer has not finished.
                Err(CallError::Refused { status: 409, .. }) if *condition != Condition::None => {
                    return Ok(self.is_written(path, &content).await.unwrap_or(Written::Refused));
                }
                // No object has the tag.
                Ok(answer) if answer.head.status == 404 && *condition != Condition::None => {
                    return Ok(Written::Refused);
                }
                answer => break answer?,
            }
        };
        match answer.head.status {
            200..300 => Ok(Written::Stored(etag(&answer.head))),
            412 if answer.times_sent > 1 || conflicts > 0 => {
                Ok(self.is_written(path, &content).await.unwrap_or(Written::Refused))
            }
            412 => Ok(Written::Refused),
            _ => Err(CallError::refused(format!("PUT {}", self.key(path)), &answer)),
        }
    }

    /// Whether an earlier copy of the request has written this content, and its answer was lost.
    async fn is_written(&self, path: &str, content: &Bytes) -> Option<Written> {
        let found = self.get(path, content.len().max(1)).await.ok().flatten()?;
        (found.content == *content).then_some(Written::Stored(found.facts.etag))
    }

    /// Copies an object within the bucket, with new metadata fields. `sha256` is the hash of the content, if known.
    ///
    /// # Errors
    /// A [`CallError`] if the request fails, the source does not exist, or the store reports an error in the body of a
    /// successful answer.
    pub async fn copy(
        &self,
        from: &str,
        to: &str,
        mut fields: Vec<(String, String)>,
        sha256: Option<Sha256>,
    ) -> Result<(), CallError> {
        let mut source = String::from("/");
        encode_path(&self.client.bucket().name, &mut source);
        source.push('/');
        encode_path(&self.key(from), &mut source);
        fields.extend(sha256.map(|sha256| (HASH_FIELD.to_owned(), sha256.to_hex().as_str().to_owned())));
        fields.push(("x-amz-copy-source".to_owned(), source));
        fields.push(("x-amz-metadata-directive".to_owned(), "REPLACE".to_owned()));
        fields.push(("x-amz-checksum-algorithm".to_owned(), "SHA256".to_owned()));
        let mut call = Call::new(Method::Put, Some(&self.key(to)));
        (call.fields, call.errors_in_body) = (fields, true);
        let answer = self.client.call(call).await?;
        match answer.head.status {
            200..300 => Ok(()),
            _ => Err(CallError::refused(format!("copy of {} to {}", self.key(from), self.key(to)), &answer)),
        }
    }

    /// Removes one object on a condition. A missing object counts as removed.
    ///
    /// # Errors
    /// A [`CallError`] if the request fails after all retries, or the store refuses it. A condition that does not hold
    /// is not an error.
    pub async fn delete(&self, path: &str, condition: &Condition) -> Result<Written, CallError> {
        let mut call = Call::new(Method::Delete, Some(&self.key(path)));
        call.fields.extend(condition_field(condition));
        // A lock is released after a stop, too.
        call.at_the_end = true;
        let answer = self.client.call(call).await?;
        match answer.head.status {
            412 => Ok(Written::Refused),
            200..300 | 404 => Ok(Written::Stored(None)),
            _ => Err(CallError::refused(format!("DELETE {}", self.key(path)), &answer)),
        }
    }

    /// Removes objects, a thousand per request.
    ///
    /// # Errors
    /// A [`CallError`] if a request fails, or the store keeps one of its objects. The objects of later requests still
    /// exist then.
    pub async fn remove(&self, paths: &[String]) -> Result<(), CallError> {
        for some in paths.chunks(KEYS_AT_ONCE) {
            let keys: Vec<String> = some.iter().map(|path| self.key(path)).collect();
            if let Some((key, error)) = remove::remove(&self.client, &keys).await?.into_iter().next() {
                return Err(CallError::Refused { what: format!("DELETE {key}"), status: 200, error });
            }
        }
        Ok(())
    }

    /// Aborts the open multipart uploads below a path that are older than `age` by the store's clock, and returns their
    /// number.
    ///
    /// # Errors
    /// A [`CallError`] if a request fails. Some stores cannot list uploads, or do not allow every user to.
    pub async fn abort_uploads(&self, below: &str, age: Duration) -> Result<usize, CallError> {
        let open = open_uploads::list_below(&self.client, &self.key(below)).await?;
        let now = unix_now() + open.clock_offset_s.unwrap_or_default();
        let age_s = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        let is_old = |upload: &Begun| upload.initiated_s.is_some_and(|begun| now.saturating_sub(begun) > age_s);
        let mut count = 0;
        for upload in open.uploads.into_iter().filter(is_old) {
            let aborted = open_uploads::abort(&self.client, &upload.key, &upload.upload_id).await?;
            count += usize::from(aborted == Aborted::Now);
        }
        Ok(count)
    }

    /// Lists the objects below a path, in the order of their keys: paths, sizes, ETags.
    ///
    /// # Errors
    /// A [`CallError`] as of `Pages::next`, or if there are more objects than this
    /// machine can keep.
    pub async fn list(&self, below: &str) -> Result<ListedPaths, CallError> {
        self.list_in_ranges(below, &[]).await
    }

    /// As [`Objects::list`], but lists ranges at the same time. They are divided behind the sorted paths
    /// `parted_behind`; see [`parted`].
    ///
    /// # Errors
    /// As [`Objects::list`].
    pub async fn list_in_ranges(&self, below: &str, parted_behind: &[String]) -> Result<ListedPaths, CallError> {
        let parted_behind: Vec<String> = parted_behind.iter().map(|path| self.key(path)).collect();
        let listed = listing::list_in_ranges(&self.client, &self.key(below), &parted_behind).await?;
        // All listed keys begin with the requested prefix.
        let path = |key: &str| key[self.prefix.len()..].to_owned();
        Ok(listed.into_iter().map(|object| (path(&object.key), object.size, object.etag)).collect())
    }
}

/// Result of [`Objects::list`]: paths, sizes, ETags.
pub type ListedPaths = Vec<(String, u64, String)>;

pub(crate) fn condition_field(condition: &Condition) -> Option<(String, String)> {
    match condition {
        Condition::None => None,
        Condition::Absent => Some(("If-None-Match".to_owned(), "*".to_owned())),
        Condition::Tag(tag) => Some(("If-Match".to_owned(), format!("\"{tag}\""))),
    }
}

fn facts(head: &ResponseHead) -> ObjectFacts {
    let by_metadata = head.store_field(HASH_FIELD).and_then(|hex| hex.parse().ok());
    let by_store = sha256_of(head);
    ObjectFacts {
        size: head.content_length.unwrap_or(0),
        etag: etag(head),
        // The store's own checksum covers the present content; metadata may have been copied to other content.
        sha256: by_store.or(by_metadata),
        is_stores_own: by_store.is_some(),
        mtime: head.store_field(TIME_FIELD).and_then(|seconds| seconds.parse().ok()),
        modified: head.last_modified,
        answered: head.date,
    }
}

/// The checksum of a whole object. A composite one ends with a number, or has a type of its own.
fn sha256_of(head: &ResponseHead) -> Option<Sha256> {
    if head.store_field(CHECKSUM_TYPE_FIELD).is_some_and(|kind| !kind.eq_ignore_ascii_case(FULL_OBJECT)) {
        return None;
    }
    let bytes = STANDARD.decode(head.store_field(CHECKSUM_FIELD)?).ok()?;
    (bytes.len() == 32).then(|| hex(&bytes).parse().ok())?
}

#[cfg(test)]
mod tests {
    use fullbore_wire::http1::{BodyLength, Event, Http1, Limits, RequestHead};

    use super::*;

    fn facts_of(fields: &str) -> ObjectFacts {
        let mut http = Http1::new(Limits::default());
        http.request(&RequestHead::get("h", "/"), 1, BodyLength::None).unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{fields}\r\n");
        match http.receive(&mut bytes::BytesMut::from(answer.as_str())).unwrap() {
            Some(Event::Head { head, .. }) => facts(&head),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_a_checksum_of_the_whole_content_is_the_stores_own() {
        let sum = STANDARD.encode([7; 32]);
        let by_store = format!("{CHECKSUM_FIELD}: {sum}\r\n");
        let of = |fields: &str| {
            let facts = facts_of(fields);
            (facts.is_stores_own, facts.sha256.is_some())
        };
        assert_eq!(of(&by_store), (true, true));
        assert_eq!(of(&format!("{by_store}{CHECKSUM_TYPE_FIELD}: FULL_OBJECT\r\n")), (true, true));
        assert_eq!(of(&format!("{by_store}{CHECKSUM_TYPE_FIELD}: COMPOSITE\r\n")), (false, false));
        assert_eq!(of(&format!("{CHECKSUM_FIELD}: {sum}-3\r\n")), (false, false));
        let by_metadata = format!("{HASH_FIELD}: {}\r\n", "07".repeat(32));
        assert_eq!(of(&by_metadata), (false, true));
        assert_eq!(of(&format!("{by_metadata}{CHECKSUM_FIELD}: {sum}-3\r\n")), (false, true));
    }
}
