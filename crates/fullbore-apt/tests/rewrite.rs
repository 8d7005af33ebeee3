//! Rewrites of kept indexes beside a reference, read by the usual programs and by apt itself.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fullbore_apt::frames::{FRAME_BYTES_LEAST, FRAME_BYTES_MOST, Layout, Level};
use fullbore_apt::rewrite::{Expected, Rewrite, RewriteError, Rewritten, rewrite};
use fullbore_debian::compression::Form;
use fullbore_debian::pdiff::Edits;
use fullbore_engine::digest::Sha256;
use fullbore_engine::stage::Ledger;
use fullbore_testkit::faults::{SmallDisk, can_mount};
use fullbore_testkit::random::Random;
use proptest::prelude::*;

const FORMS: [Form; 5] = [Form::Plain, Form::Gz, Form::Xz, Form::Zst, Form::Lz4];

/// An index as lines.
type Lines = Vec<String>;

fn lines(random: &mut Random, count: usize) -> Lines {
    (0..count).map(|number| line(random, number)).collect()
}

fn line(random: &mut Random, number: usize) -> String {
    format!("usr/share/doc/package-{}/{:x}.gz  section/{number}\n", random.below(3000), random.below(1 << 30))
}

/// Changes some places of an index; gives the ed script. The same number of lines comes or goes, a few.
fn change(random: &mut Random, index: &mut Lines, places: usize) -> String {
    let mut at: Vec<usize> = (0..places).map(|_| random.below(index.len() as u64 + 1) as usize).collect();
    at.sort_unstable();
    at.dedup_by(|b, a| *b < *a + 8);
    let mut script = String::new();
    for at in at.into_iter().rev() {
        let removed = (random.below(4) as usize).min(index.len() - at);
        let added: Lines = (0..random.below(5)).map(|number| line(random, number as usize)).collect();
        let range = if removed == 1 { format!("{}", at + 1) } else { format!("{},{}", at + 1, at + removed) };
        match (removed, added.is_empty()) {
            (0, true) => continue,
            (0, false) => write!(script, "{at}a\n{}.\n", added.concat()),
            (_, true) => writeln!(script, "{range}d"),
            (_, false) => write!(script, "{range}c\n{}.\n", added.concat()),
        }
        .expect("memory");
        index.splice(at..at + removed, added);
    }
    script
}

fn expected(content: &[u8]) -> Expected {
    Expected { size: content.len() as u64, sha256: Sha256::of(content) }
}

fn run(old: &Path, edits: &Edits, new: &Path, content: &[u8], threads: usize) -> Result<Rewritten, RewriteError> {
    rewrite(&Rewrite {
        old,
        old_form: None,
        edits,
        new,
        new_form: None,
        level: Level::Fast,
        expected: Some(expected(content)),
        ledger: None,
        threads,
    })
}

fn named(directory: &Path, name: &str, form: Form) -> PathBuf {
    directory.join(format!("{name}{}", form.extension()))
}

/// A file as the usual program of a form makes it.
fn foreign(directory: &Path, name: &str, form: Form, content: &[u8]) -> PathBuf {
    let (plain, path) = (directory.join("to-be-compressed"), named(directory, name, form));
    fs::write(&plain, content).expect("a directory for temporaries");
    let command: &[&str] = match form {
        Form::Gz => &["gzip", "-c"],
        Form::Xz => &["xz", "-c", "-1"],
        Form::Zst => &["zstd", "-q", "-c"],
        Form::Lz4 => &["lz4", "-q", "-c"],
        _ => &["cat"],
    };
    let status =
        Command::new(command[0]).args(&command[1..]).arg(&plain).stdout(File::create(&path).expect("a file")).status();
    assert!(status.expect("one of gzip, xz-utils, zstd, lz4 does not run: apt-get install it").success());
    path
}

/// What the form's own program and apt read.
fn read_by_others(path: &Path, form: Form) -> Vec<Vec<u8>> {
    let program: &[&str] = match form {
        Form::Gz => &["gzip", "-dc"],
        Form::Xz => &["xz", "-dc"],
        Form::Zst => &["zstd", "-q", "-dc"],
        Form::Lz4 => &["lz4", "-q", "-dc"],
        _ => &["cat"],
    };
    [program, &["/usr/lib/apt/apt-helper", "cat-file"]]
        .iter()
        .map(|command| {
            let output = Command::new(command[0]).args(&command[1..]).arg(path).stderr(Stdio::inherit()).output();
            let output = output.expect("one of gzip, xz-utils, zstd, lz4, apt does not run: apt-get install it");
            assert!(output.status.success(), "{command:?} {}", path.display());
            output.stdout
        })
        .collect()
}

