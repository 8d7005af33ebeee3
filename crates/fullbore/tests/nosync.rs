//! `fullbore nosync` with real programs: every way into the kernel, every way to end.
//!
//! Each run has a mount namespace of its own, from which the disks of other tests are taken
//! first: they break on purpose, and would make the final sync fail.

#![allow(clippy::unwrap_used)]

#[path = "harness/fifo.rs"]
mod fifo;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fifo::tell;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::slowdisk::SlowDisk;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// After which a program is taken to hang; a guess for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes away what other tests have mounted, but for `$keep`: not to sync it, and not to keep it mounted. Their disks are
/// not to be synced either, when they are free again.
const TAKE_AWAY: &str = r#"
mount -t tmpfs tmpfs /sys/class/block
awk '$3 ~ /^fuse/ || $1 ~ /^\/dev\/loop/ { print $2 }' /proc/mounts | while read -r path; do
    [ "$path" = "$keep" ] || umount -l "$path" 2>/dev/null
done
"#;

/// A shell with this script and the words that follow, in a mount namespace of its own without other tests' disks.
fn unshared(keep: &Path, script: &str) -> Command {
    assert!(rustix::process::geteuid().is_root(), "mount namespaces and disks: run as root (script/test does)");
    let mut command = clean_command("unshare");
    command.args(["--mount", "sh", "-c", &format!("keep=$1; shift{TAKE_AWAY}{script}"), "sh"]).arg(keep);
    command
}

fn alone(keep: &Path) -> Command {
    let mut command = unshared(keep, r#"exec "$@""#);
    command.arg(env!("CARGO_BIN_EXE_fullbore")).arg("nosync");
    command
}

fn nosync(words: &[&str]) -> Output {
    alone(Path::new("")).args(words).output().expect("needs the package util-linux")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The program of `nosync/calls.c`, dynamic and static, in a directory for everybody.
struct Programs {
    _dir: TempDir,
    dynamic: String,
    fixed: String,
}

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nosync/calls.c");
        let build = |name: &str, flags: &[&str]| {
            let path = dir.path().join(name);
            let status = Command::new("gcc").arg("-o").arg(&path).arg(&source).args(flags).status();
            assert!(status.expect("needs the package gcc").success(), "needs the package libc6-dev");
            path.to_str().unwrap().to_owned()
        };
        let (dynamic, fixed) = (build("dynamic", &[]), build("static", &["-static"]));
        Programs { _dir: dir, dynamic, fixed }
    })
}

