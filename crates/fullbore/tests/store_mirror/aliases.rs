//! Aliases of suites in a bucket: `dists/stable` has copies of what `dists/trixie` has.

use std::fs;
use std::time::SystemTime;

use fullbore_testkit::archive::{ArchiveBuilder, SuiteSpec};
use harness::signer;

use super::*;

/// Paths below a directory → hashes.
fn below(data: &Path, directory: &str) -> BTreeMap<String, String> {
    let prefix = format!("{directory}/");
    let of = contents(data).into_iter();
    of.filter_map(|(path, hash)| Some((path.strip_prefix(&prefix)?.to_owned(), hash))).collect()
}

#[test]
fn an_alias_has_what_its_suite_has_after_each_run() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    for state in [0, 1] {
        bucket.run(&served(state), &["--keep-generations", "0", "--keep-hours", "0"]).exits(0);
        let (alias, suite) = (below(&data(&store), "dists/stable"), below(&data(&store), "dists/trixie"));
        assert!(suite.len() > 5 && alias == suite, "{state}: {alias:?} and {suite:?}");
    }
    bucket.run(&served(1), &["--changed-exit"]).exits(10);
    // By either name it is the same mirror.
    let mut other = Bucket::at(&store.url);
    other.mirror = Mirror::new(common()).suite("stable");
    other.mirror.to = PathBuf::from(TO);
    other.run(&served(1), &["--changed-exit"]).exits(10);
}

#[test]
fn a_changed_alias_is_noticed_and_restored() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[]).exits(0);
    fs::remove_file(data(&store).join("dists/stable/InRelease")).unwrap();
    bucket.check(&[]).exits(4).says("dists/stable: no complete copy of dists/trixie");
    let run = bucket.run(&served(0), &[]).exits(0);
    assert!(run.stderr.contains("the published dists/stable was changed; it is restored"), "{}", run.stderr);
    assert_eq!(contents(&data(&store)), *reference(0));
    // Another file than the signed ones is missed by those who look at all names.
    let index = data(&store).join("dists/stable/main/binary-amd64/Packages.xz");
    fs::remove_file(&index).unwrap();
    bucket.check(&["--repair"]).exits(0);
    assert!(index.exists());
    bucket.check(&[]).exits(0);
}

#[test]
fn without_aliases_there_are_none_and_old_ones_go() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &["--aliases", "none"]).exits(0);
    assert!(below(&data(&store), "dists/stable").is_empty() && !below(&data(&store), "dists/trixie").is_empty());
    bucket.check(&[]).exits(0);
    bucket.run(&served(1), &[]).exits(0);
    assert!(!below(&data(&store), "dists/stable").is_empty());
    let other = Bucket::at(&store.url);
    fs::remove_dir_all(data(&store)).unwrap();
    other.run(&served(0), &[]).exits(0);
    other.run(&served(1), &["--aliases", "none"]).exits(0);
    assert!(!data(&store).join("dists/stable/InRelease").exists());
    verified(&data(&store), common(), 1);
}

/// A client that has read the `InRelease` before still asks for its indexes.
#[test]
fn when_stable_changes_its_indexes_by_hash_stay_for_a_day() {
    let made = tempfile::tempdir().unwrap();
    let builder = |name: &str| ArchiveBuilder::tiny(made.path().join(name)).signer(signer()).states(3).churn(0.3);
    let first = builder("first").suites(vec![SuiteSpec::main("trixie", "stable")]).build().unwrap();
    let suites = || vec![SuiteSpec::main("trixie", "oldstable"), SuiteSpec::main("forky", "stable")];
    let later = first.state(2).date_unix_s + 3600;
    let second = builder("second").suites(suites()).date_unix_s(later).build().unwrap();
    let store = versitygw();
    // The first state of the second archive has the content of the first one's.
    let server = Server::start(&first.state(2).root).unwrap();
    let mut bucket = Bucket::at(&store.url);
    bucket.mirror = Mirror::new(&first);
    bucket.mirror.to = PathBuf::from(TO);
    let flags = ["--keep-generations", "0", "--keep-hours", "0", "--force-delete", "--suite", "forky"];
    bucket.run(&server, &flags[..5]).exits(0);
    let before = below(&data(&store), "dists/stable");
    let old_by_hash: BTreeMap<&String, &String> = before.iter().filter(|(path, _)| path.contains("by-hash/")).collect();
    assert!(old_by_hash.len() > 2, "{before:?}");
    let (stable, forky) = ("dists/stable", "dists/forky");
    for state in [0, 1] {
        server.switch_root(&second.state(state).root);
        bucket.run(&server, &flags).exits(0);
        let (mut alias, suite) = (below(&data(&store), stable), below(&data(&store), forky));
        assert!(old_by_hash.iter().all(|(path, hash)| alias.get(*path) == Some(*hash)), "{state}: {alias:?}");
        alias.retain(|path, _| suite.contains_key(path) || !old_by_hash.contains_key(path));
        assert_eq!(alias, suite, "{state}");
        bucket.check(&[]).exits(0);
    }
    let changed = SystemTime::now() - Duration::from_secs(25 * 3600);
    let marker = data(&store).join("dists/stable/.fullbore-alias");
    fs::File::options().write(true).open(&marker).unwrap().set_modified(changed).unwrap();
    server.switch_root(&second.state(2).root);
    bucket.run(&server, &flags).exits(0);
    assert_eq!(below(&data(&store), stable), below(&data(&store), forky));
}

