//! Owner, permissions, extended attributes, times: put on new files, mended on old ones.
//!
//! The order matters. A change of owner takes set-id bits and capabilities away; an ACL changes the
//! group's bits; every one of them changes times. What the system refuses is a problem of its own
//! kind, and the rest is kept.

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
/// All that a umask can take away.
const UNKNOWN_UMASK: u32 = 0o777;

/// Sets attributes as the options say.
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
    /// What times are kept in on the file system of the destination itself, by its device.
    grain: Option<(u64, Grain)>,
    names: Names,
    mapping: RwLock<Mapping>,
}

/// What could not be kept of one file.
pub(super) type Failures = Vec<(ProblemKind, String)>;

fn failed(failures: &mut Failures, kind: ProblemKind, error: Errno) {
    failures.push((kind, std::io::Error::from(error).to_string()));
}

impl Attributes {
    /// As the options say.
    ///
    /// # Errors
    /// When they name a user or a group that this machine does not know.
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
            // Where it is not known every file gets its permissions set once more.
            umask: umask().unwrap_or(UNKNOWN_UMASK),
            grain: None,
            names,
            mapping: RwLock::new(mapping),
        })
    }

    /// With what was learnt of the times on a device.
    pub(super) fn with_grain(self, device: u64, grain: Grain) -> Attributes {
        Attributes { grain: Some((device, grain)), ..self }
    }

    /// Whether what is there has the source's time, as far as the file system can keep it.
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

    /// Learns what the source calls its users and groups.
    ///
    /// # Errors
    /// When there are more than any source has.
    pub(super) fn learn(&self, owners: &[Owner]) -> Result<(), CopyError> {
        let mut mapping = self.mapping.write().unwrap_or_else(PoisonError::into_inner);
        let mut known = owners.iter().map(|owner| mapping.learn(&self.names, owner.group, owner.id, &owner.name));
        if known.all(|known| known) { Ok(()) } else { Err(CopyError::Meaning("more owners than a source can have")) }
    }

    fn owner_of(&self, entry: &Entry) -> (u32, u32) {
        let mapping = self.mapping.read().unwrap_or_else(PoisonError::into_inner);
        (mapping.owner(false, entry.user), mapping.owner(true, entry.group))
    }

    /// The attributes to be set, with our numbers of users. What a sender may not list is ignored: it may be older.
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

    /// Makes a directory, and lets those in who may go in at the end: what is finished of a copy can be used while the
    /// rest comes, or if it never does. A directory with an ACL stays ours until the end.
    pub(super) fn make_directory(&self, folder: &Folder, name: &[u8], entry: &Entry) -> Result<(), Errno> {
        let make = |mode| rustix::fs::mkdirat(folder, name, mode);
        if !self.permissions {
            // What is not kept of the permissions is what the umask takes away.
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
            // It is born so.
            return make(Mode::from_raw_mode(entry.mode | 0o700));
        }
        make(Mode::RWXU)?;
        let owned = (user.is_none() && group.is_none())
            || rustix::fs::chownat(&folder.descriptor, name, user, group, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        // What is refused now is tried again, and told of, at the end.
        let mode = if owned { entry.mode | 0o700 } else { entry.mode & !SET_ID | 0o700 };
        let _ = change_mode(&folder.descriptor, name, mode);
        Ok(())
    }

    /// The mode that a new file is created with. Who may not read the file in the end must not while it is written
    /// either; [`Attributes::put`] gives the rest.
    pub(super) fn creation_mode(&self, folder: &Folder, entry: &Entry) -> Mode {
        let mode = entry.mode & 0o777;
        // Here the group's bits bound an ACL that the file gets later, and some may be denied what all others may.
        if self.acls && entry.xattrs.iter().any(|(name, _)| xattrs::is_acl(name)) {
            return Mode::from_raw_mode(mode & 0o700);
        }
        // An ACL of the directory goes with the others' permissions, or it is to stay.
        let stays_open = !folder.gives_acl || !self.acls;
        if stays_open && self.is_born_with(folder, self.group.then(|| self.owner_of(entry).1)) {
            return Mode::from_raw_mode(mode);
        }
        // Whatever group it is of for now: what that and the others both may in the end, everybody may.
        let all = mode >> 3 & mode & 0o7;
        Mode::from_raw_mode(mode & 0o700 | all << 3 | all)
    }

    /// Whether a new file certainly has this group, or whichever it is born with if none is to be set. That is ours or,
    /// as the mount may be told so (mount(8), `grpid`), the directory's.
    fn is_born_with(&self, folder: &Folder, group: Option<u32>) -> bool {
        let is_ours = |group| folder.gives_group || group == self.group_here;
        group.is_none_or(|group| folder.group == group && is_ours(group))
    }

    /// The mode of an unfinished file that a later run may have to open again.
    pub(super) fn unfinished_mode(&self, folder: &Folder, entry: &Entry) -> Mode {
        self.creation_mode(folder, entry) | Mode::RUSR | Mode::WUSR
    }

    /// The mode of a device, pipe or socket until [`Attributes::put_on_name`] gives it its own.
    pub(super) fn node_mode(&self, folder: &Folder, entry: &Entry) -> Mode {
        if self.permissions { self.creation_mode(folder, entry) } else { Mode::from_raw_mode(entry.mode & 0o777) }
    }

    /// The mode that a whole file has that was unfinished: an earlier run may have made it, under other circumstances.
    pub(super) fn present_mode(&self, file: impl AsFd, folder: &Folder, entry: &Entry) -> Mode {
        let status = if self.permissions { rustix::fs::fstat(file).ok() } else { None };
        status.map_or(self.unfinished_mode(folder, entry), |status| Mode::from_raw_mode(status.st_mode & 0o7777))
    }

    /// Puts everything on a file created with this mode, while it is open.
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
            // What the directory gave to the new file, the source does not have.
            if let Err(error) = xattrs::remove(FileRef::Open(file), ACL_ACCESS) {
                failed(&mut failures, ProblemKind::Acls, error);
            }
        }
        self.set_xattrs(FileRef::Open(file), &self.xattrs_of(entry), &mut failures);
        if !owned && mode & SET_ID != 0 {
            // Not for an owner whom nobody meant.
            mode &= !SET_ID;
            failures.push((ProblemKind::Mode, "set-id bits are left out with another owner".to_owned()));
        }
        let has_acl = folder.gives_acl || !entry.xattrs.is_empty();
        let created = created.as_raw_mode();
        let mode = if self.permissions {
            (has_acl || mode & self.umask != 0 || mode != created).then_some(mode)
        } else {
            // What is not kept of the permissions is what the umask takes away. Where that is not known, it may be all.
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

    /// Mends what differs on something that is there. Gives what could not be, and whether anything differed.
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
            // The change may have taken set-id bits away.
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
                // Those that stay are no difference, or a second run would not come to rest.
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
                // By the open directory: its new permissions may not let us in.
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

    /// What is other on something that is there, as far as it would be mended.
    pub(super) fn changes(&self, folder: &Folder, name: &[u8], status: &Stat, entry: &Entry) -> Changes {
        let (user, group) = self.owner_of(entry);
        let wanted = self.xattrs_of(entry);
        let mut present = match self.acls || self.xattrs {
            // What cannot be read is told where it is mended.
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
            // Who is not root keeps no owners.
            owner: self.owner && self.user_here == 0 && user != status.st_uid,
            group: self.group && group != status.st_gid,
            acl: differ(true),
            xattr: differ(false),
        }
    }

    /// Changes owner and group; the group alone if the owner cannot be. False if the owner is not as wished.
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

    /// Puts everything on what was just made under a name: a link, a device, a directory.
    pub(super) fn put_on_name(&self, folder: &Folder, name: &[u8], entry: &Entry) -> Result<Failures, Errno> {
        let status = rustix::fs::statat(&folder.descriptor, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(self.mend(folder, name, &status, entry, false).1)
    }
}

fn has(xattrs: &Xattrs, name: &[u8]) -> bool {
    xattrs.iter().any(|(other, _)| other == name)
}

/// Changes the permissions of a name that is no link; a link put in its place is not followed.
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
        // Without /proc, as in an empty root. Opening anything else can have side effects.
        Err(Errno::NOENT) if matches!(kind, Some(Kind::File | Kind::Directory)) => {
            rustix::fs::fchmod(open(OFlags::RDONLY | OFlags::NONBLOCK)?, mode)
        }
        result => result,
    }
}

