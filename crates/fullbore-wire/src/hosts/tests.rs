//! A host by itself: what it is seen to do, and what comes of it.

use super::*;

#[test]
fn a_clean_close_is_no_strike_and_sets_the_length_of_connections() {
    let mut host = Host::new("a");
    host.closed_after(100);
    assert_eq!(host.requests_per_connection(), 100);
    assert_eq!(host.depth(), PIPELINE_DEPTH);
    assert_eq!(host.state(Instant::now()), &HostState::Up);
}

#[test]
fn connections_that_fail_together_are_one_failure() {
    let mut now = Instant::now();
    let mut host = Host::new("a");
    for _ in 0..4 {
        host.fault(&Fault::Broken("reset".into()), now);
    }
    assert_eq!(host.state(now), &HostState::Paused(now + BACK_OFF_FIRST));
    now += BACK_OFF_FIRST;
    host.fault(&Fault::Broken("refused".into()), now);
    assert_eq!(host.state(now), &HostState::Paused(now + 2 * BACK_OFF_FIRST));
}

#[test]
fn a_host_that_is_busy_for_ever_is_left_alone() {
    let mut now = Instant::now();
    let mut host = Host::new("a");
    let mut asked = 0;
    while !host.is_out() {
        host.fault(&Fault::Busy { status: 503, retry_after: None }, now);
        if let HostState::Paused(until) = host.state(now).clone() {
            now = until;
        }
        asked += 1;
    }
    assert!((6..12).contains(&asked), "{asked}");
}

#[test]
fn wrong_bytes_now_and_then_are_a_habit_unless_good_files_are_many() {
    let now = Instant::now();
    let (mut bad, mut good) = (Host::new("bad"), Host::new("good"));
    for _ in 0..3 {
        bad.fault(&Fault::WrongBytes, now);
        bad.verified();
        good.fault(&Fault::WrongBytes, now);
        (0..100).for_each(|_| good.verified());
    }
    assert!(bad.is_out() && !good.is_out());
}

#[test]
fn three_wrong_answers_in_a_row_end_it_but_good_files_between_do_not() {
    let now = Instant::now();
    let mut host = Host::new("a");
    for _ in 0..2 {
        host.fault(&Fault::WrongBytes, now);
    }
    (0..1000).for_each(|_| host.verified());
    host.fault(&Fault::WrongBytes, now);
    assert!(!host.is_out());
    host.fault(&Fault::WrongAnswer("html".into()), now);
    host.fault(&Fault::WrongBytes, now);
    assert!(host.is_out());
}

#[test]
fn the_first_faults_and_the_last_are_kept() {
    let start = Instant::now();
    let mut host = Host::new("a");
    for ms in 0..1000 {
        host.fault(&Fault::Missing(404), start + Duration::from_millis(ms));
    }
    host.fault(&Fault::NoRanges, start + Duration::from_secs(2));
    let seen = &host.totals.seen_faults;
    assert_eq!(seen.len(), FAULTS_KEPT);
    assert_eq!(seen[0], SeenFault { at: start, path: None, fault: "not there (404)".into() });
    assert_eq!(seen.last().unwrap().fault, "ignores Range");
}

fn busy_until(seconds: u64) -> Fault {
    Fault::Busy { status: 429, retry_after: Some(Duration::from_secs(seconds)) }
}

fn alone() -> Occasion {
    Occasion { alone: true, ..Occasion::default() }
}

#[test]
fn retry_after_is_obeyed_or_the_host_is_left_alone() {
    let now = Instant::now();
    let after = |seconds| now + Duration::from_secs(seconds);
    let mut host = Host::new("a");
    host.fault(&busy_until(3), now);
    assert_eq!(host.state(now), &HostState::Paused(after(3)));
    assert_eq!(host.state(after(3)), &HostState::Up);
    host.fault(&busy_until(60), now);
    assert_eq!(host.state(now), &HostState::Paused(after(60)));
    host.fault(&busy_until(61), now);
    assert!(host.is_out(), "others do its work, and it is not asked before it said so");
}

