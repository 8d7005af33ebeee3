//! The roles of a pass, each with its clock.

use std::sync::Arc;

use fullbore_engine::stage::{Kind, Ledger, StageClock};

#[derive(Clone)]
pub(super) struct Clocks {
    pub(super) read: Arc<StageClock>,
    pub(super) unpack: Arc<StageClock>,
    pub(super) patch: Arc<StageClock>,
    pub(super) hash: Arc<StageClock>,
    pub(super) pack: Arc<StageClock>,
    pub(super) write: Arc<StageClock>,
}

impl Clocks {
    pub(super) fn new(ledger: Option<&Ledger>) -> Clocks {
        let off = Ledger::off();
        let ledger = ledger.unwrap_or(&off);
        let stage = |name| ledger.stage(name, Kind::Thread);
        Clocks {
            read: stage("disk read"),
            unpack: stage("decompress"),
            patch: stage("patch"),
            hash: stage("hash"),
            pack: stage("compress"),
            write: stage("disk write"),
        }
    }
}
