//! Uploads objects: small ones with one request, large ones in concurrent parts.
//!
//! Content is read in order, and a part is hashed while others are sent. The window's permits bound the memory; pipes
//! take them as they deliver ([`super::gather`]). Parts too large for memory occur only in objects of more than 80 GB
//! (files) or 16 GB (pipes). They are sent from the file, or from a file without a name that holds the pipe's part
//! ([`super::spool`]). A failed multipart upload is aborted on the server; if that is impossible, it is in the journal.

pub(crate) mod early;
pub(crate) mod shared;

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use fullbore_engine::digest::{Sha256, Sha256Hasher};
use fullbore_engine::files::modified;
use fullbore_engine::units;
use fullbore_engine::window::{Permit, Window};
use fullbore_wire::exchange::ReadAt;
use fullbore_wire::http1::Method;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::client::{Answer, Body, CHECKSUM_FIELD, Call, CallError, Client, any_etag, etag};
use super::compare::{composite_etag, is_md5, md5_hex, sum_of};
use super::dialect::{Feature, Support};
use super::gather::{Gathered, Gathering, Held};
use super::journal::{self, Journal, Open};
use super::objects::{Condition, condition_field};
use super::open_uploads::{self, ABORT_LIMIT, Aborted};
use super::parts::{Cut, Growth, OBJECT_BYTES_MAX, PART_BYTES_MAX, PARTS_MAX, WHOLE_BYTES_MAX, base64, composite};
use super::spool::Spool;
use super::work::Work;
use super::xml::{self, XmlError};

/// Maximum size of parts in memory; four of them fit in the usual window.
const IN_MEMORY_BYTES_MAX: u64 = 16 << 20;

/// Memory for a part that is sent from a file: two pieces of it.
const FROM_FILE_BYTES: u64 = 1 << 20;

/// Time to receive a signal that has also ended the writer of a pipe, whose content is incomplete then.
const SIGNAL_TIME: Duration = Duration::from_millis(50);

/// Maximum number of times that a file is divided anew. One would do, if no part to be refused stayed in flight longer
/// than another.
const CUTS_MAX: usize = 3;

/// Maximum number of attempts to abort an upload, and the time between: a guess at the time that a store needs for a
/// part whose bytes it has. Some stores report success each time.
const ABORTS_MAX: usize = 3;
const LATE_PARTS: Duration = Duration::from_millis(200);

/// Maximum number of repetitions for a store that is processing another request for the same object (409), and the
/// pause before. The other one may be our own earlier copy, whose connection broke. Both are guesses.
pub(crate) const CONFLICTS_MAX: usize = 4;
pub(crate) const CONFLICT_PAUSE: Duration = Duration::from_millis(500);

/// Why an object was not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UploadError {
    /// A request failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The content could not be read.
    #[error("{0}")]
    Source(#[source] io::Error),
    /// The file was written to during the upload.
    #[error("the file was changed while it was read")]
    Changed,
    /// The condition of the upload did not hold.
    #[error("the store has another object with this key than expected")]
    Condition,
    /// The store was processing another request for the same object each time.
    #[error("the store says each time that another request for this object is under way")]
    Conflict,
    /// The content is too large for an object.
    #[error("more than {}, which is the most that {what} can have", units::bytes(*most_bytes))]
    TooLarge {
        /// Kind of the object: "an object" or "an object from a pipe".
        what: &'static str,
        /// Maximum size, in bytes.
        most_bytes: u64,
    },
    /// The store accepts fewer parts than Amazon's.
    #[error("the store takes only {most} parts of an object: {reason}")]
    TooManyParts {
        /// Maximum number of parts, as far as known.
        most: u64,
        /// The store's refusal.
        reason: CallError,
    },
    /// The stored object differs from the content that was sent.
    #[error("checksum mismatch: the store has {theirs}, fullbore sent {ours}; do not use the object")]
    Damaged {
        /// Checksum computed by the store.
        theirs: String,
        /// Checksum computed here.
        ours: String,
    },
}

/// Uploads bytes, files and pipes into one bucket.
#[derive(Debug, Clone)]
pub struct Uploader {
    /// Client of the bucket that receives the objects.
    pub client: Client,
    /// How parts of pipes grow with the length of the pipe.
    pub growth: Growth,
    /// Window for content in memory.
    pub(crate) window: Window,
    /// Part of the window for pipes.
    pub(crate) pipes: Gathering,
    pub(crate) work: Arc<Work>,
    /// Journal of multipart uploads.
    pub(crate) journal: Option<Arc<Journal>>,
    /// Disk space for a pipe's large parts.
    pub(crate) spool: Spool,
}

