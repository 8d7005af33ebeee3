//! A mirror by many machines without a broker: `mirror --pin`, `work --shard`, `mirror --finish`.

use super::*;

use std::process::Child;

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch};

impl Bucket {
    /// Pins the plan of the archive at these servers; the name of the run.
    fn pin(&self, from: &[&Server], more: &[&str]) -> String {
        let ran = self.planner(from, &[&["--pin"], more].concat()).exits(0);
        let run = ran.stdout.strip_suffix('\n').unwrap_or_default().to_owned();
        assert!(run.len() == 32 && run.bytes().all(|byte| byte.is_ascii_hexdigit()), "{ran:?}");
        run
    }

    fn finish(&self, from: &[&Server], run: &str, more: &[&str]) -> Ran {
        self.planner(from, &[&["--finish", run], more].concat())
    }

    fn planner(&self, from: &[&Server], more: &[&str]) -> Ran {
        let mut command = self.mirror.command(from, more);
        command.args(["--endpoint", &self.endpoint]).envs(self.keys.iter().copied());
        self.mirror.finish(command)
    }

    fn worker_command(&self, run: &str, shard: &str, more: &[&str]) -> Command {
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.args(["work", TO, "--run", run, "--shard", shard, "--endpoint", &self.endpoint]).args(more);
        command.envs(self.keys.iter().copied()).stdin(Stdio::null());
        command
    }

    fn work(&self, run: &str, shard: &str, more: &[&str]) -> Ran {
        let directory = tempfile::tempdir().unwrap();
        let report = directory.path().join("report.json");
        let output =
            self.worker_command(run, shard, more).args(["--report", report.to_str().unwrap()]).output().unwrap();
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            report: fs::read(&report).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default(),
        }
    }

    /// Starts a worker; its output is not read.
    fn start(&self, run: &str, shard: &str) -> Child {
        let mut command = self.worker_command(run, shard, &["--quiet"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts all shards at once, and waits; their exit codes.
    fn work_all(&self, run: &str, count: usize) -> Vec<Option<i32>> {
        let workers: Vec<Child> = (0..count).map(|index| self.start(run, &format!("{index}/{count}"))).collect();
        workers.into_iter().map(|mut worker| worker.wait().unwrap().code()).collect()
    }
}

/// How often each pool file was fetched from any of these servers.
fn fetched(servers: &[&Server]) -> BTreeMap<String, usize> {
    let mut fetched = BTreeMap::new();
    for entry in servers.iter().flat_map(|server| server.log()) {
        if entry.path.starts_with("/pool/") && entry.method == "GET" && entry.status < 300 {
            *fetched.entry(entry.path.trim_start_matches('/').to_owned()).or_default() += 1;
        }
    }
    fetched
}

/// The events of `--json`, which are as the schema says.
fn events(ran: &Ran) -> Vec<serde_json::Value> {
    servers::Output { code: 0, stdout: ran.stdout.clone(), stderr: ran.stderr.clone() }.events()
}

fn pool_of(state: usize) -> Vec<&'static str> {
    reference(state).keys().map(String::as_str).filter(|path| path.starts_with("pool/")).collect()
}

fn plans(store: &servers::Server) -> usize {
    let runs = data(store).join(".fullbore/runs");
    fs::read_dir(runs).map_or(0, |runs| runs.flatten().filter(|run| run.path().join("plan.zst").exists()).count())
}

#[test]
fn shards_store_what_the_plan_names_and_the_planner_publishes_it() {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&[&server], &[]);
    assert!(contents(&data(&store)).is_empty(), "a plan publishes nothing");
    let first = bucket.work(&run, "0/2", &[]).exits(0);
    // The second shard was never started, so the first worker stored it, too.
    assert_eq!(first.number("totals.files"), pool_of(0).len() as u64, "{first:?}");
    let second = bucket.work(&run, "1/2", &[]).exits(0);
    assert_eq!(second.number("totals.files"), 0);
    assert_eq!(second.number("totals.kept_files"), pool_of(0).len() as u64);
    assert!(!data(&store).join("dists").exists());
    let before = fetched(&[&server]);
    assert_eq!(before.keys().map(String::as_str).collect::<Vec<_>>(), pool_of(0));
    assert!(before.values().all(|times| *times == 1), "{before:?}");
    bucket.finish(&[&server], &run, &[]).exits(0);
    assert_eq!(fetched(&[&server]), before, "the planner fetches nothing again");
    assert_eq!(contents(&data(&store)), *reference(0));
    verified(&data(&store), common(), 0);
    assert_eq!(plans(&store), 0, "a finished run has no plan");
    bucket.check(&[]).exits(0);
    // Once more, as scripts do.
    bucket.finish(&[&server], &run, &[]).exits(0).says("no plan of the run");
    bucket.work(&run, "0/2", &[]).exits(1).says("no plan of the run");
    bucket.run(&server, &["--changed-exit"]).exits(10);
}

