//! Decodes the body of a frame. Rejects everything that an honest sender does not write.

use super::encode::{ATTRIBUTES, COMPARE, COMPLETE, LINKED, MORE, SAME_SIZE, SPARSE, kind};
use super::message::{
    Account, Answer, Basis, Block, List, Message, Owner, Pack, Packed, Payload, Problem, ProblemKind, Run, Segment,
    Wanted,
};
use super::{
    BASIS_HASHES, CONTROL_BYTES, DATA_BYTES, FILE_BYTES, HUGE_BLOCK_BYTES, LIST_ENTRIES, PACK_BYTES, PACK_FILES,
    SEGMENTS, VISIBLE_IDS, WAY_BYTES,
};
use crate::entry::{
    self, Entry, Identity, Kind, NAME_BYTES, PATH_BYTES, Time, XATTR_BYTES, XATTRS, XATTRS_BYTES, Xattrs,
};

/// Number of letters of an item.
const LETTERS: usize = 11;

/// Malformed data from the other end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A frame is longer than any of its kind can be.
    #[error("a frame of kind {kind} with {length} bytes, more than the protocol allows")]
    TooLong {
        /// Number of the frame's kind.
        kind: u8,
        /// The claimed length in bytes.
        length: u64,
    },
    /// A frame is of a kind that this version does not know.
    #[error("a frame of unknown kind {0}")]
    UnknownKind(u8),
    /// A frame ends too early, goes on after its end, or has an invalid part.
    #[error("a frame of kind {kind} is malformed: {what}")]
    Malformed {
        /// Number of the frame's kind.
        kind: u8,
        /// The invalid part.
        what: &'static str,
    },
}

/// Longest body of a frame of this kind, in bytes.
pub(super) fn longest(kind: u8) -> Result<usize, WireError> {
    match kind {
        kind::OWNERS..=kind::UNLISTED => Ok(CONTROL_BYTES),
        kind::PACK..=kind::DIFFERS => Ok(DATA_BYTES),
        kind => Err(WireError::UnknownKind(kind)),
    }
}

/// Decodes a frame's body. Takes its memory if it has content.
pub(super) fn message(kind: u8, body: &mut Vec<u8>) -> Result<Message, WireError> {
    let mut reader = BodyReader { bytes: body, at: 0 };
    let malformed = |what| WireError::Malformed { kind, what };
    let head = reader.head(kind).map_err(malformed)?;
    let at = reader.at;
    let rest = body.len() - at;
    match head {
        Head::Whole(message) if rest == 0 => Ok(message),
        Head::Whole(_) => Err(malformed("bytes behind its end")),
        Head::Pack(mut pack) => {
            let sum: u64 = pack.files.iter().map(|file| u64::from(file.length)).sum();
            let right = if pack.compressed { (rest as u64) < sum } else { rest as u64 == sum };
            if !right || sum > PACK_BYTES as u64 {
                return Err(malformed("content of another length"));
            }
            pack.payload = Payload::within(std::mem::take(body), at);
            Ok(Message::Pack(pack))
        }
        Head::Block(mut block) => {
            let content: u64 = match block.segments.as_slice() {
                [] => u64::from(block.length),
                segments => segments.iter().map(|segment| u64::from(segment.length)).sum(),
            };
            let right = if block.compressed { (rest as u64) < content } else { rest as u64 == content };
            if !right {
                return Err(malformed("content of another length"));
            }
            block.payload = Payload::within(std::mem::take(body), at);
            Ok(Message::Block(block))
        }
    }
}

enum Head {
    Whole(Message),
    Pack(Pack),
    Block(Block),
}

/// Describes the invalid part.
type Wrong = &'static str;

