//! What a target is made into, by `--format` or by its name.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use fullbore_engine::run::error::CommandError;
use fullbore_install::bootstrap::tools;
use fullbore_install::settings::{ExtVersion, Format, OciContainer};

use super::{NOTHING, STDOUT};
use crate::cli::BootstrapFormat;

/// What a target is made into.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Made {
    Root(Format),
    Image(OciContainer),
}

pub(super) fn format_of(wish: BootstrapFormat, target: &Path) -> Result<Made, CommandError> {
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_stdout = target.as_os_str() == STDOUT;
    let is_packed = tools::compressor(target).is_some();
    match wish {
        BootstrapFormat::Dir => return Ok(Made::Root(Format::Dir)),
        BootstrapFormat::Tar => return Ok(Made::Root(Format::Tar)),
        BootstrapFormat::Squashfs => return Ok(Made::Root(Format::Squashfs)),
        BootstrapFormat::Ext2 => return Ok(Made::Root(Format::Ext(ExtVersion::Ext2))),
        BootstrapFormat::Ext4 => return Ok(Made::Root(Format::Ext(ExtVersion::Ext4))),
        BootstrapFormat::Null => return Ok(Made::Root(Format::Null)),
        BootstrapFormat::Oci if is_stdout || name.ends_with(".tar") => return Ok(Made::Image(OciContainer::Archive)),
        BootstrapFormat::Oci if !is_packed && !name.contains(".tar.") => {
            return Ok(Made::Image(OciContainer::Directory));
        }
        BootstrapFormat::Oci => return Err(packed_twice(&name)),
        BootstrapFormat::Auto if target == Path::new(NOTHING) => return Ok(Made::Root(Format::Null)),
        BootstrapFormat::Auto if is_stdout || is_stream(target) => return Ok(Made::Root(Format::Tar)),
        BootstrapFormat::Auto => {}
    }
    if name.ends_with(".squashfs") || name.ends_with(".sqfs") {
        Ok(Made::Root(Format::Squashfs))
    } else if name.ends_with(".ext2") {
        Ok(Made::Root(Format::Ext(ExtVersion::Ext2)))
    } else if name.ends_with(".ext4") {
        Ok(Made::Root(Format::Ext(ExtVersion::Ext4)))
    } else if name.ends_with(".oci") {
        Ok(Made::Image(OciContainer::Directory))
    } else if name.ends_with(".oci.tar") {
        Ok(Made::Image(OciContainer::Archive))
    } else if name.contains(".oci.tar.") {
        Err(packed_twice(&name))
    } else if name.ends_with(".tar") || is_packed {
        Ok(Made::Root(Format::Tar))
    } else if name.contains(".tar.") {
        Err(CommandError::usage(format_args!("{name}: it is not known what compresses an archive of this ending"))
            .hint("name one that ends in .gz, .bz2, .xz, .zst, .lz4 or .lzma; --format tar makes a plain archive"))
    } else {
        Ok(Made::Root(Format::Dir))
    }
}

/// Whether a FIFO or a device is there, which gets an archive as it is made.
pub(super) fn is_stream(target: &Path) -> bool {
    let kind = target.metadata().map(|status| status.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device() || kind.is_block_device())
}

fn packed_twice(name: &str) -> CommandError {
    CommandError::usage(format_args!("{name}: an OCI archive is not compressed; its layer is"))
        .hint("name a target that ends in .tar, or a directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_go_by_the_ending() {
        let of = |name: &str| format_of(BootstrapFormat::Auto, Path::new(name)).ok();
        for archive in ["/x/root.tar", "/x/root.tar.zst", "/x/root.txz", "/x/root.gz", "-"] {
            assert_eq!(of(archive), Some(Made::Root(Format::Tar)), "{archive}");
        }
        assert_eq!(of("/x/root.squashfs"), Some(Made::Root(Format::Squashfs)));
        assert_eq!(of("/x/root.ext2"), Some(Made::Root(Format::Ext(ExtVersion::Ext2))));
        assert_eq!(of("/x/root.ext4"), Some(Made::Root(Format::Ext(ExtVersion::Ext4))));
        assert_eq!(of("/dev/null"), Some(Made::Root(Format::Null)));
        assert_eq!(of("/dev/zero"), Some(Made::Root(Format::Tar)));
        assert_eq!(of("/x.gz/root"), Some(Made::Root(Format::Dir)));
        assert_eq!(of("/x/root.oci"), Some(Made::Image(OciContainer::Directory)));
        assert_eq!(of("/x/root.oci.tar"), Some(Made::Image(OciContainer::Archive)));
        // Would be a plain archive of another's name.
        assert_eq!(of("/x/root.tar.lz"), None);
        // Would be the archive of a root, compressed.
        assert_eq!(of("/x/root.oci.tar.gz"), None);
        let dir = format_of(BootstrapFormat::Dir, Path::new("x.tar"));
        assert_eq!(dir.ok(), Some(Made::Root(Format::Dir)));
    }

    #[test]
    fn images_are_archives_or_directories() {
        let of = |name: &str| format_of(BootstrapFormat::Oci, Path::new(name)).map_err(|error| error.message);
        for archive in ["-", "/x/image.tar", "/x/image.oci.tar"] {
            assert_eq!(of(archive), Ok(Made::Image(OciContainer::Archive)), "{archive}");
        }
        for directory in ["/x/image", "/x/image.oci", "/x/image.tar/layout"] {
            assert_eq!(of(directory), Ok(Made::Image(OciContainer::Directory)), "{directory}");
        }
        for packed in ["image.tar.gz", "image.tgz", "image.tar.lz", "image.zst"] {
            assert!(of(packed).unwrap_err().starts_with(packed), "{packed}");
        }
    }
}