#[test]
fn a_log_is_written_where_it_is_asked_for_and_nothing_is_said_otherwise() {
    let mut command = alone(Path::new(""));
    let output = command.args(["--force", "true"]).env("FULLBORE_LOG", "debug").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let log = stderr(&output);
    assert!(log.contains("DEBUG fullbore::nosync: ") && log.contains(r#"program="true""#), "{log}");
    let output = nosync(&["--force", "true"]);
    assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
}

#[test]
fn every_way_into_the_kernel_is_answered() {
    let programs = programs();
    for program in [&programs.dynamic, &programs.fixed] {
        let control = stdout(&Command::new(program).arg("errors").output().unwrap());
        assert!(control.split_whitespace().all(|error| error != "0"), "without the filter: {control}");
        for report in [&[][..], &["--report"]] {
            let output = nosync(&[report, &["--", program, "errors"]].concat());
            assert!(output.status.success(), "{}", stderr(&output));
            let errors = stdout(&output);
            assert!(!errors.is_empty() && errors.split_whitespace().all(|error| error == "0"), "{errors}");
        }
        // EBADF, EBADF, EINVAL, ENOMEM, EINVAL.
        assert_eq!(stdout(&nosync(&["--", program, "wrong"])), "9 9 22 12 22\n");
    }
}

#[test]
fn a_chroot_does_not_leave_the_filter_behind() {
    let root = tempfile::tempdir().unwrap();
    fs::copy(&programs().fixed, root.path().join("calls")).unwrap();
    let output = nosync(&["--", "chroot", root.path().to_str().unwrap(), "/calls", "errors"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).split_whitespace().all(|error| error == "0"), "{}", stdout(&output));
}

#[test]
fn as_many_are_counted_as_strace_sees() {
    let dir = tempfile::tempdir().unwrap();
    let (log, file) = (dir.path().join("log"), dir.path().join("file"));
    let script = format!("{0} write {1} 7; {0} errors; sync", programs().fixed, file.display());
    let traced = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=fsync,fdatasync,sync,syncfs,msync,sync_file_range", "-o"])
        .arg(&log)
        .args(["sh", "-c", &script])
        .output();
    assert!(traced.expect("needs the package strace").status.success());
    let log = fs::read_to_string(&log).unwrap();
    let calls = log.lines().filter(|line| line.contains('(') && !line.contains("resumed>")).count();
    let output = nosync(&["--report", "--", "sh", "-c", &script]);
    let report = stderr(&output);
    assert!(output.status.success(), "{report}");
    // strace shows calls of i386 among those of amd64 too.
    assert!(report.contains(&format!("nosync: {calls} sync calls answered at once: ")), "{calls} calls\n{log}{report}");
    assert!(report.contains("they would have cost at least about ") && report.contains("final sync of "), "{report}");
}

/// Kernels before 5.16 slow down what has a filter, unless it is asked for like this.
#[test]
fn the_filter_leaves_speculation_to_the_processor() {
    for report in [&[][..], &["--report"]] {
        let mut strace = clean_command("strace");
        strace.args(["-f", "-e", "trace=seccomp", env!("CARGO_BIN_EXE_fullbore"), "nosync", "--no-final-sync"]);
        let said = stderr(&strace.args(report).args(["--", "true"]).output().expect("needs the package strace"));
        assert_eq!(said.matches("SECCOMP_FILTER_FLAG_SPEC_ALLOW").count(), 1, "{said}");
    }
}

#[test]
fn what_stays_synchronous_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("of={}", dir.path().join("file").display());
    let output = nosync(&["--report", "--", "dd", "if=/dev/zero", &file, "count=1", "oflag=dsync", "status=none"]);
    assert!(stderr(&output).contains("synchronous: 1 open with O_SYNC or O_DSYNC"), "{}", stderr(&output));
    assert!(stderr(&output).contains("nosync: 0 sync calls: nothing to save"), "{}", stderr(&output));
}

/// Syncs of files that reach the file system of one device, by the kernel's tracepoint: below any filter.
struct Syncs {
    top: PathBuf,
    instance: PathBuf,
}

impl Syncs {
    fn trace(dir: &TempDir, device: &str) -> Syncs {
        let top = dir.path().join("tracing");
        fs::create_dir(&top).unwrap();
        let mounted = Command::new("mount").args(["-t", "tracefs", "tracefs"]).arg(&top).status().unwrap();
        assert!(mounted.success(), "needs a kernel with tracefs");
        let instance = top.join(format!("instances/fullbore-{}", std::process::id()));
        let syncs = Syncs { top, instance };
        fs::create_dir(&syncs.instance).unwrap();
        let number = fs::metadata(device).unwrap().rdev();
        // As the kernel keeps it.
        let number = u64::from(rustix::fs::major(number)) << 20 | u64::from(rustix::fs::minor(number));
        let event = syncs.instance.join("events/ext4/ext4_sync_file_enter");
        fs::write(event.join("filter"), format!("dev == {number}")).unwrap();
        fs::write(event.join("enable"), "1").unwrap();
        syncs
    }

    fn count(&self) -> usize {
        fs::read_to_string(self.instance.join("trace")).unwrap().matches(": ext4_sync_file_enter:").count()
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.instance);
        let _ = Command::new("umount").arg("--lazy").arg(&self.top).status();
    }
}

fn disk(dir: &TempDir) -> SlowDisk {
    SlowDisk::available().unwrap();
    let mount = dir.path().join("mount");
    fs::create_dir(&mount).unwrap();
    SlowDisk::mount(&mount, &dir.path().join("disk"), 64 << 20, 1 << 30).unwrap()
}

#[test]
fn no_sync_reaches_the_disk_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(&dir);
    let file = disk.path().join("file");
    let write = [programs().fixed.as_str(), "write", file.to_str().unwrap(), "200"];

    let syncs = Syncs::trace(&dir, disk.device());
    assert!(Command::new(write[0]).args(&write[1..]).status().unwrap().success());
    let control = syncs.count();
    assert_eq!(control, 200, "without the filter");
    let output = alone(disk.path()).args(["--no-final-sync", "--"]).args(write).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(syncs.count() - control, 0, "leaked");
}

#[test]
fn a_disk_that_fails_fails_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(&dir);
    let script = format!("echo data > {}/file; echo ready; read -r line", disk.path().display());
    let mut command = alone(disk.path());
    let mut child = piped(command.args(["--", "sh", "-c", &script])).spawn().unwrap();
    wait_for_line(&mut child, "ready");
    disk.set_broken(true);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    disk.set_broken(false);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("/mount: final sync: Input/output error"), "{}", stderr(&output));
}

