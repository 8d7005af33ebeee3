//! Packing a root as an image of an ext file system, with the tools of e2fsprogs.
//!
//! mke2fs copies the directory. debugfs then removes files that do not belong to the root, and creates the devices,
//! which a user namespace cannot create in the directory.

use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;

use fullbore_engine::run::error::{CommandError, ErrorKind};

use super::pack::{DEV, LEFT_OUT};
use super::tools::{DEBUGFS, MKE2FS};
use super::ustar::Kind;
use crate::inside::RootCommands;
use crate::installing::log::Log;
use crate::settings::ExtVersion;

/// Sizes of blocks and inodes (mke2fs.conf(5)).
const BLOCK_BYTES: u64 = 4096;
const INODE_BYTES: u64 = 256;

/// Space beyond the files: group descriptors, bitmaps and some room. A guess, tried with small and large roots.
const FIXED_BYTES: u64 = 16 << 20;

/// The largest journal that mke2fs makes for images of up to 128 GiB with these settings.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Inodes beyond those of the root.
const SPARE_INODES: u64 = 4096;

/// File types in the mode of an inode (inode(7)).
const DIRECTORY_TYPE: u32 = 0o040_000;
const DEVICE_TYPE: u32 = 0o020_000;

/// Entries of `/dev`: name, mode, kind.
pub(super) type Devices = Vec<(&'static str, u32, Kind)>;

/// Writes an image of the root into the file `part`. Without `devices`, `/dev` stays as it is.
///
/// # Errors
///
/// `Disk` if the root cannot be read. If mke2fs or debugfs fails, `Partial`, and `Usage` if it cannot be started.
pub(super) fn write(
    version: ExtVersion,
    inside: &RootCommands<'_>,
    log: &Log,
    devices: Option<Devices>,
    part: &Path,
) -> Result<(), CommandError> {
    let root = inside.root();
    let needs = Needs::of(root).map_err(|error| CommandError::cannot("read", root, &error))?;
    let journal = if version == ExtVersion::Ext2 { 0 } else { JOURNAL_BYTES };
    let inodes = needs.inodes + SPARE_INODES;
    // A tenth for directories and the blocks that list those of large files.
    let bytes = needs.bytes + needs.bytes / 10 + inodes * INODE_BYTES + FIXED_BYTES + journal;
    let mut make = inside.plain(MKE2FS.program);
    make.args(["-q", "-F", "-t", version.name(), "-b", &BLOCK_BYTES.to_string(), "-I", &INODE_BYTES.to_string()]);
    make.args(["-m", "0", "-N", &inodes.to_string(), "-d"]).arg(root).arg(part);
    make.arg(format!("{}k", bytes / 1024));
    log.run(&mut make, MKE2FS.program)?;
    let mut script = String::new();
    for name in LEFT_OUT.iter().filter(|name| **name != "lost+found") {
        if root.join(name).is_file() {
            script.push_str(&format!("rm /{name}\n"));
        }
    }
    if let Some(devices) = devices {
        script.push_str(&removal(&root.join(DEV)).map_err(|error| CommandError::cannot("read", root, &error))?);
        script.push_str(&creation(&devices));
    }
    edit(inside, log, part, &script)
}

/// Space that the entries of a root need.
struct Needs {
    bytes: u64,
    inodes: u64,
}

impl Needs {
    fn of(root: &Path) -> std::io::Result<Needs> {
        let mut needs = Needs { bytes: 0, inodes: 0 };
        let mut ahead = vec![root.to_owned()];
        let device = root.symlink_metadata()?.dev();
        while let Some(path) = ahead.pop() {
            let status = path.symlink_metadata()?;
            needs.inodes += 1;
            needs.bytes += status.len().next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
            if status.is_dir() && status.dev() == device {
                ahead.extend(
                    fs::read_dir(&path)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?,
                );
            }
        }
        Ok(needs)
    }
}

/// Commands that remove the content of `/dev`, which has plain names only.
fn removal(dev: &Path) -> std::io::Result<String> {
    let mut script = String::new();
    if !dev.is_dir() {
        return Ok(script);
    }
    for entry in fs::read_dir(dev)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_plain = name.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte));
        if is_plain {
            let remove = if entry.file_type()?.is_dir() { "rmdir" } else { "rm" };
            script.push_str(&format!("{remove} /{DEV}/{}\n", name.to_string_lossy()));
        }
    }
    Ok(script)
}

/// Commands that create the entries.
fn creation(devices: &Devices) -> String {
    let mut script = format!("mkdir /{DEV}\ncd /{DEV}\n");
    for (name, mode, kind) in devices {
        let name = name.trim_start_matches("./dev/").trim_end_matches('/');
        if name.is_empty() {
            continue;
        }
        match kind {
            Kind::Link(target) => script.push_str(&format!("symlink {name} {target}\n")),
            Kind::Device(major, minor) => {
                let mode = DEVICE_TYPE | mode;
                script.push_str(&format!("mknod {name} c {major} {minor}\nsif {name} mode 0{mode:o}\n"));
            }
            Kind::Directory | Kind::File(_) => {
                let mode = DIRECTORY_TYPE | mode;
                script.push_str(&format!("mkdir {name}\nsif {name} mode 0{mode:o}\n"));
            }
        }
    }
    script
}

/// Runs commands of debugfs on an image.
fn edit(inside: &RootCommands<'_>, log: &Log, part: &Path, script: &str) -> Result<(), CommandError> {
    let mut debugfs = inside.plain(DEBUGFS.program);
    debugfs.args(["-w", "-f", "-"]).arg(part);
    log.take(&mut debugfs, true)?;
    let failed = |error: std::io::Error| CommandError::new(ErrorKind::Partial, format_args!("debugfs: {error}"));
    let mut child = debugfs.stdin(Stdio::piped()).spawn().map_err(failed)?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(script.as_bytes()));
    let status = child.wait().map_err(failed)?;
    log.judge(status, DEBUGFS.program)?;
    written.map_err(failed)
}
