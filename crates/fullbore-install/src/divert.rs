//! Makes a root's own dpkg and apt-get run without syncs, until that is undone.
//!
//! For installers and builders that call these programs themselves. Each program takes these steps, so that it exists
//! at every moment:
//!
//! ```text
//! on    register the diversion · link PROGRAM to its new name · rename the wrapper over PROGRAM
//! off   rename the new name back over PROGRAM · remove the diversion
//! ```
//!
//! The diversion is added first and removed last: after a kill between any two steps, dpkg's list still says what to
//! undo. A hard link keeps owner, times and attributes. An upgrade of a diverted program replaces the new name, which
//! `off` renames back. `dpkg-divert --rename` would leave a moment without the program.

mod apt_conf;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::nosync::disks::{Disks, is_beyond_dpkg};
use crate::root::{as_path, within};

/// Default programs: dpkg, and those of the Debian installer that start it.
pub const PROGRAMS: [&str; 4] = ["/usr/bin/dpkg", "/usr/bin/apt-get", "/usr/bin/aptitude", "/usr/bin/tasksel"];

/// Path of the helper that wrappers start, relative to the root.
const HELPER: &str = "usr/lib/fullbore-nosync/fullbore";

/// Arguments of the helper, before the command.
const WITHOUT_SYNCS: [&str; 3] = ["nosync", "--no-final-sync", "--"];

/// Environment variable for programs that run without syncs already: a wrapper then executes its program directly.
pub const IS_WITHOUT_SYNCS: (&str, &str) = ("FULLBORE_DIVERTED", "1");

/// Suffix of the new name of a diverted program. Only diversions of fullbore have it.
const KEPT: &str = ".nosync-real";

/// Suffix of temporary files.
const NEW: &str = ".nosync-new";

/// dpkg's directory, relative to the root.
const DATABASE: &str = "var/lib/dpkg";

/// Directory of dpkg's file lists, relative to the root.
const LISTS: &str = "var/lib/dpkg/info";

/// Temporary file of dpkg-divert.
const LEFT_BY_DIVERT: &str = "var/lib/dpkg/diversions-new";

/// Second line of a wrapper, which identifies it.
const MARK: &str = "# Placed by `fullbore divert on`; `fullbore divert off` puts the program back.";

/// Maximum size of a wrapper, in bytes. Those of fullbore have a fraction of it.
const LONGEST_WRAPPER: u64 = 4096;

/// Whether a program runs through the wrapper of fullbore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The program runs without syncs.
    On,
    /// `on` or `off` was interrupted; run either again.
    Partial,
    /// The program is not diverted.
    Off,
}

/// Error in diverting a program, or in removing a diversion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DivertError {
    /// The path is not absolute, or names nothing that can be diverted.
    #[error("{}: {reason}", path.display())]
    Path {
        /// Path as given.
        path: PathBuf,
        /// The fault.
        reason: &'static str,
    },
    /// A file cannot be read, written or renamed.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// Another package or the administrator diverts the program, or diverts something to its new name.
    #[error("{}: {by} diverts it to {} already", path.display(), to.display())]
    Taken {
        /// Path of the program.
        path: PathBuf,
        /// Its new name.
        to: PathBuf,
        /// The package of the diversion, or the administrator.
        by: String,
    },
    /// dpkg-divert failed with this message.
    #[error("dpkg-divert: {0}")]
    Refused(String),
    /// The helper does not run in the root, or cannot leave out syncs there.
    #[error("{}: cannot leave out syncs in this root{}{why}", helper.display(), if why.is_empty() { "" } else { ": " })]
    Helper {
        /// Path of the program.
        helper: PathBuf,
        /// Message of the helper.
        why: String,
    },
}

/// Called with the name of each step before it; an error stops the run. For tests.
pub type BeforeStep<'a> = &'a mut dyn FnMut(&'static str) -> io::Result<()>;

/// Whether a program of this root may be diverted.
pub(crate) fn is_in_use(root: &Path) -> bool {
    within(root, Path::new(HELPER)).is_ok_and(|helper| helper.exists())
}

/// An entry of dpkg's list of diversions.
#[derive(Debug)]
struct Diversion {
    from: PathBuf,
    to: PathBuf,
    /// The package that owns it, or a colon.
    package: String,
}

impl Diversion {
    fn is_ours(&self) -> bool {
        self.package == ":" && with_end(&self.from, KEPT) == self.to
    }
}

/// A root whose programs can be diverted.
///
/// ```no_run
/// use std::path::Path;
///
/// use fullbore_install::divert::Root;
///
/// # fn main() -> Result<(), fullbore_install::divert::DivertError> {
/// let root = Root::open(Path::new("/target"))?;
/// let helper = Path::new("/usr/bin/fullbore");
/// let diverted = root.on(&[], helper, true, &mut |_| Ok(()))?;
/// println!("without syncs: {diverted:?}");
/// root.off(&[], &mut |_| Ok(()))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
}

