//! The environment variables the program knows, beside `FULLBORE_…`, read once.

use std::path::PathBuf;

use fullbore_apt::lists::Locale;
use fullbore_debian::signature::PolicyVariables;
use fullbore_wire::run::ProxyAddresses;
use fullbore_wire::tls::SystemAuthorities;

use crate::namespace::{IN_NAMESPACE, InNamespace};
use crate::stdio;

/// What the environment says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`.
    pub proxy: ProxyAddresses,
    /// `NO_COLOR` is set and not empty.
    pub no_color: bool,
    /// `SOURCE_DATE_EPOCH`, seconds: the time written into reports.
    pub source_date_epoch: Option<i64>,
    /// The same, if it is no number.
    pub wrong_epoch: Option<String>,
    /// stderr goes to systemd's journal, which understands priorities.
    pub journal: bool,
    /// `LC_ALL`, `LC_MESSAGES` or `LANG`, and `LANGUAGE`.
    pub locale: Locale,
    /// This is the program that a bootstrap has started in namespaces of its own, or without if there are none.
    pub in_namespace: Option<InNamespace>,
    /// How this program was started, for hooks that call it.
    pub program: PathBuf,
    /// `APT_CONFIG`
    pub apt_config: Option<String>,
    /// `PATH`
    pub path: Option<String>,
    /// `TMPDIR`
    pub tmpdir: Option<String>,
    /// Which algorithms `sqv` accepts.
    pub crypto_policy: PolicyVariables,
    /// `SSL_CERT_FILE` and `SSL_CERT_DIR`, as OpenSSL and curl read them.
    pub authorities: SystemAuthorities,
    /// `XDG_STATE_HOME`, or its usual place below `HOME`.
    pub state_directory: Option<PathBuf>,
    /// `FULLBORE_LOG`: a filter in tracing's syntax, such as `fullbore_wire=debug`.
    pub log: Option<String>,
    /// Names of all variables that begin with `FULLBORE_`.
    pub names: Vec<String>,
    /// `FULLBORE_QUEUE_USER` and `FULLBORE_QUEUE_PASSWORD`: who this machine is in a queue. Not flags, because command
    /// lines are visible to all users of a machine.
    pub queue_login: (Option<String>, Option<String>),
    /// `FULLBORE_RECORD`: where the verdict's samples are recorded, for whoever tunes it (`bench/verdict`).
    pub record: Option<PathBuf>,
}

impl Environment {
    /// Reads the process's environment.
    pub fn read() -> Self {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let names = names.filter(|name| name.starts_with(crate::cli::PREFIX)).collect();
        Environment { names, ..Environment::from_lookup(|name| std::env::var(name).ok()) }
    }

    /// Reads variables by this function.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let either = |lower: &str, upper: &str| given(lower).or_else(|| given(upper));
        let all = either("all_proxy", "ALL_PROXY");
        let epoch = given("SOURCE_DATE_EPOCH").map(|value| value.trim().parse().map_err(|_| value));
        Environment {
            proxy: ProxyAddresses {
                // Only in lower case: in a CGI program HTTP_PROXY is a request header (CVE-2016-5385).
                http: given("http_proxy").or_else(|| all.clone()),
                https: either("https_proxy", "HTTPS_PROXY").or(all),
                no_proxy: either("no_proxy", "NO_PROXY")
                    .unwrap_or_default()
                    .split([',', ' '])
                    .filter(|host| !host.is_empty())
                    .map(str::to_owned)
                    .collect(),
                hosts: Vec::new(),
            },
            no_color: given("NO_COLOR").is_some(),
            source_date_epoch: epoch.as_ref().and_then(|epoch| epoch.as_ref().ok()).copied(),
            wrong_epoch: epoch.and_then(Result::err),
            // Both: INVOCATION_ID alone is inherited by everything below a service whose
            // stderr may be a file. JOURNAL_STREAM names device and inode of the stream.
            journal: given("JOURNAL_STREAM").is_some_and(|value| stderr_is(&value)),
            locale: Locale {
                messages: ["LC_ALL", "LC_MESSAGES", "LANG"].into_iter().find_map(given).unwrap_or_default(),
                language: given("LANGUAGE").unwrap_or_default(),
            },
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("fullbore")),
            in_namespace: given(IN_NAMESPACE).map(|mode| InNamespace::parse(&mode)),
            apt_config: given("APT_CONFIG"),
            crypto_policy: PolicyVariables::from_lookup(given),
            path: given("PATH"),
            tmpdir: given("TMPDIR"),
            authorities: SystemAuthorities {
                file: given("SSL_CERT_FILE").map(PathBuf::from),
                directories: given("SSL_CERT_DIR")
                    .map(|directories| std::env::split_paths(&directories).collect::<Vec<_>>())
                    .unwrap_or_default()
                    .into_iter()
                    .filter(|directory| !directory.as_os_str().is_empty())
                    .collect(),
            },
            state_directory: given("XDG_STATE_HOME")
                .map(PathBuf::from)
                .or_else(|| given("HOME").map(|home| PathBuf::from(home).join(".local/state"))),
            names: Vec::new(),
            log: given("FULLBORE_LOG"),
            queue_login: (given("FULLBORE_QUEUE_USER"), given("FULLBORE_QUEUE_PASSWORD")),
            record: given("FULLBORE_RECORD").map(PathBuf::from),
        }
    }
}

