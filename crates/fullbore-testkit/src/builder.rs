//! The settings of an archive, and the making of it: the pool here, `dists/` in `publish`.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
};

use crate::{
    archive::{Archive, ArchiveError, ArchiveFile, FileKind, State, SuiteSpec},
    compression::Form,
    deb,
    digest::Digest,
    files::{at, link, make_directories, replace},
    flat,
    model::{BinaryKind, Model, Shape, SourcePackage},
    publish, random,
    signer::Signer,
    stanza,
};

/// Settings of an archive; see each method for the default.
#[derive(Clone, Debug)]
pub struct ArchiveBuilder {
    pub(crate) directory: PathBuf,
    pub(crate) seed: u64,
    /// The suites of the archive.
    pub suites: Vec<SuiteSpec>,
    pub(crate) components: Vec<String>,
    pub(crate) architectures: Vec<String>,
    pub(crate) sources: usize,
    pub(crate) pool_bytes: u64,
    pub(crate) largest_file_bytes: Option<u64>,
    pub(crate) states: usize,
    pub(crate) churn: f64,
    pub(crate) date_unix_s: i64,
    pub(crate) step_s: i64,
    pub(crate) by_hash: bool,
    pub(crate) all_in_packages: bool,
    pub(crate) plain_present: bool,
    pub(crate) forms: Vec<Form>,
    pub(crate) pdiffs: bool,
    pub(crate) merged_pdiffs: bool,
    pub(crate) contents: bool,
    pub(crate) extras: bool,
    pub(crate) installer: bool,
    pub(crate) flat: bool,
    pub(crate) installable: bool,
    pub(crate) odd_names: bool,
    pub(crate) signer: Option<Arc<Signer>>,
}

impl ArchiveBuilder {
    /// An archive in `directory`: about 300 files and 3 MB, suites `trixie` (`stable`) and
    /// `trixie-updates`, components main and contrib, amd64, arm64, all and source, by-hash,
    /// everything a real suite has, two states.
    pub fn new(directory: impl Into<PathBuf>) -> ArchiveBuilder {
        ArchiveBuilder {
            directory: directory.into(),
            seed: 1,
            suites: vec![SuiteSpec::main("trixie", "stable"), SuiteSpec::updates("trixie-updates", "stable-updates")],
            components: vec!["main".into(), "contrib".into()],
            architectures: vec!["amd64".into(), "arm64".into()],
            sources: 50,
            pool_bytes: 3_000_000,
            largest_file_bytes: None,
            states: 2,
            churn: 0.1,
            date_unix_s: 1_750_000_000,
            step_s: 6 * 3600,
            by_hash: true,
            all_in_packages: true,
            plain_present: false,
            forms: vec![Form::Gz, Form::Xz],
            pdiffs: false,
            merged_pdiffs: false,
            contents: true,
            extras: true,
            installer: true,
            flat: false,
            installable: false,
            odd_names: true,
            signer: None,
        }
    }

    /// Only what `mirror` cannot do without: one suite `trixie`, main, amd64 and all, no extras;
    /// about 40 files and 300 kB. For the many tests that need just some archive.
    pub fn tiny(directory: impl Into<PathBuf>) -> ArchiveBuilder {
        ArchiveBuilder::new(directory)
            .suites(vec![SuiteSpec::main("trixie", "stable")])
            .components(&["main"])
            .architectures(&["amd64"])
            .sources(8)
            .pool_bytes(300_000)
            .contents(false)
            .extras(false)
            .installer(false)
    }

    /// Everything is drawn from it. Default 1.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The suites; the first should be a main one.
    pub fn suites(self, suites: Vec<SuiteSpec>) -> Self {
        Self { suites, ..self }
    }

    /// Components, the first is the largest.
    pub fn components(self, names: &[&str]) -> Self {
        Self { components: names.iter().map(ToString::to_string).collect(), ..self }
    }

    /// Architectures without `all` and `source`.
    pub fn architectures(self, names: &[&str]) -> Self {
        Self { architectures: names.iter().map(ToString::to_string).collect(), ..self }
    }

    /// Source packages; each has about six files in the pool with two architectures.
    pub fn sources(self, sources: usize) -> Self {
        Self { sources, ..self }
    }

    /// About what the pool of a state weighs.
    pub fn pool_bytes(self, pool_bytes: u64) -> Self {
        Self { pool_bytes, ..self }
    }

    /// Nothing is larger. Default: a sixth of the pool.
    pub fn largest_file_bytes(self, bytes: u64) -> Self {
        Self { largest_file_bytes: Some(bytes), ..self }
    }

    /// How many states; T0 is the first.
    pub fn states(self, states: usize) -> Self {
        Self { states, ..self }
    }

    /// Share of the packages that change from state to state. Default 0.1.
    pub fn churn(self, churn: f64) -> Self {
        Self { churn, ..self }
    }

    /// `Date` of T0, seconds since 1970. Default 2025-06-15.
    pub fn date_unix_s(self, date_unix_s: i64) -> Self {
        Self { date_unix_s, ..self }
    }

