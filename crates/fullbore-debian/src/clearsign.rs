//! The frame of clear-signed messages and armoured blocks (RFC 9580, sections 6 and 7).
//!
//! OpenPGP programs accept text around a message, several messages in one file and unknown headers, and each of these
//! has let unsigned bytes into `Release` files. So the frame is checked here before a verifier reads it: exactly one
//! message, nothing before it and nothing after it.

use thiserror::Error;

const MESSAGE_BEGIN: &str = "-----BEGIN PGP SIGNED MESSAGE-----";
const SIGNATURE_BEGIN: &str = "-----BEGIN PGP SIGNATURE-----";
const SIGNATURE_END: &str = "-----END PGP SIGNATURE-----";

/// Maximum number of `Hash:` headers; a message has one per algorithm, and there are few.
const HASH_HEADERS_MAX: usize = 8;

/// Longest line of a signature block or header, in bytes. Armour has 64 or 76 characters; headers (`Comment:`) are
/// short. A guess with room.
const ARMOUR_LINE_BYTES_MAX: usize = 1024;

/// Fault in the armour around a signed message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameFault {
    /// The file is not a clear-signed message, but for instance a login page.
    #[error("does not begin with {MESSAGE_BEGIN:?}")]
    NotClearsigned,
    /// Text in or around the message that the signature does not cover.
    #[error("line {line}: {what}")]
    Extra {
        /// Line number, counted from 1.
        line: usize,
        /// Description of the text.
        what: &'static str,
    },
    /// The message or the signature is incomplete.
    #[error("ends before {0:?}")]
    Truncated(&'static str),
}

/// The parts of a clear-signed message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClearSigned<'a> {
    /// The text without dash escapes, with a newline at its end.
    pub text: String,
    /// The armoured signature, to the end of the file.
    pub signature: &'a str,
}

/// Returns the text of a clear-signed message, without dash escapes, with a newline at its end. Checks no signature.
///
/// The line ends must be normalised already (see [`crate::signature`]): they are not part of the signed text.
pub(crate) fn text_within(message: &str) -> Result<String, FrameFault> {
    split(message).map(|parts| parts.text)
}

/// Returns the parts of a clear-signed message. Checks no signature.
pub(crate) fn split(message: &str) -> Result<ClearSigned<'_>, FrameFault> {
    let mut lines = message.split_inclusive('\n').zip(1usize..);
    if lines.next().map(|(line, _)| line) != Some("-----BEGIN PGP SIGNED MESSAGE-----\n") {
        return Err(FrameFault::NotClearsigned);
    }
    refuse_bytes(message)?;
    skip_hash_headers(&mut lines)?;

    let mut text = String::with_capacity(message.len());
    let signature = loop {
        let Some((line, number)) = lines.next() else {
            return Err(FrameFault::Truncated(SIGNATURE_BEGIN));
        };
        if line.trim_end_matches('\n') == SIGNATURE_BEGIN {
            // Lines are parts of the message, so the difference of their addresses is an offset.
            break &message[line.as_ptr() as usize - message.as_ptr() as usize..];
        }
        match line.strip_prefix("- ") {
            Some(escaped) => text.push_str(escaped),
            None if line.starts_with('-') => {
                return Err(FrameFault::Extra { line: number, what: "a dash at the start of a line is not escaped" });
            }
            None => text.push_str(line),
        }
    };
    finish_signature(&mut lines)?;
    // Some files end with empty lines, which are harmless.
    match lines.find(|&(line, _)| line != "\n") {
        Some((_, line)) => Err(FrameFault::Extra { line, what: "something follows the signature" }),
        None => Ok(ClearSigned { text, signature }),
    }
}

/// Whether the bytes begin like a clear-signed message.
pub(crate) fn is_clearsigned(bytes: &[u8]) -> bool {
    bytes.starts_with(MESSAGE_BEGIN.as_bytes())
}

/// Checks a detached signature: one or more armoured signature blocks and nothing else.
/// Binary signatures are refused, as apt does.
pub(crate) fn check_detached(signature: &str) -> Result<(), FrameFault> {
    refuse_bytes(signature)?;
    let mut lines = signature.split_inclusive('\n').zip(1usize..).peekable();
    if lines.peek().is_none() {
        return Err(FrameFault::Truncated(SIGNATURE_BEGIN));
    }
    while let Some((line, number)) = lines.next() {
        if line.trim_end_matches('\n') != SIGNATURE_BEGIN {
            return Err(FrameFault::Extra { line: number, what: "not an armoured signature" });
        }
        finish_signature(&mut lines)?;
    }
    Ok(())
}

