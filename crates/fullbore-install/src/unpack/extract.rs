//! One package's files: from its archive to `NAME.dpkg-new` in their directories.
//!
//! Entries are taken in dpkg's order, which is the archive's with symbolic links last. Each goes through dpkg's
//! [`questions`], and is then made ([`making`]). Where dpkg would do more than is done here, the package is refused and
//! left to it.

mod making;
mod questions;

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
use super::round::{Halt, Round};
use super::{Planned, UnpackError};
use crate::root::RootError;

/// Plain bytes decoded at once: with what the decoder touches they stay in the L2 cache, and most
/// files lie in one piece. A measurement: 64 KiB to 1 MiB made no difference beyond 2 %.
const PLAIN_BYTES: usize = 256 << 10;

/// What happened to a path of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// In the list, and nothing is left to do: directories, and what a filter left out.
    Listed,
    /// Lies as `.dpkg-new` and gets its name at the end.
    New,
    /// Lies as `.dpkg-new` and stays so: `dpkg --configure` decides.
    Conffile,
}

/// A path of a package.
#[derive(Debug)]
pub(super) struct Placed {
    /// As dpkg lists it.
    pub path: Vec<u8>,
    /// Where it is if it is diverted.
    pub diverted: Option<Vec<u8>>,
    pub role: Role,
    /// Of regular files and hard links, when the package has no `md5sums`.
    pub md5: Option<[u8; 16]>,
}

impl Placed {
    /// Where it is.
    pub fn place(&self) -> &[u8] {
        self.diverted.as_deref().unwrap_or(&self.path)
    }
}

/// What was done for a package so far.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub placed: Vec<Placed>,
    /// Paths taken over from other packages, by their labels.
    pub lost: Vec<(String, Vec<u8>)>,
    /// Regular files that were made.
    pub files: u64,
    /// Bytes of plain `data.tar`.
    pub plain_bytes: u64,
}

/// Writes the files of one package. What was written is in `work`, also after a failure.
pub(super) fn extract(
    round: &Round<'_>,
    directories: &mut Directories<'_>,
    number: u32,
    work: &mut Work,
) -> Result<(), Halt> {
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
    planned: &'a Planned,
    number: u32,
    directories: &'a mut Directories<'d>,
    work: &'a mut Work,
    /// Regular files of this package by path, made when the first hard link comes.
    regular: HashMap<Vec<u8>, usize>,
    indexed: usize,
    wants_md5: bool,
}

impl<'a> Extraction<'a, '_> {
    fn run(&mut self) -> Result<(), Halt> {
        let plain = Clocked { input: self.source()?, clock: &self.round.clocks.decompress };
        let mut reader = Reader::new(BufReader::with_capacity(PLAIN_BYTES, plain));
        let mut entry = Entry::default();
        let mut links = Vec::new();
        while reader.next_entry(&mut entry).map_err(|error| self.damaged(error))? {
            if self.round.stopped(self.number) {
                return Err(Halt::Deferred(Vec::new()));
            }
            if entry.pax || entry.sparse {
                return Err(Halt::refused("its archive uses pax headers or holes, which dpkg does not read"));
            }
            if entry.kind == Kind::Directory && entry.flag != b'5' {
                // dpkg takes it for a directory and then for a file.
                return Err(Halt::refused("its archive has directories in the form that was used before ustar"));
            }
            if entry.kind == Kind::Symlink {
                links.push(entry.clone());
                continue;
            }
            self.entry(&entry, &mut reader)?;
        }
        self.work.plain_bytes = reader.offset();
        // The rest of the compressed stream has its checksum, and the file its hash.
        let rest: Clocked<'_, Source<'_>> = reader.into_inner().into_inner();
        self.finish(rest)?;
        for link in &links {
            self.entry(link, &mut Reader::new(io::empty()))?;
        }
        Ok(())
    }

    /// Cores for one package: more than one only where it is so large that others would wait for it.
    fn threads(&self) -> usize {
        let place = self.planned.archive.data();
        let dominates = place.bytes.saturating_mul(self.round.threads as u64) > self.round.packed_bytes;
        if self.round.threads == 1 || place.compression != Compression::Xz || !dominates {
            return 1;
        }
        let mut first = [0; 64];
        let read = self.planned.archive.data_reader().ok().and_then(|mut file| file.input.read(&mut first).ok());
        match read.and_then(|count| blocks_of_xz(&first[..count], place.bytes)) {
            Some(true) => self.round.threads,
            _ => 1,
        }
    }

    /// Where the plain bytes come from.
    fn source(&self) -> Result<Source<'a>, Halt> {
        let (archive, clocks) = (&self.planned.archive, self.round.clocks);
        {
            let _role = clocks.decompress.enter();
            // It is given once.
            if !self.round.only_asks
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

    fn finish(&self, mut plain: Clocked<'_, Source<'_>>) -> Result<(), Halt> {
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

    /// A name that is no path of a package.
    fn strange_path(&self, entry: &Entry, reason: PathReason) -> Halt {
        match reason {
            PathReason::Newline => Halt::refused("a name in its archive has a line break"),
            PathReason::Unnormal => {
                UnpackError::Hostile { package: self.planned.archive.name().to_owned(), path: show(&entry.path) }.into()
            }
        }
    }

    fn damaged(&self, source: TarError) -> Halt {
        UnpackError::Tar { package: self.planned.archive.name().to_owned(), source }.into()
    }

    fn unreadable(&self, source: io::Error) -> Halt {
        UnpackError::Data { package: self.planned.archive.name().to_owned(), source }.into()
    }

    fn failed(&self, place: &[u8], operation: &'static str, errno: Errno) -> Halt {
        let source = RootError::new(place, operation, errno);
        UnpackError::File { package: self.planned.archive.name().to_owned(), source }.into()
    }
}

/// The plain bytes of a package.
enum Source<'c> {
    Packed(Box<DataReader<Clocked<'c, Hashing<File>>>>),
    /// Decompressed before, and verified.
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

/// Counts the time of its reads for a role.
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
    /// Whether all were told to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.caller_stops.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// The same, or this package to step back.
    fn stopped(&self, number: u32) -> bool {
        self.is_stopped() || self.put_off[number as usize].load(Ordering::Relaxed)
    }
}