    /// Seconds between states. Default six hours, Debian's own pace.
    pub fn step_s(self, step_s: i64) -> Self {
        Self { step_s, ..self }
    }

    /// Whether there are `by-hash` directories and `Acquire-By-Hash: yes`.
    pub fn by_hash(self, by_hash: bool) -> Self {
        Self { by_hash, ..self }
    }

    /// `No-Support-for-Architecture-all: Packages`: with it (the default, as in Debian) the
    /// packages for all are in each architecture's Packages too, without it only in `binary-all`.
    pub fn no_support_for_architecture_all(self, all_in_packages: bool) -> Self {
        Self { all_in_packages, ..self }
    }

    /// Whether the plain forms that Release lists are on the server too. Default no, as in Debian.
    pub fn plain_present(self, plain_present: bool) -> Self {
        Self { plain_present, ..self }
    }

    /// Compressed forms of the indexes. Default gz and xz.
    pub fn forms(self, forms: &[Form]) -> Self {
        Self { forms: forms.to_vec(), ..self }
    }

    /// Whether there are `*.diff/Index` and patches from state to state.
    pub fn pdiffs(self, pdiffs: bool) -> Self {
        Self { pdiffs, ..self }
    }

    /// Patches from each old state straight to the newest, as Debian's unstable has them.
    pub fn merged_pdiffs(self, merged_pdiffs: bool) -> Self {
        Self { merged_pdiffs, pdiffs: merged_pdiffs || self.pdiffs, ..self }
    }

    /// Whether there are `Contents-ARCH`.
    pub fn contents(self, contents: bool) -> Self {
        Self { contents, ..self }
    }

    /// Whether there are translations, dep11, command names and inner Release files.
    pub fn extras(self, extras: bool) -> Self {
        Self { extras, ..self }
    }

    /// Whether there are udebs and installer images.
    pub fn installer(self, installer: bool) -> Self {
        Self { installer, ..self }
    }

    /// Whether there is a flat repository in `flat/`.
    pub fn flat(self, flat: bool) -> Self {
        Self { flat, ..self }
    }

    /// Makes real, if tiny, packages that apt and dpkg can install.
    pub fn installable(self, installable: bool) -> Self {
        Self { installable, ..self }
    }

    /// Whether a package has `+`, `~` and `:` in its file names. Default yes.
    pub fn odd_names(self, odd_names: bool) -> Self {
        Self { odd_names, ..self }
    }

    /// Signs with a key that exists already, which saves its generation.
    pub fn signer(self, signer: Arc<Signer>) -> Self {
        Self { signer: Some(signer), ..self }
    }

    /// Writes the archive.
    pub fn build(self) -> Result<Archive, ArchiveError> {
        let signer = match &self.signer {
            Some(signer) => signer.clone(),
            None => Arc::new(Signer::new("Test archive")?),
        };
        make_directories(&self.directory)?;
        replace(&self.directory.join("key.gpg"), &signer.public_key()?, self.date_unix_s)?;
        let mut model = Model::new(&self.shape());
        let mut states: Vec<State> = Vec::new();
        let mut pool = Pool { known: HashMap::new() };
        let mut history = publish::History::new();
        for number in 0..self.states.max(1) {
            if number > 0 {
                model.step(self.churn);
            }
            let state = self.state(number, &model, states.last(), &mut pool, &mut history, &signer)?;
            states.push(state);
        }
        Ok(Archive { directory: self.directory.clone(), states, signer, settings: self })
    }

    fn shape(&self) -> Shape {
        Shape {
            seed: self.seed,
            sources: self.sources,
            components: self.components.clone(),
            architectures: self.architectures.len(),
            pool_bytes: self.pool_bytes,
            largest_file_bytes: self.largest_file_bytes.unwrap_or(self.pool_bytes / 6),
            udebs: self.installer,
            odd_names: self.odd_names,
        }
    }

    fn state(
        &self,
        number: usize,
        model: &Model,
        previous: Option<&State>,
        pool: &mut Pool,
        history: &mut publish::History,
        signer: &Signer,
    ) -> Result<State, ArchiveError> {
        let mut state = State {
            root: self.directory.join(format!("T{number}")),
            date_unix_s: self.date_unix_s + number as i64 * self.step_s,
            files: Vec::new(),
            indexes: Vec::new(),
        };
        make_directories(&state.root)?;
        // What one may depend on: main packages that are in the main suite now.
        let installable: Vec<(usize, String)> = installable(&model.packages);
        let mut suites = Vec::new();
        for spec in &self.suites {
            let packages =
                if spec.share >= 1.0 { model.packages.clone() } else { model.offshoot(&spec.codename, spec.share) };
            let listed = self.fill(&mut state, previous, pool, spec, &packages, &installable)?;
            suites.push((spec, packages, listed));
        }
        if self.flat {
            flat::write(self, &mut state, &model.packages, signer)?;
        }
        for (spec, packages, listed) in &suites {
            publish::suite(self, &mut state, previous, history, spec, packages, listed)?;
        }
        publish::sign(&state, &self.suites, signer)?;
        if let Some(previous) = previous {
            keep_one_state_longer(&state, previous)?;
        }
        Ok(state)
    }

