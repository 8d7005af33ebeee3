//! All steps against a reference implementation that keeps files as vectors of lines.

use proptest::prelude::*;

use super::*;

/// As the kept forms do it: frames that no edit touches are passed as they are. Returns the new
/// file and the number of those frames.
fn apply_by_frames(edits: &Edits, old: &[u8], frame_bytes: usize) -> Result<(Vec<u8>, usize), SpliceError> {
    let (mut new, mut untouched) = (Vec::new(), 0);
    let mut splice = Splice::new(edits);
    for frame in old.chunks(frame_bytes.max(1)) {
        if splice.pass_untouched(frame) {
            new.extend_from_slice(frame);
            untouched += 1;
            continue;
        }
        splice.feed(frame, &mut |out| match out {
            Piece::Old(range) => new.extend_from_slice(&frame[range]),
            Piece::New(text) => new.extend_from_slice(text),
        });
    }
    splice.finish(&mut |out| match out {
        Piece::Old(_) => unreachable!("there is no old piece at the end"),
        Piece::New(text) => new.extend_from_slice(text),
    })?;
    Ok((new, untouched))
}

#[test]
fn frames_without_edits_are_untouched() {
    let edits = Edits::parse("6a\nx\n.\n3d\n").expect("a script");
    let (new, untouched) = apply_by_frames(&edits, b"1\n2\n3\n4\n5\n6\n7\n8\n", 4).expect("fits");
    // Only the frame of line 3: what comes behind line 6 belongs to the frame that follows, 7 and 8.
    assert_eq!((new, untouched), (b"1\n2\n4\n5\n6\nx\n7\n8\n".to_vec(), 2));
}

/// Applies in pieces of this many bytes.
pub(super) fn apply(edits: &Edits, old: &[u8], piece_bytes: usize) -> Result<Vec<u8>, SpliceError> {
    let mut new = Vec::new();
    let mut splice = Splice::new(edits);
    for piece in old.chunks(piece_bytes.max(1)) {
        splice.feed(piece, &mut |out| match out {
            Piece::Old(range) => new.extend_from_slice(&piece[range]),
            Piece::New(text) => new.extend_from_slice(text),
        });
    }
    splice.finish(&mut |out| match out {
        Piece::Old(_) => unreachable!("there is no old piece at the end"),
        Piece::New(text) => new.extend_from_slice(text),
    })?;
    Ok(new)
}

/// What GNU ed does, one command after the other, on lines. For scripts of the subset alone.
fn reference(old: &[u8], script: &str) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = old.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let mut commands = script.split_inclusive('\n');
    while let Some(line) = commands.next() {
        let (numbers, letter) = line.trim_end().split_at(line.len() - 2);
        let (first, last) = numbers.split_once(',').unwrap_or((numbers, numbers));
        let (first, last): (usize, usize) = (first.parse().expect("number"), last.parse().expect("number"));
        let gone = if letter == "a" { first..first } else { first - 1..last };
        let text =
            if letter == "d" { Vec::new() } else { commands.by_ref().take_while(|line| *line != ".\n").collect() };
        lines.splice(gone, text.into_iter().map(|line| line.as_bytes().to_vec()));
    }
    lines.concat()
}

#[test]
fn a_script_of_all_commands_is_applied() {
    let old = b"1\n2\n3\n4\n5\n6\n7\n";
    let script = "7a\nz\n.\n5,6c\ny\n.\n3d\n1,2c\nx\nw\n.\n0a\nfirst\n.\n";
    let edits = Edits::parse(script).expect("a script");
    let new = apply(&edits, old, 3).expect("fits");
    assert_eq!(new, b"first\nx\nw\n4\ny\n7\nz\n");
    assert_eq!(new, reference(old, script));
    // 0a and 1,2c and 3d touch: one edit.
    let shown: Vec<_> = edits.edits().iter().map(|edit| (edit.line, edit.removed, edit.added)).collect();
    assert_eq!(shown, [(0, 3, 3), (4, 2, 1), (7, 0, 1)]);
}

