//! A mirror in an S3 store: `mirror --to s3://BUCKET/PREFIX`.
//!
//! fullbore's own files are objects below `PREFIX/.fullbore/`. A run works on local copies of them in a temporary
//! directory. It writes them back wherever a mirror in a directory syncs ([`BucketMirror::save`]). The state is
//! replaced only if no other run has replaced it (`If-Match`), and changes are made under a lock. So of two concurrent
//! runs one ends with an error, and their results never mix.
//!
//! A run that finds nothing new reads the state and the signed files in parallel, and takes no lock.

mod aliases;
mod runs;
pub(crate) mod snapshots;
mod state_files;
pub(crate) mod tree;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Root};
use fullbore_engine::run::StoreFailure;
use fullbore_engine::run::costs::process_costs;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::report::VerdictReport;
use fullbore_engine::stage::Ledger;
use fullbore_engine::target::TargetError;
use fullbore_engine::units::several;
use fullbore_engine::window::Window;
use fullbore_s3::bucket::{BucketSettings, explain, failure};
use fullbore_s3::lock::{Fence, Lock, LockError, LockTimes};
use fullbore_s3::objects::{Condition, Objects, Written};
use fullbore_s3::target::{Layout as _, Overtaken, StoreTarget};
use fullbore_s3::verdict::{Facts, judge};
use fullbore_s3::{CallError, SCHEME, Uploader};
use fullbore_wire::run::sending_runtime;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::cache::IndexCache;
use super::directories::Scratch;
use super::layout::{below, written_below};
use super::lock::take_lock;
use super::session::disk;
use super::signed_files::SIGNED_FILES;
use super::state::{MARK_PATH, OWN_DIRECTORY, STATE_PATH, State, SuiteRecord};
use super::tree::Tree as _;
use crate::settings::{MirrorStore, StateStore};
use state_files::StateFiles;
use tree::StoreTree;

/// Age from which an open upload in parts counts as that of a killed run. A guess: a worker, which has no lock, uploads no
/// file for a day.
const UPLOAD_AGE_MAX: Duration = Duration::from_secs(86_400);

/// Timeout for aborting such uploads, because planning waits for it.
const UPLOADS_LIMIT: Duration = Duration::from_secs(3);

/// Path of the lock object.
const LOCK_PATH: &str = ".fullbore/lock";

/// Maximum size of an own file that is read into memory. A list of a million files has about 50 MB.
pub(super) const OWN_BYTES_MAX: usize = 256 << 20;

/// Maximum bytes of unfinished files. Files up to 16 MiB are in memory until they are stored.
pub(crate) const BEGUN_BYTES_MAX: u64 = 256 << 20;

/// Time after a takeover in which requests of the other run may still take effect. Stores refuse signatures that are 15
/// minutes old; the rest allows for clocks that differ.
const LATE_REQUESTS_S: i64 = 20 * 60;

/// Memory for parts of large files in flight, and the number of uploads.
pub(super) const WINDOW_BYTES: u64 = 64 << 20;
pub(super) const UPLOADS_MAX: u32 = 512;

/// A mirror in a bucket, opened for one run.
pub(crate) struct BucketMirror {
    objects: Objects,
    /// fullbore's own files, which may be in another place.
    state: StateFiles,
    /// Place of the lock.
    lock: LockPlace,
    /// Local cache of indexes from earlier runs (`--cache`).
    pub cache: Option<IndexCache>,
    /// The published files, as they are in the store.
    pub tree: Arc<StoreTree>,
    /// Target that stores fetched files and gives names.
    pub target: Arc<StoreTarget<StoreTree>>,
    /// Local copies of fullbore's own files.
    own: Arc<Root>,
    remote: Mutex<Remote>,
    opened: Instant,
    /// The store's time when the state was read, in Unix seconds.
    opened_at: AtomicI64,
    /// Whether this run holds the lock, or was told to go without.
    may_change: AtomicBool,
    stop: watch::Sender<bool>,
    runtime: Runtime,
    /// Removed at the end, after all that uses it.
    _scratch: Scratch,
}

