//! This machine's apt with a private configuration and state for the new root.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fullbore_apt::acquire::Configuration;
use fullbore_engine::digest::Sha256;
use fullbore_engine::run::error::{CommandError, ErrorKind};

use crate::inside::RootCommands;
use crate::installing::download::{hash_of, local};
use crate::installing::log::Log;
use crate::resolve::{self, Action, PRINT_URIS, Step, Wanted};
use crate::root::Root;
use crate::settings::BootstrapSettings;
use crate::settings::Variant;

/// Directory of the private configuration, relative to the root; removed at the end.
pub(super) const DIRECTORY: &str = "var/cache/apt/fullbore";

/// Status files: before the first packages, and after them.
const STATUS_NONE: &str = "status-none";
const STATUS_FIRST: &str = "status-first";

/// Directory of package files that apt fetches, below [`DIRECTORY`].
const FETCHED: &str = "fetched";

/// apt's helper, which checks whether apt's own user may read a file.
const APT_HELPER: &str = "/usr/lib/apt/apt-helper";

/// Programs of this machine's apt, with a configuration of their own for the root.
pub(super) struct PrivateApt<'a> {
    inside: &'a RootCommands<'a>,
    log: &'a Log,
    directory: PathBuf,
    configuration: PathBuf,
    /// Arguments of `--include` that may be files.
    include: &'a [String],
    /// Whether this is a simulation: only indexes are fetched.
    simulates: bool,
}

/// A set of packages that apt installs together, with the files and steps that it needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selection {
    /// Package files, in the order of fetching.
    pub files: Vec<Wanted>,
    /// File names, in the order of unpacking.
    pub order: Vec<String>,
    /// Steps of apt's simulation, in order.
    pub steps: Vec<Step>,
}

/// Options for apt's programs that restrict the packages; empty for all packages of the lists directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AptOptions(pub Vec<OsString>);

