//! Unpacks the files of one package to `NAME.dpkg-new` in their directories.
//!
//! Entries are processed in dpkg's order, which is that of the archive with symbolic links last. Each passes dpkg's
//! [`checks`], and is then created ([`create`]). If dpkg would do more, the package is refused and left to dpkg.

mod checks;
mod create;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::atomic::Ordering;

use fullbore_debian::deb::{Compression, DataReader, blocks_of_xz, data};
use fullbore_debian::tar::{Entry, Kind, Reader, TarError};
use fullbore_engine::stage::StageClock;
use rustix::io::Errno;

use super::archive::Hashing;
use super::directories::Directories;
use super::paths::{PathReason, show};
use super::read_ahead::PlainReader;
use super::round::{Round, UnpackFailure};
use super::{PlannedPackage, UnpackError};
use crate::root::RootError;

/// Size of the buffer for plain bytes. With the state of the decoder it fits into the L2 cache, and most files lie in
/// one piece. Measured: 64 KiB to 1 MiB differ by less than 2 %.
const PLAIN_BYTES: usize = 256 << 10;

/// State of a path of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathState {
    /// Only listed: directories and excluded paths.
    Listed,
    /// Written as `.dpkg-new`, to be renamed.
    New,
    /// Written as `.dpkg-new`, which `dpkg --configure` handles.
    Conffile,
}

/// A path of a package.
#[derive(Debug)]
pub(super) struct UnpackedPath {
    /// Path as in dpkg's lists.
    pub path: Vec<u8>,
    /// Path after diversion, if diverted.
    pub diverted: Option<Vec<u8>>,
    pub role: PathState,
    /// MD5 of regular files and hard links, if the package has no `md5sums`.
    pub md5: Option<[u8; 16]>,
}

impl UnpackedPath {
    /// Path on disk.
    pub(super) fn place(&self) -> &[u8] {
        self.diverted.as_deref().unwrap_or(&self.path)
    }
}

/// Files of a package written so far.
#[derive(Debug, Default)]
pub(super) struct ExtractedFiles {
    pub placed: Vec<UnpackedPath>,
    /// Paths taken over from other packages, by their labels.
    pub lost: Vec<(String, Vec<u8>)>,
    /// Number of regular files.
    pub files: u64,
    /// Size of the plain `data.tar`, in bytes.
    pub plain_bytes: u64,
}

/// Writes the files of one package and records them in `work`, also on failure.
pub(super) fn extract(
    round: &Round<'_>,
    directories: &mut Directories<'_>,
    number: u32,
    work: &mut ExtractedFiles,
) -> Result<(), UnpackFailure> {
    let planned = round.planned(number);
    let mut extraction = Extraction {
        round,
        planned,
        number,
        directories,
        work,
        regular: HashMap::new(),
        indexed: 0,
        wants_md5: planned.archive.control().file("md5sums").is_none(),
    };
    extraction.run()
}

struct Extraction<'a, 'd> {
    round: &'a Round<'a>,
    planned: &'a PlannedPackage,
    number: u32,
    directories: &'a mut Directories<'d>,
    work: &'a mut ExtractedFiles,
    /// Regular files of this package by path, filled at the first hard link.
    regular: HashMap<Vec<u8>, usize>,
    indexed: usize,
    wants_md5: bool,
}

