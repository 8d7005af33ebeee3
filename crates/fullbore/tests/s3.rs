//! `put` and `get` against real servers of the S3 protocol: versitygw, whose objects are files that can be looked at, moto,
//! MinIO and Garage, which share nothing with one another. All are got by `script/s3-servers`; the last two take long to
//! build, and their tests belong to `script/test-long`.

#![allow(clippy::unwrap_used)]

#[path = "s3/checksums.rs"]
mod checksums;
#[path = "s3/conditions.rs"]
mod conditions;
#[path = "s3/dialects.rs"]
mod dialects;
#[path = "s3/faults.rs"]
mod faults;
#[path = "s3/fence.rs"]
mod fence;
#[path = "s3/frame.rs"]
mod frame;
#[path = "s3/hostile.rs"]
mod hostile;
#[path = "s3/leftovers.rs"]
mod leftovers;
#[path = "s3/servers.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod servers;
#[path = "s3/store.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod store;
#[path = "s3/trees.rs"]
mod trees;
#[path = "s3/unchanged.rs"]
mod unchanged;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use servers::{Client, GARAGE_KEYS, Server, content, finish, garage, interrupt, minio, moto, versitygw};

/// Names that have to be encoded, or would mean something else if they were not.
const NAMES: [&str; 13] = [
    "plain",
    "g++_1.0~rc1:2.deb",
    "50%25",
    "a b",
    "ä/ö ü",
    "x=1&y=2?z#w",
    "q'\"<>`",
    "plus+plus",
    "semi;co,lon",
    "(par)[br]{cu}",
    "back\\slash",
    "日本語/ß",
    "~tilde@host!*$",
];

fn data(server: &Server) -> std::path::PathBuf {
    server.directory.path().join("data/bucket")
}

fn tree(client: &Client) -> std::path::PathBuf {
    for (seed, name) in NAMES.iter().enumerate() {
        client.file(&format!("tree/{name}"), &content(100 * seed, seed as u64));
    }
    client.home.path().join("tree")
}

/// Everything goes and comes back under the same name; what is there is not sent again.
fn names_come_back(client: &Client) {
    let tree = tree(client);
    let put = client.run(["put", "--json", tree.to_str().unwrap(), "s3://bucket/names"]);
    assert_eq!(put.code, 0, "{}", put.stderr);
    let summary = put.summary();
    assert_eq!(
        (summary["store"]["files"].as_u64(), summary["store"]["unconfirmed"].as_u64()),
        (Some(13), Some(0)),
        "{summary}"
    );
    for (seed, name) in NAMES.iter().enumerate() {
        assert_eq!(client.get(&format!("s3://bucket/names/{name}")), content(100 * seed, seed as u64), "{name}");
    }
    let again = client.run(["put", tree.to_str().unwrap(), "s3://bucket/names"]);
    let mut expected: Vec<_> = NAMES.iter().map(|name| format!("s3://bucket/names/{name}")).collect();
    let mut lines = again.lines();
    expected.sort();
    lines.sort_unstable();
    assert_eq!(lines, expected, "one address for each file");
    assert!(again.stderr.starts_with("0 files") && again.stderr.contains("13 were there already"), "{}", again.stderr);
}

fn large_objects_come_back(client: &Client) {
    let large = content(30 << 20, 7);
    let file = client.file("large.bin", &large);
    for (expected, key) in [("stored", "files"), ("present", "present")] {
        let put = client.run(["put", "--json", file.to_str().unwrap(), "s3://bucket/large/"]);
        assert_eq!(put.code, 0, "{}", put.stderr);
        assert_eq!(put.summary()["store"][key], 1, "{expected}: {}", put.stdout);
    }
    assert!(client.get("s3://bucket/large/large.bin") == large);
    // From a pipe, with parts that end at their edge, and after it.
    for size in [0, 5, 16 << 20, (24 << 20) + 1] {
        let put =
            client.run_with(["put", "--json", "-", "s3://bucket/pipe"], std::io::Cursor::new(large[..size].to_vec()));
        assert_eq!(put.code, 0, "{}", put.stderr);
        assert_eq!(put.summary()["store"]["bytes"], size);
        assert!(client.get("s3://bucket/pipe") == large[..size], "{size} bytes");
    }
}

