//! A flat repository: indexes and packages in one directory, `flat/`.

use std::path::Path;

use crate::{
    archive::{ArchiveBuilder, ArchiveError, ArchiveFile, FileKind, State},
    deb,
    digest::Digest,
    extras,
    files::{at, release_date, replace},
    model::{BinaryKind, SourcePackage},
    publish, random,
    signer::Signer,
    stanza,
};

/// Packages in the flat repository: enough to be plural.
const PACKAGES: usize = 5;

pub(crate) fn write(
    settings: &ArchiveBuilder,
    state: &mut State,
    packages: &[SourcePackage],
    signer: &Signer,
) -> Result<(), ArchiveError> {
    let directory = state.root.join("flat");
    let (mut packages_text, mut sources_text) = (String::new(), String::new());
    for package in packages.iter().take(PACKAGES) {
        let mut files = Vec::new();
        for (name, size) in package.source_files() {
            let bytes = random::content_vec(settings.seed, &format!("flat/{name}"), size);
            put(state, &directory, &name, &bytes, "source", FileKind::Source)?;
            files.push((name, size, Digest::of(&bytes)));
        }
        // The directory of a flat source package is relative to the repository.
        sources_text.push_str(&stanza::sources(package, ".", &files, false));
        for binary in package.binaries.iter().filter(|binary| binary.kind == BinaryKind::All) {
            let name = package.binary_file(binary, "all");
            let control = stanza::control(package, binary, "all", &[]);
            let mut bytes = random::content_vec(settings.seed, &format!("flat/{name}"), binary.size);
            if settings.installable {
                bytes = deb::build(&binary.name, &control, &bytes, settings.date_unix_s).map_err(at(&directory))?;
            }
            put(state, &directory, &name, &bytes, "all", FileKind::Deb)?;
            let path = format!("./{name}");
            packages_text.push_str(&stanza::packages(&control, binary, &path, bytes.len() as u64, Digest::of(&bytes)));
        }
    }
    let mut release = format!("Origin: Test\nLabel: Test flat\nDate: {}\nSHA256:\n", release_date(state.date_unix_s));
    for (name, text) in [("Packages", packages_text), ("Sources", sources_text)] {
        let forms = extras::in_forms(name, text.into_bytes(), &settings.forms).map_err(at(&directory))?;
        for (name, bytes) in forms {
            release.push_str(&format!(" {} {} {name}\n", Digest::of(&bytes), bytes.len()));
            replace(&directory.join(name), &bytes, state.date_unix_s)?;
        }
    }
    replace(&directory.join("Release"), release.as_bytes(), state.date_unix_s)?;
    publish::sign_directory(&directory, signer, state.date_unix_s)
}

fn put(
    state: &mut State,
    directory: &Path,
    name: &str,
    bytes: &[u8],
    architecture: &str,
    kind: FileKind,
) -> Result<(), ArchiveError> {
    replace(&directory.join(name), bytes, state.date_unix_s)?;
    state.files.push(ArchiveFile {
        path: format!("flat/{name}"),
        size: bytes.len() as u64,
        sha256: Digest::of(bytes),
        suite: "flat".to_string(),
        component: String::new(),
        architecture: architecture.to_string(),
        kind,
    });
    Ok(())
}