/// An object that the store has acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// Length of the object in bytes.
    pub size: u64,
    /// SHA-256 of the object in base64; for an object in parts, the composite checksum with the number of parts. Empty
    /// if it is unknown.
    pub checksum: String,
    /// Whether the store itself returned this checksum.
    pub confirmed: bool,
    /// ETag of the object without quotes, if the store returned one that is not weak.
    pub etag: Option<String>,
}

/// Result of putting an object in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is stored.
    Stored(Stored),
    /// The condition did not hold: another object exists, or none exists where one should.
    Exists {
        /// Whether the request was sent more than once: the existing object may come from an earlier copy, whose answer
        /// was lost.
        resent: bool,
    },
}

impl Uploader {
    /// Creates an uploader. Content in memory takes permits of `window`. Parts of pipes that are too large for memory
    /// are kept in `spool_directory`, in files without a name. There is no journal, so multipart uploads of a killed
    /// process stay open.
    pub fn new(client: Client, window: Window, spool_directory: &Path) -> Uploader {
        Uploader {
            client,
            growth: Growth::default(),
            pipes: Gathering::new(&window),
            window,
            work: Arc::default(),
            journal: None,
            spool: Spool::new(spool_directory),
        }
    }

    /// Uploads a small object with one request, on a condition that not every store honours. `fields` are header fields
    /// of the object, such as `Content-Type`.
    ///
    /// # Errors
    /// [`UploadError::Call`] if the store refuses the request, or the request fails after all retries.
    pub async fn put_whole(
        &self,
        key: &str,
        mut fields: Vec<(String, String)>,
        content: Bytes,
        hash: Sha256,
        condition: &Condition,
    ) -> Result<PutOutcome, UploadError> {
        let (size, dialect) = (content.len() as u64, self.client.dialect());
        let (is_conditional, only_if_absent) = (*condition != Condition::None, *condition == Condition::Absent);
        fields.extend(condition_field(condition));
        let mut call = Call::new(Method::Put, Some(key)).body(content.clone(), hash);
        (call.fields, call.checksum) = (fields, Some(Feature::ObjectChecksums));
        let mut conflicts = 0;
        let answer = loop {
            match self.client.call(call.clone()).await {
                // The store may not support conditions: the object is replaced.
                Err(error)
                    if is_conditional
                        && !(only_if_absent && dialect.honours(Feature::PutIfAbsent))
                        && may_be_about_conditions(&error) =>
                {
                    call.fields.pop();
                    let answer = self.client.call(call).await?;
                    if only_if_absent {
                        dialect.learn(Feature::PutIfAbsent, Support::Lacking);
                    }
                    break answer;
                }
                // A concurrent request is putting the same object: another machine, or an earlier copy of this request.
                Err(CallError::Refused { status: 409, .. }) if is_conditional => {
                    if conflicts == CONFLICTS_MAX {
                        return Ok(PutOutcome::Exists { resent: true });
                    }
                    conflicts += 1;
                    tokio::time::sleep(CONFLICT_PAUSE).await;
                }
                answer => break answer?,
            }
        };
        match answer.head.status {
            // Some answer as to a GET.
            412 | 304 if is_conditional => {
                if only_if_absent {
                    dialect.learn(Feature::PutIfAbsent, Support::Honoured);
                }
                Ok(PutOutcome::Exists { resent: answer.times_sent > 1 || conflicts > 0 })
            }
            // The object that should be replaced does not exist any more.
            404 if is_conditional && !only_if_absent => Ok(PutOutcome::Exists { resent: false }),
            200..300 => {
                self.learn_of_etags(&answer, &content);
                let confirmed = answer.head.store_field(CHECKSUM_FIELD).is_some();
                let etag = etag(&answer.head);
                Ok(PutOutcome::Stored(Stored { size, checksum: base64(&hash), confirmed, etag }))
            }
            _ => Err(CallError::refused(format!("PUT {key}"), &answer).into()),
        }
    }

    /// Puts a stored object once more, on the condition that it does not exist, to find out whether the store honours
    /// conditions.
    pub(crate) async fn ask_for_condition(
        &self,
        key: &str,
        fields: Vec<(String, String)>,
        content: Bytes,
        hash: Sha256,
    ) {
        if let Ok(PutOutcome::Stored(_)) = self.put_whole(key, fields, content, hash, &Condition::Absent).await {
            self.client.dialect().learn(Feature::PutIfAbsent, Support::Lacking);
        }
    }

    /// Finds out from the first object of a run whether the ETags of a store are MD5 sums.
    fn learn_of_etags(&self, answer: &Answer, content: &Bytes) {
        let dialect = self.client.dialect();
        let encryption = answer.head.store_field("x-amz-server-side-encryption").unwrap_or_default();
        if dialect.support(Feature::Md5Etags) != Support::Unknown || encryption.starts_with("aws:kms") {
            return;
        }
        let Some(etag) = etag(&answer.head).filter(|etag| is_md5(etag)) else { return };
        let is_sum = etag.eq_ignore_ascii_case(&md5_hex(content));
        dialect.learn(Feature::Md5Etags, if is_sum { Support::Honoured } else { Support::Lacking });
    }

