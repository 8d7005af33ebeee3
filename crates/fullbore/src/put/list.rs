//! The list of caps: lines of JSON, for the owner's eyes only, there as a whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fullbore_engine::output::{self, Output};
use fullbore_engine::run::error::CommandError;
use serde_json::{Value, json};

use crate::stdio;

/// The list on its way.
pub struct List(Option<Open>);

struct Open {
    output: Output,
    lines: BufWriter<File>,
    is_empty: bool,
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
        let failed = |error| CommandError::disk(path, &error).context("--caps");
        let output = Output::begin(path, output::PRIVATE).map_err(failed)?;
        let lines = BufWriter::new(output.file().try_clone().map_err(failed)?);
        Ok(List(Some(Open { output, lines, is_empty: true, failed: None })))
    }

    /// Adds a file.
    pub fn add(&mut self, path: &Path, size: u64, cap: &str) {
        let Some(open) = &mut self.0 else { return };
        open.is_empty = false;
        if open.failed.is_none() {
            open.failed = open.lines.write_all(&stdio::json_line(&entry(path, size, cap, None))).err();
        }
    }

    /// Gives it its name. `all_done`: without it, a list of nothing does not take the place of an older one, which may
    /// have the only caps of what it lists.
    pub fn publish(&mut self, all_done: bool) -> Result<(), CommandError> {
        let Some(Open { output, mut lines, is_empty, failed }) = self.0.take() else { return Ok(()) };
        if is_empty && !all_done {
            return Ok(());
        }
        let path = output.path().to_owned();
        let written = failed.map_or_else(|| lines.flush(), Err);
        let published = written.and_then(|()| output.sync()).and_then(|()| output.publish());
        published.map_err(|error| CommandError::disk(&path, &error))
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
        list.publish(false).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().next(), Some(r#"{"cap":"URI:LIT:x","path":"a\nb","size":5}"#));
        assert!(text.contains(r#""path_base64":"/w==""#), "{text}");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        List::open(Some(&path)).unwrap().publish(false).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "nothing was put, and nothing is lost");
        drop(List::open(Some(&path)).unwrap());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing temporary is left");
    }
}
