//! The source: directories held open, names resolved beneath them, by rsync's rules for paths.
//!
//! A path with a slash at its end stands for what is in the directory, one without for the
//! directory itself (rsync(1), "USAGE"). Everything below is opened by way of the directory's handle,
//! without symbolic links: a link put in place of a directory meanwhile leads nowhere.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::entry::{Entry, Identity, Kind, PATH_BYTES, Time};
use crate::error::CopyError;
use crate::options::Options;
use crate::overlap::{Number, Whereabouts};

pub(super) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory that sources lie beneath.
#[derive(Debug)]
pub(super) struct Root {
    descriptor: OwnedFd,
    /// Its file system.
    pub(super) device: u64,
    /// Its own path beneath the destination: not empty only with `--relative`.
    prefix: Vec<u8>,
    /// Symbolic links stand for what they lead to (`--copy-links`).
    pub(super) follows: bool,
}

/// What one argument of the command stands for.
#[derive(Clone, Debug)]
pub struct Source {
    pub(super) root: Arc<Root>,
    /// The name beneath the root; none for all that is in it.
    pub(super) name: Option<Vec<u8>>,
    /// Whether it is a directory, or its content.
    pub(super) is_directory: bool,
    /// As it was opened.
    path: PathBuf,
    /// Directories that lead to it and are made at the destination, the outermost first (`--relative`).
    pub(super) implied: Vec<Implied>,
    /// Its path is kept, so that it is never given another name.
    is_relative: bool,
}

/// A directory that leads to a source.
#[derive(Clone, Debug)]
pub(super) struct Implied {
    /// Its path beneath the destination.
    pub(super) path: Vec<u8>,
    /// It, open: a symbolic link stands for the directory that it leads to, as with rsync.
    pub(super) root: Arc<Root>,
}

/// What of a source's path is kept at the destination.
#[derive(Debug)]
pub(crate) struct KeptPath<'a> {
    /// What is left out.
    base: &'a [u8],
    pub(crate) names: Vec<&'a [u8]>,
    /// What is in the last of the names is meant, or what is in `base`, if there is none.
    pub(crate) is_content: bool,
    /// The user has said what is left out.
    pub(crate) is_cut: bool,
}

impl<'a> KeptPath<'a> {
    /// The last name.
    pub(crate) fn last(path: &'a [u8]) -> KeptPath<'a> {
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let is_content = is_content(last);
        let base = match &path[..path.len() - last.len()] {
            _ if is_content => path,
            b"" => b".",
            above => above,
        };
        KeptPath { base, names: if is_content { Vec::new() } else { vec![last] }, is_content, is_cut: false }
    }

    /// With `--relative`: what is behind `/./`, or all of it. None if that leads above itself.
    pub(crate) fn relative(path: &'a [u8]) -> Option<KeptPath<'a>> {
        let cut = path.windows(3).position(|part| part == b"/./").or_else(|| path.starts_with(b"./").then_some(0));
        let (base, kept) = match cut {
            Some(0) if path.starts_with(b"./") => (&b"."[..], &path[2..]),
            Some(0) => (&b"/"[..], &path[3..]),
            Some(cut) => (&path[..cut], &path[cut + 3..]),
            None if path.starts_with(b"/") => (&b"/"[..], &path[1..]),
            None => (&b"."[..], path),
        };
        let names = kept.split(|byte| *byte == b'/').try_fold(Vec::new(), with_name)?;
        let last = kept.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        Some(KeptPath { base, names, is_content: is_content(last), is_cut: cut.is_some() })
    }

    /// As [`KeptPath::relative`], of a path below a directory that has this one name, or nothing.
    pub(crate) fn relative_below(directory: &'a [u8], rest: &'a [u8]) -> Option<KeptPath<'a>> {
        if rest.windows(3).any(|part| part == b"/./") {
            return KeptPath::relative(rest);
        }
        let last = rest.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let names = rest.split(|byte| *byte == b'/').try_fold(vec![directory], with_name)?;
        Some(KeptPath { base: b"/", names, is_content: !rest.is_empty() && is_content(last), is_cut: false })
    }
}

/// A path's names and one more part of it; none if that leads above them.
fn with_name<'a>(mut names: Vec<&'a [u8]>, part: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    match part {
        b"" | b"." => {}
        b".." => drop(names.pop()?),
        part => names.push(part),
    }
    Some(names)
}

/// Whether a path that ends in this stands for what is in a directory.
fn is_content(last: &[u8]) -> bool {
    matches!(last, b"" | b"." | b"..")
}

/// A source that cannot be opened, of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingSource {
    /// The path as the user wrote it.
    pub path: Vec<u8>,
    /// Why it cannot be copied.
    pub text: String,
}

