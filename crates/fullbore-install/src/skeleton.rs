//! What a root needs before its first package, and what it must look like while scripts run in it.
//!
//! The same directories, files and devices as mmdebstrap makes, so that the results compare. Mounts are
//! made in a mount namespace of the run's own: they go with it, however it ends.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MountFlags, UnmountFlags};

/// Directories that dpkg and apt want to find.
const DIRECTORIES: [&str; 13] = [
    "etc/apt/apt.conf.d",
    "etc/apt/sources.list.d",
    "etc/apt/preferences.d",
    "var/cache/apt",
    "var/lib/apt/lists/partial",
    "tmp",
    "var/lib/dpkg",
    "etc/dpkg/dpkg.cfg.d",
    "var/log/apt",
    "var/lib/dpkg/triggers",
    "var/lib/dpkg/info",
    "var/lib/dpkg/alternatives",
    "var/lib/dpkg/updates",
];

/// Files for apt as long as the root is made; removed in the end.
pub const APT_WHILE_MADE: &str = "etc/apt/apt.conf.d/00fullbore";

/// What the user wants of apt, and of dpkg, in this root for good.
const APT_OPTIONS: &str = "etc/apt/apt.conf.d/99fullbore";
const DPKG_OPTIONS: &str = "etc/dpkg/dpkg.cfg.d/99fullbore";

/// Of the machine that the root is made on, so that names resolve while it is made.
const COPIED: [&str; 2] = ["etc/resolv.conf", "etc/hostname"];

/// Devices: name, type, numbers. `ptmx` must not be the outside's one when it is bound.
const DEVICES: [(&str, u32, u32); 8] = [
    ("console", 5, 1),
    ("full", 1, 7),
    ("null", 1, 3),
    ("ptmx", 5, 2),
    ("random", 1, 8),
    ("tty", 5, 0),
    ("urandom", 1, 9),
    ("zero", 1, 5),
];
const DEVICE_LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stderr", "/proc/self/fd/2"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
];
const DEVICE_DIRECTORIES: [&str; 2] = ["pts", "shm"];

/// Answers "forbidden" to whoever wants to start a service (invoke-rc.d(8)).
const POLICY: &str = "usr/sbin/policy-rc.d";
const POLICY_TEXT: &str = "#!/bin/sh\nexit 101\n";

/// Started by scripts that do not ask the policy.
const STARTER: &str = "sbin/start-stop-daemon";
const STARTER_TEXT: &str = "#!/bin/sh\necho \"Warning: Fake start-stop-daemon called, doing nothing\">&2\n";

/// A file of sources for the new root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcesFile {
    /// Below the root.
    pub path: PathBuf,
    /// Its text.
    pub content: String,
}

/// A root that is still empty.
#[derive(Debug)]
pub struct Skeleton<'a> {
    /// Where it is.
    pub root: &'a Path,
    /// Native architecture first, then foreign ones.
    pub architectures: &'a [String],
    /// apt's sources.
    pub sources: &'a [SourcesFile],
    /// For apt in this root: text, or the name of a file that has it.
    pub apt_options: &'a [String],
    /// For dpkg in this root: likewise.
    pub dpkg_options: &'a [String],
}

/// An operation on a file that failed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct SkeletonError {
    /// The file.
    pub path: PathBuf,
    /// What the kernel says.
    #[source]
    pub error: io::Error,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> SkeletonError + '_ {
    move |error| SkeletonError { path: path.to_owned(), error }
}

