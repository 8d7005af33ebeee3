//! `dists/CODENAME` of one state: indexes in all forms, by-hash, patches, Release, signatures.

use std::{collections::HashMap, fs, io, os::unix::fs::symlink, path::Path, thread};

use crate::{
    archive::{ArchiveBuilder, ArchiveError, ArchiveFile, FileKind, IndexFile, State, SuiteSpec},
    builder::Stanzas,
    digest::Digest,
    extras,
    files::{at, link, make_directories, release_date, replace, stamp},
    model::{BinaryKind, SourcePackage},
    pdiff,
    signer::{Signer, SignerError},
    stanza,
};

/// Versions of each index so far, by suite and path.
pub(crate) type History = HashMap<(String, String), Vec<pdiff::Version>>;

/// Writes everything of a suite but the signatures.
pub(crate) fn suite(
    settings: &ArchiveBuilder,
    state: &mut State,
    previous: Option<&State>,
    history: &mut History,
    spec: &SuiteSpec,
    packages: &[SourcePackage],
    stanzas: &Stanzas,
) -> Result<(), ArchiveError> {
    let mut writer = Writer { settings, state, history, spec, entries: Vec::new() };
    for component in &settings.components {
        let members: Vec<&SourcePackage> = packages.iter().filter(|p| p.component == *component).collect();
        writer.packages(component, stanzas)?;
        writer.index(
            &format!("{component}/source/Sources"),
            stanzas.get(component, "source", BinaryKind::Any),
            true,
        )?;
        if settings.contents {
            writer.contents(component, &members)?;
        }
        if settings.extras {
            writer.extras(component, &members)?;
        }
    }
    if settings.installer && spec.share >= 1.0 {
        writer.images()?;
    }
    let Writer { mut entries, .. } = writer;
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    let directory = state.root.join("dists").join(&spec.codename);
    replace(&directory.join("Release"), release(settings, state, spec, &entries).as_bytes(), state.date_unix_s)?;
    state.indexes.extend(entries);
    if spec.suite != spec.codename {
        let alias = state.root.join("dists").join(&spec.suite);
        symlink(&spec.codename, &alias).map_err(at(&alias))?;
    }
    match previous {
        Some(previous) if settings.by_hash => {
            keep_by_hash(&previous.root.join("dists").join(&spec.codename), &directory).map_err(at(&directory))
        }
        _ => Ok(()),
    }
}

struct Writer<'a> {
    settings: &'a ArchiveBuilder,
    state: &'a mut State,
    history: &'a mut History,
    spec: &'a SuiteSpec,
    entries: Vec<IndexFile>,
}

