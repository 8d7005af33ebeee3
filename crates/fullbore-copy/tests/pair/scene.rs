//! One honest end, and a script in the place of the other.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fullbore_copy::entry::{Entry, Kind as EntryKind};
use fullbore_copy::error::CopyError;
use fullbore_copy::options::Options;
use fullbore_copy::queue::Taken;
use fullbore_copy::receiver::{self, Destination};
use fullbore_copy::session::{CancelToken, Context, Event, Exchange, Link, Progress, RateLimit};
use fullbore_copy::wire::{Block, List, Message, Pack, Packed, Payload, Problem};
use fullbore_engine::stage::{Kind, Ledger};

/// Far longer than any of these takes.
pub const LONG: Duration = Duration::from_secs(60);
/// How soon what happens elsewhere is seen.
pub const LOOK: Duration = Duration::from_millis(2);

/// An honest end against a script.
pub struct Scene {
    /// The honest end's.
    pub link: Link,
    /// Its wishes.
    pub options: Options,
    /// What it told of.
    pub problems: Mutex<Vec<Problem>>,
}

impl Scene {
    /// Nothing has been said yet.
    pub fn new() -> Scene {
        Scene { link: Link::remote(), options: super::options(), problems: Mutex::default() }
    }

    /// Works as the honest end.
    pub fn with<R>(&self, work: impl FnOnce(&Context<'_>) -> R) -> R {
        let (ledger, progress) = (Ledger::off(), Progress::default());
        let (exchange, limit) = (Exchange::default(), RateLimit::new(0, Instant::now()));
        let tell = |event: Event| {
            if let Event::Problem(problem) = event {
                self.problems.lock().unwrap().push(problem);
            }
        };
        work(&Context {
            options: &self.options,
            link: self.link.clone(),
            cancel: CancelToken::new(&self.link),
            ledger: &ledger,
            progress: &progress,
            tell: &tell,
            exchange: &exchange,
            limit: &limit,
        })
    }

    /// What the receiver makes of control messages, and of content that comes when it has asked for some.
    pub fn receive(&self, target: &Path, control: Vec<Message>, data: Vec<Message>) -> Result<(), Arc<CopyError>> {
        let clock = Ledger::off().stage("test", Kind::Thread);
        let destination = Destination::at(target);
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| self.with(|context| receiver::run(context, &destination)));
            for message in control {
                let _ = self.link.control_in.push(message, &clock);
            }
            let count = data.len();
            let (mut acknowledged, mut begun) = (0, false);
            let mut data = Some(data);
            let until = Instant::now() + LONG;
            while !receiving.is_finished() && Instant::now() < until {
                match self.link.control_out.pop_within(LOOK, &clock) {
                    Taken::Item(Message::Begin) => begun = true,
                    Taken::Item(Message::Acknowledge { .. }) => acknowledged += 1,
                    _ => {}
                }
                if begun {
                    for message in data.take().unwrap_or_default() {
                        let _ = self.link.data.push(message, &clock);
                    }
                    if acknowledged == count {
                        begun = false;
                        let _ = self.link.control_in.push(finish(count as u64), &clock);
                    }
                }
            }
            self.end();
            receiving.join().unwrap().map(drop)
        })
    }

    /// Ends whoever has not ended by itself.
    pub fn end(&self) {
        CancelToken::new(&self.link).cancel(CopyError::Interrupted);
    }
}

/// A file as it is listed.
pub fn file(name: &str, size: u64) -> Entry {
    Entry { size, ..Entry::plain(name.as_bytes(), EntryKind::File) }
}

/// What the sender says when all was sent.
pub fn finish(records: u64) -> Message {
    Message::Finish { records }
}

/// Names of a directory.
pub fn list(first: u64, directory: &str, entries: Vec<Entry>) -> Message {
    Message::List(List { first, directory: directory.into(), complete: false, more: false, entries })
}

/// A record of one small file.
pub fn pack(id: u64, content: &[u8]) -> Message {
    Message::Pack(Pack {
        sequence: 0,
        hash: *blake3::hash(content).as_bytes(),
        files: vec![Packed { id, length: content.len() as u32 }],
        compressed: false,
        payload: Payload::new(content.to_vec()),
    })
}

/// A block of a big file.
pub fn block(id: u64, index: u64, content: &[u8]) -> Message {
    Message::Block(Block {
        sequence: 0,
        id,
        index,
        hash: *blake3::hash(content).as_bytes(),
        length: content.len() as u32,
        segments: Vec::new(),
        compressed: false,
        payload: Payload::new(content.to_vec()),
    })
}
