//! The event loop of the method: requests in, files and answers out.
//!
//! One loop takes requests from APT, events of the fetchers and outcomes of the landing; only it writes to APT. Files of
//! known hash and size go to the fetcher of their mirror set. Other files have a task each.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use fullbore_engine::digest::{Sha256, Sha256Hasher};
use fullbore_engine::journal::Journal;
use fullbore_engine::landing::{Landing, Outcome};
use fullbore_engine::ranges::Ranges;
use fullbore_engine::stage::Ledger;
use fullbore_engine::target::in_place::InPlaceTarget;
use fullbore_wire::dispatcher::GivenUp;
use fullbore_wire::fetch::{FetchEvent, Get, HeadLog, Watch};
use fullbore_wire::hosts::HostId;
use fullbore_wire::queue::{Item, ItemId};
use fullbore_wire::url::Url;
use tokio::sync::mpsc;

use super::answers::{self, Finished, HostError, Phrases};
use super::in_order::{InOrder, TaskId};
use super::mirror_set::{File, MirrorSet, Shared};
use super::plain::{self, Plain, Requirements, Way};
use super::redirects;
use super::releases::{self, Acceptance, Freshness, LocalRelease, Newest};
use super::settings::Settings;
use super::wanted::{Kind, WantedFile};
use crate::acquire::{Failure, Message, Outgoing, ReceivedHashes, Request};

/// Requests per batch: the fetcher distributes large and small files better in one batch.
const BATCH: usize = 256;

/// Events of the loop.
enum Event {
    /// The first bytes of this file arrived.
    Begun(String),
    /// An event of a fetcher.
    Fetched(usize, FetchEvent),
    /// A message for APT of a task for a mirror set.
    Tell(usize, TaskId, Message),
    /// A task for a mirror set ended with these messages.
    Ended(usize, TaskId, Vec<Message>),
    /// The freshness of a mirror set for a suite.
    Learned(usize, String, Freshness),
    /// A fetcher panicked.
    Lost(usize),
}

/// Key of a mirror set: its place, and the credentials of the requested address. Two repositories on one host may have
/// different passwords.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    place: Place,
    /// Hash of the credentials, so that no password is kept here.
    credentials: Option<Sha256>,
}

/// Identifies the addresses of a set: each address that APT uses of a configured set has its own, and so has each other
/// site.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Place {
    Set(usize, usize),
    Site(String),
}

/// A file in flight.
struct Open {
    file: Arc<File>,
    mirror_set: usize,
    /// Whether APT got `200 URI Start`.
    is_started: bool,
    resumed: u64,
}

pub(super) struct Session {
    apt: Outgoing,
    settings: Arc<Settings>,
    shared: Shared,
    target: Arc<InPlaceTarget>,
    journal: Arc<Journal>,
    mirror_sets: Vec<MirrorSet>,
    keys: HashMap<Key, usize>,
    open: HashMap<ItemId, Open>,
    by_target: HashMap<String, ItemId>,
    next_item: ItemId,
    next_task: TaskId,
    /// Messages that are held back, by mirror set.
    in_order: HashMap<usize, InOrder>,
    events: mpsc::UnboundedSender<Event>,
    happened: mpsc::UnboundedReceiver<Event>,
    landed: mpsc::UnboundedReceiver<Outcome>,
    /// Warnings to send with the next request.
    warnings: Vec<String>,
    /// Warnings about credentials that were sent already; each is sent once.
    warned: HashSet<String>,
    /// Receives the heads of requests and answers in debug mode.
    head_log: Option<HeadLog>,
}