/// Sources as far as they could be opened.
#[derive(Clone, Debug)]
pub struct OpenedSources {
    /// Those that are there, in the order of the command line.
    pub sources: Vec<Source>,
    /// The others.
    pub missing: Vec<MissingSource>,
}

impl OpenedSources {
    /// Opens what paths stand for. One of several that cannot be opened is noted, and the others are copied.
    ///
    /// # Errors
    /// When none of them can be opened.
    pub fn open(paths: &[PathBuf], options: &Options) -> Result<OpenedSources, CopyError> {
        let (mut sources, mut missing, mut first) = (Vec::new(), Vec::new(), None);
        for path in paths {
            match Source::open_as(path, options) {
                Ok(source) => sources.push(source),
                Err(error) => {
                    let text = io::Error::from(error.errno).to_string();
                    missing.push(MissingSource {
                        path: path.as_os_str().as_bytes().to_vec(),
                        text: error.text.map_or(text, str::to_owned),
                    });
                    first.get_or_insert(error.usage(path));
                }
            }
        }
        match first {
            Some(error) if sources.is_empty() => Err(error),
            _ => Ok(OpenedSources { sources, missing }),
        }
    }

    /// Whether all that was named are files, so that the only one may get another name.
    pub(crate) fn are_files(&self) -> bool {
        self.sources.iter().all(|source| source.single_file().is_some())
    }

    /// Whether several were named.
    pub(crate) fn are_many(&self) -> bool {
        self.sources.len() + self.missing.len() > 1
    }

    /// Where they lie; nothing of those that have gone meanwhile.
    pub(crate) fn whereabouts(&self) -> Vec<Whereabouts> {
        self.sources.iter().filter_map(Source::whereabouts).collect()
    }
}

/// Why a source cannot be copied.
#[derive(Clone, Copy, Debug)]
struct Unusable {
    errno: Errno,
    /// In place of what the system says.
    text: Option<&'static str>,
}

impl Unusable {
    fn usage(self, path: &Path) -> CopyError {
        let text = self.text.map_or_else(|| io::Error::from(self.errno).to_string(), str::to_owned);
        CopyError::Usage(format!("{}: {text}", path.display()))
    }
}

impl From<Errno> for Unusable {
    fn from(errno: Errno) -> Unusable {
        Unusable { errno, text: None }
    }
}

/// Views of the kernel are made while they are read, and tell no sizes.
const KERNEL_VIEW: Unusable = Unusable {
    errno: Errno::INVAL,
    text: Some("nothing of /proc and /sys is copied: the kernel makes it while it is read"),
};
/// `..` that leads out of what is to be kept of a path.
const ABOVE: Unusable =
    Unusable { errno: Errno::INVAL, text: Some("its path leads above the part that --relative keeps") };

impl Source {
    /// Opens what a path stands for.
    ///
    /// # Errors
    /// When there is nothing, or nothing that we may open.
    pub fn open(path: &Path) -> Result<Source, CopyError> {
        Source::open_as(path, &Options::default()).map_err(|error| error.usage(path))
    }

