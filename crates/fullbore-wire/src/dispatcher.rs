//! Who is asked for what: the decisions of a run, without I/O.
//!
//! Connections come here for work and report what became of it; the dispatcher holds the queue, what
//! it learned of the hosts, and every part in flight. Time is an argument, so that the hard cases
//! (a mirror that drips, dies, lies or answers out of order) are plain tests.
//!
//! Two rules shape it. A connection is asked ahead by what it needs to stay full and no more (rate ×
//! round trip, measured), so that a slow host holds little. And when nothing is left to ask for, a
//! fast connection takes over the rear parts of what a measurably slower one still owes.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::hosts::{FAILURES_UNTIL_DEAD, Fault, Host, HostId, HostSet, Standing};
use crate::http1::PIPELINE_DEPTH;
use crate::queue::{Item, ItemId, Lane, Queue, Segment, Wish};
use crate::rate::Rate;

/// Number of a connection, never used twice in a run.
pub type ConnectionId = u64;

/// Bytes asked for ahead on a connection whose rate is not known yet: some round trips of slow
/// start.
const AHEAD_UNKNOWN_BYTES: u64 = 1 << 20;

/// Least bytes asked for ahead: below this the requests themselves cost too much. A connection that
/// would need longer than this for so much is given less, one file at a time at last.
const AHEAD_MIN_BYTES: u64 = 256 << 10;
const AHEAD_MIN_S: f64 = 1.0;

/// Most bytes asked for ahead: 3 × what one connection holds at 100 MB/s and 100 ms.
const AHEAD_MAX_BYTES: u64 = 32 << 20;

/// Smallest and largest part of a split file. The small end bounds the cost of requests, the large
/// end the time for which one host holds a part.
const SEGMENT_MIN_BYTES: u64 = 256 << 10;
const SEGMENT_MAX_BYTES: u64 = 8 << 20;

/// Smallest part before anything is known: three round trips of slow start bring more.
const SEGMENT_FIRST_MIN_BYTES: u64 = 64 << 10;

/// A part is sized to take about this long on its connection.
const SEGMENT_TIME_S: f64 = 0.5;

/// Small files that go with one large part at most, so that those behind it are not kept waiting.
const SMALL_DUE_MAX: f64 = (PIPELINE_DEPTH / 2) as f64;

/// Silence after which a connection with unanswered requests is given up, unless told otherwise.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// The same while another host delivers: long enough for a disk to spin up.
const SILENCE_LIMIT_AMONG_OTHERS: Duration = Duration::from_millis(3000);

/// Silence after which what a connection owes may be asked for elsewhere (hedging).
const SILENCE_UNTIL_HEDGED: Duration = Duration::from_millis(700);

/// A connection below this share of the fastest of another host, which would need over
/// [`DRIP_PATIENCE_S`] for what it owes, is cut: a drip, not a slow mirror.
const DRIP_SHARE: f64 = 0.02;
const DRIP_PATIENCE_S: f64 = 10.0;

/// Time a connection has before drips are judged.
const DRIP_GRACE: Duration = Duration::from_millis(1500);

/// The slowest rate that counts as alive when there is no other host: a 33.6 kbit/s modem.
const RATE_FLOOR_BYTES_PER_S: f64 = 4200.0;

/// For this long a connection may be below the floor.
const RATE_FLOOR_PATIENCE: Duration = Duration::from_secs(30);

/// Work is taken from a connection only if it is slower than this share of the taker's rate …
const HEDGE_RATE_SHARE: f64 = 0.67;

/// … and if that ends the wait sooner by at least this much.
const HEDGE_GAIN_S: f64 = 0.15;

/// A host that was never measured is tried out with one part of what a connection holds that will
/// need longer than this for all of it; as if it were a line of 8 Mbit/s.
const TRY_OUT_AFTER_S: f64 = 1.0;
const RATE_UNKNOWN_BYTES_PER_S: f64 = 1e6;

/// Share of all planned bytes that may be asked for twice, and a small sum for short runs. Below
/// the 3 % that a run may receive in excess.
const HEDGE_BUDGET_SHARE: f64 = 0.02;
const HEDGE_BUDGET_MIN_BYTES: u64 = 1 << 20;

/// What a connection still brings in vain of a part that was taken from it: at its rate, for so long
/// at most. Then it is cut, or has come to what is wanted.
const HEDGE_WASTE_S: f64 = 1.0;

/// Unwanted bytes ahead of wanted ones for which it pays to open another connection instead.
const UNWANTED_CLOSE_BYTES: u64 = 512 << 10;

/// Unwanted bytes that are read to their end rather than closing a connection that owes nothing else.
const DRAIN_BYTES: u64 = 64 << 10;

/// Files per host that are remembered as asked for: what four connections can have in flight.
const RECENT_FILES: usize = 4 * PIPELINE_DEPTH;

/// Times that a host may break off a file, or have trouble with it, before another is asked.
const TROUBLES_PER_HOST: u32 = 3;

/// The same for answers that ask for patience (429, 503), between which the host is left alone.
const TROUBLES_PER_BUSY_HOST: u32 = 12;

