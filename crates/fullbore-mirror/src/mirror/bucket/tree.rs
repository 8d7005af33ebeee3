//! The published files of a mirror in an S3 store.
//!
//! Objects are found by listing a top directory (`dists/`, `pool/`) once, and only when one of its objects is needed.
//! Signed files are fetched at the start of a run, in parallel. Hashes of published files come from the state, or from
//! metadata that fullbore adds to each object.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullbore_engine::digest::{READ_BYTES, Sha256, Sha256Hasher};
use fullbore_engine::files::{FileError, Kind, Root};
use fullbore_engine::target::Name;
use fullbore_engine::window::Window;
use fullbore_s3::bucket::{download_failure, failure};
use fullbore_s3::lock::{Fence, Lock};
use fullbore_s3::objects::{Condition, ObjectFacts, Objects, Written};
use fullbore_s3::target::{Layout, Overtaken, WriteMode};
use fullbore_s3::{DownloadError, Downloaded};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::super::links;
use super::super::signed_files::SIGNED_FILES;
use super::super::state::{INDEX_DIRECTORY, OWN_DIRECTORY, State, index_path};
use super::super::tree::{Content, LinkedDirectory, Status, Tree};
use crate::settings::MirrorStore;

/// `Cache-Control` of files that never change under their name: caches may keep them for ever.
const IMMUTABLE: &str = "public, max-age=31536000, immutable";

/// `Cache-Control` of indexes and signed files, which change with each publication.
pub(in super::super) const SHORT_LIVED: &str = "max-age=60, must-revalidate";

/// Bytes of one download in flight, and the number of its ranges.
const DOWNLOAD_BYTES: u64 = 16 << 20;
const DOWNLOAD_RANGES: u32 = 4;

/// Maximum size of a file that is kept in memory after it was read at the start. Signed files have about 300 kB.
pub(super) const KEPT_BYTES_MAX: usize = 16 << 20;

/// Number of objects that are requested in parallel, because each answer takes a round trip. A guess: if all of them
/// are large, their downloads take half a gigabyte.
const READERS: usize = 32;

/// The published objects, as a [`Tree`] for the steps of a run, and as a [`Layout`] for the target.
pub(crate) struct StoreTree {
    objects: Objects,
    runtime: Handle,
    own: Arc<Root>,
    name: String,
    /// Name of the bucket. If the state is elsewhere, also the name of the store, because another store may have a
    /// bucket of this name.
    identity: String,
    has_aliases: bool,
    has_lock: bool,
    /// Whether the hash in the metadata is ignored.
    verifies_objects: bool,
    /// `Cache-Control` of names that change.
    short_lived: String,
    known: Mutex<Known>,
    /// The files that are being fetched.
    pending: Mutex<Option<JoinHandle<Result<(), FileError>>>>,
    fence: Arc<Fence>,
    overtaken: AtomicBool,
    replaces_only_seen: AtomicBool,
}

/// What this run knows about the objects.
#[derive(Default)]
pub(super) struct Known {
    /// All objects below a top directory, by directory.
    pub(super) listed: HashMap<String, BTreeMap<String, Listed>>,
    /// Small files that were read; `None` for a missing file.
    read: HashMap<String, Option<Small>>,
    /// Content of published paths, from the state and from the writes of this run.
    pub(super) hashes: HashMap<String, (Sha256, u64)>,
    paths: HashMap<Sha256, String>,
    has_hashes: bool,
    /// Directories below `dists/`, with the target of those that are aliases.
    pub(super) aliases: HashMap<String, Option<String>>,
    pub(super) has_aliases: bool,
    pub(super) has_removed_old_copies: bool,
    /// Aliases that were compared with the store, not only found in the state.
    pub(super) confirmed: HashSet<String>,
    /// Directories of other programs in the place of aliases.
    pub(super) left: Vec<String>,
    /// Paths that divide the objects to be listed into ranges of similar size.
    expected: Vec<String>,
    /// Directories of suites below `dists/`, from the state.
    pub(super) suites: HashSet<String>,
}

