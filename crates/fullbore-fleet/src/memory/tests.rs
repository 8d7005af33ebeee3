//! The queue in memory behaves as JetStream was seen to behave. `tests/nats.rs` checks the same of a real server.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fullbore_digest::Sha256;

use super::*;
use crate::message::{Item, Kind};
use crate::queue::ACK_WAIT;

const SECOND: Duration = Duration::from_secs(1);

/// Every future of this queue is ready.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a future of the queue in memory waits"),
    }
}

fn run() -> RunId {
    RunId::parse("9c1f").unwrap()
}

fn tasks(round: u32, count: usize) -> Vec<Task> {
    let item = |number| Item { path: format!("pool/{number}"), size: 1, sha256: Sha256::of(b"") };
    (0..count)
        .map(|number| Task { kind: Kind::Fetch, run: run(), round, items: vec![item(number)], replaces: Vec::new() })
        .collect()
}

fn queue(count: usize) -> MemoryQueue {
    let queue = MemoryQueue::new(1);
    ready(queue.open(&run())).unwrap();
    assert_eq!(ready(queue.publish(&tasks(1, count))), Ok(Published { accepted: count, is_full: false }));
    queue
}

fn pull(queue: &MemoryQueue, max: usize) -> Vec<Held> {
    ready(queue.pull(&run(), Class::Large, max, SECOND)).unwrap()
}

fn counts(queue: &MemoryQueue) -> (u64, u64) {
    let counts = ready(queue.counts(&run())).unwrap();
    (counts.waiting, counts.held)
}

#[test]
fn tasks_come_in_order_and_again_if_they_lapse() {
    let queue = queue(3);
    let first = pull(&queue, 2);
    assert_eq!(first.len(), 2);
    assert_eq!(Task::parse(&first[0].message).unwrap(), tasks(1, 1)[0]);
    assert_eq!(counts(&queue), (1, 2));
    queue.advance_to(ACK_WAIT / 2);
    ready(queue.extend(&first[0].delivery)).unwrap();
    queue.advance_to(ACK_WAIT);
    assert_eq!(counts(&queue), (2, 1));
    let again = pull(&queue, 9);
    assert_eq!(again.iter().map(|held| held.deliveries).collect::<Vec<_>>(), [2, 1]);
    // The late acknowledgement of the lapsed delivery is accepted.
    ready(queue.acknowledge(&first[1].delivery)).unwrap();
    assert_eq!(counts(&queue), (0, 2));
    queue.advance_to(ACK_WAIT + ACK_WAIT / 2);
    assert_eq!(counts(&queue), (1, 1));
}

#[test]
fn what_is_given_back_comes_after_the_delay_and_what_is_discarded_never() {
    let queue = queue(2);
    let held = pull(&queue, 2);
    ready(queue.give_back(&held[0].delivery, 5 * SECOND)).unwrap();
    ready(queue.discard(&held[1].delivery)).unwrap();
    assert_eq!(counts(&queue), (1, 0));
    assert_eq!(pull(&queue, 2), []);
    queue.advance_to(5 * SECOND);
    assert_eq!(pull(&queue, 2).len(), 1);
}

#[test]
fn a_task_with_a_known_id_is_dropped_for_an_hour_even_after_its_end() {
    let queue = queue(1);
    let held = pull(&queue, 1);
    ready(queue.acknowledge(&held[0].delivery)).unwrap();
    assert_eq!(ready(queue.publish(&tasks(1, 1))).unwrap().accepted, 1);
    assert_eq!(pull(&queue, 1), []);
    ready(queue.publish(&tasks(2, 1))).unwrap();
    assert_eq!(pull(&queue, 1).len(), 1, "another round has another id");
    queue.advance_to(3600 * SECOND);
    ready(queue.publish(&tasks(1, 1))).unwrap();
    assert_eq!(pull(&queue, 2).len(), 2);
}

