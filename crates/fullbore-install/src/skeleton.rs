//! Layout of a root before its first package, and mounts for its scripts.
//!
//! Directories, files and devices are those of mmdebstrap, so that the results can be compared. Mounts are made in a
//! private mount namespace and end with it.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::bootstrap::skips::Skips;
use crate::root::{Root, RootError};

/// Directories that dpkg and apt require.
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

/// Temporary configuration of apt, removed at the end.
pub(crate) const APT_WHILE_MADE: &str = "etc/apt/apt.conf.d/00fullbore";

/// Directories of the user's permanent options for apt and dpkg.
const APT_OPTIONS: &str = "etc/apt/apt.conf.d";
const DPKG_OPTIONS: &str = "etc/dpkg/dpkg.cfg.d";

/// Files copied from this machine, so that names resolve in the root.
const COPIED: [&str; 2] = ["etc/resolv.conf", "etc/hostname"];

/// Device nodes: name, major and minor number. Where this machine's nodes are bound instead, `ptmx` is a link to the
/// root's own instance.
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

/// Program that denies the start of services (invoke-rc.d(8)).
const POLICY: &str = "usr/sbin/policy-rc.d";
const POLICY_TEXT: &str = "#!/bin/sh\nexit 101\n";

/// Program that starts services for scripts that ignore the policy.
const STARTER: &str = "sbin/start-stop-daemon";
const STARTER_KEPT: &str = "sbin/start-stop-daemon.REAL";
const STARTER_TEXT: &str = "#!/bin/sh\necho \"Warning: Fake start-stop-daemon called, doing nothing\">&2\n";

/// A sources file that the new root gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcesFile {
    /// Path relative to the root.
    pub path: PathBuf,
    /// Content of the file.
    pub content: String,
}

/// Layout of a new root before its first package.
#[derive(Debug)]
pub(crate) struct Skeleton<'a> {
    /// Path of the root, outside of it.
    pub root: &'a Path,
    /// Architectures, the native one first.
    pub architectures: &'a [String],
    /// Sources files of the root.
    pub sources: &'a [SourcesFile],
    /// Options for apt: text, or names of files with text.
    pub apt_options: &'a [String],
    /// Options for dpkg: text, or names of files with text.
    pub dpkg_options: &'a [String],
    /// Name of the files with these options.
    pub options_name: &'a str,
    /// Whether to create device nodes. With a user namespace there are none, and so the mode has none for root either.
    pub makes_devices: bool,
}