fn what_changed_is_sent(client: &Client) {
    let root = client.home.path().join("many");
    for number in 0..40 {
        client.file(&format!("many/{number}"), &content(500, number));
    }
    let put = |expected: (u64, u64)| {
        let put = client.run(["put", "--json", root.to_str().unwrap(), "s3://bucket/many/"]);
        assert_eq!(put.code, 0, "{}", put.stderr);
        let summary = put.summary();
        assert_eq!(
            (summary["store"]["files"].as_u64().unwrap(), summary["store"]["present"].as_u64().unwrap()),
            expected,
            "{summary}"
        );
    };
    put((40, 0));
    // The same size, and other bytes.
    client.file("many/7", &content(500, 1007));
    client.file("many/8", &content(501, 8));
    put((2, 38));
    put((0, 40));
    assert_eq!(client.get("s3://bucket/many/7"), content(500, 1007));
}

fn objects_that_are_no_files_are_deleted_with_care(client: &Client) {
    let root = client.home.path().join("many");
    client.file("other", b"not beneath the prefix");
    let other = client.home.path().join("other");
    assert_eq!(client.run(["put", other.to_str().unwrap(), "s3://bucket/manyother"]).code, 0);
    for number in 0..10 {
        fs::remove_file(root.join(number.to_string())).unwrap();
    }
    let dry = client.run(["put", "--dry-run", "--delete", root.to_str().unwrap(), "s3://bucket/many"]);
    assert_eq!((dry.code, dry.stderr.matches("would delete ").count()), (0, 10), "{}", dry.stderr);
    let done = client.run(["put", "--json", "--delete", root.to_str().unwrap(), "s3://bucket/many"]);
    assert_eq!((done.code, done.summary()["store"]["deleted"].as_u64()), (0, Some(10)), "{}", done.stderr);
    for number in 10..30 {
        fs::remove_file(root.join(number.to_string())).unwrap();
    }
    let refused = client.run(["put", "--delete", root.to_str().unwrap(), "s3://bucket/many"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("20 of 30") && refused.stderr.contains("--force-delete"), "{}", refused.stderr);
    assert_eq!(client.get("s3://bucket/many/15"), content(500, 15), "nothing was deleted");
    let forced =
        client.run(["put", "--json", "--delete", "--force-delete", root.to_str().unwrap(), "s3://bucket/many"]);
    assert_eq!(forced.summary()["store"]["deleted"], 20, "{}", forced.stderr);
    assert_eq!(client.get("s3://bucket/manyother"), b"not beneath the prefix");
    let missing = client.run(["get", "s3://bucket/many/15"]);
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.contains("no such object"), "{}", missing.stderr);
}

#[test]
fn versitygw_takes_and_gives() {
    let server = versitygw();
    let client = Client::new(&server.url);
    names_come_back(&client);
    // As the server's own files, which our `get` had no part in.
    for (seed, name) in NAMES.iter().enumerate() {
        let file = data(&server).join("names").join(name);
        assert_eq!(fs::read(file).unwrap(), content(100 * seed, seed as u64), "{name}");
    }
    large_objects_come_back(&client);
    assert!(fs::read(data(&server).join("large/large.bin")).unwrap() == content(30 << 20, 7));
    what_changed_is_sent(&client);
    objects_that_are_no_files_are_deleted_with_care(&client);
    wrong_keys_and_buckets_are_told(&server);
    an_interrupted_run_leaves_no_parts(&server, &client);
    a_killed_run_is_cleaned_up_after(&server, &client);
    memory_stays_within_the_window(&client);
}

#[test]
fn moto_takes_and_gives() {
    let server = moto();
    let client = Client::new(&server.url);
    names_come_back(&client);
    large_objects_come_back(&client);
    what_changed_is_sent(&client);
    objects_that_are_no_files_are_deleted_with_care(&client);
}

#[test]
#[ignore = "script/test-long builds MinIO"]
fn minio_takes_and_gives() {
    let server = minio();
    let client = Client::new(&server.url);
    names_come_back(&client);
    large_objects_come_back(&client);
    what_changed_is_sent(&client);
    objects_that_are_no_files_are_deleted_with_care(&client);
    wrong_keys_and_buckets_are_told(&server);
}

/// Its region is not the usual one, which is found out by its answer.
#[test]
#[ignore = "script/test-long builds Garage"]
fn garage_takes_and_gives() {
    let server = garage();
    let mut client = Client::new(&server.url);
    client.variables = GARAGE_KEYS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    names_come_back(&client);
    large_objects_come_back(&client);
    what_changed_is_sent(&client);
    objects_that_are_no_files_are_deleted_with_care(&client);
}

