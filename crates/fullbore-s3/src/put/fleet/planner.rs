//! The planner of a `put`: publishes tasks, keeps the run announced, and asks the bucket what is done.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use fullbore_fleet::announcement::{Announcement, RUN_RENEW_EVERY};
use fullbore_fleet::message::{Item, Kind, Report, Run, Task};
use fullbore_fleet::names::WorkerId;
use fullbore_fleet::queue::{Queue, QueueError, WORKERS_MAX};
use fullbore_fleet::tasks;
use fullbore_fleet::watchdog::{Next, Watch, Watchdog};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::split::{End, Large, Split};
use crate::client::CallError;
use crate::listing;
use crate::upload::{Stored, UploadError, Uploader};
use crate::xml::ListedObject;

/// Interval of looks at the queue: the end of a short run is noticed soon, and four requests a second are few.
const STEP: Duration = Duration::from_millis(250);

/// Lifetime of the announcement. Workers stop working for a planner that does not renew it.
const ANNOUNCED: Duration = Duration::from_secs(60);

/// Maximum number of rounds in a turn of `--last`, so that ids of tasks of two turns differ.
const ROUNDS: u32 = 10;

/// Number of tasks per publication; between two of them, reports of workers are read.
const PUBLISHED_AT_ONCE: usize = 4096;

/// Time without a stored byte after which files with faults are looked up in the bucket.
const FAULTS_AFTER: Duration = Duration::from_secs(3);

/// Maximum number of reported faults of files; the planner reports each file that it cannot upload itself.
const FAULTS_TOLD: usize = 8;

/// Maximum number of consecutive failed listings, each after the client's own retries; then the planner works alone. A
/// guess.
const FAILED_LOOKS_MAX: u32 = 5;

/// A file for workers.
pub(super) struct Shared {
    /// Number of the file in the plan.
    pub number: usize,
    /// The file in messages.
    pub item: Item,
    /// Key of its object.
    pub key: String,
    /// ETag that the object may replace: see [`Task::replaces`].
    pub replaces: Option<String>,
}

/// Files of one turn.
pub(super) struct Turn {
    /// Number of the turn, from 0.
    pub number: u32,
    /// The files.
    pub files: Arc<Vec<Shared>>,
    /// Files that are uploaded in parts.
    pub large: Vec<Large>,
}

/// News from the planner while others work.
pub(super) enum News {
    /// Files and bytes that workers report as stored since they joined the run.
    Moved {
        /// Number of files.
        files: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// A warning for the user.
    Warn(String),
    /// The bucket has a file of the turn.
    Stored {
        /// Index of the file in the turn.
        at: usize,
        /// ETag of the object, without quotes.
        etag: String,
    },
    /// The planner has completed the multipart upload of a file.
    Completed {
        /// Index of the file in the turn.
        at: usize,
        /// The stored object.
        stored: Stored,
    },
    /// A file cannot be uploaded.
    Failed {
        /// Index of the file in the turn.
        at: usize,
        /// The reason.
        error: UploadError,
    },
    /// Nothing more is left to workers; these files are left to this machine.
    End {
        /// Indexes of files that are not in the bucket.
        missing: Vec<usize>,
        /// Indexes of files that a worker could not upload. Another worker may have uploaded them since.
        doubtful: Vec<usize>,
    },
}

/// Has workers do a turn.
pub(super) async fn tend<Q: Queue>(
    queue: Q,
    run: Run,
    turn: Turn,
    uploader: Uploader,
    prefix: String,
    stop: watch::Receiver<bool>,
    tell: Sender<News>,
) {
    let announcing = tokio::spawn(announce(queue.clone(), run.clone()));
    let mut planner = Planner {
        queue,
        run,
        uploader,
        prefix,
        watchdog: Watchdog::new(Duration::ZERO, 1),
        files: &turn.files,
        first_round: turn.number * ROUNDS,
        left: (0..turn.files.len()).collect(),
        splits: BTreeMap::new(),
        unpublished: VecDeque::new(),
        is_published: false,
        purges: false,
        reports: None,
        is_open: false,
        announcing,
        done: HashMap::new(),
        faulty: HashSet::new(),
        has_new_faults: false,
        moved: Duration::ZERO,
        told_faults: 0,
        tell,
    };
    for large in turn.large {
        if let Some(split) = Split::begin(large, &planner.uploader).await {
            planner.splits.insert(split.at(), split);
        }
    }
    let missing = planner.conduct(&stop).await;
    planner.end(missing).await;
}

/// Codes of transient refusals, whatever their status, and of refusals that concern the credentials instead of the
/// request.
const PASSING: [&str; 20] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteBody",
    "InternalError",
    "InvalidAccessKeyId",
    "InvalidToken",
    "OperationAborted",
    "RequestExpired",
    "RequestLimitExceeded",
    "RequestTimeTooSkewed",
    "RequestTimedOut",
    "RequestTimeout",
    "ServiceUnavailable",
    "SignatureDoesNotMatch",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TokenRefreshRequired",
    "TooManyRequests",
    "XAdminUserNotFound",
];