fn refuse_bytes(message: &str) -> Result<(), FrameFault> {
    let Some(at) = message.bytes().position(|byte| byte == 0 || byte == b'\r') else {
        return Ok(());
    };
    let line = message[..at].bytes().filter(|&byte| byte == b'\n').count() + 1;
    let what = if message.as_bytes()[at] == 0 { "NUL byte" } else { "carriage return" };
    Err(FrameFault::Extra { line, what })
}

/// Only `Hash:` may stand before the text; `NotDashEscaped:` would change how it is read.
fn skip_hash_headers<'a>(lines: &mut impl Iterator<Item = (&'a str, usize)>) -> Result<(), FrameFault> {
    for _ in 0..=HASH_HEADERS_MAX {
        let Some((line, number)) = lines.next() else {
            return Err(FrameFault::Truncated(SIGNATURE_BEGIN));
        };
        if line == "\n" {
            return Ok(());
        }
        let names = line.strip_prefix("Hash: ").filter(|_| line.len() <= ARMOUR_LINE_BYTES_MAX);
        let plain = |names: &str| names.trim_end().bytes().all(|b| b.is_ascii_alphanumeric() || b"-, ".contains(&b));
        if !names.is_some_and(plain) {
            return Err(FrameFault::Extra { line: number, what: "a header other than `Hash:`" });
        }
    }
    Err(FrameFault::Extra { line: HASH_HEADERS_MAX + 2, what: "too many headers" })
}

/// Reads to the end of a signature block: headers, an empty line, base64.
fn finish_signature<'a>(lines: &mut impl Iterator<Item = (&'a str, usize)>) -> Result<(), FrameFault> {
    let mut in_headers = true;
    for (line, number) in lines {
        let content = line.trim_end_matches(['\n', ' ', '\t']);
        if line.len() > ARMOUR_LINE_BYTES_MAX {
            return Err(FrameFault::Extra { line: number, what: "a long line in the signature" });
        }
        if content == SIGNATURE_END {
            return Ok(());
        }
        if in_headers && content.contains(": ") {
            continue;
        }
        // The first line that is not a header ends the headers; it must be the empty one.
        let base64 = content.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
        if !base64 || (content.is_empty() && !in_headers) {
            return Err(FrameFault::Extra { line: number, what: "something in the signature that is not base64" });
        }
        in_headers = false;
    }
    Err(FrameFault::Truncated(SIGNATURE_END))
}

