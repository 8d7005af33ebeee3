//! Reads and hashes files on a few threads, and uploads them on tasks of the network.
//!
//! A thread reads a small file whole, under a permit of the window, and hashes it. A task then asks the store for the
//! object if that is unknown, and uploads the file. Tasks of large files read them part by part. Tasks of pipes also
//! open them, because that waits for a writer and must not delay the end of the run. A file that has not changed since
//! an earlier run is opened to check that, and not read ([`Unchanged`]).

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};

use bytes::Bytes;
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::tree::Mtime;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::window::{Permit, Window};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::known::{Known, Presence};
use super::plan::Planned;
use super::unchanged::{Seen, Unchanged};
use crate::bucket::{explain, is_fatal};
use crate::client::{CallError, Client};
use crate::compare::{self, Checker, Finding, Present};
use crate::dialect::Feature;
use crate::mtime;
use crate::objects::Condition;
use crate::parts::{self, WHOLE_BYTES_MAX};
use crate::upload::{PutOutcome, Stored, UploadError, Uploader};

/// Maximum size of an unknown object that is put on the condition that it does not exist, at a store that honours
/// conditions. Bytes sent in vain cost less than a request before.
const CONDITIONAL_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of large files in flight: their parts share the window.
const LARGE_AT_ONCE: u32 = 4;

/// Maximum number of pipes read at once. Each has a thread that waits for it; the runtime's threads are needed for
/// others, too.
const PIPES_AT_ONCE: u32 = 100;

/// Bytes that a permit counts for a file beside its content.
const FILE_BYTES: u64 = 4 << 10;

/// Number of failures without any success after which the rest is not tried.
const FAILURES_MAX: usize = 20;

/// Result of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was uploaded.
    Stored(Stored),
    /// It existed already.
    Present {
        /// ETag of the object without quotes, if it is known to belong to the content.
        etag: Option<String>,
    },
    /// Other machines uploaded it, or some of its parts.
    Elsewhere(Stored),
    /// It would be uploaded (`--dry-run`).
    Wanted,
}

impl Outcome {
    /// Present ETag of the object.
    fn etag(&self) -> Option<&str> {
        match self {
            Outcome::Stored(stored) | Outcome::Elsewhere(stored) => stored.etag.as_deref(),
            Outcome::Present { etag } => etag.as_deref(),
            Outcome::Wanted => None,
        }
    }
}

/// Result of a file.
pub(super) struct Done {
    /// Number of the file in the plan.
    pub number: usize,
    /// Size of the file, in bytes.
    pub size: u64,
    /// The result.
    pub result: Result<Outcome, CommandError>,
}

/// Events while objects are sent.
pub(super) enum Heard {
    /// A file has a result.
    Done(Done),
    /// Files and bytes that other machines report as uploaded.
    Elsewhere(u64, u64),
    /// A warning for the user.
    Warning(String),
    /// A timer tick.
    Nothing,
}

/// Shared state for sending objects.
pub(super) struct Sending {
    pub client: Client,
    pub uploader: Uploader,
    pub known: Known,
    pub unchanged: Unchanged,
    /// Whether to test if the store honours conditions, while that is unknown.
    pub asks_for_conditions: bool,
    pub handle: Handle,
    pub stop: watch::Receiver<bool>,
    pub threads: usize,
    pub dry_run: bool,
    pub fields: Vec<(String, String)>,
    pub content_type: Arc<dyn Fn(&str) -> String + Send + Sync>,
    pub large: Window,
    pub pipes: Window,
    /// Becomes true after an error that every file would have: no further file is begun.
    pub over: watch::Sender<bool>,
    pub succeeded: AtomicUsize,
    pub failed: AtomicUsize,
}

impl Sending {
    /// A window for large files.
    pub(super) fn large_window() -> Window {
        Window::new(u64::MAX, LARGE_AT_ONCE)
    }

