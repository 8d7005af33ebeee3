//! The packages beyond the Essential ones: apt installs them, and fullbore unpacks them.

use std::ffi::OsString;
use std::path::Path;

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::Events;

use super::apt::{PrivateApt, Selection, Shown};
use super::{ARCHIVES, Walk};
use crate::installing::account::Account;
use crate::installing::download::local;
use crate::installing::serving::{Serving, of_relay};
use crate::installing::unpacker::Unpacker;
use crate::relay::Relay;
use crate::resolve::Wanted;

/// The paths are outside of the root.
const OUTSIDE_ONLY: [&str; 2] = ["APT_CONFIG", "TMPDIR"];

impl Walk<'_> {
    /// Installs the requested packages.
    pub(super) fn install_rest(
        &self,
        apt: &PrivateApt<'_>,
        unpacker: &Unpacker<'_>,
        rest: &Selection,
        wishes: &[String],
        shown: &Shown,
        account: &mut Account,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        if wishes.is_empty() {
            return Ok(());
        }
        self.check_apt_paths()?;
        let root = self.inside.root();
        let disk = |error: std::io::Error| CommandError::disk(root, &error);
        let relay = Relay::place(root, &OUTSIDE_ONLY).map_err(|error| of_relay(&error))?;
        let mut command = apt.installing(shown);
        let option = |name: &str, value: &Path| {
            let mut option = OsString::from(name);
            option.push("=");
            option.push(value);
            option
        };
        command.arg("--yes").arg("--option").arg(option("Dir::Bin::dpkg", relay.program()));
        command.arg("--option").arg(option("DPkg::Chroot-Directory", root));
        command.args(["--option", "Dpkg::Use-Pty=0", "install"]).args(wishes);
        self.log.take(&mut command, true)?;
        let mut child = command.spawn().map_err(|error| CommandError::usage(format_args!("apt-get: {error}")))?;
        let archived =
            |wanted: &Wanted| Some((local(&wanted.uri)?, Path::new("/").join(ARCHIVES).join(&wanted.file_name)));
        let elsewhere = rest.files.iter().filter_map(archived).collect();
        let mut serving = Serving::new(root, unpacker, elsewhere, self.settings.epoch);
        let served = serving.serve(&relay, &mut child, account, events);
        if served.is_err() {
            // It would wait for input.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(error) = serving.failure {
            return Err(error);
        }
        self.log.judge(served.map_err(disk)?, "apt-get install")?;
        self.stop.check()
    }
}