/// F7
#[test]
fn a_full_queue_takes_no_more_until_it_drains() {
    let queue = queue(0);
    queue.set_capacity(1_000);
    let published = ready(queue.publish(&tasks(1, 10))).unwrap();
    assert!(published.is_full && (1..10).contains(&published.accepted), "{published:?}");
    let held = pull(&queue, 1);
    ready(queue.acknowledge(&held[0].delivery)).unwrap();
    let rest = &tasks(1, 10)[published.accepted..];
    assert_eq!(ready(queue.publish(rest)), Ok(Published { accepted: 1, is_full: true }));
}

#[test]
fn keys_are_taken_once_renewed_by_revision_and_gone_after_their_time() {
    let queue = MemoryQueue::new(1);
    let create = |value: &'static str| ready(queue.create("lease.a.0", value.into(), 2 * SECOND)).unwrap();
    let first = create("w1").unwrap();
    assert_eq!(create("w2"), None);
    queue.advance_to(SECOND);
    let renew = |revision| ready(queue.renew("lease.a.0", "w1".into(), revision, 2 * SECOND)).unwrap();
    let second = renew(first).unwrap();
    assert_eq!(renew(first), None);
    queue.advance_to(2 * SECOND);
    assert_eq!(ready(queue.list("lease.")).unwrap().len(), 1);
    assert_eq!(ready(queue.list("worker.")).unwrap(), []);
    queue.advance_to(3 * SECOND);
    assert_eq!(ready(queue.list("lease.")).unwrap(), []);
    assert_eq!(renew(second), None);
    let third = create("w2").unwrap();
    ready(queue.remove("lease.a.0", second)).unwrap();
    assert_eq!(ready(queue.list("lease.")).unwrap()[0].revision, third);
    ready(queue.remove("lease.a.0", third)).unwrap();
    assert!(create("w3").is_some());
}

#[test]
fn a_killed_queue_forgets_deliveries_and_a_wiped_one_everything() {
    let queue = queue(2);
    pull(&queue, 2);
    queue.forget_deliveries();
    assert_eq!(counts(&queue), (2, 0));
    assert_eq!(pull(&queue, 2)[0].deliveries, 1);
    queue.wipe();
    assert!(matches!(ready(queue.counts(&run())), Err(QueueError::Missing(_))));
    ready(queue.open(&run())).unwrap();
    ready(queue.publish(&tasks(1, 2))).unwrap();
    assert_eq!(counts(&queue), (2, 0));
    queue.hide_tasks();
    ready(queue.publish(&tasks(1, 2))).unwrap();
    assert_eq!(counts(&queue), (0, 0));
}

#[test]
fn connections_are_cut_one_by_one_and_frozen_together() {
    let queue = queue(1);
    let other = queue.connect();
    queue.cut(true);
    assert!(matches!(ready(queue.counts(&run())), Err(QueueError::Unreachable(_))));
    assert!(ready(other.counts(&run())).is_ok());
    queue.cut(false);
    other.freeze(true);
    assert!(matches!(ready(queue.counts(&run())), Err(QueueError::Unreachable(_))));
}

#[test]
fn a_queue_with_faults_loses_and_repeats() {
    let queue = queue(100);
    queue.set_faults(Faults { loss: 0.0, copies: 3, is_reordered: true });
    let mut pulled = pull(&queue, 1000);
    assert_eq!(pulled.len(), 300);
    assert_ne!(Task::parse(&pulled[0].message).unwrap(), tasks(1, 1)[0]);
    queue.set_faults(Faults { loss: 0.3, ..Faults::default() });
    pulled.retain(|held| ready(queue.acknowledge(&held.delivery)).is_ok());
    assert!((170..250).contains(&pulled.len()), "{} of 300", pulled.len());
}

#[test]
fn reports_reach_the_planner_of_their_run() {
    let queue = queue(0);
    let mut reports = ready(queue.reports(&run())).unwrap();
    let worker = WorkerId::parse("w").unwrap();
    let report = Report::Stat(crate::message::Stat::new(worker.clone()));
    ready(queue.report(&run(), &worker, &report)).unwrap();
    ready(queue.report(&RunId::parse("other").unwrap(), &worker, &report)).unwrap();
    assert_eq!(reports.try_recv(), Ok(report));
    assert!(reports.try_recv().is_err());
}
