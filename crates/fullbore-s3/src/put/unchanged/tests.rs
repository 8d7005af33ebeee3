use super::*;
use proptest::prelude::*;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::thread::sleep;

const ETAG: &str = "900150983cd24fb0d6963f7d28e17f72";

/// Longer than a tick of the clock by which file systems set times.
const TICKS: Duration = Duration::from_millis(40);

/// Beside the test's program, because /tmp may be a tmpfs, whose times are not relied on.
fn directory() -> tempfile::TempDir {
    let program = std::env::current_exe().unwrap();
    tempfile::tempdir_in(program.parent().unwrap()).unwrap()
}

fn find(state: &Path, address: &str) -> Unchanged {
    Unchanged::find(Some(state), "store", &Location::parse(address).unwrap(), &Plan::default(), true)
}

fn seen(path: &Path) -> (File, Seen) {
    let file = File::open(path).unwrap();
    let seen = Seen::now(&file.metadata().unwrap());
    (file, seen)
}

/// A file that was put as it is, and the state directory of the run that did.
fn noted() -> (tempfile::TempDir, PathBuf) {
    let directory = directory();
    let path = directory.path().join("file");
    fs::write(&path, "content").unwrap();
    sleep(TICKS);
    let unchanged = find(directory.path(), "s3://bucket/p/");
    let (file, seen) = seen(&path);
    assert!(!unchanged.knows("p/file") && !unchanged.has("p/file", &seen, ETAG));
    unchanged.note("p/file", seen.confirmed(&file), Some(ETAG));
    unchanged.save();
    (directory, path)
}

fn tables(state: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(state).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_string_lossy().ends_with(SUFFIX)).collect()
}

#[test]
fn a_later_run_knows_a_file_by_its_identity_and_the_objects_etag() {
    let (directory, path) = noted();
    let unchanged = find(directory.path(), "s3://bucket/p/");
    let (_, seen_again) = seen(&path);
    assert!(unchanged.knows("p/file") && unchanged.has("p/file", &seen_again, ETAG));
    assert!(!unchanged.has("p/file", &seen_again, "another"), "another object is there");
    assert!(!unchanged.has("p/other", &seen_again, ETAG), "another key");
    assert!(!find(directory.path(), "s3://other/p/").knows("p/file"), "another bucket");
    let location = Location::parse("s3://bucket/p/").unwrap();
    let with = |state, believes| Unchanged::find(state, "store", &location, &Plan::default(), believes);
    assert!(!with(None, true).knows("p/file"), "no state directory");
    assert!(!with(Some(directory.path()), false).has("p/file", &seen_again, ETAG), "--checksum");
    // A move within the file system, which is a change for most of them.
    fs::rename(&path, directory.path().join("moved")).unwrap();
    let moved = seen(&directory.path().join("moved")).1;
    assert!(!unchanged.has("p/file", &moved, ETAG) || moved.identity == seen_again.identity);
}

