//! Names that the machines of a run share: runs, workers, classes of tasks, and the keys of leases.
//!
//! They become parts of NATS subjects and keys, where a dot separates parts and `*` and `>` are wildcards. So only
//! harmless characters are allowed, and a name from a message never reaches into another run's subjects.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Most characters of a run's name: 128 bits as hexadecimal digits.
const RUN_CHARS_MAX: usize = 32;

/// Most characters of a worker's name. A host's label (63) and a number may be longer; the program hashes long ones.
const WORKER_CHARS_MAX: usize = 64;

/// A name that is empty, too long, or has other characters than its kind allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {shown:?}: a name has 1 to {max} of the characters {allowed}")]
pub struct NameError {
    kind: &'static str,
    shown: String,
    max: usize,
    allowed: &'static str,
}

fn check(
    kind: &'static str,
    text: &str,
    max: usize,
    allowed: &'static str,
    is_allowed: impl Fn(u8) -> bool,
) -> Result<String, NameError> {
    if (1..=max).contains(&text.len()) && text.bytes().all(is_allowed) {
        return Ok(text.to_owned());
    }
    Err(NameError { kind, shown: text.chars().take(max).collect(), max, allowed })
}

/// Name of a run: 1 to 32 digits and lower-case letters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(String);

impl RunId {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`NameError`] if the name is empty, longer than 32 characters, or has other characters than digits and
    /// lower-case letters.
    pub fn parse(text: &str) -> Result<RunId, NameError> {
        let is_allowed = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase();
        check("run", text, RUN_CHARS_MAX, "a-z and 0-9", is_allowed).map(RunId)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Name of a worker: 1 to 64 letters, digits, hyphens and underscores.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(String);

impl WorkerId {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`NameError`] if the name is empty, longer than 64 characters, or has other characters than letters, digits,
    /// hyphens and underscores.
    pub fn parse(text: &str) -> Result<WorkerId, NameError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        check("worker", text, WORKER_CHARS_MAX, "a-z, A-Z, 0-9, - and _", is_allowed).map(WorkerId)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

macro_rules! text_of {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = String::deserialize(deserializer)?;
                $name::parse(&text).map_err(de::Error::custom)
            }
        }
    };
}

text_of!(RunId);
text_of!(WorkerId);

/// Class of a task. Each has its own consumer, so that a worker can limit the number of large tasks that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// One file of [`XL_BYTES_MIN`](crate::tasks::XL_BYTES_MIN) or more.
    Xl,
    /// Any other task.
    Large,
}

impl Class {
    /// All classes, in the order in which workers request tasks.
    pub const ALL: [Class; 2] = [Class::Xl, Class::Large];

    /// The class in subjects: `xl` or `l`.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Xl => "xl",
            Class::Large => "l",
        }
    }
}

/// Prefix of the keys of announced runs.
pub const RUN_KEYS: &str = "run.";
/// Prefix of the keys of live workers.
pub const WORKER_KEYS: &str = "worker.";
/// Prefix of the keys of leased connection slots.
pub const LEASE_KEYS: &str = "lease.";
/// Prefix of the keys of mirrors that the fleet avoids.
pub const BAD_KEYS: &str = "bad.";

/// Key of a run's announcement.
pub fn run_key(run: &RunId) -> String {
    format!("{RUN_KEYS}{run}")
}

/// Key that exists while a worker is alive.
pub fn worker_key(worker: &WorkerId) -> String {
    format!("{WORKER_KEYS}{worker}")
}

/// Key that exists while the whole fleet avoids a mirror.
pub fn bad_key(host: &str) -> String {
    format!("{BAD_KEYS}{}", encode_host(host))
}

/// Key of one connection slot of a mirror.
pub fn lease_key(host: &str, number: u32) -> String {
    format!("{LEASE_KEYS}{}.{number}", encode_host(host))
}

/// Parses a slot's key into mirror and number.
pub fn parse_lease_key(key: &str) -> Option<(String, u32)> {
    let (host, number) = key.strip_prefix(LEASE_KEYS)?.rsplit_once('.')?;
    Some((decode_host(host)?, number.parse().ok()?))
}

/// Parses a key made by [`bad_key`] into the mirror.
pub fn parse_bad_key(key: &str) -> Option<String> {
    decode_host(key.strip_prefix(BAD_KEYS)?)
}

/// A host and its port as a part of a key. Dots stay, because names have no empty labels; the colon and the brackets of
/// addresses become `=` and two digits.
fn encode_host(host: &str) -> String {
    let mut encoded = String::with_capacity(host.len());
    for byte in host.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("={byte:02x}")),
        }
    }
    encoded
}

fn decode_host(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'=' {
            bytes.push(byte);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_meaning_in_subjects_are_refused() {
        for text in ["", "a.b", "*", ">", "a b", "a\n", &"a".repeat(65)] {
            assert!(RunId::parse(text).is_err(), "{text:?}");
            assert!(WorkerId::parse(text).is_err(), "{text:?}");
        }
        assert!(RunId::parse("9c1f").is_ok() && RunId::parse("9C1F").is_err());
        assert!(WorkerId::parse("host-3_17").is_ok());
        assert!(serde_json::from_str::<RunId>("\"../x\"").is_err());
    }

    #[test]
    fn hosts_survive_the_way_through_keys() {
        for host in ["deb.example.org", "deb.example.org:8080", "127.0.0.1:80", "[2001:db8::1]:443"] {
            assert_eq!(parse_lease_key(&lease_key(host, 7)), Some((host.to_owned(), 7)));
            assert_eq!(parse_bad_key(&bad_key(host)).as_deref(), Some(host));
            // What NATS allows in keys.
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-/_=.".contains(&byte);
            assert!(lease_key(host, 7).bytes().all(allowed), "{}", lease_key(host, 7));
        }
        for key in ["lease.a", "lease.a.x", "lease.=zz.1", "bad.a.1", "lease.=.1"] {
            assert_eq!(parse_lease_key(key), None, "{key}");
        }
    }
}
