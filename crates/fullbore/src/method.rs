//! The program as one of APT's acquire methods.
//!
//! APT starts a method by the name that it has in its own directory, whatever program
//! `Dir::Bin::Methods::NAME` says is to be run; so the name in `argv[0]` tells which one is
//! wanted. A method has no flags, speaks with APT over stdin and stdout, and reads its settings
//! from the configuration that APT sends.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use fullbore_apt::acquire::{self, Outgoing};
use fullbore_apt::http;
use fullbore_apt::rred::Rred;

use crate::stdio;

/// As APT's own methods end when they cannot go on.
const EXIT_FAILED: u8 = 100;

/// Serves APT if the program was started under the name of a method; gives the exit code then.
pub fn run(arguments: &[OsString]) -> Option<u8> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    if !["rred", "http", "https"].contains(&name) {
        return None;
    }
    if arguments.len() > 1 {
        // APT's rred is also a tool for archives; that is another command here.
        stdio::say(&format!("{name}: a method of APT takes no arguments; see fullbore pdiff --help"));
        return Some(EXIT_FAILED);
    }
    start_log();
    let apt = Outgoing::new(stdio::Stdout);
    let served = match name {
        "rred" => acquire::serve(&mut Rred::new(), io::stdin().lock(), &apt),
        _ => http::serve(name, io::stdin(), &apt, environment()),
    };
    Some(match served {
        Ok(()) => 0,
        Err(error) => {
            stdio::say(&format!("{name}: {error}"));
            EXIT_FAILED
        }
    })
}

/// For those who look into it: `FULLBORE_LOG=fullbore_wire=debug apt-get update` writes to stderr.
fn start_log() {
    let Some(filter) = std::env::var("FULLBORE_LOG").ok().filter(|filter| !filter.is_empty()) else { return };
    let filter = tracing_subscriber::EnvFilter::builder().parse_lossy(filter);
    // The first log counts, should there be one already.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| stdio::Log).with_ansi(false).try_init();
}

/// The variables that APT's own methods look at, and no others.
fn environment() -> http::Environment {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    http::Environment {
        // Without it, files that APT names without a path cannot be written, and that is said.
        directory: std::env::current_dir().unwrap_or_default(),
        http_proxy: variable("http_proxy"),
        https_proxy: variable("https_proxy"),
        no_proxy: variable("no_proxy"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_names_of_methods_are_methods() {
        let run = |arguments: &[&str]| run(&arguments.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(run(&["/usr/bin/fullbore", "rred"]), None);
        assert_eq!(run(&[]), None);
        assert_eq!(run(&["/usr/lib/apt/methods/rred", "-t"]), Some(EXIT_FAILED));
        assert_eq!(run(&["/usr/lib/apt/methods/https", "-t"]), Some(EXIT_FAILED));
    }
}
