//! The architectures that get binaries and packages.

use clap::ValueEnum;

/// An architecture, named as Debian names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Target {
    Amd64,
    Arm64,
}

impl Target {
    pub const ALL: [Target; 2] = [Target::Amd64, Target::Arm64];

    /// Rust's name. All are built against musl, linked statically.
    pub fn triple(self) -> &'static str {
        match self {
            Target::Amd64 => "x86_64-unknown-linux-musl",
            Target::Arm64 => "aarch64-unknown-linux-musl",
        }
    }

    pub fn debian(self) -> &'static str {
        match self {
            Target::Amd64 => "amd64",
            Target::Arm64 => "arm64",
        }
    }

    /// The kernel's name, which `uname -m` prints. Release binaries carry it.
    pub fn machine(self) -> &'static str {
        match self {
            Target::Amd64 => "x86_64",
            Target::Arm64 => "aarch64",
        }
    }

    /// The architecture of this machine, if it is one of them.
    pub fn of_this_machine() -> Option<Target> {
        Target::ALL.into_iter().find(|target| target.machine() == std::env::consts::ARCH)
    }
}