#[test]
fn workers_at_the_same_time_share_the_connections_of_each_mirror() {
    let store = versitygw();
    let servers = [served(0), served(0)];
    for server in &servers {
        server.change(|behaviour| behaviour.delay = Duration::from_millis(30));
    }
    let from: Vec<&Server> = servers.iter().collect();
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&from, &["--connections", "2"]);
    assert_eq!(bucket.work_all(&run, 6), [Some(0); 6]);
    for server in &servers {
        let most = server.counters().max_open_connections;
        assert!((1..=2).contains(&most), "{most} connections");
    }
    assert_eq!(contents(&data(&store)).keys().map(String::as_str).collect::<Vec<_>>(), pool_of(0));
    bucket.finish(&from, &run, &[]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
}

#[test]
fn a_worker_without_a_mirror_says_so_and_the_others_store_its_files() {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&[&server], &["--connections", "1"]);
    let mut idle = 0;
    for index in 0..3 {
        let ran = bucket.work(&run, &format!("{index}/3"), &[]).exits(0);
        if ran.stderr.contains("has no connection to a mirror") {
            assert_eq!(ran.number("totals.files"), 0);
            idle += 1;
        } else {
            assert_eq!(ran.number("totals.files"), pool_of(0).len() as u64);
        }
    }
    assert_eq!(idle, 2);
}

/// F1, with any subset of the workers.
#[test]
fn any_subset_of_the_workers_may_die() {
    let server = served(0);
    server.change(|behaviour| behaviour.delay = Duration::from_millis(5));
    for killed in 0..8_usize {
        let store = versitygw();
        let bucket = Bucket::at(&store.url);
        let run = bucket.pin(&[&server], &[]);
        let mut workers = Vec::new();
        for index in 0..3_usize {
            let shard = format!("{index}/3");
            if killed & (1 << index) == 0 {
                workers.push((None, bucket.start(&run, &shard)));
                continue;
            }
            // At another request in each case, the plan's and the listing among them.
            let n = 2 + 3 * index + killed;
            let proxy =
                Proxy::start(&store.url, move |number, _| if number == n { Action::Kill } else { Action::now() });
            let child = Bucket::at(&proxy.url).start(&run, &shard);
            proxy.kills(child.id());
            workers.push((Some(proxy), child));
        }
        for (proxy, mut worker) in workers {
            let code = worker.wait().unwrap().code();
            assert!(proxy.is_some() || code == Some(0), "{killed}: {code:?}");
        }
        assert!(!data(&store).join("dists").exists());
        bucket.finish(&[&server], &run, &[]).exits(0);
        assert_eq!(contents(&data(&store)), *reference(0), "{killed}");
        assert_eq!(visible(&data(&store)), Some(0));
    }
}