fn frames(path: &Path) -> Vec<Vec<u8>> {
    let content = fs::read(path).expect("written");
    let layout = Layout::of(&File::open(path).expect("written"), Form::of(&path.to_string_lossy()));
    let layout = layout.expect("readable").expect("a file of ours");
    let mut at = layout.start as usize;
    let mut frame = |size: usize| {
        at += size;
        content[at - size..at].to_vec()
    };
    layout.frames.iter().map(|found| frame(found.size as usize)).collect()
}

#[test]
fn every_form_becomes_every_form_on_one_and_on_several_cores() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let random = &mut Random::new(1, "forms");
    let mut index = lines(random, 7_000);
    let old = index.concat();
    let edits = Edits::parse(change(random, &mut index, 9)).expect("a script");
    let new = index.concat();
    for from in FORMS.into_iter().chain([Form::Bz2]) {
        let source = match from {
            Form::Bz2 => {
                let plain = foreign(directory.path(), "old", Form::Plain, old.as_bytes());
                let output = Command::new("bzip2").arg("-kf").arg(plain).status();
                assert!(output.expect("bzip2 does not run: apt-get install bzip2").success());
                named(directory.path(), "old", from)
            }
            _ => foreign(directory.path(), "old", from, old.as_bytes()),
        };
        for to in FORMS {
            let threads: &[usize] = if from == to { &[1, 3] } else { &[2] };
            for &threads in threads {
                let (first, second) = (named(directory.path(), "kept", to), named(directory.path(), "new", to));
                run(&source, &Edits::default(), &first, old.as_bytes(), threads).expect("converts");
                let made = run(&first, &edits, &second, new.as_bytes(), threads).expect("patches");
                assert_eq!(made.plain_size, new.len() as u64);
                assert_eq!(made.file_size, fs::metadata(&second).expect("there").len());
                if from == to || from == Form::Bz2 {
                    for read in read_by_others(&second, to) {
                        assert!(read == new.as_bytes(), "{from} to {to}");
                    }
                }
                // Straight from the foreign file comes the same content.
                run(&source, &edits, &second, new.as_bytes(), threads).expect("converts and patches");
            }
        }
    }
}

#[test]
fn one_core_and_several_write_the_same_file() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let random = &mut Random::new(2, "cores");
    let mut index = lines(random, 15_000);
    let old = foreign(directory.path(), "old", Form::Plain, index.concat().as_bytes());
    let edits = Edits::parse(change(random, &mut index, 20)).expect("a script");
    for form in FORMS {
        let files: Vec<Vec<u8>> = [1, 2, 8]
            .map(|threads| {
                let new = named(directory.path(), "new", form);
                run(&old, &edits, &new, index.concat().as_bytes(), threads).expect("patches");
                fs::read(new).expect("written")
            })
            .into();
        assert!(files[0] == files[1] && files[1] == files[2], "{form}");
    }
}

#[test]
fn frames_that_no_edit_touches_stay_byte_for_byte() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let random = &mut Random::new(3, "frames");
    let index = lines(random, 60_000);
    let source = foreign(directory.path(), "source", Form::Plain, index.concat().as_bytes());
    for form in &FORMS[1..] {
        let (old, new) = (named(directory.path(), "old", *form), named(directory.path(), "new", *form));
        run(&source, &Edits::default(), &old, index.concat().as_bytes(), 2).expect("converts");
        // A line more near the beginning; then one in the middle, one at the end.
        for (at, touched) in [(10, 1), (30_000, 1), (index.len(), 1)] {
            let mut changed = index.clone();
            changed.insert(at, "one more\n".to_owned());
            let edits = Edits::parse(format!("{at}a\none more\n.\n")).expect("a script");
            let made = run(&old, &edits, &new, changed.concat().as_bytes(), 2).expect("patches");
            let (before, after) = (frames(&old), frames(&new));
            assert_eq!(made.frames_encoded, touched, "{form} {at}");
            assert_eq!(made.frames_copied + made.frames_encoded, after.len() as u64);
            let stayed = before.iter().filter(|frame| after.contains(frame)).count() as u64;
            assert_eq!(stayed, made.frames_copied, "{form} {at}");
            assert!(before.len() - stayed as usize <= 1, "{form} {at}");
        }
    }
}

