//! A store that fails: exit code 3, a message that names it, and what was published stays.

use harness::own_archive;

use super::*;

/// The request from which on every one is refused as by a store without permission for it, or is cut off.
fn fails_from(store: &servers::Server, from: usize, action: Action) -> Proxy {
    Proxy::start(&store.url, move |number, _| if number >= from { action } else { Action::now() })
}

#[test]
fn a_store_that_cannot_be_reached_is_a_failure_of_the_network() {
    let bucket = Bucket::at("http://127.0.0.1:9");
    let run = bucket.run(&served(0), &[]).exits(3);
    assert!(run.stderr.contains("127.0.0.1:9"), "{}", run.stderr);
    bucket.check(&[]).exits(3).says("127.0.0.1:9");
}

#[test]
fn a_store_that_refuses_from_some_request_on_ends_with_its_words() {
    let store = versitygw();
    Bucket::at(&store.url).run(&served(0), &[]).exits(0);
    let server = served(1);
    for from in [1, 4, 12, 20, 40] {
        let proxy = fails_from(&store, from, Action::Answer(403));
        let run = Bucket::at(&proxy.url).run(&server, &[]);
        // Late requests may be those that nothing depends on.
        let text = &run.stderr;
        assert!(run.code == Some(1) || run.code == Some(0) && from == 40, "{from}: {:?} {text}", run.code);
        assert!(run.code == Some(0) || text.contains("403") && text.contains("permissions"), "{from}: {text}");
        assert!(!text.contains("disk"), "{from}: {text}");
        visible(&data(&store)).unwrap();
    }
    let proxy = fails_from(&store, 1, Action::Answer(403));
    Bucket::at(&proxy.url).check(&[]).exits(1).says("403");
    let proxy = fails_from(&store, 8, Action::Answer(403));
    Bucket::at(&proxy.url).check(&[]).exits(1).says("403");
}

/// S2.
#[test]
fn too_little_room_for_temporary_files_is_said_before_anything_is_fetched() {
    assert!(rustix::process::geteuid().is_root(), "mounts a small disk: run as root (script/test does)");
    let store = versitygw();
    let directory = tempfile::tempdir().unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(directory.path()).status();
    assert!(mount.unwrap().success());
    let server = served(0);
    let bucket = Bucket::at(&store.url);
    let run = bucket.run(&server, &["--scratch", directory.path().to_str().unwrap()]);
    let unmounted = Command::new("umount").arg(directory.path()).status();
    assert!(unmounted.unwrap().success());
    let run = run.exits(7).says("the file system has").says("--scratch");
    assert!(pool_requests(&server).is_empty() && !data(&store).join("dists/trixie").exists(), "{}", run.stderr);
}

#[test]
fn a_slow_store_is_the_verdict() {
    let store = versitygw();
    let proxy = Proxy::start(&store.url, |_, _| Action::Pass(Duration::from_secs(1)));
    let run = Bucket::at(&proxy.url).run(&served(0), &[]).exits(0);
    let limit = run.report["summary"]["verdict"]["limit"].as_str().unwrap_or_default().to_owned();
    assert!(limit.contains("127.0.0.1"), "{limit}: {}", run.report["summary"]["verdict"]);
}

/// Begins uploads in parts; gives the keys of all that the store has.
fn uploads(store: &servers::Server, keys: &[&str]) -> Vec<String> {
    const SCRIPT: &str = r#"
import boto3, sys
client = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1",
                      aws_access_key_id="fullbore", aws_secret_access_key="only-for-tests")
for key in sys.argv[2:]:
    client.create_multipart_upload(Bucket="bucket", Key=key)
for upload in client.list_multipart_uploads(Bucket="bucket").get("Uploads", []):
    print(upload["Key"])
"#;
    let mut command = Command::new(servers::program("moto/bin/python"));
    let done = command.args(["-c", SCRIPT, &store.url]).args(keys).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn uploads_that_killed_runs_have_left_are_given_up_after_a_day() {
    let (store, server) = (versitygw(), served(0));
    let others = ["debian/.fullbore/old", "elsewhere/pool/old"];
    uploads(&store, &[others[0], others[1], "debian/pool/old", "debian/dists/old"]);
    let mut age = Command::new("find");
    age.arg(store.directory.path()).args(["-path", "*/multipart/*", "-exec", "touch", "-d", "2 days ago", "{}", "+"]);
    assert!(age.status().unwrap().success());
    uploads(&store, &["debian/pool/new"]);
    Bucket::at(&store.url).run(&server, &[]).exits(0);
    assert_eq!(uploads(&store, &[]), [others[0], "debian/pool/new", others[1]]);
    assert_eq!(contents(&data(&store)), *reference(0));
}

/// A file above 16 MiB goes up while it is fetched.
#[test]
fn an_interrupted_run_gives_its_uploads_up_and_says_what_is_stored() {
    let (_directory, archive) =
        own_archive(|builder| builder.states(1).pool_bytes(60_000_000).largest_file_bytes(40_000_000));
    let (store, server) = (versitygw(), Server::start(&archive.state(0).root).unwrap());
    let mut bucket = Bucket::at(&store.url);
    bucket.mirror = Mirror::new(&archive);
    bucket.mirror.to = PathBuf::from(TO);
    let mut command = bucket.command(&server, &["--limit-rate", "6MB"]);
    let run = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while uploads(&store, &[]).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no upload in parts");
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&run), rustix::process::Signal::INT).unwrap();
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(130) && said.contains("stored, which the next run finds"), "{said}");
    assert_eq!(uploads(&store, &[]), [""; 0]);
    bucket.run(&server, &[]).exits(0);
    let local = Mirror::new(&archive);
    local.run(&[&server]).exits(0);
    assert_eq!(contents(&data(&store)), contents(&local.to));
}
