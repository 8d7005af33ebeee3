//! A disk of a given speed: ext4 on a loop device whose backing file is served through FUSE.
//!
//! The limit lies below the file system, so write-back, dirty limits, `syncfs` and the
//! counters in `/sys/block` behave as with a slow disk; limits of cgroups do not bind buffered
//! writes in that way. Needs root, `/dev/fuse`, loop devices and mkfs.ext4.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::unix::{fs::FileExt, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use tempfile::TempDir;

use crate::power_cut::BlockLog;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};

/// The only file of the file system beneath the loop device.
const DISK: &str = "disk";
const DISK_INODE: u64 = 2;

/// How long the kernel may believe what it knows about that file; nobody else changes it.
const VALID: Duration = Duration::from_secs(3600);

/// Longest request the kernel sends at once.
const WRITE_BYTES: u32 = 1 << 20;

/// Requests that wait for the disk; the kernel has fewer than this under way.
const QUEUE: usize = 1024;

/// What can be changed while the disk is in use.
#[derive(Debug)]
struct Speed {
    write_bytes_per_s: AtomicU64,
    read_bytes_per_s: AtomicU64,
    flush_us: AtomicU64,
    broken: AtomicBool,
    written_bytes: AtomicU64,
}

/// Answers wait here for as long as the disk is busy: one at a time, in order.
type Job = (Duration, Box<dyn FnOnce() + Send>);

struct Platter {
    backing: File,
    size: u64,
    speed: Arc<Speed>,
    queue: mpsc::SyncSender<Job>,
    log: SharedLog,
}

/// What is written, while somebody wants to know.
type SharedLog = Arc<Mutex<Option<BlockLog>>>;

fn log(log: &SharedLog, event: impl FnOnce(&mut BlockLog)) {
    if let Some(log) = log.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        event(log);
    }
}

/// A disk that was idle for less than this goes on as if it had not been: a real one has a cache,
/// and our answers are late by the time that a thread needs to wake up.
const CREDIT: Duration = Duration::from_millis(20);

/// The thread that is the disk.
fn spin(jobs: mpsc::Receiver<Job>) {
    let mut free_at = Instant::now();
    for (cost, answer) in jobs {
        let now = Instant::now();
        free_at = free_at.max(now.checked_sub(CREDIT).unwrap_or(now)) + cost;
        thread::sleep(free_at.saturating_duration_since(Instant::now()));
        answer();
    }
}

fn cost(bytes: usize, rate_bytes_per_s: u64) -> Duration {
    match rate_bytes_per_s {
        0 => Duration::ZERO,
        rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
    }
}

