//! Finds the indexes below a directory, and the form in which each is read.

use fullbore_debian::classify::{IndexKind, classify};
use fullbore_debian::compression::Form;
use fullbore_engine::files::{Kind, Root};
use fullbore_engine::run::error::CommandError;
use regex::Regex;

use super::super::file_error;

/// Directories below each other. An archive has five.
const DEPTH_MAX: usize = 16;
/// Indexes of one suite. Debian's largest has some 800.
const INDEXES_MAX: usize = 10_000;

/// An index that may have patches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Index {
    /// Path below the directory, without the extension of a form.
    pub path: String,
    /// Compression of the file that is read.
    pub form: Form,
}

impl Index {
    /// The file that is read.
    pub(super) fn file(&self) -> String {
        format!("{}{}", self.path, self.form.extension())
    }

    /// The path of a file in its patch directory.
    pub(super) fn patch_path(&self, name: &str) -> String {
        format!("{}.diff/{name}", self.path)
    }
}

/// The indexes below a directory, sorted by path.
pub(super) fn indexes(root: &Root, exclude: &[Regex]) -> Result<Vec<Index>, CommandError> {
    // The name of a directory classifies its indexes: i18n, source.
    let name = root.path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut found: Vec<Index> = Vec::new();
    let mut directories = vec![(String::new(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        for (entry, kind) in root.list(&directory).map_err(file_error)? {
            let Some(entry) = entry.to_str() else { continue };
            let path = if directory.is_empty() { entry.to_owned() } else { format!("{directory}/{entry}") };
            match kind {
                Kind::Directory if depth < DEPTH_MAX && !is_ours(entry) => directories.push((path, depth + 1)),
                Kind::File if has_patches(&format!("{name}/{path}")) => add(&mut found, &path),
                _ => {}
            }
        }
        if found.len() > INDEXES_MAX {
            return Err(CommandError::usage(format_args!("more than {INDEXES_MAX} indexes below one directory")));
        }
    }
    found.retain(|index| !exclude.iter().any(|filter| filter.is_match(&index.path)));
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Directories without indexes.
fn is_ours(name: &str) -> bool {
    name.starts_with('.') || name == "by-hash" || name.ends_with(".diff")
}

/// Whether Debian publishes patches for such an index.
fn has_patches(path: &str) -> bool {
    let name = classify(path);
    let kind = matches!(
        name.kind,
        IndexKind::Packages { .. } | IndexKind::Sources | IndexKind::Contents { .. } | IndexKind::Translation { .. }
    );
    kind && !name.diff
}

fn add(found: &mut Vec<Index>, path: &str) {
    let (stem, form) = Form::split(path);
    match found.iter_mut().find(|index| index.path == stem) {
        Some(index) if form.is_faster_than(index.form) => index.form = form,
        Some(_) => {}
        None => found.push(Index { path: stem.to_owned(), form }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_found_in_their_fastest_form() {
        let directory = tempfile::tempdir().unwrap();
        for path in [
            "main/binary-amd64/Packages.xz",
            "main/binary-amd64/Packages.gz",
            "main/binary-amd64/Release",
            "main/binary-amd64/by-hash/SHA256/Packages",
            "main/binary-amd64/Packages.diff/Packages",
            "main/source/Sources",
            "main/source/Sources.xz",
            "main/Contents-amd64.gz",
            "main/i18n/Translation-en.bz2",
            "main/dep11/Components-amd64.yml.gz",
            ".fullbore/main/source/Sources",
            "Release",
        ] {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let exclude = [".*Contents.*".parse().unwrap()];
        let root = Root::open(directory.path()).unwrap();
        let files: Vec<String> = indexes(&root, &exclude).unwrap().iter().map(Index::file).collect();
        let expected = ["main/binary-amd64/Packages.gz", "main/i18n/Translation-en.bz2", "main/source/Sources"];
        assert_eq!(files, expected);
        let root = Root::open(&directory.path().join("main/i18n")).unwrap();
        assert_eq!(indexes(&root, &[]).unwrap()[0].path, "Translation-en");
    }
}
