//! What stores do wrong, and what becomes of it: a store in this process that is told what to do.

use std::collections::HashMap;
use std::fs::{self, File};
use std::future::pending;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fullbore_engine::digest::Sha256;
use fullbore_engine::window::Window;
use fullbore_s3::objects::Condition;
use fullbore_s3::{Addressing, Bucket, CredentialCache, Growth, Options, UploadError, Uploader};
use tokio::sync::watch;

use super::servers::{Client, Output, content, finish, interrupt};
use super::store::{Fault, Request, SLOW, Store, checksum};

const INTERNAL: &str = "<Error><Code>InternalError</Code><Message>We made a mistake.</Message></Error>";

pub fn well() -> impl FnMut(&Request) -> Fault + Send + 'static {
    |_| Fault::None
}

/// A store by this script, and a client with a tree of so many small files.
pub fn with_files(count: u64, script: impl FnMut(&Request) -> Fault + Send + 'static) -> (Store, Client, String) {
    let store = Store::start(script);
    let client = Client::new(&store.url);
    for number in 0..count {
        client.file(&format!("tree/{number}"), &content(300, number));
    }
    let tree = client.home.path().join("tree").to_str().unwrap().to_owned();
    (store, client, tree)
}

pub fn put(client: &Client, tree: &str, more: &[&str]) -> Output {
    let mut arguments = vec!["put", "--json", tree, "s3://bucket/t"];
    arguments.extend(more);
    client.run(arguments)
}

#[test]
fn a_store_that_asks_for_less_gets_less() {
    let (store, client, tree) = with_files(60, |request| match request.is_put() {
        true => Fault::SlowAbove(8, Duration::from_millis(20)),
        false => Fault::None,
    });
    let done = put(&client, &tree, &[]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let summary = done.summary();
    assert_eq!(summary["store"]["files"], 60, "{summary}");
    assert!(summary["store"]["servers"][0]["slow_downs"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(store.keys().len(), 60);
}

#[test]
fn a_store_that_never_has_enough_is_given_up() {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refused);
    let (_, client, tree) = with_files(1, move |request| match request.method.as_str() {
        "PUT" => {
            count.fetch_add(1, Ordering::SeqCst);
            Fault::Answer(503, "Retry-After: 0\r\n", SLOW)
        }
        _ => Fault::None,
    });
    let begun = std::time::Instant::now();
    let stopped = client.command(["put", &tree, "s3://bucket/t"]).spawn().unwrap();
    while refused.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    interrupt(&stopped);
    assert_eq!(finish(stopped).code, 130);
    assert!(begun.elapsed() < Duration::from_secs(60), "a pause ends with the run");
}

#[test]
fn a_pipe_that_gives_nothing_can_be_interrupted() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    for given in [0, 20 << 20] {
        let mut child =
            client.command(["put", "-", "s3://bucket/pipe"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, &content(given, 1)).unwrap();
        let begun = std::time::Instant::now();
        while given > 0 && store.uploads_begun() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "no upload begins");
            std::thread::sleep(Duration::from_millis(10));
        }
        interrupt(&child);
        assert_eq!(finish(child).code, 130);
        drop(stdin);
    }
    assert_eq!((store.open_uploads(), store.keys().len()), (0, 0));
}

#[test]
fn a_fifo_that_nobody_writes_into_can_be_interrupted() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    let fifo = client.home.path().join("fifo");
    let status = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(status.success());
    let beside = client.file("beside", b"x");
    let arguments = ["put", beside.to_str().unwrap(), fifo.to_str().unwrap(), "s3://bucket/p/"];
    let child = client.command(arguments).spawn().unwrap();
    // Its turn comes with that of the file, or right after it.
    let begun = std::time::Instant::now();
    while store.keys().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is put");
        std::thread::sleep(Duration::from_millis(10));
    }
    interrupt(&child);
    assert_eq!(finish(child).code, 130);
    // And one with a writer is read.
    let child = client.command(arguments).spawn().unwrap();
    fs::write(&fifo, content(3000, 1)).unwrap();
    let done = finish(child);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(store.object("p/fifo").unwrap().content, content(3000, 1));
}