fn fault(script: impl Into<Bytes>) -> (u64, usize, ScriptFault) {
    let error = Edits::parse(script).expect_err("refused");
    (error.line, error.offset, error.fault)
}

#[test]
fn hostile_scripts_are_refused_with_their_line() {
    let first = |script: &str| fault(script.to_owned());
    for command in
        ["q\n", "1\n", "d\n", "1dd\n", " 1d\n", "1d \n", "1d\r\n", "-1d\n", "+1d\n", "$d\n", "1,$d\n", ",d\n", "1,d\n"]
    {
        assert!(matches!(first(command), (1, 0, ScriptFault::Command { .. })), "{command}");
    }
    for command in
        ["\n", "1i\nx\n.\n", "1w file\n", "!true\n", "1,2a\nx\n.\n", "1,2,3d\n", "s/.//\n", "1d\0\n", "0x1d\n", "¹d\n"]
    {
        assert!(Edits::parse(command).is_err(), "{command}");
    }
    assert_eq!(first("0d\n").2, ScriptFault::LineZero);
    assert_eq!(first("0,3c\nx\n.\n").2, ScriptFault::LineZero);
    assert_eq!(first("3,2d\n").2, ScriptFault::Backwards { first: 3, last: 2 });
    for number in ["4398046511105", "18446744073709551615", "18446744073709551616", "99999999999999999999999999"] {
        assert_eq!(first(&format!("{number}d\n")).2, ScriptFault::Number);
        assert_eq!(first(&format!("1,{number}d\n")).2, ScriptFault::Number);
    }
    assert!(Edits::parse(format!("{LINE_MAX}d\n")).is_ok());
    // Ascending, overlapping, and the same lines twice.
    assert_eq!(first("1d\n2d\n"), (2, 3, ScriptFault::Order { last: 2, before: 1 }));
    assert_eq!(first("2,3d\n1,2d\n"), (2, 5, ScriptFault::Order { last: 2, before: 2 }));
    assert_eq!(first("2d\n2d\n"), (2, 3, ScriptFault::Order { last: 2, before: 2 }));
    assert_eq!(first("9a\nx\n.\n5c\ny\n.\n5a\nz\n.\n"), (7, 14, ScriptFault::Order { last: 6, before: 5 }));
    // A command that never ends is not read to its end.
    let endless = fault(vec![b'1'; 1 << 20]);
    assert!(matches!(endless, (1, 0, ScriptFault::Command { command }) if command.len() == 30));
}

#[test]
fn a_script_that_is_cut_is_refused_unless_between_two_commands() {
    // Behind the text with two dots `s/.//` may follow or not, and behind that `a`.
    let parts = ["9a\nx\n.y\n.\n", "7d\n", "5,6c\nx\n\n..\n.\n", "s/.//\n", "a\nw\n.\n", "0a\nfirst\n.\n"];
    let script = parts.concat();
    let whole: Vec<usize> = (0..=parts.len()).map(|count| parts[..count].concat().len()).collect();
    for length in 0..=script.len() {
        let read = Edits::parse(script[..length].to_owned());
        let complete = whole.contains(&length);
        assert_eq!(read.is_ok(), complete, "{length}: {read:?}");
        if let Err(error) = read {
            let cut = matches!(error.fault, ScriptFault::Cut(_));
            assert!(cut, "{error}");
            assert!(error.offset <= length);
        }
    }
}

