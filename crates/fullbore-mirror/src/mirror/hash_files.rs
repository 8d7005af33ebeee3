//! Hashes published files and compares them with their expected size and hash.
//!
//! For trees of other tools, for a lost state, and for `check`. Threads take files from a shared counter, in order of
//! path, which resembles their order on disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fullbore_engine::digest::{READ_BYTES, Sha256, Sha256Hasher};
use fullbore_engine::files::FileError;
use fullbore_engine::stage::StageClock;

use super::tree::Tree;

/// A file to hash, with its expected content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job<'a> {
    /// Number that the caller uses for the file.
    pub id: u32,
    /// Path relative to the mirror's directory.
    pub path: &'a str,
    /// Expected size in bytes, if known.
    pub size: Option<u64>,
    /// Expected SHA-256 of the content.
    pub sha256: Sha256,
    /// Whether a hash that the tree knows is enough. A file without one is read.
    pub known_is_enough: bool,
}

/// Result of hashing a file.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The content is right; with its size in bytes.
    Right(u64),
    /// The file does not exist.
    Missing,
    /// Another size, in bytes; the content was not read.
    Size(u64),
    /// The right size, but another SHA-256.
    Hash(Sha256),
    /// The file cannot be read: it is not a regular file, or the disk fails.
    Unreadable(FileError),
}

/// Hashes all `jobs` on `threads` threads, until `stop` is set. Each thread calls `seen` with its results. `clock` is
/// the clock of the stage "local scan".
pub(crate) fn read_all<'a>(
    tree: &dyn Tree,
    jobs: impl Fn(usize) -> Option<Job<'a>> + Sync,
    threads: usize,
    clock: &Arc<StageClock>,
    stop: &AtomicBool,
    seen: &(dyn Fn(u32, Outcome) + Sync),
) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                clock.adopt_thread();
                let mut buffer = vec![0; READ_BYTES];
                while !stop.load(Ordering::Relaxed) {
                    let Some(job) = jobs(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    let outcome = read(tree, &job, &mut buffer, clock);
                    let bytes = if let Outcome::Right(bytes) = outcome { bytes } else { 0 };
                    clock.add_items(1, bytes);
                    seen(job.id, outcome);
                }
            });
        }
    });
}

/// Hashes one file, unless the hash that the tree knows is enough.
fn read(tree: &dyn Tree, job: &Job<'_>, buffer: &mut [u8], clock: &StageClock) -> Outcome {
    let known = if job.known_is_enough { clock.device(|| tree.known_content(job.path)) } else { Ok(None) };
    match known {
        Ok(Some((_, size))) if job.size.is_some_and(|wanted| wanted != size) => return Outcome::Size(size),
        Ok(Some((sha256, size))) if sha256 == job.sha256 => return Outcome::Right(size),
        Ok(Some((sha256, _))) => return Outcome::Hash(sha256),
        Ok(None) => {}
        Err(error) => return Outcome::Unreadable(error),
    }
    let (mut file, status) = match clock.device(|| tree.open(job.path)) {
        Ok(Some(there)) => there,
        Ok(None) => return Outcome::Missing,
        Err(error) => return Outcome::Unreadable(error),
    };
    if job.size.is_some_and(|size| size != status.size) {
        return Outcome::Size(status.size);
    }
    file.will_be_read_whole();
    let mut hasher = Sha256Hasher::new();
    loop {
        match clock.device(|| std::io::Read::read(&mut file, buffer)) {
            Ok(0) => break,
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // The store's checksum says that the content has changed. Our own hash tells what it is.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => break,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Outcome::Missing,
            Err(source) => {
                return Outcome::Unreadable(FileError::Io { operation: "read", path: job.path.to_owned(), source });
            }
        }
    }
    let bytes = hasher.bytes();
    match hasher.finish() {
        right if right == job.sha256 => Outcome::Right(bytes),
        other => Outcome::Hash(other),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use fullbore_engine::files::Root;
    use fullbore_engine::stage::{Kind, Ledger};

    use super::*;

    #[test]
    fn each_file_is_read_once_and_judged() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let names: Vec<String> = (0..200).map(|number| format!("pool/{number}")).collect();
        for name in &names {
            root.write_part(name, name.as_bytes()).unwrap().finish().unwrap();
        }
        std::fs::write(directory.path().join("pool/1"), "pool/X").unwrap();
        std::fs::write(directory.path().join("pool/2"), "longer").unwrap();
        std::fs::write(directory.path().join("pool/3"), "longer than that").unwrap();
        std::fs::remove_file(directory.path().join("pool/4")).unwrap();
        std::fs::remove_file(directory.path().join("pool/5")).unwrap();
        std::fs::create_dir(directory.path().join("pool/5")).unwrap();
        let clock = Ledger::off().stage("local scan", Kind::Thread);
        let seen = Mutex::new(BTreeMap::new());
        let job = |at: usize| {
            let path = names.get(at)?;
            Some(Job {
                id: at as u32,
                path,
                size: Some(path.len() as u64),
                sha256: Sha256::of(path.as_bytes()),
                known_is_enough: true,
            })
        };
        read_all(&root, job, 3, &clock, &AtomicBool::new(false), &|id, outcome| {
            assert!(seen.lock().unwrap().insert(id, outcome).is_none());
        });
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen.len(), 200);
        assert!(matches!(seen[&0], Outcome::Right(6)));
        assert!(matches!(seen[&1], Outcome::Hash(_)) && matches!(seen[&2], Outcome::Hash(_)));
        assert!(matches!(seen[&3], Outcome::Size(16)) && matches!(seen[&4], Outcome::Missing));
        assert!(matches!(seen[&5], Outcome::Unreadable(_)));
    }
}