/// Whether the store refuses, and would refuse again. An error in the body of an answer with status 200 is not final.
pub(super) fn is_final(error: &CallError) -> bool {
    match error {
        CallError::Refused { status: 401 | 408 | 409 | 429, .. } => false,
        // Answers to HEAD have no code: the credentials may be wrong.
        CallError::Refused { status: 403, error, .. } if error.code.is_empty() => false,
        CallError::Refused { status: 400..=499, error, .. } => !PASSING.contains(&error.code.as_str()),
        _ => false,
    }
}

/// Ends a run: removes its tasks and announcement, so that workers stop working for it.
pub(super) async fn finish<Q: Queue>(queue: &Q, run: &Run) {
    Announcement::new(queue.clone(), run, ANNOUNCED).end().await;
    if let Err(error) = queue.close(&run.id).await {
        tracing::info!(%error, "the queue keeps what it has of the run for its own time");
    }
}

/// Keeps a run announced. The planner itself finds out whether that works.
async fn announce<Q: Queue>(queue: Q, run: Run) {
    let mut announcement = Announcement::new(queue, &run, ANNOUNCED);
    loop {
        if let Err(error) = announcement.say(&run).await {
            tracing::info!(%error, "the run is not announced");
            if matches!(error, QueueError::Missing(_)) {
                announcement.forget();
            }
        }
        tokio::time::sleep(RUN_RENEW_EVERY).await;
    }
}

struct Planner<'a, Q> {
    queue: Q,
    run: Run,
    uploader: Uploader,
    /// Prefix of all keys.
    prefix: String,
    watchdog: Watchdog,
    files: &'a [Shared],
    first_round: u32,
    /// Indexes of files that the bucket lacked at the last look.
    left: Vec<usize>,
    /// Those of them that are uploaded in parts.
    splits: BTreeMap<usize, Split>,
    unpublished: VecDeque<Task>,
    /// The watchdog knows that all tasks of the round are in the queue.
    is_published: bool,
    /// Tasks of the last round must be removed first.
    purges: bool,
    reports: Option<mpsc::Receiver<Report>>,
    is_open: bool,
    /// Task that keeps the run announced, even while the store is slow.
    announcing: JoinHandle<()>,
    /// Files and bytes that each worker reports as stored, and bytes that it has sent.
    done: HashMap<WorkerId, (u64, u64, u64)>,
    /// Paths that a worker could not upload, or whose multipart upload failed. The planner uploads these files, because
    /// an object with their size in a listing may be another one.
    faulty: HashSet<String>,
    has_new_faults: bool,
    moved: Duration,
    told_faults: usize,
    tell: Sender<News>,
}

