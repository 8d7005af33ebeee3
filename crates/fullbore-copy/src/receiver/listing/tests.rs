use std::path::Path;
use std::sync::Mutex;

use fullbore_engine::durability::Durability;
use fullbore_engine::stage::Kind as Clock;

use super::super::arrived::Arrived;
use super::super::attributes::Attributes;
use super::super::base::Bases;
use super::super::bulk::Bulk;
use super::super::commit::Commit;
use super::super::compare::Comparing;
use super::super::held::Held;
use super::super::opened::Opened;
use super::super::shared::Shared;
use super::super::tree::Tree;
use super::super::verify::Verify;
use super::super::write::{Failed, PendingFiles};
use super::*;
use crate::options::Options;
use crate::session::tests::with_context;
use fullbore_engine::memory_pool::MemoryPool;

/// Works with a listing for this destination; gives the problems that were told of.
fn with_listing(target: &Path, case_insensitive: bool, work: impl FnOnce(&mut Listing<'_>)) -> Vec<Vec<u8>> {
    let options = Options { durability: Durability::None, ..Options::default() };
    with_options(&options, target, case_insensitive, None, work)
}

fn with_options(
    options: &Options,
    target: &Path,
    case_insensitive: bool,
    torn: Option<Time>,
    work: impl FnOnce(&mut Listing<'_>),
) -> Vec<Vec<u8>> {
    with_context(options, |context| {
        let problems = Mutex::new(Vec::new());
        let problem = |_: ProblemKind, path: &[u8], _: String| problems.lock().unwrap().push(path.to_vec());
        let tree = Tree::open(target).unwrap();
        let (attributes, pending, commit) =
            (Attributes::new(context.options).unwrap(), PendingFiles::default(), Commit::new());
        let (comparing, verify, bulk) = (Comparing::new(), Verify::default(), Bulk::new(MemoryPool::default()));
        let writers = Writers {
            context,
            tree: &tree,
            attributes: &attributes,
            opened: &Opened::of(&tree),
            pending: &pending,
            failed: &Failed::default(),
            shared: &Shared::default(),
            held: &Held::of_this_machine(),
            bases: &Bases::default(),
            backup: None,
            commit: &commit,
            comparing: &comparing,
            verify: &verify,
            bulk: &bulk,
            arrived: &Arrived::default(),
            boot: [0; 36],
            beside_source: false,
            problem: &problem,
            clock: context.ledger.stage("disk write", Clock::Thread),
        };
        let mut listing = Listing::new(&writers, FreeSpace::of(tree.root()), None);
        (listing.case_insensitive, listing.torn) = (case_insensitive, torn);
        work(&mut listing);
        problems.into_inner().unwrap()
    })
}

fn list(first: u64, directory: &str, names: &[(&str, Kind)], more: bool) -> List {
    let entry = |(name, kind): &(&str, Kind)| {
        let target = if *kind == Kind::Symlink { b"somewhere".to_vec() } else { Vec::new() };
        Entry { size: 3, target, ..Entry::plain(name.as_bytes(), *kind) }
    };
    List { first, directory: directory.into(), complete: true, more, entries: names.iter().map(entry).collect() }
}

fn wanted(answer: Answer) -> Vec<u64> {
    answer.wanted.iter().map(|wanted| wanted.id).collect()
}

#[test]
fn names_that_differ_in_case_alone_are_found_where_that_is_no_difference() {
    let directory = tempfile::tempdir().unwrap();
    let file = Kind::File;
    let problems = with_listing(directory.path(), true, |listing| {
        let answer = listing.take(list(0, "", &[("Name", file), ("name", file), ("other", file)], true)).unwrap();
        assert_eq!(wanted(answer), [0, 2]);
        // The same directory goes on.
        assert_eq!(wanted(listing.take(list(3, "", &[("OTHER", file)], false)).unwrap()), [0_u64; 0]);
        assert_eq!(listing.impossible, 2);
    });
    assert_eq!(problems, [b"name".to_vec(), b"OTHER".to_vec()]);
    let problems = with_listing(directory.path(), false, |listing| {
        assert_eq!(wanted(listing.take(list(0, "", &[("Name", file), ("name", file)], false)).unwrap()), [0, 1]);
    });
    assert!(problems.is_empty());
}

#[test]
fn names_longer_than_the_destination_takes_are_found() {
    let directory = tempfile::tempdir().unwrap();
    with_listing(directory.path(), false, |listing| {
        listing.room.longest_name = Some(4);
        let names = [("four", Kind::File), ("fives", Kind::Directory)];
        assert_eq!(wanted(listing.take(list(0, "", &names, false)).unwrap()), [0]);
        assert_eq!(listing.impossible, 1);
    });
    assert!(std::fs::read_dir(directory.path()).unwrap().next().is_none());
}

#[test]
fn a_copy_that_is_refused_leaves_the_destination_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("old")).unwrap();
    with_listing(directory.path(), false, |listing| {
        listing.take(list(0, "", &[("new", Kind::Directory), ("old", Kind::Directory)], false)).unwrap();
        listing.take(list(2, "new", &[("deep", Kind::Directory), ("link", Kind::Symlink)], false)).unwrap();
        listing.take(list(4, "old", &[("link", Kind::Symlink)], false)).unwrap();
        assert!(directory.path().join("new/deep").exists());
        listing.take_back();
    });
    let names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["old"]);
    assert!(std::fs::read_dir(directory.path().join("old")).unwrap().next().is_none());
}

