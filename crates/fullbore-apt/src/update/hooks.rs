//! Runs the commands of apt's configuration before and after an update.

use std::io;
use std::process::{Command, Stdio};

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::signals::Signals;
use tokio::runtime::Runtime;

use crate::acquire::Configuration;

/// Runs the commands of this list in order, each in a shell, as apt does.
///
/// # Errors
/// `Partial` with the first command that failed; later ones are not run. `Internal` if signals cannot be handled.
pub(super) fn run(configuration: &Configuration, list: &str) -> Result<(), CommandError> {
    let commands = configuration.list(list);
    if commands.is_empty() {
        return Ok(());
    }
    let _signals = end_on_signals().map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    for command in commands {
        let failed = |why: String| {
            CommandError::new(ErrorKind::Partial, format_args!("{list}: {command}: {why}"))
                .hint("pass --no-hooks to skip the commands of apt's configuration")
        };
        // Output of the commands is not this program's data.
        let output = Command::new("/bin/sh").arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::null()).status();
        match output {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(failed(status.to_string())),
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    Ok(())
}

/// While this runs, a signal ends the program at once, as it ends apt. Without it signals would have no effect: the
/// handlers of the update's runtime stay when that has ended.
fn end_on_signals() -> io::Result<Runtime> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("signals").enable_io().build()?;
    runtime.spawn(Signals::listen(&runtime)?.end());
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_in_order_until_one_fails() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("said");
        let mut configuration = Configuration::new();
        for command in ["echo a >>F", "echo b >>F", "exit 3", "echo c >>F"] {
            configuration.set("APT::Update::Pre-Invoke::", &command.replace('F', &file.display().to_string()));
        }
        let error = run(&configuration, "APT::Update::Pre-Invoke").unwrap_err();
        assert!(error.message.contains("exit 3") && error.message.contains("status: 3"), "{error}");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "a\nb\n");
        assert!(run(&configuration, "APT::Update::Post-Invoke").is_ok());
    }
}
