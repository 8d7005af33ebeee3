//! What joins the two ends: queues of messages, the cancel token, and the figures of progress.

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

/// Control messages under way in one direction, from either end.
const CONTROL_MESSAGES: usize = 64;
/// The memory of so many of the largest, which are lists: names and attributes of 1000 entries. Smaller lists may be more:
/// those of many small directories are made while ssh is on its way to the other machine.
const CONTROL_BYTES: usize = 32 << 20;
/// Data messages under way between threads, 1 MiB each as a rule: enough that no side waits for the
/// other's scheduling, few enough to stay in the cache.
const DATA_MESSAGES: usize = 8;

/// One end of the connection between sender and receiver.
#[derive(Clone, Debug)]
pub struct Link {
    /// Messages from the other end that keep their order.
    pub control_in: Queue<Message>,
    /// Messages to the other end that keep their order.
    pub control_out: Queue<Message>,
    /// Content, from the sender to the receiver.
    pub data: Queue<Message>,
    /// Memory of content that was written.
    pub(crate) pool: MemoryPool,
}

impl Link {
    /// The two ends of a connection within this process: the sender's and the receiver's.
    pub fn pair() -> (Link, Link) {
        let (forth, back) = (Queue::new(CONTROL_MESSAGES), Queue::new(CONTROL_MESSAGES));
        let data = Queue::new(DATA_MESSAGES);
        let pool = MemoryPool::default();
        let sender =
            Link { control_in: back.clone(), control_out: forth.clone(), data: data.clone(), pool: pool.clone() };
        (sender, Link { control_in: forth, control_out: back, data, pool })
    }

    /// One end of a connection to another machine; a [`crate::transport::Transport`] moves its messages.
    pub fn remote() -> Link {
        Link {
            control_in: Queue::of_weight(CONTROL_BYTES, memory_of_heard),
            control_out: Queue::of_weight(CONTROL_BYTES, memory),
            data: Queue::new(DATA_MESSAGES),
            pool: MemoryPool::default(),
        }
    }

    /// Asks the sender at the other end to keep to a limit.
    ///
    /// # Errors
    /// When the run is over.
    pub(crate) fn ask_for_limit(&self, bytes_per_s: u64, ledger: &Ledger) -> Result<(), Closed> {
        let clock = ledger.stage("control", Kind::Thread);
        self.control_out.push(Message::Limit { bytes_per_s }, &clock)
    }

    /// Tells the sender at the other end which paths are wanted, and no others.
    ///
    /// # Errors
    /// When the run is over.
    pub(crate) fn ask_for_paths(&self, paths: &[Vec<u8>], ledger: &Ledger) -> Result<(), Closed> {
        let clock = ledger.stage("control", Kind::Thread);
        let mut rest = paths;
        loop {
            let mut bytes = 0;
            let fits = |path: &&Vec<u8>| {
                bytes += path.len();
                bytes <= LIST_BYTES
            };
            // At least one: it is shorter than that.
            let (part, behind) = rest.split_at(rest.iter().take_while(fits).count());
            let more = !behind.is_empty();
            self.control_out.push(Message::Paths { paths: part.to_vec(), more }, &clock)?;
            if !more {
                return Ok(());
            }
            rest = behind;
        }
    }

    /// The paths that the receiver at the other end wants.
    ///
    /// # Errors
    /// When it has gone, wants too many, or says something else.
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
                Some(_) => return Err(CopyError::Meaning("no paths where some were announced")),
                None => return Err(CopyError::gone()),
            }
        }
    }
}

/// What a control message to the other end takes of [`CONTROL_BYTES`].
fn memory(message: &Message) -> usize {
    if matches!(message, Message::List(_)) { memory_bytes(message).min(LARGEST_BYTES) } else { LARGEST_BYTES }
}

/// What a control message from the other end takes of [`CONTROL_BYTES`]: at least its share of [`CONTROL_MESSAGES`], and
/// all its memory. Many small things in a frame take far more memory than the frame.
fn memory_of_heard(message: &Message) -> usize {
    memory_bytes(message).max(LARGEST_BYTES)
}

/// A share of [`CONTROL_BYTES`].
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