/// An object of a listing.
pub(super) struct Listed {
    pub(super) size: u64,
    pub(super) tag: Option<String>,
}

#[derive(Clone)]
struct Small {
    content: bytes::Bytes,
    tag: Option<String>,
    modified: i64,
}

impl Known {
    /// Notes that a path has this content. By-hash names are preferred, because their content never changes.
    fn note_path(&mut self, sha256: Sha256, path: String) {
        match self.paths.entry(sha256) {
            Entry::Vacant(entry) => drop(entry.insert(path)),
            Entry::Occupied(mut entry) if path.contains("/by-hash/") => drop(entry.insert(path)),
            Entry::Occupied(_) => {}
        }
    }

    /// Forgets the content of a path.
    fn forget(&mut self, path: &str) {
        if let Some((sha256, _)) = self.hashes.remove(path)
            && self.paths.get(&sha256).is_some_and(|of| of == path)
        {
            self.paths.remove(&sha256);
        }
    }

    /// Whether listings and answers have the same ETags, judged by the small files for which both are known.
    fn listed_tags_are_right(&self) -> bool {
        let mut both = self.read.iter().filter_map(|(path, small)| {
            let listed = self.listed.get(path.split_once('/')?.0)?.get(path)?;
            Some((small.as_ref()?.tag.as_ref()?, listed.tag.as_ref()?))
        });
        both.clone().next().is_some() && both.all(|(answered, listed)| answered == listed)
    }
}

impl StoreTree {
    /// Makes the tree of these objects; all changes are behind the fence. `own` has fullbore's own files.
    pub(crate) fn new(
        objects: Objects,
        fence: Arc<Fence>,
        runtime: Handle,
        own: Arc<Root>,
        name: String,
        settings: &MirrorStore,
    ) -> StoreTree {
        let endpoint = &objects.client().bucket().endpoint;
        let identity = match settings.state {
            // At Amazon, names of buckets are unique, but hosts differ by region.
            Some(_) if endpoint.host.ends_with(".amazonaws.com") => name.clone(),
            None => name.clone(),
            Some(_) => format!("{name} at {}:{}", endpoint.host, endpoint.port),
        };
        StoreTree {
            objects,
            runtime,
            own,
            name,
            identity,
            has_aliases: settings.aliases,
            has_lock: settings.locks,
            verifies_objects: settings.verifies_objects,
            short_lived: settings.cache_control.clone().unwrap_or_else(|| SHORT_LIVED.to_owned()),
            known: Mutex::default(),
            pending: Mutex::default(),
            fence,
            overtaken: AtomicBool::new(false),
            replaces_only_seen: AtomicBool::new(false),
        }
    }

