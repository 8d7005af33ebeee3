//! Filters on packages.

use super::Filter;

/// The filters `--include`, `--exclude`, `--section`, `--priority`, `--source-package` and `--newest`.
///
/// A package is mirrored if it passes every filter. An empty filter passes everything.
///
/// ```
/// use fullbore_mirror::Filters;
///
/// let filters = Filters { sections: vec!["devel".to_owned()], ..Filters::default() };
/// assert!(filters.wants("pool/contrib/a/a_1_all.deb", "contrib/devel", "optional", "a"));
/// assert!(!filters.wants("pool/main/b/b_1_all.deb", "net", "optional", "b"));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filters {
    /// Without `exclude`: only packages with a matching path pass. With `exclude`: a matching path passes although
    /// excluded.
    pub include: Vec<Filter>,
    /// Packages whose path matches one of these are left out, unless `include` matches too.
    pub exclude: Vec<Filter>,
    /// Sections: `devel` in every component, `contrib/devel` exactly.
    pub sections: Vec<String>,
    /// Priorities that pass, such as `required`; empty: all.
    pub priorities: Vec<String>,
    /// Names of source packages whose packages pass; empty: all.
    pub source_packages: Vec<String>,
    /// Number of newest versions to keep of each package; applied by the caller, which sees all versions.
    pub newest: Option<u32>,
}

impl Filters {
    /// Whether no filter is set, so that every package passes.
    pub fn is_empty(&self) -> bool {
        *self == Filters::default()
    }

    /// Whether a package with this path, section, priority and source package is wanted.
    ///
    /// Pass an empty string for a field that the index lacks: the package then fails a filter on it. An empty priority
    /// passes, because source packages of older archives have none.
    pub fn wants(&self, path: &str, section: &str, priority: &str, source_package: &str) -> bool {
        self.wants_path(path)
            && (self.sections.is_empty() || self.sections.iter().any(|wanted| section_is(section, wanted)))
            && (self.priorities.is_empty()
                || priority.is_empty()
                || self.priorities.iter().any(|wanted| wanted == priority))
            && (self.source_packages.is_empty() || self.source_packages.iter().any(|wanted| wanted == source_package))
    }

    /// Whether a file of this path, relative to the archive's root, is wanted.
    pub(crate) fn wants_path(&self, path: &str) -> bool {
        let any = |patterns: &[Filter]| patterns.iter().any(|pattern| pattern.0.is_match(path));
        if self.exclude.is_empty() {
            self.include.is_empty() || any(&self.include)
        } else {
            !any(&self.exclude) || any(&self.include)
        }
    }
}

/// Whether a package's section is the wanted one; `contrib/devel` is also in `devel`.
fn section_is(section: &str, wanted: &str) -> bool {
    section == wanted || section.rsplit_once('/').is_some_and(|(_, name)| name == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Filter> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn include_alone_selects() {
        let filters = Filters { include: patterns(&["^pool/main/h/"]), ..Filters::default() };
        assert!(filters.wants_path("pool/main/h/hello/hello_1_all.deb"));
        assert!(!filters.wants_path("pool/main/g/glibc/libc6_2_amd64.deb"));
    }

    #[test]
    fn include_beside_exclude_brings_back() {
        let filters =
            Filters { include: patterns(&["hello-dbg"]), exclude: patterns(&["-dbg(sym)?_"]), ..Filters::default() };
        assert!(filters.wants_path("pool/main/h/hello/hello_1_all.deb"));
        assert!(filters.wants_path("pool/main/h/hello/hello-dbg_1_amd64.deb"));
        assert!(!filters.wants_path("pool/main/g/glibc/libc6-dbg_2_amd64.deb"));
    }

    #[test]
    fn all_filters_must_agree() {
        let filters = Filters {
            sections: vec!["devel".into()],
            priorities: vec!["optional".into()],
            source_packages: vec!["hello".into()],
            ..Filters::default()
        };
        assert!(filters.wants("p", "devel", "optional", "hello"));
        assert!(filters.wants("p", "devel", "", "hello"));
        assert!(filters.wants("p", "contrib/devel", "optional", "hello"));
        assert!(!filters.wants("p", "net", "optional", "hello"));
        assert!(!filters.wants("p", "devel", "required", "hello"));
        assert!(!filters.wants("p", "devel", "optional", "glibc"));
        assert!(Filters::default().is_empty() && Filters::default().wants("", "", "", ""));
    }
}
