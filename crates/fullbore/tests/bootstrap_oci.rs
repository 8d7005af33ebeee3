//! `fullbore bootstrap --format oci` with real packages: images are read by skopeo and umoci, and compared with the tar
//! archive of the same root.

#![allow(clippy::unwrap_used)]

mod harness {
    pub mod compared;
    pub mod packages;
    pub mod roots;
}

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fullbore_testkit::digest::Digest;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use harness::compared::{bootstrap, fullbore, is_sound, place};
use harness::packages::{packages, well};
use harness::roots::{differences, read};
use serde_json::{Value, json};

const EPOCH: (&str, &str) = ("SOURCE_DATE_EPOCH", "1700000000");
const EPOCH_AS_TIME: &str = "2023-11-14T22:13:20Z";

/// Makes an image or an archive with [`EPOCH`].
fn made(server: &Server, target: &Path, more: &[&str]) -> Vec<u8> {
    well(bootstrap(server, "essential", &[], target, more).env(EPOCH.0, EPOCH.1)).stdout
}

/// Runs skopeo, and returns its stdout.
fn skopeo(words: &[&str]) -> String {
    let mut command = clean_command("skopeo");
    // A machine for tests need not have a policy.
    String::from_utf8(well(command.arg("--insecure-policy").args(words)).stdout).unwrap()
}

/// Files below a directory: path and content.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut ahead = vec![directory.to_owned()];
    while let Some(path) = ahead.pop() {
        if path.is_dir() {
            ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            let name = path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
            found.insert(name, fs::read(&path).unwrap());
        }
    }
    found
}

/// The JSON document that a descriptor names, whose hash and size must be right.
fn named<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let content = &files[&format!("blobs/sha256/{digest}")];
    assert_eq!(descriptor["size"], content.len());
    assert_eq!(Digest::of(content).to_string(), digest);
    content
}

fn parsed(content: &[u8]) -> Value {
    serde_json::from_slice(content).unwrap()
}

#[test]
fn every_field_of_an_image_is_right_and_its_layer_is_the_tar_archive() {
    let (dir, server) = (place(), packages().serve());
    let at = |name: &str| dir.path().join(name);
    let codename = packages().codename.as_str();
    made(&server, &at("root.tar"), &[]);
    // An empty directory is replaced.
    fs::create_dir(at("image.oci")).unwrap();
    made(&server, &at("image.oci"), &[]);
    made(&server, &at("image.tar"), &["--format", "oci"]);
    fs::create_dir(at("between")).unwrap();
    let mut command = bootstrap(&server, "essential", &[], Path::new("-"), &["--format", "oci"]);
    let streamed = well(command.env(EPOCH.0, EPOCH.1).env("TMPDIR", at("between"))).stdout;
    // Nothing is left besides the results.
    assert_eq!(fs::read_dir(at("between")).unwrap().count(), 0);
    let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["between", "image.oci", "image.tar", "root.tar"]);

    // The directory and both archives are of the same layout.
    assert!(fs::read(at("image.tar")).unwrap() == streamed, "not the archive that a named file would be");
    fs::create_dir(at("unpacked")).unwrap();
    well(clean_command("tar").arg("-xf").arg(at("image.tar")).arg("--directory").arg(at("unpacked")));
    let files_of_archive = files(&at("unpacked"));
    let files = files(&at("image.oci"));
    assert!(files == files_of_archive, "{:?} and {:?}", files.keys(), files_of_archive.keys());
    let mode = |name: &str| at("image.oci").join(name).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(""), mode("blobs/sha256"), mode("index.json")), (0o755, 0o755, 0o644));

    assert_eq!(parsed(&files["oci-layout"]), json!({"imageLayoutVersion": "1.0.0"}));
    let index = parsed(&files["index.json"]);
    let descriptor = &index["manifests"][0];
    let manifest = parsed(named(&files, descriptor));
    let expected = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": descriptor["digest"],
            "size": descriptor["size"],
            "platform": {"architecture": "amd64", "os": "linux"},
            "annotations": {"org.opencontainers.image.ref.name": codename},
        }],
    });
    assert_eq!(index, expected);
    let release = fs::read_to_string("/etc/os-release").unwrap();
    let of_release = |key: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap();
        value.trim_matches('"').to_owned()
    };
    let (title, version) = (of_release("PRETTY_NAME"), of_release("VERSION_ID"));
    let expected = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": manifest["config"]["digest"],
            "size": manifest["config"]["size"],
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
            "digest": manifest["layers"][0]["digest"],
            "size": manifest["layers"][0]["size"],
        }],
        "annotations": {
            "org.opencontainers.image.created": EPOCH_AS_TIME,
            "org.opencontainers.image.title": title,
            "org.opencontainers.image.version": version,
        },
    });
    assert_eq!(manifest, expected);
    // The layer is the archive of the root.
    let archive = fs::read(at("root.tar")).unwrap();
    let expected = json!({
        "created": EPOCH_AS_TIME,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": ["bash"],
            "Labels": {
                "org.opencontainers.image.title": title,
                "org.opencontainers.image.version": version,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", Digest::of(&archive))]},
        "history": [{
            "created": EPOCH_AS_TIME,
            "created_by": format!("fullbore bootstrap --variant essential --arch amd64 {codename}"),
        }],
    });
    assert_eq!(parsed(named(&files, &manifest["config"])), expected);
    fs::write(at("layer.tar.gz"), named(&files, &manifest["layers"][0])).unwrap();
    let layer = well(clean_command("gzip").args(["-d", "-c"]).arg(at("layer.tar.gz"))).stdout;
    assert!(layer == archive, "the layer is not the archive of the root");
    assert_eq!(files.len(), 5, "{:?}", files.keys());

    read_by_skopeo(dir.path(), descriptor, &title);
    unpacked_by_umoci(dir.path(), codename);
}

