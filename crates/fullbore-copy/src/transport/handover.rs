//! From ssh's pipe to a connection of our own, while messages flow.
//!
//! The pipe is there at once, other connections take round trips. So control messages, and a little content, go by
//! the pipe from the first moment. When there is a connection that proved its key, each direction is handed over by
//! itself: the last thing that is said by the pipe is [`Message::Switch`], and what follows goes by the connection.
//! So messages keep their order, and neither end waits for the other. Lists of many files are rather held back for a
//! moment: ssh would encrypt and decrypt them in two more processes.
//!
//! [`Message::Switch`]: crate::wire::Message::Switch

use std::io::{Read, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stream::Stream;

/// Content that goes by the pipe until it is known whether there is anything better, in bytes: what many a small
/// copy has in all, and what ssh's own connection sends in its first round trips. One record may exceed it.
pub(crate) const FIRST_BYTES: usize = 256 << 10;

/// How long control messages beyond so many bytes are held back. On a short path the connection is there by then; on
/// a long one ssh has not yet sent what it has.
const HELD_FOR: Duration = Duration::from_millis(100);

/// What the pipe carries besides control messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// So many bytes; then it is waited for what is decided.
    First(usize),
    /// All of it: there is nothing better.
    All,
    /// Nothing any more.
    Nothing,
}

/// Where control messages go on, and what the pipe carries until then.
#[derive(Debug)]
pub(super) struct Handover {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    content: Content,
    reader: Option<Box<dyn Read + Send>>,
    writer: Option<Box<dyn Write + Send>>,
    /// The path of the connection is.
    is_short: bool,
    /// This end has said, or is about to say, that it goes on by the connection.
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

    /// Control messages may go on by this stream; whether its path is short.
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

    /// The pipe carries everything, to the end.
    pub(super) fn stay(&self) {
        self.change(|state| state.content = Content::All);
    }

    /// Nobody waits any more.
    pub(super) fn end(&self) {
        self.change(|state| (state.over, state.content) = (true, Content::Nothing));
    }

    /// Whether this end has yet to say that it goes on by the connection; only once.
    pub(super) fn is_to_be_said(&self) -> bool {
        !std::mem::replace(&mut self.lock().said, true)
    }

    /// Where to write from now on.
    pub(super) fn writer(&self) -> Option<Box<dyn Write + Send>> {
        self.lock().writer.take()
    }

    /// Where to read from now on: the other end has said so, and its connection is here or about to come.
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

    /// Waits until the pipe may carry another record. No, if there is something better, or the run is over.
    pub(super) fn may_carry(&self) -> bool {
        let mut state = self.lock();
        while state.content == Content::First(0) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.content != Content::Nothing
    }

    /// Whether the pipe has got enough for now, with so many bytes.
    pub(super) fn is_enough(bytes: u64) -> bool {
        bytes >= FIRST_BYTES as u64
    }

    /// Waits until something is decided, but for a moment only.
    pub(super) fn hold_back(&self) {
        let undecided = |state: &mut State| matches!(state.content, Content::First(_));
        drop(self.changed.wait_timeout_while(self.lock(), HELD_FOR, undecided));
    }

    /// It carries so much of content.
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
