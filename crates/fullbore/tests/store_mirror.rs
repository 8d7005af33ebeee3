//! `mirror --to s3://…` against versitygw, whose objects are files that can be looked at, and against moto. The faults S1
//! to S9 are those of docs/design/0021-mirror-in-a-bucket.md.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "store_mirror/accounts.rs"]
mod accounts;
#[path = "store_mirror/aliases.rs"]
mod aliases;
#[path = "store_mirror/apt.rs"]
mod apt;
#[path = "store_mirror/check.rs"]
mod check;
#[path = "store_mirror/failing.rs"]
mod failing;
#[path = "store_mirror/fleet.rs"]
mod fleet;
#[path = "store_mirror/fleet_faults.rs"]
mod fleet_faults;
#[path = "store_mirror/fleet_runs.rs"]
mod fleet_runs;
mod harness;
#[path = "store_mirror/overtaken.rs"]
mod overtaken;
#[path = "store_mirror/policies.rs"]
mod policies;
#[path = "s3/proxy.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod proxy;
#[path = "store_mirror/queue_faults.rs"]
mod queue_faults;
#[path = "store_mirror/queue_security.rs"]
mod queue_security;
#[path = "store_mirror/round_trips.rs"]
mod round_trips;
#[path = "s3/servers.rs"]
#[allow(dead_code, unused_imports, reason = "shared by several test binaries")]
mod servers;
#[path = "store_mirror/shards.rs"]
mod shards;
#[path = "store_mirror/snapshots.rs"]
mod snapshots;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use fullbore_testkit::server::Server;
use harness::{Mirror, Ran, common, tree, verified};
use proxy::{Action, Proxy};
use servers::{moto, versitygw};

const TO: &str = "s3://bucket/debian";

/// Credentials, as variables of the environment.
const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "fullbore"), ("AWS_SECRET_ACCESS_KEY", "only-for-tests")];

/// A mirror in a bucket.
struct Bucket {
    mirror: Mirror,
    endpoint: String,
    /// Credentials, as variables of the environment.
    keys: Vec<(&'static str, &'static str)>,
}

impl Bucket {
    fn at(endpoint: &str) -> Bucket {
        let mut mirror = Mirror::new(common());
        mirror.to = PathBuf::from(TO);
        Bucket { mirror, endpoint: endpoint.to_owned(), keys: KEYS.to_vec() }
    }

    fn command(&self, from: &Server, more: &[&str]) -> Command {
        let mut command = self.mirror.command(&[from], more);
        command.args(["--endpoint", &self.endpoint]);
        command.envs(self.keys.iter().copied());
        command
    }

    fn run(&self, from: &Server, more: &[&str]) -> Ran {
        self.mirror.finish(self.command(from, more))
    }

    fn check(&self, more: &[&str]) -> Ran {
        let mut command = self.mirror.check_command(more);
        command.args(["--endpoint", &self.endpoint]);
        command.envs(self.keys.iter().copied());
        self.mirror.finish(command)
    }
}

fn served(state: usize) -> Server {
    Server::start(&common().state(state).root).unwrap()
}

/// Path → hash of what a mirror in a directory has of each state.
fn reference(state: usize) -> &'static BTreeMap<String, String> {
    static REFERENCES: OnceLock<[BTreeMap<String, String>; 2]> = OnceLock::new();
    let made = |state| {
        let mirror = Mirror::new(common());
        mirror.run(&[&served(state)]).exits(0);
        contents(&mirror.to)
    };
    &REFERENCES.get_or_init(|| [made(0), made(1)])[state]
}

