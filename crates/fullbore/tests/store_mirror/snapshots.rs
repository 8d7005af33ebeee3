//! Snapshots in a bucket: suites below `dists/snapshots/NAME/`, whose packages stay in the pool.

use super::*;

const AT_ONCE: [&str; 4] = ["--keep-generations", "0", "--keep-hours", "0"];

fn snapshot(data: &Path, name: &str) -> BTreeMap<String, String> {
    let prefix = format!("dists/snapshots/{name}/trixie/");
    contents(data).into_iter().filter_map(|(path, hash)| Some((path.strip_prefix(&prefix)?.to_owned(), hash))).collect()
}

fn suite(state: usize) -> BTreeMap<String, String> {
    let of = reference(state).iter();
    of.filter_map(|(path, hash)| Some((path.strip_prefix("dists/trixie/")?.to_owned(), hash.clone()))).collect()
}

#[test]
fn a_snapshot_stays_with_all_its_packages_until_it_is_removed() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    let with = |name: &'static str| [&AT_ONCE[..], &["--snapshot", name]].concat();
    bucket.run(&served(0), &with("first")).exits(0);
    assert_eq!(snapshot(&data(&store), "first"), suite(0));
    bucket.run(&served(0), &with("first")).exits(1).says("already exists");
    // One of a run that finds nothing new, too.
    bucket.run(&served(0), &[&with("again")[..], &["--changed-exit"]].concat()).exits(10);
    assert_eq!(snapshot(&data(&store), "again"), suite(0));
    bucket.run(&served(1), &AT_ONCE).exits(0);
    let here = contents(&data(&store));
    for (path, hash) in reference(0).iter().filter(|(path, _)| path.starts_with("pool/")) {
        assert_eq!(here.get(path), Some(hash), "{path}, which a snapshot names");
    }
    assert_eq!(snapshot(&data(&store), "first"), suite(0));
    verified(&data(&store), common(), 1);
    bucket.check(&[]).exits(0);
    // A snapshot costs later runs nothing.
    bucket.run(&served(1), &[&AT_ONCE[..], &["--changed-exit"]].concat()).exits(10);
    // Without them, the next publication deletes what nobody names any more.
    fs::remove_dir_all(data(&store).join("dists/snapshots")).unwrap();
    let formats = ["--index-formats", "xz"];
    let cleaned = bucket.run(&served(1), &[&AT_ONCE[..], &formats].concat()).exits(0);
    assert!(cleaned.number("totals.deleted_files") > 0, "{cleaned:?}");
    let old = reference(0).keys().filter(|path| path.starts_with("pool/") && !reference(1).contains_key(*path));
    let here = contents(&data(&store));
    assert!(old.clone().count() > 0 && old.clone().all(|path| !here.contains_key(path)));
}

/// A snapshot that a killed run began is no snapshot, and is completed.
#[test]
fn an_unfinished_snapshot_is_completed() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let proxy = Proxy::start(&store.url, |_, line| {
        let is_last = line.starts_with("PUT ") && line.contains("dists/snapshots/s/trixie/InRelease");
        if is_last { Action::Answer(403) } else { Action::now() }
    });
    Bucket::at(&proxy.url).run(&served(0), &["--snapshot", "s"]).exits(1).says("403");
    assert!(!data(&store).join("dists/snapshots/s/trixie/InRelease").exists());
    Bucket::at(&store.url).run(&served(0), &["--snapshot", "s"]).exits(0);
    assert_eq!(snapshot(&data(&store), "s"), suite(0));
}

/// A complete snapshot stays one: its name is not free again, and what it names is kept.
#[test]
fn a_snapshot_is_complete_after_foreign_files_were_cleaned() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[&AT_ONCE[..], &["--snapshot", "s"]].concat()).exits(0);
    let client = servers::Client::new(&store.url);
    let put = client.run(["put", client.file("junk", b"x").to_str().unwrap(), &format!("{TO}/dists/snapshots/junk")]);
    assert_eq!(put.code, 0, "{}", put.stderr);
    bucket.run(&served(1), &[&AT_ONCE[..], &["--clean-foreign", "--force-delete"]].concat()).exits(0);
    assert!(!data(&store).join("dists/snapshots/junk").exists());
    assert!(data(&store).join("dists/snapshots/s/.fullbore-snapshot").exists());
    assert_eq!(snapshot(&data(&store), "s"), suite(0));
    bucket.run(&served(1), &["--snapshot", "s"]).exits(1).says("already exists");
}