    /// Whether another run has changed the mirror meanwhile.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.overtaken.load(Ordering::Relaxed) || self.fence.was_closed()
    }

    /// Notes that another run changes the mirror.
    pub(crate) fn note_overtaken(&self) {
        self.overtaken.store(true, Ordering::Relaxed);
    }

    /// From now on, objects are replaced only if they are unchanged since they were listed.
    pub(crate) fn replace_only_seen(&self) {
        self.replaces_only_seen.store(true, Ordering::Relaxed);
    }

    /// Whether a lock separates runs, and objects are written on conditions.
    pub(crate) fn has_lock(&self) -> bool {
        self.has_lock
    }

    /// The lock of this run, if it has one.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Lock>> {
        self.fence.lock()
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn own(&self) -> &Root {
        &self.own
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Fetches small files in parallel and keeps them. Missing files are noted as such.
    ///
    /// # Errors
    ///
    /// [`FileError`] if an object cannot be read, or is larger than the limit for small files.
    pub(crate) async fn fetch(&self, paths: impl IntoIterator<Item = String>) -> Result<(), FileError> {
        let mut asked = tokio::task::JoinSet::new();
        for path in paths {
            if self.known().read.contains_key(&path) {
                continue;
            }
            let objects = self.objects.clone();
            asked.spawn_on(
                async move {
                    let found = objects.get(&path, KEPT_BYTES_MAX).await;
                    (path, found)
                },
                &self.runtime,
            );
        }
        while let Some(result) = asked.join_next().await {
            let (path, found) = result.map_err(|error| failed("read", "an object", io::Error::other(error)))?;
            let found = found.map_err(|error| failed("read", &path, failure(&error)))?;
            let small = found.map(|found| Small {
                content: found.content,
                tag: found.facts.etag,
                modified: found.facts.mtime.unwrap_or_default(),
            });
            self.known().read.insert(path, small);
        }
        Ok(())
    }

    /// Begins to fetch small files. Whoever needs one of them waits for all.
    pub(crate) fn begin_to_fetch(self: &Arc<Self>, paths: Vec<String>) {
        let tree = self.clone();
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(self.runtime.spawn(async move { tree.fetch(paths).await }));
    }

    /// Waits for the files that are being fetched.
    fn settle(&self) -> Result<(), FileError> {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        match pending.map(|pending| self.runtime.block_on(pending)) {
            Some(Err(error)) => Err(failed("read", "objects", io::Error::other(error))),
            Some(Ok(result)) => result,
            None => Ok(()),
        }
    }

    /// Lists the objects below a top directory, once.
    pub(super) fn list_top(&self, top: &str) -> Result<(), FileError> {
        if self.known().listed.contains_key(top) {
            return Ok(());
        }
        let prefix = format!("{top}/");
        let expected: Vec<String> =
            self.known().expected.iter().filter(|path| path.starts_with(&prefix)).cloned().collect();
        let found = self.runtime.block_on(self.objects.list_in_ranges(&prefix, &expected));
        let found = found.map_err(|error| failed("list", top, failure(&error)))?;
        let listed = |size, tag: String| Listed { size, tag: Some(tag).filter(|tag| !tag.is_empty()) };
        let objects = found.into_iter().map(|(path, size, tag)| (path, listed(size, tag))).collect();
        self.known().listed.insert(top.to_owned(), objects);
        Ok(())
    }

    /// The size of a published object.
    fn size(&self, path: &str) -> Result<Option<u64>, FileError> {
        let Some((top, _)) = path.split_once('/') else {
            let facts = self.runtime.block_on(self.objects.head(path));
            let facts = facts.map_err(|error| failed("look at", path, failure(&error)))?;
            return Ok(facts.map(|facts| facts.size));
        };
        self.list_top(top)?;
        Ok(self.known().listed.get(top).and_then(|objects| objects.get(path)).map(|of| of.size))
    }

    fn is_directory(&self, path: &str) -> Result<bool, FileError> {
        let top = path.split_once('/').map_or(path, |(top, _)| top);
        self.list_top(top)?;
        let below = format!("{path}/");
        let known = self.known();
        let mut after = known.listed[top].range(below.clone()..);
        Ok(after.next().is_some_and(|(path, _)| path.starts_with(&below)))
    }

    /// Reads the content of published files from the state, once.
    fn learn_hashes(&self) {
        if std::mem::replace(&mut self.known().has_hashes, true) {
            return;
        }
        let Ok(state) = State::open(&self.own, "") else { return };
        if !state.header.synced {
            return;
        }
        let Ok(Some(mut records)) = state.records(&self.own) else { return };
        let mut known = self.known();
        while let Ok(Some(record)) = records.next() {
            if !record.path.starts_with("dists/") && record.path.contains('/') {
                continue;
            }
            let path = record.path.to_owned();
            known.hashes.entry(path.clone()).or_insert((record.sha256, record.size));
            known.note_path(record.sha256, path);
        }
    }

    /// Compares the names of indexes and signed files with the state, and forgets their content if the store has other
    /// content. They are then published again. Takes one request for each name.
    ///
    /// # Errors
    ///
    /// [`FileError`] if `dists/` cannot be listed, or an object cannot be looked at.
    pub(crate) fn forget_wrong_names(&self) -> Result<(), FileError> {
        self.list_top("dists")?;
        self.learn_hashes();
        let names: Vec<(String, (Sha256, u64))> = {
            let known = self.known();
            let may_change = |path: &str| path.starts_with("dists/") && !path.contains("/by-hash/");
            let names = known.hashes.iter().filter(|(path, _)| may_change(path));
            names.map(|(path, content)| (path.clone(), *content)).collect()
        };
        let there = self.facts(names.iter().map(|(path, _)| path.clone()))?;
        for (path, (sha256, size)) in names {
            let is_right = |facts: &ObjectFacts| facts.sha256 == Some(sha256) && facts.size == size;
            if !there.get(&path).is_some_and(is_right) {
                self.known().forget(&path);
            }
        }
        Ok(())
    }

    /// Metadata of objects, requested in parallel; missing objects are left out.
    pub(super) fn facts(
        &self,
        paths: impl IntoIterator<Item = String>,
    ) -> Result<HashMap<String, ObjectFacts>, FileError> {
        let mut facts = HashMap::new();
        let mut asked = tokio::task::JoinSet::new();
        let mut paths = paths.into_iter().peekable();
        self.runtime.block_on(async {
            while paths.peek().is_some() || !asked.is_empty() {
                while asked.len() < READERS
                    && let Some(path) = paths.next()
                {
                    let objects = self.objects.clone();
                    asked.spawn(async move {
                        let found = objects.head(&path).await;
                        (path, found)
                    });
                }
                let Some(answered) = asked.join_next().await else { break };
                let (path, found) =
                    answered.map_err(|error| failed("look at", "an object", io::Error::other(error)))?;
                let found = found.map_err(|error| failed("look at", &path, failure(&error)))?;
                facts.extend(found.map(|found| (path, found)));
            }
            Ok(facts)
        })
    }

    /// A published path with this content, by the state and by its listed size. Makes no request, so that tasks may
    /// call it.
    fn published_now(&self, sha256: Sha256) -> Option<(String, u64)> {
        self.learn_hashes();
        let (path, size) = {
            let known = self.known();
            let path = known.paths.get(&sha256)?.clone();
            let (of, size) = known.hashes.get(&path)?;
            (*of == sha256).then_some((path, *size))?
        };
        (self.listed_size(&path) == Some(size)).then_some((path, size))
    }

    /// Listed size of an object below a top directory; makes no request.
    fn listed_size(&self, path: &str) -> Option<u64> {
        let (top, _) = path.split_once('/')?;
        self.known().listed.get(top)?.get(path).map(|listed| listed.size)
    }

    /// Opens an object as a stream. It ends with an error unless all bytes arrived and match the store's checksum, if
    /// there is one.
    fn stream(&self, path: &str) -> ObjectReader {
        let (out, pieces) = tokio::sync::mpsc::channel(1);
        let (client, key) = (self.objects.client().clone(), self.objects.key(path));
        let window = Window::new(DOWNLOAD_BYTES, DOWNLOAD_RANGES);
        let task = self
            .runtime
            .spawn(async move { fullbore_s3::download(&client, &key, &window, &out, false, &AtomicU64::new(0)).await });
        ObjectReader { pieces, ready: Vec::new(), task: Some(task), runtime: self.runtime.clone() }
    }

    /// Writes a small object.
    pub(super) fn write_object(&self, path: &str, content: &[u8]) -> Result<(), FileError> {
        let (hash, size) = (Sha256::of(content), content.len() as u64);
        let content = bytes::Bytes::copy_from_slice(content);
        let put = self.runtime.block_on(self.objects.put(path, self.fields(path), content, &Condition::None));
        match put.map_err(|error| failed("write", path, failure(&error)))? {
            Written::Stored(tag) => {
                self.changed(path, Some((hash, size, tag)));
                Ok(())
            }
            Written::Refused => Err(failed("write", path, io::Error::other(Overtaken))),
        }
    }

    /// Updates the listing for a path; `None` for a removed object.
    pub(super) fn note_listed(&self, path: &str, now: Option<Listed>) {
        let mut known = self.known();
        if let Some(objects) = path.split_once('/').and_then(|(top, _)| known.listed.get_mut(top)) {
            match now {
                Some(listed) => drop(objects.insert(path.to_owned(), listed)),
                None => drop(objects.remove(path)),
            }
        }
        known.read.remove(path);
    }

    /// Removes objects, with as many as possible in one request.
    pub(super) fn remove(&self, paths: &[String]) -> Result<(), FileError> {
        let Some(first) = paths.first() else { return Ok(()) };
        // Another run that took the lock over may need them again.
        self.may_publish().map_err(|source| failed("remove", first, source))?;
        let removed = self.runtime.block_on(self.objects.remove(paths));
        removed.map_err(|error| failed("remove", first, failure(&error)))?;
        paths.iter().for_each(|path| self.changed(path, None));
        Ok(())
    }
}

