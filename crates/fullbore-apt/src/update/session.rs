//! What an update stands on: the lists directory, and for each site connections and a landing.

use std::sync::Arc;
use std::time::Duration;

use fullbore_debian::signature;
use fullbore_engine::files::{FileError, Root};
use fullbore_engine::journal::Journal;
use fullbore_engine::landing::Landing;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events;
use fullbore_engine::stage::{Kind, Ledger, StageClock};
use fullbore_engine::target::LocalTarget;
use fullbore_wire::fetch::{Fetcher, Parts};
use fullbore_wire::hosts::HostSet;
use fullbore_wire::queue::Item;
use fullbore_wire::run::{Batch, Faults, Fetched, Job, Network, Progression, addresses, fetch_options, window};

use super::settings::UpdateSettings;

/// Where files are until they get their names; apt's, so that it clears it up.
pub const PARTIAL: &str = "partial";

/// Mode of `partial/` where we make it; apt gives it to its own user later.
const PARTIAL_MODE: u32 = 0o700;

/// What a killed run goes on from, one for each site.
const LOG_NAME: &str = ".fullbore-log";

/// A run's means.
pub struct Session {
    /// The lists directory.
    pub root: Arc<Root>,
    /// That, to be written to.
    pub target: Arc<LocalTarget>,
    /// The clocks of the stages.
    pub ledger: Ledger,
    /// Where connections live.
    pub runtime: Network,
    /// The clock of the stage "sync".
    pub sync: Arc<StageClock>,
    /// What has come.
    pub progress: Progression,
    /// In the order of the repositories' sites.
    pub sites: Vec<Site>,
    /// Sites that were taken up again; for the report.
    pub retired: Vec<Site>,
}

/// Connections to the mirrors of one address.
pub struct Site {
    /// Brings files.
    pub fetcher: Fetcher,
    /// Where they become files.
    pub landing: Landing,
    faults: Faults,
}

/// Files wanted of one site.
pub struct Batched {
    /// Which site.
    pub site: usize,
    /// What they are; numbered from 0.
    pub files: Arc<dyn Batch>,
    /// How many.
    pub count: u32,
}

impl Session {
    /// Opens everything but connections. The directory is locked already.
    pub fn open(settings: &UpdateSettings, root: Arc<Root>, sites: &[Vec<String>]) -> Result<Session, CommandError> {
        let ledger = Ledger::new();
        // The sampler first: the verdict covers set-up too.
        let progress = Progression::start(&ledger, root.path(), settings.network.record.as_deref())?;
        root.create_directory(PARTIAL, PARTIAL_MODE).map_err(|error| disk(&error))?;
        signature::sweep(root.path());
        let target = Arc::new(LocalTarget::new(root.clone(), settings.durability));
        let runtime = Network::start(&ledger)?;
        let mut session = Session {
            sync: ledger.stage("sync", Kind::Thread),
            root,
            target,
            ledger,
            runtime,
            progress,
            sites: Vec::new(),
            retired: Vec::new(),
        };
        for (number, mirrors) in sites.iter().enumerate() {
            let site = session.site(settings, number, mirrors)?;
            session.sites.push(site);
        }
        Ok(session)
    }

    fn site(&self, settings: &UpdateSettings, number: usize, mirrors: &[String]) -> Result<Site, CommandError> {
        let internal = |error: std::io::Error| CommandError::new(ErrorKind::Internal, error);
        let (urls, auth) = addresses(mirrors.iter())?;
        let window = window(urls.len(), &settings.network);
        self.ledger.watch_window(&window);
        let (sender, outcomes) = tokio::sync::mpsc::unbounded_channel();
        let journal = Journal::open(&self.root, &log_path(number), &mut |_, _| {}).map_err(|error| disk(&error))?;
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get()).min(4);
        let landing =
            Landing::start(self.target.clone(), Arc::new(journal), threads, &self.ledger, sender).map_err(internal)?;
        let mut options = fetch_options(&settings.network, auth)?;
        // A source with one mirror has as long as apt gives it; among several, the wire's own limits are stricter.
        if urls.len() == 1 {
            options.limits.silence = Duration::from_secs(settings.timeout_s());
        }
        let _inside = self.runtime.enter();
        let parts = Parts { landing: landing.clone(), outcomes, window, ledger: self.ledger.clone() };
        let fetcher = Fetcher::start(urls, options, parts);
        Ok(Site { faults: Faults::of(&fetcher), fetcher, landing })
    }

    /// Fetches files of several sites at once; `on_verified` hears of each by its batch and number.
    pub fn fetch(
        &mut self,
        batches: &[Batched],
        stop: &Stop,
        events: &mut dyn Events,
        on_verified: &mut (dyn FnMut(usize, u32) + Send),
    ) -> Result<Vec<Fetched>, CommandError> {
        let mut jobs: Vec<Option<Job<'_>>> = batches.iter().map(|_| None).collect();
        for (number, site) in self.sites.iter_mut().enumerate() {
            let Some(place) = batches.iter().position(|batch| batch.site == number) else { continue };
            let batch = &batches[place];
            let items = (0..batch.count).map(|id| {
                let spec = batch.files.spec(id);
                let present = site.landing.present(&spec.path, spec.size, spec.sha256);
                Item { id, size: spec.size, present, excluded: HostSet::default() }
            });
            jobs[place] = Some(Job {
                batch: batch.files.clone(),
                items: items.collect(),
                fetcher: &mut site.fetcher,
                landing: &site.landing,
                faults: &mut site.faults,
            });
        }
        let jobs = jobs.into_iter().flatten().collect();
        self.progress.fetch(&self.runtime, jobs, stop, events, on_verified)
    }

    /// Takes up sites whose hosts all are out although they have answered: what was wrong with patches
    /// need not be wrong with whole files, and there is nobody else to ask.
    pub fn renew(&mut self, settings: &UpdateSettings, mirrors: &[Vec<String>]) -> Result<(), CommandError> {
        for (number, mirrors) in mirrors.iter().enumerate() {
            let hosts = self.sites[number].fetcher.hosts();
            let dead = hosts.iter().all(|host| host.out.is_some());
            if !dead || hosts.iter().all(|host| host.totals.received_bytes == 0) {
                continue;
            }
            self.sites[number].finish()?;
            let fresh = self.site(settings, number, mirrors)?;
            self.retired.push(std::mem::replace(&mut self.sites[number], fresh));
        }
        Ok(())
    }

    /// Ends the landings and takes their logs away: nothing is unfinished.
    pub fn close(&mut self) -> Result<(), CommandError> {
        for (number, site) in self.sites.iter_mut().enumerate() {
            site.finish()?;
            self.root.unlink(&log_path(number)).map_err(|error| disk(&error))?;
        }
        Ok(())
    }

    /// Ends the landings; what is unfinished stays for the next run.
    pub fn break_off(&mut self) {
        for site in &mut self.sites {
            if let Err(error) = site.finish() {
                tracing::warn!("{error}");
            }
        }
    }
}

impl Site {
    /// Ends the connections and then the landing.
    fn finish(&mut self) -> Result<(), CommandError> {
        self.fetcher.halt();
        self.landing.finish().map_err(|error| disk(&error))
    }
}

fn log_path(number: usize) -> String {
    format!("{PARTIAL}/{LOG_NAME}-{number}")
}

/// A failure to do with the lists directory.
pub fn disk(error: &dyn std::error::Error) -> CommandError {
    let error = CommandError::new(ErrorKind::Disk, error);
    error.hint("the indexes as they were before are intact; run again when this is mended")
}

/// The same of a file.
pub fn file(error: FileError) -> CommandError {
    disk(&error)
}