/// A broken answer that brought this much was progress, and the next one goes on from there.
const PROGRESS_BYTES: u64 = SEGMENT_MIN_BYTES;

/// A connection that found nothing to take over looks again after this; the search passes over
/// everything in flight.
const HEDGE_LOOK_EVERY: Duration = Duration::from_millis(20);

/// Times a file may come with wrong bytes before it is given up, whatever hosts are left.
const ATTEMPTS_MAX: u32 = 6;

/// The first host of a run: what it does not have, nobody needs to have.
const ORIGIN: HostId = 0;

/// What a connection is to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask for this part; the tag names it in all later calls.
    Ask {
        /// Names the request on this connection.
        tag: u64,
        /// The part.
        segment: Segment,
    },
    /// Nothing now.
    Wait,
    /// Close: nothing more is wanted of this connection.
    Close,
}

/// What to do with body bytes that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The first `wanted` bytes go on, the rest is not needed.
    First {
        /// Bytes that go on.
        wanted: u64,
    },
    /// Nothing more on this connection is worth waiting for: close it.
    Close,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server closed between answers although more was asked, or announced it
    /// (`Connection: close`, GOAWAY): normal, and the number of answers is what it takes.
    Clean,
    /// We closed it, or it was idle and the server closed it: says nothing.
    Ours,
    /// It failed.
    Fault(Fault),
}

/// What to do about a file whose bytes were wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Fetch all of it again.
    Whole,
    /// Fetch again only what did not come from this host.
    AllBut(HostId),
    /// No host is left to try, or too many tries.
    GiveUp,
}

/// Why a file will not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Which file.
    pub item: ItemId,
    /// Hosts that do not have it or served it wrong.
    pub tried: HostSet,
    /// Whether every one of them said that it is not there.
    pub missing: bool,
    /// What each was last seen to do wrong with this file.
    pub faults: Vec<(HostId, Fault)>,
}

/// What is asked for nothing more while a trial lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// All connections to a host.
    Host(HostId),
    /// One connection.
    Connection(ConnectionId),
}

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections to one host at most.
    pub connections_per_host: usize,
    /// Whether work may be taken from slow hosts.
    pub hedge: bool,
    /// Silence after which a connection with unanswered requests is given up, where no other host
    /// delivers.
    pub silence: Duration,
    /// Requests before the first answer, at most [`PIPELINE_DEPTH`].
    pub pipeline_depth: usize,
    /// Failed connections in a row after which a host is left alone for the run.
    pub failures_until_dead: u32,
    /// Whether a host that redirects files to other places counts as one that serves wrong ones.
    pub redirects_are_faults: bool,
}

impl Default for Limits {
    /// Four connections, as is polite on public mirrors.
    fn default() -> Self {
        Limits {
            connections_per_host: 4,
            hedge: true,
            silence: SILENCE_LIMIT,
            pipeline_depth: PIPELINE_DEPTH,
            failures_until_dead: FAILURES_UNTIL_DEAD,
            redirects_are_faults: true,
        }
    }
}

/// A part in flight.
#[derive(Debug)]
struct Asked {
    tag: u64,
    segment: Segment,
    received: u64,
    /// Bytes from here on are somebody else's now.
    until: u64,
}

impl Asked {
    fn at(&self) -> u64 {
        self.segment.start + self.received
    }

    fn wanted(&self) -> u64 {
        self.until.saturating_sub(self.at())
    }

    fn unwanted(&self) -> u64 {
        self.segment.end - self.at().max(self.until)
    }

    /// What of it did not arrive and is still ours to bring.
    fn rest(&self) -> Option<Segment> {
        let empty_file = self.segment.size == 0 && self.until == 0;
        (self.wanted() > 0 || empty_file).then(|| Segment { start: self.at(), end: self.until, ..self.segment.clone() })
    }
}

#[derive(Debug)]
struct Connection {
    host: HostId,
    /// Small files that it owes for the large ones it was given.
    small_due: f64,
    asked: VecDeque<Asked>,
    next_tag: u64,
    answered: u64,
    /// Requests it may be given in all, when it is to find out whether the host's known number
    /// still holds.
    explores: Option<u64>,
    /// Not before this it looks for work to take over again.
    hedge_again: Instant,
    rate: Rate,
    opened: Instant,
    last_byte: Instant,
    current: Option<ItemId>,
}

impl Connection {
    /// Wanted bytes that were asked for and did not arrive yet.
    fn owed(&self) -> u64 {
        self.asked.iter().map(Asked::wanted).sum()
    }

    /// Bytes that will arrive although others bring them by now.
    fn unwanted(&self) -> u64 {
        self.asked.iter().map(Asked::unwanted).sum()
    }

    fn owes(&self) -> bool {
        !self.asked.is_empty()
    }

    fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_byte)
    }
}

/// A file in the hands of the run that is not verified yet.
#[derive(Debug, Default)]
struct History {
    /// Times it came complete and wrong.
    attempts: u32,
    /// Hosts that do not have it.
    misses: HostSet,
    /// Hosts that failed it in another way.
    failed: HostSet,
    /// Hosts that were not to be asked for it from the beginning.
    barred: HostSet,
    /// Hosts that have answered for wrong bytes of it already.
    blamed: HostSet,
    /// Times it was broken off, per host.
    troubles: BTreeMap<HostId, u32>,
    /// The last fault of each host with it.
    faults: BTreeMap<HostId, Fault>,
}

