//! Base32 as Tahoe-LAFS writes it: RFC 4648, section 6, in lower case and without padding.

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Why a text is not base32. The error does not repeat the text, which is often a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Base32Error {
    /// A character outside `a-z2-7`.
    #[error("character {position} is not one of a-z and 2-7")]
    Character {
        /// Its position in characters, from 0.
        position: usize,
    },
    /// A length that no whole number of bytes gives, or bits left over in the last character.
    #[error("{length} characters of base32 do not give whole bytes")]
    Length {
        /// Length of the text in characters.
        length: usize,
    },
}

/// Encodes bytes in the base32 of Tahoe-LAFS: lower case, without padding.
pub fn encode(data: &[u8]) -> String {
    let mut text = String::with_capacity(data.len().div_ceil(5) * 8);
    let (mut bits, mut count) = (0_u32, 0);
    for &byte in data {
        bits = bits << 8 | u32::from(byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            text.push(char::from(ALPHABET[(bits >> count & 31) as usize]));
        }
    }
    if count > 0 {
        text.push(char::from(ALPHABET[(bits << (5 - count) & 31) as usize]));
    }
    text
}

/// Reads base32. Each sequence of bytes has one text; any other text is refused.
///
/// ```
/// use fullbore_lafs::base32::{decode, encode};
///
/// assert_eq!(decode(&encode(b"any bytes"))?, b"any bytes");
/// assert!(decode("nbur").is_err(), "bits left over");
/// # Ok::<(), fullbore_lafs::base32::Base32Error>(())
/// ```
///
/// # Errors
/// [`Base32Error::Character`] for a character outside `a-z2-7`; [`Base32Error::Length`] if the length gives no whole
/// number of bytes, or if bits are left over.
pub fn decode(text: &str) -> Result<Vec<u8>, Base32Error> {
    let mut data = Vec::with_capacity(text.len() * 5 / 8);
    let (mut bits, mut count) = (0_u32, 0);
    for (position, byte) in text.bytes().enumerate() {
        let value = match byte {
            b'a'..=b'z' => byte - b'a',
            b'2'..=b'7' => byte - b'2' + 26,
            _ => return Err(Base32Error::Character { position }),
        };
        bits = (bits << 5 | u32::from(value)) & 0xfff;
        count += 5;
        if count >= 8 {
            count -= 8;
            data.push((bits >> count) as u8);
        }
    }
    if count >= 5 || bits & ((1 << count) - 1) != 0 {
        return Err(Base32Error::Length { length: text.len() });
    }
    Ok(data)
}

/// Reads base32 that stands for a fixed number of bytes.
///
/// # Errors
/// The errors of [`decode`], and [`Base32Error::Length`] if the text stands for another number of bytes.
pub(crate) fn decode_array<const N: usize>(text: &str) -> Result<[u8; N], Base32Error> {
    decode(text)?.try_into().map_err(|_| Base32Error::Length { length: text.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_vectors_of_rfc_4648_are_written() {
        for (data, text) in [("", ""), ("f", "my"), ("fo", "mzxq"), ("foo", "mzxw6"), ("foobar", "mzxw6ytboi")] {
            assert_eq!(encode(data.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), data.as_bytes());
        }
    }

    #[test]
    fn text_that_nobody_writes_is_refused() {
        assert_eq!(decode("mz1"), Err(Base32Error::Character { position: 2 }));
        assert_eq!(decode("MZ"), Err(Base32Error::Character { position: 0 }));
        assert_eq!(decode("mz"), Err(Base32Error::Length { length: 2 }), "bits left over");
        assert_eq!(decode("m"), Err(Base32Error::Length { length: 1 }));
        assert_eq!(decode_array::<2>("my"), Err(Base32Error::Length { length: 2 }));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(data in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(decode(&encode(&data)).unwrap(), data);
        }

        #[test]
        fn each_text_that_is_read_is_the_one_written(text in "[a-z2-7]{0,20}") {
            if let Ok(data) = decode(&text) {
                prop_assert_eq!(encode(&data), text);
            }
        }
    }
}