#[test]
fn a_report_and_a_trace_are_written_without_names() {
    let (store, client, tree) = with_files(20, |_| Fault::Delay(Duration::from_millis(100)));
    let [report, trace] = ["r.json", "t.json"].map(|name| client.home.path().join(name));
    let flags = ["--report", report.to_str().unwrap(), "--trace", trace.to_str().unwrap(), "--connections", "2"];
    let done = put(&client, &tree, &flags);
    assert_eq!((done.code, store.keys().len()), (0, 20), "{}", done.stderr);
    let [report, trace] = [report, trace].map(|path| fs::read_to_string(path).unwrap());
    assert!(!report.contains("t/1") && !trace.contains("t/1"), "names of files");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let summary = &report["summary"];
    assert_eq!((summary["totals"]["files"].as_u64(), summary["hosts"][0]["requests"].as_u64()), (Some(20), Some(21)));
    assert_eq!(summary["verdict"]["limit"], "server 127.0.0.1 (server latency)", "{summary}");
    let stages: Vec<_> = report["timeline"]["stages"].as_array().unwrap().iter().map(|lane| &lane["stage"]).collect();
    assert!(stages.iter().any(|stage| *stage == "send"), "{stages:?}");
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    let slow = done.summary()["verdict"].clone();
    assert_eq!(
        (slow["limit"].as_str(), slow["confident"].as_bool()),
        (Some("server 127.0.0.1 (server latency)"), Some(true))
    );
}

