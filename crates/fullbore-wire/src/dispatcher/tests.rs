use super::simulation::{SimHost, simulate};
use super::*;

/// Sizes spread like a source archive's: most files small, most bytes in a few big ones.
fn archive_sizes(total: u64) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut left = total;
    let mut big = total / 10;
    while big > 100_000 && left > big {
        sizes.push(big);
        left -= big;
        big = big * 7 / 8;
    }
    while left > 0 {
        let size = left.min(2_000 + (sizes.len() as u64 * 7919) % 60_000);
        sizes.push(size);
        left -= size;
    }
    sizes
}

fn ideal_s(total: u64, megabits: f64) -> f64 {
    total as f64 / (megabits * 1e6 / 8.0)
}

#[test]
fn one_mirror_fills_the_link() {
    let sizes = archive_sizes(300_000_000);
    let total = sizes.iter().sum();
    let run = simulate(&[SimHost::new(1e5, 20)], 1000.0, &sizes);
    assert!(run.seconds < 1.04 * ideal_s(total, 1000.0), "{} s", run.seconds);
    assert_eq!(run.received_bytes, total);
}

#[test]
fn uneven_mirrors_end_together_and_little_is_received_twice() {
    let sizes = archive_sizes(300_000_000);
    let total: u64 = sizes.iter().sum();
    let hosts = [SimHost::new(500.0, 10), SimHost::new(300.0, 30), SimHost::new(150.0, 50), SimHost::new(20.0, 80)];
    let run = simulate(&hosts, 1000.0, &sizes);
    assert!(run.seconds < 1.15 * ideal_s(total, 970.0), "{} s, ideal {}", run.seconds, ideal_s(total, 970.0));
    assert!(run.received_bytes as f64 <= 1.03 * total as f64, "{}", run.received_bytes as f64 / total as f64);
}

#[test]
fn a_mirror_that_falls_silent_costs_little() {
    let sizes = archive_sizes(300_000_000);
    let total: u64 = sizes.iter().sum();
    let mut hosts = [SimHost::new(300.0, 10), SimHost::new(300.0, 30), SimHost::new(300.0, 50)];
    hosts[1].silent_from = Duration::from_millis(700);
    let run = simulate(&hosts, 1000.0, &sizes);
    assert!(run.seconds < 1.15 * ideal_s(total, 600.0), "{} s, ideal {}", run.seconds, ideal_s(total, 600.0));
    assert!(run.received_bytes as f64 <= 1.05 * total as f64);
}

/// As a proxy does that has to fetch the file itself.
#[test]
fn who_needs_seconds_to_begin_a_file_is_waited_for() {
    let thinking =
        || SimHost { thinks: |item| Duration::from_secs(if item == 1 { 3 } else { 0 }), ..SimHost::new(100.0, 10) };
    for (hosts, most_s) in [(vec![thinking()], 9.0), (vec![thinking(), thinking()], 25.0)] {
        let run = simulate(&hosts, 1000.0, &[300_000; 5]);
        assert!(run.given_up.is_empty());
        assert!(run.seconds < most_s, "{} s", run.seconds);
        let requests: u64 = run.hosts.iter().map(|host| host.totals.requests).sum();
        assert!(requests < 5 + 15 * hosts.len() as u64, "{requests} requests");
    }
    let run = simulate(&[thinking(), SimHost::new(100.0, 10)], 1000.0, &[300_000; 5]);
    assert!(run.seconds < 1.5, "{} s although another has it", run.seconds);
}

#[test]
fn a_file_about_which_all_are_silent_is_given_up() {
    for size in [10_000, 300_000] {
        for count in [1, 2, 3] {
            let silent = || SimHost {
                thinks: |item| Duration::from_secs(if item == 1 { 100_000 } else { 0 }),
                ..SimHost::new(100.0, 10)
            };
            let hosts: Vec<SimHost> = (0..count).map(|_| silent()).collect();
            let run = simulate(&hosts, 1000.0, &[size; 5]);
            assert_eq!(run.given_up.iter().map(|lost| lost.item).collect::<Vec<_>>(), [1]);
            assert!(run.seconds < 150.0, "{count} hosts, {size} bytes: {} s", run.seconds);
        }
    }
}

