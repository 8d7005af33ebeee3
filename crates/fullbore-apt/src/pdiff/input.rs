//! Reads patches and indexes from files of any form.

use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::path::Path;

use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::pdiff::{Edits, SCRIPT_BYTES_MAX, ScriptError};
use fullbore_engine::run::error::{CommandError, ErrorKind};

/// Largest index read into memory, in bytes of text. Debian's largest has 650 MB.
const INDEX_BYTES_MAX: u64 = 8 << 30;

/// Magic of gzip (RFC 1952). An ed script begins with a digit.
const GZ_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reads patches and joins them, oldest first.
///
/// # Errors
/// `Verification` for damaged data or a patch that is not a valid ed script, `Usage` for a missing file, `Disk` for
/// other read errors.
pub fn edits<P: AsRef<Path>>(paths: &[P]) -> Result<Edits, CommandError> {
    let steps = paths.iter().map(|path| patch(path.as_ref())).collect::<Result<Vec<_>, _>>()?;
    Edits::chain(steps).map_err(|error| bad_script(&paths[error.step.min(paths.len() - 1)], &error))
}

fn patch(path: &Path) -> Result<Edits, CommandError> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut form = Form::of(&path.to_string_lossy());
    let mut input = BufReader::new(file);
    // apt keeps fetched patches as `X.ed`, compressed.
    if form == Form::Plain && io::BufRead::fill_buf(&mut input).is_ok_and(|bytes| bytes.starts_with(&GZ_MAGIC)) {
        form = Form::Gz;
    }
    let script = read(form, input, SCRIPT_BYTES_MAX as u64).map_err(|error| unreadable(path, &error))?;
    Edits::parse(script).map_err(|error| bad_script(&path, &error))
}

/// Decompresses an index into memory, up to 8 GiB of text; the extension decides the form.
///
/// # Errors
/// `Verification` for a damaged or too large file, or one that is not of the form that its name says. `Usage` for a
/// missing file, `Disk` for other read errors.
pub fn index(path: &Path) -> Result<Vec<u8>, CommandError> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    index_of(file, Form::of(&path.to_string_lossy())).map_err(|error| unreadable(path, &error))
}

/// Reads an index from an open file into memory.
///
/// # Errors
/// The error of reading or decompressing; also if the file is not of this form, or too large.
pub fn index_of(file: File, form: Form) -> io::Result<Vec<u8>> {
    read(form, BufReader::with_capacity(256 << 10, file), INDEX_BYTES_MAX)
}

fn read(form: Form, input: BufReader<File>, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let size = input.get_ref().metadata()?.len();
    let mut text = Vec::new();
    if form == Form::Plain {
        text.reserve_exact(usize::try_from(size.min(limit_bytes)).unwrap_or(0));
    }
    Reader::open(form, input, limit_bytes)?.read_to_end(&mut text)?;
    text.shrink_to_fit();
    Ok(text)
}

/// The error of a file that is missing, unreadable or damaged.
pub fn unreadable(path: &Path, error: &io::Error) -> CommandError {
    match error.kind() {
        io::ErrorKind::InvalidData
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::Other
        | io::ErrorKind::FileTooLarge => {
            CommandError::new(ErrorKind::Verification, format_args!("{}: {error}", path.display()))
        }
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
            CommandError::usage(format_args!("{}: {error}", path.display()))
        }
        _ => CommandError::cannot("read", path, error),
    }
}

fn bad_script(path: &impl AsRef<Path>, error: &ScriptError) -> CommandError {
    CommandError::new(ErrorKind::Verification, format_args!("{}: {error}", path.as_ref().display()))
}
