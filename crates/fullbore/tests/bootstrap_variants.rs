//! `fullbore bootstrap` called as mmdebstrap is called: variants, options, formats. The large variants and other releases are
//! in `bootstrap_suites`.

#![allow(clippy::unwrap_used)]

mod harness {
    pub mod compared;
    pub mod packages;
    pub mod roots;
}

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Stdio;

use fullbore_testkit::process::clean_command;
use harness::compared::{
    ALLOWED, ALLOWED_WITHOUT_APT, bootstrap, fullbore, is_consistent, is_sound, place, reference, reference_of, same,
    verify,
};
use harness::packages::{UNDECIDED, UNDECIDED_NEEDS, packages, well};

/// Nothing of the documentation, but what the law wants: as in Debian's own images for containers.
const SLIM: &[&str] = &[
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--aptopt=APT::Install-Suggests \"false\"",
    "--components=main",
];

#[test]
#[ignore = "long"]
fn important_packages_with_apt_and_dpkg_options_match_mmdebstrap() {
    let (dir, server) = (place(), packages().serve());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    well(&mut bootstrap(&server, "important", &[], &ours, SLIM));
    reference_of(packages(), &server, "important", &[], &theirs, SLIM);
    same(&ours, &theirs, ALLOWED);
    is_consistent(&ours);
    assert!(verify(&ours) == verify(&theirs), "dpkg misses other files than with mmdebstrap");
    let option = fs::read_to_string(ours.join("etc/dpkg/dpkg.cfg.d/99fullbore")).unwrap();
    assert!(option.starts_with("path-exclude="), "{option}");
}

/// An option that only dpkg has: it unpacks everything, after there was none that could.
#[test]
#[ignore = "long"]
fn what_only_dpkg_unpacks_is_mmdebstraps() {
    let (dir, server) = (place(), packages().serve());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let options = [SLIM, &["--dpkgopt=force-overwrite"]].concat();
    let output = well(&mut bootstrap(&server, "essential", &[], &ours, &[&options[..], &["--json"]].concat()));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let summary: serde_json::Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!(summary["packages"]["unpacked"], 0, "{summary}");
    reference_of(packages(), &server, "essential", &[], &theirs, &options);
    same(&ours, &theirs, &[ALLOWED, ALLOWED_WITHOUT_APT].concat());
    is_consistent(&ours);
}

#[test]
#[ignore = "long"]
fn a_root_of_a_pattern_is_mmdebstraps() {
    let (dir, server) = (place(), packages().serve());
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    // A pattern of apt's, which may mean any package: apt is shown everything.
    let include = ["?essential"];
    well(&mut bootstrap(&server, "custom", &include, &ours, &[]));
    reference(&server, "custom", &include, &theirs);
    same(&ours, &theirs, &[ALLOWED, ALLOWED_WITHOUT_APT].concat());
    is_sound(&ours);
}

