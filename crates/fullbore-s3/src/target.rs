//! A target that stores each file as an object, once it is complete and verified.
//!
//! Files up to [`WHOLE_BYTES_MAX`] stay in memory until the store has acknowledged them. Larger ones are in files
//! without a name, and their parts are uploaded while they are written (`early`); the object is created when the file
//! is verified. A landing thread never waits for an answer: the target reports later ([`Committed::Later`]). Paths of
//! the caller's own directory stay in a local one.
//!
//! A landing file replaces no object, so a run that was frozen cannot undo another run's publication. Right content for
//! a path with other content waits in the local directory, and gets its name by [`Target::publish`].

mod early;

use std::fs::File;
use std::io::{self, Seek as _};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use bytes::Bytes;
use fullbore_engine::digest::{Sha256, Verified};
use fullbore_engine::durability::Durability;
use fullbore_engine::files::unnamed::unnamed;
use fullbore_engine::files::{FileError, Root};
use fullbore_engine::target::{Committed, Content, LocalPart, LocalTarget, Name, Promise, Target, TargetError};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

use crate::bucket::{failure, upload_failure};
use crate::client::CallError;
use crate::objects::{Condition, HASH_FIELD, Objects, TIME_FIELD, Written};
use crate::parts::WHOLE_BYTES_MAX;
use crate::upload::{CONFLICT_PAUSE, PutOutcome, Stored, UploadError, Uploader};
use early::Early;

/// Maximum number of names published at once.
pub const NAMES_AT_ONCE: usize = 32;

/// Maximum number of times that a file is put while the store refuses it and has no object under its path. A guess.
const LANDINGS_MAX: usize = 4;

/// How a landing file treats an existing object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// It replaces the object: the store has no conditions.
    Replace,
    /// It is stored only if there is no object. Other content there means that another run has overtaken this one.
    Create,
    /// As `Create`, while other machines store the same files.
    CreateShared,
}

impl WriteMode {
    fn condition(self) -> Condition {
        if self == WriteMode::Replace { Condition::None } else { Condition::Absent }
    }
}

/// The caller's knowledge of its objects.
pub trait Layout: Send + Sync + 'static {
    /// Whether this path is one of the caller's own files, which stay in the local directory.
    fn is_own(&self, path: &str) -> bool;

    /// The SHA-256 by which a path of the local directory stores content.
    fn stored(&self, path: &str) -> Option<Sha256>;

    /// Header fields of the object of this path, such as `Cache-Control`.
    fn fields(&self, path: &str) -> Vec<(String, String)>;

    /// Number of the publishing step that a name belongs to. Names of one step are published at once, the steps one
    /// after another.
    fn step(&self, name: &Name) -> u32;

    /// Whether a name is a link instead of one object; the layout stores copies in its place.
    fn is_link(&self, name: &Name) -> bool;

    /// Publishes or removes such a name.
    ///
    /// # Errors
    /// A [`FileError`] if the objects cannot be read or written.
    fn link(&self, name: &Name) -> Result<(), FileError>;

    /// Called before each step: checks that this run may still change what is published.
    ///
    /// # Errors
    /// An [`io::Error`] with the reason if it may not, such as a lost lock. It ends the publication.
    fn may_publish(&self) -> Result<(), io::Error>;

    /// Called when another run has written an object that this run was to replace.
    fn overtaken(&self);

    /// How landing files treat existing objects.
    fn write_mode(&self) -> WriteMode;

    /// Condition for writing the object of this path.
    fn condition(&self, path: &str) -> Condition;

    /// Path of a published object that has this content already.
    fn copy_of(&self, sha256: Sha256) -> Option<String>;

    /// Called when a file is complete and verified while its upload continues. `sent` counts its acknowledged bytes if
    /// it is uploaded in parts; it lives as long as the upload.
    fn verified(&self, _path: &str, _sent: Weak<AtomicU64>) {}

    /// Called if the object of a landing file exists already ([`WriteMode::CreateShared`]), with the right size, and
    /// the right hash as far as it is known.
    fn was_there(&self, _path: &str) {}

    /// Called when the object of this path was written, with its content and ETag, or removed.
    fn changed(&self, path: &str, to: Option<(Sha256, u64, Option<String>)>);
}

/// A target whose files become objects. Clones are handles to the same target.
pub struct StoreTarget<L> {
    objects: Objects,
    uploader: Uploader,
    local: Arc<LocalTarget>,
    layout: Arc<L>,
    /// Directory of files without a name.
    scratch: PathBuf,
    runtime: Handle,
    in_flight: Arc<InFlight>,
}