impl Root {
    /// Opens the directory `path`, which must contain dpkg's database.
    ///
    /// # Errors
    /// [`DivertError::File`] if the directory or its `var/lib/dpkg` does not exist or cannot be searched.
    pub fn open(path: &Path) -> Result<Root, DivertError> {
        let path = path.canonicalize().map_err(file(path))?;
        let info = within(&path, Path::new(DATABASE)).map_err(file(&path))?;
        fs::metadata(&info).map_err(file(&info))?;
        Ok(Root { path })
    }

    /// Diverts these programs, or the existing ones of [`PROGRAMS`]; returns the chosen programs. Other diversions
    /// stay.
    ///
    /// `helper` is a fullbore that can run in the root, where a copy is placed. With `try_helper` it is tested first.
    ///
    /// # Errors
    /// Every variant of [`DivertError`]: `Path` or `Taken` if a program cannot be diverted, `File` if a file cannot be
    /// changed, `Refused` if dpkg-divert fails, and `Helper` if `helper` cannot run in this root.
    pub fn on(
        &self,
        programs: &[PathBuf],
        helper: &Path,
        try_helper: bool,
        before: BeforeStep<'_>,
    ) -> Result<Vec<PathBuf>, DivertError> {
        let disks = self.disks()?;
        let chosen = if programs.is_empty() {
            PROGRAMS.iter().map(PathBuf::from).filter(|program| self.has_program(program).is_ok()).collect()
        } else {
            programs.iter().try_for_each(|program| self.has_program(program))?;
            self.as_packages_have(programs)?
        };
        self.are_free(&chosen)?;
        self.step(before, "helper")?;
        self.place_helper(helper, try_helper)?;
        for program in &chosen {
            self.divert(program, before)?;
        }
        self.sync(disks)?;
        Ok(chosen)
    }

    /// Removes the diversions of these programs, or all; returns those that were diverted. Works from every state
    /// that an interrupted `on`, `on_by_apt` or `off` leaves. Without `programs` it removes APT's configuration as
    /// well.
    ///
    /// # Errors
    /// Every variant of [`DivertError`] but `Helper`.
    pub fn off(&self, programs: &[PathBuf], before: BeforeStep<'_>) -> Result<Vec<PathBuf>, DivertError> {
        let disks = self.disks()?;
        let chosen: Vec<PathBuf> = if programs.is_empty() {
            self.registered()?
        } else {
            self.named(programs)?
                .into_iter()
                .filter_map(|(program, is_diverted)| is_diverted.then_some(program))
                .collect()
        };
        for program in &chosen {
            self.bring_back(program, before)?;
        }
        if programs.is_empty() {
            self.off_by_apt(before)?;
            // A killed dpkg-divert left it. No other one may run at the same time.
            remove(&self.at(LEFT_BY_DIVERT)?)?;
        }
        if self.registered()?.is_empty() && !apt_conf::is_in_use(&self.path) {
            self.step(before, "remove the helper")?;
            self.remove_helper()?;
        }
        self.sync(disks)?;
        Ok(chosen)
    }

    /// States of these programs, or of all diverted ones.
    ///
    /// # Errors
    /// [`DivertError::Path`] if a program does not exist, [`DivertError::File`] if a file cannot be read.
    pub fn status(&self, programs: &[PathBuf]) -> Result<Vec<(PathBuf, State)>, DivertError> {
        let state = |(program, is_diverted): (PathBuf, bool)| {
            if !is_diverted {
                return Ok((program, State::Off));
            }
            let below = self.below(&program)?;
            let is_on = is_wrapper(&below)? && with_end(&below, KEPT).symlink_metadata().is_ok();
            Ok((program, if is_on { State::On } else { State::Partial }))
        };
        let chosen = if programs.is_empty() {
            self.registered()?.into_iter().map(|program| (program, true)).collect()
        } else {
            self.named(programs)?
        };
        chosen.into_iter().map(state).collect()
    }

