//! The http and https methods: many mirrors at once on the wire of the mirror command.
//!
//! APT asks one host for one file after the other. This method takes all requests that APT hands out, and spreads them
//! over all mirrors with the same files, in parts where that helps. If a mirror is slow, breaks off or lacks a file,
//! another one takes over. What it learns about a mirror counts for the whole run. Only the SHA-256 that APT expects
//! decides whether bytes are accepted, so a mirror need not be trusted. No hash is known of `InRelease`. So two mirrors
//! are asked, and the newest answer counts, but never one older than APT's own. Files below no listed mirror come from
//! the one host, as with APT's own method, and APT follows redirects.
//!
//! Settings, in APT's configuration, besides those of apt-transport-http(1) and
//! apt-transport-https(1):
//!
//! ```text
//! Dir::Bin::Methods::http  "/usr/bin/fullbore";
//! Dir::Bin::Methods::https "/usr/bin/fullbore";
//! Acquire::fullbore::Mirrors "/etc/fullbore/apt-mirrors";   // see MirrorSets; may be a list
//! Acquire::fullbore::Connections "4";                       // to one host
//! Acquire::Max-Pipeline-Depth "1000";                       // requests that APT hands out at once
//! ```
//!
//! Ignored with a warning: socks proxies, `CrlFile`. Not used: SRV records. If only MD5 or SHA-1 of a file is known, it
//! comes from the host that APT named, and APT decides whether such a hash is enough.

mod answers;
mod detect;
mod in_order;
mod mirror_releases;
mod mirror_set;
mod mirrors;
mod plain;
mod redirects;
mod releases;
mod session;
mod settings;
mod wanted;
mod words;

use std::io::{self, Read};
use std::sync::Arc;

use fullbore_wire::fetch::{HeadLog, WireHead};
pub use mirrors::{LIST_BYTES_MAX, MirrorListError, MirrorPath, MirrorSets};
use session::Session;
pub use settings::Environment;
use settings::Settings;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::acquire::{
    Capabilities, Configuration, Failure, Incoming, IncomingError, Message, MethodName, Outgoing, Request,
    drop_privileges,
};

/// Recommended value of `Acquire::Max-Pipeline-Depth`: as many requests as APT has ready at once. With its default of
/// 10, small files wait for each other's round trips, whatever the method does. Measured with 200 packages of 6 MB in
/// all at 150 ms: 4.9 s with 10, 2.1 s with 30, 1.55 s with 100 and 1.53 s with 1000 (`bench/apt one-far`). apt's own
/// method takes 7.6 s.
pub const PIPELINE_DEPTH: usize = 1000;

/// Most requests that are read ahead of the current ones.
const READ_AHEAD: usize = 4096;

/// Receives the debug output of the method: with `Debug::Acquire::http`, the lines that APT's own method writes to
/// stderr.
pub type DebugOutput = Arc<dyn Fn(&str) + Send + Sync>;

/// Serves APT as the method `name` (`http`, `https`, or another name; see [`MethodName`]) until APT closes the pipe,
/// ends or interrupts. A separate thread reads `from`.
///
/// Call it before other threads start, as only the calling thread drops its privileges. Every request gets an answer,
/// whatever happens.
///
/// # Errors
/// [`IncomingError::Io`] if a pipe fails. The other variants of [`IncomingError`] for data from APT that is not valid.
pub fn serve(
    name: &str,
    from: impl Read + Send + 'static,
    apt: &Outgoing,
    environment: Environment,
    debug: DebugOutput,
) -> Result<(), IncomingError> {
    match converse(MethodName::new(name), from, apt, environment, debug) {
        Err(IncomingError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(IncomingError::Unfinished) => Ok(()),
        result => result,
    }
}

fn converse(
    name: MethodName,
    from: impl Read + Send + 'static,
    apt: &Outgoing,
    environment: Environment,
    debug: DebugOutput,
) -> Result<(), IncomingError> {
    apt.send(&Capabilities { pipeline: true }.message())?;
    let mut incoming = Incoming::new(from);
    let settings = loop {
        let Some(message) = incoming.receive()? else { return Ok(()) };
        match message.code {
            601 => {
                let configuration = Configuration::from_message(&message, name.binary())?;
                break Settings::read(name, configuration, environment);
            }
            600 => {
                let failure = Failure::new("APT sent no configuration");
                apt.send(&Request::new(message).failed(&failure))?;
            }
            _ => {}
        }
    };
    if let Err(error) = drop_privileges(settings.configuration()) {
        apt.send(&Message::new(401, "General Failure").with("Message", error))?;
        return Ok(());
    }
    // One worker: the landing's threads do the slow work.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("network").enable_all().build()?;
    let (requested, requests) = mpsc::channel(READ_AHEAD);
    let reader = std::thread::Builder::new().name("requests".into()).spawn(move || read(incoming, &requested))?;
    let head_log = settings.shows_heads().then(|| head_log(settings.method().clone(), debug));
    let mut session = {
        let _inside = runtime.enter();
        Session::start(settings, apt.clone(), head_log)?
    };
    let result = runtime.block_on(async {
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            result = session.run(requests) => result.map(|()| true),
            _ = interrupted.recv() => Ok(false),
            _ = terminated.recv() => Ok(false),
        }
    });
    // Connections first: they would go on fetching while files are closed.
    runtime.shutdown_background();
    session.finish();
    match result {
        // The reader has ended, too, and has the reason.
        Ok(true) => reader.join().unwrap_or(Ok(())),
        // The reader still waits for APT, which needs nothing more.
        Ok(false) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Logs heads as APT's own method does: a request as it is, an answer with the requested address.
fn head_log(name: MethodName, debug: DebugOutput) -> HeadLog {
    HeadLog::new(move |head| match head {
        WireHead::Request(text) => text.lines().for_each(|line| debug(line)),
        WireHead::Answer(text, url) => {
            let line = text.lines().next().unwrap_or_default();
            let mut parts = line.trim_end().splitn(3, ' ').skip(1);
            if let (Some(status), None) = (parts.next(), parts.next().filter(|phrase| !phrase.trim().is_empty())) {
                debug(&words::no_reason_phrase(status));
            }
            debug(&words::answer_for(&name.address(&url.to_string())));
            text.lines().for_each(|line| debug(line));
        }
    })
}

/// Passes requests on until there are no more, or the receiver has ended.
fn read(mut incoming: Incoming<impl Read>, requested: &mpsc::Sender<Request>) -> Result<(), IncomingError> {
    while let Some(message) = incoming.receive()? {
        if message.code == 600 && requested.blocking_send(Request::new(message)).is_err() {
            break;
        }
    }
    Ok(())
}
