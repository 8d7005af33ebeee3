//! Large archives for benchmarks: sizes of files and stanzas as in Debian 12, content of random bytes, in several states.
//!
//! `DIR/T0`, `DIR/T1`, … are complete trees as those of [`archive`](crate::archive), whose parts they are made of;
//! beside them are `key.gpg`, `secret.asc`, `manifest-Tk.tsv` (SHA-256, bytes and path of every file that the indexes
//! of a state name) and `info.json`. Other than those, an archive may have 100,000 files, and no file is in memory as a
//! whole. Its packages cannot be installed: their content is random.

mod items;
mod sizes;

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use md5::{Digest as _, Md5};

use crate::{
    archive::ArchiveError,
    compression::Form,
    digest::Digest,
    files::{at, link, make_directories, release_date, replace, stamp},
    pdiff, publish,
    random::{self, Random},
    signer::Signer,
};
use items::{Names, Package, Sums, Words, step};

/// Seconds between states: Debian's own pace.
const STEP_S: i64 = 6 * 3600;
/// Old states for which there are patches: as many as Debian keeps, two weeks.
const PATCHES_KEPT: usize = 56;
/// Words that dependencies and names of people are made of.
const WORDS: usize = 3000;

/// Kinds of packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Source packages.
    Source,
    /// Binary packages for amd64 and all.
    Binary,
    /// Half of the files each.
    Both,
}

/// Content of the files in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Random bytes.
    Random,
    /// Numbered lines, which pack well: for fixtures that are kept.
    Lines,
    /// There is no pool, and hashes are invented: for indexes alone.
    None,
}

/// An archive to be made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Directory to create; must not exist.
    pub directory: PathBuf,
    /// Kinds of packages.
    pub kind: Kind,
    /// Files of the first state, about.
    pub files: usize,
    /// Bytes of the first state, about; without, the sizes are those of Debian.
    pub bytes: Option<u64>,
    /// Size of the largest file, at most.
    pub largest_file_bytes: u64,
    /// Number of states.
    pub states: usize,
    /// Share of the files that are new in each further state.
    pub churn: f64,
    /// Seed of names, sizes and content.
    pub seed: u64,
    /// Suite and codename.
    pub suite: String,
    /// `Date` of the first state.
    pub date_unix_s: i64,
    /// Whether there are patches of indexes.
    pub pdiffs: bool,
    /// Patches lead from each old state to the newest.
    pub merged: bool,
    /// Whether there is a Contents index.
    pub contents: bool,
    /// No package depends on another.
    pub installable: bool,
    /// Content of the files in the pool.
    pub content: Content,
}

impl Settings {
    /// A thousand files of source packages in one state.
    pub fn new(directory: impl Into<PathBuf>) -> Settings {
        Settings {
            directory: directory.into(),
            kind: Kind::Source,
            files: 1000,
            bytes: None,
            largest_file_bytes: 1 << 40,
            states: 1,
            churn: 0.005,
            seed: 1,
            suite: "sid".to_owned(),
            // 2025-01-01 01:52:07 UTC.
            date_unix_s: 1_735_696_327,
            pdiffs: true,
            merged: false,
            contents: true,
            installable: false,
            content: Content::Random,
        }
    }
}

/// One state, as `info.json` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Files that the indexes name.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, files that the state before did not have.
    pub new_files: u64,
}

/// Makes an archive.
///
/// # Errors
/// A file cannot be written, or gpg does not sign.
pub fn make(settings: &Settings) -> Result<Vec<Made>, ArchiveError> {
    fs::create_dir(&settings.directory).map_err(at(&settings.directory))?;
    let signer = Signer::at("Lab archive", settings.date_unix_s)?;
    let file = |name: &str| settings.directory.join(name);
    replace(&file("key.gpg"), &signer.public_key()?, settings.date_unix_s)?;
    replace(&file("secret.asc"), &signer.secret_key_armored()?, settings.date_unix_s)?;
    let mut random = Random::new(settings.seed, "items");
    let mut names = Names::default();
    let words = Words::new(WORDS, &mut names, &mut random);
    let (mut sources, mut binaries) = (Vec::new(), Vec::new());
    let share = if settings.kind == Kind::Both { 2 } else { 1 };
    let (files, bytes) = (settings.files / share, settings.bytes.map(|bytes| bytes / share as u64));
    if settings.kind != Kind::Binary {
        sources = sizes::sources(files, bytes, settings.largest_file_bytes, &mut names, &mut random);
    }
    if settings.kind != Kind::Source {
        binaries = sizes::binaries(files, bytes, settings.largest_file_bytes, &mut names, &mut random);
    }
    let mut maker = Maker { settings, signer, words, history: HashMap::new(), made: Vec::new() };
    for number in 0..settings.states.max(1) {
        if number > 0 {
            for items in [&mut sources, &mut binaries].into_iter().filter(|items| !items.is_empty()) {
                step(items, settings.churn, &mut names, &mut random);
            }
        }
        maker.state(number, &mut sources, &mut binaries)?;
    }
    let state =
        |made: &Made| serde_json::json!({ "files": made.files, "bytes": made.bytes, "new_files": made.new_files });
    let states: Vec<_> = maker.made.iter().map(state).collect();
    let info = serde_json::json!({ "seed": settings.seed, "merged": settings.merged, "states": states });
    replace(&file("info.json"), info.to_string().as_bytes(), settings.date_unix_s)?;
    Ok(maker.made)
}

