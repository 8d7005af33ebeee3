//! Parses apt's output strictly: the packages to install.
//!
//! apt itself resolves. `apt-get --print-uris` with `Acquire::ForceHash=SHA256` gives the files, and the lines `Inst`
//! and `Conf` of `apt-get --simulate` (apt-get(8)) give their order. Both come from indexes that apt verified.

use std::collections::HashSet;

use fullbore_engine::digest::Sha256;

use crate::installing::download::local;

/// A package file that apt would fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Percent-encoded address, as apt prints it.
    pub uri: String,
    /// File name in apt's archives directory: `NAME_VERSION_ARCHITECTURE.deb`, with `%3a` for `:`.
    pub file_name: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the signed index.
    pub sha256: Sha256,
}

/// A step of apt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// Action of the step.
    pub action: Action,
    /// Name of the package, without architecture.
    pub package: String,
    /// New version; empty for a removal.
    pub version: String,
    /// Architecture; empty for a removal.
    pub architecture: String,
    /// Whether another version is installed.
    pub is_upgrade: bool,
}

/// Action of apt on a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Unpack.
    Unpack,
    /// Configure.
    Configure,
    /// Remove or purge.
    Remove,
}

/// Unexpected output of apt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    /// A line starts like an address but cannot be parsed.
    #[error("cannot parse apt's list of addresses: `{0}`")]
    Uri(String),
    /// The index has no SHA-256 for this file.
    #[error("{0}: the index has no SHA-256 for it")]
    NoHash(String),
    /// The file name is unsafe.
    #[error("{0}: unsafe name of a package file")]
    Name(String),
    /// A step is malformed.
    #[error("cannot parse apt's simulation: `{0}`")]
    Step(String),
}

/// Options that make apt print the input of [`uris`].
pub(crate) const PRINT_URIS: [&str; 4] = ["--yes", "--print-uris", "--option", "Acquire::ForceHash=SHA256"];

/// Maximum number of lines of an explanation. A guess.
const EXPLAINED_MAX: usize = 200;

/// Explanation of a refusal in the output of apt-get: unmet dependencies, providers of a virtual package. Progress
/// lines and general remarks are removed.
pub(crate) fn explanation(output: &str) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let remarks = lines.iter().position(|line| line.starts_with("The following information may help"));
    let told = lines.iter().skip(remarks.map_or(0, |at| at + 1));
    told.filter(|line| !line.ends_with("...") && !line.ends_with("... Done")).take(EXPLAINED_MAX).copied().collect()
}

/// File names in lines of `--print-uris` for which the index has no SHA-256, local files excepted.
pub(crate) fn without_sha256(output: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for line in output.lines() {
        let Some((uri, rest)) = line.strip_prefix('\'').and_then(|line| line.split_once("' ")) else { continue };
        let mut words = rest.split_whitespace();
        if let Some(name) = words.next().filter(|_| local(uri).is_none())
            && !words.nth(1).is_some_and(|hash| hash.starts_with("SHA256:"))
            && !names.contains(&name)
        {
            names.push(name);
        }
    }
    names
}

/// Parses lines of `'URI' NAME SIZE SHA256:HEX`; other lines are ignored. `hash_of` gives the hash of a file that no index
/// has, by its URI and name.
///
/// # Errors
/// [`ResolveError::Uri`] for a malformed line, [`ResolveError::NoHash`] if no hash is known for a file, and
/// [`ResolveError::Name`] for an unsafe file name.
pub(crate) fn uris(output: &str, hash_of: &dyn Fn(&str, &str) -> Option<Sha256>) -> Result<Vec<Wanted>, ResolveError> {
    let lines = output.lines().filter(|line| line.starts_with('\''));
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for line in lines {
        let wanted = uri(line, hash_of)?;
        if seen.insert(wanted.file_name.clone()) {
            all.push(wanted);
        }
    }
    Ok(all)
}

