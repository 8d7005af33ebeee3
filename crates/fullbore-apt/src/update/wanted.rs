//! Compares the targets with a Release: current indexes, and indexes to fetch.
//!
//! The rules by which a target is left out are apt's (`pkgAcqMetaBase::QueueIndexes`).

use std::collections::HashMap;
use std::ffi::OsString;

use fullbore_debian::compression::Form;
use fullbore_debian::path::PART_BYTES_MAX;
use fullbore_debian::release::{IndexEntry, Release};
use fullbore_debian::sources_list::ByHash;
use fullbore_engine::digest::Sha256;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_wire::url::without_credentials;

use super::release::OfferedRelease;
use super::repositories::Repository;
use super::{DIFF_INDEX_BYTES_MAX, DIFF_INDEX_ENDING};
use crate::lists::IndexTarget;
use crate::lists::file_name;

/// An index that differs from the Release.
#[derive(Debug, Clone)]
pub(super) struct WantedIndex {
    /// Number of the repository that has it.
    pub repository: usize,
    /// Its name in the Release, without the ending of a form.
    pub meta_key: String,
    /// Its name in the lists directory, without the ending of a form.
    pub name: String,
    /// The form in which it is kept.
    pub stored_form: Form,
    /// The index in the lists directory, if there is one.
    pub old: Option<OldIndex>,
    /// Size and hash of its plain content, if the Release lists it.
    pub plain: Option<(u64, Sha256)>,
    /// The forms in which it can be fetched.
    pub forms: Vec<(Form, IndexEntry)>,
    /// The entry of its `diff/Index` in the Release, if it has patches.
    pub diff_index: Option<IndexEntry>,
    /// Whether files are requested by hash.
    pub by_hash: bool,
}

/// An index in the lists directory.
#[derive(Debug, Clone)]
pub(super) struct OldIndex {
    /// Its file name in the lists directory.
    pub file: String,
    /// Compression of the file.
    pub form: Form,
    /// Size and hash of its plain content by the local Release; `None` without one.
    pub plain: Option<(u64, Sha256)>,
}

/// The compared indexes of one repository.
#[derive(Debug, Default)]
pub(super) struct Selected {
    /// Indexes that have to be updated.
    pub wanted: Vec<WantedIndex>,
    /// Current files in the lists directory.
    pub current: Vec<String>,
    /// Files of indexes that are empty now.
    pub emptied: Vec<String>,
    /// Warnings about missing targets.
    pub warnings: Vec<String>,
}

/// Files of the lists directory by their names without the ending of a form.
pub(super) struct Present(HashMap<String, Vec<(String, Form)>>);

impl Present {
    /// Takes the names in the lists directory.
    pub(super) fn new(names: &[OsString]) -> Present {
        let mut present: HashMap<String, Vec<(String, Form)>> = HashMap::new();
        for name in names.iter().filter_map(|name| name.to_str()) {
            let (stem, form) = Form::split(name);
            present.entry(stem.to_owned()).or_default().push((name.to_owned(), form));
        }
        Present(present)
    }

    /// The file of an index; apt looks for the plain one first.
    pub(super) fn find(&self, name: &str) -> Option<&(String, Form)> {
        let files = self.0.get(name)?;
        files.iter().find(|(_, form)| *form == Form::Plain).or_else(|| files.first())
    }

    /// All files of an index, in any form.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.get(name).into_iter().flatten().map(|(file, _)| file.as_str())
    }
}

/// Compares a repository's targets with its Release and the local files.
///
/// # Errors
/// `Partial` if an index has only unreadable forms, or a name that is too long.
pub(super) fn select(
    number: usize,
    repository: &Repository,
    offered: &OfferedRelease,
    present: &Present,
    pdiffs: bool,
) -> Result<Selected, CommandError> {
    let release = &offered.release;
    let mut selected = Selected::default();
    let mut taken: Vec<&str> = Vec::new();
    for target in &repository.targets {
        if target.fallback_of.as_ref().is_some_and(|of| taken.contains(&of.as_str())) {
            continue;
        }
        if !has(release, target) {
            selected.warnings.extend(missing(repository, release, target));
            continue;
        }
        taken.push(&target.created_by);
        let name = file_name(&target.uri());
        let plain = |release: &Release| release.find(&target.meta_key).map(|entry| (entry.size, entry.sha256));
        let before = offered.before.as_ref().and_then(plain);
        let now = plain(release);
        if now.is_some_and(|(size, _)| size == 0) {
            // Not worth a request.
            selected.emptied.extend(present.all(&name).map(str::to_owned));
            continue;
        }
        if let Some((file, form)) = present.find(&name) {
            let same = offered.unchanged || (now.is_some() && now == before);
            if same {
                selected.current.push(file.clone());
                continue;
            }
            let old = OldIndex { file: file.clone(), form: *form, plain: before };
            selected.wanted.push(wanted(number, release, target, name, now, Some(old), pdiffs)?);
        } else {
            selected.wanted.push(wanted(number, release, target, name, now, None, pdiffs)?);
        }
    }
    Ok(selected)
}