    /// Uploads a file of `size` bytes in parts.
    ///
    /// # Errors
    /// As [`Uploader::put_pipe`], and [`UploadError::Changed`] if the file was written to meanwhile. The store then
    /// keeps no parts, or the journal names them for a later run.
    pub async fn put_file(
        &self,
        key: &str,
        fields: Vec<(String, String)>,
        file: Arc<File>,
        size: u64,
    ) -> Result<Stored, UploadError> {
        self.put_file_on(key, fields, file, size, &Condition::None).await
    }

    /// As [`Uploader::put_file`], on a condition. It is checked before the parts are joined, and sent with the request
    /// that joins them, which not every store honours.
    ///
    /// # Errors
    /// As [`Uploader::put_file`], and [`UploadError::Condition`] if the condition does not hold.
    pub async fn put_file_on(
        &self,
        key: &str,
        fields: Vec<(String, String)>,
        file: Arc<File>,
        size: u64,
        condition: &Condition,
    ) -> Result<Stored, UploadError> {
        if size > OBJECT_BYTES_MAX {
            return Err(UploadError::TooLarge { what: "an object", most_bytes: OBJECT_BYTES_MAX });
        }
        for _ in 0..CUTS_MAX {
            let most = self.client.dialect().parts_max().min(PARTS_MAX);
            match self.put_parts(key, fields.clone(), &file, size, Cut::at_most(size, most), condition).await {
                Err(UploadError::TooManyParts { most, .. }) if most > 0 => {
                    self.client.dialect().learn_parts_max(most);
                    io::Seek::rewind(&mut &*file).map_err(UploadError::Source)?;
                }
                done => return done,
            }
        }
        let most = self.client.dialect().parts_max();
        self.put_parts(key, fields, &file, size, Cut::at_most(size, most), condition).await
    }

    /// Uploads a file in parts of these sizes.
    async fn put_parts(
        &self,
        key: &str,
        fields: Vec<(String, String)>,
        file: &Arc<File>,
        size: u64,
        cut: Cut,
        condition: &Condition,
    ) -> Result<Stored, UploadError> {
        if cut.part_bytes(0) > PART_BYTES_MAX {
            let most_bytes = self.client.dialect().parts_max().saturating_mul(PART_BYTES_MAX);
            return Err(UploadError::TooLarge { what: "an object of this store", most_bytes });
        }
        let file = Arc::clone(file);
        let by_place = cut.part_bytes(0) > IN_MEMORY_BYTES_MAX;
        let original = Original { written: modified(&file), file: Arc::clone(&file), size };
        let (parts, ready) = mpsc::channel(1);
        let reading = Reading { work: Arc::clone(&self.work), window: self.window.clone(), cut, parts };
        let reader = if by_place {
            tokio::task::spawn_blocking(move || reading.by_place(&file, size))
        } else {
            tokio::task::spawn_blocking(move || reading.in_order(&mut (&*file).take(size)))
        };
        let upload =
            self.begin(key, fields, None).await.map(|upload| Multipart { condition: condition.clone(), ..upload });
        self.in_parts(upload, ready, reader, Whole::File(original)).await
    }

    /// Uploads the content of a pipe, in parts that grow. Returns early if `over` completes while the pipe is still
    /// silent.
    ///
    /// # Errors
    /// - [`UploadError::Source`] if the pipe cannot be read.
    /// - [`UploadError::TooLarge`] beyond the largest object.
    /// - [`UploadError::Damaged`] if the store has other content.
    /// - [`UploadError::Call`] if a request fails after all retries, or after a stop.
    pub async fn put_pipe(
        &self,
        key: &str,
        fields: Vec<(String, String)>,
        mut from: impl Read + Send + 'static,
        over: impl Future<Output = ()> + Send,
    ) -> Result<Stored, UploadError> {
        // A pipe that ends within the first bytes becomes an object in one piece.
        let (work, pipes) = (Arc::clone(&self.work), self.pipes.clone());
        let begun = tokio::task::spawn_blocking(move || {
            pipes.read(&mut from, WHOLE_BYTES_MAX, &work).map(|first| (first, from))
        });
        let (first, mut from) = tokio::select! {
            begun = begun => joined(begun)?.map_err(UploadError::Source)?,
            // A pipe may be silent for ever.
            () = self.client.stopped() => return Err(CallError::Interrupted.into()),
            () = over => return Err(CallError::Interrupted.into()),
        };
        if (first.content.len() as u64) < WHOLE_BYTES_MAX {
            self.go_on_unless_stopped().await?;
            let hash = Sha256::of(&first.content);
            return match self.put_whole(key, fields, first.content, hash, &Condition::None).await? {
                PutOutcome::Stored(stored) => Ok(stored),
                PutOutcome::Exists { .. } => Err(UploadError::Changed),
            };
        }
        let (parts, ready) = mpsc::channel(1);
        let cut = Cut::Growing(self.growth);
        let reading = Reading { work: Arc::clone(&self.work), window: self.window.clone(), cut, parts };
        let (pipes, spool) = (self.pipes.clone(), self.spool.clone());
        let reader = tokio::task::spawn_blocking(move || reading.of_a_pipe(first, &mut from, &pipes, &spool));
        let upload = self.begin(key, fields, None).await;
        self.in_parts(upload, ready, reader, Whole::Pipe).await
    }

