//! Destination of fetched content: stdout, a pipe or device, or a file that gets its name when it is complete.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::CommandError;
use crate::files::note;
use crate::files::tree::Mtime;
use crate::output::Output;

/// Destination named by `-o`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A file, which gets this name when it is complete.
    File(PathBuf),
    /// A pipe, a terminal or `/dev/null`, written as content arrives.
    Stream(PathBuf),
}

/// Destination of `-o OUTPUT` for content called `name`, which is the last component of a key. In a directory, the file
/// gets that name; a missing directory is created if `output` ends with a slash.
///
/// # Errors
/// A [`CommandError`] of kind usage if `output` is a directory and `name` is missing or cannot be a file name. One of
/// kind disk if the directory cannot be created.
pub fn destination(output: &Path, name: Option<&str>) -> Result<Destination, CommandError> {
    let about = fs::metadata(output);
    let is_named_as_directory = output.as_os_str().as_bytes().ends_with(b"/");
    if is_named_as_directory || about.as_ref().is_ok_and(fs::Metadata::is_dir) {
        let shown = output.display();
        let name = name.ok_or_else(|| {
            CommandError::usage(format_args!("-o {shown}: is a directory, and the content has no name of its own"))
                .hint("name the file, as in -o DIR/FILE")
        })?;
        if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
            return Err(CommandError::usage(format_args!("-o {shown}: no file in a directory can be named {name:?}"))
                .hint("name the file, as in -o DIR/FILE"));
        }
        fs::create_dir_all(output).map_err(|error| CommandError::cannot("create", output, &error).context("-o"))?;
        return Ok(Destination::File(output.join(name)));
    }
    let is_stream = about.is_ok_and(|about| {
        let kind = about.file_type();
        kind.is_fifo() || kind.is_char_device() || kind.is_socket()
    });
    Ok(if is_stream { Destination::Stream(output.to_owned()) } else { Destination::File(output.to_owned()) })
}

/// Checks that `-o OUTPUT` can be a directory for several files. A missing one is fine.
///
/// # Errors
/// A [`CommandError`] of kind usage if it is a file, a pipe or a device.
pub fn check_directory(output: &Path) -> Result<(), CommandError> {
    match fs::metadata(output) {
        Ok(about) if !about.is_dir() => {
            let what = if about.is_file() { "a file" } else { "not a directory" };
            Err(CommandError::usage(format_args!("-o {}: is {what}", output.display()))
                .hint("several files need a directory, which is made if it does not exist"))
        }
        _ => Ok(()),
    }
}

/// Whether `-o OUTPUT` means stdout: `-` or `/dev/stdout`.
pub fn is_stdout(output: &OsStr) -> bool {
    output == "-" || output == "/dev/stdout"
}

/// Destination of content: a file under a temporary name, a pipe or device, or stdout.
pub struct Sink<'a> {
    to: To<'a>,
    /// Whether the reader of stdout or the pipe has gone (`fullbore get CAP | head`): a quiet, normal end.
    pub is_abandoned: bool,
    /// Number of bytes given to [`Sink::write`], and of resumed bytes before them.
    pub written: u64,
    /// Bytes in the file from an earlier run, if the sink was opened with [`Sink::resume`].
    resumed: u64,
    /// Time spent writing.
    worked: Duration,
}

/// Unfinished file of an earlier run.
#[derive(Debug)]
pub struct Left {
    /// Bytes from the beginning; they are not verified.
    pub bytes: u64,
    /// Version of the content as noted by the earlier run, such as an ETag.
    pub version: Option<String>,
    /// Handle of the unfinished file.
    pub file: LeftFile,
}

/// Reads and cuts an unfinished file.
#[derive(Debug)]
pub struct LeftFile(File);

impl LeftFile {
    /// Reads up to a buffer full at `offset`; 0 at the end.
    ///
    /// # Errors
    /// The error of pread(2), unchanged.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    /// Cuts the file to its first `bytes` bytes and notes that they are of `version`, for a run that resumes it.
    ///
    /// # Errors
    /// The system's error if the file's length cannot be read or the file cannot be cut.
    pub fn settle(&self, bytes: u64, version: Option<&str>) -> io::Result<()> {
        note::settle(&self.0, bytes, version)
    }
}

