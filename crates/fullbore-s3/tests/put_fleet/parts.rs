//! Large files that several machines put in parts: one upload, begun and completed by the planner.

use super::misbehaving::{Fault, Request, Store as Misbehaving};
use super::nats_server::Server as Nats;
use super::*;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use fullbore_fleet::book::{Book, Step};
use fullbore_fleet::names::{Class, RunId};
use fullbore_fleet::nats::NatsQueue;
use fullbore_fleet::settings::{NatsSettings, Role};
use fullbore_testkit::digest::Digest;

/// Files from this size on are put in parts by several machines here.
const SPLIT: u64 = 16 << 20;

/// Bytes of a part.
const PART: usize = 8 << 20;

/// Eight parts, the last of them short.
const BYTES: usize = 7 * PART + 5;

/// Nothing here may take longer.
const SLOW: Duration = Duration::from_secs(240);

/// A directory with one file of these many bytes, which differ from part to part.
struct Large {
    home: tempfile::TempDir,
    content: Vec<u8>,
}

impl Large {
    fn new(bytes: usize) -> Large {
        let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut content = Vec::with_capacity(bytes);
        while content.len() < bytes {
            let at = content.len();
            let until = (at + 1000).min((at / PART + 1) * PART).min(bytes);
            content.resize(until, (at / 1000 % 251 + at / PART) as u8);
        }
        fs::create_dir(home.path().join("share")).unwrap();
        fs::write(home.path().join("share/film"), &content).unwrap();
        Large { home, content }
    }

    fn directory(&self) -> PathBuf {
        self.home.path().join("share")
    }

    fn file(&self) -> PathBuf {
        self.directory().join("film")
    }

    fn journals(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Another file of the same size and time of modification, beside the directory.
    fn other(&self) -> (PathBuf, Vec<u8>) {
        let path = self.home.path().join("other");
        let content: Vec<u8> = self.content.iter().map(|byte| !byte).collect();
        fs::write(&path, &content).unwrap();
        let modified = fs::metadata(self.file()).unwrap().modified().unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        (path, content)
    }

    fn settings(&self, store: &Misbehaving) -> PutSettings {
        settings_at(&store.url, &self.journals("journals"), &self.directory(), &[])
    }

    #[track_caller]
    fn is_stored(&self, store: &Misbehaving) {
        assert_eq!(store.keys(), ["p/film"]);
        assert!(store.object("p/film").unwrap().content == self.content, "another content");
        assert_eq!(store.open_uploads(), 0);
    }
}

/// The number of a part that a request sends.
fn part_of(request: &Request) -> Option<u32> {
    let number = request.query.split('&').find_map(|pair| pair.strip_prefix("partNumber="))?;
    request.is_put().then(|| number.parse().unwrap())
}

/// Numbers of the parts that were sent since the last time, in order.
fn parts_sent(store: &Misbehaving) -> Vec<u32> {
    let mut sent: Vec<u32> = store.requests().iter().filter_map(part_of).collect();
    sent.sort_unstable();
    sent
}

/// Waits until something is so.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SLOW, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Tasks of the only run that are not done, once there are some.
fn tasks_of(queue: &MemoryQueue) -> Option<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let run = Run::parse(&queue.list(RUN_KEYS).await.unwrap().first()?.value).unwrap();
        let counts = queue.counts(&run.id).await.ok()?;
        Some(counts.waiting + counts.held)
    })
}

#[test]
fn three_workers_put_one_file_together() {
    let (large, queue) = (Large::new(BYTES), queue());
    // A new worker holds two tasks, so that five parts at once are of three workers.
    let store = Misbehaving::start(|request| match part_of(request) {
        Some(_) => Fault::Together(5),
        None => Fault::None,
    });
    store.has_one_etag();
    let directory = large.directory();
    let each = (0..3).map(|_| (queue.connect(), directory.as_path()));
    let workers = Workers::of(each, &store.url, &directory);
    let (result, heard) = plan_in_parts(&large.settings(&store), Some(queue.connect()), false, SPLIT);
    result.unwrap();
    let served = workers.end();
    large.is_stored(&store);
    assert!(served.iter().all(|served| served.bytes >= PART as u64 || served.bytes == 5), "{served:?}");
    let (files, bytes) = served.iter().fold((0, 0), |sum, one| (sum.0 + one.files, sum.1 + one.bytes));
    assert_eq!((files, bytes), (1, BYTES as u64), "{served:?}");
    assert_eq!((store.uploads_begun(), parts_sent(&store)), (1, (1..=8).collect()));
    // As of a file that one machine puts in parts.
    let object = store.object("p/film").unwrap();
    assert!(object.parts.iter().eq([[PART].repeat(7), vec![5]].concat().iter()), "{:?}", object.parts);
    assert_eq!((heard.stored, &heard.checksums), (1, &vec![object.checksum]));
    assert!(heard.warnings.is_empty(), "{:?}", heard.warnings);
    // The next run finds it, and sends nothing.
    let (result, heard) = plan_in_parts(&large.settings(&store), Some(queue.connect()), true, SPLIT);
    result.unwrap();
    assert_eq!((heard.stored, heard.present, parts_sent(&store)), (0, 1, vec![]));
}

