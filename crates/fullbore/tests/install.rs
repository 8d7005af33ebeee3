//! `fullbore install` into roots with a real apt and dpkg, against apt and dpkg themselves.
//!
//! Packages are made up so that each thing that dpkg does with a package occurs: what a root has afterwards, and what apt
//! and dpkg have noted of it, has to be the same.

#![allow(clippy::unwrap_used)]

mod harness {
    pub mod fifo;
    pub mod made;
    pub mod packages;
    pub mod roots;
}

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fullbore_install::Lock;
use fullbore_install::root::Root;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::random::Random;
use fullbore_testkit::slowdisk::SlowDisk;
use harness::fifo::tell;
use harness::made::{Archive, Pair, chroot, fullbore, inside, install, root_for, root_in, summary};
use harness::packages::well;

/// After which a program is taken to hang; a guess for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A root's own ways: what is diverted, overridden, hooked, denied, and kept elsewhere.
const LOCAL: &str = r#"
echo 'asked asked/what string preseeded' | debconf-set-selections
dpkg --add-architecture i386
dpkg-divert --local --no-rename --divert /usr/bin/tool.real --add /usr/bin/tool >/dev/null
dpkg-statoverride --force-statoverride-add --add root mail 2755 /usr/bin/overridden
printf '#!/bin/sh\necho "$@" >>/var/log/policy\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
mv /var/cache/apt/archives /srv
ln -s /srv/archives /var/cache/apt/archives
cat >/etc/apt/apt.conf.d/hooks <<'END'
DPkg::Pre-Install-Pkgs { "cat >>/var/log/pre-install-pkgs"; };
DPkg::Tools::Options::cat::Version 3;
DPkg::Pre-Invoke { "echo pre >>/var/log/invoked"; };
DPkg::Post-Invoke { "echo post >>/var/log/invoked"; };
END
"#;

/// Packages of every kind, in their first version.
fn first_versions(archive: &Archive) {
    archive.add(
        "conf",
        "1",
        "",
        "mkdir -p etc/conf; for name in kept changed dropped; do echo 1 >etc/conf/$name; echo /etc/conf/$name; done \
         >DEBIAN/conffiles; chmod 640 etc/conf/kept",
    );
    archive.add(
        "interested",
        "1",
        "",
        "printf 'interest-noawait /usr/share/noted\\ninterest noted-by-name\\n' >DEBIAN/triggers
         printf '#!/bin/sh\\nmkdir -p /var/lib/noted; [ \"$1\" != triggered ] || touch /var/lib/noted/triggered\\n' \
         >DEBIAN/postinst; mkdir -p usr/share/noted; echo own >usr/share/noted/own",
    );
    archive.add(
        "activating",
        "1",
        "",
        "echo 'activate noted-by-name' >DEBIAN/triggers; mkdir -p usr/share/noted; echo 1 >usr/share/noted/activating",
    );
    archive.add(
        "taken",
        "1",
        "",
        "mkdir -p usr/share/both; echo taken >usr/share/both/file; echo t >usr/share/both/taken",
    );
    archive.add("taker", "1", "Replaces: taken\n", "mkdir -p usr/share/both; echo taker >usr/share/both/file");
    archive.add(
        "kinds",
        "1",
        "",
        "mkdir -p usr/bin usr/share/kinds/sticky usr/share/doc/kinds usr/share/man/man1 var/lib/kinds
         for name in tool overridden setuid; do echo $name >usr/bin/$name; chmod 755 usr/bin/$name; done
         chmod 4755 usr/bin/setuid; chmod 1777 usr/share/kinds/sticky; chmod 2750 var/lib/kinds
         ln usr/bin/tool usr/bin/linked; ln -s tool usr/bin/symbolic; ln -s /usr/share/kinds usr/share/kinds/self
         mkfifo usr/share/kinds/fifo; : >usr/share/kinds/empty
         echo c >usr/share/doc/kinds/copyright; echo r >usr/share/doc/kinds/README; echo m >usr/share/man/man1/kinds.1",
    );
    for architecture in ["amd64", "i386"] {
        archive.add(
            "same",
            "1",
            &format!("Architecture: {architecture}\nMulti-Arch: same\n"),
            &format!("mkdir -p usr/share/same usr/lib/{architecture}; echo s >usr/share/same/shared; echo a >usr/lib/{architecture}/own"),
        );
    }
    archive.add(
        "scripted",
        "1",
        "Pre-Depends: kinds\n",
        "for script in preinst postinst prerm postrm; do printf '#!/bin/sh\\necho '$script' \"$@\" >>/var/lib/scripted.log\\n' \
         >DEBIAN/$script; done; mkdir -p etc; echo 1 >etc/scripted.conf; echo /etc/scripted.conf >DEBIAN/conffiles",
    );
    archive.add(
        "service",
        "1",
        "",
        "mkdir -p etc/init.d; printf '#!/bin/sh\\ntouch /var/lib/service-was-started\\n' >etc/init.d/served
         chmod 755 etc/init.d/served; echo /etc/init.d/served >DEBIAN/conffiles
         printf '#!/bin/sh\\ninvoke-rc.d --quiet served start || exit 0\\n' >DEBIAN/postinst",
    );
    archive.add(
        "asked",
        "1",
        "Depends: debconf\n",
        "printf 'Template: asked/what\\nType: string\\nDefault: nothing\\nDescription: what\\n' >DEBIAN/templates
         printf '#!/bin/sh\\n. /usr/share/debconf/confmodule\\ndb_input medium asked/what || :\\ndb_go || :\\n' >DEBIAN/config
         printf '#!/bin/sh\\n. /usr/share/debconf/confmodule\\ndb_get asked/what; echo \"$RET\" >/var/lib/asked\\n' \
         >DEBIAN/postinst; chmod 755 DEBIAN/config",
    );
    archive.add(
        "chosen",
        "1",
        "",
        "mkdir -p usr/bin; echo x >usr/bin/chosen-1
         printf '#!/bin/sh\\nupdate-alternatives --install /usr/bin/chosen chosen /usr/bin/chosen-1 10\\n' >DEBIAN/postinst",
    );
    archive.add(
        "dependent",
        "1",
        "Depends: scripted, needed\n",
        "mkdir -p usr/share/dependent; echo 1 >usr/share/dependent/x",
    );
    archive.add("needed", "1", "", "mkdir -p usr/share/needed; echo 1 >usr/share/needed/x");
    archive.add(
        "old",
        "1",
        "",
        "mkdir -p usr/share/old etc; echo o >usr/share/old/file; echo o >etc/old; echo /etc/old >DEBIAN/conffiles",
    );
}

