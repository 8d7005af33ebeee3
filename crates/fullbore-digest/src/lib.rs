//! SHA-256: the value, the hasher that data passes on its way to disk, and the proof of a match.
//!
//! fullbore identifies every file by the SHA-256 in a signed index. A [`Sha256`] is that value, and a [`Sha256Hasher`]
//! computes one from bytes. A [`Verified`] proves that bytes had the expected size and SHA-256. Only this crate can
//! create one, and a file gets its final name only with such a proof.
//!
//! The crate has no other hashes, and no keys. With SHA instructions the sha2 crate hashes single streams; the module
//! `vector` has the other implementations.
//!
//! ```
//! use fullbore_digest::{Sha256, Sha256Hasher};
//!
//! // From a signed index: the size and the hash of the file.
//! let expected: Sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".parse()?;
//!
//! let mut hasher = Sha256Hasher::new();
//! for chunk in [&b"a"[..], b"bc"] {
//!     hasher.update(chunk);
//! }
//! let proof = hasher.verify(3, expected).expect("the content is as the index says");
//! assert_eq!((proof.size(), proof.sha256()), (3, expected));
//! # Ok::<(), fullbore_digest::ParseSha256Error>(())
//! ```

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod streams;
mod vector;

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
pub use streams::update_many;
use vector::Tier;

/// Maximum number of streams that [`update_many`] hashes in parallel.
pub const STREAMS_MAX: usize = vector::LANES;

/// Size of reads when hashing, in bytes: calls take no measurable time, and the buffer fits into the second-level
/// cache.
pub const READ_BYTES: usize = 256 << 10;

/// Number of streams that this machine hashes in hardly more time than one. It is 1 with SHA instructions, where a
/// second core gains more than a second stream.
pub fn streams_at_once() -> usize {
    match Tier::of_this_machine() {
        Tier::Library => 1,
        #[cfg(target_arch = "x86_64")]
        Tier::Sha => 1,
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 | Tier::Avx512 => STREAMS_MAX,
    }
}

/// A SHA-256 value (FIPS 180-4) of 32 bytes; its text has 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256(pub [u8; 32]);

/// Why a text is not a SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseSha256Error {
    /// Its length is not 64 digits.
    #[error("a SHA-256 has 64 hexadecimal digits, not {0} characters")]
    Length(usize),
    /// The character at this position is not a hexadecimal digit.
    #[error("character {0} of a SHA-256 is not a hexadecimal digit")]
    Digit(usize),
}

impl Sha256 {
    /// SHA-256 of the empty input, `e3b0c442…`.
    pub const EMPTY: Sha256 = Sha256([
        0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae,
        0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
    ]);

    /// Hashes `data`.
    ///
    /// ```
    /// use fullbore_digest::Sha256;
    ///
    /// let digest = Sha256::of(b"abc");
    /// assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    /// assert_eq!(digest.to_string().parse(), Ok(digest));
    /// ```
    pub fn of(data: &[u8]) -> Sha256 {
        let mut hasher = Sha256Hasher::new();
        hasher.update(data);
        hasher.finish()
    }

    /// The value as its 32 bytes, in the order of the text.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Parses 64 hexadecimal digits of either case. Takes bytes, because indexes with a hundred thousand digests are
    /// parsed as bytes.
    ///
    /// # Errors
    /// [`ParseSha256Error::Length`] if `text` does not have 64 bytes; [`ParseSha256Error::Digit`] with the position of
    /// the first byte that is not a hexadecimal digit.
    pub fn from_hex(text: &[u8]) -> Result<Sha256, ParseSha256Error> {
        if text.len() != 64 {
            return Err(ParseSha256Error::Length(text.len()));
        }
        let mut bytes = [0_u8; 32];
        for (index, pair) in text.chunks_exact(2).enumerate() {
            let high = hex_value(pair[0]).ok_or(ParseSha256Error::Digit(2 * index))?;
            let low = hex_value(pair[1]).ok_or(ParseSha256Error::Digit(2 * index + 1))?;
            bytes[index] = high << 4 | low;
        }
        Ok(Sha256(bytes))
    }

    /// Formats 64 lower-case digits without an allocation.
    pub fn to_hex(&self) -> Hex {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0_u8; 64];
        for (index, byte) in self.0.iter().enumerate() {
            text[2 * index] = DIGITS[usize::from(byte >> 4)];
            text[2 * index + 1] = DIGITS[usize::from(byte & 15)];
        }
        Hex(text)
    }
}

