//! Faults outside the network: a program killed at any moment, a full disk, bits that flip.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::random::Random;

/// How often a condition to kill on is looked at.
const LOOK: Duration = Duration::from_micros(500);

/// How a program ended that was to be killed.
#[derive(Debug)]
pub struct Killed {
    /// Its status, when it ended by itself before its time came.
    pub finished: Option<ExitStatus>,
    /// How long it ran.
    pub ran: Duration,
    /// What it said on stdout and stderr.
    pub said: String,
}

/// Starts a program and sends it SIGKILL as soon as the condition holds.
pub fn kill_when(command: &mut Command, mut condition: impl FnMut() -> bool) -> io::Result<Killed> {
    // A file, not a pipe: a program must never wait for us to read.
    let mut said = tempfile::tempfile()?;
    let start = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said.try_clone()?).spawn()?;
    let finished = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if condition() {
            child.kill()?;
            child.wait()?;
            break None;
        }
        thread::sleep(LOOK);
    };
    let ran = start.elapsed();
    let mut bytes = Vec::new();
    said.seek(SeekFrom::Start(0))?;
    said.read_to_end(&mut bytes)?;
    Ok(Killed { finished, ran, said: String::from_utf8_lossy(&bytes).into_owned() })
}

/// Starts a program and kills it after the given time.
pub fn kill_after(command: &mut Command, delay: Duration) -> io::Result<Killed> {
    let start = Instant::now();
    kill_when(command, || start.elapsed() >= delay)
}

/// Starts a program and kills it after a time drawn between 0 and `longest`.
pub fn kill_at_random(command: &mut Command, random: &mut Random, longest: Duration) -> io::Result<Killed> {
    kill_after(command, longest.mul_f64(random.unit()))
}

/// Flips one bit of a file, without changing its size or its times.
pub fn flip_bit(path: &Path, offset: u64) -> io::Result<()> {
    let modified = fs::metadata(path)?.modified()?;
    let file = File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)?;
    file.write_all_at(&[byte[0] ^ 1], offset)?;
    file.set_modified(modified)
}

/// Whether this process may mount: root, or user namespaces are allowed.
pub fn can_mount() -> bool {
    let probe = namespace_command().arg("true").stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}

fn namespace_command() -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::getuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--propagation", "private"]);
    command
}

/// A tmpfs of few bytes or inodes, in a mount namespace that ends with this value or this
/// process, whichever is first.
#[derive(Debug)]
pub struct SmallDisk {
    holder: Child,
    // The holder ends when this end of its standard input closes.
    hold: Option<ChildStdin>,
    mount: tempfile::TempDir,
    path: PathBuf,
}

impl SmallDisk {
    /// A disk of so many bytes and (if not 0) so many inodes.
    pub fn new(bytes: u64, inodes: u64) -> io::Result<SmallDisk> {
        let mount = tempfile::tempdir()?;
        let options = format!("size={bytes},nr_inodes={inodes},mode=0755");
        let mut holder = namespace_command()
            .args(["sh", "-c", "mount -t tmpfs -o \"$1\" small \"$2\" && echo ready && exec cat", "sh"])
            .arg(&options)
            .arg(mount.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let hold = holder.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = holder.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.trim() != "ready" {
            holder.wait()?;
            return Err(io::Error::other(format!("mount -t tmpfs -o {options} failed; see stderr")));
        }
        // Everything in the other namespace is reached through its process.
        let inside = mount.path().strip_prefix("/").unwrap_or(mount.path());
        let path = PathBuf::from(format!("/proc/{}/root", holder.id())).join(inside);
        Ok(SmallDisk { holder, hold, mount, path })
    }

    /// The disk, as seen from this process.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The disk, as seen by a program started with [`SmallDisk::command`].
    pub fn inner_path(&self) -> &Path {
        self.mount.path()
    }

    /// A command that runs where the disk is mounted.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.holder.id().to_string()).arg("--mount");
        if !rustix::process::getuid().is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg(program);
        command
    }

    /// Fills the disk until so many bytes are left.
    pub fn fill_but(&self, left_bytes: u64) -> io::Result<()> {
        let free = rustix::fs::statvfs(&self.path).map_err(io::Error::from)?;
        let zeros = vec![0; 64 << 10];
        let mut to_write = (free.f_bavail * free.f_frsize).saturating_sub(left_bytes);
        let mut file = File::options().create(true).append(true).open(self.path.join("filler"))?;
        while to_write > 0 {
            let n = to_write.min(zeros.len() as u64);
            file.write_all(&zeros[..n as usize])?;
            to_write -= n;
        }
        Ok(())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.hold.take());
        // It ends by itself; waiting only keeps it from being a zombie.
        let _ = self.holder.wait();
    }
}

/// Inode, size and modification time of a path: what tells whether a file was touched.
pub fn identity(path: &Path) -> io::Result<(u64, u64, i64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.ino(), metadata.len(), metadata.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_killed_in_time_and_its_output_kept() {
        let killed =
            kill_after(Command::new("sh").args(["-c", "echo begun; sleep 60"]), Duration::from_millis(100)).unwrap();
        assert!(killed.finished.is_none() && killed.ran < Duration::from_secs(20));
        assert_eq!(killed.said, "begun\n");
        let ended = kill_after(&mut Command::new("true"), Duration::from_secs(60)).unwrap();
        assert!(ended.finished.is_some_and(|status| status.success()));
    }

    #[test]
    fn a_small_disk_is_soon_full_and_leaves_nothing_behind() {
        assert!(can_mount(), "no small disk can be mounted: run as root (script/test does), or allow user namespaces");
        let disk = SmallDisk::new(1 << 20, 0).unwrap();
        disk.fill_but(100_000).unwrap();
        let error = fs::write(disk.path().join("big"), vec![0; 300_000]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let seen = disk.command("ls").arg(disk.inner_path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.stdout), "big\nfiller\n");
        assert_eq!(fs::read_dir(disk.inner_path()).unwrap().count(), 0);
    }
}
