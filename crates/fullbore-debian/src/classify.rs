//! Classifies a path in a `Release`: which kind of index it names, and of which component, architecture or language.
//!
//! Only the name is used, in the layout of wiki.example.org/DebianRepository/Format and of the archives that dak and
//! Ubuntu publish.

use crate::compression::Form;
use crate::path::without_dot;

/// Kind of an index, told from its path in the `Release`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IndexKind<'a> {
    /// `binary-ARCH/Packages`, or below `debian-installer/` for udebs.
    Packages {
        /// Whether it lists udebs, the installer's small packages.
        udeb: bool,
    },
    /// `source/Sources`: the list of source packages.
    Sources,
    /// The small `Release` within a `binary-ARCH` or `source` directory.
    InnerRelease,
    /// `Contents-ARCH`, `Contents-udeb-ARCH`, `Contents-source` (architecture `source`).
    Contents {
        /// Whether it lists udebs, the installer's small packages.
        udeb: bool,
    },
    /// `i18n/Translation-LANGUAGE`: translated package descriptions.
    Translation {
        /// Language code, such as `en` or `pt_BR`; a hash in very old archives.
        language: &'a str,
    },
    /// `i18n/Index`: the list of translations in old archives.
    TranslationIndex,
    /// `dep11/Components-ARCH.yml`: AppStream metadata.
    Components,
    /// `dep11/icons-SIZE.tar`, for instance of `48x48` or `64x64@2`: AppStream icons.
    Icons {
        /// Size as in the name, such as `48x48`.
        size: &'a str,
    },
    /// `dep11/CID-Index-ARCH.json`: AppStream component ids.
    ComponentIds,
    /// `cnf/Commands-ARCH`: commands for command-not-found.
    Commands,
    /// `installer-ARCH/VERSION/images/SHA256SUMS` (or `MD5SUMS`): lists the installer's images.
    InstallerSums {
        /// Version of the installer, such as `20230607+deb12u12` or `current`.
        version: &'a str,
        /// Whether the file lists SHA-256 instead of MD5.
        sha256: bool,
    },
    /// An unknown index, or not an index.
    Other,
}

/// Parts of a path in a `Release` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IndexName<'a> {
    /// Kind of the index; for `X.diff/Index` the kind of `X`.
    pub kind: IndexKind<'a>,
    /// Component, such as `main` or `updates/main`; `None` at the top of a suite and in flat repositories.
    pub component: Option<&'a str>,
    /// Architecture, such as `amd64`, `all` or `source`; `None` for a file of all architectures.
    pub architecture: Option<&'a str>,
    /// Compression of the index file, told from its suffix.
    pub form: Form,
    /// Path without the extension of the compression; all variants of an index share it.
    pub stem: &'a str,
    /// Whether this is `X.diff/Index`, the list of patches to `X`.
    pub diff: bool,
}

/// Splits a path of a `Release` file into its parts. An unknown path is [`IndexKind::Other`].
///
/// ```
/// use fullbore_debian::classify::{IndexKind, classify};
///
/// let name = classify("main/binary-amd64/Packages.xz");
/// assert_eq!(name.kind, IndexKind::Packages { udeb: false });
/// assert_eq!((name.component, name.architecture), (Some("main"), Some("amd64")));
/// assert_eq!(name.stem, "main/binary-amd64/Packages");
/// ```
pub fn classify(path: &str) -> IndexName<'_> {
    let (stem, form) = Form::split(without_dot(path));
    let (base, diff) = match stem.strip_suffix(".diff/Index") {
        Some(base) if form == Form::Plain => (base, true),
        _ => (stem, false),
    };
    let (directory, name) = base.rsplit_once('/').unwrap_or(("", base));
    let (kind, component, architecture) = kind_of(directory, name).unwrap_or((IndexKind::Other, None, None));
    IndexName { kind, component: component.filter(|component| !component.is_empty()), architecture, form, stem, diff }
}