/// Header fields of a published object.
pub(in super::super) fn fields(path: &str, short_lived: &str) -> Vec<(String, String)> {
    let is_of_pool = path.starts_with("pool/") || path.contains("/pool/");
    let lives = if is_of_pool || path.contains("/by-hash/") { IMMUTABLE } else { short_lived };
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![field("Content-Type", &fullbore_s3::content_type(path)), field("Cache-Control", lives)]
}

pub(super) fn failed(operation: &'static str, path: &str, source: io::Error) -> FileError {
    FileError::Io { operation, path: path.to_owned(), source }
}

fn file(size: u64, mtime: i64) -> Status {
    Status { kind: Kind::File, size, mtime, inode: None }
}

impl Tree for StoreTree {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn identity(&self) -> Option<String> {
        Some(self.identity.clone())
    }

    fn stat(&self, path: &str) -> Result<Option<Status>, FileError> {
        match self.alias_of(path)? {
            Some((link, _)) if link == path => return Ok(Some(Status { kind: Kind::Symlink, ..file(0, 0) })),
            Some(_) => return Err(FileError::Symlink { path: path.to_owned() }),
            None => {}
        }
        let directory = Status { kind: Kind::Directory, ..file(0, 0) };
        if self.known().suites.contains(path) {
            return Ok(Some(directory));
        }
        self.settle()?;
        if let Some(read) = self.known().read.get(path) {
            return Ok(read.as_ref().map(|small| file(small.content.len() as u64, small.modified)));
        }
        if let Some(size) = self.size(path)? {
            return Ok(Some(file(size, 0)));
        }
        Ok(self.is_directory(path)?.then_some(directory))
    }