/// Path → hash of the published files. A bucket has copies in the place of links, and a marker in each directory of them.
fn contents(of: &Path) -> BTreeMap<String, String> {
    let of_file = |what: &str| what.split_once(' ').map(|(_, hash)| hash.to_owned()).unwrap_or_default();
    let (links, files): (Vec<_>, Vec<_>) = tree(of).into_iter().partition(|(_, what)| what.starts_with("->"));
    let mut contents: BTreeMap<String, String> =
        files.iter().map(|(path, what)| (path.clone(), of_file(what))).collect();
    for (link, target) in links {
        let target = format!("dists/{}/", target.trim_start_matches("-> "));
        let below = files.iter().filter_map(|(path, what)| Some((path.strip_prefix(&target)?, what)));
        contents.extend(below.map(|(rest, what)| (format!("{link}/{rest}"), of_file(what))));
    }
    contents.retain(|path, _| !path.ends_with("/.fullbore-alias"));
    contents
}

fn data(store: &servers::Server) -> PathBuf {
    store.directory.path().join("data/bucket/debian")
}

/// The state whose InRelease is published, of which a client that asks by hash finds everything; none without one. The
/// same holds for the alias, which is published after it.
#[track_caller]
fn visible(data: &Path) -> Option<usize> {
    let here = contents(data);
    let state_of = |suite: &str| {
        let inrelease = format!("dists/{suite}/InRelease");
        let published = here.get(&inrelease)?;
        let state = (0..2).find(|state| reference(*state).get(&inrelease) == Some(published));
        let state = state.expect("the InRelease is one of the archive's");
        for (path, hash) in reference(state) {
            let is_of_suite = path.starts_with(&format!("dists/{suite}/"));
            if path.starts_with("pool/") || is_of_suite && path.contains("/by-hash/") {
                assert_eq!(here.get(path), Some(hash), "{path}, which dists/{suite} of state {state} leads to");
            }
        }
        Some(state)
    };
    state_of("stable");
    state_of("trixie")
}

/// The pool files that were asked for, each once.
fn pool_requests(server: &Server) -> Vec<String> {
    let paths = server.log().into_iter().map(|entry| entry.path).filter(|path| path.starts_with("/pool/"));
    paths.collect::<std::collections::BTreeSet<String>>().into_iter().collect()
}

/// What the store says of an object for caches.
fn cache_control(store: &servers::Server, path: &str) -> String {
    let script = r#"
import boto3, sys
client = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1",
                      aws_access_key_id="fullbore", aws_secret_access_key="only-for-tests")