impl Platter {
    fn attributes(&self, inode: u64) -> FileAttr {
        let (kind, perm, size) = if inode == DISK_INODE {
            (FileType::RegularFile, 0o600, self.size)
        } else {
            (FileType::Directory, 0o700, 0)
        };
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: size / 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn later(&self, cost: Duration, answer: impl FnOnce() + Send + 'static) {
        // The thread lives as long as the sender.
        let _ = self.queue.send((cost, Box::new(answer)));
    }
}

impl Filesystem for Platter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each of these only makes requests larger; an old kernel does without.
        let _ = config.set_max_write(WRITE_BYTES);
        let _ =
            config.add_capabilities(InitFlags::FUSE_MAX_PAGES | InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_ASYNC_READ);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == DISK {
            reply.entry(&VALID, &self.attributes(DISK_INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        // Whoever asks for the directory's asks this server, each time.
        let valid = if inode.0 == DISK_INODE { VALID } else { Duration::ZERO };
        reply.attr(&valid, &self.attributes(inode.0));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // No second page cache below the loop device: each write meets the disk's speed.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; (size as u64).min(self.size.saturating_sub(offset)) as usize];
        if self.backing.read_exact_at(&mut bytes, offset).is_err() {
            return reply.error(Errno::EIO);
        }
        let cost = cost(bytes.len(), self.speed.read_bytes_per_s.load(Ordering::Relaxed));
        if cost.is_zero() { reply.data(&bytes) } else { self.later(cost, move || reply.data(&bytes)) }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.speed.broken.load(Ordering::Relaxed) || self.backing.write_all_at(data, offset).is_err() {
            return reply.error(Errno::EIO);
        }
        log(&self.log, |log| log.written(offset, data));
        let length = data.len();
        self.speed.written_bytes.fetch_add(length as u64, Ordering::Relaxed);
        self.later(cost(length, self.speed.write_bytes_per_s.load(Ordering::Relaxed)), move || {
            reply.written(length as u32);
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        log(&self.log, BlockLog::flushed);
        let flush = Duration::from_micros(self.speed.flush_us.load(Ordering::Relaxed));
        self.later(flush, move || reply.ok());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// Why there is no slow disk.
#[derive(Debug, thiserror::Error)]
pub enum SlowDiskError {
    /// Something beneath could not be made.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A program said no.
    #[error("{command}: {said}")]
    Command {
        /// The command line.
        command: String,
        /// Its words.
        said: String,
    },
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> SlowDiskError {
    move |source| SlowDiskError::Io { what, source }
}

/// mkfs and losetup live where only root's PATH leads.
fn system_path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

pub(crate) fn run(program: &str, arguments: &[&OsStr]) -> Result<String, SlowDiskError> {
    let failed = |said: String| SlowDiskError::Command { command: format!("{program} {arguments:?}"), said };
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", system_path())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string()))
    }
}

/// A process of which a thread waits for the disk when it is killed waits for ever: those that serve it have ended, and
/// all its descriptors stay open. It is a zombie then, and this takes the disk away: first by cutting off the server, which
/// `umount -f` does although it fails.
const WATCHDOG: &str = r#"
while sleep 0.5; do
    case $(cat "/proc/$1/stat") in
    *") Z "* | *") X "* | "") break ;;
    esac
done
umount -f "$2"
umount -l "$3"
losetup --detach "$4"
umount -l "$2"
rmdir "$2"
"#;

fn watchdog(below: &Path, mount: &Path, device: &str) -> io::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", WATCHDOG, "sh", &std::process::id().to_string()]).args([below, mount]).arg(device);
    // In a group of its own: what ends a whole group is to leave it.
    command.env("PATH", system_path()).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Longest wait for the end of the server. It goes on as long as a copy of the mount is in some other namespace.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// A mounted slow disk; unmounted when dropped.
#[derive(Debug)]
pub struct SlowDisk {
    mount: PathBuf,
    device: String,
    speed: Arc<Speed>,
    log: SharedLog,
    backing: PathBuf,
    watchdog: Option<Child>,
    // In this order: first the file system, then the directory it is mounted on.
    session: Option<BackgroundSession>,
    below: TempDir,
}

impl SlowDisk {
    /// What this process lacks to make one, and what helps.
    ///
    /// # Errors
    /// One line, to be shown as it is.
    pub fn available() -> Result<(), String> {
        if !rustix::process::getuid().is_root() {
            return Err("a slow disk is mounted: run as root (script/test does)".into());
        }
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            return Err(format!("/dev/fuse: {error}: modprobe fuse, or give the container that device"));
        }
        if !Path::new("/dev/loop-control").exists() {
            return Err("/dev/loop-control is missing: modprobe loop, or give the container that device".into());
        }
        for (program, package) in [("mkfs.ext4", "e2fsprogs"), ("losetup", "mount"), ("mount", "mount")] {
            let found =
                ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter().any(|at| Path::new(at).join(program).exists());
            if !found {
                return Err(format!("{program} is missing: apt-get install {package}"));
            }
        }
        Ok(())
    }

    /// Mounts a disk of so many bytes on `mount`, which must exist. Its contents go to `backing`
    /// (made, sparse; best on a tmpfs) and are of no use afterwards. The rate counts from the
    /// moment this returns; 0 is no limit.
    pub fn mount(mount: &Path, backing: &Path, size: u64, rate_bytes_per_s: u64) -> Result<SlowDisk, SlowDiskError> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(backing);
        let file = file.map_err(io_error("backing file"))?;
        file.set_len(size).map_err(io_error("size of the backing file"))?;
        let below = tempfile::tempdir().map_err(io_error("directory for FUSE"))?;
        let speed = Arc::new(Speed {
            write_bytes_per_s: AtomicU64::new(0),
            read_bytes_per_s: AtomicU64::new(0),
            flush_us: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            written_bytes: AtomicU64::new(0),
        });
        let (queue, jobs) = mpsc::sync_channel(QUEUE);
        thread::Builder::new().name("slow-disk".into()).spawn(|| spin(jobs)).map_err(io_error("thread"))?;
        let log = SharedLog::default();
        let platter = Platter { backing: file, size, speed: speed.clone(), queue, log: log.clone() };
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("slowdisk".into()), MountOption::NoExec];
        let session = fuser::spawn_mount(platter, below.path(), &config).map_err(io_error("FUSE"))?;
        let mut disk = SlowDisk {
            mount: mount.to_path_buf(),
            device: String::new(),
            speed,
            log,
            backing: backing.to_path_buf(),
            watchdog: None,
            session: Some(session),
            below,
        };
        let image = disk.below.path().join(DISK);
        disk.device = run("losetup", &["--find".as_ref(), "--show".as_ref(), image.as_os_str()])?;
        let device = disk.device.clone();
        let guarded = watchdog(disk.below(), mount, &device);
        disk.watchdog = Some(guarded.map_err(io_error("watchdog"))?);
        // Everything that ext4 would otherwise write in the background is written now, unthrottled.
        let make =
            ["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", "-i", "65536", &device];
        run("mkfs.ext4", &make.map(OsStr::new))?;
        run("mount", &["-o".as_ref(), "noatime".as_ref(), OsStr::new(&device), mount.as_os_str()])?;
        disk.set_rate(rate_bytes_per_s);
        Ok(disk)
    }

    /// Bytes per second of writes; 0 is no limit.
    pub fn set_rate(&self, bytes_per_s: u64) {
        self.speed.write_bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
    }

    /// Bytes per second of reads; 0, the default, is no limit.
    pub fn set_read_rate(&self, bytes_per_s: u64) {
        self.speed.read_bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
    }

    /// What a cache flush costs beyond the writes before it.
    pub fn set_flush(&self, time: Duration) {
        self.speed.flush_us.store(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// Every write fails with EIO from now on, or no longer.
    pub fn set_broken(&self, broken: bool) {
        self.speed.broken.store(broken, Ordering::Relaxed);
    }

    /// Bytes written to the disk so far, those of the file system included.
    pub fn written_bytes(&self) -> u64 {
        self.speed.written_bytes.load(Ordering::Relaxed)
    }

    /// Logs every write and flush from now on; `base` becomes a copy of the disk as it is, for
    /// [`SlowDisk::recorded`] to stand on. Nobody may write meanwhile.
    ///
    /// # Errors
    /// When the copy cannot be made.
    pub fn record(&self, base: &Path) -> Result<(), SlowDiskError> {
        let root = File::open(&self.mount).map_err(io_error("mounted directory"))?;
        rustix::fs::syncfs(&root).map_err(|error| io_error("sync")(error.into()))?;
        // cp keeps the holes.
        run("cp", &["--sparse=always".as_ref(), self.backing.as_os_str(), base.as_os_str()])?;
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = Some(BlockLog::new(base));
        Ok(())
    }

    /// Ends the logging.
    pub fn recorded(&self) -> Option<BlockLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The block device, such as `/dev/loop3`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Where the file system that holds it is mounted; this process serves it.
    pub fn below(&self) -> &Path {
        self.below.path()
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.set_rate(0);
        self.set_flush(Duration::ZERO);
        self.set_broken(false);
        // Each step may fail because the one before did; all are tried.
        if run("umount", &[self.mount.as_os_str()]).is_err() {
            let _ = run("umount", &["-l".as_ref(), self.mount.as_os_str()]);
        }
        if !self.device.is_empty() {
            let _ = run("losetup", &["--detach".as_ref(), OsStr::new(&self.device)]);
        }
        if let Some(session) = self.session.take() {
            let (sender, receiver) = mpsc::channel();
            thread::spawn(move || sender.send(session.umount_and_join()));
            let ended = receiver.recv_timeout(ENDS_WITHIN);
            if !matches!(ended, Ok(Ok(()))) {
                let _ = run("umount", &["-l".as_ref(), self.below().as_os_str()]);
            }
        }
        if let Some(mut watchdog) = self.watchdog.take() {
            let _ = watchdog.kill();
            let _ = watchdog.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_take_their_time_and_syncfs_waits_for_them() {
        SlowDisk::available().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path().join("mount");
        std::fs::create_dir(&mount).unwrap();
        let disk = SlowDisk::mount(&mount, &directory.path().join("backing"), 256 << 20, 20_000_000).unwrap();
        let start = Instant::now();
        let file = File::create(mount.join("a")).unwrap();
        file.write_all_at(&vec![1; 8_000_000], 0).unwrap();
        let buffered = start.elapsed();
        rustix::fs::syncfs(&file).unwrap();
        let synced = start.elapsed();
        // How long a busy machine takes beyond that is not said.
        assert!(synced > Duration::from_millis(380) && buffered < synced, "{buffered:?} {synced:?}");
        assert!(disk.written_bytes() > 8_000_000);
        disk.set_broken(true);
        file.write_all_at(&[2; 4096], 0).unwrap();
        assert!(file.sync_all().is_err());
        drop(file);
        let device = disk.device().to_string();
        drop(disk);
        assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(&format!("{device} ")));
    }

    /// Where the disk of a process that is killed is made.
    const KILLED: &str = "FULLBORE_TEST_KILLED";

    #[test]
    fn who_is_killed_while_it_waits_for_its_disk_ends() {
        SlowDisk::available().unwrap();
        if let Some(directory) = std::env::var_os(KILLED).map(PathBuf::from) {
            let disk = SlowDisk::mount(&directory.join("mount"), &directory.join("backing"), 256 << 20, 1000).unwrap();
            let file = File::create(disk.path().join("a")).unwrap();
            file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
            std::fs::write(directory.join("waits"), "").unwrap();
            file.sync_all().unwrap();
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("mount")).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "slowdisk::tests::who_is_killed_while_it_waits_for_its_disk_ends"])
            .env(KILLED, directory.path())
            .spawn()
            .unwrap();
        let within_a_minute = |child: &mut Child, is_so: &mut dyn FnMut(&mut Child) -> bool, what: &str| {
            let begun = Instant::now();
            while !is_so(child) {
                assert!(begun.elapsed().as_secs() < 60, "{what}");
                thread::sleep(Duration::from_millis(20));
            }
        };
        let waits = directory.path().join("waits");
        within_a_minute(&mut child, &mut |_| waits.exists(), "it does not come to wait");
        // It may not wait yet; then there is nothing that could hold it up.
        thread::sleep(Duration::from_millis(200));
        child.kill().unwrap();
        within_a_minute(&mut child, &mut |child| child.try_wait().unwrap().is_some(), "it does not end");
        let mount = directory.path().join("mount").display().to_string();
        let is_gone = || !std::fs::read_to_string("/proc/mounts").unwrap().contains(&mount);
        within_a_minute(&mut child, &mut |_| is_gone(), "the disk stays mounted");
    }
}
