//! The program as one of APT's acquire methods.
//!
//! APT starts a method by the name that it has in its own directory, whatever program
//! `Dir::Bin::Methods::NAME` says is to be run; so the name in `argv[0]` tells which one is
//! wanted. A method has no flags, speaks with APT over stdin and stdout, and reads its settings
//! from the configuration that APT sends.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;

use fullbore_apt::acquire::{self, Method, Outgoing};
use fullbore_apt::rred::Rred;

/// As APT's own methods end when they cannot go on.
const EXIT_FAILED: u8 = 100;

/// Serves APT if the program was started under the name of a method; gives the exit code then.
pub fn run(arguments: &[OsString]) -> Option<u8> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    let mut method: Box<dyn Method> = match name {
        "rred" => Box::new(Rred::new()),
        _ => return None,
    };
    if arguments.len() > 1 {
        // APT's rred is also a tool for archives; that is another command here.
        let _ = writeln!(io::stderr(), "{name}: a method of APT takes no arguments; see fullbore pdiff --help");
        return Some(EXIT_FAILED);
    }
    Some(match acquire::serve(method.as_mut(), io::stdin().lock(), &Outgoing::new(io::stdout())) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{name}: {error}");
            EXIT_FAILED
        }
    })
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
    }
}