/// The 64 digits of a SHA-256.
#[derive(Clone, Copy)]
pub struct Hex([u8; 64]);

impl Hex {
    /// The 64 lower-case hexadecimal digits as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits are ASCII")
    }
}

fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.to_hex().as_str())
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Sha256({})", self.to_hex().as_str())
    }
}

impl FromStr for Sha256 {
    type Err = ParseSha256Error;
    fn from_str(text: &str) -> Result<Sha256, ParseSha256Error> {
        Sha256::from_hex(text.as_bytes())
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.to_hex().as_str())
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sha256, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Initial hash value (FIPS 180-4, 5.3.3).
const FIRST_STATE: vector::State =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

/// Hashes a stream of bytes.
///
/// ```
/// use fullbore_digest::{Sha256, Sha256Hasher};
///
/// let mut hasher = Sha256Hasher::new();
/// hasher.update(b"a");
/// hasher.update(b"bc");
/// let proof = hasher.verify(3, Sha256::of(b"abc")).expect("size and hash match");
/// assert_eq!(proof.size(), 3);
/// ```
#[derive(Clone)]
pub struct Sha256Hasher {
    state: vector::State,
    /// The incomplete block.
    block: vector::Block,
    filled: usize,
    bytes: u64,
    tier: Tier,
}

impl Default for Sha256Hasher {
    fn default() -> Sha256Hasher {
        Sha256Hasher::of_tier(Tier::of_this_machine())
    }
}

impl Sha256Hasher {
    /// Creates a hasher of the empty input.
    pub fn new() -> Sha256Hasher {
        Sha256Hasher::default()
    }

    fn of_tier(tier: Tier) -> Sha256Hasher {
        Sha256Hasher { state: FIRST_STATE, block: [0; 64], filled: 0, bytes: 0, tier }
    }

    /// Adds the bytes of `data` to the hashed stream.
    pub fn update(&mut self, data: &[u8]) {
        let (blocks, rest) = self.align(data);
        vector::compress(self.tier, &mut self.state, blocks);
        self.keep(rest);
    }

    /// Completes the incomplete block. Returns the whole blocks after it, for `compress`, and the rest, for `keep`.
    fn align<'d>(&mut self, data: &'d [u8]) -> (&'d [vector::Block], &'d [u8]) {
        self.bytes += data.len() as u64;
        let mut data = data;
        if self.filled > 0 {
            let (head, behind) = data.split_at(data.len().min(64 - self.filled));
            self.block[self.filled..self.filled + head.len()].copy_from_slice(head);
            self.filled += head.len();
            data = behind;
            if self.filled == 64 {
                vector::compress(self.tier, &mut self.state, std::slice::from_ref(&self.block));
                self.filled = 0;
            }
        }
        data.as_chunks()
    }

    /// Starts a block with the rest.
    fn keep(&mut self, rest: &[u8]) {
        self.block[self.filled..self.filled + rest.len()].copy_from_slice(rest);
        self.filled += rest.len();
    }

    /// Hashes the rest of a reader.
    ///
    /// # Errors
    /// The reader's error, except [`io::ErrorKind::Interrupted`], after which it reads on.
    pub fn read_to_end(&mut self, mut input: impl Read) -> io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match input.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => self.update(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Number of bytes that were added so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the SHA-256 of all bytes so far.
    pub fn finish(mut self) -> Sha256 {
        // One bit, zeros, and the length in bits, up to the end of a block (FIPS 180-4, 5.1.1).
        let bits = self.bytes.wrapping_mul(8);
        let mut end = [0_u8; 128];
        end[..self.filled].copy_from_slice(&self.block[..self.filled]);
        end[self.filled] = 0x80;
        let len = if self.filled < 56 { 64 } else { 128 };
        end[len - 8..len].copy_from_slice(&bits.to_be_bytes());
        let (blocks, _) = end[..len].as_chunks();
        vector::compress(self.tier, &mut self.state, blocks);
        let mut bytes = [0; 32];
        for (out, word) in bytes.chunks_exact_mut(4).zip(self.state) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        Sha256(bytes)
    }

    /// Compares the stream with the size and SHA-256 of a signed index. Only this function creates a [`Verified`].
    ///
    /// # Errors
    /// The actual SHA-256, if size or SHA-256 differ.
    pub fn verify(self, size: u64, expected: Sha256) -> Result<Verified, Sha256> {
        let bytes = self.bytes;
        let actual = self.finish();
        if bytes == size && actual == expected { Ok(Verified { size, sha256: actual }) } else { Err(actual) }
    }
}

impl fmt::Debug for Sha256Hasher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Sha256Hasher({} bytes)", self.bytes)
    }
}

