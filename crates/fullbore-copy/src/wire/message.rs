//! The messages, as both ends see them.

use crate::entry::Entry;

/// Bytes at the end of a buffer: a received frame is not copied to part its content from its head.
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

    /// The memory, to be used again.
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

/// A number of an owner or group, and its name at the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Whether the number is of a group, else of a user.
    pub group: bool,
    /// Number of the user or group at the source.
    pub id: u32,
    /// Name of the user or group at the source.
    pub name: Vec<u8>,
}

/// Names in one directory, or a part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// The number of the first entry; the others follow. Numbers start at 0 and have no gaps.
    pub first: u64,
    /// Path of the directory beneath the destination; empty is the destination itself.
    pub directory: Vec<u8>,
    /// With this list all names of the directory have been told, and none was unreadable: what the
    /// destination has besides may be deleted.
    pub complete: bool,
    /// More of the same directory follows in the next list.
    pub more: bool,
    /// Entries of the directory, in order of their numbers.
    pub entries: Vec<Entry>,
}

/// Blocks of a file that need not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the first block of the run.
    pub first: u64,
    /// Number of blocks in the run.
    pub count: u64,
}

/// A file whose content is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Number of the entry whose content is wanted.
    pub id: u64,
    /// Runs of blocks that the receiver has, ascending.
    pub have: Vec<Run>,
    /// Hashes of what is there follow, and decide whether anything has to be sent.
    pub compare: bool,
    /// What is there is as long as the source's file: if all of it is the same, nothing has to be written.
    pub same_size: bool,
}

/// Hashes of what the destination has under a name, to be compared with the source's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// Number of the entry that the hashes are of.
    pub id: u64,
    /// Number of the first block with a hash.
    pub first: u64,
    /// BLAKE3 of this block and of those behind it. A small file is one block.
    pub hashes: Vec<[u8; 32]>,
    /// No more follows of this file.
    pub last: bool,
}

/// What the receiver wants of the entries listed so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Entries below this number are answered.
    pub through: u64,
    /// Those among them whose content is wanted, ascending.
    pub wanted: Vec<Wanted>,
}

/// One small file within a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Number of the entry that the content is of.
    pub id: u64,
    /// Length of its content in the record.
    pub length: u32,
}

/// Several small files in one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pack {
    /// The record's number, for its acknowledgement.
    pub sequence: u64,
    /// BLAKE3 hash of the content of all files.
    pub hash: [u8; 32],
    /// Whose content it is, in order.
    pub files: Vec<Packed>,
    /// Whether the payload is a zstd frame of the content.
    pub compressed: bool,
    /// The content, one file behind the other.
    pub payload: Payload,
}

/// A part of a block that is no hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins within the block.
    pub offset: u32,
    /// Length of the segment, in bytes.
    pub length: u32,
}

/// A block of a big file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The record's number, for its acknowledgement.
    pub sequence: u64,
    /// Number of the entry that the block is of.
    pub id: u64,
    /// Number of the block within the file, counted from 0.
    pub index: u64,
    /// BLAKE3 of the whole block, holes read as zeros.
    pub hash: [u8; 32],
    /// Length of the block; shorter than expected only where the file has become shorter.
    pub length: u32,
    /// The parts that are no holes, ascending; none means that all of it is content.
    pub segments: Vec<Segment>,
    /// Whether the payload is a zstd frame of the content.
    pub compressed: bool,
    /// Content of the block, maybe compressed.
    pub payload: Payload,
}

/// What kind of problem one file has; decides the words and the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProblemKind {
    /// The source could not be read.
    Unreadable,
    /// It changed while it was read.
    Changed,
    /// It is gone since it was listed.
    Vanished,
    /// It could not be written.
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
    /// What the device holds is not what was written.
    Damaged,
    /// A directory is not deleted, as something in it is excluded.
    Protected,
    /// It is not deleted, as enough was.
    MaxDelete,
    /// A directory of `--link-dest` is none.
    NoBase,
}

impl ProblemKind {
    /// All of them, in the order of their numbers on the wire.
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

    /// Whether the copy is not whole: then nothing is deleted.
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

    /// Whether it is what was wished for, and only told: the copy ends well all the same.
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
    /// Path of the file beneath the root.
    pub path: Vec<u8>,
    /// Message of the system about the problem.
    pub text: String,
}

/// Hands the counters of a copy, in their order on the wire, to another macro.
macro_rules! with_counters {
    ($use:ident) => {
        $use! {
            /// Entries listed.
            entries
            /// Files whose content was written.
            files
            /// Bytes of content written.
            written_bytes
            /// Bytes of files that are now visible.
            visible_bytes
            /// Entries that were up to date.
            kept
            /// Entries whose attributes alone were changed.
            retouched
            /// Directories, links, devices made.
            made
            /// Entries deleted.
            deleted
            /// Bytes of an earlier, broken off copy that were used.
            resumed_bytes
            /// Files to be transferred, as far as is known.
            wanted_files
            /// Bytes to be transferred, as far as is known.
            wanted_bytes
            /// Time that the final sync took, microseconds.
            sync_us
            /// Bytes of content that were taken from the old files at the destination.
            reused_bytes
            /// Bytes read back from the device and found right.
            verified_bytes
            /// Time that reading back took, microseconds.
            verify_us
        }
    };
}
pub(crate) use with_counters;

