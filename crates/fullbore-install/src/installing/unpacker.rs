//! Unpacking package files into a root: in parallel if possible, otherwise by dpkg.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Durability;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::stage::Ledger;

use super::dpkg_configuration::{DpkgConfiguration, DpkgEnvironment};
use super::log::Log;
use super::run_events::RunProgress;
use super::{UnpackTimes, bytecode};
use crate::database::{DatabaseError, Directive, Lock, Stanza};
use crate::inside::RootCommands;
use crate::resolve::Wanted;
use crate::root::within;
use crate::scripts;
use crate::unpack::{self, Archive, Options, ReadAhead, Root, Script, UnpackError, UnpackedPackage};

/// dpkg's database, below the root.
const DATABASE: &str = "var/lib/dpkg";

/// When preinst scripts run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scripts {
    /// Before the files of the batch, as dpkg does.
    Before,
    /// After the files, because there is no shell before.
    After,
}

/// Unpacks packages into one root.
pub(crate) struct Unpacker<'a> {
    inside: &'a RootCommands<'a>,
    log: &'a Log,
    dpkg_version: String,
    dpkg_environment: DpkgEnvironment,
    expected: HashMap<String, (u64, Sha256)>,
    ahead: Option<Arc<ReadAhead>>,
    run_progress: Arc<RunProgress>,
}

/// The result of a batch.
#[derive(Debug, Default)]
pub(crate) struct UnpackOutcome {
    /// The unpacked packages, in the requested order.
    pub packages: Vec<UnpackedPackage>,
    /// Files left to dpkg, in the requested order, with the reasons.
    pub left: Vec<(PathBuf, String)>,
    /// Files to unpack once dpkg has unpacked those in `left`, in the requested order: a script of the last of these
    /// may change where files go.
    pub later: Vec<PathBuf>,
    /// Number of regular files.
    pub files: u64,
    /// Bytes of regular files.
    pub bytes: u64,
    /// Times of the stages.
    pub times: UnpackTimes,
    /// Output of the packages' scripts, by package name.
    pub said: HashMap<String, Vec<u8>>,
    /// Packages whose preinst is postponed.
    preinsts: Vec<Archive>,
    /// Packages that had pending triggers before.
    pending_before: Vec<String>,
}

