//! What joins the two ends: queues of messages, the brake, and the figures of progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fullbore_engine::stage::Ledger;

use crate::error::CopyError;
use crate::options::Options;
use crate::pool::Pool;
use crate::queue::Queue;
use crate::wire::{Account, Message, Problem};

/// Control messages under way in one direction. Lists are the largest, 128 KiB each.
const CONTROL_MESSAGES: usize = 64;
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
    pub(crate) pool: Pool,
}

impl Link {
    /// The two ends of a connection within this process: the sender's and the receiver's.
    pub fn pair() -> (Link, Link) {
        let (forth, back) = (Queue::new(CONTROL_MESSAGES), Queue::new(CONTROL_MESSAGES));
        let data = Queue::new(DATA_MESSAGES);
        let pool = Pool::default();
        let sender =
            Link { control_in: back.clone(), control_out: forth.clone(), data: data.clone(), pool: pool.clone() };
        (sender, Link { control_in: forth, control_out: back, data, pool })
    }
}

/// Ends a run before its end, once, and keeps the reason.
#[derive(Clone, Debug)]
pub struct Brake {
    shared: Arc<BrakeState>,
}

#[derive(Debug)]
struct BrakeState {
    pulled: AtomicBool,
    reason: Mutex<Option<Arc<CopyError>>>,
    link: Link,
}

impl Brake {
    /// A brake that breaks this link off.
    pub fn new(link: &Link) -> Brake {
        let state = BrakeState { pulled: AtomicBool::new(false), reason: Mutex::new(None), link: link.clone() };
        Brake { shared: Arc::new(state) }
    }

    /// Stops everything; the first reason is kept, and is the last that the other end hears.
    pub fn pull(&self, reason: CopyError) {
        let last = Message::Abort { exit_code: reason.exit_code(), text: reason.to_string() };
        {
            let mut kept = self.shared.reason.lock().unwrap_or_else(PoisonError::into_inner);
            kept.get_or_insert_with(|| Arc::new(reason));
            self.shared.pulled.store(true, Ordering::Release);
        }
        let link = &self.shared.link;
        link.control_out.end_with(last);
        link.control_in.break_off();
        link.data.break_off();
    }

    /// Whether it was pulled.
    pub fn is_pulled(&self) -> bool {
        self.shared.pulled.load(Ordering::Acquire)
    }

    /// Why it was pulled.
    pub fn reason(&self) -> Option<Arc<CopyError>> {
        self.shared.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why a run could not be finished: the reason, or that the other end has gone.
    pub(crate) fn verdict(&self) -> Arc<CopyError> {
        self.reason()
            .unwrap_or_else(|| Arc::new(CopyError::Network("the connection to the other end broke".to_owned())))
    }
}

/// What an end of a copy tells while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Something is wrong with one file.
    Problem(Problem),
    /// This was deleted; in a dry run, it would be.
    Deleted(Vec<u8>),
    /// The content of this file goes over; in a dry run, it would.
    Wanted(Vec<u8>),
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

/// What both ends of a run work with.
pub struct Context<'a> {
    /// The wishes of the user.
    pub options: &'a Options,
    /// The connection.
    pub link: Link,
    /// Ends it early.
    pub brake: Brake,
    /// All clocks of this process.
    pub ledger: &'a Ledger,
    /// Where it stands.
    pub progress: &'a Progress,
    /// Who is told of events.
    pub tell: &'a dyn Tell,
}

macro_rules! progress {
    ($($field:ident)*) => {
        /// Where a copy stands; counted by the receiver, told to the sender.
        #[derive(Debug, Default)]
        pub struct Progress {
            $(pub(crate) $field: AtomicU64,)*
            /// Everything has been listed and compared, so the totals are final.
            pub(crate) complete: AtomicBool,
        }

        impl Progress {
            /// The figures now.
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

progress!(entries files written_bytes visible_bytes kept retouched made deleted resumed_bytes wanted_files wanted_bytes sync_us);

impl Progress {
    /// Whether everything has been listed, so that the totals are final.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
    }
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