type Parts<'a> = (IndexKind<'a>, Option<&'a str>, Option<&'a str>);

fn kind_of<'a>(directory: &'a str, name: &'a str) -> Option<Parts<'a>> {
    // The last directory is the kind, and the part before it is the component.
    let (before, last) = directory.rsplit_once('/').unwrap_or(("", directory));
    if let Some(architecture) = last.strip_prefix("binary-") {
        let (component, udeb) = match before.strip_suffix("debian-installer") {
            Some(component) if component.is_empty() || component.ends_with('/') => {
                (component.trim_end_matches('/'), true)
            }
            _ => (before, false),
        };
        let kind = match name {
            "Packages" => IndexKind::Packages { udeb },
            "Release" => IndexKind::InnerRelease,
            _ => return None,
        };
        return Some((kind, Some(component), Some(architecture)));
    }
    if let Some(contents) = name.strip_prefix("Contents-") {
        let (architecture, udeb) = contents.strip_prefix("udeb-").map_or((contents, false), |rest| (rest, true));
        return Some((IndexKind::Contents { udeb }, Some(directory), Some(architecture)));
    }
    match (last, name) {
        ("source", "Sources") => Some((IndexKind::Sources, Some(before), Some("source"))),
        ("source", "Release") => Some((IndexKind::InnerRelease, Some(before), Some("source"))),
        ("i18n", "Index") => Some((IndexKind::TranslationIndex, Some(before), None)),
        ("i18n", _) => {
            let language = name.strip_prefix("Translation-")?;
            Some((IndexKind::Translation { language }, Some(before), None))
        }
        ("dep11", _) => dep11(before, name),
        ("cnf", _) => Some((IndexKind::Commands, Some(before), Some(name.strip_prefix("Commands-")?))),
        (_, "SHA256SUMS" | "MD5SUMS") => installer(directory, name),
        // A flat repository has its indexes beside its packages, in one or more directories.
        (_, "Packages") => Some((IndexKind::Packages { udeb: false }, None, None)),
        (_, "Sources") => Some((IndexKind::Sources, None, Some("source"))),
        _ => None,
    }
}

fn dep11<'a>(component: &'a str, name: &'a str) -> Option<Parts<'a>> {
    if let Some(architecture) = name.strip_prefix("Components-").and_then(|rest| rest.strip_suffix(".yml")) {
        Some((IndexKind::Components, Some(component), Some(architecture)))
    } else if let Some(size) = name.strip_prefix("icons-").and_then(|rest| rest.strip_suffix(".tar")) {
        Some((IndexKind::Icons { size }, Some(component), None))
    } else {
        let architecture = name.strip_prefix("CID-Index-").and_then(|rest| rest.strip_suffix(".json"))?;
        Some((IndexKind::ComponentIds, Some(component), Some(architecture)))
    }
}