/// Unfinished content of a [`StoreTarget`].
#[derive(Debug)]
pub enum StorePart {
    /// A file in the local directory.
    Local(LocalPart),
    /// Content in memory.
    Memory {
        /// Path of the object.
        path: String,
        /// The content so far.
        content: Vec<u8>,
    },
    /// A file without a name.
    File {
        /// Path of the object.
        path: String,
        /// The open file.
        file: Arc<File>,
        /// Its upload in progress; `None` if it will be uploaded when it is verified.
        early: Option<Early>,
    },
}

/// Objects that the store has not acknowledged yet, and uploads being aborted.
#[derive(Debug, Default)]
struct InFlight {
    count: Mutex<usize>,
    none: Condvar,
}

/// One of them, until dropped.
struct Flying(Arc<InFlight>);

impl Flying {
    fn begin(of: &Arc<InFlight>) -> Flying {
        *of.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Flying(of.clone())
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        let mut count = self.0.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

impl<L: Layout> StoreTarget<L> {
    /// Creates a target. `uploader` sends the objects, on `runtime`. Own files and files without a name are in `local`.
    pub fn new(objects: Objects, uploader: Uploader, local: Arc<Root>, layout: Arc<L>, runtime: Handle) -> Self {
        let scratch = local.path().to_owned();
        let local = Arc::new(LocalTarget::new(local, Durability::None));
        StoreTarget { objects, uploader, local, layout, scratch, runtime, in_flight: Arc::default() }
    }

    /// Whether another machine has stored this file already.
    async fn was_there(&self, path: &str, sha256: Sha256, size: u64) -> Result<bool, TargetError> {
        let facts = self.objects.head(path).await.map_err(|error| not_stored(path, failure(&error)))?;
        match facts {
            None => Ok(false),
            // The publisher reads content without a known hash.
            Some(facts) if facts.is(size, sha256) => {
                self.layout.was_there(path);
                Ok(true)
            }
            Some(_) => Err(TargetError::Occupied { path: path.to_owned() }),
        }
    }

    /// Stores content of the local directory, or a copy of a published object, under a published path.
    async fn give(&self, from: &str, to: &str) -> Result<(), TargetError> {
        let failed = |source: io::Error| TargetError::Io { operation: "store", path: to.to_owned(), source };
        let sha256 = self.layout.stored(from);
        let mut fields = self.layout.fields(to);
        let Some((file, status)) = self.local.root().open_file(from)? else {
            let source = sha256.and_then(|sha256| Some((sha256, self.layout.copy_of(sha256)?)));
            let Some((sha256, source)) = source else {
                return Err(TargetError::NothingToPublish { path: from.to_owned(), name: to.to_owned() });
            };
            self.objects.copy(&source, to, fields, Some(sha256)).await.map_err(|error| failed(failure(&error)))?;
            let facts = self.objects.head(to).await.map_err(|error| failed(failure(&error)))?;
            // Some stores answer before they have finished.
            let facts = facts.ok_or_else(|| failed(io::Error::other("the copy is not there")))?;
            self.layout.changed(to, Some((sha256, facts.size, facts.etag)));
            return Ok(());
        };
        let size = status.size;
        fields.push((TIME_FIELD.to_owned(), status.mtime.to_string()));
        if size <= WHOLE_BYTES_MAX {
            let mut content = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut content, 0).map_err(failed)?;
            let content = Bytes::from(content);
            let hash = Sha256::of(&content);
            if sha256.is_some_and(|sha256| sha256 != hash) {
                return Err(failed(io::Error::other("the stored content was changed")));
            }
            let condition = self.layout.condition(to);
            let put = self.objects.put(to, fields, content, &condition).await;
            return match put.map_err(|error| failed(failure(&error)))? {
                Written::Stored(tag) => {
                    self.layout.changed(to, Some((hash, size, tag)));
                    Ok(())
                }
                Written::Refused => {
                    self.layout.overtaken();
                    Err(failed(io::Error::other(Overtaken)))
                }
            };
        }
        let Some(sha256) = sha256 else {
            return Err(TargetError::NothingToPublish { path: from.to_owned(), name: to.to_owned() });
        };
        // Check it first, so that the content is not sent in vain.
        let condition = self.layout.condition(to);
        if condition != Condition::None {
            let facts = self.objects.head(to).await.map_err(|error| failed(failure(&error)))?;
            let is_seen = match (&condition, &facts) {
                (Condition::Tag(tag), Some(facts)) => facts.etag.as_ref() == Some(tag),
                (Condition::Absent, facts) => facts.is_none(),
                _ => false,
            };
            if !is_seen {
                self.layout.overtaken();
                return Err(failed(io::Error::other(Overtaken)));
            }
        }
        let key = self.objects.key(to);
        let (fields, file) = (with_hash(fields, sha256), Arc::new(file));
        let put = self.uploader.put_file_on(&key, fields, file, size, &condition).await;
        if matches!(put, Err(UploadError::Condition)) {
            self.layout.overtaken();
            return Err(failed(io::Error::other(Overtaken)));
        }
        put.map_err(|error| failed(upload_failure(error)))?;
        self.layout.changed(to, Some((sha256, size, None)));
        Ok(())
    }

    /// Stores a landed file.
    async fn land(&self, path: &str, mut upload: Upload, sha256: Sha256, size: u64) -> Result<(), TargetError> {
        let failed = |source: io::Error| not_stored(path, source);
        let (key, fields) = (self.objects.key(path), with_hash(self.layout.fields(path), sha256));
        let mode = self.layout.write_mode();
        let mut ended = None;
        if let Upload::File(_, sending) = &mut upload {
            if let Some(sending) = sending.take() {
                ended = early::end(sending, |most| self.uploader.client.dialect().learn_parts_max(most)).await;
                if ended.is_none() {
                    // All its bytes are still to be sent.
                    self.layout.verified(path, Weak::new());
                }
            }
            // Some stores ignore conditions of multipart uploads, and a refusal would come after all bytes.
            if ended.is_none() && mode == WriteMode::CreateShared && self.was_there(path, sha256, size).await? {
                return Ok(());
            }
        }
        let condition = mode.condition();
        for _ in 0..LANDINGS_MAX {
            let fields = fields.clone();
            let put = match &upload {
                Upload::Whole(content) => {
                    match self.uploader.put_whole(&key, fields, content.clone(), sha256, &condition).await {
                        Ok(PutOutcome::Stored(_)) => Ok(()),
                        Ok(PutOutcome::Exists { .. }) => Err(UploadError::Condition),
                        Err(error) => Err(error),
                    }
                }
                Upload::File(file, _) => match ended.take() {
                    Some(ended) => ended.map(drop),
                    None => {
                        (&**file).rewind().map_err(failed)?;
                        self.uploader.put_file_on(&key, fields, Arc::clone(file), size, &condition).await.map(drop)
                    }
                },
            };
            match put {
                Ok(()) => {}
                // The answer to an earlier copy of the request may have been lost, or another run fetched the same
                // file.
                Err(UploadError::Condition | UploadError::Conflict) => match mode {
                    WriteMode::CreateShared if self.was_there(path, sha256, size).await? => return Ok(()),
                    WriteMode::Create | WriteMode::Replace if self.is_there(path, sha256, size).await? => {}
                    // Such a copy is still being processed, or the object was removed meanwhile.
                    _ => {
                        tokio::time::sleep(CONFLICT_PAUSE).await;
                        continue;
                    }
                },
                Err(error) => return Err(failed(upload_failure(error))),
            }
            self.layout.changed(path, Some((sha256, size, None)));
            return Ok(());
        }
        Err(failed(upload_failure(UploadError::Conflict)))
    }

    /// Whether this file is stored. Another object there belongs to another run.
    async fn is_there(&self, path: &str, sha256: Sha256, size: u64) -> Result<bool, TargetError> {
        match self.objects.head(path).await.map_err(|error| not_stored(path, failure(&error)))? {
            None => Ok(false),
            Some(there) if there.size == size && there.sha256 == Some(sha256) => Ok(true),
            Some(_) => {
                self.layout.overtaken();
                Err(not_stored(path, io::Error::other(Overtaken)))
            }
        }
    }

    async fn give_all(&self, names: &[&Name]) -> Result<(), TargetError> {
        let mut removed = Vec::new();
        let mut giving = JoinSet::new();
        for name in names {
            match name {
                Name::Link { from, to } => {
                    while giving.len() >= NAMES_AT_ONCE {
                        joined(giving.join_next().await)?;
                    }
                    let (target, from, to) = (self.clone(), from.clone(), to.clone());
                    giving.spawn(async move { target.give(&from, &to).await });
                }
                Name::Remove { path } => removed.push(path.clone()),
                Name::Symlink { target, link } => {
                    let source = io::Error::other(format!("a store has no links (to {target})"));
                    return Err(TargetError::Io { operation: "create", path: link.clone(), source });
                }
            }
        }
        while let Some(result) = giving.join_next().await {
            joined(Some(result))?;
        }
        if let Some(first) = removed.first() {
            let failed = |error: CallError| TargetError::Io {
                operation: "remove",
                path: first.clone(),
                source: failure(&error),
            };
            self.objects.remove(&removed).await.map_err(failed)?;
            removed.iter().for_each(|path| self.layout.changed(path, None));
        }
        Ok(())
    }
}

/// Another run has written an object that this run was to replace.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("another run has changed it meanwhile")]
pub struct Overtaken;

fn joined(result: Option<Result<Result<(), TargetError>, tokio::task::JoinError>>) -> Result<(), TargetError> {
    match result {
        Some(Ok(result)) => result,
        Some(Err(error)) => {
            Err(TargetError::Io { operation: "give", path: "names".to_owned(), source: io::Error::other(error) })
        }
        None => Ok(()),
    }
}

fn not_stored(path: &str, source: io::Error) -> TargetError {
    TargetError::Io { operation: "store", path: path.to_owned(), source }
}

fn with_hash(mut fields: Vec<(String, String)>, sha256: Sha256) -> Vec<(String, String)> {
    fields.push((HASH_FIELD.to_owned(), sha256.to_hex().as_str().to_owned()));
    fields
}

impl<L: Layout> Target for StoreTarget<L> {
    type Part = StorePart;

