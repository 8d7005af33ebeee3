//! Stage clocks of the unpacker, for the verdict.

use std::sync::Arc;

use fullbore_engine::stage::{Kind, Ledger, StageClock};

/// One clock per stage.
#[derive(Debug)]
pub(super) struct Clocks {
    /// Reading packages and hashing them.
    pub verify: Arc<StageClock>,
    /// Decompression.
    pub decompress: Arc<StageClock>,
    /// Making files.
    pub write: Arc<StageClock>,
    /// dpkg's database.
    pub bookkeeping: Arc<StageClock>,
}

impl Clocks {
    pub fn new(ledger: &Ledger) -> Clocks {
        let clock = |name| ledger.stage(name, Kind::Thread);
        Clocks {
            verify: clock("verify"),
            decompress: clock("decompress"),
            write: clock("write"),
            bookkeeping: clock("bookkeeping"),
        }
    }
}
