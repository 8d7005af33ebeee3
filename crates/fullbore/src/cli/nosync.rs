//! The flags of `fullbore nosync`.

use clap::Args;

pub(super) const LONG: &str = "\
Run a command with its sync calls answered at once, and sync once when it has ended.

fsync, fdatasync, sync, syncfs, msync and sync_file_range do nothing for CMD and all that it starts, \
whether static, 32-bit or in a chroot; opens with O_SYNC are left alone. When CMD has ended, every \
writable file system is synced, and a write error since the start fails the run. Until then a crash \
of the machine loses what was written: for roots that can be made again.";

const EXAMPLES: &str = "\
Examples:
  Make a root, syncing once:
    fullbore nosync -- debootstrap trixie /srv/root https://deb.example.org/debian
  In a container, and see what was saved:
    fullbore nosync --report -- apt-get install -y build-essential

Exit status: that of CMD, or its signal. If CMD succeeded: 7 the final sync failed, 2 programs have
outlived CMD. If CMD was not run: 125 refused or wrong options, 126 cannot be run, 127 not found.";

/// `fullbore nosync`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct NosyncArgs {
    /// Count the sync calls and say about how much time they would have taken
    ///
    /// Each call then takes a detour over this process, which waits until the last program that
    /// CMD has started ends. Also counts what stays synchronous: opens with O_SYNC, and io_uring.
    #[arg(long)]
    pub report: bool,

    /// Run even where a service manager could start services that would keep the filter
    #[arg(long)]
    pub force: bool,

    /// Leave the final sync to somebody else
    #[arg(long)]
    pub no_final_sync: bool,

    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<std::ffi::OsString>,
}