/// As in a pipe: a single stdin and a single stdout, through the namespaces in which the program starts itself again.
#[test]
fn sources_come_from_stdin_and_an_archive_goes_to_stdout() {
    let (dir, server) = (place(), packages().serve());
    let (named, streamed, between) = (dir.path().join("root.tar"), dir.path().join("stream"), dir.path().join("tmp"));
    fs::create_dir(&between).unwrap();
    let epoch = ("SOURCE_DATE_EPOCH", "1700000000");
    well(bootstrap(&server, "essential", &[], &named, &[]).env(epoch.0, epoch.1));
    let archive = packages();
    let line = format!("deb {} {} main\n", server.url(), archive.codename);
    let mut command = fullbore();
    command.args(["bootstrap", "--variant", "essential", "--keyring"]).arg(&archive.key).arg(&archive.codename);
    command.args(["-", "-"]).env(epoch.0, epoch.1).env("TMPDIR", &between).stdin(Stdio::piped());
    let mut child = command.stdout(fs::File::create(&streamed).unwrap()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    // What is else on stdout is here.
    assert!(told.contains(" packages in "), "{told}");
    assert!(fs::read(named).unwrap() == fs::read(streamed).unwrap(), "not the archive that a named file would be");
    assert_eq!(fs::read_dir(&between).unwrap().count(), 0);
}

/// Runs the rest where a file system of its own with the options `$1` is mounted on TMPDIR.
const WITH_TMPDIR: &str = r#"mount -t tmpfs -o "$1" tmpfs "$TMPDIR" && shift && exec "$@""#;

/// Places for temporary files are often mounted so.
#[test]
#[ignore = "long"]
fn an_archive_is_the_same_without_devices_and_refused_on_noexec() {
    let (dir, server) = (place(), packages().serve());
    let named = dir.path().join("root.tar");
    let epoch = ("SOURCE_DATE_EPOCH", "1700000000");
    well(bootstrap(&server, "essential", &[], &named, &[]).env(epoch.0, epoch.1));
    let mounted = |options: &str| {
        let made = bootstrap(&server, "essential", &[], Path::new("-"), &[]);
        let mut command = clean_command("unshare");
        command.args(["--mount", "sh", "-c", WITH_TMPDIR, "sh", options]);
        command.arg(made.get_program()).args(made.get_args()).env(epoch.0, epoch.1).env("TMPDIR", dir.path());
        command
    };
    let streamed = well(&mut mounted("nodev")).stdout;
    assert!(fs::read(named).unwrap() == streamed, "not the archive that is made where devices work");
    let output = mounted("noexec").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{told}");
    assert!(told.contains("mounted noexec"), "{told}");
}

#[test]
fn an_archive_is_not_shown_on_a_terminal() {
    let mut command = clean_command("script");
    let words = format!("{} bootstrap trixie", env!("CARGO_BIN_EXE_fullbore"));
    let output = command.args(["--quiet", "--return", "--command", &words, "/dev/null"]).stdin(Stdio::null()).output();
    let output = output.expect("needs the package bsdutils");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("an archive is nothing for a terminal"), "{told}");
}

/// Where only the new root's apt is told of a proxy.
#[test]
fn a_proxy_for_apt_brings_packages_too() {
    let (dir, server) = (place(), packages().serve());
    let (root, archive) = (dir.path().join("root"), packages());
    let proxy = format!("Acquire::http::Proxy \"{}\"", server.url());
    let mut command = fullbore();
    command.args(["bootstrap", "--variant", "essential", "--aptopt", &proxy, "--keyring"]).arg(&archive.key);
    // Nobody listens there; the test server takes requests for other hosts.
    well(command.arg(&archive.codename).arg(&root).arg("http://127.0.0.1:9"));
    is_sound(&root);
}

#[test]
fn sources_without_essential_packages_make_no_root() {
    let (dir, server) = (place(), packages().serve());
    let line = format!("deb {} {} main", server.url(), packages().codename);
    for (variant, target) in [("essential", "root"), ("minbase", "root.tar")] {
        let mut command = fullbore();
        command.args(["bootstrap", "--variant", variant, "--keyring"]).arg(&packages().key);
        // The sources are of another suite.
        let output = command.arg("nowhere").arg(dir.path().join(target)).arg(&line).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{variant}: {told}");
        assert!(told.contains("the sources have no Essential package of nowhere"), "{variant}: {told}");
    }
    // The root of an archive that there will not be is gone; the other one is marked.
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["root"]);
    assert!(dir.path().join("root/.fullbore-unfinished").exists());
    let root = dir.path().join("of-contrib");
    let output = bootstrap(&server, "essential", &[], &root, &["--components", "contrib"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("the sources have no Essential package"), "{told}");
    let mut command = fullbore();
    command.args(["bootstrap", "trixie"]).arg(dir.path().join("other")).arg("-").stdin(Stdio::null());
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && told.contains("stdin: no apt sources in it"), "{told}");
}

