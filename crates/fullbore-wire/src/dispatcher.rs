//! Decides which host is asked for which part of which file, without I/O.
//!
//! Connections ask here for work and report the results. The dispatcher holds the queue, the measurements of the hosts,
//! and every part in flight. Time is an argument, so that hard cases (a mirror that drips, dies, lies or answers out of
//! order) are plain tests.
//!
//! Two rules shape it. A connection has just enough requests in flight to stay full (measured rate × round trip), so
//! that a slow host holds little. And when nothing is left to request, a fast connection takes over the rear parts that
//! a measurably slower one still owes.

mod answers;
mod caller;
mod files;
mod flight;
mod hedge;
mod redirected;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

pub(crate) use self::answers::RATE_FLOOR_BYTES_PER_S;
use self::files::History;
pub use self::files::{GivenUp, Remedy};
use self::flight::{Connection, InFlight};
pub(crate) use self::hedge::HEDGE_LOOK_EVERY;
pub use self::redirected::Ticket;
use crate::hosts::{FAILURES_UNTIL_DEAD, Fault, Host, HostId, HostSet, HostState, Occasion};
use crate::http1::PIPELINE_DEPTH;
use crate::queue::{Item, ItemId, Priority, Queue, Segment, WantedFile};

/// Number of a connection, unique within a run.
pub type ConnectionId = u64;

/// Bytes requested ahead on a connection of unknown rate: some round trips of slow start.
const AHEAD_UNKNOWN_BYTES: u64 = 1 << 20;

/// Minimum of bytes requested ahead: below this, the requests themselves cost too much. A connection that would need
/// longer than `AHEAD_MIN_S` for it gets less, in the end one file at a time.
const AHEAD_MIN_BYTES: u64 = 256 << 10;
const AHEAD_MIN_S: f64 = 1.0;

/// Maximum of bytes requested ahead: three times the bandwidth-delay product of 100 MB/s and 100 ms.
const AHEAD_MAX_BYTES: u64 = 32 << 20;

/// Smallest and largest part of a split file. The smallest bounds the cost of requests; the largest bounds the time for
/// which one host holds a part.
const SEGMENT_MIN_BYTES: u64 = 256 << 10;
const SEGMENT_MAX_BYTES: u64 = 8 << 20;

/// Smallest part while nothing is measured: three round trips of slow start bring more.
const SEGMENT_FIRST_MIN_BYTES: u64 = 64 << 10;

/// Target duration of one part on its connection, in seconds.
const SEGMENT_TIME_S: f64 = 0.5;

/// Maximum number of small files per large part, so that the next large part does not wait for them.
const SMALL_DUE_MAX: f64 = (PIPELINE_DEPTH / 2) as f64;

/// Default silence after which a connection with unanswered requests is given up.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// Maximum number of unwanted bytes read to keep a connection that owes nothing else.
const DRAIN_BYTES: u64 = 64 << 10;

/// Number of hosts tried at once in the beginning, however little there is to request: one of them is likely fast. A
/// guess.
const TRIED_AT_ONCE: usize = 4;

/// Number of recently requested files remembered per host: what four connections can have in flight.
const RECENT_FILES: usize = 4 * PIPELINE_DEPTH;

/// What a connection should do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Request this part.
    Ask {
        /// Names the request on this connection in all later calls.
        tag: u64,
        /// The part to request.
        segment: Segment,
    },
    /// Wait for arrivals or a wake-up.
    Wait,
    /// Close the connection: nothing more is wanted from it.
    Close,
}

/// What to do with body bytes that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Pass the first `wanted` bytes on and drop the rest.
    First {
        /// Number of bytes to pass on.
        wanted: u64,
    },
    /// Close the connection: nothing more on it is worth waiting for.
    Close,
}

/// Why a connection ended, as the dispatcher counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server closed between answers although requests were in flight, or announced it (`Connection: close`,
    /// GOAWAY). That is normal; the number of answers is the number that the server allows.
    Clean,
    /// We closed it, or the server closed it while idle: nothing to learn.
    Ours,
    /// The connection failed.
    Fault(Fault),
}

