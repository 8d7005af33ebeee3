//! The connections of a run: opens them, and keeps as many to each host as have work.
//!
//! Each host has one task per allowed connection. A task waits until a further connection to its host is wanted, opens
//! it, serves it to its end, and starts over. `http1` and `http2` below this module serve an open connection.

mod http1;
mod http2;
mod io;
mod part;
mod plus;
mod redirected;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fullbore_engine::stage::HostClock;

use crate::connect::{Connected, Endpoint, Scheme, connect};
use crate::dispatcher::{Dispatcher, Ended};
use crate::fetch::{Base, GetError, PendingGet, Reply, Shared, lock};
use crate::hosts::{Fault, HostId};
use crate::http1::RequestHead;
use crate::proxy::Route;
use crate::redirect::{REDIRECTS_MAX, Redirects};
use crate::signer::{Denial, SignedMirror};
use crate::tls::{Offer, Protocol};
use crate::url::{self, Url};

pub(crate) use plus::PlusForm;
pub(crate) use redirected::{RedirectedRequest, keep_detours};

/// How often a waiting task checks without being woken whether a connection is wanted. Work of a slow host becomes
/// worth taking over by the passage of time alone.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The same interval once everything has been requested.
const LOOK_AGAIN_AT_THE_END: Duration = Duration::from_millis(10);

/// Maximum number of consecutive failed connections while small files wait; then these are given up. The dispatcher's
/// pauses do not apply to small files. A guess: a restart of a server breaks one or two.
const FAILED_WITH_SMALL_FILES_MAX: u32 = 4;

