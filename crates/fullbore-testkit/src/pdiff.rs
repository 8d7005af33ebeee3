//! Index patches: ed scripts between two versions of an index, and the `*.diff/Index` that names them.
//!
//! The difference is taken over stanzas (or over lines, for `Contents`) and then trimmed to
//! lines, which is all that a small archive needs.

use std::{collections::VecDeque, fmt::Write};

use crate::digest::Digest;

/// Changed pieces after which the search gives up and replaces the lot: its memory grows with
/// the square of this number (4000² / 2 words are 64 MB).
const DIFFERENCES: usize = 4_000;

/// The ed script that turns `old` into `new`, commands from the end to the beginning as
/// `diff --ed` writes them. Neither text may have a line that is a lone dot.
pub fn ed_script(old: &str, new: &str) -> String {
    let (old_pieces, new_pieces) = (pieces(old), pieces(new));
    let mut script = String::new();
    for (removed, added) in changes(&old_pieces, &new_pieces).into_iter().rev() {
        let first_line: usize = old_pieces[..removed.start].iter().map(|piece| lines(piece)).sum();
        let gone: Vec<&str> = old_pieces[removed].iter().flat_map(|piece| piece.split_inclusive('\n')).collect();
        let come: Vec<&str> = new_pieces[added].iter().flat_map(|piece| piece.split_inclusive('\n')).collect();
        let head = gone.iter().zip(&come).take_while(|(a, b)| a == b).count();
        let rest = gone.len().min(come.len()) - head;
        let tail = gone.iter().rev().zip(come.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
        command(&mut script, first_line + head, &gone[head..gone.len() - tail], &come[head..come.len() - tail]);
    }
    script
}

/// One ed command; `before` lines stand unchanged in front of it.
fn command(script: &mut String, before: usize, gone: &[&str], come: &[&str]) {
    let (first, last) = (before + 1, before + gone.len());
    let range = if first == last { format!("{first}") } else { format!("{first},{last}") };
    let _ = match (gone.is_empty(), come.is_empty()) {
        (true, true) => return,
        (true, false) => writeln!(script, "{before}a"),
        (false, true) => return script.push_str(&format!("{range}d\n")),
        (false, false) => writeln!(script, "{range}c"),
    };
    script.extend(come.iter().copied());
    script.push_str(".\n");
}

fn lines(piece: &str) -> usize {
    piece.bytes().filter(|byte| *byte == b'\n').count()
}

/// Stanzas where the text has empty lines, lines otherwise.
fn pieces(text: &str) -> Vec<&str> {
    if !text.contains("\n\n") {
        return text.split_inclusive('\n').collect();
    }
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find("\n\n") {
        pieces.push(&rest[..end + 2]);
        rest = &rest[end + 2..];
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

type Change = (std::ops::Range<usize>, std::ops::Range<usize>);

/// The changed ranges by Myers' greedy algorithm (1986), ascending.
fn changes(old: &[&str], new: &[&str]) -> Vec<Change> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let (a, b) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let Some(kept) = common(a, b) else {
        return vec![(head..old.len() - tail, head..new.len() - tail)];
    };
    let mut changes = Vec::new();
    let (mut x, mut y) = (0, 0);
    for (kept_x, kept_y) in kept.into_iter().chain([(a.len(), b.len())]) {
        if kept_x > x || kept_y > y {
            changes.push((head + x..head + kept_x, head + y..head + kept_y));
        }
        (x, y) = (kept_x + 1, kept_y + 1);
    }
    changes
}

/// Pairs of equal pieces in a longest common subsequence; `None` beyond [`DIFFERENCES`].
fn common(a: &[&str], b: &[&str]) -> Option<Vec<(usize, usize)>> {
    // furthest[d][k] = the largest x reached on diagonal k = x - y after d differences,
    // with k stored as (k + d) / 2.
    let mut furthest: Vec<Vec<usize>> = Vec::new();
    let reach = |row: Option<&Vec<usize>>, d: usize, slot: usize| -> usize {
        let Some(row) = row else { return 0 };
        let down = if slot < d { Some(row[slot]) } else { None };
        let right = if slot > 0 { Some(row[slot - 1] + 1) } else { None };
        down.max(right).unwrap_or(0)
    };
    for d in 0..=(a.len() + b.len()).min(DIFFERENCES) {
        let mut row = vec![0; d + 1];
        for slot in 0..=d {
            let diagonal = 2 * slot as i64 - d as i64;
            let mut x = reach(furthest.last(), d, slot);
            let mut y = (x as i64 - diagonal) as usize;
            while x < a.len() && y < b.len() && a[x] == b[y] {
                x += 1;
                y += 1;
            }
            row[slot] = x;
            if x >= a.len() && y >= b.len() {
                furthest.push(row);
                return Some(walk_back(&furthest, a.len(), b.len(), reach));
            }
        }
        furthest.push(row);
    }
    None
}

fn walk_back(
    furthest: &[Vec<usize>],
    mut x: usize,
    mut y: usize,
    reach: impl Fn(Option<&Vec<usize>>, usize, usize) -> usize,
) -> Vec<(usize, usize)> {
    let mut kept = VecDeque::new();
    for d in (0..furthest.len()).rev() {
        let diagonal = x as i64 - y as i64;
        let slot = ((diagonal + d as i64) / 2) as usize;
        let previous = d.checked_sub(1).map(|d| &furthest[d]);
        let start = reach(previous, d, slot);
        while x > start {
            x -= 1;
            y -= 1;
            kept.push_front((x, y));
        }
        if let Some(row) = previous {
            let came_right = slot > 0 && (slot >= d || row[slot - 1] + 1 > row[slot]);
            if came_right { x -= 1 } else { y -= 1 }
        }
    }
    kept.into()
}

/// One earlier version of an index.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// As patches are named: `2025-06-15-0146.40`.
    pub stamp: String,
    pub text: String,
}

/// Files of a `NAME.diff` directory: (name, bytes), `Index` included.
pub(crate) fn directory(history: &[Version], merged: bool) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let Some((current, earlier)) = history.split_last() else {
        return Ok(Vec::new());
    };
    let mut files = Vec::new();
    let (mut past, mut patches, mut download) = (String::new(), String::new(), String::new());
    for (number, version) in earlier.iter().enumerate() {
        let (name, next) = if merged {
            (format!("T-{}-F-{}", current.stamp, version.stamp), current)
        } else {
            (version.stamp.clone(), &history[number + 1])
        };
        let script = ed_script(&version.text, &next.text);
        let packed = crate::compression::Form::Gz.compress(script.as_bytes())?;
        let (old, patch, gz) =
            (Digest::of(version.text.as_bytes()), Digest::of(script.as_bytes()), Digest::of(&packed));
        let _ = writeln!(past, " {old} {} {name}", version.text.len());
        let _ = writeln!(patches, " {patch} {} {name}", script.len());
        let _ = writeln!(download, " {gz} {} {name}.gz", packed.len());
        files.push((format!("{name}.gz"), packed));
    }
    let mut index = format!("SHA256-Current: {} {}\n", Digest::of(current.text.as_bytes()), current.text.len());
    let _ = write!(index, "SHA256-History:\n{past}SHA256-Patches:\n{patches}SHA256-Download:\n{download}");
    if merged {
        index.push_str("X-Patch-Precedence: merged\n");
    }
    files.push(("Index".to_string(), index.into_bytes()));
    Ok(files)
}