/// Who gets no more requests during a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// All connections to one host.
    Host(HostId),
    /// One connection.
    Connection(ConnectionId),
}

/// Limits of a run: connections per host, parts, hedging.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections to one host.
    pub connections_per_host: usize,
    /// Whether fast connections take over work of slow hosts.
    pub hedge: bool,
    /// Silence after which a connection with unanswered requests is given up, if no other host delivers.
    pub silence: Duration,
    /// Maximum number of requests before the first answer, at most [`PIPELINE_DEPTH`].
    pub pipeline_depth: usize,
    /// Number of consecutive failed connections after which a host is not used for the rest of the run.
    pub failures_until_dead: u32,
    /// Whether the caller retries failures itself, as apt does. A transient answer, or a connection that cannot be
    /// opened, is then reported at once if no other host is left, and never waited for.
    pub caller_retries: bool,
    /// Whether a redirected file counts as a fault of the host.
    pub redirects_are_faults: bool,
    /// Maximum total size of files in progress (begun, without an outcome), in bytes. For a destination that holds
    /// whole files in memory until they are stored. A larger file is fetched alone.
    pub memory_bytes: u64,
}

impl Default for Limits {
    /// Four connections per host, as is polite on public mirrors.
    fn default() -> Self {
        Limits {
            connections_per_host: 4,
            hedge: true,
            silence: SILENCE_LIMIT,
            pipeline_depth: PIPELINE_DEPTH,
            failures_until_dead: FAILURES_UNTIL_DEAD,
            caller_retries: false,
            redirects_are_faults: true,
            memory_bytes: u64::MAX,
        }
    }
}

/// Returns the path of a file, for the report.
pub type NameOf = Box<dyn Fn(ItemId) -> String + Send>;

/// Decides which connection requests which part of which file.
pub struct Dispatcher {
    hosts: Vec<Host>,
    name_of: Option<NameOf>,
    /// The files last requested per host: an answer that was mixed up is one of them.
    recent: Vec<VecDeque<ItemId>>,
    limits: Limits,
    queue: Queue,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: ConnectionId,
    /// Number of connections being opened, per host.
    opening: Vec<usize>,
    /// Number of connections allowed per host.
    allowed: Vec<usize>,
    /// Redirected requests with their host, until a connection to the new address takes them over.
    detours: BTreeMap<Ticket, (HostId, InFlight)>,
    next_ticket: Ticket,
    /// Host or connection that gets no requests during a trial.
    held: Option<Hold>,
    /// Hosts that have delivered a file, without a transient answer since.
    serving: HostSet,
    /// Hosts that are left alone because of a transient answer.
    turned_away: HostSet,
    /// Only files that had a fault: an ordinary file never gets here.
    histories: BTreeMap<ItemId, History>,
    planned_bytes: u64,
    /// Bytes expected to be wasted by hedging …
    hedged_bytes: u64,
    /// … and bytes that were wasted.
    came_in_vain: u64,
    unfinished_files: u64,
    expects_more: bool,
    /// A connection that waits for bytes should call [`Dispatcher::next`] again.
    has_news: bool,
    /// Time at which an idle connection last found nothing to take over.
    last_wait: Option<Instant>,
    /// Files that received bytes since the last [`Dispatcher::take_moved`]; `None` before the first call.
    moved: Option<BTreeSet<ItemId>>,
}

impl Dispatcher {
    /// Creates the dispatcher of a run over these hosts; the first is the origin.
    pub fn new(mut hosts: Vec<Host>, limits: Limits) -> Self {
        hosts.iter_mut().for_each(|host| host.dies_after(limits.failures_until_dead));
        let mut queue = Queue::default();
        queue.limit_begun(limits.memory_bytes);
        Dispatcher {
            recent: hosts.iter().map(|_| VecDeque::new()).collect(),
            opening: vec![0; hosts.len()],
            allowed: vec![limits.connections_per_host; hosts.len()],
            hosts,
            name_of: None,
            limits,
            queue,
            connections: BTreeMap::new(),
            next_connection: 0,
            detours: BTreeMap::new(),
            next_ticket: 0,
            held: None,
            serving: HostSet::default(),
            turned_away: HostSet::default(),
            histories: BTreeMap::new(),
            planned_bytes: 0,
            hedged_bytes: 0,
            came_in_vain: 0,
            unfinished_files: 0,
            expects_more: false,
            has_news: false,
            last_wait: None,
            moved: None,
        }
    }

