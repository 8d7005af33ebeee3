//! The plan: files, their keys, and their order.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fullbore_engine::filter::Filters;
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::error::ErrorKind;
use fullbore_engine::tree::found::Found;
use fullbore_engine::tree::{Choice, Item, Listing, list};

use super::protected::Rules;
use crate::address::Location;
use crate::key;
use crate::objects::Condition;

/// A planned object.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    /// Path of the file; `-` is stdin.
    pub path: PathBuf,
    /// How to open the file; none for arguments.
    pub found: Option<Found>,
    /// Key of the object.
    pub key: String,
    /// Turn of the object: all objects of a turn are stored before those of the next begin.
    pub turn: usize,
    /// Condition under which it may replace an object.
    pub replaces: Condition,
}

/// The plan of a run.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Objects in the order of the arguments.
    pub objects: Vec<Planned>,
    /// Number of turns.
    pub turns: usize,
    /// Prefix below which all keys are ours, for `--delete`. `None` without a directory among the arguments.
    pub prefix: Option<String>,
    /// Rules for the objects that `--delete` keeps.
    pub rules: Rules,
    /// Whether mirrors are among the sources.
    pub has_mirrors: bool,
    /// Total size of all files in bytes; none if there are pipes.
    pub bytes: Option<u64>,
    /// Files that cannot be uploaded, because they are unreadable or their name cannot be a key.
    pub failed: Vec<(PathBuf, CommandError)>,
}

/// The patterns of `--last`.
pub(crate) struct Last(Vec<Filters>);

impl Last {
    /// Compiles the patterns.
    pub(crate) fn new(patterns: &[String]) -> Last {
        let filter = |pattern: &String| {
            let mut filters = Filters::default();
            filters.push(false, pattern.as_bytes());
            filters
        };
        Last(patterns.iter().map(filter).collect())
    }

    /// The turn of a path: 0, or that of the last matching pattern.
    fn turn(&self, path: &str) -> usize {
        self.0.iter().rposition(|filters| filters.excludes(path.as_bytes(), false)).map_or(0, |at| at + 1)
    }
}

impl Plan {
    /// Lists all sources. The content of a directory goes below the prefix. A file gets the prefix as its key; if the
    /// prefix ends with a slash or there are several sources, it gets its name below the prefix.
    ///
    /// # Errors
    /// A [`CommandError`] of kind usage if the only source cannot be read, a name cannot be a key, or two sources would
    /// have one key.
    pub(crate) fn make(
        paths: &[PathBuf],
        location: &Location,
        last: &Last,
        choice: &Choice,
        heard: &mut dyn FnMut(&Listing),
    ) -> Result<Plan, CommandError> {
        let single = paths.len() == 1;
        let beneath = match location.key.as_str() {
            "" => String::new(),
            key if key.ends_with('/') => key.to_owned(),
            key => format!("{key}/"),
        };
        let mut plan = Plan { turns: last.0.len() + 1, bytes: Some(0), ..Plan::default() };
        plan.rules.state.clone_from(&choice.mirrors.state);
        plan.rules.selection.clone_from(&choice.selection);
        for argument in paths {
            if !single
                && argument.as_os_str() != "-"
                && let Err(error) = std::fs::metadata(argument)
            {
                // It may have been a directory, whose content would be below the prefix itself.
                plan.rules.left_out.add(&beneath, Path::new(""));
                plan.failed.push((argument.clone(), CommandError::new(ErrorKind::Disk, error)));
                continue;
            }
            let listing = list(std::slice::from_ref(argument), choice)?;
            heard(&listing);
            plan.bytes = plan.bytes.zip(listing.bytes).map(|(sum, bytes)| sum + bytes);
            let beneath_argument = |path: &Path| path.strip_prefix(argument).unwrap_or(path).to_owned();
            plan.has_mirrors |= !listing.mirrors.is_empty();
            for path in &listing.mirrors {
                plan.rules.mirrors.add_known(&beneath, &beneath_argument(path));
            }
            listing.snapshots.iter().for_each(|path| plan.rules.snapshots.add(&beneath, &beneath_argument(path)));
            for (path, _) in &listing.left_out {
                plan.rules.left_out.add(&beneath, &beneath_argument(path));
            }
            listing.excluded.iter().for_each(|path| plan.rules.left_out.add(&beneath, &beneath_argument(path)));
            for (path, error) in listing.unreadable {
                plan.rules.left_out.add(&beneath, &beneath_argument(&path));
                plan.failed.push((path, CommandError::new(ErrorKind::Partial, error)));
            }
            for item in listing.items {
                let relative = match &item {
                    Item::Directory { .. } => {
                        plan.prefix = Some(beneath.clone());
                        continue;
                    }
                    Item::Stdin => String::new(),
                    Item::File { path, parent: Some(_), .. } => {
                        let relative = beneath_argument(path);
                        let checked = name(&relative).and_then(|name| {
                            key::check(&format!("{beneath}{name}")).map_err(CommandError::usage).map(|()| name)
                        });
                        match checked {
                            Ok(name) => name,
                            Err(mut error) => {
                                error.kind = ErrorKind::Partial;
                                plan.rules.left_out.add(&beneath, &relative);
                                plan.failed.push((path.clone(), error));
                                continue;
                            }
                        }
                    }
                    Item::File { path, parent: None, .. } => {
                        match name(Path::new(path.file_name().unwrap_or_default())) {
                            Ok(name) => name,
                            Err(error) if !single => {
                                plan.rules.left_out.add(&beneath, Path::new(""));
                                plan.failed.push((path.clone(), error));
                                continue;
                            }
                            // A file needs a name of its own only if the address has none.
                            Err(_) if !location.key.is_empty() && !location.key.ends_with('/') => String::new(),
                            Err(error) => return Err(error),
                        }
                    }
                };
                let is_named = matches!(&item, Item::Stdin | Item::File { parent: None, .. })
                    && single
                    && !location.key.is_empty()
                    && !location.key.ends_with('/');
                let key = match (&item, is_named) {
                    (_, true) => location.key.clone(),
                    (Item::Stdin, false) => {
                        return Err(CommandError::usage(
                            "stdin needs the address of one object, s3://BUCKET/KEY, and no other file",
                        ));
                    }
                    _ => format!("{beneath}{relative}"),
                };
                if let Err(error) = key::check(&key) {
                    let error = CommandError::usage(error);
                    if single {
                        return Err(error.context(item.path().display()));
                    }
                    plan.failed.push((item.path().to_owned(), error));
                    continue;
                }
                let turn = last.turn(if relative.is_empty() { &key } else { &relative });
                let path = item.path().to_owned();
                let found = if let Item::File { found, .. } = item { found } else { None };
                plan.objects.push(Planned { path, found, key, turn, replaces: Condition::None });
            }
        }
        plan.refuse_twins()?;
        Ok(plan)
    }

