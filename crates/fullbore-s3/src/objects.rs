//! The objects below one prefix of a bucket, as a mirror keeps them: read, written by condition, copied, listed, removed.
//!
//! Paths are relative to the prefix. Every object that is written here says the SHA-256 of its content in its metadata, so
//! that a later run knows it even where the store keeps no checksums.

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

/// The field of an object's metadata with the SHA-256 of its content, in hex.
pub const HASH_FIELD: &str = "x-amz-meta-fullbore-sha256";

/// The field with the time of last change that its content had at its origin, in Unix seconds.
pub const TIME_FIELD: &str = "x-amz-meta-fullbore-mtime";

/// On which condition an object is written or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Whatever is there.
    None,
    /// There is no object of this key.
    Absent,
    /// The object has this ETag.
    Tag(String),
}

/// What the checksum of an object is of, and the value for its whole content.
const CHECKSUM_TYPE_FIELD: &str = "x-amz-checksum-type";
const FULL_OBJECT: &str = "FULL_OBJECT";

/// What is known of an object without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFacts {
    /// Its length in bytes.
    pub size: u64,
    /// Its ETag without quotes.
    pub etag: Option<String>,
    /// SHA-256 of its content, by the store or by the metadata.
    pub sha256: Option<Sha256>,
    /// Whether the store itself has computed that SHA-256 of the whole content. Metadata only has the writer's word. Of
    /// objects that were uploaded in parts, most stores compute only a checksum of the parts' checksums.
    pub is_stores_own: bool,
    /// Time of last change of its content, by the metadata, Unix seconds.
    pub mtime: Option<i64>,
    /// When it was written, by the store's clock, Unix seconds.
    pub modified: Option<i64>,
    /// The store's time at the answer, Unix seconds.
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
    /// Its content.
    pub content: Bytes,
    /// The rest.
    pub facts: ObjectFacts,
}

/// The result of a conditional write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It was written; the ETag of the object.
    Stored(Option<String>),
    /// The condition does not hold.
    Refused,
}

/// The objects below a prefix. Clones share the connections.
#[derive(Debug, Clone)]
pub struct Objects {
    client: Client,
    /// Empty, or with a slash at its end.
    prefix: Arc<str>,
}

impl Objects {
    /// The way to the objects below the settings' key; nothing is asked yet. `stop` becomes true when no more requests are
    /// to be made.
    ///
    /// # Errors
    /// A usage error for names, addresses, certificates or proxies that cannot be used.
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

    /// The same objects, changed only as long as the fence lets it.
    #[must_use]
    pub fn behind(&self, fence: Arc<Fence>) -> Objects {
        Objects { client: self.client.behind(fence), prefix: self.prefix.clone() }
    }

    /// The client of the bucket.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The key of a path.
    pub fn key(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// Fetches an object of at most `bytes_max`; `None`: there is none.
    ///
    /// # Errors
    /// [`CallError`], also for an object that is larger, or whose content does not match its checksum.
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

    /// What is known of an object; `None`: there is none.
    ///
    /// # Errors
    /// [`CallError`].
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
    /// [`CallError`]. A condition that does not hold is none.
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
                // Two writers at the same time: another one, or an earlier copy of this request.
                Err(CallError::Refused { status: 409, .. })
                    if *condition != Condition::None && conflicts < CONFLICTS_MAX =>
                {
                    conflicts += 1;
                    tokio::time::sleep(CONFLICT_PAUSE).await;
                }
                // The other one holds on.
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

    /// Whether an earlier copy of a request has written this content, and its answer was lost.
    async fn is_written(&self, path: &str, content: &Bytes) -> Option<Written> {
        let found = self.get(path, content.len().max(1)).await.ok().flatten()?;
        (found.content == *content).then_some(Written::Stored(found.facts.etag))
    }

    /// Copies an object within the bucket, with fields of its own; `sha256` is that of the content, where it is known.
    ///
    /// # Errors
    /// [`CallError`], also where the store tells of an error in the body of a good answer; a missing source.
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

    /// Removes one object on a condition; a missing one is removed.
    ///
    /// # Errors
    /// [`CallError`]. A condition that does not hold is none.
    pub async fn delete(&self, path: &str, condition: &Condition) -> Result<Written, CallError> {
        let mut call = Call::new(Method::Delete, Some(&self.key(path)));
        call.fields.extend(condition_field(condition));
        // A lock is given back after a stop, too.
        call.at_the_end = true;
        let answer = self.client.call(call).await?;
        match answer.head.status {
            412 => Ok(Written::Refused),
            200..300 | 404 => Ok(Written::Stored(None)),
            _ => Err(CallError::refused(format!("DELETE {}", self.key(path)), &answer)),
        }
    }

    /// Removes objects, a thousand by one request.
    ///
    /// # Errors
    /// [`CallError`], also when the store keeps one of them; those of later requests are then still there.
    pub async fn remove(&self, paths: &[String]) -> Result<(), CallError> {
        for some in paths.chunks(KEYS_AT_ONCE) {
            let keys: Vec<String> = some.iter().map(|path| self.key(path)).collect();
            if let Some((key, error)) = remove::remove(&self.client, &keys).await?.into_iter().next() {
                return Err(CallError::Refused { what: format!("DELETE {key}"), status: 200, error });
            }
        }
        Ok(())
    }

    /// Aborts the open uploads in parts below a path that are older than this by the store's clock, and returns their number.
    ///
    /// # Errors
    /// [`CallError`]; not every store can list uploads, or lets everybody.
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
    /// [`CallError`]; see [`listing::list`].
    pub async fn list(&self, below: &str) -> Result<ListedPaths, CallError> {
        self.list_in_ranges(below, &[]).await
    }

    /// As [`Objects::list`], in ranges that are listed at the same time: they are parted behind these paths, which are in
    /// order; see [`parted`].
    ///
    /// # Errors
    /// As of [`Objects::list`].
    pub async fn list_in_ranges(&self, below: &str, parted_behind: &[String]) -> Result<ListedPaths, CallError> {
        let parted_behind: Vec<String> = parted_behind.iter().map(|path| self.key(path)).collect();
        let listed = listing::list_in_ranges(&self.client, &self.key(below), &parted_behind).await?;
        // A listing has only keys that begin with the prefix asked for.
        let path = |key: &str| key[self.prefix.len()..].to_owned();
        Ok(listed.into_iter().map(|object| (path(&object.key), object.size, object.etag)).collect())
    }
}

/// What [`Objects::list`] tells: paths, sizes, ETags.
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
        // The store's own is of the content that is there; metadata may have been copied to other content.
        sha256: by_store.or(by_metadata),
        is_stores_own: by_store.is_some(),
        mtime: head.store_field(TIME_FIELD).and_then(|seconds| seconds.parse().ok()),
        modified: head.last_modified,
        answered: head.date,
    }
}

/// The checksum of a whole object. That of parts has a number behind it, or a type of its own.
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
