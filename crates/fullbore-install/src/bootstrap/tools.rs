//! Programs that pack a root: which a format needs, and whether they exist.

use std::path::Path;

use fullbore_engine::run::error::CommandError;
use rustix::fs::Access;

use crate::settings::BootstrapSettings;
use crate::settings::Format;

/// A program and its Debian package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tool {
    /// Name of the program in the search path.
    pub program: &'static str,
    package: &'static str,
}

/// Program that makes tar archives.
pub const TAR: Tool = Tool { program: "tar", package: "tar" };

/// Program that makes squashfs images.
pub const MKSQUASHFS: Tool = Tool { program: "mksquashfs", package: "squashfs-tools" };

/// Program that makes ext file system images.
pub const MKE2FS: Tool = Tool { program: "mke2fs", package: "e2fsprogs" };
/// Program that changes ext file system images.
pub const DEBUGFS: Tool = Tool { program: "debugfs", package: "e2fsprogs" };

/// A compressor for tar archives, chosen by the extension of the target.
#[derive(Debug, PartialEq, Eq)]
pub struct Compressor {
    /// Extensions of archives.
    endings: &'static [&'static str],
    /// Program, a filter from stdin to stdout.
    pub tool: Tool,
    /// Options for output that does not depend on the machine.
    pub options: &'static [&'static str],
}

const COMPRESSORS: [Compressor; 6] = [
    Compressor {
        endings: &[".gz", ".tgz", ".taz"],
        tool: Tool { program: "gzip", package: "gzip" },
        options: &["--no-name"],
    },
    Compressor {
        endings: &[".bz2", ".tbz", ".tbz2", ".tz2"],
        tool: Tool { program: "bzip2", package: "bzip2" },
        options: &[],
    },
    Compressor { endings: &[".xz", ".txz"], tool: Tool { program: "xz", package: "xz-utils" }, options: &["-T0"] },
    Compressor {
        endings: &[".zst", ".tzst"],
        tool: Tool { program: "zstd", package: "zstd" },
        options: &["-T0", "-q"],
    },
    Compressor { endings: &[".lz4"], tool: Tool { program: "lz4", package: "lz4" }, options: &["-q"] },
    Compressor { endings: &[".lzma", ".tlz"], tool: Tool { program: "lzma", package: "xz-utils" }, options: &[] },
];

/// Compressor for an archive of this name; `None` for an uncompressed one.
pub fn compressor(target: &Path) -> Option<&'static Compressor> {
    let name = target.to_string_lossy();
    COMPRESSORS.iter().find(|compressor| compressor.endings.iter().any(|ending| name.ends_with(ending)))
}

/// Checks that the programs for the format exist, before anything is fetched.
///
/// # Errors
/// A usage error that names the missing program and its package.
pub fn check(settings: &BootstrapSettings) -> Result<(), CommandError> {
    let needed = match &settings.format {
        _ if settings.simulate => [None, None],
        Format::Dir | Format::Null => [None, None],
        Format::Ext(_) => [Some(MKE2FS), Some(DEBUGFS)],
        Format::Squashfs => [Some(MKSQUASHFS), None],
        Format::Oci(_) => [Some(TAR), None],
        Format::Tar => [Some(TAR), compressor(&settings.target).map(|compressor| compressor.tool)],
    };
    match needed.into_iter().flatten().find(|tool| !is_there(tool.program, &settings.path)) {
        None => Ok(()),
        Some(Tool { program, package }) => {
            Err(CommandError::usage(format_args!("cannot make {}: {program} is missing", settings.target.display()))
                .hint(format_args!("install the package {package}")))
        }
    }
}

/// Whether a search path has the program.
fn is_there(program: &str, directories: &str) -> bool {
    std::env::split_paths(directories)
        .map(|directory| directory.join(program))
        .any(|path| path.is_file() && rustix::fs::access(&path, Access::EXEC_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_name_their_compressor() {
        let of = |name: &str| compressor(Path::new(name)).map(|compressor| compressor.tool.program);
        assert_eq!(of("/x/root.tar.zst"), Some("zstd"));
        assert_eq!(of("/x/root.txz"), Some("xz"));
        assert_eq!(of("/x/root.tar"), None);
        assert_eq!(of("-"), None);
    }

    #[test]
    fn a_program_is_one_that_can_be_run() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("plain"), "").unwrap();
        std::fs::create_dir(dir.path().join("directory")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", dir.path().join("program")).unwrap();
        let path = format!("/nonexistent:{}", dir.path().display());
        for (name, expected) in [("plain", false), ("directory", false), ("none", false), ("program", true)] {
            assert_eq!(is_there(name, &path), expected, "{name}");
        }
    }
}
