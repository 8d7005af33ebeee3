//! Writes the changes of `dpkg --unpack` to the database.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};

use fullbore_debian::deb::Control;
use fullbore_engine::durability::Durability;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{DIRECTORY, Database, DatabaseError, Directive, Permissions, Record, Stanza, State, label};
use crate::root::{Root, RootError, as_path, write_file};

/// An unpacked package, with the data that its entry in the database needs.
#[derive(Debug)]
pub(crate) struct NewPackage<'a> {
    /// Stanza for the status file.
    pub stanza: Stanza,
    /// Control files of the package.
    pub control: &'a Control,
    /// Paths of the package, in the order and form of dpkg's list.
    pub list: Vec<&'a [u8]>,
    /// Paths after diversion, which activate triggers.
    pub places: Vec<&'a [u8]>,
    /// Generated `md5sums`, if the package does not contain the file.
    pub md5sums: Option<Vec<u8>>,
    /// Directives of the package's `triggers` file.
    pub directives: Vec<Directive>,
}

/// Changes of the database by one batch.
#[derive(Debug, Default)]
pub(crate) struct Change<'a> {
    /// New packages, in the order in which dpkg would have unpacked them.
    pub packages: Vec<NewPackage<'a>>,
    /// Paths that packages of this batch took over from other packages (`Replaces`), by the label of the former owner.
    pub lost: BTreeMap<String, BTreeSet<Vec<u8>>>,
}

impl Database {
    /// Writes the change; the status file comes last. With any durability but `None`, all earlier writes in the root
    /// are durable before the status file is replaced, and the status file is durable on return.
    ///
    /// # Errors
    /// [`DatabaseError::Root`] if a file cannot be written or synced. The old status file then stays.
    pub(crate) fn write(
        &mut self,
        root: &Root,
        change: Change<'_>,
        durability: Durability,
    ) -> Result<(), DatabaseError> {
        let info = make_directory(root, "info")?;
        self.write_lost(root, &info, &change)?;
        let format = format!("{DIRECTORY}/info/format");
        if root.read(&format)?.is_none() {
            replace(&info, "info/format", "format", "format-new", b"1\n")?;
        }
        for package in change.packages {
            let label = label(&package.stanza);
            self.write_info(&info, &label, &package)?;
            self.note(&label, package);
        }
        let triggers = make_directory(root, "triggers")?;
        for (name, content) in self.interests.changed_files() {
            replace(&triggers, &format!("triggers/{name}"), &name, &format!("{name}.new"), content.as_bytes())?;
        }
        // dpkg creates these two files empty.
        for (name, mode) in [("Lock", 0o600), ("Unincorp", 0o644)] {
            if root.read(&format!("{DIRECTORY}/triggers/{name}"))?.is_none() {
                create(&triggers, name, mode, b"")?;
            }
        }
        if durability != Durability::None {
            root.sync()?;
        }
        self.write_status(root, durability)
    }

    /// Writes control files, list and checksums of one package. They are written in place, because dpkg reads them only
    /// when the status file names the package.
    fn write_info(&self, info: &OwnedFd, label: &str, package: &NewPackage<'_>) -> Result<(), DatabaseError> {
        let mut list = Vec::new();
        for path in &package.list {
            list.extend_from_slice(path);
            list.push(b'\n');
        }
        create(info, &format!("{label}.list"), 0o644, &list)?;
        for file in package.control.files.iter().filter(|file| belongs_into_info(&file.name)) {
            let name = format!("{label}.{}", file.name);
            let written = create(info, &name, file.mode, &file.content)?;
            let (user, group) = ((&file.user.1[..], file.user.0), (&file.group.1[..], file.group.0));
            let Permissions { uid, gid, .. } = self.accounts.permissions(file.mode, user, group);
            let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            if own.0 == 0 && (uid, gid) != own {
                let error = |errno: Errno| failed(&format!("info/{name}"), "set the owner of", errno);
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                rustix::fs::fchown(&written, Some(uid), Some(gid)).map_err(error)?;
                // chown(2) clears the set-user-id and set-group-id bits.
                rustix::fs::fchmod(&written, Mode::from_raw_mode(file.mode)).map_err(error)?;
            }
        }
        if let Some(md5sums) = &package.md5sums {
            create(info, &format!("{label}.md5sums"), 0o644, md5sums)?;
        }
        Ok(())
    }

