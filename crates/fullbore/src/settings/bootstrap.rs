//! What `fullbore bootstrap` is to do.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fullbore_apt::system::{configuration as apt_configuration, proxies, sources as apt};
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::{absolute, read_text};
use fullbore_install::SEARCH_PATH;
use fullbore_install::SourcesFile;
use fullbore_install::bootstrap::oci::{self, Platform};
use fullbore_install::bootstrap::tools;
use fullbore_install::hooks::{self, Hook, Moment};
use fullbore_install::settings::{BootstrapSettings, Format, Mode, OciContainer, OciSettings, Stream, Variant};

use super::keys::check_keyring;
use super::resolve::{network, output};
use super::suites::{Known, Releases};
use super::{Environment, OutputSettings};
use crate::cli::{self, BootstrapArgs, BootstrapFormat, BootstrapMode};
use crate::stdio;

/// Largest file of sources taken over into the new root. A guess: a thousand entries with inline keys.
const SOURCES_BYTES_MAX: u64 = 8 << 20;

/// Releases by the package distro-info-data.
const DEBIAN_RELEASES: &str = "/usr/share/distro-info/debian.csv";
const UBUNTU_RELEASES: &str = "/usr/share/distro-info/ubuntu.csv";

/// Stands for stdin among the mirrors.
const STDIN: &str = "-";

/// Stands for stdout as the target.
const STDOUT: &str = "-";

/// Where a root is made that becomes an archive on stdout, unless `TMPDIR` says it: /tmp may be in memory.
const TEMPORARY: &str = "/var/tmp";

/// Archives' keyrings that count beside those that apt on this machine trusts: a machine of one distribution makes roots
/// of the other.
const ARCHIVE_KEYRINGS: [&str; 3] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
];

/// Resolves flags, environment and apt's configuration.
///
/// # Errors
/// Flags that contradict each other, or name files that are not there.
pub fn bootstrap(
    arguments: &BootstrapArgs,
    environment: &Environment,
) -> Result<(BootstrapSettings, OutputSettings), CommandError> {
    let configuration = apt_configuration::read()?;
    let proxy = proxies::over(&configuration, &environment.proxy);
    let network_environment = Environment { proxy, ..environment.clone() };
    if arguments.suite.is_empty() || arguments.suite.contains(char::is_whitespace) {
        return Err(CommandError::usage(format_args!("`{}` is no suite", arguments.suite)));
    }
    if let Some(wrong) = &environment.wrong_epoch {
        return Err(CommandError::usage(format_args!("SOURCE_DATE_EPOCH: `{wrong}` is no number of seconds")));
    }
    let to_stdout = arguments.target.as_os_str() == STDOUT;
    let target = if to_stdout {
        arguments.target.clone()
    } else {
        let order = "name the target before the mirror, as in `fullbore bootstrap SUITE root URL`";
        absolute(&arguments.target).map_err(|error| error.hint(order))?
    };
    if target == Path::new("/") {
        return Err(CommandError::usage("/ is where this machine's own root is; name another directory"));
    }
    if to_stdout {
        may_go_to_stdout(arguments)?;
    }
    let components = match &arguments.components[..] {
        [] => vec!["main".to_owned()],
        named => named.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect(),
    };
    let architectures = match &arguments.arch[..] {
        [] => vec![apt::native_architecture().to_owned()],
        named => named.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect(),
    };
    let format = match format_of(arguments.format, &target)? {
        Made::Root(format) => {
            needs_no_image(arguments)?;
            format
        }
        Made::Image(container) => Format::Oci(image(arguments, container, &architectures[0])?),
    };
    let (sources, mirrors) =
        sources(arguments, &architectures[0], &components.join(" "), environment.in_namespace.is_some())?;
    let mut trusted = Vec::new();
    for keyring in &arguments.trust.keyring {
        let keyring = keyring
            .canonicalize()
            .map_err(|error| CommandError::usage(format_args!("cannot read {}: {error}", keyring.display())))?;
        check_keyring(&keyring)?;
        trusted.push(keyring);
    }
    if trusted.is_empty() {
        let of_apt = ["Dir::Etc::trusted", "Dir::Etc::trustedparts"];
        trusted.extend(of_apt.iter().filter_map(|key| configuration.path(key)).filter(|path| path.exists()));
        trusted.extend(ARCHIVE_KEYRINGS.iter().map(PathBuf::from).filter(|path| path.exists()));
    }
    let stream = if to_stdout {
        let file = stdio::stdout_file().map_err(|error| CommandError::disk(Path::new("stdout"), &error))?;
        let root_below = PathBuf::from(environment.tmpdir.as_deref().unwrap_or(TEMPORARY));
        Some(Stream { file: Arc::new(file), root_below })
    } else {
        None
    };
    let verbosity = if arguments.output.quiet { 0 } else { arguments.output.verbose.saturating_add(1) };
    let commands_print_to = if verbosity > 1 {
        Some(Arc::new(stdio::stderr_file().map_err(|error| CommandError::disk(Path::new("stderr"), &error))?))
    } else {
        None
    };
    let settings = BootstrapSettings {
        suite: arguments.suite.clone(),
        format,
        mode: environment.in_namespace.unwrap_or_else(|| mode_of(arguments.mode)),
        stream,
        target,
        architectures,
        variant: variant_of(arguments.variant),
        include: arguments.include.iter().flat_map(|text| included(text)).collect(),
        sources,
        mirrors,
        keyrings: trusted,
        apt_options: arguments.aptopt.clone(),
        dpkg_options: arguments.dpkgopt.clone(),
        hooks: hooks_of(arguments)?,
        epoch: environment.source_date_epoch,
        path: match &environment.path {
            Some(path) => format!("{path}:{SEARCH_PATH}"),
            None => SEARCH_PATH.to_owned(),
        },
        network: network(&arguments.network, arguments.trust.cacert.as_deref(), &network_environment)?,
        verbosity,
        commands_print_to,
    };
    let dpkg_prints = verbosity > 1;
    let output = OutputSettings { stdout_is_taken: to_stdout, dpkg_prints, ..output(&arguments.output, false) };
    Ok((settings, output))
}

