//! Every number that decides a verdict, of all commands, with its origin.
//!
//! `Measured:` names the experiment: a threshold lies between the cases that it must distinguish. `Guess:` marks a
//! number that nobody measured; the matrices of `bench/verdict` and `bench/copy-verdict` have not shown it to be wrong.
//! A share is a share of the time, from 0 to 1, unless its comment says otherwise. A test of the program counts these
//! constants.

use std::time::Duration;

// Naming a part.

/// A part is the limit from this share of the time on; the same share of the bytes in flight, or of a thread's time asleep
/// in device calls, presses on it. Guess: clearly more than half.
pub const NAMED: f64 = 0.60;
/// A named part has no other beside it that has more than this. Guess: half of what names a part.
pub(crate) const NO_OTHER: f64 = 0.30;
/// A resource that is used for this share of the time is full: a thread's core, all cores of a remote run, a disk, the path,
/// a rate limit. Guess: the rest is what the kernel's clocks, which tick a hundred times a second, cannot tell.
pub(crate) const FULL: f64 = 0.90;
/// The larger part of a whole that two parts share. Guess: the meaning of the word.
pub const LARGER_PART: f64 = 0.50;
/// A part with a smaller share delays nobody. Guess: a third of what names a part.
pub const SLIGHT: f64 = 0.20;
/// A thread that spent a larger share asleep for unknown reasons makes its clocks useless. Guess.
pub(crate) const UNEXPLAINED: f64 = 0.10;
/// An allowance that was used to this share over a whole run was the limit: a CPU quota, a rate limit. Measured: in
/// bench/copy-verdict, quotas that limited were used to 84 to 90 %, those a quarter and more above the need to at most 75 %.
pub const USED_UP: f64 = 0.85;

// Processors.

/// Our work and others' work together fill the cores. Guess.
pub(crate) const CORES_FULL: f64 = 0.95;
/// A control group that was throttled for this share of the time is short of processor time. Guess.
pub(crate) const THROTTLED: f64 = 0.10;
/// Threads that wait for a core for this share of the time in which they want one are short of cores ... Guess.
pub(crate) const RUN_DELAY: f64 = 0.20;
/// ... if these waits add up to this number of cores. Guess: a shorter wait delays nobody.
pub(crate) const RUN_DELAY_CORES: f64 = 0.10;
/// Cores that others fill delay only a run that wants this number of cores itself. Guess.
pub(crate) const WANTED_CORES: f64 = 0.5;
/// Full cores delay a run only if one of its threads computes, or waits for a core, for this share of the time. Measured: in
/// bench/verdict, quotas a quarter above the need had threads that wanted a core for less than 0.6.
pub(crate) const THREAD_WANTS_CORE: f64 = 0.75;
/// A group throttled for this share is short of a processor although its connections seem to wait for data: nobody sees
/// arrivals while the group stands still. Measured: in bench/verdict, quotas a quarter above the need throttled up to half.
pub(crate) const THROTTLED_HARD: f64 = 0.50;
/// One of its threads then computes, or waits for a core, for this share of the time. Measured: as `THREAD_WANTS_CORE`.
pub(crate) const THREAD_WANTS_CORE_HARD: f64 = 0.70;
/// A group throttled for this share has next to no time left, over however many threads its work is spread. Guess:
/// there is no doubt.
pub(crate) const THROTTLED_NEARLY_ALWAYS: f64 = 0.80;
/// A sender that is throttled for this share ... Guess, for the quotas on a short path of bench/copy-verdict.
pub(crate) const THROTTLED_SENDER: f64 = 0.30;
/// ... is short of a processor if the path had something to carry for less than this share. Guess, likewise.
pub(crate) const PATH_BUSY: f64 = 0.70;
/// Below this number of cores a run works on nothing. Guess.
pub(crate) const IDLE_CORES: f64 = 0.2;

// Receiving and waiting.

/// Share of reads that found the socket empty, from which on the run waits for the network. Guess: near a link's full
/// rate packets come close together, and some have arrived already.
pub(crate) const READS_EMPTY: f64 = 0.80;
/// A window with fewer round trips per permit is too small: no queue has formed. Guess.
pub(crate) const WINDOW_ROUND_TRIPS: f64 = 1.5;
/// Arrivals below this rate are answers, not a transfer. Guess: below any link worth a verdict on its bandwidth.
pub(crate) const ANSWERS_BYTES_PER_S: f64 = 8192.0;
/// A thread that existed for less of the time tells nothing about it. Guess.
pub(crate) const MOSTLY_ALIVE: f64 = 0.8;
/// A run this short is round trips, whatever it waited for. Guess: a handful of round trips across an ocean.
pub(crate) const SHORT_RUN: Duration = Duration::from_millis(500);
/// Likewise a run of fewer round trips to its hosts. Guess.
pub(crate) const FEW_ROUND_TRIPS: f64 = 12.0;
/// An upload of fewer round trips is over before TCP's slow start is. Guess: from 10 segments to 16 MiB are eleven.
pub const SLOW_START_TRIPS: f64 = 20.0;
/// A host with this share of the bytes is "the" host. Guess.
pub(crate) const ONE_HOST: f64 = 0.80;
/// A host with this share of the bytes is the only one: the others gave indexes, or nothing. Guess.
pub(crate) const ONLY_HOST: f64 = 0.97;
/// Servers are alike if the median one was busy for this share of the busiest one's time. Guess.
pub(crate) const ALIKE: f64 = 0.75;

