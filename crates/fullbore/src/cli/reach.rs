//! The flags under "Other machines" that `copy` and `probe` share.

use std::path::PathBuf;

use clap::Args;
use fullbore_copy::reach::{Ports, Reach};
use fullbore_engine::run::error::CommandError;

pub(super) const NETWORK: &str = "Other machines";

/// How the other machine is reached.
#[derive(Debug, Args)]
pub struct ReachArgs {
    /// Reach the other machine with this command (default: ssh)
    #[arg(long, short = 'e', value_name = "COMMAND", help_heading = NETWORK, overrides_with = "rsh")]
    pub rsh: Option<String>,

    /// Run this command on the other machine instead of `fullbore`, such as `sudo fullbore`
    #[arg(long, value_name = "COMMAND", help_heading = NETWORK, overrides_with = "remote_path")]
    pub remote_path: Option<String>,

    /// Use N connections for content (default: as many as the path needs)
    #[arg(long, value_name = "N", help_heading = NETWORK, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub streams: Option<u8>,

    /// Send a program for the other machine's processor, or FILE, and run it there; leave nothing behind. The program
    /// must be statically linked
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, help_heading = NETWORK)]
    pub send_program: Option<Option<PathBuf>>,

    /// A flag of older versions: there is no QUIC any more
    #[arg(long, hide = true)]
    pub quic: bool,

    /// Listen for direct connections on one of these TCP ports, at both ends (default: any free port)
    #[arg(long, value_name = "PORT|FIRST-LAST", help_heading = NETWORK, value_parser = Ports::parse)]
    pub port: Option<Ports>,

    /// Send everything through ssh; make no direct connections
    #[arg(long, help_heading = NETWORK)]
    pub ssh_only: bool,

    /// Use this congestion control (default: the system's, or bbr on paths with loss)
    #[arg(long, value_name = "NAME", help_heading = NETWORK, value_parser = congestion)]
    pub congestion: Option<String>,
}

impl ReachArgs {
    /// As the library takes it.
    ///
    /// # Errors
    /// When the user asks for QUIC.
    pub fn settings(&self) -> Result<Reach, CommandError> {
        if self.quic {
            return Err(CommandError::usage("--quic: fullbore has no QUIC any more")
                .hint("leave the flag out: where no TCP connection gets through, content goes by ssh"));
        }
        Ok(Reach {
            rsh: self.rsh.clone(),
            remote_path: self.remote_path.clone(),
            streams: self.streams,
            send_program: self.send_program.clone(),
            ssh_only: self.ssh_only,
            ports: self.port,
            congestion: self.congestion.clone(),
        })
    }
}

/// A name as the kernel's modules have: up to fifteen letters, digits and underscores (`TCP_CA_NAME_MAX`).
fn congestion(text: &str) -> Result<String, String> {
    let fits =
        !text.is_empty() && text.len() < 16 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if fits { Ok(text.to_owned()) } else { Err("no name of a congestion control".to_owned()) }
}
