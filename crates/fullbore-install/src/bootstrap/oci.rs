//! Packing a root as an OCI image with one layer: a layout directory, or an archive of one.
//!
//! [`Image::write_archive`] and [`Image::write_layout`] write the layer first, because the other files contain its
//! hashes. The layer is the same tar archive that `--format tar` creates.

mod documents;
mod facts;
mod layer;
mod platform;
mod whiteouts;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use fullbore_engine::durability::sync_file;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events;

use super::ustar::{self, BLOCK_BYTES, Kind, header};
use crate::root::Root;
use crate::settings::{BootstrapSettings, Format, OciSettings};
pub use documents::is_tag;
use documents::{Document, blob_path, documents};
use facts::{Facts, time};
pub use platform::Platform;

/// Name of the unfinished image in the root, which packing leaves out.
pub const UNFINISHED: &str = ".fullbore-image";

/// Temporary name of the layer until its hash is known.
const UNNAMED_LAYER: &str = "blobs/sha256/.layer";

/// Mode of files in an archive.
const FILE_MODE: u32 = 0o644;

/// Callback that writes the layer's tar archive.
pub type Fill<'a> = dyn FnMut(&mut dyn Write) -> Result<(), CommandError> + 'a;

/// Checks the settings of an image before anything is fetched.
///
/// # Errors
/// `Usage` if `SOURCE_DATE_EPOCH` is beyond the calendar.
pub fn check(settings: &BootstrapSettings, events: &mut dyn Events) -> Result<(), CommandError> {
    let Format::Oci(image) = &settings.format else { return Ok(()) };
    if let Some(epoch) = settings.epoch {
        time(epoch)?;
    }
    let of_root = Platform::of_debian(settings.architecture());
    if of_root.is_none_or(|of_root| of_root.architecture != image.platform.architecture) {
        events.warn(format!(
            "the image will name the architecture {}, but its programs are of {}",
            image.platform.architecture,
            settings.architecture()
        ));
    }
    Ok(())
}

/// An image to write: the facts about its root, and the settings of its layer.
#[derive(Debug)]
pub struct Image {
    facts: Facts,
    mtime: i64,
    cores: usize,
}

impl Image {
    /// An image of this root, which has its final content.
    ///
    /// # Errors
    /// `Usage` if the root contains a name that images use for deleted files, or `mtime` is beyond the calendar. `Disk`
    /// if a directory cannot be read.
    pub fn of_root(
        settings: &BootstrapSettings,
        image: &OciSettings,
        root: &Path,
        mtime: i64,
        cores: usize,
    ) -> Result<Image, CommandError> {
        whiteouts::check(root)?;
        let facts = Facts::of_root(settings, image, &Root::open(root)?, mtime)?;
        Ok(Image { facts, mtime, cores })
    }

    /// Writes an archive of a layout into an empty file that can be written at any offset.
    ///
    /// # Errors
    /// The errors of `fill`, or `Disk` if the file cannot be written.
    pub fn write_archive(&self, mut file: &File, path: &Path, fill: &mut Fill<'_>) -> Result<(), CommandError> {
        let disk = |error: std::io::Error| CommandError::cannot("write", path, &error);
        let mut before = Vec::new();
        for directory in ["blobs/", "blobs/sha256/"] {
            before.extend(header(directory, 0o755, Kind::Directory, self.mtime));
        }
        let layers_header_at = before.len() as u64;
        before.extend([0; BLOCK_BYTES]);
        file.write_all(&before).map_err(disk)?;
        let layer = layer::compress(file, path, self.cores, fill)?;
        let layers_header = header(&blob_path(layer.digest), FILE_MODE, Kind::File(layer.size), self.mtime);
        file.write_all_at(&layers_header, layers_header_at).map_err(disk)?;

        let mut after = ustar::padding(layer.size).to_vec();
        for Document { path, content } in documents(&self.facts, &layer).map_err(internal)? {
            let size = content.len() as u64;
            after.extend(header(&path, FILE_MODE, Kind::File(size), self.mtime));
            after.extend(content);
            after.extend(ustar::padding(size));
        }
        after.extend(ustar::END);
        file.write_all(&after).map_err(disk)
    }

    /// Writes a layout into a directory that does not exist, with everything on the disk.
    ///
    /// # Errors
    /// The errors of `fill`, or `Disk` if the directory cannot be written.
    pub fn write_layout(&self, directory: &Path, fill: &mut Fill<'_>) -> Result<(), CommandError> {
        let disk = |path: &Path, error: &std::io::Error| CommandError::cannot("write", path, error);
        let directories = ["blobs/sha256", "blobs", ""].map(|name| directory.join(name));
        for path in directories.iter().rev() {
            fs::create_dir(path).map_err(|error| disk(path, &error))?;
        }
        let unnamed = directory.join(UNNAMED_LAYER);
        let file = File::create_new(&unnamed).map_err(|error| disk(&unnamed, &error))?;
        let layer = layer::compress(&file, &unnamed, self.cores, fill)?;
        sync(&file)?;
        let named = directory.join(blob_path(layer.digest));
        fs::rename(&unnamed, &named).map_err(|error| disk(&named, &error))?;
        for Document { path, content } in documents(&self.facts, &layer).map_err(internal)? {
            let path = directory.join(path);
            let mut file = File::create_new(&path).map_err(|error| disk(&path, &error))?;
            file.write_all(&content).map_err(|error| disk(&path, &error))?;
            sync(&file)?;
        }
        for path in &directories {
            sync(&File::open(path).map_err(|error| disk(path, &error))?)?;
        }
        Ok(())
    }
}

fn sync(file: &File) -> Result<(), CommandError> {
    sync_file(file, "image").map_err(|error| CommandError::new(ErrorKind::Disk, error))
}

fn internal(error: serde_json::Error) -> CommandError {
    CommandError::new(ErrorKind::Internal, error)
}

/// Creates the file for an archive that goes to stdout. It has no name in the root, and ends with the process.
///
/// # Errors
/// `Disk` if the file cannot be created or its name cannot be removed.
pub fn nameless_file(path: &Path) -> Result<File, CommandError> {
    let disk = |error: std::io::Error| CommandError::cannot("create", path, &error);
    // The root may be open to others, and the archive contains files that only root may read.
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(disk)?;
    fs::remove_file(path).map_err(disk)?;
    Ok(file)
}
