//! `fullbore install` beside what it finds around it: mounts, proxies, disks that fail, the user's own ways.

#![allow(clippy::unwrap_used)]

mod harness {
    pub mod made;
    pub mod packages;
    pub mod roots;
}

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use fullbore_install::divert::{self, DivertError};
use fullbore_testkit::power_cut::AfterCut;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use fullbore_testkit::slowdisk::SlowDisk;
use harness::made::{Archive, Pair, fullbore, inside, install, root_for, summary};
use harness::packages::well;
use tempfile::TempDir;

/// An archive with one small package.
fn needed() -> Archive {
    let archive = Archive::new();
    archive.add("needed", "1", "", "mkdir -p usr/share/needed; echo 1 >usr/share/needed/x");
    archive
}

/// `fullbore install` after this script, with the root as `$1`, in a mount namespace of its own.
fn install_after(script: &str, root: &Path, words: &[&str]) -> Output {
    let mut command = clean_command("unshare");
    let script = format!("{script}\nroot=$1; shift; exec \"$@\" --root \"$root\"");
    command.args(["--mount", "sh", "-ec", &script, "sh"]).arg(root).arg(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["install", "--yes", "--json"]).args(words).stdin(Stdio::null());
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
    command.output().unwrap()
}

/// The script of whichever comes first fails once: then that one is dpkg's, and the other as well, each as itself.
#[test]
fn two_architectures_of_a_package_are_left_to_dpkg() {
    let archive = Archive::new();
    for architecture in ["amd64", "i386"] {
        let script = "[ -e /var/lib/tried ] || { touch /var/lib/tried; exit 1; }";
        let tree = format!(
            "mkdir -p usr/lib/{architecture}; echo a >usr/lib/{architecture}/own
             printf '#!/bin/sh\n{script}\n' >DEBIAN/preinst"
        );
        archive.add("same", "1", &format!("Architecture: {architecture}\nMulti-Arch: same\n"), &tree);
    }
    let server = archive.serve();
    let place = root_for(&server, "dpkg --add-architecture i386");
    let root = place.path().join("root");
    let output = well(&mut install(&root, &["--json", "same", "same:i386"]));
    assert_eq!(summary(&output)["packages"]["unpacked"], 0, "{output:?}");
    let states = inside(&root, "dpkg-query --show --showformat '${Architecture} ${db:Status-Abbrev}\n' same");
    assert_eq!(states, "amd64 ii \ni386 ii \n");
    assert!(root.join("usr/lib/amd64/own").exists() && root.join("usr/lib/i386/own").exists());
}

