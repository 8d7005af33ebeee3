//! The whole of it against a reference that keeps files as vectors of lines.

use proptest::prelude::*;

use super::*;

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
fn a_script_of_all_commands() {
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

proptest! {
    #[test]
    fn scripts_are_read_or_refused(script in "([0-9]{1,2}(,[0-9]{1,2})?[acd]\n|[abc.]{0,2}\n|s/\\.//\n){0,12}") {
        if let Ok(edits) = Edits::parse(script.into_bytes()) {
            let _ = apply(&edits, b"a\nb\nc\n", 2);
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
        prop_assert_eq!(apply(&edits, &old, step).expect("fits"), new);
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