#[test]
fn a_drip_is_cut_in_mid_run() {
    let sizes = archive_sizes(600_000_000);
    let total: u64 = sizes.iter().sum();
    let hosts = [SimHost::new(300.0, 10), SimHost::new(0.2, 30)];
    let run = simulate(&hosts, 1000.0, &sizes);
    assert!(run.seconds < 1.1 * ideal_s(total, 300.0), "{} s, ideal {}", run.seconds, ideal_s(total, 300.0));
    assert!(run.hosts[1].totals.faults > 0);
}

/// As APT fetches packages: 6 MB in 200 files, over before much is known of anybody.
#[test]
fn in_a_short_run_a_drip_loses_what_it_holds_as_soon_as_others_are_idle() {
    let mut sizes: Vec<u64> = (0..200).map(|n| 700 + (n * 7919) % 30_000).collect();
    sizes[0] = 3_000_000;
    for drip in [0.16, 0.04] {
        let mut hosts = [SimHost::new(800.0, 10), SimHost::new(drip, 10), SimHost::new(800.0, 10)];
        hosts[2].misses = |item| item % 3 == 0;
        let run = simulate(&hosts, 1e5, &sizes);
        assert!(run.given_up.is_empty());
        assert!(run.seconds < 2.0, "{} s with a drip of {drip} Mbit/s", run.seconds);
    }
}

/// All of it was asked for before anybody was known to be slow.
#[test]
fn in_a_short_run_idle_mirrors_take_over_from_a_slow_one() {
    let sizes: Vec<u64> = (0..1200).map(|n| 700 + (n * 7919) % 12_000).collect();
    let total: u64 = sizes.iter().sum();
    let hosts = [SimHost::new(160.0, 20), SimHost::new(3.2, 60), SimHost::new(160.0, 30)];
    let run = simulate(&hosts, 1e5, &sizes);
    assert!(run.seconds < 1.2, "{} s", run.seconds);
    assert!(run.received_bytes as f64 <= 1.05 * total as f64, "{}", run.received_bytes as f64 / total as f64);
}

/// What nobody but a drip was found to have is tried at a host that was never asked.
#[test]
fn a_host_that_was_never_measured_is_tried_out_beside_a_drip() {
    let sizes = [54_000, 54_000, 54_000, 30_000, 2_000, 1_000];
    let mut hosts = [SimHost::new(0.16, 10), SimHost::new(800.0, 10), SimHost::new(800.0, 300)];
    hosts[1].misses = |_| true;
    let run = simulate(&hosts, 1e5, &sizes);
    assert!(run.given_up.is_empty());
    assert!(run.seconds < 3.0, "{} s", run.seconds);
}

#[test]
fn equally_slow_mirrors_are_never_hedged() {
    let sizes = archive_sizes(20_000_000);
    let hosts = [SimHost::new(5.0, 30), SimHost::new(5.0, 30)];
    let run = simulate(&hosts, 1000.0, &sizes);
    assert_eq!(run.received_bytes, sizes.iter().sum::<u64>());
    assert!(run.hosts.iter().all(|host| host.totals.hedged == 0 && host.totals.faults == 0));
}

#[test]
fn a_file_missing_at_one_mirror_comes_from_another_or_is_given_up() {
    let sizes = archive_sizes(20_000_000);
    let mut hosts = [SimHost::new(100.0, 10), SimHost::new(100.0, 10)];
    hosts[1].misses = |item| item % 3 == 0;
    let run = simulate(&hosts, 1000.0, &sizes);
    assert!(run.given_up.is_empty());
    hosts[0].misses = |item| item == 3;
    let run = simulate(&hosts, 1000.0, &sizes);
    assert_eq!(run.given_up.iter().map(|lost| (lost.item, lost.missing)).collect::<Vec<_>>(), [(3, true)]);
}

