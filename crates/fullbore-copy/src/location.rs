//! Arguments that name a source or destination: a path here, or a path on another machine.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use fullbore_engine::run::error::CommandError;

/// One path argument of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location<'a> {
    /// A path on this machine.
    Local(&'a Path),
    /// A path on another machine.
    Remote {
        /// The host in ssh's form: `[user@]host`.
        host: String,
        /// The path on that machine; empty for the home directory.
        path: OsString,
    },
}

/// The machine that has all sources, and their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Locations<'a> {
    /// All sources are on this machine.
    Local(Vec<&'a Path>),
    /// All sources are on one other machine.
    Remote {
        /// The host in ssh's form: `[user@]host`.
        host: String,
        /// The paths on that machine.
        paths: Vec<OsString>,
    },
}

impl<'a> Location<'a> {
    /// Parses all sources, which have to be on one machine.
    ///
    /// # Errors
    ///
    /// A usage error if there is no source, if sources are on different machines, or as for [`Location::parse`].
    pub(crate) fn common(texts: &'a [OsString]) -> Result<Locations<'a>, CommandError> {
        let (mut local, mut remote, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
        for text in texts {
            match Location::parse(text)? {
                Location::Local(path) => local.push(path),
                Location::Remote { host, path } => {
                    remote.push(path);
                    hosts.push(host);
                }
            }
        }
        hosts.dedup();
        match (&hosts[..], local.is_empty()) {
            ([], false) => Ok(Locations::Local(local)),
            ([host], true) => Ok(Locations::Remote { host: host.clone(), paths: remote }),
            ([], true) => Err(CommandError::usage("no SRC: name a source to copy")),
            _ => Err(CommandError::usage("all SRC must be on one machine")),
        }
    }

    /// Parses one argument. As in rsync and scp, a colon before any slash separates a host from its path. An IPv6
    /// address needs brackets.
    ///
    /// # Errors
    /// A usage error for `host::module` and `rsync://`, which mean an rsync daemon. Also for users and hosts that start
    /// with a hyphen, which ssh would take for an option.
    pub(crate) fn parse(text: &'a OsStr) -> Result<Location<'a>, CommandError> {
        let bytes = text.as_bytes();
        let local = Location::Local(Path::new(text));
        let user = bytes.iter().position(|byte| *byte == b'@').map_or(0, |at| at + 1);
        let colon = if bytes[user..].starts_with(b"[") {
            bytes.windows(2).position(|pair| pair == b"]:").map(|at| at + 1)
        } else {
            bytes.iter().position(|byte| matches!(byte, b':' | b'/')).filter(|at| bytes[*at] == b':')
        };
        let Some(colon) = colon.filter(|colon| *colon > 0) else { return Ok(local) };
        if bytes[colon + 1..].starts_with(b":") || bytes.starts_with(b"rsync://") {
            return Err(CommandError::usage(format_args!(
                "{}: fullbore cannot talk to rsync daemons; write host:/path",
                text.display()
            )));
        }
        let Ok(host) = std::str::from_utf8(&bytes[..colon]) else { return Ok(local) };
        // ssh gets the host without brackets. It would take a leading hyphen for an option.
        let host = host.replace(['[', ']'], "");
        if host.split('@').any(|part| part.starts_with('-')) {
            return Err(CommandError::usage(format_args!(
                "{}: a user or host cannot begin with a hyphen; write ./ before a path",
                text.display()
            )));
        }
        Ok(Location::Remote { host, path: OsStr::from_bytes(&bytes[colon + 1..]).to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_any_slash_makes_a_host() {
        let remote = |host: &str, path: &str| Location::Remote { host: host.into(), path: path.into() };
        for (text, place) in [
            ("a/b:c", Location::Local(Path::new("a/b:c"))),
            ("./a:b", Location::Local(Path::new("./a:b"))),
            (":b", Location::Local(Path::new(":b"))),
            ("host:", remote("host", "")),
            ("me@host:/a:b", remote("me@host", "/a:b")),
            ("me@[fe80::1]:x", remote("me@fe80::1", "x")),
        ] {
            assert_eq!(Location::parse(OsStr::new(text)).unwrap(), place, "{text}");
        }
        let refused =
            ["host::module/path", "me@host::module", "rsync://host/module", "-oProxyCommand=x:path", "-l@host:"];
        for text in refused {
            assert!(Location::parse(OsStr::new(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn no_user_or_host_is_an_option_for_ssh_with_or_without_brackets() {
        for text in [
            "[-oProxyCommand=x]:path",
            "[[-oProxyCommand=x]:path",
            "]-oProxyCommand=x:path",
            "[-oProxyCommand=x]@host:path",
            "me@-oProxyCommand=x:path",
            "me@[-oProxyCommand=x]:path",
            "[-v]@[fe80::1]:path",
        ] {
            assert!(Location::parse(OsStr::new(text)).is_err(), "{text}");
        }
        for text in ["[fe80::1]:x", "my-host:x", "a-b@c-d:x", "./[-x]:y"] {
            assert!(Location::parse(OsStr::new(text)).is_ok(), "{text}");
        }
    }
}