fn wrong_keys_and_buckets_are_told(server: &Server) {
    let client = Client::new(&server.url);
    let file = client.file("f", b"x");
    let file = file.to_str().unwrap();
    let none = client.run(["put", file, "s3://nosuchbucket/f"]);
    assert_eq!(none.code, 1);
    assert!(none.stderr.contains("NoSuchBucket"), "{}", none.stderr);
    let none = client.run(["get", "s3://nosuchbucket/f"]);
    assert!(none.code == 1 && none.stderr.contains("NoSuchBucket"), "{}", none.stderr);
    let mut wrong = Client::new(&server.url);
    wrong.variables[1].1 = "another-secret".into();
    let refused = wrong.run(["put", file, "s3://bucket/f"]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.stderr.contains("SignatureDoesNotMatch") && !refused.stderr.contains("another-secret"),
        "{}",
        refused.stderr
    );
    wrong.variables.clear();
    wrong.variables.push(("AWS_EC2_METADATA_DISABLED".into(), "true".into()));
    let nobody = wrong.run(["put", file, "s3://bucket/f"]);
    assert_eq!(nobody.code, 1);
    assert!(nobody.stderr.contains("no credentials found"), "{}", nobody.stderr);
}

/// Files of parts that the server has.
fn parts(server: &Server) -> usize {
    fn count(directory: &Path) -> usize {
        let Ok(entries) = fs::read_dir(directory) else { return 0 };
        entries.flatten().map(|entry| if entry.path().is_dir() { count(&entry.path()) } else { 1 }).sum()
    }
    count(&data(server).join(".sgwtmp"))
}

/// A run that is under way: some parts are there, more are to come.
fn under_way(server: &Server, client: &Client) -> std::process::Child {
    let file = client.file("slow.bin", &content(60 << 20, 3));
    let arguments = ["put", "--limit-rate", "8M", file.to_str().unwrap(), "s3://bucket/slow.bin"];
    let child = client.command(arguments).spawn().unwrap();
    let begun = Instant::now();
    while parts(server) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no part arrives");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

fn an_interrupted_run_leaves_no_parts(server: &Server, client: &Client) {
    let child = under_way(server, client);
    interrupt(&child);
    let ended = finish(child);
    assert_eq!(ended.code, 130, "{}", ended.stderr);
    assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    assert_eq!(parts(server), 0, "{}", ended.stderr);
    assert!(!data(server).join("slow.bin").exists());
}

fn a_killed_run_is_cleaned_up_after(server: &Server, client: &Client) {
    let mut child = under_way(server, client);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(parts(server) > 0);
    let file = client.file("small", b"x");
    let next = client.run(["put", file.to_str().unwrap(), "s3://bucket/small"]);
    assert_eq!(next.code, 0, "{}", next.stderr);
    assert!(next.stderr.contains("slow.bin: gave up"), "{}", next.stderr);
    assert_eq!(parts(server), 0);
}

/// The window is 64 MiB; the rest of the program may have as much.
fn memory_stays_within_the_window(client: &Client) {
    let put = client.run_with(["put", "--json", "-", "s3://bucket/zeros"], std::io::repeat(7).take(400 << 20));
    assert_eq!(put.code, 0, "{}", put.stderr);
    let peak = put.summary()["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak < 128 << 20, "{} MiB", peak >> 20);
    let file = client.home.path().join("sparse");
    fs::File::create(&file).unwrap().set_len(400 << 20).unwrap();
    let put = client.run(["put", "--json", file.to_str().unwrap(), "s3://bucket/zeros"]);
    let peak = put.summary()["peak_rss_bytes"].as_u64().unwrap();
    assert!(put.code == 0 && peak < 128 << 20, "{} MiB", peak >> 20);
    let get = client.run(["get", "--json", "-o", "/dev/null/../../tmp/none/x", "s3://bucket/zeros"]);
    assert_eq!(get.code, 7, "{}", get.stderr);
    let target = client.home.path().join("back");
    let get = client.run(["get", "--json", "-o", target.to_str().unwrap(), "s3://bucket/zeros"]);
    let summary = get.summary();
    let peak = summary["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak < 128 << 20 && summary["store"]["verified"] == true, "{} MiB, {summary}", peak >> 20);
    assert!(summary["verdict"]["limit"].is_string(), "{summary}");
    fs::remove_file(target).unwrap();
}
