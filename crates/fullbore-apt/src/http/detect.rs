//! The program that finds a proxy: `Acquire::http::Proxy-Auto-Detect`.
//!
//! APT runs it for the host of each request and sends the result. This module runs it for further mirrors.

use std::io::Read;
use std::process::{Command, Stdio};

use fullbore_wire::url::Url;

use super::settings::Settings;

/// Bytes of its answer that are read: one line.
const ANSWER_BYTES_MAX: u64 = 512;

/// The program's answer for this address; `None` without a program or an answer.
///
/// Blocks until the program has closed its output, as APT does.
pub(super) fn proxy(settings: &Settings, url: &Url) -> Option<String> {
    let program =
        ["Proxy-Auto-Detect", "ProxyAutoDetect"].iter().find_map(|name| settings.find(None, url.scheme(), name))?;
    let mut child = Command::new(program)
        .arg(url.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| tracing::warn!(program, %error, "cannot run"))
        .ok()?;
    let mut answer = String::new();
    let read = child.stdout.take().map(|output| output.take(ANSWER_BYTES_MAX).read_to_string(&mut answer));
    // Further output is ignored.
    let _ = child.wait();
    read?.ok()?;
    let line = answer.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::acquire::{Configuration, MethodName};
    use crate::http::settings::Environment;

    #[test]
    fn the_program_is_asked_with_the_address() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("detect");
        let script = "#!/bin/sh\ncase $1 in http://a/*) echo \" http://proxy:1 \";; esac\n";
        fullbore_testkit::process::write_program(&program, script);
        let mut configuration = Configuration::new();
        configuration.set("Acquire::http::Proxy-Auto-Detect", &program.display().to_string());
        let settings = Settings::read(MethodName::new("http"), configuration, Environment::default());
        let ask = |url: &str| proxy(&settings, &Url::parse(url).unwrap());
        assert_eq!(ask("http://a/debian").as_deref(), Some("http://proxy:1"));
        assert_eq!(ask("http://b/debian"), None);
        let nothing = Settings::read(MethodName::new("http"), Configuration::new(), Environment::default());
        assert_eq!(proxy(&nothing, &Url::parse("http://a/").unwrap()), None);
    }
}