/// Applies an ed script of the kind above; for tests.
#[cfg(test)]
fn apply(old: &str, script: &str) -> String {
    let mut lines: Vec<&str> = old.split_inclusive('\n').collect();
    let mut commands = script.split_inclusive('\n');
    while let Some(line) = commands.next() {
        let line = line.trim_end();
        let (range, verb) = line.split_at(line.len() - 1);
        let (from, to) = range.split_once(',').unwrap_or((range, range));
        let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
        let text: Vec<&str> =
            if verb == "d" { Vec::new() } else { commands.by_ref().take_while(|line| *line != ".\n").collect() };
        let at = if verb == "a" { from..from } else { from - 1..to };
        lines.splice(at, text);
    }
    lines.concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_changed_line_is_one_command() {
        let script = ed_script("a\nb\nc\n", "a\nx\ny\nc\n");
        assert_eq!(script, "2c\nx\ny\n.\n");
    }

    proptest! {
        #[test]
        fn the_script_makes_the_new_text(old in "([abc]\n){0,12}", new in "([abc]\n){0,12}") {
            prop_assert_eq!(apply(&old, &ed_script(&old, &new)), new);
        }

        #[test]
        fn the_script_makes_the_new_text_of_stanzas_too(old in "([abc]\n([de]\n){0,2}\n){0,9}", new in "([abc]\n([de]\n){0,2}\n){0,9}") {
            prop_assert_eq!(apply(&old, &ed_script(&old, &new)), new);
        }
    }
}
