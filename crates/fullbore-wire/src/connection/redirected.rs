//! Connections to addresses that hosts redirect single files to, such as storage with signed URLs.
//!
//! They are served like connections to a host, with three differences. Requests come from redirects, not from the
//! queue. They are sent one by one, because stores answer pipelined requests in any order (LP #948461); several
//! connections keep many small files flowing. And the protocol is HTTP/1.1.

use std::sync::Arc;
use std::time::Instant;

use super::part::{FilePart, SmallPart};
use super::{endpoint, http1};
use crate::connect::{ConnectError, ConnectOptions, Connected, Endpoint, connect};
use crate::dispatcher::{Dispatcher, Ended, Ticket};
use crate::fetch::{Base, GetError, Shared, lock};
use crate::hosts::{Fault, HostId};
use crate::tls::Offer;
use crate::url::Url;

/// A request that its host has redirected.
#[derive(Debug)]
pub(crate) enum RedirectedRequest {
    /// A part of a file, which waits in the dispatcher under this ticket.
    File(Ticket, Box<FilePart>, Url),
    /// A small file.
    Small(Box<SmallPart>, Url),
}

impl RedirectedRequest {
    /// Address of the file now.
    pub(crate) fn target(&self) -> &Url {
        match self {
            RedirectedRequest::File(_, _, to) | RedirectedRequest::Small(_, to) => to,
        }
    }

    /// Whether the request is still wanted.
    pub(crate) fn is_waited_for(&self, dispatcher: &Dispatcher) -> bool {
        match self {
            RedirectedRequest::File(ticket, ..) => dispatcher.awaits_detour(*ticket),
            RedirectedRequest::Small(small, _) => small.is_waited_for(),
        }
    }
}

/// Opens a connection whenever this host has redirected a request, and serves it until there are no more requests for
/// its address.
pub(crate) async fn keep_detours(shared: Arc<Shared>, host: HostId) {
    loop {
        let woken = shared.detoured.notified();
        tokio::pin!(woken);
        woken.as_mut().enable();
        let Some(to) = shared.next_detour_target(host) else {
            woken.await;
            continue;
        };
        let tls = lock(&shared.bases)[host as usize].tls.clone();
        let base = Base { tls, ..Base::at(to, &shared.options) };
        let Some(_slot) = shared.addresses.slot(&base.url, &shared.wake).await else { return };
        // Other connections may have served the request meanwhile.
        let Some(first) = shared.next_detour(host, &base.url) else { continue };
        let endpoint = endpoint(&base);
        let options = ConnectOptions { offer: Offer::Http1, ..shared.options.connect_to(&base) };
        match connect(&endpoint, &options).await {
            Ok(connected) => serve(&shared, host, &base, connected, first).await,
            Err(error) => fail(&shared, host, first, &endpoint, &error),
        }
        shared.wake.notify_waiters();
        shared.attention.notify_one();
    }
}

async fn serve(shared: &Arc<Shared>, host: HostId, base: &Base, connected: Connected, first: RedirectedRequest) {
    let id = shared.dispatcher().opened_detour(host, Instant::now());
    let serving = http1::serve(shared, host, id, base, connected, http1::RequestSource::Detours(Some(first)));
    let at = |why: String| format!("{}: {why}", base.url.host_and_port());
    let how = match shared.network.watch(serving).await {
        Ended::Fault(Fault::Broken(why)) => Ended::Fault(Fault::Broken(at(why))),
        Ended::Fault(Fault::WrongAnswer(why)) => Ended::Fault(Fault::WrongAnswer(at(why))),
        Ended::Fault(Fault::WrongSize(why)) => Ended::Fault(Fault::WrongSize(at(why))),
        how => how,
    };
    if let Ended::Fault(fault) = &how {
        tracing::info!("{}: connection ended: {fault}", base.name());
    }
    shared.dispatcher().ended(id, &how, Instant::now());
}

/// Fails all requests for an address that cannot be reached.
fn fail(shared: &Shared, host: HostId, first: RedirectedRequest, endpoint: &Endpoint, error: &ConnectError) {
    let why = error.to_string();
    tracing::info!("{why}");
    // This address cannot be trusted or must not be looked up; the host itself was fine.
    let is_final = error.is_untrusted() || error.is_blocked();
    let fault = if is_final { Fault::WrongAnswer(why.clone()) } else { Fault::Broken(why.clone()) };
    let to = first.target().clone();
    let mut next = Some(first);
    while let Some(detour) = next {
        match detour {
            RedirectedRequest::File(ticket, ..) => shared.dispatcher().lost_detour(ticket, &fault, Instant::now()),
            RedirectedRequest::Small(small, _) => {
                let (host, reason) = (endpoint.host.clone(), why.clone());
                small.fail(match is_final {
                    true => GetError::Final { host, reason },
                    false => GetError::Unreachable { host, reason },
                });
            }
        }
        next = shared.next_detour(host, &to);
    }
}
