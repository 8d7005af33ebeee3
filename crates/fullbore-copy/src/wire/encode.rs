//! Encodes messages as frames: `length | kind | body`, numbers as LEB128, lengths before bytes.
//!
//! The content of data messages is not copied: it follows the header that is made here.

use super::message::Message;
use crate::entry::{Entry, Kind, PATH_BYTES, Time};

/// Kinds of frames. New ones need a new version of the protocol.
pub(super) mod kind {
    pub(crate) const OWNERS: u8 = 1;
    pub(crate) const LIST: u8 = 2;
    pub(crate) const LISTED: u8 = 3;
    pub(crate) const LOST: u8 = 4;
    pub(crate) const FINISH: u8 = 5;
    pub(crate) const ANSWER: u8 = 6;
    pub(crate) const BEGIN: u8 = 7;
    pub(crate) const ACKNOWLEDGE: u8 = 8;
    pub(crate) const VISIBLE: u8 = 9;
    pub(crate) const ACCOUNT: u8 = 10;
    pub(crate) const DELETED: u8 = 11;
    pub(crate) const PROBLEM: u8 = 12;
    pub(crate) const ABORT: u8 = 13;
    pub(crate) const LIMIT: u8 = 14;
    pub(crate) const COUNTERS: u8 = 15;
    pub(crate) const BASIS: u8 = 16;
    pub(crate) const REMOVED: u8 = 17;
    pub(crate) const MADE: u8 = 18;
    pub(crate) const PATHS: u8 = 19;
    pub(crate) const WAY: u8 = 20;
    pub(crate) const SWITCH: u8 = 21;
    pub(crate) const ITEM: u8 = 22;
    pub(crate) const HASHED: u8 = 23;
    pub(crate) const UNLISTED: u8 = 24;
    pub(crate) const PACK: u8 = 32;
    pub(crate) const BLOCK: u8 = 33;
    pub(crate) const HOLES: u8 = 34;
    pub(crate) const SAME: u8 = 35;
    pub(crate) const IDENTICAL: u8 = 36;
    pub(crate) const DIFFERS: u8 = 37;
}

pub(super) const SPARSE: u8 = 1;
pub(super) const LINKED: u8 = 2;
pub(super) const ATTRIBUTES: u8 = 4;

pub(super) const COMPARE: u8 = 1;
pub(super) const SAME_SIZE: u8 = 2;

pub(super) const COMPLETE: u8 = 1;
pub(super) const MORE: u8 = 2;

/// Appends the frame of a message to `out`, without the content of data messages. Returns the content, which has to be
/// written after it.
pub fn encode<'a>(message: &'a Message, out: &mut Vec<u8>) -> &'a [u8] {
    let begin = out.len();
    out.extend_from_slice(&[0; 5]);
    Writer { out }.body(message);
    let (kind, payload) = kind_and_content(message);
    let length = out.len() - begin - 5 + payload.len();
    // Frames are far shorter: the makers of messages keep the bounds in `wire`.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
    out[begin + 4] = kind;
    payload
}

