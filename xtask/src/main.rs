//! Tasks around the build: `cargo xtask docs`, `cargo xtask deb`.

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

mod docs;

/// Do tasks around the build
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Write the schema of --json into docs/reference, and manual pages and completions into packaging/generated
    Docs {
        /// Only check that the schema is up to date
        #[arg(long)]
        check: bool,
    },
    /// Build the Debian package with cargo-deb
    Deb {
        /// Arguments for cargo deb
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let done = match Arguments::parse().task {
        Task::Docs { check: false } => docs::write(&root),
        Task::Docs { check: true } => docs::check(&root),
        Task::Deb { arguments } => deb(&root, &arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn deb(root: &PathBuf, arguments: &[String]) -> io::Result<()> {
    docs::write_packaged(root)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let command = ["deb", "--locked", "--package", "fullbore"];
    let status = Command::new(cargo).current_dir(root).args(command).args(arguments).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other("cargo deb failed; install it with: cargo install --locked cargo-deb")),
    }
}
