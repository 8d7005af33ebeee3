//! Messages between the two ends of a probe: requests and answers, as JSON in [`Message::Counters`]. Content and
//! acknowledgements travel as in a copy.

use serde::{Deserialize, Serialize};

use super::compute::Compute;
use super::flow::{Flow, Landed};
use super::read::ReadFigures;
use super::tree::Tree;
use super::write::WriteFigures;
use crate::wire::{CONTROL_BYTES, Message};

/// Longest trial that a request may ask for, in seconds.
const LONGEST_TRIAL_S: f64 = 600.0;
/// Least and most bytes in flight that a request may allow: enough to begin, and a copy's own window.
const ALLOWANCE: (u64, u64) = (64 << 10, 256 << 20);

/// Where a trial's content comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceMode {
    /// Blocks of incompressible bytes, made once in memory.
    Memory,
    /// Records of small files of this length in bytes, made once in memory.
    SmallMemory(u32),
    /// The big files of the source.
    Big,
    /// The small files of the source.
    Small,
}

/// What the receiver does with a trial's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SinkMode {
    /// Discards it.
    Drop,
    /// Verifies its hash, then discards it.
    Verify,
    /// Verifies its hash, then writes it to files without names.
    Write,
}

/// A request to an end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Scan the tree, and sample files for the trials.
    Scan {
        /// Time limit in seconds.
        seconds: f64,
        /// Stay on the source's file system.
        one_file_system: bool,
    },
    /// Measure processor-bound work.
    Compute,
    /// Run the reading trials.
    Read {
        /// Time limit of all reading trials, in seconds.
        seconds: f64,
    },
    /// Run the writing trials.
    Write {
        /// Time limit of all writing trials, in seconds.
        seconds: f64,
        /// Length of the small files in bytes; 0 for no trial of small files.
        small_bytes: u32,
        /// Whether to try big files.
        big: bool,
    },
    /// Send content to the other end.
    Send {
        /// Where the content comes from.
        #[serde(rename = "supply")]
        source_mode: SourceMode,
        /// Time limit in seconds.
        seconds: f64,
        /// Most bytes to send.
        bytes: u64,
        /// Bytes that may be in flight at first.
        allowance: u64,
    },
    /// Receive content from the other end.
    Receive {
        /// What to do with the content.
        #[serde(rename = "fate")]
        sink: SinkMode,
    },
}

impl Request {
    /// Shortens the request's time limit to `most_s` seconds.
    pub(super) fn within(mut self, most_s: f64) -> Request {
        if let Request::Scan { seconds, .. } | Request::Read { seconds } | Request::Write { seconds, .. } = &mut self {
            *seconds = seconds.min(most_s);
        }
        self
    }

    /// Clamps times and sizes to their bounds, whatever the other end asked for.
    pub(super) fn bounded(mut self) -> Request {
        match &mut self {
            Request::Scan { seconds, .. } | Request::Read { seconds } | Request::Write { seconds, .. } => {
                bound(seconds)
            }
            Request::Send { seconds, allowance, .. } => {
                bound(seconds);
                *allowance = (*allowance).clamp(ALLOWANCE.0, ALLOWANCE.1);
            }
            Request::Compute | Request::Receive { .. } => {}
        }
        self
    }
}

fn bound(seconds: &mut f64) {
    *seconds = if seconds.is_finite() { seconds.clamp(0.0, LONGEST_TRIAL_S) } else { 0.0 };
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Answers [`Request::Scan`].
    Scanned(Tree),
    /// Answers [`Request::Compute`].
    Computed(Compute),
    /// Answers [`Request::Read`].
    Read(Box<ReadFigures>),
    /// Answers [`Request::Write`].
    Written(Box<WriteFigures>),
    /// Answers [`Request::Send`].
    Sent(Box<Flow>),
    /// Answers [`Request::Receive`].
    Received(Box<Landed>),
    /// The request failed.
    Failed {
        /// The exit code of the program for this error.
        exit_code: u8,
        /// The error message.
        text: String,
    },
}

/// One message between the two ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// A request of the near end.
    #[serde(rename = "order")]
    Request(Request),
    /// The sender has sent all content of a trial, and all of it was acknowledged.
    End,
    /// An answer of the far end.
    Answer(Answer),
}

impl Word {
    /// Encodes it for the wire.
    pub fn message(&self) -> Message {
        Message::Counters(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Parses a message from the wire; `None` if it is malformed.
    pub fn parse(json: &[u8]) -> Option<Word> {
        if json.len() > CONTROL_BYTES {
            return None;
        }
        match serde_json::from_slice(json).ok()? {
            Word::Request(order) => Some(Word::Request(order.bounded())),
            word => Some(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_said_is_heard_and_claims_are_bounded() {
        let order = Request::Send { source_mode: SourceMode::Big, seconds: 1e9, bytes: 5, allowance: u64::MAX };
        let Message::Counters(json) = Word::Request(order).message() else { panic!("not counters") };
        let heard = Request::Send { source_mode: SourceMode::Big, seconds: 600.0, bytes: 5, allowance: 256 << 20 };
        assert_eq!(Word::parse(&json), Some(Word::Request(heard)));
        assert_eq!(Word::parse(b"{\"order\":\"dance\"}"), None);
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Word::parse(&bytes);
        }
    }
}
