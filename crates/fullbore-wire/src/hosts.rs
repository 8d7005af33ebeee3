//! The mirrors of a run: measurements of each, and whether to ask it again.
//!
//! The user configures only the address. Rate, round-trip time, requests per connection, pipeline depth and faults are
//! learned while data flows. A fault counts against a host, never against a file. A host with too many faults is
//! paused, and then left out for the rest of the run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::http1::PIPELINE_DEPTH;
use crate::signer::Denial;
use crate::tls::Protocol;

/// Index of a host in the run's list; 0 is the origin.
pub type HostId = u16;

/// Maximum number of hosts in one run: a [`HostSet`] is one machine word.
pub const MAX_HOSTS: usize = 64;

/// Number of consecutive faults (wrong bytes, wrong length, error pages) after which a host is out for the rest of the
/// run. A guess: one fault may be an update in progress, three are a habit.
const STRIKES_UNTIL_BANNED: u32 = 3;

/// The limit for the last remaining host. Its wrong files are left out one by one, and all others may be right. So many
/// faults in a row without a right file mean a login page, or a proxy that spoils everything. A guess.
const STRIKES_UNTIL_BANNED_ALONE: u32 = 100;

/// Number of consecutive missing files, without any delivered file, after which a host counts as stale.
const MISSES_UNTIL_STALE: u32 = 24;

/// Default number of consecutive failed connections after which a host counts as dead. With doubling pauses this is
/// about 8 s of trying, plus the time to connect.
pub(crate) const FAILURES_UNTIL_DEAD: u32 = 6;

/// A host with wrong bytes in this many files, and in more than one of [`FILES_PER_WRONG_ONE`], has a habit, even with
/// good files in between. It may spoil only ranges, or only what its cache holds.
const WRONG_FILES_UNTIL_BANNED: u64 = 3;

/// Time for which all machines of a fleet avoid a host that was banned for wrong content. A mirror in the middle of an
/// update needs minutes. A guess.
const BANNED_BY_ALL_FOR: Duration = Duration::from_secs(300);

/// Number of good files that outweigh one with wrong bytes. A guess.
const FILES_PER_WRONG_ONE: u64 = 50;

/// Time for which a host may answer nothing but "busy" without a `Retry-After` …
const BUSY_LIMIT: Duration = Duration::from_secs(20);

/// … and with one, before it is out for the run. For the last host a pause of up to this length is kept …
const BUSY_LIMIT_TOLD: Duration = Duration::from_secs(300);

/// … while other hosts that ask for more than this are of no use to the run.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// One in this many connections to a host tests whether it allows more requests than known. The known limit may stem
/// from a restart of the server.
const EXPLORE_EVERY: u64 = 16;

/// First pause after a broken connection; it doubles up to [`BACK_OFF_MAX`].
const BACK_OFF_FIRST: Duration = Duration::from_millis(250);

/// Number of completed requests per connection below which a close by an HTTP/2 server counts as early. A guess:
/// servers allow 100 or 1000, and a connection costs about as much as ten requests for small files.
const COMPLETED_PER_CONNECTION_MIN: u64 = 10;

/// Number of consecutive early closes without a pause: a restart closes all connections at once. A guess.
const EARLY_CLOSES_FREE: u32 = 8;

/// Longest pause after an early close. It starts at [`BACK_OFF_FIRST`] and doubles. Such a host still delivers, so it
/// is asked more often than a broken one. A guess.
const EARLY_CLOSE_PAUSE_MAX: Duration = Duration::from_secs(8);

/// Maximum number of faults of one host in the report: the first ones, and the last. A guess at what people read.
const FAULTS_KEPT: usize = 32;

