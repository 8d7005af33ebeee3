//! Workers that can do nothing: the others do it, and nothing is sent twice.

use super::misbehaving::{Fault, Request, Store as Misbehaving};
use super::*;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fullbore_fleet::message::{Fault as Failure, Report as Told, Task};
use fullbore_fleet::names::Class;

/// Each of them is alone in its task.
const BYTES: usize = 9_000_000;

/// A directory with files of these names.
fn share(home: &Path, names: &[&str]) -> PathBuf {
    let share = home.join("share");
    fs::create_dir(&share).unwrap();
    names.iter().for_each(|name| fs::write(share.join(name), vec![name.as_bytes()[0]; BYTES]).unwrap());
    share
}

fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Takes all tasks once, and tells of those that have another path than this one that they have failed.
async fn fail_all_but(queue: &MemoryQueue, kept: &str, files: usize) {
    let name = WorkerId::parse("broken").unwrap();
    let mut seen = 0;
    while seen < files {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let Some(run) = queue.list(RUN_KEYS).await.unwrap_or_default().first().map(|entry| Run::parse(&entry.value))
        else {
            continue;
        };
        let run = run.unwrap().id;
        for held in queue.pull(&run, Class::Large, 8, Duration::ZERO).await.unwrap_or_default() {
            seen += 1;
            let path = Task::parse(&held.message).unwrap().items[0].path.clone();
            let is_kept = path == kept;
            if !is_kept {
                let failure = Failure::new(name.clone(), None, path, "no such file", false);
                queue.report(&run, &name, &Told::Fault(failure)).await.unwrap();
            }
            // Not before all are seen.
            queue.give_back(&held.delivery, Duration::from_secs(2)).await.unwrap();
        }
    }
}

#[test]
fn files_that_one_worker_failed_and_another_stored_are_not_sent_again() {
    let (home, queue) = (home(), queue());
    let names = ["a", "b", "c", "d"];
    let directory = share(home.path(), &names);
    let puts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&puts);
    let store = Misbehaving::start(move |request: &Request| {
        if request.is_put() {
            seen.lock().unwrap().push(request.path.clone());
        }
        // As long as this one is on its way, the planner leaves the others to workers.
        match request.is_put() && request.path.ends_with("/a") {
            true => Fault::Delay(Duration::from_secs(8)),
            false => Fault::None,
        }
    });
    let settings = settings_at(&store.url, &home.path().join("journals"), &directory, &[]);
    let planner = {
        let queue = queue.connect();
        std::thread::spawn(move || plan(&settings, Some(&queue), false))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(fail_all_but(&queue.connect(), "a", names.len()));
    let workers = Workers::of([(queue.connect(), directory.as_path())].into_iter(), &store.url, &directory);
    let (result, heard) = planner.join().unwrap();
    result.unwrap();
    assert_eq!(workers.end()[0].files, 4);
    assert_eq!(store.keys(), names.map(|name| format!("p/{name}")));
    let mut puts = puts.lock().unwrap().clone();
    puts.sort();
    assert_eq!(puts, names.map(|name| format!("/bucket/p/{name}")), "{:?}", heard.warnings);
    assert_eq!((heard.stored, heard.present), (1, 3), "{:?}", heard.warnings);
}

/// Serves a run of one file by a worker; gives its end, and how many tasks are left.
fn served(url: &str) -> (Result<Served, CommandError>, u64) {
    let (home, queue) = (home(), queue());
    let directory = share(home.path(), &["a"]);
    let run = conditions::run(&directory);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        queue.open(&run.id).await.unwrap();
        let item = conditions::item(&directory, "a");
        let tasks = fullbore_fleet::tasks::pack_of(fullbore_fleet::message::Kind::Put, &run.id, 1, vec![item]);
        queue.publish(&tasks).await.unwrap();
        let (_never, over) = watch::channel(false);
        let settings = worker_settings(url, &directory, &directory);
        let end = serve(queue.connect(), &run, WorkerId::parse("w").unwrap(), &settings, over).await;
        let counts = queue.counts(&run.id).await.unwrap();
        (end, counts.waiting + counts.held)
    })
}

#[test]
fn a_worker_that_cannot_reach_the_store_takes_no_task() {
    let (end, left) = served(&format!("http://127.0.0.1:{}", fullbore_testkit::ports::free()));
    assert_eq!((end.unwrap_err().kind, left), (ErrorKind::Network, 1));
}

#[test]
fn a_worker_whose_credentials_are_refused_ends_so_that_it_can_begin_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let store = Misbehaving::start(move |request| match request.is_put() {
        true => {
            counted.fetch_add(1, Ordering::Relaxed);
            Fault::Answer(403, "", "<Error><Code>InvalidAccessKeyId</Code></Error>")
        }
        false => Fault::None,
    });
    let (end, left) = served(&store.url);
    let end = end.unwrap();
    assert_eq!((end.is_refused, end.files, left), (true, 0, 1));
    assert!(asked.load(Ordering::Relaxed) > 0);
}