print(client.head_object(Bucket="bucket", Key="debian/" + sys.argv[2]).get("CacheControl", ""))
"#;
    let python = servers::program("moto/bin/python");
    let done = Command::new(python).args(["-c", script, &store.url, path]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Copies a bucket with the attributes that are its metadata.
fn copy_bucket(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_bucket_has_what_a_directory_has_and_is_updated_and_cleaned() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    let first = bucket.run(&served(0), &[]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    verified(&data(&store), common(), 0);
    assert!(first.number("totals.files") > 0);
    let again = bucket.run(&served(0), &["--changed-exit"]).exits(10);
    assert_eq!(again.number("totals.files"), 0);
    // With an earlier state's files kept, and then without.
    bucket.run(&served(1), &[]).exits(0);
    verified(&data(&store), common(), 1);
    let both = contents(&data(&store));
    assert!(reference(0).keys().filter(|path| path.starts_with("pool/")).all(|path| both.contains_key(path)));
    let directory = Mirror::new(common());
    directory.run(&[&served(0)]).exits(0);
    directory.run(&[&served(1)]).exits(0);
    assert_eq!(both, contents(&directory.to));
    let other = Bucket::at(&store.url);
    fs::remove_dir_all(data(&store)).unwrap();
    let at_once = ["--keep-generations", "0", "--keep-hours", "0"];
    other.run(&served(0), &at_once).exits(0);
    let cleaned = other.run(&served(1), &at_once).exits(0);
    assert!(cleaned.number("totals.deleted_files") > 0, "{cleaned:?}");
    assert_eq!(contents(&data(&store)), *reference(1));
    let own: Vec<String> = fs::read_dir(data(&store).join(".fullbore"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut own: Vec<&str> = own.iter().map(String::as_str).collect();
    own.sort_unstable();
    assert_eq!(own, ["files-2.zst", "state"], "no lock, no mark, no old list");
}

/// As in a directory, and for other hosts to see.
#[test]
fn a_mark_is_at_the_top_while_a_run_changes_the_mirror() {
    let store = versitygw();
    let proxy = Proxy::start(&store.url, |_, _| Action::now());
    Bucket::at(&proxy.url).run(&served(0), &["--trace-host", "mirror.example.org"]).exits(0);
    let asked = proxy.take();
    let place = |method: &str, path: &str| {
        let line = format!("{method} /bucket/debian/{path}");
        asked.iter().position(|request| request.starts_with(&line)).unwrap_or_else(|| panic!("{line} in {asked:?}"))
    };
    let mark = "Archive-Update-in-Progress-mirror.example.org";
    assert!(place("PUT", mark) < place("PUT", "pool/"));
    assert!(place("PUT", "project/trace/mirror.example.org") < place("DELETE", mark));
    assert!(!data(&store).join(mark).exists());
    // That of a killed run goes with the next one that changes something.
    fs::write(data(&store).join(mark), "").unwrap();
    Bucket::at(&store.url).run(&served(1), &["--trace-host", "mirror.example.org"]).exits(0);
    assert!(!data(&store).join(mark).exists());
}

#[test]
fn moto_takes_a_mirror() {
    takes_a_mirror(&moto(), &KEYS, &[]);
}

#[test]
#[ignore = "script/test-long builds MinIO"]
fn minio_takes_a_mirror() {
    takes_a_mirror(&servers::minio(), &KEYS, &[]);
}

/// It ignores conditions.
#[test]
#[ignore = "script/test-long builds Garage"]
fn garage_takes_a_mirror() {
    let keys = [servers::GARAGE_KEYS[0], servers::GARAGE_KEYS[1], ("AWS_REGION", "garage")];
    takes_a_mirror(&servers::garage(), &keys, &["--lock", "none"]);
}

fn takes_a_mirror(store: &servers::Server, keys: &[(&'static str, &'static str)], flags: &[&'static str]) {
    let mut bucket = Bucket::at(&store.url);
    bucket.keys = keys.to_vec();
    let with = |more: &[&'static str]| [flags, more].concat();
    bucket.run(&served(0), flags).exits(0);
    bucket.run(&served(0), &with(&["--changed-exit"])).exits(10);
    bucket.run(&served(1), &with(&["--snapshot", "s"])).exits(0);
    let checked = bucket.check(flags).exits(0).prints("all as signed.");
    assert!(checked.number("totals.checked_files") as usize > reference(1).len() / 2, "{checked:?}");
    bucket.check(&with(&["--checksums", "--repair"])).exits(0);
    let mut client = servers::Client::new(&store.url);
    client.variables = keys.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    for (path, hash) in reference(1) {
        let (digest, _) = {
            let to = client.home.path().join("f");
            let got = client.run(["get", &format!("{TO}/{path}"), "-o", to.to_str().unwrap()]);
            assert_eq!(got.code, 0, "{path}: {}", got.stderr);
            fullbore_testkit::digest::Digest::of_file(&to).unwrap()
        };
        assert_eq!(digest.to_string(), *hash, "{path}");
    }
}

#[test]
fn nothing_new_is_two_round_trips_and_no_lock() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    for suite in ["trixie", "stable"] {
        // The times at which requests arrive show the rounds.
        let times = Arc::new(Mutex::new(Vec::new()));
        let arrived = times.clone();
        let proxy = Proxy::start(&store.url, move |_, _| {
            arrived.lock().unwrap().push(Instant::now());
            Action::Pass(Duration::from_secs(1))
        });
        let mut bucket = Bucket::at(&proxy.url);
        bucket.mirror = Mirror::new(common()).suite(suite);
        bucket.mirror.to = PathBuf::from(TO);
        let run = bucket.run(&served(0), &["--changed-exit"]).exits(10);
        let asked = proxy.take();
        assert!(asked.iter().all(|request| request.starts_with("GET ") || request.starts_with("HEAD ")), "{asked:?}");
        assert_eq!(run.number("totals.requests"), 1, "the origin is asked whether it has another InRelease");
        let times = times.lock().unwrap();
        let later = times.windows(2).filter(|two| two[1] - two[0] > Duration::from_millis(500)).count();
        assert_eq!(later + 1, 2, "{suite}: {asked:?} at {times:?}");
        assert!(asked.len() <= 8, "{suite}: {asked:?}");
    }
}

/// S1.
#[test]
fn a_run_killed_at_any_request_harms_nobody_and_is_completed() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let kept = store.directory.path().join("kept");
    copy_bucket(&data(&store), &kept);
    let server = served(1);
    let mut killed = 0;
    let mut published = 0;
    for n in (1..).step_by(step()) {
        copy_bucket(&kept, &data(&store));
        let proxy = Proxy::start(&store.url, move |number, _| if number == n { Action::Kill } else { Action::now() });
        let bucket = Bucket::at(&proxy.url);
        let child = bucket.command(&server, &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        proxy.kills(child.id());
        let ended = child.wait_with_output().unwrap();
        let state = visible(&data(&store)).expect("one was published before");
        if ended.status.success() {
            assert_eq!(state, 1);
            break;
        }
        killed += 1;
        published += state;
        let completed = Bucket::at(&store.url).run(&server, &[]).exits(0);
        assert!(!completed.stderr.contains("warning"), "{n}: {}", completed.stderr);
        verified(&data(&store), common(), 1);
        assert_eq!(visible(&data(&store)), Some(1));
    }
    assert!(killed > 15, "{killed} of {}", step());
    assert!(published < killed);
}

/// Each third request in the usual tests, each in long ones.
fn step() -> usize {
    if std::env::var_os("FULLBORE_TEST_LONG").is_some() { 1 } else { 3 }
}

/// S3: one of so many requests, each once, so that the second copy of each goes well.
fn nothing_changes_if(name: &str, action: Action, one_of: usize) {
    let server = served(0);
    let store = versitygw();
    let mut seen = std::collections::HashSet::new();
    let proxy = Proxy::start(&store.url, move |number, line| {
        if seen.insert(line.to_owned()) && number % one_of == 0 { action } else { Action::now() }
    });
    Bucket::at(&proxy.url).run(&server, &[]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0), "{name}");
    assert!(!data(&store).join(".fullbore/lock").exists(), "{name}");
    assert!(proxy.take().len() > 30, "{name}");
}

/// S3.
#[test]
fn lost_answers_change_nothing() {
    nothing_changes_if("lost", Action::LoseAnswer, 2);
}

/// S3.
#[test]
fn pleas_for_less_change_nothing() {
    // After each of them, requests go out more slowly.
    nothing_changes_if("refused", Action::Answer(503), 10);
}

/// S3.
#[test]
fn late_answers_change_nothing() {
    nothing_changes_if("late", Action::late(), 2);
}

/// S4.
#[test]
fn a_listing_that_never_ends_ends_the_run() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[]).exits(0);
    fs::remove_dir_all(data(&store).join(".fullbore")).unwrap();
    let proxy = Proxy::start(&store.url, |_, line| match line.contains("list-type=2") {
        true => Action::SamePage,
        false => Action::now(),
    });
    let before = contents(&data(&store));
    let run = Bucket::at(&proxy.url).run(&served(1), &[]).exits(3);
    assert!(run.stderr.contains("would never end"), "{}", run.stderr);
    let pages = proxy.take().iter().filter(|line| line.contains("list-type=2")).count();
    assert!((2..100).contains(&pages), "{pages}");
    assert_eq!(visible(&data(&store)), Some(0));
    assert_eq!(contents(&data(&store)), before);
    bucket.run(&served(1), &[]).exits(0);
    verified(&data(&store), common(), 1);
}

/// S5.
#[test]
fn a_state_that_another_run_has_replaced_is_not_overwritten() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let (url, path) = (store.url.clone(), data(&store));
    let proxy = Proxy::start(&store.url, move |_, line| {
        if line.starts_with("PUT ") && line.contains("/.fullbore/state") {
            let client = servers::Client::new(&url);
            let file = client.file("state", b"another run's");
            let put = client.run(["put", file.to_str().unwrap(), "s3://bucket/debian/.fullbore/state"]);
            assert_eq!(put.code, 0, "{}", put.stderr);
        }
        Action::now()
    });
    let run = Bucket::at(&proxy.url).run(&served(1), &[]).exits(6);
    assert!(run.stderr.contains("another run has changed the mirror meanwhile"), "{}", run.stderr);
    assert_eq!(fs::read(path.join(".fullbore/state")).unwrap(), b"another run's");
    visible(&path).unwrap();
}

/// S6.
#[test]
fn the_delete_guard_holds_in_a_bucket() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[]).exits(0);
    let client = servers::Client::new(&store.url);
    (0..30).for_each(|number| drop(client.file(&format!("foreign/{number}"), &[b'x'; 30_000])));
    let foreign = client.home.path().join("foreign");
    let put = client.run(["put", foreign.to_str().unwrap(), &format!("{TO}/pool/foreign")]);
    assert_eq!(put.code, 0, "{}", put.stderr);
    let count = || contents(&data(&store)).keys().filter(|path| path.starts_with("pool/foreign/")).count();
    let refused = bucket.run(&served(1), &["--clean-foreign"]).exits(2);
    assert!(refused.stderr.contains("refused to delete"), "{}", refused.stderr);
    assert_eq!(count(), 30);
    verified(&data(&store), common(), 1);
    bucket.run(&served(1), &["--clean-foreign", "--force-delete"]).exits(0);
    assert_eq!(count(), 0);
    verified(&data(&store), common(), 1);
}

