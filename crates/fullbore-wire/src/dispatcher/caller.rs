//! Rules for a caller that retries failures itself ([`Limits::caller_retries`](super::Limits)): no waiting, and no
//! hidden retries.

use std::time::Instant;

use super::Dispatcher;
use crate::hosts::{Fault, HostId, HostState};
use crate::queue::ItemId;

impl Dispatcher {
    /// Whether no other host may be asked any more.
    pub(super) fn is_alone(&self, host: HostId) -> bool {
        self.usable().iter().all(|usable| usable == host)
    }

    /// Records a transient answer of a host. If there is another host, this one is left alone for a while. If it is the
    /// only one, the caller decides when to ask again.
    pub(super) fn turned_away(&mut self, host: HostId, item: Option<ItemId>, fault: &Fault, now: Instant) {
        self.serving.remove(host);
        self.turned_away.insert(host);
        if self.is_alone(host) {
            let path = item.and_then(|item| self.name_of.as_ref().map(|name_of| name_of(item)));
            self.hosts[host as usize].saw(fault, path, now);
        } else {
            self.fault(host, item, fault, now);
        }
    }

    /// Whether the host is left alone at its own request. If all hosts gave transient answers, each is asked all the
    /// same: the caller wants an answer, not a pause.
    pub(super) fn is_told_to_wait(&mut self, host: HostId, now: Instant) -> bool {
        if !self.hosts[host as usize].is_told_to_wait(now) {
            return false;
        }
        if !self.limits.caller_retries || !self.turned_away.contains(host) {
            return true;
        }
        let mut others = self.usable().iter().filter(|other| *other != host);
        others.any(|other| !self.hosts[other as usize].is_told_to_wait(now))
    }

    /// Whether connections to the host may be opened now.
    pub(super) fn may_be_connected_to(&mut self, host: HostId, now: Instant) -> bool {
        match self.hosts[host as usize].state(now) {
            HostState::Up => true,
            HostState::Paused(_) => self.hosts[host as usize].is_told_to_wait(now) && !self.is_told_to_wait(host, now),
            HostState::Out(_) => false,
        }
    }

    /// Whether a part of a file is in flight and the host has not delivered any file yet. Further parts might only be
    /// refused as well, where apt's own method asks once. This costs a round trip before the first file of a host comes
    /// in parts.
    pub(super) fn awaits_first_answer(&self, host: HostId) -> bool {
        let parts = || self.connections.values().filter(|c| c.host == host).flat_map(|c| &c.asked);
        self.limits.caller_retries && !self.serving.contains(host) && parts().any(|asked| !asked.segment.is_whole())
    }

    /// Records that the head of an answer announces the file. True if that is new and connections wait for it.
    pub(crate) fn shows_files(&mut self, host: HostId) -> bool {
        let is_news = !self.serving.contains(host);
        self.serving.insert(host);
        is_news && self.limits.caller_retries
    }

