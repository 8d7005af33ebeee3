//! The algorithms that `sqv` accepts: the policy that apt's method uses, so that both trust the same signatures.
//!
//! The first existing one is used: `APT_SEQUOIA_CRYPTO_POLICY`, the system's file for apt, `SEQUOIA_CRYPTO_POLICY`, the
//! system's file for all programs, and apt's own file. The last accepts some algorithms longer than `sqv` alone would.

use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;

/// The variable with the path of a policy for `sqv`.
pub(super) const VARIABLE: &str = "SEQUOIA_CRYPTO_POLICY";

/// A variable for apt alone.
const APT_VARIABLE: &str = "APT_SEQUOIA_CRYPTO_POLICY";

/// Files for apt alone.
const APT_FILES: [&str; 2] =
    ["/etc/crypto-policies/back-ends/apt-sequoia.config", "/var/lib/crypto-config/profiles/current/apt-sequoia.config"];

/// Files for all programs; last, the file of apt's package.
const FILES: [&str; 3] = [
    "/etc/crypto-policies/back-ends/sequoia.config",
    "/var/lib/crypto-config/profiles/current/sequoia.config",
    "/usr/share/apt/default-sequoia.config",
];

/// Policies for `sqv` that the environment names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyVariables {
    /// The variable `APT_SEQUOIA_CRYPTO_POLICY`: a policy file for APT's signatures alone.
    pub apt: Option<OsString>,
    /// The variable `SEQUOIA_CRYPTO_POLICY`: a policy file for all users of Sequoia.
    pub all: Option<OsString>,
}

impl PolicyVariables {
    /// Reads the variables with this function.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> PolicyVariables {
        let path = |name: &str| lookup(name).map(OsString::from);
        PolicyVariables { apt: path(APT_VARIABLE), all: path(VARIABLE) }
    }
}

static VARIABLES: OnceLock<PolicyVariables> = OnceLock::new();

/// Sets the environment's policy variables. The program calls this at its start, because a library does not read the
/// environment. It applies to all verifiers of the process, as the variables do; a second call changes nothing.
pub fn set_policy_variables(variables: PolicyVariables) {
    let _ = VARIABLES.set(variables);
}

/// The policy for `sqv`; `None` leaves it to `sqv` itself.
pub(super) fn of_this_machine() -> Option<OsString> {
    choose(VARIABLES.get().unwrap_or(&PolicyVariables::default()), |path| Path::new(path).is_file())
}

fn choose(variables: &PolicyVariables, exists: impl Fn(&str) -> bool) -> Option<OsString> {
    let first = |files: &[&str]| files.iter().find(|file| exists(file)).map(OsString::from);
    variables.apt.clone().or_else(|| first(&APT_FILES)).or_else(|| variables.all.clone()).or_else(|| first(&FILES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_looked_for_in_apts_order() {
        let none = PolicyVariables::default();
        let chosen = |variables: &PolicyVariables, files: &[&str]| {
            choose(variables, |path| files.contains(&path)).and_then(|path| path.into_string().ok())
        };
        assert_eq!(chosen(&none, &[]), None);
        assert_eq!(chosen(&none, &[FILES[2]]).as_deref(), Some(FILES[2]));
        assert_eq!(chosen(&none, &FILES).as_deref(), Some(FILES[0]));
        let all = PolicyVariables { apt: None, all: Some("/all".into()) };
        assert_eq!(chosen(&all, &FILES).as_deref(), Some("/all"));
        assert_eq!(chosen(&all, &APT_FILES).as_deref(), Some(APT_FILES[0]));
        let both = PolicyVariables { apt: Some("/apt".into()), all: Some("/all".into()) };
        assert_eq!(chosen(&both, &APT_FILES).as_deref(), Some("/apt"));
    }
}