/// skopeo compares all hashes when it copies.
fn read_by_skopeo(dir: &Path, descriptor: &Value, title: &str) {
    let image = format!("oci:{}", dir.join("image.oci").display());
    let archive = format!("oci-archive:{}", dir.join("image.tar").display());
    for from in [&image, &archive, &format!("{image}:{}", packages().codename)] {
        let inspected = parsed(skopeo(&["inspect", from]).as_bytes());
        assert_eq!(inspected["Digest"], descriptor["digest"], "{from}");
        assert_eq!(inspected["Created"], EPOCH_AS_TIME, "{from}");
        assert_eq!((&inspected["Architecture"], &inspected["Os"]), (&json!("amd64"), &json!("linux")), "{from}");
        assert_eq!(inspected["Labels"]["org.opencontainers.image.title"], title, "{from}");
        let copy = dir.join("copy");
        skopeo(&["copy", from, &format!("dir:{}", copy.display())]);
        // The manifest, a version, and two blobs.
        assert_eq!(fs::read_dir(&copy).unwrap().count(), 4, "{from}");
        // It need not be converted for a registry.
        let manifest = fs::read(copy.join("manifest.json")).unwrap();
        assert_eq!(format!("sha256:{}", Digest::of(&manifest)), descriptor["digest"], "{from}");
        fs::remove_dir_all(copy).unwrap();
    }
}

/// The unpacked image is the unpacked archive: owners, modes, times, devices, hard links and extended attributes.
fn unpacked_by_umoci(dir: &Path, tag: &str) {
    let image = format!("{}:{tag}", dir.join("image.oci").display());
    well(clean_command("umoci").args(["unpack", "--image", &image]).arg(dir.join("bundle")));
    let root = dir.join("root");
    fs::create_dir(&root).unwrap();
    let mut tar = clean_command("tar");
    tar.args(["--extract", "--preserve-permissions", "--same-owner", "--numeric-owner", "--xattrs"]);
    tar.args(["--xattrs-include=*", "--file"]).arg(dir.join("root.tar")).arg("--directory").arg(&root);
    well(&mut tar);
    let (ours, theirs) = (read(&dir.join("bundle/rootfs")), read(&root));
    let lines = differences(&ours, &theirs, &|_| true, &[]);
    assert!(lines.is_empty(), "{} differences:\n{}", lines.len(), lines.join("\n"));
    assert!(ours.values().any(|entry| entry.kind == "character device") && ours.len() > 1000, "{}", ours.len());
    is_sound(&dir.join("bundle/rootfs"));
}