/// An archive on stdout has it for itself, and is nothing for people to read.
fn may_go_to_stdout(arguments: &BootstrapArgs) -> Result<(), CommandError> {
    if !matches!(arguments.format, BootstrapFormat::Auto | BootstrapFormat::Tar | BootstrapFormat::Oci) {
        return Err(CommandError::usage("only an archive goes to stdout")
            .hint("name a TARGET, or pass --format tar or --format oci"));
    }
    if arguments.output.json {
        return Err(CommandError::usage("--json needs stdout, which is for the archive").hint("name a TARGET"));
    }
    // Told before hours of work, not behind them.
    stdio::stdout_file().map_err(|error| CommandError::disk(Path::new("stdout"), &error))?;
    if stdio::stdout_is_terminal() {
        return Err(CommandError::usage("an archive is nothing for a terminal")
            .hint("name a TARGET, or send stdout elsewhere: `> root.tar`"));
    }
    Ok(())
}

fn mode_of(wish: BootstrapMode) -> Mode {
    match wish {
        BootstrapMode::Root => Mode::Root,
        BootstrapMode::Auto if rustix::process::geteuid().is_root() => Mode::Root,
        BootstrapMode::Auto | BootstrapMode::Unshare => Mode::Unshare,
    }
}

fn variant_of(wish: cli::Variant) -> Variant {
    match wish {
        cli::Variant::Custom => Variant::Custom,
        cli::Variant::Essential => Variant::Essential,
        cli::Variant::Apt => Variant::Apt,
        cli::Variant::Required => Variant::Required,
        cli::Variant::Buildd => Variant::Buildd,
        cli::Variant::Important => Variant::Important,
        cli::Variant::Standard => Variant::Standard,
    }
}

/// What a target is made into.
#[derive(Debug, PartialEq, Eq)]
enum Made {
    Root(Format),
    Image(OciContainer),
}