impl Skeleton<'_> {
    /// Creates directories and files; returns whether the root has working device nodes. A user namespace cannot
    /// create them, and a `nodev` mount disables them.
    ///
    /// # Errors
    /// [`RootError`] if a directory, file or device cannot be created, or a file of this machine cannot be copied.
    pub(crate) fn lay_out(&self) -> Result<bool, RootError> {
        let root = &Root::open(self.root)?;
        for directory in DIRECTORIES {
            root.create_directories(directory, 0o755)?;
        }
        root.set_mode("tmp", 0o1777)?;
        file(root, APT_WHILE_MADE, "Apt::Install-Recommends false;\nAcquire::Languages \"none\";\n")?;
        file(root, "var/lib/dpkg/status", "")?;
        file(root, "var/lib/dpkg/arch", &format!("{}\n", self.architectures.join("\n")))?;
        if !self.apt_options.is_empty() {
            file(root, &format!("{APT_OPTIONS}/{}", self.options_name), &self.options(self.apt_options, ";")?)?;
        }
        if !self.dpkg_options.is_empty() {
            file(root, &format!("{DPKG_OPTIONS}/{}", self.options_name), &self.options(self.dpkg_options, "")?)?;
        }
        file(root, "etc/fstab", "# UNCONFIGURED FSTAB FOR BASE SYSTEM\n")?;
        for source in self.sources {
            file(root, source.path.to_str().unwrap_or_default(), &source.content)?;
        }
        for name in COPIED {
            copy(root, name)?;
        }
        devices(root, self.makes_devices)
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

/// Creates a file. Existing files stay: they come from a hook or an earlier layer.
fn file(root: &Root, name: &str, content: &str) -> Result<(), RootError> {
    match root.create_new(name, 0o644)? {
        Some(mut file) => {
            file.write_all(content.as_bytes()).map_err(|error| RootError::new(name.as_bytes(), "write", error))
        }
        None => Ok(()),
    }
}

/// Copies a regular file of this machine, unless the name exists in the root.
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

/// Makes the error for a file outside of the root.
fn outside(path: &Path, operation: &'static str, source: io::Error) -> RootError {
    RootError { path: path.to_owned(), operation, source }
}

fn devices(root: &Root, makes_nodes: bool) -> Result<bool, RootError> {
    root.create_directories("dev", 0o755)?;
    if !makes_nodes {
        return Ok(false);
    }
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

/// Whether a root has device nodes that work, as [`Skeleton::lay_out`] reports for a new root.
///
/// # Errors
/// [`RootError`] if the root cannot be opened.
pub(crate) fn has_devices(root: &Path) -> Result<bool, RootError> {
    Ok(Root::open(root)?.device_works("dev/null"))
}

/// Mounts and service blocks for maintainer scripts. [`ScriptMounts::leave`] removes them.
#[derive(Debug)]
pub(crate) struct ScriptMounts {
    root: Root,
    /// Names of mounts that the kernel did not allow this process.
    denied: Vec<String>,
    /// Mounts with a descriptor in each, so that no script can redirect the unmounting.
    mounted: Vec<(String, OwnedFd)>,
    /// Temporary files in place of device nodes.
    made: Vec<String>,
    policy: bool,
    starter: bool,
}

impl ScriptMounts {
    /// Mounts `/dev/pts`, `/dev/shm`, `/sys` and `/proc`. This process should be in a mount namespace of its own.
    /// Failed mounts are reported to `warn` and skipped. Commands with a PID namespace mount their own `/proc` over
    /// this one; hooks use this one.
    ///
    /// # Errors
    /// [`RootError`] if the root cannot be opened, a mount point cannot be created, or a program cannot be replaced. A
    /// refused mount is not an error.
    pub(crate) fn enter(
        root: &Path,
        has_devices: bool,
        skips: &Skips,
        warn: &mut dyn FnMut(String),
    ) -> Result<ScriptMounts, RootError> {
        let mut stage = ScriptMounts {
            root: Root::open(root)?,
            denied: Vec::new(),
            mounted: Vec::new(),
            made: Vec::new(),
            policy: false,
            starter: false,
        };
        if !skips.has("chroot/mount/dev") {
            stage.devices(has_devices, warn)?;
        }
        if !skips.has("chroot/mount/sys") {
            stage.mount("sys", warn, |to| {
                let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
                rustix::mount::mount("sysfs", to, "sysfs", flags, None)
                    .or_else(|_| rustix::mount::mount_bind_recursive("/sys", to))
            });
        }
        if !skips.has("chroot/mount/proc") {
            stage.mount("proc", warn, |to| {
                rustix::mount::mount("proc", to, "proc", MountFlags::RDONLY, None)
                    .or_else(|_| rustix::mount::mount_bind_recursive("/proc", to))
            });
        }
        if !stage.denied.is_empty() {
            let names: Vec<String> = stage.denied.iter().map(|name| format!("/{name}")).collect();
            warn(format!("not mounted in the root, because this process may not mount: {}", names.join(", ")));
        }
        if !skips.has("chroot/policy-rc.d") {
            stage.place_policy()?;
        }
        if !skips.has("chroot/start-stop-daemon") {
            stage.replace_starter()?;
        }
        Ok(stage)
    }

    fn devices(&mut self, has_devices: bool, warn: &mut dyn FnMut(String)) -> Result<(), RootError> {
        if !has_devices {
            self.bind_devices(warn)?;
        }
        let quiet = MountFlags::NOSUID | MountFlags::NOEXEC;
        self.mount("dev/pts", warn, |to| {
            rustix::mount::mount("devpts", to, "devpts", quiet, c"newinstance,gid=5,mode=620,ptmxmode=666")
                .or_else(|_| rustix::mount::mount("devpts", to, "devpts", quiet, c"newinstance,ptmxmode=666"))
        });
        if Path::new("/dev/shm").is_dir() {
            self.mount("dev/shm", warn, |to| {
                // A user namespace cannot bind it if a file system is mounted in it (mount_namespaces(7)).
                rustix::mount::mount_bind("/dev/shm", to)
                    .or_else(|_| rustix::mount::mount("tmpfs", to, "tmpfs", quiet, c"mode=1777"))
            });
        }
        Ok(())
    }

    fn mount(&mut self, name: &str, warn: &mut dyn FnMut(String), mount: impl FnOnce(&str) -> rustix::io::Result<()>) {
        if self.root.leads_to(name) == Some(FileType::Directory) {
            self.mount_on(name, warn, mount);
        }
    }

    /// Mounts on the file that the path leads to within the root.
    fn mount_on(
        &mut self,
        name: &str,
        warn: &mut dyn FnMut(String),
        mount: impl FnOnce(&str) -> rustix::io::Result<()>,
    ) {
        let mut is_denied = false;
        let mounted = self.root.place(name).and_then(|place| {
            mount(&by_descriptor(&place)).map_err(|errno| {
                is_denied = matches!(errno, Errno::PERM | Errno::ACCESS);
                RootError::new(name.as_bytes(), "mount", errno)
            })?;
            self.root.place(name)
        });
        match mounted {
            Ok(mounted) => self.mounted.push((name.to_owned(), mounted)),
            Err(_) if is_denied => self.denied.push(name.to_owned()),
            Err(error) => warn(error.to_string()),
        }
    }

    fn bind_devices(&mut self, warn: &mut dyn FnMut(String)) -> Result<(), RootError> {
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
                warn(format!("{}: not on this machine, left out", from.display()));
                continue;
            }
            if self.root.create_new(&to, 0o644)?.is_none() {
                return Err(RootError::new(to.as_bytes(), "create", Errno::EXIST));
            }
            self.made.push(to.clone());
            self.mount_on(&to, warn, |place| rustix::mount::mount_bind(&from, place));
        }
        Ok(())
    }

    fn place_policy(&mut self) -> Result<(), RootError> {
        let (directory, _) = POLICY.rsplit_once('/').unwrap_or_default();
        if self.root.leads_to(directory) == Some(FileType::Directory)
            && let Some(mut policy) = self.root.create_new(POLICY, 0o755)?
        {
            self.policy = true;
            let written = policy.write_all(POLICY_TEXT.as_bytes());
            written.map_err(|error| RootError::new(POLICY.as_bytes(), "write", error))?;
        }
        Ok(())
    }

    fn replace_starter(&mut self) -> Result<(), RootError> {
        if self.root.leads_to(STARTER) == Some(FileType::RegularFile) {
            self.root.rename(STARTER, STARTER_KEPT)?;
            self.starter = true;
            self.root.write(STARTER, 0o755, STARTER_TEXT.as_bytes())?;
        }
        Ok(())
    }

    /// Removes mounts and temporary files.
    ///
    /// # Errors
    /// [`RootError`] if a mount cannot be unmounted, or a file cannot be removed or restored.
    pub(crate) fn leave(self) -> Result<(), RootError> {
        for (name, mounted) in self.mounted.iter().rev() {
            // This removes mounts of scripts on top as well.
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

/// Path of an open file that does not depend on its names.
fn by_descriptor(place: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", place.as_raw_fd())
}
