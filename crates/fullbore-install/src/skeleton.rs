//! What a root needs before its first package, and what it must look like while scripts run in it.
//!
//! The same directories, files and devices as mmdebstrap makes, so that the results compare. Mounts are
//! made in a mount namespace of the run's own: they go with it, however it ends.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::root::{Root, RootError};

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
const STARTER_KEPT: &str = "sbin/start-stop-daemon.REAL";
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

impl Skeleton<'_> {
    /// Makes directories and files. Whether there are device nodes that work is the answer; in a user namespace
    /// none can be made, and on a file system that is mounted `nodev` none can be used.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn lay_out(&self) -> Result<bool, RootError> {
        let root = &Root::open(self.root)?;
        for directory in DIRECTORIES {
            root.create_directories(directory, 0o755)?;
        }
        root.set_mode("tmp", 0o1777)?;
        file(root, APT_WHILE_MADE, "Apt::Install-Recommends false;\nAcquire::Languages \"none\";\n")?;
        file(root, "var/lib/dpkg/status", "")?;
        file(root, "var/lib/dpkg/arch", &format!("{}\n", self.architectures.join("\n")))?;
        if !self.apt_options.is_empty() {
            file(root, APT_OPTIONS, &self.options(self.apt_options, ";")?)?;
        }
        if !self.dpkg_options.is_empty() {
            file(root, DPKG_OPTIONS, &self.options(self.dpkg_options, "")?)?;
        }
        file(root, "etc/fstab", "# UNCONFIGURED FSTAB FOR BASE SYSTEM\n")?;
        for source in self.sources {
            file(root, source.path.to_str().unwrap_or_default(), &source.content)?;
        }
        for name in COPIED {
            copy(root, name)?;
        }
        devices(root)
    }

    fn options(&self, options: &[String], end: &str) -> Result<String, RootError> {
        let mut text = String::new();
        for option in options {
            let path = Path::new(option);
            if path.is_file() {
                let content = fs::read_to_string(path);
                text.push_str(&content.map_err(|source| outside(path, "read", source))?);
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
}

/// Existing files are the user's own, from a hook or an earlier layer.
fn file(root: &Root, name: &str, content: &str) -> Result<(), RootError> {
    match root.create_new(name, 0o644)? {
        Some(mut file) => {
            file.write_all(content.as_bytes()).map_err(|error| RootError::new(name.as_bytes(), "write", error))
        }
        None => Ok(()),
    }
}

/// Copies a file of this machine, unless it is none, or something has its name in the root.
fn copy(root: &Root, name: &str) -> Result<(), RootError> {
    let from = &Path::new("/").join(name);
    let Ok(status) = fs::metadata(from) else { return Ok(()) };
    if !status.is_file() {
        return Ok(());
    }
    let Some(mut to) = root.create_new(name, status.permissions().mode() & 0o777)? else { return Ok(()) };
    let mut from_file = fs::File::open(from).map_err(|source| outside(from, "read", source))?;
    io::copy(&mut from_file, &mut to).map(drop).map_err(|error| RootError::new(name.as_bytes(), "write", error))
}

/// An error of a file that is not in the root.
fn outside(path: &Path, operation: &'static str, source: io::Error) -> RootError {
    RootError { path: path.to_owned(), operation, source }
}

fn devices(root: &Root) -> Result<bool, RootError> {
    root.create_directories("dev", 0o755)?;
    for (name, major, minor) in DEVICES {
        let path = format!("dev/{name}");
        match root.character_device(&path, 0o666, rustix::fs::makedev(major, minor)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(Errno::PERM) => return Ok(false),
            Err(errno) => return Err(RootError::new(path.as_bytes(), "create", errno)),
        }
    }
    if !root.device_works("dev/null") {
        for (name, ..) in DEVICES {
            root.remove(&format!("dev/{name}"))?;
        }
        return Ok(false);
    }
    for (name, target) in DEVICE_LINKS {
        root.symlink(target, &format!("dev/{name}"))?;
    }
    for name in DEVICE_DIRECTORIES {
        root.create_directories(&format!("dev/{name}"), 0o755)?;
    }
    Ok(true)
}

/// The root as scripts see it: mounts, and nobody who starts services. Undone by [`ScriptMounts::leave`].
#[derive(Debug)]
pub struct ScriptMounts {
    root: Root,
    /// What is mounted, by a descriptor in it: no script can lead the unmounting elsewhere.
    mounted: Vec<(String, OwnedFd)>,
    /// Made for the time of the run, because there are no device nodes.
    made: Vec<String>,
    policy: bool,
    starter: bool,
}

impl ScriptMounts {
    /// Mounts `/dev/pts`, `/dev/shm`, `/sys` and `/proc` in this process's mount namespace, which must be its own. What
    /// cannot be mounted is left out and told. Commands with a `/proc` of their own have it on top; the hooks see this one.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn enter(root: &Path, has_devices: bool, told: &mut dyn FnMut(String)) -> Result<ScriptMounts, RootError> {
        let root = Root::open(root)?;
        let mut stage = ScriptMounts { root, mounted: Vec::new(), made: Vec::new(), policy: false, starter: false };
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

    fn mount(&mut self, name: &str, told: &mut dyn FnMut(String), mount: impl FnOnce(&str) -> rustix::io::Result<()>) {
        if self.root.leads_to(name) == Some(FileType::Directory) {
            self.mount_on(name, told, mount);
        }
    }

    /// Mounts on what the path leads to within the root.
    fn mount_on(
        &mut self,
        name: &str,
        told: &mut dyn FnMut(String),
        mount: impl FnOnce(&str) -> rustix::io::Result<()>,
    ) {
        let mounted = self.root.place(name).and_then(|place| {
            mount(&by_descriptor(&place)).map_err(|errno| RootError::new(name.as_bytes(), "mount", errno))?;
            self.root.place(name)
        });
        match mounted {
            Ok(mounted) => self.mounted.push((name.to_owned(), mounted)),
            Err(error) => told(error.to_string()),
        }
    }

    fn bind_devices(&mut self, told: &mut dyn FnMut(String)) -> Result<(), RootError> {
        for (name, target) in DEVICE_LINKS.into_iter().chain([("ptmx", "/dev/pts/ptmx")]) {
            let path = format!("dev/{name}");
            if !self.root.symlink(target, &path)? {
                return Err(RootError::new(path.as_bytes(), "create the link", Errno::EXIST));
            }
            self.made.push(path);
        }
        for name in DEVICE_DIRECTORIES {
            let path = format!("dev/{name}");
            if self.root.create_directory(&path, 0o755)? {
                self.made.push(path);
            }
        }
        for (name, ..) in DEVICES.into_iter().filter(|(name, ..)| *name != "ptmx") {
            let (from, to) = (Path::new("/dev").join(name), format!("dev/{name}"));
            if !from.exists() {
                told(format!("{}: not there on the outside, left out", from.display()));
                continue;
            }
            if self.root.create_new(&to, 0o644)?.is_none() {
                return Err(RootError::new(to.as_bytes(), "create", Errno::EXIST));
            }
            self.made.push(to.clone());
            self.mount_on(&to, told, |place| rustix::mount::mount_bind(&from, place));
        }
        Ok(())
    }

    fn deny_services(&mut self) -> Result<(), RootError> {
        let (directory, _) = POLICY.rsplit_once('/').unwrap_or_default();
        if self.root.leads_to(directory) == Some(FileType::Directory)
            && let Some(mut policy) = self.root.create_new(POLICY, 0o755)?
        {
            self.policy = true;
            let written = policy.write_all(POLICY_TEXT.as_bytes());
            written.map_err(|error| RootError::new(POLICY.as_bytes(), "write", error))?;
        }
        if self.root.leads_to(STARTER) == Some(FileType::RegularFile) {
            self.root.rename(STARTER, STARTER_KEPT)?;
            self.starter = true;
            self.root.write(STARTER, 0o755, STARTER_TEXT.as_bytes())?;
        }
        Ok(())
    }

    /// Undoes everything.
    ///
    /// # Errors
    /// A file cannot be put back.
    pub fn leave(self) -> Result<(), RootError> {
        for (name, mounted) in self.mounted.iter().rev() {
            // What a script has mounted on top goes as well.
            rustix::mount::unmount(by_descriptor(mounted), UnmountFlags::DETACH)
                .map_err(|errno| RootError::new(name.as_bytes(), "unmount", errno))?;
        }
        for path in self.made.iter().rev() {
            if !self.root.remove_directory(path)? {
                self.root.remove(path)?;
            }
        }
        if self.policy {
            self.root.remove(POLICY)?;
        }
        if self.starter {
            self.root.rename(STARTER_KEPT, STARTER)?;
        }
        Ok(())
    }
}

/// A path that leads to what a descriptor stands for, whatever its names lead to.
fn by_descriptor(place: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", place.as_raw_fd())
}