fn two_hosts() -> (Dispatcher, Instant) {
    let mut dispatcher = Dispatcher::new(vec![Host::new("a"), Host::new("b")], Limits::default());
    dispatcher.add(vec![Item { id: 7, size: 1000, ..Item::default() }]);
    (dispatcher, Instant::now())
}

#[test]
fn wrong_bytes_from_one_host_go_to_the_other() {
    let (mut dispatcher, now) = two_hosts();
    let a = dispatcher.opened(0, Duration::from_millis(1), now);
    let Next::Ask { tag, segment } = dispatcher.next(a, now) else { panic!("work") };
    dispatcher.received(a, tag, segment.len(), now);
    dispatcher.answered(a, tag);
    assert_eq!(dispatcher.mismatch(7, 1000, &[(0, 1000)], now), Remedy::Whole);
    dispatcher.ask_again(&Segment { item: 7, start: 0, end: 1000, size: 1000 });
    assert_eq!(dispatcher.next(a, now), Next::Wait);
    let b = dispatcher.opened(1, Duration::from_millis(1), now);
    assert!(matches!(dispatcher.next(b, now), Next::Ask { segment, .. } if segment.is_whole()));
    assert_eq!(dispatcher.mismatch(7, 1000, &[(1, 1000)], now), Remedy::Whole);
    dispatcher.ask_again(&Segment { item: 7, start: 0, end: 1000, size: 1000 });
    assert_eq!(dispatcher.hopeless().len(), 1);
}

#[test]
fn wrong_bytes_from_several_hosts_are_judged_by_the_origin() {
    let (mut dispatcher, now) = two_hosts();
    let a = dispatcher.opened(0, Duration::from_millis(1), now);
    let Next::Ask { tag, segment } = dispatcher.next(a, now) else { panic!("work") };
    dispatcher.received(a, tag, segment.len(), now);
    dispatcher.answered(a, tag);
    assert_eq!(dispatcher.mismatch(7, 1000, &[(0, 300), (1, 700)], now), Remedy::AllBut(0));
    dispatcher.ask_again(&Segment { item: 7, start: 300, end: 1000, size: 1000 });
    let b = dispatcher.opened(1, Duration::from_millis(1), now);
    assert_eq!(dispatcher.next(b, now), Next::Wait, "the other host is not asked again");
    let next = dispatcher.next(a, now);
    assert!(matches!(next, Next::Ask { segment, .. } if (segment.start, segment.end) == (300, 1000)));
    let wasted = |dispatcher: &Dispatcher| [0, 1].map(|host: usize| dispatcher.hosts()[host].totals.wasted_bytes);
    assert_eq!(wasted(&dispatcher), [0, 700], "what the judge brought is kept");
    // Still wrong, and all of it from the judge now: then it is the judge.
    assert_eq!(dispatcher.mismatch(7, 1000, &[(0, 1000)], now), Remedy::Whole);
    assert_eq!(wasted(&dispatcher), [1000, 700]);
    dispatcher.ask_again(&Segment { item: 7, start: 0, end: 1000, size: 1000 });
    assert!(matches!(dispatcher.next(b, now), Next::Ask { segment, .. } if segment.is_whole()));
}

#[test]
fn what_a_lost_connection_owed_goes_elsewhere_from_where_it_stopped() {
    let (mut dispatcher, now) = two_hosts();
    let a = dispatcher.opened(0, Duration::from_millis(1), now);
    let Next::Ask { tag, .. } = dispatcher.next(a, now) else { panic!("work") };
    dispatcher.received(a, tag, 400, now);
    dispatcher.ended(a, &Ended::Fault(Fault::Broken("reset".into())), now);
    let b = dispatcher.opened(1, Duration::from_millis(1), now);
    assert!(
        matches!(dispatcher.next(b, now), Next::Ask { segment, .. } if (segment.start, segment.end) == (400, 1000))
    );
}

