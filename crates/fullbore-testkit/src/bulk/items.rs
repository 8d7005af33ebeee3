//! Packages of a large archive: names, versions, what an upload changes, and their stanzas.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use crate::digest::Digest;
use crate::random::Random;

const SYLLABLES: [&str; 51] = [
    "ba", "be", "bi", "bo", "da", "de", "di", "do", "fa", "fi", "ga", "ge", "go", "ha", "he", "ka", "ke", "ki", "ko",
    "la", "le", "li", "lo", "lu", "ma", "me", "mi", "mo", "na", "ne", "ni", "no", "pa", "pe", "pi", "po", "ra", "re",
    "ri", "ro", "sa", "se", "si", "so", "ta", "te", "ti", "to", "va", "ve", "zo",
];
const SECTIONS: [&str; 16] = [
    "admin", "comm", "database", "devel", "doc", "editors", "games", "gnome", "graphics", "java", "libs", "net",
    "perl", "python", "utils", "web",
];
/// A `.deb` is not smaller, nor another file.
pub(super) const DEB_BYTES_MIN: u64 = 700;
pub(super) const FILE_BYTES_MIN: u64 = 200;

/// Names, none twice.
#[derive(Debug, Default)]
pub(super) struct Names {
    seen: HashSet<String>,
}

