//! The state that both ends of a run share: message queues, the cancel token, and the progress counters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fullbore_engine::stage::{Kind, Ledger, StageClock};
pub use fullbore_wire::rate_limit::RateLimit;

use crate::entry::Entry;
use crate::error::CopyError;
use crate::options::Options;
use crate::queue::{Closed, Queue};
use crate::wire::{Account, LIST_BYTES, Message, Owner, PATHS_BYTES, Problem, Wanted, with_counters};
use fullbore_engine::memory_pool::MemoryPool;

/// Most control messages of largest size that wait in one direction.
const CONTROL_MESSAGES: usize = 64;
/// Memory of [`CONTROL_MESSAGES`] messages of largest size: lists with names and attributes of 1000 entries. Smaller
/// lists may be more, such as those of many small directories while ssh still connects.
const CONTROL_BYTES: usize = 32 << 20;
/// Most data messages that wait between threads, usually 1 MiB each. Enough that no side waits for the other's
/// scheduling, few enough to stay in the cache.
const DATA_MESSAGES: usize = 8;

/// One end of the connection between sender and receiver.
#[derive(Clone, Debug)]
pub struct Link {
    /// Control messages from the other end, in order.
    pub control_in: Queue<Message>,
    /// Control messages to the other end, in order.
    pub control_out: Queue<Message>,
    /// Content messages, from the sender to the receiver.
    pub data: Queue<Message>,
    /// Pool for the memory of written content.
    pub(crate) pool: MemoryPool,
}

impl Link {
    /// Makes the two ends of a connection within this process: the sender's and the receiver's.
    pub fn pair() -> (Link, Link) {
        let (forth, back) = (Queue::new(CONTROL_MESSAGES), Queue::new(CONTROL_MESSAGES));
        let data = Queue::new(DATA_MESSAGES);
        let pool = MemoryPool::default();
        let sender =
            Link { control_in: back.clone(), control_out: forth.clone(), data: data.clone(), pool: pool.clone() };
        (sender, Link { control_in: forth, control_out: back, data, pool })
    }

    /// Makes one end of a connection to another machine. A [`crate::transport::Transport`] moves its messages.
    pub fn remote() -> Link {
        Link {
            control_in: Queue::of_weight(CONTROL_BYTES, memory_of_heard),
            control_out: Queue::of_weight(CONTROL_BYTES, memory),
            data: Queue::new(DATA_MESSAGES),
            pool: MemoryPool::default(),
        }
    }

    /// Tells the sender at the other end its rate limit in bytes per second; 0 for none.
    ///
    /// # Errors
    /// [`Closed`] if the run is over.
    pub(crate) fn ask_for_limit(&self, bytes_per_s: u64, ledger: &Ledger) -> Result<(), Closed> {
        let clock = ledger.stage("control", Kind::Thread);
        self.control_out.push(Message::Limit { bytes_per_s }, &clock)
    }

    /// Tells the sender at the other end to copy only these paths.
    ///
    /// # Errors
    /// [`Closed`] if the run is over.
    pub(crate) fn ask_for_paths(&self, paths: &[Vec<u8>], ledger: &Ledger) -> Result<(), Closed> {
        let clock = ledger.stage("control", Kind::Thread);
        let mut rest = paths;
        loop {
            let mut bytes = 0;
            let fits = |path: &&Vec<u8>| {
                bytes += path.len();
                bytes <= LIST_BYTES
            };
            // At least one path fits, as a path is shorter than a message.
            let (part, behind) = rest.split_at(rest.iter().take_while(fits).count());
            let more = !behind.is_empty();
            self.control_out.push(Message::Paths { paths: part.to_vec(), more }, &clock)?;
            if !more {
                return Ok(());
            }
            rest = behind;
        }
    }

    /// Receives the paths that the receiver at the other end wants.
    ///
    /// # Errors
    /// [`CopyError::Network`] if the other end has gone. [`CopyError::Meaning`] for too many paths, or another message.
    /// The other end's own error if it gave up.
    pub(crate) fn hear_paths(&self, ledger: &Ledger) -> Result<Vec<Vec<u8>>, CopyError> {
        let clock = ledger.stage("control", Kind::Thread);
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        loop {
            match self.control_in.pop(&clock) {
                Some(Message::Paths { paths, more }) => {
                    bytes += paths.iter().map(|path| path.len() + 1).sum::<usize>();
                    if bytes > PATHS_BYTES {
                        return Err(CopyError::Meaning("more paths than may be asked for"));
                    }
                    wanted.extend(paths);
                    if !more {
                        return Ok(wanted);
                    }
                }
                Some(Message::Abort { exit_code, text }) => return Err(CopyError::told(exit_code, text)),
                Some(_) => return Err(CopyError::Meaning("no paths, although some were announced")),
                None => return Err(CopyError::gone()),
            }
        }
    }
}

/// Share of [`CONTROL_BYTES`] that a message to the other end takes.
fn memory(message: &Message) -> usize {
    if matches!(message, Message::List(_)) { memory_bytes(message).min(LARGEST_BYTES) } else { LARGEST_BYTES }
}