impl<'a> Extraction<'a, '_> {
    fn run(&mut self) -> Result<(), UnpackFailure> {
        let plain = Clocked { input: self.source()?, clock: &self.round.context.clocks.decompress };
        let mut reader = Reader::new(BufReader::with_capacity(PLAIN_BYTES, plain));
        let mut entry = Entry::default();
        let mut links = Vec::new();
        while reader.next_entry(&mut entry).map_err(|error| self.damaged(error))? {
            if self.round.stopped(self.number) {
                return Err(UnpackFailure::Deferred(Vec::new()));
            }
            if entry.pax || entry.sparse {
                return Err(UnpackFailure::refused("its archive uses pax headers or holes, which dpkg does not read"));
            }
            if entry.kind == Kind::Directory && entry.flag != b'5' {
                // dpkg handles it partly as a directory and partly as a file.
                return Err(UnpackFailure::refused(
                    "its archive has directories in the form that was used before ustar",
                ));
            }
            if entry.kind == Kind::Symlink {
                links.push(entry.clone());
                continue;
            }
            self.entry(&entry, &mut reader)?;
        }
        self.work.plain_bytes = reader.offset();
        // The rest of the compressed stream contains its checksum.
        let rest: Clocked<'_, Source<'_>> = reader.into_inner().into_inner();
        self.finish(rest)?;
        for link in &links {
            self.entry(link, &mut Reader::new(io::empty()))?;
        }
        Ok(())
    }

    /// Number of threads for one package: more than one only if the others would wait for it.
    fn threads(&self) -> usize {
        let place = self.planned.archive.data();
        let dominates = place.bytes.saturating_mul(self.round.context.threads as u64) > self.round.packed_bytes;
        if self.round.context.threads == 1 || place.compression != Compression::Xz || !dominates {
            return 1;
        }
        let mut first = [0; 64];
        let read = self.planned.archive.data_reader().ok().and_then(|mut file| file.input.read(&mut first).ok());
        match read.and_then(|count| blocks_of_xz(&first[..count], place.bytes)) {
            Some(true) => self.round.context.threads,
            _ => 1,
        }
    }

    /// Opens the source of the plain bytes.
    fn source(&self) -> Result<Source<'a>, UnpackFailure> {
        let (archive, clocks) = (&self.planned.archive, self.round.context.clocks);
        {
            let _role = clocks.decompress.enter();
            // The slot returns it once.
            if !self.round.is_dry_run
                && let Some(plain) = archive.plain()
            {
                return Ok(Source::ReadAhead(plain));
            }
        }
        let packed = archive.data_reader().map_err(UnpackError::from)?;
        let packed = Clocked { input: packed, clock: &clocks.verify };
        let reader = data(packed, archive.data(), self.threads(), archive.proof());
        reader.map(|reader| Source::Packed(Box::new(reader))).map_err(|error| self.unreadable(error))
    }

    fn finish(&self, mut plain: Clocked<'_, Source<'_>>) -> Result<(), UnpackFailure> {
        io::copy(&mut plain, &mut io::sink()).map_err(|error| self.unreadable(error))?;
        let reader = match plain.input {
            Source::Packed(reader) => reader,
            Source::ReadAhead(_) => return Ok(()),
        };
        let mut source = reader.finish().map_err(|error| self.unreadable(error))?;
        io::copy(&mut source, &mut io::sink()).map_err(|error| self.unreadable(error))?;
        self.planned.archive.check(source.input.hasher).map_err(UnpackError::from)?;
        Ok(())
    }

    /// Failure for a name that is not a valid path. dpkg, which runs in the root, may accept the name.
    fn invalid_path(&self, entry: &Entry, reason: PathReason) -> UnpackFailure {
        match reason {
            PathReason::Newline => UnpackFailure::refused("a name in its archive has a line break"),
            PathReason::Unnormal => {
                UnpackFailure::refused(format!("a name in its archive has `..`, `.` or `//`: {}", show(&entry.path)))
            }
        }
    }

    fn damaged(&self, source: TarError) -> UnpackFailure {
        UnpackError::Tar { package: self.planned.archive.name().to_owned(), source }.into()
    }

    fn unreadable(&self, source: io::Error) -> UnpackFailure {
        UnpackError::Data { package: self.planned.archive.name().to_owned(), source }.into()
    }

    fn failed(&self, place: &[u8], operation: &'static str, errno: Errno) -> UnpackFailure {
        let source = RootError::new(place, operation, errno);
        UnpackError::File { package: self.planned.archive.name().to_owned(), source }.into()
    }
}

/// Source of the plain bytes of a package.
enum Source<'c> {
    Packed(Box<DataReader<Clocked<'c, Hashing<File>>>>),
    /// Decompressed ahead and verified.
    ReadAhead(PlainReader),
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::Packed(reader) => reader.read(buffer),
            Source::ReadAhead(plain) => plain.read(buffer),
        }
    }
}

/// Reader that counts its time for a stage.
struct Clocked<'c, R> {
    input: R,
    clock: &'c StageClock,
}

impl<R: Read> Read for Clocked<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let _role = self.clock.enter();
        let count = self.input.read(buffer)?;
        self.clock.add_items(0, count as u64);
        Ok(count)
    }
}

impl Round<'_> {
    /// Whether all workers must stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.context.stop.load(Ordering::Relaxed)
            || self.context.caller_stops.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Whether the worker of this package must stop.
    fn stopped(&self, number: u32) -> bool {
        self.is_stopped() || self.deferred[number as usize].load(Ordering::Relaxed)
    }
}
