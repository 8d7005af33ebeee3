//! The two ends of mmdebstrap's protocol for hooks: `--hook-helper` and `--hook-listener`.
//!
//! A hook that has to reach files outside of its user namespace calls `"$MMDEBSTRAP_ARGV0" --hook-helper ROOT MODE HOOK
//! SKIP VERBOSITY COMMAND ARGUMENTS…`, with `MMDEBSTRAP_HOOKSOCK` as stdin and stdout. No other flag goes with them, so
//! that they are no flags of the command line.

use std::ffi::OsString;
use std::io;

use fullbore_install::hooks::protocol::{Peer, helper, listener};

use crate::stdio;

/// Runs either end if the command line asks for it; the result is the exit code.
pub fn run(words: &[OsString]) -> Option<u8> {
    let words: Vec<&str> = words.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    let words = words.strip_prefix(&["bootstrap"]).unwrap_or(&words);
    let peer = || Peer::new(io::stdin().lock(), stdio::Stdout);
    let result = match words {
        ["--hook-helper", root, _mode, _hook, skips, _verbosity, command, arguments @ ..] => {
            helper::run(&helper::Call { root, skips, command, arguments }, &mut peer())
        }
        ["--hook-listener", _verbosity] => listener::run(&mut peer()),
        _ => return None,
    };
    Some(match result {
        Ok(()) => 0,
        Err(error) => {
            stdio::say(&format!("error: {error}"));
            1
        }
    })
}
