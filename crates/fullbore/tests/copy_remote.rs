//! `fullbore copy` between two machines: namespaces with a cable between them, and a real sshd.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod harness;
#[path = "copy/lab.rs"]
mod lab;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Place, SmallDisk, assert_same, said};
use lab::Lab;

/// Time that a busy machine may take for what takes a moment.
const LONG: Duration = Duration::from_secs(120);

#[test]
fn a_tree_goes_there_and_comes_back_over_encrypted_connections() {
    let (place, lab) = (Place::new(), Lab::new());
    let source = place.tree("src");
    let (there, back) = (place.path("there"), place.path("back"));
    let text = lab.copy(&[&format!("{}/", source.display()), &lab.there(&there)]);
    assert!(text.contains("connections, AES-128-GCM") || text.contains("connections, ChaCha20-Poly1305"), "{text}");
    assert_same(&source, &there);
    let text = lab.copy(&["--congestion", "nosuch", &lab.there(&there.join("")), &back.display().to_string()]);
    assert!(text.contains(", not nosuch (No such file or directory"), "{text}");
    assert_same(&source, &back);
    let text = lab.copy(&[&lab.there(&there.join("")), &back.display().to_string()]);
    assert!(text.starts_with("nothing to copy"), "{text}");
    let until = Instant::now() + LONG;
    while !lab.is_quiet() {
        assert!(Instant::now() < until, "something still listens");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn where_one_direction_is_closed_the_other_one_is_taken() {
    let (place, lab) = (Place::new(), Lab::new());
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/file"), vec![1; 3_000_000]).unwrap();
    lab.firewall(false, "DROP");
    let (source, target) = (format!("{}/", place.path("src").display()), place.path("dst"));
    let text = lab.copy(&[&source, &lab.there(&target)]);
    assert!(text.contains("connections,") && !text.contains("no direct connection"), "{text}");
    assert_same(&place.path("src"), &target);
}

#[test]
fn the_far_end_dials_more_where_only_it_can_dial() {
    let (place, lab) = (Place::new(), Lab::new());
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/file"), vec![1; 8 << 20]).unwrap();
    lab.firewall(false, "DROP");
    let (source, target) = (format!("{}/", place.path("src").display()), place.path("dst"));
    // Too slow to end by itself.
    let mut command = lab.command(&["--bwlimit", "100K", &source, &lab.there(&target)]);
    let mut copy = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One for control, as many as there are cores for content at first; then it is tried whether more help.
    let first = std::thread::available_parallelism().unwrap().get().clamp(2, 4);
    let until = Instant::now() + LONG;
    while lab.connections() < 1 + first + first / 2 {
        assert!(copy.try_wait().unwrap().is_none() && Instant::now() < until, "no more connections come");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = copy.id().to_string();
    let set = Command::new(env!("CARGO_BIN_EXE_fullbore")).args(["copy", "--set", "bwlimit=0", "--pid", &pid]).output();
    assert_eq!(set.unwrap().status.code(), Some(0));
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(!said(&output).contains(&format!("{first} connections,")), "{}", said(&output));
    assert_same(&place.path("src"), &target);
}

#[test]
fn behind_firewalls_content_goes_by_ssh_and_the_reason_is_told() {
    let (place, lab) = (Place::new(), Lab::new());
    let source = place.tree("src");
    lab.firewall(false, "REJECT");
    lab.firewall(true, "DROP");
    let (there, back) = (place.path("there"), place.path("back"));
    let text = lab.copy(&["-v", &format!("{}/", source.display()), &lab.there(&there)]);
    assert!(text.contains("no direct connection (10.99.0.2:") && text.contains("Connection refused"), "{text}");
    assert!(text.contains("content went by ssh, "), "{text}");
    assert!(text.contains(" spent looking for a direct connection; --ssh-only avoids that."), "{text}");
    assert_same(&source, &there);
    // In this order: what was tried, why it failed, and what was done then.
    let mut lines = text.lines().filter(|line| line.contains(" INFO fullbore_copy::"));
    let version = format!("version={}", env!("CARGO_PKG_VERSION"));
    for words in [
        &["starting the far end", "host=root@10.99.0.2", "program=ssh"][..],
        &["the far end answers", &version],
        &["dialling", "address=10.99.0.2:"],
        &["cannot connect", "address=10.99.0.2:", "Connection refused"],
        &["cannot connect by TCP in either direction", "Connection refused", "did not get through to TCP port"],
        &["content goes by ssh", "searched_ms="],
    ] {
        assert!(lines.any(|line| words.iter().all(|word| line.contains(word))), "{words:?} in {text}");
    }
    lab.copy(&["--ssh-only", &lab.there(&there.join("")), &back.display().to_string()]);
    assert_same(&source, &back);
}

#[test]
fn what_is_small_is_there_before_a_firewall_is_found_out() {
    let (place, lab) = (Place::new(), Lab::new());
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/file"), "x").unwrap();
    lab.firewall(false, "DROP");
    lab.firewall(true, "DROP");
    let (there, back) = (place.path("there"), place.path("back"));
    for (from, to, at) in [
        (format!("{}/", place.path("src").display()), lab.there(&there), &there),
        (lab.there(&there.join("")), back.display().to_string(), &back),
    ] {
        let text = lab.copy(&[&from, &to]);
        assert!(!text.contains("no direct connection"), "{text}");
        assert_same(&place.path("src"), at);
    }
}

#[test]
fn a_cut_connection_is_dialled_again_and_the_copy_goes_on() {
    let (place, lab) = (Place::new(), Lab::new());
    fs::create_dir(place.path("src")).unwrap();
    for number in 0..4 {
        fs::write(place.path(&format!("src/{number}")), vec![number; 8 << 20]).unwrap();
    }
    let (source, target) = (format!("{}/", place.path("src").display()), place.path("dst"));
    // Slow enough to be in the middle when the connections are cut.
    let mut command = lab.command(&["--bwlimit", "8M", &source, &lab.there(&target)]);
    let copy = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + LONG;
    while !fs::read_dir(&target).is_ok_and(|mut names| names.any(|name| name.unwrap().file_name() != ".fullbore-copy"))
    {
        assert!(Instant::now() < until, "the copy does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    lab.cut();
    let output = copy.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("dialling again"), "{text}");
    assert_same(&place.path("src"), &target);
}

#[test]
fn files_named_before_a_cut_are_read_back_before_sources_go() {
    let (place, lab) = (Place::new(), Lab::new());
    for directory in ["src", "whole"] {
        fs::create_dir(place.path(directory)).unwrap();
    }
    for number in 0..4 {
        fs::write(place.path(&format!("src/{number}")), vec![number; 8 << 20]).unwrap();
    }
    place.copy(&["src/", "whole"]);
    let (source, target) = (format!("{}/", place.path("src").display()), place.path("dst"));
    let verifying = ["--verify", "--remove-source-files", "--group-time", "100", "--bwlimit", "8M"];
    let mut command = lab.command(&verifying);
    let command = command.args([&source, &lab.there(&target)]);
    let copy = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + LONG;
    while !target.join("0").exists() {
        assert!(Instant::now() < until, "no file gets its name");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The disk loses what it was given; time and length are as they were.
    let file = fs::File::options().write(true).open(target.join("0")).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"lost", 5 << 20).unwrap();
    file.set_modified(modified).unwrap();
    lab.cut();
    let output = copy.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("dialling again") && text.contains("Read back from the device: 33"), "{text}");
    assert_same(&place.path("whole"), &target);
    assert_eq!(fs::read_dir(place.path("src")).unwrap().count(), 0);
}

#[test]
fn what_the_far_end_refuses_is_told_here() {
    let (place, lab) = (Place::new(), Lab::new());
    let output = lab.command(&[&lab.there(&place.path("nothing")), "."]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    // Said to be there: a path of the same name may be here as well.
    let place_there = lab.there(&place.path("nothing")).replace(':', ": ");
    assert!(said(&output).contains(&format!("error: {place_there}: No such file")), "{}", said(&output));
    fs::write(place.path("file"), "x").unwrap();
    let file = place.path("file").display().to_string();
    let output =
        lab.command(&["--remote-path", "no-such-program", &file, &lab.there(&place.path("x"))]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("not installed there") && said(&output).contains("hint: ssh"), "{}", said(&output));
}

#[test]
fn a_source_within_the_destination_is_refused_over_ssh() {
    let (place, lab) = (Place::new(), Lab::new());
    for path in ["dst/in/deep/one", "dst/old"] {
        fs::create_dir_all(place.path(path).parent().unwrap()).unwrap();
        fs::write(place.path(path), "x").unwrap();
    }
    let both = |path: &str| [format!("{}{path}", place.path("dst").display()), lab.there(&place.path("dst")) + path];
    let ([here, there], [inner, inner_there]) = (both(""), both("/in/deep/"));
    for (source, target) in [(&inner, &there), (&inner_there, &here)] {
        let output = lab.command(&["--delete", source, target]).output().unwrap();
        let text = said(&output);
        assert!(text.contains("in/deep/ is within DST, and --delete would delete it"), "{text}");
        assert_eq!(output.status.code(), Some(1), "{text}");
    }
    for (source, target) in [(&here, &lab.there(&place.path("."))), (&(there.clone() + "/"), &here)] {
        let output = lab.command(&[source, target]).output().unwrap();
        assert!(said(&output).contains("SRC and DST are the same"), "{}", said(&output));
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    }
    assert!(place.path("dst/old").exists() && place.path("dst/in/deep/one").exists());
    lab.copy(&["--delete", "--exclude", "/in", &inner, &there]);
    assert!(
        place.path("dst/one").exists() && place.path("dst/in/deep/one").exists() && !place.path("dst/old").exists()
    );
}

#[test]
fn a_destination_within_the_source_is_refused_over_ssh() {
    let place = Place::new();
    fs::create_dir_all(place.path("src/old")).unwrap();
    fs::write(place.path("src/file"), "x").unwrap();
    // Before there is sshd: what is mounted later it may not see.
    let _disk = SmallDisk::new(place.path("src/disk"), "1m");
    let lab = Lab::new();
    let both = |path: &str| [place.path(path).display().to_string(), lab.there(&place.path(path))];
    let names = |path: &str| fs::read_dir(place.path(path)).unwrap().count();
    for (source, target, path) in
        [("src/", "src/old", "/old"), ("src", "src/new/deep", "/src/new/deep"), ("src/", "src/disk/new", "/disk/new")]
    {
        let ([here, there], [target, target_there]) = (both(source), both(target));
        for (source, target) in [(&here, &target_there), (&there, &target)] {
            for more in [&[][..], &["--dry-run"]] {
                let output = lab.command(&[more, &[source, target]].concat()).output().unwrap();
                let (text, hint) =
                    (said(&output), format!("DST is within SRC and would go into itself: `--exclude '{path}'`"));
                assert!(output.status.code() == Some(1) && text.contains(&hint), "{source} {target} {more:?}: {text}");
                assert_eq!(["src", "src/old", "src/disk"].map(names), [3, 0, 0], "{source} {target} {more:?}");
            }
        }
    }
    let ([here, there], list) = (both("src/"), place.path("list"));
    fs::write(&list, "file\n").unwrap();
    for (name, source, far, more) in [
        ("excluded", &here, true, &["--exclude=/excluded", "--exclude=/disk"][..]),
        ("pulled", &there, false, &["--exclude=pulled", "--exclude=/disk"]),
        ("listed", &here, true, &["--files-from", list.to_str().unwrap()]),
        ("disk/other", &there, false, &["-x"]),
    ] {
        let [target, target_there] = both(&format!("src/{name}"));
        lab.copy(&[more, &[source, if far { &target_there } else { &target }]].concat());
        assert_eq!(fs::read(place.path(&format!("src/{name}/file"))).unwrap(), b"x", "{name}");
        assert!(!place.path(&format!("src/{name}/{name}")).exists(), "{name}");
    }
}

#[test]
fn a_program_that_is_sent_along_leaves_nothing_behind() {
    let (place, lab) = (Place::new(), Lab::new());
    let source = place.tree("src");
    let target = place.path("dst");
    let program = format!("--send-program={}", env!("CARGO_BIN_EXE_fullbore"));
    let sent = [&program, "--remote-path", "fullbore", &format!("{}/", source.display()), &lab.there(&target)];
    lab.copy(&sent);
    assert_same(&source, &target);
    let left: Vec<_> = fs::read_dir("/tmp").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("fullbore-sent.")), "{left:?}");
    // Not a program of that machine's kind, nor of any.
    fs::write(place.path("text"), "no program").unwrap();
    let program = format!("--send-program={}", place.path("text").display());
    let output = lab.command(&[&program, &format!("{}/", source.display()), &lab.there(&target)]).output().unwrap();
    let text = said(&output);
    assert!(output.status.code() == Some(3) && text.contains("the sent file is not a program"), "{text}");
}

#[test]
fn a_machine_of_another_processor_gets_no_program_of_ours() {
    let place = Place::new();
    let source = place.tree("src");
    fs::create_dir(place.path("bin")).unwrap();
    fullbore_testkit::process::write_program(
        place.path("bin/uname"),
        "#!/bin/sh\ncase $1 in -s) echo Linux;; *) echo aarch64;; esac\n",
    );
    let shell = format!("#!/bin/sh\nshift\nPATH={}:$PATH exec sh -c \"$*\"\n", place.path("bin").display());
    fullbore_testkit::process::write_program(place.path("shell"), &shell);
    // A program that stands alone, with one for the other processor beside it.
    let ours = place.path("bin/fullbore");
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &ours);
    let copy = |send: &str| {
        let mut command = Command::new(&ours);
        command.args(["copy", send, "--ssh-only", "-e", place.path("shell").to_str().unwrap()]);
        let output = command.arg(&source).arg(format!("host:{}", place.path("dst").display())).output().unwrap();
        (output.status.code(), said(&output))
    };
    let (code, text) = copy(&format!("--send-program={}", ours.display()));
    let reason = format!("host: its processor is aarch64, and {} is for x86_64", ours.display());
    if cfg!(target_arch = "x86_64") {
        assert!(code == Some(3) && text.contains(&reason), "{text}");
    }
    // A test's own program needs libraries, so without one for another processor there is nothing to send.
    let (code, text) = copy("--send-program");
    assert!(code == Some(1) && text.contains("there is no static one"), "{text}");
    let mut elf = fs::read(&ours).unwrap()[..64].to_vec();
    // Of the processor `s390x`, without segments.
    (elf[18], elf[19], elf[56], elf[57]) = (22, 0, 0, 0);
    fs::write(place.path("bin/fullbore-s390x"), elf).unwrap();
    let (code, text) = copy("--send-program");
    let reason = "host: its processor is aarch64, and there is no fullbore for it here";
    assert!(code == Some(3) && text.contains(reason) && text.contains("put a static fullbore-aarch64 into"), "{text}");
    assert!(!place.path("dst").exists());
}

#[test]
fn only_changed_blocks_are_sent_and_text_is_compressed_on_request() {
    let (place, lab) = (Place::new(), Lab::new());
    fs::create_dir(place.path("src")).unwrap();
    let text = b"one line of many that are the same\n".repeat(400_000);
    fs::write(place.path("src/big"), &text).unwrap();
    let (source, target) = (format!("{}/", place.path("src").display()), place.path("dst"));
    lab.copy(&["-z", &source, &lab.there(&target)]);
    assert_same(&place.path("src"), &target);
    let mut changed = text;
    changed[1_000_000] ^= 1;
    fs::write(place.path("src/big"), &changed).unwrap();
    // Slow enough for the comparing to be ahead of the reading.
    let said = lab.copy(&["--no-compress", "--bwlimit", "20M", &source, &lab.there(&target)]);
    assert!(said.contains("taken from the old files"), "{said}");
    assert_same(&place.path("src"), &target);
    let said = lab.copy(&["--checksum", "--verify", &source, &lab.there(&target)]);
    assert!(said.starts_with("nothing to copy"), "{said}");
}

#[test]
fn pulled_files_are_removed_at_the_source_when_they_are_here() {
    let (place, lab) = (Place::new(), Lab::new());
    let (source, whole, target) = (place.tree("src"), place.path("whole"), place.path("dst"));
    place.copy(&["src/", "whole"]);
    let said =
        lab.copy(&["--remove-source-files", "--verify", &lab.there(&source.join("")), &target.display().to_string()]);
    assert!(said.contains("Read back from the device"), "{said}");
    assert_same(&whole, &target);
    let left = Command::new("find").arg(&source).args(["!", "-type", "d"]).output().unwrap();
    assert_eq!(harness::said(&left), "");
}

#[test]
fn a_copy_by_quic_is_refused_with_a_hint() {
    for command in ["copy", "probe"] {
        let program = env!("CARGO_BIN_EXE_fullbore");
        let output =
            Command::new(program).args([command, "--quic", "/nowhere/source", "host:target"]).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("--quic: ") && text.contains("hint: leave the flag out"), "{text}");
    }
}
