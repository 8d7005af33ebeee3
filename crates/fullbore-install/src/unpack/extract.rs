//! One package's files: from its archive to `NAME.dpkg-new` in their directories.
//!
//! Entries are taken in dpkg's order, which is the archive's with symbolic links last, and each
//! goes through dpkg's questions: is it diverted, is a directory there already, does another
//! package own it, is it filtered. Where dpkg would do more than is done here, the package is
//! refused and left to it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use fullbore_debian::deb::{Compression, DataReader, blocks_of_xz, data};
use fullbore_debian::tar::{Entry, Kind, Reader, TarError};
use fullbore_engine::stage::StageClock;
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::archive::Hashing;
use super::claims::{Attributes, Taken};
use super::directories::{Directories, Directory, new_name, split};
use super::files::{self, Wanted};
use super::paths::{PathReason, listed_path, show};
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

impl Extraction<'_, '_> {
    fn run(&mut self) -> Result<(), Halt> {
        let archive = &self.planned.archive;
        let source = archive.data_reader().map_err(UnpackError::from)?;
        let source = Clocked { input: source, clock: &self.round.clocks.verify };
        let threads = self.threads();
        let reader = data(source, archive.data(), threads, archive.proof()).map_err(|error| self.unreadable(error))?;
        let plain = Clocked { input: reader, clock: &self.round.clocks.decompress };
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
        let rest: Clocked<'_, DataReader<_>> = reader.into_inner().into_inner();
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

    fn finish(&self, mut plain: Clocked<'_, DataReader<Clocked<'_, Hashing<File>>>>) -> Result<(), Halt> {
        io::copy(&mut plain, &mut io::sink()).map_err(|error| self.unreadable(error))?;
        let mut source = plain.input.finish().map_err(|error| self.unreadable(error))?;
        io::copy(&mut source, &mut io::sink()).map_err(|error| self.unreadable(error))?;
        self.planned.archive.check(source.input.hasher).map_err(UnpackError::from)?;
        Ok(())
    }

    /// dpkg's questions, in its order.
    fn entry<R: io::BufRead>(&mut self, entry: &Entry, content: &mut Reader<R>) -> Result<(), Halt> {
        let path = listed_path(&entry.path).map_err(|reason| self.strange_path(entry, reason))?;
        let (round, name) = (self.round, self.planned.archive.name());
        let diversions = &round.database.diversions;
        if diversions.is_target(&path) {
            return Err(Halt::refused(format!("{} is where another file is diverted to", show(&path))));
        }
        let place = diversions.place(&path, name);
        let diverted = (place != path).then(|| place.to_vec());
        let is_conffile = self.planned.is_conffile(&path);
        let mut placed = Placed { path, diverted, role: Role::Listed, md5: None };
        if placed.path == b"/." {
            self.work.placed.push(placed);
            return Ok(());
        }
        let place = placed.place().to_vec();
        let (parent_path, base) = split(&place);
        let may_lead = matches!(entry.kind, Kind::Directory | Kind::Symlink);
        let parent = match self.directories.open(parent_path) {
            Ok(parent) => parent,
            // Left out with its directory.
            Err(Errno::NOENT | Errno::NOTDIR) if round.filters.skips(&placed.path, may_lead) => {
                self.work.placed.push(placed);
                return Ok(());
            }
            // Perhaps another package of this round makes it; dpkg would fail.
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(Halt::Missing(place.clone())),
            Err(errno) => return Err(self.failed(&place, "open the directory of", errno)),
        };
        let on_disk = self.on_disk(&parent, base, &place)?;
        if entry.kind != Kind::Directory && on_disk == Some(FileType::Directory) {
            let found = round.claims.found_directory(parent.identity, base, self.number);
            found.map_err(|Taken { by }| Halt::Deferred(by))?;
        }
        let keeps_directory = match (entry.kind, on_disk) {
            (Kind::Directory, Some(FileType::Directory)) => true,
            (Kind::Directory, Some(_)) => self.leads_to_directory(&place),
            (Kind::Symlink, Some(FileType::Directory)) => true,
            (Kind::Symlink, Some(FileType::Symlink)) => self.leads_to_same(&place, &entry.link),
            _ => false,
        };
        if !keeps_directory && !self.may_have(&placed.path, entry.kind, on_disk)? {
            return Ok(());
        }
        if round.filters.skips(&placed.path, may_lead) {
            self.work.placed.push(placed);
            return Ok(());
        }
        if entry.kind == Kind::Directory {
            self.directory(entry, &parent, base, &place, on_disk.is_some() && keeps_directory)?;
            self.work.placed.push(placed);
            return Ok(());
        }
        if keeps_directory {
            self.work.placed.push(placed);
            return Ok(());
        }
        if on_disk == Some(FileType::Directory) {
            return Err(Halt::refused(format!("{} is a directory in the root", show(&place))));
        }
        if is_conffile && on_disk == Some(FileType::Symlink) {
            return Err(Halt::refused(format!("its conffile {} is a symbolic link in the root", show(&place))));
        }
        round.claims.other(parent.identity, base, self.number).map_err(|Taken { by }| Halt::Deferred(by))?;
        placed.role = if is_conffile { Role::Conffile } else { Role::New };
        // Noted before it is made, so that it is taken away if something fails.
        self.work.placed.push(placed);
        let at = self.work.placed.len() - 1;
        let md5 = self.make(entry, content, &parent, base, &place)?;
        self.work.placed[at].md5 = md5;
        Ok(())
    }

    /// What has this name now; a directory made in this round has only what was claimed in it.
    fn on_disk(&self, parent: &Directory, base: &[u8], place: &[u8]) -> Result<Option<FileType>, Halt> {
        if parent.fresh {
            return Ok(None);
        }
        match rustix::fs::statat(parent, base, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(Some(FileType::from_raw_mode(status.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed(place, "look at", errno)),
        }
    }

    fn leads_to_directory(&self, place: &[u8]) -> bool {
        self.round.root.directory(&place[1..]).is_ok()
    }

    /// Whether a link that is there and the one to be made lead to one directory.
    fn leads_to_same(&self, place: &[u8], target: &[u8]) -> bool {
        let target = match target {
            [b'/', ..] => target.to_vec(),
            _ => [split(place).0, b"/", target].concat(),
        };
        let identity = |path: &[u8]| {
            let status = rustix::fs::fstat(self.round.root.directory(path).ok()?).ok()?;
            Some((status.st_dev, status.st_ino))
        };
        identity(&place[1..]).is_some_and(|is| identity(&target) == Some(is))
    }

    /// Whether the package may have this path, as to other packages that list it. `false`: it is
    /// theirs, and dpkg would leave it to them.
    fn may_have(&mut self, path: &[u8], kind: Kind, on_disk: Option<FileType>) -> Result<bool, Halt> {
        let mut keeps = true;
        for label in self.round.owners.of(path) {
            if on_disk.is_none() && kind == Kind::Directory {
                continue;
            }
            let owner = self.round.database.labelled(label);
            let Some(owner) = owner else { continue };
            if owner.name() == self.planned.archive.name() {
                return Err(Halt::refused(format!("{} is shared with another architecture's package", show(path))));
            }
            if let Some(diverted_for) = self.round.database.diversions.owner(path)
                && (diverted_for == owner.name() || diverted_for == self.planned.archive.name())
            {
                continue;
            }
            if self.planned.replaces(owner) {
                if self.planned.is_conffile(path) {
                    return Err(Halt::refused(format!("it takes over the conffile {} from {label}", show(path))));
                }
                self.work.lost.push((label.to_owned(), path.to_vec()));
            } else if super::replaces(&owner.stanza, self.planned.archive.name(), self.planned.version()) {
                keeps = false;
            } else {
                return Err(Halt::refused(format!("{} belongs to {label}, which it does not replace", show(path))));
            }
        }
        if !keeps && self.planned.is_conffile(path) {
            return Err(Halt::refused(format!("its conffile {} is another package's", show(path))));
        }
        Ok(keeps)
    }

    fn directory(
        &mut self,
        entry: &Entry,
        parent: &Rc<Directory>,
        base: &[u8],
        place: &[u8],
        exists: bool,
    ) -> Result<(), Halt> {
        let wanted = self.wanted(entry, place);
        let attributes = Attributes { mode: wanted.mode, uid: wanted.uid, gid: wanted.gid, mtime_s: entry.mtime_s };
        let make = || -> Result<bool, Errno> {
            if exists {
                return Ok(false);
            }
            match files::make_directory(parent, base, wanted, entry.mtime_s) {
                Err(Errno::EXIST) => Ok(false),
                made => made.map(|()| true),
            }
        };
        let mut made = false;
        let claimed = self.round.claims.directory(parent.identity, base, &place[1..], self.number, attributes, || {
            make().inspect(|is_new| made = *is_new)
        });
        match claimed.map_err(|errno| self.failed(place, "create the directory", errno))? {
            Ok(()) => {}
            Err(Taken { by }) => return Err(Halt::Deferred(by)),
        }
        if made {
            let opened = self.directories.open_fresh(parent, base, &place[1..]);
            opened.map_err(|errno| self.failed(place, "open the directory", errno))?;
        } else if !exists && !self.leads_to_directory(place) {
            return Err(Halt::refused(format!("{} is no directory in the root", show(place))));
        }
        Ok(())
    }

    /// Makes what is no directory, under dpkg's temporary name. The MD5 of a file, if it is wanted.
    fn make<R: io::BufRead>(
        &mut self,
        entry: &Entry,
        content: &mut Reader<R>,
        parent: &Directory,
        base: &[u8],
        place: &[u8],
    ) -> Result<Option<[u8; 16]>, Halt> {
        let new = new_name(base);
        let wanted = self.wanted(entry, place);
        match entry.kind {
            Kind::File => {
                let written =
                    files::write(parent, &new, wanted, entry, content, self.wants_md5, &self.round.clocks.write);
                match written {
                    Ok(md5) => Ok(md5),
                    Err(files::WriteError::Archive(error)) => Err(self.damaged(error)),
                    Err(files::WriteError::File(errno)) => Err(self.failed(place, "write", errno)),
                }
            }
            Kind::HardLink => {
                let target = listed_path(&entry.link).map_err(|reason| self.strange_path(entry, reason))?;
                let Some(at) = self.regular_file(&target) else {
                    return Err(Halt::refused(format!("{} is a hard link to what it does not bring", show(place))));
                };
                let target = self.work.placed[at].place().to_vec();
                let (target_path, target_base) = split(&target);
                let from = self.directories.open(target_path);
                let from = from.map_err(|errno| self.failed(&target, "open the directory of", errno))?;
                files::link(&from, &new_name(target_base), parent, &new, wanted, entry.mtime_s)
                    .map_err(|errno| self.failed(place, "link", errno))?;
                Ok(self.work.placed[at].md5)
            }
            kind => {
                files::special(parent, &new, wanted, kind, entry)
                    .map_err(|errno| self.failed(place, "create", errno))?;
                Ok(None)
            }
        }
    }

    /// Where in `placed` a regular file of this package is that lies as `.dpkg-new`.
    fn regular_file(&mut self, path: &[u8]) -> Option<usize> {
        // The last one is the link itself.
        let end = self.work.placed.len() - 1;
        for (at, placed) in self.work.placed[..end].iter().enumerate().skip(self.indexed) {
            if placed.role != Role::Listed {
                self.regular.insert(placed.path.clone(), at);
            }
        }
        self.indexed = end;
        self.regular.get(path).copied()
    }

    fn wanted(&self, entry: &Entry, place: &[u8]) -> Wanted {
        if let Some(set) = self.round.database.overrides.get(place) {
            return Wanted { mode: set.mode, uid: set.uid, gid: set.gid };
        }
        let accounts = &self.round.database.accounts;
        Wanted {
            mode: entry.mode,
            uid: accounts.user(&entry.user, entry.uid),
            gid: accounts.group(&entry.group, entry.gid),
        }
    }

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
    /// Whether all were told to stop, or this package to step back.
    fn stopped(&self, number: u32) -> bool {
        self.stop.load(Ordering::Relaxed)
            || self.caller_stops.is_some_and(|stop| stop.load(Ordering::Relaxed))
            || self.put_off[number as usize].load(Ordering::Relaxed)
    }
}