    fn divert(&self, program: &Path, before: BeforeStep<'_>) -> Result<(), DivertError> {
        let below = self.below(program)?;
        let kept = with_end(&below, KEPT);
        if !self.registered()?.iter().any(|known| known == program) {
            self.step(before, "register")?;
            self.dpkg_divert("--add", program)?;
        }
        if kept.symlink_metadata().is_err() {
            if is_wrapper(&below)? {
                let reason = "is a wrapper without a program; install its package again after `divert off`";
                return Err(DivertError::Path { path: program.to_owned(), reason });
            }
            self.step(before, "link")?;
            fs::hard_link(&below, &kept).map_err(file(&kept))?;
        }
        self.step(before, "write the wrapper")?;
        let new = write_new(&below, 0o755, wrapper_text(&with_end(program, KEPT)).as_bytes())?;
        self.step(before, "rename the wrapper")?;
        fs::rename(&new, &below).map_err(file(&below))
    }

    fn bring_back(&self, program: &Path, before: BeforeStep<'_>) -> Result<(), DivertError> {
        let below = self.below(program)?;
        let (kept, new) = (with_end(&below, KEPT), with_end(&below, NEW));
        self.step(before, "remove the new wrapper")?;
        remove(&new)?;
        if kept.symlink_metadata().is_ok() {
            self.step(before, "rename back")?;
            fs::rename(&kept, &below).map_err(file(&below))?;
            // rename(2) keeps both names if they are links to one file: then the wrapper was not placed yet.
            self.step(before, "remove the link")?;
            remove(&kept)?;
        } else if is_wrapper(&below)? {
            // The package of the program was removed.
            self.step(before, "remove the wrapper")?;
            remove(&below)?;
        }
        self.step(before, "unregister")?;
        self.dpkg_divert("--remove", program)
    }

    /// Programs in dpkg's list of diversions that fullbore diverted.
    fn registered(&self) -> Result<Vec<PathBuf>, DivertError> {
        Ok(self.diversions()?.into_iter().filter(Diversion::is_ours).map(|known| known.from).collect())
    }

