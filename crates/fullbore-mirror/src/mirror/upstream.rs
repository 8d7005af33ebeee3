//! The origin's own trace files: which state of the archive it has, and whom it has it from.
//!
//! They are signed by nobody and decide nothing; they are for people and programs that look after
//! mirrors. PendingTraces for only when something is to be published, beside the indexes on a connection that is
//! open anyway; what has not come when all else is done is done without.

use fullbore_wire::fetch::{Get, Watch};
use fullbore_wire::hosts::HostId;
use tokio::task::JoinHandle;

use super::session::Session;
use super::trace_files::{MASTER, TRACE_DIRECTORY, is_trace};

/// Largest trace file taken; real ones have below 2 kB, `_hierarchy` below 50.
const TRACE_BYTES_MAX: u64 = 1 << 20;

const ORIGIN: HostId = 0;

/// What the origin says of itself; none of it need be there.
#[derive(Debug, Default, Clone)]
pub struct Upstream {
    /// `project/trace/master`.
    pub master: Option<String>,
    /// `project/trace/_hierarchy`.
    pub hierarchy: Option<String>,
}

/// Requests on their way.
pub struct PendingTraces([JoinHandle<Option<String>>; 2]);

/// Asks the origin.
pub fn ask(session: &Session) -> PendingTraces {
    PendingTraces([MASTER, "_hierarchy"].map(|name| session.runtime.spawn(text(session.site.fetcher.watch(), name))))
}

/// What has come by now.
pub fn take(asked: PendingTraces, session: &Session) -> Upstream {
    let [master, hierarchy] = asked.0.map(|asked| {
        if !asked.is_finished() {
            asked.abort();
        }
        session.runtime.block_on(asked).ok().flatten()
    });
    Upstream { master: master.filter(|text| is_trace(text)), hierarchy }
}

async fn text(watch: Watch, name: &str) -> Option<String> {
    let get = Get { path: format!("{TRACE_DIRECTORY}/{name}"), limit_bytes: TRACE_BYTES_MAX, ..Get::default() };
    let got = watch.get(ORIGIN, get).await.ok()?;
    String::from_utf8(got.body).ok().filter(|_| got.head.status == 200)
}