enum To<'a> {
    File(Output),
    Stream(File, PathBuf),
    Stdout(&'a mut (dyn Write + Send)),
}

impl<'a> Sink<'a> {
    /// Opens `output` by the rules of [`destination`]; without one, uses `stdout`.
    ///
    /// # Errors
    /// The errors of [`destination`], and a [`CommandError`] of kind disk if the temporary file cannot be created, or
    /// the pipe or device cannot be opened.
    pub fn open(
        output: Option<&Path>,
        name: Option<&str>,
        stdout: &'a mut (dyn Write + Send),
    ) -> Result<Sink<'a>, CommandError> {
        Sink::open_with(output, name, stdout, Output::begin_as_before)
    }

    /// As [`Sink::open`], but resumes the unfinished file of an earlier run; see [`Sink::left`].
    ///
    /// # Errors
    /// As [`Sink::open`].
    pub fn resume(
        output: Option<&Path>,
        name: Option<&str>,
        stdout: &'a mut (dyn Write + Send),
    ) -> Result<Sink<'a>, CommandError> {
        Sink::open_with(output, name, stdout, Output::resume_as_before)
    }

    fn open_with(
        output: Option<&Path>,
        name: Option<&str>,
        stdout: &'a mut (dyn Write + Send),
        begin: fn(&Path) -> io::Result<Output>,
    ) -> Result<Sink<'a>, CommandError> {
        let failed = |path: &Path, error: &io::Error| CommandError::cannot("write", path, error).context("-o");
        let mut resumed = 0;
        let to = match output.map(|output| destination(output, name)).transpose()? {
            None => To::Stdout(stdout),
            Some(Destination::File(path)) => {
                let output = begin(&path).map_err(|error| failed(&path, &error))?;
                resumed = output.file().metadata().map_or(0, |about| about.len());
                To::File(output)
            }
            Some(Destination::Stream(path)) => {
                let file = OpenOptions::new().write(true).open(&path).map_err(|error| failed(&path, &error))?;
                To::Stream(file, path)
            }
        };
        Ok(Sink { to, is_abandoned: false, written: 0, resumed, worked: Duration::ZERO })
    }

    /// The unfinished file with its bytes from an earlier run, 0 if there were none; `None` if the destination is not a
    /// file.
    ///
    /// # Errors
    /// A [`CommandError`] of kind disk if the file's descriptor cannot be duplicated.
    pub fn left(&self) -> Result<Option<Left>, CommandError> {
        let To::File(output) = &self.to else { return Ok(None) };
        let file = output.file().try_clone().map_err(|error| CommandError::cannot("write", output.path(), &error))?;
        Ok(Some(Left { bytes: self.resumed, version: output.version(), file: LeftFile(file) }))
    }

    /// Continues behind the first `offset` bytes of the file; they count as written.
    ///
    /// # Errors
    /// A [`CommandError`] of kind disk if the system cannot seek.
    pub fn go_on_at(&mut self, offset: u64) -> Result<(), CommandError> {
        if let To::File(output) = &self.to {
            let went = output.file().seek(SeekFrom::Start(offset));
            went.map_err(|error| CommandError::cannot("write", output.path(), &error))?;
            self.written = offset;
        }
        Ok(())
    }

    /// Discards all content of a file.
    ///
    /// # Errors
    /// A [`CommandError`] of kind disk if the file cannot be cut to length 0.
    pub fn start_over(&mut self) -> Result<(), CommandError> {
        if let To::File(output) = &self.to {
            output.start_over().map_err(|error| CommandError::cannot("write", output.path(), &error))?;
            self.resumed = 0;
        }
        self.go_on_at(0)
    }

    /// Leaves an unfinished file to a run that resumes it. Returns false if the destination is not a file.
    pub fn keep(self) -> bool {
        match self.to {
            To::File(output) => {
                output.keep();
                true
            }
            To::Stream(..) | To::Stdout(_) => false,
        }
    }

    /// Time spent writing so far.
    pub fn worked(&self) -> Duration {
        self.worked
    }

    /// Appends bytes to the file, the stream or stdout.
    ///
    /// # Errors
    /// A [`CommandError`] of kind disk if the file, the stream or stdout cannot be written. A closed pipe is not an
    /// error; it sets [`Sink::is_abandoned`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CommandError> {
        self.written += bytes.len() as u64;
        let begun = Instant::now();
        let (written, path, is_stream) = match &mut self.to {
            To::Stdout(stdout) => (stdout.write_all(bytes), Path::new("stdout"), true),
            To::Stream(file, path) => (file.write_all(bytes), path.as_path(), true),
            To::File(output) => (output.file().write_all(bytes), output.path(), false),
        };
        let is_closed = written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        self.is_abandoned = is_stream && is_closed;
        self.worked += begun.elapsed();
        match written {
            Err(error) if !self.is_abandoned => Err(CommandError::disk(path, &error)),
            _ => Ok(()),
        }
    }

    /// Sets the modification time of a file, after all of it was written. Does nothing for a stream or stdout.
    ///
    /// # Errors
    /// A [`CommandError`] of kind disk if the system refuses to set the time.
    pub fn set_mtime(&mut self, mtime: Mtime) -> Result<(), CommandError> {
        match &self.to {
            To::File(output) => {
                output.set_mtime(mtime).map_err(|error| CommandError::cannot("set the time of", output.path(), &error))
            }
            To::Stream(..) | To::Stdout(_) => Ok(()),
        }
    }

    /// Gives the complete, verified file its name. Returns the time spent on all writes.
    ///
    /// # Errors
    /// A [`CommandError`] of kind disk if the file cannot be synced or renamed.
    pub fn publish(self) -> Result<Duration, CommandError> {
        let begun = Instant::now();
        let published = match self.to {
            To::Stdout(_) | To::Stream(..) => Ok(()),
            To::File(output) => {
                let path = output.path().to_owned();
                let published = output.sync().and_then(|()| output.publish());
                published.map_err(|error| CommandError::cannot("write", &path, &error))
            }
        };
        published.map(|()| self.worked + begun.elapsed())
    }
}