/// Keeps a connection open whenever a further one has work. `slot` numbers the tasks of a host. Only the first task
/// waits for small files, so that a run that finds nothing new opens one connection.
pub(crate) async fn keep(shared: Arc<Shared>, host: HostId, slot: usize) {
    let mut failed_in_a_row = 0;
    loop {
        let woken = shared.wake.notified();
        tokio::pin!(woken);
        woken.as_mut().enable();
        let reason = reason_to_open(&shared, host, slot);
        let base = lock(&shared.bases)[host as usize].clone();
        let room = match reason {
            None => None,
            // A connection that is opened in advance waits for no other connection to free its slot.
            Some(Reason::WarmUp) => shared.addresses.free_slot(&base.url),
            Some(Reason::Requests) => {
                let room = shared.addresses.slot(&base.url, &shared.wake);
                let Ok(room) = tokio::time::timeout(LOOK_AGAIN, room).await else { continue };
                room
            }
        };
        let Some(room) = room else {
            let is_at_the_end = shared.dispatcher().is_at_the_end();
            let look_again = if is_at_the_end { LOOK_AGAIN_AT_THE_END } else { LOOK_AGAIN };
            let _ = tokio::time::timeout(look_again, woken).await;
            continue;
        };
        // Other tasks may have opened one meanwhile.
        if !begin_opening(&shared, host, slot) {
            continue;
        }
        if let Some(signer) = base.signer.as_deref().filter(|signer| !signer.is_prepared())
            && let Err(denial) = signer.prepare().await
        {
            tracing::info!("{}: {}", base.name(), denial.why);
            not_opened(&shared, host, &Fault::Denied(denial));
            continue;
        }
        let endpoint = endpoint(&base);
        let mut options = shared.options.connect_to(&base);
        if base.signer.is_some() {
            // Stores, and the client of `put` and `get`, speak only HTTP/1.1.
            options.offer = Offer::Http1;
        }
        let (how, was_used) = match connect(&endpoint, &options).await {
            Ok(connected) => {
                let ms = connected.timings.total().as_millis();
                tracing::info!("{}: connected to {}, {}, in {ms} ms", base.name(), connected.peer, connected.protocol);
                serve(&shared, host, &base, connected).await
            }
            Err(error) => {
                let why = error.without_host(&endpoint);
                tracing::info!("{}: {why}", base.name());
                let fault = if error.is_untrusted() {
                    Fault::Untrusted { why, unknown_issuer: error.is_of_unknown_issuer() }
                } else if error.is_blocked() {
                    Fault::Blocked(why)
                } else {
                    Fault::Broken(why)
                };
                not_opened(&shared, host, &fault);
                continue;
            }
        };
        drop(room);
        // Other connections may take what this one owed; the run checks for hopeless files.
        if let Ended::Fault(fault) = &how {
            tracing::info!("{}: connection ended: {fault}", base.name());
        }
        shared.wake.notify_waiters();
        shared.attention.notify_one();
        let is_awaited = !lock(&shared.gets)[host as usize].is_empty();
        if how == Ended::Ours && !was_used && !is_awaited {
            // A server that accepts and closes would be connected to in advance again and again.
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        match &how {
            Ended::Fault(fault) if is_awaited => {
                failed_in_a_row += 1;
                if failed_in_a_row >= FAILED_WITH_SMALL_FILES_MAX {
                    fail_gets(&shared, host, fault);
                }
                tokio::time::sleep(LOOK_AGAIN * failed_in_a_row.min(FAILED_WITH_SMALL_FILES_MAX)).await;
            }
            _ => failed_in_a_row = 0,
        }
    }
}

fn not_opened(shared: &Shared, host: HostId, fault: &Fault) {
    // First, so that a caller that asks again sees at once that the host is out.
    shared.dispatcher().not_opened(host, fault, Instant::now());
    fail_gets(shared, host, fault);
    shared.attention.notify_one();
}

/// Reason for opening a further connection.
enum Reason {
    /// There are files to request.
    Requests,
    /// Files will follow soon.
    WarmUp,
}

fn reason_to_open(shared: &Shared, host: HostId, slot: usize) -> Option<Reason> {
    let mut dispatcher = shared.dispatcher();
    if slot == 0 {
        let is_capped = dispatcher.host_mut(host).is_told_to_wait(Instant::now());
        shared.host_clocks[host as usize].set_capped(is_capped);
    }
    reason(shared, &mut dispatcher, host, slot)
}

/// Whether the reason still holds. If so, the dispatcher is told that a connection is being opened.
fn begin_opening(shared: &Shared, host: HostId, slot: usize) -> bool {
    let mut dispatcher = shared.dispatcher();
    let wanted = reason(shared, &mut dispatcher, host, slot).is_some();
    if wanted {
        dispatcher.opening(host);
    }
    wanted
}

fn reason(shared: &Shared, dispatcher: &mut Dispatcher, host: HostId, slot: usize) -> Option<Reason> {
    let now = Instant::now();
    let got = slot == 0 && !lock(&shared.gets)[host as usize].is_empty();
    if got || dispatcher.wants_connection(host, now) {
        return Some(Reason::Requests);
    }
    let warm = shared.warm.load(Ordering::Relaxed) && may_warm(dispatcher, host, now);
    warm.then_some(Reason::WarmUp)
}

fn may_warm(dispatcher: &mut Dispatcher, host: HostId, now: Instant) -> bool {
    dispatcher.allows_another(host)
        && dispatcher.paused_until(host, now).is_none()
        && !dispatcher.host_mut(host).is_out()
}

/// Fails the waiting small files of this host at once instead of trying again. The caller knows best whether another
/// host will do.
fn fail_gets(shared: &Shared, host: HostId, fault: &Fault) {
    let pending: Vec<PendingGet> = lock(&shared.gets)[host as usize].drain(..).collect();
    let name = shared.dispatcher().host_mut(host).name.clone();
    for get in pending {
        let (host, reason) = (name.clone(), fault.to_string());
        let error = match fault {
            Fault::Untrusted { unknown_issuer, .. } => {
                GetError::Untrusted { host, reason, unknown_issuer: *unknown_issuer }
            }
            Fault::Blocked(_) => GetError::Final { host, reason },
            Fault::Denied(denial) => GetError::Denied { host, denial: denial.clone() },
            _ => GetError::Unreachable { host, reason },
        };
        // The caller may have given up; then the error has no receiver.
        match get.reply {
            Reply::Whole(reply) => drop(reply.send(Err(error))),
            Reply::Stream(Some(head), _) => drop(head.send(Err(error))),
            Reply::Stream(None, _) => {}
        }
    }
}

fn endpoint(base: &Base) -> Endpoint {
    let scheme = match base.url.scheme() {
        url::Scheme::Http => Scheme::Http,
        url::Scheme::Https => Scheme::Https,
    };
    Endpoint { scheme, host: base.url.host().to_string(), port: base.url.port(), proxy: base.route.server() }
}

/// Serves a connection. Returns how it ended, and whether a file was requested on it.
async fn serve(shared: &Arc<Shared>, host: HostId, base: &Base, connected: Connected) -> (Ended, bool) {
    let now = Instant::now();
    let rtt = connected.tcp.read().map_or(Duration::ZERO, |info| info.path_rtt());
    let id = shared.dispatcher().opened(host, rtt, now);
    shared.dispatcher().host_mut(host).saw_protocol(connected.protocol);
    shared.host_clocks[host as usize].round_trip(rtt);
    let serving = async {
        match connected.protocol {
            Protocol::Http1 => http1::serve(shared, host, id, base, connected, http1::RequestSource::Queue).await,
            Protocol::Http2 => http2::serve(shared, host, id, base, connected).await,
        }
    };
    let how = shared.network.watch(serving).await;
    let was_used = shared.dispatcher().ended(id, &how, Instant::now());
    (how, was_used)
}

/// Counts the connection as busy in the host's clock while it has unanswered requests.
struct Busy<'a> {
    clock: &'a HostClock,
    busy: bool,
}