    fn open(&self, path: &str) -> Result<Option<(Content, Status)>, FileError> {
        match self.stat(path)? {
            None => Ok(None),
            Some(status) if status.kind == Kind::File => {
                Ok(Some((Content::Stream(Box::new(self.stream(path))), status)))
            }
            Some(_) => Err(FileError::NotRegular { path: path.to_owned() }),
        }
    }

    fn read(&self, path: &str, limit_bytes: u64) -> Result<Option<Vec<u8>>, FileError> {
        self.settle()?;
        if !self.known().read.contains_key(path) {
            self.runtime.block_on(self.fetch([path.to_owned()]))?;
        }
        match self.known().read.get(path) {
            Some(Some(small)) if small.content.len() as u64 > limit_bytes => {
                Err(FileError::TooLarge { path: path.to_owned(), limit_bytes })
            }
            Some(Some(small)) => Ok(Some(small.content.to_vec())),
            _ => Ok(None),
        }
    }

    /// An alias that differs from its target leads nowhere.
    fn read_link(&self, path: &str) -> Result<Option<String>, FileError> {
        match self.alias_of(path)? {
            Some((link, target)) if link == path && self.alias_is_complete(&link, &target)? => Ok(Some(target)),
            _ => Ok(None),
        }
    }

    fn linked_directory(&self, link: &str) -> Result<Option<LinkedDirectory>, FileError> {
        // An incomplete alias leads to itself.
        let target = links::resolve(self, link)?.filter(|target| target != link);
        let Some(target) = target else { return Ok(None) };
        let there = links::stat(self, &target)?.is_some_and(|status| status.kind == Kind::Directory);
        Ok(there.then_some(LinkedDirectory::Inside(target)))
    }