impl Names {
    pub(super) fn new_name(&mut self, random: &mut Random) -> String {
        loop {
            let word: String = (0..2 + random.below(3)).map(|_| *random.pick(&SYLLABLES)).collect();
            let twice = random.pick(&SYLLABLES).repeat(2);
            let name = match random.unit() {
                x if x < 0.18 => format!("lib{word}"),
                x if x < 0.26 => format!("python-{word}"),
                x if x < 0.30 => format!("golang-{word}"),
                x if x < 0.50 => format!("{word}-{twice}"),
                x if x < 0.51 => format!("{word}++"),
                _ => word,
            };
            if self.seen.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// Words that stanzas are filled with.
#[derive(Debug)]
pub(super) struct Words(Vec<String>);

impl Words {
    pub(super) fn new(count: usize, names: &mut Names, random: &mut Random) -> Words {
        Words((0..count).map(|_| names.new_name(random)).collect())
    }

    fn pick(&self, random: &mut Random) -> &str {
        random.pick::<String>(&self.0)
    }

    fn relation(&self, random: &mut Random) -> String {
        let mut text = self.pick(random).to_owned();
        if random.chance(0.35) {
            let _ = write!(text, " (>= {}.{})", random.below(10), random.below(21));
        }
        text
    }

    /// Relations until a stanza has its size.
    fn relations(&self, first: Option<&str>, room: usize, random: &mut Random) -> String {
        let mut text = first.unwrap_or_default().to_owned();
        while text.len() + 10 < room {
            let separator = if text.is_empty() { "" } else { ", " };
            let relation = self.relation(random);
            let _ = write!(text, "{separator}{relation}");
        }
        text
    }
}

/// Hashes of a file.
#[derive(Debug, Clone)]
pub(super) struct Sums {
    pub(super) md5: String,
    pub(super) sha256: Digest,
}

/// What a package is made of.
#[derive(Debug, Clone)]
pub(super) enum Parts {
    /// The ends of file names, and sizes.
    Source(Vec<(String, u64)>),
    Binary {
        architecture: String,
        bytes: u64,
        installed_kib: u64,
    },
}

/// A package of the archive.
#[derive(Debug, Clone)]
pub(super) struct Package {
    pub(super) name: String,
    /// From its first upload on: what stays the same in its stanza is drawn by it.
    label: String,
    major: u64,
    /// What follows the first number.
    rest: String,
    revision: u64,
    epoch: &'static str,
    pub(super) parts: Parts,
    stanza_bytes: usize,
    /// Of files that were made.
    pub(super) sums: HashMap<String, Sums>,
}

impl Package {
    pub(super) fn new(name: String, parts: Parts, stanza_bytes: usize, random: &mut Random) -> Package {
        let end = match random.unit() {
            x if x < 0.6 => format!(".{}", random.below(21)),
            x if x < 0.7 => "+dfsg".to_owned(),
            x if x < 0.75 => format!("~rc{}", 1 + random.below(4)),
            x if x < 0.8 => format!("+git2024{:04}", 101 + random.below(1131)),
            _ => String::new(),
        };
        Package {
            label: name.clone(),
            name,
            major: random.below(10),
            rest: format!("{}{end}", random.below(41)),
            revision: 1 + random.below(5),
            epoch: if random.chance(0.05) { "1:" } else { "" },
            parts,
            stanza_bytes,
            sums: HashMap::new(),
        }
    }

    /// Another one that is like this.
    fn like(&self, name: String, random: &mut Random) -> Package {
        Package::new(name, self.parts.clone(), self.stanza_bytes, random)
    }

    fn is_native(&self) -> bool {
        matches!(&self.parts, Parts::Source(files) if !files.iter().any(|(end, _)| end.contains(".orig")))
    }

    fn upstream(&self) -> String {
        format!("{}.{}", self.major, self.rest)
    }

    fn version(&self) -> String {
        if self.is_native() { self.upstream() } else { format!("{}-{}", self.upstream(), self.revision) }
    }

    fn directory(&self) -> String {
        let letters = if self.name.starts_with("lib") { 4 } else { 1 };
        format!("pool/main/{}/{}", &self.name[..letters.min(self.name.len())], self.name)
    }

    /// Paths and sizes.
    pub(super) fn files(&self) -> Vec<(String, u64)> {
        let (directory, name) = (self.directory(), &self.name);
        match &self.parts {
            Parts::Binary { architecture, bytes, .. } => {
                vec![(format!("{directory}/{name}_{}_{architecture}.deb", self.version()), *bytes)]
            }
            Parts::Source(files) => {
                let mut further = 0;
                let mut path = |end: &str| {
                    let mut end = end.to_owned();
                    if end.starts_with(".orig-x") {
                        further += 1;
                        end = end.replace("orig-x", &format!("orig-part{further}"));
                    }
                    let version = if end.starts_with(".orig") { self.upstream() } else { self.version() };
                    format!("{directory}/{name}_{version}{end}")
                };
                files.iter().map(|(end, size)| (path(end), *size)).collect()
            }
        }
    }

    /// An upload: a new upstream version or only a new revision.
    fn upload(&mut self, random: &mut Random) {
        let is_new = self.is_native() || random.chance(0.35);
        if is_new {
            (self.major, self.revision) = (self.major + 1, 1);
        } else {
            self.revision += 1;
        }
        let mut grown = |size: u64, least: u64| ((size as f64 * (0.97 + 0.08 * random.unit())) as u64).max(least);
        match &mut self.parts {
            Parts::Binary { bytes, .. } => *bytes = grown(*bytes, DEB_BYTES_MIN),
            Parts::Source(files) => {
                for (end, size) in files.iter_mut().filter(|(end, _)| is_new || !end.contains(".orig")) {
                    let least = if end.ends_with(".dsc") { 100 } else { FILE_BYTES_MIN };
                    *size = grown(*size, least);
                }
            }
        }
    }

    /// Its stanza, of about the size that one of Debian's has. With `installable` relations stand where apt asks for
    /// nothing.
    pub(super) fn stanza(&self, words: &Words, installable: bool) -> String {
        let random = &mut Random::new(0, &format!("stanza/{}", self.label));
        match &self.parts {
            Parts::Binary { architecture, installed_kib, .. } => {
                let (path, size) = &self.files()[0];
                let Sums { md5, sha256 } = &self.sums[path];
                let head = format!(
                    "Package: {}\nVersion: {}\nInstalled-Size: {installed_kib}\nMaintainer: {} <{}@example.org>\n\
                     Architecture: {architecture}\n",
                    self.name,
                    self.version(),
                    words.pick(random),
                    words.pick(random),
                );
                let tail = format!(
                    "Description: {} {}\nHomepage: https://example.org/{}\nDescription-md5: {}\nSection: {}\n\
                     Priority: optional\nFilename: {path}\nSize: {size}\nMD5sum: {md5}\nSHA256: {sha256}\n\n",
                    words.pick(random),
                    words.pick(random),
                    self.name,
                    crate::stanza::invented_md5(&self.label),
                    random.pick(&SECTIONS),
                );
                let relations =
                    words.relations(None, self.stanza_bytes.saturating_sub(head.len() + tail.len() + 10), random);
                let field = if installable { "Enhances" } else { "Depends" };
                let depends = if relations.is_empty() { String::new() } else { format!("{field}: {relations}\n") };
                format!("{head}{depends}{tail}")
            }
            Parts::Source(_) => {
                let head = format!(
                    "Package: {0}\nBinary: {0}\nVersion: {1}{2}\nMaintainer: {3} {4} <{5}@example.org>\n",
                    self.name,
                    self.epoch,
                    self.version(),
                    words.pick(random),
                    words.pick(random),
                    words.pick(random),
                );
                let format = if self.is_native() { "native" } else { "quilt" };
                let (mut files, mut checksums) = (String::new(), String::new());
                for (path, size) in self.files() {
                    let (sums, name) = (&self.sums[&path], path.rsplit('/').next().unwrap_or_default());
                    let _ = writeln!(files, " {} {size} {name}", sums.md5);
                    let _ = writeln!(checksums, " {} {size} {name}", sums.sha256);
                }
                let middle = format!(
                    "Architecture: any\nStandards-Version: 4.6.2\nFormat: 3.0 ({format})\nFiles:\n{files}Checksums-Sha256:\n{checksums}"
                );
                let tail = format!(
                    "Homepage: https://example.org/{0}\nPackage-List:\n {0} deb {1} optional arch=any\nDirectory: {2}\n\
                     Priority: optional\nSection: {1}\n\n",
                    self.name,
                    random.pick(&SECTIONS),
                    self.directory(),
                );
                let room = self.stanza_bytes.saturating_sub(head.len() + middle.len() + tail.len() + 16);
                let relations = words.relations(Some("debhelper-compat (= 13)"), room, random);
                let field = if installable { "Build-Conflicts" } else { "Build-Depends" };
                format!("{head}{field}: {relations}\n{middle}{tail}")
            }
        }
    }

    /// Lines of Contents: what it would install.
    pub(super) fn contents(&self, words: &Words) -> Vec<String> {
        const TOPS: [&str; 4] =
            ["usr/share", "usr/lib/x86_64-linux-gnu", "usr/lib/python3/dist-packages", "usr/include"];
        const ENDS: [&str; 7] = [".so", ".py", ".h", ".png", ".html", "/index.js", ".gz"];
        let Parts::Binary { installed_kib, .. } = &self.parts else { return Vec::new() };
        let random = &mut Random::new(0, &format!("paths/{}/{}", self.label, self.upstream()));
        let name = &self.name;
        let mut paths =
            vec![format!("usr/share/doc/{name}/copyright"), format!("usr/share/doc/{name}/changelog.Debian.gz")];
        let most = -(1.0 - random.unit()).ln() * 25.0 * (1.0 + *installed_kib as f64 / 4000.0);
        for _ in 0..(most as u64).min(2000) {
            let (top, word, end) = (random.pick(&TOPS), words.pick(random).to_owned(), random.pick(&ENDS));
            paths.push(format!("{top}/{name}/{word}{end}"));
        }
        paths.into_iter().map(|path| format!("{path:<55} misc/{name}\n")).collect()
    }
}

/// One run of the archive's software: about this share of the files are new afterwards.
pub(super) fn step(packages: &mut Vec<Package>, churn: f64, names: &mut Names, random: &mut Random) {
    let files: usize = packages.iter().map(|package| package.files().len()).sum();
    let wanted = ((churn * files as f64).round() as usize).max(1);
    let mut order: Vec<usize> = (0..packages.len()).collect();
    for place in (1..order.len()).rev() {
        order.swap(place, random.below(place as u64 + 1) as usize);
    }
    let (mut made, mut gone) = (0, HashSet::new());
    for place in order {
        if made >= wanted {
            break;
        }
        match random.unit() {
            x if x < 0.04 => {
                gone.insert(packages[place].name.clone());
            }
            x if x < 0.12 => {
                let new = packages[place].like(names.new_name(random), random);
                made += new.files().len();
                packages.push(new);
            }
            _ => {
                let before: HashSet<String> = packages[place].files().into_iter().map(|(path, _)| path).collect();
                packages[place].upload(random);
                made += packages[place].files().iter().filter(|(path, _)| !before.contains(path)).count();
            }
        }
    }
    packages.retain(|package| !gone.contains(&package.name));
}