fn format_of(wish: BootstrapFormat, target: &Path) -> Result<Made, CommandError> {
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_stdout = target.as_os_str() == STDOUT;
    let is_packed = tools::compressor(target).is_some();
    match wish {
        BootstrapFormat::Dir => return Ok(Made::Root(Format::Dir)),
        BootstrapFormat::Tar => return Ok(Made::Root(Format::Tar)),
        BootstrapFormat::Squashfs => return Ok(Made::Root(Format::Squashfs)),
        BootstrapFormat::Oci if is_stdout || name.ends_with(".tar") => return Ok(Made::Image(OciContainer::Archive)),
        BootstrapFormat::Oci if !is_packed && !name.contains(".tar.") => {
            return Ok(Made::Image(OciContainer::Directory));
        }
        BootstrapFormat::Oci => return Err(packed_twice(&name)),
        BootstrapFormat::Auto if is_stdout => return Ok(Made::Root(Format::Tar)),
        BootstrapFormat::Auto => {}
    }
    if name.ends_with(".squashfs") || name.ends_with(".sqfs") {
        Ok(Made::Root(Format::Squashfs))
    } else if name.ends_with(".oci") {
        Ok(Made::Image(OciContainer::Directory))
    } else if name.ends_with(".oci.tar") {
        Ok(Made::Image(OciContainer::Archive))
    } else if name.contains(".oci.tar.") {
        Err(packed_twice(&name))
    } else if name.ends_with(".tar") || is_packed {
        Ok(Made::Root(Format::Tar))
    } else if name.contains(".tar.") {
        Err(CommandError::usage(format_args!("{name}: it is not known what compresses an archive of this ending"))
            .hint("name one that ends in .gz, .bz2, .xz, .zst, .lz4 or .lzma; --format tar makes a plain archive"))
    } else {
        Ok(Made::Root(Format::Dir))
    }
}

fn packed_twice(name: &str) -> CommandError {
    CommandError::usage(format_args!("{name}: an OCI archive is not compressed; its layer is"))
        .hint("name a target that ends in .tar, or a directory")
}

/// Flags for images change nothing of other formats.
fn needs_no_image(arguments: &BootstrapArgs) -> Result<(), CommandError> {
    let flags = [("--oci-tag", arguments.oci_tag.is_some()), ("--oci-arch", arguments.oci_arch.is_some())];
    match flags.into_iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((flag, _)) => Err(CommandError::usage(format_args!("{flag} is for OCI images"))
            .hint("pass --format oci, or a TARGET that ends in .oci or .oci.tar")),
    }
}

fn image(arguments: &BootstrapArgs, container: OciContainer, architecture: &str) -> Result<OciSettings, CommandError> {
    let tag = arguments.oci_tag.as_ref().unwrap_or(&arguments.suite);
    if !oci::is_tag(tag) {
        return Err(CommandError::usage(format_args!("`{tag}` is not allowed as the name of an OCI image"))
            .hint("pass --oci-tag with letters and digits, and single -._:@+/ between them"));
    }
    let platform = match &arguments.oci_arch {
        None => Platform::of_debian(architecture).ok_or_else(|| {
            CommandError::usage(format_args!("OCI images have no name for the architecture {architecture}"))
                .hint(format_args!("pass --oci-arch, one of {}", Platform::names().join(", ")))
        })?,
        Some(name) => Platform::parse(name).ok_or_else(|| {
            CommandError::usage(format_args!("--oci-arch {name}: unknown architecture"))
                .hint(format_args!("name one of {}, with a variant as in arm/v7", Platform::names().join(", ")))
        })?,
    };
    Ok(OciSettings { container, tag: tag.clone(), platform })
}