/// Ends a run before its end, once, and keeps the reason.
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
    /// A token that closes `link` when it is cancelled.
    pub fn new(link: &Link) -> CancelToken {
        let state = CancelState { cancelled: AtomicBool::new(false), reason: Mutex::new(None), link: link.clone() };
        CancelToken { shared: Arc::new(state) }
    }

    /// Ends the run. The first reason counts; it is the last message to the other end.
    pub fn cancel(&self, reason: CopyError) {
        let last = Message::Abort { exit_code: reason.code(), text: reason.to_string() };
        {
            let mut kept = self.shared.reason.lock().unwrap_or_else(PoisonError::into_inner);
            kept.get_or_insert_with(|| Arc::new(reason));
            self.shared.cancelled.store(true, Ordering::Release);
        }
        let link = &self.shared.link;
        // The reason may be that there are problems; each of them was told for the person at the other end.
        let is_problem = |message: &Message| matches!(message, Message::Problem(_));
        link.control_out.end_with(last, is_problem);
        link.control_in.break_off_but(is_problem);
        link.data.break_off();
    }

    /// Cancels the run if the thread that holds the guard panics: the other threads would wait for it for ever.
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

    /// Why a run could not be finished: the reason, or that the other end has gone.
    pub(crate) fn verdict(&self) -> Arc<CopyError> {
        self.reason().unwrap_or_else(|| Arc::new(CopyError::gone()))
    }
}

/// Held by a thread whose work others wait for.
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

/// What an end of a copy tells while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Something is wrong with one file.
    Problem(Problem),
    /// This was deleted; in a dry run, it would be.
    Deleted(Vec<u8>),
    /// The content of this file goes over; in a dry run, it would.
    Wanted(Vec<u8>),
    /// This was removed at the source, as the destination has it on its disk.
    Removed(Vec<u8>),
    /// This changes; in a dry run, it would.
    Item {
        /// The letters of `rsync -i`.
        letters: Vec<u8>,
        /// Its path, and what a link leads to.
        path: Vec<u8>,
    },
    /// The hash of a file, when the copy is done.
    Hashed {
        /// Its path.
        path: Vec<u8>,
        /// The hash of its whole content.
        hash: [u8; 32],
    },
}

/// Who is told. Called from many threads, and must not wait.
pub trait Tell: Sync {
    /// Takes an event.
    fn tell(&self, event: Event);
}

impl<F: Fn(Event) + Sync> Tell for F {
    fn tell(&self, event: Event) {
        self(event);
    }
}

/// What the ends tell each other of their own clocks, for the verdict: JSON that only the program reads.
#[derive(Default)]
pub struct Exchange<'a> {
    /// Makes what is told, once, at the end.
    pub own: Option<&'a (dyn Fn() -> Vec<u8> + Sync)>,
    /// What the other end has told.
    pub peer: Mutex<Vec<u8>>,
}

impl Exchange<'_> {
    pub(crate) fn hear(&self, json: Vec<u8>) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = json;
    }
}

/// What both ends of a run work with.
pub struct Context<'a> {
    /// Options that the user gave for the copy.
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
    /// Counters that both ends send each other.
    pub exchange: &'a Exchange<'a>,
    /// How fast content may be sent.
    pub limit: &'a RateLimit,
}

impl Context<'_> {
    /// The last message of this end, behind its counters.
    pub(crate) fn say_last(&self, message: Message, clock: &StageClock) -> Result<(), Closed> {
        if let Some(own) = self.exchange.own {
            self.link.control_out.push(Message::Counters(own()), clock)?;
        }
        self.link.control_out.push(message, clock)
    }
}

macro_rules! progress {
    ($(#[$doc:meta] $field:ident)*) => {
        /// Where a copy stands; counted by the receiver, told to the sender.
        #[derive(Debug, Default)]
        pub struct Progress {
            $(pub(crate) $field: AtomicU64,)*
            /// Everything has been listed and compared, so the totals are final.
            pub(crate) complete: AtomicBool,
            /// Big files were written around the page cache.
            pub(crate) direct: AtomicBool,
        }

        impl Progress {
            /// Returns the current figures of this end.
            pub fn account(&self) -> Account {
                Account { $($field: self.$field.load(Ordering::Relaxed),)* }
            }

            /// Takes over the figures of the other end.
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

    /// Begins anew: another connection tells of itself alone.
    pub fn restart(&self) {
        self.set(&Account::default());
        self.complete.store(false, Ordering::Relaxed);
    }

    /// Whether this end wrote big files around the page cache, as a trial showed that to be faster.
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
