//! The source: directories held open, and names resolved below them, by rsync's rules for paths.
//!
//! A path that ends in a slash stands for the content of the directory, one without for the directory itself (rsync(1),
//! "USAGE"). Everything below is opened through the directory's descriptor, without following symbolic links. A link
//! that replaces a directory meanwhile leads nowhere.

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

/// The directory that contains a source.
#[derive(Debug)]
pub(super) struct Root {
    descriptor: OwnedFd,
    /// Device number of its file system.
    pub(super) device: u64,
    /// Path of the directory below the destination; empty without `--relative`.
    prefix: Vec<u8>,
    /// Whether symbolic links are followed (`--copy-links`).
    pub(super) follows: bool,
}

/// The source that one argument of the command names.
#[derive(Clone, Debug)]
pub struct Source {
    pub(super) root: Arc<Root>,
    /// The name in the root directory; `None` for all of the root's content.
    pub(super) name: Option<Vec<u8>>,
    /// Whether the source is a directory, or the content of one.
    pub(super) is_directory: bool,
    /// The path as it was opened.
    path: PathBuf,
    /// Parent directories that are made at the destination, outermost first (`--relative`).
    pub(super) implied: Vec<Implied>,
    /// Whether its path is kept, so that it never gets another name.
    is_relative: bool,
}

/// A parent directory of a source.
#[derive(Clone, Debug)]
pub(super) struct Implied {
    /// Its path below the destination.
    pub(super) path: Vec<u8>,
    /// The open directory. A symbolic link stands for the directory that it leads to, as in rsync.
    pub(super) root: Arc<Root>,
}

/// The part of a source's path that is kept at the destination.
#[derive(Debug)]
pub(crate) struct KeptPath<'a> {
    /// The part that is left out.
    base: &'a [u8],
    pub(crate) names: Vec<&'a [u8]>,
    /// Whether the source is the content of the last name, or of `base` if there are no names.
    pub(crate) is_content: bool,
    /// Whether the user marked the part that is left out.
    pub(crate) is_cut: bool,
}

impl<'a> KeptPath<'a> {
    /// Keeps the last name only.
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

    /// With `--relative`: keeps the part after `/./`, or all of the path. `None` if `..` climbs above that part.
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

    /// Like [`KeptPath::relative`], for a path below a directory that has this one name, or none.
    pub(crate) fn relative_below(directory: &'a [u8], rest: &'a [u8]) -> Option<KeptPath<'a>> {
        if rest.windows(3).any(|part| part == b"/./") {
            return KeptPath::relative(rest);
        }
        let last = rest.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let names = rest.split(|byte| *byte == b'/').try_fold(vec![directory], with_name)?;
        Some(KeptPath { base: b"/", names, is_content: !rest.is_empty() && is_content(last), is_cut: false })
    }
}

/// Adds one more part of a path to its names; `None` if `..` climbs above them.
fn with_name<'a>(mut names: Vec<&'a [u8]>, part: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    match part {
        b"" | b"." => {}
        b".." => drop(names.pop()?),
        part => names.push(part),
    }
    Some(names)
}

/// Whether a path with this last part stands for the content of a directory.
fn is_content(last: &[u8]) -> bool {
    matches!(last, b"" | b"." | b"..")
}

/// One of several sources, which cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingSource {
    /// The path as the user wrote it.
    pub path: Vec<u8>,
    /// Why it cannot be copied.
    pub text: String,
}

/// The result of opening several sources.
#[derive(Clone, Debug)]
pub struct OpenedSources {
    /// Open sources, in the order of the command line.
    pub sources: Vec<Source>,
    /// Sources that cannot be opened.
    pub missing: Vec<MissingSource>,
}

impl OpenedSources {
    /// Opens sources. If one of several cannot be opened, it is recorded in `missing`, and the others are copied.
    ///
    /// # Errors
    /// [`CopyError::Usage`] with path and reason if none of them can be opened.
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

    /// Whether all named sources are files, so that a single one may get another name.
    pub(crate) fn are_files(&self) -> bool {
        self.sources.iter().all(|source| source.single_file().is_some())
    }

    /// Whether several sources were named.
    pub(crate) fn are_many(&self) -> bool {
        self.sources.len() + self.missing.len() > 1
    }

    /// Where the sources are. Leaves out those that have disappeared meanwhile.
    pub(crate) fn whereabouts(&self) -> Vec<Whereabouts> {
        self.sources.iter().filter_map(Source::whereabouts).collect()
    }
}

/// Why a source cannot be copied.
#[derive(Clone, Copy, Debug)]
struct Unusable {
    errno: Errno,
    /// The message, if it differs from the system's.
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

/// /proc and /sys: the kernel makes their files while they are read, and reports no sizes.
const KERNEL_VIEW: Unusable = Unusable {
    errno: Errno::INVAL,
    text: Some("nothing of /proc and /sys is copied: the kernel makes it while it is read"),
};
/// `..` climbs out of the part of a path that is kept.
const ABOVE: Unusable =
    Unusable { errno: Errno::INVAL, text: Some("its path leads above the part that --relative keeps") };

impl Source {
    /// Opens the source at a path.
    ///
    /// # Errors
    /// [`CopyError::Usage`] with the path and the reason if it does not exist, cannot be opened, or is in /proc or
    /// /sys.
    pub fn open(path: &Path) -> Result<Source, CopyError> {
        Source::open_as(path, &Options::default()).map_err(|error| error.usage(path))
    }