/// The bytes of the armoured blocks named `kind` (`PGP PUBLIC KEY BLOCK`), one after the other.
/// Text around blocks is skipped: people write comments above their keys.
pub(crate) fn dearmour(text: &str, kind: &str) -> Result<Vec<u8>, &'static str> {
    use base64::Engine as _;
    let begin = format!("-----BEGIN {kind}-----");
    let end = format!("-----END {kind}-----");
    let mut bytes = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while lines.by_ref().any(|line| line == begin) {
        let mut body = String::new();
        let mut in_headers = true;
        loop {
            let line = lines.next().ok_or("an armoured block without its end")?;
            if line == end {
                break;
            }
            if line.is_empty() {
                in_headers = false;
            } else if in_headers && line.contains(": ") {
                continue;
            } else if let Some(_checksum) = line.strip_prefix('=') {
                // The CRC-24 guards against transmission errors only, and RFC 9580 makes it optional.
                in_headers = false;
            } else {
                in_headers = false;
                body.push_str(line);
            }
        }
        let block = base64::engine::general_purpose::STANDARD.decode(&body).map_err(|_| "not base64")?;
        bytes.extend_from_slice(&block);
    }
    if bytes.is_empty() { Err("no armoured key block") } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MESSAGE: &str = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\nOrigin: x\n- -dash\nDate: y\n\
        -----BEGIN PGP SIGNATURE-----\nVersion: 1\n\nabcd+/==\n=abcd\n-----END PGP SIGNATURE-----\n";

    #[test]
    fn the_signed_text_is_what_stands_within_the_frame() {
        assert_eq!(text_within(MESSAGE).as_deref(), Ok("Origin: x\n-dash\nDate: y\n"));
        assert_eq!(text_within(&format!("{MESSAGE}\n\n")).as_deref(), Ok("Origin: x\n-dash\nDate: y\n"));
        assert_eq!(text_within(MESSAGE.trim_end()).as_deref(), Ok("Origin: x\n-dash\nDate: y\n"));
        let signature = split(MESSAGE).expect("parts").signature;
        assert!(signature.starts_with(SIGNATURE_BEGIN) && MESSAGE.ends_with(signature));
        assert_eq!(check_detached(signature), Ok(()));
    }

    #[test]
    fn messages_with_bytes_outside_the_frame_are_refused() {
        let replaced = |from: &str, to: &str| MESSAGE.replacen(from, to, 1);
        for (name, message) in [
            ("stanza before", format!("Origin: evil\n\n{MESSAGE}")),
            ("newline before", format!("\n{MESSAGE}")),
            ("stanza behind", format!("{MESSAGE}\nOrigin: evil\n")),
            ("space behind", format!("{MESSAGE} \n")),
            ("two messages", format!("{MESSAGE}{MESSAGE}")),
            ("second signature", format!("{MESSAGE}{}", &MESSAGE[MESSAGE.find(SIGNATURE_BEGIN).expect("there")..])),
            ("CRLF", replaced("Origin: x\n", "Origin: x\r\n")),
            ("CRLF in the frame", MESSAGE.replace('\n', "\r\n")),
            ("NUL", replaced("Origin", "Ori\0gin")),
            ("other header", replaced("Hash: SHA512\n", "NotDashEscaped: yes\n")),
            ("header line of 1 MB", replaced("Hash: SHA512", &format!("Hash: {}", "A".repeat(1 << 20)))),
            ("many headers", replaced("Hash: SHA512\n", &"Hash: SHA512\n".repeat(20))),
            ("text before the empty line", replaced("Hash: SHA512\n", "Hash: SHA512\nOrigin: evil\n")),
            ("unescaped dash", replaced("- -dash", "-dash")),
            ("nested begin", replaced("- -dash", MESSAGE_BEGIN)),
            ("text in the signature", replaced("abcd+/==", "Origin: evil stanza\n")),
            ("no signature", MESSAGE[..MESSAGE.find(SIGNATURE_BEGIN).expect("there")].to_owned()),
            ("cut", MESSAGE[..MESSAGE.len() - 10].to_owned()),
            ("login page", "<html>Please log in</html>\n".to_owned()),
            ("empty", String::new()),
        ] {
            assert!(text_within(&message).is_err(), "{name}");
        }
    }

    #[test]
    fn detached_signatures_are_armour_only() {
        let block = &MESSAGE[MESSAGE.find(SIGNATURE_BEGIN).expect("there")..];
        assert_eq!(check_detached(block), Ok(()));
        assert_eq!(check_detached(&block.repeat(2)), Ok(()));
        assert!(check_detached("").is_err());
        assert!(check_detached(MESSAGE).is_err());
        assert!(check_detached(&format!("x\n{block}")).is_err());
        assert!(check_detached(&format!("{block}x\n")).is_err());
    }

    #[test]
    fn keys_are_read_out_of_armour() {
        let key = "a comment\n-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: x\n\nYWJj\nZGVm\n=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n";
        assert_eq!(dearmour(key, "PGP PUBLIC KEY BLOCK").as_deref(), Ok(&b"abcdef"[..]));
        assert_eq!(dearmour(&key.repeat(2), "PGP PUBLIC KEY BLOCK").as_deref(), Ok(&b"abcdefabcdef"[..]));
        assert!(dearmour("nothing", "PGP PUBLIC KEY BLOCK").is_err());
        assert!(dearmour(&key[..60], "PGP PUBLIC KEY BLOCK").is_err());
    }

    proptest! {
        #[test]
        fn one_changed_byte_never_panics(at in 0usize..200, byte in any::<char>()) {
            let mut chars: Vec<char> = MESSAGE.chars().collect();
            let at = at % chars.len();
            chars[at] = byte;
            let changed: String = chars.into_iter().collect();
            let _ = text_within(&changed);
            let _ = check_detached(&changed);
            let _ = dearmour(&changed, "PGP SIGNATURE");
        }
    }
}
