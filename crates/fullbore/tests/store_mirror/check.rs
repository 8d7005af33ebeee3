//! `check s3://…`: what it finds in a bucket, mends and says; as of a directory.

use std::fs;

use fullbore_testkit::archive::FileKind;
use fullbore_testkit::faults;

use super::*;

fn mirrored(store: &servers::Server) -> (Bucket, Server) {
    let (bucket, server) = (Bucket::at(&store.url), served(0));
    bucket.run(&server, &[]).exits(0);
    (bucket, server)
}

/// Packages of state 0, by their paths.
fn debs() -> Vec<&'static str> {
    common().state(0).select(|file| file.kind == FileKind::Deb).into_keys().collect()
}

/// An object with other content, as another program would put it there.
fn replace(store: &servers::Server, path: &str, content: &[u8]) {
    let client = servers::Client::new(&store.url);
    let file = client.file("other", content);
    let put = client.run(["put", file.to_str().unwrap(), &format!("{TO}/{path}")]);
    assert_eq!(put.code, 0, "{}", put.stderr);
}

#[test]
fn damage_is_found_and_mended() {
    let store = versitygw();
    let (bucket, server) = mirrored(&store);
    bucket.check(&[]).exits(0).prints("all as signed.");
    let debs = debs();
    let (flipped, gone, other, shorter) = (debs[0], debs[1], debs[2], debs[3]);
    // Damage behind the store's back: its checksum is that of the content which was stored.
    faults::flip_bit(&data(&store).join(flipped), 10).unwrap();
    fs::remove_file(data(&store).join(gone)).unwrap();
    replace(&store, other, &vec![b'x'; fs::metadata(data(&store).join(other)).unwrap().len() as usize]);
    replace(&store, shorter, b"x");
    let found = bucket.check(&[]).exits(4).says("4 files are not as signed").says("--repair");
    for said in [
        format!("{flipped}: SHA-256"),
        format!("{gone}: missing"),
        format!("{other}: SHA-256"),
        format!("{shorter}: size 1, index says"),
    ] {
        assert!(found.stderr.contains(&said), "{said:?} in {}", found.stderr);
    }
    server.take_log();
    let mended = bucket.check(&["--repair"]).exits(0);
    assert_eq!((mended.number("totals.files"), mended.number("totals.missing_files")), (4, 0));
    assert_eq!(pool_requests(&server).len(), 4, "only what was wrong is fetched");
    verified(&data(&store), common(), 0);
    assert_eq!(contents(&data(&store)), *reference(0));
    bucket.check(&[]).exits(0).prints("all as signed.");
    assert!(!data(&store).join(".fullbore/lock").exists());
    bucket.run(&server, &["--changed-exit"]).exits(10);
}

/// Of what the store says, and what is true, each is asked for alone.
#[test]
fn checksums_are_compared_without_a_download() {
    let store = versitygw();
    let (_, server) = mirrored(&store);
    let proxy = Proxy::start(&store.url, |_, _| Action::now());
    let bucket = Bucket::at(&proxy.url);
    let checked = bucket.check(&["--checksums"]).exits(0).prints("all as signed.");
    assert!(checked.number("totals.checked_files") > 30, "{checked:?}");
    let read = proxy.take().into_iter().filter(|line| line.starts_with("GET ") && line.contains("/pool/"));
    assert_eq!(read.count(), 0);
    let debs = debs();
    replace(&store, debs[0], &vec![b'x'; fs::metadata(data(&store).join(debs[0])).unwrap().len() as usize]);
    bucket.check(&["--checksums"]).exits(4).says(&format!("{}: SHA-256", debs[0]));
    // A share of nothing: names and sizes only.
    bucket.check(&["--read-data-subset", "0%"]).exits(0);
    bucket.check(&["--checksums", "--read-data-subset", "5%", "--repair"]).exits(0);
    verified(&data(&store), common(), 0);
    // The content is not as the store's checksum says: only reading finds that.
    faults::flip_bit(&data(&store).join(debs[1]), 10).unwrap();
    bucket.check(&["--checksums"]).exits(0);
    bucket.check(&["--checksums", "--read-data-subset", "100%"]).exits(4).says(&format!("{}: SHA-256", debs[1]));
    drop(server);
}