    /// Writes the pool files of a suite and returns their stanzas.
    fn fill(
        &self,
        state: &mut State,
        previous: Option<&State>,
        pool: &mut Pool,
        spec: &SuiteSpec,
        packages: &[SourcePackage],
        installable: &[(usize, String)],
    ) -> Result<Stanzas, ArchiveError> {
        let mut stanzas = Stanzas::default();
        for package in packages {
            for (version, extra) in [(Some(package), false), (package.extra.as_deref(), true)] {
                let Some(version) = version else { continue };
                let directory = version.directory();
                let mut files = Vec::new();
                for (name, size) in version.source_files() {
                    let path = format!("{directory}/{name}");
                    let digest = pool.put(self, state, previous, &path, size, None)?;
                    state.files.push(file(spec, version, "source", FileKind::Source, path, digest));
                    files.push((name, digest.1, digest.0));
                }
                let key = (version.component.clone(), "source".to_string(), BinaryKind::Any as u8);
                stanzas.texts.entry(key).or_default().push_str(&stanza::sources(version, &directory, &files, extra));
            }
            for binary in &package.binaries {
                let own: &[String] = match binary.kind {
                    BinaryKind::All => &["all".to_string()],
                    _ => &self.architectures,
                };
                for architecture in own {
                    let path = format!("{}/{}", package.directory(), package.binary_file(binary, architecture));
                    let control = stanza::control(package, binary, architecture, installable);
                    let deb = (self.installable && binary.kind != BinaryKind::Udeb).then_some((&binary.name, &control));
                    let digest = pool.put(self, state, previous, &path, binary.size, deb)?;
                    let text = stanza::packages(&control, binary, &path, digest.1, digest.0);
                    let kind = if binary.kind == BinaryKind::Udeb { FileKind::Udeb } else { FileKind::Deb };
                    state.files.push(file(spec, package, architecture, kind, path, digest));
                    let key = (package.component.clone(), architecture.clone(), binary.kind as u8);
                    stanzas.texts.entry(key).or_default().push_str(&text);
                }
            }
        }
        Ok(stanzas)
    }
}

/// (place, name) of the packages that may be depended upon, in order of place.
fn installable(packages: &[SourcePackage]) -> Vec<(usize, String)> {
    let mut list: Vec<(usize, String)> = packages
        .iter()
        .filter(|package| package.component == "main")
        .flat_map(|package| &package.binaries)
        .filter(|binary| binary.kind != BinaryKind::Udeb)
        .map(|binary| (binary.place, binary.name.clone()))
        .collect();
    list.sort();
    list
}

fn file(
    spec: &SuiteSpec,
    package: &SourcePackage,
    architecture: &str,
    kind: FileKind,
    path: String,
    (sha256, size): (Digest, u64),
) -> ArchiveFile {
    ArchiveFile {
        path,
        size,
        sha256,
        suite: spec.codename.clone(),
        component: package.component.clone(),
        architecture: architecture.to_string(),
        kind,
    }
}

/// Stanzas of a suite by (component, architecture, kind of binary); sources are `source`.
#[derive(Default, Debug)]
pub(crate) struct Stanzas {
    texts: BTreeMap<(String, String, u8), String>,
}

impl Stanzas {
    pub fn get(&self, component: &str, architecture: &str, kind: BinaryKind) -> &str {
        let key = (component.to_string(), architecture.to_string(), kind as u8);
        self.texts.get(&key).map_or("", String::as_str)
    }
}

/// The pool over all states: what exists already is linked, not made again.
struct Pool {
    known: HashMap<String, (Digest, u64)>,
}

impl Pool {
    fn put(
        &mut self,
        settings: &ArchiveBuilder,
        state: &State,
        previous: Option<&State>,
        path: &str,
        size: u64,
        deb: Option<(&String, &String)>,
    ) -> Result<(Digest, u64), ArchiveError> {
        let target = state.root.join(path);
        if let Some(known) = self.known.get(path) {
            if !target.exists() {
                // It may be gone from the state before last; then its bytes are made again below.
                if let Some(old) = previous.map(|state| state.root.join(path)).filter(|old| old.exists()) {
                    link(&old, &target)?;
                    return Ok(*known);
                }
            } else {
                return Ok(*known);
            }
        }
        let mut bytes = random::content_vec(settings.seed, path, size);
        if let Some((name, control)) = deb {
            bytes = deb::build(name, control, &bytes, state.date_unix_s).map_err(at(&target))?;
        }
        replace(&target, &bytes, state.date_unix_s)?;
        let made = (Digest::of(&bytes), bytes.len() as u64);
        self.known.insert(path.to_string(), made);
        Ok(made)
    }
}

/// Pool files leave one state after the indexes stop naming them, as in a real archive.
fn keep_one_state_longer(state: &State, previous: &State) -> Result<(), ArchiveError> {
    for file in previous.files.iter().filter(|file| file.kind != FileKind::Image) {
        let target = state.root.join(&file.path);
        if !target.exists() {
            link(&previous.root.join(&file.path), &target)?;
        }
    }
    Ok(())
}
