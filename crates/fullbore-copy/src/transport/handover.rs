//! Moves messages from ssh's pipe to a direct connection, while they flow.
//!
//! The pipe exists at once; other connections take round trips. So control messages, and a little content, go through
//! the pipe from the first moment. Once a connection has proved its key, each direction moves by itself. Its last
//! message in the pipe is [`Message::Switch`]; later ones go through the connection. Messages keep their order, and
//! neither end waits for the other. Lists of many files are held back for a moment, as ssh would encrypt and decrypt
//! them in two more processes.
//!
//! [`Message::Switch`]: crate::wire::Message::Switch

use std::io::{Read, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stream::Stream;

/// Bytes of content that the pipe carries until it is known whether there is a better way. Many small copies have no
/// more, and ssh's connection sends this in its first round trips. One record may exceed it.
pub(crate) const FIRST_BYTES: usize = 256 << 10;

/// How long control messages are held back once the pipe has enough bytes. On a short path the connection exists by
/// then; on a long one ssh still has data to send.
const HELD_FOR: Duration = Duration::from_millis(100);

/// The content that the pipe carries, besides control messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// This number of bytes; then wait for the decision.
    First(usize),
    /// All content: there is nothing better.
    All,
    /// No more content.
    Nothing,
}

/// The stream that takes over control messages, and the content that the pipe carries until then.
#[derive(Debug)]
pub(super) struct Handover {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    content: Content,
    reader: Option<Box<dyn Read + Send>>,
    writer: Option<Box<dyn Write + Send>>,
    /// Whether the path of the connection is short.
    is_short: bool,
    /// Whether this end has announced the switch to the connection, or is about to.
    said: bool,
    over: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("State")
            .field("content", &self.content)
            .field("said", &self.said)
            .finish_non_exhaustive()
    }
}

impl Default for Handover {
    fn default() -> Handover {
        let state = State {
            content: Content::First(FIRST_BYTES),
            reader: None,
            writer: None,
            is_short: false,
            said: false,
            over: false,
        };
        Handover { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl Handover {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Offers a stream for control messages. `is_short` tells whether its path is short.
    pub(super) fn offer(&self, stream: Stream, is_short: bool) {
        self.change(|state| {
            (state.reader, state.writer, state.content) = (Some(stream.reader), Some(stream.writer), Content::Nothing);
            state.is_short = is_short;
        });
    }

    /// Whether the path of the connection is short.
    pub(super) fn is_short(&self) -> bool {
        self.lock().is_short
    }

    /// The pipe carries everything to the end.
    pub(super) fn stay(&self) {
        self.change(|state| state.content = Content::All);
    }

    /// Ends all waits.
    pub(super) fn end(&self) {
        self.change(|state| (state.over, state.content) = (true, Content::Nothing));
    }

    /// Whether this end still has to announce the switch; true only once.
    pub(super) fn is_to_be_said(&self) -> bool {
        !std::mem::replace(&mut self.lock().said, true)
    }

    /// The writer of the new stream, to be used from now on.
    pub(super) fn writer(&self) -> Option<Box<dyn Write + Send>> {
        self.lock().writer.take()
    }

    /// The reader of the new stream. The other end has announced it, so it exists or is about to.
    pub(super) fn reader(&self, within: Duration) -> Option<Box<dyn Read + Send>> {
        let until = Instant::now() + within;
        let mut state = self.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.reader.is_some() || state.over || left.is_zero() {
                return state.reader.take();
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the pipe may carry another record. Returns false if there is a better way, or the run is over.
    pub(super) fn may_carry(&self) -> bool {
        let mut state = self.lock();
        while state.content == Content::First(0) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.content != Content::Nothing
    }

    /// Whether this number of bytes is enough for the pipe for now.
    pub(super) fn is_enough(bytes: u64) -> bool {
        bytes >= FIRST_BYTES as u64
    }

    /// Waits for a decision, but only for a moment.
    pub(super) fn hold_back(&self) {
        let undecided = |state: &mut State| matches!(state.content, Content::First(_));
        drop(self.changed.wait_timeout_while(self.lock(), HELD_FOR, undecided));
    }

    /// Counts content that the pipe carries.
    pub(super) fn carry(&self, bytes: usize) {
        if let Content::First(left) = &mut self.lock().content {
            *left = left.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pipe_carries_a_little_and_then_what_was_decided() {
        let handover = Handover::default();
        handover.carry(FIRST_BYTES - 1);
        assert!(handover.may_carry());
        handover.carry(2);
        assert_eq!(handover.lock().content, Content::First(0));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| handover.may_carry());
            handover.stay();
            assert!(waiting.join().unwrap());
        });
        handover.carry(FIRST_BYTES * 2);
        assert!(handover.may_carry());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| handover.reader(Duration::from_secs(3600)));
            handover.offer(Stream::pipe(std::io::empty(), std::io::sink()), false);
            assert!(waiting.join().unwrap().is_some());
        });
        assert!(!handover.may_carry() && handover.writer().is_some());
        assert!(handover.is_to_be_said() && !handover.is_to_be_said());
        // It is decided: nothing is held back.
        assert!(!Handover::is_enough(FIRST_BYTES as u64 - 1) && Handover::is_enough(FIRST_BYTES as u64));
        handover.hold_back();
        handover.end();
        assert!(handover.reader(Duration::from_secs(3600)).is_none());
    }
}
