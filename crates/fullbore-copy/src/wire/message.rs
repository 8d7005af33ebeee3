//! The messages between sender and receiver.

use crate::entry::Entry;

/// The bytes at the end of a buffer. So the content of a received frame is separated from its header without a copy.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    buffer: Vec<u8>,
    from: usize,
}

impl Payload {
    /// Makes a payload of all bytes of a buffer.
    pub fn new(buffer: Vec<u8>) -> Payload {
        Payload { buffer, from: 0 }
    }

    pub(super) fn within(buffer: Vec<u8>, from: usize) -> Payload {
        let from = from.min(buffer.len());
        Payload { buffer, from }
    }

    /// The bytes of the payload, without its header.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.from..]
    }

    /// Returns the memory for reuse.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Payload) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Payload {}

/// A user or group number of the source, and its name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Whether it is a group; else it is a user.
    pub group: bool,
    /// Number of the user or group at the source.
    pub id: u32,
    /// Name of the user or group at the source.
    pub name: Vec<u8>,
}

/// Names in one directory, or a part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Number of the first entry; the others follow consecutively. Numbers start at 0 and have no gaps.
    pub first: u64,
    /// Path of the directory below the destination; empty for the destination itself.
    pub directory: Vec<u8>,
    /// Whether this list completes the directory, and all of its names were readable. The destination's other entries
    /// in it may then be deleted.
    pub complete: bool,
    /// Whether more of the same directory follows in the next list.
    pub more: bool,
    /// Entries of the directory, in order of their numbers.
    pub entries: Vec<Entry>,
}

/// A run of consecutive blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the first block of the run.
    pub first: u64,
    /// Number of blocks in the run.
    pub count: u64,
}

/// A file whose content the receiver requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Number of the entry whose content is wanted.
    pub id: u64,
    /// Runs of blocks that the receiver has, ascending.
    pub have: Vec<Run>,
    /// Whether hashes of the existing file follow, and decide what has to be sent.
    pub compare: bool,
    /// Whether the existing file has the length of the source's file. If all blocks are equal, nothing has to be
    /// written.
    pub same_size: bool,
}

/// Hashes of the destination's file, for comparing with the source's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// Number of the entry that the hashes are of.
    pub id: u64,
    /// Number of the first block with a hash.
    pub first: u64,
    /// BLAKE3 hashes of this block and the following ones. A small file is one block.
    pub hashes: Vec<[u8; 32]>,
    /// Whether these are the last hashes of this file.
    pub last: bool,
}

/// The receiver's requests for the entries listed so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// All entries below this number are answered.
    pub through: u64,
    /// Requested entries among them, ascending.
    pub wanted: Vec<Wanted>,
}

/// One small file within a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Number of the entry that the content belongs to.
    pub id: u64,
    /// Length of its content in the record, in bytes.
    pub length: u32,
}

/// Several small files in one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pack {
    /// The record's number, for its acknowledgement.
    pub sequence: u64,
    /// BLAKE3 hash of the content of all files.
    pub hash: [u8; 32],
    /// The files, in the order of their content.
    pub files: Vec<Packed>,
    /// Whether the payload is a zstd frame of the content.
    pub compressed: bool,
    /// The content of all files, one after the other.
    pub payload: Payload,
}

/// A part of a block that is not a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset within the block, in bytes.
    pub offset: u32,
    /// Length of the segment, in bytes.
    pub length: u32,
}

/// A block of a big file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The record's number, for its acknowledgement.
    pub sequence: u64,
    /// Number of the entry that the block belongs to.
    pub id: u64,
    /// Number of the block within the file, counted from 0.
    pub index: u64,
    /// BLAKE3 hash of the whole block, with holes as zeros.
    pub hash: [u8; 32],
    /// Length of the block in bytes. Shorter than expected only if the file has become shorter.
    pub length: u32,
    /// The parts that are not holes, ascending; empty if the whole block is content.
    pub segments: Vec<Segment>,
    /// Whether the payload is a zstd frame of the content.
    pub compressed: bool,
    /// Content of the block, compressed if `compressed` says so.
    pub payload: Payload,
}

/// The kind of a problem with one file. It decides the words and the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProblemKind {
    /// The source could not be read.
    Unreadable,
    /// The source changed while it was read.
    Changed,
    /// The source has disappeared since it was listed.
    Vanished,
    /// The destination could not be written.
    Unwritable,
    /// Owner or group could not be kept.
    Owner,
    /// Permission bits could not be kept.
    Mode,
    /// Times could not be kept.
    Times,
    /// Extended attributes could not be kept.
    Xattrs,
    /// ACLs could not be kept.
    Acls,
    /// A hard link could not be kept: a copy was made instead.
    Link,
    /// A device or pipe could not be made.
    Special,
    /// The name cannot exist at the destination.
    Name,
    /// It could not be deleted.
    Undeleted,
    /// The device has other data than was written.
    Damaged,
    /// A directory was not deleted, as an entry in it is excluded.
    Protected,
    /// An entry was not deleted because of `--max-delete`.
    MaxDelete,
    /// A directory of `--link-dest` cannot be used.
    NoBase,
}

