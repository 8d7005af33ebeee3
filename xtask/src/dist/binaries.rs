//! Static programs, linked with musl: they run on every Linux machine of their architecture.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Run;
use super::target::Target;
use crate::command::{output, run};

/// Builds the program, unless it is up to date. Returns it.
pub fn build(run_of: &Run, target: Target) -> io::Result<PathBuf> {
    let triple = target.triple();
    add_standard_library(run_of, triple)?;
    let tools = run_of.tools.zigbuild()?;
    let mut path = tools.into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = run_of.environment.compile(target);
    command.args(["zigbuild", "--locked", "--release", "--package", "fullbore", "--target", triple]).env("PATH", path);
    run(&mut command)?;
    let program = run_of.environment.target_directory.join(triple).join("release/fullbore");
    check_static(run_of, &program)?;
    Ok(program)
}

/// Builds the program and puts it into the output directory. Returns its name there.
pub fn publish(run_of: &Run, target: Target) -> io::Result<String> {
    let program = build(run_of, target)?;
    // `copy --send-program` and the CI scripts look for this name.
    let name = format!("fullbore-{}", target.machine());
    fs::copy(program, run_of.output.join(&name))?;
    Ok(name)
}

/// rustup adds the standard library of other targets; Rust of a distribution has it in a package or not at all.
fn add_standard_library(run_of: &Run, triple: &str) -> io::Result<()> {
    let found = output(run_of.environment.command("rustc").args(["--print", "target-libdir", "--target", triple]))?;
    if Path::new(found.trim()).exists() {
        return Ok(());
    }
    run(run_of.environment.command("rustup").args(["target", "add", triple]))
        .map_err(|error| io::Error::new(error.kind(), format!("Rust's library for {triple} is missing, and {error}")))
}

fn check_static(run_of: &Run, program: &Path) -> io::Result<()> {
    let dynamic = output(run_of.environment.command("readelf").args(["--dynamic", "--wide"]).arg(program))?;
    match dynamic.lines().find(|line| line.contains("(NEEDED)")) {
        None => Ok(()),
        Some(line) => Err(io::Error::other(format!("{} needs a library: {}", program.display(), line.trim()))),
    }
}
