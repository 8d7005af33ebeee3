//! Downloads one object into one file: skipped if the file has its content, with one request if it is small, by ranges
//! if it is large.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

use bytes::Bytes;
use fullbore_engine::files::FileError;
use fullbore_engine::files::tree::{self, Mtime, TreeFile, TreeWriter};
use fullbore_engine::run::{CommandError, ErrorKind};
use fullbore_engine::window::Window;
use fullbore_wire::http1::{Method, ResponseHead};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::find::Found;
use super::{Done, Finished, Seen, UnderWay};
use crate::bucket::is_fatal;
use crate::client::{Call, Client, any_etag};
use crate::compare::{self, Checker, Doubt, Finding, Present, Proof};
use crate::dialect::Feature;
use crate::download::{self, Beginning, DownloadError, Downloaded, RANGE_BYTES};
use crate::get::explain_object;

/// Maximum number of large objects in flight: their ranges share the window.
pub(super) const LARGE_AT_ONCE: u32 = 4;

/// Bytes that a permit counts for an object beside its content.
const OBJECT_BYTES: u64 = 4 << 10;

/// Maximum number of ranges between the network and a file.
const RANGES: usize = 1;

/// Downloads objects.
pub(super) struct Getter {
    pub client: Client,
    pub tree: Arc<TreeWriter>,
    /// Window for small objects in flight.
    pub objects: Window,
    /// Window for ranges of large objects.
    pub ranges: Window,
    pub large: Window,
    /// Window for objects of unknown size.
    pub named: Window,
    /// Whether content that no checksum verifies is an error.
    pub required: bool,
    pub seen: Arc<Seen>,
}

/// Why an object failed.
#[derive(Debug)]
enum Failure {
    Local(FileError),
    /// The disk has no room for an object of this size. Smaller ones may fit.
    NoRoom(FileError),
    Remote(DownloadError),
    Internal(String),
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Failure {
        Failure::Local(error)
    }
}

impl From<DownloadError> for Failure {
    fn from(error: DownloadError) -> Failure {
        Failure::Remote(error)
    }
}

/// Result of a download.
enum Got {
    Written,
    Present { bytes: u64 },
}

impl Getter {
    /// Judges a name, and starts a task for the object as soon as there is room.
    pub(super) fn begin(self: &Arc<Self>, found: Found, handle: &Handle, done: &Sender<Done>, under_way: UnderWay) {
        if let Some(directory) = found.path.strip_suffix('/') {
            let made = match found.listed {
                Some((1.., _)) => {
                    Err(Failure::Internal("left out: an object with content whose name ends in a slash".into()))
                }
                _ => self.tree.create_directory(directory).map_err(Failure::Local),
            };
            let _ = done.send(match made {
                Ok(()) => Done::Directory,
                Err(failure) => failed(found.path, &failure),
            });
            return;
        }
        if let Err(error) = self.tree.judge(&found.path) {
            let _ = done.send(failed(found.path, &Failure::Local(error)));
            return;
        }
        let permit = match &found.listed {
            Some((size, _)) if *size <= RANGE_BYTES => self.objects.acquire_blocking(size + OBJECT_BYTES),
            Some(_) => self.large.acquire_blocking(0),
            None => self.named.acquire_blocking(0),
        };
        let (this, done) = (Arc::clone(self), done.clone());
        handle.spawn(async move {
            let got = this.get(&found).await;
            drop(permit);
            let Found { path, .. } = found;
            let _ = done.send(match got {
                Ok(Got::Written) => Done::Written,
                Ok(Got::Present { bytes }) => Done::Present { bytes },
                Err(failure) => failed(path, &failure),
            });
            drop(under_way);
        });
    }