/// Maximum number of error statuses whose reason phrases are kept, and of characters in a phrase. Guesses far above
/// real hosts.
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

    /// Whether this set contains every host of `other`.
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

    /// The hosts of the set, in ascending order.
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
    /// The answer cannot be the file: wrong range, or an unexpected status.
    WrongAnswer(String),
    /// The answer's length differs from the signed index: another file, or an error page.
    WrongSize(String),
    /// It redirects to this address, which is not the same path below another base.
    Elsewhere(String),
    /// The number of bytes is right, their hash is wrong.
    WrongBytes,
    /// An error with this status that another try would not change: 401, 501, a captive portal's 511.
    Refused(u16),
    /// It asks for a pause (429, 503), or has another transient error
    /// (`TRANSIENT_STATUSES`).
    Busy {
        /// Status of the answer.
        status: u16,
        /// Pause requested in `Retry-After`, if any.
        retry_after: Option<Duration>,
    },
    /// The connection failed, was reset, or ended in the middle of an answer.
    Broken(String),
    /// Its certificate is not trusted.
    Untrusted {
        /// What is wrong with it.
        why: String,
        /// Whether no trusted authority issued it.
        unknown_issuer: bool,
    },
    /// Its name must not be looked up.
    Blocked(String),
    /// It refuses every request, because it wants other signatures.
    Denied(Denial),
    /// It delivered next to nothing for too long.
    Slow,
    /// It ignores `Range`.
    NoRanges,
    /// It answered pipelined requests in another order, or speaks HTTP/1.0.
    CannotPipeline,
}

impl Fault {
    /// Whether the host has other content under the name than the signed index says. A missing file or a broken
    /// connection does not count.
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

/// Whether a host may be asked at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostState {
    /// The host may be asked.
    Up,
    /// The host is left alone until this time.
    Paused(Instant),
    /// The host is out for the rest of the run, for this reason.
    Out(String),
}

/// A recorded fault, for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenFault {
    /// Time at which the fault was noticed.
    pub at: Instant,
    /// Path of the file in the catalogue, if the fault is about one.
    pub path: Option<String>,
    /// Description of the fault, for reports.
    pub fault: String,
}

/// Circumstances of a fault.
#[derive(Clone, Debug, Default)]
pub struct Occasion {
    /// Path of the file, if the fault is about one.
    pub path: Option<String>,
    /// Whether no other host may be asked any more.
    pub alone: bool,
}

/// Totals of one host, for the report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostTotals {
    /// Number of body bytes received from the host.
    pub received_bytes: u64,
    /// Number of received body bytes that were present already or had to be discarded.
    pub wasted_bytes: u64,
    /// Number of requests sent to the host.
    pub requests: u64,
    /// Number of connections opened to the host.
    pub connections: u64,
    /// Number of requested files or ranges that it did not have.
    pub missing: u64,
    /// Number of faults of other kinds.
    pub faults: u64,
    /// Number of files that it delivered alone and right.
    pub files: u64,
    /// Faults in order, including missing files: the first ones, and the last.
    pub seen_faults: Vec<SeenFault>,
    /// Number of parts taken over from it because others were faster.
    pub hedged: u64,
    /// Time in which a faster host was idle and only this one still owed data.
    pub waited_alone: Duration,
}

/// Measurements, faults and state of one mirror.
#[derive(Clone, Debug)]
pub struct Host {
    /// Host and port, for people.
    pub name: String,
    /// Totals of the host for the report.
    pub totals: HostTotals,
    /// Its last reason phrases, by error status.
    phrases: BTreeMap<u16, String>,
    state: HostState,
    /// Reason of its refusals, if it refuses every request.
    denial: Option<Denial>,
    strikes: u32,
    misses: u32,
    failures: u32,
    failures_until_dead: u32,
    early_closes: u32,
    busy_since: Option<Instant>,
    /// Whether the host asked for the pause: open connections observe it as well.
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
    /// Creates a host without measurements.
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

    /// Sets the number of consecutive failures after which it counts as dead.
    pub(crate) fn dies_after(&mut self, failures: u32) {
        self.failures_until_dead = failures.max(1);
    }

    /// Whether the host may be asked at `now`. A pause that is over ends here.
    pub fn state(&mut self, now: Instant) -> &HostState {
        if matches!(self.state, HostState::Paused(until) if until <= now) {
            self.state = HostState::Up;
            self.told_to_wait = false;
        }
        &self.state
    }

