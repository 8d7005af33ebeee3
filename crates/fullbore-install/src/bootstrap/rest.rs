//! The packages beyond the Essential ones: apt installs them, and fullbore unpacks them.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::Events;

use super::apt::Selection;
use super::{ARCHIVES, BootstrapRun};
use crate::installing::download::local;
use crate::installing::dpkg_server::{DpkgServer, of_relay};
use crate::installing::record::RunRecord;
use crate::installing::unpacker::Unpacker;
use crate::relay::Relay;
use crate::resolve::Wanted;

/// Environment variables that name paths outside of the root.
const OUTSIDE_ONLY: [&str; 2] = ["APT_CONFIG", "TMPDIR"];

impl BootstrapRun<'_> {
    /// Installs the requested packages by `apt_get`, which has the options for the archive that apt sees.
    pub(super) fn install_rest(
        &self,
        mut apt_get: Command,
        unpacker: &Unpacker<'_>,
        rest: &Selection,
        requested: &[String],
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        if requested.is_empty() {
            return Ok(());
        }
        self.check_apt_paths()?;
        let root = self.inside.root();
        let disk = |error: std::io::Error| CommandError::disk(root, &error);
        let relay = Relay::place(root, &OUTSIDE_ONLY).map_err(|error| of_relay(&error))?;
        let option = |name: &str, value: &Path| {
            let mut option = OsString::from(name);
            option.push("=");
            option.push(value);
            option
        };
        apt_get.arg("--yes").arg("--option").arg(option("Dir::Bin::dpkg", relay.program()));
        apt_get.arg("--option").arg(option("DPkg::Chroot-Directory", root));
        apt_get.args(["--option", "Dpkg::Use-Pty=0", "install"]).args(requested);
        self.log.take(&mut apt_get, true)?;
        let mut child = apt_get.spawn().map_err(|error| CommandError::usage(format_args!("apt-get: {error}")))?;
        let archived =
            |wanted: &Wanted| Some((local(&wanted.uri)?, Path::new("/").join(ARCHIVES).join(&wanted.file_name)));
        let elsewhere = rest.files.iter().filter_map(archived).collect();
        let mut server = DpkgServer::new(root, unpacker, elsewhere, self.settings.epoch);
        let served = server.serve(&relay, &mut child, record, events);
        if served.is_err() {
            // apt-get would wait for input.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(error) = server.failure {
            return Err(error);
        }
        self.log.judge(served.map_err(disk)?, "apt-get install")?;
        self.stop.check()
    }
}
