//! Permits taken and given back, one by one and by many threads.

use proptest::prelude::*;

use super::*;

/// Polls once with a waker that does nothing.
fn poll(acquire: &mut Acquire) -> Option<Permit> {
    let mut context = Context::from_waker(Waker::noop());
    match Pin::new(acquire).poll(&mut context) {
        Poll::Ready(permit) => Some(permit),
        Poll::Pending => None,
    }
}

#[test]
fn bytes_and_items_both_bound_the_window() {
    let window = Window::new(100, 2);
    let first = window.try_acquire(60).expect("room");
    assert!(window.try_acquire(41).is_none(), "too many bytes");
    let second = window.try_acquire(10).expect("room");
    assert!(window.try_acquire(1).is_none(), "too many items");
    assert!(poll(&mut window.acquire_bytes(30)).is_some(), "bytes of an item that has its permit");
    drop((first, second));
    assert_eq!(window.reading().held_bytes, 0);
}

#[test]
fn a_permit_bigger_than_the_window_has_it_to_itself() {
    let window = Window::new(100, 10);
    let big = window.acquire_blocking(1_000_000);
    assert_eq!(big.bytes(), 100);
    assert!(window.try_acquire(1).is_none());
}

#[test]
fn nobody_overtakes_a_big_permit() {
    let window = Window::new(100, 10);
    let held = window.try_acquire(50).expect("room");
    let mut big = window.acquire(80);
    assert!(poll(&mut big).is_none());
    let mut small = window.acquire(10);
    assert!(poll(&mut small).is_none(), "waits behind the big one");
    assert!(window.try_acquire(10).is_none());
    drop(held);
    let big = poll(&mut big).expect("served first");
    assert!(poll(&mut small).is_some());
    drop(big);
}

#[test]
fn a_waiter_that_gives_up_lets_the_next_ones_through() {
    let window = Window::new(100, 10);
    let held = window.try_acquire(50).expect("room");
    let mut big = window.acquire(80);
    let mut small = window.acquire(10);
    assert!(poll(&mut big).is_none() && poll(&mut small).is_none());
    drop(big);
    assert!(poll(&mut small).is_some());
    drop(held);
    let mut granted = window.acquire(100);
    let held = window.try_acquire(1).expect("room");
    assert!(poll(&mut granted).is_none());
    drop(held);
    // Served, but dropped before it looked: the bytes must come home.
    drop(granted);
    assert_eq!(window.reading().held_bytes, 0);
    window.flush_blocking();
}

#[test]
fn bytes_are_counted_where_they_stand() {
    let window = Window::new(1000, 10);
    let mut permit = window.acquire_blocking(300);
    permit.at(Position::OnTheWire);
    let mut chunk = permit.split(100);
    chunk.at(Position::Before(Operation::Hash));
    let positions = window.reading().positions;
    assert_eq!(
        positions,
        PositionBytes::default().with(Position::OnTheWire, 200).with(Position::Before(Operation::Hash), 100)
    );
    chunk.at(Position::In(Operation::Write));
    permit.shrink(50);
    assert_eq!(window.reading().held_bytes, 150);
    drop(permit);
    let positions = window.reading().positions;
    assert_eq!(positions, PositionBytes::default().with(Position::In(Operation::Write), 100));
    drop(chunk);
    assert_eq!(window.reading().positions.total(), 0);
}