impl ProblemKind {
    /// All kinds, in the order of their numbers on the wire.
    pub const ALL: [ProblemKind; 17] = [
        ProblemKind::Unreadable,
        ProblemKind::Changed,
        ProblemKind::Vanished,
        ProblemKind::Unwritable,
        ProblemKind::Owner,
        ProblemKind::Mode,
        ProblemKind::Times,
        ProblemKind::Xattrs,
        ProblemKind::Acls,
        ProblemKind::Link,
        ProblemKind::Special,
        ProblemKind::Name,
        ProblemKind::Undeleted,
        ProblemKind::Damaged,
        ProblemKind::Protected,
        ProblemKind::MaxDelete,
        ProblemKind::NoBase,
    ];

    /// Whether the problem makes the copy incomplete, so that nothing is deleted.
    pub(crate) fn prevents_deletion(self) -> bool {
        !matches!(
            self,
            ProblemKind::Changed
                | ProblemKind::Vanished
                | ProblemKind::Owner
                | ProblemKind::Mode
                | ProblemKind::Times
                | ProblemKind::Xattrs
                | ProblemKind::Acls
                | ProblemKind::Link
                | ProblemKind::Undeleted
                | ProblemKind::Protected
                | ProblemKind::MaxDelete
                | ProblemKind::NoBase
        )
    }

    /// Whether the user's options wanted this, so that it is only reported and the exit code is 0.
    pub(crate) fn is_wished(self) -> bool {
        matches!(self, ProblemKind::Protected | ProblemKind::NoBase)
    }

    /// Name of the kind in reports.
    pub fn words(self) -> &'static str {
        match self {
            ProblemKind::Unreadable => "could not be read",
            ProblemKind::Changed => "changed while being read",
            ProblemKind::Vanished => "vanished before being read",
            ProblemKind::Unwritable => "could not be written",
            ProblemKind::Owner => "owner not kept",
            ProblemKind::Mode => "permissions not kept",
            ProblemKind::Times => "times not kept",
            ProblemKind::Xattrs => "extended attributes not kept",
            ProblemKind::Acls => "ACLs not kept",
            ProblemKind::Link => "hard link not kept",
            ProblemKind::Special => "device, pipe or socket not made",
            ProblemKind::Name => "name not possible at the destination",
            ProblemKind::Undeleted => "could not be deleted",
            ProblemKind::Damaged => "is not on the device as it was written",
            ProblemKind::Protected => "not deleted",
            ProblemKind::MaxDelete => "not deleted, as --max-delete is reached",
            ProblemKind::NoBase => "not used by --link-dest",
        }
    }
}

/// Something that went wrong with one file; the copy goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Kind of the problem, which decides how it is reported.
    pub kind: ProblemKind,
    /// Path of the file below the root.
    pub path: Vec<u8>,
    /// The reason, for people.
    pub text: String,
}

/// Passes the counters of a copy, in their order on the wire, to another macro.
macro_rules! with_counters {
    ($use:ident) => {
        $use! {
            /// Entries listed.
            entries
            /// Files whose content was written.
            files
            /// Bytes of content written.
            written_bytes
            /// Bytes of files that have their final names.
            visible_bytes
            /// Entries that were up to date.
            kept
            /// Entries of which only attributes were changed.
            retouched
            /// Directories, links and devices made.
            made
            /// Entries deleted.
            deleted
            /// Bytes reused from an earlier, interrupted copy.
            resumed_bytes
            /// Files to transfer, as far as known.
            wanted_files
            /// Bytes to transfer, as far as known.
            wanted_bytes
            /// Duration of the final sync in microseconds.
            sync_us
            /// Bytes of content taken from old files at the destination.
            reused_bytes
            /// Bytes read back from the device and verified.
            verified_bytes
            /// Duration of reading back in microseconds.
            verify_us
        }
    };
}
pub(crate) use with_counters;

