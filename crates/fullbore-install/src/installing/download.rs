//! Fetches package files into the root's archives directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_apt::acquire::percent_decode;
use fullbore_apt::http::{MirrorPath, MirrorSets};
use fullbore_debian::path;
use fullbore_engine::digest::{Sha256, Sha256Hasher};
use fullbore_engine::durability::Durability;
use fullbore_engine::files::Root;
use fullbore_engine::journal::Journal;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Event, Events, Phase, Plan};
use fullbore_engine::run::report::{Summary, Timeline, Totals};
use fullbore_engine::stage::Ledger;
use fullbore_engine::target::LocalTarget;
use fullbore_wire::auth::{AuthConf, Credentials};
use fullbore_wire::fetch::Catalogue as _;
use fullbore_wire::queue::ItemId;
use fullbore_wire::run::refusals::{Hosts, is_wrong};
use fullbore_wire::run::{
    FileList, NetworkSettings, Progression, RemoteFile, Site, SiteParts, add_transfers, fetch_options, network_runtime,
};
use fullbore_wire::url::without_credentials;
use fullbore_wire::url::{Url, UrlError};

use super::log::removed;
use crate::nosync::session::Session;
use crate::resolve::Wanted;
use crate::unpack::ReadAhead;

/// Largest number of writing threads of one site; there are several sites. A guess.
const THREADS_MAX: usize = 4;

/// Interval between kills of running commands after a signal.
const KILL_EVERY: Duration = Duration::from_millis(100);

/// Downloads package files into the archives directory.
pub(crate) struct Downloads {
    archives: PathBuf,
    root: Arc<Root>,
    ledger: Ledger,
    runtime: tokio::runtime::Runtime,
    progress: Progression,
    network: NetworkSettings,
    /// Sets of mirrors with the same files.
    mirrors: MirrorSets,
    sites: Vec<NamedSite>,
    totals: Totals,
    ahead: Option<Arc<ReadAhead>>,
}

/// A site, and how apt's sources name it.
struct NamedSite {
    /// Addresses of the site; the first is the one in apt's sources.
    addresses: Vec<Url>,
    /// Credentials for the first address, from apt's sources.
    credentials: Option<Credentials>,
    site: Site,
}

impl Downloads {
    /// Creates the directory `archives` for the files and starts the clocks of the verdict. A file below a mirror is
    /// fetched from all mirrors of its set.
    ///
    /// # Errors
    /// `Disk` if the directory cannot be created, `Internal` if the network thread cannot be started.
    pub(crate) fn open(
        archives: &Path,
        network: &NetworkSettings,
        mirrors: MirrorSets,
        ledger: &Ledger,
    ) -> Result<Downloads, CommandError> {
        let root = Arc::new(Root::create(archives).map_err(|error| CommandError::new(ErrorKind::Disk, error))?);
        Ok(Downloads {
            archives: archives.to_owned(),
            root,
            ledger: ledger.clone(),
            runtime: network_runtime(ledger)?,
            progress: Progression::start(ledger, archives, network.record.as_deref())?,
            network: network.clone(),
            mirrors,
            sites: Vec::new(),
            totals: Totals::default(),
            ahead: None,
        })
    }

    /// Replaces the network settings for sites that are opened from now on.
    pub(crate) fn reach_by(&mut self, network: NetworkSettings) {
        self.network = network;
    }

    /// Passes each complete file to `ahead`.
    pub(crate) fn decompress_ahead(&mut self, ahead: Arc<ReadAhead>) {
        self.ahead = Some(ahead);
    }

    /// Listens for signals that stop the run.
    pub(crate) fn listen(&self) -> Stop {
        Stop::listen(&self.runtime)
    }

    /// Listens for signals, which also kill running commands.
    pub(crate) fn stop(&self, session: &Arc<Session>) -> Stop {
        stop_with(&self.runtime, session)
    }