/// Share of [`CONTROL_BYTES`] that a received control message takes: its memory, but at least its share of
/// [`CONTROL_MESSAGES`]. Many small items in a frame take far more memory than the frame.
fn memory_of_heard(message: &Message) -> usize {
    memory_bytes(message).max(LARGEST_BYTES)
}

/// One message's share of [`CONTROL_BYTES`].
const LARGEST_BYTES: usize = CONTROL_BYTES / CONTROL_MESSAGES;

fn memory_bytes(message: &Message) -> usize {
    let more = match message {
        Message::List(list) => list.directory.len() + list.entries.iter().map(Entry::memory_bytes).sum::<usize>(),
        Message::Owners(owners) => owners.iter().map(|owner| size_of::<Owner>() + owner.name.len()).sum(),
        Message::Answer(answer) => {
            let wanted = |wanted: &Wanted| size_of::<Wanted>() + size_of_val(&wanted.have[..]);
            answer.wanted.iter().map(wanted).sum()
        }
        Message::Basis(basis) => size_of_val(&basis.hashes[..]),
        Message::Visible { ids, .. } => size_of_val(&ids[..]),
        Message::Paths { paths, .. } => paths.iter().map(|path| size_of::<Vec<u8>>() + path.len()).sum(),
        Message::Made { path } | Message::Deleted { path } | Message::Hashed { path, .. } => path.len(),
        Message::Item { letters, path } => letters.len() + path.len(),
        Message::Unlisted { directory, .. } => directory.len(),
        Message::Problem(problem) => problem.path.len() + problem.text.len(),
        Message::Abort { text, .. } => text.len(),
        Message::Counters(json) | Message::Way(json) => json.len(),
        _ => 0,
    };
    size_of::<Message>() + more
}

/// Ends a run early, once, and keeps the reason.
#[derive(Clone, Debug)]
pub struct CancelToken {
    shared: Arc<CancelState>,
}

#[derive(Debug)]
struct CancelState {
    cancelled: AtomicBool,
    reason: Mutex<Option<Arc<CopyError>>>,
    link: Link,
}

impl CancelToken {
    /// Makes a token that closes `link` when it is cancelled.
    pub fn new(link: &Link) -> CancelToken {
        let state = CancelState { cancelled: AtomicBool::new(false), reason: Mutex::new(None), link: link.clone() };
        CancelToken { shared: Arc::new(state) }
    }

    /// Cancels the run. Only the first reason counts; it becomes the last message to the other end.
    pub fn cancel(&self, reason: CopyError) {
        let last = Message::Abort { exit_code: reason.code(), text: reason.to_string() };
        {
            let mut kept = self.shared.reason.lock().unwrap_or_else(PoisonError::into_inner);
            kept.get_or_insert_with(|| Arc::new(reason));
            self.shared.cancelled.store(true, Ordering::Release);
        }
        let link = &self.shared.link;
        // The reason may be that there are problems, so the messages about them have to reach the user at the other
        // end.
        let is_problem = |message: &Message| matches!(message, Message::Problem(_));
        link.control_out.end_with(last, is_problem);
        link.control_in.break_off_but(is_problem);
        link.data.break_off();
    }

    /// Makes a guard that cancels the run if its thread panics. Else the other threads would wait for that thread for
    /// ever.
    pub(crate) fn guard(&self) -> Guard<'_> {
        Guard { cancel: self }
    }

    /// Whether the run was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Acquire)
    }

    /// Returns the error that cancelled the run, if any.
    pub fn reason(&self) -> Option<Arc<CopyError>> {
        self.shared.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why a run could not be finished: the reason for cancelling, or that the other end has gone.
    pub(crate) fn verdict(&self) -> Arc<CopyError> {
        self.reason().unwrap_or_else(|| Arc::new(CopyError::gone()))
    }
}

/// Held by a thread that other threads wait for.
pub(crate) struct Guard<'a> {
    cancel: &'a CancelToken,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = std::io::Error::other("it panicked; this is a mistake in the program");
            self.cancel.cancel(CopyError::System { what: "a thread", error });
        }
    }
}

/// An event of one end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// There is a problem with one file.
    Problem(Problem),
    /// This path was deleted or, in a dry run, would be.
    Deleted(Vec<u8>),
    /// The content of this file is transferred or, in a dry run, would be.
    Wanted(Vec<u8>),
    /// This path was removed at the source, as the destination has it on its disk.
    Removed(Vec<u8>),
    /// This entry changes or, in a dry run, would.
    Item {
        /// The letters of `rsync -i`.
        letters: Vec<u8>,
        /// Path of the entry, and the target of a link.
        path: Vec<u8>,
    },
    /// The hash of a file, at the end of the copy.
    Hashed {
        /// Path of the file.
        path: Vec<u8>,
        /// Hash of the file's whole content.
        hash: [u8; 32],
    },
}

/// Receives the events of a session. Many threads call it, so it must not block.
pub trait Tell: Sync {
    /// Receives one event.
    fn tell(&self, event: Event);
}

impl<F: Fn(Event) + Sync> Tell for F {
    fn tell(&self, event: Event) {
        self(event);
    }
}