impl Session {
    /// Starts the threads that write and hash.
    ///
    /// # Errors
    /// The error of the system if it cannot start threads.
    pub(super) fn start(mut settings: Settings, apt: Outgoing, head_log: Option<HeadLog>) -> io::Result<Session> {
        let (events, happened) = mpsc::unbounded_channel();
        let begun = events.clone();
        let tell = move |path: &str| drop(begun.send(Event::Begun(path.to_owned())));
        let target = Arc::new(InPlaceTarget::new(Box::new(tell)));
        let journal = Arc::new(Journal::none());
        let ledger = Ledger::off();
        let (outcomes, landed) = mpsc::unbounded_channel();
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get()).min(4);
        let landing = Landing::start(target.clone(), journal.clone(), threads, &ledger, outcomes)?;
        Ok(Session {
            warnings: std::mem::take(&mut settings.warnings),
            settings: Arc::new(settings),
            shared: Shared::new(landing, ledger),
            warned: HashSet::new(),
            head_log,
            apt,
            target,
            journal,
            mirror_sets: Vec::new(),
            keys: HashMap::new(),
            open: HashMap::new(),
            by_target: HashMap::new(),
            next_item: ItemId::MAX,
            next_task: 0,
            in_order: HashMap::new(),
            events,
            happened,
            landed,
        })
    }

    /// Serves requests until the last one, or until APT is gone.
    ///
    /// # Errors
    /// The error of writing to APT; `BrokenPipe` if APT has ended.
    pub(super) async fn run(&mut self, mut requests: mpsc::Receiver<Request>) -> io::Result<()> {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                taken = requests.recv_many(&mut batch, BATCH) => match taken {
                    0 => return Ok(()),
                    _ => self.requested(std::mem::take(&mut batch)).await?,
                },
                Some(event) = self.happened.recv() => self.happened(event)?,
                Some(outcome) = self.landed.recv() => {
                    let (Outcome::Verified { item, .. } | Outcome::Mismatch { item, .. } | Outcome::Failed { item, .. }) =
                        &outcome;
                    if let Some(open) = self.open.get(item) {
                        self.mirror_sets[open.mirror_set].landed(outcome);
                    }
                }
            }
        }
    }

    /// Leaves unfinished files so that they can be resumed.
    pub(super) fn finish(self) {
        let Session { mirror_sets, shared, .. } = self;
        drop(mirror_sets);
        // Without sync and journal nothing can fail.
        let _ = shared.landing.finish();
    }

    async fn requested(&mut self, requests: Vec<Request>) -> io::Result<()> {
        let mut batches: HashMap<usize, Vec<Item>> = HashMap::new();
        for request in requests {
            for warning in std::mem::take(&mut self.warnings) {
                self.apt.warning(&request, &warning)?;
            }
            match self.begin(&request) {
                Ok(Some((mirror_set, item))) => batches.entry(mirror_set).or_default().push(item),
                Ok(None) => {}
                Err(message) => self.apt.send(&message)?,
            }
        }
        for (mirror_set, items) in batches {
            if !self.mirror_sets[mirror_set].feed(items).await {
                self.lost(mirror_set)?;
            }
        }
        Ok(())
    }

    /// Begins a request: an item for a fetcher, or an immediate answer.
    fn begin(&mut self, request: &Request) -> Result<Option<(usize, Item)>, Message> {
        let refused = |error: &dyn std::fmt::Display| request.failed(&Failure::new(error));
        let wanted = WantedFile::new(request.clone(), &self.settings).map_err(|error| refused(&error))?;
        let (number, path) = self.mirror_set(&wanted).map_err(|error| refused(&error))?;
        // Credentials of the address itself take precedence.
        let unencrypted = || self.settings.unencrypted(&wanted.url);
        for warning in if wanted.credentials.is_none() { unencrypted() } else { Vec::new() } {
            if self.warned.insert(warning.clone()) {
                self.apt.warning(request, &warning).map_err(|error| refused(&error))?;
            }
        }
        let known = match wanted.kind {
            Kind::Known { sha256, size } if !plain::is_special(&wanted.target) => Some((sha256, size)),
            _ => None,
        };
        match known {
            Some((sha256, size)) => self.begin_known(wanted, number, path, sha256, size),
            None => {
                self.begin_unknown(wanted, number, path);
                Ok(None)
            }
        }
    }

    /// The mirror set for a file, started if necessary, and the file's path below its addresses.
    fn mirror_set(&mut self, wanted: &WantedFile) -> Result<(usize, String), String> {
        let url = &wanted.url;
        let mirror_path = self.settings.mirrors.find(url);
        let (place, mirrors, path) = match mirror_path {
            Some(mirror_path) => {
                let mirrors = self.settings.mirrors.origin_first(mirror_path.set, mirror_path.member);
                (Place::Set(mirror_path.set, mirror_path.member), mirrors, mirror_path.path)
            }
            None => {
                let site = format!("{}://{}/", url.scheme().as_str(), url.host_and_port());
                let base = Url::parse(&site).map_err(|error| error.to_string())?;
                let path = url.target().trim_start_matches('/').to_owned();
                (Place::Site(site), vec![base], path)
            }
        };
        let credentials = wanted.credentials.as_ref().map(|own| Sha256::of(own.basic().header_value().as_bytes()));
        let key = Key { place, credentials };
        if let Some(number) = self.keys.get(&key).filter(|number| !self.mirror_sets[**number].is_lost()) {
            return Ok((*number, path));
        }
        let mut options = self.settings.fetch_options(&mirrors, wanted).map_err(|error| error.to_string())?;
        options.head_log = self.head_log.clone();
        let number = self.mirror_sets.len();
        let events = self.events.clone();
        // Events after the end of the loop are dropped.
        let lost = self.events.clone();
        let on_event = move |event| drop(events.send(Event::Fetched(number, event)));
        let on_lost = move || drop(lost.send(Event::Lost(number)));
        let mirror_set = MirrorSet::start(mirrors, options, &self.shared, on_event, on_lost);
        let _ = self.apt.status(&wanted.request, &format!("Connecting to {}", mirror_set.names.join(", ")));
        self.mirror_sets.push(mirror_set);
        self.keys.insert(key, number);
        Ok((number, path))
    }

    fn begin_known(
        &mut self,
        wanted: WantedFile,
        mirror_set: usize,
        path: String,
        sha256: Sha256,
        size: u64,
    ) -> Result<Option<(usize, Item)>, Message> {
        let request = wanted.request.clone();
        let local = |error: &dyn std::fmt::Display| request.failed(&Failure::new(error));
        let Some(target) = wanted.target.to_str().map(str::to_owned) else {
            return Err(local(&"the file name is not UTF-8"));
        };
        let mut resumed = self.target.trim(&target, size).map_err(|error| local(&error))?;
        if resumed == size && size > 0 {
            // It seems complete: an earlier run ended before it answered APT.
            if let Some(finished) = whole(Path::new(&target), sha256, size) {
                let started = answers::started(&request, Some(size), size);
                self.apt.send(&started).map_err(|error| local(&error))?;
                return Err(answers::done(&request, &finished));
            }
            resumed = 0;
        }
        self.journal.found(&target, size, sha256, std::iter::once(0..resumed).collect::<Ranges>());
        let present = self.shared.landing.present(&target, size, sha256);
        let id = self.next_item;
        // Descending: among files of the same size the queue gives out the highest number first.
        self.next_item = self.next_item.wrapping_sub(1);
        let item = Item { id, size, present, excluded: self.mirror_sets[mirror_set].excluded(&wanted) };
        let fields = self.settings.fields(&wanted);
        let file = Arc::new(File { wanted, path, target: target.clone(), sha256, size, fields });
        self.shared.files.add(id, file.clone());
        self.by_target.insert(target, id);
        self.open.insert(id, Open { file, mirror_set, is_started: false, resumed });
        Ok(Some((mirror_set, item)))
    }

    /// Files of unknown hash or size: a task fetches and writes each.
    fn begin_unknown(&mut self, wanted: WantedFile, number: usize, path: String) {
        let mirror_set = &self.mirror_sets[number];
        let suite = wanted.suite.clone().filter(|_| wanted.is_index || wanted.is_signature());
        let hosts = match mirror_set.signer_of(suite.as_deref()).filter(|_| wanted.is_signature()) {
            Some(host) => vec![host],
            None => mirror_set.order(suite.as_deref()),
        };
        self.begin_plain(wanted, number, path, hosts, false);
    }

    /// No host has the expected bytes, not even the one that APT named. APT gets them anyway, as it tells its user
    /// which hashes they have.
    fn show_wrong_bytes(&mut self, wanted: WantedFile, number: usize, path: String) {
        let _ = std::fs::remove_file(&wanted.target);
        self.begin_plain(wanted, number, path, vec![0], true);
    }

    fn begin_plain(&mut self, wanted: WantedFile, number: usize, path: String, hosts: Vec<HostId>, is_started: bool) {
        let mirror_set = &self.mirror_sets[number];
        let suite = wanted.suite.clone().filter(|_| wanted.is_index || wanted.is_signature());
        if !self.settings.allows_ranges(&wanted.url) {
            mirror_set.ranges.store(false, Ordering::Relaxed);
        }
        let id = self.next_task;
        self.next_task += 1;
        // Each mirror answers over its own connection.
        if mirror_set.is_alone() {
            self.in_order.entry(number).or_default().add(id);
        }
        let task = Task {
            id,
            mirror_set: number,
            hosts,
            is_started,
            names: mirror_set.names.clone(),
            watch: mirror_set.watch.clone(),
            ranges: mirror_set.ranges.clone(),
            is_alone: mirror_set.is_alone(),
            settings: self.settings.clone(),
            events: self.events.clone(),
            path,
            wanted,
        };
        let events = self.events.clone();
        let request = task.wanted.request.clone();
        tokio::spawn(async move {
            let answered = tokio::spawn(async move { task.run().await }).await;
            // APT waits for an answer to every request, even after a panic.
            let (messages, freshness) = answered.unwrap_or_else(|_| (vec![request.failed(&of_ours())], None));
            // Send this before APT gets the answer and requests dependent files.
            if let (Some(suite), Some(freshness)) = (suite, freshness) {
                let _ = events.send(Event::Learned(number, suite, freshness));
            }
            let _ = events.send(Event::Ended(number, id, messages));
        });
    }

    fn happened(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Begun(target) => match self.by_target.get(&target) {
                Some(item) => self.started(*item),
                None => Ok(()),
            },
            Event::Fetched(_, FetchEvent::Verified(item)) => {
                self.started(item)?;
                let Some(open) = self.close(item) else { return Ok(()) };
                let file = &open.file;
                let modified = modified(Path::new(&file.target));
                let hashes = ReceivedHashes::of_sha256(file.sha256, file.size);
                let finished = Finished { modified, hashes, resumed: open.resumed };
                self.apt.send(&answers::done(&file.wanted.request, &finished))
            }
            Event::Fetched(mirror_set, FetchEvent::GivenUp(given_up)) => self.given_up(mirror_set, &given_up),
            Event::Fetched(_, FetchEvent::LocalFailure(item, cause)) => {
                let Some(open) = self.close(item) else { return Ok(()) };
                self.apt.send(&open.file.wanted.request.failed(&Failure::new(cause)))
            }
            Event::Tell(mirror_set, task, message) => self.tell(mirror_set, task, vec![message], false),
            Event::Ended(mirror_set, task, messages) => self.tell(mirror_set, task, messages, true),
            Event::Learned(mirror_set, suite, freshness) => {
                self.mirror_sets[mirror_set].learn(suite, freshness);
                Ok(())
            }
            Event::Lost(mirror_set) => self.lost(mirror_set),
        }
    }

    /// Answers all files of a panicked fetcher; the next request starts another.
    fn lost(&mut self, mirror_set: usize) -> io::Result<()> {
        self.keys.retain(|_, number| *number != mirror_set);
        let items: Vec<ItemId> =
            self.open.iter().filter(|(_, open)| open.mirror_set == mirror_set).map(|(item, _)| *item).collect();
        for item in items {
            if let Some(open) = self.close(item) {
                self.apt.send(&open.file.wanted.request.failed(&of_ours()))?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, mirror_set: usize, task: TaskId, messages: Vec<Message>, is_ended: bool) -> io::Result<()> {
        let now = self.in_order.entry(mirror_set).or_default().told(task, messages, is_ended);
        now.iter().try_for_each(|message| self.apt.send(message))
    }

    /// Sends `200 URI Start` once.
    fn started(&mut self, item: ItemId) -> io::Result<()> {
        let Some(open) = self.open.get_mut(&item).filter(|open| !open.is_started) else { return Ok(()) };
        open.is_started = true;
        self.apt.send(&answers::started(&open.file.wanted.request, Some(open.file.size), open.resumed))
    }

    fn close(&mut self, item: ItemId) -> Option<Open> {
        let open = self.open.remove(&item)?;
        self.shared.files.remove(item);
        self.by_target.remove(&open.file.target);
        Some(open)
    }

    fn given_up(&mut self, number: usize, given_up: &GivenUp) -> io::Result<()> {
        let item = given_up.item;
        let Some(size) = self.open.get(&item).map(|open| open.file.size) else { return Ok(()) };
        let mirror_set = &self.mirror_sets[number];
        let host_errors = mirror_set.host_errors(given_up, size);
        let (names, phrases) = (mirror_set.names.clone(), phrases(&mirror_set.watch));
        let is_wrong = |wrong: fn(&HostError) -> bool| host_errors.iter().any(|(_, host_error)| wrong(host_error));
        let has_wrong_bytes = is_wrong(|host_error| matches!(host_error, HostError::WrongBytes));
        let has_wrong_size = is_wrong(|host_error| matches!(host_error, HostError::WrongSize(_)));
        if has_wrong_bytes || has_wrong_size {
            // The server has a file, as APT's own method reports before it checks it.
            self.started(item)?;
        }
        let Some(open) = self.close(item) else { return Ok(()) };
        let wanted = &open.file.wanted;
        if has_wrong_bytes && names.len() == 1 {
            self.show_wrong_bytes(wanted.clone(), number, open.file.path.clone());
            return Ok(());
        }
        if has_wrong_size {
            leave_failed(&wanted.target);
        }
        self.apt.send(&refusal(&self.settings, wanted, &names, &phrases, &host_errors))
    }
}

/// APT renames a wrong file to `NAME.FAILED`. A file that was refused by its size was not written; an empty file stands
/// for it, as with APT's own method.
fn leave_failed(target: &Path) {
    if !target.exists() {
        // If it cannot be made, the answer already says enough.
        let _ = plain::write(target, b"", None);
    }
}

/// The failure after a panic.
fn of_ours() -> Failure {
    Failure::new("an error of fullbore's method; APT may ask again")
}

/// Each host's own texts for HTTP statuses.
fn phrases(watch: &Watch) -> Vec<Phrases> {
    watch.hosts().into_iter().map(|host| host.phrases).collect()
}

/// The answer for a file that no host sent: a redirect of the host that APT named, which APT follows, or a failure.
fn refusal(
    settings: &Settings,
    wanted: &WantedFile,
    names: &[String],
    phrases: &[Phrases],
    host_errors: &[(HostId, HostError)],
) -> Message {
    let redirected = host_errors.iter().find_map(|(host, host_error)| match host_error {
        HostError::Redirected(to) if *host == 0 && settings.follows_redirects(&wanted.url) => Some(to),
        _ => None,
    });
    match redirected {
        Some(location) => redirects::answer(settings, wanted, location),
        None => wanted.request.failed(&answers::failure(names, phrases, host_errors, wanted.is_of_release())),
    }
}

/// A task for a file of unknown hash or size.
struct Task {
    id: TaskId,
    mirror_set: usize,
    wanted: WantedFile,
    path: String,
    hosts: Vec<HostId>,
    names: Vec<String>,
    watch: Watch,
    is_alone: bool,
    /// Whether APT got `200 URI Start`.
    is_started: bool,
    ranges: Arc<AtomicBool>,
    settings: Arc<Settings>,
    events: mpsc::UnboundedSender<Event>,
}

impl Task {
    async fn run(&self) -> (Vec<Message>, Option<Freshness>) {
        match self.wanted.kind {
            Kind::Release { limit_bytes } if !self.is_alone => self.release(limit_bytes).await,
            Kind::Release { limit_bytes } | Kind::Plain { limit_bytes } => {
                self.plain(limit_bytes, self.wanted.request.expected_size()).await
            }
            Kind::Known { size, .. } => self.plain(size, Some(size)).await,
        }
    }

    fn get(&self, limit_bytes: u64, since: Option<i64>) -> Get {
        Get {
            path: self.path.clone(),
            limit_bytes,
            if_modified_since: since,
            fields: self.settings.fields(&self.wanted),
            ..Get::default()
        }
    }

    async fn plain(&self, limit_bytes: u64, size: Option<u64>) -> (Vec<Message>, Option<Freshness>) {
        let request = &self.wanted.request;
        let mut on_start = |size: Option<u64>, resumed: u64| {
            if !self.is_started {
                let started = answers::started(request, size, resumed);
                let _ = self.events.send(Event::Tell(self.mirror_set, self.id, started));
            }
        };
        // An index is small, and has the archive's time: a partial one is fetched anew.
        let is_resumable = !self.wanted.is_index && !plain::is_special(&self.wanted.target);
        let must = Requirements { limit_bytes, size, expected: self.wanted.expected.clone(), is_resumable };
        let is_release = matches!(self.wanted.kind, Kind::Release { .. });
        let check = self.settings.date_check(SystemTime::now());
        // No condition if APT's own file is dated in the future.
        let is_future = is_release
            && read_partial(&self.wanted.target, must.limit_bytes)
                .is_some_and(|own| check.future(LocalRelease::new(own).date).is_some());
        let get = self.get(must.limit_bytes, self.wanted.last_modified.filter(|_| !is_future));
        let patience = self.settings.timeout(&self.wanted.url);
        let path = &self.wanted.target;
        let way = Way { watch: &self.watch, get: &get, path, patience, ranges: &self.ranges };
        let answer = match plain::fetch(way, &self.hosts, &must, &mut on_start).await {
            Plain::Done(finished) => answers::done(request, &finished),
            Plain::Unchanged => self.unchanged(),
            Plain::Failed(host_errors) => self.refusal(&host_errors),
            Plain::Local(error) => request.failed(&Failure::new(error)),
        };
        (vec![answer], None)
    }

    async fn release(&self, limit_bytes: u64) -> (Vec<Message>, Option<Freshness>) {
        let request = &self.wanted.request;
        let check = self.settings.date_check(SystemTime::now());
        let known = self
            .wanted
            .last_modified
            .and_then(|_| read_partial(&self.wanted.target, limit_bytes))
            .map(LocalRelease::new);
        // A file dated in the future must not count as newest.
        let known = known.filter(|known| check.future(known.date).is_none());
        let since =
            known.as_ref().zip(self.wanted.last_modified).map(|(known, modified)| known.if_modified_since(modified));
        let get = self.get(limit_bytes, since);
        let acceptance = Acceptance { is_inline: self.wanted.is_inrelease(), latest: check.latest() };
        let local = known.as_ref().map(|known| known.content.as_slice());
        let check = self.settings.release_check(&self.wanted, local, SystemTime::now());
        if check.is_none() {
            tracing::debug!(uri = request.uri, "only the origin is asked: no key is known");
        }
        let (newest, freshness) =
            releases::newest(&self.watch, &self.hosts, &get, known.as_ref(), acceptance, check).await;
        let messages = match newest {
            Newest::Content { host, body, modified } => {
                tracing::debug!(uri = request.uri, from = self.names.get(usize::from(host)), "newest");
                let size = body.len() as u64;
                match plain::write(&self.wanted.target, &body, modified) {
                    Ok(()) => {
                        let mut hasher = self.wanted.expected.hasher();
                        hasher.update(&body);
                        let finished = Finished { modified, hashes: hasher.finish(), resumed: 0 };
                        vec![answers::started(request, Some(size), 0), answers::done(request, &finished)]
                    }
                    Err(error) => vec![request.failed(&Failure::new(error))],
                }
            }
            Newest::Unchanged => vec![self.unchanged()],
            Newest::None(host_errors) => vec![self.refusal(&host_errors)],
        };
        (messages, Some(freshness))
    }

    fn refusal(&self, host_errors: &[(HostId, HostError)]) -> Message {
        refusal(&self.settings, &self.wanted, &self.names, &phrases(&self.watch), host_errors)
    }

    fn unchanged(&self) -> Message {
        let request = &self.wanted.request;
        // A leftover of an earlier run is useless.
        if !plain::is_special(&self.wanted.target) {
            let _ = std::fs::remove_file(&self.wanted.target);
        }
        answers::unchanged(request, self.wanted.last_modified)
    }
}

/// APT's own copy of a requested file: one directory above `partial`.
fn read_partial(partial: &Path, limit_bytes: u64) -> Option<Vec<u8>> {
    let directory = partial.parent().filter(|directory| directory.ends_with("partial"))?.parent()?;
    let file = std::fs::File::open(directory.join(partial.file_name()?)).ok()?;
    let mut content = Vec::new();
    let read = io::Read::read_to_end(&mut io::Read::take(file, limit_bytes + 1), &mut content).ok()?;
    (read as u64 <= limit_bytes).then_some(content)
}

/// A file of an earlier run, if it is complete.
fn whole(path: &Path, sha256: Sha256, size: u64) -> Option<Finished> {
    let mut hasher = Sha256Hasher::new();
    hasher.read_to_end(std::fs::File::open(path).ok()?).ok()?;
    let right = hasher.verify(size, sha256).is_ok();
    let hashes = ReceivedHashes::of_sha256(sha256, size);
    right.then(|| Finished { modified: modified(path), hashes, resumed: size })
}

fn modified(path: &Path) -> Option<i64> {
    let time = std::fs::metadata(path).ok()?.modified().ok()?;
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()
}
