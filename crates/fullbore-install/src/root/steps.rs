//! Resolves paths like `openat2` with `RESOLVE_IN_ROOT`, with one call per part of the path.
//!
//! Each part is opened without following links; the target of a link is put before the remaining parts. `..` returns to
//! the descriptor of the parent directory, so that a process that renames directories cannot lead the resolution out of
//! the root.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::retry;

/// Maximum number of links in a path, as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Opens a path, with all links resolved within the root.
pub(super) fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut walk = PathWalk { root, below: Vec::new(), remaining: Vec::new() };
    walk.prepend(path);
    let mut links = 0;
    while let Some(name) = walk.remaining.pop() {
        match &name[..] {
            // These parts require a directory before them, too.
            b"" | b"." => continue,
            b".." => {
                walk.below.pop();
                continue;
            }
            _ => {}
        }
        let found = walk.open_part(&name)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP);
                }
                let target = rustix::fs::readlinkat(&found, c"", Vec::new())?;
                if target.as_bytes().starts_with(b"/") {
                    walk.below.clear();
                }
                walk.prepend(target.as_bytes());
            }
            FileType::Directory => walk.below.push(found),
            _ if !walk.remaining.is_empty() || flags.contains(OFlags::DIRECTORY) => return Err(Errno::NOTDIR),
            _ if flags.contains(OFlags::PATH) => return Ok(found),
            // It may have been replaced: do not follow a link.
            _ => {
                return retry(|| {
                    rustix::fs::openat(walk.current(), &name[..], flags | OFlags::NOFOLLOW, Mode::empty())
                });
            }
        }
    }
    retry(|| rustix::fs::openat(walk.current(), c".", flags, Mode::empty()))
}

/// State of a path resolution.
struct PathWalk<'a> {
    root: BorrowedFd<'a>,
    /// Open directories from the root to the current one.
    below: Vec<OwnedFd>,
    /// Remaining parts of the path, the next one last.
    remaining: Vec<Vec<u8>>,
}

impl PathWalk<'_> {
    fn current(&self) -> BorrowedFd<'_> {
        self.below.last().map_or(self.root, |directory| directory.as_fd())
    }

    fn open_part(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        retry(|| rustix::fs::openat(self.current(), name, flags, Mode::empty()))
    }

    fn prepend(&mut self, path: &[u8]) {
        self.remaining.extend(path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::super::{RESOLVE, Root};
    use super::*;

    /// Directories, a file, and links: relative, absolute, upwards, around, to nothing.
    fn root() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("usr/bin/deep")).unwrap();
        fs::create_dir(at("etc")).unwrap();
        fs::write(at("usr/file"), "content").unwrap();
        for (target, link) in [
            ("usr/bin", "bin"),
            ("/usr", "usr/bin/absolute"),
            ("../../../../../etc", "usr/bin/upwards"),
            ("around", "around"),
            ("nowhere", "broken"),
            ("/usr/file", "etc/file"),
            ("..", "usr/bin/deep/up"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        dir
    }

    fn found(opened: Result<OwnedFd, Errno>) -> Result<(u64, u64), Errno> {
        let status = rustix::fs::fstat(opened?).unwrap();
        Ok((status.st_dev, status.st_ino))
    }

    proptest! {
        #[test]
        fn a_path_goes_where_the_kernel_goes(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "usr", "bin", "deep", "etc", "file", "absolute", "upwards", "around", "broken", "up", "..", ".", "",
                ]),
                1..7,
            ),
            is_absolute: bool,
            wants_directory: bool,
        ) {
            let dir = root();
            let root = Root::open(dir.path()).unwrap();
            prop_assume!(root.has_openat2);
            let path = format!("{}{}", if is_absolute { "/" } else { "./" }, parts.join("/"));
            let mut flags = OFlags::RDONLY | OFlags::CLOEXEC;
            if wants_directory || path.ends_with('/') {
                flags |= OFlags::DIRECTORY;
            }
            let kernel = retry(|| rustix::fs::openat2(root.handle(), path.as_str(), flags, Mode::empty(), RESOLVE));
            let steps = open(root.handle(), path.as_bytes(), flags);
            prop_assert_eq!(found(steps), found(kernel), "{}", path);
        }
    }

    #[test]
    fn a_root_without_openat2_reads_the_same() {
        let dir = root();
        let mut root = Root::open(dir.path()).unwrap();
        let names = |root: &Root| {
            let mut names = root.names("bin/absolute").unwrap();
            names.sort();
            names
        };
        let (there, listed) = (root.read("etc/file").unwrap(), names(&root));
        assert_eq!(there.as_deref(), Some(&b"content"[..]));
        root.has_openat2 = false;
        assert_eq!((root.read("etc/file").unwrap(), names(&root)), (there, listed));
        assert_eq!(root.read("broken").unwrap(), None);
        assert!(root.directory(b"around").is_err());
    }
}