#[test]
fn a_shard_that_is_started_twice_or_late_changes_nothing() {
    let (store, server) = (versitygw(), served(0));
    server.change(|behaviour| behaviour.delay = Duration::from_millis(5));
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&[&server], &[]);
    let workers: Vec<Child> = ["0/2", "0/2", "0/2"].iter().map(|shard| bucket.start(&run, shard)).collect();
    for mut worker in workers {
        assert_eq!(worker.wait().unwrap().code(), Some(0));
    }
    assert_eq!(contents(&data(&store)).len(), pool_of(0).len());
    // While the planner publishes, another one starts.
    let mut late = bucket.start(&run, "1/2");
    bucket.finish(&[&server], &run, &[]).exits(0);
    // It has read the plan, or there is none any more.
    assert!(matches!(late.wait().unwrap().code(), Some(0 | 1)));
    assert_eq!(contents(&data(&store)), *reference(0));
}

/// F14.
#[test]
fn a_stale_and_a_corrupt_mirror_cost_time_only() {
    let store = versitygw();
    let (good, corrupt, stale) = (served(1), served(1), served(0));
    corrupt.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::Corrupt));
    let from = [&good, &corrupt, &stale];
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&from, &["--connections", "1"]);
    for index in 0..3 {
        let ran = bucket.work(&run, &format!("{index}/3"), &[]);
        // Whoever has the corrupt mirror alone, or the stale one, says what is missing.
        assert!(matches!(ran.code, Some(0 | 2 | 4)), "{ran:?}");
        assert!(ran.code == Some(0) || ran.stderr.contains("--finish"), "{ran:?}");
        assert_eq!(ran.code == Some(0), ran.number("totals.missing_files") == 0, "{ran:?}");
    }
    for (path, hash) in contents(&data(&store)) {
        assert_eq!(reference(1).get(&path), Some(&hash), "{path}");
    }
    bucket.finish(&from, &run, &[]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(1));
}

#[test]
fn a_worker_needs_no_rights_beyond_the_pool() {
    let (store, server) = (versitygw(), served(0));
    let planner = Bucket::at(&store.url);
    let run = planner.pin(&[&server], &[]);
    let plan = format!("/bucket/debian/.fullbore/runs/{run}/plan.zst ");
    let proxy = Proxy::start(&store.url, move |_, line| {
        let (method, path) = line.split_once(' ').unwrap_or_default();
        let of_pool = path.starts_with("/bucket/debian/pool/");
        let may_read = of_pool || path.starts_with(&plan) || path.starts_with("/bucket?");
        let may = (matches!(method, "GET" | "HEAD") && may_read) || (matches!(method, "PUT" | "POST") && of_pool);
        if may { Action::now() } else { Action::Answer(403) }
    });
    Bucket::at(&proxy.url).work(&run, "0/1", &[]).exits(0);
    assert!(proxy.take().iter().any(|line| line.starts_with("PUT /bucket/debian/pool/")));
    planner.finish(&[&server], &run, &[]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
}

#[test]
fn a_release_that_moved_on_meanwhile_is_published_with_what_was_stored() {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&[&server], &[]);
    bucket.work(&run, "0/1", &[]).exits(0);
    server.take_log();
    server.switch_root(&common().state(1).root);
    let at_once = ["--keep-generations", "0", "--keep-hours", "0"];
    bucket.finish(&[&server], &run, &at_once).exits(0);
    let again = fetched(&[&server]);
    let of_both = |path: &&str| reference(0).get(*path) == reference(1).get(*path);
    assert!(pool_of(1).iter().filter(|path| of_both(path)).all(|path| !again.contains_key(*path)), "{again:?}");
    assert!(!again.is_empty());
    verified(&data(&store), common(), 1);
    // The files of the older Release were stored by this run, and go as its own do.
    bucket.run(&server, &[&at_once[..], &["--clean-foreign"]].concat()).exits(0);
    assert_eq!(contents(&data(&store)), *reference(1));
}