#[test]
fn an_object_in_parts_of_several_machines_is_that_of_one_machine() {
    let (large, queue) = (Large::new(BYTES), queue());
    let (together, alone) = (Misbehaving::start(|_| Fault::None), Misbehaving::start(|_| Fault::None));
    for store in [&together, &alone] {
        store.has_only_md5();
    }
    plan_in_parts(&large.settings(&together), Some(queue), true, SPLIT).0.unwrap();
    plan_in_parts::<MemoryQueue>(&large.settings(&alone), None, true, SPLIT).0.unwrap();
    let [together, alone] = [&together, &alone].map(|store| store.object("p/film").unwrap());
    assert!(together.content == large.content);
    assert_eq!((together.etag, together.parts), (alone.etag, alone.parts));
}

#[test]
fn the_parts_of_a_worker_that_dies_go_to_others() {
    let large = Large::new(BYTES);
    let queue = MemoryQueue::new(78);
    // The clock of the queue jumps when the worker is dead.
    let (clock, skipped, begun) = (queue.clone(), Arc::new(AtomicU64::new(0)), Instant::now());
    let jump = Arc::clone(&skipped);
    thread::spawn(move || {
        while begun.elapsed() < SLOW {
            clock.advance_to(begun.elapsed() + Duration::from_secs(skipped.load(Ordering::Relaxed)));
            thread::sleep(Duration::from_millis(50));
        }
    });
    // All parts from the third one on are in hand at the store for ever.
    let store = Misbehaving::start(move |request| match part_of(request) {
        Some(number) if number >= 3 => Fault::Stall(SLOW),
        _ => Fault::None,
    });
    let (die, told) = mpsc::channel::<()>();
    let (url, directory) = (store.url.clone(), large.directory());
    let dying = {
        let (queue, settings) = (queue.connect(), worker_settings(&url, &directory, &directory));
        let (never, over) = watch::channel(false);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.spawn(async move { work(queue, WorkerId::parse("dying").unwrap(), &settings, over).await });
            told.recv_timeout(SLOW).unwrap();
            runtime.shutdown_background();
            drop(never);
        })
    };
    let planner = {
        let (settings, queue) = (large.settings(&store), queue.connect());
        thread::spawn(move || plan_in_parts(&settings, Some(queue), false, SPLIT))
    };
    until("the first two parts are stored", || tasks_of(&queue) == Some(6));
    die.send(()).unwrap();
    dying.join().unwrap();
    store.script(|_| Fault::None);
    // At once, and then by the clock: a task that the next worker has must not lapse.
    jump.store(31, Ordering::Relaxed);
    queue.advance_to(begun.elapsed() + Duration::from_secs(31));
    let workers = Workers::of([(queue.connect(), directory.as_path())].into_iter(), &url, &directory);
    let (result, heard) = planner.join().unwrap();
    result.unwrap();
    let served = workers.end();
    large.is_stored(&store);
    assert_eq!((heard.stored, store.uploads_begun()), (1, 1));
    assert_eq!(served[0].bytes, (BYTES - 2 * PART) as u64, "{served:?}");
}