    fn list(&self, directory: &str) -> Result<Vec<(OsString, Kind)>, FileError> {
        if directory.is_empty() {
            return Ok(Vec::new());
        }
        let top = directory.split_once('/').map_or(directory, |(top, _)| top);
        self.list_top(top)?;
        let below = format!("{directory}/");
        let mut names: BTreeMap<String, Kind> = BTreeMap::new();
        let known = self.known();
        for (path, _) in known.listed[top].range(below.clone()..).take_while(|(path, _)| path.starts_with(&below)) {
            match path[below.len()..].split_once('/') {
                Some((name, _)) => names.insert(name.to_owned(), Kind::Directory),
                None => names.insert(path[below.len()..].to_owned(), Kind::File),
            };
        }
        drop(known);
        if directory == "dists" {
            for (name, kind) in names.iter_mut().filter(|(_, kind)| **kind == Kind::Directory) {
                if self.alias_of(&format!("{below}{name}"))?.is_some() {
                    *kind = Kind::Symlink;
                }
            }
        }
        Ok(names.into_iter().map(|(name, kind)| (name.into(), kind)).collect())
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<(), FileError> {
        self.write_object(path, content)
    }

    fn unlink(&self, path: &str) -> Result<bool, FileError> {
        if self.alias_of(path)?.is_some_and(|(link, _)| link == path) {
            return self.remove_alias(path).map(|()| true);
        }
        self.may_publish().map_err(|source| failed("remove", path, source))?;
        let removed = self.runtime.block_on(self.objects.delete(path, &Condition::None));
        removed.map_err(|error| failed("remove", path, failure(&error)))?;
        self.changed(path, None);
        Ok(true)
    }

    fn remove_files(&self, paths: &[&str]) -> Result<Vec<bool>, FileError> {
        let mut there = Vec::with_capacity(paths.len());
        for path in paths {
            there.push(self.size(path)?.is_some());
        }
        let removed: Vec<String> =
            paths.iter().zip(&there).filter(|(_, there)| **there).map(|(path, _)| (*path).to_owned()).collect();
        // The copies of a removed file are removed with it.
        let copies = removed.iter().flat_map(|path| self.copies_of(path));
        let copies: Vec<String> = copies.filter(|path| self.listed_size(path).is_some()).collect();
        self.remove(&copies)?;
        self.remove(&removed)?;
        self.remove_old_copies()?;
        Ok(there)
    }

    fn remove_directory(&self, _path: &str) -> Result<bool, FileError> {
        Ok(false)
    }

    fn symlink(&self, target: &str, link: &str) -> Result<(), FileError> {
        self.make_alias(target, link)
    }

    fn has_stored(&self, path: &str, sha256: Sha256) -> Result<bool, FileError> {
        if let Some(read) = self.known().read.get(path) {
            return Ok(read.as_ref().is_some_and(|small| Sha256::of(&small.content) == sha256));
        }
        self.learn_hashes();
        let known = self.known().hashes.get(path).copied();
        match known {
            Some((of, size)) if of == sha256 => Ok(self.size(path)? == Some(size)),
            _ => Ok(false),
        }
    }

    fn give_stored(&self, sha256: Sha256, path: &str) -> Result<(), FileError> {
        let Some((mut file, _)) = self.own.open_file(&index_path(sha256))? else {
            return Err(failed("publish", path, io::ErrorKind::NotFound.into()));
        };
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(|error| failed("read", path, error))?;
        self.write(path, &content)
    }

    fn published(&self, sha256: Sha256) -> Result<Option<String>, FileError> {
        self.list_top("dists")?;
        Ok(self.published_now(sha256).map(|(path, _)| path))
    }

    fn readers(&self) -> usize {
        READERS
    }

    fn store(&self, path: &str, sha256: Sha256) -> Result<bool, FileError> {
        self.own.create_directory(OWN_DIRECTORY, 0o700)?;
        let part = self.own.create_part(&index_path(sha256), 0)?;
        let (mut reader, mut hasher) = (self.stream(path), Sha256Hasher::new());
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                // The content differs from the stored checksum.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    part.remove()?;
                    return Ok(false);
                }
                Err(error) => {
                    part.remove()?;
                    return Err(failed("read", path, error));
                }
            };
            part.write_at(hasher.bytes(), &buffer[..count])?;
            hasher.update(&buffer[..count]);
        }
        if hasher.finish() != sha256 {
            part.remove()?;
            return Ok(false);
        }
        part.finish()?;
        Ok(true)
    }

    fn known_content(&self, path: &str) -> Result<Option<(Sha256, u64)>, FileError> {
        let facts = self.runtime.block_on(self.objects.head(path));
        let facts = facts.map_err(|error| failed("look at", path, failure(&error)))?;
        let facts = facts.filter(|facts| facts.is_stores_own || !self.verifies_objects);
        Ok(facts.and_then(|facts| Some((facts.sha256?, facts.size))))
    }

    fn expect(&self, paths: Vec<String>) {
        self.known().expected = paths;
    }

    fn has_links(&self) -> bool {
        self.has_aliases
    }

    fn links_are_copies(&self) -> bool {
        true
    }

    fn copied_links(&self) -> Result<Vec<(String, String)>, FileError> {
        let mut aliases = Vec::new();
        for (name, kind) in self.list("dists")? {
            let link = format!("dists/{}", name.to_string_lossy());
            if kind == Kind::Symlink {
                aliases.extend(self.alias_of(&link)?);
            }
        }
        Ok(aliases)
    }
}

