//! The resources of an update: the lists directory, and a site for each address.

use std::sync::Arc;
use std::time::Duration;

use fullbore_debian::signature;
use fullbore_engine::files::{FileError, Root};
use fullbore_engine::journal::Journal;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events;
use fullbore_engine::stage::{Kind, Ledger, StageClock};
use fullbore_engine::target::LocalTarget;
use fullbore_wire::run::{Fetched, FileList, Job, Network, Progression, Site, SiteParts, site};

use super::settings::UpdateSettings;

/// The directory of unpublished files; apt's own, so that apt cleans it too.
pub(super) const PARTIAL: &str = "partial";

/// Mode of a new `partial/`; apt changes its owner later.
const PARTIAL_MODE: u32 = 0o700;

/// Largest number of writing threads of one site; there are several sites. A guess.
const THREADS_MAX: usize = 4;

/// The journal of each site, for the next run if this one is killed.
const LOG_NAME: &str = ".fullbore-log";

/// A run's directories, connections and clocks.
pub(super) struct Session {
    /// The lists directory, held open.
    pub root: Arc<Root>,
    /// Writes files below the lists directory.
    pub target: Arc<LocalTarget>,
    /// Stage clocks of the run.
    pub ledger: Ledger,
    /// The runtime for all connections.
    pub runtime: Network,
    /// The clock of the stage "sync".
    pub sync: Arc<StageClock>,
    /// Files and bytes so far, and the sampler.
    pub progression: Progression,
    /// The sites, by their numbers in the repositories.
    pub sites: Vec<Site>,
    /// Sites that were replaced, for the report.
    pub retired: Vec<Site>,
}

/// Files to fetch from one site.
pub(super) struct Batch {
    /// Number of the site that has the files.
    pub site: usize,
    /// The files to fetch.
    pub files: Arc<FileList>,
}

impl Session {
    /// Opens everything but connections. The directory is locked already.
    ///
    /// # Errors
    ///
    /// `Disk` if `partial/` or a journal cannot be created, `Internal` if the system cannot start threads, `Usage` for
    /// addresses, proxies or certificates that cannot be used.
    pub(super) fn open(
        settings: &UpdateSettings,
        root: Arc<Root>,
        sites: &[Vec<String>],
    ) -> Result<Session, CommandError> {
        let ledger = Ledger::new();
        // The sampler first: the verdict covers set-up too.
        let progression = Progression::start(&ledger, root.path(), settings.network.record.as_deref())?;
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
            progression,
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
        let (urls, mut options) = site(mirrors.iter(), &settings.network)?;
        let journal = Journal::open(&self.root, &log_path(number), &mut |_, _| {}).map_err(|error| disk(&error))?;
        // apt's timeout holds for a single mirror; with several, the stricter default.
        if urls.len() == 1 {
            options.limits.silence = Duration::from_secs(settings.timeout_s());
        }
        let (runtime, ledger, network) = (&*self.runtime, &self.ledger, &settings.network);
        let parts = SiteParts { runtime, ledger, network, threads_max: THREADS_MAX };
        Site::open(urls, options, self.target.clone(), Arc::new(journal), &parts)
    }

    /// Fetches files of several sites at once. `on_verified` gets the batch and the number of each finished file.
    ///
    /// # Errors
    ///
    /// `Disk` if files cannot be written, `Interrupted` if a signal ends the run. Files that no host sent are in the
    /// result.
    pub(super) fn fetch(
        &mut self,
        batches: &[Batch],
        stop: &Stop,
        events: &mut dyn Events,
        on_verified: &mut (dyn FnMut(usize, u32) + Send),
    ) -> Result<Vec<Fetched>, CommandError> {
        let mut jobs: Vec<Option<Job<'_>>> = batches.iter().map(|_| None).collect();
        for (number, site) in self.sites.iter_mut().enumerate() {
            let Some(position) = batches.iter().position(|batch| batch.site == number) else { continue };
            jobs[position] = Some(site.job_of(&batches[position].files));
        }
        let jobs = jobs.into_iter().flatten().collect();
        self.progression.fetch(&self.runtime, jobs, stop, events, on_verified)
    }

    /// Replaces sites whose hosts have all been dropped although they answered: wrong patches do not mean wrong whole
    /// files.
    ///
    /// # Errors
    ///
    /// `Disk` if a site's journal cannot be finished or opened, `Internal` if the system cannot start threads.
    pub(super) fn renew(&mut self, settings: &UpdateSettings, mirrors: &[Vec<String>]) -> Result<(), CommandError> {
        for (number, mirrors) in mirrors.iter().enumerate() {
            let hosts = self.sites[number].fetcher.hosts();
            let dead = hosts.iter().all(|host| host.out.is_some());
            if !dead || hosts.iter().all(|host| host.totals.received_bytes == 0) {
                continue;
            }
            finish(&mut self.sites[number])?;
            let fresh = self.site(settings, number, mirrors)?;
            self.retired.push(std::mem::replace(&mut self.sites[number], fresh));
        }
        Ok(())
    }

    /// Ends the sites and removes their journals, as no file is unfinished.
    ///
    /// # Errors
    ///
    /// `Disk` if a journal cannot be finished or removed.
    pub(super) fn close(&mut self) -> Result<(), CommandError> {
        for (number, site) in self.sites.iter_mut().enumerate() {
            finish(site)?;
            self.root.unlink(&log_path(number)).map_err(|error| disk(&error))?;
        }
        Ok(())
    }

    /// Ends the sites; unfinished files stay for the next run.
    pub(super) fn break_off(&mut self) {
        for site in &mut self.sites {
            if let Err(error) = finish(site) {
                tracing::warn!("{error}");
            }
        }
    }
}

/// Ends the connections and then the landing.
fn finish(site: &mut Site) -> Result<(), CommandError> {
    site.fetcher.halt();
    site.landing.finish().map_err(|error| disk(&error))
}

fn log_path(number: usize) -> String {
    format!("{PARTIAL}/{LOG_NAME}-{number}")
}

/// The command error for an error of the lists directory.
pub(super) fn disk(error: &dyn std::error::Error) -> CommandError {
    let error = CommandError::new(ErrorKind::Disk, error);
    error.hint("repair this and run again; the previous indexes are intact")
}

/// The command error for an error of a file in the lists directory.
pub(super) fn file(error: FileError) -> CommandError {
    disk(&error)
}
