//! Packing a root into one file with the usual tools, or into an image.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use fullbore_engine::durability::sync_file;
use fullbore_engine::output::{FOR_ALL, Output};
use fullbore_engine::run::error::{CommandError, ErrorKind};

use super::oci::{self, Image};
use super::skips::Skips;
use super::target::{MARKER, layout_place};
use super::tools::{self, Compressor, MKSQUASHFS, TAR, Tool};
use super::ustar::{Kind, header};
use super::{cores, ext_image};
use crate::inside::RootCommands;
use crate::installing::log::Log;
use crate::root::Root;
use crate::settings::{BootstrapSettings, Format, OciContainer, StreamTo};

/// Entries of `/dev` in the archive: name, mode, kind. They are the same in every mode; with a user namespace or
/// `nodev` the root itself has none.
const DEVICES: [(&str, u32, Kind); 15] = [
    ("./dev/", 0o755, Kind::Directory),
    ("./dev/console", 0o666, Kind::Device(5, 1)),
    ("./dev/fd", 0o777, Kind::Link("/proc/self/fd")),
    ("./dev/full", 0o666, Kind::Device(1, 7)),
    ("./dev/null", 0o666, Kind::Device(1, 3)),
    ("./dev/ptmx", 0o666, Kind::Device(5, 2)),
    ("./dev/pts/", 0o755, Kind::Directory),
    ("./dev/random", 0o666, Kind::Device(1, 8)),
    ("./dev/shm/", 0o755, Kind::Directory),
    ("./dev/stderr", 0o777, Kind::Link("/proc/self/fd/2")),
    ("./dev/stdin", 0o777, Kind::Link("/proc/self/fd/0")),
    ("./dev/stdout", 0o777, Kind::Link("/proc/self/fd/1")),
    ("./dev/tty", 0o666, Kind::Device(5, 0)),
    ("./dev/urandom", 0o666, Kind::Device(1, 9)),
    ("./dev/zero", 0o666, Kind::Device(1, 5)),
];

/// Names in a root that no packed form contains.
pub(super) const LEFT_OUT: [&str; 3] = ["lost+found", MARKER, oci::UNFINISHED];

/// The directory of [`DEVICES`], relative to the root.
pub(super) const DEV: &str = "dev";

/// The entries of `/dev` that are written instead of those of the root, if any are.
pub(super) fn devices(skips: &Skips) -> Option<impl Iterator<Item = (&'static str, u32, Kind)>> {
    let without_nodes = skips.has("output/mknod");
    let is_written = move |kind: &Kind| !(without_nodes && matches!(kind, Kind::Device(..)));
    (!skips.has("output/dev")).then(|| DEVICES.into_iter().filter(move |(_, _, kind)| is_written(kind)))
}

/// Removes the entries of [`DEVICES`] from a root whose own `/dev` is packed.
fn clear_devices(root: &Path) -> Result<(), CommandError> {
    let root = Root::open(root)?;
    for (name, ..) in DEVICES {
        let path = name.trim_start_matches("./").trim_end_matches('/');
        if path != DEV {
            root.remove(path)?;
        }
    }
    Ok(())
}

/// Packs a root; the target appears when it is complete and on the disk. A stream gets a tar archive as it is made, and
/// an image when it is complete. `packed_bytes` grows meanwhile.
///
/// # Errors
///
/// `Disk` if the root cannot be read or the result cannot be written. If tar, a compressor, mksquashfs or mke2fs fails,
/// `Partial`, and `Usage` if it cannot be started. For an image also the errors of its documents.
pub(super) fn pack(
    settings: &BootstrapSettings,
    inside: &RootCommands<'_>,
    log: &Log,
    packed_bytes: &AtomicU64,
) -> Result<(), CommandError> {
    let mtime = settings.epoch.unwrap_or_else(|| jiff::Timestamp::now().as_second());
    if settings.skips.has("output/dev") && !settings.skips.has("cleanup/dev") {
        clear_devices(inside.root())?;
    }
    let packing = Packing { inside, log, mtime, skips: &settings.skips, packed_bytes };
    let failed = |error: std::io::Error| CommandError::cannot("write", &settings.target, &error);
    match (&settings.format, &settings.stream) {
        (Format::Oci(image), stream) => {
            let written = Image::of_root(settings, image, inside.root(), mtime, cores())?;
            match (image.container, stream) {
                (_, Some(stream)) => packing.image_to_stream(&written, &stream.to),
                (OciContainer::Archive, None) => to_file(&settings.target, |output| {
                    written.write_archive(output.file(), output.part(), &mut |to| packing.tar(output.part(), to))
                }),
                (OciContainer::Directory, None) => packing.image_to_directory(&written, &settings.target),
            }
        }
        (Format::Null, _) => Ok(()),
        (Format::Squashfs, _) => to_file(&settings.target, |output| packing.squashfs(output.part())),
        (Format::Ext(version), _) => to_file(&settings.target, |output| {
            ext_image::write(*version, inside, log, devices(&settings.skips).map(Iterator::collect), output.part())
        }),
        (_, Some(stream)) => match opened(&stream.to)? {
            None => Ok(()),
            Some((path, file)) => packing.compressed_tar(tools::compressor(&settings.target), &path, file),
        },
        (_, None) => to_file(&settings.target, |output| {
            let file = output.file().try_clone().map_err(failed)?;
            packing.compressed_tar(tools::compressor(&settings.target), output.part(), file)
        }),
    }
}

