//! A mirror that goes to a bucket, or to another place.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;
#[path = "s3/servers.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod servers;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use harness::{Mirror, apt, common};
use servers::{Client, versitygw};

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
    let served = Server::start(&bucket).unwrap();
    let place = apt::passable();
    let apt = apt::Apt::new(place.path().join("apt"), &served.url(), &common().key());
    let sources = place.path().join("apt/etc/test.sources");
    let text = fs::read_to_string(&sources).unwrap();
    fs::write(&sources, text.replace("Suites: trixie", "Suites: stable")).unwrap();
    let updated = apt.update(&[]);
    assert_eq!(updated.code, Some(0), "{}", updated.text);
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
    assert!(warned.stderr.contains("1 objects in the bucket are private"), "{}", warned.stderr);
    let done = client.run(["put", "--json", "--delete", &mirror, "s3://bucket/m"]);
    let summary = done.summary();
    assert_eq!((done.code, &summary["deleted"], &summary["kept"]), (0, &2.into(), &1.into()), "{}", done.stderr);
    assert!(data.join("dists/stable/Release").exists());
    assert!(!data.join(".fullbore/log").exists() && !data.join("gone").exists());
}

#[test]
fn a_copied_mirror_has_nothing_to_do() {
    let (mut mirror, server) = mirrored();
    let new = mirror.to.with_file_name("new");
    let mut copy = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    let copied = copy.args(["copy", &format!("{}/", mirror.to.display())]).arg(&new).output().unwrap();
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    let (path, _) = common().state(0).select(|file| file.path.ends_with(".deb")).into_iter().next().unwrap();
    let inode = |path: std::path::PathBuf| path.metadata().unwrap().ino();
    assert_eq!(inode(new.join(path)), inode(new.join("snapshots/first").join(path)));
    mirror.to = new;
    mirror.run_with(&[&server], &["--changed-exit"]).exits(10);
}
