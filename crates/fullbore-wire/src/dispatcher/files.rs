//! Outcomes of files: right, wrong, mixed up, under another name, or not available.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Dispatcher;
use crate::hosts::{Fault, HostId, HostSet};
use crate::queue::{ItemId, Segment};

/// Maximum number of times that a file may arrive with wrong bytes, whatever hosts are left.
const ATTEMPTS_MAX: u32 = 6;

/// Maximum number of times that a file may arrive mixed up with another. After the first, requests to the host are not
/// pipelined any more, but each of its connections may have pipelined requests in flight by then. A guess.
const MIXED_UP_MAX: u32 = 3;

/// The first host of a run decides: a file that it lacks is not needed.
const ORIGIN: HostId = 0;

/// What to do about a file with wrong bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Fetch the whole file again.
    Whole,
    /// Fetch again only the bytes that did not come from this host.
    AllBut(HostId),
    /// Give the file up: no host is left, or it failed too often.
    GiveUp,
}

/// A file that was given up, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Number of the file, chosen by the caller.
    pub item: ItemId,
    /// Hosts that lack the file or served it wrong.
    pub tried: HostSet,
    /// Whether every one of them answered that the file does not exist.
    pub missing: bool,
    /// The last fault of each host with this file.
    pub faults: Vec<(HostId, Fault)>,
}

/// Faults of a file that is not verified yet.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Number of times that it arrived complete and wrong.
    attempts: u32,
    /// Number of times that it was mixed up with another file.
    mixed_up: u32,
    /// Hosts that lack it.
    pub(super) misses: HostSet,
    /// Hosts that failed it in another way.
    pub(super) failed: HostSet,
    /// Hosts that must not be asked for it from the beginning.
    pub(super) barred: HostSet,
    /// Hosts that were blamed for wrong bytes of it already.
    pub(super) blamed: HostSet,
    /// Number of times that a host broke it off, per host.
    pub(super) troubles: BTreeMap<HostId, u32>,
    /// Number of times that it was taken over from a silent host, per host.
    pub(super) silences: BTreeMap<HostId, u32>,
    /// The last fault of each host with it; wrong content takes precedence.
    faults: BTreeMap<HostId, Fault>,
}

impl History {
    /// Records a fault of a host with the file. Wrong content under one name stays recorded when the file is missing
    /// under another name.
    pub(super) fn note(&mut self, host: HostId, fault: &Fault) {
        let worse = self.faults.get(&host).is_some_and(|known| known.is_wrong_content() && !fault.is_wrong_content());
        if !worse {
            self.faults.insert(host, fault.clone());
        }
    }

    /// Hosts that will not deliver the file.
    pub(super) fn lost(&self) -> HostSet {
        self.misses.union(self.failed).union(self.barred)
    }
}