#[test]
fn a_small_file_that_an_earlier_run_left_without_a_name_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    // As long as the source's file and of its time, and all zeros: so a power cut leaves it, and the source's file
    // may be another one by now.
    let part = std::fs::File::create(directory.path().join(".file.fullbore-part")).unwrap();
    part.set_len(3).unwrap();
    part.set_modified(std::time::UNIX_EPOCH).unwrap();
    let options = Options { durability: Durability::None, ..Options::default() };
    with_options(&options, directory.path(), false, Some(Time::default()), |listing| {
        assert_eq!(wanted(listing.take(list(0, "", &[("file", Kind::File)], false)).unwrap()), [0]);
    });
}

#[test]
fn specials_that_are_not_copied_are_not_deleted_either() {
    let directory = tempfile::tempdir().unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, directory.path().join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    std::fs::write(directory.path().join("file"), "x").unwrap();
    let options = Options { durability: Durability::None, delete: true, specials: false, ..Options::default() };
    with_options(&options, directory.path(), false, None, |listing| {
        listing.take(list(0, "", &[], false)).unwrap();
        assert_eq!(listing.extras[&b""[..]], BTreeSet::from([b"file".to_vec()]));
    });
}

/// What is in a directory: names, kinds, and what links say.
fn described(directory: &Path) -> Vec<String> {
    let describe = |entry: std::fs::DirEntry| {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        format!("{} {:?} {}", entry.file_name().display(), entry.file_type().unwrap(), link.display())
    };
    let mut all: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| describe(entry.unwrap())).collect();
    all.sort();
    all
}

/// A destination whose things are of other kinds than the list of [`replace`] says.
fn things_of_other_kinds() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("file"), "old").unwrap();
    std::os::unix::fs::symlink("old", path("link")).unwrap();
    std::os::unix::fs::symlink("old", path("directory")).unwrap();
    std::fs::create_dir(path("empty")).unwrap();
    std::fs::create_dir(path("emptied")).unwrap();
    std::fs::create_dir(path("full")).unwrap();
    std::fs::write(path("full/mine"), "old").unwrap();
    // Left by a run that was cut between making a link and naming it.
    std::os::unix::fs::symlink("torn", path(".link.fullbore-part")).unwrap();
    directory
}

fn replace(listing: &mut Listing<'_>) {
    let names = [
        ("file", Kind::Directory),
        ("link", Kind::Symlink),
        ("directory", Kind::Directory),
        ("empty", Kind::Symlink),
        ("emptied", Kind::File),
        ("full", Kind::Symlink),
    ];
    assert_eq!(wanted(listing.take(list(0, "", &names, false)).unwrap()), [4]);
    listing.take(list(6, "file", &[("within", Kind::Symlink)], false)).unwrap();
}

#[test]
fn replaced_entries_come_back_when_the_copy_is_refused() {
    let directory = things_of_other_kinds();
    std::fs::remove_file(directory.path().join(".link.fullbore-part")).unwrap();
    let before = described(directory.path());
    let problems = with_listing(directory.path(), false, |listing| {
        replace(listing);
        assert!(directory.path().join("file/within").is_symlink());
        listing.take_back();
    });
    assert_eq!(problems, [b"full".to_vec()]);
    assert_eq!(described(directory.path()), before);
    assert_eq!(std::fs::read(directory.path().join("file")).unwrap(), b"old");
}

#[test]
fn replaced_entries_go_once_content_arrives() {
    for early in [true, false] {
        let directory = things_of_other_kinds();
        let problems = with_listing(directory.path(), false, |listing| {
            if !early {
                listing.keep_made();
            }
            replace(listing);
            listing.keep_made();
        });
        assert_eq!(problems, [b"full".to_vec()]);
        let kinds = ["directory Dir", "emptied Dir", "empty Symlink", "file Dir", "full Dir", "link Symlink"];
        let there = described(directory.path());
        assert_eq!(there.len(), kinds.len(), "{there:?}");
        for kind in kinds {
            let (name, kind) = kind.split_once(' ').unwrap();
            let path = directory.path().join(name);
            assert_eq!((path.is_symlink(), path.is_dir()), (kind == "Symlink", kind == "Dir"), "{name}");
        }
        assert_eq!(std::fs::read_link(directory.path().join("link")).unwrap(), Path::new("somewhere"));
    }
}
