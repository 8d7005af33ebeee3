//! `fullbore apt`: makes the system's own apt use our methods, and undoes it.
//!
//! All of it is one file in `/etc/apt/apt.conf.d` (see `snippet`), so that taking it away leaves
//! nothing behind; no program of apt's is replaced or diverted. Before it is written, the program
//! that apt would start is tried out as the user that apt gives its methods (see `probe`).

mod probe;
mod snippet;
mod status;

use std::path::{Path, PathBuf};

use fullbore_engine::files::{FileError, Root};
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_install::root::within;

use crate::cli::{AptArgs, AptCommand, AptEnableArgs};
use crate::progress::Screen;
use snippet::{Settings, Snippet, SnippetState};

/// The directory of configuration snippets, below the root.
const PARTS: &str = "etc/apt/apt.conf.d";

/// Name of our snippet. Late in the order, for what comes later wins.
const NAME: &str = "90fullbore";

/// Largest file that may be our snippet; ours have 1 kB.
const SNIPPET_BYTES_MAX: u64 = 1 << 20;

/// Does what was asked; the exit code when it is no error.
///
/// # Errors
/// Wrong usage, a program that would not do, files that cannot be written.
pub fn run(arguments: &AptArgs, screen: &mut Screen) -> Result<u8, CommandError> {
    match &arguments.command {
        AptCommand::Enable(arguments) => enable(arguments, screen).map(|()| 0),
        AptCommand::Disable(arguments) => disable(&arguments.root, arguments.force, screen).map(|()| 0),
        AptCommand::Status(arguments) => status::run(&System::new(&arguments.root), arguments.json, screen),
    }
}

/// A system: the running one, or one below a directory.
struct System {
    root: PathBuf,
}

impl System {
    fn new(root: &Path) -> System {
        System { root: root.to_owned() }
    }

    fn is_running_system(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where a path of that system is in ours: links in it, absolute ones as well, lead to where they lead once the
    /// root is `/`.
    fn at(&self, path: &Path) -> Result<PathBuf, CommandError> {
        if self.is_running_system() {
            return Ok(Path::new("/").join(path));
        }
        within(&self.root, path).map_err(|error| CommandError::cannot("find", &self.root.join(path), &error))
    }

    fn snippet_path(&self) -> PathBuf {
        self.parts_path().join(NAME)
    }

    fn parts_path(&self) -> PathBuf {
        // Links that lead to each other are told where the directory is opened.
        self.at(Path::new(PARTS)).unwrap_or_else(|_| self.root.join(PARTS))
    }

    /// The directory of snippets, held open; `None` where there is none.
    fn parts(&self) -> Result<Option<Root>, CommandError> {
        match Root::open(&self.at(Path::new(PARTS))?) {
            Ok(parts) => Ok(Some(parts)),
            Err(error) if error.kind() == Some(std::io::ErrorKind::NotFound) => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Our snippet as it is now.
    fn standing(&self, parts: &Root) -> Result<SnippetState, CommandError> {
        let content = parts.read(NAME, SNIPPET_BYTES_MAX).map_err(|error| self.failed(&error))?;
        Ok(content.map_or(SnippetState::Absent, |content| Snippet::read(&content)))
    }

    fn failed(&self, error: &FileError) -> CommandError {
        CommandError::new(ErrorKind::Disk, error).context(self.parts_path().display())
    }

    /// Refuses when the snippet is not as we wrote it.
    fn check_ours(&self, standing: &SnippetState, force: bool) -> Result<(), CommandError> {
        let what = match standing {
            SnippetState::Absent | SnippetState::Ours(_) => return Ok(()),
            _ if force => return Ok(()),
            SnippetState::Edited => "was changed after fullbore wrote it",
            SnippetState::Other => "was not written by fullbore",
        };
        Err(CommandError::usage(format_args!("{}: {what}", self.snippet_path().display()))
            .hint("inspect it; pass --force to replace or remove it"))
    }
}

fn enable(arguments: &AptEnableArgs, screen: &mut Screen) -> Result<(), CommandError> {
    let system = System::new(&arguments.root);
    let Some(parts) = system.parts()? else {
        return Err(CommandError::usage(format_args!("{}: no such directory", system.parts_path().display()))
            .hint("install apt in that root"));
    };
    system.check_ours(&system.standing(&parts)?, arguments.force)?;
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => default_program(&system)?,
    };
    for path in std::iter::once(&program).chain(&arguments.mirrors) {
        if !path.is_absolute() {
            return Err(CommandError::usage(format_args!("{}: apt needs an absolute path", path.display())));
        }
    }
    let settings = Settings {
        program: text(&program)?,
        mirrors: arguments.mirrors.iter().map(|path| text(path)).collect::<Result<_, _>>()?,
        level: arguments.level,
    };
    probe::program(&system, &program, &settings.methods())?;
    for mirrors in &arguments.mirrors {
        probe::mirrors(&system, mirrors)?;
    }
    let written = || -> Result<(), FileError> {
        let part = parts.write_part(NAME, Snippet::render(&settings).as_bytes())?;
        part.finish()?;
        fullbore_engine::durability::sync_file(&**part.directory(), PARTS)
    };
    written().map_err(|error| system.failed(&error))?;
    screen.print_line(&format!("{}: apt uses {}", system.snippet_path().display(), program.display()));
    status::warn_if_overridden(&system, &settings, screen);
    Ok(())
}

fn disable(root: &Path, force: bool, screen: &mut Screen) -> Result<(), CommandError> {
    let system = System::new(root);
    let path = system.snippet_path();
    let Some(parts) = system.parts()? else {
        screen.print_line(&format!("{}: was not there", path.display()));
        return Ok(());
    };
    let standing = system.standing(&parts)?;
    system.check_ours(&standing, force)?;
    // What a killed `enable` may have left; apt does not read names with a dot in front.
    let removed = parts.remove_part(NAME).and_then(|_| parts.unlink(NAME)).map_err(|error| system.failed(&error))?;
    let what = if removed { "removed; apt uses its own methods" } else { "was not there" };
    screen.print_line(&format!("{}: {what}", path.display()));
    Ok(())
}

/// The path that apt is to start: this program, or in another root the one that is installed there.
fn default_program(system: &System) -> Result<PathBuf, CommandError> {
    if system.is_running_system() {
        return std::env::current_exe().map_err(|error| {
            CommandError::usage(format_args!("cannot find the path of this program: {error}"))
                .hint("pass --program PATH")
        });
    }
    let installed = PathBuf::from("/usr/bin/fullbore");
    let outside = system.at(&installed)?;
    if outside.exists() {
        return Ok(installed);
    }
    Err(CommandError::usage(format_args!("{}: no such file", outside.display()))
        .hint("install fullbore in that root, or pass --program PATH (as seen within that root)"))
}

/// A path that can stand in apt's configuration.
fn text(path: &Path) -> Result<String, CommandError> {
    match path.to_str() {
        // There is no way to write these between quotation marks.
        Some(text) if !text.chars().any(|c| c == '"' || c.is_control()) => Ok(text.to_owned()),
        _ => Err(CommandError::usage(format_args!("{}: apt's configuration cannot hold such a path", path.display()))),
    }
}
