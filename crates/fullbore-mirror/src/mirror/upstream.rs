//! Trace files of the origin: the state of its archive, and the mirrors above it.
//!
//! They are unsigned and decide nothing; people and programs that watch mirrors read them. They are requested together
//! with the indexes, on an open connection. A run does not wait for them.

use fullbore_wire::fetch::{Get, Watch};
use fullbore_wire::hosts::HostId;
use tokio::task::JoinHandle;

use super::session::Session;
use super::trace_files::{MASTER, TRACE_DIRECTORY, is_trace};

/// Maximum size of a trace file, in bytes. Real ones have less than 2 kB, `_hierarchy` less than 50.
const TRACE_BYTES_MAX: u64 = 1 << 20;

const ORIGIN: HostId = 0;

/// The trace files of the origin, as far as it has them.
#[derive(Debug, Default, Clone)]
pub(crate) struct Upstream {
    /// Content of `project/trace/master`.
    pub master: Option<String>,
    /// Content of `project/trace/_hierarchy`.
    pub hierarchy: Option<String>,
}

/// Requests for both trace files, in flight.
pub(super) struct PendingTraces([JoinHandle<Option<String>>; 2]);

/// Requests both files from the origin.
pub(super) fn ask(session: &Session) -> PendingTraces {
    PendingTraces([MASTER, "_hierarchy"].map(|name| session.runtime.spawn(text(session.site.fetcher.watch(), name))))
}

/// Returns the files received by now, and cancels the other requests.
pub(super) fn take(asked: PendingTraces, session: &Session) -> Upstream {
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