impl Dispatcher {
    /// Records that the file is verified and in place. `sources` are the hosts that served it; `culprits` those whose
    /// earlier bytes were wrong.
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
        for (_, asked) in self.detours.values_mut().filter(|(_, asked)| asked.segment.item == item) {
            asked.until = asked.until.min(asked.at());
        }
        for host in culprits.iter().filter(|host| !history.blamed.contains(**host)) {
            self.fault(*host, Some(item), &Fault::WrongBytes, now);
        }
        for host in sources.iter().filter(|host| !culprits.contains(host)) {
            self.hosts[*host as usize].verified();
        }
        if let [host] = sources {
            self.hosts[*host as usize].totals.files += 1;
        }
    }

    /// Decides about a complete file with a wrong SHA-256. `shares` are the hosts that served it, with their numbers of
    /// bytes. The caller requests the parts of the remedy with [`Dispatcher::ask_again`]. Bytes that are not kept count
    /// as wasted.
    pub fn mismatch(&mut self, item: ItemId, size: u64, shares: &[(HostId, u64)], now: Instant) -> Remedy {
        let remedy = self.remedy(item, size, shares, now);
        for (host, bytes) in shares.iter().filter(|(host, _)| remedy != Remedy::AllBut(*host)) {
            self.hosts[*host as usize].totals.wasted_bytes += bytes;
        }
        remedy
    }

    fn remedy(&mut self, item: ItemId, size: u64, shares: &[(HostId, u64)], now: Instant) -> Remedy {
        let usable = self.usable();
        let history = self.histories.entry(item).or_default();
        history.attempts += 1;
        if history.attempts >= ATTEMPTS_MAX {
            return Remedy::GiveUp;
        }
        self.queue.include_all(item);
        if let [(host, _)] = shares {
            // The second try of the only host is about the same file.
            let is_known = history.failed.contains(*host);
            history.failed.insert(*host);
            history.blamed.insert(*host);
            history.note(*host, &Fault::WrongBytes);
            // With only one host, a second try distinguishes a bad transfer from a bad file.
            let retry_same = usable.iter().count() == 1 && history.attempts < 2;
            let lost = if retry_same { history.barred } else { history.lost() };
            for host in lost.iter() {
                self.queue.exclude(item, size, host);
            }
            if !is_known {
                self.fault(*host, Some(item), &Fault::WrongBytes, now);
            }
            return Remedy::Whole;
        }
        // Several hosts served it: one of them, the judge, serves the others' parts too. The origin is preferred,
        // because it must have the right bytes; otherwise it is the host with most of them. If the file is right then,
        // the changed parts name the culprits. If not, the judge is the culprit.
        let origin = (usable.contains(ORIGIN) && !history.lost().contains(ORIGIN)).then_some(ORIGIN);
        let most = shares.iter().filter(|(host, _)| usable.contains(*host)).max_by_key(|(_, bytes)| *bytes);
        let judge = origin.or(most.map(|(host, _)| *host));
        let Some(judge) = judge else { return Remedy::Whole };
        for host in (0..self.hosts.len() as HostId).filter(|host| *host != judge) {
            self.queue.exclude(item, size, host);
        }
        Remedy::AllBut(judge)
    }

    /// Records that the bytes of another file arrived for this one: the host mixes up pipelined answers. The bytes are
    /// good, so it is no strike. False if that happened too often: then they count as wrong.
    pub(crate) fn mixed_up(&mut self, item: ItemId, host: HostId, bytes: u64, now: Instant) -> bool {
        let history = self.histories.entry(item).or_default();
        history.mixed_up += 1;
        if history.mixed_up > MIXED_UP_MAX {
            return false;
        }
        history.blamed.insert(host);
        self.hosts[host as usize].totals.wasted_bytes += bytes;
        if self.hosts[host as usize].depth() > 1 {
            self.fault(host, Some(item), &Fault::CannotPipeline, now);
        }
        true
    }

    /// The files last requested from a host, newest last.
    pub(crate) fn recently_asked(&self, host: HostId) -> Vec<ItemId> {
        self.recent[host as usize].iter().copied().collect()
    }

    /// Queues a part to be fetched again (see [`Remedy`]).
    pub fn ask_again(&mut self, segment: &Segment) {
        self.queue.give_back(segment);
    }

    /// Drops a file that is not wanted any more: it failed on our side, or was given up.
    pub fn abandon(&mut self, item: ItemId, now: Instant) {
        self.verified(item, &[], &[], now);
    }

    /// Requests the file under another name, from all hosts.
    pub(crate) fn ask_under_other_name(&mut self, item: ItemId) {
        let size = self.queue.size(item);
        self.queue.include_all(item);
        if let Some(History { barred, faults, .. }) = self.histories.remove(&item) {
            // Faults under the first name count as the file's, too.
            self.histories.insert(item, History { barred, faults, ..History::default() });
            for host in barred.iter() {
                self.queue.exclude(item, size, host);
            }
        }
    }

    /// Files that no host is left to serve. They stay until [`Dispatcher::abandon`] or
    /// [`Dispatcher::ask_under_other_name`].
    pub(crate) fn hopeless(&mut self) -> Vec<GivenUp> {
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
                let missing = history.misses != HostSet::default()
                    && history.misses.union(history.barred).covers(tried)
                    && !history.faults.values().any(Fault::is_wrong_content);
                GivenUp { item, tried, missing, faults: self.faults_with(item) }
            })
            .collect()
    }

    /// The last fault of each host with a file.
    pub(crate) fn faults_with(&self, item: ItemId) -> Vec<(HostId, Fault)> {
        let history = self.histories.get(&item);
        history.into_iter().flat_map(|history| &history.faults).map(|(host, fault)| (*host, fault.clone())).collect()
    }

    /// If the judge of a file ([`Remedy::AllBut`]) is out by now, allows all hosts that never failed it. False if there
    /// are none.
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

    /// Hosts that are neither out nor likely to be soon: those that serve ranges, and those that do not.
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
    pub(super) fn usable(&self) -> HostSet {
        let mut set = HostSet::default();
        for (place, _) in self.hosts.iter().enumerate().filter(|(_, host)| !host.is_out()) {
            set.insert(place as HostId);
        }
        set
    }
}