/// Much goes at one place, or comes, or a little changes in some, the end among them.
fn step(random: &mut Random, index: &mut Lines, round: usize) -> String {
    let at = random.below(index.len() as u64 / 2) as usize;
    match round % 4 {
        0 => {
            let removed = (3_000 + random.below(4_000) as usize).min(index.len() - at);
            index.drain(at..at + removed);
            format!("{},{}d\n", at + 1, at + removed)
        }
        2 => {
            let text = lines(random, 5_000);
            let script = format!("{at}a\n{}.\n", text.concat());
            index.splice(at..at, text);
            script
        }
        _ => {
            let last = index.len();
            let script = change(random, index, 3);
            // The changes are written from the last to the first.
            if script.starts_with(&format!("{last}a")) || script.starts_with(&format!("{last}d")) {
                return script;
            }
            index.push("the end\n".to_owned());
            format!("{last}a\nthe end\n.\n{script}")
        }
    }
}

#[test]
fn after_many_updates_no_frame_is_tiny_or_huge() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    for form in &FORMS[1..] {
        let random = &mut Random::new(4, "updates");
        let mut index = lines(random, 25_000);
        let mut old = foreign(directory.path(), "index", *form, index.concat().as_bytes());
        for round in 0..8 {
            let edits = Edits::parse(step(random, &mut index, round)).expect("a script");
            let new = named(directory.path(), &format!("index-{}", round % 2), *form);
            run(&old, &edits, &new, index.concat().as_bytes(), 2).expect("patches");
            let layout = Layout::of(&File::open(&new).expect("written"), *form).expect("readable").expect("ours");
            let (_, all_but_last) = layout.frames.split_last().expect("some text");
            for frame in all_but_last.iter().filter_map(|frame| frame.plain) {
                assert!((FRAME_BYTES_LEAST..=FRAME_BYTES_MOST).contains(&(frame as usize)), "{form}: {frame}");
            }
            old = new;
        }
    }
}

#[test]
fn what_is_not_expected_leaves_the_old_file_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let random = &mut Random::new(5, "mismatch");
    let index = lines(random, 10_000);
    for form in FORMS {
        for threads in [1, 2] {
            let old = foreign(directory.path(), "old", form, index.concat().as_bytes());
            let before = fs::read(&old).expect("written");
            let edits = Edits::parse("5a\nmore\n.\n").expect("a script");
            // Another content, a longer one, a shorter one; and the name of the old file.
            let mut other = index.clone();
            other.insert(5, "less\n".to_owned());
            for content in [other.concat(), other.concat() + "x", other[..5_000].concat()] {
                let error = run(&old, &edits, &old, content.as_bytes(), threads).expect_err("not expected");
                let RewriteError::Mismatch { wrong, .. } = error else { panic!("{error}") };
                assert_eq!(wrong.old, Some(expected(index.concat().as_bytes())));
                assert_eq!(wrong.expected, expected(content.as_bytes()));
            }
            let beyond = Edits::parse("20000d\n").expect("a script");
            let error = run(&old, &beyond, &old, index.concat().as_bytes(), threads).expect_err("no such line");
            assert!(matches!(error, RewriteError::Splice { .. }), "{error}");
            assert_eq!(fs::read(&old).expect("still there"), before);
            fs::remove_file(&old).expect("there");
            let _ = fs::remove_file(directory.path().join("to-be-compressed"));
            assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 0, "{form}");
        }
    }
}

#[test]
fn a_bomb_is_read_no_further_than_it_must_be() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let content = "a line of text\n".repeat(20 << 20 >> 4);
    let bomb = foreign(directory.path(), "bomb", Form::Xz, content.repeat(4).as_bytes());
    let new = directory.path().join("new");
    let job = |edits, expected, threads| {
        let error = rewrite(&Rewrite {
            old: &bomb,
            old_form: None,
            edits,
            new: &new,
            new_form: None,
            level: Level::Fast,
            expected,
            ledger: None,
            threads,
        });
        error.expect_err("a bomb")
    };
    let (none, some) = (Edits::default(), Edits::parse("5a\nmore\n.\n").expect("a script"));
    for threads in [1, 2] {
        for edits in [&none, &some] {
            let error = job(edits, Some(expected(b"text\n")), threads);
            let RewriteError::Mismatch { wrong, .. } = &error else { panic!("{error}") };
            assert_eq!(wrong.old, None, "it need not be read for this");
            assert!(!error.to_string().contains("old content"), "{error}");
            // A few KB that hold 80 MB, of which nobody says how much they are.
            let error = job(edits, None, threads);
            assert!(matches!(error, RewriteError::TooLarge { limit_bytes, .. } if limit_bytes < 100 << 20), "{error}");
            assert!(!new.exists());
        }
    }
}

