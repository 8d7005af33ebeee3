//! Keys of objects, and their encoding in requests.
//!
//! A key is UTF-8 of at most 1024 bytes ("Creating object key names" in the Amazon S3 user guide). In a request, every
//! byte that is not unreserved (RFC 3986, section 2.3) is percent-encoded, including `+`, `~`, `%` and `:`, because
//! signatures cover exactly this form. Only the slashes of a path stay.

/// Maximum length of a key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 1024;

/// Why a text cannot be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyError {
    /// The key is empty.
    #[error("the key is empty")]
    Empty,
    /// The key is longer than [`KEY_BYTES_MAX`].
    #[error("key {key:?}: {bytes} bytes exceed the limit of {KEY_BYTES_MAX}")]
    TooLong {
        /// Beginning of the key.
        key: String,
        /// Length of the key, in bytes.
        bytes: usize,
    },
    /// The key has `.` or `..` between slashes, which servers and proxies resolve as paths.
    #[error("key {key:?}: a part that is `.` or `..` would name another object")]
    DotPart {
        /// The key.
        key: String,
    },
}

/// Refuses a key that no store could hold, or that some would hold under another name.
///
/// # Errors
/// A [`KeyError`] with the rule that the key breaks.
pub(crate) fn check(key: &str) -> Result<(), KeyError> {
    if key.is_empty() {
        return Err(KeyError::Empty);
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(KeyError::TooLong { key: key.chars().take(80).collect(), bytes: key.len() });
    }
    if key.split('/').any(|part| part == "." || part == "..") {
        return Err(KeyError::DotPart { key: key.to_owned() });
    }
    Ok(())
}

/// Appends `text` percent-encoded, except for slashes: the path of a request.
pub fn encode_path(text: &str, out: &mut String) {
    encode(text, true, out);
}

/// Appends `text` percent-encoded, including slashes: names and values of a query.
pub(crate) fn encode_query(text: &str, out: &mut String) {
    encode(text, false, out);
}

fn encode(text: &str, keep_slash: bool, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.reserve(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b'/' if keep_slash => out.push('/'),
            _ => {
                out.push('%');
                out.push(char::from(HEX[usize::from(byte >> 4)]));
                out.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
}

/// Decodes the percent-encoding of listings (`encoding-type=url`, where a space may be `+`). `None` if it is invalid or
/// not UTF-8.
pub fn decode_listed(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'%' => {
                let digits = rest.get(..2)?;
                let digit = |byte: u8| char::from(byte).to_digit(16);
                bytes.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
                rest = &rest[2..];
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn everything_but_letters_digits_and_four_marks_is_encoded() {
        let mut path = String::new();
        encode_path("pool/g++/ä b~%41:x@=&.deb", &mut path);
        assert_eq!(path, "pool/g%2B%2B/%C3%A4%20b~%2541%3Ax%40%3D%26.deb");
        let mut query = String::new();
        encode_query("a/b c", &mut query);
        assert_eq!(query, "a%2Fb%20c");
    }

    #[test]
    fn names_that_no_store_holds_are_refused() {
        assert!(check("a//b/...").is_ok());
        assert_eq!(check(""), Err(KeyError::Empty));
        assert!(matches!(check(&"x".repeat(1025)), Err(KeyError::TooLong { bytes: 1025, .. })));
        for key in ["..", "./a", "a/../b", "a/."] {
            assert!(matches!(check(key), Err(KeyError::DotPart { .. })), "{key}");
        }
        assert_eq!(decode_listed("a+b%2Bc"), Some("a b+c".into()));
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decode_listed(bad), None);
        }
    }

    proptest! {
        #[test]
        fn encoding_loses_nothing(key in "\\PC{0,40}") {
            let mut encoded = String::new();
            encode_path(&key, &mut encoded);
            prop_assert!(encoded.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(decode_listed(&encoded), Some(key));
        }

        #[test]
        fn decoding_takes_anything(text in "\\PC{0,40}") {
            let _ = decode_listed(&text);
        }
    }
}