/// What [`first_versions`] has, as a user would name it.
const FIRST: [&str; 13] = [
    "asked",
    "interested",
    "activating",
    "conf=1",
    "taken",
    "taker",
    "kinds",
    "same",
    "same:i386",
    "service",
    "chosen",
    "dependent",
    "old",
];

#[test]
fn new_packages_are_as_apts() {
    let archive = Archive::new();
    first_versions(&archive);
    let server = archive.serve();
    let pair = Pair::new(&server, LOCAL);
    let output = pair.install(&[], &FIRST);
    let summary = summary(&output);
    assert!(summary["packages"]["unpacked"].as_u64().unwrap() >= 10, "{}", summary["packages"]);
    // Unpacking is divided; of packages as small as these the kernel may count no time for hashing and decompression.
    let parts = summary["packages"]["parts"].to_string();
    for part in ["writing files", "maintainer scripts", "dpkg's bookkeeping", "final sync"] {
        assert!(parts.contains(part), "{part}: {parts}");
    }
    assert!(!parts.contains("unpacking"), "{parts}");
    pair.assert_same();
    let root = pair.ours();
    // The hooks were heard, the policy was asked, the filters were kept.
    let hooks = |root: &Path| {
        let text = fs::read_to_string(root.join("var/log/pre-install-pkgs")).unwrap();
        // What is told to differ: how apt comes to ask us.
        text.lines().filter(|line| !line.starts_with("Dir::Bin::dpkg=")).collect::<Vec<_>>().join("\n")
    };
    let heard = hooks(&root);
    assert!(heard.starts_with("VERSION 3\n") && heard.contains("/var/cache/apt/archives/kinds_1_amd64.deb"), "{heard}");
    assert_eq!(heard, hooks(&pair.theirs()));
    assert_eq!(fs::read_to_string(root.join("var/log/invoked")).unwrap(), "pre\npost\n");
    let asked = fs::read_to_string(root.join("var/log/policy")).unwrap();
    assert!(asked.contains("served"), "{asked}");
    assert_eq!(asked, fs::read_to_string(pair.theirs().join("var/log/policy")).unwrap());
    assert!(!root.join("var/lib/service-was-started").exists());
    assert_eq!(fs::read_to_string(root.join("var/lib/asked")).unwrap(), "preseeded\n");
    assert!(root.join("usr/share/doc/kinds/copyright").exists() && !root.join("usr/share/doc/kinds/README").exists());
    assert!(root.join("usr/bin/tool.real").exists());
}

