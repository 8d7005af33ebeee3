//! Divides the work between the workers and the planner itself.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};

use fullbore_engine::files::identity::Identity;
use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::run::{CommandError, ErrorKind, Events, Stop};
use fullbore_fleet::message::{Kind, Run, TAG_BYTES_MAX};
use fullbore_fleet::queue::Queue;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::super::PutSettings;
use super::super::known::Known;
use super::super::plan::Plan;
use super::super::send::{Done, Heard, Outcome, Sending};
use super::planner::{News, Shared, Turn, finish, tend};
use super::split::{Large, UPLOADS_MAX};
use super::worker::{Bench, Served, Station};
use super::{Connect, FleetPut, announcement, given, item};
use crate::bucket::explain;
use crate::journal::Open;
use crate::listing;
use crate::mtime;
use crate::upload::{Stored, Uploader};

/// A run of several machines.
pub(crate) struct Fleet<'a, Q> {
    queue: Q,
    run: Run,
    /// Directory of the files on the planner's machine.
    directory: std::path::PathBuf,
    /// Sizes and ETags of the objects that the bucket had in the beginning, for keys of the plan.
    before: HashMap<String, (u64, String)>,
    /// Prefix of all keys.
    prefix: String,
    worker: Option<fullbore_fleet::names::WorkerId>,
    runtime: &'a Runtime,
    plan: &'a Plan,
    stop: watch::Receiver<bool>,
    uploader: Uploader,
    split_bytes_min: u64,
    /// The user's fields as text.
    given: String,
    /// Multipart uploads of a killed planner.
    left: Mutex<Vec<Open>>,
}

impl<'a, Q: Queue> Fleet<'a, Q> {
    /// Connects to the queue, and lists the bucket. `left` are multipart uploads of an earlier planner. `None` if there
    /// is no queue, so that the planner works alone.
    ///
    /// # Errors
    /// A [`CommandError`] if the files cannot be uploaded by several machines, the bucket cannot be listed, or a
    /// required queue cannot be reached.
    pub(crate) fn begin<C: Connect<Queue = Q>>(
        fleet: &FleetPut<C>,
        settings: &PutSettings,
        plan: &'a Plan,
        (uploader, left): (&Uploader, Vec<Open>),
        runtime: &'a Runtime,
        stop: &Stop,
        events: &mut dyn Events,
    ) -> Result<Option<Fleet<'a, Q>>, CommandError> {
        let (run, directory) = announcement(settings, &fleet.machine)?;
        let queue = match runtime.block_on(fleet.queue.connect()) {
            Ok(queue) => queue,
            Err(error) if fleet.requires_workers || error.kind != ErrorKind::Network => return Err(error),
            Err(error) => {
                events.warn(format!("{}; this machine puts all files", error.message));
                runtime.block_on(give_up(uploader, left));
                return Ok(None);
            }
        };
        let prefix = plan.prefix.clone().unwrap_or_default();
        let wanted: HashSet<&str> = plan.objects.iter().map(|object| object.key.as_str()).collect();
        let keys = wanted.iter().copied().collect();
        let listed = runtime.block_on(listing::list_expecting(&uploader.client, &prefix, keys));
        let listed = listed.map_err(|error| explain(&error))?;
        let ours = listed.into_iter().filter(|object| wanted.contains(object.key.as_str()));
        let before = ours.map(|object| (object.key, (object.size, object.etag))).collect();
        let worker = fleet.is_worker.then(|| fleet.worker.clone());
        Ok(Some(Fleet {
            queue,
            run,
            directory,
            before,
            prefix,
            worker,
            runtime,
            plan,
            stop: stop.watch(),
            uploader: uploader.clone(),
            split_bytes_min: fleet.split_bytes_min,
            given: given(settings)?,
            left: Mutex::new(left),
        }))
    }

    /// Uploads the files of one turn. Returns the numbers of those that this machine must upload alone.
    pub(crate) fn turn(
        &self,
        sending: &Arc<Sending>,
        number: usize,
        numbers: Vec<usize>,
        each: &mut dyn FnMut(Heard),
    ) -> Vec<usize> {
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        for number in numbers {
            match self.share(number) {
                Some(file) => shared.push(file),
                None => own.push(number),
            }
        }
        if shared.is_empty() {
            return own;
        }
        let large = self.large(sending, &shared);
        let files = Arc::new(shared);
        let turn = Turn { number: u32::try_from(number).unwrap_or(u32::MAX), files: Arc::clone(&files), large };
        let (tell, news) = mpsc::channel();
        let (queue, run, uploader) = (self.queue.clone(), self.run.clone(), self.uploader.clone());
        self.runtime.spawn(tend(queue, run, turn, uploader, self.prefix.clone(), self.stop.clone(), tell));
        let (over, is_over) = watch::channel(false);
        let helping = self.help(sending, is_over, each);
        sending.send(&self.plan.objects, &own, each);
        let (rest, doubtful) = hear(&news, &files, sending, each);
        over.send_replace(true);
        if let Some(helping) = helping {
            // Its tasks are done, or left to nobody: it ends within its grace period.
            let _ = self.runtime.block_on(helping);
        }
        // Each of these is looked up before it is sent.
        Arc::new(sending.with(Known::default())).send(&self.plan.objects, &doubtful, each);
        rest
    }

    /// Ends the run in the queue, and aborts uploads that were not used.
    pub(crate) fn finish(&self) {
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        self.runtime.block_on(async {
            finish(&self.queue, &self.run).await;
            give_up(&self.uploader, left).await;
        });
    }

    /// The files that several machines upload in parts: the largest ones.
    fn large(&self, sending: &Sending, shared: &[Shared]) -> Vec<Large> {
        let places = 0..shared.len();
        let mut places: Vec<usize> = places.filter(|at| shared[*at].item.size >= self.split_bytes_min).collect();
        places.sort_by_key(|at| std::cmp::Reverse(shared[*at].item.size));
        places.truncate(UPLOADS_MAX);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let large = |at: usize| {
            let Shared { number, item, key, replaces } = &shared[at];
            let object = self.plan.objects[*number].clone();
            // An error will occur again, where it is reported.
            let about = object.found.as_ref()?.open(&object.path).ok()?.metadata().ok()?;
            let of_this = left.iter().position(|open| open.key == *key);
            Some(Large {
                at,
                item: item.clone(),
                identity: Identity::of(&about),
                replaces: replaces.clone(),
                fields: sending.fields(key, mtime::of_file(&about)),
                given: self.given.clone(),
                left: of_this.map(|place| left.swap_remove(place)),
                object,
            })
        };
        places.into_iter().filter_map(large).collect()
    }

    /// A file that workers may upload: the bucket has no object of its size, and a task can name the existing object.
    /// Others are compared by this machine, because the bucket could not show whether a worker has compared them.
    fn share(&self, number: usize) -> Option<Shared> {
        let object = &self.plan.objects[number];
        let found = object.found.as_ref().filter(|found| !found.is_behind_a_link())?;
        let name = object.path.strip_prefix(&self.directory).ok()?.to_str()?.to_owned();
        // An error will occur again, where it is reported.
        let about = found.open(&object.path).ok()?.metadata().ok()?;
        let item = item(name, &about);
        let before = self.before.get(&object.key);
        let is_there = before.is_some_and(|(size, _)| *size == item.size);
        let replaces = match before {
            None => String::new(),
            // Without a condition, a worker would replace whatever exists by then.
            Some((_, tag)) if is_tag(tag) => tag.clone(),
            Some(_) => return None,
        };
        let is_taken = item.check_for(&Kind::Put).is_ok();
        (!is_there && is_taken).then(|| Shared { number, item, key: object.key.clone(), replaces: Some(replaces) })
    }

    /// Runs the planner as a worker.
    fn help(
        &self,
        sending: &Arc<Sending>,
        over: watch::Receiver<bool>,
        each: &mut dyn FnMut(Heard),
    ) -> Option<tokio::task::JoinHandle<Served>> {
        let worker = self.worker.clone()?;
        let with = |known| Arc::new(sending.with(known));
        let (direct, asking) = (with(Known::overwrite()), with(Known::default()));
        let bench = match Bench::open(&self.directory, Path::new(""), &self.run, direct, asking) {
            Ok(bench) => bench,
            Err(error) => {
                each(Heard::Warning(error.to_string()));
                return None;
            }
        };
        let (queue, run) = (self.queue.clone(), self.run.id.clone());
        Some(self.runtime.spawn(async move { Station::new(queue, run, worker, bench).work(over).await }))
    }
}

