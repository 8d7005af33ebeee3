//! The hashes that APT expects of a file, and those of what was received.
//!
//! APT compares the hashes that both lists have, and accepts a file only if there is one. So an answer has every hash
//! that APT asked for. If all of those are weak, it has all that APT knows, as the answers of APT's own methods do.

use fullbore_engine::digest::{Sha256, Sha256Hasher};
use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha512;

use super::message::Message;

/// A type of hash that APT knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashType {
    /// SHA-512.
    Sha512,
    /// SHA-256.
    Sha256,
    /// SHA-1: weak, so APT does not accept a file by it alone.
    Sha1,
    /// MD5: weak, so APT does not accept a file by it alone.
    Md5,
}

impl HashType {
    /// All types, from the strongest to the weakest.
    pub const ALL: [HashType; 4] = [HashType::Sha512, HashType::Sha256, HashType::Sha1, HashType::Md5];

    /// The name in APT's fields: `Expected-SHA256`, `SHA256-Hash`.
    pub fn name(self) -> &'static str {
        match self {
            HashType::Sha512 => "SHA512",
            HashType::Sha256 => "SHA256",
            HashType::Sha1 => "SHA1",
            HashType::Md5 => "MD5Sum",
        }
    }

    /// Whether APT accepts a file by this hash alone.
    fn is_strong(self) -> bool {
        matches!(self, HashType::Sha512 | HashType::Sha256)
    }
}

/// The hashes that APT expects, as it sent them. A malformed value matches no file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectedHashes {
    named: Vec<(HashType, String)>,
    /// `Acquire::ForceHash`: the only type that counts, even if it does not exist.
    forced: Option<String>,
}

impl ExpectedHashes {
    /// The expectations of a request; `forced` is the setting `Acquire::ForceHash`.
    pub fn of(request: &Message, forced: Option<&str>) -> ExpectedHashes {
        let value =
            |one: HashType| request.get(&format!("Expected-{}", one.name())).map(|value| (one, value.to_owned()));
        let named = HashType::ALL.into_iter().filter_map(value).collect();
        ExpectedHashes { named, forced: forced.map(str::to_owned) }
    }

    /// Whether a file may be accepted by its SHA-256: no other type is forced.
    pub fn counts_sha256(&self) -> bool {
        self.forced.as_ref().is_none_or(|forced| forced.eq_ignore_ascii_case(HashType::Sha256.name()))
    }

    /// Whether APT can judge a file by them.
    pub fn is_usable(&self) -> bool {
        match &self.forced {
            Some(forced) => self.named.iter().any(|(one, _)| one.name().eq_ignore_ascii_case(forced)),
            None => self.named.iter().any(|(one, _)| one.is_strong()),
        }
    }

    /// Makes a hasher for all types that the answer needs.
    pub fn hasher(&self) -> Hasher {
        let is_asked = |one: HashType| !self.is_usable() || self.named.iter().any(|(named, _)| *named == one);
        Hasher {
            sha512: is_asked(HashType::Sha512).then(Sha512::new),
            sha256: is_asked(HashType::Sha256).then(Sha256Hasher::new),
            sha1: is_asked(HashType::Sha1).then(Sha1::new),
            md5: is_asked(HashType::Md5).then(Md5::new),
            size: 0,
        }
    }

    /// Whether these are the hashes of a different file, by the types that count.
    pub fn contradict(&self, received: &ReceivedHashes) -> bool {
        let counts = |one: HashType| self.forced.as_ref().is_none_or(|forced| one.name().eq_ignore_ascii_case(forced));
        let expected = self.named.iter().filter(|(one, _)| counts(*one));
        let is_other = |(one, value): &(HashType, String)| {
            received.hashes.iter().any(|(own, hex)| own == one && !hex.eq_ignore_ascii_case(value))
        };
        expected.into_iter().any(is_other)
    }
}

/// Hashes bytes as they are received.
#[derive(Debug)]
pub struct Hasher {
    sha512: Option<Sha512>,
    sha256: Option<Sha256Hasher>,
    sha1: Option<Sha1>,
    md5: Option<Md5>,
    size: u64,
}

impl Hasher {
    /// Adds the next bytes to all hashes and to the size.
    pub fn update(&mut self, data: &[u8]) {
        if let Some(hasher) = &mut self.sha512 {
            hasher.update(data);
        }
        if let Some(hasher) = &mut self.sha256 {
            hasher.update(data);
        }
        if let Some(hasher) = &mut self.sha1 {
            hasher.update(data);
        }
        if let Some(hasher) = &mut self.md5 {
            hasher.update(data);
        }
        self.size += data.len() as u64;
    }