/// The kind of a message's frame, and the content that follows its body.
fn kind_and_content(message: &Message) -> (u8, &[u8]) {
    const NONE: &[u8] = &[];
    match message {
        Message::Owners { .. } => (kind::OWNERS, NONE),
        Message::List { .. } => (kind::LIST, NONE),
        Message::Listed { .. } => (kind::LISTED, NONE),
        Message::Unlisted { .. } => (kind::UNLISTED, NONE),
        Message::Lost { .. } => (kind::LOST, NONE),
        Message::Finish { .. } => (kind::FINISH, NONE),
        Message::Answer { .. } => (kind::ANSWER, NONE),
        Message::Begin => (kind::BEGIN, NONE),
        Message::Acknowledge { .. } => (kind::ACKNOWLEDGE, NONE),
        Message::Basis { .. } => (kind::BASIS, NONE),
        Message::Removed { .. } => (kind::REMOVED, NONE),
        Message::Visible { .. } => (kind::VISIBLE, NONE),
        Message::Account { .. } => (kind::ACCOUNT, NONE),
        Message::Made { .. } => (kind::MADE, NONE),
        Message::Item { .. } => (kind::ITEM, NONE),
        Message::Hashed { .. } => (kind::HASHED, NONE),
        Message::Deleted { .. } => (kind::DELETED, NONE),
        Message::Problem { .. } => (kind::PROBLEM, NONE),
        Message::Abort { .. } => (kind::ABORT, NONE),
        Message::Limit { .. } => (kind::LIMIT, NONE),
        Message::Counters { .. } => (kind::COUNTERS, NONE),
        Message::Paths { .. } => (kind::PATHS, NONE),
        Message::Way { .. } => (kind::WAY, NONE),
        Message::Switch => (kind::SWITCH, NONE),
        Message::Pack(pack) => (kind::PACK, pack.payload.bytes()),
        Message::Block(block) => (kind::BLOCK, block.payload.bytes()),
        Message::Holes { .. } => (kind::HOLES, NONE),
        Message::Same { .. } => (kind::SAME, NONE),
        Message::Identical { .. } => (kind::IDENTICAL, NONE),
        Message::Differs { .. } => (kind::DIFFERS, NONE),
    }
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl Writer<'_> {
    fn body(&mut self, message: &Message) {
        match message {
            Message::Owners(owners) => {
                self.number(owners.len() as u64);
                for owner in owners {
                    self.byte(u8::from(owner.group));
                    self.number(u64::from(owner.id));
                    self.bytes(&owner.name);
                }
            }
            Message::List(list) => {
                self.number(list.first);
                self.bytes(&list.directory);
                self.byte(if list.complete { COMPLETE } else { 0 } | if list.more { MORE } else { 0 });
                self.number(list.entries.len() as u64);
                list.entries.iter().for_each(|entry| self.entry(entry));
            }
            Message::Listed { entries, errors } => self.numbers(&[*entries, *errors]),
            Message::Unlisted { directory, beneath } => {
                self.byte(u8::from(*beneath));
                self.bytes(directory);
            }
            Message::Lost { id } => self.number(*id),
            Message::Finish { records } => self.number(*records),
            Message::Answer(answer) => {
                self.number(answer.through);
                self.number(answer.wanted.len() as u64);
                let mut before = 0;
                for wanted in &answer.wanted {
                    self.number(wanted.id.wrapping_sub(before));
                    before = wanted.id;
                    let compare = if wanted.compare { COMPARE } else { 0 };
                    self.byte(compare | if wanted.same_size { SAME_SIZE } else { 0 });
                    self.number(wanted.have.len() as u64);
                    for run in &wanted.have {
                        self.numbers(&[run.first, run.count]);
                    }
                }
            }
            Message::Acknowledge { sequence } => self.number(*sequence),
            Message::Basis(basis) => {
                self.numbers(&[basis.id, basis.first]);
                self.byte(u8::from(basis.last));
                self.number(basis.hashes.len() as u64);
                basis.hashes.iter().for_each(|hash| self.out.extend_from_slice(hash));
            }
            Message::Removed { count } => self.number(*count),
            Message::Visible { ids, last } => {
                self.byte(u8::from(*last));
                self.number(ids.len() as u64);
                ids.iter().for_each(|id| self.number(*id));
            }
            Message::Account { account, last } => {
                self.byte(u8::from(*last));
                account.counters().for_each(|counter| self.number(counter));
            }
            Message::Made { path } => self.told_path(path),
            Message::Item { letters, path } => {
                self.bytes(letters);
                self.told_path(path);
            }
            Message::Hashed { path, hash } => {
                self.bytes(path);
                self.out.extend_from_slice(hash);
            }
            Message::Deleted { path } => self.told_path(path),
            Message::Problem(problem) => {
                self.byte(problem.kind as u8);
                self.told_path(&problem.path);
                self.text(&problem.text);
            }
            Message::Abort { exit_code, text } => {
                self.byte(*exit_code);
                self.text(text);
            }
            Message::Limit { bytes_per_s } => self.number(*bytes_per_s),
            Message::Counters(json) => self.bytes(json),
            Message::Paths { paths, more } => {
                self.byte(u8::from(*more));
                self.number(paths.len() as u64);
                paths.iter().for_each(|path| self.bytes(path));
            }
            Message::Way(json) => self.bytes(json),
            Message::Pack(pack) => {
                self.number(pack.sequence);
                self.out.extend_from_slice(&pack.hash);
                self.byte(u8::from(pack.compressed));
                self.number(pack.files.len() as u64);
                for file in &pack.files {
                    self.numbers(&[file.id, u64::from(file.length)]);
                }
            }
            Message::Block(block) => {
                self.numbers(&[block.sequence, block.id, block.index]);
                self.out.extend_from_slice(&block.hash);
                self.number(u64::from(block.length));
                self.byte(u8::from(block.compressed));
                self.number(block.segments.len() as u64);
                for segment in &block.segments {
                    self.numbers(&[u64::from(segment.offset), u64::from(segment.length)]);
                }
            }
            Message::Holes { sequence, id, run } => self.numbers(&[*sequence, *id, run.first, run.count]),
            Message::Same { sequence, id, run } => self.numbers(&[*sequence, *id, run.first, run.count]),
            Message::Identical { sequence, id } => self.numbers(&[*sequence, *id]),
            Message::Differs { sequence, id } => self.numbers(&[*sequence, *id]),
            Message::Begin | Message::Switch => {}
        }
    }

    fn entry(&mut self, entry: &Entry) {
        self.bytes(&entry.name);
        self.byte(entry.kind as u8);
        let sparse = if entry.stored.is_some() { SPARSE } else { 0 };
        let linked = if entry.link_group.is_some() { LINKED } else { 0 };
        let attributes = if entry.xattrs.is_empty() { 0 } else { ATTRIBUTES };
        self.byte(sparse | linked | attributes);
        self.numbers(&[u64::from(entry.mode), u64::from(entry.user), u64::from(entry.group)]);
        self.time(entry.modified);
        if entry.kind != Kind::Directory {
            self.numbers(&[entry.identity.device, entry.identity.inode]);
            self.time(entry.identity.changed);
        }
        match entry.kind {
            Kind::File => {
                self.number(entry.size);
                entry.stored.iter().for_each(|stored| self.number(*stored));
            }
            Kind::Symlink => self.bytes(&entry.target),
            Kind::Character | Kind::Block => {
                self.numbers(&[u64::from(entry.device.0), u64::from(entry.device.1)]);
            }
            Kind::Directory | Kind::Fifo | Kind::Socket => {}
        }
        if let Some(group) = entry.link_group {
            self.number(group);
        }
        if !entry.xattrs.is_empty() {
            self.number(entry.xattrs.len() as u64);
            for (name, value) in &entry.xattrs {
                self.bytes(name);
                self.bytes(value);
            }
        }
    }

    fn time(&mut self, time: Time) {
        // Zigzag encoding: small numbers of either sign are short.
        self.number(((time.seconds << 1) ^ (time.seconds >> 63)) as u64);
        self.number(u64::from(time.nanoseconds));
    }

    fn byte(&mut self, byte: u8) {
        self.out.push(byte);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    /// Encodes a path for people. Such a path may be longer than the system allows, as directories are opened step by
    /// step; its middle is cut out.
    fn told_path(&mut self, path: &[u8]) {
        const ELLIPSIS: &[u8] = b"...";
        if path.len() <= PATH_BYTES {
            return self.bytes(path);
        }
        let half = (PATH_BYTES - ELLIPSIS.len()) / 2;
        self.bytes(&[&path[..half], ELLIPSIS, &path[path.len() - half..]].concat());
    }

    /// Encodes text, cut where the other end would reject it.
    fn text(&mut self, text: &str) {
        let bytes = text.as_bytes();
        self.bytes(&bytes[..bytes.len().min(PATH_BYTES)]);
    }

    fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.out.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.out.push(number as u8);
    }
}