    /// Fetches missing files. On success every file has the right content.
    ///
    /// # Errors
    /// `Verification` for a wrong hash or size, `Network` if a file cannot be fetched, `Disk` if it cannot be written,
    /// and `Interrupted` if a signal arrived.
    pub(crate) fn fetch(
        &mut self,
        wanted: &[Wanted],
        stop: &Stop,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let mut by_site: BTreeMap<usize, Vec<RemoteFile>> = BTreeMap::new();
        for wanted in wanted {
            let is_there = self.is_there(wanted)?;
            let local = local(&wanted.uri).filter(|_| !is_there);
            if let Some(path) = &local {
                self.copy(path, wanted)?;
            }
            if is_there || local.is_some() {
                self.totals.kept_files += 1;
                self.totals.kept_bytes += wanted.size;
                if let Some(ahead) = &self.ahead {
                    ahead.add(&self.archives.join(&wanted.file_name), wanted.size, wanted.sha256);
                }
                continue;
            }
            let (site, path) = self.site_of(&wanted.uri)?;
            let target = wanted.file_name.clone();
            let file = RemoteFile { path, other_path: None, target, size: wanted.size, sha256: wanted.sha256 };
            by_site.entry(site).or_default().push(file);
        }
        let all = by_site.values().flatten();
        let (files, bytes) = all.fold((0, 0), |(files, bytes), file| (files + 1, bytes + file.size));
        if files == 0 {
            return Ok(());
        }
        events.emit(Event::Plan(Plan { fetch_files: files, fetch_bytes: bytes, ..Plan::default() }));
        let (mut jobs, mut batches, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        for (number, site) in self.sites.iter_mut().enumerate() {
            let Some(files) = by_site.remove(&number) else { continue };
            let files = Arc::new(FileList(files));
            jobs.push(site.site.job_of(&files));
            batches.push(files);
            numbers.push(number);
        }
        let (ahead, archives) = (self.ahead.clone(), self.archives.clone());
        let mut came = |batch: usize, item: ItemId| {
            let file = &batches[batch].0[item as usize];
            if let Some(ahead) = &ahead {
                ahead.add(&archives.join(&file.target), file.size, file.sha256);
            }
        };
        let fetched = self.progress.fetch(&self.runtime, jobs, stop, events, &mut came)?;
        for ((batch, number), fetched) in batches.iter().zip(numbers).zip(fetched) {
            // Only one failure is reported. A file with wrong content says more than a missing one.
            let wrong = fetched.given_up.iter().find(|given_up| is_wrong(given_up));
            if let Some(given_up) = wrong.or(fetched.given_up.first()) {
                let kind = if wrong.is_some() { ErrorKind::Verification } else { ErrorKind::Network };
                let path = batch.path(given_up.item);
                let what = if given_up.missing { format!("{path} is missing") } else { format!("cannot fetch {path}") };
                let error = CommandError::new(kind, what)
                    .context(Hosts::of(&self.sites[number].site.fetcher.hosts()).why(given_up));
                return Err(error.hint("run again: the mirror may be updating"));
            }
        }
        Ok(())
    }

    /// Index of the site of a file, and the path of the file there.
    fn site_of(&mut self, uri: &str) -> Result<(usize, String), CommandError> {
        let wrong = |error: UrlError| CommandError::usage(format_args!("{}: {error}", without_credentials(uri)));
        if uri.starts_with(S3) {
            return Err(CommandError::usage(format_args!("{uri}: packages are not fetched from buckets here")).hint(
                "mirror the archive with `fullbore mirror --from s3://BUCKET/PREFIX --to DIR`, and name file:DIR as source",
            ));
        }
        let (url, credentials) = Url::parse_with_userinfo(uri).map_err(wrong)?;
        let (addresses, path) = match self.mirrors.find(&url) {
            Some(MirrorPath { set, member, path }) => (self.mirrors.origin_first(set, member), path),
            None => {
                let root = Url::parse(&format!("{}://{}/", url.scheme().as_str(), url.host_field())).map_err(wrong)?;
                (vec![root], url.target().trim_start_matches('/').to_owned())
            }
        };
        let same = |site: &NamedSite| site.addresses.contains(&addresses[0]) && site.credentials == credentials;
        let place = match self.sites.iter().position(same) {
            Some(place) => place,
            None => {
                let site = self.open_site(addresses, credentials)?;
                self.sites.push(site);
                self.sites.len() - 1
            }
        };
        Ok((place, in_one_spelling(percent_decode(&path))))
    }

    fn open_site(&self, addresses: Vec<Url>, credentials: Option<Credentials>) -> Result<NamedSite, CommandError> {
        let mut auth = AuthConf::new();
        if let Some(credentials) = &credentials {
            auth.add_for_url(&addresses[0], credentials).map_err(CommandError::usage)?;
        }
        auth.extend(self.mirrors.auth());
        // These files are removed in the end, and complete roots are synced as a whole.
        let target = Arc::new(LocalTarget::new(self.root.clone(), Durability::None));
        let options = fetch_options(&self.network, auth)?;
        let (runtime, ledger, network) = (&self.runtime, &self.ledger, &self.network);
        let parts = SiteParts { runtime, ledger, network, threads_max: THREADS_MAX };
        let site = Site::open(addresses.clone(), options, target, Arc::new(Journal::none()), &parts)?;
        Ok(NamedSite { addresses, credentials, site })
    }

    /// Whether an earlier run left the file with the right content. A wrong file is removed.
    fn is_there(&self, wanted: &Wanted) -> Result<bool, CommandError> {
        let path = self.archives.join(&wanted.file_name);
        let Ok(status) = path.symlink_metadata() else { return Ok(false) };
        if status.is_file() && status.len() == wanted.size && hash_of(&path)? == wanted.sha256 {
            return Ok(true);
        }
        std::fs::remove_file(&path).map_err(|error| CommandError::cannot("remove", &path, &error))?;
        Ok(false)
    }

    /// Copies a file of this machine: it may change, and programs in the root cannot read it.
    fn copy(&self, from: &Path, wanted: &Wanted) -> Result<(), CommandError> {
        let to = self.archives.join(&wanted.file_name);
        let part = self.archives.join(part_name(&wanted.file_name));
        let disk = |error: std::io::Error| CommandError::cannot("write", &to, &error);
        // Left by a run that was killed; never through a link of this name.
        removed(&part)?;
        let mut file = std::fs::File::create_new(&part).map_err(disk)?;
        let mut source = std::fs::File::open(from).map_err(|error| CommandError::cannot("read", from, &error))?;
        std::io::copy(&mut source, &mut file).map_err(disk)?;
        let hash = hash_of(&part)?;
        if hash != wanted.sha256 {
            let what = format!("{}: SHA-256 {hash}, index says {}", from.display(), wanted.sha256);
            return Err(CommandError::new(ErrorKind::Verification, what));
        }
        std::fs::rename(&part, &to).map_err(disk)
    }

    /// Ends the writing threads, and waits until they have written all data.
    ///
    /// # Errors
    /// `Disk` if a write failed.
    pub(crate) fn finish(&self) -> Result<(), CommandError> {
        for site in &self.sites {
            site.site.landing.finish().map_err(|error| {
                CommandError::new(ErrorKind::Disk, format_args!("{}: {error}", self.archives.display()))
            })?;
        }
        Ok(())
    }

    /// Removes the incomplete files of these packages.
    ///
    /// # Errors
    /// `Disk` if a file cannot be removed.
    pub(crate) fn discard_unfinished(&self, wanted: &[Wanted]) -> Result<(), CommandError> {
        wanted.iter().try_for_each(|wanted| removed(&self.archives.join(part_name(&wanted.file_name))))
    }

    /// Adds transfers, hosts and the verdict to the summary of a run that began at `started`. Returns its timeline.
    pub(crate) fn add_to(&mut self, summary: &mut Summary, started: Instant, phases: &[(u64, Phase)]) -> Timeline {
        summary.totals = self.totals;
        add_transfers(summary, started, phases, &mut self.progress, self.sites.iter().map(|site| &site.site))
    }
}

/// Normalizes a path as servers do: archives contain names such as `./x.deb` and `pool//x`. Any other path stays
/// unchanged, and the request rejects it if it is malformed.
fn in_one_spelling(path: String) -> String {
    let mut scratch = String::new();
    path::normalise(&path, &mut scratch).map(str::to_owned).unwrap_or(path)
}

/// Name of an incomplete file.
fn part_name(file_name: &str) -> String {
    format!(".{file_name}.part")
}

/// Whether fullbore fetches an address itself (HTTP or HTTPS).
pub(crate) fn is_remote(uri: &str) -> bool {
    uri.starts_with("http://") || uri.starts_with("https://")
}

/// Prefix of addresses in buckets, for which apt needs a separate method.
const S3: &str = "s3://";

/// Path of a `file:` or `copy:` address.
pub(crate) fn local(uri: &str) -> Option<PathBuf> {
    let path = uri.strip_prefix("file:").or_else(|| uri.strip_prefix("copy:"))?;
    Some(PathBuf::from(format!("/{}", percent_decode(path).trim_start_matches('/'))))
}

/// SHA-256 of a whole file.
///
/// # Errors
/// `Disk` if the file cannot be read.
pub(crate) fn hash_of(path: &Path) -> Result<Sha256, CommandError> {
    let mut hasher = Sha256Hasher::new();
    let read = std::fs::File::open(path).and_then(|file| hasher.read_to_end(file));
    read.map_err(|error| CommandError::cannot("read", path, &error))?;
    Ok(hasher.finish())
}

/// See [`Downloads::stop`].
fn stop_with(runtime: &tokio::runtime::Runtime, session: &Arc<Session>) -> Stop {
    let stop = Stop::listen(runtime);
    let (seen, session) = (stop.clone(), session.clone());
    runtime.spawn(async move {
        seen.requested().await;
        // Also those that were about to be started.
        loop {
            session.kill();
            tokio::time::sleep(KILL_EVERY).await;
        }
    });
    stop
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set where the test is the only one of its process: it has all children killed.
    const ALONE: &str = "FULLBORE_TEST_ALONE";

    #[test]
    fn a_command_that_is_started_after_the_signal_is_killed_too() {
        if std::env::var_os(ALONE).is_none() {
            let mut alone = Command::new(std::env::current_exe().unwrap());
            let name = "installing::download::tests::a_command_that_is_started_after_the_signal_is_killed_too";
            let output = alone.args(["--exact", name]).env(ALONE, "yes").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let session = Arc::new(Session::open(Path::new("/")).unwrap());
        let stop = stop_with(&runtime, &session);
        let begun = Instant::now();
        let mut first = Command::new("sleep").arg("600").spawn().unwrap();
        // Else a signal would end this.
        assert!(has_handler(&std::fs::read_to_string("/proc/self/status").unwrap()), "nobody listens");
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        first.wait().unwrap();
        assert!(stop.check().is_err());
        let mut second = Command::new("sleep").arg("600").spawn().unwrap();
        while second.try_wait().unwrap().is_none() {
            assert!(begun.elapsed().as_secs() < 60, "it goes on");
            std::thread::sleep(KILL_EVERY);
        }
    }

    /// Whether SIGTERM is caught, as `/proc/self/status` has it.
    fn has_handler(status: &str) -> bool {
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() >> 14 & 1 == 1
    }

    #[test]
    fn addresses_are_taken_apart() {
        assert_eq!(percent_decode("http://h/a%2bb%7e1%"), "http://h/a+b~1%");
        assert!(is_remote("http://deb.example.org:81/debian/x") && !is_remote("ftp://x/y"));
        assert_eq!(local("file:/srv/a%20b.deb"), Some(PathBuf::from("/srv/a b.deb")));
        assert_eq!(local("copy:///srv/x"), Some(PathBuf::from("/srv/x")));
        assert_eq!(local("http://h/x"), None);
    }
}
