//! Owners, permissions, extended attributes and times: sets them on new files, corrects them on existing ones.
//!
//! The order matters. A change of owner clears set-id bits and capabilities; an ACL changes the group's permission
//! bits; each of them changes times. An attribute that the system refuses is a problem of its own kind; the others are
//! still set.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{PoisonError, RwLock};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;

use super::tree::Folder;
use crate::chmod::umask;
use crate::entry::{Entry, Kind, Time};
use crate::error::CopyError;
use crate::item::Changes;
use crate::options::Options;
use crate::owners::{Mapping, Names};
use crate::wire::{Owner, ProblemKind};
use crate::xattrs::{self, ACL_ACCESS, FileRef, Treatment, Xattrs};

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
/// Stands for an unknown umask: all bits that a umask can clear.
const UNKNOWN_UMASK: u32 = 0o777;

/// Sets the attributes that the options select.
#[derive(Debug)]
pub(super) struct Attributes {
    owner: bool,
    group: bool,
    permissions: bool,
    times: bool,
    directory_times: bool,
    acls: bool,
    xattrs: bool,
    user_here: u32,
    group_here: u32,
    umask: u32,
    /// Resolution of times on the destination's own file system, with its device number.
    grain: Option<(u64, Grain)>,
    names: Names,
    mapping: RwLock<Mapping>,
}

/// Attributes of one file that could not be kept, with the reasons.
pub(super) type Failures = Vec<(ProblemKind, String)>;

fn failed(failures: &mut Failures, kind: ProblemKind, error: Errno) {
    failures.push((kind, std::io::Error::from(error).to_string()));
}

impl Attributes {
    /// Selects the attributes by the options.
    ///
    /// # Errors
    /// [`CopyError::Usage`] if the options name a user or group that this machine does not know.
    pub(super) fn new(options: &Options) -> Result<Attributes, CopyError> {
        let names = Names::default();
        let mapping = Mapping::with(&options.owners, &names).map_err(CopyError::Usage)?;
        Ok(Attributes {
            owner: options.owner,
            group: options.group,
            permissions: options.permissions,
            times: options.times,
            directory_times: options.directory_times,
            acls: options.acls,
            xattrs: options.xattrs,
            user_here: rustix::process::geteuid().as_raw(),
            group_here: rustix::process::getegid().as_raw(),
            // If the umask is unknown, the permissions of every file are set explicitly.
            umask: umask().unwrap_or(UNKNOWN_UMASK),
            grain: None,
            names,
            mapping: RwLock::new(mapping),
        })
    }

    /// Uses a measured resolution of times for one device.
    pub(super) fn with_grain(self, device: u64, grain: Grain) -> Attributes {
        Attributes { grain: Some((device, grain)), ..self }
    }

    /// Whether an existing file has the source's time, within the file system's resolution.
    pub(super) fn same_time(&self, folder: &Folder, entry: &Entry, status: &Stat) -> bool {
        if modified(status) == entry.modified {
            return true;
        }
        let measured = self.grain.filter(|(device, _)| *device == folder.device);
        let grain = measured.map_or_else(|| Grain::guessed(folder), |(_, grain)| grain);
        grain.same(entry.modified, modified(status))
    }

    fn keeps_time(&self, entry: &Entry) -> bool {
        self.times && (self.directory_times || entry.kind != Kind::Directory)
    }

    /// Records the source's names of users and groups.
    ///
    /// # Errors
    /// [`CopyError::Meaning`] if the source names more users and groups than it can have.
    pub(super) fn learn(&self, owners: &[Owner]) -> Result<(), CopyError> {
        let mut mapping = self.mapping.write().unwrap_or_else(PoisonError::into_inner);
        let mut known = owners.iter().map(|owner| mapping.learn(&self.names, owner.group, owner.id, &owner.name));
        if known.all(|known| known) { Ok(()) } else { Err(CopyError::Meaning("more owners than a source can have")) }
    }

    fn owner_of(&self, entry: &Entry) -> (u32, u32) {
        let mapping = self.mapping.read().unwrap_or_else(PoisonError::into_inner);
        (mapping.owner(false, entry.user), mapping.owner(true, entry.group))
    }

