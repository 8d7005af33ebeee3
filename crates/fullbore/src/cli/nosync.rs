//! The flags of `fullbore nosync`.

use clap::Args;

pub(super) const LONG: &str = "\
Run a command without its sync calls, and sync once at its end.

fsync, fdatasync, sync, syncfs, msync and sync_file_range do nothing for CMD and its descendants. \
This includes static programs, 32-bit programs and programs in a chroot. Files opened with O_SYNC \
stay synchronous. When CMD has ended, fullbore syncs every writable file system. A write error since \
the start fails the run. Until the sync, a crash of the machine loses written data: use nosync for \
roots that you can make again.";

const EXAMPLES: &str = "\
Examples:
  Make a root, syncing once:
    fullbore nosync -- debootstrap trixie /srv/root https://deb.example.org/debian
  In a container, with a report of the saved time:
    fullbore nosync --report -- apt-get install -y build-essential

Exit status: that of CMD, or its signal. If CMD succeeded: 7 the final sync failed, 2 programs
outlived CMD. If CMD did not run: 125 refused or wrong options, 126 not executable, 127 not found.";

/// `fullbore nosync`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct NosyncArgs {
    /// Count the sync calls, and estimate the time that they would have taken
    ///
    /// Each call then passes through this process, which waits for the last program that CMD started. The report also
    /// counts calls that stay synchronous: opens with O_SYNC, and io_uring.
    #[arg(long)]
    pub report: bool,

    /// Run even if services can start; they would run without syncs until they end
    #[arg(long)]
    pub force: bool,

    /// Skip the final sync
    #[arg(long)]
    pub no_final_sync: bool,

    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub command: Vec<std::ffi::OsString>,
}