impl Writer<'_> {
    /// Puts one file beneath the suite, lists it, and links it by its hash.
    fn file(&mut self, path: &str, bytes: &[u8], present: bool) -> Result<(), ArchiveError> {
        let sha256 = Digest::of(bytes);
        let suite = self.spec.codename.clone();
        if present {
            let target = self.state.root.join("dists").join(&suite).join(path);
            replace(&target, bytes, self.state.date_unix_s)?;
            if self.settings.by_hash {
                link(&target, &target.with_file_name("by-hash").join("SHA256").join(sha256.to_string()))?;
            }
        }
        self.entries.push(IndexFile { suite, path: path.to_string(), size: bytes.len() as u64, sha256, present });
        Ok(())
    }

    /// Puts an index in all its forms and, where asked, its patches.
    fn index(&mut self, path: &str, text: &str, patched: bool) -> Result<(), ArchiveError> {
        self.forms(path, text.as_bytes().to_vec())?;
        if !(patched && self.settings.pdiffs) {
            return Ok(());
        }
        let versions = self.history.entry((self.spec.codename.clone(), path.to_string())).or_default();
        if versions.last().is_none_or(|last| last.text != text) {
            versions.push(pdiff::Version { stamp: stamp(self.state.date_unix_s), text: text.to_string() });
        }
        if versions.len() < 2 {
            return Ok(());
        }
        let directory = format!("{path}.diff");
        let files = pdiff::directory(versions, self.settings.merged_pdiffs).map_err(at(Path::new(&directory)))?;
        for (name, bytes) in files {
            let path = format!("{directory}/{name}");
            self.file(&path, &bytes, true)?;
            if name != "Index" {
                // The patches are listed in their Index, not in Release.
                self.entries.pop();
            }
        }
        Ok(())
    }

    fn forms(&mut self, path: &str, bytes: Vec<u8>) -> Result<(), ArchiveError> {
        let forms = extras::in_forms(path, bytes, &self.settings.forms).map_err(at(Path::new(path)))?;
        for (number, (name, bytes)) in forms.iter().enumerate() {
            self.file(name, bytes, number > 0 || self.settings.plain_present)?;
        }
        Ok(())
    }

    fn packages(&mut self, component: &str, stanzas: &Stanzas) -> Result<(), ArchiveError> {
        let all = stanzas.get(component, "all", BinaryKind::All);
        let mut architectures = self.settings.architectures.clone();
        architectures.push("all".to_string());
        for architecture in &architectures {
            let mut text = stanzas.get(component, architecture, BinaryKind::Any).to_string();
            if architecture == "all" || self.settings.all_in_packages {
                text.push_str(all);
            }
            self.index(&format!("{component}/binary-{architecture}/Packages"), &text, true)?;
            if self.settings.installer && component == "main" {
                let text = stanzas.get(component, architecture, BinaryKind::Udeb);
                self.index(&format!("{component}/debian-installer/binary-{architecture}/Packages"), text, true)?;
            }
        }
        Ok(())
    }

    fn contents(&mut self, component: &str, packages: &[&SourcePackage]) -> Result<(), ArchiveError> {
        let mut architectures = self.settings.architectures.clone();
        architectures.push("all".to_string());
        for architecture in &architectures {
            let mut lines: Vec<String> = Vec::new();
            for package in packages {
                for binary in &package.binaries {
                    let here = match binary.kind {
                        BinaryKind::All => architecture == "all",
                        BinaryKind::Any => architecture != "all",
                        BinaryKind::Udeb => false,
                    };
                    if here {
                        lines.extend(stanza::contents(package, binary));
                    }
                }
            }
            lines.sort();
            self.index(&format!("{component}/Contents-{architecture}"), &lines.concat(), true)?;
        }
        Ok(())
    }

    /// Translations, AppStream, command names, inner Release files.
    fn extras(&mut self, component: &str, packages: &[&SourcePackage]) -> Result<(), ArchiveError> {
        let translation: String =
            packages.iter().flat_map(|package| &package.binaries).map(stanza::translation).collect();
        self.index(&format!("{component}/i18n/Translation-en"), &translation, true)?;
        let components = extras::components(&self.spec.suite, component, packages);
        let icons = extras::icons(self.settings.seed, packages, self.state.date_unix_s);
        self.forms(&format!("{component}/dep11/icons-48x48.tar"), icons)?;
        let mut places = vec!["source".to_string()];
        for architecture in self.settings.architectures.clone() {
            self.index(&format!("{component}/dep11/Components-{architecture}.yml"), &components, false)?;
            let commands = extras::commands(&self.spec.suite, component, &architecture, packages);
            self.index(&format!("{component}/cnf/Commands-{architecture}"), &commands, false)?;
            places.push(format!("binary-{architecture}"));
        }
        for place in places {
            let text = format!(
                "Archive: {}\nOrigin: Test\nLabel: Test\nAcquire-By-Hash: {}\nComponent: {component}\nArchitecture: {}\n",
                self.spec.suite,
                if self.settings.by_hash { "yes" } else { "no" },
                place.trim_start_matches("binary-"),
            );
            self.file(&format!("{component}/{place}/Release"), text.as_bytes(), true)?;
        }
        Ok(())
    }

    /// `main/installer-ARCH/current/images`, its files named by a SHA256SUMS that Release names.
    fn images(&mut self) -> Result<(), ArchiveError> {
        let Some(architecture) = self.settings.architectures.first().cloned() else {
            return Ok(());
        };
        // A new installer comes with every second state.
        let generation = (self.state.date_unix_s - self.settings.date_unix_s) / self.settings.step_s.max(1) / 2;
        let scale_bytes = (self.settings.pool_bytes / 20).clamp(6_000, 8_000_000);
        let images = extras::installer_images(self.settings.seed, &generation.to_string(), scale_bytes);
        let directory = format!("main/installer-{architecture}/current/images");
        for (name, bytes) in images {
            let path = format!("{directory}/{name}");
            if name == "SHA256SUMS" {
                self.file(&path, &bytes, true)?;
                continue;
            }
            let path = format!("dists/{}/{path}", self.spec.codename);
            replace(&self.state.root.join(&path), &bytes, self.state.date_unix_s)?;
            self.state.files.push(ArchiveFile {
                path,
                size: bytes.len() as u64,
                sha256: Digest::of(&bytes),
                suite: self.spec.codename.clone(),
                component: "main".to_string(),
                architecture: architecture.clone(),
                kind: FileKind::Image,
            });
        }
        Ok(())
    }
}