struct Maker<'a> {
    settings: &'a Settings,
    signer: Signer,
    words: Words,
    /// Versions of each index so far.
    history: HashMap<String, Vec<pdiff::Version>>,
    made: Vec<Made>,
}

/// A line of Release.
struct Entry {
    path: String,
    size: u64,
    sha256: Digest,
}

impl Maker<'_> {
    fn root(&self, number: usize) -> PathBuf {
        self.settings.directory.join(format!("T{number}"))
    }

    fn state(&mut self, number: usize, sources: &mut [Package], binaries: &mut [Package]) -> Result<(), ArchiveError> {
        let new_files = self.fill(number, sources)? + self.fill(number, binaries)?;
        let mut manifest = String::new();
        let mut made = Made { files: 0, bytes: 0, new_files };
        for package in sources.iter().chain(&*binaries) {
            for (path, size) in package.files() {
                let _ = writeln!(manifest, "{}\t{size}\t{path}", package.sums[&path].sha256);
                (made.files, made.bytes) = (made.files + 1, made.bytes + size);
            }
        }
        let path = self.settings.directory.join(format!("manifest-T{number}.tsv"));
        replace(&path, manifest.as_bytes(), self.settings.date_unix_s)?;
        self.made.push(made);
        if number > 0 && self.settings.content != Content::None {
            self.keep_pool(number)?;
        }
        let mut indexes = Vec::new();
        let text = |packages: &mut [Package], words: &Words| {
            packages.sort_by(|a, b| a.name.cmp(&b.name));
            packages.iter().map(|package| package.stanza(words, self.settings.installable)).collect::<String>()
        };
        if !sources.is_empty() {
            indexes.push(("main/source/Sources", text(sources, &self.words)));
        }
        if !binaries.is_empty() {
            indexes.push(("main/binary-amd64/Packages", text(binaries, &self.words)));
            if self.settings.contents {
                let lines: BTreeSet<String> =
                    binaries.iter().flat_map(|package| package.contents(&self.words)).collect();
                indexes.push(("main/Contents-amd64", lines.into_iter().collect()));
            }
        }
        self.publish(number, indexes)
    }

    /// Writes what no state before had, and what others had is linked; gives the number of new files.
    fn fill(&self, number: usize, packages: &mut [Package]) -> Result<u64, ArchiveError> {
        let root = self.root(number);
        let mut jobs = Vec::new();
        for (place, package) in packages.iter().enumerate() {
            let missing = package.files().into_iter().filter(|(path, _)| !package.sums.contains_key(path));
            jobs.extend(missing.map(|(path, size)| (place, path, size)));
        }
        let next = AtomicUsize::new(0);
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let work = || {
            let mut done = Vec::new();
            while let Some((place, path, size)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                done.push((*place, path.clone(), self.put(&root.join(path), path, *size)?));
            }
            Ok::<_, ArchiveError>(done)
        };
        let done = thread::scope(|scope| {
            let working: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let joined = working
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.collect::<Result<Vec<_>, _>>()
        })?;
        let mut count = 0;
        for (place, path, sums) in done.into_iter().flatten() {
            packages[place].sums.insert(path, sums);
            count += 1;
        }
        Ok(count)
    }

    fn put(&self, full: &Path, path: &str, size: u64) -> Result<Sums, ArchiveError> {
        let (mut md5, mut sha256) = (Md5::new(), sha2::Sha256::new());
        if self.settings.content == Content::None {
            let name = format!("{}!{path}", self.settings.seed);
            md5.update(&name);
            sha256.update(&name);
        } else {
            if let Some(parent) = full.parent() {
                make_directories(parent)?;
            }
            let file = fs::File::create(full).map_err(at(full))?;
            let mut file = io::BufWriter::with_capacity(256 << 10, file);
            let mut written = Ok(());
            let mut take = |piece: &[u8]| {
                md5.update(piece);
                sha256.update(piece);
                if written.is_ok() {
                    written = file.write_all(piece);
                }
            };
            match self.settings.content {
                Content::Lines => lines(path, size, &mut take),
                _ => random::content(self.settings.seed, path, size, &mut take),
            }
            written.and_then(|()| file.flush()).map_err(at(full))?;
        }
        let md5 = md5.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Sums { md5, sha256: Digest(sha256.finalize().into()) })
    }

    /// What the state before named stays one state longer, as in a real pool; what this one names is linked.
    fn keep_pool(&self, number: usize) -> Result<(), ArchiveError> {
        let (before, root) = (self.root(number - 1), self.root(number));
        for state in [number - 1, number] {
            let manifest = self.settings.directory.join(format!("manifest-T{state}.tsv"));
            let text = fs::read_to_string(&manifest).map_err(at(&manifest))?;
            for path in text.lines().filter_map(|line| line.rsplit('\t').next()) {
                if !root.join(path).exists() && before.join(path).exists() {
                    link(&before.join(path), &root.join(path))?;
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self, number: usize, indexes: Vec<(&str, String)>) -> Result<(), ArchiveError> {
        let date_unix_s = self.settings.date_unix_s + number as i64 * STEP_S;
        let suite = self.root(number).join("dists").join(&self.settings.suite);
        make_directories(&suite)?;
        let mut entries = Vec::new();
        for (path, text) in indexes {
            entries.push(Entry { path: path.to_owned(), size: text.len() as u64, sha256: Digest::of(text.as_bytes()) });
            for form in [Form::Gz, Form::Xz] {
                let bytes = form.compress_as_debian(text.as_bytes()).map_err(at(&suite))?;
                let path = format!("{path}{}", form.suffix());
                entries.push(file(&suite, &path, &bytes, date_unix_s)?);
            }
            if self.settings.pdiffs {
                entries.extend(self.patches(&suite, path, text, date_unix_s)?);
            }
        }
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        replace(&suite.join("Release"), self.release(number, date_unix_s, &entries).as_bytes(), date_unix_s)?;
        if number > 0 {
            let before = self.root(number - 1).join("dists").join(&self.settings.suite);
            publish::keep_by_hash(&before, &suite).map_err(at(&suite))?;
        }
        publish::sign_directory(&suite, &self.signer, date_unix_s)
    }

    /// The patches of an index up to its present state, and their Index.
    fn patches(
        &mut self,
        suite: &Path,
        path: &str,
        text: String,
        date_unix_s: i64,
    ) -> Result<Option<Entry>, ArchiveError> {
        let versions = self.history.entry(path.to_owned()).or_default();
        if versions.last().is_none_or(|last| last.text != text) {
            versions.push(pdiff::Version { stamp: stamp(date_unix_s), text });
        }
        let kept = &versions[versions.len().saturating_sub(PATCHES_KEPT + 1)..];
        if kept.len() < 2 {
            return Ok(None);
        }
        let mut index = None;
        for (name, bytes) in pdiff::directory(kept, self.settings.merged).map_err(at(suite))? {
            let entry = file(suite, &format!("{path}.diff/{name}"), &bytes, date_unix_s)?;
            // Patches are named by their Index, not by Release.
            index = (name == "Index").then_some(entry).or(index);
        }
        Ok(index)
    }

    fn release(&self, number: usize, date_unix_s: i64, entries: &[Entry]) -> String {
        let (suite, date) = (&self.settings.suite, release_date(date_unix_s));
        let mut text = format!(
            "Origin: Lab\nLabel: Lab\nSuite: {suite}\nCodename: {suite}\nDate: {date}\nAcquire-By-Hash: yes\n\
             No-Support-for-Architecture-all: Packages\nArchitectures: all amd64\nComponents: main\n\
             Description: laboratory archive, state {number}\nSHA256:\n"
        );
        for entry in entries {
            let _ = writeln!(text, " {} {:>8} {}", entry.sha256, entry.size, entry.path);
        }
        text
    }
}

/// Puts a file beneath a suite, under its name and by its hash.
fn file(suite: &Path, path: &str, bytes: &[u8], date_unix_s: i64) -> Result<Entry, ArchiveError> {
    let (target, sha256) = (suite.join(path), Digest::of(bytes));
    replace(&target, bytes, date_unix_s)?;
    link(&target, &target.with_file_name("by-hash").join("SHA256").join(sha256.to_string()))?;
    Ok(Entry { path: path.to_owned(), size: bytes.len() as u64, sha256 })
}

/// Lines with the path and a number, four kilobytes apart.
fn lines(path: &str, size: u64, take: &mut dyn FnMut(&[u8])) {
    let (mut left, mut number) = (size, 0);
    while left > 0 {
        let mut piece = format!("{path} {number:012}\n").into_bytes();
        piece.resize(4096, b'.');
        piece.truncate(left.min(4096) as usize);
        take(&piece);
        (left, number) = (left - piece.len() as u64, number + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(settings: impl Fn(Settings) -> Settings) -> (tempfile::TempDir, PathBuf, Vec<Made>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("archive");
        let states = make(&settings(Settings::new(&path))).unwrap();
        (directory, path, states)
    }

    fn manifest(path: &Path, state: usize) -> Vec<(String, u64, String)> {
        let text = fs::read_to_string(path.join(format!("manifest-T{state}.tsv"))).unwrap();
        let fields = |line: &str| {
            let mut fields = line.split('\t').map(str::to_owned);
            (fields.next().unwrap(), fields.next().unwrap().parse().unwrap(), fields.next().unwrap())
        };
        text.lines().map(fields).collect()
    }

    #[test]
    fn states_are_whole_and_signed_and_a_part_of_the_files_changes() {
        let (_directory, path, states) = made(|settings| Settings {
            kind: Kind::Both,
            files: 60,
            bytes: Some(3_000_000),
            largest_file_bytes: 500_000,
            states: 2,
            churn: 0.2,
            ..settings
        });
        assert_eq!(states.len(), 2);
        for (number, state) in states.iter().enumerate() {
            assert!((40..=80).contains(&state.files), "{state:?}");
            assert!((2_700_000..=3_500_000).contains(&state.bytes), "{state:?}");
            let root = path.join(format!("T{number}"));
            for (sha256, size, path) in manifest(&path, number) {
                let (digest, length) = Digest::of_file(&root.join(&path)).unwrap();
                assert_eq!((digest.to_string(), length), (sha256, size), "{path}");
                assert!(size <= 500_000);
            }
            let suite = root.join("dists/sid");
            let verified = std::process::Command::new("gpgv")
                .arg("--keyring")
                .arg(path.join("key.gpg"))
                .arg(suite.join("InRelease"))
                .output()
                .unwrap();
            assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
            let release = fs::read_to_string(suite.join("Release")).unwrap();
            for line in release.lines().filter(|line| line.starts_with(' ')) {
                let words: Vec<&str> = line.split_whitespace().collect();
                if let Ok((digest, length)) = Digest::of_file(&suite.join(words[2])) {
                    assert_eq!([digest.to_string(), length.to_string()], [words[0], words[1]], "{line}");
                }
            }
            for name in ["main/source/Sources.xz", "main/binary-amd64/Packages.gz", "main/Contents-amd64.gz"] {
                assert!(release.contains(name) && suite.join(name).exists(), "{name}");
            }
            assert_eq!(release.contains("Packages.diff/Index"), number == 1);
        }
        assert!((6..=24).contains(&states[1].new_files), "{states:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_files_and_indexes_alone_need_no_pool() {
        let alone = |seed| {
            made(|settings| Settings {
                kind: Kind::Binary,
                files: 50,
                content: Content::None,
                contents: false,
                seed,
                ..settings
            })
        };
        let (one, other, third) = (alone(3), alone(3), alone(4));
        assert_eq!(manifest(&one.1, 0), manifest(&other.1, 0));
        assert_ne!(manifest(&one.1, 0), manifest(&third.1, 0));
        assert!(!one.1.join("T0/pool").exists());
        let index = |path: &Path| fs::read(path.join("T0/dists/sid/main/binary-amd64/Packages.gz")).unwrap();
        assert_eq!(index(&one.1), index(&other.1));
    }

    #[test]
    fn lines_pack_well_and_have_their_size() {
        let mut bytes = Vec::new();
        lines("pool/x", 10_000, &mut |piece| bytes.extend_from_slice(piece));
        assert_eq!(bytes.len(), 10_000);
        assert!(Form::Xz.compress(&bytes).unwrap().len() < 500);
    }
}
