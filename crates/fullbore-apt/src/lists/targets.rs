//! Index targets: the files of a repository that an update keeps.
//!
//! APT's configuration has a template for each kind of index (`Acquire::IndexTargets::deb::Packages`,
//! …; acquire-additional-files.md of APT's documentation). They are filled in with the components, architectures and
//! languages of a source. Only the repository's `Release` says which of these files exist.

use fullbore_debian::sources_list::{ArchiveSource, ByHash};

use crate::acquire::Configuration;

/// Largest number of targets of one type, address and suite; a full Debian source with all architectures has some hundred.
const TARGETS_MAX: usize = 20_000;

/// Type of a source: binary or source packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceType {
    /// Binary packages.
    Deb,
    /// Source packages.
    DebSrc,
}

impl SourceType {
    /// Its name in sources lists and in APT's configuration.
    pub fn name(self) -> &'static str {
        match self {
            SourceType::Deb => "deb",
            SourceType::DebSrc => "deb-src",
        }
    }
}

/// An index that an update keeps, without the extension of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexTarget {
    /// Its name in the `Release`: `main/binary-amd64/Packages`.
    pub meta_key: String,
    /// The directory of the `Release`, with `/` at its end.
    pub base_uri: String,
    /// The name of its template, such as `Contents-deb`.
    pub created_by: String,
    /// Component of the index; `None` in flat repositories.
    pub component: Option<String>,
    /// Architecture of the index; `None` if it is for all.
    pub architecture: Option<String>,
    /// Language of a translation; `None` for other indexes.
    pub language: Option<String>,
    /// Whether the index may be missing without an error.
    pub optional: bool,
    /// Whether the index stays compressed in the lists directory.
    pub keep_compressed: bool,
    /// Extensions under which it may be stored, best first; `uncompressed` for none.
    pub keep_compressed_as: Vec<String>,
    /// Extensions under which it may be fetched, best first.
    pub compression_types: Vec<String>,
    /// Whether patches may be used for this index.
    pub pdiffs: bool,
    /// When it is requested by its hash.
    pub by_hash: ByHash,
    /// The target that this one replaces if that does not exist.
    pub fallback_of: Option<String>,
}

impl IndexTarget {
    /// Its address, without the extension of a form.
    pub fn uri(&self) -> String {
        format!("{}{}", self.base_uri, self.meta_key)
    }
}

/// Defaults for all sources, from APT's configuration.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// Native architecture of the machine, such as `amd64`.
    pub native: String,
    /// All architectures, the native one first.
    pub architectures: Vec<String>,
    /// Language codes for Translation indexes, from [`languages`](super::languages()).
    pub languages: Vec<String>,
    compression_types: Vec<String>,
    keep_compressed_as: Vec<String>,
}

impl Defaults {
    /// Reads the defaults from the configuration. `native` is the fallback for `APT::Architecture`.
    pub fn new(configuration: &Configuration, native: &str, languages: Vec<String>) -> Defaults {
        let native = configuration.get_or("APT::Architecture", native).to_owned();
        let mut architectures: Vec<String> =
            configuration.list("APT::Architectures").into_iter().map(str::to_owned).collect();
        if architectures.is_empty() {
            architectures.push(native.clone());
        }
        Defaults {
            native,
            architectures,
            languages,
            compression_types: compression_types(configuration),
            keep_compressed_as: keep_compressed_as(configuration),
        }
    }
}

/// The order of download: `Acquire::CompressionTypes::Order`, then the others, then uncompressed.
fn compression_types(configuration: &Configuration) -> Vec<String> {
    let known: Vec<&str> = configuration
        .children("Acquire::CompressionTypes")
        .map(|(name, _)| name)
        .filter(|name| !name.is_empty())
        .collect();
    let known = if known.is_empty() { vec!["xz", "bz2", "lzma", "gz", "lz4", "zst"] } else { known };
    let ordered = configuration.list("Acquire::CompressionTypes::Order");
    let mut types: Vec<String> = Vec::new();
    let usable = ordered.iter().chain(known.iter()).filter(|name| **name == "uncompressed" || known.contains(name));
    for name in usable.filter(|name| !name.eq_ignore_ascii_case("order")) {
        if !types.iter().any(|own| own == name) {
            types.push((*name).to_owned());
        }
    }
    if !types.iter().any(|own| own == "uncompressed") {
        types.push("uncompressed".to_owned());
    }
    types
}