    fn begin(&self, path: &str, size: u64, sha256: Sha256) -> Result<StorePart, TargetError> {
        if self.layout.is_own(path) {
            return Ok(StorePart::Local(self.local.begin(path, size, sha256)?));
        }
        let path = path.to_owned();
        if size <= WHOLE_BYTES_MAX {
            let content = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
            return Ok(StorePart::Memory { path, content });
        }
        match unnamed(&self.scratch) {
            Ok(file) => {
                let file = Arc::new(file);
                let early = Some(Early::begin(self, &path, &file, size, sha256));
                Ok(StorePart::File { path, file, early })
            }
            Err(source) => Err(TargetError::Io { operation: "create a temporary file for", path, source }),
        }
    }

    fn resume(&self, path: &str, size: u64) -> Result<Option<StorePart>, TargetError> {
        match self.layout.is_own(path) {
            true => Ok(self.local.resume(path, size)?.map(StorePart::Local)),
            false => Ok(None),
        }
    }

    fn kept(&self, path: &str) -> Result<Option<u64>, TargetError> {
        if self.layout.is_own(path) { self.local.kept(path) } else { Ok(None) }
    }

    fn write_at(&self, part: &mut StorePart, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        match part {
            StorePart::Local(part) => self.local.write_at(part, offset, data),
            StorePart::Memory { path, content } => {
                let place = usize::try_from(offset).ok().and_then(|at| content.get_mut(at..at + data.len()));
                let outside = || io::Error::other("bytes behind its end");
                let error = || TargetError::Io { operation: "write", path: path.clone(), source: outside() };
                place.ok_or_else(error)?.copy_from_slice(data);
                Ok(())
            }
            StorePart::File { path, file, early } => {
                let failed = |source| TargetError::Io { operation: "write", path: path.clone(), source };
                file.write_all_at(data, offset).map_err(failed)?;
                // These bytes may replace wrong ones that were sent.
                early.take_if(|early| !early.note(offset, data.len() as u64));
                Ok(())
            }
        }
    }