impl Layout for StoreTree {
    fn is_own(&self, path: &str) -> bool {
        path.strip_prefix(OWN_DIRECTORY).is_some_and(|rest| rest.starts_with('/'))
    }

    fn stored(&self, path: &str) -> Option<Sha256> {
        path.strip_prefix(INDEX_DIRECTORY)?.strip_prefix('/')?.parse().ok()
    }

    fn fields(&self, path: &str) -> Vec<(String, String)> {
        fields(path, &self.short_lived)
    }

    fn step(&self, name: &Name) -> u32 {
        match name {
            Name::Link { to, .. } if to.contains("/by-hash/") => 0,
            Name::Link { to, .. } => {
                let signed = SIGNED_FILES.iter().position(|name| to.rsplit('/').next() == Some(*name));
                // Signed files come last, each at its place in the order.
                signed.map_or(1, |place| 3 + place as u32)
            }
            Name::Symlink { .. } => 1,
            Name::Remove { .. } => 2,
        }
    }

    fn is_link(&self, name: &Name) -> bool {
        match name {
            Name::Symlink { .. } => true,
            Name::Remove { path } => {
                self.alias_of(path).is_ok_and(|alias| alias.is_some_and(|(link, _)| link == *path))
            }
            Name::Link { .. } => false,
        }
    }