#[test]
fn two_dots_and_a_substitution_are_one_dot() {
    let edits = Edits::parse("1c\nx\n..\n.\ns/.//\na\ny\n.\n").expect("as diff --ed writes it");
    assert_eq!(apply(&edits, b"old\n", 1).expect("fits"), b"x\n.\ny\n");
    let edits = Edits::parse("1c\n..\n.\ns/.//\n").expect("as diff --ed writes it");
    assert_eq!(apply(&edits, b"old\n", 1).expect("fits"), b".\n");
    assert_eq!(
        edits.write_ed(&mut Vec::new()).expect_err("apt could not read it").kind(),
        std::io::ErrorKind::InvalidInput
    );
    for script in ["1c\nx\n.\ns/.//\n", "1c\n.\ns/.//\n", "1d\ns/.//\n", "1c\n...\n.\ns/.//\n", "1c\nx..\n.\ns/.//\n"] {
        assert!(Edits::parse(script).is_err(), "{script:?}");
    }
    assert_eq!(fault("1c\nx\n.\ns/.//\n"), (4, 7, ScriptFault::Substitute));
    assert_eq!(fault("2c\n.\n"), (2, 3, ScriptFault::NoText));
    assert_eq!(fault("1c\n..\n.\ns/.//\na\n.\n"), (6, 16, ScriptFault::NoText));
}

#[test]
fn nul_and_any_other_byte_are_text() {
    let script: Vec<u8> =
        [&b"1c\n"[..], &(0..=255).filter(|byte| *byte != b'\n').collect::<Vec<u8>>(), b"\n.\n"].concat();
    let edits = Edits::parse(script.clone()).expect("a script");
    assert_eq!(apply(&edits, b"\0\n\0\0\n", 2).expect("fits"), [&script[3..script.len() - 2], b"\0\0\n"].concat());
}

#[test]
fn an_old_file_that_is_too_short_is_refused() {
    let needs = |script: &str, old: &[u8]| apply(&Edits::parse(script.to_owned()).expect("a script"), old, 3);
    assert_eq!(needs("4a\nx\n.\n", b"1\n2\n3\n"), Err(SpliceError::BeyondEnd { line: 4, lines: 3 }));
    assert_eq!(needs("2,9d\n", b"1\n2\n3\n"), Err(SpliceError::BeyondEnd { line: 9, lines: 3 }));
    assert_eq!(needs("4c\nx\n.\n1d\n", b"1\n2\n3\n"), Err(SpliceError::BeyondEnd { line: 4, lines: 3 }));
    assert_eq!(needs("1d\n", b""), Err(SpliceError::BeyondEnd { line: 1, lines: 0 }));
    assert_eq!(needs("0a\nx\n.\n", b"").expect("fits"), b"x\n");
    assert_eq!(needs("3a\nx\n.\n", b"1\n2\n3\n").expect("fits"), b"1\n2\n3\nx\n");
    let huge = format!("{LINE_MAX}d\n1,{}d\n", LINE_MAX - 2);
    assert_eq!(needs(&huge, b"1\n"), Err(SpliceError::BeyondEnd { line: LINE_MAX - 2, lines: 1 }));
}

#[test]
fn nothing_is_appended_to_a_last_line_without_newline() {
    let with = |script: &str| apply(&Edits::parse(script.to_owned()).expect("a script"), b"1\n2\n3", 2);
    assert_eq!(with("1d\n").expect("fits"), b"2\n3");
    assert_eq!(with("3c\nx\n.\n").expect("fits"), b"1\n2\nx\n");
    assert_eq!(with("3d\n").expect("fits"), b"1\n2\n");
    assert_eq!(with("2a\nx\n.\n").expect("fits"), b"1\n2\nx\n3");
    assert_eq!(with("3a\nx\n.\n"), Err(SpliceError::NoFinalNewline { line: 3 }));
    assert_eq!(with("4d\n"), Err(SpliceError::BeyondEnd { line: 4, lines: 3 }));
    assert_eq!(with("4a\nx\n.\n"), Err(SpliceError::BeyondEnd { line: 4, lines: 3 }));
}

