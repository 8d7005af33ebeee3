//! `--verify`: reads written data back, from the device and not from memory, and compares it with the hashes of the
//! transfer.
//!
//! Files are opened with `O_DIRECT`, which bypasses the page cache (open(2)). If a file system does not support it, the
//! cached pages are dropped first (posix_fadvise(2), `DONTNEED`). That works, as the earlier sync has written them out.
//! A file with wrong content gets another time, so that the next run copies it again.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fullbore_engine::stage::Kind as Clock;
use rustix::fs::{Advice, OFlags, SeekFrom};
use rustix::io::Errno;

use super::attributes::{DAY_S, change_time};
use super::in_the_way::InTheWay;
use super::opened::Opened;
use super::partial::errno;
use super::tree::{Folder, Tree};
use crate::entry::{Time, join, shown};
use crate::error::CopyError;
use crate::session::{Context, add};
use crate::wire::{BLOCK_BYTES, ProblemKind, block_bytes, block_len};

/// Alignment for direct reads in bytes: the largest logical block of devices in use.
const ALIGNMENT: usize = 4096;

/// Block numbers and their hashes.
pub(super) type Hashes = Vec<(u64, [u8; 32])>;

/// The name and the expected hashes of a written file: 32 bytes per block.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) directory: Arc<Vec<u8>>,
    pub(super) name: Vec<u8>,
    /// Length in bytes, which determines the length of its blocks.
    pub(super) size: u64,
    /// End of the content, if the source's file became shorter while it was read.
    pub(super) end: u64,
    /// Hashes of its blocks, except those that are holes.
    pub(super) hashes: Hashes,
}

/// Files written so far.
#[derive(Debug, Default)]
pub(super) struct Verify {
    files: Mutex<Vec<Written>>,
}