/// The path and the open file of a stream. Opening a FIFO waits for the program at its other end.
fn opened(to: &StreamTo) -> Result<Option<(PathBuf, File)>, CommandError> {
    let stdout = PathBuf::from("stdout");
    let (path, file) = match to {
        StreamTo::Nothing => return Ok(None),
        StreamTo::Stdout(file) => (stdout, file.try_clone()),
        StreamTo::File(path) => (path.clone(), File::options().write(true).open(path)),
    };
    let file = file.map_err(|error| CommandError::cannot("open", &path, &error))?;
    Ok(Some((path, file)))
}

/// Writes a file under a temporary name, and names it when it is on the disk. If `write` fails, the file is removed.
fn to_file(target: &Path, write: impl FnOnce(&Output) -> Result<(), CommandError>) -> Result<(), CommandError> {
    let failed = |error: std::io::Error| CommandError::cannot("write", target, &error);
    let output = Output::begin(target, FOR_ALL).map_err(failed)?;
    write(&output)?;
    synced(output.file(), "target")?;
    let directory = output.path().parent().unwrap_or(Path::new("/")).to_owned();
    output.publish().map_err(failed)?;
    synced(&File::open(directory).map_err(failed)?, "directory")
}

fn synced(file: &File, name: &str) -> Result<(), CommandError> {
    sync_file(file, name).map_err(|error| CommandError::new(ErrorKind::Disk, error))
}

/// A root that is being packed.
struct Packing<'a> {
    inside: &'a RootCommands<'a>,
    log: &'a Log,
    mtime: i64,
    skips: &'a Skips,
    packed_bytes: &'a AtomicU64,
}

