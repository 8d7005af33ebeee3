//! The packages of an invented distribution, and how they change from state to state.
//!
//! Only names, versions and sizes live here; what the indexes say about them is in
//! `stanza`, the bytes of the files are in `deb` and `random`.

use crate::random::Random;

const SYLLABLES: &[&str] = &[
    "ba", "bo", "da", "di", "fa", "go", "ha", "ke", "ki", "la", "lo", "ma", "mi", "na", "no", "pa", "pe", "ra", "ri",
    "sa", "so", "ta", "te", "va", "we", "xi", "za", "zo",
];

/// Sizes of the files of Debian's source packages (bytes at a share of all files), read off
/// a full suite: 10 % are below 2.0 kB, half below 3.8 kB, 90 % below 308 kB, 99 % below 11.9 MB.
const SIZE_QUANTILES: &[(f64, f64)] =
    &[(0.0, 700.0), (0.1, 2_000.0), (0.5, 3_800.0), (0.9, 308_000.0), (0.99, 11_900_000.0), (1.0, 60_000_000.0)];

/// Smallest file other than a `.dsc`: room for the mark and a tiny package.
const SMALLEST_BYTES: u64 = 900;

/// Draws a size from the distribution, before it is scaled to what the archive may weigh.
fn draw_size(random: &mut Random) -> u64 {
    let share = random.unit();
    for pair in SIZE_QUANTILES.windows(2) {
        let ((from, low), (to, high)) = (pair[0], pair[1]);
        if share <= to {
            return (low * (high / low).powf((share - from) / (to - from))) as u64;
        }
    }
    SMALLEST_BYTES
}

/// What a binary package is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryKind {
    /// One file per architecture.
    Any,
    /// One file, `Architecture: all`.
    All,
    /// For the installer, one file per architecture.
    Udeb,
}

#[derive(Clone, Debug)]
pub(crate) struct Binary {
    pub name: String,
    pub kind: BinaryKind,
    pub size: u64,
    /// Place of this package among the binaries of the archive; a package depends only on
    /// packages with a lower place, so that installations always resolve.
    pub place: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct SourcePackage {
    pub name: String,
    pub component: String,
    pub epoch: Option<u32>,
    pub upstream: String,
    /// `None` for a native package.
    pub revision: Option<u32>,
    /// Size of the upstream tarball, or of the only tarball of a native package.
    pub original_bytes: u64,
    pub debian_bytes: u64,
    pub signed_upstream: bool,
    pub binaries: Vec<Binary>,
    /// An older version that is still listed, with `Extra-Source-Only: yes`.
    pub extra: Option<Box<SourcePackage>>,
    /// Upload number; makes stanza details differ between versions.
    pub upload: u32,
    /// The file names contain the epoch with its colon, as some private archives have it.
    pub colon_in_names: bool,
}

impl SourcePackage {
    /// Version without epoch.
    pub fn file_version(&self) -> String {
        match self.revision {
            Some(revision) => format!("{}-{revision}", self.upstream),
            None => self.upstream.clone(),
        }
    }

    /// Version with epoch.
    pub fn version(&self) -> String {
        match self.epoch {
            Some(epoch) => format!("{epoch}:{}", self.file_version()),
            None => self.file_version(),
        }
    }

    pub fn directory(&self) -> String {
        let prefix = if self.name.starts_with("lib") { &self.name[..4] } else { &self.name[..1] };
        format!("pool/{}/{prefix}/{}", self.component, self.name)
    }

    /// Names and sizes of the source files, the `.dsc` first.
    pub fn source_files(&self) -> Vec<(String, u64)> {
        let name = &self.name;
        let version = self.file_version();
        let description = (format!("{name}_{version}.dsc"), 1_200 + (self.upload as u64 * 37) % 900);
        if self.revision.is_none() {
            return vec![description, (format!("{name}_{version}.tar.xz"), self.original_bytes)];
        }
        let original = format!("{name}_{}.orig.tar.xz", self.upstream);
        let mut files = vec![description, (original.clone(), self.original_bytes)];
        if self.signed_upstream {
            files.push((format!("{original}.asc"), 833));
        }
        files.push((format!("{name}_{version}.debian.tar.xz"), self.debian_bytes));
        files
    }

    /// Name of a binary package's file for an architecture.
    pub fn binary_file(&self, binary: &Binary, architecture: &str) -> String {
        let version = if self.colon_in_names { self.version() } else { self.file_version() };
        let architecture = if binary.kind == BinaryKind::All { "all" } else { architecture };
        let ending = if binary.kind == BinaryKind::Udeb { "udeb" } else { "deb" };
        format!("{}_{version}_{architecture}.{ending}", binary.name)
    }

