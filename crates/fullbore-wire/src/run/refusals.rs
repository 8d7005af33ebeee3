//! Why files were not delivered: the faults of each host, and the kind of failure.
//!
//! If a host sent other content than the signed index says, and no host sent the right bytes, it is a failure of
//! verification. If a file does not exist, or nobody could send it, it is a failure of the network.

use std::collections::BTreeMap;

use fullbore_engine::digest::Sha256;

use crate::dispatcher::GivenUp;
use crate::fetch::HostSeen;
use crate::hosts::Fault;

/// Maximum number of hosts named for one file; a list of mirrors may be long.
const HOSTS_NAMED: usize = 8;

/// Names of the hosts, and why some of them are out.
pub struct Hosts {
    names: Vec<String>,
    /// Reasons why hosts are out. They explain a file for which no host was asked.
    out: Vec<String>,
}

impl Hosts {
    /// Copies the current state of these hosts.
    pub fn of(hosts: &[HostSeen]) -> Hosts {
        let out = hosts.iter().filter_map(|host| Some(format!("{}: {}", host.name, host.out.as_ref()?)));
        Hosts { names: hosts.iter().map(|host| host.name.clone()).collect(), out: out.take(HOSTS_NAMED).collect() }
    }

    /// Why a file was not delivered, in one line.
    pub fn why(&self, given_up: &GivenUp) -> String {
        let tried = || given_up.tried.iter().filter_map(|host| self.names.get(host as usize));
        let tried: Vec<&str> = tried().map(String::as_str).take(HOSTS_NAMED).collect();
        let faults = self.faults(given_up);
        match (given_up.missing, tried.is_empty(), faults.is_empty()) {
            (true, ..) => format!("not on {}", tried.join(", ")),
            (false, _, false) => faults.join("; "),
            (false, false, true) if self.out.is_empty() => format!("wrong or broken from {}", tried.join(", ")),
            (false, _, true) if !self.out.is_empty() => self.out.join("; "),
            (false, _, true) => "no mirror could be reached".to_owned(),
        }
    }

    /// Name and fault of each host that failed a file.
    pub fn of_each(&self, given_up: &GivenUp) -> Vec<(String, String)> {
        let named =
            given_up.faults.iter().filter_map(|(host, fault)| Some((self.names.get(usize::from(*host))?, fault)));
        named.map(|(host, fault)| (host.clone(), fault.to_string())).take(HOSTS_NAMED).collect()
    }

    /// Fault of each host that failed a file, as text.
    fn faults(&self, given_up: &GivenUp) -> Vec<String> {
        self.of_each(given_up).into_iter().map(|(host, fault)| format!("{host}: {fault}")).collect()
    }
}

/// Whether any host sent other content instead of the file.
pub fn is_wrong(given_up: &GivenUp) -> bool {
    given_up.faults.iter().any(|(_, fault)| fault.is_wrong_content())
}

/// Whether every host answered, and none has the right file: trying again would not help.
pub fn is_lost(given_up: &GivenUp) -> bool {
    let is_answer = |fault: &Fault| fault.is_wrong_content() || matches!(fault, Fault::Missing(_));
    given_up.missing || (!given_up.faults.is_empty() && given_up.faults.iter().all(|(_, fault)| is_answer(fault)))
}

/// Indexes that were not delivered, by their hash.
#[derive(Default)]
pub struct Refusals(BTreeMap<Sha256, Refusal>);

/// Failures of one index.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Fault of each host, one line each.
    pub reasons: Vec<String>,
    /// Whether some host sent other content than expected.
    pub is_wrong: bool,
    /// Whether every host answered that it does not exist.
    pub is_absent: bool,
    /// Result of [`is_lost`].
    pub is_lost: bool,
}

impl Refusals {
    /// Records the failure of an index.
    pub fn note(&mut self, sha256: Sha256, given_up: &GivenUp, hosts: &Hosts) {
        let faults = hosts.faults(given_up);
        let reasons = if faults.is_empty() { vec![hosts.why(given_up)] } else { faults };
        let refusal =
            Refusal { reasons, is_wrong: is_wrong(given_up), is_absent: given_up.missing, is_lost: is_lost(given_up) };
        self.0.insert(sha256, refusal);
    }