/// `COMPONENT/installer-ARCH/VERSION/images/SHA256SUMS`; Ubuntu also has `legacy-images`.
fn installer<'a>(directory: &'a str, name: &str) -> Option<Parts<'a>> {
    let (component, rest) = match directory.strip_prefix("installer-") {
        Some(rest) => ("", rest),
        None => directory.split_once("/installer-")?,
    };
    let mut parts = rest.split('/');
    let (architecture, version, images) = (parts.next()?, parts.next()?, parts.next()?);
    if !images.ends_with("images") || parts.next().is_some() {
        return None;
    }
    let kind = IndexKind::InstallerSums { version, sha256: name == "SHA256SUMS" };
    Some((kind, Some(component), Some(architecture)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(path: &str) -> (IndexKind<'_>, &str, &str, Form, bool) {
        let name = classify(path);
        (name.kind, name.component.unwrap_or("-"), name.architecture.unwrap_or("-"), name.form, name.diff)
    }

    #[test]
    fn names_of_debian_and_ubuntu_have_their_kinds() {
        use Form::{Gz, Plain, Xz};
        use IndexKind::*;
        let sums = |version, sha256| InstallerSums { version, sha256 };
        for (path, expected) in [
            ("main/binary-amd64/Packages.xz", (Packages { udeb: false }, "main", "amd64", Xz, false)),
            ("main/binary-all/Packages", (Packages { udeb: false }, "main", "all", Plain, false)),
            ("non-free-firmware/binary-arm64/Release", (InnerRelease, "non-free-firmware", "arm64", Plain, false)),
            ("main/debian-installer/binary-i386/Packages.gz", (Packages { udeb: true }, "main", "i386", Gz, false)),
            ("main/binary-amd64/Packages.diff/Index", (Packages { udeb: false }, "main", "amd64", Plain, true)),
            ("updates/main/binary-amd64/Packages.gz", (Packages { udeb: false }, "updates/main", "amd64", Gz, false)),
            ("main/source/Sources.xz", (Sources, "main", "source", Xz, false)),
            ("main/source/Sources.diff/Index", (Sources, "main", "source", Plain, true)),
            ("main/source/Release", (InnerRelease, "main", "source", Plain, false)),
            ("main/Contents-amd64.gz", (Contents { udeb: false }, "main", "amd64", Gz, false)),
            ("main/Contents-all.diff/Index", (Contents { udeb: false }, "main", "all", Plain, true)),
            ("main/Contents-udeb-amd64.gz", (Contents { udeb: true }, "main", "amd64", Gz, false)),
            ("main/Contents-source.gz", (Contents { udeb: false }, "main", "source", Gz, false)),
            ("Contents-amd64.gz", (Contents { udeb: false }, "-", "amd64", Gz, false)),
            ("main/i18n/Translation-pt_BR.xz", (Translation { language: "pt_BR" }, "main", "-", Xz, false)),
            ("main/i18n/Index", (TranslationIndex, "main", "-", Plain, false)),
            ("main/dep11/Components-amd64.yml.gz", (Components, "main", "amd64", Gz, false)),
            ("main/dep11/icons-48x48@2.tar.gz", (Icons { size: "48x48@2" }, "main", "-", Gz, false)),
            ("main/dep11/CID-Index-amd64.json.gz", (ComponentIds, "main", "amd64", Gz, false)),
            ("universe/cnf/Commands-riscv64.xz", (Commands, "universe", "riscv64", Xz, false)),
            ("main/installer-amd64/current/images/SHA256SUMS", (sums("current", true), "main", "amd64", Plain, false)),
            (
                "main/installer-arm64/20230607+deb12u12/images/MD5SUMS",
                (sums("20230607+deb12u12", false), "main", "arm64", Plain, false),
            ),
            (
                "main/installer-amd64/current/legacy-images/SHA256SUMS",
                (sums("current", true), "main", "amd64", Plain, false),
            ),
            ("Packages.gz", (Packages { udeb: false }, "-", "-", Gz, false)),
            ("./Packages.gz", (Packages { udeb: false }, "-", "-", Gz, false)),
            ("Sources", (Sources, "-", "source", Plain, false)),
            ("xUbuntu/Packages", (Packages { udeb: false }, "-", "-", Plain, false)),
            ("main/SHA256SUMS", (Other, "-", "-", Plain, false)),
            ("main/something.new", (Other, "-", "-", Plain, false)),
            ("main/dep11/what", (Other, "-", "-", Plain, false)),
        ] {
            assert_eq!(parts(path), expected, "{path}");
        }
    }

    #[test]
    fn variants_share_their_stem() {
        let stems: Vec<_> = ["", ".gz", ".xz"]
            .map(|extension| classify(&format!("main/binary-amd64/Packages{extension}")).stem.to_owned())
            .into();
        assert!(stems.iter().all(|stem| stem == "main/binary-amd64/Packages"));
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(path in "(main|/|binary-|debian-installer|i18n|Translation-|dep11|installer-|images|SHA256SUMS|Packages|\\.diff/Index|\\.xz|é){0,8}") {
            classify(&path);
        }
    }
}
