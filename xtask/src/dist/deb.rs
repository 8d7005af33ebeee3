//! Debian packages. They hold the static program, so that one package installs on every release of Debian.

use std::fs;
use std::io;

use super::target::Target;
use super::{Run, binaries};
use crate::command::{output, run};
use crate::docs;

/// Where the description of the package in crates/fullbore/Cargo.toml expects Debian's changelog.
const CHANGELOG: &str = "packaging/generated/changelog";

/// Builds the package into the output directory. Returns its name.
pub fn build(run_of: &Run, target: Target) -> io::Result<String> {
    binaries::build(run_of, target)?;
    docs::write_packaged(&run_of.environment.root)?;
    write_changelog(run_of)?;
    let name = format!("fullbore_{}_{}.deb", run_of.version, target.debian());
    let mut command = run_of.environment.compile(target);
    command
        .args(["deb", "--locked", "--package", "fullbore", "--no-build", "--no-strip"])
        .args(["--target", target.triple(), "--output"])
        .arg(run_of.output.join(&name));
    // cargo finds `cargo deb` by PATH.
    if let Some(directory) = run_of.tools.cargo_deb()?.parent().filter(|directory| directory.is_absolute()) {
        let mut path = directory.as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        command.env("PATH", path);
    }
    run(&mut command)?;
    Ok(name)
}

/// Debian's tools read version and date from a changelog in their own format. It points to the one for people.
fn write_changelog(run_of: &Run) -> io::Result<()> {
    let environment = &run_of.environment;
    let date = format!("--date=@{}", environment.epoch_s);
    let date = output(environment.command("date").args(["--utc", "--rfc-email", &date]))?;
    let text = format!(
        "fullbore ({}) unstable; urgency=medium\n\n  * See /usr/share/doc/fullbore/CHANGELOG.md.\n\n -- {}  {}\n",
        run_of.version,
        run_of.maintainer,
        date.trim()
    );
    fs::write(environment.root.join(CHANGELOG), text)
}
