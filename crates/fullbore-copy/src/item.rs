//! The changes of an entry, in the eleven letters of `rsync -i` (rsync(1), `--itemize-changes`).

use crate::entry::Kind;

/// What the copy does to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    /// Its content is transferred from the source.
    Transfer,
    /// The destination makes it without content: a directory, link or device.
    Local,
    /// It becomes a hard link.
    Link,
    /// Only its attributes change, if anything does.
    Attributes,
}

/// The differences between an entry at the destination and at the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The content, as a comparison showed, or the target of a link.
    pub(crate) content: bool,
    pub(crate) size: bool,
    pub(crate) time: bool,
    pub(crate) mode: bool,
    pub(crate) owner: bool,
    pub(crate) group: bool,
    pub(crate) acl: bool,
    pub(crate) xattr: bool,
}

impl Changes {
    /// Whether anything differs.
    pub(crate) fn is_any(&self) -> bool {
        *self != Changes::default()
    }
}

/// Formats the letters. `changes` is `None` if the destination does not have the entry yet; `pushes` tells whether
/// content goes to another machine.
pub(crate) fn letters(update: Update, kind: Kind, changes: Option<&Changes>, pushes: bool) -> String {
    let how = match update {
        Update::Transfer if pushes => '<',
        Update::Transfer => '>',
        Update::Local => 'c',
        Update::Link => 'h',
        Update::Attributes => '.',
    };
    let what = match kind {
        Kind::File => 'f',
        Kind::Directory => 'd',
        Kind::Symlink => 'L',
        Kind::Character | Kind::Block => 'D',
        Kind::Fifo | Kind::Socket => 'S',
    };
    let Some(changes) = changes else { return format!("{how}{what}+++++++++") };
    if update != Update::Transfer && !changes.is_any() {
        return format!("{how}{what}         ");
    }
    let letter = |is_other, letter| if is_other { letter } else { '.' };
    let letters = [
        how,
        what,
        letter(changes.content, 'c'),
        letter(changes.size, 's'),
        letter(changes.time, 't'),
        letter(changes.mode, 'p'),
        letter(changes.owner, 'o'),
        letter(changes.group, 'g'),
        // Access and creation times are not kept, so this letter is always a dot.
        '.',
        letter(changes.acl, 'a'),
        letter(changes.xattr, 'x'),
    ];
    letters.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_rsyncs() {
        let changes = Changes { size: true, time: true, ..Changes::default() };
        for (update, kind, changes, pushes, expected) in [
            (Update::Transfer, Kind::File, None, false, ">f+++++++++"),
            (Update::Transfer, Kind::File, Some(changes), true, "<f.st......"),
            (Update::Transfer, Kind::File, Some(Changes::default()), false, ">f........."),
            (Update::Local, Kind::Directory, None, true, "cd+++++++++"),
            (Update::Link, Kind::File, Some(Changes::default()), false, "hf         "),
            (
                Update::Attributes,
                Kind::Symlink,
                Some(Changes { owner: true, ..Changes::default() }),
                false,
                ".L....o....",
            ),
            (
                Update::Attributes,
                Kind::Socket,
                Some(Changes { xattr: true, ..Changes::default() }),
                false,
                ".S........x",
            ),
        ] {
            let text = letters(update, kind, changes.as_ref(), pushes);
            assert_eq!((&*text, text.len()), (expected, 11));
        }
    }
}
