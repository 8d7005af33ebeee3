//! Redirects of a single host. APT follows them, perhaps with another method; redirects that APT must not follow are
//! refused here.

use fullbore_wire::redirect::{RedirectError, resolve};

use super::settings::Settings;
use super::wanted::WantedFile;
use super::words;
use crate::acquire::{Failure, Message, percent_decode};

/// The answer to a request that the server has redirected to `location`.
pub(super) fn answer(settings: &Settings, wanted: &WantedFile, location: &str) -> Message {
    let request = &wanted.request;
    match target(settings, wanted, location) {
        Ok(to) => request.redirected(&to),
        Err(failure) => request.failed(&failure),
    }
}

fn target(settings: &Settings, wanted: &WantedFile, location: &str) -> Result<String, Failure> {
    let name = settings.method();
    // Only the user chooses a method, and with it a way past a sandbox or a proxy.
    let access = location.split_once("://").map_or("", |(access, _)| access);
    if access.contains('+') && !access.contains(['/', '?']) {
        return Err(Failure::new(words::chosen_method(access)));
    }
    let to = resolve(&wanted.url, location).map_err(|error| match error {
        RedirectError::Control { .. } => Failure::new(words::CONTROL_CHARACTERS),
        RedirectError::Downgrade { to, .. } => {
            Failure::new(words::forbidden_redirect(name.binary(), &name.address(&to)))
        }
        error => Failure::new(error),
    })?;
    if to == wanted.url {
        return Err(Failure { reason: Some("RedirectionLoop".into()), ..Failure::new(words::REDIRECTION_LOOP) });
    }
    let to = name.address(&to.to_string());
    // apt before 2.1.15 and with this option off encodes addresses itself.
    Ok(if settings.sends_encoded() { to } else { percent_decode(&to) })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::acquire::{Configuration, ExpectedHashes, MethodName, Request};
    use crate::http::settings::Environment;

    fn answered(method: &str, uri: &str, location: &str) -> (u16, String) {
        let mut configuration = Configuration::new();
        configuration.set("Acquire::Send-URI-Encoded", "1");
        let settings = Settings::read(MethodName::new(method), configuration, Environment::default());
        let message = Message::new(600, "URI Acquire").with("URI", uri).with("Filename", "/p/f");
        let wanted = WantedFile::new(Request::new(message), &settings).unwrap();
        assert_eq!((wanted.expected, wanted.target.as_path()), (ExpectedHashes::default(), Path::new("/p/f")));
        let wanted = WantedFile::new(wanted.request, &settings).unwrap();
        let answer = answer(&settings, &wanted, location);
        let text = answer.get("New-URI").or(answer.get("Message")).unwrap().to_owned();
        (answer.code, text)
    }

    #[test]
    fn a_redirect_stays_with_the_method_that_the_user_chose() {
        for (method, uri, location, to) in [
            ("http", "http://h/a", "/b", "http://h/b"),
            ("http", "http://h/a", "https://o/b", "https://o/b"),
            ("http-ng", "http-ng://h/a", "http://h/b", "http-ng://h/b"),
            ("http-ng", "http-ng://h/a", "/b", "http-ng://h/b"),
            ("foo+http", "foo+http://h/a", "http://o/b", "foo+http://o/b"),
            ("foo+http", "foo+http://h/a", "https://o/b", "foo+https://o/b"),
            ("https+http", "https+http://h/a", "https://o/b", "https://o/b"),
        ] {
            assert_eq!(answered(method, uri, location), (103, to.into()), "{method}");
        }
    }

    #[test]
    fn what_apt_would_not_follow_is_refused_in_its_words() {
        for (method, uri, location, text) in [
            ("https", "https://h/a", "http://o/b", "Redirection from https to 'http://o/b' is forbidden"),
            (
                "foo+https",
                "foo+https://h/a",
                "http://o/b",
                "Redirection from foo+https to 'foo+http://o/b' is forbidden",
            ),
            ("http", "http://h/a", "/a", "Redirection loop encountered"),
            (
                "http",
                "http://h/a",
                "tor+http://o/b",
                "Server tried to trick us into using a specific implementation: tor+http",
            ),
            ("http", "http://h/a", "/b%0a", words::CONTROL_CHARACTERS),
        ] {
            assert_eq!(answered(method, uri, location), (400, text.into()), "{method}");
        }
    }
}
