//! A slow mirror costs no time beside a fast one, wherever it stands among them, in every command that fetches.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

#[path = "harness/made.rs"]
mod made;
#[path = "harness/packages.rs"]
mod packages;
#[path = "harness/roots.rs"]
mod roots;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use harness::apt::{Apt, give_to_apt, passable, program};
use harness::{Mirror, common, own_archive, verified};

/// On each connection of the slow mirror: an `InRelease` takes it a second, an index several.
const SLOW_BYTES_PER_S: u64 = 4_000;

/// What a debug build on a busy machine may need more. Whoever waits for a whole file of the slow one needs longer.
const SLACK: Duration = Duration::from_millis(500);

/// Most rounds of measurements. Other processes can only make a run slower, so more rounds never hide a cost.
const ROUNDS_MAX: usize = 6;

/// Runs three times or more with the fast one alone and with both, in either order, until the best of each are alike.
fn costs_no_time(serve: impl Fn() -> Server, run: impl Fn(&[&Server])) {
    costs_no_time_in(3, serve, run);
}

fn costs_no_time_in(rounds_min: usize, serve: impl Fn() -> Server, run: impl Fn(&[&Server])) {
    let (fast, slow) = (serve(), serve());
    slow.change(|own| own.connection_rate_bytes_per_s = Some(SLOW_BYTES_PER_S));
    let [mut alone, mut slow_first, mut slow_last] = [Duration::MAX; 3];
    let measure = |best: &mut Duration, servers: &[&Server]| {
        let began = Instant::now();
        run(servers);
        *best = began.elapsed().min(*best);
    };
    for round in 1..=ROUNDS_MAX {
        measure(&mut alone, &[&fast]);
        measure(&mut slow_last, &[&fast, &slow]);
        measure(&mut slow_first, &[&slow, &fast]);
        if round >= rounds_min && slow_first.max(slow_last) <= alone.mul_f64(1.1) + SLACK {
            assert!(slow.counters().body_bytes > 0, "the slow one was asked");
            return;
        }
    }
    panic!("{slow_last:?} with the slow one last, {slow_first:?} with it first, and {alone:?} without it");
}

/// A list of mirrors as apt reads one.
fn list(directory: &Path, servers: &[&Server]) -> String {
    let path = directory.join("mirrors");
    fs::write(&path, servers.iter().map(|server| server.url() + "/\n").collect::<String>()).unwrap();
    path.display().to_string()
}

#[test]
fn a_slow_mirror_costs_mirror_no_time() {
    let archive = common();
    let serve = || Server::start(&archive.state(0).root).unwrap();
    costs_no_time(serve, |servers| drop(Mirror::new(archive).run(servers).exits(0)));
}

/// The origin is so slow that another mirror is asked for the signed files, and has them wrong.
#[test]
fn false_signed_files_of_another_mirror_are_not_believed() {
    let archive = common();
    let (origin, other) =
        (Server::start(&archive.state(0).root).unwrap(), Server::start(&archive.state(0).root).unwrap());
    origin.change(|own| own.connection_rate_bytes_per_s = Some(SLOW_BYTES_PER_S));
    for signed in ["/InRelease", "/Release"] {
        other.add_fault(FaultRule::always(PathMatch::Contains(signed.into()), Fault::Corrupt));
    }
    let mirror = Mirror::new(archive);
    mirror.run(&[&origin, &other]).exits(0);
    verified(&mirror.to, archive, 0);
    let asked = other.log().iter().filter(|entry| entry.path.ends_with("/InRelease")).count();
    assert_eq!(asked, 1, "the other was asked, and once");
}

#[test]
fn a_slow_mirror_costs_update_no_time() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    costs_no_time(
        || Server::start(&archive.state(0).root).unwrap(),
        |servers| {
            let directory = passable();
            let source = format!("mirror+file:{}", list(directory.path(), servers));
            let apt = Apt::new(directory.path().join("apt"), &source, &archive.key());
            let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
            well(command.arg("update").env("APT_CONFIG", apt.directory.join("etc/apt.conf")));
        },
    );
}

#[test]
fn a_slow_mirror_costs_the_apt_method_no_time() {
    let archive = common();
    costs_no_time(
        || Server::start(&archive.state(0).root).unwrap(),
        |servers| {
            let directory = passable();
            let apt = Apt::new(directory.path().join("apt"), &servers[0].url(), &archive.key());
            let apt = apt
                .option("Dir::Bin::Methods::http", program(directory.path(), "http").display())
                .option("Acquire::fullbore::Mirrors", list(directory.path(), servers))
                .option("Acquire::Max-Pipeline-Depth", 1000);
            give_to_apt(directory.path());
            apt.update(&[]).well();
        },
    );
}

#[test]
fn a_slow_mirror_costs_bootstrap_no_time() {
    let archive = packages::packages();
    // One round may do, for it is long.
    costs_no_time_in(
        1,
        || archive.serve(),
        |servers| {
            let directory = tempfile::tempdir_in("/dev/shm").unwrap();
            let mut command = made::fullbore();
            command.args(["bootstrap", "--quiet", "--variant", "essential", "--keyring"]);
            command.arg(&archive.key).arg(&archive.codename).arg(directory.path().join("root"));
            well(command.args(servers.iter().map(|server| server.url())));
        },
    );
}

/// The password with a slash and an at-sign. Each is asked for packages.
#[test]
fn bootstrap_uses_each_mirror_that_asks_for_credentials() {
    let archive = packages::packages();
    let servers = [archive.serve(), archive.serve()];
    let addresses = servers.iter().map(|server| {
        server.change(|own| own.authorization = Some("Basic dXM6c2UvQGs=".to_owned()));
        server.url().replace("http://", "http://us:se%2F%40k@")
    });
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = made::fullbore();
    command.args(["bootstrap", "--quiet", "--variant", "essential", "--keyring"]);
    command.arg(&archive.key).arg(&archive.codename).arg(directory.path().join("root"));
    well(command.args(addresses));
    for server in &servers {
        assert!(server.log().iter().any(|entry| entry.path.contains("/pool/") && entry.status < 300));
    }
}

#[test]
fn a_slow_mirror_costs_install_no_time() {
    let archive = made::Archive::new();
    archive.add("large", "1", "", "mkdir -p usr/lib; head -c 2000000 /dev/urandom > usr/lib/large");
    costs_no_time(
        || archive.serve(),
        |servers| {
            // Its own lists are made by apt, from the fast one.
            let fast = servers.iter().max_by_key(|server| server.counters().body_bytes).unwrap();
            let root = made::root_for(fast, "");
            let mirrors = list(root.path().join("root/etc/apt").as_path(), servers);
            let root = root.path().join("root");
            let inside = mirrors.strip_prefix(root.to_str().unwrap()).unwrap();
            let own = format!("Acquire::fullbore::Mirrors \"{inside}\";\n");
            fs::write(root.join("etc/apt/apt.conf.d/mirrors"), own).unwrap();
            well(&mut made::install(&root, &["large"]));
            assert!(root.join("usr/lib/large").exists());
        },
    );
}

fn well(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
