//! The name under which APT started a method of the http family.
//!
//! APT starts the program of `Dir::Bin::Methods::NAME` as NAME. So one program serves `http` and `https`, further names
//! (`http-ng`), and names with a prefix (`tor+http`, `mirror+https`), whose addresses begin with that name. What
//! `apt-transport-http(1)` calls the configuration of such a method follows from its name, as in APT's own methods.

use fullbore_wire::url::Scheme;

/// A method's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodName {
    /// As addresses begin: `http-ng`.
    access: String,
    /// With what it speaks: `http-ng+http`.
    binary: String,
}

impl MethodName {
    /// From the last part of `argv[0]`.
    pub fn new(access: &str) -> MethodName {
        let is_whole = access.contains('+') || access == "http" || access == "https";
        let binary = if is_whole { access.to_owned() } else { format!("{access}+http") };
        MethodName { access: access.to_owned(), binary }
    }

    /// The name of its settings below `Binary`.
    pub fn binary(&self) -> &str {
        &self.binary
    }

    /// What it speaks.
    pub fn scheme(&self) -> Scheme {
        scheme_of(&self.binary)
    }

    /// The names below `Acquire` that have its settings, the nearest first.
    pub fn settings(&self) -> Vec<&str> {
        let mut names = vec![self.binary.as_str()];
        if let Some((prefix, transport)) = self.binary.split_once('+') {
            names.extend([prefix, transport].into_iter().filter(|name| *name != "http"));
        }
        if self.binary != "http" {
            names.push("http");
        }
        names
    }

    /// An address of this method in http's own terms: of `tor+http://h/` `http://h/`. `None` if it is of another method.
    pub fn plain(&self, uri: &str) -> Option<String> {
        let (access, rest) = uri.split_once("://")?;
        let is_ours = access == self.access || access == self.binary || access == "http" || access == "https";
        is_ours.then(|| format!("{}://{rest}", scheme_of(access).as_str()))
    }

    /// An address in this method's terms: what APT is to ask instead. Of `http://h/` for the method `tor+http` it is
    /// `tor+http://h/`, and for `http` itself.
    pub fn address(&self, plain: &str) -> String {
        let Some((scheme, rest)) = plain.split_once("://") else { return plain.to_owned() };
        let Some((prefix, _)) = self.binary.split_once('+').filter(|(prefix, _)| *prefix != scheme) else {
            return plain.to_owned();
        };
        let access = format!("{prefix}+{scheme}");
        if access == self.binary { format!("{}://{rest}", self.access) } else { format!("{access}://{rest}") }
    }
}

/// `https`, and whatever ends in `+https`, is encrypted.
fn scheme_of(access: &str) -> Scheme {
    if access == "https" || access.ends_with("+https") { Scheme::Https } else { Scheme::Http }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_apts_own_methods() {
        for (name, binary, settings) in [
            ("http", "http", &["http"][..]),
            ("https", "https", &["https", "http"]),
            ("http-ng", "http-ng+http", &["http-ng+http", "http-ng", "http"]),
            ("tor+http", "tor+http", &["tor+http", "tor", "http"]),
            ("foo+https", "foo+https", &["foo+https", "foo", "https", "http"]),
            ("https+http", "https+http", &["https+http", "https", "http"]),
        ] {
            let own = MethodName::new(name);
            assert_eq!((own.binary(), own.settings()), (binary, settings.to_vec()), "{name}");
        }
    }

    #[test]
    fn addresses_there_and_back() {
        for (name, uri, plain) in [
            ("http", "http://h/x", Some("http://h/x")),
            ("http-ng", "http-ng://h/x", Some("http://h/x")),
            ("tor+https", "tor+https://h/x", Some("https://h/x")),
            ("http", "gopher://h/x", None),
            ("http", "h", None),
        ] {
            assert_eq!(MethodName::new(name).plain(uri).as_deref(), plain, "{name}");
        }
        for (name, plain, address) in [
            ("http", "http://h/", "http://h/"),
            ("http", "https://h/", "https://h/"),
            ("http-ng", "http://h/", "http-ng://h/"),
            ("http-ng", "https://h/", "http-ng+https://h/"),
            ("foo+http", "http://h/", "foo+http://h/"),
            ("foo+http", "https://h/", "foo+https://h/"),
            ("https+http", "https://h/", "https://h/"),
            ("https+http", "http://h/", "https+http://h/"),
        ] {
            assert_eq!(MethodName::new(name).address(plain), address, "{name} {plain}");
        }
    }
}