#[test]
fn what_breaks_is_sent_again() {
    // Each object meets each fault once.
    let mut met: HashMap<String, usize> = HashMap::new();
    let (store, client, tree) = with_files(5, move |request| {
        let count = met.entry(format!("{} {}", request.method, request.path)).or_default();
        *count += 1;
        match (request.method.as_str(), *count) {
            ("PUT", 1) => Fault::Reset,
            ("PUT", 2) => Fault::Answer(500, "", INTERNAL),
            ("PUT", 3) => Fault::ResetAfter,
            _ => Fault::None,
        }
    });
    let done = put(&client, &tree, &["--overwrite"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.summary()["store"]["servers"][0]["repeated"].as_u64().unwrap() >= 10, "{}", done.stdout);
    for number in 0..5 {
        assert_eq!(store.object(&format!("t/{number}")).unwrap().content, content(300, number));
    }
}

#[test]
fn some_objects_are_there_and_some_are_not() {
    let (store, client, tree) = with_files(3, |request| match request.path.ends_with("/1") && request.is_put() {
        true => Fault::Answer(403, "", "<Error><Code>AccessDenied</Code><Message>not this one</Message></Error>"),
        false => Fault::None,
    });
    let done = put(&client, &tree, &["--delete"]);
    assert_eq!(done.code, 2, "{}", done.stderr);
    assert!(done.stderr.contains("tree/1") && done.stderr.contains("AccessDenied: not this one"), "{}", done.stderr);
    assert_eq!(
        (done.summary()["store"]["files"].as_u64(), done.summary()["store"]["failed"].as_u64()),
        (Some(2), Some(1))
    );
    assert_eq!(store.keys(), ["t/0", "t/2"]);
    assert!(store.requests().iter().all(|request| request.method != "POST"), "nothing is deleted after a failure");
}

/// F13: a store that tells a wrong checksum
#[test]
fn a_store_that_has_other_bytes_is_not_believed() {
    let (_, client, tree) = with_files(1, |request| if request.is_put() { Fault::WrongChecksum } else { Fault::None });
    let done = put(&client, &tree, &["--overwrite"]);
    assert_eq!(done.code, 4, "{}", done.stderr);
    assert!(done.stderr.contains("checksum"), "{}", done.stderr);
    let mut once = true;
    let (_, client, tree) = with_files(1, move |request| match request.is_put() && std::mem::take(&mut once) {
        true => Fault::WrongChecksum,
        false => Fault::None,
    });
    assert_eq!(put(&client, &tree, &["--overwrite"]).code, 0, "once is an accident");
}

#[test]
fn credentials_that_end_are_renewed() {
    let expired = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>";
    let (store, mut client, tree) =
        with_files(20, move |request| match request.field("authorization").contains("Credential=FIRST/") {
            true => Fault::Answer(400, "", expired),
            false => Fault::None,
        });
    client.variables.clear();
    let count = client.home.path().join("asked");
    let command = format!(
        "if [ -e {0} ]; then key=SECOND; else key=FIRST; touch {0}; fi; \
         printf '{{\"Version\":1,\"AccessKeyId\":\"%s\",\"SecretAccessKey\":\"x\",\"SessionToken\":\"tok\"}}' $key",
        count.display()
    );
    client.file(".aws/config", format!("[default]\ncredential_process = {command}\n").as_bytes());
    let done = put(&client, &tree, &[]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let last = store.requests().pop().unwrap();
    assert_eq!(last.field("x-amz-security-token"), "tok");
    assert!(last.field("authorization").contains("x-amz-security-token"), "the token is signed");
}

#[test]
fn a_wrong_clock_and_another_region_are_put_right() {
    let skewed = "<Error><Code>RequestTimeTooSkewed</Code><Message>m</Message></Error>";
    // All of them hear of it at once.
    let (store, client, tree) = with_files(8, move |request| {
        let date = request.field("x-amz-date");
        if !date.starts_with("2001") {
            return Fault::Answer(403, "Date: Fri, 14 Sep 2001 00:00:00 GMT\r\n", skewed);
        }
        match request.field("authorization").contains("/eu-south-2/s3/") {
            true => Fault::None,
            false => Fault::Answer(
                400,
                "x-amz-bucket-region: eu-south-2\r\n",
                "<Error><Code>AuthorizationHeaderMalformed</Code></Error>",
            ),
        }
    });
    let done = put(&client, &tree, &[]);
    assert_eq!((done.code, store.keys().len()), (0, 8), "{}", done.stderr);
}

#[test]
fn many_objects_are_listed_unless_that_is_forbidden() {
    let (store, client, tree) = with_files(20, well());
    assert_eq!(put(&client, &tree, &[]).code, 0);
    let requests = store.requests();
    assert_eq!(requests.len(), 21, "a list, and one request each");
    assert!(
        requests[0].query.contains("list-type=2") && requests[0].query.contains("prefix=t%2F"),
        "{}",
        requests[0].query
    );
    // ETags that are no MD5 say nothing: each is asked for.
    assert_eq!(put(&client, &tree, &[]).summary()["store"]["present"], 20);
    assert_eq!(store.requests().iter().filter(|request| request.method == "HEAD").count(), 20);
    store.script(|request| match request.query.contains("list-type") {
        true => Fault::Answer(403, "", "<Error><Code>AccessDenied</Code></Error>"),
        false => Fault::None,
    });
    assert_eq!(put(&client, &tree, &[]).summary()["store"]["present"], 20);
}

#[test]
fn objects_have_the_fields_that_were_asked_for() {
    let (store, client, _) = with_files(0, well());
    client.file("tree/index.html", b"<p>");
    client.file("tree/Packages", b"");
    let tree = client.home.path().join("tree").to_str().unwrap().to_owned();
    let flags = [
        "--cache-control",
        "max-age=300",
        "--metadata",
        "origin=here and there",
        "--metadata",
        "n=1",
        "--storage-class",
        "STANDARD_IA",
        "--acl",
        "public-read",
        "--sse",
        "aws:kms:some/key",
    ];
    assert_eq!(put(&client, &tree, &flags).code, 0);
    let page = store.object("t/index.html").unwrap();
    let expected = [
        ("cache-control", "max-age=300"),
        ("content-type", "text/html"),
        ("x-amz-meta-origin", "here and there"),
        ("x-amz-meta-n", "1"),
        ("x-amz-storage-class", "STANDARD_IA"),
        ("x-amz-acl", "public-read"),
        ("x-amz-server-side-encryption", "aws:kms"),
        ("x-amz-server-side-encryption-aws-kms-key-id", "some/key"),
        ("x-amz-checksum-sha256", &checksum(b"<p>")),
    ];
    let authorization = page.fields["authorization"].clone();
    for (name, value) in expected {
        assert_eq!(page.fields[name], value, "{name}");
        assert!(authorization.contains(name), "{name} is signed: {authorization}");
    }
    assert_eq!(store.object("t/Packages").unwrap().fields["content-type"], "application/octet-stream");
}

#[test]
fn indexes_go_after_all_else() {
    let (store, client, _) = with_files(0, |_| Fault::Delay(Duration::from_millis(3)));
    let names = ["a/InRelease", "dists/x/InRelease", "dists/x/Packages", "pool/a", "pool/b", "z"];
    for name in names {
        client.file(&format!("tree/{name}"), name.as_bytes());
    }
    let tree = client.home.path().join("tree").to_str().unwrap().to_owned();
    assert_eq!(put(&client, &tree, &["--last", "dists/***", "--last", "InRelease"]).code, 0);
    let puts: Vec<_> = store.requests().into_iter().filter(Request::is_put).map(|request| request.path).collect();
    let place = |name: &str| puts.iter().position(|path| path.ends_with(name)).unwrap();
    assert!(place("pool/b").max(place("pool/a")).max(place("/z")) < place("dists/x/Packages"), "{puts:?}");
    assert!(place("dists/x/Packages") < place("dists/x/InRelease").min(place("a/InRelease")), "{puts:?}");
    // What others refer to is missing: the indexes are not sent.
    store.script(|request| match request.path.ends_with("pool/b") && request.is_put() {
        true => Fault::Answer(403, "", "<Error><Code>AccessDenied</Code></Error>"),
        false => Fault::None,
    });
    let failed = put(&client, &tree, &["--overwrite", "--last", "InRelease"]);
    assert_eq!(failed.code, 2, "{}", failed.stderr);
    assert!(store.requests().iter().all(|request| !request.path.ends_with("InRelease")), "sent in spite of a failure");
}

/// F13: an error in the body of an answer with status 200
#[test]
fn parts_that_fail_are_sent_again_or_all_is_given_up() {
    let large = content(40 << 20, 1);
    let (store, client, _) = with_files(0, well());
    let file = client.file("large", &large).to_str().unwrap().to_owned();
    let mut met: HashMap<String, usize> = HashMap::new();
    store.script(move |request| {
        let count = met.entry(format!("{}?{}", request.method, request.query)).or_default();
        *count += 1;
        match (request.method.as_str(), *count) {
            ("PUT", 1) if request.query.contains("partNumber=2&") => Fault::Reset,
            ("PUT", 1) if request.query.contains("partNumber=3&") => Fault::Answer(503, "", SLOW),
            ("PUT", 1) if request.query.contains("partNumber=4&") => Fault::WrongChecksum,
            // Complete, and the answer lost.
            ("POST", 1) if request.query.contains("uploadId") => Fault::ResetAfter,
            _ => Fault::None,
        }
    });
    let done = client.run(["put", &file, "s3://bucket/large"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(store.object("large").unwrap().content == large);
    assert_eq!(store.open_uploads(), 0);
    let mut aborts = 0;
    let (at_once, beside_abort) = (Arc::clone(&store.at_once), Arc::new(AtomicUsize::new(0)));
    let most = Arc::clone(&beside_abort);
    store.script(move |request| match request.method.as_str() {
        "PUT" if request.query.contains("partNumber=3&") => {
            Fault::Answer(400, "", "<Error><Code>EntityTooSmall</Code><Message>m</Message></Error>")
        }
        // Those that are on their way then take their time.
        "PUT" => Fault::Delay(Duration::from_millis(400)),
        "DELETE" => {
            most.fetch_max(at_once.load(Ordering::SeqCst) - 1, Ordering::SeqCst);
            aborts += 1;
            // A part that it had in hand stays.
            if aborts == 1 { Fault::Answer(204, "", "") } else { Fault::None }
        }
        _ => Fault::None,
    });
    let failed = client.run(["put", "--overwrite", &file, "s3://bucket/large"]);
    assert_eq!(failed.code, 1, "{}", failed.stderr);
    assert!(failed.stderr.contains("EntityTooSmall"), "{}", failed.stderr);
    assert_eq!((store.open_uploads(), store.uploads_begun()), (0, 2));
    assert_eq!(beside_abort.load(Ordering::SeqCst), 0, "given up while parts were on their way");
    // An error in an answer that says 200.
    let mut once = true;
    store.script(move |request| {
        match request.query.starts_with("uploadId") && request.method == "POST" && std::mem::take(&mut once) {
            // While it works, a store sends spaces.
            true => Fault::Answer(200, "", "  \n<?xml version=\"1.0\"?><Error><Code>InternalError</Code></Error>"),
            false => Fault::None,
        }
    });
    let done = client.run(["put", "--overwrite", &file, "s3://bucket/large"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
}

#[test]
fn an_upload_whose_end_was_not_answered_is_complete_by_its_etag() {
    let large = content(40 << 20, 3);
    let mut lost = false;
    let (store, client, _) = with_files(0, move |request| {
        let completes = request.method == "POST" && request.query.starts_with("uploadId");
        match completes && !std::mem::replace(&mut lost, completes) {
            true => Fault::ResetAfter,
            false => Fault::None,
        }
    });
    store.has_only_md5();
    let file = client.file("large", &large).to_str().unwrap().to_owned();
    let done = client.run(["put", "--json", &file, "s3://bucket/large"]);
    assert_eq!((done.code, done.summary()["store"]["unconfirmed"].as_u64()), (0, Some(1)), "{}", done.stderr);
    assert!(store.object("large").unwrap().content == large);
    // Another object is there under that name: the upload is not complete.
    let mut replaced = false;
    store.script(move |request| {
        let completes = request.method == "POST" && request.query.starts_with("uploadId");
        match completes && !std::mem::replace(&mut replaced, completes) {
            true => Fault::Answer(404, "", "<Error><Code>NoSuchUpload</Code></Error>"),
            false => Fault::None,
        }
    });
    let other = client.file("other", &content(40 << 20, 4)).to_str().unwrap().to_owned();
    let failed = client.run(["put", "--overwrite", &other, "s3://bucket/large"]);
    assert!(failed.code == 1 && failed.stderr.contains("NoSuchUpload"), "{}", failed.stderr);
}

#[test]
fn pipes_in_grown_parts_arrive_as_they_were() {
    let store = Store::start(well());
    let (mut uploader, _stop) = uploader(&store, Duration::from_secs(300));
    // 8, 16, 32, 64 MiB: the last two are kept in files.
    uploader.growth = Growth { double_after: 1, then_after: 1, ..Growth::default() };
    let piped = content(70 << 20, 5);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let put =
        runtime.block_on(uploader.put_pipe("piped", Vec::new(), io::Cursor::new(piped.clone()), pending())).unwrap();
    assert_eq!((put.size, put.confirmed), (70 << 20, true));
    assert!(store.object("piped").unwrap().content == piped);
    let mut parts: Vec<usize> =
        store.requests().iter().filter(|request| request.is_put()).map(|part| part.body.len()).collect();
    parts.sort_unstable();
    assert_eq!(parts, [8 << 20, 14 << 20, 16 << 20, 32 << 20]);
}

/// The library on its own.
pub fn uploader(store: &Store, try_for: Duration) -> (Uploader, watch::Sender<bool>) {
    let bucket = Bucket::new("bucket", Some(&store.url), "us-east-1", Addressing::Path).unwrap();
    let options = Options { connections: 4, try_for, ..Options::new(Duration::from_secs(60)) };
    let (stop, stopped) = watch::channel(false);
    let client = fullbore_s3::Client::new(bucket, CredentialCache::anonymous(), options, stopped);
    let uploader = Uploader::new(client, Window::new(64 << 20, u32::MAX), &std::env::temp_dir());
    (uploader, stop)
}

#[test]
fn a_request_that_took_long_and_failed_is_sent_again() {
    let mut once = true;
    let store = Store::start(move |_| match std::mem::take(&mut once) {
        true => {
            std::thread::sleep(Duration::from_secs(3));
            Fault::Answer(500, "", INTERNAL)
        }
        false => Fault::None,
    });
    let (uploader, _stop) = uploader(&store, Duration::from_secs(2));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let put = uploader.put_whole("object", Vec::new(), Bytes::from_static(b"x"), Sha256::of(b"x"), &Condition::None);
    runtime.block_on(put).unwrap();
    assert_eq!((store.keys(), store.requests().len()), (vec!["object".to_owned()], 2));
}

/// So many bytes, and then an error.
struct Breaks(usize);

impl Read for Breaks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::other("the disk is gone"));
        }
        let count = into.len().min(self.0);
        into[..count].fill(7);
        self.0 -= count;
        Ok(count)
    }
}

#[test]
fn content_that_cannot_be_read_to_its_end_replaces_nothing() {
    let store = Store::start(well());
    store.put("object", b"as it was");
    let (uploader, _stop) = uploader(&store, Duration::from_secs(300));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let broken = runtime.block_on(uploader.put_pipe("object", Vec::new(), Breaks(24 << 20), pending()));
    assert!(matches!(broken, Err(UploadError::Source(_))), "{broken:?}");
    // A file that is shorter than it was when its size was asked for.
    let client = Client::new(&store.url);
    let short = client.file("short", &content(24 << 20, 1));
    let file = Arc::new(File::open(short).unwrap());
    let changed = runtime.block_on(uploader.put_file("object", Vec::new(), file, 30 << 20));
    assert!(matches!(changed, Err(UploadError::Changed)), "{changed:?}");
    assert_eq!(store.object("object").unwrap().content, b"as it was");
    assert!(!store.requests().iter().any(|request| request.method == "POST" && request.query.contains("uploadId")));
    assert_eq!((store.uploads_begun(), store.open_uploads()), (2, 0));
}

#[test]
fn objects_are_got_in_ranges_and_verified() {
    let large = content((40 << 20) + 5, 2);
    let store = Store::start(well());
    let client = Client::new(&store.url);
    store.put("large", &large);
    store.put("empty", b"");
    assert!(client.get("s3://bucket/large") == large);
    assert_eq!(client.get("s3://bucket/empty"), b"");
    let ranges = store.requests().into_iter().filter(|request| request.method == "GET");
    let later: Vec<_> = ranges.filter(|request| !request.field("range").starts_with("bytes=0-")).collect();
    assert!(matches!(later.len(), 3 | 10), "{} ranges of 16 MiB behind the first, or of 4", later.len());
    assert!(later.iter().all(|request| !request.field("if-match").is_empty()));
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let gone = client.command(["get", "s3://bucket/large"]).stdout(writer).output().unwrap();
    assert_eq!(
        (gone.status.code(), String::from_utf8_lossy(&gone.stderr).as_ref()),
        (Some(0), ""),
        "a reader that is gone"
    );
    // Breaks, and an answer that is of another range.
    let mut met: HashMap<String, usize> = HashMap::new();
    store.script(move |request| {
        let count = met.entry(request.field("range").to_owned()).or_default();
        *count += 1;
        if *count == 1 && request.method == "GET" { Fault::Reset } else { Fault::None }
    });
    assert!(client.get("s3://bucket/large") == large);
    let mut damaged = store.object("large").unwrap();
    damaged.content[30 << 20] ^= 1;
    store.script(well());
    store.put("damaged", &damaged.content);
    let target = client.home.path().join("target");
    let wrong = client.run(["get", "-o", target.to_str().unwrap(), "s3://bucket/missing"]);
    assert_eq!(wrong.code, 1, "{}", wrong.stderr);
    assert!(!target.exists());
    // The store's own checksum is of the right content, its bytes are not.
    store.script({
        let sum = format!("ETag: \"x\"\r\nContent-Length: 3\r\nx-amz-checksum-sha256: {}\r\n", checksum(b"abc"));
        let sum: &'static str = sum.leak();
        move |request| match request.method.as_str() {
            "HEAD" => Fault::Answer(200, sum, ""),
            _ => Fault::Answer(206, "ETag: \"x\"\r\nContent-Range: bytes 0-2/3\r\n", "abd"),
        }
    });
    let wrong = client.run(["get", "-o", target.to_str().unwrap(), "s3://bucket/damaged"]);
    assert_eq!(wrong.code, 4, "{}", wrong.stderr);
    assert!(!target.exists(), "what is wrong is not there");
}

#[test]
fn further_ranges_are_asked_for_before_the_first_is_there() {
    let large = content(40 << 20, 2);
    let store = Store::start(well());
    store.put("large", &large);
    // The length, and two ranges.
    store.script(|request| match request.field("range").starts_with("bytes=0-") {
        true => Fault::After(3),
        false => Fault::None,
    });
    assert!(Client::new(&store.url).get("s3://bucket/large") == large);
}

#[test]
fn a_stalled_connection_is_given_up_and_another_serves() {
    let mut stalls = 1;
    let (store, client, tree) = with_files(3, move |request| match request.is_put() && stalls > 0 {
        true => {
            stalls -= 1;
            Fault::Stall(Duration::from_secs(20))
        }
        false => Fault::None,
    });
    let done = put(&client, &tree, &["--timeout", "2", "--overwrite"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(store.keys().len(), 3);
}

#[test]
fn connections_are_kept_and_bounded() {
    let (store, client, tree) = with_files(200, |_| Fault::Delay(Duration::from_millis(1)));
    let done = put(&client, &tree, &["--connections", "5"]);
    let server = done.summary()["store"]["servers"][0].clone();
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(server["connections"].as_u64().unwrap() <= 6, "{server}");
    assert!(store.most_at_once.load(Ordering::SeqCst) <= 5, "this store reads one request of a connection at a time");
    let listed: Vec<u64> =
        done.events().iter().filter_map(|event| event["path"].as_str()?.rsplit('/').next()?.parse().ok()).collect();
    assert_eq!(listed.len(), 200);
}

#[test]
fn a_limit_on_the_rate_is_that_of_all_connections_together() {
    let (_store, client, _) = with_files(0, well());
    for number in 0..8 {
        client.file(&format!("tree/{number}"), &content(256 << 10, number));
    }
    let tree = client.home.path().join("tree").to_str().unwrap().to_owned();
    let done = put(&client, &tree, &["--limit-rate", "1M"]);
    let summary = done.summary();
    let seconds = summary["duration_ms"].as_f64().unwrap() / 1e3;
    // A burst, and what was written when it was overdrawn, are over the limit; slower it may be.
    assert!(summary["store"]["sent_bytes"].as_f64().unwrap() / seconds < 1.3e6, "{summary}");
    assert!(summary["store"]["servers"][0]["connections_at_once"].as_u64().unwrap() > 1, "{summary}");
    assert_eq!(summary["verdict"]["limit"], "the rate limit", "{summary}");
}

#[test]
fn a_store_where_nobody_listens_is_exit_3_and_keeps_the_list() {
    let client = Client::new("http://127.0.0.1:1");
    let file = client.file("f", b"x");
    let list = client.file("list", b"of an earlier run");
    let failed = client.run(["put", "--caps", list.to_str().unwrap(), file.to_str().unwrap(), "s3://bucket/f"]);
    assert_eq!(failed.code, 3, "{}", failed.stderr);
    assert!(failed.stderr.contains("127.0.0.1:1"), "{}", failed.stderr);
    assert_eq!(fs::read_to_string(list).unwrap(), "of an earlier run");
}

#[test]
fn a_store_in_onion_was_tried_again_and_again() {
    let client = Client::new("http://store.onion");
    let file = client.file("f", b"x");
    let begun = std::time::Instant::now();
    let done = client.run(["put", file.to_str().unwrap(), "s3://bucket/k"]);
    assert_eq!(done.code, 3, "{}", done.stderr);
    assert!(done.stderr.contains("RFC 7686"), "{}", done.stderr);
    // Tries of a name that may come back take 7 s and more.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    let client = Client::new("http://127.0.0.1:1");
    let file = client.file("f", b"x");
    let file = file.to_str().unwrap();
    let error = |arguments: &[&str]| {
        let output = client.run(arguments.iter().copied());
        assert_eq!(output.code, 1, "{}", output.stderr);
        output.stderr
    };
    assert!(error(&["put", "--random-key", file, "s3://bucket/f"]).contains("--random-key"));
    assert!(error(&["put", "--random-key", "--size", "1", "-", "s3://bucket/f"]).contains("--size"));
    assert!(error(&["put", "--segment-size", "131072", file, "s3://bucket/f"]).contains("--segment-size"));
    assert!(error(&["put", "--connections", "2", file]).contains("s3://"));
    assert!(error(&["put", "--delete", file, "s3://bucket/f"]).contains("directory"));
    assert!(error(&["put", "--acl", "private", file]).contains("s3://"));
    assert!(error(&["put", "s3://bucket/f"]).contains("no FILE or DIR to put"));
    assert!(error(&["get", "s3://bucket/"]).contains("-o DIR"));
    assert!(error(&["get", "s3://bucket/a/../b"]).contains("another object"));
    assert!(error(&["put", "-", "-", "s3://bucket/f"]).contains("stdin"));
    assert!(error(&["put", file, "s3://b/f"]).contains("bucket"));
    // What `-` gave to the one would be missing in the other: an empty object.
    assert!(error(&["put", "-", "--files-from", "-", "s3://bucket/f"]).contains("stdin"));
    assert!(error(&["put", file, "--files-from=-", "--exclude-from=-", "s3://bucket/f"]).contains("stdin"));
    assert!(error(&["get", "-o", "d", "-", "--files-from", "-", "s3://bucket/f/"]).contains("stdin"));
}