/// S7.
#[test]
fn a_lost_state_costs_no_download() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    bucket.run(&served(0), &[]).exits(0);
    fs::remove_dir_all(data(&store).join(".fullbore")).unwrap();
    let server = served(0);
    let again = bucket.run(&server, &[]).exits(0);
    let fetched = pool_requests(&server);
    assert!(fetched.is_empty(), "{fetched:?}");
    assert_eq!(contents(&data(&store)), *reference(0));
    assert!(again.stderr.lines().all(|line| !line.contains("error")), "{}", again.stderr);
    bucket.run(&server, &["--changed-exit"]).exits(10);
}

/// State 0 in the bucket, as a tool puts it there that only copies directories.
fn put_by_another_tool(store: &servers::Server) -> servers::Client {
    let directory = Mirror::new(common());
    directory.run(&[&served(0)]).exits(0);
    let client = servers::Client::new(&store.url);
    let put = client.run(["put", directory.to.to_str().unwrap(), TO]);
    assert_eq!(put.code, 0, "{}", put.stderr);
    client
}

/// S8.
#[test]
fn objects_of_another_tool_are_taken_over_and_wrong_ones_replaced() {
    let store = versitygw();
    let client = put_by_another_tool(&store);
    let pool: Vec<&String> = reference(0).keys().filter(|path| path.starts_with("pool/")).collect();
    let (wrong, shorter) = (pool[0], pool[1]);
    let length = fs::metadata(data(&store).join(wrong)).unwrap().len() as usize;
    for (path, content) in [(wrong, vec![b'x'; length]), (shorter, vec![b'x'; 3])] {
        let file = client.file("wrong", &content);
        let put = client.run(["put", file.to_str().unwrap(), &format!("{TO}/{path}")]);
        assert_eq!(put.code, 0, "{}", put.stderr);
    }
    let server = served(0);
    Bucket::at(&store.url).run(&server, &[]).exits(0);
    let fetched = pool_requests(&server);
    let mut expected = [format!("/{wrong}"), format!("/{shorter}")];
    expected.sort_unstable();
    assert_eq!(fetched, expected);
    assert_eq!(contents(&data(&store)), *reference(0));
}