/// A pattern of apt's stays whole, names are split at commas and spaces.
fn included(text: &str) -> Vec<String> {
    if text.starts_with(['?', '~', '!', '(']) {
        return vec![text.to_owned()];
    }
    text.split([',', ' ', '\n', '\t']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn hooks_of(arguments: &BootstrapArgs) -> Result<Vec<Hook>, CommandError> {
    let by_flag = [
        (Moment::Setup, &arguments.setup_hook),
        (Moment::Extract, &arguments.extract_hook),
        (Moment::Essential, &arguments.essential_hook),
        (Moment::Customize, &arguments.customize_hook),
    ];
    let mut all = Vec::new();
    for (moment, scripts) in by_flag {
        all.extend(scripts.iter().map(|script| Hook { moment, script: script.clone() }));
    }
    for directory in &arguments.hook_directory {
        let absolute = absolute(directory)?;
        let hooks = hooks::of_directory(&absolute)
            .map_err(|error| CommandError::usage(format_args!("{}: {error}", directory.display())))?;
        if hooks.is_empty() {
            return Err(CommandError::usage(format_args!("{}: no executable hook in it", directory.display()))
                .hint("their names begin with setup, extract, essential or customize"));
        }
        all.extend(hooks);
    }
    for hook in &all {
        hook.check().map_err(|error| {
            CommandError::usage(format_args!("{} hook `{}`: {error}", hook.moment.name(), hook.script))
        })?;
    }
    Ok(all)
}

/// The files of sources, and the addresses that were given as mirrors of one archive. stdin is there once: it is left to
/// the program in its namespaces.
fn sources(
    arguments: &BootstrapArgs,
    architecture: &str,
    components: &str,
    reads_stdin: bool,
) -> Result<(Vec<SourcesFile>, Vec<String>), CommandError> {
    let suite = &arguments.suite;
    let mut entries: Vec<Entry> = Vec::new();
    let mut mirrors = Vec::new();
    for mirror in &arguments.mirrors {
        if mirror == STDIN {
            let mut text = String::new();
            if reads_stdin {
                let read = std::io::stdin().take(SOURCES_BYTES_MAX).read_to_string(&mut text);
                read.map_err(|error| CommandError::usage(format_args!("stdin: {error}")))?;
                if text.trim().is_empty() {
                    return Err(CommandError::usage("stdin: no apt sources in it"));
                }
            }
            entries.push(Entry { kind: guess(&text), name: None, text });
        } else if mirror.starts_with("deb ") || mirror.starts_with("deb-src ") {
            add_line(&mut entries, format!("{mirror}\n"));
        } else if mirror.contains("://") {
            // apt decodes the words of such a line once (see `parse_one_line`).
            let word = mirror.replace('%', "%25");
            add_line(&mut entries, format!("deb {word} {suite} {components}\n"));
            mirrors.push(mirror.trim_end_matches('/').to_owned());
        } else if Path::new(mirror).is_file() {
            let text = read_text(Path::new(mirror), SOURCES_BYTES_MAX)?;
            let kind = match mirror {
                name if name.ends_with(".list") => Kind::OneLine,
                name if name.ends_with(".sources") => Kind::Deb822,
                _ => guess(&text),
            };
            let name = Path::new(mirror).file_name().map(|name| name.to_string_lossy().into_owned());
            entries.push(Entry { kind, name, text });
        } else if !mirror.is_empty() {
            return Err(CommandError::usage(format_args!("`{mirror}` is no mirror"))
                .hint("an address has ://, a line begins with `deb`, anything else is a file of apt sources"));
        }
    }
    if entries.is_empty() {
        for line in of_this_machine(suite, architecture, components)? {
            if let Some(entry) = entries.last_mut() {
                entry.text.push_str(&line);
            } else {
                add_line(&mut entries, line);
            }
        }
    }
    Ok((entries.into_iter().enumerate().map(|(number, entry)| entry.placed(number)).collect(), mirrors))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    OneLine,
    Deb822,
}

struct Entry {
    kind: Kind,
    name: Option<String>,
    text: String,
}

impl Entry {
    /// Under the name that mmdebstrap would give it.
    fn placed(self, number: usize) -> SourcesFile {
        let ending = match self.kind {
            Kind::OneLine => ".list",
            Kind::Deb822 => ".sources",
        };
        let path = match (self.name, self.kind) {
            (None, Kind::OneLine) if number == 0 => PathBuf::from("etc/apt/sources.list"),
            (name, _) => {
                let mut name = format!("{number:04}{}", name.as_deref().unwrap_or("main"));
                if !name.ends_with(".list") && !name.ends_with(".sources") {
                    name.push_str(ending);
                }
                Path::new("etc/apt/sources.list.d").join(name)
            }
        };
        SourcesFile { path, content: self.text }
    }
}

fn add_line(entries: &mut Vec<Entry>, line: String) {
    match entries.last_mut() {
        Some(entry) if entry.kind == Kind::OneLine && entry.name.is_none() => {
            entry.text.push('\n');
            entry.text.push_str(&line);
        }
        _ => entries.push(Entry { kind: Kind::OneLine, name: None, text: line }),
    }
}

fn guess(text: &str) -> Kind {
    let is_line = |line: &str| line.starts_with("deb ") || line.starts_with("deb-src ") || line.starts_with("deb [");
    if text.lines().any(is_line) { Kind::OneLine } else { Kind::Deb822 }
}

/// The archive that apt on this machine uses, or the distribution's own: with the suites that belong to this one.
fn of_this_machine(suite: &str, architecture: &str, components: &str) -> Result<Vec<String>, CommandError> {
    let configuration = apt_configuration::read()?;
    let mut here = Vec::new();
    for key in ["Dir::Etc::sourcelist", "Dir::Etc::sourceparts"] {
        let Some(path) = configuration.path(key).filter(|path| path.exists()) else { continue };
        // An empty sources.list beside a directory of sources is usual.
        for source in apt::read(&path).unwrap_or_default().iter().filter(|source| source.binary) {
            let Some(uri) = source.uris.first() else { continue };
            here.extend(source.suite_names.iter().map(|suite| Known { uri: uri.clone(), suite: suite.clone() }));
        }
    }
    let read = |path: &str| read_text(Path::new(path), SOURCES_BYTES_MAX).unwrap_or_default();
    let releases = Releases { debian: read(DEBIAN_RELEASES), ubuntu: read(UBUNTU_RELEASES) };
    releases.sources(suite, architecture, components, &here).ok_or_else(|| {
        CommandError::usage(format_args!("no mirror is named, and it is not known whose suite `{suite}` is"))
            .hint("say `fullbore bootstrap SUITE TARGET https://deb.example.org/debian`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_placed_as_by_mmdebstrap() {
        let entry = |kind, name: Option<&str>| Entry { kind, name: name.map(str::to_owned), text: String::new() };
        let path = |entry: Entry, number| entry.placed(number).path.display().to_string();
        assert_eq!(path(entry(Kind::OneLine, None), 0), "etc/apt/sources.list");
        assert_eq!(path(entry(Kind::Deb822, None), 0), "etc/apt/sources.list.d/0000main.sources");
        assert_eq!(path(entry(Kind::OneLine, None), 2), "etc/apt/sources.list.d/0002main.list");
        assert_eq!(path(entry(Kind::Deb822, Some("x.sources")), 1), "etc/apt/sources.list.d/0001x.sources");
    }

    #[test]
    fn formats_go_by_the_ending() {
        let of = |name: &str| format_of(BootstrapFormat::Auto, Path::new(name)).ok();
        for archive in ["/x/root.tar", "/x/root.tar.zst", "/x/root.txz", "/x/root.gz", "-"] {
            assert_eq!(of(archive), Some(Made::Root(Format::Tar)), "{archive}");
        }
        assert_eq!(of("/x/root.squashfs"), Some(Made::Root(Format::Squashfs)));
        assert_eq!(of("/x.gz/root"), Some(Made::Root(Format::Dir)));
        assert_eq!(of("/x/root.oci"), Some(Made::Image(OciContainer::Directory)));
        assert_eq!(of("/x/root.oci.tar"), Some(Made::Image(OciContainer::Archive)));
        // Would be a plain archive of another's name.
        assert_eq!(of("/x/root.tar.lz"), None);
        // Would be the archive of a root, compressed.
        assert_eq!(of("/x/root.oci.tar.gz"), None);
        let dir = format_of(BootstrapFormat::Dir, Path::new("x.tar"));
        assert_eq!(dir.ok(), Some(Made::Root(Format::Dir)));
    }

    #[test]
    fn images_are_archives_or_directories() {
        let of = |name: &str| format_of(BootstrapFormat::Oci, Path::new(name)).map_err(|error| error.message);
        for archive in ["-", "/x/image.tar", "/x/image.oci.tar"] {
            assert_eq!(of(archive), Ok(Made::Image(OciContainer::Archive)), "{archive}");
        }
        for directory in ["/x/image", "/x/image.oci", "/x/image.tar/layout"] {
            assert_eq!(of(directory), Ok(Made::Image(OciContainer::Directory)), "{directory}");
        }
        for packed in ["image.tar.gz", "image.tgz", "image.tar.lz", "image.zst"] {
            assert!(of(packed).unwrap_err().starts_with(packed), "{packed}");
        }
    }

    #[test]
    fn included_names_are_split_and_patterns_are_not() {
        assert_eq!(included("a,b c"), ["a", "b", "c"]);
        assert_eq!(included("?and(~n^a, ~pb)"), ["?and(~n^a, ~pb)"]);
    }
}