/// Treatment of the lists of killed runs, which no state names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abandoned {
    /// They are removed, if this run may change anything.
    Remove,
    /// They stay: the run only looks.
    Keep,
}

/// Place of the lock, which is always with the state.
enum LockPlace {
    /// The bucket. The lock has its own client: a renewal that waited behind uploads would come too late on a slow
    /// link.
    Bucket(Box<BucketSettings>, watch::Receiver<bool>),
    Directory(Arc<Root>, Mutex<Option<super::lock::Lock>>),
}

/// State of fullbore's own files in the store, as last seen.
#[derive(Default)]
struct Remote {
    state_tag: Option<String>,
    state: Option<Sha256>,
    lists: BTreeSet<String>,
    is_marked: bool,
}

impl BucketMirror {
    /// Opens the mirror, and reads its state. `suites` are the requested names, whose signed files are read at the same
    /// time.
    ///
    /// # Errors
    /// `Usage` if settings cannot be used, `Network` or `Verification` if the store cannot be read, and `Disk` if the
    /// temporary directory cannot be created.
    pub(crate) fn open(settings: &MirrorStore, suites: &[&str], ledger: &Ledger) -> Result<BucketMirror, CommandError> {
        let opened = Instant::now();
        let (location, below) = (&settings.bucket.location, &settings.scratch);
        let name = format!("{SCHEME}{}/{}", location.bucket, location.key.trim_end_matches('/'));
        let made = |error: &FileError| CommandError::from_error(ErrorKind::Disk, error);
        let scratch = Scratch::make(below).map_err(|error| {
            CommandError::new(
                ErrorKind::Disk,
                format_args!("cannot make a temporary directory in {}: {error}", below.display()),
            )
        })?;
        let own = Arc::new(Root::open(scratch.path()).map_err(|error| made(&error))?);
        own.create_directory(OWN_DIRECTORY, 0o700).map_err(|error| made(&error))?;
        let runtime = sending_runtime(ledger)?;
        let (stop, stopped) = watch::channel(false);
        let fence = Arc::new(Fence::default());
        let (objects, state, lock) = {
            let _inside = runtime.enter();
            let objects = Objects::open(&settings.bucket, stopped.clone(), ledger)?;
            let lock_in = |bucket: &BucketSettings| LockPlace::Bucket(Box::new(bucket.clone()), stopped.clone());
            let (state, lock) = match &settings.state {
                None => (StateFiles::behind(&objects, fence.clone()), lock_in(&settings.bucket)),
                Some(StateStore::Bucket(state)) => {
                    let objects = Objects::open(state, stopped.clone(), ledger)?;
                    (StateFiles::behind(&objects, fence.clone()), lock_in(state))
                }
                Some(StateStore::Directory(path)) => {
                    let root = Arc::new(Root::create(path).map_err(|error| made(&error))?);
                    (StateFiles::Directory(root.clone()), LockPlace::Directory(root, Mutex::default()))
                }
            };
            (objects.behind(fence.clone()), state, lock)
        };
        let cache = settings.cache.as_deref().map(IndexCache::open).transpose().map_err(|error| made(&error))?;
        let handle = runtime.handle().clone();
        let tree = Arc::new(StoreTree::new(objects.clone(), fence, handle.clone(), own.clone(), name, settings));
        let uploader = Uploader::new(objects.client().clone(), Window::new(WINDOW_BYTES, UPLOADS_MAX), own.path());
        let target = Arc::new(StoreTarget::new(objects.clone(), uploader, own.clone(), tree.clone(), handle));
        let (remote, may_change) = (Mutex::default(), AtomicBool::new(false));
        let mirror = BucketMirror {
            objects,
            state,
            lock,
            cache,
            tree,
            target,
            own,
            remote,
            opened,
            opened_at: AtomicI64::new(jiff::Timestamp::now().as_second()),
            may_change,
            stop,
            runtime,
            _scratch: scratch,
        };
        mirror.load(suites)?;
        Ok(mirror)
    }

    /// Client for the objects below the mirror's prefix.
    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// The local copies of fullbore's own files, and the temporary directory.
    pub(crate) fn own(&self) -> &Arc<Root> {
        &self.own
    }