#[test]
fn a_host_that_refuses_every_request_unseen_is_left_alone_at_last() {
    let (mut dispatcher, mut now) = two_hosts();
    let a = dispatcher.opened(0, Duration::from_millis(1), now);
    let mut asked = 0;
    for _ in 0..100 {
        match dispatcher.next(a, now) {
            Next::Ask { tag, .. } => {
                asked += 1;
                dispatcher.refused_unseen(a, tag, now);
                assert!(!matches!(dispatcher.next(a, now), Next::Ask { .. }), "it is left alone for a while");
            }
            _ => now += Duration::from_secs(1),
        }
    }
    assert!((2..=12).contains(&asked), "{asked}");
    assert!(dispatcher.hosts()[0].is_out());
    let b = dispatcher.opened(1, Duration::from_millis(1), now);
    assert!(matches!(dispatcher.next(b, now), Next::Ask { segment, .. } if segment.is_whole()));
}

#[test]
fn an_old_request_number_revokes_nothing_of_a_new_request() {
    let (mut dispatcher, now) = two_hosts();
    let a = dispatcher.opened(0, Duration::from_millis(1), now);
    assert!(matches!(dispatcher.next(a, now), Next::Ask { .. }));
    dispatcher.abandon(7, now);
    assert_eq!(dispatcher.recently_asked(0), [7]);
    dispatcher.begin(None);
    assert!(dispatcher.recently_asked(0).is_empty());
    dispatcher.add(vec![Item { id: 7, size: 1000, ..Item::default() }]);
    let b = dispatcher.opened(1, Duration::from_millis(1), now);
    let Next::Ask { tag, .. } = dispatcher.next(b, now) else { panic!("work") };
    dispatcher.unanswered(b, tag, now);
    assert!(matches!(dispatcher.next(b, now), Next::Ask { .. }));
}

/// Two connections of which the slow one gave the rear of a file to the fast one.
fn hedged() -> (Dispatcher, ConnectionId, ConnectionId, Instant) {
    let now = Instant::now();
    let mut dispatcher = Dispatcher::new(vec![Host::new("slow"), Host::new("fast")], Limits::default());
    dispatcher.add(vec![Item { id: 1, size: 390_000, ..Item::default() }]);
    let slow = dispatcher.opened(0, Duration::from_millis(1), now);
    assert!(matches!(dispatcher.next(slow, now), Next::Ask { tag: 0, segment } if segment.is_whole()));
    let fast = dispatcher.opened(1, Duration::from_millis(1), now);
    dispatcher.add(vec![Item { id: 2, size: 390_000, ..Item::default() }]);
    assert!(matches!(dispatcher.next(fast, now), Next::Ask { .. }));
    let later = now + Duration::from_millis(200);
    dispatcher.received(slow, 0, 130_000, later);
    dispatcher.received(fast, 0, 390_000, later);
    dispatcher.answered(fast, 0);
    dispatcher.verified(2, &[1], &[], later);
    let Next::Ask { segment, .. } = dispatcher.next(fast, later) else { panic!("work of the slow one") };
    assert!(segment.item == 1 && segment.start >= 130_000 && segment.end == 390_000);
    (dispatcher, slow, fast, later)
}

#[test]
fn a_handover_returns_to_the_giver_if_the_taker_is_lost() {
    let (mut dispatcher, slow, fast, now) = hedged();
    dispatcher.ended(fast, &Ended::Fault(Fault::Broken("reset".into())), now);
    assert_eq!(dispatcher.unasked_bytes(), 0, "nobody else need be asked");
    assert_eq!(dispatcher.received(slow, 0, 260_000, now), Keep::First { wanted: 260_000 });
}

#[test]
fn what_was_taken_over_and_partly_brought_is_asked_for_again() {
    let (mut dispatcher, _, fast, now) = hedged();
    dispatcher.received(fast, 1, 1000, now);
    dispatcher.ended(fast, &Ended::Fault(Fault::Broken("reset".into())), now);
    assert!(dispatcher.unasked_bytes() > 0);
}

