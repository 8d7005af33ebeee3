//! What the store has of the files that workers were asked to store.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fullbore_engine::digest::Sha256Hasher;
use fullbore_engine::window::Window;
use fullbore_fleet::message::Item;
use fullbore_s3::objects::{ObjectFacts, Objects};
use fullbore_s3::{CallError, DownloadError};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::mirror::tree::{LISTED_AT_ONCE, LISTED_LEAST};
use crate::mirror::work::session::{Seen, look};

/// Files of which the store is asked one by one. Of more files their directories are listed: a thousand objects by a
/// request, but those of other suites too.
const ASKED_ONE_BY_ONE: usize = 500;

/// Questions to the store at once.
const ASKED_AT_ONCE: usize = 32;

/// Most files whose checksums are compared before publishing: a minute at 20 ms, and 32 at once. In larger runs, their
/// sizes must do, as after a killed run.
pub const VERIFIED_MAX: usize = 100_000;

/// Objects that are read at once because the store has no checksum of them, and the bytes and ranges of each that are in
/// flight. A guess: together they take 64 MiB.
const READ_AT_ONCE: usize = 4;
const READ_BYTES: u64 = 16 << 20;
const READ_RANGES: u32 = 4;

/// The places of those items that the store lacks: by listings, or one by one if they are few.
///
/// # Errors
/// A store that does not answer, or refuses.
pub async fn lacking(objects: &Objects, items: &[Item], wanted: &[usize]) -> Result<Vec<usize>, CallError> {
    if wanted.len() <= ASKED_ONE_BY_ONE {
        return differing(objects, items, wanted).await;
    }
    let mut sorted: Vec<&str> = wanted.iter().map(|at| items[*at].path.as_str()).collect();
    sorted.sort_unstable();
    let mut tops: Vec<&str> = sorted.iter().filter_map(|path| Some(path.split_once('/')?.0)).collect();
    tops.dedup();
    let mut listed = HashMap::new();
    for top in tops {
        let below = format!("{top}/");
        let of_top: Vec<&str> = sorted.iter().copied().filter(|path| path.starts_with(&below)).collect();
        let parts = LISTED_AT_ONCE.min(of_top.len() / LISTED_LEAST);
        let parted: Vec<String> = (1..parts).map(|part| of_top[part * of_top.len() / parts].to_owned()).collect();
        let found = objects.list_in_ranges(&below, &parted).await?;
        listed.extend(found.into_iter().map(|(path, size, _)| (path, size)));
    }
    let (at_top, below): (Vec<usize>, Vec<usize>) = wanted.iter().partition(|at| !items[**at].path.contains('/'));
    let is_missing = |at: &usize| listed.get(&items[*at].path) != Some(&items[*at].size);
    let mut lacking: Vec<usize> = below.into_iter().filter(is_missing).collect();
    lacking.extend(differing(objects, items, &at_top).await?);
    Ok(lacking)
}

/// The places of those items that the store lacks, or has with another checksum: one question for each.
///
/// # Errors
/// A store that does not answer, or refuses.
pub async fn differing(objects: &Objects, items: &[Item], wanted: &[usize]) -> Result<Vec<usize>, CallError> {
    let mut asking = JoinSet::new();
    let mut wanted = wanted.iter().copied();
    let mut lacking = Vec::new();
    loop {
        while asking.len() < ASKED_AT_ONCE {
            let Some(at) = wanted.next() else { break };
            let (objects, file) = (objects.clone(), items[at].clone());
            asking.spawn(async move { (at, look(&objects, &file).await) });
        }
        let Some(asked) = asking.join_next().await else { break };
        let (at, seen) = asked.map_err(|error| CallError::GivenUp(format!("a task failed: {error}")))?;
        if seen? != Seen::Present {
            lacking.push(at);
        }
    }
    lacking.sort_unstable();
    Ok(lacking)
}

/// What the store has in place of the right content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    Absent,
    /// An object with other content.
    Wrong(ObjectFacts),
}

/// The places of those items whose objects are not right, in order. Only a checksum that the store itself has computed
/// counts: whoever wrote an object also wrote its metadata. An object without such a checksum is read.
///
/// # Errors
/// A store that does not answer, or refuses.
pub async fn verify(
    objects: &Objects,
    items: &[Item],
    wanted: impl IntoIterator<Item = usize>,
) -> Result<Vec<(usize, Flaw)>, CallError> {
    let (mut asking, mut wanted) = (JoinSet::new(), wanted.into_iter());
    let reading = Arc::new(Semaphore::new(READ_AT_ONCE));
    let mut flaws = Vec::new();
    loop {
        while asking.len() < ASKED_AT_ONCE {
            let Some(at) = wanted.next() else { break };
            let (objects, file, reading) = (objects.clone(), items[at].clone(), reading.clone());
            asking.spawn(async move { (at, flaw(&objects, &file, &reading).await) });
        }
        let Some(asked) = asking.join_next().await else { break };
        let (at, flaw) = asked.map_err(|error| CallError::GivenUp(format!("a task failed: {error}")))?;
        flaws.extend(flaw?.map(|flaw| (at, flaw)));
    }
    flaws.sort_unstable_by_key(|(at, _)| *at);
    Ok(flaws)
}

async fn flaw(objects: &Objects, file: &Item, reading: &Semaphore) -> Result<Option<Flaw>, CallError> {
    let Some(facts) = objects.head(&file.path).await? else { return Ok(Some(Flaw::Absent)) };
    if !facts.is(file.size, file.sha256) {
        return Ok(Some(Flaw::Wrong(facts)));
    }
    if facts.is_stores_own {
        return Ok(None);
    }
    let _one = reading.acquire().await.map_err(|error| CallError::GivenUp(error.to_string()))?;
    let key = objects.key(&file.path);
    let window = Window::new(READ_BYTES, READ_RANGES);
    let (out, mut pieces) = mpsc::channel(1);
    let known_bytes = AtomicU64::new(0);
    let reading = async {
        let read = fullbore_s3::download(objects.client(), &key, &window, &out, false, &known_bytes).await;
        drop(out);
        read
    };
    let hashing = async {
        let mut hasher = Sha256Hasher::new();
        while let Some(some) = pieces.recv().await {
            some.iter().for_each(|piece| hasher.update(piece));
        }
        let bytes = hasher.bytes();
        (hasher.finish(), bytes)
    };
    let (read, content) = tokio::join!(reading, hashing);
    match read {
        Ok(_) if content == (file.sha256, file.size) => Ok(None),
        Err(DownloadError::Call(error)) => Err(error),
        Err(DownloadError::Missing { .. }) => Ok(Some(Flaw::Absent)),
        // Content that cannot be shown to be right is replaced.
        Ok(_) | Err(_) => Ok(Some(Flaw::Wrong(facts))),
    }
}