    /// The extended attributes to set, with this machine's numbers of users. Attributes that a sender should not list
    /// are ignored, as it may be an older version.
    fn xattrs_of(&self, entry: &Entry) -> Xattrs {
        let mapping = self.mapping.read().unwrap_or_else(PoisonError::into_inner);
        let value = |name: &[u8], value: &[u8]| match Treatment::of(name) {
            Treatment::Acl => mapping.acl(value),
            Treatment::Capability => mapping.capability(value),
            _ => value.to_vec(),
        };
        let carried = entry.xattrs.iter().filter(|(name, _)| xattrs::is_carried(name, self.acls, self.xattrs));
        carried.map(|(name, bytes)| (name.clone(), value(name, bytes))).collect()
    }

    /// Makes a directory with its final access rights, as far as they can be set now. So finished files are usable
    /// while the copy goes on, or if it is interrupted. A directory with an ACL stays private until the end.
    pub(super) fn make_directory(&self, folder: &Folder, name: &[u8], entry: &Entry) -> Result<(), Errno> {
        let make = |mode| rustix::fs::mkdirat(folder, name, mode);
        if !self.permissions {
            // The umask limits permissions that are not kept.
            return make(Mode::from_raw_mode(entry.mode & 0o777) | Mode::RWXU);
        }
        if entry.xattrs.iter().any(|(name, _)| xattrs::is_acl(name)) {
            return make(Mode::RWXU);
        }
        let (user, group) = self.owner_of(entry);
        let user = (self.owner && user != self.user_here).then(|| Uid::from_raw(user));
        let group = (self.group && (group != self.group_here || folder.gives_group)).then(|| Gid::from_raw(group));
        let is_ours = user.is_none() && group.is_none() && !folder.gives_group && !folder.gives_acl;
        if is_ours && entry.mode & (0o7000 | self.umask) == 0 {
            // mkdir(2) can set all of its permissions.
            return make(Mode::from_raw_mode(entry.mode | 0o700));
        }
        make(Mode::RWXU)?;
        let owned = (user.is_none() && group.is_none())
            || rustix::fs::chownat(&folder.descriptor, name, user, group, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        // A refused change is tried again at the end, and reported then.
        let mode = if owned { entry.mode | 0o700 } else { entry.mode & !SET_ID | 0o700 };
        let _ = change_mode(&folder.descriptor, name, mode);
        Ok(())
    }

    /// The mode that a new file is created with. Users who may not read the finished file must not read it while it is
    /// written. [`Attributes::put`] sets the remaining attributes.
    pub(super) fn creation_mode(&self, folder: &Folder, entry: &Entry) -> Mode {
        let mode = entry.mode & 0o777;
        // The file will get an ACL, of which the group's bits are the mask. An ACL may also deny to some what all
        // others may.
        if self.acls && entry.xattrs.iter().any(|(name, _)| xattrs::is_acl(name)) {
            return Mode::from_raw_mode(mode & 0o700);
        }
        // Here an ACL inherited from the directory does not widen access: the permissions of others follow the mode, or
        // the ACL is kept.
        let stays_open = !folder.gives_acl || !self.acls;
        if stays_open && self.is_born_with(folder, self.group.then(|| self.owner_of(entry).1)) {
            return Mode::from_raw_mode(mode);
        }
        // The file's group may be a different one for now. Permissions that both the group and others will have are
        // safe for everyone.
        let all = mode >> 3 & mode & 0o7;
        Mode::from_raw_mode(mode & 0o700 | all << 3 | all)
    }

    /// Whether a new file certainly gets this group; always true for `None`. A new file gets the process's group or,
    /// with the mount option `grpid` (mount(8)), the directory's.
    fn is_born_with(&self, folder: &Folder, group: Option<u32>) -> bool {
        let is_ours = |group| folder.gives_group || group == self.group_here;
        group.is_none_or(|group| folder.group == group && is_ours(group))
    }

    /// The mode of an unfinished file, which a later run may have to open again.
    pub(super) fn unfinished_mode(&self, folder: &Folder, entry: &Entry) -> Mode {
        self.creation_mode(folder, entry) | Mode::RUSR | Mode::WUSR
    }

    /// The mode of a device, pipe or socket until [`Attributes::put_on_name`] sets its own.
    pub(super) fn node_mode(&self, folder: &Folder, entry: &Entry) -> Mode {
        if self.permissions { self.creation_mode(folder, entry) } else { Mode::from_raw_mode(entry.mode & 0o777) }
    }

    /// The mode of an unfinished file that is now complete. An earlier run may have created it under other conditions.
    pub(super) fn present_mode(&self, file: impl AsFd, folder: &Folder, entry: &Entry) -> Mode {
        let status = if self.permissions { rustix::fs::fstat(file).ok() } else { None };
        status.map_or(self.unfinished_mode(folder, entry), |status| Mode::from_raw_mode(status.st_mode & 0o7777))
    }

    /// Sets all attributes of an open file that was created with this mode.
    pub(super) fn put(&self, file: impl AsFd, created: Mode, folder: &Folder, entry: &Entry) -> Failures {
        let mut failures = Failures::new();
        let file = file.as_fd();
        let (user, group) = self.owner_of(entry);
        let chown =
            (self.owner && user != self.user_here) || (self.group && (group != self.group_here || folder.gives_group));
        let mut mode = entry.mode;
        let mut owned = true;
        if chown {
            let set = |user, group| rustix::fs::fchown(file, user, group);
            owned = self.change_owner(set, Some(user), Some(group), &mut failures);
        }
        if folder.gives_acl && self.acls && !entry.xattrs.iter().any(|(name, _)| name == ACL_ACCESS) {
            // The file inherited an ACL from its directory that the source's file does not have.
            if let Err(error) = xattrs::remove(FileRef::Open(file), ACL_ACCESS) {
                failed(&mut failures, ProblemKind::Acls, error);
            }
        }
        self.set_xattrs(FileRef::Open(file), &self.xattrs_of(entry), &mut failures);
        if !owned && mode & SET_ID != 0 {
            // Set-id bits must not apply to an owner that the user did not choose.
            mode &= !SET_ID;
            failures.push((ProblemKind::Mode, "set-id bits are left out with another owner".to_owned()));
        }
        let has_acl = folder.gives_acl || !entry.xattrs.is_empty();
        let created = created.as_raw_mode();
        let mode = if self.permissions {
            (has_acl || mode & self.umask != 0 || mode != created).then_some(mode)
        } else {
            // The umask limits permissions that are not kept. An unknown umask may clear all of them.
            let is_narrow = self.umask != UNKNOWN_UMASK && mode & 0o077 != created & 0o077;
            is_narrow.then_some((mode & 0o777 | created) & !self.umask)
        };
        if let Some(mode) = mode
            && let Err(error) = rustix::fs::fchmod(file, Mode::from_raw_mode(mode))
        {
            failed(&mut failures, ProblemKind::Mode, error);
        }
        if self.times
            && let Err(error) = rustix::fs::futimens(file, &times(entry.modified))
        {
            failed(&mut failures, ProblemKind::Times, error);
        }
        failures
    }

    /// Corrects differing attributes of an existing entry. Returns the failures, and whether anything differed.
    pub(super) fn mend(
        &self,
        folder: &Folder,
        name: &[u8],
        status: &Stat,
        entry: &Entry,
        dry_run: bool,
    ) -> (bool, Failures) {
        let mut failures = Failures::new();
        let mut differs = false;
        let (user, group) = self.owner_of(entry);
        let user = (self.owner && user != status.st_uid).then_some(user);
        let group = (self.group && group != status.st_gid).then_some(group);
        let is_link = entry.kind == Kind::Symlink;
        let mut mode_differs = self.permissions && !is_link && status.st_mode & 0o7777 != entry.mode;
        let mut owned = true;
        if user.is_some() || group.is_some() {
            differs = true;
            let set =
                |user, group| rustix::fs::chownat(&folder.descriptor, name, user, group, AtFlags::SYMLINK_NOFOLLOW);
            owned = dry_run || self.change_owner(set, user, group, &mut failures);
            // The change of owner may have cleared set-id bits.
            mode_differs |= self.permissions && !is_link && entry.mode & SET_ID != 0;
        }
        let wanted = self.xattrs_of(entry);
        let present = if self.acls || self.xattrs {
            xattrs::read(folder.file_ref(name), self.acls, self.xattrs)
        } else {
            Ok(Vec::new())
        };
        match present {
            Ok(mut present) => {
                // Attributes that are never removed do not count as differences; else every run would report them
                // again.
                present.retain(|(name, _)| Treatment::of(name).is_removed() || has(&wanted, name));
                let changed = user.is_some() || group.is_some();
                if present != wanted || changed && !wanted.is_empty() {
                    differs |= present != wanted;
                    if !dry_run {
                        self.mend_xattrs(folder.file_ref(name), &present, &wanted, &mut failures);
                        mode_differs |= self.permissions && !is_link;
                    }
                }
            }
            Err(error) => failed(&mut failures, ProblemKind::Xattrs, error),
        }
        let mode = if owned { entry.mode } else { entry.mode & !SET_ID };
        if mode_differs && (owned || status.st_mode & 0o7777 != mode) {
            differs = true;
            if !dry_run && let Err(error) = change_mode(&folder.descriptor, name, mode) {
                failed(&mut failures, ProblemKind::Mode, error);
            }
        }
        if self.keeps_time(entry) && !self.same_time(folder, entry, status) {
            differs = true;
        }
        if self.keeps_time(entry) && differs && !dry_run {
            let times = times(entry.modified);
            let set = if name == b"." {
                // Through the open directory, as its new permissions may not allow to enter it.
                rustix::fs::futimens(&folder.descriptor, &times)
            } else {
                rustix::fs::utimensat(&folder.descriptor, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            };
            if let Err(error) = set {
                failed(&mut failures, ProblemKind::Times, error);
            }
        }
        (differs, failures)
    }

    /// The differences of an existing entry that would be corrected.
    pub(super) fn changes(&self, folder: &Folder, name: &[u8], status: &Stat, entry: &Entry) -> Changes {
        let (user, group) = self.owner_of(entry);
        let wanted = self.xattrs_of(entry);
        let mut present = match self.acls || self.xattrs {
            // An attribute that cannot be read is reported when it is corrected.
            true => xattrs::read(folder.file_ref(name), self.acls, self.xattrs).unwrap_or_else(|_| wanted.clone()),
            false => Xattrs::new(),
        };
        present.retain(|(name, _)| Treatment::of(name).is_removed() || has(&wanted, name));
        let differ = |acls| {
            let is_of = |(name, _): &&(Vec<u8>, Vec<u8>)| xattrs::is_acl(name) == acls;
            !present.iter().filter(is_of).eq(wanted.iter().filter(is_of))
        };
        let is_link = entry.kind == Kind::Symlink;
        Changes {
            content: false,
            size: entry.kind == Kind::File && status.st_size as u64 != entry.size,
            time: self.keeps_time(entry) && !self.same_time(folder, entry, status),
            mode: self.permissions && !is_link && status.st_mode & 0o7777 != entry.mode,
            // Only root can keep owners.
            owner: self.owner && self.user_here == 0 && user != status.st_uid,
            group: self.group && group != status.st_gid,
            acl: differ(true),
            xattr: differ(false),
        }
    }

    /// Changes owner and group, or the group alone if the owner cannot be changed. Returns false if the owner is wrong
    /// afterwards.
    fn change_owner(
        &self,
        set: impl Fn(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
        user: Option<u32>,
        group: Option<u32>,
        failures: &mut Failures,
    ) -> bool {
        let user = user.filter(|_| self.owner);
        let group = group.filter(|_| self.group).map(Gid::from_raw);
        let Err(error) = set(user.map(Uid::from_raw), group) else { return true };
        let group_alone = user.is_some() && group.is_some() && set(None, group).is_ok();
        let what = match (user, group) {
            (Some(user), _) => format!("user {user}"),
            (None, Some(group)) => format!("group {}", group.as_raw()),
            (None, None) => return true,
        };
        let also = match group {
            Some(group) if user.is_some() && !group_alone => format!(" and group {}", group.as_raw()),
            _ => String::new(),
        };
        failures.push((ProblemKind::Owner, format!("{what}{also}: {}", std::io::Error::from(error))));
        false
    }

    fn set_xattrs(&self, place: FileRef<'_>, wanted: &Xattrs, failures: &mut Failures) {
        for (name, value) in wanted {
            if let Err(error) = xattrs::set(place, name, value) {
                let kind = if xattrs::is_acl(name) { ProblemKind::Acls } else { ProblemKind::Xattrs };
                failures.push((kind, format!("{}: {}", crate::entry::shown(name), std::io::Error::from(error))));
            }
        }
    }

    fn mend_xattrs(&self, place: FileRef<'_>, present: &Xattrs, wanted: &Xattrs, failures: &mut Failures) {
        for (name, _) in present.iter().filter(|(name, _)| !has(wanted, name)) {
            if let Err(error) = xattrs::remove(place, name) {
                let kind = if xattrs::is_acl(name) { ProblemKind::Acls } else { ProblemKind::Xattrs };
                failed(failures, kind, error);
            }
        }
        self.set_xattrs(place, wanted, failures);
    }

    /// Sets all attributes of a new link, device or directory by its name.
    pub(super) fn put_on_name(&self, folder: &Folder, name: &[u8], entry: &Entry) -> Result<Failures, Errno> {
        let status = rustix::fs::statat(&folder.descriptor, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(self.mend(folder, name, &status, entry, false).1)
    }
}

fn has(xattrs: &Xattrs, name: &[u8]) -> bool {
    xattrs.iter().any(|(other, _)| other == name)
}

/// Changes the permissions of a name that is not a link. A link that takes its place meanwhile is not followed.
pub(super) fn change_mode(directory: &OwnedFd, name: &[u8], mode: u32) -> Result<(), Errno> {
    let own = if name.is_empty() { b"." } else { name };
    let open = |flags| rustix::fs::openat(directory, own, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let held = open(OFlags::PATH)?;
    let kind = Kind::of_mode(rustix::fs::fstat(&held)?.st_mode);
    if kind == Some(Kind::Symlink) {
        return Err(Errno::LOOP);
    }
    let mode = Mode::from_raw_mode(mode);
    match rustix::fs::chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), mode) {
        // Without /proc, for instance in an empty root. Opening other kinds of files can have side effects.
        Err(Errno::NOENT) if matches!(kind, Some(Kind::File | Kind::Directory)) => {
            rustix::fs::fchmod(open(OFlags::RDONLY | OFlags::NONBLOCK)?, mode)
        }
        result => result,
    }
}

/// Timestamps that set the modification time and leave the access time.
pub(super) fn times(modified: Time) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: modified.seconds, tv_nsec: i64::from(modified.nanoseconds) },
    }
}

