//! The real apt, which reads a mirror in a bucket from the store: versitygw with a bucket that everybody may read.

use std::sync::atomic::{AtomicBool, Ordering};

use fullbore_testkit::archive::{Archive, ArchiveBuilder, FileKind, SuiteSpec};
use harness::apt::{Apt, passable};
use harness::signer;

use super::*;

/// Lets everybody read the published files, and nobody fullbore's own: the policy of docs/guide/mirror.md.
fn publish(store: &servers::Server) {
    let script = r#"
import boto3, json, sys
client = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1",
                      aws_access_key_id="fullbore", aws_secret_access_key="only-for-tests")
statement = lambda effect, what: {"Effect": effect, "Principal": "*", "Action": ["s3:GetObject"],
                                  "Resource": ["arn:aws:s3:::bucket/debian/" + what]}
policy = {"Version": "2012-10-17", "Statement": [statement("Allow", "*"), statement("Deny", ".fullbore/*")]}
client.put_bucket_policy(Bucket="bucket", Policy=json.dumps(policy))
"#;
    let done = Command::new(servers::program("moto/bin/python")).args(["-c", script, &store.url]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// An apt that reads this suite from the store.
fn apt(directory: &Path, store: &servers::Server, archive: &Archive, suite: &str, options: &str) -> Apt {
    let apt = Apt::new(directory.join(suite), &format!("{}/bucket/debian", store.url), &archive.key());
    let sources = apt.directory.join("etc/test.sources");
    let text = fs::read_to_string(&sources).unwrap();
    fs::write(sources, format!("{}{options}", text.replace("Suites: trixie", &format!("Suites: {suite}")))).unwrap();
    apt
}

/// The name of a package of this archive.
fn package(archive: &Archive, state: usize) -> String {
    let debs = archive.state(state).select(|file| file.kind == FileKind::Deb && file.suite == "trixie");
    let amd64 = debs.keys().find(|path| path.ends_with("_amd64.deb")).expect("a package for amd64");
    amd64.rsplit('/').next().and_then(|name| name.split('_').next()).unwrap().to_owned()
}

/// Downloads the package with all that it needs, as `apt-get install` does before dpkg has its turn.
#[track_caller]
fn installs(apt: &Apt, name: &str) {
    let archives = apt.directory.join("archives");
    for entry in fs::read_dir(&archives).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_some_and(|extension| extension == "deb") {
            fs::remove_file(entry).unwrap();
        }
    }
    apt.get(&["install", "--yes", "--download-only", name]).well();
    let debs = fs::read_dir(archives)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "deb"));
    assert!(debs.count() > 0, "{name}");
}

#[test]
fn apt_updates_and_installs_from_a_bucket_by_codename_and_by_alias() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    publish(&store);
    let directory = passable();
    for suite in ["trixie", "stable"] {
        let apt = apt(directory.path(), &store, common(), suite, "");
        apt.update(&[]).well();
        installs(&apt, &package(common(), 0));
    }
    // From a snapshot, too. apt warns, because the Release has the name of its suite.
    Bucket::at(&store.url).run(&served(0), &["--snapshot", "s"]).exits(0);
    let of_snapshot = apt(directory.path(), &store, common(), "snapshots/s/trixie", "");
    let updated = of_snapshot.update(&[]);
    assert!(updated.code == Some(0) && !updated.text.contains("Err:"), "{}", updated.text);
    let name = package(common(), 0);
    assert_eq!(of_snapshot.get(&["install", "--yes", "--download-only", &name]).code, Some(0));
    // What is fullbore's own is nobody's.
    let answer = plain_get(&store, "/bucket/debian/.fullbore/state");
    assert!(answer.contains(" 403 "), "{answer}");
}

/// The first line of an answer to a request without a signature.
fn plain_get(store: &servers::Server, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let address = store.url.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer.lines().next().unwrap_or_default().to_owned()
}

/// Publications while apt updates again and again: by hash no update fails.
#[test]
fn apt_sees_no_error_while_new_states_are_published() {
    let states = if std::env::var_os("FULLBORE_TEST_LONG").is_some() { 100 } else { 8 };
    let made = tempfile::tempdir().unwrap();
    let builder = ArchiveBuilder::tiny(made.path().join("archive")).signer(signer()).states(states).churn(0.3);
    let archive = builder.build().unwrap();
    let store = versitygw();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mut bucket = Bucket::at(&store.url);
    bucket.mirror = Mirror::new(&archive);
    bucket.mirror.to = PathBuf::from(TO);
    let flags = ["--keep-generations", "2", "--keep-hours", "0", "--force-delete"];
    bucket.run(&server, &flags).exits(0);
    publish(&store);
    let directory = passable();
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = ["trixie", "stable"]
        .map(|suite| {
            let apt = apt(directory.path(), &store, &archive, suite, "By-Hash: yes\n");
            let over = over.clone();
            std::thread::spawn(move || {
                let mut updates = 0;
                while !over.load(Ordering::Relaxed) {
                    apt.update(&[]).well();
                    updates += 1;
                }
                updates
            })
        })
        .into_iter()
        .collect();
    let mut deleted = 0;
    for state in 1..states {
        server.switch_root(&archive.state(state).root);
        deleted += bucket.run(&server, &flags).exits(0).number("totals.deleted_files");
    }
    over.store(true, Ordering::Relaxed);
    for client in clients {
        assert!(client.join().expect("no update failed") > 1);
    }
    assert!(deleted > 0);
}