#[test]
fn files_of_a_pinned_run_survive_the_deletions_of_others() {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let at_once = ["--keep-generations", "0", "--keep-hours", "0"];
    bucket.run(&server, &at_once).exits(0);
    let newer = served(1);
    let run = bucket.pin(&[&newer], &[]);
    bucket.work(&run, "0/1", &[]).exits(0);
    let pinned: Vec<&str> = pool_of(1).into_iter().filter(|path| !reference(0).contains_key(*path)).collect();
    assert!(!pinned.is_empty());
    // Another run, which deletes what no index of its own names.
    let other = bucket.run(&server, &[&at_once[..], &["--clean-foreign", "--force-delete"]].concat()).exits(0);
    let here = contents(&data(&store));
    assert!(pinned.iter().all(|path| here.contains_key(*path)), "{other:?}");
    assert_eq!(plans(&store), 1);
    newer.take_log();
    bucket.finish(&[&newer], &run, &at_once).exits(0);
    assert!(fetched(&[&newer]).is_empty());
    assert_eq!(contents(&data(&store)), *reference(1));
}

#[test]
fn files_that_a_pinned_run_counts_on_survive_the_deletions_of_others() {
    let store = versitygw();
    let bucket = Bucket::at(&store.url);
    let [old, new] = [served(0), served(1)];
    let at_once = ["--keep-generations", "0", "--keep-hours", "0"];
    // Files of the newer state, which no suite names any more once the older one is published.
    bucket.run(&old, &[]).exits(0);
    let kept: Vec<&str> = pool_of(1).into_iter().filter(|path| !reference(0).contains_key(*path)).collect();
    for path in &kept {
        let to = data(&store).join(path);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(common().state(1).root.join(path), to).unwrap();
    }
    let run = bucket.pin(&[&new], &[]);
    bucket.run(&old, &[&at_once[..], &["--clean-foreign", "--force-delete"]].concat()).exits(0);
    let here = contents(&data(&store));
    assert!(kept.iter().all(|path| here.contains_key(*path)));
    bucket.finish(&[&new], &run, &at_once).exits(0);
    assert!(fetched(&[&new]).is_empty());
    verified(&data(&store), common(), 1);
}

/// F18.
#[test]
fn a_changed_plan_is_refused_and_the_run_finished_without_it() {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&[&server], &[]);
    let plan = data(&store).join(format!(".fullbore/runs/{run}/plan.zst"));
    let mut content = fs::read(&plan).unwrap();
    let at = content.len() / 2;
    content[at] ^= 1;
    fs::write(&plan, content).unwrap();
    bucket.work(&run, "0/1", &[]).exits(1).says("it was changed, or is damaged");
    assert!(contents(&data(&store)).is_empty());
    bucket.finish(&[&server], &run, &[]).exits(0).says("it was changed");
    assert_eq!(contents(&data(&store)), *reference(0));
    assert_eq!(plans(&store), 0);
}

#[test]
fn a_plan_of_another_mirror_is_refused() {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&[&server], &[]);
    let other = data(&store).with_file_name("other");
    copy_bucket(&data(&store), &other);
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["work", "s3://bucket/other", "--run", &run, "--shard", "0/1", "--endpoint", &store.url]).envs(KEYS);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("it is for the mirror s3://bucket/debian, not for s3://bucket/other"), "{text}");
}