    /// The same state, with other knowledge of the store. Failures are counted separately.
    pub(super) fn with(&self, known: Known) -> Sending {
        Sending {
            client: self.client.clone(),
            uploader: self.uploader.clone(),
            known,
            unchanged: Unchanged::none(),
            asks_for_conditions: false,
            handle: self.handle.clone(),
            stop: self.stop.clone(),
            threads: self.threads,
            dry_run: false,
            fields: self.fields.clone(),
            content_type: Arc::clone(&self.content_type),
            large: Sending::large_window(),
            pipes: Sending::pipes_window(),
            over: watch::Sender::new(false),
            succeeded: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
        }
    }

    /// A window for pipes. They do not count as large files: a silent pipe would block these.
    pub(super) fn pipes_window() -> Window {
        Window::new(u64::MAX, PIPES_AT_ONCE)
    }

    /// Sends the objects with these numbers; `each` is called for results and timer ticks. Returns when all have
    /// results, or no more are begun.
    pub(super) fn send(self: &Arc<Self>, objects: &[Planned], numbers: &[usize], each: &mut dyn FnMut(Heard)) {
        let (done, ended) = mpsc::channel::<Done>();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.threads.min(numbers.len()).max(1) {
                let done = done.clone();
                let next = &next;
                scope.spawn(move || {
                    while !self.is_over() {
                        let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                        self.begin(&objects[*number], *number, &done);
                    }
                });
            }
            drop(done);
            loop {
                match ended.recv_timeout(PROGRESS_EVERY) {
                    Ok(done) => each(Heard::Done(done)),
                    Err(RecvTimeoutError::Timeout) => each(Heard::Nothing),
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        });
    }

    fn is_over(&self) -> bool {
        *self.over.borrow() || *self.stop.borrow()
    }

    /// Reads a file, and has a task upload it.
    pub(super) fn begin(self: &Arc<Self>, object: &Planned, number: usize, done: &mpsc::Sender<Done>) {
        let tell = |size, result| {
            // The receiver outlives all senders.
            let _ = done.send(Done { number, size, result });
        };
        if object.path.as_os_str() == "-" {
            return self.spawn_pipe(object, number, io::stdin(), done);
        }
        let work = &self.uploader.work;
        let opened = work.read(|| {
            let file = match &object.found {
                Some(found) => found.open(&object.path)?,
                None if std::fs::metadata(&object.path)?.is_file() => File::open(&object.path)?,
                None => return Ok(None),
            };
            Ok(Some((file.metadata()?, file)))
        });
        let (size, seen, mtime, file) = match opened {
            Ok(Some((about, file))) => (about.len(), Seen::now(&about), mtime::of_file(&about), file),
            Ok(None) => {
                let named = Named { path: object.path.clone(), file: None };
                return self.spawn_pipe(object, number, named, done);
            }
            Err(error) => return tell(0, Err(self.explained(&UploadError::Source(error)))),
        };
        let presence = self.known.of(&object.key, size);
        if self.is_unchanged(&object.key, &seen, &presence) {
            self.succeeded.fetch_add(1, Ordering::Relaxed);
            return tell(size, Ok(Outcome::Present { etag: None }));
        }
        if size > WHOLE_BYTES_MAX {
            return self.spawn_large(object, number, (file, size, seen, mtime), done);
        }
        let permit = work.wait(|| self.uploader.window.acquire_blocking(size + FILE_BYTES));
        let (key, replaces) = (object.key.clone(), object.replaces.clone());
        let small = Small { number, key, replaces, file, size, seen, mtime, asked: None };
        if presence == Presence::Unknown && self.unchanged.knows(&object.key) {
            return self.ask_before_reading(small, permit, done);
        }
        self.read_small(small, presence, permit, done);
    }

    /// Whether an earlier run has sent or compared the file in its present state, and the store lists the same object.
    fn is_unchanged(&self, key: &str, seen: &Seen, presence: &Presence) -> bool {
        matches!(presence, Presence::SameSize(etag) if self.unchanged.has(key, seen, etag))
    }