    /// Adds triggers and stanza in memory.
    fn note(&mut self, label: &str, mut package: NewPackage<'_>) {
        for directive in package.directives.iter().filter(|directive| !directive.interest) {
            // A package awaits triggers only once it is unpacked (observed: dpkg drops earlier ones).
            self.activate(&directive.trigger, directive.awaited);
        }
        let mut wait_for = Vec::new();
        for path in &package.places {
            if !self.interests.has_path(path) {
                continue;
            }
            for other in self.activate(&String::from_utf8_lossy(path), true) {
                if !wait_for.contains(&other) {
                    wait_for.push(other);
                }
            }
        }
        if !wait_for.is_empty() {
            package.stanza.set("Triggers-Awaited", Some(wait_for.join(" ")));
        }
        for directive in package.directives.iter().filter(|directive| directive.interest) {
            self.interests.add(label, directive);
        }
        let record = Record::new(package.stanza, State::Unpacked);
        self.records.insert((record.name().to_owned(), record.architecture().to_owned()), record);
    }

    /// Removes paths from the lists of their former owners.
    fn write_lost(&self, root: &Root, info: &OwnedFd, change: &Change<'_>) -> Result<(), DatabaseError> {
        for (label, paths) in &change.lost {
            let name = format!("{label}.list");
            let old = root.read(&format!("{DIRECTORY}/info/{name}"))?.unwrap_or_default();
            let mut new = Vec::with_capacity(old.len());
            for line in old.split_inclusive(|byte| *byte == b'\n') {
                if !paths.contains(line.strip_suffix(b"\n").unwrap_or(line)) {
                    new.extend_from_slice(line);
                }
            }
            replace(info, &format!("info/{name}"), &name, &format!("{name}-new"), &new)?;
        }
        Ok(())
    }

    fn write_status(&self, root: &Root, durability: Durability) -> Result<(), DatabaseError> {
        let directory = make_directory(root, "")?;
        let mut status = String::new();
        for record in self.records.values() {
            match &record.text {
                Some(text) => status.push_str(text),
                None => status.push_str(&record.stanza.text()),
            }
            status.push('\n');
        }
        let error = |operation| move |errno: Errno| failed("status", operation, errno);
        let file = create(&directory, "status-new", 0o644, status.as_bytes())?;
        if durability != Durability::None {
            rustix::fs::fsync(&file).map_err(error("sync"))?;
        }
        match rustix::fs::unlinkat(&directory, "status-old", AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(error("remove the backup of")(errno).into()),
        }
        match rustix::fs::linkat(&directory, "status", &directory, "status-old", AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(error("keep a backup of")(errno).into()),
        }
        rustix::fs::renameat(&directory, "status-new", &directory, "status").map_err(error("replace"))?;
        if durability != Durability::None {
            let readable = rustix::fs::openat(&directory, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            rustix::fs::fsync(readable.map_err(error("sync"))?).map_err(error("sync"))?;
        }
        Ok(())
    }
}

/// Whether dpkg installs this control file. It leaves out names with a dot, because their files could collide:
/// `13.list` of `python3` with `list` of `python3.13`.
fn belongs_into_info(name: &str) -> bool {
    name != "control" && !name.contains('.')
}

/// Opens a directory of the database, and creates it if it is missing.
fn make_directory(root: &Root, name: &str) -> Result<OwnedFd, DatabaseError> {
    let path = format!("{DIRECTORY}/{name}");
    match root.directory(path.trim_end_matches('/').as_bytes()) {
        Err(Errno::NOENT) if !name.is_empty() => {
            let parent = make_directory(root, "")?;
            match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(name, "create", errno).into()),
            }
            root.directory(path.as_bytes()).map_err(|errno| failed(name, "open", errno).into())
        }
        result => result.map_err(|errno| failed(name, "open", errno).into()),
    }
}

fn create(directory: &OwnedFd, name: &str, mode: u32, content: &[u8]) -> Result<OwnedFd, RootError> {
    write_file(directory.as_fd(), name, mode, content).map_err(|error| failed(name, "write", error))
}

/// Writes to a temporary file and renames it, for files that other programs may be reading.
fn replace(directory: &OwnedFd, shown: &str, name: &str, new: &str, content: &[u8]) -> Result<(), RootError> {
    create(directory, new, 0o644, content)?;
    rustix::fs::renameat(directory, new, directory, name).map_err(|errno| failed(shown, "replace", errno))
}

fn failed(name: &str, operation: &'static str, error: impl Into<std::io::Error>) -> RootError {
    RootError::new(as_path(format!("/{DIRECTORY}/{name}").as_bytes()).as_os_str().as_encoded_bytes(), operation, error)
}