/// Until it is so, or the child has ended.
fn until(child: &mut Child, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before");
        assert!(begin.elapsed() < Duration::from_secs(120), "nothing happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Layers that are being written, or that killed runs left: in a hidden root for a directory, or in the temporary file
/// of an archive.
fn layers(dir: &Path) -> Vec<PathBuf> {
    let has_content = |path: &PathBuf| path.metadata().is_ok_and(|status| status.is_file() && status.len() > 4096);
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_part = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "part");
    let layer = |path: PathBuf| if is_part(&path) { path } else { path.join(".fullbore-image/blobs/sha256/.layer") };
    paths.map(layer).filter(has_content).collect()
}

#[test]
#[ignore = "long"]
fn a_run_that_is_stopped_while_it_packs_leaves_no_image() {
    let (dir, server) = (place(), packages().serve());
    for name in ["image.oci", "image.oci.tar"] {
        let target = dir.path().join(name);
        let started = || bootstrap(&server, "essential", &[], &target, &[]).stderr(Stdio::piped()).spawn().unwrap();

        let mut child = started();
        until(&mut child, || !layers(dir.path()).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!target.exists(), "{name}");
        let left = layers(dir.path());
        assert_eq!(left.len(), 1, "{name}");

        // A signal ends it in order; what the killed run left is gone, too.
        let mut child = started();
        until(&mut child, || layers(dir.path()).iter().any(|path| !left.contains(path)));
        well(clean_command("kill").args(["-TERM", &child.id().to_string()]));
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(130), "{name}: {told}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{name}: {told}");

        well(&mut bootstrap(&server, "essential", &[], &target, &[]));
        let kind = if target.is_dir() { "oci" } else { "oci-archive" };
        skopeo(&["inspect", &format!("{kind}:{}", target.display())]);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [name]);
        if target.is_dir() { fs::remove_dir_all(&target).unwrap() } else { fs::remove_file(&target).unwrap() }
    }
}

#[test]
fn an_image_has_the_wanted_names_and_no_names_of_deleted_files() {
    let (dir, server) = (place(), packages().serve());
    let at = |name: &str| dir.path().join(name);
    let hook = "mkdir \"$1\"/opt/x && touch \"$1\"/opt/x/.wh.y";
    let output = bootstrap(&server, "essential", &[], &at("image.oci"), &["--customize-hook", hook]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("error: /opt/x/.wh.y: an image cannot contain a file of this name"), "{told}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{told}");

    // Without bash, with a shell that is a link, and with text of its own; its author claims another architecture.
    let hook = concat!(
        "rm \"$1\"/bin/bash \"$1\"/etc/os-release && ",
        "printf 'PRETTY_NAME=\"A \\\\\"b\\\\\"\"\\n' >\"$1\"/etc/os-release",
    );
    let more = ["--oci-tag", "example.org/base:1.0", "--oci-arch", "armhf", "--customize-hook", hook];
    let before = unix_seconds();
    let output = well(&mut bootstrap(&server, "essential", &[], &at("image.oci"), &more));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("the image will name the architecture arm, but its programs are of amd64"), "{told}");
    let image = format!("oci:{}:example.org/base:1.0", at("image.oci").display());
    let configuration = parsed(skopeo(&["inspect", "--config", &image]).as_bytes());
    assert_eq!((&configuration["architecture"], &configuration["variant"]), (&json!("arm"), &json!("v7")));
    assert_eq!(configuration["config"]["Cmd"], json!(["/bin/sh"]));
    assert_eq!(configuration["config"]["Labels"], json!({"org.opencontainers.image.title": "A \"b\""}));
    let created = configuration["created"].as_str().unwrap();
    let mut date = clean_command("date");
    let created: u64 =
        String::from_utf8(well(date.args(["+%s", "--date", created])).stdout).unwrap().trim().parse().unwrap();
    assert!((before..=unix_seconds()).contains(&created), "{created}");
}

/// Now, in Unix seconds.
fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn targets_that_cannot_become_an_image_are_refused_at_once() {
    let dir = place();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("full.oci/blobs")).unwrap();
    fs::create_dir(at("mounted")).unwrap();
    fs::write(at("file"), "").unwrap();
    std::os::unix::fs::symlink("none", at("dangling")).unwrap();
    let names = || {
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let mount = format!("mount -t tmpfs tmpfs {} && exec \"$@\"", at("mounted").display());
    for (target, epoch, status, message) in [
        ("full.oci", "1", 1, "full.oci: is not empty"),
        ("file", "1", 1, "file: exists and is not a directory"),
        ("mounted", "1", 1, "mounted: is a mount point"),
        ("dangling", "1", 7, "dangling: No such file or directory"),
        ("none/image.oci", "1", 1, "none: is not a directory"),
        ("new.oci", "99999999999999", 1, "SOURCE_DATE_EPOCH: "),
    ] {
        let program = fullbore();
        let mut command: Command = clean_command("unshare");
        command.args(["--mount", "sh", "-c", &mount, "sh"]).arg(program.get_program());
        // A keyring without keys, and a mirror that nobody serves: neither is asked for anything.
        command.args(["bootstrap", "--format", "oci", "--keyring", "/dev/null", "trixie"]).arg(at(target));
        let output = command.arg("http://127.0.0.1:9/debian").env(EPOCH.0, epoch).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{target}: {told}");
        assert!(told.contains(message), "{target}: {told}");
        assert_eq!(names(), before, "{target}: {told}");
    }
}