    /// Whether `holds` is true for all these forms of an index.
    pub fn are(&self, forms: &mut dyn Iterator<Item = Sha256>, holds: fn(&Refusal) -> bool) -> bool {
        let mut forms = forms.peekable();
        forms.peek().is_some() && forms.all(|sha256| self.0.get(&sha256).is_some_and(holds))
    }

    /// The most informative failure among these forms of an index: the first with wrong content, otherwise the first.
    pub fn of(&self, forms: &mut dyn Iterator<Item = Sha256>) -> Option<&Refusal> {
        let mut first = None;
        for refusal in forms.filter_map(|sha256| self.0.get(&sha256)) {
            if refusal.is_wrong {
                return Some(refusal);
            }
            first = first.or(Some(refusal));
        }
        first
    }
}

/// Common reason of several failed files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Why {
    /// No host sent wrong content.
    #[default]
    Various,
    /// Some hosts sent wrong content.
    Wrong,
    /// All known faults are wrong bytes.
    Corrupt,
}

impl Why {
    /// Classifies the faults of all files that were not delivered.
    pub fn of<'a>(faults: impl Iterator<Item = &'a Fault>) -> Why {
        let (mut wrong, mut other) = (false, false);
        for fault in faults {
            wrong |= fault.is_wrong_content();
            other |= *fault != Fault::WrongBytes;
        }
        match (wrong, other) {
            (false, _) => Why::Various,
            (true, true) => Why::Wrong,
            (true, false) => Why::Corrupt,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::hosts::HostSet;

    use super::*;

    #[test]
    fn a_file_is_lost_if_every_host_answered_and_none_has_it() {
        for (missing, faults, lost) in [
            (true, vec![], true),
            (false, vec![(0, Fault::WrongBytes)], true),
            (false, vec![(0, Fault::WrongBytes), (1, Fault::Missing(404))], true),
            (false, vec![(0, Fault::Slow), (1, Fault::Missing(404))], false),
            (false, vec![], false),
        ] {
            let given_up = GivenUp { item: 0, tried: HostSet::default(), missing, faults };
            assert_eq!(is_lost(&given_up), lost, "{given_up:?}");
        }
    }

    #[test]
    fn what_came_wrong_decides_the_kind() {
        let length = || Fault::WrongSize("answer ends 5 B early".into());
        for (faults, why) in [
            (vec![], Why::Various),
            (vec![Fault::Slow, Fault::Missing(404)], Why::Various),
            (vec![Fault::WrongAnswer("status 204".into())], Why::Various),
            (vec![Fault::WrongBytes, Fault::WrongBytes], Why::Corrupt),
            (vec![Fault::Missing(404), Fault::WrongBytes], Why::Wrong),
            (vec![length()], Why::Wrong),
        ] {
            assert_eq!(Why::of(faults.iter()), why, "{faults:?}");
        }
    }

    #[test]
    fn the_form_that_came_wrong_tells_why() {
        let hosts = Hosts { names: vec!["a".into(), "b".into()], out: Vec::new() };
        let given_up =
            |faults: Vec<(u16, Fault)>| GivenUp { item: 0, tried: HostSet::default(), missing: false, faults };
        let mut refusals = Refusals::default();
        let [missing, wrong, none] = [&b"1"[..], b"2", b"3"].map(Sha256::of);
        refusals.note(missing, &given_up(vec![(0, Fault::Missing(404))]), &hosts);
        refusals.note(wrong, &given_up(vec![(0, Fault::Missing(404)), (1, Fault::WrongBytes)]), &hosts);
        let of =
            |forms: &[Sha256]| refusals.of(&mut forms.iter().copied()).map(|one| (one.is_wrong, one.reasons.len()));
        assert_eq!(of(&[missing, wrong]), Some((true, 2)));
        assert_eq!(of(&[none, missing]), Some((false, 1)));
        assert_eq!(of(&[none]), None);
    }
}