#[test]
fn the_command_may_unmount_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(&dir);
    let script = format!("echo data > {0}/file && umount {0}", disk.path().display());
    let output = alone(disk.path()).args(["--", "sh", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

/// A root with this program, its libraries and /proc, on a disk of its own, and not at the top of it.
const CHROOT: &str = r#"
set -e
program=$1 root=$2
mkdir -p "$root/proc"
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root${library%/*}" && cp "$library" "$root$library"
done
cp "$program" "$root/fullbore"
[ -z "$3" ] || cp "$3" "$root/calls"
[ -n "$3" ] || mount -t proc proc "$root/proc"
shift 3
chroot "$root" /fullbore nosync "$@"
"#;

#[test]
fn in_a_chroot_its_own_disk_is_synced() {
    let dir = tempfile::tempdir().unwrap();
    SlowDisk::available().unwrap();
    let mount = dir.path().join("mount");
    fs::create_dir(&mount).unwrap();
    let disk = SlowDisk::mount(&mount, &dir.path().join("disk"), 2 << 30, 1 << 30).unwrap();
    let output = unshared(disk.path(), CHROOT)
        .arg(env!("CARGO_BIN_EXE_fullbore"))
        .arg(disk.path().join("root"))
        .args(["", "--report", "--", "/fullbore", "--version"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("final sync of 1 file system:"), "{}", stderr(&output));
}

#[test]
fn without_proc_sync_calls_are_answered_and_survivors_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        unshared(Path::new(""), CHROOT)
            .arg(env!("CARGO_BIN_EXE_fullbore"))
            .arg(dir.path())
            .arg(&programs().fixed)
            .args(words)
            .output()
            .unwrap()
    };
    // Somebody else syncs: the disks of other tests, which break on purpose, are none of this test's.
    let output = run(&["--no-final-sync", "--", "/calls", "errors"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).split_whitespace().all(|error| error == "0"), "{}", stdout(&output));
    assert_eq!(stderr(&output), "");
    // With the sync: of all, and it is said what that may miss.
    let output = run(&["--", "/calls", "errors"]);
    assert!(stderr(&output).contains("there is no /proc here: all file systems were synced"), "{}", stderr(&output));
    let output = run(&["--no-final-sync", "--", "/calls", "stay", "20"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("unknown, as there is no /proc"), "{}", stderr(&output));
}

/// An image of an empty ext4, to be mounted by the command itself.
fn image(dir: &TempDir) -> String {
    let image = dir.path().join("image");
    fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status().expect("needs the package e2fsprogs");
    assert!(made.success());
    fs::create_dir(dir.path().join("m")).unwrap();
    image.to_str().unwrap().to_owned()
}

#[test]
fn an_image_made_inside_is_whole_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (image, m) = (image(&dir), dir.path().join("m"));
    let m = m.display();
    // The image is read as soon as it is unmounted, as image builders do. It is there for a while, or its name
    // might be missed.
    let read = format!("debugfs -R 'cat /file' {image} 2>/dev/null");
    let script = format!("mount -o loop {image} {m} && echo data > {m}/file && sleep 1 && umount {m} && {read}");
    let output = nosync(&["--", "sh", "-c", &script]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "data\n");
    assert!(stderr(&output).contains("/m: mounted and unmounted during the run"), "{}", stderr(&output));
}

#[test]
fn what_a_survivor_has_mounted_for_itself_is_synced() {
    let dir = tempfile::tempdir().unwrap();
    let (image, m, fifo) = (image(&dir), dir.path().join("m"), fifo(&dir));
    let (m, ready) = (m.display(), dir.path().join("ready"));
    let inner = format!(
        "mount -o loop {image} {m} && echo data > {m}/file && : > {0} && read -r line < {1}",
        ready.display(),
        fifo.display()
    );
    let script =
        format!("unshare -m sh -c '{inner}' >/dev/null 2>&1 & while ! [ -e {} ]; do sleep 0.05; done", ready.display());
    let output = nosync(&["--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("/m: mounted during the run; synced now"), "{}", stderr(&output));
    tell(&fifo, "end\n", &mut || false);
}

/// Where a further process of this test makes a disk, serves it, and waits.
const SERVES: &str = "FULLBORE_TEST_SERVES";

/// That process. It ends with this one's.
struct Server {
    child: Child,
    below: PathBuf,
}

impl Server {
    fn start(test: &str, dir: &Path) -> Server {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test]).env(SERVES, dir).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        let below = loop {
            match fs::read_to_string(dir.join("below")) {
                Ok(below) if below.ends_with('\n') => break PathBuf::from(below.trim_end()),
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
            assert!(child.try_wait().unwrap().is_none(), "it makes no disk");
            assert!(begun.elapsed() < PATIENCE, "it makes no disk");
        };
        Server { child, below }
    }

    fn send(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.send(Signal::CONT);
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn serve(dir: &Path) {
    fs::create_dir(dir.join("mount")).unwrap();
    let disk = SlowDisk::mount(&dir.join("mount"), &dir.join("backing"), 64 << 20, 0).unwrap();
    fs::write(dir.join("below"), format!("{}\n", disk.below().display())).unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// What it says and prints, if it ends.
fn ended(command: &mut Command) -> Output {
    let mut child = piped(command).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it waits");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn counting_does_not_wait_for_the_server_of_a_file_system() {
    if let Some(dir) = std::env::var_os(SERVES) {
        return serve(Path::new(&dir));
    }
    SlowDisk::available().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start("counting_does_not_wait_for_the_server_of_a_file_system", dir.path());
    let (below, number) = (server.below.display(), server.child.id());
    let script = format!("exec 3<{below} && kill -STOP {number} && {} inherited 3", programs().fixed);
    let output = ended(alone(&server.below).args(["--report", "--", "sh", "-c", &script]));
    assert_eq!(stdout(&output), "0\n", "{}", stderr(&output));
}

#[test]
fn a_file_system_whose_server_hangs_is_told_and_not_waited_for() {
    if let Some(dir) = std::env::var_os(SERVES) {
        return serve(Path::new(&dir));
    }
    SlowDisk::available().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start("a_file_system_whose_server_hangs_is_told_and_not_waited_for", dir.path());
    server.send(Signal::STOP);
    let said = stderr(&ended(alone(&server.below).args(["--", "true"])));
    assert!(said.contains(&server.below.display().to_string()) && said.contains("timed out"), "{said}");
}

/// A file system that the command mounts, and whose server then ends; as a disk that fails, it does not even open.
const GONE: &str = r#"
set -e
program=$1 top=$2
exec "$program" nosync --force -- sh -ec 'exec 9<>/dev/fuse
mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 gone "$0"; exec 9<&-' "$top"
"#;

#[test]
fn a_file_system_that_no_longer_opens_fails_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = unshared(Path::new(""), GONE);
    let output = command.arg(env!("CARGO_BIN_EXE_fullbore")).arg(dir.path()).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains(&format!("{}: not synced: ", dir.path().display())), "{said}");
}

/// A file system below a directory that is for root alone, and a user's run: `$2` is the mode of its own directory, `$3`
/// where the run is.
const CLOSED: &str = r#"
set -e
program=$1 mode=$2 here=$3 top=$4
mount -t tmpfs -o mode=755 tmpfs "$top" && cd "$top"
mkdir lower upper work closed closed/disk && mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none closed/disk
mkdir -m 777 closed/disk/own && chmod "$mode" closed/disk && chmod "$5" closed && cp "$program" fullbore
cd "$here" && setpriv --reuid=65534 --regid=65534 --clear-groups "$top/fullbore" nosync -- true
"#;

#[test]
fn a_user_is_told_of_what_the_run_can_have_written_alone() {
    let dir = tempfile::tempdir().unwrap();
    let told = |mode: &str, here: &str, outer: &str| {
        let mut command = unshared(Path::new(""), CLOSED);
        let output =
            command.args([env!("CARGO_BIN_EXE_fullbore"), mode, here]).arg(dir.path()).arg(outer).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let disk = dir.path().join("closed/disk").display().to_string();
        stderr(&output).lines().filter(|line| line.contains(&disk)).map(str::to_owned).collect::<Vec<_>>()
    };
    // Nobody gets there.
    assert!(told("755", "/", "700").is_empty());
    assert!(told("700", "/", "755").is_empty());
    // It can be read, and is synced.
    assert!(told("755", "/", "711").is_empty());
    // There may be a place further in; it is synced if the run is there.
    let lines = told("711", "/", "755");
    assert!(lines.len() == 1 && lines[0].contains("not synced, as this user may not open it"), "{lines:?}");
    assert!(told("711", "closed/disk/own", "755").is_empty());
}

/// A file system whose mount point is hidden by another one above it, or by one that has a file of that name.
const COVERED: &str = r#"
set -e
program=$1 top=$2
mount -t tmpfs tmpfs "$top" && mkdir "$top/above" && cd "$top/above"
mkdir lower upper work disk && mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none disk
cd / && mount -t tmpfs tmpfs "$top" && cp "$program" "$top/fullbore"
[ "$3" = 0 ] || touch "$top/above"
"$top/fullbore" nosync -- true
"#;

/// A file system of which only a device node is mounted, which nothing drives.
const NODE: &str = r#"
set -e
program=$1 top=$2
mount -t tmpfs tmpfs "$top" && cd "$top"
mkdir lower upper work disk && mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none disk
mknod disk/node c 120 0 && touch node && mount --bind disk/node node && umount disk
exec "$program" nosync --force -- true
"#;

#[test]
fn a_mounted_node_that_does_not_open_is_not_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = unshared(Path::new(""), NODE);
    let output = command.arg(env!("CARGO_BIN_EXE_fullbore")).arg(dir.path()).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn a_file_system_to_which_no_path_leads_is_not_told() {
    let dir = tempfile::tempdir().unwrap();
    for has_file in ["0", "1"] {
        let mut command = unshared(Path::new(""), COVERED);
        let output = command.arg(env!("CARGO_BIN_EXE_fullbore")).arg(dir.path()).arg(has_file).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{has_file}");
    }
}

fn piped(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped())
}

fn wait_for_line(child: &mut Child, wanted: &str) {
    let mut line = String::new();
    BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), wanted);
}

#[test]
fn status_and_signal_are_the_commands_own() {
    assert_eq!(nosync(&["--", "true"]).status.code(), Some(0));
    assert_eq!(nosync(&["--", "sh", "-c", "exit 3"]).status.code(), Some(3));
    assert_eq!(nosync(&["--", "/no/such/program"]).status.code(), Some(127));
    assert_eq!(nosync(&["--", "/etc/passwd"]).status.code(), Some(126));
    for signal in [15, 9, 6] {
        let output = nosync(&["--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(output.status.signal(), Some(signal), "{}", stderr(&output));
    }
    let output = nosync(&["--", "true"]);
    assert_eq!((stdout(&output), stderr(&output)), (String::new(), String::new()));
    // What the caller did wrong is told from what the command says by its status.
    for words in [&[][..], &["--report=yes", "--", "true"], &["--reprot", "--", "true"]] {
        assert_eq!(nosync(words).status.code(), Some(125), "{words:?}");
    }
    assert_eq!(nosync(&["--help"]).status.code(), Some(0));
}

#[test]
fn a_signal_that_the_caller_ignores_stays_ignored() {
    // Signals 32 and 33 are the C library's own.
    const OF_LIBRARY: u64 = 3 << 31;
    let ignored = |around: &str, words: &[&str]| {
        let mut command = unshared(Path::new(""), r#"exec env "$@""#);
        let output = command.arg(around).args(words).args(["grep", "SigIgn:", "/proc/self/status"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let mask = stdout(&output).trim().trim_start_matches("SigIgn:").trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap() & !OF_LIBRARY
    };
    let [by_default, pipes] = ["--default-signal=PIPE", "--ignore-signal=PIPE"];
    assert_ne!(ignored(by_default, &[]), ignored(pipes, &[]));
    for around in [by_default, pipes, "--ignore-signal=CHLD", "--ignore-signal=HUP"] {
        for words in [&["nosync", "--"][..], &["nosync", "--report", "--"]] {
            let words = [&[env!("CARGO_BIN_EXE_fullbore")], words].concat();
            assert_eq!(ignored(around, &words), ignored(around, &[]), "{around} {words:?}");
        }
    }
}

#[test]
fn a_signal_reaches_the_command() {
    for report in [&[][..], &["--report"]] {
        let mut command = alone(Path::new(""));
        let script = "trap 'exit 9' USR1; echo ready; while :; do sleep 0.05; done";
        let mut child = piped(command.args(report).args(["--", "sh", "-c", script])).spawn().unwrap();
        wait_for_line(&mut child, "ready");
        // The shell and unshare have become the program by exec: its number is the child's.
        let status = Command::new("kill").args(["-USR1", &child.id().to_string()]).status().unwrap();
        assert!(status.success());
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

/// Waits for a line on a fifo that the test holds open, so that it lives as long as the test likes.
fn survivor(fifo: &Path, after: &str) -> String {
    format!("(read -r line < {}; {after}) >/dev/null 2>&1 &", fifo.display())
}

fn fifo(dir: &TempDir) -> PathBuf {
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fifo
}

#[test]
fn a_program_that_outlives_the_command_fails_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = fifo(&dir);
    // Nobody writes to it yet: the background shell waits in its open.
    let output = nosync(&["--", "sh", "-c", &survivor(&fifo, ":")]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("programs have outlived the command"), "{}", stderr(&output));
    assert!(stderr(&output).contains("sh ("), "{}", stderr(&output));
    tell(&fifo, "end\n", &mut || false);
    // The command's own failure stands.
    let output = nosync(&["--", "sh", "-c", &format!("{} exit 5", survivor(&fifo, ":"))]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    tell(&fifo, "end\n", &mut || false);
}

#[test]
fn who_counts_stays_until_the_last_program_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (fifo, late) = (fifo(&dir), dir.path().join("late"));
    let script = survivor(
        &fifo,
        &format!("{} write {} 1 && echo ok > {}.done", programs().fixed, late.display(), late.display()),
    );
    let mut command = alone(Path::new(""));
    let mut child = piped(command.args(["--report", "--", "sh", "-c", &script])).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("still running, and waited for")));
    tell(&fifo, "go\n", &mut || false);
    let rest: Vec<_> = lines.collect();
    assert!(rest.iter().any(|line| line == "nosync: 1 sync call answered at once: 1 fsync"), "{rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert!(dir.path().join("late.done").exists());
}

#[test]
fn nobody_counts_twice() {
    let program = env!("CARGO_BIN_EXE_fullbore");
    let output = nosync(&["--report", "--", program, "nosync", "--report", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("sync calls are already counted"), "{}", stderr(&output));
    // Inside of another one neither calls nor the cost of a flush can be seen, and nothing is said of them.
    let output = nosync(&["--", program, "nosync", "--report", "--", "sync"]);
    let said = stderr(&output);
    assert!(output.status.success() && said.contains("already answers the sync calls"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(nosync(&["--report", "--", program, "nosync", "--", "true"]).status.code(), Some(0));
}

#[test]
fn setuid_programs_keep_their_rights_where_root_runs_the_command() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let euid = dir.path().join("euid");
    fs::copy(&programs().fixed, &euid).unwrap();
    fs::set_permissions(&euid, fs::Permissions::from_mode(0o4755)).unwrap();
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let output = nosync(&[&["--"][..], &nobody, &[euid.to_str().unwrap(), "euid"]].concat());
    assert_eq!(stdout(&output), "0\n", "{}", stderr(&output));

    // Who is not root gets the filter for the price of those rights, and is told.
    let program = dir.path().join("fullbore");
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &program);
    let output = Command::new(nobody[0])
        .args(&nobody[1..])
        .arg(&program)
        .args(["nosync", "--no-final-sync", "--"])
        .args([euid.to_str().unwrap(), "euid"])
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "65534\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("setuid programs run with your own rights only"), "{}", stderr(&output));
}

#[test]
fn a_live_root_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    // A shell by the name of a service manager, as process 1 of a namespace.
    let manager = dir.path().join("systemd");
    fs::copy("/bin/sh", &manager).unwrap();
    let run = |script: &str| {
        let output = clean_command("unshare")
            .args(["--mount", "--pid", "--fork", "--mount-proc"])
            .arg(&manager)
            .args(["-c", &format!("{WITHOUT_POLICY}{TAKE_AWAY}{WITH_STATUS}"), "systemd"])
            .args([env!("CARGO_BIN_EXE_fullbore"), script])
            .output()
            .unwrap();
        stderr(&output) + &stdout(&output)
    };
    let refused = run(r#""$program" nosync -- true"#);
    assert!(refused.contains("process 1 (systemd) could start services here"), "{refused}");
    assert!(refused.ends_with("status 125\n"), "{refused}");
    assert!(run(r#""$program" nosync --force -- true"#).ends_with("status 0\n"));
    // A chroot of this machine, with the machine's process 1 in its /proc.
    let root = format!("root={}; ", dir.path().display());
    let chroot = r#"mount -t tmpfs tmpfs "$root" && mkdir "$root/proc" &&
        for name in bin lib lib64 usr; do
            [ ! -d "/$name" ] || { mkdir "$root/$name" && mount --bind "/$name" "$root/$name"; }
        done
        mount -t proc proc "$root/proc" && cp "$program" "$root/fullbore" && chroot "$root" /fullbore nosync -- true"#;
    let allowed = run(&(root + chroot));
    assert!(allowed.ends_with("status 0\n"), "{allowed}");
}

/// Takes away a policy that an image may have.
const WITHOUT_POLICY: &str = r#"
policy=/usr/sbin/policy-rc.d
[ ! -e "$policy" ] || mount --bind /bin/true "$policy"
"#;

/// Runs the script, prints its status.
const WITH_STATUS: &str = r#"
program=$1
(eval "$2")
echo "status $?"
"#;

#[test]
fn probes_say_what_may_be_expected() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(&dir);
    disk.set_flush(Duration::from_millis(20));
    let output = alone(disk.path()).args(["--report", "--", "true"]).output().unwrap();
    let line = stderr(&output).lines().find(|line| line.contains("/mount: 1,000 flushes cost")).map(str::to_owned);
    assert!(line.expect("probed").ends_with("several times as fast"), "{}", stderr(&output));
}

/// A root with a shell, the libraries of this machine, and a "dpkg" that makes all sync calls.
const DIVERTED: &str = r#"
set -e
program=$1 calls=$2 root=$3 with_proc=$4
mount -t tmpfs tmpfs "$root"
mkdir -p "$root/proc" "$root/dev" "$root/tmp" "$root/usr/bin" "$root/usr/lib" "$root/var/lib/dpkg/info"
for name in bin lib lib64; do
    if [ -L "/$name" ]; then mkdir -p "$root/usr/$name" && ln -s "usr/$name" "$root/$name"; else mkdir -p "$root/$name"; fi
done
: >"$root/var/lib/dpkg/status" && : >"$root/var/lib/dpkg/diversions"
for libraries in /usr/lib/*-linux-gnu* /lib/*-linux-gnu* /lib64; do
    [ -d "$libraries" ] || continue
    mkdir -p "$root$libraries"
    mountpoint -q "$root$libraries" || mount --bind "$libraries" "$root$libraries"
done
: >"$root/dev/null"
[ -z "$with_proc" ] || mount -t proc proc "$root/proc"
cp "$(readlink -f /bin/sh)" "$root/bin/sh" && cp "$(command -v id)" /bin/true "$root/usr/bin"
cp "$calls" "$root/usr/bin/dpkg"
list() { (cd "$root" && find . -xdev ! -name diversions-old -type f -exec md5sum {} +) | sort; }
before=$(list)

"$program" divert on --root "$root"
"$program" divert status --root "$root"
chroot "$root" /usr/bin/dpkg errors
"$program" divert off --root "$root"
"$program" divert status --root "$root"
chroot "$root" /usr/bin/dpkg errors
typo=$("$program" divert off --root "$root" /usr/bin/dpgk 2>&1) || echo "$? $typo"
mkdir -p "$root/etc/apt/apt.conf.d" && "$program" divert on --root "$root" --via apt-conf
other=$("$program" divert off --root "$root" /usr/bin/dpkg 2>&1) || echo "$? ${other%%;*}"
"$program" divert off --root "$root"
[ "$before" = "$(list)" ] && echo as before
"#;

/// An installer as the Debian one is: a busybox, a debootstrap, no dpkg. The udeb is unpacked into it, and
/// its hooks are run at the points at which base-installer, pkgsel and finish-install run them.
const INSTALLER: &str = r#"
set -e
program=$1 calls=$2 packaging=$3 top=$4 needs_libraries=$5
mount -t tmpfs tmpfs "$top" && installer=$top/installer target=$top/installer/target
mkdir -p "$installer/bin" "$installer/dev" "$installer/usr/sbin" "$target/tmp" "$target/dev" "$target/usr/bin" "$target/usr/lib" "$target/var/lib/dpkg/info"
libraries() {
    for directory in /usr/lib/*-linux-gnu* /lib/*-linux-gnu* /lib64; do
        [ -d "$directory" ] || continue
        mkdir -p "$1$directory"
        mountpoint -q "$1$directory" || mount --bind "$directory" "$1$directory"
    done
}
for root in "$installer" "$target"; do
    for name in bin lib lib64; do
        [ ! -L "/$name" ] || [ -e "$root/$name" ] || { mkdir -p "$root/usr/$name" && ln -s "usr/$name" "$root/$name"; }
    done
    mkdir -p "$root/bin" "$root/proc" && : >"$root/dev/null" && mount -t proc proc "$root/proc"
done
libraries "$target" && { [ -z "$needs_libraries" ] || libraries "$installer"; }
cp /bin/busybox "$installer/bin/busybox" && chroot "$installer" /bin/busybox --install -s /bin
cp "$calls" "$installer/usr/sbin/debootstrap" && cp "$calls" "$target/usr/bin/dpkg"
cp "$(readlink -f /bin/sh)" "$target/bin/sh"
cp "$(command -v id)" /bin/true /usr/bin/dpkg-divert "$target/usr/bin"
: >"$target/var/lib/dpkg/status" && : >"$target/var/lib/dpkg/diversions"
list() { (cd "$target" && find . -xdev ! -name diversions-old -type f -exec md5sum {} +) | sort; }
before=$(list)
udeb=${given_udeb:-$("$packaging/build" "$program" "$top")}
dpkg-deb -x "$udeb" "$installer"

hook() { chroot "$installer" "/usr/lib/$1/$2fullbore-nosync" >/dev/null; }
chroot "$installer" /usr/sbin/debootstrap errors
hook base-installer.d 05
chroot "$installer" /usr/sbin/debootstrap errors
hook post-base-installer.d 05
chroot "$installer" /usr/sbin/debootstrap errors
chroot "$target" /usr/bin/dpkg errors
hook pre-pkgsel.d 05
chroot "$target" /usr/bin/dpkg errors
hook finish-install.d 90
chroot "$target" /usr/bin/dpkg errors
[ "$before" = "$(list)" ] && echo as before
"#;

#[test]
fn the_debian_installer_installs_without_syncs() {
    assert!(Path::new("/bin/busybox").exists(), "needs the package busybox-static");
    let dir = tempfile::tempdir().unwrap();
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/debian-installer");
    // The one that an installer gets takes long to build: script/test-long names it.
    // script/test-dist names the udeb of a release, which is static too.
    let udeb = std::env::var_os("FULLBORE_TEST_UDEB").unwrap_or_default();
    let named = std::env::var("FULLBORE_TEST_STATIC");
    let program = named.as_deref().unwrap_or(env!("CARGO_BIN_EXE_fullbore"));
    let output = unshared(Path::new(""), INSTALLER)
        // A program with all its symbols takes long to compress.
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
        .env("given_udeb", &udeb)
        .args([program, &programs().fixed])
        .args([packaging.as_path(), dir.path()])
        .arg(if named.is_ok() || !udeb.is_empty() { "" } else { "yes" })
        .output()
        .unwrap();
    let lines: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
    assert!(output.status.success(), "{lines:?} {}", stderr(&output));
    let is_filtered: Vec<_> =
        lines.iter().take(6).map(|line| line.split_whitespace().all(|error| error == "0")).collect();
    assert_eq!(is_filtered, [false, true, false, true, true, false], "{lines:?} {}", stderr(&output));
    assert_eq!(lines.last().map(String::as_str), Some("as before"), "{}", stderr(&output));
}

#[test]
fn a_diverted_program_runs_without_syncs_in_its_own_root() {
    let dir = tempfile::tempdir().unwrap();
    for with_proc in ["", "yes"] {
        let output = unshared(Path::new(""), DIVERTED)
            .args([env!("CARGO_BIN_EXE_fullbore"), &programs().fixed])
            .arg(dir.path())
            .arg(with_proc)
            .output()
            .unwrap();
        let lines: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
        assert!(output.status.success(), "{lines:?} {}", stderr(&output));
        assert_eq!((lines.len(), stderr(&output).as_str()), (10, ""), "{lines:?}");
        assert_eq!(lines[..2], ["on /usr/bin/dpkg", "on /usr/bin/dpkg"]);
        assert!(lines[2].split_whitespace().all(|error| error == "0"), "{lines:?}");
        assert_eq!(lines[3], "off /usr/bin/dpkg");
        assert!(lines[4].split_whitespace().all(|error| error != "0"), "{lines:?}");
        assert_eq!(lines[5], "1 error: /usr/bin/dpgk: is not there");
        let by_apt = "/usr/bin/dpkg (when APT starts it)";
        assert_eq!((lines[6].as_str(), lines[8].as_str()), (&*format!("on {by_apt}"), &*format!("off {by_apt}")));
        assert_eq!(lines[7], "1 error: dpkg is not diverted");
        assert_eq!(lines[9], "as before");
    }
}
