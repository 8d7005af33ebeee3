//! Patches: no panic on any script; edits that are sorted and apart; the same new file whatever
//! the cuts of the old one, by frames or not, as a reference makes it that keeps lines in a
//! vector and obeys one command after the other as ed does; two scripts joined do what they do
//! one after the other; what is written is read again; what is generated makes the new file.

#![no_main]

use fullbore_debian::pdiff::{Edits, Piece, Splice, SpliceError, generate};
use libfuzzer_sys::fuzz_target;

type Lines = Vec<Vec<u8>>;

fn lines(text: &[u8]) -> Lines {
    text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn apply(edits: &Edits, old: &[u8], step: usize, frames: bool) -> Result<Vec<u8>, SpliceError> {
    let mut new = Vec::new();
    let mut splice = Splice::new(edits);
    for piece in old.chunks(step) {
        if frames && splice.pass_untouched(piece) {
            new.extend_from_slice(piece);
            continue;
        }
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

/// What ed makes of a script that the parser has accepted; `None` where a line is missing.
fn reference(mut file: Lines, script: &[u8]) -> Option<Lines> {
    let script = lines(script);
    let mut commands = script.iter().map(|line| &line[..line.len() - 1]);
    // The line that was changed last, as `s` and `a` without a number mean it.
    let mut current = 0;
    while let Some(command) = commands.next() {
        if command == b"s/.//" {
            file[current - 1].remove(0);
            continue;
        }
        let (letter, numbers) = command.split_last().expect("no empty command");
        let numbers = std::str::from_utf8(numbers).expect("digits");
        let (first, last) = match numbers.split_once(',') {
            _ if numbers.is_empty() => (current, current),
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None => (numbers.parse().ok()?, numbers.parse().ok()?),
        };
        if last > file.len() {
            return None;
        }
        let gone = if *letter == b'a' { last..last } else { first - 1..last };
        let mut text = Vec::new();
        if *letter != b'd' {
            for line in commands.by_ref().take_while(|line| *line != b".") {
                text.push([line, &b"\n"[..]].concat());
            }
        }
        current = gone.start + text.len();
        file.splice(gone, text);
    }
    Some(file)
}

fn check(old: &[u8], script: &[u8], step: usize) -> Option<(Edits, Vec<u8>)> {
    let edits = Edits::parse(script.to_vec()).ok()?;
    for pair in edits.edits().windows(2) {
        assert!(pair[0].end() < pair[1].line);
    }
    let new = apply(&edits, old, old.len().max(1), false);
    assert_eq!(apply(&edits, old, step, false), new);
    assert_eq!(apply(&edits, old, step, true), new);
    let expected = reference(lines(old), script);
    match new {
        Ok(new) => {
            assert_eq!(expected.map(|lines| lines.concat()), Some(new.clone()));
            let mut written = Vec::new();
            if edits.write_ed(&mut written).is_ok() {
                let again = Edits::parse(written).expect("our own");
                assert_eq!(apply(&again, old, step, false), Ok(new.clone()));
            }
            Some((edits, new))
        }
        Err(SpliceError::BeyondEnd { .. }) => {
            assert_eq!(expected, None);
            None
        }
        Err(SpliceError::NoFinalNewline { .. }) => {
            assert!(!old.ends_with(b"\n"));
            None
        }
    }
}

fuzz_target!(|input: (u8, &[u8], &[u8], &[u8])| {
    let (step, old, first, second) = input;
    let step = usize::from(step) + 1;
    if let Ok(edits) = generate(old, first) {
        assert_eq!(apply(&edits, old, step, true), Ok(first.to_vec()));
    }
    let Some((first, middle)) = check(old, first, step) else {
        return;
    };
    let Some((second, new)) = check(&middle, second, step) else {
        return;
    };
    let chain = Edits::chain(vec![first, second]).expect("two");
    assert_eq!(apply(&chain, old, step, true), Ok(new));
});