    /// Whether the host itself asked for the present pause (429, 503 and the like). Then open connections wait as well.
    /// After a broken connection, the other connections continue.
    pub(crate) fn is_told_to_wait(&mut self, now: Instant) -> bool {
        matches!(self.state(now), HostState::Paused(_)) && self.told_to_wait
    }

    /// How long every machine of a fleet should avoid the host: it asked for a pause, or was banned for wrong content.
    /// Faults that may concern only this machine, such as a broken connection, do not count.
    pub(crate) fn is_to_be_avoided_for(&mut self, now: Instant) -> Option<Duration> {
        let (was_banned, told_to_wait) = (self.wrong_files >= WRONG_FILES_UNTIL_BANNED, self.told_to_wait);
        match (self.state(now), told_to_wait) {
            (HostState::Paused(until), true) => Some(until.saturating_duration_since(now)),
            (HostState::Out(_), _) if was_banned => Some(BANNED_BY_ALL_FOR),
            _ => None,
        }
    }

    /// Whether the host is out for the rest of the run.
    pub fn is_out(&self) -> bool {
        matches!(self.state, HostState::Out(_))
    }

    /// Whether the host is neither paused at `now` nor out.
    pub(crate) fn is_up(&self, now: Instant) -> bool {
        match self.state {
            HostState::Up => true,
            HostState::Paused(until) => until <= now,
            HostState::Out(_) => false,
        }
    }

