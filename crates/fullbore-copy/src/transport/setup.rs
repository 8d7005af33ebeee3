//! What the two ends say by way of ssh before messages flow: lines of JSON.
//!
//! Both speak at once, so that no round trip is lost: the far end tells its version, its throw-away key and where it
//! listens, and then, when it has heard the task, whether that can be done; the near end tells the task, its own key
//! and where it listens. What the near end decides on then goes among the messages. Whatever a login shell prints
//! before is skipped.

use std::fmt;
use std::io::{BufRead, Read as _, Write};
use std::net::IpAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::keys::Speeds;
use crate::error::CopyError;
use crate::options::Options;
use crate::overlap::Whereabouts;

/// First word of each line.
const MAGIC: &str = "fullbore-copy";
/// Longest line of the near end, in bytes. The task has all filters in it.
pub(crate) const TASK_BYTES: u64 = 256 << 20;
/// Longest line of the far end, in bytes: where a hundred thousand sources lie. A guess; a command line has fewer.
pub(crate) const ANSWER_BYTES: u64 = 16 << 20;
/// What a login shell may print before.
const BANNER_BYTES: usize = 64 << 10;

/// What the far end says first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol ([`crate::wire::VERSION`]).
    pub version: u32,
    /// Version of the program on the other machine.
    pub program: String,
    /// Public key of the other machine, made for this run only.
    #[serde(default)]
    pub key: Vec<u8>,
    /// TCP port on which the other machine listens, if it does.
    #[serde(default)]
    pub port: Option<u16>,
    /// By which address ssh reached it.
    #[serde(default)]
    pub address: Option<IpAddr>,
    /// Encryption speed of the other machine, if measured.
    #[serde(default)]
    pub speeds: Option<Speeds>,
}

/// Which end of a copy sends and which receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The far end sends.
    Send,
    /// The far end receives.
    Receive,
    /// The far end has the source of a probe.
    ProbeSource,
    /// The far end has the destination of a probe.
    ProbeTarget,
}

/// What the near end says: the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// What the other machine shall do.
    pub role: Role,
    /// Options that the user gave for the copy.
    pub options: Options,
    /// Paths of the sources, if the far end sends.
    pub sources: Vec<Vec<u8>>,
    /// Only some paths beneath the source; they follow as messages.
    pub only: bool,
    /// The path of the destination, if the far end receives.
    pub target: Vec<u8>,
    /// All sources are files, not directories.
    pub single_file: bool,
    /// Whether there are several sources.
    pub many: bool,
    /// The near end's throw-away public key.
    pub key: Vec<u8>,
    /// Where it listens.
    pub port: Option<u16>,
    /// How fast it encrypts.
    pub speeds: Speeds,
    /// Which boot of which machine the near end runs in.
    pub boot: Vec<u8>,
    /// Where the sources lie, if the near end sends.
    #[serde(default)]
    pub whereabouts: Vec<Whereabouts>,
}

impl Task {
    /// Without paths; what the near end says of itself it adds when it says it.
    pub fn new(role: Role, options: Options) -> Task {
        Task {
            role,
            options,
            sources: Vec::new(),
            only: false,
            target: Vec::new(),
            single_file: false,
            many: false,
            key: Vec::new(),
            port: None,
            speeds: Speeds { aes: 0.0, chacha: 0.0 },
            boot: Vec::new(),
            whereabouts: Vec::new(),
        }
    }
}

/// Whether the far end can do it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Exit code and words, if it cannot.
    pub refused: Option<(u8, String)>,
    /// All sources are files, not directories.
    pub single_file: bool,
    /// Which boot of which machine the far end runs in.
    pub boot: Vec<u8>,
    /// Where the sources lie, if the far end sends.
    #[serde(default)]
    pub whereabouts: Vec<Whereabouts>,
}

/// How messages travel between the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// By connections that the near end makes.
    NearDials,
    /// By connections that the far end makes.
    FarDials,
    /// By the pipe of ssh.
    Pipe,
}

/// What the near end has decided. Where the far end dials, another one asks for so many connections more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// How messages travel between the machines.
    pub way: Way,
    /// Connections for content that the far end shall make; by ssh, those that it shall be ready for.
    pub streams: u8,
}

/// Where further connections by ssh find the far end; the answer to the decision, if that asks for some.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joint {
    /// Name of an abstract Unix socket (unix(7)) on the far machine.
    pub name: String,
    /// Said on each connection, so that nobody else on that machine gets in.
    pub token: String,
}

/// Without the token: what is shown may be logged.
impl fmt::Debug for Joint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Joint").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a further connection says when it is joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Always true; tells the line from others.
    pub joined: bool,
}

/// Writes a value as one line of JSON.
///
/// # Errors
/// The error of the pipe, e.g. `BrokenPipe` if the other end has closed it.
pub fn write(pipe: &mut impl Write, value: &impl Serialize) -> std::io::Result<()> {
    let json = serde_json::to_string(value).map_err(std::io::Error::other)?;
    pipe.write_all(format!("{MAGIC} {json}\n").as_bytes())?;
    pipe.flush()
}

/// Reads the next line of ours, of at most so many bytes; nothing if the pipe ends before.
///
/// # Errors
/// When there is too much else, or the line is none of ours.
pub fn read<T: DeserializeOwned>(pipe: &mut impl BufRead, most_bytes: u64) -> Result<Option<T>, CopyError> {
    let mut skipped = 0;
    loop {
        let mut line = Vec::new();
        let read = pipe.by_ref().take(most_bytes).read_until(b'\n', &mut line);
        let count = read.map_err(|error| CopyError::Network(format!("the connection by ssh broke: {error}")))?;
        if count == 0 {
            return Ok(None);
        }
        if let Some(json) = line.strip_prefix(MAGIC.as_bytes()).and_then(|rest| rest.strip_prefix(b" ")) {
            return serde_json::from_slice(json)
                .map(Some)
                .map_err(|_| CopyError::Meaning("a line that makes no sense"));
        }
        skipped += count;
        if skipped > BANNER_BYTES {
            return Err(CopyError::Meaning("ssh printed something else than fullbore's words"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_an_end_is_left_at_its_bound() {
        for begin in [&b"fullbore-copy \""[..], b"noise "] {
            let mut pipe = std::io::BufReader::new(begin.chain(std::io::repeat(b'x')));
            assert!(read::<String>(&mut pipe, 100_000).is_err());
            let mut rest = Vec::new();
            pipe.take(10).read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"xxxxxxxxxx", "no more than the bound was read");
        }
    }

    #[test]
    fn the_token_of_a_joint_is_not_shown() {
        let joint = Joint { name: "name".to_owned(), token: "secret".to_owned() };
        assert_eq!(format!("{joint:?}"), r#"Joint { name: "name", .. }"#);
    }

    #[test]
    fn a_login_shells_words_are_skipped_and_a_flood_is_not() {
        let mut pipe = b"Welcome!\nfullbore-copyright\n".to_vec();
        let decision = Decision { way: Way::FarDials, streams: 3 };
        write(&mut pipe, &decision).unwrap();
        assert_eq!(read::<Decision>(&mut &pipe[..], ANSWER_BYTES).unwrap(), Some(decision));
        assert_eq!(read::<Decision>(&mut &b"bye\n"[..], ANSWER_BYTES).unwrap(), None);
        assert!(read::<Decision>(&mut &b"fullbore-copy {\n"[..], ANSWER_BYTES).is_err());
        assert!(read::<Decision>(&mut &b"noise\n".repeat(20_000)[..], ANSWER_BYTES).is_err());
    }
}