#[test]
fn the_file_of_a_destination_has_no_names_and_is_private() {
    let (directory, _) = noted();
    let [table] = &tables(directory.path())[..] else { panic!("one file") };
    assert_eq!(fs::metadata(table).unwrap().mode() & 0o777, 0o600);
    let bytes = fs::read(table).unwrap();
    for name in ["p/file", "bucket", ETAG] {
        assert!(!bytes.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
    }
}

#[test]
fn a_lost_or_damaged_file_costs_time_only() {
    let (directory, path) = noted();
    let [table] = &tables(directory.path())[..] else { panic!("one file") };
    let (file, seen) = seen(&path);
    let put = || {
        let unchanged = find(directory.path(), "s3://bucket/p/");
        let knows = unchanged.has("p/file", &seen, ETAG);
        unchanged.note("p/file", seen.confirmed(&file), Some(ETAG));
        unchanged.save();
        knows
    };
    assert!(put());
    fs::remove_file(table).unwrap();
    assert!(!put() && put());
    fs::write(table, "fullbore-files-9 of a later version").unwrap();
    assert!(!put() && put());
    fs::OpenOptions::new().write(true).open(table).unwrap().set_len(70).unwrap();
    assert!(!put() && put());
    // Of another destination.
    let other = tempfile::tempdir().unwrap();
    let elsewhere = find(other.path(), "s3://other/p/");
    elsewhere.note("p/file", seen.confirmed(&file), Some(ETAG));
    elsewhere.save();
    fs::copy(&tables(other.path())[0], table).unwrap();
    assert!(!put() && put());
    fs::remove_file(table).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, table, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    assert!(!put() && !put(), "a pipe is neither read nor replaced");
    fs::remove_file(table).unwrap();
    fs::create_dir(table).unwrap();
    assert!(!put() && !put());
}

#[test]
fn two_runs_at_once_keep_what_both_noted() {
    let (directory, path) = noted();
    let (one, other) = (find(directory.path(), "s3://bucket/p/"), find(directory.path(), "s3://bucket/p/"));
    let (file, seen) = seen(&path);
    for (run, key) in [(&one, "p/one"), (&other, "p/other")] {
        run.note(key, seen.confirmed(&file), Some(ETAG));
        run.save();
    }
    let later = find(directory.path(), "s3://bucket/p/");
    for key in ["p/file", "p/one", "p/other"] {
        assert!(later.has(key, &seen, ETAG), "{key}");
    }
}

#[test]
fn a_run_that_finds_all_unchanged_writes_only_once_a_week() {
    let (directory, path) = noted();
    let [table] = &tables(directory.path())[..] else { panic!("one file") };
    let inode = || fs::metadata(table).unwrap().ino();
    let before = inode();
    let (_, seen) = seen(&path);
    let mut run = find(directory.path(), "s3://bucket/p/");
    assert!(run.has("p/file", &seen, ETAG));
    run.save();
    assert_eq!(inode(), before);
    run.today += USED_DAYS;
    assert!(run.has("p/file", &seen, ETAG));
    run.save();
    assert_ne!(inode(), before);
    let later = find(directory.path(), "s3://bucket/p/");
    assert_eq!(later.known.of("p/file").unwrap().day(), run.today);
}

#[test]
fn keys_with_a_date_share_a_table() {
    let plan = |prefix: Option<&str>| Plan { prefix: prefix.map(str::to_owned), ..Plan::default() };
    let of = |address: &str, plan: &Plan| prefix(&Location::parse(address).unwrap(), plan).to_owned();
    assert_eq!(of("s3://bucket/dumps/2026-11-26.sql", &plan(None)), "dumps/");
    assert_eq!(of("s3://bucket/dumps/", &plan(None)), "dumps/");
    assert_eq!(of("s3://bucket/dump.sql", &plan(None)), "");
    assert_eq!(of("s3://bucket/tree", &plan(Some("tree/"))), "tree/");
    assert_eq!(of("s3://bucket", &plan(Some(""))), "");
}

#[test]
fn tables_that_nobody_uses_go() {
    let directory = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let make = |name: &str, days: u32, bytes: u64| {
        let file = File::create(directory.path().join(name)).unwrap();
        file.set_len(bytes).unwrap();
        file.set_modified(now - days * DAY).unwrap();
    };
    let left = || {
        let mut names: Vec<_> = tables(directory.path());
        names.sort();
        names.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    make("a.s3-unchanged", 1, 10);
    make("b.s3-unchanged", u32::from(DAYS_MAX) + 1, 10);
    make("c.s3-unchanged", 2, FILES_BYTES_MAX);
    make("other.s3-uploads", 400, 10);
    remove_old(directory.path(), now);
    assert_eq!(left(), ["a.s3-unchanged"]);
    assert!(directory.path().join("other.s3-uploads").exists(), "a file of somebody else");
    for number in 0..FILES_MAX {
        make(&format!("n{number:04}.s3-unchanged"), 0, 1);
    }
    remove_old(directory.path(), now);
    assert!(left().len() == FILES_MAX && left()[0] == "n0000.s3-unchanged", "the oldest one goes");
}

/// What somebody does to a file.
#[derive(Debug, Clone)]
enum Change {
    /// Writes into it, and restores the time of modification.
    Write(u8),
    /// The same, through another file that takes its name.
    Replace(u8),
    /// Restores an older time of modification, as `touch -d` does.
    Touch,
    /// Waits so long.
    Wait(u64),
    /// A run puts the file; meanwhile somebody may write into it.
    Put { meanwhile: Option<u8> },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0..3_u8).prop_map(Change::Write),
        1 => (0..3_u8).prop_map(Change::Replace),
        1 => Just(Change::Touch),
        2 => (0..40_u64).prop_map(Change::Wait),
        3 => prop::option::weighted(0.3, 0..3_u8).prop_map(|meanwhile| Change::Put { meanwhile }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// All contents have the same size and all times of modification are the same: only the time of change can tell.
    #[test]
    fn a_file_that_was_changed_in_any_way_is_not_taken_for_unchanged(
        changes in prop::collection::vec(change(), 1..30)
    ) {
        let directory = directory();
        let (path, other) = (directory.path().join("file"), directory.path().join("other"));
        let mtime = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let make = |path: &Path, byte: u8| {
            let mut file = File::create(path).unwrap();
            file.write_all(&[byte; 100]).unwrap();
            file.set_modified(mtime).unwrap();
        };
        make(&path, 0);
        let mut unchanged = find(&directory.path().join("state"), "s3://bucket/p/");
        // What the store has.
        let mut object: Option<String> = None;
        for change in changes {
            let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
            match change {
                Change::Write(byte) => {
                    file.write_all_at(&[byte; 100], 0).unwrap();
                    file.set_modified(mtime).unwrap();
                }
                Change::Replace(byte) => {
                    make(&other, byte);
                    fs::rename(&other, &path).unwrap();
                }
                Change::Touch => file.set_modified(mtime).unwrap(),
                Change::Wait(millis) => sleep(Duration::from_millis(millis)),
                Change::Put { meanwhile } => {
                    let seen = Seen::now(&file.metadata().unwrap());
                    let content = fs::read(&path).unwrap();
                    if let Some(etag) = &object
                        && unchanged.has("p/file", &seen, etag)
                    {
                        prop_assert_eq!(etag, &format!("{content:?}"), "it was changed");
                    }
                    if let Some(byte) = meanwhile {
                        file.write_all_at(&[byte; 100], 0).unwrap();
                        file.set_modified(mtime).unwrap();
                    }
                    let etag = format!("{content:?}");
                    unchanged.note("p/file", seen.confirmed(&file), Some(&etag));
                    unchanged.save();
                    object = Some(etag);
                    unchanged = find(&directory.path().join("state"), "s3://bucket/p/");
                }
            }
        }
    }
}