    /// As [`Source::open`], with what the user wishes of symbolic links and of paths.
    fn open_as(path: &Path, options: &Options) -> Result<Source, Unusable> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if options.relative {
            return Source::open_relative(path, options.copy_links);
        }
        let KeptPath { base, names, is_content, .. } = KeptPath::last(bytes);
        let directory = if is_content { path } else { Path::new(OsStr::from_bytes(base)) };
        let root = Root::open(directory, Vec::new(), options.copy_links)?;
        Source::within(root, names.first().map(|name| name.to_vec()), path, Vec::new(), false)
    }

    /// A source whose path is kept at the destination, as far as it is behind `/./`, or all of it.
    fn open_relative(path: &Path, follows: bool) -> Result<Source, Unusable> {
        let KeptPath { base, mut names, is_content, .. } =
            KeptPath::relative(path.as_os_str().as_bytes()).ok_or(ABOVE)?;
        let name = if is_content { None } else { names.pop().map(<[u8]>::to_vec) };
        let (mut root, mut prefix, mut implied) =
            (Root::open(Path::new(OsStr::from_bytes(base)), Vec::new(), follows)?, Vec::new(), Vec::new());
        let mut place = PathBuf::from(OsStr::from_bytes(base));
        for part in names {
            prefix = crate::entry::join(&prefix, part);
            place.push(OsStr::from_bytes(part));
            root = Root::open(&place, prefix.clone(), follows)?;
            let own = Root {
                descriptor: rustix::io::fcntl_dupfd_cloexec(&root.descriptor, 0)?,
                prefix: prefix.clone(),
                ..root
            };
            implied.push(Implied { path: prefix.clone(), root: Arc::new(own) });
        }
        // One without directories before its name can get another one, as with rsync.
        let is_relative = !implied.is_empty();
        Source::within(root, name, path, implied, is_relative)
    }

    /// What has this name in a directory, or its content.
    fn within(
        root: Root,
        name: Option<Vec<u8>>,
        path: &Path,
        implied: Vec<Implied>,
        is_relative: bool,
    ) -> Result<Source, Unusable> {
        let Some(last) = &name else {
            if is_kernel_view(root.descriptor.as_fd()) {
                return Err(KERNEL_VIEW);
            }
            let root = Arc::new(root);
            return Ok(Source { root, name, is_directory: true, path: path.to_owned(), implied, is_relative });
        };
        let status = rustix::fs::statat(&root.descriptor, &last[..], look(root.follows))?;
        let is_directory = Kind::of_mode(status.st_mode) == Some(Kind::Directory);
        let is_view = if status.st_dev == root.device {
            is_kernel_view(root.descriptor.as_fd())
        } else {
            let open = rustix::fs::openat(&root.descriptor, &last[..], OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            open.is_ok_and(|open| is_kernel_view(open.as_fd()))
        };
        if is_view {
            return Err(KERNEL_VIEW);
        }
        // A mounted source is the file system that is meant.
        let root = Root { device: if is_directory { status.st_dev } else { root.device }, ..root };
        Ok(Source { root: Arc::new(root), name, is_directory, path: path.to_owned(), implied, is_relative })
    }

    /// The name of a source that is no directory, and may be given another one.
    pub(crate) fn single_file(&self) -> Option<&[u8]> {
        self.name.as_deref().filter(|_| !self.is_directory && !self.is_relative)
    }

    /// Where it lies; nothing if it has gone meanwhile.
    pub(crate) fn whereabouts(&self) -> Option<Whereabouts> {
        let root = Number::of(&rustix::fs::fstat(&self.root.descriptor).ok()?);
        let status = |name: &Vec<u8>| rustix::fs::statat(&self.root.descriptor, name, look(self.root.follows)).ok();
        let named = self.name.as_ref().and_then(status).as_ref().map(Number::of);
        Some(Whereabouts {
            root,
            name: self.name.clone(),
            own: named.filter(|_| self.is_directory),
            prefix: self.root.prefix.clone(),
            written: self.path.as_os_str().as_bytes().to_vec(),
            content: self.real_path().map(|path| path.into_os_string().into_vec()),
            itself: if self.name.is_none() { Some(root) } else { named },
        })
    }

    /// Its path without links, but for one that is copied itself.
    fn real_path(&self) -> Option<PathBuf> {
        let open = PathBuf::from(format!("/proc/self/fd/{}", self.root.descriptor.as_raw_fd()));
        let by_name = || match (&self.name, self.path.parent()) {
            (None, _) => Some(self.path.as_path()),
            (Some(_), Some(above)) if above == Path::new("") => Some(Path::new(".")),
            (Some(_), above) => above,
        };
        let root = open.canonicalize().ok().or_else(|| by_name()?.canonicalize().ok())?;
        let Some(name) = &self.name else { return Some(root) };
        let path = root.join(OsStr::from_bytes(name));
        if self.root.follows { path.canonicalize().ok() } else { Some(path) }
    }

    /// Whether it is on a disk whose arm has to be moved.
    pub fn is_rotational(&self) -> bool {
        crate::device::is_rotational(self.root.descriptor.as_fd())
    }
}

impl Root {
    fn open(path: &Path, prefix: Vec<u8>, follows: bool) -> Result<Root, Errno> {
        let descriptor = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
        let device = rustix::fs::fstat(&descriptor)?.st_dev;
        Ok(Root { descriptor, device, prefix, follows })
    }
}

/// File systems that are views of the kernel, never copied (`linux/magic.h`): proc, sysfs.
const KERNEL_VIEWS: [u64; 2] = [0x9fa0, 0x6265_6572];

/// Whether this is within a view of the kernel.
pub(super) fn is_kernel_view(open: BorrowedFd<'_>) -> bool {
    let kind = rustix::fs::fstatfs(open).map(|file_system| file_system.f_type as u64);
    kind.is_ok_and(|kind| KERNEL_VIEWS.contains(&(kind & 0xffff_ffff)))
}

/// How a name is looked at: itself, or what a symbolic link leads to.
pub(super) fn look(follows: bool) -> AtFlags {
    if follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

/// A directory that was entered by way of others, all known by their file systems and numbers.
#[derive(Debug)]
pub(super) struct Entered {
    inode: (u64, u64),
    above: Option<Arc<Entered>>,
}

impl Entered {
    /// A directory within others; none if it is one of them, so that to enter it would never end.
    pub(super) fn within(above: Option<&Arc<Entered>>, status: &Stat) -> Option<Arc<Entered>> {
        let inode = (status.st_dev, status.st_ino);
        let mut next = above;
        while let Some(entered) = next {
            if entered.inode == inode {
                return None;
            }
            next = entered.above.as_ref();
        }
        Some(Arc::new(Entered { inode, above: above.cloned() }))
    }
}

/// A directory of the source; its path is the same beneath the root and beneath the destination.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) root: Arc<Root>,
    /// Its path beneath the destination.
    pub(super) path: Vec<u8>,
    /// How it was entered, where symbolic links are followed and may lead back.
    pub(super) entered: Option<Arc<Entered>>,
}

