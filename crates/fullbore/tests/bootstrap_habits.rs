//! `fullbore bootstrap` with the habits of mmdebstrap's users: hooks, steps to leave out, targets, files as packages.

#![allow(clippy::unwrap_used)]

mod harness {
    pub mod compared;
    pub mod packages;
    pub mod roots;
}

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use fullbore_testkit::signer::Signer;
use harness::compared::{bootstrap, fullbore, is_sound, place};
use harness::packages::{packages, well};

/// A program in a directory of hooks.
fn program(directory: &Path, name: &str, text: &str) {
    fs::create_dir_all(directory).unwrap();
    let path = directory.join(name);
    fullbore_testkit::process::write_program(path, text);
}

/// A package that has one file.
fn package(directory: &Path, name: &str, depends: &str) -> PathBuf {
    let (tree, deb) = (directory.join(format!("{name}-tree")), directory.join(format!("{name}.deb")));
    fs::create_dir_all(tree.join("DEBIAN")).unwrap();
    fs::create_dir_all(tree.join("opt")).unwrap();
    fs::write(tree.join("opt").join(name), "file\n").unwrap();
    let control = format!(
        "Package: {name}\nVersion: 1:2+x\nArchitecture: all\nMaintainer: T <t@example.org>\nDepends: {depends}\n\
         Description: one file\n"
    );
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    well(clean_command("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&tree).arg(&deb));
    deb
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An archive of these packages, each with the options of apt-ftparchive for its stanza, and the key of its signature.
fn archive(directory: &Path, packages: &[(&Path, &[&str])]) -> (PathBuf, PathBuf) {
    let archive = directory.join("archive");
    let index = archive.join("dists/odd/main/binary-amd64");
    fs::create_dir_all(&index).unwrap();
    let mut stanzas = Vec::new();
    for (number, (deb, options)) in packages.iter().enumerate() {
        let pool = format!("pool/{number}");
        fs::create_dir_all(archive.join(&pool)).unwrap();
        fs::copy(deb, archive.join(&pool).join(deb.file_name().unwrap())).unwrap();
        let mut scan = clean_command("apt-ftparchive");
        stanzas.extend(well(scan.args(*options).args(["packages", &pool]).current_dir(&archive)).stdout);
    }
    fs::write(index.join("Packages"), stanzas).unwrap();
    let mut release = clean_command("apt-ftparchive");
    for (field, value) in [("Suite", "odd"), ("Codename", "odd"), ("Components", "main"), ("Architectures", "amd64")] {
        release.arg(format!("--option=APT::FTPArchive::Release::{field}={value}"));
    }
    let release = well(release.args(["release", "."]).current_dir(archive.join("dists/odd"))).stdout;
    let signer = Signer::new("odd").unwrap();
    fs::write(archive.join("dists/odd/InRelease"), signer.clearsign(&release).unwrap()).unwrap();
    let key = directory.join("odd.gpg");
    fs::write(&key, signer.public_key().unwrap()).unwrap();
    (archive, key)
}

/// Such as inventage/nexus-apt-plugin#21: apt takes what has a SHA-512, and refuses what has only an MD5.
#[test]
fn packages_that_only_have_a_sha512_were_refused() {
    let dir = place();
    let one = package(dir.path(), "one", "two");
    let two = package(dir.path(), "two", "one");
    let strong = ["--no-md5", "--no-sha1", "--no-sha256"];
    let run = |root: &Path, archive: &Path, key: &Path, more: &[&str]| {
        let server = Server::start(archive).unwrap();
        let mut command = fullbore();
        command.args(["bootstrap", "--variant", "extract", "--include", "one", "--keyring"]).arg(key).args(more);
        command.arg("odd").arg(root).arg(server.url());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (mixed, key) = archive(dir.path(), &[(one.as_path(), &strong[..]), (two.as_path(), &[])]);
    let root = dir.path().join("root");
    let (code, told) = run(&dir.path().join("simulated"), &mixed, &key, &["--simulate"]);
    assert_eq!(code, Some(0), "{told}");
    let (code, told) = run(&root, &mixed, &key, &[]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!((text(&root.join("opt/one")), text(&root.join("opt/two"))), ("file\n".into(), "file\n".into()));
    assert!(!root.join("var/cache/apt/fullbore").exists());
    // The bytes are others than the SHA-512 says.
    let path = mixed.join("pool/0/one.deb");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (code, told) = run(&dir.path().join("damaged"), &mixed, &key, &[]);
    assert!(code == Some(4) && told.contains("Hash Sum mismatch"), "{code:?} {told}");
    let weak = ["--no-sha1", "--no-sha256", "--no-sha512"];
    let other = dir.path().join("weak");
    fs::create_dir(&other).unwrap();
    let (weak, key) = archive(&other, &[(one.as_path(), &weak[..]), (two.as_path(), &[])]);
    let (code, told) = run(&dir.path().join("forgeable"), &weak, &key, &[]);
    assert!(code == Some(4) && told.contains("Insufficient information"), "{code:?} {told}");
}

#[test]
fn hooks_run_in_the_order_of_the_command_line_with_stdin_and_a_helper() {
    let (dir, server) = (place(), packages().serve());
    let root = dir.path().join("root");
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    // Without `#!`, as mmdebstrap takes them.
    program(&first, "customize01.sh", "echo first01 >> \"$1/order\"\n");
    program(&first, "customize00.sh", "#!/bin/sh\necho first00 >> \"$1/order\"\n");
    program(&first, "README", "#!/bin/sh\nexit 1\n");
    program(&second, "setup.sh", "#!/bin/sh\necho second >> \"$1/order\"\n");
    fs::write(first.join("customize02.sh"), "exit 1\n").unwrap();
    fs::write(dir.path().join("sent"), "sent\n").unwrap();
    let helper = r#""$MMDEBSTRAP_ARGV0" --hook-helper "$1" "$MMDEBSTRAP_MODE" "$MMDEBSTRAP_HOOK" '' 1"#;
    let socket = r#"<&$MMDEBSTRAP_HOOKSOCK >&$MMDEBSTRAP_HOOKSOCK"#;
    let up = format!("{helper} upload sent /received {socket}");
    let down = format!("{helper} download /received back {socket} && {helper} copy-out /received new/tree {socket}");
    let hooks = [
        "--customize-hook",
        "echo cli1 >> \"$1/order\"",
        "--hook-directory",
        first.to_str().unwrap(),
        "--setup-hook",
        &up,
        "--customize-hook",
        "echo cli2 >> \"$1/order\"; cat > \"$1/input\"",
        "--hook-dir",
        second.to_str().unwrap(),
        "--chrooted-customize-hook",
        "cat /received; echo chrooted >> /order; test -e /var/lib/dpkg/status",
        "--customize-hook",
        &down,
    ];
    let mut command = bootstrap(&server, "essential", &[], &root, &hooks);
    let mut child = command.current_dir(dir.path()).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"typed\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    assert_eq!(text(&root.join("order")), "second\ncli1\nfirst00\nfirst01\ncli2\nchrooted\n");
    assert_eq!(text(&root.join("input")), "typed\n");
    assert_eq!(text(&dir.path().join("back")), "sent\n");
    assert_eq!(text(&dir.path().join("new/tree/received")), "sent\n");
    assert!(told.contains("customize02.sh: named like a hook, but not executable"), "{told}");
    assert!(told.contains("README: not a hook"), "{told}");
    assert!(told.lines().any(|line| line.ends_with(" sent")), "the output of a hook: {told}");
}

/// A shell as a hook.
#[test]
fn hooks_have_the_terminal() {
    let (dir, server) = (place(), packages().serve());
    let (root, file) = (dir.path().join("root"), dir.path().join("terminal"));
    let is_terminal = "test -t 0 && test -t 1 && test -t 2";
    let read = format!("read -r word; echo \"$word\" > {}", file.display());
    let hooks = ["--customize-hook", is_terminal, "--customize-hook", &read];
    let made = bootstrap(&server, "essential", &[], &root, &hooks);
    let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap().replace('\'', "'\\''"));
    let line: Vec<String> = std::iter::once(made.get_program()).chain(made.get_args()).map(quoted).collect();
    let mut script = clean_command("script");
    script.args(["--quiet", "--return", "--command", &line.join(" "), "/dev/null"]);
    let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("needs the package bsdutils");
    child.stdin.as_mut().unwrap().write_all(b"typed\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(text(&file), "typed\n");
    is_sound(&root);
}

#[test]
fn what_cannot_be_installed_is_told_before_unpacking() {
    let (dir, server) = (place(), packages().serve());
    package(dir.path(), "made-up", "libc6");
    package(dir.path(), "broken", "no-such-package");
    let refused = |include: &str, variant: &str| {
        let root = dir.path().join("refused");
        let mut command = bootstrap(&server, variant, &[include], &root, &[]);
        let output = command.current_dir(dir.path()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{include}: {told}");
        assert!(!root.join("usr").exists(), "{include}: unpacked already");
        let _ = fs::remove_dir_all(&root);
        told
    };
    for (include, variant, word) in [
        ("no-such-package", "essential", "Unable to locate package no-such-package"),
        ("no-such-package", "custom", "Unable to locate package no-such-package"),
        ("vim-tiny=0.1", "minbase", "Version '0.1' for 'vim-tiny' was not found"),
        ("./broken.deb", "essential", "no-such-package"),
        ("./none.deb", "essential", "--include ./none.deb: No such file"),
        ("/", "essential", "--include /: is no file"),
    ] {
        let told = refused(include, variant);
        assert!(told.contains(word), "{include}: {told}");
    }
    for (variant, more) in
        [("essential", &[][..]), ("custom", &["coreutils", "dash", "diffutils", "dpkg", "libc-bin", "sed"])]
    {
        let root = dir.path().join(variant);
        let include = [&["./made-up.deb"], more].concat();
        well(bootstrap(&server, variant, &include, &root, &[]).current_dir(dir.path()));
        assert_eq!(text(&root.join("opt/made-up")), "file\n");
        let status = text(&root.join("var/lib/dpkg/status"));
        let stanza = status.split("\n\n").find(|stanza| stanza.starts_with("Package: made-up\n")).unwrap();
        assert!(stanza.contains("Status: install ok installed") && stanza.contains("Version: 1:2+x"), "{stanza}");
    }
}

#[test]
fn packages_are_unpacked_and_not_configured() {
    let (dir, server) = (place(), packages().serve());
    let root = dir.path().join("root");
    let hook = "test -e \"$1\"/usr/bin/less && : > \"$1\"/hooked";
    let hooks = ["--extract-hook", hook, "--essential-hook", "exit 1", "--customize-hook", "exit 1"];
    well(&mut bootstrap(&server, "extract", &["less"], &root, &hooks));
    assert!(root.join("usr/bin/less").exists() && root.join("lib").exists() && root.join("hooked").exists());
    assert_eq!(text(&root.join("var/lib/dpkg/status")), "");
    assert!(!root.join("var/lib/dpkg/info/less.list").exists() && !root.join(".fullbore-unfinished").exists());
}

#[test]
fn a_simulation_tells_packages_and_makes_nothing_of_a_file() {
    let (dir, server) = (place(), packages().serve());
    let (file, root) = (dir.path().join("root.tar"), dir.path().join("root"));
    for target in [&file, &root] {
        let mut command = bootstrap(&server, "apt", &["less"], target, &["--simulate", "--setup-hook", "exit 1"]);
        let told = String::from_utf8_lossy(&well(&mut command).stderr).into_owned();
        assert!(told.contains("would install less ") && told.contains("would install apt "), "{told}");
        assert!(told.contains("--simulate runs no hooks"), "{told}");
    }
    assert!(!file.exists());
    // As mmdebstrap leaves it.
    assert!(root.join("etc/apt/sources.list").exists() && !root.join("usr").exists());
    assert!(!root.join("var/cache/apt/archives/lock").exists());
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["root"]);
}

#[test]
fn the_log_file_has_the_lines_of_stderr_and_the_end() {
    let (dir, server) = (place(), packages().serve());
    let (root, log) = (dir.path().join("root"), dir.path().join("log"));
    let more = ["--simulate", "--setup-hook", "exit 1", "--logfile", log.to_str().unwrap()];
    well(&mut bootstrap(&server, "apt", &[], &root, &more));
    let logged = text(&log);
    assert!(logged.contains("would install apt ") && logged.contains("--simulate runs no hooks"), "{logged}");
    // A run that fails.
    let mut command = fullbore();
    command.args(["bootstrap", "--log-file"]).arg(&log).arg("trixie").arg(dir.path().join("failed"));
    command.arg("http://127.0.0.1:1/debian");
    assert_eq!(command.output().unwrap().status.code(), Some(3));
    assert!(text(&log).strip_prefix(&logged).unwrap().contains("error: http://127.0.0.1:1/debian trixie: "));
    // A file that cannot be written ends the run before it changes anything.
    let mut command = bootstrap(&server, "apt", &[], &dir.path().join("other"), &["--log-file", "/nowhere/log"]);
    let output = command.output().unwrap();
    assert!(output.status.code() == Some(7) && String::from_utf8_lossy(&output.stderr).contains("/nowhere/log"));
    assert!(!dir.path().join("other").exists());
}

#[test]
fn an_empty_keyring_trusts_no_key() {
    let (dir, server) = (place(), packages().serve());
    let (root, empty) = (dir.path().join("root"), dir.path().join("empty"));
    fs::write(&empty, "").unwrap();
    let mut command = fullbore();
    command.args(["bootstrap", "--variant", "apt", "--keyring"]).arg(&empty).arg(&packages().codename).arg(&root);
    let output = command.arg(server.url()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(4) && said.contains("no keyring given"), "{said}");
    assert!(root.join("etc/apt/sources.list").exists());
}

#[test]
fn steps_are_left_out() {
    let (dir, server) = (place(), packages().serve());
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("own"), "own\n").unwrap();
    let skips = "check/empty,cleanup/apt/lists cleanup/tmp,chroot/mount/proc,chroot/mount/sys,chroot/policy-rc.d,\
                 chroot/start-stop-daemon,essential/unlink,no/step";
    let hook = r#"test ! -e "$1"/proc/self && test ! -e "$1"/sys/kernel && test ! -e "$1"/usr/sbin/policy-rc.d &&
        test ! -e "$1"/sbin/start-stop-daemon.REAL && : > "$1"/tmp/kept"#;
    let unlinked = r#"ls "$1"/var/cache/apt/archives/*.deb"#;
    let more = ["--skip", skips, "--customize-hook", hook, "--essential-hook", unlinked];
    let told = well(&mut bootstrap(&server, "essential", &[], &root, &more)).stderr;
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(told.contains("warning: --skip no/step: no step has this name"), "{told}");
    assert_eq!(text(&root.join("own")), "own\n");
    assert!(root.join("tmp/kept").exists());
    let lists = fs::read_dir(root.join("var/lib/apt/lists")).unwrap();
    assert!(
        lists.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("Packages")).count() > 0
    );
    // What was there before is not cleared by a run that does not keep it.
    let output = bootstrap(&server, "essential", &[], &root, &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&root.join("own")), "own\n");
    // A root that a hook brings, without any package.
    let (tar, copied) = (dir.path().join("in.tar"), dir.path().join("out.tar"));
    well(clean_command("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).args(["etc", "dev"]));
    let mut command = fullbore();
    command.args(["bootstrap", "--variant", "custom", "--skip", "update,setup,cleanup,tar-in/mknod,output/dev"]);
    command.arg("--setup-hook").arg(format!("tar-in {} /", tar.display())).arg("").arg(&copied);
    well(&mut command);
    let listed = well(clean_command("tar").arg("-tf").arg(&copied)).stdout;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    assert!(listed.contains("./etc/passwd\n") && !listed.contains("./dev/null\n"), "{listed}");
}

#[test]
#[ignore = "long"]
fn targets_are_those_of_mmdebstrap() {
    let (dir, server) = (place(), packages().serve());
    let at = |name: &str| dir.path().join(name);
    let between = at("tmp");
    fs::create_dir(&between).unwrap();
    let names = |tar: &[u8]| {
        let mut list = clean_command("tar");
        let mut child = list.arg("-t").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let tar = tar.to_vec();
        let writing = std::thread::spawn(move || stdin.write_all(&tar));
        let output = child.wait_with_output().unwrap();
        let _ = writing.join();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // A FIFO, without the devices.
    well(clean_command("mkfifo").arg(at("fifo")));
    let fifo = at("fifo");
    let reading = std::thread::spawn(move || fs::read(fifo).unwrap());
    let more = ["--skip", "output/mknod"];
    well(bootstrap(&server, "essential", &[], &at("fifo"), &more).env("TMPDIR", &between));
    let listed = names(&reading.join().unwrap());
    assert!(listed.contains("./dev/fd\n") && !listed.contains("./dev/null\n"), "{listed}");
    // Nothing.
    let hook = ["--customize-hook", ": > \"$1\"/made"];
    well(bootstrap(&server, "essential", &[], Path::new("/dev/null"), &hook).env("TMPDIR", &between));
    assert_eq!(fs::read_dir(&between).unwrap().count(), 0);
    // Without SUITE: sources on stdin, and an archive on stdout.
    let mut command = fullbore();
    command.args(["bootstrap", "--variant", "essential", "--keyring"]).arg(&packages().key).env("TMPDIR", &between);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let line = format!("deb {} {} main\n", server.url(), packages().codename);
    child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(names(&output.stdout).contains("./usr/bin/dpkg\n"));
    // Under the name of mmdebstrap, and by its beginning of an option.
    let link = at("mmdebstrap");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_fullbore"), &link).unwrap();
    let mut command = clean_command(link.to_str().unwrap());
    command.args(["--vari=essential", "--merged-usr", "--dpkgopt=no-pager", "--keyring"]).arg(&packages().key);
    let told = well(command.arg(&packages().codename).arg(at("root.ext4")).arg(server.url())).stderr;
    assert!(String::from_utf8_lossy(&told).contains("--merged-usr has no effect"));
    well(clean_command("e2fsck").args(["-f", "-n"]).arg(at("root.ext4")));
    let asked = |request: &str| {
        let output = well(clean_command("debugfs").args(["-R", request]).arg(at("root.ext4")));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(asked("stat /dev/null").contains("character special") && asked("stat /dev/null").contains("Mode:  0666"));
    assert!(asked("stat /dev/fd").contains("Fast link dest: \"/proc/self/fd\""), "{}", asked("stat /dev/fd"));
    assert!(asked("stat /usr/bin/dpkg").contains("Type: regular"));
    assert!(asked("cat /etc/dpkg/dpkg.cfg.d/99mmdebstrap").contains("no-pager"));
    assert!(!asked("ls -p /").contains("fullbore"), "{}", asked("ls -p /"));
    for mode in ["fakechroot", "chrootless"] {
        let output = bootstrap(&server, "essential", &[], &at("none"), &["--mode", mode]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("fullbore has no mode {mode}")), "{told}");
    }
}
