//! gzip as zlib reads it for apt: several members with padding behind them, or plain text.

use std::io::{self, BufRead, Read as _};

use flate2::bufread::GzDecoder;

/// First byte of every member (RFC 1952). No text begins with it.
const MAGIC: u8 = 0x1f;

/// Decompresses members until the input continues with other bytes, which are padding.
pub(super) struct GzipDecoder<R: BufRead> {
    /// `None` only within a call of `read`.
    state: Option<State<R>>,
}

enum State<R: BufRead> {
    Start(R),
    Member(Box<GzDecoder<R>>),
    Plain(R),
    End(R),
}

impl<R: BufRead> GzipDecoder<R> {
    pub(super) fn new(input: R) -> Self {
        GzipDecoder { state: Some(State::Start(input)) }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let (state, outcome) = match self.state.take() {
                Some(State::Start(input)) => enter(input, true),
                Some(State::Member(mut decoder)) => match decoder.read(buffer) {
                    Ok(0) if !buffer.is_empty() => enter(decoder.into_inner(), false),
                    outcome => (State::Member(decoder), outcome.map(Some)),
                },
                Some(State::Plain(mut input)) => {
                    let outcome = input.read(buffer).map(Some);
                    (State::Plain(input), outcome)
                }
                Some(State::End(input)) => (State::End(input), Ok(Some(0))),
                None => return Ok(0),
            };
            self.state = Some(state);
            if let Some(count) = outcome? {
                return Ok(count);
            }
        }
    }

    pub(super) fn into_inner(self) -> R {
        match self.state.expect("every call of read puts a state back") {
            State::Start(input) | State::Plain(input) | State::End(input) => input,
            State::Member(decoder) => decoder.into_inner(),
        }
    }
}

/// The next state, by the next byte. The result has no count, because nothing was read yet.
fn enter<R: BufRead>(mut input: R, is_first: bool) -> (State<R>, io::Result<Option<usize>>) {
    match input.fill_buf().map(|bytes| bytes.first().copied()) {
        Ok(Some(MAGIC)) => (State::Member(Box::new(GzDecoder::new(input))), Ok(None)),
        Ok(Some(_)) if is_first => (State::Plain(input), Ok(None)),
        Ok(_) => (State::End(input), Ok(None)),
        Err(error) if is_first => (State::Start(input), Err(error)),
        Err(error) => (State::End(input), Err(error)),
    }
}