    fn refuse_twins(&self) -> Result<(), CommandError> {
        let mut seen: HashMap<&str, &Path> = HashMap::with_capacity(self.objects.len());
        for object in &self.objects {
            if let Some(other) = seen.insert(&object.key, &object.path) {
                let (one, other) = (other.display(), object.path.display());
                return Err(CommandError::usage(format_args!("{one} and {other} would both be {:?}", object.key)));
            }
        }
        Ok(())
    }
}

/// Converts a path to a part of a key.
fn name(path: &Path) -> Result<String, CommandError> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| CommandError::usage(format_args!("{}: the name is not UTF-8, as keys require", path.display())))
}

#[cfg(test)]
mod tests {
    use super::super::protected::Classification;
    use super::*;
    use fullbore_engine::tree::MirrorNames;
    use proptest::prelude::*;
    use std::fs;

    fn choice(copy_links: bool, with_snapshots: bool) -> Choice {
        let mirrors = MirrorNames { state: ".fullbore".into(), snapshots: "snapshots".into() };
        Choice { mirrors, copy_links, with_snapshots, ..Choice::default() }
    }

    fn keys(paths: &[PathBuf], address: &str, last: &[&str]) -> Result<Vec<(String, usize)>, CommandError> {
        let last = Last::new(&last.iter().map(|glob| (*glob).to_owned()).collect::<Vec<_>>());
        let plan = Plan::make(paths, &Location::parse(address).unwrap(), &last, &choice(false, false), &mut |_| {})?;
        Ok(plan.objects.into_iter().map(|object| (object.key, object.turn)).collect())
    }

