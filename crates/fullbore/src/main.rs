//! The fullbore program: see `fullbore::program` for what happens, `fullbore::cli` for the flags.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use fullbore::settings::Environment;
use fullbore::{method, program};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // APT waits for its methods: before anything else is set up.
    let exit_code = method::run(&arguments).unwrap_or_else(|| program::run(arguments, &Environment::read()));
    ExitCode::from(exit_code)
}
