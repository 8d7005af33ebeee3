//! Patches beside the programs that have applied them for decades: GNU ed, `patch --ed`, apt's
//! rred and reprepro's rredtool, on the same random files.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fullbore_debian::pdiff::{Edits, Piece, Splice, SpliceError, generate};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Each case starts about ten programs.
const CASES: u32 = 40;
const RRED: &str = "/usr/lib/apt/methods/rred";

fn apply(edits: &Edits, old: &[u8]) -> Result<Vec<u8>, SpliceError> {
    let mut new = Vec::new();
    let mut splice = Splice::new(edits);
    splice.feed(old, &mut |piece| match piece {
        Piece::Old(range) => new.extend_from_slice(&old[range]),
        Piece::New(text) => new.extend_from_slice(text),
    });
    splice.finish(&mut |piece| match piece {
        Piece::Old(range) => new.extend_from_slice(&old[range]),
        Piece::New(text) => new.extend_from_slice(text),
    })?;
    Ok(new)
}

fn script(edits: &Edits) -> Vec<u8> {
    let mut script = Vec::new();
    edits.write_ed(&mut script).expect("no lone dots here");
    script
}

fn need(program: &str, package: &str) {
    let found = ["/usr/bin", "/bin", "/usr/lib/apt/methods"].iter().any(|at| Path::new(at).join(program).exists());
    assert!(found, "{program} is missing: apt-get install {package}");
}

/// Runs a program with this input; its output, with the input's writing error ignored, for a
/// program may refuse before it has read all.
fn run(command: &mut Command, input: &[u8]) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut stdin = child.stdin.take().expect("piped");
    // Files of these tests are smaller than a pipe: no thread is needed.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("ends")
}

/// The files of one case.
struct Case<'d> {
    directory: &'d Path,
}