/// A day in seconds: more than the resolution of any file system's times, or an error of a time zone.
pub(super) const DAY_S: i64 = 86_400;

/// Sets a file's time to the first of several candidates that the file system stores as a different time than the
/// current one.
///
/// # Errors
/// The error of utimensat(2) or stat(2). A missing file is not an error.
pub(super) fn change_time(folder: &Folder, name: &[u8], others: impl FnOnce(Time) -> [Time; 3]) -> Result<(), Errno> {
    let now = || Ok(folder.status(name)?.map(|status| modified(&status)));
    let Some(before) = now()? else { return Ok(()) };
    for other in others(before) {
        rustix::fs::utimensat(&folder.descriptor, name, &times(other), AtFlags::SYMLINK_NOFOLLOW)?;
        let is_another = |now: Time| now.seconds.abs_diff(before.seconds) >= DAY_S as u64 / 2;
        if now()?.is_none_or(is_another) {
            break;
        }
    }
    Ok(())
}

/// The modification time in a status.
pub(super) fn modified(status: &Stat) -> Time {
    Time { seconds: status.st_mtime, nanoseconds: status.st_mtime_nsec as u32 }
}

/// The change time of content or attributes in a status.
pub(super) fn changed(status: &Stat) -> Time {
    Time { seconds: status.st_ctime, nanoseconds: status.st_ctime_nsec as u32 }
}