impl<Q: Queue> Planner<'_, Q> {
    /// Works until workers can do no more. Returns the indexes of files that the bucket lacks.
    async fn conduct(&mut self, stop: &watch::Receiver<bool>) -> Vec<usize> {
        let begun = Instant::now();
        self.publish_later(1);
        let mut failed_looks = 0;
        while !*stop.borrow() {
            let now = begun.elapsed();
            match self.step(now).await {
                Ok(()) => {}
                Err(QueueError::Missing(_)) => {
                    self.is_open = false;
                    self.watchdog.lost(now);
                }
                // The watchdog counts the time without an answer.
                Err(error) => tracing::info!(%error, "the queue does not answer"),
            }
            let is_stuck = self.has_new_faults && now.saturating_sub(self.moved) >= FAULTS_AFTER;
            if self.watchdog.watch(now) == Watch::Look || is_stuck {
                match self.look().await {
                    // The next turn ends the run.
                    Err(CallError::Interrupted) => {}
                    Err(error) => {
                        failed_looks += 1;
                        if failed_looks == 1 {
                            self.warn(format!("cannot list the bucket: {error}"));
                        }
                        // A bucket that cannot be reached now is asked again. If the planner may not list it, it
                        // uploads the files itself, and then reports the error.
                        if is_final(&error) || failed_looks >= FAILED_LOOKS_MAX {
                            return self.take_over().await;
                        }
                    }
                    Ok(()) => {
                        failed_looks = 0;
                        self.has_new_faults = false;
                        // The planner tries the files that workers could not upload, and reports the errors.
                        if self.left.iter().all(|at| self.faulty.contains(&self.files[*at].item.path)) {
                            return self.take_over().await;
                        }
                        if self.watchdog.watch(now) == Watch::Look {
                            match self.watchdog.looked(now, self.left.len()) {
                                Next::Publish => return Vec::new(),
                                Next::Alone => {
                                    self.warn(format!("{} files are left to this machine", self.left.len()));
                                    return self.take_over().await;
                                }
                                Next::Round { round, purges } => {
                                    self.purges = purges;
                                    self.publish_later(round);
                                }
                            }
                        }
                    }
                }
            }
            tokio::time::sleep(STEP).await;
        }
        Vec::new()
    }

    /// Takes the remaining files from the workers.
    async fn take_over(&mut self) -> Vec<usize> {
        let _ = self.queue.purge(&self.run.id).await;
        std::mem::take(&mut self.left)
    }

    /// Sends missing parts, aborts the uploads of an interrupted run, and reports the end.
    async fn end(mut self, missing: Vec<usize>) {
        let mut whole = Vec::new();
        for at in missing {
            match self.splits.remove(&at) {
                Some(split) => {
                    let end = split.put_rest(&self.uploader).await;
                    whole.extend(matches!(end, End::Whole).then_some(at));
                    self.ended(at, end);
                }
                None => whole.push(at),
            }
        }
        for split in std::mem::take(&mut self.splits).into_values() {
            split.give_up().await;
        }
        // The run ends with the last turn, and must not be announced afterwards.
        self.announcing.abort();
        let _ = self.announcing.await;
        let is_doubtful = |at: &usize| self.faulty.contains(&self.files[*at].item.path);
        let (doubtful, missing) = whole.into_iter().partition(is_doubtful);
        let _ = self.tell.send(News::End { missing, doubtful });
    }

    /// Handles the end of a multipart upload.
    fn ended(&mut self, at: usize, end: End) {
        self.splits.remove(&at);
        let news = match end {
            End::Stored(stored) => News::Completed { at, stored },
            End::Failed(error) => News::Failed { at, error },
            End::Whole => {
                self.faulty.insert(self.files[at].item.path.clone());
                return;
            }
        };
        self.left.retain(|left| *left != at);
        let _ = self.tell.send(news);
    }

    fn warn(&self, line: String) {
        let _ = self.tell.send(News::Warn(line));
    }

    fn publish_later(&mut self, round: u32) {
        let whole: Vec<&Shared> = self.left_to_workers().map(|at| &self.files[at]).collect();
        let replaces: HashMap<&str, &Option<String>> =
            whole.iter().map(|file| (file.item.path.as_str(), &file.replaces)).collect();
        let (items, round) = (whole.iter().map(|file| file.item.clone()).collect(), self.first_round + round);
        let mut tasks: VecDeque<Task> = tasks::pack_of(Kind::Put, &self.run.id, round, items).into();
        for task in &mut tasks {
            let of = |item: &Item| replaces.get(item.path.as_str()).and_then(|tag| (*tag).clone());
            task.replaces = task.items.iter().map(of).collect();
        }
        // Parts come last, because they are small: they fill the gaps at the end of a run.
        tasks.extend(self.splits.values().flat_map(|split| split.tasks(&self.run.id, round)));
        self.unpublished = tasks;
        self.is_published = false;
    }

    /// Indexes of files that workers should upload whole.
    fn left_to_workers(&self) -> impl Iterator<Item = usize> {
        let is_theirs =
            move |at: &usize| !self.splits.contains_key(at) && !self.faulty.contains(&self.files[*at].item.path);
        self.left.iter().copied().filter(is_theirs)
    }

    /// Does what is due: publishes tasks, reads reports, and looks at the queue.
    async fn step(&mut self, now: Duration) -> Result<(), QueueError> {
        if !self.is_open {
            self.queue.open(&self.run.id).await?;
            Announcement::new(self.queue.clone(), &self.run, ANNOUNCED).say(&self.run).await?;
            self.reports = Some(self.queue.reports(&self.run.id).await?);
            self.is_open = true;
        }
        if self.purges {
            self.queue.purge(&self.run.id).await?;
            self.purges = false;
        }
        if !self.unpublished.is_empty() {
            let next: Vec<Task> = self.unpublished.iter().take(PUBLISHED_AT_ONCE).cloned().collect();
            let published = self.queue.publish(&next).await?;
            self.unpublished.drain(..published.accepted.min(next.len()));
        }
        // A round may have no tasks, if all parts are stored already.
        if self.unpublished.is_empty() && !self.is_published {
            self.watchdog.all_published(now);
            self.is_published = true;
        }
        self.hear(now);
        let counts = self.queue.counts(&self.run.id).await?;
        self.watchdog.counted(now, counts);
        Ok(())
    }

    fn hear(&mut self, now: Duration) {
        let (mut has_sent, mut has_stored) = (false, false);
        while let Some(report) = self.reports.as_mut().and_then(|reports| reports.try_recv().ok()) {
            match report {
                Report::Stat(stat) => {
                    if self.done.len() >= WORKERS_MAX && !self.done.contains_key(&stat.worker) {
                        continue;
                    }
                    let (files, bytes) = stat.done;
                    let before = self.done.insert(stat.worker, (files, bytes, stat.sent_bytes)).unwrap_or_default();
                    has_sent |= before.2 != stat.sent_bytes;
                    has_stored |= (before.0, before.1) != (files, bytes);
                }
                Report::Fault(fault) => {
                    if self.told_faults < FAULTS_TOLD && !self.faulty.contains(&fault.path) {
                        self.told_faults += 1;
                        self.warn(format!("worker {}: {}: {}", fault.worker, fault.path, fault.fault));
                    }
                    // A part that one worker could not send goes to others.
                    let is_split = self.splits.keys().any(|at| self.files[*at].item.path == fault.path);
                    // There cannot be more paths than files.
                    if (fault.is_final || !is_split) && self.faulty.len() < self.files.len() {
                        self.faulty.insert(fault.path);
                    }
                    self.has_new_faults = true;
                }
            }
        }
        if has_sent || has_stored {
            let add = |sum: (u64, u64, u64), done: &(u64, u64, u64)| {
                (sum.0.saturating_add(done.0), sum.1.saturating_add(done.1), sum.2.saturating_add(done.2))
            };
            let (files, bytes, sent_bytes) = self.done.values().fold((0, 0, 0), add);
            // A large file takes more than a minute on a slow link.
            self.watchdog.moved(now, bytes.saturating_add(sent_bytes));
            if has_stored {
                self.moved = now;
                let _ = self.tell.send(News::Moved { files, bytes });
            }
        }
    }

    /// Asks the bucket for the remaining files, and for the parts of large ones.
    async fn look(&mut self) -> Result<(), CallError> {
        let places: Vec<usize> = self.splits.keys().copied().collect();
        for at in places {
            let Some(split) = self.splits.get_mut(&at) else { continue };
            if let Some(end) = split.look().await? {
                self.ended(at, end);
            }
        }
        let files = self.files;
        let left: HashMap<&str, usize> = self.left_to_workers().map(|at| (files[at].key.as_str(), at)).collect();
        if left.is_empty() {
            return Ok(());
        }
        // Stored ones will be listed as well.
        let keys = files.iter().map(|file| file.key.as_str()).collect();
        let listed = listing::list_expecting(&self.uploader.client, &self.prefix, keys).await?;
        let is_of = |object: &ListedObject| {
            let at = left.get(object.key.as_str()).copied();
            at.filter(|at| files[*at].item.size == object.size)
        };
        let found: Vec<(usize, String)> =
            listed.into_iter().filter_map(|object| Some((is_of(&object)?, object.etag))).collect();
        let stored: HashSet<usize> = found.iter().map(|(at, _)| *at).collect();
        self.left.retain(|at| !stored.contains(at));
        for (at, etag) in found {
            let _ = self.tell.send(News::Stored { at, etag });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml::ServiceError;

    #[test]
    fn a_listing_that_is_refused_is_not_asked_for_again() {
        let refused = |status| CallError::Refused { what: String::new(), status, error: ServiceError::default() };
        assert!([400, 404, 412].iter().all(|status| is_final(&refused(*status))));
        assert!([200, 401, 403, 408, 409, 429, 500, 503].iter().all(|status| !is_final(&refused(*status))));
        let coded = |code: &str| {
            let error = ServiceError { code: code.to_owned(), ..ServiceError::default() };
            CallError::Refused { what: String::new(), status: 403, error }
        };
        assert!(["AccessDenied", "NoSuchUpload"].iter().all(|code| is_final(&coded(code))));
        assert!(PASSING.is_sorted() && PASSING.iter().all(|code| !is_final(&coded(code))));
        let network = CallError::Network { what: String::new(), reason: String::new(), tries: 3 };
        assert!(!is_final(&network));
    }
}
