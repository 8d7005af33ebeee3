//! Keys with a time to live, in a bucket of JetStream.
//!
//! The client library cannot renew a key with a time to live. Its creation of a key over the marker of an expired one
//! omits the time to live: such a lease would last for ever. So a key is written here by a single message with an
//! expected revision.

use std::time::Duration;

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Message, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout_at};

use super::{BUCKET, MARKER_TTL, NatsQueue, REQUEST_TIMEOUT, of_publication};
use crate::queue::{Entry, QueueError};

/// Most keys of one listing; the server answers a request for the last message of each subject for at most 1024.
const KEYS_MAX: usize = 1024;

/// Status of a server that has more keys.
const TOO_MANY: u16 = 413;

/// Status at the end of a listing.
const END_OF_BATCH: u16 = 204;

/// Prefix of the subjects for reading keys.
pub(super) const READ: &str = "$JS.API.DIRECT.GET.KV_";

pub(super) fn subject(key: &str) -> String {
    format!("$KV.{BUCKET}.{key}")
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    message.headers.as_ref()?.get(name).map(|value| value.as_str())
}

fn revision(message: &Message) -> Option<u64> {
    header(message, "Nats-Sequence")?.parse().ok()
}

/// Whether a message only says that its key is gone: removed, or expired.
fn is_marker(message: &Message) -> bool {
    header(message, "KV-Operation").is_some() || header(message, "Nats-Marker-Reason").is_some()
}

impl NatsQueue {
    /// Writes a key whose last message has this sequence, 0 if it has none.
    pub(super) async fn write_key(
        &self,
        key: &str,
        value: Bytes,
        revision: u64,
        ttl: Duration,
    ) -> Result<Option<u64>, QueueError> {
        self.publish_key(key, PublishMessage::build().payload(value).ttl(ttl), revision).await
    }

    pub(super) async fn create_key(&self, key: &str, value: Bytes, ttl: Duration) -> Result<Option<u64>, QueueError> {
        if let Some(revision) = self.write_key(key, value.clone(), 0, ttl).await? {
            return Ok(Some(revision));
        }
        // Another client has it, or an expired or removed one has left a marker.
        let marker = self.read(&subject(key)).await?.into_iter().find(is_marker);
        match marker.as_ref().and_then(revision) {
            Some(revision) => self.write_key(key, value, revision, ttl).await,
            None => Ok(None),
        }
    }

    pub(super) async fn remove_key(&self, key: &str, revision: u64) -> Result<(), QueueError> {
        let marker = PublishMessage::build().header("KV-Operation", "DEL").ttl(MARKER_TTL);
        self.publish_key(key, marker, revision).await.map(drop)
    }

    pub(super) async fn list_keys(&self, prefix: &str) -> Result<Vec<Entry>, QueueError> {
        let messages = self.read(&subject(&format!("{prefix}>"))).await?;
        let skipped = subject("").len();
        let live = messages.into_iter().filter(|message| !is_marker(message));
        let entry = |message: Message| {
            let key = header(&message, "Nats-Subject")?.get(skipped..)?.to_owned();
            Some(Entry { key, revision: revision(&message)?, value: message.payload })
        };
        Ok(live.filter_map(entry).collect())
    }

    async fn publish_key(&self, key: &str, message: PublishMessage, last: u64) -> Result<Option<u64>, QueueError> {
        self.check_connection()?;
        let message = message.expected_last_subject_sequence(last);
        let sent = self.context.send_publish(subject(key), message).await.map_err(|error| of_publication(&error))?;
        match sent.await {
            Ok(answer) => Ok(Some(answer.sequence)),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Ok(None),
            Err(error) => Err(of_publication(&error)),
        }
    }

    /// The last message of each subject that matches (ADR-31, "multi_last").
    async fn read(&self, pattern: &str) -> Result<Vec<Message>, QueueError> {
        self.check_connection()?;
        let lost = |error: &dyn std::error::Error| QueueError::Unreachable(error.to_string());
        let inbox = self.client.new_inbox();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(|error| lost(&error))?;
        let request = Bytes::from(format!("{{\"multi_last\":[\"{pattern}\"]}}"));
        let sent = self.client.publish_with_reply(format!("{READ}{BUCKET}"), inbox, request).await;
        sent.map_err(|error| lost(&error))?;
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let mut messages = Vec::new();
        while let Ok(Some(answer)) = timeout_at(deadline, answers.next()).await {
            match answer.status.map(|status| status.as_u16()) {
                None => messages.push(answer),
                Some(status) if status == StatusCode::NOT_FOUND.as_u16() || status == END_OF_BATCH => {
                    return Ok(messages);
                }
                Some(status) if status == StatusCode::NO_RESPONDERS.as_u16() => {
                    return Err(QueueError::Missing(format!("no bucket {BUCKET}")));
                }
                Some(TOO_MANY) => return Err(QueueError::Other(format!("more than {KEYS_MAX} keys at {pattern}"))),
                Some(status) => return Err(QueueError::Other(format!("status {status} for {pattern}"))),
            }
        }
        Err(QueueError::Unreachable(format!("no end of the keys at {pattern}")))
    }
}