    /// dpkg's list of diversions. It has three lines per diversion; the third is a colon if no package owns it.
    fn diversions(&self) -> Result<Vec<Diversion>, DivertError> {
        let path = within(&self.path, Path::new("var/lib/dpkg/diversions")).map_err(file(&self.path))?;
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(file(&path)(error)),
        };
        let lines: Vec<&str> = text.lines().collect();
        let diversion = |entry: &[&str]| Diversion {
            from: PathBuf::from(entry[0]),
            to: PathBuf::from(entry[1]),
            package: entry[2].to_owned(),
        };
        Ok(lines.chunks_exact(3).map(diversion).collect())
    }

    /// Checks that no other diversion has one of these programs, or its new name, by any path.
    fn are_free(&self, programs: &[PathBuf]) -> Result<(), DivertError> {
        let others: Vec<Diversion> = self.diversions()?.into_iter().filter(|known| !known.is_ours()).collect();
        for program in programs {
            let place = self.below(program)?;
            let places = [with_end(&place, KEPT), place];
            let is_same = |path: &Path| self.below(path).is_ok_and(|path| places.contains(&path));
            if let Some(other) = others.iter().find(|other| is_same(&other.from) || is_same(&other.to)) {
                let by = match other.package.as_str() {
                    ":" => "the administrator".to_owned(),
                    package => format!("the package {package}"),
                };
                return Err(DivertError::Taken { path: other.from.clone(), to: other.to.clone(), by });
            }
        }
        Ok(())
    }

    /// Runs dpkg-divert of this machine, or that of the root: an installer has none.
    fn dpkg_divert(&self, action: &str, program: &Path) -> Result<(), DivertError> {
        let kept = with_end(program, KEPT);
        let run = |command: &mut Command| {
            command.args(["--quiet", "--local", "--no-rename", "--divert"]).arg(&kept).arg(action).arg(program);
            command.env("LC_ALL", "C").output()
        };
        // dpkg-divert would follow an absolute link out of the root.
        let database = within(&self.path, Path::new(DATABASE)).map_err(file(&self.path))?;
        let mut ours = Command::new("dpkg-divert");
        let ours = run(ours.arg("--root").arg(&self.path).arg("--admindir").arg(database));
        let output = match ours {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                run(Command::new("chroot").arg(&self.path).arg("dpkg-divert"))
            }
            other => other,
        };
        let output = output.map_err(|error| DivertError::Refused(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(DivertError::Refused(text.trim().trim_start_matches("dpkg-divert: error: ").to_owned()))
    }

    fn place_helper(&self, helper: &Path, try_it: bool) -> Result<(), DivertError> {
        let place = self.at(HELPER)?;
        // Only this directory is created and removed again: every root has its parents.
        if let Some(parent) = place.parent()
            && let Err(error) = fs::create_dir(parent)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(file(parent)(error));
        }
        let new = write_new(&place, 0o755, File::open(helper).map_err(file(helper))?)?;
        fs::rename(&new, &place).map_err(file(&place))?;
        if try_it {
            // With the same arguments as the wrappers.
            let mut trial = Command::new("chroot");
            trial.arg(&self.path).arg(Path::new("/").join(HELPER)).args(WITHOUT_SYNCS).arg("true");
            let tried = trial.output().map_err(file(Path::new("chroot")))?;
            if !tried.status.success() {
                if self.registered()?.is_empty() && !apt_conf::is_in_use(&self.path) {
                    self.remove_helper()?;
                }
                let said = String::from_utf8_lossy(&tried.stderr);
                let why = said.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
                return Err(DivertError::Helper { helper: helper.to_owned(), why });
            }
        }
        Ok(())
    }

    fn remove_helper(&self) -> Result<(), DivertError> {
        let place = self.at(HELPER)?;
        remove(&with_end(&place, NEW))?;
        remove(&place)?;
        if let Some(parent) = place.parent()
            && let Err(error) = fs::remove_dir(parent)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(file(parent)(error));
        }
        Ok(())
    }

    /// Checks that the root has this program.
    fn has_program(&self, program: &Path) -> Result<(), DivertError> {
        let wrong = |reason| Err(DivertError::Path { path: program.to_owned(), reason });
        self.below(program)?;
        // aptitude is an absolute link of the alternatives system.
        let led_to = within(&self.path, program).map_err(file(program))?;
        match fs::metadata(&led_to) {
            Ok(about) if about.is_file() && about.mode() & 0o111 != 0 => Ok(()),
            Ok(_) => wrong("is not a program"),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                wrong("is not there")
            }
            Err(error) => Err(file(&led_to)(error)),
        }
    }

    /// Paths of these programs as their packages list them, or as they are diverted, without duplicates.
    fn as_packages_have(&self, programs: &[PathBuf]) -> Result<Vec<PathBuf>, DivertError> {
        let (registered, listed) = (self.registered()?, self.listed(programs)?);
        let mut chosen: Vec<PathBuf> = Vec::new();
        for program in programs {
            let known = self.same(program, &registered)?.or(self.same(program, &listed)?).unwrap_or(program);
            if !chosen.contains(known) {
                chosen.push(known.clone());
            }
        }
        Ok(chosen)
    }

    /// These programs, and whether they are diverted. A diverted program has its diverted path; another one has the
    /// given path, and must exist.
    fn named(&self, programs: &[PathBuf]) -> Result<Vec<(PathBuf, bool)>, DivertError> {
        let registered = self.registered()?;
        let state_of = |program: &PathBuf| match self.same(program, &registered)? {
            Some(known) => Ok((known.clone(), true)),
            None => self.has_program(program).map(|()| (program.clone(), false)),
        };
        programs.iter().map(state_of).collect()
    }

    /// The name that leads to the program, preferably the identical one.
    fn same<'a>(&self, program: &Path, names: &'a [PathBuf]) -> Result<Option<&'a PathBuf>, DivertError> {
        let below = self.below(program)?;
        let own = names.iter().find(|name| *name == program);
        Ok(own.or_else(|| names.iter().find(|name| self.below(name).is_ok_and(|path| path == below))))
    }

    /// Listed files of packages with the file names of these programs.
    fn listed(&self, programs: &[PathBuf]) -> Result<Vec<PathBuf>, DivertError> {
        let ends: HashSet<&OsStr> = programs.iter().filter_map(|program| program.file_name()).collect();
        let directory = within(&self.path, Path::new(LISTS)).map_err(file(&self.path))?;
        let mut found = Vec::new();
        let entries = match fs::read_dir(&directory) {
            // No package is installed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries.map_err(file(&directory))?,
        };
        for entry in entries {
            let path = entry.map_err(file(&directory))?.path();
            if path.extension().is_none_or(|end| end != "list") {
                continue;
            }
            let list = fs::read(&path).map_err(file(&path))?;
            let is_one = |path: &&Path| path.file_name().is_some_and(|end| ends.contains(end));
            found.extend(list.split(|byte| *byte == b'\n').map(as_path).filter(is_one).map(PathBuf::from));
        }
        Ok(found)
    }

    /// Path of a program outside of the root; a link at its end is not followed.
    fn below(&self, program: &Path) -> Result<PathBuf, DivertError> {
        let wrong = |reason| DivertError::Path { path: program.to_owned(), reason };
        let relative = program.strip_prefix("/").map_err(|_| wrong("has to be an absolute path within the root"))?;
        let plain = relative.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let is_text = program.to_str().is_some_and(|text| !text.contains(['\'', '\n']));
        let (Some(parent), Some(name), true, true) = (relative.parent(), relative.file_name(), plain, is_text) else {
            return Err(wrong("this path cannot be diverted"));
        };
        Ok(within(&self.path, parent).map_err(file(program))?.join(name))
    }

    /// Path of a file of the root as seen from outside; a link at its end is not followed.
    fn at(&self, name: &str) -> Result<PathBuf, DivertError> {
        let (parent, name) = name.rsplit_once('/').unwrap_or(("", name));
        Ok(within(&self.path, Path::new(parent)).map_err(file(&self.path))?.join(name))
    }

    /// Opens the file systems of the root before any change; `/var` may be a separate one.
    fn disks(&self) -> Result<Disks, DivertError> {
        Disks::open_below(&self.path).map_err(file(&self.path))
    }

    fn sync(&self, mut disks: Disks) -> Result<(), DivertError> {
        let synced = disks.sync_held(&mut |_| ());
        let missed = synced.missed.into_iter().filter(|(path, error)| !is_beyond_dpkg(&self.path, path, error));
        match synced.failed.into_iter().chain(missed).next() {
            Some((path, error)) => Err(DivertError::File { path, error }),
            None => Ok(()),
        }
    }

    fn step(&self, before: BeforeStep<'_>, name: &'static str) -> Result<(), DivertError> {
        before(name).map_err(file(&self.path))
    }
}

