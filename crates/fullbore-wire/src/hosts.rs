//! The mirrors of a run: what each was seen to do, and whether to ask it again.
//!
//! Nothing here is configured by the user beyond the address: rate, round-trip time, requests per
//! connection, pipelining depth and faults are learned while data flows. A fault belongs to a host,
//! never to a file; a host with too many is left alone for a while, then for the rest of the run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::http1::PIPELINE_DEPTH;
use crate::signer::Denial;
use crate::tls::Protocol;

/// Place of a host in the run's list; 0 is the origin.
pub type HostId = u16;

/// Most hosts in one run: a [`HostSet`] is one machine word.
pub const MAX_HOSTS: usize = 64;

/// Faults in a row (wrong bytes, wrong length, error pages) after which a host is left alone for
/// the rest of the run. A guess: one fault may be an update in progress, three are a habit.
const STRIKES_UNTIL_BANNED: u32 = 3;

/// The same for the last host that is left. A file that it has wrong is left out by itself, and all others may
/// be right; so many in a row, and none right, are a login page or a proxy that spoils everything. A guess.
const STRIKES_UNTIL_BANNED_ALONE: u32 = 100;

/// Answers "not here" in a row, with no file ever delivered, after which a host counts as stale.
const MISSES_UNTIL_STALE: u32 = 24;

/// Failed or cut connections in a row after which a host counts as dead, unless told otherwise. With
/// the doubling pause this is about 8 s of trying; time to connect comes on top.
pub(crate) const FAILURES_UNTIL_DEAD: u32 = 6;

/// Wrong bytes in this many files, and more than one in [`FILES_PER_WRONG_ONE`], are a habit even
/// with good files between them: a host may spoil ranges only, or what its cache holds.
const WRONG_FILES_UNTIL_BANNED: u64 = 3;

/// Time for which all machines of a fleet avoid a host that has sent wrong content too often: a mirror that is half-way
/// through an update needs minutes. A guess.
const BANNED_BY_ALL_FOR: Duration = Duration::from_secs(300);

/// Good files that outweigh one with wrong bytes. A guess.
const FILES_PER_WRONG_ONE: u64 = 50;

/// For this long a host may answer nothing but "busy" without telling when it will be ready, and …
const BUSY_LIMIT: Duration = Duration::from_secs(20);

/// … for this long when it does (`Retry-After`), before it is left alone for the run. For the last host a pause
/// as long as this is kept …
const BUSY_LIMIT_TOLD: Duration = Duration::from_secs(300);

/// … for others a host that asks for more than this is of no use to the run.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Of so many connections to a host with a known number of requests per connection, one tries
/// whether it takes more by now: the known number may stem from a restart of the server.
const EXPLORE_EVERY: u64 = 16;

/// First pause after a broken connection; doubles up to [`BACK_OFF_MAX`].
const BACK_OFF_FIRST: Duration = Duration::from_millis(250);

/// Requests completed on one connection below which a close by an HTTP/2 server counts as early. A guess: servers are
/// set to 100 or 1000, and a connection costs about as much as ten requests for small files.
const COMPLETED_PER_CONNECTION_MIN: u64 = 10;

/// Early closes in a row that cost no pause: a server that restarts closes all its connections at once. A guess.
const EARLY_CLOSES_FREE: u32 = 8;

/// Longest pause after an early close, which [`BACK_OFF_FIRST`] begins and each further one doubles. Such a host still
/// delivers, so it is asked more often than a broken one. A guess.
const EARLY_CLOSE_PAUSE_MAX: Duration = Duration::from_secs(8);

/// Faults of one host kept for the report: the first ones, and the last. A guess at what is read.
const FAULTS_KEPT: usize = 32;

/// Statuses of which a host's own words are kept, and characters of them. Guesses far above what a host has.
const PHRASES_MAX: usize = 16;
const PHRASE_CHARS_MAX: usize = 100;

/// Longest pause after broken connections.
const BACK_OFF_MAX: Duration = Duration::from_secs(60);

/// A set of at most 64 hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSet(u64);

impl HostSet {
    /// Adds a host to the set.
    pub fn insert(&mut self, host: HostId) {
        self.0 |= 1 << host;
    }

    /// Removes a host from the set.
    pub fn remove(&mut self, host: HostId) {
        self.0 &= !(1 << host);
    }

    /// Whether the host is in the set.
    pub fn contains(self, host: HostId) -> bool {
        self.0 & (1 << host) != 0
    }

