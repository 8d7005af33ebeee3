//! The Essential packages, which are unpacked before there is a dpkg.
//!
//! Their files come first, so that there are a shell and a dpkg. Then their preinst scripts run, and dpkg configures
//! the packages in apt's order of unpacking. Packages that only dpkg can unpack are unpacked by dpkg in between; their
//! files are written before that, because dpkg may need them.

use std::path::PathBuf;

use fullbore_engine::run::error::CommandError;

use super::apt::Selection;
use super::{ARCHIVES, BootstrapRun};
use crate::installing::record::RunRecord;
use crate::installing::unpacker::{Scripts, UnpackOutcome, Unpacker};
use crate::root::Root;

impl BootstrapRun<'_> {
    /// Unpacks the first packages.
    pub(super) fn unpack_first(
        &self,
        unpacker: &Unpacker<'_>,
        first: &Selection,
        record: &mut RunRecord,
    ) -> Result<UnpackOutcome, CommandError> {
        if first.order.is_empty() {
            return Ok(UnpackOutcome::default());
        }
        let archives = self.inside.root().join(ARCHIVES);
        let files: Vec<PathBuf> = first.order.iter().map(|name| archives.join(name)).collect();
        let done = unpacker.unpack(&files, Scripts::After)?;
        record.unpacked(&done);
        for (file, _) in &done.left {
            unpacker.put_files(file)?;
            self.stop.check()?;
        }
        Ok(done)
    }

    /// Configures the first packages with dpkg.
    pub(super) fn configure_first(
        &self,
        unpacker: &mut Unpacker<'_>,
        done: &UnpackOutcome,
        first: &Selection,
    ) -> Result<(), CommandError> {
        if first.order.is_empty() {
            return Ok(());
        }
        unpacker.ask_dpkg();
        unpacker.run_preinsts(done)?;
        let inside = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default();
            PathBuf::from("/").join(ARCHIVES).join(name)
        };
        if !done.left.is_empty() {
            let mut command = self.inside.command("dpkg");
            command.args(["--force-depends", "--unpack"]).args(done.left.iter().map(|(file, _)| inside(file)));
            self.log.run(&mut command, "dpkg --unpack")?;
        }
        // dpkg does not order by Pre-Depends, but apt did.
        let mut command = self.inside.command("dpkg");
        command.args(["--force-depends", "--configure"]).args(first.order.iter().map(|name| package_of(name)));
        self.log.run(&mut command, "dpkg --configure")?;
        if !self.settings.skips.has("essential/unlink") {
            let root = Root::open(self.inside.root())?;
            for name in &first.order {
                root.remove(&format!("{ARCHIVES}/{name}"))?;
            }
        }
        self.stop.check()
    }
}

/// Converts `NAME_VERSION_ARCH.deb` to `NAME:ARCH`, as in dpkg's arguments.
fn package_of(file_name: &str) -> String {
    let mut fields = file_name.trim_end_matches(".deb").split('_');
    let name = fields.next().unwrap_or_default();
    match fields.next_back() {
        None | Some("all") => name.to_owned(),
        Some(architecture) => format!("{name}:{architecture}"),
    }
}