#[test]
fn what_a_root_lacks_is_told() {
    let archive = needed();
    let server = archive.serve();
    let place = root_for(&server, "true");
    let root = place.path().join("root");
    fs::remove_dir_all(root.join("var/lib/apt/lists")).unwrap();
    let refused = |words: &[&str]| {
        let output = install(&root, words).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, said) = refused(&["needed"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains(&format!("`chroot {} apt-get update` fetches them", root.display())), "{said}");
    // A file of this machine's root, and one of that one.
    fs::write(place.path().join("some.deb"), "").unwrap();
    fs::write(root.join("some.deb"), "").unwrap();
    let outside = place.path().join("some.deb").display().to_string();
    let (status, said) = refused(&[&outside]);
    assert!(status == Some(1) && said.contains("no such file in"), "{said}");
    let (status, said) = refused(&["./some.deb"]);
    assert!(status == Some(2) && !said.contains("no such file in"), "{said}");
    fs::remove_file(root.join("usr/bin/apt-get")).unwrap();
    let (status, said) = refused(&["needed"]);
    assert!(status == Some(1) && said.contains("no apt in it"), "{said}");
}

/// As Debian's own `/run` is.
#[test]
fn nothing_need_be_started_from_run() {
    let archive = needed();
    let server = archive.serve();
    let place = root_for(&server, "true");
    let root = place.path().join("root");
    let nowhere = "for directory in run var/lib; do
        mount --bind \"$1/$directory\" \"$1/$directory\" && mount -o remount,bind,noexec \"$1/$directory\"; done";
    let refused = install_after(nowhere, &root, &["needed"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("neither /run nor /var/lib allows programs"), "{said}");
    assert!(!root.join("var/cache/apt/archives/needed_1_amd64.deb").exists());
    let output = install_after("mount -t tmpfs -o noexec tmpfs \"$1/run\"", &root, &["needed"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(summary(&output)["packages"]["unpacked"], 1);
    let left = fs::read_dir(root.join("var/lib")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!left.into_iter().any(|name| name.to_string_lossy().starts_with("fullbore")));
}

/// `/var` is a disk of its own, which fails when all is undone and not yet synced.
#[test]
fn a_disk_beneath_the_root_that_fails_fails_divert() {
    SlowDisk::available().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    for directory in ["usr/bin", "usr/lib", "var"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let disk = SlowDisk::mount(&root.join("var"), &dir.path().join("backing"), 64 << 20, 1 << 30).unwrap();
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    for file in ["usr/bin/dpkg", "usr/helper", "var/lib/dpkg/status", "var/lib/dpkg/diversions"] {
        fs::write(root.join(file), "").unwrap();
    }
    let divert = divert::Root::open(&root).unwrap();
    divert.on(&[], &root.join("usr/helper"), false, &mut |_| Ok(())).unwrap();
    let off = divert.off(&[], &mut |step| {
        if step == "remove the helper" {
            fs::write(root.join("var/late"), "not on the disk yet")?;
            disk.set_broken(true);
        }
        Ok(())
    });
    disk.set_broken(false);
    let error = off.unwrap_err();
    let var = root.canonicalize().unwrap().join("var");
    assert!(matches!(&error, DivertError::File { path, .. } if *path == var), "{error}");
}

/// Whoever is started by a wrapper must still be the process that has dpkg's locks.
#[test]
fn into_a_root_with_diversions_is_installed_as_without() {
    let archive = needed();
    let server = archive.serve();
    let pair = Pair::new(&server, "true");
    let divert = |what: &str| well(fullbore().args(["divert", what, "--root"]).arg(pair.ours()));
    divert("on");
    assert_eq!(summary(&pair.install(&[], &["needed"]))["packages"]["unpacked"], 1);
    divert("off");
    for root in [pair.ours(), pair.theirs()] {
        // dpkg-divert's own backup.
        fs::remove_file(root.join("var/lib/dpkg/diversions-old")).ok();
    }
    // apt's history has the name under which it was started.
    pair.assert_same_state();
}

/// Whenever the power fails: a wrapper that stands has its helper, as an empty one would be a dpkg that does nothing.
#[test]
fn a_power_cut_leaves_no_wrapper_with_an_empty_helper() {
    SlowDisk::available().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("root")).unwrap();
    let disk = SlowDisk::mount(&at("root"), &at("backing"), 64 << 20, 0).unwrap();
    for directory in ["usr/bin", "usr/lib", "etc/apt/apt.conf.d", "var/lib/dpkg/info"] {
        fs::create_dir_all(at("root").join(directory)).unwrap();
    }
    let empty = ["var/lib/dpkg/status", "var/lib/dpkg/diversions"];
    for file in ["usr/bin/dpkg", "usr/bin/apt-get"].iter().chain(&empty) {
        fs::write(at("root").join(file), "").unwrap();
        fs::set_permissions(at("root").join(file), Permissions::from_mode(0o755)).unwrap();
    }
    let helper = vec![b'h'; 100_000];
    fs::write(at("helper"), &helper).unwrap();
    disk.record(&at("base")).unwrap();
    let divert = divert::Root::open(&at("root")).unwrap();
    divert.on(&[], &at("helper"), false, &mut |_| Ok(())).unwrap();
    divert.on_by_apt(&at("helper"), false, &mut |_| Ok(())).unwrap();
    let log = disk.recorded().unwrap();
    drop(disk);
    let mut wrapped = 0;
    for point in log.flushes() {
        log.image(point, &mut || false, &at("image")).unwrap();
        let cut = AfterCut::mount(&at("image"), &at("after")).unwrap_or_else(|error| panic!("at {point}: {error}"));
        let root = at("after");
        let placed = fs::read(root.join("usr/lib/fullbore-nosync/fullbore")).ok();
        let is_wrapped = |name: &str| fs::metadata(root.join(name)).is_ok_and(|about| about.len() > 0);
        if is_wrapped("usr/bin/dpkg") || is_wrapped("usr/bin/apt-get") {
            wrapped += 1;
            let whole = placed.as_ref() == Some(&helper);
            assert!(whole, "at {point} of {log:?}: a helper of {:?} bytes", placed.map(|helper| helper.len()));
        }
        if is_wrapped("etc/apt/apt.conf.d/00fullbore-nosync") {
            assert!(is_wrapped("usr/lib/fullbore-nosync/dpkg"), "at {point} of {log:?}");
        }
        drop(cut);
    }
    assert!(wrapped > 0, "{log:?}");
}

#[test]
fn who_may_not_filter_with_privileges_is_told() {
    let archive = needed();
    let server = archive.serve();
    let place = root_for(&server, "true");
    let mut command = clean_command("setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin", env!("CARGO_BIN_EXE_fullbore")]);
    command.args(["install", "--yes", "--root"]).arg(place.path().join("root")).arg("needed").stdin(Stdio::null());
    let output = well(command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("setuid programs run with your own rights only").count(), 1, "{said}");
}

/// A loop device on a part of a disk that nobody uses; detached in the end.
struct Loop(String);

impl Loop {
    fn at_the_end_of(disk: &SlowDisk) -> Loop {
        let mut command = clean_command("losetup");
        command.args(["--find", "--show", "--offset", &(60 << 20).to_string()]).arg(disk.below().join("disk"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Loop(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = clean_command("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// dd asks for a sync, is answered, and closes the device, of whose errors nobody is told then. Here, where no other test
/// runs `nosync`, which would fail as well.
#[test]
fn a_block_device_that_fails_fails_nosync() {
    SlowDisk::available().unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("disk")).unwrap();
    let disk = SlowDisk::mount(&dir.path().join("disk"), &dir.path().join("backing"), 64 << 20, 1 << 30).unwrap();
    let device = Loop::at_the_end_of(&disk);
    let run = || {
        let mut command = fullbore();
        command.args(["nosync", "--", "dd", "if=/dev/zero", "bs=64k", "count=16", "conv=fsync,notrunc"]);
        let output = command.args(["status=none", &format!("of={}", device.0)]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Disks of other tests may be in it as well.
    let failed = format!("{}: final sync: Input/output error", device.0);
    let (_, said) = run();
    assert!(!said.contains(&failed), "{said}");
    disk.set_broken(true);
    let (status, said) = run();
    disk.set_broken(false);
    assert!(status == Some(7) && said.contains(&failed), "{status:?}: {said}");
}

/// A file system that not even root may look into, as another user's FUSE is to it.
#[test]
fn what_dpkg_cannot_reach_is_a_warning() {
    let archive = needed();
    let server = archive.serve();
    let place = root_for(&server, "true");
    let root = place.path().join("root");
    // Without a server: whoever is not this user is refused before it is asked.
    let foreign = "exec 9<>/dev/fuse
        mount -i -t fuse -o fd=9,rootmode=40000,user_id=65534,group_id=65534 foreign \"$1/opt\"";
    let output = install_after(foreign, &root, &["needed"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("root/opt: not synced: Permission denied"), "{said}");
}

/// Sources that are reached over `server` only, of which nothing but the root's apt is told, by this line.
fn root_behind(server: &Server, configuration: &str) -> TempDir {
    // Nobody listens there; the test server takes requests for other hosts.
    let prepare = format!(
        "sed -i 's|{}|http://127.0.0.1:9|' /etc/apt/sources.list
         printf '#!/bin/sh\necho {}\n' >/usr/local/bin/find-proxy; chmod 755 /usr/local/bin/find-proxy
         echo '{configuration}' >/etc/apt/apt.conf.d/proxy",
        server.url(),
        server.url()
    );
    root_for(server, &prepare)
}

#[test]
fn packages_come_on_the_ways_of_the_roots_apt() {
    let archive = needed();
    let server = archive.serve();
    let place = root_behind(&server, &format!("Acquire::http::Proxy \"{}\";", server.url()));
    let output = well(&mut install(&place.path().join("root"), &["--json", "needed"]));
    let summary = summary(&output);
    assert_eq!((&summary["packages"]["unpacked"], &summary["totals"]["files"]), (&1.into(), &1.into()), "{summary}");
}

#[test]
fn what_the_wire_cannot_bring_apt_brings() {
    let archive = needed();
    let server = archive.serve();
    // Programs that find a proxy are asked by apt alone.
    let place = root_behind(&server, "Acquire::http::Proxy-Auto-Detect \"/usr/local/bin/find-proxy\";");
    let root = place.path().join("root");
    let output = well(&mut install(&root, &["--json", "needed"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("apt fetches the missing files"), "{said}");
    assert_eq!(summary(&output)["packages"]["unpacked"], 1);
    let archives = fs::read_dir(root.join("var/cache/apt/archives")).unwrap();
    let left: Vec<_> = archives.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.ends_with(".part")), "{left:?}");
}

/// What was in the cache before stays there, as with apt.
#[test]
fn package_files_that_are_not_to_be_kept_are_not() {
    let archive = needed();
    archive.add("cached", "1", "", "mkdir -p usr/share/cached");
    let server = archive.serve();
    let prepare = "echo 'APT::Keep-Downloaded-Packages \"false\";' >/etc/apt/apt.conf.d/transient
        apt-get update; apt-get --yes --download-only install cached";
    let pair = Pair::new(&server, prepare);
    pair.install(&[], &["needed", "cached"]);
    pair.assert_same();
    let is_there = |name: &str| pair.ours().join("var/cache/apt/archives").join(name).exists();
    assert!(is_there("cached_1_amd64.deb") && !is_there("needed_1_amd64.deb"));
}

#[test]
fn the_users_mask_and_directory_are_not_the_scripts() {
    let archive = Archive::new();
    let script = |name: &str| {
        format!(
            "printf '#!/bin/sh\\n(pwd; umask) >/var/lib/{name}.said; mkdir -p /var/lib/{name}.made\\n\
             echo said by {name}\\n' >DEBIAN/{name}"
        )
    };
    archive.add("asks", "1", "", &format!("{}; {}", script("preinst"), script("postinst")));
    let server = archive.serve();
    // What makes the log makes it for everybody.
    let pair = Pair::new(&server, "rm -f /var/log/dpkg.log");
    let careful = "umask 077; cd /usr;";
    let mut ours = clean_command("sh");
    ours.args(["-ec", &format!("{careful} exec \"$@\""), "sh", env!("CARGO_BIN_EXE_fullbore")]);
    ours.args(["install", "--yes", "--root"]).arg(pair.ours()).arg("asks").stdin(Stdio::null());
    let output = well(ours.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8"));
    inside(&pair.theirs(), &format!("{careful} apt-get --yes install asks"));
    pair.assert_same();
    let root = pair.ours();
    assert_eq!(fs::read_to_string(root.join("var/lib/preinst.said")).unwrap(), "/\n0022\n");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("said by preinst\nUnpacking asks (1)") && told.contains("said by postinst"), "{told}");
}

#[test]
fn a_package_that_the_mirror_has_wrong_is_exit_4() {
    let archive = needed();
    let place = root_for(&archive.serve(), "true");
    let root = place.path().join("root");
    for (fault, code, said) in [
        (Fault::Corrupt, 4, "another SHA-256"),
        (Fault::Portal, 4, "index says"),
        (Fault::ShortLength, 4, "index says"),
        (Fault::LongLength, 4, "index says"),
        // apt has its try, and ends with a code of its own.
        (Fault::Truncate, 2, "cannot fetch"),
        (Fault::Status(404), 2, "is missing"),
    ] {
        let server = archive.serve();
        let sources = format!("deb [trusted=yes] {}/ flat/\n", server.url());
        fs::write(root.join("etc/apt/sources.list"), sources).unwrap();
        inside(&root, "apt-get update");
        server.add_fault(FaultRule::always(PathMatch::Contains("/needed_1".into()), fault.clone()));
        let output = install(&root, &["needed"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{fault:?}: {stderr}");
        let host = server.address().to_string();
        assert!(stderr.contains(said) && stderr.contains(&host), "{fault:?}: {stderr}");
        assert!(!root.join("usr/share/needed").exists(), "{fault:?}");
        assert!(!root.join("var/cache/apt/archives/needed_1_amd64.deb").exists(), "{fault:?}");
    }
    // The root is as good as before.
    let server = archive.serve();
    fs::write(root.join("etc/apt/sources.list"), format!("deb [trusted=yes] {}/ flat/\n", server.url())).unwrap();
    inside(&root, "apt-get update");
    well(&mut install(&root, &["needed"]));
    assert!(root.join("usr/share/needed/x").exists());
}