impl History {
    /// Hosts that will not bring it.
    fn lost(&self) -> HostSet {
        self.misses.union(self.failed).union(self.barred)
    }
}

/// The decisions of a run.
#[derive(Debug)]
pub struct Dispatcher {
    hosts: Vec<Host>,
    /// Per host, the files last asked for: a mixed-up answer is one of them.
    recent: Vec<VecDeque<ItemId>>,
    limits: Limits,
    queue: Queue,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: ConnectionId,
    /// Connections that are being opened, per host.
    opening: Vec<usize>,
    /// Who gets nothing more for the moment, for a trial.
    held: Option<Hold>,
    /// Only files with a history: an ordinary file never gets here.
    histories: BTreeMap<ItemId, History>,
    planned_bytes: u64,
    hedged_bytes: u64,
    unfinished_files: u64,
}

impl Dispatcher {
    /// A run over these hosts; the first is the origin.
    pub fn new(mut hosts: Vec<Host>, limits: Limits) -> Self {
        hosts.iter_mut().for_each(|host| host.dies_after(limits.failures_until_dead));
        Dispatcher {
            recent: hosts.iter().map(|_| VecDeque::new()).collect(),
            opening: vec![0; hosts.len()],
            hosts,
            limits,
            queue: Queue::default(),
            connections: BTreeMap::new(),
            next_connection: 0,
            held: None,
            histories: BTreeMap::new(),
            planned_bytes: 0,
            hedged_bytes: 0,
            unfinished_files: 0,
        }
    }

    /// Adds files to fetch. Empty ones are counted, but nobody is asked for them.
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

    /// Files neither verified nor given up.
    pub fn unfinished_files(&self) -> u64 {
        self.unfinished_files
    }

    /// The hosts with what was learned of them.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// One host, to note what a connection learned.
    pub fn host_mut(&mut self, host: HostId) -> &mut Host {
        &mut self.hosts[host as usize]
    }

    /// Open connections to a host.
    pub fn connections_to(&self, host: HostId) -> usize {
        self.connections.values().filter(|connection| connection.host == host).count()
    }

    /// When a paused host may be asked again; `None` if it is not paused.
    pub fn paused_until(&mut self, host: HostId, now: Instant) -> Option<Instant> {
        match self.hosts[host as usize].standing(now) {
            Standing::Paused(until) => Some(*until),
            _ => None,
        }
    }

    /// Open connections to a host, and those being opened.
    pub fn connections_begun_to(&self, host: HostId) -> usize {
        self.connections_to(host) + self.opening[host as usize]
    }

    /// Whether one more connection to this host would have something to do.
    pub fn wants_connection(&mut self, host: HostId, now: Instant) -> bool {
        if *self.hosts[host as usize].standing(now) != Standing::Up
            || self.connections_begun_to(host) >= self.limits.connections_per_host
            || self.held == Some(Hold::Host(host))
        {
            return false;
        }
        // A connection that was opened for nothing costs the server more than us.
        if self.connections.values().any(|c| c.host == host && !c.owes()) {
            return false;
        }
        let opening: usize = self.opening.iter().sum();
        if self.queue.requests_at_least(opening + 1, SEGMENT_MIN_BYTES) {
            return true;
        }
        self.queue.is_drained() && opening == 0 && self.hedge_candidate(host, None, now).is_some()
    }

    /// A connection is being opened; [`Dispatcher::opened`] or [`Dispatcher::not_opened`] follows.
    pub fn opening(&mut self, host: HostId) {
        self.opening[host as usize] += 1;
    }

    /// A connection is open.
    pub fn opened(&mut self, host: HostId, rtt: Duration, now: Instant) -> ConnectionId {
        let id = self.next_connection;
        self.next_connection += 1;
        self.opening[host as usize] = self.opening[host as usize].saturating_sub(1);
        let entry = &mut self.hosts[host as usize];
        entry.saw_rtt(rtt);
        let explores = entry.requests_on_next_connection();
        entry.totals.connections += 1;
        self.connections.insert(
            id,
            Connection {
                host,
                small_due: 0.0,
                asked: VecDeque::new(),
                next_tag: 0,
                answered: 0,
                explores,
                hedge_again: now,
                rate: Rate::new(now),
                opened: now,
                last_byte: now,
                current: None,
            },
        );
        id
    }