struct BodyReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BodyReader<'a> {
    fn head(&mut self, kind: u8) -> Result<Head, Wrong> {
        Ok(Head::Whole(match kind {
            kind::OWNERS => Message::Owners(self.owners()?),
            kind::LIST => Message::List(self.list()?),
            kind::LISTED => Message::Listed { entries: self.number()?, errors: self.number()? },
            kind::UNLISTED => Message::Unlisted { beneath: self.flag()?, directory: self.path()? },
            kind::LOST => Message::Lost { id: self.number()? },
            kind::FINISH => Message::Finish { records: self.number()? },
            kind::ANSWER => Message::Answer(self.answer()?),
            kind::BEGIN => Message::Begin,
            kind::ACKNOWLEDGE => Message::Acknowledge { sequence: self.number()? },
            kind::BASIS => Message::Basis(self.basis()?),
            kind::REMOVED => Message::Removed { count: self.number()? },
            kind::VISIBLE => {
                let last = self.flag()?;
                let count = self.count(VISIBLE_IDS)?;
                let ids = (0..count).map(|_| self.number()).collect::<Result<_, _>>()?;
                Message::Visible { ids, last }
            }
            kind::ACCOUNT => Message::Account { last: self.flag()?, account: Account::of(|| self.number())? },
            kind::MADE => Message::Made { path: self.told_path()? },
            kind::ITEM => Message::Item { letters: self.bytes(LETTERS)?.to_vec(), path: self.told_path()? },
            kind::HASHED => Message::Hashed { path: self.path()?, hash: self.hash()? },
            kind::DELETED => Message::Deleted { path: self.told_path()? },
            kind::PROBLEM => Message::Problem(self.problem()?),
            kind::ABORT => Message::Abort { exit_code: self.byte()?, text: self.text()? },
            kind::LIMIT => Message::Limit { bytes_per_s: self.number()? },
            kind::COUNTERS => Message::Counters(self.bytes(CONTROL_BYTES)?.to_vec()),
            kind::PATHS => Message::Paths { more: self.flag()?, paths: self.paths()? },
            kind::WAY => Message::Way(self.bytes(WAY_BYTES)?.to_vec()),
            kind::SWITCH => Message::Switch,
            kind::PACK => return Ok(Head::Pack(self.pack()?)),
            kind::BLOCK => return Ok(Head::Block(self.block()?)),
            kind::HOLES => Message::Holes { sequence: self.number()?, id: self.number()?, run: self.run()? },
            kind::SAME => Message::Same { sequence: self.number()?, id: self.number()?, run: self.run()? },
            kind::IDENTICAL => Message::Identical { sequence: self.number()?, id: self.number()? },
            kind::DIFFERS => Message::Differs { sequence: self.number()?, id: self.number()? },
            _ => return Err("an unknown kind"),
        }))
    }

    fn owners(&mut self) -> Result<Vec<Owner>, Wrong> {
        let count = self.count(CONTROL_BYTES)?;
        (0..count)
            .map(|_| {
                let group = self.flag()?;
                let id = self.small("a number of an owner")?;
                let name = self.bytes(NAME_BYTES)?.to_vec();
                Ok(Owner { group, id, name })
            })
            .collect()
    }

    /// Paths below a source; one that ends in a slash stands for the content of the directory.
    fn paths(&mut self) -> Result<Vec<Vec<u8>>, Wrong> {
        let count = self.count(CONTROL_BYTES)?;
        let path = |bytes: &[u8]| entry::is_path(bytes.strip_suffix(b"/").unwrap_or(bytes)).then(|| bytes.to_vec());
        (0..count).map(|_| path(self.bytes(PATH_BYTES + 1)?).ok_or("a path below the source")).collect()
    }

    fn list(&mut self) -> Result<List, Wrong> {
        let first = self.number()?;
        let directory = self.path()?;
        let flags = self.byte()?;
        if flags > COMPLETE | MORE {
            return Err("flags of a list");
        }
        let count = self.count(LIST_ENTRIES)?;
        if first.checked_add(count as u64).is_none() {
            return Err("numbers of entries");
        }
        let at_root = directory.is_empty();
        let entries = (0..count).map(|_| self.entry(at_root)).collect::<Result<_, _>>()?;
        Ok(List { first, directory, complete: flags & COMPLETE != 0, more: flags & MORE != 0, entries })
    }

    fn entry(&mut self, at_root: bool) -> Result<Entry, Wrong> {
        let name = self.bytes(NAME_BYTES)?.to_vec();
        let kind = self.kind()?;
        // The directory without a name is the destination itself, whose attributes are set as well.
        let is_root = name.is_empty() && at_root && kind == Kind::Directory;
        if !is_root && !entry::is_name(&name) {
            return Err("a name");
        }
        let flags = self.byte()?;
        if flags > SPARSE | LINKED | ATTRIBUTES || flags & SPARSE != 0 && kind != Kind::File {
            return Err("flags of an entry");
        }
        let mut entry = Entry::plain(&[], kind);
        entry.name = name;
        entry.mode = self.small("a mode")?;
        if entry.mode > 0o7777 {
            return Err("a mode");
        }
        entry.user = self.small("a number of an owner")?;
        entry.group = self.small("a number of a group")?;
        entry.modified = self.time()?;
        if kind != Kind::Directory {
            let (device, inode) = (self.number()?, self.number()?);
            entry.identity = Identity { device, inode, changed: self.time()? };
        }
        match kind {
            Kind::File => {
                entry.size = self.number()?;
                if entry.size > FILE_BYTES {
                    return Err("a size");
                }
                entry.stored = if flags & SPARSE != 0 { Some(self.number()?) } else { None };
            }
            Kind::Symlink => {
                entry.target = self.bytes(PATH_BYTES)?.to_vec();
                if entry.target.is_empty() || entry.target.contains(&0) {
                    return Err("what a symbolic link says");
                }
            }
            Kind::Character | Kind::Block => {
                entry.device = (self.small("a device")?, self.small("a device")?);
            }
            Kind::Directory | Kind::Fifo | Kind::Socket => {}
        }
        if flags & LINKED != 0 {
            if kind == Kind::Directory {
                return Err("a hard link to a directory");
            }
            entry.link_group = Some(self.number()?);
        }
        if flags & ATTRIBUTES != 0 {
            entry.xattrs = self.xattrs()?;
        }
        Ok(entry)
    }

    fn xattrs(&mut self) -> Result<Xattrs, Wrong> {
        let count = self.count(XATTRS)?;
        let mut xattrs: Xattrs = Vec::with_capacity(count.min(16));
        let mut sum = 0;
        for _ in 0..count {
            let name = self.bytes(NAME_BYTES)?.to_vec();
            let value = self.bytes(XATTR_BYTES)?.to_vec();
            sum += name.len() + value.len();
            let ascends = xattrs.last().is_none_or(|(before, _)| *before < name);
            if name.is_empty() || name.contains(&0) || !ascends || sum > XATTRS_BYTES {
                return Err("extended attributes");
            }
            xattrs.push((name, value));
        }
        if xattrs.is_empty() {
            return Err("extended attributes");
        }
        Ok(xattrs)
    }

    fn answer(&mut self) -> Result<Answer, Wrong> {
        let through = self.number()?;
        // A receiver answers no more entries at once than a list has.
        let count = self.count(LIST_ENTRIES)?;
        let mut wanted: Vec<Wanted> = Vec::with_capacity(count.min(LIST_ENTRIES));
        let mut before = 0_u64;
        for position in 0..count {
            let step = self.number()?;
            let id = before.checked_add(step).filter(|id| *id < through && (position == 0 || step > 0));
            let id = id.ok_or("a number of an entry")?;
            before = id;
            let flags = self.byte()?;
            if flags > COMPARE | SAME_SIZE {
                return Err("flags of a wish");
            }
            let runs = self.count(CONTROL_BYTES)?;
            let mut have: Vec<Run> = Vec::with_capacity(runs.min(LIST_ENTRIES));
            for _ in 0..runs {
                let run = self.run()?;
                if have.last().is_some_and(|last| last.first + last.count >= run.first) {
                    return Err("blocks that are there");
                }
                have.push(run);
            }
            wanted.push(Wanted { id, have, compare: flags & COMPARE != 0, same_size: flags & SAME_SIZE != 0 });
        }
        Ok(Answer { through, wanted })
    }

    fn basis(&mut self) -> Result<Basis, Wrong> {
        let (id, first, last) = (self.number()?, self.number()?, self.flag()?);
        let count = self.count(BASIS_HASHES)?;
        if first > FILE_BYTES / super::BLOCK_BYTES {
            return Err("a number of a block");
        }
        let hashes = (0..count).map(|_| self.hash()).collect::<Result<_, _>>()?;
        Ok(Basis { id, first, hashes, last })
    }

    fn problem(&mut self) -> Result<Problem, Wrong> {
        let kind = ProblemKind::ALL.get(usize::from(self.byte()?)).copied().ok_or("a kind of problem")?;
        Ok(Problem { kind, path: self.told_path()?, text: self.text()? })
    }

    fn pack(&mut self) -> Result<Pack, Wrong> {
        let sequence = self.number()?;
        let hash = self.hash()?;
        let compressed = self.flag()?;
        let count = self.count(PACK_FILES)?;
        let files = (0..count)
            .map(|_| Ok(Packed { id: self.number()?, length: self.small("a length")? }))
            .collect::<Result<_, Wrong>>()?;
        Ok(Pack { sequence, hash, files, compressed, payload: Payload::default() })
    }

    fn block(&mut self) -> Result<Block, Wrong> {
        let (sequence, id, index) = (self.number()?, self.number()?, self.number()?);
        let hash = self.hash()?;
        let length = self.small("a length")?;
        if u64::from(length) > HUGE_BLOCK_BYTES || index > FILE_BYTES / super::BLOCK_BYTES {
            return Err("a length");
        }
        let compressed = self.flag()?;
        let count = self.count(SEGMENTS)?;
        let mut segments: Vec<Segment> = Vec::with_capacity(count);
        let mut end = 0_u64;
        for _ in 0..count {
            let segment = Segment { offset: self.small("a part")?, length: self.small("a part")? };
            let behind = u64::from(segment.offset) + u64::from(segment.length);
            if u64::from(segment.offset) < end || segment.length == 0 || behind > u64::from(length) {
                return Err("parts of a block");
            }
            end = behind;
            segments.push(segment);
        }
        Ok(Block { sequence, id, index, hash, length, segments, compressed, payload: Payload::default() })
    }

    fn run(&mut self) -> Result<Run, Wrong> {
        let run = Run { first: self.number()?, count: self.number()? };
        let end =
            run.first.checked_add(run.count).filter(|end| run.count > 0 && *end <= FILE_BYTES / super::BLOCK_BYTES + 1);
        end.map(|_| run).ok_or("a run of blocks")
    }

    fn kind(&mut self) -> Result<Kind, Wrong> {
        Ok(match self.byte()? {
            0 => Kind::File,
            1 => Kind::Directory,
            2 => Kind::Symlink,
            3 => Kind::Fifo,
            4 => Kind::Socket,
            5 => Kind::Character,
            6 => Kind::Block,
            _ => return Err("a kind of file"),
        })
    }

    fn time(&mut self) -> Result<Time, Wrong> {
        let zigzag = self.number()?;
        let seconds = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let nanoseconds = self.small("a time")?;
        if nanoseconds >= 1_000_000_000 {
            return Err("a time");
        }
        Ok(Time { seconds, nanoseconds })
    }

    fn path(&mut self) -> Result<Vec<u8>, Wrong> {
        let path = self.bytes(PATH_BYTES)?;
        if entry::is_path(path) { Ok(path.to_vec()) } else { Err("a path") }
    }

    /// A path that is only shown, never opened.
    fn told_path(&mut self) -> Result<Vec<u8>, Wrong> {
        self.bytes(PATH_BYTES).map(<[u8]>::to_vec)
    }

    fn text(&mut self) -> Result<String, Wrong> {
        Ok(String::from_utf8_lossy(self.bytes(PATH_BYTES)?).into_owned())
    }

    fn hash(&mut self) -> Result<[u8; 32], Wrong> {
        self.take(32)?.try_into().map_err(|_| "a hash")
    }

    fn flag(&mut self) -> Result<bool, Wrong> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag"),
        }
    }

    /// A number of items of at least a byte each, so that memory reserved for them is bounded.
    fn count(&mut self, most: usize) -> Result<usize, Wrong> {
        let count = self.number()?;
        let left = (self.bytes.len() - self.at) as u64;
        if count > most as u64 || count > left { Err("a count") } else { Ok(count as usize) }
    }

    fn bytes(&mut self, most: usize) -> Result<&'a [u8], Wrong> {
        let length = self.number()?;
        if length > most as u64 { Err("a length") } else { self.take(length as usize) }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Wrong> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or("its end")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Wrong> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn small(&mut self, what: Wrong) -> Result<u32, Wrong> {
        u32::try_from(self.number()?).map_err(|_| what)
    }

    /// LEB128 of at most 64 bits, in its shortest form.
    fn number(&mut self) -> Result<u64, Wrong> {
        let mut number = 0_u64;
        for position in 0..10 {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if position == 9 && bits > 1 || position > 0 && byte == 0 {
                return Err("a number");
            }
            number |= bits << (7 * position);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("a number")
    }
}
