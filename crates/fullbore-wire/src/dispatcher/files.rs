//! What becomes of files: right, wrong, mixed up, under another name, or not to be had.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Dispatcher;
use crate::hosts::{Fault, HostId, HostSet};
use crate::queue::{ItemId, Segment};

/// Times a file may come with wrong bytes before it is given up, whatever hosts are left.
const ATTEMPTS_MAX: u32 = 6;

/// Times that one file may come mixed up with another. After the first the host is asked one by one,
/// but on each of its connections it may have been asked ahead by then. A guess.
const MIXED_UP_MAX: u32 = 3;

/// The first host of a run: what it does not have, nobody needs to have.
const ORIGIN: HostId = 0;

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
    /// Number of the file, chosen by the caller.
    pub item: ItemId,
    /// Hosts that do not have it or served it wrong.
    pub tried: HostSet,
    /// Whether every one of them said that it is not there.
    pub missing: bool,
    /// What each was last seen to do wrong with this file.
    pub faults: Vec<(HostId, Fault)>,
}

/// A file in the hands of the run that is not verified yet.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Times it came complete and wrong.
    attempts: u32,
    /// Times it came mixed up with another file.
    mixed_up: u32,
    /// Hosts that do not have it.
    pub(super) misses: HostSet,
    /// Hosts that failed it in another way.
    pub(super) failed: HostSet,
    /// Hosts that were not to be asked for it from the beginning.
    pub(super) barred: HostSet,
    /// Hosts that have answered for wrong bytes of it already.
    pub(super) blamed: HostSet,
    /// Times it was broken off, per host.
    pub(super) troubles: BTreeMap<HostId, u32>,
    /// Times it was taken over from a host that was silent.
    pub(super) silences: BTreeMap<HostId, u32>,
    /// The last fault of each host with it, but wrong content before any other.
    faults: BTreeMap<HostId, Fault>,
}

impl History {
    /// Notes a fault of a host with it. That a host has other content under one name stays known when the file is not
    /// there under another.
    pub(super) fn note(&mut self, host: HostId, fault: &Fault) {
        let worse = self.faults.get(&host).is_some_and(|known| known.is_wrong_content() && !fault.is_wrong_content());
        if !worse {
            self.faults.insert(host, fault.clone());
        }
    }

    /// Hosts that will not bring it.
    pub(super) fn lost(&self) -> HostSet {
        self.misses.union(self.failed).union(self.barred)
    }
}

impl Dispatcher {
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

    /// All bytes came but the SHA-256 is wrong. `shares` are the hosts that served the file with
    /// their bytes. What the remedy says is then to be asked for with [`Dispatcher::ask_again`]. What is not
    /// kept came in vain.
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
            // With one host only, a second try tells a bad transfer from a bad file.
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

    /// The bytes of another file came for this one, so many: its host cannot pipeline. They were right
    /// otherwise, which is no strike. False when that was said too often: they are wrong then.
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

    /// The files last asked for from a host, newest last.
    pub(crate) fn recently_asked(&self, host: HostId) -> Vec<ItemId> {
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
    pub(crate) fn ask_under_other_name(&mut self, item: ItemId) {
        let size = self.queue.size(item);
        self.queue.include_all(item);
        if let Some(History { barred, faults, .. }) = self.histories.remove(&item) {
            // What came under the first name was a fault of the file, too.
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

    /// What each host was last seen to do wrong with a file.
    pub(crate) fn faults_with(&self, item: ItemId) -> Vec<(HostId, Fault)> {
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
    pub(super) fn usable(&self) -> HostSet {
        let mut set = HostSet::default();
        for (place, _) in self.hosts.iter().enumerate().filter(|(_, host)| !host.is_out()) {
            set.insert(place as HostId);
        }
        set
    }
}
