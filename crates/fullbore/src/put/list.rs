//! The list of caps: lines of JSON, for the owner's eyes only, there as a whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::CommandError;

/// The list on its way.
pub struct List(Option<Open>);

struct Open {
    path: PathBuf,
    part: PathBuf,
    file: BufWriter<File>,
    failed: Option<io::Error>,
}

/// One file, as the list and `--json` have it. A path that is no Unicode is given as bytes as well.
pub fn entry(path: &Path, size: u64, cap: &str, happiness: Option<usize>) -> Value {
    let mut entry = json!({"path": path.to_string_lossy(), "size": size, "cap": cap});
    if path.to_str().is_none() {
        entry["path_base64"] = STANDARD.encode(path.as_os_str().as_bytes()).into();
    }
    if let Some(happiness) = happiness {
        entry["event"] = "stored".into();
        entry["happiness"] = happiness.into();
    }
    entry
}

impl List {
    /// Begins a list at this path, if one is wanted, under a temporary name beside it.
    pub fn open(path: Option<&Path>) -> Result<List, CommandError> {
        let Some(path) = path else { return Ok(List(None)) };
        let Some(name) = path.file_name() else {
            return Err(CommandError::usage(format_args!("--caps {}: not the name of a file", path.display())));
        };
        let mut part = std::ffi::OsString::from(".");
        part.push(name);
        part.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(part);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
        let file = file.map_err(|error| CommandError::disk(&part, &error))?;
        Ok(List(Some(Open { path: path.to_owned(), part, file: BufWriter::new(file), failed: None })))
    }

    /// Adds a file.
    pub fn add(&mut self, path: &Path, size: u64, cap: &str) {
        let Some(open) = &mut self.0 else { return };
        if open.failed.is_none() {
            open.failed = writeln!(open.file, "{}", entry(path, size, cap, None)).err();
        }
    }

    /// Gives it its name.
    pub fn publish(&mut self) -> Result<(), CommandError> {
        let Some(mut open) = self.0.take() else { return Ok(()) };
        let written = match open.failed.take() {
            Some(error) => Err(error),
            None => open.file.flush(),
        };
        let published = written
            .and_then(|()| open.file.get_ref().sync_all())
            .and_then(|()| std::fs::rename(&open.part, &open.path));
        published.map_err(|error| {
            let _ = std::fs::remove_file(&open.part);
            CommandError::disk(&open.path, &error)
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Some(open) = &self.0 {
            let _ = std::fs::remove_file(&open.part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_list_is_whole_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("caps");
        let mut list = List::open(Some(&path)).unwrap();
        list.add(Path::new("a\nb"), 5, "URI:LIT:x");
        list.add(Path::new(OsStr::from_bytes(b"\xff")), 6, "URI:LIT:y");
        assert!(!path.exists());
        list.publish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().next(), Some(r#"{"cap":"URI:LIT:x","path":"a\nb","size":5}"#));
        assert!(text.contains(r#""path_base64":"/w==""#), "{text}");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        drop(List::open(Some(&path)).unwrap());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing temporary is left");
    }
}