#[test]
fn what_is_left_of_a_file_comes_whole_from_hosts_without_ranges() {
    let (mut dispatcher, now) = two_hosts();
    dispatcher.add(vec![Item { id: 9, size: 1000, present: vec![0..400], ..Item::default() }]);
    for host in 0..2 {
        dispatcher.host_mut(host).fault(&Fault::NoRanges, now);
    }
    assert!(dispatcher.hopeless().is_empty());
    let a = dispatcher.opened(0, Duration::from_millis(1), now);
    let mut asked = Vec::new();
    while let Next::Ask { segment, .. } = dispatcher.next(a, now) {
        asked.push(segment.clone());
        dispatcher.answered(a, asked.len() as u64 - 1);
    }
    assert!(asked.iter().any(|segment| segment.item == 9 && segment.is_whole()), "{asked:?}");
}

#[test]
fn a_host_on_trial_is_asked_for_nothing_and_then_again() {
    let (mut dispatcher, now) = two_hosts();
    let a = dispatcher.opened(0, Duration::from_millis(1), now);
    dispatcher.hold(Some(Hold::Host(0)));
    assert!(dispatcher.held_is_quiet());
    assert_eq!(dispatcher.next(a, now), Next::Wait);
    assert!(!dispatcher.wants_connection(0, now));
    dispatcher.hold(None);
    assert!(matches!(dispatcher.next(a, now), Next::Ask { .. }));
}

#[test]
fn while_more_is_to_come_only_what_is_silent_is_taken_over() {
    let asks = |dispatcher: &mut Dispatcher, id, now| matches!(dispatcher.next(id, now), Next::Ask { .. });
    let (mut dispatcher, _, fast, now) = small_file_behind_unwanted_bytes();
    dispatcher.expect_more(true);
    assert!(!asks(&mut dispatcher, fast, now));
    dispatcher.expect_more(false);
    assert!(dispatcher.take_news());
    assert!(asks(&mut dispatcher, fast, now + HEDGE_LOOK_EVERY));
    let (mut dispatcher, _, fast, now) = small_file_behind_unwanted_bytes();
    dispatcher.expect_more(true);
    assert!(asks(&mut dispatcher, fast, now + Duration::from_secs(2)));
}

/// A drip of 2 kB/s that was asked for an index of 60 kB and a small file behind it, and a fast
/// connection. The index has come from others by now.
fn small_file_behind_unwanted_bytes() -> (Dispatcher, ConnectionId, ConnectionId, Instant) {
    let now = Instant::now();
    let mut dispatcher = Dispatcher::new(vec![Host::new("drip"), Host::new("fast")], Limits::default());
    dispatcher.add(vec![Item { id: 1, size: 60_000, ..Item::default() }, Item { id: 2, size: 193, ..Item::default() }]);
    let drip = dispatcher.opened(0, Duration::from_millis(1), now);
    assert!(matches!(dispatcher.next(drip, now), Next::Ask { tag: 0, segment } if segment.item == 1));
    assert!(matches!(dispatcher.next(drip, now), Next::Ask { tag: 1, segment } if segment.item == 2));
    dispatcher.add(vec![Item { id: 3, size: 95_000, ..Item::default() }]);
    let fast = dispatcher.opened(1, Duration::from_millis(1), now);
    assert!(matches!(dispatcher.next(fast, now), Next::Ask { .. }));
    let mut now = now;
    for _ in 0..10 {
        now += Duration::from_millis(100);
        dispatcher.received(drip, 0, 100, now);
        dispatcher.received(fast, 0, 9_500, now);
    }
    dispatcher.answered(fast, 0);
    dispatcher.verified(3, &[1], &[], now);
    dispatcher.verified(1, &[1], &[], now);
    (dispatcher, drip, fast, now)
}

#[test]
fn a_small_file_behind_bytes_that_nobody_wants_any_more_is_taken_over() {
    let (mut dispatcher, _, fast, now) = small_file_behind_unwanted_bytes();
    assert!(matches!(dispatcher.next(fast, now), Next::Ask { segment, .. } if segment.item == 2 && segment.is_whole()));
}

