//! `fullbore copy` beside the real rsync: the same trees, the same options, the same result.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod harness;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Output};

use harness::{Place, assert_same, said};

/// A tree to be copied, and an older copy of it: changed, newer, older, missing and obsolete files, links, directories.
const TREES: &str = "
    mkdir -p src/sub/deep src/empty dst/sub dst/gone/inner
    for name in same changed longer newer older sub/same sub/deep/new; do echo \"$name\" > src/$name; done
    printf 'x%.0s' {1..5000} > src/large
    ln -s same src/link; ln -s old src/relinked; mkfifo src/pipe; ln src/same src/twin
    touch -h -d '2020-02-02 02:02:02.25' src/* src/sub/* src/sub/deep/*
    cp -a src/{same,changed,newer,older} dst; cp -a src/sub/same dst/sub
    echo CHANGED > dst/changed; touch -r src/changed dst/changed
    echo long > dst/longer; echo newer > dst/newer; touch -d '2021-01-01' dst/newer; touch -d '2019-01-01' dst/older
    ln -s elsewhere dst/relinked; echo gone > dst/gone/inner/file; echo gone > dst/obsolete
    chmod 640 dst/sub/same; touch -d '2018-08-08' src/sub dst/gone dst/gone/inner dst/obsolete
";

/// What both tools made of the same place.
struct Beside {
    place: Place,
    ours: Output,
    theirs: Output,
}

/// Runs both tools in directories that a script has filled alike.
fn beside(setup: &str, arguments: &[&str]) -> Beside {
    let place = Place::new();
    shell(&place, &format!("mkdir ours; cd ours\n{setup}\ncd ..; cp -a ours theirs"));
    let (ours, theirs) = (run_ours(&place, arguments), run_theirs(&place, arguments));
    Beside { place, ours, theirs }
}

fn shell(place: &Place, script: &str) {
    let done = Command::new("bash").args(["-ec", script]).current_dir(place.path("")).output().unwrap();
    assert!(done.status.success(), "{script}: {}", said(&done));
}

fn run_ours(place: &Place, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.arg("copy").args(arguments).current_dir(place.path("ours")).output().unwrap()
}

fn run_theirs(place: &Place, arguments: &[&str]) -> Output {
    let mut command = Command::new("rsync");
    command.args(["-aHAX", "--modify-window=-1"]).args(arguments).current_dir(place.path("theirs"));
    command.output().expect("the package rsync is needed")
}

/// The lines of `-i`, in order of their names.
fn items(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_change = |line: &str| "<>ch.".contains(&line[..1]) && "fdLDS".contains(&line[1..2]) && &line[11..12] == " ";
    let is_item =
        |line: &&str| line.len() > 12 && line.is_ascii() && (is_change(line) || line.starts_with("*deleting   "));
    let mut lines: Vec<_> = text.lines().filter(is_item).map(str::to_owned).collect();
    lines.sort_by(|one, other| one[12..].cmp(&other[12..]));
    lines
}

impl Beside {
    /// Both ended with these exit codes, and the destinations are the same.
    fn assert_same(&self, ours: i32, theirs: i32) {
        let codes = (self.ours.status.code(), self.theirs.status.code());
        assert_eq!(codes, (Some(ours), Some(theirs)), "{}\n{}", said(&self.ours), said(&self.theirs));
        assert_same(&self.place.path("theirs/dst"), &self.place.path("ours/dst"));
    }

    /// Both print the same changes.
    fn assert_items(&self) {
        let (ours, theirs) = (items(&self.ours), items(&self.theirs));
        assert_eq!(ours, theirs, "ours first\n{}\n{}", said(&self.ours), said(&self.theirs));
    }

    /// Runs both once more.
    fn again(&mut self, setup: &str, arguments: &[&str]) {
        for side in ["ours", "theirs"] {
            shell(&self.place, &format!("cd {side}; {setup}"));
        }
        // What the setup changed, it changed at two moments.
        let same_times = "cd theirs/src; find . -depth -exec touch -h -r ../../ours/src/{} {} ';'";
        shell(&self.place, &format!("[ ! -d theirs/src ] || {{ {same_times}; }}"));
        (self.ours, self.theirs) = (run_ours(&self.place, arguments), run_theirs(&self.place, arguments));
    }
}

#[test]
fn changes_are_shown_in_rsyncs_letters() {
    for arguments in [&["-i"][..], &["-in"], &["-i", "--delete"], &["-in", "--delete"], &["-ic"], &["-inc"]] {
        let arguments = [arguments, &["src/", "dst"]].concat();
        let both = beside(TREES, &arguments);
        assert!(!items(&both.theirs).is_empty());
        both.assert_items();
        both.assert_same(0, 0);
    }
    let mut both = beside("mkdir -p src/d; echo x > src/d/f; ln -s f src/d/l", &["-i", "src/", "dst"]);
    both.assert_items();
    both.again("", &["-i", "src/", "dst"]);
    assert_eq!(items(&both.ours), Vec::<String>::new());
    both.again("", &["-ii", "src/", "dst"]);
    both.assert_items();
    let attributes = "chmod 600 src/d/f; chown 7:8 src/d; setfattr -n user.a -v b src/d/f; setfacl -m u:9:r src/d";
    both.again(attributes, &["-i", "src/", "dst"]);
    both.assert_items();
    // Of a new file with several names, rsync sends the last one.
    both.again("ln src/d/f src/d/g", &["-i", "src/", "dst"]);
    both.assert_items();
    both.assert_same(0, 0);
}

#[test]
fn files_are_passed_over_as_by_rsync() {
    for rules in [
        &["-u"][..],
        &["--existing"],
        &["--ignore-existing"],
        &["--existing", "--ignore-existing", "--delete"],
        &["--ignore-existing", "--delete"],
        &["--max-size=4K"],
        &["--min-size=1000"],
        &["--max-size=5KB-1", "--min-size=7", "--delete"],
        &["--size-only"],
        &["-I"],
        &["-c"],
        &["-u", "--existing", "-n"],
    ] {
        let both = beside(TREES, &[rules, &["-i", "src/", "dst"]].concat());
        both.assert_items();
        both.assert_same(0, 0);
    }
}

#[test]
fn deletions_come_when_and_as_far_as_with_rsync() {
    for rules in [
        &["--delete-before"][..],
        &["--delete-after"],
        &["--delete-during"],
        &["--delete-delay"],
        &["--del"],
        &["--delete", "--exclude", "*.log"],
        &["--delete-excluded", "--exclude", "*.log"],
        &["--delete", "--max-delete=100"],
    ] {
        let setup = &format!("{TREES}\ntouch dst/gone/x.log src/y.log dst/y.log");
        let both = beside(setup, &[rules, &["src/", "dst"]].concat());
        // What is excluded keeps its directory, from which something was deleted just now.
        shell(&both.place, "touch -c -d 2000-01-01 {ours,theirs}/dst/gone");
        both.assert_same(0, 0);
    }
    for (most, left) in [("-1", 4), ("0", 4), ("1", 3), ("3", 1)] {
        let both = beside(TREES, &["--delete", "--max-delete", most, "src/", "dst"]);
        assert_eq!((both.ours.status.code(), both.theirs.status.code()), (Some(2), Some(25)), "{}", said(&both.ours));
        let there = ["gone/inner/file", "gone/inner", "gone", "obsolete"];
        let count = |side: &str| there.iter().filter(|path| both.place.path(side).join(path).exists()).count();
        assert_eq!((count("ours/dst"), count("theirs/dst")), (left, left), "{most}: {}", said(&both.ours));
        assert!(said(&both.ours).contains("--max-delete"), "{}", said(&both.ours));
    }
}

#[test]
fn what_is_replaced_or_deleted_is_kept_as_by_rsync() {
    for rules in [
        &["-b"][..],
        &["-b", "--suffix=.old"],
        &["-b", "--backup-dir=../kept"],
        &["--backup-dir", "../kept", "--delete", "--suffix", ".1"],
        &["-b", "--backup-dir=../kept", "--delete"],
    ] {
        let both = beside(TREES, &[rules, &["src/", "dst"]].concat());
        if !rules.iter().any(|rule| rule.contains("-dir")) {
            // rsync keeps no times of directories then, which get other ones by the backups in them.
            shell(&both.place, "find ours/dst theirs/dst -type d -exec touch -d 2000-01-01 {} +");
        }
        both.assert_same(0, 0);
        assert_eq!(both.place.path("ours/kept").exists(), both.place.path("theirs/kept").exists());
        if both.place.path("theirs/kept").exists() {
            // rsync gives directories of backups the time at which they are made.
            shell(&both.place, "find ours/kept theirs/kept -type d -exec touch -d 2000-01-01 {} +");
            assert_same(&both.place.path("theirs/kept"), &both.place.path("ours/kept"));
        }
    }
    // Deleted beside: backups of this run and of earlier ones stay, and keep their directories.
    let mut both = beside(TREES, &["-b", "--delete", "src/", "dst"]);
    let ours = both.place.path("ours/dst");
    for kept in ["gone/inner/file~", "obsolete~", "longer~"] {
        assert!(ours.join(kept).exists() && both.place.path("theirs/dst").join(kept).exists(), "{kept}");
    }
    both.again("", &["-b", "--delete", "src/", "dst"]);
    assert!(ours.join("obsolete~").exists() && !ours.join("obsolete~~").exists());
}

#[test]
fn a_backup_directory_within_the_destination_is_not_deleted() {
    let place = Place::new();
    shell(&place, &format!("mkdir ours; cd ours\n{TREES}"));
    let arguments = ["--delete", "--backup-dir", "kept", "src/", "dst"];
    for _ in 0..2 {
        let done = run_ours(&place, &arguments);
        assert_eq!(done.status.code(), Some(0), "{}", said(&done));
        assert_eq!(fs::read(place.path("ours/dst/kept/obsolete")).unwrap(), b"gone\n");
        assert_eq!(fs::read(place.path("ours/dst/kept/gone/inner/file")).unwrap(), b"gone\n");
    }
    let refused = run_ours(&place, &["--backup-dir", ".", "src/", "dst"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
}

#[test]
fn a_backup_is_no_more_readable_than_what_it_was() {
    let place = Place::new();
    shell(&place, "mkdir -m 700 dst; mkdir -m 710 dst/d; mkdir src; echo secret > dst/d/f; chown 5:6 dst/d/f");
    place.copy(&["--delete", "--backup-dir", "../kept/today", "src/", "dst"]);
    let mode = |path: &str| fs::metadata(place.path(path)).unwrap().mode() & 0o7777;
    assert_eq!([mode("kept"), mode("kept/today"), mode("kept/today/d")], [0o700, 0o700, 0o710]);
    assert_eq!(fs::metadata(place.path("kept/today/d/f")).unwrap().uid(), 5);
}

#[test]
fn equal_files_of_an_older_copy_become_hard_links() {
    let setup = "
        mkdir -p src/d old/d; echo same > src/same; echo other > src/other; echo mode > src/mode; echo new > src/new
        ln -s x src/link; mkfifo src/pipe; echo deep > src/d/deep; ln src/same src/twin
        touch -h -d '2020-02-02 02:02:02.5' src/* src/d/*
        cp -a src/{same,other,mode,link,pipe} old; cp -a src/d/deep old/d
        echo OTHER > old/other; touch -d '2019-01-01' old/other; chmod 600 old/mode";
    for arguments in [&["--link-dest=../old"][..], &["--link-dest", "../none", "--link-dest", "../old"]] {
        let both = beside(setup, &[arguments, &["src/", "dst"]].concat());
        both.assert_same(0, 0);
        let inode = |path: &str| fs::symlink_metadata(both.place.path(path)).unwrap().ino();
        for name in ["same", "twin", "d/deep", "link", "pipe"] {
            let old = if name == "twin" { "same" } else { name };
            assert_eq!(inode(&format!("ours/dst/{name}")), inode(&format!("ours/old/{old}")), "{name}");
        }
        for name in ["other", "mode", "new"] {
            assert_eq!(fs::metadata(both.place.path(&format!("ours/dst/{name}"))).unwrap().nlink(), 1, "{name}");
        }
        assert_eq!(fs::metadata(both.place.path("ours/old/mode")).unwrap().mode() & 0o777, 0o600);
    }
    for arguments in [&["-c"][..], &["-i"], &["-ii"], &["-ic"]] {
        let both = beside(setup, &[arguments, &["--link-dest=../old", "src/", "dst"]].concat());
        both.assert_same(0, 0);
        both.assert_items();
        // A dry run of rsync fails here: it looks for directories that it has not made.
        let place = Place::new();
        shell(&place, &format!("mkdir ours; cd ours\n{setup}"));
        let dry = run_ours(&place, &[arguments, &["-n", "--link-dest=../old", "src/", "dst"]].concat());
        assert_eq!(items(&dry), items(&both.ours), "{arguments:?}: {}", said(&dry));
        assert!(!place.path("ours/dst").exists());
    }
}

#[test]
fn owners_and_permissions_become_what_rsync_makes_of_them() {
    let setup = "
        mkdir -p src/d; echo x > src/f; echo y > src/d/g
        chown 1234:4321 src/f; chown 12:13 src/d/g; chmod 4755 src/f";
    for rules in [
        &["--chown=daemon:bin"][..],
        &["--chown=:7"],
        &["--chown=9"],
        &["--usermap=0-99:daemon,*:bin", "--groupmap=4321:5"],
        &["--usermap=:3,root:4"],
        &["--usermap=r*:3", "--groupmap=root:5,*:6"],
        &["--chmod=D2750,F640"],
        &["--chmod=go=,u+w", "--chmod=+X"],
        &["--chmod=a-s,Dg+s"],
        &["--chown=daemon", "--chmod=u-s,o-rwx", "-i"],
    ] {
        let both = beside(setup, &[rules, &["src/", "dst"]].concat());
        both.assert_same(0, 0);
        both.assert_items();
    }
    let place = Place::new();
    shell(&place, &format!("mkdir ours; cd ours; {setup}"));
    let refused = run_ours(&place, &["--chown=nobody-of-this-name", "src/", "dst"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("no such user") && !place.path("ours/dst/f").exists(), "{}", said(&refused));
}

#[test]
fn paths_are_kept_and_links_are_followed_as_by_rsync() {
    let setup = "
        mkdir -p a/b/c real/in other; echo x > a/b/c/f; echo y > a/b/g; echo z > real/in/h; ln -s real alias
        ln -s ../../other a/b/out; echo o > other/o; ln -s g a/b/tog; chmod 700 a; chmod 750 a/b
        touch -d '2020-02-02' a a/b a/b/c real other";
    for arguments in [
        &["-R", "a/b/c"][..],
        &["-R", "a/b/c/"],
        &["-R", "a/./b/c", "a/b/g"],
        &["-R", "./a/b/g"],
        &["-R", "alias/in/h"],
        &["-R", "alias/in", "a/b/c/f"],
        &["-R", "alias/"],
        &["-R", "."],
        &["-R", "a/b/c/f", "a/b"],
        &["-RL", "a/b"],
        &["-L", "a/"],
        &["-L", "alias"],
        &["-R", "--exclude", "/a/b/g", "a/b"],
        &["-Ri", "a/b/c", "real"],
        &["-RO", "a/b/c"],
    ] {
        let both = beside(setup, &[arguments, &["dst"]].concat());
        // The destination itself, which was made just now, is of no source.
        let directories = if arguments.contains(&"-RO") { "find ours/dst theirs/dst -type d" } else { "ls -d */dst" };
        shell(&both.place, &format!("{directories} | xargs touch -d 2000-01-01"));
        both.assert_same(0, 0);
        both.assert_items();
    }
    let place = Place::new();
    shell(&place, &format!("mkdir ours; cd ours; {setup}; mkdir d; cp a/b/g d"));
    let refused = run_ours(&place, &["-R", "../out", "dst"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    // Where ssh leads to this machine and the paths would be the same, nothing is copied into itself.
    let root = place.path("ours").display().to_string();
    let refused = run_ours(&place, &["-R", &format!("{root}/a"), "/"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert_eq!(run_ours(&place, &["-R", "d/../a/b/g", "renamed"]).status.code(), Some(0));
    assert!(place.path("ours/renamed/a/b/g").exists());
    let both = beside(&format!("{setup}; ln -s nowhere a/dangling; ln -s .. a/b/up"), &["-L", "a/", "dst"]);
    let text = said(&both.ours);
    assert_eq!(both.ours.status.code(), Some(2), "{text}");
    assert!(text.contains("dangling: could not be read") && text.contains("b/up: could not be read"), "{text}");
    assert_eq!(fs::read(both.place.path("ours/dst/b/tog")).unwrap(), b"y\n");
}