impl Packing<'_> {
    /// Writes a tar archive to a file, through a compressor or not.
    fn compressed_tar(
        &self,
        compressor: Option<&Compressor>,
        path: &Path,
        mut output: File,
    ) -> Result<(), CommandError> {
        let disk = |error: std::io::Error| CommandError::cannot("write", path, &error);
        let Some(Compressor { tool: Tool { program, .. }, options, .. }) = compressor else {
            self.tar(path, &mut output)?;
            return output.flush().map_err(disk);
        };
        let mut command = self.inside.plain(program);
        self.log.take(&mut command, false)?;
        command.args(*options).stdin(Stdio::piped()).stdout(output.try_clone().map_err(disk)?);
        let mut child = command.spawn().map_err(|error| not_started(program, &error))?;
        let mut stdin = child.stdin.take().ok_or_else(no_pipe)?;
        let packed = self.tar(path, &mut stdin);
        drop(stdin);
        let status = child.wait().map_err(disk)?;
        // A compressor that fails is the reason why tar cannot write.
        self.log.judge(status, program)?;
        packed?;
        output.flush().map_err(disk)
    }

    /// Writes a tar archive. Errors call its destination `path`.
    fn tar(&self, path: &Path, to: &mut dyn std::io::Write) -> Result<(), CommandError> {
        let disk = |error: std::io::Error| CommandError::cannot("write", path, &error);
        let devices = devices(self.skips);
        let excluded = LEFT_OUT.into_iter().chain(devices.is_some().then_some(DEV));
        for (name, mode, kind) in devices.into_iter().flatten() {
            to.write_all(&header(name, mode, kind, self.mtime)).map_err(disk)?;
        }
        let mut tar = self.inside.plain(TAR.program);
        self.log.take(&mut tar, false)?;
        tar.arg("--directory").arg(self.inside.root());
        tar.args(["--sort=name", "--clamp-mtime", "--numeric-owner", "--one-file-system", "--format=pax", "--xattrs"]);
        tar.arg(format!("--mtime=@{}", self.mtime));
        tar.arg("--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime");
        tar.args(excluded.map(|name| format!("--exclude=./{name}")));
        let tar = tar.args(["--create", "."]).stdout(Stdio::piped());
        let mut tar = tar.spawn().map_err(|error| not_started(TAR.program, &error))?;
        let mut from = tar.stdout.take().ok_or_else(no_pipe)?;
        let copied = std::io::copy(&mut from, &mut Counting { to, bytes: self.packed_bytes });
        // With the pipe open, tar would wait for ever once nobody reads.
        drop(from);
        let status = tar.wait().map_err(disk)?;
        copied.map_err(disk)?;
        self.log.judge(status, TAR.program)
    }

    /// Writes an image to a stream when it is complete: its first file contains the hash of the layer.
    fn image_to_stream(&self, image: &Image, to: &StreamTo) -> Result<(), CommandError> {
        let path = self.inside.root().join(oci::UNFINISHED);
        let disk = |error: std::io::Error| CommandError::cannot("read", &path, &error);
        let mut archive = oci::nameless_file(&path)?;
        image.write_archive(&archive, &path, &mut |to| self.tar(&path, to))?;
        archive.rewind().map_err(disk)?;
        let Some((path, mut output)) = opened(to)? else { return Ok(()) };
        let failed = |error: std::io::Error| CommandError::cannot("write to", &path, &error);
        std::io::copy(&mut archive, &mut output).map_err(failed)?;
        output.flush().map_err(failed)
    }

    fn squashfs(&self, part: &Path) -> Result<(), CommandError> {
        let root = self.inside.root();
        let mut command = self.inside.plain(MKSQUASHFS.program);
        command.arg(root).arg(part).args(["-noappend", "-no-progress", "-quiet"]);
        let devices = devices(self.skips);
        let without_nodes = devices.is_some() && self.skips.has("output/mknod");
        for (name, mode, kind) in devices.into_iter().flatten() {
            let name = name.trim_start_matches("./").trim_end_matches('/');
            if root.join(name).symlink_metadata().is_ok() {
                continue;
            }
            command.arg("-p").arg(match kind {
                Kind::Link(link) => format!("{name} s {mode:o} 0 0 {link}"),
                Kind::Device(major, minor) => format!("{name} c {mode:o} 0 0 {major} {minor}"),
                Kind::Directory | Kind::File(_) => format!("{name} d {mode:o} 0 0"),
            });
        }
        command.args(["-e", MARKER, "lost+found"]);
        if without_nodes {
            let nodes = DEVICES.iter().filter(|(_, _, kind)| matches!(kind, Kind::Device(..)));
            command.args(nodes.map(|(name, ..)| name.trim_start_matches("./")));
        }
        self.log.run(&mut command, MKSQUASHFS.program)
    }

    /// Writes the layout in the root, which is removed if the run fails or is killed, and then moves it to the target.
    fn image_to_directory(&self, image: &Image, target: &Path) -> Result<(), CommandError> {
        let unfinished = self.inside.root().join(oci::UNFINISHED);
        image.write_layout(&unfinished, &mut |to| self.tar(&unfinished, to))?;
        let place = layout_place(target)?;
        let failed = |error: std::io::Error| CommandError::cannot("write", &place, &error);
        // An empty directory is replaced; one that somebody filled meanwhile is not.
        std::fs::rename(&unfinished, &place).map_err(failed)?;
        synced(&File::open(place.parent().unwrap_or(Path::new("/"))).map_err(failed)?, "directory")
    }
}

fn not_started(program: &str, error: &std::io::Error) -> CommandError {
    CommandError::usage(format_args!("{program}: {error}"))
}

fn no_pipe() -> CommandError {
    CommandError::new(ErrorKind::Internal, "no pipe")
}

/// Counts what is written.
struct Counting<'a> {
    to: &'a mut dyn std::io::Write,
    bytes: &'a AtomicU64,
}

impl std::io::Write for Counting<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::ustar::END;

    #[test]
    fn tar_reads_the_headers() {
        use std::process::Command;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dev.tar");
        let headers = DEVICES.iter().flat_map(|(name, mode, kind)| header(name, *mode, *kind, 1_700_000_000));
        let mut bytes: Vec<u8> = headers.collect();
        bytes.extend(END);
        std::fs::write(&file, bytes).unwrap();
        let output = Command::new("tar").args(["--numeric-owner", "--utc", "-tvf"]).arg(&file).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The column widths are those of tar.
        let is_null = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words == ["crw-rw-rw-", "0/0", "1,3", "2023-11-14", "22:13", "./dev/null"]
        };
        assert!(text.lines().any(is_null), "{text}");
        assert!(text.contains("./dev/fd -> /proc/self/fd"), "{text}");
    }
}