fn uri(line: &str, hash_of: &dyn Fn(&str, &str) -> Option<Sha256>) -> Result<Wanted, ResolveError> {
    let wrong = || ResolveError::Uri(line.to_owned());
    let (uri, rest) = line.strip_prefix('\'').and_then(|line| line.split_once("' ")).ok_or_else(wrong)?;
    let mut words = rest.split_whitespace();
    let (Some(file_name), Some(size)) = (words.next(), words.next()) else { return Err(wrong()) };
    let size = size.parse().map_err(|_| wrong())?;
    let sha256 = match words.next().map(|hash| hash.strip_prefix("SHA256:")) {
        Some(Some(sha256)) => sha256.parse().map_err(|_| wrong())?,
        Some(None) | None => hash_of(uri, file_name).ok_or_else(|| ResolveError::NoHash(file_name.to_owned()))?,
    };
    if file_name.starts_with('.') || file_name.contains('/') || !file_name.ends_with(".deb") {
        return Err(ResolveError::Name(file_name.to_owned()));
    }
    Ok(Wanted { uri: uri.to_owned(), file_name: file_name.to_owned(), size, sha256 })
}

/// Parses the steps of a simulation, in order.
///
/// # Errors
/// [`ResolveError::Step`] if a line `Inst`, `Conf`, `Remv` or `Purg` is malformed.
pub(crate) fn steps(output: &str) -> Result<Vec<Step>, ResolveError> {
    let mut steps = Vec::new();
    for line in output.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let action = match word {
            "Inst" => Action::Unpack,
            "Conf" => Action::Configure,
            "Remv" | "Purg" => Action::Remove,
            _ => continue,
        };
        steps.push(step(action, rest).ok_or_else(|| ResolveError::Step(line.to_owned()))?);
    }
    Ok(steps)
}

/// Parses `NAME[:ARCH] [OLD] (VERSION ORIGIN… [ARCH]) …`; for a removal `NAME [VERSION]`.
fn step(action: Action, text: &str) -> Option<Step> {
    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    let package = name.split_once(':').map_or(name, |(package, _)| package).to_owned();
    if package.is_empty() {
        return None;
    }
    let is_upgrade = rest.starts_with('[');
    if action == Action::Remove {
        return Some(Step { action, package, version: String::new(), architecture: String::new(), is_upgrade });
    }
    let inner = rest.split_once('(')?.1.split_once(')')?.0;
    let version = inner.split_whitespace().next()?.to_owned();
    let architecture = inner.rsplit_once('[')?.1.trim_end_matches(']').to_owned();
    Some(Step { action, package, version, architecture, is_upgrade })
}

/// File name of a package in apt's archives directory (`QuoteString` with `_:`).
pub(crate) fn file_name(package: &str, version: &str, architecture: &str) -> String {
    let quoted = version.replace('%', "%25").replace('_', "%5f").replace(':', "%3a");
    format!("{package}_{quoted}_{architecture}.deb")
}