/// S9.
#[test]
fn a_run_frozen_while_publishing_does_not_undo_what_another_published() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let (reached, is_reached) = std::sync::mpsc::channel();
    let proxy = Proxy::start(&store.url, move |_, line| {
        if line.starts_with("PUT ") && line.contains("/dists/trixie/InRelease") {
            reached.send(()).unwrap();
            return Action::Pass(Duration::from_secs(20));
        }
        Action::now()
    });
    let frozen = Bucket::at(&proxy.url);
    let server = served(1);
    let mut child = frozen.command(&server, &[]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    is_reached.recv_timeout(Duration::from_secs(60)).unwrap();
    let refused = Bucket::at(&store.url).run(&served(1), &[]).exits(6);
    assert!(refused.stderr.contains("another run changes it: process"), "{}", refused.stderr);
    // By the store's clock the lock is over.
    let lock = data(&store).join(".fullbore/lock");
    let done = Command::new("touch").args(["-d", "10 minutes ago"]).arg(&lock).status().unwrap();
    assert!(done.success());
    Bucket::at(&store.url).run(&served(1), &[]).exits(0);
    let published = contents(&data(&store));
    let ended = child.wait().unwrap();
    assert_eq!(ended.code(), Some(6));
    assert_eq!(contents(&data(&store)), published);
    verified(&data(&store), common(), 1);
    Bucket::at(&store.url).run(&served(1), &["--changed-exit"]).exits(10);
}