#[test]
fn flush_waits_for_the_last_permit_even_an_empty_one() {
    let window = Window::new(1000, 10);
    let mut permit = window.acquire_blocking(10);
    let part = permit.split(10);
    drop(permit);
    let flushed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    thread::scope(|scope| {
        let flushed = &flushed;
        let waiting = window.clone();
        scope.spawn(move || {
            waiting.flush_blocking();
            flushed.store(true, Ordering::SeqCst);
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!flushed.load(Ordering::SeqCst));
        drop(part);
    });
    assert!(flushed.load(Ordering::SeqCst));
}

#[test]
fn time_without_permits_is_measured() {
    let window = Window::new(10, 10);
    let held = window.acquire_blocking(10);
    let begun = Instant::now();
    let mut waiting = window.acquire(1);
    assert!(poll(&mut waiting).is_none());
    let wait = Duration::from_millis(30);
    thread::sleep(wait);
    drop(held);
    let within = wait.as_nanos() as u64..=begun.elapsed().as_nanos() as u64;
    let reading = window.reading();
    assert!(within.contains(&reading.exhausted_ns), "{reading:?}");
    assert_eq!(reading.waits, 1);
    assert!(poll(&mut waiting).is_some());
    assert_eq!(window.reading().exhausted_ns, reading.exhausted_ns, "nobody waits any more");
}

/// Many threads and tasks take and return permits on other threads. A lost
/// wake-up would hang the test; a permit too many is seen by the counter.
#[test]
fn under_stress_the_window_is_never_exceeded_and_nobody_is_forgotten() {
    const BYTES: u64 = 1000;
    const TURNS: u64 = 2000;
    let window = Window::new(BYTES, 7);
    let held = Arc::new(AtomicU64::new(0));
    let (give, take) = std::sync::mpsc::channel::<(Permit, u64)>();
    let counter = held.clone();
    let returner = thread::spawn(move || {
        for (permit, bytes) in take {
            counter.fetch_sub(bytes, Ordering::SeqCst);
            drop(permit);
        }
    });
    let work = |seed: u64, window: Window, held: Arc<AtomicU64>, give: std::sync::mpsc::Sender<_>| {
        move |permit: Permit, turn: u64| {
            let bytes = permit.bytes();
            let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
            assert!(now <= BYTES, "{now} bytes out");
            if (seed + turn).is_multiple_of(3) {
                held.fetch_sub(bytes, Ordering::SeqCst);
                drop(permit);
            } else {
                let _ = give.send((permit, bytes));
            }
            drop(window.try_acquire(1));
        }
    };
    let size = |seed: u64, turn: u64| (seed * 7919 + turn * 104_729) % 1300;
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let window = window.clone();
            let turn_of = work(seed, window.clone(), held.clone(), give.clone());
            thread::spawn(move || (0..TURNS).for_each(|turn| turn_of(window.acquire_blocking(size(seed, turn)), turn)))
        })
        .collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime");
    let tasks: Vec<_> = (4..8)
        .map(|seed| {
            let window = window.clone();
            let turn_of = work(seed, window.clone(), held.clone(), give.clone());
            runtime.spawn(async move {
                for turn in 0..TURNS {
                    // Some give up while they wait.
                    let wait = window.acquire(size(seed, turn));
                    if let Ok(permit) = tokio::time::timeout(Duration::from_millis(turn % 2), wait).await {
                        turn_of(permit, turn);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no assertion failed"));
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("no assertion failed");
        }
    });
    drop(give);
    returner.join().expect("no panic");
    window.flush_blocking();
    let reading = window.reading();
    assert_eq!((reading.held_bytes, reading.held_items, reading.positions.total()), (0, 0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Try(u64),
    Wait(u64),
    GiveUp(usize),
    Return(usize),
    Split(usize, u64),
    Shrink(usize, u64),
    Move(usize, Position),
}

fn step() -> impl Strategy<Value = Step> {
    let position = prop_oneof![
        Just(Position::OnTheWire),
        Just(Position::In(Operation::Hash)),
        Just(Position::Before(Operation::Send)),
        Just(Position::AwaitingAcknowledgement)
    ];
    prop_oneof![
        (0..200_u64).prop_map(Step::Try),
        (0..200_u64).prop_map(Step::Wait),
        (0..9_usize).prop_map(Step::GiveUp),
        (0..9_usize).prop_map(Step::Return),
        (0..9_usize, 0..200_u64).prop_map(|(at, bytes)| Step::Split(at, bytes)),
        (0..9_usize, 0..200_u64).prop_map(|(at, bytes)| Step::Shrink(at, bytes)),
        (0..9_usize, position).prop_map(|(at, position)| Step::Move(at, position)),
    ]
}

proptest! {
    #[test]
    fn every_permit_comes_home(bytes in 1..150_u64, items in 1..5_u32, steps in prop::collection::vec(step(), 0..80)) {
        let window = Window::new(bytes, items);
        let mut permits: Vec<Permit> = Vec::new();
        let mut waiting: Vec<Acquire> = Vec::new();
        for step in steps {
            match step {
                Step::Try(bytes) => permits.extend(window.try_acquire(bytes)),
                Step::Wait(bytes) => waiting.push(window.acquire(bytes)),
                Step::GiveUp(at) if at < waiting.len() => drop(waiting.remove(at)),
                Step::Return(at) if at < permits.len() => drop(permits.remove(at)),
                Step::Split(at, bytes) if at < permits.len() => {
                    let part = permits[at].split(bytes);
                    permits.push(part);
                }
                Step::Shrink(at, bytes) if at < permits.len() => permits[at].shrink(bytes),
                Step::Move(at, position) if at < permits.len() => permits[at].at(position),
                _ => (),
            }
            let mut still = Vec::new();
            for mut acquire in waiting {
                match poll(&mut acquire) {
                    Some(permit) => permits.push(permit),
                    None => still.push(acquire),
                }
            }
            waiting = still;
            let reading = window.reading();
            let held: u64 = permits.iter().map(Permit::bytes).sum();
            prop_assert!(held <= bytes && reading.held_items <= items);
            prop_assert_eq!(reading.held_bytes, held);
            prop_assert_eq!(reading.positions.total(), held);
        }
        // With all permits returned, everyone who waits is served in turn.
        permits.clear();
        for mut acquire in waiting {
            prop_assert!(poll(&mut acquire).is_some());
        }
        prop_assert_eq!(window.reading().held_bytes, 0);
        prop_assert_eq!(window.reading().held_items, 0);
    }
}