    /// Begins a new batch of files, numbered from the beginning. Requests of the previous batch are not wanted any
    /// more.
    pub fn begin(&mut self, name_of: Option<NameOf>) {
        self.name_of = name_of;
        self.recent.iter_mut().for_each(VecDeque::clear);
        self.detours.clear();
        for asked in self.connections.values_mut().flat_map(|connection| &mut connection.asked) {
            asked.is_of_before = true;
        }
    }

    /// Adds files to fetch. Empty ones are counted but not requested.
    pub fn add(&mut self, mut items: Vec<Item>) {
        self.unfinished_files += items.len() as u64;
        items.retain(|item| item.size > 0);
        for item in items.iter().filter(|item| item.excluded != HostSet::default()) {
            self.histories.entry(item.id).or_default().barred = item.excluded;
        }
        let before = self.queue.unasked_bytes();
        self.queue.add(items);
        self.planned_bytes += self.queue.unasked_bytes() - before;
    }

    /// Whether files wait for the end of others, because of [`Limits::memory_bytes`].
    pub(crate) fn waits_for_room(&self) -> bool {
        self.queue.waits_for_room()
    }

    /// Number of files that are neither verified nor given up.
    pub(crate) fn unfinished_files(&self) -> u64 {
        self.unfinished_files
    }

    /// The hosts, with their measurements and totals.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// One host, to record measurements of a connection.
    pub(crate) fn host_mut(&mut self, host: HostId) -> &mut Host {
        &mut self.hosts[host as usize]
    }

    /// Number of open connections to the host itself, without those to redirect targets.
    pub(crate) fn connections_to(&self, host: HostId) -> usize {
        self.connections.values().filter(|connection| connection.host == host && !connection.is_detour).count()
    }

    /// Path of a file, or its number if paths are unknown.
    fn name(&self, item: ItemId) -> String {
        self.name_of.as_ref().map_or_else(|| format!("file {item}"), |name_of| name_of(item))
    }

    /// Records a fault of a host, with the file of the present batch that it is about, if any.
    fn fault(&mut self, host: HostId, item: Option<ItemId>, fault: &Fault, now: Instant) {
        let path = item.filter(|_| self.name_of.is_some()).map(|item| self.name(item));
        let alone = self.is_alone(host);
        self.hosts[host as usize].fault_on(fault, Occasion { path, alone }, now);
        if !self.may_be_asked(host, now) {
            self.take_back_detours(host, now);
        }
    }

    /// Whether open connections may send further requests to this host.
    fn may_be_asked(&mut self, host: HostId, now: Instant) -> bool {
        !self.hosts[host as usize].is_out() && !self.is_told_to_wait(host, now)
    }

    /// End of the host's pause; `None` if it is not paused.
    pub(crate) fn paused_until(&mut self, host: HostId, now: Instant) -> Option<Instant> {
        match self.hosts[host as usize].state(now) {
            HostState::Paused(until) => Some(*until),
            _ => None,
        }
    }

    /// Number of connections to a host that are open or being opened.
    pub(crate) fn connections_begun_to(&self, host: HostId) -> usize {
        self.connections_to(host) + self.opening[host as usize]
    }

    /// Sets the number of connections to a host, capped by the limit of the run. Surplus connections close after the
    /// answers to their requests.
    pub fn allow(&mut self, host: HostId, connections: usize) {
        if let Some(allowed) = self.allowed.get_mut(host as usize) {
            *allowed = connections.min(self.limits.connections_per_host);
            self.has_news = true;
        }
    }

    /// Sets whether more files will follow soon. Until they do, an idle connection takes work only from silent ones.
    /// The end of the run is not near, and on a full link of our own, hedging would only fetch bytes twice.
    pub(crate) fn expect_more(&mut self, expects: bool) {
        self.has_news |= self.expects_more && !expects;
        self.expects_more = expects;
    }