#[test]
fn upgrades_removals_downgrades_and_what_is_left_are_dpkgs() {
    let archive = Archive::new();
    first_versions(&archive);
    archive.add(
        "conf",
        "2",
        "",
        "mkdir -p etc/conf; for name in kept changed added; do echo 2 >etc/conf/$name; echo /etc/conf/$name; done \
         >DEBIAN/conffiles",
    );
    archive.add("activating", "2", "", "mkdir -p usr/share/noted; echo 2 >usr/share/noted/activated-by-file");
    archive.add(
        "successor",
        "1",
        "Conflicts: old\nReplaces: old\nProvides: old\n",
        "mkdir -p usr/share/old; echo s >usr/share/old/file",
    );
    archive.add("fresh", "1", "Breaks: needed (<< 2)\n", "mkdir -p usr/share/fresh; echo 1 >usr/share/fresh/x");
    archive.add("needed", "2", "", "mkdir -p usr/share/needed; echo 2 >usr/share/needed/y");
    let server = archive.serve();
    let pair = Pair::new(&server, LOCAL);
    let keep = "Dpkg::Options::=--force-confold";
    pair.install(
        &[],
        &["interested", "activating=1", "conf=1", "kinds", "scripted", "dependent", "needed=1", "old", "taken"],
    );
    pair.both("echo edited >/etc/conf/changed; touch -d @1700000000 /etc/conf/changed; apt-mark hold activating");
    // A held package, and nobody who allows it: both refuse.
    assert!(!pair.install(&[], &["activating"]).status.success());
    pair.install(&[keep], &["conf", "taker", "fresh"]);
    pair.assert_same();
    pair.install(&["APT::Get::allow-change-held-packages=1"], &["activating", "successor"]);
    // Removed with its configuration left, and then here again.
    pair.install(&[], &["scripted-"]);
    pair.install(&[keep], &["scripted"]);
    pair.install(&[keep, "APT::Get::allow-downgrades=1"], &["conf=1", "taken-"]);
    // As it is: nothing to do but to mark.
    pair.install(&[], &["needed"]);
    pair.assert_same();
}

#[test]
fn packages_are_installed_into_the_root_that_we_are_in() {
    let archive = Archive::new();
    first_versions(&archive);
    let server = archive.serve();
    let pair = Pair::new(&server, LOCAL);
    let root = pair.ours();
    let program = root.join("usr/local/bin/fullbore");
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &program);
    fs::create_dir(root.join("tmp/here")).unwrap();
    let local = archive.add("local", "1", "", "mkdir -p usr/share/local; echo 1 >usr/share/local/x");
    for root in [pair.ours(), pair.theirs()] {
        fs::create_dir_all(root.join("tmp/here")).unwrap();
        fs::copy(&local, root.join("tmp/here/local_1_amd64.deb")).unwrap();
    }
    // A file of the machine is named by a path from where the user is.
    let words = "--yes install ./local_1_amd64.deb conf=1 dependent";
    let script = "mount -t proc proc \"$1/proc\" && exec chroot \"$1\" sh -ec 'cd /tmp/here; fullbore install --yes \
                  ./local_1_amd64.deb conf=1 dependent'";
    let mut command = clean_command("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"]).arg(&root);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
    well(&mut command);
    inside(&pair.theirs(), &format!("cd /tmp/here; apt-get {words}"));
    fs::remove_file(program).unwrap();
    pair.assert_same();
}