fn release(settings: &ArchiveBuilder, state: &State, spec: &SuiteSpec, entries: &[IndexFile]) -> String {
    let mut text = format!("Origin: Test\nLabel: Test\nSuite: {}\n", spec.suite);
    if let Some(version) = &spec.version {
        text.push_str(&format!("Version: {version}\n"));
    }
    text.push_str(&format!("Codename: {}\nDate: {}\n", spec.codename, release_date(state.date_unix_s)));
    if let Some(seconds) = spec.valid_for_s {
        text.push_str(&format!("Valid-Until: {}\n", release_date(state.date_unix_s + seconds)));
    }
    if settings.by_hash {
        text.push_str("Acquire-By-Hash: yes\n");
    }
    if settings.all_in_packages {
        text.push_str("No-Support-for-Architecture-all: Packages\n");
    }
    text.push_str(&format!(
        "Architectures: all {}\nComponents: {}\nDescription: test archive\nSHA256:\n",
        settings.architectures.join(" "),
        settings.components.join(" "),
    ));
    for entry in entries {
        text.push_str(&format!(" {} {:>8} {}\n", entry.sha256, entry.size, entry.path));
    }
    text
}

/// Signs the Release of every suite, all signatures at once: gpg mostly waits for itself.
pub(crate) fn sign(state: &State, suites: &[SuiteSpec], signer: &Signer) -> Result<(), ArchiveError> {
    thread::scope(|scope| {
        let mut waits = Vec::new();
        for spec in suites {
            let directory = state.root.join("dists").join(&spec.codename);
            waits.push(scope.spawn(move || sign_directory(&directory, signer, state.date_unix_s)));
        }
        waits.into_iter().try_for_each(|wait| wait.join().unwrap_or(Ok(())))
    })
}

/// Signs `DIRECTORY/Release`: writes `Release.gpg` and `InRelease` beside it.
pub(crate) fn sign_directory(directory: &Path, signer: &Signer, date_unix_s: i64) -> Result<(), ArchiveError> {
    let release = directory.join("Release");
    let text = fs::read(&release).map_err(at(&release))?;
    let (detached, clear): (Result<_, SignerError>, Result<_, SignerError>) = thread::scope(|scope| {
        let detached = scope.spawn(|| signer.detached(&text));
        let clear = signer.clearsign(&text);
        (detached.join().unwrap_or(Err(SignerError::Missing)), clear)
    });
    replace(&directory.join("Release.gpg"), &detached?, date_unix_s)?;
    replace(&directory.join("InRelease"), &clear?, date_unix_s)
}

/// Files of earlier states stay reachable by their hash.
pub(crate) fn keep_by_hash(old: &Path, new: &Path) -> io::Result<()> {
    for entry in fs::read_dir(old)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let (from, to) = (entry.path(), new.join(entry.file_name()));
        if !from.ends_with("by-hash") {
            keep_by_hash(&from, &to)?;
            continue;
        }
        let (from, to) = (from.join("SHA256"), to.join("SHA256"));
        make_directories(&to).map_err(io::Error::other)?;
        for file in fs::read_dir(from)? {
            let file = file?;
            let target = to.join(file.file_name());
            if !target.exists() {
                fs::hard_link(file.path(), target)?;
            }
        }
    }
    Ok(())
}