#[test]
fn hooks_are_heard_and_what_they_leave_running_is_ended() {
    let (dir, server) = (place(), packages().serve());
    let root = dir.path().join("root");
    // It runs through all moments, and is no fault.
    let starts = "sleep 86399 & echo $! >\"$1\"/etc/pid; echo \"started by $MMDEBSTRAP_HOOK\"; printf 'and no newline'";
    let sees =
        "kill -0 $(cat \"$1\"/etc/pid) && echo 'still there' >&2; cp \"$1\"/etc/pid \"$1\"/../pid; rm \"$1\"/etc/pid";
    let looks = "chroot \"$1\" head -c 4 /proc/self/comm; echo \", verbosity $MMDEBSTRAP_VERBOSITY\"";
    let hooks = ["--setup-hook", starts, "--essential-hook", looks, "--customize-hook", sees];
    let output = well(&mut bootstrap(&server, "essential", &[], &root, &hooks));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let all =
        ["started by setup", "and no newline", "head, verbosity 1", "still there", "still ran, and were killed: sleep"];
    for heard in all {
        assert!(told.contains(heard), "{heard}: {told}");
    }
    let pid = fs::read_to_string(dir.path().join("pid")).unwrap();
    // Empty also where nobody has waited for it.
    let words = fs::read_to_string(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    assert!(!words.contains("86399"), "{words}");
    fs::remove_file(dir.path().join("pid")).unwrap();
    is_sound(&root);
    // Of an archive nothing is left where a hook fails.
    let hook = "echo 'that is why'; exit 3";
    let archive = dir.path().join("root.tar");
    let output = bootstrap(&server, "essential", &[], &archive, &["--essential-hook", hook]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("that is why") && !told.contains("still in"), "{told}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("failed after "), "{said}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["root"]);
}

#[test]
fn a_signature_by_another_key_is_refused() {
    let (dir, server) = (place(), packages().serve());
    let root = dir.path().join("root");
    let mut command = fullbore();
    command.args([
        "bootstrap",
        "--variant",
        "essential",
        "--keyring",
        "/usr/share/keyrings/debian-archive-keyring.gpg",
    ]);
    let output = command.arg(&packages().codename).arg(&root).arg(server.url()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(root.join(".fullbore-unfinished").exists());
}

/// A source that only apt's own methods reach, and an index that is kept compressed: all is left to apt.
#[test]
#[ignore = "long"]
fn sources_that_are_apts_alone_make_the_same_root() {
    let (dir, server) = (place(), packages().serve());
    let (ours, other) = (dir.path().join("ours"), dir.path().join("other"));
    well(&mut bootstrap(&server, "essential", &[], &ours, &[]));
    let archive = packages();
    let mut command = fullbore();
    command.args(["bootstrap", "--variant", "essential", "--aptopt", "Acquire::GzipIndexes true", "--keyring"]);
    command.arg(&archive.key).arg(&archive.codename).arg(&other);
    well(command.arg(format!("copy://{}", archive.served().display())));
    for root in [&ours, &other] {
        without_sources(root);
    }
    same(&ours, &other, ALLOWED);
}

/// apt breaks ties by the order of names, which is another one in a part of the archive: the whole decides.
#[test]
#[ignore = "long"]
fn where_apt_decides_differently_with_all_packages_the_root_is_made_anew() {
    let (dir, server) = (place(), packages().serve());
    let root = dir.path().join("root");
    let output = well(&mut bootstrap(&server, "essential", &[UNDECIDED], &root, &[]));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("apt decides differently: starting over"), "{told}");
    is_sound(&root);
    let has = |name: &str| root.join(format!("var/lib/dpkg/info/{name}.list")).exists();
    assert!(has(UNDECIDED) && has(UNDECIDED_NEEDS) && !has("fullbore-test-c"));
}

fn without_sources(root: &Path) {
    fs::write(root.join("etc/apt/sources.list"), "").unwrap();
    let _ = fs::remove_file(root.join("etc/apt/apt.conf.d/99fullbore"));
}

/// Files outside, and links to them in the root from before its first package.
#[test]
fn links_planted_in_a_root_lead_nothing_out_of_it() {
    let (dir, server) = (place(), packages().serve());
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let names = [
        "usr/sbin/policy-rc.d",
        "etc/machine-id",
        "etc/fstab",
        "var/log/dpkg.log",
        "var/log/alternatives.log",
        "var/cache/apt/pkgcache.bin",
        "var/lib/dbus/machine-id",
        "var/lib/dpkg/tmp.ci",
        "var/lib/dpkg/status-old",
        "var/lib/dpkg/status-new",
    ];
    let mut script = String::from("cd \"$1\"");
    for (number, name) in names.iter().enumerate() {
        let file = outside.join(number.to_string());
        fs::write(&file, "outside\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let parent = Path::new(name).parent().unwrap().display();
        script.push_str(&format!("; mkdir -p {parent}; rm -f {name}; ln -s {} {name}", file.display()));
        // What programs in the root follow leads to something there.
        script.push_str(&format!("; mkdir -p .{}; : > .{}", outside.display(), file.display()));
    }
    let state = || {
        let one = |number: usize| {
            let path = outside.join(number.to_string());
            let about = fs::symlink_metadata(&path).unwrap();
            (about.mode(), about.uid(), about.nlink(), about.ctime(), about.ctime_nsec(), fs::read(path).unwrap())
        };
        ((0..names.len()).map(one).collect::<Vec<_>>(), fs::read_dir(&outside).unwrap().count())
    };
    let before = state();
    let root = dir.path().join("root");
    well(&mut bootstrap(&server, "essential", &[], &root, &["--setup-hook", &script]));
    assert!(state() == before, "changed outside: {:?}", state());
    assert_eq!(fs::symlink_metadata(root.join("etc/machine-id")).unwrap().len(), 0);
}

/// As user nobody may prepare /tmp for a root's archive that root is to make there.
#[test]
fn a_planted_name_in_a_sticky_directory_gets_no_root() {
    let (dir, server) = (place(), packages().serve());
    let (sticky, outside) = (dir.path().join("sticky"), dir.path().join("outside"));
    for path in [&sticky, &outside] {
        fs::create_dir(path).unwrap();
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(outside.join("file"), "outside\n").unwrap();
    let nobody = |script: &str| {
        let mut command = clean_command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-ec", script]);
        well(command.current_dir(&sticky));
    };
    // A directory of theirs that looks like an unfinished root, and links to what is not theirs.
    nobody("mkdir .root.tar.fullbore-root; : > .root.tar.fullbore-root/.fullbore-unfinished");
    nobody("mkdir .root.tar.fullbore-root.1; : > .root.tar.fullbore-root.1/.fullbore-unfinished");
    nobody("ln -s ../outside .root.tar.fullbore-root.2; ln -s ../outside/file .root.tar.part");
    well(&mut bootstrap(&server, "essential", &[], &sticky.join("root.tar"), &[]));
    assert!(fs::metadata(sticky.join("root.tar")).unwrap().len() > 1 << 20);
    assert_eq!(fs::metadata(sticky.join("root.tar")).unwrap().uid(), 0);
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"outside\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    let mut left: Vec<_> = fs::read_dir(&sticky).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    let planted = [
        ".root.tar.fullbore-root",
        ".root.tar.fullbore-root.1",
        ".root.tar.fullbore-root.2",
        ".root.tar.part",
        "root.tar",
    ];
    assert_eq!(left, planted);
    // The archive itself, and the root as a directory, by a link of theirs.
    nobody("ln -s ../outside/file other.tar; ln -s ../outside other");
    for target in ["other.tar", "other"] {
        let output = bootstrap(&server, "essential", &[], &sticky.join(target), &[]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains("link of another user"), "{target}: {told}");
    }
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"outside\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}