#[test]
fn an_index_is_mended_from_its_other_name() {
    let store = versitygw();
    let (bucket, server) = mirrored(&store);
    let index = "dists/trixie/main/binary-amd64/Packages.xz";
    replace(&store, index, b"no index");
    server.take_log();
    bucket.check(&["--repair"]).exits(0);
    assert!(server.take_log().is_empty(), "nothing is fetched that is there");
    verified(&data(&store), common(), 0);
    assert_eq!(contents(&data(&store)), *reference(0), "the alias has none of the damage");
    bucket.check(&[]).exits(0);
}

/// What cannot be mended is not copied over what is right.
#[test]
fn an_alias_of_a_suite_that_is_still_wrong_stays_as_it_is() {
    let store = versitygw();
    let (bucket, server) = mirrored(&store);
    let alias = || -> BTreeMap<String, String> {
        contents(&data(&store)).into_iter().filter(|(path, _)| path.starts_with("dists/stable/")).collect()
    };
    let before = alias();
    fs::remove_file(data(&store).join("dists/trixie/InRelease")).unwrap();
    fs::remove_file(data(&store).join("dists/trixie/Release.gpg")).unwrap();
    bucket.check(&["--repair"]).exits(4);
    assert_eq!(alias(), before);
    drop(server);
}

#[test]
fn an_object_that_was_replaced_meanwhile_is_not_overwritten() {
    let store = versitygw();
    let (_, _server) = mirrored(&store);
    let path = debs()[0];
    replace(&store, path, b"wrong");
    let (url, wrong) = (store.url.clone(), path.to_owned());
    let proxy = Proxy::start(&store.url, move |_, line| {
        if line.starts_with("PUT ") && line.contains(&wrong) {
            let client = servers::Client::new(&url);
            let file = client.file("other", b"another program's");
            let put = client.run(["put", file.to_str().unwrap(), &format!("{TO}/{wrong}"), "--overwrite"]);
            assert_eq!(put.code, 0, "{}", put.stderr);
        }
        Action::now()
    });
    Bucket::at(&proxy.url).check(&["--repair"]).exits(6).says("another run has changed the mirror meanwhile");
    assert_eq!(fs::read(data(&store).join(path)).unwrap(), b"another program's");
}

#[test]
fn objects_of_any_tool_are_checked_and_a_bucket_without_an_archive_is_not() {
    let store = versitygw();
    put_by_another_tool(&store);
    let bucket = Bucket::at(&store.url);
    bucket.check(&[]).exits(0).prints("all as signed.");
    assert!(!data(&store).join(".fullbore").exists(), "a check leaves nothing behind");
    fs::remove_file(data(&store).join(debs()[0])).unwrap();
    bucket.check(&["--repair"]).exits(1).says("name a mirror with --from URL");
    let server = served(0);
    bucket.check(&["--repair", "--from", &server.url()]).exits(0);
    bucket.check(&[]).exits(0);
    let mut empty = Bucket::at(&store.url);
    empty.mirror.to = PathBuf::from("s3://bucket/nothing");
    empty.check(&[]).exits(1).says("not a Debian archive");
}

#[test]
fn a_check_waits_for_nobody_and_disturbs_nobody() {
    let store = versitygw();
    let (bucket, server) = mirrored(&store);
    let (reached, is_reached) = std::sync::mpsc::channel();
    let proxy = Proxy::start(&store.url, move |_, line| {
        if line.starts_with("PUT ") && line.contains("/dists/trixie/InRelease") {
            reached.send(()).unwrap();
            return Action::Pass(Duration::from_secs(5));
        }
        Action::now()
    });
    let newer = served(1);
    let slow = Bucket::at(&proxy.url);
    let mut running = slow.command(&newer, &[]);
    let mut child = running.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    is_reached.recv_timeout(Duration::from_secs(60)).unwrap();
    bucket.check(&[]).exits(6).says("another run changes it");
    assert!(child.wait().unwrap().success());
    bucket.check(&[]).exits(0);
    drop(server);
}

#[test]
fn flags_of_buckets_are_refused_for_directories() {
    let mirror = Mirror::new(common());
    fs::create_dir_all(&mirror.to).unwrap();
    mirror.check(&["--checksums"]).exits(1).says("--checksums is for mirrors in a bucket");
}

/// A list that no state names may be all that is left of one.
#[test]
fn a_check_that_only_looks_deletes_nothing() {
    let store = versitygw();
    let (bucket, _server) = mirrored(&store);
    replace(&store, ".fullbore/files-9.zst", b"a killed run's");
    let list = data(&store).join(".fullbore/files-9.zst");
    bucket.check(&[]).exits(0);
    assert!(list.exists());
    bucket.check(&["--repair"]).exits(0);
    assert!(!list.exists());
}
