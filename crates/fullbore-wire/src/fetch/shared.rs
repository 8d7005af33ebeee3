//! State shared by the connections of a run.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fullbore_engine::buffers::Buffers;
use fullbore_engine::digest::Sha256;
use fullbore_engine::landing::Landing;
use fullbore_engine::stage::{HostClock, Ledger, StageClock};
use fullbore_engine::window::Window;
use tokio::sync::Notify;

use super::addresses::Addresses;
use super::{Catalogue, FetchOptions, PendingGet};
use crate::auth::AuthConf;
use crate::connection::{PlusForm, RedirectedRequest};
use crate::dispatcher::{ConnectionId, Dispatcher, HEDGE_LOOK_EVERY, Next};
use crate::hosts::HostId;
use crate::proxy::Route;
use crate::queue::ItemId;
use crate::rate_limit::RateLimit;
use crate::signer::{SignedMirror, Signer};
use crate::tls::Tls;
use crate::url::{Plus, Url, UrlError};

/// Present address of a host; it changes when a redirect moves the whole host.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    /// Base URL, to which paths of the archive are appended.
    pub url: Url,
    /// Credentials, for this host or others; `None` without any.
    pub auth: Option<Arc<AuthConf>>,
    /// See [`FetchOptions`].
    pub user_agent: Option<Arc<str>>,
    pub paths_are_encoded: bool,
    /// Direct, or through a proxy.
    pub route: Route,
    /// Number of redirects followed so far.
    pub moves: usize,
    /// Form of `+` in paths: some object stores need `%2B`.
    pub plus: Arc<PlusForm>,
    /// Signs the requests to the host; `None` if it wants no signatures.
    pub signer: Option<Arc<dyn Signer>>,
    /// TLS settings of a host with signatures, and of its redirect targets; `None` for those of the options.
    pub tls: Option<Tls>,
}

impl Base {
    /// Host and port, for the log.
    pub(crate) fn name(&self) -> String {
        self.url.host_and_port()
    }

    pub(crate) fn at(url: Url, options: &FetchOptions) -> Base {
        Base {
            auth: (!options.auth.is_empty()).then(|| Arc::new(options.auth.clone())),
            user_agent: options.user_agent.clone(),
            paths_are_encoded: options.paths_are_encoded,
            route: options.proxies.route(&url),
            url,
            moves: 0,
            plus: Arc::default(),
            signer: None,
            tls: None,
        }
    }

    /// Address of a host that wants signatures.
    pub(crate) fn signed(SignedMirror { signer, tls }: SignedMirror, options: &FetchOptions) -> Base {
        let url = signer.address();
        Base { auth: None, signer: Some(signer), tls, ..Base::at(url, options) }
    }

    /// URL of a file.
    pub(crate) fn url_of(&self, path: &str, plus: Plus) -> Result<Url, UrlError> {
        match &self.signer {
            Some(signer) => self.url.join_encoded(&signer.encode(path)),
            None if self.paths_are_encoded => self.url.join_encoded(path),
            None => self.url.join(path, plus),
        }
    }
}

/// State shared by all tasks of a run.
pub(crate) struct Shared {
    pub(super) dispatcher: Mutex<Dispatcher>,
    pub bases: Mutex<Vec<Base>>,
    pub gets: Mutex<Vec<VecDeque<PendingGet>>>,
    /// Redirected requests per host that no connection has taken yet. Bounded by the dispatcher, and for small files by
    /// their callers.
    pub(super) detours: Mutex<Vec<VecDeque<RedirectedRequest>>>,
    /// Wakes the tasks that take them.
    pub detoured: Notify,
    /// Free connection slots per address.
    pub addresses: Addresses,
    pub catalogue: Mutex<Arc<dyn Catalogue>>,
    pub landing: Landing,
    pub window: Window,
    pub buffers: Buffers,
    pub network: Arc<StageClock>,
    /// Clock of decryption, within the polls of the connections.
    pub tls: Arc<StageClock>,
    pub host_clocks: Vec<Arc<HostClock>>,
    pub rate_limit: Option<Arc<RateLimit>>,
    pub(super) ledger: Ledger,
    pub options: FetchOptions,
    pub(super) begun: Mutex<BTreeSet<ItemId>>,
    pub(super) other_name: Mutex<BTreeSet<ItemId>>,
    /// Open connections before there is work for them.
    pub warm: AtomicBool,
    /// Wakes connections that wait for work.
    pub wake: Notify,
    /// Wakes the run itself: a file was given up, or a host is out.
    pub attention: Notify,
}