impl Skeleton<'_> {
    /// Makes directories and files. Whether there are device nodes that work is the answer; in a user namespace
    /// none can be made, and on a file system that is mounted `nodev` none can be used.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn lay_out(&self) -> Result<bool, SkeletonError> {
        for directory in DIRECTORIES {
            let path = self.root.join(directory);
            fs::create_dir_all(&path).map_err(at(&path))?;
        }
        let tmp = self.root.join("tmp");
        fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777)).map_err(at(&tmp))?;
        self.file(APT_WHILE_MADE, "Apt::Install-Recommends false;\nAcquire::Languages \"none\";\n")?;
        self.file("var/lib/dpkg/status", "")?;
        self.file("var/lib/dpkg/arch", &format!("{}\n", self.architectures.join("\n")))?;
        if !self.apt_options.is_empty() {
            self.file(APT_OPTIONS, &self.options(self.apt_options, ";")?)?;
        }
        if !self.dpkg_options.is_empty() {
            self.file(DPKG_OPTIONS, &self.options(self.dpkg_options, "")?)?;
        }
        self.file("etc/fstab", "# UNCONFIGURED FSTAB FOR BASE SYSTEM\n")?;
        for source in self.sources {
            self.file(source.path.to_str().unwrap_or_default(), &source.content)?;
        }
        for name in COPIED {
            let from = Path::new("/").join(name);
            if from.exists() && !self.root.join(name).exists() {
                let to = self.root.join(name);
                fs::copy(&from, &to).map_err(at(&to))?;
            }
        }
        self.devices()
    }

    /// Existing files are the user's own, from a hook or an earlier layer.
    fn file(&self, name: &str, content: &str) -> Result<(), SkeletonError> {
        let path = self.root.join(name);
        match fs::File::create_new(&path) {
            Ok(mut file) => file.write_all(content.as_bytes()).map_err(at(&path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(at(&path)(error)),
        }
    }

    fn options(&self, options: &[String], end: &str) -> Result<String, SkeletonError> {
        let mut text = String::new();
        for option in options {
            let path = Path::new(option);
            if path.is_file() {
                text.push_str(&fs::read_to_string(path).map_err(at(path))?);
                continue;
            }
            text.push_str(option);
            if !option.ends_with(end) {
                text.push_str(end);
            }
            if !option.ends_with('\n') {
                text.push('\n');
            }
        }
        Ok(text)
    }

    fn devices(&self) -> Result<bool, SkeletonError> {
        let dev = self.root.join("dev");
        fs::create_dir_all(&dev).map_err(at(&dev))?;
        for (name, major, minor) in DEVICES {
            let path = dev.join(name);
            let mode = Mode::from_bits_retain(0o666);
            match rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, mode, rustix::fs::makedev(major, minor)) {
                Ok(()) => {}
                Err(rustix::io::Errno::PERM) => return Ok(false),
                Err(rustix::io::Errno::EXIST) => continue,
                Err(error) => return Err(at(&path)(error.into())),
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(at(&path))?;
        }
        let null = dev.join("null");
        if fs::File::options().write(true).open(&null).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            for (name, ..) in DEVICES {
                let path = dev.join(name);
                fs::remove_file(&path).map_err(at(&path))?;
            }
            return Ok(false);
        }
        self.device_names(&dev)?;
        Ok(true)
    }

    fn device_names(&self, dev: &Path) -> Result<(), SkeletonError> {
        for (name, target) in DEVICE_LINKS {
            let path = dev.join(name);
            match symlink(target, &path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(&path)(error)),
                _ => {}
            }
        }
        for name in DEVICE_DIRECTORIES {
            let path = dev.join(name);
            fs::create_dir_all(&path).map_err(at(&path))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(at(&path))?;
        }
        Ok(())
    }
}

/// The root as scripts see it: mounts, and nobody who starts services. Undone by [`Stage::leave`].
#[derive(Debug)]
pub struct Stage {
    root: PathBuf,
    mounted: Vec<PathBuf>,
    /// Made for the time of the run, because there are no device nodes.
    made: Vec<PathBuf>,
    policy: bool,
    starter: bool,
}