    fn read_at(&self, part: &mut StorePart, offset: u64, buffer: &mut [u8]) -> Result<usize, TargetError> {
        match part {
            StorePart::Local(part) => self.local.read_at(part, offset, buffer),
            StorePart::Memory { content, .. } => {
                let rest = usize::try_from(offset).ok().and_then(|at| content.get(at..)).unwrap_or_default();
                let count = rest.len().min(buffer.len());
                buffer[..count].copy_from_slice(&rest[..count]);
                Ok(count)
            }
            StorePart::File { path, file, .. } => file.read_at(buffer, offset).map_err(|source| TargetError::Io {
                operation: "read",
                path: path.clone(),
                source,
            }),
        }
    }

    fn commit(&self, part: StorePart, proof: &Verified, mtime: Option<i64>) -> Result<Committed, TargetError> {
        let (size, sha256) = (proof.size(), proof.sha256());
        let mut sent = Weak::new();
        let (path, upload) = match part {
            StorePart::Local(part) => return self.local.commit(part, proof, mtime),
            StorePart::Memory { path, mut content } => {
                let actual = content.len() as u64;
                if actual < size {
                    return Err(TargetError::Length { path, actual, expected: size });
                }
                content.truncate(usize::try_from(size).unwrap_or(usize::MAX));
                (path, Upload::Whole(content.into()))
            }
            StorePart::File { path, file, early } => {
                let shorter = |actual| TargetError::Length { path: path.clone(), actual, expected: size };
                let failed = |source| TargetError::Io { operation: "look at", path: path.clone(), source };
                let actual = file.metadata().map_err(failed)?.len();
                if actual < size {
                    return Err(shorter(actual));
                }
                sent = early.as_ref().map_or_else(Weak::new, Early::sent);
                (path, Upload::File(file, early.and_then(|early| early.complete(size))))
            }
        };
        self.layout.verified(&path, sent);
        let (promise, pending) = Promise::new(&path);
        let (target, flying) = (self.clone(), Flying::begin(&self.in_flight));
        self.runtime.spawn(async move {
            promise.tell(target.land(&path, upload, sha256, size).await);
            // A caller that waits for the barrier must find all results reported.
            drop(flying);
        });
        Ok(Committed::Later(pending))
    }

