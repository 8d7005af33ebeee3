//! A hash of all settings that decide which files of a suite are mirrored.
//!
//! The state records the hash: an unchanged `InRelease` means that there is nothing to do only if the settings are
//! unchanged, too.

use fullbore_engine::digest::{Sha256, Sha256Hasher};

use super::select::Selection;
use crate::settings::{Filters, SourceSpec};

/// Version of the rules, part of the hash. Raise it when the same settings select other files.
const RULES: &str = "1";

/// Fingerprint of selections and filters.
pub(super) fn fingerprint(selections: &[Selection], filters: &Filters) -> Sha256 {
    let mut each: Vec<Sha256> = selections.iter().map(|selection| of_one(selection, filters)).collect();
    each.sort_unstable();
    each.dedup();
    if let [one] = each.as_slice() {
        return *one;
    }
    let mut lines = Lines(Sha256Hasher::new());
    lines.add("any of", each.iter().map(ToString::to_string));
    lines.0.finish()
}

fn of_one(selection: &Selection, filters: &Filters) -> Sha256 {
    let mut lines = Lines(Sha256Hasher::new());
    lines.add("rules", [RULES]);
    lines.add("flat", [selection.flat.to_string()]);
    lines.add("binaries", [selection.binaries.to_string()]);
    lines.add("sources", [selection.sources.to_string()]);
    lines.add("components", sorted(&selection.components));
    lines.add("architectures", sorted(&selection.architectures));
    lines.add("languages", sorted(&selection.languages));
    lines.add("without", sorted_debug(&selection.without));
    lines.add("formats", sorted_debug(&selection.formats));
    lines.add("include", filters.include.iter().map(|filter| filter.0.as_str()));
    lines.add("exclude", filters.exclude.iter().map(|filter| filter.0.as_str()));
    lines.add("sections", sorted(&filters.sections));
    lines.add("priorities", sorted(&filters.priorities));
    lines.add("source packages", sorted(&filters.source_packages));
    lines.add("newest", filters.newest.map(|newest| newest.to_string()));
    lines.0.finish()
}

/// Fingerprint of a source's trust settings. `ignore_valid_until` is a setting of the run.
pub(super) fn trust(source: &SourceSpec, ignore_valid_until: bool) -> Sha256 {
    let mut lines = Lines(Sha256Hasher::new());
    lines.add("signed by", [format!("{:?}", source.signed_by)]);
    let until = (source.check_valid_until, source.valid_until_max_s, source.valid_until_min_s, ignore_valid_until);
    lines.add("valid until", [format!("{until:?}")]);
    lines.add("date", [format!("{:?}", (source.check_date, source.max_future_s))]);
    lines.0.finish()
}

/// Hashes lines: name and values, each ended by a NUL, which no value can contain. A line ends with two.
struct Lines(Sha256Hasher);

impl Lines {
    fn add(&mut self, name: &str, values: impl IntoIterator<Item = impl AsRef<str>>) {
        self.0.update(name.as_bytes());
        for value in values {
            self.0.update(b"\0");
            self.0.update(value.as_ref().as_bytes());
        }
        self.0.update(b"\0\0");
    }
}

/// Sorts values, because their order does not matter.
fn sorted(values: &[String]) -> Vec<&str> {
    let mut values: Vec<&str> = values.iter().map(String::as_str).collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn sorted_debug<T: std::fmt::Debug>(values: &[T]) -> Vec<String> {
    let mut values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn what_selects_other_files_has_another_fingerprint() {
        let base = Selection { components: list(&["main", "contrib"]), binaries: true, ..Selection::default() };
        let filters = Filters::default();
        let of = |selection: &Selection| fingerprint(std::slice::from_ref(selection), &filters);
        let swapped = Selection { components: list(&["contrib", "main"]), ..base.clone() };
        assert_eq!(of(&base), of(&swapped));
        let moved = Selection { components: list(&["main"]), architectures: list(&["contrib"]), ..base.clone() };
        assert_ne!(of(&base), of(&moved));
        assert_ne!(of(&base), of(&Selection { sources: true, ..base.clone() }));
        let filtered = Filters { newest: Some(1), ..Filters::default() };
        assert_ne!(of(&base), fingerprint(std::slice::from_ref(&base), &filtered));
        let both = |one: &Selection, other: &Selection| fingerprint(&[one.clone(), other.clone()], &filters);
        assert_eq!(both(&base, &moved), both(&moved, &base));
        assert_ne!(both(&base, &moved), of(&base));
    }
}
