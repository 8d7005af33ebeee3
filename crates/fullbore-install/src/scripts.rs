//! Maintainer scripts that run before the files of a package are in place, as in dpkg.
//!
//! dpkg puts the control files into `tmp.ci` in its directory and starts `tmp.ci/preinst install` (deb-preinst(5));
//! debconf finds the templates next to the script.

use std::io;
use std::path::Path;
use std::process::Command;

use crate::inside::RootCommands;
use crate::root::{Root, RootError};
use crate::unpack::{Archive, Script};

/// Directory of the control files during unpacking.
const CONTROL: &str = "var/lib/dpkg/tmp.ci";

/// Makes the command for a script of a new package; `None` if the package has no such script.
///
/// # Errors
/// [`RootError`] if the control files cannot be written.
pub(crate) fn command(
    inside: &RootCommands<'_>,
    archive: &Archive,
    dpkg_version: &str,
    script: Script,
) -> io::Result<Option<Command>> {
    let (name, action) = match script {
        Script::Preinst => ("preinst", "install"),
        Script::AbortInstall => ("postrm", "abort-install"),
    };
    if archive.control().file(name).is_none() {
        return Ok(None);
    }
    let root = Root::open(inside.root()).map_err(io::Error::other)?;
    place(&root, archive, name).map_err(io::Error::other)?;
    let mut command = inside.script(Path::new("/").join(CONTROL).join(name));
    inside.pass_stdin(&mut command);
    command.arg(action).envs(environment(archive, dpkg_version, name));
    Ok(Some(command))
}

/// Writes the control files and makes the script executable.
fn place(root: &Root, archive: &Archive, script: &str) -> Result<(), RootError> {
    root.remove(CONTROL)?;
    root.create_directory(CONTROL, 0o755)?;
    for file in &archive.control().files {
        // With the modes that they have in dpkg's directory.
        let mode = if file.name == script { file.mode | 0o111 } else { file.mode };
        root.write(&format!("{CONTROL}/{}", file.name), mode & 0o7777, &file.content)?;
    }
    Ok(())
}

/// Removes the control files that [`command`] wrote.
///
/// # Errors
/// The system's error, as text, if the directory cannot be removed.
pub(crate) fn clear(root: &Path) -> io::Result<()> {
    Root::open(root).and_then(|root| root.remove(CONTROL)).map(drop).map_err(io::Error::other)
}

/// Environment variables (dpkg(1), "External environment set by dpkg").
fn environment(archive: &Archive, dpkg_version: &str, script: &str) -> [(&'static str, String); 9] {
    [
        ("DPKG_MAINTSCRIPT_PACKAGE", archive.name().to_owned()),
        ("DPKG_MAINTSCRIPT_PACKAGE_REFCOUNT", "1".to_owned()),
        ("DPKG_MAINTSCRIPT_ARCH", archive.architecture().to_owned()),
        ("DPKG_MAINTSCRIPT_NAME", script.to_owned()),
        ("DPKG_MAINTSCRIPT_DEBUG", "0".to_owned()),
        ("DPKG_RUNNING_VERSION", dpkg_version.to_owned()),
        ("DPKG_ADMINDIR", "/var/lib/dpkg".to_owned()),
        ("DPKG_ROOT", String::new()),
        ("DPKG_FRONTEND_LOCKED", "1".to_owned()),
    ]
}
