//! The walk of `put`: files, and directories with everything in them, each directory before its entries.
//!
//! Links, unfinished files and the private state of mirrors are left out. The caller names the state directory.

pub mod found;

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use crate::files::PART_ENDING;
use crate::filter::Selection;
use crate::run::error::CommandError;
use crate::run::events::Events;
use crate::units::several;
use found::{Found, Root};

/// One directory, file or other entry that the walk found.
#[derive(Debug, Clone)]
pub enum Item {
    /// A file to store.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Index of its directory in [`Listing::items`]; none for arguments.
        parent: Option<usize>,
        /// How to open the file; none for arguments, which may be links and pipes.
        found: Option<Found>,
    },
    /// A directory to store; its entries name it as their parent.
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Index of its own directory in [`Listing::items`]; none for arguments.
        parent: Option<usize>,
    },
    /// Standard input, given as `-`.
    Stdin,
}

impl Item {
    /// Path of the entry, as the walk found it.
    pub fn path(&self) -> &Path {
        match self {
            Item::File { path, .. } | Item::Directory { path, .. } => path,
            Item::Stdin => Path::new("-"),
        }
    }

    /// Index of the directory that contains the entry, if it is stored as well.
    pub fn parent(&self) -> Option<usize> {
        match self {
            Item::File { parent, .. } | Item::Directory { parent, .. } => *parent,
            Item::Stdin => None,
        }
    }
}

/// Maximum depth of directories. Paths usually hit the kernel's limit first.
const DEPTH_MAX: usize = 2000;

/// Maximum number of entries listed behind followed links. Links to siblings multiply; a guess at more than any mirror
/// has.
const FOLLOWED_MAX: usize = 4 << 20;

/// Names of a mirror's own directories; if they are empty, nothing counts as a mirror.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MirrorNames {
    /// Name of the directory in which a mirror keeps its private state.
    pub state: String,
    /// Name of the directory with its snapshots.
    pub snapshots: String,
}

/// How the walk treats links and mirrors.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Directory names by which mirrors are recognised.
    pub mirrors: MirrorNames,
    /// Follow symbolic links that end within the argument.
    pub copy_links: bool,
    /// Put the snapshots of mirrors.
    pub with_snapshots: bool,
    /// Which paths beneath each directory to put.
    pub selection: Selection,
}

/// Result of a walk.
#[derive(Debug, Default)]
pub struct Listing {
    /// Entries to store, each directory before its entries.
    pub items: Vec<Item>,
    /// Links, special files and unfinished files that are left out, with the reason.
    pub left_out: Vec<(PathBuf, &'static str)>,
    /// Paths that `--exclude` and `--files-from` leave out. A directory stands for everything in it.
    pub excluded: Vec<PathBuf>,
    /// Paths that could not be read, with the errors.
    pub unreadable: Vec<(PathBuf, io::Error)>,
    /// Roots of mirrors; a directory within a mirror counts as one.
    pub mirrors: Vec<PathBuf>,
    /// Private state and unfinished files of mirrors, which are never stored.
    pub private: Vec<PathBuf>,
    /// Directories of snapshots, whether stored or not.
    pub snapshots: Vec<PathBuf>,
    /// Number of snapshot directories that exist and are not stored.
    pub snapshots_left_out: usize,
    /// Sum of the sizes of all items, in bytes; none if there are pipes.
    pub bytes: Option<u64>,
}

impl Listing {
    /// Records listed paths that do not exist.
    fn miss(&mut self, argument: &Path, choice: &Choice) {
        for path in choice.selection.only.iter().flat_map(|only| only.paths()) {
            let path = argument.join(std::ffi::OsStr::from_bytes(path));
            if let Err(error) = fs::symlink_metadata(&path) {
                self.unreadable.push((path, error));
            }
        }
    }

