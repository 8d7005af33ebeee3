//! Runs the user's hooks, with the environment variables of mmdebstrap, and shows their output.

use std::process::{Command, Stdio};

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events;

use super::apt::{PrivateApt, Selection};
use super::{ARCHIVES, BootstrapRun};
use crate::hooks::protocol::helper;
use crate::hooks::{Form, Hook, Moment, Ownership, Starter};
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
        apt: Option<&PrivateApt<'_>>,
        first: &Selection,
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        if self.settings.simulate {
            return Ok(());
        }
        let starter = HookStarter { run: self, moment, apt, first };
        for hook in self.settings.hooks.iter().filter(|hook| hook.moment == moment) {
            record.part(Part::Hooks);
            self.run_hook(hook, &starter, events)?;
            record.part(Part::Around);
        }
        Ok(())
    }

    fn run_hook(
        &self,
        hook: &Hook,
        starter: &HookStarter<'_, '_>,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let root = self.inside.root();
        let what = format!("{} hook `{}`", hook.moment.name(), hook.script);
        if let Form::Moving(word, arguments) = hook.form()
            && self.settings.skips.has(&format!("{word}/mknod"))
        {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let (root, skips) = (root.to_string_lossy(), self.settings.skips.joined());
            let call = helper::Call { root: &root, skips: &skips, command: word, arguments: &arguments };
            let moved = self.hook_socket.call(&call);
            return moved.map_err(|error| CommandError::new(ErrorKind::Partial, format_args!("{what}: {error}")));
        }
        let owners = if self.settings.mode == Mode::Root { Ownership::Preserved } else { Ownership::Root };
        let commands = hook
            .commands(root, owners, starter)
            .map_err(|error| CommandError::usage(format_args!("{what}: {error}")))?;
        // A log of its own, because other commands write at the same time.
        let log = self.log.another(root)?;
        for mut command in commands {
            match &self.settings.hooks_print_to {
                Some(terminal) => {
                    let output = || terminal.try_clone().map(Stdio::from);
                    let internal = |error: std::io::Error| CommandError::new(ErrorKind::Internal, error);
                    command.stdout(output().map_err(internal)?).stderr(output().map_err(internal)?);
                    events.lend_terminal(true);
                    let status = command.status();
                    events.lend_terminal(false);
                    let status = status.map_err(|error| CommandError::usage(format_args!("{what}: {error}")))?;
                    log.judge(status, &what)?;
                }
                None => log.follow(&mut command, &what, &mut |line| events.note(line))?,
            }
            self.stop.check()?;
        }
        Ok(())
    }
}

/// Starts programs for the hooks of a moment.
struct HookStarter<'a, 'b> {
    run: &'a BootstrapRun<'b>,
    moment: Moment,
    apt: Option<&'a PrivateApt<'a>>,
    first: &'a Selection,
}

impl HookStarter<'_, '_> {
    /// The environment variables and descriptors of mmdebstrap's hooks.
    fn prepared(&self, mut command: Command) -> Command {
        let settings = self.run.settings;
        let mode = match settings.mode {
            Mode::Root => "root",
            Mode::Unshare => "unshare",
        };
        let include: Vec<String> =
            settings.include.iter().map(|name| name.replace('%', "%25").replace(',', "%2C")).collect();
        let essential: Vec<String> = self.first.order.iter().map(|name| format!("/{ARCHIVES}/{name}")).collect();
        command
            .env("MMDEBSTRAP_ARGV0", &settings.program)
            .env("MMDEBSTRAP_MODE", mode)
            .env("MMDEBSTRAP_SUITE", &settings.suite)
            .env("MMDEBSTRAP_FORMAT", settings.format.name())
            .env("MMDEBSTRAP_HOOK", self.moment.name())
            .env("MMDEBSTRAP_VERBOSITY", settings.verbosity.to_string())
            .env("MMDEBSTRAP_INCLUDE", include.join(","));
        if let Some(apt) = self.apt {
            command.env("MMDEBSTRAP_APT_CONFIG", apt.configuration());
        }
        if self.moment == Moment::Extract && !essential.is_empty() {
            command.env("MMDEBSTRAP_ESSENTIAL", essential.join(" "));
        }
        if settings.mode == Mode::Unshare {
            command.env("container", "mmdebstrap-unshare");
        }
        let number = self.run.hook_socket.pass_to(&mut command);
        command.env("MMDEBSTRAP_HOOKSOCK", number.to_string());
        // The stdin of the caller: a hook may be a shell, or may read a pipe.
        command.stdin(Stdio::inherit());
        command
    }
}

impl Starter for HookStarter<'_, '_> {
    fn outside(&self, program: &str) -> Command {
        self.prepared(self.run.inside.plain(program))
    }

    fn inside(&self, program: &str) -> Command {
        self.prepared(self.run.inside.command(program))
    }
}
