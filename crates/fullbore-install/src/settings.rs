//! Settings of bootstrap and install, complete and without defaults.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fullbore_wire::run::NetworkSettings;

use crate::bootstrap::oci::Platform;
use crate::bootstrap::skips::Skips;
use crate::hooks::Hook;
use crate::skeleton::SourcesFile;

/// Package set of a root, as in mmdebstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Only the packages of `include`, unpacked and not configured.
    Extract,
    /// Only the packages of `include`.
    Custom,
    /// Essential packages and their dependencies.
    Essential,
    /// `Essential`, and apt.
    Apt,
    /// Packages of priority required.
    Required,
    /// `Required`, and build-essential.
    Buildd,
    /// Packages of priorities required and important.
    Important,
    /// `Important`, and packages of priority standard.
    Standard,
}

/// Privileges with which a root is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As root.
    Root,
    /// In a user namespace, with the ids of /etc/subuid and /etc/subgid. For root, as root.
    Unshare,
}

/// Namespaces in which a run mounts and starts programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespaces {
    /// A mount namespace of its own, and a PID namespace for each command.
    Own,
    /// Like `Own`, but the caller sees new mounts, as in a chroot whose `/` is not a mount point.
    Shared,
    /// The caller's namespaces, because the kernel allows no others.
    Callers,
}

impl Variant {
    /// Name of the namespaces on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Extract => "extract",
            Variant::Custom => "custom",
            Variant::Essential => "essential",
            Variant::Apt => "apt",
            Variant::Required => "required",
            Variant::Buildd => "buildd",
            Variant::Important => "important",
            Variant::Standard => "standard",
        }
    }
}

/// Format of a new root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// A directory that stays as it is.
    Dir,
    /// A tar archive, compressed as its extension says.
    Tar,
    /// A squashfs image.
    Squashfs,
    /// An image of a file system of the ext family.
    Ext(ExtVersion),
    /// No result: the root is removed at the end.
    Null,
    /// An OCI image.
    Oci(OciSettings),
}

impl Format {
    /// Name of the format for hooks, which is mmdebstrap's name if mmdebstrap has the format.
    pub fn name(&self) -> &'static str {
        match self {
            Format::Dir => "directory",
            Format::Tar => "tar",
            Format::Squashfs => "squashfs",
            Format::Ext(version) => version.name(),
            Format::Null => "null",
            Format::Oci(_) => "oci",
        }
    }
}

/// Version of a file system of the ext family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtVersion {
    /// Without a journal.
    Ext2,
    /// With a journal.
    Ext4,
}

impl ExtVersion {
    /// Name of the version for mke2fs.
    pub fn name(self) -> &'static str {
        match self {
            ExtVersion::Ext2 => "ext2",
            ExtVersion::Ext4 => "ext4",
        }
    }
}

/// Settings of an OCI image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciSettings {
    /// Form of the layout.
    pub container: OciContainer,
    /// Name of the image in its layout, as [`is_tag`](crate::bootstrap::oci::is_tag) allows it.
    pub tag: String,
    /// Architecture of the image.
    pub platform: Platform,
}

/// Form of an image layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OciContainer {
    /// A tar archive, `oci-archive:` of skopeo.
    Archive,
    /// A directory, `oci:` of skopeo.
    Directory,
}

/// A result that has no name of its own in a directory.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Destination of the result.
    pub to: StreamTo,
    /// Directory for the temporary root.
    pub root_below: PathBuf,
}

/// Destination of a stream.
#[derive(Debug, Clone)]
pub enum StreamTo {
    /// This file.
    Stdout(Arc<File>),
    /// A FIFO or a device, opened when the root is complete.
    File(PathBuf),
    /// Discards the result.
    Nothing,
}

/// Settings of one `fullbore bootstrap`.
#[derive(Debug, Clone)]
pub struct BootstrapSettings {
    /// Suite or codename of the packages, such as `trixie`; empty for any suite of the sources.
    pub suite: String,
    /// Absolute path of the result.
    pub target: PathBuf,
    /// Format of the result.
    pub format: Format,
    /// Stream for the result; `target` is then only a name for messages. A directory has none.
    pub stream: Option<Stream>,
    /// Privileges with which the root is made.
    pub mode: Mode,
    /// Namespaces in which the run mounts and starts programs.
    pub namespaces: Namespaces,
    /// Path of this program, for hooks that call it.
    pub program: PathBuf,
    /// Name of the files with the options for apt and dpkg in the root.
    pub options_name: &'static str,
    /// Steps to leave out.
    pub skips: Skips,
    /// Whether only to resolve the packages.
    pub simulate: bool,
    /// Warnings about the settings, for the user.
    pub warnings: Vec<String>,
    /// Architectures, the native one first. Never empty.
    pub architectures: Vec<String>,
    /// Package set of the root, without `include`.
    pub variant: Variant,
    /// Further packages, in the syntax of apt; files by their absolute paths.
    pub include: Vec<String>,
    /// Sources files of the new root. A hook may add others.
    pub sources: Vec<SourcesFile>,
    /// Addresses of mirrors of one archive.
    pub mirrors: Vec<String>,
    /// Keyring files, and directories of keyring files.
    pub keyrings: Vec<PathBuf>,
    /// Options for apt in the new root.
    pub apt_options: Vec<String>,
    /// Options for dpkg in the new root.
    pub dpkg_options: Vec<String>,
    /// Hooks; those of one moment run in this order.
    pub hooks: Vec<Hook>,
    /// `SOURCE_DATE_EPOCH`, in Unix seconds: later modification times in an archive are set to it.
    pub epoch: Option<i64>,
    /// Search path for programs of the host, such as tar.
    pub path: String,
    /// Proxies, certificates, rate limit and connections for all requests of the run.
    pub network: NetworkSettings,
    /// Verbosity for hooks: 0 for errors only, 1 by default, one more for each level of detail.
    pub verbosity: u8,
    /// Destination for the output of commands, copied unchanged. Without it, only the output of failed commands is
    /// shown.
    pub commands_print_to: Option<Arc<File>>,
    /// The terminal, which hooks get as their output. Without it, their lines are shown as notes.
    pub hooks_print_to: Option<Arc<File>>,
}

impl BootstrapSettings {
    /// Native architecture of the root, such as `amd64`.
    pub fn architecture(&self) -> &str {
        &self.architectures[0]
    }
}

/// Settings of one `fullbore install`.
#[derive(Debug, Clone)]
pub struct InstallSettings {
    /// Canonical path of the root to install into; `/` for this machine.
    pub root: PathBuf,
    /// Packages, in the syntax of apt. Never empty.
    pub packages: Vec<String>,
    /// Options for apt, as `NAME=VALUE`.
    pub apt_options: Vec<String>,
    /// Whether to skip the question.
    pub yes: bool,
    /// Whether to install even if services can be started.
    pub force: bool,
    /// Value of `APT_CONFIG` in the caller's environment.
    pub apt_config: Option<String>,
    /// `SOURCE_DATE_EPOCH`, in Unix seconds.
    pub epoch: Option<i64>,
    /// Network settings, in addition to the configuration of the root's apt.
    pub network: NetworkSettings,
    /// Whether only errors are shown.
    pub quiet: bool,
    /// Whether stdout is used for JSON.
    pub json: bool,
}

impl InstallSettings {
    /// Whether this is the root of the running program.
    pub(crate) fn is_own_root(&self) -> bool {
        self.root == Path::new("/")
    }
}
