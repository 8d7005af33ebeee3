//! Reads keyring files, and determines which of them a verifier can use.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use super::SignatureError;
use crate::clearsign;

/// Maximum size of a keyring that is read to detect armour, in bytes; Debian's whole keyring has 60 KB.
const KEYRING_BYTES_MAX: u64 = 16 << 20;

/// Beginning of every armoured block.
const ARMOUR: &[u8] = b"-----BEGIN PGP ";

/// Packet type of a public key (RFC 9580, section 5), which begins a keyring.
const PUBLIC_KEY: u8 = 6;

/// Checks that a file is a keyring that `gpgv` and `sqv` can read beside others. One unreadable keyring makes them
/// reject the keys of all others. As apt does among its default keyrings, this refuses GnuPG's keybox.
///
/// # Errors
/// [`SignatureError::Keyring`] if the file cannot be read, exceeds 16 MiB, is a keybox, or does not consist of whole
/// OpenPGP packets that begin with a public key.
pub fn check_keyring(path: &Path) -> Result<(), SignatureError> {
    let fault = |what: String| SignatureError::Keyring { keyring: path.display().to_string(), what };
    let mut bytes = read(path).map_err(|error| fault(error.to_string()))?;
    if is_armoured(&bytes) {
        bytes = clearsign::dearmour(&String::from_utf8_lossy(&bytes), "PGP PUBLIC KEY BLOCK")
            .map_err(|what| fault(what.to_owned()))?;
    }
    match fault_of(&bytes) {
        Some(what) => Err(fault(what.to_owned())),
        None => Ok(()),
    }
}

/// Reads a keyring, up to a limit.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(KEYRING_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether these bytes have an armoured block.
pub(super) fn is_armoured(bytes: &[u8]) -> bool {
    bytes.windows(ARMOUR.len()).any(|window| window == ARMOUR)
}

/// Whether these are the bytes of GnuPG's own format.
pub(super) fn is_keybox(bytes: &[u8]) -> bool {
    bytes.get(8..12) == Some(b"KBXf")
}

/// Why these bytes are not a keyring of whole packets; `None` if they are.
fn fault_of(bytes: &[u8]) -> Option<&'static str> {
    if bytes.is_empty() {
        return Some("is empty");
    }
    if is_keybox(bytes) {
        return Some("is a GnuPG keybox");
    }
    let mut rest = bytes;
    let mut is_first = true;
    while !rest.is_empty() {
        let Some(packet) = packet(rest) else { return Some("is damaged: a packet is incomplete") };
        if is_first && packet.number != PUBLIC_KEY {
            return Some("does not begin with a key");
        }
        is_first = false;
        // Only packets of other kinds have an indeterminate length. Their end would be a guess.
        let length = packet.length?;
        let Some(behind) = rest.get(length..) else { return Some("is damaged: a packet is incomplete") };
        rest = behind;
    }
    None
}

/// The header of a packet.
struct Packet {
    number: u8,
    /// Length of header and body, in bytes; `None` if it is indeterminate.
    length: Option<usize>,
}

/// Parses the header of a packet (RFC 9580, section 4.2); `None` if it is malformed.
fn packet(bytes: &[u8]) -> Option<Packet> {
    let first = *bytes.first()?;
    let big_endian = |from: usize, count: usize| {
        let digits = bytes.get(from..from + count)?;
        Some(digits.iter().fold(0, |number: usize, byte| number << 8 | usize::from(*byte)))
    };
    let closed = |number, head: usize, body: usize| Some(Packet { number, length: Some(head.checked_add(body)?) });
    match first {
        0..0x80 => None,
        // The old packet format.
        0x80..0xc0 => {
            let number = first >> 2 & 0x0f;
            match first & 3 {
                3 => Some(Packet { number, length: None }),
                kind => closed(number, 1 + (1 << kind), big_endian(1, 1 << kind)?),
            }
        }
        0xc0.. => {
            let number = first & 0x3f;
            match *bytes.get(1)? {
                own @ 0..192 => closed(number, 2, usize::from(own)),
                192..224 => closed(number, 3, big_endian(1, 2)? - (192 << 8) + 192),
                255 => closed(number, 6, big_endian(2, 4)?),
                224..255 => Some(Packet { number, length: None }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_whole_packets_that_begin_with_a_key_are_a_keyring() {
        let long = [&[0x99, 1, 0][..], &[4; 256]].concat();
        let new_long = [&[0xc6, 192, 8][..], &[4; 200]].concat();
        let keybox = [&[0; 8][..], b"KBXf", &[0; 20]].concat();
        for (bytes, is_good) in [
            (&[][..], false),
            (b"key", false),
            (&[0x99], false),
            (&[0x98, 1, 4], true),
            (&[0x98, 2, 4], false),
            (&[0x98, 1, 4, 0xb4, 1, b'u'], true),
            (&[0x98, 1, 4, 0xb4, 2, b'u'], false),
            (&[0x98, 1, 4, b'\n'], false),
            (&[0xb4, 1, b'u'], false),
            (&[0xc6, 1, 4, 0xcd, 255, 0, 0, 0, 1, b'u'], true),
            (&long, true),
            (&long[..200], false),
            (&new_long, true),
            (&new_long[..202], false),
            (&keybox, false),
        ] {
            assert_eq!(fault_of(bytes).is_none(), is_good, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = fault_of(&bytes);
        }
    }
}
