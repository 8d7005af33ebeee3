//! Stage clocks of the unpacker, for the verdict.

use std::sync::Arc;

use fullbore_engine::stage::{Kind, Ledger, StageClock};

/// One clock per stage of unpacking.
#[derive(Debug)]
pub(super) struct Clocks {
    /// Reading and hashing package files.
    pub verify: Arc<StageClock>,
    /// Decompressing `data.tar`.
    pub decompress: Arc<StageClock>,
    /// Creating files in the root.
    pub write: Arc<StageClock>,
    /// Reading and writing dpkg's database.
    pub bookkeeping: Arc<StageClock>,
}

impl Clocks {
    pub(super) fn new(ledger: &Ledger) -> Clocks {
        let clock = |name| ledger.stage(name, Kind::Thread);
        Clocks {
            verify: clock("verify"),
            decompress: clock("decompress"),
            write: clock("write"),
            bookkeeping: clock("bookkeeping"),
        }
    }
}