/// The state is what says that a directory is an alias; without it, its marker does.
#[test]
fn an_alias_is_known_without_the_state() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[]).exits(0);
    fs::remove_dir_all(data(&store).join(".fullbore")).unwrap();
    bucket.check(&[]).exits(0);
    bucket.run(&served(0), &[]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    bucket.run(&served(1), &[]).exits(0);
    assert_eq!(below(&data(&store), "dists/stable"), below(&data(&store), "dists/trixie"));
}

/// Another program put a suite of its own where the alias was.
fn with_a_foreign_suite(store: &servers::Server) -> BTreeMap<String, String> {
    fs::remove_dir_all(data(store).join("dists/stable")).unwrap();
    let client = servers::Client::new(&store.url);
    for name in ["InRelease", "main/binary-amd64/Packages", "main/binary-amd64/Packages.xz"] {
        let file = client.file("theirs", b"theirs\n");
        let put = client.run(["put", file.to_str().unwrap(), &format!("{TO}/dists/stable/{name}")]);
        assert_eq!(put.code, 0, "{}", put.stderr);
    }
    below(&data(store), "dists/stable")
}

#[test]
fn a_foreign_suite_in_the_place_of_an_alias_stays() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[]).exits(0);
    let theirs = with_a_foreign_suite(&store);
    bucket.check(&["--repair"]).says("dists/stable");
    assert_eq!(below(&data(&store), "dists/stable"), theirs);
    for (state, says) in [(0, true), (0, false), (1, false)] {
        let more = ["--keep-generations", "0", "--keep-hours", "0", "--no-clean"];
        let run = bucket.run(&served(state), &more).exits(0);
        assert_eq!(run.stderr.contains("dists/stable is another program's directory"), says, "{}", run.stderr);
        assert_eq!(below(&data(&store), "dists/stable"), theirs);
    }
    // A new Release, while the state still has the alias.
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[]).exits(0);
    let theirs = with_a_foreign_suite(&store);
    bucket.run(&served(1), &["--no-clean"]).exits(0).says("dists/stable is another program's directory");
    assert_eq!(below(&data(&store), "dists/stable"), theirs);
}

#[test]
fn what_lost_its_marker_is_not_ours() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[]).exits(0);
    let before = below(&data(&store), "dists/stable");
    fs::remove_file(data(&store).join("dists/stable/.fullbore-alias")).unwrap();
    bucket.run(&served(1), &[]).exits(0).says("dists/stable is another program's directory");
    assert_eq!(below(&data(&store), "dists/stable"), before);
}

#[test]
fn no_suite_is_published_among_the_snapshots() {
    let store = versitygw();
    let mut bucket = Bucket::at(&store.url);
    for suite in ["snapshots", "snapshots/s/trixie", "dists/snapshots/s/"] {
        bucket.mirror = Mirror::new(common()).suite(suite);
        bucket.mirror.to = PathBuf::from(TO);
        bucket.run(&served(0), &[]).exits(1).says("dists/snapshots has the snapshots");
    }
    assert!(!data(&store).exists());
}

/// The state of a killed run does not name it, and apt would read it for ever.
#[test]
fn an_alias_that_a_killed_run_began_is_removed_when_it_is_given_up() {
    for last in ["/dists/stable/main/binary-amd64/Packages.xz", "/dists/stable/InRelease", "/.fullbore/state"] {
        let store = versitygw();
        let proxy = Proxy::start(&store.url, move |_, line| {
            if line.starts_with("PUT ") && line.contains(last) { Action::Answer(403) } else { Action::now() }
        });
        Bucket::at(&proxy.url).run(&served(0), &[]).exits(1);
        assert!(data(&store).join("dists/stable/.fullbore-alias").exists(), "{last}");
        Bucket::at(&store.url).run(&served(1), &["--aliases", "none"]).exits(0);
        let left: Vec<String> =
            tree(&data(&store)).into_keys().filter(|path| path.starts_with("dists/stable")).collect();
        assert!(left.is_empty(), "{last}: {left:?}");
        verified(&data(&store), common(), 1);
    }
}

/// The ETag of an object in parts tells of the parts, and is never that of its copy.
#[test]
fn a_copy_is_known_by_its_content() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let name = "dists/trixie/main/binary-amd64/Packages.xz";
    in_parts(&store, name);
    let rest = name.strip_prefix("dists/trixie/").unwrap();
    let copy = format!("/dists/stable/{rest} ");
    // Other settings of the same state are a publication, too.
    for formats in [&["--index-formats", "xz,gz"][..], &[]] {
        let proxy = Proxy::start(&store.url, |_, _| Action::now());
        assert!(Bucket::at(&proxy.url).run(&served(0), formats).exits(0).report["summary"]["changed"] == true);
        let copied = proxy.take().into_iter().filter(|line| line.starts_with("PUT ") && line.contains(&copy)).count();
        assert_eq!(copied, 0, "{formats:?}: {name}");
    }
    assert_eq!(below(&data(&store), "dists/stable"), below(&data(&store), "dists/trixie"));
}

/// Puts an object of fullbore's once more, in one part.
fn in_parts(store: &servers::Server, path: &str) {
    let script = r#"
import boto3, sys
client = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1",
                      aws_access_key_id="fullbore", aws_secret_access_key="only-for-tests")
name = {"Bucket": "bucket", "Key": "debian/" + sys.argv[2]}
old = client.get_object(**name)
content, before = old["Body"].read(), old["ETag"]
upload = client.create_multipart_upload(**name, Metadata=old["Metadata"])["UploadId"]
part = client.upload_part(**name, UploadId=upload, PartNumber=1, Body=content)
parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
client.complete_multipart_upload(**name, UploadId=upload, MultipartUpload=parts)
assert client.head_object(**name)["ETag"] != before
"#;
    let python = servers::program("moto/bin/python");
    let done = Command::new(python).args(["-c", script, &store.url, path]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