/// Whether a task can contain this ETag: messages allow it, and it has no backslash, which stores read in two ways.
fn is_tag(tag: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    (1..=TAG_BYTES_MAX).contains(&tag.len()) && tag.bytes().all(is_plain)
}

/// Aborts uploads that an earlier planner left.
async fn give_up(uploader: &Uploader, left: Vec<Open>) {
    for open in left {
        uploader.go_on_with(open, (0, 1)).give_up().await;
    }
}

/// Passes the planner's news on. Returns the numbers of missing files and of doubtful ones.
fn hear(
    news: &mpsc::Receiver<News>,
    files: &[Shared],
    sending: &Sending,
    each: &mut dyn FnMut(Heard),
) -> (Vec<usize>, Vec<usize>) {
    let numbers = |places: Vec<usize>| places.into_iter().map(|at| files[at].number).collect();
    let done = |at: usize, result| {
        let Shared { number, item, .. } = &files[at];
        Heard::Done(Done { number: *number, size: item.size, result })
    };
    loop {
        match news.recv_timeout(PROGRESS_EVERY) {
            Ok(News::Moved { files, bytes }) => each(Heard::Elsewhere(files, bytes)),
            Ok(News::Warn(line)) => each(Heard::Warning(line)),
            Ok(News::Stored { at, etag }) => {
                // Nobody has compared this object with the file: the listing gives only its size. So it is not recorded
                // as unchanged, and the next run compares it.
                let (size, etag) = (files[at].item.size, Some(etag));
                let stored = Stored { size, checksum: String::new(), confirmed: true, etag };
                each(done(at, Ok(Outcome::Elsewhere(stored))));
            }
            // Not recorded either: this machine has not read the parts that others sent.
            Ok(News::Completed { at, stored }) => each(done(at, Ok(Outcome::Elsewhere(stored)))),
            Ok(News::Failed { at, error }) => each(done(at, Err(sending.explained(&error)))),
            Ok(News::End { missing, doubtful }) => return (numbers(missing), numbers(doubtful)),
            Err(RecvTimeoutError::Timeout) => each(Heard::Nothing),
            Err(RecvTimeoutError::Disconnected) => return (Vec::new(), Vec::new()),
        }
    }
}