/// Proof that bytes of this size and SHA-256 went through a hasher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    size: u64,
    sha256: Sha256,
}

impl Verified {
    /// Size of the verified content, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// SHA-256 of the verified content.
    pub fn sha256(&self) -> Sha256 {
        self.sha256
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// FIPS 180-4 examples and the NIST CAVP byte-oriented vectors (SHA256ShortMsg,
    /// and "a" a million times): the hash that decides over every file must be the
    /// one the rest of the world computes (apt once shipped a wrong one, #378183).
    #[test]
    fn digests_are_those_of_the_nist_vectors() {
        let vectors: &[(&[u8], &str)] = &[
            (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (
                b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
                "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1",
            ),
            (b"\xd3", "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1"),
            (b"\x11\xaf", "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98"),
            (
                b"\xb4\x19\x0e",
                "dff2e73091f6c05e528896c4c831b9448653dc2ff043528f6769437bc7b975c2",
            ),
            (
                b"\x74\xba\x25\x21",
                "b16aa56be3880d18cd41e68384cf1ec8c17680c45a02b1575dc1518923ae8b0e",
            ),
        ];
        for (data, expected) in vectors {
            assert_eq!(Sha256::of(data).to_string(), *expected);
        }
        let mut hasher = Sha256Hasher::new();
        for _ in 0..1000 {
            hasher.update(&[b'a'; 1000]);
        }
        assert_eq!(hasher.finish().to_string(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
        assert_eq!(Sha256::of(b""), Sha256::EMPTY);
    }

    /// The same value as an implementation that is not ours nor our library's.
    #[test]
    fn agrees_with_sha256sum() {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let data: Vec<u8> = (0..100_003_u32).map(|i| (i % 7919 * 31 % 251) as u8).collect();
        let child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("sha256sum does not run: apt-get install coreutils");
        child.stdin.take().unwrap().write_all(&data).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(Sha256::of(&data), Sha256::from_hex(&output.stdout[..64]).unwrap());
    }

    #[test]
    fn proof_needs_length_and_value() {
        let mut hasher = Sha256Hasher::new();
        hasher.update(b"abc");
        let right = Sha256::of(b"abc");
        assert!(hasher.clone().verify(3, right).is_ok());
        assert_eq!(hasher.clone().verify(4, right), Err(right));
        assert_eq!(hasher.verify(3, Sha256::EMPTY), Err(right));
    }

    #[test]
    fn text_that_is_no_digest_is_refused() {
        assert_eq!("abc".parse::<Sha256>(), Err(ParseSha256Error::Length(3)));
        let mut text = Sha256::EMPTY.to_string();
        text.replace_range(10..11, "g");
        assert_eq!(text.parse::<Sha256>(), Err(ParseSha256Error::Digit(10)));
    }

    proptest! {
        #[test]
        fn digests_survive_hex_and_serde(bytes: [u8; 32]) {
            let digest = Sha256(bytes);
            prop_assert_eq!(digest.to_string().parse::<Sha256>().unwrap(), digest);
            prop_assert_eq!(digest.to_string().to_uppercase().parse::<Sha256>().unwrap(), digest);
            let json = serde_json::to_string(&digest).unwrap();
            prop_assert_eq!(serde_json::from_str::<Sha256>(&json).unwrap(), digest);
        }

        #[test]
        fn any_split_gives_the_same(data in proptest::collection::vec(any::<u8>(), 0..500), cut in 0_usize..500) {
            let cut = cut.min(data.len());
            let mut hasher = Sha256Hasher::new();
            hasher.update(&data[..cut]);
            hasher.update(&data[cut..]);
            prop_assert_eq!(hasher.bytes(), data.len() as u64);
            prop_assert_eq!(hasher.finish(), Sha256::of(&data));
        }
    }
}