    /// Has a task request the object of a file that an earlier run knew. The file is read only if they differ.
    fn ask_before_reading(self: &Arc<Self>, mut small: Small, permit: Permit, done: &mpsc::Sender<Done>) {
        let (this, done) = (Arc::clone(self), done.clone());
        self.handle.spawn(async move {
            // An error will occur again, where it is reported.
            small.asked = this.present(&small.key).await.ok();
            let is_unchanged = |present: &Present| {
                let etag = present.etag.as_ref().filter(|_| present.size == small.size);
                etag.is_some_and(|etag| this.unchanged.has(&small.key, &small.seen, etag))
            };
            if small.asked.iter().flatten().any(is_unchanged) {
                return this.finish(small.number, small.size, Ok(Outcome::Present { etag: None }), permit, &done);
            }
            let handle = this.handle.clone();
            handle.spawn_blocking(move || this.read_small(small, Presence::Unknown, permit, &done));
        });
    }

    /// Reads a small file, and has a task upload it unless the listing shows that it exists.
    fn read_small(self: &Arc<Self>, small: Small, presence: Presence, permit: Permit, done: &mpsc::Sender<Done>) {
        let Small { number, key, replaces, file, size, seen, mtime, asked } = small;
        let work = &self.uploader.work;
        let tell = |result| {
            // The receiver outlives all senders.
            let _ = done.send(Done { number, size, result });
        };
        let content = match work.read(|| read(&file, size)) {
            Ok(content) if content.len() as u64 == size => Bytes::from(content),
            Ok(_) => return tell(Err(self.explained(&UploadError::Changed))),
            Err(error) => return tell(Err(self.explained(&UploadError::Source(error)))),
        };
        let confirmed = seen.confirmed(&file);
        let same = |etag: &String| compare::is_md5(etag) && compare::md5_hex(&content) == etag.to_ascii_lowercase();
        if let Presence::SameSize(etag) = &presence
            && work.hash(|| same(etag))
        {
            self.unchanged.note(&key, confirmed, Some(etag));
            self.succeeded.fetch_add(1, Ordering::Relaxed);
            return tell(Ok(Outcome::Present { etag: None }));
        }
        let hash = work.hash(|| Sha256::of(&content));
        let (this, done) = (Arc::clone(self), done.clone());
        self.handle.spawn(async move {
            let result = this.small((&key, &replaces), content, (hash, mtime), presence, asked).await;
            if let Ok(outcome) = &result {
                this.unchanged.note(&key, confirmed, outcome.etag());
            }
            let result = result.map_err(|error| this.explained(&error));
            this.finish(number, size, result, permit, &done);
        });
    }

    fn finish(
        &self,
        number: usize,
        size: u64,
        result: Result<Outcome, CommandError>,
        permit: Permit,
        done: &mpsc::Sender<Done>,
    ) {
        if result.is_ok() {
            self.succeeded.fetch_add(1, Ordering::Relaxed);
        }
        drop(permit);
        let _ = done.send(Done { number, size, result });
    }

    async fn small(
        &self,
        (key, replaces): (&str, &Condition),
        content: Bytes,
        (hash, mtime): (Sha256, Option<Mtime>),
        presence: Presence,
        mut asked: Option<Option<Present>>,
    ) -> Result<Outcome, UploadError> {
        let size = content.len() as u64;
        let dialect = self.client.dialect();
        let conditional = presence == Presence::Unknown && size <= CONDITIONAL_BYTES_MAX && !self.dry_run;
        // The existing object may come from an earlier copy of our request.
        let mut perhaps_ours = false;
        let is_there = matches!(asked, Some(Some(_)));
        if conditional && !is_there && dialect.honours(Feature::PutIfAbsent) {
            match self
                .uploader
                .put_whole(key, self.fields(key, mtime), content.clone(), hash, &Condition::Absent)
                .await?
            {
                PutOutcome::Stored(stored) => return Ok(Outcome::Stored(stored)),
                PutOutcome::Exists { resent } => (perhaps_ours, asked) = (resent, None),
            }
        }
        let asked = match asked {
            None if presence != Presence::Absent => Some(self.present(key).await?),
            asked => asked,
        };
        let outcome = |present: Present, perhaps_ours| {
            let (confirmed, etag) = (!present.checksums.is_empty(), present.etag);
            match perhaps_ours {
                true => Outcome::Stored(Stored { size, checksum: parts::base64(&hash), confirmed, etag }),
                false => Outcome::Present { etag },
            }
        };
        if let Some(present) = self.if_same(key, asked.flatten(), &content).await? {
            return Ok(outcome(present, perhaps_ours));
        }
        if self.dry_run {
            return Ok(Outcome::Wanted);
        }
        let fields = self.fields(key, mtime);
        match self.uploader.put_whole(key, fields.clone(), content.clone(), hash, replaces).await? {
            PutOutcome::Stored(stored) => {
                if conditional && self.asks_for_conditions && dialect.asks_for_condition() {
                    self.uploader.ask_for_condition(key, fields, content, hash).await;
                }
                Ok(Outcome::Stored(stored))
            }
            // Another machine may have uploaded the same content.
            PutOutcome::Exists { resent } => match self.if_same(key, self.present(key).await?, &content).await? {
                Some(present) => Ok(outcome(present, resent)),
                None => Err(UploadError::Condition),
            },
        }
    }

