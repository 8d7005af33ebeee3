//! Why files did not come: what each host did wrong, and what kind of failure that is.
//!
//! If a host sent something else than the signed index says, and no host sent the right bytes, that is a failure of
//! verification. A file that is nowhere, or that nobody could send, is one of the network.

use std::collections::BTreeMap;

use fullbore_engine::digest::Sha256;

use crate::dispatcher::GivenUp;
use crate::fetch::HostSeen;
use crate::hosts::Fault;

/// Hosts named for one file; a list of mirrors may be long.
const HOSTS_NAMED: usize = 8;

/// What hosts are called, and why some of them are out.
pub struct Hosts {
    names: Vec<String>,
    /// A file that nobody was asked for is missing for what put the hosts out.
    out: Vec<String>,
}

impl Hosts {
    /// Copies the current state of these hosts.
    pub fn of(hosts: &[HostSeen]) -> Hosts {
        let out = hosts.iter().filter_map(|host| Some(format!("{}: {}", host.name, host.out.as_ref()?)));
        Hosts { names: hosts.iter().map(|host| host.name.clone()).collect(), out: out.take(HOSTS_NAMED).collect() }
    }

    /// Why a file did not come, in one line.
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

    /// What each host did wrong with a file: its name, and the fault.
    pub fn of_each(&self, given_up: &GivenUp) -> Vec<(String, String)> {
        let named =
            given_up.faults.iter().filter_map(|(host, fault)| Some((self.names.get(usize::from(*host))?, fault)));
        named.map(|(host, fault)| (host.clone(), fault.to_string())).take(HOSTS_NAMED).collect()
    }

    /// What each host did wrong with a file.
    fn faults(&self, given_up: &GivenUp) -> Vec<String> {
        self.of_each(given_up).into_iter().map(|(host, fault)| format!("{host}: {fault}")).collect()
    }
}

/// Whether some host sent something else in the place of the file.
pub fn is_wrong(given_up: &GivenUp) -> bool {
    given_up.faults.iter().any(|(_, fault)| fault.is_wrong_content())
}

/// Whether every host answered, and none has the right file: trying again would not help.
pub fn is_lost(given_up: &GivenUp) -> bool {
    let is_answer = |fault: &Fault| fault.is_wrong_content() || matches!(fault, Fault::Missing(_));
    given_up.missing || (!given_up.faults.is_empty() && given_up.faults.iter().all(|(_, fault)| is_answer(fault)))
}

/// Indexes that did not come, by their hash.
#[derive(Default)]
pub struct Refusals(BTreeMap<Sha256, Refusal>);

/// What is known of one of them.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// What each host did wrong, a line for each.
    pub reasons: Vec<String>,
    /// Whether some host sent other content than expected.
    pub is_wrong: bool,
    /// Every host said that it is not there.
    pub is_absent: bool,
    /// See [`is_lost`].
    pub is_lost: bool,
}

impl Refusals {
    /// Notes what became of an index.
    pub fn note(&mut self, sha256: Sha256, given_up: &GivenUp, hosts: &Hosts) {
        let faults = hosts.faults(given_up);
        let reasons = if faults.is_empty() { vec![hosts.why(given_up)] } else { faults };
        let refusal =
            Refusal { reasons, is_wrong: is_wrong(given_up), is_absent: given_up.missing, is_lost: is_lost(given_up) };
        self.0.insert(sha256, refusal);
    }

    /// Whether this holds for all these forms of an index.
    pub fn are(&self, forms: &mut dyn Iterator<Item = Sha256>, holds: fn(&Refusal) -> bool) -> bool {
        let mut forms = forms.peekable();
        forms.peek().is_some() && forms.all(|sha256| self.0.get(&sha256).is_some_and(holds))
    }

    /// The forms of an index that tell most of why it is missing: the first that came wrong, else the first.
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

/// Why files did not come, of all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Why {
    /// Nobody sent anything wrong in the place of a file.
    #[default]
    Various,
    /// Some came wrong.
    Wrong,
    /// All that is known is wrong bytes.
    Corrupt,
}

impl Why {
    /// Of all that hosts did wrong with files that nobody brought.
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
