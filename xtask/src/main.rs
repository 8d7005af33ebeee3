//! Tasks around the build: `cargo xtask docs`, `cargo xtask dist`.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod command;
mod dist;
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
    /// Make all files of a release: static programs, packages, source tarball, SBOM, checksums
    Dist(dist::DistArguments),
    /// Build the Debian package of this machine's architecture into target/dist
    Deb(dist::DistArguments),
    /// Build the static program and print its path
    Static(dist::StaticArguments),
}

fn main() -> ExitCode {
    // cargo names the clone in which it was called; a program that was copied knows the one that it was built in.
    let manifest = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let root = Path::new(&manifest).join("..");
    let done = match Arguments::parse().task {
        Task::Docs { check: false } => docs::write(&root),
        Task::Docs { check: true } => docs::check(&root),
        Task::Dist(arguments) => dist::run(&root, arguments),
        Task::Deb(arguments) => dist::build_deb(&root, arguments),
        Task::Static(arguments) => dist::build_static(&root, arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