    /// Whether every host of `other` is in this set too.
    pub fn covers(self, other: HostSet) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns the hosts that are in either set.
    #[must_use]
    pub fn union(self, other: HostSet) -> HostSet {
        HostSet(self.0 | other.0)
    }

    /// Removes all hosts from the set.
    pub fn clear(&mut self) {
        self.0 = 0;
    }

    /// The hosts of the set, in order.
    pub fn iter(self) -> impl Iterator<Item = HostId> {
        (0..MAX_HOSTS as HostId).filter(move |host| self.contains(*host))
    }
}

/// Kinds of faults of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It does not have the file (404, 410, 403).
    Missing(u16),
    /// An answer that cannot be the file: wrong range, a status of another kind.
    WrongAnswer(String),
    /// An answer of another length than the signed index says: another file, an error page.
    WrongSize(String),
    /// A redirect to this address, which is not the same path below another mirror's.
    Elsewhere(String),
    /// The right number of bytes, but not the right ones.
    WrongBytes,
    /// An error with this status, and another try would give the same: 401, 501, a captive portal's 511.
    Refused(u16),
    /// It asks for a pause (429, 503) or has some other trouble that may pass
    /// ([`TRANSIENT_STATUSES`](crate::answer::TRANSIENT_STATUSES)).
    Busy {
        /// The status of the answer.
        status: u16,
        /// What `Retry-After` asked for.
        retry_after: Option<Duration>,
    },
    /// The connection failed, was reset, or ended in the middle of an answer.
    Broken(String),
    /// Its certificate is not to be trusted.
    Untrusted {
        /// What is wrong with it.
        why: String,
        /// Whether it is that nobody who is trusted vouches for it.
        unknown_issuer: bool,
    },
    /// Its name may not be looked up.
    Blocked(String),
    /// It refuses every request: it wants other signatures than it gets.
    Denied(Denial),
    /// Nothing, or next to nothing, arrived for too long.
    Slow,
    /// It ignores `Range`.
    NoRanges,
    /// It answered pipelined requests in another order, or is HTTP/1.0.
    CannotPipeline,
}

impl Fault {
    /// Whether the host has something else under the name than the signed index says. Neither a file that is not there
    /// nor a connection that breaks is that.
    pub fn is_wrong_content(&self) -> bool {
        matches!(self, Fault::WrongBytes | Fault::WrongSize(_))
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Missing(status) => write!(f, "not there ({status})"),
            Fault::WrongAnswer(why) | Fault::WrongSize(why) => write!(f, "wrong answer: {why}"),
            Fault::Refused(status @ (401 | 407)) => {
                write!(f, "wrong answer: asks for credentials ({status}); see auth.conf")
            }
            Fault::Refused(511) => write!(f, "wrong answer: login page of a captive portal (511)"),
            Fault::Refused(status) => write!(f, "wrong answer: status {status}"),
            Fault::Elsewhere(to) => write!(f, "wrong answer: redirect to another file: {to}"),
            Fault::WrongBytes => write!(f, "bytes with another SHA-256 than the signed index says"),
            Fault::Busy { status, retry_after: Some(pause) } => {
                write!(f, "busy ({status}, asks to wait {} s)", pause.as_secs())
            }
            Fault::Busy { status, retry_after: None } => write!(f, "trouble on the server ({status})"),
            Fault::Broken(why) | Fault::Blocked(why) | Fault::Untrusted { why, .. } => write!(f, "{why}"),
            Fault::Denied(denial) => write!(f, "{}", denial.why),
            Fault::Slow => write!(f, "too slow"),
            Fault::NoRanges => write!(f, "ignores Range"),
            Fault::CannotPipeline => write!(f, "cannot answer pipelined requests in order"),
        }
    }
}

/// Whether a host may be asked now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostState {
    /// Ask it.
    Up,
    /// Leave it alone until then.
    Paused(Instant),
    /// Leave it alone for the rest of the run; the reason is for the report.
    Out(String),
}

/// A fault as it was seen, for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenFault {
    /// Time at which the fault was noticed.
    pub at: Instant,
    /// With which file, where it was about one: its path in the catalogue.
    pub path: Option<String>,
    /// Description of the fault, for reports.
    pub fault: String,
}

/// What a fault is about, and how much the run needs its host.
#[derive(Clone, Debug, Default)]
pub struct Occasion {
    /// The file, where it was about one.
    pub path: Option<String>,
    /// No other host may be asked any more.
    pub alone: bool,
}

