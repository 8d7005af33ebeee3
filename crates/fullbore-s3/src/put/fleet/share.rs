//! What the planner gives to workers, and what it does itself meanwhile.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::run::{CommandError, ErrorKind, Events, Stop};
use fullbore_fleet::message::Run;
use fullbore_fleet::queue::Queue;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::super::PutSettings;
use super::super::known::Known;
use super::super::plan::Plan;
use super::super::send::{Done, Heard, Outcome, Sending};
use super::planner::{News, Shared, Turn, finish, tend};
use super::worker::{Bench, Served, Station};
use super::{Connect, FleetPut, announcement, item};
use crate::bucket::explain;
use crate::client::Client;
use crate::listing::{self, More};

/// A run of several machines.
pub struct Fleet<'a, Q> {
    queue: Q,
    run: Run,
    /// Where the planner has the files.
    directory: std::path::PathBuf,
    /// Sizes of the objects that the bucket had at the beginning, for keys of the plan.
    before: HashMap<String, u64>,
    /// What all keys begin with.
    prefix: String,
    worker: Option<fullbore_fleet::names::WorkerId>,
    runtime: &'a Runtime,
    plan: &'a Plan,
    stop: watch::Receiver<bool>,
}

impl<'a, Q: Queue> Fleet<'a, Q> {
    /// Connects to the queue, and lists the bucket. `None`: there is no queue, and the planner goes alone.
    ///
    /// # Errors
    /// Files that cannot be put by a fleet; a bucket that cannot be listed; no queue, where one is required.
    pub fn begin<C: Connect<Queue = Q>>(
        fleet: &FleetPut<C>,
        settings: &PutSettings,
        plan: &'a Plan,
        client: &Client,
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
                return Ok(None);
            }
        };
        let prefix = plan.prefix.clone().unwrap_or_default();
        let mut before = HashMap::new();
        let wanted: std::collections::HashSet<&str> = plan.objects.iter().map(|object| object.key.as_str()).collect();
        let listed = listing::list(client, &prefix, |page| {
            let ours = page.into_iter().filter(|object| wanted.contains(object.key.as_str()));
            before.extend(ours.map(|object| (object.key, object.size)));
            More::Yes
        });
        runtime.block_on(listed).map_err(|error| explain(&error))?;
        let worker = fleet.is_worker.then(|| fleet.worker.clone());
        Ok(Some(Fleet { queue, run, directory, before, prefix, worker, runtime, plan, stop: stop.watch() }))
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
        let files = Arc::new(shared);
        let turn = Turn { number: u32::try_from(number).unwrap_or(u32::MAX), files: Arc::clone(&files) };
        let (tell, news) = mpsc::channel();
        let (queue, run, client) = (self.queue.clone(), self.run.clone(), sending.client.clone());
        self.runtime.spawn(tend(queue, run, turn, client, self.prefix.clone(), self.stop.clone(), tell));
        let (over, is_over) = watch::channel(false);
        let helping = self.help(sending, is_over, each);
        sending.send(&self.plan.objects, &own, each);
        let rest = hear(&news, &files, each);
        over.send_replace(true);
        if let Some(helping) = helping {
            // Its tasks are done, or left to nobody: it ends within its grace.
            let _ = self.runtime.block_on(helping);
        }
        rest
    }

    /// Ends the run in the queue.
    pub fn finish(&self) {
        self.runtime.block_on(finish(&self.queue, &self.run));
    }

    /// A file that workers may store: the bucket has nothing of its size. Others are compared by this machine, because the
    /// bucket could not tell whether a worker has compared them.
    fn share(&self, number: usize) -> Option<Shared> {
        let object = &self.plan.objects[number];
        let found = object.found.as_ref().filter(|found| !found.is_behind_a_link())?;
        let name = object.path.strip_prefix(&self.directory).ok()?.to_str()?.to_owned();
        // An error comes again, where it is told.
        let about = found.open(&object.path).ok()?.metadata().ok()?;
        let item = item(name, &about);
        let is_there = self.before.get(&object.key) == Some(&item.size);
        let is_taken = item.check_for(fullbore_fleet::message::Kind::Put).is_ok();
        (!is_there && is_taken).then(|| Shared { number, item, key: object.key.clone() })
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

/// Passes the planner's news on; gives the numbers of the files that are left.
fn hear(news: &mpsc::Receiver<News>, files: &[Shared], each: &mut dyn FnMut(Heard)) -> Vec<usize> {
    loop {
        match news.recv_timeout(PROGRESS_EVERY) {
            Ok(News::Moved { files, bytes }) => each(Heard::Elsewhere(files, bytes)),
            Ok(News::Warn(line)) => each(Heard::Warning(line)),
            Ok(News::Stored { at, etag }) => {
                // Nobody has compared this object with the file: the listing tells its size. So it is not noted as unchanged,
                // and the next run compares it.
                let Shared { number, item, .. } = &files[at];
                let result = Ok(Outcome::Elsewhere { etag });
                each(Heard::Done(Done { number: *number, size: item.size, result }));
            }
            Ok(News::End { missing }) => return missing.into_iter().map(|at| files[at].number).collect(),
            Err(RecvTimeoutError::Timeout) => each(Heard::Nothing),
            Err(RecvTimeoutError::Disconnected) => return Vec::new(),
        }
    }
}