#[test]
fn a_file_that_changes_while_its_parts_are_sent_makes_no_object() {
    for is_late in [false, true] {
        let (large, queue) = (Large::new(BYTES), queue());
        let file = large.file();
        let mut listings = 0;
        // While the third part is on its way, or when all parts are there.
        let store = Misbehaving::start(move |request| {
            // The first listing is at the beginning.
            let is_listing = request.method == "GET" && request.query.contains("uploadId");
            listings += u32::from(is_listing);
            if if is_late { is_listing && listings > 1 } else { part_of(request) == Some(3) } {
                File::options().write(true).open(&file).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
            }
            Fault::None
        });
        let directory = large.directory();
        let workers = Workers::of([(queue.connect(), directory.as_path())].into_iter(), &store.url, &directory);
        let (result, heard) = plan_in_parts(&large.settings(&store), Some(queue.connect()), false, SPLIT);
        let error = result.unwrap_err().to_string();
        workers.end();
        assert!(error.contains("changed while it was read"), "{is_late}: {error}");
        assert_eq!((store.keys(), heard.stored), (vec![], 0), "{is_late}");
        assert_eq!((store.uploads_begun(), store.open_uploads()), (1, 0), "{is_late}");
    }
}

#[test]
fn a_file_replaced_at_the_same_mtime_makes_no_mixed_object() {
    let (mut large, queue) = (Large::new(BYTES), queue());
    let (other, content) = large.other();
    let (file, replacement) = (large.file(), other.clone());
    let store = Misbehaving::start(move |request| {
        if part_of(request) == Some(3) && replacement.exists() {
            fs::rename(&replacement, &file).unwrap();
        }
        Fault::None
    });
    let directory = large.directory();
    let workers = Workers::of([(queue.connect(), directory.as_path())].into_iter(), &store.url, &directory);
    let (result, heard) = plan_in_parts(&large.settings(&store), Some(queue.connect()), false, SPLIT);
    let error = result.unwrap_err().to_string();
    workers.end();
    assert!(error.contains("changed while it was read"), "{error}");
    assert_eq!((store.keys(), heard.stored, store.open_uploads()), (vec![], 0, 0));
    assert!(!other.exists());
    // The next run puts what is there now.
    plan_in_parts(&large.settings(&store), Some(super::queue()), true, SPLIT).0.unwrap();
    large.content = content;
    large.is_stored(&store);
}

#[test]
fn parts_are_listed_again_when_the_store_has_others_than_were_named() {
    const REFUSAL: &str = "<Error><Code>InvalidPart</Code></Error>";
    let (large, queue) = (Large::new(BYTES), queue());
    let mut refusals = 2;
    let is_end = |request: &Request| request.method == "POST" && request.query.contains("uploadId");
    let store = Misbehaving::start(move |request| match is_end(request) && refusals > 0 {
        true => {
            refusals -= 1;
            Fault::Answer(400, "", REFUSAL)
        }
        false => Fault::None,
    });
    let (result, heard) = plan_in_parts(&large.settings(&store), Some(queue), true, SPLIT);
    result.unwrap();
    large.is_stored(&store);
    assert_eq!((heard.stored, store.uploads_begun()), (1, 1), "{:?}", heard.warnings);
    let requests = store.requests();
    let listings: Vec<&Request> =
        requests.iter().filter(|request| request.method == "GET" && request.query.contains("uploadId")).collect();
    assert!(listings.iter().all(|request| request.query.contains("max-parts=1000")), "{listings:?}");
    assert_eq!(requests.iter().filter(|request| is_end(request)).count(), 3);
}

#[test]
fn an_object_of_somebody_else_that_has_the_same_size_is_compared() {
    for is_same in [false, true] {
        let (large, queue) = (Large::new(BYTES), queue());
        let is_begun = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&is_begun);
        let store = Misbehaving::start(move |request| match part_of(request) {
            // There is time for somebody else.
            Some(8) if !begun.swap(true, Ordering::Relaxed) => Fault::Delay(Duration::from_secs(2)),
            _ => Fault::None,
        });
        store.has_one_etag();
        let (settings, directory) = (large.settings(&store), large.directory());
        let workers = Workers::of([(queue.connect(), directory.as_path())].into_iter(), &store.url, &directory);
        let planner = thread::spawn(move || plan_in_parts(&settings, Some(queue), false, SPLIT));
        until("the last part is on its way", || is_begun.load(Ordering::Relaxed));
        let theirs = if is_same { large.content.clone() } else { vec![1; BYTES] };
        store.put("p/film", &theirs);
        let (result, heard) = planner.join().unwrap();
        result.unwrap();
        workers.end();
        large.is_stored(&store);
        let (stored, present) = if is_same { (0, 1) } else { (1, 0) };
        assert_eq!((heard.stored, heard.present), (stored, present), "{:?}", heard.warnings);
        assert_eq!(store.uploads_begun(), 1 + stored);
    }
}

