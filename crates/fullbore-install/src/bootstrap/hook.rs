//! Runs the user's hooks, with the environment variables of mmdebstrap, and shows their output.

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::Events;

use super::apt::{PrivateApt, Selection};
use super::{ARCHIVES, BootstrapRun};
use crate::hooks::{Moment, Ownership};
use crate::installing::Part;
use crate::installing::record::RunRecord;
use crate::settings::Mode;

impl BootstrapRun<'_> {
    /// Whether there are hooks for a moment.
    pub(super) fn has_hooks(&self, moment: Moment) -> bool {
        self.settings.hooks.iter().any(|hook| hook.moment == moment)
    }

    /// Runs the hooks of a moment.
    pub(super) fn hooks(
        &self,
        moment: Moment,
        apt: &PrivateApt<'_>,
        first: &Selection,
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let root = self.inside.root();
        let (mode, owners) = match self.settings.mode {
            Mode::Root => ("root", Ownership::Preserved),
            _ => ("unshare", Ownership::Root),
        };
        let include: Vec<String> =
            self.settings.include.iter().map(|name| name.replace('%', "%25").replace(',', "%2C")).collect();
        let essential: Vec<String> = first.order.iter().map(|name| format!("/{ARCHIVES}/{name}")).collect();
        for hook in self.settings.hooks.iter().filter(|hook| hook.moment == moment) {
            record.part(Part::Hooks);
            let start = |program: &str| {
                let mut command = self.inside.plain(program);
                command
                    .env("MMDEBSTRAP_APT_CONFIG", apt.configuration())
                    .env("MMDEBSTRAP_MODE", mode)
                    .env("MMDEBSTRAP_HOOK", moment.name())
                    .env("MMDEBSTRAP_VERBOSITY", self.settings.verbosity.to_string())
                    .env("MMDEBSTRAP_INCLUDE", include.join(","));
                if moment == Moment::Extract {
                    command.env("MMDEBSTRAP_ESSENTIAL", essential.join(" "));
                }
                command
            };
            let what = format!("{} hook `{}`", moment.name(), hook.script);
            let commands = hook
                .commands(root, owners, &start)
                .map_err(|error| CommandError::usage(format_args!("{what}: {error}")))?;
            // A log of its own, because other commands write at the same time.
            let log = self.log.another(root)?;
            for mut command in commands {
                log.follow(&mut command, &what, &mut |line| events.note(line))?;
                self.stop.check()?;
            }
            record.part(Part::Around);
        }
        Ok(())
    }
}