#[test]
fn a_run_that_failed_between_the_first_look_and_the_lock_is_noticed() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let mark = data(&store).join(".fullbore/unfinished");
    let left = mark.clone();
    let proxy = Proxy::start(&store.url, move |_, line| {
        if line.starts_with("PUT ") && line.contains("/.fullbore/lock") && !left.exists() {
            fs::write(&left, "").unwrap();
        }
        Action::now()
    });
    let run = Bucket::at(&proxy.url).run(&served(1), &[]).exits(6);
    assert!(run.stderr.contains("another run has changed the mirror"), "{}", run.stderr);
    assert_eq!(visible(&data(&store)), Some(0));
    Bucket::at(&store.url).run(&served(1), &[]).exits(0);
    verified(&data(&store), common(), 1);
    assert!(!mark.exists());
}

/// F13: a store that ignores conditions
#[test]
fn a_store_without_conditions_is_refused() {
    let store = versitygw();
    for ignored in ["if-none-match", "if-match", "if-"] {
        let proxy = Proxy::start(&store.url, move |_, _| Action::Ignore(ignored));
        let run = Bucket::at(&proxy.url).run(&served(0), &[]).exits(1);
        assert!(
            run.stderr.contains("the store ignores conditions") && run.stderr.contains("--lock none"),
            "{ignored}: {}",
            run.stderr
        );
        assert!(!data(&store).join("dists").exists());
        assert!(!data(&store).join(".fullbore/lock").exists(), "{ignored}");
    }
}

#[test]
fn a_store_without_conditions_is_used_with_lock_none() {
    let store = versitygw();
    let proxy = Proxy::start(&store.url, |_, _| Action::Ignore("if-"));
    let bucket = Bucket::at(&proxy.url);
    let flags = ["--lock", "none", "--cache-control", "max-age=7"];
    bucket.run(&served(0), &flags).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    bucket.run(&served(0), &["--lock", "none", "--changed-exit"]).exits(10);
    bucket.run(&served(1), &flags).exits(0);
    verified(&data(&store), common(), 1);
    bucket.check(&["--lock", "none", "--repair"]).exits(0);
    assert!(!data(&store).join(".fullbore/lock").exists());
    let value = |path: &str| cache_control(&store, path);
    assert_eq!(value("dists/trixie/InRelease"), "max-age=7");
    assert!(value(reference(1).keys().find(|path| path.starts_with("pool/")).unwrap()).contains("immutable"));
}