#[test]
fn a_drip_is_judged_by_all_that_comes_before_what_it_owes() {
    let (mut dispatcher, drip, _, now) = small_file_behind_unwanted_bytes();
    let mut at = now;
    for _ in 0..10 {
        at += Duration::from_millis(100);
        dispatcher.received(drip, 0, 100, at);
    }
    assert_eq!(dispatcher.overdue(drip, at), Some(Fault::Slow));
}

#[test]
fn nothing_more_is_asked_for_behind_unwanted_bytes() {
    let (mut dispatcher, drip, _, now) = small_file_behind_unwanted_bytes();
    dispatcher.add(vec![Item { id: 4, size: 500, ..Item::default() }]);
    assert_eq!(dispatcher.next(drip, now), Next::Wait);
}

#[test]
fn a_file_that_comes_wrong_in_many_parts_is_one_fault_and_has_its_name() {
    let now = Instant::now();
    let mut dispatcher = Dispatcher::new(vec![Host::new("a"), Host::new("b")], Limits::default());
    dispatcher.begin(Some(Box::new(|item| format!("pool/f{item}"))));
    dispatcher.add(vec![Item { id: 3, size: 8 << 20, ..Item::default() }]);
    let connections: Vec<_> = (0..4).map(|_| dispatcher.opened(0, Duration::from_millis(1), now)).collect();
    for id in &connections {
        assert!(matches!(dispatcher.next(*id, now), Next::Ask { tag: 0, segment } if segment.item == 3));
    }
    for id in connections {
        dispatcher.refused(id, 0, Fault::WrongAnswer("html".into()), now);
    }
    let host = &dispatcher.hosts()[0];
    assert!(!host.is_out() && host.totals.faults == 1, "{:?}", host.totals);
    assert_eq!(host.totals.seen_faults[0].path.as_deref(), Some("pool/f3"));
}

#[test]
fn a_file_lost_with_its_host_is_requested_again() {
    let mut now = Instant::now();
    let mut dispatcher = Dispatcher::new(vec![Host::new("a")], Limits::default());
    dispatcher.add(vec![Item { id: 3, size: 8 << 20, ..Item::default() }]);
    let mut incident = |dispatcher: &mut Dispatcher| {
        now += Duration::from_secs(60);
        let connections: Vec<_> = (0..4).map(|_| dispatcher.opened(0, Duration::from_millis(1), now)).collect();
        for id in &connections {
            assert!(matches!(dispatcher.next(*id, now), Next::Ask { segment, .. } if segment.item == 3));
        }
        for id in connections {
            dispatcher.ended(id, &Ended::Fault(Fault::Broken("reset".into())), now);
        }
        dispatcher.hopeless().len()
    };
    assert_eq!([(); 3].map(|()| incident(&mut dispatcher)), [0, 0, 1], "each time is one trouble");
}

/// A small file whose host redirects it, and a ticket for it.
fn redirected() -> (Dispatcher, ConnectionId, Ticket, Instant) {
    let now = Instant::now();
    let mut dispatcher = Dispatcher::new(vec![Host::new("a")], Limits::default());
    dispatcher.add(vec![Item { id: 5, size: 1000, ..Item::default() }]);
    let main = dispatcher.opened(0, Duration::from_millis(1), now);
    assert!(matches!(dispatcher.next(main, now), Next::Ask { tag: 0, .. }));
    let ticket = dispatcher.detour(main, 0, now).expect("it is wanted");
    (dispatcher, main, ticket, now)
}

