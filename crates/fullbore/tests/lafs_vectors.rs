//! `put --dry-run`, which needs no server: against the test vectors that the Tahoe-LAFS project publishes, and its refusals;
//! and what `get` does without one.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fullbore_lafs::base32;
use serde_json::Value;

/// Prints the immutable ones as lines of JSON.
const READ: &str = "
import json, sys, yaml
for case in yaml.load(open(sys.argv[1]), getattr(yaml, 'CSafeLoader', yaml.SafeLoader))['vector']:
    if case['format']['kind'] == 'chk':
        print(json.dumps({**case['zfec'], **case['sample'], 'convergence': case['convergence'], 'cap': case['expected']}))
";

fn venv() -> PathBuf {
    let venv = match std::env::var_os("FULLBORE_TEST_TAHOE_VENV") {
        Some(venv) => PathBuf::from(venv),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tahoe-venv"),
    };
    assert!(
        venv.join("test_vectors.yaml").exists(),
        "test vectors are needed at {}: `script/tahoe-venv` fetches them, FULLBORE_TEST_TAHOE_VENV names another place",
        venv.display()
    );
    venv
}

/// Compares our caps of the published files of up to `longest` bytes; returns how many there are.
fn compare_caps(longest: usize) -> usize {
    let venv = venv();
    let read = Command::new(venv.join("bin/python")).args(["-c", READ]).arg(venv.join("test_vectors.yaml")).output();
    let read = read.expect("Python of the venv starts");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let directory = tempfile::tempdir().unwrap();
    // One run for each secret and encoding: caps come in the order of the files.
    let mut runs: BTreeMap<Vec<String>, Vec<(PathBuf, String)>> = BTreeMap::new();
    let mut count = 0;
    for line in String::from_utf8(read.stdout).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let bytes = |key: &str| STANDARD.decode(case[key].as_str().unwrap()).unwrap();
        let number = |key: &str| case[key].as_u64().unwrap();
        let length = number("length") as usize;
        if length > longest {
            continue;
        }
        let file = directory.path().join(format!("{}-{length}", base32::encode(&bytes("seed"))));
        if !file.exists() {
            let content: Vec<u8> = bytes("seed").into_iter().cycle().take(length).collect();
            std::fs::write(&file, content).unwrap();
        }
        let how = vec![
            "--convergence".to_owned(),
            base32::encode(&bytes("convergence")),
            "--encoding".to_owned(),
            format!("{},1,{}", number("required"), number("total")),
            "--segment-size".to_owned(),
            number("segmentSize").to_string(),
        ];
        runs.entry(how).or_default().push((file, case["cap"].as_str().unwrap().to_owned()));
        count += 1;
    }
    for (how, files) in runs {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command.args(["put", "--dry-run"]).args(&how).args(files.iter().map(|(file, _)| file));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let caps = String::from_utf8(output.stdout).unwrap();
        let expected: Vec<&str> = files.iter().map(|(_, cap)| cap.as_str()).collect();
        assert_eq!(caps.lines().collect::<Vec<_>>(), expected, "{how:?}");
    }
    count
}

/// Files of one segment, of two, and of 17, in up to 256 shares.
#[test]
fn caps_are_those_of_published_vectors() {
    assert_eq!(compare_caps(2_097_153), 84);
}

#[test]
#[ignore = "a minute; script/test-long runs it"]
fn caps_are_those_of_all_published_vectors() {
    assert_eq!(compare_caps(usize::MAX), 120);
}

#[test]
fn a_name_that_is_no_utf8_leaves_the_caps_of_directories_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let sub = directory.path().join("sub");
    std::fs::create_dir(&sub).unwrap();
    std::fs::write(sub.join("good"), "a").unwrap();
    let secret = base32::encode(&[7; 16]);
    let put = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command.args(["put", "--dry-run", "--convergence", &secret]).arg(directory.path()).output().unwrap()
    };
    let whole = put();
    assert_eq!(whole.status.code(), Some(0));
    let modified = sub.metadata().unwrap().modified().unwrap();
    // Composed and decomposed, these are one name in a grid; the first of them counts.
    for name in [&b"x\xff"[..], b"\xff/", "\u{e4}".as_bytes(), "a\u{308}".as_bytes()] {
        let path = sub.join(OsStr::from_bytes(name));
        if name.ends_with(b"/") {
            std::fs::create_dir(path).unwrap();
        } else {
            std::fs::write(path, "a").unwrap();
        }
    }
    let some = put();
    let told = String::from_utf8(some.stderr).unwrap();
    assert_eq!(some.status.code(), Some(2), "{told}");
    assert_eq!(told.matches("is not UTF-8, and names in a grid are").count(), 2, "one line for each: {told}");
    assert_eq!(told.matches("after Unicode normalisation").count(), 1, "{told}");
    assert!(!told.contains("no cap"), "{told}");
    std::fs::remove_file(sub.join("\u{e4}")).unwrap();
    std::fs::remove_file(sub.join("a\u{308}")).unwrap();
    // The directory above stores when this one was changed.
    std::fs::File::open(&sub).unwrap().set_modified(modified).unwrap();
    assert_eq!(put().stdout, whole.stdout, "what is left has the cap that it would have by itself");
}

#[test]
fn a_reader_that_is_gone_is_a_quiet_end_of_get() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut get = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    let ran = get.args(["get", "URI:LIT:krugkidfnzsc4"]).stdout(writer).output().unwrap();
    assert_eq!((ran.status.code(), String::from_utf8_lossy(&ran.stderr).as_ref()), (Some(0), ""));
}