/// The resolution of a file system's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grain {
    /// Multiples of this number of nanoseconds; the remainder is cut off.
    Of(u64),
    /// Any of [`GRAINS`].
    Unknown,
}

/// Resolutions in nanoseconds: exact; NTFS and SMB; microseconds; exFAT; ext3 and HFS+; FAT.
const GRAINS: [u64; 6] = [1, 100, 1000, 10_000_000, SECOND, 2 * SECOND];
const SECOND: u64 = 1_000_000_000;

/// A time that every resolution but the first truncates.
pub(super) const TRIAL: Time = Time { seconds: 101, nanoseconds: 123_456_789 };

impl Grain {
    /// The resolution, from the time that a file has after it was set to [`TRIAL`]. A file system that returns anything
    /// else counts as exact: better to copy a file again than to miss a change.
    pub(super) fn of_trial(kept: Time) -> Grain {
        let grain = GRAINS.into_iter().find(|grain| cut(TRIAL, *grain) == kept);
        Grain::Of(grain.unwrap_or(1))
    }

    /// The resolution from the type of the file system, if nothing can be tried. A server behind a foreign file system
    /// may have any resolution.
    fn guessed(folder: &Folder) -> Grain {
        /// `linux/magic.h`, and the file systems' own sources: msdos, exFAT, NTFS (two), SMB (three), FUSE, HFS (two).
        const OF_OTHERS: [u64; 10] = [
            0x4d44,
            0x2011_bab0,
            0x5346_544e,
            0x7366_746e,
            0x517b,
            0xff53_4d42,
            0xfe53_4d42,
            0x6573_5546,
            0x4244,
            0x482b,
        ];
        let kind = rustix::fs::fstatfs(folder).map(|file_system| file_system.f_type as u64 & 0xffff_ffff);
        if kind.is_ok_and(|kind| OF_OTHERS.contains(&kind)) { Grain::Unknown } else { Grain::Of(1) }
    }