    /// The existing object, if it has this content.
    async fn if_same(
        &self,
        key: &str,
        present: Option<Present>,
        content: &Bytes,
    ) -> Result<Option<Present>, CallError> {
        let Some(present) = present.filter(|present| present.size == content.len() as u64) else { return Ok(None) };
        let mut checker = Checker::new(compare::proof(&self.client, key, &present).await?);
        checker.update(&[content]);
        Ok((checker.finish() == Finding::Right).then_some(present))
    }

    /// Requests the existing object. A user who may put need not be allowed to read; then the object counts as unknown,
    /// and is uploaded.
    async fn present(&self, key: &str) -> Result<Option<Present>, CallError> {
        match compare::head(&self.client, key).await {
            Err(error @ CallError::Refused { status: 403 | 405 | 501, .. }) if !is_fatal(&error) => {
                tracing::info!(%error, "the store does not tell whether the object exists");
                Ok(None)
            }
            answer => answer,
        }
    }

    /// Header fields of an object.
    pub(super) fn fields(&self, key: &str, mtime: Option<Mtime>) -> Vec<(String, String)> {
        let mut fields = self.fields.clone();
        // The user's own field takes precedence.
        if let Some(mtime) = mtime.filter(|_| !fields.iter().any(|(name, _)| name == mtime::FIELD)) {
            fields.push((mtime::FIELD.to_owned(), mtime::text(mtime)));
        }
        fields.push(("Content-Type".into(), (self.content_type)(key)));
        fields
    }

    fn spawn_large(
        self: &Arc<Self>,
        object: &Planned,
        number: usize,
        (file, size, seen, mtime): (File, u64, Seen, Option<Mtime>),
        done: &mpsc::Sender<Done>,
    ) {
        let permit = self.large.acquire_blocking(0);
        let (this, key, done) = (Arc::clone(self), object.key.clone(), done.clone());
        let replaces = object.replaces.clone();
        self.handle.spawn(async move {
            let file = Arc::new(file);
            let result = this.large_file((&key, &replaces), &file, (size, mtime), &seen).await;
            if let Ok(outcome) = &result {
                this.unchanged.note(&key, seen.confirmed(&file), outcome.etag());
            }
            let result = result.map_err(|error| this.explained(&error));
            this.finish(number, size, result, permit, &done);
        });
    }

    fn spawn_pipe(
        self: &Arc<Self>,
        object: &Planned,
        number: usize,
        from: impl Read + Send + 'static,
        done: &mpsc::Sender<Done>,
    ) {
        let (this, key, done) = (Arc::clone(self), object.key.clone(), done.clone());
        self.handle.spawn(async move {
            let permit = this.pipes.acquire(0).await;
            let result = this.pipe(&key, from).await;
            let size = if let Ok(Outcome::Stored(stored)) = &result { stored.size } else { 0 };
            let result = result.map_err(|error| this.explained(&error));
            this.finish(number, size, result, permit, &done);
        });
    }