    /// Like [`Source::open`], with the user's options on symbolic links and paths.
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

    /// Opens a source whose path is kept at the destination: the part after `/./`, or all of it.
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
        // A source without directories before its name may get another name, as in rsync.
        let is_relative = !implied.is_empty();
        Source::within(root, name, path, implied, is_relative)
    }

    /// Opens a name in a directory, or the directory's content.
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
        // If the source is a mount point, the mounted file system is meant.
        let root = Root { device: if is_directory { status.st_dev } else { root.device }, ..root };
        Ok(Source { root: Arc::new(root), name, is_directory, path: path.to_owned(), implied, is_relative })
    }

    /// The name of a source that is not a directory, and may get another name.
    pub(crate) fn single_file(&self) -> Option<&[u8]> {
        self.name.as_deref().filter(|_| !self.is_directory && !self.is_relative)
    }

    /// Where the source is; `None` if it has disappeared meanwhile.
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

    /// Its path without symbolic links, except for a link that is the source itself.
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

    /// Whether the source is on a rotational disk.
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

/// File systems that are never copied, as they are views of the kernel (`linux/magic.h`): proc, sysfs.
const KERNEL_VIEWS: [u64; 2] = [0x9fa0, 0x6265_6572];

/// Whether this is in one of [`KERNEL_VIEWS`].
pub(super) fn is_kernel_view(open: BorrowedFd<'_>) -> bool {
    let kind = rustix::fs::fstatfs(open).map(|file_system| file_system.f_type as u64);
    kind.is_ok_and(|kind| KERNEL_VIEWS.contains(&(kind & 0xffff_ffff)))
}

/// Flags for the status of a name: of itself, or of the target of a symbolic link.
pub(super) fn look(follows: bool) -> AtFlags {
    if follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

/// A directory and the directories through which it was entered, identified by device and inode numbers.
#[derive(Debug)]
pub(super) struct Entered {
    inode: (u64, u64),
    above: Option<Arc<Entered>>,
}

impl Entered {
    /// Enters a directory; `None` if it is one of its own parents, so that entering it would never end.
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

/// A directory of the source. Its path below the root and below the destination is the same.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) root: Arc<Root>,
    /// Its path below the destination.
    pub(super) path: Vec<u8>,
    /// The directories through which it was entered. Only if symbolic links are followed, as they may lead back.
    pub(super) entered: Option<Arc<Entered>>,
}

impl Directory {
    /// The directory at this path below the destination.
    pub(super) fn new(root: Arc<Root>, path: Vec<u8>) -> Directory {
        Directory { root, path, entered: None }
    }

    /// The root directory itself.
    pub(super) fn of_root(root: &Arc<Root>) -> Directory {
        Directory::new(root.clone(), root.prefix.clone())
    }

    /// Its path below the root.
    fn beneath(&self) -> &[u8] {
        let rest = self.path.strip_prefix(&self.root.prefix[..]).unwrap_or_default();
        rest.strip_prefix(b"/").unwrap_or(rest)
    }

    /// Opens it below the root, without following symbolic links, unless the user wants them followed.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        let path = self.beneath();
        if path.is_empty() {
            return rustix::fs::openat(&self.root.descriptor, ".", DIRECTORY, Mode::empty());
        }
        if path.len() >= PATH_BYTES {
            // The error that the system returns for whole paths.
            return Err(Errno::NAMETOOLONG);
        }
        if self.root.follows {
            return rustix::fs::openat(&self.root.descriptor, path, DIRECTORY, Mode::empty());
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.root.descriptor, path, DIRECTORY, Mode::empty(), resolve) {
            // Before Linux 5.6, or if a container filters the call.
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

/// A file of the source whose content may be requested.
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
    /// Its path below the destination.
    pub(super) fn path(&self) -> Vec<u8> {
        crate::entry::join(&self.directory.path, &self.name)
    }

    /// Opens it for reading in its open directory.
    pub(super) fn open(&self, directory: &OwnedFd) -> Result<File, Errno> {
        // NONBLOCK: a pipe that has replaced the file must not block the open.
        let links = if self.directory.root.follows { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::RDONLY | links | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, &self.name[..], flags, Mode::empty())?;
        Ok(File::from(file))
    }

    /// Whether an open file is the listed one, unchanged.
    pub(super) fn is_unchanged(&self, file: impl AsFd) -> Result<bool, Errno> {
        let status = rustix::fs::fstat(file)?;
        if Kind::of_mode(status.st_mode) != Some(Kind::File) {
            return Err(Errno::INVAL);
        }
        let unchanged = identity(&status) == self.identity && modified(&status) == self.modified;
        Ok(unchanged && status.st_size as u64 == self.size)
    }
}

/// Makes the entry for a name from its status, without extended attributes and link target.
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
