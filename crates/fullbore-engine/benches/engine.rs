//! What single steps of the engine cost: a permit, a hand-over, a clock.

use std::sync::Arc;

use divan::{Bencher, black_box};
use fullbore_engine::buffers::Buffers;
use fullbore_engine::pipeline::channel;
use fullbore_engine::stage::{Kind, Ledger, StageClock};
use fullbore_engine::window::{Operation, Position, Window};

fn main() {
    divan::main();
}

fn clock(on: bool) -> Arc<StageClock> {
    let ledger = if on { Ledger::new() } else { Ledger::off() };
    ledger.stage("bench", Kind::Thread)
}

#[divan::bench]
fn permit_taken_and_returned(bencher: Bencher<'_, '_>) {
    let window = Window::new(1 << 30, 1 << 20);
    bencher.bench(|| window.try_acquire(black_box(65_536)));
}

#[divan::bench]
fn permit_through_four_places(bencher: Bencher<'_, '_>) {
    let window = Window::new(1 << 30, 1 << 20);
    bencher.bench(|| {
        let mut permit = window.acquire_blocking(65_536);
        for position in [
            Position::OnTheWire,
            Position::Before(Operation::Hash),
            Position::In(Operation::Hash),
            Position::In(Operation::Write),
        ] {
            permit.at(position);
        }
    });
}

#[divan::bench(args = [true, false])]
fn items_counted(bencher: Bencher<'_, '_>, on: bool) {
    let clock = clock(on);
    bencher.bench(|| clock.add_items(1, black_box(1000)));
}

#[divan::bench(args = [true, false])]
fn device_call_timed(bencher: Bencher<'_, '_>, on: bool) {
    let clock = clock(on);
    bencher.bench(|| clock.device(|| black_box(1)));
}

#[divan::bench(args = [true, false])]
fn hand_over_without_waiting(bencher: Bencher<'_, '_>, on: bool) {
    let clock = clock(on);
    let (sender, mut receiver) = channel(16, &clock, &clock);
    bencher.bench_local(move || {
        let _ = sender.send_blocking(black_box(1_u64));
        receiver.recv_blocking()
    });
}

#[divan::bench]
fn buffer_refilled(bencher: Bencher<'_, '_>) {
    let buffers = Buffers::new(16);
    let mut inbox = buffers.take();
    bencher.bench_local(move || {
        buffers.refill(&mut inbox);
        let room = inbox.capacity() - inbox.len();
        // As a read of a socket would fill it.
        inbox.resize(inbox.len() + room.min(65_536), 0);
        inbox.split().freeze()
    });
}
