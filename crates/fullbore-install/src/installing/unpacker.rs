//! Package files into a root: in parallel what can be, the rest is told to be dpkg's.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Durability;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::stage::Ledger;

use super::log::Log;
use super::whole::Standing;
use super::{UnpackTimes, bytecode};
use crate::database::Lock;
use crate::inside::Inside;
use crate::resolve::Wanted;
use crate::root::within;
use crate::scripts;
use crate::unpack::{self, Ahead, Archive, Filters, Options, Root, Script, UnpackError, UnpackedPackage};

/// Lines of dpkg's configuration that mean nothing for unpacking, or are understood here.
const UNDERSTOOD: [&str; 9] = [
    "no-debsig",
    "log",
    "path-exclude",
    "path-include",
    "force-unsafe-io",
    "force-confold",
    "force-confnew",
    "force-confdef",
    "force-confmiss",
];

/// Largest file of dpkg's configuration that is read. A guess: thousands of excluded paths.
const CONFIGURATION_BYTES_MAX: usize = 1 << 20;

/// dpkg's, below the root.
const DATABASE: &str = "var/lib/dpkg";

/// When preinst scripts run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scripts {
    /// Before the files of the batch, as dpkg would.
    Before,
    /// After them: there is no shell yet.
    After,
}

/// Unpacks into one root.
pub struct Unpacker<'a> {
    inside: &'a Inside<'a>,
    log: &'a Log,
    dpkg_version: String,
    expected: HashMap<String, (u64, Sha256)>,
    ahead: Option<Arc<Ahead>>,
    standing: Arc<Standing>,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub struct Done {
    /// Unpacked, in the order asked for.
    pub packages: Vec<UnpackedPackage>,
    /// Files that are dpkg's, in the order asked for, and why.
    pub left: Vec<(PathBuf, String)>,
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Where the time went.
    pub times: UnpackTimes,
    /// What the scripts of those packages have said, by name.
    pub said: HashMap<String, Vec<u8>>,
    /// Packages whose preinst has still to run.
    preinsts: Vec<Archive>,
    /// Packages whose triggers waited before.
    pending_before: Vec<String>,
}

/// A package whose triggers wait to be processed.
struct Pending {
    /// `NAME:ARCH`
    label: String,
    version: String,
    triggers: Vec<String>,
}

impl<'a> Unpacker<'a> {
    /// For package files with these sizes and hashes; each that is unpacked counts in `standing`.
    pub fn new(inside: &'a Inside<'a>, log: &'a Log, wanted: &[Wanted], standing: Arc<Standing>) -> Unpacker<'a> {
        let (dpkg_version, expected) = (String::new(), HashMap::new());
        let mut unpacker = Unpacker { inside, log, dpkg_version, expected, ahead: None, standing };
        unpacker.expect(wanted);
        unpacker
    }

    /// Packages may have been decompressed before their turn.
    pub fn take_from(&mut self, ahead: Arc<Ahead>) {
        self.ahead = Some(ahead);
    }

    /// These files' sizes and hashes are known as well.
    pub fn expect(&mut self, wanted: &[Wanted]) {
        for wanted in wanted {
            if let Ok(sha256) = Sha256::from_hex(wanted.sha256.as_bytes()) {
                self.expected.insert(wanted.file_name.clone(), (wanted.size, sha256));
            }
        }
    }

    /// What dpkg's scripts are told of the dpkg that runs them, and where it logs what it configures.
    pub fn ask_dpkg(&mut self) {
        let log = self.log_of_dpkg().and_then(|path| within(self.inside.root(), Path::new(&path)).ok());
        self.standing.count_in(log);
        let mut command = self.inside.command("dpkg-query");
        command.args(["--show", "--showformat=${Version}", "dpkg"]);
        self.dpkg_version = self.log.read(&mut command, "dpkg-query").unwrap_or_default();
    }

    /// Unpacks these files, as seen from the outside.
    ///
    /// # Errors
    /// The root or its database cannot be used, or a file is not what the index says. What was written for
    /// this batch is then taken back.
    pub fn unpack(&self, files: &[PathBuf], scripts: Scripts) -> Result<Done, CommandError> {
        let mut done = Done::default();
        let (filters, is_understood) = self.filters();
        if !is_understood {
            let reason = "dpkg's configuration has options that only dpkg has";
            files.iter().try_for_each(|file| self.verify(file))?;
            done.left = files.iter().map(|file| (file.clone(), reason.to_owned())).collect();
            return Ok(done);
        }
        let root = Root::open(self.inside.root()).map_err(|error| CommandError::new(ErrorKind::Disk, error))?;
        let _lock = Lock::database(&root).map_err(|error| CommandError::new(ErrorKind::Locked, error))?;
        let mut archives = Vec::new();
        for file in files {
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
                // dpkg may understand it, or says better what is wrong.
                Err(error) => {
                    self.verify(file)?;
                    done.left.push((file.clone(), error.to_string()));
                }
            }
        }
        let examined = unpack::examine(&root, archives).map_err(|error| CommandError::new(ErrorKind::Disk, error))?;
        for refused in examined.refused {
            self.verify(refused.archive.path())?;
            done.left.push((refused.archive.path().to_owned(), refused.refusal.reason));
        }
        if examined.batch.is_empty() {
            return Ok(self.sorted(done, files));
        }
        // Of these only: one of another architecture may have the same name.
        let by_name: HashMap<String, PathBuf> =
            examined.batch.archives().map(|archive| (archive.name().to_owned(), archive.path().to_owned())).collect();
        done.pending_before = self.pending().into_iter().map(|pending| pending.label).collect();
        let (mut in_scripts, mut said) = (Duration::ZERO, HashMap::new());
        let mut run = |archive: &Archive, script: Script| {
            let begun = Instant::now();
            let ended = self.script(archive, script);
            in_scripts += begun.elapsed();
            ended.map(|lines| drop(said.insert(archive.name().to_owned(), lines)))
        };
        let ledger = Ledger::new();
        let options = Options {
            filters,
            // One sync for everything, at the end of the run.
            durability: Durability::None,
            scripts: match scripts {
                Scripts::Before => unpack::Scripts::Run(&mut run),
                Scripts::After => unpack::Scripts::Later,
            },
            ledger: Some(&ledger),
            done_bytes: Some(&self.standing.unpacked_bytes),
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
            Err(error) => return Err(failure(&error)),
        }
        cleared.map_err(|error| CommandError::disk(self.inside.root(), &error))?;
        if scripts == Scripts::After {
            let is_done = |archive: &&Archive| done.packages.iter().any(|package| package.name == archive.name());
            done.preinsts = examined.batch.archives().filter(is_done).filter(|a| a.has_preinst()).cloned().collect();
        }
        Ok(self.sorted(done, files))
    }