#[test]
fn a_listing_in_ranges_is_the_whole_listing() {
    for store in [versitygw(), moto()] {
        let client = servers::Client::new(&store.url);
        (0..50).for_each(|number| drop(client.file(&format!("many/{number:02}"), b"x")));
        let put = client.run(["put", client.home.path().join("many").to_str().unwrap(), &format!("{TO}/pool")]);
        assert_eq!(put.code, 0, "{}", put.stderr);
        let proxy = Proxy::start(&store.url, |_, _| Action::now());
        let settings = fullbore_s3::bucket::BucketSettings {
            location: fullbore_s3::Location::parse(TO).unwrap(),
            endpoint: Some(proxy.url.clone()),
            region: Some("us-east-1".to_owned()),
            addressing: fullbore_s3::Addressing::Path,
            signs: true,
            authorities: None,
            connections: 16,
            patience: Duration::from_secs(30),
            proxy: Default::default(),
            aws: fullbore_s3::credentials::Aws::find(
                &|name| match name {
                    "AWS_ACCESS_KEY_ID" => Some("fullbore".to_owned()),
                    "AWS_SECRET_ACCESS_KEY" => Some("only-for-tests".to_owned()),
                    _ => None,
                },
                None,
            )
            .unwrap(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (_stop, stopped) = tokio::sync::watch::channel(false);
        let _inside = runtime.enter();
        let ledger = fullbore_engine::stage::Ledger::off();
        let objects = fullbore_s3::objects::Objects::open(&settings, stopped, &ledger).unwrap();
        let whole = runtime.block_on(objects.list("pool/")).unwrap();
        assert_eq!(whole.len(), 50);
        proxy.take();
        let parted = ["pool/09", "pool/095", "pool/30", "pool/99"].map(str::to_owned);
        assert_eq!(runtime.block_on(objects.list_in_ranges("pool/", &parted)).unwrap(), whole);
        assert_eq!(proxy.take().iter().filter(|line| line.contains("start-after=")).count(), 4);
    }
}

#[test]
fn the_state_may_be_elsewhere() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    let flags = ["--state", "s3://bucket/private/debian"];
    bucket.run(&served(0), &flags).exits(0);
    assert!(!data(&store).join(".fullbore").exists());
    assert!(store.directory.path().join("data/bucket/private/debian/.fullbore/state").exists());
    bucket.run(&served(0), &[&flags[..], &["--changed-exit"]].concat()).exits(10);
    bucket.run(&served(1), &flags).exits(0);
    verified(&data(&store), common(), 1);
    bucket.check(&flags).exits(0).prints("all as signed.");
    assert!(!data(&store).join(".fullbore").exists());
}

#[test]
fn the_state_may_be_in_a_directory() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let flags = ["--state", state.to_str().unwrap()];
    bucket.run(&served(0), &flags).exits(0);
    assert!(!data(&store).join(".fullbore").exists());
    bucket.run(&served(0), &[&flags[..], &["--changed-exit"]].concat()).exits(10);
    bucket.run(&served(1), &[&flags[..], &["--keep-generations", "0", "--keep-hours", "0"]].concat()).exits(0);
    assert_eq!(contents(&data(&store)), *reference(1));
    bucket.check(&flags).exits(0).prints("all as signed.");
    bucket.check(&[&flags[..], &["--repair"]].concat()).exits(0);
    let names = |directory: &Path| {
        let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&state.join(".fullbore")), ["files-2.zst", "lock", "state"]);
    assert!(!data(&store).join(".fullbore").exists());
    // Two runs that have the directory are kept apart.
    let lock = fs::File::open(state.join(".fullbore/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let news = [&flags[..], &["--index-formats", "xz"]].concat();
    bucket.run(&served(1), &news).exits(6).says("is in use by another run");
    drop(lock);
    // It is of this mirror alone.
    let mut moved = Bucket::at(&store.url);
    moved.mirror.to = PathBuf::from("s3://bucket/moved");
    moved.run(&served(1), &flags).exits(1).says("that of the mirror s3://bucket/debian");
    // A lost state costs no download.
    fs::remove_dir_all(&state).unwrap();
    let server = served(1);
    bucket.run(&server, &flags).exits(0);
    assert!(pool_requests(&server).is_empty());
}

/// The indexes that were asked for.
fn index_requests(server: &Server) -> usize {
    server.log().into_iter().filter(|entry| entry.path.contains("Packages") || entry.path.contains("/by-hash/")).count()
}

#[test]
fn a_cache_saves_the_download_of_indexes() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let flags = ["--cache", cache.to_str().unwrap()];
    bucket.run(&served(0), &flags).exits(0);
    let kept: Vec<PathBuf> = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!kept.is_empty());
    // Another mirror of the same archive: what is read need not be fetched, nor asked of the bucket.
    let other = |more: &[&str]| {
        let mut other = Bucket::at(&store.url);
        other.mirror.to = PathBuf::from(format!("{TO}-{}", more.len()));
        let server = served(0);
        other.run(&server, more).exits(0);
        index_requests(&server)
    };
    let (without, with) = (other(&[]), other(&flags));
    assert_eq!(without - with, kept.len(), "{without} without, {with} with");
    // One that was changed is fetched again, and replaced.
    let wrong = &kept[0];
    let length = fs::metadata(wrong).unwrap().len() as usize;
    let right = fs::read(wrong).unwrap();
    fs::write(wrong, vec![b'x'; length]).unwrap();
    fs::remove_dir_all(store.directory.path().join("data/bucket/debian-2")).unwrap();
    assert_eq!(other(&flags), with + 1);
    assert_eq!(fs::read(wrong).unwrap(), right);
}

