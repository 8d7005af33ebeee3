//! Extended attributes, including ACLs, of an open file or of a name in an open directory.

mod kernel;
mod treatment;

use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::entry::{XATTR_BYTES, XATTRS, XATTRS_BYTES};

/// The attribute that has the ACL of a file or directory.
pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that has the ACL for new files in a directory.
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

pub(crate) use crate::entry::Xattrs;
pub(crate) use treatment::Treatment;

/// Refers to the file whose attributes are meant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileRef<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A name in an open directory, without following a symbolic link.
    Name(&'a OwnedFd, &'a [u8]),
    /// A name in an open directory, following a symbolic link.
    Followed(&'a OwnedFd, &'a [u8]),
}

/// Whether an attribute is an ACL.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    Treatment::of(name) == Treatment::Acl
}

/// Whether an attribute is copied.
pub(crate) fn is_carried(name: &[u8], acls: bool, others: bool) -> bool {
    Treatment::of(name).is_carried(acls, others)
}

/// A descriptor, or a path of which only the last name can be replaced meanwhile.
enum Reached<'a> {
    Open(BorrowedFd<'a>),
    Path(Vec<u8>),
    Followed(Vec<u8>),
}

impl FileRef<'_> {
    fn reached(&self) -> Reached<'_> {
        match self {
            FileRef::Open(file) => Reached::Open(*file),
            FileRef::Name(directory, name) => Reached::Path(path_of(directory, name)),
            FileRef::Followed(directory, name) => Reached::Followed(path_of(directory, name)),
        }
    }
}

fn path_of(directory: &OwnedFd, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

impl Reached<'_> {
    fn list(&self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Reached::Open(file) => rustix::fs::flistxattr(file, names),
            Reached::Path(path) => rustix::fs::llistxattr(&path[..], names),
            Reached::Followed(path) => rustix::fs::listxattr(&path[..], names),
        }
    }

    fn get(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Reached::Open(file) => rustix::fs::fgetxattr(file, name, value),
            Reached::Path(path) => rustix::fs::lgetxattr(&path[..], name, value),
            Reached::Followed(path) => rustix::fs::getxattr(&path[..], name, value),
        }
    }
}

/// Reads the attributes to copy. File systems without attributes have none.
///
/// # Errors
/// `E2BIG` if there are more attributes or bytes than a copy carries. Otherwise the error of listxattr(2) or
/// getxattr(2).
pub(crate) fn read(file: FileRef<'_>, acls: bool, others: bool) -> Result<Xattrs, Errno> {
    let mut list = [0_u8; 1024];
    let first = match file {
        FileRef::Name(directory, name) => kernel::list_at(directory.as_fd(), name, &mut list),
        FileRef::Open(_) | FileRef::Followed(..) => None,
    };
    // Most files have no attributes.
    if matches!(first, Some(Ok(0) | Err(Errno::NOTSUP))) {
        return Ok(Vec::new());
    }
    let reached = file.reached();
    let mut long;
    let names = match first.unwrap_or_else(|| reached.list(&mut list)) {
        Ok(length) => &list[..length],
        Err(Errno::RANGE) => {
            long = vec![0_u8; XATTR_BYTES];
            let length = reached.list(&mut long)?;
            &long[..length]
        }
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut xattrs = Xattrs::new();
    let mut sum = 0;
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && is_carried(name, acls, others)) {
        // The attribute has disappeared since it was listed, or is not readable.
        let Some(value) = read_one(&reached, name)? else { continue };
        sum += name.len() + value.len();
        if xattrs.len() >= XATTRS || sum > XATTRS_BYTES {
            return Err(Errno::TOOBIG);
        }
        xattrs.push((name.to_vec(), value));
    }
    xattrs.sort();
    Ok(xattrs)
}

fn read_one(reached: &Reached<'_>, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = vec![0_u8; 256];
    loop {
        match reached.get(name, &mut value) {
            Ok(length) => {
                value.truncate(length);
                return Ok(Some(value));
            }
            Err(Errno::RANGE) if value.len() < XATTR_BYTES => value.resize(XATTR_BYTES, 0),
            Err(Errno::NODATA | Errno::PERM | Errno::NOTSUP) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Sets one attribute.
///
/// # Errors
/// The error of setxattr(2), for instance `ENOTSUP`, `EPERM`, `ENOSPC` or `ERANGE`.
pub(crate) fn set(file: FileRef<'_>, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    match file.reached() {
        Reached::Open(file) => rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()),
        Reached::Path(path) => rustix::fs::lsetxattr(&path[..], name, value, XattrFlags::empty()),
        Reached::Followed(path) => rustix::fs::setxattr(&path[..], name, value, XattrFlags::empty()),
    }
}

/// Removes one attribute; succeeds if it does not exist.
///
/// # Errors
/// The error of removexattr(2), except `ENODATA` and `ENOTSUP`.
pub(crate) fn remove(file: FileRef<'_>, name: &[u8]) -> Result<(), Errno> {
    let removed = match file.reached() {
        Reached::Open(file) => rustix::fs::fremovexattr(file, name),
        Reached::Path(path) => rustix::fs::lremovexattr(&path[..], name),
        Reached::Followed(path) => rustix::fs::removexattr(&path[..], name),
    };
    match removed {
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        result => result,
    }
}
