//! Permission changes of `--chmod`, in rsync's syntax (rsync(1), `--chmod`).
//!
//! The sender applies them when it lists the source, so every later step sees only the changed permissions.

use serde::{Deserialize, Serialize};

/// All bits that can be changed: the low twelve bits of a mode (inode(7)).
const BITS: u32 = 0o7777;
/// The bits that allow executing a file, or entering a directory.
const EXECUTE: u32 = 0o111;
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const STICKY: u32 = 0o1000;

/// Permission changes of `--chmod`, applied in the order in which the user gave them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModeChanges {
    changes: Vec<ModeChange>,
}

/// One change, such as `Dg+s` or `F640`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ModeChange {
    directories: bool,
    files: bool,
    /// Mask of the bits that keep their value; all others are cleared.
    kept: u32,
    /// Bits that are set after `kept` was applied.
    set: u32,
    /// Whether the change used `X`: it sets execute bits only on directories, and on files that have an execute bit
    /// already.
    spares_plain: bool,
}

impl ModeChanges {
    /// Whether there are no changes, so that every mode stays as it is.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Adds the changes of one option, separated by commas. A change without `u`, `g`, `o` or `a` (`+w`) respects the
    /// umask, as chmod(1) does.
    ///
    /// # Errors
    /// A sentence that quotes the first part which is not a change in rsync's syntax. The changes before it have been
    /// added.
    pub fn add(&mut self, text: &str, umask: u32) -> Result<(), String> {
        for part in text.split(',') {
            let change = parse(part, umask).ok_or_else(|| format!("`{part}` is not a change of permissions"))?;
            self.changes.push(change);
        }
        Ok(())
    }

    /// Returns `mode` with all changes applied. Symbolic links have no permissions to change.
    pub(crate) fn apply(&self, mode: u32, is_directory: bool) -> u32 {
        let is_executable = mode & EXECUTE != 0;
        let applies = |change: &&ModeChange| if is_directory { change.directories } else { change.files };
        self.changes.iter().filter(applies).fold(mode, |mode, change| {
            let is_plain = change.spares_plain && !is_executable && !is_directory;
            mode & change.kept | if is_plain { change.set & !EXECUTE } else { change.set }
        })
    }
}

/// Returns the umask of this process (proc(5), `Umask`), or `None` if `/proc` is not mounted.
pub fn umask() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("Umask:")).map(str::trim);
    value.and_then(|value| u32::from_str_radix(value, 8).ok())
}

fn parse(text: &str, umask: u32) -> Option<ModeChange> {
    let (directories, files, rest) = match text.as_bytes().first()? {
        b'D' => (true, false, &text[1..]),
        b'F' => (false, true, &text[1..]),
        _ => (true, true, text),
    };
    let change = |kept, set, spares_plain| ModeChange { directories, files, kept, set, spares_plain };
    if rest.bytes().all(|byte| byte.is_ascii_digit()) {
        let mode = u32::from_str_radix(rest, 8).ok().filter(|mode| *mode <= BITS)?;
        return Some(change(0, mode, false));
    }
    let (who, rest) = rest.split_at(rest.find(['+', '-', '='])?);
    let (operator, what) = rest.split_at(1);
    // `places`: one bit for each class of users that the change names. `special`: what `s` means for these classes.
    let (mut places, mut special) = (0, 0);
    for letter in who.bytes() {
        let (place, bit) = match letter {
            b'u' => (0o100, SET_USER_ID),
            b'g' => (0o010, SET_GROUP_ID),
            b'o' => (0o001, 0),
            b'a' => (0o111, 0),
            _ => return None,
        };
        places |= place;
        special |= bit;
    }
    let (mut permissions, mut extra, mut spares_plain) = (0, 0, false);
    for letter in what.bytes() {
        match letter {
            b'r' => permissions |= 4,
            b'w' => permissions |= 2,
            b'x' => permissions |= 1,
            b'X' => (permissions, spares_plain) = (permissions | 1, true),
            b's' => extra |= if special == 0 { SET_USER_ID } else { special },
            b't' => extra |= STICKY,
            _ => return None,
        }
    }
    let masked = if who.is_empty() { !umask } else { BITS };
    let places = if who.is_empty() { 0o111 } else { places };
    let bits = (places * permissions) & masked;
    Some(match operator {
        "+" => change(BITS, bits | extra, spares_plain),
        "-" => change(BITS & !bits & !extra, 0, spares_plain),
        _ => change(BITS & !(places * 7) & !(if extra != 0 { special } else { 0 }), bits | extra, spares_plain),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_rsyncs() {
        for (text, mode, is_directory, expected) in [
            ("D2775,F664", 0o700, true, 0o2775),
            ("D2775,F664", 0o700, false, 0o664),
            ("u+x", 0o640, false, 0o740),
            ("Dg+s,ug+w,Fo-w,+X", 0o666, false, 0o664),
            ("Dg+s,ug+w,Fo-w,+X", 0o755, true, 0o2775),
            ("a=rX", 0o600, false, 0o444),
            ("a=rX", 0o700, false, 0o555),
            ("a=rX", 0o700, true, 0o555),
            ("u=rwx,go=", 0o4777, false, 0o4700),
            ("+w", 0o444, false, 0o644),
            ("u-s", 0o4755, false, 0o755),
            ("o+t", 0o777, true, 0o1777),
        ] {
            let mut changes = ModeChanges::default();
            changes.add(text, 0o022).unwrap();
            assert_eq!(changes.apply(mode, is_directory), expected, "{text} on {mode:o}");
        }
        for text in ["", "u", "8", "77777", "k+x", "u+y", "D,F", "u+x,"] {
            assert!(ModeChanges::default().add(text, 0).is_err(), "{text}");
        }
    }
}
