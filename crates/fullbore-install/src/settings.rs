//! What bootstrap and install are to do: plain structures without options that someone would still have to decide.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fullbore_wire::run::NetworkSettings;

use crate::hooks::Hook;
use crate::skeleton::SourcesFile;

/// Which packages a root has, beside those that are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// None.
    Custom,
    /// Essential packages and what they need.
    Essential,
    /// That, and apt.
    Apt,
    /// All packages of priority required.
    Required,
    /// That, and build-essential.
    Buildd,
    /// All packages of priorities required and important.
    Important,
    /// That, and those of priority standard.
    Standard,
}

/// With whose rights a root is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As root.
    Root,
    /// In a user namespace, with the numbers of /etc/subuid and /etc/subgid.
    Unshare,
}

/// What a bootstrap makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A directory.
    Dir,
    /// An archive for tar, compressed as the ending says.
    Tar,
    /// A file system for squashfs.
    Squashfs,
}

/// An archive that is written as it is made.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Where it is written to.
    pub file: Arc<File>,
    /// The directory below which the root is made until then.
    pub root_below: PathBuf,
}

/// A root to be made.
#[derive(Debug, Clone)]
pub struct BootstrapSettings {
    /// Suite or codename.
    pub suite: String,
    /// What is made; absolute.
    pub target: PathBuf,
    /// In which form.
    pub format: Format,
    /// What is made goes there, and `target` is only a word for that.
    pub stream: Option<Stream>,
    /// With whose rights.
    pub mode: Mode,
    /// The root's own first.
    pub architectures: Vec<String>,
    /// Which packages.
    pub variant: Variant,
    /// And which others; as apt takes them.
    pub include: Vec<String>,
    /// apt's sources in the new root. Never empty.
    pub sources: Vec<SourcesFile>,
    /// Addresses that are mirrors of one archive.
    pub mirrors: Vec<String>,
    /// Keyrings: files, and directories of files.
    pub keyrings: Vec<PathBuf>,
    /// For apt.
    pub apt_options: Vec<String>,
    /// For dpkg.
    pub dpkg_options: Vec<String>,
    /// In the order in which they run, moment by moment.
    pub hooks: Vec<Hook>,
    /// `SOURCE_DATE_EPOCH`: no file of an archive that is made is younger.
    pub epoch: Option<i64>,
    /// Where programs are looked for.
    pub path: String,
    /// How to reach the mirrors.
    pub network: NetworkSettings,
    /// 0 if only errors are shown, else 1, and one more for each level of detail; as hooks are told.
    pub verbosity: u8,
    /// Where what commands print goes, byte for byte, as it comes; without it only what failed commands printed is told.
    pub commands_print_to: Option<Arc<File>>,
}

impl BootstrapSettings {
    /// The root's own architecture.
    pub fn architecture(&self) -> &str {
        &self.architectures[0]
    }
}

/// Packages to be installed.
#[derive(Debug, Clone)]
pub struct InstallSettings {
    /// Where; canonical.
    pub root: PathBuf,
    /// As apt takes them. Never empty.
    pub packages: Vec<String>,
    /// `NAME=VALUE` for apt.
    pub apt_options: Vec<String>,
    /// Nobody is asked.
    pub yes: bool,
    /// Even where services could be started.
    pub force: bool,
    /// The caller's own `APT_CONFIG`.
    pub apt_config: Option<String>,
    /// `SOURCE_DATE_EPOCH`
    pub epoch: Option<i64>,
    /// How to reach the mirrors, beside what the root's apt is configured to.
    pub network: NetworkSettings,
    /// Only errors are shown.
    pub quiet: bool,
    /// stdout is for JSON.
    pub json: bool,
}

impl InstallSettings {
    /// Whether it is the root that this program runs in.
    pub fn is_own_root(&self) -> bool {
        self.root == Path::new("/")
    }
}