    /// Records a connection that could not be opened. The host is given up if it has no other connection, and no better
    /// host is left.
    pub(super) fn not_reached(&mut self, host: HostId, fault: &Fault, now: Instant) {
        // A server that limits its connections refuses some of several, but not all.
        if !self.limits.caller_retries || self.connections_begun_to(host) > 0 {
            return;
        }
        for other in self.usable().iter().filter(|other| *other != host) {
            let is_down = matches!(self.hosts[other as usize].state(now), HostState::Paused(_));
            if !is_down || self.connections_begun_to(other) > 0 {
                return;
            }
        }
        self.hosts[host as usize].give_up(fault);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::answer::TRANSIENT_STATUSES;
    use crate::dispatcher::{ConnectionId, Limits, Next};
    use crate::hosts::Host;
    use crate::queue::Item;

    const RTT: Duration = Duration::from_millis(10);

    fn dispatcher(hosts: usize, sizes: &[u64], now: Instant) -> (Dispatcher, Vec<ConnectionId>) {
        let limits = Limits { caller_retries: true, ..Limits::default() };
        let mut dispatcher = Dispatcher::new((0..hosts).map(|n| Host::new(format!("h{n}"))).collect(), limits);
        add(&mut dispatcher, 0, sizes);
        let connections = (0..hosts as HostId).map(|host| dispatcher.opened(host, RTT, now)).collect();
        (dispatcher, connections)
    }

    fn add(dispatcher: &mut Dispatcher, first: ItemId, sizes: &[u64]) {
        let item = |(id, size): (usize, &u64)| Item { id: first + id as ItemId, size: *size, ..Item::default() };
        dispatcher.add(sizes.iter().enumerate().map(item).collect());
    }

    fn asked(dispatcher: &mut Dispatcher, connection: ConnectionId, now: Instant) -> Vec<(u64, ItemId)> {
        let mut asked = Vec::new();
        while let Next::Ask { tag, segment } = dispatcher.next(connection, now) {
            asked.push((tag, segment.item));
        }
        asked
    }

    fn busy(status: u16, seconds: Option<u64>) -> Fault {
        Fault::Busy { status, retry_after: seconds.map(Duration::from_secs) }
    }

    #[test]
    fn the_only_host_is_asked_once_for_each_file() {
        for (status, seconds) in
            TRANSIENT_STATUSES.into_iter().flat_map(|status| [(status, None), (status, Some(3600))])
        {
            let now = Instant::now();
            let (mut dispatcher, connections) = dispatcher(1, &[1000, 1000, 1000], now);
            let requests = asked(&mut dispatcher, connections[0], now);
            assert_eq!(requests.len(), 3);
            for (tag, _) in &requests[..2] {
                dispatcher.refused(connections[0], *tag, busy(status, seconds), now);
            }
            dispatcher.answered(connections[0], requests[2].0);
            let given_up = dispatcher.hopeless();
            let items = |files: Vec<ItemId>| files.into_iter().collect::<std::collections::BTreeSet<_>>();
            let expected = items(requests[..2].iter().map(|(_, item)| *item).collect());
            assert_eq!(items(given_up.iter().map(|file| file.item).collect()), expected);
            assert!(given_up.iter().all(|file| file.faults == [(0, busy(status, seconds))] && !file.missing));
            given_up.iter().for_each(|file| dispatcher.abandon(file.item, now));
            assert_eq!(dispatcher.hosts()[0].totals.faults, 2, "for the report");
            add(&mut dispatcher, 9, &[1000]);
            assert_eq!(asked(&mut dispatcher, connections[0], now).len(), 1, "{status}: no pause");
        }
    }

    #[test]
    fn a_host_refuses_what_was_taken_over_from_it_too() {
        let now = Instant::now();
        let (mut dispatcher, connections) = dispatcher(2, &[1000], now);
        let first = asked(&mut dispatcher, connections[0], now);
        let rest = {
            let asked = &mut dispatcher.connections.get_mut(&connections[0]).unwrap().asked[0];
            let rest = asked.rest().unwrap();
            asked.until = asked.at();
            rest
        };
        dispatcher.refused(connections[0], first[0].0, busy(503, Some(50)), now);
        dispatcher.queue.give_back(&rest);
        assert_eq!(asked(&mut dispatcher, connections[0], now), []);
        let second = asked(&mut dispatcher, connections[1], now);
        assert_eq!(second.len(), 1);
        dispatcher.refused(connections[1], second[0].0, busy(429, Some(50)), now);
        assert_eq!(dispatcher.hopeless()[0].faults.len(), 2, "both are told of");
    }

    #[test]
    fn another_host_is_asked_at_once_and_then_the_caller() {
        let now = Instant::now();
        let (mut dispatcher, connections) = dispatcher(2, &[1000], now);
        let first = asked(&mut dispatcher, connections[0], now);
        dispatcher.refused(connections[0], first[0].0, busy(503, Some(30)), now);
        assert_eq!(dispatcher.next(connections[0], now), Next::Wait, "it is left alone");
        assert!(dispatcher.hopeless().is_empty());
        let second = asked(&mut dispatcher, connections[1], now);
        dispatcher.refused(connections[1], second[0].0, busy(429, Some(30)), now);
        assert_eq!(dispatcher.hopeless().len(), 1, "all have failed");
        dispatcher.abandon(0, now);
        add(&mut dispatcher, 1, &[1000]);
        for connection in connections {
            let again = asked(&mut dispatcher, connection, now);
            assert_eq!(again.len(), 1, "the caller asks again although both want a pause");
            dispatcher.refused(connection, again[0].0, busy(503, Some(30)), now);
        }
        assert_eq!(dispatcher.hopeless().len(), 1);
    }

    #[test]
    fn a_large_file_is_not_asked_for_in_parts_of_a_host_that_has_none() {
        let now = Instant::now();
        let (mut dispatcher, connections) = dispatcher(1, &[8 << 20], now);
        let first = asked(&mut dispatcher, connections[0], now);
        let other = dispatcher.opened(0, RTT, now);
        assert_eq!((first.len(), dispatcher.next(other, now)), (1, Next::Wait));
        assert!(dispatcher.shows_files(0), "connections wait for it");
        assert!(!dispatcher.shows_files(0));
        assert!(!asked(&mut dispatcher, other, now).is_empty(), "now all at once");
        // Busy again later: then one part at a time again.
        dispatcher.refused(connections[0], first[0].0, busy(503, None), now);
        assert!(asked(&mut dispatcher, connections[0], now).is_empty());
    }

    #[test]
    fn each_of_several_hosts_that_are_busy_is_asked_once_for_a_large_file() {
        let now = Instant::now();
        let (mut dispatcher, connections) = dispatcher(2, &[8 << 20], now);
        // In each of two attempts of the caller: busy at first, and busy still.
        for attempt in 0..2 {
            let mut refused = Vec::new();
            for (host, connection) in connections.iter().enumerate() {
                let first = asked(&mut dispatcher, *connection, now);
                let other = dispatcher.opened(host as HostId, RTT, now);
                assert_eq!((first.len(), dispatcher.next(other, now)), (1, Next::Wait), "{attempt} {host}");
                refused.push((*connection, first[0].0));
            }
            for (connection, tag) in refused {
                dispatcher.refused(connection, tag, busy(503, Some(30)), now);
            }
            let given_up = dispatcher.hopeless();
            assert_eq!(given_up.len(), 1);
            dispatcher.abandon(given_up[0].item, now);
            add(&mut dispatcher, attempt + 1, &[8 << 20]);
        }
    }

    #[test]
    fn a_host_that_refuses_the_last_of_all_connections_is_down() {
        let now = Instant::now();
        let refused = Fault::Broken("connection refused".into());
        let (mut dispatcher, connections) = dispatcher(1, &[1000], now);
        dispatcher.opening(0);
        dispatcher.not_opened(0, &refused, now);
        assert!(!dispatcher.hosts()[0].is_out(), "it limits connections");
        dispatcher.ended(connections[0], &crate::dispatcher::Ended::Ours, now);
        dispatcher.opening(0);
        dispatcher.not_opened(0, &refused, now);
        assert_eq!(dispatcher.hosts()[0].out_reason(), Some("connection refused"));
        assert_eq!(dispatcher.hopeless().len(), 1);
    }

    #[test]
    fn a_host_that_is_down_waits_for_another_one_that_is_not() {
        let now = Instant::now();
        let refused = Fault::Broken("connection refused".into());
        let limits = Limits { caller_retries: true, ..Limits::default() };
        let mut dispatcher = Dispatcher::new(vec![Host::new("a"), Host::new("b")], limits);
        add(&mut dispatcher, 0, &[1000]);
        for (host, is_out) in [(0, false), (1, true)] {
            dispatcher.opening(host);
            dispatcher.not_opened(host, &refused, now);
            assert_eq!(dispatcher.hosts()[host as usize].is_out(), is_out);
        }
        let later = now + Duration::from_secs(1);
        assert!(dispatcher.wants_connection(0, later));
        dispatcher.opening(0);
        dispatcher.not_opened(0, &refused, later);
        assert_eq!(dispatcher.hopeless().len(), 1);
    }
}