    /// Finishes the hashes of all bytes so far.
    pub fn finish(self) -> ReceivedHashes {
        let mut hashes = Vec::new();
        hashes.extend(self.sha512.map(|hasher| (HashType::Sha512, hex(&hasher.finalize()))));
        hashes.extend(self.sha256.map(|hasher| (HashType::Sha256, hasher.finish().to_string())));
        hashes.extend(self.sha1.map(|hasher| (HashType::Sha1, hex(&hasher.finalize()))));
        hashes.extend(self.md5.map(|hasher| (HashType::Md5, hex(&hasher.finalize()))));
        ReceivedHashes { size: self.size, hashes }
    }
}

/// Hashes and size of a received file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedHashes {
    /// Size of the file in bytes.
    pub size: u64,
    hashes: Vec<(HashType, String)>,
}

impl ReceivedHashes {
    /// For a file whose SHA-256 and size are known without hashing it.
    pub fn of_sha256(sha256: Sha256, size: u64) -> ReceivedHashes {
        ReceivedHashes { size, hashes: vec![(HashType::Sha256, sha256.to_string())] }
    }

    /// Adds hashes and size to a `201 URI Done` message.
    pub fn add_to(&self, message: Message) -> Message {
        let add =
            |message: Message, (one, hex): &(HashType, String)| message.with(&format!("{}-Hash", one.name()), hex);
        self.hashes.iter().fold(message, add).with("Checksum-FileSize-Hash", self.size)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(fields: &[(&str, &str)], forced: Option<&str>) -> ExpectedHashes {
        let message = Message::new(600, "URI Acquire");
        let message = fields.iter().fold(message, |message, (name, value)| message.with(name, value));
        ExpectedHashes::of(&message, forced)
    }

    fn answered(expected: &ExpectedHashes, data: &[u8]) -> (Vec<String>, bool) {
        let mut hasher = expected.hasher();
        hasher.update(data);
        let received = hasher.finish();
        let message = received.add_to(Message::new(201, "URI Done"));
        (message.fields.into_iter().map(|(name, _)| name).collect(), expected.contradict(&received))
    }

    const FOO_SHA512: &str = "0cf9180a764aba863a67b6d72f0918bc131c6772642cb2dce5a34f0a702f9470\
                              ddc2bf125c12198b1995c233c34b4afd346c54a2334c350a948a51b6e8b4e6b6";
    const FOO_SHA1: &str = "f1d2d2f924e986ac86fdf7b36c94bcdf32beec15";
    const FOO_MD5: &str = "d3b07384d113edec49eaa6238ad5ff00";

    #[test]
    fn every_hash_that_apt_asked_for_is_in_the_answer() {
        let names = |fields: &[(&str, &str)]| answered(&expected(fields, None), b"foo\n");
        let size = "Checksum-FileSize-Hash".to_owned();
        let (told, contradict) = names(&[("Expected-SHA512", FOO_SHA512)]);
        assert_eq!((told, contradict), (vec!["SHA512-Hash".into(), size.clone()], false));
        let (told, contradict) = names(&[("Expected-SHA256", "aabbcc"), ("Expected-MD5Sum", FOO_MD5)]);
        assert_eq!((told, contradict), (vec!["SHA256-Hash".into(), "MD5Sum-Hash".into(), size.clone()], true));
        let all = ["SHA512-Hash", "SHA256-Hash", "SHA1-Hash", "MD5Sum-Hash", &size];
        for fields in [&[("Expected-MD5Sum", FOO_MD5)][..], &[("Expected-SHA1", FOO_SHA1)], &[]] {
            assert_eq!(names(fields), (all.map(str::to_owned).to_vec(), false), "{fields:?}");
        }
        assert!(names(&[("Expected-SHA1", FOO_MD5)]).1, "no hash of this type");
    }

    #[test]
    fn a_forced_type_is_the_only_one_that_counts() {
        let fields = [("Expected-SHA256", "aabbcc"), ("Expected-MD5Sum", FOO_MD5)];
        let by_md5 = expected(&fields, Some("md5sum"));
        assert!(by_md5.is_usable() && !by_md5.counts_sha256());
        assert!(!answered(&by_md5, b"foo\n").1);
        let by_none = expected(&fields, Some("ROT26"));
        assert!(!by_none.is_usable());
        assert_eq!(answered(&by_none, b"foo\n").0.len(), 5);
        assert!(expected(&fields, Some("SHA256")).counts_sha256());
    }
}