impl<'a> Busy<'a> {
    fn new(clock: &'a HostClock) -> Self {
        Busy { clock, busy: false }
    }

    fn set(&mut self, busy: bool) {
        match (self.busy, busy) {
            (false, true) => self.clock.connection_busy(),
            (true, false) => self.clock.connection_idle(),
            _ => {}
        }
        self.busy = busy;
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// Builds a request for this address. Credentials are added only if they are known for this very address.
fn request(base: &Base, url: &Url, absolute: bool) -> RequestHead {
    let target = if absolute { url.to_string() } else { url.target().to_owned() };
    let mut head = RequestHead::get(url.host_field(), target);
    head.user_agent = base.user_agent.clone();
    head.authorization = base.auth.as_ref().and_then(|auth| auth.lookup(url)).map(|own| own.basic());
    if absolute && let Route::Forward(proxy) = &base.route {
        head.proxy_authorization = proxy.credentials.as_ref().map(|own| own.basic());
    }
    head
}

/// Moves a host that wants signatures to its new address. False if it has moved too often.
fn move_signed(shared: &Shared, host: HostId, base: &Base) -> bool {
    let Some(signer) = &base.signer else { return false };
    let mut bases = lock(&shared.bases);
    let present = &mut bases[host as usize];
    if present.moves == base.moves {
        if present.moves >= REDIRECTS_MAX {
            return false;
        }
        let mirror = SignedMirror { signer: signer.clone(), tls: base.tls.clone() };
        *present = Base { moves: present.moves + 1, ..Base::signed(mirror, &shared.options) };
        tracing::info!("{}: at {} now", signer.name(), present.url);
    }
    true
}

/// Whether another connection has found the host at another address meanwhile. A refusal at this address then means
/// nothing.
fn is_left(shared: &Shared, host: HostId, base: &Base) -> bool {
    base.signer.is_some() && lock(&shared.bases)[host as usize].moves != base.moves
}

/// Result of following a redirect.
pub(crate) enum Followed {
    /// The whole host has moved: the request is repeated there.
    Moved,
    /// Only this file is elsewhere.
    Elsewhere(Box<Redirects>),
    /// The redirect must not be followed.
    Refused(Fault),
}

/// Follows a redirect. `chain` has led to the requested address; `base` is the address of this connection.
fn follow(shared: &Shared, host: HostId, base: &Base, mut chain: Redirects, location: &str) -> Followed {
    let wrong = |why: String| Followed::Refused(Fault::WrongAnswer(why));
    if !shared.options.follow_redirects {
        // The caller follows redirects, and judges them.
        return Followed::Refused(Fault::Elsewhere(location.to_owned()));
    }
    let is_first = chain.is_at_first();
    let from = chain.current().clone();
    let to = match chain.follow(Some(location)) {
        Ok(to) => to.clone(),
        Err(error) => return wrong(error.to_string()),
    };
    let Some(url) = moved_base(&base.url, &from, &to).filter(|_| is_first) else {
        return Followed::Elsewhere(Box::new(chain));
    };
    if base.signer.is_some() {
        return Followed::Refused(Fault::Denied(Denial {
            why: format!("the store is at {}, where no request is signed", to.host_field()),
            hint: "pass that address as the endpoint of the store",
        }));
    }
    let mut bases = lock(&shared.bases);
    let present = &mut bases[host as usize];
    if present.moves != base.moves {
        // Another connection has followed the redirect already.
        return Followed::Moved;
    }
    if present.moves >= REDIRECTS_MAX {
        return wrong(format!("more than {REDIRECTS_MAX} redirects, the last from {from}"));
    }
    tracing::info!("{} redirects to {url}", present.url);
    *present = Base { moves: present.moves + 1, ..Base::at(url, &shared.options) };
    Followed::Moved
}

/// The new base address, if a redirect kept the file's path. A path in a query says nothing about the next file.
fn moved_base(base: &Url, from: &Url, to: &Url) -> Option<Url> {
    if to.target() != to.path() {
        return None;
    }
    let below = from.target().strip_prefix(base.path().trim_end_matches('/'))?;
    let prefix = to.target().strip_suffix(below)?;
    Url::parse(&format!("{}://{}{prefix}/", to.scheme().as_str(), to.host_field())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL")
    }

    #[test]
    fn a_redirect_moves_the_mirror_only_if_it_keeps_the_path() {
        let base = url("http://a.example/debian/");
        let from = url("http://a.example/debian/pool/x.deb");
        let moved = moved_base(&base, &from, &url("https://b.example/mirror/debian/pool/x.deb"));
        assert_eq!(moved, Some(url("https://b.example/mirror/debian/")));
        for elsewhere in ["http://portal.example/login", "http://b.example/get?file=/pool/x.deb"] {
            assert_eq!(moved_base(&base, &from, &url(elsewhere)), None, "{elsewhere}");
        }
    }
}