    /// What the connection is to do now. Call it until it says `Wait`, after every arrival, and
    /// when the run wakes all connections.
    pub fn next(&mut self, id: ConnectionId, now: Instant) -> Next {
        let Some(connection) = self.connections.get(&id) else { return Next::Close };
        if self.hosts[connection.host as usize].is_told_to_wait(now) {
            return Next::Wait;
        }
        let host = &self.hosts[connection.host as usize];
        if host.is_out() {
            return Next::Close;
        }
        let sent = connection.answered + connection.asked.len() as u64;
        if sent >= connection.explores.unwrap_or_else(|| host.requests_per_connection()) {
            return if connection.owes() { Next::Wait } else { Next::Close };
        }
        if self.held == Some(Hold::Host(connection.host)) || self.held == Some(Hold::Connection(id)) {
            return Next::Wait;
        }
        if connection.owes() && connection.owed() == 0 && connection.unwanted() > DRAIN_BYTES {
            return Next::Close;
        }
        let depth = host.depth().min(self.limits.pipeline_depth.max(1));
        if connection.asked.len() >= depth || connection.owed() >= self.ahead_bytes(connection) {
            return Next::Wait;
        }
        // The other connections are a round trip behind, and then faster together than this one alone.
        if connection.owes() && self.known_rate(connection).is_none() && self.opening[connection.host as usize] > 0 {
            return Next::Wait;
        }
        let lane = if connection.small_due < 1.0 { Lane::Bulk } else { Lane::Small };
        let small_per_byte = self.queue.small_per_byte();
        let wish = Wish {
            host: connection.host,
            lane,
            segment_bytes: self.segment_bytes(connection),
            ranges: host.answers_ranges(),
            current: connection.current,
        };
        match self.queue.take(&wish).or_else(|| self.hedge(id, now)) {
            Some(segment) => {
                let due = if lane == Lane::Bulk { segment.len() as f64 * small_per_byte } else { -1.0 };
                let next = self.ask(id, segment, now);
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.small_due = (connection.small_due + due).min(SMALL_DUE_MAX);
                }
                next
            }
            None => Next::Wait,
        }
    }

    /// Body bytes arrived for a request.
    pub fn received(&mut self, id: ConnectionId, tag: u64, bytes: u64, now: Instant) -> Keep {
        let Some(connection) = self.connections.get_mut(&id) else { return Keep::Close };
        connection.last_byte = now;
        connection.rate.add(bytes, now);
        let totals = &mut self.hosts[connection.host as usize].totals;
        totals.received_bytes += bytes;
        let Some(asked) = connection.asked.iter_mut().find(|asked| asked.tag == tag) else {
            totals.wasted_bytes += bytes;
            return Keep::First { wanted: 0 };
        };
        let wanted = asked.wanted().min(bytes);
        asked.received += bytes;
        totals.wasted_bytes += bytes - wanted;
        let ahead: u64 = connection.asked.iter().take_while(|a| a.wanted() == 0).map(Asked::unwanted).sum();
        if wanted == 0 && (connection.owed() == 0 && ahead > DRAIN_BYTES || ahead > UNWANTED_CLOSE_BYTES) {
            return Keep::Close;
        }
        Keep::First { wanted }
    }

    /// An answer is complete and was what was asked for.
    pub fn answered(&mut self, id: ConnectionId, tag: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.asked.retain(|asked| asked.tag != tag);
        connection.answered += 1;
        if !connection.owes() {
            let rtt = self.hosts[connection.host as usize].measured_rtt().unwrap_or_default();
            connection.rate.end(rtt, connection.last_byte);
        }
        self.hosts[connection.host as usize].delivered();
    }

    /// A request was not looked at (HTTP/2: GOAWAY, REFUSED_STREAM): no fault of anybody.
    pub fn unanswered(&mut self, id: ConnectionId, tag: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(place) = connection.asked.iter().position(|asked| asked.tag == tag) else { return };
        let asked = connection.asked.remove(place).expect("position was just found");
        self.give_back(&asked, now);
    }

    /// What of a part did not arrive goes back to the queue; or to the connection that it was taken
    /// from, if that one is still at it, so that nothing comes twice.
    fn give_back(&mut self, asked: &Asked, now: Instant) {
        let Some(rest) = asked.rest() else { return };
        let excluded = self.queue.excluded(rest.item);
        let giver = self
            .connections
            .values_mut()
            .filter(|connection| !excluded.contains(connection.host))
            .filter(|connection| connection.silent_for(now) < SILENCE_UNTIL_HEDGED)
            .flat_map(|connection| connection.asked.iter_mut())
            .find(|other| {
                other.segment.item == rest.item
                    && other.until == rest.start
                    && other.at() <= rest.start
                    && other.segment.end >= rest.end
                    && !rest.is_empty()
            });
        match giver {
            Some(giver) => giver.until = rest.end,
            None => self.queue.give_back(&rest),
        }
    }

    /// A host broke off a file, or has trouble with it. After some times another one is asked.
    fn trouble(&mut self, item: ItemId, size: u64, host: HostId, limit: u32) {
        let history = self.histories.entry(item).or_default();
        let troubles = history.troubles.entry(host).or_default();
        *troubles += 1;
        if *troubles >= limit {
            history.failed.insert(host);
            self.queue.exclude(item, size, host);
        }
    }

    /// An answer was a fault; the connection goes on.
    pub fn refused(&mut self, id: ConnectionId, tag: u64, fault: Fault, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.answered += 1;
        connection.last_byte = now;
        let host = connection.host;
        let Some(place) = connection.asked.iter().position(|asked| asked.tag == tag) else { return };
        let asked = connection.asked.remove(place).expect("position was just found");
        if let Some(rest) = asked.rest() {
            self.histories.entry(rest.item).or_default().faults.insert(host, fault.clone());
            match &fault {
                Fault::Missing(_) => {
                    self.queue.exclude(rest.item, rest.size, host);
                    self.histories.entry(rest.item).or_default().misses.insert(host);
                }
                Fault::WrongAnswer(_) | Fault::Elsewhere(_) => {
                    self.queue.exclude(rest.item, rest.size, host);
                    self.histories.entry(rest.item).or_default().failed.insert(host);
                }
                // Told to wait, it is a matter of the host; otherwise it may be one of the file.
                Fault::Busy { status: 429 | 503, .. } => {
                    self.trouble(rest.item, rest.size, host, TROUBLES_PER_BUSY_HOST);
                }
                Fault::Busy { .. } => self.trouble(rest.item, rest.size, host, TROUBLES_PER_HOST),
                Fault::Broken(_) if asked.received < PROGRESS_BYTES => {
                    self.trouble(rest.item, rest.size, host, TROUBLES_PER_HOST);
                }
                _ => {}
            }
            self.give_back(&asked, now);
        }
        if self.limits.redirects_are_faults || !matches!(fault, Fault::Elsewhere(_)) {
            self.hosts[host as usize].fault(&fault, now);
        }
    }

    /// The connection is gone; what it owed goes back to the queue.
    pub fn ended(&mut self, id: ConnectionId, how: &Ended, now: Instant) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if let (Ended::Fault(fault), Some(front)) = (how, connection.asked.front())
            && front.received < PROGRESS_BYTES
            && front.rest().is_some()
        {
            let history = self.histories.entry(front.segment.item).or_default();
            history.faults.insert(connection.host, fault.clone());
            self.trouble(front.segment.item, front.segment.size, connection.host, TROUBLES_PER_HOST);
        }
        connection.asked.iter().for_each(|asked| self.give_back(asked, now));
        let host = &mut self.hosts[connection.host as usize];
        host.saw_connection_rate(connection.rate.average(), connection.rate.at_least());
        match how {
            Ended::Clean => host.closed_after(connection.answered),
            Ended::Ours => {}
            Ended::Fault(fault) => host.fault(fault, now),
        }
    }

    /// A connection could not be opened.
    pub fn not_opened(&mut self, host: HostId, fault: &Fault, now: Instant) {
        self.opening[host as usize] = self.opening[host as usize].saturating_sub(1);
        self.hosts[host as usize].fault(fault, now);
    }

    /// Whether the connection is to be given up for silence or drips. Ask every 250 ms or so.
    pub fn overdue(&mut self, id: ConnectionId, now: Instant) -> Option<Fault> {
        let connection = self.connections.get_mut(&id)?;
        if !connection.owes() {
            return None;
        }
        connection.rate.settle(now);
        let connection = &self.connections[&id];
        let fastest = self.fastest_elsewhere(connection.host);
        let silence = if fastest.is_some() { SILENCE_LIMIT_AMONG_OTHERS } else { self.limits.silence };
        if connection.silent_for(now) > silence {
            return Some(Fault::Slow);
        }
        let age = now.saturating_duration_since(connection.opened);
        let rate = connection.rate.average().unwrap_or(0.0);
        let patience_s = connection.owed() as f64 / rate.max(1.0);
        let drips = fastest.is_some_and(|fastest| rate < DRIP_SHARE * fastest)
            && age > DRIP_GRACE
            && patience_s > DRIP_PATIENCE_S;
        let dead_slow = rate < RATE_FLOOR_BYTES_PER_S && age > RATE_FLOOR_PATIENCE && patience_s > DRIP_PATIENCE_S;
        (drips || dead_slow).then_some(Fault::Slow)
    }

    /// The file is verified and in place. `sources` are the hosts that served it, `culprits` those
    /// whose earlier bytes of it were wrong.
    pub fn verified(&mut self, item: ItemId, sources: &[HostId], culprits: &[HostId], now: Instant) {
        self.unfinished_files = self.unfinished_files.saturating_sub(1);
        self.queue.forget(item);
        let history = self.histories.remove(&item).unwrap_or_default();
        for connection in self.connections.values_mut() {
            for asked in connection.asked.iter_mut().filter(|asked| asked.segment.item == item) {
                asked.until = asked.until.min(asked.at());
            }
            if connection.current == Some(item) {
                connection.current = None;
            }
        }
        for host in culprits.iter().filter(|host| !history.blamed.contains(**host)) {
            self.hosts[*host as usize].fault(&Fault::WrongBytes, now);
        }
        for host in sources.iter().filter(|host| !culprits.contains(host)) {
            self.hosts[*host as usize].verified();
        }
        if let [host] = sources {
            self.hosts[*host as usize].totals.files += 1;
        }
    }

    /// All bytes came but the SHA-256 is wrong. `shares` are the hosts that served the file with
    /// their bytes. What the remedy says is then to be asked for with [`Dispatcher::ask_again`].
    pub fn mismatch(&mut self, item: ItemId, size: u64, shares: &[(HostId, u64)], now: Instant) -> Remedy {
        let usable = self.usable();
        let history = self.histories.entry(item).or_default();
        history.attempts += 1;
        if history.attempts >= ATTEMPTS_MAX {
            return Remedy::GiveUp;
        }
        self.queue.include_all(item);
        if let [(host, _)] = shares {
            history.failed.insert(*host);
            history.blamed.insert(*host);
            history.faults.insert(*host, Fault::WrongBytes);
            // With one host only, a second try tells a bad transfer from a bad file.
            let retry_same = usable.iter().count() == 1 && history.attempts < 2;
            let lost = if retry_same { history.barred } else { history.lost() };
            for host in lost.iter() {
                self.queue.exclude(item, size, host);
            }
            self.hosts[*host as usize].fault(&Fault::WrongBytes, now);
            return Remedy::Whole;
        }
        // Several hosts: one of them serves the others' parts too, the origin if it can, for it must
        // have the right bytes; else the one with most of them. If the file is right then, the parts
        // that changed name the culprit; if not, it is the judge.
        let origin = (usable.contains(ORIGIN) && !history.lost().contains(ORIGIN)).then_some(ORIGIN);
        let most = shares.iter().filter(|(host, _)| usable.contains(*host)).max_by_key(|(_, bytes)| *bytes);
        let judge = origin.or(most.map(|(host, _)| *host));
        let Some(judge) = judge else { return Remedy::Whole };
        for host in (0..self.hosts.len() as HostId).filter(|host| *host != judge) {
            self.queue.exclude(item, size, host);
        }
        Remedy::AllBut(judge)
    }

    /// The bytes of another file came for this one: its host cannot pipeline. They were right
    /// otherwise, which is no strike.
    pub fn mixed_up(&mut self, item: ItemId, host: HostId, now: Instant) {
        self.histories.entry(item).or_default().blamed.insert(host);
        if self.hosts[host as usize].depth() > 1 {
            self.hosts[host as usize].fault(&Fault::CannotPipeline, now);
        }
    }

    /// The files last asked for from a host, newest last.
    pub fn recently_asked(&self, host: HostId) -> Vec<ItemId> {
        self.recent[host as usize].iter().copied().collect()
    }

    /// A part is to be fetched again (see [`Remedy`]).
    pub fn ask_again(&mut self, segment: &Segment) {
        self.queue.give_back(segment);
    }

    /// The file is wanted no more (it failed on our side, or was given up).
    pub fn abandon(&mut self, item: ItemId, now: Instant) {
        self.verified(item, &[], &[], now);
    }

    /// The file has another name that no host was asked for yet.
    pub fn ask_under_other_name(&mut self, item: ItemId) {
        let barred = self.histories.remove(&item).map_or(HostSet::default(), |history| history.barred);
        let size = self.queue.size(item);
        self.queue.include_all(item);
        if barred != HostSet::default() {
            self.histories.entry(item).or_default().barred = barred;
            for host in barred.iter() {
                self.queue.exclude(item, size, host);
            }
        }
    }

    /// Asks this host or connection for nothing more until it is let go.
    pub fn hold(&mut self, hold: Option<Hold>) {
        self.held = hold;
    }

    /// Whether what is held has nothing left to bring.
    pub fn held_is_quiet(&self) -> bool {
        match self.held {
            None => false,
            Some(Hold::Host(host)) => !self.connections.values().any(|c| c.host == host && c.owes()),
            Some(Hold::Connection(id)) => !self.connections.get(&id).is_some_and(Connection::owes),
        }
    }

    /// The slowest of several busy connections to a host, which a trial can spare best.
    pub fn sparable(&self, host: HostId) -> Option<ConnectionId> {
        let busy = || self.connections.iter().filter(move |(_, c)| c.host == host && c.owes());
        let slowest =
            busy().min_by(|(_, a), (_, b)| a.rate.average().unwrap_or(0.0).total_cmp(&b.rate.average().unwrap_or(0.0)));
        slowest.filter(|_| busy().count() >= 2).map(|(id, _)| *id)
    }

    /// Bytes nobody is asked for yet.
    pub fn unasked_bytes(&self) -> u64 {
        self.queue.unasked_bytes()
    }

    /// Files that no host is left to serve. They stay until [`Dispatcher::abandon`] or
    /// [`Dispatcher::ask_under_other_name`].
    pub fn hopeless(&mut self) -> Vec<GivenUp> {
        let usable = self.usable();
        let (with_ranges, whole_only) = self.usable_by_ranges();
        self.queue.take_whole_again(with_ranges, whole_only);
        let mut items = self.queue.unservable(usable);
        if usable == HostSet::default() {
            self.queue.abandon_waiting();
        }
        items.retain(|item| !self.readmit(*item, usable));
        items
            .into_iter()
            .map(|item| {
                let none = History::default();
                let history = self.histories.get(&item).unwrap_or(&none);
                let tried = self.queue.excluded(item);
                let missing =
                    history.misses != HostSet::default() && history.misses.union(history.barred).covers(tried);
                GivenUp { item, tried, missing, faults: self.faults_with(item) }
            })
            .collect()
    }

    /// What each host was last seen to do wrong with a file.
    pub fn faults_with(&self, item: ItemId) -> Vec<(HostId, Fault)> {
        let history = self.histories.get(&item);
        history.into_iter().flat_map(|history| &history.faults).map(|(host, fault)| (*host, fault.clone())).collect()
    }

    /// A file that waits for one judge ([`Remedy::AllBut`]) which is out by now goes back to all
    /// hosts that never failed it. Whether there are any.
    fn readmit(&mut self, item: ItemId, usable: HostSet) -> bool {
        let Some(history) = self.histories.get(&item) else { return false };
        let failed = history.lost();
        if failed.covers(usable) || failed == self.queue.excluded(item) {
            return false;
        }
        let size = self.queue.size(item);
        self.queue.include_all(item);
        for host in failed.iter() {
            self.queue.exclude(item, size, host);
        }
        true
    }

    /// Hosts that are not out nor likely to be soon: those that answer ranges, and those that do not.
    fn usable_by_ranges(&self) -> (HostSet, HostSet) {
        let (mut with_ranges, mut whole_only) = (HostSet::default(), HostSet::default());
        for id in self.usable().iter() {
            let host = &self.hosts[id as usize];
            match (host.is_failing(), host.answers_ranges()) {
                (true, _) => {}
                (false, true) => with_ranges.insert(id),
                (false, false) => whole_only.insert(id),
            }
        }
        (with_ranges, whole_only)
    }

    /// Hosts that are not out.
    fn usable(&self) -> HostSet {
        let mut set = HostSet::default();
        for (place, _) in self.hosts.iter().enumerate().filter(|(_, host)| !host.is_out()) {
            set.insert(place as HostId);
        }
        set
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
        connection.asked.push_back(Asked { tag, until: segment.end, received: 0, segment: segment.clone() });
        let recent = &mut self.recent[connection.host as usize];
        recent.push_back(segment.item);
        if recent.len() > RECENT_FILES {
            recent.pop_front();
        }
        self.hosts[connection.host as usize].totals.requests += 1;
        Next::Ask { tag, segment }
    }

    /// Bytes that should be asked for and unanswered on this connection. While it speeds up, the
    /// next round trip brings twice as much, and the request needs half of one: three in all, and
    /// a tenth of a second for jitter.
    fn ahead_bytes(&self, connection: &Connection) -> u64 {
        let Some(rate) = self.known_rate(connection) else { return AHEAD_UNKNOWN_BYTES };
        let rtt = self.hosts[connection.host as usize].rtt().as_secs_f64();
        let least = AHEAD_MIN_BYTES.min((rate * AHEAD_MIN_S) as u64);
        ((3.0 * rate * rtt + 0.1 * rate) as u64).clamp(least, AHEAD_MAX_BYTES)
    }

    fn known_rate(&self, connection: &Connection) -> Option<f64> {
        connection.rate.latest().or(self.hosts[connection.host as usize].connection_rate())
    }

    fn segment_bytes(&self, connection: &Connection) -> u64 {
        let by_rate = match self.known_rate(connection) {
            Some(rate) => ((rate * SEGMENT_TIME_S) as u64).clamp(SEGMENT_MIN_BYTES, SEGMENT_MAX_BYTES),
            None => {
                let share = self.queue.unasked_bytes() / self.connections_begun_to(connection.host).max(1) as u64;
                share.clamp(SEGMENT_FIRST_MIN_BYTES, AHEAD_UNKNOWN_BYTES)
            }
        };
        // Towards the end smaller parts, so that all connections end together.
        let share = self.queue.unasked_bytes() / (2 * self.connections.len().max(1) as u64);
        by_rate.min(share.max(SEGMENT_MIN_BYTES))
    }

    /// Average rate of the fastest connection to another host, in bytes per second.
    fn fastest_elsewhere(&self, host: HostId) -> Option<f64> {
        self.connections
            .values()
            .filter(|other| other.host != host)
            .filter_map(|other| other.rate.average())
            .max_by(f64::total_cmp)
    }

    /// Best known rate of one connection to this host, or of the last one.
    fn host_rate(&self, host: HostId) -> Option<f64> {
        self.connections
            .values()
            .filter(|other| other.host == host)
            .filter_map(|other| other.rate.at_least())
            .max_by(f64::total_cmp)
            .or_else(|| self.hosts[host as usize].least_rate())
    }

    /// The part whose arrival is furthest off, if `taker` (or a new connection to `host`) would
    /// have it markedly sooner: the connection, the tag, and from which byte on.
    fn hedge_candidate(
        &self,
        host: HostId,
        taker: Option<ConnectionId>,
        now: Instant,
    ) -> Option<(ConnectionId, u64, u64)> {
        if !self.limits.hedge {
            return None;
        }
        let mine = taker.and_then(|id| self.connections.get(&id));
        let measured = mine.and_then(|c| c.rate.average()).or(self.hosts[host as usize].connection_rate());
        let by_bursts = mine.and_then(|c| c.rate.at_least()).or_else(|| self.host_rate(host));
        let may_try_out = mine.is_none_or(|connection| !connection.owes());
        let rtt_s = self.hosts[host as usize].rtt().as_secs_f64();
        let mut best: Option<(f64, (ConnectionId, u64, u64))> = None;
        for (victim_id, victim) in &self.connections {
            if Some(*victim_id) == taker || !victim.owes() {
                continue;
            }
            let patience = SILENCE_UNTIL_HEDGED.max(4 * self.hosts[victim.host as usize].rtt());
            let silent = victim.silent_for(now) > patience;
            if victim.host == host && !silent {
                continue;
            }
            let their_rate = if silent { 0.0 } else { victim.rate.average().unwrap_or(0.0) };
            if !silent && victim.rate.average().is_none() {
                continue;
            }
            // Without a rate of our own, only the silent are measurably slower than us.
            let lasts_s = victim.owed() as f64 / their_rate.max(1.0);
            let tries_out = silent || may_try_out && lasts_s > TRY_OUT_AFTER_S;
            let trial_rate = tries_out.then_some(RATE_UNKNOWN_BYTES_PER_S);
            let guess = || by_bursts.into_iter().chain(trial_rate).max_by(f64::total_cmp);
            let Some(my_rate) = measured.or_else(guess) else { continue };
            let my_rate = my_rate.max(1.0);
            if their_rate > HEDGE_RATE_SHARE * my_rate {
                continue;
            }
            let mut through: f64 = victim.owed() as f64;
            for asked in victim.asked.iter().rev() {
                let wanted = asked.wanted();
                let theirs_s = through / their_rate.max(1.0);
                through -= wanted as f64;
                if asked.rest().is_none() || self.queue.excluded(asked.segment.item).contains(host) {
                    continue;
                }
                if !silent && self.hedged_bytes + waste(wanted.min(SEGMENT_MIN_BYTES), their_rate) > self.hedge_budget()
                {
                    continue;
                }
                let from = self.split_point(asked, theirs_s, their_rate, my_rate, rtt_s, host);
                let mine_s = rtt_s + (mine.map_or(0, Connection::owed) + asked.until - from) as f64 / my_rate;
                let gain_s = theirs_s - mine_s;
                if gain_s > HEDGE_GAIN_S && best.as_ref().is_none_or(|(most, _)| gain_s > *most) {
                    best = Some((gain_s, (*victim_id, asked.tag, from)));
                }
                break;
            }
        }
        best.map(|(_, candidate)| candidate)
    }

    /// From where on a part is taken over, so that giver and taker end at the same time.
    fn split_point(
        &self,
        asked: &Asked,
        theirs_s: f64,
        their_rate: f64,
        my_rate: f64,
        rtt_s: f64,
        host: HostId,
    ) -> u64 {
        let wanted = asked.wanted();
        if !self.hosts[host as usize].answers_ranges() || their_rate < 1.0 {
            return asked.at();
        }
        let bytes = ((theirs_s - rtt_s).max(0.0) / (1.0 / my_rate + 1.0 / their_rate)) as u64;
        if bytes + SEGMENT_MIN_BYTES / 4 >= wanted {
            return asked.at();
        }
        asked.until - bytes.max(1)
    }

    fn hedge_budget(&self) -> u64 {
        ((self.planned_bytes as f64 * HEDGE_BUDGET_SHARE) as u64).max(HEDGE_BUDGET_MIN_BYTES)
    }

    /// Takes a part over from a slower connection.
    fn hedge(&mut self, id: ConnectionId, now: Instant) -> Option<Segment> {
        let taker = self.connections.get_mut(&id)?;
        let host = taker.host;
        if now < taker.hedge_again {
            return None;
        }
        taker.hedge_again = now + HEDGE_LOOK_EVERY;
        let (victim_id, tag, from) = self.hedge_candidate(host, Some(id), now)?;
        self.connections.get_mut(&id)?.hedge_again = now;
        let ranges = self.hosts[host as usize].answers_ranges();
        let victim = self.connections.get_mut(&victim_id)?;
        let victim_host = victim.host;
        let their_rate = victim.rate.average().unwrap_or(0.0);
        let silent = victim.silent_for(now) > SILENCE_UNTIL_HEDGED;
        let asked = victim.asked.iter_mut().find(|asked| asked.tag == tag)?;
        let segment = Segment { start: from, end: asked.until, ..asked.segment.clone() };
        if !ranges && !segment.is_whole() {
            return None;
        }
        asked.until = from;
        if segment.size == 0 {
            // An empty file has no part to cut off: it leaves the slow connection altogether.
            victim.asked.retain(|asked| asked.tag != tag);
        }
        if !silent {
            self.hedged_bytes += waste(segment.len(), their_rate);
        }
        self.hosts[victim_host as usize].totals.hedged += 1;
        Some(segment)
    }
}

/// Bytes of a part that may come in vain after it was taken from a connection of this rate.
fn waste(bytes: u64, rate_bytes_per_s: f64) -> u64 {
    bytes.min((rate_bytes_per_s * HEDGE_WASTE_S) as u64)
}

#[cfg(test)]
mod tests;
