//! `fullbore bootstrap` in an ordinary container: with docker's capabilities and its seccomp profile, under crun or runc.
//!
//! The container has this machine's root, read-only, and a place of its own; it shares the network, to reach the server of
//! the test.

#![allow(clippy::unwrap_used)]

mod harness {
    pub mod compared;
    pub mod packages;
    pub mod roots;
}

use std::fs;
use std::path::Path;
use std::process::Output;

use fullbore_testkit::process::clean_command;
use harness::compared::{ALLOWED, ALLOWED_WITHOUT_APT, bootstrap, is_sound, place, reference, same};
use harness::packages::packages;
use serde_json::{Value, json};

/// What docker leaves to root in a container (moby, `oci/caps/defaults.go`).
const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// The profile of podman, which docker's is the origin of, in Debian's package golang-github-containers-common.
const PROFILE: &str = "/usr/share/containers/seccomp.json";

/// Calls that docker's profile denies without CAP_SYS_ADMIN, and podman's leaves to the kernel.
const DENIED: [&str; 17] = [
    "bpf",
    "clone3",
    "fanotify_init",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "perf_event_open",
    "quotactl",
    "setns",
    "umount",
    "umount2",
    "unshare",
];

/// Docker allows clone(2) without the flags for namespaces.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;

/// Shows that the filter is on, and goes on with the rest.
const FILTERED: &str = r#"
grep -q '^Seccomp:.2$' /proc/self/status || exit 90
unshare --mount true 2>/dev/null && exit 91
unshare --user true 2>/dev/null && exit 92
exec "$@""#;

/// Starts a runtime where this machine's root is at `$1`, and control groups are as the runtimes expect them.
const PREPARED: &str = r#"
mount --bind / "$1" || exit 93
[ -e /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 94
shift
exec "$@""#;

/// The profile as the runtime takes it, for the capabilities of a container.
fn seccomp() -> Value {
    let text = fs::read_to_string(PROFILE).expect("needs the package golang-github-containers-common");
    let profile: Value = serde_json::from_str(&text).unwrap();
    let holds = |rule: &Value, which: &str| {
        let names = rule[which]["caps"].as_array().cloned().unwrap_or_default();
        names.iter().map(|name| CAPABILITIES.contains(&name.as_str().unwrap())).collect::<Vec<_>>()
    };
    let mut syscalls = Vec::new();
    for rule in profile["syscalls"].as_array().unwrap() {
        if holds(rule, "includes").contains(&false) || holds(rule, "excludes").contains(&true) {
            continue;
        }
        let names = rule["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        let names: Vec<&str> = names.filter(|name| *name != "clone" && !DENIED.contains(name)).collect();
        if !names.is_empty() {
            let mut taken = json!({ "names": names, "action": rule["action"] });
            for key in ["args", "errnoRet"] {
                if let Some(value) = rule.get(key).filter(|value| !value.is_null()) {
                    taken[key] = value.clone();
                }
            }
            syscalls.push(taken);
        }
    }
    let masked = json!([{ "index": 0, "value": NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" }]);
    syscalls.push(json!({ "names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": masked }));
    // libc takes clone for it then.
    syscalls.push(json!({ "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38 }));
    json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "syscalls": syscalls })
}

/// Runs words in a container that can write below `place`.
fn contained(runtime: &str, place: &Path, words: &[String]) -> Output {
    let bundle = tempfile::tempdir().unwrap();
    let root = bundle.path().join("root");
    fs::create_dir(&root).unwrap();
    let bind = json!(["rbind", "rw"]);
    let shell = ["sh", "-c", FILTERED, "sh"].map(str::to_owned);
    let line = [&shell[..], words].concat();
    let config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": line,
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"],
            "cwd": "/",
            "capabilities": {
                "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
            },
            "noNewPrivileges": false,
        },
        "root": { "path": root, "readonly": true },
        "hostname": "contained",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
            {
                "destination": "/dev/pts", "type": "devpts", "source": "devpts",
                "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
            },
            { "destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev"] },
            { "destination": "/sys", "type": "none", "source": "/sys", "options": ["rbind", "ro"] },
            { "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"] },
            { "destination": place, "type": "bind", "source": place, "options": bind },
        ],
        "linux": {
            "namespaces": [{ "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" }],
            "seccomp": seccomp(),
        },
    });
    fs::write(bundle.path().join("config.json"), config.to_string()).unwrap();
    let state = tempfile::tempdir().unwrap();
    // What the mounts hide or show is seen by nobody else.
    let mut command = clean_command("unshare");
    command.args(["--mount", "sh", "-c", PREPARED, "sh"]).arg(&root).arg(runtime).arg("--root").arg(state.path());
    if runtime == "crun" {
        command.arg("--cgroup-manager=disabled");
    }
    command.args(["run", "--bundle"]).arg(bundle.path());
    let name = format!("fullbore-test-{}", bundle.path().file_name().unwrap().to_string_lossy().replace('.', ""));
    command.arg(name).output().unwrap_or_else(|error| panic!("{runtime}: {error}; needs the package {runtime}"))
}

fn words(command: &std::process::Command) -> Vec<String> {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_root_is_made_in_an_ordinary_container() {
    let (dir, server) = (place(), packages().serve());
    // Where the container sees it, whatever is mounted elsewhere.
    let program = dir.path().join("fullbore");
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &program);
    let key = dir.path().join("key.gpg");
    fs::copy(&packages().key, &key).unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let hook = r#"test "$MMDEBSTRAP_MODE" = root && test ! -e "$1"/proc/self && chroot "$1" sh -c 'echo x >/dev/null'"#;
    let hooks = ["--customize-hook", hook];
    let mut line = words(&bootstrap(&server, "essential", &[], &ours, &hooks));
    line[0] = program.to_str().unwrap().to_owned();
    let at = line.iter().position(|word| word == "--keyring").unwrap();
    line[at + 1] = key.to_str().unwrap().to_owned();
    let output = contained("crun", dir.path(), &line);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}: {told}", output.status);
    assert!(told.contains("CAP_SYS_ADMIN is missing"), "{told}");
    assert!(told.contains("not mounted in the root, because this process may not mount"), "{told}");
    reference(&server, "essential", &[], &theirs);
    same(&ours, &theirs, &[ALLOWED, ALLOWED_WITHOUT_APT].concat());
    is_sound(&ours);
}

/// As where images are built: an archive on stdout, with packages that apt installs.
#[test]
#[ignore = "long"]
fn an_archive_is_the_same_in_an_ordinary_container() {
    let (dir, server) = (place(), packages().serve());
    let program = dir.path().join("fullbore");
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &program);
    let key = dir.path().join("key.gpg");
    fs::copy(&packages().key, &key).unwrap();
    let epoch = "SOURCE_DATE_EPOCH=1700000000";
    let inside = |target: &Path| {
        let mut line = words(&bootstrap(&server, "minbase", &["python3"], target, &[]));
        line[0] = program.to_str().unwrap().to_owned();
        let at = line.iter().position(|word| word == "--keyring").unwrap();
        line[at + 1] = key.to_str().unwrap().to_owned();
        line.splice(0..0, ["env".to_owned(), epoch.to_owned()]);
        line
    };
    let (first, second) = (dir.path().join("first.tar"), dir.path().join("second.tar"));
    let line = inside(&first);
    assert!(clean_command(&line[0]).args(&line[1..]).status().unwrap().success());
    let output = contained("runc", dir.path(), &inside(&second));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(first).unwrap() == fs::read(second).unwrap(), "another archive in a container");
}
