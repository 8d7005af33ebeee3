//! Where the content of files that were got goes: stdout, a pipe or device, or a file that gets its name when all is there.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::CommandError;
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
    /// Time that writing took.
    worked: Duration,
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
        let failed = |path: &Path, error: &io::Error| CommandError::disk(path, error).context("-o");
        let to = match output.map(|output| destination(output, name)).transpose()? {
            None => To::Stdout(stdout),
            Some(Destination::File(path)) => {
                To::File(Output::begin_as_before(&path).map_err(|error| failed(&path, &error))?)
            }
            Some(Destination::Stream(path)) => {
                let file = OpenOptions::new().write(true).open(&path).map_err(|error| failed(&path, &error))?;
                To::Stream(file, path)
            }
        };
        Ok(Sink { to, is_abandoned: false, written: 0, worked: Duration::ZERO })
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
