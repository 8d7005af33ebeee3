//! apt's configuration on this machine.
//!
//! apt's files include each other and may be anywhere (`APT_CONFIG`), so `apt-config` reads them.

use std::process::{Command, Stdio};

use fullbore_engine::run::CommandError;

use super::sources::native_architecture;
use crate::acquire::Configuration;
use crate::lists::built_in;

/// apt's configuration; its defaults on a machine without apt.
///
/// # Errors
/// A usage error with apt's message if apt-config fails or prints something unreadable. A machine without apt is no
/// error.
pub fn read() -> Result<Configuration, CommandError> {
    let dump = Command::new("apt-config").args(Configuration::DUMP).stdin(Stdio::null()).output();
    let output = match dump {
        Ok(output) => output,
        // No apt on this machine.
        Err(_) => return Ok(built_in::configuration(native_architecture())),
    };
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(CommandError::usage(format_args!("apt's configuration cannot be read: {}", why.trim())));
    }
    Configuration::from_dump(&String::from_utf8_lossy(&output.stdout)).map_err(CommandError::usage)
}