/// What became of the updates and installations of one apt.
#[derive(Debug, Default)]
struct Outcomes {
    updates: usize,
    failed_updates: usize,
    installations: usize,
    failed_installations: usize,
    /// Of these, those that apt blamed on content.
    mismatches: usize,
    first_failure: Option<String>,
}

/// The first package of apt's lists.
fn first_package(apt: &Apt) -> String {
    let text = String::from_utf8(apt.packages()).unwrap();
    text.lines().find_map(|line| line.strip_prefix("Package: ")).expect("a package").to_owned()
}

/// A hundred publications, with deletions, and with another suite that becomes stable among them, while apt updates and
/// downloads without a pause. By hash nothing fails. Without, an update may meet names of two states, as on every mirror;
/// how often, the test prints.
#[test]
#[ignore = "long"]
fn apt_updates_and_installs_while_a_hundred_states_are_published() {
    const STATES: usize = 51;
    let made = tempfile::tempdir().unwrap();
    let builder = |name: &str| ArchiveBuilder::tiny(made.path().join(name)).signer(signer()).states(STATES).churn(0.3);
    let first = builder("first").suites(vec![SuiteSpec::main("trixie", "stable")]).build().unwrap();
    let later = first.state(STATES - 1).date_unix_s + 3600;
    let suites = vec![SuiteSpec::main("trixie", "oldstable"), SuiteSpec::main("forky", "stable")];
    let second = builder("second").suites(suites).date_unix_s(later).build().unwrap();
    let store = versitygw();
    let server = Server::start(&first.state(0).root).unwrap();
    let mut bucket = Bucket::at(&store.url);
    bucket.mirror = Mirror::new(&first);
    bucket.mirror.to = PathBuf::from(TO);
    let flags = ["--keep-generations", "5", "--keep-hours", "0", "--force-delete"];
    bucket.run(&server, &flags).exits(0);
    publish(&store);
    let directory = passable();
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = [("trixie", "yes"), ("stable", "yes"), ("trixie", "no"), ("stable", "no")]
        .map(|(suite, by_hash)| {
            let home = directory.path().join(by_hash);
            fs::create_dir_all(&home).unwrap();
            let apt = apt(&home, &store, &first, suite, &format!("By-Hash: {by_hash}\n"));
            let over = over.clone();
            let client = std::thread::spawn(move || {
                let mut outcomes = Outcomes::default();
                while !over.load(Ordering::Relaxed) {
                    // Another suite is stable by and by.
                    let updated = apt.update(&["Acquire::AllowReleaseInfoChange=true"]);
                    outcomes.updates += 1;
                    let mut failed = None;
                    if updated.code != Some(0) || updated.text.contains("Err:") {
                        outcomes.failed_updates += 1;
                        failed = Some(updated.text);
                    } else {
                        let archives = apt.directory.join("archives");
                        for entry in fs::read_dir(&archives).unwrap().map(|entry| entry.unwrap().path()) {
                            if entry.extension().is_some_and(|extension| extension == "deb") {
                                fs::remove_file(entry).unwrap();
                            }
                        }
                        let installed = apt.get(&["install", "--yes", "--download-only", &first_package(&apt)]);
                        outcomes.installations += 1;
                        if installed.code != Some(0) {
                            outcomes.failed_installations += 1;
                            failed = Some(installed.text);
                        }
                    }
                    if let Some(text) = failed {
                        outcomes.mismatches +=
                            usize::from(text.contains("Hash Sum mismatch") || text.contains("unexpected size"));
                        outcomes.first_failure.get_or_insert(text);
                    }
                }
                outcomes
            });
            (suite, by_hash, client)
        })
        .into_iter()
        .collect();
    let mut deleted = 0;
    let mut publications = 0;
    for (archive, suites) in [(&first, &[][..]), (&second, &["--suite", "forky"])] {
        let flags = [&flags, suites].concat();
        for state in 0..STATES {
            server.switch_root(&archive.state(state).root);
            deleted += bucket.run(&server, &flags).exits(0).number("totals.deleted_files");
            publications += 1;
        }
    }
    over.store(true, Ordering::Relaxed);
    assert!(publications > 100 && deleted > 100, "{publications} publications, {deleted} files deleted");
    let target = fs::read_to_string(data(&store).join("dists/stable/.fullbore-alias")).unwrap();
    assert_eq!(target, "forky");
    for (suite, by_hash, client) in clients {
        let outcomes = client.join().expect("apt runs");
        println!("{suite}, By-Hash: {by_hash}: {outcomes:?}");
        assert!(outcomes.updates > 20 && outcomes.installations > 20, "{outcomes:?}");
        if by_hash == "yes" {
            assert_eq!((outcomes.failed_updates, outcomes.failed_installations), (0, 0), "{outcomes:?}");
        }
    }
}
