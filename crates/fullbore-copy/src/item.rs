//! What changes of an entry, in the eleven letters of `rsync -i` (rsync(1), `--itemize-changes`).

use crate::entry::Kind;

/// What is done to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    /// Its content comes from the source.
    Transfer,
    /// It is made here: a directory, link, device.
    Local,
    /// It becomes a hard link.
    Link,
    /// At most its attributes change.
    Attributes,
}

/// What is other at the destination than at the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The content, as a comparison showed, or where a link leads.
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
    /// Whether anything is.
    pub(crate) fn is_any(&self) -> bool {
        *self != Changes::default()
    }
}

/// The letters. `changes` is none for what is not there yet; `pushes` is whether content goes to another machine.
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
        // Times of access and of creation, which are not kept.
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