/// Makes a `status` file with these packages as installed, from their stanzas in an index. apt then says what else is
/// needed before they are installed.
pub(crate) fn as_if_installed(stanzas: &str) -> String {
    let mut status = String::with_capacity(stanzas.len());
    for stanza in stanzas.split("\n\n").filter(|stanza| stanza.starts_with("Package:")) {
        for (number, line) in stanza.lines().enumerate() {
            status.push_str(line);
            status.push('\n');
            if number == 0 {
                status.push_str("Status: install ok installed\n");
            }
        }
        status.push('\n');
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_words_for_people_are_not() {
        let hash = "bfd1d89f833c09a28b062ee916495cf69649ca2bf529532476c7b69d75d24909";
        let output = format!(
            "Reading package lists...\nNeed to get 3 B of archives.\n\
             'http://deb.example.org/debian/pool/main/n/x/x_6%2b1_all.deb' x_6+1_all.deb 3 SHA256:{hash}\n"
        );
        let wanted = uris(&output, &|_, _| None).unwrap();
        assert_eq!(wanted.len(), 1);
        assert_eq!((wanted[0].file_name.as_str(), wanted[0].size), ("x_6+1_all.deb", 3));
        assert_eq!(wanted[0].sha256.to_string(), hash);
    }

    #[test]
    fn files_that_apt_has_to_fetch_have_another_hash_or_none() {
        let output = "Need to get 3 B\n'http://h/a.deb' a_1_all.deb 3 SHA256:00\n'http://h/b.deb' b_1_all.deb 3 \n\
                      'http://h/c.deb' c_1_all.deb 3 SHA512:00\n'http://h/c.deb' c_1_all.deb 3\n'file:/d.deb' d.deb 3 \n";
        assert_eq!(without_sha256(output), ["b_1_all.deb", "c_1_all.deb"]);
    }

    #[test]
    fn a_file_without_sha256_or_with_a_path_for_a_name_is_refused() {
        let hash = "b".repeat(64);
        assert!(matches!(uris("'http://h/x.deb' x.deb 3 MD5Sum:00", &|_, _| None), Err(ResolveError::NoHash(_))));
        assert!(matches!(uris("'http://h/x.deb' x.deb", &|_, _| None), Err(ResolveError::Uri(_))));
        assert!(matches!(
            uris(&format!("'http://h/x.deb' ../x.deb 3 SHA256:{hash}"), &|_, _| None),
            Err(ResolveError::Name(_))
        ));
        assert!(matches!(
            uris(&format!("'http://h/x.deb' x.deb 3 SHA256:{}", "z".repeat(64)), &|_, _| None),
            Err(ResolveError::Uri(_))
        ));
    }

    #[test]
    fn what_apt_explains_is_told_from_what_it_always_says() {
        let unmet = "Reading package lists...\nBuilding dependency tree... Done\n\
            Some packages could not be installed. This may mean that you have\n\
            requested an impossible situation or if you are using the unstable\n\
            The following information may help to resolve the situation:\n\n\
            The following packages have unmet dependencies:\n needs : Depends: nothere (>= 3) but it is not installable\n";
        let told = [
            "The following packages have unmet dependencies:",
            " needs : Depends: nothere (>= 3) but it is not installable",
        ];
        assert_eq!(explanation(unmet), told);
        let provided = "Reading package lists...\nPackage v is a virtual package provided by:\n  a 1\n  b 2\n\
            You should explicitly select one to install.\n\n";
        assert_eq!(explanation(provided).len(), 4);
        assert!(explanation("Reading package lists...\n").is_empty());
    }

    #[test]
    fn steps_are_read_in_order() {
        let output = "Reading state information...\n\
            Inst libc6 (2.36-9+deb12u14 Debian:12.15/oldstable [amd64]) []\n\
            Inst tzdata [2024a-0] (2025b-0 Debian:12.15/oldstable, Debian-Security:12/x [all])\n\
            Conf libc6:i386 (2.36-9+deb12u14 Debian:12.15/oldstable [i386])\n\
            Remv old-thing [1.0]\n";
        let steps = steps(output).unwrap();
        assert_eq!(steps.len(), 4);
        assert_eq!((steps[0].package.as_str(), steps[0].is_upgrade), ("libc6", false));
        assert_eq!((steps[1].version.as_str(), steps[1].architecture.as_str()), ("2025b-0", "all"));
        assert!(steps[1].is_upgrade);
        assert_eq!((steps[2].package.as_str(), steps[2].architecture.as_str()), ("libc6", "i386"));
        assert_eq!(steps[3].action, Action::Remove);
        assert!(super::steps("Inst libc6").is_err());
    }

    #[test]
    fn names_in_the_archives_directory_are_apts() {
        assert_eq!(file_name("x", "1:2.0-1", "amd64"), "x_1%3a2.0-1_amd64.deb");
    }

    #[test]
    fn stanzas_become_installed_packages() {
        let status = as_if_installed("Package: a\nVersion: 1\n\nPackage: b\nVersion: 2\n\n");
        assert_eq!(
            status,
            "Package: a\nStatus: install ok installed\nVersion: 1\n\nPackage: b\nStatus: install ok installed\nVersion: 2\n\n"
        );
    }
}