    /// Warns about entries that are left out.
    pub fn tell_left_out(&self, events: &mut dyn Events) {
        for (path, what) in &self.left_out {
            events.warn(format!("{}: {what}, left out", path.display()));
        }
        let mut left_out = Vec::new();
        if let count @ 1.. = self.private.len() as u64 {
            left_out.push(several(
                count,
                "private or unfinished name of mirrors",
                "private or unfinished names of mirrors",
            ));
        }
        if self.snapshots_left_out > 0 {
            left_out.push("snapshots, which --with-snapshots puts".to_owned());
        }
        if !left_out.is_empty() {
            events.note(format!("left out: {}", left_out.join("; ")));
        }
    }
}

/// Whether this is the name of an unfinished file. Ours are `.NAME.part`; other programs omit the dot.
pub fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(PART_ENDING).is_some_and(|name| !name.is_empty())
}

/// Lists all arguments, each directory before its entries.
///
/// # Errors
/// A [`CommandError`] of kind usage if the only argument cannot be read, if an argument is a mirror's private state, or
/// if `-` is given twice. Also for more than 2000 levels of directories, or more than 4,194,304 entries behind links.
pub fn list(arguments: &[PathBuf], choice: &Choice) -> Result<Listing, CommandError> {
    let mut listing = Listing { bytes: Some(0), ..Listing::default() };
    for path in arguments {
        if path.as_os_str() == "-" {
            if listing.items.iter().any(|item| matches!(item, Item::Stdin)) {
                return Err(CommandError::usage("`-` twice: stdin can be read once"));
            }
            listing.items.push(Item::Stdin);
            listing.bytes = None;
            continue;
        }
        let failed = |error: io::Error| CommandError::usage(format_args!("{}: {error}", path.display()));
        let is_state = |end: &Path| end.ancestors().any(|path| path.is_dir() && is_named(path, &choice.mirrors.state));
        // A pipe of /proc/self/fd has no path.
        if fs::canonicalize(path).is_ok_and(|end| is_state(&end)) {
            let error = format!("{}: the private state of a mirror is never put", path.display());
            return Err(CommandError::usage(error).hint("name the mirror's own directory"));
        }
        let about = match fs::metadata(path) {
            Ok(about) => about,
            // The other arguments are still stored.
            Err(error) if arguments.len() > 1 => {
                listing.unreadable.push((path.clone(), error));
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        if about.is_dir() {
            let root = fs::canonicalize(path).map_err(failed)?;
            let in_mirror = root.ancestors().skip(1).any(|path| choice.mirrors.is_root(path));
            if in_mirror {
                listing.mirrors.push(path.clone());
            }
            // The user names the snapshots, or one of them: they are stored, and none is deleted.
            if root.ancestors().any(|path| choice.mirrors.is_snapshots(path)) {
                listing.snapshots.push(path.clone());
            }
            let handle = Root::open(path).map_err(|error| CommandError::cannot("read", path, &error))?;
            let above = vec![root.clone()];
            let mut walk =
                Walk { choice, argument: path.clone(), root, handle, followed: 0, above, listing: &mut listing };
            walk.directory(path, None, in_mirror, false)?;
            listing.miss(path, choice);
        } else {
            listing.bytes = listing.bytes.filter(|_| about.is_file()).map(|bytes| bytes + about.len());
            listing.items.push(Item::File { path: path.clone(), parent: None, found: None });
        }
    }
    Ok(listing)
}

/// Whether the last component of a path is `name`.
fn is_named(path: &Path, name: &str) -> bool {
    path.file_name().is_some_and(|own| own == name)
}

impl MirrorNames {
    /// Whether this is the root of a mirror. The state directory itself need not be readable.
    fn is_root(&self, path: &Path) -> bool {
        !self.state.is_empty() && fs::symlink_metadata(path.join(&self.state)).is_ok_and(|kind| !kind.is_file())
    }

    /// Whether this directory holds the snapshots of a mirror.
    fn is_snapshots(&self, path: &Path) -> bool {
        is_named(path, &self.snapshots) && path.parent().is_some_and(|parent| self.is_root(parent))
    }
}

/// A walk through one argument.
struct Walk<'a> {
    choice: &'a Choice,
    /// The argument as the user gave it.
    argument: PathBuf,
    /// Canonical path of the argument.
    root: PathBuf,
    handle: Arc<Root>,
    followed: usize,
    /// Canonical paths of the directories above.
    above: Vec<PathBuf>,
    listing: &'a mut Listing,
}

impl Walk<'_> {
    fn directory(
        &mut self,
        path: &Path,
        parent: Option<usize>,
        in_mirror: bool,
        is_followed: bool,
    ) -> Result<(), CommandError> {
        if self.above.len() > DEPTH_MAX {
            return Err(CommandError::usage(format_args!(
                "{}: more than {DEPTH_MAX} levels of directories",
                path.display()
            )));
        }
        let own = self.listing.items.len();
        self.listing.items.push(Item::Directory { path: path.to_owned(), parent });
        let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => {
                self.listing.unreadable.push((path.to_owned(), error));
                return Ok(());
            }
        };
        entries.sort_by_key(fs::DirEntry::file_name);
        // Names show it even where the directory may be listed but not entered.
        let (state, snapshots) = (self.choice.mirrors.state.as_str(), self.choice.mirrors.snapshots.as_str());
        let is_state =
            |entry: &fs::DirEntry| entry.file_name() == state && entry.file_type().map_or(true, |kind| !kind.is_file());
        let is_root = entries.iter().any(is_state);
        if is_root {
            self.listing.mirrors.push(path.to_owned());
            self.listing.snapshots.push(path.join(snapshots));
        }
        let in_mirror = in_mirror || is_root;
        for entry in entries {
            self.followed += usize::from(is_followed);
            if self.followed > FOLLOWED_MAX {
                let error = format!("{}: links lead to more than {FOLLOWED_MAX} entries", path.display());
                return Err(CommandError::usage(error));
            }
            let (path, name) = (entry.path(), entry.file_name());
            let kind = match entry.file_type() {
                Ok(kind) => kind,
                Err(error) => {
                    self.listing.unreadable.push((path, error));
                    continue;
                }
            };
            if !self.is_selected(&path, kind) {
                self.listing.excluded.push(path);
                continue;
            }
            let is_part = kind.is_file() && is_unfinished(&name.to_string_lossy());
            if name == state && kind.is_dir() || in_mirror && is_part {
                self.listing.private.push(path);
            } else if name == state && !kind.is_file() {
                self.listing.left_out.push((path, "private state of a mirror in another place"));
            } else if is_part {
                self.listing.left_out.push((path, "an unfinished file by its name"));
            } else if is_root && name == snapshots && !self.choice.with_snapshots {
                // It is among `snapshots`, which are never deleted.
                self.listing.snapshots_left_out += 1;
            } else if kind.is_symlink() && self.choice.copy_links {
                self.link(path, own, in_mirror)?;
            } else if kind.is_dir() {
                let real = self.above.last().map(|above| above.join(&name)).unwrap_or_default();
                self.above.push(real);
                self.directory(&path, Some(own), in_mirror, is_followed)?;
                self.above.pop();
            } else if kind.is_file() {
                let real = is_followed.then(|| self.above.last().map(|above| above.join(&name))).flatten();
                let bytes = entry.metadata().map_or(0, |about| about.len());
                self.file(path, own, real.as_deref(), bytes);
            } else {
                let what = if kind.is_symlink() { "a symbolic link" } else { "not a regular file" };
                self.listing.left_out.push((path, what));
            }
        }
        Ok(())
    }

    /// Whether the user selected an entry. A followed link counts as its target.
    fn is_selected(&self, path: &Path, kind: fs::FileType) -> bool {
        let selection = &self.choice.selection;
        if selection.is_all() {
            return true;
        }
        let relative = path.strip_prefix(&self.argument).unwrap_or(path).as_os_str().as_bytes();
        let may_be_directory = kind.is_dir() || kind.is_symlink() && self.choice.copy_links && path.is_dir();
        if may_be_directory { selection.enters(relative) } else { selection.takes(relative) }
    }

    /// Adds a regular file; `real` is its path without links, if links led to it.
    fn file(&mut self, path: PathBuf, parent: usize, real: Option<&Path>, bytes: u64) {
        let found = self.handle.found(real.map(|real| real.strip_prefix(&self.root).unwrap_or(real)));
        self.listing.bytes = self.listing.bytes.map(|sum| sum + bytes);
        self.listing.items.push(Item::File { path, parent: Some(parent), found: Some(found) });
    }

    /// Follows a link whose final target is within the argument, wherever it leads on the way.
    fn link(&mut self, path: PathBuf, parent: usize, in_mirror: bool) -> Result<(), CommandError> {
        let end = fs::canonicalize(&path).and_then(|end| Ok((fs::metadata(&end)?, end)));
        let (kind, end) = match end {
            Ok(end) => end,
            Err(error) => {
                match error.raw_os_error() {
                    Some(code) if code == Errno::NOENT.raw_os_error() || code == Errno::NOTDIR.raw_os_error() => {
                        self.listing.left_out.push((path, "a symbolic link to nothing"));
                    }
                    Some(code) if code == Errno::LOOP.raw_os_error() => {
                        self.listing.left_out.push((path, "a loop of symbolic links"));
                    }
                    _ => self.listing.unreadable.push((path, error)),
                }
                return Ok(());
            }
        };
        let why_not = if !end.starts_with(&self.root) {
            Some("a symbolic link that leaves what is put")
        } else if self.above.contains(&end) {
            Some("a symbolic link to a directory that it is in")
        } else if self.is_hidden(&end) {
            Some("a symbolic link to private state, snapshots or an unfinished file")
        } else if !kind.is_dir() && !kind.is_file() {
            Some("not a regular file")
        } else if kind.is_file() && path.file_name().is_some_and(|name| is_unfinished(&name.to_string_lossy())) {
            Some("an unfinished file by its name")
        } else {
            None
        };
        if let Some(why_not) = why_not {
            self.listing.left_out.push((path, why_not));
        } else if kind.is_dir() {
            let leads_into_mirror = end.ancestors().skip(1).any(|path| self.choice.mirrors.is_root(path));
            if leads_into_mirror {
                self.listing.mirrors.push(path.clone());
            }
            self.above.push(end);
            self.directory(&path, Some(parent), in_mirror || leads_into_mirror, true)?;
            self.above.pop();
        } else {
            self.file(path, parent, Some(&end), kind.len());
        }
        Ok(())
    }

    /// Whether the target of a link is private state, a snapshot that is left out, or an unfinished file.
    fn is_hidden(&self, end: &Path) -> bool {
        let mirrors = &self.choice.mirrors;
        let mut above = end.ancestors().take_while(|path| *path != self.root);
        above.any(|path| is_named(path, &mirrors.state) || !self.choice.with_snapshots && mirrors.is_snapshots(path))
            || !end.is_dir() && end.file_name().is_some_and(|name| is_unfinished(&name.to_string_lossy()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn choice(copy_links: bool, with_snapshots: bool) -> Choice {
        let mirrors = MirrorNames { state: ".fullbore".into(), snapshots: "snapshots".into() };
        Choice { mirrors, copy_links, with_snapshots, ..Choice::default() }
    }

    fn names(root: &Path, choice: &Choice) -> (Vec<String>, Listing) {
        let listing = list(&[root.to_owned()], choice).unwrap();
        let files = listing.items.iter().filter(|item| matches!(item, Item::File { .. }));
        let name = |item: &Item| item.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        (files.map(name).collect(), listing)
    }

    #[test]
    fn directories_come_before_what_is_in_them() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("b")).unwrap();
        fs::write(root.path().join("b/y"), "12").unwrap();
        fs::write(root.path().join("a"), "345").unwrap();
        symlink("a", root.path().join("link")).unwrap();
        let listing = list(&[root.path().to_owned()], &choice(false, false)).unwrap();
        let names: Vec<_> = listing
            .items
            .iter()
            .map(|item| (item.path().strip_prefix(root.path()).unwrap().to_owned(), item.parent()))
            .collect();
        let expected = [("", None), ("a", Some(0)), ("b", Some(0)), ("b/y", Some(2))];
        assert_eq!(names, expected.map(|(path, parent)| (PathBuf::from(path), parent)));
        assert_eq!(listing.left_out, [(root.path().join("link"), "a symbolic link")]);
        assert_eq!(listing.bytes, Some(5), "of regular files alone");
        assert!(list(&["/nonexistent".into()], &choice(false, false)).is_err());
        let some = list(&["/nonexistent".into(), root.path().join("a")], &choice(false, false)).unwrap();
        assert_eq!((some.items.len(), some.unreadable.len()), (1, 1), "one of several leaves the others");
        assert!(list(&["-".into(), "-".into()], &choice(false, false)).is_err(), "each would have a part of it");
    }

    #[test]
    fn links_are_followed_within_the_source_only() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        fs::create_dir_all(root.join("dists/bookworm")).unwrap();
        fs::write(root.join("dists/bookworm/Release"), "").unwrap();
        fs::write(place.path().join("secret"), "").unwrap();
        symlink("bookworm", root.join("dists/stable")).unwrap();
        symlink(root.join("dists/bookworm/Release"), root.join("absolute")).unwrap();
        for (name, target) in [("dangling", "nowhere"), ("loop", "loop"), ("out", "../secret"), ("up", ".")] {
            symlink(target, root.join(name)).unwrap();
        }
        symlink("..", root.join("dists/bookworm/up")).unwrap();
        let (files, listing) = names(&root, &choice(true, false));
        assert_eq!(files, ["absolute", "dists/bookworm/Release", "dists/stable/Release"]);
        let left: Vec<_> = listing.left_out.iter().map(|(path, _)| path.strip_prefix(&root).unwrap()).collect();
        let expected = ["dangling", "dists/bookworm/up", "dists/stable/up", "loop", "out", "up"];
        assert_eq!(left, expected.map(Path::new));
        assert!(listing.unreadable.is_empty(), "{:?}", listing.unreadable);
    }

    #[test]
    fn private_state_of_mirrors_is_never_listed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for name in ["m/.fullbore/log", "m/pool/.a.part", "m/pool/a.part", "m/snapshots/s/a", "snapshots/x", ".b.part"]
        {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), "").unwrap();
        }
        symlink("m/.fullbore", root.join("state")).unwrap();
        symlink("m/snapshots/s", root.join("latest")).unwrap();
        let links = choice(true, false);
        symlink("m/pool", root.join("pool")).unwrap();
        let (files, listing) = names(root, &links);
        assert_eq!(files, ["snapshots/x"]);
        let left: Vec<_> = listing.left_out.iter().map(|(path, _)| path.strip_prefix(root).unwrap()).collect();
        assert_eq!(left, [".b.part", "latest", "state"].map(Path::new));
        let private = ["m/.fullbore", "m/pool/.a.part", "m/pool/a.part", "pool/.a.part", "pool/a.part"];
        assert_eq!(listing.private, private.map(|name| root.join(name)));
        assert!(names(&root.join("m/pool"), &links).0.is_empty());
        assert!(list(&[root.join("m/.fullbore")], &links).is_err());
        let (files, listing) = names(&root.join("m/snapshots"), &links);
        assert_eq!((files, listing.snapshots), (vec!["s/a".to_owned()], vec![root.join("m/snapshots")]));
        assert_eq!(listing.snapshots_left_out, 0, "they are put");
        let (files, listing) = names(&root.join("m"), &Choice::default());
        assert_eq!(files, [".fullbore/log", "snapshots/s/a"], "nobody has said how mirrors are known");
        assert!(listing.mirrors.is_empty() && listing.private.is_empty(), "{listing:?}");
        let with_snapshots = choice(false, true);
        assert_eq!(names(root, &with_snapshots).0, ["m/snapshots/s/a", "snapshots/x"]);
    }
}
