//! What the planner gives to workers, and what it does itself meanwhile.

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
pub struct Fleet<'a, Q> {
    queue: Q,
    run: Run,
    /// Where the planner has the files.
    directory: std::path::PathBuf,
    /// Sizes and ETags of the objects that the bucket had at the beginning, for keys of the plan.
    before: HashMap<String, (u64, String)>,
    /// What all keys begin with.
    prefix: String,
    worker: Option<fullbore_fleet::names::WorkerId>,
    runtime: &'a Runtime,
    plan: &'a Plan,
    stop: watch::Receiver<bool>,
    uploader: Uploader,
    split_bytes_min: u64,
    /// The fields that the user gave, as text.
    given: String,
    /// Uploads in parts of a planner that was killed.
    left: Mutex<Vec<Open>>,
}

impl<'a, Q: Queue> Fleet<'a, Q> {
    /// Connects to the queue, and lists the bucket. `left` are uploads in parts of an earlier planner. `None`: there is no
    /// queue, and the planner goes alone.
    ///
    /// # Errors
    /// Files that cannot be put by a fleet; a bucket that cannot be listed; no queue, where one is required.
    pub fn begin<C: Connect<Queue = Q>>(
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

    /// Puts the files of one turn, with these numbers. Gives those that are left to this machine alone.
    pub fn turn(
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
            // Its tasks are done, or left to nobody: it ends within its grace.
            let _ = self.runtime.block_on(helping);
        }
        // Each of these is asked for before it is sent.
        Arc::new(sending.with(Known::default())).send(&self.plan.objects, &doubtful, each);
        rest
    }

    /// Ends the run in the queue, and uploads that it had no use for.
    pub fn finish(&self) {
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        self.runtime.block_on(async {
            finish(&self.queue, &self.run).await;
            give_up(&self.uploader, left).await;
        });
    }

    /// The files that are to be put in parts by several machines: the largest ones.
    fn large(&self, sending: &Sending, shared: &[Shared]) -> Vec<Large> {
        let places = 0..shared.len();
        let mut places: Vec<usize> = places.filter(|at| shared[*at].item.size >= self.split_bytes_min).collect();
        places.sort_by_key(|at| std::cmp::Reverse(shared[*at].item.size));
        places.truncate(UPLOADS_MAX);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let large = |at: usize| {
            let Shared { number, item, key, replaces } = &shared[at];
            let object = self.plan.objects[*number].clone();
            // An error comes again, where it is told.
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

    /// A file that workers may store: the bucket has nothing of its size, and a task can name what is there. Others are
    /// compared by this machine, because the bucket could not tell whether a worker has compared them.
    fn share(&self, number: usize) -> Option<Shared> {
        let object = &self.plan.objects[number];
        let found = object.found.as_ref().filter(|found| !found.is_behind_a_link())?;
        let name = object.path.strip_prefix(&self.directory).ok()?.to_str()?.to_owned();
        // An error comes again, where it is told.
        let about = found.open(&object.path).ok()?.metadata().ok()?;
        let item = item(name, &about);
        let before = self.before.get(&object.key);
        let is_there = before.is_some_and(|(size, _)| *size == item.size);
        let replaces = match before {
            None => String::new(),
            // Without a condition, a worker would replace whatever is there by then.
            Some((_, tag)) if is_tag(tag) => tag.clone(),
            Some(_) => return None,
        };
        let is_taken = item.check_for(&Kind::Put).is_ok();
        (!is_there && is_taken).then(|| Shared { number, item, key: object.key.clone(), replaces: Some(replaces) })
    }

    /// The planner as a worker.
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

/// Whether a task can have this ETag: what messages allow, and no backslash, which stores read in two ways.
fn is_tag(tag: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    (1..=TAG_BYTES_MAX).contains(&tag.len()) && tag.bytes().all(is_plain)
}

/// Gives up uploads that an earlier planner left.
async fn give_up(uploader: &Uploader, left: Vec<Open>) {
    for open in left {
        uploader.go_on_with(open, (0, 1)).give_up().await;
    }
}

/// Passes the planner's news on. Gives the numbers of the files that are left: of those that are missing, and of doubtful ones.
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
                // Nobody has compared this object with the file: the listing tells its size. So it is not noted as unchanged,
                // and the next run compares it.
                let (size, etag) = (files[at].item.size, Some(etag));
                let stored = Stored { size, checksum: String::new(), confirmed: true, etag };
                each(done(at, Ok(Outcome::Elsewhere(stored))));
            }
            // Nor is this: nobody here has read what others sent.
            Ok(News::Completed { at, stored }) => each(done(at, Ok(Outcome::Elsewhere(stored)))),
            Ok(News::Failed { at, error }) => each(done(at, Err(sending.explained(&error)))),
            Ok(News::End { missing, doubtful }) => return (numbers(missing), numbers(doubtful)),
            Err(RecvTimeoutError::Timeout) => each(Heard::Nothing),
            Err(RecvTimeoutError::Disconnected) => return (Vec::new(), Vec::new()),
        }
    }
}