#[test]
fn a_redirected_part_is_asked_for_once_and_counts_for_its_host() {
    let (mut dispatcher, main, ticket, now) = redirected();
    assert_eq!(dispatcher.next(main, now), Next::Wait, "nobody else is asked for it");
    assert!(dispatcher.hopeless().is_empty());
    assert_eq!(dispatcher.overdue(main, now + Duration::from_secs(60)), None, "the host has answered");
    let there = dispatcher.opened_detour(0, now);
    let tag = dispatcher.take_detour(ticket, there, now).expect("still wanted");
    assert_eq!(dispatcher.take_detour(ticket, there, now), None);
    assert_eq!(dispatcher.connections_to(0), 1, "the other connection is not to the host itself");
    assert_eq!(dispatcher.received(there, tag, 1000, now), Keep::First { wanted: 1000 });
    dispatcher.answered(there, tag);
    dispatcher.ended(there, &Ended::Clean, now);
    dispatcher.verified(5, &[0], &[], now);
    let host = &dispatcher.hosts()[0];
    assert_eq!((host.totals.received_bytes, host.totals.requests), (1000, 2));
    assert_eq!(host.requests_per_connection(), u64::MAX, "that the store closes says nothing of the host");
}

#[test]
fn a_redirected_part_goes_back_if_its_address_fails() {
    let (mut dispatcher, main, ticket, now) = redirected();
    dispatcher.lost_detour(ticket, &Fault::Broken("refused".into()), now);
    assert_eq!(dispatcher.unasked_bytes(), 1000);
    let later = now + Duration::from_secs(1);
    assert!(matches!(dispatcher.next(main, later), Next::Ask { tag: 1, .. }));
    let ticket = dispatcher.detour(main, 1, later).expect("it is wanted");
    let there = dispatcher.opened_detour(0, later);
    assert!(dispatcher.take_detour(ticket, there, later).is_some());
    dispatcher.ended(there, &Ended::Fault(Fault::Slow), later);
    assert_eq!(dispatcher.unasked_bytes(), 1000);
    assert_eq!(dispatcher.hosts()[0].totals.faults, 2);
}

#[test]
fn a_redirected_part_that_nobody_wants_any_more_is_not_asked_for() {
    let (mut dispatcher, _, ticket, now) = redirected();
    dispatcher.abandon(5, now);
    let there = dispatcher.opened_detour(0, now);
    assert_eq!(dispatcher.take_detour(ticket, there, now), None);
    let (mut dispatcher, _, ticket, now) = redirected();
    dispatcher.begin(None);
    let there = dispatcher.opened_detour(0, now);
    assert_eq!(dispatcher.take_detour(ticket, there, now), None);
}

#[test]
fn a_host_that_redirects_faster_than_files_come_is_asked_for_no_more() {
    let now = Instant::now();
    let mut dispatcher = Dispatcher::new(vec![Host::new("a")], Limits::default());
    dispatcher.add((0..500).map(|id| Item { id, size: 100, ..Item::default() }).collect());
    let main = dispatcher.opened(0, Duration::from_millis(1), now);
    let mut tickets = Vec::new();
    while let Next::Ask { tag, .. } = dispatcher.next(main, now) {
        tickets.extend(dispatcher.detour(main, tag, now));
    }
    assert!((16..100).contains(&tickets.len()), "{}", tickets.len());
    let there = dispatcher.opened_detour(0, now);
    dispatcher.take_detour(tickets[0], there, now);
    assert!(matches!(dispatcher.next(main, now), Next::Ask { .. }));
}

/// A host that redirects what it is asked for, and one that has nothing to do beside it; the tickets.
fn redirected_beside_another(files: u32) -> (Dispatcher, ConnectionId, Vec<Ticket>, Instant) {
    let mut dispatcher = Dispatcher::new(vec![Host::new("a"), Host::new("b")], Limits::default());
    let now = Instant::now();
    dispatcher.add((0..files).map(|id| Item { id, size: 100_000, ..Item::default() }).collect());
    let main = dispatcher.opened(0, Duration::from_millis(1), now);
    let mut tickets = Vec::new();
    while let Next::Ask { tag, .. } = dispatcher.next(main, now) {
        tickets.extend(dispatcher.detour(main, tag, now));
    }
    (dispatcher, main, tickets, now)
}

