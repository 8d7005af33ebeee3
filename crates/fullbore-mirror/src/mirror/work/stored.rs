//! Finds out which files of workers the store has.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fullbore_engine::digest::Sha256Hasher;
use fullbore_engine::window::Window;
use fullbore_fleet::message::Item;
use fullbore_s3::objects::{self, ObjectFacts, Objects};
use fullbore_s3::{CallError, DownloadError};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::session::{Seen, look};

/// Maximum number of files for which the store is asked one by one. For more files their directories are listed. A
/// listing has a thousand objects per request, but includes the objects of other suites.
const ASKED_ONE_BY_ONE: usize = 500;

/// Number of parallel requests to the store.
pub(crate) const ASKED_AT_ONCE: usize = 32;

/// Maximum number of files whose checksums are still compared when all are stored: a minute at 20 ms each, with 32 in
/// parallel. If more are left, their sizes must do, as after a killed run.
pub(crate) const VERIFIED_MAX: usize = 100_000;

/// Number of stored files that are verified together while workers store others: at least, and at most. The planner tells
/// their number four times a second.
const ASKED_MEANWHILE: RangeInclusive<usize> = 128..=512;

/// Number of files that are asked for beyond those: some are not there yet, because workers are not equally fast.
const IN_PROGRESS: usize = 32;

/// Pause of the verification after answers without a right file.
const NOTHING_PAUSE: Duration = Duration::from_secs(1);

/// Number of objects read in parallel because the store has no checksum of them, and bytes and ranges of each in
/// flight. A guess: together they take 64 MiB.
const READ_AT_ONCE: usize = 4;
const READ_BYTES: u64 = 16 << 20;
const READ_RANGES: u32 = 4;

/// Status of these items in the store, by listings, or one by one if there are few. A listing shows only sizes. Because
/// only whole, verified files are stored, the right size means the right file; the planner compares checksums before it
/// publishes.
///
/// # Errors
/// [`CallError`] if the store does not answer, or refuses the request.
pub(crate) async fn find(objects: &Objects, items: &[Item], wanted: &[usize]) -> Result<Vec<(usize, Seen)>, CallError> {
    if wanted.len() <= ASKED_ONE_BY_ONE {
        return ask_each(objects, items, wanted).await;
    }
    let mut sorted: Vec<&str> = wanted.iter().map(|at| items[*at].path.as_str()).collect();
    sorted.sort_unstable();
    let mut tops: Vec<&str> = sorted.iter().filter_map(|path| Some(path.split_once('/')?.0)).collect();
    tops.dedup();
    let mut listed = HashMap::new();
    for top in tops {
        let below = format!("{top}/");
        let of_top: Vec<&str> = sorted.iter().copied().filter(|path| path.starts_with(&below)).collect();
        let parted = objects::parted(of_top.len(), |place| of_top[place]);
        let found = objects.list_in_ranges(&below, &parted).await?;
        listed.extend(found.into_iter().map(|(path, size, _)| (path, size)));
    }
    let (at_top, below): (Vec<usize>, Vec<usize>) = wanted.iter().partition(|at| !items[**at].path.contains('/'));
    let seen = |at: usize| match listed.get(&items[at].path) {
        None => (at, Seen::Absent),
        Some(size) if *size == items[at].size => (at, Seen::Present),
        Some(_) => (at, Seen::Other),
    };
    let mut found: Vec<(usize, Seen)> = below.into_iter().map(seen).collect();
    found.extend(ask_each(objects, items, &at_top).await?);
    Ok(found)
}

/// Status of these items in the store, with one request for each.
///
/// # Errors
/// [`CallError`] if the store does not answer, or refuses the request.
pub(crate) async fn ask_each(
    objects: &Objects,
    items: &[Item],
    wanted: &[usize],
) -> Result<Vec<(usize, Seen)>, CallError> {
    of_each(wanted.iter().copied(), |at| {
        let (objects, file) = (objects.clone(), items[at].clone());
        async move { look(&objects, &file).await }
    })
    .await
}

/// Calls `ask` for each of these places, many in parallel. Returns the answers in order of place.
async fn of_each<T, F>(
    wanted: impl IntoIterator<Item = usize>,
    ask: impl Fn(usize) -> F,
) -> Result<Vec<(usize, T)>, CallError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, CallError>> + Send + 'static,
{
    let (mut asking, mut wanted, mut answers) = (JoinSet::new(), wanted.into_iter(), Vec::new());
    loop {
        while asking.len() < ASKED_AT_ONCE {
            let Some(at) = wanted.next() else { break };
            let asked = ask(at);
            asking.spawn(async move { (at, asked.await) });
        }
        let Some(answered) = asking.join_next().await else { break };
        let (at, answer) = answered.map_err(|error| CallError::GivenUp(format!("a task failed: {error}")))?;
        answers.push((at, answer?));
    }
    answers.sort_unstable_by_key(|(at, _)| *at);
    Ok(answers)
}

/// Fault of a stored file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// There is no object.
    Absent,
    /// The object has other content.
    Wrong(ObjectFacts),
}

