//! What the two ends of a probe say to each other: orders and answers, as JSON in
//! [`Message::Counters`]. Content goes as in a copy, and is acknowledged as there.

use serde::{Deserialize, Serialize};

use super::compute::Compute;
use super::flow::{Flow, Landed};
use super::read::ReadFigures;
use super::tree::Tree;
use super::write::WriteFigures;
use crate::wire::{CONTROL_BYTES, Message};

/// Longest time that a trial may be ordered to take, seconds.
const LONGEST_TRIAL_S: f64 = 600.0;
/// What may be under way, bytes: a copy's own window, and enough to begin with.
const ALLOWANCE: (u64, u64) = (64 << 10, 256 << 20);

/// Where content comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceMode {
    /// Blocks of bytes that do not compress, made once.
    Memory,
    /// Records of small files of this length, made once.
    SmallMemory(u32),
    /// The source's big files.
    Big,
    /// The source's small files.
    Small,
}

/// Where content goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SinkMode {
    /// Thrown away.
    Drop,
    /// Its hash compared, then thrown away.
    Verify,
    /// Its hash compared, then written to files without names.
    Write,
}

/// What an end shall do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Count the tree, and remember files to try.
    Scan {
        /// Longest time.
        seconds: f64,
        /// Stay on its file system.
        one_file_system: bool,
    },
    /// Try processor-bound work.
    Compute,
    /// Read files.
    Read {
        /// For all trials together.
        seconds: f64,
    },
    /// Write files.
    Write {
        /// For all trials together.
        seconds: f64,
        /// Length of small files; none of them for 0.
        small_bytes: u32,
        /// Try big files.
        big: bool,
    },
    /// Send content.
    Send {
        /// What.
        source_mode: SourceMode,
        /// How long.
        seconds: f64,
        /// At most so many bytes.
        bytes: u64,
        /// So many bytes may be under way at first.
        allowance: u64,
    },
    /// Receive content.
    Receive {
        /// What becomes of it.
        sink: SinkMode,
    },
}

impl Request {
    /// Takes no longer than this.
    pub(super) fn within(mut self, most_s: f64) -> Request {
        if let Request::Scan { seconds, .. } | Request::Read { seconds } | Request::Write { seconds, .. } = &mut self {
            *seconds = seconds.min(most_s);
        }
        self
    }

    /// Within bounds, whatever the other end says.
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

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Of [`Request::Scan`].
    Scanned(Tree),
    /// Of [`Request::Compute`].
    Computed(Compute),
    /// Of [`Request::Read`].
    Read(Box<ReadFigures>),
    /// Of [`Request::Write`].
    Written(Box<WriteFigures>),
    /// Of [`Request::Send`].
    Sent(Box<Flow>),
    /// Of [`Request::Receive`].
    Received(Box<Landed>),
    /// It could not be done.
    Failed {
        /// As the program's exit code would be.
        exit_code: u8,
        /// Why.
        text: String,
    },
}

/// One word of the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// The near end's.
    #[serde(rename = "order")]
    Request(Request),
    /// All content of a trial was sent and acknowledged.
    End,
    /// The far end's.
    Answer(Answer),
}

impl Word {
    /// For the wire.
    pub fn message(&self) -> Message {
        Message::Counters(serde_json::to_vec(self).unwrap_or_default())
    }

    /// From the wire; nothing if it makes no sense.
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