    /// Returns the files that received wanted bytes since the last call; none at the first call.
    pub(crate) fn take_moved(&mut self) -> BTreeSet<ItemId> {
        self.moved.replace(BTreeSet::new()).unwrap_or_default()
    }

    /// Whether the host may have one more connection.
    pub(crate) fn allows_another(&self, host: HostId) -> bool {
        self.connections_begun_to(host) < self.allowed[host as usize]
    }

    /// Whether a connection exceeds the number allowed for its host. The oldest connections stay.
    fn is_surplus(&self, id: ConnectionId, host: HostId) -> bool {
        let allowed = self.allowed[host as usize];
        let older = || self.connections.range(..id).filter(|(_, c)| c.host == host && !c.is_detour).count();
        allowed < self.limits.connections_per_host && older() >= allowed
    }

    /// Whether a further connection to this host would have work.
    pub(crate) fn wants_connection(&mut self, host: HostId, now: Instant) -> bool {
        if !self.may_be_connected_to(host, now) || !self.allows_another(host) || self.held == Some(Hold::Host(host)) {
            return false;
        }
        // A connection opened in vain costs the server more than us.
        if self.connections.values().any(|c| c.host == host && !c.is_detour && !c.owes()) {
            return false;
        }
        if self.queue.requests_at_least(self.opening_beside(host) + 1, SEGMENT_MIN_BYTES) || self.is_to_be_tried(host) {
            return true;
        }
        let may_take_over =
            || self.waiting_elsewhere(host).is_some() || self.hedge_candidate(host, None, now).is_some();
        self.queue.is_drained() && self.opening[host as usize] == 0 && may_take_over()
    }

    /// Number of connections being opened that will need work. Other hosts' connections count up to the number that
    /// this host would have with a further one; they do not count at all once this host's rate is known.
    fn opening_beside(&self, host: HostId) -> usize {
        let share = if self.host_rate(host).is_some() { 0 } else { self.connections_begun_to(host) + 1 };
        let counted = |(other, count): (usize, &usize)| if other == host as usize { *count } else { share.min(*count) };
        self.opening.iter().enumerate().map(counted).sum()
    }

    /// Whether the host was never tried, should be among the first few, and there is something to request.
    fn is_to_be_tried(&self, host: HostId) -> bool {
        let begun = |host: &HostId| self.connections_begun_to(*host) > 0;
        let others = || (0..self.hosts.len() as HostId).filter(begun).count();
        self.hosts[host as usize].totals.connections == 0
            && !begun(&host)
            && !self.queue.is_drained()
            && others() < TRIED_AT_ONCE
    }

    /// Whether everything was requested, from several hosts. Connections then check often for work to take over.
    pub(crate) fn is_at_the_end(&self) -> bool {
        self.queue.is_drained() && self.unfinished_files > 0 && self.hosts.len() > 1 && self.limits.hedge
    }

    /// Whether a waiting connection should call [`Dispatcher::next`] again. Resets the flag.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Records that a connection is being opened; [`Dispatcher::opened`] or `Dispatcher::not_opened` follows.
    pub fn opening(&mut self, host: HostId) {
        self.opening[host as usize] += 1;
    }

    /// Registers an open connection. `rtt` is its measured round trip.
    pub fn opened(&mut self, host: HostId, rtt: Duration, now: Instant) -> ConnectionId {
        self.opening[host as usize] = self.opening[host as usize].saturating_sub(1);
        let entry = &mut self.hosts[host as usize];
        entry.record_rtt(rtt);
        let explores = entry.requests_on_next_connection();
        self.add_connection(Connection { explores, ..Connection::to(host, now) })
    }

    fn add_connection(&mut self, connection: Connection) -> ConnectionId {
        let id = self.next_connection;
        self.next_connection += 1;
        self.hosts[connection.host as usize].totals.connections += 1;
        self.connections.insert(id, connection);
        id
    }