/// A planner that has stored three parts of its file and is stuck in the others, and whose journals look as after a kill.
fn killed(large: &Large) -> (Misbehaving, PathBuf) {
    let stuck = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&stuck);
    let store = Misbehaving::start(move |request| match part_of(request) {
        Some(4..) => {
            counted.fetch_add(1, Ordering::Relaxed);
            Fault::Stall(SLOW)
        }
        _ => Fault::None,
    });
    let (mut settings, queue) = (large.settings(&store), queue());
    // It waits for answers as long as the test goes on.
    settings.bucket.patience = SLOW;
    thread::spawn(move || plan_in_parts(&settings, Some(queue), true, SPLIT));
    // It has all parts under way at once: one that comes after the change of the script would be stored.
    until("five parts are stuck", || stuck.load(Ordering::Relaxed) == 5);
    let mut stored = BTreeSet::new();
    until("three parts are stored", || {
        stored.extend(parts_sent(&store));
        stored.len() == 3
    });
    let left = left(large);
    store.script(|_| Fault::None);
    (store, left)
}

/// A copy of the journals. It is no living run's: nobody holds its lock.
fn left(large: &Large) -> PathBuf {
    let left = large.journals("left");
    let status = Command::new("cp").arg("-r").arg(large.journals("journals")).arg(&left).status().unwrap();
    assert!(status.success());
    left
}

#[test]
fn a_planner_restarted_when_all_parts_are_there_ends_at_once() {
    let large = Large::new(BYTES);
    let is_asked = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_asked);
    let store = Misbehaving::start(move |request| {
        if request.method == "POST" && request.query.starts_with("uploadId") {
            asked.store(true, Ordering::Relaxed);
            return Fault::Stall(SLOW);
        }
        Fault::None
    });
    let (mut settings, first_queue) = (large.settings(&store), queue());
    settings.bucket.patience = SLOW;
    thread::spawn(move || plan_in_parts(&settings, Some(first_queue), true, SPLIT));
    until("the object is asked for", || is_asked.load(Ordering::Relaxed));
    let left = left(&large);
    store.script(|_| Fault::None);
    assert_eq!(parts_sent(&store), (1..=8).collect::<Vec<u32>>());
    let begun = Instant::now();
    let settings = settings_at(&store.url, &left, &large.directory(), &[]);
    let (result, heard) = plan_in_parts(&settings, Some(queue()), true, SPLIT);
    result.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    large.is_stored(&store);
    assert_eq!((heard.stored, store.uploads_begun(), parts_sent(&store)), (1, 1, vec![]));
}

#[test]
fn a_planner_that_is_started_again_goes_on_with_its_upload() {
    let large = Large::new(BYTES);
    let (store, left) = killed(&large);
    let settings = settings_at(&store.url, &left, &large.directory(), &[]);
    let (result, heard) = plan_in_parts(&settings, Some(queue()), true, SPLIT);
    result.unwrap();
    large.is_stored(&store);
    assert_eq!((heard.stored, store.uploads_begun()), (1, 1));
    assert_eq!(parts_sent(&store), (4..=8).collect::<Vec<u32>>());
    let journals = fs::read_dir(&left)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".s3-uploads"));
    assert_eq!(journals.count(), 0, "no journal is left");
}

#[test]
fn a_planner_gives_up_the_upload_of_a_file_that_has_changed() {
    for is_replaced in [false, true] {
        let mut large = Large::new(BYTES);
        let (store, left) = killed(&large);
        if is_replaced {
            let (other, content) = large.other();
            fs::rename(other, large.file()).unwrap();
            large.content = content;
        } else {
            let file = File::options().write(true).open(large.file()).unwrap();
            file.set_modified(std::time::SystemTime::now()).unwrap();
        }
        let first = store.upload_ids();
        let settings = settings_at(&store.url, &left, &large.directory(), &[]);
        let (result, heard) = plan_in_parts(&settings, Some(queue()), true, SPLIT);
        result.unwrap();
        large.is_stored(&store);
        assert_eq!((heard.stored, store.uploads_begun()), (1, 2), "{is_replaced}");
        let requests = store.requests().into_iter();
        let aborted: Vec<Request> = requests.filter(|request| request.method == "DELETE").collect();
        assert!(first.len() == 1 && !aborted.is_empty(), "{first:?} {aborted:?}");
    }
}