impl Stage {
    /// Mounts `/dev/pts`, `/dev/shm`, `/sys` and `/proc` in this process's mount namespace, which must be its own. What
    /// cannot be mounted is left out and told. Commands with a `/proc` of their own have it on top; the hooks see this one.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn enter(root: &Path, has_devices: bool, told: &mut dyn FnMut(String)) -> Result<Stage, SkeletonError> {
        let mut stage =
            Stage { root: root.to_owned(), mounted: Vec::new(), made: Vec::new(), policy: false, starter: false };
        if !has_devices {
            stage.bind_devices(told)?;
        }
        let quiet = MountFlags::NOSUID | MountFlags::NOEXEC;
        stage.mount("dev/pts", told, |to| {
            rustix::mount::mount("devpts", to, "devpts", quiet, c"newinstance,gid=5,mode=620,ptmxmode=666")
                .or_else(|_| rustix::mount::mount("devpts", to, "devpts", quiet, c"newinstance,ptmxmode=666"))
        });
        if Path::new("/dev/shm").is_dir() {
            stage.mount("dev/shm", told, |to| {
                // With something mounted in it, it is not to be had in a user namespace (mount_namespaces(7)).
                rustix::mount::mount_bind("/dev/shm", to)
                    .or_else(|_| rustix::mount::mount("tmpfs", to, "tmpfs", quiet, c"mode=1777"))
            });
        }
        stage.mount("sys", told, |to| {
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount("sysfs", to, "sysfs", flags, None)
                .or_else(|_| rustix::mount::mount_bind_recursive("/sys", to))
        });
        stage.mount("proc", told, |to| {
            rustix::mount::mount("proc", to, "proc", MountFlags::RDONLY, None)
                .or_else(|_| rustix::mount::mount_bind_recursive("/proc", to))
        });
        stage.deny_services()?;
        Ok(stage)
    }

    fn mount(&mut self, name: &str, told: &mut dyn FnMut(String), mount: impl FnOnce(&Path) -> rustix::io::Result<()>) {
        let to = self.root.join(name);
        if !to.is_dir() {
            return;
        }
        match mount(&to) {
            Ok(()) => self.mounted.push(to),
            Err(error) => told(format!("{}: cannot be mounted: {error}", to.display())),
        }
    }

    fn bind_devices(&mut self, told: &mut dyn FnMut(String)) -> Result<(), SkeletonError> {
        let dev = self.root.join("dev");
        for (name, target) in DEVICE_LINKS.into_iter().chain([("ptmx", "/dev/pts/ptmx")]) {
            let path = dev.join(name);
            symlink(target, &path).map_err(at(&path))?;
            self.made.push(path);
        }
        for name in DEVICE_DIRECTORIES {
            let path = dev.join(name);
            if fs::create_dir(&path).is_ok() {
                self.made.push(path);
            }
        }
        for (name, ..) in DEVICES.into_iter().filter(|(name, ..)| *name != "ptmx") {
            let (from, to) = (Path::new("/dev").join(name), dev.join(name));
            if !from.exists() {
                told(format!("{}: not there on the outside, left out", from.display()));
                continue;
            }
            fs::File::create_new(&to).map_err(at(&to))?;
            self.made.push(to.clone());
            match rustix::mount::mount_bind(&from, &to) {
                Ok(()) => self.mounted.push(to),
                Err(error) => told(format!("{}: cannot be mounted: {error}", to.display())),
            }
        }
        Ok(())
    }

    fn deny_services(&mut self) -> Result<(), SkeletonError> {
        let policy = self.root.join(POLICY);
        if policy.parent().is_some_and(Path::is_dir) && !policy.exists() {
            script(&policy, POLICY_TEXT)?;
            self.policy = true;
        }
        let starter = self.root.join(STARTER);
        if starter.is_file() {
            fs::rename(&starter, kept(&starter)).map_err(at(&starter))?;
            script(&starter, STARTER_TEXT)?;
            self.starter = true;
        }
        Ok(())
    }

    /// Undoes everything.
    ///
    /// # Errors
    /// A file cannot be put back.
    pub fn leave(self) -> Result<(), SkeletonError> {
        for path in self.mounted.iter().rev() {
            // What a script has mounted on top goes as well.
            rustix::mount::unmount(path, UnmountFlags::DETACH).map_err(|error| at(path)(error.into()))?;
        }
        for path in self.made.iter().rev() {
            let is_directory = path.symlink_metadata().is_ok_and(|status| status.is_dir());
            let removed = if is_directory { fs::remove_dir(path) } else { fs::remove_file(path) };
            removed.map_err(at(path))?;
        }
        if self.policy {
            let policy = self.root.join(POLICY);
            match fs::remove_file(&policy) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&policy)(error)),
                _ => {}
            }
        }
        if self.starter {
            let starter = self.root.join(STARTER);
            fs::rename(kept(&starter), &starter).map_err(at(&starter))?;
        }
        Ok(())
    }
}

fn kept(starter: &Path) -> PathBuf {
    starter.with_extension("REAL")
}

fn script(path: &Path, text: &str) -> Result<(), SkeletonError> {
    fs::write(path, text).map_err(at(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(at(path))
}
