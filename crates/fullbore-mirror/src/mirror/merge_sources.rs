//! Merges the sources of one suite, so that it is requested and published once.
//!
//! Several `deb` lines may name one suite, and a suite has two names (`stable` and `trixie`). Its directory contains
//! one Release, so the union of the selections is mirrored.

use fullbore_apt::signed_release::ReceivedRelease;
use fullbore_debian::release_date::DateCheck;
use fullbore_debian::signature::Verifier;
use fullbore_engine::digest::Sha256;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_wire::hosts::HostId;

use super::layout::Layout;
use super::offer::NOTHING_PUBLISHED;
use super::select::Selection;
use crate::settings::SourceSpec;

/// A suite to request, with its sources.
pub(super) struct WantedSuite<'a> {
    /// Name of the suite, as requested.
    pub suite: &'a str,
    /// Its sources: at least one, all with the same trust settings.
    pub sources: Vec<&'a SourceSpec>,
}

/// The suites of these sources; a suite appears once per trust setting.
pub(super) fn wanted_suites(sources: &[SourceSpec]) -> Vec<WantedSuite<'_>> {
    let mut wanted_suites: Vec<WantedSuite<'_>> = Vec::new();
    for source in sources {
        for suite in &source.suites {
            let same = |wanted_suite: &&mut WantedSuite<'_>| {
                wanted_suite.suite == suite && wanted_suite.sources[0].trusts_like(source)
            };
            match wanted_suites.iter_mut().find(same) {
                Some(wanted_suite) => wanted_suite.sources.push(source),
                None => wanted_suites.push(WantedSuite { suite, sources: vec![source] }),
            }
        }
    }
    wanted_suites
}

/// A received suite, with its directory in the mirror.
pub(super) struct Candidate {
    /// Name of the suite, as requested.
    pub requested: String,
    /// Host that sent the signed files.
    pub host: HostId,
    /// Parts to mirror: the union of these selections.
    pub selections: Vec<Selection>,
    /// Directory and links of the suite in the mirror.
    pub layout: Layout,
    /// Signed files of the suite, and their parsed Release.
    pub received: ReceivedRelease,
    /// Verifier of the signed files; `None` for a trusted source.
    pub verifier: Option<Verifier>,
    /// Date limits of the source.
    pub check: DateCheck,
}

impl Candidate {
    /// SHA-256 of the file that identifies this state of the suite.
    pub(super) fn identity(&self) -> Sha256 {
        self.received.files.first().map_or(Sha256::EMPTY, |(_, content)| Sha256::of(content))
    }

    /// Merges another request for the same Release.
    fn take(&mut self, other: Candidate) {
        for selection in other.selections {
            if !self.selections.contains(&selection) {
                self.selections.push(selection);
            }
        }
        for link in other.layout.links {
            if !self.layout.links.contains(&link) {
                self.layout.links.push(link);
            }
        }
        if !self.received.text.is_verified() && other.received.text.is_verified() {
            (self.host, self.received, self.verifier) = (other.host, other.received, other.verifier);
        }
    }

    fn names(&self) -> [Option<&str>; 2] {
        [self.received.release.suite.as_deref(), self.received.release.codename.as_deref()]
    }
}

/// Merges suites with the same directory.
///
/// # Errors
/// `Verification` if Releases for one directory differ: two suites have one name, or the archive changed meanwhile.
pub(super) fn join(candidates: Vec<Candidate>) -> Result<Vec<Candidate>, CommandError> {
    let mut joined: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        match joined.iter_mut().find(|other| other.layout.directory == candidate.layout.directory) {
            None => joined.push(candidate),
            Some(other) if other.identity() == candidate.identity() => other.take(candidate),
            Some(other) => return Err(apart(other, &candidate)),
        }
    }
    Ok(joined)
}

fn apart(one: &Candidate, other: &Candidate) -> CommandError {
    let (names, directory) = (format!("{} and {}", one.requested, other.requested), &one.layout.directory);
    let error = CommandError::new(
        ErrorKind::Verification,
        format_args!("{names} would both be published as {directory}, and their Releases are not the same"),
    )
    .context(NOTHING_PUBLISHED);
    error.hint(if one.names() == other.names() {
        "run again: the archive changed during this run"
    } else {
        "mirror each into a directory of its own"
    })
}

#[cfg(test)]
mod tests {
    use fullbore_debian::release::Release;
    use fullbore_debian::signature::SignedText;

    use super::*;
    use crate::settings::SignedBy;

    fn candidate(requested: &str, suite: &str, component: &str, date: u32) -> Candidate {
        let text = format!(
            "Suite: {suite}\nCodename: any\nDate: Sat, 10 May 2025 09:00:{date:02} UTC\nSHA256:\n {} 1 Packages\n",
            Sha256::EMPTY
        );
        let signed = SignedText::trusted(text.as_bytes()).unwrap();
        let release = Release::parse(&signed).unwrap();
        let files = vec![("InRelease", text.into_bytes())];
        Candidate {
            requested: requested.to_owned(),
            host: 0,
            selections: vec![Selection { components: vec![component.to_owned()], ..Selection::default() }],
            layout: Layout {
                directory: "dists/any".to_owned(),
                links: vec![(format!("dists/{requested}"), "any".to_owned())],
            },
            received: ReceivedRelease { files, modified: None, tag: None, text: signed, release },
            verifier: None,
            check: DateCheck::new(0, false, 0),
        }
    }

    #[test]
    fn one_place_has_the_union() {
        let joined = join(vec![
            candidate("stable", "stable", "main", 0),
            candidate("any", "stable", "contrib", 0),
            candidate("stable", "stable", "main", 0),
        ])
        .unwrap();
        let [one] = joined.as_slice() else { panic!("{} suites", joined.len()) };
        assert_eq!(
            one.selections.iter().map(|one| one.components[0].as_str()).collect::<Vec<_>>(),
            ["main", "contrib"]
        );
        assert_eq!(one.layout.links.len(), 2);
    }

    #[test]
    fn what_is_not_the_same_is_not_joined() {
        let refused = |other| join(vec![candidate("stable", "stable", "main", 0), other]).err().unwrap().to_string();
        let changed = refused(candidate("stable", "stable", "contrib", 1));
        assert!(changed.contains("stable and stable would both be published as dists/any"), "{changed}");
        assert!(changed.contains("run again"), "{changed}");
        let another = refused(candidate("testing", "testing", "main", 0));
        assert!(another.contains("mirror each into a directory of its own"), "{another}");
    }

    #[test]
    fn a_suite_is_asked_for_once_where_trust_is_alike() {
        let source = |suites: &[&str], component: &str, signed_by: SignedBy| SourceSpec {
            suites: suites.iter().map(|&suite| suite.to_owned()).collect(),
            components: vec![component.to_owned()],
            ..SourceSpec::new("", signed_by)
        };
        let keys = SignedBy::Keys { keys: Vec::new(), fingerprints: Vec::new() };
        let sources = [
            source(&["a", "b"], "main", SignedBy::Trusted),
            source(&["b"], "contrib", SignedBy::Trusted),
            source(&["b"], "contrib", keys),
        ];
        let wanted_suites = wanted_suites(&sources);
        let found: Vec<_> =
            wanted_suites.iter().map(|wanted_suite| (wanted_suite.suite, wanted_suite.sources.len())).collect();
        assert_eq!(found, [("a", 1), ("b", 2), ("b", 1)]);
    }
}