    /// Ends all requests when this becomes true.
    pub(crate) fn stop_with(&self, mut stop: watch::Receiver<bool>) {
        let ours = self.stop.clone();
        self.runtime.spawn(async move {
            if stop.wait_for(|stop| *stop).await.is_ok() {
                let _ = ours.send(true);
            }
        });
    }

    fn load(&self, suites: &[&str]) -> Result<(), CommandError> {
        let signed = suites.iter().flat_map(|suite| {
            let directory = if suite.ends_with('/') {
                suite.trim_start_matches("./").trim_end_matches('/').to_owned()
            } else {
                format!("dists/{suite}")
            };
            SIGNED_FILES.map(|name| below(&directory, name))
        });
        let signed: Vec<String> = signed.collect();
        let (state, mark, signed) = self.runtime.block_on(async {
            tokio::join!(self.state.get(STATE_PATH, OWN_BYTES_MAX), self.state.head(MARK_PATH), self.tree.fetch(signed))
        });
        signed.map_err(|error| self.failed(&error))?;
        let mut remote =
            Remote { is_marked: mark.map_err(|error| self.failed(&error))?.is_some(), ..Remote::default() };
        if remote.is_marked {
            let mark = self.runtime.block_on(self.state.get(MARK_PATH, OWN_BYTES_MAX));
            if let Some(mark) = mark.map_err(|error| self.failed(&error))? {
                self.keep(MARK_PATH, &mark.content)?;
            }
        }
        if let Some(state) = state.map_err(|error| self.failed(&error))? {
            self.keep(STATE_PATH, &state.content)?;
            if let Some(now) = state.facts.answered {
                self.opened_at.store(now, Ordering::Relaxed);
            }
            (remote.state, remote.state_tag) = (Some(Sha256::of(&state.content)), state.facts.etag);
        }
        *self.remote() = remote;
        // The state tells which further files a run without news needs. They are read while the origin is asked.
        let header = State::open(&self.own, "").map_err(CommandError::from)?.header;
        self.is_of_this_mirror(header.mirror.as_deref())?;
        let name = |directory: &str| directory.trim_start_matches("dists/").to_owned();
        let is_of_run = |suite: &&SuiteRecord| {
            let names = std::iter::once(&suite.directory).chain(&suite.links).map(|directory| name(directory));
            !suite.retired && names.chain([suite.requested.clone()]).any(|name| suites.contains(&name.as_str()))
        };
        let mut rest = Vec::new();
        for suite in header.suites.iter().filter(is_of_run) {
            rest.extend(SIGNED_FILES.map(|name| below(&suite.directory, name)));
            rest.extend(suite.links.iter().map(|link| below(link, "InRelease")));
        }
        self.tree.begin_to_fetch(rest);
        Ok(())
    }

    /// Refuses the state of another mirror, because its files are not here.
    fn is_of_this_mirror(&self, recorded: Option<&str>) -> Result<(), CommandError> {
        let (name, here) = (self.tree.name(), self.tree.identity().unwrap_or_default());
        let recorded = match recorded {
            Some(recorded) if recorded == here || recorded == name => return Ok(()),
            Some(recorded) => format!("the mirror {recorded}"),
            None if self.has_state() && here != name => "a mirror in a directory".to_owned(),
            None => return Ok(()),
        };
        Err(CommandError::usage(format_args!("the state is that of {recorded}, not of {here}")).hint(
            "give each mirror a --state of its own; if this one was moved, remove `.fullbore/state` from where the state \
             is: files that are here are found again",
        ))
    }

    /// Whether the bucket has a state of fullbore.
    pub(crate) fn has_state(&self) -> bool {
        self.remote().state.is_some()
    }