/// Places of the items whose objects are not right, in order. Only checksums that the store itself computed count,
/// because the writer of an object also wrote its metadata. Objects without such a checksum are read.
///
/// # Errors
/// [`CallError`] if the store does not answer, or refuses the request.
pub(crate) async fn verify(
    objects: &Objects,
    items: &[Item],
    wanted: impl IntoIterator<Item = usize>,
) -> Result<Vec<(usize, Flaw)>, CallError> {
    let reading = Arc::new(Semaphore::new(READ_AT_ONCE));
    let flaws = of_each(wanted, |at| {
        let (objects, file, reading) = (objects.clone(), items[at].clone(), reading.clone());
        async move { flaw(&objects, &file, &reading).await }
    });
    Ok(flaws.await?.into_iter().filter_map(|(at, flaw)| Some((at, flaw?))).collect())
}

/// Verifies files while workers store them, so that few are left when all are stored. `stored` tells how many files there
/// are by now; when its sender is dropped, this ends, and returns for each item whether it was found right.
///
/// It only looks at checksums. A store that does not answer leaves the rest to [`verify`].
pub(crate) async fn verify_meanwhile(
    objects: Objects,
    items: Arc<Vec<Item>>,
    stored: watch::Receiver<u64>,
) -> Vec<bool> {
    let sizes: Vec<u64> = items.iter().map(|item| item.size).collect();
    ask_meanwhile(&sizes, stored, |at| {
        let (objects, file) = (objects.clone(), items[at].clone());
        async move {
            let facts = objects.head(&file.path).await?;
            Ok(facts.is_some_and(|facts| facts.is_stores_own && facts.is(file.size, file.sha256)))
        }
    })
    .await
}

/// Asks for files of these sizes, first for large ones, because tasks are given out in this order.
async fn ask_meanwhile<F>(sizes: &[u64], mut stored: watch::Receiver<u64>, ask: impl Fn(usize) -> F) -> Vec<bool>
where
    F: Future<Output = Result<bool, CallError>> + Send + 'static,
{
    let mut waiting: Vec<usize> = (0..sizes.len()).collect();
    waiting.sort_by_key(|at| Reverse(sizes[*at]));
    let mut is_right = vec![false; sizes.len()];
    while stored.changed().await.is_ok() {
        let right = sizes.len() - waiting.len();
        let behind = usize::try_from(*stored.borrow_and_update()).unwrap_or(usize::MAX).saturating_sub(right);
        if behind < *ASKED_MEANWHILE.start() {
            continue;
        }
        let asked = waiting.iter().copied().take(behind.min(*ASKED_MEANWHILE.end()) + IN_PROGRESS);
        for (at, is_this_right) in of_each(asked, &ask).await.unwrap_or_default() {
            is_right[at] = is_this_right;
        }
        waiting.retain(|at| !is_right[*at]);
        if sizes.len() - waiting.len() == right {
            // Ends early if the run ends.
            let until_closed = async { while stored.changed().await.is_ok() {} };
            let _ = tokio::time::timeout(NOTHING_PAUSE, until_closed).await;
        }
    }
    is_right
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
        // Content that cannot be verified is replaced.
        Ok(_) | Err(_) => Ok(Some(Flaw::Wrong(facts))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use super::*;

    #[test]
    fn files_are_verified_while_others_are_stored_and_each_about_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (files, wrong) = (2_000, 1_500);
        let sizes: Vec<u64> = (0..files).map(|at| 10 * (files - at)).collect();
        let there = Arc::new(AtomicU64::new(0));
        let asked: Arc<Mutex<BTreeMap<usize, u32>>> = Arc::default();
        let (tell, told) = watch::channel(0);
        let is_right = runtime.block_on(async {
            let ask = |at: usize| {
                *asked.lock().unwrap().entry(at).or_default() += 1;
                let there = there.clone();
                async move { Ok((at as u64) < there.load(Ordering::Relaxed) && at as u64 != wrong) }
            };
            let storing = async {
                while there.load(Ordering::Relaxed) < files {
                    tell.send_replace(there.fetch_add(100, Ordering::Relaxed) + 100);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                // The last ones are seen, too.
                for _ in 0..20 {
                    tell.send_replace(files);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                drop(tell);
            };
            tokio::join!(ask_meanwhile(&sizes, told, ask), storing).0
        });
        assert!(!is_right[wrong as usize]);
        let left = is_right.iter().filter(|is_right| !**is_right).count();
        assert!(left <= *ASKED_MEANWHILE.start(), "{left} are left");
        let asked = asked.lock().unwrap();
        let requests: u32 = asked.values().sum();
        assert!(u64::from(requests) < files + files / 2, "{requests} requests");
    }

    #[test]
    fn files_that_nobody_stores_are_not_asked_for_without_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (asked, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let (tell, told) = watch::channel(0);
        let is_right = runtime.block_on(async {
            let ask = |_| {
                asked.fetch_add(1, Ordering::Relaxed);
                async { Ok(false) }
            };
            let telling = async {
                for _ in 0..100 {
                    tell.send_replace(200);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                drop(tell);
            };
            tokio::join!(ask_meanwhile(&[1; 1_000], told, ask), telling).0
        });
        assert_eq!(is_right, [false; 1_000]);
        // One look in each second.
        let looks = 1 + began.elapsed().as_secs();
        let asked = asked.load(Ordering::Relaxed);
        assert!(asked <= looks * (200 + IN_PROGRESS as u64), "{asked} requests in {looks} looks");
    }
}