    fn link(&self, name: &Name) -> Result<(), FileError> {
        let (Name::Symlink { link, .. } | Name::Remove { path: link } | Name::Link { to: link, .. }) = name;
        self.may_publish().map_err(|error| failed("publish", link, error))?;
        match name {
            Name::Symlink { target, link } => self.change_alias(Some(target), link),
            Name::Remove { path } => self.change_alias(None, path),
            Name::Link { .. } => Ok(()),
        }
    }

    fn may_publish(&self) -> io::Result<()> {
        let held = match &*self.lock() {
            Some(lock) => lock.check(),
            None => Ok(()),
        };
        held.map_err(|error| {
            self.note_overtaken();
            io::Error::other(error)
        })
    }

    fn overtaken(&self) {
        self.note_overtaken();
    }

    fn write_mode(&self) -> WriteMode {
        // Every file that lands was looked for when the run was planned.
        if self.has_lock { WriteMode::Create } else { WriteMode::Replace }
    }

    fn condition(&self, path: &str) -> Condition {
        if !self.has_lock {
            return Condition::None;
        }
        let read = self.known().read.get(path).map(|read| read.as_ref().map(|small| small.tag.clone()));
        match read {
            Some(Some(Some(tag))) => Condition::Tag(tag),
            Some(None) => Condition::Absent,
            _ if self.replaces_only_seen.load(Ordering::Relaxed) => self.as_listed(path),
            _ => Condition::None,
        }
    }

    fn copy_of(&self, sha256: Sha256) -> Option<String> {
        self.published_now(sha256).map(|(path, _)| path)
    }

    fn changed(&self, path: &str, to: Option<(Sha256, u64, Option<String>)>) {
        let mut known = self.known();
        let objects = path.split_once('/').and_then(|(top, _)| known.listed.get_mut(top));
        match (&to, objects) {
            (Some((_, size, tag)), Some(objects)) => {
                objects.insert(path.to_owned(), Listed { size: *size, tag: tag.clone() });
            }
            (None, Some(objects)) => drop(objects.remove(path)),
            (_, None) => {}
        }
        known.read.remove(path);
        match to {
            Some((sha256, size, _)) if path.starts_with("dists/") => {
                known.forget(path);
                known.hashes.insert(path.to_owned(), (sha256, size));
                known.note_path(sha256, path.to_owned());
            }
            Some(_) => {}
            None => known.forget(path),
        }
    }
}

impl StoreTree {
    /// Condition that an object is unchanged since it was listed. None for a store whose listings have other ETags than
    /// its answers.
    fn as_listed(&self, path: &str) -> Condition {
        let known = self.known();
        let objects = path.split_once('/').and_then(|(top, _)| known.listed.get(top));
        match objects.map(|objects| objects.get(path)) {
            Some(Some(Listed { tag: Some(tag), .. })) if known.listed_tags_are_right() => Condition::Tag(tag.clone()),
            Some(None) => Condition::Absent,
            _ => Condition::None,
        }
    }
}

/// Reads the content of an object while it arrives.
struct ObjectReader {
    pieces: tokio::sync::mpsc::Receiver<Vec<bytes::Bytes>>,
    /// Pieces that arrived, the next one last.
    ready: Vec<bytes::Bytes>,
    task: Option<JoinHandle<Result<Downloaded, DownloadError>>>,
    runtime: Handle,
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(mut piece) = self.ready.pop() {
                let count = piece.len().min(buffer.len());
                buffer[..count].copy_from_slice(&piece.split_to(count));
                if !piece.is_empty() {
                    self.ready.push(piece);
                }
                if count > 0 || buffer.is_empty() {
                    return Ok(count);
                }
                continue;
            }
            if let Some(mut pieces) = self.pieces.blocking_recv() {
                pieces.reverse();
                self.ready = pieces;
                continue;
            }
            let Some(task) = self.task.take() else { return Ok(0) };
            // The bytes are right only if the download ends without an error.
            self.runtime.block_on(task).map_err(io::Error::other)?.map_err(|error| download_failure(&error))?;
        }
    }
}