#[test]
fn paths_that_cannot_be_read_or_written_are_named() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let good = foreign(directory.path(), "good", Form::Plain, b"text\n");
    let no_edits = Edits::default();
    let kind = |old: &Path, new: &Path| run(old, &no_edits, new, b"text\n", 2).expect_err("cannot be").to_string();
    assert!(kind(&directory.path().join("none"), &good).contains("none"));
    assert!(kind(directory.path(), &good).contains("not a regular file"));
    assert!(kind(&good, &directory.path().join("no/such/file")).contains("no/such"));
    assert!(kind(&good, &directory.path().join("file.bz2")).contains("bz2"));
    // Without the first bytes of gzip it would be read as plain text, as APT does.
    let garbage = foreign(directory.path(), "garbage", Form::Plain, b"\x1f\x8bno gzip at all");
    fs::rename(&garbage, directory.path().join("garbage.gz")).expect("renamed");
    assert!(kind(&directory.path().join("garbage.gz"), &good).contains("garbage.gz"));
    assert_eq!(fs::read(&good).expect("untouched"), b"text\n");
}

#[test]
fn a_disk_that_is_full_leaves_nothing_visible() {
    assert!(can_mount(), "no small disk can be mounted: run as root (script/test does), or allow user namespaces");
    let random = &mut Random::new(6, "full");
    let index = lines(random, 40_000);
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let old = foreign(directory.path(), "old", Form::Plain, index.concat().as_bytes());
    let disk = SmallDisk::new(256 << 10, 0).expect("a small disk");
    for form in FORMS {
        for threads in [1, 2] {
            let new = named(disk.path(), "new", form);
            let error = run(&old, &Edits::default(), &new, index.concat().as_bytes(), threads).expect_err("full");
            assert!(matches!(&error, RewriteError::Write(error) if error.is_out_of_space()), "{error}");
            assert_eq!(fs::read_dir(disk.path()).expect("a directory").count(), 0, "{form}");
        }
    }
}

/// What the next test kills.
#[test]
fn this_process_rewrites_files_until_it_is_killed() {
    let Some(directory) = std::env::var_os("FULLBORE_TEST_KILLED") else { return };
    let directory = Path::new(&directory);
    for round in 0.. {
        for form in FORMS {
            let (old, new) = (named(directory, "old", form), named(directory, "new", form));
            let script = format!("1c\nround {round}\n.\n");
            let edits = Edits::parse(script).expect("a script");
            let job = Rewrite {
                old: &old,
                old_form: None,
                edits: &edits,
                new: &new,
                new_form: None,
                level: Level::Fast,
                expected: None,
                ledger: None,
                threads: 2,
            };
            rewrite(&job).expect("patches");
        }
    }
}

#[test]
fn who_is_killed_leaves_whole_files_and_a_hidden_one() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let random = &mut Random::new(7, "kill");
    let index = lines(random, 30_000);
    for form in FORMS {
        foreign(directory.path(), "old", form, index.concat().as_bytes());
    }
    for _ in 0..5 {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "this_process_rewrites_files_until_it_is_killed"])
            .env("FULLBORE_TEST_KILLED", directory.path())
            .stdout(Stdio::null());
        fullbore_testkit::faults::kill_at_random(&mut command, random, Duration::from_millis(400)).expect("runs");
        for form in FORMS {
            let new = named(directory.path(), "new", form);
            if new.exists() {
                let texts = read_by_others(&new, form);
                let rest = index[1..].concat();
                assert!(
                    texts.iter().all(|text| text.starts_with(b"round ") && text.ends_with(rest.as_bytes())),
                    "{form}"
                );
            }
        }
        let strange = fs::read_dir(directory.path()).expect("a directory").filter(|entry| {
            let name = entry.as_ref().expect("an entry").file_name().to_string_lossy().into_owned();
            !["old", "new", ".new", "to-be"].iter().any(|known| name.starts_with(known))
        });
        assert_eq!(strange.count(), 0);
    }
}

