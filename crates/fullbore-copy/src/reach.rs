//! How to reach the other machine: the user's settings, and the ssh command that they make.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use fullbore_engine::run::error::CommandError;

use crate::send_program::{self, Programs};
use crate::transport::near::ConnectSettings;

/// Arguments of the program on the other machine.
pub(crate) const SERVER: &str = " copy --server";
/// Detects a dead connection: ssh sends a request every 15 s and gives up after three without an answer.
const SSH_OPTIONS: &[&str] = &["-oServerAliveInterval=15", "-oServerAliveCountMax=3"];
/// Options for another connection attempt. With a time limit on connecting, a lost attempt is soon replaced by the next
/// one.
const REDIAL_OPTIONS: &[&str] = &["-oServerAliveInterval=15", "-oServerAliveCountMax=3", "-oConnectTimeout=30"];

/// Settings for connecting again.
pub(crate) fn again(settings: &ConnectSettings) -> ConnectSettings {
    let options = if settings.options.is_empty() { &[] } else { REDIAL_OPTIONS };
    ConnectSettings { options, ..settings.clone() }
}

/// A range of TCP ports; the program listens on the first free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The lowest port of the range, at least 1.
    pub first: u16,
    /// The highest port of the range, included.
    pub last: u16,
}

impl Ports {
    /// Parses `PORT` or `FIRST-LAST`.
    ///
    /// # Errors
    /// A sentence with the expected syntax, if the text has another form, a port is 0 or above 65535, or the range is
    /// empty.
    pub fn parse(text: &str) -> Result<Ports, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.parse().ok().filter(|port: &u16| *port > 0);
        let ports = port(first).zip(port(last)).filter(|(first, last)| first <= last);
        ports.map(|(first, last)| Ports { first, last }).ok_or_else(|| "expected PORT or FIRST-LAST".to_owned())
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(formatter, "{}", self.first),
            false => write!(formatter, "{}-{}", self.first, self.last),
        }
    }
}

/// The user's settings for reaching the other machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Command in the place of `ssh`, with its options (`--rsh`).
    pub rsh: Option<String>,
    /// Command in the place of `fullbore` on the other machine (`--remote-path`).
    pub remote_path: Option<String>,
    /// Number of connections for content; `None` for as many as the path needs.
    pub streams: Option<u8>,
    /// Send a program along and run it there: `Some(None)` picks one for that machine's processor, `Some(Some(file))`
    /// sends a file.
    pub send_program: Option<Option<PathBuf>>,
    /// Whether to use ssh alone, without direct connections.
    pub ssh_only: bool,
    /// Ports that both ends listen on; `None` for any.
    pub ports: Option<Ports>,
    /// Congestion control of the connections. `None` keeps the system's default, and uses bbr if loss suggests it.
    pub congestion: Option<String>,
}

impl Reach {
    /// Builds the near end's settings: the command that runs the program there, and the kinds of connections to try.
    /// The command is the user's ssh, the host, and one word for its shell.
    ///
    /// # Errors
    ///
    /// Errors of [`Programs::new`] if the program to send cannot be used.
    pub(crate) fn connect_settings(&self, host: &str) -> Result<ConnectSettings, CommandError> {
        let rsh = self.rsh.as_deref().unwrap_or("ssh");
        let mut command: Vec<OsString> = words(rsh).into_iter().map(OsString::from).collect();
        command.push(host.into());
        let program = self.remote_path.as_deref().unwrap_or("fullbore");
        // More connections need ssh itself: another command may ask for a password each time, or not be ssh at all.
        let is_ssh = command.first().is_some_and(|program| Path::new(program).file_name() == Some(OsStr::new("ssh")));
        let more_pipes = (is_ssh && self.send_program.is_none()).then(|| {
            let mut quiet = command.clone();
            quiet.splice(1..1, SSH_OPTIONS.iter().chain(&["-oBatchMode=yes"]).map(OsString::from));
            quiet.push(format!("{program}{SERVER} --join ").into());
            quiet
        });
        let programs = self.send_program.as_ref().map(|file| Programs::new(file.as_deref())).transpose()?;
        let server = format!("{SERVER}{}", self.ports.map_or_else(String::new, |ports| format!(" --port {ports}")));
        command.push(match &programs {
            Some(_) => send_program::script(program, &server).into(),
            None => format!("{program}{server}").into(),
        });
        Ok(ConnectSettings {
            command,
            options: if is_ssh { SSH_OPTIONS } else { &[] },
            programs,
            host: host.to_owned(),
            tcp: !self.ssh_only,
            streams: self.streams.unwrap_or(0),
            more_pipes,
            messages: None,
            ports: self.ports,
        })
    }
}

/// Splits a command into words like rsync's `-e`: at spaces, but not within quotes.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut begun) = (String::new(), None, false);
    for c in text.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => (quote, begun) = (Some(c), true),
            (None, ' ' | '\t') => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            (_, c) => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_a_range() {
        let ports = |first, last| Ok(Ports { first, last });
        assert_eq!((Ports::parse("5000"), Ports::parse("5000-5010")), (ports(5000, 5000), ports(5000, 5010)));
        assert_eq!(Ports::parse("5000-5010").unwrap().to_string(), "5000-5010");
        for text in ["", "0", "5010-5000", "70000", "a", "1-2-3", "-5"] {
            assert!(Ports::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_shell_command_is_parted_as_rsync_does() {
        assert_eq!(words("ssh -p 22 -i '/a b/key'"), ["ssh", "-p", "22", "-i", "/a b/key"]);
        assert_eq!(words("  x \"\" y"), ["x", "", "y"]);
    }
}
