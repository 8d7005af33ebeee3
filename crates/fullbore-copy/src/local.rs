//! A copy within one machine: a sender and a receiver, connected by queues.

use std::sync::Arc;
use std::time::Instant;

use fullbore_engine::stage::Ledger;
use fullbore_engine::window::Window;

use crate::error::CopyError;
use crate::options::{Compress, Options};
use crate::receiver::{self, Destination};
use crate::sender::{self, LOCAL_WINDOW_BYTES, MissingSource, Skip, Source, Sources};
use crate::session::{CancelToken, Context, Event, Exchange, Link, Progress, RateLimit, Tell};
use crate::wire::Account;

/// A local copy that has not started. `cancel` ends it from another thread.
#[derive(Debug)]
pub struct LocalCopy {
    ends: (Link, Link),
    /// Token that ends the copy before it is complete.
    pub cancel: CancelToken,
    /// Limit of the rate at which content is copied, in bytes per second.
    pub limit: Arc<RateLimit>,
    /// Sources that cannot be opened. The copy reports them, and deletes nothing on their behalf.
    pub missing: Vec<MissingSource>,
}

impl Default for LocalCopy {
    fn default() -> LocalCopy {
        let ends = Link::pair();
        let cancel = CancelToken::new(&ends.0);
        LocalCopy { ends, cancel, limit: Arc::new(RateLimit::new(0, Instant::now())), missing: Vec::new() }
    }
}

impl LocalCopy {
    /// Copies all sources, or only the given paths below the single source. Returns the final totals.
    ///
    /// # Errors
    /// The [`CopyError`] that ended the copy early, in either end. Files that were finished by then are kept, and
    /// another run continues.
    pub fn run(
        self,
        what: (Vec<Source>, Option<Vec<Vec<u8>>>),
        destination: &Destination,
        options: &Options,
        ledger: &Ledger,
        progress: &Progress,
        tell: &dyn Tell,
    ) -> Result<Account, Arc<CopyError>> {
        let (sources, only) = what;
        // Within one machine, compression and delta transfer cost more than they save.
        let options = &Options { compress: Compress::Never, delta: false, ..options.clone() };
        let rotational = sources.iter().any(Source::is_rotational);
        let skip = rustix::fs::stat(&destination.directory).ok().map(|status| Skip {
            device: status.st_dev,
            inode: status.st_ino,
            is_new: destination.is_new,
        });
        let sources = Sources { sources, missing: self.missing, only, skip, rotational };
        let window = Window::new(LOCAL_WINDOW_BYTES, sender::WINDOW_RECORDS);
        let (one, other) = self.ends;
        // The sender's end gets every event, so the receiver's end stays silent.
        let silent = |_: Event| {};
        let (own, exchange) = (Progress::default(), Exchange::default());
        let limit = &*self.limit;
        let sending = Context {
            options,
            link: one,
            cancel: self.cancel.clone(),
            ledger,
            progress: &own,
            tell,
            exchange: &exchange,
            limit,
        };
        let receiving = Context {
            options,
            link: other,
            cancel: self.cancel,
            ledger,
            progress,
            tell: &silent,
            exchange: &exchange,
            limit,
        };
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| sender::run(&sending, &sources, &window));
            let received = receiver::run(&receiving, destination);
            let sent = sender.join();
            match (received, sent) {
                (Ok(account), Ok(Ok(_))) => Ok(account),
                (Err(error), _) | (_, Ok(Err(error))) => Err(error),
                (_, Err(_)) => Err(Arc::new(CopyError::Meaning("the sender failed"))),
            }
        })
    }
}
