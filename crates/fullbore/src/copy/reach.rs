//! How the other machine is reached: one set of flags for `copy` and `probe`, and what becomes of it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Args;
use fullbore_copy::transport::near::Wish;

use super::flags::NETWORK;
use super::remote::SERVER;
use super::send_program::Parcel;
use fullbore_engine::run::error::CommandError;

/// A way that has gone without a word is noticed: after so many questions without an answer, one each 15 s.
const SSH_OPTIONS: &[&str] = &["-oServerAliveInterval=15", "-oServerAliveCountMax=3"];
/// When dialling again there is another try soon: better than to wait for the one that got lost.
const REDIAL_OPTIONS: &[&str] = &["-oServerAliveInterval=15", "-oServerAliveCountMax=3", "-oConnectTimeout=30"];

/// As it is reached once more.
pub(crate) fn again(wish: &Wish) -> Wish {
    let options = if wish.options.is_empty() { &[] } else { REDIAL_OPTIONS };
    Wish { options, ..wish.clone() }
}

/// The flags under "Other machines" that `copy` and `probe` share.
#[derive(Debug, Args)]
pub struct ReachArgs {
    /// Reach the other machine by this command (default: ssh)
    #[arg(long, short = 'e', value_name = "COMMAND", help_heading = NETWORK, overrides_with = "rsh")]
    pub rsh: Option<String>,

    /// Run this there instead of `fullbore`, for example `sudo fullbore`
    #[arg(long, value_name = "COMMAND", help_heading = NETWORK, overrides_with = "remote_path")]
    pub remote_path: Option<String>,

    /// Open so many connections for content (default: as many as the path needs)
    #[arg(long, value_name = "N", help_heading = NETWORK, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub streams: Option<u8>,

    /// Send this program (or FILE, a statically linked one) along, run it there from a temporary directory, and
    /// leave nothing of it
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, help_heading = NETWORK)]
    pub send_program: Option<Option<PathBuf>>,

    /// Make connections by QUIC alone (default: only if no TCP connection gets through)
    #[arg(long, help_heading = NETWORK, conflicts_with = "ssh_only")]
    pub quic: bool,

    /// Send everything by ssh; make no connections of its own
    #[arg(long, help_heading = NETWORK)]
    pub ssh_only: bool,

    /// Give connections this congestion control (default: the system's, and bbr where loss asks for it)
    #[arg(long, value_name = "NAME", help_heading = NETWORK, value_parser = congestion)]
    pub congestion: Option<String>,
}

impl ReachArgs {
    /// What the connection's near end needs to know: the command that runs the program there (the user's ssh, the
    /// host, and one word for its shell) and the ways to try.
    pub(crate) fn wish(&self, host: &str) -> Result<Wish, CommandError> {
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
        let sent = self.send_program.as_ref().map(|file| Parcel::open(file.as_deref())).transpose()?;
        command.push(match &sent {
            Some(parcel) => parcel.script(program).into(),
            None => format!("{program}{SERVER}").into(),
        });
        Ok(Wish {
            command,
            options: if is_ssh { SSH_OPTIONS } else { &[] },
            preface: sent.map(|parcel| parcel.program).unwrap_or_default(),
            host: host.to_owned(),
            tcp: !self.ssh_only && !self.quic,
            quic: !self.ssh_only,
            streams: self.streams.unwrap_or(0),
            program: crate::VERSION.to_owned(),
            more_pipes,
            messages: None,
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

/// A name as the kernel's modules have: up to fifteen letters, digits and underscores (`TCP_CA_NAME_MAX`).
fn congestion(text: &str) -> Result<String, String> {
    let fits =
        !text.is_empty() && text.len() < 16 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if fits { Ok(text.to_owned()) } else { Err("no name of a congestion control".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_command_is_parted_as_rsync_does() {
        assert_eq!(words("ssh -p 22 -i '/a b/key'"), ["ssh", "-p", "22", "-i", "/a b/key"]);
        assert_eq!(words("  x \"\" y"), ["x", "", "y"]);
    }
}