    /// Puts the files of a package that is left to dpkg into the root, where dpkg may not be yet.
    ///
    /// # Errors
    /// It cannot be read, or its files not be written.
    pub fn put_files(&self, file: &Path) -> Result<(), CommandError> {
        let root = Root::open(self.inside.root()).map_err(|error| CommandError::new(ErrorKind::Disk, error))?;
        let archive = Archive::open(file).map_err(|error| CommandError::new(ErrorKind::Verification, error))?;
        unpack::put_files(&root, &archive, &self.filters().0).map_err(|error| failure(&error))
    }

    /// Runs the preinst scripts that were put off.
    ///
    /// # Errors
    /// One of them fails.
    pub fn run_preinsts(&self, done: &Done) -> Result<(), CommandError> {
        for archive in &done.preinsts {
            self.script(archive, Script::Preinst).map_err(|what| {
                CommandError::new(ErrorKind::Partial, format_args!("{}: preinst: {what}", archive.name()))
            })?;
        }
        scripts::clear(self.inside.root()).map_err(|error| CommandError::disk(self.inside.root(), &error))
    }

    /// Python modules of these packages are compiled on all cores.
    pub fn compile_modules(&self, done: &Done) {
        bytecode::compile(self.inside, self.log, &done.packages);
    }

    /// What dpkg would have written into its log. Not being able to is no failure for dpkg either.
    pub fn note_in_dpkgs_log(&self, done: &Done) {
        let Some(path) = self.log_of_dpkg().filter(|_| !done.packages.is_empty()) else { return };
        let mut date = self.inside.command("date");
        let Ok(now) = self.log.read(date.arg("+%Y-%m-%d %H:%M:%S"), "date") else { return };
        let now = now.trim();
        let mut text = format!("{now} startup archives unpack\n");
        let mut pending = self.pending();
        pending.retain(|pending| !done.pending_before.contains(&pending.label));
        for package in &done.packages {
            let label = format!("{}:{} ", package.name, package.architecture);
            let version = &package.version;
            text.push_str(&format!("{now} install {label}<none> {version}\n"));
            let activated = self.activated(package);
            pending.retain(|pending| {
                let is_now = pending.triggers.iter().any(|trigger| activated.contains(trigger));
                if is_now {
                    text.push_str(&format!("{now} status triggers-pending {} {}\n", pending.label, pending.version));
                }
                !is_now
            });
            text.push_str(&format!("{now} status half-installed {label}{version}\n"));
            text.push_str(&format!("{now} status unpacked {label}{version}\n"));
        }
        // By files, not by name.
        for pending in pending {
            text.push_str(&format!("{now} status triggers-pending {} {}\n", pending.label, pending.version));
        }
        // Made as dpkg makes it, whatever the user's mask is.
        let written = Root::open(self.inside.root()).and_then(|root| root.append(&path, 0o644, text.as_bytes()));
        if let Err(error) = written {
            tracing::warn!("dpkg's log: {error}");
        }
    }

    /// The text of a file of the root; empty if there is none.
    fn text(&self, path: &str) -> String {
        let content = Root::open(self.inside.root()).and_then(|root| root.read(path)).ok().flatten();
        content.and_then(|content| String::from_utf8(content).ok()).unwrap_or_default()
    }