    async fn get(self: &Arc<Self>, found: &Found) -> Result<Got, Failure> {
        if found.listed.is_some() {
            return self.listed(found).await;
        }
        // Its size decides how it is downloaded.
        let Some(present) = compare::head(&self.client, &found.key).await.map_err(DownloadError::from)? else {
            return Err(DownloadError::Missing { key: found.key.clone() }.into());
        };
        self.seen.bytes.fetch_add(present.size, Ordering::Relaxed);
        let is_small = present.size <= RANGE_BYTES;
        // Some proxies omit the length; then it says nothing about the object with this ETag.
        let etag = present.etag.filter(|_| present.size > 0).unwrap_or_default();
        let found = Found { listed: Some((present.size, etag)), ..found.clone() };
        let _permit = match is_small {
            true => self.objects.acquire(present.size + OBJECT_BYTES).await,
            false => self.large.acquire(0).await,
        };
        self.listed(&found).await
    }

    async fn listed(self: &Arc<Self>, found: &Found) -> Result<Got, Failure> {
        if let Some(bytes) = self.is_here(found).await? {
            return Ok(Got::Present { bytes });
        }
        match found.listed {
            Some((size, _)) if size <= RANGE_BYTES => self.small(found).await,
            _ => self.large(found).await,
        }
    }

    /// Whether the file exists with the object's content; returns its size.
    async fn is_here(self: &Arc<Self>, found: &Found) -> Result<Option<u64>, Failure> {
        let path = found.path.clone();
        let existing = self.blocking(move |this| this.tree.existing(&path)).await??;
        let Some((file, status)) = existing else { return Ok(None) };
        if found.listed.as_ref().is_some_and(|(size, _)| *size != status.size) {
            return Ok(None);
        }
        let Some(present) = compare::head(&self.client, &found.key).await.map_err(DownloadError::from)? else {
            return Err(DownloadError::Missing { key: found.key.clone() }.into());
        };
        if present.size != status.size {
            return Ok(None);
        }
        let proof = compare::proof(&self.client, &found.key, &present).await.map_err(DownloadError::from)?;
        let path = found.path.clone();
        let is_same = move |this: &Getter| -> Result<bool, FileError> {
            // A file that cannot be read is replaced.
            let is_same = compare::file_matches(&file as &File, proof).unwrap_or(false);
            if is_same {
                this.tree.keep(&path, &status)?;
            }
            Ok(is_same)
        };
        Ok(self.blocking(is_same).await??.then_some(present.size))
    }

    /// Downloads an object with one request.
    async fn small(self: &Arc<Self>, found: &Found) -> Result<Got, Failure> {
        let mut call = Call::new(Method::Get, Some(&found.key));
        call = call.optional_field(Feature::ToldChecksums, "x-amz-checksum-mode", "ENABLED");
        call.answer_bytes_max = RANGE_BYTES as usize + 1;
        let answer = self.client.call(call).await.map_err(DownloadError::from)?;
        match answer.head.status {
            200 => {}
            404 => return Err(DownloadError::Missing { key: found.key.clone() }.into()),
            _ => {
                let refused = crate::client::CallError::refused(format!("GET {}", found.key), &answer);
                return Err(DownloadError::from(refused).into());
            }
        }
        let content = answer.body.clone();
        let size = content.len() as u64;
        let present = Present { size, ..Present::of(&answer) };
        let proof = compare::proof(&self.client, &found.key, &present).await.map_err(DownloadError::from)?;
        let (key, path, required) = (found.key.clone(), found.path.clone(), self.required);
        // Without a length, the end of the connection need not be the end of the content.
        let is_doubtful =
            answer.head.content_length.is_none() || found.listed.as_ref().is_some_and(|one| one.0 != size);
        let mut judged = None;
        if is_doubtful {
            let (content, proof, key) = (content.clone(), proof.clone(), key.clone());
            let doubt = self.blocking(move |_| judge(&content, proof, key, required)).await??;
            if doubt.is_some() {
                self.check_length(found, &answer.head, size).await?;
            }
            judged = Some(doubt);
        }
        let written = self.blocking(move |this| -> Result<Got, Failure> {
            let doubt = match judged {
                Some(doubt) => doubt,
                None => judge(&content, proof, key, required)?,
            };
            let begun = Instant::now();
            let mut file = this.tree.begin(&path, size)?;
            file.start_over()?;
            this.tree.write(&mut file, 0, &content)?;
            this.finish(file, size, present.modified, doubt)?;
            this.worked(begun, size);
            Ok(Got::Written)
        });
        written.await?
    }