#[test]
fn a_plain_run_gives_up_the_upload_of_a_killed_planner() {
    let large = Large::new(BYTES);
    let (store, left) = killed(&large);
    let settings = settings_at(&store.url, &left, &large.directory(), &[]);
    // Without a queue, one machine puts all of it.
    let (result, _) = plan_in_parts::<MemoryQueue>(&settings, None, true, SPLIT);
    result.unwrap();
    large.is_stored(&store);
    assert_eq!(store.uploads_begun(), 2);
}

/// A store that refuses the second part of its first upload this many times, and a worker: the file is stored after so many
/// uploads.
#[track_caller]
fn is_stored_after_refusals(refusals: u32, uploads: usize) {
    const REFUSAL: &str = "<Error><Code>Unprocessable</Code><Message>not now</Message></Error>";
    let (large, queue) = (Large::new(BYTES), queue());
    let left = AtomicU32::new(refusals);
    let store = Misbehaving::start(move |request| {
        let is_refused = part_of(request) == Some(2) && request.query.contains("id%2F1");
        let refuse = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        match is_refused && refuse() {
            true => Fault::Answer(422, "", REFUSAL),
            false => Fault::None,
        }
    });
    let directory = large.directory();
    let workers = Workers::of([(queue.connect(), directory.as_path())].into_iter(), &store.url, &directory);
    let (result, heard) = plan_in_parts(&large.settings(&store), Some(queue.connect()), false, SPLIT);
    result.unwrap();
    workers.end();
    large.is_stored(&store);
    assert_eq!((heard.stored, store.uploads_begun()), (1, uploads), "{:?}", heard.warnings);
}

#[test]
fn a_part_that_the_store_refuses_once_is_sent_again() {
    is_stored_after_refusals(1, 1);
}

#[test]
#[ignore = "long"]
fn a_file_with_a_part_that_is_always_refused_is_put_by_the_planner() {
    is_stored_after_refusals(u32::MAX, 2);
}

#[test]
#[ignore = "long"]
fn a_file_that_a_slow_worker_sends_for_more_than_a_minute_is_sent_once() {
    let (large, queue) = (Large::new(7_000_000), queue());
    let store = Misbehaving::start(|_| Fault::None);
    let (over, told) = watch::channel(false);
    let slow = {
        let mut settings = worker_settings(&store.url, &large.directory(), &large.directory());
        settings.limit_rate_bytes_per_s = Some(80_000);
        let queue = queue.connect();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.block_on(work(queue, WorkerId::parse("slow").unwrap(), &settings, told))
        })
    };
    let planner = {
        let (settings, queue) = (large.settings(&store), queue.connect());
        thread::spawn(move || plan(&settings, Some(&queue), false))
    };
    until("the slow worker has it", || tasks_of(&queue) == Some(1));
    thread::sleep(Duration::from_secs(5));
    let directory = large.directory();
    let idle = Workers::of([(queue.connect(), directory.as_path())].into_iter(), &store.url, &directory);
    let (result, heard) = planner.join().unwrap();
    result.unwrap();
    over.send_replace(true);
    assert_eq!((heard.stored, idle.end()[0].files, slow.join().unwrap().files), (1, 0, 1));
    assert_eq!(store.requests().iter().filter(|request| request.is_put()).count(), 1);
    large.is_stored(&store);
}

#[test]
fn a_file_is_put_whole_where_the_store_does_not_list_parts() {
    const REFUSAL: &str = "<Error><Code>AccessDenied</Code></Error>";
    let (large, queue) = (Large::new(BYTES), queue());
    let store = Misbehaving::start(|request| match request.method == "GET" && request.query.contains("uploadId") {
        true => Fault::Answer(403, "", REFUSAL),
        false => Fault::None,
    });
    let directory = large.directory();
    let workers = Workers::of([(queue.connect(), directory.as_path())].into_iter(), &store.url, &directory);
    let (result, heard) = plan_in_parts(&large.settings(&store), Some(queue.connect()), false, SPLIT);
    result.unwrap();
    let served = workers.end();
    large.is_stored(&store);
    assert_eq!((served[0].files, served[0].bytes), (1, BYTES as u64), "the worker has put it: {:?}", heard.warnings);
}

