//! dpkg's configuration in a root (dpkg.cfg(5)), as far as it matters for unpacking.

use crate::root::{Root, RootError};
use crate::unpack::Filters;

/// Lines of dpkg's configuration that do not matter for unpacking, or are supported here.
const UNDERSTOOD: [&str; 9] = [
    "no-debsig",
    "log",
    "path-exclude",
    "path-include",
    "force-unsafe-io",
    "force-confold",
    "force-confnew",
    "force-confdef",
    "force-confmiss",
];

/// Maximum size of a configuration file of dpkg. A guess: thousands of excluded paths.
const CONFIGURATION_BYTES_MAX: usize = 1 << 20;

/// Directory of configuration files.
const DIRECTORY: &str = "etc/dpkg/dpkg.cfg.d";

/// Settings that dpkg takes from the environment of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DpkgEnvironment {
    /// `HOME`, a path in the root: dpkg reads `.dpkg.cfg` there.
    pub home: String,
    /// `DPKG_FORCE`, a comma-separated list of the names of `--force` options.
    pub force: String,
}

impl Default for DpkgEnvironment {
    /// The environment of root without `DPKG_FORCE`.
    fn default() -> DpkgEnvironment {
        DpkgEnvironment { home: "/root".to_owned(), force: String::new() }
    }
}

/// dpkg's configuration, as far as it affects unpacking.
#[derive(Debug, Default)]
pub(crate) struct DpkgConfiguration {
    /// `path-exclude` and `path-include`.
    pub filters: Filters,
    /// dpkg's log file, if configured.
    pub log: Option<String>,
    /// Reason why only dpkg can unpack in this root; `None` if fullbore can.
    pub fault: Option<String>,
}

impl DpkgConfiguration {
    /// Reads all configuration files, in the order in which dpkg reads them. An unreadable file is a fault, because
    /// dpkg may find options in it.
    pub(crate) fn read(root: &Root, environment: &DpkgEnvironment) -> DpkgConfiguration {
        let mut configuration = DpkgConfiguration::default();
        let mut files = Vec::new();
        match root.names(DIRECTORY) {
            Ok(names) => {
                let names = names.into_iter().filter_map(|name| String::from_utf8(name).ok());
                files.extend(names.filter(|name| is_part(name)).map(|name| format!("{DIRECTORY}/{name}")));
            }
            Err(error) => configuration.unreadable(DIRECTORY, &error),
        }
        files.sort();
        // dpkg reads the directory first (dpkg(1), FILES).
        files.push("etc/dpkg/dpkg.cfg".to_owned());
        files.push(format!("{}/.dpkg.cfg", environment.home.trim_matches('/')));
        for file in &files {
            match read_text(root, file) {
                Ok(Ok(text)) => configuration.add(file, &text),
                Ok(Err(what)) => configuration.fails(format!("/{file} {what}, and only dpkg reads it")),
                Err(error) => configuration.unreadable(file, &error),
            }
        }
        let forced = environment.force.split(',').filter(|name| !name.is_empty()).map(|name| format!("force-{name}"));
        if let Some(option) = forced.into_iter().find(|option| !is_understood(option)) {
            configuration.fails(format!("DPKG_FORCE has {option}, which only dpkg has"));
        }
        configuration
    }

    fn add(&mut self, file: &str, text: &str) {
        if let Some(line) = text.lines().find(|line| !is_understood(line)) {
            self.fails(format!("dpkg's configuration has options that only dpkg has: /{file}: {}", line.trim()));
        }
        self.filters.read_configuration(text);
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("log")) {
            self.log = Some(line.trim_start_matches(['=', ' ', '\t']).to_owned());
        }
    }

    fn unreadable(&mut self, file: &str, error: &RootError) {
        self.fails(format!("dpkg's configuration /{file}: {}", error.source));
    }

    /// Records a fault; only the first one is kept.
    fn fails(&mut self, what: String) {
        self.fault.get_or_insert(what);
    }
}