    /// Packages whose triggers wait to be processed.
    fn pending(&self) -> Vec<Pending> {
        let status = self.text("var/lib/dpkg/status");
        let mut all = Vec::new();
        for stanza in status.split("\n\n").filter(|stanza| stanza.contains(" triggers-pending\n")) {
            let field = |name: &str| {
                let mut lines = stanza.lines();
                lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or_default().to_owned()
            };
            all.push(Pending {
                label: format!("{}:{}", field("Package"), field("Architecture")),
                version: field("Version"),
                triggers: field("Triggers-Pending").split_whitespace().map(str::to_owned).collect(),
            });
        }
        all
    }

    /// Triggers that a package's control file activates by name (deb-triggers(5)).
    fn activated(&self, package: &UnpackedPackage) -> Vec<String> {
        let labels = [package.name.clone(), format!("{}:{}", package.name, package.architecture)];
        let texts = labels.iter().map(|label| self.text(&format!("var/lib/dpkg/info/{label}.triggers")));
        let text = texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        let directives = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
        let activating = directives.filter(|(directive, _)| directive.starts_with("activate"));
        activating.map(|(_, trigger)| trigger.trim().to_owned()).collect()
    }

    /// Where dpkg logs, if it does.
    fn log_of_dpkg(&self) -> Option<String> {
        let mut found = None;
        for file in self.configuration() {
            let text = self.text(&file);
            for line in text.lines().filter_map(|line| line.trim().strip_prefix("log")) {
                found = Some(line.trim_start_matches(['=', ' ', '\t']).to_owned());
            }
        }
        found
    }

    /// What is left to dpkg, whose scripts have all rights, has to be what the index names.
    fn verify(&self, file: &Path) -> Result<(), CommandError> {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((bytes, sha256)) = self.expected.get(name) else { return Ok(()) };
        unpack::verify(file, *bytes, *sha256).map_err(|error| failure(&error.into()))
    }

    fn sorted(&self, mut done: Done, files: &[PathBuf]) -> Done {
        let place = |file: &Path| files.iter().position(|other| other == file);
        done.left.sort_by_key(|(file, _)| place(file));
        done
    }

    /// Gives what it has said.
    fn script(&self, archive: &Archive, script: Script) -> Result<Vec<u8>, String> {
        let command = match script {
            Script::Preinst => scripts::preinst(self.inside, archive, &self.dpkg_version),
            Script::AbortInstall => scripts::abort_install(self.inside, archive, &self.dpkg_version),
        };
        let Some(mut command) = command.map_err(|error| error.to_string())? else { return Ok(Vec::new()) };
        let database = within(self.inside.root(), Path::new(DATABASE)).map_err(|error| error.to_string())?;
        let log = self.log.another(&database).map_err(|error| error.message)?;
        log.run(&mut command, "preinst").map_err(|error| {
            let said = error.context.last().map(|line| format!(": {line}")).unwrap_or_default();
            format!("{}{said}", error.message)
        })?;
        Ok(log.all())
    }

    /// The files of dpkg's configuration, in the order in which it reads them.
    fn configuration(&self) -> Vec<String> {
        let names = Root::open(self.inside.root()).and_then(|root| root.names("etc/dpkg/dpkg.cfg.d"));
        let names = names.unwrap_or_default().into_iter().filter_map(|name| String::from_utf8(name).ok());
        let mut files: Vec<String> =
            names.filter(|name| is_part(name)).map(|name| format!("etc/dpkg/dpkg.cfg.d/{name}")).collect();
        files.sort();
        // dpkg reads the directory first (dpkg(1), FILES).
        files.push("etc/dpkg/dpkg.cfg".to_owned());
        files
    }

    /// dpkg's `path-exclude` and `path-include`, and whether that is all that its configuration has for unpacking.
    fn filters(&self) -> (Filters, bool) {
        let (mut filters, mut is_all) = (Filters::new(), true);
        for file in self.configuration() {
            let text = self.text(&file);
            if text.len() > CONFIGURATION_BYTES_MAX {
                is_all = false;
                continue;
            }
            is_all &= text.lines().all(is_understood);
            filters.read_configuration(&text);
        }
        (filters, is_all)
    }
}

/// Names of configuration files that dpkg reads: letters, digits, `_` and `-`.
fn is_part(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

fn is_understood(line: &str) -> bool {
    let line = line.trim().trim_start_matches("--");
    let name = line.split(['=', ' ', '\t']).next().unwrap_or_default();
    line.is_empty() || line.starts_with('#') || UNDERSTOOD.contains(&name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_that_only_dpkg_has_is_noticed() {
        for line in
            ["# x", "", "no-debsig", "log /var/log/dpkg.log", "path-exclude=/usr/share/doc/*", "--force-confold"]
        {
            assert!(is_understood(line), "{line}");
        }
        for line in ["pre-invoke=true", "force-overwrite", "admindir=/x"] {
            assert!(!is_understood(line), "{line}");
        }
    }
}