/// Totals of one host, for the report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostTotals {
    /// Number of body bytes received from the host.
    pub received_bytes: u64,
    /// Body bytes received that were already there or had to be thrown away.
    pub wasted_bytes: u64,
    /// Number of requests sent to the host.
    pub requests: u64,
    /// Number of connections opened to the host.
    pub connections: u64,
    /// Files or ranges it was asked for and did not have.
    pub missing: u64,
    /// Number of faults of other kinds.
    pub faults: u64,
    /// Files that it brought alone and right.
    pub files: u64,
    /// Faults in order, missing files too: the first of them, and the last.
    pub seen_faults: Vec<SeenFault>,
    /// Work taken from it because others were faster.
    pub hedged: u64,
    /// Time in which a faster host was idle and this one alone still owed something.
    pub waited_alone: Duration,
}

/// What was measured of one mirror: speed, faults, state.
#[derive(Clone, Debug)]
pub struct Host {
    /// Name for people: host and port.
    pub name: String,
    /// Totals of the host for the report.
    pub totals: HostTotals,
    /// What it says behind the statuses of errors, last.
    phrases: BTreeMap<u16, String>,
    state: HostState,
    /// Why it refuses every request, if it does.
    denial: Option<Denial>,
    strikes: u32,
    misses: u32,
    failures: u32,
    failures_until_dead: u32,
    early_closes: u32,
    busy_since: Option<Instant>,
    /// The pause is one that the host asked for: connections that are open keep it as well.
    told_to_wait: bool,
    verified_files: u64,
    wrong_files: u64,
    delivered: bool,
    connection_rate: Option<f64>,
    least_rate: Option<f64>,
    requests_per_connection: Option<u64>,
    pipelines: bool,
    ranges: bool,
    rtt: Option<Duration>,
    protocol: Option<Protocol>,
}

impl Host {
    /// A host nothing is known about yet.
    pub fn new(name: impl Into<String>) -> Self {
        Host {
            name: name.into(),
            phrases: BTreeMap::new(),
            totals: HostTotals::default(),
            state: HostState::Up,
            denial: None,
            strikes: 0,
            misses: 0,
            failures: 0,
            failures_until_dead: FAILURES_UNTIL_DEAD,
            early_closes: 0,
            busy_since: None,
            told_to_wait: false,
            verified_files: 0,
            wrong_files: 0,
            delivered: false,
            connection_rate: None,
            least_rate: None,
            requests_per_connection: None,
            pipelines: true,
            ranges: true,
            rtt: None,
            protocol: None,
        }
    }

    /// Sets how many failures in a row make it count as dead.
    pub(crate) fn dies_after(&mut self, failures: u32) {
        self.failures_until_dead = failures.max(1);
    }

    /// Whether it may be asked at `now`; a pause that is over ends here.
    pub fn state(&mut self, now: Instant) -> &HostState {
        if matches!(self.state, HostState::Paused(until) if until <= now) {
            self.state = HostState::Up;
            self.told_to_wait = false;
        }
        &self.state
    }

    /// Whether the host has asked us to leave it alone at present (429, 503 and the like): open
    /// connections wait as well. After a broken connection the others go on.
    pub(crate) fn is_told_to_wait(&mut self, now: Instant) -> bool {
        matches!(self.state(now), HostState::Paused(_)) && self.told_to_wait
    }

    /// How long every machine of a fleet is to leave the host alone: it has asked for a pause, or was banned for wrong
    /// content. What only this machine saw of it, such as a broken connection, counts for this machine alone.
    pub(crate) fn is_to_be_avoided_for(&mut self, now: Instant) -> Option<Duration> {
        let (was_banned, told_to_wait) = (self.wrong_files >= WRONG_FILES_UNTIL_BANNED, self.told_to_wait);
        match (self.state(now), told_to_wait) {
            (HostState::Paused(until), true) => Some(until.saturating_duration_since(now)),
            (HostState::Out(_), _) if was_banned => Some(BANNED_BY_ALL_FOR),
            _ => None,
        }
    }

    /// Whether it is out for the rest of the run.
    pub fn is_out(&self) -> bool {
        matches!(self.state, HostState::Out(_))
    }

    /// Whether it is neither paused at `now` nor out.
    pub(crate) fn is_up(&self, now: Instant) -> bool {
        match self.state {
            HostState::Up => true,
            HostState::Paused(until) => until <= now,
            HostState::Out(_) => false,
        }
    }