impl fmt::Debug for Sink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("written", &self.written).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_was_refused_as_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let file = |path: PathBuf| Ok(Destination::File(path));
        let of = |output: &Path, name| destination(output, name).map_err(|error| error.message);
        assert_eq!(of(dir.path(), Some("a")), file(at("a")));
        assert_eq!(of(&at("new/deep/"), Some("a")), file(at("new/deep/a")));
        assert!(at("new/deep").is_dir());
        assert_eq!(of(&at("b"), Some("a")), file(at("b")));
        assert!(of(dir.path(), None).unwrap_err().contains("no name of its own"));
        fs::write(at("file"), "").unwrap();
        assert!(check_directory(&at("file")).is_err() && check_directory(Path::new("/dev/null")).is_err());
        assert!(check_directory(dir.path()).is_ok() && check_directory(&at("none")).is_ok());
        for hostile in ["", ".", "..", "a/b", "a\0b"] {
            assert!(of(dir.path(), Some(hostile)).is_err(), "{hostile:?}");
        }
    }

    #[test]
    fn devices_and_pipes_are_written_into() {
        let stream = |path: &str| destination(Path::new(path), Some("a")).unwrap();
        assert_eq!(stream("/dev/null"), Destination::Stream("/dev/null".into()));
        let mut stdout = Vec::new();
        let mut sink = Sink::open(Some(Path::new("/dev/null")), Some("a"), &mut stdout).unwrap();
        sink.write(b"abc").unwrap();
        sink.publish().unwrap();
        assert!(fs::symlink_metadata("/dev/null").unwrap().file_type().is_char_device() && stdout.is_empty());
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let reading = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        let mut sink = Sink::open(Some(&pipe), None, &mut stdout).unwrap();
        sink.write(b"abc").unwrap();
        sink.publish().unwrap();
        assert_eq!(reading.join().unwrap(), b"abc");
        assert!(is_stdout("-".as_ref()) && is_stdout("/dev/stdout".as_ref()) && !is_stdout("./-".as_ref()));
    }
}
