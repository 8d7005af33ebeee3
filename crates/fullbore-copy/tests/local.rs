//! Copies within one machine, by way of the interface that the program uses.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod pair;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fullbore_copy::error::CopyError;
use fullbore_copy::local::LocalCopy;
use fullbore_copy::options::Options;
use fullbore_copy::receiver::Destination;
use fullbore_copy::sender::Source;
use fullbore_copy::session::{Event, Progress, Tell};
use fullbore_copy::wire::{Account, Problem, ProblemKind};
use fullbore_engine::stage::Ledger;
use tempfile::TempDir;

/// Far longer than any of these copies takes.
const LONG: Duration = Duration::from_secs(60);

/// An empty destination, beside which sources can be made.
fn places() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("dst");
    fs::create_dir(&target).unwrap();
    (directory, target)
}

fn write(path: &Path, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Runs it, with somebody who does something meanwhile. One that does not end is broken off.
fn run(
    copy: LocalCopy,
    sources: &[PathBuf],
    target: &Path,
    options: &Options,
    tell: &dyn Tell,
    meanwhile: impl FnOnce(),
) -> Result<Account, Arc<CopyError>> {
    let sources = sources.iter().map(|path| Source::open(path).unwrap()).collect();
    let destination = Destination::at(target);
    let (ledger, progress, cancel) = (Ledger::off(), Progress::default(), copy.cancel.clone());
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy.run((sources, None), &destination, options, &ledger, &progress, tell));
        meanwhile();
        let until = Instant::now() + LONG;
        while !copying.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = copying.is_finished();
        cancel.cancel(CopyError::Interrupted);
        let result = copying.join().unwrap();
        assert!(ended, "the copy does not come to its end");
        result
    })
}

/// Copies to the end; gives what was wrong.
fn copy(sources: &[PathBuf], target: &Path, options: &Options) -> Vec<Problem> {
    let problems = Mutex::new(Vec::new());
    let tell = |event: Event| {
        if let Event::Problem(problem) = event {
            problems.lock().unwrap().push(problem);
        }
    };
    run(LocalCopy::default(), sources, target, options, &tell, || ()).unwrap();
    problems.into_inner().unwrap()
}

#[test]
fn the_first_of_two_sources_with_the_same_path_wins() {
    let removing = Options { remove_source_files: true, ..pair::options() };
    for length in [5, 3 << 20] {
        let (directory, target) = places();
        let [one, two] = ["src1", "src2"].map(|name| directory.path().join(name));
        for number in 0..50 {
            write(&one.join(format!("dir/{number}")), vec![1; length]);
            write(&two.join(format!("dir/{number}")), vec![2; length]);
            if length > 5 {
                break;
            }
        }
        write(&two.join("dir/own"), "own");
        let problems = copy(&[one.join(""), two.join("")], &target, &removing);
        assert_eq!(problems, []);
        assert!(fs::read(target.join("dir/0")).unwrap() == vec![1; length], "{length}");
        assert_eq!(fs::read(target.join("dir/own")).unwrap(), b"own");
        let left = |path: &Path| fs::read_dir(path.join("dir")).unwrap().count();
        let doubles = fs::read_dir(target.join("dir")).unwrap().count() - 1;
        assert_eq!((left(&one), left(&two)), (0, doubles), "{length}");
    }
    // Files by their names.
    let (directory, target) = places();
    let [one, two] = ["p/file", "q/file"].map(|name| directory.path().join(name));
    write(&one, "one");
    write(&two, "two");
    assert_eq!(copy(&[one, two], &target, &pair::options()), []);
    assert_eq!(fs::read(target.join("file")).unwrap(), b"one");
}

#[test]
fn no_link_is_made_to_the_old_file_of_a_name_that_could_not_be_written() {
    let (directory, target) = places();
    let source = directory.path().join("src");
    write(&source.join("first"), "new content");
    fs::hard_link(source.join("first"), source.join("second")).unwrap();
    write(&target.join("first"), "old");
    // In the way of the new file.
    fs::create_dir(target.join(".first.fullbore-part")).unwrap();
    let removing = Options { remove_source_files: true, ..pair::options() };
    let kinds: Vec<ProblemKind> =
        copy(&[source.join("")], &target, &removing).into_iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [ProblemKind::Unwritable; 2]);
    assert!(!target.join("second").exists());
    assert!(source.join("first").exists() && source.join("second").exists());
}

#[test]
fn many_links_that_several_threads_make_are_those_of_the_source() {
    let (directory, target) = places();
    let source = directory.path().join("src");
    let name = |file: u32, link: u32| format!("{}/{file}-{link}", link % 7);
    for file in 0..20 {
        write(&source.join(name(file, 0)), file.to_string());
        for link in 1..80 {
            let path = source.join(name(file, link));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::hard_link(source.join(name(file, 0)), path).unwrap();
        }
    }
    assert_eq!(copy(&[source.join("")], &target, &pair::options()), []);
    let inode = |path: &str| fs::metadata(target.join(path)).unwrap().ino();
    for file in 0..20 {
        assert_eq!(fs::read_to_string(target.join(name(file, 79))).unwrap(), file.to_string());
        assert!((1..80).all(|link| inode(&name(file, link)) == inode(&name(file, 0))), "{file}");
    }
}

#[test]
fn a_thread_that_panics_ends_the_copy() {
    let (directory, target) = places();
    let source = directory.path().join("src");
    write(&source.join("file"), "content");
    write(&source.join(".a.fullbore-part"), "");
    let tell = |event: Event| assert!(!matches!(event, Event::Problem(_)), "on purpose");
    let result = run(LocalCopy::default(), &[source.join("")], &target, &pair::options(), &tell, || ());
    assert!(matches!(*result.unwrap_err(), CopyError::System { .. }));
}

#[test]
fn whoever_waits_for_a_limit_hears_that_it_is_lifted() {
    let (directory, target) = places();
    let source = directory.path().join("src");
    write(&source.join("file"), vec![1; 1 << 20]);
    let copy = LocalCopy::default();
    let limit = copy.limit.clone();
    limit.set(1000);
    let lift = || {
        std::thread::sleep(Duration::from_millis(500));
        limit.set(0);
    };
    run(copy, &[source.join("")], &target, &pair::options(), &|_: Event| {}, lift).unwrap();
}

#[test]
fn what_has_come_gets_its_names_while_the_rest_is_on_its_way() {
    let (directory, target) = places();
    let source = directory.path().join("src");
    for number in 0..40_u8 {
        write(&source.join(number.to_string()), vec![number; 1 << 20]);
    }
    // Neither time nor bytes fill a group here; that there is enough of it has to do.
    let options = Options { group_time_ms: 3_600_000, ..pair::options() };
    let until = Instant::now() + LONG;
    let mut come = 0;
    let is_any_named = || {
        let mut names = fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name());
        names.any(|name| !name.as_encoded_bytes().starts_with(b"."))
    };
    let all_came = pair::Pair::new(&source, &target, &options).run(|message| {
        if !message.is_data() || come < 24 << 20 {
            come += message.content_bytes();
            return pair::Step::Pass;
        }
        match (is_any_named(), Instant::now() < until) {
            (true, _) => pair::Step::Pass,
            (false, true) => pair::Step::Later,
            (false, false) => pair::Step::Cut,
        }
    });
    assert!(all_came, "nothing has a name while 16 MiB wait for more");
    pair::equal(&source, &target);
}
