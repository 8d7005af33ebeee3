//! How the other machine is reached: what the user wants of it, and the command that becomes of that.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use fullbore_engine::run::error::CommandError;

use crate::send_program::{self, Programs};
use crate::transport::near::ConnectSettings;

/// What the program there is called with.
pub(crate) const SERVER: &str = " copy --server";
/// A way that has gone without a word is noticed: after so many questions without an answer, one each 15 s.
const SSH_OPTIONS: &[&str] = &["-oServerAliveInterval=15", "-oServerAliveCountMax=3"];
/// When dialling again there is another try soon: better than to wait for the one that got lost.
const REDIAL_OPTIONS: &[&str] = &["-oServerAliveInterval=15", "-oServerAliveCountMax=3", "-oConnectTimeout=30"];

/// As it is reached once more.
pub(crate) fn again(settings: &ConnectSettings) -> ConnectSettings {
    let options = if settings.options.is_empty() { &[] } else { REDIAL_OPTIONS };
    ConnectSettings { options, ..settings.clone() }
}

/// TCP ports, from the first to the last, of which one is listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The lowest.
    pub first: u16,
    /// The highest.
    pub last: u16,
}

impl Ports {
    /// `PORT` or `FIRST-LAST`.
    ///
    /// # Errors
    /// What is wrong with the text.
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

/// What the user wants of the way to the other machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The command in the place of `ssh`, with its options.
    pub rsh: Option<String>,
    /// The command in the place of `fullbore` there.
    pub remote_path: Option<String>,
    /// Connections for content; as many as the path needs if none are named.
    pub streams: Option<u8>,
    /// Send a program along and run it there: the one for that machine's processor, or a file.
    pub send_program: Option<Option<PathBuf>>,
    /// Whether to use ssh alone, without direct connections.
    pub ssh_only: bool,
    /// Ports for both ends to listen on; any if none are named.
    pub ports: Option<Ports>,
    /// Congestion control of the connections; the system's, and bbr where loss asks for it, if none is named.
    pub congestion: Option<String>,
}

impl Reach {
    /// What the connection's near end needs to know: the command that runs the program there (the user's ssh, the
    /// host, and one word for its shell) and the ways to try.
    pub(crate) fn connect_settings(&self, host: &str) -> Result<ConnectSettings, CommandError> {
        let rsh = self.rsh.as_deref().unwrap_or("ssh");
        let mut command: Vec<OsString> = words(rsh).into_iter().map(OsString::from).collect();
        command.push(host.into());
        let program = self.remote_path.as_deref().unwrap_or("fullbore");
        // Another ssh may ask for a password, or be another program: then one connection it is.
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

/// Words of a command as rsync's `-e` parts them: by spaces, but not within quotes.
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