    /// At the end of a pipe: fails if a signal has ended its writer.
    async fn go_on_unless_stopped(&self) -> Result<(), CallError> {
        match timeout(SIGNAL_TIME, self.client.stopped()).await {
            Ok(()) => Err(CallError::Interrupted),
            Err(_) => Ok(()),
        }
    }

    /// Begins a multipart upload. The journal records it before the request, and its id after the answer.
    async fn begin(
        &self,
        key: &str,
        fields: Vec<(String, String)>,
        of: Option<String>,
    ) -> Result<Multipart, UploadError> {
        let mut call = Call::new(Method::Post, Some(key)).query("uploads", "").optional_field(
            Feature::PartChecksums,
            "x-amz-checksum-algorithm",
            "SHA256",
        );
        (call.fields, call.errors_in_body) = (fields, true);
        let bucket = self.client.bucket();
        let (store, name) = (bucket.store().to_owned(), bucket.name.clone());
        let intent = self.noted(|journal| journal.will_begin(&store, &name, key));
        let answer = self.answer_to_begin(call, intent).await;
        let what = || format!("POST {key}?uploads");
        let begun = match &answer {
            Ok(answer) if answer.head.status == 200 => read_answer(&what(), xml::upload_id(&answer.body)),
            Ok(answer) => Err(CallError::refused(what(), answer)),
            Err(error) => Err(error.clone()),
        };
        let begun = begun.map(|upload_id| Open { store, bucket: name, key: key.to_owned(), upload_id, of });
        if let Ok(open) = &begun {
            self.noted(|journal| journal.begun(open));
        }
        if let Some(intent) = intent {
            // A copy of the request whose answer was lost may have begun an upload as well.
            let only_one = match (&answer, &begun) {
                (Ok(answer), Ok(_)) => answer.times_sent == 1,
                (_, Err(CallError::Refused { status: 400..=499, .. })) => true,
                _ => false,
            };
            self.noted(|journal| journal.answered(intent, only_one));
        }
        Ok(Multipart { uploader: self.clone(), open: begun?, condition: Condition::None, sent: Arc::default() })
    }

    /// Asks the store to begin an upload. While it waits, the journal records that this run is alive.
    async fn answer_to_begin(&self, call: Call, intent: Option<u64>) -> Result<Answer, CallError> {
        let mut answer = std::pin::pin!(self.client.call(call));
        loop {
            match timeout(journal::ALIVE_EVERY, &mut answer).await {
                Ok(answer) => return answer,
                Err(_) => intent.and_then(|intent| self.noted(|journal| journal.waits(intent))),
            };
        }
    }

    /// Writes to the journal, if there is one.
    fn noted<T>(&self, write: impl FnOnce(&Journal) -> io::Result<T>) -> Option<T> {
        let journal = self.journal.as_deref()?;
        match write(journal) {
            Ok(written) => Some(written),
            Err(error) => {
                if journal.tells() {
                    tracing::warn!(%error, "no journal: if this run is killed, the next one cannot remove its unfinished uploads");
                }
                None
            }
        }
    }

    /// Sends parts as they are read, and joins them if the content was read completely and did not change.
    async fn in_parts(
        &self,
        upload: Result<Multipart, UploadError>,
        mut ready: mpsc::Receiver<Ready>,
        reader: JoinHandle<io::Result<()>>,
        whole: Whole,
    ) -> Result<Stored, UploadError> {
        let upload = upload?;
        let sent = async {
            let parts = upload.send(&mut ready).await?;
            // Parts end with the content, or where it cannot be read.
            joined(reader.await)?.map_err(UploadError::Source)?;
            let sum: u64 = parts.iter().map(|part| part.size).sum();
            match whole {
                Whole::File(original) if original.is_changed(sum) => return Err(UploadError::Changed),
                Whole::File(_) | Whole::Verified => {}
                Whole::Pipe => self.go_on_unless_stopped().await?,
            }
            upload.complete(&parts).await
        };
        match sent.await {
            Ok(stored) => Ok(stored),
            Err(error) => {
                // The reader learns that no more parts are wanted.
                drop(ready);
                upload.give_up().await;
                Err(error)
            }
        }
    }