    async fn large_file(
        &self,
        (key, replaces): (&str, &Condition),
        file: &Arc<File>,
        (size, mtime): (u64, Option<Mtime>),
        seen: &Seen,
    ) -> Result<Outcome, UploadError> {
        if self.known.of(key, size) != Presence::Absent
            && let Some(present) = self.present(key).await?
            && present.size == size
        {
            if present.etag.as_deref().is_some_and(|etag| self.unchanged.has(key, seen, etag)) {
                return Ok(Outcome::Present { etag: None });
            }
            if self.is_same_file(key, &present, file).await? {
                return Ok(Outcome::Present { etag: present.etag });
            }
        }
        if self.dry_run {
            return Ok(Outcome::Wanted);
        }
        let fields = self.fields(key, mtime);
        match self.uploader.put_file_on(key, fields, Arc::clone(file), size, replaces).await {
            // Another machine may have uploaded the same content.
            Err(UploadError::Condition) => match self.present(key).await?.filter(|present| present.size == size) {
                Some(present) if self.is_same_file(key, &present, file).await? => {
                    Ok(Outcome::Present { etag: present.etag })
                }
                _ => Err(UploadError::Condition),
            },
            result => result.map(Outcome::Stored),
        }
    }

    /// Whether the existing object has the content of a file of the same size.
    async fn is_same_file(&self, key: &str, present: &Present, file: &Arc<File>) -> Result<bool, UploadError> {
        let proof = compare::proof(&self.client, key, present).await?;
        let (file, work) = (Arc::clone(file), Arc::clone(&self.uploader.work));
        let compared = tokio::task::spawn_blocking(move || {
            // An upload has read the file, or is going to.
            io::Seek::rewind(&mut &*file)?;
            let same = work.hash(|| compare::file_matches(&file, proof))?;
            io::Seek::rewind(&mut &*file).map(|()| same)
        });
        compared.await.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(UploadError::Source)
    }

    async fn pipe(&self, key: &str, from: impl Read + Send + 'static) -> Result<Outcome, UploadError> {
        if self.dry_run {
            return Ok(Outcome::Wanted);
        }
        // A silent pipe must not delay the report of an error.
        let mut over = self.over.subscribe();
        let over = async {
            let _ = over.wait_for(|over| *over).await;
        };
        self.uploader.put_pipe(key, self.fields(key, None), from, over).await.map(Outcome::Stored)
    }

    /// Converts an error for the line of a file. Some errors end the whole run.
    pub(super) fn explained(&self, error: &UploadError) -> CommandError {
        let command = match error {
            UploadError::Call(error) => {
                if is_fatal(error) {
                    self.over.send_replace(true);
                }
                explain(error)
            }
            UploadError::Source(_) | UploadError::Changed => CommandError::new(ErrorKind::Disk, error),
            UploadError::Condition => CommandError::new(ErrorKind::Locked, error),
            UploadError::Conflict => CommandError::new(ErrorKind::Network, error),
            UploadError::TooLarge { .. } | UploadError::TooManyParts { .. } => CommandError::usage(error),
            UploadError::Damaged { .. } => CommandError::new(ErrorKind::Verification, error),
        };
        self.failure(command)
    }

    fn failure(&self, error: CommandError) -> CommandError {
        let failed = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
        if failed >= FAILURES_MAX && self.succeeded.load(Ordering::Relaxed) == 0 {
            self.over.send_replace(true);
        }
        error
    }
}

/// A small file that was examined but not read yet.
struct Small {
    number: usize,
    key: String,
    replaces: Condition,
    file: File,
    size: u64,
    seen: Seen,
    mtime: Option<Mtime>,
    /// The existing object, if the store was asked before the file was read.
    asked: Option<Option<Present>>,
}

/// A named pipe. It is opened when it is read, which waits for a writer.
struct Named {
    path: PathBuf,
    file: Option<File>,
}

impl Read for Named {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            closed => closed.insert(File::open(&self.path)?),
        };
        file.read(into)
    }
}

/// Reads all of a file, and one further byte if there is one.
fn read(file: &File, size: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or(usize::MAX) + 1);
    file.take(size + 1).read_to_end(&mut content)?;
    Ok(content)
}