/// The order of keeping: the compressors by their cost.
fn keep_compressed_as(configuration: &Configuration) -> Vec<String> {
    let mut costs: Vec<(i64, String)> = configuration
        .children("APT::Compressor")
        .filter_map(|(name, _)| {
            let key = |what: &str| format!("APT::Compressor::{name}::{what}");
            let extension = configuration.get(&key("Extension"))?.strip_prefix('.')?.to_owned();
            let cost = configuration.number(&key("Cost"), 100);
            (cost != 0 && !name.is_empty()).then_some((cost, extension))
        })
        .collect();
    if costs.is_empty() {
        costs = [(50, "lz4"), (60, "zst"), (100, "gz"), (200, "xz"), (300, "bz2"), (400, "lzma")]
            .map(|(cost, name)| (cost, name.to_owned()))
            .to_vec();
    }
    costs.sort();
    costs.into_iter().map(|(_, name)| name).chain(["uncompressed".to_owned()]).collect()
}

/// All targets of one type, address and suite (as written) of a source, in the configuration's order.
pub fn targets(
    configuration: &Configuration,
    defaults: &Defaults,
    source: &ArchiveSource,
    kind: SourceType,
    uri: &str,
    suite: &str,
) -> Vec<IndexTarget> {
    let flat = suite.ends_with('/');
    let base_uri = base_uri(uri, suite);
    let mut architectures = source.architectures.resolve(&defaults.architectures);
    // Packages for all machines may have an index of their own.
    if !architectures.iter().any(|own| own == "all") {
        architectures.push("all".to_owned());
    }
    let languages = source.languages.resolve(&defaults.languages);
    let languages: Vec<&str> = languages.iter().map(String::as_str).filter(|code| *code != "none").collect();
    let components: Vec<Option<&str>> =
        if flat { vec![None] } else { source.components.iter().map(|name| Some(name.as_str())).collect() };
    let mut targets: Vec<IndexTarget> = Vec::new();
    for component in components {
        for template in enabled(configuration, source, kind) {
            let reader = Template { configuration, kind, name: template, flat };
            for (architecture, language) in reader.choices(defaults, &architectures, &languages) {
                let Some(target) = reader.fill(defaults, source, &base_uri, component, architecture, language) else {
                    continue;
                };
                let known =
                    targets.iter().any(|own| own.meta_key == target.meta_key && own.created_by == target.created_by);
                if !known && targets.len() < TARGETS_MAX {
                    targets.push(target);
                }
            }
        }
    }
    targets
}

/// The address of the `Release`'s directory, as APT writes it. A suite with `/` at its end is a directory itself.
pub(crate) fn base_uri(uri: &str, suite: &str) -> String {
    let slash = if uri.ends_with('/') { "" } else { "/" };
    match suite {
        "/" => format!("{uri}{slash}"),
        directory if directory.ends_with('/') => format!("{uri}{slash}{directory}"),
        name => format!("{uri}{slash}dists/{name}/"),
    }
}

/// The templates of a source: the default ones, changed by its options.
fn enabled<'c>(configuration: &'c Configuration, source: &ArchiveSource, kind: SourceType) -> Vec<&'c str> {
    let key = format!("Acquire::IndexTargets::{}", kind.name());
    let all: Vec<&str> = configuration.children(&key).map(|(name, _)| name).filter(|name| !name.is_empty()).collect();
    let by_default: Vec<String> = all
        .iter()
        .filter(|name| configuration.bool(&format!("{key}::{name}::DefaultEnabled"), true))
        .map(|name| (*name).to_owned())
        .collect();
    let wanted = source.targets.resolve(&by_default);
    let identifier = |name: &str| configuration.get(&format!("{key}::{name}::Identifier")).unwrap_or(name).to_owned();
    let switched = |name: &str| {
        let own = identifier(name);
        let hit = |(option, _): &&(String, bool)| name.eq_ignore_ascii_case(option) || own.eq_ignore_ascii_case(option);
        source.switches.iter().rev().find(hit).map(|(_, on)| *on)
    };
    all.into_iter()
        .filter(|name| switched(name).unwrap_or_else(|| wanted.iter().any(|own| own.eq_ignore_ascii_case(name))))
        .collect()
}

