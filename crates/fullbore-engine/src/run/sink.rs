//! Where the content of files that were got goes: stdout, a pipe or device, or a file that gets its name when all is there.

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

/// What `-o` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A file, which gets this name when all is there.
    File(PathBuf),
    /// A pipe, a terminal or `/dev/null`, which is written into as content arrives.
    Stream(PathBuf),
}

/// What `-o OUTPUT` names for content of this name: the last component of a key. In a directory the file gets that name;
/// a directory that ends with a slash and does not exist is made.
///
/// # Errors
/// A usage error for a directory if there is no name that a file in it could have. A [`CommandError`] about the disk if
/// the directory cannot be made.
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
        fs::create_dir_all(output).map_err(|error| CommandError::disk(output, &error).context("-o"))?;
        return Ok(Destination::File(output.join(name)));
    }
    let is_stream = about.is_ok_and(|about| {
        let kind = about.file_type();
        kind.is_fifo() || kind.is_char_device() || kind.is_socket()
    });
    Ok(if is_stream { Destination::Stream(output.to_owned()) } else { Destination::File(output.to_owned()) })
}

/// Refuses an `-o OUTPUT` that cannot be a directory for several files. One that does not exist is fine.
///
/// # Errors
/// A usage error for a file, a pipe or a device.
pub fn check_directory(output: &Path) -> Result<(), CommandError> {
    match fs::metadata(output) {
        Ok(about) if !about.is_dir() => {
            let what = if about.is_file() { "a file" } else { "no directory" };
            Err(CommandError::usage(format_args!("-o {}: is {what}", output.display()))
                .hint("several files need a directory, which is made if it does not exist"))
        }
        _ => Ok(()),
    }
}

/// Whether `-o OUTPUT` means stdout, as other tools have it.
pub fn is_stdout(output: &OsStr) -> bool {
    output == "-" || output == "/dev/stdout"
}

/// Destination of content: a file under a temporary name, a pipe or device, or stdout.
pub struct Sink<'a> {
    to: To<'a>,
    /// Nobody reads stdout or the pipe any more (`fullbore get CAP | head`): a quiet, normal end.
    pub is_abandoned: bool,
    /// Number of bytes that were given to `write`.
    pub written: u64,
    /// Bytes that an earlier run has written, if they were asked for.
    resumed: u64,
    /// Time that writing took.
    worked: Duration,
}

/// What an earlier run has left of a file.
#[derive(Debug)]
pub struct Left {
    /// Bytes from the beginning; they are not verified.
    pub bytes: u64,
    /// The version of the content that was noted.
    pub version: Option<String>,
    /// The file.
    pub file: LeftFile,
}

/// The unfinished file itself.
#[derive(Debug)]
pub struct LeftFile(File);

impl LeftFile {
    /// Reads up to a buffer full at `offset`; 0 at the end.
    ///
    /// # Errors
    /// The system's.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    /// Keeps so many bytes of the content, and notes which version they are of, for a run that takes the file up.
    ///
    /// # Errors
    /// The system's.
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
    /// To `output`, by the rules of [`destination`], or to `stdout`.
    ///
    /// # Errors
    /// Those of [`destination`]. A [`CommandError`] about the disk if the temporary file cannot be created beside the file,
    /// or the pipe or device cannot be opened.
    pub fn open(
        output: Option<&Path>,
        name: Option<&str>,
        stdout: &'a mut (dyn Write + Send),
    ) -> Result<Sink<'a>, CommandError> {
        Sink::open_with(output, name, stdout, Output::begin_as_before)
    }

    /// As [`Sink::open`]. What an earlier run has left of a file is taken up: see [`Sink::left`].
    ///
    /// # Errors
    /// As there.
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
        let failed = |path: &Path, error: &io::Error| CommandError::disk(path, error).context("-o");
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

    /// What an earlier run has left of the file, and its file if there is none of that; `None`: content goes elsewhere.
    ///
    /// # Errors
    /// A [`CommandError`] about the disk if the file cannot be opened a second time.
    pub fn left(&self) -> Result<Option<Left>, CommandError> {
        let To::File(output) = &self.to else { return Ok(None) };
        let file = output.file().try_clone().map_err(|error| CommandError::disk(output.path(), &error))?;
        Ok(Some(Left { bytes: self.resumed, version: output.version(), file: LeftFile(file) }))
    }

    /// Goes on behind the bytes that are there; they count as written.
    ///
    /// # Errors
    /// A [`CommandError`] about the disk if the system refuses.
    pub fn go_on_at(&mut self, offset: u64) -> Result<(), CommandError> {
        if let To::File(output) = &self.to {
            let went = output.file().seek(SeekFrom::Start(offset));
            went.map_err(|error| CommandError::disk(output.path(), &error))?;
            self.written = offset;
        }
        Ok(())
    }

    /// Forgets all content of a file.
    ///
    /// # Errors
    /// A [`CommandError`] about the disk if the system refuses.
    pub fn start_over(&mut self) -> Result<(), CommandError> {
        if let To::File(output) = &self.to {
            output.start_over().map_err(|error| CommandError::disk(output.path(), &error))?;
            self.resumed = 0;
        }
        self.go_on_at(0)
    }

    /// Leaves an unfinished file to a run that takes it up. `false`: there is none.
    pub fn keep(self) -> bool {
        match self.to {
            To::File(output) => {
                output.keep();
                true
            }
            To::Stream(..) | To::Stdout(_) => false,
        }
    }

    /// The time that writing took so far.
    pub fn worked(&self) -> Duration {
        self.worked
    }

    /// Appends bytes to the file, the stream or stdout.
    ///
    /// # Errors
    /// A [`CommandError`] about the disk if the file, the stream or stdout cannot be written. A closed pipe is no error.
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

    /// Sets the time of last change of a file, when all of it is written.
    ///
    /// # Errors
    /// A [`CommandError`] about the disk if the system refuses.
    pub fn set_mtime(&mut self, mtime: Mtime) -> Result<(), CommandError> {
        match &self.to {
            To::File(output) => output.set_mtime(mtime).map_err(|error| CommandError::disk(output.path(), &error)),
            To::Stream(..) | To::Stdout(_) => Ok(()),
        }
    }

    /// Gives the file its name: all of it is there, and right. Returns the time that all writing took.
    ///
    /// # Errors
    /// A [`CommandError`] about the disk if the file cannot be synced or renamed.
    pub fn publish(self) -> Result<Duration, CommandError> {
        let begun = Instant::now();
        let published = match self.to {
            To::Stdout(_) | To::Stream(..) => Ok(()),
            To::File(output) => {
                let path = output.path().to_owned();
                let published = output.sync().and_then(|()| output.publish());
                published.map_err(|error| CommandError::disk(&path, &error))
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