/// Clock readings that the ends exchange for the verdict, as JSON that only this program reads.
#[derive(Default)]
pub struct Exchange<'a> {
    /// Makes this end's readings, once, at the end.
    pub own: Option<&'a (dyn Fn() -> Vec<u8> + Sync)>,
    /// The other end's readings.
    pub peer: Mutex<Vec<u8>>,
}

impl Exchange<'_> {
    pub(crate) fn hear(&self, json: Vec<u8>) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = json;
    }
}

/// Everything that both ends of a run need.
pub struct Context<'a> {
    /// Options of the copy.
    pub options: &'a Options,
    /// The connection between sender and receiver.
    pub link: Link,
    /// Token that ends the session early.
    pub cancel: CancelToken,
    /// Ledger with all clocks of this process.
    pub ledger: &'a Ledger,
    /// Counters of files and bytes, for progress lines.
    pub progress: &'a Progress,
    /// Receives the events of the session.
    pub tell: &'a dyn Tell,
    /// Readings that both ends exchange.
    pub exchange: &'a Exchange<'a>,
    /// Limit of the rate at which content may be sent.
    pub limit: &'a RateLimit,
}

impl Context<'_> {
    /// Sends this end's last message, after its counters.
    pub(crate) fn say_last(&self, message: Message, clock: &StageClock) -> Result<(), Closed> {
        if let Some(own) = self.exchange.own {
            self.link.control_out.push(Message::Counters(own()), clock)?;
        }
        self.link.control_out.push(message, clock)
    }
}

macro_rules! progress {
    ($(#[$doc:meta] $field:ident)*) => {
        /// Progress counters of a copy. The receiver counts and sends them to the sender.
        #[derive(Debug, Default)]
        pub struct Progress {
            $(pub(crate) $field: AtomicU64,)*
            /// Whether everything has been listed and compared, so that the totals are final.
            pub(crate) complete: AtomicBool,
            /// Whether big files were written around the page cache.
            pub(crate) direct: AtomicBool,
        }

        impl Progress {
            /// Returns the current figures of this end.
            pub fn account(&self) -> Account {
                Account { $($field: self.$field.load(Ordering::Relaxed),)* }
            }

            /// Sets the figures to those of the other end.
            pub(crate) fn set(&self, account: &Account) {
                $(self.$field.store(account.$field, Ordering::Relaxed);)*
            }
        }
    };
}

with_counters!(progress);

impl Progress {
    /// Whether everything has been listed, so that the totals are final.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
    }

    /// Resets the counters: after a reconnect the other end counts anew.
    pub fn restart(&self) {
        self.set(&Account::default());
        self.complete.store(false, Ordering::Relaxed);
    }

    /// Whether this end wrote big files around the page cache, because a trial showed that to be faster.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Instant;

    use super::*;

    /// Works with one end of a copy that has no other end.
    pub(crate) fn with_context<R>(options: &Options, work: impl FnOnce(&Context<'_>) -> R) -> R {
        let (ledger, progress, link) = (Ledger::off(), Progress::default(), Link::remote());
        let (exchange, limit, cancel) =
            (Exchange::default(), RateLimit::new(0, Instant::now()), CancelToken::new(&link));
        work(&Context {
            options,
            link,
            cancel,
            ledger: &ledger,
            progress: &progress,
            tell: &|_: Event| {},
            exchange: &exchange,
            limit: &limit,
        })
    }

    #[test]
    fn paths_are_asked_for_in_pieces_and_no_more_than_may_be() {
        let ledger = Ledger::off();
        let (far, near) = Link::pair();
        let paths: Vec<Vec<u8>> = (0..100_000).map(|number| format!("directory/file {number}").into_bytes()).collect();
        let flood = vec![vec![b'x'; 1000]; PATHS_BYTES / 1000];
        std::thread::scope(|scope| {
            for paths in [&paths[..], &[]] {
                let asking = scope.spawn(|| near.ask_for_paths(paths, &ledger));
                assert_eq!(far.hear_paths(&ledger).unwrap(), paths);
                assert_eq!(asking.join().unwrap(), Ok(()));
            }
            let asking = scope.spawn(|| near.ask_for_paths(&flood, &ledger));
            let refused = far.hear_paths(&ledger);
            assert!(matches!(refused, Err(CopyError::Meaning("more paths than may be asked for"))), "{refused:?}");
            near.control_out.break_off();
            drop(asking.join());
        });
    }

    #[test]
    fn heard_messages_of_many_small_things_fill_the_queue_by_their_memory() {
        let (ledger, link) = (Ledger::off(), Link::remote());
        let clock = ledger.stage("test", Kind::Thread);
        let mut pushed = 0;
        while !link.control_in.is_full() {
            link.control_in.push(Message::Visible { ids: vec![0; 1 << 20], last: false }, &clock).unwrap();
            pushed += 1;
        }
        assert_eq!(pushed, CONTROL_BYTES / (8 << 20));
        let link = Link::remote();
        for _ in 0..CONTROL_MESSAGES {
            assert!(!link.control_in.is_full());
            link.control_in.push(Message::Begin, &clock).unwrap();
        }
        assert!(link.control_in.is_full());
    }
}