/// F15
#[test]
fn a_worker_that_does_not_know_parts_leaves_them_to_others() {
    let (large, queue) = (Large::new(BYTES), queue());
    let store = Misbehaving::start(|_| Fault::None);
    let (over, told) = watch::channel(false);
    let given_back = Arc::new(AtomicU32::new(0));
    let old = {
        let (queue, given_back) = (queue.connect(), Arc::clone(&given_back));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(old_worker(queue, told, &given_back));
        })
    };
    let planner = {
        let (settings, queue) = (large.settings(&store), queue.connect());
        thread::spawn(move || plan_in_parts(&settings, Some(queue), false, SPLIT))
    };
    until("the old one has had all parts", || given_back.load(Ordering::Relaxed) >= 8);
    assert!(parts_sent(&store).is_empty());
    let directory = large.directory();
    let workers = Workers::of([(queue.connect(), directory.as_path())].into_iter(), &store.url, &directory);
    let (result, heard) = planner.join().unwrap();
    result.unwrap();
    workers.end();
    over.send_replace(true);
    old.join().unwrap();
    large.is_stored(&store);
    assert_eq!((heard.stored, store.uploads_begun()), (1, 1));
}

/// Takes all tasks, of which the kind is unknown to it, and some of them twice.
async fn old_worker(queue: MemoryQueue, over: watch::Receiver<bool>, given_back: &AtomicU32) {
    let mut book = Book::new(WorkerId::parse("old").unwrap(), SLOW);
    let begun = Instant::now();
    while !*over.borrow() {
        let entries = queue.list(RUN_KEYS).await.unwrap();
        let run: Option<RunId> = entries.first().map(|entry| Run::parse(&entry.value).unwrap().id);
        for held in match &run {
            Some(run) if given_back.load(Ordering::Relaxed) < 12 => {
                queue.pull(run, Class::Large, 4, Duration::ZERO).await.unwrap_or_default()
            }
            _ => Vec::new(),
        } {
            let mut held = held;
            let text = String::from_utf8(held.message.to_vec()).unwrap();
            assert!(text.contains("\"kind\":\"part\""), "{text}");
            held.message = text.replace("\"kind\":\"part\"", "\"kind\":\"later\"").into_bytes().into();
            let (begun_task, steps) = book.take(begun.elapsed(), held);
            assert_eq!(begun_task, None);
            for step in steps {
                if let Step::GiveBack(delivery, delay) = step {
                    queue.give_back(&delivery, delay).await.unwrap();
                    given_back.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[test]
fn three_workers_put_a_file_together_by_a_real_queue_into_a_real_store() {
    // Above the size from which the program does so.
    const BYTES: usize = 300_000_000;
    assert!(BYTES as u64 > SPLIT_BYTES_MIN);
    let (store, nats, large) = (Store::start(), Nats::start(""), Large::new(BYTES));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let connect = |role| {
        let settings = NatsSettings::new(&nats.url(), role);
        runtime.block_on(NatsQueue::connect(&settings)).unwrap()
    };
    let directory = large.directory();
    let each: Vec<(NatsQueue, &Path)> = (0..3).map(|_| (connect(Role::Worker), directory.as_path())).collect();
    let workers = Workers::of(each.into_iter(), &store.url, &directory);
    let settings = settings(&store, &directory, &[]);
    let (result, heard) = plan_in_parts(&settings, Some(connect(Role::Planner)), false, SPLIT_BYTES_MIN);
    result.unwrap();
    let served = workers.end();
    assert!(served.iter().all(|served| served.bytes > 0), "{served:?}");
    assert_eq!(served.iter().map(|served| served.bytes).sum::<u64>(), BYTES as u64, "{served:?}");
    let stored = fs::read(store.directory.path().join("data/bucket/p/film")).unwrap();
    assert!(Digest::of(&stored).0 == Digest::of(&large.content).0, "another content");
    assert_eq!((heard.stored, heard.checksums.len()), (1, 1));
    assert!(heard.checksums[0].ends_with("-36"), "{:?}", heard.checksums);
    assert!(heard.warnings.is_empty(), "{:?}", heard.warnings);
    // The next run compares it, and finds it.
    let (result, heard) = plan_in_parts(
        &PutSettings { compare_all: true, ..settings },
        Some(connect(Role::Planner)),
        false,
        SPLIT_BYTES_MIN,
    );
    result.unwrap();
    assert_eq!((heard.stored, heard.present), (0, 1));
}
