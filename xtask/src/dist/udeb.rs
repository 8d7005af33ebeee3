//! Packages for the Debian installer: the static program and hooks, by packaging/debian-installer/build.

use std::io;

use super::target::Target;
use super::{Run, binaries};
use crate::command::run;

/// Builds the package into the output directory. Returns its name.
pub fn build(run_of: &Run, target: Target) -> io::Result<String> {
    let program = binaries::build(run_of, target)?;
    let script = run_of.environment.root.join("packaging/debian-installer/build");
    let mut command = run_of.environment.command(script);
    command
        .arg(program)
        .arg(&run_of.output)
        .args([target.debian(), &run_of.version])
        .stdout(std::process::Stdio::null());
    run(&mut command)?;
    Ok(format!("fullbore-nosync-udeb_{}_{}.udeb", run_of.version, target.debian()))
}