impl Shared {
    /// Adds a request that its host has redirected.
    pub(crate) fn detour(&self, host: HostId, detour: RedirectedRequest) {
        lock(&self.detours)[host as usize].push_back(detour);
        self.detoured.notify_waiters();
        self.wake.notify_waiters();
    }

    /// Address of the next redirected request of this host. Requests without a taker are dropped.
    pub(crate) fn next_detour_target(&self, host: HostId) -> Option<Url> {
        let waiting = &mut lock(&self.detours)[host as usize];
        waiting.retain(|detour| detour.is_waited_for(&self.dispatcher()));
        waiting.front().map(|detour| detour.target().clone())
    }

    /// Takes the next request that this host has redirected to this address.
    pub(crate) fn next_detour(&self, host: HostId, to: &Url) -> Option<RedirectedRequest> {
        let waiting = &mut lock(&self.detours)[host as usize];
        let place = waiting.iter().position(|detour| detour.target().same_origin(to))?;
        waiting.remove(place)
    }

    /// Whether an idle connection to this address should make room: for redirected requests of its host that lead
    /// elsewhere, for other hosts' requests that lead here, or for a task that waits for a slot here.
    pub(crate) fn is_detour_in_the_way(&self, host: HostId, to: &Url) -> bool {
        let is_elsewhere =
            |of: usize, detour: &RedirectedRequest| (of == host as usize) != detour.target().same_origin(to);
        let detours = lock(&self.detours);
        self.addresses.is_wanted(to)
            || detours.iter().enumerate().any(|(of, waiting)| waiting.iter().any(|detour| is_elsewhere(of, detour)))
    }

    /// What the connection should do now. Connections that lost all their work by this are woken.
    pub(crate) fn next(&self, id: ConnectionId) -> Next {
        let mut dispatcher = self.dispatcher();
        let next = dispatcher.next(id, Instant::now());
        if dispatcher.take_news() {
            self.wake.notify_waiters();
        }
        next
    }

    /// Waits until an idle connection should look again for work to take over.
    pub(crate) async fn look_again(&self) {
        tokio::time::sleep(HEDGE_LOOK_EVERY).await;
    }

    pub(crate) fn dispatcher(&self) -> MutexGuard<'_, Dispatcher> {
        lock(&self.dispatcher)
    }

    /// Announces a file to the landing. Returns its path and further header fields.
    pub(crate) fn begin(&self, item: ItemId) -> (String, Vec<(String, String)>) {
        let catalogue = lock(&self.catalogue).clone();
        if lock(&self.begun).insert(item) {
            self.landing.begin(catalogue.spec(item));
        }
        let other = lock(&self.other_name).contains(&item);
        let path = other.then(|| catalogue.other_path(item)).flatten().unwrap_or_else(|| catalogue.path(item));
        (path, catalogue.fields(item))
    }

    /// Accounts for bytes read, and waits as the user's rate limit demands.
    pub(crate) async fn throttle(&self, bytes: u64) {
        let Some(limit) = &self.rate_limit else { return };
        let pause = limit.pay(bytes, Instant::now());
        if !pause.is_zero() {
            self.network.throttled(tokio::time::sleep(pause)).await;
        }
    }

    /// Whether the received content is one of `items`: then the host may have mixed up pipelined answers.
    pub(super) fn is_hash_of(&self, sha256: Sha256, items: &[ItemId]) -> bool {
        let catalogue = lock(&self.catalogue).clone();
        items.iter().any(|item| catalogue.sha256(*item) == sha256)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