impl<'a> Unpacker<'a> {
    /// Unpacks package files with these sizes and hashes. Each unpacked file counts in `run_progress`.
    pub(crate) fn new(
        inside: &'a RootCommands<'a>,
        log: &'a Log,
        wanted: &[Wanted],
        run_progress: Arc<RunProgress>,
    ) -> Unpacker<'a> {
        let (dpkg_version, dpkg_environment) = (String::new(), DpkgEnvironment::default());
        let (expected, ahead) = (HashMap::new(), None);
        let mut unpacker = Unpacker { inside, log, dpkg_version, dpkg_environment, expected, ahead, run_progress };
        unpacker.expect(wanted);
        unpacker
    }

    /// Sets the read-ahead, which may have decompressed packages already.
    pub(crate) fn take_from(&mut self, ahead: Arc<ReadAhead>) {
        self.ahead = Some(ahead);
    }

    /// Adds sizes and hashes of more files.
    pub(crate) fn expect(&mut self, wanted: &[Wanted]) {
        for wanted in wanted {
            self.expected.insert(wanted.file_name.clone(), (wanted.size, wanted.sha256));
        }
    }

    /// Asks the root's dpkg for its version, which scripts get, for the environment that it reads, and for the path of
    /// its log.
    pub(crate) fn ask_dpkg(&mut self) {
        // apt, and so dpkg, has the environment of other commands in the root.
        let mut command = self.inside.command("sh");
        command.args(["-c", r#"printf '%s\n' "$HOME" "$DPKG_FORCE""#]);
        if let Ok(text) = self.log.read(&mut command, "sh") {
            let mut lines = text.lines().map(str::to_owned);
            let mut line = || lines.next().unwrap_or_default();
            self.dpkg_environment = DpkgEnvironment { home: line(), force: line() };
        }
        let log = self.configuration().log.and_then(|path| within(self.inside.root(), Path::new(&path)).ok());
        self.run_progress.count_in(log);
        let mut command = self.inside.command("dpkg-query");
        command.args(["--show", "--showformat=${Version}", "dpkg"]);
        self.dpkg_version = self.log.read(&mut command, "dpkg-query").unwrap_or_default();
    }

    /// Unpacks these files, given by paths outside of the root.
    ///
    /// # Errors
    /// `Disk` if the root or its database cannot be read or written, `Locked` if another process holds dpkg's lock, and
    /// `Verification` if a package is damaged or does not match the index. The changes of this batch are then undone.
    pub(crate) fn unpack(&self, files: &[PathBuf], scripts: Scripts) -> Result<UnpackOutcome, CommandError> {
        let mut done = UnpackOutcome::default();
        let configuration = self.configuration();
        if let Some(reason) = configuration.fault {
            return self.all_left(done, files, &reason);
        }
        let root = Root::open(self.inside.root()).map_err(|error| CommandError::new(ErrorKind::Disk, error))?;
        let _lock = Lock::database(&root).map_err(|error| CommandError::new(ErrorKind::Locked, error))?;
        let mut archives = Vec::new();
        for (at, file) in files.iter().enumerate() {
            match Archive::open(file) {
                Ok(archive) => {
                    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                    let archive = match self.expected.get(name) {
                        Some((size, sha256)) => archive.expecting(*size, *sha256),
                        None => archive,
                    };
                    archives.push(match self.ahead.as_ref().and_then(|ahead| ahead.take(file)) {
                        Some(slot) => archive.ahead(slot),
                        None => archive,
                    });
                }
                // dpkg may support it, or has a better error message.
                Err(error) => {
                    self.verify(file)?;
                    done.left.push((file.clone(), error.to_string()));
                    if scripts == Scripts::Before {
                        // Its scripts are unknown.
                        done.later = files[at + 1..].to_vec();
                        break;
                    }
                }
            }
        }
        let examined = match unpack::examine_each(&root, archives, scripts == Scripts::Before) {
            Ok(examined) => examined,
            // dpkg reads more than is read here, or has a better error message.
            Err(error @ DatabaseError::Content { .. }) => return self.all_left(done, files, &error.to_string()),
            Err(error) => return Err(CommandError::new(ErrorKind::Disk, error)),
        };
        for refused in examined.refused {
            if refused.waits && scripts == Scripts::Before {
                done.later.push(refused.archive.path().to_owned());
                continue;
            }
            self.verify(refused.archive.path())?;
            done.left.push((refused.archive.path().to_owned(), refused.refusal.reason));
        }
        if examined.batch.is_empty() {
            return Ok(self.sorted(done, files));
        }
        // Only names of this batch: a package of another architecture can have the same name.
        let by_name: HashMap<String, PathBuf> =
            examined.batch.archives().map(|archive| (archive.name().to_owned(), archive.path().to_owned())).collect();
        done.pending_before = self.pending().iter().map(label_of).collect();
        let (mut in_scripts, mut said) = (Duration::ZERO, HashMap::new());
        let mut run = |archive: &Archive, script: Script| {
            let begun = Instant::now();
            let ended = self.script(archive, script);
            in_scripts += begun.elapsed();
            ended.map(|lines| drop(said.insert(archive.name().to_owned(), lines)))
        };
        let ledger = Ledger::new();
        let options = Options {
            filters: configuration.filters,
            // The run syncs once at its end.
            durability: Durability::None,
            scripts: match scripts {
                Scripts::Before => unpack::Scripts::Run(&mut run),
                Scripts::After => unpack::Scripts::Later,
            },
            ledger: Some(&ledger),
            done_bytes: Some(&self.run_progress.unpacked_bytes),
            ..Options::default()
        };
        let paused = self.ahead.as_ref().map(|ahead| ahead.pause());
        let result = unpack::unpack(&root, &examined.batch, options);
        drop(paused);
        let cleared = scripts::clear(self.inside.root());
        done.times = UnpackTimes::of(&ledger, in_scripts);
        match result {
            Ok(unpacked) => {
                for refusal in unpacked.refused {
                    let file = by_name.get(&refusal.package).cloned().unwrap_or_default();
                    done.left.push((file, refusal.reason));
                }
                done.packages = unpacked.packages;
                (done.files, done.bytes, done.said) = (unpacked.files, unpacked.plain_bytes, said);
            }
            // A preinst may have changed it. Nothing was unpacked yet.
            Err(UnpackError::Database(error @ DatabaseError::Content { .. })) => {
                return self.all_left(done, files, &error.to_string());
            }
            Err(error) => return Err(failure(&error)),
        }
        cleared.map_err(|error| CommandError::cannot("write into", self.inside.root(), &error))?;
        if scripts == Scripts::After {
            let is_done = |archive: &&Archive| done.packages.iter().any(|package| package.name == archive.name());
            done.preinsts = examined.batch.archives().filter(is_done).filter(|a| a.has_preinst()).cloned().collect();
        }
        Ok(self.sorted(done, files))
    }

    /// Writes the files of a package that is left to dpkg into the root, which may not have dpkg yet.
    ///
    /// # Errors
    /// `Verification` if the package cannot be parsed or does not match the index, `Disk` if its files cannot be
    /// written.
    pub(crate) fn put_files(&self, file: &Path) -> Result<(), CommandError> {
        let root = Root::open(self.inside.root()).map_err(|error| CommandError::new(ErrorKind::Disk, error))?;
        let archive = Archive::open(file).map_err(|error| CommandError::new(ErrorKind::Verification, error))?;
        unpack::put_files(&root, &archive, &self.configuration().filters).map_err(|error| failure(&error))
    }

    /// Runs the postponed preinst scripts.
    ///
    /// # Errors
    /// `Partial` with the output if a script fails, `Disk` if the control files cannot be removed.
    pub(crate) fn run_preinsts(&self, done: &UnpackOutcome) -> Result<(), CommandError> {
        for archive in &done.preinsts {
            self.script(archive, Script::Preinst).map_err(|what| {
                CommandError::new(ErrorKind::Partial, format_args!("{}: preinst: {what}", archive.name()))
            })?;
        }
        scripts::clear(self.inside.root())
            .map_err(|error| CommandError::cannot("write into", self.inside.root(), &error))
    }

    /// Compiles the Python modules of these packages on all cores.
    pub(crate) fn compile_modules(&self, done: &UnpackOutcome) {
        bytecode::compile(self.inside, self.log, &done.packages);
    }

    /// Writes dpkg's log. A failure is ignored, as dpkg does.
    pub(crate) fn note_in_dpkgs_log(&self, done: &UnpackOutcome) {
        let Some(path) = self.configuration().log.filter(|_| !done.packages.is_empty()) else { return };
        let mut date = self.inside.command("date");
        let Ok(now) = self.log.read(date.arg("+%Y-%m-%d %H:%M:%S"), "date") else { return };
        let now = now.trim();
        let mut text = format!("{now} startup archives unpack\n");
        let mut pending = self.pending();
        pending.retain(|stanza| !done.pending_before.contains(&label_of(stanza)));
        let triggers_pending = |stanza: &Stanza| {
            let version = stanza.get("Version").unwrap_or_default();
            format!("{now} status triggers-pending {} {version}\n", label_of(stanza))
        };
        for package in &done.packages {
            let label = format!("{}:{} ", package.name, package.architecture);
            let version = &package.version;
            text.push_str(&format!("{now} install {label}<none> {version}\n"));
            let activated = self.activated(package);
            pending.retain(|stanza| {
                let mut triggers = stanza.get("Triggers-Pending").unwrap_or_default().split_whitespace();
                let is_now = triggers.any(|trigger| activated.iter().any(|activated| activated == trigger));
                if is_now {
                    text.push_str(&triggers_pending(stanza));
                }
                !is_now
            });
            text.push_str(&format!("{now} status half-installed {label}{version}\n"));
            text.push_str(&format!("{now} status unpacked {label}{version}\n"));
        }
        // By package file, because names can repeat.
        text.extend(pending.iter().map(triggers_pending));
        // The mode of dpkg, for any umask of the user.
        let written = Root::open(self.inside.root()).and_then(|root| root.append(&path, 0o644, text.as_bytes()));
        if let Err(error) = written {
            tracing::warn!("dpkg's log: {error}");
        }
    }

    /// The text of a file in the root, or an empty text if the file is missing.
    fn text(&self, path: &str) -> String {
        let content = Root::open(self.inside.root()).and_then(|root| root.read(path)).ok().flatten();
        content.and_then(|content| String::from_utf8(content).ok()).unwrap_or_default()
    }

    /// Packages with pending triggers.
    fn pending(&self) -> Vec<Stanza> {
        let status = self.text("var/lib/dpkg/status");
        let stanzas = status.split("\n\n").filter(|stanza| stanza.contains(" triggers-pending\n"));
        stanzas.filter_map(|stanza| Stanza::parse(stanza.trim_matches('\n')).ok()).collect()
    }

    /// Triggers that a package's control file activates by name (deb-triggers(5)).
    fn activated(&self, package: &UnpackedPackage) -> Vec<String> {
        let labels = [package.name.clone(), format!("{}:{}", package.name, package.architecture)];
        let texts = labels.iter().map(|label| self.text(&format!("var/lib/dpkg/info/{label}.triggers")));
        let text = texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        let directives = Directive::parse(text.as_bytes()).unwrap_or_default();
        directives.into_iter().filter(|directive| !directive.interest).map(|directive| directive.trigger).collect()
    }

    /// Checks a file that is left to dpkg against the index, because its scripts run with all privileges.
    fn verify(&self, file: &Path) -> Result<(), CommandError> {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((bytes, sha256)) = self.expected.get(name) else { return Ok(()) };
        unpack::verify(file, *bytes, *sha256).map_err(|error| failure(&error.into()))
    }

    /// Leaves all files to dpkg.
    fn all_left(
        &self,
        mut done: UnpackOutcome,
        files: &[PathBuf],
        reason: &str,
    ) -> Result<UnpackOutcome, CommandError> {
        files.iter().try_for_each(|file| self.verify(file))?;
        done.left = files.iter().map(|file| (file.clone(), reason.to_owned())).collect();
        done.later.clear();
        Ok(done)
    }

    fn sorted(&self, mut done: UnpackOutcome, files: &[PathBuf]) -> UnpackOutcome {
        let place = |file: &Path| files.iter().position(|other| other == file);
        // dpkg gets no file before one that comes before it.
        if let Some(first) = done.later.iter().map(|file| place(file)).min() {
            let (later, left) = done.left.into_iter().partition(|(file, _)| place(file) > first);
            let later: Vec<(PathBuf, String)> = later;
            done.later.extend(later.into_iter().map(|(file, _)| file));
            done.left = left;
        }
        done.left.sort_by_key(|(file, _)| place(file));
        done.later.sort_by_key(|file| place(file));
        done
    }

    /// Returns its output.
    fn script(&self, archive: &Archive, script: Script) -> Result<Vec<u8>, String> {
        let command = scripts::command(self.inside, archive, &self.dpkg_version, script);
        let Some(mut command) = command.map_err(|error| error.to_string())? else { return Ok(Vec::new()) };
        let database = within(self.inside.root(), Path::new(DATABASE)).map_err(|error| error.to_string())?;
        let log = self.log.another(&database).map_err(|error| error.message)?;
        log.run(&mut command, "preinst").map_err(|error| {
            let said = error.context.last().map(|line| format!(": {line}")).unwrap_or_default();
            format!("{}{said}", error.message)
        })?;
        Ok(log.all())
    }

    fn configuration(&self) -> DpkgConfiguration {
        match Root::open(self.inside.root()) {
            Ok(root) => DpkgConfiguration::read(&root, &self.dpkg_environment),
            Err(error) => DpkgConfiguration { fault: Some(error.to_string()), ..DpkgConfiguration::default() },
        }
    }
}

/// `NAME:ARCH` in the form of dpkg's log.
fn label_of(stanza: &Stanza) -> String {
    let field = |name: &str| stanza.get(name).unwrap_or_default();
    format!("{}:{}", field("Package"), field("Architecture"))
}

fn failure(error: &UnpackError) -> CommandError {
    let kind = match error {
        UnpackError::Archive(_) | UnpackError::Hostile { .. } | UnpackError::Tar { .. } | UnpackError::Data { .. } => {
            ErrorKind::Verification
        }
        UnpackError::Stopped => ErrorKind::Interrupted,
        _ => ErrorKind::Disk,
    };
    CommandError::from_error(kind, error)
}
