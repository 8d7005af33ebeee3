//! SHA-256 as the tests see it: independent of the engine's own type.

use std::{fmt, fs::File, io, io::Read, path::Path};

use sha2::Digest as _;

/// The SHA-256 of a file; prints as lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

/// Bytes read at once when a file is hashed; the page cache hands out no more at a time.
const READ_BYTES: usize = 256 << 10;

impl Digest {
    /// The digest of bytes in memory.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(sha2::Sha256::digest(bytes).into())
    }

    /// The digest and length of a file.
    pub fn of_file(path: &Path) -> io::Result<(Digest, u64)> {
        let mut file = File::open(path)?;
        let mut hasher = sha2::Sha256::new();
        let mut buffer = vec![0; READ_BYTES];
        let mut length = 0;
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 {
                return Ok((Digest(hasher.finalize().into()), length));
            }
            hasher.update(&buffer[..n]);
            length += n as u64;
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_nothing_is_that_of_the_standard() {
        let expected = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), expected);
    }
}