#[test]
fn what_no_patch_can_express_is_not_generated() {
    assert_eq!(generate(b"a\n", b"a\nb").err(), Some(GenerateError::NoFinalNewline));
    assert_eq!(generate(b"a\nb\nc\n", b"a\nx\n.\nc\n").err(), Some(GenerateError::LoneDot { line: 3 }));
    // One that was there stays.
    let edits = generate(b"a\n.\nc\n", b"b\n.\nd\n").expect("no dot comes");
    assert_eq!(apply(&edits, b"a\n.\nc\n", 9).expect("fits"), b"b\n.\nd\n");
    let edits = generate(b"a\nb", b"a\nb\n").expect("the last line is another one");
    assert_eq!(apply(&edits, b"a\nb", 9).expect("fits"), b"a\nb\n");
    assert!(generate(b"same\n", b"same\n").expect("equal").is_empty());
}

#[test]
fn more_edits_or_steps_than_allowed_are_refused() {
    let script: String = (1..=EDITS_MAX + 1).rev().map(|number| format!("{}d\n", 2 * number)).collect();
    assert!(matches!(fault(script).2, ScriptFault::TooLarge { limit: EDITS_MAX, .. }));
    let dots = format!("0a\n{}", "..\n.\ns/.//\na\n".repeat(script::TEXTS_MAX + 1));
    assert!(matches!(fault(dots).2, ScriptFault::TooLarge { limit: script::TEXTS_MAX, .. }));
    let error = Edits::chain(vec![Edits::default(); STEPS_MAX + 1]).expect_err("too many");
    assert!(matches!(error.fault, ScriptFault::TooLarge { limit: STEPS_MAX, .. }));
    assert!(Edits::chain(Vec::new()).expect("nothing").is_empty());
}

proptest! {
    #[test]
    fn scripts_are_read_or_refused(script in "([0-9]{1,2}(,[0-9]{1,2})?[acd]\n|[abc.]{0,2}\n|s/\\.//\n){0,12}", step in 1_usize..9) {
        if let Ok(edits) = Edits::parse(script.into_bytes()) {
            for pair in edits.edits().windows(2) {
                prop_assert!(pair[0].end() < pair[1].line);
            }
            let old = b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12";
            let whole = apply(&edits, old, old.len());
            prop_assert_eq!(apply(&edits, old, step), whole.clone());
            prop_assert_eq!(apply_by_frames(&edits, old, step).map(|(new, _)| new), whole);
        }
    }
}

/// Lines from a small alphabet, so that much is in common; NUL and empty lines among them.
fn file() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![4 => "[a-e]{1,2}", 1 => Just(String::new()), 1 => Just("\0..".to_owned())];
    prop::collection::vec(line, 0..40)
        .prop_map(|lines| lines.into_iter().flat_map(|line| line.into_bytes().into_iter().chain([b'\n'])).collect())
}

proptest! {
    #[test]
    fn generated_edits_make_the_new_file(old in file(), new in file(), step in 1_usize..20) {
        let edits = generate(&old, &new).expect("can be expressed");
        prop_assert_eq!(apply(&edits, &old, step).expect("fits"), new.clone());
        prop_assert_eq!(apply_by_frames(&edits, &old, step).expect("fits").0, new);
    }

    #[test]
    fn written_scripts_are_read_again(old in file(), new in file()) {
        let edits = generate(&old, &new).expect("can be expressed");
        let mut script = Vec::new();
        edits.write_ed(&mut script).expect("memory");
        let again = Edits::parse(script.clone()).expect("our own");
        prop_assert_eq!(apply(&again, &old, 7).expect("fits"), new.clone());
        let script = String::from_utf8(script).expect("letters");
        prop_assert_eq!(reference(&old, &script), new);
    }

    #[test]
    fn a_chain_does_what_its_steps_do(states in prop::collection::vec(file(), 1..8), step in 1_usize..20) {
        let steps: Vec<Edits> = states.windows(2).map(|pair| generate(&pair[0], &pair[1]).expect("expressed")).collect();
        let chain = Edits::chain(steps).expect("few");
        prop_assert_eq!(&apply(&chain, &states[0], step).expect("fits"), states.last().expect("one"));
        for pair in chain.edits().windows(2) {
            prop_assert!(pair[0].end() < pair[1].line);
        }
    }
}
