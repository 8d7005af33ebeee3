//! Packing a root into one file, with the usual tools.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use fullbore_engine::durability::sync_file;
use fullbore_engine::output::{FOR_ALL, Output};
use fullbore_engine::run::error::{CommandError, ErrorKind};

use super::target::MARKER;
use super::tools::{self, Compressor, MKSQUASHFS, TAR, Tool};
use crate::inside::RootCommands;
use crate::installing::log::Log;
use crate::settings::BootstrapSettings;
use crate::settings::Format;

/// Entries of `/dev` in the archive: name, mode, kind, link, device numbers. They are the same in every mode; with a
/// user namespace or `nodev` the root itself has none.
const DEVICES: [(&str, u32, u8, &str, u32, u32); 15] = [
    ("./dev/", 0o755, b'5', "", 0, 0),
    ("./dev/console", 0o666, b'3', "", 5, 1),
    ("./dev/fd", 0o777, b'2', "/proc/self/fd", 0, 0),
    ("./dev/full", 0o666, b'3', "", 1, 7),
    ("./dev/null", 0o666, b'3', "", 1, 3),
    ("./dev/ptmx", 0o666, b'3', "", 5, 2),
    ("./dev/pts/", 0o755, b'5', "", 0, 0),
    ("./dev/random", 0o666, b'3', "", 1, 8),
    ("./dev/shm/", 0o755, b'5', "", 0, 0),
    ("./dev/stderr", 0o777, b'2', "/proc/self/fd/2", 0, 0),
    ("./dev/stdin", 0o777, b'2', "/proc/self/fd/0", 0, 0),
    ("./dev/stdout", 0o777, b'2', "/proc/self/fd/1", 0, 0),
    ("./dev/tty", 0o666, b'3', "", 5, 0),
    ("./dev/urandom", 0o666, b'3', "", 1, 9),
    ("./dev/zero", 0o666, b'3', "", 1, 5),
];

/// Packs a root; the target appears when it is complete and on the disk. A stream gets it as it is made. `packed_bytes`
/// grows meanwhile.
pub fn pack(
    settings: &BootstrapSettings,
    inside: &RootCommands<'_>,
    log: &Log,
    packed_bytes: &AtomicU64,
) -> Result<(), CommandError> {
    let mtime = settings.epoch.unwrap_or_else(|| jiff::Timestamp::now().as_second());
    if let Some(stream) = &settings.stream {
        let path = Path::new("stdout");
        let file = stream.file.try_clone().map_err(|error| CommandError::disk(path, &error))?;
        return tar(settings, inside, log, path, file, mtime, packed_bytes);
    }
    let failed = |error: std::io::Error| CommandError::disk(&settings.target, &error);
    let output = Output::begin(&settings.target, FOR_ALL).map_err(failed)?;
    // If packing fails, the file is removed.
    match settings.format {
        Format::Squashfs => squashfs(inside, log, output.part())?,
        _ => {
            let file = output.file().try_clone().map_err(failed)?;
            tar(settings, inside, log, output.part(), file, mtime, packed_bytes)?;
        }
    }
    let internal = |error| CommandError::new(ErrorKind::Disk, error);
    sync_file(output.file(), "target").map_err(internal)?;
    let directory = output.path().parent().unwrap_or(Path::new("/")).to_owned();
    output.publish().map_err(failed)?;
    sync_file(&File::open(directory).map_err(failed)?, "directory").map_err(internal)
}

fn tar(
    settings: &BootstrapSettings,
    inside: &RootCommands<'_>,
    log: &Log,
    part: &Path,
    mut output: File,
    mtime: i64,
    packed_bytes: &AtomicU64,
) -> Result<(), CommandError> {
    let disk = |error: std::io::Error| CommandError::disk(part, &error);
    let not_started = |program: &str, error| CommandError::usage(format_args!("{program}: {error}"));
    let mut compressing = None;
    let mut to: Box<dyn std::io::Write> = match tools::compressor(&settings.target) {
        None => Box::new(output.try_clone().map_err(disk)?),
        Some(Compressor { tool: Tool { program, .. }, options, .. }) => {
            let mut command = inside.plain(program);
            log.take(&mut command, false)?;
            command.args(*options).stdin(Stdio::piped()).stdout(output.try_clone().map_err(disk)?);
            let mut child = command.spawn().map_err(|error| not_started(program, error))?;
            let stdin = child.stdin.take().ok_or_else(|| CommandError::new(ErrorKind::Internal, "no pipe"))?;
            compressing = Some((child, *program));
            Box::new(stdin)
        }
    };
    for device in DEVICES {
        to.write_all(&header(device, mtime)).map_err(disk)?;
    }
    let mut tar = inside.plain(TAR.program);
    log.take(&mut tar, false)?;
    tar.arg("--directory").arg(inside.root());
    tar.args(["--sort=name", "--clamp-mtime", "--numeric-owner", "--one-file-system", "--format=pax", "--xattrs"]);
    tar.arg(format!("--mtime=@{mtime}"));
    tar.arg("--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime");
    tar.args(["--exclude=./dev", "--exclude=./lost+found"]).arg(format!("--exclude=./{MARKER}"));
    let mut tar =
        tar.args(["--create", "."]).stdout(Stdio::piped()).spawn().map_err(|error| not_started(TAR.program, error))?;
    let mut from = tar.stdout.take().ok_or_else(|| CommandError::new(ErrorKind::Internal, "no pipe"))?;
    let copied = std::io::copy(&mut from, &mut Counting { to: &mut to, bytes: packed_bytes });
    // Where nothing more can be written, it would wait for ever.
    drop(from);
    let status = tar.wait().map_err(disk)?;
    drop(to);
    if let Some((mut child, program)) = compressing {
        let status = child.wait().map_err(disk)?;
        log.judge(status, program)?;
    }
    copied.map_err(disk)?;
    log.judge(status, TAR.program)?;
    output.flush().map_err(disk)
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

/// A ustar header of 512 bytes (POSIX.1-1988), owned by root.
fn header((name, mode, kind, link, major, minor): (&str, u32, u8, &str, u32, u32), mtime: i64) -> [u8; 512] {
    let mut block = [0; 512];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, "00000000000");
    put(136, &format!("{:011o}", mtime.max(0)));
    put(148, "        ");
    put(157, link);
    put(257, "ustar\x0000");
    put(329, &format!("{major:07o}"));
    put(337, &format!("{minor:07o}"));
    block[156] = kind;
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn squashfs(inside: &RootCommands<'_>, log: &Log, part: &Path) -> Result<(), CommandError> {
    let mut command = inside.plain(MKSQUASHFS.program);
    command.arg(inside.root()).arg(part).args(["-noappend", "-no-progress", "-quiet"]);
    for (name, mode, kind, link, major, minor) in DEVICES {
        let name = name.trim_start_matches("./").trim_end_matches('/');
        if inside.root().join(name).symlink_metadata().is_ok() {
            continue;
        }
        command.arg("-p").arg(match kind {
            b'2' => format!("{name} s {mode:o} 0 0 {link}"),
            b'5' => format!("{name} d {mode:o} 0 0"),
            _ => format!("{name} c {mode:o} 0 0 {major} {minor}"),
        });
    }
    command.args(["-e", MARKER, "lost+found"]);
    log.run(&mut command, MKSQUASHFS.program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_reads_the_headers() {
        use std::process::Command;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dev.tar");
        let mut bytes: Vec<u8> = DEVICES.iter().flat_map(|device| header(*device, 1_700_000_000)).collect();
        bytes.extend([0; 1024]);
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