    /// A new upload: mostly a new revision, sometimes a new upstream version.
    fn update(&mut self, random: &mut Random) {
        self.upload += 1;
        let around = |random: &mut Random, size: u64| (size as f64 * (0.97 + 0.08 * random.unit())) as u64;
        match self.revision {
            Some(revision) if random.chance(0.65) => self.revision = Some(revision + 1),
            _ => {
                self.upstream = format!("{}.{}", self.upstream, self.upload);
                self.revision = self.revision.map(|_| 1);
                self.original_bytes = around(random, self.original_bytes).max(SMALLEST_BYTES);
            }
        }
        self.debian_bytes = around(random, self.debian_bytes).max(SMALLEST_BYTES);
        for binary in &mut self.binaries {
            binary.size = around(random, binary.size).max(SMALLEST_BYTES);
        }
    }
}

/// What the model is drawn from.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub seed: u64,
    pub sources: usize,
    pub components: Vec<String>,
    pub architectures: usize,
    pub pool_bytes: u64,
    pub largest_file_bytes: u64,
    pub udebs: bool,
    pub odd_names: bool,
}

/// All packages of the main suite at one state.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub packages: Vec<SourcePackage>,
    random: Random,
    places: usize,
    shape: Shape,
}

impl Model {
    pub fn new(shape: &Shape) -> Model {
        let random = Random::new(shape.seed, "model");
        let mut model = Model { packages: Vec::new(), random, places: 0, shape: shape.clone() };
        for number in 0..shape.sources.max(1) {
            let package = model.draw_package(number);
            model.packages.push(package);
        }
        model.scale();
        model.packages.sort_by(|a, b| a.name.cmp(&b.name));
        model
    }

    fn draw_name(&mut self) -> String {
        loop {
            let random = &mut self.random;
            let word: String = (0..2 + random.below(3)).map(|_| *random.pick(SYLLABLES)).collect();
            let name = match random.below(100) {
                0..18 => format!("lib{word}"),
                18..26 => format!("python-{word}"),
                26..30 => format!("{word}++"),
                30..34 => format!("{word}.js"),
                _ => word,
            };
            if !self.packages.iter().any(|package| package.name == name) {
                return name;
            }
        }
    }

    fn draw_package(&mut self, number: usize) -> SourcePackage {
        let name = self.draw_name();
        let components = &self.shape.components;
        // Most of an archive is main; each further component has at least one package.
        let component = match number {
            0 => &components[0],
            n if n < components.len() => &components[n],
            n if n % 10 == 9 => &components[n % components.len()],
            _ => &components[0],
        }
        .clone();
        let random = &mut self.random;
        let mut upstream = format!("{}.{}", random.below(10), random.below(40));
        match random.below(20) {
            0..8 => upstream.push_str(&format!(".{}", random.below(20))),
            8..10 => upstream.push_str("+dfsg"),
            10 => upstream.push_str("~rc1"),
            11 => upstream.push_str("+git20250103.1a2b3c4~ds"),
            _ => {}
        }
        let mut package = SourcePackage {
            epoch: random.chance(0.06).then_some(1),
            upstream,
            revision: (!random.chance(0.12)).then(|| 1 + random.below(4) as u32),
            original_bytes: draw_size(random),
            debian_bytes: draw_size(random).min(60_000),
            signed_upstream: random.chance(0.1),
            binaries: Vec::new(),
            extra: None,
            upload: 1,
            colon_in_names: false,
            name,
            component,
        };
        if number == 2 && self.shape.odd_names {
            package.epoch = Some(1);
            package.upstream = "1.0+dfsg~b1".to_string();
            package.colon_in_names = true;
        }
        for ordinal in 0..1 + self.random.below(2) {
            let name = match ordinal {
                0 => package.name.clone(),
                _ => format!("{}-{}", package.name, ["doc", "dev", "data"][self.random.below(3) as usize]),
            };
            let kind = if self.random.chance(0.4) { BinaryKind::All } else { BinaryKind::Any };
            package.binaries.push(Binary { name, kind, size: draw_size(&mut self.random), place: self.places });
            self.places += 1;
        }
        if self.shape.udebs && package.component == "main" && (number == 0 || self.random.chance(0.1)) {
            let name = format!("{}-udeb", package.name);
            let size = draw_size(&mut self.random).min(90_000);
            package.binaries.push(Binary { name, kind: BinaryKind::Udeb, size, place: self.places });
            self.places += 1;
        }
        if self.random.chance(0.08) || number == 1 {
            let mut older = package.clone();
            older.upstream = format!("0.{}", older.upstream);
            older.binaries.clear();
            package.extra = Some(Box::new(older));
        }
        package
    }