    /// Whether its last two or more connections failed, and nothing was delivered since.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures >= 2
    }

    /// Why the host is out, if it is.
    pub(crate) fn out_reason(&self) -> Option<&str> {
        match &self.state {
            HostState::Out(reason) => Some(reason),
            _ => None,
        }
    }

    /// Why the host refuses every request, if it does.
    pub(crate) fn denial(&self) -> Option<&Denial> {
        self.denial.as_ref()
    }

    /// Maximum number of unanswered requests on one connection.
    pub fn depth(&self) -> usize {
        if self.pipelines { PIPELINE_DEPTH } else { 1 }
    }

    /// Observed number of requests that the host allows per connection; `u64::MAX` if none was observed.
    pub fn requests_per_connection(&self) -> u64 {
        self.requests_per_connection.unwrap_or(u64::MAX)
    }

    /// Limit of requests for the connection now opened, if there is one: the learned number, and twice as many now and
    /// then.
    pub(crate) fn requests_on_next_connection(&self) -> Option<u64> {
        let explores = self.totals.connections % EXPLORE_EVERY == EXPLORE_EVERY - 1;
        explores.then(|| self.requests_per_connection().saturating_mul(2))
    }

    /// Rate of the last connection that ended, in bytes per second: a guess for the next one.
    pub fn connection_rate(&self) -> Option<f64> {
        self.connection_rate
    }

    /// Lower bound of the last connection's rate, in bytes per second, however short its use.
    pub(crate) fn least_rate(&self) -> Option<f64> {
        self.least_rate
    }

    /// Records the final rate of a connection, and a lower bound of it.
    pub(crate) fn saw_connection_rate(&mut self, bytes_per_s: Option<f64>, at_least: Option<f64>) {
        self.connection_rate = bytes_per_s.or(self.connection_rate);
        self.least_rate = at_least.or(self.least_rate);
    }

    /// Whether the host answers `Range` with 206.
    pub(crate) fn answers_ranges(&self) -> bool {
        self.ranges
    }

    /// Smallest round-trip time seen; 50 ms while unknown (a guess between a LAN and an ocean).
    pub fn rtt(&self) -> Duration {
        self.rtt.unwrap_or(Duration::from_millis(50))
    }

    /// Smallest round-trip time seen, if any.
    pub(crate) fn measured_rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Protocol of the last connection, if there was one.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol
    }

    /// Records the reason phrase of an error status.
    pub(crate) fn said(&mut self, status: u16, phrase: &str) {
        if self.phrases.len() < PHRASES_MAX || self.phrases.contains_key(&status) {
            self.phrases.insert(status, phrase.chars().take(PHRASE_CHARS_MAX).collect());
        }
    }

    /// The host's reason phrases, by error status.
    pub(crate) fn phrases(&self) -> &BTreeMap<u16, String> {
        &self.phrases
    }

    /// Records the protocol of a connection.
    pub(crate) fn saw_protocol(&mut self, protocol: Protocol) {
        self.protocol = Some(protocol);
    }

    /// Notes a measured round-trip time.
    pub(crate) fn record_rtt(&mut self, rtt: Duration) {
        if !rtt.is_zero() {
            self.rtt = Some(self.rtt.map_or(rtt, |known| known.min(rtt)));
        }
    }

    /// Records a clean close by the server after `answers` answers. That is normal, and limits the next connection; the
    /// last observation counts.
    pub(crate) fn closed_after(&mut self, answers: u64) {
        if answers >= 1 {
            self.requests_per_connection = Some(answers);
        }
    }

    /// Records a clean close by the server after `completed` requests were answered as requested. With HTTP/2,
    /// consecutive early closes cause a growing pause. With HTTP/1, a server may be configured for one request per
    /// connection.
    pub(crate) fn completed_before_close(&mut self, completed: u64, now: Instant) {
        if completed >= COMPLETED_PER_CONNECTION_MIN || self.protocol != Some(Protocol::Http2) {
            self.early_closes = 0;
            return;
        }
        // A close during a pause belongs to the same incident, as with failures.
        if *self.state(now) != HostState::Up {
            return;
        }
        self.early_closes = self.early_closes.saturating_add(1);
        if let Some(doublings) = self.early_closes.checked_sub(EARLY_CLOSES_FREE + 1) {
            let pause = BACK_OFF_FIRST.saturating_mul(2u32.saturating_pow(doublings));
            self.pause(pause.min(EARLY_CLOSE_PAUSE_MAX), now);
        }
    }

    /// Records a file or range that was delivered as requested.
    pub fn delivered(&mut self) {
        self.delivered = true;
        self.misses = 0;
        self.failures = 0;
        self.busy_since = None;
    }

    /// Records a verified file with right bytes of this host.
    pub fn verified(&mut self) {
        self.strikes = 0;
        self.verified_files += 1;
    }

    /// Records a fault that is about no file in particular, of one host among others.
    pub fn fault(&mut self, fault: &Fault, now: Instant) {
        self.fault_on(fault, Occasion::default(), now);
    }

    /// Records a fault and updates the host's state.
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
                    // Without any pause, requests would never stop.
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

    /// Keeps a fault for the report, without any consequence.
    pub fn saw(&mut self, fault: &Fault, path: Option<String>, now: Instant) {
        if self.totals.seen_faults.len() == FAULTS_KEPT {
            self.totals.seen_faults.pop();
        }
        let about = path.as_ref().map(|path| format!(" {path}:")).unwrap_or_default();
        // Runs report it as an event.
        tracing::debug!("{}:{about} {fault}", self.name);
        self.totals.seen_faults.push(SeenFault { at: now, path, fault: fault.to_string() });
        match fault {
            Fault::Missing(_) => self.totals.missing += 1,
            _ => self.totals.faults += 1,
        }
    }

    /// Sets the host out for the rest of the run.
    pub fn give_up(&mut self, fault: &Fault) {
        self.out(fault.to_string());
    }

    /// Counts a failure, with a longer pause. Failures during a pause belong to the same incident: other connections to
    /// a host that went down.
    fn failed(&mut self, now: Instant) {
        if matches!(self.state(now), HostState::Up) {
            let pause = (BACK_OFF_FIRST * 2u32.pow(self.failures.min(8))).min(BACK_OFF_MAX);
            self.failures += 1;
            self.pause(pause, now);
        }
    }

    /// Pauses the host for this time from now on, or for longer if that was decided before.
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