impl Case<'_> {
    fn file(&self, name: &str, content: &[u8]) -> std::path::PathBuf {
        let path = self.directory.join(name);
        fs::write(&path, content).expect("scratch");
        path
    }

    fn ed(&self, old: &[u8], script: &[u8]) -> Vec<u8> {
        let file = self.file("ed", old);
        let commands = [script, b"w\nq\n"].concat();
        let output = run(Command::new("ed").arg("-s").arg(&file), &commands);
        assert!(output.status.success(), "{output:?}");
        fs::read(file).expect("written")
    }

    fn patch(&self, old: &[u8], script: &[u8]) -> Vec<u8> {
        let file = self.file("patched", old);
        let output = run(Command::new("patch").args(["--silent", "--ed"]).arg(&file), script);
        assert!(output.status.success(), "{output:?}");
        fs::read(file).expect("written")
    }

    fn patches(&self, scripts: &[Vec<u8>]) -> Vec<std::path::PathBuf> {
        let numbered = scripts.iter().enumerate();
        numbered.map(|(number, script)| self.file(&format!("patch{number}"), script)).collect()
    }

    fn rred(&self, old: &[u8], scripts: &[Vec<u8>]) -> Vec<u8> {
        let output = run(Command::new(RRED).arg("-f").args(self.patches(scripts)), old);
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    fn rred_merge(&self, scripts: &[Vec<u8>]) -> Vec<u8> {
        let output = run(Command::new(RRED).args(self.patches(scripts)), b"");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    fn rredtool_merge(&self, scripts: &[Vec<u8>]) -> Vec<u8> {
        let output = run(Command::new("rredtool").arg("--merge").args(self.patches(scripts)), b"");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    fn diff(&self, old: &[u8], new: &[u8]) -> Vec<u8> {
        let (old, new) = (self.file("old", old), self.file("new", new));
        let output = run(Command::new("diff").args(["--text", "--ed"]).arg(old).arg(new), b"");
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        output.stdout
    }
}

fn cases<S: Strategy>(strategy: S, test: impl Fn(&Case<'_>, S::Value)) {
    for (program, package) in [("ed", "ed"), ("patch", "patch"), ("diff", "diffutils"), ("rred", "apt")] {
        need(program, package);
    }
    let directory = tempfile::tempdir().expect("scratch");
    let case = Case { directory: directory.path() };
    // The same cases at each run: what differs is a finding, not a chance.
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&strategy, |value| {
        test(&case, value);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Whole lines of a small alphabet.
fn file(lines: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![6 => "[a-e]{1,2}", 1 => Just(String::new()), 1 => Just("..".to_owned())];
    prop::collection::vec(line, lines)
        .prop_map(|lines| lines.into_iter().flat_map(|line| line.into_bytes().into_iter().chain([b'\n'])).collect())
}

/// A legal script against a file of so many lines: commands from the end to the beginning, also
/// several in one place, which no diff would write.
fn legal_script(lines: usize) -> impl Strategy<Value = Vec<u8>> {
    let command = (0..4_usize, 0..4_usize, 0..3_usize, file(1..3));
    prop::collection::vec(command, 0..12).prop_map(move |commands| {
        let mut script = Vec::new();
        let mut end = lines;
        for (gap, length, kind, text) in commands {
            let last = end.saturating_sub(gap);
            let first = last.saturating_sub(length) + 1;
            let range = if first >= last { format!("{last}") } else { format!("{first},{last}") };
            match kind {
                0 => script.extend(format!("{last}a\n").bytes()),
                _ if last == 0 => break,
                1 => script.extend(format!("{range}c\n").bytes()),
                _ => script.extend(format!("{range}d\n").bytes()),
            }
            if kind < 2 {
                script.extend_from_slice(&text);
                script.extend_from_slice(b".\n");
            }
            end = if kind == 0 { last } else { first.min(last) - 1 };
        }
        script
    })
}

#[test]
fn our_scripts_are_understood_by_all_and_theirs_by_us() {
    cases((file(0..60), file(0..60)), |case, (old, new)| {
        let ours = script(&generate(&old, &new).expect("can be expressed"));
        assert_eq!(case.ed(&old, &ours), new, "ed");
        assert_eq!(case.rred(&old, std::slice::from_ref(&ours)), new, "rred");
        // patch takes an empty file for one to be removed, and an empty script for garbage.
        if !old.is_empty() && !new.is_empty() && !ours.is_empty() {
            assert_eq!(case.patch(&old, &ours), new, "patch");
        }
        let theirs = Edits::parse(case.diff(&old, &new)).expect("a script of diff");
        assert_eq!(apply(&theirs, &old), Ok(new), "diff");
    });
}

#[test]
fn odd_but_legal_scripts_do_the_same_everywhere() {
    let strategy = file(1..30).prop_flat_map(|old| {
        let lines = old.iter().filter(|byte| **byte == b'\n').count();
        (Just(old), legal_script(lines))
    });
    cases(strategy, |case, (old, script)| {
        let edits = Edits::parse(script.clone()).unwrap_or_else(|error| panic!("{error}: {script:?}"));
        let new = apply(&edits, &old).expect("fits");
        assert_eq!(case.ed(&old, &script), new, "ed");
        if !script.is_empty() {
            assert_eq!(case.rred(&old, &[script]), new, "rred");
        }
    });
}

/// What may happen to a script on its way.
#[derive(Debug, Clone)]
enum Damage {
    Lost(usize),
    Twice(usize),
    Swapped(usize, usize),
    Byte(usize, u8),
    Cut(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = || 0..1000_usize;
    let byte = prop::sample::select(b"0123456789,acds.\n".to_vec());
    prop_oneof![
        place().prop_map(Damage::Lost),
        place().prop_map(Damage::Twice),
        (place(), place()).prop_map(|(a, b)| Damage::Swapped(a, b)),
        (place(), byte).prop_map(|(place, byte)| Damage::Byte(place, byte)),
        place().prop_map(Damage::Cut),
    ]
}

fn damaged(script: &[u8], damage: &Damage) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = script.split_inclusive(|byte| *byte == b'\n').collect();
    if lines.is_empty() {
        return Vec::new();
    }
    let count = lines.len();
    match *damage {
        Damage::Lost(line) => drop(lines.remove(line % count)),
        Damage::Twice(line) => lines.insert(line % count, lines[line % count]),
        Damage::Swapped(a, b) => lines.swap(a % count, b % count),
        Damage::Byte(place, byte) => {
            let mut script = script.to_vec();
            let length = script.len();
            script[place % length] = byte;
            return script;
        }
        Damage::Cut(place) => return script[..place % script.len()].to_vec(),
    }
    lines.concat()
}

/// We may refuse what they take; what we take, all take in the same way.
#[test]
fn what_is_taken_of_damaged_scripts_is_what_ed_and_rred_make_of_it() {
    let taken = std::cell::Cell::new(0);
    let strategy = file(1..30).prop_flat_map(|old| {
        let lines = old.iter().filter(|byte| **byte == b'\n').count();
        (Just(old), legal_script(lines), prop::collection::vec(damage(), 8))
    });
    cases(strategy, |case, (old, script, damages)| {
        for damage in &damages {
            let script = damaged(&script, damage);
            let Some(new) = Edits::parse(script.clone()).ok().and_then(|edits| apply(&edits, &old).ok()) else {
                continue;
            };
            if script.is_empty() {
                continue;
            }
            taken.set(taken.get() + 1);
            assert_eq!(case.ed(&old, &script), new, "ed, {script:?}");
            assert_eq!(case.rred(&old, std::slice::from_ref(&script)), new, "rred, {script:?}");
        }
    });
    assert!(taken.get() > 20, "{} scripts say little", taken.get());
}

#[test]
fn chains_and_merged_patches_agree() {
    need("rredtool", "reprepro");
    cases(prop::collection::vec(file(1..40), 3..7), |case, states| {
        let steps: Vec<Edits> =
            states.windows(2).map(|pair| generate(&pair[0], &pair[1]).expect("expressed")).collect();
        let scripts: Vec<Vec<u8>> = steps.iter().map(script).filter(|script| !script.is_empty()).collect();
        let (old, new) = (&states[0], &states[states.len() - 1]);
        let ours = Edits::chain(steps).expect("few");
        assert_eq!(&apply(&ours, old).expect("fits"), new);
        if scripts.is_empty() {
            return;
        }
        assert_eq!(&case.rred(old, &scripts), new, "rred applies our steps");
        assert_eq!(&case.ed(old, &script(&ours)), new, "ed applies our merged patch");
        // apt 2.6 leaves out text before the first line when it merges (not when it applies).
        let before_all = ours.edits().first().is_some_and(|edit| edit.line == 0 && edit.removed == 0);
        let rred = (!before_all).then(|| ("rred", case.rred_merge(&scripts)));
        for (program, merged) in rred.into_iter().chain([("rredtool", case.rredtool_merge(&scripts))]) {
            let theirs = Edits::parse(merged).unwrap_or_else(|error| panic!("{program}: {error}"));
            assert_eq!(&apply(&theirs, old).expect("fits"), new, "{program} merges our steps");
        }
    });
}

#[test]
fn lone_dots_come_as_diff_and_ed_have_them() {
    let line = prop_oneof![2 => Just("."), 1 => Just(".."), 2 => Just("a"), 2 => Just("b")];
    let dots = prop::collection::vec(line, 1..12).prop_map(|lines| (lines.join("\n") + "\n").into_bytes());
    cases((dots.clone(), dots), |case, (old, new)| {
        let theirs = case.diff(&old, &new);
        let edits = Edits::parse(theirs.clone()).unwrap_or_else(|error| panic!("{error}: {theirs:?}"));
        assert_eq!(apply(&edits, &old).expect("fits"), new);
        assert_eq!(case.ed(&old, &theirs), new);
    });
}

/// The last line of a file need not end with a newline. apt copies it as it is and lets text
/// that comes behind continue it; ed adds the newline to every file that it writes. We do what
/// apt does, but for the continuation, which is refused.
#[test]
fn a_last_line_without_newline_is_as_apt_has_it() {
    let strategy = file(1..20).prop_flat_map(|old| {
        let lines = old.iter().filter(|byte| **byte == b'\n').count();
        (Just([&old[..], b"x"].concat()), legal_script(lines + 1))
    });
    cases(strategy, |case, (old, script)| {
        if script.is_empty() {
            return;
        }
        let edits = Edits::parse(script.clone()).expect("legal");
        match apply(&edits, &old) {
            Ok(new) => {
                assert_eq!(case.rred(&old, std::slice::from_ref(&script)), new);
                let newline: &[u8] = if new.last().is_some_and(|last| *last != b'\n') { b"\n" } else { b"" };
                assert_eq!(case.ed(&old, &script), [&new[..], newline].concat());
            }
            Err(error) => assert!(matches!(error, SpliceError::NoFinalNewline { .. }), "{error}"),
        }
    });
}