#[test]
fn the_last_host_is_waited_for_as_it_says_until_that_is_too_long() {
    let now = Instant::now();
    let after = |seconds| now + Duration::from_secs(seconds);
    let mut host = Host::new("a");
    host.fault_on(&busy_until(200), alone(), now);
    assert_eq!(host.state(after(199)), &HostState::Paused(after(200)));
    host.fault_on(&busy_until(100), alone(), after(200));
    assert_eq!(host.state(after(200)), &HostState::Paused(after(300)));
    host.fault_on(&busy_until(1), alone(), after(300));
    assert!(host.is_out(), "five minutes of nothing else");
    let mut host = Host::new("b");
    host.fault_on(&busy_until(86_400), alone(), now);
    assert!(host.is_out());
}

#[test]
fn a_pause_of_no_time_is_one_all_the_same() {
    let now = Instant::now();
    let mut host = Host::new("a");
    host.fault(&busy_until(0), now);
    assert_eq!(host.state(now), &HostState::Paused(now + BACK_OFF_FIRST));
}

#[test]
fn the_last_host_is_kept_though_some_of_its_files_are_wrong() {
    let now = Instant::now();
    let mut host = Host::new("a");
    for _ in 0..10 {
        (0..20).for_each(|_| host.fault_on(&Fault::WrongBytes, alone(), now));
        host.verified();
    }
    assert!(!host.is_out());
    (0..STRIKES_UNTIL_BANNED_ALONE).for_each(|_| host.fault_on(&Fault::WrongAnswer("html".into()), alone(), now));
    assert!(host.is_out(), "nothing but wrong files");
}

#[test]
fn a_host_that_never_delivers_is_stale_one_that_misses_some_is_not() {
    let now = Instant::now();
    let mut stale = Host::new("stale");
    let mut patchy = Host::new("patchy");
    patchy.delivered();
    for _ in 0..MISSES_UNTIL_STALE {
        stale.fault(&Fault::Missing(404), now);
        patchy.fault(&Fault::Missing(404), now);
    }
    assert!(stale.is_out());
    assert!(!patchy.is_out());
}

#[test]
fn broken_connections_pause_ever_longer_and_then_end_it() {
    let mut now = Instant::now();
    let mut host = Host::new("a");
    let mut pauses = Vec::new();
    while !host.is_out() {
        host.fault(&Fault::Broken("reset".into()), now);
        if let HostState::Paused(until) = host.state(now).clone() {
            pauses.push(until - now);
            now = until;
        }
    }
    assert_eq!(pauses.len() as u32, FAILURES_UNTIL_DEAD - 1);
    assert!(pauses.windows(2).all(|p| p[1] == 2 * p[0]));
}

/// The pauses of a host that closes each connection after so many completed requests.
fn pauses_of_early_closes(protocol: Protocol, completed: u64, closes: u32) -> Vec<Duration> {
    let mut now = Instant::now();
    let mut host = Host::new("a");
    host.saw_protocol(protocol);
    let mut pauses = Vec::new();
    for _ in 0..closes {
        host.delivered();
        host.completed_before_close(completed, now);
        // Other connections that close during the pause change nothing.
        host.completed_before_close(completed, now);
        if let HostState::Paused(until) = host.state(now).clone() {
            pauses.push(until - now);
            now = until;
        }
    }
    assert!(!host.is_out());
    pauses
}

#[test]
fn goaway_after_each_request_backs_off() {
    for completed in [0, 1, COMPLETED_PER_CONNECTION_MIN - 1] {
        let pauses = pauses_of_early_closes(Protocol::Http2, completed, 200);
        assert!(pauses.len() > 190, "{completed}: {}", pauses.len());
        assert_eq!(pauses[..3], [1, 2, 4].map(|times| times * BACK_OFF_FIRST), "{completed}");
        assert_eq!(pauses.last(), Some(&EARLY_CLOSE_PAUSE_MAX), "{completed}");
    }
    for completed in [COMPLETED_PER_CONNECTION_MIN, 100] {
        assert!(pauses_of_early_closes(Protocol::Http2, completed, 200).is_empty(), "{completed}");
    }
    assert!(pauses_of_early_closes(Protocol::Http1, 1, 200).is_empty());
}

#[test]
fn a_connection_with_enough_requests_ends_the_back_off() {
    let mut now = Instant::now();
    let mut host = Host::new("a");
    host.saw_protocol(Protocol::Http2);
    for completed in [0, 100, 0] {
        for _ in 0..=EARLY_CLOSES_FREE / 2 {
            host.completed_before_close(completed, now);
            now += BACK_OFF_FIRST;
        }
    }
    assert_eq!(host.state(now), &HostState::Up);
}