/// One template of the configuration.
struct Template<'c> {
    configuration: &'c Configuration,
    kind: SourceType,
    name: &'c str,
    flat: bool,
}

impl<'c> Template<'c> {
    fn get(&self, what: &str) -> Option<&'c str> {
        let (kind, name) = (self.kind.name(), self.name);
        self.configuration.get(&format!("Acquire::IndexTargets::{kind}::{name}::{what}"))
    }

    fn bool(&self, what: &str, default: bool) -> bool {
        let (kind, name) = (self.kind.name(), self.name);
        self.configuration.bool(&format!("Acquire::IndexTargets::{kind}::{name}::{what}"), default)
    }

    fn meta_key(&self) -> &'c str {
        self.get(if self.flat { "flatMetaKey" } else { "MetaKey" }).unwrap_or_default()
    }

    /// Pairs of architecture and language, one for each file.
    fn choices<'a>(
        &self,
        defaults: &'a Defaults,
        architectures: &'a [String],
        languages: &[&'a str],
    ) -> Vec<(Option<&'a str>, Option<&'a str>)> {
        let key = self.meta_key();
        let architectures: Vec<Option<&str>> = if key.contains("$(NATIVE_ARCHITECTURE)") {
            vec![Some(defaults.native.as_str()), Some("all")]
        } else if key.contains("$(ARCHITECTURE)") {
            architectures.iter().map(|name| Some(name.as_str())).collect()
        } else {
            vec![None]
        };
        let languages: Vec<Option<&str>> =
            if key.contains("$(LANGUAGE)") { languages.iter().map(|code| Some(*code)).collect() } else { vec![None] };
        let with = |architecture: &Option<&'a str>| {
            let architecture = *architecture;
            languages.iter().map(move |language| (architecture, *language)).collect::<Vec<_>>()
        };
        architectures.iter().flat_map(with).collect()
    }

    fn fill(
        &self,
        defaults: &Defaults,
        source: &ArchiveSource,
        base_uri: &str,
        component: Option<&str>,
        architecture: Option<&str>,
        language: Option<&str>,
    ) -> Option<IndexTarget> {
        let fill = |text: &str| {
            let architecture = architecture.unwrap_or_default();
            text.replace("$(COMPONENT)", component.unwrap_or_default())
                .replace("$(NATIVE_ARCHITECTURE)", architecture)
                .replace("$(ARCHITECTURE)", architecture)
                .replace("$(LANGUAGE)", language.unwrap_or_default())
        };
        let key = self.meta_key();
        let meta_key = fill(key);
        // It becomes part of a local file name.
        fullbore_debian::path::check(&meta_key).ok()?;
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let keep_compressed_as = match self.get("KeepCompressedAs") {
            Some(own) => words(own).into_iter().chain(["uncompressed".to_owned()]).collect(),
            None => defaults.keep_compressed_as.clone(),
        };
        // `all` was not requested: optional.
        let implicit = architecture == Some("all")
            && !source.architectures.resolve(&defaults.architectures).iter().any(|own| own == "all");
        let by_hash = match self.get("By-Hash") {
            Some(value) if value.eq_ignore_ascii_case("force") => ByHash::Force,
            Some(_) if self.bool("By-Hash", true) => source.by_hash,
            Some(_) => ByHash::No,
            None => source.by_hash,
        };
        Some(IndexTarget {
            meta_key,
            base_uri: base_uri.to_owned(),
            created_by: self.name.to_owned(),
            component: component.filter(|_| key.contains("$(COMPONENT)")).map(str::to_owned),
            architecture: architecture.map(str::to_owned),
            language: language.map(str::to_owned),
            optional: implicit || self.bool("Optional", true),
            keep_compressed: self.bool("KeepCompressed", self.configuration.bool("Acquire::GzipIndexes", false)),
            keep_compressed_as,
            compression_types: self.get("CompressionTypes").map_or_else(|| defaults.compression_types.clone(), words),
            pdiffs: self.bool("PDiffs", source.pdiffs.unwrap_or(self.configuration.bool("Acquire::PDiffs", true))),
            by_hash,
            fallback_of: self.get("Fallback-Of").map(str::to_owned),
        })
    }
}