    /// Aborts a multipart upload of another run.
    ///
    /// # Errors
    /// A [`CallError`] if the store refuses, or does not answer within 15 s. The upload may still exist then.
    pub async fn abort(&self, key: &str, upload_id: &str) -> Result<Aborted, CallError> {
        open_uploads::abort(&self.client, key, upload_id).await
    }
}

fn read_answer<T>(what: &str, read: Result<T, XmlError>) -> Result<T, CallError> {
    read.map_err(|source| CallError::Answer { what: what.to_owned(), source })
}

fn joined<T>(result: Result<T, tokio::task::JoinError>) -> Result<T, UploadError> {
    result.map_err(|error| UploadError::Source(io::Error::other(error)))
}

/// Whether a store may have refused a request because it does not support its condition. A request refused for another
/// reason with one of these codes is also refused without the condition.
fn may_be_about_conditions(error: &CallError) -> bool {
    match error {
        CallError::Refused { status: 405 | 501, .. } => true,
        CallError::Refused { status: 400, error, .. } => {
            matches!(error.code.as_str(), "NotImplemented" | "InvalidArgument" | "InvalidRequest")
        }
        _ => false,
    }
}

/// Whether a part was refused because of its number (Scaleway accepts 1000: "Part number must be an integer between 1
/// and 1000").
fn is_about_part_numbers(error: &CallError) -> bool {
    match error {
        CallError::Refused { status: 400, error, .. } => {
            let message = error.message.to_ascii_lowercase();
            error.code == "TooManyParts" || message.contains("part number") || message.contains("partnumber")
        }
        _ => false,
    }
}

/// How to check that all parts belong to one content.
enum Whole {
    /// The file is as it was before it was read.
    File(Original),
    /// The pipe has ended, and not because of a signal.
    Pipe,
    /// The writer has verified it.
    Verified,
}

/// State of a file before it was read.
struct Original {
    file: Arc<File>,
    size: u64,
    written: Option<SystemTime>,
}

impl Original {
    /// Whether the file may have changed while `read` bytes were read.
    fn is_changed(&self, read: u64) -> bool {
        read != self.size || modified(&self.file) != self.written
    }
}

/// A part that is ready to be sent.
struct Ready {
    number: u64,
    body: Body,
    /// Hash of a part that is not in memory.
    hash: Option<Sha256>,
    held: Held,
}

/// The thread that reads.
struct Reading {
    work: Arc<Work>,
    window: Window,
    cut: Cut,
    parts: mpsc::Sender<Ready>,
}

impl Reading {
    fn permit(&self, bytes: u64) -> Permit {
        self.work.wait(|| self.window.acquire_blocking(bytes))
    }