/// For calls that set the time of the last change, and leave that of the last access alone.
pub(super) fn times(modified: Time) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: modified.seconds, tv_nsec: i64::from(modified.nanoseconds) },
    }
}

/// A day, in seconds: further apart than any file system's clock is coarse, or wrong by a time zone.
pub(super) const DAY_S: i64 = 86_400;

/// Gives a file the first of some times that is, as the file system keeps it, not the one that it has.
///
/// # Errors
/// It cannot be set.
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

/// The time of last change of content in a status.
pub(super) fn modified(status: &Stat) -> Time {
    Time { seconds: status.st_mtime, nanoseconds: status.st_mtime_nsec as u32 }
}

/// The time of last change of content or attributes in a status.
pub(super) fn changed(status: &Stat) -> Time {
    Time { seconds: status.st_ctime, nanoseconds: status.st_ctime_nsec as u32 }
}

/// What a file system keeps times in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grain {
    /// Multiples of so many nanoseconds; the rest is cut off.
    Of(u64),
    /// Any of [`GRAINS`].
    Unknown,
}

/// What file systems count in, nanoseconds: NTFS and SMB, microseconds, exFAT, ext3 and HFS+, FAT.
const GRAINS: [u64; 6] = [1, 100, 1000, 10_000_000, SECOND, 2 * SECOND];
const SECOND: u64 = 1_000_000_000;

/// A time of which every grain takes something away.
pub(super) const TRIAL: Time = Time { seconds: 101, nanoseconds: 123_456_789 };

impl Grain {
    /// What a file whose time was set to [`TRIAL`] tells. A file system that does something else to it is one that
    /// keeps nothing: rather is a file copied again than a change overlooked.
    pub(super) fn of_trial(kept: Time) -> Grain {
        let grain = GRAINS.into_iter().find(|grain| cut(TRIAL, *grain) == kept);
        Grain::Of(grain.unwrap_or(1))
    }

    /// Where nothing can be tried: what the kind of a file system may be. Those of other systems may be kept by a
    /// server that counts in something else.
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

    /// Whether a time at the destination is the source's, as far as it can be kept there.
    fn same(self, source: Time, here: Time) -> bool {
        match self {
            Grain::Of(grain) => cut(source, grain) == here,
            Grain::Unknown => GRAINS.iter().any(|grain| cut(source, *grain) == here),
        }
    }
}

/// A time without what a grain cannot hold.
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