impl Verify {
    /// Records a file.
    pub(super) fn note(&self, mut file: Written) {
        file.hashes.sort_unstable();
        self.lock().push(file);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Written>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets files that have no name yet because a directory occupies it; they are not read back.
    pub(super) fn forget(&self, in_the_way: &InTheWay) {
        if in_the_way.is_waited_for() {
            self.lock().retain(|file| !in_the_way.has(&join(&file.directory, &file.name)));
        }
    }

    /// Reads all files back in `threads` threads, after the sync. Returns the number of files that could not be opened
    /// and are unverified; each has been reported.
    ///
    /// # Errors
    /// [`CopyError::Damaged`] with the first path if content differs; each such file has been reported.
    /// [`CopyError::Interrupted`] if the run is cancelled.
    pub(super) fn run(
        &self,
        context: &Context<'_>,
        (tree, opened): (&Tree, &Opened<'_>),
        threads: usize,
        problem: &(dyn Fn(ProblemKind, &[u8], String) + Sync),
    ) -> Result<usize, CopyError> {
        let files = std::mem::take(&mut *self.lock());
        let clock = context.ledger.stage("verify", Clock::Thread);
        let (next, unread, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
        let began = Instant::now();
        let work = || {
            let _guard = context.cancel.guard();
            clock.adopt_thread();
            let mut buffer = Vec::new();
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                if context.cancel.is_cancelled() {
                    return;
                }
                let path = join(&file.directory, &file.name);
                let text = match clock.device(|| check((tree, opened), file, &mut buffer)) {
                    Err(error) => {
                        let text = format!("cannot read it back: {}", std::io::Error::from(error));
                        problem(ProblemKind::Unreadable, &path, text);
                        unread.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    Ok(Ok(true)) => {
                        clock.add_items(1, file.end);
                        add(&context.progress.verified_bytes, file.end);
                        continue;
                    }
                    Ok(Ok(false)) => "its content is another one; run again".to_owned(),
                    Ok(Err(error)) => std::io::Error::from(error).to_string(),
                };
                problem(ProblemKind::Damaged, &path, text);
                wrong.lock().unwrap_or_else(PoisonError::into_inner).push(path);
            }
        };
        std::thread::scope(|scope| {
            (1..threads.max(1)).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        add(&context.progress.verify_us, micros);
        match wrong.lock().unwrap_or_else(PoisonError::into_inner).first() {
            Some(path) => Err(CopyError::Damaged { path: shown(path) }),
            None if context.cancel.is_cancelled() => Err(CopyError::Interrupted),
            None => Ok(unread.into_inner()),
        }
    }
}

/// Whether a file is as it was written, or the error of reading it. Unless it is right, it gets another time.
///
/// # Errors
/// The error of opening the file, which says nothing about its content.
fn check(
    (tree, opened): (&Tree, &Opened<'_>),
    file: &Written,
    buffer: &mut Vec<u8>,
) -> Result<Result<bool, Errno>, Errno> {
    let folder = tree.folder(&file.directory)?;
    let right = is_right(&open(opened, &folder, &file.name)?, file, buffer);
    if !matches!(right, Ok(true)) {
        // Fails if the device has become read-only; then only the message tells. The time becomes 1970, or a day later
        // if the source's own is 1970.
        let day = |time: Time| Time { seconds: time.seconds.saturating_add(DAY_S), ..time };
        let _ = change_time(&folder, &file.name, |now| [Time::default(), day(Time::default()), day(now)]);
    }
    Ok(right)
}

fn is_right(open: &File, file: &Written, buffer: &mut Vec<u8>) -> Result<bool, Errno> {
    if rustix::fs::fstat(open)?.st_size as u64 != file.end {
        return Ok(false);
    }
    let length = block_bytes(file.size);
    let mut behind = 0;
    for (index, hash) in &file.hashes {
        let offset = index * length;
        let here = block_len(file.size, *index).min(file.end.saturating_sub(offset)) as usize;
        let same = |content: &[u8]| blake3::hash(content).as_bytes() == hash;
        if !is_hole(open, behind..offset.min(file.end), buffer)? || !read(open, buffer, offset, here)?.is_some_and(same)
        {
            return Ok(false);
        }
        behind = offset + length;
    }
    is_hole(open, behind..file.end, buffer)
}

/// Whether a range that starts at a block boundary has only zeros.
fn is_hole(file: &File, range: Range<u64>, buffer: &mut Vec<u8>) -> Result<bool, Errno> {
    let mut at = range.start;
    while at < range.end {
        match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < range.end => at = data - data % ALIGNMENT as u64,
            Ok(_) | Err(Errno::NXIO) => return Ok(true),
            // The file system does not report holes: read everything.
            Err(_) => {}
        }
        let length = (range.end - at).min(BLOCK_BYTES) as usize;
        let zeros = |content: &[u8]| content.iter().all(|byte| *byte == 0);
        if !read(file, buffer, at, length)?.is_some_and(zeros) {
            return Ok(false);
        }
        at += length as u64;
    }
    Ok(true)
}

/// Reads from a file that [`open`] returned; `None` if it ends before.
pub(super) fn read<'a>(
    file: &File,
    buffer: &'a mut Vec<u8>,
    offset: u64,
    length: usize,
) -> Result<Option<&'a [u8]>, Errno> {
    buffer.resize(buffer.len().max(length + 2 * ALIGNMENT), 0);
    let begin = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let space = &mut buffer[begin..begin + length.next_multiple_of(ALIGNMENT)];
    Ok(if fill(file, space, offset, length)? < length { None } else { Some(&space[..length]) })
}

/// Opens a file so that reads reach the device.
pub(super) fn open(opened: &Opened<'_>, folder: &Folder, name: &[u8]) -> Result<File, Errno> {
    match opened.open_file(folder, name, OFlags::DIRECT) {
        Err(Errno::INVAL) => {
            let file = opened.open_file(folder, name, OFlags::empty())?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
            Ok(File::from(file))
        }
        opened => opened.map(File::from),
    }
}

/// Reads whole alignment units. Returns the number of bytes, at least `wanted` unless the file ends before.
fn fill(file: &File, space: &mut [u8], offset: u64, wanted: usize) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < wanted {
        // A direct read must continue at an aligned offset.
        let from = filled - filled % ALIGNMENT;
        match file.read_at(&mut space[from..], offset + from as u64) {
            Ok(count) if from + count <= filled => break,
            Ok(count) => filled = from + count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::options::Options;
    use crate::session::tests::with_context;

    fn written(name: &str, content: &[u8]) -> Written {
        let size = content.len() as u64;
        let hash = |part: &[u8]| *blake3::hash(part).as_bytes();
        let hashes = (0..).zip(content.chunks(block_bytes(size) as usize).map(hash)).collect();
        Written { directory: Arc::default(), name: name.into(), size, end: size, hashes }
    }

    fn is_right(path: &Path, file: &Written) -> bool {
        let tree = Tree::open(path).unwrap();
        check((&tree, &Opened::of(&tree)), file, &mut Vec::new()).unwrap().unwrap()
    }

    #[test]
    fn one_changed_byte_is_found_and_the_next_run_will_copy_it() {
        let directory = tempfile::tempdir().unwrap();
        for length in [0, 1, 4095, 4096, 70_000, (1 << 20) + 5] {
            let mut content: Vec<u8> = (0..length).map(|index| (index / 7) as u8).collect();
            let (path, file) = (directory.path().join("file"), written("file", &content));
            std::fs::write(&path, &content).unwrap();
            assert!(is_right(directory.path(), &file), "{length}");
            if let Some(last) = content.last_mut() {
                *last ^= 1;
                std::fs::write(&path, &content).unwrap();
                assert!(!is_right(directory.path(), &file), "{length}");
                assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), std::time::UNIX_EPOCH);
            }
            content.push(0);
            std::fs::write(&path, &content).unwrap();
            assert!(!is_right(directory.path(), &file), "{length}: longer");
        }
    }

    #[test]
    fn a_wrong_file_gets_another_time_also_if_its_own_is_that_of_1970() {
        use std::os::unix::fs::MetadataExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for seconds in [0, 1, 2, 86_400, 1_000_000_000] {
            std::fs::write(&path, "wrong").unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            assert!(!is_right(directory.path(), &written("file", b"right")));
            let marked = std::fs::metadata(&path).unwrap().mtime();
            assert!(marked.abs_diff(seconds as i64) >= 86_400 / 2, "{seconds}: {marked}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_not_called_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, verify) = (Tree::open(directory.path()).unwrap(), Verify::default());
        std::fs::write(directory.path().join("file"), "x").unwrap();
        verify.note(written("gone", b"x"));
        verify.note(written("file", b"x"));
        let told = Mutex::new(Vec::new());
        let problem = |kind, path: &[u8], _: String| told.lock().unwrap().push((kind, path.to_vec()));
        let run = |context: &Context<'_>| verify.run(context, (&tree, &Opened::of(&tree)), 2, &problem);
        assert_eq!(with_context(&Options::default(), run).unwrap(), 1);
        assert_eq!(told.into_inner().unwrap(), [(ProblemKind::Unreadable, b"gone".to_vec())]);
    }

    #[test]
    fn what_was_not_read_back_to_its_end_is_not_right() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "x").unwrap();
        let (tree, verify) = (Tree::open(directory.path()).unwrap(), Verify::default());
        verify.note(written("file", b"x"));
        let result = with_context(&Options::default(), |context| {
            context.cancel.cancel(CopyError::Interrupted);
            verify.run(context, (&tree, &Opened::of(&tree)), 2, &|_, _, _| {})
        });
        assert!(matches!(result, Err(CopyError::Interrupted)), "{result:?}");
    }

    /// ext4 in an image, mounted while it lives.
    struct Disk {
        image: std::path::PathBuf,
        path: std::path::PathBuf,
    }

    impl Disk {
        fn new(directory: &Path) -> Disk {
            assert!(rustix::process::geteuid().is_root(), "mounts an image: run as root (script/test does)");
            let disk = Disk { image: directory.join("image"), path: directory.join("disk") };
            std::fs::create_dir(&disk.path).unwrap();
            std::fs::File::create(&disk.image).unwrap().set_len(16 << 20).unwrap();
            let run = |program: &str, options: &[&str], paths: &[&Path]| {
                let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
                let mut command = std::process::Command::new(program);
                let status = command.env("PATH", path).args(options).args(paths).status();
                assert!(status.unwrap().success(), "{program}: needs e2fsprogs, mount, loop devices");
            };
            run("mkfs.ext4", &["-q", "-F"], &[&disk.image]);
            run("mount", &["-o", "loop"], &[&disk.image, &disk.path]);
            disk
        }
    }

    impl Drop for Disk {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(&self.path).status();
        }
    }

    #[test]
    fn what_the_device_has_counts_and_not_what_the_cache_still_has() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::new(directory.path());
        let content: Vec<u8> = (0..3 << 18).flat_map(|index: u32| index.to_le_bytes()).collect();
        let path = disk.path.join("file");
        std::fs::write(&path, &content).unwrap();
        rustix::fs::syncfs(std::fs::File::open(&path).unwrap()).unwrap();
        let file = written("file", &content);
        assert!(is_right(&disk.path, &file));
        // The device loses a bit beneath the file system.
        let image = std::fs::File::options().read(true).write(true).open(&disk.image).unwrap();
        let (mut bytes, wanted) = (vec![0; 16 << 20], &content[1 << 20..][..4096]);
        image.read_exact_at(&mut bytes, 0).unwrap();
        let at = bytes.chunks(1024).position(|chunk| *chunk == wanted[..1024]).expect("its content is in the image");
        image.write_all_at(&[!wanted[0]], at as u64 * 1024).unwrap();
        assert!(std::fs::read(&path).unwrap() == content, "the cache has it as it was");
        assert!(!is_right(&disk.path, &file));
    }

    #[test]
    fn a_hole_has_to_be_zeros() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let open = |size: u64| {
            let file = std::fs::File::options().write(true).create(true).truncate(false).open(&path).unwrap();
            file.set_len(size).unwrap();
            file
        };
        let content = [7; 1 << 20];
        open(8 << 20).write_all_at(&content, 2 << 20).unwrap();
        let hashes = vec![(2, *blake3::hash(&content).as_bytes())];
        let size = 8 << 20;
        let file = Written { directory: Arc::default(), name: b"file".into(), size, end: size, hashes };
        assert!(is_right(directory.path(), &file));
        // Zeros that are written are no hole, and right.
        open(size).write_all_at(&[0; 5000], (5 << 20) + 3).unwrap();
        assert!(is_right(directory.path(), &file));
        for at in [0, (2 << 20) - 1, 3 << 20, size - 1] {
            open(size).write_all_at(b"x", at).unwrap();
            assert!(!is_right(directory.path(), &file), "at {at}");
            open(size).write_all_at(&[0], at).unwrap();
        }
        assert!(is_right(directory.path(), &file));
    }
}
