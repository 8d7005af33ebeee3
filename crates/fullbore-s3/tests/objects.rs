//! Objects as a mirror keeps them: large files land in parts that go up while they are written, and listings are made in
//! ranges.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "../../fullbore/tests/s3/store.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod misbehaving;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};

use common::bucket_at;
use fullbore_engine::digest::{Sha256, Sha256Hasher, Verified};
use fullbore_engine::files::{FileError, Root};
use fullbore_engine::stage::Ledger;
use fullbore_engine::target::{Committed, Name, Target, TargetError};
use fullbore_engine::window::Window;
use fullbore_s3::Uploader;
use fullbore_s3::objects::{Condition, HASH_FIELD, Objects};
use fullbore_s3::target::{Layout, StorePart, StoreTarget, WriteMode};
use misbehaving::{Fault, Request, Store};
use tokio::runtime::Runtime;
use tokio::sync::watch;

const PART_BYTES: usize = 8 << 20;

/// Two parts and a half.
const SIZE: usize = 20 << 20;

const PATH: &str = "pool/large.deb";

/// Longest time until something is seen.
const LIMIT: Duration = Duration::from_secs(60);

/// Files that all land in the store.
struct Plain {
    mode: WriteMode,
    told: Mutex<Vec<&'static str>>,
}

impl Layout for Plain {
    fn is_own(&self, _path: &str) -> bool {
        false
    }

    fn stored(&self, _path: &str) -> Option<Sha256> {
        None
    }

    fn fields(&self, _path: &str) -> Vec<(String, String)> {
        vec![("Cache-Control".to_owned(), "immutable".to_owned())]
    }

    fn step(&self, _name: &Name) -> u32 {
        0
    }

    fn is_link(&self, _name: &Name) -> bool {
        false
    }

    fn link(&self, _name: &Name) -> Result<(), FileError> {
        Ok(())
    }

    fn may_publish(&self) -> io::Result<()> {
        Ok(())
    }

    fn overtaken(&self) {
        self.told.lock().unwrap().push("overtaken");
    }

    fn write_mode(&self) -> WriteMode {
        self.mode
    }

    fn condition(&self, _path: &str) -> Condition {
        Condition::Absent
    }

    fn copy_of(&self, _sha256: Sha256) -> Option<String> {
        None
    }

    fn verified(&self, _path: &str, _sent: Weak<AtomicU64>) {
        self.told.lock().unwrap().push("verified");
    }

    fn was_there(&self, _path: &str) {
        self.told.lock().unwrap().push("was there");
    }

    fn changed(&self, _path: &str, _to: Option<(Sha256, u64, Option<String>)>) {
        self.told.lock().unwrap().push("changed");
    }
}

/// A target over a store.
struct Bench {
    store: Store,
    target: StoreTarget<Plain>,
    layout: Arc<Plain>,
    objects: Objects,
    /// Requests so far.
    seen: Mutex<Vec<Request>>,
    _stop: watch::Sender<bool>,
    runtime: Runtime,
    _directory: tempfile::TempDir,
}

impl Bench {
    fn new(mode: WriteMode, script: impl FnMut(&Request) -> Fault + Send + 'static) -> Bench {
        let store = Store::start(script);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (stop, stopped) = watch::channel(false);
        let objects = {
            let _inside = runtime.enter();
            Objects::open(&bucket_at(&store.url, "s3://bucket/p"), stopped, &Ledger::off()).unwrap()
        };
        let root = Arc::new(Root::open(directory.path()).unwrap());
        let uploader = Uploader::new(objects.client().clone(), Window::new(64 << 20, 512), directory.path());
        let layout = Arc::new(Plain { mode, told: Mutex::default() });
        let target = StoreTarget::new(objects.clone(), uploader, root, layout.clone(), runtime.handle().clone());
        Bench { store, target, layout, objects, seen: Mutex::default(), _stop: stop, runtime, _directory: directory }
    }

    fn begin(&self, content: &[u8]) -> StorePart {
        self.target.begin(PATH, content.len() as u64, Sha256::of(content)).unwrap()
    }

    /// Commits, and waits for what the store says.
    fn commit(&self, part: StorePart, content: &[u8]) -> Result<(), TargetError> {
        match self.target.commit(part, &proof(content), None)? {
            Committed::Now => Ok(()),
            Committed::Later(pending) => {
                let (sender, receiver) = std::sync::mpsc::channel();
                pending.then(move |result| sender.send(result).unwrap());
                receiver.recv_timeout(LIMIT).unwrap()
            }
        }
    }

