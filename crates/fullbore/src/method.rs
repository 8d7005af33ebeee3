//! The program as one of APT's acquire methods.
//!
//! APT starts a method by the name that it has in its own directory, whatever program
//! `Dir::Bin::Methods::NAME` says is to be run; so the name in `argv[0]` tells which one is
//! wanted. Names of the http family may be the user's own: with a prefix (`tor+http`), or any name in apt's directory of
//! methods (`http-ng`). A method has no flags, speaks with APT over stdin and stdout, and reads its settings
//! from the configuration that APT sends.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use fullbore_apt::acquire::{self, Outgoing};
use fullbore_apt::http;
use fullbore_apt::rred::Rred;

use crate::stdio;

/// As APT's own methods end when they cannot go on.
const EXIT_FAILED: u8 = 100;

/// Serves APT if the program was started under the name of a method; gives the exit code then.
pub fn run(arguments: &[OsString]) -> Option<u8> {
    let path = Path::new(arguments.first()?);
    let name = path.file_name()?.to_str()?;
    if !is_method(path, name) {
        return None;
    }
    match arguments.get(1).and_then(|argument| argument.to_str()) {
        Some("--help" | "-h") if arguments.len() == 2 => return Some(print(&[&version(name), &usage(name)])),
        Some("--version" | "-v") if arguments.len() == 2 => return Some(print(&[&version(name)])),
        _ => {}
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
        _ => http::serve(name, io::stdin(), &apt, environment(), Arc::new(stdio::say)),
    };
    Some(match served {
        Ok(()) => 0,
        Err(error) => {
            stdio::say(&format!("{name}: {error}"));
            EXIT_FAILED
        }
    })
}

/// The last part of `Dir::Bin::Methods`, apt's directory of methods.
const METHODS_DIRECTORY: &str = "methods";

/// Whether APT has started the program as a method. Under names of its own, the program is none.
fn is_method(path: &Path, name: &str) -> bool {
    let has_transport = name.split_once('+').is_some_and(|(_, transport)| ["http", "https"].contains(&transport));
    let is_apts = path.parent().and_then(Path::file_name).is_some_and(|directory| directory == METHODS_DIRECTORY);
    ["rred", "http", "https"].contains(&name) || has_transport || is_apts && !name.starts_with("fullbore")
}

/// As programs of apt say it, with the name of this one.
fn version(name: &str) -> String {
    format!("apt method {name} of fullbore {} ({})", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

fn usage(name: &str) -> String {
    format!("Usage: {name} is started by apt, and speaks with it over stdin and stdout. See fullbore apt --help.")
}

fn print(lines: &[&str]) -> u8 {
    let printed = lines.iter().try_for_each(|line| writeln!(stdio::Stdout, "{line}"));
    if printed.is_ok() { 0 } else { EXIT_FAILED }
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
        for name in ["https", "http-ng", "tor+http", "foo+https"] {
            assert_eq!(run(&[&format!("/usr/lib/apt/methods/{name}"), "-t"]), Some(EXIT_FAILED), "{name}");
        }
        assert_eq!(run(&["/opt/fullbore-1.2", "--version"]), None);
        assert_eq!(run(&["/usr/lib/apt/methods/fullbore", "--version"]), None);
    }
}