impl<'a> PrivateApt<'a> {
    /// Writes the configuration. The root already has its layout.
    ///
    /// # Errors
    ///
    /// `Disk` if the directories, the keyring links or the configuration file cannot be written in the root, or a
    /// keyring cannot be read.
    pub(super) fn prepare(
        settings: &'a BootstrapSettings,
        inside: &'a RootCommands<'a>,
        log: &'a Log,
    ) -> Result<PrivateApt<'a>, CommandError> {
        let root = inside.root();
        let directory = root.join(DIRECTORY);
        let handle = Root::open(root)?;
        let (trusted, parts) = (directory.join("trusted.gpg"), directory.join("trusted.gpg.d"));
        handle.create_directories(&format!("{DIRECTORY}/trusted.gpg.d"), 0o755)?;
        link_keyrings(&settings.keyrings, &handle)?;
        let path = |path: &Path| quoted(&path.display().to_string());
        let mut text = format!("Apt::Architecture {};\nApt::Architectures {{ ", quoted(settings.architecture()));
        for architecture in &settings.architectures {
            text.push_str(&format!("{}; ", quoted(architecture)));
        }
        text.push_str(&format!(
            "}};\nDir {};\nDir::State::Status {};\nDir::Etc::Trusted {};\nDir::Etc::TrustedParts {};\n",
            path(root),
            path(&root.join("var/lib/dpkg/status")),
            path(&trusted),
            path(&parts),
        ));
        if settings.variant != Variant::Apt {
            // apt treats itself as Essential, which is right in the variant `apt` only.
            text.push_str("pkgCacheGen::ForceEssential \",\";\n");
        }
        if !may_be_read_by_apt(&root.join("var/lib/apt/lists/partial")) {
            text.push_str("APT::Sandbox::User \"root\";\n");
        }
        let configuration = directory.join("apt.conf");
        handle.write(&format!("{DIRECTORY}/apt.conf"), 0o644, text.as_bytes())?;
        let (include, simulates) = (settings.include.as_slice(), settings.simulate);
        Ok(PrivateApt { inside, log, directory, configuration, include, simulates })
    }

    /// Path of the configuration, for `APT_CONFIG`.
    pub(super) fn configuration(&self) -> &Path {
        &self.configuration
    }

    /// Command for a program of apt.
    pub(super) fn command(&self, program: &str) -> Command {
        self.with(self.inside.plain(program))
    }

    /// Command for apt-get that runs dpkg: in a PID namespace of its own.
    pub(super) fn installing(&self, options: &AptOptions) -> Command {
        let mut command = self.with(self.inside.outside("apt-get"));
        command.args(&options.0);
        command
    }

    fn with(&self, mut command: Command) -> Command {
        command.env("APT_CONFIG", &self.configuration).env("TMPDIR", self.inside.root().join("tmp"));
        command.current_dir(self.inside.root());
        command
    }

    /// Directory for temporary files of apt.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Runs `apt-config dump` and parses the configuration of apt.
    ///
    /// # Errors
    ///
    /// `Usage` if apt-config cannot be started or its output cannot be parsed, `Partial` if it fails.
    pub(super) fn dump(&self) -> Result<Configuration, CommandError> {
        let mut command = self.command("apt-config");
        let dump = self.log.read(command.args(Configuration::DUMP), "apt-config dump")?;
        Configuration::from_dump(&dump).map_err(CommandError::usage)
    }

    /// Fetches and verifies the indexes with apt-get.
    ///
    /// # Errors
    ///
    /// `Verification` if apt reports a bad signature, hash or size, otherwise `Network`.
    pub(super) fn update(&self) -> Result<(), CommandError> {
        let mut command = self.command("apt-get");
        command.args(["update", "--error-on=any"]);
        self.log.run(&mut command, "apt-get update").map_err(|mut error| {
            let told = ["not signed", "NO_PUBKEY", "Hash Sum mismatch", "unexpected size"];
            error.kind = if error.context.iter().any(|line| told.iter().any(|text| line.contains(text))) {
                ErrorKind::Verification
            } else {
                ErrorKind::Network
            };
            error
        })
    }

    /// Selects the Essential packages and their dependencies; in the variant `custom` those of `--include`.
    ///
    /// # Errors
    ///
    /// `Usage` if the sources have no matching package, `Partial` if apt-get fails. `Verification` or `Network` if apt
    /// has to fetch a package file and cannot. `Internal` if apt's output cannot be parsed, `Disk` if the status file
    /// cannot be written.
    pub(super) fn first(&self, settings: &BootstrapSettings, options: &AptOptions) -> Result<Selection, CommandError> {
        let Some(requested) = PrivateApt::first_packages(settings) else { return Ok(Selection::default()) };
        let none = self.write_status(STATUS_NONE, "")?;
        let first = self.select(&requested, &none, options)?;
        if first.steps.is_empty() {
            // apt accepts a pattern without any matching package.
            let suite = if settings.suite.is_empty() { "any suite" } else { &settings.suite };
            return Err(CommandError::usage(match settings.variant {
                Variant::Custom | Variant::Extract => {
                    format!("the sources have no package of {suite} that matches --include")
                }
                _ => format!("the sources have no Essential package of {suite}"),
            })
            .hint("check the suite, --components and --arch; --variant custom needs no Essential packages"));
        }
        Ok(first)
    }

    /// Arguments for apt-get to select the first packages; `None` if there are none.
    fn first_packages(settings: &BootstrapSettings) -> Option<Vec<String>> {
        match settings.variant {
            Variant::Custom | Variant::Extract if settings.include.is_empty() => None,
            Variant::Custom | Variant::Extract => Some([vec!["install".to_owned()], settings.include.clone()].concat()),
            Variant::Apt => Some(vec!["dist-upgrade".to_owned()]),
            _ => Some(vec!["install".to_owned(), narrowed(settings, "?essential")]),
        }
    }

    /// Packages to install after the first ones.
    pub(super) fn requested(settings: &BootstrapSettings) -> Vec<String> {
        let mut requested = settings.include.clone();
        let priority = match settings.variant {
            Variant::Custom | Variant::Extract => return Vec::new(),
            Variant::Essential | Variant::Apt => return requested,
            Variant::Required => "?and(?priority(required),?not(?essential))",
            Variant::Buildd => {
                requested.push("build-essential".to_owned());
                "?and(?priority(required),?not(?essential))"
            }
            Variant::Important => "?and(?or(?priority(required),?priority(important)),?not(?essential))",
            Variant::Standard => "?and(?or(~prequired,~pimportant,~pstandard),?not(?essential))",
        };
        requested.push(narrowed(settings, priority));
        requested
    }

    /// Writes a status file; returns its path.
    fn write_status(&self, name: &str, text: &str) -> Result<PathBuf, CommandError> {
        let root = Root::open(self.inside.root())?;
        root.write(&format!("{DIRECTORY}/{name}"), 0o644, text.as_bytes())?;
        Ok(self.directory.join(name))
    }

    /// Selects the packages to install after `first`.
    ///
    /// # Errors
    ///
    /// `Partial` if apt-cache or apt-get fails, for example because of unmet dependencies. `Verification` or `Network`
    /// if apt has to fetch a package file and cannot. `Internal` if apt's output cannot be parsed, `Disk` if the status
    /// file cannot be written.
    pub(super) fn rest(
        &self,
        first: &Selection,
        requested: &[String],
        options: &AptOptions,
    ) -> Result<Selection, CommandError> {
        if requested.is_empty() {
            return Ok(Selection::default());
        }
        let mut show = self.command("apt-cache");
        show.args(&options.0).arg("show").args(first.order.iter().map(|name| as_version(name)));
        let stanzas = self.log.read(&mut show, "apt-cache show")?;
        let status = self.write_status(STATUS_FIRST, &resolve::as_if_installed(&once_each(&stanzas)))?;
        self.select(&installed(requested), &status, options)
    }

    /// Whether apt takes exactly the steps of these selections with all packages of the archive. Call it after
    /// [`PrivateApt::rest`].
    pub(super) fn confirms(
        &self,
        settings: &BootstrapSettings,
        first: &Selection,
        rest: &Selection,
        requested: &[String],
    ) -> bool {
        let all = AptOptions::default();
        let same = |requested: &[String], status: &str, selection: &Selection| {
            let steps = self.steps(requested, &self.directory.join(status), &all);
            steps.is_ok_and(|steps| steps == selection.steps)
        };
        PrivateApt::first_packages(settings).is_none_or(|requested| same(&requested, STATUS_NONE, first))
            && (requested.is_empty() || same(&installed(requested), STATUS_FIRST, rest))
    }

    fn select(&self, requested: &[String], status: &Path, options: &AptOptions) -> Result<Selection, CommandError> {
        let nowhere = format!("Dir::Cache::Archives={}/", self.directory.join("none").display());
        let mut list = self.command("apt-get");
        list.args(PRINT_URIS).arg("--option").arg(state(status)).args(["--option", &nowhere]);
        list.args(&options.0).args(requested);
        let (uris, steps) = std::thread::scope(|scope| {
            let steps = scope.spawn(|| self.steps(requested, status, options));
            let uris = self.log.ask(&mut list, "apt-get --print-uris");
            (uris, steps.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let files = self.files(&uris?, options)?;
        let steps = steps?;
        let mut order: Vec<String> = steps
            .iter()
            .filter(|step| step.action == Action::Unpack)
            .map(|step| resolve::file_name(&step.package, &step.version, &step.architecture))
            .filter(|name| files.iter().any(|file| file.file_name == *name))
            .collect();
        let missing: Vec<String> =
            files.iter().map(|file| file.file_name.clone()).filter(|name| !order.contains(name)).collect();
        order.extend(missing);
        Ok(Selection { files, order, steps })
    }

    /// Package files of the lines that `--print-uris` printed. apt itself fetches a file for which the index has no
    /// SHA-256, for example only a SHA-512; it verifies the file or refuses it. Such a file is then a local file of
    /// this machine.
    fn files(&self, uris: &str, options: &AptOptions) -> Result<Vec<Wanted>, CommandError> {
        let unknown = resolve::without_sha256(uris);
        if unknown.is_empty() {
            return resolve::uris(uris, &|uri, _| self.hash_of_included(uri)).map_err(strange);
        }
        let directory = self.directory.join(FETCHED);
        if !self.simulates {
            self.fetch(&unknown, options)?;
        }
        let is_unknown = |name: &str| unknown.contains(&name);
        let hash_of = |uri: &str, name: &str| match is_unknown(name) {
            // A simulation shows steps only, so this hash is never compared.
            true if self.simulates => Some(Sha256::EMPTY),
            true => hash_of(&directory.join(name)).ok(),
            false => self.hash_of_included(uri),
        };
        let mut files = resolve::uris(uris, &hash_of).map_err(strange)?;
        for file in files.iter_mut().filter(|file| is_unknown(&file.file_name)) {
            file.uri = format!("file:{}", directory.join(&file.file_name).display().to_string().replace('%', "%25"));
        }
        Ok(files)
    }

    /// Has apt fetch package files, whatever hash it trusts.
    fn fetch(&self, file_names: &[&str], options: &AptOptions) -> Result<(), CommandError> {
        Root::open(self.inside.root())?.create_directories(&format!("{DIRECTORY}/{FETCHED}"), 0o755)?;
        let mut download = self.command("apt-get");
        download.args(&options.0).arg("download").args(file_names.iter().map(|name| as_version(name)));
        download.current_dir(self.directory.join(FETCHED));
        self.log.run(&mut download, "apt-get download").map_err(|mut error| {
            let told = ["Insufficient information", "Hash Sum mismatch", "unexpected size", "unauthenticated"];
            let is_told = error.context.iter().any(|line| told.iter().any(|text| line.contains(text)));
            error.kind = if is_told { ErrorKind::Verification } else { ErrorKind::Network };
            error
        })
    }

    /// Hash of a file that the user named; no index has one.
    fn hash_of_included(&self, uri: &str) -> Option<Sha256> {
        let path = local(uri)?;
        let is_named = self.include.iter().any(|name| Path::new(name) == path);
        is_named.then(|| hash_of(&path).ok()).flatten()
    }

    /// Steps of a simulation.
    fn steps(&self, requested: &[String], status: &Path, options: &AptOptions) -> Result<Vec<Step>, CommandError> {
        let mut simulate = self.command("apt-get");
        simulate.args(["--yes", "--simulate", "--option", "Debug::NoLocking=1", "--option"]).arg(state(status));
        simulate.args(&options.0).args(requested);
        let steps = self.log.ask(&mut simulate, "apt-get --simulate")?;
        resolve::steps(&steps).map_err(strange)
    }
}

fn installed(requested: &[String]) -> Vec<String> {
    [vec!["install".to_owned()], requested.to_vec()].concat()
}

/// Option for another status file.
fn state(status: &Path) -> OsString {
    let mut option = OsString::from("Dir::State::Status=");
    option.push(status);
    option
}

fn strange(error: resolve::ResolveError) -> CommandError {
    CommandError::new(ErrorKind::Internal, error)
}

/// Restricts a pattern to the suite and the native architecture.
fn narrowed(settings: &BootstrapSettings, what: &str) -> String {
    let (suite, architecture) = (&settings.suite, settings.architecture());
    if suite.is_empty() {
        return format!("?and(?architecture({architecture}),{what})");
    }
    format!("?narrow(?or(?archive(^{suite}$),?codename(^{suite}$)),?architecture({architecture}),{what})")
}

/// Converts `NAME_VERSION_ARCH.deb` to an argument of apt-cache.
fn as_version(file_name: &str) -> String {
    let mut fields = file_name.trim_end_matches(".deb").splitn(3, '_');
    let (name, version, architecture) =
        (fields.next().unwrap_or_default(), fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    let version = version.replace("%3a", ":").replace("%5f", "_").replace("%25", "%");
    if architecture == "all" { format!("{name}={version}") } else { format!("{name}:{architecture}={version}") }
}

/// Keeps the first stanza of each package: several sources may have the same package.
fn once_each(stanzas: &str) -> String {
    let mut seen = std::collections::HashSet::new();
    let mut once = String::new();
    for stanza in stanzas.split("\n\n").filter(|stanza| !stanza.trim().is_empty()) {
        let name = stanza.lines().next().unwrap_or_default();
        let architecture = stanza.lines().find(|line| line.starts_with("Architecture:")).unwrap_or_default();
        if seen.insert((name.to_owned(), architecture.to_owned())) {
            once.push_str(stanza.trim_matches('\n'));
            once.push_str("\n\n");
        }
    }
    once
}

/// Quotes a value for apt's configuration, which has no escape for quotation marks.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('"', ""))
}

fn link_keyrings(keyrings: &[PathBuf], root: &Root) -> Result<(), CommandError> {
    let mut number = 0;
    let mut link = |file: &Path| {
        // apt requires these suffixes to match the content.
        let mut start = [0; 10];
        let mut opened = fs::File::open(file).map_err(|error| CommandError::cannot("read", file, &error))?;
        let is_armored = opened.read(&mut start).is_ok_and(|count| &start[..count] == b"-----BEGIN");
        let ending = if is_armored { "asc" } else { "gpg" };
        number += 1;
        let path = format!("{DIRECTORY}/trusted.gpg.d/{number:03}.{ending}");
        root.symlink(file, &path).map(drop).map_err(CommandError::from)
    };
    for keyring in keyrings {
        if keyring.is_dir() {
            let entries = fs::read_dir(keyring).map_err(|error| CommandError::cannot("read", keyring, &error))?;
            let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            let is_keyring = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "gpg" || ending == "asc");
            files.retain(is_keyring);
            files.sort();
            files.iter().try_for_each(|file| link(file))?;
        } else if fs::metadata(keyring).is_ok_and(|file| file.len() > 0) {
            link(keyring)?;
        }
    }
    Ok(())
}

/// Whether apt's own user can read a directory; otherwise apt must fetch as root.
fn may_be_read_by_apt(directory: &Path) -> bool {
    let mut test = Command::new(APT_HELPER);
    test.args(["drop-privs", "--", "test", "-r"]).arg(directory);
    test.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    test.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_is_a_version_to_apt() {
        assert_eq!(as_version("x_1%3a2-3_amd64.deb"), "x:amd64=1:2-3");
        assert_eq!(as_version("x_2_all.deb"), "x=2");
    }

    #[test]
    fn a_package_of_two_sources_is_taken_once() {
        let stanza = "Package: a\nArchitecture: all\nVersion: 1\n\n";
        assert_eq!(once_each(&format!("{stanza}{stanza}")), stanza);
    }
}