    /// Reads a file in order into memory.
    fn in_order(&self, from: &mut dyn Read) -> io::Result<()> {
        self.parts(|number, bytes| {
            let mut permit = self.permit(bytes);
            let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or(usize::MAX));
            self.work.read(|| from.take(bytes).read_to_end(&mut content))?;
            permit.shrink(content.len() as u64);
            Ok(Ready { number, body: content.into(), hash: None, held: Arc::new(vec![permit]) })
        })
    }

    /// Reads a pipe, beginning with the bytes already received; parts too large for memory go to files of the spool.
    fn of_a_pipe(&self, mut first: Gathered, from: &mut dyn Read, pipes: &Gathering, spool: &Spool) -> io::Result<()> {
        self.parts(|number, bytes| {
            if first.content.len() as u64 >= bytes {
                let body = first.content.split_to(usize::try_from(bytes).unwrap_or(usize::MAX)).into();
                return Ok(Ready { number, body, hash: None, held: Arc::clone(&first.held) });
            }
            // Waiting for room while holding some could last for ever: the remaining bytes get new room with their
            // part.
            first.held = Held::default();
            let mut from = (&mut first.content).reader().chain(&mut *from);
            if bytes > IN_MEMORY_BYTES_MAX {
                let held = Arc::new(vec![self.permit(FROM_FILE_BYTES)]);
                let (file, length, hash) = spool.keep(&mut from, bytes, &self.work)?;
                return Ok(Ready {
                    number,
                    body: Body::Source { source: file, offset: 0, length },
                    hash: Some(hash),
                    held,
                });
            }
            let Gathered { content, held } = pipes.read(&mut from, bytes, &self.work)?;
            Ok(Ready { number, body: content.into(), hash: None, held })
        })
    }

    /// Passes on parts of the given sizes, until one is shorter.
    fn parts(&self, mut next: impl FnMut(u64, u64) -> io::Result<Ready>) -> io::Result<()> {
        for number in 0..PARTS_MAX {
            let bytes = self.cut.part_bytes(number);
            let ready = next(number, bytes)?;
            let length = ready.body.len();
            // An object has at least one part.
            if (length == 0 && number > 0) || self.parts.blocking_send(ready).is_err() || length < bytes {
                return Ok(());
            }
        }
        // A single byte more is too much.
        match next(PARTS_MAX, 1)?.body.is_empty() {
            true => Ok(()),
            false => {
                let growth = if let Cut::Growing(growth) = &self.cut { *growth } else { Growth::default() };
                let most_bytes = growth.pipe_bytes_max();
                Err(io::Error::other(UploadError::TooLarge { what: "an object from a pipe", most_bytes }))
            }
        }
    }

    /// Passes on parts of a file that are too large for memory.
    fn by_place(&self, file: &Arc<File>, size: u64) -> io::Result<()> {
        for number in 0..self.cut.count(size) {
            let offset = number * self.cut.part_bytes(0);
            let range = offset..(offset + self.cut.part_bytes(0)).min(size);
            let ready = place(&self.work, &self.window, file, number, range)?;
            if self.parts.blocking_send(ready).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Makes a part of a file that is too large for memory: it is hashed here, and sent from the file.
fn place(work: &Work, window: &Window, file: &Arc<File>, number: u64, range: Range<u64>) -> io::Result<Ready> {
    let permit = work.wait(|| window.acquire_blocking(FROM_FILE_BYTES));
    let mut buffer = vec![0; FROM_FILE_BYTES as usize / 2];
    let mut hasher = Sha256Hasher::new();
    let mut at = range.start;
    while at < range.end {
        let now = usize::try_from((range.end - at).min(buffer.len() as u64)).unwrap_or(buffer.len());
        let piece = &mut buffer[..now];
        work.read(|| file.read_exact_at(piece, at))?;
        work.hash(|| hasher.update(piece));
        at += now as u64;
    }
    let body = Body::Source { source: Arc::clone(file) as _, offset: range.start, length: range.end - range.start };
    Ok(Ready { number, body, hash: Some(hasher.finish()), held: Arc::new(vec![permit]) })
}

/// A part that is stored.
struct Part {
    number: u64,
    etag: String,
    /// The store sent the ETag without quotes, and may expect it so.
    has_bare_etag: bool,
    /// `None` if another machine sent it, and the store does not list its checksum.
    hash: Option<Sha256>,
    size: u64,
    confirmed: bool,
}

/// A multipart upload in progress.
#[derive(Clone)]
struct Multipart {
    uploader: Uploader,
    open: Open,
    /// Condition under which the object may be replaced.
    condition: Condition,
    /// Number of bytes that the store has acknowledged.
    sent: Arc<AtomicU64>,
}

/// Waits for the other parts in flight after one has failed. They continue to their end, and would otherwise arrive
/// after the upload was aborted.
async fn await_rest<T: 'static>(in_flight: &mut JoinSet<Result<T, UploadError>>, error: &mut UploadError) {
    let ended = async {
        while let Some(part) = in_flight.join_next().await {
            if let (UploadError::TooManyParts { most, .. }, Ok(Err(UploadError::TooManyParts { most: other, .. }))) =
                (&mut *error, part)
            {
                *most = other.min(*most);
            }
        }
    };
    let _ = timeout(ABORT_LIMIT, ended).await;
}

impl Multipart {
    async fn send(&self, ready: &mut mpsc::Receiver<Ready>) -> Result<Vec<Part>, UploadError> {
        let mut under_way = JoinSet::new();
        let mut sent = self.send_all(ready, &mut under_way).await;
        if let Err(error) = &mut sent {
            await_rest(&mut under_way, error).await;
        }
        sent
    }

    async fn send_all(
        &self,
        ready: &mut mpsc::Receiver<Ready>,
        under_way: &mut JoinSet<Result<Part, UploadError>>,
    ) -> Result<Vec<Part>, UploadError> {
        let mut parts = Vec::new();
        loop {
            tokio::select! {
                part = ready.recv() => match part {
                    Some(part) => {
                        let this = self.clone();
                        under_way.spawn(async move { this.part(part).await });
                    }
                    None => break,
                },
                Some(part) = under_way.join_next() => parts.push(joined(part)??),
                () = self.uploader.client.stopped() => return Err(CallError::Interrupted.into()),
            }
        }
        while let Some(part) = under_way.join_next().await {
            parts.push(joined(part)??);
        }
        parts.sort_by_key(|part| part.number);
        Ok(parts)
    }

    async fn part(&self, ready: Ready) -> Result<Part, UploadError> {
        let Ready { number, body, hash, held } = ready;
        let size = body.len();
        let hash = match (hash, &body) {
            (Some(hash), _) => hash,
            (None, Body::Memory(pieces)) => {
                let (pieces, work) = (pieces.clone(), Arc::clone(&self.uploader.work));
                let mut hasher = Sha256Hasher::new();
                let hashed = tokio::task::spawn_blocking(move || {
                    work.hash(|| pieces.iter().for_each(|piece| hasher.update(piece)));
                    hasher.finish()
                });
                joined(hashed.await)?
            }
            (None, Body::Source { .. }) => return Err(UploadError::Changed),
        };
        let mut call = Call::new(Method::Put, Some(&self.open.key))
            .query("partNumber", (number + 1).to_string())
            .query("uploadId", &self.open.upload_id)
            .body(body, hash);
        call.checksum = Some(Feature::PartChecksums);
        let answer = match self.uploader.client.call(call).await {
            Err(reason) if number > 0 && is_about_part_numbers(&reason) => {
                return Err(UploadError::TooManyParts { most: number, reason });
            }
            answer => answer?,
        };
        drop(held);
        let what = || format!("part {} of {}", number + 1, self.open.key);
        if !(200..300).contains(&answer.head.status) {
            return Err(CallError::refused(what(), &answer).into());
        }
        let etag = read_answer(&what(), any_etag(&answer.head).ok_or(XmlError::Missing("ETag")))?;
        let confirmed = answer.head.store_field(CHECKSUM_FIELD).is_some();
        self.sent.fetch_add(size, Ordering::Relaxed);
        Ok(Part { number, etag, has_bare_etag: answer.head.etag.is_none(), hash: Some(hash), size, confirmed })
    }

    async fn complete(&self, parts: &[Part]) -> Result<Stored, UploadError> {
        let key = &self.open.key;
        let confirmed = parts.iter().all(|part| part.confirmed);
        let hashes: Option<Vec<Sha256>> = parts.iter().map(|part| part.hash).collect();
        let ours = hashes.map(|hashes| composite(&hashes)).unwrap_or_default();
        let size = parts.iter().map(|part| part.size).sum();
        let mut stored = Stored { size, checksum: ours.clone(), confirmed, etag: None };
        let what = format!("POST {key}?uploadId");
        // A store may honour conditions elsewhere and not here.
        if self.condition != Condition::None {
            let there = super::compare::head(&self.uploader.client, key).await?;
            let is_as_expected = match &self.condition {
                Condition::Tag(tag) => there.is_some_and(|there| there.etag.as_ref() == Some(tag)),
                _ => there.is_none(),
            };
            if !is_as_expected {
                return Err(UploadError::Condition);
            }
        }
        // A store without checksums may not support the element, and another may require it.
        let mut answer = self.ask_to_complete(parts, confirmed).await;
        if let Err(CallError::Refused { status: 400 | 501, error, .. }) = &answer
            && ["InvalidRequest", "MalformedXML", "InvalidArgument", "NotImplemented", ""]
                .contains(&error.code.as_str())
        {
            answer = self.ask_to_complete(parts, !confirmed).await.or(answer);
        }
        // The store is processing another request for the object: perhaps an earlier copy of this one.
        let mut conflicts = 0;
        while conflicts < CONFLICTS_MAX && matches!(answer, Err(CallError::Refused { status: 409, .. })) {
            conflicts += 1;
            tokio::time::sleep(CONFLICT_PAUSE).await;
            answer = self.ask_to_complete(parts, confirmed).await;
        }
        match answer {
            Ok(answer) if (200..300).contains(&answer.head.status) => {
                let completed = match read_answer(&what, xml::completed(&answer.body)) {
                    Ok(completed) => completed,
                    // Some stores send no more than a success status.
                    Err(error) => {
                        self.is_there(&stored, parts).await.map_err(|()| error)?;
                        xml::Completed::default()
                    }
                };
                stored.etag = Some(completed.etag).filter(|etag| !etag.is_empty());
                match completed.checksum_sha256 {
                    Some(theirs) if ours.is_empty() => (stored.checksum, stored.confirmed) = (theirs, true),
                    // Some stores omit the number of parts.
                    Some(theirs) if sum_of(&theirs) == sum_of(&ours) => stored.confirmed = true,
                    Some(theirs) => return Err(UploadError::Damaged { theirs, ours }),
                    None => {}
                }
            }
            Ok(answer) if answer.head.status == 412 && self.condition != Condition::None => {
                // The object may be this one: the answer to an earlier copy of the request was lost.
                self.is_there(&stored, parts).await.map_err(|()| UploadError::Condition)?;
            }
            // The answer to an earlier copy of the request was lost, and the upload is complete.
            Ok(answer) if answer.head.status == 404 && conflicts == 0 => {
                self.is_there(&stored, parts).await.map_err(|()| CallError::refused(&what, &answer))?;
            }
            // Amazon ends an upload after such a refusal.
            Ok(answer) if answer.head.status == 404 => {
                self.is_there(&stored, parts).await.map_err(|()| UploadError::Conflict)?;
            }
            Ok(answer) => return Err(CallError::refused(&what, &answer).into()),
            Err(error) if error.status() == Some(409) || (conflicts > 0 && error.code() == "NoSuchUpload") => {
                self.is_there(&stored, parts).await.map_err(|()| UploadError::Conflict)?;
            }
            Err(error) if error.code() == "NoSuchUpload" || matches!(error, CallError::Network { .. }) => {
                self.is_there(&stored, parts).await.map_err(|()| error)?;
            }
            Err(error) => return Err(error.into()),
        }
        self.ended();
        Ok(stored)
    }

    /// Asks the store to join the parts.
    async fn ask_to_complete(&self, parts: &[Part], with_checksums: bool) -> Result<Answer, CallError> {
        let body = completion(parts, with_checksums);
        let hash = Sha256::of(body.as_bytes());
        let mut call = Call::new(Method::Post, Some(&self.open.key))
            .query("uploadId", &self.open.upload_id)
            .field("Content-Type", "application/xml")
            .body(body, hash);
        call.errors_in_body = true;
        let Some((name, value)) = condition_field(&self.condition) else {
            return self.uploader.client.call(call).await;
        };
        let conditional = call.clone().field(&name, value);
        match self.uploader.client.call(conditional).await {
            Err(CallError::Refused { status: 501, .. }) => self.uploader.client.call(call).await,
            answer => answer,
        }
    }

    /// Whether the object is stored correctly: by its checksum; in a store without checksums by its ETag, which is made
    /// from those of these very parts.
    async fn is_there(&self, stored: &Stored, parts: &[Part]) -> Result<(), ()> {
        let present = super::compare::head(&self.uploader.client, &self.open.key).await.ok().flatten().ok_or(())?;
        let same = match present.sha256() {
            Some(theirs) if !stored.checksum.is_empty() => theirs == sum_of(&stored.checksum),
            _ => {
                let ours = composite_etag(parts.iter().map(|part| part.etag.as_str()));
                ours.is_some() && present.etag.map(|etag| etag.to_ascii_lowercase()) == ours
            }
        };
        if same && present.size == stored.size { Ok(()) } else { Err(()) }
    }

    fn ended(&self) {
        self.uploader.noted(|journal| journal.ended(&self.open.upload_id));
    }

    /// A part that the store was still processing may stay. So the upload is aborted until nothing is left
    /// ("AbortMultipartUpload", Amazon S3 API reference).
    async fn give_up(&self) {
        for _ in 0..ABORTS_MAX {
            match self.uploader.abort(&self.open.key, &self.open.upload_id).await {
                Ok(Aborted::Now) => tokio::time::sleep(LATE_PARTS).await,
                Ok(Aborted::Before) => break,
                Err(error) => {
                    tracing::warn!(%error, "an upload in parts could not be given up; a later run tries again");
                    return;
                }
            }
        }
        self.ended();
    }
}

/// Body of the request that joins the parts.
fn completion(parts: &[Part], with_checksums: bool) -> String {
    let mut body = String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for part in parts {
        let number = (part.number + 1).to_string();
        let etag = xml::escape(&part.etag).unwrap_or_default();
        let quote = if part.has_bare_etag { "" } else { "&quot;" };
        for text in ["<Part><PartNumber>", &number, "</PartNumber><ETag>", quote, &etag, quote, "</ETag>"] {
            body.push_str(text);
        }
        if let Some(hash) = part.hash.filter(|_| with_checksums) {
            for text in ["<ChecksumSHA256>", &base64(&hash), "</ChecksumSHA256>"] {
                body.push_str(text);
            }
        }
        body.push_str("</Part>");
    }
    body.push_str("</CompleteMultipartUpload>");
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_dropped_only_where_the_store_may_not_know_it() {
        let refused = |status, code: &str| {
            let error = xml::ServiceError { code: code.to_owned(), ..xml::ServiceError::default() };
            CallError::Refused { what: String::new(), status, error }
        };
        for (status, code) in [(501, "NotImplemented"), (405, ""), (400, "InvalidArgument"), (400, "InvalidRequest")] {
            assert!(may_be_about_conditions(&refused(status, code)), "{status} {code}");
        }
        for (status, code) in [(400, "RequestTimeout"), (400, "IncompleteBody"), (400, ""), (403, "AccessDenied")] {
            assert!(!may_be_about_conditions(&refused(status, code)), "{status} {code}");
        }
    }

    #[test]
    fn a_file_that_is_written_to_while_it_is_read_is_found_out() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let original = Original { written: modified(&file), file: Arc::clone(&file), size: 5 };
        assert!(!original.is_changed(5) && original.is_changed(4));
        file.set_modified(SystemTime::now()).unwrap();
        assert!(original.is_changed(5));
    }
}