/// A state tells of the files of one mirror. Believed for another one, it would have an InRelease published over nothing.
#[test]
fn a_state_is_of_one_mirror() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    let flags = ["--state", "s3://bucket/private/debian"];
    bucket.run(&served(0), &flags).exits(0);
    let mut moved = Bucket::at(&store.url);
    moved.mirror.to = PathBuf::from("s3://bucket/moved");
    moved.run(&served(0), &flags).exits(1).says("that of the mirror s3://bucket/debian at ");
    moved.check(&flags).exits(1).says("s3://bucket/debian");
    assert!(!store.directory.path().join("data/bucket/moved").exists());
    bucket.run(&served(1), &flags).exits(0);
    // The state of a mirror in a directory, and the other way round.
    let local = tempfile::tempdir().unwrap();
    let directory = local.path().join("debian");
    let state = directory.to_str().unwrap();
    let mut in_directory = Mirror::new(common()).suite("trixie");
    in_directory.to = directory.clone();
    in_directory.run(&[&served(0)]).exits(0);
    moved.run(&served(0), &["--state", state]).exits(1).says("that of a mirror in a directory");
    assert!(!store.directory.path().join("data/bucket/moved").exists());
    let elsewhere = local.path().join("state");
    bucket.run(&served(1), &["--state", elsewhere.to_str().unwrap()]).exits(0);
    in_directory.to = elsewhere;
    in_directory.run(&[&served(1)]).exits(1).says("not of this directory");
    // Another store has a bucket of the same name.
    let another = versitygw();
    let other = Bucket::at(&another.url);
    other.run(&served(1), &["--state", local.path().join("state").to_str().unwrap()]).exits(1).says("at ");
    assert!(!another.directory.path().join("data/bucket/debian").exists());
    // The way out that the hint names.
    fs::remove_file(store.directory.path().join("data/bucket/private/debian/.fullbore/state")).unwrap();
    moved.run(&served(1), &flags).exits(0);
    verified(&store.directory.path().join("data/bucket/moved"), common(), 1);
}