    /// Compares the length of unverified content with the size in another answer.
    async fn check_length(&self, found: &Found, head: &ResponseHead, bytes: u64) -> Result<(), DownloadError> {
        let key = || found.key.clone();
        let (listed, etag) = found.listed.clone().unwrap_or_default();
        let expected = match any_etag(head) {
            Some(own) if own == etag => listed,
            // The object was replaced since, and all of the new one was received.
            _ if head.content_length.is_some() => return Ok(()),
            own => {
                let now = compare::head(&self.client, &found.key).await?;
                let now = now.ok_or_else(|| DownloadError::Missing { key: key() })?;
                if own.is_some() && now.etag.is_some() && own != now.etag {
                    return Err(DownloadError::Changed { key: key() });
                }
                // If HEAD gives no length either, only the listing is left, or nothing.
                match (now.size, listed) {
                    (0, 0) => return Ok(()),
                    (0, listed) => listed,
                    (size, _) => size,
                }
            }
        };
        match bytes == expected {
            true => Ok(()),
            false => Err(DownloadError::Truncated { key: key(), bytes, size: expected }),
        }
    }

    /// Downloads an object by ranges, behind the bytes of an earlier run.
    async fn large(self: &Arc<Self>, found: &Found) -> Result<Got, Failure> {
        let (path, size) = (found.path.clone(), found.listed.as_ref().map_or(0, |(size, _)| *size));
        let file = self.blocking(move |this| begin(&this.tree, &path, size)).await??;
        let was_noted = file.version().is_some();
        let (mut file, used, mut got) = self.ranges(found, file).await?;
        // The old bytes may belong to another object: download all of it again.
        if download::is_of_another(&got, used, was_noted) {
            let again = self.blocking(move |_| file.start_over().map(|()| file));
            (file, _, got) = self.ranges(found, again.await??).await?;
        }
        let Downloaded { size, doubt, modified, .. } = match got {
            Ok(got) => got,
            Err(error) => {
                // Wrong content is useless for the next run.
                if matches!(error, DownloadError::Wrong { .. } | DownloadError::Unverified { .. }) {
                    self.blocking(move |this| this.tree.discard(file)).await??;
                }
                return Err(error.into());
            }
        };
        self.blocking(move |this| this.finish(file, size, modified, doubt)).await??;
        Ok(Got::Written)
    }

    /// Writes the ranges of an object behind the beginning in its file. Also returns the number of reused bytes.
    async fn ranges(
        self: &Arc<Self>,
        found: &Found,
        file: TreeFile,
    ) -> Result<(TreeFile, u64, Result<Downloaded, DownloadError>), Failure> {
        let (out, mut pieces) = mpsc::channel::<Vec<Bytes>>(RANGES);
        let known = AtomicU64::new(0);
        let (reader, settling) = (file.reader()?, file.reader()?);
        let used = Arc::<AtomicU64>::default();
        let (settled, used_at_last) = (Arc::clone(&used), Arc::clone(&used));
        let beginning = Beginning {
            bytes: file.resumed_bytes,
            etag: file.version(),
            read: Box::new(move |offset, buffer| reader.read_at(offset, buffer)),
            settle: Box::new(move |bytes, etag| {
                settled.store(bytes, Ordering::Relaxed);
                settling.settle(bytes, etag)
            }),
        };
        let writing = self.blocking(move |this| -> Result<TreeFile, FileError> {
            let (mut file, mut at) = (file, None);
            while let Some(pieces) = pieces.blocking_recv() {
                let begun = Instant::now();
                // Reused bytes count as written.
                let from = at.unwrap_or_else(|| used.load(Ordering::Relaxed));
                let mut offset = from;
                for piece in &pieces {
                    this.tree.write(&mut file, offset, piece)?;
                    offset += piece.len() as u64;
                }
                this.worked(begun, offset - at.unwrap_or(0));
                at = Some(offset);
            }
            Ok(file)
        });
        let reading = async {
            let client = &self.client;
            let got =
                download::get_rest(client, &found.key, &self.ranges, &out, self.required, &known, beginning).await;
            drop(out);
            got
        };
        let (got, file) = tokio::join!(reading, writing);
        Ok((file??, used_at_last.load(Ordering::Relaxed), got))
    }