    /// Takes the lock, unless this run has it.
    ///
    /// # Errors
    /// `Locked` if another run holds the lock, `Usage` if the store ignores conditional requests, and `Network` if it
    /// cannot be written.
    pub(crate) fn lock(&self, host: &str) -> Result<(), CommandError> {
        if self.tree.has_lock() {
            match &self.lock {
                LockPlace::Bucket(settings, stop) => {
                    if self.tree.lock().is_none() {
                        let objects = {
                            let _inside = self.runtime.enter();
                            Objects::open(settings, stop.clone(), &Ledger::off())?
                        };
                        let lock = self.runtime.block_on(Lock::take(&objects, LOCK_PATH, host, LockTimes::default()));
                        *self.tree.lock() = Some(lock.map_err(|error| self.not_locked(&error))?);
                    }
                }
                LockPlace::Directory(root, held) => {
                    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
                    if held.is_none() {
                        *held = Some(take_lock(root)?);
                    }
                }
            }
            self.tree.replace_only_seen();
        }
        self.may_change.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the state's list and the signed files for planning. Call it under the lock if the run will change
    /// anything. `directories` are those of the run's suites.
    ///
    /// # Errors
    /// `Locked` if another run has changed the state meanwhile, `Network` if the store cannot be read.
    pub(crate) fn prepare(&self, directories: &[&str], of_killed: Abandoned) -> Result<(), CommandError> {
        let state = State::open(&self.own, "").map_err(CommandError::from)?;
        let list = state.list_path();
        let has_list = state.header.number > 0;
        let signed: Vec<String> = directories
            .iter()
            .copied()
            .chain(state.header.suites.iter().map(|suite| suite.directory.as_str()))
            .flat_map(|directory| SIGNED_FILES.map(|name| below(directory, name)))
            .collect();
        let lists = format!("{OWN_DIRECTORY}/files-");
        let ends_killed = of_killed == Abandoned::Remove && self.may_change.load(Ordering::Relaxed);
        let (now, mark, content, own, signed, ()) = self.runtime.block_on(async {
            let content = async {
                match has_list {
                    true => self.state.get(&list, OWN_BYTES_MAX).await,
                    false => Ok(None),
                }
            };
            let uploads = async {
                if ends_killed {
                    let of_state = state.header.suites.iter().map(|suite| suite.directory.as_str());
                    self.abort_old_uploads(&written_below(directories.iter().copied().chain(of_state))).await;
                }
            };
            tokio::join!(
                self.state.head(STATE_PATH),
                self.state.head(MARK_PATH),
                content,
                self.state.list(&lists),
                self.tree.fetch(signed),
                uploads
            )
        });
        signed.map_err(|error| self.failed(&error))?;
        let now = now.map_err(|error| self.failed(&error))?;
        let is_marked = mark.map_err(|error| self.failed(&error))?.is_some();
        let is_as_read = {
            let remote = self.remote();
            now.and_then(|facts| facts.etag) == remote.state_tag && is_marked == remote.is_marked
        };
        if !is_as_read {
            // Another run has ended or failed between the first read and the lock.
            return Err(self.overtaken());
        }
        if let Some(content) = content.map_err(|error| self.failed(&error))? {
            self.keep(&list, &content.content)?;
        }
        let lists = own.map_err(|error| self.failed(&error))?;
        let (current, abandoned): (BTreeSet<String>, BTreeSet<String>) =
            lists.into_iter().map(|(path, ..)| path).partition(|path| *path == list);
        if ends_killed {
            let abandoned: Vec<String> = abandoned.into_iter().collect();
            self.runtime.block_on(self.state.remove(&abandoned)).map_err(|error| self.failed(&error))?;
        }
        self.remote().lists = current;
        let is_doubtful = state.marked || self.mend_until().is_some();
        if is_doubtful || state.header.suites.iter().any(|suite| suite.mend_until.is_some()) {
            self.tree.forget_wrong_names().map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    /// Aborts multipart uploads that killed runs and workers left below these paths, because stores may charge for
    /// them. The run itself does not depend on it.
    async fn abort_old_uploads(&self, written_below: &BTreeSet<String>) {
        let mut asked = JoinSet::new();
        for path in written_below {
            let (objects, path) = (self.objects.clone(), path.clone());
            asked.spawn(async move { objects.abort_uploads(&path, UPLOAD_AGE_MAX).await });
        }
        let all = async {
            while let Some(aborted) = asked.join_next().await {
                match aborted {
                    Ok(Ok(0)) => {}
                    Ok(Ok(count)) => {
                        tracing::info!("{} of killed runs aborted", several(count as u64, "upload", "uploads"));
                    }
                    Ok(Err(error)) => tracing::info!(%error, "cannot abort uploads of killed runs"),
                    Err(error) => tracing::info!(%error, "cannot abort uploads of killed runs"),
                }
            }
        };
        if tokio::time::timeout(UPLOADS_LIMIT, all).await.is_err() {
            tracing::info!("cannot abort uploads of killed runs: no answer within 3 s");
        }
    }

    /// When the run began, by the store's clock, Unix seconds.
    pub(crate) fn opened_at(&self) -> i64 {
        self.opened_at.load(Ordering::Relaxed)
    }

    /// If this run took the lock over: the time, by the store's clock, until which the former holder may still damage
    /// names.
    pub(crate) fn mend_until(&self) -> Option<i64> {
        self.tree.lock().as_ref()?.taken_over_at().map(|at| at + LATE_REQUESTS_S)
    }

    /// If this run took the lock over: notes in the mirror's state until when names must be mended. Later runs read it
    /// even if this one fails.
    ///
    /// # Errors
    /// `Disk` if the local state cannot be written, `Locked` if another run has replaced the state, and `Network` if
    /// the store cannot be written.
    pub(crate) fn note_takeover(&self, state: &mut State) -> Result<(), CommandError> {
        let Some(until) = self.mend_until().filter(|_| !state.header.suites.is_empty()) else { return Ok(()) };
        let before = state.header.clone();
        state.header.mend_until(until);
        if state.header == before {
            return Ok(());
        }
        state.write_header(&self.own)?;
        self.save().map_err(|error| disk(&error))
    }

    /// Writes fullbore's own files back if they differ: the mark of an unfinished run, new lists, and then the state,
    /// which makes the lists current. Old lists and an old mark are removed last.
    ///
    /// # Errors
    /// [`TargetError`] if the store cannot be written, or another run has replaced the state.
    pub(crate) fn save(&self) -> Result<(), TargetError> {
        let failed =
            |path: &str, source: io::Error| TargetError::Io { operation: "write", path: path.to_owned(), source };
        let read = |path: &str| self.own.read(path, OWN_BYTES_MAX as u64);
        self.tree.may_publish().map_err(|source| failed(STATE_PATH, source))?;
        let mut remote = self.remote();
        let (state, mark) = (read(STATE_PATH)?, read(MARK_PATH)?);
        let mut lists = BTreeSet::new();
        for (name, _) in self.own.list(OWN_DIRECTORY)? {
            let name = name.to_string_lossy();
            if name.starts_with("files-") {
                lists.insert(format!("{OWN_DIRECTORY}/{name}"));
            }
        }
        let put = |path: &str, content: Vec<u8>, condition: &Condition| {
            let fields = vec![("Content-Type".to_owned(), "application/octet-stream".to_owned())];
            let condition = if self.tree.has_lock() { condition } else { &Condition::None };
            let written = self.runtime.block_on(self.state.put(path, fields, Bytes::from(content), condition));
            written.map_err(|error| failed(path, failure(&error)))
        };
        if mark.is_some() && !remote.is_marked {
            put(MARK_PATH, mark.clone().unwrap_or_default(), &Condition::None)?;
            remote.is_marked = true;
        }
        for list in lists.difference(&remote.lists.clone()) {
            if let Some(content) = read(list)? {
                // Lists of killed runs with this name were removed under the lock, so this list belongs to another
                // active run.
                if put(list, content, &Condition::Absent)? == Written::Refused {
                    self.tree.note_overtaken();
                    return Err(failed(list, io::Error::other(Overtaken)));
                }
                remote.lists.insert(list.clone());
            }
        }
        if let Some(state) = state {
            let hash = Sha256::of(&state);
            if remote.state != Some(hash) {
                let condition = remote.state_tag.clone().map_or(Condition::Absent, Condition::Tag);
                match put(STATE_PATH, state, &condition)? {
                    Written::Stored(tag) => (remote.state, remote.state_tag) = (Some(hash), tag),
                    Written::Refused => {
                        self.tree.note_overtaken();
                        return Err(failed(STATE_PATH, io::Error::other(Overtaken)));
                    }
                }
            }
        }
        let mut gone: Vec<String> = remote.lists.difference(&lists).cloned().collect();
        if mark.is_none() && remote.is_marked {
            gone.push(MARK_PATH.to_owned());
            remote.is_marked = false;
        }
        let removed = self.runtime.block_on(self.state.remove(&gone));
        removed.map_err(|error| failed(OWN_DIRECTORY, failure(&error)))?;
        remote.lists = lists;
        Ok(())
    }

    /// Verdict of a run: the store, if its clocks name it and the clocks of this machine and of the mirrors name
    /// nothing.
    pub(crate) fn judge(&self, near: Option<VerdictReport>, moved_bytes: u64) -> Option<VerdictReport> {
        judge_with_store(&self.objects, self.opened, near, moved_bytes)
    }

    /// Releases the lock; returns the reason if that fails. A failure does no harm: the lock expires after two minutes.
    pub(crate) fn release(&self) -> Option<String> {
        if let LockPlace::Directory(_, held) = &self.lock {
            held.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        let lock = self.tree.lock().take()?;
        self.runtime.block_on(lock.release()).err().map(|error| error.to_string())
    }

    /// Rewrites an error for a mirror in a store: what looks like a failing disk is the store, or another run.
    pub(crate) fn explain(&self, error: CommandError) -> CommandError {
        if self.tree.is_overtaken() && error.kind != ErrorKind::Locked {
            let report = error.report;
            let overtaken = error.context.into_iter().fold(self.overtaken(), CommandError::context);
            return CommandError { report, ..overtaken.context(error.message) };
        }
        if error.kind == ErrorKind::Interrupted {
            return CommandError { hints: vec!["run again: files that are stored are found".to_owned()], ..error };
        }
        error
    }

    fn remote(&self) -> MutexGuard<'_, Remote> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, path: &str, content: &[u8]) -> Result<(), CommandError> {
        let written = self.own.write_part(path, content).and_then(|part| part.finish());
        written.map_err(|error: FileError| CommandError::from_error(ErrorKind::Disk, &error))
    }

    fn failed(&self, error: &(dyn std::error::Error + 'static)) -> CommandError {
        if let Some(call) = error.downcast_ref::<CallError>() {
            return explain(call);
        }
        match StoreFailure::behind(error) {
            Some(failure) => failure.command(error),
            None => CommandError::from_error(ErrorKind::Network, error),
        }
    }

    fn overtaken(&self) -> CommandError {
        CommandError::new(ErrorKind::Locked, "another run has changed the mirror meanwhile")
            .hint("run again: what was stored is found")
    }

    fn not_locked(&self, error: &LockError) -> CommandError {
        match error {
            LockError::Held { .. } | LockError::Lost | LockError::Unseen => CommandError::new(ErrorKind::Locked, error)
                .hint("wait for it to end; a run that was killed is over after two minutes"),
            LockError::Call(CallError::Refused { status: 501, .. }) | LockError::NoConditions => CommandError::usage(error).hint(
                "two runs at once could damage the mirror in such a store; if you make sure that there is only one, pass --lock none",
            ),
            LockError::Call(error) => explain(error),
            other => CommandError::from_error(ErrorKind::Network, other),
        }
    }
}

/// Verdict of a run that stores files: the store, if its clocks name it and the clocks of this machine and of the
/// mirrors name nothing.
pub(super) fn judge_with_store(
    objects: &Objects,
    opened: Instant,
    near: Option<VerdictReport>,
    moved_bytes: u64,
) -> Option<VerdictReport> {
    if near.as_ref().is_some_and(|near| near.confident) {
        return near;
    }
    let client = objects.client();
    let far = judge(&Facts {
        wall: opened.elapsed(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        processor: Duration::from_millis(process_costs().0),
        threads: 1,
        connections: client.reading(),
        store: client.bucket().endpoint.host.clone(),
        slowed: client.slowed(),
        moved_bytes,
        ..Facts::default()
    });
    if far.confident { Some(far) } else { near }
}