    /// Whether a time at the destination equals the source's, within the resolution.
    fn same(self, source: Time, here: Time) -> bool {
        match self {
            Grain::Of(grain) => cut(source, grain) == here,
            Grain::Unknown => GRAINS.iter().any(|grain| cut(source, *grain) == here),
        }
    }
}

/// Truncates a time to a resolution.
fn cut(time: Time, grain: u64) -> Time {
    let seconds = (grain / SECOND).max(1) as i64;
    let nanoseconds = time.nanoseconds - (u64::from(time.nanoseconds) % grain) as u32;
    Time { seconds: time.seconds - time.seconds.rem_euclid(seconds), nanoseconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_as_exactly_as_the_file_system_keeps_them() {
        let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
        for (kept, grain) in [
            (TRIAL, 1),
            (time(101, 123_456_700), 100),
            (time(101, 123_456_000), 1000),
            (time(101, 120_000_000), 10_000_000),
            (time(101, 0), 1_000_000_000),
            (time(100, 0), 2_000_000_000),
            (time(7, 7), 1),
        ] {
            assert_eq!(Grain::of_trial(kept), Grain::Of(grain), "{kept:?}");
        }
        let source = time(201, 555_555_555);
        for (here, finest) in [
            (source, Some(1)),
            (time(201, 555_555_500), Some(100)),
            (time(201, 0), Some(1_000_000_000)),
            (time(200, 0), Some(2_000_000_000)),
            (time(201, 555_555_554), None),
            (time(202, 0), None),
            (time(199, 0), None),
        ] {
            let same = GRAINS.into_iter().find(|grain| Grain::Of(*grain).same(source, here));
            assert_eq!((same, Grain::Unknown.same(source, here)), (finest, finest.is_some()), "{here:?}");
        }
    }

    #[test]
    fn an_unfinished_file_is_open_only_to_those_who_may_read_it_in_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let group_here = rustix::process::getegid().as_raw();
        let attributes = Attributes::new(&Options { numeric_ids: true, ..Options::default() }).unwrap();
        let acl = vec![(ACL_ACCESS.to_vec(), Vec::new())];
        let born = |gives_group, group, gives_acl, mode, of, xattrs: &Xattrs| {
            let tree = super::super::tree::Tree::open(directory.path()).unwrap();
            let open = rustix::fs::openat(tree.root(), ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let folder = tree.root().like(open, gives_group, gives_acl, group);
            let entry = Entry { mode, group: of, xattrs: xattrs.clone(), ..Entry::plain(b"file", Kind::File) };
            attributes.creation_mode(&folder, &entry).as_raw_mode()
        };
        let (us, others, none) = (group_here, group_here + 1, Xattrs::new());
        for (gives_group, group, gives_acl, mode, of, xattrs, expected) in [
            (false, us, false, 0o640, us, &none, 0o640),
            (true, others, false, 0o640, others, &none, 0o640),
            // Of another group until it is finished, or of which one depends on the mount.
            (true, others, false, 0o640, us, &none, 0o600),
            (false, us, false, 0o660, others, &none, 0o600),
            (false, others, false, 0o660, us, &none, 0o600),
            // Those who are denied it are of the final group.
            (false, us, false, 0o604, others, &none, 0o600),
            // Everybody may.
            (true, others, false, 0o644, us, &none, 0o644),
            (true, others, true, 0o775, us, &none, 0o755),
            // Users of the directory's ACL, and those whom the file's own one denies.
            (false, us, true, 0o640, us, &none, 0o600),
            (false, us, false, 0o644, us, &acl, 0o600),
        ] {
            let mode = born(gives_group, group, gives_acl, mode, of, xattrs);
            assert_eq!(mode, expected, "{gives_group} {group} {gives_acl} {of} {expected:o}: {mode:o}");
        }
    }
}
