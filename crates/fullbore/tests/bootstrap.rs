//! `fullbore bootstrap` and `fullbore install` with real packages, against mmdebstrap, and apt with dpkg.
//!
//! Roots are compared entry by entry: types, modes, owners, contents, link groups, extended attributes, and the times
//! of packaged files. What may differ is listed with its reason, in [`ALLOWED`] and here; it is little.

#![allow(clippy::unwrap_used)]

mod harness {
    pub mod compared;
    pub mod packages;
    pub mod roots;
}

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use fullbore_testkit::power_cut::AfterCut;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::random::Random;
use fullbore_testkit::server::Server;
use fullbore_testkit::slowdisk::SlowDisk;
use harness::compared::{ALLOWED, bootstrap, installed_as_by_apt, is_sound, place, reference, same};
use harness::packages::{MORE, packages, well};

/// Moments at which a run is killed, besides one between unpacking and configuring.
const KILLS: usize = 10;

/// `nobody` and `nogroup`, which every Debian machine has.
const NOBODY: u32 = 65534;

/// Runs the rest where `$1` says who has which numbers, and something is mounted in `/dev/shm`.
const WITH_NUMBERS: &str = r#"
set -e
mount --bind "$1" /etc/subuid && mount --bind "$1" /etc/subgid && shift
mount -t tmpfs tmpfs /dev/shm && mkdir /dev/shm/more && mount -t tmpfs tmpfs /dev/shm/more
exec "$@""#;

#[test]
fn a_minbase_root_is_mmdebstraps() {
    let (dir, server) = (place(), packages().serve());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let output = well(&mut bootstrap(&server, "minbase", &[], &ours, &["--json"]));
    let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap().to_owned();
    let summary: serde_json::Value = serde_json::from_str(&last).unwrap();
    // All in parallel: none was left to dpkg.
    assert_eq!(summary["packages"]["by_dpkg"], serde_json::json!([]), "{last}");
    assert!(summary["packages"]["unpacked"].as_u64().unwrap() > 50, "{last}");
    assert!(summary["verdict"]["limit"].is_string(), "{last}");
    reference(&server, "minbase", &[], &theirs);
    same(&ours, &theirs, ALLOWED);
    is_sound(&ours);
}

#[test]
#[ignore = "long"]
fn a_larger_root_is_mmdebstraps_and_packages_installed_into_one_are_apts() {
    let (dir, server) = (place(), packages().serve());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let (now, later) = MORE.split_at(MORE.len() / 2);
    well(&mut bootstrap(&server, "apt", now, &ours, &[]));
    reference(&server, "apt", now, &theirs);
    same(&ours, &theirs, ALLOWED);
    is_sound(&ours);

    installed_as_by_apt(packages(), &ours, later, &[]);
}