    #[test]
    fn keys_are_made_from_names_and_the_prefix() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("dists/x")).unwrap();
        for name in ["a", "dists/x/InRelease", "dists/x/Packages"] {
            fs::write(at(name), "").unwrap();
        }
        let one = |key: &str| vec![(key.to_owned(), 0)];
        assert_eq!(keys(&[at("a")], "s3://bucket/k", &[]).unwrap(), one("k"));
        assert_eq!(keys(&[at("a")], "s3://bucket/k/", &[]).unwrap(), one("k/a"));
        assert_eq!(keys(&[at("a")], "s3://bucket", &[]).unwrap(), one("a"));
        assert_eq!(keys(&["-".into()], "s3://bucket/pipe", &[]).unwrap(), one("pipe"));
        assert!(keys(&["-".into()], "s3://bucket/pipe/", &[]).is_err());
        let all = keys(&[root.path().to_owned()], "s3://bucket/p", &["dists/***", "InRelease"]).unwrap();
        let expected = [("p/a", 0), ("p/dists/x/InRelease", 2), ("p/dists/x/Packages", 1)];
        assert_eq!(all, expected.map(|(key, turn)| (key.to_owned(), turn)));
        let twins = keys(&[at("a"), root.path().to_owned()], "s3://bucket/p", &[]).unwrap_err();
        assert!(twins.to_string().contains("both"), "{twins}");
    }

    #[test]
    fn one_bad_argument_kept_all_others_from_being_put() {
        use std::os::unix::ffi::OsStrExt as _;

        let root = tempfile::tempdir().unwrap();
        let at = |name: &[u8]| root.path().join(std::ffi::OsStr::from_bytes(name));
        let (good, odd, missing, long) = (at(b"good"), at(b"odd\xff"), at(b"missing"), at(&[b'x'; 200]));
        [&good, &odd, &long].into_iter().for_each(|path| fs::write(path, "").unwrap());
        let prefix = "d/".repeat(420);
        let location = Location::parse(&format!("s3://bucket/{prefix}")).unwrap();
        let paths = [missing.clone(), odd.clone(), good, long.clone()];
        let make = |paths: &[PathBuf], location: &Location| {
            Plan::make(paths, location, &Last::new(&[]), &choice(false, false), &mut |_| {})
        };
        let plan = make(&paths, &location).unwrap();
        let keys: Vec<_> = plan.objects.iter().map(|object| object.key.as_str()).collect();
        assert_eq!(keys, [format!("{prefix}good")]);
        let failed: Vec<_> = plan.failed.iter().map(|(path, _)| path.clone()).collect();
        assert_eq!(failed, [missing.clone(), odd.clone(), long.clone()]);
        assert_eq!(
            plan.rules.classify(&format!("{prefix}old"), "old"),
            Classification::Kept,
            "it may be of the missing one"
        );
        for alone in [&missing, &odd, &long] {
            assert!(make(std::slice::from_ref(alone), &location).is_err());
        }
        let named = Location::parse("s3://bucket/key").unwrap();
        assert_eq!(make(&[odd], &named).unwrap().objects[0].key, "key", "its own name does not matter");
    }

    /// What a random tree has at a path.
    #[derive(Debug, Clone)]
    enum Made {
        File,
        Directory,
        Link(String),
        Pipe,
    }

    fn paths() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", ".fullbore", "snapshots", "c.part"]), 1..5)
            .prop_map(|parts| parts.join("/"))
    }

    fn made() -> impl Strategy<Value = Made> {
        prop_oneof![
            3 => Just(Made::File),
            2 => Just(Made::Directory),
            2 => paths().prop_map(Made::Link),
            1 => Just(Made::Pipe),
        ]
    }

    /// Makes what can be made: a name that is in the way of another wins.
    fn make(root: &Path, tree: &[(String, Made)]) {
        for (path, made) in tree {
            let at = root.join(path);
            if fs::create_dir_all(at.parent().unwrap()).is_err() || fs::symlink_metadata(&at).is_ok() {
                continue;
            }
            match made {
                Made::File => fs::write(at, "").unwrap(),
                Made::Directory => fs::create_dir(at).unwrap(),
                Made::Link(target) => std::os::unix::fs::symlink(root.join(target), at).unwrap(),
                Made::Pipe => {
                    rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
                        .unwrap()
                }
            }
        }
    }

    fn is_mirror(path: &Path) -> bool {
        fs::symlink_metadata(path.join(".fullbore")).is_ok_and(|kind| !kind.is_file())
    }

    /// Whether `--delete` must keep a key where no link is followed, told by looking at each name on its way.
    fn is_kept(root: &Path, key: &str) -> bool {
        let mut at = root.to_owned();
        let mut in_mirror = is_mirror(root);
        for part in key.split('/') {
            if part == "snapshots" && is_mirror(&at) {
                return true;
            }
            at.push(part);
            match fs::symlink_metadata(&at) {
                Ok(kind) if kind.is_dir() => in_mirror |= is_mirror(&at),
                Ok(kind) if kind.is_file() => return part == "c.part" && !in_mirror,
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    proptest! {
        #[test]
        fn only_what_is_truly_absent_may_be_deleted(
            tree in prop::collection::vec((paths(), made()), 0..12),
            keys in prop::collection::vec(paths(), 1..20),
            copy_links: bool,
            with_snapshots: bool,
        ) {
            let place = tempfile::tempdir().unwrap();
            let root = place.path().join("root");
            fs::create_dir(&root).unwrap();
            make(&root, &tree);
            let choice = choice(copy_links, with_snapshots);
            let location = Location::parse("s3://bucket/p").unwrap();
            let plan = Plan::make(std::slice::from_ref(&root), &location, &Last::new(&[]), &choice, &mut |_| {}).unwrap();
            for object in &plan.objects {
                prop_assert!(!object.key.contains("/.fullbore/") && !object.key.ends_with(".part"), "{}", object.key);
            }
            for name in keys {
                let key = format!("p/{name}");
                if plan.objects.iter().any(|object| object.key == key) {
                    continue;
                }
                let is_named_private = key.contains("/.fullbore/") || key.ends_with(".part");
                match plan.rules.classify(&key, &name) {
                    Classification::Private => prop_assert!(is_named_private, "{}", key),
                    Classification::Absent => {
                        prop_assert!(!fs::metadata(root.join(&name)).is_ok_and(|kind| kind.is_file()), "{}", key);
                        prop_assert!(copy_links || !is_kept(&root, &name), "{}", key);
                    }
                    Classification::Kept => prop_assert!(copy_links || is_kept(&root, &name), "{}", key),
                }
            }
        }
    }
}