    /// Decides what a connection should do now. Call it until it returns `Wait`, after every arrival, and when the run
    /// wakes all connections.
    pub fn next(&mut self, id: ConnectionId, now: Instant) -> Next {
        let Some(of) = self.connections.get(&id).map(|connection| connection.host) else { return Next::Close };
        if self.is_told_to_wait(of, now) || self.awaits_first_answer(of) {
            return Next::Wait;
        }
        let Some(connection) = self.connections.get(&id) else { return Next::Close };
        let host = &self.hosts[connection.host as usize];
        if host.is_out() {
            return Next::Close;
        }
        if !connection.is_detour && self.is_surplus(id, connection.host) {
            return if connection.owes() { Next::Wait } else { Next::Close };
        }
        let sent = connection.answered + connection.asked.len() as u64;
        if sent >= connection.explores.unwrap_or_else(|| host.requests_per_connection()) {
            return if connection.owes() { Next::Wait } else { Next::Close };
        }
        if self.held == Some(Hold::Host(connection.host)) || self.held == Some(Hold::Connection(id)) {
            return Next::Wait;
        }
        if connection.owes()
            && connection.owed() == 0
            && connection.unwanted() > self.drain_bytes(connection, connection.rate.at_least())
        {
            return Next::Close;
        }
        if self.has_enough_detours(connection.host) || connection.asked.len() >= self.depth(connection) {
            return Next::Wait;
        }
        if self.has_enough(connection) {
            return match self.queue.is_drained().then(|| self.hedge(id, now)).flatten() {
                Some(segment) => self.ask(id, segment, now),
                None => Next::Wait,
            };
        }
        // The connections being opened follow a round trip later, and together they are faster than this one alone.
        if connection.owes() && self.known_rate(connection).is_none() && self.opening.iter().any(|count| *count > 0) {
            return Next::Wait;
        }
        let priority = if connection.small_due < 1.0 { Priority::Bulk } else { Priority::Small };
        let small_per_byte = self.queue.small_per_byte();
        let wanted = WantedFile {
            host: connection.host,
            priority,
            segment_bytes: self.segment_bytes(connection),
            ranges: host.answers_ranges(),
            current: connection.current,
        };
        let taken = self.queue.take(&wanted).or_else(|| self.take_from_detours(&wanted, now));
        match taken.or_else(|| self.hedge(id, now)) {
            Some(segment) => {
                let due = if priority == Priority::Bulk { segment.len() as f64 * small_per_byte } else { -1.0 };
                let next = self.ask(id, segment, now);
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.small_due = (connection.small_due + due).min(SMALL_DUE_MAX);
                }
                next
            }
            None => Next::Wait,
        }
    }

    /// Whether [`Dispatcher::next`] may have a further request for the connection, even before any request on it is
    /// complete.
    pub(crate) fn may_ask_more(&self, id: ConnectionId) -> bool {
        !self.queue.is_drained() && self.connections.get(&id).is_some_and(|connection| !self.has_enough(connection))
    }

    /// Whether enough requests are in flight to keep the connection full. An idle connection always gets a request,
    /// however little the previous one delivered.
    fn has_enough(&self, connection: &Connection) -> bool {
        let is_ahead = || connection.owes() && connection.outstanding() >= self.ahead_bytes(connection);
        connection.asked.len() >= self.depth(connection) || is_ahead()
    }

    /// Maximum number of unanswered requests on this connection.
    fn depth(&self, connection: &Connection) -> usize {
        self.hosts[connection.host as usize].depth().min(self.limits.pipeline_depth.max(1))
    }

    /// Sends no more requests to this host or connection, until the next call.
    pub fn hold(&mut self, hold: Option<Hold>) {
        self.held = hold;
    }

    /// Whether the held host or connection has no requests in flight any more.
    pub(crate) fn held_is_quiet(&self) -> bool {
        match self.held {
            None => false,
            Some(Hold::Host(host)) => !self.connections.values().any(|c| c.host == host && c.owes()),
            Some(Hold::Connection(id)) => !self.connections.get(&id).is_some_and(Connection::owes),
        }
    }

    /// The slowest of several busy connections to a host: a trial can best do without it.
    pub(crate) fn sparable(&self, host: HostId) -> Option<ConnectionId> {
        let busy = || self.connections.iter().filter(move |(_, c)| c.host == host && !c.is_detour && c.owes());
        let slowest =
            busy().min_by(|(_, a), (_, b)| a.rate.average().unwrap_or(0.0).total_cmp(&b.rate.average().unwrap_or(0.0)));
        slowest.filter(|_| busy().count() >= 2).map(|(id, _)| *id)
    }

    /// Number of bytes that were not requested yet.
    pub(crate) fn unasked_bytes(&self) -> u64 {
        self.queue.unasked_bytes()
    }

    fn ask(&mut self, id: ConnectionId, segment: Segment, now: Instant) -> Next {
        let connection = self.connections.get_mut(&id).expect("the caller found it");
        if !connection.owes() {
            connection.last_byte = now;
            connection.rate.restart(now);
        }
        let tag = connection.next_tag;
        connection.next_tag += 1;
        connection.current = (segment.end < segment.size).then_some(segment.item);
        let asked = InFlight { tag, until: segment.end, received: 0, is_of_before: false, segment: segment.clone() };
        connection.asked.push_back(asked);
        let recent = &mut self.recent[connection.host as usize];
        recent.push_back(segment.item);
        if recent.len() > RECENT_FILES {
            recent.pop_front();
        }
        self.hosts[connection.host as usize].totals.requests += 1;
        Next::Ask { tag, segment }
    }

    /// Number of bytes that should be in flight on this connection. While it speeds up, the next round trip delivers
    /// twice as much, and a request needs half of one. So the total is three round trips, and a tenth of a second for
    /// jitter.
    fn ahead_bytes(&self, connection: &Connection) -> u64 {
        match (self.known_rate(connection), connection.rate.at_least()) {
            (Some(rate), _) => self.ahead_at_rate(connection, rate),
            (None, Some(rate)) => {
                let most = self.share_of_host(connection.host).max(self.first_share());
                self.ahead_at_rate(connection, rate).min(most)
            }
            (None, None) => self.first_share(),
        }
    }

    fn ahead_at_rate(&self, connection: &Connection, rate: f64) -> u64 {
        let rtt = self.hosts[connection.host as usize].rtt().as_secs_f64();
        let least = AHEAD_MIN_BYTES.min((rate * AHEAD_MIN_S) as u64);
        ((3.0 * rate * rtt + 0.1 * rate) as u64).clamp(least, AHEAD_MAX_BYTES)
    }

    /// Share of one connection if everything left were requested from its host. Connections to one host take nothing
    /// over from each other.
    fn share_of_host(&self, host: HostId) -> u64 {
        let own = self.connections.values().filter(|connection| connection.host == host);
        let outstanding: u64 = own.map(Connection::outstanding).sum();
        (self.queue.unasked_bytes() + outstanding) / self.connections_begun_to(host).max(1) as u64
    }

    /// Bytes for a connection of unknown rate: its share of the remaining bytes, bounded in case it is slow.
    fn first_share(&self) -> u64 {
        let begun = self.connections.len() + self.opening.iter().sum::<usize>();
        (self.queue.unasked_bytes() / begun.max(1) as u64).clamp(SEGMENT_FIRST_MIN_BYTES, AHEAD_UNKNOWN_BYTES)
    }

    fn known_rate(&self, connection: &Connection) -> Option<f64> {
        connection.rate.latest().or(self.hosts[connection.host as usize].connection_rate())
    }

    fn segment_bytes(&self, connection: &Connection) -> u64 {
        let by_rate = match self.known_rate(connection) {
            Some(rate) => ((rate * SEGMENT_TIME_S) as u64).clamp(SEGMENT_MIN_BYTES, SEGMENT_MAX_BYTES),
            None if connection.rate.at_least().is_some() => self.first_share().max(SEGMENT_MIN_BYTES),
            None => self.first_share(),
        };
        // Use smaller parts towards the end, so that all connections end together.
        let share = self.queue.unasked_bytes() / (2 * self.connections.len().max(1) as u64);
        by_rate.min(share.max(SEGMENT_MIN_BYTES))
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod slow_mirrors;
#[cfg(test)]
mod tests;