macro_rules! account {
    ($(#[$doc:meta] $field:ident)*) => {
        /// The receiver's counters, sent during the copy and at its end.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Account {
            $(#[$doc] pub $field: u64,)*
        }

        impl Account {
            /// The counters in their order on the wire.
            pub(super) fn counters(&self) -> impl Iterator<Item = u64> {
                [$(self.$field),*].into_iter()
            }

            /// Reads the counters in their order on the wire.
            pub(super) fn of<E>(mut next: impl FnMut() -> Result<u64, E>) -> Result<Account, E> {
                Ok(Account { $($field: next()?,)* })
            }
        }
    };
}
with_counters!(account);

/// A message between sender and receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Sender: names of owners and groups, sent before the first entry with that number.
    Owners(Vec<Owner>),
    /// Sender: names in a directory.
    List(List),
    /// Sender: everything has been listed.
    Listed {
        /// Total number of listed entries.
        entries: u64,
        /// Directories and files that could not be read. If there are any, nothing may be deleted.
        errors: u64,
    },
    /// Sender: some names of a directory could not be listed, so nothing may be deleted in it.
    Unlisted {
        /// Path of the directory, or of an unknown entry, below the destination.
        directory: Vec<u8>,
        /// Whether nothing is known about this path and everything below it.
        beneath: bool,
    },
    /// Sender: a requested file cannot be sent.
    Lost {
        /// The entry's number.
        id: u64,
    },
    /// Sender: all requested content was sent. Once it has arrived, files get their names and the tree is finished.
    Finish {
        /// Total number of data messages; the last ones may still be in flight.
        records: u64,
    },
    /// Receiver: requests for content.
    Answer(Answer),
    /// Receiver: there is enough space; content may be sent.
    Begin,
    /// Receiver: this record is written and verified.
    Acknowledge {
        /// The record's number.
        sequence: u64,
    },
    /// Receiver: hashes of an existing file.
    Basis(Basis),
    /// Receiver: these entries are complete and on the disk under their final names.
    Visible {
        /// The entries' numbers.
        ids: Vec<u64>,
        /// Whether these are the last ones.
        last: bool,
    },
    /// Sender: files that the destination has on its disk were removed from the source (`--remove-source-files`).
    Removed {
        /// Number of removed files.
        count: u64,
    },
    /// Receiver: its counters. With `last`, everything is done and synced.
    Account {
        /// The figures.
        account: Account,
        /// Whether this is the last message of a successful run.
        last: bool,
    },
    /// Receiver: this link, device or directory is made or, in a dry run, would be. Sent if the user wants names.
    Made {
        /// Path below the destination.
        path: Vec<u8>,
    },
    /// Receiver: this entry changes or, in a dry run, would. Sent with `--itemize-changes`.
    Item {
        /// The letters of `rsync -i`.
        letters: Vec<u8>,
        /// Path below the destination, and the target of a link.
        path: Vec<u8>,
    },
    /// Receiver: the hash of a file. Sent at the end with `--hash-list`.
    Hashed {
        /// Path below the destination.
        path: Vec<u8>,
        /// Hash of the file's whole content.
        hash: [u8; 32],
    },
    /// Receiver: this path has been deleted or, in a dry run, would be.
    Deleted {
        /// Path below the destination.
        path: Vec<u8>,
    },
    /// Either: a problem with one file.
    Problem(Problem),
    /// Either: this end gives up.
    Abort {
        /// The exit code for the error; 255 for a lost connection, after which the other end may reconnect.
        exit_code: u8,
        /// The error message.
        text: String,
    },
    /// Receiver: the sender's rate limit from now on.
    Limit {
        /// Bytes per second; 0 for no limit.
        bytes_per_s: u64,
    },
    /// Either: this end's clock readings as JSON, for the verdict.
    Counters(Vec<u8>),
    /// Receiver that the user started: copy only these paths below the source.
    Paths {
        /// The paths, in the form of `--files-from`, or a part of them.
        paths: Vec<Vec<u8>>,
        /// Whether more paths follow.
        more: bool,
    },
    /// Either, between the transports only: how messages will travel, as JSON.
    Way(Vec<u8>),
    /// Either, between the transports only: later messages come over the new connection.
    Switch,
    /// Sender: small files.
    Pack(Pack),
    /// Sender: a block of a big file.
    Block(Block),
    /// Sender: blocks that are holes.
    Holes {
        /// The record's number, for its acknowledgement.
        sequence: u64,
        /// The entry's number.
        id: u64,
        /// The blocks.
        run: Run,
    },
    /// Sender: these blocks equal those of the destination's old file.
    Same {
        /// The record's number, for its acknowledgement.
        sequence: u64,
        /// The entry's number.
        id: u64,
        /// The blocks.
        run: Run,
    },
    /// Sender: the destination's file equals this one.
    Identical {
        /// The record's number, for its acknowledgement.
        sequence: u64,
        /// The entry's number.
        id: u64,
    },
    /// Sender: this file was compared, and differs from the destination's.
    Differs {
        /// The record's number, for its acknowledgement.
        sequence: u64,
        /// The entry's number.
        id: u64,
    },
}

impl Message {
    /// Bytes of content in the message, as they travel.
    pub fn content_bytes(&self) -> usize {
        match self {
            Message::Pack(pack) => pack.payload.bytes().len(),
            Message::Block(block) => block.payload.bytes().len(),
            _ => 0,
        }
    }

    /// Whether it carries content, so that it may arrive in any order.
    pub fn is_data(&self) -> bool {
        matches!(
            self,
            Message::Pack(_)
                | Message::Block(_)
                | Message::Holes { .. }
                | Message::Same { .. }
                | Message::Identical { .. }
                | Message::Differs { .. }
        )
    }
}
