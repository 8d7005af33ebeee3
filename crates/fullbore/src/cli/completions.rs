//! The flags of `fullbore completions`.

use clap::Args;
use clap_complete::Shell;

pub(super) const LONG: &str = "\
Print a script that completes fullbore's commands and options in a shell.

The Debian package installs these scripts for bash, zsh and fish.";

const EXAMPLES: &str = "\
Examples:
  For bash, in this session:
    source <(fullbore completions bash)
  For zsh, for good:
    fullbore completions zsh | sudo tee /usr/local/share/zsh/site-functions/_fullbore >/dev/null
  For fish, for good:
    fullbore completions fish > ~/.config/fish/completions/fullbore.fish";

/// `fullbore completions`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// Name of the shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}
