//! M13: the power fails at any point of an update; what is on the disk then is the old mirror or the new
//! one, whole, and apt reads it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::path::Path;

use fullbore_testkit::power_cut::AfterCut;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::random::Random;
use fullbore_testkit::server::Server;
use fullbore_testkit::slowdisk::SlowDisk;
use fullbore_testkit::verify;
use harness::apt::Apt;
use harness::{Mirror, need, own_archive, published, verified};

/// apt looks at every so many of them.
const APT_EVERY: usize = 4;
/// Points looked at, besides each flush.
const CUTS: usize = 24;

#[test]
fn after_a_power_cut_the_old_or_the_new_state_is_there() {
    SlowDisk::available().unwrap();
    let (directory, archive) = own_archive(|builder| builder);
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("disk")).unwrap();
    let disk = SlowDisk::mount(&at("disk"), &at("backing"), 96 << 20, 0).unwrap();
    let origin = Server::start(&archive.state(0).root).unwrap();
    let mut mirror = Mirror::new(&archive);
    mirror.to = at("disk/mirror");
    mirror.run(&[&origin]).exits(0);
    origin.switch_root(&archive.state(1).root);
    disk.record(&at("base")).unwrap();
    mirror.run(&[&origin]).exits(0);
    let log = disk.recorded().unwrap();
    drop(disk);

    let flushes = log.flushes();
    assert!(!flushes.is_empty(), "nothing was made sure: {log:?}");
    let mut random = Random::new(13, "power cut");
    let mut points = flushes;
    points.extend((0..CUTS).map(|_| random.below(log.len() as u64 + 1) as usize));
    let mut seen = [false; 2];
    for (number, point) in points.into_iter().enumerate() {
        // The kernel may still hold the last one.
        let image = at(&format!("image-{number}"));
        // All, none or some of what was not flushed.
        let share = [0.0, 0.5, 1.0][random.below(3) as usize];
        log.image(point, &mut || random.chance(share), &image).unwrap();
        let cut = AfterCut::mount(&image, &at("after")).unwrap_or_else(|error| panic!("at {point}: {error}"));
        let tree = at("after/mirror");
        let state = published(&tree, &archive).unwrap_or_else(|| panic!("at {point} of {log:?}: no InRelease of ours"));
        seen[state] = true;
        let mut problems = verify::suite(&tree, archive.state(state), "trixie");
        problems.extend(verify::files(&tree, &archive.state(state).select(|file| file.suite == "trixie")));
        assert!(problems.is_empty(), "at {point} of {log:?}: {problems:#?}");
        if number.is_multiple_of(APT_EVERY) {
            let source = format!("file:{}", tree.display());
            let apt =
                Apt::new(at(&format!("apt-{number}")), &source, &archive.key()).option("APT::Sandbox::User", "root");
            apt.update(&[]).well();
            assert!(!apt.packages().is_empty(), "at {point} of {log:?}");
        }
        goes_on(&mut mirror, &tree, &origin, &at("boot"));
        verified(&tree, &archive, 1);
        drop(cut);
        std::fs::remove_file(image).unwrap();
    }
    assert_eq!(seen, [true, true], "cuts before and after the update was published");
}

/// The next run, of another boot, makes the new state of whatever is there.
fn goes_on(mirror: &mut Mirror, tree: &Path, origin: &Server, boot: &Path) {
    std::fs::write(boot, "00000000-0000-4000-8000-00000000000b\n").unwrap();
    let before = std::mem::replace(&mut mirror.to, tree.to_owned());
    let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    need("unshare", "util-linux");
    let run = mirror.command(&[origin], &[]);
    let mut command = clean_command("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(boot).arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        value.map(|value| command.env(name, value));
    }
    mirror.finish(command).exits(0);
    mirror.to = before;
}