    /// Brings the sum of all files near `pool_bytes`, the largest to at most `largest_file_bytes`.
    fn scale(&mut self) {
        let architectures = self.shape.architectures as u64;
        let largest = self.shape.largest_file_bytes.max(SMALLEST_BYTES);
        let resize = |size: u64, factor: f64| ((size as f64 * factor) as u64).clamp(SMALLEST_BYTES, largest);
        let mut factor = 1.0;
        // The floor and the cap make the sum not quite linear in the factor.
        for _ in 0..8 {
            let sum: u64 = self
                .packages
                .iter()
                .map(|package| {
                    let extra = if package.extra.is_some() { 2 } else { 1 };
                    let source = resize(package.original_bytes, factor) + resize(package.debian_bytes, factor);
                    let binaries = package.binaries.iter().map(|binary| {
                        let copies = if binary.kind == BinaryKind::All { 1 } else { architectures };
                        resize(binary.size, factor) * copies
                    });
                    source * extra + binaries.sum::<u64>()
                })
                .sum();
            factor *= self.shape.pool_bytes as f64 / sum.max(1) as f64;
        }
        for package in &mut self.packages {
            package.original_bytes = resize(package.original_bytes, factor);
            package.debian_bytes = resize(package.debian_bytes, factor);
            for binary in &mut package.binaries {
                binary.size = resize(binary.size, factor);
            }
            if let Some(extra) = &mut package.extra {
                extra.original_bytes = package.original_bytes;
                extra.debian_bytes = package.debian_bytes;
            }
        }
    }

    /// One update of the archive: a share `churn` of the packages is new, changed or gone;
    /// at least one of each.
    pub fn step(&mut self, churn: f64) {
        let count = ((self.packages.len() as f64 * churn) as usize).max(3).min(self.packages.len());
        for number in 0..count {
            let at = self.random.below(self.packages.len() as u64) as usize;
            match number % 10 {
                1 => {
                    let mut package = self.draw_package(usize::MAX - 1);
                    let model = &self.packages[at];
                    package.component.clone_from(&model.component);
                    package.original_bytes = model.original_bytes;
                    package.debian_bytes = model.debian_bytes;
                    for binary in &mut package.binaries {
                        binary.size = model.binaries.first().map_or(SMALLEST_BYTES, |other| other.size);
                    }
                    package.extra = None;
                    self.packages.push(package);
                }
                2 if self.packages.len() > 4 => {
                    self.packages.remove(at);
                }
                _ => {
                    let mut random = self.random.clone();
                    self.packages[at].update(&mut random);
                    self.random = random;
                }
            }
        }
        self.packages.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// A smaller suite beside the main one: some packages as they are in it, some newer.
    pub fn offshoot(&self, label: &str, share: f64) -> Vec<SourcePackage> {
        let mut chosen = Vec::new();
        for package in &self.packages {
            // Drawn by name, so that a suite does not change altogether from state to state.
            let mut random = Random::new(self.shape.seed, &format!("{label}/{}", package.name));
            // At least one, whatever the draws say.
            let first = chosen.is_empty() && package.name.as_bytes()[0] > b'k';
            if !random.chance(share) && !first {
                continue;
            }
            let mut package = package.clone();
            package.extra = None;
            if chosen.len() % 2 == 0 {
                package.upload += 1;
                package.upstream = format!("{}+{label}1", package.upstream);
            }
            chosen.push(package);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(sources: usize) -> Shape {
        Shape {
            seed: 1,
            sources,
            components: vec!["main".into(), "contrib".into()],
            architectures: 2,
            pool_bytes: 20_000_000,
            largest_file_bytes: 3_000_000,
            udebs: true,
            odd_names: true,
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_packages() {
        let a = format!("{:?}", Model::new(&shape(50)).packages);
        assert_eq!(a, format!("{:?}", Model::new(&shape(50)).packages));
    }

    #[test]
    fn a_step_changes_adds_and_removes() {
        let mut model = Model::new(&shape(50));
        let before: Vec<String> = model.packages.iter().map(|p| format!("{} {}", p.name, p.version())).collect();
        model.step(0.1);
        let after: Vec<String> = model.packages.iter().map(|p| format!("{} {}", p.name, p.version())).collect();
        assert!(after.iter().any(|line| !before.contains(line)));
        assert!(before.iter().any(|line| !after.contains(line)));
        assert!(after.iter().filter(|line| before.contains(line)).count() > 40);
    }
}