    /// Numbers of parts that were sent.
    fn parts(&self) -> Vec<String> {
        let mut seen = self.seen.lock().unwrap();
        seen.extend(self.store.requests());
        let parts = seen.iter().filter(|request| request.is_put() && request.query.contains("partNumber"));
        let number =
            |query: &str| query.split(['&', '=']).skip_while(|word| *word != "partNumber").nth(1).unwrap().to_owned();
        let mut numbers: Vec<String> = parts.map(|request| number(&request.query)).collect();
        numbers.sort();
        numbers
    }

    fn object(&self) -> Option<Vec<u8>> {
        self.store.object(&format!("p/{PATH}")).map(|object| object.content)
    }

    fn told(&self) -> Vec<&'static str> {
        self.layout.told.lock().unwrap().clone()
    }
}

fn content(seed: u8) -> Vec<u8> {
    (0..SIZE).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 12) as u8).wrapping_add(seed)).collect()
}

fn proof(content: &[u8]) -> Verified {
    let mut hasher = Sha256Hasher::new();
    hasher.update(content);
    hasher.verify(content.len() as u64, Sha256::of(content)).unwrap()
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn parts_go_up_while_a_file_is_written_and_the_object_with_the_proof() {
    let bench = Bench::new(WriteMode::Create, |_| Fault::None);
    let content = content(1);
    let mut part = bench.begin(&content);
    // The second part first: an upload begins with the start of the file.
    let rest = &content[PART_BYTES..];
    bench.target.write_at(&mut part, PART_BYTES as u64, &rest[..rest.len() - 1]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(bench.store.requests().len(), 0);
    bench.target.write_at(&mut part, 0, &content[..PART_BYTES]).unwrap();
    until("two parts", || bench.parts() == ["1", "2"]);
    bench.target.write_at(&mut part, SIZE as u64 - 1, &content[SIZE - 1..]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((bench.parts().len(), bench.object(), bench.told().len()), (2, None, 0));
    bench.commit(part, &content).unwrap();
    assert!(bench.object().unwrap() == content);
    assert_eq!((bench.parts(), bench.store.uploads_begun()), (["1", "2", "3"].map(String::from).to_vec(), 1));
    assert_eq!(bench.told(), ["verified", "changed"]);
    let seen = bench.seen.lock().unwrap();
    let begin = seen.iter().find(|request| request.query.contains("uploads")).unwrap();
    assert_eq!(
        (begin.field("cache-control"), begin.field(HASH_FIELD)),
        ("immutable", &*Sha256::of(&content).to_string())
    );
}

#[test]
fn a_file_that_is_given_up_leaves_no_upload_and_no_object() {
    let bench = Bench::new(WriteMode::Create, |_| Fault::None);
    let content = content(2);
    let mut part = bench.begin(&content);
    bench.target.write_at(&mut part, 0, &content[..SIZE - 1]).unwrap();
    until("two parts", || bench.parts().len() == 2);
    bench.target.abandon(part).unwrap();
    until("the upload is given up", || bench.store.open_uploads() == 0);
    assert_eq!(bench.object(), None);
}

/// A file of many parts, of which the store takes none.
#[test]
fn a_file_that_is_given_up_is_sent_no_further() {
    let (gate, open) = mpsc::channel::<()>();
    let bench = Bench::new(WriteMode::Create, move |request| {
        // The beginning of the upload waits, and then goes on.
        if request.query.starts_with("uploads") {
            open.recv_timeout(LIMIT).unwrap();
        }
        Fault::None
    });
    let content: Vec<u8> = vec![7; 12 * PART_BYTES];
    let mut part = bench.begin(&content);
    bench.target.write_at(&mut part, 0, &content[..content.len() - 1]).unwrap();
    until("the upload is asked for", || bench.store.most_at_once.load(Ordering::SeqCst) > 0);
    bench.target.abandon(part).unwrap();
    gate.send(()).unwrap();
    until("the upload is given up", || bench.store.uploads_begun() == 1 && bench.store.open_uploads() == 0);
    assert!(bench.parts().len() <= 3, "those in hand: {:?}", bench.parts());
    assert_eq!(bench.object(), None);
}

#[test]
fn a_store_that_refused_while_a_file_came_gets_it_at_the_end() {
    let mut has_refused = false;
    let bench = Bench::new(WriteMode::CreateShared, move |request| {
        let is_first = request.query.contains("partNumber") && !std::mem::replace(&mut has_refused, true);
        match is_first {
            true => Fault::Answer(403, "", "<Error><Code>AccessDenied</Code></Error>"),
            false => Fault::None,
        }
    });
    let content = content(9);
    let mut part = bench.begin(&content);
    bench.target.write_at(&mut part, 0, &content).unwrap();
    bench.commit(part, &content).unwrap();
    assert!(bench.object().unwrap() == content);
    assert_eq!((bench.store.uploads_begun(), bench.told()), (2, vec!["verified", "verified", "changed"]));
}

#[test]
fn a_store_that_joins_parts_and_never_says_so_has_the_file() {
    let bench =
        Bench::new(WriteMode::Create, |request| match request.method == "POST" && request.query.contains("uploadId") {
            true => Fault::ResetAfter,
            false => Fault::None,
        });
    let content = content(10);
    let mut part = bench.begin(&content);
    bench.target.write_at(&mut part, 0, &content).unwrap();
    bench.commit(part, &content).unwrap();
    assert!(bench.object().unwrap() == content);
    assert_eq!((bench.store.uploads_begun(), bench.told()), (1, vec!["verified", "changed"]));
}

#[test]
fn bytes_that_replace_wrong_ones_go_up_anew() {
    let bench = Bench::new(WriteMode::Create, |_| Fault::None);
    let (wrong, right) = (content(3), content(4));
    let mut part = bench.begin(&right);
    bench.target.write_at(&mut part, 0, &wrong).unwrap();
    until("two parts", || bench.parts().len() == 2);
    bench.target.write_at(&mut part, 0, &right).unwrap();
    bench.commit(part, &right).unwrap();
    assert!(bench.object().unwrap() == right);
    until("the first upload is given up", || bench.store.open_uploads() == 0);
    assert_eq!(bench.store.uploads_begun(), 2);
}

#[test]
fn an_upload_that_the_store_has_lost_is_begun_anew() {
    let bench = Bench::new(WriteMode::Create, |_| Fault::None);
    let content = content(5);
    let mut part = bench.begin(&content);
    bench.target.write_at(&mut part, 0, &content[..SIZE - 1]).unwrap();
    until("two parts", || bench.parts().len() == 2);
    // As a rule for the life of unfinished uploads does.
    let has_failed = Mutex::new(false);
    bench.store.script(move |request| {
        let is_third = request.query.contains("partNumber=3");
        match is_third && !std::mem::replace(&mut *has_failed.lock().unwrap(), true) {
            true => Fault::Answer(404, "", "<Error><Code>NoSuchUpload</Code></Error>"),
            false => Fault::None,
        }
    });
    bench.target.write_at(&mut part, SIZE as u64 - 1, &content[SIZE - 1..]).unwrap();
    bench.commit(part, &content).unwrap();
    assert!(bench.object().unwrap() == content);
    assert_eq!(bench.store.uploads_begun(), 2);
}

#[test]
fn a_file_of_another_worker_is_not_sent_again() {
    let bench = Bench::new(WriteMode::CreateShared, |_| Fault::None);
    let content = content(6);
    bench.store.put(&format!("p/{PATH}"), &content);
    let mut part = bench.begin(&content);
    bench.target.write_at(&mut part, 0, &content).unwrap();
    bench.commit(part, &content).unwrap();
    assert_eq!((bench.parts().len(), bench.store.uploads_begun()), (0, 0));
    assert_eq!(bench.told(), ["verified", "was there"]);
}

#[test]
fn an_object_that_came_meanwhile_is_not_replaced() {
    let bench = Bench::new(WriteMode::Create, |_| Fault::None);
    let content = content(7);
    let mut part = bench.begin(&content);
    bench.target.write_at(&mut part, 0, &content).unwrap();
    until("two parts", || bench.parts().len() == 2);
    bench.store.put(&format!("p/{PATH}"), b"another");
    let error = bench.commit(part, &content).unwrap_err().to_string();
    assert!(error.contains("another run has changed it meanwhile"), "{error}");
    assert_eq!(bench.object().unwrap(), b"another");
    assert_eq!(bench.told(), ["verified", "overtaken"]);
    until("the upload is given up", || bench.store.open_uploads() == 0);
}

#[test]
fn a_store_that_refuses_a_part_refuses_the_file() {
    let denied = "<Error><Code>AccessDenied</Code><Message>no</Message></Error>";
    let script = move |request: &Request| match request.query.contains("partNumber") {
        true => Fault::Answer(403, "", denied),
        false => Fault::None,
    };
    let bench = Bench::new(WriteMode::Create, script);
    let content = content(8);
    let mut part = bench.begin(&content);
    bench.target.write_at(&mut part, 0, &content).unwrap();
    let error = bench.commit(part, &content).unwrap_err().to_string();
    assert!(error.contains("AccessDenied"), "{error}");
    assert_eq!((bench.object(), bench.store.open_uploads()), (None, 0));
}

/// Answers of a store with three objects: the one that was asked for a range, and the one that was asked for all.
#[test]
fn a_store_that_lists_in_another_order_is_asked_without_ranges() {
    const PAGE: &str = "<ListBucketResult><IsTruncated>false</IsTruncated>\
        <Contents><Key>p/c</Key><Size>3</Size><ETag>\"z\"</ETag></Contents>\
        <Contents><Key>p/a</Key><Size>1</Size><ETag>\"x\"</ETag></Contents>\
        <Contents><Key>p/b</Key><Size>2</Size><ETag>\"y\"</ETag></Contents></ListBucketResult>";
    let all =
        [("a", 1, "x"), ("b", 2, "y"), ("c", 3, "z")].map(|(path, size, tag)| (path.to_owned(), size, tag.to_owned()));
    let bench = Bench::new(WriteMode::Create, |_| Fault::Answer(200, "", PAGE));
    let listed = bench.runtime.block_on(bench.objects.list_in_ranges("", &["b".to_owned()])).unwrap();
    assert_eq!(listed, all);
    assert_eq!(bench.store.requests().len(), 3, "two ranges, and all");
}

#[test]
fn ranges_of_a_listing_have_each_object_once() {
    let bench = Bench::new(WriteMode::Create, |_| Fault::None);
    let paths = ["a", "b", "b/c", "c", "d"];
    paths.iter().for_each(|path| bench.store.put(&format!("p/{path}"), path.as_bytes()));
    bench.store.put("q", b"of somebody else");
    for parted in [&["b", "c"][..], &["a"], &["d"], &["0", "z"]] {
        let parted: Vec<String> = parted.iter().map(|path| (*path).to_owned()).collect();
        let listed = bench.runtime.block_on(bench.objects.list_in_ranges("", &parted)).unwrap();
        assert_eq!(listed.iter().map(|(path, ..)| path.as_str()).collect::<Vec<_>>(), paths, "{parted:?}");
    }
}

#[test]
fn a_listing_with_keys_outside_of_the_prefix_is_refused() {
    const PAGE: &str = "<ListBucketResult><IsTruncated>false</IsTruncated>\
        <Contents><Key>p/pool/a</Key><Size>1</Size></Contents>\
        <Contents><Key>p/other</Key><Size>1</Size></Contents></ListBucketResult>";
    let bench = Bench::new(WriteMode::Create, |_| Fault::Answer(200, "", PAGE));
    for parted in [&[][..], &["pool/b".to_owned()]] {
        let listed = bench.runtime.block_on(bench.objects.list_in_ranges("pool/", parted));
        let error = listed.unwrap_err().to_string();
        for part in ["\"p/pool/\"", "127.0.0.1", "\"p/other\"", "check the endpoint"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    assert_eq!(bench.runtime.block_on(bench.objects.list("")).unwrap().len(), 2);
}

#[test]
fn uploads_outside_of_the_prefix_are_not_aborted() {
    const PAGE: &str = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>\
        <Upload><Key>p/pool/a</Key><UploadId>ours</UploadId><Initiated>2020-01-01T00:00:00Z</Initiated></Upload>\
        <Upload><Key>q/pool/a</Key><UploadId>theirs</UploadId><Initiated>2020-01-01T00:00:00Z</Initiated></Upload>\
        </ListMultipartUploadsResult>";
    let bench = Bench::new(WriteMode::Create, |request| match request.method == "GET" {
        true => Fault::Answer(200, "", PAGE),
        false => Fault::Answer(204, "", ""),
    });
    let aborted = bench.runtime.block_on(bench.objects.abort_uploads("pool/", Duration::from_secs(60)));
    assert_eq!(aborted, Ok(1));
    let requests = bench.store.requests();
    let aborts: Vec<&str> =
        requests.iter().filter(|request| request.method == "DELETE").map(|request| request.query.as_str()).collect();
    assert_eq!(aborts, ["uploadId=ours"]);
}

/// Where a store begins a listing that is asked to begin behind a key.
#[derive(Debug, Clone, Copy)]
enum Begin {
    /// Behind it in its own order.
    InItsOrder,
    /// As versitygw: with keys that are greater by bytes, and with all that come when it was met.
    OnceMet,
    /// With the first key of all.
    AtTheStart,
}

/// A page of a store that lists these keys in their order.
fn page_of(keys: &[String], begin: Begin, request: &Request) -> Fault {
    const KEYS: usize = 7;
    let parameter = |name: &str| {
        let value = request.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        value.map(|value| value.replace("%2F", "/"))
    };
    let (place, behind) = match parameter("continuation-token") {
        Some(token) => {
            token.split_once('~').map(|(place, behind)| (place.parse().unwrap(), behind.to_owned())).unwrap()
        }
        None => (0, parameter("start-after").unwrap_or_default()),
    };
    let mut is_met = behind.is_empty();
    let follows = |key: &&String| match begin {
        Begin::InItsOrder => key.split('/').gt(behind.split('/')),
        Begin::OnceMet => {
            let is_listed = is_met || **key > behind;
            is_met |= **key == behind;
            is_listed
        }
        Begin::AtTheStart => true,
    };
    let listed: Vec<&String> = keys.iter().filter(follows).collect();
    let end = listed.len().min(place + KEYS);
    let mut body = format!("<ListBucketResult><IsTruncated>{}</IsTruncated>", end < listed.len());
    for key in &listed[place..end] {
        body.push_str(&format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>"));
    }
    let next = format!("<NextContinuationToken>{end}~{behind}</NextContinuationToken></ListBucketResult>");
    Fault::Answer(200, "", (body + &next).leak())
}

#[test]
fn ranges_of_a_store_in_directory_order_have_all_keys() {
    let mut keys: Vec<String> = ["films", "films-old"]
        .iter()
        .flat_map(|name| (0..30).map(move |place| format!("p/{name}/{place:02}")))
        .collect();
    keys.sort_unstable_by(|one, other| one.split('/').cmp(other.split('/')));
    assert!(keys.last().unwrap().starts_with("p/films-old/"));
    let mut expected: Vec<&str> = keys.iter().map(|key| &key[2..]).collect();
    expected.sort_unstable();
    let parted = [
        &["films-old/10", "films-old/20", "films/10", "films/20"][..],
        &["films-old/10", "films-old/29"],
        &["films-old/29"],
        &["films/10"],
        &["films/10", "films/20"],
        // Of files that are not there yet.
        &["films-old/40", "films-old/50"],
        &["films-old/10", "films/40"],
    ];
    for begin in [Begin::InItsOrder, Begin::OnceMet, Begin::AtTheStart] {
        let listed = keys.clone();
        let bench = Bench::new(WriteMode::Create, move |request| page_of(&listed, begin, request));
        for parted in parted {
            let parted: Vec<String> = parted.iter().map(|path| (*path).to_owned()).collect();
            let found = bench.runtime.block_on(bench.objects.list_in_ranges("", &parted)).unwrap();
            let found: Vec<&str> = found.iter().map(|(path, ..)| path.as_str()).collect();
            assert!(found == expected, "{begin:?} {parted:?}: {} of {}", found.len(), expected.len());
        }
    }
}

/// F13: the status is sent before the copy is made.
#[test]
fn an_error_in_the_body_of_a_copy_is_no_success() {
    let copy = |bodies: &'static [&'static str]| {
        let mut bodies = bodies.iter();
        let script = move |_: &Request| Fault::Answer(200, "", bodies.next().copied().unwrap_or_default());
        let bench = Bench::new(WriteMode::Create, script);
        let copied = bench.runtime.block_on(bench.objects.copy("a", "b", Vec::new(), None));
        (copied.map_err(|error| error.to_string()), bench.store.requests().len())
    };
    let (refused, requests) = copy(&["<Error><Code>AccessDenied</Code><Message>no</Message></Error>"]);
    assert!(refused.as_ref().is_err_and(|error| error.contains("AccessDenied")), "{refused:?}");
    assert_eq!(requests, 1);
    let (repeated, requests) = copy(&[
        "<Error><Code>InternalError</Code><Message>again</Message></Error>",
        "<CopyObjectResult><ETag>\"x\"</ETag></CopyObjectResult>",
    ]);
    assert_eq!((repeated, requests), (Ok(()), 2));
}
