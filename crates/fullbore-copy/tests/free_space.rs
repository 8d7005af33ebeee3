//! Whether everything fits, asked anew while a long listing goes on: a script lists, slowly, on small file systems.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod pair;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use fullbore_copy::error::CopyError;
use fullbore_copy::queue::Taken;
use fullbore_copy::receiver::{self, Destination};
use fullbore_copy::wire::Message;
use fullbore_engine::stage::{Kind, Ledger};
use pair::scene::{LONG, LOOK, Scene, block, file, list, pack};

/// A file system in memory, mounted while it lives.
struct SmallDisk {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl SmallDisk {
    fn new(options: &str) -> SmallDisk {
        assert!(rustix::process::geteuid().is_root(), "mounts a small disk: run as root (script/test does)");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(&path).status();
        assert!(mounted.unwrap().success(), "needs the package mount");
        SmallDisk { path, _directory: directory }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

/// Somebody who lists, and never comes to the end.
struct Script<'a> {
    scene: &'a Scene,
    clock: Arc<fullbore_engine::stage::StageClock>,
}

impl Script<'_> {
    fn say(&self, message: Message) {
        let queue = if message.is_data() { &self.scene.link.data } else { &self.scene.link.control_in };
        let _ = queue.push(message, &self.clock);
    }

    /// Waits until so many messages of a kind have come.
    fn hear(&self, what: &str, count: usize, is: impl Fn(&Message) -> bool) {
        let (mut heard, until) = (0, Instant::now() + LONG);
        while heard < count {
            match self.scene.link.control_out.pop_within(LOOK, &self.clock) {
                Taken::Item(Message::Abort { text, .. }) => panic!("{what}: {text}"),
                Taken::Item(message) => heard += usize::from(is(&message)),
                Taken::TimedOut => assert!(Instant::now() < until, "{what}: does not come"),
                Taken::End => panic!("{what}: the receiver has gone"),
            }
        }
    }
}

/// What the receiver makes of a script.
fn receive(target: &Path, script: impl FnOnce(&Script<'_>)) -> Arc<CopyError> {
    let scene = Scene::new();
    let clock = Ledger::off().stage("test", Kind::Thread);
    let destination = Destination::at(target);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| scene.with(|context| receiver::run(context, &destination)));
        script(&Script { scene: &scene, clock });
        let until = Instant::now() + LONG;
        while !receiving.is_finished() && Instant::now() < until {
            let _ = scene.link.control_out.pop_within(LOOK, &Ledger::off().stage("test", Kind::Thread));
        }
        scene.end();
        receiving.join().unwrap().unwrap_err()
    })
}

fn is_begin(message: &Message) -> bool {
    matches!(message, Message::Begin)
}

fn is_acknowledged(message: &Message) -> bool {
    matches!(message, Message::Acknowledge { .. })
}

/// With each of them room was looked at before.
fn is_account(message: &Message) -> bool {
    matches!(message, Message::Account { .. })
}

#[test]
fn a_copy_that_cannot_fit_stops_where_it_can_resume() {
    let disk = SmallDisk::new("size=64m");
    let error = receive(&disk.path, |script| {
        script.say(list(0, "", vec![file("first", 3), file("big", 40 << 20)]));
        script.hear("content while the listing goes on", 1, is_begin);
        script.say(pack(0, b"abc"));
        script.say(block(1, 0, &vec![7; 1 << 20]));
        script.hear("records", 2, is_acknowledged);
        // What is set aside for the big file is not needed a second time.
        script.hear("room looked at", 3, is_account);
        script.say(list(2, "", vec![file("more", 10 << 20)]));
        script.hear("room looked at", 3, is_account);
        script.say(list(3, "", vec![file("too-large", 30 << 20)]));
    });
    assert!(matches!(*error, CopyError::Disk(_)) && error.to_string().contains(" more is needed"), "{error}");
    assert_eq!(fs::read(disk.path.join("first")).unwrap(), b"abc");
    for name in [".fullbore-copy", ".big.fullbore-part", ".big.fullbore-blocks"] {
        assert!(disk.path.join(name).exists(), "{name}: the next run has nothing to go on with");
    }
}

#[test]
fn inodes_are_looked_at_also_when_content_has_come() {
    let disk = SmallDisk::new("size=64m,nr_inodes=40");
    let files = |range: std::ops::Range<usize>| range.map(|number| file(&format!("{number}"), 3)).collect();
    let error = receive(&disk.path, |script| {
        script.say(list(0, "", files(0..30)));
        script.hear("content while the listing goes on", 1, is_begin);
        (0..20).for_each(|id| script.say(pack(id, b"abc")));
        script.hear("records", 20, is_acknowledged);
        // Most of them are there, and not needed again.
        script.hear("room looked at", 3, is_account);
        script.say(list(30, "", files(30..50)));
    });
    assert!(matches!(*error, CopyError::Disk(_)) && error.to_string().contains("more files are needed"), "{error}");
    assert_eq!(fs::read(disk.path.join("0")).unwrap(), b"abc");
}