/// Whether the Release has this index in any form, for any architecture it is for.
fn has(release: &Release, target: &IndexTarget) -> bool {
    // As for apt, what is optional must be listed in its plain form too.
    let plain = release.find(&target.meta_key).is_some();
    let listed = plain || (!target.optional && forms(release, target).next().is_some());
    listed && (target.architecture.as_deref() != Some("all") || supports_all(release, target))
}

/// Debian has indexes of architecture `all` whose packages are in those of the others as well, and says so.
fn supports_all(release: &Release, target: &IndexTarget) -> bool {
    let named = release.architectures.is_empty() || release.architectures.iter().any(|name| name == "all");
    named && !(release.no_support_for_architecture_all && target.created_by == "Packages")
}

/// The warning about a target that the Release lacks.
fn missing(repository: &Repository, release: &Release, target: &IndexTarget) -> Option<String> {
    let skipped =
        |why: String| Some(format!("{}: {} is left out: the repository {why}", repository.shown(), target.meta_key));
    if let Some(component) = target.component.as_deref().filter(|name| !release.has_component(name)) {
        // Each of its indexes is missing; said once.
        let first = repository.targets.iter().find(|own| own.component.as_deref() == Some(component));
        if first.is_none_or(|first| first.meta_key == target.meta_key) {
            return skipped(format!("has no component {component} (misspelt in the sources?)"));
        }
        return None;
    }
    let known = |name: &&str| release.architectures.is_empty() || release.architectures.iter().any(|own| own == name);
    match target.architecture.as_deref() {
        // Its packages are in the indexes of the other architectures as well.
        Some("all") => return None,
        Some(architecture) if !known(&architecture) => {
            return if target.optional { None } else { skipped(format!("has nothing for {architecture}")) };
        }
        _ => {}
    }
    if target.optional {
        return None;
    }
    skipped("does not seem to provide it (misspelt in the sources?)".to_owned())
}

/// The readable forms of an index in the Release, in the target's order.
fn forms<'r>(release: &'r Release, target: &'r IndexTarget) -> impl Iterator<Item = (Form, IndexEntry)> + use<'r> {
    target.compression_types.iter().filter_map(|ending| {
        let form = Form::by_name(ending)?;
        let entry = release.find(&format!("{}{}", target.meta_key, form.extension()))?;
        Some((form, entry.clone()))
    })
}

/// The index of an index's patches, if it is smaller than the index.
fn diff_index(release: &Release, target: &IndexTarget, forms: &[(Form, IndexEntry)]) -> Option<IndexEntry> {
    let entry = release.find(&format!("{}.diff/Index", target.meta_key))?;
    let least = forms.iter().map(|(_, entry)| entry.size).min()?;
    (entry.size < least && entry.size <= DIFF_INDEX_BYTES_MAX).then(|| entry.clone())
}

/// The form in which a target is kept: the first writable one of its list.
fn form_on_disk(target: &IndexTarget) -> Form {
    if !target.keep_compressed {
        return Form::Plain;
    }
    let writable = target.keep_compressed_as.iter().filter_map(|ending| Form::by_name(ending));
    writable.into_iter().find(|form| *form != Form::Bz2).unwrap_or(Form::Plain)
}

fn wanted(
    repository: usize,
    release: &Release,
    target: &IndexTarget,
    name: String,
    plain: Option<(u64, Sha256)>,
    old: Option<OldIndex>,
    pdiffs: bool,
) -> Result<WantedIndex, CommandError> {
    let forms: Vec<_> = forms(release, target).collect();
    let stored_form = form_on_disk(target);
    let unusable = |why: &str| {
        let base = without_credentials(&target.base_uri);
        Err(CommandError::new(ErrorKind::Partial, format_args!("{base}{}: {why}", target.meta_key)))
    };
    // File names are made of it and a suffix.
    let fits = |ending: &str| name.len() + ending.len() <= PART_BYTES_MAX;
    if !forms.iter().map(|(form, _)| *form).chain([stored_form]).all(|form| fits(form.extension())) {
        return unusable("too long for the name of a file");
    }
    let patched = pdiffs && target.pdiffs && old.is_some() && plain.is_some() && fits(DIFF_INDEX_ENDING);
    if forms.is_empty() {
        return unusable("only in forms that cannot be read");
    }
    Ok(WantedIndex {
        repository,
        diff_index: patched.then(|| diff_index(release, target, &forms)).flatten(),
        meta_key: target.meta_key.clone(),
        name,
        stored_form,
        old,
        plain,
        forms,
        by_hash: match target.by_hash {
            ByHash::Announced => release.acquire_by_hash,
            ByHash::No => false,
            ByHash::Force => true,
        },
    })
}
