//! Place of fullbore's own files for a mirror in a bucket: this bucket, another one, or a directory.
//!
//! The directory answers like a store, so that a run works in the same way with both. Its lock is the kernel's, and
//! separates only runs that use this directory.

use std::sync::Arc;

use bytes::Bytes;
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Kind, Root};
use fullbore_s3::CallError;
use fullbore_s3::lock::Fence;
use fullbore_s3::objects::{Condition, ListedPaths, ObjectFacts, Objects, SmallObject, Written};

use super::super::state::OWN_DIRECTORY;

/// Place of fullbore's own files.
#[derive(Debug, Clone)]
pub(super) enum StateFiles {
    /// Objects; changes are made only behind the fence.
    Bucket(Objects),
    /// Files below `.fullbore` in a directory.
    Directory(Arc<Root>),
}

impl StateFiles {
    /// Uses these objects, with all changes behind a fence.
    pub(super) fn behind(objects: &Objects, fence: Arc<Fence>) -> StateFiles {
        StateFiles::Bucket(objects.behind(fence))
    }

    /// Reads a file of at most `bytes_max`, as [`Objects::get`] does; `None` if it does not exist.
    ///
    /// # Errors
    /// The errors of [`Objects::get`], or [`CallError::Disk`] if the file cannot be read.
    pub(super) async fn get(&self, path: &str, bytes_max: usize) -> Result<Option<SmallObject>, CallError> {
        let root = match self {
            StateFiles::Bucket(objects) => return objects.get(path, bytes_max).await,
            StateFiles::Directory(root) => root,
        };
        let content = root.read(path, bytes_max as u64).map_err(|error| disk(&error))?;
        Ok(content.map(|content| {
            let facts = facts(content.len() as u64, &content);
            SmallObject { content: content.into(), facts }
        }))
    }

    /// Size and tag of a file, as from [`Objects::head`]; `None` if it does not exist.
    ///
    /// # Errors
    /// The errors of [`Objects::head`], or [`CallError::Disk`] if the file cannot be read.
    pub(super) async fn head(&self, path: &str) -> Result<Option<ObjectFacts>, CallError> {
        match self {
            StateFiles::Bucket(objects) => objects.head(path).await,
            StateFiles::Directory(_) => Ok(self.get(path, usize::MAX).await?.map(|found| found.facts)),
        }
    }

    /// Writes a file on a condition, as [`Objects::put`] does.
    ///
    /// # Errors
    /// The errors of [`Objects::put`], or [`CallError::Disk`] if the file cannot be written.
    pub(super) async fn put(
        &self,
        path: &str,
        fields: Vec<(String, String)>,
        content: Bytes,
        condition: &Condition,
    ) -> Result<Written, CallError> {
        let root = match self {
            StateFiles::Bucket(objects) => return objects.put(path, fields, content, condition).await,
            StateFiles::Directory(root) => root,
        };
        let there = match condition {
            Condition::None => None,
            _ => self.head(path).await?.and_then(|facts| facts.etag),
        };
        let holds = match condition {
            Condition::None => true,
            Condition::Absent => there.is_none(),
            Condition::Tag(tag) => there.as_ref() == Some(tag),
        };
        if !holds {
            return Ok(Written::Refused);
        }
        let write = || {
            root.create_directory(OWN_DIRECTORY, 0o700)?;
            let part = root.write_part(path, &content)?;
            part.finish()
        };
        write().map_err(|error| disk(&error))?;
        Ok(Written::Stored(facts(content.len() as u64, &content).etag))
    }

    /// Lists the files whose paths begin with `below`, as [`Objects::list`] does.
    ///
    /// # Errors
    /// The errors of [`Objects::list`], or [`CallError::Disk`] if the directory cannot be read.
    pub(super) async fn list(&self, below: &str) -> Result<ListedPaths, CallError> {
        let root = match self {
            StateFiles::Bucket(objects) => return objects.list(below).await,
            StateFiles::Directory(root) => root,
        };
        let (directory, _) = below.rsplit_once('/').unwrap_or_default();
        let mut found = ListedPaths::new();
        for (name, kind) in root.list(directory).map_err(|error| disk(&error))? {
            let path = format!("{directory}/{}", name.to_string_lossy());
            if kind == Kind::File && path.starts_with(below) {
                found.push((path, 0, String::new()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Removes files, as [`Objects::remove`] does.
    ///
    /// # Errors
    /// The errors of [`Objects::remove`], or [`CallError::Disk`] if a file cannot be removed.
    pub(super) async fn remove(&self, paths: &[String]) -> Result<(), CallError> {
        match self {
            StateFiles::Bucket(objects) => objects.remove(paths).await,
            StateFiles::Directory(root) => {
                paths.iter().try_for_each(|path| root.unlink(path).map(drop)).map_err(|error| disk(&error))
            }
        }
    }
}

fn facts(size: u64, content: &[u8]) -> ObjectFacts {
    let sha256 = Sha256::of(content);
    ObjectFacts {
        size,
        etag: Some(sha256.to_hex().as_str().to_owned()),
        sha256: Some(sha256),
        is_stores_own: true,
        mtime: None,
        modified: None,
        answered: None,
    }
}

fn disk(error: &FileError) -> CallError {
    CallError::Disk(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_keeps_to_conditions() {
        let directory = tempfile::tempdir().unwrap();
        let files = StateFiles::Directory(Arc::new(Root::open(directory.path()).unwrap()));
        let put = |content: &'static str, condition: Condition| {
            let files = files.clone();
            async move { files.put(".fullbore/state", Vec::new(), Bytes::from(content), &condition).await.unwrap() }
        };
        let Written::Stored(Some(first)) = put("one", Condition::Absent).await else { panic!("it is new") };
        assert_eq!(put("two", Condition::Absent).await, Written::Refused);
        let Written::Stored(Some(_)) = put("two", Condition::Tag(first.clone())).await else { panic!("as it was") };
        assert_eq!(put("three", Condition::Tag(first)).await, Written::Refused);
        assert_eq!(files.get(".fullbore/state", 9).await.unwrap().unwrap().content, "two");
        let listed = files.list(".fullbore/st").await.unwrap();
        assert_eq!(listed.iter().map(|(path, ..)| path.as_str()).collect::<Vec<_>>(), [".fullbore/state"]);
        files.remove(&[".fullbore/state".to_owned()]).await.unwrap();
        assert!(files.head(".fullbore/state").await.unwrap().is_none());
    }
}