macro_rules! account {
    ($(#[$doc:meta] $field:ident)*) => {
        /// What the receiver counted, told at the end and while it goes.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Account {
            $(#[$doc] pub $field: u64,)*
        }

        impl Account {
            /// The counters in their order on the wire.
            pub(super) fn counters(&self) -> impl Iterator<Item = u64> {
                [$(self.$field),*].into_iter()
            }

            /// An account of counters in their order on the wire.
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
    /// Sender: names of owners and groups, before the first entry that has the number.
    Owners(Vec<Owner>),
    /// Sender: names in a directory.
    List(List),
    /// Sender: everything has been listed; how many directories could not be read.
    Listed {
        /// Entries listed in all.
        entries: u64,
        /// Directories and files that could not be examined: nothing may be deleted then.
        errors: u64,
    },
    /// Sender: not all names of a directory could be told, so that none is deleted there.
    Unlisted {
        /// Path of the directory, or of something unknown, beneath the destination.
        directory: Vec<u8>,
        /// Nothing is known of what is there, nor of anything beneath it.
        beneath: bool,
    },
    /// Sender: a file that is wanted cannot be sent.
    Lost {
        /// The entry's number.
        id: u64,
    },
    /// Sender: everything wanted was sent. When it has come, names may be given and the tree finished.
    Finish {
        /// How many data messages there are in all; the last ones may still be on their way.
        records: u64,
    },
    /// Receiver: what is wanted.
    Answer(Answer),
    /// Receiver: there is room; content may come.
    Begin,
    /// Receiver: this record is written and verified.
    Acknowledge {
        /// The record's number.
        sequence: u64,
    },
    /// Receiver: hashes of what is there.
    Basis(Basis),
    /// Receiver: these entries are complete under their final names, and that is on the disk.
    Visible {
        /// Their numbers.
        ids: Vec<u64>,
        /// No more follows: all that will ever be on the disk is.
        last: bool,
    },
    /// Sender: what was visible has been removed at the source, as was wished.
    Removed {
        /// How many.
        count: u64,
    },
    /// Receiver: where it stands; with `last` all is done and synced.
    Account {
        /// The figures.
        account: Account,
        /// The last message of a run that went well.
        last: bool,
    },
    /// Receiver: this link, device or directory is, or would be, made; told where names are.
    Made {
        /// Path beneath the destination.
        path: Vec<u8>,
    },
    /// Receiver: this is, or would be, changed; told where that was asked for.
    Item {
        /// The letters of `rsync -i`.
        letters: Vec<u8>,
        /// Path beneath the destination, and what a link leads to.
        path: Vec<u8>,
    },
    /// Receiver: the hash of a file, told at the end where that was asked for.
    Hashed {
        /// Path beneath the destination.
        path: Vec<u8>,
        /// The hash of its whole content.
        hash: [u8; 32],
    },
    /// Receiver: this would be, or has been, deleted.
    Deleted {
        /// Path beneath the destination.
        path: Vec<u8>,
    },
    /// Either: something is wrong with one file.
    Problem(Problem),
    /// Either: the copy cannot go on.
    Abort {
        /// Which exit code it leads to; 255 for a lost connection, which may be dialled again.
        exit_code: u8,
        /// Why.
        text: String,
    },
    /// Receiver: the sender may send so fast from now on, bytes per second; 0 for no limit.
    Limit {
        /// Bytes per second.
        bytes_per_s: u64,
    },
    /// Either: counters of this end as JSON, for the verdict.
    Counters(Vec<u8>),
    /// The receiver that was started by the user: only these paths beneath the source are wanted.
    Paths {
        /// A part of them, as `--files-from` names them.
        paths: Vec<Vec<u8>>,
        /// Others follow.
        more: bool,
    },
    /// Either, between the transports alone: how messages shall go, as JSON.
    Way(Vec<u8>),
    /// Either, between the transports alone: what follows comes by the new connection.
    Switch,
    /// Sender: small files.
    Pack(Pack),
    /// Sender: a block of a big file.
    Block(Block),
    /// Sender: blocks that are all hole.
    Holes {
        /// The record's number, for its acknowledgement.
        sequence: u64,
        /// The entry's number.
        id: u64,
        /// Which blocks.
        run: Run,
    },
    /// Sender: these blocks are what the destination has in its old file.
    Same {
        /// The record's number, for its acknowledgement.
        sequence: u64,
        /// The entry's number.
        id: u64,
        /// Which blocks.
        run: Run,
    },
    /// Sender: all of this file is what the destination has.
    Identical {
        /// The record's number, for its acknowledgement.
        sequence: u64,
        /// The entry's number.
        id: u64,
    },
    /// Sender: this file was compared, and is not what the destination has.
    Differs {
        /// The record's number, for its acknowledgement.
        sequence: u64,
        /// The entry's number.
        id: u64,
    },
}

impl Message {
    /// Bytes of content in it, as it travels.
    pub fn content_bytes(&self) -> usize {
        match self {
            Message::Pack(pack) => pack.payload.bytes().len(),
            Message::Block(block) => block.payload.bytes().len(),
            _ => 0,
        }
    }

    /// Whether it carries content, so that its order does not matter.
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
