//! The name under which APT started a method of the http family.
//!
//! APT starts the program of `Dir::Bin::Methods::NAME` as NAME. So one program serves `http` and `https`, further names
//! (`http-ng`), and names with a prefix (`tor+http`, `mirror+https`); addresses for it begin with that name. The name
//! decides which settings `apt-transport-http(1)` assigns to the method, as in APT's own methods.

use fullbore_wire::url::Scheme;

/// The name under which APT started the method, and the protocol that follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodName {
    /// The beginning of the method's addresses: `http-ng`.
    access: String,
    /// The name with its protocol: `http-ng+http`.
    binary: String,
}

impl MethodName {
    /// Takes the last part of `argv[0]`.
    pub fn new(access: &str) -> MethodName {
        let is_whole = access.contains('+') || access == "http" || access == "https";
        let binary = if is_whole { access.to_owned() } else { format!("{access}+http") };
        MethodName { access: access.to_owned(), binary }
    }

    /// The name of its settings below `Binary`.
    pub fn binary(&self) -> &str {
        &self.binary
    }

    /// The protocol of this method's requests: HTTP or HTTPS.
    pub fn scheme(&self) -> Scheme {
        scheme_of(&self.binary)
    }

    /// The names below `Acquire` that have its settings, most specific first.
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

    /// Converts an address of this method to http: for `tor+http://h/` it is `http://h/`. `None` for an address of
    /// another method.
    pub fn plain(&self, uri: &str) -> Option<String> {
        let (access, rest) = uri.split_once("://")?;
        let is_ours = access == self.access || access == self.binary || access == "http" || access == "https";
        is_ours.then(|| format!("{}://{rest}", scheme_of(access).as_str()))
    }

    /// Converts an http address to this method's form, for redirects of APT. For the method `tor+http`, `http://h/`
    /// becomes `tor+http://h/`; for `http` it stays as it is.
    pub fn address(&self, plain: &str) -> String {
        let Some((scheme, rest)) = plain.split_once("://") else { return plain.to_owned() };
        let Some((prefix, _)) = self.binary.split_once('+').filter(|(prefix, _)| *prefix != scheme) else {
            return plain.to_owned();
        };
        let access = format!("{prefix}+{scheme}");
        if access == self.binary { format!("{}://{rest}", self.access) } else { format!("{access}://{rest}") }
    }
}

/// `https`, and names that end in `+https`, are encrypted.
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
    fn addresses_carry_the_name_of_the_method() {
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