impl Directory {
    /// The directory of this path beneath the destination.
    pub(super) fn new(root: Arc<Root>, path: Vec<u8>) -> Directory {
        Directory { root, path, entered: None }
    }

    /// The directory that sources lie beneath.
    pub(super) fn of_root(root: &Arc<Root>) -> Directory {
        Directory::new(root.clone(), root.prefix.clone())
    }

    /// Its path beneath the root.
    fn beneath(&self) -> &[u8] {
        let rest = self.path.strip_prefix(&self.root.prefix[..]).unwrap_or_default();
        rest.strip_prefix(b"/").unwrap_or(rest)
    }

    /// Opens it, beneath the root and without symbolic links, unless they are to be followed.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        let path = self.beneath();
        if path.is_empty() {
            return rustix::fs::openat(&self.root.descriptor, ".", DIRECTORY, Mode::empty());
        }
        if path.len() >= PATH_BYTES {
            // As the system says where it takes whole paths.
            return Err(Errno::NAMETOOLONG);
        }
        if self.root.follows {
            return rustix::fs::openat(&self.root.descriptor, path, DIRECTORY, Mode::empty());
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.root.descriptor, path, DIRECTORY, Mode::empty(), resolve) {
            // Before Linux 5.6, or filtered by a container.
            Err(Errno::NOSYS | Errno::PERM) => self.open_stepwise(),
            result => result,
        }
    }

    fn open_stepwise(&self) -> Result<OwnedFd, Errno> {
        let mut current = rustix::io::fcntl_dupfd_cloexec(&self.root.descriptor, 0)?;
        for part in self.beneath().split(|byte| *byte == b'/') {
            current = rustix::fs::openat(&current, part, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        }
        Ok(current)
    }
}

/// A file of the source whose content may be wanted.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub(super) directory: Arc<Directory>,
    pub(super) name: Box<[u8]>,
    pub(super) size: u64,
    pub(super) sparse: bool,
    pub(super) modified: Time,
    pub(super) identity: Identity,
}

impl SourceFile {
    /// Its path beneath the destination.
    pub(super) fn path(&self) -> Vec<u8> {
        crate::entry::join(&self.directory.path, &self.name)
    }

    /// Opens it for reading within its open directory.
    pub(super) fn open(&self, directory: &OwnedFd) -> Result<File, Errno> {
        // NONBLOCK: whoever puts a pipe in its place does not make us wait for ever.
        let links = if self.directory.root.follows { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::RDONLY | links | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, &self.name[..], flags, Mode::empty())?;
        Ok(File::from(file))
    }

    /// Whether an open file is the one that was listed, unchanged.
    pub(super) fn is_unchanged(&self, file: impl AsFd) -> Result<bool, Errno> {
        let status = rustix::fs::fstat(file)?;
        if Kind::of_mode(status.st_mode) != Some(Kind::File) {
            return Err(Errno::INVAL);
        }
        let unchanged = identity(&status) == self.identity && modified(&status) == self.modified;
        Ok(unchanged && status.st_size as u64 == self.size)
    }
}

/// The entry of a name, as its status tells; extended attributes and link targets come from elsewhere.
pub(crate) fn entry(name: &[u8], status: &Stat) -> Option<Entry> {
    let kind = Kind::of_mode(status.st_mode)?;
    let size = if kind == Kind::File { status.st_size as u64 } else { 0 };
    let stored = (status.st_blocks as u64).saturating_mul(512);
    Some(Entry {
        mode: status.st_mode & 0o7777,
        user: status.st_uid,
        group: status.st_gid,
        modified: modified(status),
        size,
        stored: (kind == Kind::File && stored < size).then_some(stored),
        identity: if kind == Kind::Directory { Identity::default() } else { identity(status) },
        device: if kind.is_device() {
            (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev))
        } else {
            (0, 0)
        },
        ..Entry::plain(name, kind)
    })
}

pub(super) fn identity(status: &Stat) -> Identity {
    let changed = Time { seconds: status.st_ctime, nanoseconds: status.st_ctime_nsec as u32 };
    Identity { device: status.st_dev, inode: status.st_ino, changed }
}

pub(crate) fn modified(status: &Stat) -> Time {
    Time { seconds: status.st_mtime, nanoseconds: status.st_mtime_nsec as u32 }
}
