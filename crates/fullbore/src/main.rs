//! The fullbore program: see `fullbore::program` for what happens, `fullbore::cli` for the flags.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use fullbore::program;
use fullbore::settings::Environment;

fn main() -> ExitCode {
    ExitCode::from(program::run(std::env::args_os(), &Environment::read()))
}