/// S1.
#[test]
fn a_planner_killed_while_it_finishes_harms_nobody() {
    let (store, server) = (versitygw(), served(1));
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let run = Bucket::at(&store.url).pin(&[&server], &[]);
    Bucket::at(&store.url).work(&run, "0/2", &[]).exits(0);
    let kept = store.directory.path().join("kept");
    copy_bucket(&data(&store), &kept);
    let mut killed = 0;
    for n in (1..).step_by(4 * step()) {
        copy_bucket(&kept, &data(&store));
        let proxy = Proxy::start(&store.url, move |number, _| if number == n { Action::Kill } else { Action::now() });
        let bucket = Bucket::at(&proxy.url);
        let mut command = bucket.command(&server, &["--finish", &run]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        proxy.kills(child.id());
        let ended = child.wait_with_output().unwrap();
        visible(&data(&store)).expect("one was published before");
        if ended.status.success() {
            break;
        }
        killed += 1;
        Bucket::at(&store.url).finish(&[&server], &run, &[]).exits(0);
        verified(&data(&store), common(), 1);
    }
    assert!(killed > 3, "{killed}");
}

#[test]
fn nothing_to_do_is_a_run_too() {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    bucket.run(&server, &[]).exits(0);
    let run = bucket.pin(&[&server], &[]);
    bucket.planner(&[&server], &["--pin", "--changed-exit"]).exits(10);
    let worker = bucket.work(&run, "2/5", &[]).exits(0);
    assert_eq!(worker.number("plan.wanted_files"), 0);
    bucket.finish(&[&server], &run, &[]).exits(0);
    verified(&data(&store), common(), 0);
}

#[test]
fn moto_takes_shards() {
    let (store, server) = (moto(), served(0));
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&[&server], &[]);
    assert_eq!(bucket.work_all(&run, 2), [Some(0); 2]);
    server.take_log();
    bucket.finish(&[&server], &run, &[]).exits(0);
    assert!(fetched(&[&server]).is_empty());
    bucket.check(&["--checksums"]).exits(0);
}

/// Writes other content of the same size under a path, with the metadata that was there, as a worker could.
fn forge(store: &servers::Server, path: &str) {
    let script = r#"
import boto3, sys
client = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1",
                      aws_access_key_id="fullbore", aws_secret_access_key="only-for-tests")
key = "debian/" + sys.argv[2]
there = client.head_object(Bucket="bucket", Key=key)
assert "fullbore-sha256" in there["Metadata"], there
client.put_object(Bucket="bucket", Key=key, Body=b"x" * there["ContentLength"], Metadata=there["Metadata"])
"#;
    let python = servers::program("moto/bin/python");
    let done = Command::new(python).args(["-c", script, &store.url, path]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// moto shows no checksums of its own, as other stores of objects in parts.
#[test]
fn metadata_is_believed_unless_objects_are_to_be_verified() {
    let (store, server) = (moto(), served(0));
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&[&server], &[]);
    assert_eq!(bucket.work_all(&run, 2), [Some(0); 2]);
    let forged = pool_of(0)[0];
    forge(&store, forged);
    server.take_log();
    bucket.finish(&[&server], &run, &["--verify-objects"]).exits(0);
    assert_eq!(fetched(&[&server]).keys().map(String::as_str).collect::<Vec<_>>(), [forged]);
    bucket.check(&[]).exits(0);
    // Without the flag, that is the word of the program that wrote the object.
    let (store, server) = (moto(), served(0));
    let bucket = Bucket::at(&store.url);
    let run = bucket.pin(&[&server], &[]);
    assert_eq!(bucket.work_all(&run, 2), [Some(0); 2]);
    forge(&store, forged);
    bucket.finish(&[&server], &run, &[]).exits(0);
    bucket.check(&[]).exits(4);
}

#[test]
fn a_worker_ends_with_one_line_and_events_in_json() {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let pinned = bucket.planner(&[&server], &["--pin", "--json"]).exits(0);
    let events = events(&pinned);
    let event = events.iter().find(|event| event["event"] == "pinned").expect("an event");
    assert_eq!(event["files"].as_u64(), Some(pool_of(0).len() as u64));
    let run = event["run"].as_str().unwrap().to_owned();
    let line = bucket.work(&run, "0/2", &["--connections", "1"]).exits(0);
    assert_eq!(line.stdout.lines().count(), 1, "{line:?}");
    assert!(line.stdout.contains(" files, ") && line.stdout.contains(" stored in "), "{line:?}");
    let ran = bucket.work(&run, "1/2", &["--json"]).exits(0);
    let summary = self::events(&ran).pop().unwrap();
    assert_eq!((summary["event"].as_str(), summary["command"].as_str()), (Some("summary"), Some("work")));
}