#[test]
fn redirected_parts_wait_while_their_host_backs_off() {
    let (mut dispatcher, main, tickets, now) = redirected_beside_another(8);
    assert_eq!((tickets.len(), dispatcher.unasked_bytes()), (8, 0));
    let there = dispatcher.opened_detour(0, now);
    let tag = dispatcher.take_detour(tickets[0], there, now).expect("it is wanted");
    let busy = Fault::Busy { status: 429, retry_after: Some(Duration::from_secs(30)) };
    dispatcher.refused(there, tag, busy, now);
    assert_eq!(dispatcher.unasked_bytes(), 800_000, "they are for others now");
    assert_eq!(dispatcher.take_detour(tickets[1], there, now), None);
    assert_eq!(dispatcher.next(main, now), Next::Wait);
    let later = now + Duration::from_secs(31);
    let Next::Ask { tag, .. } = dispatcher.next(main, later) else { panic!("asked for again") };
    assert!(dispatcher.detour(main, tag, later).is_some());
}

#[test]
fn what_waits_behind_a_slow_store_is_taken_by_a_host_without_work() {
    let (mut dispatcher, _, tickets, now) = redirected_beside_another(8);
    let there = dispatcher.opened_detour(0, now);
    assert!(dispatcher.take_detour(tickets[0], there, now).is_some());
    assert!(dispatcher.wants_connection(1, now));
    let other = dispatcher.opened(1, Duration::from_millis(1), now);
    let mut taken = 0;
    while let Next::Ask { tag, segment } = dispatcher.next(other, now) {
        dispatcher.received(other, tag, segment.len(), now);
        dispatcher.answered(other, tag);
        taken += segment.len();
    }
    assert_eq!(taken, 700_000, "all but what the store sends already");
    assert!(!tickets.iter().any(|ticket| dispatcher.awaits_detour(*ticket)));
}

#[test]
fn an_address_that_is_good_no_more_is_asked_for_anew() {
    let (mut dispatcher, main, mut ticket, now) = redirected();
    let there = dispatcher.opened_detour(0, now);
    for times in 1.. {
        let tag = dispatcher.take_detour(ticket, there, now).expect("it is wanted");
        dispatcher.refused(there, tag, Fault::Missing(403), now);
        let Next::Ask { tag, .. } = dispatcher.next(main, now) else {
            assert_eq!(times, 3, "then it is believed");
            break;
        };
        ticket = dispatcher.detour(main, tag, now).expect("it is wanted");
    }
    assert!(dispatcher.hopeless()[0].missing);
}

#[test]
fn a_host_has_no_more_connections_than_it_may_have() {
    let mut dispatcher = Dispatcher::new(vec![Host::new("a"), Host::new("b")], Limits::default());
    dispatcher.add((0..40).map(|id| Item { id, size: 1_000_000, ..Item::default() }).collect());
    let (now, rtt) = (Instant::now(), Duration::from_millis(1));
    dispatcher.allow(0, 0);
    dispatcher.allow(1, 99);
    assert!(!dispatcher.wants_connection(0, now) && !dispatcher.allows_another(0));
    let mut connections = Vec::new();
    while dispatcher.wants_connection(1, now) {
        dispatcher.opening(1);
        assert!(connections.len() < 4, "99 is above the limit of the run");
        let connection = dispatcher.opened(1, rtt, now);
        let asked = dispatcher.next(connection, now);
        assert!(matches!(asked, Next::Ask { .. }), "{asked:?}");
        connections.push((connection, asked));
    }
    assert_eq!(connections.len(), 4);
    // Two too many: the younger ones end after the answers that they wait for, the older ones go on.
    dispatcher.allow(1, 2);
    for (place, (connection, asked)) in connections.into_iter().enumerate() {
        let Next::Ask { tag, segment } = asked else { panic!("work") };
        if place >= 2 {
            assert_eq!(dispatcher.next(connection, now), Next::Wait);
        }
        dispatcher.received(connection, tag, segment.len(), now);
        dispatcher.answered(connection, tag);
        let next = dispatcher.next(connection, now);
        assert_eq!(next == Next::Close, place >= 2, "{place}: {next:?}");
    }
    dispatcher.allow(0, 1);
    assert!(dispatcher.wants_connection(0, now));
}
