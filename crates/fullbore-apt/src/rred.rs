//! The `rred` method: makes a new index from the old one and patches that APT has fetched.
//!
//! It replaces APT's own method (`Dir::Bin::Methods::rred`). APT puts the old index, or a link to it, and the patches
//! into `partial/` of its lists directory, and names the file to make. When the file is there, APT moves it into place.
//! Two things differ from APT's method. A result is delivered only if its SHA-256 is a signed one, even if APT does not
//! say which it must be (for patches merged by the archive, see `target`). Anything doubtful is a `400 URI Failure`,
//! after which APT fetches the whole index.

mod patches;
mod target;

use std::io;
use std::path::{Path, PathBuf};

use fullbore_debian::compression::Form;
use fullbore_debian::pdiff::{Edits, ScriptError};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use crate::acquire::{Configuration, Failure, Message, Method, Outgoing, Request, date, drop_privileges};
use crate::frames::Level;
use crate::rewrite::{Rewrite, RewriteError, rewrite};

pub use patches::PatchError;
pub use target::TargetError;

/// The setting of the compression level: `best` or `apt` for APT's levels.
pub(crate) const LEVEL_SETTING: &str = "Acquire::fullbore::Level";

/// Why the rred method could not make an index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RredError {
    /// The request lacks a required field.
    #[error("the request has no {0}")]
    Request(&'static str),
    /// The patches cannot be used.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// The patches do not fit on one another.
    #[error("the patches do not fit on one another: {0}")]
    Chain(ScriptError),
    /// The expected result is unknown.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The pass failed, or its result is wrong.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    /// The times of the new index could not be set.
    #[error("cannot set the times of {}: {source}", path.display())]
    Times {
        /// Path of the new index.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// The acquire method rred, which patches indexes for APT.
#[derive(Debug, Default)]
pub struct Rred {
    level: Level,
    /// `Debug::Acquire::rred`: log the work to APT.
    debug: bool,
}

impl Rred {
    /// Makes the method; APT's configuration follows with its first message.
    pub fn new() -> Rred {
        Rred::default()
    }
}

impl Method for Rred {
    fn name(&self) -> &'static str {
        "rred"
    }

    fn configure(&mut self, configuration: Configuration) -> Result<(), String> {
        self.debug = configuration.bool("Debug::Acquire::rred", false);
        // `apt` is the older name; configuration files of apt may still have it.
        let is_best = matches!(configuration.get(LEVEL_SETTING), Some("best" | "apt"));
        self.level = if is_best { Level::Best } else { Level::Fast };
        drop_privileges(&configuration).map_err(|error| error.to_string())
    }

    fn acquire(&mut self, request: &Request, apt: &Outgoing) -> Result<Message, Failure> {
        if !request.uri.is_empty() {
            // An error means that APT is gone.
            apt.send(&request.started()).map_err(Failure::new)?;
        }
        let (done, message) = self.patch(request).map_err(Failure::new)?;
        if self.debug {
            apt.log(request, &message).map_err(Failure::new)?;
        }
        Ok(done)
    }
}

impl Rred {
    /// Serves a request; returns the answer, and a line for the log.
    fn patch(&self, request: &Request) -> Result<(Message, String), RredError> {
        let (old, new) = files(request)?;
        let patches = patches::read(&old, &request.message)?;
        let expected = target::expected(request, &old, &patches)?;
        let mtime = patches.mtime_unix_s;
        let count = patches.edits.len();
        let edits = Edits::chain(patches.edits).map_err(RredError::Chain)?;
        let job = Rewrite {
            old: &old,
            old_form: Some(form(&old)),
            edits: &edits,
            new: &new,
            new_form: Some(form(&new)),
            level: self.level,
            expected: Some(expected),
            ledger: None,
            threads: 0,
        };
        let made = rewrite(&job)?;
        set_times(&old, &new, mtime)?;
        let message = format!(
            "{count} patches, {} changes; {} frames taken over, {} made; {} bytes",
            edits.edits().len(),
            made.frames_copied,
            made.frames_encoded,
            made.file_size
        );
        let done = request
            .done()
            .with("Size", made.file_size)
            .with("Last-Modified", date(mtime).unwrap_or_default())
            .with("SHA256-Hash", made.sha256)
            .with("Checksum-FileSize-Hash", made.plain_size);
        Ok((done, message))
    }
}

/// The paths of the old and the new index. Without a URI, the old one is the target and the new one gets the suffix
/// `.result`, as in APT's own method for tests.
fn files(request: &Request) -> Result<(PathBuf, PathBuf), RredError> {
    if request.filename.as_os_str().is_empty() {
        return Err(RredError::Request("Filename"));
    }
    if request.uri.is_empty() {
        return Ok((request.filename.clone(), with_suffix(&request.filename, ".result")));
    }
    let old = request.path();
    // APT never means a path relative to its working directory.
    if old.is_absolute() { Ok((old, request.filename.clone())) } else { Err(RredError::Request("path in its URI")) }
}

/// The form by the extension.
fn form(path: &Path) -> Form {
    Form::of(path.to_str().unwrap_or_default())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Sets times as APT does, so that they tell the file's state: the access time of the old index, the modification time
/// of the last patch.
fn set_times(old: &Path, new: &Path, mtime_unix_s: i64) -> Result<(), RredError> {
    let seconds = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
    let set = || {
        let last_access = seconds(rustix::fs::stat(old)?.st_atime);
        let times = Timestamps { last_access, last_modification: seconds(mtime_unix_s) };
        rustix::fs::utimensat(CWD, new, &times, AtFlags::empty())
    };
    set().map_err(|errno| {
        // APT does not know the file, so remove it.
        let _ = std::fs::remove_file(new);
        RredError::Times { path: new.to_owned(), source: errno.into() }
    })
}

#[cfg(test)]
mod tests;