    fn abandon(&self, part: StorePart) -> Result<(), TargetError> {
        match part {
            StorePart::Local(part) => self.local.abandon(part),
            StorePart::Memory { .. } | StorePart::File { .. } => Ok(()),
        }
    }

    fn open(&self, path: &str) -> Result<Option<(Content, u64)>, TargetError> {
        if self.layout.is_own(path) {
            return self.local.open(path);
        }
        // Published files are not read through the target; trees do that.
        let got = self.runtime.block_on(self.objects.get(path, WHOLE_BYTES_MAX as usize));
        let got =
            got.map_err(|error| TargetError::Io { operation: "read", path: path.to_owned(), source: failure(&error) })?;
        Ok(got.map(|found| {
            let size = found.facts.size;
            (Box::new(io::Cursor::new(found.content)) as Content, size)
        }))
    }

    /// The store guarantees what it acknowledges.
    fn barrier(&self) -> Result<bool, TargetError> {
        let count = self.in_flight.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.in_flight.none.wait_while(count, |count| *count > 0).unwrap_or_else(PoisonError::into_inner));
        Ok(true)
    }

    fn publish(&self, names: &[Name]) -> Result<(), TargetError> {
        for name in names {
            if let Name::Link { from, to } = name
                && self.local.root().stat(from)?.is_none()
                && self.layout.stored(from).and_then(|sha256| self.layout.copy_of(sha256)).is_none()
            {
                return Err(TargetError::NothingToPublish { path: from.clone(), name: to.clone() });
            }
        }
        self.barrier()?;
        let mut step: Vec<&Name> = Vec::new();
        let give = |step: &mut Vec<&Name>| {
            let Some(first) = step.first() else { return Ok(()) };
            let (Name::Link { to: path, .. } | Name::Symlink { link: path, .. } | Name::Remove { path }) = first;
            let refused = |source| TargetError::Io { operation: "publish", path: path.clone(), source };
            self.layout.may_publish().map_err(refused)?;
            self.runtime.block_on(self.give_all(&std::mem::take(step)))
        };
        for name in names {
            if self.layout.is_link(name) {
                give(&mut step)?;
                self.layout.link(name)?;
                continue;
            }
            if step.first().is_some_and(|first| self.layout.step(first) != self.layout.step(name)) {
                give(&mut step)?;
            }
            step.push(name);
        }
        give(&mut step)
    }
}

enum Upload {
    Whole(Bytes),
    /// The file, with its upload if that has begun already.
    File(Arc<File>, Option<JoinHandle<Result<Stored, UploadError>>>),
}

impl<L> Clone for StoreTarget<L> {
    fn clone(&self) -> Self {
        StoreTarget {
            objects: self.objects.clone(),
            uploader: self.uploader.clone(),
            local: self.local.clone(),
            layout: self.layout.clone(),
            scratch: self.scratch.clone(),
            runtime: self.runtime.clone(),
            in_flight: self.in_flight.clone(),
        }
    }
}

impl<L> std::fmt::Debug for StoreTarget<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreTarget").field("scratch", &self.scratch).finish_non_exhaustive()
    }
}