#[test]
fn a_killed_run_leaves_a_marker_and_a_further_one_starts_over() {
    let (dir, server) = (place(), packages().serve());
    let root = dir.path().join("root");
    let packed = |root: &Path| root.join("var/lib/dpkg/info/libc-bin.list").exists();
    let begin = Instant::now();
    let mut child = bootstrap(&server, "essential", &[], &root, &[]).stderr(Stdio::null()).spawn().unwrap();
    until(&mut child, || packed(&root));
    let to_packed = begin.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(root.join(".fullbore-unfinished").exists());
    fs::write(root.join("left-over"), "").unwrap();

    // The next one starts over, and so does each after a kill at whatever moment.
    let mut random = Random::new(5, "kills");
    let mut marked = 0;
    for _ in 0..KILLS {
        let mut child = bootstrap(&server, "essential", &[], &root, &[]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(to_packed.mul_f64(random.below(1000) as f64 / 500.0));
        child.kill().unwrap();
        child.wait().unwrap();
        if root.join(".fullbore-unfinished").exists() {
            marked += 1;
        } else if root.join("usr").exists() {
            // It was quicker.
            is_sound(&root);
            fs::remove_dir_all(&root).unwrap();
        }
    }
    assert!(marked > 0);
    well(&mut bootstrap(&server, "essential", &[], &root, &[]));
    assert!(!root.join("left-over").exists());
    is_sound(&root);
    // What is complete is not touched.
    let output = bootstrap(&server, "essential", &[], &root, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not empty"));
}

/// Until it is so, or the child has ended.
fn until(child: &mut Child, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before");
        assert!(begin.elapsed() < Duration::from_secs(120), "nothing happens");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn hooks_run_in_order_and_archives_are_reproducible() {
    let (dir, server) = (place(), packages().serve());
    let hook =
        |moment: &str| format!("printf '%s ' {moment} >>\"$1\"/etc/moments; test \"$MMDEBSTRAP_HOOK\" = {moment}");
    let hooks: Vec<String> = ["setup", "extract", "essential", "customize"]
        .iter()
        .flat_map(|moment| [format!("--{moment}-hook"), hook(moment)])
        // A file of this machine's root, who is not in the user namespace.
        .chain(["--customize-hook".to_owned(), "copy-in /etc/passwd /opt".to_owned()])
        .collect();
    let hooks: Vec<&str> = hooks.iter().map(String::as_str).collect();
    let archive = same_for_everybody(dir.path(), "root.tar", &server, "essential", &hooks);
    let mut tar = clean_command("tar");
    tar.args(["--extract", "--to-stdout", "--file"]).arg(archive).arg("./etc/moments");
    assert_eq!(String::from_utf8_lossy(&well(&mut tar).stdout), "setup extract essential customize ");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// What a hook may leave where we and this machine's apt keep their files.
#[test]
fn a_hooks_links_lead_nothing_out_of_the_new_root() {
    let (dir, server) = (place(), packages().serve());
    let outside = dir.path().join("outside");
    let state = |path: &Path| {
        let about = fs::symlink_metadata(path).unwrap();
        (about.mode(), about.uid(), about.size(), about.ctime(), about.ctime_nsec(), about.nlink())
    };
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "outside\n").unwrap();
    std::os::unix::fs::chown(outside.join("file"), Some(1234), Some(1234)).unwrap();
    let before = [state(&outside), state(&outside.join("file"))];
    for (place, target, expected) in [
        ("var/cache/apt", "", Some(1)),
        ("var/cache/apt/archives", "", Some(1)),
        ("var/cache/apt/archives/partial", "", Some(1)),
        ("var/cache/apt/fullbore", "", Some(1)),
        ("var/lib/apt/lists", "", Some(1)),
        ("var/lib/apt/lists/partial", "", Some(1)),
        ("var/log/apt", "", Some(1)),
        ("tmp", "", Some(1)),
        ("etc/apt", "", Some(1)),
        ("var/log/apt/history.log", "/file", Some(1)),
        // Replaced, as what is written under its name.
        ("var/cache/apt/archives/lock", "/file", Some(0)),
    ] {
        let root = dir.path().join("root");
        let link = format!(
            "place=\"$1\"/{place}; mkdir -p \"${{place%/*}}\"; rm -rf \"$place\"; ln -s {}{target} \"$place\"",
            outside.display()
        );
        let mut command = bootstrap(&server, "essential", &[], &root, &["--setup-hook", &link]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), expected, "{place}: {said}");
        assert_eq!([state(&outside), state(&outside.join("file"))], before, "{place}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{place}");
        assert!(expected == Some(0) || said.contains("leads out of the root"), "{place}: {said}");
        fs::remove_dir_all(&root).unwrap();
    }
}

#[test]
#[ignore = "long"]
fn a_squashfs_image_is_the_same_each_time_and_for_everybody() {
    let (dir, server) = (place(), packages().serve());
    let image = same_for_everybody(dir.path(), "root.squashfs", &server, "essential", &[]);
    let root = dir.path().join("root");
    well(clean_command("unsquashfs").args(["-quiet", "-no-progress", "-dest"]).arg(&root).arg(image));
    is_sound(&root);
}

#[test]
#[ignore = "long"]
fn an_image_is_the_same_each_time_and_for_everybody() {
    let (dir, server) = (place(), packages().serve());
    let image = same_for_everybody(dir.path(), "root.oci.tar", &server, "essential", &[]);
    let mut skopeo = clean_command("skopeo");
    well(skopeo.arg("inspect").arg(format!("oci-archive:{}", image.display())));
}

/// Makes an archive, and another one without rights; they are the same. Where the first is.
fn same_for_everybody(dir: &Path, name: &str, server: &Server, variant: &str, more: &[&str]) -> PathBuf {
    let file = |name: &str| dir.join(name);
    let epoch = ("SOURCE_DATE_EPOCH", "1700000000");
    well(bootstrap(server, variant, &[], &file(name), more).env(epoch.0, epoch.1));
    // The same as somebody without rights, with the numbers of a file of our own.
    let theirs = file("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    let (numbers, program) = (theirs.join("numbers"), theirs.join("fullbore"));
    fs::write(&numbers, "nobody:200000:65536\n").unwrap();
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &program);
    let key = theirs.join("key.gpg");
    fs::copy(&packages().key, &key).unwrap();
    let mut command = clean_command("unshare");
    command.args(["--mount", "sh", "-c", WITH_NUMBERS, "sh"]).arg(&numbers);
    command.args(["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]).arg(&program);
    command.args(["bootstrap", "--variant", variant, "--keyring"]).arg(&key).args(more);
    command.args(["--setup-hook", "test \"$MMDEBSTRAP_MODE\" = unshare"]);
    command.arg(&packages().codename).arg(theirs.join(name)).arg(server.url());
    let told = well(command.env(epoch.0, epoch.1).current_dir(&theirs)).stderr;
    let told = String::from_utf8_lossy(&told);
    assert!(!told.contains("cannot be mounted"), "{told}");
    let (first, second) = (fs::read(file(name)).unwrap(), fs::read(theirs.join(name)).unwrap());
    assert!(first == second, "two archives of the same packages differ");
    file(name)
}

/// A kernel refuses user namespaces to ordinary users, as on a hardened machine or in a container.
#[test]
fn who_may_not_make_a_user_namespace_is_told_so_at_once() {
    let dir = place();
    let (numbers, programs) = (dir.path().join("numbers"), dir.path().join("programs"));
    fs::write(&numbers, "nobody:200000:65536\n").unwrap();
    fs::create_dir(&programs).unwrap();
    let refusing = programs.join("unshare");
    fs::write(&refusing, "#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&refusing, fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("fullbore");
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &program);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut command = clean_command("unshare");
    command.args(["--mount", "sh", "-c", WITH_NUMBERS, "sh"]).arg(&numbers);
    command.args(["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "env"]).arg(format!("PATH={path}"));
    command.arg(&program).args(["bootstrap", "bookworm"]).arg(dir.path().join("root")).arg("http://127.0.0.1:9/");
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("cannot make a user namespace: unshare: unshare failed: Operation not permitted"),
        "{error}"
    );
    assert!(error.contains("root"), "{error}");
    assert!(!dir.path().join("root").exists());
}

/// With packages beside the Essential ones, which apt installs.
#[test]
#[ignore = "long"]
fn a_larger_archive_is_the_same_each_time_and_for_everybody() {
    let (dir, server) = (place(), packages().serve());
    same_for_everybody(dir.path(), "root.tar", &server, "minbase", &["--include", "python3"]);
}

#[test]
fn a_foreign_architecture_that_does_not_run_here_is_refused() {
    let (dir, server) = (place(), packages().serve());
    let root = dir.path().join("root");
    // No machine of today runs it, and no interpreter for it is registered on a machine for tests.
    let output = bootstrap(&server, "minbase", &[], &root, &["--arch", "hppa"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot run programs of hppa on this machine"), "{error}");
    assert!(!root.exists());
}

/// Hides a program from those that it starts.
const WITHOUT: &str = r#"mount --bind /dev/null "$(command -v "$0")" && exec "$@""#;

/// Makes the directory of a file read-only for those that it starts.
const READ_ONLY: &str = r#"mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@""#;

#[test]
fn what_could_not_be_made_is_refused_at_once() {
    let dir = place();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("directory.tar")).unwrap();
    fs::write(at("file"), "").unwrap();
    let directory = dir.path().display().to_string();
    let refused = |script: &str, word: &str, target: &str| {
        let mut command = clean_command("unshare");
        command.args(["--mount", "sh", "-c", script, word, env!("CARGO_BIN_EXE_fullbore"), "bootstrap", "--keyring"]);
        // A keyring without keys, and a mirror that nobody serves: neither is asked for anything.
        let output = command.args(["/dev/null", "trixie"]).arg(at(target)).arg("http://127.0.0.1:9/debian").output();
        let output = output.unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["directory.tar", "file"], "{target}");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (program, package, target) in [
        ("zstd", "zstd", "root.tar.zst"),
        ("xz", "xz-utils", "root.txz"),
        ("mksquashfs", "squashfs-tools", "root.sqfs"),
    ] {
        let (status, error) = refused(WITHOUT, program, target);
        assert_eq!(status, Some(1), "{error}");
        assert!(error.contains(&format!("hint: install the package {package}")), "{error}");
    }
    let (status, error) = refused("exec \"$@\"", "sh", "none/root.tar");
    assert_eq!(status, Some(1), "{error}");
    assert!(error.contains(&format!("{}: is not a directory", at("none").display())), "{error}");
    let (status, error) = refused(READ_ONLY, &directory, "root.tar");
    assert_eq!(status, Some(7), "{error}");
    assert!(error.contains(&format!("{directory}: Read-only file system")), "{error}");
    let (status, error) = refused("exec \"$@\"", "sh", "directory.tar");
    assert_eq!(status, Some(7), "{error}");
    assert!(error.contains("directory.tar: is not a file"), "{error}");
    let (status, error) = refused("exec \"$@\"", "sh", "file");
    assert_eq!(status, Some(1), "{error}");
    assert!(error.contains("file: exists and is not a directory"), "{error}");
    let (status, error) = refused("exec \"$@\" --customize-hook 'copy-in /etc/hosts'", "sh", "root");
    assert_eq!(status, Some(1), "{error}");
    assert!(error.contains("needs a source and a destination"), "{error}");
    let (status, error) = refused("SOURCE_DATE_EPOCH=today exec \"$@\"", "sh", "root.tar");
    assert_eq!(status, Some(1), "{error}");
    assert!(error.contains("SOURCE_DATE_EPOCH: `today` is no number"), "{error}");
}

/// Points looked at, besides those just after a flush.
const CUTS: usize = 6;

/// Of the flushes, at most so many: each image is as large as a root.
const FLUSHES_LOOKED_AT: usize = 10;

#[test]
fn after_a_power_cut_there_is_a_marker_or_a_whole_root() {
    SlowDisk::available().unwrap();
    let (dir, server) = (place(), packages().serve());
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("disk")).unwrap();
    let disk = SlowDisk::mount(&at("disk"), &at("backing"), 1 << 30, 0).unwrap();
    disk.record(&at("base")).unwrap();
    well(&mut bootstrap(&server, "essential", &[], &at("disk/root"), &[]));
    let log = disk.recorded().unwrap();
    drop(disk);

    let mut random = Random::new(1, "power cut");
    let mut points: Vec<usize> = log.flushes();
    // The last ones are about the marker.
    points.drain(..points.len().saturating_sub(FLUSHES_LOOKED_AT));
    points.extend((0..CUTS).map(|_| random.below(log.len() as u64 + 1) as usize));
    let (mut marked, mut whole) = (0, 0);
    for point in points {
        let share = [0.0, 0.5, 1.0][random.below(3) as usize];
        log.image(point, &mut || random.chance(share), &at("image")).unwrap();
        let cut = AfterCut::mount(&at("image"), &at("after")).unwrap_or_else(|error| panic!("at {point}: {error}"));
        let root = at("after/root");
        let is_empty = !root.exists() || fs::read_dir(&root).unwrap().next().is_none();
        if is_empty || root.join(".fullbore-unfinished").exists() {
            marked += 1;
        } else {
            whole += 1;
            let sums = "cat var/lib/dpkg/info/*.md5sums | md5sum --check --quiet --strict";
            let output = clean_command("sh").args(["-c", sums]).current_dir(&root).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "at {point} of {log:?}: {said}");
            let audit = well(clean_command("dpkg").arg("--root").arg(&root).arg("--audit"));
            assert!(audit.stdout.is_empty(), "at {point} of {log:?}");
        }
        drop(cut);
        fs::remove_file(at("image")).unwrap();
    }
    assert!(marked > 0 && whole > 0, "cuts before and after the end: {marked}, {whole} of {log:?}");
}