/// Tables that lie, but only where a frame is looked into: the file is read from its beginning then.
#[test]
fn a_table_that_lies_is_not_believed() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let random = &mut Random::new(8, "lies");
    let index = lines(random, 20_000);
    let content = index.concat();
    let source = foreign(directory.path(), "source", Form::Plain, content.as_bytes());
    for form in [Form::Gz, Form::Zst] {
        let old = named(directory.path(), "old", form);
        run(&source, &Edits::default(), &old, content.as_bytes(), 2).expect("converts");
        let mut file = fs::read(&old).expect("written");
        let at = match form {
            // The length of the text of the second frame, a byte more.
            Form::Gz => frames(&old)[0].len() + 20,
            _ => file.len() - 9 - 8 * (frames(&old).len() - 1) + 4,
        };
        file[at] = file[at].wrapping_add(1);
        fs::write(&old, file).expect("written");
        for threads in [1, 2] {
            let new = named(directory.path(), "new", form);
            let made =
                run(&old, &Edits::default(), &new, content.as_bytes(), threads).expect("read from the beginning");
            assert_eq!((made.frames_copied, made.plain_size), (0, content.len() as u64), "{form}");
        }
    }
}

#[test]
fn texts_that_are_no_lines_are_rewritten_too() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let noise: Vec<u8> =
        (0..900_000_u32).map(|i| (i.wrapping_mul(2654435761) >> 11) as u8).filter(|byte| *byte != b'\n').collect();
    let texts: [&[u8]; 5] = [b"", b"\n", b"no newline", b"a\0b\nc\0", &noise];
    for form in FORMS {
        for (number, text) in texts.iter().enumerate() {
            let old = foreign(directory.path(), "old", form, text);
            let mut content = b"first\n".to_vec();
            content.extend_from_slice(text);
            let edits = Edits::parse("0a\nfirst\n.\n").expect("a script");
            for threads in [1, 2] {
                let (kept, new) = (named(directory.path(), "kept", form), named(directory.path(), "new", form));
                run(&old, &Edits::default(), &kept, text, threads).expect("converts");
                for from in [&old, &kept] {
                    run(from, &edits, &new, &content, threads).expect("patches");
                    assert!(read_by_others(&new, form).iter().all(|read| *read == content), "{form} {number}");
                }
            }
        }
    }
}

#[test]
fn the_clocks_of_a_pass_count_what_passes() {
    let directory = tempfile::tempdir().expect("a directory for temporaries");
    let random = &mut Random::new(9, "clocks");
    let content = lines(random, 3_000).concat();
    let old = foreign(directory.path(), "old", Form::Gz, content.as_bytes());
    let (ledger, no_edits) = (Ledger::new(), Edits::default());
    let new = named(directory.path(), "new", Form::Zst);
    let job = Rewrite {
        old: &old,
        old_form: None,
        edits: &no_edits,
        new: &new,
        new_form: None,
        level: Level::Best,
        expected: None,
        ledger: Some(&ledger),
        threads: 2,
    };
    let made = rewrite(&job).expect("converts");
    let reading = ledger.reading();
    let bytes = |name: &str| reading.stages.iter().find(|stage| stage.name == name).map_or(0, |stage| stage.bytes);
    assert_eq!((bytes("hash"), bytes("compress")), (content.len() as u64, content.len() as u64));
    assert_eq!(bytes("disk write"), made.file_size);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Any content and any edits, several times: what comes out is what the reference says, for all.
    #[test]
    fn results_equal_those_of_the_reference(
        seed: u64, form in prop::sample::select(&FORMS[..]), count in 0..30_000_usize, places in 0..40_usize,
        threads in 1..4_usize,
    ) {
        let directory = tempfile::tempdir().expect("a directory for temporaries");
        let random = &mut Random::new(seed, "reference");
        let mut index = lines(random, count);
        let mut old = foreign(directory.path(), "old", form, index.concat().as_bytes());
        for step in 0..3 {
            let edits = Edits::parse(change(random, &mut index, places)).expect("a script");
            let new = named(directory.path(), &format!("step-{step}"), form);
            let content = index.concat();
            let made = run(&old, &edits, &new, content.as_bytes(), threads).expect("patches");
            prop_assert_eq!(made.sha256, Sha256::of(content.as_bytes()));
            for read in read_by_others(&new, form) {
                prop_assert!(read == content.as_bytes());
            }
            old = new;
        }
    }
}
