//! NURLs: the address of a storage server, the hash of its key, and the right to use it.
//!
//! `pb://PIN@HOST:PORT/SWISSNUM#v=1`. The swissnum is a secret: `Debug` does not show it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Longest NURL that is read, in characters: a guess that is several times the longest.
const TEXT_BYTES_MAX: usize = 2048;

/// Address of a storage server: host, port, hash of the public key, swissnum.
#[derive(Clone, PartialEq, Eq)]
pub struct Nurl {
    /// SHA-256 of the server's public key, as SubjectPublicKeyInfo.
    pub pin: [u8; 32],
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port of the server.
    pub port: u16,
    /// The secret part of the path.
    swissnum: String,
}

impl fmt::Debug for Nurl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nurl({})", self.authority())
    }
}

/// Why a NURL cannot be used. The error does not repeat the text, which holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NurlError {
    /// Not of the form of a NURL.
    #[error("not of the form pb://PIN@HOST:PORT/SWISSNUM#v=1: {what}")]
    Form {
        /// The part at fault.
        what: &'static str,
    },
    /// A Tor address (`pb+tor`), which is not supported.
    #[error("Tor addresses (pb+tor) are not supported")]
    Tor,
    /// Another version of the protocol than 1.
    #[error("protocol version {version:?} is not supported, only 1")]
    Version {
        /// The version in the NURL, at most 16 characters.
        version: String,
    },
}

impl Nurl {
    /// Parses a NURL.
    ///
    /// ```
    /// let text = "pb://AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8@[2001:db8::1]:3456/swissnum#v=1";
    /// let nurl = fullbore_lafs::Nurl::parse(text)?;
    /// assert_eq!((&*nurl.authority(), nurl.port), ("[2001:db8::1]:3456", 3456));
    /// # Ok::<(), fullbore_lafs::NurlError>(())
    /// ```
    ///
    /// # Errors
    /// [`NurlError::Form`] for a text of another form, or of more than 2048 characters; [`NurlError::Tor`] for a Tor
    /// address; [`NurlError::Version`] for another version than `v=1`.
    pub fn parse(text: &str) -> Result<Nurl, NurlError> {
        let form = |what| NurlError::Form { what };
        if text.len() > TEXT_BYTES_MAX {
            return Err(form("too long"));
        }
        if text.starts_with("pb+tor:") {
            return Err(NurlError::Tor);
        }
        let rest = text.strip_prefix("pb://").ok_or(form("the beginning"))?;
        let (rest, version) = rest.split_once('#').ok_or(form("the version"))?;
        if version != "v=1" {
            return Err(NurlError::Version { version: version.chars().take(16).collect() });
        }
        let (pin, rest) = rest.split_once('@').ok_or(form("the pin"))?;
        let pin = URL_SAFE_NO_PAD.decode(pin).ok().and_then(|pin| pin.try_into().ok()).ok_or(form("the pin"))?;
        let (authority, swissnum) = rest.split_once('/').ok_or(form("the swissnum"))?;
        // It becomes part of a header field. The stock server makes it of letters and digits.
        if swissnum.is_empty() || !swissnum.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(form("the swissnum"));
        }
        let (host, port) = authority.rsplit_once(':').ok_or(form("the port"))?;
        let port = port.parse().ok().filter(|&port| port != 0).ok_or(form("the port"))?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or(form("the host"))?,
            None => host,
        };
        if host.is_empty() || !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte)) {
            return Err(form("the host"));
        }
        Ok(Nurl { pin, host: host.to_owned(), port, swissnum: swissnum.to_owned() })
    }

    /// Host and port, as in the Host field.
    pub fn authority(&self) -> String {
        let Nurl { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Value of the Authorization field, with the right to use the server.
    pub fn authorization(&self) -> String {
        format!("Tahoe-LAFS {}", STANDARD.encode(&self.swissnum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PIN: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

    #[test]
    fn addresses_that_servers_announce_are_read() {
        let nurl = Nurl::parse(&format!("pb://{PIN}@s.example.org:3456/secretswiss#v=1")).unwrap();
        assert_eq!((nurl.pin[1], nurl.pin[31]), (1, 31));
        assert_eq!((nurl.authority().as_str(), nurl.port), ("s.example.org:3456", 3456));
        assert_eq!(nurl.authorization(), "Tahoe-LAFS c2VjcmV0c3dpc3M=");
        assert!(!format!("{nurl:?}").contains("secret"));
        let six = Nurl::parse(&format!("pb://{PIN}@[::1]:1/s#v=1")).unwrap();
        assert_eq!((six.host.as_str(), six.authority().as_str()), ("::1", "[::1]:1"));
    }

    #[test]
    fn other_addresses_are_refused_without_repeating_them() {
        for bad in [
            "",
            "pb://",
            "http://x",
            &format!("pb://{PIN}@h:1/secret"),
            &format!("pb://{PIN}@h:1/secret#v=2"),
            &format!("pb://{PIN}@h:0/secret#v=1"),
            &format!("pb://{PIN}@h/secret#v=1"),
            &format!("pb://{PIN}@h:1/#v=1"),
            "pb://short@h:1/secret#v=1",
            &format!("pb+tor://{PIN}@h:1/secret#v=1"),
            &format!("pb://{PIN}@h\r:1/secret#v=1"),
            &format!("pb://{PIN}@h:1/sec\r\nret#v=1"),
            &format!("pb://{PIN}@[::1:1/secret#v=1"),
        ] {
            let error = Nurl::parse(bad).expect_err(bad).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(text in "pb://[A-Za-z0-9_-]{40,45}@\\PC{0,12}:[0-9]{0,6}/\\PC{0,5}#v=1") {
            let _ = Nurl::parse(&text);
        }
    }
}
