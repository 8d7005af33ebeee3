//! Multipart uploads that dead runs have left: aborted before this run begins.
//!
//! If a journal has the id of an upload, it is aborted by it. A run that was killed before the store's answer left no
//! id. Then the store lists the open uploads of that key, and those begun in the run's interval are aborted. Others may
//! belong to somebody else, and are named. A run of several machines continues its own old uploads.

use std::collections::BTreeMap;
use std::path::Path;

use fullbore_engine::run::Events;

use crate::client::CallError;
use crate::credentials::unix_now;
use crate::journal::{Intent, Open, Orphans};
use crate::open_uploads::{self, Aborted, OpenUploads};
use crate::upload::Uploader;
use crate::xml::Begun;

/// Maximum number of keys whose uploads are listed by one run; the others are left to the next run. A run has at most
/// four large files and a hundred pipes in flight.
const KEYS_MAX: usize = 1000;

/// Maximum number of foreign uploads named for one key.
const NAMED_MAX: usize = 3;

/// Aborts old uploads, except those that this run continues. Those are returned, with lines in this run's journal.
pub(super) async fn give_up(
    events: &mut dyn Events,
    uploader: &Uploader,
    journals: &Path,
    goes_on: &dyn Fn(&Open) -> bool,
) -> Vec<Open> {
    let bucket = uploader.client.bucket();
    let mut orphans = Orphans::find(journals, bucket.store(), &bucket.name);
    let taken: Vec<Open> =
        orphans.uploads(bucket.store(), &bucket.name).filter(|open| goes_on(open)).cloned().collect();
    let noted: Vec<Open> = taken.into_iter().filter(|open| uploader.takes_over(open)).collect();
    noted.iter().for_each(|open| orphans.ended(&open.upload_id));
    if give_up_known(events, uploader, &mut orphans).await {
        give_up_unknown(events, uploader, &mut orphans).await;
    }
    noted
}

/// Aborts uploads with known ids. False if the store does not answer, so that further ones would wait as long.
async fn give_up_known(events: &mut dyn Events, uploader: &Uploader, orphans: &mut Orphans) -> bool {
    let bucket = uploader.client.bucket();
    let uploads: Vec<_> = orphans.uploads(bucket.store(), &bucket.name).cloned().collect();
    for open in uploads {
        match uploader.abort(&open.key, &open.upload_id).await {
            Ok(aborted) => {
                orphans.ended(&open.upload_id);
                tell_given_up(events, &open.key, aborted);
            }
            Err(error) => {
                tell_still_there(events, &open.key, &error);
                if error.status().is_none() {
                    return false;
                }
            }
        }
    }
    true
}

/// Aborts uploads begun by requests whose answer no run has seen.
async fn give_up_unknown(events: &mut dyn Events, uploader: &Uploader, orphans: &mut Orphans) {
    let bucket = uploader.client.bucket();
    let mut keys: BTreeMap<String, Vec<Intent>> = BTreeMap::new();
    for intent in orphans.intents(bucket.store(), &bucket.name) {
        keys.entry(intent.key.clone()).or_default().push(intent.clone());
    }
    let mut unlisted = Vec::new();
    for (key, intents) in keys.into_iter().take(KEYS_MAX) {
        match open_uploads::list(&uploader.client, &key).await {
            Ok(open) => give_up_of(events, uploader, orphans, &key, &intents, open).await,
            // The store does not support the request, or not for this user.
            Err(error @ (CallError::Refused { status: 400..=499 | 501, .. } | CallError::Answer { .. })) => {
                intents.iter().for_each(|intent| orphans.settled(intent.id));
                unlisted.push((key, error));
            }
            Err(error) => {
                tell_still_there(events, &key, &error);
                break;
            }
        }
    }
    if let Some((key, error)) = unlisted.first() {
        let others = match unlisted.len() - 1 {
            0 => String::new(),
            others => format!(" and of {others} more"),
        };
        let text = format!(
            "a run was killed while it began an upload in parts of {key}{others}; the store cannot list open \
             uploads, so that one may be left: {error}"
        );
        events.warn(text);
    }
}

/// Aborts the open uploads of one key that were begun in an interval.
async fn give_up_of(
    events: &mut dyn Events,
    uploader: &Uploader,
    orphans: &mut Orphans,
    key: &str,
    intents: &[Intent],
    open: OpenUploads,
) {
    let bucket = uploader.client.bucket();
    let living = orphans.living(bucket.store(), &bucket.name);
    // A live run may just have begun one of them without knowing its id yet.
    if living.intents.iter().any(|intent| intent.key == key) {
        return;
    }
    let is_known = |upload: &Begun| {
        let mut known = living.open.iter().chain(orphans.uploads(bucket.store(), &bucket.name));
        known.any(|open| open.upload_id == upload.upload_id)
    };
    let unknown = open.uploads.into_iter().filter(|upload| !is_known(upload));
    let (ours, others): (Vec<_>, Vec<_>) = unknown.partition(|upload| {
        let covers = |at| intents.iter().any(|intent| intent.covers(at, open.clock_offset_s));
        upload.initiated_s.is_some_and(covers)
    });
    let mut is_done = open.is_complete;
    for upload in ours {
        match uploader.abort(key, &upload.upload_id).await {
            Ok(aborted) => tell_given_up(events, key, aborted),
            Err(error) => {
                tell_still_there(events, key, &error);
                is_done = false;
            }
        }
    }
    if !others.is_empty() {
        let names: Vec<&str> = others.iter().take(NAMED_MAX).map(|upload| upload.upload_id.as_str()).collect();
        let more = match others.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = names.join(", ");
        events
            .note(format!("{key}: open uploads in parts that no killed run here began are left alone: {names}{more}"));
    }
    let over = intents.iter().filter(|intent| is_done && intent.is_over(unix_now()));
    // A request in flight when its run was killed may still begin an upload: the next run looks again.
    over.for_each(|intent| orphans.settled(intent.id));
}

/// Reports an aborted upload, unless it had ended already when its run was killed.
fn tell_given_up(events: &mut dyn Events, key: &str, aborted: Aborted) {
    if aborted == Aborted::Now {
        events.note(format!("{key}: gave up the upload in parts of a run that did not end"));
    }
}

fn tell_still_there(events: &mut dyn Events, key: &str, error: &CallError) {
    events.warn(format!("{key}: an old upload in parts is still there: {error}"));
}