/// Text of a wrapper.
///
/// The real program runs in any case. If the filter cannot be set, which the script tests first, it runs with syncs.
/// For other users than root it runs without a message, because the filter would cost setuid rights. An empty helper,
/// left by a power cut, would be an empty shell script that always succeeds.
fn wrapper_text(kept: &Path) -> String {
    let (kept, without_syncs) = (kept.display(), WITHOUT_SYNCS.join(" "));
    let (known, value) = IS_WITHOUT_SYNCS;
    format!(
        "#!/bin/sh\n{MARK}\nhelper=/{HELPER}\n\
         if [ -z \"${known}\" ] && [ \"$(id -u)\" = 0 ]; then\n    \
             if [ -s \"$helper\" ] && \"$helper\" {without_syncs} true 2>/dev/null; then\n        \
                 {known}={value} exec \"$helper\" {without_syncs} '{kept}' \"$@\"\n    \
             fi\n    \
             echo \"fullbore: $helper cannot leave out syncs here; they are carried out\" >&2\n\
         fi\nexec '{kept}' \"$@\"\n"
    )
}

fn is_wrapper(path: &Path) -> Result<bool, DivertError> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_file() && about.size() < LONGEST_WRAPPER => {
            let text = fs::read(path).map_err(file(path))?;
            Ok(String::from_utf8_lossy(&text).lines().nth(1) == Some(MARK))
        }
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(file(path)(error)),
    }
}

/// Writes a file with the suffix [`NEW`], to be renamed, and returns its path. It is synced before: a power cut must
/// not leave an empty program or configuration, which would always succeed.
fn write_new(path: &Path, mode: u32, mut content: impl Read) -> Result<PathBuf, DivertError> {
    let new = with_end(path, NEW);
    remove(&new)?;
    let mut written = File::options().write(true).create_new(true).mode(mode).open(&new).map_err(file(&new))?;
    io::copy(&mut content, &mut written).map_err(file(&new))?;
    // Independent of the umask.
    written.set_permissions(fs::Permissions::from_mode(mode)).map_err(file(&new))?;
    written.sync_all().map_err(file(&new))?;
    Ok(new)
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

fn remove(path: &Path) -> Result<(), DivertError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file(path)(error)),
        _ => Ok(()),
    }
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> DivertError {
    let path = path.to_owned();
    move |error| DivertError::File { path, error }
}
