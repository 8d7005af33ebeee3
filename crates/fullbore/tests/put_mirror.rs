//! A mirror that goes to a bucket, or to another place.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;
#[path = "s3/servers.rs"]
#[allow(dead_code, unused_imports, reason = "shared by several test binaries")]
mod servers;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;

use harness::{Mirror, apt, common};
use servers::{Client, versitygw};

/// Lets everybody read a bucket, as a bucket that serves apt has to.
const POLICY: &str = r#"
import sys, boto3
from botocore.config import Config
client = boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1', aws_access_key_id='fullbore',
    aws_secret_access_key='only-for-tests', config=Config(s3={'addressing_style': 'path'}))
client.put_bucket_policy(Bucket='bucket', Policy='''{"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*"}]}''')
"#;

fn open_to_everybody(store: &servers::Server) {
    let mut command = Command::new(servers::program("moto/bin/python"));
    let done = command.args(["-c", POLICY, &store.url]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn mirrored() -> (Mirror, Server) {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    mirror.run_with(&[&server], &["--snapshot", "first"]).exits(0);
    (mirror, server)
}

#[test]
fn the_guides_bucket_is_a_source_for_apt_as_stable() {
    let (mirror, _server) = mirrored();
    let link = mirror.to.join("dists/stable");
    if link.symlink_metadata().is_err() {
        symlink("trixie", &link).unwrap();
    }
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/put.md")).unwrap();
    let line = guide.lines().find(|line| line.trim().starts_with("fullbore put mirror s3://my-bucket/debian")).unwrap();
    let line = line.replace('\'', "").replace("my-bucket", "bucket");
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let store = versitygw();
    let client = Client::new(&store.url);
    let put = servers::finish(client.command(words).current_dir(mirror.to.parent().unwrap()).spawn().unwrap());
    assert_eq!(put.code, 0, "{}", put.stderr);
    assert!(put.stderr.contains("left out: ") && put.stderr.contains("--with-snapshots"), "{}", put.stderr);
    let bucket = store.directory.path().join("data/bucket/debian");
    assert!(!bucket.join(".fullbore").exists() && !bucket.join("snapshots").exists());
    open_to_everybody(&store);
    let place = apt::passable();
    let apt = apt::Apt::new(place.path().join("apt"), &format!("{}/bucket/debian", store.url), &common().key());
    let sources = place.path().join("apt/etc/test.sources");
    let text = fs::read_to_string(&sources).unwrap();
    fs::write(&sources, text.replace("Suites: trixie", "Suites: stable")).unwrap();
    let updated = apt.update(&[]);
    // apt warns that the suite has another name.
    assert_eq!(updated.code, Some(0), "{}", updated.text);
    let lists = apt.lists();
    assert!(lists.keys().any(|name| name.ends_with("_dists_stable_InRelease")), "{:?}", lists.keys());
    assert!(!apt.packages().is_empty());
}

#[test]
fn delete_took_what_lay_beneath_a_link_left_out() {
    let store = versitygw();
    let client = Client::new(&store.url);
    for name in
        ["full/dists/stable/Release", "full/gone", "full/.fullbore/log", "full/a", "full/b", "mirror/a", "mirror/b"]
    {
        client.file(name, name.rsplit('/').next().unwrap().as_bytes());
    }
    let at = |name: &str| client.home.path().join(name);
    // What an earlier version put, and other tools.
    let data = store.directory.path().join("data/bucket/m");
    let copied = clean_command("cp").arg("-r").arg(at("full")).arg(&data).status().unwrap();
    assert!(copied.success());
    fs::create_dir_all(at("mirror/dists")).unwrap();
    fs::create_dir(at("mirror/.fullbore")).unwrap();
    symlink("bookworm", at("mirror/dists/stable")).unwrap();
    let mirror = at("mirror").to_str().unwrap().to_owned();
    let warned = client.run(["put", &mirror, "s3://bucket/m"]);
    assert_eq!(warned.code, 0, "{}", warned.stderr);
    assert!(warned.stderr.contains("in the bucket: 1 object; --delete"), "{}", warned.stderr);
    let done = client.run(["put", "--json", "--delete", &mirror, "s3://bucket/m"]);
    let summary = done.summary();
    assert_eq!(
        (done.code, &summary["store"]["deleted"], &summary["store"]["kept"]),
        (0, &2.into(), &1.into()),
        "{}",
        done.stderr
    );
    assert!(data.join("dists/stable/Release").exists());
    assert!(!data.join(".fullbore/log").exists() && !data.join("gone").exists());
}

#[test]
fn unreadable_directories_stopped_put_or_were_deleted() {
    let store = versitygw();
    let mut client = Client::new(&store.url);
    client.home = apt::passable();
    for name in ["m/.fullbore/log", "m/closed/kept", "m/open/a", "m/open/b"] {
        client.file(name, b"content");
    }
    for name in ["m/.fullbore", "m/closed"] {
        fs::set_permissions(client.home.path().join(name), PermissionsExt::from_mode(0o700)).unwrap();
    }
    let data = store.directory.path().join("data/bucket/m");
    for name in ["closed/kept", "open/gone", ".fullbore/log", "pool/.x.deb.part"] {
        fs::create_dir_all(data.join(name).parent().unwrap()).unwrap();
        fs::write(data.join(name), "content").unwrap();
    }
    let source = client.home.path().join("m").to_str().unwrap().to_owned();
    let put = |more: &[&str]| {
        let mut command = harness::as_another();
        command.args(["put", "--json", &source, "s3://bucket/m", "--endpoint", &client.endpoint]).args(more);
        command.env("HOME", "/nonexistent").envs(client.variables.iter().map(|(name, value)| (name, value)));
        servers::finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    // Last turns name what is in the earlier ones, so they are not sent, and nothing is deleted.
    let held = put(&["--delete", "--last", "b"]);
    assert_eq!(held.code, 2, "{}", held.stderr);
    assert!(data.join("open/a").exists() && !data.join("open/b").exists() && data.join("open/gone").exists());
    let done = put(&["--delete"]);
    assert_eq!(done.code, 2, "{}", done.stderr);
    assert!(done.stderr.contains("closed"), "{}", done.stderr);
    let summary = done.summary();
    assert_eq!((&summary["store"]["deleted"], &summary["store"]["kept"]), (&3.into(), &1.into()), "{}", done.stderr);
    assert!(data.join("closed/kept").exists() && data.join("open/b").exists());
    assert!(!data.join("open/gone").exists() && !data.join(".fullbore/log").exists());
    // One who may read all but the private state is not refused.
    fs::set_permissions(client.home.path().join("m/closed"), PermissionsExt::from_mode(0o755)).unwrap();
    let whole = put(&["--delete"]);
    assert_eq!((whole.code, &whole.summary()["store"]["deleted"]), (0, &0.into()), "{}", whole.stderr);
}

#[test]
fn kept_snapshots_hid_from_the_guard_that_all_is_gone() {
    let store = versitygw();
    let client = Client::new(&store.url);
    client.file("m/.fullbore/log", b"");
    let a = client.file("m/a", b"");
    client.file("m/b", b"");
    for number in 0..9 {
        client.file(&format!("m/snapshots/s/{number}"), b"");
    }
    let source = client.home.path().join("m").to_str().unwrap().to_owned();
    let first = client.run(["put", "--json", "--with-snapshots", &source, "s3://bucket/m"]);
    assert_eq!((first.code, &first.summary()["store"]["files"]), (0, &11.into()), "{}", first.stderr);
    fs::remove_file(a).unwrap();
    fs::remove_dir_all(client.home.path().join("m/snapshots")).unwrap();
    let refused = client.run(["put", "--delete", "--with-snapshots", &source, "s3://bucket/m"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("1 of 2 objects"), "{}", refused.stderr);
    let forced = client.run(["put", "--json", "--delete", "--force-delete", &source, "s3://bucket/m"]);
    let summary = forced.summary();
    assert_eq!(
        (forced.code, &summary["store"]["deleted"], &summary["store"]["kept"]),
        (0, &1.into(), &9.into()),
        "{}",
        forced.stderr
    );
}

#[test]
fn a_copied_mirror_has_nothing_to_do() {
    let (mut mirror, server) = mirrored();
    let old = mirror.to.clone();
    let new = old.with_file_name("new");
    let mut copy = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    let copied = copy.args(["copy", &format!("{}/", mirror.to.display())]).arg(&new).output().unwrap();
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    let (path, _) = common().state(0).select(|file| file.path.ends_with(".deb")).into_iter().next().unwrap();
    let inode = |path: std::path::PathBuf| path.metadata().unwrap().ino();
    assert_eq!(inode(new.join(path)), inode(new.join("snapshots/first").join(path)));
    mirror.to = new;
    let ran = mirror.run_with(&[&server], &["--changed-exit"]).exits(10);
    for count in ["received_bytes", "checked_bytes", "written_bytes"] {
        assert_eq!(ran.number(&format!("totals.{count}")), 0, "{count}");
    }
    mirror.check(&[]).exits(0);
    // Where upstream has changed, the new place reads and fetches what the old one does.
    let next = Server::start(&common().state(1).root).unwrap();
    let there = mirror.run_with(&[&next], &[]).exits(0);
    mirror.to = old;
    let here = mirror.run_with(&[&next], &[]).exits(0);
    assert!(here.number("plan.fetch_files") > 0);
    for count in ["plan.wanted_files", "plan.fetch_files", "totals.kept_files", "totals.checked_bytes"] {
        assert_eq!(there.number(count), here.number(count), "{count}");
    }
}
