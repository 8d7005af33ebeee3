//! The lock of a mirror, and the fence that it closes: a run that may not hold its lock any more changes no object.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fullbore_engine::stage::Ledger;
use fullbore_s3::bucket::BucketSettings;
use fullbore_s3::credentials::Aws;
use fullbore_s3::lock::{Fence, Lock, LockError, LockTimes};
use fullbore_s3::objects::{Condition, Objects};
use fullbore_s3::{Addressing, CallError, Location, UploadError, Uploader};
use tokio::sync::watch;

use super::servers::{Client, content, moto, versitygw};
use super::store::{Fault, Store};

fn objects(endpoint: &str, stopped: watch::Receiver<bool>) -> Objects {
    let settings = BucketSettings {
        location: Location::parse("s3://bucket/m").unwrap(),
        endpoint: Some(endpoint.to_owned()),
        region: Some("us-east-1".to_owned()),
        addressing: Addressing::Path,
        signs: true,
        authorities: None,
        connections: 16,
        patience: Duration::from_secs(30),
        proxy: Default::default(),
        aws: Aws::find(
            &|name| match name {
                "AWS_ACCESS_KEY_ID" => Some("fullbore".to_owned()),
                "AWS_SECRET_ACCESS_KEY" => Some("only-for-tests".to_owned()),
                _ => None,
            },
            None,
        )
        .unwrap(),
    };
    Objects::open(&settings, stopped, &Ledger::off()).unwrap()
}

#[test]
fn nothing_is_changed_when_the_lock_may_be_another_runs() {
    let is_taken_over = Arc::new(AtomicBool::new(false));
    let told = is_taken_over.clone();
    let store =
        Store::start(move |request| match request.field("if-match").is_empty() || !told.load(Ordering::Relaxed) {
            true => Fault::None,
            false => Fault::Answer(412, "", ""),
        });
    store.has_one_etag();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (_stop, stopped) = watch::channel(false);
    let _inside = runtime.enter();
    let unfenced = objects(&store.url, stopped);
    let fence = Arc::new(Fence::default());
    let fenced = unfenced.behind(fence.clone());
    let put = |path: &str| {
        let put = fenced.put(path, Vec::new(), Bytes::from_static(b"x"), &Condition::None);
        runtime.block_on(put)
    };
    put("before").expect("there is no lock yet");
    let times =
        LockTimes { believed: Duration::from_secs(2), renew_every: Duration::from_secs(4), ..LockTimes::default() };
    let lock = runtime.block_on(Lock::take(&unfenced, "lock", "host", times)).unwrap();
    *fence.lock() = Some(lock);
    let locked = store.requests().into_iter().find(|request| request.path.ends_with("/lock")).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    put("during").unwrap();
    let signed = |request: &super::store::Request| request.field("x-amz-date").to_owned();
    let during = store.requests().into_iter().find(|request| request.path.ends_with("/during")).unwrap();
    assert!(signed(&during) <= signed(&locked), "{} is after the renewal at {}", signed(&during), signed(&locked));
    // Nobody knows whose the lock is until it is renewed.
    std::thread::sleep(Duration::from_millis(1200));
    assert!(matches!(fence.signed_at(), Err(LockError::Unseen)));
    put("later").unwrap();
    let requests: Vec<String> = store.requests().into_iter().map(|request| request.path).collect();
    let place = |name: &str| requests.iter().position(|path| path.ends_with(name)).unwrap();
    assert!(place("/lock") < place("/later"), "{requests:?}");
    // Another run has it, as the next renewal is told.
    is_taken_over.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(2200));
    let is_lost = |result: Result<(), CallError>| assert_eq!(result, Err(CallError::LockLost));
    is_lost(put("after").map(drop));
    store.requests();
    is_lost(runtime.block_on(fenced.copy("before", "copy", Vec::new(), None)));
    is_lost(runtime.block_on(fenced.remove(&["before".to_owned()])));
    is_lost(runtime.block_on(fenced.delete("before", &Condition::None)).map(drop));
    assert!(fence.was_closed() && store.requests().is_empty(), "nothing was sent");
    runtime.block_on(fenced.get("before", 10)).unwrap().expect("looking is harmless");
}

/// The window between the look and the upload is closed by the store, where it has conditions for objects in parts.
#[test]
fn a_large_file_that_is_new_replaces_nothing() {
    for store in [versitygw(), moto()] {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let _inside = runtime.enter();
        let objects = objects(&store.url, stopped);
        let client = Client::new(&store.url);
        let window = fullbore_engine::window::Window::new(64 << 20, 64);
        let uploader = Uploader::new(objects.client().clone(), window, client.home.path());
        let put = |name: &str| {
            let file = std::fs::File::open(client.file(name, &content(20 << 20, name.len() as u64))).unwrap();
            runtime.block_on(uploader.put_file_on("m/large", Vec::new(), file.into(), 20 << 20, &Condition::Absent))
        };
        put("first").unwrap();
        let second = put("another");
        assert!(matches!(second, Err(UploadError::Condition)), "{second:?}");
        assert_eq!(client.get("s3://bucket/m/large"), content(20 << 20, 5));
    }
}