    /// Ends a verified file, and notes the counts for when it gets its name.
    fn finish(
        &self,
        file: TreeFile,
        bytes: u64,
        modified: Option<Mtime>,
        doubt: Option<Doubt>,
    ) -> Result<(), FileError> {
        let path = file.path().to_owned();
        // Note them before, because the file may get its name at once.
        self.seen.finished().insert(path.clone(), Finished { bytes, doubt: doubt.map(download::unverified) });
        let finished = self.tree.finish(file, bytes, modified);
        if finished.is_err() {
            self.seen.finished().remove(&path);
        }
        finished
    }

    fn worked(&self, begun: Instant, bytes: u64) {
        self.seen.target_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.seen.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Runs file operations on a thread that may wait for the disk.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Getter) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let this = Arc::clone(self);
        let joined = tokio::task::spawn_blocking(move || work(&this)).await;
        joined.map_err(|error| Failure::Internal(format!("a task failed: {error}")))
    }
}

/// Begins a file of the size given by the store.
fn begin(tree: &TreeWriter, path: &str, size: u64) -> Result<TreeFile, Failure> {
    match tree.begin(path, size) {
        Err(error) if error.is_out_of_space() => {
            // If even an empty file has no room, nothing else has.
            tree.discard(tree.begin(path, 0)?)?;
            Err(Failure::NoRoom(error))
        }
        begun => Ok(begun?),
    }
}

/// Verifies small content. Returns the doubt, if it is unverified.
fn judge(content: &Bytes, proof: Proof, key: String, required: bool) -> Result<Option<Doubt>, DownloadError> {
    let mut checker = Checker::new(proof);
    checker.update(&[content]);
    judged(checker.finish(), key, required)
}

/// Converts the result of the verification.
fn judged(finding: Finding, key: String, required: bool) -> Result<Option<Doubt>, DownloadError> {
    match finding {
        Finding::Right => Ok(None),
        Finding::Wrong => Err(DownloadError::Wrong { key }),
        Finding::Unverified(doubt) if required => Err(DownloadError::Unverified { key, doubt }),
        Finding::Unverified(doubt) => Ok(Some(doubt)),
    }
}

fn failed(path: String, failure: &Failure) -> Done {
    let (error, fatal) = match failure {
        Failure::Local(error) => (tree::explain(error), error.is_out_of_space()),
        Failure::NoRoom(error) => (tree::explain(error), false),
        Failure::Remote(error) => {
            (explain_object(error), matches!(error, DownloadError::Call(error) if is_fatal(error)))
        }
        Failure::Internal(text) => (CommandError::new(ErrorKind::Partial, text), false),
    };
    Done::Failed { path, error, fatal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_does_not_fit_fails_its_object_alone() {
        let directory = tempfile::tempdir().unwrap();
        let tree = TreeWriter::create(directory.path(), "").unwrap();
        // Below the largest file that ext4 can have, and more than the disk of a test.
        let huge = begin(&tree, "huge", 10_000_000_000_000).map(|_| ()).unwrap_err();
        assert!(matches!(huge, Failure::NoRoom(_)), "{huge:?}");
        assert!(matches!(failed("huge".into(), &huge), Done::Failed { fatal: false, .. }));
        assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing is left of it");
        assert!(begin(&tree, "small", 300_000).is_ok());
        let full =
            FileError::Io { operation: "write", path: "a".into(), source: std::io::ErrorKind::QuotaExceeded.into() };
        assert!(matches!(failed("a".into(), &Failure::Local(full)), Done::Failed { fatal: true, .. }));
    }
}
