//! Creates files with content, owner, mode and time, in as few system calls as possible.
//!
//! The owner is set before the mode, because a change of owner clears special bits. Nothing is set if the kernel gives
//! a new file the right owner and mode.

use std::io::BufRead;
use std::os::fd::AsFd as _;

use fullbore_debian::tar::{Entry, Kind, Reader, TarError};
use fullbore_engine::stage::StageClock;
use md5::{Digest as _, Md5};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, Uid};
use rustix::io::Errno;

use super::directories::{Directory, KeptBits};
use crate::database::Permissions;
use crate::root::set_mode;

/// Error in writing a file.
pub(super) enum WriteError {
    /// The content cannot be read.
    Archive(TarError),
    /// The file cannot be written.
    File(Errno),
}

impl From<Errno> for WriteError {
    fn from(errno: Errno) -> WriteError {
        WriteError::File(errno)
    }
}

/// Whether a new file in this directory gets its owner and group from the kernel.
fn owned_by_itself(wanted: Permissions, parent: &Directory) -> bool {
    (wanted.uid, wanted.gid) == parent.own && !parent.hands_on_group
}

fn owner(wanted: Permissions) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(wanted.uid)), Some(Gid::from_raw(wanted.gid)))
}

fn times(mtime_s: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        last_modification: Timespec { tv_sec: mtime_s, tv_nsec: 0 },
    }
}

/// Writes a new regular file, with the whole content of the entry.
pub(super) fn write<R: BufRead>(
    parent: &Directory,
    name: &[u8],
    wanted: Permissions,
    entry: &Entry,
    content: &mut Reader<R>,
    wants_md5: bool,
    clock: &StageClock,
) -> Result<Option<[u8; 16]>, WriteError> {
    let owned = owned_by_itself(wanted, parent);
    // Special bits are set last. Until then no other user may read a file that will have another owner.
    let plain = owned && wanted.mode & 0o7000 == 0;
    let first = Mode::from_raw_mode(if plain { wanted.mode } else { 0o600 });
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = make_anew(parent, name, || clock.device(|| rustix::fs::openat(parent, name, flags, first)))?;
    let mut md5 = wants_md5.then(Md5::new);
    while let Some(chunk) = content.chunk().map_err(WriteError::Archive)? {
        let count = clock.device(|| rustix::io::retry_on_intr(|| rustix::io::write(&file, chunk.bytes)))?;
        if let Some(md5) = &mut md5 {
            md5.update(&chunk.bytes[..count]);
        }
        content.consume(count);
    }
    if !owned {
        let (uid, gid) = owner(wanted);
        rustix::fs::fchown(&file, uid, gid)?;
    }
    if !(plain && keeps_mode(parent, &file, wanted.mode)?) {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(wanted.mode))?;
    }
    rustix::fs::futimens(&file, &times(entry.mtime_s))?;
    Ok(md5.map(|md5| md5.finalize().into()))
}

/// Whether the kernel gave a new file in this directory the requested mode. The umask and a default ACL take the same
/// bits away from every file, so a file with only bits that an earlier file kept is not checked.
fn keeps_mode(parent: &Directory, file: &impl std::os::fd::AsFd, mode: u32) -> Result<bool, Errno> {
    match parent.kept_bits.get() {
        KeptBits::Unreliable => return Ok(false),
        KeptBits::Known(kept) if mode & !kept == 0 => return Ok(true),
        KeptBits::Unknown | KeptBits::Known(_) => {}
    }
    let keeps = rustix::fs::fstat(file)?.st_mode & 0o7777 == mode;
    parent.kept_bits.set(match (parent.kept_bits.get(), keeps) {
        (_, false) => KeptBits::Unreliable,
        (KeptBits::Known(kept), true) => KeptBits::Known(kept | mode),
        (_, true) => KeptBits::Known(mode),
    });
    Ok(keeps)
}

/// Creates a directory with owner, mode and time; `EXIST` if the name exists.
pub(super) fn make_directory(parent: &Directory, name: &[u8], wanted: Permissions, mtime_s: i64) -> Result<(), Errno> {
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(wanted.mode & 0o777))?;
    set_directory(parent, name, wanted, mtime_s)
}

/// Sets owner, mode and time of a directory.
pub(super) fn set_directory(parent: &Directory, name: &[u8], wanted: Permissions, mtime_s: i64) -> Result<(), Errno> {
    let (uid, gid) = owner(wanted);
    let status = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    if (status.st_uid, status.st_gid) != (wanted.uid, wanted.gid) {
        rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if status.st_mode & 0o7777 != wanted.mode {
        set_mode(parent.as_fd(), name, wanted.mode)?;
    }
    rustix::fs::utimensat(parent, name, &times(mtime_s), AtFlags::SYMLINK_NOFOLLOW)
}

/// Creates a hard link to a new file.
pub(super) fn link(
    from: &Directory,
    target: &[u8],
    parent: &Directory,
    name: &[u8],
    wanted: Permissions,
    mtime_s: i64,
) -> Result<(), Errno> {
    make_anew(parent, name, || rustix::fs::linkat(from, target, parent, name, AtFlags::empty()))?;
    // As in dpkg, the header of the link counts, which usually equals that of its target. The name may belong to a
    // symbolic link, whose target dpkg would change.
    let (uid, gid) = owner(wanted);
    rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    set_mode(parent.as_fd(), name, wanted.mode)?;
    rustix::fs::utimensat(parent, name, &times(mtime_s), AtFlags::SYMLINK_NOFOLLOW)
}

/// Creates a symbolic link, device or pipe.
pub(super) fn special(
    parent: &Directory,
    name: &[u8],
    wanted: Permissions,
    kind: Kind,
    entry: &Entry,
) -> Result<(), Errno> {
    let make = || match kind {
        Kind::Symlink => rustix::fs::symlinkat(&entry.link[..], parent, name),
        _ => {
            let (file_type, device) = match kind {
                Kind::CharacterDevice => (FileType::CharacterDevice, entry.device),
                Kind::BlockDevice => (FileType::BlockDevice, entry.device),
                _ => (FileType::Fifo, (0, 0)),
            };
            let device = rustix::fs::makedev(device.0, device.1);
            rustix::fs::mknodat(parent, name, file_type, Mode::empty(), device)
        }
    };
    make_anew(parent, name, make)?;
    let (uid, gid) = owner(wanted);
    if kind != Kind::Symlink || !owned_by_itself(wanted, parent) {
        rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if kind != Kind::Symlink {
        set_mode(parent.as_fd(), name, wanted.mode)?;
    }
    rustix::fs::utimensat(parent, name, &times(entry.mtime_s), AtFlags::SYMLINK_NOFOLLOW)
}

/// Calls `make`; removes a file of this temporary name, left by a killed run, and retries.
fn make_anew<T>(parent: &Directory, name: &[u8], make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match make() {
        Err(Errno::EXIST) => remove(parent, name).and_then(|()| make()),
        made => made,
    }
}

/// Removes a temporary file, if it exists. A directory of this name does not belong to fullbore and stays.
pub(super) fn remove(parent: &Directory, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}