#[test]
fn the_locks_are_held_from_the_first_question_to_the_end() {
    let archive = Archive::new();
    first_versions(&archive);
    archive.add("large", "1", "", "mkdir -p usr/share; head -c 400000 /dev/urandom >usr/share/large");
    let server = archive.serve();
    let place = root_for(&server, "true");
    let root = place.path().join("root");
    // Slow enough to be found downloading.
    server.change(|behaviour| behaviour.rate_bytes_per_s = Some(100_000));
    let ours = install(&root, &["large", "kinds"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let asked = Instant::now();
    while !held(&root, "lock-frontend") {
        assert!(asked.elapsed() < PATIENCE, "it takes no lock");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(held(&root, "lock"));
    let second = chroot(&root, "apt-get --yes install needed").output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(100), "{said}");
    assert!(said.contains("Could not get lock /var/lib/dpkg/lock-frontend"), "{said}");
    let third = install(&root, &["needed"]).output().unwrap();
    let said = String::from_utf8_lossy(&third.stderr).into_owned();
    assert_eq!(third.status.code(), Some(6), "{said}");
    assert!(said.contains("/var/lib/dpkg/lock-frontend is held by process") && said.contains("(fullbore)"), "{said}");
    // One that may wait.
    let waiting = install(&root, &["--aptopt", "DPkg::Lock::Timeout=300", "needed"]).output().unwrap();
    let said = String::from_utf8_lossy(&waiting.stderr).into_owned();
    assert!(waiting.status.success(), "{said}");
    let ours = ours.wait_with_output().unwrap();
    assert!(ours.status.success(), "{}", String::from_utf8_lossy(&ours.stderr));
    assert!(root.join("usr/share/needed/x").exists() && root.join("usr/share/large").exists());
    assert!(!held(&root, "lock-frontend"));
}

#[test]
fn the_user_is_asked_when_apt_would_ask_and_told_what_apt_explains() {
    let archive = Archive::new();
    first_versions(&archive);
    archive.add("needs", "1", "Depends: nothere (>= 3)\n", "true");
    archive.add("one", "1", "Provides: virtual\n", "true");
    archive.add("two", "1", "Provides: virtual\n", "true");
    let server = archive.serve();
    let place = root_for(&server, "true");
    let root = place.path().join("root");
    let answered = |words: &[&str], answer: &str| {
        let mut command = fullbore();
        command.args(["install", "--root"]).arg(&root).args(words).env("DEBIAN_FRONTEND", "noninteractive");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may end without having read it.
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), answer.as_bytes());
        let output = child.wait_with_output().unwrap();
        let said = [output.stderr, output.stdout].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let mut command = fullbore();
    command.args(["install", "--root"]).arg(&root).arg("dependent").env("DEBIAN_FRONTEND", "noninteractive");
    let mut asking = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Its standard input stays open.
    let (_input, _said) = (asking.stdin.take(), until_said(&mut asking, "Continue? [Y/n] "));
    assert_eq!(terminated(asking), Some(130));
    let has = |name: &str| root.join(format!("var/lib/dpkg/info/{name}.list")).exists();
    let (status, said) = answered(&["dependent"], "");
    assert!(status == Some(1) && said.contains("stdin is not a terminal") && !has("dependent"), "{said}");
    let (status, said) = answered(&["dependent"], "n\n");
    assert!(status == Some(130) && said.contains("nothing was installed") && !has("dependent"), "{said}");
    let (status, said) = answered(&["dependent"], "y\n");
    assert!(status == Some(0) && said.contains("Continue?") && has("dependent") && has("scripted"), "{said}");
    // Nothing but what is named.
    let (status, said) = answered(&["taken"], "");
    assert!(status == Some(0) && !said.contains("Continue?") && has("taken"), "{said}");
    // A removal is more.
    let (status, said) = answered(&["taken-"], "");
    assert!(status == Some(1) && has("taken"), "{said}");
    let (status, said) = answered(&["--aptopt", "APT::Get::Assume-Yes=true", "taken-"], "");
    assert!(status == Some(0) && !has("taken") && said.contains("1 package removed in "), "{said}");

    let (status, said) = answered(&["needs"], "");
    assert!(status == Some(2) && said.contains("needs : Depends: nothere (>= 3)"), "{said}");
    let (status, said) = answered(&["virtual"], "");
    assert!(status == Some(2) && said.contains("virtual is a virtual package provided by:"), "{said}");
    assert!(said.contains("  one 1") && said.contains("  two 1"), "{said}");
}

/// Whether a process has this lock of dpkg's.
fn held(root: &Path, lock: &str) -> bool {
    let Ok(file) = fs::File::open(root.join("var/lib/dpkg").join(lock)) else { return false };
    let wanted = rustix::process::Flock::from(rustix::process::FlockType::ReadLock);
    rustix::process::fcntl_getlk(&file, &wanted).unwrap().is_some()
}

#[test]
fn a_lock_that_is_somebody_elses_is_waited_for() {
    let archive = Archive::new();
    first_versions(&archive);
    let server = archive.serve();
    let place = root_for(&server, "true");
    let root = place.path().join("root");
    let lock = Lock::frontend(&Root::open(&root).unwrap()).unwrap();
    let mut command = install(&root, &["--aptopt", "DPkg::Lock::Timeout=300", "needed"]);
    let waits = |command: &mut Command| {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let said = until_said(&mut child, "waiting: /var/lib/dpkg/lock-frontend is held by process");
        (child, said)
    };
    // Who waits for ever can be told not to.
    let (child, _said) = waits(&mut install(&root, &["--aptopt", "DPkg::Lock::Timeout=-1", "needed"]));
    assert_eq!(terminated(child), Some(130));
    let (mut child, mut said) = waits(&mut command);
    drop(lock);
    std::io::copy(&mut said, &mut std::io::sink()).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(root.join("usr/share/needed/x").exists());
}

/// Reads what it says until a text has come.
fn until_said(child: &mut Child, wanted: &str) -> ChildStderr {
    let (mut said, mut text, mut byte) = (child.stderr.take().unwrap(), Vec::new(), [0]);
    while !text.ends_with(wanted.as_bytes()) {
        let count = std::io::Read::read(&mut said, &mut byte).unwrap();
        assert!(count > 0, "{wanted:?} was not said: {}", String::from_utf8_lossy(&text));
        text.push(byte[0]);
    }
    said
}

/// The status of a program after one SIGTERM.
fn terminated(mut child: Child) -> Option<i32> {
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn programs_that_a_script_leaves_are_named_in_a_warning() {
    let archive = Archive::new();
    let script = |seconds: &str| format!("printf '#!/bin/sh\nsleep {seconds} >/dev/null 2>&1 &\n' >DEBIAN/postinst");
    archive.add("ending", "1", "", &script("0.5"));
    archive.add("staying", "1", "", &script("600"));
    let server = archive.serve();
    let place = root_for(&server, "true");
    let root = place.path().join("root");
    let said = well(&mut install(&root, &["ending"])).stderr;
    assert!(!String::from_utf8_lossy(&said).contains("still run"));
    let output = install(&root, &["staying"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // As apt ends.
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("warning: programs that packages started still run, without syncs"), "{said}");
    // `sleep (NUMBER)`
    let number = said.split("sleep (").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
    well(clean_command("kill").arg(number));
}

/// Who is killed.
#[derive(Debug, Clone, Copy)]
enum Killed {
    /// fullbore alone; apt goes on.
    Ours,
    /// All at once, as by a container's end.
    All,
}

/// How it goes on after that.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// The same command, and what apt asks for before that.
    Again,
    /// Without fullbore: `dpkg --configure -a`, `apt-get -f install`, and what was wanted.
    ByHand,
}

/// `FULLBORE_TEST_CASES` sets how often.
#[test]
fn install_killed_at_any_moment_ends_in_the_same_root() {
    let archive = Archive::new();
    first_versions(&archive);
    for number in 0..4 {
        let script = format!("mkdir -p usr/share/many; head -c 1500000 /dev/urandom >usr/share/many/{number}");
        archive.add(&format!("many{number}"), "1", "", &script);
    }
    let server = archive.serve();
    let words = ["interested", "activating", "conf", "kinds", "service", "chosen", "many0", "many1", "many2", "many3"];
    let mut pair = Pair::new(&server, LOCAL);
    let clean = tempfile::tempdir_in(pair.ours().parent().unwrap().parent().unwrap()).unwrap();
    well(clean_command("cp").arg("--archive").arg(pair.ours()).arg(clean.path()));
    inside(&pair.theirs(), &format!("apt-get --yes install {}", words.join(" ")));
    let begun = Instant::now();
    well(&mut install(&pair.ours(), &words));
    let whole = begun.elapsed();
    pair.assert_same();
    let seed = u64::from(std::process::id());
    let mut random = Random::new(seed, "kills");
    let cases = [
        (Killed::Ours, Then::Again),
        (Killed::All, Then::Again),
        (Killed::Ours, Then::ByHand),
        (Killed::All, Then::ByHand),
    ];
    let kills = std::env::var("FULLBORE_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(KILLS);
    for (number, (killed, then)) in cases.iter().cycle().take(kills as usize).enumerate() {
        let root = pair.renew(clean.path());
        let after = whole.mul_f64(random.below(1000) as f64 / 1000.0);
        let case = format!("{number}: {killed:?} after {after:?} of {whole:?}, then {then:?}, seed {seed}");
        kill(&root, &words, *killed, after);
        recover(&root, &words, *then, &case);
        println!("{case}");
        pair.assert_same_state();
        let left: Vec<_> = fs::read_dir(root.join("run")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(matches!(then, Then::ByHand) || !format!("{left:?}").contains("fullbore"), "{case}: {left:?}");
    }
}

/// One of each kind.
const KILLS: u32 = 4;

fn kill(root: &Path, words: &[&str], killed: Killed, after: Duration) {
    let mut command = match killed {
        Killed::Ours => install(root, words),
        Killed::All => {
            let mut command = clean_command("unshare");
            command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
            command.arg(env!("CARGO_BIN_EXE_fullbore")).args(["install", "--yes", "--root"]).arg(root).args(words);
            command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
            command
        }
    };
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    // apt may go on without us; a lock says that it does.
    let begun = Instant::now();
    while ["lock-frontend", "lock"].iter().any(|lock| held(root, lock)) {
        assert!(begun.elapsed() < Duration::from_secs(120), "somebody keeps dpkg's lock");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn recover(root: &Path, words: &[&str], then: Then, case: &str) {
    let by_hand = "dpkg --configure -a; apt-get --yes -f install";
    let said = |output: &Output| {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        format!("{case}\n{out}{err}")
    };
    let mut again: Command = match then {
        Then::Again => install(root, words),
        Then::ByHand => chroot(root, &format!("apt-get --yes install {}", words.join(" "))),
    };
    let first = again.output().unwrap();
    if !first.status.success() || matches!(then, Then::ByHand) {
        // Only what apt itself asks for may be needed.
        assert!(
            first.status.success()
                || said(&first).contains("dpkg --configure -a")
                || said(&first).contains("fix-broken"),
            "{}",
            said(&first)
        );
        let mended = chroot(root, by_hand).output().unwrap();
        assert!(mended.status.success(), "{}", said(&mended));
        let last = again.output().unwrap();
        assert!(last.status.success(), "{}", said(&last));
    }
    // apt's own, which nobody but apt can remove when it is killed.
    inside(root, "rm -rf /tmp/apt-dpkg-install-*");
    if matches!(then, Then::ByHand) {
        // What a killed run may leave besides: a part of a download, and the script in /run.
        inside(root, "rm -rf /run/fullbore-dpkg.* /var/cache/apt/archives/.*.part");
    }
}

/// The disk fails when everything is installed and not yet synced.
#[test]
fn a_disk_that_fails_at_the_end_fails_the_run() {
    SlowDisk::available().unwrap();
    let archive = Archive::new();
    first_versions(&archive);
    let server = archive.serve();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("disk")).unwrap();
    let disk = SlowDisk::mount(&dir.path().join("disk"), &dir.path().join("backing"), 1 << 30, 1 << 30).unwrap();
    let hook = "mkfifo /run/go
        echo 'DPkg::Post-Invoke { \"touch /run/reached; cat /run/go\"; };' >/etc/apt/apt.conf.d/last";
    let root = root_in(disk.path(), &server, hook);
    let mut ours = install(&root, &["needed", "kinds"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !root.join("run/reached").exists() {
        assert!(ours.try_wait().unwrap().is_none(), "it ended before");
        assert!(begun.elapsed() < PATIENCE, "it does not come to the hook");
        std::thread::sleep(Duration::from_millis(5));
    }
    disk.set_broken(true);
    // The hook's `cat` may fail to start from such a disk.
    tell(&root.join("run/go"), "go", &mut || ours.try_wait().unwrap().is_some());
    let output = ours.wait_with_output().unwrap();
    disk.set_broken(false);
    let said = String::from_utf8_lossy(&output.stderr);
    // If the file system has noticed it by itself meanwhile, apt fails.
    assert!(matches!(output.status.code(), Some(7 | 2)), "{}: {said}", output.status);
    assert!(output.status.code() == Some(2) || said.contains("may not be on disk"), "{said}");
}

/// Scripts that fail, first those of one package and then those of all; and when they do no longer, all is as apt's.
#[test]
fn scripts_that_fail_leave_what_they_leave_with_apt() {
    let archive = Archive::new();
    first_versions(&archive);
    let script = |name: &str, action: &str| {
        format!(
            "printf '#!/bin/sh\\necho '$name' \"$@\" >>/var/lib/scripts.log; [ \"$1\" != {action} ] || [ -e /etc/{name}.may ]\\n' \
             >DEBIAN/{name}; "
        )
    };
    let others = "for name in postrm prerm; do printf '#!/bin/sh\\necho '$name' \"$@\" >>/var/lib/scripts.log\\n' \
                  >DEBIAN/$name; done; mkdir -p usr/share/$(basename $PWD); ";
    archive.add("before", "1", "", &format!("name=preinst; {}{others}", script("preinst", "install")));
    archive.add("after", "1", "", &format!("name=postinst; {}{others}", script("postinst", "configure")));
    // What is there already belongs to a package: dpkg refuses it, and no script of it has run in vain.
    let clash = "mkdir -p usr/share/needed; echo c >usr/share/needed/x";
    archive.add("clashing", "1", "", &format!("name=preinst; {}{others}{clash}", script("preinst", "nothing")));
    let server = archive.serve();
    let pair = Pair::new(&server, LOCAL);
    pair.install(&[], &["needed"]);
    let status = |root: &Path| inside(root, "dpkg-query --show --showformat '${Package} ${Status}\\n'");
    let log = |root: &Path| fs::read_to_string(root.join("var/lib/scripts.log")).unwrap();
    let failed = pair.install(&[], &["clashing", "kinds"]);
    assert_eq!(failed.status.code(), Some(2));
    pair.assert_same_entries();
    assert_eq!(log(&pair.ours()), log(&pair.theirs()));
    pair.both("dpkg --remove --force-all clashing; rm /var/lib/scripts.log");
    let failed = pair.install(&[], &["before", "after", "taken"]);
    assert_eq!(failed.status.code(), Some(2));
    assert_eq!(status(&pair.ours()), status(&pair.theirs()));
    // With us, too, the script of each attempt has its counterpart.
    let attempt = "preinst install\npostrm abort-install\n";
    assert_eq!(log(&pair.theirs()).matches(attempt).count(), 1, "{}", log(&pair.theirs()));
    let ours = log(&pair.ours());
    assert_eq!(ours.matches("preinst install").count(), ours.matches(attempt).count(), "{ours}");
    for may in ["preinst", "postinst"] {
        pair.both(&format!("rm /var/lib/scripts.log; touch /etc/{may}.may"));
        let tried = pair.install(&[], &["before", "after", "taken"]);
        assert_eq!(tried.status.success(), may == "postinst");
        assert_eq!(status(&pair.ours()), status(&pair.theirs()));
        assert_eq!(log(&pair.ours()), log(&pair.theirs()));
    }
    pair.assert_same_state();
}

/// What only dpkg may unpack has to be what the index says as well, and what lies in the cache is not trusted.
#[test]
fn a_package_that_was_changed_in_the_cache_gets_nowhere() {
    let archive = Archive::new();
    first_versions(&archive);
    archive.add("needed", "2", "", "mkdir -p usr/share/needed; echo 2 >usr/share/needed/x");
    let server = archive.serve();
    let place = root_for(&server, "true");
    let root = place.path().join("root");
    well(&mut install(&root, &["needed=1"]));
    // Changed between the download and the unpacking, by a hook; an upgrade, so that dpkg would do it.
    let hook = "DPkg::Pre-Invoke { \"for f in /var/cache/apt/archives/needed_2*; do printf x >>$f; done\"; };";
    fs::write(root.join("etc/apt/apt.conf.d/evil"), hook).unwrap();
    let output = install(&root, &["needed"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("the index says"), "{said}");
    assert_eq!(fs::read_to_string(root.join("usr/share/needed/x")).unwrap(), "1\n");
}

/// A preinst that diverts a file of a package after it. apt gives both to one dpkg.
#[test]
fn a_diversion_counts_for_all_packages_after_it() {
    let archive = Archive::new();
    for name in ["after", "behind"] {
        archive.add(
            name,
            "1",
            "",
            &format!("mkdir -p usr/bin usr/share/{name}; echo {name} | tee usr/bin/{name} >usr/share/{name}/own"),
        );
    }
    let divert = "for name in after behind; do \
        dpkg-divert --package a-diverter --no-rename --divert /usr/bin/$name.real --add /usr/bin/$name; done";
    archive.add(
        "a-diverter",
        "1",
        "",
        &format!(
            "printf '#!/bin/sh\\n%s\\n' '{divert}' >DEBIAN/preinst; mkdir -p usr/bin
             for name in after behind; do echo diverter >usr/bin/$name; done"
        ),
    );
    archive.add("before", "1", "", "mkdir -p usr/bin; echo before >usr/bin/before");
    let server = archive.serve();
    let pair = Pair::new(&server, "true");
    let output = pair.install(&[], &["a-diverter", "after", "before", "behind"]);
    pair.assert_same();
    assert_eq!(fs::read_to_string(pair.ours().join("usr/bin/after.real")).unwrap(), "after\n");
    assert_eq!(fs::read_to_string(pair.ours().join("usr/bin/after")).unwrap(), "diverter\n");
    // Only the one that diverts is dpkg's.
    let summary = summary(&output);
    assert_eq!(summary["packages"]["unpacked"], 3, "{summary}");
}

/// apt and dpkg do not mind an old description in Latin 1.
#[test]
fn a_status_file_that_is_not_utf_8_is_dpkgs() {
    let archive = Archive::new();
    archive.add("needed", "1", "", "mkdir -p usr/share/needed; echo 1 >usr/share/needed/x");
    let server = archive.serve();
    let latin = r"sed -i '0,/^Description: /s//&caf\xe9 /' /var/lib/dpkg/status; grep -aq caf /var/lib/dpkg/status";
    let pair = Pair::new(&server, latin);
    let summary = summary(&pair.install(&[], &["needed"]));
    let by_dpkg = summary["packages"]["by_dpkg"][0].as_str().unwrap();
    assert_eq!(by_dpkg, "needed_1_amd64.deb: /var/lib/dpkg/status: not UTF-8");
    pair.both(r"LC_ALL=C sed -i 's/caf\xe9 //' /var/lib/dpkg/status");
    pair.assert_same();
}

/// dpkg reads its configuration in the home directory of its user too.
#[test]
fn dpkgs_configuration_in_the_home_directory_counts() {
    let archive = Archive::new();
    archive.add(
        "needed",
        "1",
        "",
        "mkdir -p usr/share/needed/left-out; tee usr/share/needed/x >usr/share/needed/left-out/x",
    );
    archive.add("forced", "1", "", "mkdir -p usr/share/forced; echo 1 >usr/share/forced/x");
    let server = archive.serve();
    let pair = Pair::new(&server, "echo 'path-exclude /usr/share/needed/left-out/*' >/home/.dpkg.cfg");
    let both = |name: &str, variables: &[(&str, &str)]| {
        let mut ours = install(&pair.ours(), &["--json", name]);
        let mut theirs = chroot(&pair.theirs(), &format!("apt-get --yes install {name}"));
        well(theirs.envs(variables.to_vec()));
        summary(&well(ours.envs(variables.to_vec())))
    };
    assert_eq!(both("needed", &[("HOME", "/home")])["packages"]["unpacked"], 1);
    let told = both("forced", &[("HOME", "/home"), ("DPKG_FORCE", "overwrite")])["packages"]["by_dpkg"].to_string();
    assert!(told.contains("DPKG_FORCE has force-overwrite"), "{told}");
    pair.assert_same();
    assert!(!pair.ours().join("usr/share/needed/left-out/x").exists());
}

/// As with dpkg, a preinst reads what the caller's pipe has.
#[test]
fn a_preinst_reads_the_callers_stdin() {
    let archive = Archive::new();
    let script =
        r"printf '#!/bin/sh\nread -r answer || answer=none\necho $answer >/var/lib/answered\n' >DEBIAN/preinst";
    archive.add("asks", "1", "", &format!("{script}; mkdir -p usr/share/asks; echo 1 >usr/share/asks/x"));
    let server = archive.serve();
    let pair = Pair::new(&server, "true");
    for mut command in [install(&pair.ours(), &["asks"]), chroot(&pair.theirs(), "apt-get --yes install asks")] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"forty-two\n").unwrap();
        drop(writer);
        well(command.stdin(reader));
    }
    pair.assert_same();
    assert_eq!(fs::read_to_string(pair.ours().join("var/lib/answered")).unwrap(), "forty-two\n");
}
