//! What a worker of a put may replace: nothing that the planner has not seen.

use super::misbehaving::{Fault, Store as Misbehaving, checksum};
use super::*;

use fullbore_fleet::message::{Item, Kind, Report, Task};
use fullbore_fleet::queue::Counts;

/// A run of files to put, by its planner's directory.
pub(super) fn run(root: &Path) -> Run {
    let text = format!(
        "{{\"v\":1,\"id\":\"9c1f\",\"kind\":\"put\",\"to\":\"s3://bucket/p\",\"round\":1,\"root\":\"{}\"}}",
        root.display()
    );
    Run::parse(text.as_bytes()).unwrap()
}

/// A file in messages.
pub(super) fn item(directory: &Path, name: &str) -> Item {
    let about = fs::metadata(directory.join(name)).unwrap();
    let modified = about.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    let sha256 = Item::version(about.len(), modified.as_secs() as i64, modified.subsec_nanos());
    Item { path: name.to_owned(), size: about.len(), sha256 }
}

/// The ETag of the misbehaving store.
fn tag(content: &[u8]) -> String {
    checksum(content).replace('/', "_")
}

/// Has a worker put a file; gives the object's content then, and whether the worker reported a fault.
fn put_over(there: Option<&[u8]>, replaces: Option<&str>, content: &[u8]) -> (Vec<u8>, bool) {
    let (home, queue) = (tempfile::tempdir().unwrap(), queue());
    fs::write(home.path().join("file"), content).unwrap();
    let store = Misbehaving::start(|_| Fault::None);
    store.has_one_etag();
    if let Some(there) = there {
        store.put("p/file", there);
    }
    let (item, run) = (item(home.path(), "file"), run(home.path()));
    let replaces = vec![replaces.map(str::to_owned)];
    let task = Task { kind: Kind::Put, run: run.id.clone(), round: 1, items: vec![item], replaces };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let has_fault = runtime.block_on(async {
        queue.open(&run.id).await.unwrap();
        let mut reports = queue.reports(&run.id).await.unwrap();
        queue.publish(&[task]).await.unwrap();
        let (over, told) = watch::channel(false);
        let settings = worker_settings(&store.url, home.path(), home.path());
        let (connection, run_of) = (queue.connect(), run.clone());
        let worker = WorkerId::parse("w").unwrap();
        let worker = tokio::spawn(async move { serve(connection, &run_of, worker, &settings, told).await.unwrap() });
        // The task is done, or the worker has said why not.
        let has_fault = loop {
            match reports.try_recv() {
                Ok(Report::Fault(_)) => break true,
                _ if queue.counts(&run.id).await.unwrap() == Counts::default() => break false,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        over.send_replace(true);
        worker.await.unwrap();
        has_fault
    });
    (store.object("p/file").unwrap().content, has_fault)
}

/// F2: a worker that wakes after the run has files of an earlier time in hand.
#[test]
fn a_worker_replaces_only_the_object_that_the_planner_saw() {
    let (old, newer) = (b"old".as_slice(), b"newer content".as_slice());
    let tag_of_old = tag(old);
    for size in [100, 17 << 20] {
        let file = vec![7; size];
        for (there, replaces, is_put) in [
            (None, Some(""), true),
            (Some(newer), Some(""), false),
            (Some(old), Some(tag_of_old.as_str()), true),
            (Some(newer), Some(tag_of_old.as_str()), false),
            // A task of an earlier version, or of a store with other ETags.
            (Some(newer), None, true),
        ] {
            let (stored, has_fault) = put_over(there, replaces, &file);
            let expected = if is_put { file.as_slice() } else { newer };
            assert!(stored == expected && has_fault != is_put, "{size} {there:?} {replaces:?}");
        }
        // Another worker has put the same: this one is done.
        let (stored, has_fault) = put_over(Some(&file), Some(""), &file);
        assert!(stored == file && !has_fault, "{size}");
    }
}

#[test]
fn a_planner_tells_workers_what_the_bucket_had() {
    let (home, queue) = (tempfile::tempdir().unwrap(), queue());
    let directory = home.path().join("share");
    fs::create_dir(&directory).unwrap();
    for name in ["new", "longer"] {
        fs::write(directory.join(name), "content").unwrap();
    }
    let store = Misbehaving::start(|_| Fault::None);
    store.has_one_etag();
    store.put("p/longer", b"old");
    let settings = settings_at(&store.url, &home.path().join("journals"), &directory, &[]);
    plan(&settings, Some(&queue), true).0.unwrap();
    let puts: Vec<_> = store.requests().into_iter().filter(misbehaving::Request::is_put).collect();
    let fields = |path: &str| {
        let put = puts.iter().find(|put| put.path.ends_with(path)).unwrap();
        (put.field("if-none-match").to_owned(), put.field("if-match").to_owned())
    };
    assert_eq!(fields("/new"), ("*".to_owned(), String::new()));
    assert_eq!(fields("/longer"), (String::new(), format!("\"{}\"", tag(b"old"))));
    assert_eq!(store.object("p/longer").unwrap().content, b"content");
}