// Disks, and two limits beside each other.

/// Waiting for the disk at the very end, from which a disk that was busy before owns that earlier time as well. Guess: a
/// disk relieved by a quarter then speeds the run by about a tenth, and what went on beside it does not.
pub(crate) const BACKLOG: f64 = 0.10;
/// Two parts take turns: while the later one is full, the earlier one stands for this share of the time. Measured: in
/// bench/verdict, disks slower than the link by 1.4 had connections stand for 0.45 and more, equal ones up to 0.30; in
/// bench/copy-verdict both ends waited 0.33 for a path of twice the disk's rate, 0.42 for one that was its equal.
pub const TAKES_TURNS: f64 = 0.35;
/// Connections that stood for only `SLIGHT` show a full disk if, meanwhile, data arrived at less than this share of the rate
/// that the network had carried. Measured: in bench/verdict, disks slower than the link by 1.8 had them stand for 0.34.
pub(crate) const SLOWED: f64 = 0.80;
/// Connections that wait less than this for later stages have nothing in their way. Guess.
pub(crate) const UNHINDERED: f64 = 0.02;
/// A disk beside a named part is as full if it was busy for this share. Measured: in bench/copy-verdict, one that could do a
/// quarter more is busy for 0.7, an equal one for 0.88.
pub const AS_BUSY: f64 = 0.80;
/// A path that a slow source feeds in turn is as full as the source if its connections together had something to carry for
/// more than `NAMED` of one connection's time, and this share of all. Measured: in bench/copy-verdict with 2, 16 and 24
/// connections, links of 1.5 to 3 times the source's rate stayed below.
pub const FED_IN_TURN: f64 = 0.25;
/// A member of an array that ends hardly any request is stuck if it was busy for this share. Guess.
pub const STUCK: f64 = 0.7;
/// A member is slow if its requests take this many times as long as its neighbours' ... Guess.
pub const SLOW_MEMBER: f64 = 2.0;
/// ... and this number of milliseconds longer. Guess: less is noise.
pub const SLOW_MEMBER_MS: f64 = 1.0;

// Interventions: what changes if a part is relieved, left out or paused.

/// A part that is a quarter faster takes this share of its time. Guess: the definition of the matrices' truth.
pub const QUARTER_FASTER: f64 = 0.8;
/// Relieving or leaving out the limit makes a run faster by this much. Guess: the definition of the matrices' truth.
pub const GAIN: f64 = 0.10;
/// What is not the limit makes it faster by less than this. Guess: the matrices' truth has 3 %; arithmetic errs by more.
pub const NO_GAIN: f64 = 0.05;
/// Of two ends that gain, one stands out that gains this many times as much. Guess.
pub const MANY_TIMES: f64 = 4.0;
/// A part that is used less would not be missed. Guess.
pub const UNUSED: f64 = 0.25;
/// A trial that takes this many times as long as its slowest part shows that parts share something. Guess: more than noise.
pub const SHARED: f64 = 1.2;
/// Flushes with this share of a trial's time go on behind the transfer and not within it. Guess.
pub const FLUSHES: f64 = 0.1;
/// A host or connection that is paused leaves room that the others take if they become faster by this much, or the total
/// loses no more. Measured: rates over half a second vary by a few per cent on a quiet path; a link that a quarter more would
/// relieve by a tenth lets the others be faster by a tenth.
pub(crate) const FASTER: f64 = 0.08;
/// The others were no faster. Measured: the same noise.
pub(crate) const NO_FASTER: f64 = 0.04;

// Wording of reports.

/// A smaller share, or figure in a report, is not worth a word. Guess.
pub const WORTH_A_WORD: f64 = 0.03;
/// Shorter waits for one host are not worth a word. Guess.
pub(crate) const WAITED_LEAST: Duration = Duration::from_millis(100);
/// A role whose threads existed for less of the run is not worth a line. Guess.
pub(crate) const ALIVE_LONG_ENOUGH: f64 = 0.02;
/// A smaller share is shown as nothing. Guess: it would be rounded to 0 %.
pub const ROUNDS_TO_NOTHING: f64 = 0.005;
