//! Messages over ssh's pipe before the transport starts: lines of JSON.
//!
//! Both ends send at once, so that no round trip is lost. The far end sends its version, its ephemeral key and its
//! port. Once it has the task, it reports whether that can be done. The near end sends the task, its own key and its
//! port. Its later decision is a message of the transport. Output of a login shell before the first line is skipped.

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
/// Longest line of the near end, in bytes. The task contains all filters.
pub(crate) const TASK_BYTES: u64 = 256 << 20;
/// Longest line of the far end, in bytes: the whereabouts of a hundred thousand sources. A guess; a command line has
/// fewer.
pub(crate) const ANSWER_BYTES: u64 = 16 << 20;
/// Most bytes that a login shell may print before the first line.
const BANNER_BYTES: usize = 64 << 10;

/// The first message of the far end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol ([`crate::wire::VERSION`]).
    pub version: u32,
    /// Version of the program on the other machine.
    pub program: String,
    /// Public key of the other machine, made for this run only.
    #[serde(default)]
    pub key: Vec<u8>,
    /// TCP port on which the other machine listens; `None` if it does not.
    #[serde(default)]
    pub port: Option<u16>,
    /// The far machine's address, as ssh reached it.
    #[serde(default)]
    pub address: Option<IpAddr>,
    /// Encryption speed of the other machine, if measured.
    #[serde(default)]
    pub speeds: Option<Speeds>,
}

/// The far end's role.
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

/// The task, which the near end sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The far end's role.
    pub role: Role,
    /// Options of the copy.
    pub options: Options,
    /// Paths of the sources, if the far end sends.
    pub sources: Vec<Vec<u8>>,
    /// Whether only some paths below the source are copied; they follow as messages.
    pub only: bool,
    /// Path of the destination, if the far end receives.
    pub target: Vec<u8>,
    /// Whether all sources are files, not directories.
    pub single_file: bool,
    /// Whether there are several sources.
    pub many: bool,
    /// The near end's ephemeral public key.
    pub key: Vec<u8>,
    /// TCP port on which the near end listens; `None` if it does not.
    pub port: Option<u16>,
    /// The near end's encryption speed.
    pub speeds: Speeds,
    /// Identifies the boot of the near end's machine, to detect that both ends are on one machine.
    pub boot: Vec<u8>,
    /// Where the sources are, if the near end sends.
    #[serde(default)]
    pub whereabouts: Vec<Whereabouts>,
}

impl Task {
    /// Makes a task without paths. The near end adds its own key, port and speeds when it sends the task.
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

/// The far end's answer to the task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Exit code and message, if it cannot do the task.
    pub refused: Option<(u8, String)>,
    /// Whether all sources are files, not directories.
    pub single_file: bool,
    /// Identifies the boot of the far end's machine.
    pub boot: Vec<u8>,
    /// Where the sources are, if the far end sends.
    #[serde(default)]
    pub whereabouts: Vec<Whereabouts>,
}

/// How messages travel between the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Over connections that the near end makes.
    NearDials,
    /// Over connections that the far end makes.
    FarDials,
    /// Over the pipe of ssh.
    Pipe,
}

/// The near end's decision. If the far end makes the connections, further decisions ask for more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// How messages travel between the machines.
    pub way: Way,
    /// Number of connections for content that the far end shall make, or that it shall accept by ssh.
    pub streams: u8,
}

/// How further connections by ssh find the far end; its answer to a decision that needs them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joint {
    /// Name of an abstract Unix socket (unix(7)) on the far machine.
    pub name: String,
    /// Token that has to be sent first on each connection, so that nobody else on that machine can join.
    pub token: String,
}

/// Omits the token, as debug output may be logged.
impl fmt::Debug for Joint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Joint").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Sent on a further connection once it has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Always true; tells this line from others.
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

/// Reads the next line with `MAGIC`, of at most `most_bytes` bytes. `None` if the pipe ends before.
///
/// # Errors
/// [`CopyError::Network`] if the pipe breaks. [`CopyError::Meaning`] if the line is malformed, or more than
/// `BANNER_BYTES` come before it.
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
            return serde_json::from_slice(json).map(Some).map_err(|_| CopyError::Meaning("a malformed line"));
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