/// Text of a file; empty if it does not exist. The inner error describes wrong content.
fn read_text(root: &Root, file: &str) -> Result<Result<String, &'static str>, RootError> {
    let bytes = root.read(file)?.unwrap_or_default();
    if bytes.len() > CONFIGURATION_BYTES_MAX {
        return Ok(Err("is very long"));
    }
    Ok(String::from_utf8(bytes).map_err(|_| "is not UTF-8"))
}

/// Names of configuration files that dpkg reads: letters, digits, `_` and `-`.
fn is_part(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

fn is_understood(line: &str) -> bool {
    let line = line.trim().trim_start_matches("--");
    let name = line.split(['=', ' ', '\t']).next().unwrap_or_default();
    line.is_empty() || line.starts_with('#') || UNDERSTOOD.contains(&name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn configuration_that_only_dpkg_has_is_noticed() {
        for line in
            ["# x", "", "no-debsig", "log /var/log/dpkg.log", "path-exclude=/usr/share/doc/*", "--force-confold"]
        {
            assert!(is_understood(line), "{line}");
        }
        for line in ["pre-invoke=true", "force-overwrite", "admindir=/x"] {
            assert!(!is_understood(line), "{line}");
        }
    }

    fn write(root: &Path, path: &str, content: &[u8]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(root: &Path, environment: &DpkgEnvironment) -> DpkgConfiguration {
        DpkgConfiguration::read(&Root::open(root).unwrap(), environment)
    }

    #[test]
    fn the_file_in_the_home_directory_counts_and_comes_last() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "etc/dpkg/dpkg.cfg.d/a", b"log /a\npath-exclude=/usr/share/doc/*\n");
        write(root.path(), "etc/dpkg/dpkg.cfg", b"log /b\n");
        write(root.path(), "home/user/.dpkg.cfg", b"log /c\npath-include=/usr/share/doc/kept/*\nforce-overwrite\n");
        let user = DpkgEnvironment { home: "/home/user".to_owned(), force: String::new() };
        let (mine, roots) = (read(root.path(), &user), read(root.path(), &DpkgEnvironment::default()));
        assert_eq!((mine.log.as_deref(), roots.log.as_deref()), (Some("/c"), Some("/b")));
        assert!(mine.fault.unwrap().contains("/home/user/.dpkg.cfg: force-overwrite") && roots.fault.is_none());
        let kept = |filters: &Filters| !filters.skips(b"/usr/share/doc/kept/x", false);
        assert!(kept(&mine.filters) && !kept(&roots.filters));
    }

    #[test]
    fn configuration_that_cannot_be_read_is_left_to_dpkg() {
        let cases: [(&str, &[u8]); 5] = [
            ("etc/dpkg/dpkg.cfg", b"# caf\xe9\npath-exclude=/usr/share/doc/*\n"),
            ("etc/dpkg/dpkg.cfg.d/a", b"path-exclude=/usr/share/doc/\xff\n"),
            ("root/.dpkg.cfg", b"\xff"),
            // A directory in place of a file, and a file in place of the directory.
            ("etc/dpkg/dpkg.cfg/x", b""),
            ("etc/dpkg/dpkg.cfg.d", b""),
        ];
        for (path, content) in cases {
            let root = tempfile::tempdir().unwrap();
            assert_eq!(read(root.path(), &DpkgEnvironment::default()).fault, None);
            write(root.path(), path, content);
            assert!(read(root.path(), &DpkgEnvironment::default()).fault.is_some(), "{path}");
        }
        // dpkg does not read files of such names.
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "etc/dpkg/dpkg.cfg.d/a.dpkg-old", b"\xff");
        assert_eq!(read(root.path(), &DpkgEnvironment::default()).fault, None);
    }

    #[test]
    fn forced_by_the_environment_is_as_by_the_configuration() {
        let root = tempfile::tempdir().unwrap();
        let fault = |force: &str| {
            read(root.path(), &DpkgEnvironment { force: force.to_owned(), ..DpkgEnvironment::default() }).fault
        };
        assert!(fault("confold,unsafe-io").is_none());
        assert!(fault("confold,overwrite").unwrap().contains("force-overwrite"));
    }
}