    /// Whether its last connections failed, two times or more, and nothing came since.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures >= 2
    }

    /// Why it is out, if it is.
    pub(crate) fn out_reason(&self) -> Option<&str> {
        match &self.state {
            HostState::Out(reason) => Some(reason),
            _ => None,
        }
    }

    /// Why it refuses every request, if it does.
    pub(crate) fn denial(&self) -> Option<&Denial> {
        self.denial.as_ref()
    }

    /// Requests that may be unanswered on one connection.
    pub fn depth(&self) -> usize {
        if self.pipelines { PIPELINE_DEPTH } else { 1 }
    }

    /// Requests it answers on one connection, where that was seen.
    pub fn requests_per_connection(&self) -> u64 {
        self.requests_per_connection.unwrap_or(u64::MAX)
    }

    /// Requests that the connection now opened may be given: what was learned, now and then twice
    /// as much.
    pub(crate) fn requests_on_next_connection(&self) -> Option<u64> {
        let explores = self.totals.connections % EXPLORE_EVERY == EXPLORE_EVERY - 1;
        explores.then(|| self.requests_per_connection().saturating_mul(2))
    }

    /// Rate of the last connection that ended, in bytes per second: a guess for the next one.
    pub fn connection_rate(&self) -> Option<f64> {
        self.connection_rate
    }

    /// What the last connection brought at least, in bytes per second, however short it was in use.
    pub(crate) fn least_rate(&self) -> Option<f64> {
        self.least_rate
    }

    /// Notes the rate at which a connection ended, and what it had brought at least.
    pub(crate) fn saw_connection_rate(&mut self, bytes_per_s: Option<f64>, at_least: Option<f64>) {
        self.connection_rate = bytes_per_s.or(self.connection_rate);
        self.least_rate = at_least.or(self.least_rate);
    }

    /// Whether it answers `Range` with 206.
    pub(crate) fn answers_ranges(&self) -> bool {
        self.ranges
    }

    /// Smallest round-trip time seen; 50 ms while unknown (a guess between a LAN and an ocean).
    pub fn rtt(&self) -> Duration {
        self.rtt.unwrap_or(Duration::from_millis(50))
    }

    /// Smallest round-trip time seen, if one was.
    pub(crate) fn measured_rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// What its last connection spoke, if there was one.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol
    }

    /// Notes the words of an answer behind its status.
    pub(crate) fn said(&mut self, status: u16, phrase: &str) {
        if self.phrases.len() < PHRASES_MAX || self.phrases.contains_key(&status) {
            self.phrases.insert(status, phrase.chars().take(PHRASE_CHARS_MAX).collect());
        }
    }

    /// Its words behind the statuses of errors.
    pub(crate) fn phrases(&self) -> &BTreeMap<u16, String> {
        &self.phrases
    }

    /// Notes what a connection speaks.
    pub(crate) fn saw_protocol(&mut self, protocol: Protocol) {
        self.protocol = Some(protocol);
    }

    /// Notes a measured round-trip time.
    pub(crate) fn record_rtt(&mut self, rtt: Duration) {
        if !rtt.is_zero() {
            self.rtt = Some(self.rtt.map_or(rtt, |known| known.min(rtt)));
        }
    }

    /// A clean close by the server after `answers` answers: normal, and the length of the next
    /// connection. The last observation counts.
    pub(crate) fn closed_after(&mut self, answers: u64) {
        if answers >= 1 {
            self.requests_per_connection = Some(answers);
        }
    }

    /// A clean close by the server after `completed` requests were answered as asked. Over HTTP/2, early closes in a
    /// row cost a growing pause. Over HTTP/1 a server may well be set to one request per connection.
    pub(crate) fn completed_before_close(&mut self, completed: u64, now: Instant) {
        if completed >= COMPLETED_PER_CONNECTION_MIN || self.protocol != Some(Protocol::Http2) {
            self.early_closes = 0;
            return;
        }
        // What closes during a pause is the same incident, as with failures.
        if *self.state(now) != HostState::Up {
            return;
        }
        self.early_closes = self.early_closes.saturating_add(1);
        if let Some(doublings) = self.early_closes.checked_sub(EARLY_CLOSES_FREE + 1) {
            let pause = BACK_OFF_FIRST.saturating_mul(2u32.saturating_pow(doublings));
            self.pause(pause.min(EARLY_CLOSE_PAUSE_MAX), now);
        }
    }

    /// A file (or range) came as asked.
    pub fn delivered(&mut self) {
        self.delivered = true;
        self.misses = 0;
        self.failures = 0;
        self.busy_since = None;
    }

    /// A file verified to which this host brought right bytes.
    pub fn verified(&mut self) {
        self.strikes = 0;
        self.verified_files += 1;
    }

    /// Notes a fault of one host among others that is about no file in particular.
    pub fn fault(&mut self, fault: &Fault, now: Instant) {
        self.fault_on(fault, Occasion::default(), now);
    }

    /// Notes a fault and decides on the host's standing.
    pub(crate) fn fault_on(&mut self, fault: &Fault, occasion: Occasion, now: Instant) {
        let Occasion { path, alone } = occasion;
        self.saw(fault, path, now);
        match fault {
            Fault::Missing(_) => {
                self.misses += 1;
                if self.misses >= MISSES_UNTIL_STALE && !self.delivered {
                    self.out(format!("stale: none of {} files was there", self.misses));
                }
            }
            Fault::WrongAnswer(_)
            | Fault::Refused(_)
            | Fault::WrongSize(_)
            | Fault::Elsewhere(_)
            | Fault::WrongBytes => {
                self.strikes += 1;
                self.wrong_files += u64::from(*fault == Fault::WrongBytes);
                let strikes_max = if alone { STRIKES_UNTIL_BANNED_ALONE } else { STRIKES_UNTIL_BANNED };
                if self.strikes >= strikes_max {
                    self.out(format!("{} times in a row: {fault}", self.strikes));
                } else if !alone
                    && self.wrong_files >= WRONG_FILES_UNTIL_BANNED
                    && self.wrong_files * FILES_PER_WRONG_ONE > self.verified_files
                {
                    self.out(format!("{} files: {fault}", self.wrong_files));
                }
            }
            Fault::Busy { retry_after, .. } => {
                let busy_for = now.saturating_duration_since(*self.busy_since.get_or_insert(now));
                self.told_to_wait = true;
                match retry_after {
                    Some(told) if *told > RETRY_AFTER_MAX && !alone || busy_for + *told > BUSY_LIMIT_TOLD => {
                        self.out(format!("{fault}, busy for {} s so far", busy_for.as_secs()));
                    }
                    // Without any pause there would be nothing but questions.
                    Some(told) => self.pause((*told).max(BACK_OFF_FIRST), now),
                    None if busy_for >= BUSY_LIMIT => {
                        self.out(format!("nothing else for {} s: {fault}", BUSY_LIMIT.as_secs()));
                    }
                    None => self.failed(now),
                }
            }
            Fault::Broken(_) | Fault::Slow => {
                self.failed(now);
                if self.failures >= self.failures_until_dead {
                    self.out(format!("{} failures in a row, at last: {fault}", self.failures));
                }
            }
            Fault::Blocked(why) | Fault::Untrusted { why, .. } => self.out(why.clone()),
            Fault::Denied(denial) => {
                self.denial.get_or_insert_with(|| denial.clone());
                self.out(denial.why.clone());
            }
            Fault::NoRanges => self.ranges = false,
            Fault::CannotPipeline => self.pipelines = false,
        }
    }

    /// Keeps a fault for the report, whatever follows from it.
    pub fn saw(&mut self, fault: &Fault, path: Option<String>, now: Instant) {
        if self.totals.seen_faults.len() == FAULTS_KEPT {
            self.totals.seen_faults.pop();
        }
        let about = path.as_ref().map(|path| format!(" {path}:")).unwrap_or_default();
        // Runs tell of it as an event.
        tracing::debug!("{}:{about} {fault}", self.name);
        self.totals.seen_faults.push(SeenFault { at: now, path, fault: fault.to_string() });
        match fault {
            Fault::Missing(_) => self.totals.missing += 1,
            _ => self.totals.faults += 1,
        }
    }

    /// Leaves it alone for the rest of the run.
    pub fn give_up(&mut self, fault: &Fault) {
        self.out(fault.to_string());
    }

    /// One failure more, and a longer pause. What fails during a pause is the same incident: the
    /// other connections of a host that went down.
    fn failed(&mut self, now: Instant) {
        if matches!(self.state(now), HostState::Up) {
            let pause = (BACK_OFF_FIRST * 2u32.pow(self.failures.min(8))).min(BACK_OFF_MAX);
            self.failures += 1;
            self.pause(pause, now);
        }
    }

    /// Leaves the host alone for so long from now, or for longer if that was decided before.
    fn pause(&mut self, pause: Duration, now: Instant) {
        let until = now + pause;
        match &mut self.state {
            HostState::Up => self.state = HostState::Paused(until),
            HostState::Paused(known) => *known = until.max(*known),
            HostState::Out(_) => {}
        }
    }

    fn out(&mut self, reason: String) {
        if !self.is_out() {
            tracing::info!("{}: left alone from here on: {reason}", self.name);
            self.state = HostState::Out(reason);
        }
    }
}

#[cfg(test)]
mod tests;