/// Whether stderr is the stream that systemd's `DEVICE:INODE` names.
fn stderr_is(stream: &str) -> bool {
    let Some((device, inode)) = stream.split_once(':') else {
        return false;
    };
    let (Ok(device), Ok(inode)) = (device.parse::<u64>(), inode.parse::<u64>()) else {
        return false;
    };
    stdio::stderr_file()
        .is_ok_and(|stderr| rustix::fs::fstat(stderr).is_ok_and(|stat| stat.st_dev == device && stat.st_ino == inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Environment {
        Environment::from_lookup(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn proxies_come_from_the_usual_variables() {
        let environment = read(&[
            ("http_proxy", "http://p:3128"),
            ("HTTPS_PROXY", "http://q:3128"),
            ("no_proxy", "localhost, .example.org"),
        ]);
        assert_eq!(environment.proxy.http.as_deref(), Some("http://p:3128"));
        assert_eq!(environment.proxy.https.as_deref(), Some("http://q:3128"));
        assert_eq!(environment.proxy.no_proxy, ["localhost", ".example.org"]);
    }

    #[test]
    fn state_is_kept_where_the_user_says_or_below_home() {
        let at = |variables: &[(&str, &str)]| read(variables).state_directory;
        assert_eq!(at(&[("HOME", "/h")]), Some("/h/.local/state".into()));
        assert_eq!(at(&[("HOME", "/h"), ("XDG_STATE_HOME", "/s")]), Some("/s".into()));
        assert_eq!(at(&[("HOME", ""), ("XDG_STATE_HOME", "")]), None);
    }

    #[test]
    fn authorities_are_where_openssl_would_look_for_them() {
        let read = |variables: &[(&str, &str)]| read(variables).authorities;
        assert_eq!(read(&[("SSL_CERT_FILE", ""), ("SSL_CERT_DIR", "")]), SystemAuthorities::default());
        let both = read(&[("SSL_CERT_FILE", "/a.pem"), ("SSL_CERT_DIR", "/b::/c")]);
        assert_eq!(both.file, Some("/a.pem".into()));
        assert_eq!(both.directories, [PathBuf::from("/b"), PathBuf::from("/c")]);
    }

    #[test]
    fn a_request_header_is_no_proxy() {
        assert_eq!(read(&[("HTTP_PROXY", "http://evil")]).proxy.http, None);
    }

    #[test]
    fn an_empty_no_color_does_not_count() {
        assert!(!read(&[("NO_COLOR", "")]).no_color);
        assert!(read(&[("NO_COLOR", "1")]).no_color);
    }

    #[test]
    fn a_journal_that_is_not_ours_does_not_count() {
        assert!(!read(&[("JOURNAL_STREAM", "1:1")]).journal);
        assert!(!read(&[("JOURNAL_STREAM", "x")]).journal);
    }
}
